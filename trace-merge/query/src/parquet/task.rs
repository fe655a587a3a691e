//! Tasks as tables name them.

use super::columns::cell::{Cell, text_of};
use foldhash::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use strata_analysis::timeline::Timeline;
use strata_analysis::timeline::guest::GuestTask;
use strata_analysis::timeline::membership::{Memberships, Stay};
use strata_analysis::timeline::states::TaskIndex;
use strata_recording::reader::{Stream, StreamRecord, StreamRecords, TraceLayer};
use trace_merge::events::current_task::{CurrentTask, Task};
use trace_merge::report::scheduling::tasks::cgroup_of;

/// Tells the tasks of a stream's records as `strata events` does: from the stream itself, which is walked beside the pass.
#[derive(Debug)]
pub(super) struct Followed<'t> {
    layer: &'t TraceLayer,
    stream: &'t Stream,
    current: CurrentTask<'t>,
    records: Option<StreamRecords<'t>>,
}

impl<'t> Followed<'t> {
    /// For the records of `stream`, which is one of `layer`'s; `None` when its layer is not that of a kernel.
    pub(super) fn new(layer: &'t TraceLayer, stream: &'t Stream) -> Option<Self> {
        Some(Self { layer, stream, current: CurrentTask::new(layer, stream)?, records: None })
    }

    /// The task that `record` belongs to; `None` when nothing tells. Records must be given in their order; some may be
    /// left out.
    pub(super) fn of(&mut self, record: &StreamRecord<'_>) -> Option<Task<'t>> {
        let Self { layer, stream, .. } = *self;
        let begin = || layer.records(stream).of_packets(record.packet..stream.packets(), 0);
        for own in self.records.get_or_insert_with(begin) {
            let task = self.current.of(&own);
            if own.packet == record.packet && std::ptr::eq(own.payload.as_ptr(), record.payload.as_ptr()) {
                return task;
            }
        }
        None
    }
}

/// A task at the moment that the timeline has come to.
#[derive(Clone, Debug)]
pub(super) struct Named<'t> {
    /// Another one has not the same, unless it is named alike.
    pub(super) number: u32,
    tid: Option<i32>,
    pid: Option<i32>,
    comm: Option<&'t [u8]>,
    cgroup: Option<&'t str>,
}

impl Named<'_> {
    /// How many columns name a task.
    pub(super) const COLUMNS: usize = 4;
    /// One that is not known.
    pub(super) const UNKNOWN: Named<'static> = Named { number: 0, tid: None, pid: None, comm: None, cgroup: None };
    /// A CPU's idle task.
    pub(super) const IDLE: Named<'static> =
        Named { number: 1, tid: Some(0), pid: Some(0), comm: Some(b"idle"), cgroup: None };

    /// Shows `give` the cells of thread, process, name and cgroup, behind those of `before`.
    pub(super) fn give(&self, before: &[Cell<'_>], give: &mut dyn FnMut(&[Cell<'_>])) {
        let comm = self.comm.map(text_of);
        let own = [self.tid.into(), self.pid.into(), comm.as_deref().into(), self.cgroup.into()];
        give(&[before, &own].concat());
    }
}

/// Who made a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Recorder {
    /// A process of the guest of a VM, which recorded something itself.
    Process(usize, u32),
    /// A thread of the kernel whose stream is that source of the merge.
    Thread(usize, i32),
}

/// What somebody was called last: process, name and cgroup, with a number of its own.
#[derive(Clone, Debug)]
struct Known {
    number: u32,
    pid: Option<i32>,
    comm: Vec<u8>,
    stay: Option<Stay>,
    cgroup: Option<Arc<str>>,
}

/// Names tasks, and numbers them: the same number is the same name. Keeps the paths of cgroups that were requested, and
/// what each task was called last.
#[derive(Clone, Debug, Default)]
pub(super) struct Tasks {
    /// By VM, tasks of its guest.
    tasks: Vec<Vec<Option<Known>>>,
    recorders: HashMap<Recorder, Option<Known>>,
    names: Names,
}

/// What is kept for all names.
#[derive(Clone, Debug, Default)]
struct Names {
    /// How many numbers there are beside those of [`Named::UNKNOWN`] and [`Named::IDLE`].
    numbers: u32,
    cgroups: HashMap<(usize, Stay), Arc<str>>,
}

impl Tasks {
    /// The task `task` of the guest of `vm`.
    pub(super) fn named<'t>(&'t mut self, timeline: &'t Timeline, vm: usize, task: TaskIndex) -> Named<'t> {
        self.called(timeline, vm, task, |task| &task.comm)
    }

    /// The same under the name that it had before its last one.
    pub(super) fn formerly<'t>(&'t mut self, timeline: &'t Timeline, vm: usize, task: TaskIndex) -> Named<'t> {
        self.called(timeline, vm, task, |task| &task.former)
    }

    fn called<'t>(
        &'t mut self,
        timeline: &'t Timeline,
        vm: usize,
        task: TaskIndex,
        name: impl FnOnce(&'t GuestTask) -> &'t [u8],
    ) -> Named<'t> {
        let Self { tasks, names, .. } = self;
        let Some(guest) = timeline.vm(vm).map(|vm| &vm.guest) else { return Named::UNKNOWN };
        let Some(guest_task) = guest.task(task) else { return Named::UNKNOWN };
        if tasks.len() <= vm {
            tasks.resize(vm + 1, Vec::new());
        }
        let Some(tasks) = tasks.get_mut(vm) else { return Named::UNKNOWN };
        if tasks.len() <= task {
            tasks.resize(task + 1, None);
        }
        let Some(known) = tasks.get_mut(task) else { return Named::UNKNOWN };
        let pid = guest.task(guest.process(task)).map(|process| process.tid);
        let comm = Some(name(guest_task)).filter(|comm| !comm.is_empty());
        let stay = Some((&guest.memberships, vm, guest.stay(guest_task)));
        Named { tid: Some(guest_task.tid), ..names.latest(known, pid, comm, stay) }
    }

    /// The process `pid` of the guest of `vm`, called `comm`, which recorded something itself.
    pub(super) fn process<'t>(&'t mut self, timeline: &'t Timeline, vm: usize, pid: u32, comm: &'t str) -> Named<'t> {
        let known = self.recorders.entry(Recorder::Process(vm, pid)).or_default();
        let pid = i32::try_from(pid).ok();
        let stay = pid.and_then(|pid| {
            let guest = &timeline.vm(vm)?.guest;
            Some((&guest.memberships, vm, guest.stay(guest.task(guest.living(pid)?)?)))
        });
        self.names.latest(known, pid, Some(comm.as_bytes()), stay)
    }

    /// The task that made a record in the stream that is `source` of the merge: of the guest of `vm`, where it is one's,
    /// and then the task `index` of it, as far as the timeline tells.
    pub(super) fn recorder<'t>(
        &'t mut self,
        timeline: &'t Timeline,
        source: usize,
        task: Task<'t>,
        of: Option<(usize, Option<TaskIndex>)>,
    ) -> Named<'t> {
        let known = self.recorders.entry(Recorder::Thread(source, task.tid)).or_default();
        let found = of.and_then(|(vm, index)| {
            let guest = &timeline.vm(vm)?.guest;
            let index =
                index.filter(|&index| guest.task(index).is_some_and(|guest_task| guest_task.tid == task.tid))?;
            Some((vm, guest, guest.process(index), guest.task(index)?))
        });
        let pid = match found {
            Some((_, guest, process, _)) => guest.task(process).map(|process| process.tid),
            // A CPU's idle task.
            None => (of.is_some() && task.tid == 0).then_some(0),
        };
        let stay = found.map(|(vm, guest, _, guest_task)| (&guest.memberships, vm, guest.stay(guest_task)));
        Named { tid: Some(task.tid), ..self.names.latest(known, pid, task.comm, stay) }
    }
}

impl Names {
    /// Somebody who was `known` before, if at all, and is of this process, of this name, and in the cgroup of this stay in
    /// the guest of a VM.
    fn latest<'t>(
        &mut self,
        known: &'t mut Option<Known>,
        pid: Option<i32>,
        comm: Option<&'t [u8]>,
        stay: Option<(&Memberships, usize, Stay)>,
    ) -> Named<'t> {
        let bytes = comm.unwrap_or_default();
        let is_same = |known: &Known| {
            known.pid == pid && known.comm == bytes && known.stay == stay.map(|(_, _, stay)| stay)
                // Where somebody is may be recorded later.
                && (known.cgroup.is_some() || stay.is_none_or(|(memberships, _, stay)| memberships.stay(stay).0.is_none()))
        };
        if !known.as_ref().is_some_and(is_same) {
            self.numbers += 1;
            *known = Some(Known {
                number: self.numbers + Named::IDLE.number,
                pid,
                comm: bytes.to_vec(),
                stay: stay.map(|(_, _, stay)| stay),
                cgroup: stay.and_then(|(memberships, vm, stay)| self.cgroup(memberships, vm, stay)),
            });
        }
        let (number, cgroup) = known.as_ref().map_or((0, None), |known| (known.number, known.cgroup.as_deref()));
        Named { number, tid: None, pid, comm, cgroup }
    }

    /// The path of the cgroup of a stay in the guest of `vm`.
    fn cgroup(&mut self, memberships: &Memberships, vm: usize, stay: Stay) -> Option<Arc<str>> {
        if let Some(path) = self.cgroups.get(&(vm, stay)) {
            return Some(Arc::clone(path));
        }
        let path: Arc<str> = cgroup_of(memberships, stay)?.into();
        self.cgroups.insert((vm, stay), Arc::clone(&path));
        Some(path)
    }
}

/// What is numbered at a time, at most: a guest chooses what it accesses.
const MOST_NUMBERED: usize = 1 << 16;

/// Numbers what has no number of its own.
#[derive(Clone, Debug)]
pub(super) struct Numbers<K> {
    known: HashMap<K, u64>,
    next: u64,
}

impl<K: Hash + Eq> Numbers<K> {
    pub(super) fn new() -> Self {
        Self { known: HashMap::default(), next: 0 }
    }

    /// The number of `key`: another one has another. A key may get a new one after many others.
    pub(super) fn of(&mut self, key: K) -> u64 {
        if let Some(&number) = self.known.get(&key) {
            return number;
        }
        if self.known.len() >= MOST_NUMBERED {
            self.known.clear();
        }
        let number = self.next;
        self.known.insert(key, number);
        self.next += 1;
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_take_bounded_memory_and_are_never_given_twice() {
        let (mut numbers, many) = (Numbers::new(), MOST_NUMBERED as u64 + 10);

        let first = [numbers.of(7), numbers.of(7)];
        let given: Vec<u64> = (100..100 + many).map(|key| numbers.of(key)).collect();

        assert_eq!(first, [0, 0]);
        assert!(given.iter().copied().eq(1..=many));
        assert!(numbers.known.len() <= MOST_NUMBERED);
    }

    #[test]
    fn somebody_has_another_number_only_when_called_otherwise() {
        let (mut names, mut known) = (Names::default(), None);
        let mut number = |pid, comm: &str| names.latest(&mut known, pid, Some(comm.as_bytes()), None).number;

        let numbers = [number(Some(1), "sh"), number(Some(1), "sh"), number(Some(1), "ls"), number(Some(2), "ls")];

        assert_eq!(numbers, [2, 2, 3, 4]);
    }
}
