//! What documents say about reports is made from the reports' descriptions.
//!
//! Shows: Tables of columns in docs/analysis.md say what the reports describe.
#![allow(missing_docs, clippy::unwrap_used)] // A test binary: nothing to document, may panic.

use std::fmt::Write;
use std::path::Path;
use std::{env, fs};
use trace_merge::report::registry::REPORTS;
use trace_merge::report::rows::columns::{ColumnText, Rows};

/// The document, from here.
const DOCUMENT: &str = "../docs/analysis.md";
/// Set, the document is written in place of compared.
const UPDATE: &str = "STRATA_UPDATE_DOCUMENTS";

/// `text` with `made` between the comments that begin and end the part called `name`.
fn with_part(text: &str, name: &str, made: &str) -> String {
    let (begin, end) = (format!("<!-- made: {name} -->\n"), format!("<!-- end of {name} -->\n"));
    let (before, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("{DOCUMENT} has no part {name}"));
    let (_, after) = rest.split_once(&end).unwrap_or_else(|| panic!("{DOCUMENT}: the part {name} has no end"));
    format!("{before}{begin}\n{made}\n{end}{after}")
}

/// The table of all reports.
fn reports() -> String {
    let mut table = "| `strata report …` | what it shows |\n|---|---|\n".to_owned();
    for report in REPORTS {
        writeln!(table, "| `{}` | {} |", report.words(), report.about).unwrap();
    }
    table
}

/// `columns` with the headings of a distribution's figures in its own row, in place of a row for each.
fn with_figures_joined(columns: Vec<ColumnText>) -> Vec<(ColumnText, String)> {
    let mut joined: Vec<(ColumnText, String)> = Vec::new();
    for column in columns {
        match joined.last_mut().filter(|(of, _)| column.key.starts_with(&format!("{}.", of.key))) {
            Some((_, headings)) if headings.is_empty() => headings.push_str(column.heading),
            Some((_, headings)) => write!(headings, ", {}", column.heading).unwrap(),
            None => {
                let heading = column.heading.to_owned();
                joined.push((column, heading));
            }
        }
    }
    joined
}

/// Units that a key's ending or its meaning tells.
const EVIDENT: [&str; 8] = ["text", "count", "number", "ns", "ticks", "bytes", "percent", "histogram"];

/// The tables of the columns of `rows`.
fn columns(rows: &[Rows]) -> String {
    let mut tables = String::new();
    for Rows { path, columns } in rows {
        let begin = if tables.is_empty() { "" } else { "\n" };
        writeln!(tables, "{begin}| `{path}` in JSON | heading | meaning |\n|---|---|---|").unwrap();
        for (ColumnText { key, unit, meaning, .. }, heading) in with_figures_joined(columns()) {
            let key = Some(key).filter(|key| !key.is_empty()).map_or_else(String::new, |key| format!("`{key}`"));
            let unit = if EVIDENT.contains(&unit) { String::new() } else { format!(" ({unit})") };
            writeln!(tables, "| {key} | {heading} | {meaning}{unit} |").unwrap();
        }
    }
    tables
}

#[test]
fn document_has_what_the_descriptions_of_reports_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(DOCUMENT);
    let text = fs::read_to_string(&path).unwrap();

    let with_reports = with_part(&text, "reports", &reports());
    let made = REPORTS.into_iter().filter(|report| !report.rows.is_empty()).fold(with_reports, |text, report| {
        with_part(&text, &format!("columns of {}", report.name), &columns(report.rows))
    });

    if env::var_os(UPDATE).is_some() {
        fs::write(&path, &made).unwrap();
    }
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text, made, "make it anew with {UPDATE}=1 cargo test -p trace-merge --test documents");
}
