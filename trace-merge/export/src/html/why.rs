//! Why tasks took so long: their critical paths, a row for each task and one below another for those it waited for.

use super::category::Category;
use super::rows::{RowKind, RowNumber, Rows};
use trace_merge::critical_path::{Cause, CriticalPaths, Step};
use trace_merge::report::scheduling::state_names;

/// Draws `paths`; `ns` makes ticks nanoseconds of the page.
pub(super) fn draw(rows: &mut Rows, paths: &CriticalPaths, ns: impl Fn(u64) -> u64) {
    for of_task in paths.by_task() {
        let mut levels = Levels { paths, rows, numbers: Vec::new(), ns: &ns };
        of_task.iter().for_each(|path| levels.draw(&path.steps, &path.task, 0));
    }
}

/// The rows; each holds the steps that stand below those of the one above it.
struct Levels<'r, F> {
    paths: &'r CriticalPaths,
    rows: &'r mut Rows,
    numbers: Vec<RowNumber>,
    ns: F,
}

impl<F: Fn(u64) -> u64> Levels<'_, F> {
    /// Draws `steps`, which stand below `task`, and those below them.
    fn draw(&mut self, steps: &[Step], task: &str, level: usize) {
        if level == self.numbers.len() && !steps.is_empty() {
            let name = if level == 0 { format!("why {task}") } else { format!("… {level} below") };
            self.numbers.push(self.rows.row(RowKind::Why, &self.paths.vm, &name));
        }
        for step in steps {
            let window = ((self.ns)(step.begin), (self.ns)(step.end));
            self.rows.slice(self.numbers[level], window, category(step), &step.label(task));
            self.draw(&step.steps, &step.task, level + 1);
        }
    }
}

/// What a step is drawn as.
fn category(step: &Step) -> Category {
    match step.cause {
        Cause::Running if step.detail.is_some() => Category::Syscall,
        Cause::Running => Category::Running,
        Cause::RunningOrStolen => Category::RunningOrStolen,
        Cause::Interrupted | Cause::Interrupt | Cause::Handler => Category::Interrupt,
        Cause::Exit => Category::Kvm,
        Cause::Vmm => Category::Vmm,
        Cause::Preempted | Cause::WokenLate if step.detail.as_deref() == Some(state_names::IDLE_HOST_CPU) => {
            Category::Runnable
        }
        Cause::Preempted | Cause::WokenLate | Cause::PacketHeldUp => Category::Stolen,
        Cause::NotAllowed => Category::NotAllowed,
        Cause::Halted => Category::Idle,
        Cause::WaitsForCpu => Category::Runnable,
        Cause::Sleep | Cause::Timer => Category::Sleep,
        Cause::Request | Cause::NotIssued => Category::Io,
        Cause::Blocked | Cause::NotMade | Cause::NotWoken | Cause::Ended | Cause::NotFollowed => Category::Waiting,
        Cause::WakerUnknown | Cause::Unknown => Category::NotRecorded,
    }
}
