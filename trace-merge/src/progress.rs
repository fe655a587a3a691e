//! How far a long task is, on the terminal or in lines: the same for every command that takes its time.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;
use strata_recording::window::Window;

/// What the progress of a task counts to.
pub const DONE: u64 = 1000;

/// How much of `window` lies before `time`, of [`DONE`].
#[must_use]
pub fn up_to(time: u64, window: Window) -> u64 {
    let done = u128::from(time.saturating_sub(window.begin)) * u128::from(DONE);
    let done = done.checked_div(u128::from(window.length())).unwrap_or(0);
    u64::try_from(done).unwrap_or(DONE).min(DONE)
}

/// From when on, and how often, progress is printed.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often on what is not a terminal.
const LINE_EVERY: u32 = 10;

/// What `task` gives, which counts up to [`DONE`] while it is shown how far it is, from a second on: as a bar called
/// `title` where standard error is a terminal, else as lines for `notify`.
pub fn shown<T>(title: &str, notify: &(impl Fn(&str) + Sync), task: impl FnOnce(&AtomicU64) -> T) -> T {
    let progress = AtomicU64::new(0);
    thread::scope(|scope| {
        let (done, is_done) = mpsc::channel::<()>();
        let reported = &progress;
        scope.spawn(move || show(title, reported, &is_done, notify));
        let result = task(&progress);
        drop(done);
        result
    })
}

/// Shows `progress` until `is_done` is closed.
fn show(title: &str, progress: &AtomicU64, is_done: &mpsc::Receiver<()>, notify: &(impl Fn(&str) + Sync)) {
    let is_terminal = io::stderr().is_terminal();
    let mut bar = None;
    for second in 0.. {
        if is_done.recv_timeout(PATIENCE) != Err(RecvTimeoutError::Timeout) {
            break;
        }
        let at = progress.load(Ordering::Relaxed);
        if is_terminal {
            bar.get_or_insert_with(|| bar_of(title)).set_position(at);
        } else if second % LINE_EVERY == 0 {
            notify(&format!("{title}: {} %", at * 100 / DONE));
        }
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
}

fn bar_of(title: &str) -> ProgressBar {
    let bar = ProgressBar::new(DONE);
    let bar = match ProgressStyle::with_template("{msg} {wide_bar} {percent} %, {eta} left") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    };
    bar.with_message(title.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn progress_is_a_share_of_the_window_and_no_more_than_all_of_it() {
        let window = Window { begin: 1000, end: 3000 };

        assert_eq!([0, 1000, 1500, 3000, u64::MAX].map(|time| up_to(time, window)), [0, 0, 250, DONE, DONE]);
        assert_eq!((up_to(7, Window { begin: 7, end: 7 }), up_to(1 << 63, Window::ALL)), (0, 500));
    }

    #[test]
    fn progress_is_reported_from_a_second_on() {
        let printed = Mutex::new(Vec::new());
        let notify = |line: &str| printed.lock().unwrap().push(line.to_string());

        let result = shown("exporting", &notify, |progress| {
            progress.store(420, Ordering::Relaxed);
            thread::sleep(PATIENCE + PATIENCE / 2);
            7
        });

        let printed = printed.into_inner().unwrap();
        assert_eq!(result, 7);
        assert!(io::stderr().is_terminal() || printed == ["exporting: 42 %"], "{printed:?}");
    }

    #[test]
    fn short_task_says_nothing() {
        let printed = Mutex::new(Vec::new());

        shown("exporting", &|line: &str| printed.lock().unwrap().push(line.to_string()), |_| ());

        assert_eq!(printed.into_inner().unwrap(), Vec::<String>::new());
    }
}
