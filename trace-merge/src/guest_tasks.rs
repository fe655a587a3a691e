//! Which task runs on each of a guest's CPUs, and which process a task belongs to.
//!
//! Who runs is what `sched:sched_switch` says. Before the first switch on a CPU, and after records of it were lost, who
//! runs is told by the switch that follows: it names the task that it takes the CPU from. So the guest's streams are
//! read once ahead.

use crate::merge::{Merge, MergedRecord};
use crate::reader::{Stream, Trace, TraceLayer};
use crate::report::Window;
use crate::session::LayerKind;
use crate::syscall_names;
use std::collections::{BTreeSet, HashMap};

/// Thread id in the guest's initial namespace; 0 is idle on any CPU.
pub type Tid = i32;

/// `CLONE_THREAD` of `clone(2)`: the child is a thread of its parent's process.
const CLONE_THREAD: u64 = 0x1_0000;

/// The tasks of a guest.
#[derive(Clone, Debug, Default)]
pub struct GuestTasks {
    /// By CPU: since when a task runs that no switch began, ticks, and which.
    unswitched: HashMap<u32, Vec<(u64, Tid)>>,
    /// Latest name by thread.
    comms: HashMap<Tid, String>,
    /// For each thread that is not its process's first one: the thread that made it.
    made_by: HashMap<Tid, Tid>,
    /// Threads whose making was recorded.
    born: BTreeSet<Tid>,
    /// Flags with which tasks were made, as `task:task_newtask` says.
    flags: HashMap<Tid, u64>,
    /// Forks: parent, child, and the flags of the `clone` before it where there was one.
    forks: Vec<(Tid, Tid, Option<u64>)>,
    /// By CPU: who runs now, as far as [`GuestTasks::running`] has come.
    now: HashMap<u32, Option<Tid>>,
}

/// What an event says about tasks.
enum Kind {
    Switch,
    Fork,
    NewTask,
    Clone,
    Sample,
}

fn kind(name: &str) -> Option<Kind> {
    Some(match name {
        "sched:sched_switch" => Kind::Switch,
        "sched:sched_process_fork" => Kind::Fork,
        "task:task_newtask" => Kind::NewTask,
        "raw_syscalls:sys_enter" => Kind::Clone,
        "strata:sample" => Kind::Sample,
        _ => return None,
    })
}

/// A thread id, from a field that holds one.
fn tid(number: Option<i64>) -> Option<Tid> {
    number.and_then(|number| Tid::try_from(number).ok())
}

impl GuestTasks {
    /// The tasks of the guest `vm` in `window`.
    #[must_use]
    pub fn new(trace: &Trace, vm: &str, window: Window) -> Self {
        let mut tasks = Self::default();
        for layer in kernel_layers(trace, vm) {
            let kinds: HashMap<u16, Kind> = layer
                .schemas
                .iter()
                .filter_map(|schema| Some((schema.description().id, kind(schema.name())?)))
                .collect();
            for stream in &layer.streams {
                tasks.read_ahead(layer, stream, &kinds, window);
            }
        }
        for (parent, child, clone_flags) in std::mem::take(&mut tasks.forks) {
            let flags = tasks.flags.get(&child).copied().or(clone_flags).unwrap_or(0);
            if flags & CLONE_THREAD != 0 {
                tasks.made_by.insert(child, parent);
            }
        }
        tasks
    }

    fn read_ahead(&mut self, layer: &TraceLayer, stream: &Stream, kinds: &HashMap<u16, Kind>, window: Window) {
        let cpu = stream.description.cpu_id;
        let mut unswitched = Vec::new();
        // Since when it is not known who runs.
        let mut since = None;
        let mut is_first = true;
        // Flags of the last `clone`, which makes the next new task.
        let mut clone_flags = None;
        for record in layer.records(stream).starting_at(window.begin).take_while(|record| record.time < window.end) {
            if std::mem::take(&mut is_first) || record.after_gap {
                since = Some(record.time);
                clone_flags = None;
            }
            match kinds.get(&record.schema.description().id) {
                Some(Kind::Switch) => {
                    let (prev, next) = (tid(record.number("prev_pid")), tid(record.number("next_pid")));
                    if let (Some(since), Some(prev)) = (since.take(), prev) {
                        unswitched.push((since, prev));
                    }
                    for (tid, comm) in [(prev, "prev_comm"), (next, "next_comm")] {
                        if let (Some(tid), Some(comm)) = (tid, record.text(comm)) {
                            self.name(tid, &comm);
                        }
                    }
                    clone_flags = None;
                }
                Some(Kind::Clone) => {
                    let is_clone = record.number("id") == syscall_names::number("clone");
                    clone_flags = if is_clone { record.argument(0) } else { None };
                }
                Some(Kind::Fork) => {
                    let (Some(parent), Some(child)) =
                        (tid(record.number("parent_pid")), tid(record.number("child_pid")))
                    else {
                        continue;
                    };
                    if let Some(comm) = record.text("child_comm") {
                        self.comms.entry(child).or_insert_with(|| comm.into_owned());
                    }
                    self.born.insert(child);
                    self.forks.push((parent, child, clone_flags.take()));
                }
                Some(Kind::NewTask) => {
                    if let (Some(child), Some(flags)) = (tid(record.number("pid")), record.unsigned("clone_flags")) {
                        self.flags.insert(child, flags);
                    }
                }
                Some(Kind::Sample) => {
                    let (process, thread) = (tid(record.number("pid")), tid(record.number("tid")));
                    if let (Some(process), Some(thread)) = (process, thread)
                        && process != thread
                    {
                        self.made_by.insert(thread, process);
                    }
                }
                None => {}
            }
        }
        self.unswitched.insert(cpu, unswitched);
    }

    fn name(&mut self, tid: Tid, comm: &str) {
        let known = self.comms.entry(tid).or_default();
        if known != comm {
            comm.clone_into(known);
        }
    }

    /// The task that `merged`, a record of the guest's kernel, belongs to: who ran on its CPU when it was recorded (for a
    /// switch: the task that it takes the CPU from). `None` when nothing tells. Records must come in order, all of them,
    /// from the beginning of the window.
    pub fn running(&mut self, merged: &MergedRecord<'_>, is_switch: bool) -> Option<Tid> {
        let cpu = merged.stream.description.cpu_id;
        let record = &merged.record;
        let unswitched = &self.unswitched;
        let told = || {
            let of_cpu = unswitched.get(&cpu)?;
            let at = of_cpu.partition_point(|&(since, _)| since < record.time);
            of_cpu.get(at).filter(|&&(since, _)| since == record.time).map(|&(_, tid)| tid)
        };
        let now = match self.now.get(&cpu) {
            Some(&now) if !record.after_gap => now,
            _ => told(),
        };
        self.now.insert(cpu, if is_switch { tid(record.number("next_pid")) } else { now });
        now
    }

    /// The thread's latest name; `None` when no record says.
    #[must_use]
    pub fn comm(&self, tid: Tid) -> Option<&str> {
        if tid == 0 { Some("idle") } else { self.comms.get(&tid).map(String::as_str) }
    }

    /// The process (its first thread) that thread `tid` belongs to, as far as records tell: a thread that was made before
    /// the recording began, or by `clone3` where neither `task:task_newtask` nor samples were recorded, counts as a
    /// process of its own.
    #[must_use]
    pub fn process(&self, tid: Tid) -> Tid {
        let mut tid = tid;
        // Ids may have been used again, so that the makers could form a circle.
        for _ in 0..64 {
            match self.made_by.get(&tid) {
                Some(&maker) => tid = maker,
                None => break,
            }
        }
        tid
    }

    /// Whether the recording holds the making of thread `tid`.
    #[must_use]
    pub fn was_born(&self, tid: Tid) -> bool {
        self.born.contains(&tid)
    }
}

/// The guest-kernel layers of the VM called `vm`.
pub fn kernel_layers<'t>(trace: &'t Trace, vm: &str) -> impl Iterator<Item = &'t TraceLayer> {
    trace.layers_of(LayerKind::GuestKernel).filter(move |layer| layer.description.vm.as_deref() == Some(vm))
}

/// The records of the guest kernel of `vm` in `window`, in time order.
pub fn kernel_records<'t>(
    trace: &'t Trace,
    vm: &str,
    window: Window,
) -> impl Iterator<Item = MergedRecord<'t>> + use<'t> {
    Merge::new(kernel_layers(trace, vm), window.begin).take_while(move |merged| merged.record.time < window.end)
}

/// Names of the VMs that have a guest-kernel layer, in order.
#[must_use]
pub fn guests(trace: &Trace) -> Vec<String> {
    let names = trace.layers_of(LayerKind::GuestKernel).filter_map(|layer| layer.description.vm.clone());
    names.collect::<BTreeSet<_>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_trace::Field::{Arguments, Hex, Number, Text};
    use crate::test_trace::TestTrace;

    const ALL: Window = Window { begin: 0, end: u64::MAX };

    /// Who runs at each record of CPU 0.
    fn running(trace: &Trace) -> Vec<Option<Tid>> {
        let mut tasks = GuestTasks::new(trace, "vm0", ALL);
        kernel_records(trace, "vm0", ALL)
            .map(|merged| tasks.running(&merged, merged.record.schema.name() == "sched:sched_switch"))
            .collect()
    }

    fn fork(trace: TestTrace, time: u64, parent: i64, child: i64) -> TestTrace {
        let fields = [
            ("parent_comm", Text("init")),
            ("parent_pid", Number(parent)),
            ("child_comm", Text("init")),
            ("child_pid", Number(child)),
        ];
        trace.guest(0, time, "sched:sched_process_fork", &fields)
    }

    fn clone(trace: TestTrace, time: u64, flags: u64) -> TestTrace {
        trace.guest(0, time, "raw_syscalls:sys_enter", &[("id", Number(56)), ("args", Arguments([flags, 0]))])
    }

    #[test]
    fn first_switch_tells_who_ran_before_it() {
        let (_dir, trace) = TestTrace::new()
            .guest(0, 1, "test:tick", &[])
            .switch(0, 2, 7, 8)
            .guest(0, 3, "test:tick", &[])
            .guest(1, 4, "test:tick", &[])
            .open();

        assert_eq!(running(&trace), [Some(7), Some(7), Some(8), None]);
    }

    #[test]
    fn after_a_gap_the_next_switch_tells() {
        let (_dir, trace) = TestTrace::new()
            .switch(0, 1, 7, 8)
            .guest(0, 2, "test:tick", &[])
            .lost(LayerKind::GuestKernel, 0, 1)
            .guest(0, 3, "test:tick", &[])
            .switch(0, 4, 1, 8)
            .lost(LayerKind::GuestKernel, 0, 1)
            .guest(0, 5, "test:tick", &[])
            .open();

        assert_eq!(running(&trace), [Some(7), Some(8), Some(1), Some(1), None]);
    }

    #[test]
    fn threads_belong_to_the_process_that_made_them() {
        let trace = TestTrace::new().switch(0, 1, 0, 7);
        let trace = fork(clone(trace, 2, CLONE_THREAD), 3, 7, 20);
        let trace = fork(clone(trace, 4, 0x11), 5, 7, 21);
        // The parent may be switched away from between the two events of a new task, even to another CPU.
        let new_task = [("pid", Number(22)), ("clone_flags", Hex(CLONE_THREAD))];
        let trace = trace.guest(1, 6, "task:task_newtask", &new_task).switch(0, 7, 7, 8).switch(0, 8, 8, 7);
        let (_dir, trace) = fork(trace, 9, 20, 22).open();

        let tasks = GuestTasks::new(&trace, "vm0", ALL);

        assert_eq!([7, 20, 21, 22].map(|tid| tasks.process(tid)), [7, 7, 21, 7]);
        assert_eq!((tasks.comm(7), tasks.comm(21), tasks.comm(0)), (Some("seven"), Some("init"), Some("idle")));
        assert!(tasks.was_born(22) && !tasks.was_born(7));
    }
}
