//! An agent for another processor under emulation. It compiles its plugin in a process of its own.

use std::path::Path;

use anyhow::Result;

use super::Parts;
use super::way::Way;
use crate::arm64;
use crate::ui::{self, Step};

pub(super) fn run(parts: &Parts) -> Result<()> {
    let step = Step::start("running the agent for arm64 under qemu");
    let absolute = |path: &Path| std::path::absolute(path);
    let plugin = absolute(&parts.plugins.join("clean.wasm"))?;
    let binary = absolute(&parts.binary)?;
    let way = Way::lay(&parts.out.join("emulated"), &format!("plugin = \"{}\"", plugin.display()))?;
    way.run(arm64::program_that_starts_others(&binary))?;
    let ready = way.ready(arm64::program(&binary))?;
    step.done();
    ui::say(&format!("ready in {} ms, as qemu interprets it", ready.as_millis()));
    Ok(())
}
