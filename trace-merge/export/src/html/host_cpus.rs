//! What the CPUs of a host run.
//!
//! Switches that do not concern the VM are not recorded. A thread is drawn for as long as records say that it ran: up to the
//! switch away from it, or, where two switches do not connect, up to the last record that it made.

use super::category::{Category, NOT_RECORDED};
use super::rows::{RowNumber, Rows};
use strata_analysis::event::{Event, Task, Tid};
use strata_analysis::timeline::Timeline;

/// What a CPU runs.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Runs {
    Unknown,
    /// Its idle task, 0, or another thread.
    Thread {
        tid: Tid,
        comm: String,
    },
}

/// A CPU of a host.
#[derive(Clone, Debug)]
pub(super) struct HostCpu {
    host: usize,
    row: RowNumber,
    runs: Runs,
    /// Since when, and until when that is known, ns.
    since: u64,
    known_until: u64,
}

impl HostCpu {
    /// A CPU of the host at `host` that is drawn in `row`, before its first record.
    pub(super) const fn new(host: usize, row: RowNumber) -> Self {
        Self { host, row, runs: Runs::Unknown, since: 0, known_until: 0 }
    }

    /// The row that it is drawn in.
    pub(super) const fn row(&self) -> RowNumber {
        self.row
    }

    /// Takes in a record of this CPU at `time`, ns, that the thread `by` made, where that is known.
    pub(super) fn record(
        &mut self,
        rows: &mut Rows,
        timeline: &Timeline,
        time: u64,
        event: Option<&Event<'_>>,
        by: Option<Tid>,
    ) {
        if let Some(Event::Switch { prev, next, .. }) = event {
            self.switch(rows, timeline, time, prev, next);
            return;
        }
        if let (Some(Event::Rename(rename)), Runs::Thread { tid, comm }) = (event, &self.runs)
            && rename.begins_with(Task { tid: *tid, comm: comm.as_bytes() })
        {
            let tid = *tid;
            self.draw(rows, timeline, time);
            let comm = String::from_utf8_lossy(rename.after).into_owned();
            (self.runs, self.since) = (Runs::Thread { tid, comm }, time);
        }
        if let Runs::Thread { tid, .. } = self.runs
            && by == Some(tid)
        {
            self.known_until = time;
        }
    }

    fn switch(&mut self, rows: &mut Rows, timeline: &Timeline, time: u64, prev: &Task<'_>, next: &Task<'_>) {
        let connects = matches!(self.runs, Runs::Thread { tid, .. } if tid == prev.tid);
        if connects {
            self.draw(rows, timeline, time);
        } else {
            self.lose(rows, timeline, self.known_until);
            self.draw(rows, timeline, time);
        }
        let comm = String::from_utf8_lossy(next.comm).into_owned();
        (self.runs, self.since, self.known_until) = (Runs::Thread { tid: next.tid, comm }, time, time);
    }

    /// What it runs is not known from `time` on, ns.
    pub(super) fn lose(&mut self, rows: &mut Rows, timeline: &Timeline, time: u64) {
        if self.runs != Runs::Unknown {
            self.draw(rows, timeline, time);
            (self.runs, self.since) = (Runs::Unknown, time);
        }
    }

    /// Draws what lasts until `end`, ns, where the recording ends. Of threads other than vCPUs not all switches are
    /// recorded.
    pub(super) fn finish(&mut self, rows: &mut Rows, timeline: &Timeline, end: u64) {
        let is_vcpu =
            matches!(self.runs, Runs::Thread { tid, .. } if timeline.vcpu_of_thread(self.host, tid).is_some());
        if !is_vcpu {
            self.lose(rows, timeline, self.known_until);
        }
        self.draw(rows, timeline, end);
    }

    fn draw(&self, rows: &mut Rows, timeline: &Timeline, end: u64) {
        let (category, name) = match &self.runs {
            Runs::Unknown => (Category::NotRecorded, NOT_RECORDED.into()),
            Runs::Thread { tid: 0, .. } => (Category::Idle, "idle".into()),
            Runs::Thread { tid, comm } => match timeline.vcpu_of_thread(self.host, *tid) {
                Some((vm, vcpu)) => {
                    let vm = timeline.vm(vm).map_or("", |vm| &vm.name);
                    (Category::Running, format!("{vm} vCPU {vcpu} ({comm}/{tid})"))
                }
                None => (Category::OtherThread, format!("{comm}/{tid}")),
            },
        };
        rows.slice(self.row, (self.since, end), category, &name);
    }
}
