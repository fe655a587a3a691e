//! Parts of a recording.

use serde::Serialize;

/// A part of a recording: the moments from `begin` up to `end`, ticks of the trace clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Window {
    /// First moment.
    #[serde(rename = "begin_ticks")]
    pub begin: u64,
    /// First moment after it.
    #[serde(rename = "end_ticks")]
    pub end: u64,
}

impl Window {
    /// All moments.
    pub const ALL: Self = Self { begin: 0, end: u64::MAX };

    /// What of it lies in `other` too; `None` when nothing does.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        let (begin, end) = (self.begin.max(other.begin), self.end.min(other.end));
        (begin < end).then_some(Self { begin, end })
    }

    /// The last moment in it.
    #[must_use]
    pub const fn last(&self) -> u64 {
        // What goes on to the last moment of all has that.
        if self.end == Self::ALL.end { self.end } else { self.end.saturating_sub(1) }
    }

    /// Its length, ticks.
    #[must_use]
    pub const fn length(&self) -> u64 {
        self.end.saturating_sub(self.begin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_intersect_where_both_are() {
        let window = Window { begin: 10, end: 20 };

        assert_eq!(window.intersection(&Window { begin: 15, end: 30 }), Some(Window { begin: 15, end: 20 }));
        assert_eq!(window.intersection(&Window { begin: 20, end: 30 }), None);
    }

    #[test]
    fn last_moment_is_before_the_end_but_for_that_of_all() {
        assert_eq!((Window { begin: 10, end: 20 }.last(), Window::ALL.last()), (19, u64::MAX));
    }
}
