//! Packets of virtio network devices, followed through every layer: what the guest sends from the system call of its
//! task to the host's tap, and what it receives from the tap to the task that is woken.
//!
//! As of disk requests ([`flows`](super::flows)), a packet passes milestones, each an event that somebody records, and
//! the steps between those that were met add up to its whole time to the tick. A milestone that was not recorded makes
//! one step of two, and the report says which no packet met. [`Milestone`] says which event stands for each.
//!
//! Layers know a packet by different names. The VMM's events have an id. The guest's packet is the VMM's by order and
//! length: queues keep the order, and a packet of another length than the oldest is never it. Inside a kernel a packet
//! is the address of its structure. What cannot be matched is counted and not followed.

mod follow;
mod packet;

use super::flow_step::{self, FlowMilestone, FlowTask, milestones};
use super::follower::{FollowedTimes, Follower};
use crate::report::description::{Description, Requested};
use crate::report::next_command::NextCommand;
use crate::report::rows::columns;
use crate::report::sink::{Sink, write_place};
use crate::report::statistics::distribution::Distribution;
use crate::report::{Report, ReportBuilder, ReportError, Window, duration};
use follow::Packets;
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeSet;
use std::io;
use strata_analysis::Passed;
use strata_analysis::timeline::Vm;
use strata_recording::clock::Clock;
use strata_recording::reader::Trace;
use strata_recording::text::counted::counted;
use strata_recording::text::terminal::harmless;

/// What describes the report.
pub const DESCRIPTION: Description = Description {
    name: "net_flows",
    about: "Packets of networks, sent and received, in place of requests of disks",
    requested: Requested::Option { of: "flows", option: "net", value: None },
    examples: &[],
    takes_symbols: false,
    is_in_all: true,
    rows: &[columns::rows::<StepTimes>("vms[].sent.steps[]"), columns::rows::<StepTimes>("vms[].received.steps[]")],
    begin: |trace, _, _| Ok(Box::new(NetFlowTimes::new(trace))),
};

/// Packets that are shown in full, of each direction.
const SLOWEST: usize = 5;

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// From the guest to the host.
    Sent,
    /// From the host to the guest.
    Received,
}

impl Direction {
    /// What happens to the packet, in a word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Received => "received",
        }
    }
}

milestones! {
    /// What a packet passes, in order: first what one that the guest sends does, then what one that it receives does.
    Milestone {
        /// A task of the guest enters the system call that sends. Only of a packet that is queued by the task itself,
        /// and not by an interrupt on top of it.
        Called: "called", Guest: "", "guest-kernel:raw_syscalls:sys_enter";
        /// The guest's kernel queues the packet.
        Queued: "queued", Guest: "guest: system call, protocols", "guest-kernel:net:net_dev_queue";
        /// The guest's driver gets it: it has the same structure.
        Given: "given to the driver", Guest: "guest: queueing discipline", "guest-kernel:net:net_dev_start_xmit";
        /// The vCPU leaves the guest to notify the host: the `kvm:kvm_exit` before a write to the device's queue
        /// register.
        Kicked: "kicked", Guest: "guest driver", "host-kernel:kvm:kvm_mmio";
        /// The VMM's thread begins to serve the queue.
        PickedUp: "picked up", Host: "host: wake the VMM's thread", "vmm:net_notified";
        /// The VMM takes the packet, with `done` 0: the oldest that the driver got, of the same length.
        Taken: "taken", Vmm: "VMM: packets before it, limits", "vmm:net_send";
        /// The host's kernel has it on the tap (`net:netif_rx`, too), of the same length, while the VMM writes.
        ToHost: "on the tap", Vmm: "VMM, host's tap", "host-kernel:net:netif_receive_skb";
        /// The VMM is done with it, with `done` 1 and the same id.
        Sent: "sent", Host: "host's protocols", "vmm:net_send";
        /// The host's kernel gives a packet to the tap.
        FromHost: "given to the tap", Host: "", "host-kernel:net:net_dev_start_xmit";
        /// The VMM's thread begins to serve the queue.
        Noticed: "noticed", Host: "host: wake the VMM's thread", "vmm:net_notified";
        /// The VMM has read it, with `done` 0: the oldest on the tap, of the same length.
        Read: "read", Vmm: "VMM: packets before it", "vmm:net_receive";
        /// It is in the guest's memory, with `done` 1 and the same id.
        Delivered: "delivered", Vmm: "VMM: limits, copy", "vmm:net_receive";
        /// The VMM raises the interrupt for all that it has delivered.
        Raised: "raised", Vmm: "VMM: rest of the batch", "vmm:net_interrupt";
        /// KVM injects it into the vCPU.
        Injected: "injected", Host: "KVM: reach the vCPU", "host-kernel:kvm:kvm_inj_virq";
        /// The guest's handler begins.
        Handled: "handled", Guest: "guest: enter the handler", "guest-kernel:irq:irq_handler_entry";
        /// The soft interrupt of the network begins: its `vec` is 3.
        Polled: "polled", Guest: "guest: handler, soft interrupt", "guest-kernel:irq:softirq_entry";
        /// The guest's driver has the packet: the oldest that the VMM delivered, of the same length.
        Received: "received", Guest: "guest driver: packets before it", "guest-kernel:net:napi_gro_receive_entry";
        /// The guest's protocols get it, or the packet that it was merged into: it has the same structure.
        PassedUp: "passed up", Guest: "guest: merging", "guest-kernel:net:netif_receive_skb";
        /// A task is woken: the next `sched:sched_waking` or `sched_wakeup` in the same soft interrupt. (`ksoftirqd` is
        /// not one that waits.)
        Woken: "woken", Guest: "guest's protocols", "guest-kernel:sched:sched_waking";
        /// The task runs.
        Running: "running", Guest: "guest scheduler", "guest-kernel:sched:sched_switch";
    }
}

impl Milestone {
    /// Which packets these are.
    #[must_use]
    pub fn direction(self) -> Direction {
        if self <= Self::Sent { Direction::Sent } else { Direction::Received }
    }
}

/// A step of a packet.
pub type FlowStep = flow_step::FlowStep<Milestone>;
/// A step, over all packets that took it.
pub type StepTimes = flow_step::StepTimes<Milestone>;

/// The packets of all VMs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NetFlowsReport {
    /// By VM.
    pub vms: Vec<VmNetFlows>,
    /// The command that says more, for people.
    #[serde(skip)]
    pub next: Option<String>,
}

/// The packets of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VmNetFlows {
    /// Name of the VM.
    pub vm: String,
    /// What the guest sends.
    pub sent: PacketFlows,
    /// What it receives.
    pub received: PacketFlows,
    /// Packets under way when records were lost, or the choice of events changed. They are not followed.
    pub across_lost_records: u64,
    /// Network devices whose packets the host's kernel moved (vhost-net), past the VMM: they are not followed.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub moved_by_host_kernel: BTreeSet<u32>,
}

/// The packets of a VM in one direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PacketFlows {
    /// Packets that were followed to their end, and the time from their first milestone to their last.
    pub total: Distribution,
    /// The steps, in order.
    #[serde(serialize_with = "columns::serialize")]
    pub steps: Vec<StepTimes>,
    /// The slowest packets, the slowest first.
    pub slowest: Vec<PacketFlow>,
    /// Milestones that no packet met.
    pub never_met: Vec<Milestone>,
    /// Packets that the VMM took and that were lost there.
    pub dropped: u64,
    /// Packets of the VMM that are none of the guest's, by order and length, or the other way round.
    pub unmatched: u64,
    /// Packets that are under way at the end.
    pub unfinished: u64,
}

/// A packet, followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PacketFlow {
    /// Number of the VMM's network device.
    pub net: u32,
    /// The VMM's id of the packet in its direction.
    pub id: u64,
    /// Name of the guest's network device, when it was met there.
    pub device: Option<String>,
    /// Bytes of the frame.
    pub bytes: u64,
    /// The task that sends it, or that it woke.
    pub task: Option<FlowTask>,
    /// Time of the first milestone, ticks.
    #[serde(rename = "begin_ticks")]
    pub begin: u64,
    /// From the first milestone to the last, ticks: the sum of the steps.
    pub ticks: u64,
    /// The same, ns.
    pub total_ns: u64,
    /// Its steps, in order.
    pub steps: Vec<FlowStep>,
}

/// Makes the report.
///
/// # Errors
/// When no VMM recorded packets.
pub fn report(trace: &Trace, window: Window) -> Result<NetFlowsReport, ReportError> {
    crate::report::make(trace, window, NetFlowTimes::new(trace))
}

/// The report in the making. Takes memory for the packets that are under way.
pub type NetFlowTimes = FollowedTimes<Packets>;

impl ReportBuilder for NetFlowTimes {
    type Report = NetFlowsReport;

    fn finish(self, trace: &Trace, passed: &Passed) -> Result<NetFlowsReport, ReportError> {
        let followers = self.vms.into_iter().enumerate();
        let flows = followers.filter_map(|(index, follower)| {
            let vm = passed.timeline.vm(index)?;
            Some(VmNetFlows::of(follower?, vm, trace.clock()))
        });
        let of = |flows: &PacketFlows| flows.total.count + flows.dropped + flows.unmatched + flows.unfinished;
        let is_there = |vm: &VmNetFlows| of(&vm.sent) + of(&vm.received) + vm.across_lost_records > 0;
        let vms: Vec<_> = flows.filter(is_there).collect();
        if vms.is_empty() {
            return Err(ReportError::nothing(
                "no VMM recorded a packet of a network device",
                "record with --net and --events 'default,guest:net:*,host:net:*', and without vhost=on, where the host's kernel \
                 moves packets past the VMM (strata why tells what held up that one's worker)",
            ));
        }
        let mut tasks = vms
            .iter()
            .flat_map(|vm| vm.received.slowest.iter().filter_map(move |flow| Some((&vm.vm, flow.task.as_ref()?))));
        let first = tasks.next();
        let next = first.map(|(vm, task)| NextCommand::on(trace, passed).worst_waits(vm, (&task.comm, task.tid)));
        Ok(NetFlowsReport { vms, next })
    }
}

impl Report for NetFlowsReport {
    fn write_text(&self, out: &mut dyn Sink) -> io::Result<()> {
        self.vms.iter().try_for_each(|vm| vm.write(out))?;
        crate::report::write_next(self.next.as_deref(), out)
    }
}

impl VmNetFlows {
    /// What became of the packets of `vm`.
    fn of(mut follower: Follower<Packets>, vm: &Vm, clock: &Clock) -> Self {
        follower.end_all();
        let Follower { kind: packets, path } = follower;
        Self {
            vm: vm.name.clone(),
            sent: packets.sent.flows(Direction::Sent, &vm.guest, clock),
            received: packets.got.flows(Direction::Received, &vm.guest, clock),
            across_lost_records: path.across_lost_records,
            moved_by_host_kernel: packets.moved_by_host_kernel,
        }
    }

    fn write(&self, out: &mut dyn Sink) -> io::Result<()> {
        self.sent.write(&self.vm, Direction::Sent, out)?;
        writeln!(out)?;
        self.received.write(&self.vm, Direction::Received, out)?;
        if self.across_lost_records > 0 {
            writeln!(
                out,
                "NOTE: {} under way when records were lost or the choice of events changed",
                counted(self.across_lost_records, "packet was", "packets were")
            )?;
        }
        for net in &self.moved_by_host_kernel {
            writeln!(
                out,
                "NOTE: the host's kernel moved packets of network {net} past the VMM (vhost=on); they are not followed"
            )?;
        }
        Ok(())
    }
}

impl PacketFlows {
    fn write(&self, vm: &str, direction: Direction, out: &mut dyn Sink) -> io::Result<()> {
        let packets = counted(self.total.count, "packet", "packets");
        writeln!(out, "{}: {packets} {}", harmless(vm), direction.name())?;
        let mut table = columns::table(&self.steps);
        table.row(flow_step::other_row("whole packet", "", &self.total));
        table.write(out)?;
        if self.total.count > 0 && !self.never_met.is_empty() {
            let never: Vec<_> =
                self.never_met.iter().map(|met| format!("{} ({})", met.name(), met.row().event)).collect();
            writeln!(out, "NOTE: no packet met: {}", never.join(", "))?;
        }
        let notes = [
            (self.dropped, "", "lost in the VMM"),
            (self.unmatched, "not counted: ", "of the VMM and of the guest that could not be matched"),
            (self.unfinished, "not counted: ", "under way at the end"),
        ];
        for (count, not_counted, note) in notes.into_iter().filter(|(count, ..)| *count > 0) {
            writeln!(out, "NOTE: {not_counted}{} {note}", counted(count, "packet", "packets"))?;
        }
        (1..).zip(&self.slowest).try_for_each(|(place, flow)| flow.write(place, direction, out))
    }
}

impl PacketFlow {
    fn write(&self, place: usize, direction: Direction, out: &mut dyn Sink) -> io::Result<()> {
        let role = match direction {
            Direction::Sent => " by",
            Direction::Received => ", waking",
        };
        let verb = direction.name();
        let task = self.task.as_ref();
        let task = task.map_or_else(String::new, |task| format!("{role} {}/{}", harmless(&task.comm), task.tid));
        let device = self.device.as_ref();
        let device = device.map_or_else(String::new, |device| format!(" ({} in the guest)", harmless(device)));
        let (total, bytes, net, id) = (duration(self.total_ns), self.bytes, self.net, self.id);
        writeln!(out)?;
        write_place(out, || json!({ "task": self.task, "begin_ticks": self.begin, "total_ns": self.total_ns }));
        writeln!(out, "{place}. {total}: packet {id} of {bytes} bytes, {verb} on network {net}{device}{task}")?;
        flow_step::table(&self.steps).write(out)
    }
}

#[cfg(test)]
mod tests;
