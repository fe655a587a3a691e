//! Where the time of a guest's tasks went, summed by cgroup: `strata report tasks --by cgroup`.

use super::tasks::{TaskTimes, VmTasks};
use super::times::{Times, shown, table_of_times};
use crate::report::description::{Description, Requested};
use crate::report::rows::columns;
use crate::report::rows::columns::{Column, ReportRow, Unit, Value, column};
use crate::report::rows::table::Align;
use crate::report::sink::Sink;
use crate::report::{Report, ReportBuilder, ReportError, Window};
use serde::Serialize;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use strata_analysis::timeline::{Change, ChangeKind, Input, Timeline};
use strata_analysis::{Analysis, Passed, event};
use strata_recording::clock::Clock;
use strata_recording::reader::Trace;
use strata_recording::text::counted::counted;
use strata_recording::text::terminal::harmless;

/// What describes the report.
pub const DESCRIPTION: Description = Description {
    name: "cgroups",
    about: "Sums of the tasks in place of each task",
    requested: Requested::Option { of: "tasks", option: "by", value: Some("cgroup") },
    examples: &[],
    takes_symbols: false,
    is_in_all: false,
    rows: &[columns::rows::<CgroupReport>("vms[].cgroups[]")],
    begin: |_, window, _| Ok(Box::new(CgroupTimes::new(window))),
};

/// Where the time of the tasks of all guests went, by cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cgroups {
    /// Ticks per second: times are in ticks where they have to add up.
    pub frequency_hz: u64,
    /// The VMs whose guest's kernel was recorded.
    pub vms: Vec<VmCgroups>,
}

/// Where the time of the tasks of a guest went, by cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VmCgroups {
    /// Name of the VM.
    pub vm: String,
    /// What is reported on: no longer than the guest's kernel was recorded.
    pub window: Window,
    /// What is not told, and why.
    pub warnings: Vec<String>,
    /// The cgroups; the one whose tasks had the CPU, or wanted it, for longest first.
    #[serde(serialize_with = "columns::serialize")]
    pub cgroups: Vec<CgroupReport>,
}

/// Where the time of the tasks of a cgroup went, those of the cgroups below it not counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupReport {
    /// Path in the default hierarchy; `#ID` where the path is not known, `None` of the tasks whose cgroup is not.
    pub path: Option<String>,
    /// How many tasks were in it.
    pub tasks: u64,
    /// Their times there, together, ticks.
    pub wall_ticks: u64,
    /// The same, ns.
    pub wall_ns: u64,
    /// What the time is made of, ticks; the parts add up to `wall_ticks`.
    pub times: Times,
    /// The same, ns, each rounded down.
    pub times_ns: Times,
}

impl ReportRow for CgroupReport {
    const COLUMNS: &'static [Column<Self>] = &[
        column("path", "cgroup", Unit::Text, "Its path, or `#ID` without one; nothing where it is not known", |row| {
            row.path.as_ref().into()
        }),
        column("tasks", "tasks", Unit::Count, "How many tasks were in it", |row| row.tasks.into()),
        column("wall_ticks", "", Unit::Ticks, "Their times there, together", |row| row.wall_ticks.into()),
        column("wall_ns", "wall", Unit::Ns, "The same", |row| row.wall_ns.into()),
        column("times_ticks", "", Unit::Object, "Its parts, as those of a task", |row| Value::object(&row.times)),
        column("times_ns", "", Unit::Object, "The same, ns, each rounded down", |row| Value::object(&row.times_ns)),
    ];
}

/// The report in the making: that on tasks, summed in the end.
#[derive(Debug)]
pub struct CgroupTimes(TaskTimes);

impl CgroupTimes {
    /// A report on `window` before its first record.
    #[must_use]
    pub fn new(window: Window) -> Self {
        Self(TaskTimes::new(window))
    }
}

impl Analysis for CgroupTimes {
    fn takes_change(&self, kind: ChangeKind) -> bool {
        self.0.takes_change(kind)
    }

    fn takes_record(&self, input: &Input<'_>) -> bool {
        self.0.takes_record(input)
    }

    fn change(&mut self, change: &Change, timeline: &Timeline) {
        self.0.change(change, timeline);
    }
}

impl ReportBuilder for CgroupTimes {
    type Report = Cgroups;

    fn finish(self, trace: &Trace, passed: &Passed) -> Result<Cgroups, ReportError> {
        let tasks = self.0.finish(trace, passed)?;
        let is_known =
            |vm: &str| passed.timeline.vms.iter().any(|known| known.name == vm && known.guest.memberships.any_known());
        if !tasks.vms.iter().any(|vm| is_known(&vm.vm)) {
            let reason = tasks.vms.first().map_or("", |vm| unknown_for(trace, &vm.vm));
            return Err(ReportError::nothing("which cgroups the guest's tasks are in is not known", reason));
        }
        let of_vm = |vm: VmTasks| {
            let unknown = (!is_known(&vm.vm)).then(|| format!("cgroups are not known: {}", unknown_for(trace, &vm.vm)));
            let cgroups = sums(&vm, trace.clock());
            let warnings = vm.warnings.into_iter().chain(unknown).collect();
            VmCgroups { vm: vm.vm, window: vm.window, warnings, cgroups }
        };
        Ok(Cgroups { frequency_hz: tasks.frequency_hz, vms: tasks.vms.into_iter().map(of_vm).collect() })
    }
}

/// Why nothing is known of the cgroups of `vm`.
fn unknown_for(trace: &Trace, vm: &str) -> &'static str {
    let mut schemas = trace.kernel_layers(vm).flat_map(|layer| layer.schemas.iter());
    match schemas.find(|schema| schema.name() == event::name::TASK) {
        None => "no strata:task among its events: an agent of this version records them",
        Some(schema) if schema.description().fields.iter().all(|field| field.name != "cgroup") => {
            "its kernel is built without them, CONFIG_CGROUPS"
        }
        Some(_) => {
            "no strata:task is left: they are recorded where a session begins that wants them, as the default does"
        }
    }
}

/// The times of the tasks in `vm`, by cgroup.
fn sums(vm: &VmTasks, clock: &Clock) -> Vec<CgroupReport> {
    let mut cgroups: BTreeMap<Option<&str>, (CgroupReport, BTreeSet<i32>)> = BTreeMap::new();
    for task in &vm.tasks {
        let (sum, tids) = cgroups.entry(task.cgroup.as_deref()).or_default();
        // A task with several names is one; one that has the number of another that has ended is not.
        sum.tasks += u64::from(tids.insert(task.tid) || task.born);
        sum.wall_ticks = sum.wall_ticks.saturating_add(task.wall_ticks);
        sum.times = sum.times.plus(&task.times);
    }
    let named = |(path, (sum, _)): (Option<&str>, (CgroupReport, _))| CgroupReport {
        path: path.map(Into::into),
        wall_ns: clock.ticks_to_ns(sum.wall_ticks),
        times_ns: sum.times.in_ns(clock),
        ..sum
    };
    let mut cgroups: Vec<CgroupReport> = cgroups.into_iter().map(named).collect();
    cgroups.sort_by_key(|cgroup| std::cmp::Reverse(cgroup.times.wanted()));
    cgroups
}

impl Report for Cgroups {
    fn write_text(&self, out: &mut dyn Sink) -> io::Result<()> {
        self.vms.iter().try_for_each(|vm| vm.write_text(self.frequency_hz, out))
    }
}

impl VmCgroups {
    fn write_text(&self, frequency: u64, out: &mut dyn Sink) -> io::Result<()> {
        let (count, length) = (self.cgroups.len(), shown(self.window.length(), frequency));
        let cgroups = counted(count, "cgroup", "cgroups");
        writeln!(out, "{}: tasks of {cgroups} in {length} of its kernel's records", self.vm)?;
        for warning in &self.warnings {
            writeln!(out, "WARNING: {warning}")?;
        }
        let rows = self.cgroups.iter().map(|cgroup| {
            let name = cgroup.path.as_deref().map_or_else(|| "(not known)".into(), harmless);
            (vec![name, cgroup.tasks.to_string(), shown(cgroup.wall_ticks, frequency)], cgroup.times, json!({}))
        });
        let headings = [("cgroup", Align::Left), ("tasks", Align::Right), ("wall", Align::Right)];
        table_of_times(&headings, frequency, rows).write(out)
    }
}

#[cfg(test)]
mod tests;
