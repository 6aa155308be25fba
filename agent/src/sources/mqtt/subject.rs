//! Topics as subjects.
//!
//! Levels become tokens: `/` becomes `.`. What a token of a subject may not hold (`.`, `*`, `>`, white space, control
//! characters) becomes `_`, and so does an empty level. A topic that came through without any of that is the subject with
//! `/` for `.`; of any other one the raw topic is kept in a header.

use crate::limits::SUBJECT_BYTES_MAX;
use crate::record::subject::push_token;
use crate::record::template::Template;

/// The fields of the template, in the order of [`Subjects::render`].
pub(super) const FIELDS: &[&str] = &["source", "topic"];

/// Makes subjects by a template.
#[derive(Debug)]
pub(super) struct Subjects {
    template: Template,
    source: String,
    topic: String,
    subject: String,
}

impl Subjects {
    pub(super) fn new(template: Template, source: &str) -> Self {
        let (source, topic, subject) = (source.to_owned(), String::new(), String::new());
        Self { template, source, topic, subject }
    }

    /// The subject of a topic, and whether the topic can be told from its tokens.
    pub(super) fn render(&mut self, topic: &str) -> (&str, bool) {
        self.topic.clear();
        let mut is_plain = push_tokens(topic, &mut self.topic);
        self.subject.clear();
        let (source, tokens) = (&self.source, &self.topic);
        self.template.render_into(&mut self.subject, |place, out| {
            out.push_str(if place == 0 { source } else { tokens });
        });
        if self.subject.len() > SUBJECT_BYTES_MAX {
            let end = self.subject.floor_char_boundary(SUBJECT_BYTES_MAX);
            self.subject.truncate(end);
            let end = self.subject.trim_end_matches('.').len();
            self.subject.truncate(end);
            is_plain = false;
        }
        (&self.subject, is_plain)
    }
}

/// Appends the tokens of a topic; false when something of it had to be replaced.
fn push_tokens(topic: &str, out: &mut String) -> bool {
    let mut is_plain = true;
    for (index, level) in topic.split('/').enumerate() {
        if index > 0 {
            out.push('.');
        }
        is_plain &= push_token(level, out);
    }
    is_plain
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::subject::SubjectPattern;

    fn subject_of(template: &str, topic: &str) -> (String, bool) {
        let template = Template::parse(template, FIELDS).unwrap();
        let mut subjects = Subjects::new(template, "plant");
        let (subject, is_plain) = subjects.render(topic);
        (subject.to_owned(), is_plain)
    }

    #[test]
    fn levels_become_tokens_and_what_no_token_holds_becomes_an_underscore() {
        let cases = [
            ("a/b/c", "a.b.c", true),
            ("ü/π", "ü.π", true),
            ("$SYS/x", "$SYS.x", true),
            ("a/_/b", "a._.b", true),
            ("a//b", "a._.b", false),
            ("/a", "_.a", false),
            ("a/", "a._", false),
            ("/", "_._", false),
            ("1.5/x", "1_5.x", false),
            ("a b/*/>", "a_b._._", false),
            ("a\u{a0}b\tc\u{1}", "a_b_c_", false),
        ];
        for (topic, subject, is_plain) in cases {
            assert_eq!(subject_of("{topic}", topic), (subject.to_owned(), is_plain), "{topic:?}");
        }
        assert_eq!(subject_of("{source}.in.{topic}", "a/b"), ("plant.in.a.b".to_owned(), true));
        // It is the topic that cannot be told, whatever stands around it.
        assert_eq!(subject_of("all", "a//b"), ("all".to_owned(), false));
    }

    #[test]
    fn a_topic_longer_than_a_subject_is_cut_between_characters_and_tokens() {
        let long = format!("{}/{}", "ü".repeat(SUBJECT_BYTES_MAX / 2), "x".repeat(60_000));
        let (subject, is_plain) = subject_of("{topic}", &long);
        assert_eq!((subject.len(), is_plain), (SUBJECT_BYTES_MAX, false));
        let (subject, _) = subject_of("a{topic}", &long);
        assert!(subject.len() == SUBJECT_BYTES_MAX - 1 && subject.ends_with('ü'));
        let dots = "/".repeat(SUBJECT_BYTES_MAX);
        assert!(subject_of("{topic}", &dots).0.ends_with('_'));
    }

    proptest! {
        /// Any topic makes a subject that pipelines can ask for literally, and a plain one can be turned back.
        #[test]
        fn every_topic_makes_a_subject_and_a_plain_one_can_be_turned_back(
            topic in "([a-zü0-9_ .*>+#$\t]{0,4}/?){1,6}|[^\0]{1,40}"
        ) {
            prop_assume!(!topic.is_empty());
            let (subject, is_plain) = subject_of("{topic}", &topic);
            let pattern: SubjectPattern = subject.parse().unwrap();
            prop_assert!(pattern.matches(&subject));
            prop_assert_eq!(subject.split('.').count(), topic.split('/').count());
            if is_plain {
                prop_assert_eq!(subject.replace('.', "/"), topic);
            }
        }
    }
}
