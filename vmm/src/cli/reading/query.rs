//! `strata query`: questions in SQL.

use clap::Args;
use std::ffi::OsString;

/// Arguments of `strata query`.
#[derive(Debug, Args)]
#[command(
    after_help = "The last argument is the question: SQL, or the name of a ready one (--list). docs/query.md has the \
    tables and their columns. The program strata-query answers, which is a package of its own.\n\n\
    Examples:\n  \
    strata query --list\n  \
    strata query trace steal\n  \
    strata query monday tuesday \"select vm, reason, count(*) from exits group by vm, reason\"\n  \
    strata query tables worst-wakeups --save worst.parquet"
)]
pub struct QueryArgs {
    /// Traces, or folders that `strata export --format parquet` wrote; and the question
    #[arg(value_name = "TRACE… QUESTION", required_unless_present = "list")]
    pub words: Vec<OsString>,
    /// List the ready questions; with the name of one, show its SQL
    #[arg(long, conflicts_with_all = ["json", "save"])]
    pub list: bool,
    /// Print a JSON object a line
    #[arg(long)]
    pub json: bool,
    /// Write the answer to a new file: .parquet, .csv or .json
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub save: Option<OsString>,
}
