use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use waystation_plugin::sink::http::{Failure, Request, Response};
use waystation_plugin::testing;

use super::*;

const URL: &str = "url = \"https://hooks.example.org/edge\"";

fn webhook(more: &str) -> Webhook {
    testing::sink(&format!("{URL}\n{more}")).unwrap()
}

/// Answers with these statuses in turn, then 200, and tells what was asked.
fn answer(statuses: &[u16]) -> Rc<RefCell<Vec<Request>>> {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let (noted, mut statuses) = (Rc::clone(&seen), VecDeque::from(statuses.to_vec()));
    http::answer_with(move |request| {
        noted.borrow_mut().push(Request {
            method: request.method.clone(),
            url: request.url.clone(),
            headers: request.headers.clone(),
            body: request.body.clone(),
        });
        let status = statuses.pop_front().unwrap_or(200);
        Ok(Response { status, headers: Vec::new(), body: Vec::new() })
    });
    seen
}

fn header<'r>(request: &'r Request, name: &str) -> Option<&'r str> {
    request.headers.iter().find(|header| header.name == name).map(|header| header.value.as_str())
}

fn body(request: &Request) -> &str {
    std::str::from_utf8(&request.body).unwrap()
}

fn indexes(rejections: &[Rejection]) -> Vec<u32> {
    rejections.iter().map(|rejection| rejection.index).collect()
}

#[test]
fn a_batch_is_one_array_under_its_identity_and_what_is_no_json_is_named() {
    let seen = answer(&[]);
    let refused = webhook("token = \"t0p\"")
        .deliver(testing::batch(&[r#"{"n":1.50}"#, "no json", "2", "", "[3]"]))
        .unwrap();
    assert_eq!(indexes(&refused), [1, 3]);
    assert!(refused[0].reason.starts_with("no JSON: line 1"), "{}", refused[0].reason);
    let seen = seen.borrow();
    assert_eq!(seen.len(), 1);
    assert_eq!(body(&seen[0]), r#"[{"n":1.50},2,[3]]"#);
    assert_eq!((seen[0].method.as_str(), seen[0].url.as_str()), ("POST", &URL[7..URL.len() - 1]));
    assert_eq!(header(&seen[0], "idempotency-key"), Some("gw/b1"));
    assert_eq!(header(&seen[0], "authorization"), Some("Bearer t0p"));
    assert_eq!(header(&seen[0], "x-signature-256"), None);
}

#[test]
fn a_batch_of_which_nothing_fits_is_no_request() {
    let seen = answer(&[]);
    let refused = webhook("").deliver(testing::batch(&["x", "y"])).unwrap();
    assert_eq!((indexes(&refused), seen.borrow().len()), (vec![0, 1], 0));
}

#[test]
fn an_envelope_takes_any_payload() {
    let seen = answer(&[]);
    let mut batch = testing::batch(&["a \"b\"", ""]);
    batch.records[1].payload = vec![0xff, 0xfe];
    assert!(webhook("envelope = true").deliver(batch).unwrap().is_empty());
    let expected = concat!(
        r#"[{"id":"gw/1","time":"2026-01-01T00:00:00Z","subject":"plant.hall.temperature","#,
        r#""headers":[["device","press-07"]],"payload":"a \"b\""},"#,
        r#"{"id":"gw/2","time":"2026-01-01T00:00:01Z","subject":"plant.hall.temperature","#,
        r#""headers":[["device","press-07"]],"payload_base64":"//4="}]"#,
    );
    assert_eq!(body(&seen.borrow()[0]), expected);
}

/// The digest is that of `printf '[1]' | openssl dgst -sha256 -hmac secret`.
#[test]
fn a_body_is_signed_with_the_key() {
    let seen = answer(&[]);
    webhook("key = \"secret\"\nmethod = \"PUT\"").deliver(testing::batch(&["1"])).unwrap();
    let seen = seen.borrow();
    assert_eq!(seen[0].method, "PUT");
    let expected = "sha256=d832580a6b785bddc42cfd5e19af6afc8bb83961067968ee9bb8d7bdf45df058";
    assert_eq!(header(&seen[0], "x-signature-256"), Some(expected));
}

#[test]
fn records_go_one_by_one_and_a_batch_goes_on_where_it_failed() {
    let seen = answer(&[200, 422, 503]);
    let mut webhook = webhook("each = \"record\"");
    let payloads = [r#"{"n":1}"#, "not json", "3", "4"];
    let error = webhook.deliver(testing::batch(&payloads)).unwrap_err();
    assert!(matches!(error, SinkError::Unreachable(_)), "{error:?}");
    let refused = webhook.deliver(testing::batch(&payloads)).unwrap();
    assert_eq!(indexes(&refused), [1]);
    let seen = seen.borrow();
    let keys: Vec<_> = seen.iter().map(|r| header(r, "idempotency-key").unwrap()).collect();
    assert_eq!(keys, ["gw/1", "gw/2", "gw/3", "gw/3", "gw/4"]);
    let types: Vec<_> = seen.iter().map(|r| header(r, "content-type").unwrap()).collect();
    assert_eq!(types[..2], ["application/json", "application/octet-stream"]);
    // Another batch begins at its beginning.
    let mut other = testing::batch(&["5"]);
    other.id = "gw/b2".to_owned();
    drop(seen);
    assert!(webhook.deliver(other).unwrap().is_empty());
}

#[test]
fn what_has_no_answer_and_what_is_not_allowed_keeps_the_batch() {
    for failure in [
        || Failure::Denied("no".to_owned()),
        || Failure::Timeout("no".to_owned()),
        || Failure::Network("no".to_owned()),
    ] {
        http::answer_with(move |_| Err(failure()));
        let mut webhook = webhook("");
        let error = webhook.deliver(testing::batch(&["1"])).unwrap_err();
        assert!(matches!(error, SinkError::Unreachable(_)), "{error:?}");
        assert!(webhook.probe(0).is_err());
    }
}

#[test]
fn a_probe_asks_with_the_token_and_sends_nothing() {
    let seen = answer(&[405]);
    webhook("token = \"t0p\"").probe(0).unwrap();
    let seen = seen.borrow();
    assert_eq!((seen[0].method.as_str(), seen[0].body.len()), ("HEAD", 0));
    assert_eq!(header(&seen[0], "authorization"), Some("Bearer t0p"));
}

#[test]
fn all_mistakes_of_a_config_are_told_at_once() {
    let told = |config: &str| testing::sink::<Webhook>(config).err().unwrap();
    assert_eq!(
        told("token = \"a b\"\nkey = \"\""),
        "config.url: it is missing; write \"https://HOST/PATH\"; config.key: it is empty; \
         config.token: it holds white space or control characters"
    );
    assert_eq!(told("url = \"ftp://h\""), "config.url: it begins with https:// or http://");
    assert!(told(&format!("{URL}\neach = \"row\"")).contains("config.each"), "");
    assert!(told(&format!("{URL}\nurll = 1")).contains("urll"));
}

#[test]
fn the_schema_is_that_of_the_config() {
    testing::assert_schema::<Config>(include_str!("../schema.json"));
}

#[test]
fn the_page_says_what_the_plugin_does() {
    testing::assert_sink_page::<Webhook>(
        include_str!("../README.md"),
        include_str!("../schema.json"),
    );
}
