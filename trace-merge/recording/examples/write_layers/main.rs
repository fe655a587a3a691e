//! Writes a recording of all four layers of any size, for measurements: two vCPUs that run tasks, call the system, sleep,
//! wait for locks and for the disk, fork, and lose the CPU to a task of the host. It is the same in every run, but for
//! its UUIDs, and `strata check` finds nothing wrong with it.
//!
//! `cargo run --release -p strata-recording --example write_layers -- DIR EVENTS [MAX_SIZE]`, of which the newest are kept that
//! fit MAX_SIZE bytes. With `story` in place of EVENTS, it is the one that `docs/example.strata` holds.

mod event_types;
mod machine;
mod recorder;
mod scenes;
mod story;

use machine::{MICROSECOND, Machine, Task, VCPU_THREAD_0, VCPUS};
use recorder::Recorder;
use std::error::Error;
use std::path::Path;
use strata_recording::clock::{Clock, UtcAnchor};
use strata_recording::manifest::{FORMAT_VERSION, Guest, Host, Manifest, Started, Vm};
use strata_recording::writer::Rotation;
use uuid::Uuid;

const BEGIN_NS: u64 = 1_795_169_710_000_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [dir, story] = &arguments[..]
        && story == "story"
    {
        return write_story(Path::new(dir));
    }
    let (dir, events, max_size) = match &arguments[..] {
        [dir, events] => (dir, events, None),
        [dir, events, max_size] => (dir, events, Some(max_size.parse()?)),
        _ => return Err("give DIR EVENTS [MAX_SIZE], or DIR story".into()),
    };
    write(Path::new(dir), events.parse()?, max_size)
}

/// Writes `events` records, or a few more: whatever begins also ends. Keeps within `max_size` bytes, if that is given.
pub(crate) fn write(dir: &Path, events: u64, max_size: Option<u64>) -> Result<(), Box<dyn Error>> {
    std::fs::create_dir(dir)?;
    let manifest = manifest();
    let recorder = Recorder::new(dir, &manifest, &machine::processes(), max_size.map(Rotation::new))?;
    let mut machine = Machine::boot(recorder, 1_000_000, machine::tasks)?;
    for round in 0_u32.. {
        if machine.recorder.records() >= events {
            break;
        }
        for vcpu in 0..VCPUS {
            scenes::next(&mut machine, vcpu, round % VCPUS == vcpu)?;
        }
        machine.meet();
    }
    machine.recorder.finish(manifest, dir)
}

/// Writes what [`story`] tells.
fn write_story(dir: &Path) -> Result<(), Box<dyn Error>> {
    std::fs::create_dir(dir)?;
    let manifest = story_manifest();
    let [server, ..] = Task::WEB;
    let processes: Vec<(u32, String)> =
        server.recording_process().map(|pid| (pid, server.comm())).into_iter().collect();
    let mut machine = Machine::boot(Recorder::new(dir, &manifest, &processes, None)?, 1_000_000, story::tasks)?;
    story::write_story(&mut machine)?;
    machine.recorder.finish(manifest, dir)
}

/// The description of a recording that says of itself that nobody made it on a machine.
fn story_manifest() -> Manifest {
    let made_up = || "made up".to_owned();
    let guest = Guest { kernel: made_up(), agent_abi: 1, processes_refused: 0, processes_over_quota: 0 };
    let manifest = manifest();
    Manifest {
        host: Host { hostname: "example".into(), kernel: made_up(), cpu: made_up(), kvm: made_up(), ..Host::default() },
        vms: manifest.vms.into_iter().map(|vm| Vm { guest: Some(guest.clone()), ..vm }).collect(),
        outcome: Some("power-off (all of it is made up: no guest ran)".into()),
        ..manifest
    }
}

fn manifest() -> Manifest {
    let threads = (VCPU_THREAD_0..).take(VCPUS as usize).map(|thread| i32::try_from(thread).unwrap_or(0));
    Manifest {
        format: FORMAT_VERSION,
        strata: env!("CARGO_PKG_VERSION").into(),
        started: Started::at(BEGIN_NS),
        clock: Clock {
            uuid: Uuid::new_v4(),
            frequency_hz: MICROSECOND * 1_000_000,
            utc: UtcAnchor { ticks: 0, utc_ns: BEGIN_NS, uncertainty_ns: 0 },
            source: "x86-tsc".into(),
            vcpus: Vec::new(),
            error_bound_ns: 20,
            bound_derivation: "made up".into(),
            given_up_ticks: None,
            epochs: Vec::new(),
        },
        host: Host::default(),
        vms: vec![Vm { name: "vm0".into(), vcpus: VCPUS, vcpu_threads: threads.collect(), ..Vm::default() }],
        layers: Vec::new(),
        missing: Vec::new(),
        max_size: None,
        compression: None,
        outcome: Some("made up".into()),
    }
}
