use waystation_plugin::testing::{assert_page, assert_schema, run, transform};

use super::*;

/// The payloads that are kept.
fn kept(config: &str, payloads: &[&str]) -> Vec<String> {
    run(&mut transform::<Filter>(config).unwrap(), payloads)
}

/// Whether a record meets one condition.
fn meets(field: &str, op: &str, value: &str, payload: &str) -> bool {
    let value = if value.is_empty() { String::new() } else { format!(", value = {value}") };
    let config = format!("conditions = [{{ field = '{field}', op = '{op}'{value} }}]");
    !kept(&config, &[payload]).is_empty()
}

fn error(config: &str) -> String {
    transform::<Filter>(config).err().expect(config)
}

#[test]
fn each_op_says_what_it_says() {
    let payload =
        r#"{"t":21.5,"n":7,"s":"press-07","b":true,"z":null,"o":{"a":[1,"x"]},"e":"\u0070-é"}"#;
    for (field, op, value, expected) in [
        ("t", "exists", "", true),
        ("z", "exists", "", true),
        ("x", "exists", "", false),
        ("x", "missing", "", true),
        ("z", "missing", "", false),
        ("n", "==", "7", true),
        ("n", "==", "7.0", true),
        ("n", "==", "'7'", false),
        ("s", "==", "'press-07'", true),
        ("e", "==", "'p-é'", true),
        ("b", "==", "true", true),
        ("b", "==", "false", false),
        ("n", "!=", "7", false),
        ("n", "!=", "'7'", true),
        ("x", "!=", "7", true),
        ("t", "<", "21.5", false),
        ("t", "<=", "21.5", true),
        ("t", ">", "21", true),
        ("t", ">=", "22", false),
        ("s", ">", "'press-06'", true),
        ("s", ">", "6", false),
        ("x", "<", "6", false),
        ("z", "<", "6", false),
        ("n", "in", "[1, 'a', 7]", true),
        ("n", "in", "[1, 'a']", false),
        ("n", "not_in", "[1, 'a']", true),
        ("x", "not_in", "[1]", true),
        ("s", "starts_with", "'press-'", true),
        ("s", "starts_with", "'ress'", false),
        ("s", "ends_with", "'07'", true),
        ("s", "contains", "'ss-'", true),
        ("n", "contains", "'7'", false),
        ("s", "matches", "'^press-[0-9]{2}$'", true),
        ("s", "matches", "'^press-[0-9]$'", false),
        ("t", "type", "'number'", true),
        ("s", "type", "'string'", true),
        ("z", "type", "'null'", true),
        ("b", "type", "'boolean'", true),
        ("o", "type", "'object'", true),
        ("o.a", "type", "'array'", true),
        ("o.a", "type", "'object'", false),
        ("o.a.1", "==", "'x'", true),
        ("o.a.2", "exists", "", false),
    ] {
        assert_eq!(meets(field, op, value, payload), expected, "{field} {op} {value}");
    }
}

#[test]
fn long_whole_numbers_are_compared_digit_for_digit() {
    let payload = r#"{"id":9007199254740993}"#;
    assert!(meets("id", "==", "9007199254740993", payload));
    assert!(!meets("id", "==", "9007199254740992", payload));
    assert!(meets("id", ">", "9007199254740992", payload));
    assert!(meets("id", ">", "9007199254740992.0", r#"{"id":1e400}"#));
}

#[test]
fn all_any_and_none_combine_and_drop_is_the_opposite_of_keep() {
    let payloads = [r#"{"a":1,"b":1}"#, r#"{"a":1}"#, r#"{"c":1}"#];
    let conditions =
        "conditions = [{ field = 'a', op = 'exists' }, { field = 'b', op = 'exists' }]";
    for (matched, expected) in
        [("all", &payloads[..1]), ("any", &payloads[..2]), ("none", &payloads[2..])]
    {
        let keep = kept(&format!("match = '{matched}'\n{conditions}"), &payloads);
        assert_eq!(keep, expected, "{matched}");
        let rest = kept(&format!("match = '{matched}'\naction = 'drop'\n{conditions}"), &payloads);
        let others: Vec<_> = payloads.iter().filter(|one| !expected.contains(one)).collect();
        assert!(rest.iter().eq(others), "{matched}: {rest:?}");
    }
}

#[test]
fn a_record_that_is_no_object_is_rejected_unless_the_config_says_otherwise() {
    let config = "conditions = [{ field = 'a', op = 'exists' }]\n";
    for payload in ["", "17", "[1]", "{", "{}{}"] {
        let out = kept(config, &[payload]);
        assert!(out.len() == 1 && out[0].starts_with("reject: no JSON object"), "{out:?}");
        assert_eq!(kept(&format!("{config}not_json = 'keep'"), &[payload]), [payload]);
        assert!(kept(&format!("{config}not_json = 'drop'"), &[payload]).is_empty());
    }
}

#[test]
fn each_mistake_in_the_config_is_told_with_its_key() {
    let condition = |text: &str| format!("conditions = [{{ {text} }}]");
    for (config, expected) in [
        (String::new(), "config: missing field `conditions`"),
        ("conditions = []".to_owned(), "conditions: there are 0, and 1 to 100 make sense"),
        ("conditions = 7".to_owned(), "config.conditions: invalid type, expected a sequence"),
        ("action = 'pass'\nconditions = []".to_owned(), "config.action: unknown variant"),
        ("mode = 1\nconditions = []".to_owned(), "config.mode: unknown field `mode`"),
        (condition("field = 'a'"), "config.conditions[0]: missing field `op`"),
        (condition("field = 'a', op = '~'"), "config.conditions[0].op: unknown variant"),
        (
            condition("field = 'a..b', op = 'exists'"),
            "config.conditions[0].field: the path \"a..b\"",
        ),
        (condition("field = 'a.*', op = 'exists'"), "conditions[0].field: a * cannot stand here"),
        (
            condition("field = 'a', op = 'exists', value = 1"),
            "conditions[0].value: this op takes none",
        ),
        (condition("field = 'a', op = '=='"), "conditions[0].value: it is missing"),
        (condition("field = 'a', op = '==', value = [1]"), "conditions[0].value: a text, a number"),
        (
            condition("field = 'a', op = '<', value = true"),
            "conditions[0].value: this op takes a number",
        ),
        (
            condition("field = 'a', op = 'in', value = []"),
            "conditions[0].value: this op takes a list",
        ),
        (
            condition("field = 'a', op = 'contains', value = 1"),
            "conditions[0].value: this op takes a text",
        ),
        (condition("field = 'a', op = 'matches', value = '('"), "conditions[0].value: no regular"),
        (condition("field = 'a', op = 'type', value = 'int'"), "conditions[0].value: a type is"),
    ] {
        assert!(error(&config).starts_with(expected), "{config}: {}", error(&config));
    }
    let two = "conditions = [{ field = 'a', op = '==' }, { field = 'b', op = 'in', value = 1 }]";
    let error = error(two);
    assert!(error.contains("conditions[0]") && error.contains("conditions[1]"), "{error}");
}

#[test]
fn the_schema_is_that_of_the_config() {
    assert_schema::<Config>(include_str!("../schema.json"));
}

#[test]
fn the_page_tells_the_truth() {
    assert_page::<Filter>(include_str!("../README.md"), include_str!("../schema.json"));
}
