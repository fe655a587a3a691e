//! Giving process slots of the user ring pool to processes, and taking them back.
//!
//! A slot passes through generations: free or drained, then active, then closed. The host reads a closed slot to its
//! end and acknowledges the generation; only then may the next process have it, so that no process ever sees, or
//! overwrites, what another one recorded.
#![allow(unsafe_code)] // Slots are memory shared with the host: raw pointers.

use crate::region::{Region, offset};
use core::mem::offset_of;
use core::sync::atomic::{AtomicU16, Ordering};
use shared_ring::layout::{
    AgentState, MAX_VCPUS, PROCESS_ACTIVE, PROCESS_CLOSED, PROCESS_FREE, ProcessEntry, ProcessHeader,
};
use shared_ring::storage::Storage;

/// Size of an entry of the process table, bytes.
const ENTRY: u64 = size_of::<ProcessEntry>() as u64;

impl Region {
    /// Gives a free slot to process `pid` named `comm`: clears it, writes its header and its table entry, and publishes
    /// it. `None` when every slot is in use or not drained yet. One caller at a time.
    pub fn claim_process_slot(
        &self,
        pid: u32,
        comm: &[u8; 16],
        vcpu_of_cpu: &[u16; MAX_VCPUS as usize],
    ) -> Option<u32> {
        let (slot, generation) =
            (0..self.superblock().process_slots).find_map(|slot| Some((slot, self.next_generation(slot)?)))?;
        let at = self.at(self.superblock().process_pool_offset + u64::from(slot) * self.superblock().process_stride);
        let entry = self.storage_at(self.process_entry(slot));
        // SAFETY: slot and entry lie inside the region (checked by `open`). The slot is mapped into no process and the
        // host has read it to its end, or it was never used, so that this is its only user.
        unsafe {
            at.write_bytes(0, offset(self.superblock().process_stride));
            at.cast::<ProcessHeader>().write(self.process_header(vcpu_of_cpu));
            entry.store(offset_of!(ProcessEntry, pid), u64::from(pid));
            entry.write(offset_of!(ProcessEntry, comm), comm);
            entry.store_release(offset_of!(ProcessEntry, state), word(generation, PROCESS_ACTIVE));
        }
        Some(slot)
    }

    /// Whether `slot` could be given away now: no process has it, and the host has read it to its end.
    #[must_use]
    pub fn is_free_process_slot(&self, slot: u32) -> bool {
        slot < self.superblock().process_slots && self.next_generation(slot).is_some()
    }

    /// Tells the processes that have slots that CPU `cpu` of the kernel is `vcpu`. Numbers that a slot has no room for are
    /// left out.
    pub fn tell_processes_vcpu(&self, cpu: u32, vcpu: u16) {
        if cpu >= MAX_VCPUS {
            return;
        }
        for slot in 0..self.superblock().process_slots {
            if self.process_state(slot).1 != PROCESS_ACTIVE {
                continue;
            }
            let header = self.superblock().process_pool_offset + u64::from(slot) * self.superblock().process_stride;
            let word = header + offset_of!(ProcessHeader, vcpu_of_cpu) as u64 + u64::from(cpu) * 2;
            // SAFETY: the header lies inside the region (checked by `open`), its table has room for the CPU (above). The
            // process may read the word meanwhile, and could write it.
            unsafe { AtomicU16::from_ptr(self.at(word).cast()) }.store(vcpu, Ordering::Relaxed);
        }
    }

    /// Counts a process that got no slot: because its user had enough of them (`over_quota`), or there was none. One
    /// caller at a time.
    pub fn count_refused_process(&self, over_quota: bool) {
        let agent = self.storage_at(self.superblock().agent_offset);
        let word = if over_quota {
            offset_of!(AgentState, processes_over_quota)
        } else {
            offset_of!(AgentState, processes_refused)
        };
        // SAFETY: the agent's state lies inside the region (checked by `open`) and is written by the agent only.
        unsafe { agent.store(word, agent.load(word).wrapping_add(1)) };
    }

    /// Marks `slot` as closed, once its process can no longer write it. Does nothing for a slot that is not active.
    pub fn close_process_slot(&self, slot: u32) {
        if slot >= self.superblock().process_slots {
            return;
        }
        let (generation, state) = self.process_state(slot);
        if state == PROCESS_ACTIVE {
            // SAFETY: the entry lies inside the region (checked by `open`).
            unsafe {
                self.storage_at(self.process_entry(slot))
                    .store_release(offset_of!(ProcessEntry, state), word(generation, PROCESS_CLOSED));
            }
        }
    }

    /// The generation under which `slot` can be given away now; `None` when it cannot.
    fn next_generation(&self, slot: u32) -> Option<u32> {
        let (generation, state) = self.process_state(slot);
        let next = generation.wrapping_add(1);
        match state {
            PROCESS_FREE => Some(next),
            PROCESS_CLOSED => {
                // SAFETY: the host's acknowledgements lie inside the region (checked by `open`).
                let drained =
                    unsafe { self.storage_at(self.superblock().process_ack_offset).load_acquire(slot as usize * 8) };
                (drained == u64::from(generation)).then_some(next)
            }
            _ => None,
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "the word holds two halves")]
    fn process_state(&self, slot: u32) -> (u32, u32) {
        // SAFETY: the callers pass slots that the region has; its entries lie inside the region (checked by `open`).
        let word = unsafe { self.storage_at(self.process_entry(slot)).load_acquire(offset_of!(ProcessEntry, state)) };
        ((word >> 32) as u32, word as u32)
    }

    fn process_entry(&self, slot: u32) -> u64 {
        self.superblock().process_table_offset + u64::from(slot) * ENTRY
    }
}

const fn word(generation: u32, state: u32) -> u64 {
    (generation as u64) << 32 | state as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::tests::host_region;
    use shared_ring::host_memory::HostMemory;
    use shared_ring::layout::MAGIC;

    const CPUS: [u16; MAX_VCPUS as usize] = [0; MAX_VCPUS as usize];

    fn open(memory: &HostMemory) -> Region {
        // SAFETY: the memory is page-aligned, live, and as large as it says.
        unsafe { Region::open(memory.base(), memory.size() as u64) }.unwrap()
    }

    #[test]
    fn claimed_slot_is_described_to_process_and_host() {
        let (memory, layout) = host_region();
        let region = open(&memory);

        let slot = region.claim_process_slot(42, b"program\0\0\0\0\0\0\0\0\0", &CPUS);

        // SAFETY: the slot's first page holds its header, which nobody writes now.
        let header = unsafe { memory.base().add(layout.process_slot(0)).cast::<ProcessHeader>().read() };
        assert_eq!(slot, Some(0));
        assert_eq!(memory.load(layout.process_table), word(1, PROCESS_ACTIVE));
        assert_eq!(memory.load(layout.process_table + 8), 42);
        assert_eq!((header.magic, header.rings_offset), (MAGIC, layout.process_rings as u64));
        assert_eq!(header.ring_stride, layout.process_ring_stride as u64);
    }

    #[test]
    fn claim_when_every_slot_is_active_fails() {
        let (memory, _) = host_region();
        let region = open(&memory);

        let claims = [1, 2, 3].map(|pid| region.claim_process_slot(pid, &[0; 16], &CPUS));

        assert_eq!(claims, [Some(0), Some(1), None]);
    }

    #[test]
    fn closed_slot_is_reused_only_after_the_host_has_drained_it() {
        let (memory, layout) = host_region();
        let region = open(&memory);
        region.claim_process_slot(1, &[0; 16], &CPUS);
        region.claim_process_slot(2, &[0; 16], &CPUS);
        memory.store(layout.process_ring(1, 1), 77);

        region.close_process_slot(1);
        let early = region.claim_process_slot(3, &[0; 16], &CPUS);
        memory.store(layout.process_ack + 8, 1);
        let late = region.claim_process_slot(3, &[0; 16], &CPUS);

        assert_eq!((early, late), (None, Some(1)));
        assert_eq!(memory.load(layout.process_table + 64), word(2, PROCESS_ACTIVE));
        assert_eq!(memory.load(layout.process_ring(1, 1)), 0);
    }

    #[test]
    fn slot_is_free_again_when_the_host_has_drained_it() {
        let (memory, layout) = host_region();
        let region = open(&memory);
        let at_first = region.is_free_process_slot(0);

        region.claim_process_slot(1, &[0; 16], &CPUS);
        region.close_process_slot(0);
        let closed = region.is_free_process_slot(0);
        memory.store(layout.process_ack, 1);

        assert_eq!((at_first, closed, region.is_free_process_slot(0)), (true, false, true));
        assert!(!region.is_free_process_slot(2));
    }

    #[test]
    fn cpu_that_comes_online_is_told_to_active_slots_only() {
        let (memory, layout) = host_region();
        let region = open(&memory);
        region.claim_process_slot(1, &[0; 16], &[u16::MAX; MAX_VCPUS as usize]);
        let table = |slot| memory.load(layout.process_slot(slot) + offset_of!(ProcessHeader, vcpu_of_cpu));

        region.tell_processes_vcpu(1, 7);
        region.tell_processes_vcpu(MAX_VCPUS, 7);

        assert_eq!((table(0), table(1)), (0xffff_ffff_0007_ffff, 0));
    }

    #[test]
    fn refused_processes_are_counted_by_reason() {
        let (memory, layout) = host_region();
        let region = open(&memory);

        [false, true, true].into_iter().for_each(|over_quota| region.count_refused_process(over_quota));

        let count = |field| memory.load(layout.agent + field);
        let counts =
            [offset_of!(AgentState, processes_refused), offset_of!(AgentState, processes_over_quota)].map(count);
        assert_eq!(counts, [1, 2]);
    }

    #[test]
    fn closing_a_slot_that_is_not_active_changes_nothing() {
        let (memory, layout) = host_region();

        open(&memory).close_process_slot(1);
        open(&memory).close_process_slot(9);

        assert_eq!(memory.load(layout.process_table + 64), 0);
    }
}
