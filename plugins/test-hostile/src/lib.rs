//! A transform that does all that a guest may not, each under a name: with every record whose payload contains `bad`, or with
//! all of them (`"all": true`). What a host must bear calmly.

use std::hint::black_box;

use serde::Deserialize;
use waystation_plugin::{
    Draft, Error, Header, Outcome, Place, Record, Transform, export_transform, log, state,
};

/// Far over what an answer may hold.
const HUGE: usize = 40 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    r#do: String,
    #[serde(default)]
    all: bool,
}

struct Hostile(Config);

impl Transform for Hostile {
    type Config = Config;

    fn new(config: Config, _place: Place) -> Result<Self, String> {
        match config.r#do.as_str() {
            "init_trap" => panic!("in init"),
            "init_spin" => spin(),
            "init_refuse" => return Err(format!("no\u{1b}[31m{}", "!".repeat(1 << 20))),
            "init_delete" => state::delete("k"),
            _ => {}
        }
        Ok(Self(config))
    }

    fn record(&mut self, now: i64, record: Record) -> Outcome {
        let draft = |subject: String, headers: Vec<Header>| {
            Outcome::Replace(Draft { time: Some(now), subject, headers, payload: Vec::new() })
        };
        match self.0.r#do.as_str() {
            "panic" => panic!("planted"),
            #[cfg(target_arch = "wasm32")]
            "unreachable" => core::arch::wasm32::unreachable(),
            "divide" => Outcome::Reject((record.seq / black_box(0)).to_string()),
            "index" => Outcome::Payload(vec![record.payload[black_box(1 << 30)]]),
            "spin" => spin(),
            "recurse" => Outcome::Reject(recurse(record.seq).to_string()),
            "allocate" => allocate(),
            #[cfg(target_arch = "wasm32")]
            "grow" => {
                // 4 GiB at once; a host may refuse by -1 or by a trap.
                match core::arch::wasm32::memory_grow(0, 65_535) {
                    usize::MAX => panic!("refused"),
                    _ => Outcome::Keep,
                }
            }
            "huge_payload" => Outcome::Payload(vec![b'x'; HUGE]),
            "huge_reason" => Outcome::Reject("x".repeat(HUGE)),
            "many_parts" => Outcome::Split(
                (0..500_000)
                    .map(|_| Draft {
                        time: None,
                        subject: String::new(),
                        headers: Vec::new(),
                        payload: Vec::new(),
                    })
                    .collect(),
            ),
            "long_subject" => draft("s".repeat(1 << 20), Vec::new()),
            "long_headers" => {
                let header = Header { name: "n".repeat(1 << 16), value: "v".repeat(1 << 16) };
                draft("s".to_owned(), vec![header; 16])
            }
            "bad_utf8" => {
                // SAFETY: it is not, which is the point.
                Outcome::Reject(unsafe { String::from_utf8_unchecked(vec![0xff, 0xfe, 0xc0]) })
            }
            "bad_pointer" => {
                // SAFETY: nothing here reads or frees it: the host does, or says that it cannot.
                let wild = unsafe { Vec::from_raw_parts(0xffff_fff0 as *mut u8, 4096, 4096) };
                Outcome::Payload(wild)
            }
            "bad_length" => {
                // SAFETY: as above.
                let wild = unsafe { Vec::from_raw_parts(16 as *mut u8, 0x7fff_ffff, 0x7fff_ffff) };
                Outcome::Payload(wild)
            }
            "log_huge" => {
                log::error(&"x".repeat(HUGE));
                Outcome::Keep
            }
            "log_flood" => {
                (0..20_000).for_each(|line| log::error(&format!("line {line}")));
                Outcome::Keep
            }
            "log_forever" => loop {
                log::debug("x");
            },
            "state_forever" => loop {
                black_box(state::get("k"));
            },
            "keys_forever" => loop {
                black_box(state::keys("", "", u32::MAX));
            },
            "state_flood" => {
                let value = vec![0; 1 << 20];
                let full = (0..).find_map(|key: u32| state::set(&key.to_string(), &value).err());
                Outcome::Reject(full.unwrap_or_default())
            }
            "state_long_key" => match state::set(&"k".repeat(HUGE), b"v") {
                Ok(()) => Outcome::Keep,
                Err(reason) => Outcome::Reject(reason),
            },
            _ => Outcome::Keep,
        }
    }

    fn process(&mut self, now: i64, records: Vec<Record>) -> Result<Vec<Outcome>, Error> {
        let is_meant =
            |record: &Record| self.0.all || record.payload.windows(3).any(|part| part == b"bad");
        let meant: Vec<bool> = records.iter().map(is_meant).collect();
        if meant.contains(&true) {
            match self.0.r#do.as_str() {
                "none" => return Ok(Vec::new()),
                "one_less" => return Ok(vec![Outcome::Keep; records.len() - 1]),
                "one_more" => return Ok(vec![Outcome::Keep; records.len() + 1]),
                "many_more" => return Ok(vec![Outcome::Drop; 400_000]),
                "never" => return Err(Error::Retryable("x".repeat(1 << 20))),
                _ => {}
            }
        }
        let each = records.into_iter().zip(meant);
        let outcomes = each
            .map(|(record, meant)| if meant { self.record(now, record) } else { Outcome::Keep });
        Ok(outcomes.collect())
    }
}

fn spin() -> ! {
    loop {
        black_box(());
    }
}

fn recurse(depth: u64) -> u64 {
    if black_box(depth) == u64::MAX { 0 } else { recurse(depth + 1) + black_box(1) }
}

fn allocate() -> ! {
    let mut all = Vec::new();
    loop {
        all.push(black_box(vec![1u8; 1 << 16]));
    }
}

export_transform!(Hostile);
