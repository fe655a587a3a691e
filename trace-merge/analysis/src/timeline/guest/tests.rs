use super::*;
use crate::event::WakeupStage;
use crate::event::tests::syscall;

const APP: Task<'_> = Task { tid: 10, comm: b"app" };
const SH: Task<'_> = Task { tid: 11, comm: b"sh" };
const IDLE: Task<'_> = Task { tid: 0, comm: b"swapper" };
const SYSCALL_EXIT: Event<'_> = Event::SyscallExit { number: 1, result: 0 };
const CONTENTION_BEGIN: Event<'_> = Event::ContentionBegin { lock: None, flags: 0 };
const CONTENTION_END: Event<'_> = Event::ContentionEnd { lock: None };

const fn switch<'t>(prev: Task<'t>, prev_state: u64, next: Task<'t>) -> Event<'t> {
    Event::Switch { prev, prev_state, next }
}

const fn wakeup(task: Task<'_>, cpu: u32) -> Event<'_> {
    Event::Wakeup { task, cpu: Some(cpu), stage: WakeupStage::Waking }
}

const fn fork(child: Task<'_>) -> Event<'_> {
    Event::Fork { parent: None, child }
}

fn after(events: &[(u64, u32, Event<'_>)]) -> Guest {
    let mut guest = Guest::default();
    events.iter().for_each(|(time, cpu, event)| guest.apply(*time, *cpu, event));
    guest
}

/// The state of the first task with thread id `tid`.
fn state(guest: &Guest, tid: i32) -> TaskState {
    guest.tasks.iter().find(|task| task.tid == tid).map_or(TaskState::Unknown, |task| task.state)
}

/// The states of the task with thread id `tid` after each of `events`.
fn states(tid: i32, events: &[(u32, Event<'_>)]) -> Vec<TaskState> {
    let mut guest = Guest::default();
    let after_event = |(cpu, event): &(u32, Event<'_>)| {
        guest.apply(1, *cpu, event);
        state(&guest, tid)
    };
    events.iter().map(after_event).collect()
}

/// What `app` waits for when it is switched out in `prev_state` after `events`.
fn blocked_on(events: &[Event<'_>], prev_state: u64) -> TaskState {
    let mut guest = after(&[(1, 0, switch(IDLE, 0, APP))]);
    events.iter().for_each(|event| guest.apply(2, 0, event));
    guest.apply(3, 0, &switch(APP, prev_state, IDLE));
    state(&guest, 10)
}

fn in_syscall(number: i16, prev_state: u64, on: BlockedOn) -> bool {
    blocked_on(&[syscall(number.into())], prev_state) == TaskState::Blocked { on, syscall: Some(number) }
}

#[test]
fn file_syscalls_are_sorted_and_exist() {
    assert!(FILE_SYSCALLS.is_sorted_by(|left, right| left < right));
    assert!(FILE_SYSCALLS.iter().all(|name| names::syscall::number(name).is_some()));
}

#[test]
fn task_runs_in_and_out_of_system_calls() {
    let states = states(
        10,
        &[
            (1, switch(IDLE, 0, APP)),
            (1, syscall(1)),
            (1, switch(APP, 0x100, SH)),
            (0, switch(IDLE, 0, APP)),
            (0, SYSCALL_EXIT),
        ],
    );

    assert_eq!(
        states,
        [
            TaskState::Running { cpu: 1, syscall: None },
            TaskState::Running { cpu: 1, syscall: Some(1) },
            TaskState::Runnable { cpu: Some(1), woken: false, passed_over: false },
            TaskState::Running { cpu: 0, syscall: Some(1) },
            TaskState::Running { cpu: 0, syscall: None },
        ]
    );
}

#[test]
fn what_a_task_waits_for_follows_from_its_state_and_system_call() {
    assert!(in_syscall(0, 2, BlockedOn::Io));
    assert!(in_syscall(58, 2, BlockedOn::Uninterruptible));
    assert!(in_syscall(0, 1, BlockedOn::Event));
    assert!(in_syscall(202, 1, BlockedOn::Futex));
    assert!(in_syscall(230, 1, BlockedOn::Sleep));
    assert!(in_syscall(0, 4, BlockedOn::Stopped));
}

#[test]
fn number_of_a_system_call_that_is_out_of_range_is_none_that_has_a_name() {
    let states = states(10, &[(0, switch(IDLE, 0, APP)), (0, syscall(i64::MAX))]);

    assert_eq!(states[1], TaskState::Running { cpu: 0, syscall: Some(-1) });
}

#[test]
fn page_fault_of_a_user_waits_for_io_and_a_kernel_thread_for_what_is_not_known() {
    let user = blocked_on(&[syscall(1), SYSCALL_EXIT], 2);
    let kernel = blocked_on(&[], 2);

    assert_eq!(user, TaskState::Blocked { on: BlockedOn::Io, syscall: None });
    assert_eq!(kernel, TaskState::Blocked { on: BlockedOn::Uninterruptible, syscall: None });
}

#[test]
fn task_that_contends_for_a_lock_waits_for_it_but_not_an_interrupt_on_top_of_it() {
    let softirq = Interrupt::Softirq(1);
    let own = blocked_on(&[CONTENTION_BEGIN], 2);
    let ended = blocked_on(&[CONTENTION_BEGIN, CONTENTION_END], 1);
    let of_interrupt =
        blocked_on(&[Event::InterruptEnter(softirq), CONTENTION_BEGIN, Event::InterruptExit(softirq)], 1);

    let on = |on| TaskState::Blocked { on, syscall: None };
    assert_eq!((own, ended, of_interrupt), (on(BlockedOn::Lock), on(BlockedOn::Event), on(BlockedOn::Event)));
}

#[test]
fn task_in_the_queue_of_a_cpu_that_goes_idle_is_passed_over_until_it_is_others_turn() {
    let in_queue = Event::Wakeup { task: SH, cpu: Some(0), stage: WakeupStage::Wakeup };
    let events = [
        (0, switch(IDLE, 0, APP)),
        (0, wakeup(SH, 0)),
        (0, in_queue),
        (0, switch(APP, 0, IDLE)),
        (0, switch(IDLE, 0, APP)),
        (0, switch(APP, 1, IDLE)),
        (0, wakeup(SH, 0)),
        (0, Event::Migrate { tid: 11, cpu: 1 }),
    ];

    let passed_over = |tid| {
        let is_so = |state| matches!(state, TaskState::Runnable { passed_over: true, .. });
        states(tid, &events).into_iter().map(is_so).collect::<Vec<_>>()
    };

    assert_eq!(passed_over(11), [false, false, false, true, false, true, true, false]);
    assert_eq!(passed_over(10), [false, false, false, true, false, false, false, false]);
}

#[test]
fn task_on_its_way_into_a_queue_is_not_passed_over() {
    let events = [(0, switch(IDLE, 0, APP)), (0, wakeup(SH, 0)), (0, switch(APP, 1, IDLE))];

    let woken = TaskState::Runnable { cpu: Some(0), woken: true, passed_over: false };
    assert_eq!(states(11, &events)[2], woken);
}

#[test]
fn woken_task_is_runnable_where_it_will_run_and_a_running_one_stays() {
    let events = [
        (0, switch(APP, 1, SH)),
        (0, wakeup(APP, 0)),
        (0, Event::Migrate { tid: 10, cpu: 1 }),
        (0, wakeup(SH, 1)),
        (0, Event::Migrate { tid: 11, cpu: 1 }),
    ];

    let woken = |cpu| TaskState::Runnable { cpu: Some(cpu), woken: true, passed_over: false };
    assert_eq!(states(10, &events)[1..], [woken(0), woken(1), woken(1), woken(1)]);
    assert_eq!(states(11, &events)[4], TaskState::Running { cpu: 0, syscall: None });
}

#[test]
fn ready_task_is_in_the_queue_of_one_cpu() {
    let guest = after(&[
        (10, 0, switch(APP, 0, SH)),
        (20, 0, wakeup(APP, 0)),
        (30, 0, Event::Migrate { tid: 10, cpu: 1 }),
        (40, 0, switch(SH, 0, IDLE)),
    ]);

    let queue = |cpu| guest.cpu(cpu).map(|cpu| cpu.queue.clone()).unwrap_or_default();
    assert_eq!((queue(0), queue(1)), (vec![guest.living(11).unwrap()], vec![guest.living(10).unwrap()]));
}

#[test]
fn task_lives_from_fork_to_exit_and_its_id_may_be_anothers_later() {
    let guest =
        after(&[(10, 0, fork(APP)), (20, 0, switch(SH, 0, APP)), (30, 0, switch(APP, 0x10, SH)), (40, 0, fork(APP))]);

    let lives: Vec<_> = guest.tasks.iter().filter(|task| task.tid == 10).map(|task| (task.born, task.ended)).collect();
    assert_eq!(lives, [(Some(10), Some(30)), (Some(40), None)]);
    let first = &guest.tasks[0];
    assert_eq!(first.life(&Window { begin: 0, end: 25 }), Some(Window { begin: 10, end: 25 }));
    assert_eq!(first.life(&Window { begin: 30, end: 50 }), None);
}

#[test]
fn task_whose_id_is_given_again_has_ended_unseen() {
    let guest = after(&[(10, 0, fork(APP)), (40, 0, fork(APP))]);

    assert_eq!((guest.tasks[0].state, guest.tasks[0].ended), (TaskState::Absent, Some(40)));
    assert_eq!(guest.living(10), Some(1));
}

#[test]
fn innermost_interrupt_counts_and_one_that_is_not_left_ends_with_the_one_below() {
    let (irq, softirq) = (Interrupt::Irq(4), Interrupt::Softirq(1));
    let mut guest = Guest::default();
    let events = [
        Event::InterruptEnter(irq),
        Event::InterruptEnter(softirq),
        Event::InterruptExit(softirq),
        Event::InterruptEnter(softirq),
        Event::InterruptExit(irq),
        Event::InterruptExit(softirq),
    ];

    let interrupts: Vec<_> = events
        .iter()
        .map(|event| {
            guest.apply(1, 0, event);
            guest.cpu(0).unwrap().interrupt()
        })
        .collect();

    assert_eq!(interrupts, [Some(irq), Some(softirq), Some(irq), Some(softirq), None, None]);
}

#[test]
fn switch_ends_interrupts_that_were_left_without_a_record() {
    let guest = after(&[(1, 0, Event::InterruptEnter(Interrupt::Irq(4))), (2, 0, switch(IDLE, 0, APP))]);

    assert_eq!(guest.cpu(0).unwrap().interrupt(), None);
}

#[test]
fn missing_records_make_tasks_unknown_that_do_not_run_elsewhere() {
    let mut guest = after(&[(10, 0, switch(IDLE, 0, APP)), (10, 1, switch(IDLE, 0, SH))]);

    guest.begin_gap(0);
    assert_eq!((state(&guest, 10), guest.cpu(0).unwrap().current), (TaskState::Unknown, Current::Unknown));
    assert_eq!(state(&guest, 11), TaskState::Running { cpu: 1, syscall: None });
    guest.apply(25, 1, &switch(SH, 1, IDLE));
    assert_eq!(state(&guest, 11), TaskState::Unknown);
    guest.apply(26, 1, &wakeup(SH, 0));
    assert_eq!(state(&guest, 11), TaskState::Unknown);
    guest.end_gap(0);
    guest.apply(40, 0, &switch(SH, 1, IDLE));
    assert_eq!(state(&guest, 11), TaskState::Blocked { on: BlockedOn::Event, syscall: None });
}

#[test]
fn cpu_that_goes_offline_leaves_what_others_tell_known() {
    let mut guest = after(&[(10, 0, switch(IDLE, 0, APP)), (10, 1, switch(IDLE, 0, SH))]);

    guest.apply(20, 0, &Event::RecordingStops { is_offline: true });
    guest.begin_gap(0);
    assert_eq!((state(&guest, 10), guest.cpu(0).unwrap().current), (TaskState::Unknown, Current::Unknown));
    guest.apply(25, 1, &switch(SH, 1, IDLE));
    assert_eq!(state(&guest, 11), TaskState::Blocked { on: BlockedOn::Event, syscall: None });
    // What is woken there may yet run, until the CPU is gone.
    guest.apply(26, 1, &wakeup(APP, 0));
    assert_eq!(state(&guest, 10), TaskState::Unknown);
    guest.apply(27, 1, &wakeup(SH, 1));
    assert_eq!(state(&guest, 11), TaskState::Runnable { cpu: Some(1), woken: true, passed_over: false });
    guest.end_gap(0);
    guest.begin_gap(0);
    assert!(guest.has_gap());
}

#[test]
fn recorder_is_announced_until_a_switch_and_again_after_a_gap() {
    let mut guest = Guest::default();
    guest.announce(0, APP);
    let app = guest.living(10).unwrap();
    assert_eq!((guest.recorder(0), guest.cpu(0).unwrap().current), (Current::Task(app), Current::Unknown));
    guest.apply(10, 0, &switch(APP, 1, IDLE));
    assert_eq!(guest.recorder(0), Current::Idle);
    guest.begin_gap(0);
    assert_eq!(guest.recorder(0), Current::Unknown);
    guest.announce(0, SH);
    assert_eq!(guest.recorder(0), Current::Task(guest.living(11).unwrap()));
}

#[test]
fn thread_belongs_to_the_process_that_made_it_and_a_child_to_itself() {
    let thread = Task { tid: 12, comm: b"" };
    let guest = after(&[
        (10, 0, switch(IDLE, 0, APP)),
        (20, 0, Event::NewTask { tid: 12, clone_flags: CLONE_THREAD }),
        (21, 0, Event::Fork { parent: Some(10), child: thread }),
        (30, 0, Event::NewTask { tid: 11, clone_flags: 17 }),
        (31, 0, Event::Fork { parent: Some(10), child: SH }),
    ]);

    let index = |tid| guest.living(tid).unwrap();
    assert_eq!((guest.process(index(12)), guest.process(index(11))), (index(10), index(11)));
}

#[test]
fn program_names_its_task_by_the_last_part_of_its_path() {
    let guest = after(&[
        (10, 0, switch(IDLE, 0, APP)),
        (20, 0, Event::Exec { tid: None, old_tid: None, file: b"/bin/a-long-name-of-all" }),
    ]);

    assert_eq!(guest.task_name(guest.living(10).unwrap()), (10, "a-long-name-of-".into()));
}

#[test]
fn each_cpu_has_an_idle_task_of_its_own() {
    assert_eq!((Current::Idle.runner(0), Current::Idle.runner(1)), (Some(Runner::Idle(0)), Some(Runner::Idle(1))));
    assert_eq!(Current::Unknown.runner(0), None);
}

const fn rename<'t>(tid: Option<i32>, before: &'t [u8], after: &'t [u8]) -> Event<'t> {
    Event::Rename(Rename { tid, before, after })
}

/// The name of the first task with thread id `tid`, and the one before that.
fn names(guest: &Guest, tid: i32) -> (String, String) {
    let text = |comm: &Vec<u8>| String::from_utf8_lossy(comm).into_owned();
    guest.tasks.iter().find(|task| task.tid == tid).map(|task| (text(&task.comm), text(&task.former))).unwrap()
}

#[test]
fn task_has_the_name_that_it_gave_itself_and_its_threads_keep_theirs() {
    let guest = after(&[
        (1, 0, switch(IDLE, 0, APP)),
        (2, 0, fork(Task { tid: 12, comm: b"app" })),
        (3, 0, rename(Some(10), b"app", b"web")),
    ]);

    assert_eq!(names(&guest, 10), ("web".into(), "app".into()));
    assert_eq!(names(&guest, 12), ("app".into(), "".into()));
}

#[test]
fn task_that_nothing_named_before_has_both_names_of_its_renaming() {
    let guest = after(&[(1, 0, rename(Some(10), b"sh", b"web"))]);

    assert_eq!(names(&guest, 10), ("web".into(), "sh".into()));
    assert_eq!(state(&guest, 10), TaskState::Unknown);
}

#[test]
fn renaming_without_a_thread_id_is_that_of_the_task_that_runs_and_is_called_so() {
    let own = after(&[(1, 0, switch(IDLE, 0, APP)), (2, 0, rename(None, b"app", b"web"))]);
    // It names a thread of the kernel that it has made.
    let of_another = after(&[(1, 0, switch(IDLE, 0, APP)), (2, 0, rename(None, b"kthreadd", b"kworker"))]);
    let of_nobody = after(&[(1, 0, rename(None, b"app", b"web"))]);

    assert_eq!(names(&own, 10).0, "web");
    assert_eq!(names(&of_another, 10).0, "app");
    assert!(of_nobody.tasks.is_empty());
}

#[test]
fn program_names_its_task_unless_a_record_of_the_renaming_has() {
    let exec = |file| Event::Exec { tid: Some(10), old_tid: Some(10), file };
    let named = after(&[(1, 0, switch(IDLE, 0, SH)), (2, 0, switch(SH, 1, APP)), (3, 0, exec(b"/usr/bin/web"))]);
    let by_descriptor =
        after(&[(1, 0, switch(IDLE, 0, APP)), (2, 0, rename(Some(10), b"app", b"web")), (3, 0, exec(b"/dev/fd/3"))]);
    let again = after(&[
        (1, 0, switch(IDLE, 0, APP)),
        (2, 0, rename(Some(10), b"app", b"web")),
        (3, 0, exec(b"/bin/web")),
        (4, 0, exec(b"/bin/ls")),
    ]);

    assert_eq!(names(&named, 10), ("web".into(), "app".into()));
    assert_eq!(names(&by_descriptor, 10).0, "web");
    assert_eq!(names(&again, 10).0, "ls");
}

#[test]
fn thread_that_runs_another_program_goes_on_as_the_first_of_its_process() {
    let thread = Task { tid: 12, comm: b"app" };
    let exec = Event::Exec { tid: Some(10), old_tid: Some(12), file: b"/bin/web" };
    let steps = [
        (1, 0, switch(IDLE, 0, APP)),
        (2, 0, fork(thread)),
        (3, 0, switch(APP, 0x10, thread)),
        (4, 0, rename(Some(10), b"app", b"web")),
        (5, 0, exec),
    ];

    let guest = after(&steps);

    let index = guest.living(10).unwrap();
    let task = guest.task(index).unwrap();
    assert_eq!((task.tid, &*task.comm, &*task.former, task.born), (10, &b"web"[..], &b"app"[..], Some(2)));
    assert_eq!(task.state, TaskState::Running { cpu: 0, syscall: None });
    assert_eq!((guest.living(12), guest.process(index)), (None, index));
    let others: Vec<_> = guest.tasks.iter().filter(|task| task.ended.is_some()).map(|task| task.ended).collect();
    assert_eq!(others, [Some(3), Some(5)]);
}
