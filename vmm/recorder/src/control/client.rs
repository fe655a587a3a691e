//! The command line's end of the control socket: finds a VM and asks it.

use super::directory::{self, DirectoryError, FoundVm};
use super::protocol::{Answer, MAX_LINE, Request};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;

/// How long a VM may take to answer: writing a snapshot takes its time.
const ANSWER_LIMIT: Duration = Duration::from_secs(300);

/// Why a VM could not be asked.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The folders of VMs cannot be read.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// No such VM runs.
    #[error("no VM called '{0}' is running; `strata ps` lists those that are")]
    NoSuchVm(String),
    /// The VM's process died.
    #[error("the process of VM '{name}' died; get its trace with `strata recover {} -o DIR`", region.display())]
    Dead {
        /// What was asked for.
        name: String,
        /// File of its region.
        region: PathBuf,
    },
    /// Several VMs of that name run.
    #[error("several VMs are called '{name}'; give one of the process ids {}", numbers(.pids))]
    Ambiguous {
        /// What was asked for.
        name: String,
        /// Their processes.
        pids: Vec<u32>,
    },
    /// The VM does not answer.
    #[error("the VM does not answer on '{}'; perhaps it is ending", path.display())]
    NoAnswer {
        /// The socket.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The VM refused the request.
    #[error("{0}")]
    Refused(String),
}

pub(super) fn numbers(pids: &[u32]) -> String {
    pids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The VM that `wanted` names, by name or process id, among those in the folders `runtimes`.
///
/// # Errors
/// When there is none, or more than one.
pub fn find(runtimes: &[PathBuf], wanted: &str) -> Result<FoundVm, ClientError> {
    choose(directory::list_all(runtimes)?, wanted)
}

fn choose(found: Vec<FoundVm>, wanted: &str) -> Result<FoundVm, ClientError> {
    let pid: Option<u32> = wanted.parse().ok();
    let (by_pid, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|found| Some(found.vm.pid) == pid);
    let named = others.into_iter().filter(|found| found.vm.name == wanted);
    let (mut alive, dead): (Vec<_>, Vec<_>) = by_pid.into_iter().chain(named).partition(|found| found.alive);
    match (alive.len(), dead.iter().find_map(FoundVm::region)) {
        (0, None) => Err(ClientError::NoSuchVm(wanted.into())),
        (0, Some(region)) => Err(ClientError::Dead { name: wanted.into(), region }),
        (1, _) => Ok(alive.remove(0)),
        _ => {
            Err(ClientError::Ambiguous { name: wanted.into(), pids: alive.iter().map(|found| found.vm.pid).collect() })
        }
    }
}

/// Asks the VM that serves `socket`, and waits for its answer.
///
/// # Errors
/// When it does not answer, or says no.
pub fn call(socket: &Path, request: &Request) -> Result<Answer, ClientError> {
    let ask = || -> io::Result<Answer> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        let mut text = serde_json::to_vec(request)?;
        text.push(b'\n');
        stream.write_all(&text)?;
        let mut line = Vec::new();
        BufReader::new(stream.take(MAX_LINE as u64)).read_until(b'\n', &mut line)?;
        Ok(serde_json::from_slice(&line)?)
    };
    match ask() {
        Ok(Answer::Refused { message }) => Err(ClientError::Refused(message)),
        Ok(answer) => Ok(answer),
        Err(source) => Err(ClientError::NoAnswer { path: socket.into(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::directory::tests::description;
    use crate::control::directory::{VmDescription, VmDirectory};

    fn found(name: &str, pid: u32, alive: bool) -> FoundVm {
        FoundVm { path: "/nonexistent".into(), vm: VmDescription { pid, ..description(name) }, alive }
    }

    #[test]
    fn vm_is_found_by_name_and_by_process() {
        let vms = || vec![found("a", 1, true), found("b", 2, true)];

        assert_eq!(choose(vms(), "b").unwrap().vm.pid, 2);
        assert_eq!(choose(vms(), "1").unwrap().vm.name, "a");
        assert!(choose(vms(), "c").unwrap_err().to_string().contains("strata ps"));
    }

    #[test]
    fn running_vm_is_preferred_to_a_dead_one_of_its_name() {
        assert_eq!(choose(vec![found("a", 1, false), found("a", 2, true)], "a").unwrap().vm.pid, 2);
    }

    #[test]
    fn several_of_a_name_are_told_apart_by_process() {
        let error = choose(vec![found("a", 1, true), found("a", 2, true)], "a").unwrap_err();

        assert!(error.to_string().contains("1, 2"), "{error}");
    }

    #[test]
    fn dead_vm_is_to_be_recovered() {
        let runtime = crate::control::directory::tests::runtime();
        let mut directory = VmDirectory::create(runtime.path(), &description("a")).unwrap();
        directory.create_region().unwrap();
        directory.keep();
        drop(directory);

        let error = find(&[runtime.path().into()], "a").unwrap_err();

        assert!(error.to_string().contains("strata recover"), "{error}");
    }
}
