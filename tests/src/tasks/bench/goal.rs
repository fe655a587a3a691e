//! Goals of benchmarks: a figure, how sure it is, and what that says of its limit.
//!
//! A figure comes from runs that took turns, so that each turn's runs saw the same machine. Its interval is the
//! percentile bootstrap's (Efron & Tibshirani, *An Introduction to the Bootstrap*, 1993, chapter 13): turns are drawn
//! with replacement, whole ones, and the figure is computed anew. A goal is met or missed only where the whole interval
//! says so. What noise hides is not measured, and never met.

use serde::Serialize;
use std::fmt::{self, Write};

/// Turns that an interval takes at least: the bootstrap of fewer says it is surer than it is.
const FEWEST: usize = 5;
/// How often turns are drawn.
const DRAWS: usize = 2000;
/// What of the drawn figures lies below the interval, and above it: it holds 95 %.
const TAIL: f64 = 0.025;

/// What a figure says of its goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The whole interval is within the limit.
    Met,
    /// The whole interval is beyond it.
    Missed,
    /// The limit lies inside the interval, or the figure has none.
    NotMeasured,
}

impl Verdict {
    /// How tables show it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Met => "yes",
            Self::Missed => "**no**",
            Self::NotMeasured => "not measured",
        }
    }
}

/// A goal, and how it stands.
#[derive(Debug, Serialize)]
pub struct Goal {
    /// What is compared.
    pub goal: String,
    /// The figure of all turns.
    pub value: Option<f64>,
    /// Where it lies with 95 % certainty.
    pub interval: Option<[f64; 2]>,
    /// The most that it may be.
    pub limit: f64,
    /// What that says.
    pub verdict: Verdict,
}

impl Goal {
    /// Holds `figure`, computed from the numbers of the turns that it is to use, against `limit`. It is `None` where
    /// these turns have none, as by [`ratio_of_added`].
    pub fn of(goal: String, limit: f64, turns: usize, figure: impl Fn(&[usize]) -> Option<f64>) -> Self {
        let all: Vec<usize> = (0..turns).collect();
        let value = figure(&all);
        let interval = value.and_then(|_| interval(turns, figure));
        let verdict = match interval {
            Some([_, high]) if high <= limit => Verdict::Met,
            Some([low, _]) if low > limit => Verdict::Missed,
            _ => Verdict::NotMeasured,
        };
        Self { goal, value, interval, limit, verdict }
    }

    /// Its row: goal, limit, figure, interval, verdict.
    pub fn row(&self) -> String {
        let number = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.3}"));
        let interval = self.interval.map_or("–".to_owned(), |[low, high]| format!("{low:.3} to {high:.3}"));
        let Self { goal, value, limit, verdict, .. } = self;
        format!("| {goal} | {limit:.2} | {} | {interval} | {} |", number(*value), verdict.label())
    }
}

/// Writes the head of a benchmark's tables to `text`: the machine and its load before and after, `how` the figures came
/// about, what is `missing`, and how each of `goals` stands.
pub fn write_head(
    text: &mut String,
    (machine, [before, after]): (&str, [f64; 2]),
    how: &str,
    missing: &[String],
    goals: &[Goal],
) -> fmt::Result {
    writeln!(text, "{machine}.\nLoad average {before:.1} before and {after:.1} after. {how}\n")?;
    missing.iter().try_for_each(|missing| writeln!(text, "Not measured: {missing}.\n"))?;
    text.push_str(HEADER);
    goals.iter().try_for_each(|goal| writeln!(text, "{}", goal.row()))
}

/// What `ours` is of `theirs`, both added to the same base. What adds nothing, or less, was not measured but lost in
/// noise.
pub fn ratio_of_added(ours: f64, theirs: f64) -> Option<f64> {
    (ours > 0.0 && theirs > 0.0).then(|| ours / theirs)
}

/// The columns of [`Goal::row`].
pub const HEADER: &str = "| goal | limit | here | 95 % interval | met |\n|---|---|---|---|---|\n";

/// The interval of `figure` over `turns`; none for fewer than [`FEWEST`], and none where more draws have no figure than
/// a tail holds.
fn interval(turns: usize, figure: impl Fn(&[usize]) -> Option<f64>) -> Option<[f64; 2]> {
    if turns < FEWEST {
        return None;
    }
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut drawn: Vec<f64> = (0..DRAWS)
        .filter_map(|_| {
            let chosen: Vec<usize> = (0..turns).map(|_| random.below(turns)).collect();
            figure(&chosen)
        })
        .collect();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a small whole number")]
    let tail = (DRAWS as f64 * TAIL) as usize;
    if DRAWS - drawn.len() > tail {
        return None;
    }
    drawn.sort_by(f64::total_cmp);
    Some([*drawn.get(tail)?, *drawn.get(drawn.len().checked_sub(tail + 1)?)?])
}

/// The same numbers each time (xorshift64): a figure and its interval do not change by being looked at again.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(values: &[f64], turns: &[usize]) -> f64 {
        turns.iter().map(|&turn| values[turn]).sum::<f64>() / turns.len() as f64
    }

    fn verdict(values: &[f64], limit: f64) -> Verdict {
        Goal::of("mean".into(), limit, values.len(), |turns| Some(mean(values, turns))).verdict
    }

    #[test]
    fn goal_is_judged_only_where_the_whole_interval_agrees() {
        let values = [0.9, 1.0, 1.1, 0.95, 1.05, 1.0];

        assert_eq!(verdict(&values, 1.5), Verdict::Met);
        assert_eq!(verdict(&values, 0.5), Verdict::Missed);
        assert_eq!(verdict(&values, 1.0), Verdict::NotMeasured);
    }

    #[test]
    fn noise_larger_than_the_effect_is_not_measured() {
        // what a busy machine gave once: an added cost below zero
        let (ours, none) = ([10.0, 30.0, 12.0, 29.0, 11.0], [40.0, 11.0, 35.0, 12.0, 39.0]);
        let rival = [50.0, 20.0, 38.0, 21.0, 45.0];

        let goal = Goal::of("ratio".into(), 0.5, 5, |turns| {
            let base = mean(&none, turns);
            ratio_of_added(mean(&ours, turns) - base, mean(&rival, turns) - base)
        });

        assert_eq!((goal.value, goal.verdict), (None, Verdict::NotMeasured));
        assert_eq!(goal.row(), "| ratio | 0.50 | – | – | not measured |");
    }

    #[test]
    fn few_turns_say_nothing() {
        assert_eq!(verdict(&[0.1; 4], 1.0), Verdict::NotMeasured);
        assert_eq!(verdict(&[0.1; 5], 1.0), Verdict::Met);
    }

    #[test]
    fn interval_holds_the_mean_and_not_the_outliers() {
        let values: Vec<f64> = (0..40).map(f64::from).collect();

        let [low, high] = interval(40, |turns| Some(mean(&values, turns))).unwrap();

        // 1.96 standard errors of the mean of 0 to 39 are 3.6
        assert!((14.5..17.5).contains(&low) && (21.5..24.5).contains(&high), "{low} {high}");
    }
}
