//! What the agent asks of the kernel, held against what the unit lets it ask.
//!
//! No systemd runs in the tree, so nothing is refused there. What the agent calls is written down by strace instead, and every call
//! has to be one that `SystemCallFilter=` lets through.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::machine::Machine;
use super::service::{PATIENCE, PAUSE, Unit};

/// Before this line, the trace is of what leads into the tree.
const BEGINS: &str = "execve(\"/usr/bin/waystation\"";

/// Fails when the agent has called what the unit does not let it call, and when it has compiled no plugin.
pub(super) fn check(machine: &Machine, unit: &Unit, trace: &Path) -> Result<()> {
    let text = whole(trace)?;
    let begin = text.find(BEGINS).context("strace has not seen the agent begin")?;
    let traced = text.get(begin..).unwrap_or_default();
    let is_code = |line: &str| line.contains("mprotect(") && line.contains("PROT_EXEC");
    ensure!(traced.lines().any(is_code), "no code was generated: the trial shows nothing");
    ensure!(
        unit.all("MemoryDenyWriteExecute").iter().all(|value| *value == "no"),
        "the unit forbids what the machine code of plugins needs"
    );
    let mut allowed = BTreeSet::new();
    for filter in unit.all("SystemCallFilter") {
        let (groups, is_denial) = match filter.strip_prefix('~') {
            Some(groups) => (groups, true),
            None => (filter, false),
        };
        for group in groups.split_whitespace() {
            let members = members(machine, group)?;
            if is_denial {
                allowed.retain(|call| !members.contains(call));
            } else {
                allowed.extend(members);
            }
        }
    }
    if unit.all("ProtectClock").contains(&"yes") {
        // It has a filter of its own, behind this one.
        let clock = members(machine, "@clock")?;
        allowed.retain(|call| !clock.contains(call));
    }
    let called: BTreeSet<&str> = traced.lines().filter_map(call).collect();
    let refused: Vec<&&str> = called.iter().filter(|call| !allowed.contains(**call)).collect();
    ensure!(refused.is_empty(), "the unit does not let the agent call {refused:?}");
    crate::ui::say(&format!("{} system calls, all let through by the unit", called.len()));
    Ok(())
}

/// The trace, when strace has written all of it: it may still be at that when the agent has ended.
fn whole(trace: &Path) -> Result<String> {
    let begun = Instant::now();
    loop {
        let text = crate::dist::text(trace)?;
        if text.ends_with("+++ exited with 0 +++\n") {
            return Ok(text);
        }
        ensure!(begun.elapsed() < PATIENCE, "strace does not come to an end");
        std::thread::sleep(PAUSE);
    }
}

/// The calls of a word of a filter: of a group of systemd's with those of the groups in it, or the one that is named.
fn members(machine: &Machine, group: &str) -> Result<BTreeSet<String>> {
    if !group.starts_with('@') {
        return Ok(BTreeSet::from([group.to_owned()]));
    }
    let listed = machine.run(&["systemd-analyze", "syscall-filter", "--no-pager", group])?;
    let mut members = BTreeSet::new();
    for word in listed.lines().skip(1).map(str::trim) {
        if word.starts_with('@') {
            members.extend(self::members(machine, word)?);
        } else if !word.is_empty() && !word.starts_with('#') {
            members.insert(word.to_owned());
        }
    }
    ensure!(!members.is_empty(), "systemd knows no group {group}");
    Ok(members)
}

/// The call of a line of strace's, `26907 mprotect(0x7f…, 4096, PROT_READ) = 0` or `26907 <... futex resumed>) = 0`.
fn call(line: &str) -> Option<&str> {
    let (_pid, rest) = line.split_once(' ')?;
    let rest = rest.trim_start();
    let name = match rest.strip_prefix("<... ") {
        Some(resumed) => resumed.split(' ').next()?,
        None => rest.split_once('(')?.0,
    };
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    (!name.is_empty() && name.bytes().all(is_name)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::call;

    #[test]
    fn the_call_of_a_line_is_known_and_signals_are_none() {
        assert_eq!(
            call("12 mprotect(0x7f, 4096, PROT_READ|PROT_EXEC <unfinished ...>"),
            Some("mprotect")
        );
        assert_eq!(call("12 <... futex resumed>) = 0"), Some("futex"));
        assert_eq!(call("12    getpid() = 12"), Some("getpid"));
        assert_eq!(call("12 --- SIGTERM {si_signo=SIGTERM} ---"), None);
        assert_eq!(call("12 +++ exited with 0 +++"), None);
    }
}
