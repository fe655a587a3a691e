//! The virtio-mmio transport, version 2 of its register layout (virtio 1.x, section 4.2).

use super::{Activation, HostSource, VirtioDevice};
use event_manager::{EventOps, Events, MutEventSubscriber};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use virtio_bindings::virtio_config::{
    VIRTIO_CONFIG_S_DRIVER_OK, VIRTIO_CONFIG_S_FEATURES_OK, VIRTIO_CONFIG_S_NEEDS_RESET, VIRTIO_F_VERSION_1,
};
use virtio_bindings::virtio_mmio::{
    VIRTIO_MMIO_CONFIG, VIRTIO_MMIO_CONFIG_GENERATION, VIRTIO_MMIO_DEVICE_FEATURES, VIRTIO_MMIO_DEVICE_FEATURES_SEL,
    VIRTIO_MMIO_DEVICE_ID, VIRTIO_MMIO_DRIVER_FEATURES, VIRTIO_MMIO_DRIVER_FEATURES_SEL, VIRTIO_MMIO_INT_CONFIG,
    VIRTIO_MMIO_INT_VRING, VIRTIO_MMIO_INTERRUPT_ACK, VIRTIO_MMIO_INTERRUPT_STATUS, VIRTIO_MMIO_MAGIC_VALUE,
    VIRTIO_MMIO_QUEUE_AVAIL_HIGH, VIRTIO_MMIO_QUEUE_AVAIL_LOW, VIRTIO_MMIO_QUEUE_DESC_HIGH, VIRTIO_MMIO_QUEUE_DESC_LOW,
    VIRTIO_MMIO_QUEUE_NUM, VIRTIO_MMIO_QUEUE_NUM_MAX, VIRTIO_MMIO_QUEUE_READY, VIRTIO_MMIO_QUEUE_SEL,
    VIRTIO_MMIO_QUEUE_USED_HIGH, VIRTIO_MMIO_QUEUE_USED_LOW, VIRTIO_MMIO_STATUS, VIRTIO_MMIO_VENDOR_ID,
    VIRTIO_MMIO_VERSION,
};
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use virtio_queue::{Queue, QueueT};
use vm_memory::GuestMemoryMmap;
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// "virt".
const MAGIC: u32 = 0x7472_6976;
const VERSION: u32 = 2;
/// Vendor identifier: "STRA".
const VENDOR: u32 = u32::from_le_bytes(*b"STRA");

/// The device and what its driver has set through the registers.
struct DeviceState {
    device: Box<dyn VirtioDevice>,
    queues: Vec<Queue>,
    status: u32,
    driver_features: u64,
    device_features_select: u32,
    driver_features_select: u32,
    queue_select: usize,
    /// Another number when the configuration has changed by the host's hand.
    config_generation: u32,
    /// When the timer expires, from when it is set until what waited is served again.
    resume_at: Option<Instant>,
}

/// A virtio device with its registers, shared by the vCPU threads (registers) and the event loop (queues).
pub struct MmioTransport {
    state: Mutex<DeviceState>,
    memory: GuestMemoryMmap,
    /// Apart from `state`, so that a vCPU that acknowledges an interrupt never waits for a request in service.
    interrupt_status: AtomicU32,
    /// Whether the host's kernel serves the queues, and signals `interrupt` itself: then each interrupt is for buffers,
    /// and the status says so whenever it is read.
    is_interrupted_past: AtomicBool,
    interrupt: EventFd,
    notify: Vec<EventFd>,
    /// Expires when a device that waits for its limits is to be served again. Set and read by the event loop only.
    resume: OwnedFd,
    source: Option<HostSource>,
    /// Signalled when the host's kernel finds a queue damaged; none where it serves no queue.
    broken: Option<EventFd>,
}

impl MmioTransport {
    /// Gives `device` registers. It works on `memory` and raises `interrupt`.
    ///
    /// # Errors
    /// No file descriptor is left, or a queue size of the device is not a power of two.
    pub fn new(device: Box<dyn VirtioDevice>, memory: GuestMemoryMmap, interrupt: EventFd) -> io::Result<Self> {
        let sizes = device.queue_sizes();
        let queues = sizes
            .iter()
            .map(|size| Queue::new(*size))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))?;
        let notify = sizes.iter().map(|_| EventFd::new(EFD_NONBLOCK)).collect::<Result<Vec<_>, _>>()?;
        let state = DeviceState {
            device,
            queues,
            status: 0,
            driver_features: 0,
            device_features_select: 0,
            driver_features_select: 0,
            queue_select: 0,
            config_generation: 0,
            resume_at: None,
        };
        let source = state.device.source()?;
        let broken = state.device.is_served_by_host_kernel().then(|| EventFd::new(EFD_NONBLOCK)).transpose()?;
        let resume = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        Ok(Self {
            state: Mutex::new(state),
            memory,
            interrupt_status: AtomicU32::new(0),
            is_interrupted_past: AtomicBool::new(false),
            interrupt,
            notify,
            resume,
            source,
            broken,
        })
    }

    /// What the guest's notifications of each queue are to signal.
    #[must_use]
    pub fn notify_events(&self) -> &[EventFd] {
        &self.notify
    }

    fn lock(&self) -> MutexGuard<'_, DeviceState> {
        // Another thread's panic leaves no half-done register access behind.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads `data.len()` bytes of the registers at `offset`.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        let config = u64::from(VIRTIO_MMIO_CONFIG);
        data.fill(0);
        if offset >= config {
            self.lock().device.read_config(offset - config, data);
            return;
        }
        let Ok(register) = u32::try_from(offset) else {
            return;
        };
        // Registers are 32 bits wide and are to be accessed as such.
        if let Ok(word) = <&mut [u8; 4]>::try_from(data) {
            *word = self.read_register(register).to_le_bytes();
        }
    }

    fn read_register(&self, register: u32) -> u32 {
        match register {
            VIRTIO_MMIO_MAGIC_VALUE => MAGIC,
            VIRTIO_MMIO_VERSION => VERSION,
            VIRTIO_MMIO_VENDOR_ID => VENDOR,
            VIRTIO_MMIO_INTERRUPT_STATUS => {
                let past = if self.is_interrupted_past.load(Ordering::SeqCst) { VIRTIO_MMIO_INT_VRING } else { 0 };
                self.interrupt_status.load(Ordering::SeqCst) | past
            }
            _ => self.lock().read_register(register),
        }
    }

    /// Writes `data` to the registers at `offset`.
    pub fn write(&self, offset: u64, data: &[u8]) {
        if let Some(place) = offset.checked_sub(VIRTIO_MMIO_CONFIG.into()) {
            self.lock().device.write_config(place, data);
            return;
        }
        let Ok(register) = u32::try_from(offset) else {
            return;
        };
        let Ok(word) = <[u8; 4]>::try_from(data) else {
            return;
        };
        let value = u32::from_le_bytes(word);
        match register {
            VIRTIO_MMIO_INTERRUPT_ACK => {
                self.interrupt_status.fetch_and(!value, Ordering::SeqCst);
            }
            VIRTIO_MMIO_STATUS => self.write_status(value),
            _ => self.lock().write_register(register, value),
        }
    }

    fn write_status(&self, value: u32) {
        let mut state = self.lock();
        if value == 0 {
            state.reset();
            self.is_interrupted_past.store(false, Ordering::SeqCst);
            self.interrupt_status.store(0, Ordering::SeqCst);
            return;
        }
        let was_ready = state.status & VIRTIO_CONFIG_S_DRIVER_OK != 0;
        state.write_status(value, &self.memory);
        if let Some(broken) = self.broken.as_ref().filter(|_| !was_ready) {
            self.start(&mut state, broken);
        }
        let needs_reset = state.needs_reset();
        let is_ready = state.status & VIRTIO_CONFIG_S_DRIVER_OK != 0;
        drop(state);
        if needs_reset {
            self.raise(VIRTIO_MMIO_INT_CONFIG);
        } else if let Some(source) = self.source.as_ref().filter(|_| is_ready) {
            // What the host has had since before the driver was ready is not told again.
            let _ = self.notify[source.queue].write(1);
        }
    }

    /// Has the host's kernel serve the queues, if the driver is ready and what it has set up is valid.
    fn start(&self, state: &mut DeviceState, broken: &EventFd) {
        if state.status & VIRTIO_CONFIG_S_DRIVER_OK == 0 || state.needs_reset() {
            return;
        }
        let DeviceState { device, queues, driver_features, .. } = state;
        let (interrupt, notify) = (&self.interrupt, &self.notify[..]);
        // Before the first interrupt: the driver would find no cause for that.
        self.is_interrupted_past.store(true, Ordering::SeqCst);
        if device.start(&Activation { features: *driver_features, queues, notify, interrupt, broken }).is_err() {
            self.is_interrupted_past.store(false, Ordering::SeqCst);
            state.status |= VIRTIO_CONFIG_S_NEEDS_RESET;
        }
    }

    /// Stops the device, on the event loop, when the host's kernel has found a queue of it damaged.
    fn stop_broken(&self, broken: &EventFd) {
        let mut state = self.lock();
        // The driver may have reset the device meanwhile: then it is not that one's queue.
        if broken.read().is_err() || state.status & VIRTIO_CONFIG_S_DRIVER_OK == 0 || state.needs_reset() {
            return;
        }
        state.device.stop();
        state.status |= VIRTIO_CONFIG_S_NEEDS_RESET;
        // Before the driver can begin anew.
        self.is_interrupted_past.store(false, Ordering::SeqCst);
        self.raise(VIRTIO_MMIO_INT_CONFIG);
    }

    fn raise(&self, cause: u32) {
        self.interrupt_status.fetch_or(cause, Ordering::SeqCst);
        // Fails only when the counter is full, and then an interrupt is pending already.
        let _ = self.interrupt.write(1);
    }

    /// Whether a driver has set the device up, and it works.
    pub fn is_driven(&self) -> bool {
        let state = self.lock();
        state.status & VIRTIO_CONFIG_S_DRIVER_OK != 0 && !state.needs_reset()
    }

    /// Tells the driver that the device's configuration has changed, from any thread. A driver that is not ready yet
    /// reads it when it is.
    pub fn announce_configuration(&self) {
        let mut state = self.lock();
        state.config_generation = state.config_generation.wrapping_add(1);
        if state.status & VIRTIO_CONFIG_S_DRIVER_OK != 0 {
            // With the lock: a driver that resets the device meanwhile finds no interrupt of before.
            self.raise(VIRTIO_MMIO_INT_CONFIG);
        }
    }

    /// Serves queue `index`, on the event loop, at `now`.
    pub fn serve(&self, index: usize, now: Instant) {
        if self.broken.is_some() {
            return;
        }
        let mut state = self.lock();
        let active = state.status & VIRTIO_CONFIG_S_DRIVER_OK != 0 && !state.needs_reset();
        if !active {
            return;
        }
        let DeviceState { device, queues, .. } = &mut *state;
        let Some(queue) = queues.get_mut(index) else {
            return;
        };
        if !queue.ready() {
            return;
        }
        match device.serve(index, queue, &self.memory, now) {
            Ok(served) => {
                if let Some(time) = served.resume_after {
                    self.resume_after(&mut state, time, now);
                }
                drop(state);
                if served.interrupt {
                    self.raise(VIRTIO_MMIO_INT_VRING);
                }
                let again = Some(index).filter(|_| served.more);
                for notify in [again, served.wake].into_iter().flatten().filter_map(|index| self.notify.get(index)) {
                    let _ = notify.write(1);
                }
            }
            Err(_) => {
                state.status |= VIRTIO_CONFIG_S_NEEDS_RESET;
                drop(state);
                self.raise(VIRTIO_MMIO_INT_CONFIG);
            }
        }
    }

    /// Serves every queue, on the event loop, at `now`: the device's limits may allow it again. A queue that the driver
    /// has reset meanwhile has nothing to be served.
    pub fn resume(&self, now: Instant) {
        self.lock().resume_at = None;
        (0..self.notify.len()).for_each(|index| self.serve(index, now));
    }

    /// Has the event loop [`resume`](Self::resume) `time` after `now`, once, or before if it is to anyway.
    fn resume_after(&self, state: &mut DeviceState, time: Duration, now: Instant) {
        let at = now + time;
        // One that is due already counts, too: to set the timer anew would take its expiry away.
        if state.resume_at.is_some_and(|earlier| earlier <= at) {
            return;
        }
        state.resume_at = Some(at);
        // A time of zero would switch the timer off.
        let time = time.max(Duration::from_nanos(1));
        let value =
            Timespec { tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX), tv_nsec: time.subsec_nanos().into() };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        // A timer of our own, and a time that is one: never refused.
        let _ = timerfd_settime(&self.resume, TimerfdTimerFlags::empty(), &once);
    }
}

impl DeviceState {
    fn needs_reset(&self) -> bool {
        self.status & VIRTIO_CONFIG_S_NEEDS_RESET != 0
    }

    fn features(&self) -> u64 {
        self.device.features() | 1 << VIRTIO_F_VERSION_1
    }

    fn reset(&mut self) {
        self.device.stop();
        self.status = 0;
        self.driver_features = 0;
        self.device_features_select = 0;
        self.driver_features_select = 0;
        self.queue_select = 0;
        self.queues.iter_mut().for_each(QueueT::reset);
    }

    #[allow(clippy::cast_possible_truncation, reason = "a 64-bit word is given in halves")]
    fn read_register(&self, register: u32) -> u32 {
        let queue = self.queues.get(self.queue_select);
        match register {
            VIRTIO_MMIO_DEVICE_ID => self.device.device_type(),
            VIRTIO_MMIO_DEVICE_FEATURES => match self.device_features_select {
                0 => self.features() as u32,
                1 => (self.features() >> 32) as u32,
                _ => 0,
            },
            VIRTIO_MMIO_QUEUE_NUM_MAX => queue.map_or(0, |queue| u32::from(queue.max_size())),
            VIRTIO_MMIO_QUEUE_READY => queue.map_or(0, |queue| u32::from(queue.ready())),
            VIRTIO_MMIO_STATUS => self.status,
            VIRTIO_MMIO_CONFIG_GENERATION => self.config_generation,
            _ => 0,
        }
    }

    fn write_register(&mut self, register: u32, value: u32) {
        match register {
            VIRTIO_MMIO_DEVICE_FEATURES_SEL => self.device_features_select = value,
            VIRTIO_MMIO_DRIVER_FEATURES_SEL => self.driver_features_select = value,
            VIRTIO_MMIO_DRIVER_FEATURES => self.write_driver_features(value),
            VIRTIO_MMIO_QUEUE_SEL => self.queue_select = value as usize,
            _ => self.write_queue_register(register, value),
        }
    }

    fn write_driver_features(&mut self, value: u32) {
        // Features are settled once the driver has said so.
        if self.status & VIRTIO_CONFIG_S_FEATURES_OK != 0 || self.driver_features_select > 1 {
            return;
        }
        let shift = self.driver_features_select * 32;
        let others = self.driver_features & !(0xffff_ffff << shift);
        self.driver_features = others | u64::from(value) << shift;
    }

    fn write_queue_register(&mut self, register: u32, value: u32) {
        // Queues are settled between the features and DRIVER_OK; a later change would pull a ring from under us.
        let settled = VIRTIO_CONFIG_S_FEATURES_OK | VIRTIO_CONFIG_S_DRIVER_OK;
        if self.status & settled != VIRTIO_CONFIG_S_FEATURES_OK {
            return;
        }
        let Some(queue) = self.queues.get_mut(self.queue_select) else {
            return;
        };
        if register == VIRTIO_MMIO_QUEUE_READY {
            queue.set_ready(value == 1);
            return;
        }
        if queue.ready() {
            return;
        }
        match register {
            // Zero is not a power of two either; the queue ignores both.
            VIRTIO_MMIO_QUEUE_NUM => queue.set_size(u16::try_from(value).unwrap_or(0)),
            VIRTIO_MMIO_QUEUE_DESC_LOW => queue.set_desc_table_address(Some(value), None),
            VIRTIO_MMIO_QUEUE_DESC_HIGH => queue.set_desc_table_address(None, Some(value)),
            VIRTIO_MMIO_QUEUE_AVAIL_LOW => queue.set_avail_ring_address(Some(value), None),
            VIRTIO_MMIO_QUEUE_AVAIL_HIGH => queue.set_avail_ring_address(None, Some(value)),
            VIRTIO_MMIO_QUEUE_USED_LOW => queue.set_used_ring_address(Some(value), None),
            VIRTIO_MMIO_QUEUE_USED_HIGH => queue.set_used_ring_address(None, Some(value)),
            _ => {}
        }
    }

    fn write_status(&mut self, value: u32, memory: &GuestMemoryMmap) {
        let added = value & !self.status;
        // The driver sets bits; only a reset clears them, and NEEDS_RESET is the device's own.
        self.status |= value & 0xff & !VIRTIO_CONFIG_S_NEEDS_RESET;
        let version_1 = 1 << VIRTIO_F_VERSION_1;
        if added & VIRTIO_CONFIG_S_FEATURES_OK != 0 {
            let unknown = self.driver_features & !self.features();
            if unknown != 0 || self.driver_features & version_1 == 0 {
                self.status &= !VIRTIO_CONFIG_S_FEATURES_OK;
            }
        }
        if added & VIRTIO_CONFIG_S_DRIVER_OK != 0 {
            let event_index = self.driver_features & 1 << VIRTIO_RING_F_EVENT_IDX != 0;
            let ready = || self.queues.iter().filter(|queue| queue.ready());
            let settled = self.status & VIRTIO_CONFIG_S_FEATURES_OK != 0;
            if !settled || !ready().all(|queue| queue.is_valid(memory)) {
                self.status |= VIRTIO_CONFIG_S_NEEDS_RESET;
            }
            for queue in &mut self.queues {
                queue.set_event_idx(event_index);
            }
        }
    }
}

/// Stands for the timer where queues have their numbers.
const RESUME: u32 = u32::MAX;
/// Stands for what the host has.
const SOURCE: u32 = u32::MAX - 1;
/// Stands for a queue that the host's kernel has found damaged.
const BROKEN: u32 = u32::MAX - 2;

/// Serves a device's queues on the event loop.
pub struct QueueEvents(pub Arc<MmioTransport>);

impl MutEventSubscriber for QueueEvents {
    fn process(&mut self, events: Events, _: &mut EventOps) {
        if let Some(source) = self.0.source.as_ref().filter(|_| events.data() == SOURCE) {
            self.0.serve(source.queue, Instant::now());
            return;
        }
        if let Some(broken) = self.0.broken.as_ref().filter(|_| events.data() == BROKEN) {
            self.0.stop_broken(broken);
            return;
        }
        match self.0.notify.get(events.data() as usize) {
            Some(notify) => {
                let _ = notify.read();
                self.0.serve(events.data() as usize, Instant::now());
            }
            None => {
                // Nothing to read if it was set anew meanwhile: then it expires again.
                let _ = rustix::io::read(&self.0.resume, &mut [0; 8]);
                self.0.resume(Instant::now());
            }
        }
    }

    fn init(&mut self, ops: &mut EventOps) {
        // Fresh descriptors of our own: refused only when the host has no memory for it, and then the device stays
        // silent, as it would with a full interrupt queue.
        if let Some(broken) = &self.0.broken {
            // The host's kernel hears the notifications.
            let _ = ops.add(Events::with_data(broken, BROKEN, EventSet::IN));
            return;
        }
        for (index, notify) in (0u32..).zip(&self.0.notify) {
            let _ = ops.add(Events::with_data(notify, index, EventSet::IN));
        }
        let _ = ops.add(Events::with_data(&self.0.resume, RESUME, EventSet::IN));
        if let Some(source) = &self.0.source {
            // Reported once, when it comes: without buffers of the guest, what has come stays where it is.
            let events = EventSet::IN | EventSet::OUT | EventSet::EDGE_TRIGGERED;
            let _ = ops.add(Events::with_data(&source.descriptor, SOURCE, events));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::Served;
    use super::*;
    use event_manager::SubscriberOps;
    use vm_memory::GuestAddress;

    const FEATURES_OK: u32 = 8;
    const DRIVER_OK: u32 = 4;
    const NEEDS_RESET: u32 = 64;

    /// What a driver has written into a configuration: where, and the bytes.
    type Written = Arc<Mutex<Vec<(u64, Vec<u8>)>>>;

    /// A device that keeps what the driver writes into its configuration.
    #[derive(Clone, Default)]
    struct Device(Written);

    impl VirtioDevice for Device {
        fn device_type(&self) -> u32 {
            2
        }
        fn features(&self) -> u64 {
            1 << 9
        }
        fn queue_sizes(&self) -> &[u16] {
            &[16]
        }
        fn read_config(&self, offset: u64, data: &mut [u8]) {
            data.fill(u8::try_from(offset).unwrap());
        }
        fn write_config(&mut self, offset: u64, data: &[u8]) {
            self.0.lock().unwrap().push((offset, data.to_vec()));
        }
        fn serve(
            &mut self,
            _: usize,
            _: &mut Queue,
            _: &GuestMemoryMmap,
            _: Instant,
        ) -> Result<Served, virtio_queue::Error> {
            Ok(Served { interrupt: true, ..Served::default() })
        }
    }

    fn transport() -> MmioTransport {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x10000)]).unwrap();
        let interrupt = EventFd::new(EFD_NONBLOCK).unwrap();
        MmioTransport::new(Box::new(Device::default()), memory, interrupt).unwrap()
    }

    fn read(transport: &MmioTransport, register: u32) -> u32 {
        let mut data = [0; 4];
        transport.read(u64::from(register), &mut data);
        u32::from_le_bytes(data)
    }

    fn write(transport: &MmioTransport, register: u32, value: u32) {
        transport.write(u64::from(register), &value.to_le_bytes());
    }

    fn negotiate(transport: &MmioTransport, low: u32, high: u32) -> u32 {
        write(transport, VIRTIO_MMIO_STATUS, 3);
        for (select, value) in [(0, low), (1, high)] {
            write(transport, VIRTIO_MMIO_DRIVER_FEATURES_SEL, select);
            write(transport, VIRTIO_MMIO_DRIVER_FEATURES, value);
        }
        write(transport, VIRTIO_MMIO_STATUS, 3 | FEATURES_OK);
        read(transport, VIRTIO_MMIO_STATUS)
    }

    /// Does what a driver does to have queue 0 served, and returns the status that it then finds.
    pub(crate) fn activate(transport: &MmioTransport, descriptors: u32) -> u32 {
        negotiate(transport, 0, 1);
        write(transport, VIRTIO_MMIO_QUEUE_NUM, 16);
        write(transport, VIRTIO_MMIO_QUEUE_DESC_LOW, descriptors);
        write(transport, VIRTIO_MMIO_QUEUE_AVAIL_LOW, 0x2000);
        write(transport, VIRTIO_MMIO_QUEUE_USED_LOW, 0x3000);
        write(transport, VIRTIO_MMIO_QUEUE_READY, 1);
        write(transport, VIRTIO_MMIO_STATUS, 3 | FEATURES_OK | DRIVER_OK);
        read(transport, VIRTIO_MMIO_STATUS)
    }

    #[test]
    fn it_looks_like_a_virtio_device() {
        let transport = transport();
        let registers = [VIRTIO_MMIO_MAGIC_VALUE, VIRTIO_MMIO_VERSION, VIRTIO_MMIO_DEVICE_ID];
        assert_eq!(registers.map(|register| read(&transport, register)), [MAGIC, 2, 2]);
    }

    #[test]
    fn version_1_is_offered_beside_the_devices_features() {
        let transport = transport();
        let low = read(&transport, VIRTIO_MMIO_DEVICE_FEATURES);
        write(&transport, VIRTIO_MMIO_DEVICE_FEATURES_SEL, 1);
        assert_eq!((low, read(&transport, VIRTIO_MMIO_DEVICE_FEATURES)), (1 << 9, 1));
    }

    #[test]
    fn features_that_were_offered_are_accepted() {
        assert_eq!(negotiate(&transport(), 1 << 9, 1) & FEATURES_OK, FEATURES_OK);
    }

    #[test]
    fn features_that_were_not_offered_are_refused() {
        assert_eq!(negotiate(&transport(), 1 << 10, 1) & FEATURES_OK, 0);
    }

    #[test]
    fn legacy_driver_is_refused() {
        assert_eq!(negotiate(&transport(), 1 << 9, 0) & FEATURES_OK, 0);
    }

    #[test]
    fn valid_queue_is_activated_and_served() {
        let transport = transport();
        let status = activate(&transport, 0x1000);
        transport.serve(0, Instant::now());
        assert_eq!(status & (DRIVER_OK | NEEDS_RESET), DRIVER_OK);
        assert_eq!(read(&transport, VIRTIO_MMIO_INTERRUPT_STATUS), VIRTIO_MMIO_INT_VRING);
    }

    /// What a device that waits for its limits does: it wants to be served again as often as `waits` says.
    struct Waiting {
        waits: usize,
        served: Arc<AtomicU32>,
    }

    impl VirtioDevice for Waiting {
        fn device_type(&self) -> u32 {
            2
        }
        fn features(&self) -> u64 {
            0
        }
        fn queue_sizes(&self) -> &[u16] {
            &[16]
        }
        fn read_config(&self, _: u64, _: &mut [u8]) {}
        fn serve(
            &mut self,
            _: usize,
            _: &mut Queue,
            _: &GuestMemoryMmap,
            _: Instant,
        ) -> Result<Served, virtio_queue::Error> {
            let served = self.served.fetch_add(1, Ordering::SeqCst) as usize;
            let resume_after = (served < self.waits).then_some(Duration::from_millis(1));
            Ok(Served { resume_after, ..Served::default() })
        }
    }

    /// A device that waits `waits` times, on an event loop, and how often it was served.
    fn waiting(waits: usize) -> (Arc<MmioTransport>, event_manager::EventManager<QueueEvents>, Arc<AtomicU32>) {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x10000)]).unwrap();
        let served = Arc::new(AtomicU32::new(0));
        let device = Waiting { waits, served: Arc::clone(&served) };
        let transport = MmioTransport::new(Box::new(device), memory, EventFd::new(EFD_NONBLOCK).unwrap()).unwrap();
        activate(&transport, 0x1000);
        let transport = Arc::new(transport);
        let mut manager = event_manager::EventManager::new().unwrap();
        manager.add_subscriber(QueueEvents(Arc::clone(&transport)));
        (transport, manager, served)
    }

    #[test]
    fn device_that_waits_is_served_again_by_its_timer_alone() {
        let (transport, mut manager, served) = waiting(2);

        transport.notify[0].write(1).unwrap();
        (0..3).for_each(|_| assert_eq!(manager.run_with_timeout(60_000).unwrap(), 1));
        let idle = manager.run_with_timeout(20).unwrap();

        assert_eq!((served.load(Ordering::SeqCst), idle), (3, 0));
    }

    #[test]
    fn device_that_is_reset_while_it_waits_is_left_alone_and_works_again() {
        let (transport, mut manager, served) = waiting(1);
        transport.notify[0].write(1).unwrap();
        manager.run_with_timeout(60_000).unwrap();

        write(&transport, VIRTIO_MMIO_STATUS, 0);
        let timers = manager.run_with_timeout(60_000).unwrap();
        let served_in_reset = served.load(Ordering::SeqCst);
        activate(&transport, 0x1000);
        transport.notify[0].write(1).unwrap();
        manager.run_with_timeout(60_000).unwrap();

        assert_eq!((timers, served_in_reset, served.load(Ordering::SeqCst)), (1, 1, 2));
    }

    #[test]
    fn earlier_of_two_waits_counts() {
        let transport = transport();
        let now = Instant::now();
        let mut state = transport.lock();

        let [long, short] = [100, 10].map(Duration::from_secs);
        let set = [long, short, long].map(|time| {
            transport.resume_after(&mut state, time, now);
            state.resume_at
        });

        assert_eq!(set, [Some(now + long), Some(now + short), Some(now + short)]);
    }

    #[test]
    fn wait_that_is_over_and_not_served_yet_is_not_put_off_by_another() {
        let transport = transport();
        let now = Instant::now();
        let mut state = transport.lock();
        let [short, long] = [10, 100].map(Duration::from_secs);

        transport.resume_after(&mut state, short, now);
        transport.resume_after(&mut state, long, now + short);

        assert_eq!(state.resume_at, Some(now + short));
    }

    /// A device with a socket on the host's side that it never reads, and how often it was served.
    struct WithSource {
        descriptor: std::os::unix::net::UnixStream,
        served: Arc<AtomicU32>,
    }

    impl VirtioDevice for WithSource {
        fn device_type(&self) -> u32 {
            2
        }
        fn features(&self) -> u64 {
            0
        }
        fn queue_sizes(&self) -> &[u16] {
            &[16]
        }
        fn read_config(&self, _: u64, _: &mut [u8]) {}
        fn source(&self) -> io::Result<Option<HostSource>> {
            Ok(Some(HostSource { descriptor: self.descriptor.try_clone()?.into(), queue: 0 }))
        }
        fn serve(
            &mut self,
            _: usize,
            _: &mut Queue,
            _: &GuestMemoryMmap,
            _: Instant,
        ) -> Result<Served, virtio_queue::Error> {
            self.served.fetch_add(1, Ordering::SeqCst);
            Ok(Served::default())
        }
    }

    #[test]
    fn queue_is_served_once_for_what_comes_from_the_host_and_when_the_driver_is_ready() {
        let (descriptor, mut host) = std::os::unix::net::UnixStream::pair().unwrap();
        let served = Arc::new(AtomicU32::new(0));
        let device = WithSource { descriptor, served: Arc::clone(&served) };
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x10000)]).unwrap();
        let transport = MmioTransport::new(Box::new(device), memory, EventFd::new(EFD_NONBLOCK).unwrap()).unwrap();
        let transport = Arc::new(transport);
        let mut manager = event_manager::EventManager::new().unwrap();
        manager.add_subscriber(QueueEvents(Arc::clone(&transport)));
        let mut served_after = |what: &mut dyn FnMut()| {
            what();
            while manager.run_with_timeout(20).unwrap() > 0 {}
            served.load(Ordering::SeqCst)
        };

        let before = served_after(&mut || io::Write::write_all(&mut host, b"early").unwrap());
        let ready = served_after(&mut || assert_eq!(activate(&transport, 0x1000) & NEEDS_RESET, 0));
        let idle = served_after(&mut || ());
        let later = served_after(&mut || io::Write::write_all(&mut host, b"late").unwrap());

        // Nothing was read, and yet the loop does not spin.
        assert_eq!((before, ready, idle, later), (0, 1, 1, 2));
    }

    #[test]
    fn queue_outside_memory_asks_for_a_reset() {
        let status = activate(&transport(), 0x10_0000);
        assert_eq!(status & NEEDS_RESET, NEEDS_RESET);
    }

    #[test]
    fn queue_is_not_moved_while_it_is_in_use() {
        let transport = transport();
        activate(&transport, 0x1000);
        write(&transport, VIRTIO_MMIO_QUEUE_READY, 0);
        write(&transport, VIRTIO_MMIO_QUEUE_DESC_LOW, 0x5000);
        assert_eq!(transport.lock().queues[0].desc_table(), 0x1000);
    }

    #[test]
    fn nothing_is_served_before_the_driver_is_ready() {
        let transport = transport();
        negotiate(&transport, 0, 1);
        transport.serve(0, Instant::now());
        assert_eq!(read(&transport, VIRTIO_MMIO_INTERRUPT_STATUS), 0);
    }

    #[test]
    fn acknowledged_interrupt_is_gone() {
        let transport = transport();
        transport.raise(VIRTIO_MMIO_INT_VRING);
        write(&transport, VIRTIO_MMIO_INTERRUPT_ACK, VIRTIO_MMIO_INT_VRING);
        assert_eq!(read(&transport, VIRTIO_MMIO_INTERRUPT_STATUS), 0);
    }

    #[test]
    fn reset_forgets_everything() {
        let transport = transport();
        activate(&transport, 0x1000);
        write(&transport, VIRTIO_MMIO_STATUS, 0);
        assert_eq!(read(&transport, VIRTIO_MMIO_STATUS), 0);
        assert!(!transport.lock().queues[0].ready());
    }

    #[test]
    fn queue_that_does_not_exist_has_no_size() {
        let transport = transport();
        write(&transport, VIRTIO_MMIO_QUEUE_SEL, u32::MAX);
        assert_eq!(read(&transport, VIRTIO_MMIO_QUEUE_NUM_MAX), 0);
    }

    #[test]
    fn configuration_is_read_in_any_width() {
        let mut data = [0xff; 2];
        transport().read(u64::from(VIRTIO_MMIO_CONFIG) + 3, &mut data);
        assert_eq!(data, [3, 3]);
    }

    #[test]
    fn configuration_is_written_in_any_width() {
        let device = Device::default();
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x10000)]).unwrap();
        let interrupt = EventFd::new(EFD_NONBLOCK).unwrap();
        let transport = MmioTransport::new(Box::new(device.clone()), memory, interrupt).unwrap();

        transport.write(u64::from(VIRTIO_MMIO_CONFIG) + 4, &[1, 2]);
        transport.write(u64::from(VIRTIO_MMIO_CONFIG), &[3; 8]);

        assert_eq!(*device.0.lock().unwrap(), [(4, vec![1, 2]), (0, vec![3; 8])]);
    }

    #[test]
    fn changed_configuration_has_another_generation_and_interrupts_a_driver_that_is_ready() {
        let transport = transport();
        let looks = || [VIRTIO_MMIO_CONFIG_GENERATION, VIRTIO_MMIO_INTERRUPT_STATUS].map(|at| read(&transport, at));

        let before = looks();
        transport.announce_configuration();
        let early = (looks(), transport.interrupt.read().is_ok());
        activate(&transport, 0x1000);
        transport.announce_configuration();
        let ready = (looks(), transport.interrupt.read().is_ok());
        write(&transport, VIRTIO_MMIO_INTERRUPT_ACK, VIRTIO_MMIO_INT_CONFIG);

        assert_eq!((before, early), ([0, 0], ([1, 0], false)));
        assert_eq!((ready, looks()), (([2, VIRTIO_MMIO_INT_CONFIG], true), [2, 0]));
    }

    #[test]
    fn device_is_driven_from_its_drivers_readiness_until_a_reset() {
        let transport = transport();

        let before = transport.is_driven();
        activate(&transport, 0x1000);
        let ready = transport.is_driven();
        write(&transport, VIRTIO_MMIO_STATUS, 0);

        assert_eq!((before, ready, transport.is_driven()), (false, true, false));
    }

    #[test]
    fn register_read_in_part_is_zero() {
        let mut data = [0xff; 2];
        transport().read(0, &mut data);
        assert_eq!(data, [0, 0]);
    }

    proptest::proptest! {
        /// Whatever a driver writes into whatever register, in whatever order, the transport survives it.
        #[test]
        fn hostile_register_accesses_are_survived(
            accesses in proptest::collection::vec((0u64..0x110, 0u32..0x110, 0usize..9), 0..200)
        ) {
            let transport = transport();
            for (offset, value, width) in accesses {
                let mut bytes = [0u8; 8];
                bytes[..4].copy_from_slice(&value.to_le_bytes());
                transport.write(offset, &bytes[..width]);
                transport.write(offset & !3, &bytes[..4]);
                transport.serve(0, Instant::now());
                transport.read(offset & 0xff, &mut bytes[..width]);
            }
            write(&transport, VIRTIO_MMIO_STATUS, 0);
            proptest::prop_assert_eq!(read(&transport, VIRTIO_MMIO_STATUS), 0);
        }
    }
}
