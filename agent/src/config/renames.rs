//! Parts of a config that look like others under another name, while records wait under the old one.
//!
//! A lane with records that the config has not any more (an orphan) is compared with the lanes that are new. What two parts have
//! in common is known where the config is at hand in which the old one stood; else two of three names must be the same.

use std::collections::BTreeSet;

use super::plan::{LaneId, lane_ids, place_of};
use super::{Config, Loaded};
use crate::record::id::{PipelineId, SinkId, SourceId};
use crate::settings::{Complaint, Problem, Severity};
use crate::sinks::config::SinkKind;
use crate::sources::config::SourceKind;
use crate::sources::nats::config::From;

/// A lane of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownLane {
    /// Its place.
    pub id: LaneId,
    /// Its name.
    pub name: String,
    /// Records that wait in it.
    pub queued: u64,
}

/// Adds a warning to those of a config for each lane of the journal that goes on in it under another name, as it seems. `old` is
/// the config that ran before, where that is known.
pub fn warn_of_renames(loaded: &mut Loaded, old: Option<&Config>, journal: &[KnownLane]) {
    let ids = lane_ids(&loaded.config);
    let is_known = |id: &LaneId| journal.iter().any(|lane| lane.id == *id);
    let mut new: Vec<_> = ids.iter().filter(|id| !is_known(id)).collect();
    let orphans = journal.iter().filter(|lane| lane.queued > 0 && !ids.contains(&lane.id));
    let mut found = Vec::new();
    for orphan in orphans {
        let alike = |id: &&LaneId| Alike { old, new: &loaded.config }.lanes(&orphan.id, id);
        if let Some(index) = new.iter().position(alike) {
            found.push((orphan, new.remove(index).clone()));
        }
    }
    for (KnownLane { id, name, queued }, to) in found {
        let key = if id.pipeline != to.pipeline {
            format!("pipelines.{}", to.pipeline)
        } else if id.sink != to.sink {
            format!("sinks.{}", to.sink)
        } else {
            format!("sources.{}", to.source)
        };
        let message = format!(
            "this looks like lane {name} under another name, in which {queued} records wait"
        );
        let hint = format!(
            "before the new one begins, with the agent stopped: `waystation lane move {name} {to}`; otherwise it begins with what \
             the journal holds, and those records stay with the old one"
        );
        let span = place_of(&loaded.listing, &key).map(|at| loaded.warnings.line(at));
        let complaint = Complaint::new(message).hint(hint);
        loaded.warnings.push(Problem::new(Severity::Warning, key, span, complaint));
    }
}

/// Two configs, the first of which may be unknown.
#[derive(Clone, Copy)]
struct Alike<'c> {
    old: Option<&'c Config>,
    new: &'c Config,
}

impl Alike<'_> {
    fn lanes(self, old: &LaneId, new: &LaneId) -> bool {
        let differs =
            [old.source != new.source, old.pipeline != new.pipeline, old.sink != new.sink];
        if let Some(before) = self.old.filter(|before| lane_ids(before).contains(old)) {
            return (!differs[0] || self.sources(before, &old.source, &new.source))
                && (!differs[1] || self.pipelines(before, &old.pipeline, &new.pipeline))
                && (!differs[2] || self.sinks(before, &old.sink, &new.sink));
        }
        // The one that differs must have gone: a further part beside it is another one.
        let config = self.new;
        let is_gone = match differs {
            [true, false, false] => !config.sources.iter().any(|part| part.id == old.source),
            [false, true, false] => !config.pipelines.iter().any(|part| part.id == old.pipeline),
            [false, false, true] => !config.sinks.iter().any(|part| part.id == old.sink),
            _ => false,
        };
        is_gone && differs.iter().any(|differs| *differs)
    }

    fn sources(self, before: &Config, old: &SourceId, new: &SourceId) -> bool {
        if self.new.sources.iter().any(|part| part.id == *old) {
            return false;
        }
        let old = before.sources.iter().find(|part| part.id == *old);
        let new = self.new.sources.iter().find(|part| part.id == *new);
        match (old.map(|part| &part.kind), new.map(|part| &part.kind)) {
            (Some(SourceKind::File(old)), Some(SourceKind::File(new))) => {
                let paths: BTreeSet<_> = old.paths.iter().collect();
                new.paths.iter().any(|path| paths.contains(path))
            }
            (Some(SourceKind::Http(old)), Some(SourceKind::Http(new))) => {
                old.listen.address == new.listen.address && old.path == new.path
            }
            // The client id need not have been said, and is another one then.
            (Some(SourceKind::Mqtt(old)), Some(SourceKind::Mqtt(new))) => {
                let topics: BTreeSet<_> = old.topics.iter().collect();
                old.url == new.url && new.topics.iter().any(|topic| topics.contains(topic))
            }
            (Some(SourceKind::Nats(old)), Some(SourceKind::Nats(new))) => {
                match (&old.from, &new.from) {
                    (From::Stream { stream: old, .. }, From::Stream { stream: new, .. }) => {
                        old == new
                    }
                    (From::Subjects { subjects: old }, From::Subjects { subjects: new }) => {
                        new.iter().any(|subject| old.contains(subject))
                    }
                    _ => false,
                }
            }
            (
                Some(
                    SourceKind::Syslog(old)
                    | SourceKind::Tcp(old)
                    | SourceKind::Udp(old)
                    | SourceKind::Unix(old),
                ),
                Some(
                    SourceKind::Syslog(new)
                    | SourceKind::Tcp(new)
                    | SourceKind::Udp(new)
                    | SourceKind::Unix(new),
                ),
            ) => old.endpoint == new.endpoint && old.is_syslog == new.is_syslog,
            (Some(SourceKind::Stdin(_)), Some(SourceKind::Stdin(_))) => true,
            (old, new) => old == new,
        }
    }

    fn pipelines(self, before: &Config, old: &PipelineId, new: &PipelineId) -> bool {
        if self.new.pipelines.iter().any(|part| part.id == *old) {
            return false;
        }
        let old = before.pipelines.iter().find(|part| part.id == *old);
        let new = self.new.pipelines.iter().find(|part| part.id == *new);
        match (old, new) {
            (Some(old), Some(new)) => {
                old.transforms == new.transforms && old.subjects == new.subjects
            }
            _ => false,
        }
    }

    fn sinks(self, before: &Config, old: &SinkId, new: &SinkId) -> bool {
        if self.new.sinks.iter().any(|part| part.id == *old) {
            return false;
        }
        let old = before.sinks.iter().find(|part| part.id == *old);
        let new = self.new.sinks.iter().find(|part| part.id == *new);
        match (old.map(|part| &part.kind), new.map(|part| &part.kind)) {
            (Some(SinkKind::File(old)), Some(SinkKind::File(new))) => old.root == new.root,
            (Some(SinkKind::Http(old)), Some(SinkKind::Http(new))) => old.url == new.url,
            (Some(SinkKind::Nats(old)), Some(SinkKind::Nats(new))) => {
                old.servers == new.servers && old.subject == new.subject
            }
            (Some(SinkKind::Stdout(_)), Some(SinkKind::Stdout(_))) => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(source: &str, path: &str, pipeline: &str, sink: &str, url: &str) -> String {
        format!(
            "[sources.{source}]\ntype = \"file\"\npaths = [\"{path}\"]\n[sinks.{sink}]\ntype = \"http\"\nurl = \"{url}\"\n\
             [pipelines.{pipeline}]\nsources = [\"{source}\"]\nsinks = [\"{sink}\"]\n"
        )
    }

    fn loaded(text: &str) -> Loaded {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("w.toml");
        std::fs::write(&file, text).unwrap();
        crate::config::load(&file, &|_| None, &|_| Ok(Vec::new())).unwrap()
    }

    fn known(queued: u64) -> Vec<KnownLane> {
        let [source, pipeline, sink] = ["s", "p", "k"];
        let (source, pipeline) = (source.parse().unwrap(), pipeline.parse().unwrap());
        let id = LaneId { source, pipeline, sink: sink.parse().unwrap() };
        vec![KnownLane { id, name: "gw/s/p/k".to_owned(), queued }]
    }

    /// What is said where the first config becomes the second, with and without the first at hand.
    fn said(text: &str) -> [Option<String>; 2] {
        let old = loaded(&config("s", "/in/*", "p", "k", "http://127.0.0.1:1/"));
        [Some(&old.config), None].map(|old| {
            let mut new = loaded(text);
            let before = new.warnings.list().len();
            warn_of_renames(&mut new, old, &known(7));
            let warning = new.warnings.list().get(before)?;
            assert_eq!(warning.severity, Severity::Warning);
            assert!(new.warnings.position(warning).is_some(), "it has a place");
            let hint = warning.hint.as_ref().unwrap();
            let command = hint.split('`').nth(1).unwrap().to_owned();
            Some(format!("{}: {command}", warning.key))
        })
    }

    #[test]
    fn a_part_with_another_name_and_the_same_files_or_url_is_told_with_the_command() {
        let url = "http://127.0.0.1:1/";
        let of = |key: &str, to: &str| Some(format!("{key}: waystation lane move gw/s/p/k {to}"));
        let renamed = said(&config("s", "/in/*", "q", "k", url));
        assert_eq!(renamed, [of("pipelines.q", "s/q/k"), of("pipelines.q", "s/q/k")]);
        let renamed = said(&config("s", "/in/*", "p", "j", url));
        assert_eq!(renamed, [of("sinks.j", "s/p/j"), of("sinks.j", "s/p/j")]);
        let renamed = said(&config("t", "/in/*", "p", "k", url));
        assert_eq!(renamed, [of("sources.t", "t/p/k"), of("sources.t", "t/p/k")]);
        // Everything has another name, and is the same: only the old config tells.
        let renamed = said(&config("t", "/in/*", "q", "j", url));
        assert_eq!(renamed, [of("pipelines.q", "t/q/j"), None]);
    }

    #[test]
    fn what_reads_other_files_or_goes_elsewhere_is_another_part() {
        let url = "http://127.0.0.1:1/";
        assert_eq!(said(&config("t", "/other/*", "p", "k", url))[0], None);
        assert_eq!(said(&config("s", "/in/*", "p", "j", "http://127.0.0.1:2/"))[0], None);
        // The same lane is no other.
        assert_eq!(said(&config("s", "/in/*", "p", "k", url)), [None, None]);
        let mut new = loaded(&config("s", "/in/*", "q", "k", url));
        let before = new.warnings.list().len();
        warn_of_renames(&mut new, None, &known(0));
        assert_eq!(new.warnings.list().len(), before, "nothing waits");
    }
}
