//! Whether this process is where the host's kernel counts threads and users: in the namespaces that it began with.

use rustix::process::geteuid;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;
use thiserror::Error;

/// This process, as `/proc` shows it.
const THIS_PROCESS: &str = "/proc/self";
/// The kernel's numbers of its first namespaces (`include/linux/proc_ns.h`), the same on every machine.
const FIRST_PID: &str = "pid:[4026531836]";
const FIRST_USER: &str = "user:[4026531837]";

/// Why thread ids of this process are not those of the host's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ThreadIdError {
    /// Threads have other numbers here than those that the host's kernel traces by.
    #[error("strata runs in a PID namespace, so that its thread ids are not those by which the host's kernel traces")]
    PidNamespace,
    /// Nothing tells which numbers threads have.
    #[error(
        "/proc does not show this process, so that nothing tells which numbers its threads have for the host's kernel"
    )]
    NoProc,
}

impl ThreadIdError {
    /// What the user can do about it, in one line.
    #[must_use]
    pub const fn fix(self) -> &'static str {
        match self {
            Self::PidNamespace => {
                "start the container with --pid=host (Kubernetes: hostPID: true), or run strata outside of it"
            }
            Self::NoProc => "mount this PID namespace's own proc at /proc: mount -t proc proc /proc",
        }
    }
}

/// Looked up once: a process cannot change its PID namespace, and gives up the right to look.
static THREAD_IDS: LazyLock<ThreadIds> = LazyLock::new(|| ThreadIds::of(Path::new(THIS_PROCESS)));

/// Whose numbers a process's threads have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThreadIds {
    /// The host kernel's.
    Host,
    /// A PID namespace's.
    Namespace,
    /// There is nothing to tell by.
    Unknown,
}

impl ThreadIds {
    /// Of the process with this folder in `/proc`.
    fn of(process: &Path) -> Self {
        match fs::read_link(process.join("ns/pid")) {
            Ok(namespace) if namespace == Path::new(FIRST_PID) => Self::Host,
            Ok(_) => Self::Namespace,
            // A kernel without PID namespaces has one numbering.
            Err(_) if process.join("ns").is_dir() => Self::Host,
            Err(_) => Self::Unknown,
        }
    }

    const fn check(self) -> Result<(), ThreadIdError> {
        match self {
            Self::Host => Ok(()),
            Self::Namespace => Err(ThreadIdError::PidNamespace),
            Self::Unknown => Err(ThreadIdError::NoProc),
        }
    }
}

/// Whether thread ids of this process are those that the host's kernel writes into its records and takes as a filter.
/// In another PID namespace the same numbers are those of other threads.
///
/// # Errors
/// They are not, or there is no `/proc` to tell by.
pub fn check_thread_ids() -> Result<(), ThreadIdError> {
    THREAD_IDS.check()
}

/// The number of this process's thread `tid` in a recording: the host's, or, where that is not known, one below -1, which
/// is no other thread's.
#[must_use]
pub fn recorded_thread_id(tid: i32) -> i32 {
    if *THREAD_IDS == ThreadIds::Host { tid } else { !tid }
}

/// Whose rights a process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Those of a user who is not root.
    User,
    /// Those of a user namespace's root, who is another user on the host.
    NamespaceRoot,
    /// Those of the host's root; also where there is no `/proc` to tell by.
    HostRoot,
}

impl Rights {
    /// Those of this process.
    #[must_use]
    pub fn of_this_process() -> Self {
        if geteuid().is_root() { Self::of_root(Path::new(THIS_PROCESS)) } else { Self::User }
    }

    /// Those of the process of root that has this folder in `/proc`.
    fn of_root(process: &Path) -> Self {
        match fs::read_link(process.join("ns/user")) {
            Ok(namespace) if namespace != Path::new(FIRST_USER) => Self::NamespaceRoot,
            _ => Self::HostRoot,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;

    /// A process's folder with these namespaces, by the names of their links.
    fn process(namespaces: &[(&str, &str)]) -> TempDir {
        let folder = TempDir::new().unwrap();
        fs::create_dir(folder.path().join("ns")).unwrap();
        for (name, link) in namespaces {
            symlink(link, folder.path().join("ns").join(name)).unwrap();
        }
        folder
    }

    #[test]
    fn thread_ids_of_another_pid_namespace_are_refused_with_the_option_that_helps() {
        let (first, other) = (process(&[("pid", FIRST_PID)]), process(&[("pid", "pid:[4026532177]")]));

        let error = ThreadIds::of(other.path()).check().unwrap_err();

        assert_eq!(ThreadIds::of(first.path()), ThreadIds::Host);
        assert!(error == ThreadIdError::PidNamespace && error.fix().contains("--pid=host"), "{error}");
    }

    #[test]
    fn kernel_without_pid_namespaces_has_one_numbering() {
        assert_eq!(ThreadIds::of(process(&[]).path()), ThreadIds::Host);
    }

    #[test]
    fn nothing_is_known_of_thread_ids_without_proc() {
        let error = ThreadIds::of(Path::new("/nonexistent")).check().unwrap_err();

        assert!(error == ThreadIdError::NoProc && error.fix().contains("mount"), "{error}");
    }

    #[test]
    fn root_of_another_user_namespace_is_not_the_hosts() {
        let others = [&[("user", FIRST_USER)][..], &[("user", "user:[4026532178]")], &[]].map(process);

        assert_eq!(
            others.map(|process| Rights::of_root(process.path())),
            [Rights::HostRoot, Rights::NamespaceRoot, Rights::HostRoot]
        );
    }
}
