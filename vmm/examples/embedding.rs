//! A monitor of a few lines that carries the trace region itself, with `shared-ring`, `clock-sync` and rust-vmm's crates, and
//! nothing of `strata`. docs/embedding.md goes through it. Run it: `cargo run -p vmm --example embedding`
//!
//! Its guest has no agent. It finds the region as the agent does, by CPUID, and reads the first bytes of it aloud.
#![allow(unsafe_code)] // memory is given to KVM by address, and KVM's requests are made by number

use anyhow::{Context, bail, ensure};
use clock_sync::entry::Writer;
use clock_sync::relation::Relation;
use clock_sync::{calibration, tsc};
use kvm_bindings::{
    KVM_MAX_CPUID_ENTRIES, KVM_MEM_READONLY, KVM_VCPU_TSC_CTRL, KVM_VCPU_TSC_OFFSET, KVMIO, kvm_cpuid_entry2,
    kvm_device_attr, kvm_userspace_memory_region,
};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use memmap2::MmapRaw;
use shared_ring::consumer::Consumer;
use shared_ring::host::{EnabledEvents, Parts, Region};
use shared_ring::host_memory::HostMemory;
use shared_ring::layout::{ABI_VERSION, Geometry, MAGIC, MAX_EVENTS, Mode};
use shared_ring::region::{RegionConfig, RegionLayout, Rings};
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use vmm_sys_util::ioctl::ioctl_with_ref;

mod request {
    //! The request that kvm-ioctls does not wrap on x86.
    #![allow(missing_docs, reason = "the macro takes no documentation")]
    use super::{KVMIO, kvm_device_attr};
    vmm_sys_util::ioctl_iow_nr!(KVM_GET_DEVICE_ATTR, KVMIO, 0xe2, kvm_device_attr);
}

/// Where the region lies for the guest. A monitor takes a place above the guest's RAM and above 4 GiB, and reserves it in the
/// e820 map; this guest's 16-bit code reaches no further than a mebibyte.
const REGION_ADDRESS: u64 = 0x2_0000;
/// The discovery leaves: what `strata run` uses, where a guest also has KVM's leaves at `0x4000_0000`.
const DISCOVERY: u32 = 0x4000_0100;
/// The port that the guest speaks on.
const PORT: u16 = 0x10;
/// Where the guest's code lies, and its RAM ends.
const CODE: u64 = 0x1000;
const RAM_SIZE: usize = 0x1_0000;
/// In real mode: finds the region by CPUID, and writes its first eight bytes to [`PORT`].
const GUEST: [u8; 25] = [
    0x66, 0xb8, 0x01, 0x01, 0x00, 0x40, // mov eax, DISCOVERY + 1
    0x0f, 0xa2, // cpuid
    0x66, 0xc1, 0xeb, 0x04, // shr ebx, 4
    0x8e, 0xdb, // mov ds, bx
    0x31, 0xf6, // xor si, si
    0xb9, 0x08, 0x00, // mov cx, 8
    0xac, // next: lodsb
    0xe6, 0x10, // out PORT, al
    0xe2, 0xfb, // loop next
    0xf4, // hlt
];
const SESSION: usize = 0;
const VCPU: u32 = 0;
/// Names the clock in packets: one UUID for each start of a monitor.
const CLOCK: [u8; 16] = [7; 16];

#[allow(dead_code, reason = "unused where this is a module of a test")]
fn main() -> anyhow::Result<()> {
    let said = run()?;
    println!("the guest found a region that begins with {said:02x?}");
    ensure!(said == MAGIC.to_le_bytes(), "that is not the region");
    Ok(())
}

/// Runs the guest; returns what it wrote to its port.
///
/// # Errors
/// There is no KVM that can be used, or it does something else with the guest.
pub fn run() -> anyhow::Result<Vec<u8>> {
    // 1. The memory: a file, so that what the guest recorded outlives this process (a file in memory, here nameless).
    let rings = Rings { geometry: Geometry::new(4096, 4)?, mode: Mode::Discard };
    let layout = RegionLayout::new(RegionConfig {
        vcpus: 1,
        sessions: [Some(rings), None, None, None],
        process_rings: rings,
        process_slots: 0,
        registry_size: 4096,
        process_registry_size: 4096,
    })?;
    let file = File::from(rustix::fs::memfd_create("trace-region", rustix::fs::MemfdFlags::CLOEXEC)?);
    file.set_len(layout.size as u64)?;
    let mapping = Arc::new(MmapRaw::map_raw(&file)?);
    // SAFETY: the mapping is page-aligned, that long, kept by the memory, and from here on accessed through atomics only.
    let memory = unsafe { HostMemory::new(mapping.as_mut_ptr(), layout.size, Arc::clone(&mapping) as _) };

    // 2. The machine, with the region in two slots: what only the host writes is read-only for the guest.
    let kvm = Kvm::new()?;
    let machine = kvm.create_vm()?;
    let ram = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), RAM_SIZE)])?;
    ram.write_slice(&GUEST, GuestAddress(CODE))?;
    let ram_address = ram.get_host_address(GuestAddress(0))? as u64;
    let shared = |offset| (REGION_ADDRESS + offset as u64, mapping.as_mut_ptr() as u64 + offset as u64);
    let boundary = layout.guest_writable;
    add_slot(&machine, 0, (0, ram_address), RAM_SIZE, 0)?;
    add_slot(&machine, 1, shared(0), boundary, KVM_MEM_READONLY)?;
    add_slot(&machine, 2, shared(boundary), layout.size - boundary, 0)?;
    let mut vcpu = machine.create_vcpu(u64::from(VCPU))?;
    announce(&kvm, &vcpu, layout.size)?;

    // 3. The clock: how each vCPU's counter relates to the trace clock, here the host's TSC. Published before the vCPU runs,
    //    and again whenever KVM's offset changes.
    let frequency = calibration::measure_frequency(tsc::read_ordered, Duration::from_millis(20)).context("no TSC")?;
    let relation = Relation::from_tsc_offset(tsc_offset(&vcpu)?, tsc::read_ordered());
    // SAFETY: the entry lies inside the memory, which outlives the writer; nobody else writes it.
    let mut clock = unsafe { Writer::new(memory.base().add(layout.clock_entry(VCPU))) };

    // 4. The session: rings, and which events the guest may record. Ids and classes come from the registry that the guest
    //    fills in, or from the file of its module (`.strata_events`).
    let mut region = Region::create(memory.clone(), layout, CLOCK, frequency)?;
    clock.publish(&relation);
    region.open_session(SESSION, "main", rings, |_, _| ())?;
    region.enable(SESSION, &EnabledEvents { class_mask: u64::MAX, events: [u64::MAX; MAX_EVENTS / 64] })?;
    region.set_alive(true);

    // 5. The guest runs. A monitor drains in a thread beside it: this one records nothing.
    let said = run_vcpu(&mut vcpu)?;
    let (records, lost) = drain(&memory, &layout, rings)?;
    println!("{records} records of the guest, {lost} lost");
    Ok(said)
}

/// Gives `machine` the memory at `host` as its own at `guest`, both the first of `addresses` and the second.
fn add_slot(machine: &VmFd, slot: u32, addresses: (u64, u64), size: usize, flags: u32) -> anyhow::Result<()> {
    let (guest_phys_addr, userspace_addr) = addresses;
    let memory_size = size as u64;
    let slot = kvm_userspace_memory_region { slot, flags, guest_phys_addr, memory_size, userspace_addr };
    // SAFETY: the caller keeps the memory until no vCPU runs any more.
    Ok(unsafe { machine.set_user_memory_region(slot) }?)
}

/// Tells the guest by CPUID where the region is, and how large.
fn announce(kvm: &Kvm, vcpu: &VcpuFd, size: usize) -> anyhow::Result<()> {
    let pages = u32::try_from(size >> 12)?;
    let word = |at| u32::from_le_bytes(*b"STRATATRACE\0"[at..].first_chunk().unwrap_or(&[0; 4]));
    let leaf = |function, eax, ebx, ecx, edx| kvm_cpuid_entry2 { function, eax, ebx, ecx, edx, ..Default::default() };
    let [low, high] = [REGION_ADDRESS & 0xffff_ffff, REGION_ADDRESS >> 32].map(u32::try_from);
    let mut leaves = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
    leaves.push(leaf(DISCOVERY, DISCOVERY + 1, word(0), word(4), word(8)))?;
    leaves.push(leaf(DISCOVERY + 1, ABI_VERSION, low?, high?, pages))?;
    Ok(vcpu.set_cpuid2(&leaves)?)
}

/// Guest TSC minus host TSC, ticks.
fn tsc_offset(vcpu: &VcpuFd) -> anyhow::Result<i64> {
    let mut offset = 0_u64;
    let attr = u64::from(KVM_VCPU_TSC_OFFSET);
    let attribute = kvm_device_attr { flags: 0, group: KVM_VCPU_TSC_CTRL, attr, addr: (&raw mut offset) as u64 };
    // SAFETY: the file is a vCPU; KVM reads the structure and writes the eight bytes it points at, which outlive the call.
    let result = unsafe { ioctl_with_ref(vcpu, request::KVM_GET_DEVICE_ATTR(), &attribute) };
    ensure!(result == 0, "KVM does not tell the TSC's offset (Linux 5.16 and later do)");
    Ok(offset.cast_signed())
}

/// Runs the guest until it halts; returns what it wrote to [`PORT`].
fn run_vcpu(vcpu: &mut VcpuFd) -> anyhow::Result<Vec<u8>> {
    let mut system = vcpu.get_sregs()?;
    (system.cs.base, system.cs.selector) = (0, 0);
    vcpu.set_sregs(&system)?;
    let mut registers = vcpu.get_regs()?;
    (registers.rip, registers.rflags) = (CODE, 2);
    vcpu.set_regs(&registers)?;
    let mut said = Vec::new();
    loop {
        match vcpu.run()? {
            VcpuExit::IoOut(PORT, bytes) => said.extend_from_slice(bytes),
            VcpuExit::Hlt => return Ok(said),
            other => bail!("the guest did something else: {other:?}"),
        }
    }
}

/// Takes what the stopped guest has recorded; returns how many records there are, and how many were lost.
fn drain(memory: &HostMemory, layout: &RegionLayout, rings: Rings) -> anyhow::Result<(usize, u64)> {
    let ring = memory.part(layout.kernel_ring(SESSION, VCPU), rings.ring_size());
    let mut consumer = Consumer::new(ring, rings.geometry, rings.mode, VCPU);
    let known = Parts::of(memory.clone(), layout)?.kernel_registry().poll();
    let (mut buffer, mut records) = (Vec::new(), 0);
    while let Some(delivered) = consumer.poll_stopped(&mut buffer).ready() {
        let find = |id| known.iter().find(|event| event.id == id);
        // A packet is in the form of CTF 1.8: its bytes can be appended to a stream file as they are.
        records += delivered.accept(CLOCK, tsc::read_ordered(), find).map_or(0, |packet| packet.records().count());
    }
    consumer.finish();
    Ok((records, consumer.lost().total()))
}
