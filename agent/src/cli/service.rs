//! What a service manager is told, over the socket that `$NOTIFY_SOCKET` names: that the agent is ready, that it is alive,
//! that it stops. Without that variable nobody is told anything.
//!
//! Alive means more than that there is a process. [`Service::watch`] is polled by the task that the supervisor's loop runs in,
//! so it says nothing while that loop is stuck in a step; its timer is driven by the runtime's threads, so it says nothing when
//! these are all stuck; and before each word it takes the agent's status, so it says nothing when a part does not let go of a
//! lock. A disk or a destination that hangs is no reason to be killed: they are waited for elsewhere.
//!
//! A socket that nobody reads is full after a few messages, and then blocks whoever sends. So a thread of its own sends, and the
//! agent never waits for it.

use std::cell::Cell;
use std::convert::Infallible;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use sd_notify::NotifyState;

use crate::tasks::Shutdown;

/// Messages that wait for a service manager which does not read; further ones are left out.
const UNREAD_MAX: usize = 4;

type Message = Vec<NotifyState<'static>>;

/// The service manager, if there is one.
pub(super) struct Service {
    /// Silence that it takes for a fault.
    patience: Option<Duration>,
    messages: Option<SyncSender<Message>>,
    is_unheard: Cell<bool>,
}

impl Service {
    /// The one that has started this process.
    pub(super) fn of_environment() -> Self {
        let messages =
            crate::config::process_environment("NOTIFY_SOCKET").and_then(|_| begin_to_send());
        Self { patience: sd_notify::watchdog_enabled(), messages, is_unheard: Cell::new(false) }
    }

    /// Sources are read, and the admin socket answers.
    pub(super) fn ready(&self) {
        self.tell(vec![NotifyState::Ready, NotifyState::Status("Running")]);
    }

    /// The agent has done what it can and waits for somebody to make room; whoever has started it does not have to wait, too.
    pub(super) fn waits_for_room(&self) {
        let status = NotifyState::Status("Waiting for room on the volume of the data directory");
        self.tell(vec![NotifyState::Ready, status]);
    }

    /// Says that the agent is alive, twice in the time after which the service manager would take it for dead, and once that it
    /// stops. `look` returns only when no part is stuck. Never ends; cancel safe.
    pub(super) async fn watch(&self, shutdown: &Shutdown, look: impl Fn()) -> Infallible {
        let mut is_stopping = false;
        let mut beat = self.patience.map(|patience| {
            // An interval of zero is none.
            tokio::time::interval((patience / 2).max(Duration::from_millis(1)))
        });
        loop {
            let next = async {
                match &mut beat {
                    Some(beat) => {
                        beat.tick().await;
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = shutdown.requested(), if !is_stopping => {
                    is_stopping = true;
                    self.tell(vec![NotifyState::Stopping, NotifyState::Status("Stopping")]);
                }
                () = next => {
                    look();
                    self.tell(vec![NotifyState::Watchdog]);
                }
            }
        }
    }

    fn tell(&self, message: Message) {
        let Some(messages) = &self.messages else { return };
        let is_unheard = messages.try_send(message).is_err();
        if !self.is_unheard.replace(is_unheard) && is_unheard {
            tracing::warn!("The service manager does not read what it is told");
        }
    }
}

/// Starts the thread that sends. It ends with the process, or when there is nothing more to say.
fn begin_to_send() -> Option<SyncSender<Message>> {
    let (messages, to_send) = sync_channel(UNREAD_MAX);
    let thread = thread::Builder::new().name("service-manager".to_owned());
    match thread.spawn(move || send(&to_send)) {
        Ok(_) => Some(messages),
        Err(error) => {
            tracing::warn!(%error, "The service manager is told nothing: there is no thread for it");
            None
        }
    }
}

fn send(messages: &Receiver<Message>) {
    let mut is_unheard = false;
    for message in messages {
        let sent = sd_notify::notify(&message);
        if let Err(error) = &sent
            && !is_unheard
        {
            tracing::warn!(%error, "The service manager cannot be told how the agent is");
        }
        is_unheard = sent.is_err();
    }
}
