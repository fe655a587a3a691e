//! The agent has no tick: an idle guest wakes up as often with it as without, whether there is a session or not, and what the
//! host asks for is done all the same.
//!
//! Shows: An idle guest wakes up as often with the agent as without; sessions and flushes reach idle CPUs.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::paths::Paths;
use lab::provision;
use lab::scenarios::idle::{self, SECONDS, STATES};
use std::fs;
use strata_recording::layer::LayerKind;
use strata_recording::reader::Trace;

/// Interrupts of a CPU's own: its timer, other CPUs that wake it or have it do something, work of its own.
const WAKE_UPS: [&str; 4] = ["LOC", "RES", "CAL", "IWI"];
/// By how many wake-ups a second, of both CPUs together, one state may differ from another: a kernel that does nothing
/// still has work that comes once in a while. Without the agent it had 8 a second in one run, and 13 in another. What the
/// agent itself did is counted apart, and is to be none.
const NOISE: u64 = 6;

/// Wake-ups of both CPUs in `state`.
fn wake_ups(console: &str, state: &str) -> u64 {
    let count = |label| {
        let line = format!("idle {state}: {label} ");
        console.lines().find_map(|reported| reported.trim().strip_prefix(&line)?.parse::<u64>().ok()).unwrap_or(0)
    };
    WAKE_UPS.map(count).iter().sum()
}

#[test]
fn idle_guest_wakes_up_as_often_with_the_agent_as_without() {
    let lab = provision::lab(&Paths::of_workspace()).unwrap();
    let folder = idle::run(&lab, "idle").unwrap().output;
    let text = |name: &str| String::from_utf8_lossy(&fs::read(folder.join(name)).unwrap_or_default()).into_owned();

    let (console, control) = (text("idle.log"), text("control.log"));
    let [without, module, session] = STATES.map(|state| wake_ups(&console, state));
    println!("wake-ups in {SECONDS} s: {without} without, {module} with the agent, {session} with a session");

    assert_eq!(text("idle.status").trim(), "0", "{console}\n{control}");
    for state in STATES {
        assert!(console.contains(&format!("own {state} 0")), "{console}");
    }
    assert!(without > 0 && module <= without + NOISE * SECONDS, "{without} {module}\n{console}");
    assert!(session <= without + NOISE * SECONDS, "{without} {session}\n{console}");
    // The session began and was flushed on CPUs that did nothing.
    assert!(control.contains("session main records") && control.contains("flushed\n"), "{control}");
    let trace = Trace::open(&folder.join("idle.trace")).unwrap();
    let layer = trace.layers_of(LayerKind::GuestKernel).next().unwrap();
    let streams = &layer.description.streams;
    assert!(streams.iter().all(|stream| stream.records > 0 && !stream.never_joined), "{streams:?}");
}
