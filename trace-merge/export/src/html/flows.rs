//! What goes through all layers: requests of virtio disks, and packets of virtio network devices. Each lies in a row
//! beside those that were under way at the same time, its steps as slices.

use super::category::Category;
use super::rows::{RowKind, RowNumber, Rows};
use foldhash::HashMap;
use serde::Serialize;
use strata_recording::text::terminal::harmless;
use trace_merge::report::devices::flow_step::{FlowMilestone, FlowStep, FlowTask, Side};
use trace_merge::report::devices::flows::Flow;
use trace_merge::report::devices::net_flows::{Direction, PacketFlow};
use trace_merge::report::duration;

/// Rows of a VM's requests, and of its packets; those for which there is none left are not drawn.
const MOST_LANES: usize = 32;
/// Requests and packets whose properties are kept.
const MOST: usize = 20_000;

/// A request or a packet, to be drawn.
pub(super) struct NewFlow {
    /// Which rows it lies in.
    kind: RowKind,
    /// What its slices are called, before the step.
    head: String,
    what: String,
    facts: Vec<(&'static str, String)>,
    begin: u64,
    end: u64,
    steps: Vec<Step>,
}

/// A step of it.
struct Step {
    category: Category,
    name: String,
    whose: String,
    begin: u64,
    end: u64,
}

impl Step {
    /// All of `steps`.
    fn all<M: FlowMilestone>(steps: &[FlowStep<M>], ns: impl Fn(u64) -> u64) -> Vec<Self> {
        let step = |step: &FlowStep<M>| Self {
            category: of_side(step.to.side()),
            name: step.name(),
            whose: step.whose(),
            begin: ns(step.end.saturating_sub(step.ticks)),
            end: ns(step.end),
        };
        steps.iter().map(step).collect()
    }
}

/// A request or a packet, as the page shows it.
#[derive(Debug, Serialize)]
pub(super) struct DrawnFlow {
    row: RowNumber,
    /// ns.
    begin: u64,
    end: u64,
    /// What it is, in a line.
    what: String,
    /// What else is known of it: name and value.
    facts: Vec<(&'static str, String)>,
    /// Of each step what it is, whose time, and when it ends, ns.
    steps: Vec<(String, String, u64)>,
}

/// Requests and packets in the making.
#[derive(Debug, Default)]
pub(super) struct Flows {
    kept: Vec<DrawnFlow>,
    /// How many are not drawn, or their properties not kept.
    left_out: u64,
    /// By VM and kind: the rows, each with the time when the last one in it ends, ns.
    lanes: HashMap<(usize, RowKind), Vec<(RowNumber, u64)>>,
}

/// What a step is drawn as.
const fn of_side(side: Side) -> Category {
    match side {
        Side::Guest => Category::Running,
        Side::Host => Category::Kvm,
        Side::Vmm => Category::Vmm,
    }
}

fn named(task: &FlowTask) -> String {
    format!("{}/{}", harmless(&task.comm), task.tid)
}

/// What the guest calls the device, behind what the VMM calls it.
fn in_the_guest(device: Option<&str>) -> String {
    device.map_or_else(String::new, |device| format!(" ({} in the guest)", harmless(device)))
}

impl NewFlow {
    /// A request; `ns` makes ticks nanoseconds of the page.
    pub(super) fn request(flow: &Flow, ns: impl Fn(u64) -> u64) -> Self {
        let device = in_the_guest(flow.device.as_deref());
        let facts = [
            ("issued by", flow.issuer.as_ref().map(named)),
            ("woke", flow.woken.as_ref().map(named)),
            ("host block I/O", flow.host_io_ns.map(duration)),
        ];
        let kind = harmless(&flow.kind);
        Self {
            kind: RowKind::Disk,
            what: format!("{kind}, {} bytes at sector {} of disk {}{device}", flow.bytes, flow.sector, flow.disk),
            head: kind,
            facts: facts.into_iter().filter_map(|(name, value)| Some((name, value?))).collect(),
            begin: ns(flow.begin),
            end: ns(flow.begin.saturating_add(flow.ticks)),
            steps: Step::all(&flow.steps, ns),
        }
    }

    /// A packet; `ns` makes ticks nanoseconds of the page.
    pub(super) fn packet(direction: Direction, flow: &PacketFlow, ns: impl Fn(u64) -> u64) -> Self {
        let device = in_the_guest(flow.device.as_deref());
        let role = match direction {
            Direction::Sent => "sent by",
            Direction::Received => "woke",
        };
        Self {
            kind: RowKind::Net,
            what: format!(
                "packet {}, {}, {} bytes, network {}{device}",
                flow.id,
                direction.name(),
                flow.bytes,
                flow.net
            ),
            head: direction.name().into(),
            facts: flow.task.iter().map(|task| (role, named(task))).collect(),
            begin: ns(flow.begin),
            end: ns(flow.begin.saturating_add(flow.ticks)),
            steps: Step::all(&flow.steps, ns),
        }
    }
}

impl Flows {
    /// Those whose properties are kept, in the order of their ends.
    pub(super) fn kept(&self) -> &[DrawnFlow] {
        &self.kept
    }

    /// How many are not drawn, or not kept.
    pub(super) const fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Draws `flow` of the VM at `vm`, whose rows are in `group`. The row that it is drawn in.
    pub(super) fn draw(&mut self, rows: &mut Rows, (vm, group): (usize, &str), flow: NewFlow) -> Option<RowNumber> {
        let Some(row) = self.lane(rows, (vm, group), &flow) else {
            self.left_out += 1;
            return None;
        };
        for step in &flow.steps {
            rows.slice(row, (step.begin, step.end), step.category, &format!("{}: {}", flow.head, step.name));
        }
        if self.kept.len() >= MOST {
            self.left_out += 1;
            return Some(row);
        }
        let NewFlow { what, facts, begin, end, steps, .. } = flow;
        let steps = steps.into_iter().map(|step| (step.name, step.whose, step.end)).collect();
        self.kept.push(DrawnFlow { row, begin, end, what, facts, steps });
        Some(row)
    }

    /// A row of the VM and kind in which nothing is drawn after `flow` begins.
    fn lane(&mut self, rows: &mut Rows, (vm, group): (usize, &str), flow: &NewFlow) -> Option<RowNumber> {
        let lanes = self.lanes.entry((vm, flow.kind)).or_default();
        if let Some((row, busy_until)) = lanes.iter_mut().find(|(_, busy_until)| *busy_until <= flow.begin) {
            *busy_until = flow.end;
            return Some(*row);
        }
        if lanes.len() >= MOST_LANES {
            return None;
        }
        let name = if flow.kind == RowKind::Net { "packets" } else { "disk requests" };
        let row = rows.row(flow.kind, group, name);
        lanes.push((row, flow.end));
        Some(row)
    }
}
