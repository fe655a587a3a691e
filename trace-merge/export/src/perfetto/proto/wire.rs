//! The wire format of Protobuf, for the messages that there is one of for each record: what a library does for a
//! message of any kind took a quarter of an export's instructions.

use std::io::Write;

/// Wire types, the lowest bits of a field's key.
const NUMBER: u64 = 0;
const EIGHT_BYTES: u64 = 1;
const WITH_LENGTH: u64 = 2;

/// Bits of a number that go into one of its bytes.
const BITS: usize = 7;
/// Bytes that are put together at once.
const WORD: usize = 8;

/// The lowest 56 bits of a number, seven in each byte.
#[inline]
const fn spread(number: u64) -> u64 {
    // In halves; each has room for the bits of its bytes.
    let halves = (number & 0x0fff_ffff) | (number & 0xff_ffff_f000_0000) << 4;
    let quarters = (halves & 0x3fff_0000_3fff) | (halves & 0xfff_c000_0fff_c000) << 2;
    (quarters & 0x7f_007f_007f_007f) | (quarters & 0x3f80_3f80_3f80_3f80) << 1
}

/// The bytes of a number of variable length, the first one in the lowest byte, and how many they are; `None` where they
/// are more than [`WORD`].
#[inline(always)]
pub(in super::super) const fn varint(number: u64) -> Option<(u64, usize)> {
    // Most numbers are small: those of tracks and names, lengths, and what many fields hold.
    if number < 0x80 {
        return Some((number, 1));
    }
    if number < 0x4000 {
        return Some((number & 0x7f | 0x80 | (number & 0x3f80) << 1, 2));
    }
    if number >> (BITS * WORD) != 0 {
        return None;
    }
    let bytes = spread(number);
    let length = ((u64::BITS - number.leading_zeros()) as usize).div_ceil(BITS);
    // All bytes but the last say that another one follows.
    let others = (1 << (8 * (length - 1))) - 1;
    Some((bytes | 0x8080_8080_8080_8080 & others, length))
}

/// What fields are appended to.
pub(in super::super) trait Fields {
    /// Appends the first `length` bytes of `word`, at most [`WORD`].
    fn put_word(&mut self, word: u64, length: usize);

    fn put_slice(&mut self, bytes: &[u8]);

    /// How many bytes there are.
    fn length(&self) -> usize;

    /// What is behind `place` is a message whose length is to be written there, in place of the byte that holds it so far.
    fn close(&mut self, place: usize);

    /// Where numbers are formatted to: what takes all that is written.
    fn put_text(&mut self, text: std::fmt::Arguments<'_>);
}

impl Fields for Vec<u8> {
    #[inline(always)]
    fn put_word(&mut self, word: u64, length: usize) {
        let begin = self.len();
        // A number of bytes that is known when this is compiled is copied at once.
        self.extend_from_slice(&word.to_le_bytes());
        self.truncate(begin + length);
    }

    #[inline]
    fn put_slice(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    #[inline]
    fn length(&self) -> usize {
        self.len()
    }

    #[inline]
    fn close(&mut self, place: usize) {
        let length = self.len() - place - 1;
        match (u8::try_from(length), self.get_mut(place)) {
            (Ok(short @ 0..0x80), Some(byte)) => *byte = short,
            _ => {
                let mut bytes = Vec::new();
                put_varint(length as u64, &mut bytes);
                self.splice(place..=place, bytes);
            }
        }
    }

    fn put_text(&mut self, text: std::fmt::Arguments<'_>) {
        // Memory takes all that is written.
        let _ = self.write_fmt(text);
    }
}

/// Fields that are few bytes, as those of most records: they are stored where there is room for sure, and how many there
/// are is not written to memory each time. Where they are too many after all, [`Short::fits`] says so.
#[derive(Debug)]
pub(in super::super) struct Short<'b, const ROOM: usize> {
    bytes: &'b mut [u8; ROOM],
    /// [`TOO_LONG`](Self::TOO_LONG) once there was no room.
    end: usize,
}

impl<'b, const ROOM: usize> Short<'b, ROOM> {
    const TOO_LONG: usize = ROOM + 1;

    #[inline(always)]
    pub(in super::super) const fn new(bytes: &'b mut [u8; ROOM]) -> Self {
        Self { bytes, end: 0 }
    }

    /// Writes a length of two bytes in place of the one at `place`.
    #[inline(never)]
    fn close_long(&mut self, place: usize) {
        let (begin, end) = (place + 1, self.end);
        let length = end.saturating_sub(begin);
        if end >= ROOM || length >= 1 << (2 * BITS) {
            self.end = Self::TOO_LONG;
            return;
        }
        self.bytes.copy_within(begin..end, begin + 1);
        if let (Some(room), Some((word, 2))) = (self.bytes.get_mut(place..place + 2), varint(length as u64)) {
            let [first, second, ..] = word.to_le_bytes();
            room.copy_from_slice(&[first, second]);
        }
        self.end += 1;
    }

    /// Appends what was appended here to `out`; whether that was not too much.
    #[inline(always)]
    pub(in super::super) fn append_to(&self, out: &mut Vec<u8>) -> bool {
        let Some(length) = self.fits() else { return false };
        let begin = out.len();
        // A number of bytes that is known when this is compiled is copied at once.
        out.extend_from_slice(self.bytes);
        out.truncate(begin + length);
        true
    }

    /// Bytes that were appended; `None` where that was too much.
    #[inline(always)]
    pub(in super::super) fn fits(&self) -> Option<usize> {
        (self.end <= ROOM).then_some(self.end)
    }
}

impl<const ROOM: usize> Fields for Short<'_, ROOM> {
    #[inline(always)]
    fn put_word(&mut self, word: u64, length: usize) {
        if self.end > ROOM - WORD {
            self.end = Self::TOO_LONG;
            return;
        }
        self.bytes[self.end..self.end + WORD].copy_from_slice(&word.to_le_bytes());
        self.end += length;
    }

    #[inline(always)]
    fn put_slice(&mut self, bytes: &[u8]) {
        match self.bytes.get_mut(self.end..).and_then(|room| room.get_mut(..bytes.len())) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.end += bytes.len();
            }
            None => self.end = Self::TOO_LONG,
        }
    }

    #[inline(always)]
    fn length(&self) -> usize {
        self.end
    }

    #[inline(always)]
    fn close(&mut self, place: usize) {
        match (u8::try_from(self.end.wrapping_sub(place + 1)), self.bytes.get_mut(place)) {
            (Ok(short @ 0..0x80), Some(byte)) => *byte = short,
            _ => self.close_long(place),
        }
    }

    #[inline(never)]
    fn put_text(&mut self, text: std::fmt::Arguments<'_>) {
        self.put_slice(text.to_string().as_bytes());
    }
}

/// Appends a number of variable length.
#[inline]
fn put_varint(number: u64, out: &mut impl Fields) {
    match varint(number) {
        Some((word, length)) => out.put_word(word, length),
        None => {
            out.put_word(spread(number) | 0x8080_8080_8080_8080, WORD);
            let rest = number >> (BITS * WORD);
            out.put_word(
                rest & 0x7f | rest >> BITS << 8 | if rest < 0x80 { 0 } else { 0x80 },
                1 + usize::from(rest >= 0x80),
            );
        }
    }
}

/// What stands before the value of a field, encoded: its number, and how its value is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Key {
    word: u64,
    length: usize,
}

impl Key {
    /// Of the field `field`, which is a number or a value of an enumeration.
    #[inline(always)]
    pub(in super::super) const fn of_number(field: u32) -> Self {
        Self::new(field, NUMBER)
    }

    /// Of the field `field`, which is text or another message.
    #[inline(always)]
    pub(in super::super) const fn with_length(field: u32) -> Self {
        Self::new(field, WITH_LENGTH)
    }

    /// Of a field below 16: it is this byte.
    #[inline(always)]
    pub(in super::super) const fn byte(self) -> u64 {
        self.word
    }

    #[inline(always)]
    const fn new(field: u32, wire_type: u64) -> Self {
        match varint((field as u64) << 3 | wire_type) {
            Some((word, length)) => Self { word, length },
            // A field's number has 29 bits.
            None => Self { word: 0, length: 0 },
        }
    }
}

/// Appends the field `field` of a message: a number, or a value of an enumeration.
#[inline(always)]
pub(in super::super) fn put_number(field: u32, number: u64, out: &mut impl Fields) {
    put_number_behind(Key::of_number(field), number, out);
}

/// Appends the field `field` of a message: floating point of 64 bits.
pub(in super::super) fn put_double(field: u32, number: f64, out: &mut impl Fields) {
    let key = Key::new(field, EIGHT_BYTES);
    out.put_word(key.word, key.length);
    out.put_word(number.to_bits(), WORD);
}

/// The same behind a key that is known.
#[inline(always)]
pub(in super::super) fn put_number_behind(key: Key, number: u64, out: &mut impl Fields) {
    match varint(number) {
        Some((word, length)) if key.length + length <= WORD => {
            out.put_word(key.word | word << (8 * key.length), key.length + length);
        }
        _ => {
            out.put_word(key.word, key.length);
            put_varint(number, out);
        }
    }
}

/// Appends the field `field` of a message: text, or another message, encoded.
#[inline]
pub(in super::super) fn put_bytes(field: u32, bytes: &[u8], out: &mut impl Fields) {
    put_bytes_behind(Key::with_length(field), bytes, out);
}

/// The same behind a key that is known.
#[inline]
pub(in super::super) fn put_bytes_behind(key: Key, bytes: &[u8], out: &mut impl Fields) {
    put_number_behind(key, bytes.len() as u64, out);
    out.put_slice(bytes);
}

/// Appends what stands before a message of `length` bytes that is the field `field` of another one.
pub(in super::super) fn put_length(field: u32, length: usize, out: &mut impl Fields) {
    put_number_behind(Key::with_length(field), length as u64, out);
}

/// Appends the field `field` of a message: another message, which `put` appends.
#[inline(always)]
pub(in super::super) fn put_message<F: Fields>(field: u32, out: &mut F, put: impl FnOnce(&mut F)) {
    put_message_behind(Key::with_length(field), out, put);
}

/// The same behind a key that is known.
#[inline(always)]
pub(in super::super) fn put_message_behind<F: Fields>(key: Key, out: &mut F, put: impl FnOnce(&mut F)) {
    // Most messages are so short that their length takes one byte.
    put_number_behind(key, 0, out);
    let place = out.length().wrapping_sub(1);
    put(out);
    out.close(place);
}

/// Begins a message that stands for itself: leaves room for what [`close_message`] writes before it.
#[inline]
pub(in super::super) fn open_message(out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&[0; WORD]);
}

/// The message that was appended to `out` since [`open_message`], as the field `field` of another one.
#[inline]
pub(in super::super) fn close_message(field: u32, out: &mut [u8]) -> &[u8] {
    let length = out.len().saturating_sub(WORD) as u64;
    let key = u64::from(field) << 3 | WITH_LENGTH;
    // A message that is longer than memory has no such form, nor has a field that no message here has.
    let (Some((key, before)), Some((word, bytes))) = (varint(key), varint(length)) else { return &[] };
    let unused = WORD.saturating_sub(before + bytes);
    if let Some(room) = out.first_chunk_mut() {
        *room = ((key | word << (8 * before)) << (8 * unused)).to_le_bytes();
    }
    out.get(unused..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::{DebugAnnotation, EventName, GenericKernelTaskStateEvent, field};
    use super::*;
    use prost::Message;

    #[test]
    fn fields_are_encoded_as_the_library_does() {
        for number in (0..64).flat_map(|bit| [(1_u64 << bit) - 1, 1 << bit]).chain([u64::MAX]) {
            let name = EventName { iid: Some(number), name: Some("x".repeat(200)) };
            let mut out = Vec::new();

            put_number(1, number, &mut out);
            put_bytes(2, "x".repeat(200).as_bytes(), &mut out);

            assert_eq!(out, name.encode_to_vec());
        }
    }

    #[test]
    fn floating_point_is_encoded_as_the_library_does() {
        for number in [0.0, -0.25, f64::MIN_POSITIVE, f64::MAX, f64::NEG_INFINITY] {
            let annotation = DebugAnnotation { double_value: Some(number), ..DebugAnnotation::default() };
            let mut out = Vec::new();

            put_double(field::ANNOTATION_DOUBLE, number, &mut out);

            assert_eq!(out, annotation.encode_to_vec());
        }
    }

    #[test]
    fn messages_of_all_lengths_are_encoded_as_the_library_does() {
        for length in [0, 1, 0x7f, 0x80, 0x3fff, 0x4000, 0x20_0000] {
            let text = "x".repeat(length);
            let name = EventName { iid: None, name: Some(text.clone()) };
            let mut out = Vec::new();

            put_message(2, &mut out, |out| out.extend_from_slice(text.as_bytes()));

            assert_eq!(out, name.encode_to_vec());
        }
    }

    #[test]
    fn few_bytes_are_encoded_as_many_are_and_too_many_are_not_there() {
        for length in [0, 1, 7, 8, 9, 0x7b, 0x7c, 0x7d, 0x7e, 0x7f, 0x80, 0xe0] {
            let (mut bytes, mut many) = ([0; 256], Vec::new());
            let mut few = Short::new(&mut bytes);
            let (text, number) = ("x".repeat(length), u64::MAX >> (length % 64));

            put_message(2, &mut few, |out| put_message(1, out, |out| put_bytes(7, text.as_bytes(), out)));
            put_number(3, number, &mut few);
            put_message(2, &mut many, |out| put_message(1, out, |out| put_bytes(7, text.as_bytes(), out)));
            put_number(3, number, &mut many);

            assert_eq!(few.fits(), Some(many.len()), "{length}");
            assert_eq!(few.bytes[..many.len()], many[..], "{length}");
        }
        for length in [0xfd, 0xfe, 0xff, 0x100, 0x4000] {
            let mut bytes = [0; 256];
            let mut few = Short::new(&mut bytes);

            put_message(2, &mut few, |out| put_bytes(7, "x".repeat(length).as_bytes(), out));

            assert_eq!(few.fits(), None, "{length}");
        }
    }

    #[test]
    fn message_that_stands_for_itself_is_encoded_as_a_field() {
        for length in [0, 1, 0x7f, 0x80, 0x3fff, 0x4000, 0x20_0000] {
            let text = "x".repeat(length);
            let (mut out, mut expected) = (vec![7], Vec::new());
            put_bytes(1, text.as_bytes(), &mut expected);

            open_message(&mut out);
            out.extend_from_slice(text.as_bytes());

            assert_eq!(close_message(1, &mut out), expected);
        }
    }

    #[test]
    fn negative_number_is_encoded_in_64_bits() {
        let state = GenericKernelTaskStateEvent { tid: Some(-1), ..GenericKernelTaskStateEvent::default() };
        let mut out = Vec::new();

        put_number(3, (-1_i64).cast_unsigned(), &mut out);

        assert_eq!(out, state.encode_to_vec());
    }
}
