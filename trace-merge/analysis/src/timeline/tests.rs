use super::host::HostCpuState;
use super::states::{BlockedOn, TaskIndex, TaskState};
use super::vcpu::{Preemptor, VcpuState};
use super::*;
use crate::event::tests::{record, syscall};
use crate::event::{Interrupt, WakeupStage};
use crate::exit_reason::{ExitNumbering, ExitReason};
use fused::{Fused, Running};
use proptest::prelude::*;
use strata_recording::test_trace::{Field, TestTrace, manifest};

pub(super) const HLT: ExitReason = ExitReason { numbering: ExitNumbering::Svm, number: 0x78 };
pub(super) const IO: ExitReason = ExitReason { numbering: ExitNumbering::Svm, number: 0x7b };
pub(super) const KVM_IO: ExitReason = ExitReason { numbering: ExitNumbering::Kvm, number: 2 };
pub(super) const HOG: Task<'_> = Task { tid: 200, comm: b"hog" };
pub(super) const OTHER: Task<'_> = Task { tid: 300, comm: b"other" };
pub(super) const IDLE: Task<'_> = Task { tid: 0, comm: b"" };
/// Longest time that an idle CPU takes to begin, ticks.
pub(super) const LONGEST: u64 = 1_000;
const APP: Task<'_> = Task { tid: 10, comm: b"app" };
const SH: Task<'_> = Task { tid: 11, comm: b"sh" };

/// What a timeline takes in.
#[derive(Clone, Copy, Debug)]
pub(super) enum Item<'t> {
    Event(Event<'t>),
    GapBegin,
    GapEnd,
}

pub(super) type Step<'t> = (u64, Origin, Item<'t>);

/// The host thread of vCPU `vcpu`.
pub(super) const fn thread(vcpu: u32) -> Task<'static> {
    Task { tid: 100 + vcpu.cast_signed(), comm: b"vcpu" }
}

pub(super) const fn on_host(time: u64, cpu: u32, item: Item<'_>) -> Step<'_> {
    (time, Origin::Host { host: 0, cpu, only_kvm: false }, item)
}

pub(super) const fn host(time: u64, cpu: u32, event: Event<'_>) -> Step<'_> {
    on_host(time, cpu, Item::Event(event))
}

pub(super) const fn vmm(time: u64, thread: u32, event: Event<'_>) -> Step<'_> {
    (time, Origin::Vmm { vm: 0, thread }, Item::Event(event))
}

pub(super) const fn guest(time: u64, cpu: u32, event: Event<'_>) -> Step<'_> {
    (time, Origin::Guest { vm: 0, cpu }, Item::Event(event))
}

pub(super) const fn entry(vcpu: u32) -> Event<'static> {
    Event::KvmEntry { tid: thread(vcpu).tid, vcpu: Some(vcpu) }
}

pub(super) const fn exit(vcpu: u32, reason: ExitReason) -> Event<'static> {
    Event::KvmExit { tid: thread(vcpu).tid, vcpu: Some(vcpu), reason }
}

pub(super) const fn switch<'t>(prev: Task<'t>, prev_state: u64, next: Task<'t>) -> Event<'t> {
    Event::Switch { prev, prev_state, next }
}

pub(super) const fn wakeup(task: Task<'_>, cpu: Option<u32>) -> Event<'_> {
    Event::Wakeup { task, cpu, stage: WakeupStage::Waking }
}

pub(super) const fn queued(task: Task<'_>, cpu: Option<u32>) -> Event<'_> {
    Event::Wakeup { task, cpu, stage: WakeupStage::Wakeup }
}

/// A timeline, and all that it reported.
pub(super) struct Reported {
    pub(super) timeline: Timeline,
    pub(super) changes: Vec<Change>,
}

impl Reported {
    /// Of a VM of two vCPUs, whose threads are 100 and 101.
    pub(super) fn new() -> Self {
        let vm = |name: &str| Vm {
            name: name.into(),
            host: 0,
            vcpus: (0..2).map(|vcpu| (vcpu, Vcpu::new(Some(thread(vcpu).tid)))).collect(),
            guest: Guest::default(),
            kvm_reports: true,
            scheduler_reports: true,
            kernel_span: None,
            vcpus_are_recorded: true,
            never_joined: BTreeSet::new(),
            returns_are_recorded: true,
        };
        let timeline = Timeline {
            hosts: vec![Host::new(None)],
            vms: vec![vm("vm0")],
            span: None,
            vcpu_threads: (0..2).map(|vcpu| ((0, thread(vcpu).tid), (0, vcpu))).collect(),
            clock: manifest().clock,
            longest_begin: LONGEST,
            recorder: Current::Unknown,
            is_without_states: false,
            changes: Changes::default(),
        };
        Self { timeline, changes: Vec::new() }
    }

    pub(super) fn feed(&mut self, (time, origin, item): &Step<'_>) {
        match *item {
            Item::Event(event) => {
                let input = Input { origin: *origin, source: 0, event: Some(event), record: record(*time) };
                self.timeline.apply(&input);
            }
            Item::GapBegin => self.timeline.begin_gap(*time, *origin),
            Item::GapEnd => self.timeline.end_gap(*time, *origin),
        }
        self.changes.extend_from_slice(self.timeline.changes());
    }

    /// The same after `steps`, at whose `end` the recording ends.
    pub(super) fn over(mut self, steps: &[Step<'_>], end: u64) -> Self {
        steps.iter().for_each(|step| self.feed(step));
        self.timeline.finish(end);
        self.changes.extend_from_slice(self.timeline.changes());
        self
    }

    /// When each state of vCPU `of` of the VM `vm` began.
    pub(super) fn vcpu_of(&self, vm: usize, of: u32) -> Vec<(u64, VcpuState)> {
        let of_vcpu = |change: &Change| match *change {
            Change::Vcpu { vm: of_vm, vcpu, window, state } if (of_vm, vcpu) == (vm, of) => Some((window.begin, state)),
            _ => None,
        };
        self.changes.iter().filter_map(of_vcpu).collect()
    }

    pub(super) fn vcpu(&self, of: u32) -> Vec<(u64, VcpuState)> {
        self.vcpu_of(0, of)
    }

    /// When each state of the task with thread id `tid` began.
    fn task(&self, tid: Tid) -> Vec<(u64, Fused)> {
        let index = self.timeline.vms[0].guest.living(tid);
        let of_task = |change: &Change| match *change {
            Change::Task { task, window, state, .. } if Some(task) == index => Some((window.begin, state)),
            _ => None,
        };
        self.changes.iter().filter_map(of_task).collect()
    }

    /// `task`, as what runs in place of a vCPU.
    pub(super) fn preemptor(&self, task: Task<'_>) -> Preemptor {
        let mut host = self.timeline.hosts[0].clone();
        host.apply(9, &switch(IDLE, 0, task));
        let HostCpuState::Running(thread) = host.cpu(9) else { panic!("CPU 9 does not run {task:?}") };
        Preemptor::Thread(thread)
    }
}

/// The thread that vCPU 0 has before the first record of a recording in which another one ran it before.
fn first_thread(events: &[&'static str]) -> Option<Tid> {
    let fields = [("common_pid", Field::Number(100)), ("vcpu_id", Field::Number(0))];
    let recorded =
        events.iter().fold(TestTrace::new().earlier_thread(0, 90), |trace, event| trace.host(0, 1, event, &fields));
    let (_dir, trace) = recorded.open();
    Timeline::new(&trace).vms[0].vcpus.get(0)?.tid
}

#[test]
fn vcpu_begins_with_its_first_thread_where_kvm_tells_of_the_next_and_else_with_its_last() {
    assert_eq!(first_thread(&["kvm:kvm_entry", "kvm:kvm_exit"]), Some(90));
    assert_eq!(first_thread(&["sched:sched_wakeup"]), Some(100));
}

#[test]
fn task_that_the_guest_sees_running_is_in_exits_stolen_and_in_the_vmm() {
    let steps = [
        host(9, 0, switch(IDLE, 0, thread(0))),
        host(10, 0, entry(0)),
        guest(15, 0, switch(IDLE, 0, APP)),
        host(20, 0, exit(0, IO)),
        host(22, 0, switch(thread(0), 0x100, HOG)),
        host(40, 0, switch(HOG, 1, thread(0))),
        vmm(45, 0, Event::VmmExit { vcpu: 0, reason: KVM_IO }),
        vmm(50, 0, Event::VmmEnter { vcpu: 0 }),
        host(52, 0, entry(0)),
        guest(55, 0, syscall(1)),
        guest(60, 0, Event::InterruptEnter(Interrupt::Softirq(1))),
        guest(65, 0, Event::InterruptExit(Interrupt::Softirq(1))),
        guest(70, 0, switch(APP, 2, IDLE)),
    ];

    let reported = Reported::new().over(&steps, 80);

    assert_eq!(
        reported.task(10),
        [
            (0, Fused::Unknown),
            (15, Fused::Running(Running::Task)),
            (20, Fused::Kvm(Some(IO))),
            (22, Fused::Stolen(reported.preemptor(HOG))),
            (40, Fused::Kvm(Some(IO))),
            (45, Fused::Vmm(Some(IO))),
            (50, Fused::Kvm(Some(IO))),
            (52, Fused::Running(Running::Task)),
            (55, Fused::Running(Running::Syscall(1))),
            (60, Fused::Running(Running::Interrupt(Interrupt::Softirq(1)))),
            (65, Fused::Running(Running::Syscall(1))),
            (70, Fused::Blocked(BlockedOn::Io)),
        ]
    );
}

#[test]
fn runnable_task_waits_for_the_guest_or_for_the_host() {
    let steps = [
        host(10, 0, entry(0)),
        guest(15, 0, switch(APP, 0, SH)),
        host(20, 0, exit(0, IO)),
        host(22, 0, switch(thread(0), 0, HOG)),
        host(30, 0, switch(HOG, 0, OTHER)),
        host(40, 0, switch(OTHER, 1, thread(0))),
        host(41, 0, entry(0)),
    ];

    let reported = Reported::new().over(&steps, 50);

    assert_eq!(
        reported.task(10),
        [
            (0, Fused::Unknown),
            (15, Fused::Runnable),
            (22, Fused::RunnableStolen(reported.preemptor(HOG))),
            (30, Fused::RunnableStolen(reported.preemptor(OTHER))),
            (40, Fused::Runnable),
        ]
    );
}

#[test]
fn tasks_of_a_vcpu_that_is_not_allowed_to_run_wait_for_that() {
    let steps = [
        host(9, 0, switch(IDLE, 0, thread(0))),
        host(10, 0, entry(0)),
        guest(14, 0, switch(IDLE, 0, SH)),
        guest(15, 0, switch(SH, 0, APP)),
        host(20, 0, exit(0, IO)),
        host(21, 0, switch(thread(0), 0x100, IDLE)),
        host(70, 0, switch(IDLE, 0, thread(0))),
        host(71, 0, entry(0)),
    ];

    let reported = Reported::new().over(&steps, 80);

    let limit = Preemptor::NotAllowed;
    assert_eq!(
        reported.vcpu(0)[2..4],
        [(20, VcpuState::Kvm(Some(IO))), (21, VcpuState::Stolen { by: limit, woken: false })]
    );
    assert_eq!(reported.task(10)[3..5], [(21, Fused::Stolen(limit)), (70, Fused::Kvm(Some(IO)))]);
    assert_eq!(reported.task(11)[3..5], [(21, Fused::RunnableStolen(limit)), (70, Fused::Runnable)]);
}

#[test]
fn cpu_that_is_idle_for_longer_than_it_takes_to_begin_has_not_yet_to_begin() {
    let waits = |ticks| {
        let woken_at = 60;
        let steps = [
            host(9, 0, switch(IDLE, 0, thread(0))),
            host(10, 0, entry(0)),
            guest(15, 0, switch(IDLE, 0, APP)),
            host(20, 0, exit(0, HLT)),
            host(25, 0, switch(thread(0), 1, IDLE)),
            host(woken_at, 0, wakeup(thread(0), Some(0))),
            host(woken_at + ticks, 0, switch(IDLE, 0, thread(0))),
        ];
        let reported = Reported::new().over(&steps, 9_000);
        let at = |states: Vec<(u64, Fused)>| states.into_iter().find(|&(time, _)| time == woken_at).unwrap().1;
        (reported.vcpu(0).into_iter().find(|&(time, _)| time == woken_at).unwrap().1, at(reported.task(10)))
    };

    let of = |by| (VcpuState::Stolen { by, woken: true }, Fused::Stolen(by));
    assert_eq!(waits(LONGEST), of(Preemptor::Idle));
    assert_eq!(waits(LONGEST + 1), of(Preemptor::IdleForLong));
}

#[test]
fn task_that_is_not_allowed_to_run_is_reported_while_its_cpu_is_idle() {
    let steps = [
        host(10, 0, entry(0)),
        guest(15, 0, switch(IDLE, 0, APP)),
        guest(20, 0, switch(APP, 0, IDLE)),
        guest(30, 0, switch(IDLE, 0, SH)),
        guest(35, 0, switch(SH, 1, IDLE)),
        guest(50, 0, switch(IDLE, 0, APP)),
    ];

    let reported = Reported::new().over(&steps, 60);

    let running = Fused::Running(Running::Task);
    assert_eq!(
        reported.task(10)[1..],
        [(15, running), (20, Fused::NotAllowed), (30, Fused::Runnable), (35, Fused::NotAllowed), (50, running),]
    );
}

#[test]
fn without_the_hosts_kernel_running_includes_what_it_would_tell() {
    let mut reported = Reported::new();
    reported.timeline.vms[0].kvm_reports = false;
    let steps = [
        vmm(10, 0, Event::VmmEnter { vcpu: 0 }),
        guest(12, 0, switch(IDLE, 0, APP)),
        vmm(20, 0, Event::VmmExit { vcpu: 0, reason: KVM_IO }),
        vmm(30, 0, Event::VmmEnter { vcpu: 0 }),
    ];

    let running = Fused::RunningOrStolen(Running::Task);
    assert_eq!(
        reported.over(&steps, 40).task(10),
        [(0, Fused::Unknown), (12, running), (20, Fused::Vmm(Some(KVM_IO))), (30, running)]
    );
}

#[test]
fn task_ran_as_far_as_its_guest_can_tell_where_nothing_else_does() {
    let mut reported = Reported::new();
    (reported.timeline.vms[0].kvm_reports, reported.timeline.vms[0].vcpus_are_recorded) = (false, false);
    let steps = [guest(10, 0, switch(IDLE, 0, APP)), guest(20, 0, switch(APP, 1, IDLE))];

    assert_eq!(reported.over(&steps, 30).task(10)[1], (10, Fused::RunningOrStolen(Running::Task)));
}

#[test]
fn gap_of_a_host_cpu_makes_the_vcpus_unknown_that_could_have_run_there() {
    let steps = [
        host(10, 0, entry(0)),
        host(10, 1, entry(1)),
        on_host(20, 0, Item::GapBegin),
        // vCPU 1 leaves its CPU: from now on it may run on CPU 0.
        host(25, 1, exit(1, HLT)),
        host(26, 1, switch(thread(1), 1, IDLE)),
        on_host(30, 0, Item::GapEnd),
        host(40, 0, exit(0, IO)),
        host(41, 1, switch(IDLE, 0, thread(1))),
        host(42, 1, entry(1)),
    ];

    let reported = Reported::new().over(&steps, 50);

    let (unknown, guest) = (VcpuState::Unknown, VcpuState::Guest);
    assert_eq!(reported.vcpu(0), [(0, unknown), (10, guest), (20, unknown), (40, VcpuState::Kvm(Some(IO)))]);
    assert_eq!(
        reported.vcpu(1),
        [(0, unknown), (10, guest), (25, VcpuState::Kvm(Some(HLT))), (26, unknown), (42, guest)]
    );
    let lost = |vcpu| reported.timeline.vms[0].vcpus.get(vcpu).unwrap().lost;
    assert_eq!((lost(0), lost(1)), (1, 1));
}

#[test]
fn wake_up_and_migration_leave_a_thread_unknown_while_host_records_are_missing() {
    let steps = [
        host(10, 0, entry(0)),
        host(20, 0, exit(0, HLT)),
        host(21, 0, switch(thread(0), 1, IDLE)),
        on_host(30, 1, Item::GapBegin),
        host(40, 0, wakeup(thread(0), Some(0))),
        host(45, 0, Event::Migrate { tid: 100, cpu: 1 }),
        on_host(50, 1, Item::GapEnd),
        host(60, 0, wakeup(thread(0), Some(0))),
    ];

    let reported = Reported::new().over(&steps, 70);

    assert_eq!(
        reported.vcpu(0)[3..],
        [
            (21, VcpuState::Halted),
            (30, VcpuState::Unknown),
            (60, VcpuState::Stolen { by: Preemptor::Idle, woken: true }),
        ]
    );
}

#[test]
fn vmm_that_loses_records_is_not_known_to_be_done() {
    let of_vmm = |time, item| (time, Origin::Vmm { vm: 0, thread: 0 }, item);
    let steps = [
        host(10, 0, entry(0)),
        of_vmm(15, Item::GapBegin),
        host(20, 0, exit(0, IO)),
        host(22, 0, Event::KvmUserspaceExit { tid: 100 }),
        host(30, 0, entry(0)),
        of_vmm(35, Item::GapEnd),
    ];

    let reported = Reported::new().over(&steps, 40);

    assert_eq!(
        reported.vcpu(0)[1..],
        [(10, VcpuState::Guest), (20, VcpuState::Kvm(Some(IO))), (22, VcpuState::Unknown), (30, VcpuState::Guest)]
    );
}

#[test]
fn threads_of_other_machines_are_passed_over() {
    let reported = Reported::new().over(&[host(10, 0, Event::KvmEntry { tid: 900, vcpu: Some(0) })], 20);

    assert_eq!(reported.vcpu(0), [(0, VcpuState::Unknown)]);
}

#[test]
fn each_of_two_machines_on_a_host_has_its_own_threads() {
    let mut reported = Reported::new();
    let mut other = reported.timeline.vms[0].clone();
    other.vcpus = [(0, Vcpu::new(Some(101)))].into_iter().collect();
    reported.timeline.vms.push(other);
    reported.timeline.vcpu_threads.insert((0, 101), (1, 0));
    let entry_of = |tid| Event::KvmEntry { tid, vcpu: Some(0) };
    let steps = [host(10, 0, entry_of(100)), host(15, 0, switch(thread(0), 0, thread(1))), host(16, 0, entry_of(101))];

    let reported = reported.over(&steps, 20);

    let by = reported.preemptor(thread(1));
    assert_eq!(reported.vcpu_of(0, 0)[2..], [(15, VcpuState::Stolen { by, woken: false })]);
    assert_eq!(reported.vcpu_of(1, 0), [(0, VcpuState::Unknown), (16, VcpuState::Guest)]);
}

#[test]
fn recorder_of_a_switch_is_who_gives_the_cpu_away() {
    let mut reported = Reported::new();
    reported.feed(&guest(10, 0, switch(IDLE, 0, APP)));
    reported.feed(&guest(20, 0, switch(APP, 0, SH)));

    assert_eq!(reported.timeline.recorder(), Current::Task(reported.timeline.vms[0].guest.living(10).unwrap()));
}

#[test]
fn name_and_state_of_a_task_are_reported_when_they_change() {
    let step = guest(20, 0, Event::Exec { tid: None, old_tid: None, file: b"/bin/sh" });
    let reported = Reported::new().over(&[guest(10, 0, switch(IDLE, 0, APP)), step, step], 30);

    let named: Vec<u64> = reported
        .changes
        .iter()
        .filter(|change| matches!(change, Change::TaskName { .. }))
        .map(|change| change.window().begin)
        .collect();
    let states = reported.changes.iter().filter(|change| matches!(change, Change::TaskState { .. })).count();
    assert_eq!((named[..2].to_vec(), states), (vec![10, 20], 1));
}

#[test]
fn change_is_cut_to_a_window_and_a_moment_is_in_it_or_not() {
    let lasting = Change::Vcpu { vm: 0, vcpu: 0, window: Window { begin: 10, end: 30 }, state: VcpuState::Guest };
    let moment = Change::TaskName { vm: 0, task: 0, time: 20 };
    let windows = [Window { begin: 0, end: 20 }, Window { begin: 20, end: 40 }];

    let parts = windows.map(|window| lasting.within(&window).map(|part| part.window()));
    assert_eq!(parts, [Some(Window { begin: 10, end: 20 }), Some(Window { begin: 20, end: 30 })]);
    assert_eq!(windows.map(|window| moment.within(&window)), [None, Some(moment)]);
}

/// Any item of any origin, consistent with the others or not.
fn any_item() -> impl Strategy<Value = (Origin, Item<'static>)> {
    let task = prop_oneof![Just(IDLE), Just(APP), Just(SH), Just(Task { tid: 12, comm: b"" })];
    let thread = prop_oneof![Just(IDLE), Just(HOG), Just(thread(0)), Just(thread(1))];
    let prev_state = prop_oneof![Just(0), Just(1), Just(2), Just(0x10), Just(0x100)];
    let reason = prop_oneof![Just(HLT), Just(IO)];
    let interrupt = prop_oneof![Just(Interrupt::Irq(1)), Just(Interrupt::Softirq(2)), Just(Interrupt::Vector(3))];
    let origin = |of: fn(u32) -> Origin| (0..2_u32).prop_map(of);
    let gap = || prop_oneof![Just(Item::GapBegin), Just(Item::GapEnd)];
    let of_host = prop_oneof![
        2 => (thread.clone(), prev_state.clone(), thread.clone())
            .prop_map(|(prev, state, next)| switch(prev, state, next)),
        1 => (thread.clone(), proptest::option::of(0..2_u32)).prop_map(|(task, cpu)| wakeup(task, cpu)),
        1 => (thread.clone(), proptest::option::of(0..2_u32)).prop_map(|(task, cpu)| queued(task, cpu)),
        1 => (thread, 0..2_u32).prop_map(|(task, cpu)| Event::Migrate { tid: task.tid, cpu }),
        1 => (0..2_u32).prop_map(entry),
        1 => (0..2_u32, reason).prop_map(|(vcpu, reason)| exit(vcpu, reason)),
        1 => (100..102).prop_map(|tid| Event::KvmUserspaceExit { tid }),
    ];
    let of_kvm = prop_oneof![(0..2_u32).prop_map(entry), (0..2_u32).prop_map(|vcpu| exit(vcpu, IO))];
    let of_vmm = prop_oneof![
        (0..2_u32).prop_map(|vcpu| Event::VmmEnter { vcpu }),
        (0..2_u32).prop_map(|vcpu| Event::VmmExit { vcpu, reason: KVM_IO }),
    ];
    let of_guest = prop_oneof![
        4 => (task.clone(), prev_state, task.clone()).prop_map(|(prev, state, next)| switch(prev, state, next)),
        2 => (task.clone(), proptest::option::of(0..3_u32)).prop_map(|(task, cpu)| wakeup(task, cpu)),
        1 => (task.clone(), proptest::option::of(0..3_u32)).prop_map(|(task, cpu)| queued(task, cpu)),
        1 => (task.clone(), 0..2_u32).prop_map(|(task, cpu)| Event::Migrate { tid: task.tid, cpu }),
        1 => task.prop_map(|child| Event::Fork { parent: None, child }),
        1 => prop_oneof![Just(0), Just(202), Just(-1), Just(i64::MAX)].prop_map(syscall),
        1 => Just(Event::SyscallExit { number: 0, result: 0 }),
        1 => interrupt.clone().prop_map(Event::InterruptEnter),
        1 => interrupt.prop_map(Event::InterruptExit),
        1 => Just(Event::ContentionBegin { lock: None, flags: 0 }),
    ];
    let item = |event: BoxedStrategy<Event<'static>>| prop_oneof![6 => event.prop_map(Item::Event), 1 => gap()];
    prop_oneof![
        (origin(|cpu| Origin::Host { host: 0, cpu, only_kvm: false }), item(of_host.boxed())),
        (origin(|cpu| Origin::Host { host: 0, cpu, only_kvm: true }), item(of_kvm.boxed())),
        (origin(|thread| Origin::Vmm { vm: 0, thread }), item(of_vmm.boxed())),
        (origin(|cpu| Origin::Guest { vm: 0, cpu }), item(of_guest.boxed())),
    ]
}

fn any_steps() -> impl Strategy<Value = Vec<Step<'static>>> {
    proptest::collection::vec((any_item(), 0..4_u64), 0..120).prop_map(|items| {
        let mut time = 0;
        let at_times = items.into_iter().map(|((origin, item), after)| {
            time += after;
            (time, origin, item)
        });
        at_times.collect()
    })
}

/// What vCPU `cpu` does now, by the events alone.
fn vcpu_now(timeline: &Timeline, cpu: u32) -> VcpuState {
    let vcpu = timeline.vms[0].vcpus.get(cpu);
    vcpu.map_or(VcpuState::Unknown, |vcpu| vcpu.current_state(true, |on| timeline.hosts[0].cpu(on)))
}

/// What the task does now, by lookups alone.
fn task_now(timeline: &Timeline, task: TaskIndex) -> Fused {
    let vm = &timeline.vms[0];
    let vcpu_at = |cpu: u32| vm.vcpus.get(cpu).map(|_| vcpu_now(timeline, cpu));
    match vm.guest.tasks[task].state {
        TaskState::Unknown | TaskState::Absent => Fused::Unknown,
        TaskState::Blocked { on, .. } => Fused::Blocked(on),
        TaskState::Runnable { cpu, passed_over, .. } => match cpu.and_then(vcpu_at) {
            Some(VcpuState::Stolen { by, .. }) => Fused::RunnableStolen(by),
            _ if passed_over => Fused::NotAllowed,
            _ => Fused::Runnable,
        },
        TaskState::Running { cpu, syscall } => match vcpu_at(cpu) {
            Some(VcpuState::Guest) => {
                let of_task = syscall.map_or(Running::Task, Running::Syscall);
                let interrupt = vm.guest.cpu(cpu).and_then(guest::GuestCpu::interrupt);
                Fused::Running(interrupt.map_or(of_task, Running::Interrupt))
            }
            Some(VcpuState::Kvm(reason) | VcpuState::BlockedInKvm(reason)) => Fused::Kvm(reason),
            Some(VcpuState::Vmm(reason) | VcpuState::BlockedInVmm(reason)) => Fused::Vmm(reason),
            Some(VcpuState::Stolen { by, .. }) => Fused::Stolen(by),
            Some(VcpuState::Halted) => Fused::Halted,
            _ => Fused::VcpuUnknown,
        },
    }
}

/// What everything does in one tick: vCPUs, CPUs of the guest, and those tasks that the records showed.
#[derive(Debug, Default, PartialEq)]
struct Moment {
    vcpus: BTreeMap<u32, VcpuState>,
    cpus: BTreeMap<u32, CpuView>,
    tasks: BTreeMap<TaskIndex, Fused>,
}

fn looked_up(timeline: &Timeline) -> Moment {
    let view = |cpu: u32| {
        let known = timeline.vms[0].guest.cpu(cpu)?;
        let vcpu = vcpu_now(timeline, cpu);
        Some((cpu, CpuView { vcpu, current: known.current, interrupt: known.interrupt() }))
    };
    Moment {
        vcpus: (0..2).map(|vcpu| (vcpu, vcpu_now(timeline, vcpu))).collect(),
        cpus: (0..3).filter_map(view).collect(),
        tasks: (0..timeline.vms[0].guest.tasks.len()).map(|task| (task, task_now(timeline, task))).collect(),
    }
}

/// What `changes` say of the tick `time`.
fn reported_of(changes: &[Change], time: u64) -> Moment {
    let mut moment = Moment::default();
    for change in changes.iter().filter(|change| (change.window().begin..change.window().end).contains(&time)) {
        let reported_before = match *change {
            Change::Vcpu { vcpu, state, .. } => moment.vcpus.insert(vcpu, state).is_some(),
            Change::Cpu { cpu, view, .. } => moment.cpus.insert(cpu, view).is_some(),
            Change::Task { task, state, .. } => moment.tasks.insert(task, state).is_some(),
            Change::TaskName { .. } | Change::TaskState { .. } => false,
        };
        assert!(!reported_before, "{change:?} overlaps another one");
    }
    moment
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn reported_states_agree_with_every_lookup(steps in any_steps()) {
        let end = steps.last().map_or(1, |(time, ..)| time + 1);
        let mut reported = Reported::new();
        let mut moments = Vec::new();
        for time in 0..end {
            steps.iter().filter(|(at, ..)| *at == time).for_each(|step| reported.feed(step));
            moments.push((time, looked_up(&reported.timeline)));
        }

        let reported = reported.over(&[], end);

        for (time, moment) in moments {
            let mut of_changes = reported_of(&reported.changes, time);
            // What the records show only later is unknown before.
            let later = of_changes.tasks.split_off(&moment.tasks.len());
            prop_assert!(later.values().all(|state| *state == Fused::Unknown));
            of_changes.cpus.retain(|cpu, view| moment.cpus.contains_key(cpu) || view.current != Current::Unknown);
            prop_assert_eq!(of_changes, moment, "at {}", time);
        }
    }

    #[test]
    fn parts_of_every_task_add_up_in_every_window(steps in any_steps(), begin in 0..100_u64, length in 1..200_u64) {
        let window = Window { begin, end: begin + length };
        let reported = Reported::new().over(&steps, window.end.max(400));

        let mut sums = vec![0; reported.timeline.vms[0].guest.tasks.len()];
        for part in reported.changes.iter().filter_map(|change| change.within(&window)) {
            if let Change::Task { task, window, .. } = part {
                sums[task] += window.length();
            }
        }
        prop_assert!(sums.iter().all(|sum| *sum == length), "{:?}", sums);
    }

    #[test]
    fn no_guest_cpu_runs_two_tasks_at_once(steps in any_steps()) {
        let mut reported = Reported::new();
        for step in &steps {
            reported.feed(step);
            let of_task = |task: &guest::GuestTask| match task.state {
                TaskState::Running { cpu, .. } => Some(cpu),
                _ => None,
            };
            let mut running: Vec<u32> = reported.timeline.vms[0].guest.tasks.iter().filter_map(of_task).collect();
            let all = running.len();
            running.sort_unstable();
            running.dedup();
            prop_assert_eq!(running.len(), all);
        }
    }

    #[test]
    fn queues_hold_the_tasks_that_are_ready(steps in any_steps()) {
        let reported = Reported::new().over(&steps, 400);

        let guest = &reported.timeline.vms[0].guest;
        for cpu in 0..3 {
            let is_ready =
                |task: &TaskIndex| matches!(guest.tasks[*task].state, TaskState::Runnable { cpu: Some(on), .. } if on == cpu);
            let ready: Vec<TaskIndex> = (0..guest.tasks.len()).filter(is_ready).collect();
            let mut queue = guest.cpu(cpu).map(|cpu| cpu.queue.clone()).unwrap_or_default();
            queue.sort_unstable();
            prop_assert_eq!(queue, ready);
        }
    }

    #[test]
    fn no_vcpu_is_reported_to_wait_while_host_records_are_missing(steps in any_steps()) {
        let mut reported = Reported::new();
        for step in &steps {
            reported.feed(step);
            let stolen = |vcpu: &Vcpu| matches!(vcpu.state, VcpuState::Stolen { .. });
            let any = reported.timeline.vms[0].vcpus.values().any(stolen);
            prop_assert!(!(reported.timeline.hosts[0].has_gap() && any), "{:?}", step);
        }
    }
}

/// What vCPU 0 and its host do next.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// It leaves the guest for KVM, and goes back.
    Exit,
    /// It leaves the guest for the VMM, and goes back.
    ToVmm,
    /// It halts, and is woken to go on on this CPU.
    Halt(u32),
    /// It leaves the guest and gives way to another thread, to go on on this CPU.
    Preempt(u32),
}

/// What is recorded when vCPU 0, which is in the guest on CPU 0 first, does `acts`, each `Act` step at a time of its
/// own.
fn story(acts: &[Act]) -> Vec<Step<'static>> {
    let (mut steps, mut cpu, mut time) = (Vec::new(), 0, 0);
    let kvm = |cpu| Origin::Host { host: 0, cpu, only_kvm: true };
    let host = |cpu| Origin::Host { host: 0, cpu, only_kvm: false };
    let of_vmm = Origin::Vmm { vm: 0, thread: 0 };
    let mut add = |origin, event| {
        time += 1;
        steps.push((time, origin, Item::Event(event)));
    };
    add(host(0), switch(HOG, 1, thread(0)));
    add(host(1), switch(IDLE, 0, OTHER));
    add(kvm(0), entry(0));
    for act in acts {
        match *act {
            Act::Exit => add(kvm(cpu), exit(0, IO)),
            Act::ToVmm => {
                add(kvm(cpu), exit(0, IO));
                add(kvm(cpu), Event::KvmUserspaceExit { tid: thread(0).tid });
                add(of_vmm, Event::VmmExit { vcpu: 0, reason: KVM_IO });
                add(of_vmm, Event::VmmEnter { vcpu: 0 });
            }
            Act::Halt(to) => {
                add(kvm(cpu), exit(0, HLT));
                add(host(cpu), switch(thread(0), 1, IDLE));
                add(host(cpu), wakeup(thread(0), Some(to)));
                add(host(to), switch(IDLE, 0, thread(0)));
                cpu = to;
            }
            Act::Preempt(to) => {
                add(kvm(cpu), exit(0, IO));
                add(host(cpu), switch(thread(0), 0, HOG));
                add(host(cpu), Event::Migrate { tid: thread(0).tid, cpu: to });
                add(host(to), switch(IDLE, 0, thread(0)));
                cpu = to;
            }
        }
        add(kvm(cpu), entry(0));
    }
    steps
}

/// What vCPU 0 does at each tick before `end` by `steps` without those of the host's layer `only_kvm` from before
/// `from`.
fn states_without(steps: &[Step<'static>], only_kvm: Option<bool>, from: u64, end: u64) -> Vec<VcpuState> {
    let of_layer = |origin: &Origin| matches!(origin, Origin::Host { only_kvm: of, .. } if Some(*of) == only_kvm);
    let origins = || (0..2).filter_map(|cpu| Some(Origin::Host { host: 0, cpu, only_kvm: only_kvm? }));
    let mut reported = Reported::new();
    origins().for_each(|origin| reported.feed(&(0, origin, Item::GapBegin)));
    let mut states = Vec::new();
    for time in 0..end {
        if time == from {
            origins().for_each(|origin| reported.feed(&(time, origin, Item::GapEnd)));
        }
        let kept = steps.iter().filter(|(at, origin, _)| *at == time && (time >= from || !of_layer(origin)));
        kept.for_each(|step| reported.feed(step));
        states.push(reported.timeline.vms[0].vcpus.get(0).unwrap().state);
    }
    states
}

proptest! {
    /// A flight recorder's history of KVM's events may begin later than that of the scheduler's, and the other way
    /// round: it reports less then, and nothing else.
    #[test]
    fn shorter_history_of_one_class_tells_less_and_nothing_else(
        acts in proptest::collection::vec(
            prop_oneof![
                Just(Act::Exit),
                Just(Act::ToVmm),
                (0..2_u32).prop_map(Act::Halt),
                (0..2_u32).prop_map(Act::Preempt),
            ],
            1..30,
        ),
        only_kvm: bool,
        from in 0..150_u64,
    ) {
        let steps = story(&acts);
        let end = steps.last().map_or(1, |(time, ..)| time + 1);
        let whole = states_without(&steps, None, 0, end);

        let known = states_without(&steps, Some(only_kvm), from, end);

        for (time, (whole, known)) in whole.iter().zip(&known).enumerate() {
            let is_less = match (whole, known) {
                (_, VcpuState::Unknown) => true,
                // The reason may be missing, or the VMM's own stand for KVM's.
                (VcpuState::Kvm(_), VcpuState::Kvm(None)) | (VcpuState::Vmm(_), VcpuState::Vmm(_)) => true,
                // Who runs instead may not be known yet, or be known by another number.
                (VcpuState::Stolen { by, woken }, VcpuState::Stolen { by: known, woken: of }) => {
                    let tid = |by: &Preemptor| match by {
                        Preemptor::Thread(thread) => Some(thread.tid),
                        Preemptor::Idle | Preemptor::NotAllowed | Preemptor::IdleForLong | Preemptor::Unknown => None,
                    };
                    woken == of && (*known == Preemptor::Unknown || tid(by) == tid(known))
                }
                _ => whole == known,
            };
            prop_assert!(is_less, "at {}: {:?}, not {:?}", time, known, whole);
        }
    }
}

#[test]
fn scheduler_tells_of_steal_while_kvms_records_are_missing() {
    let acts = [Act::Exit, Act::Preempt(0), Act::Exit];
    let steps = story(&acts);

    let states = states_without(&steps, Some(true), 9, 13);

    let stolen = |state: &&VcpuState| matches!(state, VcpuState::Stolen { woken: false, .. });
    assert_eq!(states.iter().filter(stolen).count(), 2, "{states:?}");
    assert_eq!(states.iter().filter(|state| **state == VcpuState::Guest).count(), 2, "{states:?}");
    assert!(states[..6].iter().all(|state| *state == VcpuState::Unknown), "{states:?}");
}
