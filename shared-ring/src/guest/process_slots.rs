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

impl Region {
    /// Gives a free slot to process `pid` named `comm`: clears it, writes its header and its table entry, and publishes
    /// it. `vcpu_of_cpu` says which vCPU each of the kernel's CPU numbers is, `u16::MAX` for none. `None` when every slot is
    /// in use or not drained yet.
    ///
    /// The release store of the state pairs with the host's acquire load: owner and header come before it.
    ///
    /// # Safety
    /// One caller at a time in the guest; a slot that was closed is mapped into no process.
    pub unsafe fn claim_process_slot(
        &self,
        pid: u32,
        comm: &[u8; 16],
        vcpu_of_cpu: &[u16; MAX_VCPUS as usize],
    ) -> Option<u32> {
        let (slot, state) = (0..self.view().process_slots()).find_map(|slot| Some((slot, self.next_state(slot)?)))?;
        let at = self.pointer(self.view().process_slot(slot)?);
        let entry = self.part(self.view().process_entry(slot)?);
        // SAFETY: slot and entry lie inside the region (checked by `open`). The slot is mapped into no process (contract)
        // and the host has read it to its end, or it was never used, so that this is its only user.
        unsafe {
            at.write_bytes(0, self.view().process_slot_size());
            at.cast::<ProcessHeader>().write(self.view().process_header(vcpu_of_cpu));
            entry.store(offset_of!(ProcessEntry, pid), u64::from(pid));
            entry.write(offset_of!(ProcessEntry, comm), comm);
            entry.store_release(offset_of!(ProcessEntry, state), state.to_word());
        }
        Some(slot)
    }

    /// Whether `slot` could be given away now: no process has it, and the host has read it to its end.
    #[must_use]
    pub fn is_free_process_slot(&self, slot: u32) -> bool {
        self.next_state(slot).is_some()
    }

    /// Tells the processes that have slots that CPU `cpu` of the kernel is `vcpu`. Numbers that a slot has no room for are
    /// left out.
    pub fn tell_processes_vcpu(&self, cpu: u32, vcpu: u16) {
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
        self.process_state(slot)?.next(|| unsafe { self.part(acknowledgement).load_acquire(0) })
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
    use crate::host::{Parts, ProcessOwner};
    use crate::layout::{PROCESS_ACTIVE, PROCESS_FREE};
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
    fn closed_slot_is_reused_only_after_the_host_has_drained_it() {
        let sides = sides();
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
        let sides = sides();
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
    fn cpu_that_comes_online_is_told_to_active_slots_only() {
        let sides = sides();
        claim(&sides, 1, &[u16::MAX; MAX_VCPUS as usize]);
        let table = offset_of!(ProcessHeader, vcpu_of_cpu);
        let word = |slot| sides.memory.load(sides.host.layout().process_slot(slot) + table);

        sides.guest.tell_processes_vcpu(1, 7);
        sides.guest.tell_processes_vcpu(MAX_VCPUS, 7);

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
