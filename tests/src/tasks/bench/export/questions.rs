//! The ready questions about exported tables, beside DuckDB on the same files.

use super::Programs;
use super::forms::median;
use crate::paths::Paths;
use crate::process;
use crate::progress;
use crate::tasks::bench::goal::{self, Goal};
use crate::tasks::bench::quantile;
use crate::tasks::query;
use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Answers the question in a file about the tables in a folder. Its time begins when DuckDB is loaded, and ends when
/// the last row is there: Python's own start, and loading, are not in it.
const SCRIPT: &str = r#"
import duckdb, json, pathlib, re, sys, time
folder, question = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).read_text()
begin = time.perf_counter()
for table in folder.iterdir():
    if table.name not in question:
        continue
    schema, name = table.name.split(".") if "." in table.name else ("main", table.name)
    files = f"'{table}/**/*.parquet', hive_partitioning = true, hive_types_autocast = false"
    duckdb.sql(f'create schema if not exists "{schema}"')
    duckdb.sql(f'create view "{schema}"."{name}" as select * from read_parquet({files})')
if re.search(r"\bevents\b", question):
    files = f"'{folder}/*.*/**/*.parquet', hive_partitioning = true, hive_types_autocast = false, union_by_name = true"
    duckdb.sql(f"create view events as select * from read_parquet({files})")
try:
    rows = duckdb.sql(question).to_arrow_table().num_rows
except duckdb.CatalogException:
    rows = None  # the recording has nothing of what the question names
print(json.dumps({"seconds": time.perf_counter() - begin, "rows": rows}))
"#;

/// What DuckDB says.
#[derive(Debug, Deserialize)]
struct Reported {
    seconds: f64,
    rows: Option<usize>,
}

/// How long a question takes, ms: one for each turn.
#[derive(Debug, Serialize)]
pub(super) struct QuestionRow {
    question: String,
    /// Rows of the answer.
    rows: usize,
    ours: Vec<f64>,
    theirs: Vec<f64>,
}

/// Asks all ready questions about `tables`, in turns.
pub(super) fn measure(
    paths: &Paths,
    programs: &Programs,
    python: &Path,
    tables: &Path,
    repetitions: usize,
) -> anyhow::Result<Vec<QuestionRow>> {
    let folder = query::questions(paths);
    let mut files = fs::read_dir(&folder)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, _>>())
        .with_context(|| format!("cannot read {}", folder.display()))?;
    files.sort();
    let mut rows: Vec<QuestionRow> = Vec::new();
    // the first turn brings the files into memory and compares the answers' lengths
    for turn in 0..=repetitions {
        progress::step(&format!("questions, turn {turn} of {repetitions}"), || {
            for (number, file) in files.iter().enumerate() {
                let question = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                let (ours, count) = ours(programs, tables, &question)?;
                let reported = theirs(python, tables, file)?;
                if turn == 0 {
                    let alike = reported.rows.is_none_or(|rows| rows == count);
                    ensure!(alike, "{question}: {count} rows, and {:?} from DuckDB", reported.rows);
                    rows.push(QuestionRow { question, rows: count, ours: Vec::new(), theirs: Vec::new() });
                } else if let Some(row) = rows.get_mut(number) {
                    row.ours.push(ours);
                    row.theirs.extend(reported.rows.map(|_| reported.seconds * 1e3));
                }
            }
            anyhow::Ok(())
        })?;
    }
    Ok(rows)
}

/// How long `strata query` takes from its start to its end, ms, and how many rows it gives.
fn ours(programs: &Programs, tables: &Path, question: &str) -> anyhow::Result<(f64, usize)> {
    let mut command = Command::new(&programs.strata);
    command.arg("query").arg(tables).args([question, "--json"]).stderr(Stdio::null());
    if let Some(path) = programs.path() {
        command.env("PATH", path);
    }
    let begin = Instant::now();
    let text = process::capture(&mut command).with_context(|| format!("question {question}"))?;
    Ok((begin.elapsed().as_secs_f64() * 1e3, text.lines().count()))
}

fn theirs(python: &Path, tables: &Path, file: &Path) -> anyhow::Result<Reported> {
    let text = process::capture(Command::new(python).args(["-c", SCRIPT]).arg(tables).arg(file))?;
    serde_json::from_str(&text).with_context(|| format!("DuckDB says {text}"))
}

impl QuestionRow {
    /// Our time beside DuckDB's, held against 1; not measured where DuckDB cannot answer.
    fn ratio(&self) -> Goal {
        let turns = self.ours.len().min(self.theirs.len());
        Goal::of(self.question.clone(), 1.0, turns, |turns| {
            (!turns.is_empty()).then(|| median(&self.ours, turns) / median(&self.theirs, turns))
        })
    }
}

pub(super) fn write_table(text: &mut String, rows: &[QuestionRow]) -> std::fmt::Result {
    writeln!(
        text,
        "\nTime of a ready question through `strata query`, from the program's start to its end, beside DuckDB's \
         without\nPython's start; all processors.\n"
    )?;
    text.push_str(goal::HEADER);
    let answered: Vec<&QuestionRow> = rows.iter().filter(|row| row.theirs.len() == row.ours.len()).collect();
    let turns = answered.iter().map(|row| row.ours.len()).min().unwrap_or(0);
    let all = Goal::of("all of them: time / DuckDB".to_owned(), 1.0, turns, |turns| {
        let sum = |of: fn(&QuestionRow) -> &[f64]| answered.iter().map(|row| median(of(row), turns)).sum::<f64>();
        (!answered.is_empty()).then(|| sum(|row| &row.ours) / sum(|row| &row.theirs))
    });
    writeln!(text, "{}", all.row())?;
    for row in rows {
        writeln!(text, "{}", row.ratio().row())?;
    }
    writeln!(text, "\n| question | rows | ms | quartiles | DuckDB, ms | quartiles |\n|---|---|---|---|---|---|")?;
    for row in rows {
        let columns = |values: &[f64]| {
            let mut values = values.to_vec();
            let [low, middle, high] = [1, 2, 3].map(|quarters| quantile(&mut values, quarters));
            if values.is_empty() { "– | –".to_owned() } else { format!("{middle:.0} | {low:.0}–{high:.0}") }
        };
        let (ours, theirs) = (columns(&row.ours), columns(&row.theirs));
        writeln!(text, "| {} | {} | {ours} | {theirs} |", row.question, row.rows)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::bench::goal::Verdict;

    fn row(ours: f64, theirs: &[f64]) -> QuestionRow {
        QuestionRow { question: "steal".into(), rows: 1, ours: vec![ours; 5], theirs: theirs.to_vec() }
    }

    #[test]
    fn question_is_held_against_duckdb_where_that_answers() {
        assert_eq!(row(10.0, &[20.0; 5]).ratio().verdict, Verdict::Met);
        assert_eq!(row(30.0, &[20.0; 5]).ratio().verdict, Verdict::Missed);
        assert_eq!(row(30.0, &[]).ratio().verdict, Verdict::NotMeasured);
    }

    #[test]
    fn question_that_duckdb_cannot_answer_has_no_numbers_of_it() {
        let mut text = String::new();

        write_table(&mut text, &[row(10.0, &[20.0; 5]), row(30.0, &[])]).unwrap();

        assert!(text.contains("| all of them: time / DuckDB | 1.00 | 0.500 |"), "{text}");
        assert!(text.ends_with("| steal | 1 | 30 | 30–30 | – | – |\n"), "{text}");
    }
}
