//! Makes records of a body, and appends of records.
//!
//! NDJSON is a record a line, and a JSON array a record an element, as its bytes stand there; anything else is one record.

use std::fmt;
use std::sync::Arc;

use serde::Deserializer as _;
use serde::de::{SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::answer::{Accepted, Refusal};
use crate::clock::Timestamp;
use crate::journal::Append;
use crate::record::HeadersBuffer;
use crate::sources::collect::{Collector, Line};
use crate::sources::config::{LineLimits, OnOversize};
use crate::sources::{SourceCounters, Times};

/// What a body is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Media {
    Ndjson,
    /// An array of records, or one.
    Json,
    /// One record, with its type as a header if it has one.
    Other(Option<String>),
}

impl Media {
    /// By the value of `Content-Type`.
    pub(super) fn parse(text: Option<&str>) -> Self {
        let essence = text.and_then(|text| text.split(';').next());
        match essence.map(|essence| essence.trim().to_ascii_lowercase()).as_deref() {
            Some(
                "application/x-ndjson"
                | "application/ndjson"
                | "application/jsonl"
                | "application/jsonlines"
                | "application/x-jsonlines",
            ) => Self::Ndjson,
            Some("application/json") => Self::Json,
            Some("") | None => Self::Other(None),
            Some(_) => Self::Other(text.map(|text| text.trim().to_owned())),
        }
    }
}

/// What goes for every record of a body.
pub(super) struct Splitting<'a> {
    pub(super) limits: LineLimits,
    pub(super) counters: &'a Arc<SourceCounters>,
    pub(super) times: Option<&'a Arc<Times>>,
    pub(super) subject: &'a str,
    pub(super) time: Timestamp,
    /// Who sent it, for a dead letter.
    pub(super) client: &'a str,
    /// Records of it that are stored already.
    pub(super) skip: u64,
}

/// An append, and how much of the body is dealt with behind it.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) append: Append,
    pub(super) items: u64,
    pub(super) counts: Accepted,
}

/// A body as appends, each of a chunk at most.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) steps: Vec<Step>,
    pub(super) counts: Accepted,
}

/// Gathers items into steps.
struct Gather<'a> {
    splitting: &'a Splitting<'a>,
    collector: Collector,
    headers: HeadersBuffer,
    beside: usize,
    steps: Vec<Step>,
    items: u64,
    counts: Accepted,
}

/// Takes a body apart.
pub(super) fn split(
    body: &[u8],
    media: &Media,
    splitting: &Splitting<'_>,
) -> Result<Parts, Refusal> {
    let mut headers = HeadersBuffer::default();
    if let Media::Other(Some(kind)) = media {
        headers.push("content-type", kind);
    }
    let beside = splitting.subject.len() + headers.as_headers().as_bytes().len();
    let mut gather = Gather {
        splitting,
        collector: Collector::new(splitting.limits, Arc::clone(splitting.counters))
            .timed(splitting.times),
        headers,
        beside,
        steps: Vec::new(),
        items: 0,
        counts: Accepted::default(),
    };
    match media {
        Media::Ndjson => {
            for line in body.split(|byte| *byte == b'\n') {
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                if !line.is_empty() {
                    gather.item(line);
                }
            }
        }
        Media::Json if first_of(body) == Some(b'[') => elements(body, &mut gather)?,
        Media::Json | Media::Other(_) if body.is_empty() => return Err(Refusal::Empty),
        Media::Json | Media::Other(_) => gather.item(body),
    }
    gather.end_step();
    let Gather { steps, counts, .. } = gather;
    if counts.accepted == 0
        && counts.rejected > 0
        && splitting.limits.on_oversize == OnOversize::Drop
    {
        return Err(Refusal::Records(splitting.limits.record_bytes_max.0));
    }
    Ok(Parts { steps, counts })
}

/// The first byte that is no white space of JSON.
fn first_of(body: &[u8]) -> Option<u8> {
    body.iter().copied().find(|byte| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n'))
}

fn elements(body: &[u8], gather: &mut Gather<'_>) -> Result<(), Refusal> {
    struct Elements<'g, 'a>(&'g mut Gather<'a>);

    impl<'de> Visitor<'de> for Elements<'_, '_> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<(), A::Error> {
            while let Some(element) = array.next_element::<&RawValue>()? {
                self.0.item(element.get().as_bytes());
            }
            Ok(())
        }
    }

    let mut json = serde_json::Deserializer::from_slice(body);
    let failed = |error: serde_json::Error| Refusal::Json(error.to_string());
    json.deserialize_seq(Elements(gather)).map_err(failed)?;
    json.end().map_err(failed)
}

impl Gather<'_> {
    fn item(&mut self, payload: &[u8]) {
        let Splitting { limits, subject, time, client, skip, .. } = self.splitting;
        // The step before ends without this item.
        if self.items >= *skip && !self.collector.has_room(payload.len(), self.beside) {
            self.end_step();
        }
        let is_over = payload.len() as u64 > limits.record_bytes_max.0;
        if is_over && limits.on_oversize != OnOversize::Truncate {
            self.counts.rejected += 1;
        } else {
            self.counts.accepted += 1;
        }
        self.items += 1;
        if self.items <= *skip {
            return;
        }
        let head = &payload[..payload.len().min(self.collector.record_bytes_max())];
        let line = Line {
            time: *time,
            subject,
            headers: self.headers.as_headers(),
            head,
            size: payload.len() as u64,
        };
        let number = self.items;
        self.collector.message(line, || format!("post from {client}, record {number}"));
    }

    fn end_step(&mut self) {
        if let Some(append) = self.collector.take() {
            self.steps.push(Step { append, items: self.items, counts: self.counts });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fuzz::fuzz;
    use crate::limits::CHUNK_BYTES_MAX;
    use crate::record::codec::FrameReader;
    use crate::record::id::{Epoch, Seq};
    use crate::units::ByteSize;

    fn splitting(
        counters: &Arc<SourceCounters>,
        on_oversize: OnOversize,
        skip: u64,
    ) -> Splitting<'_> {
        let limits = LineLimits { record_bytes_max: ByteSize(100_000), on_oversize };
        let time = Timestamp(1);
        Splitting { limits, counters, times: None, subject: "s", time, client: "127.0.0.1", skip }
    }

    fn run(
        body: &[u8],
        media: &Media,
        on_oversize: OnOversize,
        skip: u64,
    ) -> Result<Parts, Refusal> {
        split(body, media, &splitting(&Arc::default(), on_oversize, skip))
    }

    fn payloads(parts: &Parts) -> Vec<Vec<u8>> {
        let read = |step: &Step| {
            let frames = &step.append.frames;
            FrameReader::new(frames.bytes(), frames.count(), Epoch::default(), Seq(1))
                .map(|record| record.unwrap().payload.to_vec())
                .collect::<Vec<_>>()
        };
        parts.steps.iter().flat_map(read).collect()
    }

    fn texts(parts: &Parts) -> Vec<String> {
        payloads(parts).into_iter().map(|payload| String::from_utf8(payload).unwrap()).collect()
    }

    #[test]
    fn lines_elements_and_anything_else_become_records_byte_for_byte() {
        let drop = OnOversize::Drop;
        let lines = run(b"{\"a\":1}\r\n\n  b \nlast", &Media::Ndjson, drop, 0).unwrap();
        assert_eq!(texts(&lines), ["{\"a\":1}", "  b ", "last"]);
        assert_eq!(lines.counts, Accepted { accepted: 3, ..Accepted::default() });
        let array = b" [ {\"a\" : 1.0e5 }, \"x,]\", [1 , 2],null ] \n";
        let array = run(array, &Media::Json, drop, 0).unwrap();
        assert_eq!(texts(&array), ["{\"a\" : 1.0e5 }", "\"x,]\"", "[1 , 2]", "null"]);
        let one = run(b"{\"a\":\n1}", &Media::Json, drop, 0).unwrap();
        assert_eq!(texts(&one), ["{\"a\":\n1}"]);
        assert!(run(b"[]", &Media::Json, drop, 0).unwrap().steps.is_empty());
        let other = run(b"[1,2]\n3", &Media::Other(None), drop, 0).unwrap();
        assert_eq!(texts(&other), ["[1,2]\n3"]);
        assert_eq!(run(b"", &Media::Other(None), drop, 0).unwrap_err(), Refusal::Empty);
    }

    #[test]
    fn an_array_that_is_damaged_anywhere_is_refused_whole() {
        let deep = [b"[".repeat(500_000), b"]".repeat(500_000)].concat();
        for body in [&b"[1,2"[..], b"[1 2]", b"[1,]", b"[1] x", b"[{\"a\":}]", b"[\"\xff\"]"] {
            let refused = run(body, &Media::Json, OnOversize::Drop, 0).unwrap_err();
            assert!(matches!(refused, Refusal::Json(_)), "{refused}");
        }
        let deep = run(&deep, &Media::Json, OnOversize::Drop, 0);
        assert!(matches!(deep, Err(Refusal::Records(_))), "{deep:?}");
    }

    #[test]
    fn content_types_are_told_by_their_essence() {
        for (text, media) in [
            (Some("application/x-ndjson; charset=utf-8"), Media::Ndjson),
            (Some("Application/JSONL"), Media::Ndjson),
            (Some("application/json;charset=utf-8"), Media::Json),
            (
                Some("text/plain; charset=utf-8"),
                Media::Other(Some("text/plain; charset=utf-8".into())),
            ),
            (Some(" "), Media::Other(None)),
            (None, Media::Other(None)),
        ] {
            assert_eq!(Media::parse(text), media, "{text:?}");
        }
    }

    #[test]
    fn what_is_over_its_limit_is_told_and_a_post_of_which_nothing_stays_is_refused() {
        let body = [&[b'x'; 100_001][..], b"\nsmall"].concat();
        let kept = run(&body, &Media::Ndjson, OnOversize::DeadLetter, 0).unwrap();
        assert_eq!((kept.counts.accepted, kept.counts.rejected), (1, 1));
        let letter = &kept.steps[0].append.letters[0];
        assert_eq!(
            (letter.size_bytes, letter.place.as_str()),
            (100_001, "post from 127.0.0.1, record 1")
        );
        let cut = run(&body, &Media::Ndjson, OnOversize::Truncate, 0).unwrap();
        assert_eq!((cut.counts.accepted, cut.counts.rejected), (2, 0));
        let refused = run(&body[..100_001], &Media::Ndjson, OnOversize::Drop, 0).unwrap_err();
        assert_eq!(refused, Refusal::Records(100_000));
        run(&body[..100_001], &Media::Ndjson, OnOversize::DeadLetter, 0).unwrap();
    }

    proptest! {
        /// However far a post was stored, the rest of it is what was not.
        #[test]
        fn a_post_goes_on_behind_each_of_its_steps(
            sizes in proptest::collection::vec(1..150_000_usize, 1..12),
            policy in 0..3_usize,
        ) {
            let policy = [OnOversize::Drop, OnOversize::Truncate, OnOversize::DeadLetter][policy];
            let body: Vec<u8> = sizes
                .iter()
                .zip(b'a'..)
                .flat_map(|(size, letter)| {
                    let mut line = vec![letter; *size];
                    line.push(b'\n');
                    line
                })
                .collect();
            let Ok(whole) = run(&body, &Media::Ndjson, policy, 0) else { return Ok(()) };
            for step in &whole.steps {
                prop_assert!(step.append.frames.len() <= CHUNK_BYTES_MAX);
            }
            let all = payloads(&whole);
            for stop in 0..whole.steps.len() {
                let stored = &whole.steps[stop];
                let rest = run(&body, &Media::Ndjson, policy, stored.items).unwrap();
                prop_assert_eq!(rest.counts, whole.counts);
                let before: u32 = whole.steps[..=stop].iter().map(|s| s.append.frames.count()).sum();
                prop_assert_eq!(&payloads(&rest)[..], &all[before as usize..]);
                let letters = |parts: &Parts| -> usize { parts.steps.iter().map(|s| s.append.letters.len()).sum() };
                let letters_before: usize = whole.steps[..=stop].iter().map(|s| s.append.letters.len()).sum();
                prop_assert_eq!(letters(&rest) + letters_before, letters(&whole));
            }
        }

        #[test]
        fn whatever_bytes_come_they_are_split_or_refused(
            body in proptest::collection::vec(any::<u8>(), 0..300),
            json in "[\\[\\]{},:\"0-9a-z \\\\\n]{0,200}",
        ) {
            for media in [Media::Ndjson, Media::Json, Media::Other(None)] {
                for body in [&body[..], json.as_bytes(), &[b"[", json.as_bytes(), b"]"].concat()] {
                    if let Ok(parts) = run(body, &media, OnOversize::DeadLetter, 0) {
                        let found: usize = payloads(&parts).iter().map(Vec::len).sum();
                        prop_assert!(found <= body.len());
                    }
                }
            }
        }
    }

    #[test]
    fn fuzzed_posts_are_split_or_refused() {
        let examples: [&[u8]; 4] = [
            b"{\"a\":1}\n\n[2]\r\nthree\n",
            b"[{\"a\":[1,\"\\u00fc]\"]},2, null,\"x\"]",
            b" [ ] ",
            b"[[[[[[[[[[[[[[1]]]]]]]]]]]]]]",
        ];
        fuzz(&examples, |body| {
            for media in [Media::Ndjson, Media::Json, Media::Other(None)] {
                if let Ok(parts) = run(body, &media, OnOversize::Truncate, 0) {
                    let found: usize = payloads(&parts).iter().map(Vec::len).sum();
                    assert!(found <= body.len());
                }
            }
        });
    }
}
