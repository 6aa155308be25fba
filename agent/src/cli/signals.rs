//! SIGTERM and SIGINT ask for a stop; a second one ends the process at once, which loses nothing either. SIGHUP asks for a
//! reload.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::tasks::Shutdown;

/// Two signals this close to each other are one wish: a shell and a service manager both signal the whole group.
const ONE_WISH: Duration = Duration::from_secs(1);

/// What the process is asked by signals.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// Takes the signals over. Needs a running runtime.
    pub(super) fn new() -> std::io::Result<Self> {
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        let hangup = signal(SignalKind::hangup())?;
        Ok(Self { terminate, interrupt, hangup })
    }

    /// Passes the first signal on as a request to stop, and each SIGHUP as one for a reload. Returns at the second one.
    pub(super) async fn watch(mut self, shutdown: Shutdown, reload: impl Fn()) {
        self.next(&reload).await;
        shutdown.request();
        let settled = tokio::time::sleep(ONE_WISH);
        tokio::pin!(settled);
        loop {
            tokio::select! {
                biased;
                () = &mut settled => break,
                () = self.next(&reload) => {}
            }
        }
        self.next(&reload).await;
    }

    async fn next(&mut self, reload: &impl Fn()) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hangup.recv() => reload(),
            }
        }
    }
}
