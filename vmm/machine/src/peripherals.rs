//! The machine's devices as the guest reaches them: serial port, power ports, virtio-mmio windows.

use super::virtio::VirtioDevice;
use super::virtio::balloon::{Balloon, BalloonCounts, BalloonRemote};
use super::virtio::block::{Block, DiskLimits};
use super::virtio::entropy::Entropy;
use super::virtio::link::Link;
use super::virtio::mmio::MmioTransport;
use super::virtio::net::{Net, NetLimits};
use super::virtio::vsock::Vsock;
use super::virtio::vsock::muxer::VsockHost;
use crate::devices::power::{GuestRequest, PowerPorts};
use crate::devices::serial;
use crate::devices::serial::{ConsoleOutput, SerialPort};
use crate::exit::Bus;
use crate::memory::layout::{VIRTIO_MMIO, VIRTIO_MMIO_SIZE};
use crate::virtio::mac_address::MacAddress;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Instant;
use strata_observer::Observer;
use vm_memory::GuestMemoryMmap;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// The devices of a machine.
pub struct Peripherals {
    /// COM1.
    pub(super) serial: Arc<SerialPort>,
    /// Power-off, reset, panic.
    pub(super) power: PowerPorts,
    /// Virtio devices, in the order of their register windows.
    pub(super) virtio: Vec<Arc<MmioTransport>>,
    /// The balloon, if there is one: the last of them.
    pub(super) balloon: Option<BalloonRemote>,
}

/// A disk of devices that stand alone.
#[derive(Debug)]
pub struct DetachedDisk {
    /// Its content.
    pub file: File,
    /// Its size, bytes.
    pub size: u64,
    /// Whether the guest may only read it.
    pub read_only: bool,
    /// What the guest may do with it in a time, from the beginning on.
    pub limits: DiskLimits,
}

/// A network device of devices that stand alone.
#[derive(Debug)]
pub struct DetachedNet {
    /// What carries its frames.
    pub link: Box<dyn Link>,
    pub mac: MacAddress,
    /// What the guest may do with it in a time, from the beginning on.
    pub limits: NetLimits,
}

/// The socket device of devices that stand alone.
pub struct DetachedVsock {
    /// The guest's address.
    pub cid: u32,
    /// What it is joined to.
    pub host: Box<dyn VsockHost>,
}

/// The register of COM1 behind a port.
fn serial_register(port: u16) -> Option<u8> {
    let offset = u8::try_from(port.checked_sub(serial::PORT)?).ok()?;
    (offset < serial::PORTS).then_some(offset)
}

impl Peripherals {
    /// The devices of a machine without KVM, disks first, then a source of random bytes, which begins at `now`, then a
    /// socket device, and a balloon last: their interrupts reach nobody, and whoever plays the guest calls
    /// [`notify`](Self::notify) where KVM would wake the event loop. For tests of what a guest may do to them.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn detached(
        memory: &GuestMemoryMmap,
        disks: Vec<DetachedDisk>,
        nets: Vec<DetachedNet>,
        vsock: Option<DetachedVsock>,
        console_output: ConsoleOutput,
        observer: &Arc<dyn Observer>,
        now: Instant,
    ) -> io::Result<Self> {
        let interrupt = || EventFd::new(EFD_NONBLOCK);
        let disks = (0u32..).zip(disks).map(|(index, disk)| -> Box<dyn VirtioDevice> {
            let block = Block::new(disk.file, disk.size, disk.read_only, index, Arc::clone(observer));
            Box::new(block.limited(disk.limits, Arc::default(), now))
        });
        let nets = (0u32..).zip(nets).map(|(index, net)| -> Box<dyn VirtioDevice> {
            let device = Net::new(net.link, net.mac, index, Arc::clone(observer));
            Box::new(device.limited(net.limits, &Arc::default(), now))
        });
        let entropy: Box<dyn VirtioDevice> = Box::new(Entropy::new(Arc::clone(observer), Arc::default(), now));
        let vsock = vsock.map(|vsock| Vsock::new(vsock.cid, vsock.host, Arc::clone(observer))).transpose()?;
        let vsock = vsock.map(|device| -> Box<dyn VirtioDevice> { Box::new(device) });
        let counts = Arc::<BalloonCounts>::default();
        let balloon: Box<dyn VirtioDevice> = Box::new(Balloon::new(memory, Arc::clone(&counts), Arc::clone(observer)));
        let virtio = disks
            .chain(nets)
            .chain([entropy])
            .chain(vsock)
            .chain([balloon])
            .map(|device| Ok(Arc::new(MmioTransport::new(device, memory.clone(), interrupt()?)?)));
        let virtio = virtio.collect::<io::Result<Vec<_>>>()?;
        Ok(Self {
            balloon: virtio.last().cloned().map(|device| BalloonRemote::new(device, counts)),
            virtio,
            serial: Arc::new(SerialPort::new(interrupt()?, console_output, Arc::clone(observer))?),
            power: PowerPorts::default(),
        })
    }

    /// The balloon, if there is one.
    #[must_use]
    pub fn balloon(&self) -> Option<&BalloonRemote> {
        self.balloon.as_ref()
    }

    /// Serves queue `queue` of virtio device `device` once, at `now`, as the event loop does when the guest notifies
    /// it. What does not exist is not served.
    pub fn notify(&self, device: usize, queue: usize, now: Instant) {
        if let Some(device) = self.virtio.get(device) {
            device.serve(queue, now);
        }
    }

    /// Serves all virtio devices once, as the event loop does with those that have waited for their limits.
    pub fn resume(&self, now: Instant) {
        self.virtio.iter().for_each(|device| device.resume(now));
    }

    /// Puts console input into the serial port, as much of it as there is room for.
    pub fn enqueue_input(&self, input: &[u8]) {
        let room = self.serial.room().min(input.len());
        self.serial.enqueue(&input[..room]);
    }

    /// The virtio device behind an address, and the offset in its registers.
    fn virtio_register(&self, address: u64) -> Option<(&MmioTransport, u64)> {
        let offset = address.checked_sub(VIRTIO_MMIO)?;
        let index = usize::try_from(offset / VIRTIO_MMIO_SIZE).ok()?;
        self.virtio.get(index).map(|device| (device.as_ref(), offset % VIRTIO_MMIO_SIZE))
    }
}

impl Bus for Peripherals {
    fn port_read(&self, port: u16, data: &mut [u8]) {
        for byte in data {
            *byte = match serial_register(port) {
                Some(register) => self.serial.read(register),
                // A bus without a device reads as ones.
                None => self.power.read(port).unwrap_or(0xff),
            };
        }
    }

    fn port_write(&self, port: u16, data: &[u8]) -> Option<GuestRequest> {
        let Some(register) = serial_register(port) else {
            return data.first().and_then(|value| self.power.write(port, *value));
        };
        // Every register is one byte wide, so several bytes are a string of writes.
        data.iter().for_each(|value| self.serial.write(register, *value));
        None
    }

    fn mmio_read(&self, address: u64, data: &mut [u8]) {
        match self.virtio_register(address) {
            Some((device, offset)) => device.read(offset, data),
            None => data.fill(0xff),
        }
    }

    fn mmio_write(&self, address: u64, data: &[u8]) {
        // Anything else, a read-only slot included, ignores writes.
        if let Some((device, offset)) = self.virtio_register(address) {
            device.write(offset, data);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_observer::NoObserver;
    use vm_memory::GuestAddress;

    fn peripherals() -> Peripherals {
        let observer: Arc<dyn Observer> = Arc::new(NoObserver);
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x1000)]).unwrap();
        let disk = DetachedDisk {
            file: tempfile::tempfile().unwrap(),
            size: 512,
            read_only: false,
            limits: DiskLimits::default(),
        };
        Peripherals::detached(&memory, vec![disk], Vec::new(), None, Box::new(io::sink()), &observer, Instant::now())
            .unwrap()
    }

    #[test]
    fn serial_ports_line_status_says_ready_to_send() {
        let mut data = [0];
        peripherals().port_read(0x3fd, &mut data);
        assert_eq!(data[0] & 0x60, 0x60);
    }

    #[test]
    fn reset_register_is_reached() {
        assert_eq!(peripherals().port_write(0x602, &[1]), Some(GuestRequest::Reset));
    }

    #[test]
    fn port_without_device_reads_as_ones() {
        let mut data = [0; 4];
        peripherals().port_read(0xcfc, &mut data);
        assert_eq!(data, [0xff; 4]);
    }

    #[test]
    fn first_window_is_the_first_virtio_device() {
        let mut data = [0; 4];
        peripherals().mmio_read(VIRTIO_MMIO, &mut data);
        assert_eq!(&data, b"virt");
    }

    #[test]
    fn window_without_device_reads_as_ones() {
        let mut data = [0; 4];
        peripherals().mmio_read(VIRTIO_MMIO + 3 * VIRTIO_MMIO_SIZE, &mut data);
        assert_eq!(data, [0xff; 4]);
    }

    #[test]
    fn device_and_queue_that_do_not_exist_are_not_served() {
        peripherals().notify(0, 1, Instant::now());
        peripherals().notify(3, 0, Instant::now());
    }

    #[test]
    fn input_beyond_the_ports_room_is_left() {
        let peripherals = peripherals();
        peripherals.enqueue_input(&[b'a'; 1000]);
        assert_eq!(peripherals.serial.room(), 0);
    }

    #[test]
    fn write_to_nothing_is_ignored() {
        let peripherals = peripherals();
        peripherals.mmio_write(0x1_0000_0000, &[1]);
        assert_eq!(peripherals.port_write(0x80, &[1]), None);
    }
}
