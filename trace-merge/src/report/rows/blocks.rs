//! What a report writes for people, taken apart: its lines, its tables with what the rows are made of, and what leads to
//! a place on a timeline. The page shows these, so it has the words, columns and times that the text has.
//!
//! Reports write to a [`Write`], which takes only text. So while a thread takes one apart, tables and the functions
//! here keep what they are given for it, and write a line that stands for it.

use serde::Serialize;
use serde_json::Value;
use std::cell::RefCell;
use std::io::{self, Write};
use strata_recording::terminal::harmless;

/// Rows of a table that are kept, where the text shows fewer.
pub const MOST_ROWS: usize = 200;
/// What begins a line that stands for a block; [`harmless`] text has none.
const STANDS_FOR: char = '\0';

/// A part of a report.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Block {
    /// A line; empty between paragraphs.
    Line(String),
    /// A table.
    Table(TableBlock),
    /// What the next line is about: a task, a vCPU or a time, by the keys that JSON has for it.
    Place(Value),
    /// Rows `below_ns`, `count`: how many times lie below each border and above the one before it.
    Histogram(Value),
}

/// A table with what its rows are made of.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TableBlock {
    /// Its columns.
    pub columns: Vec<Heading>,
    /// The cells of each row.
    pub rows: Vec<Vec<String>>,
    /// What JSON has of each row; nothing of one that is a sum.
    pub data: Vec<Option<Value>>,
}

/// The heading of a column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Heading {
    /// What it says.
    pub text: String,
    /// Whether the column has numbers.
    pub is_number: bool,
    /// The key of its values in the data, where it has one.
    pub key: String,
    /// What its values mean; empty where nothing says it.
    pub meaning: &'static str,
}

thread_local! {
    /// What was kept of the report that this thread takes apart.
    static KEPT: RefCell<Option<Vec<Block>>> = const { RefCell::new(None) };
}

/// Takes apart what `write` writes.
///
/// # Errors
/// When `write` fails.
pub fn take_apart(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<Vec<Block>> {
    let mut text = Vec::new();
    KEPT.set(Some(Vec::new()));
    let written = write(&mut text);
    let mut kept: Vec<_> = KEPT.take().unwrap_or_default().into_iter().map(Some).collect();
    written?;
    let text = String::from_utf8_lossy(&text);
    let block = |line: &str| {
        let place = line.strip_prefix(STANDS_FOR).and_then(|place| place.parse::<usize>().ok());
        let kept = place.and_then(|place| kept.get_mut(place)).and_then(Option::take);
        kept.unwrap_or_else(|| Block::Line(harmless(line)))
    };
    Ok(text.lines().map(block).collect())
}

/// Whether this thread takes a report apart.
pub(super) fn is_taken_apart() -> bool {
    KEPT.with_borrow(Option::is_some)
}

/// Keeps the block that `make` makes, if a report is taken apart; whether it is.
pub(super) fn keep(out: &mut dyn Write, make: impl FnOnce() -> Block) -> io::Result<bool> {
    if !is_taken_apart() {
        return Ok(false);
    }
    let block = make();
    let place = KEPT.with_borrow_mut(|kept| {
        let kept = kept.get_or_insert_default();
        kept.push(block);
        kept.len() - 1
    });
    writeln!(out, "{STANDS_FOR}{place}").map(|()| true)
}

/// Says that the next line is about `place`.
pub(crate) fn write_place(out: &mut dyn Write, place: impl FnOnce() -> Value) -> io::Result<()> {
    keep(out, || Block::Place(place())).map(|_| ())
}

/// Keeps a histogram, which text draws in its own way; whether it did.
pub(crate) fn write_histogram(out: &mut dyn Write, rows: impl FnOnce() -> Value) -> io::Result<bool> {
    keep(out, || Block::Histogram(rows()))
}

/// How many rows are shown where text shows `in_text`.
pub(crate) fn rows_shown(in_text: usize) -> usize {
    if is_taken_apart() { in_text.max(MOST_ROWS) } else { in_text }
}

#[cfg(test)]
mod tests {
    use super::super::table::{Align, Table};
    use super::*;
    use serde_json::json;

    fn table() -> Table {
        let mut table = Table::new(&[("reason", Align::Left), ("count", Align::Right)]);
        table.row_of(["hlt".into(), "7".into()], || json!({ "vcpu": 1 }));
        table.row(["all".into(), "7".into()]);
        table
    }

    fn write(out: &mut dyn Write) -> io::Result<()> {
        write_place(out, || json!({ "tid": 7 }))?;
        writeln!(out, "vm0: 7 exits\n")?;
        table().write(out)?;
        writeln!(out, "{STANDS_FOR}0\x1b")
    }

    #[test]
    fn lines_tables_and_places_are_taken_apart() {
        let blocks = take_apart(write).unwrap();

        let column = |text: &str, is_number| Heading { text: text.into(), is_number, key: String::new(), meaning: "" };
        let table = TableBlock {
            columns: vec![column("reason", false), column("count", true)],
            rows: vec![vec!["hlt".into(), "7".into()], vec!["all".into(), "7".into()]],
            data: vec![Some(json!({ "vcpu": 1 })), None],
        };
        let lines = ["vm0: 7 exits", "", "\\u{0}0\\u{1b}"].map(|line| Block::Line(line.into()));
        let [first, empty, last] = lines;
        assert_eq!(blocks, [Block::Place(json!({ "tid": 7 })), first, empty, Block::Table(table), last]);
    }

    #[test]
    fn text_has_neither_places_nor_data() {
        let mut out = Vec::new();

        write(&mut out).unwrap();

        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("vm0: 7 exits\n\nreason  count\nhlt         7\n"), "{text}");
        assert_eq!((rows_shown(20), is_taken_apart()), (20, false));
    }
}
