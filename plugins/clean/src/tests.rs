use super::*;

fn clean(config: &str, payload: &str) -> Outcome {
    let config = waystation_plugin::json::parse(config.as_bytes()).unwrap();
    let place = Place {
        agent: "gw".into(),
        source: "sensors".into(),
        pipeline: "telemetry".into(),
        sink: "archive".into(),
    };
    let record = Record {
        seq: 1,
        time: 0,
        subject: "sensors".into(),
        headers: vec![],
        payload: payload.as_bytes().to_vec(),
    };
    Clean::new(config, place).unwrap().record(0, record)
}

fn text(outcome: Outcome) -> String {
    match outcome {
        Outcome::Payload(bytes) => String::from_utf8(bytes).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_good_reading_is_converted_and_marked_and_keeps_its_other_fields() {
    let out = clean("{}", r#"{"seq":17,"status":"ok","temperature_c":21.53,"fw":"2.4.1"}"#);
    assert_eq!(
        text(out),
        r#"{"seq":17,"status":"ok","temperature_f":70.754,"fw":"2.4.1","cleaned_by":"telemetry"}"#
    );
}

#[test]
fn bad_readings_are_dropped_and_what_is_no_object_is_rejected() {
    assert!(matches!(clean("{}", r#"{"status":"bad"}"#), Outcome::Drop));
    assert!(matches!(clean(r#"{"drop_status":"off"}"#, r#"{"status":"off"}"#), Outcome::Drop));
    assert!(matches!(clean("{}", "[1]"), Outcome::Reject(_)));
    assert!(matches!(clean("{}", ""), Outcome::Reject(_)));
}

#[test]
fn a_temperature_that_is_missing_or_no_number_is_left_alone() {
    assert_eq!(text(clean("{}", "{}")), r#"{"cleaned_by":"telemetry"}"#);
    assert_eq!(
        text(clean("{}", r#"{"temperature_c":null}"#)),
        r#"{"temperature_c":null,"cleaned_by":"telemetry"}"#
    );
}

#[test]
fn a_mistyped_key_of_the_config_is_an_error() {
    assert!(waystation_plugin::json::parse::<Config>(br#"{"drop_staus":"bad"}"#).is_err());
}
