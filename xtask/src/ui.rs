//! What a person at the terminal sees: steps with their time, and tables.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// A step that has begun. Dropped without [`Step::done`], it says nothing: the error that ended it is printed instead.
pub(crate) struct Step {
    begin: Instant,
}

impl Step {
    /// Says that `name` begins.
    pub(crate) fn start(name: impl AsRef<str>) -> Self {
        eprintln!("==> {}", name.as_ref());
        Self { begin: Instant::now() }
    }

    /// Says that it is over, and how long it took.
    pub(crate) fn done(self) {
        eprintln!("    done in {}", seconds(self.begin.elapsed()));
    }
}

/// A sentence for the person who watches.
pub(crate) fn say(text: &str) {
    eprintln!("    {text}");
}

/// `75.3 s`, and from two minutes on `2 min 05 s`.
pub(crate) fn seconds(time: Duration) -> String {
    let whole = time.as_secs();
    if whole < 120 {
        format!("{:.1} s", time.as_secs_f64())
    } else {
        format!("{} min {:02} s", whole / 60, whole % 60)
    }
}

/// `1234567` as `1 234 567`.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// How a column stands.
#[derive(Clone, Copy)]
pub(crate) enum Align {
    Left,
    Right,
}

/// Lines of cells in columns as wide as their widest cell, each line indented by two.
pub(crate) fn table<const N: usize>(align: [Align; N], rows: &[[String; N]]) -> String {
    let width: [usize; N] = std::array::from_fn(|column| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
    });
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = width[column];
            match align[column] {
                Align::Left => write!(line, "  {cell:<width$}"),
                Align::Right => write!(line, "  {cell:>width$}"),
            }
            .expect("writing to a string cannot fail");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_grouped_from_the_right() {
        let texts = [0, 999, 1000, 1_234_567].map(thousands);
        assert_eq!(texts, ["0", "999", "1 000", "1 234 567"]);
    }

    #[test]
    fn a_table_aligns_its_columns_and_leaves_no_blanks_at_line_ends() {
        let rows = [
            ["records in".to_owned(), "100".to_owned(), String::new()],
            ["files".to_owned(), "2".to_owned(), "x".to_owned()],
        ];
        assert_eq!(
            table([Align::Left, Align::Right, Align::Left], &rows),
            "  records in  100\n  files         2  x\n"
        );
    }

    #[test]
    fn long_times_are_said_in_minutes() {
        assert_eq!(seconds(Duration::from_millis(1_260)), "1.3 s");
        assert_eq!(seconds(Duration::from_secs(125)), "2 min 05 s");
    }
}
