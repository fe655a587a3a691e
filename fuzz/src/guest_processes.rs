//! The host's side of the process table, in a region that the guest changes between its rounds.
//!
//! An input is a [`script`](crate::script) on the whole region, with two kinds of steps: a round while the guest runs,
//! and one after it stopped. At the end the recording must be whole: a guest can spoil what it records, not how it is
//! recorded.

use crate::consumer::rings;
use crate::script::{Op, Script};
use crate::trace_folder;
use shared_ring::host_memory::HostMemory;
use shared_ring::layout::SESSION_SLOTS;
use shared_ring::region::{RegionConfig, RegionLayout};
use tempfile::TempDir;
use trace_merge::reader::{Damage, Trace};
use trace_merge::session::Session;
use vmm::tracing::guest_processes::GuestProcesses;
use vmm::tracing::ring_layer::Producers;

/// Step: a round while the guest runs; the argument is the youngest time.
pub const RUNNING: u8 = 0;
/// Step: a round after the guest stopped; the argument is the youngest time.
pub const STOPPED: u8 = 1;
/// Number of kinds of steps.
pub const STEPS: u8 = 2;
/// Most rounds of an input.
const MAX_ROUNDS: usize = 24;

/// The region of a machine with one vCPU and two process slots.
///
/// # Panics
/// Never: such a region is possible.
#[must_use]
pub fn layout() -> RegionLayout {
    let config = RegionConfig {
        vcpus: 1,
        sessions: [None; SESSION_SLOTS],
        process_rings: rings(0),
        process_slots: 2,
        registry_size: 4096,
        process_registry_size: 4096,
    };
    RegionLayout::new(config).expect("a region can be this small")
}

/// Runs an input.
///
/// # Panics
/// When something does not hold, or when files cannot be written.
pub fn run(data: &[u8]) {
    let layout = layout();
    let memory = HostMemory::private(layout.size);
    let dir = TempDir::new().expect("the folder for temporary files is writable");
    let session = Session { layers: Vec::new(), ..trace_folder::session() };
    let mut processes = GuestProcesses::new(memory.clone(), layout, "vm0".into());
    let mut rounds = 0;
    for op in Script::new(data, STEPS) {
        op.apply(&memory);
        if let Op::Step { kind, argument } = op {
            rounds += 1;
            if rounds > MAX_ROUNDS {
                break;
            }
            let guest = if kind == RUNNING { Producers::Running } else { Producers::Stopped };
            processes.drain(dir.path(), &session, guest, argument).expect("what is recorded can be written");
        }
    }
    processes.drain(dir.path(), &session, Producers::Stopped, u64::MAX).expect("what is recorded can be written");
    let layers: Vec<_> = processes.layers().collect();
    assert!(layers.len() <= (rounds + 1) * 2, "a slot begins at most one process in a round");
    assert_eq!(processes.refused(), 0);
    Session { layers, ..session }.save(dir.path()).expect("the folder is writable");

    let trace = Trace::open(dir.path()).expect("what was recorded can be opened");
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
