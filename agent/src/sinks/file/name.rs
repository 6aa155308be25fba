//! The name of a batch's file below the root, made from nothing but what is known when the batch is sealed.
//!
//! Two different batches never get one name: numbers have a fixed width, and where a `-` or `_` of the template separates two
//! names in one path component, that character is written `%2D` or `%5F` inside the first of them (`a-b` and `c` against `a`
//! and `b-c`). The same goes for what records differ by, `{subject.N}` and `{header.NAME}`, whose values are escaped before
//! (see [`partition`](crate::record::partition)). All other values are names, hex digits or numbers, so nothing that leaves the
//! root can come from them.

use std::borrow::Cow;
use std::path::{Component, Path};

use sha2::{Digest as _, Sha256};

use super::config::PLACEHOLDERS;
use crate::clock::PLAUSIBLE;
use crate::record::batch::BatchFacts;
use crate::record::partition::{FieldError, PartitionBy};
use crate::record::template::{Piece, Template};
use crate::record::time::day_and_hour;

/// The first fields are component names, of variable length; the others have a fixed width.
const NAMES: usize = 4;
/// Where the batch number stands among them.
const BATCH: usize = 5;

/// What `{date}` and `{hour}` are while the clock says a time that cannot be, as that of a host without a battery does.
const UNDATED: &str = "undated";

/// Longest path component: what file systems take, less the dot and `.part` of the temporary.
const COMPONENT_BYTES_MAX: usize = 255 - ".".len() - ".part".len();

/// Whether values of this field have no fixed width.
fn is_variable(field: usize) -> bool {
    field < NAMES || field >= PLACEHOLDERS.len()
}

/// The fields of a template that records of one batch can differ by, each once, in their order.
pub(super) fn record_fields(text: &str) -> Vec<&str> {
    let mut fields = Vec::new();
    for piece in text.split('{').skip(1) {
        let name = piece.split('}').next().unwrap_or(piece);
        let is_of_record = name.starts_with("subject.") || name.starts_with("header.");
        if is_of_record && !fields.contains(&name) {
            fields.push(name);
        }
    }
    fields
}

/// The fields that a template may hold: those that there always are, and those of its own that records differ by.
#[must_use]
pub fn known_fields(text: &str) -> Vec<&str> {
    let mut fields = PLACEHOLDERS.to_vec();
    fields.extend(record_fields(text));
    fields
}

/// By what a template takes a batch apart; `None` when it does not.
///
/// # Errors
/// Says which field is none.
pub fn partition_by(text: &str) -> Result<Option<PartitionBy>, FieldError> {
    let fields = record_fields(text);
    PartitionBy::parse(fields.iter().copied()).map(|by| (!fields.is_empty()).then_some(by))
}

/// Checks and parses a `path` template.
///
/// # Errors
/// Says what is wrong: an unknown field, a way out of the root, or fields whose values could not be told apart.
pub fn parse_path_template(text: &str) -> Result<Template, String> {
    partition_by(text).map_err(|error| error.to_string())?;
    let fields = known_fields(text);
    let template = Template::parse(text, &fields).map_err(|error| error.to_string())?;
    let filled: Vec<&str> = fields.iter().map(|_| "x").collect();
    check_relative(&template.render(&filled))?;
    separators(&template, &fields)?;
    Ok(template)
}

/// The file's name below the root, for the records of this key; without one where the template does not take batches apart.
/// Where it holds the suffix of a replay, that of its halves goes behind that.
///
/// # Errors
/// When the template is none, which its check in the config has kept from happening.
pub(super) fn render(
    text: &str,
    template: &Template,
    facts: &BatchFacts,
    key: Option<&str>,
) -> Result<(String, Option<usize>), String> {
    let place = &facts.place;
    let fields = known_fields(text);
    // A file of 1970 would be a file of no day; those of two such batches are told apart by the fields that a name must have.
    let (date, hour) = if facts.sealed_at < PLAUSIBLE {
        (UNDATED.to_owned(), UNDATED.to_owned())
    } else {
        day_and_hour(facts.sealed_at)
    };
    // No folder of its own: `/rN` of a replay is `rN` there.
    let suffix = facts.suffix.replace('/', "");
    let mut values = vec![
        place.agent.to_string(),
        place.source.to_string(),
        place.pipeline.to_string(),
        place.sink.to_string(),
        facts.epoch.to_string(),
        format!("{:016}{suffix}", facts.number.0),
        format!("{:016}", facts.first_seq.0),
        format!("{:016}", facts.last_seq.0),
        date,
        hour,
    ];
    values.extend(key.iter().flat_map(|key| key.split('/')).map(str::to_owned));
    if values.len() != fields.len() {
        return Err("the records do not have the fields of the name".to_owned());
    }
    let mut escaped = separators(template, &fields)?.into_iter();
    let (mut name, mut behind_suffix) = (String::new(), None);
    template.render_into(&mut name, |field, out| {
        match escaped.next().flatten() {
            Some(separator) => {
                let code = format!("%{:02X}", u32::from(separator));
                out.push_str(&values[field].replace(separator, &code));
            }
            None => out.push_str(&values[field]),
        }
        if field == BATCH {
            behind_suffix.get_or_insert(out.len());
        }
    });
    let behind_suffix = behind_suffix.unwrap_or_else(|| {
        let at = before_first_dot(&name);
        name.insert_str(at, &suffix);
        at + suffix.len()
    });
    let fitting = fitting(&name)?;
    let at = (fitting == name && !suffix.is_empty()).then_some(behind_suffix);
    Ok((fitting, at))
}

/// The name of a half: the suffix of the cut goes where `parent_at` says, which is behind that of the cut before; at first
/// behind the batch number in the name, or before the first dot of the file name where the number does not stand in it. Gives
/// where the next one goes, as far as the name was not too long.
///
/// # Errors
/// When there is no such name.
pub(super) fn half(
    facts: &BatchFacts,
    parent: &str,
    parent_at: Option<usize>,
) -> Result<(String, Option<usize>), String> {
    let (_, last) = facts.suffix.rsplit_once('.').unwrap_or_default();
    let number = format!("{:016}", facts.number.0);
    let behind_number = || parent.find(&number).map(|at| at + number.len());
    let at = parent_at.filter(|at| parent.is_char_boundary(*at)).or_else(behind_number);
    let at = at.unwrap_or_else(|| before_first_dot(parent));
    let mut name = parent.to_owned();
    let suffix = format!(".{last}");
    name.insert_str(at, &suffix);
    let fitting = fitting(&name)?;
    let next = (fitting == name).then_some(at + suffix.len());
    Ok((fitting, next))
}

/// Before the first dot of the file name, or at its end.
fn before_first_dot(name: &str) -> usize {
    let file = name.rfind('/').map_or(0, |slash| slash + 1);
    name.split_at(file).1.find('.').map_or(name.len(), |dot| file + dot)
}

/// The name as file systems take it.
fn fitting(name: &str) -> Result<String, String> {
    let name = name.split('/').map(shortened).collect::<Vec<_>>().join("/");
    check_relative(&name)?;
    Ok(name)
}

/// A path component that file systems take: what is too long keeps its beginning and what stands from its first dot on; a
/// hash of the whole keeps it apart from others.
fn shortened(component: &str) -> Cow<'_, str> {
    if component.len() <= COMPONENT_BYTES_MAX {
        return Cow::Borrowed(component);
    }
    let dot = component.find('.').unwrap_or(component.len());
    let (stem, extension) = component.split_at(dot);
    let digest = Sha256::digest(component);
    let (hash, _) = digest.split_at(8);
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    let room = COMPONENT_BYTES_MAX.saturating_sub(extension.len() + "~".len() + hash.len());
    let (beginning, _) = stem.split_at(stem.floor_char_boundary(room));
    Cow::Owned(format!("{beginning}~{hash}{extension}"))
}

/// Checks that a name stays below the root and can be a file's.
///
/// # Errors
/// Says what is wrong with it.
pub(super) fn check_relative(name: &str) -> Result<(), String> {
    if name.is_empty() || name.ends_with('/') {
        return Err(format!("\"{name}\" is no file name"));
    }
    if name.contains(|c: char| c.is_control()) {
        return Err(format!("{name:?} holds a control character"));
    }
    let plain = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    if !plain || name.split('/').any(|part| part.is_empty() || part == ".") {
        return Err(format!("\"{name}\" must be relative, without \".\", \"..\" and empty parts"));
    }
    match name.split('/').find(|part| part.len() > COMPONENT_BYTES_MAX) {
        Some(part) => Err(format!("\"{part}\" is longer than {COMPONENT_BYTES_MAX} bytes")),
        None => Ok(()),
    }
}

/// For each field of the template in order, the character to escape in its value, if any.
fn separators(template: &Template, fields: &[&str]) -> Result<Vec<Option<char>>, String> {
    let pieces = template.pieces();
    let mut escapes = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        let Piece::Field(field) = piece else { continue };
        let name_follows = is_variable(*field) && another_name_follows(&pieces[index + 1..]);
        escapes.push(match pieces.get(index + 1) {
            _ if !name_follows => None,
            Some(Piece::Text(text)) => match text.chars().next() {
                Some(c @ ('-' | '_')) => Some(c),
                Some(c) if c.is_ascii_alphanumeric() => return Err(inseparable(fields[*field])),
                _ => None,
            },
            _ => return Err(inseparable(fields[*field])),
        });
    }
    Ok(escapes)
}

fn inseparable(field: &str) -> String {
    format!(
        "\"{{{field}}}\" needs a \"/\", \".\", \"-\" or \"_\" behind it to be told from what follows"
    )
}

/// Whether a component name stands further on in the same path component.
fn another_name_follows(rest: &[Piece]) -> bool {
    for piece in rest {
        match piece {
            Piece::Text(text) if text.contains('/') => return false,
            Piece::Field(field) if is_variable(*field) => return true,
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sinks::tests::facts;

    fn name(template: &str) -> String {
        render(template, &parse_path_template(template).unwrap(), &facts(7, 3), None).unwrap().0
    }

    #[test]
    fn numbers_are_padded_so_that_names_sort() {
        assert_eq!(
            name("{source}/{date}/{source}-{epoch}-{batch}-{first_seq}-{last_seq}.ndjson.zst"),
            "src/2027-01-15/src-00001abcde-0000000000000007-0000000000000010-0000000000000012.ndjson.zst"
        );
        assert_eq!(name("{agent}.{pipeline}.{sink}/{hour}"), "gw-1.pipe.files/08");
    }

    #[test]
    fn d_30_no_file_is_named_after_1970() {
        let template = "{date}/{hour}/{epoch}-{batch}";
        let parsed = parse_path_template(template).unwrap();
        let at = |seconds: i64| {
            let sealed_at = crate::clock::Timestamp(seconds * 1_000_000_000);
            let facts = BatchFacts { sealed_at, ..facts(7, 3) };
            render(template, &parsed, &facts, None).unwrap().0
        };
        assert_eq!(at(10), "undated/undated/00001abcde-0000000000000007");
        assert_eq!(at(1_700_000_000), "2023-11-14/22/00001abcde-0000000000000007");
    }

    #[test]
    fn halves_and_replays_have_names_of_their_own() {
        let facts = |suffix: &str| BatchFacts { suffix: suffix.into(), ..facts(7, 3) };
        let render = |template, suffix| {
            let parsed = parse_path_template(template).unwrap();
            render(template, &parsed, &facts(suffix), None).unwrap().0
        };
        assert_eq!(render("{batch}-{epoch}.x", "/r9"), "0000000000000007r9-00001abcde.x");
        assert_eq!(
            render("a.b/{epoch}-{first_seq}.x.y", ".0/r9").split_once('/').unwrap().1,
            "00001abcde-0000000000000010.0r9.x.y"
        );
        assert_eq!(render("{batch}-{epoch}.x", ".1"), "0000000000000007.1-00001abcde.x");
        assert_eq!(
            render("a.b/{epoch}-{first_seq}.x.y", ".0").split_once('/').unwrap().1,
            "00001abcde-0000000000000010.0.x.y"
        );
        let (first, at) = half(&facts(".0"), "d.d/0000000000000007-z.x", None).unwrap();
        assert_eq!(first, "d.d/0000000000000007.0-z.x");
        let (second, _) = half(&facts(".0.1"), &first, at).unwrap();
        assert_eq!(second, "d.d/0000000000000007.0.1-z.x");
        let (first, at) = half(&facts(".1"), "d.d/z.x.y", None).unwrap();
        assert_eq!(half(&facts(".1.0"), &first, at).unwrap().0, "d.d/z.1.0.x.y");
        assert_eq!(half(&facts(".1"), "d.d/z", None).unwrap().0, "d.d/z.1");
        let long = format!("{}.x", "z".repeat(COMPONENT_BYTES_MAX - 2));
        let (zero, at) = half(&facts(".0"), &long, None).unwrap();
        let (one, _) = half(&facts(".1"), &long, None).unwrap();
        assert_ne!(zero, one);
        assert_eq!(at, None);
    }

    #[test]
    fn a_half_of_a_replay_and_a_replay_of_a_half_have_two_names() {
        for template in ["{batch}-{epoch}.x", "{epoch}-{first_seq}.x.y", "a/{first_seq}"] {
            let parsed = parse_path_template(template).unwrap();
            let facts = |suffix: &str| BatchFacts { suffix: suffix.into(), ..facts(7, 3) };
            let mut names = std::collections::BTreeSet::new();
            // What fell out of a batch or its first half, again, and again; each with its halves' halves.
            for suffix in ["/r1", ".0/r1", ".0.0/r1", "/r1/r1", "/r11", "/r1.0/r1"] {
                let (name, at) = render(template, &parsed, &facts(suffix), None).unwrap();
                let (half_name, half_at) = half(&facts(&format!("{suffix}.0")), &name, at).unwrap();
                let (quarter, _) =
                    half(&facts(&format!("{suffix}.0.0")), &half_name, half_at).unwrap();
                for name in [name, half_name, quarter] {
                    assert!(names.insert(name.clone()), "{name} twice: {names:?}");
                }
            }
        }
    }

    #[test]
    fn names_on_both_sides_of_a_dash_are_told_apart() {
        assert_eq!(name("{agent}-{source}-{batch}"), "gw%2D1-src-0000000000000007");
        assert_eq!(name("{agent}/{source}-{batch}"), "gw-1/src-0000000000000007");
        assert_eq!(name("{agent}_{source}"), "gw-1_src");
        for inseparable in ["{agent}{source}", "{agent}x{source}", "{agent}{epoch}-{source}"] {
            assert!(parse_path_template(inseparable).is_err(), "{inseparable}");
        }
    }

    #[test]
    fn values_of_records_are_told_apart_beside_each_other() {
        let template = "{subject.1}-{header.d}/{subject.1}_{batch}";
        let parsed = parse_path_template(template).unwrap();
        let of = |key: &str| render(template, &parsed, &facts(7, 3), Some(key)).unwrap().0;
        assert_eq!(of("a/b"), "a-b/a_0000000000000007");
        assert_eq!(of("a-b/c_d"), "a%2Db-c_d/a-b_0000000000000007");
        assert_ne!(of("a-b/c"), of("a/b-c"));
        assert_eq!(of("~missing/~empty"), "~missing-~empty/~missing_0000000000000007");
        assert!(render(template, &parsed, &facts(7, 3), None).is_err());
        for inseparable in ["{subject.1}{header.d}", "{subject.1}{source}-{batch}"] {
            assert!(parse_path_template(inseparable).is_err(), "{inseparable}");
        }
    }

    #[test]
    fn no_template_leads_out_of_the_root() {
        for bad in [
            "",
            "/x",
            "../x",
            "a/../b",
            "a//b",
            "a/",
            "./a",
            "a/.",
            "a\nb",
            "{subject}",
            "{subject.0}",
            "{header.}",
            "{",
        ] {
            assert!(parse_path_template(bad).is_err(), "{bad:?}");
        }
        let long = "x".repeat(COMPONENT_BYTES_MAX + 1);
        assert!(parse_path_template(&long).is_err());
    }

    #[test]
    fn a_name_that_is_too_long_for_a_file_system_is_shortened_and_stays_apart() {
        let template = format!("a/{}-{{batch}}-{{first_seq}}.ndjson.zst", "ü".repeat(110));
        let (one, other) = (name(&template), {
            let parsed = parse_path_template(&template).unwrap();
            render(&template, &parsed, &facts(8, 3), None).unwrap().0
        });
        assert_ne!(one, other);
        assert!(one.len() <= "a/".len() + COMPONENT_BYTES_MAX, "{one}");
        assert!(one.starts_with("a/ü") && one.ends_with(".ndjson.zst"), "{one}");
    }
}
