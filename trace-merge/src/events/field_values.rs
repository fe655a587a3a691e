//! The values that a field has in some records, for a message.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use strata_recording::text::nearest::{self, nearest};
use strata_recording::text::terminal::harmless;

/// Most texts that are remembered, and most that are named.
const MAX_TEXTS: usize = 4096;
const MAX_NAMED: usize = 5;

/// The texts, and between which numbers the numbers are.
#[derive(Debug, Default)]
pub(super) struct FieldValues {
    texts: BTreeSet<String>,
    numbers: Option<RangeInclusive<i128>>,
}

impl Extend<String> for FieldValues {
    fn extend<I: IntoIterator<Item = String>>(&mut self, values: I) {
        for value in values {
            match (value.parse(), &self.numbers) {
                (Ok(number), None) => self.numbers = Some(number..=number),
                (Ok(number), Some(known)) => {
                    self.numbers = Some(number.min(*known.start())..=number.max(*known.end()));
                }
                (Err(_), _) if self.texts.len() < MAX_TEXTS => drop(self.texts.insert(value)),
                (Err(_), _) => {}
            }
        }
    }
}

impl FieldValues {
    /// What follows "no record has FIELD==`wanted`": the texts nearest to it, or what there are.
    pub(super) fn in_words(&self, wanted: &str) -> String {
        let texts = || self.texts.iter().map(String::as_str);
        let near = nearest(wanted, texts());
        if !near.is_empty() {
            return harmless(&nearest::in_words(&near));
        }
        let more = self.texts.len().saturating_sub(MAX_NAMED);
        let some = harmless(&texts().take(MAX_NAMED).collect::<Vec<_>>().join(", "));
        match (&self.numbers, more) {
            (None, _) if self.texts.is_empty() => String::new(),
            (Some(numbers), _) if self.texts.is_empty() => {
                format!("; it is from {} to {}", numbers.start(), numbers.end())
            }
            (_, 0) => format!("; there are {some}"),
            _ => format!("; there are {some} and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_words(values: &[&str], wanted: &str) -> String {
        let mut seen = FieldValues::default();
        seen.extend(values.iter().map(|&value| value.to_owned()));
        seen.in_words(wanted)
    }

    #[test]
    fn nearest_texts_come_before_those_there_are() {
        assert_eq!(in_words(&["msr", "ioio", "hlt"], "msrr"), "; the nearest is msr");
        assert_eq!(in_words(&["msr", "ioio"], "zzz"), "; there are ioio, msr");
        assert_eq!(in_words(&["1a", "2a", "3a", "4a", "5a", "6a"], "zzz"), "; there are 1a, 2a, 3a, 4a, 5a and 1 more");
    }

    #[test]
    fn numbers_are_between_two() {
        assert_eq!(in_words(&["7", "-2", "5"], "9"), "; it is from -2 to 7");
        assert_eq!(in_words(&[], "9"), "");
    }

    #[test]
    fn texts_of_a_guest_do_not_act() {
        assert_eq!(in_words(&["\x1b[2J"], "zzz"), "; there are \\u{1b}[2J");
    }
}
