//! `strata query`.

use clap::Args;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::PathBuf;
use strata_query::sql::{self, Form, Inputs, Ready, Saved};
use trace_merge::ready_questions::suggestion;

/// Arguments of `strata query`.
#[derive(Debug, Args)]
#[command(after_help = "The last argument is the question: SQL, or the name of a ready one (strata query --list).\n\n\
    Examples:\n  \
    strata query trace steal\n  \
    strata query monday tuesday \"select vm, reason, count(*) from exits group by vm, reason\"\n  \
    strata query tables worst-wakeups --save worst.parquet")]
pub(crate) struct QueryArgs {
    /// Trace folders, or folders that `strata export --format parquet` wrote; and the question
    #[arg(value_name = "TRACE… QUESTION", required = true)]
    words: Vec<String>,
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
        sql::inform(format_args!("{rows} rows"));
        return Ok(());
    }
    let form = if args.json { Form::Json } else { Form::Table };
    let rows = database.answer(question, async |answer| sql::print(answer, form, &mut out).await)?;
    if rows == 0 && !args.json && io::stdout().is_terminal() {
        sql::inform("no rows");
    }
    Ok(out.flush()?)
}
