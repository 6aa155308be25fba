//! Keeps memory that nobody uses from being held: by the allocator, and by what only the start has needed.

use std::ffi::c_void;
use std::{fs, ptr};

use rustix::mm::{Advice, madvise};

/// Arenas of glibc's allocator; it would make eight for each core.
#[cfg(target_env = "gnu")]
const ARENAS_MAX: i32 = 2;

/// Bounds the arenas of glibc's allocator: each keeps what its threads have freed, and blocking threads come and go. With two
/// the whole job peaked at 34 instead of 45 MiB, at the same speed. Elsewhere it does nothing. Called once, before any thread
/// is started.
pub fn bound_arenas() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "the allocator has no other way in")]
    // SAFETY: mallopt takes two numbers and no pointer; no other thread runs yet.
    let taken = unsafe { libc::mallopt(libc::M_ARENA_MAX, ARENAS_MAX) };
    #[cfg(target_env = "gnu")]
    if taken != 1 {
        tracing::debug!("The allocator takes no bound on its arenas");
    }
}

/// Unmaps the program's code. What runs next comes back from the page cache, a few pages at a time.
///
/// The start touches most of the code, since the kernel maps what lies around each page, and a mapped page of a program is the
/// last thing that it takes back when memory is short. What an agent runs after its start is a third of that.
pub fn unmap_code() {
    let (Ok(program), Ok(maps)) =
        (fs::read_link("/proc/self/exe"), fs::read_to_string("/proc/self/maps"))
    else {
        return;
    };
    for (start, bytes) in maps.lines().filter_map(|line| code(line, &program.to_string_lossy())) {
        let start = ptr::with_exposed_provenance_mut::<c_void>(start);
        #[expect(unsafe_code, reason = "for pages that hold the code that runs")]
        // SAFETY: the mapping is of a file and was never written (it cannot be), so its pages come back as they were.
        let unmapped = unsafe { madvise(start, bytes, Advice::LinuxDontNeed) };
        if let Err(error) = unmapped {
            tracing::debug!(%error, "The program's code stays mapped");
        }
    }
}

/// Address and bytes of a line of `/proc/self/maps` that is code of this program: `START-END PERMISSIONS OFFSET DEVICE INODE PATH`.
fn code(line: &str, program: &str) -> Option<(usize, usize)> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let is_code = fields.next()? == "r-xp" && fields.nth(3)?.trim_start() == program;
    let number = |text| usize::from_str_radix(text, 16).ok();
    let (start, end) = (number(start)?, number(end)?);
    is_code.then_some((start, end.checked_sub(start)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_code_of_this_program_is_meant() {
        let line = |permissions: &str, path: &str| {
            format!(
                "5581e000-5582f000 {permissions} 00021000 fd:00 1234                       {path}"
            )
        };
        assert_eq!(
            code(&line("r-xp", "/usr/bin/a b"), "/usr/bin/a b"),
            Some((0x5581_e000, 0x11000))
        );
        for other in [
            line("rwxp", "/usr/bin/a b"),
            line("r--p", "/usr/bin/a b"),
            line("r-xp", "/usr/lib/libc.so.6"),
            line("r-xp", "[vdso]"),
            "7ffd1-7ffd2 r-xp 0 00:00 0".to_owned(),
            String::new(),
        ] {
            assert_eq!(code(&other, "/usr/bin/a b"), None, "{other}");
        }
    }

    #[test]
    fn the_program_runs_on_without_its_pages() {
        let program = fs::read_link("/proc/self/exe").unwrap();
        let resident = || {
            let maps = fs::read_to_string("/proc/self/smaps").unwrap();
            let lines =
                maps.lines().skip_while(|line| code(line, &program.to_string_lossy()).is_none());
            let line = lines.into_iter().find(|line| line.starts_with("Rss:")).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
        };
        // What looking takes is mapped both times.
        resident();
        let before = resident();
        unmap_code();
        let after = resident();
        assert!(after < before, "{after} KiB after, {before} before");
    }
}
