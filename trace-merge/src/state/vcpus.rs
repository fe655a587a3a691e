//! What vCPUs did: where their threads were by KVM's and the VMM's events, and whether the host ran them.

use super::event::{Access, Event};
use super::history::{History, Interval};
use super::host::{Host, HostCpuState, ThreadState};
use crate::exit_reason::ExitReason;
use crate::window::Window;

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
        /// Whether it was in the VMM since.
        returning: bool,
    },
    /// In the VMM.
    Vmm {
        /// Why the guest was left; `None` before it was entered for the first time.
        reason: Option<ExitReason>,
    },
    /// In the guest or in KVM: only the VMM's events are there to tell.
    KvmRun,
}

/// What kept a vCPU's thread from running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Thief {
    /// A thread of the host, by its id.
    Thread(i32),
    /// Nothing: the CPU was idle and had yet to begin.
    Idle,
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
        by: Thief,
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

/// A vCPU.
#[derive(Clone, Debug)]
pub struct Vcpu {
    /// Its host thread, once that is known.
    pub tid: Option<i32>,
    /// Where its thread is. Every exit from the guest begins an interval.
    pub location: History<Location>,
    /// What it does. Known when all events are in: see [`complete`](Self::complete).
    pub state: History<VcpuState>,
    /// What it accessed in the VMM, in the order of the times.
    pub accesses: Vec<(u64, Access)>,
    /// Whether the VMM's records are missing at the moment.
    vmm_gap: bool,
}

impl Default for Vcpu {
    fn default() -> Self {
        Self {
            tid: None,
            location: History::new(Location::Unknown),
            state: History::new(VcpuState::Unknown),
            accesses: Vec::new(),
            vmm_gap: false,
        }
    }
}

impl Vcpu {
    /// A vCPU whose host thread is `tid`.
    #[must_use]
    pub fn of_thread(tid: i32) -> Self {
        Self { tid: Some(tid), ..Self::default() }
    }

    /// Takes in an event that is about this vCPU. `kvm_tells` says whether KVM's events are recorded: then the VMM's do not
    /// have to stand for them.
    pub fn apply(&mut self, time: u64, event: &Event<'_>, kvm_tells: bool) {
        let left_for = match self.location.current() {
            Location::Kvm { reason, .. } | Location::Vmm { reason } => reason,
            Location::Unknown | Location::Guest | Location::KvmRun => None,
        };
        match *event {
            Event::KvmEntry { .. } => self.location.set(time, Location::Guest),
            Event::KvmExit { reason, .. } => {
                self.location.begin(time, Location::Kvm { reason: Some(reason), returning: false });
            }
            // Without the VMM's records it is not known when the VMM is done.
            Event::KvmUserspaceExit { .. } if self.vmm_gap => self.location.set(time, Location::Unknown),
            Event::KvmUserspaceExit { .. } => self.location.set(time, Location::Vmm { reason: left_for }),
            Event::VmmEnter { .. } if kvm_tells => {
                self.location.set(time, Location::Kvm { reason: left_for, returning: true });
            }
            Event::VmmEnter { .. } => self.location.set(time, Location::KvmRun),
            Event::VmmExit { reason, .. } => {
                let reason = if kvm_tells { left_for.or(Some(reason)) } else { Some(reason) };
                self.location.set(time, Location::Vmm { reason });
            }
            Event::VcpuThread { tid, .. } => {
                self.tid = Some(tid);
                self.location.set(time, Location::Vmm { reason: None });
            }
            Event::Access { access, .. } => self.accesses.push((time, access)),
            Event::GapBegin => self.location.set(time, Location::Unknown),
            _ => {}
        }
    }

    /// The first access to the VMM's devices in `window`.
    #[must_use]
    pub fn access_in(&self, window: &Window) -> Option<Access> {
        let first = self.accesses.partition_point(|&(time, _)| time < window.begin);
        self.accesses.get(first).filter(|&&(time, _)| time < window.end).map(|&(_, access)| access)
    }

    /// Records of the VMM about it are missing from `time` on.
    pub fn begin_vmm_gap(&mut self, time: u64) {
        self.vmm_gap = true;
        if self.location.current() != Location::Guest {
            self.location.set(time, Location::Unknown);
        }
    }

    /// The VMM's records about it go on.
    pub const fn end_vmm_gap(&mut self) {
        self.vmm_gap = false;
    }

    /// Puts together what it did, all events of it and of its host being in.
    pub fn complete(&mut self, host: Option<&Host>) {
        let mut state = History::new(VcpuState::Unknown);
        for location in self.location.over(Window::ALL) {
            let thread = host.zip(self.tid).and_then(|(host, tid)| host.thread(tid));
            let Some((host, thread)) = host.zip(thread) else {
                state.set(location.begin, running(location.state));
                continue;
            };
            for scheduled in thread.over(location.window()) {
                put(&mut state, location.state, &scheduled, host);
            }
        }
        self.state = state;
    }
}

/// Adds to `state` what the vCPU did while its thread was at `location` and in the state `scheduled`.
fn put(state: &mut History<VcpuState>, location: Location, scheduled: &Interval<ThreadState>, host: &Host) {
    let begin = scheduled.begin;
    match scheduled.state {
        ThreadState::Running { .. } => state.set(begin, running(location)),
        ThreadState::Unknown => state.set(begin, VcpuState::Unknown),
        ThreadState::Blocked => state.set(begin, blocked(location)),
        ThreadState::Ended => state.set(begin, VcpuState::Ended),
        ThreadState::Waiting { cpu, woken } => match cpu.and_then(|cpu| host.cpu(cpu)) {
            Some(cpu) => {
                for runs in cpu.over(scheduled.window()) {
                    let by = match runs.state {
                        HostCpuState::Unknown => Thief::Unknown,
                        HostCpuState::Idle => Thief::Idle,
                        HostCpuState::Running(tid) => Thief::Thread(tid),
                    };
                    state.set(runs.begin, VcpuState::Stolen { by, woken });
                }
            }
            None => state.set(begin, VcpuState::Stolen { by: Thief::Unknown, woken }),
        },
    }
}

/// What a vCPU does whose thread runs.
const fn running(location: Location) -> VcpuState {
    match location {
        Location::Unknown => VcpuState::Unknown,
        Location::Guest => VcpuState::Guest,
        Location::Kvm { reason, .. } => VcpuState::Kvm(reason),
        Location::Vmm { reason } => VcpuState::Vmm(reason),
        Location::KvmRun => VcpuState::KvmRun,
    }
}

/// What a vCPU does whose thread waits for something.
const fn blocked(location: Location) -> VcpuState {
    match location {
        Location::Kvm { reason: Some(reason), .. } if reason.is_halt() => VcpuState::Halted,
        Location::Kvm { reason, .. } => VcpuState::BlockedInKvm(reason),
        Location::Vmm { reason } => VcpuState::BlockedInVmm(reason),
        // A thread cannot wait in the guest: how it left is not recorded.
        Location::Unknown | Location::Guest => VcpuState::Unknown,
        Location::KvmRun => VcpuState::KvmRun,
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::Task;
    use super::*;
    use crate::exit_reason::ExitNumbering;

    const HLT: ExitReason = ExitReason { numbering: ExitNumbering::Svm, number: 0x78 };
    const IO: ExitReason = ExitReason { numbering: ExitNumbering::Svm, number: 0x7b };
    const KVM_IO: ExitReason = ExitReason { numbering: ExitNumbering::Kvm, number: 2 };
    const VCPU: Task<'_> = Task { tid: 100, comm: b"vcpu0" };
    const HOG: Task<'_> = Task { tid: 200, comm: b"hog" };
    const OTHER: Task<'_> = Task { tid: 300, comm: b"other" };
    const IDLE: Task<'_> = Task { tid: 0, comm: b"" };
    const ENTRY: Event<'_> = Event::KvmEntry { tid: 100, vcpu: Some(0) };

    fn exit(reason: ExitReason) -> Event<'static> {
        Event::KvmExit { tid: 100, vcpu: Some(0), reason }
    }

    fn switch<'t>(prev: Task<'t>, prev_state: u64, next: Task<'t>) -> Event<'t> {
        Event::Switch { prev, prev_state, next }
    }

    /// The states that the events of host CPU 0 and of the VMM make, with their begins.
    fn states(events: &[(u64, Event<'_>)], kvm_tells: bool) -> Vec<(u64, VcpuState)> {
        let mut host = Host::new(None);
        let mut vcpu = Vcpu { tid: Some(100), ..Vcpu::default() };
        for (time, event) in events {
            host.apply(*time, 0, event);
            vcpu.apply(*time, event, kvm_tells);
        }
        vcpu.complete(kvm_tells.then_some(&host));
        vcpu.state.over(Window { begin: 1, end: 1000 }).map(|interval| (interval.begin, interval.state)).collect()
    }

    #[test]
    fn exit_passes_through_kvm_and_the_vmm() {
        let states = states(
            &[
                (10, ENTRY),
                (20, exit(IO)),
                (22, Event::VmmExit { vcpu: 0, reason: KVM_IO }),
                (25, Event::Access { vcpu: 0, access: Access::Port(0x3f8) }),
                (28, Event::VmmEnter { vcpu: 0 }),
                (30, ENTRY),
            ],
            true,
        );

        assert_eq!(
            states,
            [
                (1, VcpuState::Unknown),
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
        let states = states(
            &[
                (10, ENTRY),
                (20, exit(IO)),
                (21, switch(VCPU, 0x100, HOG)),
                (30, switch(HOG, 0x100, OTHER)),
                (40, switch(OTHER, 1, VCPU)),
                (41, ENTRY),
            ],
            true,
        );

        let stolen = |tid| VcpuState::Stolen { by: Thief::Thread(tid), woken: false };
        assert_eq!(
            states[2..],
            [
                (20, VcpuState::Kvm(Some(IO))),
                (21, stolen(200)),
                (30, stolen(300)),
                (40, VcpuState::Kvm(Some(IO))),
                (41, VcpuState::Guest),
            ]
        );
    }

    #[test]
    fn halt_ends_with_the_wakeup_and_the_cpus_beginning_is_waited_for() {
        let states = states(
            &[
                (10, ENTRY),
                (20, exit(HLT)),
                (25, switch(VCPU, 1, IDLE)),
                (50, Event::Wakeup { task: VCPU, cpu: Some(0) }),
                (55, switch(IDLE, 0, VCPU)),
                (60, ENTRY),
            ],
            true,
        );

        assert_eq!(
            states[2..],
            [
                (20, VcpuState::Kvm(Some(HLT))),
                (25, VcpuState::Halted),
                (50, VcpuState::Stolen { by: Thief::Idle, woken: true }),
                (55, VcpuState::Kvm(Some(HLT))),
                (60, VcpuState::Guest),
            ]
        );
    }

    #[test]
    fn without_kvms_events_the_guest_and_kvm_are_not_told_apart() {
        let states = states(
            &[
                (10, Event::VmmEnter { vcpu: 0 }),
                (20, Event::VmmExit { vcpu: 0, reason: KVM_IO }),
                (30, Event::VmmEnter { vcpu: 0 }),
            ],
            false,
        );

        assert_eq!(states[1..], [(10, VcpuState::KvmRun), (20, VcpuState::Vmm(Some(KVM_IO))), (30, VcpuState::KvmRun)]);
    }

    #[test]
    fn vcpu_can_wait_in_the_vmm_and_end() {
        let states = states(
            &[
                (10, Event::VcpuThread { vcpu: 0, tid: 100 }),
                (12, switch(VCPU, 1, IDLE)),
                (20, switch(IDLE, 0, VCPU)),
                (30, switch(VCPU, 0x10, IDLE)),
            ],
            true,
        );

        assert_eq!(
            states[1..],
            [
                // Before the host's first record of the thread it is not known whether it runs.
                (12, VcpuState::BlockedInVmm(None)),
                (20, VcpuState::Vmm(None)),
                (30, VcpuState::Ended),
            ]
        );
    }

    #[test]
    fn missing_records_make_it_unknown_until_the_next_that_tells() {
        let states = states(&[(10, ENTRY), (20, Event::GapBegin), (30, Event::GapEnd), (40, ENTRY)], true);

        assert_eq!(
            states,
            [(1, VcpuState::Unknown), (10, VcpuState::Guest), (20, VcpuState::Unknown), (40, VcpuState::Guest)]
        );
    }

    #[test]
    fn every_exit_begins_an_interval() {
        let mut vcpu = Vcpu::default();
        for (time, event) in [(10, exit(IO)), (20, exit(IO))] {
            vcpu.apply(time, &event, true);
        }

        assert_eq!(vcpu.location.over(Window { begin: 10, end: 30 }).count(), 2);
    }
}
