//! `strata-query`: what `strata export --format parquet` and `strata query` run.
#![allow(unsafe_code)] // Sets how the C library's allocator handles large blocks.

#[cfg(feature = "sql")]
mod question;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use strata_export::{Exported, Options, readable_size};
use strata_query::parquet::{self, Selection};
use strata_recording::files::access::Readers;
use strata_recording::files::trace_folder::TraceFolder;
use strata_recording::reader::Trace;
use strata_recording::text::terminal::{harmless, shell_path};
use trace_merge::moment::Moment;
use trace_merge::progress;

/// The exit status of a command that could not do what was requested, as clap's of wrong options and `strata`'s.
const TROUBLE: u8 = 2;

/// Recordings as Parquet, and SQL over them.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write a recording as a folder of Parquet files
    Export(ExportArgs),
    /// Ask recordings, or folders of tables, a question in SQL
    #[cfg(feature = "sql")]
    Query(question::QueryArgs),
    /// Says how to build the program that can do this
    #[cfg(not(feature = "sql"))]
    #[command(hide = true)]
    Query(NoSql),
}

/// A question to `strata query`, in a program that cannot answer.
#[cfg(not(feature = "sql"))]
#[derive(Debug, Args)]
struct NoSql {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    _words: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  strata export trace --format parquet -o tables\n  \
    strata export trace --format parquet --tables events,wakeups -o tables")]
struct ExportArgs {
    /// Trace folder
    trace: PathBuf,
    /// Folder to write: a new one, or an empty one of yours
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Only what is this long after the first record, as in 1.5 or 500ms, or later. A time with a minus (-2s) counts back from
    /// the last one; one with colons (05:03:47, 2026-11-27T05:03:47Z) is UTC
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    from: Option<Moment>,
    /// Only what is earlier than this long after the first record. Takes the same forms as --from
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    until: Option<Moment>,
    /// Only these tables, with commas between them; `events` stands for those of all event types
    #[arg(long, value_name = "TABLE", value_delimiter = ',')]
    tables: Vec<String>,
    /// Write the files that fleet.py puts into its lake instead: one for each part, host and day
    #[arg(long)]
    lake: bool,
}

/// Large blocks are the kernel's own, and go back to it when they are freed. Columns are made on one thread and freed on
/// another; left to itself the C library gets used to their sizes, keeps them, and cuts them up: four times the recording
/// took nearly twice the memory.
#[cfg(target_env = "gnu")]
fn give_large_blocks_back() {
    const LARGE: libc::c_int = 128 << 10;
    // SAFETY: the call changes a number of the allocator, before there is another thread.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE) };
}

fn main() -> ExitCode {
    #[cfg(target_env = "gnu")]
    give_large_blocks_back();
    let done = match Cli::parse().command {
        Command::Export(args) => export(&args),
        #[cfg(feature = "sql")]
        Command::Query(args) => question::answer(&args),
        #[cfg(not(feature = "sql"))]
        Command::Query(_) => Err(anyhow::anyhow!(
            "this strata-query was built without SQL (--no-default-features), and only exports; build it without that"
        )),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has read enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            notify(&format!("{error:#}"));
            ExitCode::from(TROUBLE)
        }
    }
}

/// Prints a line on standard error, as `strata` does.
fn notify(line: &str) {
    // What cannot be printed there has no other place to go.
    let _ = writeln!(io::stderr(), "strata: {}", harmless(line));
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let is_pipe = |cause: &io::Error| cause.kind() == io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref().is_some_and(is_pipe))
}

fn export(args: &ExportArgs) -> anyhow::Result<()> {
    let trace = Trace::open(&args.trace)?;
    let from = args.from.map(|moment| moment.begin(&args.trace)).transpose()?;
    let to = args.until.map(|moment| moment.end(&args.trace)).transpose()?;
    let selection = match args.tables.as_slice() {
        [] => Selection::All,
        names => Selection::chosen(names, &trace)?,
    };
    let export = if args.lake { parquet::export_for_lake } else { parquet::export };
    let mut folder = TraceFolder::create(&args.output, Readers::Owner)?;
    let guard = folder.removed_on_signal().context("signals cannot be taken")?;
    let exported = progress::shown("exporting", &notify, |progress| {
        let options = Options { from, to, progress: Some(progress) };
        export(&trace, &options, &args.output, &selection)
    })?;
    folder.keep();
    drop(guard);
    let Exported { bytes, records, drawn, incomplete } = exported;
    if let Some(incomplete) = incomplete {
        notify(&incomplete);
    }
    let (output, size) = (shell_path(&args.output), readable_size(bytes));
    notify(&format!("{output}: {records} records, as {drawn} rows, {size}"));
    if !args.lake {
        notify(&format!("next: strata query {output} --list"));
    }
    Ok(())
}
