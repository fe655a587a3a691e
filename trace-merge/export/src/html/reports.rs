//! The reports as the page shows them: the same values as `strata report all --json`, of long lists the first rows only.

use serde::Serialize;
use serde_json::{Value, json};
use trace_merge::report::registry::REPORTS;

/// Rows of a list that are kept.
const MOST_ROWS: usize = 200;

/// Rows of a list that are not kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct LeftOut {
    /// Where the list is, as keys and indices from the outermost one on.
    path: String,
    rows: usize,
}

/// What the reports that the page shows say of themselves, in the order of its tabs.
pub(super) fn descriptions() -> Vec<Value> {
    let described = REPORTS.into_iter().filter(|report| report.is_in_all).map(|report| {
        let rows = report.rows.iter().map(|rows| json!({ "path": rows.path, "columns": (rows.columns)() }));
        json!({
            "name": report.name,
            "words": report.words(),
            "about": report.about,
            "rows": rows.collect::<Vec<_>>(),
        })
    });
    described.collect()
}

/// Shortens the lists in `value`; what was left out of them.
pub(super) fn shorten(value: &mut Value) -> Vec<LeftOut> {
    let mut left_out = Vec::new();
    shorten_below(value, "", &mut left_out);
    left_out
}

fn shorten_below(value: &mut Value, path: &str, left_out: &mut Vec<LeftOut>) {
    match value {
        Value::Array(rows) => {
            if rows.len() > MOST_ROWS {
                left_out.push(LeftOut { path: path.into(), rows: rows.len() - MOST_ROWS });
                rows.truncate(MOST_ROWS);
            }
            for (index, row) in rows.iter_mut().enumerate() {
                shorten_below(row, &format!("{path}/{index}"), left_out);
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                shorten_below(field, &format!("{path}/{name}"), left_out);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_cut_and_said() {
        let mut value = json!({ "a": [{ "b": vec![0; MOST_ROWS + 3] }], "c": vec![1; MOST_ROWS] });

        let left_out = shorten(&mut value);

        assert_eq!(left_out, [LeftOut { path: "/a/0/b".into(), rows: 3 }]);
        assert_eq!(value["a"][0]["b"].as_array().unwrap().len(), MOST_ROWS);
    }
}
