use super::event::{Interrupt, Task};
use super::fused::{Fused, Running};
use super::guest::{BlockedOn, TaskState};
use super::history::Interval;
use super::vcpus::{Thief, VcpuState};
use super::*;
use crate::exit_reason::{ExitNumbering, ExitReason};
use crate::session::tests::session;
use proptest::prelude::*;

const HLT: ExitReason = ExitReason { numbering: ExitNumbering::Svm, number: 0x78 };
const IO: ExitReason = ExitReason { numbering: ExitNumbering::Svm, number: 0x7b };
const KVM_IO: ExitReason = ExitReason { numbering: ExitNumbering::Kvm, number: 2 };
const HOG: Task<'_> = Task { tid: 200, comm: b"hog" };
const IDLE: Task<'_> = Task { tid: 0, comm: b"" };
const APP: Task<'_> = Task { tid: 10, comm: b"app" };
const SH: Task<'_> = Task { tid: 11, comm: b"sh" };

/// vCPU `vcpu`'s host thread.
fn thread(vcpu: u32) -> Task<'static> {
    Task { tid: 100 + vcpu.cast_signed(), comm: b"vcpu" }
}

fn host(time: u64, cpu: u32, event: Event<'_>) -> Input<'_> {
    Input { time, origin: Origin::Host { host: 0, cpu }, event }
}

fn vmm(time: u64, thread: u32, event: Event<'_>) -> Input<'_> {
    Input { time, origin: Origin::Vmm { vm: 0, thread }, event }
}

fn guest(time: u64, cpu: u32, event: Event<'_>) -> Input<'_> {
    Input { time, origin: Origin::Guest { vm: 0, cpu }, event }
}

fn entry(vcpu: u32) -> Event<'static> {
    Event::KvmEntry { tid: thread(vcpu).tid, vcpu: Some(vcpu) }
}

fn exit(vcpu: u32, reason: ExitReason) -> Event<'static> {
    Event::KvmExit { tid: thread(vcpu).tid, vcpu: Some(vcpu), reason }
}

const fn switch<'t>(prev: Task<'t>, prev_state: u64, next: Task<'t>) -> Event<'t> {
    Event::Switch { prev, prev_state, next }
}

/// A VM of two vCPUs, whose threads are 100 and 101.
fn model(inputs: &[Input<'_>]) -> Model {
    let mut session = session();
    (session.vms[0].vcpus, session.vms[0].vcpu_threads) = (2, vec![100, 101]);
    let mut model = Model::new(&session);
    model.vms[0].kvm_tells = true;
    inputs.iter().for_each(|input| model.apply(input));
    model.complete();
    model
}

fn fused(model: &Model, tid: i32, window: Window) -> Vec<Interval<Fused>> {
    let vm = &model.vms[0];
    let task = vm.guest.tasks.iter().find(|task| task.tid == tid).unwrap();
    fused::over(task, &vm.guest, &vm.vcpus, window).collect()
}

fn of_app(inputs: &[Input<'_>], begin: u64, end: u64) -> Vec<(u64, Fused)> {
    let intervals = fused(&model(inputs), 10, Window { begin, end });
    intervals.into_iter().map(|interval| (interval.begin, interval.state)).collect()
}

#[test]
fn task_that_the_guest_sees_running_is_in_exits_stolen_and_in_the_vmm() {
    let inputs = [
        host(10, 0, entry(0)),
        guest(15, 0, switch(IDLE, 0, APP)),
        host(20, 0, exit(0, IO)),
        host(22, 0, switch(thread(0), 0x100, HOG)),
        host(40, 0, switch(HOG, 1, thread(0))),
        vmm(45, 0, Event::VmmExit { vcpu: 0, reason: KVM_IO }),
        vmm(50, 0, Event::VmmEnter { vcpu: 0 }),
        host(52, 0, entry(0)),
        guest(55, 0, Event::SyscallEnter { number: 1 }),
        guest(60, 0, Event::InterruptEnter(Interrupt::Softirq(1))),
        guest(65, 0, Event::InterruptExit(Interrupt::Softirq(1))),
        guest(70, 0, switch(APP, 2, IDLE)),
    ];

    assert_eq!(
        of_app(&inputs, 10, 80),
        [
            (10, Fused::Unknown),
            (15, Fused::Running(Running::Task)),
            (20, Fused::Kvm(Some(IO))),
            (22, Fused::Stolen(Thief::Thread(200))),
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
    let inputs = [
        host(10, 0, entry(0)),
        guest(15, 0, switch(APP, 0, SH)),
        host(20, 0, exit(0, IO)),
        host(22, 0, switch(thread(0), 0, HOG)),
        host(40, 0, switch(HOG, 1, thread(0))),
        host(41, 0, entry(0)),
    ];

    assert_eq!(
        of_app(&inputs, 15, 50),
        [
            (15, Fused::Runnable),
            (20, Fused::Runnable),
            (22, Fused::RunnableStolen(Thief::Thread(200))),
            (40, Fused::Runnable),
            (41, Fused::Runnable),
        ]
    );
}

#[test]
fn without_the_hosts_kernel_running_includes_what_it_would_tell() {
    let mut model = model(&[]);
    model.vms[0].kvm_tells = false;
    for input in [
        vmm(10, 0, Event::VmmEnter { vcpu: 0 }),
        guest(12, 0, switch(IDLE, 0, APP)),
        vmm(20, 0, Event::VmmExit { vcpu: 0, reason: KVM_IO }),
        vmm(30, 0, Event::VmmEnter { vcpu: 0 }),
    ] {
        model.apply(&input);
    }
    model.complete();

    let states: Vec<_> =
        fused(&model, 10, Window { begin: 12, end: 40 }).iter().map(|interval| interval.state).collect();
    let running = Fused::RunningOrStolen(Running::Task);
    assert_eq!(states, [running, Fused::Vmm(Some(KVM_IO)), running]);
}

#[test]
fn task_ran_as_far_as_its_guest_can_tell_where_nothing_else_does() {
    let inputs = [guest(10, 0, switch(IDLE, 0, APP)), guest(20, 0, switch(APP, 1, IDLE))];

    assert_eq!(of_app(&inputs, 10, 20), [(10, Fused::RunningOrStolen(Running::Task))]);
}

#[test]
fn gap_of_a_host_cpu_makes_the_vcpus_unknown_that_could_have_run_there() {
    let model = model(&[
        host(10, 0, entry(0)),
        host(10, 1, entry(1)),
        host(20, 0, Event::GapBegin),
        // vCPU 1 leaves its CPU: from now on it may run on CPU 0.
        host(25, 1, exit(1, HLT)),
        host(26, 1, switch(thread(1), 1, IDLE)),
        host(30, 0, Event::GapEnd),
        host(40, 0, exit(0, IO)),
        host(41, 1, switch(IDLE, 0, thread(1))),
        host(42, 1, entry(1)),
    ]);

    let states = |vcpu: u32, times: [u64; 4]| times.map(|time| model.vms[0].vcpus[&vcpu].state.at(time));
    assert_eq!(
        states(0, [19, 20, 39, 40]),
        [VcpuState::Guest, VcpuState::Unknown, VcpuState::Unknown, VcpuState::Kvm(Some(IO))]
    );
    assert_eq!(
        states(1, [20, 25, 26, 42]),
        [VcpuState::Guest, VcpuState::Kvm(Some(HLT)), VcpuState::Unknown, VcpuState::Guest]
    );
}

#[test]
fn vmm_that_loses_records_is_not_known_to_be_done() {
    let model = model(&[
        host(10, 0, entry(0)),
        vmm(15, 0, Event::GapBegin),
        host(20, 0, exit(0, IO)),
        host(22, 0, Event::KvmUserspaceExit { tid: 100 }),
        host(30, 0, entry(0)),
        vmm(35, 0, Event::GapEnd),
    ]);

    let vcpu = &model.vms[0].vcpus[&0];
    assert_eq!(
        [10, 20, 22, 30].map(|time| vcpu.state.at(time)),
        [VcpuState::Guest, VcpuState::Kvm(Some(IO)), VcpuState::Unknown, VcpuState::Guest]
    );
}

#[test]
fn threads_of_other_machines_are_passed_over() {
    let model = model(&[host(10, 0, Event::KvmEntry { tid: 900, vcpu: Some(0) })]);

    assert_eq!(model.vms[0].vcpus[&0].state.at(10), VcpuState::Unknown);
}

#[test]
fn each_of_two_machines_on_a_host_has_its_own_threads() {
    let mut session = session();
    session.vms[0].vcpu_threads = vec![100];
    let other = crate::session::Vm { name: "vm1".into(), vcpus: 1, vcpu_threads: vec![101], ..session.vms[0].clone() };
    session.vms.push(other);
    let mut model = Model::new(&session);
    model.vms.iter_mut().for_each(|vm| vm.kvm_tells = true);
    let entry_of = |tid| Event::KvmEntry { tid, vcpu: Some(0) };
    for input in [host(10, 0, entry_of(100)), host(15, 0, switch(thread(0), 0, thread(1))), host(16, 0, entry_of(101))]
    {
        model.apply(&input);
    }
    model.complete();

    let state = |vm: usize| model.vms[vm].vcpus[&0].state.at(20);
    assert_eq!((model.hosts.len(), state(1)), (1, VcpuState::Guest));
    assert_eq!(state(0), VcpuState::Stolen { by: Thief::Thread(101), woken: false });
}

/// Any event of any origin, consistent with the others or not.
fn any_event() -> impl Strategy<Value = (Origin, Event<'static>)> {
    let task = prop_oneof![Just(IDLE), Just(APP), Just(SH), Just(Task { tid: 12, comm: b"" })];
    let thread = prop_oneof![Just(IDLE), Just(HOG), Just(thread(0)), Just(thread(1))];
    let prev_state = prop_oneof![Just(0), Just(1), Just(2), Just(0x10), Just(0x100)];
    let reason = prop_oneof![Just(HLT), Just(IO)];
    let interrupt = prop_oneof![Just(Interrupt::Irq(1)), Just(Interrupt::Softirq(2)), Just(Interrupt::Vector(3))];
    let origin = |host: fn(u32) -> Origin| (0..2_u32).prop_map(host);
    let of_host = prop_oneof![
        (thread.clone(), prev_state.clone(), thread.clone()).prop_map(|(prev, state, next)| switch(prev, state, next)),
        (thread.clone(), proptest::option::of(0..2_u32)).prop_map(|(task, cpu)| Event::Wakeup { task, cpu }),
        (thread, 0..2_u32).prop_map(|(task, cpu)| Event::Migrate { tid: task.tid, cpu }),
        (0..2_u32).prop_map(entry),
        (0..2_u32, reason).prop_map(|(vcpu, reason)| exit(vcpu, reason)),
        (100..102).prop_map(|tid| Event::KvmUserspaceExit { tid }),
        Just(Event::GapBegin),
        Just(Event::GapEnd),
    ];
    let of_vmm = prop_oneof![
        (0..2_u32).prop_map(|vcpu| Event::VmmEnter { vcpu }),
        (0..2_u32).prop_map(|vcpu| Event::VmmExit { vcpu, reason: KVM_IO }),
        Just(Event::GapBegin),
        Just(Event::GapEnd),
    ];
    let of_guest = prop_oneof![
        4 => (task.clone(), prev_state, task.clone()).prop_map(|(prev, state, next)| switch(prev, state, next)),
        2 => (task.clone(), proptest::option::of(0..3_u32)).prop_map(|(task, cpu)| Event::Wakeup { task, cpu }),
        1 => (task.clone(), 0..2_u32).prop_map(|(task, cpu)| Event::Migrate { tid: task.tid, cpu }),
        1 => task.prop_map(|child| Event::Fork { child }),
        1 => prop_oneof![Just(0), Just(202), Just(-1), Just(i64::MAX)].prop_map(|number| Event::SyscallEnter { number }),
        1 => Just(Event::SyscallExit),
        1 => interrupt.clone().prop_map(Event::InterruptEnter),
        1 => interrupt.prop_map(Event::InterruptExit),
        1 => Just(Event::ContentionBegin),
        1 => Just(Event::GapBegin),
        1 => Just(Event::GapEnd),
    ];
    prop_oneof![
        (origin(|cpu| Origin::Host { host: 0, cpu }), of_host),
        (origin(|thread| Origin::Vmm { vm: 0, thread }), of_vmm),
        (origin(|cpu| Origin::Guest { vm: 0, cpu }), of_guest),
    ]
}

/// What `task` did at one moment, by lookups alone.
fn looked_up(vm: &VmModel, task: &guest::GuestTask, time: u64) -> Fused {
    let vcpu_at = |cpu: u32| vm.vcpus.get(&cpu).map(|vcpu| vcpu.state.at(time));
    match task.state.at(time) {
        TaskState::Unknown | TaskState::Absent => Fused::Unknown,
        TaskState::Blocked { on, .. } => Fused::Blocked(on),
        TaskState::Runnable { cpu, .. } => match cpu.and_then(vcpu_at) {
            Some(VcpuState::Stolen { by, .. }) => Fused::RunnableStolen(by),
            _ => Fused::Runnable,
        },
        TaskState::Running { cpu, syscall } => match vcpu_at(cpu) {
            Some(state) if state == VcpuState::Guest || vm.vcpus[&cpu].state.last_change().is_none() => {
                let interrupt = vm.guest.cpus.get(&cpu).and_then(|cpu| cpu.interrupt.at(time));
                let of_task = syscall.map_or(Running::Task, Running::Syscall);
                let running = interrupt.map_or(of_task, Running::Interrupt);
                if state == VcpuState::Guest { Fused::Running(running) } else { Fused::RunningOrStolen(running) }
            }
            Some(VcpuState::Kvm(reason) | VcpuState::BlockedInKvm(reason)) => Fused::Kvm(reason),
            Some(VcpuState::Vmm(reason) | VcpuState::BlockedInVmm(reason)) => Fused::Vmm(reason),
            Some(VcpuState::Stolen { by, .. }) => Fused::Stolen(by),
            Some(VcpuState::Halted) => Fused::Halted,
            _ => Fused::VcpuUnknown,
        },
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn parts_of_every_task_add_up_and_agree_with_every_lookup(
        events in proptest::collection::vec((any_event(), 0..4_u64), 0..120),
        begin in 0..100_u64,
        length in 1..200_u64,
    ) {
        let mut time = 0;
        let inputs: Vec<Input<'_>> = events
            .iter()
            .map(|&((origin, event), after)| {
                time += after;
                Input { time, origin, event }
            })
            .collect();
        let model = model(&inputs);
        let (vm, window) = (&model.vms[0], Window { begin, end: begin + length });

        for task in &vm.guest.tasks {
            let times = fused::times(task, &vm.guest, &vm.vcpus, window);
            prop_assert_eq!(times.values().sum::<u64>(), length);
            let by_pieces: Vec<Fused> = fused::over(task, &vm.guest, &vm.vcpus, window)
                .flat_map(|piece| (piece.begin..piece.end).map(move |_| piece.state))
                .collect();
            let by_lookup: Vec<Fused> = (begin..begin + length).map(|time| looked_up(vm, task, time)).collect();
            prop_assert_eq!(by_pieces, by_lookup);
        }
    }

    #[test]
    fn no_guest_cpu_runs_two_tasks_at_once(
        events in proptest::collection::vec((any_event(), 0..4_u64), 0..120),
    ) {
        let mut time = 0;
        let inputs: Vec<Input<'_>> = events
            .iter()
            .map(|&((origin, event), after)| {
                time += after;
                Input { time, origin, event }
            })
            .collect();
        let model = model(&inputs);
        let guest = &model.vms[0].guest;

        for time in 0..=time {
            let mut running: Vec<u32> = guest
                .tasks
                .iter()
                .filter_map(|task| match task.state.at(time) {
                    TaskState::Running { cpu, .. } => Some(cpu),
                    _ => None,
                })
                .collect();
            let all = running.len();
            running.sort_unstable();
            running.dedup();
            prop_assert_eq!(running.len(), all);
        }
    }
}
