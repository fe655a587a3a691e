//! How far a long task is, and what is removed when a signal ends it.

use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use std::fs;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;
use trace_merge::export::DONE;

/// From when on, and how often, it is said how far it is.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often on what is no terminal.
const LINE_EVERY: u32 = 10;

/// What `task` gives, which counts up to [`DONE`] while it is shown how far it is.
pub fn shown<T>(title: &str, task: impl FnOnce(&AtomicU64) -> T) -> T {
    let progress = AtomicU64::new(0);
    thread::scope(|scope| {
        let (done, is_done) = mpsc::channel::<()>();
        let told = &progress;
        scope.spawn(move || show(title, told, &is_done));
        let result = task(&progress);
        drop(done);
        result
    })
}

fn show(title: &str, progress: &AtomicU64, is_done: &mpsc::Receiver<()>) {
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
            eprintln!("{title}: {} %", at * 100 / DONE);
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

/// Removes a folder with all that is in it when a signal ends the process.
pub struct RemovedOnSignal {
    signals: Handle,
}

impl RemovedOnSignal {
    /// From now on, until it is dropped.
    ///
    /// # Errors
    /// When the signals cannot be taken.
    pub fn new(folder: &Path) -> io::Result<Self> {
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let handle = signals.handle();
        let folder = folder.to_path_buf();
        thread::Builder::new().name("strata-signals".into()).spawn(move || {
            if let Some(signal) = signals.forever().next() {
                remove(&folder);
                std::process::exit(128 + signal);
            }
        })?;
        Ok(Self { signals: handle })
    }
}

/// Removes `folder`, into which another thread may be writing: what it makes meanwhile goes in the next turn.
fn remove(folder: &Path) {
    for _ in 0..10 {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => thread::sleep(Duration::from_millis(5)),
            _ => break,
        }
    }
}

impl Drop for RemovedOnSignal {
    fn drop(&mut self) {
        self.signals.close();
    }
}
