//! Checks texts with placeholders, `"{source}/{date}"`. What fills them in is the part's own.

use super::problem::Complaint;
use super::table::nearest;

/// A template's placeholders in order, without braces, and the text around them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template<'a> {
    /// The names in braces.
    pub fields: Vec<&'a str>,
    /// The text between them.
    pub literals: Vec<&'a str>,
}

/// Takes a template apart and checks its placeholders against the `known` ones.
///
/// # Errors
/// For braces without their counterpart and for unknown placeholders. Those in `later` (by their part before a dot) are
/// explained as not in this version.
pub fn parse<'a>(text: &'a str, known: &[&str], later: &[&str]) -> Result<Template<'a>, Complaint> {
    let mut template = Template { fields: Vec::new(), literals: Vec::new() };
    let mut rest = text;
    while let Some((literal, after)) = rest.split_once('{') {
        if literal.contains('}') {
            break;
        }
        let Some((field, after)) = after.split_once('}') else {
            return Err(Complaint::new("a { is not closed").hint("write {NAME}"));
        };
        if field.contains('{') {
            return Err(Complaint::new("a { is not closed").hint("write {NAME}"));
        }
        if !known.contains(&field) {
            return Err(unknown(field, known, later));
        }
        template.literals.push(literal);
        template.fields.push(field);
        rest = after;
    }
    if rest.contains('}') {
        return Err(Complaint::new("a } closes nothing").hint("write {NAME}"));
    }
    template.literals.push(rest);
    Ok(template)
}

fn unknown(field: &str, known: &[&str], later: &[&str]) -> Complaint {
    let complaint = Complaint::new(format!("unknown placeholder {{{field}}}"));
    if later.contains(&field.split('.').next().unwrap_or(field)) {
        return complaint.hint(format!("{{{field}}} is not in this version"));
    }
    match nearest(field, known.iter().copied()) {
        Some(near) => complaint.hint(format!("did you mean {{{near}}}?")),
        None => {
            let names: Vec<String> = known.iter().map(|name| format!("{{{name}}}")).collect();
            complaint.hint(format!("known here: {}", names.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_and_the_text_between_them_are_told_apart() {
        let template = parse("a/{x}-{y}.z", &["x", "y"], &[]).unwrap();
        assert_eq!(template.fields, ["x", "y"]);
        assert_eq!(template.literals, ["a/", "-", ".z"]);
    }

    #[test]
    fn braces_must_pair_and_names_be_known() {
        let told = |text| parse(text, &["source", "batch"], &["header"]).unwrap_err();
        assert_eq!(told("{source").message, "a { is not closed");
        assert_eq!(told("{sou{rce}").message, "a { is not closed");
        assert_eq!(told("a}{source}").message, "a } closes nothing");
        assert_eq!(told("{source}}").message, "a } closes nothing");
        assert_eq!(told("{sorce}").hint.unwrap(), "did you mean {source}?");
        assert_eq!(told("{header.x}").hint.unwrap(), "{header.x} is not in this version");
        assert_eq!(told("{}").hint.unwrap(), "known here: {source}, {batch}");
    }
}
