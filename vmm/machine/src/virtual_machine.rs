//! A virtual machine: built, then run until its guest ends.

pub mod control;
#[cfg(test)]
mod tests;

use super::config::{ConfigError, MachineConfig};
use super::error::MachineError;
use super::hypervisor::refused;
use super::interrupt;
use super::outcome::{Outcome, RunError};
use super::peripherals::Peripherals;
use super::vcpu::{self, VcpuContext, VcpuHandle};
use super::virtio::balloon::{Balloon, BalloonCounts, BalloonRemote};
use super::virtio::block::Block;
use super::virtio::entropy::Entropy;
use super::virtio::mmio::MmioTransport;
use super::virtio::net::Net;
use super::virtio::vhost_net::VhostNet;
use super::virtio::vsock::Vsock;
use super::virtio::{Notify, VirtioDevice};
use super::{event_loop, hypervisor, memory};
use crate::boot::{acpi, boot_state, loader};
use crate::config::boot_file::BootFile;
use crate::config::network::NetBackend;
use crate::devices::power::PowerPorts;
use crate::devices::serial::{ConsoleOutput, SerialPort};
use crate::event_loop::disk_thread::DiskThread;
use crate::interrupt::doorbell::Doorbell;
use crate::memory::layout;
use crate::outcome::run_end::RunEnd;
use crate::virtio::mac_address::MacAddress;
use clock_sync::calibration::CrossTimestamp;
use control::{MachineControl, RunningGuest};
use kvm_ioctls::{IoEventAddress, VcpuFd, VmFd};
use std::fs::File;
use std::sync::{Arc, mpsc};
use std::time::Instant;
use strata_clock::guest_tsc::KvmClock;
use strata_clock::{VcpuClocks, guest_tsc};
use strata_jail::policy::Thread;
use strata_observer::{ControlEvent, Observer};
use strata_rate_limit::ThrottleCounts;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// Offset of the register by which a virtio driver notifies its device.
const QUEUE_NOTIFY: u64 = virtio_bindings::virtio_mmio::VIRTIO_MMIO_QUEUE_NOTIFY as u64;

/// What a run needs beside the machine.
pub struct RunOptions {
    /// Receives the machine's events.
    pub observer: Arc<dyn Observer>,
    /// Where the guest's console goes.
    pub console_output: ConsoleOutput,
    /// Where its input comes from: a terminal or pipe; a file that cannot be polled gives none.
    pub console_input: Option<File>,
    /// Keeps the vCPUs' clock entries, if the guest has any.
    pub clock: Option<Arc<VcpuClocks>>,
    /// Gets what the user should know while the guest runs.
    pub notify: Notify,
    /// Looks at the guest's memory when it has ended.
    pub at_end: Option<AtEnd>,
}

/// Gets the memory of a guest whose vCPUs have ended, and what kvm-clock shows if KVM can relate it to the host's TSC.
/// It is called on the thread that runs the machine.
pub type AtEnd = Box<dyn FnOnce(&GuestMemoryMmap, Option<KvmClock>)>;

/// Stops a run, from any thread; usable in a signal handler, since it only writes to a file descriptor.
#[derive(Debug)]
pub struct StopHandle(Arc<EventFd>);

impl StopHandle {
    /// Asks the machine to stop; its run ends with [`Outcome::Stopped`] if nothing else ended it before.
    pub fn stop(&self) {
        // Fails only when the counter is full, that is when stopping was requested already.
        let _ = self.0.write(1);
    }
}

impl Clone for StopHandle {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// A virtual machine, ready to run.
pub struct Machine {
    // Declared in the order in which they are to be dropped: vCPUs, then the VM, then the memory it uses.
    vcpus: Vec<VcpuFd>,
    vm: Arc<VmFd>,
    memory: GuestMemoryMmap,
    config: MachineConfig,
    disks: Vec<(File, u64)>,
    nets: Vec<NetBackend>,
    throttled: Vec<Arc<ThrottleCounts>>,
    nets_throttled: Vec<Arc<ThrottleCounts>>,
    tsc_offsets: Option<Vec<i64>>,
    tsc_khz: Option<u32>,
    stop: Arc<EventFd>,
    control: MachineControl,
}

impl Machine {
    /// Builds a machine: checks `config`, opens its files, creates memory and vCPUs, loads the kernel.
    ///
    /// # Errors
    /// The configuration cannot be run, or KVM refuses; nothing is left behind.
    pub fn new(config: MachineConfig) -> Result<Self, MachineError> {
        let kvm = hypervisor::open()?;
        let supported = hypervisor::supported_cpuid(&kvm)?;
        config.check(&hypervisor::limits(&kvm, &supported))?;
        let inputs = config.open()?;
        let memory = memory::create(config.memory, config.memory_backing)?;
        let nets = config.nets.iter().map(|net| net.open(&memory)).collect::<Result<_, _>>();
        let nets = nets.map_err(ConfigError::from)?;
        let vm = hypervisor::create_vm(&kvm)?;
        memory::register(&vm, &memory, &config.shared_slots, config.trace_region())?;
        let entry = load(&config, inputs.kernel, inputs.kernel_format, inputs.initrd, &memory)?;
        // What is in the guest's memory now is not kept a second time.
        let config = MachineConfig {
            kernel: config.kernel.named(),
            initrd: config.initrd.as_ref().map(BootFile::named),
            initrd_overlay: Vec::new(),
            ..config
        };
        let vcpus = hypervisor::create_vcpus(&kvm, &vm, &supported, &config)?;
        boot_state::set_boot_registers(&vcpus[0], entry)?;
        let tsc_offsets = hypervisor::set_tsc_offsets(&vcpus, config.tsc_offset)?;
        let stop = EventFd::new(EFD_NONBLOCK).map_err(MachineError::Device)?;
        Ok(Self {
            tsc_khz: vcpus[0].get_tsc_khz().ok(),
            vcpus,
            vm: Arc::new(vm),
            memory,
            throttled: config.disks.iter().map(|_| Arc::default()).collect(),
            nets_throttled: config.nets.iter().map(|_| Arc::default()).collect(),
            config,
            disks: inputs.disks,
            nets,
            tsc_offsets,
            stop: Arc::new(stop),
            control: MachineControl::default(),
        })
    }

    /// Guest TSC minus host TSC of each vCPU, ticks; `None` if this host's KVM cannot say (before Linux 5.16).
    #[must_use]
    pub fn tsc_offsets(&self) -> Option<&[i64]> {
        self.tsc_offsets.as_deref()
    }

    /// Frequency of the guest's TSC, kHz, as KVM has it.
    #[must_use]
    pub fn tsc_khz(&self) -> Option<u32> {
        self.tsc_khz
    }

    /// Reads the host's TSC, of `frequency` Hz, and the wall clock together.
    #[must_use]
    pub fn cross_timestamp(&self, frequency: u64) -> CrossTimestamp {
        guest_tsc::cross_timestamp(&self.vm, frequency)
    }

    /// How often each disk had to wait for its limits.
    #[must_use]
    pub fn throttled(&self) -> &[Arc<ThrottleCounts>] {
        &self.throttled
    }

    /// How often each network device had to wait for its limits.
    #[must_use]
    pub fn nets_throttled(&self) -> &[Arc<ThrottleCounts>] {
        &self.nets_throttled
    }

    /// Where the shared slots lie in the guest, if there are any.
    #[must_use]
    pub fn trace_region(&self) -> Option<layout::Range> {
        self.config.trace_region()
    }

    /// The machine's doorbell; there is one.
    ///
    /// # Errors
    /// KVM refuses, for instance because this was requested before.
    pub fn doorbell(&self) -> Result<Doorbell, MachineError> {
        Doorbell::new(&self.vm)
    }

    /// A handle by which the run can be stopped.
    #[must_use]
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle(Arc::clone(&self.stop))
    }

    /// Controls the machine while it runs.
    #[must_use]
    pub fn control(&self) -> MachineControl {
        self.control.clone()
    }

    /// Runs the guest until it ends; drives the devices on this thread, but for disks, which have threads of their
    /// own. The threads of vCPUs and disks have ended on return.
    ///
    /// # Errors
    /// The run could not be started. What happens later is the [`Outcome`].
    pub fn run(self, options: RunOptions) -> Result<Outcome, MachineError> {
        let Self { vcpus, vm, memory, config, disks, nets, throttled, nets_throttled, stop, control, .. } = self;
        let observer = options.observer;
        let disks = disks.into_iter().zip(throttled).collect();
        let nets = nets.into_iter().zip(nets_throttled).collect();
        let counts = config.balloon.then(Arc::<BalloonCounts>::default);
        let mut devices = devices(&config, disks, nets, &observer, &options.notify)?;
        devices.extend(counts.iter().map(|counts| -> Box<dyn VirtioDevice> {
            Box::new(Balloon::new(&memory, Arc::clone(counts), Arc::clone(&observer)))
        }));
        let virtio = connect(&vm, &memory, devices)?;
        let balloon = virtio.last().cloned().zip(counts).map(|(device, counts)| BalloonRemote::new(device, counts));
        let interrupt = interrupt::line(&vm, layout::SERIAL_GSI)?;
        let port =
            SerialPort::new(interrupt, options.console_output, Arc::clone(&observer)).map_err(MachineError::Device)?;
        let peripherals =
            Arc::new(Peripherals { serial: Arc::new(port), power: PowerPorts::default(), virtio, balloon });
        let (outcomes, received) = mpsc::channel();
        let wake = Arc::new(EventFd::new(EFD_NONBLOCK).map_err(MachineError::Device)?);
        let end = RunEnd { outcomes, wake: Arc::clone(&wake) };
        let (disks, others) = peripherals.virtio.split_at(config.disks.len());
        let mut manager = event_loop::create(others, &peripherals.serial, options.console_input)?;
        let stopped = event_loop::add_wake(&mut manager, &stop);
        event_loop::add_wake(&mut manager, &wake);
        let context = VcpuContext {
            peripherals: Arc::clone(&peripherals),
            observer: Arc::clone(&observer),
            clock: options.clock,
            end: end.clone(),
        };
        let disk_threads = disks.iter().enumerate().map(|(index, disk)| DiskThread::spawn(index, disk, end.clone()));
        let disk_threads = disk_threads.collect::<Result<Vec<_>, _>>()?;
        let handles = spawn_all(vcpus, &context)?;
        strata_jail::enter(if config.vsock.is_some() { Thread::SocketEventLoop } else { Thread::EventLoop });
        observer.control(ControlEvent::Started);
        handles.iter().for_each(VcpuHandle::run);
        let running = RunningGuest::new(Arc::clone(&vm), memory.clone());
        control.attach(&handles, &observer, (running, config.memory), peripherals.balloon.clone());
        let outcome = event_loop::drive(&mut manager, &received, &stopped, &peripherals.power);
        if matches!(outcome, Outcome::Stopped) {
            observer.control(ControlEvent::StopRequested);
        }
        control.detach();
        peripherals.serial.hang_up();
        let joined = stop_all(handles, disk_threads);
        let outcome = match joined {
            Ok(()) if peripherals.power.panicked() => outcome.after_panic(),
            Ok(()) => outcome,
            Err(error) => Outcome::Failed(error),
        };
        observer.control(outcome.control_event());
        if let Some(at_end) = options.at_end {
            at_end(&memory, guest_tsc::kvm_clock(&vm));
        }
        // The vCPU threads have dropped their descriptors; guest memory may go only now.
        drop((vm, memory, config));
        Ok(outcome)
    }
}

/// Puts everything into guest memory that the kernel finds at its start; returns its entry point, a guest-physical
/// address.
///
/// # Errors
/// The kernel or initrd is damaged, or needs more memory than there is; there are more vCPUs or devices than the ACPI
/// tables can describe.
pub fn load(
    config: &MachineConfig,
    mut kernel: File,
    format: loader::KernelFormat,
    initrd: Option<(File, u64)>,
    memory: &GuestMemoryMmap,
) -> Result<u64, MachineError> {
    let size = config.memory;
    let kernel = loader::load_kernel(memory, size, &mut kernel, format)?;
    let initrd = loader::load_initrd(memory, size, &kernel, initrd, &config.initrd_overlay)?;
    let map = layout::e820(size, config.trace_region());
    loader::write_boot_params(memory, &kernel, &config.cmdline, initrd, &map)?;
    let devices: Vec<_> = (0..config.virtio_devices()).map(mmio_device).collect();
    let cpus = u8::try_from(config.cpus).map_err(|_| MachineError::AcpiTables)?;
    let tables = acpi::tables(cpus, &devices).ok_or(MachineError::AcpiTables)?;
    memory.write_slice(&tables, GuestAddress(layout::ACPI_START)).map_err(loader::LoadError::BootData)?;
    boot_state::write_reset_vector(memory)?;
    boot_state::write_tables(memory)?;
    Ok(kernel.entry)
}

/// The registers and the interrupt of virtio device `index`.
#[allow(clippy::cast_possible_truncation, reason = "there are at most 19 devices")]
fn mmio_device(index: usize) -> acpi::MmioDevice {
    acpi::MmioDevice {
        address: layout::VIRTIO_MMIO + index as u64 * layout::VIRTIO_MMIO_SIZE,
        gsi: layout::VIRTIO_GSI + index as u32,
    }
}

/// The virtio devices of the machine but for a balloon, which is the last: disks, then network devices, then the source
/// of random bytes, then the socket device.
///
/// # Errors
/// No file descriptor is left.
fn devices(
    config: &MachineConfig,
    disks: Vec<((File, u64), Arc<ThrottleCounts>)>,
    nets: Vec<(NetBackend, Arc<ThrottleCounts>)>,
    observer: &Arc<dyn Observer>,
    notify: &Notify,
) -> Result<Vec<Box<dyn VirtioDevice>>, MachineError> {
    let now = Instant::now();
    let mut devices: Vec<Box<dyn VirtioDevice>> = Vec::new();
    for (index, (((file, size), throttled), disk)) in (0u32..).zip(disks.into_iter().zip(&config.disks)) {
        let block = Block::new(file, size, disk.read_only, index, Arc::clone(observer)).delayed(disk.delay);
        devices.push(Box::new(block.limited(disk.limits, throttled, now)));
    }
    for (index, ((backend, throttled), net)) in (0u32..).zip(nets.into_iter().zip(&config.nets)) {
        let mac = net.mac.unwrap_or_else(MacAddress::by_chance);
        let observer = Arc::clone(observer);
        devices.push(match backend {
            NetBackend::Link(link) => {
                let net = Net::new(link, mac, index, observer).limited(net.limits, &throttled, now);
                Box::new(net.telling(Arc::clone(notify)))
            }
            NetBackend::HostKernel(mover) => Box::new(VhostNet::new(Box::new(mover), mac, index, observer)),
        });
    }
    if config.entropy {
        // How often it waits is nobody's concern: its limit is always the same.
        devices.push(Box::new(Entropy::new(Arc::clone(observer), Arc::default(), now)));
    }
    if let Some(socket) = &config.vsock {
        let device = Vsock::new(socket.cid(), Box::new(Arc::clone(socket)), Arc::clone(observer));
        devices.push(Box::new(device.map_err(MachineError::Device)?));
    }
    Ok(devices)
}

/// Gives each of `devices` its registers, its interrupt and the notifications of its queues.
fn connect(
    vm: &VmFd,
    memory: &GuestMemoryMmap,
    devices: Vec<Box<dyn VirtioDevice>>,
) -> Result<Vec<Arc<MmioTransport>>, MachineError> {
    let connect = |(index, device): (usize, Box<dyn VirtioDevice>)| {
        let place = mmio_device(index);
        let interrupt = interrupt::line(vm, place.gsi)?;
        let device = MmioTransport::new(device, memory.clone(), interrupt).map_err(MachineError::Device)?;
        let address = IoEventAddress::Mmio(place.address + QUEUE_NOTIFY);
        for (queue, event) in (0u32..).zip(device.notify_events()) {
            vm.register_ioevent(event, &address, queue).map_err(refused("connect a notification"))?;
        }
        Ok(Arc::new(device))
    };
    devices.into_iter().enumerate().map(connect).collect()
}

/// Creates all vCPU threads; they wait for the command to run.
fn spawn_all(vcpus: Vec<VcpuFd>, context: &VcpuContext) -> Result<Vec<VcpuHandle>, MachineError> {
    let mut handles = Vec::new();
    for (index, fd) in (0u32..).zip(vcpus) {
        match vcpu::spawn(index, fd, context.clone()) {
            Ok(handle) => handles.push(handle),
            Err(error) => {
                // The threads that exist have not run the guest: nothing to report of them.
                let _ = stop_all(handles, Vec::new());
                return Err(MachineError::Thread(error));
            }
        }
    }
    Ok(handles)
}

/// Stops all vCPUs and disks, then waits for their threads.
fn stop_all(vcpus: Vec<VcpuHandle>, disks: Vec<DiskThread>) -> Result<(), RunError> {
    vcpus.iter().for_each(VcpuHandle::stop);
    // Before the first wait: a vCPU may be waiting for a disk, which would go on to its next requests.
    disks.iter().for_each(DiskThread::stop);
    let joined = vcpus.into_iter().map(VcpuHandle::join).fold(Ok(()), Result::and);
    drop(disks);
    joined
}
