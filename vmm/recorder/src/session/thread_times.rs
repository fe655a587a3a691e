//! What the threads of this process have used of the host's CPUs, by the kernel's own account, so that a recording can
//! say what it cost. The account of a thread that runs may be behind by a scheduler's tick.

use std::path::Path;
use strata_host_kernel::namespace::recorded_thread_id;
use strata_recording::manifest::StrataThread;

/// Threads that are kept count of at most: a process has some ten, and a vCPU each.
const MAX_THREADS: usize = 8192;

/// Updates `known` with the threads of this process. Those that have ended keep what was read of them last; nothing
/// changes where the kernel keeps no account.
pub fn update(known: &mut Vec<StrataThread>) {
    update_from(known, Path::new("/proc/self/task"));
}

fn update_from(known: &mut Vec<StrataThread>, tasks: &Path) {
    for entry in tasks.read_dir().into_iter().flatten().flatten() {
        let Some(thread) = read(&entry.path()) else { continue };
        let has_room = known.len() < MAX_THREADS;
        match known.iter_mut().find(|of| of.tid == thread.tid && of.name == thread.name) {
            Some(of) => of.cpu_ns = of.cpu_ns.max(thread.cpu_ns),
            None if has_room => known.push(thread),
            None => {}
        }
    }
}

/// The thread whose folder in `/proc` is `folder`; `None` when it has ended.
fn read(folder: &Path) -> Option<StrataThread> {
    let tid = recorded_thread_id(folder.file_name()?.to_str()?.parse().ok()?);
    let name = std::fs::read_to_string(folder.join("comm")).ok()?.trim_end().into();
    // On a CPU, waiting for one, and how often it was put on one; the times in ns.
    let account = std::fs::read_to_string(folder.join("schedstat")).ok()?;
    let cpu_ns = account.split_ascii_whitespace().next()?.parse().ok()?;
    Some(StrataThread { tid, name, cpu_ns })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A thread in a folder like `/proc/PID/task`.
    fn thread(tasks: &Path, tid: i32, name: &str, schedstat: &str) {
        let folder = tasks.join(tid.to_string());
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("comm"), format!("{name}\n")).unwrap();
        fs::write(folder.join("schedstat"), schedstat).unwrap();
    }

    fn known(tid: i32, name: &str, cpu_ns: u64) -> StrataThread {
        StrataThread { tid, name: name.into(), cpu_ns }
    }

    #[test]
    fn threads_are_counted_and_those_that_have_ended_keep_their_last_count() {
        let tasks = tempfile::tempdir().unwrap();
        thread(tasks.path(), 8, "strata-recorder", "500 7 3\n");
        let mut threads = vec![known(7, "strata-clock", 90), known(8, "strata-recorder", 100)];

        update_from(&mut threads, tasks.path());

        assert_eq!(threads, [known(7, "strata-clock", 90), known(8, "strata-recorder", 500)]);
    }

    #[test]
    fn what_the_kernel_does_not_say_is_left_out() {
        let tasks = tempfile::tempdir().unwrap();
        thread(tasks.path(), 8, "strata-recorder", "");
        fs::create_dir(tasks.path().join("9")).unwrap();
        let mut threads = Vec::new();

        update_from(&mut threads, tasks.path());
        update_from(&mut threads, Path::new("/nonexistent"));

        assert_eq!(threads, []);
    }

    #[test]
    fn this_thread_has_used_some_time() {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        let mut threads = Vec::new();
        // The kernel adds up what a thread used when it leaves its CPU.
        std::thread::sleep(std::time::Duration::from_millis(1));

        update(&mut threads);

        assert!(threads.iter().any(|thread| thread.tid == tid && thread.cpu_ns > 0), "{threads:?}");
    }
}
