//! Tokens, secrets, and what may not be shown.

use super::server::{answer, closed_port, status};
use super::*;

const CANARY: &str = "S3CR3T-CANARY-91f2";

/// A server that gives tokens `t0`, `t1`, … that live for this many seconds.
fn token_server(expires_in: &'static str) -> Server {
    Server::start(move |sent| {
        let token = format!(
            "{{\"access_token\":\"t{}\",\"token_type\":\"bearer\",\"expires_in\":{expires_in}}}",
            sent.number
        );
        answer(200, &[("content-type", "application/json")], token)
    })
}

fn oauth2(url: &str) -> String {
    format!(
        "auth = {{ oauth2 = {{ token_url = \"{url}\", client_id = \"gw 1\", client_secret = {{ env = \"CANARY\" }}, scopes = [\"a\", \"b\"] }} }}"
    )
}

#[tokio::test]
async fn tokens_are_asked_for_before_the_first_use_and_replaced_before_they_end() {
    let tokens = token_server("100");
    let server = always(status(200));
    let fixture = fixture(&server.url("/"), &oauth2(&tokens.url("/token")));
    for _ in 0..3 {
        fixture.delivers(b"1").await;
    }
    fixture.clock.advance(Duration::from_secs(89));
    fixture.delivers(b"1").await;
    assert_eq!(tokens.sent().len(), 1);
    let asked = &tokens.sent()[0];
    assert_eq!((asked.method.as_str(), asked.target.as_str()), ("POST", "/token"));
    assert_eq!(&asked.body[..], b"grant_type=client_credentials&scope=a+b");
    // base64("gw+1:S3CR3T-CANARY-91f2")
    assert_eq!(asked.header("authorization"), "Basic Z3crMTpTM0NSM1QtQ0FOQVJZLTkxZjI=");
    // A tenth of its life before its end.
    fixture.clock.advance(Duration::from_secs(2));
    fixture.delivers(b"1").await;
    let used: Vec<String> =
        server.sent().iter().map(|sent| sent.header("authorization").to_owned()).collect();
    assert_eq!(used, ["Bearer t0", "Bearer t0", "Bearer t0", "Bearer t0", "Bearer t1"]);
}

#[tokio::test]
async fn a_refused_token_is_replaced_once_and_only_once() {
    let tokens = token_server("3600");
    let server = Server::start(|sent| {
        status(if sent.header("authorization") == "Bearer t0" { 401 } else { 200 })
    });
    let fixture = fixture(&server.url("/"), &oauth2(&tokens.url("/")));
    fixture.delivers(b"1").await;
    assert_eq!((tokens.sent().len(), server.sent().len()), (2, 2));
    let bodies = server.by_key();
    assert_eq!(bodies.len(), 1);
    let refusing = always(status(401));
    let fixture = super::fixture(&refusing.url("/"), &oauth2(&tokens.url("/")));
    let error = fixture.deliver(&[b"1"]).await.unwrap_err();
    assert_eq!((error.class, error.answered), (Class::Unreachable, false), "{error}");
    assert_eq!(refusing.sent().len(), 2);
}

#[tokio::test]
async fn a_server_that_wants_the_credentials_in_the_body_gets_them_there() {
    let tokens = Server::start(|sent| {
        let is_in_body = sent.body.windows(14).any(|window| window == b"client_secret=");
        match is_in_body {
            true => answer(200, &[], "{\"access_token\":\"t\",\"expires_in\":\"10\"}"),
            false => answer(401, &[], "{\"error\":\"invalid_client\"}"),
        }
    });
    let server = always(status(200));
    let fixture = fixture(&server.url("/"), &oauth2(&tokens.url("/")));
    fixture.delivers(b"1").await;
    assert_eq!(tokens.sent().len(), 2);
    // And the next time at once.
    fixture.clock.advance(Duration::from_secs(10));
    fixture.delivers(b"1").await;
    assert_eq!(tokens.sent().len(), 3);
    let last = String::from_utf8(tokens.sent()[2].body.to_vec()).unwrap();
    assert!(last.ends_with("&client_id=gw+1&client_secret=S3CR3T-CANARY-91f2"), "{last}");
}

#[tokio::test]
async fn without_a_token_nothing_is_sent_and_no_secret_is_shown() {
    let server = always(status(200));
    let body = format!("{{\"error\":\"invalid_scope\",\"error_description\":\"{CANARY}\"}}");
    for (reply, expected) in [
        (answer(400, &[], body), "answers 400 Bad Request (invalid_scope); check `auth`"),
        (answer(403, &[], CANARY), "answers 403 Forbidden; check `auth`"),
        (status(500), "answers 500 Internal Server Error; check `auth`"),
        (answer(302, &[("location", "/x")], ""), "answers 302 Found; check `auth`"),
        (answer(200, &[], "<html>"), "answers without a token"),
        (answer(200, &[], "{\"access_token\":\"t\",\"token_type\":\"mac\"}"), "a bearer token"),
        (answer(200, &[], "{\"access_token\":\"a\\nb\"}"), "a token that can be sent"),
        (Reply::Close, "cannot be asked"),
    ] {
        let tokens = always(reply);
        let fixture = fixture(&server.url("/"), &oauth2(&tokens.url("/token?k=CANARY")));
        for error in
            [fixture.deliver(&[b"1"]).await.unwrap_err(), fixture.probe().await.unwrap_err()]
        {
            assert_eq!(error.class, Class::Unreachable, "{error}");
            assert!(error.reason.contains(expected), "{error}");
            assert!(!format!("{error:?} {error}").contains("CANARY"), "{error:?}");
        }
    }
    assert!(server.sent().is_empty());
}

#[tokio::test]
async fn a_client_secret_that_cannot_be_read_is_told_before_the_sink_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    let keys = oauth2("http://127.0.0.1:9/token")
        .replace("{ env = \"CANARY\" }", &format!("{{ file = \"{}\" }}", path.display()));
    let fixture = fixture("http://127.0.0.1:9/", &keys);
    let error = fixture.builder.check().unwrap_err();
    assert!(error.reason.contains("`auth.oauth2.client_secret` cannot be read from"), "{error}");
    std::fs::write(&path, CANARY).unwrap();
    fixture.builder.check().unwrap();
}

#[tokio::test]
async fn a_token_endpoint_that_is_silent_is_told_from_a_silent_destination() {
    let tokens = always(Reply::Stall);
    let server = always(status(200));
    let keys = oauth2(&tokens.url("/token"));
    let keys = format!("{keys}\nretry = {{ attempt_timeout = \"600ms\" }}");
    let fixture = fixture(&server.url("/"), &keys);
    let error = fixture.deliver(&[b"1"]).await.unwrap_err();
    assert_eq!((error.class, error.doubtful), (Class::Unreachable, false), "{error}");
    assert!(error.reason.contains("/token does not answer"), "{error}");
}

#[tokio::test]
async fn secret_headers_are_read_for_every_request() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    std::fs::write(&path, "one\n").unwrap();
    let server = always(status(200));
    let keys = format!(
        "headers = {{ x-api-key = {{ file = \"{}\" }}, Authorization = {{ env = \"CANARY\" }} }}",
        path.display()
    );
    let fixture = fixture(&server.url("/"), &keys);
    fixture.delivers(b"1").await;
    std::fs::write(&path, "two\n").unwrap();
    fixture.delivers(b"1").await;
    fixture.probe().await.unwrap();
    let keys: Vec<String> =
        server.sent().iter().map(|sent| sent.header("x-api-key").to_owned()).collect();
    assert_eq!(keys, ["one", "two", "two"]);
    assert!(server.sent().iter().all(|sent| sent.header("authorization") == CANARY));
    for (content, expected) in [(None, "No such file"), (Some("a\nb"), "control character")] {
        match content {
            Some(content) => std::fs::write(&path, content).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
        let error = fixture.deliver(&[b"1"]).await.unwrap_err();
        let text = crate::error_chain::Chain(&error).to_string();
        assert_eq!(error.class, Class::Unreachable, "{text}");
        assert!(text.contains(expected) && text.contains("x-api-key"), "{text}");
    }
}

/// A destination that repeats what it was sent, and failures of every kind.
#[tokio::test]
async fn no_error_shows_a_secret() {
    let echo = |code: u16| {
        Server::start(move |sent| {
            let location = format!("https://u:{CANARY}@elsewhere/?k={CANARY}");
            let body = format!("denied for {} with {}", sent.header("authorization"), sent.target);
            answer(code, &[("location", &location)], body)
        })
    };
    let keys = "headers = { authorization = { env = \"CANARY\" } }";
    for code in [302, 400, 401, 407, 409, 429, 500, 503] {
        let server = echo(code);
        let fixture = fixture(&server.url(&format!("/in?key={CANARY}")), keys);
        let batch = fixture.deliver(&[b"1"]).await.unwrap_err();
        for error in [Some(batch), fixture.probe().await.err()].into_iter().flatten() {
            let text = format!("{} {error:?}", crate::error_chain::Chain(&error));
            assert!(!text.contains(CANARY), "{text}");
        }
        assert!(!format!("{:?}", fixture.builder).contains(CANARY));
    }
    let tokens = token_server("60");
    for url in [
        format!("http://127.0.0.1:{}/?k={CANARY}", closed_port()),
        format!("https://127.0.0.1:{}/?k={CANARY}", tokens.port),
        format!("http://{CANARY}.invalid/?k={CANARY}"),
    ] {
        let keys = oauth2(&tokens.url("/"));
        let error = fixture(&url, &keys).deliver(&[b"1"]).await.unwrap_err();
        let text = format!("{} {error:?}", crate::error_chain::Chain(&error));
        assert!(!text.contains(&format!("k={CANARY}")), "{text}");
    }
}

#[tokio::test]
async fn a_proxy_is_used_when_it_is_configured_but_not_for_loopback() {
    let proxy = always(status(200));
    let server = always(status(200));
    let net = NetConfig { proxy: Endpoint::parse(&proxy.url("/"), "proxy").ok(), ca: None };
    fixture_in(&net, "http://ingest.example.test/in", "").delivers(b"1").await;
    assert_eq!(proxy.sent()[0].target, "http://ingest.example.test/in");
    fixture_in(&net, &server.url("/in"), "").delivers(b"1").await;
    assert_eq!((proxy.sent().len(), server.sent().len()), (1, 1));
    // A proxy that is away, or that gives no tunnel, is a destination that cannot be reached.
    let refusing = always(status(403));
    for port in [closed_port(), refusing.port] {
        let net = NetConfig {
            proxy: Endpoint::parse(&format!("http://127.0.0.1:{port}"), "proxy").ok(),
            ca: None,
        };
        let fixture = fixture_in(&net, "https://ingest.example.test/in", "");
        let error = fixture.deliver(&[b"1"]).await.unwrap_err();
        assert_eq!((error.class, error.doubtful), (Class::Unreachable, false), "{error}");
    }
}
