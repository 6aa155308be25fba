//! Numbers as JSON text.

use waystation_plugin::json::to_text;

/// Whole numbers up to here are exact, and written without a fraction.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

/// How a result is rounded.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Rounding {
    /// To this many digits behind the point.
    Digits(i32),
    /// To 15 significant digits: what binary fractions add behind them means nothing.
    Significant,
}

impl Rounding {
    pub(crate) fn apply(self, value: f64) -> f64 {
        match self {
            Self::Digits(digits) => {
                let power = 10_f64.powi(digits);
                let scaled = value * power;
                // Such a number has no digits there.
                if scaled.abs() < WHOLE_MAX { scaled.round() / power } else { value }
            }
            Self::Significant => format!("{value:.14e}").parse().unwrap_or(value),
        }
    }
}

/// The number as JSON text, none when JSON has no such number.
pub(crate) fn write(value: f64) -> Option<String> {
    if !value.is_finite() {
        return None;
    }
    if value.fract() == 0.0 && value.abs() < WHOLE_MAX {
        return Some((value as i64).to_string());
    }
    Some(to_text(&value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_rounded_away_and_digits_are_not() {
        for (value, rounding, expected) in [
            (0.1 + 0.2, Rounding::Significant, "0.3"),
            (70.753_999_999_999_99, Rounding::Significant, "70.754"),
            (123_456_789.012_345, Rounding::Significant, "123456789.012345"),
            (-0.0, Rounding::Significant, "0"),
            (1e300, Rounding::Significant, "1e+300"),
            (70.754, Rounding::Digits(2), "70.75"),
            (70.754, Rounding::Digits(0), "71"),
            (-2.5, Rounding::Digits(0), "-3"),
            (1e300, Rounding::Digits(9), "1e+300"),
        ] {
            assert_eq!(write(rounding.apply(value)).unwrap(), expected);
        }
        assert_eq!(write(f64::INFINITY), None);
    }
}
