//! The host with real guests, which `cargo xtask plugins` builds from `plugins/`.

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;

use super::*;
use crate::clock::{Clock as _, ManualClock, SystemClock};
use crate::record::codec::{FrameBuffer, FrameReader};
use crate::record::id::{AgentId, Epoch, LaneName, Seq};
use crate::record::{HeadersBuffer, RecordView};
use crate::secret::SecretJson;
use crate::units::ByteSize;

mod calls;
mod inspection;
mod packing;
mod speed;
mod store;

/// Digests in memory.
#[derive(Debug, Default)]
pub(crate) struct Digests {
    known: Mutex<HashMap<String, [u8; 32]>>,
    puts: AtomicUsize,
}

impl CompiledDigests for Digests {
    fn get(&self, key: &str) -> Option<[u8; 32]> {
        self.known.lock().unwrap().get(key).copied()
    }

    fn put(&self, key: &str, digest: [u8; 32]) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.puts.fetch_add(1, Ordering::SeqCst);
        self.known.lock().unwrap().insert(key.to_owned(), digest);
        Ok(())
    }
}

/// A component that was built from the sources in `plugins/`.
fn component(name: &str) -> PathBuf {
    let path = target_folder().join("plugins").join(format!("{name}.wasm"));
    assert!(path.exists(), "{} is missing; run `cargo xtask plugins`", path.display());
    path
}

fn target_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("target")
}

/// The component, compiled once for all tests of this build, with the digest that pins it.
pub(crate) fn compiled(name: &str) -> (PathBuf, [u8; 32]) {
    let component = component(name);
    let folder = target_folder().join("tmp/compiled-guests");
    fs::create_dir_all(&folder).unwrap();
    let digest = hex(&sha256(&fs::read(&component).unwrap()));
    let memories = Memories::of(&fs::read(&component).unwrap());
    let compatibility = Runtime::new(memories).unwrap().compatibility();
    let path = folder.join(format!("{name}-{digest}-{compatibility:016x}"));
    if !path.exists() {
        let dir = TempDir::new_in(&folder).unwrap();
        let part = dir.path().join("part");
        compile_file(&component, &part, None).unwrap();
        fs::rename(part, &path).unwrap();
    }
    let digest = sha256(&fs::read(&path).unwrap());
    (path, digest)
}

/// The machine code of a component of the kind that most are.
fn precompiled(component: &[u8]) -> Vec<u8> {
    let runtime = Runtime::new(Memories::Kept).unwrap();
    runtime.engine.precompile_component(component).unwrap()
}

/// A host with a folder of its own, which ends with it.
struct TestHost {
    dir: TempDir,
    clock: Arc<ManualClock>,
    digests: Arc<Digests>,
    host: PluginHost,
}

impl TestHost {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let clock = Arc::new(ManualClock::new(Timestamp(0)));
        let digests = Arc::new(Digests::default());
        let host = PluginHost::new(HostOptions {
            store_dir: dir.path().join("compiled"),
            compiler: dir.path().join("compiler"),
            clock: clock.clone(),
            digests: digests.clone(),
        })
        .unwrap();
        Self { dir, clock, digests, host }
    }

    /// Loads the guest that behaves as its config says.
    fn guest(&self, config: &str) -> Plugin {
        self.guest_with(config, |_| {})
    }

    fn guest_with(&self, config: &str, change: impl FnOnce(&mut TransformConfig)) -> Plugin {
        let (path, digest) = compiled("test-guests");
        let mut settings = settings(path);
        settings.guest.sha256 = Some(digest);
        settings.guest.config = json(config);
        change(&mut settings);
        self.host.load(&settings).unwrap()
    }
}

fn json(text: &str) -> SecretJson {
    SecretJson::new(&serde_json::from_str(text).unwrap(), Vec::new())
}

fn settings(plugin: PathBuf) -> TransformConfig {
    TransformConfig {
        id: "guest".parse().unwrap(),
        guest: GuestConfig {
            plugin,
            sha256: None,
            config: SecretJson::default(),
            memory_max: ByteSize(64 << 20),
            deadline: Duration::from_secs(1),
        },
        tick: None,
        on_error: config::OnError::DeadLetter,
        instance: config::InstanceLife::PerBatch,
        call_records_max: 1000,
        call_bytes_max: ByteSize(1 << 20),
    }
}

fn place() -> LanePlace {
    let agent: AgentId = "gw-1".parse().unwrap();
    let (source, pipeline, sink) =
        ("sensors".parse().unwrap(), "telemetry".parse().unwrap(), "archive".parse().unwrap());
    let lane = LaneName::new(&agent, &source, &pipeline, &sink);
    LanePlace { lane, agent, source, pipeline, sink }
}

/// Records with these payloads, seq from 1, two headers each.
struct Records(FrameBuffer);

impl Records {
    fn new<P: AsRef<[u8]>>(payloads: impl IntoIterator<Item = P>) -> Self {
        let mut headers = HeadersBuffer::default();
        headers.push("content-type", "application/json");
        headers.push("x", "1");
        let mut frames = FrameBuffer::default();
        for payload in payloads {
            let time = Timestamp(1_000 + i64::from(frames.count()));
            frames.push_new(time, "sensors.hall", headers.as_headers(), payload.as_ref());
        }
        Self(frames)
    }

    fn views(&self) -> Vec<RecordView<'_>> {
        FrameReader::new(self.0.bytes(), self.0.count(), Epoch::new(1, 1), Seq(1))
            .map(Result::unwrap)
            .collect()
    }
}

/// Has a fresh instance process one call.
fn run(plugin: &Plugin, payloads: &[&str]) -> Result<Vec<Outcome>, CallError> {
    let records = Records::new(payloads);
    let mut instance = plugin.instantiate(&place(), StateView::default())?;
    instance.process(Timestamp(77), &records.views())
}

fn fault(result: Result<Vec<Outcome>, CallError>) -> (FaultKind, String) {
    match result {
        Err(CallError::Fault(fault)) => (fault.kind, fault.text),
        other => panic!("no fault: {other:?}"),
    }
}
