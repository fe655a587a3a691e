//! The file: the page's own parts, and the contents between them.
//!
//! Whatever comes from the recording lies in elements that the browser does not run: JSON in which `<`, `>` and `&` are
//! escaped, and base64. Scripts run only with this file's own nonce, and nothing may be fetched.

use super::category::Category;
use super::drawing::Drawing;
use super::encoding::{write_packed, write_packed_json};
use super::reports::Shown;
use super::stacks;
use crate::Exported;
use serde_json::json;
use std::io::{self, Write};
use strata_analysis::completeness::Completeness;
use strata_recording::reader::Trace;
use strata_recording::window::Window;
use trace_merge::report::all::Reports;
use trace_merge::report::findings::Finding;
use trace_merge::report::rows::columns::Value;
use uuid::Uuid;

const HEAD: &str = include_str!("page/head.html");
const BODY: &str = include_str!("page/body.html");
const STYLE: &str = include_str!("page/style.css");
/// The scripts, in the order in which they need each other.
const SCRIPTS: [&str; 20] = [
    include_str!("page/format.js"),
    include_str!("page/decode.js"),
    include_str!("page/theme.js"),
    include_str!("page/view.js"),
    include_str!("page/draw.js"),
    include_str!("page/counters.js"),
    include_str!("page/arrows.js"),
    include_str!("page/records.js"),
    include_str!("page/chosen_rows.js"),
    include_str!("page/bookmarks.js"),
    include_str!("page/details.js"),
    include_str!("page/search.js"),
    include_str!("page/keyboard.js"),
    include_str!("page/pointer.js"),
    include_str!("page/distributions.js"),
    include_str!("page/reports.js"),
    include_str!("page/places.js"),
    include_str!("page/address.js"),
    include_str!("page/flame.js"),
    include_str!("page/main.js"),
];
/// What stands for the nonce in the page's own parts.
const NONCE: &str = "{{nonce}}";

/// What goes into the page.
pub(super) struct Contents<'t> {
    pub(super) trace: &'t Trace,
    /// What is shown, ticks.
    pub(super) part: Window,
    pub(super) reports: Reports,
    pub(super) findings: Vec<Finding>,
    pub(super) completeness: &'t Completeness,
    /// Records in that part.
    pub(super) records: u64,
    pub(super) drawn: Drawing<'t>,
}

impl Contents<'_> {
    /// Writes the page.
    ///
    /// # Errors
    /// When `out` fails.
    pub(super) fn write(mut self, out: impl Write) -> io::Result<Exported> {
        let mut out = Counted { out, bytes: 0 };
        let nonce = Uuid::new_v4().simple().to_string();
        out.write_all(HEAD.replace(NONCE, &nonce).as_bytes())?;
        write!(out, "<style nonce=\"{nonce}\">\n{STYLE}</style>\n")?;
        out.write_all(BODY.as_bytes())?;
        let stacks = stacks::reported(self.reports.functions());
        let about = self.about()?;
        write_json(&mut out, "about", &about)?;
        self.write_columns(&mut out)?;
        for (name, column) in std::mem::take(&mut self.drawn.records).into_columns() {
            write_tag(&mut out, name, |out| column.write(out))?;
        }
        write_tag(&mut out, "reports", |out| write_packed_json(out, &Shown::of(&self.reports)))?;
        write_tag(&mut out, "stacks", |out| write_packed_json(out, &stacks))?;
        write_tag(&mut out, "flows", |out| write_packed_json(out, self.drawn.flows.kept()))?;
        for script in SCRIPTS {
            write!(out, "<script nonce=\"{nonce}\">\n{script}</script>\n")?;
        }
        out.write_all(b"</body>\n</html>\n")?;
        out.flush()?;
        let drawn = about["records"]["kept"].as_u64().unwrap_or(0);
        Ok(Exported { bytes: out.bytes, records: self.records, drawn, incomplete: self.completeness.line() })
    }

    /// What the page gets beside the columns.
    fn about(&mut self) -> io::Result<serde_json::Value> {
        let manifest = self.trace.manifest();
        let clock = self.trace.clock();
        let begin_ns = clock.ticks_to_ns(self.part.begin);
        let start_ns = self.trace.start().map_or(begin_ns, |start| clock.ticks_to_ns(start));
        let layers = self.trace.layers();
        let layer_name = |layer: usize| layers.get(layer).map_or("", |layer| layer.description.kind.name());
        let vms: Vec<&str> = manifest.vms.iter().map(|vm| vm.name.as_str()).collect();
        let incomplete = self.completeness.line();
        let length_ns = self.drawn.length_ns();
        let records = serde_json::to_value(self.drawn.records.reported(layer_name))?;
        let rows: Vec<_> = self.drawn.rows.iter().collect();
        Ok(json!({
            "strata": env!("CARGO_PKG_VERSION"),
            "host": manifest.host.hostname,
            "vms": vms,
            "started": manifest.started,
            "begin_ns": begin_ns.saturating_sub(start_ns),
            "begin_ticks": self.part.begin,
            "length_ns": length_ns,
            "frequency_hz": clock.frequency_hz,
            "clock": {
                "source": clock.source,
                "error_bound_ns": clock.error_bound_ns,
                "bound_derivation": clock.bound_derivation,
            },
            "outcome": manifest.outcome_text(),
            "incomplete": incomplete,
            "missing": self.completeness.missing,
            "findings": Value::rows(&self.findings),
            "categories": Category::ALL.map(Category::name),
            "rows": rows,
            "names": self.drawn.rows.names,
            "slices": { "all": self.drawn.rows.slices(), "left_out_from": self.drawn.rows.left_out_from() },
            "all_records": self.records,
            "records": records,
            "counters": self.drawn.counting.counters,
            "arrows": self.drawn.arrows,
            "flows_left_out": self.drawn.flows.left_out(),
            "tasks_left_out": self.drawn.tasks_left_out.len(),
        }))
    }

    fn write_columns(&self, out: &mut impl Write) -> io::Result<()> {
        let mut levels = Vec::new();
        self.drawn.rows.iter().for_each(|row| row.put_levels(&mut levels));
        write_column(out, "levels", &levels)?;
        for (number, row) in self.drawn.rows.iter().enumerate() {
            write_column(out, &format!("slices-{number}"), &row.encoded())?;
        }
        write_column(out, "counters", &self.drawn.counting.counters.encoded())?;
        write_column(out, "arrows", self.drawn.arrows.encoded())
    }
}

fn write_column(out: &mut impl Write, id: &str, bytes: &[u8]) -> io::Result<()> {
    write_tag(out, id, |out| write_packed(out, bytes))
}

fn write_tag<W: Write>(out: &mut W, id: &str, content: impl FnOnce(&mut W) -> io::Result<()>) -> io::Result<()> {
    write!(out, "<script type=\"application/octet-stream\" id=\"{id}\">")?;
    content(out)?;
    out.write_all(b"</script>\n")
}

/// Writes `value` as JSON in which nothing is HTML.
fn write_json(out: &mut impl Write, id: &str, value: &serde_json::Value) -> io::Result<()> {
    let json = serde_json::to_string(value)?;
    let json = json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
    writeln!(out, "<script type=\"application/json\" id=\"{id}\">{json}</script>")
}

/// Counts what is written.
struct Counted<W> {
    out: W,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
