//! Writes a recording of all four layers of any size, for measurements: two vCPUs that run tasks, call the system, sleep,
//! wait for locks and for the disk, fork, and lose the CPU to a task of the host. It is the same in every run, but for
//! its UUIDs, and `strata check` finds nothing wrong with it.
//!
//! `cargo run --release -p strata-recording --example write_layers -- DIR EVENTS [MAX_SIZE]`, of which the newest are kept that
//! fit MAX_SIZE bytes

mod event_types;
mod machine;
mod recorder;
mod scenes;

use machine::{MICROSECOND, Machine, VCPU_THREAD_0, VCPUS};
use recorder::Recorder;
use std::error::Error;
use std::path::Path;
use strata_recording::clock::{Clock, UtcAnchor};
use strata_recording::manifest::{FORMAT_VERSION, Host, Manifest, Started, Vm};
use strata_recording::writer::Rotation;
use uuid::Uuid;

const BEGIN_NS: u64 = 1_795_169_710_000_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (dir, events, max_size) = match &arguments[..] {
        [dir, events] => (dir, events, None),
        [dir, events, max_size] => (dir, events, Some(max_size.parse()?)),
        _ => return Err("give DIR EVENTS [MAX_SIZE]".into()),
    };
    write(Path::new(dir), events.parse()?, max_size)
}

/// Writes `events` records, or a few more: whatever begins also ends. Keeps within `max_size` bytes, if that is given.
pub(crate) fn write(dir: &Path, events: u64, max_size: Option<u64>) -> Result<(), Box<dyn Error>> {
    std::fs::create_dir(dir)?;
    let manifest = manifest();
    let recorder = Recorder::new(dir, &manifest, &machine::processes(), max_size.map(Rotation::new))?;
    let mut machine = Machine::boot(recorder, 1_000_000)?;
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
            epochs: Vec::new(),
            utc_readings: Vec::new(),
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
