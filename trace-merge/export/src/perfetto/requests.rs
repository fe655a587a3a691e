//! Requests of virtio disks, and packets of virtio networks: each as a slice, its steps as slices of the side that they
//! are the time of, and a flow from step to step.
//!
//! All of that is on the host's machine, the guest's steps included: Perfetto's flows do not cross machines.

use super::packets::{Name, PacketWriter, number, text};
use super::proto::{DebugAnnotation, TrackEvent};
use super::tracks::{self, Kind, uuid};
use std::io::Write;
use strata_analysis::timeline::Timeline;
use strata_recording::text::terminal::harmless;
use trace_merge::report::devices::flow_step::{FlowMilestone, FlowStep, FlowTask, Side};
use trace_merge::report::devices::flows::Flow;
use trace_merge::report::devices::net_flows::{Direction, PacketFlow};

/// Lanes of a VM's requests of one sort: no more are under way at once.
const MOST_LANES: usize = 4096;

/// What is drawn of one sort of requests.
#[derive(Debug)]
struct Sort {
    /// All of a VM.
    group: Kind,
    group_name: &'static str,
    /// Those under way.
    whole: Kind,
    whole_name: &'static str,
    /// Their steps, by [`Side`].
    sides: [Kind; 3],
    /// Number of the first flow.
    first: u64,
}

/// Requests of disks.
const DISK: Sort = Sort {
    group: Kind::Requests,
    group_name: "disk requests",
    whole: Kind::Request,
    whole_name: "requests",
    sides: [Kind::RequestGuest, Kind::RequestHost, Kind::RequestVmm],
    first: 1,
};

/// Packets of networks.
const NETWORK: Sort = Sort {
    group: Kind::Packets,
    group_name: "network packets",
    whole: Kind::Packet,
    whole_name: "packets",
    sides: [Kind::PacketGuest, Kind::PacketHost, Kind::PacketVmm],
    first: 1 << 63,
};

/// What the tracks of steps are called, by [`Side`].
const SIDES: [&str; 3] = ["guest", "host", "VMM"];

/// A step, as it is drawn.
struct Step {
    name: String,
    whose: String,
    side: Side,
    /// Ticks.
    end: u64,
    ticks: u64,
}

impl Step {
    /// All of `steps`.
    fn all<M: FlowMilestone>(steps: &[FlowStep<M>]) -> Vec<Self> {
        let step = |step: &FlowStep<M>| Self {
            name: step.name(),
            whose: step.whose(),
            side: step.to.side(),
            end: step.end,
            ticks: step.ticks,
        };
        steps.iter().map(step).collect()
    }
}

/// A request, as it is drawn.
struct Drawing {
    name: String,
    /// Ticks.
    begin: u64,
    ticks: u64,
    annotations: Vec<DebugAnnotation>,
    steps: Vec<Step>,
}

/// Draws requests of one sort that have ended.
#[derive(Debug)]
pub(super) struct Requests {
    sort: &'static Sort,
    /// By VM, the requests that were drawn beside each other: when the last one of the lane ends, ticks.
    lanes: Vec<Vec<u64>>,
    /// Requests so far.
    drawn: u64,
}

impl Requests {
    /// Of disks.
    pub(super) const fn of_disks() -> Self {
        Self { sort: &DISK, lanes: Vec::new(), drawn: 0 }
    }

    /// Packets of networks.
    pub(super) const fn of_networks() -> Self {
        Self { sort: &NETWORK, lanes: Vec::new(), drawn: 0 }
    }

    /// Draws a disk's request of the VM at `vm`.
    pub(super) fn draw<W: Write>(&mut self, out: &mut PacketWriter<W>, timeline: &Timeline, vm: usize, flow: &Flow) {
        let mut annotations =
            vec![number("disk", flow.disk.into()), number("sector", flow.sector), number("bytes", flow.bytes)];
        annotations.extend(flow.device.as_ref().map(|device| text("guest_device", device)));
        let tasks = [("issuer", &flow.issuer), ("woken", &flow.woken)];
        annotations.extend(tasks.into_iter().filter_map(|(name, task)| Some(text(name, task_name(task.as_ref()?)))));
        annotations.extend(flow.host_io_ns.map(|ns| number("host_io_ns", ns)));
        let (name, steps) = (harmless(&flow.kind), Step::all(&flow.steps));
        self.draw_one(out, timeline, vm, Drawing { name, begin: flow.begin, ticks: flow.ticks, annotations, steps });
    }

    /// Draws a network's packet of the VM at `vm`.
    pub(super) fn draw_packet<W: Write>(
        &mut self,
        out: &mut PacketWriter<W>,
        timeline: &Timeline,
        vm: usize,
        (direction, flow): (Direction, &PacketFlow),
    ) {
        let mut annotations = vec![number("net", flow.net.into()), number("id", flow.id), number("bytes", flow.bytes)];
        annotations.extend(flow.device.as_ref().map(|device| text("guest_device", harmless(device))));
        let role = match direction {
            Direction::Sent => "sender",
            Direction::Received => "woken",
        };
        annotations.extend(flow.task.as_ref().map(|task| text(role, task_name(task))));
        let (name, steps) = (direction.name().to_owned(), Step::all(&flow.steps));
        self.draw_one(out, timeline, vm, Drawing { name, begin: flow.begin, ticks: flow.ticks, annotations, steps });
    }

    fn draw_one<W: Write>(&mut self, out: &mut PacketWriter<W>, timeline: &Timeline, vm: usize, drawing: Drawing) {
        let (Some(known), clock) = (timeline.vm(vm), timeline.clock()) else { return };
        let machine = tracks::host(known.host);
        let ns = |ticks| clock.ticks_to_ns(ticks);
        let Drawing { name, begin, ticks, annotations, steps } = drawing;
        let end = begin.saturating_add(ticks);
        let lane = self.lane(out, timeline, vm, begin, end);
        let number = self.sort.first.saturating_add(self.drawn);
        self.drawn += 1;
        let event = TrackEvent { debug_annotations: annotations, ..TrackEvent::default() };
        out.slice(machine, uuid(self.sort.whole, vm, lane), (ns(begin), ns(end)), Name::Few(&name), Some(&event));
        for (place, step) in (1..).zip(&steps) {
            let kind = self.sort.sides[step.side as usize];
            let is_last = place == steps.len();
            let event = TrackEvent {
                debug_annotations: vec![text("whose", &step.whose)],
                flow_ids: if is_last { Vec::new() } else { vec![number] },
                terminating_flow_ids: if is_last { vec![number] } else { Vec::new() },
                ..TrackEvent::default()
            };
            let window = (ns(step.end - step.ticks), ns(step.end));
            out.slice(machine, uuid(kind, vm, lane), window, Name::Few(&step.name), Some(&event));
        }
    }

    /// A lane in which nothing is drawn after `begin`; describes its tracks when it is new.
    pub(super) fn lane<W: Write>(
        &mut self,
        out: &mut PacketWriter<W>,
        timeline: &Timeline,
        vm: usize,
        begin: u64,
        end: u64,
    ) -> usize {
        if self.lanes.len() <= vm {
            self.lanes.resize(vm + 1, Vec::new());
        }
        let Some(lanes) = self.lanes.get_mut(vm) else { return 0 };
        if let Some(free) = lanes.iter().position(|&busy_until| busy_until <= begin) {
            lanes[free] = end;
            return free;
        }
        if lanes.len() >= MOST_LANES {
            return MOST_LANES - 1;
        }
        let lane = lanes.len();
        lanes.push(end);
        let (host, time) = (timeline.vm(vm).map_or(0, |vm| vm.host), timeline.clock().ticks_to_ns(begin));
        let machine = tracks::host(host);
        let group = uuid(self.sort.group, vm, 0);
        if lane == 0 {
            let name = timeline.vm(vm).map_or_else(String::new, |vm| format!("{}: {}", vm.name, self.sort.group_name));
            out.track(machine, time, tracks::named(group, None, name));
        }
        out.track(machine, time, tracks::named(uuid(self.sort.whole, vm, lane), Some(group), self.sort.whole_name));
        for (side, kind) in SIDES.into_iter().zip(self.sort.sides) {
            let track = tracks::named(uuid(kind, vm, lane), Some(group), format!("steps: {side}"));
            out.track(machine, time, track);
        }
        lane
    }
}

fn task_name(task: &FlowTask) -> String {
    format!("{}/{}", harmless(&task.comm), task.tid)
}
