//! What a report is written to: a text for people, or the blocks that a page shows.

use serde::Serialize;
use serde_json::Value;
use std::io::{self, Write};
use strata_recording::text::terminal::HarmlessText;

/// Rows of a table that are kept, where the text shows fewer.
pub const MOST_ROWS: usize = 200;

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
    pub text: String,
    /// Whether the column has numbers.
    pub is_number: bool,
    /// The key of its values in the data, where it has one.
    pub key: String,
    /// What its values mean; empty where nothing says it.
    pub meaning: &'static str,
}

/// Takes what a report says: its lines as a [`Write`], and in place of some of them, where it wants them, blocks.
pub trait Sink: Write {
    /// Columns that lines of tables and paragraphs keep to where they can; `None` for lines as long as they are.
    fn columns(&self) -> Option<usize> {
        None
    }

    /// Where blocks go; `None` where only text does.
    fn blocks(&mut self) -> Option<&mut Vec<Block>> {
        None
    }
}

impl Sink for Vec<u8> {}
impl Sink for io::Sink {}

impl<W: Sink + ?Sized> Sink for HarmlessText<&mut W> {
    fn columns(&self) -> Option<usize> {
        self.0.columns()
    }
}

/// Says that the next line is about `place`.
pub(crate) fn write_place(out: &mut dyn Sink, place: impl FnOnce() -> Value) {
    if let Some(blocks) = out.blocks() {
        blocks.push(Block::Place(place()));
    }
}

/// Writes a histogram, which text draws in its own way; whether it did.
pub(crate) fn write_histogram(out: &mut dyn Sink, rows: impl FnOnce() -> Value) -> bool {
    out.blocks().map(|blocks| blocks.push(Block::Histogram(rows()))).is_some()
}

/// How many rows are shown where text shows `in_text`.
pub(crate) fn rows_shown(out: &mut dyn Sink, in_text: usize) -> usize {
    if out.blocks().is_some() { in_text.max(MOST_ROWS) } else { in_text }
}
