//! The explorer of restartable rings: everything that can happen to a thread at each step of its records (a signal
//! handler that records, another thread on its CPU, being moved to another CPU and back), with the consumer in between,
//! and everything ended at each step; on rings small enough to try it all.
//!
//! What runs is the crate's own producer and consumer. A sequence is `publish_by_steps`, which the assembly transcribes
//! (`guest-agent/src/restartable_thread.rs` compares them); the world plays the kernel, which takes the witness away
//! and restarts what it has disturbed.
//!
//! Shows: A restartable ring's thread may be disturbed or killed at any step.
#![allow(unsafe_code, missing_docs, clippy::expect_used, clippy::cast_possible_truncation)] // Tests.

#[path = "../explorer/schedule.rs"]
mod schedule;
mod world;

use shared_ring::Mutant;
use shared_ring::layout::Mode;
use std::panic::{AssertUnwindSafe, catch_unwind};
use world::Activity::{Consume, Handler, Migrate, Record, Snapshot, Thread};
use world::{Scenario, explore};

/// Explores all of `scenario`, which must be at least `schedules` schedules.
fn verify(name: &str, scenario: &Scenario, schedules: u64) {
    let started = std::time::Instant::now();
    let explored = explore(scenario).unwrap_or_else(|violation| panic!("{name}: {violation}"));
    println!("{name}: {explored} schedules in {:.1?}", started.elapsed());
    assert!(explored >= schedules, "only {explored} schedules were explored");
}

/// Nothing was recorded yet.
fn first() -> Scenario {
    Scenario { task: vec![Record(40)], interrupts: vec![Handler(8), Thread(0, 8)], ..Scenario::default() }
}

/// The task's record does not fit any more; a small one still would.
fn switch() -> Scenario {
    Scenario {
        before: vec![Record(40); 2],
        task: vec![Record(40)],
        interrupts: vec![Handler(8), Thread(0, 8)],
        ..Scenario::default()
    }
}

/// There is room for one more small record; the rest is lost unless the consumer comes.
fn full() -> Scenario {
    Scenario {
        before: vec![Record(88), Record(72)],
        task: vec![Record(24), Record(24)],
        interrupts: vec![Handler(8), Thread(0, 8), Consume],
        ..Scenario::default()
    }
}

/// The thread is moved to the other CPU and back, where others record meanwhile.
fn moved() -> Scenario {
    Scenario {
        before: vec![Record(8)],
        task: vec![Record(8), Record(40)],
        interrupts: vec![Migrate, Thread(0, 8), Thread(1, 8)],
        ..Scenario::default()
    }
}

/// Times are a quarter of 2^32 ticks apart: the full time is carried.
fn far_apart() -> Scenario {
    Scenario {
        sub_buffer_size: 512,
        task: vec![Record(8); 5],
        interrupts: vec![Handler(8), Migrate],
        most_interrupts: 2,
        tick: 1 << 30,
        ..Scenario::default()
    }
}

/// Records that no sub-buffer can hold.
fn too_large() -> Scenario {
    Scenario {
        task: vec![Record(104), Record(40)],
        interrupts: vec![Handler(104), Thread(0, 8)],
        ..Scenario::default()
    }
}

/// The ring is reused while its consumer reads.
fn laps() -> Scenario {
    Scenario {
        before: vec![Record(88), Record(88), Consume, Record(88)],
        task: vec![Consume, Record(88), Record(8)],
        interrupts: vec![Thread(0, 88), Handler(8), Consume],
        most_interrupts: 2,
        ..Scenario::default()
    }
}

/// Everything ends at any step, of a ring that was used before.
fn crash() -> Scenario {
    Scenario {
        before: vec![Record(88), Record(88), Consume, Consume, Record(40)],
        task: vec![Record(40), Record(40)],
        interrupts: vec![Handler(24), Thread(0, 24)],
        most_interrupts: 2,
        crashes: true,
        ..Scenario::default()
    }
}

fn recorder() -> Scenario {
    Scenario { mode: Mode::FlightRecorder, ..Scenario::default() }
}

/// A flight recorder comes around while it is read.
fn recorder_laps() -> Scenario {
    Scenario {
        before: vec![Record(88), Record(88), Record(8)],
        task: vec![Record(40), Record(88)],
        interrupts: vec![Thread(0, 88), Handler(8), Snapshot],
        most_interrupts: 2,
        ..recorder()
    }
}

/// The reader's own steps.
fn recorder_snapshot() -> Scenario {
    Scenario {
        before: vec![Record(88), Record(88), Record(40)],
        task: vec![Snapshot, Record(8), Snapshot],
        interrupts: vec![Thread(0, 88), Thread(0, 40)],
        most_interrupts: 2,
        ..recorder()
    }
}

/// Everything ends at any step of a flight recorder.
fn recorder_crash() -> Scenario {
    Scenario {
        before: vec![Record(88); 3],
        task: vec![Record(88)],
        interrupts: vec![Handler(24), Thread(0, 88)],
        most_interrupts: 2,
        crashes: true,
        ..recorder()
    }
}

#[test]
fn first_records_of_a_ring_are_disturbed() {
    verify("first", &first(), 10_000);
}

#[test]
fn records_that_switch_sub_buffers_are_disturbed() {
    verify("switch", &switch(), 10_000);
}

#[test]
fn records_that_are_lost_are_disturbed() {
    verify("full", &full(), 10_000);
}

#[test]
fn threads_are_moved_and_come_back() {
    verify("moved", &moved(), 10_000);
}

#[test]
fn times_far_apart_are_kept_whole() {
    verify("far apart", &far_apart(), 1_000);
}

#[test]
fn records_that_are_too_large_are_disturbed() {
    verify("too large", &too_large(), 1_000);
}

#[test]
fn consumer_reads_what_is_reused() {
    verify("laps", &laps(), 10_000);
}

#[test]
fn crash_at_any_step_leaves_what_was_recorded_and_nothing_else() {
    verify("crash", &crash(), 1_000);
}

#[test]
fn flight_recorder_comes_around() {
    verify("recorder laps", &recorder_laps(), 10_000);
}

#[test]
fn flight_recorder_is_read_while_it_is_written() {
    verify("recorder snapshot", &recorder_snapshot(), 1_000);
}

#[test]
fn crash_of_a_flight_recorder_at_any_step() {
    verify("recorder crash", &recorder_crash(), 1_000);
}

#[test]
fn every_mutant_is_killed_by_its_scenario() {
    let killers = [
        (Mutant::WitnessNotRequested, first()),
        (Mutant::PositionBeforeWords, crash()),
        (Mutant::CpuBeforeBegin, moved()),
        (Mutant::LossUnwitnessed, full()),
        (Mutant::LossLeavesOpen, full()),
        (Mutant::NoFullTest, full()),
        (Mutant::PositionNotRechecked, recorder_snapshot()),
    ];

    let survivors: Vec<_> = killers
        .into_iter()
        .filter(|(mutant, scenario)| {
            let outcome = mutant.run(|| catch_unwind(AssertUnwindSafe(|| explore(scenario))));
            println!("{mutant:?}: {outcome:?}");
            matches!(outcome, Ok(Ok(_)))
        })
        .map(|(mutant, _)| mutant)
        .collect();

    assert_eq!(survivors, []);
}
