//! Who or what a delay is: thief, lock holder, VMM, disk, priority inversion, timer.

use super::*;

#[test]
fn thief_on_the_host_is_named_with_its_share_and_its_records() {
    let requested = CriticalPathOptions { from: Some(Duration::from_nanos(1_000)), ..options("app") };

    let answer = request(scenario::preempted_in_an_exit(), &requested).unwrap();

    let path = &answer.paths[0];
    // It runs from tick 11000 on; the first record is at 9000.
    let found: Vec<_> = leaves(&path.steps).into_iter().take(5).collect();
    assert_eq!(
        found,
        [
            ("app/10", Cause::Running, "", 9_000),
            ("app/10", Cause::Exit, "ioio", 2_000),
            ("app/10", Cause::Preempted, "hog/200", 18_000),
            ("app/10", Cause::Exit, "ioio", 5_000),
            ("app/10", Cause::Vmm, "ioio", 5_000),
        ]
    );
    let reported = path.steps[2].since.clone().unwrap();
    let switch = RecordOf { ticks: 22_000, layer: "host-kernel", cpu: 0, event: "sched:sched_switch".into() };
    assert_eq!(reported, switch);
    assert!(path.summary.contains("the host ran hog/200 in place of vCPU 0, which app/10 needed"), "{}", path.summary);
}

#[test]
fn thief_is_there_because_somebody_woke_it() {
    let trace = futex_of_b(|scene| {
        let scene = scene.host_wake(1, 3_900, 101, HOG).host_switch(1, 4_000, 101, 0x100, HOG);
        scene.host_switch(1, 9_000, HOG, 1, 101)
    });

    let path = worst(trace, "a");

    let stolen = path.steps[0].steps.iter().find(|step| step.cause == Cause::Preempted).unwrap();
    assert_eq!(stolen.why.as_deref(), Some("it had been woken 50 ns before, while thread 101 ran"));
}

#[test]
fn lock_holder_that_the_host_preempts_is_followed_to_the_thief() {
    let trace = futex_of_b(|scene| scene.host_switch(1, 4_000, 101, 0x100, HOG).host_switch(1, 9_000, HOG, 1, 101));

    let path = worst(trace, "a");

    assert_eq!(
        leaves(&path.steps),
        [
            ("b/11", Cause::Running, "", 2_000),
            ("b/11", Cause::Preempted, "hog/200", 5_000),
            ("b/11", Cause::Running, "", 3_000),
            ("a/10", Cause::WaitsForCpu, "nothing: it was idle and had yet to switch", 500),
        ]
    );
    let wait = &path.steps[0];
    assert_eq!(
        (wait.cause, wait.detail.as_deref(), wait.woken_by.as_deref()),
        (Cause::Blocked, Some("futex (futex)"), Some("b/11"))
    );
    assert_eq!(
        wait.until.as_ref().map(|until| (until.ticks, until.event.as_str())),
        Some((12_000, "sched:sched_waking"))
    );
    assert!(
        path.summary.contains(
            "For 2.500 µs (47.6 %) the host ran hog/200 in place of vCPU 1, which b/11 needed; a/10 was waiting for it."
        ),
        "{}",
        path.summary
    );
}

#[test]
fn delay_in_the_vmm_is_the_vmms() {
    let trace = futex_of_b(|scene| scene.exit(1, 4_000, IOIO).vmm(1, (4_100, 9_900)).enter(1, 10_000));

    let path = worst(trace, "a");

    assert_eq!((share(&path, Cause::Vmm), share(&path, Cause::Exit)), (5_800, 200));
    assert!(path.summary.contains("the VMM handled exits (ioio) of vCPU 1, which b/11 needed"), "{}", path.summary);
}

#[test]
fn task_that_the_guest_prefers_to_the_lock_holder_is_the_cause_of_a_priority_inversion() {
    let trace = futex_of_b(|scene| scene.switch(1, 3_000, B, 0, M).switch(1, 11_000, M, 1, B));

    let path = worst(trace, "a");

    assert_eq!(
        leaves(&path.steps)[..3],
        [
            ("b/11", Cause::Running, "", 1_000),
            ("b/11", Cause::WaitsForCpu, "middle/13", 8_000),
            ("b/11", Cause::Running, "", 1_000),
        ]
    );
}

#[test]
fn exits_and_interrupts_of_who_runs_instead_are_time_that_who_is_ready_waits_for_it() {
    let trace = futex_of_b(|scene| {
        let scene = scene.switch(1, 3_000, B, 0, M).exit(1, 4_000, IOIO).enter(1, 5_000);
        scene.interrupt(1, (6_000, 7_000), "vector", TIMER).switch(1, 11_000, M, 1, B)
    });

    let path = worst(trace, "a");

    let behind: Vec<_> = path
        .shares
        .iter()
        .filter(|share| share.runner.as_deref() == Some("middle/13"))
        .map(|share| (share.cause, share.detail.as_deref(), share.ticks))
        .collect();
    assert_eq!(
        behind,
        [
            (Cause::WaitsForCpu, Some("middle/13"), 6_000),
            (Cause::Exit, Some("ioio"), 1_000),
            (Cause::WaitsForCpu, Some("vector local_timer"), 1_000),
        ]
    );
    assert!(
        path.summary.contains(
            "For 4.000 µs (76.1 %) b/11 was ready and its guest ran middle/13 on vCPU 1, 1.000 µs of it under exits \
             and interrupts; a/10 was waiting for it."
        ),
        "{}",
        path.summary
    );
}

#[test]
fn thread_of_another_vm_is_named_as_its_vcpu() {
    let scene = Scene::of(TestTrace::new().with_neighbour("vm1", 300));
    let scene = scene.switch(0, 1500, 0, 0, A).host_switch(0, 2_000, VCPU0, 0x100, NOISY);
    let trace = scene.host_switch(0, 8_000, NOISY, 0x100, VCPU0).switch(0, 9_000, A, 1, 0).end(10_000);

    let path = request(trace, &options("a")).unwrap().paths.remove(0);

    assert_eq!(share(&path, Cause::Preempted), 6_000);
    let thief = path.shares.iter().find(|share| share.cause == Cause::Preempted).unwrap();
    assert_eq!(thief.detail.as_deref(), Some("noisy/300 (vCPU 0 of vm1)"));
}

/// A request of `c` that it issues at `time`, on CPU 0, and that its completion wakes it from at `time + 810`.
fn disk_request(scene: Scene, time: u64) -> Scene {
    let block = [("dev", Number(254 << 20)), ("sector", Number(64)), ("nr_sector", Number(8)), ("rwbs", Text("R"))];
    let scene = scene.guest(0, time, "block:block_rq_issue", &block).switch(0, time + 10, C, 2, 0);
    let request = |done| {
        let of_disk = [("disk", Number(0)), ("kind", Text("read")), ("sector", Number(64))];
        [&of_disk[..], &[("bytes", Number(4096)), ("done", Number(done))]].concat()
    };
    let trace = scene.0.vmm(2, time + 100, "vmm:block_request", &request(0));
    let trace = trace.vmm(2, time + 700, "vmm:block_request", &request(1));
    let scene = Scene(trace.vmm(2, time + 710, "vmm:disk_interrupt", &[("disk", Number(0))]));
    let scene = scene.begin_interrupt(0, time + 800, "irq", 24).guest(0, time + 805, "block:block_rq_complete", &block);
    scene.wake(0, time + 810, C, 0).end_interrupt(0, time + 815, "irq", 24)
}

#[test]
fn chain_of_three_tasks_over_two_locks_ends_at_the_disk() {
    let scene = Scene::new().switch(0, 1_500, 0, 0, C).switch(1, 1_600, 1, 1, B);
    // `b` waits for `c`, and `a` for `b`.
    let scene = scene.call(1, 1_700, FUTEX).switch(1, 1_800, B, 1, A).call(1, 1_900, FUTEX).switch(1, 2_000, A, 1, 0);
    let scene = disk_request(scene.call(0, 2_900, READ), 3_000);
    let scene = scene.switch(0, 3_900, 0, 0, C).wake(0, 4_000, B, 1).switch(1, 4_100, 0, 0, B);
    let trace = scene.wake(1, 4_500, A, 1).switch(1, 4_600, B, 1, A).switch(1, 5_000, A, 1, 0).end(6_000);

    let path = worst(trace, "a");

    let disk = |step| format!("read of disk 0: {step}");
    let expected = [
        ("c/12", Cause::Running, String::new(), 900),
        ("c/12", Cause::Running, "read".into(), 110),
        ("c/12", Cause::Request, disk("issued → started, guest driver, host: wake the VMM's thread, VMM queue"), 90),
        ("c/12", Cause::Request, disk("started → finished, VMM and host I/O"), 600),
        ("c/12", Cause::Request, disk("finished → raised, VMM: rest of the batch, answer"), 10),
        ("c/12", Cause::Request, disk("raised → handled, KVM: reach the vCPU, guest: enter the handler"), 90),
        ("c/12", Cause::Request, disk("handled → completed, guest: handler, soft interrupt"), 5),
        ("c/12", Cause::Request, disk("completed → woken, guest: wake the task"), 5),
        ("c/12", Cause::WaitsForCpu, "irq 24".into(), 5),
        ("c/12", Cause::WaitsForCpu, "nothing: it was idle and had yet to switch".into(), 85),
        ("c/12", Cause::Running, "read".into(), 100),
        ("b/11", Cause::WaitsForCpu, "nothing: it was idle and had yet to switch".into(), 100),
        ("b/11", Cause::Running, "futex".into(), 400),
        ("a/10", Cause::WaitsForCpu, "b/11".into(), 100),
    ];
    let found: Vec<_> = leaves(&path.steps)
        .into_iter()
        .map(|(task, cause, detail, ticks)| (task, cause, detail.to_owned(), ticks))
        .collect();
    assert_eq!(found, expected);
    assert_eq!(path.wall_ticks, 2_600);
}

#[test]
fn task_that_slept_as_requested_is_late_only_from_being_woken_on() {
    let sleeper = || {
        let scene = Scene::new().switch(0, 1_500, 0, 0, A).call(0, 1_900, NANOSLEEP).switch(0, 2_000, A, 1, 0);
        let scene = scene
            .begin_interrupt(0, 9_000, "vector", TIMER)
            .wake(0, 9_100, A, 0)
            .end_interrupt(0, 9_200, "vector", TIMER);
        scene.switch(0, 9_900, 0, 0, A).switch(0, 11_000, A, 1, 0).end(12_000)
    };

    let (late, all) = (worst(sleeper(), "a"), request(sleeper(), &options("a")).unwrap().paths.remove(0));

    assert_eq!((late.window.begin, late.wall_ticks), (9_100, 800));
    assert_eq!(share(&all, Cause::Sleep), 7_100);
}

#[test]
fn wake_up_of_a_halted_vcpu_is_the_hosts_from_when_its_thread_is_woken() {
    let scene = Scene::new().switch(0, 1_500, 0, 0, A).switch(0, 2_000, A, 1, 0);
    let scene = scene.exit(0, 2_500, HLT).host_switch(0, 2_600, VCPU0, 1, HOG).host_wake(0, 7_000, 0, VCPU0);
    let scene = scene.host_switch(0, 8_500, HOG, 0, VCPU0).enter(0, 8_700).begin_interrupt(0, 8_800, "irq", 25);
    let scene = scene.wake(0, 8_900, A, 0).end_interrupt(0, 8_950, "irq", 25).switch(0, 9_000, 0, 0, A);
    let trace = scene.switch(0, 9_500, A, 1, 0).end(10_000);

    let path = worst(trace, "a");

    let waited = &path.steps[0];
    assert_eq!((waited.cause, waited.woken_by.as_deref()), (Cause::Blocked, Some("irq 25 (virtio1-input.0)")));
    assert_eq!(
        leaves(&waited.steps),
        [
            ("a/10", Cause::Interrupt, "event", 5_000),
            ("a/10", Cause::WokenLate, "hog/200", 1_500),
            ("a/10", Cause::Exit, "hlt", 200),
            ("a/10", Cause::Handler, "on the way to its handler", 100),
            ("a/10", Cause::Handler, "irq 25", 100),
        ]
    );
}

/// The path of `a`, which sleeps on an idle vCPU until its timer at 8,800; the host runs something else there from
/// 2,600 until `back`.
fn sleeper_on_an_idle_vcpu(back: u64) -> CriticalPath {
    let scene = Scene::new().switch(0, 1_500, 0, 0, A).call(0, 1_900, NANOSLEEP).switch(0, 2_000, A, 1, 0);
    let scene = scene.exit(0, 2_500, CPUID).host_switch(0, 2_600, VCPU0, 0, HOG);
    let scene = scene.host_switch(0, back, HOG, 0, VCPU0).enter(0, back + 200);
    let scene = scene.begin_interrupt(0, 8_800, "vector", TIMER).wake(0, 8_900, A, 0);
    let scene = scene.end_interrupt(0, 8_950, "vector", TIMER).switch(0, 9_000, 0, 0, A);
    request(scene.switch(0, 9_500, A, 1, 0).end(10_000), &options("a")).unwrap().paths.remove(0)
}

#[test]
fn sleep_that_ends_when_an_idle_vcpu_gets_its_cpu_back_was_held_up_by_who_ran_there() {
    let all = sleeper_on_an_idle_vcpu(8_500);

    let reported = leaves(&all.steps);
    assert!(reported.contains(&("a/10", Cause::Sleep, "sleep (nanosleep)", 600)), "{reported:?}");
    assert!(reported.contains(&("a/10", Cause::Preempted, "hog/200", 5_900)), "{reported:?}");
}

#[test]
fn sleep_that_ends_long_after_an_idle_vcpu_got_its_cpu_back_was_not_held_up() {
    let all = sleeper_on_an_idle_vcpu(4_500);

    assert_eq!((share(&all, Cause::Preempted), share(&all, Cause::Sleep)), (0, 6_900));
}

/// What `strata why` says of all that `a` does in `trace`, and the share that it was not allowed to run.
fn limited(trace: TestTrace) -> (u64, String) {
    let answer = request(trace, &options("a")).unwrap();
    let mut text = Vec::new();
    answer.write_text(&mut text).unwrap();
    (share(&answer.paths[0], Cause::NotAllowed), String::from_utf8(text).unwrap())
}

#[test]
fn vcpu_that_its_host_passes_over_is_limited_and_not_late() {
    let scene = Scene::new().switch(0, 1500, 0, 0, A).exit(0, 2_000, IOIO).host_switch(0, 2_100, VCPU0, 0, 0);
    let scene = scene.host_switch(0, 52_100, 0, 0, VCPU0).enter(0, 52_200).switch(0, 60_000, A, 1, 0);

    let (ticks, text) = limited(scene.end(61_000));

    assert_eq!(ticks, 50_000);
    assert!(text.contains("its CPU of the host was idle and did not run it: a CPU limit"), "{text}");
    assert!(!text.contains("had yet to begin"), "{text}");
}

#[test]
fn vcpu_that_an_idle_host_runs_late_by_tens_of_milliseconds_is_not_reported_as_yet_to_begin() {
    let scene = Scene::new().switch(0, 1500, 0, 0, A).exit(0, 2_000, IOIO).host_switch(0, 2_100, VCPU0, 1, 0);
    let scene = scene.host_wake(0, 3_000, 0, VCPU0).host_switch(0, 60_003_000, 0, 0, VCPU0).enter(0, 60_003_100);

    let (ticks, text) = limited(scene.switch(0, 60_010_000, A, 1, 0).end(60_011_000));

    assert_eq!(ticks, 60_000_000);
    assert!(text.contains("a CPU limit, or why is not recorded") && !text.contains("had yet to begin"), "{text}");
}

#[test]
fn task_that_its_guest_passes_over_is_limited_and_not_late() {
    let scene = Scene::new().switch(0, 1500, 0, 0, A).switch(0, 2_000, A, 0, 0).switch(0, 42_000, 0, 0, A);

    let (ticks, text) = limited(scene.switch(0, 60_000, A, 1, 0).end(61_000));

    assert_eq!(ticks, 40_000);
    assert!(text.contains("was idle and did not run it: a CPU limit in the guest"), "{text}");
    assert!(!text.contains("had yet to begin"), "{text}");
}

#[test]
fn thread_of_an_interrupts_handler_is_woken_by_the_interrupt_and_not_by_what_that_came_upon() {
    let handled = |trace: TestTrace| {
        let wakes_thread = [("irq", Number(25)), ("ret", Number(2))];
        let thread = [("comm", Text("irq/25-disk")), ("pid", Number(50)), ("target_cpu", Number(0))];
        let trace = trace.guest(0, 8_900, "irq:irq_handler_exit", &wakes_thread);
        trace.guest(0, 8_901, "sched:sched_waking", &thread).named_switch((0, 9_000), (11, "b"), 0, (50, "irq/25-disk"))
    };
    let scene = Scene(Scene::new().0.named_switch((0, 1_200), (0, "swapper"), 0, (50, "irq/25-disk")));
    let scene = Scene(scene.0.named_switch((0, 1_300), (50, "irq/25-disk"), 1, (0, "swapper")));
    let scene = scene.switch(0, 1_500, 0, 0, A).switch(0, 2_000, A, 1, B).begin_interrupt(0, 8_800, "irq", 25);
    let scene = Scene(handled(scene.0)).wake(0, 9_100, A, 0);
    let trace = scene.0.named_switch((0, 9_200), (50, "irq/25-disk"), 1, (10, "a"));
    let trace = Scene(trace).switch(0, 9_500, A, 1, 0).end(10_000);

    let path = worst(trace, "a");

    let woken_by = |step: &Step| step.woken_by.clone().unwrap_or_default();
    assert_eq!(woken_by(&path.steps[0]), "irq/25-disk/50");
    assert_eq!(woken_by(&path.steps[0].steps[0]), "irq 25 (virtio1-input.0)");
}

#[test]
fn interrupt_that_is_of_no_device_is_not_called_one() {
    let scene =
        Scene::new().switch(0, 1_500, 0, 0, A).switch(0, 2_000, A, 1, 0).begin_interrupt(0, 8_800, "softirq", 9);
    let scene = scene.wake(0, 8_900, A, 0).end_interrupt(0, 8_950, "softirq", 9).switch(0, 9_000, 0, 0, A);

    let path = worst(scene.switch(0, 9_500, A, 1, 0).end(10_000), "a");

    assert!(path.summary.contains("a/10 waited for an interrupt: softirq rcu"), "{}", path.summary);
}
