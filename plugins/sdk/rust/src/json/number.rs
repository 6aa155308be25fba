//! Numbers as JSON text.

use super::to_text;

/// Whole numbers up to here are exact, and written without a fraction.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

/// A number as JSON text, none when JSON has no such number. A whole one has no fraction.
#[must_use]
pub fn number_text(value: f64) -> Option<String> {
    if !value.is_finite() {
        return None;
    }
    if value.fract() == 0.0 && value.abs() < WHOLE_MAX {
        return Some((value as i64).to_string());
    }
    Some(to_text(&value))
}

/// A number with 15 significant digits: what binary fractions add behind them means nothing.
#[must_use]
pub fn significant(value: f64) -> f64 {
    format!("{value:.14e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_rounded_away_and_digits_are_not() {
        for (value, expected) in [
            (0.1 + 0.2, "0.3"),
            (70.753_999_999_999_99, "70.754"),
            (123_456_789.012_345, "123456789.012345"),
            (-0.0, "0"),
            (1e300, "1e+300"),
        ] {
            assert_eq!(number_text(significant(value)).unwrap(), expected);
        }
        assert_eq!(number_text(f64::INFINITY), None);
    }
}
