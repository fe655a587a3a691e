//! What a host's CPUs and threads did, by its scheduler's events.

use super::event::{Event, Task};
use super::history::History;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What a host CPU runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostCpuState {
    /// Not known.
    Unknown,
    /// Nothing.
    Idle,
    /// A thread, by its id.
    Running(i32),
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
pub(super) const PREV_STATE_MASK: u64 = 0xff;
/// `prev_state` of a task that is dead (`EXIT_DEAD`), or a zombie (`EXIT_ZOMBIE`).
pub(super) const PREV_STATE_ENDED: u64 = 0x10 | 0x20;

/// A host: its CPUs and those of its threads that the trace shows.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// Name; `None` for the first host of a recording.
    pub name: Option<String>,
    cpus: BTreeMap<u32, History<HostCpuState>>,
    threads: HashMap<i32, Thread>,
    /// CPUs whose records are missing at the moment.
    gaps: BTreeSet<u32>,
}

#[derive(Clone, Debug)]
struct Thread {
    state: History<ThreadState>,
    comm: Vec<u8>,
}

impl Host {
    /// A host of which nothing is known yet.
    #[must_use]
    pub fn new(name: Option<String>) -> Self {
        Self { name, ..Self::default() }
    }

    /// What `cpu` ran; `None` when the trace shows nothing of it.
    #[must_use]
    pub fn cpu(&self, cpu: u32) -> Option<&History<HostCpuState>> {
        self.cpus.get(&cpu)
    }

    /// The CPUs that the trace shows.
    pub fn cpus(&self) -> impl Iterator<Item = (u32, &History<HostCpuState>)> {
        self.cpus.iter().map(|(&cpu, history)| (cpu, history))
    }

    /// What the thread `tid` did; `None` when the trace shows nothing of it.
    #[must_use]
    pub fn thread(&self, tid: i32) -> Option<&History<ThreadState>> {
        self.threads.get(&tid).map(|thread| &thread.state)
    }

    /// The last name of the thread `tid`; its number where there is no name.
    #[must_use]
    pub fn thread_name(&self, tid: i32) -> String {
        let comm = self.threads.get(&tid).map(|thread| thread.comm.as_slice()).filter(|comm| !comm.is_empty());
        comm.map_or_else(|| tid.to_string(), |comm| String::from_utf8_lossy(comm).into_owned())
    }

    /// Whether records of any CPU are missing at the moment.
    #[must_use]
    pub fn has_gap(&self) -> bool {
        !self.gaps.is_empty()
    }

    /// Takes in an event of `cpu`.
    pub fn apply(&mut self, time: u64, cpu: u32, event: &Event<'_>) {
        match *event {
            Event::Switch { prev, prev_state, next } => self.switch(time, cpu, prev, prev_state, next),
            Event::Wakeup { task, cpu: target } => {
                let thread = self.thread_mut(task);
                let woken = match thread.state.current() {
                    // A thread that runs is not woken: it had only been about to sleep.
                    ThreadState::Running { .. } => return,
                    ThreadState::Waiting { woken, .. } => woken,
                    ThreadState::Unknown | ThreadState::Blocked | ThreadState::Ended => true,
                };
                thread.state.set(time, ThreadState::Waiting { cpu: target, woken });
            }
            Event::Migrate { tid, cpu } => {
                let Some(thread) = self.threads.get_mut(&tid) else { return };
                if let ThreadState::Waiting { woken, .. } = thread.state.current() {
                    thread.state.set(time, ThreadState::Waiting { cpu: Some(cpu), woken });
                }
            }
            Event::KvmEntry { tid, .. } | Event::KvmExit { tid, .. } | Event::KvmUserspaceExit { tid } => {
                self.runs(time, cpu, tid);
            }
            Event::GapBegin => self.lose(time, cpu),
            Event::GapEnd => drop(self.gaps.remove(&cpu)),
            _ => {}
        }
    }

    /// A thread that records an event of its own runs on the CPU that records it.
    fn runs(&mut self, time: u64, cpu: u32, tid: i32) {
        if tid <= 0 {
            return;
        }
        self.thread_mut(Task { tid, comm: &[] }).state.set(time, ThreadState::Running { cpu });
        self.cpu_mut(cpu).set(time, HostCpuState::Running(tid));
    }

    fn switch(&mut self, time: u64, cpu: u32, prev: Task<'_>, prev_state: u64, next: Task<'_>) {
        let before = self.cpu_mut(cpu).current();
        if let HostCpuState::Running(tid) = before
            && tid != prev.tid
            && let Some(thread) = self.threads.get_mut(&tid)
            && thread.state.current() == (ThreadState::Running { cpu })
        {
            // Its being switched out was not recorded.
            thread.state.set(time, ThreadState::Unknown);
        }
        if prev.tid > 0 {
            let state = match prev_state & PREV_STATE_MASK {
                0 => ThreadState::Waiting { cpu: Some(cpu), woken: false },
                ended if ended & PREV_STATE_ENDED != 0 => ThreadState::Ended,
                _ => ThreadState::Blocked,
            };
            let state = if self.gaps.is_empty() { state } else { ThreadState::Unknown };
            self.thread_mut(prev).state.set(time, state);
        }
        if next.tid > 0 {
            self.thread_mut(next).state.set(time, ThreadState::Running { cpu });
        }
        let runs = if next.tid > 0 { HostCpuState::Running(next.tid) } else { HostCpuState::Idle };
        self.cpu_mut(cpu).set(time, runs);
    }

    /// Records of `cpu` are missing from `time` on: what it runs is not known, nor what becomes of the threads that do not
    /// run on another CPU.
    fn lose(&mut self, time: u64, cpu: u32) {
        self.gaps.insert(cpu);
        self.cpu_mut(cpu).set(time, HostCpuState::Unknown);
        for thread in self.threads.values_mut() {
            let elsewhere = matches!(thread.state.current(), ThreadState::Running { cpu: on } if on != cpu);
            if !elsewhere && thread.state.current() != ThreadState::Ended {
                thread.state.set(time, ThreadState::Unknown);
            }
        }
    }

    fn cpu_mut(&mut self, cpu: u32) -> &mut History<HostCpuState> {
        self.cpus.entry(cpu).or_insert_with(|| History::new(HostCpuState::Unknown))
    }

    fn thread_mut(&mut self, task: Task<'_>) -> &mut Thread {
        let new = || Thread { state: History::new(ThreadState::Unknown), comm: Vec::new() };
        let thread = self.threads.entry(task.tid).or_insert_with(new);
        if !task.comm.is_empty() && thread.comm != task.comm {
            thread.comm = task.comm.to_vec();
        }
        thread
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VCPU: Task<'_> = Task { tid: 100, comm: b"vcpu0" };
    const HOG: Task<'_> = Task { tid: 200, comm: b"hog" };
    const IDLE: Task<'_> = Task { tid: 0, comm: b"swapper/0" };

    fn switch<'t>(prev: Task<'t>, prev_state: u64, next: Task<'t>) -> Event<'t> {
        Event::Switch { prev, prev_state, next }
    }

    fn host(events: &[(u64, u32, Event<'_>)]) -> Host {
        let mut host = Host::new(None);
        events.iter().for_each(|(time, cpu, event)| host.apply(*time, *cpu, event));
        host
    }

    #[test]
    fn thread_is_preempted_blocked_woken_and_run() {
        let host = host(&[
            (10, 0, switch(IDLE, 0, VCPU)),
            (20, 0, switch(VCPU, 0x100, HOG)),
            (30, 0, switch(HOG, 1, VCPU)),
            (40, 0, switch(VCPU, 1, IDLE)),
            (50, 0, Event::Wakeup { task: VCPU, cpu: Some(1) }),
            (60, 1, switch(IDLE, 0, VCPU)),
        ]);

        let thread = host.thread(100).unwrap();
        let states = [5, 10, 20, 30, 40, 50, 60].map(|time| thread.at(time));
        assert_eq!(
            states,
            [
                ThreadState::Unknown,
                ThreadState::Running { cpu: 0 },
                ThreadState::Waiting { cpu: Some(0), woken: false },
                ThreadState::Running { cpu: 0 },
                ThreadState::Blocked,
                ThreadState::Waiting { cpu: Some(1), woken: true },
                ThreadState::Running { cpu: 1 },
            ]
        );
        let cpu = host.cpu(0).unwrap();
        assert_eq!([20, 40].map(|time| cpu.at(time)), [HostCpuState::Running(200), HostCpuState::Idle]);
        assert_eq!((host.thread_name(200), host.thread_name(300)), ("hog".into(), "300".into()));
    }

    #[test]
    fn waiting_thread_that_is_moved_waits_elsewhere() {
        let host = host(&[
            (10, 0, switch(VCPU, 0, HOG)),
            (20, 1, Event::Migrate { tid: 100, cpu: 1 }),
            (25, 1, Event::Migrate { tid: 200, cpu: 1 }),
        ]);

        assert_eq!(host.thread(100).unwrap().current(), ThreadState::Waiting { cpu: Some(1), woken: false });
        assert_eq!(host.thread(200).unwrap().current(), ThreadState::Running { cpu: 0 });
    }

    #[test]
    fn nothing_is_known_of_threads_that_could_have_run_where_records_are_missing() {
        let host = host(&[
            (10, 0, switch(IDLE, 0, VCPU)),
            (11, 1, switch(IDLE, 0, HOG)),
            (20, 0, Event::GapBegin),
            (25, 1, switch(HOG, 1, IDLE)),
            (30, 0, Event::GapEnd),
            (40, 1, switch(IDLE, 0, HOG)),
            (50, 1, switch(HOG, 1, IDLE)),
        ]);

        let (vcpu, hog) = (host.thread(100).unwrap(), host.thread(200).unwrap());
        assert_eq!((vcpu.at(19), vcpu.at(20)), (ThreadState::Running { cpu: 0 }, ThreadState::Unknown));
        // While the records of CPU 0 are missing, it could have been woken there.
        assert_eq!(
            [20, 25, 50].map(|time| hog.at(time)),
            [ThreadState::Running { cpu: 1 }, ThreadState::Unknown, ThreadState::Blocked]
        );
    }

    #[test]
    fn thread_that_is_replaced_without_being_switched_out_is_unknown() {
        let host = host(&[(10, 0, switch(IDLE, 0, VCPU)), (20, 0, switch(IDLE, 0, HOG))]);

        assert_eq!(host.thread(100).unwrap().current(), ThreadState::Unknown);
    }

    #[test]
    fn thread_that_enters_the_guest_runs() {
        let host = host(&[(10, 3, Event::KvmEntry { tid: 100, vcpu: None })]);

        assert_eq!(host.thread(100).unwrap().current(), ThreadState::Running { cpu: 3 });
        assert_eq!(host.cpu(3).unwrap().current(), HostCpuState::Running(100));
    }
}
