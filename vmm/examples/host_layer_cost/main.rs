//! What recording the host's kernel costs the recorder for each record: `cargo xtask bench host`. Prints a JSON object.
//!
//! `host_layer_cost record TRACE EVENTS THREADS CALLS RATE`: records `EVENTS` of a process of `THREADS` threads, each
//! of which makes `CALLS` system calls (`getppid`), `RATE` of them a second or, with 0, as fast as it can.
//! `host_layer_cost splice TRACE EVENTS THREADS CALLS RATE`: the same, but the kernel's pages are moved into files as
//! they are. `EVENTS` are then names as `set_event` takes them.
//! `host_layer_cost trace-cmd TRACE EVENTS THREADS CALLS RATE`: the same events, recorded by `trace-cmd record`.
//! `host_layer_cost load THREADS CALLS RATE` is that process: it begins when a line comes from its standard input, or
//! this ends, puts out a line when it has made its calls, and ends with its standard input.

mod instance;
mod splice;
mod trace_cmd;

use self::splice::splice;
use self::trace_cmd::trace_cmd;
use anyhow::{Context, bail};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use strata_clock::HostClock;
use strata_machine::probe_kvm;
use strata_recorder::drain::polling::PollInterval;
use strata_recorder::host_description::describe_host;
use strata_recorder::layer::host::HostLayer;
use strata_recorder::layer::host_tracer::{Traced, start_host_tracer};
use strata_recorder::selection::Selection;
use strata_recording::clock::{Clock, UtcAnchor};
use strata_recording::manifest::{FORMAT_VERSION, Manifest, Started};
use uuid::Uuid;

/// Longest pause between two polls: the recorder's.
const LONGEST_PAUSE: Duration = Duration::from_millis(16);
/// Part of a second in which a paced thread makes its calls at once, and then sleeps.
const SLOTS: u64 = 1000;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["load", threads, calls, rate] => load(threads.parse()?, calls.parse()?, rate.parse()?),
        ["record", trace, events, threads, calls, rate] => record(Path::new(trace), events, [threads, calls, rate]),
        ["splice", trace, events, threads, calls, rate] => splice(Path::new(trace), events, [threads, calls, rate]),
        ["trace-cmd", trace, events, threads, calls, rate] => {
            trace_cmd(Path::new(trace), events, [threads, calls, rate])
        }
        _ => bail!("give record TRACE EVENTS THREADS CALLS RATE"),
    }
}

fn load(threads: u32, calls: u64, rate: u64) -> anyhow::Result<()> {
    io::stdin().read_line(&mut String::new())?;
    let threads: Vec<_> = (0..threads).map(|_| thread::spawn(move || make_calls(calls, rate))).collect();
    for thread in threads {
        thread.join().ok().context("a thread of the load failed")?;
    }
    println!();
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Makes `calls` system calls, `rate` of them a second unless that is 0.
fn make_calls(calls: u64, rate: u64) {
    let slot = if rate == 0 { calls } else { rate.div_ceil(SLOTS) };
    let (begun, mut slots, mut left) = (Instant::now(), 0, calls);
    while left > 0 {
        let now = slot.min(left);
        for _ in 0..now {
            let _ = rustix::process::getppid();
        }
        left -= now;
        slots += 1;
        if rate != 0 {
            let next = begun + Duration::from_micros(slots * (1_000_000 / SLOTS));
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }
}

/// The load, which waits for its standard input.
fn start_load(load: [&str; 3]) -> anyhow::Result<Child> {
    let mut child = Command::new(std::env::current_exe()?);
    child.arg("load").args(load).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start the load")
}

fn record(trace: &Path, events: &str, load: [&str; 3]) -> anyhow::Result<()> {
    let mut child = start_load(load)?;
    let probed = probe_kvm();
    let clock = HostClock::observe(probed.tsc_khz);
    let traced = Traced { process: child.id(), threads: vec![child.id()], takes_more: true };
    let tracer = start_host_tracer(&Selection::parse(events)?, clock.time, traced)?;
    let tracer = tracer.context("EVENTS names none of the host's kernel")?;
    let manifest = Manifest {
        format: FORMAT_VERSION,
        strata: env!("CARGO_PKG_VERSION").into(),
        started: Started::at(0),
        clock: Clock {
            uuid: Uuid::new_v4(),
            frequency_hz: clock.trace_frequency(),
            utc: UtcAnchor { ticks: 0, utc_ns: 0, uncertainty_ns: 0 },
            source: clock.time.trace_clock().into(),
            vcpus: Vec::new(),
            error_bound_ns: clock.error_bound_ns(),
            bound_derivation: "one counter".into(),
            given_up_ticks: None,
            epochs: Vec::new(),
        },
        host: describe_host(probed.kind.name()),
        vms: Vec::new(),
        layers: Vec::new(),
        missing: Vec::new(),
        max_size: None,
        compression: None,
        outcome: Some("measured".into()),
    };
    let mut layer = HostLayer::create(None, trace, &manifest, tracer)?;
    // The first poll leaves this thread out of the trace and finds nothing yet.
    layer.drain(None);
    drop(child.stdin.take());

    let (begun, used) = (Instant::now(), processor_ns());
    let (mut interval, mut polls) = (PollInterval::new(), 0_u64);
    while child.try_wait()?.is_none() {
        polls += 1;
        let found = layer.drain(None);
        thread::sleep(interval.after(found, LONGEST_PAUSE));
    }
    let missing = layer.finish(None);
    let (cpu_ns, wall) = (processor_ns() - used, begun.elapsed());

    let mut finished = manifest.clone();
    finished.layers = vec![layer.layer()];
    finished.missing = missing;
    finished.save(trace)?;
    let streams = &finished.layers[0].streams;
    let records: u64 = streams.iter().map(|stream| stream.records).sum();
    let lost: u64 = streams.iter().map(|stream| stream.lost.full).sum();
    print(&[("records", records), ("lost", lost), ("polls", polls)], cpu_ns, wall);
    Ok(())
}

fn print(counts: &[(&str, u64)], cpu_ns: i64, wall: Duration) {
    let mut figures = json!({ "cpu_ns": cpu_ns, "wall_s": wall.as_secs_f64() });
    for (name, count) in counts {
        figures[*name] = (*count).into();
    }
    println!("{figures}");
}

/// Processor time of this thread, ns: what others run meanwhile does not count.
fn processor_ns() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}
