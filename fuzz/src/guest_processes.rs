//! What the host records of a region whose guest changes it between the host's rounds: the kernel's rings, and
//! processes that come and go, in both modes.
//!
//! The first byte of an input chooses the rings, as for [`consumer`](crate::consumer); a [`script`](crate::script) on
//! the whole region follows, with two kinds of steps: a round while the guest runs, and one that writes everything out
//! (in flight-recorder mode a snapshot). What was written must be whole: a guest can spoil what it records, not how it
//! is recorded.

use crate::consumer::{FLIGHT_RECORDER, rings};
use crate::script::{Input, Op, Script};
use crate::trace_folder;
use shared_ring::host::Parts;
use shared_ring::host::memory::HostMemory;
use shared_ring::layout::{Mode, SESSION_SLOTS};
use shared_ring::region::{RegionConfig, RegionLayout};
use std::path::Path;
use std::sync::Arc;
use strata_clock::{ClockParameters, HostTime, VcpuClocks};
use strata_recorder::layer::guest_processes::{GuestProcesses, Refused};
use strata_recorder::layer::kernel_rings::KernelRings;
use strata_recorder::layer::ring::Producers;
use strata_recorder::region::process_table::ProcessTable;
use strata_recorder::selection::Selection;
use strata_recorder::session::flight_recorder::FlightRecorder;
use strata_recorder::session::recording::Recording;
use strata_recorder::trigger::expression::Trigger;
use strata_recorder::trigger::watch::Watch;
use strata_recording::manifest::{Layer, Manifest};
use strata_recording::reader::{Damage, Trace};
use tempfile::TempDir;

/// Step: a round while the guest runs; the argument is the youngest time.
pub const LOOK: u8 = 0;
/// Step: everything is written out; the argument is the youngest time.
pub const WRITE: u8 = 1;
/// Number of kinds of steps.
pub const STEPS: u8 = 2;
/// Most rounds of an input.
const MAX_ROUNDS: usize = 24;
/// Most snapshots of an input: each takes a folder.
const MAX_SNAPSHOTS: usize = 4;
/// Name of the VM.
const VM: &str = "vm0";

fn config(byte: u8) -> RegionConfig {
    // Few and small ones, so that the region is small.
    let rings = rings(byte & FLIGHT_RECORDER);
    let mut sessions = [None; SESSION_SLOTS];
    sessions[0] = Some(rings);
    RegionConfig {
        vcpus: 1,
        sessions,
        process_rings: rings,
        process_slots: 2,
        registry_size: 4096,
        process_registry_size: 4096,
    }
}

/// The region of a machine with one vCPU and two process slots, in the mode that the first byte of an input chooses.
///
/// # Panics
/// Never: such a region is possible.
#[must_use]
pub fn layout(byte: u8) -> RegionLayout {
    RegionLayout::new(config(byte)).expect("a region can be this small")
}

/// Gives an input to the reader and checks what must hold.
///
/// # Panics
/// When a property that the target checks does not hold, or when files cannot be written.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let layout = layout(input.byte());
    let memory = HostMemory::private(layout.size);
    let rings = layout.config.process_rings;
    let guest = Guest {
        table: ProcessTable::new(
            Parts::of(memory.clone(), &layout).expect("the memory has the region's size"),
            VM.into(),
            0,
        ),
        kernel: KernelRings::new(memory.clone(), layout, 0, rings, VM.into(), 0),
        dir: TempDir::new().expect("the folder for temporary files is writable"),
        manifest: Manifest { layers: Vec::new(), ..trace_folder::manifest() },
    };
    let script = Script::new(input.0, STEPS);
    match rings.mode {
        Mode::Discard => stream(guest, script, &memory),
        Mode::FlightRecorder => snapshots(guest, script, &memory),
    }
}

/// What the host knows of the guest, and where it writes.
struct Guest {
    table: ProcessTable,
    kernel: KernelRings,
    dir: TempDir,
    manifest: Manifest,
}

/// What looks at each record while it is recorded.
fn watch() -> Watch {
    let mut watch = Watch::new(1_000_000_000);
    for (number, trigger) in (1..).zip(["event:guest-user:*:* cpu>0", "event:guest-kernel:*:* cpu>0", "wakeup>1s"]) {
        watch.arm(number, Trigger::parse(trigger).expect("it is a trigger"), 0);
    }
    watch
}

/// Discard mode: everything is written as it comes.
fn stream(guest: Guest, script: Script<'_>, memory: &HostMemory) {
    let Guest { table, kernel, dir, manifest } = guest;
    let slots = table.slots() as usize;
    let mut processes = GuestProcesses::new(table, usize::MAX);
    let mut kernel = kernel.layer(dir.path(), &manifest).expect("what is recorded can be written");
    let mut rounds = 0;
    let mut watch = watch();
    let mut round = |producers, latest: u64| {
        processes.drain(dir.path(), &manifest, producers, &|| latest, Some(&mut watch));
        kernel.drain(producers, &|| latest, Some(&mut watch)).expect("what is recorded can be written");
    };
    for op in script {
        op.apply(memory);
        if let Op::Step { kind, argument } = op {
            rounds += 1;
            if rounds > MAX_ROUNDS {
                break;
            }
            round(if kind == LOOK { Producers::Running } else { Producers::Stopped }, argument);
        }
    }
    round(Producers::Stopped, u64::MAX);
    kernel.finish(&|| u64::MAX, None).expect("what is recorded can be written");
    let mut layers: Vec<_> = processes.layers().collect();
    assert!(layers.len() <= (rounds + 1) * slots, "a slot begins at most one process in a round");
    assert_eq!(processes.refused(), Refused::default());
    layers.push(kernel.layer());
    check_whole(dir.path(), &manifest, layers);
}

/// Flight-recorder mode: nothing is written but snapshots.
fn snapshots(guest: Guest, script: Script<'_>, memory: &HostMemory) {
    let Guest { table, kernel, dir, manifest } = guest;
    let recording = recording(manifest.clone());
    let mut recorder = FlightRecorder::new(None, None, Some(kernel), Some(table));
    let (mut rounds, mut snapshots) = (0, 0);
    let mut snapshot = |recorder: &mut FlightRecorder| {
        let dir = dir.path().join(snapshots.to_string());
        snapshots += 1;
        if snapshots <= MAX_SNAPSHOTS {
            let written = recorder.write(&recording, Producers::Running, None, &dir, &manifest);
            assert!(written.failures.is_empty(), "what is recorded can be written: {written:?}");
            check_whole(&dir, &manifest, written.layers);
        }
    };
    for op in script {
        op.apply(memory);
        if let Op::Step { kind, .. } = op {
            rounds += 1;
            if rounds > MAX_ROUNDS {
                break;
            }
            recorder.poll(&recording, None);
            if kind == WRITE {
                snapshot(&mut recorder);
            }
        }
    }
    snapshot(&mut recorder);
}

/// The recording that a flight recorder needs besides the guest's memory: a clock, and names.
fn recording(manifest: Manifest) -> Recording {
    thread_local! {
        /// Clocks, which nobody reads.
        static CLOCKS: Arc<VcpuClocks> = {
            let parameters = ClockParameters {
                time: HostTime::Tsc,
                frequency: 1_000_000_000,
                bound_ns: 0,
                guest_tsc_hz: 1_000_000_000,
                offset_honoured: true,
                first_offsets: Vec::new(),
            };
            Arc::new(VcpuClocks::new(VM, 1, parameters, Box::new(|_, _, _| ())))
        };
    }
    let selection = Selection::parse("").expect("the events of the default can be selected");
    Recording::new(manifest, VM.into(), selection, CLOCKS.with(Arc::clone))
}

/// Whether a recording of `layers` reads clean.
///
/// # Panics
/// When the recording does not read without damage.
pub fn check_whole(dir: &Path, manifest: &Manifest, layers: Vec<Layer>) {
    Manifest { layers, ..manifest.clone() }.save(dir).expect("the folder is writable");
    let trace = Trace::open(dir).expect("what was recorded can be opened");
    for layer in trace.layers() {
        for stream in &layer.streams {
            assert!(!stream.absent);
            let mut records = layer.records(stream);
            let mut time = 0;
            for record in records.by_ref() {
                assert!(record.time >= time, "times of a stream do not decrease");
                time = record.time;
            }
            assert_eq!(records.damage(), Damage::default(), "{:?}", stream.description);
        }
    }
}
