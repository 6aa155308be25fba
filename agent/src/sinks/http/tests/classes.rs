//! One test a row of the table in the module's doc.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};

use super::server::{answer, closed_port, raw, status};
use super::*;

/// Class, answered, doubtful.
fn seen(error: &SinkError) -> (Class, bool, bool) {
    (error.class, error.answered, error.doubtful)
}

const UNREACHABLE: (Class, bool, bool) = (Class::Unreachable, false, false);
const SILENT: (Class, bool, bool) = (Class::Unreachable, false, true);
const RETRYABLE: (Class, bool, bool) = (Class::Retryable, true, false);
const BROKEN: (Class, bool, bool) = (Class::Retryable, false, false);
const REJECTED: (Class, bool, bool) = (Class::Rejected, true, false);

#[tokio::test]
async fn a_port_that_refuses_is_unreachable() {
    let fixture = fixture(&format!("http://127.0.0.1:{}/in?t=CANARY", closed_port()), "");
    for error in [fixture.deliver(&[b"1"]).await.unwrap_err(), fixture.probe().await.unwrap_err()] {
        assert_eq!(seen(&error), UNREACHABLE, "{error}");
        assert!(error.reason.contains("Connection refused"), "{error}");
        assert!(error.reason.contains("http://127.0.0.1:"), "{error}");
        assert!(!format!("{error:?}").contains("CANARY"), "{error:?}");
    }
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_unreachable() {
    let error = fixture("http://nowhere.invalid/", "").deliver(&[b"1"]).await.unwrap_err();
    assert_eq!(seen(&error), UNREACHABLE, "{error}");
}

#[tokio::test]
async fn a_server_without_tls_where_tls_is_wanted_is_unreachable() {
    let server = always(status(200));
    let url = format!("https://127.0.0.1:{}/", server.port);
    let error = fixture(&url, "").deliver(&[b"1"]).await.unwrap_err();
    assert_eq!(seen(&error), UNREACHABLE, "{error}");
}

/// The server takes the connection and never says a word in TLS, which is part of connecting.
#[tokio::test]
async fn a_connect_timeout_is_unreachable_and_not_doubtful() {
    let port = raw(|mut stream| drop(stream.read_to_end(&mut Vec::new())));
    // Connecting may take a part of it: enough of the rest is left on a busy host.
    let keys = "retry = { attempt_timeout = \"3s\" }";
    let fixture = fixture(&format!("https://127.0.0.1:{port}/"), keys);
    let error = fixture.deliver(&[b"1"]).await.unwrap_err();
    assert_eq!(seen(&error), UNREACHABLE, "{error}");
}

#[tokio::test]
async fn refused_credentials_and_wrong_endpoints_are_unreachable() {
    for code in [401, 403, 404, 405, 407, 410] {
        let server = always(answer(code, &[], "go away"));
        let error = fixture(&server.url("/in"), "").deliver(&[b"1"]).await.unwrap_err();
        assert_eq!(seen(&error), UNREACHABLE, "{error}");
        let expected = format!("POST {} was answered {code} ", server.url("/in"));
        assert!(error.reason.starts_with(&expected), "{error}");
        assert!(error.reason.ends_with(": go away"), "{error}");
    }
}

#[tokio::test]
async fn redirects_are_unreachable_and_not_followed() {
    let target = always(status(200));
    for code in [301, 302, 303, 307, 308] {
        let to = target.url("/there?token=CANARY");
        let server = always(answer(code, &[("location", &to)], ""));
        let fixture = fixture(&server.url("/in"), "");
        let error = fixture.deliver(&[b"1"]).await.unwrap_err();
        assert_eq!(seen(&error), UNREACHABLE, "{error}");
        assert!(error.reason.contains("/there?***"), "{error}");
    }
    assert_eq!(target.connections(), 0);
}

#[tokio::test]
async fn gateways_without_their_server_are_unreachable_and_doubtful() {
    for code in [502, 503, 504] {
        let server = always(answer(code, &[("retry-after", "7")], ""));
        let fixture = fixture(&server.url("/"), "");
        for error in
            [fixture.deliver(&[b"1"]).await.unwrap_err(), fixture.probe().await.unwrap_err()]
        {
            assert_eq!(seen(&error), SILENT, "{error}");
            assert_eq!(error.retry_after, Some(Duration::from_secs(7)));
        }
    }
}

#[tokio::test]
async fn silence_is_unreachable_and_doubtful_before_the_lane_gives_up() {
    let server = always(Reply::Stall);
    let keys = "retry = { attempt_timeout = \"600ms\" }";
    let fixture = fixture(&server.url("/"), keys);
    for _ in 0..2 {
        let error = fixture.deliver(&[b"1"]).await.unwrap_err();
        assert_eq!(seen(&error), SILENT, "{error}");
    }
    assert_eq!(server.sent().len(), 2);
    // What was given up is not waited behind.
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn overload_and_server_errors_are_retryable_answers() {
    for code in [408, 425, 429, 500, 501, 505, 507] {
        let server = always(answer(code, &[("retry-after", "5")], ""));
        let error = fixture(&server.url("/"), "").deliver(&[b"1"]).await.unwrap_err();
        assert_eq!(seen(&error), RETRYABLE, "{error}");
        assert_eq!(error.retry_after, Some(Duration::from_secs(5)));
    }
}

#[tokio::test]
async fn a_date_to_wait_for_is_a_wait_by_our_clock_when_the_server_tells_none() {
    // The clock of the fixture stands at Fri, 14 Jul 2017 02:40:00 GMT; hyper's server adds its own date.
    let port = raw(|mut stream| {
        read_head(&mut stream);
        let head = "HTTP/1.1 503 x\r\ncontent-length: 0\r\nretry-after: Fri, 14 Jul 2017 02:40:09 GMT\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        // Closing with something unread would reset the connection, and the answer might be lost.
        stream.shutdown(Shutdown::Write).unwrap();
        drop(std::io::copy(&mut stream, &mut std::io::sink()));
    });
    let fixture = fixture(&format!("http://127.0.0.1:{port}/"), "");
    let error = fixture.deliver(&[b"1"]).await.unwrap_err();
    assert_eq!(error.retry_after, Some(Duration::from_secs(9)), "{error}");
    fixture.clock.advance(Duration::from_secs(4));
    let error = fixture.deliver(&[b"1"]).await.unwrap_err();
    assert_eq!(error.retry_after, Some(Duration::from_secs(5)), "{error}");
}

#[tokio::test]
async fn a_broken_connection_is_retryable_and_no_answer() {
    let server = always(Reply::Close);
    let error = fixture(&server.url("/"), "").deliver(&[b"1"]).await.unwrap_err();
    assert_eq!(seen(&error), BROKEN, "{error}");
    // In the middle of an answer's head.
    let port = raw(|mut stream| {
        read_head(&mut stream);
        stream.write_all(b"HTTP/1.1 200 O").unwrap();
    });
    let fixture = fixture(&format!("http://127.0.0.1:{port}/"), "");
    let error = fixture.deliver(&[b"1"]).await.unwrap_err();
    assert_eq!(seen(&error), BROKEN, "{error}");
}

#[tokio::test]
async fn refusals_of_the_content_are_rejected_answers_without_names() {
    for code in [400, 402, 409, 411, 412, 413, 414, 415, 422, 431, 451] {
        let body = format!("{}\u{1b}", "x".repeat(1000));
        let server = always(answer(code, &[], body));
        let error = fixture(&server.url("/"), "").deliver(&[b"1"]).await.unwrap_err();
        assert_eq!(seen(&error), REJECTED, "{error}");
        let (_, excerpt) = error.reason.rsplit_once(": ").unwrap();
        assert!(excerpt.len() <= 256 && excerpt.starts_with("xxx"), "{error}");
    }
}

/// Reads to the end of a request's head.
fn read_head(stream: &mut TcpStream) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
        head.push(byte[0]);
    }
}

/// As servers do with a body that is too large: the answer comes while we still send, and the connection goes.
#[tokio::test]
async fn an_answer_that_comes_before_the_body_is_read_counts() {
    let port = raw(|mut stream| {
        read_head(&mut stream);
        let head = "HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        // What is unread in the socket when it closes would reset the connection: the answer might be lost on the way.
        drop(std::io::copy(&mut stream, &mut std::io::sink()));
    });
    let payload = vec![b'x'; 8 << 20];
    let fixture = fixture(&format!("http://127.0.0.1:{port}/"), "");
    let error = fixture.deliver(&[&payload]).await.unwrap_err();
    assert_eq!(seen(&error), REJECTED, "{error}");
}

#[tokio::test]
async fn the_statuses_that_are_configured_are_conflicts() {
    let server = always(answer(409, &[], "other content"));
    let conflicting = fixture(&server.url("/"), "conflict_status = [409, 412]");
    let error = conflicting.deliver(&[b"1"]).await.unwrap_err();
    assert_eq!(seen(&error), (Class::Conflict, true, false), "{error}");
    let error = fixture(&server.url("/"), "").deliver(&[b"1"]).await.unwrap_err();
    assert_eq!(seen(&error), REJECTED, "{error}");
}

#[tokio::test]
async fn any_2xx_delivers_and_connections_are_used_again() {
    let codes = [200, 201, 202, 204, 207];
    let server = Server::start(move |sent| match codes[sent.number % 5] {
        204 => status(204),
        code => answer(code, &[], "x".repeat(40_000)),
    });
    let fixture = fixture(&server.url("/"), "");
    let mut sinks = [fixture.builder.build(), fixture.builder.build()];
    for (number, lane) in (0..10).zip([0, 1].into_iter().cycle()) {
        let batch = batch(&fixture.builder, facts(number, 1), &[b"one"]);
        // Two lanes of one sink.
        let delivered = sinks[lane].deliver(&batch, 1).await.unwrap();
        assert_eq!((delivered.records, delivered.bytes), (1, 4));
    }
    assert_eq!((server.sent().len(), server.connections()), (10, 1));
}

/// The status is the answer; what comes after it can neither hold up a lane nor turn it into a failure.
#[tokio::test]
async fn a_success_whose_body_never_ends_is_a_success() {
    let port = raw(|mut stream| {
        read_head(&mut stream);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nx").unwrap();
        drop(std::io::copy(&mut stream, &mut std::io::sink()));
    });
    let fixture = fixture(&format!("http://127.0.0.1:{port}/"), "");
    assert_eq!(fixture.deliver(&[b"1"]).await.unwrap().records, 1);
    // And one that is far longer than anybody needs.
    let server = always(answer(200, &[], vec![b'x'; 8 << 20]));
    let fixture = super::fixture(&server.url("/"), "");
    assert_eq!(fixture.deliver(&[b"1"]).await.unwrap().records, 1);
}

#[tokio::test]
async fn a_probe_believes_only_what_stands_between() {
    for code in [200, 204, 302, 400, 401, 403, 404, 405, 410, 500, 501] {
        let server = always(status(code));
        fixture(&server.url("/in"), "").probe().await.unwrap();
        let sent = server.sent();
        assert_eq!((sent[0].method.as_str(), sent[0].target.as_str()), ("HEAD", "/in"));
        assert!(sent[0].body.is_empty() && !is_batch(&sent[0]) && sent[0].key().is_empty());
    }
    for code in [407, 502, 503, 504] {
        let server = always(status(code));
        let error = fixture(&server.url("/in"), "").probe().await.unwrap_err();
        assert_eq!(error.class, Class::Unreachable, "{error}");
    }
    let server = always(answer(429, &[("retry-after", "9")], ""));
    let error = fixture(&server.url("/in"), "").probe().await.unwrap_err();
    assert_eq!((error.class, error.retry_after), (Class::Retryable, Some(Duration::from_secs(9))));
}
