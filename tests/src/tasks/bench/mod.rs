//! Benchmarks that `cargo xtask bench` runs.

pub mod clock;
pub mod export;
mod goal;
pub mod guest;
pub mod host;
pub mod idle;
pub mod machine;
pub mod merge;
pub mod ring;
pub mod usage;
pub mod why;

/// The `quarters` quarter of `values`; 0 when there are none.
fn quantile(values: &mut [f64], quarters: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get((values.len().saturating_sub(1) * quarters + 2) / 4).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_of_the_sorted_values() {
        let mut values = [5.0, 1.0, 4.0, 2.0, 3.0];

        assert_eq!([1, 2, 3].map(|quarters| quantile(&mut values, quarters)), [2.0, 3.0, 4.0]);
        assert!(quantile(&mut [], 2).abs() < f64::EPSILON);
    }
}
