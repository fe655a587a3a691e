//! What `strata report` says about a guest whose loads know their own cost.
//!
//! Shows: Reports say what loads know of themselves: CPU shares, cgroups, calls, pids.
//! Shows: `strata why` names cause, culprit and share in seventeen cases; without records it blames nobody.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use lab::paths::Paths;
use lab::scenarios::analysis;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use strata_recording::layer::LayerKind;
use strata_recording::reader::Trace;
use trace_merge::critical_path::{self, Cause, CriticalPath, CriticalPathOptions};
use trace_merge::events::EventsOptions;
use trace_merge::report::Window;
use trace_merge::report::devices::flows;
use trace_merge::report::devices::flows::{Milestone, StepTimes};
use trace_merge::report::kernels::{locks, syscalls};
use trace_merge::report::scheduling::cgroups::CgroupTimes;
use trace_merge::report::scheduling::tasks::TaskReport;
use trace_merge::report::scheduling::times::Times;
use trace_merge::report::scheduling::{tasks, vcpus};
use trace_merge::{check, report};

/// A file of the results, which the first test to ask makes.
fn result(name: &str) -> PathBuf {
    analysis::once_per_test_run(&Paths::of_workspace()).unwrap().output.join(name)
}

fn trace() -> Trace {
    Trace::open(&result("trace")).unwrap()
}

/// What a load in the guest knows of itself.
fn known(load: &str) -> BTreeMap<String, u64> {
    analysis::known(&result("guest.log"), load).unwrap()
}

/// How far `a` is from `b`, in percent of `b`.
fn percent_off(a: u64, b: u64) -> u64 {
    a.abs_diff(b) * 100 / b.max(1)
}

#[test]
fn time_that_a_process_of_the_host_takes_from_a_task_is_that_processs() {
    let hog = analysis::known(&result("hog.log"), "hog").unwrap();
    let thief = format!("known_load/{}", hog["pid"]);
    let compute = i32::try_from(known("compute")["pid"]).unwrap();

    let report = tasks::report(&trace(), Window::ALL).unwrap();

    let task = report.vms[0].tasks.iter().find(|task| task.tid == compute).unwrap();
    let stolen = task.parts.iter().filter(|part| part.state == "stolen");
    let by_hog: u64 = stolen.filter(|part| part.detail.as_deref() == Some(&thief)).map(|part| part.ns).sum();
    println!("{} ns of the hog's CPU time, {by_hog} ns stolen by it\n{:#?}", hog["cpu_ns"], task.parts);
    assert!(percent_off(by_hog, hog["cpu_ns"]) <= 5, "{by_hog} ns, not {}", hog["cpu_ns"]);
}

#[test]
fn vcpu_is_not_allowed_to_run_for_as_long_as_its_control_group_throttles_it() {
    let throttled_ns = analysis::known(&result("limited.log"), "limited").unwrap()["throttled_us"] * 1000;

    let report = vcpus::report(&trace(), Window::ALL).unwrap();

    let of_vcpu = report.vms[0].vcpus.iter().find(|vcpu| vcpu.vcpu == 1).unwrap();
    let not_allowed: u64 = of_vcpu.parts.iter().filter(|part| part.state == "not_allowed").map(|part| part.ns).sum();
    println!("{throttled_ns} ns throttled, {not_allowed} ns not allowed\n{of_vcpu:#?}");
    assert!(not_allowed.abs_diff(throttled_ns) * 100 <= throttled_ns, "{not_allowed} ns, not {throttled_ns}");
}

#[test]
fn task_that_gives_itself_a_name_has_the_row_of_that_name() {
    let renames = known("renames")["count"];

    let report = tasks::report(&trace(), Window::ALL).unwrap();

    let is_renamed = |task: &&TaskReport| task.comm == format!("r{}", task.tid);
    assert_eq!(report.vms[0].tasks.iter().filter(is_renamed).count() as u64, renames);
}

/// The critical paths of the task `tid`: of its `worst` longest waits, or of all its time.
fn critical_paths(tid: u64, worst: Option<usize>) -> Vec<CriticalPath> {
    let options = CriticalPathOptions { worst, ..CriticalPathOptions::of(format!("*/{tid}").parse().unwrap()) };
    let (answer, _) = critical_path::critical_paths(&trace(), &options).unwrap();
    println!("{}", answer.paths[0].summary);
    answer.paths
}

#[test]
fn thief_of_a_task_is_named_by_why_with_its_share() {
    let hog = analysis::known(&result("hog.log"), "hog").unwrap();
    let thief = format!("known_load/{}", hog["pid"]);

    let path = critical_paths(known("compute")["pid"], None).remove(0);

    let by_hog = path.shares.iter().filter(|share| share.cause == Cause::Preempted);
    let by_hog: u64 = by_hog.filter(|share| share.detail.as_ref() == Some(&thief)).map(|share| share.ns).sum();
    assert!(percent_off(by_hog, hog["cpu_ns"]) <= 5, "{by_hog} ns, not {}", hog["cpu_ns"]);
    assert!(path.summary.contains(&format!("the host ran {thief} in place of vCPU 1")), "{}", path.summary);
}

#[test]
fn why_follows_the_wait_for_a_convoys_lock_to_those_who_sleep_while_they_hold_it() {
    let pid = known("convoy")["pid"];
    let report = tasks::report(&trace(), Window::ALL).unwrap();
    let is_of_convoy =
        |tid: i32| u64::try_from(tid).is_ok_and(|tid| (pid + 1..=pid + analysis::CONVOY_THREADS).contains(&tid));
    let waiter = report.vms[0].tasks.iter().filter(|task| is_of_convoy(task.tid)).max_by_key(|task| task.times.lock);
    let waiter = waiter.unwrap();

    let paths = critical_paths(waiter.tid.try_into().unwrap(), Some(5));

    let is_holder = |task: &str| task.starts_with("known_load/") && task != format!("known_load/{}", waiter.tid);
    let waits = || paths.iter().flat_map(|path| &path.steps).filter(|step| step.cause == Cause::Blocked);
    assert!(waits().all(|wait| wait.woken_by.as_deref().is_some_and(is_holder)), "{paths:#?}");
    let shares = paths.iter().flat_map(|path| &path.shares);
    let asleep = shares.filter(|share| share.cause == Cause::Sleep && is_holder(&share.task)).map(|share| share.ticks);
    let (asleep, waited): (u64, u64) = (asleep.sum(), waits().map(|wait| wait.ticks).sum());
    println!("{asleep} of {waited} ticks of waiting the holders slept");
    assert!(asleep * 2 > waited);
}

#[test]
fn why_finds_the_slow_disk_behind_the_longest_waits_of_who_reads() {
    // Before it reads it has waited for its CPU, too, when it was made.
    let of_disk = |path: &CriticalPath| path.shares.iter().any(|share| share.cause == Cause::Request);
    let mut paths = critical_paths(known("reads")["pid"], Some(5));
    paths.retain(of_disk);
    assert!(paths.len() >= 4, "{paths:#?}");
    for path in paths {
        let longest = &path.shares[0];
        let is_host = longest.detail.as_ref().is_some_and(|detail| detail.contains("VMM and host I/O"));
        assert!(longest.cause == Cause::Request && is_host, "{}", path.summary);
        assert!(longest.ticks * 2 > path.wall_ticks, "{}", path.summary);
    }
}

#[test]
fn listed_task_of_a_record_is_the_one_that_its_fields_name() {
    let events = ["sched:sched_process_fork", "sched:sched_process_exit", "block:block_rq_issue"];
    let options = EventsOptions {
        layers: vec![LayerKind::GuestKernel],
        events: events.map(String::from).to_vec(),
        json: true,
        ..EventsOptions::default()
    };
    let mut listing = Vec::new();

    let summary = trace_merge::events::list(&trace(), &options, &mut listing).unwrap();

    assert!(summary.events > 20, "{summary:?}");
    for line in String::from_utf8(listing).unwrap().lines() {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        let (task, fields) = (&event["task"], &event["fields"]);
        let comm = ["parent_comm", "comm"].into_iter().find_map(|field| fields.get(field)).unwrap();
        assert_eq!(&task["comm"], comm, "{line}");
        let tid = ["parent_pid", "pid"].into_iter().find_map(|field| fields.get(field));
        assert!(tid.is_none_or(|tid| *tid == task["tid"]), "{line}");
    }
}

#[test]
fn parts_of_every_tasks_time_add_up_to_the_tick() {
    let report = tasks::report(&trace(), Window::ALL).unwrap();

    let tasks = &report.vms[0].tasks;
    assert!(tasks.len() > 20, "{} tasks", tasks.len());
    for task in tasks {
        assert_eq!(task.times.parts().iter().sum::<u64>(), task.wall_ticks, "{}/{}", task.comm, task.tid);
        assert_eq!(task.parts.iter().map(|part| part.ticks).sum::<u64>(), task.wall_ticks);
    }
}

#[test]
fn parts_of_every_vcpus_time_add_up_to_the_tick() {
    let report = vcpus::report(&trace(), Window::ALL).unwrap();

    assert_eq!(report.vms[0].vcpus.len(), 2);
    for vcpu in &report.vms[0].vcpus {
        assert_eq!(vcpu.parts.iter().map(|part| part.ticks).sum::<u64>(), vcpu.wall_ticks, "vCPU {}", vcpu.vcpu);
    }
}

#[test]
fn lock_of_a_convoy_is_named() {
    let convoy = known("convoy");
    let lock = convoy["address"]..convoy["address"] + convoy["size"];

    let report = locks::report(&trace(), Window::ALL).unwrap();

    let mut waits: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for futex in report.guests[0].futexes.iter().filter(|futex| futex.comm == "known_load") {
        let (count, ns) = waits.entry(futex.address).or_default();
        *count += futex.waits.count;
        *ns += futex.waits.total_ns;
    }
    println!("{convoy:?}\n{waits:#x?}");
    let (address, (count, ns)) = waits.into_iter().max_by_key(|(_, (count, _))| *count).unwrap();
    assert!(lock.contains(&address), "{address:#x} is not in {lock:#x?}");
    assert!(percent_off(ns, convoy["waited_ns"]) <= 10, "{ns} ns, not {}", convoy["waited_ns"]);
    assert!(count >= convoy["locks"] / 4, "{count} waits");
}

/// Time in which the guest's scheduler has it that tasks ran, ns.
fn on_cpu(trace: &Trace, times: &Times) -> u64 {
    let ticks = times.running + times.interrupted + times.stolen + times.exits + times.vmm;
    trace.clock().ticks_to_ns(ticks)
}

#[test]
fn running_time_of_cgroups_is_that_of_the_loads_in_them() {
    let trace = trace();
    let burned = known("burn");

    let report = report::make(&trace, Window::ALL, CgroupTimes::new(Window::ALL)).unwrap();

    let of = |path: &str| {
        let cgroup = report.vms[0].cgroups.iter().find(|cgroup| cgroup.path.as_deref() == Some(path)).unwrap();
        println!("{path}: {cgroup:?}");
        on_cpu(&trace, &cgroup.times)
    };
    let [computing, contained] = analysis::CGROUPS.map(of);
    assert!(burned["cpu_ns"] >= analysis::BURN_MS * 1_000_000);
    let report = tasks::report(&trace, Window::ALL).unwrap();
    let time_of = |is_meant: &dyn Fn(&TaskReport) -> bool| -> u64 {
        report.vms[0].tasks.iter().filter(|task| is_meant(task)).map(|task| on_cpu(&trace, &task.times)).sum()
    };
    let [compute, burn] = [known("compute"), burned.clone()].map(|load| {
        let pid = i32::try_from(load["pid"]).unwrap();
        time_of(&|task| task.tid == pid && task.comm == "known_load")
    });
    // The load has looked at its clock before it ended.
    assert!(percent_off(burn, burned["cpu_ns"]) <= 10, "{burn} ns, not {}", burned["cpu_ns"]);
    assert!(percent_off(computing, compute) <= 2, "{computing} ns, not {compute}");
    // Beside the load there are the shell that became its parent, and that parent.
    let all = time_of(&|task| task.cgroup.as_deref() == Some(analysis::CGROUPS[1]));
    assert!(contained > burn && percent_off(contained, all) <= 2, "{contained} ns, not {all} with {burn}");
    assert!(report.vms[0].tasks.iter().all(|task| task.tid != 1 || task.cgroup.as_deref() == Some("/")));
}

#[test]
fn task_in_a_pid_namespace_is_named_as_it_is_there_too() {
    let burned = known("burn");

    let report = tasks::report(&trace(), Window::ALL).unwrap();

    let pid = i32::try_from(burned["pid"]).unwrap();
    let tasks: Vec<_> = report.vms[0].tasks.iter().filter(|task| task.tid == pid).collect();
    assert!(burned["own"] == 1 && pid != 1 && !tasks.is_empty(), "{burned:?}");
    for task in tasks {
        let own = task.own.unwrap();
        assert_eq!((own.tid, own.pid, u64::from(own.namespace)), (1, 1, burned["namespace"]));
        assert_eq!(task.cgroup.as_deref(), Some(analysis::CGROUPS[1]));
    }
    let others = report.vms[0].tasks.iter().filter(|task| task.tid != pid);
    assert!(others.into_iter().all(|task| task.own.is_none()));
}

#[test]
fn session_that_begins_late_knows_the_tasks_that_were_there_before() {
    let late = Trace::open(&result("late.trace")).unwrap();
    let compute = i32::try_from(known("compute")["pid"]).unwrap();

    let report = tasks::report(&late, Window::ALL).unwrap();

    let tasks = &report.vms[0].tasks;
    let compute: Vec<_> = tasks.iter().filter(|task| task.tid == compute).collect();
    assert!(!compute.is_empty() && compute.iter().all(|task| task.cgroup.as_deref() == Some(analysis::CGROUPS[0])));
    let unknown: Vec<_> = tasks.iter().filter(|task| task.cgroup.is_none()).map(|task| &task.comm).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn delay_of_a_slow_disk_is_in_the_step_of_the_host_and_in_no_other() {
    const DELAY_NS: u64 = analysis::DISK_DELAY_MS * 1_000_000;
    let reads = known("reads");

    let report = flows::report(&trace(), Window::ALL).unwrap();

    let flows = &report.vms[0];
    println!("{reads:?}\n{:#?}\n{:#?}", flows.total, flows.steps);
    let is_host = |step: &&StepTimes| step.to == Milestone::Finished;
    let (host, others): (Vec<&StepTimes>, Vec<&StepTimes>) = flows.steps.iter().partition(is_host);
    assert_eq!(host.len(), 1);
    assert!(host[0].times.count >= analysis::READS, "{} requests", host[0].times.count);
    assert!(host[0].times.p50_ns >= DELAY_NS && host[0].times.p50_ns < 2 * DELAY_NS, "{:?}", host[0].times);
    assert!(others.iter().all(|step| step.times.p50_ns < DELAY_NS / 2), "{others:#?}");
    for flow in &flows.slowest {
        assert_eq!(flow.steps.iter().map(|step| step.ticks).sum::<u64>(), flow.ticks);
    }
    // as the program saw it: what the requests took, and the guest's own time around them
    let mean = reads["total_ns"] / reads["count"];
    assert!(flows.total.p50_ns <= mean, "{} ns, {mean} ns for the program", flows.total.p50_ns);
}

#[test]
fn system_calls_of_a_known_mix_are_counted_exactly() {
    let mut mix = known("syscalls");
    let pid = mix.remove("pid").unwrap();

    let report = syscalls::report(&trace(), Window::ALL).unwrap();

    let processes = &report.guests[0].processes;
    let process = processes.iter().find(|process| u64::try_from(process.pid) == Ok(pid)).unwrap();
    let counted: BTreeMap<String, u64> = process
        .calls
        .syscalls
        .iter()
        .filter(|row| mix.contains_key(&row.name))
        .map(|row| (row.name.clone(), row.count + row.unfinished))
        .collect();
    assert_eq!(counted, mix);
    // What number 20 is called in x86-64's own table.
    assert!(mix.contains_key("i386:getpid") && process.calls.syscalls.iter().all(|row| row.name != "writev"));
}

#[test]
fn trace_with_a_busy_host_passes_the_check() {
    let checked = check::check(&trace(), 10).unwrap();

    assert!(checked.passed(), "{:?}", checked.violations);
}

#[test]
fn threads_of_the_machine_and_the_kernels_workers_for_it_are_traced() {
    let threads = fs::read_to_string(result("threads")).unwrap();

    for name in ["vcpu0", "vcpu1", "strata", "kvm-nx-lpage-recovery-"] {
        assert!(threads.lines().any(|thread| thread.starts_with(name)), "no {name} among\n{threads}");
    }
}
