//! A transform that behaves as its config says, well or badly, for the tests of the plugin host.
//!
//! `{"do": WHAT, "on": TEXT}` does it for every record, or only for those whose payload contains the text; the others are
//! kept. `{"trap_on": TEXT}` is short for `{"do": "trap", "on": TEXT}`. `{"tick": WHAT}` does it at each tick.

use std::hint::black_box;

use serde::Deserialize;
use waystation_plugin::{
    Draft, Error, Header, Outcome, Place, Record, Ticks, Transform, export_windowed, log, state,
};

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct Config {
    r#do: Do,
    on: Option<String>,
    trap_on: Option<String>,
    tick: Tick,
    /// How many lines, bytes, parts or entries, where that makes sense.
    size: Option<usize>,
}

#[derive(Deserialize, Default, Clone, Copy, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Do {
    #[default]
    Pass,
    Drop,
    /// The payload in capitals.
    Payload,
    Reject,
    /// `size` parts that carry their number.
    Split,
    Replace,
    /// A payload of `size` bytes.
    Output,
    /// One outcome too few.
    Count,
    Trap,
    Spin,
    /// Allocates without end.
    Memory,
    /// Recurses without end.
    Stack,
    /// A log line of `size` bytes in one call to the host.
    HostCall,
    /// `size` log lines.
    Log,
    /// Counts records under "seen", keeps each payload under its seq, deletes "gone", and answers with what it sees.
    State,
    /// Tries to store `size` bytes under one key, and rejects with what the agent says.
    StateSize,
    /// A payload with the number of records that this instance has seen: what nothing of an instance may depend on.
    Counter,
    /// A payload with the time that the call was told.
    Clock,
    /// Forgets `size` bytes for each record, and never frees them.
    Leak,
    Retryable,
    Permanent,
    InitError,
    InitTrap,
    InitSpin,
    InitState,
    InitDelete,
}

/// At a tick.
#[derive(Deserialize, Default, Clone, Copy, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Tick {
    /// Nothing comes out, and nothing changes.
    #[default]
    Nothing,
    /// `size` records that carry the number of the tick, which is counted under "ticks", and their own.
    Emit,
    /// The same at the first tick, and nothing at the others.
    Once,
    /// The ticks are counted, and nothing comes out.
    Store,
    Trap,
    Spin,
    Retryable,
    /// Counts the tick, and then fails for good.
    Permanent,
}

struct Guest {
    config: Config,
    place: Place,
    records: u64,
}

impl Transform for Guest {
    type Config = Config;

    fn new(mut config: Config, place: Place) -> Result<Self, String> {
        if let Some(text) = config.trap_on.take() {
            config.r#do = Do::Trap;
            config.on = Some(text);
        }
        match config.r#do {
            Do::InitError => return Err(format!("no use in {}", place.pipeline)),
            Do::InitTrap => panic!("planted"),
            Do::InitSpin => spin(),
            Do::InitState => state::set("seen", b"1")?,
            Do::InitDelete => state::delete("seen"),
            _ => {}
        }
        Ok(Self { config, place, records: 0 })
    }

    fn record(&mut self, now: i64, record: Record) -> Outcome {
        let size = self.config.size.unwrap_or(2);
        match self.config.r#do {
            Do::Drop => Outcome::Drop,
            Do::Payload => Outcome::Payload(record.payload.to_ascii_uppercase()),
            Do::Reject => Outcome::Reject(format!("seq {} is refused", record.seq)),
            Do::Split => Outcome::Split((0..size).map(|part| self.draft(&record, part)).collect()),
            Do::Replace => Outcome::Replace(Draft { time: Some(now), ..self.draft(&record, 0) }),
            Do::Output => Outcome::Payload(vec![b'x'; size]),
            Do::Trap => panic!("planted"),
            Do::Spin => spin(),
            Do::Memory => memory(),
            Do::Stack => Outcome::Reject(recurse(record.seq).to_string()),
            Do::HostCall => {
                log::info(&"x".repeat(size));
                Outcome::Keep
            }
            Do::Log => {
                (0..size).for_each(|line| log::info(&format!("line {line}\nof {}", record.seq)));
                Outcome::Keep
            }
            Do::Counter => {
                self.records += 1;
                Outcome::Payload(self.records.to_string().into_bytes())
            }
            Do::Clock => Outcome::Payload(now.to_string().into_bytes()),
            Do::Leak => {
                black_box(vec![1u8; size].leak());
                Outcome::Keep
            }
            Do::State => count(&record),
            Do::StateSize => match state::set("large", &vec![0; size]) {
                Ok(()) => Outcome::Keep,
                Err(reason) => Outcome::Reject(reason),
            },
            _ => Outcome::Keep,
        }
    }

    fn process(&mut self, now: i64, records: Vec<Record>) -> Result<Vec<Outcome>, Error> {
        let meant = |record: &Record| match &self.config.on {
            None => true,
            Some(text) => record.payload.windows(text.len()).any(|part| part == text.as_bytes()),
        };
        let meant: Vec<bool> = records.iter().map(meant).collect();
        if meant.contains(&true) {
            match self.config.r#do {
                Do::Retryable => return Err(Error::Retryable("come back later".to_owned())),
                Do::Permanent => return Err(Error::Permanent("never again".to_owned())),
                Do::Count => return Ok(vec![Outcome::Keep; records.len() - 1]),
                _ => {}
            }
        }
        let each = records.into_iter().zip(meant);
        let outcomes = each
            .map(|(record, meant)| if meant { self.record(now, record) } else { Outcome::Keep });
        Ok(outcomes.collect())
    }
}

impl Ticks for Guest {
    fn tick(&mut self, _now: i64) -> Result<Vec<Draft>, Error> {
        let size = self.config.size.unwrap_or(2);
        match self.config.tick {
            Tick::Nothing => return Ok(Vec::new()),
            Tick::Trap => panic!("planted"),
            Tick::Spin => spin(),
            Tick::Retryable => return Err(Error::Retryable("come back later".to_owned())),
            Tick::Emit | Tick::Once | Tick::Store | Tick::Permanent => {}
        }
        let ticks = number("ticks") + 1;
        if self.config.tick == Tick::Once && ticks > 1 {
            return Ok(Vec::new());
        }
        state::set("ticks", ticks.to_string().as_bytes()).map_err(Error::Permanent)?;
        match self.config.tick {
            Tick::Store => Ok(Vec::new()),
            Tick::Permanent => Err(Error::Permanent("never again".to_owned())),
            _ => Ok((0..size).map(|part| self.made(ticks, part)).collect()),
        }
    }
}

impl Guest {
    fn made(&self, ticks: u64, part: usize) -> Draft {
        Draft {
            time: None,
            subject: "ticks".to_owned(),
            headers: Vec::new(),
            payload: format!("tick {ticks}.{part}").into_bytes(),
        }
    }

    fn draft(&self, record: &Record, part: usize) -> Draft {
        let mut headers = record.headers.clone();
        headers.push(Header { name: "sink".to_owned(), value: self.place.sink.clone() });
        Draft {
            time: None,
            subject: format!("{}.{part}", record.subject),
            headers,
            payload: record.payload.clone(),
        }
    }
}

fn count(record: &Record) -> Outcome {
    let seen = number("seen");
    let stored = state::set("seen", (seen + 1).to_string().as_bytes())
        .and_then(|()| state::set(&format!("record/{:03}", record.seq), &record.payload));
    state::delete("gone");
    match stored {
        Ok(()) => {
            let keys = state::keys("record/", "record/001", 100).join(" ");
            Outcome::Payload(format!("{} {keys}", seen + 1).into_bytes())
        }
        Err(reason) => Outcome::Reject(reason),
    }
}

/// A number in the state.
fn number(key: &str) -> u64 {
    state::get(key).and_then(|bytes| String::from_utf8(bytes).ok()?.parse().ok()).unwrap_or(0)
}

fn spin() -> ! {
    let mut turns = 0u64;
    loop {
        turns = black_box(turns.wrapping_add(1));
    }
}

fn memory() -> ! {
    let mut blocks: Vec<Vec<u8>> = Vec::new();
    loop {
        blocks.push(black_box(vec![1; 1 << 20]));
    }
}

fn recurse(depth: u64) -> u64 {
    if black_box(depth) == u64::MAX { 0 } else { 1 + recurse(black_box(depth.wrapping_add(2))) }
}

export_windowed!(Guest);
