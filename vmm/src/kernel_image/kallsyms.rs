//! A kernel's symbols, out of the tables that it carries along (`kernel/kallsyms.c`), since a kernel as it is distributed
//! has no other symbol table.
//!
//! Pure. The tables have no header: the table of 256 tokens is known by the ten digits in it and by the index that
//! follows, and everything else lies around it. Names are compressed: each of their bytes is a token. In the order of
//! addresses:
//!
//! | Linux | tables |
//! |---|---|
//! | to 6.3 | offsets, what they count from, number of symbols, names, markers, (6.2 and 6.3: sequence), tokens, index |
//! | from 6.4 | number of symbols, names, markers, tokens, index, offsets, (but in the newest: what they count from) |

use std::io::Write;
use std::ops::Range;

/// Ten of the tokens: every kernel has digits in its symbols, and a letter that symbols have stands for itself.
const DIGITS: &[u8] = b"0\x001\x002\x003\x004\x005\x006\x007\x008\x009\x00";
const FIRST_DIGIT: usize = 0x30;
const TOKENS: usize = 256;
/// Symbols between two markers.
const MARKED: usize = 256;
/// Bytes that 256 names take at most: a length of one or two bytes and as many tokens.
const MARKED_BYTES: usize = MARKED * 514;
/// Longest name of a symbol with its type, bytes (`KSYM_NAME_LEN`).
const MAX_NAME: usize = 512;
/// Most bytes that lie between two tables, to align the second.
const MAX_GAP: usize = 16;
/// Bytes of a symbol in the table of their sequence by name.
const SEQUENCE_BYTES: usize = 3;
/// Most places at which the names may seem to begin.
const MAX_BEGINS: usize = 16;
/// Symbols of a kernel take less text, bytes: those of a distribution take 7 MB.
const MAX_TEXT: usize = 32 << 20;

/// The symbols of a kernel.
pub struct Kallsyms<'a> {
    segment: &'a [u8],
    tokens: Tokens,
    names: Names,
    offsets: Offsets<'a>,
    base: Base,
}

impl<'a> Kallsyms<'a> {
    /// Those whose tables are in a `segment` of the image that was linked to be loaded at `address`, where its symbol
    /// `_text` is; `None` if they are not.
    #[must_use]
    pub fn find(address: u64, segment: &'a [u8]) -> Option<Self> {
        let tokens = Tokens::find(segment)?;
        let names = Names::find(segment, &tokens).or_else(|| Names::before_a_sequence(address, segment, &tokens))?;
        let text = Walk::new(segment, &tokens, &names).index_of(b"_text")?;
        let (offsets, base) = Offsets::around(address, segment, &tokens, &names)
            .into_iter()
            .flatten()
            .find_map(|offsets| Some((offsets, offsets.base(text)?)))?;
        Some(Self { segment, tokens, names, offsets, base })
    }

    /// Hands address, type and name of each symbol to `each`, for an image that was `moved` by so many bytes from where
    /// it was linked for. Those that are offsets of per-CPU variables do not move.
    pub fn visit(&self, moved: u64, mut each: impl FnMut(u64, u8, &[u8])) {
        let mut walk = Walk::new(self.segment, &self.tokens, &self.names);
        let mut index = 0;
        while let Some((kind, name)) = walk.next_symbol() {
            if let Some(address) = self.offsets.address(index, self.base) {
                each(address.moved(moved), kind, name);
            }
            index += 1;
        }
    }

    /// The addresses of `wanted`, as linked; those of symbols that there are not stay `None`.
    #[must_use]
    pub fn addresses<const N: usize>(&self, wanted: [&str; N]) -> [Option<u64>; N] {
        let mut found = [None; N];
        self.visit(0, |address, _, name| {
            for (wanted, found) in wanted.iter().zip(&mut found) {
                if name == wanted.as_bytes() {
                    found.get_or_insert(address);
                }
            }
        });
        found
    }

    /// The symbols as `/proc/kallsyms` has them, of an image that was `moved` by so many bytes from where it was linked
    /// for. What is no name that a kernel has is left out, as the image may be a stranger's.
    #[must_use]
    pub fn text(&self, moved: u64) -> Vec<u8> {
        let mut text = Vec::new();
        self.visit(moved, |address, kind, name| {
            let is_plain = kind.is_ascii_alphabetic() && !name.is_empty() && name.iter().all(u8::is_ascii_graphic);
            if is_plain && text.len() < MAX_TEXT - 2 * MAX_NAME {
                // Writing to memory does not fail.
                let _ = write!(text, "{address:016x} {} ", char::from(kind));
                text.extend_from_slice(name);
                text.push(b'\n');
            }
        });
        text
    }
}

/// The symbols' types and names, one after another.
struct Walk<'a> {
    segment: &'a [u8],
    tokens: &'a Tokens,
    place: usize,
    left: usize,
    symbol: Vec<u8>,
}

impl<'a> Walk<'a> {
    fn new(segment: &'a [u8], tokens: &'a Tokens, names: &Names) -> Self {
        Self { segment, tokens, place: names.place.start, left: names.count, symbol: Vec::with_capacity(MAX_NAME) }
    }

    /// Type and name of the next one; the name is empty where it is longer than the kernel has them.
    fn next_symbol(&mut self) -> Option<(u8, &[u8])> {
        self.left = self.left.checked_sub(1)?;
        let compressed = next_name(self.segment, &mut self.place)?;
        self.symbol.clear();
        for &token in compressed {
            self.symbol.extend_from_slice(self.tokens.text(self.segment, token));
            if self.symbol.len() > MAX_NAME {
                return Some((0, &[]));
            }
        }
        // The first letter is the symbol's type.
        Some(self.symbol.split_first().map_or((0, &[]), |(kind, name)| (*kind, name)))
    }

    /// How many there are before that of this `name`.
    fn index_of(mut self, wanted: &[u8]) -> Option<usize> {
        let mut index = 0;
        while self.next_symbol()?.1 != wanted {
            index += 1;
        }
        Some(index)
    }
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
            let at = find_digits(segment, from)?;
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
        let mut end = tokens.start & !3;
        while end > 4 && read_usize(segment, end - 4)? == 0 {
            end -= 4;
        }
        let last = read_usize(segment, end.checked_sub(4)?)?;
        let (mut start, mut next) = (end - 4, last);
        while next != 0 {
            start = start.checked_sub(4)?;
            let marker = read_usize(segment, start)?;
            if marker >= next {
                return None;
            }
            next = marker;
        }
        let markers: Vec<usize> = (start..end).step_by(4).map(|at| read_usize(segment, at)).collect::<Option<_>>()?;
        let nearest = start.checked_sub(last)?;
        let farthest = nearest.saturating_sub(MARKED_BYTES);
        (farthest..=nearest).rev().filter(|place| place % 4 == 0).find_map(|place| {
            let number = |bytes: usize| read_usize(segment, place.checked_sub(bytes)?);
            // The number of symbols lies before the names, at a multiple of four or eight bytes.
            let counts = [number(4), number(8)];
            let fits = |count: &usize| count.div_ceil(MARKED) == markers.len();
            let count = counts.into_iter().flatten().find(fits)?;
            let end = walk(segment, place, count, |marker, at| markers.get(marker) == Some(&at))?;
            (end <= start && start - end < MAX_GAP).then_some(Self { place: place..end, count })
        })
    }

    /// The names before the markers before the sequence before the tokens, which are known by what stands before them:
    /// what offsets count from is where the image is loaded, at `address`.
    fn before_a_sequence(address: u64, segment: &[u8], tokens: &Tokens) -> Option<Self> {
        let words = segment.get(..tokens.start)?.chunks_exact(8).enumerate();
        let begins = words.filter(|(_, word)| *word == address.to_le_bytes()).filter_map(|(index, _)| {
            let (at, count) = (8 * index, read_usize(segment, 8 * index + 8)?);
            let is_count = count > 0 && count.checked_mul(4)? <= at && read_u32(segment, at + 12) == Some(0);
            is_count.then_some((at + 16, count))
        });
        begins.take(MAX_BEGINS).find_map(|(place, count)| {
            let end = walk(segment, place, count, |_, _| true)?;
            let start = end.next_multiple_of(8);
            let is_marked = |marker: usize, at| read_usize(segment, start + 4 * marker) == Some(at);
            walk(segment, place, count, is_marked)?;
            let sequence = (start + 4 * count.div_ceil(MARKED)).next_multiple_of(8);
            let end_of_sequence = count.checked_mul(SEQUENCE_BYTES)?.checked_add(sequence)?;
            let gap = tokens.start.checked_sub(end_of_sequence)?;
            (gap < MAX_GAP).then_some(Self { place: place..end, count })
        })
    }
}

/// Goes through `count` names from `place` on; returns their end. `None` if `is_marked` denies that a marker, whose
/// number and offset it gets, is so.
fn walk(segment: &[u8], place: usize, count: usize, is_marked: impl Fn(usize, usize) -> bool) -> Option<usize> {
    let mut at = place;
    for index in 0..count {
        if index % MARKED == 0 && !is_marked(index / MARKED, at - place) {
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

#[derive(Clone, Copy)]
struct Offsets<'a> {
    segment: &'a [u8],
    /// Where the segment is loaded.
    address: u64,
    /// Where in it the offsets begin.
    at: usize,
    /// Where in it what they count from would be.
    relative: usize,
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

/// Where a symbol is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Address {
    /// At a place in the image, which may be moved; as it was linked.
    Linked(u64),
    /// Elsewhere.
    Fixed(u64),
}

impl Address {
    const fn moved(self, by: u64) -> u64 {
        match self {
            Self::Linked(address) => address.wrapping_add(by),
            Self::Fixed(address) => address,
        }
    }
}

impl<'a> Offsets<'a> {
    /// Where they may be: behind the tokens' index, or before the number of symbols.
    fn around(address: u64, segment: &'a [u8], tokens: &Tokens, names: &Names) -> [Option<Self>; 2] {
        let bytes = 4 * names.count;
        let behind = |at: usize| Self { segment, address, at, relative: (at + bytes).next_multiple_of(8) };
        let before = |relative: usize| {
            let at = relative.checked_sub(bytes.next_multiple_of(8))?;
            Some(Self { segment, address, at, relative })
        };
        [Some(behind(tokens.behind)), names.place.start.checked_sub(16).and_then(before)]
    }

    fn address(&self, index: usize, base: Base) -> Option<Address> {
        let at = self.at + 4 * index;
        let offset = read_u32(self.segment, at)?;
        let signed = i64::from(offset.cast_signed());
        match base {
            Base::Place => {
                let place = self.address.checked_add(u64::try_from(at).ok()?)?;
                place.checked_add_signed(signed).map(Address::Linked)
            }
            Base::Address(base) => base.checked_add(u64::from(offset)).map(Address::Linked),
            Base::Negative(base) if signed < 0 => base.checked_add_signed(-1 - signed).map(Address::Linked),
            Base::Negative(_) => Some(Address::Fixed(u64::from(offset))),
        }
    }

    /// What they count from: kernels differ, and the symbol `_text`, of index `text`, is where the image begins.
    fn base(&self, text: usize) -> Option<Base> {
        let relative = self.segment.get(self.relative..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))?;
        let all = [Base::Place, Base::Negative(relative), Base::Address(relative)];
        all.into_iter().find(|base| self.address(text, *base) == Some(Address::Linked(self.address)))
    }
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn read_usize(bytes: &[u8], at: usize) -> Option<usize> {
    read_u32(bytes, at).and_then(|number| usize::try_from(number).ok())
}

/// Where [`DIGITS`] stand next in `bytes`, from `from` on. One byte of each so many as they are tells where they would begin
/// around it: an image is large.
fn find_digits(bytes: &[u8], from: usize) -> Option<usize> {
    let around = |at: usize| {
        // A zero stands behind its digit.
        let at = at.checked_sub(usize::from(*bytes.get(at)? == 0))?;
        let digit = bytes.get(at)?.checked_sub(b'0').filter(|digit| *digit < 10)?;
        let begin = at.checked_sub(2 * usize::from(digit)).filter(|begin| *begin >= from)?;
        bytes.get(begin..)?.starts_with(DIGITS).then_some(begin)
    };
    (from..bytes.len()).step_by(DIGITS.len()).find_map(around)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOADED: u64 = 0xffff_ffff_8100_0000;

    /// In which order tables lie.
    #[derive(Clone, Copy)]
    enum Order {
        /// As to Linux 6.1.
        Oldest,
        /// As in Linux 6.2 and 6.3.
        Sequenced,
        /// As from Linux 6.4 on.
        Newest,
    }

    const OTHERS: usize = 298;

    fn pad(segment: &mut Vec<u8>) {
        segment.resize(segment.len().next_multiple_of(8), 0);
    }

    /// Tables of `_text`, `vars` and 298 others called `x`, with offsets of the form of `offset`, which gets the address
    /// and the place of an offset.
    fn tables(order: Order, offset: impl Fn(u64, u64) -> u32, relative_base: u64) -> Vec<u8> {
        let mut segment = vec![0xcc; 64];
        let offsets = |segment: &mut Vec<u8>| {
            let at = LOADED + u64::try_from(segment.len()).unwrap();
            segment.extend(offset(LOADED, at).to_le_bytes());
            segment.extend(offset(LOADED + 0x1000, at + 4).to_le_bytes());
            segment.resize(segment.len() + OTHERS * 4, 0);
            pad(segment);
            segment.extend(relative_base.to_le_bytes());
        };
        let is_last = matches!(order, Order::Newest);
        (!is_last).then(|| offsets(&mut segment));
        segment.extend(300_u32.to_le_bytes());
        segment.extend([0; 4]);
        segment.extend(b"\x06T_text\x05Dvars");
        segment.extend(b"\x02tx".repeat(OTHERS));
        pad(&mut segment);
        segment.extend([0_u32, 7 + 6 + 254 * 3].iter().flat_map(|marker| marker.to_le_bytes()));
        if matches!(order, Order::Sequenced) {
            segment.extend([7; 300 * SEQUENCE_BYTES]);
            pad(&mut segment);
        }
        let (mut text, mut index) = (Vec::new(), Vec::new());
        for token in 0..=255_u8 {
            index.extend(u16::try_from(text.len()).unwrap().to_le_bytes());
            text.extend([token.max(1), 0]);
        }
        segment.extend(text);
        segment.extend(index);
        is_last.then(|| offsets(&mut segment));
        segment
    }

    fn low(value: u64) -> u32 {
        u32::try_from(value & 0xffff_ffff).unwrap()
    }

    /// As kernels with per-CPU variables at zero have it.
    fn negative(address: u64, _place: u64) -> u32 {
        low((LOADED - 1).wrapping_sub(address))
    }

    #[test]
    fn addresses_are_found_whatever_offsets_count_from() {
        let by_place = tables(Order::Newest, |address, place| low(address.wrapping_sub(place)), 1);
        let by_base = tables(Order::Newest, |address, _| low(address - LOADED), LOADED);
        let negative = tables(Order::Newest, negative, LOADED);

        let found = [by_place, by_base, negative].map(|segment| {
            let kallsyms = Kallsyms::find(LOADED, &segment).unwrap();
            kallsyms.addresses(["vars", "none"])
        });

        assert_eq!(found, [[Some(LOADED + 0x1000), None]; 3]);
    }

    #[test]
    fn addresses_are_found_wherever_the_offsets_lie() {
        let orders = [Order::Oldest, Order::Sequenced, Order::Newest];

        let found = orders.map(|order| {
            let segment = tables(order, negative, LOADED);
            Kallsyms::find(LOADED, &segment).map(|kallsyms| kallsyms.addresses(["_text", "vars"]))
        });

        assert_eq!(found, [Some([Some(LOADED), Some(LOADED + 0x1000)]); 3]);
    }

    #[test]
    fn text_has_symbols_where_the_image_was_moved_to_and_per_cpu_offsets_as_they_are() {
        let segment = tables(Order::Oldest, negative, LOADED);

        let text = Kallsyms::find(LOADED, &segment).unwrap().text(0x20_0000);

        let text = String::from_utf8(text).unwrap();
        let lines: Vec<_> = text.lines().collect();
        let expected = ["ffffffff81200000 T _text", "ffffffff81201000 D vars", "0000000000000000 t x"];
        assert_eq!((lines.len(), &lines[..3]), (300, &expected[..]));
    }

    #[test]
    fn names_that_no_kernel_has_are_left_out_of_the_text() {
        let mut segment = tables(Order::Newest, negative, LOADED);
        let at = segment.windows(5).position(|window| window == b"Dvars").unwrap();
        segment[at + 1] = b'\n';

        let kallsyms = Kallsyms::find(LOADED, &segment).unwrap();

        assert!(!String::from_utf8(kallsyms.text(0)).unwrap().contains("ars"));
    }

    #[test]
    fn digits_are_found_wherever_they_stand() {
        for place in 0..3 * DIGITS.len() {
            let image = [&vec![0; place][..], DIGITS, b"0\x001\x00", DIGITS].concat();

            let found = [0, place, place + 1].map(|from| find_digits(&image, from));

            assert_eq!(found, [Some(place), Some(place), Some(place + DIGITS.len() + 4)]);
        }
    }

    #[test]
    fn image_without_tables_has_no_symbols() {
        assert!(Kallsyms::find(LOADED, &[0x30; 4096]).is_none());
        assert!(Kallsyms::find(LOADED, DIGITS).is_none());
    }
}
