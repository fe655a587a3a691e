//! How values lie in a page of a Parquet file, as far as files here have it.
//!
//! Written here, and not with the `parquet` library's writers, which cost some 50 ns a value where these take a few: a
//! value of a dictionary is looked for only where it is not the one before.

/// Values of which a run is told once rather than one by one.
const RUN: usize = 8;
/// Values of a block of differences, and of each of its parts, which have a width of their own.
const BLOCK: usize = 128;
const PARTS: usize = 4;
const PART: usize = BLOCK / PARTS;

/// The bits that numbers up to `largest` take.
pub(in crate::parquet) const fn width_of(largest: u64) -> u32 {
    u64::BITS - largest.leading_zeros()
}

/// Appends a number of variable length (ULEB128).
pub(in crate::parquet) fn put_varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(low_byte(number) | 0x80);
        number >>= 7;
    }
    out.push(low_byte(number));
}

/// Appends a signed number of variable length (zigzag).
fn put_signed(number: i64, out: &mut Vec<u8>) {
    put_varint(((number << 1) ^ (number >> 63)).cast_unsigned(), out);
}

const fn low_byte(number: u64) -> u8 {
    number.to_le_bytes()[0]
}

/// Appends `numbers`, each in the lowest `width` bits; the last byte is filled up with zeros.
fn pack(numbers: impl Iterator<Item = u64>, width: u32, out: &mut Vec<u8>) {
    if width == 0 {
        return;
    }
    let (mut bits, mut filled) = (0_u64, 0);
    for number in numbers {
        bits |= number << filled;
        filled += width;
        if filled >= u64::BITS {
            out.extend_from_slice(&bits.to_le_bytes());
            filled -= u64::BITS;
            // What did not fit.
            bits = number.checked_shr(width - filled).unwrap_or(0);
        }
    }
    out.extend(bits.to_le_bytes().into_iter().take(filled.div_ceil(8) as usize));
}

/// Appends numbers below 2^`width` as runs of equal ones and groups of eight (RLE and bit-packing), without a length.
pub(in crate::parquet) fn put_hybrid(numbers: &[u32], width: u32, out: &mut Vec<u8>) {
    let (mut at, mut packed_from) = (0, 0);
    while let Some((&number, behind)) = numbers.get(at..).and_then(<[u32]>::split_first) {
        let run = 1 + behind.iter().position(|&other| other != number).unwrap_or(behind.len());
        // Groups are whole: what the last one lacks is taken from the run.
        let missing = (at - packed_from).next_multiple_of(RUN) - (at - packed_from);
        if run < RUN + missing {
            at += run;
            continue;
        }
        put_groups(numbers.get(packed_from..at + missing).unwrap_or_default(), width, out);
        put_varint(((run - missing) as u64) << 1, out);
        out.extend(number.to_le_bytes().into_iter().take(width.div_ceil(8) as usize));
        at += run;
        packed_from = at;
    }
    put_groups(numbers.get(packed_from..).unwrap_or_default(), width, out);
}

fn put_groups(numbers: &[u32], width: u32, out: &mut Vec<u8>) {
    if numbers.is_empty() {
        return;
    }
    put_varint(((numbers.len().div_ceil(RUN) as u64) << 1) | 1, out);
    for group in numbers.chunks(RUN) {
        let mut eight = [0; RUN];
        eight.iter_mut().zip(group).for_each(|(number, &given)| *number = u64::from(given));
        if width <= 16 {
            // Four of them fit a word.
            let four = |four: &[u64]| four.iter().rev().fold(0, |bits: u64, &number| bits << width | number);
            let (first, second) = eight.split_at(RUN / 2);
            let bits = u128::from(four(first)) | u128::from(four(second)) << (width * 4);
            out.extend_from_slice(bits.to_le_bytes().get(..width as usize).unwrap_or_default());
        } else {
            pack(eight.into_iter(), width, out);
        }
    }
}

/// Appends numbers as differences of the one before (`DELTA_BINARY_PACKED`).
pub(in crate::parquet) fn put_differences(numbers: &[i64], out: &mut Vec<u8>) {
    put_varint(BLOCK as u64, out);
    put_varint(PARTS as u64, out);
    put_varint(numbers.len() as u64, out);
    let mut before = numbers.first().copied().unwrap_or_default();
    put_signed(before, out);
    let mut differences = [0_i64; BLOCK];
    for block in numbers.get(1..).unwrap_or_default().chunks(BLOCK) {
        let mut least = i64::MAX;
        for (difference, &number) in differences.iter_mut().zip(block) {
            *difference = number.wrapping_sub(before);
            least = least.min(*difference);
            before = number;
        }
        put_signed(least, out);
        let differences = differences.get(..block.len()).unwrap_or_default();
        let above = |difference: &i64| difference.wrapping_sub(least).cast_unsigned();
        let widths = out.len();
        out.extend([0; PARTS]);
        for (place, part) in differences.chunks(PART).enumerate() {
            let width = width_of(part.iter().map(above).fold(0, |all, number| all | number));
            if let Some(told) = out.get_mut(widths + place) {
                *told = low_byte(width.into());
            }
            let padding = std::iter::repeat_n(0, PART - part.len());
            pack(part.iter().map(above).chain(padding), width, out);
        }
    }
}

/// Appends numbers as they are.
pub(in crate::parquet) fn put_plain(numbers: &[i64], out: &mut Vec<u8>) {
    numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
}

/// Appends flags, a bit for each.
pub(in crate::parquet) fn put_flags(flags: &[i64], out: &mut Vec<u8>) {
    pack(flags.iter().map(|&flag| u64::from(flag != 0)), 1, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_is_told_once_and_what_is_before_it_in_groups_of_eight() {
        let numbers: Vec<u32> = [1, 2, 3].into_iter().chain([5; 25]).collect();
        let mut out = Vec::new();

        put_hybrid(&numbers, 3, &mut out);

        // One group, of which the run gives five; then twenty times 5.
        assert_eq!(out, [3, 0b1101_0001, 0b1101_1010, 0b1011_0110, 40, 5]);
    }

    #[test]
    fn only_value_of_a_dictionary_takes_no_bits() {
        let mut out = Vec::new();

        put_hybrid(&[0; 1000], 0, &mut out);

        assert_eq!(out, [0xd0, 0x0f]);
    }

    #[test]
    fn equal_steps_take_a_block_of_no_bits() {
        let mut out = Vec::new();

        put_differences(&[7, 17, 27], &mut out);

        assert_eq!(out, [0x80, 1, 4, 3, 14, 20, 0, 0, 0, 0]);
    }

    #[test]
    fn differences_beyond_64_bits_wrap() {
        let mut out = Vec::new();

        put_differences(&[i64::MAX, i64::MIN], &mut out);

        assert_eq!(out[out.len() - 5..], [2, 0, 0, 0, 0]);
    }
}
