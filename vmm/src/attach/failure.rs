//! Why a recording could not be attached to a VM, or is not complete.

use super::hot_plug::HotPlugError;
use super::process::ProcessError;
use std::io;
use std::path::PathBuf;
use strata_clock::DebugfsError;
use strata_host_kernel::{HostTraceError, TracefsError};
use strata_jail::JailError;
use strata_recorder::control::directory::DirectoryError;
use strata_recorder::control::protocol::Mode;
use strata_recorder::control::server::ServerError;
use strata_recorder::recorder::RecorderError;
use strata_recorder::region::RegionError;
use strata_recorder::region::region_file::RegionFileError;
use strata_recorder::session::RequestError;
use strata_recording::files::trace_folder::TraceFolderError;
use strata_recording::text::terminal::foreign::Foreign;
use thiserror::Error;

/// Why a recording could not be attached to a VM, or is not complete.
#[derive(Debug, Error)]
pub enum AttachError {
    /// The recording cannot be had as it is requested.
    #[error(transparent)]
    Recording(#[from] RequestError),
    /// Only root sees what is needed.
    #[error("attaching needs root, for KVM's debugfs and the host kernel's tracepoints: sudo strata attach {pid} …")]
    NotRoot {
        /// The process that was given.
        pid: u32,
    },
    /// The process cannot be held, or looked into.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// QEMU emulates the processor.
    #[error(
        "process {pid} ({comm}) is a QEMU without KVM: it emulates its VM's processor (TCG), and the host's kernel \
         does not see that; start it with -accel kvm"
    )]
    WithoutKvm { pid: u32, comm: Foreign<String> },
    /// The process has no VM.
    #[error(
        "process {pid} ({comm}) runs no VM: it has no KVM descriptor; `strata attach` alone lists those that run a VM"
    )]
    NoVm { pid: u32, comm: Foreign<String> },
    /// KVM's debugfs knows no VM of the process.
    #[error(
        "KVM's debugfs shows no VM of process {pid} ({comm}): it has ended, another process runs it, or strata is in a \
         container; give the process whose threads run the vCPUs, on the host itself"
    )]
    NotInDebugfs { pid: u32, comm: Foreign<String> },
    /// The process has several VMs.
    #[error("process {pid} runs {} VMs; choose one by its descriptor: --vm {}", .descriptors.len(), either(.descriptors))]
    SeveralVms {
        pid: u32,
        /// Descriptors of the VMs.
        descriptors: Vec<u32>,
    },
    /// The process has no VM of that descriptor.
    #[error("process {pid} has no VM of descriptor {wanted}; it has {}", either(.descriptors))]
    NoSuchVm {
        pid: u32,
        wanted: u32,
        /// Descriptors of the VMs that there are.
        descriptors: Vec<u32>,
    },
    /// KVM's debugfs cannot be read.
    #[error(transparent)]
    Debugfs(#[from] DebugfsError),
    /// The VM ended before the recording began.
    #[error("the VM of process {pid} ended before the recording began; nothing was recorded")]
    Ended { pid: u32 },
    /// Somebody records the VM already.
    #[error(
        "process {pid} is recorded already, by strata attach of process {by}{}; end that with `strata ctl {by} detach`, or \
         read its trace",
        trace.as_ref().map_or_else(String::new, |trace| format!(" into '{trace}'"))
    )]
    Attached {
        pid: u32,
        /// Who records it.
        by: u32,
        /// Where to.
        trace: Option<Foreign<PathBuf>>,
    },
    /// The region's file cannot be used.
    #[error(transparent)]
    RegionFile(#[from] RegionFileError),
    /// The region cannot be taken.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// QEMU cannot be given a region.
    #[error(transparent)]
    HotPlug(#[from] HotPlugError),
    /// The region's rings behave otherwise when they are full.
    #[error("'{}' was made for --mode {made_for}: give that, or make another region", region.display())]
    RegionMode {
        /// The region's file.
        region: PathBuf,
        /// The mode that it was made for.
        made_for: Mode,
    },
    /// The VM has more vCPUs than the region.
    #[error(
        "'{}' has room for {vcpus} vCPUs, the VM's go up to number {}: make one with --cpus {needed}, and start the VM with it",
        region.display(), .needed - 1
    )]
    FewVcpus {
        /// The region's file.
        region: PathBuf,
        /// vCPUs that it has room for.
        vcpus: u32,
        /// One more than the largest index.
        needed: u32,
    },
    /// The VM does not have the region.
    #[error(
        "process {pid} does not have '{}' in its memory: start the VM with what `strata region create` printed",
        region.display()
    )]
    NotMapped {
        pid: u32,
        /// The region's file.
        region: PathBuf,
    },
    /// The host has given up its TSC.
    #[error(
        "this host's kernel has given up its TSC, so that times of another VMM's guest cannot be related to the host's: leave \
         --region and --qmp out to record the host's kernel alone"
    )]
    NoTsc,
    /// The guest's TSC runs at another rate.
    #[error(
        "vCPU {vcpu}'s TSC runs at another rate than the host's, so that times of the guest cannot be related to the host's \
         exactly: start the VM without tsc-frequency, or leave --region and --qmp out"
    )]
    ScaledTsc { vcpu: u32 },
    /// Nothing of the host's kernel is to be recorded.
    #[error(
        "'{events}' chooses no event of the host's kernel, and only those can be recorded here: --events 'host-kernel:kvm:*'"
    )]
    NoEvents { events: String },
    /// The host's kernel cannot be traced.
    #[error("the host's kernel cannot be traced (to trace it, {})", .0.fix())]
    Tracefs(#[source] TracefsError),
    /// The host's kernel cannot be traced, after all.
    #[error(transparent)]
    HostTrace(#[from] HostTraceError),
    /// The trace folder cannot be used.
    #[error(transparent)]
    TraceFolder(#[from] TraceFolderError),
    /// There is no place for the control socket.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The recording cannot be controlled.
    #[error(transparent)]
    Control(#[from] ServerError),
    /// The recording cannot be written.
    #[error(transparent)]
    Recorder(#[from] RecorderError),
    /// The process cannot be confined.
    #[error(transparent)]
    Jail(#[from] JailError),
    /// No process can be made that takes the region away from QEMU.
    #[error("cannot start the process that takes the trace region away from QEMU")]
    Unplugging(#[source] io::Error),
    /// Signals cannot be handled, or a thread not be started.
    #[error("cannot handle signals, or start a thread")]
    Threads(#[source] io::Error),
}

/// Whether `comm` is the name of a QEMU that emulates a whole machine.
pub(super) fn is_qemu(comm: &str) -> bool {
    comm.starts_with("qemu-system") || comm.starts_with("qemu-kvm")
}

fn either(numbers: &[u32]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_vms_are_named_with_the_option_that_chooses() {
        let error = AttachError::SeveralVms { pid: 7, descriptors: vec![5, 12] };

        assert_eq!(error.to_string(), "process 7 runs 2 VMs; choose one by its descriptor: --vm 5 or 12");
    }

    #[test]
    fn vm_that_is_recorded_already_is_named_with_who_records_it_and_where() {
        let error = AttachError::Attached { pid: 7, by: 9, trace: Some("/tmp/t".into()) };

        let text = error.to_string();

        for part in ["process 7", "process 9", "'/tmp/t'", "strata ctl 9 detach"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
}
