//! What vCPUs and guests' tasks did, and where records are missing.

use super::columns::cell::Cell;
use super::output::Output;
use super::places::Place;
use super::records::cpus;
use super::rows::FixedRows;
use super::task::{Named, Numbers, Tasks};
use super::{Maker, Selection};
use std::collections::BTreeMap;
use strata_analysis::timeline::fused::Fused;
use strata_analysis::timeline::states::TaskIndex;
use strata_analysis::timeline::vcpu::{Preemptor, VcpuState};
use strata_analysis::timeline::{Change, ChangeKind, Input, Origin, Timeline, Vm};
use strata_analysis::{Analysis, Gap, Passed};
use strata_recording::layer::LayerKind;
use strata_recording::window::Window;
use trace_merge::report::scheduling::{tasks, vcpus};

/// Those of the tables here that are in `selection`.
pub(super) fn makers<'m>(
    window: Window,
    selection: &Selection,
    output: &Output,
) -> impl Iterator<Item = Box<dyn Maker + 'm>> {
    let states = selection.has("vcpu_states") || selection.has("task_states");
    let states = states.then(|| {
        let table = |name| selection.has(name).then(|| FixedRows::new(name, output));
        let vcpus = table("vcpu_states").map(|table| table.keyed(&[6]).sorted());
        let tasks = table("task_states").map(|table| table.keyed(&[Named::COLUMNS, 5]).sorted());
        let (vcpu_states, task_states) = (Numbers::new(), Numbers::new());
        let (named, reported_until) = (Tasks::default(), BTreeMap::new());
        let begin = window.begin;
        let states = States { begin, vcpus, tasks, named, reported_until, vcpu_states, task_states };
        Box::new(states) as Box<dyn Maker>
    });
    let gaps = selection.has("gaps").then(|| {
        let gaps = Gaps { window, table: FixedRows::new("gaps", output), open: BTreeMap::new() };
        Box::new(gaps) as Box<dyn Maker>
    });
    states.into_iter().chain(gaps)
}

/// The states.
struct States {
    /// Where the window begins, ticks.
    begin: u64,
    vcpus: Option<FixedRows>,
    tasks: Option<FixedRows>,
    named: Tasks,
    /// By VM and task: up to when the state that lasts is written, under a name that the task had before.
    reported_until: BTreeMap<(usize, TaskIndex), u64>,
    /// Of VMs, their vCPUs and what these do.
    vcpu_states: Numbers<(usize, u32, VcpuState)>,
    /// Of VMs and what their tasks do.
    task_states: Numbers<(usize, Fused)>,
}

impl States {
    /// The task was in `state` in `window`: under the name that it has now, or the one that it had before.
    fn task(
        &mut self,
        (vm, task): (usize, TaskIndex),
        window: Window,
        state: Fused,
        timeline: &Timeline,
        is_former: bool,
    ) {
        // As in the report on tasks: while the guest's kernel was recorded, and the task existed.
        let known = timeline.vm(vm);
        let recorded = known.and_then(|vm| vm.kernel_span?.intersection(&window));
        let life = known.zip(recorded).and_then(|(vm, recorded)| vm.guest.task(task)?.life(&recorded));
        let Some(window) = life else { return };
        let Some(table) = &mut self.tasks else { return };
        let Some(row) = table.in_window(Place::Vm(vm), window) else { return };
        let tasks = &mut self.named;
        let named = if is_former { tasks.formerly(timeline, vm, task) } else { tasks.named(timeline, vm, task) };
        let row = row.keyed(named.number.into(), |give| named.give(&[], give));
        let row = row.keyed(self.task_states.of((vm, state)), |give| {
            let (name, detail) = tasks::name(state, timeline.host_of(vm));
            let by = match state {
                Fused::Stolen(by) | Fused::RunnableStolen(by) => Some(by),
                _ => None,
            };
            report_thief(&[name.into(), detail.as_deref().into()], by, timeline, vm, give);
        });
        row.cells([window.length().into()]).end();
    }
}

/// Shows `give` the cells of the thread that ran in place of one of `vm`, behind those of `before`.
fn report_thief(
    before: &[Cell<'_>],
    by: Option<Preemptor>,
    timeline: &Timeline,
    vm: usize,
    give: &mut dyn FnMut(&[Cell<'_>]),
) {
    let thread = match by {
        Some(Preemptor::Thread(thread)) => Some(thread),
        _ => None,
    };
    let comm = thread.zip(timeline.host_of(vm)).map(|(thread, host)| host.thread_name(thread));
    let host = timeline.vm(vm).map(|vm| vm.host);
    let of_vm = thread.and_then(|thread| {
        let is_its = |vm: &&Vm| Some(vm.host) == host && vm.vcpus.values().any(|vcpu| vcpu.tid == Some(thread.tid));
        timeline.vms.iter().find(is_its).map(|vm| vm.name.as_str())
    });
    give(&[before, &[comm.as_deref().into(), thread.map(|thread| thread.tid).into(), of_vm.into()]].concat());
}

impl Analysis for States {
    fn takes_record(&self, _input: &Input<'_>) -> bool {
        false
    }

    fn takes_change(&self, kind: ChangeKind) -> bool {
        match kind {
            ChangeKind::Vcpu => self.vcpus.is_some(),
            ChangeKind::Task | ChangeKind::TaskName => self.tasks.is_some(),
            ChangeKind::Cpu | ChangeKind::TaskState => false,
        }
    }

    fn change(&mut self, change: &Change, timeline: &Timeline) {
        match *change {
            Change::Vcpu { vm, vcpu, window, state } => {
                let Some(table) = &mut self.vcpus else { return };
                let Some(row) = table.in_window(Place::Vm(vm), window) else { return };
                let key = self.vcpu_states.of((vm, vcpu, state));
                let row = row.keyed(key, |give| {
                    let (name, detail) = vcpus::name(state, timeline.host_of(vm));
                    let by = match state {
                        VcpuState::Stolen { by, .. } => Some(by),
                        _ => None,
                    };
                    report_thief(&[vcpu.into(), name.into(), detail.as_deref().into()], by, timeline, vm, give);
                });
                row.cells([window.length().into()]).end();
            }
            Change::Task { vm, task, window, state } => {
                let begin = self.reported_until.remove(&(vm, task)).unwrap_or(0).max(window.begin);
                self.task((vm, task), Window { begin, ..window }, state, timeline, false);
            }
            Change::TaskName { vm, task, time } => {
                let Some(known) = timeline.vm(vm).and_then(|vm| vm.guest.task(task)) else { return };
                if known.former.is_empty() {
                    return;
                }
                let begin = self.reported_until.insert((vm, task), time).unwrap_or(0).max(known.since).max(self.begin);
                self.task((vm, task), Window { begin, end: time }, known.fused, timeline, true);
            }
            Change::Cpu { .. } | Change::TaskState { .. } => {}
        }
    }
}

impl Maker for States {
    fn finish(&mut self, _passed: &Passed) {}
}

/// Where records are missing.
struct Gaps {
    /// What is exported.
    window: Window,
    table: FixedRows,
    /// By stream: since when.
    open: BTreeMap<usize, (u64, Origin)>,
}

impl Gaps {
    /// Adds the part of a gap that lies in the window, as it is counted: a missing beginning goes back to tick 0.
    fn push(&mut self, (begin, origin): (u64, Origin), end: u64, timeline: &Timeline) {
        let Window { begin: from, end: to } = self.window;
        if begin >= to || end < from || (end == from && begin < end) {
            return;
        }
        let (cpu, vcpu) = cpus(origin, timeline);
        let place = match origin {
            Origin::Host { host, .. } => Place::Host(host),
            Origin::Vmm { vm, .. } | Origin::Guest { vm, .. } | Origin::User { vm, .. } => Place::Vm(vm),
        };
        let own: [Cell<'_>; 3] = [origin.layer().name().into(), cpu.into(), vcpu.into()];
        self.table.push_window(place, Window { begin: begin.max(from), end: end.min(to) }, &own);
    }
}

impl Analysis for Gaps {
    fn layers(&self) -> &'static [LayerKind] {
        &LayerKind::ALL
    }

    fn takes_record(&self, _input: &Input<'_>) -> bool {
        false
    }

    fn takes_change(&self, _kind: ChangeKind) -> bool {
        false
    }

    fn needs_states(&self) -> bool {
        false
    }

    fn gap(&mut self, gap: &Gap, timeline: &Timeline) {
        if gap.begins {
            self.open.entry(gap.source).or_insert((gap.time, gap.origin));
        } else if let Some(begun) = self.open.remove(&gap.source) {
            self.push(begun, gap.time, timeline);
        }
    }
}

impl Maker for Gaps {
    /// What is missing at the end is so up to the end of the window. Where only applications recorded, that is the last
    /// record.
    fn finish(&mut self, passed: &Passed) {
        let last = passed.totals.iter().filter_map(|totals| totals.last).max();
        let end = passed.window.map(|window| window.end).or(last).unwrap_or(0);
        for begun in std::mem::take(&mut self.open).into_values() {
            self.push(begun, end.max(begun.0), &passed.timeline);
        }
    }
}
