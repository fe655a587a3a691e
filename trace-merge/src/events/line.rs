//! Lines of text under construction: numbers, literals and escaped text, written in place. Nothing is allocated for a
//! record once the memory has grown to what a batch of records takes.

use std::fmt::{self, Write};
use strata_recording::terminal;

/// Bytes that are copied at once; a literal takes a whole number of them.
const CHUNK: usize = 16;
/// Digits of the largest number.
const MAX_DIGITS: usize = 20;

/// Text that is the same in many lines, in pieces that are copied without asking how long they are.
#[derive(Clone, Debug, Default)]
pub(super) struct Literal {
    chunks: Vec<[u8; CHUNK]>,
    length: usize,
}

impl From<&[u8]> for Literal {
    fn from(text: &[u8]) -> Self {
        let chunk = |bytes: &[u8]| {
            let mut chunk = [0; CHUNK];
            chunk[..bytes.len()].copy_from_slice(bytes);
            chunk
        };
        Self { chunks: text.chunks(CHUNK).map(chunk).collect(), length: text.len() }
    }
}

/// Lines, one after another.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Memory that was written before; the text is what comes before `length`.
    bytes: Vec<u8>,
    length: usize,
}

impl Lines {
    /// The lines.
    pub(super) fn text(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Forgets the lines, not their memory.
    pub(super) const fn clear(&mut self) {
        self.length = 0;
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, more: usize) {
        self.bytes.resize((self.length + more).next_power_of_two(), 0);
    }

    /// The next `size` bytes, which may hold anything.
    #[inline]
    fn room(&mut self, size: usize) -> &mut [u8] {
        if self.bytes.len() - self.length < size {
            self.grow(size);
        }
        &mut self.bytes[self.length..self.length + size]
    }

    #[inline]
    pub(super) fn push(&mut self, byte: u8) {
        self.room(1)[0] = byte;
        self.length += 1;
    }

    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
        self.length += bytes.len();
    }

    #[inline]
    pub(super) fn literal(&mut self, literal: &Literal) {
        let room = self.room(literal.chunks.len() * CHUNK);
        for (place, chunk) in room.as_chunks_mut::<CHUNK>().0.iter_mut().zip(&literal.chunks) {
            *place = *chunk;
        }
        self.length += literal.length;
    }

    #[inline]
    pub(super) fn decimal(&mut self, number: u64) {
        if let Ok(digit @ 0..=9) = u8::try_from(number) {
            return self.push(b'0' + digit);
        }
        let digits = number.ilog10() as usize + 1;
        let room = self.room(MAX_DIGITS);
        put_digits(&mut room[..digits], number);
        self.length += digits;
    }

    pub(super) fn signed(&mut self, number: i64) {
        if number < 0 {
            self.push(b'-');
        }
        self.decimal(number.unsigned_abs());
    }

    /// The nine decimals of `nanoseconds`, which are less than a second.
    #[inline]
    pub(super) fn nanoseconds(&mut self, nanoseconds: u64) {
        put_digits(self.room(9), nanoseconds);
        self.length += 9;
    }

    /// Hexadecimal with `0x`.
    pub(super) fn hex(&mut self, number: u64) {
        let digits = (u64::BITS - (number | 1).leading_zeros()).div_ceil(4) as usize;
        let room = self.room(2 + MAX_DIGITS);
        room[..2].copy_from_slice(b"0x");
        let mut rest = number;
        for digit in room[2..2 + digits].iter_mut().rev() {
            *digit = b"0123456789abcdef"[(rest & 0xf) as usize];
            rest >>= 4;
        }
        self.length += 2 + digits;
    }

    /// `text` in quotes, so that neither a quote nor a terminal control in it acts.
    pub(super) fn quoted(&mut self, text: &[u8]) {
        if self.quoted_as_it_is(text) {
            return;
        }
        self.push(b'"');
        for character in String::from_utf8_lossy(text).chars() {
            // Writing lines cannot fail.
            let _ = match character {
                '"' | '\\' => write!(self, "\\{character}"),
                acting if terminal::acts(acting) => write!(self, "{}", acting.escape_default()),
                other => self.write_char(other),
            };
        }
        self.push(b'"');
    }

    /// `text` as it is, but for what acts on a terminal, in whose place are question marks.
    #[inline]
    pub(super) fn name(&mut self, text: &[u8]) {
        if text.iter().all(|byte| (0x20..0x7f).contains(byte)) {
            return self.extend(text);
        }
        for character in String::from_utf8_lossy(text).chars() {
            // Writing lines cannot fail.
            let _ = self.write_char(if terminal::acts(character) { '?' } else { character });
        }
    }

    /// Spaces up to `length` bytes of text; none when it is as long already.
    #[inline]
    pub(super) fn pad_to(&mut self, length: usize) {
        let missing = length.saturating_sub(self.length);
        self.room(missing).fill(b' ');
        self.length += missing;
    }

    /// `text` as a JSON string.
    pub(super) fn json(&mut self, text: &[u8]) {
        if self.quoted_as_it_is(text) {
            return;
        }
        // A string is always serialisable, and lines always writable.
        let _ = serde_json::to_writer(JsonWriter(self), &String::from_utf8_lossy(text));
    }

    /// `text` in quotes when nothing in it needs escaping; else nothing.
    #[inline]
    fn quoted_as_it_is(&mut self, text: &[u8]) -> bool {
        let plain = |&byte: &u8| (0x20..0x7f).contains(&byte) && byte != b'"' && byte != b'\\';
        if !text.iter().all(plain) {
            return false;
        }
        let room = self.room(text.len() + 2);
        room[0] = b'"';
        room[1..=text.len()].copy_from_slice(text);
        room[text.len() + 1] = b'"';
        self.length += text.len() + 2;
        true
    }
}

impl Write for Lines {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.extend(text.as_bytes());
        Ok(())
    }
}

/// Lines as `serde_json` writes to them.
struct JsonWriter<'l>(&'l mut Lines);

impl std::io::Write for JsonWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// All numbers of two digits.
static PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let (mut tens, mut place) = (b'0', 0);
    while tens <= b'9' {
        let mut ones = b'0';
        while ones <= b'9' {
            pairs[place] = [tens, ones];
            (ones, place) = (ones + 1, place + 1);
        }
        tens += 1;
    }
    pairs
};

/// The last digits of `number`, as many as there is place for.
#[inline]
fn put_digits(place: &mut [u8], number: u64) {
    let mut rest = number;
    let (first, pairs) = place.as_rchunks_mut::<2>();
    for pair in pairs.iter_mut().rev() {
        *pair = PAIRS[(rest % 100) as usize];
        rest /= 100;
    }
    if let [digit] = first {
        *digit = PAIRS[(rest % 10) as usize][1];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(write: impl FnOnce(&mut Lines)) -> String {
        let mut lines = Lines::default();
        write(&mut lines);
        String::from_utf8(lines.text().to_vec()).unwrap()
    }

    #[test]
    fn literals_of_all_lengths_are_written_whole() {
        let long: Vec<u8> = (0..100).map(|number| b'a' + number % 26).collect();

        let written = text(|lines| (0..100).for_each(|length| lines.literal(&Literal::from(&long[..length]))));

        let expected: Vec<u8> = (0..100).flat_map(|length| long[..length].to_vec()).collect();
        assert_eq!(written.as_bytes(), expected);
    }

    #[test]
    fn cleared_lines_begin_anew() {
        let mut lines = Lines::default();
        lines.extend(b"something long");
        lines.clear();
        lines.push(b'x');

        assert_eq!(lines.text(), b"x");
    }

    proptest! {
        #[test]
        fn numbers_are_those_of_the_standard_library(number: u64, shift in 0..64_u32) {
            let number = number >> shift;
            prop_assert_eq!(text(|lines| lines.decimal(number)), number.to_string());
            prop_assert_eq!(text(|lines| lines.hex(number)), format!("{number:#x}"));
            prop_assert_eq!(text(|lines| lines.signed(number.cast_signed())), number.cast_signed().to_string());
            let nanoseconds = number % 1_000_000_000;
            prop_assert_eq!(text(|lines| lines.nanoseconds(nanoseconds)), format!("{nanoseconds:09}"));
        }

        #[test]
        fn json_strings_are_read_back(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let read: String = serde_json::from_str(&text(|lines| lines.json(&bytes))).unwrap();
            prop_assert_eq!(read, String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn nothing_in_a_text_acts(bytes: Vec<u8>, letters in "[\\u{200a}-\\u{2070}a]*") {
            for given in [&bytes[..], letters.as_bytes()] {
                let (quoted, name) = (text(|lines| lines.quoted(given)), text(|lines| lines.name(given)));
                prop_assert!(!quoted.chars().chain(name.chars()).any(terminal::acts));
            }
        }
    }
}
