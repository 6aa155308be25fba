//! Figures beside what they may be at most.

use serde_json::{Value, json};

use crate::ui::{self, Align};

/// A figure and what it may be at most.
pub(super) struct Bar {
    name: &'static str,
    figure: f64,
    most: f64,
    unit: &'static str,
}

pub(super) fn bar(name: &'static str, figure: f64, most: f64, unit: &'static str) -> Bar {
    Bar { name, figure, most, unit }
}

/// All of them, and which are met.
pub(super) fn table(bars: &[Bar]) -> String {
    let rows = bars.iter().map(|Bar { name, figure, most, unit }| {
        let met = if figure <= most { "met" } else { "NOT MET" };
        let (figure, most) = (format!("{figure:.2} {unit}"), format!("≤ {most} {unit}"));
        [(*name).to_owned(), figure, most, met.to_owned()]
    });
    let rows: Vec<_> = rows.collect();
    ui::table([Align::Left, Align::Right, Align::Right, Align::Left], &rows)
}

pub(super) fn json(bars: &[Bar]) -> Value {
    let objects = bars.iter().map(|Bar { name, figure, most, unit }| {
        json!({"name": name, "figure": figure, "most": most, "unit": unit})
    });
    objects.collect()
}
