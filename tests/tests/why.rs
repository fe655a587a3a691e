//! `strata why` about waits whose causes are known: it names cause, culprit and share as the loads know them.
//!
//! Shows: `strata why` names cause, culprit and share in seventeen cases; without records it blames nobody.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::paths::Paths;
use lab::scenarios::{analysis, known_answers};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use strata_recording::reader::Trace;
use trace_merge::critical_path::{self, Cause, CriticalPath, CriticalPathOptions, CriticalPaths, Share};
use trace_merge::events::{self, EventsOptions};
use trace_merge::join::join;
use trace_merge::report::kernels::exits;

/// How far a share may be from what the load knows, in percent of that.
const MOST_OFF: u64 = 5;
/// What a task that has its guest's CPU, in its kernel's view, does.
const ON_CPU: [Cause; 6] =
    [Cause::Running, Cause::Interrupted, Cause::Exit, Cause::Vmm, Cause::Preempted, Cause::WokenLate];

/// A file of the results, which the first test to ask makes.
fn result(name: &str) -> PathBuf {
    known_answers::once_per_test_run(&Paths::of_workspace()).unwrap().output.join(name)
}

fn trace() -> Trace {
    Trace::open(&result("trace")).unwrap()
}

/// What `load` knows of itself, as it wrote to the log of that name.
fn known_of(log: &str, load: &str) -> BTreeMap<String, u64> {
    analysis::known(&result(log), load).unwrap()
}

/// What a load in the guest knows of itself.
fn known(load: &str) -> BTreeMap<String, u64> {
    known_of("guest.log", load)
}

/// The answer about the task `tid` of `trace`: its longest wait, or all its time.
fn answer(trace: &Trace, tid: u64, worst: Option<usize>) -> CriticalPaths {
    let options = CriticalPathOptions {
        worst,
        vm: Some("vm0".into()),
        ..CriticalPathOptions::of(format!("*/{tid}").parse().unwrap())
    };
    let (answer, _) = critical_path::critical_paths(trace, &options).unwrap();
    println!("{}", answer.paths[0].summary);
    answer
}

fn longest_wait(tid: u64) -> CriticalPath {
    answer(&trace(), tid, Some(1)).paths.remove(0)
}

fn whole_life(tid: u64) -> CriticalPath {
    answer(&trace(), tid, None).paths.remove(0)
}

/// The time that shares which are `wanted` take, ns.
fn ns(path: &CriticalPath, wanted: impl Fn(&Share) -> bool) -> u64 {
    path.shares.iter().filter(|share| wanted(share)).map(|share| share.ns).sum()
}

/// Asserts that `ns` of the path is what the load knows.
#[track_caller]
fn assert_near(path: &CriticalPath, ns: u64, known_ns: u64) {
    println!("{ns} ns, known {known_ns} ns");
    assert!(ns.abs_diff(known_ns) * 100 <= known_ns * MOST_OFF, "{ns} ns, not {known_ns}\n{path:#?}");
}

/// Asserts that the longest share of `path` is of `cause` and of the task called `task`.
#[track_caller]
fn assert_longest(path: &CriticalPath, cause: Cause, task: &str) {
    let longest = &path.shares[0];
    assert_eq!((longest.cause, longest.task.as_str()), (cause, task), "{}", path.summary);
}

#[test]
fn sleep_of_a_locks_holder_is_what_the_waiter_waits_for() {
    let load = known("sleeper");
    let holder = format!("holder/{}", load["holder"]);

    let path = longest_wait(load["waiter"]);

    assert_longest(&path, Cause::Sleep, &holder);
    assert_near(&path, path.shares[0].ns, load["asked_ns"]);
    assert!(path.summary.contains(&format!("{holder} slept, as it had asked for")), "{}", path.summary);
}

/// Asserts that the longest share of `path` is the host's part of disk requests of `task`, and that these requests took
/// at least as long as the disk delayed them, and at most as long as the task was off its CPU, which is `waited_ns`: it
/// has yet to get its CPU when they are done.
#[track_caller]
fn assert_is_of_disk(path: &CriticalPath, task: &str, waited_ns: u64) {
    assert_longest(path, Cause::Request, task);
    let step = "read of disk 0: started → finished, VMM and host I/O";
    assert_eq!(path.shares[0].detail.as_deref(), Some(step), "{}", path.summary);
    let requested_ns = ns(path, |share| share.cause == Cause::Request && share.task == task);
    let delayed_ns = known_answers::READS * known_answers::DISK_DELAY_MS * 1_000_000;
    println!("{requested_ns} ns, known {delayed_ns} to {waited_ns} ns");
    assert!(requested_ns * 100 >= delayed_ns * (100 - MOST_OFF), "{requested_ns} ns, not {delayed_ns}\n{path:#?}");
    assert!(requested_ns * 100 <= waited_ns * (100 + MOST_OFF), "{requested_ns} ns, not {waited_ns}\n{path:#?}");
}

#[test]
fn slow_disk_is_what_a_reader_waits_for() {
    let load = known("reads");

    let path = whole_life(load["pid"]);

    assert_is_of_disk(&path, &format!("known_load/{}", load["pid"]), load["waited_ns"]);
}

#[test]
fn chain_over_two_locks_leads_to_the_disk() {
    let load = known("chain");

    let path = longest_wait(load["first"]);

    assert_is_of_disk(&path, &format!("third/{}", load["third"]), load["disk_ns"]);
    assert_near(&path, path.wall_ns, load["waited_ns"]);
}

#[test]
fn pause_of_the_machine_is_the_vmms() {
    let load = known("standstill");

    let path = whole_life(load["pid"]);

    assert_near(&path, ns(&path, |share| share.cause == Cause::Vmm), load["missed_ns"]);
    assert!(path.summary.contains("the VMM handled exits"), "{}", path.summary);
}

#[test]
fn thief_of_a_locks_holder_is_what_the_waiter_waits_for() {
    let (load, hog) = (known("preempted"), known_of("hog.log", "hog"));
    let (holder, thief) = (format!("holder/{}", load["holder"]), format!("known_load/{}", hog["pid"]));

    let path = longest_wait(load["waiter"]);

    let is_stolen = |share: &Share| share.cause == Cause::Preempted && share.task == holder;
    let stolen = ns(&path, |share| is_stolen(share) && share.detail.as_ref() == Some(&thief));
    assert_near(&path, stolen, hog["cpu_ns"]);
    let printed = format!("the host ran {thief} in place of vCPU 1, which {holder} needed");
    assert!(path.summary.contains(&printed), "{}", path.summary);
}

#[test]
fn computing_of_a_server_is_what_its_client_waits_for() {
    let load = known("request");
    let server = format!("server/{}", load["server"]);

    let path = longest_wait(load["client"]);

    assert_longest(&path, Cause::Running, &server);
    let computing = ns(&path, |share| share.task == server && ON_CPU.contains(&share.cause));
    assert_near(&path, computing, load["cpu_ns"]);
    assert_near(&path, path.wall_ns, load["waited_ns"]);
}

#[test]
fn task_in_the_middle_is_the_cause_of_a_priority_inversion() {
    let load = known("inversion");
    let [low, middle] = ["low", "middle"].map(|name| format!("{name}/{}", load[name]));

    let path = longest_wait(load["high"]);

    assert_longest(&path, Cause::WaitsForCpu, &low);
    assert_eq!(path.shares[0].detail.as_ref(), Some(&middle), "{}", path.summary);
    assert_near(&path, ns(&path, |share| share.runner.as_ref() == Some(&middle)), load["cpu_ns"]);
    assert!(path.summary.contains(&format!("{low} was ready and its guest ran {middle}")), "{}", path.summary);
}

#[test]
fn competitor_for_a_cpu_is_who_ran_instead() {
    let load = known("competition");
    let [contender, rival] = ["contender", "rival"].map(|name| format!("{name}/{}", load[name]));

    let path = whole_life(load["contender"]);

    assert_near(&path, ns(&path, |share| share.runner.as_ref() == Some(&rival)), load["waited_ns"]);
    assert!(path.summary.contains(&format!("{contender} was ready and its guest ran {rival}")), "{}", path.summary);
}

#[test]
fn sleep_that_was_requested_is_reported_as_that() {
    let load = known("nap");

    let path = whole_life(load["pid"]);

    assert_near(&path, ns(&path, |share| share.cause == Cause::Sleep), load["asked_ns"]);
}

#[test]
fn computing_of_a_child_is_what_its_parent_waits_for() {
    let (load, burn) = (known("child"), known("burn"));
    let child = format!("known_load/{}", burn["pid"]);

    let path = longest_wait(load["pid"]);

    assert_longest(&path, Cause::Running, &child);
    let computing = ns(&path, |share| share.task == child && ON_CPU.contains(&share.cause));
    assert_near(&path, computing, burn["cpu_ns"]);
}

/// Asserts that the share of exits for `reason` in all time of the task `tid`, in KVM or in the VMM, is what the exits'
/// own records add up to; their number.
fn assert_exits_are_reported(tid: u64, reason: &str, cause: Cause) -> u64 {
    let path = whole_life(tid);
    let report = exits::report(&trace(), path.window).unwrap();
    let of_reason = report.vms[0].reasons.iter().find(|exits| exits.reason == reason).unwrap();
    let recorded = if cause == Cause::Vmm { of_reason.vmm_ns } else { of_reason.kvm_ns };
    let is_reported = |share: &Share| share.cause == cause && share.detail.as_deref() == Some(reason);
    let reported = ns(&path, is_reported);
    // What the vCPU's thread waited for in KVM or in the VMM is theirs in the path; the report keeps it apart.
    assert_near(&path, reported, reported.clamp(recorded, recorded + of_reason.blocked_ns));
    let who = if cause == Cause::Vmm { "the VMM" } else { "KVM" };
    assert!(path.summary.contains(&format!("{who} handled exits ({reason}) of vCPU 1")), "{}", path.summary);
    of_reason.count
}

#[test]
fn exits_for_cpuid_are_the_share_that_their_records_say() {
    let load = known("cpuid");

    let count = assert_exits_are_reported(load["pid"], "cpuid", Cause::Exit);

    assert!(count >= load["count"], "{count}");
}

#[test]
fn exits_for_fresh_memory_are_the_share_that_their_records_say() {
    assert_exits_are_reported(known("fresh_memory")["pid"], "nested_page_fault", Cause::Exit);
}

#[test]
fn exits_for_a_port_are_the_vmms_share_that_their_records_say() {
    let load = known("port");

    let count = assert_exits_are_reported(load["pid"], "ioio", Cause::Vmm);

    assert!(count >= load["count"], "{count}");
}

#[test]
fn late_wake_up_of_a_vcpu_is_that_of_who_ran_on_its_cpu() {
    let (load, bursts) = (known("late"), known_of("bursts.log", "bursts"));
    let thief = format!("known_load/{}", bursts["pid"]);

    let path = whole_life(load["pid"]);

    let late = ns(&path, |share| share.cause == Cause::WokenLate && share.detail.as_ref() == Some(&thief));
    assert_near(&path, late, load["late_ns"]);
    let printed = format!("vCPU 1, which known_load/{} needed, was woken, and the host ran {thief} first", load["pid"]);
    assert!(path.summary.contains(&printed), "{}", path.summary);
}

/// Time that the ping in the guest says its reply took, ns.
fn round_trip_ns() -> u64 {
    let log = std::fs::read(result("guest.log")).unwrap();
    let log = String::from_utf8_lossy(&log);
    let (_, time) = log.rsplit_once("time=").unwrap();
    let ms: f64 = time.split_whitespace().next().unwrap().parse().unwrap();
    Duration::from_secs_f64(ms / 1000.0).as_nanos().try_into().unwrap()
}

#[test]
fn hold_up_of_the_worker_that_moves_packets_is_what_their_receiver_waits_for() {
    let (load, holdup, mover) = (known("packet"), known_of("holdup.log", "bursts"), known_of("holdup.log", "mover"));
    let thief = format!("known_load/{}", holdup["pid"]);

    let path = longest_wait(load["pid"]);

    let is_held_up = |share: &Share| share.cause == Cause::PacketHeldUp;
    let by_thief = |share: &Share| share.detail.as_ref().is_some_and(|detail| detail.starts_with(&thief));
    let held_up = ns(&path, |share| is_held_up(share) && by_thief(share));
    assert_near(&path, held_up, round_trip_ns());
    assert!(held_up > 1_000_000_000 && held_up < holdup["computed_ns"], "{}", path.summary);
    let printed = format!("the host ran {thief} in place of vhost-");
    assert!(path.summary.contains(&printed), "{}", path.summary);
    assert!(path.summary.contains(&format!("/{}, which was to move the packet", mover["pid"])), "{}", path.summary);
}

#[test]
fn network_device_whose_packets_the_host_moves_is_begun_anew_by_its_driver() {
    let options = EventsOptions { json: true, events: vec!["vmm:net_*".into()], ..EventsOptions::default() };
    let mut listing = Vec::new();

    events::list(&trace(), &options, &mut listing).unwrap();

    let records = String::from_utf8(listing).unwrap();
    let records: Vec<serde_json::Value> = records.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(records.iter().all(|record| record["event"] == "vmm:net_vhost"), "{records:?}");
    let moves: Vec<_> = records.iter().map(|record| record["fields"]["moves"].as_u64().unwrap()).collect();
    // The driver began, let go and began again; the end of the run is the last end.
    assert!(moves.starts_with(&[1, 0, 1]), "{moves:?}");
}

#[test]
fn second_vm_is_named_as_the_thief_with_its_share() {
    let neighbour = known_of("neighbour.log", "neighbour");
    let folder = tempfile::tempdir().unwrap();
    let merged = folder.path().join("merged");
    join(&result("trace"), &[result("neighbour")], &[], &merged).unwrap();

    let path = answer(&Trace::open(&merged).unwrap(), known("compute")["pid"], None).paths.remove(0);

    let thief = format!("vcpu0/{} (vCPU 0 of {})", neighbour["pid"], known_answers::NEIGHBOUR);
    let stolen = ns(&path, |share| share.cause == Cause::Preempted && share.detail.as_ref() == Some(&thief));
    assert_near(&path, stolen, neighbour["cpu_ns"]);
    assert!(path.summary.contains(&format!("the host ran {thief} in place of vCPU 1")), "{}", path.summary);
}

#[test]
fn who_ended_a_wait_is_not_guessed_where_interrupts_were_not_recorded() {
    let load = known("sleeper");
    let blind = Trace::open(&result("blind")).unwrap();

    let answer = answer(&blind, load["waiter"], Some(1));

    let path = &answer.paths[0];
    assert_longest(path, Cause::WakerUnknown, &format!("waiter/{}", load["waiter"]));
    assert_near(path, path.shares[0].ns, load["waited_ns"]);
    assert!(path.summary.contains("interrupts were not recorded"), "{}", path.summary);
    assert!(answer.warnings.iter().any(|warning| warning.contains("irq:softirq_entry")), "{:?}", answer.warnings);
}
