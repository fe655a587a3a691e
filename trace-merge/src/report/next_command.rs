//! The commands that reports lead to, as they are pasted into a shell.

use std::path::Path;
use strata_recording::reader::Trace;
use strata_recording::text::terminal::{harmless, shell_option, shell_path};

/// Makes commands on one recording.
#[derive(Clone, Copy, Debug)]
pub(super) struct NextCommand<'t> {
    trace: &'t Path,
}

impl<'t> NextCommand<'t> {
    /// Commands on `trace`.
    pub(super) fn on(trace: &'t Trace) -> Self {
        Self { trace: trace.path() }
    }

    /// Checks it.
    pub(super) fn check(self) -> String {
        format!("strata check {}", self.path())
    }

    /// The report called `name`.
    pub(super) fn report(self, name: &str) -> String {
        format!("strata report {name} {}", self.path())
    }

    /// Why the task `tid` of `vm`, which is called `comm`, took so long.
    pub(super) fn why(self, vm: &str, (comm, tid): (&str, i32)) -> String {
        // What cannot stand in a terminal cannot be typed either.
        let comm = if comm.is_empty() || harmless(comm) != comm { "*" } else { comm };
        let task = shell_option("--task", format!("{comm}/{tid}"));
        format!("strata why {} {task} {}", self.path(), shell_option("--vm", vm))
    }

    /// The longest waits of that task.
    pub(super) fn worst_waits(self, vm: &str, task: (&str, i32)) -> String {
        format!("{} --worst 3", self.why(vm, task))
    }

    fn path(self) -> String {
        shell_path(self.trace)
    }
}

#[cfg(test)]
impl NextCommand<'static> {
    /// Commands on a recording that is called `trace`.
    pub(super) fn on_any() -> Self {
        Self { trace: Path::new("trace") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(path: &str) -> NextCommand<'_> {
        NextCommand { trace: Path::new(path) }
    }

    #[test]
    fn path_is_quoted_where_a_shell_would_take_it_apart() {
        let checks = ["traces/a-1", "my trace", "it's", "-x", "$(reboot)"].map(|path| on(path).check());

        let words = ["traces/a-1", "'my trace'", r"'it'\''s'", "./-x", "'$(reboot)'"];
        assert_eq!(checks, words.map(|word| format!("strata check {word}")));
    }

    #[test]
    fn task_is_one_thread_of_one_vm() {
        let names = ["web", "kworker/0:1", "a b", "-x", "\u{1b}[2J", ""];

        let tasks = names.map(|name| on("t").why("vm0", (name, 7)));

        let words = [" web/7", " kworker/0:1/7", " 'a b/7'", "=-x/7", " '*/7'", " '*/7'"];
        assert_eq!(tasks, words.map(|word| format!("strata why t --task{word} --vm vm0")));
    }
}
