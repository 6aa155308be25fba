//! Which texts are topic filters (MQTT 5, section 4.7, and 4.8.2 for shared subscriptions).

use crate::settings::Complaint;

/// Most bytes of a text in MQTT.
const TEXT_BYTES_MAX: usize = 0xffff;

/// Checks a topic filter, also of a shared subscription.
///
/// # Errors
/// When no broker may accept it.
pub(super) fn check(filter: &str) -> Result<(), Complaint> {
    let wrong = |why: &str| Err(Complaint::new(format!("\"{filter}\" is no topic filter: {why}")));
    if filter.len() > TEXT_BYTES_MAX {
        return Err(Complaint::new("a topic filter has at most 65535 bytes"));
    }
    if filter.contains('\0') {
        return wrong("it holds a NUL");
    }
    let topics = match filter.strip_prefix("$share/") {
        None => filter,
        Some(shared) => match shared.split_once('/') {
            Some((group, topics)) if !group.is_empty() && !group.contains(['+', '#']) => topics,
            _ => {
                return wrong("a shared one is $share/GROUP/FILTER")
                    .map_err(|complaint| complaint.hint("a group has a name without +, # and /"));
            }
        },
    };
    if topics.is_empty() {
        return wrong("it is empty");
    }
    let mut levels = topics.split('/').peekable();
    while let Some(level) = levels.next() {
        if level.contains('#') && (level != "#" || levels.peek().is_some()) {
            return wrong("\"#\" is the whole of the last level or none of it");
        }
        if level.contains('+') && level != "+" {
            return wrong("\"+\" is the whole of a level or none of it");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_those_of_the_specification() {
        for good in [
            "a",
            "#",
            "+",
            "/",
            "a/b",
            "a//b",
            "+/+",
            "/+",
            "a/#",
            "+/a/#",
            "$SYS/#",
            "ü/*/>",
            "a b",
            "$share/g/#",
            "$share/g/a/+/b",
            "$share/g//",
            "$shared/a",
        ] {
            assert!(check(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "a/#/b",
            "a#",
            "#a",
            "##",
            "a/b+",
            "+a/b",
            "++",
            "a\0b",
            "$share/g",
            "$share//a",
            "$share/g/",
            "$share/+/a",
            "$share/g#/a",
            "$share/g/a/#/b",
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
        assert!(check(&"x".repeat(65_535)).is_ok() && check(&"x".repeat(65_536)).is_err());
    }
}
