//! The report on tasks as text.

use super::{Part, TaskReport, Tasks, VmTasks};
use crate::report::rows::columns::Object;
use crate::report::rows::table::{Align, Table};
use crate::report::scheduling::times::{Times, in_ns, shown, table_of_times};
use crate::report::sink::{Sink, rows_shown};
use crate::report::{Report, duration, percent, write_next};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;
use strata_analysis::timeline::membership::OwnIds;
use strata_recording::text::counted::counted;
use strata_recording::text::terminal::harmless;

/// Rows of the table of tasks; the others are one row.
const SHOWN: usize = 40;

impl Report for Tasks {
    fn write_text(&self, out: &mut dyn Sink) -> io::Result<()> {
        for vm in &self.vms {
            vm.write_text(self.frequency_hz, out)?;
        }
        write_next(self.next.as_deref(), out)
    }
}

/// A row of the table: one task, or several short-lived ones of one name.
struct Row<'r> {
    name: String,
    /// Where they were.
    cgroup: Option<&'r str>,
    /// Thread id of the first of them in its own pid namespace.
    own: Option<OwnIds>,
    /// Thread id of the first of them.
    tid: i32,
    tasks: usize,
    wall: u64,
    times: Times,
    /// The first of them.
    first: Option<&'r TaskReport>,
}

impl Row<'_> {
    fn name(&self) -> String {
        match self.tasks {
            1 => format!("{}/{}", self.name, self.tid),
            tasks => format!("{} ×{tasks}", self.name),
        }
    }

    /// What the row is made of: which task it is, and its parts.
    fn data(&self) -> Value {
        match self.first.filter(|_| self.tasks == 1) {
            Some(task) => {
                let parts: Vec<_> = task.parts.iter().map(Object::of).collect();
                json!({ "comm": task.comm, "tid": task.tid, "parts": parts })
            }
            None => json!({}),
        }
    }

    /// Thread id in its own pid namespace, of one task.
    fn own_tid(&self) -> String {
        self.own.filter(|_| self.tasks == 1).map_or_else(|| "-".into(), |own| own.tid.to_string())
    }
}

impl VmTasks {
    fn write_text(&self, frequency: u64, out: &mut dyn Sink) -> io::Result<()> {
        let (count, length) = (self.tasks.len(), shown(self.window.length(), frequency));
        let tasks = counted(count, "task", "tasks");
        writeln!(out, "{}: {tasks} in {length} of its kernel's records", self.vm)?;
        for warning in &self.warnings {
            writeln!(out, "WARNING: {warning}")?;
        }
        let rows = self.rows(rows_shown(out, SHOWN));
        // Where all are at the root, nobody made cgroups.
        let has_cgroups = rows.iter().any(|row| row.cgroup.is_some_and(|path| path != "/"));
        let has_namespaces = rows.iter().any(|row| row.own.is_some());
        let mut headings = vec![("task", Align::Left)];
        headings.extend(has_namespaces.then_some(("own tid", Align::Right)));
        headings.extend(has_cgroups.then_some(("cgroup", Align::Left)));
        headings.push(("wall", Align::Right));
        let rows = rows.iter().map(|row| {
            let mut cells = vec![row.name()];
            cells.extend(has_namespaces.then(|| row.own_tid()));
            cells.extend(has_cgroups.then(|| row.cgroup.map_or_else(|| "-".into(), harmless)));
            cells.push(shown(row.wall, frequency));
            (cells, row.times, row.data())
        });
        table_of_times(&headings, frequency, rows).write(out)?;
        let by = |state: &'static str| move |part: &Part| part.state == state;
        self.write_details(out, frequency, "stolen while running", "by", &by("stolen"))?;
        self.write_details(out, frequency, "stolen while runnable", "by", &by("runnable_stolen"))?;
        self.write_details(out, frequency, "in exits, handled by KVM", "reason", &by("exit"))?;
        self.write_details(out, frequency, "in exits, handled by the VMM", "reason", &by("vmm"))
    }

    /// The rows: short-lived tasks of one name in one cgroup are one, and so are all after the first `shown`.
    fn rows(&self, shown: usize) -> Vec<Row<'_>> {
        let is_short = |task: &TaskReport| task.born && task.ended && task.wall_ticks < self.window.length() / 10;
        let mut rows: Vec<Row<'_>> = Vec::new();
        let mut groups: BTreeMap<(&str, Option<&str>), usize> = BTreeMap::new();
        for task in &self.tasks {
            let cgroup = task.cgroup.as_deref();
            let add = |row: Option<&mut Row<'_>>| match row {
                Some(row) => {
                    (row.tasks, row.wall) = (row.tasks + 1, row.wall.saturating_add(task.wall_ticks));
                    row.times = row.times.plus(&task.times);
                    false
                }
                None => true,
            };
            let group = groups.get(&(task.comm.as_str(), cgroup)).copied().filter(|_| is_short(task));
            if add(group.and_then(|index| rows.get_mut(index))) {
                if is_short(task) {
                    groups.insert((&task.comm, cgroup), rows.len());
                }
                let name = harmless(&task.comm);
                let (tid, own, wall) = (task.tid, task.own, task.wall_ticks);
                rows.push(Row { name, cgroup, own, tid, tasks: 1, wall, times: task.times, first: Some(task) });
            }
        }
        rows.sort_by_key(|row| std::cmp::Reverse(row.times.wanted()));
        // One row takes no more room than a row of others.
        if rows.len() > shown + 1 {
            let rest = rows.split_off(shown);
            let times = Times::default();
            let name = "others".into();
            let others = Row { name, cgroup: None, own: None, tid: 0, tasks: 0, wall: 0, times, first: None };
            rows.push(rest.into_iter().fold(others, |sum, row| Row {
                tasks: sum.tasks + row.tasks,
                wall: sum.wall.saturating_add(row.wall),
                times: sum.times.plus(&row.times),
                ..sum
            }));
        }
        rows
    }

    /// A table of the parts that `wanted` accepts, over all tasks, by their details.
    fn write_details(
        &self,
        out: &mut dyn Sink,
        frequency: u64,
        title: &str,
        heading: &str,
        wanted: &dyn Fn(&Part) -> bool,
    ) -> io::Result<()> {
        let mut sums: BTreeMap<&str, (u64, (u64, &TaskReport))> = BTreeMap::new();
        for task in &self.tasks {
            for part in task.parts.iter().filter(|part| wanted(part)) {
                let (sum, most) = sums.entry(part.detail.as_deref().unwrap_or("-")).or_insert((0, (0, task)));
                *sum = sum.saturating_add(part.ticks);
                if part.ticks > most.0 {
                    *most = (part.ticks, task);
                }
            }
        }
        if sums.is_empty() {
            return Ok(());
        }
        let total = sums.values().fold(0_u64, |total, (sum, _)| total.saturating_add(*sum));
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|&(_, (sum, _))| std::cmp::Reverse(sum));
        writeln!(out, "\n{}: {title}: {}", self.vm, duration(in_ns(total, frequency)))?;
        let columns =
            [(heading, Align::Left), ("time", Align::Right), ("share", Align::Right), ("most of it from", Align::Left)];
        let mut table = Table::new(&columns);
        for (detail, (sum, (most, task))) in sums {
            let from = format!("{}/{} ({})", harmless(&task.comm), task.tid, duration(in_ns(most, frequency)));
            let cells = [harmless(detail), duration(in_ns(sum, frequency)), percent(sum, total), from];
            table.row_of(cells, json!({ "comm": task.comm, "tid": task.tid }));
        }
        table.write(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Window;

    fn short(tid: i32, comm: &str) -> TaskReport {
        TaskReport {
            tid,
            comm: comm.into(),
            cgroup: None,
            own: None,
            born: true,
            ended: true,
            wall_ticks: 10,
            wall_ns: 5,
            times: Times { running: 10, ..Times::default() },
            times_ns: Times { running: 5, ..Times::default() },
            parts: Vec::new(),
        }
    }

    #[test]
    fn short_lived_tasks_of_one_name_are_one_row() {
        let window = Window { begin: 0, end: 1000 };
        let tasks = vec![short(1, "sh"), short(2, "sh"), short(3, "ls"), TaskReport { born: false, ..short(4, "sh") }];
        let vm = VmTasks { vm: "vm0".into(), window, warnings: Vec::new(), tasks };

        let mut rows: Vec<(String, usize, u64)> =
            vm.rows(SHOWN).into_iter().map(|row| (row.name(), row.tasks, row.times.running)).collect();

        rows.sort();
        assert_eq!(rows, [("ls/3".into(), 1, 10), ("sh ×2".into(), 2, 20), ("sh/4".into(), 1, 10)]);
    }

    #[test]
    fn row_that_would_be_the_only_other_one_has_its_name() {
        let window = Window { begin: 0, end: 1000 };
        let tasks = (0..=40).map(|tid| TaskReport { born: false, ..short(tid, "task") }).collect();
        let vm = VmTasks { vm: "vm0".into(), window, warnings: Vec::new(), tasks };

        let names: Vec<String> = vm.rows(SHOWN).iter().map(Row::name).collect();

        assert!(names.len() == SHOWN + 1 && names.iter().all(|name| name.starts_with("task/")), "{names:?}");
    }

    #[test]
    fn rows_that_are_too_many_are_one_and_nothing_is_lost() {
        let window = Window { begin: 0, end: 1000 };
        let tasks = (0..100).map(|tid| TaskReport { born: false, ..short(tid, "task") }).collect();
        let vm = VmTasks { vm: "vm0".into(), window, warnings: Vec::new(), tasks };

        let rows = vm.rows(SHOWN);

        assert_eq!((rows.len(), rows[SHOWN].tasks), (SHOWN + 1, 100 - SHOWN));
        assert_eq!(rows.iter().map(|row| row.times.running).sum::<u64>(), 1000);
    }
}
