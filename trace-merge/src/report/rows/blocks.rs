//! What a report says, taken apart: its lines, its tables with what the rows are made of, and what leads to a place on a
//! timeline. The page shows these, so it has the words, columns and times that the text has.

use crate::report::sink::{Block, Sink};
use std::io::{self, Write};
use strata_recording::text::terminal::harmless;

/// Takes apart what `write` writes.
///
/// # Errors
/// When `write` fails.
pub fn take_apart(write: impl FnOnce(&mut dyn Sink) -> io::Result<()>) -> io::Result<Vec<Block>> {
    let mut taken = TakenApart::default();
    write(&mut taken)?;
    if !taken.line.is_empty() {
        taken.end_line();
    }
    Ok(taken.blocks)
}

/// Keeps lines and what stands between them.
#[derive(Default)]
struct TakenApart {
    blocks: Vec<Block>,
    /// The line that has no end yet.
    line: Vec<u8>,
}

impl TakenApart {
    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        self.blocks.push(Block::Line(harmless(&String::from_utf8_lossy(&line))));
    }
}

impl Write for TakenApart {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut lines = bytes.split(|&byte| byte == b'\n');
        self.line.extend_from_slice(lines.next().unwrap_or_default());
        for line in lines {
            self.end_line();
            self.line.extend_from_slice(line);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for TakenApart {
    fn blocks(&mut self) -> Option<&mut Vec<Block>> {
        Some(&mut self.blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::{Align, Table};
    use super::*;
    use crate::report::sink::{Heading, MOST_ROWS, TableBlock, rows_shown, write_histogram, write_place};
    use serde_json::json;

    fn table() -> Table {
        let mut table = Table::new(&[("reason", Align::Left), ("count", Align::Right)]);
        table.row_of(["hlt".into(), "7".into()], json!({ "vcpu": 1 }));
        table.row(["all".into(), "7".into()]);
        table
    }

    fn write(out: &mut dyn Sink) -> io::Result<()> {
        write_place(out, || json!({ "tid": 7 }));
        writeln!(out, "vm0: 7 exits\n")?;
        table().write(out)?;
        if !write_histogram(out, || json!([])) {
            writeln!(out, "###")?;
        }
        write!(out, "\x1b and no end")
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
        let [first, empty, last] = ["vm0: 7 exits", "", "\\u{1b} and no end"].map(|line| Block::Line(line.into()));
        let (place, histogram) = (Block::Place(json!({ "tid": 7 })), Block::Histogram(json!([])));
        assert_eq!(blocks, [place, first, empty, Block::Table(table), histogram, last]);
    }

    #[test]
    fn text_has_neither_places_nor_data() {
        let mut out = Vec::new();

        write(&mut out).unwrap();

        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "vm0: 7 exits\n\nreason  count\nhlt         7\nall         7\n###\n\x1b and no end");
    }

    #[test]
    fn page_has_more_rows_than_text() {
        let mut shown = Vec::new();

        let look = |out: &mut dyn Sink| {
            shown.push(rows_shown(out, 20));
            Ok(())
        };
        take_apart(look).unwrap();
        shown.push(rows_shown(&mut Vec::new(), 20));

        assert_eq!(shown, [MOST_ROWS, 20]);
    }
}
