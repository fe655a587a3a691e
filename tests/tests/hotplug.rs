//! CPUs that go and come, modules that are loaded and unloaded, and events that are chosen anew, all at once: none of them
//! may wait for another for ever. One of the modules has tracepoints with the names of others; and an agent that was built for
//! another release is refused. The same for longer: `cargo xtask lab hotplug --cycles 200`.
//!
//! Shows: CPUs, modules and events may change at once; other releases' agents are refused.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::paths::Paths;
use lab::provision;
use lab::scenarios::hotplug;
use std::fs;
use strata_analysis::event::name::RECORDING_STOPS;
use strata_recording::layer::LayerKind;
use strata_recording::reader::{StreamRecord, Trace};

#[test]
fn guest_goes_on_while_cpus_modules_and_events_change() {
    let lab = provision::lab(&Paths::of_workspace()).unwrap();
    let folder = hotplug::run(&lab, "hotplug", hotplug::CYCLES).unwrap().output;
    let text = |name: &str| String::from_utf8_lossy(&fs::read(folder.join(name)).unwrap_or_default()).into_owned();

    let console = text("hotplug.log");

    assert_eq!(text("hotplug.status").trim(), "0", "{console}\n{}", text("control.log"));
    let last = format!("cycle {}", hotplug::CYCLES);
    let missing: Vec<_> = [last.as_str(), "workload done", hotplug::CLEAN]
        .into_iter()
        .filter(|wanted| !console.contains(wanted))
        .collect();
    assert!(missing.is_empty(), "{missing:?} is missing in\n{console}");
    assert!(!console.contains("a module of another release was loaded"), "{console}");
    assert!(text("control.log").contains("session main records all"), "{}", text("control.log"));
    let trace = Trace::open(&folder.join("hotplug.trace")).unwrap();
    let layer = trace.layers_of(LayerKind::GuestKernel).next().unwrap();
    // Each CPU says that it stops when the agent is unloaded, and so did the one that went offline.
    let last = |stream| layer.records(stream).last().map(|record| (record.schema.name(), record.number("offline")));
    let ends: Vec<_> = layer.streams.iter().map(last).collect();
    assert_eq!(ends, [Some((RECORDING_STOPS, Some(0))); 2], "{:?}", layer.description.streams);
    let offline = |record: &StreamRecord<'_>| record.schema.stops_recording() && record.number("offline") == Some(1);
    let stops = layer.records(&layer.streams[1]).filter(offline).count();
    assert!(stops > 0, "{:?}", layer.description.streams);
    let streams = &layer.description.streams;
    assert!(streams.iter().all(|stream| stream.nested.is_some() && !stream.never_joined), "{streams:?}");
}
