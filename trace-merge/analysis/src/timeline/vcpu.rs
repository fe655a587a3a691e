//! What a vCPU does now: where its thread is by KVM's and the VMM's events, and whether the host runs it.

use super::host::{HostCpuState, HostThread, ThreadState};
use crate::event::{Event, Tid};
use crate::exit_reason::{ExitNumbering, ExitReason};
use std::hash::{Hash, Hasher};

/// Where a vCPU's thread is, whether or not the host runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// Not known.
    Unknown,
    /// In the guest.
    Guest,
    /// In KVM.
    Kvm {
        /// Why the guest was left; `None` before it was entered for the first time.
        reason: Option<ExitReason>,
    },
    /// In KVM; the record of why the guest was left is missing. The VMM's own reason does not say whether the vCPU is
    /// halted.
    KvmAfterLoss,
    /// In the VMM.
    Vmm {
        /// Why the guest was left; `None` before it was entered for the first time.
        reason: Option<ExitReason>,
    },
    /// In the guest or in KVM: only the VMM's events are there to tell.
    KvmRun,
}

/// What runs in place of a vCPU's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Preemptor {
    /// A thread of the host.
    Thread(HostThread),
    /// Nothing: the CPU was idle and had yet to begin.
    Idle,
    /// Nothing: the CPU went idle, or stayed so, with the thread in its queue, so that it was not allowed to run. A limit of
    /// its control group, say.
    NotAllowed,
    /// Nothing: the CPU was idle for longer than it takes to begin. Whether the thread was allowed to run is not recorded.
    IdleForLong,
    /// Not known.
    Unknown,
}

/// What a vCPU does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VcpuState {
    /// Not known.
    Unknown,
    /// It is in the guest.
    Guest,
    /// In the guest, in KVM or preempted: there is no host-kernel layer to tell.
    KvmRun,
    /// KVM handles an exit.
    Kvm(Option<ExitReason>),
    /// The VMM handles an exit.
    Vmm(Option<ExitReason>),
    /// Its thread is ready to run, but the host does not run it.
    Stolen {
        /// What runs on its CPU.
        by: Preemptor,
        /// Whether it had been woken, and not preempted.
        woken: bool,
    },
    /// The guest has nothing to do for it.
    Halted,
    /// Its thread waits for something in KVM, other than for the end of a halt.
    BlockedInKvm(Option<ExitReason>),
    /// Its thread waits for something in the VMM.
    BlockedInVmm(Option<ExitReason>),
    /// Its thread has ended.
    Ended,
}

/// A vCPU at the moment that the timeline has come to.
#[derive(Clone, Debug)]
pub struct Vcpu {
    /// Its host thread, once that is known.
    pub tid: Option<Tid>,
    /// Where its thread is.
    pub location: Location,
    /// How often that was lost, as records were missing.
    pub lost: u64,
    /// What its thread does, as the host's scheduler tells.
    pub(super) thread: ThreadState,
    /// Of a thread that waits: whether it is in its CPU's queue for sure, and not on the way there.
    pub(super) queued: bool,
    /// Of a thread that waits: whether its CPU has gone idle with the thread in its queue.
    pub(super) passed_over: bool,
    /// Whether the VMM's records about it are missing at the moment.
    vmm_gap: bool,
    /// What it does.
    pub state: VcpuState,
    /// Since when, ticks; 0 from the beginning on.
    pub since: u64,
}

impl Vcpu {
    /// A vCPU before its first record: its host thread is all that is known.
    pub(super) const fn new(tid: Option<Tid>) -> Self {
        Self {
            tid,
            location: Location::Unknown,
            lost: 0,
            thread: ThreadState::Unknown,
            queued: false,
            passed_over: false,
            vmm_gap: false,
            state: VcpuState::Unknown,
            since: 0,
        }
    }

    /// Why the guest was left, where that is known.
    const fn left_for(&self) -> Option<ExitReason> {
        match self.location {
            Location::Kvm { reason } | Location::Vmm { reason } => reason,
            Location::Unknown | Location::Guest | Location::KvmAfterLoss | Location::KvmRun => None,
        }
    }

    /// Takes in an event of KVM's that is about this vCPU. `returns_are_recorded` says whether KVM's returns to the VMM are.
    pub(super) fn apply_of_kvm(&mut self, event: &Event<'_>, returns_are_recorded: bool) {
        self.location = match *event {
            Event::KvmEntry { .. } => Location::Guest,
            // Without the VMM's records it is not known when KVM is done, unless KVM tells that it returns to the VMM.
            Event::KvmExit { .. } if self.vmm_gap && !returns_are_recorded => {
                self.lost += 1;
                Location::Unknown
            }
            Event::KvmExit { reason, .. } => Location::Kvm { reason: Some(reason) },
            // Without the VMM's records it is not known when the VMM is done.
            Event::KvmUserspaceExit { .. } if self.vmm_gap => {
                self.lost += 1;
                Location::Unknown
            }
            Event::KvmUserspaceExit { .. } => Location::Vmm { reason: self.left_for() },
            _ => return,
        };
    }

    /// Takes in an event of the VMM's that is about this vCPU. `kvm_reports` says whether KVM's events are recorded: then
    /// this one does not have to stand for them.
    pub(super) fn apply_of_vmm(&mut self, event: &Event<'_>, kvm_reports: bool) {
        let left_for = self.left_for();
        self.location = match *event {
            Event::VmmEnter { .. }
                if kvm_reports
                    && self.lost > 0
                    && left_for.is_none_or(|reason| reason.numbering == ExitNumbering::Kvm) =>
            {
                Location::KvmAfterLoss
            }
            Event::VmmEnter { .. } if kvm_reports => Location::Kvm { reason: left_for },
            Event::VmmEnter { .. } => Location::KvmRun,
            Event::VmmExit { reason, .. } => {
                Location::Vmm { reason: if kvm_reports { left_for.or(Some(reason)) } else { Some(reason) } }
            }
            Event::VcpuThread { tid, .. } => {
                self.tid = Some(tid);
                Location::Vmm { reason: None }
            }
            _ => return,
        };
    }

    /// Its thread does `thread` from now on, on its way into a CPU's queue if it waits.
    pub(super) const fn set_thread(&mut self, thread: ThreadState) {
        self.thread = thread;
        (self.queued, self.passed_over) = (false, false);
    }

    /// The host's `cpu` runs something else from now on, or goes idle although the thread may be in its queue.
    pub(super) fn take_turn_of(&mut self, cpu: u32, goes_idle: bool) {
        if matches!(self.thread, ThreadState::Waiting { cpu: Some(on), .. } if on == cpu) {
            self.passed_over = goes_idle && self.queued;
        }
    }

    /// Records that could have moved it are missing from now on.
    pub(super) const fn lose_location(&mut self) {
        self.location = Location::Unknown;
        self.lost += 1;
    }

    /// Records of the VMM about it are missing from now on.
    pub(super) fn begin_vmm_gap(&mut self) {
        self.vmm_gap = true;
        if self.location != Location::Guest {
            self.lose_location();
        }
    }

    /// The VMM's records about it go on.
    pub(super) const fn end_vmm_gap(&mut self) {
        self.vmm_gap = false;
    }

    /// Whether records of the VMM about it are missing at the moment.
    pub(super) const fn has_vmm_gap(&self) -> bool {
        self.vmm_gap
    }

    /// Whether it has halted, or has not been in the guest yet.
    pub(super) const fn rests(&self) -> bool {
        match self.location {
            Location::Kvm { reason: Some(reason) } => reason.is_halt(),
            Location::Kvm { reason: None } | Location::Vmm { reason: None } => true,
            _ => false,
        }
    }

    /// What it does now. `runs` says what a host CPU runs; `None` where no scheduler tells.
    pub(super) fn current_state(&self, scheduled: bool, runs: impl Fn(u32) -> HostCpuState) -> VcpuState {
        if !scheduled {
            return running(self.location);
        }
        match self.thread {
            ThreadState::Running { .. } => running(self.location),
            ThreadState::Unknown => VcpuState::Unknown,
            ThreadState::Blocked => blocked(self.location),
            ThreadState::Ended => VcpuState::Ended,
            ThreadState::Waiting { cpu, woken } => {
                let by = match cpu.map_or(HostCpuState::Unknown, runs) {
                    HostCpuState::Unknown => Preemptor::Unknown,
                    HostCpuState::Idle if self.passed_over => Preemptor::NotAllowed,
                    HostCpuState::Idle => Preemptor::Idle,
                    HostCpuState::Running(thread) => Preemptor::Thread(thread),
                };
                VcpuState::Stolen { by, woken }
            }
        }
    }
}

impl Preemptor {
    /// A number of it, which others may share.
    pub(super) fn number(self) -> u64 {
        match self {
            Self::Thread(thread) => thread.number(),
            Self::Idle => 1 << 32,
            Self::NotAllowed => 2 << 32,
            Self::IdleForLong => 3 << 32,
            Self::Unknown => 4 << 32,
        }
    }
}

/// A number of a reason, or of none.
pub(super) const fn number_of(reason: Option<ExitReason>) -> u64 {
    match reason {
        Some(reason) => reason.number as u64 | (reason.numbering as u64) << 32,
        None => u64::MAX,
    }
}

/// As that of a task's state: one number.
impl Hash for VcpuState {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let (variant, of_variant) = match *self {
            Self::Unknown => (0, 0),
            Self::Guest => (1, 0),
            Self::KvmRun => (2, 0),
            Self::Kvm(reason) => (3, number_of(reason)),
            Self::Vmm(reason) => (4, number_of(reason)),
            Self::Stolen { by, woken } => (5 + u64::from(woken), by.number()),
            Self::Halted => (7, 0),
            Self::BlockedInKvm(reason) => (8, number_of(reason)),
            Self::BlockedInVmm(reason) => (9, number_of(reason)),
            Self::Ended => (10, 0),
        };
        hasher.write_u64(of_variant << 4 | variant);
    }
}

impl VcpuState {
    /// What it was, having lasted for `ticks`, where an idle CPU begins within `longest`.
    #[must_use]
    pub(super) const fn having_lasted(self, ticks: u64, longest: u64) -> Self {
        match self {
            Self::Stolen { by: Preemptor::Idle, woken } if ticks > longest => {
                Self::Stolen { by: Preemptor::IdleForLong, woken }
            }
            state => state,
        }
    }
}

/// What a vCPU does whose thread runs.
const fn running(location: Location) -> VcpuState {
    match location {
        Location::Unknown => VcpuState::Unknown,
        Location::Guest => VcpuState::Guest,
        Location::Kvm { reason } => VcpuState::Kvm(reason),
        Location::KvmAfterLoss => VcpuState::Kvm(None),
        Location::Vmm { reason } => VcpuState::Vmm(reason),
        Location::KvmRun => VcpuState::KvmRun,
    }
}

/// What a vCPU does whose thread waits for something.
const fn blocked(location: Location) -> VcpuState {
    match location {
        Location::Kvm { reason: Some(reason) } if reason.is_halt() => VcpuState::Halted,
        Location::Kvm { reason } => VcpuState::BlockedInKvm(reason),
        Location::Vmm { reason } => VcpuState::BlockedInVmm(reason),
        // A thread cannot wait in the guest: how it left is not recorded.
        Location::Unknown | Location::Guest | Location::KvmAfterLoss => VcpuState::Unknown,
        Location::KvmRun => VcpuState::KvmRun,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{
        HLT, HOG, IDLE, IO, Item, KVM_IO, OTHER, Reported, Step, entry, exit, host, on_host, queued, switch, thread,
        vmm, wakeup,
    };
    use super::*;
    use crate::timeline::Task;

    /// The states of vCPU 0 after `steps`, with their begins; `Unknown` from 0 on left out.
    fn reported(steps: &[Step<'_>]) -> (Reported, Vec<(u64, VcpuState)>) {
        let reported = Reported::new().over(steps, 1000);
        let mut states = reported.vcpu(0);
        assert_eq!(states.remove(0), (0, VcpuState::Unknown));
        (reported, states)
    }

    #[test]
    fn exit_passes_through_kvm_and_the_vmm() {
        let (_, states) = reported(&[
            host(10, 0, entry(0)),
            host(20, 0, exit(0, IO)),
            vmm(22, 0, Event::VmmExit { vcpu: 0, reason: KVM_IO }),
            vmm(28, 0, Event::VmmEnter { vcpu: 0 }),
            host(30, 0, entry(0)),
        ]);

        assert_eq!(
            states,
            [
                (10, VcpuState::Guest),
                (20, VcpuState::Kvm(Some(IO))),
                (22, VcpuState::Vmm(Some(IO))),
                (28, VcpuState::Kvm(Some(IO))),
                (30, VcpuState::Guest),
            ]
        );
    }

    #[test]
    fn time_is_stolen_by_whoever_runs_and_by_each_of_several() {
        let (reported, states) = reported(&[
            host(10, 0, entry(0)),
            host(20, 0, exit(0, IO)),
            host(21, 0, switch(thread(0), 0x100, HOG)),
            host(30, 0, switch(HOG, 0x100, OTHER)),
            host(40, 0, switch(OTHER, 1, thread(0))),
            host(41, 0, entry(0)),
        ]);

        let stolen = |task| VcpuState::Stolen { by: reported.preemptor(task), woken: false };
        assert_eq!(
            states[1..],
            [
                (20, VcpuState::Kvm(Some(IO))),
                (21, stolen(HOG)),
                (30, stolen(OTHER)),
                (40, VcpuState::Kvm(Some(IO))),
                (41, VcpuState::Guest),
            ]
        );
    }

    #[test]
    fn halt_ends_with_the_wakeup_and_the_cpus_beginning_is_waited_for() {
        let (_, states) = reported(&[
            host(10, 0, entry(0)),
            host(20, 0, exit(0, HLT)),
            host(25, 0, switch(thread(0), 1, IDLE)),
            host(50, 0, wakeup(thread(0), Some(0))),
            host(55, 0, switch(IDLE, 0, thread(0))),
            host(60, 0, entry(0)),
        ]);

        assert_eq!(
            states[1..],
            [
                (20, VcpuState::Kvm(Some(HLT))),
                (25, VcpuState::Halted),
                (50, VcpuState::Stolen { by: Preemptor::Idle, woken: true }),
                (55, VcpuState::Kvm(Some(HLT))),
                (60, VcpuState::Guest),
            ]
        );
    }

    #[test]
    fn waiting_thread_that_is_moved_is_kept_from_running_by_what_runs_there() {
        let (reported, states) = reported(&[
            host(5, 1, switch(IDLE, 0, OTHER)),
            host(10, 0, entry(0)),
            host(20, 0, switch(thread(0), 0, HOG)),
            host(30, 0, Event::Migrate { tid: 100, cpu: 1 }),
            host(40, 1, switch(OTHER, 1, IDLE)),
        ]);

        let stolen = |by| VcpuState::Stolen { by, woken: false };
        let (hog, other) = (reported.preemptor(HOG), reported.preemptor(OTHER));
        assert_eq!(states[1..], [(20, stolen(hog)), (30, stolen(other)), (40, stolen(Preemptor::Idle))]);
    }

    #[test]
    fn thread_in_the_queue_of_a_cpu_that_goes_idle_is_not_allowed_to_run() {
        let (reported, states) = reported(&[
            host(10, 0, entry(0)),
            host(20, 0, exit(0, HLT)),
            host(25, 0, switch(thread(0), 1, HOG)),
            host(50, 0, wakeup(thread(0), Some(0))),
            host(51, 0, queued(thread(0), Some(0))),
            host(60, 0, switch(HOG, 1, IDLE)),
            host(70, 0, switch(IDLE, 0, OTHER)),
            host(80, 0, switch(OTHER, 1, IDLE)),
            host(90, 0, switch(IDLE, 0, thread(0))),
        ]);

        let stolen = |by| VcpuState::Stolen { by, woken: true };
        let (hog, other, limit) = (reported.preemptor(HOG), reported.preemptor(OTHER), Preemptor::NotAllowed);
        assert_eq!(
            states[3..],
            [
                (50, stolen(hog)),
                (60, stolen(limit)),
                (70, stolen(other)),
                (80, stolen(limit)),
                (90, VcpuState::Kvm(Some(HLT))),
            ]
        );
    }

    #[test]
    fn thread_on_its_way_into_a_queue_is_waited_for_by_an_idle_cpu() {
        let (_, states) = reported(&[
            host(10, 0, entry(0)),
            host(20, 0, exit(0, HLT)),
            host(25, 0, switch(thread(0), 1, HOG)),
            host(50, 0, wakeup(thread(0), Some(0))),
            host(60, 0, switch(HOG, 1, IDLE)),
        ]);

        assert_eq!(states.last(), Some(&(60, VcpuState::Stolen { by: Preemptor::Idle, woken: true })));
    }

    #[test]
    fn without_kvms_events_the_guest_and_kvm_are_not_distinguished() {
        let mut vcpu = Vcpu::new(None);
        let events = [Event::VmmEnter { vcpu: 0 }, Event::VmmExit { vcpu: 0, reason: KVM_IO }];

        let states = events.map(|event| {
            vcpu.apply_of_vmm(&event, false);
            vcpu.current_state(false, |_| HostCpuState::Unknown)
        });

        assert_eq!(states, [VcpuState::KvmRun, VcpuState::Vmm(Some(KVM_IO))]);
    }

    #[test]
    fn vcpu_can_wait_in_the_vmm_and_end() {
        let (_, states) = reported(&[
            vmm(10, 0, Event::VcpuThread { vcpu: 0, tid: 100 }),
            // Before the host's first record of the thread it is not known whether it runs.
            host(12, 0, switch(thread(0), 1, IDLE)),
            host(20, 0, switch(IDLE, 0, thread(0))),
            host(30, 0, switch(thread(0), 0x10, IDLE)),
        ]);

        assert_eq!(states, [(12, VcpuState::BlockedInVmm(None)), (20, VcpuState::Vmm(None)), (30, VcpuState::Ended)]);
    }

    /// A thread that is known to run vCPU 0, too, besides [`thread`]`(0)`, which is the first one.
    const NEXT: Task<'_> = Task { tid: 110, comm: b"vcpu" };

    /// A timeline that knows of [`NEXT`].
    fn with_two_threads() -> Reported {
        let mut reported = Reported::new();
        reported.timeline.vcpu_threads.insert((0, NEXT.tid), (0, 0));
        reported
    }

    #[test]
    fn vcpu_whose_thread_is_replaced_is_followed_on_the_next_one_from_its_first_entry() {
        let enters = Event::KvmEntry { tid: NEXT.tid, vcpu: Some(0) };
        let reported = with_two_threads().over(
            &[
                host(10, 0, entry(0)),
                host(20, 0, exit(0, IO)),
                host(30, 0, switch(thread(0), 0x10, IDLE)),
                host(40, 1, switch(IDLE, 0, NEXT)),
                host(50, 1, enters),
                // What becomes of the first thread does not matter any more.
                host(60, 0, switch(IDLE, 0, thread(0))),
                host(70, 1, switch(NEXT, 0, HOG)),
            ],
            80,
        );

        let stolen = VcpuState::Stolen { by: reported.preemptor(HOG), woken: false };
        assert_eq!(
            reported.vcpu(0)[1..],
            [
                (10, VcpuState::Guest),
                (20, VcpuState::Kvm(Some(IO))),
                (30, VcpuState::Ended),
                (50, VcpuState::Guest),
                (70, stolen)
            ]
        );
    }

    #[test]
    fn thread_that_runs_another_vcpu_leaves_the_one_before_unknown() {
        let reported = with_two_threads().over(
            &[
                host(10, 0, Event::KvmEntry { tid: NEXT.tid, vcpu: Some(0) }),
                host(20, 0, Event::KvmExit { tid: NEXT.tid, vcpu: Some(0), reason: IO }),
                host(30, 0, Event::KvmEntry { tid: NEXT.tid, vcpu: Some(1) }),
            ],
            40,
        );

        assert_eq!(
            reported.vcpu(0)[1..],
            [(10, VcpuState::Guest), (20, VcpuState::Kvm(Some(IO))), (30, VcpuState::Unknown)]
        );
        assert_eq!(reported.vcpu(1)[1..], [(30, VcpuState::Guest)]);
    }

    #[test]
    fn missing_records_make_it_unknown_until_the_next_that_tells() {
        let (_, states) = reported(&[
            host(10, 0, entry(0)),
            on_host(20, 0, Item::GapBegin),
            on_host(30, 0, Item::GapEnd),
            host(40, 0, entry(0)),
        ]);

        assert_eq!(states, [(10, VcpuState::Guest), (20, VcpuState::Unknown), (40, VcpuState::Guest)]);
    }

    #[test]
    fn thread_that_is_replaced_without_being_switched_out_is_unknown() {
        let (_, states) = reported(&[host(10, 0, entry(0)), host(20, 0, switch(OTHER, 0, HOG))]);

        assert_eq!(states, [(10, VcpuState::Guest), (20, VcpuState::Unknown)]);
    }
}
