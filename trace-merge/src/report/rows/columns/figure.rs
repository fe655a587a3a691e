//! The figures of times: the columns that every report on times has.

use super::{Unit, Value};
use crate::report::statistics::distribution::{Distribution, Times};

/// A figure of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// How many there are.
    Count,
    /// All together.
    Total,
    /// What half of them take at most.
    P50,
    /// What 99 in 100 of them take at most.
    P99,
    /// The longest.
    Longest,
    /// How many there are of each length.
    Histogram,
}

/// Figures, and the heading of each; an empty one for what only JSON has.
pub type Figures = &'static [(Figure, &'static str)];

/// All that a table shows of a distribution.
pub const DISTRIBUTION: Figures = &[
    (Figure::Count, "count"),
    (Figure::Total, "total"),
    (Figure::P50, "p50"),
    (Figure::P99, "p99"),
    (Figure::Longest, "longest"),
];

/// All that there is of times without quantiles.
pub const TIMES: Figures =
    &[(Figure::Count, "count"), (Figure::Total, "time"), (Figure::Longest, "longest"), (Figure::Histogram, "")];

/// The same of rows that no table shows.
pub const TIMES_IN_JSON: Figures =
    &[(Figure::Count, ""), (Figure::Total, ""), (Figure::Longest, ""), (Figure::Histogram, "")];

impl Figure {
    /// What JSON calls it.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Total => "total_ns",
            Self::P50 => "p50_ns",
            Self::P99 => "p99_ns",
            Self::Longest => "max_ns",
            Self::Histogram => "histogram",
        }
    }

    #[must_use]
    pub const fn unit(self) -> Unit {
        match self {
            Self::Count => Unit::Count,
            Self::Total | Self::P50 | Self::P99 | Self::Longest => Unit::Ns,
            Self::Histogram => Unit::Histogram,
        }
    }

    /// What it means.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Count => "How many",
            Self::Total => "All together",
            Self::P50 => "Half of them take at most this",
            Self::P99 => "99 in 100 of them take at most this",
            Self::Longest => "The longest",
            Self::Histogram => "How many take how long",
        }
    }

    /// That of `times`, which are a [`Value::Distribution`] or [`Value::Times`].
    pub(super) const fn of<'r>(self, times: &Value<'r>) -> Value<'r> {
        match (self, times) {
            (
                Self::Count,
                Value::Distribution(Distribution { count: number, .. }) | Value::Times(Times { count: number, .. }),
            )
            | (
                Self::Total,
                Value::Distribution(Distribution { total_ns: number, .. })
                | Value::Times(Times { total_ns: number, .. }),
            )
            | (Self::P50, Value::Distribution(Distribution { p50_ns: number, .. }))
            | (Self::P99, Value::Distribution(Distribution { p99_ns: number, .. }))
            | (
                Self::Longest,
                Value::Distribution(Distribution { max_ns: number, .. }) | Value::Times(Times { max_ns: number, .. }),
            ) => Value::Number(*number),
            (
                Self::Histogram,
                Value::Distribution(Distribution { histogram, .. }) | Value::Times(Times { histogram, .. }),
            ) => Value::Histogram(histogram),
            _ => Value::None,
        }
    }

    /// The same for a table: none of no times have a quantile or a longest one.
    pub(super) fn shown_of<'r>(self, times: &Value<'r>) -> Value<'r> {
        let has_none = matches!(Self::Count.of(times), Value::Number(0));
        match self {
            Self::P50 | Self::P99 | Self::Longest if has_none => Value::None,
            _ => self.of(times),
        }
    }
}
