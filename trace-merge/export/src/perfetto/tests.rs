//! Shows: A Perfetto export holds exactly the records, shows what is missing, and gives the reports' figures.

use super::proto::{EventType, FTRACE_CLOCK_MONO_RAW, FieldType, FtraceEvent, TaskState, TracePacket, TrackDescriptor};
use super::tracks::{Kind, uuid};
use super::*;
use prost::Message;
use std::collections::BTreeMap;
use std::time::Duration;
use strata_recording::test_trace::Field::{Arguments, Float, Hex, Number, Stack, Text};
use strata_recording::test_trace::disk_request::{Place, VDA, whole};
use strata_recording::test_trace::packet::there_and_back;
use strata_recording::test_trace::{TestTrace, clock_snapshot};
use trace_merge::report::scenario::{preempted_and, preempted_in_an_exit};

/// `trace/trace.proto`, `Trace`.
#[derive(Clone, PartialEq, Message)]
struct PerfettoTrace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<TracePacket>,
}

/// What was written, as Perfetto sees it: in time order.
struct Read {
    packets: Vec<TracePacket>,
    exported: Exported,
}

/// Machine, begin and end in ns, name.
type Slice = (u32, u64, u64, String);

/// Number, name, and the fields' names and types.
type Described = (i32, String, Vec<(String, FieldType)>);

const UNKNOWN_0: i64 = 1 << 30;

fn export_part(trace: TestTrace, options: &Options<'_>) -> Result<Read, ExportError> {
    let (_dir, trace) = trace.open();
    let mut bytes = Vec::new();
    let exported = export(&trace, options, &mut bytes)?;
    assert_eq!(exported.bytes, bytes.len() as u64);
    let mut packets = PerfettoTrace::decode(&*bytes).unwrap().packet;
    packets.sort_by_key(|packet| packet.timestamp.unwrap_or(0));
    Ok(Read { packets, exported })
}

fn read(trace: TestTrace) -> Read {
    export_part(trace, &Options::default()).unwrap()
}

/// The part from `from` to `to` ns after the first record.
fn read_part(trace: TestTrace, from: u64, to: u64) -> Read {
    let moment = |ns| Some(Duration::from_nanos(ns));
    export_part(trace, &Options { from: moment(from), to: moment(to), progress: None }).unwrap()
}

impl Read {
    fn descriptors(&self) -> impl Iterator<Item = (u32, &TrackDescriptor)> {
        self.packets
            .iter()
            .filter_map(|packet| Some((packet.machine_id.unwrap_or(0), packet.track_descriptor.as_ref()?)))
    }

    /// The slices of the track `uuid`; those that do not end, up to the end of time.
    fn slices(&self, uuid: u64) -> Vec<Slice> {
        let mut names: BTreeMap<(u32, u64), String> = BTreeMap::new();
        let (mut slices, mut open): (Vec<Slice>, Vec<usize>) = (Vec::new(), Vec::new());
        for packet in &self.packets {
            let machine = packet.machine_id.unwrap_or(0);
            for name in packet.interned_data.iter().flat_map(|interned| &interned.event_names) {
                names.insert((machine, name.iid.unwrap()), name.name.clone().unwrap());
            }
        }
        for packet in &self.packets {
            let (machine, time) = (packet.machine_id.unwrap_or(0), packet.timestamp.unwrap_or(0));
            let Some(event) = packet.track_event.as_ref().filter(|event| event.track_uuid == Some(uuid)) else {
                continue;
            };
            match event.r#type() {
                EventType::SliceBegin => {
                    let interned = event.name_iid.map(|iid| names[&(machine, iid)].clone());
                    open.push(slices.len());
                    slices.push((machine, time, u64::MAX, interned.or_else(|| event.name.clone()).unwrap()));
                }
                EventType::SliceEnd => slices[open.pop().unwrap()].2 = time,
                EventType::Instant | EventType::Counter => {}
            }
        }
        slices
    }

    fn slices_of(&self, kind: Kind, index: usize) -> Vec<(u64, u64, String)> {
        self.slices(uuid(kind, 0, index)).into_iter().map(|(_, begin, end, name)| (begin, end, name)).collect()
    }

    /// The states of the thread `tid` of `machine`, each with the time from which on it holds, ns.
    fn states(&self, machine: u32, tid: i64) -> Vec<(u64, TaskState)> {
        let of_machine = |packet: &&TracePacket| packet.machine_id.unwrap_or(0) == machine;
        let states = self.packets.iter().filter(of_machine).filter_map(|packet| {
            let event = packet.generic_kernel_task_state_event.as_ref()?;
            (event.tid == Some(tid)).then(|| (packet.timestamp.unwrap(), event.state()))
        });
        states.collect()
    }

    /// The records of `machine` in time order.
    fn ftrace(&self, machine: u32) -> Vec<FtraceEvent> {
        let of_machine = |packet: &&TracePacket| packet.machine_id.unwrap_or(0) == machine;
        let bundles = self.packets.iter().filter(of_machine).filter_map(|packet| packet.ftrace_events.clone());
        let mut events: Vec<_> = bundles.flat_map(|bundle| bundle.event).collect();
        events.sort_by_key(|event| event.timestamp);
        events
    }

    /// The events of `machine` that are described.
    fn described(&self, machine: u32) -> Vec<Described> {
        let of_machine = |packet: &&TracePacket| packet.machine_id.unwrap_or(0) == machine;
        let bundles = self.packets.iter().filter(of_machine).filter_map(|packet| packet.ftrace_events.as_ref());
        let described = bundles.flat_map(|bundle| &bundle.generic_event_descriptors).map(|described| {
            let event = described.event_descriptor.clone().unwrap();
            let fields = event.field.into_iter().map(|field| (field.name.clone().unwrap(), field.r#type())).collect();
            (described.field_id.unwrap(), event.name.unwrap(), fields)
        });
        described.collect()
    }

    /// Time and number of each call's begin (`true`) and end.
    fn calls(&self) -> Vec<(u64, bool, i64)> {
        let call = |event: &FtraceEvent| {
            let time = event.timestamp.unwrap();
            let enter = event.sys_enter.as_ref().and_then(|call| Some((time, true, call.id?)));
            enter.or_else(|| event.sys_exit.and_then(|call| Some((time, false, call.id?))))
        };
        self.ftrace(1).iter().filter_map(call).collect()
    }
}

fn named(slices: &[(u64, u64, String)]) -> Vec<(u64, u64, &str)> {
    slices.iter().map(|(begin, end, name)| (*begin, *end, &**name)).collect()
}

#[test]
fn vcpu_has_the_states_of_the_report_on_it() {
    let read = read(preempted_in_an_exit());

    let slices = read.slices_of(Kind::Vcpu, 0);
    let expected = [
        (5_000, 10_000, "guest"),
        (10_000, 11_000, "kvm: ioio"),
        (11_000, 20_000, "preempted: hog/200"),
        (20_000, 22_500, "kvm: ioio"),
        (22_500, 25_000, "vmm: ioio"),
        (25_000, 26_000, "kvm: ioio"),
    ];
    let first: Vec<_> = slices.into_iter().skip_while(|slice| slice.2 != "guest").take(expected.len()).collect();
    assert_eq!(named(&first), expected);
}

#[test]
fn guests_task_is_drawn_below_its_thread_on_its_own_machine() {
    let read = read(preempted_in_an_exit());

    let (machine, thread) = read
        .descriptors()
        .find(|(_, track)| track.thread.as_ref().is_some_and(|thread| thread.tid == Some(10)))
        .unwrap();
    let (_, states) = read.descriptors().find(|(_, track)| track.parent_uuid == thread.uuid).unwrap();
    let slices = read.slices(states.uuid.unwrap());

    assert_eq!((machine, thread.thread.as_ref().unwrap().thread_name.as_deref()), (1, Some("app")));
    let stolen: Vec<_> = slices.iter().filter(|slice| slice.3.starts_with("stolen")).collect();
    assert_eq!(stolen, [&(1, 11_000, 20_000, "stolen: hog/200".to_string())]);
}

#[test]
fn switches_of_host_and_guest_are_states_of_threads_on_two_machines() {
    let read = read(preempted_in_an_exit());

    use TaskState::{InterruptibleSleep as Sleep, Runnable, Running};
    assert_eq!(
        read.states(0, 100),
        [(4_500, Running), (11_000, Runnable), (20_000, Running), (36_000, Sleep), (44_000, Running)]
    );
    assert_eq!(read.states(1, 10), [(5_500, Running), (34_000, Sleep)]);
    // It ends: the idle task takes over.
    assert_eq!(read.states(1, 11), [(34_000, Running)]);
    assert_eq!(read.states(1, 0), [(35_000, Running), (35_000, Sleep)]);
    assert_eq!(read.states(1, UNKNOWN_0), []);
}

#[test]
fn running_thread_has_the_priority_of_its_switch_and_a_normal_one_where_that_is_unknown() {
    let fields = |next, priority| {
        [
            ("prev_comm", Text("a")),
            ("prev_pid", Number(next - 1)),
            ("prev_state", Number(1)),
            ("next_comm", Text("a")),
            ("next_pid", Number(next)),
            ("next_prio", Number(priority)),
        ]
    };
    let trace = TestTrace::new()
        .guest(0, 1_000, "sched:sched_switch", &fields(7, 139))
        .guest(0, 2_000, "sched:sched_switch", &fields(8, -1))
        .guest(0, 3_000, "test:event", &[])
        .lost(LayerKind::GuestKernel, 0, 3)
        .guest(0, 6_000, "sched:sched_switch", &fields(10, 98));

    let read = read(trace);

    let running = |packet: &TracePacket| {
        let event = packet.generic_kernel_task_state_event.as_ref()?;
        (event.state() == TaskState::Running).then(|| (event.tid.unwrap(), event.prio))
    };
    let priorities: Vec<_> = read.packets.iter().filter_map(running).collect();
    assert_eq!(priorities, [(7, Some(139)), (8, Some(-1)), (UNKNOWN_0, Some(120)), (10, Some(98))]);
}

#[test]
fn thread_that_ends_after_records_were_lost_runs_for_no_time_before_it_ends() {
    let trace = TestTrace::new().guest(0, 2_000, "test:event", &[]).lost(LayerKind::GuestKernel, 0, 3).named_switch(
        (0, 6_000),
        (7, "seven"),
        0x10,
        (8, "eight"),
    );

    let read = read(trace);

    use TaskState::{InterruptibleSleep as Sleep, Running};
    assert_eq!(read.states(1, 7), [(3_000, Running)]);
    assert_eq!(read.states(1, 0), [(3_000, Running), (3_000, Sleep)]);
    assert_eq!(read.states(1, 8), [(3_000, Running)]);
}

#[test]
fn thread_whose_switch_was_left_out_is_drawn_up_to_its_last_record_and_then_as_not_recorded() {
    let switch = |trace: TestTrace, time, prev: (i64, &'static str), next: (i64, &'static str)| {
        let fields = [
            ("common_pid", Number(prev.0)),
            ("prev_comm", Text(prev.1)),
            ("prev_pid", Number(prev.0)),
            ("prev_state", Number(1)),
            ("next_comm", Text(next.1)),
            ("next_pid", Number(next.0)),
        ];
        trace.host(0, time, "sched:sched_switch", &fields)
    };
    let trace = switch(TestTrace::new(), 1_000, (100, "vcpu0"), (200, "kworker"));
    let trace = trace.host(0, 1_400, "test:event", &[("common_pid", Number(200))]);
    // The kworker gives way to something, and that to the idle task, unseen.
    let trace = switch(trace, 9_000, (0, "swapper"), (100, "vcpu0"));
    let trace = switch(trace, 9_200, (100, "vcpu0"), (0, "swapper"));
    let trace = trace.host(1, 12_000, "test:event", &[("common_pid", Number(101))]);

    let read = read(trace);

    use TaskState::{InterruptibleSleep as Sleep, Running};
    assert_eq!(read.states(0, 200), [(500, Running)]);
    // Whatever begins has lasted for a nanosecond, idleness too.
    let unknown = [(700, Running), (4_500, Sleep), (4_601, Running), (6_000, Sleep)];
    assert_eq!(read.states(0, UNKNOWN_0), unknown);
    assert_eq!(read.states(0, 100), [(500, Sleep), (4_500, Running), (4_600, Sleep)]);
}

/// Task 7 runs on CPU 0 and is in a call when records are lost from 2000 up to 6000 ticks.
fn lossy() -> TestTrace {
    TestTrace::new()
        .switch(0, 1_000, 0, 7)
        .guest(0, 1_500, "raw_syscalls:sys_enter", &[("id", Number(0))])
        .guest(0, 1_600, "irq:softirq_entry", &[("vec", Number(1))])
        .guest(0, 2_000, "test:event", &[])
        .lost(LayerKind::GuestKernel, 0, 3)
        .guest(0, 6_000, "raw_syscalls:sys_exit", &[("id", Number(0)), ("ret", Number(5))])
        .switch(0, 7_000, 7, 8)
        .guest(0, 8_000, "raw_syscalls:sys_enter", &[("id", Number(1))])
        .guest(0, 8_200, "raw_syscalls:sys_exit", &[("id", Number(1)), ("ret", Number(5))])
}

#[test]
fn what_lasts_when_records_are_lost_ends_there_and_the_gap_is_drawn() {
    let read = read(lossy());

    use TaskState::{InterruptibleSleep as Sleep, Runnable, Running};
    assert_eq!(read.states(1, 7), [(500, Running), (3_500, Runnable)]);
    assert_eq!(read.states(1, UNKNOWN_0), [(1_000, Running), (3_500, Sleep)]);
    // The first call ends at the gap, and its own end, which is behind it, ends nothing.
    assert_eq!(read.calls(), [(750, true, 0), (1_000, false, 0), (4_000, true, 1), (4_100, false, 1)]);
    let softirqs: Vec<_> = read
        .ftrace(1)
        .iter()
        .filter_map(|event| Some((event.timestamp?, event.softirq_entry.is_some(), event.softirq_exit.is_some())))
        .filter(|event| event.1 || event.2)
        .collect();
    assert_eq!(softirqs, [(800, true, false), (1_000, false, true)]);
    assert_eq!(named(&read.slices_of(Kind::Gaps, 0)), [(1_000, 3_000, "not recorded")]);
}

#[test]
fn lost_records_are_counted_and_the_note_says_what_is_missing() {
    let read = read(lossy());

    let lost = |packet: &TracePacket| {
        let event = packet.track_event.as_ref()?;
        (event.track_uuid == Some(uuid(Kind::Lost, 0, 0))).then_some(event.counter_value?)
    };
    let note = read.packets.iter().find_map(|packet| {
        let event = packet.track_event.as_ref()?;
        let missing =
            event.debug_annotations.iter().find(|annotation| annotation.name.as_deref() == Some("missing"))?;
        missing.string_value.clone()
    });
    assert_eq!(read.packets.iter().filter_map(lost).collect::<Vec<_>>(), [3]);
    assert_eq!(note, read.exported.incomplete);
    assert!(note.unwrap().contains("3 records lost"));
}

#[test]
fn call_ends_with_its_task_and_a_return_without_a_call_ends_nothing() {
    let ends = [
        ("prev_comm", Text("seven")),
        ("prev_pid", Number(7)),
        ("prev_state", Number(0x10)),
        ("next_comm", Text("swapper")),
        ("next_pid", Number(0)),
    ];
    let trace = TestTrace::new()
        .switch(0, 1_000, 0, 7)
        .guest(0, 1_200, "raw_syscalls:sys_exit", &[("id", Number(56)), ("ret", Number(0))])
        .guest(0, 1_400, "raw_syscalls:sys_enter", &[("id", Number(231))])
        .guest(0, 2_000, "sched:sched_switch", &ends);

    assert_eq!(read(trace).calls(), [(700, true, 231), (1_000, false, 231)]);
}

#[test]
fn window_begins_with_what_has_begun_before_it() {
    let trace = || {
        TestTrace::new()
            .switch(0, 1_000, 0, 7)
            .guest(0, 2_000, "raw_syscalls:sys_enter", &[("id", Number(0))])
            .guest(0, 6_000, "raw_syscalls:sys_exit", &[("id", Number(0)), ("ret", Number(5))])
            .switch(0, 9_000, 7, 8)
    };

    // From tick 3000 to tick 8000.
    let part = read_part(trace(), 1_000, 3_500);

    assert_eq!(part.states(1, 7), [(1_500, TaskState::Running)]);
    assert_eq!(part.calls(), [(1_500, true, 0), (3_000, false, 0)]);
    assert_eq!((part.exported.records, part.exported.drawn), (1, 1));
    let times = part.packets.iter().filter_map(|packet| packet.timestamp);
    assert!(times.clone().all(|time| (1_500..=4_000).contains(&time)), "{:?}", times.collect::<Vec<_>>());
}

#[test]
fn window_without_a_record_is_refused() {
    let moment = |ns| Some(Duration::from_nanos(ns));
    let nothing = export_part(lossy(), &Options { from: moment(1_000_000), ..Options::default() });
    let turned = export_part(lossy(), &Options { from: moment(2), to: moment(1), progress: None });

    assert!(matches!(nothing, Err(ExportError::Nothing)));
    assert!(matches!(turned, Err(ExportError::Report(_))));
}

#[test]
fn applications_event_is_on_its_thread_with_its_fields() {
    let fields = [("count", Number(-3)), ("at", Hex(0x10)), ("share", Float(0.25)), ("what", Text("page"))];
    let trace = TestTrace::new()
        .switch(0, 1_000, 0, 7)
        .user(7, 0, 1_100, "app:event", &fields)
        .user(9, 0, 1_200, "app:other", &[])
        .switch(0, 2_000, 7, 0);

    let read = read(trace);

    let events: Vec<_> = read
        .packets
        .iter()
        .filter_map(|packet| packet.track_event.as_ref())
        .filter(|event| event.name.as_ref().is_some_and(|name| name.starts_with("app:")))
        .collect();
    // Task 7 is the first that the trace shows; what process 9 records while task 7 runs is not on its thread.
    let tracks: Vec<_> = events.iter().map(|event| event.track_uuid.unwrap()).collect();
    assert_eq!(tracks, [uuid(Kind::Thread, 0, 0), uuid(Kind::Process, 0, 9)]);
    let [count, at, share, what] = &events[0].debug_annotations[..] else { panic!("{:?}", events[0]) };
    assert_eq!((count.int_value, at.pointer_value, share.double_value), (Some(-3), Some(0x10), Some(0.25)));
    assert_eq!(what.string_value.as_deref(), Some("page"));
    assert!(read.descriptors().any(|(machine, track)| machine == 1 && track.uuid == Some(tracks[1])));
}

#[test]
fn thread_and_process_have_the_name_that_the_task_gave_itself_last() {
    let trace = TestTrace::new()
        .named_switch((0, 1_000), (0, "swapper"), 0, (7, "sh"))
        .guest(0, 1_500, "raw_syscalls:sys_enter", &[("id", Number(59))])
        .rename(0, 2_000, 7, "sh", "dd")
        .named_switch((0, 4_000), (7, "dd"), 0x10, (0, "swapper"));

    let read = read(trace);

    let threads = read.descriptors().filter_map(|(_, track)| track.thread.as_ref());
    let threads = threads.filter(|thread| thread.tid == Some(7)).map(|thread| thread.thread_name.as_deref());
    let processes = read.descriptors().filter_map(|(_, track)| track.process.as_ref());
    let processes = processes.filter(|process| process.pid == Some(7)).map(|process| process.process_name.as_deref());
    // Perfetto takes the last name of a thread, and the first one of a process.
    assert_eq!(threads.last(), Some(Some("dd")));
    assert_eq!(processes.collect::<Vec<_>>(), [None, Some("dd")]);
}

#[test]
fn threads_of_strata_and_vcpus_are_below_their_processes_on_the_host() {
    let trace = preempted_in_an_exit().strata_thread(90, "strata", 5).strata_thread(91, "strata-clock", 5);

    let read = read(trace.attached_to(95, "qemu"));

    let trees = || read.packets.iter().filter_map(|packet| packet.process_tree.as_ref());
    let threads: Vec<_> = trees()
        .flat_map(|tree| &tree.threads)
        .map(|thread| (thread.tgid.unwrap(), thread.tid.unwrap(), thread.name.as_deref()))
        .collect();
    let processes: Vec<_> =
        trees().flat_map(|tree| &tree.processes).map(|process| (process.pid.unwrap(), &*process.cmdline[0])).collect();
    assert_eq!(processes, [(90, "strata"), (95, "qemu")]);
    assert_eq!(threads, [(90, 90, Some("strata")), (90, 91, Some("strata-clock")), (95, 100, None), (95, 101, None)]);
}

#[test]
fn request_is_a_flow_through_its_steps_which_add_up_to_it() {
    let place = Place(VDA, 0, 8);
    let read = read(whole(whole(TestTrace::new(), 1_000, place), 3_000, Place(VDA, 0, 16)));

    let requests = read.slices_of(Kind::Request, 0);
    assert_eq!(named(&requests), [(500, 1_000, "read"), (1_500, 2_000, "read")]);
    let sides = [Kind::RequestGuest, Kind::RequestHost, Kind::RequestVmm];
    let steps: u64 = sides.iter().flat_map(|&side| read.slices_of(side, 0)).map(|(begin, end, _)| end - begin).sum();
    assert_eq!(steps, 1_000);
    let mut flows: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
    for event in read.packets.iter().filter_map(|packet| packet.track_event.as_ref()) {
        event.flow_ids.iter().for_each(|flow| flows.entry(*flow).or_default().0 += 1);
        event.terminating_flow_ids.iter().for_each(|flow| flows.entry(*flow).or_default().1 += 1);
    }
    assert!(flows.len() == 2 && flows.values().all(|&(steps, ends)| steps > 3 && ends == 1), "{flows:?}");
}

#[test]
fn packet_is_a_flow_through_its_steps_which_add_up_to_it() {
    let read = read(there_and_back(TestTrace::new(), 2_000, 1));

    // a tick is half a nanosecond
    assert_eq!(named(&read.slices_of(Kind::Packet, 0)), [(1_000, 1_115, "sent"), (1_125, 1_300, "received")]);
    let sides = [Kind::PacketGuest, Kind::PacketHost, Kind::PacketVmm];
    let steps: Vec<_> = sides.iter().map(|&side| read.slices_of(side, 0)).collect();
    assert!(steps.iter().all(|side| !side.is_empty()), "{steps:?}");
    let mut flows: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
    for event in read.packets.iter().filter_map(|packet| packet.track_event.as_ref()) {
        event.flow_ids.iter().for_each(|flow| flows.entry(*flow).or_default().0 += 1);
        event.terminating_flow_ids.iter().for_each(|flow| flows.entry(*flow).or_default().1 += 1);
    }
    let steps: Vec<_> = flows.into_values().collect();
    assert_eq!(steps, [(6, 1), (10, 1)]);
}

#[test]
fn requests_that_overlap_are_drawn_beside_each_other() {
    let mut requests = Requests::of_disks();
    let (_dir, trace) = preempted_in_an_exit().open();
    let timeline = Timeline::new(&trace);
    let mut out = PacketWriter::new(Vec::new(), None);

    let lanes = [(0, 100), (50, 60), (70, 80), (100, 110)]
        .map(|(begin, end)| requests.lane(&mut out, &timeline, 0, begin, end));

    assert_eq!(lanes, [0, 1, 1, 0]);
}

#[test]
fn exits_are_counted_by_period_as_far_as_it_lies_in_the_part() {
    let exit = |trace: TestTrace, time| {
        let fields = [("common_pid", Number(100)), ("exit_reason", Number(0x78)), ("isa", Number(2))];
        trace.host(0, time, "kvm:kvm_exit", &fields)
    };
    // A period of 100 ms is 200 million ticks.
    let trace = || [0, 2, 3, 160_000_000, 700_000_000].into_iter().fold(TestTrace::new(), exit);
    let (whole, part) = (read(trace()), read_part(trace(), 50_000_000, 400_000_000));

    let rate = uuid(Kind::ExitRate, 0, 0);
    let values = |read: &Read| -> Vec<_> {
        let events = read.packets.iter().filter_map(|packet| Some((packet.timestamp?, packet.track_event.as_ref()?)));
        let rates = events.filter(|(_, event)| event.track_uuid == Some(rate));
        rates.map(|(time, event)| (time, event.counter_value.unwrap())).collect()
    };
    assert_eq!(values(&whole), [(0, 40), (100_000_000, 0), (300_000_000, 20), (350_000_000, 0)]);
    assert_eq!(values(&part), [(50_000_000, 20), (100_000_000, 0), (300_000_000, 20), (350_000_000, 0)]);
}

#[test]
fn part_in_which_only_an_application_recorded_is_exported() {
    let trace = TestTrace::new().switch(0, 1_000, 0, 7).user(7, 0, 5_000, "app:event", &[]);

    let read = read_part(trace, 1_000, 9_000);

    assert_eq!((read.exported.records, read.exported.drawn), (1, 1));
}

#[test]
fn thread_has_its_last_name_when_an_application_recorded_before() {
    let trace = TestTrace::new().named_switch((0, 1_000), (0, "swapper"), 0, (7, "sh"));
    let trace = trace.user(7, 0, 2_000, "app:event", &[]).rename(0, 3_000, 7, "sh", "work");

    let read = read(trace.named_switch((0, 4_000), (7, "work"), 1, (0, "swapper")));

    let threads = read.descriptors().filter_map(|(_, track)| track.thread.as_ref());
    let last = threads.filter(|thread| thread.tid == Some(7)).last().unwrap();
    assert_eq!(last.thread_name.as_deref(), Some("work"));
}

#[test]
fn names_are_numbered_up_to_a_limit_and_written_out_beyond() {
    let mut bytes = Vec::new();
    let mut out = PacketWriter::new(&mut bytes, None);
    for number in 0..5_000 {
        let name = number.to_string();
        out.slice(Machine::HOST, 1, (0, 0), packets::Name::Few(&name), None);
    }
    out.finish().unwrap();

    let packets = PerfettoTrace::decode(&*bytes).unwrap().packet;
    let events = packets.iter().filter_map(|packet| packet.track_event.as_ref());
    let numbered = events.clone().filter(|event| event.name_iid.is_some()).count();
    let written_out = events.filter(|event| event.name.is_some()).count();
    assert_eq!((numbered, written_out), (4_096, 904));
}

#[test]
fn record_without_a_form_is_an_event_that_describes_itself_once() {
    let fields = |rip| {
        [
            ("common_pid", Number(100)),
            ("exit_reason", Number(-3)),
            ("guest_rip", Hex(rip)),
            ("isa", Text("svm")),
            ("stack", Stack(&[0xffff_ffff_8100_0000])),
        ]
    };
    let trace = TestTrace::new()
        .host(0, 1_000, "kvm:kvm_exit", &fields(0xffff_ffff_8333_c620))
        .host(0, 2_000, "kvm:kvm_exit", &fields(16))
        .guest(0, 3_000, "test:event", &[]);

    let (_dir, trace) = trace.open();
    let mut bytes = Vec::new();
    let exported = export(&trace, &Options::default(), &mut bytes).unwrap();
    let packets = PerfettoTrace::decode(&*bytes).unwrap().packet;
    let read = Read { packets, exported };

    let types = [
        ("exit_reason", FieldType::Int64),
        ("guest_rip", FieldType::String),
        ("isa", FieldType::String),
        ("stack", FieldType::String),
    ];
    let types: Vec<_> = types.into_iter().map(|(name, ty)| (name.to_owned(), ty)).collect();
    assert_eq!(read.described(0), [(65_536, "kvm_exit".to_owned(), types)]);
    assert_eq!(read.described(1), [(65_537, "event".to_owned(), Vec::new())]);
    assert_eq!((read.exported.records, read.exported.drawn), (3, 3));
    let mut event = Vec::new();
    proto::wire::put_number(2, (-3_i64).cast_unsigned(), &mut event);
    proto::wire::put_bytes(3, b"0xffffffff8333c620", &mut event);
    proto::wire::put_bytes(4, b"svm", &mut event);
    proto::wire::put_bytes(5, b"[18446744071578845184]", &mut event);
    let mut record = Vec::new();
    proto::wire::put_number(1, 500, &mut record);
    proto::wire::put_number(2, 100, &mut record);
    proto::wire::put_bytes(65_536, &event, &mut record);
    assert!(bytes.windows(record.len()).any(|window| window == record), "the first record");
}

#[test]
fn event_that_describes_itself_has_names_of_addresses_and_numbers_behind_its_fields() {
    let fields = [("common_pid", Number(7)), ("function", Hex(0xffff_ffff_8100_0014)), ("error", Number(-5))];
    let trace = TestTrace::new()
        .host(0, 1_000, "timer:hrtimer_start", &fields)
        .guest(0, 3_000, "test:event", &[])
        .kallsyms("host-kernel", "ffffffff81000010 T hrtimer_wakeup\nffffffff81000020 T next\n");

    let (_dir, trace) = trace.open();
    let mut bytes = Vec::new();
    let exported = export(&trace, &Options::default(), &mut bytes).unwrap();
    let read = Read { packets: PerfettoTrace::decode(&*bytes).unwrap().packet, exported };

    let described = read.described(0).remove(0).2;
    let names: Vec<&str> = described.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["function", "error", "function_symbol", "error_name"]);
    let [mut symbol, mut error] = [Vec::new(), Vec::new()];
    proto::wire::put_bytes(4, b"hrtimer_wakeup+0x4", &mut symbol);
    proto::wire::put_bytes(5, b"EIO", &mut error);
    assert!([symbol, error].iter().all(|field| bytes.windows(field.len()).any(|window| window == field)));
}

#[test]
fn record_of_the_vmm_is_an_instant_of_its_thread_with_its_fields() {
    let trace = TestTrace::new().vmm(0, 1_000, "vmm:port_access", &[("vcpu", Number(0)), ("port", Hex(0x3f8))]).vmm(
        2,
        1_100,
        "vmm:control",
        &[("what", Text("started"))],
    );

    let read = read(trace);

    let names: Vec<_> = read
        .descriptors()
        .filter(|(_, track)| [0, 2].map(|thread| Some(uuid(Kind::VmmThread, 0, thread))).contains(&track.uuid))
        .map(|(machine, track)| (machine, track.name.as_deref()))
        .collect();
    assert_eq!(names, [(0, Some("VMM: vCPU 0")), (0, Some("VMM: other threads"))]);
    let access = read.packets.iter().find_map(|packet| {
        let event = packet.track_event.as_ref()?;
        (event.track_uuid == Some(uuid(Kind::VmmThread, 0, 0))).then_some((packet.timestamp, event))
    });
    let (time, event) = access.unwrap();
    let fields: Vec<_> = event.debug_annotations.iter().map(|field| field.name.as_deref().unwrap()).collect();
    assert_eq!((time, event.r#type(), fields), (Some(500), EventType::Instant, vec!["vcpu", "port"]));
    assert_eq!(event.debug_annotations[1].pointer_value, Some(0x3f8));
}

#[test]
fn call_has_its_arguments() {
    let trace = TestTrace::new()
        .switch(0, 1_000, 0, 7)
        .guest(0, 2_000, "raw_syscalls:sys_enter", &[("id", Number(1)), ("args", Arguments([3, 0x7fff_0000]))])
        .guest(0, 3_000, "test:event", &[]);

    let read = read(trace);

    let calls: Vec<_> = read.ftrace(1).into_iter().filter_map(|event| event.sys_enter).collect();
    let [call] = &calls[..] else { panic!("{calls:?}") };
    assert_eq!(call.args, [3, 0x7fff_0000, 0, 0, 0, 0]);
}

#[test]
fn call_without_recorded_arguments_has_none() {
    let trace = TestTrace::new()
        .switch(0, 1_000, 0, 7)
        .guest(0, 2_000, "raw_syscalls:sys_enter", &[("id", Number(1))])
        .guest(0, 3_000, "test:event", &[]);

    let read = read(trace);

    let calls: Vec<_> = read.ftrace(1).into_iter().filter_map(|event| event.sys_enter).collect();
    assert_eq!(calls.iter().map(|call| call.args.as_slice()).collect::<Vec<_>>(), [&[0_u64; 0]]);
}

#[test]
fn output_that_fails_is_an_error() {
    struct Full(usize);
    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or_else(|| std::io::Error::other("full"))?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let (_dir, trace) = preempted_and(|trace| trace).open();

    let failed = [10, 1_000].map(|room| export(&trace, &Options::default(), Full(room)));

    assert!(failed.iter().all(|failed| matches!(failed, Err(ExportError::Write(_)))), "{failed:?}");
}

#[test]
fn path_of_a_task_is_a_track_of_slices_that_lie_in_each_other() {
    use trace_merge::critical_path::{CriticalPathOptions, critical_paths};
    let (_dir, trace) = trace_merge::report::scenario::preempted_in_an_exit().open();
    let requested = CriticalPathOptions {
        from: Some(Duration::from_nanos(1_000)),
        ..CriticalPathOptions::of("app".parse().unwrap())
    };
    let (paths, _) = critical_paths(&trace, &requested).unwrap();
    let mut bytes = Vec::new();

    let options = Options { from: requested.from, ..Options::default() };
    let exported = export_with(&trace, &options, Some(&paths), &mut bytes).unwrap();

    let mut packets = PerfettoTrace::decode(&*bytes).unwrap().packet;
    packets.sort_by_key(|packet| packet.timestamp.unwrap_or(0));
    let read = Read { packets, exported };
    let track = uuid(Kind::Why, 0, 0);
    let names: Vec<_> = read
        .descriptors()
        .filter(|(_, known)| known.uuid == Some(track))
        .map(|(_, known)| known.name.clone())
        .collect();
    assert_eq!(names, [Some("vm0: why app/10".into())]);
    let slices = read.slices(track);
    // Two ticks are a nanosecond.
    let of = |begin: u64, end: u64, name: &str| (0, begin / 2, end / 2, name.to_owned());
    assert_eq!(
        slices[1..5],
        [
            of(11_000, 20_000, "runs on vCPU 0"),
            of(20_000, 22_000, "KVM handles ioio of vCPU 0"),
            of(22_000, 40_000, "the host runs hog/200 in place of vCPU 0"),
            of(40_000, 45_000, "KVM handles ioio of vCPU 0"),
        ]
    );
    let (machine, begin, end, name) = slices[0].clone();
    assert_eq!((machine, begin, name.as_str()), (0, 11_000 / 2, "app/10"));
    assert!(slices.iter().all(|slice| slice.1 >= begin && slice.2 <= end), "{slices:?}");
}

const HOUR: u64 = 3_600_000_000_000;

#[test]
fn recording_with_snapshots_of_clocks_is_the_same_in_another_clock() {
    let recording = || preempted_and(|trace| trace.user(42, 0, 70, "app:work", &[]));
    let without = read(recording());

    let with = read(recording().clocks(&[0, 100].map(clock_snapshot)));

    let later = |packet: &TracePacket| {
        let mut packet = packet.clone();
        packet.timestamp = packet.timestamp.map(|time| time + HOUR);
        if let Some(bundle) = &mut packet.ftrace_events {
            bundle.ftrace_clock = Some(FTRACE_CLOCK_MONO_RAW);
            bundle.event.iter_mut().for_each(|event| event.timestamp = event.timestamp.map(|time| time + HOUR));
        }
        packet
    };
    let is_same = |packet: &&TracePacket| packet.clock_snapshot.is_none() && !is_note(packet);
    // Those without a time lie among others here.
    let mut expected: Vec<_> =
        without.packets.iter().filter(is_same).map(|packet| later(packet).encode_to_vec()).collect();
    let mut found: Vec<_> = with.packets.iter().filter(is_same).map(TracePacket::encode_to_vec).collect();
    expected.sort();
    found.sort();
    assert!(found == expected, "{found:?}\n{expected:?}");
    let snapshots = with.packets.iter().filter_map(|packet| packet.clock_snapshot.as_ref());
    assert_eq!(snapshots.map(|snapshot| snapshot.clocks.len()).collect::<Vec<_>>(), [4, 4, 1]);
}

fn is_note(packet: &TracePacket) -> bool {
    let event = packet.track_event.as_ref();
    event.is_some_and(|event| event.debug_annotations.iter().any(|note| note.name() == "clock_error_bound_ns"))
}
