//! A process that is connected to a region in this process's own memory.

use clock_sync::entry::Writer;
use clock_sync::relation::Relation;
use guest_agent::Tracer;
use shared_ring::guest;
use shared_ring::host::memory::HostMemory;
use shared_ring::host::{self, EnabledEvents};
use shared_ring::layout::{Geometry, MAX_VCPUS, Mode};
use shared_ring::region::{RegionConfig, RegionLayout, Rings};
use std::process::Command;
use std::sync::Arc;
use strata_abi::class;

/// Sub-buffers of a ring.
pub const SUB_BUFFERS: u32 = 4;

/// The host's side of a region for `vcpus` vCPUs, with rings of [`SUB_BUFFERS`] sub-buffers of `sub_buffer` bytes, and
/// the tracer of its only process. Every CPU of this machine is the only vCPU, or each is its own. `memory` makes the
/// region's memory.
pub fn connected(
    sub_buffer: u64,
    vcpus: u16,
    memory: impl FnOnce(&RegionLayout) -> HostMemory,
) -> (HostMemory, RegionLayout, Tracer) {
    let rings = Rings { geometry: Geometry::new(sub_buffer, SUB_BUFFERS).unwrap(), mode: Mode::Discard };
    let layout = RegionLayout::new(RegionConfig {
        vcpus: u32::from(vcpus),
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
    let mut vcpu_of_cpu = [0; MAX_VCPUS as usize];
    if vcpus > 1 {
        vcpu_of_cpu.fill(u16::MAX);
        (0..vcpus).for_each(|vcpu| vcpu_of_cpu[usize::from(vcpu)] = vcpu);
    }
    let at = |offset: usize| memory.base().wrapping_add(offset);
    // SAFETY: the memory is aligned, as large as it says, and kept by the tracer; nobody else writes it.
    let tracer = unsafe {
        for vcpu in 0..u32::from(vcpus) {
            Writer::new(at(layout.clock_entry(vcpu))).publish(&Relation::IDENTITY);
        }
        let kernel = guest::Region::open(at(0), memory.size() as u64).unwrap();
        assert_eq!(kernel.claim_process_slot(1, &[0; 16], &vcpu_of_cpu), Some(0));
        let slot = (at(layout.process_slot(0)), layout.process_stride);
        Tracer::over((at(0), layout.guest_writable), slot, Arc::new(memory.clone())).unwrap()
    };
    (memory, layout, tracer)
}

/// Runs what `arguments` name of the calling program's tests in a process whose C library registers no rseq areas.
pub fn succeeds_without_the_c_librarys_areas(arguments: &[&str]) -> bool {
    let mut tests = Command::new(std::env::current_exe().unwrap());
    tests.env("GLIBC_TUNABLES", "glibc.pthread.rseq=0").args(arguments).status().unwrap().success()
}
