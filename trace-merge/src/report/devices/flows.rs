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

use super::flow_step::{self, FlowTask, milestones};
use super::follower::{FollowedTimes, Follower};
use crate::report::description::{Description, Requested};
use crate::report::next_command::NextCommand;
use crate::report::rows::columns;
use crate::report::sink::{Sink, write_place};
use crate::report::statistics::distribution::Distribution;
use crate::report::{Report, ReportBuilder, ReportError, Window, duration};
use follow::Requests;
use serde::Serialize;
use serde_json::json;
use std::io;
use strata_analysis::Passed;
use strata_analysis::timeline::Vm;
use strata_recording::clock::Clock;
use strata_recording::reader::Trace;
use strata_recording::text::counted::counted;
use strata_recording::text::terminal::harmless;

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

milestones! {
    /// What a request passes, in order.
    Milestone {
        /// The guest's kernel gives the request to its driver.
        Issued: "issued", Guest: "", "guest-kernel:block:block_rq_issue";
        /// The vCPU leaves the guest to notify the host: the `kvm:kvm_exit` before a write to the device's queue
        /// register.
        Kicked: "kicked", Guest: "guest driver", "host-kernel:kvm:kvm_mmio";
        /// The disk's thread of the VMM serves the notification.
        PickedUp: "picked up", Host: "host: wake the VMM's thread", "vmm:disk_notified";
        /// The VMM begins the request, whose `done` is 0: it is the guest's of the same kind, first sector and size.
        Started: "started", Vmm: "VMM queue", "vmm:block_request";
        /// The VMM has answered it, with `done` 1.
        Finished: "finished", Vmm: "VMM and host I/O", "vmm:block_request";
        /// The VMM raises the interrupt for all that the disk has answered.
        Raised: "raised", Vmm: "VMM: rest of the batch, answer", "vmm:disk_interrupt";
        /// KVM injects it into the vCPU.
        Injected: "injected", Host: "KVM: reach the vCPU", "host-kernel:kvm:kvm_inj_virq";
        /// The guest's handler begins, on whichever CPU.
        Handled: "handled", Guest: "guest: enter the handler", "guest-kernel:irq:irq_handler_entry";
        /// The guest's kernel completes the request of the device and sector, in the handler, or in a soft interrupt
        /// behind it, which may be another CPU's.
        Completed: "completed", Guest: "guest: handler, soft interrupt", "guest-kernel:block:block_rq_complete";
        /// It wakes the task that waits: the next `sched:sched_waking` or `sched_wakeup` in the same interrupt.
        /// (`ksoftirqd` is not one that waits.)
        Woken: "woken", Guest: "guest: wake the task", "guest-kernel:sched:sched_waking";
        /// The task runs.
        Running: "running", Guest: "guest scheduler", "guest-kernel:sched:sched_switch";
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
pub type FlowTimes = FollowedTimes<Requests>;

impl ReportBuilder for FlowTimes {
    type Report = FlowsReport;

    fn finish(self, trace: &Trace, passed: &Passed) -> Result<FlowsReport, ReportError> {
        let followers = self.vms.into_iter().enumerate();
        let flows = followers.filter_map(|(index, follower)| {
            let vm = passed.timeline.vm(index)?;
            Some(VmFlows::of(follower?, vm, trace.clock()))
        });
        let vms: Vec<_> =
            flows.filter(|flows| flows.total.count + flows.unfinished + flows.across_lost_records > 0).collect();
        if vms.is_empty() {
            return Err(ReportError::nothing(
                "no VMM recorded a request of a disk",
                "record with --disk and --events 'host:kvm:*,host:sched:*,vmm:*:*,guest:block:*,guest:irq:*,guest:sched:*'",
            ));
        }
        let mut tasks =
            vms.iter().flat_map(|vm| vm.slowest.iter().filter_map(move |flow| Some((&vm.vm, flow.woken.as_ref()?))));
        let first = tasks.next();
        let next = first.map(|(vm, task)| NextCommand::on(trace, passed).worst_waits(vm, (&task.comm, task.tid)));
        Ok(FlowsReport { vms, next })
    }
}

impl Report for FlowsReport {
    fn write_text(&self, out: &mut dyn Sink) -> io::Result<()> {
        self.vms.iter().try_for_each(|vm| vm.write(out))?;
        crate::report::write_next(self.next.as_deref(), out)
    }
}

impl VmFlows {
    /// What became of the requests of `vm`.
    fn of(mut follower: Follower<Requests>, vm: &Vm, clock: &Clock) -> Self {
        follower.end_all();
        let Follower { kind: requests, path } = follower;
        Self {
            vm: vm.name.clone(),
            total: requests.ended.total(clock),
            steps: requests.ended.steps(clock),
            host_io: requests.host_io.distribution(clock),
            slowest: requests.ended.slowest(&vm.guest, clock).collect(),
            guest_block_events: requests.guest_block_events,
            unfinished: requests.unfinished + requests.under_way() as u64,
            across_lost_records: path.across_lost_records,
        }
    }

    fn write(&self, out: &mut dyn Sink) -> io::Result<()> {
        writeln!(out, "{}: {}", self.vm, counted(self.total.count, "disk request", "disk requests"))?;
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
            let requests = counted(self.unfinished, "request", "requests");
            writeln!(out, "NOTE: not counted: {requests} without all ends in the trace")?;
        }
        if self.across_lost_records > 0 {
            let requests = counted(self.across_lost_records, "request was", "requests were");
            writeln!(out, "NOTE: {requests} under way when records were lost")?;
        }
        for (place, flow) in (1..).zip(&self.slowest) {
            flow.write(place, out)?;
        }
        Ok(())
    }
}

impl Flow {
    fn write(&self, place: usize, out: &mut dyn Sink) -> io::Result<()> {
        let task = |task: &FlowTask| format!("{}/{}", harmless(&task.comm), task.tid);
        let issuer = self.issuer.as_ref().map_or_else(String::new, |issuer| format!(" by {}", task(issuer)));
        let woken = self.woken.as_ref().map_or_else(String::new, |woken| format!(", waking {}", task(woken)));
        let device = self.device.as_ref().map_or_else(String::new, |device| format!(" ({device} in the guest)"));
        let (disk, kind, sector, bytes) = (self.disk, &self.kind, self.sector, self.bytes);
        writeln!(out)?;
        write_place(out, || {
            let (begin, total) = (self.begin, self.total_ns);
            json!({ "issuer": self.issuer, "woken": self.woken, "begin_ticks": begin, "total_ns": total })
        });
        writeln!(
            out,
            "{place}. {}: {kind} of {bytes} bytes at sector {sector} of disk {disk}{device}{issuer}{woken}",
            duration(self.total_ns)
        )?;
        let mut table = flow_step::table(&self.steps);
        if let Some(ns) = self.host_io_ns {
            table.row(["(host block I/O)".into(), duration(ns), "inside finished".into()]);
        }
        table.write(out)
    }
}

#[cfg(test)]
mod tests;
