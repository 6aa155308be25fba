//! Where the agent's socket is, and what else somebody who is woken needs of its config.
//!
//! The file is not checked here, only looked into: whoever is woken must be answered also when the file was broken since, when
//! a secret is not in their own environment, or when they may not read what it refers to.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use toml::de::DeTable;

use super::super::{ExitCode, Failure};
use crate::config::{DATA_DIR_DEFAULT, PATH_DEFAULT};
use crate::limits::CONFIG_BYTES_MAX;

/// The name of the socket in the data directory.
const SOCKET_NAME: &str = "admin.sock";
/// Where the socket of the installed service is: systemd gives it a runtime directory that our own environment does not name.
const SERVICE_SOCKET: &str = "/run/waystation/admin.sock";

/// Paths to try, in this order. Without a file named, those of the installed service.
pub(in crate::cli) fn candidates(config: Option<&Path>) -> Result<Vec<PathBuf>, Failure> {
    let Looked { text, path, base } = look_into(config, "--socket PATH asks without a config")?;
    Ok(in_config(&text, &base, path == Path::new(PATH_DEFAULT)))
}

/// Paths to try for an agent with this data directory and its socket at the usual place.
pub(in crate::cli) fn in_data_dir(directory: &Path) -> PathBuf {
    directory.join(SOCKET_NAME)
}

/// Whom to ask and where to read on: `agent.owner` and `agent.runbook`. None where the config cannot be read.
pub(in crate::cli) fn whom_to_ask(config: Option<&Path>) -> (Option<String>, Option<String>) {
    let Ok(Looked { text, .. }) = look_into(config, "") else { return (None, None) };
    let (document, _what_is_broken) = DeTable::parse_recoverable(&text);
    let said = |key: &str| {
        let value = document.get_ref().get("agent")?.get_ref().get(key)?;
        value.get_ref().as_str().map(str::to_owned)
    };
    (said("owner"), said("runbook"))
}

/// The data directory of a config, looked up in the same way.
pub(in crate::cli) fn data_dir(config: Option<&Path>) -> Result<PathBuf, Failure> {
    let Looked { text, base, .. } =
        look_into(config, "--data-dir DIR looks there without a config")?;
    let (document, _what_is_broken) = DeTable::parse_recoverable(&text);
    Ok(data_dir_in(document.get_ref(), &base))
}

/// A config's text, its absolute path, and the folder that its paths count from.
struct Looked {
    text: String,
    path: PathBuf,
    base: PathBuf,
}

fn look_into(config: Option<&Path>, way_without: &str) -> Result<Looked, Failure> {
    let path = config.unwrap_or(Path::new(PATH_DEFAULT));
    let text = match read_bounded(path) {
        Ok(text) => text,
        // Nobody named it, and the agent may run on another one: what it would have by default is worth trying.
        Err(_) if config.is_none() => String::new(),
        Err(error) => {
            return Err(Failure {
                code: ExitCode::Config,
                message: format!("cannot read the config {}: {error}", path.display()),
                hint: Some(way_without.to_owned()),
            });
        }
    };
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let base = path.parent().unwrap_or(Path::new("/")).to_owned();
    Ok(Looked { text, path, base })
}

fn path_at(document: &DeTable<'_>, base: &Path, table: &str, key: &str) -> Option<PathBuf> {
    let value = document.get(table)?.get_ref().get(key)?;
    value.get_ref().as_str().map(|path| base.join(path))
}

fn data_dir_in(document: &DeTable<'_>, base: &Path) -> PathBuf {
    path_at(document, base, "agent", "data_dir").unwrap_or_else(|| DATA_DIR_DEFAULT.into())
}

fn in_config(text: &str, base: &Path, of_the_service: bool) -> Vec<PathBuf> {
    let (document, _what_is_broken) = DeTable::parse_recoverable(text);
    let document = document.get_ref();
    if let Some(socket) = path_at(document, base, "admin", "socket") {
        return vec![socket];
    }
    let data_dir = data_dir_in(document, base);
    let own = data_dir.join(SOCKET_NAME);
    if of_the_service { vec![SERVICE_SOCKET.into(), own] } else { vec![own] }
}

fn read_bounded(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(CONFIG_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str, of_the_service: bool) -> Vec<String> {
        let found = in_config(text, Path::new("/etc/w"), of_the_service);
        found.iter().map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn the_socket_is_where_the_config_says_even_when_the_rest_is_broken() {
        assert_eq!(at("[admin]\nsocket = \"run/a.sock\"\n", true), ["/etc/w/run/a.sock"]);
        assert_eq!(at("[agent]\ndata_dir = \"/data\"\n", false), ["/data/admin.sock"]);
        let broken =
            "[agent]\ndata_dir = \"/data\"\nid = = 3\nno such thing\n[sources.x]\ntype = 7\n";
        assert_eq!(at(broken, false), ["/data/admin.sock"]);
        let wrong_kind = "agent = 3\n[admin]\nsocket = 7\n";
        assert_eq!(at(wrong_kind, false), ["/var/lib/waystation/admin.sock"]);
    }

    #[test]
    fn the_runtime_directory_of_the_service_counts_for_its_own_config_only() {
        let both = ["/run/waystation/admin.sock", "/var/lib/waystation/admin.sock"];
        assert_eq!(at("", true), both);
        assert_eq!(at("", false), both[1..]);
    }

    #[test]
    fn a_config_that_was_named_and_is_not_there_is_an_error() {
        let failure = candidates(Some(Path::new("/nowhere/w.toml"))).unwrap_err();
        assert!(failure.message.starts_with("cannot read the config /nowhere/w.toml"));
    }
}
