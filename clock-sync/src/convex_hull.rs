//! Relating two clocks that were never read together, from pairs of events where one must have happened before the
//! other: the convex-hull method.
//!
//! Let `f`, a straight line, give the reference clock's time at which the other clock shows `x`. An event of the other
//! clock at `x` that happened *before* one of the reference at `y` says `f(x) ≤ y`: the line passes below that point. An
//! event that happened *after* says `f(x) ≥ y`. The lines that do both are the possible relations; only the lower hull
//! of the first points and the upper hull of the second matter. The steepest and the flattest of these lines bound the
//! rate; what all of them span at `x` bounds the error there. Nothing is assumed of delays but that they are not
//! negative. When no line does both, the pairs contradict each other (or the clocks do not keep a constant rate), and
//! no relation is given.
//!
//! Points are whole ticks and the arithmetic is exact.

use std::fmt;

/// A time of each clock, ticks. For an example see [`ClockRelation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    /// Time of the clock that is to be related.
    pub other: u64,
    /// Time of the clock that it is related to.
    pub reference: u64,
}

/// Two events, one of each clock, whose order is known. For an example see [`ClockRelation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pair {
    /// The other clock's event happened no later than the reference's.
    OtherFirst(Point),
    /// The reference's event happened no later than the other clock's.
    ReferenceFirst(Point),
}

/// Why pairs give no relation.
///
/// ```
/// use clock_sync::convex_hull::{ClockRelation, HullError};
///
/// let error = ClockRelation::new(&[]).unwrap_err();
/// assert_eq!(error, HullError::TooFew { other_first: 0, reference_first: 0 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HullError {
    /// Too few pairs in one direction: there have to be some each way, early and late.
    TooFew {
        /// Pairs in which the other clock's event came first.
        other_first: usize,
        /// Pairs in which the reference's came first.
        reference_first: usize,
    },
    /// No constant rate and offset agrees with all pairs.
    Contradiction {
        /// A pair that cannot be, the others given.
        pair: Pair,
    },
}

impl fmt::Display for HullError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooFew { other_first, reference_first } => write!(
                formatter,
                "{reference_first} pairs from the first to the second clock and {other_first} back are too few: there \
                 have to be some in both directions, early and late"
            ),
            Self::Contradiction { pair } => {
                let (order, point) = match pair {
                    Pair::OtherFirst(point) => ("later than", point),
                    Pair::ReferenceFirst(point) => ("earlier than", point),
                };
                write!(
                    formatter,
                    "the pairs contradict each other: no constant rate and offset fits; by the others, tick {} of the \
                     second clock is {order} tick {} of the first, against the pair",
                    point.other, point.reference
                )
            }
        }
    }
}

impl std::error::Error for HullError {}

/// A line through two points with whole coordinates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    x: i128,
    y: i128,
    dx: i128,
    dy: i128,
}

impl Line {
    const fn through((x, y): (i128, i128), (right_x, right_y): (i128, i128)) -> Self {
        Self { x, y, dx: right_x - x, dy: right_y - y }
    }

    /// Its value at `x`, rounded down.
    const fn floor(&self, x: i128) -> i128 {
        self.y + (self.dy * (x - self.x)).div_euclid(self.dx)
    }

    /// Its value at `x`, rounded up.
    const fn ceil(&self, x: i128) -> i128 {
        self.y - (-self.dy * (x - self.x)).div_euclid(self.dx)
    }

    /// Positive when the point lies above the line, negative below.
    const fn side(&self, (x, y): (i128, i128)) -> i128 {
        (y - self.y) * self.dx - self.dy * (x - self.x)
    }
}

/// A relation of two clocks, and how far other relations that the pairs allow can differ from it. See the module's
/// documentation.
///
/// ```
/// use clock_sync::convex_hull::{ClockRelation, Pair, Point};
///
/// // Messages both ways, each 10 ticks under way, between clocks that are 1000 ticks apart.
/// let pairs = [
///     Pair::ReferenceFirst(Point { other: 110, reference: 1_100 }),
///     Pair::OtherFirst(Point { other: 120, reference: 1_130 }),
///     Pair::ReferenceFirst(Point { other: 9_110, reference: 10_100 }),
///     Pair::OtherFirst(Point { other: 9_120, reference: 10_130 }),
/// ];
/// let relation = ClockRelation::new(&pairs)?;
/// assert_eq!(relation.pairs(), 4);
/// assert!(relation.reference_at(5_000).abs_diff(6_000) <= relation.bound_at(5_000));
/// // Half-way between the messages no line is farther off than one of them was under way, and a tick of rounding.
/// assert!(relation.bound_at(5_000) <= 11);
/// # Ok::<(), clock_sync::convex_hull::HullError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ClockRelation {
    /// Lower hull of the points that the line passes below, left to right.
    above: Vec<(i128, i128)>,
    /// Upper hull of the points that it passes above.
    below: Vec<(i128, i128)>,
    steepest: Line,
    flattest: Line,
    pairs: usize,
}

/// Rates of a relation, reference ticks per tick of the other clock. For an example see [`ClockRelation`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Rates {
    /// Lowest rate that the pairs allow.
    pub least: f64,
    /// Rate of the chosen relation: half-way between the other two.
    pub chosen: f64,
    /// Highest rate that the pairs allow.
    pub most: f64,
}

impl ClockRelation {
    /// The relation that `pairs` allow.
    ///
    /// # Errors
    /// When they do not bound the relation, or contradict each other.
    pub fn new(pairs: &[Pair]) -> Result<Self, HullError> {
        let points = |first: bool| {
            let chosen = pairs.iter().filter_map(move |pair| match pair {
                Pair::OtherFirst(point) if first => Some((i128::from(point.other), i128::from(point.reference))),
                Pair::ReferenceFirst(point) if !first => Some((i128::from(point.other), i128::from(point.reference))),
                _ => None,
            });
            let mut chosen: Vec<_> = chosen.collect();
            chosen.sort_unstable();
            chosen
        };
        let (upper, lower) = (points(true), points(false));
        let too_few = HullError::TooFew { other_first: upper.len(), reference_first: lower.len() };
        let above = hull(&upper, 1);
        let below = hull(&lower, -1);
        let steepest = tangent(&below, &above, 1).ok_or(too_few)?;
        let flattest = tangent(&above, &below, -1).ok_or(too_few)?;
        let relation = Self { above, below, steepest, flattest, pairs: pairs.len() };
        match relation.contradicted() {
            Some(pair) => Err(HullError::Contradiction { pair }),
            None => Ok(relation),
        }
    }

    fn contradicted(&self) -> Option<Pair> {
        let point = |&(x, y): &(i128, i128)| Point {
            other: u64::try_from(x).unwrap_or(u64::MAX),
            reference: u64::try_from(y).unwrap_or(u64::MAX),
        };
        [&self.steepest, &self.flattest].into_iter().find_map(|line| {
            let above = self.above.iter().find(|&&at| line.side(at) < 0).map(|at| Pair::OtherFirst(point(at)));
            above.or_else(|| self.below.iter().find(|&&at| line.side(at) > 0).map(|at| Pair::ReferenceFirst(point(at))))
        })
    }

    /// Number of pairs that the relation was made from.
    #[must_use]
    pub const fn pairs(&self) -> usize {
        self.pairs
    }

    /// The reference clock's time at `other`, ticks: half-way between the steepest and the flattest line. Never
    /// decreases with `other`, provided that time runs forward by both lines.
    #[must_use]
    pub fn reference_at(&self, other: u64) -> u64 {
        let time = self.chosen(i128::from(other));
        u64::try_from(time).unwrap_or(if time < 0 { 0 } else { u64::MAX })
    }

    const fn chosen(&self, x: i128) -> i128 {
        (self.steepest.floor(x) + self.flattest.floor(x)).div_euclid(2)
    }

    /// The earliest and the latest that the reference clock can have shown at `other`, ticks.
    #[must_use]
    pub fn envelope_at(&self, other: u64) -> (i128, i128) {
        let x = i128::from(other);
        let lines = [&self.steepest, &self.flattest];
        // Between the points where the two lines touch it, a hull is what bounds the lines; elsewhere the lines do.
        let most = chain_at(&self.above, x, Line::ceil).filter(|_| self.touched(&self.above, x));
        let least = chain_at(&self.below, x, Line::floor).filter(|_| self.touched(&self.below, x));
        let (by_steep, by_flat) = (lines[0], lines[1]);
        let most = most.unwrap_or_else(|| by_steep.ceil(x).max(by_flat.ceil(x)));
        let least = least.unwrap_or_else(|| by_steep.floor(x).min(by_flat.floor(x)));
        (least, most)
    }

    /// Whether `x` lies between the points where the two lines touch `chain`.
    fn touched(&self, chain: &[(i128, i128)], x: i128) -> bool {
        let touching = |line: &Line| chain.iter().find(|&&at| line.side(at) == 0).map(|&(at, _)| at);
        match (touching(&self.steepest), touching(&self.flattest)) {
            (Some(one), Some(other)) => x >= one.min(other) && x <= one.max(other),
            _ => false,
        }
    }

    /// Largest error of [`reference_at`](Self::reference_at) at `other`, ticks of the reference clock.
    #[must_use]
    pub fn bound_at(&self, other: u64) -> u64 {
        let (least, most) = self.envelope_at(other);
        let chosen = self.chosen(i128::from(other));
        u64::try_from((most - chosen).max(chosen - least).max(0)).unwrap_or(u64::MAX)
    }

    /// Largest error anywhere from `first` to `last` of the other clock, ticks of the reference clock. What the lines
    /// span is convex, so it is largest at an end.
    #[must_use]
    pub fn bound_over(&self, first: u64, last: u64) -> u64 {
        self.bound_at(first).max(self.bound_at(last))
    }

    /// The rate of this relation, and the lowest and highest that the pairs allow.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "to be shown")]
    pub fn rates(&self) -> Rates {
        let rate = |line: &Line| line.dy as f64 / line.dx as f64;
        let (least, most) = (rate(&self.flattest), rate(&self.steepest));
        Rates { least, chosen: f64::midpoint(least, most), most }
    }

    /// Whether time runs forward by every possible relation.
    #[must_use]
    pub const fn runs_forward(&self) -> bool {
        self.flattest.dy > 0
    }
}

/// The lower (`turn` 1) or upper (`turn` -1) hull of sorted points, left to right.
fn hull(points: &[(i128, i128)], turn: i128) -> Vec<(i128, i128)> {
    let mut chain: Vec<(i128, i128)> = Vec::new();
    // Of points above each other only the lowest (highest) counts; sorted, the lowest comes first.
    let mut add = |point: (i128, i128)| {
        if let Some(last) = chain.last_mut().filter(|last| last.0 == point.0) {
            if turn < 0 {
                *last = point;
            } else {
                return;
            }
        } else {
            chain.push(point);
        }
        while let [.., first, middle, last] = chain[..] {
            if Line::through(first, last).side(middle) * turn < 0 {
                break;
            }
            chain.remove(chain.len() - 2);
        }
    };
    points.iter().for_each(|&point| add(point));
    chain
}

/// The steepest line (`turn` 1) that passes above the points of `left` and below those of `right`, or the flattest
/// (`turn` -1) that does the opposite, judged by points of `left` with points of `right` to their right: no line that
/// keeps to the right side of these points is steeper (flatter). `None` when there are no such points.
fn tangent(left: &[(i128, i128)], right: &[(i128, i128)], turn: i128) -> Option<Line> {
    let (&(mut from), &(mut to)) = (left.first()?, right.last()?);
    if from.0 >= to.0 {
        return None;
    }
    // Each round makes the line flatter (steeper), so it ends.
    loop {
        let before = (from, to);
        for &at in right.iter().filter(|at| at.0 > from.0) {
            if Line::through(from, to).side(at) * turn < 0 {
                to = at;
            }
        }
        for &at in left.iter().filter(|at| at.0 < to.0) {
            if Line::through(from, to).side(at) * turn > 0 {
                from = at;
            }
        }
        if (from, to) == before {
            return Some(Line::through(from, to));
        }
    }
}

/// The value at `x` of the chain through `points`; `None` outside it.
fn chain_at(points: &[(i128, i128)], x: i128, value: impl Fn(&Line, i128) -> i128) -> Option<i128> {
    let after = points.partition_point(|point| point.0 < x);
    let &right = points.get(after)?;
    if right.0 == x {
        return Some(right.1);
    }
    let &left = points.get(after.checked_sub(1)?)?;
    Some(value(&Line::through(left, right), x))
}

#[cfg(test)]
mod tests {
    //! Shows: Two unrelated clocks' relation lies inside its bound.

    use super::*;
    use proptest::prelude::*;

    fn other_first(other: u64, reference: u64) -> Pair {
        Pair::OtherFirst(Point { other, reference })
    }

    fn reference_first(other: u64, reference: u64) -> Pair {
        Pair::ReferenceFirst(Point { other, reference })
    }

    #[test]
    fn tight_pairs_give_the_relation_itself() {
        // reference = 500 + 2 * other, known exactly at 0 and at 1000.
        let pairs =
            [other_first(0, 500), reference_first(0, 500), other_first(1_000, 2_500), reference_first(1_000, 2_500)];

        let relation = ClockRelation::new(&pairs).unwrap();

        assert_eq!((relation.reference_at(300), relation.bound_over(0, 1_000)), (1_100, 0));
        assert!(relation.runs_forward());
    }

    #[test]
    fn delays_widen_the_bound_and_most_so_outside_the_pairs() {
        // reference = other; 10 ticks of delay each way.
        let pairs =
            [other_first(0, 10), reference_first(10, 0), other_first(1_000, 1_010), reference_first(1_010, 1_000)];

        let relation = ClockRelation::new(&pairs).unwrap();

        assert!(relation.reference_at(500).abs_diff(500) <= 1);
        assert!((10..=11).contains(&relation.bound_at(500)), "{}", relation.bound_at(500));
        assert!(relation.bound_at(2_000) > 25 && relation.bound_at(2_000) < 45, "{}", relation.bound_at(2_000));
    }

    #[test]
    fn pairs_in_one_direction_are_too_few() {
        let pairs = [other_first(0, 10), other_first(1_000, 1_010)];

        let error = ClockRelation::new(&pairs).unwrap_err();

        assert_eq!(error, HullError::TooFew { other_first: 2, reference_first: 0 });
    }

    #[test]
    fn contradiction_names_a_pair() {
        // In the middle the other clock would have to be 100 ahead and behind.
        let pairs = [
            other_first(0, 10),
            reference_first(0, 0),
            other_first(500, 400),
            other_first(1_000, 1_010),
            reference_first(1_000, 1_000),
        ];

        let error = ClockRelation::new(&pairs).unwrap_err();

        assert!(matches!(error, HullError::Contradiction { .. }), "{error}");
        assert!(error.to_string().contains("contradict each other"));
    }

    proptest! {
        #[test]
        fn truth_is_inside_the_envelope_and_every_constraint_is_kept(
            offset in 0_u64..1 << 40,
            numerator in 900_000_u64..1_100_000,
            pairs in proptest::collection::vec((0_u64..1_000_000_000, 0_u64..50_000, any::<bool>()), 20..200),
            moment in 0_u64..1_000_000_000,
        ) {
            let truth = |other: u64| offset + other * numerator / 1_000_000;
            // Rounding up the later event keeps the order true.
            let pairs: Vec<Pair> = pairs.into_iter().map(|(at, delay, first)| {
                if first { other_first(at, truth(at) + 1 + delay) } else { reference_first(at + 2 + delay, truth(at)) }
            }).collect();
            // Pairs that are true never contradict each other; these are never too few.
            let relation = ClockRelation::new(&pairs);
            prop_assume!(!matches!(relation, Err(HullError::TooFew { other_first: _, reference_first: _ })));
            let relation = relation.unwrap();
            let (least, most) = relation.envelope_at(moment);
            let true_time = i128::from(truth(moment));
            prop_assert!(least <= true_time && true_time <= most, "{least} {true_time} {most}");
            let error = relation.reference_at(moment).abs_diff(truth(moment));
            prop_assert!(error <= relation.bound_at(moment) && error <= relation.bound_over(0, 1_000_000_000));
        }
    }
}
