//! Lines of text under construction: numbers, literals and escaped text, written in place. Nothing is allocated for a
//! record once the memory has grown to what a batch of records takes.

use std::fmt::{self, Write};
use strata_recording::schema::hex_digits;
use strata_recording::terminal;

/// Bytes that are copied at once: most names and literals are not longer.
const CHUNK: usize = 16;
/// Bytes of a longer literal that are copied at once behind the first ones.
const LONG_CHUNK: usize = 32;
/// Bytes that are copied at once, at most.
pub(super) const MOST_AT_ONCE: usize = 96;
/// Bytes that are written before they are moved behind the others: few, so that they stay in the fastest cache and are
/// moved without setting up a long copy.
const WINDOW: usize = 1 << 10;
/// Bytes that a group of three digits is written with; the last one is room.
const GROUP: usize = 4;

/// Text that is the same in many lines, in pieces that are copied without asking how long they are.
#[derive(Clone, Debug)]
pub(super) struct Literal {
    first: Piece<CHUNK>,
    others: Vec<Piece<LONG_CHUNK>>,
}

/// Text in a place that may be longer.
#[derive(Clone, Copy, Debug)]
struct Piece<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Piece<N> {
    const EMPTY: Self = Self { bytes: [0; N], length: 0 };
}

impl<const N: usize> From<&[u8]> for Piece<N> {
    /// The first bytes of `text` that there is room for.
    fn from(text: &[u8]) -> Self {
        let mut bytes = [0; N];
        bytes.iter_mut().zip(text).for_each(|(to, from)| *to = *from);
        Self { bytes, length: text.len().min(N) }
    }
}

impl Literal {
    /// No text.
    pub(super) const EMPTY: Self = Self { first: Piece::EMPTY, others: Vec::new() };
}

impl From<&[u8]> for Literal {
    fn from(text: &[u8]) -> Self {
        let (first, others) = text.split_at_checked(CHUNK).unwrap_or((text, &[]));
        Self { first: first.into(), others: others.chunks(LONG_CHUNK).map(Piece::from).collect() }
    }
}

/// Lines, one after another.
#[derive(Debug)]
pub(super) struct Lines {
    /// What does not change any more.
    bytes: Vec<u8>,
    /// What comes behind it: the first `length` bytes are text.
    window: Box<[u8; WINDOW + MOST_AT_ONCE]>,
    length: usize,
}

impl Default for Lines {
    fn default() -> Self {
        Self { bytes: Vec::new(), window: Box::new([0; WINDOW + MOST_AT_ONCE]), length: 0 }
    }
}

impl Lines {
    /// The lines.
    pub(super) fn text(&mut self) -> &[u8] {
        self.empty_window();
        &self.bytes
    }

    /// Bytes of the lines.
    #[inline]
    pub(super) const fn len(&self) -> usize {
        self.bytes.len() + self.length
    }

    /// What was written behind the first `begin` bytes; `None` where that lies in two places.
    pub(super) fn since(&self, begin: usize) -> Option<&[u8]> {
        self.window.get(begin.checked_sub(self.bytes.len())?..self.length)
    }

    /// Forgets the lines, not their memory.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.length = 0;
    }

    #[cold]
    #[inline(never)]
    fn empty_window(&mut self) {
        self.bytes.extend_from_slice(&self.window[..self.length]);
        self.length = 0;
    }

    /// Writes `bytes`, whose first `length` are text. Inlined, so that this is a comparison and a copy.
    #[inline(always)]
    pub(super) fn put<const N: usize>(&mut self, bytes: &[u8; N], length: usize) {
        const { assert!(N <= MOST_AT_ONCE) };
        let begin = if self.length <= WINDOW {
            self.length
        } else {
            self.empty_window();
            0
        };
        self.window[begin..begin + N].copy_from_slice(bytes);
        self.length = begin + length;
    }

    #[inline]
    pub(super) fn push(&mut self, byte: u8) {
        self.put(&[byte], 1);
    }

    #[inline]
    pub(super) fn extend(&mut self, bytes: &[u8]) {
        match padded(bytes) {
            Some(chunk) => self.put(&chunk, bytes.len()),
            None => {
                self.empty_window();
                self.bytes.extend_from_slice(bytes);
            }
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

    /// The nine decimals of `nanoseconds`, which are less than a second, behind `before`: text of at most seven bytes.
    #[inline]
    pub(super) fn nanoseconds<const N: usize>(&mut self, before: [u8; N], nanoseconds: u64) {
        const { assert!(N + DECIMALS <= CHUNK) };
        let mut chunk = [0; CHUNK];
        chunk[..N].copy_from_slice(&before);
        let decimals = u128::from_le_bytes(decimals(nanoseconds)) << (8 * N);
        self.put(&(u128::from_le_bytes(chunk) | decimals).to_le_bytes(), N + DECIMALS);
    }

    /// Hexadecimal with `0x`.
    #[inline]
    pub(super) fn hex(&mut self, number: u64) {
        self.constant(b"0x");
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

/// Decimals of a second in nanoseconds.
const DECIMALS: usize = 9;

/// The decimals of `nanoseconds`, which are less than a second, and zeros behind them.
#[inline]
fn decimals(nanoseconds: u64) -> [u8; CHUNK] {
    const ROOM: u32 = u32::MAX >> 8;
    // More bits than these it does not have, and dividing fewer bits is cheaper.
    let nanoseconds = (nanoseconds % (1 << 30)) as u32;
    let digits = |group: u32| u128::from(u32::from_le_bytes(digits_of(u64::from(group))) & ROOM);
    let (thousands, last) = (nanoseconds / 1000, nanoseconds % 1000);
    let text = digits(thousands / 1000) | digits(thousands % 1000) << 24 | digits(last) << 48;
    text.to_le_bytes()
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
            prop_assert_eq!(text(|lines| lines.nanoseconds(*b"0.", nanoseconds)), format!("0.{nanoseconds:09}"));
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
