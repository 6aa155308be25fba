//! Tells copies from new files: a log that was copied and then cut, or compressed, is read once.
//!
//! The same content has the same first bytes and the same last ones before the place up to which it was read ([`Check`]). A
//! file that is new is compared with what was read of its kin:
//!
//! - **A log that was cut** (copied, then truncated): the copy goes on where the log was read. It may have been made before
//!   the last lines were read, and so be shorter than that.
//! - **A log that was removed**, once its archive was written: the archive goes on where the log was read. Only an archive can
//!   be that; a plain file with the bytes of a removed one is a new one.
//! - **A log that is still there**, and has all bytes of the new file: perhaps it is about to be cut or removed. The new file waits
//!   until that has happened. When nothing happens for a minute, it is a file of its own. An archive that has the log's own
//!   name and one of the endings of archives waits as long as the log is there. A reading to the end waits for nothing.
//!
//! Kin is by name: `app.log` and `app.log.1`, `app-2026-01-31.log` or `app.log.1.gz`, but not `apple.log`. What stands where the log
//! itself has stood is never a copy of it.
//!
//! Whatever is taken over from the content moves in one append with its being forgotten, so a crash in between leaves the one
//! or the other.
//!
//! [`Check`]: super::identity::Check

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use super::follow::{Follower, open};
use super::identity::{Agreement, HEAD_BYTES_MAX, Saved, TAIL_BYTES_MAX};
use super::input::{Coding, Input};
use super::tail::{Interrupted, Outlet, Stamp, Tail, Verdict};

/// How long a copy of a log that is still there waits for the log to be cut.
const COPY_WAITS: Duration = Duration::from_secs(60);

/// Content that a new file may be a copy of.
#[derive(Debug, Clone)]
enum Origin {
    /// Of a file that is followed, by its place.
    Followed(u64),
    /// Of one that is gone, by the key of its position.
    Gone(String),
}

/// Known content, by the part of its name that its copies have, too.
#[derive(Debug, Default)]
struct Families(HashMap<String, Vec<Origin>>);

impl Families {
    fn add(&mut self, paths: [&Path; 2], origin: &Origin) {
        let [first, second] = paths.map(|path| path.file_stem().map(|stem| stem.to_string_lossy()));
        let second = second.filter(|second| Some(second) != first.as_ref());
        for stem in [first, second].into_iter().flatten() {
            self.0.entry(stem.into_owned()).or_default().push(origin.clone());
        }
    }

    /// What a file of this name may be a copy of.
    fn of(&self, path: &Path) -> Vec<Origin> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let ends = name.match_indices(['.', '-', '_']).map(|(end, _)| end);
        let stems = ends.filter_map(|end| name.get(..end));
        stems.filter_map(|stem| self.0.get(stem)).flatten().cloned().collect()
    }
}

/// What a comparison says.
#[derive(Debug)]
enum Comparison {
    Other,
    /// It is a copy if the other file goes or is cut; without a bound when it is the archive of that file by name.
    Perhaps {
        is_archive_of: bool,
    },
    /// It is that content, and goes on at this position, which takes the place of that one.
    Copy {
        position: Box<Saved>,
        of: String,
    },
}

impl Follower {
    /// Settles for new files whether they are copies: for those that were not looked at, and after a scan for those that wait. Returns whether
    /// one may be read now.
    pub(super) fn judge(
        &mut self,
        scanned: bool,
        outlet: &Outlet<'_>,
    ) -> Result<bool, Interrupted> {
        let looked_at = |tail: &Tail| match tail.verdict {
            Verdict::Open => true,
            Verdict::Waiting(..) => scanned || self.reading.once,
            Verdict::Settled => false,
        };
        let tails = self.tails.iter().filter(|(_, tail)| looked_at(tail));
        let places: Vec<u64> = tails.map(|(place, _)| *place).collect();
        if places.is_empty() {
            return Ok(false);
        }
        let families = self.families();
        let mut settled = false;
        for place in places {
            if outlet.shutdown.is_requested() {
                break;
            }
            settled |= self.judge_one(place, &families);
            outlet.send_if_full(&mut self.reading.collector)?;
        }
        Ok(settled)
    }

    fn families(&self) -> Families {
        let mut families = Families::default();
        for (place, tail) in &self.tails {
            families.add([Path::new(&tail.first_path), &tail.path], &Origin::Followed(*place));
        }
        for (key, known) in &self.known {
            if known.saved.offset > 0 {
                let paths = [Path::new(&known.saved.path), last_path(&known.saved)];
                families.add(paths, &Origin::Gone(key.clone()));
            }
        }
        families
    }

    /// Returns whether the file may be read now.
    fn judge_one(&mut self, place: u64, families: &Families) -> bool {
        let Some(tail) = self.tails.get(&place) else { return false };
        let mut origins = families.of(&tail.path);
        origins.retain(|origin| !matches!(origin, Origin::Followed(other) if *other == place));
        let verdict = if origins.is_empty() {
            Verdict::Settled
        } else {
            // What cannot be read is found out when it is its turn.
            self.look(place, &origins).unwrap_or(Verdict::Settled)
        };
        let Some(tail) = self.tails.get_mut(&place) else { return false };
        tail.verdict = verdict;
        if verdict != Verdict::Settled {
            tail.input = None;
        }
        verdict == Verdict::Settled
    }

    /// Opens a new file and compares it with content that is known.
    fn look(&mut self, place: u64, origins: &[Origin]) -> io::Result<Verdict> {
        let now = self.reading.clock.monotonic();
        let Some(tail) = self.tails.get_mut(&place) else { return Ok(Verdict::Settled) };
        let before = tail.verdict;
        let fresh = Verdict::Waiting(now, None);
        let file = match open(&tail.path, tail.id) {
            Ok(Some(file)) => file,
            // Another file by now: the next scan tells.
            Ok(None) => return Ok(fresh),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(fresh),
            Err(error) => return Err(error),
        };
        let stamp = Stamp::of(&file.metadata()?);
        let mut input = Input::new(file)?;
        if input.is_undecided {
            return Ok(if self.reading.once { Verdict::Settled } else { fresh });
        }
        if input.coding.is_some()
            && (!tail.is_settled(stamp, &self.reading) || self.is_unpacking_another(place))
        {
            return Ok(fresh);
        }
        let since = match before {
            Verdict::Waiting(since, Some(seen)) if seen == stamp => since,
            _ => now,
        };
        let mut waits = None;
        for origin in origins {
            match self.compare(place, &mut input, origin)? {
                Comparison::Other => {}
                Comparison::Perhaps { is_archive_of } => {
                    waits = Some(is_archive_of || waits.unwrap_or(false));
                }
                Comparison::Copy { position, of } => {
                    self.adopt(place, *position, &of, input);
                    return Ok(Verdict::Settled);
                }
            }
        }
        input.unpacking = None;
        let is_over = |is_archive_of: bool| !is_archive_of && now.since(since) >= COPY_WAITS;
        Ok(match waits {
            Some(is_archive_of) if self.reading.once && is_archive_of => self.leave(place, stamp),
            Some(is_archive_of) if !self.reading.once && !is_over(is_archive_of) => {
                Verdict::Waiting(since, Some(stamp))
            }
            _ => Verdict::Settled,
        })
    }

    /// Reading once, the archive of a log that is there, too, is read as that.
    fn leave(&mut self, place: u64, stamp: Stamp) -> Verdict {
        if let Some(tail) = self.tails.get_mut(&place) {
            (tail.unchanged, tail.due) = (Some(stamp), false);
        }
        Verdict::Settled
    }

    fn adopt(&mut self, place: u64, position: Saved, of: &str, input: Input) {
        let subject = self.subject_of(Path::new(&position.path));
        let Some(tail) = self.tails.get_mut(&place) else { return };
        tracing::info!(path = %tail.path.display(), of = %position.path, offset = position.offset, "File is a copy of what was read and is read from there on");
        tail.adopt(position, subject, &mut self.reading.collector);
        tail.input = Some(input);
        self.known.remove(of);
        self.reading.collector.position(of.to_owned(), None);
        self.close_surplus(place);
    }

    fn compare(&self, place: u64, input: &mut Input, origin: &Origin) -> io::Result<Comparison> {
        let Some(tail) = self.tails.get(&place) else { return Ok(Comparison::Other) };
        match origin {
            Origin::Gone(key) => {
                let Some(known) = self.known.get(key) else { return Ok(Comparison::Other) };
                compare_with_gone(tail, input, key, &known.saved)
            }
            Origin::Followed(other) => match self.tails.get(other) {
                Some(other) => compare_with_followed(tail, input, other),
                None => Ok(Comparison::Other),
            },
        }
    }
}

fn last_path(saved: &Saved) -> &Path {
    Path::new(saved.gone.as_ref().map_or(&saved.path, |gone| &gone.path))
}

/// Whether the file stands where that content has stood: then it is the same log, begun anew.
fn is_place_of(tail: &Tail, first_path: &str, path: &Path) -> bool {
    tail.path == path || tail.path == Path::new(first_path)
}

fn compare_with_gone(
    tail: &Tail,
    input: &mut Input,
    key: &str,
    saved: &Saved,
) -> io::Result<Comparison> {
    let was_cut = saved.gone.as_ref().is_some_and(|gone| gone.cut);
    if is_place_of(tail, &saved.path, last_path(saved)) || (!was_cut && input.coding.is_none()) {
        return Ok(Comparison::Other);
    }
    let mut position = saved.clone();
    match input.agreement(&saved.check, saved.offset)? {
        Agreement::Nothing => return Ok(Comparison::Other),
        Agreement::Everything => {}
        Agreement::Shorter => {
            let size = match &input.unpacking {
                Some(unpacking) => unpacking.trail.at(),
                None => input.file.metadata()?.len(),
            };
            position.check = input.trail(size)?.check(&[], &[]);
            position.offset = size;
        }
    }
    Ok(Comparison::Copy { position: Box::new(position), of: key.to_owned() })
}

fn compare_with_followed(tail: &Tail, input: &mut Input, other: &Tail) -> io::Result<Comparison> {
    if is_place_of(tail, &other.first_path, &other.path) {
        return Ok(Comparison::Other);
    }
    let opened = match &other.input {
        Some(other) => Some(other.again()),
        None => match open(&other.path, other.id) {
            Ok(file) => file.map(Input::new).transpose()?,
            Err(_) => None,
        },
    };
    // An archive of an archive is nobody's rotation. But one that was not read yet may have the position of a removed log, because
    // it has got its inode; that is found out when it is read.
    if let Some(opened) = opened.as_ref().filter(|opened| opened.coding.is_some())
        && other.unchanged == Some(Stamp::of(&opened.file.metadata()?))
    {
        return Ok(Comparison::Other);
    }
    let is_archive_of = Coding::ENDINGS.iter().any(|ending| {
        let mut path = other.path.clone().into_os_string();
        path.push(ending);
        tail.path.as_os_str() == path
    });
    let is_alike = match &opened {
        Some(opened) if other.check.holds(&opened.file, other.offset)? => {
            begins_with(&opened.file, input)?
        }
        // It was cut or is gone: the next look at it finds that out.
        _ if other.offset == 0 => false,
        _ => input.agreement(&other.check, other.offset)? != Agreement::Nothing,
    };
    Ok(if is_alike { Comparison::Perhaps { is_archive_of } } else { Comparison::Other })
}

/// Whether the file has all bytes of the other one, as far as its first and last ones tell; of an archive, its first ones.
fn begins_with(file: &File, input: &mut Input) -> io::Result<bool> {
    let head = input.head()?;
    if !has(file, &head, 0)? || head.is_empty() {
        return Ok(false);
    }
    let size = input.file.metadata()?.len();
    if input.coding.is_some() || size <= HEAD_BYTES_MAX {
        return Ok(true);
    }
    let mut tail = vec![0; usize::try_from(TAIL_BYTES_MAX).unwrap_or_default()];
    let at = size - tail.len() as u64;
    input.file.read_exact_at(&mut tail, at)?;
    has(file, &tail, at)
}

fn has(file: &File, bytes: &[u8], at: u64) -> io::Result<bool> {
    let mut found = vec![0; bytes.len()];
    match file.read_exact_at(&mut found, at) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| found == bytes),
    }
}
