//! What pages of a row group have in common: numbers and texts of which each is kept once. And the levels of a page.

use super::encoding::{put_hybrid, put_varint};
use foldhash::HashMap;

/// Entries of a dictionary of numbers, at most.
pub(in crate::parquet) const MOST_NUMBERS: usize = 1 << 12;

/// Levels of the values of a page: whether one is there, or whether it goes on with a list.
#[derive(Debug, Default)]
pub(in crate::parquet) struct Levels {
    /// How many are told.
    pub(in crate::parquet) count: usize,
    /// The level that all have, while they have one.
    pub(in crate::parquet) level: u32,
    /// The level of each, when they have not.
    pub(in crate::parquet) each: Vec<u32>,
}

impl Levels {
    #[inline]
    pub(in crate::parquet) fn push(&mut self, level: u32) {
        if self.each.is_empty() && (self.count == 0 || level == self.level) {
            self.level = level;
            self.count += 1;
        } else if self.each.is_empty() {
            self.push_each(level, 1);
        } else {
            self.count += 1;
            self.each.push(level);
        }
    }

    /// Tells `level` of `count` values.
    pub(in crate::parquet) fn push_all(&mut self, level: u32, count: usize) {
        if self.each.is_empty() && (self.count == 0 || level == self.level) {
            self.level = level;
            self.count += count;
            return;
        }
        self.push_each(level, count);
    }

    #[inline(never)]
    fn push_each(&mut self, level: u32, count: usize) {
        if self.each.is_empty() {
            self.each.resize(self.count, self.level);
        }
        self.count += count;
        self.each.resize(self.count, level);
    }

    /// Appends them with `width` bits each.
    pub(in crate::parquet) fn put(&mut self, width: u32, out: &mut Vec<u8>) {
        if self.each.is_empty() && self.count > 0 {
            put_varint((self.count as u64) << 1, out);
            out.extend(self.level.to_le_bytes().into_iter().take(1));
        } else {
            put_hybrid(&self.each, width, out);
        }
        self.each.clear();
        self.count = 0;
    }
}

/// Numbers, each once.
#[derive(Debug, Default)]
pub(in crate::parquet) struct Numbers {
    pub(in crate::parquet) values: Vec<i64>,
    /// By what is left of a number when it is mixed: the number, and one more than its place; 0 where there is none.
    slots: Vec<(i64, u32)>,
}

impl Numbers {
    /// The places of `numbers`; `None` when there are too many different ones.
    pub(in crate::parquet) fn places(&mut self, numbers: &[i64], places: &mut Vec<u32>) -> Option<()> {
        places.clear();
        places.reserve(numbers.len());
        let mut last = None;
        for &number in numbers {
            let place = match last {
                Some((before, place)) if before == number => place,
                _ => self.place(number),
            };
            if place as usize >= MOST_NUMBERS {
                return None;
            }
            last = Some((number, place));
            places.push(place);
        }
        Some(())
    }

    /// The place of `number`, which is added where it is not known yet.
    #[inline]
    pub(in crate::parquet) fn place(&mut self, number: i64) -> u32 {
        let mut at = Self::mixed(number);
        loop {
            let slot = self.slots.get(at & self.slots.len().wrapping_sub(1));
            match slot {
                Some(&(known, place @ 1..)) if known == number => return place - 1,
                Some((_, 1..)) => at += 1,
                Some(_) | None => return self.add(number),
            }
        }
    }

    #[inline]
    fn mixed(number: i64) -> usize {
        let mixed = number.cast_unsigned().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        usize::try_from(mixed >> 40).unwrap_or(0)
    }

    /// Adds `number`, which is not known.
    #[cold]
    #[inline(never)]
    fn add(&mut self, number: i64) -> u32 {
        self.values.push(number);
        let places = u32::try_from(self.values.len()).unwrap_or(u32::MAX);
        if self.values.len() * 2 > self.slots.len() {
            self.slots = vec![(0, 0); (self.slots.len() * 2).max(64)];
            (1..).zip(&self.values).for_each(|(place, &number)| Self::put(&mut self.slots, number, place));
        } else {
            Self::put(&mut self.slots, number, places);
        }
        places - 1
    }

    /// Puts `number` into the first slot for it that is free.
    fn put(slots: &mut [(i64, u32)], number: i64, place: u32) {
        let mask = slots.len() - 1;
        let mut at = Self::mixed(number) & mask;
        while let Some((_, 1..)) = slots.get(at) {
            at = (at + 1) & mask;
        }
        if let Some(slot) = slots.get_mut(at) {
            *slot = (number, place);
        }
    }

    /// Forgets them.
    pub(in crate::parquet) fn clear(&mut self) {
        self.values.clear();
        self.slots.fill((0, 0));
    }
}

/// The texts of a row group, each once.
#[derive(Debug, Default)]
pub(in crate::parquet) struct Texts {
    pub(in crate::parquet) places: HashMap<Box<[u8]>, u32>,
    /// As the file has them, with their lengths.
    pub(in crate::parquet) bytes: Vec<u8>,
    /// The one before, and its place.
    pub(in crate::parquet) last: Option<(Box<[u8]>, u32)>,
}

impl Texts {
    #[inline]
    pub(in crate::parquet) fn place(&mut self, text: &[u8]) -> u32 {
        if let Some((last, place)) = &self.last
            && **last == *text
        {
            return *place;
        }
        let place = match self.places.get(text) {
            Some(&place) => place,
            None => {
                let place = u32::try_from(self.places.len()).unwrap_or(u32::MAX);
                self.places.insert(text.into(), place);
                put_text(text, &mut self.bytes);
                place
            }
        };
        match &mut self.last {
            Some((last, known)) if last.len() == text.len() => {
                last.copy_from_slice(text);
                *known = place;
            }
            last => *last = Some((text.into(), place)),
        }
        place
    }
}

/// Appends a text and its length.
pub(in crate::parquet) fn put_text(text: &[u8], out: &mut Vec<u8>) {
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(text.get(..length as usize).unwrap_or_default());
}
