//! The reports as the page shows them: what each says of itself, and the blocks of its text.

use serde::ser::{Error, SerializeMap};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use trace_merge::report::all::Reports;
use trace_merge::report::registry::REPORTS;
use trace_merge::report::sink::Block;

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

/// What the page gets of reports. Each is taken apart when it is its turn, and only then takes memory for it.
#[derive(Serialize)]
pub(super) struct Shown<'r> {
    #[serde(serialize_with = "by_name")]
    reports: &'r Reports,
    descriptions: Vec<Value>,
}

impl<'r> Shown<'r> {
    pub(super) fn of(reports: &'r Reports) -> Self {
        Self { reports, descriptions: descriptions() }
    }
}

/// A report.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum OfReport {
    Blocks(Vec<Block>),
    /// Why there is none.
    Nothing(String),
}

fn by_name<S: Serializer>(reports: &Reports, serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(None)?;
    for (name, report) in reports.blocks() {
        let report = report.map_err(S::Error::custom)?;
        map.serialize_entry(name, &report.map_or_else(OfReport::Nothing, OfReport::Blocks))?;
    }
    map.end()
}
