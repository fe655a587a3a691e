//! When the vhost workers of a VM ran, and what ran while they were ready: the threads of the host's kernel that move
//! the packets of its network devices, where the VMM does not.

use foldhash::{HashMap, HashSet};
use std::collections::BTreeSet;
use strata_analysis::event::{Event, Task, Tid};
use strata_analysis::timeline::host::{Host, HostCpuState, HostThread, PREV_STATE_MASK};
use strata_analysis::timeline::states::TaskIndex;
use strata_analysis::timeline::vcpu::Preemptor;
use strata_recording::manifest::Manifest;
use strata_recording::window::Window;

/// What the name of a worker starts with, before the number of the thread that asked for it.
const WORKER: &[u8] = b"vhost-";

/// A worker begins to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WorkerRun {
    pub(super) worker: HostThread,
    pub(super) begin: u64,
    /// What ran in its place while it was ready, one behind the other up to `begin`; empty where that is not known.
    pub(super) held_up: Vec<(Window, Preemptor)>,
    /// The guest's task that woke it, by an access to a device: it had a packet to send.
    pub(super) requested_by: Option<TaskIndex>,
}

impl WorkerRun {
    /// For how long it was ready and did not run in `window`, ticks.
    fn held_up_in(&self, window: Window) -> u64 {
        let parts = self.held_up.iter().filter_map(|(part, _)| part.intersection(&window));
        parts.map(|part| part.end - part.begin).sum()
    }
}

/// The runs of workers in a task's wait for a packet.
#[derive(Debug, Default)]
pub(super) struct RunsInWait<'r> {
    /// Before which the packet, or what it answers, could not be moved; in time order.
    pub(super) moved: Vec<&'r WorkerRun>,
    /// Those where that is not known.
    others: Vec<&'r WorkerRun>,
}

impl<'r> RunsInWait<'r> {
    /// Of `runs`, which are in time order, those in `window`: from the begin of the wait of `task` until the guest
    /// received.
    ///
    /// The first one counts if `task` woke the worker to it: nothing of what it sent could move before. The last one
    /// counts, as nothing moved to the guest before that. The runs between them may have been for other packets. Where
    /// several workers ran, it is not known which one moved the packet.
    pub(super) fn new(runs: &'r [WorkerRun], task: TaskIndex, window: Window) -> Self {
        let from = runs.partition_point(|run| run.begin <= window.begin);
        let runs: Vec<_> = runs.iter().skip(from).take_while(|run| run.begin < window.end).collect();
        let is_one = runs.windows(2).all(|two| two[0].worker.tid == two[1].worker.tid);
        let last = runs.len().saturating_sub(1);
        let counts =
            |place: usize, run: &WorkerRun| is_one && (place == last || place == 0 && run.requested_by == Some(task));
        let (moved, others): (Vec<_>, Vec<_>) = (0..).zip(runs).partition(|&(place, run)| counts(place, run));
        let held_up = |runs: Vec<(usize, &'r WorkerRun)>| {
            runs.into_iter().map(|(_, run)| run).filter(|run| run.held_up_in(window) > 0).collect()
        };
        Self { moved: held_up(moved), others: held_up(others) }
    }

    /// For how long workers were ready in `window` and did not run, when it is not known whether the packet waited
    /// for that, ticks.
    pub(super) fn unreported(&self, window: Window) -> u64 {
        self.others.iter().map(|run| run.held_up_in(window)).sum()
    }
}

/// A worker is ready, and something else runs.
#[derive(Debug)]
struct Waiting {
    cpu: u32,
    /// Since when `runs` has been running there.
    since: u64,
    runs: Preemptor,
    before: Vec<(Window, Preemptor)>,
    requested_by: Option<TaskIndex>,
}

impl Waiting {
    fn new(cpu: u32, since: u64, host: &Host) -> Self {
        Self { cpu, since, runs: runs(host, cpu), before: Vec::new(), requested_by: None }
    }

    /// What has been running did so up to `time`; who it was may be known only now.
    fn end_part(&mut self, time: u64, was: Option<HostThread>) {
        let by = match (self.runs, was) {
            (Preemptor::Unknown, Some(was)) if was.tid > 0 => Preemptor::Thread(was),
            (Preemptor::Unknown, Some(_)) => Preemptor::Idle,
            (known, _) => known,
        };
        if self.since < time {
            self.before.push((Window { begin: self.since, end: time }, by));
        }
        self.since = time;
    }

    /// It waits on `cpu` from `time` on.
    fn go_to(&mut self, cpu: u32, time: u64, host: &Host) {
        self.end_part(time, None);
        (self.cpu, self.runs) = (cpu, runs(host, cpu));
    }
}

fn runs(host: &Host, cpu: u32) -> Preemptor {
    match host.cpu(cpu) {
        HostCpuState::Unknown => Preemptor::Unknown,
        HostCpuState::Idle => Preemptor::Idle,
        HostCpuState::Running(thread) => Preemptor::Thread(thread),
    }
}

/// What the workers of one VM do.
#[derive(Debug, Default)]
pub(super) struct Workers {
    /// Threads that may have asked for one; `None` where those are not known and no other VM is there.
    employers: Option<BTreeSet<Tid>>,
    running: HashSet<Tid>,
    waiting: HashMap<Tid, Waiting>,
}

impl Workers {
    /// Those of the VM `index` of a recording.
    pub(super) fn of(manifest: &Manifest, index: usize) -> Self {
        let vm = manifest.vms.get(index);
        let mut employers: BTreeSet<Tid> =
            vm.into_iter().flat_map(|vm| &vm.strata_threads).map(|thread| thread.tid).collect();
        let process = vm.and_then(|vm| vm.attached.as_ref()).and_then(|process| Tid::try_from(process.pid).ok());
        employers.extend(process);
        let is_alone = manifest.vms.len() == 1;
        let employers = Some(employers).filter(|employers| !(employers.is_empty() && is_alone));
        Self { employers, ..Self::default() }
    }

    fn is_ours(&self, task: Task<'_>) -> bool {
        let employer = task.comm.strip_prefix(WORKER).and_then(|number| str::from_utf8(number).ok()?.parse().ok());
        employer.is_some_and(|employer| self.employers.as_ref().is_none_or(|employers| employers.contains(&employer)))
    }

    /// Takes in what `cpu` of `host` recorded at `time`, which the host knows already. A worker that is woken then is
    /// `requested_by` that task of the guest. `report` gets the runs that begin.
    pub(super) fn record(
        &mut self,
        (time, cpu): (u64, u32),
        event: &Event<'_>,
        host: &Host,
        requested_by: Option<TaskIndex>,
        mut report: impl FnMut(WorkerRun),
    ) {
        match *event {
            Event::Wakeup { task, cpu: Some(target), .. }
                if self.is_ours(task) && !self.running.contains(&task.tid) =>
            {
                let waiting = self
                    .waiting
                    .entry(task.tid)
                    .or_insert_with(|| Waiting { requested_by, ..Waiting::new(target, time, host) });
                if waiting.cpu != target {
                    waiting.go_to(target, time, host);
                }
            }
            Event::Migrate { tid, cpu: target } => {
                if let Some(waiting) = self.waiting.get_mut(&tid) {
                    waiting.go_to(target, time, host);
                }
            }
            Event::Switch { prev, prev_state, next } => {
                let was = host.latest(prev.tid);
                for waiting in self.waiting.values_mut().filter(|waiting| waiting.cpu == cpu) {
                    waiting.end_part(time, Some(was));
                    waiting.runs = runs(host, cpu);
                }
                self.running.remove(&prev.tid);
                if self.is_ours(prev) && prev_state & PREV_STATE_MASK == 0 {
                    self.waiting.insert(prev.tid, Waiting::new(cpu, time, host));
                }
                if self.is_ours(next) {
                    self.running.insert(next.tid);
                    let mut waiting = self.waiting.remove(&next.tid);
                    if let Some(waiting) = &mut waiting {
                        waiting.end_part(time, None);
                    }
                    let requested_by = waiting.as_ref().and_then(|waiting| waiting.requested_by);
                    let held_up = waiting.map_or_else(Vec::new, |waiting| waiting.before);
                    report(WorkerRun { worker: host.latest(next.tid), begin: time, held_up, requested_by });
                }
            }
            _ => {}
        }
    }

    /// Records of the host are missing: what was known is not any more.
    pub(super) fn lose(&mut self) {
        self.running.clear();
        self.waiting.clear();
    }
}
