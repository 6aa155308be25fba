//! Units and what one of them is worth.
//!
//! Sources: BIPM, *The International System of Units*, 9th edition (SI units, °C, hour, minute, tonne, litre, bar); NIST
//! Special Publication 811 (2008), appendix B (all others). They rest on exact values: inch 25.4 mm and pound 0.453 592 37 kg
//! (agreement of 1959), standard gravity 9.806 65 m/s², US gallon 231 in³, nautical mile 1852 m, standard atmosphere 101 325
//! Pa, conventional millimetre of mercury 13 595.1 kg/m³ · g · 1 mm. The factors below are written as these products.

/// A unit: a value `x` in it is `(x + shift) * factor` in the unit that its quantity is counted in.
struct Unit {
    name: &'static str,
    quantity: &'static str,
    factor: f64,
    shift: f64,
}

const fn unit(name: &'static str, quantity: &'static str, factor: f64) -> Unit {
    Unit { name, quantity, factor, shift: 0.0 }
}

const fn degrees(name: &'static str, factor: f64, shift: f64) -> Unit {
    Unit { name, quantity: "temperature", factor, shift }
}

const INCH: f64 = 0.0254;
const FOOT: f64 = 12.0 * INCH;
const MILE: f64 = 5280.0 * FOOT;
const POUND: f64 = 0.453_592_37;
const GRAVITY: f64 = 9.806_65;
const HOUR: f64 = 3600.0;
const GALLON: f64 = 231.0 * INCH * INCH * INCH;
const MERCURY: f64 = 13.5951 * GRAVITY;

const UNITS: &[Unit] = &[
    degrees("C", 1.0, 273.15),
    degrees("F", 5.0 / 9.0, 459.67),
    degrees("K", 1.0, 0.0),
    unit("Pa", "pressure", 1.0),
    unit("hPa", "pressure", 100.0),
    unit("kPa", "pressure", 1e3),
    unit("MPa", "pressure", 1e6),
    unit("mbar", "pressure", 100.0),
    unit("bar", "pressure", 1e5),
    unit("atm", "pressure", 101_325.0),
    unit("psi", "pressure", POUND * GRAVITY / (INCH * INCH)),
    unit("mmHg", "pressure", MERCURY),
    unit("inHg", "pressure", 25.4 * MERCURY),
    unit("um", "length", 1e-6),
    unit("mm", "length", 1e-3),
    unit("cm", "length", 1e-2),
    unit("m", "length", 1.0),
    unit("km", "length", 1e3),
    unit("in", "length", INCH),
    unit("ft", "length", FOOT),
    unit("yd", "length", 3.0 * FOOT),
    unit("mi", "length", MILE),
    unit("nmi", "length", 1852.0),
    unit("mm/s", "speed", 1e-3),
    unit("m/s", "speed", 1.0),
    unit("km/h", "speed", 1e3 / HOUR),
    unit("mph", "speed", MILE / HOUR),
    unit("kn", "speed", 1852.0 / HOUR),
    unit("ft/s", "speed", FOOT),
    unit("g", "mass", 1e-3),
    unit("kg", "mass", 1.0),
    unit("t", "mass", 1e3),
    unit("oz", "mass", POUND / 16.0),
    unit("lb", "mass", POUND),
    unit("mL", "volume", 1e-6),
    unit("L", "volume", 1e-3),
    unit("m3", "volume", 1.0),
    unit("gal", "volume", GALLON),
    unit("J", "energy", 1.0),
    unit("kJ", "energy", 1e3),
    unit("MJ", "energy", 1e6),
    unit("Wh", "energy", HOUR),
    unit("kWh", "energy", 1e3 * HOUR),
    unit("MWh", "energy", 1e6 * HOUR),
    unit("W", "power", 1.0),
    unit("kW", "power", 1e3),
    unit("MW", "power", 1e6),
    unit("hp", "power", 550.0 * FOOT * POUND * GRAVITY),
    unit("1", "ratio", 1.0),
    unit("%", "ratio", 1e-2),
    unit("permille", "ratio", 1e-3),
    unit("ppm", "ratio", 1e-6),
    unit("us", "duration", 1e-6),
    unit("ms", "duration", 1e-3),
    unit("s", "duration", 1.0),
    unit("min", "duration", 60.0),
    unit("h", "duration", HOUR),
    unit("d", "duration", 24.0 * HOUR),
];

/// A way from one unit to another: `x * factor + offset`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Conversion {
    pub(crate) factor: f64,
    pub(crate) offset: f64,
}

impl Conversion {
    /// # Errors
    /// The key that is wrong, and why.
    pub(crate) fn between(from: &str, to: &str) -> Result<Self, String> {
        let find = |key: &str, name: &str| {
            let unit = UNITS.iter().find(|unit| unit.name == name);
            unit.ok_or_else(|| {
                let names: Vec<_> = UNITS.iter().map(|unit| unit.name).collect();
                format!("{key}: there is no unit \"{name}\"; there are {}", names.join(", "))
            })
        };
        let (from, to) = (find("from", from)?, find("to", to)?);
        if from.quantity != to.quantity {
            return Err(format!(
                "to: {} is a {} and {} a {}",
                from.name, from.quantity, to.name, to.quantity
            ));
        }
        let factor = from.factor / to.factor;
        Ok(Self { factor, offset: from.shift * factor - to.shift })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn convert(value: f64, from: &str, to: &str) -> f64 {
        let Conversion { factor, offset } = Conversion::between(from, to).unwrap();
        value * factor + offset
    }

    /// Values as NIST SP 811, appendix B, prints them, to the digits that it gives.
    #[test]
    fn factors_are_those_of_the_tables() {
        for (value, from, to, expected) in [
            (0.0, "C", "F", 32.0),
            (212.0, "F", "C", 100.0),
            (0.0, "K", "C", -273.15),
            (-40.0, "F", "C", -40.0),
            (1.0, "psi", "Pa", 6.894_757e3),
            (1.0, "mmHg", "Pa", 1.333_224e2),
            (1.0, "inHg", "Pa", 3.386_389e3),
            (1.0, "atm", "hPa", 1013.25),
            (1.0, "bar", "kPa", 100.0),
            (1013.25, "mbar", "hPa", 1013.25),
            (1.0, "MPa", "bar", 10.0),
            (1.0, "ft", "m", 0.3048),
            (1.0, "yd", "m", 0.9144),
            (1.0, "mi", "km", 1.609_344),
            (1.0, "nmi", "m", 1852.0),
            (1.0, "in", "mm", 25.4),
            (1.0, "m", "um", 1e6),
            (1.0, "cm", "mm", 10.0),
            (1.0, "mph", "m/s", 0.447_04),
            (1.0, "kn", "m/s", 0.514_444_4),
            (1.0, "km/h", "m/s", 0.277_777_8),
            (1.0, "ft/s", "mm/s", 304.8),
            (1.0, "lb", "kg", 0.453_592_4),
            (1.0, "oz", "g", 28.349_52),
            (1.0, "t", "kg", 1e3),
            (1.0, "gal", "L", 3.785_412),
            (1.0, "m3", "mL", 1e6),
            (1.0, "kWh", "MJ", 3.6),
            (1.0, "MWh", "kJ", 3.6e6),
            (1.0, "Wh", "J", 3600.0),
            (1.0, "hp", "W", 7.456_999e2),
            (1.0, "MW", "kW", 1e3),
            (12.5, "%", "1", 0.125),
            (1.0, "permille", "ppm", 1e3),
            (1.5, "h", "min", 90.0),
            (1.0, "d", "s", 86_400.0),
            (1.0, "ms", "us", 1e3),
        ] {
            let found = convert(value, from, to);
            let error = (found - expected).abs();
            assert!(error <= expected.abs().max(1.0) * 1e-6, "{value} {from} is {found} {to}");
            let back = convert(found, to, from);
            assert!((back - value).abs() < 1e-9, "{value} {from} comes back as {back}");
        }
    }

    #[test]
    fn a_name_is_there_once_and_units_of_different_quantities_do_not_mix() {
        for (at, unit) in UNITS.iter().enumerate() {
            assert!(UNITS[at + 1..].iter().all(|other| other.name != unit.name), "{}", unit.name);
        }
        let error = Conversion::between("C", "psi").unwrap_err();
        assert_eq!(error, "to: C is a temperature and psi a pressure");
        let error = Conversion::between("celsius", "F").unwrap_err();
        assert!(
            error.starts_with("from: there is no unit \"celsius\"; there are C, F, K"),
            "{error}"
        );
    }
}
