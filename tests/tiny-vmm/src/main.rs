//! A VMM of a few lines that knows nothing of strata: for trying `strata attach`. `tiny-vmm SECONDS VCPUS` runs a guest
//! that writes to a port for ever, and ends by itself with exit status 7.
#![allow(unsafe_code)] // a memory slot is given to KVM by address

use anyhow::bail;
use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

/// Exit status of a VMM that ran its guest to the end.
pub const STATUS: u8 = 7;
/// Bytes of the guest's memory.
const MEMORY_SIZE: usize = 0x1_0000;
/// Where the guest's code lies.
const CODE: u64 = 0x1000;
/// In real mode: `out %al, $0x10`, again and again.
const GUEST: [u8; 4] = [0xe6, 0x10, 0xeb, 0xfc];
/// How long the VMM sleeps.
const PAUSE: Duration = Duration::from_millis(4);
/// The VMM sleeps after so many accesses to the port.
pub const ACCESSES_PER_SLEEP: u64 = 10;

/// Runs a guest of `vcpus` vCPUs for `time`; returns the number of accesses to its port. Each vCPU sleeps after so many of
/// them, `accesses_per_sleep`. So many `threads` run each vCPU, one after the other, for equal times.
///
/// # Errors
/// There is no KVM that can be used, or it does something else with the guest.
pub fn run(time: Duration, vcpus: u8, accesses_per_sleep: u64, threads: u32) -> anyhow::Result<u64> {
    let machine = Kvm::new()?.create_vm()?;
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), MEMORY_SIZE)])?;
    memory.write_slice(&GUEST, GuestAddress(CODE))?;
    let address = memory.get_host_address(GuestAddress(0))? as u64;
    let region =
        kvm_userspace_memory_region { memory_size: MEMORY_SIZE as u64, userspace_addr: address, ..Default::default() };
    // SAFETY: the memory is dropped at the end of this function, when no vCPU runs any more.
    unsafe { machine.set_user_memory_region(region) }?;
    let mut vcpus: Vec<VcpuFd> = (0..vcpus).map(|index| machine.create_vcpu(index.into())).collect::<Result<_, _>>()?;
    vcpus.iter().try_for_each(reset)?;
    let begin = Instant::now();
    let mut accesses = 0;
    for turn in 1..=threads {
        let end = begin + time * turn / threads;
        accesses += std::thread::scope(|scope| {
            let run = |vcpu| scope.spawn(move || run_vcpu(vcpu, end, accesses_per_sleep));
            let threads: Vec<_> = vcpus.iter_mut().map(run).collect();
            let joined = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| bail!("a vCPU panicked")));
            joined.sum::<anyhow::Result<u64>>()
        })?;
    }
    Ok(accesses)
}

/// Has `vcpu` begin at the guest's code.
fn reset(vcpu: &VcpuFd) -> anyhow::Result<()> {
    let mut system = vcpu.get_sregs()?;
    (system.cs.base, system.cs.selector) = (0, 0);
    vcpu.set_sregs(&system)?;
    let mut registers = vcpu.get_regs()?;
    (registers.rip, registers.rflags) = (CODE, 2);
    Ok(vcpu.set_regs(&registers)?)
}

fn run_vcpu(vcpu: &mut VcpuFd, end: Instant, accesses_per_sleep: u64) -> anyhow::Result<u64> {
    let mut accesses = 0;
    while Instant::now() < end {
        match vcpu.run()? {
            VcpuExit::IoOut(..) => accesses += 1,
            other => bail!("the guest did something else: {other:?}"),
        }
        if accesses % accesses_per_sleep == 0 {
            std::thread::sleep(PAUSE);
        }
    }
    Ok(accesses)
}

#[allow(dead_code, reason = "unused where this is a module of a test")]
fn main() -> anyhow::Result<ExitCode> {
    let mut numbers = std::env::args().skip(1).map(|argument| argument.parse::<u8>());
    let (Some(Ok(seconds)), Some(Ok(vcpus)), None) = (numbers.next(), numbers.next(), numbers.next()) else {
        bail!("usage: tiny-vmm SECONDS VCPUS");
    };
    println!("{} accesses", run(Duration::from_secs(seconds.into()), vcpus, ACCESSES_PER_SLEEP, 1)?);
    Ok(ExitCode::from(STATUS))
}
