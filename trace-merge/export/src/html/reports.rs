//! The reports as the page shows them: what each says of itself, and the blocks of its text.

use serde_json::{Value, json};
use std::io;
use trace_merge::report::all::Reports;
use trace_merge::report::registry::REPORTS;

/// What the reports that the page shows say of themselves, in the order of its tabs.
fn descriptions() -> Vec<Value> {
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

/// What the page gets of `reports`.
///
/// # Errors
/// When one cannot be shown.
pub(super) fn shown(reports: &Reports) -> io::Result<Value> {
    let shown = reports.blocks()?.into_iter().map(|(name, report)| {
        let report = match report {
            Ok(blocks) => json!({ "blocks": blocks }),
            Err(missing) => json!({ "nothing": missing }),
        };
        (name.to_owned(), report)
    });
    let reports: serde_json::Map<String, Value> = shown.collect();
    Ok(json!({ "reports": reports, "descriptions": descriptions() }))
}
