//! What a command has begun to write and a signal is not to leave behind.

use crate::stop_signals::heeded;
use rustix::fs::{CWD, Mode, RenameFlags, chmod, renameat_with};
use signal_hook::iterator::{Handle, Signals};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How often a removal is tried.
const TRIES: u32 = 10;
/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(5);

/// What is to be undone when a signal ends the process. One thread does all of it: the first one of several would end the
/// process while the others are at work.
struct Undone {
    next: u64,
    /// The youngest last.
    steps: Vec<(u64, Box<dyn FnOnce() + Send>)>,
    /// Ends the thread.
    signals: Option<Handle>,
}

static UNDONE: Mutex<Undone> = Mutex::new(Undone { next: 0, steps: Vec::new(), signals: None });

fn undone() -> MutexGuard<'static, Undone> {
    UNDONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes a file, or a folder with all that is in it, when a signal ends the process. There may be several.
#[derive(Debug)]
pub struct RemovedOnSignal {
    number: u64,
}

impl RemovedOnSignal {
    /// From now on, until it is dropped.
    ///
    /// # Errors
    /// When the signals cannot be taken.
    pub fn new(path: &Path) -> io::Result<Self> {
        let path = path.to_path_buf();
        Self::before_end(move || remove(&path))
    }

    /// For a folder that was there: it is emptied, and has its `mode` again.
    ///
    /// # Errors
    /// When the signals cannot be taken.
    pub fn emptying(path: &Path, mode: Mode) -> io::Result<Self> {
        let path = path.to_path_buf();
        Self::before_end(move || empty(&path, mode))
    }

    fn before_end(undo: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let mut undone = undone();
        if undone.signals.is_none() {
            undone.signals = Some(undo_on_signal()?);
        }
        let number = undone.next;
        undone.next += 1;
        undone.steps.push((number, Box::new(undo)));
        Ok(Self { number })
    }
}

impl Drop for RemovedOnSignal {
    fn drop(&mut self) {
        let mut undone = undone();
        undone.steps.retain(|(number, _)| *number != self.number);
        if undone.steps.is_empty()
            && let Some(signals) = undone.signals.take()
        {
            signals.close();
        }
    }
}

/// Waits for a signal on a thread of its own.
fn undo_on_signal() -> io::Result<Handle> {
    let mut signals = Signals::new(heeded())?;
    let handle = signals.handle();
    thread::Builder::new().name("strata-signals".into()).spawn(move || {
        if let Some(signal) = signals.forever().next() {
            // Nobody ends a step meanwhile.
            let mut undone = undone();
            undone.steps.drain(..).rev().for_each(|(_, undo)| undo());
            std::process::exit(128 + signal);
        }
    })?;
    Ok(handle)
}

/// Removes `path`, if it is there. Into a folder another thread may be writing: it is renamed first, so that nothing more is made in it by
/// its name, and what was being made meanwhile goes with the next try.
pub fn remove(path: &Path) {
    let renamed = renamed(path);
    let path = renamed.as_deref().unwrap_or(path);
    for _ in 0..TRIES {
        let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        match removed {
            // It is gone already where the task has just ended.
            Err(error) if error.kind() != io::ErrorKind::NotFound => thread::sleep(PAUSE),
            _ => break,
        }
    }
}

/// Removes what is in the folder `path`, and gives it its `mode` again. Another thread may be writing into it: until it is
/// empty twice, one after the other, more is looked for.
pub(crate) fn empty(path: &Path, mode: Mode) {
    let mut was_empty = false;
    for _ in 0..TRIES {
        let mut is_empty = true;
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            is_empty = false;
            let path = entry.path();
            // What cannot be removed is tried again.
            let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        }
        if is_empty && was_empty {
            break;
        }
        was_empty = is_empty;
        thread::sleep(PAUSE);
    }
    // It stays closed to others where this fails.
    let _ = chmod(path, mode);
}

/// Where `path` lies after it was renamed to a hidden name beside it; `None` when it could not be, as where something has
/// that name.
fn renamed(path: &Path) -> Option<PathBuf> {
    let mut name = OsString::from(".");
    name.push(path.file_name()?);
    name.push(".removed");
    let renamed = path.with_file_name(name);
    renameat_with(CWD, path, CWD, &renamed, RenameFlags::NOREPLACE).ok()?;
    Some(renamed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use std::io::{BufRead, BufReader};
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Child, Command, ExitStatus, Stdio};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    /// Names what the test's own process, started again, guards until it is ended.
    const GUARDED: &str = "STRATA_TEST_GUARDED";
    /// Says that it was there before.
    const WAS_THERE: &str = "STRATA_TEST_WAS_THERE";

    #[test]
    #[ignore = "child process: run by the tests below"]
    fn guards_the_given_files() {
        let path = std::env::var_os(GUARDED).unwrap();
        let _guards: Vec<RemovedOnSignal> = std::env::split_paths(&path)
            .map(|path| match std::env::var_os(WAS_THERE) {
                Some(_) => RemovedOnSignal::emptying(&path, Mode::from_raw_mode(0o755)),
                None => RemovedOnSignal::new(&path),
            })
            .map(Result::unwrap)
            .collect();
        println!("ready");
        thread::sleep(Duration::from_secs(60));
    }

    /// How a process ends that guards `path` and gets `signal`.
    fn end_by(signal: &str, path: &Path) -> ExitStatus {
        end_with(signal, path, &[])
    }

    /// The same with further variables.
    fn end_with(signal: &str, path: &Path, variables: &[(&str, &str)]) -> ExitStatus {
        // Whoever runs the tests may have them ignore a hangup.
        let mut child = guarding("--default-signal=HUP", path, variables);
        send(signal, &child);
        child.wait().unwrap()
    }

    /// A process that guards `path`, with `variables`, started by `env` with an `option`.
    fn guarding(option: &str, path: &Path, variables: &[(&str, &str)]) -> Child {
        let test = format!("{}::guards_the_given_files", module_path!().split_once("::").unwrap().1);
        let mut child = Command::new("env")
            .arg(option)
            .arg(std::env::current_exe().unwrap())
            .args([&test, "--exact", "--nocapture", "--ignored"])
            .env(GUARDED, path)
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.contains("ready")));
        child
    }

    fn send(signal: &str, child: &Child) {
        let killed = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(killed.success());
    }

    #[test]
    fn folder_that_was_there_is_emptied_and_has_its_mode_again() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("mine");
        fs::create_dir_all(folder.join("part")).unwrap();
        fs::write(folder.join("part/file"), "half").unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();

        let end = end_with("-INT", &folder, &[(WAS_THERE, "1")]);

        assert_eq!(end.code(), Some(128 + SIGINT));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn file_and_folder_go_with_a_signal_that_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let (file, folder) = (dir.path().join("file"), dir.path().join("folder"));
        fs::write(&file, "half").unwrap();
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("part"), "half").unwrap();

        let ends = [end_by("-TERM", &file), end_by("-HUP", &folder)];

        assert_eq!(ends.map(|end| end.code()), [Some(128 + SIGTERM), Some(128 + SIGHUP)]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn hangup_that_is_ignored_ends_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "half").unwrap();

        let mut child = guarding("--ignore-signal=HUP", &file, &[]);
        send("-HUP", &child);
        send("-TERM", &child);

        assert_eq!(child.wait().unwrap().code(), Some(128 + SIGTERM));
    }

    #[test]
    fn all_that_is_guarded_at_once_goes() {
        let dir = tempfile::tempdir().unwrap();
        let folders: Vec<PathBuf> = (0..8).map(|number| dir.path().join(format!("folder-{number}"))).collect();
        for folder in &folders {
            fs::create_dir(folder).unwrap();
            (0..200).for_each(|number| fs::write(folder.join(number.to_string()), "half").unwrap());
        }

        let end = end_by("-INT", Path::new(&std::env::join_paths(&folders).unwrap()));

        assert_eq!(end.code(), Some(128 + SIGINT));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn file_of_the_hidden_name_stays() {
        let dir = tempfile::tempdir().unwrap();
        let [doomed, other] = ["file", ".file.removed"].map(|name| dir.path().join(name));
        fs::write(&doomed, "half").unwrap();
        fs::write(&other, "somebody's").unwrap();

        remove(&doomed);

        assert_eq!((doomed.exists(), fs::read_to_string(&other).unwrap().as_str()), (false, "somebody's"));
    }

    #[test]
    fn folder_into_which_another_thread_writes_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("folder");
        fs::create_dir(&folder).unwrap();
        let is_over = AtomicBool::new(false);

        thread::scope(|scope| {
            scope.spawn(|| {
                let mut number = 0_u64;
                while !is_over.load(Ordering::Relaxed) {
                    // Fails once the folder is gone.
                    let _ = fs::write(folder.join(number.to_string()), "part");
                    number += 1;
                    thread::sleep(Duration::from_micros(200));
                }
            });
            let begun = Instant::now();
            while fs::read_dir(&folder).unwrap().count() < 100 && begun.elapsed() < Duration::from_secs(20) {
                thread::yield_now();
            }
            remove(&folder);
            is_over.store(true, Ordering::Relaxed);
        });

        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
