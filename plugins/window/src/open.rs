//! The open windows, in the agent's state: one entry each, sorted by their ends, and one for what is known of all.
//!
//! A call reads and writes only the windows of its records, and closing them reads only those that are due.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use waystation_plugin::json::{as_text, to_text};
use waystation_plugin::{log, state};

use crate::clock::NEVER;
use crate::summary::Summary;

/// Where the [`Head`] is. No window's name begins so.
const HEAD: &str = "=";
/// What the names of windows begin with.
const WINDOW: &str = "w";
/// The first byte of all values: how they are written.
const FORMAT: u8 = 1;
/// Most windows that are closed at once to make room.
const ROOM_MAX: u32 = 256;

/// What is known of all windows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    /// Largest time of a record.
    pub(crate) watermark: i64,
    /// Windows that end by then are closed.
    pub(crate) closed: i64,
    /// How many windows are in the state.
    pub(crate) count: u32,
    /// Records that came too late since the last tick.
    pub(crate) late: u64,
    /// The watermark at the last tick.
    pub(crate) seen: Option<i64>,
    /// The clock when the watermark was first seen there.
    pub(crate) quiet_from: i64,
    /// Whether a tick has said that the clock would close a window.
    pub(crate) confirmed: bool,
}

impl Default for Head {
    fn default() -> Self {
        Self {
            watermark: NEVER,
            closed: NEVER,
            count: 0,
            late: 0,
            seen: None,
            quiet_from: NEVER,
            confirmed: false,
        }
    }
}

/// A window of one key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Id {
    pub(crate) end: i64,
    /// Windows of another config are others, and stay what they are until they close.
    pub(crate) config: u32,
    /// `?` for none, `=` before JSON text, `:` before any other.
    pub(crate) key: String,
}

impl Id {
    fn name(&self) -> String {
        format!("{WINDOW}{:016x}{:08x}{}", sortable(self.end), self.config, self.key)
    }

    fn parse(name: &str) -> Option<Self> {
        let (end, rest) = name.strip_prefix(WINDOW)?.split_at_checked(16)?;
        let (config, key) = rest.split_at_checked(8)?;
        let end = (u64::from_str_radix(end, 16).ok()? ^ SIGN).cast_signed();
        Some(Self { end, config: u32::from_str_radix(config, 16).ok()?, key: key.to_owned() })
    }

    /// The key as JSON text.
    pub(crate) fn key_json(&self) -> String {
        match self.key.split_at_checked(1) {
            Some(("=", json)) => json.to_owned(),
            Some((":", text)) => to_text(text),
            _ => "null".to_owned(),
        }
    }

    /// The key as it is written into a subject.
    pub(crate) fn key_text(&self) -> Option<String> {
        match self.key.split_at_checked(1) {
            Some(("=", json)) => {
                Some(as_text(json).map_or_else(|| json.to_owned(), |text| text.into_owned()))
            }
            Some((":", text)) => Some(text.to_owned()),
            _ => None,
        }
    }
}

const SIGN: u64 = 1 << 63;

/// A number whose digits sort as the times do, also of those before 1970.
fn sortable(time: i64) -> u64 {
    time.cast_unsigned() ^ SIGN
}

/// The windows that end first.
pub(crate) fn first(limit: u32) -> Vec<Id> {
    ids(state::keys(WINDOW, "", limit))
}

fn ids(names: Vec<String>) -> Vec<Id> {
    names.iter().filter_map(|name| Id::parse(name)).collect()
}

/// Whether there is room for more windows.
pub(crate) enum Room {
    There,
    /// When these are closed.
    After(Vec<Id>),
    Full,
}

/// What a call knows of the state, and has changed in it.
pub(crate) struct Open {
    pub(crate) head: Head,
    stored_head: Head,
    met: BTreeMap<Id, Met>,
}

struct Met {
    summary: Summary,
    stored: bool,
}

impl Open {
    pub(crate) fn load() -> Self {
        let stored_head: Head = read(HEAD).unwrap_or_default();
        Self { head: stored_head.clone(), stored_head, met: BTreeMap::new() }
    }

    fn has(&mut self, id: &Id) -> bool {
        if self.met.contains_key(id) {
            return true;
        }
        let Some(summary) = read(&id.name()) else { return false };
        self.met.insert(id.clone(), Met { summary, stored: true });
        true
    }

    /// Whether all these windows can be open. Those that are due make way, and then those that end after `ahead`: their records
    /// have a wrong time, and they would stay open for as long as that is off.
    pub(crate) fn make_room(&mut self, ids: &[Id], most: u32, ahead: Option<i64>) -> Room {
        let missing = ids.iter().filter(|id| !self.has(id)).count();
        let needed = (self.head.count as usize + missing).saturating_sub(most as usize);
        if missing == 0 || needed == 0 {
            return Room::There;
        }
        // Those that were met just now are not in the state yet.
        let mut known = first(ROOM_MAX);
        if let Some(ahead) = ahead {
            let after = format!("{WINDOW}{:016x}~", sortable(ahead));
            known.extend(ids_after(&after));
        }
        known.extend(self.met.keys().cloned());
        known.sort();
        known.dedup();
        known.retain(|id| !ids.contains(id));
        let ahead = ahead.unwrap_or(i64::MAX);
        let (due, others): (Vec<Id>, Vec<Id>) =
            known.into_iter().partition(|id| id.end <= self.head.closed);
        let mut closing = due;
        closing.truncate(ROOM_MAX as usize);
        if closing.len() < needed {
            closing.extend(others.into_iter().filter(|id| id.end > ahead));
        }
        if closing.len() < needed { Room::Full } else { Room::After(closing) }
    }

    /// The summary of a window, which begins with this when it is not there.
    pub(crate) fn entry(&mut self, id: &Id, begin: impl FnOnce() -> Summary) -> &mut Summary {
        if !self.has(id) {
            self.head.count += 1;
        }
        let met = self.met.entry(id.clone());
        let met = met.or_insert_with(|| Met { summary: begin(), stored: false });
        met.stored = false;
        &mut met.summary
    }

    /// Takes a window out. None when it cannot be read.
    pub(crate) fn remove(&mut self, id: &Id) -> Option<Summary> {
        let name = id.name();
        let summary = self.met.remove(id).map(|met| met.summary).or_else(|| read(&name));
        state::delete(&name);
        self.head.count = self.head.count.saturating_sub(1);
        if summary.is_none() {
            log::error("a window in the state cannot be read, and is left out");
        }
        summary
    }

    /// Says in the log how many records were left out because they came too late.
    pub(crate) fn tell_of_late_ones(&mut self) {
        if self.head.late > 0 {
            log::warn(&format!(
                "{} records since the last tick came after their windows were closed, and were dropped",
                self.head.late
            ));
            self.head.late = 0;
        }
    }

    /// Stores what has changed.
    ///
    /// # Errors
    /// Which limit of the state stands in the way.
    pub(crate) fn store(&mut self) -> Result<(), String> {
        for (id, met) in &mut self.met {
            if !met.stored {
                write(&id.name(), &met.summary)?;
                met.stored = true;
            }
        }
        if self.stored_head != self.head {
            write(HEAD, &self.head)?;
            self.stored_head = self.head.clone();
        }
        Ok(())
    }
}

fn ids_after(name: &str) -> Vec<Id> {
    ids(state::keys(WINDOW, name, ROOM_MAX))
}

fn read<T: DeserializeOwned>(name: &str) -> Option<T> {
    let bytes = state::get(name)?;
    let (FORMAT, bytes) = bytes.split_first().map(|(format, rest)| (*format, rest))? else {
        return None;
    };
    postcard::from_bytes(bytes).ok()
}

fn write<T: Serialize>(name: &str, value: &T) -> Result<(), String> {
    let bytes = postcard::to_extend(value, vec![FORMAT]).map_err(|error| error.to_string())?;
    state::set(name, &bytes)
}
