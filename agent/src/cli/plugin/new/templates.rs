//! The examples of `examples/plugins/`, built in: the example of a language is its template.
//!
//! A new plugin is a copy with its own name in place of `my-plugin`. What the examples share, or have from elsewhere in the
//! repository, is a link there and a file here.

use crate::plugin::WIT;

/// The name that the examples have.
pub(super) const NAME: &str = "my-plugin";

/// A file of a new project: its path, and what is in it.
pub(super) type File = (&'static str, &'static [u8]);

macro_rules! files {
    ($folder:literal: $($path:literal),+ $(,)?) => {
        &[$(($path, include_bytes!(concat!("../../../../../examples/plugins/", $folder, $path)))),+]
    };
}

macro_rules! sdk {
    ($($path:literal),+ $(,)?) => {
        &[$((concat!("waystation/", $path), include_bytes!(concat!("../../../../../", $path)))),+]
    };
}

/// What the examples of all languages share.
const SHARED: &[File] = files!("": "cases.jsonl", "readings.ndjson", "waystation.toml");

const CONTRACT: &[File] = &[("wit/plugin.wit", WIT.as_bytes())];

/// The SDK, where its paths in the repository lead to it.
const SDK: &[File] = sdk!(
    "LICENSE",
    "plugins/sdk/rust/Cargo.toml",
    "plugins/sdk/rust/src/about.rs",
    "plugins/sdk/rust/src/json/mod.rs",
    "plugins/sdk/rust/src/json/number.rs",
    "plugins/sdk/rust/src/json/path.rs",
    "plugins/sdk/rust/src/key.rs",
    "plugins/sdk/rust/src/lib.rs",
    "plugins/sdk/rust/src/log.rs",
    "plugins/sdk/rust/src/pools.rs",
    "plugins/sdk/rust/src/sink.rs",
    "plugins/sdk/rust/src/state.rs",
    "plugins/sdk/rust/src/testing.rs",
    "plugins/sdk/rust/src/time.rs",
    "plugins/sdk/rust/transform-world/Cargo.toml",
    "plugins/sdk/rust/transform-world/src/lib.rs",
    "wit/plugin.wit",
);
/// The workspace whose members the SDK's packages are.
const SDK_WORKSPACE: &str = include_str!("../../../../../plugins/Cargo.toml");
/// Where the SDK lies, seen from the example and from a new project.
const SDK_PATHS: [&str; 2] = ["../../../plugins/sdk/rust", "waystation/plugins/sdk/rust"];

/// A language, and what its project is made of.
pub(super) struct Template {
    /// What has to be there to build it.
    pub(super) needs: &'static str,
    /// What `plugin test` has to be told.
    pub(super) test_options: &'static str,
    own: &'static [File],
    others: &'static [&'static [File]],
    has_sdk: bool,
}

pub(super) const RUST: Template = Template {
    needs: "Rust with the target wasm32-unknown-unknown",
    test_options: "",
    own: files!("rust/": ".gitignore", "Cargo.lock", "Cargo.toml", "README.md", "build.sh", "schema.json", "src/lib.rs"),
    others: &[SHARED, SDK],
    has_sdk: true,
};

pub(super) const C: Template = Template {
    needs: "zig: pip install ziglang",
    test_options: "",
    own: files!("c/": ".gitignore", "README.md", "build.sh", "plugin.c", "transform_plugin.c", "transform_plugin.h", "transform_plugin_component_type.o"),
    others: &[SHARED, CONTRACT],
    has_sdk: false,
};

pub(super) const JAVASCRIPT: Template = Template {
    needs: "Node.js with npm",
    test_options: " --deadline 5s",
    own: files!("javascript/": ".gitignore", "README.md", "build.sh", "package.json", "plugin.js", "starlingmonkey.mjs",
        "utf8.js"),
    others: &[SHARED, CONTRACT],
    has_sdk: false,
};

pub(super) const PYTHON: Template = Template {
    needs: "componentize-py: pip install componentize-py",
    test_options: " --memory-max 128MiB --instance per_batch",
    own: files!("python/": ".gitignore", "README.md", "build.sh", "plugin.py"),
    others: &[SHARED, CONTRACT],
    has_sdk: false,
};

pub(super) const GO: Template = Template {
    needs: "Go 1.25 or later",
    test_options: "",
    own: files!(
        "go/":
        ".gitignore",
        "README.md",
        "build.sh",
        "export_waystation_plugin_transform/plugin.go",
        "go.mod",
        "pkg/LICENSE",
        "pkg/go.mod",
        "pkg/wit/runtime/empty.s",
        "pkg/wit/runtime/runtime.go",
        "pkg/wit/types/option.go",
        "pkg/wit/types/result.go",
        "pkg/wit/types/unit.go",
        "waystation_plugin_log/empty.s",
        "waystation_plugin_log/wit_bindings.go",
        "waystation_plugin_state/empty.s",
        "waystation_plugin_state/wit_bindings.go",
        "waystation_plugin_transform/empty.s",
        "waystation_plugin_transform/wit_bindings.go",
        "waystation_plugin_types/empty.s",
        "waystation_plugin_types/wit_bindings.go",
        "wit_exports.go",
    ),
    others: &[SHARED, CONTRACT],
    has_sdk: false,
};

impl Template {
    /// The files of a project of this name.
    pub(super) fn files(&self, name: &str) -> Vec<(&'static str, Vec<u8>)> {
        let shared = self.others.iter().flat_map(|files| files.iter());
        let mut files: Vec<_> = shared.map(|(path, bytes)| (*path, bytes.to_vec())).collect();
        files.extend(self.own.iter().map(|(path, bytes)| (*path, named(bytes, name))));
        for (path, bytes) in &mut files {
            if SHARED.iter().any(|(shared, _)| shared == path) {
                *bytes = named(bytes, name);
            }
        }
        if self.has_sdk {
            files.push(("waystation/plugins/Cargo.toml", sdk_workspace().into_bytes()));
        }
        files
    }
}

/// A file in which the project's name stands for that of the example. What is no text stays as it is.
fn named(bytes: &[u8], name: &str) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(bytes) else { return bytes.to_vec() };
    let crate_name = |name: &str| name.replace('-', "_");
    text.replace(NAME, name)
        .replace(&crate_name(NAME), &crate_name(name))
        .replace(SDK_PATHS[0], SDK_PATHS[1])
        .into_bytes()
}

/// The manifest of the plugins' workspace, of which only the SDK is there.
fn sdk_workspace() -> String {
    let members = "members = [\"sdk/rust\", \"sdk/rust/transform-world\"]";
    let line = |line: &'static str| if line.starts_with("members = ") { members } else { line };
    SDK_WORKSPACE.lines().map(|text| line(text).to_owned() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    use super::*;

    fn repository() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
    }

    fn files_below(folder: &Path, skipped: &[&str]) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let kind = entry.file_type().unwrap();
            // What a build leaves there is not part of it.
            if skipped.contains(&name.as_str()) || name.ends_with(".wasm") || kind.is_symlink() {
                continue;
            }
            if kind.is_dir() {
                let below = files_below(&entry.path(), skipped);
                found.extend(below.into_iter().map(|path| format!("{name}/{path}")));
            } else {
                found.insert(name);
            }
        }
        found
    }

    #[test]
    fn every_file_of_the_examples_and_of_the_sdk_is_built_in() {
        let built = ["target", "build", "data", "node_modules", "package-lock.json", "__pycache__"];
        let languages =
            [("rust", RUST), ("c", C), ("javascript", JAVASCRIPT), ("python", PYTHON), ("go", GO)];
        for (folder, template) in languages {
            let there = files_below(&repository().join("examples/plugins").join(folder), &built);
            let here: BTreeSet<_> =
                template.own.iter().map(|(path, _)| (*path).to_owned()).collect();
            assert_eq!(here, there, "{folder}");
        }
        let there = files_below(&repository().join("plugins/sdk/rust"), &built);
        let here =
            SDK.iter().filter_map(|(path, _)| path.strip_prefix("waystation/plugins/sdk/rust/"));
        assert_eq!(here.map(str::to_owned).collect::<BTreeSet<_>>(), there);
    }

    #[test]
    fn a_project_has_its_own_name_everywhere_and_the_sdk_beside_it() {
        for template in [RUST, C, JAVASCRIPT, PYTHON, GO] {
            for (path, bytes) in template.files("to-kelvin") {
                let text = String::from_utf8_lossy(&bytes);
                assert!(!text.contains("my-plugin") && !text.contains("my_plugin"), "{path}");
                assert!(!text.contains("../../../plugins"), "{path}");
            }
        }
        let workspace: toml::Table = toml::from_str(&sdk_workspace()).unwrap();
        let members = workspace["workspace"]["members"].as_array().unwrap();
        assert_eq!(members.len(), 2, "{members:?}");
    }
}
