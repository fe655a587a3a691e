//! `strata export` and `strata open`: recordings in the forms of other tools.

use super::part::PartArgs;
use super::symbols::SymbolArgs;
use crate::cli::completion;
use crate::cli::values::{self, DEFAULT_TRACE};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args};
use std::path::{Path, PathBuf};
use strata_analysis::task_choice::TaskChoice;
use trace_merge::critical_path::CriticalPathOptions;
use trace_merge::moment::{Moment, Part};

/// The only port that the viewer's page may fetch from: that of `trace_processor`.
pub const VIEWER_PORT: u16 = 9001;

/// A form of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A trace of Perfetto.
    Perfetto,
    /// CTF 1.8 traces.
    Ctf,
    /// CTF 2 traces.
    Ctf2,
    /// A folder of Parquet files.
    Parquet,
}

impl Format {
    pub const ALL: [Self; 4] = [Self::Perfetto, Self::Ctf, Self::Ctf2, Self::Parquet];

    /// The name that users type.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Perfetto => "perfetto",
            Self::Ctf => "ctf",
            Self::Ctf2 => "ctf2",
            Self::Parquet => "parquet",
        }
    }

    /// The one that files or folders of this name have.
    fn of_name(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "pftrace" | "perfetto-trace" => Some(Self::Perfetto),
            "parquet" => Some(Self::Parquet),
            _ => None,
        }
    }
}

/// A format by its name.
fn format() -> impl TypedValueParser<Value = Format> {
    let named = |name: String| Format::ALL.into_iter().find(|format| format.name().eq_ignore_ascii_case(&name));
    PossibleValuesParser::new(Format::ALL.map(Format::name)).try_map(move |name| named(name).ok_or("no format"))
}

/// Arguments of `strata export`.
#[derive(Debug, Args)]
#[command(after_help = "Formats:\n  \
    perfetto  host and guests as machines, for ui.perfetto.dev and trace_processor; see docs/perfetto.md\n  \
    ctf       a folder of CTF 1.8 traces, of a part or of a compressed trace; others are CTF 1.8 as they lie. Of a part,\n  \
    \u{20}         all packets that touch it, whole; strata cut takes it exactly\n  \
    ctf2      a folder of CTF 2 traces, which babeltrace2 reads from 2.1 on\n  \
    parquet   a folder of tables for DuckDB, pandas, Spark and `strata query`; see docs/query.md\n\n\
    Examples:\n  \
    strata export trace -o trace.pftrace\n  \
    strata export trace --from 1.5 --until 2.5 -o part.pftrace\n  \
    strata export trace --why web --worst 10 -o trace.pftrace\n  \
    strata export trace --worst 10 -o trace.pftrace\n  \
    strata export trace --format perfetto -o - | zstd > trace.pftrace.zst\n  \
    strata export trace --format ctf --from 1.5 --until 2.5 -o part\n  \
    strata export trace --format ctf2 -o trace-ctf2\n  \
    strata export trace --format parquet -o tables\n  \
    strata export trace --format parquet --tables events,wakeups -o tables\n  \
    strata open trace")]
pub struct ExportArgs {
    /// Trace: a folder, or a file of `strata cut`
    #[arg(default_value = DEFAULT_TRACE)]
    pub trace: PathBuf,
    /// Format to export to [default: perfetto for a PATH that ends with .pftrace or .perfetto-trace, parquet for .parquet]
    #[arg(long, alias = "to", value_name = "FORMAT", ignore_case = true, value_parser = format())]
    pub format: Option<Format>,
    /// File to write, `-` for standard output; for ctf, ctf2 and parquet a folder: a new one, or an empty one of yours
    #[arg(short, long, value_name = "PATH")]
    pub output: PathBuf,
    /// Begin this long after the first record, as in 1.5 or 500ms. A time with a minus (-2s) counts back from
    /// the last record; one with colons (05:03:47, 2026-11-27T05:03:47Z) is UTC
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub from: Option<Moment>,
    /// End this long after the first record. Takes the same forms as --from
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub until: Option<Moment>,
    /// For parquet: only these tables, with commas between them; `events` stands for those of all event types
    #[arg(long, value_name = "TABLE", value_delimiter = ',')]
    pub tables: Vec<String>,
    /// For perfetto: symbols of kernels.
    #[command(flatten)]
    pub symbols: SymbolArgs,
    /// For perfetto: why tasks took so long.
    #[command(flatten)]
    pub why: DrawnWhyArgs,
    /// Replace a file that is there
    #[arg(long)]
    pub force: bool,
}

impl ExportArgs {
    /// The format to export to; `None` where neither the user nor the name of the output says it.
    #[must_use]
    pub fn chosen_format(&self) -> Option<Format> {
        self.format.or_else(|| Format::of_name(&self.output))
    }
}

/// Why tasks took so long, drawn beside the rest.
#[derive(Clone, Debug, Default, Args)]
#[command(group = ArgGroup::new("drawn").args(["why", "worst"]).multiple(true))]
pub struct DrawnWhyArgs {
    /// Draw why these tasks of the guest took so long, as `strata why --task` explains, in Perfetto or on the page
    #[arg(long, value_name = "TASK")]
    pub why: Option<TaskChoice>,
    /// Draw the N longest waits of those tasks, or without --why of all tasks of the VM
    #[arg(long, value_name = "N", value_parser = values::number_in(1..=1000_u16))]
    pub worst: Option<u16>,
    /// The VM of those tasks
    #[arg(long, value_name = "NAME", requires = "drawn", add = completion::vms_of_trace())]
    pub vm: Option<String>,
}

impl DrawnWhyArgs {
    /// Whether there is a question.
    #[must_use]
    pub const fn is_requested(&self) -> bool {
        self.why.is_some() || self.worst.is_some()
    }

    /// The question about tasks in `part`, if there is one.
    #[must_use]
    pub fn options(&self, part: Part) -> Option<CriticalPathOptions> {
        let Part { from, to } = part;
        let Self { why: task, worst, vm } = self.clone();
        let worst = worst.map(usize::from);
        self.is_requested().then(|| CriticalPathOptions { task, vm, worst, from, to, ..CriticalPathOptions::default() })
    }
}

/// Arguments of `strata open`.
#[derive(Debug, Args)]
#[command(
    after_help = "The page at ui.perfetto.dev runs in the browser and fetches the trace from this machine: nothing \
    leaves it. Over ssh, forward the port: ssh -L 9001:127.0.0.1:9001 HOST\n\n\
    Examples:\n  \
    strata open trace\n  \
    strata open trace --from 1.5 --until 2.5\n  \
    strata open trace.pftrace --no-browser"
)]
pub struct OpenArgs {
    /// Trace, a folder or a file of `strata cut`; or a file that `strata export --format perfetto` wrote
    #[arg(default_value = DEFAULT_TRACE)]
    pub trace: PathBuf,
    /// Which part of it.
    #[command(flatten)]
    pub part: PartArgs,
    /// Symbols of kernels.
    #[command(flatten)]
    pub symbols: SymbolArgs,
    /// Port of 127.0.0.1 to serve on; ui.perfetto.dev fetches from 9001 only
    #[arg(long, value_name = "PORT", default_value_t = VIEWER_PORT, value_parser = values::number_in(0..=u16::MAX))]
    pub port: u16,
    /// Only print the address
    #[arg(long)]
    pub no_browser: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;
    use std::time::Duration;

    fn export(args: &[&str]) -> Result<ExportArgs, String> {
        let words = ["strata", "export", "trace", "-o", "out"].iter().chain(args);
        match Cli::try_parse_from(words).map_err(|error| error.to_string())?.command {
            Command::Export(args) => Ok(args),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn part_is_what_the_options_say() {
        let whole = export(&["--format", "perfetto"]).unwrap();
        let part = export(&["--format", "perfetto", "--from", "1.5", "--until", "2.5"]).unwrap();

        assert_eq!((whole.format, whole.from, whole.until), (Some(Format::Perfetto), None, None));
        assert_eq!(
            (part.from, part.until),
            (Some(Duration::from_millis(1_500).into()), Some(Duration::from_millis(2_500).into()))
        );
    }

    #[test]
    fn waits_of_a_task_are_those_of_the_part_that_is_exported() {
        let requested = export(&["--format", "perfetto", "--why", "web/42", "--worst", "3", "--from", "1"]).unwrap();

        let part = Part::of(&requested.trace, requested.from, requested.until).unwrap();
        let why = requested.why.options(part).unwrap();

        assert_eq!((why.task.unwrap().to_string(), why.worst), ("web/42".into(), Some(3)));
        assert_eq!((why.from, why.to), (Some(Duration::from_secs(1)), None));
        assert!(export(&["--format", "perfetto"]).unwrap().why.options(part).is_none());
    }

    #[test]
    fn longest_waits_are_those_of_all_tasks_where_none_is_named() {
        let requested = export(&["--format", "perfetto", "--worst", "3", "--vm", "db"]).unwrap();

        let why = requested.why.options(Part::default()).unwrap();

        assert_eq!((why.task, why.worst, why.vm.as_deref()), (None, Some(3), Some("db")));
        assert!(export(&["--format", "perfetto", "--vm", "db"]).is_err());
    }

    #[test]
    fn format_was_called_to_and_still_is() {
        assert_eq!(export(&["--to", "ctf", "--until", "2"]).unwrap().format, Some(Format::Ctf));
    }

    #[test]
    fn format_is_that_of_the_ending_where_none_is_given() {
        let format = |output, args: &[&str]| {
            let line = [&["strata", "export", "trace", "-o", output], args].concat();
            let Command::Export(args) = Cli::parse_from(line).command else { unreachable!("{output}") };
            args.chosen_format()
        };

        let formats = ["x.pftrace", "a/x.perfetto-trace", "x.parquet", "x", "-"].map(|output| format(output, &[]));

        let perfetto = Some(Format::Perfetto);
        assert_eq!(formats, [perfetto, perfetto, Some(Format::Parquet), None, None]);
        assert_eq!(format("x.pftrace", &["--format", "CTF2"]), Some(Format::Ctf2));
    }

    #[test]
    fn unknown_format_is_refused_with_those_that_there_are() {
        let error = export(&["--format", "perfeto"]).unwrap_err();

        assert!(error.contains("a similar value exists: 'perfetto'"), "{error}");
        assert!(error.contains("[possible values: perfetto, ctf, ctf2, parquet]"), "{error}");
    }
}
