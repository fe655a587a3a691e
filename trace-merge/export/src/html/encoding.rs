//! How numbers get into the page: as variable-length integers, which become typed arrays; compressed, and in
//! letters that mean nothing in HTML.

use base64::engine::general_purpose::STANDARD;
use base64::write::EncoderWriter;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use serde::Serialize;
use std::io::{self, BufWriter, Write};

/// Appends `number`: seven bits a byte, the lowest first; the highest bit says that more follow.
pub(super) fn put(bytes: &mut Vec<u8>, number: u64) {
    let mut rest = number;
    while rest > 0x7f {
        bytes.push(low_bits(rest) | 0x80);
        rest >>= 7;
    }
    bytes.push(low_bits(rest));
}

/// The lowest seven bits of `number`.
const fn low_bits(number: u64) -> u8 {
    number.to_le_bytes()[0] & 0x7f
}

/// Appends `number`, small ones of either sign in few bytes.
pub(super) fn put_signed(bytes: &mut Vec<u8>, number: i64) {
    put(bytes, (number << 1 ^ number >> 63).cast_unsigned());
}

/// Appends the length of `text`, and `text`.
pub(super) fn put_bytes(bytes: &mut Vec<u8>, text: &[u8]) {
    put(bytes, text.len() as u64);
    bytes.extend_from_slice(text);
}

/// Bytes of a column that wait to be compressed together.
const PENDING: usize = 1 << 15;

/// Bytes that are compressed (zlib) while more are added.
#[derive(Debug)]
pub(super) struct Column {
    pending: Vec<u8>,
    packed: ZlibEncoder<Vec<u8>>,
}

impl Default for Column {
    fn default() -> Self {
        Self { pending: Vec::with_capacity(PENDING), packed: ZlibEncoder::new(Vec::new(), Compression::best()) }
    }
}

impl Column {
    /// Where to append.
    pub(super) fn end(&mut self) -> &mut Vec<u8> {
        if self.pending.len() >= PENDING {
            // It is compressed into memory, which takes all.
            let _ = self.packed.write_all(&self.pending);
            self.pending.clear();
        }
        &mut self.pending
    }

    /// How many bytes were added.
    pub(super) fn len(&self) -> u64 {
        self.packed.total_in() + self.pending.len() as u64
    }

    /// Writes it as [`write_packed`] does.
    ///
    /// # Errors
    /// When `out` fails.
    pub(super) fn write(mut self, out: &mut impl Write) -> io::Result<()> {
        self.packed.write_all(&self.pending)?;
        let mut letters = EncoderWriter::new(out, &STANDARD);
        letters.write_all(&self.packed.finish()?)?;
        letters.finish().map(drop)
    }
}

/// Writes `bytes` compressed (zlib), as base64.
///
/// # Errors
/// When `out` fails.
pub(super) fn write_packed(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let letters = EncoderWriter::new(out, &STANDARD);
    let mut packed = ZlibEncoder::new(letters, Compression::best());
    packed.write_all(bytes)?;
    packed.finish()?.finish().map(drop)
}

/// Writes `value` as JSON that is packed as [`write_packed`] does it.
///
/// # Errors
/// When `out` fails, or `value` has no form as JSON.
pub(super) fn write_packed_json(out: &mut impl Write, value: &(impl Serialize + ?Sized)) -> io::Result<()> {
    let letters = EncoderWriter::new(out, &STANDARD);
    // JSON comes a few bytes at a time.
    let mut packed = BufWriter::new(ZlibEncoder::new(letters, Compression::best()));
    serde_json::to_writer(&mut packed, value)?;
    packed.into_inner()?.finish()?.finish().map(drop)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The numbers in `bytes`, read as the page does.
    pub(crate) fn numbers(bytes: &[u8]) -> Vec<u64> {
        let (mut numbers, mut number, mut shift) = (Vec::new(), 0, 0);
        for &byte in bytes {
            number |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                numbers.push(number);
                (number, shift) = (0, 0);
            }
        }
        numbers
    }

    #[test]
    fn column_that_is_compressed_bit_by_bit_is_that_which_is_compressed_at_once() {
        let bytes: Vec<u8> = (0..3 * PENDING).map(|at| low_bits((at * at / 7) as u64)).collect();
        let (mut column, mut letters, mut at_once) = (Column::default(), Vec::new(), Vec::new());

        bytes.chunks(1000).for_each(|some| column.end().extend_from_slice(some));
        let length = column.len();
        column.write(&mut letters).unwrap();

        write_packed(&mut at_once, &bytes).unwrap();
        assert_eq!((length, letters == at_once), (bytes.len() as u64, true));
    }

    proptest! {
        #[test]
        fn numbers_are_read_back(given: Vec<(u64, i64)>) {
            let mut bytes = Vec::new();
            for &(unsigned, signed) in &given {
                put(&mut bytes, unsigned);
                put_signed(&mut bytes, signed);
            }
            let signed = |number: u64| (number >> 1).cast_signed() ^ -(number & 1).cast_signed();
            let read: Vec<_> = numbers(&bytes).chunks(2).map(|pair| (pair[0], signed(pair[1]))).collect();
            prop_assert_eq!(read, given);
        }

        #[test]
        fn packed_bytes_are_unpacked(bytes: Vec<u8>) {
            let mut letters = Vec::new();
            write_packed(&mut letters, &bytes).unwrap();
            let packed = base64::Engine::decode(&STANDARD, letters).unwrap();
            let mut unpacked = Vec::new();
            io::Read::read_to_end(&mut flate2::read::ZlibDecoder::new(&*packed), &mut unpacked).unwrap();
            prop_assert_eq!(unpacked, bytes);
        }
    }
}
