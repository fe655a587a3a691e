//! What a host's CPUs run now, by its scheduler's events.

use crate::event::{Event, Rename, Task, Tid};
use crate::timeline::by_number::ByNumber;
use foldhash::HashMap;
use std::collections::BTreeSet;

/// What a host CPU runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostCpuState {
    /// Not known.
    Unknown,
    /// Nothing.
    Idle,
    /// A thread.
    Running(HostThread),
}

/// A thread of a host, under the name that it has at the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostThread {
    /// Thread id.
    pub tid: Tid,
    /// Its name: index into those of its host.
    name: u32,
}

impl HostThread {
    /// Both in one number.
    pub(super) fn number(self) -> u64 {
        u64::from(self.tid.cast_unsigned()) | u64::from(self.name) << 32
    }
}

/// What a host thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadState {
    /// Not known.
    Unknown,
    /// It runs.
    Running {
        /// On this CPU.
        cpu: u32,
    },
    /// It is ready to run, and something else does.
    Waiting {
        /// On the CPU that it waits for, where that is known.
        cpu: Option<u32>,
        /// Whether it was woken, and not preempted.
        woken: bool,
    },
    /// It waits for something.
    Blocked,
    /// It has ended.
    Ended,
}

/// Bits of `sched_switch`'s `prev_state` that say what a task waits for. Without any it is ready to run; bits above say
/// that it was preempted.
pub const PREV_STATE_MASK: u64 = 0xff;
/// `prev_state` of a task that is dead (`EXIT_DEAD`), or a zombie (`EXIT_ZOMBIE`).
pub(super) const PREV_STATE_ENDED: u64 = 0x10 | 0x20;

impl ThreadState {
    /// The state after the thread was woken for `target`. A thread that runs is not woken: it had only been about to
    /// sleep. While records of any CPU are missing it may run there already.
    pub(super) const fn woken(self, target: Option<u32>, anything_missing: bool) -> Self {
        match self {
            Self::Running { .. } => self,
            _ if anything_missing => Self::Unknown,
            Self::Waiting { woken, .. } => Self::Waiting { cpu: target, woken },
            Self::Unknown | Self::Blocked | Self::Ended => Self::Waiting { cpu: target, woken: true },
        }
    }

    /// The state after the thread was moved to the queue of `target`.
    pub(super) const fn migrated(self, target: u32, anything_missing: bool) -> Self {
        match self {
            Self::Waiting { .. } if anything_missing => Self::Unknown,
            Self::Waiting { woken, .. } => Self::Waiting { cpu: Some(target), woken },
            _ => self,
        }
    }

    /// The state after `cpu` switched away from the thread, with `prev_state`.
    pub(super) const fn switched_out(cpu: u32, prev_state: u64, anything_missing: bool) -> Self {
        match prev_state & PREV_STATE_MASK {
            _ if anything_missing => Self::Unknown,
            0 => Self::Waiting { cpu: Some(cpu), woken: false },
            ended if ended & PREV_STATE_ENDED != 0 => Self::Ended,
            _ => Self::Blocked,
        }
    }
}

/// A host at the moment that the timeline has come to.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// Name; `None` for the first host of a recording.
    pub name: Option<String>,
    cpus: ByNumber<HostCpuState>,
    /// All names of threads; the first one is empty, of threads that no record names.
    names: Vec<Vec<u8>>,
    /// The same, for finding them.
    indices: HashMap<Vec<u8>, u32>,
    /// The latest name of each thread.
    comms: HashMap<Tid, u32>,
    /// CPUs whose records are missing at the moment.
    gaps: BTreeSet<u32>,
    /// CPUs whose records of KVM are missing at the moment, which are in a layer of their own.
    kvm_gaps: BTreeSet<u32>,
}

impl Host {
    pub(super) fn new(name: Option<String>) -> Self {
        Self { name, names: vec![Vec::new()], ..Self::default() }
    }

    /// What `cpu` runs.
    #[must_use]
    pub fn cpu(&self, cpu: u32) -> HostCpuState {
        self.cpus.get(cpu).copied().unwrap_or(HostCpuState::Unknown)
    }

    /// The name of `thread`; its number where no record named it.
    #[must_use]
    pub fn thread_name(&self, thread: HostThread) -> String {
        let name = self.name(thread.name).filter(|name| !name.is_empty());
        name.map_or_else(|| thread.tid.to_string(), |name| String::from_utf8_lossy(name).into_owned())
    }

    /// The latest name of the thread `tid`; `None` where no record named it.
    #[must_use]
    pub fn latest_name(&self, tid: Tid) -> Option<&[u8]> {
        self.name(*self.comms.get(&tid)?).filter(|name| !name.is_empty())
    }

    fn name(&self, index: u32) -> Option<&[u8]> {
        self.names.get(index as usize).map(Vec::as_slice)
    }

    /// The thread `tid` under its latest name.
    #[must_use]
    pub fn latest(&self, tid: Tid) -> HostThread {
        HostThread { tid, name: self.comms.get(&tid).copied().unwrap_or(0) }
    }

    /// Number of threads whose names are known.
    #[must_use]
    pub fn known_threads(&self) -> usize {
        self.comms.len().max(self.names.len())
    }

    /// Whether records of any CPU are missing at the moment; KVM's where they are in a layer of their own are not
    /// meant.
    #[must_use]
    pub fn has_gap(&self) -> bool {
        !self.gaps.is_empty()
    }

    /// Whether records of KVM of any CPU are missing at the moment.
    #[must_use]
    pub fn has_kvm_gap(&self) -> bool {
        self.has_gap() || !self.kvm_gaps.is_empty()
    }

    /// Whether a thread that does `thread` may enter and leave a guest without a record, at the moment.
    pub(super) fn hides_crossings(&self, thread: ThreadState) -> bool {
        match thread {
            ThreadState::Running { cpu } => self.kvm_gaps.contains(&cpu),
            _ => !self.kvm_gaps.is_empty(),
        }
    }

    pub(super) fn apply(&mut self, cpu: u32, event: &Event<'_>) {
        match *event {
            Event::Switch { prev, next, .. } => {
                self.thread(prev);
                let next = self.thread(next);
                let runs = if next.tid > 0 { HostCpuState::Running(next) } else { HostCpuState::Idle };
                self.cpus.insert(cpu, runs);
            }
            Event::Wakeup { task, .. } => drop(self.thread(task)),
            Event::Rename(ref rename) => self.rename(cpu, rename),
            // A thread that records an event of its own runs on the CPU that records it. Who leaves a guest may give
            // way to another one, which is not recorded where all but KVM's records are missing.
            Event::KvmExit { .. } | Event::KvmUserspaceExit { .. } if self.gaps.contains(&cpu) => {
                self.cpus.insert(cpu, HostCpuState::Unknown);
            }
            Event::KvmEntry { tid, .. } | Event::KvmExit { tid, .. } | Event::KvmUserspaceExit { tid } if tid > 0 => {
                let thread = self.thread(Task { tid, comm: &[] });
                self.cpus.insert(cpu, HostCpuState::Running(thread));
            }
            _ => {}
        }
    }

    /// A thread has another name, also where it runs.
    fn rename(&mut self, cpu: u32, rename: &Rename<'_>) {
        let runs = match self.cpu(cpu) {
            HostCpuState::Running(thread) => thread.tid,
            HostCpuState::Unknown | HostCpuState::Idle => 0,
        };
        let tid = rename.tid.unwrap_or(runs);
        let is_its = rename.begins_with(Task { tid, comm: self.latest_name(tid).unwrap_or_default() });
        if tid <= 0 || !is_its {
            return;
        }
        let renamed = HostCpuState::Running(self.thread(Task { tid, comm: rename.after }));
        for state in self.cpus.values_mut() {
            if matches!(state, HostCpuState::Running(thread) if thread.tid == tid) {
                *state = renamed;
            }
        }
    }

    pub(super) fn begin_gap(&mut self, cpu: u32) {
        self.gaps.insert(cpu);
        self.cpus.insert(cpu, HostCpuState::Unknown);
    }

    pub(super) fn end_gap(&mut self, cpu: u32) {
        self.gaps.remove(&cpu);
    }

    pub(super) fn begin_kvm_gap(&mut self, cpu: u32) {
        self.kvm_gaps.insert(cpu);
    }

    pub(super) fn end_kvm_gap(&mut self, cpu: u32) {
        self.kvm_gaps.remove(&cpu);
    }

    /// Whether records of `cpu` are missing at the moment.
    pub(super) fn is_in_gap(&self, cpu: u32) -> bool {
        self.gaps.contains(&cpu)
    }

    /// The thread that `task` names, under that name, or the one that it was known by where `task` has none.
    fn thread(&mut self, task: Task<'_>) -> HostThread {
        let known = self.comms.get(&task.tid).copied().unwrap_or(0);
        if task.comm.is_empty() || self.name(known).is_some_and(|name| name == task.comm) {
            return HostThread { tid: task.tid, name: known };
        }
        let name = match self.indices.get(task.comm) {
            Some(&index) => index,
            None => {
                // More names than that take more memory than there is; their threads would have none.
                let name = u32::try_from(self.names.len()).unwrap_or(0);
                self.names.push(task.comm.to_vec());
                self.indices.insert(task.comm.to_vec(), name);
                name
            }
        };
        self.comms.insert(task.tid, name);
        HostThread { tid: task.tid, name }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VCPU: Task<'_> = Task { tid: 100, comm: b"vcpu0" };
    const HOG: Task<'_> = Task { tid: 200, comm: b"hog" };
    const IDLE: Task<'_> = Task { tid: 0, comm: b"swapper/0" };
    const WAITING: ThreadState = ThreadState::Waiting { cpu: Some(0), woken: false };
    const WOKEN: ThreadState = ThreadState::Waiting { cpu: Some(1), woken: true };

    fn host(events: &[(u32, Event<'_>)]) -> Host {
        let mut host = Host::new(None);
        events.iter().for_each(|(cpu, event)| host.apply(*cpu, event));
        host
    }

    /// Thread id and name of what `cpu` runs.
    fn runs(host: &Host, cpu: u32) -> Option<(Tid, String)> {
        match host.cpu(cpu) {
            HostCpuState::Running(thread) => Some((thread.tid, host.thread_name(thread))),
            HostCpuState::Idle | HostCpuState::Unknown => None,
        }
    }

    #[test]
    fn cpu_runs_what_it_switched_to() {
        let host = host(&[
            (0, Event::Switch { prev: IDLE, prev_state: 0, next: VCPU }),
            (0, Event::Switch { prev: VCPU, prev_state: 0, next: HOG }),
            (1, Event::Switch { prev: HOG, prev_state: 0, next: IDLE }),
        ]);

        assert_eq!(runs(&host, 0), Some((200, "hog".into())));
        assert_eq!((host.cpu(1), host.cpu(2)), (HostCpuState::Idle, HostCpuState::Unknown));
    }

    #[test]
    fn thread_that_enters_the_guest_runs_under_its_number_until_it_is_named() {
        let entry = (3, Event::KvmEntry { tid: 100, vcpu: None });
        let named = (0, Event::Switch { prev: VCPU, prev_state: 1, next: IDLE });

        assert_eq!(runs(&host(&[entry]), 3), Some((100, "100".into())));
        assert_eq!(runs(&host(&[named, entry]), 3), Some((100, "vcpu0".into())));
    }

    #[test]
    fn thread_that_runs_has_the_name_that_it_gives_itself() {
        let rename = |tid, before| Event::Rename(Rename { tid, before, after: b"worker" });
        let switch = (0, Event::Switch { prev: IDLE, prev_state: 0, next: HOG });
        let after = |event| runs(&host(&[switch, (0, event)]), 0);

        let named = Some((200, "worker".to_string()));
        assert_eq!([after(rename(Some(200), b"hog")), after(rename(None, b"hog"))], [named.clone(), named]);
        // One that it made, and one that runs elsewhere.
        let same = Some((200, "hog".to_string()));
        assert_eq!([after(rename(None, b"kthreadd")), after(rename(Some(100), b"vcpu0"))], [same.clone(), same]);
    }

    #[test]
    fn event_without_a_thread_tells_nothing() {
        assert_eq!(host(&[(3, Event::KvmEntry { tid: -1, vcpu: None })]).cpu(3), HostCpuState::Unknown);
    }

    #[test]
    fn cpu_is_unknown_while_its_records_are_missing() {
        let mut host = host(&[(0, Event::Switch { prev: IDLE, prev_state: 0, next: VCPU })]);

        host.begin_gap(0);
        assert_eq!((host.cpu(0), host.has_gap()), (HostCpuState::Unknown, true));
        host.end_gap(0);
        assert_eq!((host.cpu(0), host.has_gap()), (HostCpuState::Unknown, false));
    }

    #[test]
    fn thread_that_is_switched_out_waits_is_blocked_or_has_ended() {
        let states = [0, 0x100, 1, 0x10, 0x20].map(|state| ThreadState::switched_out(0, state, false));

        assert_eq!(states, [WAITING, WAITING, ThreadState::Blocked, ThreadState::Ended, ThreadState::Ended]);
    }

    #[test]
    fn woken_thread_waits_where_it_will_run_and_a_running_one_stays() {
        let running = ThreadState::Running { cpu: 0 };

        let woken = [ThreadState::Blocked, ThreadState::Unknown, running].map(|state| state.woken(Some(1), false));

        assert_eq!(woken, [WOKEN, WOKEN, running]);
        assert_eq!(WAITING.woken(Some(1), false), ThreadState::Waiting { cpu: Some(1), woken: false });
    }

    #[test]
    fn only_a_thread_that_waits_is_moved() {
        assert_eq!(WAITING.migrated(1, false), ThreadState::Waiting { cpu: Some(1), woken: false });
        assert_eq!(ThreadState::Blocked.migrated(1, false), ThreadState::Blocked);
    }

    #[test]
    fn nothing_is_known_of_a_thread_that_could_run_where_records_are_missing() {
        let states = [ThreadState::Blocked.woken(Some(1), true), WOKEN.woken(Some(0), true), WOKEN.migrated(0, true)];

        assert_eq!(states, [ThreadState::Unknown; 3]);
        assert_eq!(ThreadState::switched_out(0, 1, true), ThreadState::Unknown);
        assert_eq!(ThreadState::Running { cpu: 1 }.woken(Some(0), true), ThreadState::Running { cpu: 1 });
    }
}
