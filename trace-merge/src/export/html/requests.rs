//! Requests of virtio disks: each in a row beside those that were under way at the same time, its steps as slices.

use super::category::Category;
use super::rows::{RowKind, RowNumber, Rows};
use crate::report::flows::{Flow, Milestone, step_name, whose};
use crate::report::harmless;
use crate::timeline::Timeline;
use serde::Serialize;

/// Rows of a VM's requests; those for which there is none left are not drawn.
const MOST_LANES: usize = 32;
/// Requests whose properties are kept.
const MOST: usize = 20_000;

/// A request, as the page shows it.
#[derive(Debug, Serialize)]
pub(super) struct Request {
    row: RowNumber,
    /// ns.
    begin: u64,
    end: u64,
    kind: String,
    disk: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    sector: u64,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    issuer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    woken: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host_io_ns: Option<u64>,
    /// Of each step what it is, whose time, and when it ends, ns.
    steps: Vec<(String, String, u64)>,
}

/// Requests in the making.
#[derive(Debug, Default)]
pub(super) struct Requests {
    kept: Vec<Request>,
    /// Requests that are not drawn, or whose properties are not kept.
    left_out: u64,
    /// By VM: the rows, each with the time when its last request ends, ns.
    lanes: Vec<Vec<(RowNumber, u64)>>,
}

/// Whose time the step is that ends with `milestone`.
const fn category(milestone: Milestone) -> Category {
    match milestone {
        Milestone::PickedUp | Milestone::Injected => Category::Kvm,
        Milestone::Started | Milestone::Finished | Milestone::Raised => Category::Vmm,
        Milestone::Issued
        | Milestone::Kicked
        | Milestone::Handled
        | Milestone::Completed
        | Milestone::Woken
        | Milestone::Running => Category::Running,
    }
}

impl Requests {
    /// Those whose properties are kept, in the order of their ends.
    pub(super) fn kept(&self) -> &[Request] {
        &self.kept
    }

    /// How many are not drawn, or not kept.
    pub(super) const fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Draws a request of the VM at `vm`; `ns` makes ticks nanoseconds of the page. The row that it is drawn in.
    pub(super) fn draw(
        &mut self,
        rows: &mut Rows,
        timeline: &Timeline,
        vm: usize,
        flow: &Flow,
        ns: impl Fn(u64) -> u64,
    ) -> Option<RowNumber> {
        let (begin, end) = (ns(flow.begin), ns(flow.begin.saturating_add(flow.ticks)));
        let Some(row) = self.lane(rows, timeline, vm, (begin, end)) else {
            self.left_out += 1;
            return None;
        };
        let kind = harmless(&flow.kind);
        for step in &flow.steps {
            let window = (ns(step.end.saturating_sub(step.ticks)), ns(step.end));
            rows.slice(row, window, category(step.to), &format!("{kind}: {}", step_name(step.from, step.to)));
        }
        if self.kept.len() >= MOST {
            self.left_out += 1;
            return Some(row);
        }
        let task = |task: &crate::report::flows::FlowTask| format!("{}/{}", harmless(&task.comm), task.tid);
        let steps =
            flow.steps.iter().map(|step| (step_name(step.from, step.to), whose(step.from, step.to), ns(step.end)));
        self.kept.push(Request {
            row,
            begin,
            end,
            kind,
            disk: flow.disk,
            device: flow.device.clone(),
            sector: flow.sector,
            bytes: flow.bytes,
            issuer: flow.issuer.as_ref().map(task),
            woken: flow.woken.as_ref().map(task),
            host_io_ns: flow.host_io_ns,
            steps: steps.collect(),
        });
        Some(row)
    }

    /// A row of the VM in which nothing is drawn after the window's begin.
    fn lane(&mut self, rows: &mut Rows, timeline: &Timeline, vm: usize, window: (u64, u64)) -> Option<RowNumber> {
        if self.lanes.len() <= vm {
            self.lanes.resize(vm + 1, Vec::new());
        }
        let lanes = self.lanes.get_mut(vm)?;
        if let Some((row, busy_until)) = lanes.iter_mut().find(|(_, busy_until)| *busy_until <= window.0) {
            *busy_until = window.1;
            return Some(*row);
        }
        if lanes.len() >= MOST_LANES {
            return None;
        }
        let row = rows.row(RowKind::Disk, &timeline.vm(vm)?.name, "disk requests");
        lanes.push((row, window.1));
        Some(row)
    }
}
