//! Triggers: what fires, once for each record, and what then happens.

use super::*;
use strata_recording::text::terminal::foreign::Foreign;

#[test]
fn trigger_takes_a_snapshot_and_one_that_nothing_meets_takes_none() {
    let bench = Bench::watched(&["event:guest:sched:test number=7", "event:guest:sched:test number=30"]);

    // Of a sub-buffer that is being written: nobody has closed it.
    bench.record(0, Mode::FlightRecorder, 10);
    let triggers = bench.triggers(|triggers| !triggers[0].snapshots.is_empty());

    assert_eq!((triggers[0].fired, triggers[1].fired, triggers[1].snapshots.len()), (1, 0, 0));
    assert_eq!(triggers[0].snapshots, vec![Foreign::from(bench.path("trace-snapshots/trigger-1"))]);
    assert_eq!(bench.records("trace-snapshots/trigger-1", LayerKind::GuestKernel), 10);
    let outcome = Trace::open(&bench.path("trace-snapshots/trigger-1")).unwrap().manifest().outcome.clone().unwrap();
    assert!(outcome.contains("by trigger 'event:guest:sched:test number=7': sched:test in guest-kernel"), "{outcome}");
}

#[test]
fn each_record_is_judged_once_though_the_rings_are_overwritten_and_snapshots_are_taken() {
    let bench = Bench::watched(&["event:guest:sched:test number=7", "exit>1ns"]);
    let fired = |expected| bench.triggers(|triggers| triggers[0].fired >= expected).remove(0).fired;

    let seen: Vec<u64> = (1..=5)
        .map(|round| {
            bench.record(0, Mode::FlightRecorder, 300);
            bench.snapshot(&format!("snapshot{round}"));
            fired(round)
        })
        .collect();

    assert_eq!(seen, [1, 2, 3, 4, 5]);
    // From the first exit to the second entry, and so on.
    assert_eq!(bench.triggers(|triggers| triggers[1].fired >= 4)[1].fired, 4);
}

#[test]
fn trigger_in_discard_mode_is_marked_in_the_trace_and_takes_no_snapshot() {
    let bench =
        Bench::watched_in(Mode::Discard, &["event:guest:sched:test number=7", "event:guest:sched:test number=30"]);

    // Of a sub-buffer that is being written: nobody has closed it.
    bench.record(0, Mode::Discard, 10);
    let triggers = bench.triggers(|triggers| triggers[0].marks > 0);
    let (trace, snapshot) = (bench.path("trace"), bench.path("trace-snapshots/trigger-1"));
    bench.recorder.finish("the test ended".into()).unwrap();

    let marks = |status: &TriggerStatus| (status.fired, status.marks, status.snapshots.len(), status.due);
    assert_eq!((marks(&triggers[0]), marks(&triggers[1])), ((1, 1, 0, false), (0, 0, 0, false)));
    assert!(!snapshot.exists());
    assert_eq!(marks_in(&trace), ["trigger_1"]);
}

/// What the marks of the VMM in the recording `dir` say.
fn marks_in(dir: &Path) -> Vec<String> {
    let trace = Trace::open(dir).unwrap();
    let vmm = trace.layers_of(LayerKind::Vmm).next().unwrap();
    let records = vmm.streams.iter().flat_map(|stream| vmm.records(stream));
    let marks = records.filter(|record| record.schema.name() == "vmm:control");
    marks.map(|record| record.text("what").unwrap().into_owned()).collect()
}

/// A recorder that learns of the end right behind the guest's last records; the marks in its recording, and its end.
fn ended_at_once(mode: Mode) -> (Vec<String>, String) {
    let triggers = ["event:guest:sched:test number=7", "exit>1ns", "event:guest:sched:test number=30"];
    let bench = Bench::watched_with(mode, &triggers, Duration::from_secs(3600));

    bench.record(0, mode, 10);
    bench.record(0, mode, 10);
    let trace = bench.path("trace");
    let manifest = bench.recorder.finish("the test ended".into()).unwrap();

    let mut marks = marks_in(&trace);
    marks.sort();
    assert!(!bench.dir.path().join("trace-snapshots/trigger-1").exists());
    (marks, manifest.outcome.unwrap())
}

#[test]
fn trigger_that_is_met_right_before_the_end_is_marked() {
    let (marks, outcome) = ended_at_once(Mode::Discard);

    assert_eq!((marks, outcome.as_str()), (vec!["trigger_1".into(), "trigger_2".into()], "the test ended"));
}

#[test]
fn flight_recorder_says_with_its_end_which_trigger_was_met_right_before() {
    let (marks, outcome) = ended_at_once(Mode::FlightRecorder);

    assert_eq!(marks, ["trigger_1", "trigger_2"]);
    assert!(outcome.starts_with("the test ended; trigger 'event:guest:sched:test number=7': sched:test"), "{outcome}");
}

#[test]
fn each_record_is_judged_once_while_it_is_drained() {
    let bench = Bench::watched_in(Mode::Discard, &["event:guest:sched:test number=7", "exit>1ns"]);
    let fired = |expected| bench.triggers(|triggers| triggers[0].fired >= expected).remove(0).fired;

    let seen: Vec<u64> = (1..=5)
        .map(|round| {
            bench.record(0, Mode::Discard, 300);
            bench.flush(0);
            fired(round)
        })
        .collect();

    assert_eq!(seen, [1, 2, 3, 4, 5]);
    // From the first exit to the second entry, and so on.
    assert!(bench.triggers(|triggers| triggers[1].fired >= 4)[1].fired >= 4);
    assert!(bench.records("trace", LayerKind::GuestKernel) >= 5 * 200);
}

/// How often triggers on an event of applications fire: of a process that records it and one that records another, and
/// again of one that ends at once.
fn fired_by_applications(mode: Mode) -> Vec<u64> {
    let bench = Bench::watched_in(mode, &["event:user:app:late number>6", "event:user:app:late number>7"]);
    bench.process(mode, 1, "app:other");
    bench.end_process(1);
    bench.process(mode, 2, "app:late");
    bench.triggers(|triggers| triggers[0].fired == 1);
    bench.end_process(2);
    bench.process(mode, 3, "app:late");
    bench.end_process(3);
    bench.triggers(|triggers| triggers[0].fired == 2).iter().map(|trigger| trigger.fired).collect()
}

#[test]
fn record_of_an_application_fires_a_trigger_while_it_is_written() {
    assert_eq!(fired_by_applications(Mode::Discard), [2, 0]);
}

#[test]
fn record_of_an_application_fires_the_trigger_of_a_flight_recorder() {
    assert_eq!(fired_by_applications(Mode::FlightRecorder), [2, 0]);
}

#[test]
fn trigger_that_is_armed_while_the_vm_runs_fires_for_what_follows_only() {
    let bench = Bench::new(Mode::FlightRecorder);
    bench.record(0, Mode::FlightRecorder, 10);

    let armed = [bench.arm("event:guest:sched:test number=7"), bench.arm("event:guest:sched:test number=30")];
    bench.record(0, Mode::FlightRecorder, 9);
    let triggers = bench.triggers(|triggers| !triggers[0].snapshots.is_empty());
    let removed = bench.disarm("1");
    bench.record(0, Mode::FlightRecorder, 31);
    let left = bench.triggers(|triggers| !triggers[0].snapshots.is_empty());

    assert_eq!(armed[0], "trigger 1 is armed: event:guest:sched:test number=7");
    assert_eq!((triggers[0].fired, triggers[1].fired), (1, 0));
    assert_eq!(removed, "trigger event:guest:sched:test number=7 is removed");
    assert_eq!((left.len(), left[0].number, left[0].fired), (1, 2, 1));
}

#[test]
fn trigger_that_cannot_be_armed_is_refused_and_the_vm_goes_on() {
    let bench = Bench::new(Mode::FlightRecorder);
    bench.greet();
    bench.arm("event:guest:sched:test number=7");

    let printed = [
        bench.arm("stael>1ms"),
        bench.arm("event:vmm:vmm:contrl"),
        bench.arm("event:vmm:vmm:control wath=x"),
        bench.arm("event:guest:sched:tset"),
        bench.arm("event:guest:sched:test number=7"),
        bench.arm("steal>1ms"),
        bench.arm("host-load>80%"),
        bench.disarm("event:guest:sched:none"),
    ];
    bench.record(0, Mode::FlightRecorder, 9);

    let expected = [
        "nearest: steal",
        "nearest: vmm:control",
        "nearest: what",
        "nearest: sched:test",
        "armed already",
        "needs the layer host-kernel",
        "/proc/pressure/cpu",
        "armed are 1 (event:guest:sched:test number=7)",
    ];
    for (printed, expected) in printed.iter().zip(expected) {
        assert!(printed.contains(expected) && !printed.contains('\n'), "{printed}: {expected}");
    }
    assert_eq!(bench.triggers(|triggers| triggers[0].fired > 0).len(), 1);
}
