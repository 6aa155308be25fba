//! What must hold between parts, and what is allowed but hardly meant.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::load::{InspectPlugin, Parts};
use crate::limiter::Rate;
use crate::limits::{LANES_MAX, SOCKET_PATH_BYTES_MAX, STREAMS_MAX};
use crate::plugin::PluginUse;
use crate::plugin::config::GuestConfig;
use crate::record::id::{PipelineId, SourceId, TransformId};
use crate::settings::{Complaint, Reading, nearest};
use crate::sinks::config::{LimitConfig, SinkConfig, SinkKind};
use crate::sinks::file::config::FileSinkConfig;
use crate::sinks::nats::config::OnUnknown;
use crate::sources::config::SourceKind;
use crate::sources::socket::config::{Endpoint, FileMode, SocketPath};
use crate::units::ByteSize;

/// Reports everything that is wrong between the parts.
pub(super) fn check(parts: &Parts, reading: &Reading<'_>, inspect_plugin: InspectPlugin<'_>) {
    let checks = Checks { parts, reading };
    checks.there_is_something_to_do();
    checks.references();
    checks.standard_input();
    checks.listeners();
    checks.counts();
    checks.file_names();
    checks.plugins(inspect_plugin);
    // A part that could not be read would look unused.
    if !reading.has_errors() {
        checks.unused();
        checks.batches();
        checks.limits();
        checks.policies();
        checks.odd_values();
    }
}

struct Checks<'c, 'd> {
    parts: &'c Parts,
    reading: &'c Reading<'d>,
}

impl Checks<'_, '_> {
    /// An error at the value of a key.
    fn error(&self, path: &str, complaint: Complaint) {
        let place = self.reading.place(path).map(|place| place.value);
        self.reading.error(path, place, complaint);
    }

    /// An error at the value of a key, or at the table's name where the file does not have the key.
    fn error_in(&self, table: &str, key: &str, complaint: Complaint) {
        let path = format!("{table}.{key}");
        let place = self.reading.place(&path).map(|place| place.value);
        let place = place.or_else(|| self.reading.place(table).map(|place| place.key));
        self.reading.error(path, place, complaint);
    }

    /// A warning at the value of a key, or at the table's name where the file does not have the key.
    fn warning_in(&self, table: &str, key: &str, complaint: Complaint) {
        let path = format!("{table}.{key}");
        let place = self.reading.place(&path).map(|place| place.value);
        let place = place.or_else(|| self.reading.place(table).map(|place| place.key));
        self.reading.warning(path, place, complaint);
    }

    fn there_is_something_to_do(&self) {
        let names = &self.parts.names;
        for (key, names, example) in [
            (
                "sources",
                &names.sources,
                "[sources.NAME] with type = \"file\" and paths = [\"PATTERN\"]",
            ),
            ("sinks", &names.sinks, "[sinks.NAME] with type = \"file\" and root = \"FOLDER\""),
            (
                "pipelines",
                &names.pipelines,
                "[pipelines.NAME] with sources = [\"NAME\"] and sinks = [\"NAME\"]",
            ),
        ] {
            if names.is_empty() {
                let noun = key.trim_end_matches('s');
                let complaint = Complaint::new(format!("there is no {noun}"));
                self.reading.missing(key, None, complaint.hint(format!("add {example}")));
            }
        }
    }

    fn references(&self) {
        let names = &self.parts.names;
        for pipeline in &self.parts.config.pipelines {
            let id = &pipeline.id;
            let sources = pipeline.sources.iter().map(SourceId::as_str);
            let transforms = pipeline.transforms.iter().map(|id| id.as_str());
            let sinks = pipeline.sinks.iter().map(|id| id.as_str());
            self.refer(id, "sources", &names.sources, sources);
            self.refer(id, "transforms", &names.transforms, transforms);
            self.refer(id, "sinks", &names.sinks, sinks);
        }
        for sink in &self.parts.config.sinks {
            if let Some(LimitConfig::Shared(limiter)) = &sink.limit {
                let path = format!("sinks.{}.limiter", sink.id);
                self.refers(path, "limiters", &names.limiters, limiter.as_str());
            }
        }
    }

    fn refer<'n>(
        &self,
        pipeline: &PipelineId,
        key: &str,
        names: &[String],
        wanted: impl Iterator<Item = &'n str>,
    ) {
        for (index, name) in wanted.enumerate() {
            self.refers(format!("pipelines.{pipeline}.{key}[{index}]"), key, names, name);
        }
    }

    /// What stands at `path` must be one of the names of the tables below `key`.
    fn refers(&self, path: String, key: &str, names: &[String], name: &str) {
        if names.iter().any(|known| known == name) {
            return;
        }
        let noun = key.trim_end_matches('s');
        let complaint = Complaint::new(format!("there is no {noun} \"{name}\""));
        let hint = match nearest(name, names.iter().map(String::as_str)) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None if names.is_empty() => format!("add [{key}.{name}]"),
            None => format!("add [{key}.{name}]; there are: {}", names.join(", ")),
        };
        let place = self.reading.place(&path).map(|place| place.value);
        self.reading.missing(path, place, complaint.hint(hint));
    }

    fn standard_input(&self) {
        let readers = self.parts.config.sources.iter();
        let mut readers = readers.filter(|source| matches!(source.kind, SourceKind::Stdin(_)));
        let Some(first) = readers.next() else { return };
        for other in readers {
            let message = format!("standard input is read by source \"{}\" already", first.id);
            let hint = "let several pipelines use that source";
            self.error(&format!("sources.{}.type", other.id), Complaint::new(message).hint(hint));
        }
    }

    /// Two listeners cannot have one address or path.
    fn listeners(&self) {
        let admin = &self.parts.config.admin;
        let socket = SocketPath { path: admin.socket.clone(), mode: FileMode(0) };
        let of_admin = |endpoint| ("[admin]".to_owned(), endpoint);
        let mut taken = vec![of_admin(Endpoint::Stream(socket))];
        taken.extend(admin.listen.map(|address| of_admin(Endpoint::Tcp(address))));
        for source in &self.parts.config.sources {
            let endpoint = match &source.kind {
                SourceKind::Http(http) => Endpoint::Tcp(http.listen.address),
                SourceKind::Syslog(socket)
                | SourceKind::Tcp(socket)
                | SourceKind::Udp(socket)
                | SourceKind::Unix(socket) => socket.endpoint.clone(),
                _ => continue,
            };
            if let Some((who, _)) = taken.iter().find(|(_, other)| other.excludes(&endpoint)) {
                let message = format!("{who} listens on {endpoint} already");
                let (key, what) = match endpoint {
                    Endpoint::Tcp(_) | Endpoint::Udp(_) => ("listen", "port"),
                    Endpoint::Stream(_) | Endpoint::Datagram(_) => ("socket", "path"),
                };
                let hint = format!("take another {what}, or let several pipelines use that source");
                let key = format!("sources.{}.{key}", source.id);
                self.error(&key, Complaint::new(message).hint(hint));
            }
            taken.push((format!("source \"{}\"", source.id), endpoint));
        }
    }

    fn counts(&self) {
        let config = &self.parts.config;
        if config.sources.len() > usize::from(STREAMS_MAX) {
            let message = format!("there are more than {STREAMS_MAX} sources");
            self.reading.error("sources", None, Complaint::new(message));
        }
        let lanes = config.lanes_count();
        if lanes > usize::from(LANES_MAX) {
            let message = format!(
                "there are {lanes} lanes (source × pipeline × sink), more than {LANES_MAX}"
            );
            self.reading.error("pipelines", None, Complaint::new(message));
        }
    }

    /// No two batches may get one name (the template by itself was checked when it was read).
    fn file_names(&self) {
        let mut roots: BTreeMap<PathBuf, usize> = BTreeMap::new();
        let files = || {
            self.parts.config.sinks.iter().filter_map(|sink| match &sink.kind {
                SinkKind::File(file) => Some((&sink.id, file)),
                SinkKind::Http(_)
                | SinkKind::Nats(_)
                | SinkKind::Plugin(_)
                | SinkKind::Stdout(_) => None,
            })
        };
        for (_, file) in files() {
            *roots.entry(plain(&file.root)).or_default() += 1;
        }
        for (id, file) in files() {
            let pipelines = || self.parts.config.pipelines.iter().filter(|p| p.sinks.contains(id));
            let sources: BTreeSet<_> = pipelines().flat_map(|pipeline| &pipeline.sources).collect();
            let mut wanted = Vec::new();
            if sources.len() > 1 {
                wanted.push(("{source}", "serves several sources"));
            }
            if pipelines().count() > 1 {
                wanted.push(("{pipeline}", "serves several pipelines"));
            }
            if roots.get(&plain(&file.root)).is_some_and(|sharing| *sharing > 1) {
                wanted.push(("{sink}", "shares its root with another sink"));
            }
            let has_tick = |name: &TransformId| {
                let transforms = &self.parts.config.transforms;
                transforms.iter().any(|transform| transform.id == *name && transform.tick.is_some())
            };
            if pipelines().flat_map(|pipeline| &pipeline.transforms).any(has_tick) {
                wanted.push(("{batch}", "also gets what ticks make, which cover no record"));
            }
            wanted.retain(|(placeholder, _)| !file.path.contains(placeholder));
            if !wanted.is_empty() {
                self.name_lacks(id.as_str(), file, &wanted);
            }
        }
    }

    fn name_lacks(&self, sink: &str, file: &FileSinkConfig, wanted: &[(&str, &str)]) {
        let placeholders: Vec<_> = wanted.iter().map(|(placeholder, _)| *placeholder).collect();
        let reasons: Vec<_> = wanted.iter().map(|(_, why)| *why).collect();
        let message = format!(
            "`path` must hold {}, because the sink {}",
            placeholders.join(" and "),
            reasons.join(" and ")
        );
        let (folder, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
        let slash = if folder.is_empty() { "" } else { "/" };
        let hint = format!("write path = \"{folder}{slash}{}-{name}\"", placeholders.join("-"));
        self.error_in(&format!("sinks.{sink}"), "path", Complaint::new(message).hint(hint));
    }

    fn plugins(&self, inspect: InspectPlugin<'_>) {
        let config = &self.parts.config;
        let transforms = config.transforms.iter().map(|transform| {
            (format!("transforms.{}", transform.id), PluginUse::Transform(transform))
        });
        let sinks = config.sinks.iter().filter_map(|sink| match &sink.kind {
            SinkKind::Plugin(plugin) => {
                let (guest, may_send) = (&plugin.guest, !plugin.origins.is_empty());
                Some((format!("sinks.{}", sink.id), PluginUse::Sink { guest, may_send }))
            }
            _ => None,
        });
        for (table, used) in transforms.chain(sinks) {
            let (path, guest) = (format!("{table}.plugin"), used.guest());
            let shown = guest.plugin.display();
            if !guest.plugin.exists() {
                let message = format!("the plugin {shown} is not there");
                let hint = "a relative path begins at the folder of this file";
                self.error(&path, Complaint::new(message).hint(hint));
            } else if !guest.plugin.is_file() {
                self.error(&path, Complaint::new(format!("the plugin {shown} is no file")));
            } else if self.pin_holds(guest, &table) {
                match inspect(used) {
                    Ok(warnings) => warnings.into_iter().for_each(|message| {
                        self.warning_in(&table, "plugin", Complaint::new(message));
                    }),
                    Err(errors) => errors.into_iter().for_each(|message| {
                        self.error(&path, Complaint::new(message));
                    }),
                }
            }
        }
    }

    /// Whether the plugin's file is the one that was pinned.
    fn pin_holds(&self, guest: &GuestConfig, table: &str) -> bool {
        use sha2::Digest as _;

        let Some(pin) = guest.sha256 else { return true };
        let mut hasher = HashWriter(sha2::Sha256::new());
        let copied = std::fs::File::open(&guest.plugin)
            .and_then(|mut file| std::io::copy(&mut file, &mut hasher));
        if let Err(error) = copied {
            let message = format!("cannot read the plugin {}: {error}", guest.plugin.display());
            self.error(&format!("{table}.plugin"), Complaint::new(message));
            return false;
        }
        let found: [u8; 32] = hasher.0.finalize().into();
        if found != pin {
            let found: String = found.iter().map(|byte| format!("{byte:02x}")).collect();
            let message = format!("the plugin {} is another file", guest.plugin.display());
            let complaint = Complaint::new(message).hint(format!("its sha256 is {found}"));
            self.error(&format!("{table}.sha256"), complaint);
        }
        found == pin
    }

    fn unused(&self) {
        let config = &self.parts.config;
        let warn = |key: &str, name: &str, is_used: bool| {
            if is_used {
                return;
            }
            let path = format!("{key}.{name}");
            let place = self.reading.place(&path).map(|place| place.key);
            let noun = key.trim_end_matches('s');
            let complaint = Complaint::new(format!("no pipeline uses {noun} \"{name}\""));
            self.reading.warning(path, place, complaint);
        };
        for part in &config.sources {
            let is_used = config.pipelines.iter().any(|p| p.sources.contains(&part.id));
            warn("sources", part.id.as_str(), is_used);
        }
        for part in &config.transforms {
            let is_used = config.pipelines.iter().any(|p| p.transforms.contains(&part.id));
            warn("transforms", part.id.as_str(), is_used);
        }
        for part in &config.sinks {
            let is_used = config.pipelines.iter().any(|p| p.sinks.contains(&part.id));
            warn("sinks", part.id.as_str(), is_used);
        }
        for part in &config.limiters {
            let shares = |sink: &SinkConfig| match &sink.limit {
                Some(LimitConfig::Shared(limiter)) => *limiter == part.id,
                _ => false,
            };
            if !config.sinks.iter().any(shares) {
                let path = format!("limiters.{}", part.id);
                let place = self.reading.place(&path).map(|place| place.key);
                let message = format!("no sink uses limiter \"{}\"", part.id);
                let hint = format!("write limiter = \"{}\" in a sink", part.id);
                self.reading.warning(path, place, Complaint::new(message).hint(hint));
            }
        }
    }

    /// What a limiter lets through while a batch gathers.
    fn limits(&self) {
        for sink in &self.parts.config.sinks {
            let table = format!("sinks.{}", sink.id);
            let Some((rate, burst)) = self.rate_of(sink).and_then(|rate| rate.bytes) else {
                continue;
            };
            let (bytes_max, linger) = (sink.batch.bytes_max.0, sink.batch.linger);
            let meanwhile = u128::from(rate) * linger.as_millis() / 1000 + u128::from(burst);
            if u128::from(bytes_max) > meanwhile {
                let seconds = (bytes_max - burst.min(bytes_max)).div_ceil(rate);
                let message = format!(
                    "a full batch ({}) takes {seconds} s behind the limiter, longer than `linger`",
                    sink.batch.bytes_max
                );
                let hint = "lower `batch.bytes_max`, or raise `batch.linger` or the burst";
                self.warning_in(&table, "batch.bytes_max", Complaint::new(message).hint(hint));
            }
            // A timer tells no less than a millisecond apart; what it is late must find room.
            if u128::from(burst) * 100 < u128::from(rate) {
                let message = "the burst is less than 10 ms of the rate, which may not be reached";
                let hint = format!("set `burst` to {} or more", ByteSize(rate.div_ceil(100)));
                self.warning_in(&table, "rate.burst", Complaint::new(message).hint(hint));
            }
        }
    }

    fn rate_of(&self, sink: &SinkConfig) -> Option<Rate> {
        match sink.limit.as_ref()? {
            LimitConfig::Own(rate) => Some(*rate),
            LimitConfig::Shared(id) => {
                let mut limiters = self.parts.config.limiters.iter();
                limiters.find(|limiter| limiter.id == *id).map(|limiter| limiter.rate)
            }
        }
    }

    fn batches(&self) {
        for sink in &self.parts.config.sinks {
            let SinkKind::File(file) = &sink.kind else { continue };
            let table = format!("sinks.{}", sink.id);
            let batch = &sink.batch;
            let hint = "larger batches make fewer and larger files";
            let warn = |key: &str, message: &str| {
                self.warning_in(&table, key, Complaint::new(message).hint(hint));
            };
            if batch.records_max < 10 {
                warn("batch.records_max", "this makes a file of every few records");
            }
            if batch.bytes_max.0 < 4096 {
                warn("batch.bytes_max", "this makes files smaller than 4 KiB");
            }
            if batch.linger < Duration::from_millis(100) {
                warn("batch.linger", "this can make more than ten files a second");
            }
            let is_named_zst = file.path.rsplit('.').next() == Some("zst");
            if file.zstd_level.is_some() != is_named_zst {
                let (state, hint) = if is_named_zst {
                    (
                        "files are plain, but their names end in .zst",
                        "add compression = { codec = \"zstd\" }",
                    )
                } else {
                    (
                        "files are compressed, but their names do not end in .zst",
                        "end `path` with .zst",
                    )
                };
                self.warning_in(&table, "path", Complaint::new(state).hint(hint));
            }
        }
    }

    /// Rules that hold by themselves and do not hold together.
    fn policies(&self) {
        let config = &self.parts.config;
        for sink in &config.sinks {
            let table = format!("sinks.{}", sink.id);
            if sink.retry.budget < sink.retry.attempt_timeout {
                let message = "the budget is shorter than `attempt_timeout`: one slow answer may spend all of it";
                let hint = "raise `retry.budget`, or lower `retry.attempt_timeout`";
                self.warning_in(&table, "retry.budget", Complaint::new(message).hint(hint));
            }
            if let SinkKind::Http(http) = &sink.kind
                && http.url.is_local()
            {
                // A collector or proxy beside the agent answers for itself, and has a queue of its own.
                let message = "this is on the same host: if what listens there sends on by itself, two layers retry, and \
                               `delivered` means that it took the records, not the upstream";
                let hint = "name the upstream itself, unless the records stay there";
                self.warning_in(&table, "url", Complaint::new(message).hint(hint));
            }
            let SinkKind::Nats(nats) = &sink.kind else { continue };
            if nats.stream.is_none() && nats.on_unknown == OnUnknown::Resend {
                // How long it recognises a repeat is a matter of minutes, and known only when it is asked.
                let message = "a stream forgets identities sooner than the backlog may be old (after 2 minutes, unless it was \
                               made otherwise), and without its name nothing can be looked up in it: a record whose answer \
                               was lost may be stored twice";
                let hint = "name the `stream`, or hold with on_unknown = \"hold\"";
                self.warning_in(&table, "servers", Complaint::new(message).hint(hint));
            }
            if nats.lookup_max < sink.batch.records_max.into() {
                // The stream's own memory of identities may be shorter than an outage.
                let message = "a lookup reads less than one batch, so it cannot tell what of a batch the stream has";
                let hint = "raise `lookup_max`, or lower `batch.records_max`";
                self.warning_in(&table, "lookup_max", Complaint::new(message).hint(hint));
            }
        }
        if let Some(place) = self.reading.place("dead_letters")
            && config.agent.owner.is_none()
        {
            let message = "nobody is named who looks after the dead letters";
            let hint = "write `owner` in [agent], which status and letters show";
            let complaint = Complaint::new(message).hint(hint);
            self.reading.warning("dead_letters".to_owned(), Some(place.key), complaint);
        }
    }

    fn odd_values(&self) {
        let config = &self.parts.config;
        for transform in &config.transforms {
            let table = format!("transforms.{}", transform.id);
            if transform.call_bytes_max > transform.guest.memory_max {
                let message = "the records of one call do not fit into `memory_max`";
                self.warning_in(&table, "call.bytes_max", Complaint::new(message));
            }
        }
        if config.admin.socket.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            let message = format!(
                "the path {} is longer than the {SOCKET_PATH_BYTES_MAX} bytes that a socket may have",
                config.admin.socket.display()
            );
            let hint = "without the socket `waystation status` cannot ask the agent";
            self.warning_in("admin", "socket", Complaint::new(message).hint(hint));
        }
    }
}

struct HashWriter(sha2::Sha256);

impl std::io::Write for HashWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        use sha2::Digest as _;

        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The path without `.` and `x/..`, so that two spellings of one folder are seen as one.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                let _had_parent = plain.pop();
            }
            other => plain.push(other),
        }
    }
    plain
}
