//! Whether two samples differ, by how much, and how sure that is.
//!
//! What a tracer records is not independent: an interrupt brings a burst of exits, one slow request holds up those
//! behind it. Each value here therefore stands for a part of a recording and not for one event, as in the method of
//! batch means (B. Schmeiser, "Batch size effects in the analysis of simulation output", Operations Research 30, 1982:
//! 10 to 30 batches), so that what varies within a recording counts as chance. Nothing is assumed of how values are
//! distributed: the test is the rank-sum test of F. Wilcoxon (1945) and H. B. Mann and D. R. Whitney (1947), the
//! difference and its interval are those of J. L. Hodges and E. L. Lehmann that belong to it (M. Hollander, D. A. Wolfe
//! and E. Chicken, "Nonparametric Statistical Methods", 3rd edition, 4.1 to 4.3, for large samples and with ties).

/// Fewest values on each side: below, the test's normal approximation is not one.
pub(super) const FEWEST: usize = 8;
/// Quantile of the normal distribution for an interval of 99 %.
const QUANTILE_99: f64 = 2.575_829_303_548_901;

/// How two samples differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Comparison {
    /// By how much the second one is larger: the median of all differences between a value of it and one of the first.
    pub(super) difference: f64,
    /// Where that lies with a probability of 99 %.
    pub(super) interval: (f64, f64),
    /// How probable a difference of ranks of at least this size is when there is none.
    pub(super) by_chance: f64,
}

/// Compares `first` with `second`; `None` when either is too small.
pub(super) fn compare(first: &[f64], second: &[f64]) -> Option<Comparison> {
    if first.len() < FEWEST || second.len() < FEWEST {
        return None;
    }
    let (ranks, ties) = ranks(first, second);
    let (of_first, of_second) = ranks.split_at_checked(first.len())?;
    let [n, m] = [first.len(), second.len()].map(as_f64);
    let all = n + m;
    let independent = n * m / 12.0 * (all + 1.0 - ties / (all * (all - 1.0)));
    let deviation = (independent * inflation(of_first, of_second)).sqrt();
    let larger = of_second.iter().sum::<f64>() - m * (m + 1.0) / 2.0;
    let off = ((larger - n * m / 2.0).abs() - 0.5).max(0.0);
    let by_chance = if deviation > 0.0 { libm::erfc(off / deviation / std::f64::consts::SQRT_2) } else { 1.0 };
    let mut differences: Vec<f64> = second.iter().flat_map(|b| first.iter().map(move |a| b - a)).collect();
    differences.sort_unstable_by(f64::total_cmp);
    let below = (n * m / 2.0 - QUANTILE_99 * deviation).floor().max(0.0);
    // Of the sorted differences the one of this rank, from either end.
    let outside = (1..differences.len()).take_while(|&rank| as_f64(rank) < below).count();
    let low = differences.get(outside).copied()?;
    let high = differences.get(differences.len().checked_sub(outside + 1)?).copied()?;
    Some(Comparison { difference: median(&differences), interval: (low, high), by_chance })
}

/// The ranks of both samples together, those of the first one first: of equal values the mean of theirs. And the sum of
/// t³ - t over groups of t equal values.
fn ranks(first: &[f64], second: &[f64]) -> (Vec<f64>, f64) {
    let values: Vec<f64> = first.iter().chain(second).copied().collect();
    let mut order: Vec<usize> = (0..values.len()).collect();
    let at = |place: usize| values.get(place).copied().unwrap_or_default();
    order.sort_unstable_by(|&a, &b| at(a).total_cmp(&at(b)));
    let (mut ranks, mut ties, mut before) = (vec![0.0; values.len()], 0.0, 0.0);
    for equal in order.chunk_by(|&a, &b| at(a) == at(b)) {
        let count = as_f64(equal.len());
        for &place in equal {
            if let Some(rank) = ranks.get_mut(place) {
                *rank = before + (count + 1.0) / 2.0;
            }
        }
        before += count;
        ties += count.powi(3) - count;
    }
    (ranks, ties)
}

/// How many times as large the variance is because a part is like the one before it: `(1 + r) / (1 - r)` for a
/// correlation of `r` between neighbours (F. W. Zwiers and H. von Storch, "Taking serial correlation into account in
/// tests of the mean", Journal of Climate 8, 1995); 1 where neighbours differ more than others.
fn inflation(first: &[f64], second: &[f64]) -> f64 {
    let (of_first, of_second) = (neighbours(first), neighbours(second));
    let (n, m) = (as_f64(first.len()), as_f64(second.len()));
    let correlation = ((of_first * n + of_second * m) / (n + m)).clamp(0.0, 0.9);
    (1.0 + correlation) / (1.0 - correlation)
}

/// The correlation between neighbours, without the bias of short samples (F. H. C. Marriott and J. A. Pope, "Bias in
/// the estimation of autocorrelations", Biometrika 41, 1954).
fn neighbours(values: &[f64]) -> f64 {
    let count = as_f64(values.len());
    let mean = values.iter().sum::<f64>() / count;
    let variance: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let product: f64 = values.windows(2).map(|pair| pair.iter().map(|value| value - mean).product::<f64>()).sum();
    if variance > 0.0 { (product / variance + 1.0 / count) / (1.0 - 4.0 / count) } else { 0.0 }
}

/// The median of sorted values; 0 of none.
pub(super) fn median(sorted: &[f64]) -> f64 {
    let at = |place: usize| sorted.get(place).copied().unwrap_or_default();
    f64::midpoint(at(sorted.len().saturating_sub(1) / 2), at(sorted.len() / 2))
}

/// For each of the probabilities of many tests the least share of wrong ones among those that are at least as sure as
/// it (Y. Benjamini and Y. Hochberg, "Controlling the false discovery rate", Journal of the Royal Statistical Society B
/// 57, 1995). Where nothing differs at all, it is the probability that any test reports a difference.
pub(super) fn shares_of_wrong(probabilities: &[f64]) -> Vec<f64> {
    let all = as_f64(probabilities.len());
    let at = |place: usize| probabilities.get(place).copied().unwrap_or(1.0);
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    order.sort_unstable_by(|&a, &b| at(b).total_cmp(&at(a)));
    let (mut shares, mut least) = (vec![1.0; probabilities.len()], 1.0_f64);
    for (from_last, &place) in order.iter().enumerate() {
        least = least.min(at(place) * all / (all - as_f64(from_last)));
        if let Some(share) = shares.get_mut(place) {
            *share = least;
        }
    }
    shares
}

/// A small number as a float.
fn as_f64(number: usize) -> f64 {
    u32::try_from(number).map_or(f64::MAX, f64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers between 0 and 1 without order.
    fn numbers(seed: u64) -> impl Iterator<Item = f64> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        std::iter::repeat_with(move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            f64::from(u32::try_from(state >> 32).unwrap()) / f64::from(u32::MAX)
        })
    }

    /// Values that are each `correlation` of the one before.
    fn correlated(seed: u64, correlation: f64) -> Vec<f64> {
        let mut last = 0.0;
        let next = numbers(seed).map(|chance| {
            last = last * correlation + chance;
            last
        });
        next.skip(50).take(20).collect()
    }

    #[test]
    fn result_is_that_of_the_textbook() {
        // Hollander, Wolfe and Chicken, example 4.1 (water transfer through a membrane), has n = 10 and m = 5; to meet
        // the least size, each value is here twice. Ranks were summed by hand.
        let first = [0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46].repeat(2);
        let second = [1.15, 0.88, 0.90, 0.74, 1.21].repeat(2);

        let Comparison { difference, by_chance, .. } = compare(&first, &second).unwrap();

        // Their estimate is that the first are larger by 0.305.
        assert!((difference + 0.305).abs() < 0.001, "{difference}");
        assert!((0.05..0.2).contains(&by_chance), "{by_chance}");
    }

    #[test]
    fn equal_values_are_no_difference() {
        let equal = compare(&[3.0; 20], &[3.0; 20]).unwrap();

        assert_eq!(equal, Comparison { difference: 0.0, interval: (0.0, 0.0), by_chance: 1.0 });
    }

    #[test]
    fn shift_is_found_within_its_interval_and_is_no_chance() {
        let (first, second) = (correlated(1, 0.0), correlated(2, 0.0));
        let second: Vec<f64> = second.iter().map(|value| value + 2.0).collect();

        let Comparison { difference, interval, by_chance } = compare(&first, &second).unwrap();

        assert!(interval.0 < 2.0 && interval.1 > 2.0 && interval.0 <= difference, "{difference} {interval:?}");
        assert!(by_chance < 1e-4, "{by_chance}");
    }

    /// How often of 4000 times samples that do not differ are reported to, at a hundredth.
    fn false_findings(correlation: f64) -> usize {
        let differs = |seed: &u64| {
            let (first, second) = (correlated(2 * seed, correlation), correlated(2 * seed + 1, correlation));
            compare(&first, &second).unwrap().by_chance <= 0.01
        };
        (1..=4000_u64).filter(differs).count()
    }

    #[test]
    fn as_many_as_promised_are_wrong_also_where_parts_are_like_their_neighbours() {
        // 40 are promised.
        assert!(false_findings(0.0) <= 60, "{}", false_findings(0.0));
        assert!(false_findings(0.4) <= 80, "{}", false_findings(0.4));
    }

    #[test]
    fn shares_of_wrong_ones_are_those_of_the_paper() {
        // Their example of 15 tests: the first four differ at 5 %.
        let probabilities = [
            0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719, 0.6528,
            0.7590, 1.0,
        ];

        let shares = shares_of_wrong(&probabilities);

        assert_eq!(shares.iter().filter(|&&share| share <= 0.05).count(), 4);
        assert!((shares[3] - 0.0095 * 15.0 / 4.0).abs() < 1e-12 && (shares[14] - 1.0).abs() < 1e-12);
    }

    #[test]
    fn too_few_values_are_not_compared() {
        assert_eq!(compare(&[1.0; 7], &[1.0; 20]), None);
    }
}
