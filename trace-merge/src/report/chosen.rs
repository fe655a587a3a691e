//! A report that shows only some rows.

use super::description::{Description, Made};
use super::rows::choice::{Choice, Chosen};
use super::{JSON_VERSION, ReportError, ReportOptions};
use crate::report::sink::Sink;
use std::io;
use std::path::Path;
use strata_analysis::completeness::Completeness;
use strata_recording::reader::Trace;
use strata_recording::text::terminal::{HarmlessJson, harmless};

/// As [`Description::run`] of `described`, but only the rows of `choice`. Says what `run` does, what CSV has no place
/// for, and where no row is left.
///
/// # Errors
/// As those of `run`, and when the report has no such rows.
pub fn run(
    described: &Description,
    trace: &Trace,
    options: &ReportOptions,
    symbols: Option<&Path>,
    choice: &Choice,
    out: &mut dyn Sink,
) -> Result<Vec<String>, ReportError> {
    if choice.is_all() {
        return Ok(described.run(trace, options, symbols, out)?.into_iter().collect());
    }
    let Made { report, completeness, missed } = described.make(trace, options, symbols)?;
    let value = report.to_json().map_err(|error| ReportError::Write(error.into()))?;
    let chosen = choice.of(described.name, described.rows, &value)?;
    let mut notices: Vec<String> = missed.into_iter().collect();
    if choice.csv {
        notices.extend(completeness.line());
    }
    notices.extend(chosen.nothing());
    if choice.csv || options.json {
        notices.extend(chosen.left_out());
    }
    let written = if choice.csv {
        chosen.write_csv(out)
    } else if options.json {
        write_json(&chosen, completeness, out)
    } else {
        write_text(&chosen, completeness, out)
    };
    match written.and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(ReportError::Write(error)),
        _ => Ok(notices),
    }
}

fn write_json(chosen: &Chosen, completeness: Completeness, out: &mut dyn Sink) -> io::Result<()> {
    let mut value = chosen.to_json();
    value.insert("json_version".into(), JSON_VERSION.into());
    value.insert("completeness".into(), serde_json::to_value(completeness)?);
    serde_json::to_writer_pretty(HarmlessJson(&mut *out), &value)?;
    writeln!(out)
}

fn write_text(chosen: &Chosen, completeness: Completeness, out: &mut dyn Sink) -> io::Result<()> {
    completeness.line().into_iter().try_for_each(|line| writeln!(out, "{}", harmless(&line)))?;
    chosen.write_text(out)
}
