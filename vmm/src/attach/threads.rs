//! Which host thread runs which vCPU.
//!
//! KVM's debugfs says it, on kernels from 5.19 on, once the vCPU has run. Before that the names of the threads do, as far
//! as the VMM gives them such.

use super::process::Task;
use strata_clock::DebugfsVcpu;

/// How names of vCPU threads begin, before the vCPU's index: of QEMU; Firecracker; crosvm; Cloud Hypervisor and Strata.
const NAMES: [&str; 4] = ["CPU ", "fc_vcpu ", "crosvm_vcpu", "vcpu"];

/// Index and host thread of each of `vcpus` whose thread is known, among the threads `tasks` of its process.
#[must_use]
pub fn vcpu_threads(vcpus: &[DebugfsVcpu], tasks: &[Task]) -> Vec<(u32, u32)> {
    let named = |vcpu: u32| tasks.iter().find(|task| vcpu_of_name(task.comm.raw()) == Some(vcpu)).map(|task| task.tid);
    let thread = |vcpu: &DebugfsVcpu| Some((vcpu.vcpu, vcpu.thread.or_else(|| named(vcpu.vcpu))?));
    vcpus.iter().filter_map(thread).collect()
}

/// The vCPU whose thread has the name `comm`; `None` where the name says nothing of the kind.
fn vcpu_of_name(comm: &str) -> Option<u32> {
    let rest = NAMES.iter().find_map(|name| comm.strip_prefix(name))?;
    let digits = rest.find(|next: char| !next.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vcpu(vcpu: u32, thread: Option<u32>) -> DebugfsVcpu {
        DebugfsVcpu { vcpu, thread, tsc: None }
    }

    fn task(tid: u32, comm: &str) -> Task {
        Task { tid, comm: comm.into() }
    }

    #[test]
    fn threads_of_known_vmms_are_recognised_by_their_names() {
        let names =
            ["CPU 3/KVM", "CPU 12/TCG", "vcpu0", "fc_vcpu 2", "crosvm_vcpu1", "qemu-system-x86", "vcpu", "CPU x"];

        let vcpus = names.map(vcpu_of_name);

        assert_eq!(vcpus, [Some(3), Some(12), Some(0), Some(2), Some(1), None, None, None]);
    }

    #[test]
    fn what_kvm_says_comes_before_a_name() {
        let tasks = [task(70, "qemu-system-x86"), task(71, "CPU 0/KVM"), task(72, "CPU 1/KVM")];

        let threads = vcpu_threads(&[vcpu(0, Some(75)), vcpu(1, None), vcpu(2, None)], &tasks);

        assert_eq!(threads, [(0, 75), (1, 72)]);
    }
}
