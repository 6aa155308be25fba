//! Accepts connections of clients under limits: so many in all, and so many from one client (an address, or a process of this host).

use std::collections::HashMap;
use std::hash::Hash;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

use crate::tasks::{Shutdown, TaskGroup};

/// Wait after a connection could not be accepted, most likely for want of file handles.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Connections that are open at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientLimits {
    /// Served, in all.
    pub all: usize,
    /// Served, from one client.
    pub per_client: usize,
    /// Over these limits, and told so; more are closed without a word.
    pub turned_away: usize,
    /// How long those that are open may take to end when the listener stops.
    pub stop: Duration,
}

/// Why a connection is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// Its client has too many.
    Client,
    /// There are too many.
    All,
}

/// Where connections come from.
pub trait Accept: Send {
    /// A connection.
    type Stream: Send;
    /// What its limit is counted by.
    type Client: Copy + Eq + Hash + Send;

    /// The next connection.
    ///
    /// # Cancel safety
    /// Can be dropped; no connection is lost.
    fn next(&self) -> impl Future<Output = io::Result<(Self::Stream, Self::Client)>> + Send;
}

impl Accept for TcpListener {
    type Stream = TcpStream;
    type Client = IpAddr;

    async fn next(&self) -> io::Result<(TcpStream, IpAddr)> {
        let (stream, peer) = self.accept().await?;
        Ok((stream, peer.ip().to_canonical()))
    }
}

/// Accepts until asked to stop, then gives the connections that are open their time. `connection` makes what serves one, or
/// tells it that there is no room; `None` closes it.
pub async fn accept<L, F>(
    listener: L,
    limits: ClientLimits,
    shutdown: Shutdown,
    mut connection: impl FnMut(L::Stream, L::Client, Option<Full>) -> Option<F>,
) where
    L: Accept,
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = TaskGroup::default();
    let mut open = Open::new(limits);
    let mut accept_failing = false;
    // One that panics leaves no result, and must be counted out all the same.
    let mut tickets: HashMap<String, Ticket<L::Client>> = HashMap::new();
    let mut number = 0_u64;
    loop {
        tokio::select! {
            () = shutdown.requested() => break,
            Some(ended) = connections.next_ended(), if !connections.is_empty() => {
                if let Some(ticket) = tickets.remove(&ended.name) {
                    open.leave(ticket);
                }
            }
            accepted = listener.next() => match accepted {
                Ok((stream, client)) => {
                    accept_failing = false;
                    let Some(ticket) = open.enter(client) else { continue };
                    let Some(serving) = connection(stream, client, ticket.full) else {
                        open.leave(ticket);
                        continue;
                    };
                    number += 1;
                    let name = format!("connection {number}");
                    tickets.insert(name.clone(), ticket);
                    connections.spawn(name, tracing::Span::current(), serving);
                }
                Err(error) => {
                    if !std::mem::replace(&mut accept_failing, true) {
                        tracing::warn!(%error, "Connection of a client cannot be accepted");
                    }
                    shutdown.sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    let _cut_off = connections.drain(limits.stop).await;
}

/// A connection that was counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticket<C> {
    client: C,
    full: Option<Full>,
}

/// Connections that are open.
struct Open<C> {
    limits: ClientLimits,
    of: HashMap<C, usize>,
    served: usize,
    turned_away: usize,
}

impl<C: Copy + Eq + Hash> Open<C> {
    fn new(limits: ClientLimits) -> Self {
        Self { limits, of: HashMap::new(), served: 0, turned_away: 0 }
    }

    /// Counts a connection in; `None` when there is no room even to say no.
    fn enter(&mut self, client: C) -> Option<Ticket<C>> {
        let of_client = self.of.get(&client).copied().unwrap_or_default();
        let full = if of_client >= self.limits.per_client {
            Some(Full::Client)
        } else if self.served >= self.limits.all {
            Some(Full::All)
        } else {
            None
        };
        match full {
            None => {
                self.served += 1;
                *self.of.entry(client).or_default() += 1;
            }
            Some(_) if self.turned_away >= self.limits.turned_away => return None,
            Some(_) => self.turned_away += 1,
        }
        Some(Ticket { client, full })
    }

    fn leave(&mut self, Ticket { client, full }: Ticket<C>) {
        if full.is_some() {
            self.turned_away -= 1;
            return;
        }
        self.served -= 1;
        if let Some(count) = self.of.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.of.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_leaves_room_for_others_and_all_of_them_are_bounded() {
        let client = |number: u8| IpAddr::from([10, 0, 0, number]);
        let limits = ClientLimits { all: 5, per_client: 3, turned_away: 2, stop: Duration::ZERO };
        let mut open = Open::new(limits);
        let enter =
            |open: &mut Open<IpAddr>, number| open.enter(client(number)).map(|one| one.full);
        for _ in 0..3 {
            assert_eq!(enter(&mut open, 1), Some(None));
        }
        assert_eq!(enter(&mut open, 1), Some(Some(Full::Client)));
        for _ in 0..2 {
            assert_eq!(enter(&mut open, 2), Some(None));
        }
        assert_eq!(enter(&mut open, 3), Some(Some(Full::All)));
        assert_eq!(enter(&mut open, 3), None);
        open.leave(Ticket { client: client(3), full: Some(Full::All) });
        open.leave(Ticket { client: client(1), full: None });
        assert_eq!(enter(&mut open, 3), Some(None));
        for _ in 0..2 {
            open.leave(Ticket { client: client(1), full: None });
        }
        assert!(!open.of.contains_key(&client(1)));
    }
}
