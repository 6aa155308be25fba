//! Sockets in the file system, of the real binary: who may send, whose the file is, and what becomes of it.

use std::io::Write as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;

use super::sockets::{config, delivered, number, settle, texts, wait_for_records};
use super::support::agent::Home;
use super::support::{LONG, wait_for};

fn unix(keys: &str) -> String {
    config(&format!("type = \"unix\"\nsocket = \"{{dir}}/in.sock\"\n{keys}"), "")
}

/// A connection, as soon as the source listens.
pub(crate) fn connect(path: &Path) -> UnixStream {
    wait_for("the source", LONG, || UnixStream::connect(path).ok())
}

/// A socket that sends to the source, as soon as that is there.
pub(crate) fn datagrams(path: &Path) -> UnixDatagram {
    let socket = UnixDatagram::unbound().unwrap();
    wait_for("the source", LONG, || socket.connect(path).ok());
    socket
}

fn inode(path: &Path) -> Option<u64> {
    std::fs::symlink_metadata(path).ok().map(|found| found.ino())
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// Nobody but its owner may send where the config says nothing else, whatever the umask allows; and the file goes with the agent.
#[test]
fn the_file_is_its_owners_alone_unless_the_config_says_otherwise_and_goes_at_the_stop() {
    let home = Home::new(&unix(""));
    let path = home.path("in.sock");
    let agent = home.start(&["run"]);
    connect(&path).write_all(b"one\ntwo").unwrap();
    wait_for_records(&home, 2);
    assert_eq!(mode(&path), 0o600);
    // Another mode is another socket; the old file has gone with the old one.
    home.configure(&unix("mode = \"0660\"\nprotocol = \"datagram\""));
    wait_for("the other mode", LONG, || {
        let found = std::fs::metadata(&path).ok()?;
        (found.permissions().mode() & 0o777 == 0o660).then_some(())
    });
    datagrams(&path).send(b"three\n").unwrap();
    wait_for("the datagram", LONG, || (home.status()?["sources"][0]["head"] == 3).then_some(()));
    settle(&home, agent);
    assert!(!path.exists());
    let found = delivered(&home);
    let payloads: Vec<_> = found.iter().map(|(payload, _)| payload.as_slice()).collect();
    assert_eq!(payloads, [&b"one"[..], b"two", b"three\n"]);
    let pid = format!("\"{}\"", std::process::id());
    for (_, headers) in &found {
        let told = headers.to_string();
        assert!(told.contains("waystation-peer-pid") && told.contains(&pid), "{told}");
        assert!(told.contains("waystation-peer-uid"), "{told}");
    }
}

/// Another user is refused by the kernel; asked for as root, who alone can become another user.
#[test]
fn another_user_cannot_send_where_the_mode_does_not_let_it() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can send as somebody else");
        return;
    }
    let home = Home::new(&unix(""));
    std::fs::set_permissions(home.path(""), std::fs::Permissions::from_mode(0o755)).unwrap();
    let agent = home.start(&["run"]);
    let path = home.path("in.sock");
    drop(connect(&path));
    let send = |text: &str| {
        let script = "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\ns.sendall(sys.argv[2].encode())";
        let mut python = std::process::Command::new("python3");
        std::os::unix::process::CommandExt::uid(&mut python, 65_534);
        let output = python.args(["-c", script]).arg(&path).arg(text).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (sent, said) = send("refused\n");
    assert!(!sent && said.contains("PermissionError"), "{said}");
    home.configure(&unix("mode = \"0666\""));
    wait_for("the other mode", LONG, || {
        std::fs::metadata(&path).ok().filter(|found| found.mode() & 0o777 == 0o666)
    });
    connect(&path).write_all(b"mine\n").unwrap();
    let (sent, said) = send("taken\n");
    assert!(sent, "{said}");
    wait_for("both", LONG, || (home.status()?["sources"][0]["head"] == 2).then_some(()));
    settle(&home, agent);
    let mut found = texts(&home);
    found.sort();
    assert_eq!(found, ["mine", "taken"]);
    let nobody =
        |(_, headers): &&(Vec<u8>, serde_json::Value)| headers.to_string().contains("65534");
    assert_eq!(delivered(&home).iter().filter(nobody).count(), 1);
}

/// What a killed agent has left is taken over, time and again, without anybody's doing.
#[test]
fn a_file_that_a_kill_has_left_is_taken_over() {
    for keys in ["", "protocol = \"datagram\""] {
        let home = Home::new(&unix(keys));
        let path = home.path("in.sock");
        let mut agent = home.start(&["run"]);
        for round in 1..=3 {
            if keys.is_empty() {
                connect(&path).write_all(b"x\n").unwrap();
            } else {
                datagrams(&path).send(b"x").unwrap();
            }
            wait_for("the record", LONG, || {
                (home.status()?["sources"][0]["head"] == round).then_some(())
            });
            let before = inode(&path);
            agent.kill();
            assert!(before.is_some() && inode(&path) == before, "the kill has left it");
            agent = home.start(&["run"]);
        }
        settle(&home, agent);
        assert!(!path.exists());
        assert_eq!(texts(&home).len(), 3);
    }
}

/// A server that lives, and what is no socket, stay as they are; the source says why it does not run, and runs when it can.
#[test]
fn what_is_not_ours_is_not_touched_and_named() {
    let home = Home::new(&unix(""));
    let path = home.path("in.sock");
    let living = UnixListener::bind(&path).unwrap();
    living.set_nonblocking(true).unwrap();
    let before = inode(&path);
    let agent = home.start(&["run"]);
    let reason = |words: &str| {
        wait_for(words, LONG, || {
            let status = home.status()?;
            let source = &status["sources"][0];
            let told = source["trouble"].to_string();
            (source["state"] == "failed" && told.contains(words)).then_some(told)
        })
    };
    let told = reason("another process has the socket");
    assert!(told.contains("in.sock"), "{told}");
    assert_eq!(inode(&path), before);
    assert!(living.accept().is_err(), "nobody has connected to it");

    drop(living);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "a file").unwrap();
    let told = reason("is there and is no socket");
    assert!(told.contains("in.sock"), "{told}");
    assert_eq!(std::fs::read(&path).unwrap(), b"a file");

    std::fs::remove_file(&path).unwrap();
    connect(&path).write_all(b"at last\n").unwrap();
    wait_for_records(&home, 1);
    settle(&home, agent);
    assert_eq!(texts(&home), ["at last"]);
}

/// As `logger` sends it to `/dev/log`, and framed as over TCP.
#[test]
fn syslog_over_a_socket_in_the_file_system_reads_the_head_of_each_message() {
    let syslog = |protocol: &str| {
        config(&format!("type = \"syslog\"\nsocket = \"{{dir}}/log\"\n{protocol}"), "")
    };
    let home = Home::new(&syslog(""));
    let path = home.path("log");
    let agent = home.start(&["run"]);
    let socket = datagrams(&path);
    assert!(std::fs::metadata(&path).unwrap().file_type().is_socket());
    socket.send(b"<13>Oct 11 22:14:15 tag[7]: one\n").unwrap();
    socket.send(b"<165>1 2003-08-24T05:14:15.000003-07:00 h app 8710 ID - two").unwrap();
    wait_for_records(&home, 2);
    home.configure(&syslog("protocol = \"stream\""));
    let mut stream = connect(&path);
    stream.write_all(b"<34>three\n9 <35>four\n").unwrap();
    drop(stream);
    wait_for("the records", LONG, || (home.status()?["sources"][0]["head"] == 4).then_some(()));
    assert_eq!(number(&home, "turned_away"), 0);
    settle(&home, agent);
    let found = delivered(&home);
    let texts: Vec<_> = found.iter().map(|(payload, _)| payload.as_slice()).collect();
    assert_eq!(
        texts,
        [
            &b"<13>Oct 11 22:14:15 tag[7]: one"[..],
            b"<165>1 2003-08-24T05:14:15.000003-07:00 h app 8710 ID - two",
            b"<34>three",
            b"<35>four\n",
        ]
    );
    for ((_, headers), word) in found.iter().zip(["notice", "8710", "crit", "err"]) {
        let told = headers.to_string();
        assert!(told.contains(word) && told.contains("waystation-peer-pid"), "{told}");
    }
}
