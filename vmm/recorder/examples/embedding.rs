//! A monitor of a few lines, on rust-vmm's crates, that records its VM with `strata-recorder`: its own events and those
//! of its guest. docs/embedding.md goes through it. Run it: `cargo run -p strata-recorder --example embedding -- TRACE`
//! Its guest has no agent. It finds the region as the agent does, by CPUID, and reads the first bytes of it aloud.
#![allow(unsafe_code)] // memory is given to KVM by address, and KVM's requests are made by number

use anyhow::{Context, bail, ensure};
use clock_sync::calibration::read_together;
use kvm_bindings::{
    KVM_MAX_CPUID_ENTRIES, KVM_MEM_READONLY, KVM_VCPU_TSC_CTRL, KVM_VCPU_TSC_OFFSET, kvm_cpuid_entry2, kvm_device_attr,
    kvm_userspace_memory_region,
};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd};
use shared_ring::layout::{ABI_VERSION, Geometry, MAGIC};
use shared_ring::region::{RegionConfig, Rings};
use std::path::Path;
use std::sync::Arc;
use strata_clock::{HostClock, VcpuClocks};
use strata_observer::Observer;
use strata_recorder::control::directory::{VmDescription, VmDirectory, runtime_folder};
use strata_recorder::control::protocol::Answer;
use strata_recorder::control::server::ControlServer;
use strata_recorder::live::vcpu_activity::VcpuThreads;
use strata_recorder::recorder::Recorder;
use strata_recorder::region::{TraceRegion, mapped_file};
use strata_recorder::session::recording::{GuestSide, enabled_guest_events, epoch_sink};
use strata_recorder::session::{RecordedVm, RecordingBuilder, RecordingRequest};
use strata_recorder::vmm_events::VmmTracer;
use strata_recording::clock::VcpuRelation;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Manifest, Vm};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

/// The request that kvm-ioctls does not wrap on x86.
const KVM_GET_DEVICE_ATTR: u64 = 0x4018_aee2;
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
    0x66, 0xb8, 0x01, 0x01, 0x00, 0x40, 0x0f, 0xa2, // mov eax, DISCOVERY + 1; cpuid
    0x66, 0xc1, 0xeb, 0x04, 0x8e, 0xdb, 0x31, 0xf6, 0xb9, 0x08,
    0x00, // shr ebx, 4; mov ds, bx; xor si, si; mov cx, 8
    0xac, 0xe6, 0x10, 0xe2, 0xfb, 0xf4, // next: lodsb; out PORT, al; loop next; hlt
];
const NAME: &str = "embedded";
const VCPUS: u32 = 1;
const VCPU: u32 = 0;

#[allow(dead_code, reason = "unused where this is a module of a test")]
fn main() -> anyhow::Result<()> {
    let trace = std::env::args_os().nth(1).context("name a new folder for the trace")?;
    let (printed, _) = run(trace.as_ref(), &runtime_folder()?, |_, _| Ok(()))?;
    ensure!(printed == MAGIC.to_le_bytes(), "the guest found {printed:02x?}, which is not how the region begins");
    Ok(())
}

/// Runs the guest and records it into the new folder `trace`; `strata ctl` finds it in the folder `runtime`. Before the
/// recording ends, `meanwhile` gets the region and the control socket. Returns what the guest wrote to its port, and
/// what the recording says of itself.
///
/// # Errors
/// There is no KVM that can be used, it does something else with the guest, or the recording cannot be written.
pub fn run(
    trace: &Path,
    runtime: &Path,
    meanwhile: impl FnOnce(&TraceRegion, &Path) -> anyhow::Result<()>,
) -> anyhow::Result<(Vec<u8>, Manifest)> {
    // 1. The recording that is wanted, checked before anything is made.
    let mut request = RecordingRequest::new(trace);
    request.layers.events = "vmm:*,guest-kernel:*,guest-user:*".into();
    let mut recording = RecordingBuilder::new(&request, &LayerKind::ALL)?;
    recording.notify = |line| eprintln!("{line}");
    let rings = Rings { geometry: Geometry::new(4096, 4)?, mode: request.layers.mode };

    // 2. A folder that other processes find the VM by, with the region in it: what the guest recorded outlives this process.
    let description = VmDescription {
        trace: Some(request.files.absolute_trace().into()),
        vmm_rings: Some(rings.into()),
        ..VmDescription::of_this_process(NAME, VCPUS)
    };
    let directory = VmDirectory::create(runtime, &description)?;
    let (clock, uuid) = (HostClock::observe(None), uuid::Uuid::new_v4());
    let config = RegionConfig {
        vcpus: VCPUS,
        sessions: [Some(rings), None, None, None],
        process_rings: rings,
        process_slots: 0,
        registry_size: 4096,
        process_registry_size: 4096,
    };
    let region = Arc::new(TraceRegion::create(directory.create_region()?, config, uuid, clock.trace_frequency())?);

    // 3. The machine, with the region in two slots: what only the host writes is read-only for the guest.
    let kvm = Kvm::new()?;
    let machine = kvm.create_vm()?;
    let ram = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), RAM_SIZE)])?;
    ram.write_slice(&GUEST, GuestAddress(CODE))?;
    let add_slot = |slot, guest_phys_addr, userspace_addr, memory_size, flags| {
        let slot = kvm_userspace_memory_region { slot, flags, guest_phys_addr, memory_size, userspace_addr };
        // SAFETY: RAM and region outlive the machine's vCPU, which ends with this function.
        unsafe { machine.set_user_memory_region(slot) }
    };
    add_slot(0, 0, ram.get_host_address(GuestAddress(0))? as u64, RAM_SIZE as u64, 0)?;
    for (number, part) in (1..).zip(region.slots()) {
        let (offset, flags) = (part.offset as u64, if part.read_only { KVM_MEM_READONLY } else { 0 });
        add_slot(number, REGION_ADDRESS + offset, part.mapping.as_mut_ptr() as u64 + offset, part.size as u64, flags)?;
    }
    let mut vcpu = machine.create_vcpu(u64::from(VCPU))?;
    announce(&kvm, &vcpu, region.layout().size)?;

    // 4. The VMM's own events, in rings of the same folder. The last argument gets the vCPUs' threads.
    let memory = mapped_file::map(&directory.create_vmm_rings()?, VmmTracer::memory_size(VCPUS, rings))?;
    let chosen = |event: &str| recording.selection().includes(LayerKind::Vmm, event);
    let vmm = Arc::new(VmmTracer::new(VCPUS, rings, memory, clock.time, chosen, Box::new(|_, _| ())));

    // 5. How each vCPU's counter relates to the trace clock: before it runs, and again whenever KVM's offset changes.
    let (tsc_offset, sink) = (tsc_offset(&vcpu)?, epoch_sink(Arc::clone(&region), Some(Arc::clone(&vmm))));
    let clocks = Arc::new(VcpuClocks::new(NAME, VCPUS, clock.parameters(), sink));
    clocks.observe_offset(VCPU, tsc_offset);
    let relation = VcpuRelation { vm: NAME.into(), vcpu: VCPU, tsc_offset, how: "read from KVM".into() };

    // 6. The guest may record from here on, and the recorder drains region and VMM in a thread of its own.
    region.set_enabled(0, &enabled_guest_events(&[], recording.selection()));
    region.set_host_alive(true);
    let (mut folder, _snapshots) = request.files.create()?;
    let vm = RecordedVm {
        vm: Vm { name: NAME.into(), vcpus: VCPUS, region: Some(directory.region()), ..Vm::default() },
        host: strata_recorder::host_description::describe_host("hardware"),
        clock: clock.statement(uuid, read_together(|| clock.time.now(), clock.trace_frequency()), vec![relation]),
        clocks,
        vcpu_threads: VcpuThreads::default(),
    };
    recording.guest = Some(GuestSide { vmm: Some(Arc::clone(&vmm)), ..GuestSide::new(Arc::clone(&region), rings) });
    let recorder = Recorder::start(recording, vm)?;
    let (control, begun) = (recorder.control(), std::time::Instant::now());
    let answer = move |request| match control.request(request) {
        Answer::Status(of) => Answer::Status(Box::new(description.status(begun.elapsed(), of.trace))),
        answer => answer,
    };
    let server = ControlServer::start(&directory.socket(), answer)?;

    // 7. The guest runs. Then its vCPUs have ended, nobody asks any more, and the recorder reads what is left.
    let printed = run_vcpu(&mut vcpu, &vmm)?;
    meanwhile(&region, &directory.socket())?;
    region.set_host_alive(false);
    drop(server);
    folder.keep();
    Ok((printed, recorder.finish("the guest halted".into())?))
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
    let result = unsafe { vmm_sys_util::ioctl::ioctl_with_ref(vcpu, KVM_GET_DEVICE_ATTR, &attribute) };
    ensure!(result == 0, "KVM does not tell the TSC's offset (Linux 5.16 and later do)");
    Ok(offset.cast_signed())
}

/// Runs the guest until it halts, and tells `vmm` of each exit; returns what the guest wrote to [`PORT`].
fn run_vcpu(vcpu: &mut VcpuFd, vmm: &VmmTracer) -> anyhow::Result<Vec<u8>> {
    let mut system = vcpu.get_sregs()?;
    (system.cs.base, system.cs.selector) = (0, 0);
    vcpu.set_sregs(&system)?;
    let mut registers = vcpu.get_regs()?;
    (registers.rip, registers.rflags) = (CODE, 2);
    vcpu.set_regs(&registers)?;
    vmm.vcpu_thread_started(VCPU, rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned());
    let (mut printed, mut has_halted) = (Vec::new(), false);
    while !has_halted {
        vmm.vcpu_enter(VCPU);
        match vcpu.run()? {
            VcpuExit::IoOut(PORT, bytes) => printed.extend_from_slice(bytes),
            VcpuExit::Hlt => has_halted = true,
            other => bail!("the guest did something else: {other:?}"),
        }
        vmm.vcpu_exit(VCPU, vcpu.get_kvm_run().exit_reason);
    }
    Ok(printed)
}
