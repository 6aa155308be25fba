//! Shows problems: for people with the marked line, for machines as JSON.
//!
//! Only the one line that a problem begins on is shown, and only after everything in it that is or may be a secret was
//! replaced: the rest of the file never reaches the renderer.

use std::ops::Range;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Level, Origin, Renderer, Snippet};
use serde_json::json;

use super::mask;
use super::problem::{Problem, Problems, Severity};

/// Columns that a shown line may take.
const WIDTH: usize = 120;

impl Problems {
    /// All problems with file, line, column and the marked place, as rustc shows them.
    #[must_use]
    pub fn render(&self, coloured: bool) -> String {
        let renderer = if coloured { Renderer::styled() } else { Renderer::plain() };
        let renderer = renderer.term_width(WIDTH).decor_style(DecorStyle::Ascii);
        let masked = self.masked();
        let mut shown: Vec<String> =
            self.list().iter().map(|problem| self.show(problem, &renderer, &masked)).collect();
        if self.more() > 0 {
            shown.push("error: there are more problems, which are not shown".to_owned());
        }
        shown.join("\n\n")
    }

    /// What looks like a secret, file by file: nothing that is open in one goes on in the next.
    fn masked(&self) -> Vec<Range<usize>> {
        let ends = self.parts.iter().skip(1).map(|part| part.start).chain([self.text.len()]);
        let files = self.parts.iter().map(|part| part.start).zip(ends);
        let ranges = files.flat_map(|(start, end)| {
            let text = self.text.get(start..end).unwrap_or_default();
            let ranges = mask::secret_ranges(text).into_iter();
            ranges.map(move |range| start + range.start..start + range.end)
        });
        ranges.collect()
    }

    /// One JSON object a line: `file`, `line`, `column`, `key`, `message`, `hint`, `severity`.
    #[must_use]
    pub fn json_lines(&self) -> String {
        let mut lines = String::new();
        for problem in self.list() {
            let (line, column) = self.position(problem).unzip();
            let object = json!({
                "file": self.file(problem),
                "line": line,
                "column": column,
                "key": problem.key,
                "message": problem.message,
                "hint": problem.hint,
                "severity": problem.severity.as_str(),
            });
            lines.push_str(&object.to_string());
            lines.push('\n');
        }
        lines
    }

    fn show(&self, problem: &Problem, renderer: &Renderer, masked: &[Range<usize>]) -> String {
        let level = match problem.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let title = level.primary_title(problem.message.as_str());
        let file = self.file(problem);
        let mut moved = None;
        let mut group = match (self.position(problem), &problem.span) {
            (Some((line, column)), Some(span)) => {
                let is_syntax = problem.key.is_empty();
                let (text, mark) = self.masked_line(span, masked, is_syntax);
                let shown = text.get(..mark.start).unwrap_or_default().chars().count() + 1;
                if shown != column {
                    let at = |column| format!("{file}:{line}:{column}");
                    moved = Some((at(shown), at(column)));
                }
                let snippet = Snippet::source(text)
                    .line_start(line)
                    .path(file)
                    .annotation(AnnotationKind::Primary.span(mark));
                title.element(snippet)
            }
            _ => title.element(Origin::path(file)),
        };
        if let Some(hint) = &problem.hint {
            group = group.element(Level::HELP.message(hint.as_str()));
        }
        let rendered = renderer.render(&[group]);
        // What was hidden before the mark moved it; the place that is named is that in the file.
        match moved {
            Some((shown, real)) => rendered.replacen(&shown, &real, 1),
            None => rendered,
        }
    }

    /// The line that a span begins on, with `***` for all that must not be seen, and the part of the span in it.
    fn masked_line(
        &self,
        span: &Range<usize>,
        masked: &[Range<usize>],
        is_syntax: bool,
    ) -> (String, Range<usize>) {
        let (_, line) = self.line_at(span.start);
        let mut hidden: Vec<_> = masked
            .iter()
            .chain(&self.secrets)
            .map(|range| range.start.max(line.start)..range.end.min(line.end))
            .filter(|range| range.start < range.end)
            .collect();
        let text = self.text.get(line.clone()).unwrap_or_default();
        hidden.extend(
            mask::url_ranges(text).into_iter().map(|r| r.start + line.start..r.end + line.start),
        );
        if let Some(after) = mask::after_secret_name(text).filter(|_| is_syntax) {
            hidden.push(line.start + after..line.end);
        }
        let replaced = mask::Replaced::new(&self.text, line.clone(), hidden);
        let start = replaced.offset(span.start);
        let end = replaced.offset(span.end.clamp(span.start, line.end.max(span.start)));
        (replaced.text, start..end.max(start))
    }
}
