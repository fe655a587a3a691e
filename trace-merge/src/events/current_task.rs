//! Which task each record of a kernel belongs to: the one that ran on its CPU.
//!
//! Who runs is what the last switch on the CPU says. Where records are missing behind that switch, or there is none, the
//! next switch says it: it names the task that it takes the CPU from. Where records are missing before that one too, it
//! is unknown. Both switches are looked for in the stream itself, so that the answer is the same wherever reading begins,
//! and nothing is kept but the task that runs now. A record of the host's kernel names the thread itself; switches tell
//! its name.

use strata_analysis::event;
use strata_analysis::event::runner::{RunnerChange, RunnerEvents};
use strata_recording::layer::LayerKind;
use strata_recording::reader::{Stream, StreamRecord, StreamRecords, TraceLayer};

/// A task.
#[derive(Clone, Copy, Debug, Eq)]
pub struct Task<'t> {
    /// Thread id; 0 for a CPU's idle task.
    pub tid: i32,
    /// Its name; `None` where nothing tells.
    pub comm: Option<&'t [u8]>,
}

impl PartialEq for Task<'_> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        let is_same_name = match (self.comm, other.comm) {
            // Mostly it is the same text of the same switch.
            (Some(one), Some(two)) => std::ptr::eq(one, two) || one == two,
            (one, two) => one.is_none() && two.is_none(),
        };
        self.tid == other.tid && is_same_name
    }
}

impl<'t> Task<'t> {
    /// The same under the name that `rename` gives it, if that is its.
    fn renamed(self, rename: &event::Rename<'t>) -> Option<Self> {
        let before = event::Task { tid: self.tid, comm: self.comm.unwrap_or_default() };
        rename.begins_with(before).then(|| event::Task { comm: rename.after, ..before }.into())
    }
}

impl<'t> From<event::Task<'t>> for Task<'t> {
    fn from(task: event::Task<'t>) -> Self {
        Self { tid: task.tid, comm: (!task.comm.is_empty()).then_some(task.comm) }
    }
}

/// What is known of the task that runs.
#[derive(Clone, Copy, Debug)]
enum Now<'t> {
    /// Nothing yet: no record was seen.
    Begin,
    /// Nothing behind missing records.
    AfterGap,
    Known(Task<'t>),
    /// Neither the switch before nor the one behind tells.
    Unknown,
}

/// The task that runs on the CPU of a kernel's stream, from record to record.
#[derive(Debug)]
pub struct CurrentTask<'t> {
    layer: &'t TraceLayer,
    stream: &'t Stream,
    events: RunnerEvents,
    now: Now<'t>,
    /// Stands behind the record from which was looked ahead last, so that a packet is walked once for all of its
    /// records from which one looks ahead.
    walked: Option<StreamRecords<'t>>,
}

impl<'t> CurrentTask<'t> {
    /// For the records of `stream`, which is one of `layer`'s; `None` when its layer is not that of a kernel.
    #[must_use]
    pub fn new(layer: &'t TraceLayer, stream: &'t Stream) -> Option<Self> {
        let is_kernel = matches!(layer.description.kind, LayerKind::HostKernel | LayerKind::GuestKernel);
        is_kernel.then(|| Self { layer, stream, events: RunnerEvents::new(layer), now: Now::Begin, walked: None })
    }

    /// The task that `record` belongs to (for a switch: the one that loses the CPU); `None` when nothing tells. The
    /// records of the stream must be given in their order, from any one on and with none left out.
    #[inline(always)]
    pub fn of(&mut self, record: &StreamRecord<'t>) -> Option<Task<'t>> {
        if record.after_gap && !matches!(self.now, Now::Begin) {
            self.now = Now::AfterGap;
        }
        let reader = self.events.of(record);
        let by = reader.recorded_by(record);
        let task = match reader.runner(record) {
            Some(RunnerChange::Switch { prev, next }) => {
                self.now = Now::Known(next.into());
                Some(prev.into())
            }
            Some(RunnerChange::Rename(rename)) => {
                let task = self.find(record);
                if let Some(renamed) = task.and_then(|task| task.renamed(&rename)) {
                    self.now = Now::Known(renamed);
                }
                task
            }
            None => self.find(record),
        };
        match by {
            Some(tid) => {
                let tid = tid?;
                Some(task.filter(|task| task.tid == tid).unwrap_or(Task { tid, comm: None }))
            }
            None => task,
        }
    }

    /// The task that runs at `record`, which is not a switch.
    #[inline]
    fn find(&mut self, record: &StreamRecord<'t>) -> Option<Task<'t>> {
        match self.now {
            Now::Known(task) => return Some(task),
            Now::Unknown => return None,
            Now::Begin | Now::AfterGap => {}
        }
        self.look_around(record)
    }

    #[cold]
    #[inline(never)]
    fn look_around(&mut self, record: &StreamRecord<'t>) -> Option<Task<'t>> {
        let is_begin = matches!(self.now, Now::Begin);
        let task = is_begin.then(|| self.look_back(record)).flatten().or_else(|| self.look_ahead(record));
        self.now = task.map_or(Now::Unknown, Now::Known);
        task
    }

    /// The task that the last switch before `record` names, if no records are missing between them.
    fn look_back(&self, record: &StreamRecord<'t>) -> Option<Task<'t>> {
        let mut packets = 1;
        loop {
            let first = record.packet.saturating_sub(packets);
            let mut task: Option<Task<'t>> = None;
            let mut gap = false;
            let records = self.layer.records(self.stream).of_packets(first..record.packet + 1, 0);
            for (number, earlier) in records.enumerate() {
                // What lies before the first packet is for a longer way back.
                if earlier.after_gap && (number > 0 || first == 0) {
                    (task, gap) = (None, true);
                }
                if is_same(&earlier, record) {
                    break;
                }
                match self.events.read(&earlier) {
                    Some(RunnerChange::Switch { next, .. }) => task = Some(next.into()),
                    Some(RunnerChange::Rename(rename)) => task = task.and_then(|task| task.renamed(&rename)).or(task),
                    None => {}
                }
            }
            if task.is_some() || gap || first == 0 {
                return task;
            }
            packets *= 4;
        }
    }

    /// The task that the next switch after `record` takes the CPU from, if no records are missing between them.
    fn look_ahead(&mut self, record: &StreamRecord<'t>) -> Option<Task<'t>> {
        let behind = self.behind(record);
        let states = |later: StreamRecord<'t>| self.events.read(&later);
        let unbroken = behind.clone().take_while(|later| !later.after_gap).filter_map(states);
        let prev = { unbroken }.find_map(|change| match change {
            RunnerChange::Switch { prev, .. } => Some(prev),
            RunnerChange::Rename(_) => None,
        })?;
        // It may have got its name on the way.
        let task = { std::iter::once(*record).chain(behind).filter_map(states) }.find_map(|change| match change {
            RunnerChange::Switch { .. } => Some(prev),
            RunnerChange::Rename(rename) => {
                rename.ends_with(prev).then_some(event::Task { tid: prev.tid, comm: rename.before })
            }
        });
        task.map(Into::into)
    }

    /// The records behind `record`.
    fn behind(&mut self, record: &StreamRecord<'t>) -> StreamRecords<'t> {
        let packet = record.packet;
        let begin = || self.layer.records(self.stream).of_packets(packet..self.stream.packets(), 0);
        let mut records = self.walked.take().filter(|records| records.packet() == Some(packet)).unwrap_or_else(begin);
        while records.next().is_some_and(|earlier| !is_same(&earlier, record)) {}
        self.walked = Some(records.clone());
        records
    }
}

/// Whether both are one record of a stream: it lies in one place.
fn is_same(left: &StreamRecord<'_>, right: &StreamRecord<'_>) -> bool {
    left.packet == right.packet && std::ptr::eq(left.payload.as_ptr(), right.payload.as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use shared_ring::event::{EventDescription, FieldDescription, FieldType};
    use strata_recording::manifest::Manifest;
    use strata_recording::reader::Trace;
    use strata_recording::test_trace::Field::{Number, Text};
    use strata_recording::test_trace::TestTrace;
    use strata_recording::test_trace::manifest;
    use strata_recording::writer::{LayerWriter, NewLayer};
    use tempfile::TempDir;

    /// The tasks of the records of the first stream of `trace` from `from` ticks on, as `tid/comm`.
    fn tasks(trace: &Trace, from: u64) -> Vec<String> {
        let layer = &trace.layers()[0];
        let stream = &layer.streams[0];
        let mut current = CurrentTask::new(layer, stream).unwrap();
        layer.records(stream).starting_at(from).map(|record| shown(current.of(&record))).collect()
    }

    fn shown(task: Option<Task<'_>>) -> String {
        let Some(Task { tid, comm }) = task else { return "-".into() };
        format!("{tid}/{}", comm.map_or("?".into(), String::from_utf8_lossy))
    }

    #[test]
    fn switches_tell_who_runs_before_and_after_them() {
        let (_dir, trace) =
            TestTrace::new().guest(0, 1, "test:tick", &[]).switch(0, 2, 7, 8).guest(0, 3, "test:tick", &[]).open();

        assert_eq!(tasks(&trace, 0), ["7/seven", "7/seven", "8/eight"]);
    }

    #[test]
    fn nobody_is_known_between_missing_records() {
        let (_dir, trace) = TestTrace::new()
            .switch(0, 1, 7, 8)
            .lost(LayerKind::GuestKernel, 0, 1)
            .guest(0, 2, "test:tick", &[])
            .lost(LayerKind::GuestKernel, 0, 1)
            .switch(0, 3, 7, 8)
            .open();

        assert_eq!(tasks(&trace, 0), ["7/seven", "-", "7/seven"]);
    }

    #[test]
    fn task_has_the_name_that_it_had_then() {
        let rename = [("pid", Number(7)), ("oldcomm", Text("sh")), ("newcomm", Text("seven"))];
        let other = [("pid", Number(9)), ("oldcomm", Text("x")), ("newcomm", Text("y"))];
        let (_dir, trace) = TestTrace::new()
            .guest(0, 1, "test:tick", &[])
            .guest(0, 2, "task:task_rename", &other)
            .guest(0, 3, "task:task_rename", &rename)
            .guest(0, 4, "test:tick", &[])
            .switch(0, 5, 7, 8)
            .open();

        let expected = ["7/sh", "7/sh", "7/sh", "7/seven", "7/seven"];
        let windows: Vec<_> = (1..=5).map(|from| tasks(&trace, from)).collect();
        assert_eq!(windows[0], expected);
        assert_eq!(windows[3], expected[3..]);
    }

    #[test]
    fn renaming_that_does_not_say_whose_it_is_is_that_of_the_task_that_is_called_so() {
        let rename = |before, after| [("oldcomm", Text(before)), ("newcomm", Text(after))];
        let (_dir, trace) = TestTrace::new()
            .guest(0, 1, "test:tick", &[])
            .guest(0, 2, "task:task_rename", &rename("sh", "seven"))
            .switch(0, 3, 7, 8)
            .guest(0, 4, "task:task_rename", &rename("kthreadd", "kworker"))
            .guest(0, 5, "task:task_rename", &rename("eight", "nine"))
            .guest(0, 6, "test:tick", &[])
            .open();

        assert_eq!(tasks(&trace, 0), ["7/sh", "7/sh", "7/seven", "8/eight", "8/eight", "8/nine"]);
        assert_eq!(tasks(&trace, 6), ["8/nine"]);
    }

    #[test]
    fn record_of_the_host_names_its_thread_itself() {
        let switch = [
            ("common_pid", Number(5)),
            ("prev_comm", Text("hog")),
            ("prev_pid", Number(5)),
            ("next_comm", Text("vcpu")),
            ("next_pid", Number(100)),
        ];
        let (_dir, trace) = TestTrace::new()
            .host(0, 1, "sched:sched_switch", &switch)
            .host(0, 2, "kvm:kvm_entry", &[("common_pid", Number(100))])
            .host(0, 3, "kvm:kvm_entry", &[("common_pid", Number(101))])
            .open();

        assert_eq!(tasks(&trace, 0), ["5/hog", "100/vcpu", "101/?"]);
    }

    /// What a made-up stream of a CPU holds.
    #[derive(Clone, Copy, Debug)]
    enum Made {
        Tick,
        /// A switch to this task, from whichever runs.
        Switch(u32),
        /// The task that runs gets another name.
        Rename,
        Loss,
    }

    fn made() -> impl Strategy<Value = Vec<Made>> {
        let one = prop_oneof![
            6 => Just(Made::Tick),
            2 => (1..4_u32).prop_map(Made::Switch),
            1 => Just(Made::Rename),
            1 => Just(Made::Loss),
        ];
        proptest::collection::vec(one, 1..60)
    }

    /// A stream of packets that hold few records each, and who really ran at each record.
    fn stream(made: &[Made]) -> (TempDir, Trace, Vec<String>) {
        let dir = TempDir::new().unwrap();
        let mut manifest = manifest();
        let new = NewLayer { kind: LayerKind::GuestKernel, vm: Some("vm0".into()), process: None, packet_size: 256 };
        let mut layer = LayerWriter::create(dir.path(), &manifest, new).unwrap();
        let event = |id, name: &str, fields: &[(&str, FieldType)]| {
            let field = |&(name, ty): &(&str, FieldType)| FieldDescription { name: name.into(), ty, hex: false };
            EventDescription { id, class: 0, name: name.into(), fields: fields.iter().map(field).collect() }
        };
        let (tid, comm) = (FieldType::I32, FieldType::CharArray(4));
        let switch = [("prev_pid", tid), ("prev_comm", comm), ("next_pid", tid), ("next_comm", comm)];
        let rename = [("pid", tid), ("oldcomm", comm), ("newcomm", comm)];
        let events = [
            event(1, "test:tick", &[]),
            event(2, "sched:sched_switch", &switch),
            event(3, "task:task_rename", &rename),
        ];
        layer.add_events(&events).unwrap();
        let mut names = ["n0".to_string(), "n1".into(), "n2".into(), "n3".into()];
        let (mut running, mut truth) = (0_u32, Vec::new());
        let put = |payload: &mut Vec<u8>, name: &str| {
            payload.extend(name.bytes().chain(std::iter::repeat(0)).take(4));
        };
        for (time, made) in (1..).zip(made) {
            let name = names[running as usize].clone();
            let mut payload = running.to_le_bytes().to_vec();
            put(&mut payload, &name);
            truth.push(format!("{running}/{name}"));
            match *made {
                Made::Tick => layer.record(0, time, 1, &[]).unwrap(),
                Made::Switch(next) => {
                    running = next;
                    payload.extend(next.to_le_bytes());
                    put(&mut payload, &names[next as usize]);
                    layer.record(0, time, 2, &payload).unwrap();
                }
                Made::Rename => {
                    let new = &mut names[running as usize];
                    *new = format!("{}{}", &new[..2], time % 10);
                    put(&mut payload, new);
                    layer.record(0, time, 3, &payload).unwrap();
                }
                Made::Loss => {
                    layer.add_lost(0, 1);
                    truth.pop();
                }
            }
        }
        layer.flush().unwrap();
        manifest.layers.push(layer.layer());
        Manifest::save(&manifest, dir.path()).unwrap();
        let trace = Trace::open(dir.path()).unwrap();
        (dir, trace, truth)
    }

    proptest! {
        #[test]
        fn task_is_right_or_unknown_wherever_reading_begins(made in made()) {
            let (_dir, trace, truth) = stream(&made);
            let layer = &trace.layers()[0];
            let times: Vec<u64> = layer.streams.iter().flat_map(|stream| layer.records(stream)).map(|record| record.time).collect();
            prop_assume!(!times.is_empty());

            let all = tasks(&trace, 0);

            prop_assert!(all.iter().zip(&truth).all(|(reported, truth)| reported == "-" || reported == truth), "{all:?} {truth:?}");
            for (number, &from) in times.iter().enumerate() {
                prop_assert_eq!(&tasks(&trace, from), &all[number..], "from record {}", number);
            }
        }

        #[test]
        fn task_is_known_when_nothing_was_lost(made in made()) {
            let made: Vec<_> = made.into_iter().filter(|made| !matches!(made, Made::Loss)).collect();
            let (_dir, trace, truth) = stream(&made);
            prop_assume!(made.iter().any(|made| matches!(made, Made::Switch(_))));

            prop_assert_eq!(tasks(&trace, 0), truth);
        }
    }
}
