//! The wire format of Protobuf, for the messages that there is one of for each record: what a library does for a
//! message of any kind took a quarter of an export's instructions.

/// Wire types, the lowest bits of a field's key.
const NUMBER: u64 = 0;
const WITH_LENGTH: u64 = 2;

/// Bits of a number that go into one of its bytes.
const BITS: usize = 7;
/// Bytes that are put together at once.
const WORD: usize = 8;

/// The bytes of a number of variable length, the first one in the lowest byte, and how many they are; `None` where they
/// are more than [`WORD`].
#[inline]
const fn varint(number: u64) -> Option<(u64, usize)> {
    if number < 0x80 {
        return Some((number, 1));
    }
    if number >> (BITS * WORD) != 0 {
        return None;
    }
    // In halves; each has room for the bits of its bytes.
    let halves = (number & 0x0fff_ffff) | (number & 0xff_ffff_f000_0000) << 4;
    let quarters = (halves & 0x3fff_0000_3fff) | (halves & 0xfff_c000_0fff_c000) << 2;
    let bytes = (quarters & 0x7f_007f_007f_007f) | (quarters & 0x3f80_3f80_3f80_3f80) << 1;
    let length = ((u64::BITS - number.leading_zeros()) as usize).div_ceil(BITS);
    // All bytes but the last say that another one follows.
    let others = (1 << (8 * (length - 1))) - 1;
    Some((bytes | 0x8080_8080_8080_8080 & others, length))
}

/// Appends the first `length` bytes of `word`.
#[inline(always)]
fn put_word(word: u64, length: usize, out: &mut Vec<u8>) {
    let begin = out.len();
    // A number of bytes that is known when this is compiled is copied at once.
    out.extend_from_slice(&word.to_le_bytes());
    out.truncate(begin + length);
}

/// Appends a number of variable length.
#[inline]
fn put_varint(number: u64, out: &mut Vec<u8>) {
    match varint(number) {
        Some((word, length)) => put_word(word, length, out),
        None => {
            put_word(number & 0x7f | 0x80, 1, out);
            put_varint(number >> BITS, out);
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
pub(in super::super) fn put_number(field: u32, number: u64, out: &mut Vec<u8>) {
    put_number_behind(Key::of_number(field), number, out);
}

/// The same behind a key that is known.
#[inline(always)]
pub(in super::super) fn put_number_behind(key: Key, number: u64, out: &mut Vec<u8>) {
    match varint(number) {
        Some((word, length)) if key.length + length <= WORD => {
            put_word(key.word | word << (8 * key.length), key.length + length, out);
        }
        _ => {
            put_word(key.word, key.length, out);
            put_varint(number, out);
        }
    }
}

/// Appends the field `field` of a message: text, or another message, encoded.
#[inline]
pub(in super::super) fn put_bytes(field: u32, bytes: &[u8], out: &mut Vec<u8>) {
    put_bytes_behind(Key::with_length(field), bytes, out);
}

/// The same behind a key that is known.
#[inline]
pub(in super::super) fn put_bytes_behind(key: Key, bytes: &[u8], out: &mut Vec<u8>) {
    put_number_behind(key, bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// Appends the field `field` of a message: another message, which `put` appends.
#[inline]
pub(in super::super) fn put_message(field: u32, out: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>)) {
    put_message_behind(Key::with_length(field), out, put);
}

/// The same behind a key that is known.
#[inline]
pub(in super::super) fn put_message_behind(key: Key, out: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>)) {
    // Most messages are so short that their length takes one byte.
    put_number_behind(key, 0, out);
    let place = out.len() - 1;
    put(out);
    let length = out.len() - place - 1;
    match (u8::try_from(length), out.get_mut(place)) {
        (Ok(short @ 0..0x80), Some(byte)) => *byte = short,
        _ => {
            let mut bytes = Vec::new();
            put_varint(length as u64, &mut bytes);
            out.splice(place..=place, bytes);
        }
    }
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
    use super::super::{EventName, GenericKernelTaskStateEvent};
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
