//! Tables for people: columns as wide as their widest cell.

use std::io::{self, Write};

/// On which side of its column a cell stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// A table being filled.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings and no row.
    #[must_use]
    pub fn new(columns: &[(&str, Align)]) -> Self {
        Self { columns: columns.iter().map(|&(name, align)| (name.into(), align)).collect(), rows: Vec::new() }
    }

    /// Adds a row. Cells beyond the headings are not shown; missing ones are empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Whether it has no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Writes headings and rows.
    ///
    /// # Errors
    /// When `out` fails.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let headings: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        let cell = |row: &[String], column: usize| row.get(column).cloned().unwrap_or_default();
        let lines = || std::iter::once(&headings).chain(&self.rows);
        let width = |column: usize| lines().map(|row| cell(row, column).chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        for row in lines() {
            let mut line = String::new();
            for (column, ((_, align), width)) in self.columns.iter().zip(&widths).enumerate() {
                let (cell, separator) = (cell(row, column), if column == 0 { "" } else { "  " });
                line += &match align {
                    Align::Left => format!("{separator}{cell:width$}"),
                    Align::Right => format!("{separator}{cell:>width$}"),
                };
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Says how many of `all` there are beyond the `shown` first.
pub(crate) fn write_more(all: usize, shown: usize, what: &str, out: &mut dyn Write) -> io::Result<()> {
    match all.saturating_sub(shown) {
        0 => Ok(()),
        more => writeln!(out, "… and {more} {what} more, which --json shows"),
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
}
