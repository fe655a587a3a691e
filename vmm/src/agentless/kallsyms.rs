//! The addresses of a kernel's symbols, out of the tables that it carries along (`kernel/kallsyms.c`), since a kernel
//! as it is distributed has no other symbol table.
//!
//! Pure. The tables have no header: the table of 256 tokens is known by the ten digits in it and by the index that
//! follows, and everything else lies around it. Names are compressed: each of their bytes is a token.

use std::ops::Range;

/// Ten of the tokens: every kernel has digits in its symbols, and a letter that symbols have stands for itself.
const DIGITS: &[u8] = b"0\x001\x002\x003\x004\x005\x006\x007\x008\x009\x00";
const FIRST_DIGIT: usize = 0x30;
const TOKENS: usize = 256;
/// Symbols between two markers.
const MARKED: usize = 256;
/// Bytes that 256 names take at most: a length of one or two bytes and as many tokens.
const MARKED_BYTES: usize = MARKED * 514;

/// Finds the addresses of `wanted` in a `segment` of the image that is loaded at `address`; those of symbols that there
/// are not stay `None`. `None` if the tables are not in it.
#[must_use]
pub fn addresses<const N: usize>(address: u64, segment: &[u8], wanted: [&str; N]) -> Option<[Option<u64>; N]> {
    let tokens = Tokens::find(segment)?;
    let names = Names::find(segment, &tokens)?;
    let mut found = [None; N];
    let offsets = Offsets { segment, address, at: tokens.behind, count: names.count };
    let mut place = names.place.start;
    let mut name = Vec::new();
    let mut text = None;
    let mut indices = [None; N];
    for index in 0..names.count {
        let compressed = next_name(segment, &mut place)?;
        name.clear();
        compressed.iter().for_each(|&token| name.extend_from_slice(tokens.text(segment, token)));
        // The first letter is the symbol's type.
        let name = name.get(1..)?;
        if name == b"_text" {
            text = Some(index);
        }
        for (wanted, found) in wanted.iter().zip(&mut indices) {
            if name == wanted.as_bytes() && found.is_none() {
                *found = Some(index);
            }
        }
    }
    let base = offsets.base(text?)?;
    for (index, found) in indices.into_iter().zip(&mut found) {
        *found = index.and_then(|index| offsets.address(index, base));
    }
    Some(found)
}

struct Tokens {
    /// Where each token lies.
    places: Vec<Range<usize>>,
    start: usize,
    /// Behind the tokens and their index.
    behind: usize,
}

impl Tokens {
    fn find(segment: &[u8]) -> Option<Self> {
        let mut from = 0;
        loop {
            let at = from + find(segment.get(from..)?, DIGITS)?;
            if let Some(tokens) = Self::around(segment, at) {
                return Some(tokens);
            }
            from = at + 1;
        }
    }

    /// Of a table whose digits are at `digits`.
    fn around(segment: &[u8], digits: usize) -> Option<Self> {
        let mut end = digits;
        for _ in FIRST_DIGIT..TOKENS {
            end += segment.get(end..)?.iter().take(MARKED_BYTES).position(|byte| *byte == 0)? + 1;
        }
        [4, 8].into_iter().find_map(|alignment: usize| {
            let index = end.next_multiple_of(alignment);
            let behind = index + 2 * TOKENS;
            let offsets = segment.get(index..behind)?.chunks_exact(2);
            let offsets: Vec<usize> = offsets.map(|pair| usize::from(u16::from_le_bytes([pair[0], pair[1]]))).collect();
            let ascend = offsets.first() == Some(&0) && offsets.windows(2).all(|pair| pair[0] < pair[1]);
            let start = digits.checked_sub(*offsets.get(FIRST_DIGIT)?)?;
            let ends = offsets.iter().skip(1).map(|&next| start + next).chain([end]);
            let places: Vec<_> = offsets.iter().zip(ends).map(|(&offset, end)| start + offset..end - 1).collect();
            let is_table = ascend && places.iter().all(|place| segment.get(place.end) == Some(&0));
            is_table.then_some(Self { places, start, behind })
        })
    }

    fn text<'a>(&self, segment: &'a [u8], token: u8) -> &'a [u8] {
        self.places.get(usize::from(token)).and_then(|place| segment.get(place.clone())).unwrap_or_default()
    }
}

struct Names {
    place: Range<usize>,
    count: usize,
}

impl Names {
    /// The names before the markers before the tokens.
    fn find(segment: &[u8], tokens: &Tokens) -> Option<Self> {
        let marker_at = |at: usize| read_u32(segment, at).and_then(|marker| usize::try_from(marker).ok());
        let mut end = tokens.start & !3;
        while end > 4 && marker_at(end - 4)? == 0 {
            end -= 4;
        }
        let last = marker_at(end.checked_sub(4)?)?;
        let (mut start, mut next) = (end - 4, last);
        while next != 0 {
            start = start.checked_sub(4)?;
            let marker = marker_at(start)?;
            if marker >= next {
                return None;
            }
            next = marker;
        }
        let markers: Vec<usize> = (start..end).step_by(4).map(marker_at).collect::<Option<_>>()?;
        let nearest = start.checked_sub(last)?;
        let farthest = nearest.saturating_sub(MARKED_BYTES);
        (farthest..=nearest).rev().filter(|place| place % 4 == 0).find_map(|place| {
            let number = |bytes: usize| marker_at(place.checked_sub(bytes)?);
            // The number of symbols lies before the names, at a multiple of four or eight bytes.
            let counts = [number(4), number(8)];
            let fits = |count: &usize| count.div_ceil(MARKED) == markers.len();
            let count = counts.into_iter().flatten().find(fits)?;
            let end = walk(segment, place, count, &markers)?;
            (end <= start && start - end < 16).then_some(Self { place: place..end, count })
        })
    }
}

/// Goes through `count` names from `place` on, which the `markers` are right about; returns their end.
fn walk(segment: &[u8], place: usize, count: usize, markers: &[usize]) -> Option<usize> {
    let mut at = place;
    for index in 0..count {
        if index % MARKED == 0 && markers.get(index / MARKED) != Some(&(at - place)) {
            return None;
        }
        next_name(segment, &mut at)?;
    }
    Some(at)
}

/// The tokens of the name at `place`, which moves behind it.
fn next_name<'a>(segment: &'a [u8], place: &mut usize) -> Option<&'a [u8]> {
    let first = usize::from(*segment.get(*place)?);
    let (length, bytes) = match first & 0x80 {
        0 => (first, 1),
        _ => (first & 0x7f | usize::from(*segment.get(*place + 1)?) << 7, 2),
    };
    let start = *place + bytes;
    *place = start + length;
    segment.get(start..start + length)
}

struct Offsets<'a> {
    segment: &'a [u8],
    /// Where the segment is loaded.
    address: u64,
    /// Where in it the offsets begin.
    at: usize,
    count: usize,
}

/// What offsets count from.
#[derive(Clone, Copy)]
enum Base {
    /// Each from its own place.
    Place,
    /// From this address.
    Address(u64),
    /// Negative ones from this address less one, downwards; others are per-CPU offsets.
    Negative(u64),
}

impl Offsets<'_> {
    fn address(&self, index: usize, base: Base) -> Option<u64> {
        let at = self.at + 4 * index;
        let offset = read_u32(self.segment, at)?;
        let signed = i64::from(offset.cast_signed());
        match base {
            Base::Place => self.address.checked_add(u64::try_from(at).ok()?)?.checked_add_signed(signed),
            Base::Address(base) => base.checked_add(u64::from(offset)),
            Base::Negative(base) if signed < 0 => base.checked_add_signed(-1 - signed),
            Base::Negative(_) => None,
        }
    }

    /// What the offsets count from: kernels differ, and the symbol `_text`, of index `text`, is where the image begins.
    fn base(&self, text: usize) -> Option<Base> {
        let behind = (self.at + 4 * self.count).next_multiple_of(8);
        let relative = self.segment.get(behind..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))?;
        let all = [Base::Place, Base::Negative(relative), Base::Address(relative)];
        all.into_iter().find(|base| self.address(text, *base) == Some(self.address))
    }
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOADED: u64 = 0xffff_ffff_8100_0000;

    /// Tables of two symbols and 298 others, with offsets of the form of `offset`, which gets the address and
    /// the place of an offset.
    fn tables(offset: impl Fn(u64, u64) -> u32, relative_base: u64) -> Vec<u8> {
        let mut segment = vec![0xcc; 64];
        segment.extend(300_u32.to_le_bytes());
        segment.extend([0; 4]);
        segment.extend(b"\x06T_text\x05Dvars");
        segment.extend(b"\x02tx".repeat(298));
        segment.resize(segment.len().next_multiple_of(8), 0);
        segment.extend([0_u32, 7 + 6 + 254 * 3].iter().flat_map(|marker| marker.to_le_bytes()));
        let (mut text, mut index) = (Vec::new(), Vec::new());
        for token in 0..=255_u8 {
            index.extend(u16::try_from(text.len()).unwrap().to_le_bytes());
            text.extend([token.max(1), 0]);
        }
        segment.extend(text);
        segment.extend(index);
        let at = u64::try_from(segment.len()).unwrap();
        segment.extend(offset(LOADED, LOADED + at).to_le_bytes());
        segment.extend(offset(LOADED + 0x1000, LOADED + at + 4).to_le_bytes());
        segment.resize(segment.len() + 298 * 4, 0);
        segment.extend(relative_base.to_le_bytes());
        segment
    }

    #[test]
    fn addresses_are_found_whatever_offsets_count_from() {
        let low = |value: u64| u32::try_from(value & 0xffff_ffff).unwrap();
        let by_place = tables(|address, place| low(address.wrapping_sub(place)), 1);
        let by_base = tables(|address, _| low(address - LOADED), LOADED);
        let negative = tables(|address, _| low((LOADED - 1).wrapping_sub(address)), LOADED);

        let expected = Some([Some(LOADED + 0x1000), None]);
        assert_eq!(addresses(LOADED, &by_place, ["vars", "none"]), expected);
        assert_eq!(addresses(LOADED, &by_base, ["vars", "none"]), expected);
        assert_eq!(addresses(LOADED, &negative, ["vars", "none"]), expected);
    }

    #[test]
    fn image_without_tables_has_no_symbols() {
        assert_eq!(addresses(LOADED, &[0x30; 4096], ["_text"]), None);
        assert_eq!(addresses(LOADED, DIGITS, ["_text"]), None);
    }
}
