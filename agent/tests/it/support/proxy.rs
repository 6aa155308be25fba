//! A proxy in front of a server that delays, swallows and cuts on purpose.
#![allow(dead_code, reason = "not every test binary needs all of it")]
#![allow(clippy::disallowed_methods, reason = "a proxy of a test takes the time by itself")]

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

/// Pieces under way in one direction. A reader that is that far ahead waits.
const PIECES_MAX: usize = 1024;

/// Passes bytes between clients and the server.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    /// What the server says goes nowhere.
    pub(crate) swallows: Arc<AtomicBool>,
    /// What clients say goes nowhere.
    is_deaf: Arc<AtomicBool>,
    is_down: Arc<AtomicBool>,
    sockets: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    /// In front of the server on this port.
    pub(crate) fn start(server: u16) -> Self {
        Self::slow(server, Duration::ZERO)
    }

    /// One behind which everything arrives this much later, in each direction.
    pub(crate) fn slow(server: u16, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Self {
            port: listener.local_addr().unwrap().port(),
            swallows: Arc::default(),
            is_deaf: Arc::default(),
            is_down: Arc::default(),
            sockets: Arc::default(),
        };
        let (swallows, is_down) = (Arc::clone(&proxy.swallows), Arc::clone(&proxy.is_down));
        let (sockets, is_deaf) = (Arc::clone(&proxy.sockets), Arc::clone(&proxy.is_deaf));
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), false) = (client, is_down.load(Ordering::SeqCst)) else {
                    continue;
                };
                let Ok(upstream) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                for socket in [&client, &upstream] {
                    socket.set_nodelay(true).unwrap();
                }
                let clones = [client.try_clone().unwrap(), upstream.try_clone().unwrap()];
                sockets.lock().unwrap().extend(clones);
                let (from, to) = (client.try_clone().unwrap(), upstream.try_clone().unwrap());
                pass(from, to, Arc::clone(&is_deaf), delay);
                pass(upstream, client, Arc::clone(&swallows), delay);
            }
        });
        proxy
    }

    /// The URL of a NATS server behind it.
    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// From now on, or no longer, nothing comes from the server.
    pub(crate) fn swallow(&self, swallows: bool) {
        self.swallows.store(swallows, Ordering::SeqCst);
    }

    /// From now on, or no longer, nothing of what clients say reaches the server.
    pub(crate) fn deafen(&self, is_deaf: bool) {
        self.is_deaf.store(is_deaf, Ordering::SeqCst);
    }

    /// Cuts all connections, and lets nobody in until it is up again.
    pub(crate) fn down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::SeqCst);
        for socket in self.sockets.lock().unwrap().drain(..) {
            // It may be closed already.
            let _closed = socket.shutdown(Shutdown::Both);
        }
    }
}

/// One direction: one thread reads, the other writes when it is time.
fn pass(mut from: TcpStream, mut to: TcpStream, swallows: Arc<AtomicBool>, delay: Duration) {
    let (sender, pieces) = mpsc::sync_channel::<(Instant, Vec<u8>)>(PIECES_MAX);
    std::thread::spawn(move || {
        let mut buffer = [0; 64 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let is_swallowed = swallows.load(Ordering::SeqCst);
            let due = Instant::now() + delay;
            if !is_swallowed && sender.send((due, buffer[..count].to_vec())).is_err() {
                return;
            }
        }
    });
    std::thread::spawn(move || {
        for (due, piece) in pieces {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        let _closed = to.shutdown(Shutdown::Both);
    });
}
