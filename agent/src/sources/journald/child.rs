//! journalctl as a child process: started, read without ever waiting long, and gone with whoever holds it.

use std::io;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::error::JournaldError;
use crate::limits::JOURNALD_SAID_BYTES_MAX;

/// What a look at the output has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Output {
    /// So many bytes.
    Bytes(usize),
    /// Nothing, for as long as was waited.
    Nothing,
    /// Its end.
    End,
}

/// A running journalctl. Dropping it kills it and waits for its end, which blocks for a moment.
#[derive(Debug)]
pub(super) struct Journalctl {
    child: Child,
    stdout: ChildStdout,
    /// `None` once it has ended.
    stderr: Option<ChildStderr>,
    said: Vec<u8>,
}

impl Journalctl {
    pub(super) fn start(program: &Path, arguments: &[String]) -> Result<Self, JournaldError> {
        let started = Command::new(program)
            .args(arguments)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child =
            started.map_err(|error| JournaldError::Start { program: program.to_owned(), error })?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let stdout = stdout.expect("it was asked for above");
        Ok(Self { child, stdout, stderr, said: Vec::new() })
    }

    /// Reads what is there, or waits so long for something to come.
    pub(super) fn read(&mut self, buffer: &mut [u8], wait: &Timespec) -> io::Result<Output> {
        let (has_output, has_said) = {
            let mut fds = vec![PollFd::new(&self.stdout, PollFlags::IN)];
            fds.extend(self.stderr.as_ref().map(|said| PollFd::new(said, PollFlags::IN)));
            match poll(&mut fds, Some(wait)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let has = |fd: Option<&PollFd<'_>>| fd.is_some_and(|fd| !fd.revents().is_empty());
            (has(fds.first()), has(fds.get(1)))
        };
        if has_said {
            self.listen()?;
        }
        if !has_output {
            return Ok(Output::Nothing);
        }
        match rustix::io::read(&self.stdout, buffer) {
            Ok(0) => Ok(Output::End),
            Ok(count) => Ok(Output::Bytes(count)),
            Err(Errno::INTR | Errno::AGAIN) => Ok(Output::Nothing),
            Err(error) => Err(error.into()),
        }
    }

    /// What it has said so far, which it may go on with.
    pub(super) fn said(&self) -> String {
        String::from_utf8_lossy(&self.said).trim().replace('\n', "; ")
    }

    /// Takes what it says, of which the beginning is kept: it must not wait for us to hear it.
    fn listen(&mut self) -> io::Result<()> {
        let Some(stderr) = &self.stderr else { return Ok(()) };
        let mut block = [0; 1024];
        match rustix::io::read(stderr, &mut block) {
            Ok(0) => self.stderr = None,
            Ok(count) => {
                let room = JOURNALD_SAID_BYTES_MAX.saturating_sub(self.said.len()).min(count);
                self.said.extend_from_slice(block.get(..room).unwrap_or_default());
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Its output has ended: whether it has done what it was asked for.
    pub(super) fn has_succeeded(&mut self) -> bool {
        self.exit().is_ok_and(|status| status.is_some_and(|status| status.success()))
    }

    /// How it has ended; it closes its output just before it does.
    fn exit(&mut self) -> io::Result<Option<ExitStatus>> {
        for _ in 0..LAST_LOOKS {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            std::thread::sleep(LAST_LOOKS_EVERY);
        }
        Ok(None)
    }

    /// Its output has ended: why, as far as it says. One that lives on without output is ended.
    pub(super) fn ended(mut self) -> JournaldError {
        while self.stderr.is_some() {
            let stderr = self.stderr.as_ref().map(|said| PollFd::new(said, PollFlags::IN));
            let mut fds: Vec<_> = stderr.into_iter().collect();
            let ready = poll(&mut fds, Some(&LAST_WORDS)).is_ok_and(|count| count > 0);
            drop(fds);
            if !ready || self.listen().is_err() {
                break;
            }
        }
        let status = match self.exit() {
            Ok(Some(status)) => status.to_string(),
            Ok(None) => "its output was closed".to_owned(),
            Err(error) => error.to_string(),
        };
        let said = self.said();
        let hint = if said.contains("ermission") { HINT } else { "" };
        let colon = if said.is_empty() { "" } else { ": " };
        JournaldError::Ended { status, said: format!("{colon}{said}{hint}") }
    }
}

/// How long it is listened to after its output has ended.
const LAST_WORDS: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
const LAST_LOOKS: u32 = 10;
const LAST_LOOKS_EVERY: Duration = Duration::from_millis(20);
const HINT: &str = "; put the user of the agent into the group systemd-journal";

impl Drop for Journalctl {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ended = self.child.kill();
        if let Err(error) = self.child.wait() {
            tracing::debug!(%error, "The end of journalctl cannot be waited for");
        }
    }
}
