//! A virtual machine that another process runs: found, and looked at again while it runs.

use super::failure::{AttachError, is_qemu};
use super::process::{Process, Task};
use super::threads::vcpu_threads;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;
use strata_clock::{DebugfsVcpu, DebugfsVm};
use strata_recording::text::terminal::foreign::Foreign;

/// A virtual machine that another process runs.
#[derive(Debug)]
pub struct ForeignVm {
    pub process: Process,
    machine: DebugfsVm,
}

/// What one look at a virtual machine showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// Its vCPUs, in the order of their indices.
    pub vcpus: Vec<DebugfsVcpu>,
    /// Index and host thread of those whose thread is known.
    pub threads: Vec<(u32, u32)>,
}

impl Look {
    /// One more than the largest index of a vCPU.
    #[must_use]
    pub fn vcpu_count(&self) -> u32 {
        self.vcpus.iter().map(|vcpu| vcpu.vcpu.saturating_add(1)).max().unwrap_or(0)
    }
}

impl ForeignVm {
    /// The virtual machine of process `pid`, the one of descriptor `wanted` if it has several. `debugfs` is KVM's,
    /// [`KVM_DEBUGFS`](strata_clock::KVM_DEBUGFS).
    ///
    /// # Errors
    /// There is no such process or machine, none was chosen, or what tells cannot be read.
    pub fn find(pid: u32, wanted: Option<u32>, debugfs: &Path) -> Result<Self, AttachError> {
        let process = Process::open(pid)?;
        if process.machines()?.is_empty() {
            return Err(no_vm(pid, process.comm));
        }
        let threads: BTreeSet<u32> = process.tasks().iter().map(|task| task.tid).chain([pid]).collect();
        let mut machines = DebugfsVm::of_process(debugfs, &threads)?;
        if machines.is_empty() {
            return Err(AttachError::NotInDebugfs { pid, comm: process.comm });
        }
        let descriptors: Vec<u32> = machines.iter().map(|machine| machine.descriptor).collect();
        let machine = machines.swap_remove(choose(pid, descriptors, wanted)?);
        Ok(Self { process, machine })
    }

    /// Its vCPUs and their threads now; `None` when it has ended.
    ///
    /// # Errors
    /// Debugfs cannot be read although the machine is there.
    pub fn look(&self) -> Result<Option<Look>, AttachError> {
        match self.machine.vcpus() {
            _ if self.has_ended_within(Duration::ZERO) => Ok(None),
            Ok(vcpus) => Ok(Some(Look { threads: vcpu_threads(&vcpus, &self.process.tasks()), vcpus })),
            Err(error) => Err(error.into()),
        }
    }

    /// Numbers of the process's threads.
    #[must_use]
    pub fn thread_ids(&self) -> Vec<u32> {
        self.process.tasks().into_iter().map(|Task { tid, .. }| tid).collect()
    }

    /// Waits for the end of the process for `limit` at most; says whether the machine has ended, with it or by itself.
    #[must_use]
    pub fn has_ended_within(&self, limit: Duration) -> bool {
        self.process.ends_within(limit) || !self.machine.exists()
    }
}

/// Why process `pid`, called `comm`, which has no descriptor of KVM's, runs no VM that can be recorded.
fn no_vm(pid: u32, comm: Foreign<String>) -> AttachError {
    if is_qemu(comm.raw()) { AttachError::WithoutKvm { pid, comm } } else { AttachError::NoVm { pid, comm } }
}

/// Which of the machines with these `descriptors` is meant.
fn choose(pid: u32, descriptors: Vec<u32>, wanted: Option<u32>) -> Result<usize, AttachError> {
    match (wanted, descriptors.len()) {
        (None, 1) => Ok(0),
        (None, _) => Err(AttachError::SeveralVms { pid, descriptors }),
        (Some(wanted), _) => match descriptors.iter().position(|descriptor| *descriptor == wanted) {
            Some(place) => Ok(place),
            None => Err(AttachError::NoSuchVm { pid, wanted, descriptors }),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_machine_is_meant_and_one_of_several_is_chosen() {
        assert_eq!(choose(7, vec![12], None).unwrap(), 0);
        assert_eq!(choose(7, vec![5, 12], Some(12)).unwrap(), 1);
        assert!(choose(7, vec![5, 12], None).unwrap_err().to_string().contains("--vm 5 or 12"));
        assert!(choose(7, vec![5], Some(6)).unwrap_err().to_string().contains("no VM of descriptor 6; it has 5"));
    }

    #[test]
    fn qemu_without_kvm_is_called_that() {
        assert!(no_vm(7, "qemu-system-x86".into()).to_string().contains("is a QEMU without KVM"));
        assert!(no_vm(7, "qemu-ga".into()).to_string().contains("runs no VM"));
    }

    #[test]
    fn process_without_a_machine_is_named() {
        let error = ForeignVm::find(std::process::id(), None, Path::new("/nonexistent")).unwrap_err();

        assert!(matches!(&error, AttachError::NoVm { pid, .. } if *pid == std::process::id()), "{error}");
    }
}
