//! What one thing's state was at each moment.
//!
//! The states of one thing never overlap, so that a sorted vector is all that an interval tree would be: a lookup is a
//! binary search, a walk over a window starts with one, and an interval costs a time and a state.

use crate::window::Window;

/// The state of one thing over all time. Total: there is a state at every moment, `initial` before the first change.
#[derive(Clone, Debug)]
pub struct History<S> {
    initial: S,
    /// Begins of the intervals, in order, and their states.
    changes: Vec<(u64, S)>,
}

/// A period of one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval<S> {
    /// First moment, ticks.
    pub begin: u64,
    /// First moment after it, ticks.
    pub end: u64,
    /// The state.
    pub state: S,
}

impl<S> Interval<S> {
    /// The moments of it.
    pub const fn window(&self) -> Window {
        Window { begin: self.begin, end: self.end }
    }

    /// Its length, ticks.
    pub const fn length(&self) -> u64 {
        self.end - self.begin
    }
}

impl<S: Copy + PartialEq> History<S> {
    /// A history that is `initial` at all times.
    #[must_use]
    pub const fn new(initial: S) -> Self {
        Self { initial, changes: Vec::new() }
    }

    /// From `time` on it is `state`. Nothing changes when it is already.
    ///
    /// Changes come in the order of their times; one that is earlier than the last counts as of the last's time.
    pub fn set(&mut self, time: u64, state: S) {
        if self.current() != state {
            self.begin(time, state);
        }
    }

    /// Like [`set`](Self::set), but an interval begins although the state is the same as before.
    pub fn begin(&mut self, time: u64, state: S) {
        match self.changes.last_mut() {
            // Of several states at one moment the last counts: the others lasted for no time.
            Some((last, current)) if *last >= time => *current = state,
            _ => self.changes.push((time, state)),
        }
    }

    /// The state after the last change.
    #[must_use]
    pub fn current(&self) -> S {
        self.changes.last().map_or(self.initial, |&(_, state)| state)
    }

    /// The state at `time`.
    #[must_use]
    pub fn at(&self, time: u64) -> S {
        self.state(self.after(time))
    }

    /// Whether an interval begins at `time`.
    #[must_use]
    pub fn begins_at(&self, time: u64) -> bool {
        self.changes.binary_search_by_key(&time, |&(change, _)| change).is_ok()
    }

    /// The moment of the last change; `None` when there was none.
    #[must_use]
    pub fn last_change(&self) -> Option<u64> {
        self.changes.last().map(|&(time, _)| time)
    }

    /// The intervals that `window` is made of, in order, cut at its ends: they have no gap, so that their lengths add up
    /// to the window's.
    pub fn over(&self, window: Window) -> impl Iterator<Item = Interval<S>> + '_ {
        let mut begin = window.begin;
        let mut next = self.after(begin);
        std::iter::from_fn(move || {
            if begin >= window.end {
                return None;
            }
            let end = self.changes.get(next).map_or(window.end, |&(time, _)| time.min(window.end));
            let interval = Interval { begin, end, state: self.state(next) };
            (begin, next) = (end, next + 1);
            Some(interval)
        })
    }

    /// The number of changes up to `time`.
    fn after(&self, time: u64) -> usize {
        self.changes.partition_point(|&(change, _)| change <= time)
    }

    /// The state after `changes` changes.
    fn state(&self, changes: usize) -> S {
        changes.checked_sub(1).and_then(|index| self.changes.get(index)).map_or(self.initial, |&(_, state)| state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn history(changes: &[(u64, char)]) -> History<char> {
        let mut history = History::new('?');
        changes.iter().for_each(|&(time, state)| history.set(time, state));
        history
    }

    fn over(history: &History<char>, begin: u64, end: u64) -> Vec<(u64, u64, char)> {
        history.over(Window { begin, end }).map(|interval| (interval.begin, interval.end, interval.state)).collect()
    }

    #[test]
    fn window_is_cut_at_its_ends() {
        let history = history(&[(10, 'a'), (20, 'b'), (30, 'c')]);

        assert_eq!(over(&history, 15, 25), [(15, 20, 'a'), (20, 25, 'b')]);
        assert_eq!(over(&history, 0, 20), [(0, 10, '?'), (10, 20, 'a')]);
        assert_eq!(over(&history, 30, 30), []);
        assert_eq!(over(&history, 40, u64::MAX), [(40, u64::MAX, 'c')]);
    }

    #[test]
    fn equal_states_are_one_interval_unless_one_is_begun() {
        let mut history = history(&[(10, 'a'), (20, 'a')]);
        history.begin(30, 'a');

        assert_eq!(over(&history, 10, 40), [(10, 30, 'a'), (30, 40, 'a')]);
        assert_eq!([9, 10, 20, 30].map(|time| history.begins_at(time)), [false, true, false, true]);
    }

    #[test]
    fn last_state_of_a_moment_counts_and_time_does_not_go_back() {
        let history = history(&[(10, 'a'), (10, 'b'), (5, 'c')]);

        assert_eq!((history.at(9), history.at(10), history.current()), ('?', 'c', 'c'));
    }

    proptest! {
        #[test]
        fn intervals_fill_any_window_and_agree_with_every_lookup(
            mut changes in proptest::collection::vec((0..50_u64, proptest::char::range('a', 'd')), 0..30),
            begin in 0..60_u64,
            length in 0..60_u64,
        ) {
            changes.sort_by_key(|&(time, _)| time);
            let history = history(&changes);

            let intervals = over(&history, begin, begin + length);

            let by_intervals: Vec<(u64, char)> =
                intervals.iter().flat_map(|&(begin, end, state)| (begin..end).map(move |time| (time, state))).collect();
            let by_lookup: Vec<(u64, char)> = (begin..begin + length).map(|time| (time, history.at(time))).collect();
            prop_assert_eq!(by_intervals, by_lookup);
        }
    }
}
