//! Finds the kernel threads that work for a process's virtual machines.
//!
//! vhost's workers and KVM's own are threads of the kernel, named after the thread that asked for them: `vhost-1234`,
//! `kvm-pit/1234`, `kvm-nx-lpage-recovery-1234`. Since Linux 6.4 and 6.14 they are threads of the process itself, which
//! the kernel does not report as its children. `kvm-pit` has the number that the thread's process has in its own PID
//! namespace, all others the host's.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// What the names of the workers start with, before the number of the thread that they work for.
const WORKER_NAMES: [&str; 3] = ["vhost-", "kvm-pit/", "kvm-nx-lpage-recovery-"];
/// The one of them whose number is that of a PID namespace.
const NAMESPACE_WORKER: &str = "kvm-pit/";
/// What the names of the workers among a process's own threads start with: they have room for 15 characters.
const OWN_WORKER_NAMES: [&str; 2] = ["vhost-", "kvm-nx-lpage-re"];
/// The number of kthreadd: the parent of all threads of the kernel.
const KTHREADD: u32 = 2;

/// Looks for workers as they appear.
#[derive(Debug, Default)]
pub struct WorkerSearch {
    /// Threads that were there the last time: their names are known.
    known: BTreeSet<u32>,
}

impl WorkerSearch {
    /// Workers that have appeared since the last time and work for one of the threads `own`, or are threads of `process`.
    /// None where `/proc` cannot be read.
    pub fn look(&mut self, proc: &Path, process: u32, own: &BTreeSet<u32>) -> Vec<u32> {
        let kernel = kernel_threads(proc);
        let tasks = numbers_of_folder(&proc.join(format!("{process}/task")));
        let new = |thread: &&u32| !self.known.contains(*thread);
        let in_namespace = is_in_namespace(proc, process);
        let for_us = |thread: &&u32| {
            let name = name(proc, **thread);
            // In another namespace the number may be that of another machine's worker.
            let is_reported = !(in_namespace && name.starts_with(NAMESPACE_WORKER));
            is_reported && works_for(&name).is_some_and(|employer| own.contains(&employer))
        };
        let among_us = |thread: &&u32| {
            let name = name(proc, **thread);
            OWN_WORKER_NAMES.iter().any(|prefix| name.starts_with(prefix))
        };
        let found = kernel.iter().filter(new).filter(for_us).chain(tasks.iter().filter(new).filter(among_us));
        let found = found.copied().collect();
        self.known = kernel.into_iter().chain(tasks).collect();
        found
    }
}

/// The name of a thread; empty if there is no such thread.
fn name(proc: &Path, thread: u32) -> String {
    let mut name = fs::read_to_string(proc.join(thread.to_string()).join("comm")).unwrap_or_default();
    name.truncate(name.trim_end().len());
    name
}

/// Whether the process has another number in a PID namespace of its own.
fn is_in_namespace(proc: &Path, process: u32) -> bool {
    let status = fs::read_to_string(proc.join(process.to_string()).join("status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| numbers.split_whitespace().count() > 1)
}

/// The thread that a worker of this name works for; `None` if it is not a worker.
fn works_for(name: &str) -> Option<u32> {
    WORKER_NAMES.iter().find_map(|prefix| name.strip_prefix(prefix)?.parse().ok())
}

/// All threads of the kernel; all processes where the kernel does not list the children of a thread.
fn kernel_threads(proc: &Path) -> Vec<u32> {
    let children = proc.join(format!("{KTHREADD}/task/{KTHREADD}/children"));
    match fs::read_to_string(children) {
        Ok(children) => children.split_whitespace().filter_map(|number| number.parse().ok()).collect(),
        Err(_) => numbers_of_folder(proc),
    }
}

fn numbers_of_folder(folder: &Path) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    fn add(proc: &TempDir, thread: u32, name: &str) {
        let folder = proc.path().join(thread.to_string());
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("comm"), format!("{name}\n")).unwrap();
    }

    #[test]
    fn workers_are_named_after_their_employer() {
        assert_eq!(works_for("vhost-1234"), Some(1234));
        assert_eq!(works_for("kvm-pit/7"), Some(7));
        assert_eq!(works_for("kvm-nx-lpage-recovery-99"), Some(99));
        assert_eq!(works_for("kvm-nx-lpage-re"), None);
        assert_eq!(works_for("vhost-12x"), None);
        assert_eq!(works_for("kworker/1:2"), None);
    }

    #[test]
    fn workers_of_our_threads_are_found_as_they_appear_and_once() {
        let proc = TempDir::new().unwrap();
        let own = BTreeSet::from([1234, 1235]);
        let mut search = WorkerSearch::default();
        add(&proc, 20, "vhost-1234");
        add(&proc, 21, "vhost-999");

        let first = search.look(proc.path(), 1234, &own);
        add(&proc, 22, "kvm-pit/1235");
        let second = search.look(proc.path(), 1234, &own);
        let third = search.look(proc.path(), 1234, &own);

        assert_eq!((first, second, third), (vec![20], vec![22], vec![]));
    }

    #[test]
    fn only_the_children_of_kthreadd_are_looked_at_where_the_kernel_lists_them() {
        let proc = TempDir::new().unwrap();
        fs::create_dir_all(proc.path().join("2/task/2")).unwrap();
        fs::write(proc.path().join("2/task/2/children"), "20 ").unwrap();
        add(&proc, 20, "vhost-5");
        add(&proc, 30, "vhost-5");

        assert_eq!(WorkerSearch::default().look(proc.path(), 5, &BTreeSet::from([5])), [20]);
    }

    #[test]
    fn workers_among_the_processs_own_threads_are_found_by_their_shortened_names() {
        let proc = TempDir::new().unwrap();
        for (thread, name) in [(40, "kvm-nx-lpage-re"), (41, "vcpu0"), (42, "vhost-40")] {
            fs::create_dir_all(proc.path().join(format!("39/task/{thread}"))).unwrap();
            add(&proc, thread, name);
        }

        let mut found = WorkerSearch::default().look(proc.path(), 39, &BTreeSet::new());
        found.sort_unstable();

        assert_eq!(found, [40, 42]);
    }

    #[test]
    fn worker_that_is_named_by_a_namespaces_number_is_nobodys_of_a_process_in_one() {
        let proc = TempDir::new().unwrap();
        add(&proc, 20, "kvm-pit/7");
        add(&proc, 21, "vhost-7");
        let found = |numbers: &str| {
            add(&proc, 7, "qemu");
            fs::write(proc.path().join("7/status"), format!("Name:\tqemu\nNSpid:\t{numbers}\n")).unwrap();
            let mut found = WorkerSearch::default().look(proc.path(), 7, &BTreeSet::from([7]));
            found.sort_unstable();
            found
        };

        assert_eq!((found("7"), found("7\t1")), (vec![20, 21], vec![21]));
    }

    #[test]
    fn nothing_is_found_without_proc() {
        assert!(WorkerSearch::default().look(Path::new("/nonexistent"), 1, &BTreeSet::from([1])).is_empty());
    }
}
