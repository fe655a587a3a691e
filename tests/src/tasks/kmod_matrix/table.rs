//! What became of each kernel of the matrix, as text.

use crate::fetch::kernel_packages::{Flavour, KernelChoice, Suite};
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use strata_kmod_build::LeftOut;

/// The table's head, as Markdown.
pub(super) const HEAD: &str = "\
| kernel | of Debian's | compiler | RT | BTF | events | trace headers left out | seconds |
|---|---|---|---|---|---:|---|---:|";

/// The head of the table in the document.
const DOCUMENT_HEAD: &str = "\
| Debian | kernel | events | headers left out |
|---|---|---|---|
";

/// What stands for a kernel that was not built.
const NONE: &str = "–";

/// A kernel of the matrix.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    /// Which one.
    #[serde(serialize_with = "as_text")]
    pub(super) kernel: KernelChoice,
    /// What its suite offers; `None` where that is not known.
    #[serde(flatten)]
    pub(super) offered: Option<OfferedKernel>,
    /// What became of it.
    #[serde(flatten)]
    pub(super) outcome: Outcome,
    /// How long the module's build took.
    pub(super) seconds: f64,
}

/// A kernel that was unpacked.
#[derive(Clone, Debug, Serialize)]
pub(super) struct OfferedKernel {
    /// Its release, as `uname -r` says it.
    pub(super) release: String,
    /// The version of its packages.
    pub(super) version: String,
    /// The compiler that it was built with, such as `gcc-12`.
    pub(super) compiler: Option<String>,
    /// Whether it is a preemptible-RT kernel.
    pub(super) realtime: bool,
}

/// What became of a kernel.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub(super) enum Outcome {
    /// A module was built.
    Built {
        /// Events that the module records.
        events: usize,
        /// Tracepoints that the kernel has and the module does not record.
        missing: usize,
        /// Whether the kernel's BTF was used.
        btf: bool,
        /// How many trace headers are not in the module, by reason.
        left_out: BTreeMap<Reason, usize>,
    },
    /// There should be a module, and there is none.
    Failed { why: String },
    /// The kernel is not to be had: its suite, or the mirror, does not have it.
    Absent {
        /// What is missing.
        why: String,
    },
}

/// Why a trace header is not in a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reason {
    DoesNotCompile,
    NotExported,
    Other,
}

impl Reason {
    fn of(reason: &str) -> Self {
        if reason.starts_with("does not compile") {
            Self::DoesNotCompile
        } else if reason.ends_with("which the kernel does not export") {
            Self::NotExported
        } else {
            Self::Other
        }
    }

    const fn text(self, count: usize) -> &'static str {
        match (self, count) {
            (Self::DoesNotCompile, 1) => "does not compile",
            (Self::DoesNotCompile, _) => "do not compile",
            (Self::NotExported, 1) => "needs what is not exported",
            (Self::NotExported, _) => "need what is not exported",
            (Self::Other, _) => "for another reason",
        }
    }
}

/// How many of `headers` are left out for each reason.
pub(super) fn counts(headers: &[LeftOut]) -> BTreeMap<Reason, usize> {
    let mut counts = BTreeMap::new();
    for header in headers {
        *counts.entry(Reason::of(&header.reason)).or_default() += 1;
    }
    counts
}

fn as_text<S: Serializer>(kernel: &KernelChoice, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(kernel)
}

impl Row {
    /// The row as Markdown, without a line's end.
    pub(super) fn markdown(&self) -> String {
        let (release, compiler, realtime) = self.offered.as_ref().map_or((NONE, NONE, ""), |offered| {
            let compiler = offered.compiler.as_deref().unwrap_or("unnamed");
            (offered.release.as_str(), compiler, if offered.realtime { "RT" } else { "" })
        });
        let (btf, events, left_out) = match &self.outcome {
            Outcome::Built { events, btf, left_out, .. } => {
                (if *btf { "yes" } else { "no" }, events.to_string(), described(left_out))
            }
            Outcome::Failed { why } => ("", String::new(), format!("failed: {}", one_line(why))),
            Outcome::Absent { why } => ("", String::new(), format!("not to be had: {}", one_line(why))),
        };
        let (kernel, seconds) = (self.kernel, self.seconds);
        format!("| {release} | {kernel} | {compiler} | {realtime} | {btf} | {events} | {left_out} | {seconds:.0} |")
    }

    /// Whether the matrix has failed with it; a kernel that was `named` has to be there.
    pub(super) fn has_failed(&self, named: bool) -> bool {
        match self.outcome {
            Outcome::Built { .. } => false,
            Outcome::Failed { .. } => true,
            Outcome::Absent { .. } => named,
        }
    }
}

/// A text that may come from a program, as a cell of a table.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn described(left_out: &BTreeMap<Reason, usize>) -> String {
    let total: usize = left_out.values().sum();
    let reasons: Vec<_> = left_out.iter().map(|(reason, count)| format!("{count} {}", reason.text(*count))).collect();
    if reasons.is_empty() { "0".to_owned() } else { format!("{total}: {}", reasons.join(", ")) }
}

/// The table of the document: a row for each suite with an unpacked kernel, with its cloud, generic and RT kernels.
pub(super) fn document(rows: &[Row]) -> String {
    Suite::WITH_MODULE
        .into_iter()
        .filter_map(|suite| suite_row(suite, rows))
        .fold(DOCUMENT_HEAD.to_owned(), |a, b| a + &b)
}

fn suite_row(suite: Suite, rows: &[Row]) -> Option<String> {
    let flavours = [Flavour::Cloud, Flavour::Generic, Flavour::Realtime];
    let of = flavours.map(|flavour| rows.iter().find(|row| row.kernel == KernelChoice { suite, flavour }));
    let offered = of.iter().flatten().find_map(|row| row.offered.as_ref())?;
    let each = |cell: fn(&Outcome) -> String| {
        let cells = of.map(|row| row.map_or_else(|| NONE.to_owned(), |row| cell(&row.outcome)));
        cells.join("/")
    };
    let events = each(|outcome| match outcome {
        Outcome::Built { events, .. } => events.to_string(),
        Outcome::Failed { .. } => "failed".to_owned(),
        Outcome::Absent { .. } => NONE.to_owned(),
    });
    let left_out = each(|outcome| match outcome {
        Outcome::Built { left_out, .. } => left_out.values().sum::<usize>().to_string(),
        Outcome::Failed { .. } | Outcome::Absent { .. } => NONE.to_owned(),
    });
    Some(format!("| {} | {} | {events} | {left_out} |\n", suite.name(), offered.version))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(kernel: &str, outcome: Outcome) -> Row {
        let kernel = KernelChoice::parse_with_module(kernel).unwrap();
        let offered = OfferedKernel {
            release: "5.10.0-46-rt-amd64".to_owned(),
            version: "5.10.262-1".to_owned(),
            compiler: Some("gcc-10".to_owned()),
            realtime: kernel.flavour == Flavour::Realtime,
        };
        let offered = (!matches!(outcome, Outcome::Absent { .. })).then_some(offered);
        Row { kernel, offered, outcome, seconds: 61.4 }
    }

    fn built(events: usize, left_out: &[LeftOut]) -> Outcome {
        Outcome::Built { events, missing: 9, btf: true, left_out: counts(left_out) }
    }

    fn left_out(reason: &str) -> LeftOut {
        LeftOut { header: "trace/events/x.h".to_owned(), reason: reason.to_owned() }
    }

    #[test]
    fn row_counts_headers_by_reason() {
        let headers = [
            left_out("does not compile outside the kernel's sources: x"),
            left_out("uses f, which the kernel does not export"),
            left_out("does not compile outside the kernel's sources: y"),
            left_out("declares two fields of one name in an event"),
        ];

        let text = row("bullseye-rt", built(700, &headers)).markdown();

        let why = "4: 2 do not compile, 1 needs what is not exported, 1 for another reason";
        assert_eq!(text, format!("| 5.10.0-46-rt-amd64 | bullseye-rt | gcc-10 | RT | yes | 700 | {why} | 61 |"));
    }

    #[test]
    fn failure_is_one_line_of_one_cell() {
        let failed = row("bullseye", Outcome::Failed { why: "make failed: x.c:1:\n  error: a | b".to_owned() });

        let text = failed.markdown();

        assert!(text.contains("| failed: make failed: x.c:1: error: a \\| b |"), "{text}");
        assert!(failed.has_failed(false));
    }

    #[test]
    fn kernel_that_a_suite_lacks_is_a_failure_only_where_it_was_named() {
        let absent = row("sid-rt", Outcome::Absent { why: "no linux-image-rt-amd64".to_owned() });

        assert_eq!([false, true].map(|named| absent.has_failed(named)), [false, true]);
        assert!(absent.markdown().starts_with("| – | sid-rt | – |  |  |  | not to be had: no linux"));
    }

    #[test]
    fn document_has_a_row_for_each_suite() {
        let rows = [
            row("bullseye", built(650, &[])),
            row("bullseye-generic", Outcome::Failed { why: "x".to_owned() }),
            row("sid-rt", Outcome::Absent { why: "x".to_owned() }),
        ];

        let text = document(&rows);

        assert_eq!(text, format!("{DOCUMENT_HEAD}| bullseye | 5.10.262-1 | 650/failed/– | 0/–/– |\n"));
    }

    #[test]
    fn json_names_kernel_outcome_and_reasons() {
        let built = row("bullseye", built(650, &[left_out("uses f, which the kernel does not export")]));

        let json = serde_json::to_value(built).unwrap();

        assert_eq!(
            (&json["kernel"], &json["outcome"], &json["events"]),
            (&"bullseye".into(), &"built".into(), &650.into())
        );
        assert_eq!((&json["release"], &json["left_out"]["not_exported"]), (&"5.10.0-46-rt-amd64".into(), &1.into()));
    }
}
