//! What happens in the machine, for whoever records it.

use std::time::Duration;
use strata_rate_limit::Resource;

/// Kinds of block requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BlockRequestKind {
    /// From the disk into guest memory.
    Read = 0,
    /// From guest memory to the disk.
    Write = 1,
    /// Make everything written durable.
    Flush = 2,
    /// The disk's identification.
    GetId = 3,
    /// Anything else; answered as unsupported.
    Other = 4,
}

/// The queues of a network device, with their virtio numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum NetQueue {
    /// From the host to the guest.
    Receive = 0,
    /// From the guest to the host.
    Send = 1,
}

/// How far a packet has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PacketStage {
    /// Taken: out of the guest's queue, or from the host.
    Taken = 0,
    /// Handed over: to the host, or in the guest's buffers.
    Done = 1,
    /// Lost: the host has no room or refuses it, or the guest's buffer is too small.
    Dropped = 2,
}

/// The queues of a socket device, with their virtio numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum VsockQueue {
    /// From the host to the guest.
    Receive = 0,
    /// From the guest to the host.
    Send = 1,
}

/// Who asked for a connection of a socket device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum VsockSide {
    /// A program of the host.
    Host = 0,
    /// The guest.
    Guest = 1,
}

/// How a connection of a socket device ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum VsockEnd {
    /// One side closed it.
    Closed = 0,
    /// The guest did not accept it.
    Refused = 1,
    /// It was broken off: by the guest, by a packet that has no place in it, or by a reset of the device.
    Reset = 2,
}

/// What a guest asks its balloon for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BalloonRequestKind {
    /// To take pages that the guest does without from now on.
    Inflate,
    /// To have them again.
    Deflate,
    /// To take what pages hold that are free: the guest may use them again at any moment.
    Report,
}

/// Events that concern the machine as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ControlEvent {
    /// All vCPU threads are there and enter the guest now.
    Started = 0,
    /// The host asked the machine to stop.
    StopRequested = 1,
    /// The guest said that its kernel panicked; it still runs.
    GuestPanicked = 2,
    /// Ended: the guest powered off.
    PoweredOff = 3,
    /// Ended: the guest asked for a reset.
    Rebooted = 4,
    /// Ended: the guest's kernel panicked.
    Panicked = 5,
    /// Ended: triple fault.
    TripleFaulted = 6,
    /// Ended: KVM met an instruction that it could not run.
    EmulationFailed = 7,
    /// Ended: the host stopped it.
    Stopped = 8,
    /// Ended: a vCPU or a device failed.
    Failed = 9,
    /// All vCPUs are out of the guest and stay out.
    Paused = 10,
    /// The vCPUs enter the guest again.
    Resumed = 11,
    /// The guest's kernel, which has said that it panicked, is left for its crash kernel.
    CrashKernelStarted = 12,
    /// What carried the packets of a network device on the host has ended, and the guest's network with it.
    NetworkEnded = 13,
}

/// Receives the events of a machine, on the thread on which each happens.
///
/// Every method has an empty default. The vCPU methods are on the path of each exit: implementations must be
/// cheap and must not block.
pub trait Observer: Send + Sync {
    /// On the vCPU's own thread, before its first entry. `tid` is the kernel's thread identifier.
    fn vcpu_thread_started(&self, vcpu: u32, tid: u32) {
        let _ = (vcpu, tid);
    }
    /// Just before the vCPU is entered (`KVM_RUN`).
    fn vcpu_enter(&self, vcpu: u32) {
        let _ = vcpu;
    }
    /// Just after `KVM_RUN` returned, with KVM's exit reason (`KVM_EXIT_*`).
    fn vcpu_exit(&self, vcpu: u32, reason: u32) {
        let _ = (vcpu, reason);
    }
    /// A port was accessed. `size` in bytes; `value` is what was written, or what the guest reads.
    fn port_access(&self, vcpu: u32, port: u16, size: u8, write: bool, value: u32) {
        let _ = (vcpu, port, size, write, value);
    }
    /// Memory without RAM behind it was accessed, or a read-only slot was written. `size` in bytes.
    fn mmio_access(&self, vcpu: u32, address: u64, size: u8, write: bool, value: u64) {
        let _ = (vcpu, address, size, write, value);
    }
    /// A block request begins (`done` false) or has been answered (`done` true). `sector` counts 512 bytes.
    fn block_request(&self, disk: u32, kind: BlockRequestKind, sector: u64, bytes: u32, done: bool) {
        let _ = (disk, kind, sector, bytes, done);
    }
    /// The guest's notification of a disk's queue is being served.
    fn disk_notified(&self, disk: u32) {
        let _ = disk;
    }
    /// Requests of a disk have been answered, and the guest is about to be interrupted for them.
    fn disk_interrupt(&self, disk: u32) {
        let _ = disk;
    }
    /// A request of a disk waits for a limit of the disk, from now on and for so long.
    fn disk_throttled(&self, disk: u32, resource: Resource, wait: Duration) {
        let _ = (disk, resource, wait);
    }
    /// A queue of a network device is being served: the guest has notified it, or the host has packets or room for
    /// them.
    fn net_notified(&self, device: u32, queue: NetQueue) {
        let _ = (device, queue);
    }
    /// The packet `id` of a network device's queue, counted from 1 on, has come to `stage`. Its frame has `bytes`, the
    /// virtio header not included.
    fn net_packet(&self, device: u32, queue: NetQueue, id: u64, bytes: u32, stage: PacketStage) {
        let _ = (device, queue, id, bytes, stage);
    }
    /// Buffers of a network device's queue have been given back, and the guest is about to be interrupted for them.
    fn net_interrupt(&self, device: u32, queue: NetQueue) {
        let _ = (device, queue);
    }
    /// A packet of a network device's queue waits for a limit of the device, from now on and for so long.
    fn net_throttled(&self, device: u32, queue: NetQueue, resource: Resource, wait: Duration) {
        let _ = (device, queue, resource, wait);
    }
    /// From now on the host's kernel moves the packets of a network device, or nobody does any more.
    fn net_vhost(&self, device: u32, moves: bool) {
        let _ = (device, moves);
    }
    /// The guest asked for random bytes and has got so many.
    fn entropy_request(&self, bytes: u32) {
        let _ = bytes;
    }
    /// What the guest wrote to its console waits for the console's limit, from now on and for so long.
    fn console_throttled(&self, wait: Duration) {
        let _ = wait;
    }
    /// The connection `id` of the socket device, counted from 1 on, begins: `by` asks for it.
    fn vsock_begun(&self, id: u64, guest_port: u32, host_port: u32, by: VsockSide) {
        let _ = (id, guest_port, host_port, by);
    }
    /// The connection `id` of the socket device is over.
    fn vsock_ended(&self, id: u64, how: VsockEnd) {
        let _ = (id, how);
    }
    /// The packet `id` of a queue of the socket device, counted from 1 on, has come to `stage`. It carries `bytes` for
    /// the `connection` of this id, 0 where there is none or it is not known yet; `operation` is virtio's number.
    fn vsock_packet(
        &self,
        queue: VsockQueue,
        connection: u64,
        id: u64,
        operation: u16,
        bytes: u32,
        stage: PacketStage,
    ) {
        let _ = (queue, connection, id, operation, bytes, stage);
    }
    /// The host wants so many bytes of memory back from now on.
    fn balloon_wanted(&self, bytes: u64) {
        let _ = bytes;
    }
    /// A request of the guest's to its balloon was served, which took so long. It was about so many bytes; `refused`
    /// pages of 4096 bytes were named and left alone.
    fn balloon_request(&self, kind: BalloonRequestKind, bytes: u64, refused: u64, took: Duration) {
        let _ = (kind, bytes, refused, took);
    }
    /// The guest wrote to its console.
    fn console_output(&self, bytes: u32) {
        let _ = bytes;
    }
    /// Input was put into the guest's console.
    fn console_input(&self, bytes: u32) {
        let _ = bytes;
    }
    /// Something happened to the machine as a whole.
    fn control(&self, event: ControlEvent) {
        let _ = event;
    }
}

/// Observes nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {}
