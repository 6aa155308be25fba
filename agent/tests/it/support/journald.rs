//! Real files of journald, written by `systemd-journal-remote`, which takes what journald would take.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

/// One boot, and another one.
pub(crate) const BOOTS: [&str; 2] =
    ["0f9a0f9a0f9a0f9a0f9a0f9a0f9a0f91", "0f9a0f9a0f9a0f9a0f9a0f9a0f9a0f92"];

const PROGRAM: &str = "/lib/systemd/systemd-journal-remote";

/// Somebody who writes to one file of a folder. Dropping it ends the writing; the file stays.
pub(crate) struct Journald {
    child: Child,
    input: Option<ChildStdin>,
    /// Entries so far, of which each is a microsecond after the one before.
    entries: u64,
}

impl Journald {
    /// Writes to `folder/NAME.journal`, behind what is there; the first entry is that of this number.
    pub(crate) fn write(folder: &Path, name: &str, first: u64) -> Self {
        let program = PathBuf::from(PROGRAM);
        assert!(
            program.exists(),
            "{PROGRAM} is missing: run `cargo xtask test`, which installs it"
        );
        let mut child = Command::new(program)
            .arg("--split-mode=none")
            .arg(format!("--output={}", folder.join(name).with_extension("journal").display()))
            .arg("-")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        Self { child, input, entries: first }
    }

    /// One entry of a boot; a field whose value holds a newline or is no text goes as bytes.
    pub(crate) fn entry(&mut self, boot: usize, fields: &[(&str, &[u8])]) {
        let mut bytes = Vec::new();
        let now = 1_700_000_000_000_000 + self.entries;
        let head = [
            ("__REALTIME_TIMESTAMP", now.to_string()),
            ("__MONOTONIC_TIMESTAMP", (1_000_000 + self.entries).to_string()),
            ("_BOOT_ID", BOOTS[boot].to_owned()),
        ];
        for (name, value) in &head {
            push(&mut bytes, name, value.as_bytes());
        }
        for (name, value) in fields {
            push(&mut bytes, name, value);
        }
        bytes.push(b'\n');
        self.entries += 1;
        self.input.as_mut().unwrap().write_all(&bytes).unwrap();
    }

    /// One entry of the first boot with this message.
    pub(crate) fn message(&mut self, message: &str) {
        self.entry(0, &[("MESSAGE", message.as_bytes()), ("PRIORITY", b"6")]);
    }

    /// Waits until everything is in the file.
    pub(crate) fn end(mut self) {
        drop(self.input.take());
        assert!(self.child.wait().unwrap().success());
    }
}

fn push(bytes: &mut Vec<u8>, name: &str, value: &[u8]) {
    bytes.extend(name.as_bytes());
    if value.contains(&b'\n') || std::str::from_utf8(value).is_err() {
        bytes.push(b'\n');
        bytes.extend((value.len() as u64).to_le_bytes());
    } else {
        bytes.push(b'=');
    }
    bytes.extend(value);
    bytes.push(b'\n');
}

impl Drop for Journald {
    fn drop(&mut self) {
        drop(self.input.take());
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
