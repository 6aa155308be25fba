//! Looks at a plugin's file without compiling it, and finds everything that stands in its way.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use super::PluginUse;
use super::contract;
use crate::limits::PLUGIN_BYTES_MAX;
use crate::units::ByteSize;

/// What a plugin is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It turns records into records.
    Transform,
    /// It delivers them.
    Sink,
}

/// What a file that can be used is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// SHA-256 of the file.
    pub sha256: [u8; 32],
    /// Its size.
    pub size_bytes: u64,
    /// Whether it is compiled already; nothing more can be said of it then.
    pub compiled: bool,
    /// The interfaces that it imports.
    pub imports: Vec<String>,
    /// The interfaces that it exports.
    pub exports: Vec<String>,
}

impl Inspection {
    /// Whether it is a transform that can be called between batches.
    #[must_use]
    pub fn has_ticks(&self) -> bool {
        self.exports.contains(&contract::TICKS.full_name())
    }

    /// What hardly means what it says in the config that uses it.
    #[must_use]
    pub fn warnings(&self, used: PluginUse<'_>) -> Vec<String> {
        let warning = match used {
            PluginUse::Transform(config) if self.has_ticks() && config.tick.is_none() => {
                "it has a timer, and nothing calls it; set tick = \"10s\" or another time in its table"
            }
            PluginUse::Sink { may_send: false, .. }
                if self.imports.contains(&contract::HTTP.full_name()) =>
            {
                "it sends requests, and its table lets it reach nobody; write allow = { http = [\"https://HOST\"] }"
            }
            _ => return Vec::new(),
        };
        vec![warning.to_owned()]
    }
}

/// Inspects the file of a plugin; without a role as what it says that it is.
///
/// # Errors
/// All problems at once, each one a sentence about the file that does not repeat its path.
pub fn inspect(path: &Path, role: Option<Role>) -> Result<Inspection, Vec<String>> {
    let bytes = read(path).map_err(|error| vec![format!("it cannot be read: {error}")])?;
    inspect_bytes(&bytes, role)
}

pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    file.take(PLUGIN_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > PLUGIN_BYTES_MAX {
        let limit = ByteSize(PLUGIN_BYTES_MAX);
        return Err(io::Error::other(format!("it is larger than {limit}")));
    }
    Ok(bytes)
}

pub(super) fn inspect_bytes(bytes: &[u8], role: Option<Role>) -> Result<Inspection, Vec<String>> {
    let mut inspection = Inspection {
        sha256: super::sha256(bytes),
        size_bytes: bytes.len() as u64,
        compiled: wasmtime::Engine::detect_precompiled(bytes).is_some(),
        imports: Vec::new(),
        exports: Vec::new(),
    };
    if inspection.compiled {
        return Ok(inspection);
    }
    (inspection.imports, inspection.exports) = inspect_component(bytes, role)?;
    Ok(inspection)
}

#[cfg(feature = "compiler")]
use super::component::inspect as inspect_component;

/// What is no machine code cannot be used without the compiler.
#[cfg(not(feature = "compiler"))]
fn inspect_component(
    _bytes: &[u8],
    _role: Option<Role>,
) -> Result<(Vec<String>, Vec<String>), Vec<String>> {
    Err(vec![super::WITHOUT_COMPILER.to_owned()])
}
