//! How the fields of an event are copied when all of them lie at fixed places in its records: in runs of neighbours,
//! worked out once. Most events are such, and most of them one run.

use std::ops::Range;

/// Byte by byte, 1 and the highest bit.
const ONES: u128 = u128::from_ne_bytes([0x01; 16]);
const HIGHEST: u128 = u128::from_ne_bytes([0x80; 16]);

/// The moves that copy an event's fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CopyPlan {
    /// What is taken out of a record, one behind the other.
    runs: Vec<Range<usize>>,
    /// The texts in what was taken: what lies behind a text's NUL is none of it.
    texts: Vec<Range<usize>>,
    /// Bytes that a record has at least.
    needed: usize,
    /// Bytes that are taken.
    bytes: usize,
}

impl CopyPlan {
    /// A plan of `fields` in their order: where each lies in a record, and whether it is a text of that many bytes.
    pub(super) fn new(fields: impl IntoIterator<Item = (Range<usize>, bool)>) -> Self {
        let mut plan = Self::default();
        for (place, is_text) in fields {
            let begin = plan.bytes;
            plan.needed = plan.needed.max(place.end);
            plan.bytes += place.len();
            if is_text {
                plan.texts.push(begin..plan.bytes);
            }
            match plan.runs.last_mut() {
                Some(run) if run.end == place.start => run.end = place.end,
                _ => plan.runs.push(place),
            }
        }
        plan
    }

    /// Bytes that [`copy`](Self::copy) appends.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The one run that holds all fields, if there is no more.
    #[inline(always)]
    pub(super) fn only_run(&self) -> Option<Range<usize>> {
        match &self.runs[..] {
            [run] => Some(run.clone()),
            _ => None,
        }
    }

    /// Whether what was taken has texts.
    pub(super) const fn has_texts(&self) -> bool {
        !self.texts.is_empty()
    }

    /// Clears in what was taken what is not part of its texts.
    #[inline]
    pub(super) fn clear_behind_texts(&self, taken: &mut [u8]) {
        for text in &self.texts {
            taken.get_mut(text.clone()).map(clear_behind_nul);
        }
    }

    /// The fields of `record` where they lie, if that is how they are recorded: one run without texts. `None` also if
    /// the record is too short.
    #[inline(always)]
    pub(super) fn in_place<'r>(&self, record: &'r [u8]) -> Option<&'r [u8]> {
        record.get(self.only_run().filter(|_| !self.has_texts())?)
    }

    /// Appends the fields of `record` to `out`. `false`, and nothing is appended, if the record is too short.
    #[inline]
    pub(super) fn copy(&self, record: &[u8], out: &mut Vec<u8>) -> bool {
        if record.len() < self.needed {
            return false;
        }
        let start = out.len();
        for run in &self.runs {
            out.extend_from_slice(&record[run.clone()]);
        }
        self.clear_behind_texts(&mut out[start..]);
        true
    }
}

/// Clears what lies behind the first NUL in `text`: the kernel leaves there what was in memory before.
#[inline]
fn clear_behind_nul(text: &mut [u8]) {
    // The name of a task, which is almost every text of fixed size.
    if let Ok(name) = <&mut [u8; 16]>::try_from(&mut *text) {
        let bytes = u128::from_le_bytes(*name);
        // The lowest bit that is left is that of the first byte that is 0 (Mycroft; Hacker's Delight, 6-1).
        let zeros = bytes.wrapping_sub(ONES) & !bytes & HIGHEST;
        if zeros != 0 {
            let kept = (1 << (zeros.trailing_zeros() & !7)) - 1;
            *name = (bytes & kept).to_le_bytes();
        }
        return;
    }
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    text[end..].fill(0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn neighbours_become_one_run() {
        let plan = CopyPlan::new([(4..8, false), (8..24, true), (24..28, false), (32..40, false)]);

        assert_eq!((plan.runs, plan.needed, plan.bytes), (vec![4..28, 32..40], 40, 32));
        assert_eq!(plan.texts.first(), Some(&(4..20)));
    }

    #[test]
    fn fields_out_of_their_order_in_the_record_keep_their_own() {
        let mut out = vec![9];

        assert!(CopyPlan::new([(4..6, false), (0..2, false)]).copy(&[0, 1, 2, 3, 4, 5], &mut out));

        assert_eq!(out, [9, 4, 5, 0, 1]);
    }

    #[test]
    fn one_run_without_texts_is_taken_where_it_lies() {
        let record = [0, 1, 2, 3];

        assert_eq!(CopyPlan::new([(1..2, false), (2..4, false)]).in_place(&record), Some(&record[1..]));
        assert_eq!(CopyPlan::new([(1..2, false), (2..4, true)]).in_place(&record), None);
        assert_eq!(CopyPlan::new([(1..2, false), (3..4, false)]).in_place(&record), None);
        assert_eq!(CopyPlan::new([(1..2, false), (2..5, false)]).in_place(&record), None);
    }

    #[test]
    fn record_that_is_too_short_leaves_the_output_as_it_was() {
        let mut out = vec![9];

        assert!(!CopyPlan::new([(0..2, false), (2..6, false)]).copy(&[0; 5], &mut out));

        assert_eq!(out, [9]);
    }

    proptest! {
        #[test]
        fn text_is_cleared_behind_its_first_nul(mut text in proptest::collection::vec(0..3_u8, 0..20)) {
            let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
            let mut expected = text.clone();
            expected[end..].fill(0);

            clear_behind_nul(&mut text);

            prop_assert_eq!(text, expected);
        }

        #[test]
        fn name_of_a_task_is_cleared_behind_its_first_nul(mut text: [u8; 16], nul in 0..17_usize) {
            if let Some(byte) = text.get_mut(nul) {
                *byte = 0;
            }
            let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
            let mut expected = text;
            expected[end..].fill(0);

            clear_behind_nul(&mut text);

            prop_assert_eq!(text, expected);
        }
    }
}
