//! Shows: A description of 20,000 layers, streams, event types or processes is checked, listed and reported on in seconds.
#![allow(missing_docs, clippy::unwrap_used)] // A test binary: nothing to document, may panic.

use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::time::Duration;
use strata_recording::manifest::{Layer, Manifest};
use strata_recording::reader::Trace;
use strata_recording::test_trace::{Field, TestTrace};
use tempfile::TempDir;
use trace_merge::check::{self, CheckOptions};
use trace_merge::events::{self, EventsOptions};
use trace_merge::report::{self, ReportOptions, registry};
use uuid::Uuid;

const MANY: u32 = 20_000;
/// What is quadratic in [`MANY`] takes a minute or more, also where nothing is optimised; what is linear takes seconds.
const LIMIT: Duration = Duration::from_secs(20);

/// A recording with one of each, whose description `change` makes larger.
fn recording(change: impl Fn(&mut Manifest)) -> TempDir {
    let vcpu = [("common_pid", Field::Number(100)), ("vcpu_id", Field::Number(0))];
    let trace = TestTrace::new().host(0, 1100, "kvm:kvm_entry", &vcpu).host(0, 1900, "kvm:kvm_exit", &vcpu);
    let (dir, trace) = trace.guest(0, 1200, "sched:x", &vcpu).user(42, 0, 1300, "app:tick", &vcpu).open();
    let mut manifest = trace.manifest().clone();
    change(&mut manifest);
    manifest.save(dir.path()).unwrap();
    dir
}

/// What all tools take for it of a processor.
fn time_of(dir: &TempDir) -> Duration {
    let now = || Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap();
    let begun = now();
    let out = &mut io::sink();
    events::list(&Trace::open(dir.path()).unwrap(), &EventsOptions::default(), out).unwrap();
    check::run(dir.path(), &CheckOptions::default(), out).unwrap();
    report::run(dir.path(), &ReportOptions::default(), out, |trace, window| registry::all(trace, window, None))
        .unwrap();
    now() - begun
}

/// `layer` once more, as process `number`'s.
fn of_process(layer: &Layer, number: u32) -> Layer {
    let pid = 100 + number;
    let process = layer.process.clone().map(|process| strata_recording::manifest::Process { pid, ..process });
    let uuid = Uuid::from_u128(u128::from(pid));
    Layer { path: format!("vm0/guest-user/{pid}"), process, uuid, ..layer.clone() }
}

#[test]
fn description_of_many_processes_is_read_in_seconds() {
    let dir = recording(|manifest| {
        let layer = manifest.layers.last().unwrap().clone();
        manifest.layers.extend((0..MANY).map(|number| of_process(&layer, number)));
    });

    let took = time_of(&dir);

    assert!(took < LIMIT, "{took:?}");
}

#[test]
fn description_of_many_streams_is_read_in_seconds() {
    let dir = recording(|manifest| {
        let stream = manifest.layers[0].streams[0].clone();
        let another = |cpu_id| strata_recording::manifest::StreamDescription {
            file: format!("stream_{cpu_id}"),
            cpu_id,
            ..stream.clone()
        };
        manifest.layers[0].streams.extend((1..MANY).map(another));
    });

    let took = time_of(&dir);

    assert!(took < LIMIT, "{took:?}");
}

#[test]
fn description_of_many_event_types_is_read_in_seconds() {
    let dir = recording(|manifest| {
        let event = manifest.layers[0].events[0].clone();
        let another =
            |id: u16| shared_ring::event::EventDescription { id, name: format!("many:{id}"), ..event.clone() };
        manifest.layers[0].events.extend((2..=20_000).map(another));
    });

    let took = time_of(&dir);

    assert!(took < LIMIT, "{took:?}");
}
