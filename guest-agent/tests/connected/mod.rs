//! A process that is connected to a region in this process's own memory.

use clock_sync::entry::Writer;
use clock_sync::relation::Relation;
use guest_agent::Tracer;
use shared_ring::guest;
use shared_ring::host::{self, EnabledEvents};
use shared_ring::host_memory::HostMemory;
use shared_ring::layout::{Geometry, MAX_VCPUS, Mode};
use shared_ring::region::{RegionConfig, RegionLayout, Rings};
use std::sync::Arc;
use strata_abi::class;

/// The host's side of a region for one vCPU, which every CPU of this machine is, with rings of four sub-buffers of `sub_buffer`
/// bytes, and the tracer of its only process. `memory` makes the region's memory.
pub fn connected(
    sub_buffer: u64,
    memory: impl FnOnce(&RegionLayout) -> HostMemory,
) -> (HostMemory, RegionLayout, Tracer) {
    let rings = Rings { geometry: Geometry::new(sub_buffer, 4).unwrap(), mode: Mode::Discard };
    let layout = RegionLayout::new(RegionConfig {
        vcpus: 1,
        sessions: [Some(rings), None, None, None],
        process_rings: rings,
        process_slots: 1,
        registry_size: 4096,
        process_registry_size: 4096,
    })
    .unwrap();
    let memory = memory(&layout);
    let mut host = host::Region::create(memory.clone(), layout, [0; 16], 1_000_000_000).unwrap();
    host.open_session(0, "main", rings, |_, _| ()).unwrap();
    host.enable(0, &EnabledEvents { class_mask: 1 << class::USER, ..EnabledEvents::NONE }).unwrap();
    let at = |offset: usize| memory.base().wrapping_add(offset);
    // SAFETY: the memory is aligned, as large as it says, and kept by the tracer; nobody else writes it.
    let tracer = unsafe {
        Writer::new(at(layout.clock_entry(0))).publish(&Relation::IDENTITY);
        let kernel = guest::Region::open(at(0), memory.size() as u64).unwrap();
        assert_eq!(kernel.claim_process_slot(1, &[0; 16], &[0; MAX_VCPUS as usize]), Some(0));
        let slot = (at(layout.process_slot(0)), layout.process_stride);
        Tracer::over((at(0), layout.guest_writable), slot, Arc::new(memory.clone())).unwrap()
    };
    (memory, layout, tracer)
}
