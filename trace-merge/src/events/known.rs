//! Text that a worker has written lately and may write again: numbers with their names, and tasks. To find and to format it
//! anew takes far more than to copy it.

use super::current_task::Task;
use super::line::{Lines, MOST_AT_ONCE};

/// Places of numbers with names: few enough that they stay in a CPU's cache.
const PLACES: usize = 1 << PLACE_BITS;
const PLACE_BITS: u32 = 10;

/// A number in a record, and all that its text depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number {
    /// Number of the field among those of the plan whose numbers have names.
    pub(super) field: u32,
    /// Its bits.
    pub(super) bits: u64,
    /// What the record says besides that decides on the name.
    pub(super) beside: Option<i64>,
}

impl Number {
    /// Where its text is kept.
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "no bits are left above those of a place")]
    const fn place(&self) -> usize {
        // Fibonacci hashing: neighbours, which numbers of a field often are, do not meet.
        let mixed = self.bits.wrapping_add((self.field as u64) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> (u64::BITS - PLACE_BITS)) as usize
    }
}

/// What was written lately.
#[derive(Debug)]
pub(super) struct Known<'t> {
    numbers: Box<[Kept<Number>; PLACES]>,
    /// By source of the merge: the task of its last record.
    tasks: Vec<Kept<Option<Task<'t>>>>,
}

impl<'t> Known<'t> {
    /// Nothing yet, of a merge of so many `sources`.
    pub(super) fn new(sources: usize) -> Self {
        let tasks = (0..sources).map(|_| Kept::NONE).collect();
        Self { numbers: Box::new([const { Kept::NONE }; PLACES]), tasks }
    }

    /// Writes `number`, as `write` does it.
    #[inline]
    pub(super) fn number(&mut self, lines: &mut Lines, number: Number, write: impl FnOnce(&mut Lines)) {
        self.numbers[number.place()].write(lines, number, write);
    }

    /// Writes the task of a record of `source`, as `write` does it.
    #[inline]
    pub(super) fn task(
        &mut self,
        lines: &mut Lines,
        source: usize,
        task: Option<Task<'t>>,
        write: impl FnOnce(&mut Lines),
    ) {
        match self.tasks.get_mut(source) {
            Some(kept) => kept.write(lines, task, write),
            None => write(lines),
        }
    }
}

/// A text and what it is the text of.
#[derive(Debug)]
struct Kept<K> {
    of: Option<K>,
    text: [u8; MOST_AT_ONCE],
    length: usize,
}

impl<K: PartialEq> Kept<K> {
    const NONE: Self = Self { of: None, text: [0; MOST_AT_ONCE], length: 0 };

    /// Writes the text of `of`, which `write` writes where it is not this one.
    #[inline]
    fn write(&mut self, lines: &mut Lines, of: K, write: impl FnOnce(&mut Lines)) {
        if self.of.as_ref() == Some(&of) {
            lines.put(&self.text, self.length);
        } else {
            self.write_anew(lines, of, write);
        }
    }

    #[inline(never)]
    fn write_anew(&mut self, lines: &mut Lines, of: K, write: impl FnOnce(&mut Lines)) {
        let begin = lines.len();
        write(lines);
        // What is longer, or lies in two places now, is written anew next time.
        let text = lines.since(begin).and_then(|text| Some((self.text.get_mut(..text.len())?, text)));
        self.of = text.map(|(kept, text)| {
            kept.copy_from_slice(text);
            self.length = text.len();
            of
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(lines: &mut Lines) -> String {
        String::from_utf8(lines.text().to_vec()).unwrap()
    }

    #[test]
    fn text_is_written_again_for_the_same_number_beside_the_same_only() {
        let (mut known, mut lines) = (Known::new(0), Lines::default());
        let number = Number { field: 1, bits: 7, beside: Some(1) };
        let others = [Number { field: 2, ..number }, Number { bits: 8, ..number }, Number { beside: None, ..number }];

        known.number(&mut lines, number, |lines| lines.extend(b"a"));
        known.number(&mut lines, number, |_| panic!("it is known"));
        others.into_iter().for_each(|other| known.number(&mut lines, other, |lines| lines.extend(b"b")));

        assert_eq!(text(&mut lines), "aabbb");
    }

    #[test]
    fn text_that_is_long_or_torn_is_written_anew() {
        let (mut known, mut lines) = (Known::new(0), Lines::default());
        let number = Number { field: 1, bits: 7, beside: None };
        let long = [b'x'; MOST_AT_ONCE + 1];

        (0..2).for_each(|_| known.number(&mut lines, number, |lines| lines.extend(&long)));
        // Between any two of its bytes the lines may be moved to where they stay.
        let pairs = 2000;
        for _ in 0..pairs {
            known.number(&mut lines, Number { bits: 8, ..number }, |lines| {
                lines.push(b'a');
                lines.push(b'b');
            });
            lines.push(b'-');
        }

        let expected = "x".repeat(2 * long.len()) + &"ab-".repeat(pairs);
        assert_eq!(text(&mut lines), expected);
    }

    #[test]
    fn each_source_has_a_task_of_its_own() {
        let (mut known, mut lines) = (Known::new(2), Lines::default());
        let task = |tid| Some(Task { tid, comm: Some(b"sh") });

        known.task(&mut lines, 0, task(1), |lines| lines.push(b'a'));
        known.task(&mut lines, 1, task(2), |lines| lines.push(b'b'));
        known.task(&mut lines, 0, task(1), |_| panic!("it is known"));
        known.task(&mut lines, 1, None, |lines| lines.push(b'c'));

        assert_eq!(text(&mut lines), "abac");
    }
}
