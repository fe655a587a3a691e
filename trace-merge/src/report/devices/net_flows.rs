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
use std::collections::BTreeSet;
use std::io::{self, Write};
use strata_analysis::event::{self, Event};
use strata_analysis::timeline::{ChangeKind, Input, Origin, Timeline};
use strata_analysis::{Analysis, Gap, Passed};
use strata_recording::layer::LayerKind;
use strata_recording::reader::{Trace, TraceLayer};
use strata_recording::terminal::harmless;

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

/// What a packet passes, in order: first what one that the guest sends does, then what one that it receives does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Milestone {
    /// A task of the guest enters the system call that sends: `raw_syscalls:sys_enter`. Only of a packet that is queued
    /// by the task itself, and not by an interrupt on top of it.
    Called,
    /// The guest's kernel queues the packet: `net:net_dev_queue`.
    Queued,
    /// The guest's driver gets it: `net:net_dev_start_xmit`.
    Given,
    /// The vCPU leaves the guest to notify the host: the `kvm:kvm_exit` before a write to the device's queue register.
    Kicked,
    /// The VMM's thread begins to serve the queue: `vmm:net_notified`.
    PickedUp,
    /// The VMM takes the packet: `vmm:net_send` with `done` 0.
    Taken,
    /// The host's kernel has it on the tap: `net:netif_receive_skb` or `net:netif_rx` of the tap while the VMM writes.
    ToHost,
    /// The VMM is done with it: `vmm:net_send` with `done` 1.
    Sent,
    /// The host's kernel gives a packet to the tap: `net:net_dev_start_xmit`.
    FromHost,
    /// The VMM's thread begins to serve the queue: `vmm:net_notified`.
    Noticed,
    /// The VMM has read it: `vmm:net_receive` with `done` 0.
    Read,
    /// It is in the guest's memory: `vmm:net_receive` with `done` 1.
    Delivered,
    /// The VMM raises the interrupt: `vmm:net_interrupt`.
    Raised,
    /// KVM injects it into the vCPU: `kvm:kvm_inj_virq`.
    Injected,
    /// The guest's handler begins: `irq:irq_handler_entry`.
    Handled,
    /// The soft interrupt of the network begins: `irq:softirq_entry` with `vec` 3.
    Polled,
    /// The guest's driver has the packet: `net:napi_gro_receive_entry`.
    Received,
    /// The guest's protocols get it, or the packet that it was merged into: `net:netif_receive_skb`.
    PassedUp,
    /// A task is woken: the next `sched:sched_waking` or `sched_wakeup` in the same soft interrupt. (`ksoftirqd` is not
    /// one that waits.)
    Woken,
    /// The task runs: `sched:sched_switch`.
    Running,
}

impl Milestone {
    /// All of them, in order.
    pub const ALL: [Self; 20] = [
        Self::Called,
        Self::Queued,
        Self::Given,
        Self::Kicked,
        Self::PickedUp,
        Self::Taken,
        Self::ToHost,
        Self::Sent,
        Self::FromHost,
        Self::Noticed,
        Self::Read,
        Self::Delivered,
        Self::Raised,
        Self::Injected,
        Self::Handled,
        Self::Polled,
        Self::Received,
        Self::PassedUp,
        Self::Woken,
        Self::Running,
    ];

    /// Which packets these are.
    #[must_use]
    pub fn direction(self) -> Direction {
        if self <= Self::Sent { Direction::Sent } else { Direction::Received }
    }

    /// What has happened, in a word or two.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Called => "called",
            Self::Queued => "queued",
            Self::Given => "given to the driver",
            Self::Kicked => "kicked",
            Self::PickedUp => "picked up",
            Self::Taken => "taken",
            Self::ToHost => "on the tap",
            Self::Sent => "sent",
            Self::FromHost => "given to the tap",
            Self::Noticed => "noticed",
            Self::Read => "read",
            Self::Delivered => "delivered",
            Self::Raised => "raised",
            Self::Injected => "injected",
            Self::Handled => "handled",
            Self::Polled => "polled",
            Self::Received => "received",
            Self::PassedUp => "passed up",
            Self::Woken => "woken",
            Self::Running => "running",
        }
    }

    /// Whose time it is that ends with this milestone, after the one before it.
    #[must_use]
    pub const fn whose(self) -> &'static str {
        match self {
            Self::Called | Self::FromHost => "",
            Self::Queued => "guest: system call, protocols",
            Self::Given => "guest: queueing discipline",
            Self::Kicked => "guest driver",
            Self::PickedUp | Self::Noticed => "host: wake the VMM's thread",
            Self::Taken => "VMM: packets before it, limits",
            Self::ToHost => "VMM, host's tap",
            Self::Sent => "host's protocols",
            Self::Read => "VMM: packets before it",
            Self::Delivered => "VMM: limits, copy",
            Self::Raised => "VMM: rest of the batch",
            Self::Injected => "KVM: reach the vCPU",
            Self::Handled => "guest: enter the handler",
            Self::Polled => "guest: handler, soft interrupt",
            Self::Received => "guest driver: packets before it",
            Self::PassedUp => "guest: merging",
            Self::Woken => "guest's protocols",
            Self::Running => "guest scheduler",
        }
    }

    /// The event that stands for it.
    #[must_use]
    pub const fn event(self) -> &'static str {
        match self {
            Self::Called => "guest-kernel:raw_syscalls:sys_enter",
            Self::Queued => "guest-kernel:net:net_dev_queue",
            Self::Given => "guest-kernel:net:net_dev_start_xmit",
            Self::Kicked => "host-kernel:kvm:kvm_mmio",
            Self::PickedUp | Self::Noticed => "vmm:net_notified",
            Self::Taken | Self::Sent => "vmm:net_send",
            Self::ToHost => "host-kernel:net:netif_receive_skb",
            Self::FromHost => "host-kernel:net:net_dev_start_xmit",
            Self::Read | Self::Delivered => "vmm:net_receive",
            Self::Raised => "vmm:net_interrupt",
            Self::Injected => "host-kernel:kvm:kvm_inj_virq",
            Self::Handled => "guest-kernel:irq:irq_handler_entry",
            Self::Polled => "guest-kernel:irq:softirq_entry",
            Self::Received => "guest-kernel:net:napi_gro_receive_entry",
            Self::PassedUp => "guest-kernel:net:netif_receive_skb",
            Self::Woken => "guest-kernel:sched:sched_waking",
            Self::Running => "guest-kernel:sched:sched_switch",
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
#[derive(Debug)]
pub struct NetFlowTimes {
    /// By VM; `None` for one whose VMM can have recorded no packets.
    vms: Vec<Option<Follower>>,
    /// VMs and devices whose packets the host's kernel moved.
    vhost: BTreeSet<(usize, u32)>,
    samples: Samples,
}

/// What tells of packets.
const REPORTED_BY: [ReportedBy; 13] = [
    reported(LayerKind::Vmm, event::name::NET_SEND),
    reported(LayerKind::Vmm, event::name::NET_RECEIVE),
    reported(LayerKind::Vmm, "vmm:net_notified"),
    reported(LayerKind::Vmm, "vmm:net_interrupt"),
    reported(LayerKind::HostKernel, "kvm:kvm_mmio"),
    reported(LayerKind::HostKernel, "kvm:kvm_inj_virq"),
    reported(LayerKind::HostKernel, "net:net*"),
    reported(LayerKind::GuestKernel, "net:n*"),
    reported(LayerKind::GuestKernel, event::name::SYSCALL_ENTER),
    reported(LayerKind::GuestKernel, "irq:irq_handler_entry"),
    reported(LayerKind::GuestKernel, "irq:softirq_e*"),
    reported(LayerKind::GuestKernel, "sched:sched_wak*"),
    reported(LayerKind::GuestKernel, event::name::SWITCH),
];

impl Sampled for NetFlowTimes {
    fn samples(&mut self) -> Vec<(&'static [ReportedBy], &mut Samples)> {
        vec![(&REPORTED_BY, &mut self.samples)]
    }
}

impl NetFlowTimes {
    /// A report on `trace` before its first record.
    #[must_use]
    pub fn new(trace: &Trace) -> Self {
        let follower = |vm: &strata_recording::manifest::Vm| {
            let of_vm = |layer: &&TraceLayer| layer.description.vm.as_ref() == Some(&vm.name);
            let reports = |layer: &TraceLayer| {
                event::is_recorded(layer, event::name::NET_SEND) || event::is_recorded(layer, event::name::NET_RECEIVE)
            };
            trace.layers_of(LayerKind::Vmm).filter(of_vm).any(reports).then(Follower::default)
        };
        Self {
            vms: trace.manifest().vms.iter().map(follower).collect(),
            vhost: BTreeSet::new(),
            samples: Samples::default(),
        }
    }

    /// The same, which keeps each packet that ends for [`NetFlowTimes::take_ended`].
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

    /// The packets that have ended since the last call, each with the index of its VM. `at_end` says that no
    /// record is to come.
    pub fn take_ended(&mut self, timeline: &Timeline, at_end: bool) -> Vec<(usize, Direction, PacketFlow)> {
        let mut taken = Vec::new();
        for (index, follower) in self.vms.iter_mut().enumerate() {
            let (Some(follower), Some(vm)) = (follower, timeline.vm(index)) else { continue };
            if at_end {
                follower.end_all();
            }
            if follower.has_ended() {
                let ended = follower.take_ended(&vm.guest, timeline.clock());
                taken.extend(ended.into_iter().map(|(direction, flow)| (index, direction, flow)));
            }
        }
        taken
    }

    /// Adds the steps of a packet to the samples.
    fn sample(&mut self, vm: usize, direction: Direction, flow: &PacketFlow) {
        for step in &flow.steps {
            let row = || format!("{}: {}", direction.name(), step.name());
            self.samples.add(Some(vm), step.end, step.ticks, row);
        }
        let end = flow.begin.saturating_add(flow.ticks);
        self.samples.add(Some(vm), end, flow.ticks, || format!("whole packet: {}", direction.name()));
    }
}

impl KeepsEnded for NetFlowTimes {
    fn has_ended(&self) -> bool {
        self.vms.iter().flatten().any(Follower::has_ended)
    }
}

impl Analysis for NetFlowTimes {
    fn takes_change(&self, _kind: ChangeKind) -> bool {
        false
    }

    fn takes_record(&self, input: &Input<'_>) -> bool {
        Follower::takes(input) || matches!(input.event, Some(Event::NetVhost { .. }))
    }

    fn record(&mut self, input: &Input<'_>, timeline: &Timeline) {
        if let (Some(Event::NetVhost { net, moves: true }), Origin::Vmm { vm, .. }) = (&input.event, input.origin) {
            self.vhost.insert((vm, *net));
        }
        if input.event.is_some() {
            concerned(&mut self.vms, input.origin, timeline)
                .for_each(|(vm, follower)| follower.add(vm, input, timeline));
        }
        if self.samples.is_on() {
            for (vm, direction, flow) in self.take_ended(timeline, false) {
                self.sample(vm, direction, &flow);
            }
        }
    }

    fn gap(&mut self, gap: &Gap, timeline: &Timeline) {
        concerned(&mut self.vms, gap.origin, timeline).for_each(|(_, follower)| follower.gap(gap.begins));
    }
}

impl ReportBuilder for NetFlowTimes {
    type Report = NetFlowsReport;

    fn finish(self, trace: &Trace, passed: &Passed) -> Result<NetFlowsReport, ReportError> {
        let followers = self.vms.into_iter().enumerate();
        let flows = followers.filter_map(|(index, follower)| {
            let vm = passed.timeline.vm(index)?;
            let mut flows = follower?.finish(vm.name.clone(), &vm.guest, trace.clock());
            let of_vm = self.vhost.iter().filter(|(vm, _)| *vm == index);
            flows.moved_by_host_kernel.extend(of_vm.map(|(_, net)| net));
            Some(flows)
        });
        let of = |flows: &PacketFlows| flows.total.count + flows.dropped + flows.unmatched + flows.unfinished;
        let is_there = |vm: &VmNetFlows| of(&vm.sent) + of(&vm.received) + vm.across_lost_records > 0;
        let vms: Vec<_> = flows.filter(is_there).collect();
        if vms.is_empty() {
            let missing = "no VMM recorded a packet of a network device; record with --net and --events \
                           'default,guest:net:*,host:net:*', and without vhost=on, where the host's kernel moves \
                           packets past the VMM (strata why tells what held up that one's worker)";
            return Err(ReportError::Nothing { missing: missing.into() });
        }
        let mut tasks = vms
            .iter()
            .flat_map(|vm| vm.received.slowest.iter().filter_map(move |flow| Some((&vm.vm, flow.task.as_ref()?))));
        let first = tasks.next();
        let next = first.map(|(vm, task)| NextCommand::on(trace).worst_waits(vm, (&task.comm, task.tid)));
        Ok(NetFlowsReport { vms, next })
    }
}

impl Report for NetFlowsReport {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        self.vms.iter().try_for_each(|vm| vm.write(out))?;
        crate::report::write_next(self.next.as_deref(), out)
    }
}

impl VmNetFlows {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        self.sent.write(&self.vm, Direction::Sent, out)?;
        writeln!(out)?;
        self.received.write(&self.vm, Direction::Received, out)?;
        if self.across_lost_records > 0 {
            writeln!(
                out,
                "NOTE: {} packets were under way when records were lost or the choice of events changed",
                self.across_lost_records
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
    fn write(&self, vm: &str, direction: Direction, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}: {} packets {}", harmless(vm), self.total.count, direction.name())?;
        let mut table = columns::table(&self.steps);
        table.row(flow_step::other_row("whole packet", "", &self.total));
        table.write(out)?;
        if self.total.count > 0 && !self.never_met.is_empty() {
            let never: Vec<_> = self.never_met.iter().map(|met| format!("{} ({})", met.name(), met.event())).collect();
            writeln!(out, "NOTE: no packet met: {}", never.join(", "))?;
        }
        let notes = [
            (self.dropped, "packets were lost in the VMM"),
            (self.unmatched, "packets of the VMM and of the guest could not be matched; they are not counted"),
            (self.unfinished, "packets were under way at the end; they are not counted"),
        ];
        for (count, note) in notes.into_iter().filter(|(count, _)| *count > 0) {
            writeln!(out, "NOTE: {count} {note}")?;
        }
        (1..).zip(&self.slowest).try_for_each(|(place, flow)| flow.write(place, direction, out))
    }
}

impl PacketFlow {
    fn write(&self, place: usize, direction: Direction, out: &mut dyn Write) -> io::Result<()> {
        let role = match direction {
            Direction::Sent => " by",
            Direction::Received => ", waking",
        };
        let verb = direction.name();
        let task = self.task.as_ref();
        let task = task.map_or_else(String::new, |task| format!("{role} {}/{}", task.tid, harmless(&task.comm)));
        let device = self.device.as_ref();
        let device = device.map_or_else(String::new, |device| format!(" ({} in the guest)", harmless(device)));
        let (total, bytes, net, id) = (duration(self.total_ns), self.bytes, self.net, self.id);
        writeln!(out, "\n{place}. {total}: packet {id} of {bytes} bytes, {verb} on network {net}{device}{task}")?;
        let mut table = Table::new(&[("step", Align::Left), ("time", Align::Right), ("", Align::Left)]);
        for step in &self.steps {
            table.row([step.name(), duration(step.ns), step.whose()]);
        }
        table.write(out)
    }
}

#[cfg(test)]
mod tests;
