//! Packets that the host's kernel moves (vhost-net): what held up its worker.

use super::*;

/// `a` waits from 2000 on for a packet, which the guest's CPU 0 receives from 9000 on; it wakes `a` at 9100, and that
/// runs at 9500. The host's CPU 2 runs `hog` from 1800 on.
fn packet_for_a(trace: TestTrace, meanwhile: impl FnOnce(Scene) -> Scene) -> CriticalPath {
    let scene = Scene::of(trace).switch(0, 1500, 0, 0, A).host_switch(2, 1_800, 0, 0, HOG);
    let scene = meanwhile(scene.call(0, 1900, READ).switch(0, 2000, A, 1, 0));
    let scene = scene.begin_interrupt(0, 9_000, "softirq", 3).wake(0, 9_100, A, 0);
    let scene = scene.end_interrupt(0, 9_200, "softirq", 3).switch(0, 9_500, 0, 0, A);
    worst(scene.switch(0, 14_000, A, 1, 0).end(15_000), "a")
}

/// What the waits of [`packet_for_a`] are, and how long: up to the wake-up.
fn causes(path: &CriticalPath) -> Vec<(Cause, u64)> {
    path.steps[0].steps.iter().map(|step| (step.cause, step.ticks)).collect()
}

#[test]
fn packet_that_a_worker_was_kept_from_moving_is_held_up_by_what_ran_in_its_place() {
    let path = packet_for_a(TestTrace::new(), |scene| {
        let scene = scene.host_wake(2, 3_000, 101, WORKER).host_switch(2, 5_000, HOG, 1, NOISY);
        scene.host_switch(2, 7_000, NOISY, 0, WORKER).host_switch(2, 7_500, WORKER, 1, NOISY)
    });

    let held_up = |by: &str| format!("{by} in place of vhost-1/{WORKER}");
    let (hog, noisy) = (held_up("hog/200"), held_up("noisy/300"));
    let waited = path.steps[0].steps[0].detail.clone().unwrap_or_default();
    assert_eq!(
        leaves(&path.steps)[..4],
        [
            ("a/10", Cause::Interrupt, waited.as_str(), 1_000),
            ("a/10", Cause::PacketHeldUp, hog.as_str(), 2_000),
            ("a/10", Cause::PacketHeldUp, noisy.as_str(), 2_000),
            ("a/10", Cause::Interrupt, waited.as_str(), 2_100),
        ]
    );
    let printed = "the host ran hog/200 in place of vhost-1/400, which was to move the packet that a/10 waited for";
    assert!(path.summary.contains(printed), "{}", path.summary);
}

#[test]
fn worker_that_is_preempted_holds_up_its_packet_and_one_that_ran_at_once_does_not() {
    let preempted = packet_for_a(TestTrace::new(), |scene| {
        let scene = scene.host_switch(2, 2_500, HOG, 1, WORKER).host_switch(2, 4_000, WORKER, 0x100, NOISY);
        scene.host_switch(2, 7_000, NOISY, 1, WORKER)
    });
    let at_once = packet_for_a(TestTrace::new(), |scene| scene.host_switch(2, 4_000, HOG, 1, WORKER));

    assert_eq!(
        causes(&preempted),
        [(Cause::Interrupt, 2_000), (Cause::PacketHeldUp, 3_000), (Cause::Interrupt, 2_100)]
    );
    assert_eq!((at_once.steps[0].cause, causes(&at_once)), (Cause::Interrupt, Vec::new()));
}

#[test]
fn only_the_last_run_of_a_worker_before_the_guest_receives_counts() {
    let path = packet_for_a(TestTrace::new(), |scene| {
        let scene = scene.host_wake(2, 2_100, 101, WORKER).host_switch(2, 4_000, HOG, 0, WORKER);
        let scene = scene.host_switch(2, 4_100, WORKER, 1, HOG).host_wake(2, 6_000, 101, WORKER);
        scene.host_switch(2, 6_500, HOG, 0, WORKER).host_switch(2, 6_600, WORKER, 1, HOG)
    });

    assert_eq!(causes(&path), [(Cause::Interrupt, 4_000), (Cause::PacketHeldUp, 500), (Cause::Interrupt, 2_600)]);
}

/// `a` sends a packet right before it waits, by an exit of its vCPU for `reason`; the worker is kept from running until
/// 4000, and has its answer later, in a run to which something else wakes it.
fn sent_by_a(reason: i64, meanwhile: impl FnOnce(Scene) -> Scene) -> CriticalPath {
    let scene = Scene::new().switch(0, 1500, 0, 0, A).host_switch(2, 1_600, 0, 0, HOG).call(0, 1_700, READ);
    let scene = scene.exit(0, 1_800, reason).host_wake_on(0, 1_850, VCPU0, (WORKER, 2)).enter(0, 1_900);
    let scene = scene.switch(0, 2000, A, 1, 0).host_switch(2, 4_000, HOG, 0, WORKER);
    let scene = meanwhile(scene.host_switch(2, 4_100, WORKER, 1, HOG));
    let scene = scene.host_wake(2, 7_000, NOISY, WORKER).host_switch(2, 7_500, HOG, 0, WORKER);
    let scene = scene.host_switch(2, 7_600, WORKER, 1, HOG).begin_interrupt(0, 9_000, "softirq", 3);
    let scene = scene.wake(0, 9_100, A, 0).end_interrupt(0, 9_200, "softirq", 3).switch(0, 9_500, 0, 0, A);
    worst(scene.switch(0, 14_000, A, 1, 0).end(15_000), "a")
}

#[test]
fn request_and_answer_that_wait_for_two_runs_of_a_worker_are_held_up_before_each() {
    let path = sent_by_a(NPF, |scene| scene);

    assert_eq!(
        causes(&path),
        [
            (Cause::PacketHeldUp, 2_000),
            (Cause::Interrupt, 3_000),
            (Cause::PacketHeldUp, 500),
            (Cause::Interrupt, 1_600),
        ]
    );
    assert!(path.steps[0].steps.iter().all(|step| !says_unreported(step)), "{path:#?}");
}

#[test]
fn runs_between_request_and_answer_are_not_counted_and_that_is_reported() {
    let path = sent_by_a(NPF, |scene| {
        let scene = scene.host_wake(2, 5_000, NOISY, WORKER).host_switch(2, 6_000, HOG, 0, WORKER);
        scene.host_switch(2, 6_100, WORKER, 1, HOG)
    });

    let steps = &path.steps[0].steps;
    assert_eq!(share(&path, Cause::PacketHeldUp), 2_500);
    assert_eq!(steps.iter().map(says_unreported).collect::<Vec<_>>(), [false, true, false, false]);
    assert!(steps[1].detail.as_deref().unwrap().contains("500 ns"), "{steps:#?}");
}

#[test]
fn first_run_that_the_guest_did_not_ask_for_is_not_counted_and_that_is_reported() {
    let path = sent_by_a(EXTERNAL_INTERRUPT, |scene| scene);

    let steps = &path.steps[0].steps;
    assert_eq!(causes(&path), [(Cause::Interrupt, 5_000), (Cause::PacketHeldUp, 500), (Cause::Interrupt, 1_600)]);
    assert_eq!(steps.iter().map(says_unreported).collect::<Vec<_>>(), [true, false, false]);
}

#[test]
fn packet_that_is_sent_in_an_interrupt_is_not_the_request_of_the_task_below_it() {
    let scene = Scene::new().switch(0, 1500, 0, 0, A).host_switch(2, 1_600, 0, 0, HOG).call(0, 1_700, READ);
    let scene = scene.begin_interrupt(0, 1_750, "softirq", 9).exit(0, 1_800, NPF);
    let scene = scene.host_wake_on(0, 1_850, VCPU0, (WORKER, 2)).enter(0, 1_900);
    let scene = scene.end_interrupt(0, 1_950, "softirq", 9).switch(0, 2000, A, 1, 0);
    let scene = scene.host_switch(2, 4_000, HOG, 0, WORKER).host_switch(2, 4_100, WORKER, 1, HOG);
    let scene = scene.host_switch(2, 7_500, HOG, 0, WORKER).begin_interrupt(0, 9_000, "softirq", 3);
    let scene = scene.wake(0, 9_100, A, 0).end_interrupt(0, 9_200, "softirq", 3).switch(0, 9_500, 0, 0, A);

    let path = worst(scene.switch(0, 14_000, A, 1, 0).end(15_000), "a");

    assert_eq!((share(&path, Cause::PacketHeldUp), says_unreported(&path.steps[0])), (0, true));
}

fn says_unreported(step: &Step) -> bool {
    step.detail.as_deref().is_some_and(|detail| detail.contains("whether for this packet is not recorded"))
}

#[test]
fn hold_up_before_the_wait_is_no_part_of_it() {
    let path = packet_for_a(TestTrace::new(), |scene| {
        let scene = scene.host_wake(2, 1_950, 101, WORKER).host_switch(2, 7_000, HOG, 0, WORKER);
        scene.host_switch(2, 7_500, WORKER, 1, HOG)
    });

    assert_eq!(causes(&path), [(Cause::PacketHeldUp, 5_000), (Cause::Interrupt, 2_100)]);
}

#[test]
fn of_several_workers_and_of_those_of_others_it_is_not_guessed_who_moved_the_packet() {
    let late = |scene: Scene| scene.host_wake(2, 3_000, 101, WORKER).host_switch(2, 7_000, HOG, 0, WORKER);

    let two = packet_for_a(TestTrace::new(), |scene| late(scene).host_switch(1, 8_000, 101, 0, SECOND_WORKER));
    let ours = packet_for_a(TestTrace::new().strata_thread(1, "strata", 0), late);
    let of_others = packet_for_a(TestTrace::new().strata_thread(2, "strata", 0), late);

    assert!([&two, &of_others].iter().all(|path| share(path, Cause::PacketHeldUp) == 0), "{two:#?}");
    assert_eq!([&two, &of_others].map(|path| says_unreported(&path.steps[0])), [true, false]);
    assert_eq!(share(&ours, Cause::PacketHeldUp), 4_000);
}

#[test]
fn nothing_is_held_up_where_records_of_the_host_are_lost() {
    let path = packet_for_a(TestTrace::new(), |scene| {
        let scene = Scene(scene.host_wake(2, 3_000, 101, WORKER).0.lost(LayerKind::HostKernel, 2, 5));
        scene.host_switch(2, 7_000, HOG, 0, WORKER)
    });

    assert_eq!(share(&path, Cause::PacketHeldUp), 0);
}
