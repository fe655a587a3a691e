//! Columns side by side whose values are the same in all rows of one key: who made a record, what a state is called.
//!
//! Such values are looked up once for each key of a row group. A row is one number for all of these columns, until its
//! page ends.

use super::columns::cell::Cell;
use super::columns::dictionaries::Numbers;
use super::columns::{Column, put_in_order};
use std::ops::Range;

/// Columns with the same key, and the keys of a row group.
#[derive(Debug)]
pub(super) struct Keyed {
    /// Which of the table's columns they are.
    pub(super) columns: Range<usize>,
    /// Those of the row group.
    keys: Numbers,
    /// By place of the key, column by column: where the value is in the column's dictionary; `None` for a null.
    values: Vec<Option<u32>>,
    /// Of the rows of the page: places of their keys.
    rows: Vec<u32>,
}

impl Keyed {
    /// Without keys.
    pub(super) fn new(columns: Range<usize>) -> Self {
        Self { columns, keys: Numbers::default(), values: Vec::new(), rows: Vec::new() }
    }

    /// Adds a row with the key `key`; whether it is the first one with it in the row group: then [`Self::add_values`] is
    /// to tell the values.
    #[inline]
    pub(super) fn push(&mut self, key: u64) -> bool {
        let known = self.keys();
        let place = self.keys.place(key.cast_signed());
        self.rows.push(place);
        place as usize == known
    }

    /// Takes in the values of the key that was added last, in the order of `columns`, which are those of the table.
    pub(super) fn add_values(&mut self, values: &[Cell<'_>], columns: &mut [Column]) {
        let columns = columns.get_mut(self.columns.clone()).unwrap_or_default();
        debug_assert_eq!(values.len(), columns.len());
        let values = values.iter().copied().chain(std::iter::repeat(Cell::Null));
        self.values.extend(columns.iter_mut().zip(values).map(|(column, value)| column.place(value)));
    }

    /// How many keys the row group has.
    pub(super) fn keys(&self) -> usize {
        self.keys.values.len()
    }

    /// Bytes that are kept.
    pub(super) fn kept(&self) -> usize {
        size_of_val(&*self.rows) + size_of_val(&*self.values) + 4 * size_of_val(&*self.keys.values)
    }

    /// Puts the rows of the page by key, and those of one key in their order, into `order`.
    pub(super) fn order(&self, order: &mut Vec<u32>) {
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
        order.clear();
        order.resize(self.rows.len(), 0);
        for (row, &key) in (0..).zip(&self.rows) {
            if let Some(next) = next.get_mut(key as usize)
                && let Some(place) = order.get_mut(*next as usize)
            {
                *place = row;
                *next += 1;
            }
        }
    }

    /// Puts the rows of the page into the order `order`. What `room` holds is not looked at.
    pub(super) fn reorder(&mut self, order: &[u32], room: &mut Vec<u32>) {
        put_in_order(order, &mut self.rows, room);
    }

    /// Hands the rows of the page to their columns.
    pub(super) fn end_page(&mut self, columns: &mut [Column]) {
        let width = self.columns.len();
        for (at, column) in columns.get_mut(self.columns.clone()).unwrap_or_default().iter_mut().enumerate() {
            let places: Vec<Option<u32>> = self.values.iter().copied().skip(at).step_by(width).collect();
            column.push_places(&self.rows, &places);
        }
        self.rows.clear();
    }

    /// Begins without keys: dictionaries are those of a row group.
    pub(super) fn end_row_group(&mut self) {
        self.keys.clear();
        self.values.clear();
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
        let (mut order, mut values) = (Vec::new(), vec!['a', 'b', 'c', 'd', 'e']);

        keyed.order(&mut order);
        put_in_order(&order, &mut values, &mut Vec::new());

        assert_eq!(values, ['a', 'c', 'b', 'e', 'd']);
    }

    #[test]
    fn only_the_first_row_of_a_key_asks_for_values_until_the_row_group_ends() {
        let mut keyed = Keyed::new(0..1);

        let asked = [7, 8, 7, u64::MAX, 8, 7].map(|key| keyed.push(key));
        keyed.end_row_group();
        let asked_again = keyed.push(7);

        assert_eq!(asked, [true, true, false, true, false, false]);
        assert!(asked_again);
    }
}
