//! SIGKILL under load, again and again: what is missing is the end of what was sent and no more than is stated, and nothing is
//! there twice.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::net::UdpSocket;
use std::time::Duration;

use super::sockets::{config, connect, number, settle, texts};
use super::support::agent::Home;
use super::support::{LONG, free_port, seed, size, wait_for};
use super::unix_sockets;

/// Bytes of one line, with its newline.
const LINE: usize = 300;
/// What the kernel of the sender has not sent, over TCP.
const SEND_BYTES: usize = 128 * 1024;
/// What the module says of the agent: the connection, the run, the journal.
const IN_THE_AGENT: usize = (16 + 64) * 1024 + 640 * 1024 + 4 * 1024 * 1024;

/// How lines come to the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Tcp,
    Udp,
    Stream,
    Datagram,
    SyslogTcp,
    SyslogDatagram,
}

type Send = Box<dyn FnMut(&[u8]) -> io::Result<()> + std::marker::Send>;

impl Way {
    fn config(self, port: u16) -> String {
        let source = match self {
            Self::Tcp => format!("type = \"tcp\"\nlisten = \"127.0.0.1:{port}\""),
            Self::Udp => format!("type = \"udp\"\nlisten = \"127.0.0.1:{port}\""),
            Self::Stream => "type = \"unix\"\nsocket = \"{dir}/s\"".to_owned(),
            Self::Datagram => {
                "type = \"unix\"\nprotocol = \"datagram\"\nsocket = \"{dir}/s\"".to_owned()
            }
            Self::SyslogTcp => {
                format!("type = \"syslog\"\nprotocol = \"tcp\"\nlisten = \"127.0.0.1:{port}\"")
            }
            Self::SyslogDatagram => "type = \"syslog\"\nsocket = \"{dir}/s\"".to_owned(),
        };
        config(&source, "")
    }

    /// Waits for the source; gives what sends one line, until the other end is no more.
    fn sender(self, home: &Home, port: u16) -> Send {
        let path = home.path("s");
        match self {
            Self::Tcp | Self::SyslogTcp => {
                let mut stream = connect(port);
                socket2::SockRef::from(&stream).set_send_buffer_size(SEND_BYTES / 2).unwrap();
                Box::new(move |line| stream.write_all(line))
            }
            Self::Stream => {
                let mut stream = unix_sockets::connect(&path);
                Box::new(move |line| stream.write_all(line))
            }
            Self::Datagram | Self::SyslogDatagram => {
                let socket = unix_sockets::datagrams(&path);
                Box::new(move |line| socket.send(line).map(drop))
            }
            Self::Udp => {
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                socket.connect(("127.0.0.1", port)).unwrap();
                let listens = || {
                    let table = std::fs::read_to_string("/proc/net/udp").unwrap();
                    table.contains(&format!(":{port:04X} 00000000:0000")).then_some(())
                };
                wait_for("the source", LONG, listens);
                Box::new(move |line| socket.send(line).map(drop))
            }
        }
    }

    /// What may be missing of what was sent, in bytes.
    fn bound(self) -> usize {
        let limit = |name: &str| -> usize {
            let text = std::fs::read_to_string(format!("/proc/sys/net/{name}")).unwrap();
            text.trim().parse().unwrap()
        };
        IN_THE_AGENT
            + match self {
                Self::Tcp | Self::SyslogTcp => 512 * 1024 + SEND_BYTES,
                Self::Udp => 8 * 1024 * 1024,
                Self::Stream => limit("core/wmem_default"),
                Self::Datagram | Self::SyslogDatagram => (limit("unix/max_dgram_qlen") + 1) * LINE,
            }
    }

    fn line(self, round: usize, number: usize) -> String {
        let head = match self {
            Self::SyslogTcp | Self::SyslogDatagram => "<13>1 - - - - - - ",
            _ => "",
        };
        let start = format!("{head}{round} {number} ");
        format!("{start:x<0$}\n", LINE - 1)
    }
}

/// Round and number of a line.
fn parse(line: &str) -> (usize, usize) {
    let line = line.trim_start_matches("<13>1 - - - - - - ");
    let mut words = line.split(' ').map(|word| word.parse().unwrap());
    (words.next().unwrap(), words.next().unwrap())
}

fn kill_again_and_again(way: Way) {
    let kills = size("WAYSTATION_TEST_KILLS", 20).min(100);
    let mut random = fastrand::Rng::with_seed(seed());
    let port = free_port();
    let home = Home::new(&way.config(port));
    let mut sent = Vec::new();
    for round in 0..kills {
        let mut agent = home.start(&["run"]);
        let mut send = way.sender(&home, port);
        let sender = std::thread::spawn(move || {
            let mut number = 0;
            while send(way.line(round, number).as_bytes()).is_ok() {
                number += 1;
                // A load that the machine carries, so that a datagram of UDP has somebody who takes it.
                if number % 64 == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            number
        });
        wait_for("records", LONG, || (number(&home, "records") > 100).then_some(()));
        std::thread::sleep(Duration::from_millis(random.u64(0..150)));
        agent.kill();
        sent.push(sender.join().unwrap());
    }
    let agent = home.start(&["run"]);
    drop(way.sender(&home, port));
    settle(&home, agent);
    let mut found: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for line in texts(&home) {
        let (round, number) = parse(&line);
        found.entry(round).or_default().push(number);
    }
    let (mut worst, mut holes, mut records) = (0, 0, 0);
    for (round, sent) in sent.into_iter().enumerate() {
        let found = &found[&round];
        assert!(found.is_sorted_by(|one, two| one < two), "order of round {round}, or one twice");
        let end = found.last().unwrap() + 1;
        holes += end - found.len();
        records += found.len();
        let missing = (sent - end) * LINE;
        worst = worst.max(missing);
        assert!(missing <= way.bound(), "{missing} bytes of {sent} lines are missing");
    }
    // In the middle only the kernel drops, and only datagrams of UDP.
    assert!(holes == 0 || way == Way::Udp, "{holes} lines are missing in the middle");
    eprintln!(
        "{way:?}: {kills} kills, {records} records, none twice; at most {worst} bytes were lost, the bound is {}; {holes} dropped before",
        way.bound()
    );
}

#[test]
fn tcp_loses_no_more_than_is_stated_and_has_nothing_twice() {
    kill_again_and_again(Way::Tcp);
}

#[test]
fn udp_loses_no_more_than_is_stated_and_has_nothing_twice() {
    kill_again_and_again(Way::Udp);
}

#[test]
fn a_unix_stream_loses_no_more_than_is_stated_and_has_nothing_twice() {
    kill_again_and_again(Way::Stream);
}

#[test]
fn unix_datagrams_lose_no_more_than_is_stated_and_have_nothing_twice() {
    kill_again_and_again(Way::Datagram);
}

#[test]
fn syslog_over_tcp_loses_no_more_than_is_stated_and_has_nothing_twice() {
    kill_again_and_again(Way::SyslogTcp);
}

#[test]
fn syslog_over_unix_datagrams_loses_no_more_than_is_stated_and_has_nothing_twice() {
    kill_again_and_again(Way::SyslogDatagram);
}
