//! `waystation dlq show`: one dead letter, with all that is known of it and what to do next.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::export::whole;
use super::{PlaceArgs, open, rfc3339, whose};
use crate::cli::status::printable;
use crate::cli::{ExitCode, Failure};
use crate::journal::{Disposed, Letter};
use crate::record::Headers;
use crate::units::human_bytes;

/// Bytes of a payload that are shown.
const EXCERPT_BYTES: usize = 512;

/// Show one dead letter: why it is one, what is in it, whom to ask, and what to do next
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Its id, as `dlq list` shows it
    id: i64,
    #[command(flatten)]
    place: PlaceArgs,
    /// Print one JSON object with the whole payload
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let inspection = open(&args.place)?;
    let whom = args.place.whom_to_ask();
    let Some((letter, payload)) = inspection.letter(args.id)? else {
        let gone = inspection.dispositions(Some(args.id))?;
        return Err(missing(args.id, gone.first()).into());
    };
    let text = if args.json {
        format!("{}\n", Value::Object(whole(&letter, &payload, &whom)))
    } else {
        page(&letter, &payload, &whom)
    };
    crate::cli::print(text.as_bytes())?;
    Ok(ExitCode::Done)
}

fn missing(id: i64, gone: Option<&Disposed>) -> Failure {
    let message = match gone {
        Some(gone) => {
            let note = gone.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
            format!(
                "dead letter {id} was {} at {}{}",
                gone.what,
                rfc3339(gone.at),
                printable(&note)
            )
        }
        None => format!("there is no dead letter {id}"),
    };
    Failure {
        code: ExitCode::Failed,
        message,
        hint: Some("`waystation dlq list` shows those that there are".to_owned()),
    }
}

fn page(
    letter: &Letter,
    payload: &[u8],
    (owner, runbook): &(Option<String>, Option<String>),
) -> String {
    let mut text = String::new();
    let mut line = |what: &str, value: &str| {
        // Writing to a String cannot fail.
        let _ok = writeln!(text, "{what:<12} {}", printable(value).replace('\n', " "));
    };
    line("id", &letter.id.to_string());
    line("lane", &whose(letter));
    line("stage", &letter.stage);
    line("class", &letter.class);
    line("reason", &letter.reason);
    let optional = [
        ("record", &letter.record),
        ("batch", &letter.batch),
        ("place", &letter.place),
        ("disposition", &letter.disposition),
        ("owner", owner),
        ("runbook", runbook),
    ];
    if let Some(seq) = letter.seq {
        line("seq", &seq.to_string());
    }
    if letter.attempts > 0 {
        line("attempts", &letter.attempts.to_string());
    }
    line("first tried", &rfc3339(letter.first_at));
    line("last tried", &rfc3339(letter.last_at));
    line("event time", &rfc3339(letter.time));
    line("subject", &letter.subject);
    for (what, value) in optional {
        if let Some(value) = value {
            line(what, value);
        }
    }
    if let Some(digest) = letter.plugin_sha256.as_deref().and_then(|digest| digest.try_into().ok())
    {
        line("plugin", &crate::plugin::hex(&digest));
    }
    for (name, value) in Headers(&letter.headers).iter() {
        line("header", &format!("{name}: {value}"));
    }
    let kept = if letter.payload_bytes < letter.size_bytes {
        format!(
            "{}, of which {} are kept",
            human_bytes(letter.size_bytes),
            human_bytes(letter.payload_bytes)
        )
    } else {
        human_bytes(letter.size_bytes)
    };
    line("payload", &kept);
    text.push_str(&excerpt(payload));
    let _ok = writeln!(text, "\n{}", next(letter));
    text
}

/// The beginning of a payload, on one line: nothing of it reaches the terminal as it is.
fn excerpt(payload: &[u8]) -> String {
    let shown = &payload[..payload.len().min(EXCERPT_BYTES)];
    let more = if payload.len() > shown.len() { " …" } else { "" };
    match std::str::from_utf8(shown) {
        Ok(shown) => format!("  {}{more}\n", escaped(shown)),
        // Cut within a character.
        Err(error) if error.error_len().is_none() => {
            let (good, _) = shown.split_at(error.valid_up_to());
            format!("  {}{more}\n", escaped(&String::from_utf8_lossy(good)))
        }
        Err(_) => format!("  base64 {}{more}\n", STANDARD.encode(shown)),
    }
}

/// What a terminal would obey or not show is escaped; quotes, of which JSON is full, are not.
fn escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' | '\'' => shown.push(character),
            other => shown.extend(other.escape_debug()),
        }
    }
    shown
}

fn next(letter: &Letter) -> String {
    let id = letter.id;
    let why = match (letter.stage.as_str(), letter.class.as_str()) {
        ("source", _) => {
            "The source refused it: raise record_bytes_max, or correct who made it; only its beginning is kept.".to_owned()
        }
        (stage, "conflict") => {
            format!("The destination of sink {stage} holds other content under the identity of its batch: see which is right.")
        }
        (stage, "exhausted") => {
            format!("The destination of sink {stage} failed on it for longer than retry.budget: correct the destination.")
        }
        (stage, _) if letter.plugin_sha256.is_some() => {
            format!("Transform {stage} gave it up: correct the plugin, or who made the record.")
        }
        (stage, _) => {
            format!("The destination of sink {stage} refuses it for good: correct the destination, or the transform in front of it.")
        }
    };
    if letter.is_under_way {
        return format!(
            "It is being replayed: `waystation dlq show` tells what came of it when that is over.\nWhere its lane does not run any more, `waystation dlq discard --id {id}` ends the replay."
        );
    }
    let again = match letter.stage.as_str() {
        "source" => String::new(),
        _ => format!(
            "\nThen `waystation dlq replay --id {id}` sends it again, with --payload FILE in a corrected form."
        ),
    };
    format!(
        "{why}{again}\n`waystation dlq export --id {id}` keeps it elsewhere, `waystation dlq discard --id {id} --note TEXT` discards it."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_cannot_steer_the_terminal_and_is_cut_between_characters() {
        assert_eq!(excerpt(b"a\"\x1b[2J\nb"), "  a\"\\u{1b}[2J\\nb\n");
        let long = "ä".repeat(400);
        let shown = excerpt(format!("x{long}").as_bytes());
        assert!(shown.ends_with("ä …\n") && !shown.contains("base64"), "{shown}");
        assert_eq!(excerpt(&[0xff, 0x00]), "  base64 /wA=\n");
    }
}
