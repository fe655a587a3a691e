//! The trace clock in a world whose true time is known: virtual CPUs that read it, a monitor that keeps it, and a
//! schedule, drawn from a seed, that interrupts either at any step. In every reading the error must lie within the
//! bound that was reported, and time must never run back on a vCPU.
//!
//! `cargo test -p clock-sync --test simulator -- --nocapture table` prints the worst error and the bound of each
//! scenario.
//!
//! Shows: A vCPU's time never runs back; errors keep their bounds, in the scenarios of docs/clock.md.
#![allow(clippy::unwrap_used, reason = "a test: what does not fit is a mistake of the scenario")]

mod counter;
mod machine;
mod scenario;

use machine::{Protocol, Verdict, run};
use proptest::prelude::*;
use scenario::{SCENARIOS, Scenario};

/// Random schedules of each scenario that the table is made from.
const SCHEDULES: u64 = 6;

fn worst_of(scenario: &Scenario, schedules: u64) -> Verdict {
    (0..schedules).map(|seed| run(scenario, Protocol::Numbered, seed)).fold(Verdict::default(), Verdict::plus)
}

#[test]
fn table_of_worst_errors_and_bounds() {
    let rows: Vec<_> = SCENARIOS.iter().map(|scenario| (scenario, worst_of(scenario, SCHEDULES))).collect();

    println!("| scenario | readings | epochs | worst error, ns | bound then, ns | largest bound, ns |");
    println!("|---|---:|---:|---:|---:|---:|");
    for (scenario, verdict) in &rows {
        let Verdict { readings, epochs, worst_error, bound_of_worst, largest_bound, .. } = verdict;
        let name = scenario.name;
        println!("| {name} | {readings} | {epochs} | {worst_error} | {bound_of_worst} | {largest_bound} |");
    }
    for (scenario, verdict) in &rows {
        assert_eq!((verdict.outside_bound, verdict.ran_back), (0, 0), "{}: {verdict:?}", scenario.name);
        assert!(verdict.readings > 1_000 && verdict.epochs > 100, "{}: {verdict:?}", scenario.name);
    }
}

#[test]
fn bounds_are_not_idle() {
    // A bound that no schedule comes near to would prove nothing.
    for scenario in SCENARIOS.iter().filter(|scenario| scenario.name != "64-bit TSC with an offset") {
        let verdict = worst_of(scenario, 4);
        assert!(verdict.worst_error * 8 >= verdict.bound_of_worst, "{}: {verdict:?}", scenario.name);
    }
}

#[test]
fn two_slots_without_a_number_are_read_torn() {
    let bare: Verdict = (0..SCHEDULES)
        .map(|seed| run(&Scenario::renewed_often(), Protocol::TwoBareSlots, seed))
        .fold(Verdict::default(), Verdict::plus);
    let numbered = worst_of(&Scenario::renewed_often(), SCHEDULES);

    assert!(bare.outside_bound > 0 && bare.ran_back > 0, "{bare:?}");
    assert_eq!((numbered.outside_bound, numbered.ran_back), (0, 0), "{numbered:?}");
    assert!(numbered.retries > 0, "{numbered:?}");
}

#[test]
fn one_seed_gives_one_schedule() {
    let once = run(&SCENARIOS[1], Protocol::Numbered, 7);

    assert_eq!(once, run(&SCENARIOS[1], Protocol::Numbered, 7));
    assert_ne!(once, run(&SCENARIOS[1], Protocol::Numbered, 8));
}

#[test]
fn epochs_bound_holds_between_its_ends_too() {
    // A reading whose bound, by rounding, was a tick more than that of its whole epoch.
    let everything = SCENARIOS.last().unwrap();

    let verdict = run(everything, Protocol::Numbered, 407_742_497_736_981_249);

    assert_eq!((verdict.outside_bound, verdict.ran_back), (0, 0), "{verdict:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn error_is_within_the_bound_and_time_never_runs_back(which in 0..SCENARIOS.len(), seed in any::<u64>()) {
        let verdict = run(&SCENARIOS[which], Protocol::Numbered, seed);
        prop_assert_eq!((verdict.outside_bound, verdict.ran_back), (0, 0), "{}: {:?}", SCENARIOS[which].name, verdict);
    }
}
