//! Columns side by side whose values are the same in all rows of one key: who made a record, what a state is called.
//!
//! Such values are looked up once for each key of a row group: the columns hold one for each, and a row is one number for
//! all of them.

use super::columns::cell::Cell;
use super::columns::{Column, in_order};
use foldhash::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Columns with the same key, and the keys of a row group.
#[derive(Debug)]
pub(super) struct Keyed {
    /// Which of the table's columns they are.
    pub(super) columns: Range<usize>,
    /// Those of the row group, and the place of each.
    keys: HashMap<u64, u32>,
    /// That of the row before, and its place.
    last: Option<(u64, u32)>,
    /// Of each row, the place of its key.
    rows: Vec<u32>,
}

impl Keyed {
    /// Without keys.
    pub(super) fn new(columns: Range<usize>) -> Self {
        Self { columns, keys: HashMap::default(), last: None, rows: Vec::new() }
    }

    /// Adds a row with the key `key`; whether it is the first one with it in the row group: then [`Self::add_values`] is
    /// to tell the values.
    #[inline]
    pub(super) fn push(&mut self, key: u64) -> bool {
        if let Some((last, place)) = self.last
            && last == key
        {
            self.rows.push(place);
            return false;
        }
        let next = u32::try_from(self.keys.len()).unwrap_or(u32::MAX);
        let place = *self.keys.entry(key).or_insert(next);
        self.last = Some((key, place));
        self.rows.push(place);
        place == next
    }

    /// Takes in the values of the key that was added last, in the order of `columns`, which are those of the table.
    pub(super) fn add_values(&mut self, values: &[Cell<'_>], columns: &mut [Column]) {
        let columns = columns.get_mut(self.columns.clone()).unwrap_or_default();
        debug_assert_eq!(values.len(), columns.len());
        let values = values.iter().copied().chain(std::iter::repeat(Cell::Null));
        columns.iter_mut().zip(values).for_each(|(column, value)| column.push(value));
    }

    /// How many keys the row group has.
    pub(super) fn keys(&self) -> usize {
        self.keys.len()
    }

    /// Bytes that are kept.
    pub(super) fn kept(&self) -> usize {
        size_of_val(&*self.rows) + 2 * self.keys.len() * size_of::<(u64, u32)>()
    }

    /// The rows by key, and those of one key in their order.
    pub(super) fn order(&self) -> Vec<u32> {
        let mut next = vec![0_u32; self.keys() + 1];
        for &key in &self.rows {
            if let Some(behind) = next.get_mut(key as usize + 1) {
                *behind += 1;
            }
        }
        let mut sum = 0;
        for next in &mut next {
            sum += *next;
            *next = sum;
        }
        let mut order = vec![0; self.rows.len()];
        for (row, &key) in (0..).zip(&self.rows) {
            if let Some(next) = next.get_mut(key as usize)
                && let Some(place) = order.get_mut(*next as usize)
            {
                *place = row;
                *next += 1;
            }
        }
        order
    }

    /// Puts the rows into the order `order`.
    pub(super) fn reorder(&mut self, order: &[u32]) {
        self.rows = in_order(order, &self.rows);
    }

    /// The place of each row's key; the next row group begins without keys.
    pub(super) fn end_row_group(&mut self) -> Arc<Vec<u32>> {
        self.keys.clear();
        self.last = None;
        Arc::new(std::mem::take(&mut self.rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_put_by_key_and_stay_in_their_order_within_one() {
        let mut keyed = Keyed::new(0..1);
        for key in [70, 20, 70, 50, 20] {
            keyed.push(key);
        }

        let order = keyed.order();

        assert_eq!(in_order(&order, &['a', 'b', 'c', 'd', 'e']), ['a', 'c', 'b', 'e', 'd']);
    }

    #[test]
    fn only_the_first_row_of_a_key_asks_for_values_until_the_row_group_ends() {
        let mut keyed = Keyed::new(0..1);

        let requested = [7, 8, 7, u64::MAX, 8, 7].map(|key| keyed.push(key));
        keyed.end_row_group();
        let requested_again = keyed.push(7);

        assert_eq!(requested, [true, true, false, true, false, false]);
        assert!(requested_again);
    }
}
