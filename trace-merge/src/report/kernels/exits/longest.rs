//! The longest of some exits, and where it is on a timeline.

use crate::report::rows::columns::{Column, ReportRow, Unit, column};
use std::cmp::Reverse;

/// An exit, or what of it is looked at; of several, the longest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Longest {
    /// How long it is, ticks.
    pub ticks: u64,
    /// When the exit began, ticks.
    pub begin: u64,
    /// The vCPU that left its guest.
    pub vcpu: u32,
}

impl Longest {
    /// The longer one, and of equal ones the earlier: whatever order they are met in.
    #[must_use]
    pub(super) fn or(self, other: Self) -> Self {
        let order = |exit: &Self| (Reverse(exit.ticks), exit.begin, exit.vcpu);
        if order(&other) < order(&self) { other } else { self }
    }
}

impl ReportRow for Longest {
    const COLUMNS: &'static [Column<Self>] = &[
        column("begin_ticks", "", Unit::Ticks, "When it began", |row| row.begin.into()),
        column("vcpu", "", Unit::Number, "Its vCPU", |row| row.vcpu.into()),
    ];
}

/// What the column of the longest one means.
pub(super) const MEANING: &str = "The longest: `begin_ticks`, `vcpu`";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_of_the_longest_is_kept() {
        let exit = |ticks, begin| Longest { ticks, begin, vcpu: 1 };

        let mut exits = [exit(0, 5), exit(7, 10), exit(7, 20), exit(3, 30)];

        let longest = exits.into_iter().reduce(Longest::or);
        exits.reverse();

        assert_eq!(longest, Some(exit(7, 10)));
        assert_eq!(exits.into_iter().reduce(Longest::or), longest);
    }
}
