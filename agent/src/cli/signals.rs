//! SIGTERM and SIGINT ask for a stop; a second one ends the process at once, which loses nothing either.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::tasks::Shutdown;

/// What the process is asked by signals.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Takes the signals over. Needs a running runtime.
    pub(super) fn new() -> std::io::Result<Self> {
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self { terminate, interrupt })
    }

    /// Passes the first signal on as a request to stop. Returns at the second one.
    pub(super) async fn watch(mut self, shutdown: Shutdown) {
        self.next().await;
        shutdown.request();
        self.next().await;
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
