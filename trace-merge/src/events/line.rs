//! Lines of text under construction: numbers, literals and escaped text, written in place. Nothing is allocated for a
//! record once the memory has grown to what a batch of records takes.

use std::fmt::{self, Write};
use std::io;
use strata_recording::schema::{FloatText, hex_digits};
use strata_recording::text::terminal;

/// Bytes that are copied at once: most names are not longer.
const CHUNK: usize = 16;
/// Bytes of a literal that are copied at once.
const LONG_CHUNK: usize = 32;
/// Bytes that are copied at once, at most.
pub(super) const MOST_AT_ONCE: usize = 192;
/// Bytes of text after which the lines go on in other memory.
const WINDOW: usize = 1 << 16;
/// Bytes that a group of three digits is written with; the last one is room.
const GROUP: usize = 4;

/// Text that is the same in many lines, in pieces that are copied without asking how long they are.
#[derive(Clone, Debug)]
pub(super) struct Literal {
    first: Piece,
    others: Vec<Piece>,
}

/// Text in a place that may be longer.
#[derive(Clone, Copy, Debug)]
struct Piece {
    bytes: [u8; LONG_CHUNK],
    length: usize,
}

impl Piece {
    const EMPTY: Self = Self { bytes: [0; LONG_CHUNK], length: 0 };
}

impl From<&[u8]> for Piece {
    /// The first bytes of `text` that there is room for.
    fn from(text: &[u8]) -> Self {
        let mut bytes = [0; LONG_CHUNK];
        bytes.iter_mut().zip(text).for_each(|(to, from)| *to = *from);
        Self { bytes, length: text.len().min(LONG_CHUNK) }
    }
}

impl Literal {
    /// No text.
    pub(super) const EMPTY: Self = Self { first: Piece::EMPTY, others: Vec::new() };
}

impl From<&[u8]> for Literal {
    fn from(text: &[u8]) -> Self {
        let (first, others) = text.split_at_checked(LONG_CHUNK).unwrap_or((text, &[]));
        Self { first: first.into(), others: others.chunks(LONG_CHUNK).map(Piece::from).collect() }
    }
}

/// Lines, one after another.
#[derive(Debug)]
pub(super) struct Lines {
    /// What does not change any more, with the number of bytes that are text.
    full: Vec<(Window, usize)>,
    /// Bytes of that text.
    before: usize,
    /// What comes behind it: the first `length` bytes are text.
    window: Window,
    length: usize,
    /// Memory to go on in.
    spare: Vec<Window>,
}

type Window = Box<[u8; WINDOW + MOST_AT_ONCE]>;

impl Default for Lines {
    fn default() -> Self {
        Self { full: Vec::new(), before: 0, window: Box::new([0; WINDOW + MOST_AT_ONCE]), length: 0, spare: Vec::new() }
    }
}

impl Lines {
    /// Writes the lines to `out`.
    pub(super) fn write_to(&self, out: &mut (impl io::Write + ?Sized)) -> io::Result<()> {
        self.full.iter().try_for_each(|(window, length)| out.write_all(&window[..*length]))?;
        out.write_all(&self.window[..self.length])
    }

    /// The lines.
    #[cfg(test)]
    pub(super) fn text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        self.write_to(&mut text).unwrap();
        text
    }

    /// Bytes of the lines.
    #[inline]
    pub(super) const fn len(&self) -> usize {
        self.before + self.length
    }

    /// What was written behind the first `begin` bytes; `None` where that lies in two places.
    pub(super) fn since(&self, begin: usize) -> Option<&[u8]> {
        self.window.get(begin.checked_sub(self.before)?..self.length)
    }

    /// Forgets the lines, not their memory.
    pub(super) fn clear(&mut self) {
        self.spare.extend(self.full.drain(..).map(|(window, _)| window));
        (self.before, self.length) = (0, 0);
    }

    #[cold]
    #[inline(never)]
    fn go_on(&mut self) {
        let next = self.spare.pop().unwrap_or_else(|| Box::new([0; WINDOW + MOST_AT_ONCE]));
        self.full.push((std::mem::replace(&mut self.window, next), self.length));
        self.before += self.length;
        self.length = 0;
    }

    /// Where text is written next: [`MOST_AT_ONCE`] bytes are there. Inlined, so that this is a comparison.
    #[inline(always)]
    fn begin(&mut self) -> usize {
        if self.length > WINDOW {
            self.go_on();
            return 0;
        }
        self.length
    }

    /// Writes `bytes`, whose first `length` are text. Inlined, so that this is a comparison and a copy.
    #[inline(always)]
    pub(super) fn put<const N: usize>(&mut self, bytes: &[u8; N], length: usize) {
        const { assert!(N <= MOST_AT_ONCE) };
        let begin = self.begin();
        self.window[begin..begin + N].copy_from_slice(bytes);
        self.length = begin + length;
    }

    /// Writes the first `length` bytes of `text`.
    #[inline(always)]
    pub(super) fn copy(&mut self, text: &[u8; MOST_AT_ONCE], length: usize) {
        match (length, text.first_chunk(), text.first_chunk(), text.first_chunk(), text.first_chunk()) {
            (..=32, Some(begin), ..) => self.put::<32>(begin, length),
            (..=64, _, Some(begin), ..) => self.put::<64>(begin, length),
            (..=96, _, _, Some(begin), _) => self.put::<96>(begin, length),
            (..=128, .., Some(begin)) => self.put::<128>(begin, length),
            _ => self.put(text, length),
        }
    }

    #[inline]
    pub(super) fn push(&mut self, byte: u8) {
        self.put(&[byte], 1);
    }

    #[inline]
    pub(super) fn extend(&mut self, bytes: &[u8]) {
        match padded(bytes) {
            Some(chunk) => self.put(&chunk, bytes.len()),
            None => self.extend_long(bytes),
        }
    }

    /// More than [`CHUNK`] bytes.
    fn extend_long(&mut self, bytes: &[u8]) {
        let (chunks, rest) = bytes.as_chunks::<CHUNK>();
        chunks.iter().for_each(|chunk| self.put(chunk, CHUNK));
        if let Some(chunk) = padded(rest) {
            self.put(&chunk, rest.len());
        }
    }

    /// Text whose length is known when this is compiled.
    #[inline]
    pub(super) fn constant<const N: usize>(&mut self, text: &[u8; N]) {
        self.put(text, N);
    }

    #[inline(always)]
    pub(super) fn literal(&mut self, literal: &Literal) {
        self.put(&literal.first.bytes, literal.first.length);
        literal.others.iter().for_each(|piece| self.put(&piece.bytes, piece.length));
    }

    #[inline]
    pub(super) fn decimal(&mut self, number: u64) {
        if number < 1000 {
            return self.leading_group(number);
        }
        self.groups(number);
    }

    /// A number of four digits or more.
    fn groups(&mut self, number: u64) {
        const MILLION: u64 = 1_000_000;
        let (above, below) = (number / MILLION, number % MILLION);
        match above {
            0 => return self.two_groups(below),
            1..1000 => self.leading_group(above),
            _ => self.groups(above),
        }
        self.six_digits(below);
    }

    /// A number of at most six digits, with zeros before it.
    #[inline]
    pub(super) fn six_digits(&mut self, number: u64) {
        self.group(number / 1000);
        self.group(number % 1000);
    }

    /// A number of four to six digits.
    #[inline]
    fn two_groups(&mut self, number: u64) {
        self.leading_group(number / 1000);
        self.group(number % 1000);
    }

    /// Three digits of a number that has others before them.
    #[inline]
    fn group(&mut self, number: u64) {
        self.put(&digits_of(number), GROUP - 1);
    }

    /// The first digits of a number, up to three: those that are not zeros before it.
    #[inline]
    fn leading_group(&mut self, number: u64) {
        let digits = LEADING_DIGITS[place_of(number)];
        let [_, _, _, length] = digits;
        self.put(&digits, usize::from(length));
    }

    #[inline]
    pub(super) fn signed(&mut self, number: i64) {
        if number < 0 {
            self.push(b'-');
        }
        self.decimal(number.unsigned_abs());
    }

    pub(super) fn float(&mut self, number: f64) {
        // Writing lines cannot fail.
        let _ = write!(self, "{}", FloatText(number));
    }

    /// The nine decimals of `nanoseconds`, which are less than a second.
    #[inline(always)]
    pub(super) fn nanoseconds(&mut self, nanoseconds: u64) {
        let begin = self.begin();
        write_decimals(&mut self.window[begin..begin + DECIMALS_SIZE], nanoseconds);
        self.length = begin + DECIMALS;
    }

    /// The columns of a time, and of the time since the line before, which is less than ten seconds: `seconds` is the text
    /// of the whole seconds with the point, and room for a byte; the others are numbers.
    #[inline(always)]
    pub(super) fn time_columns(
        &mut self,
        seconds: &[u8; SECONDS + 1],
        nanoseconds: u64,
        (since_seconds, since_nanoseconds): (u8, u64),
    ) {
        const SINCE: usize = SECONDS + DECIMALS;
        const SINCE_DECIMALS: usize = SINCE + 5;
        let begin = self.begin();
        let room = &mut self.window[begin..begin + SINCE_DECIMALS + DECIMALS_SIZE];
        room[..SECONDS + 1].copy_from_slice(seconds);
        write_decimals(&mut room[SECONDS..SECONDS + DECIMALS_SIZE], nanoseconds);
        let since = u64::from_le_bytes(*b"  +0.\0\0\0") + (u64::from(since_seconds) << 24);
        room[SINCE..SINCE + 8].copy_from_slice(&since.to_le_bytes());
        write_decimals(&mut room[SINCE_DECIMALS..SINCE_DECIMALS + DECIMALS_SIZE], since_nanoseconds);
        self.length = begin + SINCE_DECIMALS + DECIMALS;
    }

    /// Hexadecimal with `0x`.
    #[inline]
    pub(super) fn hex(&mut self, number: u64) {
        if number < 10 {
            return self.put(&[b'0', b'x', b'0' + (number % 10) as u8], 3);
        }
        self.constant(b"0x");
        self.hex_digits(number);
    }

    /// The same as a JSON string.
    #[inline]
    pub(super) fn quoted_hex(&mut self, number: u64) {
        self.constant(b"\"0x");
        self.hex_digits(number);
        self.push(b'"');
    }

    /// The same with a plus before it.
    #[inline]
    pub(super) fn offset(&mut self, number: u64) {
        self.constant(b"+0x");
        self.hex_digits(number);
    }

    #[inline]
    fn hex_digits(&mut self, number: u64) {
        let (digits, length) = hex_digits(number);
        self.put(&digits, length);
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
        match padded(text) {
            Some(chunk) if are_printable(u128::from_le_bytes(chunk)) => return self.put(&chunk, text.len()),
            None if is_printable(text) => return self.extend(text),
            _ => {}
        }
        for character in String::from_utf8_lossy(text).chars() {
            // Writing lines cannot fail.
            let _ = self.write_char(if terminal::acts(character) { '?' } else { character });
        }
    }

    /// Spaces up to `length` bytes of text; none when it is as long already.
    #[inline]
    pub(super) fn pad_to(&mut self, length: usize) {
        while let Some(missing @ 1..) = length.checked_sub(self.len()) {
            self.put(&[b' '; CHUNK], missing.min(CHUNK));
        }
    }

    /// `text` as a JSON string.
    pub(super) fn json(&mut self, text: &[u8]) {
        if self.quoted_as_it_is(text) {
            return;
        }
        // A string is always serialisable, and lines always writable.
        let _ = serde_json::to_writer(terminal::HarmlessJson(JsonWriter(self)), &String::from_utf8_lossy(text));
    }

    /// `text` in quotes when nothing in it needs escaping; else nothing.
    #[inline]
    fn quoted_as_it_is(&mut self, text: &[u8]) -> bool {
        let Some(chunk) = padded(text) else { return self.quoted_long(text) };
        if !is_plain(u128::from_le_bytes(chunk)) {
            return false;
        }
        self.push(b'"');
        self.put(&chunk, text.len());
        self.push(b'"');
        true
    }

    /// The same for text of more than [`CHUNK`] bytes.
    fn quoted_long(&mut self, text: &[u8]) -> bool {
        if !text.chunks(CHUNK).filter_map(padded).map(u128::from_le_bytes).all(is_plain) {
            return false;
        }
        self.push(b'"');
        self.extend(text);
        self.push(b'"');
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

/// Numbers that have a place in a table: a power of two, so that every index can be one of it.
const PLACES: usize = 1024;

/// The place in such a table of a number that has one.
#[inline]
const fn place_of(number: u64) -> usize {
    (number % 1024) as usize
}

/// All numbers of three digits. Those behind them have any.
static DIGITS: [[u8; GROUP]; PLACES] = {
    let mut numbers = [[b'0'; GROUP]; PLACES];
    let mut number = 1;
    while number < 1000 {
        let [hundreds, tens, ones, room] = numbers[number - 1];
        numbers[number] = match (tens, ones) {
            (b'9', b'9') => [hundreds + 1, b'0', b'0', room],
            (_, b'9') => [hundreds, tens + 1, b'0', room],
            _ => [hundreds, tens, ones + 1, room],
        };
        number += 1;
    }
    numbers
};

/// The same without zeros before the number, and how many digits are left.
static LEADING_DIGITS: [[u8; GROUP]; PLACES] = {
    let mut numbers = DIGITS;
    let mut number = 0;
    while number < 1000 {
        let [hundreds, tens, ones, _] = numbers[number];
        numbers[number] = match number {
            0..10 => [ones, 0, 0, 1],
            10..100 => [tens, ones, 0, 2],
            _ => [hundreds, tens, ones, 3],
        };
        number += 1;
    }
    numbers
};

/// The digits of a number of at most three.
#[inline]
fn digits_of(number: u64) -> [u8; GROUP] {
    DIGITS[place_of(number)]
}

/// Characters of the column of whole seconds, with the point behind it.
pub(super) const SECONDS: usize = 7;
/// Decimals of a second in nanoseconds.
const DECIMALS: usize = 9;
/// Bytes that they are written with; the last one is room.
const DECIMALS_SIZE: usize = DECIMALS - (GROUP - 1) + GROUP;

/// Writes the decimals of `nanoseconds`, which are less than a second, to `room` of [`DECIMALS_SIZE`].
#[inline(always)]
fn write_decimals(room: &mut [u8], nanoseconds: u64) {
    // More bits than these it does not have, and dividing fewer bits is cheaper.
    let nanoseconds = (nanoseconds % (1 << 30)) as u32;
    let (thousands, last) = (nanoseconds / 1000, nanoseconds % 1000);
    for (group, number) in [thousands / 1000, thousands % 1000, last].into_iter().enumerate() {
        let begin = group * (GROUP - 1);
        room[begin..begin + GROUP].copy_from_slice(&digits_of(number.into()));
    }
}

/// `text` with spaces behind it; `None` where it is longer.
#[inline]
fn padded(text: &[u8]) -> Option<[u8; CHUNK]> {
    let spaces = match text.len() {
        length @ 0..CHUNK => u128::from_le_bytes([b' '; CHUNK]) << (8 * length),
        CHUNK => 0,
        _ => return None,
    };
    // The beginning and the end, which may overlap, or all of what is very short.
    let bytes = if let (Some(&first), Some(&last)) = (text.first_chunk(), text.last_chunk()) {
        u128::from(u64::from_le_bytes(first)) | u128::from(u64::from_le_bytes(last)) << (8 * (text.len() - 8))
    } else if let (Some(&first), Some(&last)) = (text.first_chunk(), text.last_chunk()) {
        u128::from(u32::from_le_bytes(first)) | u128::from(u32::from_le_bytes(last)) << (8 * (text.len() - 4))
    } else {
        text.iter().rev().fold(0, |bytes, &byte| bytes << 8 | u128::from(byte))
    };
    Some((bytes | spaces).to_le_bytes())
}

/// Whether all bytes are printable ASCII.
#[inline]
fn is_printable(text: &[u8]) -> bool {
    text.chunks(CHUNK).filter_map(padded).map(u128::from_le_bytes).all(are_printable)
}

const ONES: u128 = u128::MAX / 0xff;
const TOPS: u128 = ONES << 7;

/// Whether all bytes of a chunk are printable ASCII.
#[inline]
const fn are_printable(chunk: u128) -> bool {
    // The top bit of a byte says: below a space; `0x7f`; above. A borrow or a carry comes from a byte that says so itself.
    (chunk.wrapping_sub(ONES * b' ' as u128) | chunk.wrapping_add(ONES) | chunk) & TOPS == 0
}

/// Whether all bytes of a chunk are printable ASCII that stands in quotes as it is.
#[inline]
const fn is_plain(chunk: u128) -> bool {
    are_printable(chunk) && !has(chunk, b'"') && !has(chunk, b'\\')
}

/// Whether a chunk of ASCII has `byte`.
#[inline]
const fn has(chunk: u128, byte: u8) -> bool {
    // Bytes that are equal to it become zeros, which alone borrow.
    (chunk ^ (ONES * byte as u128)).wrapping_sub(ONES) & TOPS != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(write: impl FnOnce(&mut Lines)) -> String {
        let mut lines = Lines::default();
        write(&mut lines);
        String::from_utf8(lines.text()).unwrap()
    }

    #[test]
    fn literals_of_all_lengths_are_written_whole() {
        let long: Vec<u8> = (0..100).map(|number| b'a' + number % 26).collect();

        let written = text(|lines| (0..100).for_each(|length| lines.literal(&Literal::from(&long[..length]))));

        let expected: Vec<u8> = (0..100).flat_map(|length| long[..length].to_vec()).collect();
        assert_eq!(written.as_bytes(), expected);
    }

    #[test]
    fn texts_of_all_lengths_are_written_whole() {
        let long: Vec<u8> = (0..40).map(|number| b'a' + number % 26).collect();

        let written = text(|lines| {
            (0..40).for_each(|length| lines.name(&long[..length]));
            (0..40).for_each(|length| lines.quoted(&long[..length]));
        });

        let names = (0..40).flat_map(|length| long[..length].to_vec());
        let quoted = (0..40).flat_map(|length| [b"\"", &long[..length], b"\""].concat());
        assert_eq!(written.as_bytes(), names.chain(quoted).collect::<Vec<_>>());
    }

    #[test]
    fn every_byte_is_escaped_wherever_it_stands_as_serde_json_does_it() {
        for (byte, place) in (0..=0x7f_u8).flat_map(|byte| (0..20_usize).map(move |place| (byte, place))) {
            let mut given = [b'z'; 20];
            given[place] = byte;

            let expected = serde_json::to_string(std::str::from_utf8(&given).unwrap()).unwrap();
            let expected = terminal::harmless_json(&expected);
            assert_eq!(text(|lines| lines.json(&given)), expected);
            assert_eq!(text(|lines| lines.json(&given[place..])), format!("\"{}", &expected[1 + place..]));
        }
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
            let columns = |lines: &mut Lines| lines.time_columns(b"    12. ", nanoseconds, (7, nanoseconds / 3));
            let expected = format!("    12.{nanoseconds:09}  +7.{:09}", nanoseconds / 3);
            prop_assert_eq!(text(columns), expected);
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
