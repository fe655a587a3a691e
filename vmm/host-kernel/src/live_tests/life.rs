//! Which threads are traced, several machines at once, and what is left when they end.

use super::*;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::error::Error;
use std::process::{Child, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

#[test]
fn threads_are_traced_from_when_they_are_added() {
    let Some(_tracefs) = live_tracefs("thread filter") else {
        return;
    };
    // Started before the tracer: what is started after it is followed.
    let (filters, filter) = mpsc::channel::<ThreadFilter>();
    let thread = thread::spawn(move || {
        let filter = filter.recv().unwrap();
        make_system_calls(1000);
        let stranger = clock();
        filter.add(thread_id()).unwrap();
        make_system_calls(1000);
        (stranger, thread_id())
    });
    let mut tracer = HostTracer::start(&config(&["raw_syscalls:sys_enter"], 1024)).unwrap();
    filters.send(tracer.thread_filter()).unwrap();
    let (stranger, added) = thread.join().unwrap();

    let mut before = 0;
    let mut after = 0;
    tracer
        .finish(&mut |item: HostItem<'_>| {
            if let HostItem::Record(record) = item {
                let is_added = u32::try_from(record.common_pid) == Ok(added);
                before += u32::from(is_added && record.time < stranger);
                after += u32::from(is_added && record.time >= stranger);
            }
        })
        .unwrap();

    assert_eq!(before, 0);
    assert!(after >= 1000, "{after}");
}

#[test]
fn adding_a_thread_after_the_end_does_nothing() {
    let Some(_tracefs) = live_tracefs("late thread") else {
        return;
    };
    let tracer = HostTracer::start(&config(&["sched:sched_switch"], 8)).unwrap();
    let filter = tracer.thread_filter();
    drop(tracer);

    filter.add(thread_id()).unwrap();
}

#[test]
fn instance_is_gone_after_the_drop() {
    let Some(_tracefs) = live_tracefs("drop") else {
        return;
    };
    let tracer = HostTracer::start(&config(&["sched:*"], 8)).unwrap();
    let path = instance_path(&tracer);
    assert!(path.exists());

    drop(tracer);

    // A process that another test is just starting may have it open for a moment.
    assert!(wait_until_gone(&path));
}

/// Set for the child process that traces in a PID namespace.
const CONTAINED_VARIABLE: &str = "STRATA_TEST_TRACE_CONTAINED";

#[test]
fn tracing_is_refused_in_a_pid_namespace() {
    let this = "live_tests::life::tracing_is_refused_in_a_pid_namespace";
    if std::env::var_os(CONTAINED_VARIABLE).is_some() {
        let error = HostTracer::start(&config(&["sched:sched_switch"], 8)).unwrap_err();
        println!("\n{error}: {}", error.source().unwrap());
        return;
    }
    let Some(_) = live_tracefs(this) else { return };
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc"]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", this, "--nocapture"]).env(CONTAINED_VARIABLE, "");

    let output = command.output().unwrap();

    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    assert!(printed.contains("--pid=host") && printed.contains("PID namespace"), "{printed}");
}

/// Starts a process that traces and then aborts.
fn child_that_aborts() -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "live_tests::life::child_that_aborts_while_tracing", "--nocapture"])
        .env(ABORT_VARIABLE, "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// The instance that a process had that has aborted.
fn instance_of(child: Output) -> String {
    let output = String::from_utf8(child.stdout).unwrap();
    assert!(!child.status.success());
    output.lines().find_map(|line| line.strip_prefix("INSTANCE ")).unwrap().to_owned()
}

#[test]
fn instance_is_gone_after_an_abort() {
    let Some(_tracefs) = live_tracefs("abort") else {
        return;
    };

    let path = instance_of(child_that_aborts().wait_with_output().unwrap());

    assert!(wait_until_gone(Path::new(&path)), "{path} is still there");
}

/// Does nothing unless a test above runs it.
#[test]
fn child_that_aborts_while_tracing() {
    if std::env::var_os(ABORT_VARIABLE).is_none() {
        return;
    }
    let tracer = HostTracer::start(&config(&["sched:*"], 8)).unwrap();
    println!("\nINSTANCE {}", instance_path(&tracer).display());
    std::process::abort();
}

#[test]
fn leftovers_of_dead_processes_are_removed_and_others_are_kept() {
    let Some(tracefs) = live_tracefs("leftovers") else {
        return;
    };
    // No process has such a number: Linux ends at 2^22. The last one keeps two runs of this test apart.
    let dead = tracefs.root().join(format!("instances/strata-4294967294-1-{}", std::process::id()));
    let alive = Instance::create(&tracefs, "x86-tsc", 8, &[thread_id()]).unwrap();
    fs::create_dir(&dead).unwrap();
    // This process's number, but another start.
    let reused = format!("strata-{}-1", std::process::id());
    let reused_path = tracefs.root().join("instances").join(&reused);
    fs::create_dir(&reused_path).unwrap();

    // Another test that starts may be the one that removes them, and be at it still.
    tracefs.remove_leftovers().unwrap();

    assert!(wait_until_gone(&dead) && wait_until_gone(&reused_path));
    assert!(alive.path("").exists());
}

/// Has `command` run while tests look at what it disturbs, and ends it then.
struct Disturbance(std::process::Child);

impl Disturbance {
    /// A process that computes on `cpu`.
    fn on_cpu(cpu: usize) -> Self {
        let child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let mut cpus = CpuSet::new();
        cpus.set(cpu);
        sched_setaffinity(Pid::from_raw(i32::try_from(child.id()).unwrap()), &cpus).unwrap();
        Self(child)
    }

    fn id(&self) -> u64 {
        u64::from(self.0.id())
    }

    /// How long it has run.
    fn run_time(&self) -> Duration {
        let times = fs::read_to_string(format!("/proc/{}/schedstat", self.id())).unwrap();
        Duration::from_nanos(times.split(' ').next().unwrap().parse().unwrap())
    }
}

impl Drop for Disturbance {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn thread_that_a_traced_thread_starts_is_traced_from_its_start() {
    let Some(_tracefs) = live_tracefs("followed thread") else {
        return;
    };
    let mut tracer = HostTracer::start(&config(&["raw_syscalls:sys_enter"], 1024)).unwrap();
    let child = thread::spawn(|| {
        make_system_calls(1000);
        thread_id()
    });
    let child = child.join().unwrap();

    let mut calls = 0;
    let _ = tracer
        .finish(&mut |item: HostItem<'_>| {
            let HostItem::Record(record) = item else { panic!("{item:?}") };
            calls += u32::from(record.common_pid.cast_unsigned() == child);
        })
        .unwrap();

    assert!(calls >= 1000, "{calls}");
}

#[test]
fn thread_that_polls_can_be_left_out() {
    let Some(_tracefs) = live_tracefs("left out") else {
        return;
    };
    let mut tracer = HostTracer::start(&config(&["raw_syscalls:sys_enter"], 1024)).unwrap();
    make_system_calls(1000);
    tracer.leave_out_this_thread().unwrap();
    let left_out = clock();
    make_system_calls(1000);

    let (mut before, mut after) = (0, 0);
    let _ = tracer
        .finish(&mut |item: HostItem<'_>| {
            let HostItem::Record(record) = item else { panic!("{item:?}") };
            before += u32::from(record.time < left_out);
            after += u32::from(record.time >= left_out);
        })
        .unwrap();

    assert!(before >= 1000, "{before}");
    assert_eq!(after, 0);
    assert!(tracer.traced_threads().unwrap().is_empty());
}

#[test]
fn tracer_that_takes_no_more_threads_follows_those_that_the_known_ones_start() {
    let Some(_tracefs) = live_tracefs("no more threads") else {
        return;
    };
    let config = HostTraceConfig { takes_more: false, ..config(&["raw_syscalls:sys_enter"], 1024) };
    let tracer = HostTracer::start(&config).unwrap();
    std::thread::scope(|scope| scope.spawn(|| tracer.leave_out_this_thread()).join().unwrap()).unwrap();

    let (end, ended) = mpsc::channel::<()>();
    let (started, starts) = mpsc::channel();
    let started = std::thread::spawn(move || {
        started.send(thread_id()).unwrap();
        let _ = ended.recv();
    });
    let child = starts.recv().unwrap();
    tracer.thread_filter().add(1).unwrap();
    let traced = tracer.traced_threads().unwrap();
    drop(end);
    started.join().unwrap();

    assert_eq!(traced, [thread_id(), child]);
}

#[test]
fn while_a_thread_is_preempted_every_switch_of_its_cpu_tells_who_ran_instead() {
    let Some(_tracefs) = live_tracefs("preemption") else {
        return;
    };
    const CPU: usize = 0;
    /// Several turns of a process that shares its CPU.
    const TURNS: Duration = Duration::from_millis(50);
    let strangers = [Disturbance::on_cpu(CPU), Disturbance::on_cpu(CPU)];
    let done = AtomicBool::new(false);
    let (ids, id) = mpsc::channel();
    let mut on_cpu = Vec::new();
    let (summary, ours) = thread::scope(|scope| {
        scope.spawn(|| {
            let mut cpus = CpuSet::new();
            cpus.set(CPU);
            sched_setaffinity(None, &cpus).unwrap();
            ids.send(thread_id()).unwrap();
            while !done.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let ours = id.recv().unwrap();
        let config = HostTraceConfig { threads: vec![ours], ..config(&["sched:sched_switch", "sched:sched_w*"], 8192) };
        let mut tracer = HostTracer::start(&config).unwrap();
        let schema = tracer.schemas().iter().find(|schema| schema.name == switches::event()).unwrap().clone();
        let fields = SwitchFields::of(&schema).unwrap();
        let mut sink = |item: HostItem<'_>| {
            let HostItem::Record(record) = item else { panic!("{item:?}") };
            if record.cpu == 0 && record.event_id == schema.id() {
                on_cpu.push(fields.read(0, record.time, record.payload).unwrap());
            }
        };
        let before = strangers.each_ref().map(Disturbance::run_time);
        let have_run = || strangers.iter().zip(before).all(|(stranger, before)| stranger.run_time() > before + TURNS);
        // As long as it takes on a machine that has other things to do.
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end && !have_run() {
            thread::sleep(Duration::from_millis(10));
            tracer.poll(&mut sink).unwrap();
        }
        let summary = tracer.finish(&mut sink).unwrap();
        done.store(true, Ordering::Relaxed);
        (summary, u64::from(ours))
    });

    // from each time our thread left while it could go on, up to its return: who leaves is who came before
    let mut instead = BTreeMap::new();
    let mut waits = 0;
    let mut index = 0;
    while let Some(left) = on_cpu[index..].iter().position(|s| u64::from(s.prev) == ours && s.prev_state & 0xff == 0) {
        let left = index + left;
        let Some(back) = on_cpu[left..].iter().position(|s| u64::from(s.next) == ours) else { break };
        for pair in on_cpu[left..=left + back].windows(2) {
            // Of some threads the kernel never records that they leave (seen of one, on a paravirtual host).
            let leaves = on_cpu.iter().any(|switch| switch.prev == pair[0].next);
            assert!(pair[0].next == pair[1].prev || !leaves, "{pair:?}");
            *instead.entry(u64::from(pair[0].next)).or_insert(0) += pair[1].time - pair[0].time;
        }
        waits += 1;
        index = left + back;
    }
    assert!(waits >= 3, "{waits} waits, {summary:?}");
    assert!(strangers.iter().all(|stranger| instead.contains_key(&stranger.id())), "{instead:?}");
    assert_eq!(summary.read.times_raised, 0);
}

#[test]
fn several_machines_at_once_each_see_their_own_threads() {
    let Some(_tracefs) = live_tracefs("several") else {
        return;
    };
    let begin = std::sync::Barrier::new(3);
    let machine = || {
        let mut tracer = HostTracer::start(&config(&["raw_syscalls:sys_enter"], 1024)).unwrap();
        begin.wait();
        make_system_calls(1000);
        begin.wait();
        let mut threads = BTreeSet::new();
        let _ = tracer
            .finish(&mut |item: HostItem<'_>| {
                // On a busy machine a buffer may overflow, which says nothing about whose records are in it.
                if let HostItem::Record(record) = item {
                    threads.insert(record.common_pid.cast_unsigned());
                }
            })
            .unwrap();
        (instance_path(&tracer), threads, thread_id())
    };
    let machines: Vec<_> = thread::scope(|scope| {
        let machines = [scope.spawn(machine), scope.spawn(machine), scope.spawn(machine)];
        machines.into_iter().map(|machine| machine.join().unwrap()).collect()
    });

    let paths: BTreeSet<_> = machines.iter().map(|(path, ..)| path).collect();
    assert_eq!(paths.len(), 3, "{paths:?}");
    for (path, threads, own) in &machines {
        assert_eq!(threads, &BTreeSet::from([*own]));
        assert!(wait_until_gone(path));
    }
}

#[test]
fn several_processes_at_once_have_their_own_instances_and_leave_none() {
    let Some(_tracefs) = live_tracefs("several processes") else {
        return;
    };
    let children = [0; 3].map(|_| child_that_aborts());

    let paths: BTreeSet<String> = children.map(|child| instance_of(child.wait_with_output().unwrap())).into();

    assert_eq!(paths.len(), 3, "{paths:?}");
    assert!(paths.iter().all(|path| wait_until_gone(Path::new(path))), "{paths:?}");
}
