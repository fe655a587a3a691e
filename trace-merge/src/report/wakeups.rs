//! How long tasks of guests took from being woken until they ran, and what happened meanwhile.

use super::distribution::Distribution;
use super::table::{Align, Table};
use super::tasks::warnings;
use super::{Report, ReportError, Window, duration, harmless, moment, state_names};
use crate::clock::{Clock, NS_PER_SECOND};
use crate::reader::Trace;
use crate::state::guest::{Guest, GuestCpuState, TaskState};
use crate::state::history::Interval;
use crate::state::host::Host;
use crate::state::vcpus::VcpuState;
use crate::state::{Model, VmModel};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// The wakeups in all guests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Wakeups {
    /// The VMs whose guest's kernel was recorded.
    pub vms: Vec<VmWakeups>,
}

/// The wakeups in a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VmWakeups {
    /// Name of the VM.
    pub vm: String,
    /// What is told less than it could be, and why.
    pub warnings: Vec<String>,
    /// Time from being woken until running.
    pub latency: Distribution,
    /// The same as a histogram: how many took less than this, and not less than half of it.
    pub histogram: Vec<Bucket>,
    /// By name of the task, the one with the longest first.
    pub tasks: Vec<TaskWakeups>,
    /// The ten that took longest.
    pub worst: Vec<Wakeup>,
}

/// A class of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bucket {
    /// A power of two, ns.
    pub below_ns: u64,
    /// Number of wakeups.
    pub count: u64,
}

/// The wakeups of the tasks of one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TaskWakeups {
    /// Name.
    pub comm: String,
    /// Time from being woken until running.
    pub latency: Distribution,
}

/// A wakeup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Wakeup {
    /// Thread id.
    pub tid: i32,
    /// Name of the task.
    pub comm: String,
    /// When it was woken, ticks.
    pub ticks: u64,
    /// The same as seconds since the first record.
    pub seconds: String,
    /// The CPU that it ran on.
    pub cpu: u32,
    /// Time until it ran, ns.
    pub latency_ns: u64,
    /// What its CPU did meanwhile, in order.
    pub meanwhile: Vec<Meanwhile>,
}

/// What a guest's CPU did while a task waited for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Meanwhile {
    /// What, in words.
    pub what: String,
    /// For how long, ns.
    pub ns: u64,
}

/// Number of the wakeups that are shown in full.
const WORST: usize = 10;

/// Reports on the wakeups in `trace` of tasks that ran before the window's end.
///
/// # Errors
/// When no guest's kernel was recorded.
pub fn report(trace: &Trace, window: Window) -> Result<Wakeups, ReportError> {
    let model = Model::of(trace, window.end);
    let start = trace.start().unwrap_or(0);
    let vms = model.vms.iter().filter_map(|vm| {
        let window = vm.guest.span?.intersection(&window)?;
        Some(of_vm(vm, model.hosts.get(vm.host), window, trace.clock(), start))
    });
    let vms: Vec<VmWakeups> = vms.collect();
    if vms.is_empty() {
        let missing = "no guest-kernel record in the window; record with --agent, and see strata report".into();
        return Err(ReportError::Nothing { missing });
    }
    Ok(Wakeups { vms })
}

/// A wakeup: the task, its wait, and its CPU.
#[derive(Clone, Copy)]
struct Wait {
    task: usize,
    span: Window,
    cpu: u32,
}

/// The wakeups of `guest` that begin in `window`, and whose task ran before its end.
fn waits(guest: &Guest, window: Window) -> Vec<Wait> {
    let mut waits = Vec::new();
    for (task, description) in guest.tasks.iter().enumerate() {
        let mut woken: Option<u64> = None;
        for interval in description.state.over(window) {
            match interval.state {
                // Being moved to another CPU does not end the wait.
                TaskState::Runnable { woken: true, .. } => {
                    let began = description.state.begins_at(interval.begin);
                    woken = woken.or(Some(interval.begin).filter(|_| began));
                }
                TaskState::Running { cpu, .. } => {
                    if let Some(begin) = woken.take() {
                        waits.push(Wait { task, span: Window { begin, end: interval.begin }, cpu });
                    }
                }
                _ => woken = None,
            }
        }
    }
    waits
}

fn of_vm(vm: &VmModel, host: Option<&Host>, window: Window, clock: &Clock, start: u64) -> VmWakeups {
    let mut waits = waits(&vm.guest, window);
    let latency = Distribution::of(waits.iter().map(|wait| wait.span.length()).collect(), clock);
    let mut histogram: BTreeMap<u64, u64> = BTreeMap::new();
    let mut by_name: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for wait in &waits {
        let ns = clock.ticks_to_ns(wait.span.length());
        let below = ns.saturating_add(1).checked_next_power_of_two().unwrap_or(u64::MAX);
        *histogram.entry(below).or_default() += 1;
        let name = vm.guest.tasks.get(wait.task).map_or_else(String::new, |task| task.name());
        by_name.entry(name).or_default().push(wait.span.length());
    }
    waits.sort_by_key(|wait| (Reverse(wait.span.length()), wait.span.begin));
    let worst = waits.iter().take(WORST).filter_map(|wait| {
        let task = vm.guest.tasks.get(wait.task)?;
        Some(Wakeup {
            tid: task.tid,
            comm: task.name(),
            ticks: wait.span.begin,
            seconds: moment(clock, start, wait.span.begin),
            cpu: wait.cpu,
            latency_ns: clock.ticks_to_ns(wait.span.length()),
            meanwhile: meanwhile(vm, host, wait, clock),
        })
    });
    let worst = worst.collect();
    let of_name = |(comm, times)| TaskWakeups { comm, latency: Distribution::of(times, clock) };
    let mut tasks: Vec<TaskWakeups> = by_name.into_iter().map(of_name).collect();
    tasks.sort_by_key(|task| Reverse((task.latency.max_ns, task.latency.count)));
    let histogram = histogram.into_iter().map(|(below_ns, count)| Bucket { below_ns, count }).collect();
    VmWakeups { vm: vm.name.clone(), warnings: warnings(vm), latency, histogram, tasks, worst }
}

/// What the CPU did that the task of `wait` waited for.
fn meanwhile(vm: &VmModel, host: Option<&Host>, wait: &Wait, clock: &Clock) -> Vec<Meanwhile> {
    let mut pieces: Vec<(String, u64)> = Vec::new();
    let mut add = |what: String, ticks: u64| match pieces.last_mut() {
        Some((last, sum)) if *last == what => *sum += ticks,
        _ => pieces.push((what, ticks)),
    };
    match vm.vcpus.get(&wait.cpu) {
        None => add("not known".into(), wait.span.length()),
        Some(vcpu) => {
            for piece in vcpu.state.over(wait.span) {
                match out_of_guest(piece.state, host) {
                    Some(what) => add(what, piece.length()),
                    None => in_guest(&vm.guest, wait.cpu, &piece, &mut add),
                }
            }
        }
    }
    pieces.into_iter().map(|(what, ticks)| Meanwhile { what, ns: clock.ticks_to_ns(ticks) }).collect()
}

/// What a vCPU does that is not in the guest; `None` when it is.
fn out_of_guest(state: VcpuState, host: Option<&Host>) -> Option<String> {
    Some(match state {
        VcpuState::Guest | VcpuState::KvmRun => return None,
        VcpuState::Unknown => "vCPU: not known".into(),
        VcpuState::Kvm(reason) => format!("KVM handled {}", state_names::reason(reason)),
        VcpuState::Vmm(reason) => format!("the VMM handled {}", state_names::reason(reason)),
        VcpuState::Stolen { by, woken } => {
            let why = if woken { "woken, but the host ran" } else { "the host ran" };
            format!("{why} {}", harmless(&state_names::thief(host, by)))
        }
        VcpuState::Halted => "vCPU halted".into(),
        VcpuState::BlockedInKvm(reason) => format!("KVM waited in {}", state_names::reason(reason)),
        VcpuState::BlockedInVmm(reason) => format!("the VMM waited in {}", state_names::reason(reason)),
        VcpuState::Ended => "vCPU ended".into(),
    })
}

/// What the guest ran on `cpu` in `piece`.
fn in_guest(guest: &Guest, cpu: u32, piece: &Interval<VcpuState>, add: &mut impl FnMut(String, u64)) {
    let Some(cpu) = guest.cpus.get(&cpu) else { return add("guest: not known".into(), piece.length()) };
    for interrupted in cpu.interrupt.over(piece.window()) {
        if let Some(interrupt) = interrupted.state {
            add(format!("guest: {}", state_names::interrupt(interrupt)), interrupted.length());
            continue;
        }
        for runs in cpu.current.over(interrupted.window()) {
            let what = match runs.state {
                GuestCpuState::Unknown => "guest: not known".into(),
                GuestCpuState::Idle => "guest: idle, had yet to switch".into(),
                GuestCpuState::Running(index) => match guest.tasks.get(index) {
                    Some(task) => format!("guest: {}", state_names::task(task)),
                    None => "guest: not known".into(),
                },
            };
            add(what, runs.length());
        }
    }
}

/// Rows of the table of names.
const SHOWN: usize = 20;
/// Characters of the longest bar of the histogram.
const BAR: u64 = 40;

impl Report for Wakeups {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for vm in &self.vms {
            vm.write_text(out)?;
        }
        Ok(())
    }
}

impl VmWakeups {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Distribution { count, p50_ns, p99_ns, max_ns, .. } = self.latency;
        let [p50, p99, max] = [p50_ns, p99_ns, max_ns].map(duration);
        writeln!(out, "{}: {count} wakeups until the task ran: p50 {p50}, p99 {p99}, longest {max}", self.vm)?;
        for warning in &self.warnings {
            writeln!(out, "WARNING: {warning}")?;
        }
        self.write_histogram(out)?;
        self.write_tasks(out)?;
        for wakeup in &self.worst {
            let Wakeup { tid, comm, seconds, cpu, latency_ns, .. } = wakeup;
            let (comm, latency) = (harmless(comm), duration(*latency_ns));
            writeln!(out, "\n{latency}: {comm}/{tid}, woken at {seconds}, ran on CPU {cpu}; meanwhile")?;
            for Meanwhile { what, ns } in wakeup.shown() {
                writeln!(out, "  {:>12}  {what}", duration(ns))?;
            }
        }
        Ok(())
    }

    fn write_histogram(&self, out: &mut dyn Write) -> io::Result<()> {
        let most = self.histogram.iter().map(|bucket| bucket.count).max().unwrap_or(0).max(1);
        for bucket in &self.histogram {
            let width = (u128::from(bucket.count) * u128::from(BAR)).div_ceil(u128::from(most));
            let bar = "#".repeat(usize::try_from(width).unwrap_or(0));
            writeln!(out, "  < {:>10}  {:>8}  {bar}", power_of_two(bucket.below_ns), bucket.count)?;
        }
        Ok(())
    }

    fn write_tasks(&self, out: &mut dyn Write) -> io::Result<()> {
        let right = Align::Right;
        let headings = ["count", "p50", "p99", "longest"].map(|heading| (heading, right));
        let mut columns = vec![("task", Align::Left)];
        columns.extend(headings);
        let mut table = Table::new(&columns);
        for task in self.tasks.iter().take(SHOWN) {
            let Distribution { count, p50_ns, p99_ns, max_ns, .. } = task.latency;
            let times = [p50_ns, p99_ns, max_ns].map(duration);
            table.row([harmless(&task.comm), count.to_string()].into_iter().chain(times));
        }
        writeln!(out)?;
        table.write(out)?;
        match self.tasks.len().checked_sub(SHOWN) {
            Some(more @ 1..) => writeln!(out, "… and {more} more names"),
            _ => Ok(()),
        }
    }
}

/// Lines of what happened during one wakeup.
const LINES: usize = 12;

impl Wakeup {
    /// What happened meanwhile; in order, but for what is too much for a page: then the longest, each thing in one.
    fn shown(&self) -> Vec<Meanwhile> {
        if self.meanwhile.len() <= LINES {
            return self.meanwhile.clone();
        }
        let mut sums: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for Meanwhile { what, ns } in &self.meanwhile {
            let (sum, times) = sums.entry(what).or_default();
            (*sum, *times) = (*sum + ns, *times + 1);
        }
        let summed = |(what, (ns, times)): (&str, (u64, u64))| {
            let what = if times > 1 { format!("{what} ({times} times)") } else { what.into() };
            Meanwhile { what, ns }
        };
        let mut sums: Vec<Meanwhile> = sums.into_iter().map(summed).collect();
        sums.sort_by_key(|meanwhile| Reverse(meanwhile.ns));
        sums.truncate(LINES);
        sums
    }
}

/// A power of two in ns, in the unit that fits.
fn power_of_two(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{}.{} µs", ns / 1_000, ns % 1_000 / 100),
        1_000_000..NS_PER_SECOND => format!("{}.{} ms", ns / 1_000_000, ns % 1_000_000 / 100_000),
        _ => format!("{}.{} s", ns / NS_PER_SECOND, ns % NS_PER_SECOND / 100_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::scenario;

    #[test]
    fn wait_is_explained_by_what_its_cpu_did() {
        let (_dir, trace) = scenario::preempted_in_an_exit().open();

        let report = report(&trace, Window::ALL).unwrap();

        let vm = &report.vms[0];
        assert_eq!((vm.latency.count, vm.latency.max_ns), (1, 4_000));
        let worst = &vm.worst[0];
        assert_eq!((worst.comm.as_str(), worst.cpu, worst.seconds.as_str()), ("late", 0, "0.000025500"));
        let meanwhile: Vec<(&str, u64)> =
            worst.meanwhile.iter().map(|Meanwhile { what, ns }| (what.as_str(), *ns)).collect();
        assert_eq!(meanwhile, [("guest: app/10", 500), ("KVM handled ioio", 1_500), ("guest: app/10", 2_000)]);
        assert_eq!(vm.histogram, [Bucket { below_ns: 4096, count: 1 }]);
    }

    #[test]
    fn wakeup_before_the_window_is_not_counted() {
        let (_dir, trace) = scenario::preempted_in_an_exit().open();

        let count = |begin, end| report(&trace, Window { begin, end }).unwrap().vms[0].latency.count;

        assert_eq!((count(0, 67_000), count(60_000, 69_000), count(60_001, 69_000)), (0, 1, 0));
    }

    #[test]
    fn text_has_the_worst_in_full() {
        let (_dir, trace) = scenario::preempted_in_an_exit().open();
        let mut out = Vec::new();

        report(&trace, Window::ALL).unwrap().write_text(&mut out).unwrap();

        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("4.000 µs: late/11, woken at 0.000025500, ran on CPU 0; meanwhile"), "{text}");
        assert!(text.contains("      1.500 µs  KVM handled ioio\n"), "{text}");
    }

    #[test]
    fn long_story_is_summed_up() {
        let meanwhile = (0..40).map(|number| Meanwhile { what: format!("task {}", number % 2), ns: number }).collect();
        let wakeup =
            Wakeup { tid: 1, comm: "a".into(), ticks: 0, seconds: "0".into(), cpu: 0, latency_ns: 780, meanwhile };

        let shown: Vec<(String, u64)> = wakeup.shown().into_iter().map(|Meanwhile { what, ns }| (what, ns)).collect();

        assert_eq!(shown, [("task 1 (20 times)".into(), 400), ("task 0 (20 times)".into(), 380)]);
    }
}
