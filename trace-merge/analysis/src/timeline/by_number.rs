//! What belongs to CPUs, vCPUs and the like, found by their numbers. Small numbers, as most are, have a place of their own;
//! a recording may name any, so that large ones are searched for.

use std::collections::BTreeMap;

/// Numbers below this have a place of their own.
const PLACES: u32 = 1024;

/// Values by number.
#[derive(Clone, Debug)]
pub struct ByNumber<T> {
    /// Those of numbers below [`PLACES`], as far as there were such.
    low: Vec<Option<T>>,
    high: BTreeMap<u32, T>,
}

impl<T> Default for ByNumber<T> {
    fn default() -> Self {
        Self { low: Vec::new(), high: BTreeMap::new() }
    }
}

impl<T> ByNumber<T> {
    /// The value of `number`.
    #[must_use]
    #[inline]
    pub fn get(&self, number: u32) -> Option<&T> {
        match self.low.get(number as usize) {
            Some(value) => value.as_ref(),
            None if number < PLACES => None,
            None => self.high.get(&number),
        }
    }

    /// The value of `number`, to be changed.
    #[must_use]
    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        match self.low.get_mut(number as usize) {
            Some(value) => value.as_mut(),
            None if number < PLACES => None,
            None => self.high.get_mut(&number),
        }
    }

    /// The value of `number`, which `make` makes where there is none.
    #[inline(always)]
    pub fn get_or_insert_with(&mut self, number: u32, make: impl FnOnce() -> T) -> &mut T {
        if number >= PLACES {
            return self.get_or_insert_high(number, make);
        }
        self.place(number as usize).get_or_insert_with(|| made(make))
    }

    #[cold]
    #[inline(never)]
    fn get_or_insert_high(&mut self, number: u32, make: impl FnOnce() -> T) -> &mut T {
        self.high.entry(number).or_insert_with(make)
    }

    /// `number` has `value` from now on; the one that it had.
    pub fn insert(&mut self, number: u32, value: T) -> Option<T> {
        if number >= PLACES {
            return self.high.insert(number, value);
        }
        self.place(number as usize).replace(value)
    }

    /// A place of `low`, which is there afterwards.
    #[inline]
    fn place(&mut self, place: usize) -> &mut Option<T> {
        if self.low.len() <= place {
            self.grow(place + 1);
        }
        &mut self.low[place]
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, length: usize) {
        self.low.resize_with(length, || None);
    }

    /// Takes away the value of `number`.
    pub fn remove(&mut self, number: u32) -> Option<T> {
        match self.low.get_mut(number as usize) {
            Some(value) => value.take(),
            None => self.high.remove(&number),
        }
    }

    /// All numbers with their values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let low = (0..).zip(&self.low).filter_map(|(number, value)| Some((number, value.as_ref()?)));
        low.chain(self.high.iter().map(|(&number, value)| (number, value)))
    }

    /// All numbers with their values, to be changed, in order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        let low = (0..).zip(&mut self.low).filter_map(|(number, value)| Some((number, value.as_mut()?)));
        low.chain(self.high.iter_mut().map(|(&number, value)| (number, value)))
    }

    /// All values, in the order of their numbers.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.low.iter().flatten().chain(self.high.values())
    }

    /// All values, to be changed, in the order of their numbers.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.low.iter_mut().flatten().chain(self.high.values_mut())
    }

    /// All numbers, in order.
    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        self.iter().map(|(number, _)| number)
    }
}

/// A value that is made once, apart from the many times that it is found.
#[cold]
#[inline(never)]
fn made<T>(make: impl FnOnce() -> T) -> T {
    make()
}

impl<T> FromIterator<(u32, T)> for ByNumber<T> {
    fn from_iter<I: IntoIterator<Item = (u32, T)>>(values: I) -> Self {
        let mut all = Self::default();
        values.into_iter().for_each(|(number, value)| drop(all.insert(number, value)));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn numbers() -> impl Strategy<Value = u32> {
        prop_oneof![0..9_u32, PLACES - 4..PLACES + 4, any::<u32>()]
    }

    proptest! {
        #[test]
        fn values_are_those_of_a_map(given in proptest::collection::vec((numbers(), 0..9), 0..40), number in numbers()) {
            let mut map: BTreeMap<u32, i32> = given.iter().copied().collect();
            let mut values: ByNumber<i32> = given.into_iter().collect();

            prop_assert!(values.iter().eq(map.iter().map(|(&number, value)| (number, value))));
            prop_assert!(values.values().eq(map.values()));
            for number in map.keys().copied().chain([number]).collect::<Vec<_>>() {
                let expected = map.remove(&number);
                prop_assert_eq!(values.get(number).copied(), expected);
                prop_assert_eq!(values.get_mut(number).copied(), expected);
                prop_assert_eq!(*values.clone().get_or_insert_with(number, || -1), expected.unwrap_or(-1));
                prop_assert_eq!(values.clone().insert(number, 7), expected);
                prop_assert_eq!(values.remove(number), expected);
                prop_assert_eq!(values.get(number), None);
            }
        }
    }
}
