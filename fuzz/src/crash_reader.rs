//! The reader of a region whose host or guest has died, on a file that holds anything.
//!
//! An input is the size of the file (`u16`, words; as far as the region goes) and a [`script`](crate::script) without
//! steps that writes it.

use crate::consumer::{Checked, FLIGHT_RECORDER, rings};
use crate::script::{Input, Script};
use shared_ring::consumer::Consumer;
use shared_ring::consumer::crash::CrashRegion;
use shared_ring::event::EventDescription;
use shared_ring::host::memory::HostMemory;
use shared_ring::layout::SESSION_SLOTS;
use shared_ring::region::{RegionConfig, RegionLayout};
use shared_ring::registry::RegistryReader;

/// Youngest time that is believed, ticks.
const LATEST: u64 = 1 << 60;
/// Most rings that are read of one input: the time for one is bounded, that for all of 256 vCPUs is not interesting.
const MAX_RINGS: usize = 16;

/// The region of the seeds: one vCPU, a discarding session and a flight recorder, and two process slots.
///
/// # Panics
/// Never: such a region is possible.
#[must_use]
pub fn layout() -> RegionLayout {
    let mut sessions = [None; SESSION_SLOTS];
    sessions[0] = Some(rings(0));
    sessions[2] = Some(rings(FLIGHT_RECORDER));
    let config = RegionConfig {
        vcpus: 1,
        sessions,
        process_rings: rings(0),
        process_slots: 2,
        registry_size: 4096,
        process_registry_size: 4096,
    };
    RegionLayout::new(config).expect("a region can be this small")
}

/// The file that an input describes.
#[must_use]
pub fn file(data: &[u8]) -> HostMemory {
    let mut input = Input(data);
    let largest = layout().size;
    let size = match usize::from(input.u16()) * 8 {
        0 => largest,
        size => size.min(largest),
    };
    let memory = HostMemory::private(size);
    Script::new(input.0, 0).for_each(|op| op.apply(&memory));
    memory
}

/// Gives an input to the reader and checks what must hold.
///
/// # Panics
/// When a property that the target checks does not hold.
pub fn run(data: &[u8]) {
    let memory = file(data);
    let size = memory.size();
    if let Ok(region) = CrashRegion::open(memory) {
        read(&region, size);
    }
}

fn read(region: &CrashRegion, size: usize) {
    let _ = region.agent();
    let vcpus = region.vcpus();
    assert!((0..vcpus).all(|vcpu| region.clock_entry(vcpu).is_some()) && region.clock_entry(vcpus).is_none());
    let events = all_of(region.kernel_registry(), size);
    let mut rings_left = MAX_RINGS;
    for slot in 0..=SESSION_SLOTS {
        let Ok(Some(session)) = region.session(slot) else { continue };
        assert!(session.rings.ring_size() <= size);
        assert!(region.kernel_ring(&session, vcpus).is_none());
        let consumers = (0..vcpus).filter_map(|vcpu| region.kernel_ring(&session, vcpu));
        read_rings(consumers, &events, &mut rings_left);
    }
    let processes = region.processes();
    assert!(processes.len() <= region.superblock().process_slots as usize);
    for process in processes {
        let registry = region.process_registry(process.slot).expect("a process has a slot");
        let events = all_of(registry, size);
        assert!(region.process_ring(process.slot, vcpus).is_none());
        let consumers = (0..vcpus).filter_map(|vcpu| region.process_ring(process.slot, vcpu));
        read_rings(consumers, &events, &mut rings_left);
    }
}

fn all_of(mut registry: RegistryReader, size: usize) -> Vec<EventDescription> {
    let events = registry.poll();
    assert!(events.len() <= size / 16);
    assert!(registry.poll().is_empty(), "nothing is added to a registry that stands still");
    events
}

fn read_rings(consumers: impl Iterator<Item = Consumer>, events: &[EventDescription], left: &mut usize) {
    for consumer in consumers.take(*left) {
        *left -= 1;
        let most = 2 * consumer.sub_buffers();
        let mut checked = Checked::new(consumer, events.to_vec());
        let copied = checked.drain(LATEST, || {});
        assert!(copied <= most, "{copied} sub-buffers out of a ring that stands still");
        checked.step(crate::consumer::FINISH, 0, || {});
    }
}
