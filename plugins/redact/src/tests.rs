use waystation_plugin::testing::{assert_page, assert_schema, record, run, transform};

use super::*;

const KEY: &str = "key = '0123456789abcdef'\n";

fn redacted(config: &str, payload: &str) -> String {
    let made = transform::<Redact>(&format!("{KEY}{config}"));
    run(&mut made.unwrap_or_else(|error| panic!("{error}")), &[payload]).join("\n")
}

fn error(config: &str) -> String {
    transform::<Redact>(config).err().expect(config)
}

#[test]
fn fields_are_masked_hashed_and_removed_and_the_rest_is_kept_as_it_is_written() {
    let config = r#"fields = [
        { field = "name", do = "mask" },
        { field = "iban", do = "mask", with = "…", keep_last = 4 },
        { field = "users.*.mail", do = "remove" },
        { field = "pin", do = "mask", keep_last = 4 },
        { field = "born", do = "mask" },
        { field = "x", do = "remove" },
    ]"#;
    let payload = r#"{"t":1.50,"name":"Ann","iban":"DE02120300000000202051","users":[{"mail":"a@b.de","n":1}, 7],"pin":"1234567","born":null,"ok":true}"#;
    assert_eq!(
        redacted(config, payload),
        r#"{"t":1.50,"name":"***","iban":"…2051","users":[{"n":1},7],"pin":"***","born":null,"ok":true}"#
    );
}

#[test]
fn every_type_of_value_is_hidden() {
    for (value, masked) in [
        (r#""secret""#, r#""***""#),
        (r#""""#, r#""***""#),
        ("1234567890", r#""***""#),
        ("true", r#""***""#),
        (r#"{"a":"secret"}"#, r#""***""#),
        (r#"["secret"]"#, r#""***""#),
        ("null", "null"),
    ] {
        let payload = format!(r#"{{"v":{value}}}"#);
        let out = redacted("fields = [{ field = 'v', do = 'mask' }]", &payload);
        assert_eq!(out, format!(r#"{{"v":{masked}}}"#));
        let out = redacted("fields = [{ field = 'v', do = 'hash', length = 16 }]", &payload);
        assert_eq!(out.len(), if value == "null" { payload.len() } else { 24 }, "{out}");
        let out = redacted("fields = [{ field = 'v', do = 'remove' }]", &payload);
        assert_eq!(out, "{}");
    }
    let last = "fields = [{ field = 'v', do = 'mask', keep_last = 3 }]";
    assert_eq!(redacted(last, r#"{"v":123456}"#), r#"{"v":"***456"}"#);
    assert_eq!(redacted(last, r#"{"v":"äöüß€é"}"#), r#"{"v":"***ß€é"}"#);
    assert_eq!(redacted(last, r#"{"v":"12345"}"#), r#"{"v":"***"}"#);
    assert_eq!(redacted(last, r#"{"v":[1234567]}"#), r#"{"v":"***"}"#);
}

#[test]
fn nothing_hides_behind_a_second_field_an_escape_or_half_a_character() {
    let config = "fields = [{ field = 'user.mail', do = 'mask' }, { field = 'k', do = 'remove' }]";
    let out = redacted(config, r#"{"user":{"mail":"one","m\u0061il":"two"},"\u006b":1,"k":2}"#);
    assert_eq!(out, r#"{"user":{"mail":"***","mail":"***"}}"#);
    let out = redacted(config, r#"{"user":{"mail":"one\ud800"}}"#);
    assert_eq!(out, r#"{"user":{"mail":"***"}}"#);
    let out = redacted(config, r#"{"user":{"\ud800":1,"mail":"secret"}}"#);
    assert!(out.starts_with("reject: no JSON object") && !out.contains("secret"), "{out}");
    let patterns = "patterns = [{ find = 'email', do = 'mask' }]";
    let out = redacted(patterns, r#"{"a":"\ud800 ann@example.org","b":"ann\u0040example.org"}"#);
    assert_eq!(out, "{\"a\":\"\u{fffd} ***\",\"b\":\"***\"}");
}

/// RFC 4231, test case 1.
#[test]
fn a_hash_is_hmac_sha_256_of_the_text_and_the_key() {
    let key = r#"key = "\u000b\u000b\u000b\u000b\u000b\u000b\u000b\u000b\u000b\u000b\u000b\u000b\u000b\u000b\u000b\u000b\u000b\u000b\u000b\u000b""#;
    let hash = |rest: &str| {
        let config = format!("{key}\nfields = [{{ field = 'v', do = 'hash'{rest} }}]");
        run(&mut transform::<Redact>(&config).unwrap(), &[r#"{"v":"Hi There"}"#]).join("")
    };
    let expected = "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7";
    assert_eq!(hash(""), format!(r#"{{"v":"{expected}"}}"#));
    assert_eq!(hash(", length = 16"), format!(r#"{{"v":"{}"}}"#, &expected[..16]));
}

#[test]
fn one_value_has_one_hash_wherever_it_stands_and_another_key_gives_another() {
    let config = "fields = [{ field = '*', do = 'hash' }]";
    let out = redacted(config, r#"{"a":"x1","b":"\u00781","c":"x2","d":12}"#);
    let values: Vec<&str> = out.split('"').filter(|part| part.len() == 64).collect();
    assert_eq!(values.len(), 4, "{out}");
    assert!(values[0] == values[1] && values[0] != values[2], "{out}");
    let other = transform::<Redact>(&format!("key = 'fedcba9876543210'\n{config}"));
    assert!(!run(&mut other.unwrap(), &[r#"{"a":"x1"}"#])[0].contains(values[0]));
}

#[test]
fn headers_are_redacted_whatever_their_case_and_the_rest_of_the_record_stays() {
    let config = r#"headers = [
        { header = "Authorization", do = "remove" },
        { header = "device", do = "mask", keep_last = 2 },
    ]"#;
    let mut made = transform::<Redact>(config).unwrap();
    let mut one = record(1, "no JSON");
    for name in ["authorization", "AUTHORIZATION", "other"] {
        one.headers.push(Header { name: name.to_owned(), value: "Bearer x".to_owned() });
    }
    let Outcome::Replace(draft) = made.record(0, one.clone()) else { panic!("not replaced") };
    let headers: Vec<_> =
        draft.headers.iter().map(|header| (&*header.name, &*header.value)).collect();
    assert_eq!(headers, [("device", "***07"), ("other", "Bearer x")]);
    assert_eq!((draft.payload, draft.subject, draft.time), (one.payload, one.subject, None));
    let mut without = record(1, "no JSON");
    without.headers.clear();
    assert!(matches!(made.record(0, without), Outcome::Keep));
}

#[test]
fn addresses_and_cards_are_found_in_every_text_and_nothing_else_is() {
    let config = r#"patterns = [
        { find = "email", do = "mask", with = "<mail>" },
        { find = "card", do = "mask", keep_last = 4 },
    ]"#;
    for (text, expected) in [
        ("write to ann.b+c@mail.example.org, or bob@example.org.", "write to <mail>, or <mail>."),
        ("<ann@example.org>", "<<mail>>"),
        ("jürgen@exämple.de", "<mail>"),
        ("a@b@example.org", "a@<mail>"),
        ("a@b", "a@b"),
        ("@example.org", "@example.org"),
        ("a@.org", "a@.org"),
        ("user@localhost", "user@localhost"),
        ("card 4111 1111 1111 1111!", "card ***1111!"),
        ("4111-1111-1111-1111", "***1111"),
        ("378282246310005", "***0005"),
        ("6011000990139424", "***9424"),
        ("4111111111111112", "4111111111111112"),
        ("1767225600000000000", "1767225600000000000"),
        ("4111  1111  1111  1111", "4111  1111  1111  1111"),
        ("41111111111111110000", "41111111111111110000"),
        ("nothing at all", "nothing at all"),
    ] {
        let payload =
            format!(r#"{{"ann@example.org":1,"a":[{{"b":"{text}"}}],"n":4111111111111111}}"#);
        let wanted =
            format!(r#"{{"ann@example.org":1,"a":[{{"b":"{expected}"}}],"n":4111111111111111}}"#);
        assert_eq!(redacted(config, &payload), wanted);
    }
    let hash = redacted(
        "patterns = [{ find = 'email', do = 'hash', length = 16 }]",
        r#"{"a":"x a@b.de y"}"#,
    );
    assert!(
        hash.starts_with(r#"{"a":"x "#) && hash.len() == r#"{"a":"x  y"}"#.len() + 16,
        "{hash}"
    );
    let none = r#"{ "a" : "\"@\"" }"#;
    assert_eq!(redacted(config, none), none);
}

#[test]
fn a_record_that_is_no_object_is_rejected_unless_the_config_says_otherwise() {
    let config = "fields = [{ field = 'a', do = 'remove' }]\n";
    let out =
        |config: &str, payload: &str| run(&mut transform::<Redact>(config).unwrap(), &[payload]);
    for payload in ["", "17", "[1]", "{", "{}{}"] {
        assert!(out(config, payload)[0].starts_with("reject: no JSON object"), "{payload}");
        assert_eq!(out(&format!("{config}not_json = 'keep'"), payload), [payload]);
        assert!(out(&format!("{config}not_json = 'drop'"), payload).is_empty());
    }
}

#[test]
fn each_mistake_in_the_config_is_told_with_its_key_and_without_the_secret() {
    let field = |text: &str| format!("fields = [{{ field = 'a', {text} }}]");
    for (config, expected) in [
        (String::new(), "fields: there are none, nor `headers` or `patterns`"),
        (field("do = 'hash'"), "fields[0].do: \"hash\" needs a `key`"),
        (
            format!("key = 's3cret'\n{}", field("do = 'hash'")),
            "key: it has 6 bytes, and 16 to 1024",
        ),
        (
            format!("key = 17\n{}", field("do = 'hash'")),
            "config.key: invalid type, expected the secret itself as a text",
        ),
        (
            format!("key = {{ file = 's3cret' }}\n{}", field("do = 'hash'")),
            "config.key: invalid type, expected the secret itself as a text",
        ),
        (field("do = 'encrypt'"), "config.fields[0].do: unknown variant"),
        (field("do = 'mask', length = 16"), "fields[0].length: it belongs to \"hash\""),
        (field("do = 'remove', with = 'x'"), "fields[0].with: it belongs to \"mask\""),
        (field("do = 'hash', keep_last = 1"), "fields[0].keep_last: it belongs to \"mask\""),
        (field("do = 'mask', keep_last = 17"), "fields[0].keep_last: 17 is more than 16"),
        (
            format!("{KEY}{}", field("do = 'hash', length = 8")),
            "fields[0].length: 8 is not 16 to 64",
        ),
        (field("do = 'mask', keep_lst = 1"), "config.fields[0].keep_lst: unknown field"),
        (
            "headers = [{ name = 'a', do = 'mask' }]".to_owned(),
            "config.headers[0].name: unknown field",
        ),
        (
            "patterns = [{ find = 'phone', do = 'mask' }]".to_owned(),
            "config.patterns[0].find: unknown variant",
        ),
    ] {
        let error = error(&config);
        assert!(error.starts_with(expected) && !error.contains("s3cret"), "{config}: {error}");
    }
    let two = error(
        "key = 'x'\nfields = [{ field = 'a', do = 'hash' }, { field = 'b', do = 'mask', length = 1 }]",
    );
    assert!(two.contains("key: ") && two.contains("fields[1].length"), "{two}");
}

#[test]
fn the_schema_is_that_of_the_config() {
    assert_schema::<Config>(include_str!("../schema.json"));
}

#[test]
fn the_page_tells_the_truth() {
    assert_page::<Redact>(include_str!("../README.md"), include_str!("../schema.json"));
}
