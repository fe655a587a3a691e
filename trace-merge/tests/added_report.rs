//! A report is one file and one line in a list: what its description says is its text, its JSON and its place among
//! all.
//!
//! Shows: A report that a test adds appears in every command, page and table.
#![allow(missing_docs, clippy::unwrap_used)] // A test binary: nothing to document, may panic.

use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use strata_analysis::timeline::{Input, Origin, Timeline};
use strata_analysis::{Analysis, Passed};
use strata_recording::layer::LayerKind;
use strata_recording::reader::Trace;
use strata_recording::test_trace::TestTrace;
use trace_merge::report::all::AllReports;
use trace_merge::report::description::{Description, Requested};
use trace_merge::report::rows::columns;
use trace_merge::report::rows::columns::{Column, ReportRow, Unit, column};
use trace_merge::report::sink::Sink;
use trace_merge::report::{self, Report, ReportBuilder, ReportError, ReportOptions, Window};

const DESCRIPTION: Description = Description {
    name: "records",
    about: "Records, by CPU",
    requested: Requested::Command,
    examples: &[],
    takes_symbols: false,
    is_in_all: true,
    rows: &[columns::rows::<CpuRecords>("cpus[]")],
    begin: |_, _, _| Ok(Box::new(Counts::default())),
};

#[derive(Serialize)]
struct Records {
    #[serde(serialize_with = "columns::serialize")]
    cpus: Vec<CpuRecords>,
}

struct CpuRecords {
    cpu: u32,
    count: u64,
}

impl ReportRow for CpuRecords {
    const COLUMNS: &'static [Column<Self>] = &[
        column("cpu", "CPU", Unit::Number, "The CPU", |row| row.cpu.into()),
        column("count", "records", Unit::Count, "How many records", |row| row.count.into()),
    ];
}

impl Report for Records {
    fn write_text(&self, out: &mut dyn Sink) -> io::Result<()> {
        columns::write(&self.cpus, out)
    }
}

#[derive(Default)]
struct Counts(BTreeMap<u32, u64>);

impl Analysis for Counts {
    fn layers(&self) -> &'static [LayerKind] {
        &[LayerKind::GuestKernel]
    }

    fn record(&mut self, input: &Input<'_>, _timeline: &Timeline) {
        let Origin::Guest { cpu, .. } = input.origin else { return };
        *self.0.entry(cpu).or_default() += 1;
    }
}

impl ReportBuilder for Counts {
    type Report = Records;

    fn finish(self, _trace: &Trace, _passed: &Passed) -> Result<Records, ReportError> {
        let cpus = self.0.into_iter().map(|(cpu, count)| CpuRecords { cpu, count }).collect();
        Ok(Records { cpus })
    }
}

/// Two records of CPU 0 and one of CPU 1.
fn records() -> (tempfile::TempDir, Trace) {
    TestTrace::new().switch(0, 1, 0, 7).switch(0, 2, 7, 0).switch(1, 3, 0, 8).open()
}

#[test]
fn text_and_json_are_those_of_its_columns() {
    let (_dir, trace) = records();
    let shown = |json| {
        let mut out = Vec::new();
        let options = ReportOptions { json, ..ReportOptions::default() };
        DESCRIPTION.run(&trace, &options, None, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };

    let json: serde_json::Value = serde_json::from_str(&shown(true)).unwrap();

    assert_eq!(shown(false), "CPU  records\n  0        2\n  1        1\n");
    assert_eq!(json["cpus"], serde_json::json!([{ "cpu": 0, "count": 2 }, { "cpu": 1, "count": 1 }]));
}

#[test]
fn it_is_among_all_reports_that_are_listed() {
    let (_dir, trace) = records();

    let all = AllReports::new([&DESCRIPTION], &trace, Window::ALL, None).unwrap();
    let all = serde_json::to_value(report::make(&trace, Window::ALL, all).unwrap()).unwrap();

    assert_eq!(all["records"]["cpus"][1]["count"], 1);
}
