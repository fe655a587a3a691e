//! Why vCPUs left the guest, and what the time went on until they were in it again.

use super::distribution::Distribution;
use super::table::{Align, Table};
use super::tasks::warnings;
use super::{Report, ReportError, Window, duration, state_names};
use crate::clock::Clock;
use crate::exit_reason::ExitReason;
use crate::reader::Trace;
use crate::state::event::Access;
use crate::state::vcpus::{Location, Vcpu, VcpuState};
use crate::state::{Model, VmModel};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// The exits of all VMs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Exits {
    /// The VMs.
    pub vms: Vec<VmExits>,
}

/// The exits of a VM that began in the window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VmExits {
    /// Name of the VM.
    pub vm: String,
    /// What the times mean less than they could, and why.
    pub warnings: Vec<String>,
    /// Number of exits.
    pub count: u64,
    /// Of these, exits that were not over by the end of the records, or whose end is not known: they have no time.
    pub unfinished: u64,
    /// By reason, the one that took longest first.
    pub reasons: Vec<ReasonExits>,
    /// The accesses to devices in the VMM, the one that took longest first.
    pub accesses: Vec<AccessExits>,
}

/// The exits for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReasonExits {
    /// Name of the reason.
    pub reason: String,
    /// Number of exits.
    pub count: u64,
    /// Time from the exit until the vCPU was in the guest again.
    pub time: Distribution,
    /// Time of all of them in KVM, ns.
    pub kvm_ns: u64,
    /// Time of all of them in the VMM, ns.
    pub vmm_ns: u64,
    /// Time of all of them in which the host ran something else, ns.
    pub stolen_ns: u64,
    /// Time of all of them in which the vCPU was halted, ns.
    pub halted_ns: u64,
    /// Time of all of them in which the thread waited for something else, ns.
    pub blocked_ns: u64,
}

/// The accesses to one place of the VMM's devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AccessExits {
    /// The port, or the page of device memory.
    pub place: String,
    /// Time in the VMM of each exit that made one.
    pub time: Distribution,
}

/// Reports on the exits in `trace`.
///
/// # Errors
/// When no layer tells of exits.
pub fn report(trace: &Trace, window: Window) -> Result<Exits, ReportError> {
    let model = Model::of(trace, u64::MAX);
    let vms = model.vms.iter().map(|vm| of_vm(vm, window, trace.clock()));
    let vms: Vec<VmExits> = vms.filter(|vm| vm.count > 0).collect();
    if vms.is_empty() {
        let missing = "no exit of a vCPU in the window: neither kvm:kvm_exit of the host's kernel nor vmm:vcpu_exit";
        return Err(ReportError::Nothing { missing: missing.into() });
    }
    Ok(Exits { vms })
}

/// An exit.
struct Exit {
    reason: ExitReason,
    span: Window,
    /// Whether it is known when the guest was entered again.
    finished: bool,
}

/// The exits of `vcpu` that begin in `window`.
fn exits(vcpu: &Vcpu, window: Window, kvm_tells: bool) -> Vec<Exit> {
    let mut exits: Vec<Exit> = Vec::new();
    let mut open: Option<Exit> = None;
    // Exits that begin in the window may be over after it.
    for interval in vcpu.location.over(Window { begin: window.begin, end: u64::MAX }) {
        let began = vcpu.location.begins_at(interval.begin);
        let left = match interval.state {
            Location::Kvm { reason: Some(reason), returning: false } if began => Some(reason),
            Location::Vmm { reason: Some(reason) } if began && !kvm_tells => Some(reason),
            _ => None,
        };
        let entered = matches!(interval.state, Location::Guest | Location::KvmRun);
        let lost = interval.state == Location::Unknown;
        if (left.is_some() || entered || lost)
            && let Some(exit) = open.take()
        {
            exits.push(Exit { span: Window { end: interval.begin, ..exit.span }, finished: !lost, ..exit });
        }
        let within = interval.begin < window.end;
        if !within && open.is_none() {
            break;
        }
        if let Some(reason) = left.filter(|_| within) {
            open = Some(Exit { reason, span: interval.window(), finished: false });
        }
    }
    exits.extend(open);
    exits
}

/// What the exits for one reason add up to.
#[derive(Default)]
struct Sums {
    count: u64,
    times: Vec<u64>,
    kvm: u64,
    vmm: u64,
    stolen: u64,
    halted: u64,
    blocked: u64,
}

fn of_vm(vm: &VmModel, window: Window, clock: &Clock) -> VmExits {
    let mut by_reason: BTreeMap<ExitReason, Sums> = BTreeMap::new();
    let mut by_access: BTreeMap<Access, Vec<u64>> = BTreeMap::new();
    let (mut count, mut unfinished) = (0, 0);
    for vcpu in vm.vcpus.values() {
        for exit in exits(vcpu, window, vm.kvm_tells) {
            let sums = by_reason.entry(exit.reason).or_default();
            (count, sums.count) = (count + 1, sums.count + 1);
            if !exit.finished {
                unfinished += 1;
                continue;
            }
            sums.times.push(exit.span.length());
            let before = sums.vmm;
            for interval in vcpu.state.over(exit.span) {
                let sum = match interval.state {
                    VcpuState::Vmm(_) => &mut sums.vmm,
                    VcpuState::Stolen { .. } => &mut sums.stolen,
                    VcpuState::Halted => &mut sums.halted,
                    VcpuState::BlockedInKvm(_) | VcpuState::BlockedInVmm(_) => &mut sums.blocked,
                    VcpuState::Kvm(_) => &mut sums.kvm,
                    VcpuState::Guest | VcpuState::KvmRun | VcpuState::Unknown | VcpuState::Ended => continue,
                };
                *sum = sum.saturating_add(interval.length());
            }
            let in_vmm = sums.vmm - before;
            if let Some(access) = vcpu.access_in(&exit.span) {
                by_access.entry(access).or_default().push(in_vmm);
            }
        }
    }
    let reason = |(reason, sums): (ExitReason, Sums)| ReasonExits {
        reason: reason.name().into_owned(),
        count: sums.count,
        time: Distribution::of(sums.times, clock),
        kvm_ns: clock.ticks_to_ns(sums.kvm),
        vmm_ns: clock.ticks_to_ns(sums.vmm),
        stolen_ns: clock.ticks_to_ns(sums.stolen),
        halted_ns: clock.ticks_to_ns(sums.halted),
        blocked_ns: clock.ticks_to_ns(sums.blocked),
    };
    let mut reasons: Vec<ReasonExits> = by_reason.into_iter().map(reason).collect();
    reasons.sort_by_key(|reason| Reverse((reason.time.total_ns, reason.count)));
    let access =
        |(access, times)| AccessExits { place: state_names::access(access), time: Distribution::of(times, clock) };
    let mut accesses: Vec<AccessExits> = by_access.into_iter().map(access).collect();
    accesses.sort_by_key(|access| Reverse((access.time.total_ns, access.time.count)));
    VmExits { vm: vm.name.clone(), warnings: warnings(vm), count, unfinished, reasons, accesses }
}

impl Report for Exits {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for vm in &self.vms {
            writeln!(out, "{}: {} exits, and the time until the vCPU was in the guest again", vm.vm, vm.count)?;
            for warning in &vm.warnings {
                writeln!(out, "WARNING: {warning}")?;
            }
            vm.write_reasons(out)?;
            if vm.unfinished > 0 {
                writeln!(out, "{} of them have no time: their end is not in the records", vm.unfinished)?;
            }
            vm.write_accesses(out)?;
        }
        Ok(())
    }
}

impl VmExits {
    fn write_reasons(&self, out: &mut dyn Write) -> io::Result<()> {
        let right = Align::Right;
        let headings = ["count", "total", "p50", "p99", "longest", "in KVM", "in VMM", "stolen", "halted", "blocked"];
        let mut columns = vec![("reason", Align::Left)];
        columns.extend(headings.map(|heading| (heading, right)));
        let mut table = Table::new(&columns);
        for reason in &self.reasons {
            let Distribution { total_ns, p50_ns, p99_ns, max_ns, .. } = reason.time;
            let distribution = [total_ns, p50_ns, p99_ns, max_ns].map(duration);
            let parts = [reason.kvm_ns, reason.vmm_ns, reason.stolen_ns, reason.halted_ns, reason.blocked_ns];
            let parts = parts.map(|ns| if ns == 0 { "-".into() } else { duration(ns) });
            let first = [reason.reason.clone(), reason.count.to_string()];
            table.row(first.into_iter().chain(distribution).chain(parts));
        }
        table.write(out)
    }

    fn write_accesses(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.accesses.is_empty() {
            return Ok(());
        }
        writeln!(out, "\n{}: accesses to devices, and the time in the VMM", self.vm)?;
        let right = Align::Right;
        let mut table = Table::new(&[
            ("place", Align::Left),
            ("count", right),
            ("total", right),
            ("p50", right),
            ("p99", right),
            ("longest", right),
        ]);
        for access in &self.accesses {
            let Distribution { count, total_ns, p50_ns, p99_ns, max_ns } = access.time;
            let times = [total_ns, p50_ns, p99_ns, max_ns].map(duration);
            table.row([access.place.clone(), count.to_string()].into_iter().chain(times));
        }
        table.write(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::scenario;
    use crate::test_trace::{Field, TestTrace};

    #[test]
    fn time_of_exits_is_split_between_kvm_vmm_host_and_halt() {
        let (_dir, trace) = scenario::preempted_in_an_exit().open();

        let report = report(&trace, Window::ALL).unwrap();

        let vm = &report.vms[0];
        assert_eq!((vm.count, vm.unfinished), (3, 0));
        let reason = |name: &str| vm.reasons.iter().find(|reason| reason.reason == name).unwrap();
        let io = reason("ioio");
        assert_eq!((io.count, io.time.p50_ns, io.time.max_ns, io.time.total_ns), (2, 1_500, 16_000, 17_500));
        assert_eq!((io.kvm_ns, io.vmm_ns, io.stolen_ns), (6_000, 2_500, 9_000));
        let halt = reason("hlt");
        assert_eq!((halt.time.total_ns, halt.halted_ns, halt.stolen_ns, halt.kvm_ns), (9_500, 7_500, 500, 1_500));
        assert_eq!((vm.accesses[0].place.as_str(), vm.accesses[0].time.total_ns), ("port 0x3f8", 2_500));
    }

    #[test]
    fn summary_which_does_not_go_by_states_has_the_same_counts_and_times() {
        let (_dir, trace) = scenario::preempted_in_an_exit().open();

        let of_states = report(&trace, Window::ALL).unwrap();
        let summary = crate::report::summary::report(&trace);

        let of_states: Vec<_> = of_states.vms[0]
            .reasons
            .iter()
            .map(|reason| (reason.reason.clone(), reason.count, reason.time.total_ns, reason.time.max_ns))
            .collect();
        let of_summary: Vec<_> = summary.exits[0]
            .reasons
            .iter()
            .map(|reason| (reason.reason.clone(), reason.count, reason.total_ns, reason.max_ns))
            .collect();
        assert_eq!(of_states, of_summary);
    }

    #[test]
    fn window_counts_the_exits_that_begin_in_it() {
        let (_dir, trace) = scenario::preempted_in_an_exit().open();

        let count = |begin, end| report(&trace, Window { begin, end }).map(|report| report.vms[0].count).ok();

        assert_eq!((count(0, 21_000), count(21_000, 61_001), count(21_000, 61_000)), (Some(1), Some(1), None));
    }

    #[test]
    fn exit_at_the_end_of_the_records_has_no_time() {
        let fields = |reason| [("vcpu", Field::Number(0)), ("reason", Field::Number(reason))];
        let trace = TestTrace::new()
            .vmm(0, 10, "vmm:vcpu_enter", &[("vcpu", Field::Number(0))])
            .vmm(0, 20, "vmm:vcpu_exit", &fields(2))
            .vmm(0, 30, "vmm:vcpu_enter", &[("vcpu", Field::Number(0))])
            .vmm(0, 40, "vmm:vcpu_exit", &fields(2));
        let (_dir, trace) = trace.open();

        let report = report(&trace, Window::ALL).unwrap();

        let vm = &report.vms[0];
        assert_eq!((vm.count, vm.unfinished, vm.warnings.len()), (2, 1, 1));
        assert_eq!((vm.reasons[0].time.count, vm.reasons[0].vmm_ns), (1, 5));
    }
}
