//! Requests of virtio disks: each as a slice, its steps as slices of the side that they are the time of, and a flow from
//! step to step.
//!
//! All of that is on the host's machine, the guest's steps included: Perfetto's flows do not cross machines.

use super::packets::{Name, PacketWriter, number, text};
use super::proto::TrackEvent;
use super::tracks::{self, Kind, uuid};
use crate::report::flows::{Flow, Milestone, step_name, whose};
use crate::report::harmless;
use crate::timeline::Timeline;
use std::io::Write;

/// Lanes of a VM's requests: no more are under way at once.
const MOST_LANES: usize = 4096;

/// Draws requests that have ended.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// By VM, the requests that were drawn beside each other: when the last one of the lane ends, ticks.
    lanes: Vec<Vec<u64>>,
    /// Requests so far.
    drawn: u64,
}

/// Whose time the step is that ends with `milestone`.
const fn side(milestone: Milestone) -> (Kind, &'static str) {
    match milestone {
        Milestone::PickedUp | Milestone::Injected => (Kind::RequestHost, "host"),
        Milestone::Started | Milestone::Finished | Milestone::Raised => (Kind::RequestVmm, "VMM"),
        Milestone::Issued
        | Milestone::Kicked
        | Milestone::Handled
        | Milestone::Completed
        | Milestone::Woken
        | Milestone::Running => (Kind::RequestGuest, "guest"),
    }
}

impl Requests {
    /// Draws a request of the VM at `vm`.
    pub(super) fn draw<W: Write>(&mut self, out: &mut PacketWriter<W>, timeline: &Timeline, vm: usize, flow: &Flow) {
        let (Some(known), clock) = (timeline.vm(vm), timeline.clock()) else { return };
        let machine = tracks::host(known.host);
        let ns = |ticks| clock.ticks_to_ns(ticks);
        let end = flow.begin.saturating_add(flow.ticks);
        let lane = self.lane(out, timeline, vm, flow.begin, end);
        self.drawn += 1;
        let mut annotations =
            vec![number("disk", flow.disk.into()), number("sector", flow.sector), number("bytes", flow.bytes)];
        annotations.extend(flow.device.as_ref().map(|device| text("guest_device", device)));
        let tasks = [("issuer", &flow.issuer), ("woken", &flow.woken)];
        annotations.extend(tasks.into_iter().filter_map(|(name, task)| {
            let task = task.as_ref()?;
            Some(text(name, format!("{}/{}", harmless(&task.comm), task.tid)))
        }));
        annotations.extend(flow.host_io_ns.map(|ns| number("host_io_ns", ns)));
        let event = TrackEvent { debug_annotations: annotations, ..TrackEvent::default() };
        let name = harmless(&flow.kind);
        out.slice(machine, uuid(Kind::Request, vm, lane), (ns(flow.begin), ns(end)), Name::Few(&name), event);
        for (place, step) in (1..).zip(&flow.steps) {
            let (kind, _) = side(step.to);
            let is_last = place == flow.steps.len();
            let event = TrackEvent {
                debug_annotations: vec![text("whose", whose(step.from, step.to))],
                flow_ids: if is_last { Vec::new() } else { vec![self.drawn] },
                terminating_flow_ids: if is_last { vec![self.drawn] } else { Vec::new() },
                ..TrackEvent::default()
            };
            let window = (ns(step.end - step.ticks), ns(step.end));
            let name = step_name(step.from, step.to);
            out.slice(machine, uuid(kind, vm, lane), window, Name::Few(&name), event);
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
        let group = uuid(Kind::Requests, vm, 0);
        if lane == 0 {
            let name = timeline.vm(vm).map_or_else(String::new, |vm| format!("{}: disk requests", vm.name));
            out.track(machine, time, tracks::named(group, None, name));
        }
        out.track(machine, time, tracks::named(uuid(Kind::Request, vm, lane), Some(group), "requests"));
        for milestone in [Milestone::Kicked, Milestone::PickedUp, Milestone::Started] {
            let (kind, name) = side(milestone);
            out.track(machine, time, tracks::named(uuid(kind, vm, lane), Some(group), format!("steps: {name}")));
        }
        lane
    }
}
