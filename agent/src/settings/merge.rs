//! Puts the tables of several files together: what one says goes on in the next, and nothing is said twice.

use toml::de::{DeTable, DeValue};

use super::listing::join;
use super::problem::{Complaint, Problem, Problems, Severity};

/// Adds what `more` holds to `table`; what both say is a problem at the later place, which names the earlier one.
pub fn merge<'d>(table: &mut DeTable<'d>, more: DeTable<'d>, problems: &mut Problems) {
    merge_below(table, more, "", problems);
}

fn merge_below<'d>(
    table: &mut DeTable<'d>,
    more: DeTable<'d>,
    path: &str,
    problems: &mut Problems,
) {
    for (key, value) in more {
        let path = join(path, key.get_ref());
        let Some((known, before)) = table.get_key_value(&key) else {
            table.insert(key, value);
            continue;
        };
        let place = known.span();
        if matches!((before.get_ref(), value.get_ref()), (DeValue::Table(_), DeValue::Table(_)))
            && let (Some(before), DeValue::Table(more)) = (table.get_mut(&key), value.into_inner())
            && let DeValue::Table(before) = before.get_mut()
        {
            merge_below(before, more, &path, problems);
            continue;
        }
        let message = format!("`{path}` is set in two files");
        let hint =
            format!("keep one of the two: it stands in {}, too", problems.shown_place(place.start));
        let complaint = Complaint::new(message).hint(hint);
        problems.push(Problem::new(Severity::Error, path, Some(key.span()), complaint));
    }
}
