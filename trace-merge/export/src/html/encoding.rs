//! How numbers get into the page: as variable-length integers, which become typed arrays; compressed, and in
//! letters that mean nothing in HTML.

use base64::engine::general_purpose::STANDARD;
use base64::write::EncoderWriter;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use std::io::{self, Write};

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
