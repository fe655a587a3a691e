//! Requests of virtio disks, followed through every layer: from the guest's kernel, which issues them, through the exit
//! that tells the host, the VMM's thread that serves them, and the interrupt, to the task that was waiting.
//!
//! A request passes milestones; each is an event that somebody records. Steps are the times between those that were
//! met, so that the steps of a request add up to its whole time to the tick. A milestone that was not recorded makes one
//! step of two. [`Milestone`] says which event stands for each.
//!
//! The guest's request is the VMM's when kind, first sector and size agree; of several the oldest, and rather one of the
//! disk with the same number. It is completed by the guest's completion of the same device and sector.

mod follow;

use super::distribution::Distribution;
use super::table::{Align, Table};
use super::{Report, ReportError, Window, duration, harmless};
use crate::guest_tasks::{GuestTasks, Tid, kernel_layers};
use crate::merge::Merge;
use crate::reader::{Trace, TraceLayer};
use crate::session::LayerKind;
use follow::Follower;
use serde::Serialize;
use std::io::{self, Write};

/// Requests that are shown in full.
const SLOWEST: usize = 10;

/// What a request passes, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Milestone {
    /// The guest's kernel gives the request to its driver: `block:block_rq_issue`.
    Issued,
    /// The vCPU leaves the guest to notify the host: the `kvm:kvm_exit` before a write to the device's queue register.
    Kicked,
    /// The VMM's thread serves the notification: `vmm:disk_notified`.
    PickedUp,
    /// The VMM begins the request: `vmm:block_request` with `done` 0.
    Started,
    /// The VMM has answered it: `vmm:block_request` with `done` 1.
    Finished,
    /// The VMM raises the interrupt: `vmm:disk_interrupt`.
    Raised,
    /// KVM injects it into the vCPU: `kvm:kvm_inj_virq`.
    Injected,
    /// The guest's handler begins: `irq:irq_handler_entry`.
    Handled,
    /// The guest's kernel completes the request: `block:block_rq_complete`.
    Completed,
    /// It wakes the task that waits: the next `sched:sched_waking` or `sched_wakeup` in the same interrupt.
    Woken,
    /// The task runs: `sched:sched_switch`.
    Running,
}

impl Milestone {
    /// All of them, in order.
    pub const ALL: [Self; 11] = [
        Self::Issued,
        Self::Kicked,
        Self::PickedUp,
        Self::Started,
        Self::Finished,
        Self::Raised,
        Self::Injected,
        Self::Handled,
        Self::Completed,
        Self::Woken,
        Self::Running,
    ];

    /// What has happened, in a word or two.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Issued => "issued",
            Self::Kicked => "kicked",
            Self::PickedUp => "picked up",
            Self::Started => "started",
            Self::Finished => "finished",
            Self::Raised => "raised",
            Self::Injected => "injected",
            Self::Handled => "handled",
            Self::Completed => "completed",
            Self::Woken => "woken",
            Self::Running => "running",
        }
    }

    /// Whose time it is that ends with this milestone, after the one before it.
    #[must_use]
    pub const fn whose(self) -> &'static str {
        match self {
            Self::Issued => "",
            Self::Kicked => "guest driver",
            Self::PickedUp => "host: wake the VMM's thread",
            Self::Started => "VMM queue",
            Self::Finished => "VMM and host I/O",
            Self::Raised => "VMM answer",
            Self::Injected => "KVM: reach the vCPU",
            Self::Handled => "guest: enter the handler",
            Self::Completed => "guest interrupt handler",
            Self::Woken => "guest: wake the task",
            Self::Running => "guest scheduler",
        }
    }
}

/// The disk requests of all VMs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowsReport {
    /// By VM.
    pub vms: Vec<VmFlows>,
}

/// The disk requests of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VmFlows {
    /// Name of the VM.
    pub vm: String,
    /// Requests that were followed to their end, and the time from their first milestone to their last.
    pub total: Distribution,
    /// The steps, in order.
    pub steps: Vec<StepTimes>,
    /// The host's block I/O inside `finished`, from the first `block:block_rq_issue` of the VMM to the last completion.
    pub host_io: Distribution,
    /// The slowest requests, the slowest first.
    pub slowest: Vec<Flow>,
    /// Whether the guest's block events were recorded. If not, requests begin and end with the VMM.
    pub guest_block_events: bool,
    /// Requests of the guest that the VMM never began, or of the VMM that the guest never issued or completed, in the
    /// recording.
    pub unfinished: u64,
    /// Requests under way when records were lost. They are not followed.
    pub across_lost_records: u64,
}

/// A step, over all requests that took it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StepTimes {
    /// Where it begins.
    pub from: Milestone,
    /// Where it ends.
    pub to: Milestone,
    /// Its times.
    #[serde(flatten)]
    pub times: Distribution,
}

/// A request, followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Flow {
    /// Number of the VMM's disk.
    pub disk: u32,
    /// The guest's device, `major:minor`, when it was met there.
    pub device: Option<String>,
    /// `read`, `write`, `flush`, as the VMM calls it.
    pub kind: String,
    /// First sector, of 512 bytes.
    pub sector: u64,
    /// Bytes.
    pub bytes: u64,
    /// The task that issued it.
    pub issuer: Option<FlowTask>,
    /// The task that it woke.
    pub woken: Option<FlowTask>,
    /// Time of the first milestone, ticks.
    pub begin: u64,
    /// From the first milestone to the last, ticks: the sum of the steps.
    pub ticks: u64,
    /// The same, ns.
    pub total_ns: u64,
    /// Its steps, in order.
    pub steps: Vec<FlowStep>,
    /// The host's block I/O inside `finished`, ns.
    pub host_io_ns: Option<u64>,
}

/// A task of the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowTask {
    /// Thread id.
    pub tid: Tid,
    /// Name.
    pub comm: String,
}

/// A step of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FlowStep {
    /// Where it begins.
    pub from: Milestone,
    /// Where it ends.
    pub to: Milestone,
    /// When it ends, ticks.
    pub end: u64,
    /// Its time, ticks.
    pub ticks: u64,
    /// Its time, ns.
    pub ns: u64,
}

/// Makes the report.
///
/// # Errors
/// When no VMM recorded requests.
pub fn report(trace: &Trace, window: Window) -> Result<FlowsReport, ReportError> {
    let mut vms = Vec::new();
    for vm in &trace.session().vms {
        let of_vm = |layer: &&TraceLayer| layer.description.vm.as_ref() == Some(&vm.name);
        let vmm: Vec<_> = trace.layers_of(LayerKind::Vmm).filter(of_vm).collect();
        let has = |layer: &TraceLayer, name: &str| layer.schemas.iter().any(|schema| schema.name() == name);
        if !vmm.iter().any(|layer| has(layer, "vmm:block_request")) {
            continue;
        }
        let guest_block_events = kernel_layers(trace, &vm.name)
            .any(|layer| has(layer, "block:block_rq_issue") && has(layer, "block:block_rq_complete"));
        let interrupts_are_recorded = vmm.iter().any(|layer| has(layer, "vmm:disk_interrupt"));
        let host = trace.layers_of(LayerKind::HostKernel).filter(|layer| layer.description.host == vm.host);
        let layers: Vec<_> = host.chain(vmm).chain(kernel_layers(trace, &vm.name)).collect();
        let tasks = GuestTasks::new(trace, &vm.name, window);
        let mut follower = Follower::new(tasks, &vm.vcpu_threads, guest_block_events, interrupts_are_recorded);
        for merged in Merge::new(layers, window.begin).take_while(|merged| merged.record.time < window.end) {
            follower.add(&merged);
        }
        let flows = follower.finish(vm.name.clone(), trace.clock());
        if flows.total.count + flows.unfinished + flows.across_lost_records > 0 {
            vms.push(flows);
        }
    }
    if vms.is_empty() {
        let missing = "no VMM recorded a request of a disk; record with --disk and --events \
                       'host:kvm:*,host:sched:*,vmm:*:*,guest:block:*,guest:irq:*,guest:sched:*'";
        return Err(ReportError::Nothing { missing: missing.into() });
    }
    Ok(FlowsReport { vms })
}

impl Report for FlowsReport {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        self.vms.iter().try_for_each(|vm| vm.write(out))
    }
}

impl VmFlows {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}: {} disk requests", self.vm, self.total.count)?;
        if !self.guest_block_events {
            writeln!(
                out,
                "The guest's block events were not recorded (guest:block:block_rq_issue and block_rq_complete): requests \
                 begin and end with the VMM"
            )?;
        }
        let mut table = Table::new(&[
            ("step", Align::Left),
            ("", Align::Left),
            ("count", Align::Right),
            ("p50", Align::Right),
            ("p99", Align::Right),
            ("longest", Align::Right),
            ("all", Align::Right),
        ]);
        let times = |times: &Distribution| {
            [
                times.count.to_string(),
                duration(times.p50_ns),
                duration(times.p99_ns),
                duration(times.max_ns),
                duration(times.total_ns),
            ]
        };
        for step in &self.steps {
            let head = [step_name(step.from, step.to), whose(step.from, step.to)];
            table.row(head.into_iter().chain(times(&step.times)));
        }
        if self.host_io.count > 0 {
            table.row(["(host block I/O)".into(), "inside finished".into()].into_iter().chain(times(&self.host_io)));
        }
        table.row(["whole request".into(), String::new()].into_iter().chain(times(&self.total)));
        table.write(out)?;
        if self.unfinished > 0 {
            writeln!(
                out,
                "NOTE: {} requests have not all their ends in the trace; they are not counted",
                self.unfinished
            )?;
        }
        if self.across_lost_records > 0 {
            writeln!(out, "NOTE: {} requests were under way when records were lost", self.across_lost_records)?;
        }
        for (place, flow) in (1..).zip(&self.slowest) {
            flow.write(place, out)?;
        }
        Ok(())
    }
}

impl Flow {
    fn write(&self, place: usize, out: &mut dyn Write) -> io::Result<()> {
        let task = |task: &FlowTask| format!("{}/{}", task.tid, harmless(&task.comm));
        let issuer = self.issuer.as_ref().map_or_else(String::new, |issuer| format!(" by {}", task(issuer)));
        let woken = self.woken.as_ref().map_or_else(String::new, |woken| format!(", waking {}", task(woken)));
        let device = self.device.as_ref().map_or_else(String::new, |device| format!(" ({device} in the guest)"));
        let (disk, kind, sector, bytes) = (self.disk, &self.kind, self.sector, self.bytes);
        writeln!(
            out,
            "\n{place}. {}: {kind} of {bytes} bytes at sector {sector} of disk {disk}{device}{issuer}{woken}",
            duration(self.total_ns)
        )?;
        let mut table = Table::new(&[("step", Align::Left), ("time", Align::Right), ("", Align::Left)]);
        for step in &self.steps {
            table.row([step_name(step.from, step.to), duration(step.ns), whose(step.from, step.to)]);
        }
        if let Some(ns) = self.host_io_ns {
            table.row(["(host block I/O)".into(), duration(ns), "inside finished".into()]);
        }
        table.write(out)
    }
}

fn step_name(from: Milestone, to: Milestone) -> String {
    format!("{} → {}", from.name(), to.name())
}

/// Whose time a step is: of all milestones in it, those whose events are missing included.
fn whose(from: Milestone, to: Milestone) -> String {
    let inside = Milestone::ALL.into_iter().filter(|&milestone| from < milestone && milestone <= to);
    inside.map(Milestone::whose).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
