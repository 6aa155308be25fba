//! What may be in the dependency tree: licences, duplicate crates, sources. The policy is `deny.toml`, in the format of
//! cargo-deny; the check is our own, since building cargo-deny takes longer than building the agent.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{process, spdx};

/// The one registry that crates come from.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// What `deny.toml` says.
#[derive(Debug, Default)]
struct Policy {
    /// `graph.targets`: the platforms whose dependencies count.
    targets: Vec<String>,
    /// `licenses.allow`.
    licences: Vec<String>,
    /// `bans.skip`: crates that may stand beside another version, each with a reason: `name@version`, where the version
    /// may leave out its last numbers.
    skipped: BTreeSet<String>,
}

/// A package of the tree.
struct Package {
    name: String,
    version: String,
    licence: Option<String>,
    /// None: a package of ours.
    source: Option<String>,
}

/// Checks the trees of the workspaces with these manifests; all problems are in the error.
pub(crate) fn check(root: &Path, manifests: &[&Path]) -> Result<()> {
    let policy = read_policy(root)?;
    let mut problems = Vec::new();
    let mut unused = policy.skipped.clone();
    for manifest in manifests {
        let packages = packages(root, manifest, &policy.targets)?;
        problems.extend(licence_problems(&packages, &policy)?);
        problems.extend(source_problems(&packages));
        problems.extend(duplicate_problems(&packages, &policy, &mut unused));
    }
    problems.extend(unused.iter().map(|skip| format!("{skip} is in bans.skip without need")));
    if !problems.is_empty() {
        bail!("{} problems in the dependencies:\n  {}", problems.len(), problems.join("\n  "));
    }
    Ok(())
}

fn read_policy(root: &Path) -> Result<Policy> {
    let file = root.join("deny.toml");
    let text = std::fs::read_to_string(&file)
        .with_context(|| format!("cannot read {}", file.display()))?;
    policy(&text).with_context(|| format!("cannot use {}", file.display()))
}

fn policy(text: &str) -> Result<Policy> {
    let table: toml::Table = toml::from_str(text)?;
    let array = |part: &str, key: &str| {
        let array = table.get(part).and_then(|part| part.get(key)).and_then(toml::Value::as_array);
        array.with_context(|| format!("{part}.{key} is missing"))
    };
    let strings = |part, key| -> Result<Vec<String>> {
        let texts = array(part, key)?.iter().map(|value| value.as_str().map(str::to_owned));
        texts
            .collect::<Option<_>>()
            .with_context(|| format!("{part}.{key} holds more than strings"))
    };
    let mut skipped = BTreeSet::new();
    for skip in array("bans", "skip")? {
        let text = |key| skip.get(key).and_then(toml::Value::as_str);
        let (Some(name), Some(reason)) = (text("crate"), text("reason")) else {
            bail!("an entry of bans.skip is without crate or reason: {skip}");
        };
        if reason.is_empty() || !skipped.insert(name.to_owned()) {
            bail!("{name} stands twice in bans.skip, or without a reason");
        }
    }
    Ok(Policy {
        targets: strings("graph", "targets")?,
        licences: strings("licenses", "allow")?,
        skipped,
    })
}

/// What cargo knows of the workspace with this manifest, for the platforms of `deny.toml`.
pub(crate) fn metadata(root: &Path, manifest: &Path) -> Result<Value> {
    metadata_for(root, manifest, &read_policy(root)?.targets)
}

fn metadata_for(root: &Path, manifest: &Path, targets: &[String]) -> Result<Value> {
    let mut command: Command = process::cargo(root);
    command.args(["metadata", "--format-version", "1", "--locked", "--manifest-path"]);
    command.arg(manifest);
    for target in targets {
        command.args(["--filter-platform", target]);
    }
    Ok(serde_json::from_str(&process::output(&mut command)?)?)
}

fn packages(root: &Path, manifest: &Path, targets: &[String]) -> Result<Vec<Package>> {
    let metadata = metadata_for(root, manifest, targets)?;
    let packages = metadata.get("packages").and_then(Value::as_array);
    let packages = packages.context("cargo metadata lists no packages")?;
    packages
        .iter()
        .map(|package| {
            let text = |key: &str| package.get(key).and_then(Value::as_str).map(str::to_owned);
            Some(Package {
                name: text("name")?,
                version: text("version")?,
                licence: text("license"),
                source: text("source"),
            })
        })
        .collect::<Option<Vec<_>>>()
        .context("cargo metadata lists a package without name or version")
}

fn licence_problems(packages: &[Package], policy: &Policy) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for Package { name, version, licence, .. } in packages {
        let Some(licence) = licence else {
            problems.push(format!("{name} {version} states no licence"));
            continue;
        };
        let met = spdx::is_met(licence, &policy.licences)
            .with_context(|| format!("the licence of {name} {version}"))?;
        if !met {
            problems.push(format!("the licence of {name} {version} is not allowed: {licence}"));
        }
    }
    Ok(problems)
}

fn source_problems(packages: &[Package]) -> Vec<String> {
    packages
        .iter()
        .filter_map(|package| {
            let source = package.source.as_deref().filter(|source| *source != REGISTRY)?;
            Some(format!("{} {} comes from {source}", package.name, package.version))
        })
        .collect()
}

/// Crates with more than one version, apart from those that the policy skips; these are taken out of `unused`.
fn duplicate_problems(
    packages: &[Package],
    policy: &Policy,
    unused: &mut BTreeSet<String>,
) -> Vec<String> {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in packages {
        versions.entry(&package.name).or_default().insert(&package.version);
    }
    let mut problems = Vec::new();
    for (name, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
        let mut others = Vec::new();
        for version in versions {
            match policy.skipped.iter().find(|skip| covers(skip, name, version)) {
                Some(skip) => drop(unused.remove(skip)),
                None => others.push(*version),
            }
        }
        if others.len() > 1 {
            problems.push(format!("{name} is there in several versions: {}", others.join(", ")));
        }
    }
    problems
}

/// Whether `skip` (`sha2@0.10`) names this version (0.10.9) of the crate.
fn covers(skip: &str, name: &str, version: &str) -> bool {
    let of_crate = skip.strip_prefix(name).and_then(|rest| rest.strip_prefix('@'));
    of_crate
        .and_then(|wanted| version.strip_prefix(wanted))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str, licence: Option<&str>) -> Package {
        let source = Some(REGISTRY.to_owned());
        Package {
            name: name.to_owned(),
            version: version.to_owned(),
            licence: licence.map(str::to_owned),
            source,
        }
    }

    const POLICY: &str = r#"
        [graph]
        targets = ["x86_64-unknown-linux-gnu"]
        [licenses]
        allow = ["MIT"]
        [bans]
        skip = [{ crate = "sha2@0.10", reason = "asked for by nkeys" }]
    "#;

    #[test]
    fn a_licence_that_is_not_on_the_list_and_a_missing_one_are_problems() {
        let packages = [
            package("a", "1.0.0", Some("MIT")),
            package("b", "1.0.0", Some("GPL-3.0-only")),
            package("c", "1.0.0", None),
        ];
        let problems = licence_problems(&packages, &policy(POLICY).unwrap()).unwrap();
        assert_eq!(
            problems,
            ["the licence of b 1.0.0 is not allowed: GPL-3.0-only", "c 1.0.0 states no licence"]
        );
    }

    #[test]
    fn a_second_version_is_a_problem_unless_it_is_skipped() {
        let policy = policy(POLICY).unwrap();
        let mut unused = policy.skipped.clone();
        let mut packages = vec![package("sha2", "0.10.9", None), package("sha2", "0.11.0", None)];
        assert!(duplicate_problems(&packages, &policy, &mut unused).is_empty());
        assert!(unused.is_empty());
        packages.push(package("sha2", "0.12.0", None));
        assert_eq!(
            duplicate_problems(&packages, &policy, &mut unused),
            ["sha2 is there in several versions: 0.11.0, 0.12.0"]
        );
    }

    #[test]
    fn a_skip_names_whole_numbers_of_a_version() {
        assert!(covers("sha2@0.10", "sha2", "0.10.9") && covers("sha2@0.10.9", "sha2", "0.10.9"));
        for (name, version) in [("sha2", "0.1.0"), ("sha2", "0.100.0"), ("sha", "0.10.9")] {
            assert!(!covers("sha2@0.10", name, version), "{name} {version}");
        }
    }

    #[test]
    fn a_crate_from_git_is_a_problem() {
        let mut packages = vec![package("a", "1.0.0", None)];
        assert!(source_problems(&packages).is_empty());
        packages[0].source = Some("git+https://example.org/a".to_owned());
        assert_eq!(source_problems(&packages), ["a 1.0.0 comes from git+https://example.org/a"]);
    }

    #[test]
    fn a_skip_without_a_reason_is_refused() {
        let text = POLICY.replace("asked for by nkeys", "");
        assert!(policy(&text).is_err());
    }
}
