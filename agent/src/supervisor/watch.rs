//! Sees to it that a config that has changed on disk is taken up: looks at its files whenever their folders change, on
//! SIGHUP, and now and then.
//!
//! What is watched are folders: editors put another file in a file's place, and orchestrators turn a link over, which a watch
//! on the file would see once and then never again. What the system tells is only a reason to look; whether something has
//! changed is what the files themselves say. Where the system tells nothing (no watches left, a network file system), the
//! files are looked at all the same, only later.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::handle::{Handle, Wish};
use crate::limits::{CONFIG_LOOK_MS, CONFIG_POLL_MS, CONFIG_QUIET_MS, CONFIG_QUIET_MS_MAX};
use crate::memory::unmap_code;

/// What tells one state of a file from another: device, inode, size, and when content and inode changed.
type Stamp = Option<[i64; 7]>;

/// Why files are looked at.
enum Why {
    /// They may have changed.
    Perhaps,
    /// What was refused may be right by now: what it lacked may lie where nobody looks.
    Again,
    /// Somebody wants them read, changed or not.
    Wanted(Option<Wish>),
}

/// Carries out reloads, one at a time, for as long as the agent runs.
pub(super) async fn run(agent: Handle, mut wishes: mpsc::Receiver<Wish>) {
    let mut folders = Folders::new();
    let mut seen = stamps(agent.files().await).await;
    // They may have changed since the start has read them, which is a while ago where it compiled plugins.
    if super::reload::is_outdated(&agent.0).await {
        seen = settled(&agent, seen).await;
        drop(super::reload::carry_out(&agent.0, false, false).await);
    }
    // The start is over. Neither what it has run nor what a reload runs is needed for a while.
    unmap_code();
    let mut last_read = Instant::now();
    loop {
        folders.follow(&agent.files().await).await;
        let why = tokio::select! {
            wish = wishes.recv() => Why::Wanted(wish),
            () = agent.0.hangup.notified() => Why::Wanted(None),
            () = folders.changed() => {
                let is_long_ago = last_read.elapsed() >= Duration::from_millis(CONFIG_LOOK_MS);
                if is_long_ago && agent.0.config().refused.is_some() {
                    Why::Again
                } else {
                    Why::Perhaps
                }
            }
        };
        match why {
            Why::Perhaps => {
                let now = stamps(agent.files().await).await;
                if now == seen {
                    // Something else has changed in the folder, as it may go on doing.
                    tokio::time::sleep(Duration::from_millis(CONFIG_QUIET_MS)).await;
                    continue;
                }
                seen = settled(&agent, now).await;
                drop(super::reload::carry_out(&agent.0, false, false).await);
            }
            Why::Again => {
                seen = stamps(agent.files().await).await;
                drop(super::reload::carry_out(&agent.0, false, true).await);
            }
            Why::Wanted(Some(Wish::Lane(wish))) => {
                super::lane_orders::carry_out(&agent.0, wish).await;
                continue;
            }
            Why::Wanted(wish) => {
                let wish = wish.and_then(|wish| match wish {
                    Wish::Reload(wish) => Some(wish),
                    Wish::Lane(_) => None,
                });
                let only_plan = wish.as_ref().is_some_and(|wish| wish.only_plan);
                let before = stamps(agent.files().await).await;
                let result = super::reload::carry_out(&agent.0, only_plan, false).await;
                if !only_plan {
                    seen = before;
                }
                if let Some(wish) = wish {
                    // Whoever asked may have given up waiting.
                    let _unheard = wish.answer.send(result);
                }
            }
        }
        last_read = Instant::now();
        unmap_code();
        // A config that was taken up may name other files.
        seen.extend(missing(&seen, stamps(agent.files().await).await));
    }
}

/// Waits until the files stay as they are, at most as long as they may change.
async fn settled(agent: &Handle, mut now: BTreeMap<PathBuf, Stamp>) -> BTreeMap<PathBuf, Stamp> {
    let quiet = Duration::from_millis(CONFIG_QUIET_MS);
    for _ in 0..CONFIG_QUIET_MS_MAX / CONFIG_QUIET_MS {
        tokio::time::sleep(quiet).await;
        let later = stamps(agent.files().await).await;
        if later == now {
            break;
        }
        now = later;
    }
    now
}

/// What is in `now` and not in `seen`.
fn missing(
    seen: &BTreeMap<PathBuf, Stamp>,
    now: BTreeMap<PathBuf, Stamp>,
) -> BTreeMap<PathBuf, Stamp> {
    now.into_iter().filter(|(path, _)| !seen.contains_key(path)).collect()
}

async fn stamps(files: Vec<PathBuf>) -> BTreeMap<PathBuf, Stamp> {
    let look = move || files.into_iter().map(|path| (path.clone(), stamp(&path))).collect();
    tokio::task::spawn_blocking(look).await.unwrap_or_default()
}

fn stamp(path: &Path) -> Stamp {
    let found = std::fs::metadata(path).ok()?;
    Some([
        found.dev().cast_signed(),
        found.ino().cast_signed(),
        found.size().cast_signed(),
        found.mtime(),
        found.mtime_nsec(),
        found.ctime(),
        found.ctime_nsec(),
    ])
}

/// The folders that the files lie in, under their own names and where links lead.
struct Folders {
    watcher: Option<RecommendedWatcher>,
    told: Arc<Notify>,
    /// Those that are watched, by what they were then: a folder that was made anew is another one.
    watched: BTreeMap<PathBuf, Stamp>,
    /// Every folder is watched.
    is_complete: bool,
    was_said: bool,
}

impl Folders {
    fn new() -> Self {
        let told = Arc::new(Notify::new());
        let tell = Arc::clone(&told);
        let made = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // Reading tells of itself, too.
            let is_read = |kind: &EventKind| {
                use notify::event::{AccessKind, AccessMode};
                let written = EventKind::Access(AccessKind::Close(AccessMode::Write));
                matches!(kind, EventKind::Access(_)) && *kind != written
            };
            if !event.is_ok_and(|event| is_read(&event.kind)) {
                tell.notify_one();
            }
        });
        let mut folders = Self {
            watcher: None,
            told,
            watched: BTreeMap::new(),
            is_complete: false,
            was_said: false,
        };
        match made {
            Ok(watcher) => folders.watcher = Some(watcher),
            Err(error) => folders.say(&error),
        }
        folders
    }

    /// Waits until the system tells of a change, or for as long as it may have told of none.
    async fn changed(&self) {
        let look = if self.is_complete { CONFIG_LOOK_MS } else { CONFIG_POLL_MS };
        // Either is a reason to look.
        let _over = tokio::time::timeout(Duration::from_millis(look), self.told.notified()).await;
    }

    /// Watches the folders of these files, and no other.
    async fn follow(&mut self, files: &[PathBuf]) {
        let Some(mut watcher) = self.watcher.take() else { return };
        let (files, mut watched) = (files.to_vec(), std::mem::take(&mut self.watched));
        let followed = tokio::task::spawn_blocking(move || {
            let wanted = folders_of(&files);
            watched.retain(|folder, stamp| {
                let stays = wanted.get(folder) == Some(stamp);
                if !stays {
                    // One that is gone has taken its watch along.
                    let _gone = watcher.unwatch(folder);
                }
                stays
            });
            let mut failed = None;
            for (folder, stamp) in wanted {
                let Entry::Vacant(place) = watched.entry(folder) else { continue };
                match watcher.watch(place.key(), RecursiveMode::NonRecursive) {
                    Ok(()) => drop(place.insert(stamp)),
                    Err(error) => failed = Some(error),
                }
            }
            (watcher, watched, failed)
        });
        let Ok((watcher, watched, failed)) = followed.await else { return };
        (self.watcher, self.watched) = (Some(watcher), watched);
        self.is_complete = failed.is_none();
        if let Some(error) = failed {
            self.say(&error);
        }
    }

    fn say(&mut self, error: &notify::Error) {
        if !std::mem::replace(&mut self.was_said, true) {
            let every_ms = CONFIG_POLL_MS;
            tracing::warn!(%error, every_ms, "The folders of the config cannot be watched, its files are looked at instead");
        }
    }
}

/// The identity of each folder, without what changes in it.
fn folders_of(files: &[PathBuf]) -> BTreeMap<PathBuf, Stamp> {
    let mut folders = BTreeMap::new();
    for file in files {
        let leads_to = std::fs::canonicalize(file).ok();
        for place in [Some(file.clone()), leads_to].into_iter().flatten() {
            let Some(folder) = place.parent() else { continue };
            let Some(stamp) = stamp(folder) else { continue };
            folders.insert(folder.to_owned(), Some([stamp[0], stamp[1], 0, 0, 0, 0, 0]));
        }
    }
    folders
}
