use waystation_plugin::testing::{assert_page, assert_schema, run, transform};

use super::*;

fn mapped(steps: &str, payload: &str) -> String {
    let made = transform::<Map>(&format!("steps = [{steps}]"));
    run(&mut made.unwrap_or_else(|error| panic!("{error}")), &[payload]).join("\n")
}

fn error(config: &str) -> String {
    transform::<Map>(config).err().expect(config)
}

#[test]
fn steps_run_in_their_order_and_leave_everything_else_as_it_is_written() {
    let steps = r#"
        { do = "rename", field = "temp", to = "temperature_c" },
        { do = "convert", field = "temperature_c", from = "C", to = "F", digits = 3 },
        { do = "rename", field = "temperature_c", to = "temperature_f" },
        { do = "remove", fields = ["debug"] }
    "#;
    let payload = r#"{"id":12345678901234567890123, "temp":21.53,"debug":{"a":1},"p":1013.20}"#;
    assert_eq!(
        mapped(steps, payload),
        r#"{"id":12345678901234567890123,"temperature_f":70.754,"p":1013.20}"#
    );
}

#[test]
fn each_step_does_what_it_says() {
    for (step, payload, expected) in [
        (r#"do = "rename", field = "a", to = "b""#, r#"{"a":1.0,"b":2}"#, r#"{"b":1.0}"#),
        (r#"do = "rename", field = "a", to = "s.b""#, r#"{"a":1.0}"#, r#"{"s":{"b":1.0}}"#),
        (r#"do = "rename", field = "s.a", to = "a""#, r#"{"s":{"a":1.0}}"#, r#"{"s":{},"a":1.0}"#),
        (r#"do = "rename", field = "a", to = "a.b""#, r#"{"a":1.0}"#, r#"{"a":{"b":1.0}}"#),
        (r#"do = "rename", field = "x", to = "b""#, r#"{"b":2}"#, r#"{"b":2}"#),
        (r#"do = "set", field = "a", value = "x""#, "{}", r#"{"a":"x"}"#),
        (
            r#"do = "set", field = "a", value = { b = [1, 2.5, true] }"#,
            "{}",
            r#"{"a":{"b":[1,2.5,true]}}"#,
        ),
        (
            r#"do = "set", field = "a", value = 1, overwrite = false"#,
            r#"{"a":null}"#,
            r#"{"a":null}"#,
        ),
        (r#"do = "set", field = "a", value = 1"#, r#"{"a":2}"#, r#"{"a":1}"#),
        (r#"do = "set", field = "a", from = "subject""#, "{}", r#"{"a":"plant.hall.temperature"}"#),
        (r#"do = "set", field = "a", from = "subject.2""#, "{}", r#"{"a":"hall"}"#),
        (r#"do = "set", field = "a", from = "subject.9""#, "{}", "{}"),
        (r#"do = "set", field = "a", from = "header.device""#, "{}", r#"{"a":"press-07"}"#),
        (r#"do = "set", field = "a", from = "header.x""#, "{}", "{}"),
        (r#"do = "set", field = "a", from = "time""#, "{}", r#"{"a":"2026-01-01T00:00:00Z"}"#),
        (r#"do = "set", field = "a", from = "time_unix_ms""#, "{}", r#"{"a":1767225600000}"#),
        (r#"do = "set", field = "a", from = "seq""#, "{}", r#"{"a":1}"#),
        (r#"do = "set", field = "a", from = "agent""#, "{}", r#"{"a":"gw"}"#),
        (r#"do = "set", field = "a", from = "source""#, "{}", r#"{"a":"sensors"}"#),
        (r#"do = "set", field = "a", from = "pipeline""#, "{}", r#"{"a":"telemetry"}"#),
        (r#"do = "set", field = "a", from = "sink""#, "{}", r#"{"a":"archive"}"#),
        (
            r#"do = "remove", fields = ["a", "b.*.c"]"#,
            r#"{"a":1,"b":[{"c":1},{"d":2}]}"#,
            r#"{"b":[{},{"d":2}]}"#,
        ),
        (
            r#"do = "keep", fields = ["b", "c.d"]"#,
            r#"{"a":1,"b":1.0,"c":{"d":2,"e":3}}"#,
            r#"{"b":1.0,"c":{"d":2}}"#,
        ),
        (
            r#"do = "convert", field = "v", from = "psi", to = "bar""#,
            r#"{"v":14.5}"#,
            r#"{"v":0.999739807509412}"#,
        ),
        (r#"do = "convert", field = "v", from = "F", to = "C""#, r#"{"v":212}"#, r#"{"v":100}"#),
        (
            r#"do = "convert", field = "v", from = "C", to = "F""#,
            r#"{"v":21.53}"#,
            r#"{"v":70.754}"#,
        ),
        (r#"do = "convert", field = "v", from = "F", to = "K""#, r#"{"v":-459.67}"#, r#"{"v":0}"#),
        (r#"do = "convert", field = "v", from = "C", to = "F""#, r#"{"v":null}"#, r#"{"v":null}"#),
        (
            r#"do = "convert", field = "v.*", from = "%", to = "1""#,
            r#"{"v":[50,12.5]}"#,
            r#"{"v":[0.5,0.125]}"#,
        ),
        (r#"do = "scale", field = "v", factor = 0.1"#, r#"{"v":3}"#, r#"{"v":0.3}"#),
        (r#"do = "scale", field = "v", factor = 2, offset = -1.5"#, r#"{"v":3}"#, r#"{"v":4.5}"#),
        (r#"do = "scale", field = "v", factor = 0.1, digits = 1"#, r#"{"v":314}"#, r#"{"v":31.4}"#),
        (r#"do = "round", field = "v", digits = 1"#, r#"{"v":3.14}"#, r#"{"v":3.1}"#),
        (r#"do = "round", field = "v", digits = 0"#, r#"{"v":2.5}"#, r#"{"v":3}"#),
        (r#"do = "number", field = "v""#, r#"{"v":" 21.50 "}"#, r#"{"v":21.50}"#),
        (r#"do = "number", field = "v""#, r#"{"v":true}"#, r#"{"v":1}"#),
        (r#"do = "number", field = "v""#, r#"{"v":1.0}"#, r#"{"v":1.0}"#),
        (r#"do = "string", field = "v""#, r#"{"v":1.50}"#, r#"{"v":"1.50"}"#),
        (r#"do = "string", field = "v""#, r#"{"v":"x"}"#, r#"{"v":"x"}"#),
        (r#"do = "string", field = "x""#, "{}", "{}"),
    ] {
        assert_eq!(mapped(&format!("{{ {step} }}"), payload), expected, "{step}");
    }
}

#[test]
fn a_record_that_nothing_changes_is_passed_on_untouched() {
    let payload = r#"{ "a" : 1 }"#;
    assert_eq!(
        mapped(r#"{ do = "remove", fields = ["b"] }, { do = "string", field = "c" }"#, payload),
        payload
    );
    assert_eq!(mapped(r#"{ do = "rename", field = "a", to = "a" }"#, payload), payload);
}

#[test]
fn a_value_that_cannot_be_converted_has_the_outcome_that_the_config_names() {
    for (step, value) in [
        (r#"do = "convert", field = "v", from = "C", to = "F""#, r#""n/a""#),
        (r#"do = "scale", field = "v", factor = 2"#, "[1]"),
        (r#"do = "scale", field = "v", factor = 1e300"#, "1e300"),
        (r#"do = "number", field = "v""#, r#""""#),
        (r#"do = "number", field = "v""#, r#""12 °C""#),
        (r#"do = "number", field = "v""#, r#""NaN""#),
        (r#"do = "string", field = "v""#, "{}"),
    ] {
        let payload = format!(r#"{{"v":{value}}}"#);
        let out = |unconvertible: &str| {
            let config = format!("steps = [{{ {step} }}]\nunconvertible = \"{unconvertible}\"");
            run(&mut transform::<Map>(&config).unwrap(), &[&payload]).join("")
        };
        assert!(
            out("reject").starts_with("reject: the field v cannot be made "),
            "{}",
            out("reject")
        );
        assert!(!out("reject").contains("n/a"));
        assert_eq!(out("keep"), payload);
        assert_eq!(out("remove"), "{}");
    }
}

#[test]
fn a_field_that_cannot_be_set_rejects_the_record() {
    let out = mapped(r#"{ do = "set", field = "a.b", value = 1 }"#, r#"{"a":5}"#);
    assert!(out.starts_with("reject: the field a.b cannot be set"), "{out}");
}

#[test]
fn a_record_that_is_no_object_is_rejected_unless_the_config_says_otherwise() {
    let config = "steps = [{ do = 'remove', fields = ['a'] }]\n";
    let out = |config: &str, payload: &str| run(&mut transform::<Map>(config).unwrap(), &[payload]);
    for payload in ["", "17", "[1]", "{", "{}{}"] {
        assert!(out(config, payload)[0].starts_with("reject: no JSON object"), "{payload}");
        assert_eq!(out(&format!("{config}not_json = 'keep'"), payload), [payload]);
        assert!(out(&format!("{config}not_json = 'drop'"), payload).is_empty());
    }
}

#[test]
fn each_mistake_in_the_config_is_told_with_its_key() {
    for (config, expected) in [
        ("", "config: missing field `steps`"),
        ("steps = []", "steps: there are 0, and 1 to 200 make sense"),
        (
            "steps = [{ do = 'remove', fields = ['a'] }]\nunconvertable = 'keep'",
            "config.unconvertable: unknown field",
        ),
        ("steps = [{ field = 'a' }]", "config.steps[0]: missing field `do`"),
        ("steps = [{ do = 'delete', field = 'a' }]", "config.steps[0]"),
        (
            "steps = [{ do = 'rename', field = 'a', into = 'b' }]",
            "config.steps[0]: unknown field `into`",
        ),
        ("steps = [{ do = 'rename', field = 'a' }]", "config.steps[0]: missing field `to`"),
        (
            "steps = [{ do = 'rename', field = '', to = 'b' }]",
            "config.steps[0]: the path \"\" has an empty name",
        ),
        (
            "steps = [{ do = 'rename', field = 'a.*', to = 'b' }]",
            "steps[0].field: a * cannot stand here",
        ),
        (
            "steps = [{ do = 'rename', field = 'a', to = '*' }]",
            "steps[0].to: a * cannot stand here",
        ),
        ("steps = [{ do = 'set', field = 'a' }]", "steps[0].value: it is missing"),
        (
            "steps = [{ do = 'set', field = 'a', value = 1, from = 'seq' }]",
            "steps[0].from: `value` is there",
        ),
        (
            "steps = [{ do = 'set', field = 'a', from = 'now' }]",
            "config.steps[0]: \"now\" is not \"subject\"",
        ),
        ("steps = [{ do = 'remove', fields = [] }]", "steps[0].fields: there is none"),
        (
            "steps = [{ do = 'convert', field = 'a', from = 'X', to = 'C' }]",
            "steps[0].from: there is no unit",
        ),
        (
            "steps = [{ do = 'convert', field = 'a', from = 'C', to = 'm' }]",
            "steps[0].to: C is a temperature and m a length",
        ),
        (
            "steps = [{ do = 'round', field = 'a', digits = 16 }]",
            "steps[0].digits: 16 is more than 15",
        ),
    ] {
        assert!(error(config).starts_with(expected), "{config}: {}", error(config));
    }
    let two = error("steps = [{ do = 'set', field = 'a' }, { do = 'keep', fields = [] }]");
    assert!(two.contains("steps[0].value") && two.contains("steps[1].fields"), "{two}");
}

#[test]
fn the_schema_is_that_of_the_config() {
    assert_schema::<Config>(include_str!("../schema.json"));
}

#[test]
fn the_page_tells_the_truth() {
    assert_page::<Map>(include_str!("../README.md"), include_str!("../schema.json"));
}
