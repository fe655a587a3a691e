//! Columns in which the same values come again and again: each row has the number of its value.

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use std::hash::BuildHasher;

/// The number of a null.
pub(super) const NULL: u32 = u32::MAX;

/// Bytes of values, one after the other.
#[derive(Clone, Debug, Default)]
pub(super) struct Values {
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<u32>,
}

impl Values {
    pub(super) const fn len(&self) -> usize {
        self.ends.len()
    }

    /// The value of the number `number`.
    #[inline]
    pub(super) fn get(&self, number: u32) -> &[u8] {
        let at = number as usize;
        let begin = at.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        let end = self.ends.get(at).copied().unwrap_or(begin);
        self.bytes.get(begin as usize..end as usize).unwrap_or_default()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..).take(self.len()).map(|number| self.get(number))
    }

    /// Adds a value: its number. What has no room any more is a null.
    #[inline]
    fn push(&mut self, value: &[u8]) -> u32 {
        let Ok(end) = u32::try_from(self.bytes.len() + value.len()) else { return NULL };
        self.bytes.extend_from_slice(value);
        self.ends.push(end);
        u32::try_from(self.ends.len() - 1).unwrap_or(NULL)
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Bytes of all of them.
    pub(super) const fn size(&self) -> usize {
        self.bytes.len()
    }
}

/// Values, each once.
#[derive(Debug, Default)]
pub(super) struct Dictionary {
    values: Values,
    places: HashTable<u32>,
    hasher: RandomState,
}

impl Dictionary {
    pub(super) const fn values(&self) -> &Values {
        &self.values
    }

    /// The number of `value`, which is added if it is new.
    #[inline]
    pub(super) fn number(&mut self, value: &[u8]) -> u32 {
        let Self { values, places, hasher } = self;
        let hash = hasher.hash_one(value);
        if let Some(&number) = places.find(hash, |&number| values.get(number) == value) {
            return number;
        }
        let number = values.push(value);
        places.insert_unique(hash, number, |&number| hasher.hash_one(values.get(number)));
        number
    }

    pub(super) fn clear(&mut self) {
        self.values.clear();
        self.places.clear();
    }

    /// Bytes that it keeps.
    pub(super) fn memory(&self) -> usize {
        self.values.bytes.capacity() + self.values.ends.capacity() * size_of::<u32>() + self.places.allocation_size()
    }
}

/// A column of a batch.
#[derive(Clone, Debug, Default)]
pub(super) struct Words {
    /// By row: the number of its value, or [`NULL`].
    pub(super) numbers: Vec<u32>,
    pub(super) values: Values,
    /// Whether each row has a value of its own, because there are too many different ones.
    pub(super) each: bool,
}

/// A column of a batch in the making.
#[derive(Debug, Default)]
pub(super) struct WordsBuilder {
    numbers: Vec<u32>,
    dictionary: Dictionary,
    /// The value of the last row that has one: its number, and itself where it is an integer.
    last: u32,
    last_integer: u64,
    /// Whether values are no longer looked for: the last batch had too many different ones.
    each: bool,
}

impl Words {
    /// `rows` rows of `value`.
    pub(super) fn same(value: &[u8], rows: usize) -> Self {
        let mut values = Values::default();
        let number = values.push(value);
        Self { numbers: vec![number; rows], values, each: false }
    }
}

impl WordsBuilder {
    /// Adds a row.
    #[inline]
    pub(super) fn push(&mut self, value: &[u8]) {
        let number = if self.each {
            self.dictionary.values.push(value)
        } else if (self.last as usize) < self.dictionary.values.len() && self.dictionary.values.get(self.last) == value
        {
            self.last
        } else {
            self.last = self.dictionary.number(value);
            self.last
        };
        self.numbers.push(number);
    }

    /// Adds a row of an integer: its bits.
    #[inline]
    pub(super) fn push_integer(&mut self, value: u64) {
        if self.last_integer == value && !self.each && (self.last as usize) < self.dictionary.values.len() {
            self.numbers.push(self.last);
        } else {
            self.last_integer = value;
            self.push(&value.to_le_bytes());
        }
    }

    /// Adds a row without a value.
    #[inline]
    pub(super) fn push_null(&mut self) {
        self.numbers.push(NULL);
    }

    /// The rows so far; the next ones are of a new batch.
    pub(super) fn take(&mut self) -> Words {
        let (numbers, each) = (std::mem::take(&mut self.numbers), self.each);
        self.numbers.reserve(numbers.len());
        let words = Words { values: self.dictionary.values.clone(), each, numbers };
        // More than a half are different: looking for them costs more than it saves.
        self.each = each || words.values.len() > MANY.max(words.numbers.len() / 2);
        self.dictionary.clear();
        self.last = NULL;
        words
    }
}

/// So many different values are few in any batch.
const MANY: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &Words) -> Vec<Option<&[u8]>> {
        words.numbers.iter().map(|&number| (number != NULL).then(|| words.values.get(number))).collect()
    }

    #[test]
    fn values_are_kept_once_in_each_batch() {
        let mut column = WordsBuilder::default();

        ["a", "", "a", "bc"].iter().for_each(|value| column.push(value.as_bytes()));
        column.push_null();
        let first = column.take();
        column.push(b"bc");
        let second = column.take();

        assert_eq!(read(&first), [Some(&b"a"[..]), Some(b""), Some(b"a"), Some(b"bc"), None]);
        assert_eq!((first.values.len(), first.each), (3, false));
        assert_eq!(read(&second), [Some(&b"bc"[..])]);
    }

    #[test]
    fn integers_and_the_same_text_in_all_rows_are_values_too() {
        let mut column = WordsBuilder::default();

        [7, 7, 0, 0, 7].into_iter().for_each(|value| column.push_integer(value));
        let integers = column.take();
        column.push_integer(7);

        let [seven, none] = [7_u64, 0].map(u64::to_le_bytes);
        assert_eq!(read(&integers), [&seven, &seven, &none, &none, &seven].map(|value| Some(&value[..])));
        assert_eq!(read(&column.take()), [Some(&seven[..])]);
        assert_eq!(read(&Words::same(b"id", 2)), [Some(&b"id"[..]); 2]);
    }

    #[test]
    fn column_of_different_values_is_no_longer_looked_through() {
        let mut column = WordsBuilder::default();
        let fill = |column: &mut WordsBuilder| {
            (0..4096_u32).for_each(|number| column.push(&(number % 3000).to_le_bytes()));
            column.take()
        };

        let (first, second) = (fill(&mut column), fill(&mut column));

        assert_eq!((first.values.len(), first.each), (3000, false));
        assert_eq!((second.values.len(), second.each), (4096, true));
        assert_eq!(read(&first), read(&second));
    }
}
