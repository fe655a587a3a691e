//! The commands that reports lead to, as they are pasted into a shell.

use std::path::Path;
use strata_analysis::Passed;
use strata_recording::clock::NS_PER_SECOND;
use strata_recording::reader::Trace;
use strata_recording::text::terminal::{harmless, shell_option, shell_path};
use strata_recording::window::Window;

/// Makes commands on one recording.
#[derive(Clone, Copy, Debug)]
pub(super) struct NextCommand<'t> {
    trace: &'t Path,
    /// The part of it, ns after its first record.
    part: (Option<u64>, Option<u64>),
}

impl<'t> NextCommand<'t> {
    /// Commands on the part of `trace` that was requested.
    pub(super) fn on(trace: &'t Trace, passed: &Passed) -> Self {
        let (Window { begin, end }, start) = (passed.requested, trace.start().unwrap_or(0));
        let after = |moment: u64| trace.clock().ticks_to_ns(moment.saturating_sub(start));
        let part = ((begin > start).then(|| after(begin)), (end != u64::MAX).then(|| after(end)));
        Self { trace: trace.path(), part }
    }

    /// Checks it.
    pub(super) fn check(self) -> String {
        format!("strata check {}", self.path())
    }

    /// The report called `name`.
    pub(super) fn report(self, name: &str) -> String {
        format!("strata report {name} {}{}", self.path(), self.part())
    }

    /// Why the task `tid` of `vm`, which is called `comm`, took so long.
    pub(super) fn why(self, vm: &str, (comm, tid): (&str, i32)) -> String {
        // What cannot stand in a terminal cannot be typed either.
        let comm = if comm.is_empty() || harmless(comm) != comm { "*" } else { comm };
        let task = shell_option("--task", format!("{comm}/{tid}"));
        format!("strata why {} {task} {}{}", self.path(), shell_option("--vm", vm), self.part())
    }

    /// The longest waits of that task.
    pub(super) fn worst_waits(self, vm: &str, task: (&str, i32)) -> String {
        format!("{} --worst 3", self.why(vm, task))
    }

    fn path(self) -> String {
        shell_path(self.trace)
    }

    /// The options for the part.
    fn part(self) -> String {
        let option = |name: &str, ns: Option<u64>| ns.map_or_else(String::new, |ns| format!(" {name} {}", seconds(ns)));
        option("--from", self.part.0) + &option("--until", self.part.1)
    }
}

/// `ns` as `--from` takes them, in seconds.
fn seconds(ns: u64) -> String {
    let text = format!("{}.{:09}", ns / NS_PER_SECOND, ns % NS_PER_SECOND);
    text.trim_end_matches('0').trim_end_matches('.').into()
}

#[cfg(test)]
impl NextCommand<'static> {
    /// Commands on a recording that is called `trace`.
    pub(super) fn on_any() -> Self {
        Self { trace: Path::new("trace"), part: (None, None) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(path: &str) -> NextCommand<'_> {
        NextCommand { trace: Path::new(path), part: (None, None) }
    }

    #[test]
    fn path_is_quoted_where_a_shell_would_take_it_apart() {
        let checks = ["traces/a-1", "my trace", "it's", "-x", "$(reboot)"].map(|path| on(path).check());

        let words = ["traces/a-1", "'my trace'", r"'it'\''s'", "./-x", "'$(reboot)'"];
        assert_eq!(checks, words.map(|word| format!("strata check {word}")));
    }

    #[test]
    fn commands_are_on_the_part_that_was_requested() {
        let on = |part| NextCommand { part, ..on("t") };

        let commands =
            [(None, None), (Some(100_000_000), None), (Some(1), Some(2_000_000_000))].map(|part| on(part).report("x"));

        let parts = ["", " --from 0.1", " --from 0.000000001 --until 2"];
        assert_eq!(commands, parts.map(|part| format!("strata report x t{part}")));
        assert_eq!(
            on((None, Some(5_000))).worst_waits("v", ("a", 7)),
            "strata why t --task a/7 --vm v --until 0.000005 --worst 3"
        );
    }

    #[test]
    fn task_is_one_thread_of_one_vm() {
        let names = ["web", "kworker/0:1", "a b", "-x", "\u{1b}[2J", ""];

        let tasks = names.map(|name| on("t").why("vm0", (name, 7)));

        let words = [" web/7", " kworker/0:1/7", " 'a b/7'", "=-x/7", " '*/7'", " '*/7'"];
        assert_eq!(tasks, words.map(|word| format!("strata why t --task{word} --vm vm0")));
    }
}
