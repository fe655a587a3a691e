//! The interrupt-nesting explorer: every way in which contexts of one CPU can interrupt each other while they record,
//! with the consumer in between, on rings small enough to try them all.
//!
//! A record of *n* payload bytes takes *n* + 8 bytes of its sub-buffer, whose first 128 bytes are the packet header.
//!
//! Shows: Contexts of one CPU may interrupt each other anywhere (explorer).
#![allow(unsafe_code, missing_docs, clippy::expect_used, clippy::cast_possible_truncation)] // Tests.

mod mutants;
mod oracle;
mod scenarios;
mod schedule;
mod world;

use world::{Scenario, explore};

/// Explores all of `scenario`, which must be at least `schedules` schedules.
fn verify(name: &str, scenario: &Scenario, schedules: u64) {
    let started = std::time::Instant::now();
    let explored = explore(scenario).unwrap_or_else(|violation| panic!("{name}: {violation}"));
    println!("{name}: {explored:?} in {:.1?}", started.elapsed());
    assert!(explored.schedules >= schedules, "only {} schedules were explored", explored.schedules);
}

#[test]
fn records_nest_into_the_first_record_of_a_ring() {
    verify("first", &scenarios::first(), 10_000);
}

#[test]
fn records_nest_into_one_that_switches_sub_buffers() {
    verify("switch", &scenarios::switch(), 100_000);
}

#[test]
fn records_nest_into_one_that_fills_its_sub_buffer_exactly() {
    verify("exact fill", &scenarios::exact_fill(), 50_000);
}

#[test]
fn records_nest_into_one_that_fills_a_sub_buffer_alone() {
    verify("alone", &scenarios::alone(), 100_000);
}

#[test]
fn records_nest_where_the_ring_is_full() {
    verify("full", &scenarios::full(), 10_000);
}

#[test]
fn records_are_lost_behind_what_a_context_is_closing() {
    verify("loss behind", &scenarios::loss_behind(), 10_000);
}

#[test]
fn records_nest_until_they_would_wrap_over_the_interrupted_one() {
    verify("wrap", &scenarios::wrap(), 10_000);
}

#[test]
fn records_that_are_too_large_nest() {
    verify("too large", &scenarios::too_large(), 1_000);
}

#[test]
fn consumer_that_is_far_behind_or_ahead_delivers_everything() {
    verify("laps", &scenarios::laps(), 10_000);
}

#[test]
fn ring_of_four_sub_buffers() {
    verify("four", &scenarios::four(), 100_000);
}

#[test]
fn record_that_interrupts_the_consumer_is_delivered_or_counted() {
    verify("consumer interrupted", &scenarios::consumer_interrupted(), 10_000);
}

#[test]
fn times_far_apart_are_kept_whole() {
    verify("far apart", &scenarios::far_apart(), 1_000);
}

#[test]
fn record_that_is_given_up_takes_nothing_with_it() {
    verify("discard", &scenarios::discard(), 1_000);
}

#[test]
fn record_with_a_full_time_is_given_up() {
    verify("discard far apart", &scenarios::discard_far_apart(), 50);
}

#[test]
fn crash_around_a_record_that_is_given_up() {
    verify("discard crash", &scenarios::discard_crash(), 500);
}

#[test]
fn flight_recorder_gives_up_records() {
    verify("recorder discard", &scenarios::recorder_discard(), 1_000);
}

#[test]
fn crash_at_any_step_leaves_everything_before_the_first_hole_readable() {
    verify("crash", &scenarios::crash(), 500);
}

#[test]
fn consumer_believes_only_what_it_validated() {
    verify("hostile", &scenarios::hostile(), 500);
}

#[test]
fn crash_of_a_reused_ring_shows_no_old_records() {
    verify("crash of a reused ring", &scenarios::crash_reused(), 500);
}

#[test]
fn flight_recorder_begins() {
    verify("recorder first", &scenarios::recorder_first(), 1_000);
}

#[test]
fn flight_recorder_laps_under_nesting_and_a_consumer() {
    verify("recorder laps", &scenarios::recorder_laps(), 1_000);
}

#[test]
fn flight_recorder_records_into_what_its_opener_has_not_entered() {
    verify("recorder entered", &scenarios::recorder_entered(), 1_000);
}

#[test]
fn flight_recorder_switches_under_nesting() {
    verify("recorder switch", &scenarios::recorder_switch(), 1_000);
}

#[test]
fn flight_recorder_writes_between_the_steps_of_its_consumer() {
    verify("recorder consumer interrupted", &scenarios::recorder_consumer_interrupted(), 1_000);
}

#[test]
fn snapshot_of_a_running_flight_recorder() {
    verify("recorder snapshot", &scenarios::recorder_snapshot(), 1_000);
}

#[test]
fn snapshots_between_the_steps_of_records() {
    verify("recorder snapshot nested", &scenarios::recorder_snapshot_nested(), 1_000);
}

#[test]
fn crash_of_a_flight_recorder_at_any_step() {
    verify("recorder crash", &scenarios::recorder_crash(), 1_000);
}

#[test]
fn crash_of_a_flight_recorder_in_records_of_one_size() {
    verify("recorder crash behind hole", &scenarios::recorder_crash_behind_hole(), 1_000);
}

#[test]
fn forced_switch_between_the_steps_of_records() {
    verify("force switch", &scenarios::force_switch(), 1_000);
}

#[test]
fn forced_switch_of_a_flight_recorder() {
    verify("recorder force switch", &scenarios::recorder_force_switch(), 1_000);
}

#[test]
fn flush_request_is_honoured_when_it_claims_to_be() {
    verify("flush request", &scenarios::flush_request(), 1_000);
}

#[test]
fn flight_recorder_of_four_sub_buffers() {
    verify("recorder four", &scenarios::recorder_four(), 10_000);
}

#[test]
fn ring_goes_on_behind_a_record_whose_context_died_at_any_step() {
    verify("repair", &scenarios::repair(), 1_000);
    verify("repair switch", &scenarios::repair_switch(), 1_000);
    verify("repair exact fill", &scenarios::repair_exact_fill(), 1_000);
    verify("repair alone", &scenarios::repair_alone(), 1_000);
}

#[test]
fn ring_goes_on_that_came_around_to_a_record_whose_context_died() {
    verify("repair late", &scenarios::repair_late(), 1_000);
}

#[test]
fn flight_recorder_goes_on_behind_a_record_whose_context_died_at_any_step() {
    verify("recorder repair", &scenarios::recorder_repair(), 1_000);
    verify("recorder repair switch", &scenarios::recorder_repair_switch(), 1_000);
    verify("recorder repair exact fill", &scenarios::recorder_repair_exact_fill(), 1_000);
}

#[test]
fn flight_recorder_goes_on_that_came_around_to_a_record_whose_context_died() {
    verify("recorder repair late", &scenarios::recorder_repair_late(), 1_000);
    verify("recorder repair four", &scenarios::recorder_repair_four(), 1_000);
}

#[test]
fn context_dies_between_the_steps_of_the_consumer() {
    verify("recorder repair beside consumer", &scenarios::recorder_repair_beside_consumer(), 1_000);
}
