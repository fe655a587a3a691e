//! `strata query`.

use clap::Args;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::PathBuf;
use strata_query::sql::{self, Form, Inputs, READY, Ready, Saved};
use trace_merge::report::rows::table::{Align, Table};

/// Arguments of `strata query`.
#[derive(Debug, Args)]
#[command(after_help = "The last argument is the question: SQL, or the name of a ready one (--list).\n\n\
    Examples:\n  \
    strata query --list\n  \
    strata query trace steal\n  \
    strata query monday tuesday \"select vm, reason, count(*) from exits group by vm, reason\"\n  \
    strata query tables worst-wakeups --save worst.parquet")]
pub(crate) struct QueryArgs {
    /// Trace folders, or folders that `strata export --format parquet` wrote; and the question
    #[arg(value_name = "TRACE… QUESTION", required_unless_present = "list")]
    words: Vec<String>,
    /// List the ready questions; with the name of one, show its SQL
    #[arg(long)]
    list: bool,
    /// Print a JSON object a line
    #[arg(long)]
    json: bool,
    /// Write the answer to a new file: .parquet, .csv or .json
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    save: Option<PathBuf>,
}

/// Answers the question that `args` ask.
pub(crate) fn answer(args: &QueryArgs) -> anyhow::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    if args.list {
        list(args.words.last().map(String::as_str), &mut out)?;
        return Ok(out.flush()?);
    }
    let Some((question, paths)) = args.words.split_last() else { return Ok(()) };
    let question = match Ready::find(question) {
        Some(ready) => ready.text,
        None if !question.contains(char::is_whitespace) => anyhow::bail!(
            "there is no ready question '{question}': {}; SQL has more than one word, and stands in quotes",
            suggestion(question)
        ),
        None => question,
    };
    let saved = args.save.as_deref().map(Saved::new).transpose()?;
    let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
    let (database, _tables) = Inputs::of(&paths)?.database(question)?;
    if let Some(saved) = saved {
        let rows = database.answer(question, async |answer| sql::save(answer, &saved).await)?;
        eprintln!("{rows} rows");
        return Ok(());
    }
    let form = if args.json { Form::Json } else { Form::Table };
    let rows = database.answer(question, async |answer| sql::print(answer, form, &mut out).await)?;
    if rows == 0 && !args.json && io::stdout().is_terminal() {
        eprintln!("no rows");
    }
    Ok(out.flush()?)
}

/// Which ready questions are called nearly so.
fn suggestion(name: &str) -> String {
    let near = strata_recording::nearest::nearest(name, READY.iter().map(|ready| ready.name));
    if near.is_empty() { "--list has them".into() } else { format!("nearest: {}", near.join(", ")) }
}

/// Lists the ready questions, or shows the one called `name`.
fn list(name: Option<&str>, out: &mut dyn Write) -> anyhow::Result<()> {
    if let Some(name) = name {
        let Some(ready) = Ready::find(name) else {
            anyhow::bail!("there is no ready question '{name}': {}", suggestion(name));
        };
        return Ok(out.write_all(ready.text.as_bytes())?);
    }
    let mut table = Table::new(&[("question", Align::Left), ("what it answers", Align::Left)]);
    READY.iter().for_each(|ready| table.row([ready.name.to_string(), ready.about()]));
    Ok(table.write(out)?)
}
