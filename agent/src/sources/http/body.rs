//! Takes the body of a request: as much as is allowed, as long as it comes, expanded under a limit.
//!
//! The size is counted while bytes come and while they are expanded, so no header has to be believed. All bodies that are on
//! their way share one room ([`Room`]), and of those that expand to more than a little there is one at a time, so that many
//! bombs take no more memory than one.

use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body::Body;
use http_body_util::BodyExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use super::answer::Refusal;
use crate::limits::{
    INGEST_BODIES_BYTES, INGEST_BODY_LOOK_BYTES_MIN, INGEST_BODY_LOOK_MS, INGEST_DECODERS_MAX,
    INGEST_LARGE_BYTES, INGEST_REFUSED_BYTES_MAX, INGEST_REFUSED_MS_MAX, INGEST_ROOM_MS_MAX,
    INGEST_ZSTD_WINDOW_LOG_MAX,
};

/// What room is counted in.
const UNIT_BYTES: usize = 64 * 1024;

/// What bodies may take together.
#[derive(Debug)]
pub(super) struct Room {
    units: Arc<Semaphore>,
    decoders: Semaphore,
    large: Arc<Semaphore>,
    body_max: usize,
}

/// The memory of a body, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Held {
    _units: Option<OwnedSemaphorePermit>,
    _large: Option<OwnedSemaphorePermit>,
}

/// How the body is coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coding {
    Identity,
    Gzip,
    Zstd,
}

impl Coding {
    fn name(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }

    /// By the value of `Content-Encoding`.
    pub(super) fn parse(text: &str) -> Result<Self, Refusal> {
        match text.trim().to_ascii_lowercase().as_str() {
            "" | "identity" => Ok(Self::Identity),
            "gzip" | "x-gzip" => Ok(Self::Gzip),
            "zstd" => Ok(Self::Zstd),
            other => Err(Refusal::UnknownCoding(other.chars().take(64).collect())),
        }
    }
}

impl Room {
    pub(super) fn new(body_max: usize) -> Self {
        let units = (body_max + INGEST_BODIES_BYTES).div_ceil(UNIT_BYTES);
        Self {
            units: Arc::new(Semaphore::new(units)),
            decoders: Semaphore::new(INGEST_DECODERS_MAX),
            large: Arc::new(Semaphore::new(1)),
            body_max,
        }
    }

    fn too_large(&self) -> Refusal {
        Refusal::Large(self.body_max as u64)
    }

    /// Reads a body to its end.
    ///
    /// # Cancel safety
    /// When dropped, what was read is gone.
    pub(super) async fn receive<B>(&self, body: &mut B) -> Result<(Vec<u8>, Held), Refusal>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: std::fmt::Display,
    {
        let declared = body.size_hint().lower();
        if declared > self.body_max as u64 {
            return Err(self.too_large());
        }
        // What is declared is not reserved: it may never come.
        let mut bytes = Vec::new();
        let mut units = None;
        let look = Duration::from_millis(INGEST_BODY_LOOK_MS);
        let mut deadline = Instant::now() + look;
        let mut seen = 0;
        loop {
            let frame = match timeout_at(deadline, body.frame()).await {
                Ok(None) => break,
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(error))) => return Err(Refusal::Broken(error.to_string())),
                Err(_) if bytes.len() - seen >= INGEST_BODY_LOOK_BYTES_MIN => {
                    seen = bytes.len();
                    deadline = Instant::now() + look;
                    continue;
                }
                Err(_) => {
                    let seconds = look.as_secs();
                    return Err(Refusal::Slow { bytes: INGEST_BODY_LOOK_BYTES_MIN, seconds });
                }
            };
            let Ok(data) = frame.into_data() else { continue };
            if data.len() > self.body_max - bytes.len() {
                return Err(self.too_large());
            }
            self.grow(&mut units, bytes.len() + data.len()).await?;
            bytes.extend_from_slice(&data);
        }
        Ok((bytes, Held { _units: units, _large: None }))
    }

    /// Takes room until it is enough for so many bytes.
    async fn grow(
        &self,
        held: &mut Option<OwnedSemaphorePermit>,
        bytes: usize,
    ) -> Result<(), Refusal> {
        let has = held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let Some(more) = bytes.div_ceil(UNIT_BYTES).checked_sub(has).filter(|more| *more > 0)
        else {
            return Ok(());
        };
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        let wait = Duration::from_millis(INGEST_ROOM_MS_MAX);
        let got = timeout(wait, Arc::clone(&self.units).acquire_many_owned(more)).await;
        let Ok(Ok(got)) = got else { return Err(Refusal::Busy) };
        match held {
            Some(held) => held.merge(got),
            None => *held = Some(got),
        }
        Ok(())
    }

    /// Expands a body on a thread of its own. What it was sent as is dropped.
    pub(super) async fn expand(
        self: &Arc<Self>,
        coding: Coding,
        (bytes, held): (Vec<u8>, Held),
    ) -> Result<(Vec<u8>, Held), Refusal> {
        if coding == Coding::Identity {
            return Ok((bytes, held));
        }
        let wait = Duration::from_millis(INGEST_ROOM_MS_MAX);
        let Ok(Ok(_decoder)) = timeout(wait, self.decoders.acquire()).await else {
            return Err(Refusal::Busy);
        };
        let room = Arc::clone(self);
        let runtime = tokio::runtime::Handle::current();
        let expanding = tokio::task::spawn_blocking(move || {
            let mut large = None;
            let expanded = expand(coding, &bytes, room.body_max, || {
                let permit =
                    runtime.block_on(timeout(wait, Arc::clone(&room.large).acquire_owned()));
                large = permit.ok().and_then(Result::ok);
                if large.is_some() { Ok(()) } else { Err(Refusal::Busy) }
            })?;
            drop((bytes, held));
            Ok((expanded, Held { _units: None, _large: large }))
        });
        expanding.await.unwrap_or_else(|error| Err(Refusal::Failing(error.to_string())))
    }
}

/// Expands `bytes`. One that turns out to be large is first measured without being kept, so that a bomb takes no room; then
/// `large` is asked, and it is expanded again.
fn expand(
    coding: Coding,
    bytes: &[u8],
    max: usize,
    large: impl FnOnce() -> Result<(), Refusal>,
) -> Result<Vec<u8>, Refusal> {
    let failed =
        |error: io::Error| Refusal::Coding { coding: coding.name(), error: error.to_string() };
    let mut expanded = Vec::new();
    let small = INGEST_LARGE_BYTES.min(max) as u64;
    let mut decoder = decoder(coding, bytes).map_err(failed)?;
    decoder.by_ref().take(small + 1).read_to_end(&mut expanded).map_err(failed)?;
    if expanded.len() as u64 <= small {
        return Ok(expanded);
    }
    let read = expanded.len();
    drop(expanded);
    let room = (max + 1 - read) as u64;
    let more = io::copy(&mut decoder.take(room), &mut io::sink()).map_err(failed)?;
    if more == room {
        return Err(Refusal::Large(max as u64));
    }
    large()?;
    let mut expanded = Vec::with_capacity(read + usize::try_from(more).unwrap_or_default());
    self::decoder(coding, bytes).and_then(|mut d| d.read_to_end(&mut expanded)).map_err(failed)?;
    Ok(expanded)
}

fn decoder(coding: Coding, bytes: &[u8]) -> io::Result<Box<dyn Read + '_>> {
    Ok(match coding {
        Coding::Identity => Box::new(bytes),
        Coding::Gzip => Box::new(flate2::read::MultiGzDecoder::new(bytes)),
        Coding::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(bytes)?;
            decoder.window_log_max(INGEST_ZSTD_WINDOW_LOG_MAX)?;
            Box::new(decoder)
        }
    })
}

/// Reads and throws away what is left of a body that is refused, up to a bound: a client that is still sending would not see
/// the answer. Gives whether that was all.
pub(super) async fn discard<B>(body: &mut B) -> bool
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut left = INGEST_REFUSED_BYTES_MAX;
    let all = async {
        while let Some(Ok(frame)) = body.frame().await {
            let Ok(data) = frame.into_data() else { continue };
            let Some(less) = left.checked_sub(data.len()) else { return };
            left = less;
        }
    };
    // Whoever is too slow has had its chance.
    let _in_time = timeout(Duration::from_millis(INGEST_REFUSED_MS_MAX), all).await;
    body.is_end_stream()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use proptest::prelude::*;

    use super::*;
    use crate::fuzz::fuzz;

    const MAX: usize = 100_000;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let level = flate2::Compression::default();
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn expanded(coding: Coding, bytes: &[u8]) -> Result<Vec<u8>, Refusal> {
        expand(coding, bytes, MAX, || Ok(()))
    }

    #[test]
    fn both_codings_give_back_what_went_in_and_several_members_are_one_body() {
        let body = b"some text, ".repeat(1000);
        let twice = [gzip(&body), gzip(&body)].concat();
        assert_eq!(expanded(Coding::Gzip, &twice).unwrap(), body.repeat(2));
        let frame = zstd::bulk::compress(&body, 1).unwrap();
        let twice = [frame.clone(), frame].concat();
        assert_eq!(expanded(Coding::Zstd, &twice).unwrap(), body.repeat(2));
        let most = vec![7; MAX];
        assert_eq!(expanded(Coding::Gzip, &gzip(&most)).unwrap(), most);
    }

    #[test]
    fn a_large_body_asks_for_its_room_before_it_is_kept_and_a_bomb_does_not() {
        let max = 4 * INGEST_LARGE_BYTES;
        let asked = std::cell::Cell::new(0);
        let ask = || {
            asked.set(asked.get() + 1);
            Ok(())
        };
        for (bytes, asks) in [(INGEST_LARGE_BYTES, 0), (INGEST_LARGE_BYTES + 1, 1), (max, 2)] {
            let body = vec![7; bytes];
            assert!(expand(Coding::Gzip, &gzip(&body), max, ask).unwrap() == body);
            assert_eq!(asked.get(), asks, "{bytes}");
        }
        let refused = expand(Coding::Gzip, &gzip(&vec![7; max + 1]), max, ask).unwrap_err();
        assert_eq!((refused, asked.get()), (Refusal::Large(max as u64), 2));
        let none = || Err(Refusal::Busy);
        let refused = expand(Coding::Gzip, &gzip(&vec![7; max]), max, none).unwrap_err();
        assert_eq!(refused, Refusal::Busy);
    }

    #[test]
    fn one_byte_more_than_is_allowed_is_refused() {
        let over = vec![7; MAX + 1];
        let zstd = zstd::bulk::compress(&over, 1).unwrap();
        for (coding, bytes) in [(Coding::Gzip, gzip(&over)), (Coding::Zstd, zstd)] {
            assert_eq!(expanded(coding, &bytes).unwrap_err(), Refusal::Large(MAX as u64));
        }
    }

    #[test]
    fn what_is_cut_or_followed_by_something_else_is_refused_whole() {
        let body: Vec<u8> = (0..20_000_u32).flat_map(u32::to_le_bytes).collect();
        let zstd = zstd::bulk::compress(&body, 1).unwrap();
        for (coding, whole) in [(Coding::Gzip, gzip(&body)), (Coding::Zstd, zstd)] {
            for cut in [1, 8, whole.len() / 2, whole.len() - 1] {
                let refused = expanded(coding, &whole[..whole.len() - cut]).unwrap_err();
                assert!(matches!(refused, Refusal::Coding { .. }), "{coding:?} {cut} {refused}");
            }
            let more = [&whole[..], b"x"].concat();
            assert!(expanded(coding, &more).is_err(), "{coding:?}");
        }
    }

    #[test]
    fn a_window_larger_than_the_web_allows_is_refused() {
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        encoder.window_log(27).unwrap();
        encoder.write_all(b"x").unwrap();
        let refused = expanded(Coding::Zstd, &encoder.finish().unwrap()).unwrap_err();
        assert!(matches!(refused, Refusal::Coding { coding: "zstd", .. }), "{refused}");
    }

    proptest! {
        #[test]
        fn whatever_bytes_come_they_are_expanded_or_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..2000),
            magic in 0..3_usize,
        ) {
            let magic = [&b""[..], &[0x1f, 0x8b, 8, 0], &[0x28, 0xb5, 0x2f, 0xfd]][magic];
            let bytes = [magic, &bytes].concat();
            for coding in [Coding::Gzip, Coding::Zstd] {
                if let Ok(expanded) = expanded(coding, &bytes) {
                    prop_assert!(expanded.len() <= MAX);
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_wait_for_room_and_are_refused_when_none_comes() {
        let room = Arc::new(Room::new(INGEST_BODIES_BYTES));
        let body = || http_body_util::Full::new(Bytes::from(vec![1; INGEST_BODIES_BYTES]));
        let first = room.receive(&mut body()).await.unwrap();
        let _second = room.receive(&mut body()).await.unwrap();
        assert_eq!(room.receive(&mut body()).await.unwrap_err(), Refusal::Busy);
        drop(first);
        assert_eq!(room.receive(&mut body()).await.unwrap().0.len(), INGEST_BODIES_BYTES);
    }

    #[test]
    fn fuzzed_bodies_are_expanded_within_their_bound_or_refused() {
        let text: Vec<u8> = (0_u32..5000).flat_map(u32::to_le_bytes).collect();
        let zstd = |bytes: &[u8]| zstd::encode_all(bytes, 3).unwrap();
        let twice = [gzip(b"one"), gzip(b"two")].concat();
        let examples =
            [gzip(&text), zstd(&text), gzip(&[0; 50_000]), zstd(&[0; 50_000]), twice, zstd(b"")];
        let examples: Vec<&[u8]> = examples.iter().map(Vec::as_slice).collect();
        fuzz(&examples, |bytes| {
            for coding in [Coding::Gzip, Coding::Zstd] {
                if let Ok(expanded) = expanded(coding, bytes) {
                    assert!(expanded.len() <= MAX);
                }
            }
        });
    }
}
