//! Tables for people: columns as wide as their widest cell.

use crate::report::sink::{Block, Heading, Sink, TableBlock};
use serde_json::Value;
use std::io;
use strata_recording::text::counted::counted;

/// What stands between two columns.
const BETWEEN: usize = 2;
/// Characters that a column of text keeps where there is no room.
const LEAST: usize = 12;

/// On which side of its column a cell stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    /// Numbers.
    Right,
}

/// A table being filled.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(String, Align)>,
    /// Of columns whose values have a key: that, and what they mean.
    described: Vec<(String, &'static str)>,
    rows: Vec<Vec<String>>,
    /// What rows are made of.
    data: Vec<Option<Value>>,
}

impl Table {
    /// A table with these headings and no row.
    #[must_use]
    pub fn new(columns: &[(&str, Align)]) -> Self {
        let columns = columns.iter().map(|&(name, align)| (name.into(), align)).collect();
        Self { columns, described: Vec::new(), rows: Vec::new(), data: Vec::new() }
    }

    /// Describes its columns, in order: the key of each, empty for none, and what its values mean.
    #[must_use]
    pub(crate) fn described(mut self, columns: impl IntoIterator<Item = (String, &'static str)>) -> Self {
        self.described = columns.into_iter().collect();
        self
    }

    /// Adds a row. Cells beyond the headings are not shown; missing ones are empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
        self.data.push(None);
    }

    /// The same of a row that is made of `data`.
    pub(crate) fn row_of(&mut self, cells: impl IntoIterator<Item = String>, data: Value) {
        self.rows.push(cells.into_iter().collect());
        self.data.push(Some(data));
    }

    fn headings(&self) -> impl Iterator<Item = Heading> {
        self.columns.iter().enumerate().map(|(place, (name, align))| {
            let (key, meaning) = self.described.get(place).map_or(("", ""), |(key, meaning)| (key.as_str(), *meaning));
            Heading { text: name.clone(), is_number: *align == Align::Right, key: key.into(), meaning }
        })
    }

    /// Whether it has no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Writes headings and rows. Where the terminal is too narrow, the longest texts are cut.
    ///
    /// # Errors
    /// When `out` fails.
    pub fn write(&self, out: &mut dyn Sink) -> io::Result<()> {
        if let Some(blocks) = out.blocks() {
            let (columns, rows, data) = (self.headings().collect(), self.rows.clone(), self.data.clone());
            blocks.push(Block::Table(TableBlock { columns, rows, data }));
            return Ok(());
        }
        self.write_within(out.columns().unwrap_or(usize::MAX), out)
    }

    fn write_within(&self, room: usize, out: &mut dyn Sink) -> io::Result<()> {
        let headings: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        let cell = |row: &[String], column: usize| row.get(column).cloned().unwrap_or_default();
        let lines = || std::iter::once(&headings).chain(&self.rows);
        let width = |column: usize| lines().map(|row| cell(row, column).chars().count()).max().unwrap_or(0);
        let widths = self.within(room, (0..self.columns.len()).map(width).collect());
        for row in lines() {
            let mut line = String::new();
            for (column, ((_, align), width)) in self.columns.iter().zip(&widths).enumerate() {
                let (cell, separator) = (cut(cell(row, column), *width), if column == 0 { "" } else { "  " });
                line += &match align {
                    Align::Left => format!("{separator}{cell:width$}"),
                    Align::Right => format!("{separator}{cell:>width$}"),
                };
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }

    /// The widths of the columns where lines have `room`: texts give way, the widest first.
    fn within(&self, room: usize, mut widths: Vec<usize>) -> Vec<usize> {
        loop {
            let all: usize = widths.iter().map(|width| width + BETWEEN).sum();
            let too_much = all.saturating_sub(BETWEEN).saturating_sub(room);
            let least = |column: usize| LEAST.max(self.columns.get(column).map_or(0, |(name, _)| name.chars().count()));
            let is_text = |column: &usize| self.columns.get(*column).is_some_and(|(_, align)| *align == Align::Left);
            let texts = (0..widths.len()).filter(is_text);
            let widest =
                texts.filter_map(|column| Some((widths.get(column)?.checked_sub(least(column))?, column))).max();
            match widest {
                Some((spare @ 1.., column)) if too_much > 0 => {
                    if let Some(width) = widths.get_mut(column) {
                        *width -= spare.min(too_much);
                    }
                }
                _ => return widths,
            }
        }
    }
}

/// `cell`, cut to `width` characters.
fn cut(cell: String, width: usize) -> String {
    match cell.char_indices().nth(width) {
        Some(_) => cell.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
        None => cell,
    }
}

/// Says how many of `all` there are beyond the `shown` first: `one`, or `many`.
pub(crate) fn write_more(all: usize, shown: usize, [one, many]: [&str; 2], out: &mut dyn Sink) -> io::Result<()> {
    match all.saturating_sub(shown) {
        0 => Ok(()),
        more => writeln!(out, "… and {} more, which --json shows", counted(more, one, many)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&[("name", Align::Left), ("n", Align::Right), ("what", Align::Left)]);
        table.row(["é".into(), "100".into(), "x".into()]);
        table.row(["longer".into()]);
        let mut out = Vec::new();

        table.write(&mut out).unwrap();

        assert_eq!(String::from_utf8(out).unwrap(), "name      n  what\né       100  x\nlonger\n");
    }

    #[test]
    fn texts_give_way_where_the_terminal_is_narrow_and_numbers_do_not() {
        let mut table = Table::new(&[("name", Align::Left), ("number", Align::Right), ("event", Align::Left)]);
        table.row(["short".into(), "123456789".into(), "a:very_long_name_of_an_event".into()]);
        let lines = |room| {
            let mut out = Vec::new();
            table.write_within(room, &mut out).unwrap();
            String::from_utf8(out).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
        };

        assert_eq!(lines(46)[1], "short  123456789  a:very_long_name_of_an_event");
        assert_eq!(lines(40)[1], "short  123456789  a:very_long_name_of_a…");
        assert_eq!(lines(20)[1], "short  123456789  a:very_long…");
    }
}
