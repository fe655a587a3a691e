//! The virtio network device whose packets the host's kernel moves between the guest's queues and a tap: vhost-net.
//!
//! The kernel reads and writes the queues itself, in a thread of its own, is notified by KVM and interrupts through
//! KVM. What is left here is what the driver negotiates: features, where the queues are, and when it all begins and
//! ends.

use super::tap::Tap;
use super::{Activation, Served, VirtioDevice};
use crate::virtio::mac_address::MacAddress;
use std::fs::{File, OpenOptions};
use std::io;
use std::mem;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use strata_observer::Observer;
use vhost::net::VhostNet as _;
use vhost::vhost_kern::VhostKernBackend;
use vhost::vhost_kern::net::Net;
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ids::VIRTIO_ID_NET;
use virtio_bindings::virtio_net::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_MAC, VIRTIO_NET_F_MRG_RXBUF,
};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::{Error, Queue, QueueT};
use vm_memory::{Address, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap};

/// Where the kernel's part is had.
const VHOST_DEVICE: &str = "/dev/vhost-net";
const QUEUE_SIZE: u16 = 256;
/// Features that are of the tap and of this side: the kernel's part need not know of them.
const OF_TAP: u64 =
    1 << VIRTIO_NET_F_CSUM | 1 << VIRTIO_NET_F_HOST_TSO4 | 1 << VIRTIO_NET_F_HOST_TSO6 | 1 << VIRTIO_NET_F_MAC;
/// Features of queues and their buffers, which are the kernel's if it has them.
const OF_QUEUES: u64 = 1 << VIRTIO_RING_F_INDIRECT_DESC
    | 1 << VIRTIO_RING_F_EVENT_IDX
    | 1 << VIRTIO_NET_F_MRG_RXBUF
    | 1 << VIRTIO_F_VERSION_1;

/// Why the host's kernel does not move packets.
#[derive(Debug, thiserror::Error)]
pub enum VhostError {
    /// The kernel has no vhost-net.
    #[error("there is no {VHOST_DEVICE}: load the host's module with `modprobe vhost_net`, or leave out vhost=on")]
    NoDriver,
    /// This user may not open its device.
    #[error(
        "no permission to open {VHOST_DEVICE}: add this user to its group ('kvm' on most hosts), run as root, or leave \
         out vhost=on"
    )]
    Permission,
    /// Its device cannot be opened for another reason.
    #[error("cannot open {VHOST_DEVICE}")]
    Open(#[source] io::Error),
    /// It knows no virtio 1.
    #[error("the host kernel's vhost-net lacks virtio 1: leave out vhost=on")]
    TooOld,
    /// A request failed.
    #[error("the host kernel's vhost-net refused to {action}; without vhost=on, strata moves packets itself")]
    Refused {
        /// What was requested, an infinitive.
        action: &'static str,
        /// What the kernel says.
        #[source]
        source: vhost::Error,
    },
}

fn refused(action: &'static str) -> impl Fn(vhost::Error) -> VhostError {
    move |source| VhostError::Refused { action, source }
}

fn cannot_open(source: io::Error) -> VhostError {
    match (source.kind(), source.raw_os_error()) {
        // The device may be there before its module is, which is then looked for in vain.
        (io::ErrorKind::NotFound, _) | (_, Some(libc::ENODEV | libc::ENXIO)) => VhostError::NoDriver,
        (io::ErrorKind::PermissionDenied, _) => VhostError::Permission,
        _ => VhostError::Open(source),
    }
}

/// Tries whether the host's kernel can be had to move packets.
///
/// # Errors
/// It has no vhost-net, or not for this user.
pub fn check() -> Result<(), VhostError> {
    open(Path::new(VHOST_DEVICE)).map(drop)
}

fn open(path: &Path) -> Result<File, VhostError> {
    OpenOptions::new().read(true).write(true).open(path).map_err(cannot_open)
}

/// Who moves the packets of a device, asked by its driver's deeds.
pub trait Mover: Send {
    /// Features of its queues.
    fn features(&self) -> u64;
    /// Has it go by `features`, which are among its own, from the next begin on.
    ///
    /// # Errors
    /// The kernel refuses.
    fn set_features(&mut self, features: u64) -> Result<(), vhost::Error>;
    /// Tells it of queue `index`, which it does not move: where that lies, and whom it hears and tells.
    ///
    /// # Errors
    /// The kernel refuses.
    fn set_queue(&mut self, index: usize, queue: &Queue, driver: &Activation<'_>) -> Result<(), vhost::Error>;
    /// Has it begin to move the packets of queue `index`.
    ///
    /// # Errors
    /// The kernel refuses.
    fn begin(&mut self, index: usize) -> Result<(), vhost::Error>;
    /// Has it stop. On return it touches neither queue `index` nor what that names.
    ///
    /// # Errors
    /// The kernel refuses.
    fn end(&mut self, index: usize) -> Result<(), vhost::Error>;
}

/// The host's kernel, which moves packets between a tap and a guest's memory.
pub struct KernelMover {
    vhost: Net<Arc<GuestMemoryMmap>>,
    tap: File,
    features: u64,
}

impl KernelMover {
    /// Has the host's kernel start a thread that moves packets between `tap` and `memory`. It moves none yet.
    ///
    /// # Errors
    /// The kernel has no vhost-net, or not for this user, or refuses.
    pub fn new(tap: Tap, memory: &GuestMemoryMmap) -> Result<Self, VhostError> {
        let vhost = Net::new(Arc::new(memory.clone())).map_err(|error| match error {
            vhost::Error::VhostOpen(source) => cannot_open(source),
            other => refused("begin")(other),
        })?;
        vhost.set_owner().map_err(refused("start its thread"))?;
        let features = vhost.get_features().map_err(refused("tell its features"))?;
        if features & 1 << VIRTIO_F_VERSION_1 == 0 {
            return Err(VhostError::TooOld);
        }
        let regions: Vec<_> = vhost.mem().iter().map(region).collect();
        vhost.set_mem_table(&regions).map_err(refused("take the guest's memory"))?;
        Ok(Self { vhost, tap: tap.into_file(), features })
    }
}

/// A region of guest memory as vhost gets it. Only other processes would need to map it by a descriptor.
fn region(region: &GuestRegionMmap) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: region.start_addr().raw_value(),
        memory_size: region.len(),
        userspace_addr: region.as_ptr().expose_provenance() as u64,
        mmap_offset: 0,
        mmap_handle: -1,
    }
}

impl Mover for KernelMover {
    fn features(&self) -> u64 {
        self.features
    }

    fn set_features(&mut self, features: u64) -> Result<(), vhost::Error> {
        self.vhost.set_features(features)
    }

    fn set_queue(&mut self, index: usize, queue: &Queue, driver: &Activation<'_>) -> Result<(), vhost::Error> {
        let notify = driver.notify.get(index).ok_or(vhost::Error::InvalidQueue)?;
        let place = VringConfigData {
            queue_max_size: queue.max_size(),
            queue_size: queue.size(),
            flags: 0,
            desc_table_addr: queue.desc_table(),
            used_ring_addr: queue.used_ring(),
            avail_ring_addr: queue.avail_ring(),
            log_addr: None,
        };
        self.vhost.set_vring_num(index, queue.size())?;
        self.vhost.set_vring_base(index, queue.next_avail())?;
        self.vhost.set_vring_addr(index, &place)?;
        self.vhost.set_vring_call(index, driver.interrupt)?;
        self.vhost.set_vring_err(index, driver.broken)?;
        self.vhost.set_vring_kick(index, notify)
    }

    fn begin(&mut self, index: usize) -> Result<(), vhost::Error> {
        self.vhost.set_backend(index, Some(&self.tap))
    }

    fn end(&mut self, index: usize) -> Result<(), vhost::Error> {
        self.vhost.set_backend(index, None)
    }
}

/// A network device whose packets somebody else moves.
pub struct VhostNet {
    mover: Box<dyn Mover>,
    mac: MacAddress,
    index: u32,
    /// Which queues are being moved.
    moved: Vec<usize>,
    /// Whether the observer was told that packets are moved: a driver may have made no queue ready.
    is_told: bool,
    observer: Arc<dyn Observer>,
}

impl VhostNet {
    /// A device whose packets `mover` moves, with the address `mac`; `index` names it to the observer.
    #[must_use]
    pub fn new(mover: Box<dyn Mover>, mac: MacAddress, index: u32, observer: Arc<dyn Observer>) -> Self {
        Self { mover, mac, index, moved: Vec::new(), is_told: false, observer }
    }

    /// Has all queues moved that the driver has made ready.
    fn begin(&mut self, driver: &Activation<'_>) -> Result<(), vhost::Error> {
        self.mover.set_features(driver.features & OF_QUEUES & self.mover.features())?;
        let ready = || driver.queues.iter().enumerate().filter(|(_, queue)| queue.ready());
        ready().try_for_each(|(index, queue)| self.mover.set_queue(index, queue, driver))?;
        for (index, _) in ready() {
            self.mover.begin(index)?;
            self.moved.push(index);
        }
        Ok(())
    }

    /// Has no queue moved any more.
    fn end(&mut self) {
        for index in self.moved.drain(..) {
            // Refused only to another process, and for a queue that does not exist.
            let _ = self.mover.end(index);
        }
    }
}

impl VirtioDevice for VhostNet {
    fn device_type(&self) -> u32 {
        VIRTIO_ID_NET
    }

    fn features(&self) -> u64 {
        OF_TAP | OF_QUEUES & self.mover.features()
    }

    fn queue_sizes(&self) -> &[u16] {
        &[QUEUE_SIZE, QUEUE_SIZE]
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        self.mac.read_config(offset, data);
    }

    fn is_served_by_host_kernel(&self) -> bool {
        true
    }

    fn start(&mut self, driver: &Activation<'_>) -> io::Result<()> {
        self.stop();
        if let Err(error) = self.begin(driver) {
            self.end();
            return Err(io::Error::other(error));
        }
        self.is_told = true;
        self.observer.net_vhost(self.index, true);
        Ok(())
    }

    fn stop(&mut self) {
        self.end();
        if mem::take(&mut self.is_told) {
            self.observer.net_vhost(self.index, false);
        }
    }

    fn serve(&mut self, _: usize, _: &mut Queue, _: &GuestMemoryMmap, _: Instant) -> Result<Served, Error> {
        Ok(Served::default())
    }
}

/// Guest memory may be gone soon, and a helper process that was forked meanwhile may keep the kernel's descriptor open.
impl Drop for VhostNet {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::super::mmio::MmioTransport;
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU8, Ordering};
    use virtio_bindings::virtio_mmio::{
        VIRTIO_MMIO_DRIVER_FEATURES, VIRTIO_MMIO_DRIVER_FEATURES_SEL, VIRTIO_MMIO_INTERRUPT_STATUS,
        VIRTIO_MMIO_QUEUE_AVAIL_LOW, VIRTIO_MMIO_QUEUE_DESC_LOW, VIRTIO_MMIO_QUEUE_NUM, VIRTIO_MMIO_QUEUE_READY,
        VIRTIO_MMIO_QUEUE_SEL, VIRTIO_MMIO_QUEUE_USED_LOW, VIRTIO_MMIO_STATUS,
    };
    use vm_memory::GuestAddress;
    use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

    /// Features of the kernel of these tests: no indirect descriptors, and one that nobody asks for (`VHOST_F_LOG_ALL`).
    const OF_KERNEL: u64 =
        1 << VIRTIO_F_VERSION_1 | 1 << VIRTIO_RING_F_EVENT_IDX | 1 << VIRTIO_NET_F_MRG_RXBUF | 1 << 26;
    const CSUM: u64 = 1 << VIRTIO_NET_F_CSUM;
    const DRIVER_OK: u32 = 4;
    const READY: u32 = 3 | 8 | DRIVER_OK;
    const NEEDS_RESET: u32 = 64;

    /// What was requested of the kernel.
    #[derive(Clone, Debug, PartialEq, Eq)]
    enum Requested {
        Features(u64),
        /// Index, size, where the three parts lie, next available chain.
        Queue(usize, u16, [u64; 3], u16),
        Begin(usize),
        End(usize),
    }

    /// A kernel that notes requests, and has what it would signal.
    #[derive(Default)]
    struct Asks {
        requested: Mutex<Vec<Requested>>,
        signals: Mutex<Vec<EventFd>>,
        refused: AtomicU8,
        moves: Mutex<Vec<bool>>,
    }

    struct Kernel(Arc<Asks>);

    impl Asks {
        fn take(&self) -> Vec<Requested> {
            std::mem::take(&mut self.requested.lock().unwrap())
        }
    }

    impl Mover for Kernel {
        fn features(&self) -> u64 {
            OF_KERNEL
        }
        fn set_features(&mut self, features: u64) -> Result<(), vhost::Error> {
            self.0.requested.lock().unwrap().push(Requested::Features(features));
            Ok(())
        }
        fn set_queue(&mut self, index: usize, queue: &Queue, driver: &Activation<'_>) -> Result<(), vhost::Error> {
            let parts = [queue.desc_table(), queue.avail_ring(), queue.used_ring()];
            self.0.requested.lock().unwrap().push(Requested::Queue(index, queue.size(), parts, queue.next_avail()));
            let signals = [driver.broken, driver.interrupt].map(|event| event.try_clone().unwrap());
            *self.0.signals.lock().unwrap() = signals.into();
            Ok(())
        }
        fn begin(&mut self, index: usize) -> Result<(), vhost::Error> {
            self.0.requested.lock().unwrap().push(Requested::Begin(index));
            if usize::from(self.0.refused.load(Ordering::SeqCst)) == index + 1 {
                return Err(vhost::Error::InvalidOperation);
            }
            Ok(())
        }
        fn end(&mut self, index: usize) -> Result<(), vhost::Error> {
            self.0.requested.lock().unwrap().push(Requested::End(index));
            Ok(())
        }
    }

    impl Observer for Asks {
        fn net_vhost(&self, device: u32, moves: bool) {
            assert_eq!(device, 3);
            self.moves.lock().unwrap().push(moves);
        }
    }

    fn transport() -> (Arc<Asks>, MmioTransport) {
        let requests = Arc::new(Asks::default());
        let observer: Arc<dyn Observer> = Arc::<Asks>::clone(&requests);
        let device =
            VhostNet::new(Box::new(Kernel(Arc::clone(&requests))), MacAddress([2, 0, 0, 0, 0, 7]), 3, observer);
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x10000)]).unwrap();
        let interrupt = EventFd::new(EFD_NONBLOCK).unwrap();
        (requests, MmioTransport::new(Box::new(device), memory, interrupt).unwrap())
    }

    fn write(transport: &MmioTransport, register: u32, value: u32) {
        transport.write(register.into(), &value.to_le_bytes());
    }

    fn read(transport: &MmioTransport, register: u32) -> u32 {
        let mut data = [0; 4];
        transport.read(register.into(), &mut data);
        u32::from_le_bytes(data)
    }

    /// A driver that accepts these features, and virtio 1, and makes `queues` ready.
    fn activate(transport: &MmioTransport, features: u64, queues: &[u32]) {
        write(transport, VIRTIO_MMIO_STATUS, 3);
        for (half, value) in [(0, u32::try_from(features).unwrap()), (1, 1)] {
            write(transport, VIRTIO_MMIO_DRIVER_FEATURES_SEL, half);
            write(transport, VIRTIO_MMIO_DRIVER_FEATURES, value);
        }
        write(transport, VIRTIO_MMIO_STATUS, 3 | 8);
        for &queue in queues {
            write(transport, VIRTIO_MMIO_QUEUE_SEL, queue);
            write(transport, VIRTIO_MMIO_QUEUE_NUM, 16);
            write(transport, VIRTIO_MMIO_QUEUE_DESC_LOW, 0x1000 + queue * 0x4000);
            write(transport, VIRTIO_MMIO_QUEUE_AVAIL_LOW, 0x2000 + queue * 0x4000);
            write(transport, VIRTIO_MMIO_QUEUE_USED_LOW, 0x3000 + queue * 0x4000);
            write(transport, VIRTIO_MMIO_QUEUE_READY, 1);
        }
        write(transport, VIRTIO_MMIO_STATUS, READY);
    }

    const RECEIVE: Requested = Requested::Queue(0, 16, [0x1000, 0x2000, 0x3000], 0);
    const SEND: Requested = Requested::Queue(1, 16, [0x5000, 0x6000, 0x7000], 0);

    #[test]
    fn features_are_the_taps_and_those_of_queues_that_the_kernel_has() {
        let (requests, _) = transport();
        let device = VhostNet::new(Box::new(Kernel(requests)), MacAddress([2; 6]), 3, Arc::new(Asks::default()));

        assert_eq!(device.features(), OF_TAP | OF_KERNEL & !(1 << 26));
    }

    #[test]
    fn kernel_begins_with_what_the_driver_has_set_up_and_its_own_features_of_it() {
        let (requests, transport) = transport();

        activate(&transport, CSUM | 1 << VIRTIO_NET_F_MRG_RXBUF, &[0, 1]);

        let features = Requested::Features(1 << VIRTIO_F_VERSION_1 | 1 << VIRTIO_NET_F_MRG_RXBUF);
        assert_eq!(requests.take(), [features, RECEIVE, SEND, Requested::Begin(0), Requested::Begin(1)]);
        assert_eq!(read(&transport, VIRTIO_MMIO_STATUS), READY);
    }

    #[test]
    fn interrupts_are_for_buffers_while_the_kernel_moves_packets() {
        let (_asks, transport) = transport();

        let before = read(&transport, VIRTIO_MMIO_INTERRUPT_STATUS);
        activate(&transport, CSUM, &[0, 1]);
        let meanwhile = read(&transport, VIRTIO_MMIO_INTERRUPT_STATUS);
        write(&transport, VIRTIO_MMIO_STATUS, 0);

        assert_eq!((before, meanwhile, read(&transport, VIRTIO_MMIO_INTERRUPT_STATUS)), (0, 1, 0));
    }

    #[test]
    fn reset_ends_it_and_the_next_driver_begins_anew() {
        let (requests, transport) = transport();
        activate(&transport, CSUM, &[0, 1]);
        requests.take();

        write(&transport, VIRTIO_MMIO_STATUS, 0);
        let reset = requests.take();
        activate(&transport, CSUM, &[0, 1]);

        assert_eq!(reset, [Requested::End(0), Requested::End(1)]);
        assert_eq!(requests.take()[1..], [RECEIVE, SEND, Requested::Begin(0), Requested::Begin(1)]);
        assert_eq!(*requests.moves.lock().unwrap(), [true, false, true]);
    }

    #[test]
    fn end_of_the_device_is_an_end_for_the_kernel() {
        let (requests, transport) = transport();
        activate(&transport, CSUM, &[1]);
        requests.take();

        drop(transport);

        assert_eq!(requests.take(), [Requested::End(1)]);
    }

    #[test]
    fn what_the_kernel_refuses_needs_a_reset_and_nothing_is_moved() {
        let (requests, transport) = transport();
        requests.refused.store(2, Ordering::SeqCst);

        activate(&transport, CSUM, &[0, 1]);

        assert_eq!(read(&transport, VIRTIO_MMIO_STATUS) & NEEDS_RESET, NEEDS_RESET);
        assert_eq!(requests.take()[3..], [Requested::Begin(0), Requested::Begin(1), Requested::End(0)]);
        assert_eq!(read(&transport, VIRTIO_MMIO_INTERRUPT_STATUS), 2);
        assert!(requests.moves.lock().unwrap().is_empty());
    }

    #[test]
    fn device_without_queues_is_told_to_end_as_often_as_to_begin() {
        let (requests, transport) = transport();

        for _ in 0..2 {
            activate(&transport, CSUM, &[]);
            write(&transport, VIRTIO_MMIO_STATUS, 0);
        }

        assert_eq!(*requests.moves.lock().unwrap(), [true, false, true, false]);
    }

    #[test]
    fn queue_outside_memory_never_reaches_the_kernel() {
        let (requests, transport) = transport();

        activate(&transport, CSUM, &[4]);
        write(&transport, VIRTIO_MMIO_STATUS, 0);
        write(&transport, VIRTIO_MMIO_STATUS, 3 | 8);
        write(&transport, VIRTIO_MMIO_QUEUE_SEL, 0);
        write(&transport, VIRTIO_MMIO_QUEUE_READY, 1);
        write(&transport, VIRTIO_MMIO_STATUS, READY);

        assert!(requests.take().iter().all(|requested| matches!(requested, Requested::Features(_))));
        assert_eq!(read(&transport, VIRTIO_MMIO_STATUS) & NEEDS_RESET, NEEDS_RESET);
    }

    #[test]
    fn queue_that_the_kernel_finds_damaged_stops_the_device() {
        let (requests, transport) = transport();
        let transport = Arc::new(transport);
        let mut manager = event_manager::EventManager::new().unwrap();
        event_manager::SubscriberOps::add_subscriber(
            &mut manager,
            super::super::mmio::QueueEvents(Arc::clone(&transport)),
        );
        activate(&transport, CSUM, &[0, 1]);
        requests.take();

        requests.signals.lock().unwrap()[0].write(1).unwrap();
        manager.run_with_timeout(60_000).unwrap();

        assert_eq!(requests.take(), [Requested::End(0), Requested::End(1)]);
        assert_eq!(read(&transport, VIRTIO_MMIO_STATUS) & NEEDS_RESET, NEEDS_RESET);
        assert_eq!(read(&transport, VIRTIO_MMIO_INTERRUPT_STATUS), 2);
        assert_eq!(requests.signals.lock().unwrap()[1].read().unwrap(), 1);
    }

    #[test]
    fn notifications_are_left_to_the_kernel() {
        let (_asks, transport) = transport();
        let transport = Arc::new(transport);
        let mut manager = event_manager::EventManager::new().unwrap();
        event_manager::SubscriberOps::add_subscriber(
            &mut manager,
            super::super::mmio::QueueEvents(Arc::clone(&transport)),
        );
        activate(&transport, CSUM, &[0, 1]);

        transport.notify_events()[1].write(1).unwrap();

        assert_eq!(manager.run_with_timeout(20).unwrap(), 0);
        assert_eq!(transport.notify_events()[1].read().unwrap(), 1);
    }

    #[test]
    fn regions_of_memory_are_found_by_their_addresses() {
        let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0x1000), 0x2000)]).unwrap();

        let reported = memory.iter().map(region).next().unwrap();

        let host = memory.get_host_address(GuestAddress(0x1000)).unwrap();
        assert_eq!(
            (reported.guest_phys_addr, reported.memory_size, reported.userspace_addr),
            (0x1000, 0x2000, host.addr() as u64)
        );
    }

    #[test]
    fn host_without_it_gets_advice() {
        let missing = open(Path::new("/nonexistent/vhost-net")).unwrap_err();
        let no_module = cannot_open(io::Error::from_raw_os_error(libc::ENODEV));
        let refused = cannot_open(io::ErrorKind::PermissionDenied.into());

        assert!([missing, no_module].iter().all(|error| error.to_string().contains("`modprobe vhost_net`")));
        assert!(refused.to_string().contains("add this user to its group"));
    }

    #[test]
    fn jail_allows_what_a_running_guest_needs_of_the_kernel() {
        use strata_jail::policy::{Group, Only};
        use vhost::vhost_kern::vhost_binding as request;
        let requested = [
            request::VHOST_SET_FEATURES(),
            request::VHOST_SET_VRING_NUM(),
            request::VHOST_SET_VRING_ADDR(),
            request::VHOST_SET_VRING_BASE(),
            request::VHOST_SET_VRING_KICK(),
            request::VHOST_SET_VRING_CALL(),
            request::VHOST_SET_VRING_ERR(),
            request::VHOST_NET_SET_BACKEND(),
        ]
        .map(|number| u32::try_from(number).unwrap());

        let allowed: Vec<_> = Group::Vhost.calls().iter().flat_map(|call| call.only).collect();

        let [Only::OneOf(1, requests)] = allowed[..] else { panic!("{allowed:?}") };
        assert_eq!(requests.iter().map(|(_, number)| *number).collect::<Vec<_>>(), requested);
    }
}
