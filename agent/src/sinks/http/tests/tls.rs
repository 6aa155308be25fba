//! Certificates and authorities, also replaced ones.

use super::server::status;
use super::*;
use crate::error_chain::Chain;
use crate::net::certificates::{Authority, replace};

/// A folder with the files of a `tls` table, and the table.
struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn put(&self, name: &str, content: &str) {
        replace(&self.folder.path().join(name), content);
    }

    fn table(&self, keys: &[&str]) -> String {
        let folder = self.folder.path().display();
        let pairs: Vec<_> = keys.iter().map(|key| format!("{key} = \"{folder}/{key}\"")).collect();
        format!("tls = {{ {} }}", pairs.join(", "))
    }
}

#[tokio::test]
async fn a_trusted_server_is_spoken_to_over_http_2() {
    let authority = Authority::new();
    let server = Server::start_tls(authority.server(None), |_| status(200));
    let files = Files::new();
    files.put("ca", &authority.pem);
    let sink = fixture(&server.url("/"), &files.table(&["ca"]));
    for _ in 0..3 {
        sink.delivers(b"one").await;
    }
    let sent = server.sent();
    assert_eq!(sent[0].version, hyper::Version::HTTP_2);
    assert_eq!((&sent[2].body[..], server.connections()), (&b"one\n"[..], 1));
    // `[net] ca` counts beside the host's own.
    let net = NetConfig { proxy: None, ca: Some(files.folder.path().join("ca")) };
    fixture_in(&net, &server.url("/"), "").delivers(b"one").await;
}

#[tokio::test]
async fn a_server_that_is_not_trusted_is_unreachable_and_the_way_out_is_named() {
    let (trusted, other) = (Authority::new(), Authority::new());
    let server = Server::start_tls(other.server(None), |_| status(200));
    let files = Files::new();
    files.put("ca", &trusted.pem);
    let sink = fixture(&server.url("/"), &files.table(&["ca"]));
    let error = sink.deliver(&[b"1"]).await.unwrap_err();
    assert_eq!((error.class, error.doubtful), (Class::Unreachable, false));
    assert!(error.reason.contains("UnknownIssuer; name its authority with `tls.ca`"), "{error}");
    assert!(server.sent().is_empty());
    // The file is replaced, and the very next attempt goes by it.
    files.put("ca", &format!("{}{}", trusted.pem, other.pem));
    sink.delivers(b"1").await;
}

/// In TLS 1.3 the refusal comes after the handshake, when the request is on its way already.
#[tokio::test]
async fn a_client_without_the_certificate_that_is_wanted_is_unreachable() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let server = Server::start_tls(authority.server(Some(&clients)), |_| status(200));
    let files = Files::new();
    files.put("ca", &authority.pem);
    let foreign = Authority::new().pair();
    files.put("certificate", &foreign.certificate);
    files.put("key", &foreign.key);
    for keys in [&["ca"][..], &["ca", "certificate", "key"]] {
        let sink = fixture(&server.url("/"), &files.table(keys));
        let error = sink.deliver(&[b"1"]).await.unwrap_err();
        assert_eq!((error.class, error.answered), (Class::Unreachable, false), "{error}");
    }
    assert!(server.sent().is_empty());
    // One that is let in and broken off later is another matter.
    let own = clients.pair();
    files.put("certificate", &own.certificate);
    files.put("key", &own.key);
    let server = Server::start_tls(authority.server(Some(&clients)), |sent| match sent.number {
        0 => status(200),
        _ => Reply::Close,
    });
    let sink = fixture(&server.url("/"), &files.table(&["ca", "certificate", "key"]));
    sink.delivers(b"1").await;
    let error = sink.deliver(&[b"2"]).await.unwrap_err();
    assert_eq!((error.class, error.answered), (Class::Retryable, false), "{error}");
}

#[tokio::test]
async fn files_that_are_missing_or_wrong_are_told_by_name_and_needed_only_then() {
    let authority = Authority::new();
    let server = Server::start_tls(authority.server(None), |_| status(200));
    let files = Files::new();
    let sink = fixture(&server.url("/"), &files.table(&["ca", "certificate", "key"]));
    let (pair, other) = (authority.pair(), authority.pair());
    for (name, content, expected) in [
        ("ca", "", "ca: No such file"),
        ("ca", "nothing", "ca holds no certificate in PEM form"),
        ("certificate", &authority.pem, "certificate: No such file"),
        ("key", "", "key holds no private key in PEM form"),
        ("key", &other.key, "does not go with the certificate"),
    ] {
        // Each row begins with what the one before has left.
        match expected {
            "ca: No such file" => {}
            "certificate: No such file" => files.put("ca", content),
            _ => files.put(name, content),
        }
        if name == "key" {
            files.put("certificate", &pair.certificate);
        }
        let error = sink.deliver(&[b"1"]).await.unwrap_err();
        let text = Chain(&error).to_string();
        assert_eq!(error.class, Class::Unreachable);
        assert!(text.contains(expected), "{expected}: {text}");
    }
    files.put("key", &pair.key);
    sink.delivers(b"1").await;
}

/// The certificate is replaced by rename, the key a while later: what lives goes on, new connections show the old pair until
/// the new one is whole, and never half of it.
#[tokio::test]
async fn d_15_a_pair_that_is_replaced_in_two_steps_is_taken_up_whole() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let server = Server::start_tls(authority.server(Some(&clients)), |_| status(200));
    let (old, new) = (clients.pair(), clients.pair());
    let files = Files::new();
    files.put("ca", &authority.pem);
    files.put("certificate", &old.certificate);
    files.put("key", &old.key);
    let sink = fixture(&server.url("/"), &files.table(&["ca", "certificate", "key"]));
    let shown = || server.sent().last().unwrap().peer.clone().unwrap();
    sink.delivers(b"1").await;
    assert_eq!(shown(), old.certificate_der());
    files.put("certificate", &new.certificate);
    // The session that lives stays.
    sink.delivers(b"2").await;
    assert_eq!((shown(), server.connections()), (old.certificate_der(), 1));
    // A new one between the two steps shows the pair that is whole.
    server.cut();
    deliver_over_a_new_connection(&sink, b"3").await;
    assert_eq!((shown(), server.connections()), (old.certificate_der(), 2));
    files.put("key", &new.key);
    server.cut();
    deliver_over_a_new_connection(&sink, b"4").await;
    assert_eq!((shown(), server.connections()), (new.certificate_der(), 3));
}

/// The first attempt may still meet the connection that was cut.
async fn deliver_over_a_new_connection(sink: &Fixture, payload: &[u8]) {
    if let Err(error) = sink.deliver(&[payload]).await {
        assert_eq!(error.class, Class::Retryable, "{error}");
        sink.delivers(payload).await;
    }
}
