//! Requests of virtio disks, followed through every layer: from the guest's kernel, which issues them, through the exit
//! that tells the host, the VMM's thread that serves them, and the interrupt, to the task that was waiting.
//!
//! A request passes milestones; each is an event that somebody records. Steps are the times between those that were
//! met, so that the steps of a request add up to its whole time to the tick. A milestone that was not recorded makes
//! one step of two. [`Milestone`] says which event stands for each.
//!
//! The guest's request is the VMM's when kind, first sector and size agree; of several the oldest, and rather one of
//! the disk with the same number. It is completed by the guest's completion of the same device and sector.

mod follow;

use super::flow_step::{self, FlowMilestone, FlowTask};
use super::followed::concerned;
use crate::report::description::{Description, Requested};
use crate::report::next_command::NextCommand;
use crate::report::rows::columns;
use crate::report::rows::table::{Align, Table};
use crate::report::statistics::distribution::Distribution;
use crate::report::statistics::ended::KeepsEnded;
use crate::report::statistics::samples::{ReportedBy, Sampled, Samples, reported};
use crate::report::{Report, ReportBuilder, ReportError, Window, duration};
use follow::Follower;
use serde::Serialize;
use std::io::{self, Write};
use strata_analysis::timeline::{ChangeKind, Input, Timeline};
use strata_analysis::{Analysis, Gap, Passed, event};
use strata_recording::layer::LayerKind;
use strata_recording::reader::{Trace, TraceLayer};
use strata_recording::terminal::harmless;

/// What describes the report.
pub const DESCRIPTION: Description = Description {
    name: "flows",
    about: "Requests of virtio disks, or packets of virtio networks, through every layer, and the time of each step",
    requested: Requested::Command,
    examples: &["strata report flows trace", "strata report flows trace --net"],
    takes_symbols: false,
    is_in_all: true,
    rows: &[columns::rows::<StepTimes>("vms[].steps[]")],
    begin: |trace, _, _| Ok(Box::new(FlowTimes::new(trace))),
};

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
    /// The disk's thread of the VMM serves the notification: `vmm:disk_notified`.
    PickedUp,
    /// The VMM begins the request: `vmm:block_request` with `done` 0.
    Started,
    /// The VMM has answered it: `vmm:block_request` with `done` 1.
    Finished,
    /// The VMM raises the interrupt: `vmm:disk_interrupt`.
    Raised,
    /// KVM injects it into the vCPU: `kvm:kvm_inj_virq`.
    Injected,
    /// The guest's handler begins, on whichever CPU: `irq:irq_handler_entry`.
    Handled,
    /// The guest's kernel completes the request, in the handler, or in a soft interrupt behind it, which may be another
    /// CPU's: `block:block_rq_complete`.
    Completed,
    /// It wakes the task that waits: the next `sched:sched_waking` or `sched_wakeup` in the same interrupt.
    /// (`ksoftirqd` is not one that waits.)
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
            Self::Raised => "VMM: rest of the batch, answer",
            Self::Injected => "KVM: reach the vCPU",
            Self::Handled => "guest: enter the handler",
            Self::Completed => "guest: handler, soft interrupt",
            Self::Woken => "guest: wake the task",
            Self::Running => "guest scheduler",
        }
    }
}

impl FlowMilestone for Milestone {
    const ALL: &'static [Self] = &Self::ALL;

    fn name(self) -> &'static str {
        self.name()
    }

    fn whose(self) -> &'static str {
        self.whose()
    }
}

/// A step of a request.
pub type FlowStep = flow_step::FlowStep<Milestone>;
/// A step, over all requests that took it.
pub type StepTimes = flow_step::StepTimes<Milestone>;

/// The disk requests of all VMs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowsReport {
    /// By VM.
    pub vms: Vec<VmFlows>,
    /// The command that says more, for people.
    #[serde(skip)]
    pub next: Option<String>,
}

/// The disk requests of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VmFlows {
    /// Name of the VM.
    pub vm: String,
    /// Requests that were followed to their end, and the time from their first milestone to their last.
    pub total: Distribution,
    /// The steps, in order.
    #[serde(serialize_with = "columns::serialize")]
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
    #[serde(rename = "begin_ticks")]
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

/// Makes the report.
///
/// # Errors
/// When no VMM recorded requests.
pub fn report(trace: &Trace, window: Window) -> Result<FlowsReport, ReportError> {
    crate::report::make(trace, window, FlowTimes::new(trace))
}

/// The report in the making. Takes memory for the requests that are under way.
#[derive(Debug)]
pub struct FlowTimes {
    /// By VM; `None` for one whose VMM recorded no requests.
    vms: Vec<Option<Follower>>,
    samples: Samples,
}

/// What tells of disk requests.
const REPORTED_BY: [ReportedBy; 10] = [
    reported(LayerKind::Vmm, event::name::DISK_REQUEST),
    reported(LayerKind::Vmm, "vmm:disk_notified"),
    reported(LayerKind::Vmm, event::name::DISK_INTERRUPT),
    reported(LayerKind::HostKernel, "kvm:kvm_mmio"),
    reported(LayerKind::HostKernel, "kvm:kvm_inj_virq"),
    reported(LayerKind::GuestKernel, event::name::BLOCK_ISSUE),
    reported(LayerKind::GuestKernel, event::name::BLOCK_COMPLETE),
    reported(LayerKind::GuestKernel, "irq:irq_handler_entry"),
    reported(LayerKind::GuestKernel, "sched:sched_wak*"),
    reported(LayerKind::GuestKernel, event::name::SWITCH),
];

impl Sampled for FlowTimes {
    fn samples(&mut self) -> Vec<(&'static [ReportedBy], &mut Samples)> {
        vec![(&REPORTED_BY, &mut self.samples)]
    }
}

impl FlowTimes {
    /// A report on `trace` before its first record.
    #[must_use]
    pub fn new(trace: &Trace) -> Self {
        let follower = |vm: &strata_recording::manifest::Vm| {
            let of_vm = |layer: &&TraceLayer| layer.description.vm.as_ref() == Some(&vm.name);
            let vmm: Vec<_> = trace.layers_of(LayerKind::Vmm).filter(of_vm).collect();
            if !vmm.iter().any(|layer| event::is_recorded(layer, event::name::DISK_REQUEST)) {
                return None;
            }
            let guest_block_events = trace.kernel_layers(&vm.name).any(|layer| {
                event::is_recorded(layer, event::name::BLOCK_ISSUE)
                    && event::is_recorded(layer, event::name::BLOCK_COMPLETE)
            });
            let interrupts_are_recorded =
                vmm.iter().any(|layer| event::is_recorded(layer, event::name::DISK_INTERRUPT));
            Some(Follower::new(vm, guest_block_events, interrupts_are_recorded))
        };
        Self { vms: trace.manifest().vms.iter().map(follower).collect(), samples: Samples::default() }
    }

    /// The same, which keeps each request that ends for [`FlowTimes::take_ended`].
    #[must_use]
    pub fn keeping_ended(trace: &Trace) -> Self {
        let mut times = Self::new(trace);
        times.vms.iter_mut().flatten().for_each(Follower::keep_ended);
        times
    }

    /// Whether records like `input` are looked at.
    #[must_use]
    pub const fn follows(input: &Input<'_>) -> bool {
        Follower::takes(input)
    }

    /// The requests that have ended since the last call, each with the index of its VM. `at_end` says that no
    /// record is to come.
    pub fn take_ended(&mut self, timeline: &Timeline, at_end: bool) -> Vec<(usize, Flow)> {
        let mut taken = Vec::new();
        for (index, follower) in self.vms.iter_mut().enumerate() {
            let (Some(follower), Some(vm)) = (follower, timeline.vm(index)) else { continue };
            if at_end {
                follower.end_completed();
            }
            if follower.has_ended() {
                taken.extend(follower.take_ended(&vm.guest, timeline.clock()).into_iter().map(|flow| (index, flow)));
            }
        }
        taken
    }

    /// Adds the steps of a request to the samples.
    fn sample(&mut self, vm: usize, flow: &Flow) {
        for step in &flow.steps {
            self.samples.add(Some(vm), step.end, step.ticks, || step.name());
        }
        let end = flow.begin.saturating_add(flow.ticks);
        self.samples.add(Some(vm), end, flow.ticks, || format!("whole request: {}", flow.kind));
    }
}

impl KeepsEnded for FlowTimes {
    fn has_ended(&self) -> bool {
        self.vms.iter().flatten().any(Follower::has_ended)
    }
}

impl Analysis for FlowTimes {
    fn takes_change(&self, _kind: ChangeKind) -> bool {
        false
    }

    fn takes_record(&self, input: &Input<'_>) -> bool {
        Follower::takes(input)
    }

    fn record(&mut self, input: &Input<'_>, timeline: &Timeline) {
        if input.event.is_some() {
            concerned(&mut self.vms, input.origin, timeline)
                .for_each(|(vm, follower)| follower.add(vm, input, timeline));
        }
        if self.samples.is_on() {
            for (vm, flow) in self.take_ended(timeline, false) {
                self.sample(vm, &flow);
            }
        }
    }

    fn gap(&mut self, gap: &Gap, timeline: &Timeline) {
        concerned(&mut self.vms, gap.origin, timeline).for_each(|(_, follower)| follower.gap(gap.begins));
    }
}

impl ReportBuilder for FlowTimes {
    type Report = FlowsReport;

    fn finish(self, trace: &Trace, passed: &Passed) -> Result<FlowsReport, ReportError> {
        let followers = self.vms.into_iter().enumerate();
        let flows = followers.filter_map(|(index, follower)| {
            let vm = passed.timeline.vm(index)?;
            Some(follower?.finish(vm.name.clone(), &vm.guest, trace.clock()))
        });
        let vms: Vec<_> =
            flows.filter(|flows| flows.total.count + flows.unfinished + flows.across_lost_records > 0).collect();
        if vms.is_empty() {
            let missing = "no VMM recorded a request of a disk; record with --disk and --events \
                           'host:kvm:*,host:sched:*,vmm:*:*,guest:block:*,guest:irq:*,guest:sched:*'";
            return Err(ReportError::Nothing { missing: missing.into() });
        }
        let mut tasks =
            vms.iter().flat_map(|vm| vm.slowest.iter().filter_map(move |flow| Some((&vm.vm, flow.woken.as_ref()?))));
        let first = tasks.next();
        let next = first.map(|(vm, task)| NextCommand::on(trace).worst_waits(vm, (&task.comm, task.tid)));
        Ok(FlowsReport { vms, next })
    }
}

impl Report for FlowsReport {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        self.vms.iter().try_for_each(|vm| vm.write(out))?;
        crate::report::write_next(self.next.as_deref(), out)
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
        let mut table = columns::table(&self.steps);
        if self.host_io.count > 0 {
            table.row(flow_step::other_row("(host block I/O)", "inside finished", &self.host_io));
        }
        table.row(flow_step::other_row("whole request", "", &self.total));
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
            table.row([step.name(), duration(step.ns), step.whose()]);
        }
        if let Some(ns) = self.host_io_ns {
            table.row(["(host block I/O)".into(), duration(ns), "inside finished".into()]);
        }
        table.write(out)
    }
}

#[cfg(test)]
mod tests;
