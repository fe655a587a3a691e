//! Finds out what kind of KVM this host has, by running a few instructions in a guest.
//!
//! A KVM without hardware virtualisation behind it emulates: it refuses instructions that every processor has, and
//! may accept a TSC offset and ignore it. Neither shows in a capability, so both are tried.
#![allow(unsafe_code)] // a memory slot is given to KVM by address

use crate::boot::boot_state;
use crate::error::KVM_DEVICE;
use crate::exit;
use clock_sync::tsc::read_ordered as host_tsc;
use kvm_bindings::{kvm_regs, kvm_userspace_memory_region};
use kvm_ioctls::{Cap, Kvm, VcpuExit, VcpuFd, VmFd};
use strata_clock::guest_tsc;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use vmm_sys_util::errno;

/// The API version that every KVM since Linux 2.6.22 has.
const API_VERSION: i32 = 12;
const MEMORY_SIZE: usize = 0x2_0000;
const CODE: u64 = 0x1_0000;
/// Where the guest leaves the TSC that it read.
const TSC_CELL: u64 = 0x5000;
/// Where the guest exchanges sixteen bytes.
const EXCHANGE_CELL: u64 = 0x5010;
/// A distance no time between two instructions explains: about a day of ticks.
const TSC_SHIFT: u64 = 1 << 48;
/// More exits than the guest has instructions that could cause one.
const EXITS_MAX: usize = 16;
/// Reads the TSC, then does what an emulating KVM refuses, then halts.
const GUEST: &[u8] = &[
    0x0f, 0x31, // rdtsc
    0x48, 0xc1, 0xe2, 0x20, // shl $32,%rdx
    0x48, 0x09, 0xd0, // or %rdx,%rax
    0x48, 0x89, 0x04, 0x25, 0x00, 0x50, 0, 0, // mov %rax,0x5000
    0x31, 0xc0, // xor %eax,%eax
    0x31, 0xd2, // xor %edx,%edx
    0x31, 0xdb, // xor %ebx,%ebx
    0x31, 0xc9, // xor %ecx,%ecx
    0xff, 0xc3, // inc %ebx
    0xf0, 0x48, 0x0f, 0xc7, 0x0c, 0x25, 0x10, 0x50, 0, 0,    // lock cmpxchg16b 0x5010
    0xf4, // hlt
];

/// Kinds of KVM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvmKind {
    /// Runs guests on the processor.
    Hardware,
    /// Emulates guests: a stock Linux does not boot on it.
    Emulating {
        /// How it showed.
        reason: String,
    },
    /// There is none that works.
    Absent {
        /// How it showed.
        reason: String,
    },
    /// There is one, but this user may not open it.
    NoPermission,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvmProbe {
    /// The kind of KVM.
    pub kind: KvmKind,
    /// Whether a guest saw the TSC offset that had been set for it; `None` if it could not be tried.
    pub tsc_offset_honoured: Option<bool>,
    /// Frequency of a guest's TSC, kHz.
    pub tsc_khz: Option<u32>,
    /// Most vCPUs of one guest.
    pub max_cpus: Option<u32>,
    /// KVM can give a guest memory that it cannot write.
    pub read_only_memory: bool,
}

impl KvmKind {
    /// The kind, as a recording says it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Hardware => "hardware",
            _ => "emulating",
        }
    }
}

impl KvmProbe {
    fn without_kvm(kind: KvmKind) -> Self {
        Self { kind, tsc_offset_honoured: None, tsc_khz: None, max_cpus: None, read_only_memory: false }
    }

    /// Why a stock guest cannot be run here, with what to do about it, in one line; `None` if it can.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        match &self.kind {
            KvmKind::Hardware => None,
            KvmKind::Emulating { reason } => Some(format!(
                "this host's KVM only emulates ({reason}): use a machine with VMX or SVM, or enable nested \
                 virtualisation for this one"
            )),
            KvmKind::Absent { reason } => Some(format!(
                "there is no usable KVM ({reason}): enable virtualisation in the firmware and load kvm_intel or kvm_amd"
            )),
            KvmKind::NoPermission => {
                Some(format!("no permission to open {KVM_DEVICE}: add this user to the group 'kvm', or run as root"))
            }
        }
    }
}

/// How the guest's run ended, and what it left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Trial {
    end: End,
    tsc: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It came to its last instruction and had exchanged the sixteen bytes.
    Halted,
    /// It came to its last instruction, but memory does not show the exchange.
    HaltedWithoutEffect,
    /// KVM could not emulate an instruction.
    EmulationFailure,
    /// Something else, by KVM's exit reason.
    Other(u32),
}

/// Looks at this host's KVM.
#[must_use]
pub fn probe_kvm() -> KvmProbe {
    let kvm = match Kvm::new() {
        Ok(kvm) => kvm,
        Err(error) => return KvmProbe::without_kvm(unopened(error)),
    };
    let version = kvm.get_api_version();
    if version != API_VERSION {
        let reason = format!("API version {version}, not {API_VERSION}");
        return KvmProbe::without_kvm(KvmKind::Absent { reason });
    }
    let max_cpus = u32::try_from(kvm.get_max_vcpus()).ok();
    let read_only_memory = kvm.check_extension(Cap::ReadonlyMem);
    match try_guest(&kvm) {
        Ok((kind, tsc_offset_honoured, tsc_khz)) => {
            KvmProbe { kind, tsc_offset_honoured, tsc_khz, max_cpus, read_only_memory }
        }
        Err(error) => {
            let reason = format!("a small guest cannot be created: {error}");
            KvmProbe { max_cpus, read_only_memory, ..KvmProbe::without_kvm(KvmKind::Absent { reason }) }
        }
    }
}

fn unopened(error: errno::Error) -> KvmKind {
    match error.errno() {
        libc::EACCES | libc::EPERM => KvmKind::NoPermission,
        libc::ENOENT => KvmKind::Absent { reason: format!("no {KVM_DEVICE}") },
        _ => KvmKind::Absent { reason: format!("{KVM_DEVICE} cannot be opened: {error}") },
    }
}

/// Runs the guest and judges what it did.
fn try_guest(kvm: &Kvm) -> Result<(KvmKind, Option<bool>, Option<u32>), errno::Error> {
    let vm = kvm.create_vm()?;
    let memory = guest_memory(&vm)?;
    let mut vcpu = vm.create_vcpu(0)?;
    let cpuid = kvm.get_supported_cpuid(kvm_bindings::KVM_MAX_CPUID_ENTRIES)?;
    vcpu.set_cpuid2(&cpuid)?;
    boot_state::set_boot_registers(&vcpu, CODE).map_err(|_| errno::Error::new(libc::EINVAL))?;
    vcpu.set_regs(&kvm_regs { rip: CODE, rsp: 0x8ff0, rflags: 2, ..Default::default() })?;
    let offset = TSC_SHIFT.wrapping_sub(host_tsc()).cast_signed();
    let offset_set = guest_tsc::has_offset(&vcpu) && guest_tsc::set_offset(&vcpu, offset).is_ok();
    let before = host_tsc();
    let trial = run(&mut vcpu, &memory)?;
    let after = host_tsc();
    let honoured = offset_set.then(|| saw_offset(trial.tsc, offset, before, after));
    Ok((judge(trial.end), honoured, vcpu.get_tsc_khz().ok()))
}

/// Memory with code and page tables, given to the virtual machine.
fn guest_memory(vm: &VmFd) -> Result<GuestMemoryMmap, errno::Error> {
    let invalid = |_| errno::Error::new(libc::ENOMEM);
    let memory =
        GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY_SIZE)]).map_err(|_| errno::Error::new(libc::ENOMEM))?;
    boot_state::write_tables(&memory).map_err(|_| errno::Error::new(libc::ENOMEM))?;
    memory.write_slice(GUEST, GuestAddress(CODE)).map_err(invalid)?;
    let host = memory.get_host_address(GuestAddress(0)).map_err(invalid)?;
    let region = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: 0,
        memory_size: MEMORY_SIZE as u64,
        userspace_addr: host as u64,
    };
    // SAFETY: the range is mapped by `memory`, whose lifetime in `try_guest` covers every run of the vCPU, and is
    // otherwise used by vm-memory's volatile accesses only.
    unsafe { vm.set_user_memory_region(region)? };
    Ok(memory)
}

fn run(vcpu: &mut VcpuFd, memory: &GuestMemoryMmap) -> Result<Trial, errno::Error> {
    let mut end = End::Other(u32::MAX);
    for _ in 0..EXITS_MAX {
        end = match vcpu.run() {
            Ok(VcpuExit::Hlt) => End::Halted,
            Ok(VcpuExit::InternalError) => End::EmulationFailure,
            Ok(VcpuExit::Intr) => continue,
            Ok(exit) => End::Other(exit::reason(&exit)),
            Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => continue,
            Err(error) => return Err(error),
        };
        break;
    }
    let cell = |address| memory.read_obj::<u64>(GuestAddress(address)).unwrap_or(0);
    if end == End::Halted && cell(EXCHANGE_CELL) != 1 {
        end = End::HaltedWithoutEffect;
    }
    Ok(Trial { end, tsc: cell(TSC_CELL) })
}

fn judge(end: End) -> KvmKind {
    match end {
        End::Halted => KvmKind::Hardware,
        End::HaltedWithoutEffect => KvmKind::Emulating { reason: "cmpxchg16b has no effect in a guest".into() },
        End::EmulationFailure => KvmKind::Emulating { reason: "it cannot execute cmpxchg16b".into() },
        End::Other(reason) => {
            KvmKind::Absent { reason: format!("a small guest ended unexpectedly, by KVM exit {reason}") }
        }
    }
}

/// Whether a guest that read `guest` between the host's `before` and `after` did so with `offset` applied.
fn saw_offset(guest: u64, offset: i64, before: u64, after: u64) -> bool {
    let since = guest.wrapping_sub(before.wrapping_add_signed(offset));
    since <= after.wrapping_sub(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offset_that_was_applied_is_seen() {
        assert!(saw_offset(1050, -9000, 10_000, 10_100));
    }

    #[test]
    fn offset_that_was_ignored_is_seen() {
        assert!(!saw_offset(10_050, -9000, 10_000, 10_100));
    }

    #[test]
    fn guest_that_ran_to_its_end_ran_on_hardware() {
        assert_eq!(judge(End::Halted), KvmKind::Hardware);
    }

    #[test]
    fn guest_that_could_not_be_emulated_was_emulated() {
        assert!(matches!(judge(End::EmulationFailure), KvmKind::Emulating { .. }));
    }

    #[test]
    fn unexpected_end_is_no_usable_kvm() {
        assert!(matches!(judge(End::Other(9)), KvmKind::Absent { .. }));
    }

    #[test]
    fn missing_permission_is_distinguished_from_a_missing_device() {
        let kinds = [libc::EACCES, libc::ENOENT].map(|code| unopened(errno::Error::new(code)));
        assert_eq!(kinds[0], KvmKind::NoPermission);
        assert!(matches!(kinds[1], KvmKind::Absent { .. }));
    }

    #[test]
    fn only_hardware_is_not_refused() {
        let refusal = |kind| KvmProbe::without_kvm(kind).refusal();
        assert_eq!(refusal(KvmKind::Hardware), None);
        assert!(refusal(KvmKind::NoPermission).unwrap().contains("group 'kvm'"));
        assert!(refusal(KvmKind::Emulating { reason: "x".into() }).unwrap().contains("emulates (x)"));
    }

    /// Needs `/dev/kvm`: whatever its kind, a guest ran and the probe came to a verdict.
    #[test]
    fn this_hosts_kvm_is_judged() {
        let probe = probe_kvm();
        assert!(matches!(probe.kind, KvmKind::Hardware | KvmKind::Emulating { .. }), "{probe:?}");
        assert!(probe.tsc_khz.is_some_and(|khz| khz > 0), "{probe:?}");
    }
}
