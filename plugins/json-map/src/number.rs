//! How results are rounded.

use waystation_plugin::json::significant;

/// From here on a number has no digits behind the point.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

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
                if scaled.abs() < WHOLE_MAX { scaled.round() / power } else { value }
            }
            Self::Significant => significant(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_that_are_not_there_are_not_made_up() {
        for (value, rounding, expected) in [
            (0.1 + 0.2, Rounding::Significant, 0.3),
            (70.754, Rounding::Digits(2), 70.75),
            (70.754, Rounding::Digits(0), 71.0),
            (-2.5, Rounding::Digits(0), -3.0),
            (1e300, Rounding::Digits(9), 1e300),
        ] {
            assert_eq!(rounding.apply(value).to_bits(), f64::to_bits(expected));
        }
    }
}
