//! The VMM's own layer: what happens in its threads, recorded through the same rings as everything else.
//!
//! The rings lie in memory that the guest does not see, one per vCPU thread and one more for all other threads. A
//! ring's number is its vCPU's, or the number of vCPUs for the last one.
#![allow(unsafe_code)] // Producers are made from the rings' raw addresses.

use crate::control::protocol::LiveDisk;
use crate::live::disk_times::DiskTimes;
use clock_sync::relation::Relation;
use clock_sync::updater::Cause;
use shared_ring::event::{Event, Field, FieldType};
use shared_ring::host::memory::HostMemory;
use shared_ring::producer::Producer;
use shared_ring::region::Rings;
use shared_ring::storage::Smp;
use std::time::Duration;
use strata_abi::class;
use strata_clock::HostTime;
use strata_host_kernel::namespace::recorded_thread_id;
use strata_observer::{
    BalloonRequestKind, BlockRequestKind, ControlEvent, NetQueue, Observer, PacketStage, VsockEnd, VsockQueue,
    VsockSide,
};
use strata_rate_limit::Resource;

/// Ids of the VMM's events.
mod id {
    pub const VCPU_THREAD: u16 = 1;
    pub const VCPU_ENTER: u16 = 2;
    pub const VCPU_EXIT: u16 = 3;
    pub const PORT_ACCESS: u16 = 4;
    pub const MMIO_ACCESS: u16 = 5;
    pub const BLOCK_REQUEST: u16 = 6;
    pub const CONSOLE_OUTPUT: u16 = 7;
    pub const CONSOLE_INPUT: u16 = 8;
    pub const CONTROL: u16 = 9;
    pub const CLOCK_UPDATE: u16 = 10;
    pub const DISK_NOTIFIED: u16 = 11;
    pub const DISK_INTERRUPT: u16 = 12;
    pub const DISK_THROTTLED: u16 = 13;
    pub const CONSOLE_THROTTLED: u16 = 14;
    pub const NET_NOTIFIED: u16 = 15;
    pub const NET_RECEIVE: u16 = 16;
    pub const NET_SEND: u16 = 17;
    pub const NET_INTERRUPT: u16 = 18;
    pub const NET_THROTTLED: u16 = 19;
    pub const ENTROPY_REQUEST: u16 = 20;
    pub const NET_VHOST: u16 = 21;
    pub const VSOCK_BEGIN: u16 = 22;
    pub const VSOCK_END: u16 = 23;
    pub const VSOCK_RECEIVE: u16 = 24;
    pub const VSOCK_SEND: u16 = 25;
    pub const BALLOON_WANTED: u16 = 26;
    pub const BALLOON_REQUEST: u16 = 27;
}

/// Bytes of the text fields.
const TEXT: usize = 16;
const TEXT_FIELD: FieldType = FieldType::CharArray(16);

/// A packet: the network device's number, the packet's in its direction, the bytes of its frame, and whether it is done
/// with: 0 when it is taken, 1 when it is handed over, 2 when it is lost.
const PACKET_FIELDS: &[Field] = &[
    Field::new("net", FieldType::U32),
    Field::new("id", FieldType::U64),
    Field::new("bytes", FieldType::U32),
    Field::new("done", FieldType::U8),
];
/// A network device's number, and its queue's: 0 receives, 1 sends.
const NET_QUEUE_FIELDS: &[Field] = &[Field::new("net", FieldType::U32), Field::new("queue", FieldType::U8)];
/// A packet of the socket device: its connection, its number in its direction, virtio's number of what it is for, the
/// bytes of its data, and whether it is done with, as of [`PACKET_FIELDS`].
const VSOCK_PACKET_FIELDS: &[Field] = &[
    Field::new("connection", FieldType::U64),
    Field::new("id", FieldType::U64),
    Field::new("op", FieldType::U16),
    Field::new("bytes", FieldType::U32),
    Field::new("done", FieldType::U8),
];

/// The VMM's event types.
pub const EVENTS: &[Event] = &[
    Event {
        id: id::VCPU_THREAD,
        class: class::VMM_CONTROL,
        name: "vmm:vcpu_thread",
        fields: &[Field::new("vcpu", FieldType::U32), Field::new("tid", FieldType::U32)],
    },
    Event {
        id: id::VCPU_ENTER,
        class: class::VMM_VCPU,
        name: "vmm:vcpu_enter",
        fields: &[Field::new("vcpu", FieldType::U32)],
    },
    Event {
        id: id::VCPU_EXIT,
        class: class::VMM_VCPU,
        name: "vmm:vcpu_exit",
        fields: &[Field::new("vcpu", FieldType::U32), Field::new("reason", FieldType::U32)],
    },
    Event {
        id: id::PORT_ACCESS,
        class: class::VMM_DEVICE,
        name: "vmm:port_access",
        fields: &[
            Field::new("vcpu", FieldType::U32),
            Field::hex("port", FieldType::U16),
            Field::new("size", FieldType::U8),
            Field::new("write", FieldType::U8),
            Field::hex("value", FieldType::U32),
        ],
    },
    Event {
        id: id::MMIO_ACCESS,
        class: class::VMM_DEVICE,
        name: "vmm:mmio_access",
        fields: &[
            Field::new("vcpu", FieldType::U32),
            Field::hex("address", FieldType::U64),
            Field::new("size", FieldType::U8),
            Field::new("write", FieldType::U8),
            Field::hex("value", FieldType::U64),
        ],
    },
    Event {
        id: id::BLOCK_REQUEST,
        class: class::VMM_DEVICE,
        name: "vmm:block_request",
        fields: &[
            Field::new("disk", FieldType::U32),
            Field::new("kind", TEXT_FIELD),
            Field::new("sector", FieldType::U64),
            Field::new("bytes", FieldType::U32),
            Field::new("done", FieldType::U8),
        ],
    },
    Event {
        id: id::CONSOLE_OUTPUT,
        class: class::VMM_DEVICE,
        name: "vmm:console_output",
        fields: &[Field::new("bytes", FieldType::U32)],
    },
    Event {
        id: id::CONSOLE_INPUT,
        class: class::VMM_DEVICE,
        name: "vmm:console_input",
        fields: &[Field::new("bytes", FieldType::U32)],
    },
    Event {
        id: id::CONTROL,
        class: class::VMM_CONTROL,
        name: "vmm:control",
        fields: &[Field::new("what", TEXT_FIELD)],
    },
    Event {
        id: id::CLOCK_UPDATE,
        class: class::VMM_CONTROL,
        name: "vmm:clock_update",
        fields: &[
            Field::new("vcpu", FieldType::U32),
            Field::new("number", FieldType::U64),
            Field::new("hw_base", FieldType::U64),
            Field::new("trace_base", FieldType::U64),
            Field::new("mult", FieldType::U64),
            Field::new("shift", FieldType::U32),
            Field::new("hw_bits", FieldType::U32),
            Field::new("cause", TEXT_FIELD),
            Field::new("bound_ns", FieldType::U64),
        ],
    },
    Event {
        id: id::DISK_NOTIFIED,
        class: class::VMM_DEVICE,
        name: "vmm:disk_notified",
        fields: &[Field::new("disk", FieldType::U32)],
    },
    Event {
        id: id::DISK_INTERRUPT,
        class: class::VMM_DEVICE,
        name: "vmm:disk_interrupt",
        fields: &[Field::new("disk", FieldType::U32)],
    },
    Event {
        id: id::DISK_THROTTLED,
        class: class::VMM_DEVICE,
        name: "vmm:disk_throttled",
        fields: &[
            Field::new("disk", FieldType::U32),
            Field::new("limit", TEXT_FIELD),
            Field::new("wait_ns", FieldType::U64),
        ],
    },
    Event {
        id: id::CONSOLE_THROTTLED,
        class: class::VMM_DEVICE,
        name: "vmm:console_throttled",
        fields: &[Field::new("wait_ns", FieldType::U64)],
    },
    Event { id: id::NET_NOTIFIED, class: class::VMM_DEVICE, name: "vmm:net_notified", fields: NET_QUEUE_FIELDS },
    Event { id: id::NET_RECEIVE, class: class::VMM_DEVICE, name: "vmm:net_receive", fields: PACKET_FIELDS },
    Event { id: id::NET_SEND, class: class::VMM_DEVICE, name: "vmm:net_send", fields: PACKET_FIELDS },
    Event { id: id::NET_INTERRUPT, class: class::VMM_DEVICE, name: "vmm:net_interrupt", fields: NET_QUEUE_FIELDS },
    Event {
        id: id::NET_THROTTLED,
        class: class::VMM_DEVICE,
        name: "vmm:net_throttled",
        fields: &[
            Field::new("net", FieldType::U32),
            Field::new("queue", FieldType::U8),
            Field::new("limit", TEXT_FIELD),
            Field::new("wait_ns", FieldType::U64),
        ],
    },
    Event {
        id: id::ENTROPY_REQUEST,
        class: class::VMM_DEVICE,
        name: "vmm:entropy_request",
        fields: &[Field::new("bytes", FieldType::U32)],
    },
    Event {
        id: id::NET_VHOST,
        class: class::VMM_DEVICE,
        name: "vmm:net_vhost",
        fields: &[Field::new("net", FieldType::U32), Field::new("moves", FieldType::U8)],
    },
    Event {
        id: id::VSOCK_BEGIN,
        class: class::VMM_DEVICE,
        name: "vmm:vsock_begin",
        fields: &[
            Field::new("connection", FieldType::U64),
            Field::new("guest_port", FieldType::U32),
            Field::new("host_port", FieldType::U32),
            Field::new("by", FieldType::U8),
        ],
    },
    Event {
        id: id::VSOCK_END,
        class: class::VMM_DEVICE,
        name: "vmm:vsock_end",
        fields: &[Field::new("connection", FieldType::U64), Field::new("how", FieldType::U8)],
    },
    Event { id: id::VSOCK_RECEIVE, class: class::VMM_DEVICE, name: "vmm:vsock_receive", fields: VSOCK_PACKET_FIELDS },
    Event { id: id::VSOCK_SEND, class: class::VMM_DEVICE, name: "vmm:vsock_send", fields: VSOCK_PACKET_FIELDS },
    Event {
        id: id::BALLOON_WANTED,
        class: class::VMM_DEVICE,
        name: "vmm:balloon_wanted",
        fields: &[Field::new("bytes", FieldType::U64)],
    },
    Event {
        id: id::BALLOON_REQUEST,
        class: class::VMM_DEVICE,
        name: "vmm:balloon_request",
        fields: &[
            Field::new("kind", TEXT_FIELD),
            Field::new("bytes", FieldType::U64),
            Field::new("refused", FieldType::U64),
            Field::new("ns", FieldType::U64),
        ],
    },
];

/// What becomes of the choice of the guest's events while it is recorded. Where it changes, events that come in pairs
/// may be alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestEvents {
    /// None is recorded from here on.
    Off,
    /// They are recorded again from here on.
    On,
    /// Others are recorded from here on.
    Changed,
}

/// Called on each vCPU's host thread with the vCPU's number and the kernel's thread id.
pub type VcpuThreadHook = Box<dyn Fn(u32, u32) + Send + Sync>;

/// Records the VMM's events; shared by all its threads.
pub struct VmmTracer {
    vcpu_rings: Vec<Producer<Smp>>,
    shared_ring: Producer<Smp>,
    memory: HostMemory,
    rings: Rings,
    enabled: [bool; EVENTS.len()],
    time: HostTime,
    on_vcpu_thread: VcpuThreadHook,
    disk_times: DiskTimes,
}

impl VmmTracer {
    /// A tracer for `vcpus` vCPU threads that records the events whose names `chosen` accepts, at times of
    /// `time`, into `rings` in `memory`, which is zeroed and nobody else's.
    ///
    /// # Panics
    /// When `memory` is smaller than [`memory_size`](Self::memory_size).
    #[must_use]
    pub fn new(
        vcpus: u32,
        rings: Rings,
        memory: HostMemory,
        time: HostTime,
        chosen: impl Fn(&str) -> bool,
        on_vcpu_thread: VcpuThreadHook,
    ) -> Self {
        let size = rings.ring_size();
        let ring = |index: usize| {
            let part = memory.part(index * size, size);
            // SAFETY: the part is one ring's size, zeroed, kept alive by `memory` beside the producers, and only this
            // tracer and the ring's consumer write there.
            unsafe { Producer::new(Smp::new(part.base()), rings.geometry, rings.mode) }
        };
        let vcpu_rings = (0..vcpus as usize).map(ring).collect();
        let shared_ring = ring(vcpus as usize);
        let mut enabled = [false; EVENTS.len()];
        for (enabled, event) in enabled.iter_mut().zip(EVENTS) {
            *enabled = chosen(event.name);
        }
        let disk_times = DiskTimes::default();
        Self { vcpu_rings, shared_ring, memory, rings, enabled, time, on_vcpu_thread, disk_times }
    }

    /// Bytes that the rings for `vcpus` vCPU threads take.
    #[must_use]
    pub const fn memory_size(vcpus: u32, rings: Rings) -> usize {
        (vcpus as usize + 1) * rings.ring_size()
    }

    /// Geometry and mode of its rings.
    #[must_use]
    pub const fn ring_set(&self) -> Rings {
        self.rings
    }

    /// Memory of each ring, by its number.
    pub fn rings(&self) -> impl Iterator<Item = HostMemory> + '_ {
        let size = self.rings.ring_size();
        (0..=self.vcpu_rings.len()).map(move |index| self.memory.part(index * size, size))
    }

    /// How long requests to the VM's disks have taken so far.
    #[must_use]
    pub fn disk_times(&self) -> Vec<LiveDisk> {
        self.disk_times.all()
    }

    /// Closes the current sub-buffer of every ring, so that what it holds can be delivered.
    pub fn flush(&self) {
        for ring in self.vcpu_rings.iter().chain([&self.shared_ring]) {
            ring.force_switch(|| self.time.now());
        }
    }

    /// Records that `vcpu`'s clock entry changed, as its `number`th update, and how wrong it can be from now on.
    pub fn clock_update(&self, vcpu: u32, number: u64, relation: &Relation, cause: Cause, bound_ns: u64) {
        let mut payload = Payload::<68>::default();
        payload.put(&vcpu.to_le_bytes());
        payload.put(&number.to_le_bytes());
        payload.put(&relation.hw_base.to_le_bytes());
        payload.put(&relation.trace_base.to_le_bytes());
        payload.put(&relation.mult.to_le_bytes());
        payload.put(&relation.shift.to_le_bytes());
        payload.put(&relation.hw_bits.to_le_bytes());
        payload.put(&padded_text(cause.name()));
        payload.put(&bound_ns.to_le_bytes());
        self.record(&self.shared_ring, id::CLOCK_UPDATE, payload.bytes());
    }

    /// Records that the choice of the guest's events changes.
    pub fn guest_events(&self, change: GuestEvents) {
        let what = match change {
            GuestEvents::Off => "events_off",
            GuestEvents::On => "events_on",
            GuestEvents::Changed => "events_changed",
        };
        self.record(&self.shared_ring, id::CONTROL, &padded_text(what));
    }

    /// Marks that the trigger `number`, from 1 on, has fired.
    pub fn triggered(&self, number: usize) {
        self.record(&self.shared_ring, id::CONTROL, &padded_text(&format!("trigger_{number}")));
    }

    fn vcpu_ring(&self, vcpu: u32) -> &Producer<Smp> {
        self.vcpu_rings.get(vcpu as usize).unwrap_or(&self.shared_ring)
    }

    #[inline]
    fn record(&self, ring: &Producer<Smp>, id: u16, payload: &[u8]) {
        // Ids count from 1 in the order of the table.
        if self.enabled[usize::from(id) - 1] {
            // A lost record is counted in its ring.
            let _ = ring.record(|| self.time.now(), id, payload);
        }
    }
}

/// The payload of [`NET_QUEUE_FIELDS`].
fn net_queue(net: u32, queue: NetQueue) -> [u8; 5] {
    let [a, b, c, d] = net.to_le_bytes();
    [a, b, c, d, queue as u8]
}

/// A payload being put together on the stack.
struct Payload<const SIZE: usize> {
    bytes: [u8; SIZE],
    used: usize,
}

impl<const SIZE: usize> Default for Payload<SIZE> {
    fn default() -> Self {
        Self { bytes: [0; SIZE], used: 0 }
    }
}

impl<const SIZE: usize> Payload<SIZE> {
    fn put(&mut self, value: &[u8]) {
        self.bytes[self.used..self.used + value.len()].copy_from_slice(value);
        self.used += value.len();
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }
}

/// `text` NUL-padded, cut where it is too long.
fn padded_text(text: &str) -> [u8; TEXT] {
    let mut padded = [0; TEXT];
    for (to, from) in padded.iter_mut().zip(text.bytes()) {
        *to = from;
    }
    padded
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Observer for VmmTracer {
    fn vcpu_thread_started(&self, vcpu: u32, tid: u32) {
        (self.on_vcpu_thread)(vcpu, tid);
        let mut payload = Payload::<8>::default();
        payload.put(&vcpu.to_le_bytes());
        payload.put(&recorded_thread_id(tid.cast_signed()).to_le_bytes());
        self.record(self.vcpu_ring(vcpu), id::VCPU_THREAD, payload.bytes());
    }

    fn vcpu_enter(&self, vcpu: u32) {
        self.record(self.vcpu_ring(vcpu), id::VCPU_ENTER, &vcpu.to_le_bytes());
    }

    fn vcpu_exit(&self, vcpu: u32, reason: u32) {
        let mut payload = Payload::<8>::default();
        payload.put(&vcpu.to_le_bytes());
        payload.put(&reason.to_le_bytes());
        self.record(self.vcpu_ring(vcpu), id::VCPU_EXIT, payload.bytes());
    }

    fn port_access(&self, vcpu: u32, port: u16, size: u8, write: bool, value: u32) {
        let mut payload = Payload::<12>::default();
        payload.put(&vcpu.to_le_bytes());
        payload.put(&port.to_le_bytes());
        payload.put(&[size, u8::from(write)]);
        payload.put(&value.to_le_bytes());
        self.record(self.vcpu_ring(vcpu), id::PORT_ACCESS, payload.bytes());
    }

    fn mmio_access(&self, vcpu: u32, address: u64, size: u8, write: bool, value: u64) {
        let mut payload = Payload::<22>::default();
        payload.put(&vcpu.to_le_bytes());
        payload.put(&address.to_le_bytes());
        payload.put(&[size, u8::from(write)]);
        payload.put(&value.to_le_bytes());
        self.record(self.vcpu_ring(vcpu), id::MMIO_ACCESS, payload.bytes());
    }

    fn block_request(&self, disk: u32, kind: BlockRequestKind, sector: u64, bytes: u32, done: bool) {
        self.disk_times.request(disk, kind, done);
        let kind = match kind {
            BlockRequestKind::Read => "read",
            BlockRequestKind::Write => "write",
            BlockRequestKind::Flush => "flush",
            BlockRequestKind::GetId => "get_id",
            BlockRequestKind::Other => "other",
        };
        let mut payload = Payload::<33>::default();
        payload.put(&disk.to_le_bytes());
        payload.put(&padded_text(kind));
        payload.put(&sector.to_le_bytes());
        payload.put(&bytes.to_le_bytes());
        payload.put(&[u8::from(done)]);
        self.record(&self.shared_ring, id::BLOCK_REQUEST, payload.bytes());
    }

    fn disk_notified(&self, disk: u32) {
        self.record(&self.shared_ring, id::DISK_NOTIFIED, &disk.to_le_bytes());
    }

    fn disk_interrupt(&self, disk: u32) {
        self.record(&self.shared_ring, id::DISK_INTERRUPT, &disk.to_le_bytes());
    }

    fn disk_throttled(&self, disk: u32, resource: Resource, wait: Duration) {
        let mut payload = Payload::<28>::default();
        payload.put(&disk.to_le_bytes());
        payload.put(&padded_text(resource.name()));
        payload.put(&nanoseconds(wait).to_le_bytes());
        self.record(&self.shared_ring, id::DISK_THROTTLED, payload.bytes());
    }

    fn net_notified(&self, device: u32, queue: NetQueue) {
        self.record(&self.shared_ring, id::NET_NOTIFIED, &net_queue(device, queue));
    }

    fn net_packet(&self, device: u32, queue: NetQueue, id: u64, bytes: u32, stage: PacketStage) {
        let event = match queue {
            NetQueue::Receive => id::NET_RECEIVE,
            NetQueue::Send => id::NET_SEND,
        };
        let mut payload = Payload::<17>::default();
        payload.put(&device.to_le_bytes());
        payload.put(&id.to_le_bytes());
        payload.put(&bytes.to_le_bytes());
        payload.put(&[stage as u8]);
        self.record(&self.shared_ring, event, payload.bytes());
    }

    fn net_interrupt(&self, device: u32, queue: NetQueue) {
        self.record(&self.shared_ring, id::NET_INTERRUPT, &net_queue(device, queue));
    }

    fn net_vhost(&self, device: u32, moves: bool) {
        let [a, b, c, d] = device.to_le_bytes();
        self.record(&self.shared_ring, id::NET_VHOST, &[a, b, c, d, u8::from(moves)]);
    }

    fn net_throttled(&self, device: u32, queue: NetQueue, resource: Resource, wait: Duration) {
        let mut payload = Payload::<29>::default();
        payload.put(&net_queue(device, queue));
        payload.put(&padded_text(resource.name()));
        payload.put(&nanoseconds(wait).to_le_bytes());
        self.record(&self.shared_ring, id::NET_THROTTLED, payload.bytes());
    }

    fn entropy_request(&self, bytes: u32) {
        self.record(&self.shared_ring, id::ENTROPY_REQUEST, &bytes.to_le_bytes());
    }

    fn vsock_begun(&self, id: u64, guest_port: u32, host_port: u32, by: VsockSide) {
        let mut payload = Payload::<17>::default();
        payload.put(&id.to_le_bytes());
        payload.put(&guest_port.to_le_bytes());
        payload.put(&host_port.to_le_bytes());
        payload.put(&[by as u8]);
        self.record(&self.shared_ring, id::VSOCK_BEGIN, payload.bytes());
    }

    fn vsock_ended(&self, id: u64, how: VsockEnd) {
        let mut payload = Payload::<9>::default();
        payload.put(&id.to_le_bytes());
        payload.put(&[how as u8]);
        self.record(&self.shared_ring, id::VSOCK_END, payload.bytes());
    }

    fn vsock_packet(
        &self,
        queue: VsockQueue,
        connection: u64,
        id: u64,
        operation: u16,
        bytes: u32,
        stage: PacketStage,
    ) {
        let event = match queue {
            VsockQueue::Receive => id::VSOCK_RECEIVE,
            VsockQueue::Send => id::VSOCK_SEND,
        };
        let mut payload = Payload::<23>::default();
        payload.put(&connection.to_le_bytes());
        payload.put(&id.to_le_bytes());
        payload.put(&operation.to_le_bytes());
        payload.put(&bytes.to_le_bytes());
        payload.put(&[stage as u8]);
        self.record(&self.shared_ring, event, payload.bytes());
    }

    fn balloon_wanted(&self, bytes: u64) {
        self.record(&self.shared_ring, id::BALLOON_WANTED, &bytes.to_le_bytes());
    }

    fn balloon_request(&self, kind: BalloonRequestKind, bytes: u64, refused: u64, took: Duration) {
        let kind = match kind {
            BalloonRequestKind::Inflate => "inflate",
            BalloonRequestKind::Deflate => "deflate",
            BalloonRequestKind::Report => "report",
        };
        let mut payload = Payload::<40>::default();
        payload.put(&padded_text(kind));
        payload.put(&bytes.to_le_bytes());
        payload.put(&refused.to_le_bytes());
        payload.put(&nanoseconds(took).to_le_bytes());
        self.record(&self.shared_ring, id::BALLOON_REQUEST, payload.bytes());
    }

    fn console_throttled(&self, wait: Duration) {
        self.record(&self.shared_ring, id::CONSOLE_THROTTLED, &nanoseconds(wait).to_le_bytes());
    }

    fn console_output(&self, bytes: u32) {
        self.record(&self.shared_ring, id::CONSOLE_OUTPUT, &bytes.to_le_bytes());
    }

    fn console_input(&self, bytes: u32) {
        self.record(&self.shared_ring, id::CONSOLE_INPUT, &bytes.to_le_bytes());
    }

    fn control(&self, event: ControlEvent) {
        let what = match event {
            ControlEvent::Started => "started",
            ControlEvent::StopRequested => "stop_requested",
            ControlEvent::GuestPanicked => "guest_panicked",
            ControlEvent::PoweredOff => "powered_off",
            ControlEvent::Rebooted => "rebooted",
            ControlEvent::Panicked => "panicked",
            ControlEvent::TripleFaulted => "triple_faulted",
            ControlEvent::EmulationFailed => "emulation_failed",
            ControlEvent::Stopped => "stopped",
            ControlEvent::Failed => "failed",
            ControlEvent::Paused => "paused",
            ControlEvent::Resumed => "resumed",
            ControlEvent::CrashKernelStarted => "crash_kernel",
            ControlEvent::NetworkEnded => "network_ended",
        };
        self.record(&self.shared_ring, id::CONTROL, &padded_text(what));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared_ring::consumer::Consumer;
    use shared_ring::event::EventDescription;
    use shared_ring::layout::{Geometry, Mode};

    fn rings() -> Rings {
        Rings { geometry: Geometry::new(4096, 2).unwrap(), mode: Mode::Discard }
    }

    fn tracer(chosen: impl Fn(&str) -> bool) -> VmmTracer {
        let memory = HostMemory::private(VmmTracer::memory_size(1, rings()));
        VmmTracer::new(1, rings(), memory, HostTime::Tsc, chosen, Box::new(|_, _| ()))
    }

    fn recorded(tracer: &VmmTracer, ring: usize) -> Vec<(u16, Vec<u8>)> {
        let memory = tracer.rings().nth(ring).unwrap();
        let rings = tracer.ring_set();
        let mut consumer = Consumer::new(memory, rings.geometry, rings.mode, 0);
        let events: Vec<EventDescription> = EVENTS.iter().map(EventDescription::from).collect();
        let mut packet = Vec::new();
        let delivered = consumer.poll_stopped(&mut packet).ready().unwrap();
        let known = |id: u16| events.iter().find(|event| event.id == id);
        let packet = delivered.accept([0; 16], u64::MAX, known).unwrap();
        assert_eq!(packet.header().rejected_bytes, 0);
        packet.records().map(|record| (record.id, record.payload.to_vec())).collect()
    }

    #[test]
    fn ids_count_from_one_in_the_order_of_the_table() {
        assert!(EVENTS.iter().zip(1..).all(|(event, id)| event.id == id));
    }

    #[test]
    fn every_event_is_what_its_description_says() {
        let tracer = tracer(|_| true);
        tracer.vcpu_thread_started(0, 99);
        tracer.vcpu_enter(0);
        tracer.vcpu_exit(0, 2);
        tracer.port_access(0, 0x3f8, 1, true, 65);
        tracer.mmio_access(0, 0xd000_0000, 4, false, 1);
        tracer.block_request(0, BlockRequestKind::Flush, 8, 512, true);
        tracer.console_output(10);
        tracer.console_input(2);
        tracer.control(ControlEvent::EmulationFailed);
        tracer.guest_events(GuestEvents::Changed);
        tracer.clock_update(0, 1, &Relation::IDENTITY, Cause::FrequencyChange, 7);
        tracer.disk_notified(2);
        tracer.disk_interrupt(2);
        tracer.disk_throttled(2, Resource::Bytes, Duration::from_millis(3));
        tracer.console_throttled(Duration::from_millis(10));
        tracer.net_notified(1, NetQueue::Receive);
        tracer.net_packet(1, NetQueue::Receive, 1, 60, PacketStage::Taken);
        tracer.net_packet(1, NetQueue::Send, 1, 60, PacketStage::Dropped);
        tracer.net_interrupt(1, NetQueue::Receive);
        tracer.net_throttled(1, NetQueue::Send, Resource::Packets, Duration::from_millis(3));
        tracer.entropy_request(64);
        tracer.net_vhost(1, true);
        tracer.vsock_begun(1, 22, 1 << 30, VsockSide::Host);
        tracer.vsock_packet(VsockQueue::Receive, 1, 1, 1, 0, PacketStage::Done);
        tracer.vsock_packet(VsockQueue::Send, 1, 1, 5, 60, PacketStage::Taken);
        tracer.vsock_ended(1, VsockEnd::Refused);
        tracer.balloon_wanted(64 << 20);
        tracer.balloon_request(BalloonRequestKind::Inflate, 1 << 20, 1, Duration::from_micros(70));

        let of_vcpu: Vec<u16> = recorded(&tracer, 0).into_iter().map(|(id, _)| id).collect();
        let of_others: Vec<u16> = recorded(&tracer, 1).into_iter().map(|(id, _)| id).collect();

        assert_eq!(of_vcpu, [1, 2, 3, 4, 5]);
        assert_eq!(of_others, [6, 7, 8, 9, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 24, 25, 23, 26, 27]);
    }

    #[test]
    fn event_that_is_not_chosen_is_not_recorded() {
        let tracer = tracer(|name| name == "vmm:vcpu_exit");
        tracer.vcpu_enter(0);
        tracer.vcpu_exit(0, 5);

        assert_eq!(recorded(&tracer, 0), [(3, vec![0, 0, 0, 0, 5, 0, 0, 0])]);
    }

    #[test]
    fn flushed_ring_delivers_what_it_holds() {
        let tracer = tracer(|_| true);
        tracer.vcpu_enter(0);
        let mut consumer = Consumer::new(tracer.rings().next().unwrap(), rings().geometry, Mode::Discard, 0);

        let was_empty = consumer.poll(&mut Vec::new()).is_empty();
        tracer.flush();

        assert!(was_empty && consumer.poll(&mut Vec::new()).is_ready());
    }
}
