//! A picture on a terminal, in place of the one before.

use rustix::termios::tcgetwinsize;
use std::os::fd::AsFd;

/// Moves to the upper left corner and clears what is below.
const CLEAR: &str = "\x1b[H\x1b[J";

/// The rows and columns of `terminal`; `None` where it does not say.
pub fn size(terminal: impl AsFd) -> Option<(usize, usize)> {
    let size = tcgetwinsize(terminal).ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then(|| (size.ws_row.into(), size.ws_col.into()))
}

/// What shows `picture` on a terminal of `size`.
pub fn frame(picture: &[u8], size: Option<(usize, usize)>) -> Vec<u8> {
    let text = String::from_utf8_lossy(picture);
    let shown = size.map_or_else(|| text.to_string(), |size| fitted(&text, size));
    format!("{CLEAR}{shown}").into_bytes()
}

/// The first lines of `text`, as many as there is room for: the terminal would keep the last ones, and have a copy of the
/// others each time.
fn fitted(text: &str, (rows, columns): (usize, usize)) -> String {
    // In the last row stands the cursor.
    let room = rows.saturating_sub(1);
    let row_behind = |row: &mut usize, line: &str| {
        *row += line.chars().count().div_ceil(columns).max(1);
        Some(*row)
    };
    let ends: Vec<usize> = text.lines().scan(0, row_behind).collect();
    if ends.last().is_none_or(|&end| end <= room) {
        return text.to_owned();
    }
    // One row says what is not there.
    let kept = ends.partition_point(|&end| end < room);
    let lines: String = text.lines().take(kept).flat_map(|line| [line, "\n"]).collect();
    format!("{lines}… lines that do not fit: {} (--once shows all)\n", ends.len() - kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picture_that_does_not_fit_keeps_its_first_lines_and_says_so() {
        let of_size = |text: &str, size| String::from_utf8(frame(text.as_bytes(), size)).unwrap();
        let text = "VM\na\nb\nc\n";

        let (whole, unknown) = (of_size(text, Some((5, 80))), of_size(text, None));
        let (low, narrow) = (of_size(text, Some((4, 80))), of_size("a long line\nb\n", Some((4, 4))));

        assert_eq!([whole, unknown], ["\x1b[H\x1b[JVM\na\nb\nc\n"; 2]);
        assert_eq!(low, "\x1b[H\x1b[JVM\na\n… lines that do not fit: 2 (--once shows all)\n");
        assert_eq!(narrow, "\x1b[H\x1b[J… lines that do not fit: 2 (--once shows all)\n");
    }

    #[test]
    fn file_has_no_size() {
        assert_eq!(size(tempfile::tempfile().unwrap()), None);
    }
}
