//! Progress of long steps: a spinner on a terminal, plain lines elsewhere.

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// The spinners of all steps, which may run beside each other: a line of the terminal each.
static SPINNERS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// Runs `work`, showing `title` while it runs and the time that it took once it is done. A failure is shown as such
/// and handed on.
///
/// # Errors
///
/// Those of `work`.
pub fn step<T, E>(title: &str, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let start = Instant::now();
    let spinner = std::io::stderr().is_terminal().then(|| spinner(title));
    if spinner.is_none() {
        eprintln!("[lab] {title} ...");
    }
    let result = work();
    if let Some(spinner) = spinner {
        spinner.finish_and_clear();
    }
    note(&closing_line(title, start.elapsed(), result.is_ok()));
    result
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

fn closing_line(title: &str, elapsed: Duration, succeeded: bool) -> String {
    let seconds = elapsed.as_secs_f64();
    let verdict = if succeeded { "done" } else { "FAILED" };
    format!("{title}: {verdict} in {seconds:.1} s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_line_tells_failure_from_success() {
        let time = Duration::from_millis(1540);

        assert_eq!(closing_line("boot", time, true), "boot: done in 1.5 s");
        assert_eq!(closing_line("boot", time, false), "boot: FAILED in 1.5 s");
    }

    #[test]
    fn step_hands_on_the_result() {
        let failed: Result<(), &str> = step("a step", || Err("no"));

        assert_eq!(failed, Err("no"));
    }
}
