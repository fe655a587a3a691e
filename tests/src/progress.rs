//! Progress of long steps: a spinner on a terminal, and a line when a step has ended.

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde::Serialize;
use std::io::IsTerminal;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The spinners of all steps, which may run beside each other: a line of the terminal each.
static SPINNERS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// The steps of this process that have ended.
static ENDED: Mutex<Vec<Step>> = Mutex::new(Vec::new());

/// A step that has ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// What was done.
    pub title: String,
    /// How long it took.
    pub seconds: f64,
    /// Whether it succeeded.
    pub passed: bool,
}

/// Runs `work`, showing `title` while it runs, on a terminal, and the time that it took once it is done. A failure is
/// shown as such and handed on.
///
/// # Errors
///
/// Those of `work`.
pub fn step<T, E>(title: &str, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let start = Instant::now();
    let spinner = std::io::stderr().is_terminal().then(|| spinner(title));
    let result = work();
    if let Some(spinner) = spinner {
        spinner.finish_and_clear();
    }
    let step = Step { title: title.to_owned(), seconds: start.elapsed().as_secs_f64(), passed: result.is_ok() };
    note(&closing_line(&step));
    ENDED.lock().unwrap_or_else(PoisonError::into_inner).push(step);
    result
}

/// The steps that have ended, in this order.
#[must_use]
pub fn ended() -> Vec<Step> {
    ENDED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Says something that is not a step.
pub fn note(text: &str) {
    SPINNERS.suspend(|| eprintln!("[lab] {text}"));
}

fn spinner(title: &str) -> ProgressBar {
    let bar = SPINNERS.add(ProgressBar::new_spinner().with_message(title.to_owned()));
    if let Ok(style) = ProgressStyle::with_template("[lab] {spinner} {msg} ({elapsed})") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

fn closing_line(step: &Step) -> String {
    let verdict = if step.passed { "done" } else { "FAILED" };
    format!("{}: {verdict} in {:.1} s", step.title, step.seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_line_tells_failure_from_success() {
        let line = |passed| closing_line(&Step { title: "boot".to_owned(), seconds: 1.54, passed });

        assert_eq!([true, false].map(line), ["boot: done in 1.5 s", "boot: FAILED in 1.5 s"]);
    }

    #[test]
    fn step_hands_on_the_result_and_is_among_those_that_have_ended() {
        let failed: Result<(), &str> = step("a step that fails", || Err("no"));

        let ended: Vec<_> = ended().into_iter().filter(|step| step.title == "a step that fails").collect();
        assert_eq!((failed, ended.len(), ended[0].passed), (Err("no"), 1, false));
    }
}
