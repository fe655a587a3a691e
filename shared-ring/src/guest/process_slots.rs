//! Giving process slots of the user ring pool to processes, and taking them back.
//!
//! A slot passes through generations: free or drained, then active, then closed. The host reads a closed slot to its
//! end and acknowledges the generation; only then may the next process have it, so that no process ever sees, or
//! overwrites, what another one recorded.

use super::Region;
use crate::layout::{AgentState, MAX_VCPUS, PROCESS_CLOSED, ProcessEntry, ProcessHeader};
use crate::storage::Storage;
use crate::view::ProcessState;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU16, Ordering};

/// Bytes that [`Region::clear_process_slot`] clears at most: a slot has a ring of a mebibyte, or what was asked for, for each
/// vCPU, and whoever clears it should not keep a CPU for all of that.
pub const CLEARED_AT_ONCE: usize = 64 << 10;

impl Region {
    /// Gives a free slot to process `pid` named `comm`: clears it, writes its header and its table entry, and publishes
    /// it. `vcpu_of_cpu` says which vCPU each of the kernel's CPU numbers is, `u16::MAX` for none. `None` when every slot is
    /// in use or not drained yet. Where others wait meanwhile, [`clear_process_slot`](Self::clear_process_slot) and
    /// [`publish_process_slot`](Self::publish_process_slot) do the same in parts.
    ///
    /// # Safety
    /// One caller at a time in the guest; a slot that was closed is mapped into no process.
    pub unsafe fn claim_process_slot(
        &self,
        pid: u32,
        comm: &[u8; 16],
        vcpu_of_cpu: &[u16; MAX_VCPUS as usize],
    ) -> Option<u32> {
        let slot = (0..self.view().process_slots()).find(|&slot| self.is_free_process_slot(slot))?;
        let mut from = 0;
        // SAFETY: the slot is free, and the only caller is here (contract).
        unsafe {
            while let Some(rest) = self.clear_process_slot(slot, from) {
                from = rest;
            }
            self.publish_process_slot(slot, pid, comm, vcpu_of_cpu).then_some(slot)
        }
    }

    /// Clears a part of `slot`: from byte `from` on, [`CLEARED_AT_ONCE`] bytes at most. Returns where the rest begins; `None`
    /// when nothing is left, or there is no such slot, or it is not free.
    ///
    /// # Safety
    /// Nobody else clears or publishes the slot, which is mapped into no process. Other slots may be claimed meanwhile.
    pub unsafe fn clear_process_slot(&self, slot: u32, from: usize) -> Option<usize> {
        let at = self.view().process_slot(slot).filter(|_| self.is_free_process_slot(slot))?;
        let size = self.view().process_slot_size();
        let rest = from.checked_add(CLEARED_AT_ONCE)?.min(size);
        let bytes = rest.checked_sub(from)?;
        // SAFETY: the slot lies inside the region (checked by `open`) and the bytes in it. The slot is mapped into no process
        // (contract) and the host has read it to its end, or it was never used, so that this is its only user.
        unsafe { self.pointer(at).add(from).write_bytes(0, bytes) };
        (rest < size).then_some(rest)
    }

    /// Gives `slot`, which was cleared to its end, to a process, as [`claim_process_slot`](Self::claim_process_slot) does.
    /// `false` when there is no such slot, or it is not free.
    ///
    /// The release store of the state pairs with the host's acquire load: owner and header come before it.
    ///
    /// # Safety
    /// As for [`clear_process_slot`](Self::clear_process_slot); [`publish_processes_vcpu`](Self::publish_processes_vcpu) is not
    /// called meanwhile.
    pub unsafe fn publish_process_slot(
        &self,
        slot: u32,
        pid: u32,
        comm: &[u8; 16],
        vcpu_of_cpu: &[u16; MAX_VCPUS as usize],
    ) -> bool {
        let Some(state) = self.next_state(slot) else { return false };
        let (Some(at), Some(entry)) = (self.view().process_slot(slot), self.view().process_entry(slot)) else {
            return false;
        };
        let entry = self.part(entry);
        // SAFETY: slot and entry lie inside the region (checked by `open`); as above, this is the slot's only user.
        unsafe {
            self.pointer(at).cast::<ProcessHeader>().write(self.view().process_header(vcpu_of_cpu));
            entry.store(offset_of!(ProcessEntry, pid), u64::from(pid));
            entry.write(offset_of!(ProcessEntry, comm), comm);
            entry.store_release(offset_of!(ProcessEntry, state), state.to_word());
        }
        true
    }

    /// Whether `slot` could be given away now: no process has it, and the host has read it to its end.
    #[must_use]
    pub fn is_free_process_slot(&self, slot: u32) -> bool {
        self.next_state(slot).is_some()
    }

    /// Tells the processes that have slots that CPU `cpu` of the kernel is `vcpu`. Numbers that a slot has no room for are
    /// left out.
    pub fn publish_processes_vcpu(&self, cpu: u32, vcpu: u16) {
        if cpu >= MAX_VCPUS {
            return;
        }
        for slot in 0..self.view().process_slots() {
            if !self.process_state(slot).is_some_and(ProcessState::is_active) {
                continue;
            }
            let Some(header) = self.view().process_slot(slot) else { continue };
            let word = header + offset_of!(ProcessHeader, vcpu_of_cpu) + cpu as usize * 2;
            // SAFETY: the header lies inside the region (checked by `open`), its table has room for the CPU (above). The
            // process may read the word meanwhile, and could write it.
            unsafe { AtomicU16::from_ptr(self.pointer(word).cast()) }.store(vcpu, Ordering::Relaxed);
        }
    }

    /// Counts a process that got no slot: because its user had enough of them (`over_quota`), or there was none. One
    /// caller at a time.
    pub fn count_refused_process(&self, over_quota: bool) {
        let agent = self.part(self.view().agent());
        let word = if over_quota {
            offset_of!(AgentState, processes_over_quota)
        } else {
            offset_of!(AgentState, processes_refused)
        };
        // SAFETY: the agent's state lies inside the region (checked by `open`) and is written by the agent only.
        unsafe { agent.store(word, agent.load(word).wrapping_add(1)) };
    }

    /// Marks `slot` as closed, once its process can no longer write it. Does nothing for a slot that is not active. The
    /// release store pairs with the host's acquire load: all that the process recorded comes before it.
    pub fn close_process_slot(&self, slot: u32) {
        let Some(state) = self.process_state(slot).filter(|state| state.is_active()) else { return };
        let Some(entry) = self.view().process_entry(slot) else { return };
        let closed = ProcessState { status: PROCESS_CLOSED, ..state };
        // SAFETY: the entry lies inside the region (checked by `open`).
        unsafe { self.part(entry).store_release(offset_of!(ProcessEntry, state), closed.to_word()) };
    }

    /// The state in which `slot` can be given away now; `None` when it cannot, or there is no such slot.
    fn next_state(&self, slot: u32) -> Option<ProcessState> {
        let acknowledgement = self.view().process_ack(slot)?;
        // SAFETY: the host's acknowledgements lie inside the region (checked by `open`). The acquire load pairs with the
        // host's release store: it has read the slot.
        let acknowledged = || unsafe { self.part(acknowledgement).load_acquire(0) };
        let state = self.process_state(slot)?;
        // Nobody reads what is left while there is no host, and one that comes acknowledges what it finds closed.
        state.next(|| if self.area().is_host_alive() { acknowledged() } else { u64::from(state.generation) })
    }

    fn process_state(&self, slot: u32) -> Option<ProcessState> {
        let entry = self.part(self.view().process_entry(slot)?);
        // SAFETY: the entry lies inside the region (checked by `open`).
        Some(ProcessState::from_word(unsafe { entry.load_acquire(offset_of!(ProcessEntry, state)) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::tests::{Sides, sides};
    use crate::host::memory::HostMemory;
    use crate::host::{self, Parts, ProcessOwner};
    use crate::layout::{Geometry, Mode, PROCESS_ACTIVE, PROCESS_FREE};
    use crate::region::{RegionConfig, RegionLayout, Rings};
    use crate::view::ProcessSlotView;

    const CPUS: [u16; MAX_VCPUS as usize] = [0; MAX_VCPUS as usize];
    const COMM: [u8; 16] = *b"program\0\0\0\0\0\0\0\0\0";

    fn claim(sides: &Sides, pid: u32, vcpu_of_cpu: &[u16; MAX_VCPUS as usize]) -> Option<u32> {
        // SAFETY: this thread is the only one that claims slots, and no process maps them.
        unsafe { sides.guest.claim_process_slot(pid, &COMM, vcpu_of_cpu) }
    }

    const fn state(generation: u32, status: u32) -> Option<ProcessState> {
        Some(ProcessState { generation, status })
    }

    #[test]
    fn claimed_slot_is_described_to_process_and_host() {
        let sides = sides();
        let layout = sides.host.layout();
        let parts = Parts::of(sides.memory.clone(), layout).unwrap();

        let slot = claim(&sides, 42, &CPUS);

        let load = |offset| sides.memory.load(layout.process_slot(0) + offset);
        let seen = ProcessSlotView::read(load, layout.guest_writable, layout.process_stride).unwrap();
        assert_eq!(slot, Some(0));
        assert_eq!(
            (parts.process_state(0), parts.process_state(1)),
            (state(1, PROCESS_ACTIVE), state(0, PROCESS_FREE))
        );
        assert_eq!(parts.process_owner(0), Some(ProcessOwner { slot: 0, pid: 42, comm: COMM }));
        assert_eq!(seen.ring(1).map(|ring| layout.process_slot(0) + ring), Some(layout.process_ring(0, 1)));
        assert_eq!(seen.rings, layout.config.process_rings);
    }

    #[test]
    fn claim_when_every_slot_is_active_fails() {
        let sides = sides();

        let claims = [1, 2, 3].map(|pid| claim(&sides, pid, &CPUS));

        assert_eq!(claims, [Some(0), Some(1), None]);
    }

    #[test]
    fn slot_is_cleared_in_small_parts_while_another_is_given_away() {
        let rings = Rings { geometry: Geometry::new(1 << 17, 8).unwrap(), mode: Mode::FlightRecorder };
        let layout = RegionLayout::new(RegionConfig {
            vcpus: 64,
            sessions: [None; 4],
            process_rings: rings,
            process_slots: 2,
            registry_size: 4096,
            process_registry_size: 4096,
        })
        .unwrap();
        let memory = HostMemory::private(layout.size);
        let host = host::Region::create(memory.clone(), layout, [7; 16], 1_000).unwrap();
        // SAFETY: the memory is aligned and as large as it says, and lives as long as the region is used.
        let guest = unsafe { Region::open(memory.base(), memory.size() as u64) }.unwrap();
        let last = layout.process_stride - 8;
        for slot in 0..2 {
            memory.store(layout.process_slot(slot) + last, 77);
        }
        let mut parts = 0;
        let mut from = Some(0);

        // SAFETY: this thread is the only one that claims slots, and no process maps them.
        let published = unsafe {
            while let Some(at) = from {
                from = guest.clear_process_slot(0, at);
                parts += 1;
                if parts == 1 {
                    guest.clear_process_slot(1, last / CLEARED_AT_ONCE * CLEARED_AT_ONCE);
                    assert!(guest.publish_process_slot(1, 2, &COMM, &CPUS));
                }
            }
            guest.publish_process_slot(0, 1, &COMM, &CPUS)
        };

        let state_of = |slot| Parts::of(memory.clone(), host.layout()).unwrap().process_state(slot);
        assert_eq!(parts, layout.process_stride.div_ceil(CLEARED_AT_ONCE));
        assert_eq!((published, state_of(0), state_of(1)), (true, state(1, PROCESS_ACTIVE), state(1, PROCESS_ACTIVE)));
        assert_eq!([0, 1].map(|slot| memory.load(layout.process_slot(slot) + last)), [0, 0]);
    }

    #[test]
    fn slot_that_is_not_free_is_neither_cleared_nor_published() {
        let sides = sides();
        claim(&sides, 1, &CPUS);
        let word = sides.host.layout().process_ring(0, 1);
        sides.memory.store(word, 77);

        // SAFETY: this thread is the only one that claims slots, and no process maps them.
        let (cleared, published) =
            unsafe { (sides.guest.clear_process_slot(0, 0), sides.guest.publish_process_slot(0, 2, &COMM, &CPUS)) };

        assert_eq!((cleared, published, sides.memory.load(word)), (None, false, 77));
    }

    #[test]
    fn closed_slot_that_no_host_reads_is_reused() {
        let sides = sides();
        claim(&sides, 1, &CPUS);
        claim(&sides, 2, &CPUS);

        sides.guest.close_process_slot(1);

        assert_eq!(claim(&sides, 3, &CPUS), Some(1));
    }

    #[test]
    fn closed_slot_is_reused_only_after_the_host_has_drained_it() {
        let mut sides = sides();
        sides.host.set_alive(true);
        let layout = sides.host.layout();
        let parts = Parts::of(sides.memory.clone(), layout).unwrap();
        claim(&sides, 1, &CPUS);
        claim(&sides, 2, &CPUS);
        sides.memory.store(layout.process_ring(1, 1), 77);

        sides.guest.close_process_slot(1);
        let early = claim(&sides, 3, &CPUS);
        parts.acknowledge(1, 1);
        let late = claim(&sides, 3, &CPUS);

        assert_eq!((early, late), (None, Some(1)));
        assert_eq!(parts.process_state(1), state(2, PROCESS_ACTIVE));
        assert_eq!(sides.memory.load(layout.process_ring(1, 1)), 0);
    }

    #[test]
    fn slot_is_free_again_when_the_host_has_drained_it() {
        let mut sides = sides();
        sides.host.set_alive(true);
        let parts = Parts::of(sides.memory.clone(), sides.host.layout()).unwrap();
        let at_first = sides.guest.is_free_process_slot(0);

        claim(&sides, 1, &CPUS);
        sides.guest.close_process_slot(0);
        let closed = sides.guest.is_free_process_slot(0);
        parts.acknowledge(0, 1);

        assert_eq!((at_first, closed, sides.guest.is_free_process_slot(0)), (true, false, true));
        assert!(!sides.guest.is_free_process_slot(2));
    }

    #[test]
    fn cpu_that_comes_online_is_announced_to_active_slots_only() {
        let sides = sides();
        claim(&sides, 1, &[u16::MAX; MAX_VCPUS as usize]);
        let table = offset_of!(ProcessHeader, vcpu_of_cpu);
        let word = |slot| sides.memory.load(sides.host.layout().process_slot(slot) + table);

        sides.guest.publish_processes_vcpu(1, 7);
        sides.guest.publish_processes_vcpu(MAX_VCPUS, 7);

        assert_eq!((word(0), word(1)), (0xffff_ffff_0007_ffff, 0));
    }

    #[test]
    fn refused_processes_are_counted_by_reason() {
        let sides = sides();
        let parts = Parts::of(sides.memory.clone(), sides.host.layout()).unwrap();

        [false, true, true].into_iter().for_each(|over_quota| sides.guest.count_refused_process(over_quota));

        let agent = parts.agent();
        assert_eq!((agent.processes_refused, agent.processes_over_quota), (1, 2));
    }

    #[test]
    fn closing_a_slot_that_is_not_active_changes_nothing() {
        let sides = sides();
        let parts = Parts::of(sides.memory.clone(), sides.host.layout()).unwrap();

        sides.guest.close_process_slot(1);
        sides.guest.close_process_slot(9);

        assert_eq!((parts.process_state(1), parts.process_state(9)), (state(0, PROCESS_FREE), None));
    }
}
