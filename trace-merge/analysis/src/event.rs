//! The event vocabulary: the only place that knows the names of tracepoints and of their fields.
//!
//! A record of any layer becomes an [`Event`], or none where no analysis asks for it. What most analyses never look at
//! (addresses of a stack, arguments of a system call) stays in the record until it is requested.

pub mod address;
mod decode;
mod fields;
pub mod named;
pub mod runner;

pub use decode::{Decoder, EventReader};

use crate::exit_reason::ExitReason;
use std::borrow::Cow;
use strata_recording::layer::LayerKind;
use strata_recording::reader::{StreamRecord, TraceLayer};
use strata_recording::schema::{Elements, Value};

/// Bytes of a page of device memory.
const PAGE: u64 = 4096;

/// Names of tracepoints for which layers are searched.
pub mod name {
    /// A block device has completed a request.
    pub const BLOCK_COMPLETE: &str = "block:block_rq_complete";
    /// A request is given to a block device.
    pub const BLOCK_ISSUE: &str = "block:block_rq_issue";
    /// Waiting for a lock of the kernel begins.
    pub const CONTENTION_BEGIN: &str = "lock:contention_begin";
    /// The VMM carried out a request.
    pub const CONTROL: &str = "vmm:control";
    /// The VMM raises a disk's interrupt.
    pub const DISK_INTERRUPT: &str = "vmm:disk_interrupt";
    /// The VMM begins or finishes a disk's request.
    pub const DISK_REQUEST: &str = "vmm:block_request";
    /// A network device's driver gets a packet to send.
    pub const PACKET_GIVEN: &str = "net:net_dev_start_xmit";
    /// A packet is to be sent by a network device.
    pub const PACKET_QUEUED: &str = "net:net_dev_queue";
    /// A network device's driver has received a packet.
    pub const PACKET_RECEIVED: &str = "net:napi_gro_receive_entry";
    /// The kernel's protocols get a packet.
    pub const PACKET_PASSED_UP: &str = "net:netif_receive_skb";
    /// The VMM takes a packet that the guest receives, or is done with it.
    pub const NET_RECEIVE: &str = "vmm:net_receive";
    /// The VMM takes a packet that the guest sends, or is done with it.
    pub const NET_SEND: &str = "vmm:net_send";
    /// KVM returns to the VMM.
    pub const KVM_USERSPACE_EXIT: &str = "kvm:kvm_userspace_exit";
    /// A CPU of a guest records no more for the time being.
    pub use strata_recording::schema::RECORDING_STOPS;
    /// A task has another name.
    pub const RENAME: &str = "task:task_rename";
    /// A sample of what a CPU ran.
    pub const SAMPLE: &str = "strata:sample";
    /// A CPU switches tasks.
    pub const SWITCH: &str = "sched:sched_switch";
    /// A symbol of the guest's kernel.
    pub const SYMBOL: &str = "strata:symbol";
    /// A task of a guest exists.
    pub const TASK: &str = "strata:task";
    /// A task enters a system call.
    pub const SYSCALL_ENTER: &str = "raw_syscalls:sys_enter";
}

/// What a record says.
#[derive(Clone, Copy, Debug)]
pub enum Event<'t> {
    /// A CPU switches tasks (`sched:sched_switch`).
    Switch {
        /// The task that ran.
        prev: Task<'t>,
        /// What became of it: 0 and bits from 0x100 on when it is still ready to run, as the tracepoint shows it.
        prev_state: u64,
        /// The task that runs.
        next: Task<'t>,
    },
    /// A task is about to be woken (`sched:sched_waking`), was (`sched:sched_wakeup`) or is new
    /// (`sched:sched_wakeup_new`).
    Wakeup {
        /// The task.
        task: Task<'t>,
        /// The CPU in whose queue it waits.
        cpu: Option<u32>,
        /// Which of the three events.
        stage: WakeupStage,
    },
    /// A task is moved to another CPU (`sched:sched_migrate_task`).
    Migrate {
        /// Thread id.
        tid: Tid,
        /// The CPU.
        cpu: u32,
    },
    /// A task is made (`sched:sched_process_fork`).
    Fork {
        /// Who makes it; `None` where the event does not say it.
        parent: Option<Tid>,
        /// The new task.
        child: Task<'t>,
    },
    /// A task is made, with the flags of `clone(2)` (`task:task_newtask`).
    NewTask {
        /// The new task.
        tid: Tid,
        /// The flags.
        clone_flags: u64,
    },
    /// A task has another name from now on (`task:task_rename`).
    Rename(Rename<'t>),
    /// A task runs another program (`sched:sched_process_exec`).
    Exec {
        /// The task; `None` where the event does not say it.
        tid: Option<Tid>,
        /// Its thread id before: that of another thread of its process, where not the first one calls `execve(2)`.
        old_tid: Option<Tid>,
        /// Path of the program.
        file: &'t [u8],
    },
    /// The current task ends (`sched:sched_process_exit`).
    ProcessExit,
    /// A vCPU enters the guest (`kvm:kvm_entry`).
    KvmEntry {
        /// The host thread; -1 where the event does not say it.
        tid: Tid,
        /// The vCPU, where the event says it.
        vcpu: Option<u32>,
    },
    /// A vCPU leaves the guest (`kvm:kvm_exit`).
    KvmExit {
        /// The host thread; -1 where the event does not say it.
        tid: Tid,
        /// The vCPU, where the event says it.
        vcpu: Option<u32>,
        /// Why.
        reason: ExitReason,
    },
    /// KVM returns to the VMM (`kvm:kvm_userspace_exit`).
    KvmUserspaceExit {
        /// The host thread.
        tid: Tid,
    },
    /// KVM's local APIC takes an interrupt for a vCPU (`kvm:kvm_apic_accept_irq`).
    KvmAcceptIrq {
        /// The host thread that brings it.
        tid: Option<Tid>,
        /// The vCPU's APIC id.
        apic_id: u32,
        /// The vector.
        vector: i64,
    },
    /// KVM injects an interrupt into a vCPU (`kvm:kvm_inj_virq`).
    KvmInject {
        /// The vCPU's host thread.
        tid: Option<Tid>,
        /// The vector.
        vector: i64,
        /// Whether the same interrupt was injected before, and the guest left before it could handle it.
        again: bool,
        /// Whether the guest raised it itself (`int n`).
        soft: bool,
    },
    /// A vCPU accesses device memory (`kvm:kvm_mmio`, `kvm:kvm_fast_mmio`).
    KvmMmio {
        /// The vCPU's host thread.
        tid: Option<Tid>,
        /// Guest-physical address.
        address: u64,
        /// Whether it writes.
        is_write: bool,
        /// What it writes; `None` where the event does not say it.
        value: Option<u64>,
    },
    /// KVM handles what a vCPU does with something else (`kvm:kvm_msr`, `kvm:kvm_cpuid`, `kvm:kvm_pio`).
    KvmAccess {
        /// The vCPU's host thread.
        tid: Option<Tid>,
        /// What it does.
        access: KvmAccess,
    },
    /// A vCPU gets its host thread (`vmm:vcpu_thread`).
    VcpuThread {
        /// The vCPU.
        vcpu: u32,
        /// The host thread.
        tid: Tid,
    },
    /// The VMM calls `KVM_RUN` (`vmm:vcpu_enter`).
    VmmEnter {
        /// The vCPU.
        vcpu: u32,
    },
    /// `KVM_RUN` returned (`vmm:vcpu_exit`).
    VmmExit {
        /// The vCPU.
        vcpu: u32,
        /// Why.
        reason: ExitReason,
    },
    /// The VMM's device model is accessed (`vmm:port_access`, `vmm:mmio_access`).
    Access {
        /// The vCPU.
        vcpu: u32,
        /// Where.
        access: Access,
    },
    /// The guest notifies the VMM that a disk has requests (`vmm:disk_notified`).
    DiskNotified {
        /// The disk.
        disk: u32,
    },
    /// The VMM begins or finishes a disk's request (`vmm:block_request`).
    DiskRequest {
        /// The disk.
        disk: u32,
        /// Whether it finishes.
        is_done: bool,
        /// `read`, `write`, `flush` or another kind.
        kind: &'t [u8],
        /// First sector.
        sector: u64,
        /// Length.
        bytes: u64,
    },
    /// The VMM raises a disk's interrupt (`vmm:disk_interrupt`).
    DiskInterrupt {
        /// The disk.
        disk: u32,
    },
    /// The VMM begins to serve a queue of a network device (`vmm:net_notified`).
    NetNotified {
        /// The device.
        net: u32,
        /// 0: what the guest receives; 1: what it sends.
        queue: u32,
    },
    /// The VMM takes a packet of a network device, or is done with it (`vmm:net_send`, `vmm:net_receive`).
    NetPacket {
        /// The device.
        net: u32,
        /// Whether the guest receives it.
        is_received: bool,
        /// Number of the packet of that device and direction.
        id: u64,
        /// Bytes of its frame.
        bytes: u64,
        /// How far it is.
        progress: PacketProgress,
    },
    /// The VMM raises the interrupt of a network device (`vmm:net_interrupt`).
    NetInterrupt {
        /// The device.
        net: u32,
        /// Its queue, as above.
        queue: u32,
    },
    /// The host's kernel moves the packets of a network device from now on, or no more (`vmm:net_vhost`).
    NetVhost {
        /// The device.
        net: u32,
        /// Whether it moves them.
        moves: bool,
    },
    /// A kernel's network device has a packet (`net:*`).
    Packet(NetworkPacket<'t>),
    /// The VMM carried out a request at run time (`vmm:control`).
    Control {
        /// What: `events_…` where the choice of events changed.
        what: &'t [u8],
    },
    /// The current task enters a system call (`raw_syscalls:sys_enter`).
    SyscallEnter {
        /// Its number, as [`names::syscall`](crate::names::syscall) has it.
        number: i64,
        /// Its arguments.
        arguments: Arguments<'t>,
    },
    /// The current task leaves a system call (`raw_syscalls:sys_exit`).
    SyscallExit {
        /// Its number, as above; -1 for the return of a new task, and where the event does not say it.
        number: i64,
        /// What it returns.
        result: i64,
    },
    /// A page fault begins.
    PageFault {
        /// Whether it is one of user level (`exceptions:page_fault_user`) or of the kernel
        /// (`exceptions:page_fault_kernel`).
        is_user: bool,
    },
    /// A CPU enters an interrupt's handler.
    InterruptEnter(Interrupt),
    /// A CPU leaves an interrupt's handler.
    InterruptExit(Interrupt),
    /// The current task, or an interrupt on top of it, begins to wait for a lock of the kernel
    /// (`lock:contention_begin`).
    ContentionBegin {
        /// Address of the lock; `None` where the event does not say it.
        lock: Option<u64>,
        /// What kind of lock it is: `LCB_F_*`.
        flags: u64,
    },
    /// The lock is taken, or waiting for it was given up (`lock:contention_end`).
    ContentionEnd {
        /// Address of the lock; `None` where the event does not say it.
        lock: Option<u64>,
    },
    /// Who called what the record before this one of the CPU tells (`strata:stack`); see [`stack`].
    Stack,
    /// A sample of what a CPU ran (`strata:sample`); see [`stack`].
    Sample {
        /// Process, as the kernel names it.
        process: Option<Tid>,
        /// Thread.
        thread: Option<Tid>,
        /// Address that it ran at.
        address: Option<u64>,
        /// Whether it ran at user level.
        is_user: bool,
    },
    /// The CPU records no more, up to its next record (`strata:recording_stops`): a gap follows.
    RecordingStops {
        /// Whether it goes offline; otherwise the agent is unloaded.
        is_offline: bool,
    },
    /// A task exists, or was made as what its maker is not (`strata:task`).
    TaskFound(FoundTask),
    /// A cgroup of the default hierarchy exists or is made (`strata:cgroup`, `cgroup:cgroup_mkdir`).
    Cgroup {
        /// Its id.
        id: u64,
        /// Its path in the hierarchy.
        path: &'t [u8],
    },
    /// A task is moved to another cgroup of the default hierarchy (`cgroup:cgroup_attach_task`); with the first thread
    /// of a process, all of the process is.
    CgroupAttach {
        /// The task.
        tid: Tid,
        /// The cgroup's id.
        id: u64,
        /// The cgroup's path.
        path: &'t [u8],
    },
    /// A process's mapping of a file (`strata:mapping`); see [`Mapping::of`].
    Mapping,
    /// A request is given to a block device (`block:block_rq_issue`).
    BlockIssue(BlockRequest<'t>),
    /// A block device has completed a request (`block:block_rq_complete`).
    BlockComplete(BlockRequest<'t>),
}

/// Thread id; 0 for a CPU's idle task. In a guest: in its initial namespace.
pub type Tid = i32;

/// A task as an event names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task<'t> {
    /// Thread id; 0 for a CPU's idle task.
    pub tid: Tid,
    /// Its name; empty where the event does not say it.
    pub comm: &'t [u8],
}

/// A task gets another name: it gives itself one, runs another program, or gets it from who made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rename<'t> {
    /// Thread id; `None` where the event does not say it, as of some kernels from 6.18 on.
    pub tid: Option<Tid>,
    /// Its name before.
    pub before: &'t [u8],
    /// Its name from now on.
    pub after: &'t [u8],
}

impl Rename<'_> {
    /// Whether it is the name of `task`, which runs where it was recorded and is called as it was before. A kernel that
    /// leaves the thread id away does so, too, when a task names another one, that it has made.
    #[must_use]
    pub fn begins_with(&self, task: Task<'_>) -> bool {
        self.tid.map_or(self.before == task.comm, |tid| tid == task.tid)
    }

    /// The same of a `task` that is called as it was afterwards.
    #[must_use]
    pub fn ends_with(&self, task: Task<'_>) -> bool {
        self.tid.map_or(self.after == task.comm, |tid| tid == task.tid)
    }
}

/// A task as `strata:task` describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundTask {
    /// Thread id.
    pub tid: Tid,
    /// Process.
    pub process: Tid,
    /// Thread id in its own pid namespace.
    pub own_tid: Tid,
    /// Process in its own pid namespace.
    pub own_process: Tid,
    /// How deep its pid namespace lies; 0 for the initial one.
    pub level: u32,
    /// Its pid namespace.
    pub namespace: u32,
    /// Id of its cgroup in the default hierarchy; `None` where the kernel has no cgroups.
    pub cgroup: Option<u64>,
    /// Whether it is being made now.
    pub is_new: bool,
}

/// How far a wake-up is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeupStage {
    /// It begins, on the CPU that wakes (`sched:sched_waking`).
    Waking,
    /// The task is in its queue (`sched:sched_wakeup`).
    Wakeup,
    /// A new task is in its queue (`sched:sched_wakeup_new`).
    New,
}

/// What a vCPU accessed in the VMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// An I/O port.
    Port(u16),
    /// A page of device memory: its guest-physical address.
    Page(u64),
}

/// What a vCPU does that KVM handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KvmAccess {
    /// A model-specific register, by its number.
    Msr {
        /// Which.
        register: u32,
        /// Whether it writes.
        is_write: bool,
    },
    /// A leaf of CPUID.
    Cpuid {
        /// Which.
        leaf: u32,
    },
    /// An I/O port.
    Port {
        /// Which.
        port: u16,
        /// Whether it writes.
        is_write: bool,
    },
    /// A page of memory that is not RAM: its guest-physical address.
    Page {
        /// Which.
        address: u64,
        /// Whether it writes.
        is_write: bool,
    },
}

impl KvmAccess {
    /// Of `event`, the vCPU's host thread and what it does.
    #[must_use]
    pub fn of(event: &Event<'_>) -> Option<(Option<Tid>, Self)> {
        match *event {
            Event::KvmAccess { tid, access } => Some((tid, access)),
            Event::KvmMmio { tid, address, is_write, .. } => {
                Some((tid, Self::Page { address: address - address % PAGE, is_write }))
            }
            _ => None,
        }
    }
}

/// What interrupts a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Interrupt {
    /// A device's interrupt, by its number (`irq:irq_handler_entry`).
    Irq(i32),
    /// A soft interrupt, by its vector (`irq:softirq_entry`).
    Softirq(i32),
    /// An interrupt of the system itself, by its vector (`irq_vectors:*_entry`).
    Vector(i32),
}

/// A request to a block device, as `block:block_rq_*` say it.
#[derive(Clone, Copy, Debug)]
pub struct BlockRequest<'t> {
    /// The thread that records it, on the host.
    pub thread: Option<Tid>,
    /// The kernel's device number; `None` where the event does not say it.
    pub device: Option<u64>,
    /// First sector, of 512 bytes.
    pub sector: Option<u64>,
    /// Number of sectors.
    pub sectors: Option<u64>,
    /// What it is, in the letters of `rwbs`; `None` where the event does not say it.
    pub flags: Option<&'t [u8]>,
}

/// How far the VMM is with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketProgress {
    /// Taken.
    Taken,
    /// Handed on.
    Done,
    /// Lost.
    Dropped,
}

/// Where in a kernel a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketPlace {
    /// It is to be sent (`net:net_dev_queue`).
    Queued,
    /// The device's driver gets it (`net:net_dev_start_xmit`).
    Given,
    /// The driver has taken it or not (`net:net_dev_xmit`).
    Answered,
    /// The driver has received it (`net:napi_gro_receive_entry`).
    Received,
    /// The kernel's protocols get it (`net:netif_receive_skb`).
    PassedUp,
    /// It is left to a soft interrupt (`net:netif_rx`).
    Left,
}

/// A packet, as `net:*` say it.
#[derive(Clone, Copy, Debug)]
pub struct NetworkPacket<'t> {
    /// Where it is.
    pub place: PacketPlace,
    /// Name of the network device.
    pub device: &'t [u8],
    /// Address of the kernel's structure for it, as long as it has it.
    pub skb: u64,
    /// Bytes: of a packet that is sent those of the frame, of one that is received those behind the Ethernet header.
    pub bytes: u64,
    /// Whether the driver did not take it (`rc` other than 0).
    pub is_refused: bool,
}

/// Arguments of a system call: read when they are requested.
#[derive(Clone, Copy, Debug)]
pub struct Arguments<'t>(StreamRecord<'t>);

impl<'t> Arguments<'t> {
    /// All of them; `None` where the event does not say them.
    #[must_use]
    pub fn all(&self) -> Option<Elements<'t>> {
        match self.0.value("args")? {
            Value::Array(arguments) => Some(arguments),
            _ => None,
        }
    }

    /// Argument `index`, from 0 on.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<u64> {
        self.all()?.get(index)
    }
}

/// A process's mapping of a file, of a [`Event::Mapping`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping<'t> {
    /// The process.
    pub process: Tid,
    /// First address.
    pub begin: u64,
    /// First address after it.
    pub end: u64,
    /// Offset of `begin` in the file, bytes.
    pub offset: u64,
    /// Path of the file in the guest.
    pub file: Cow<'t, str>,
}

impl<'t> Mapping<'t> {
    /// What the record of an [`Event::Mapping`] says; `None` where it lacks a field.
    #[must_use]
    pub fn of(record: &StreamRecord<'t>) -> Option<Self> {
        Some(Self {
            process: Tid::try_from(record.number("pid")?).ok()?,
            begin: record.unsigned("begin")?,
            end: record.unsigned("end")?,
            offset: record.unsigned("offset").unwrap_or(0),
            file: record.text("path").unwrap_or_default(),
        })
    }
}

/// A symbol of the guest's kernel (`strata:symbol`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol<'t> {
    /// First address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Its name, and its module in brackets behind it where there is one.
    pub label: Cow<'t, str>,
}

impl<'t> Symbol<'t> {
    /// What `record` says of a symbol; `None` for another event, and where it lacks a field.
    #[must_use]
    pub fn of(record: &StreamRecord<'t>) -> Option<Self> {
        if record.schema.name() != name::SYMBOL {
            return None;
        }
        let (address, size) = (record.unsigned("begin")?, record.unsigned("size")?);
        Some(Self { address, size, label: record.text("name")? })
    }
}

/// The addresses of the stack in a [`Event::Stack`], [`Event::Sample`] or [`Event::ContentionBegin`], innermost first.
#[must_use]
pub fn stack(record: &StreamRecord<'_>) -> Vec<u64> {
    match record.value("stack") {
        Some(Value::Array(addresses)) => (0..addresses.len()).filter_map(|index| addresses.get(index)).collect(),
        _ => Vec::new(),
    }
}

/// First vector of the kernel's own (timer, messages between CPUs): those below belong to devices.
pub const FIRST_SYSTEM_VECTOR: i64 = 0xec;

/// Name of the handler in the record of an [`Event::InterruptEnter`] of an [`Interrupt::Irq`].
#[must_use]
pub fn handler_name<'t>(record: &StreamRecord<'t>) -> Option<Cow<'t, str>> {
    record.text("name")
}

/// Priority of the task that runs from now on, in the record of an [`Event::Switch`], as the kernel counts: up to 99 of
/// real time, then 100 to 139 for nice values from -20 to 19.
#[must_use]
pub fn next_priority(record: &StreamRecord<'_>) -> Option<i64> {
    record.number("next_prio")
}

/// Address of the instruction that the guest was at, in the record of an [`Event::KvmExit`].
#[must_use]
pub fn guest_instruction(record: &StreamRecord<'_>) -> Option<u64> {
    record.unsigned("guest_rip")
}

/// What the handler said in the record of an [`Event::InterruptExit`] of an [`Interrupt::Irq`]: `irqreturn_t`.
#[must_use]
pub fn handler_result(record: &StreamRecord<'_>) -> Option<i64> {
    record.number("ret")
}

/// What `irq_vectors:NAME_entry` and `irq_vectors:NAME_exit` are about, and whether it is the entry.
#[must_use]
pub fn vector_name(event: &str) -> Option<(&str, bool)> {
    let event = event.strip_prefix("irq_vectors:")?;
    match event.strip_suffix("_entry") {
        Some(name) => Some((name, true)),
        None => Some((event.strip_suffix("_exit")?, false)),
    }
}

/// Whether `layer` can hold the event called `name`.
#[must_use]
pub fn is_recorded(layer: &TraceLayer, name: &str) -> bool {
    layer.schemas.iter().any(|schema| schema.name() == name)
}

/// Whether `layer` is a host kernel's that can hold KVM's events and no others.
#[must_use]
pub fn is_of_kvm_only(layer: &TraceLayer) -> bool {
    let mut schemas = layer.schemas.iter().peekable();
    let is_host = layer.description.kind == LayerKind::HostKernel;
    is_host && schemas.peek().is_some() && schemas.all(|schema| is_kvms(schema.name()))
}

/// Whether the host kernel's event `name` is KVM's: a guest causes them as often as it likes.
#[must_use]
pub fn is_kvms(name: &str) -> bool {
    name.starts_with("kvm:")
}

/// Whether `layer` can hold the events of vCPUs entering and leaving the guest: KVM's, or the VMM's.
#[must_use]
pub fn is_about_vcpus(layer: &TraceLayer) -> bool {
    let names = match layer.description.kind {
        LayerKind::HostKernel => ["kvm:kvm_entry", "kvm:kvm_exit"],
        LayerKind::Vmm => ["vmm:vcpu_enter", "vmm:vcpu_exit"],
        LayerKind::GuestKernel | LayerKind::GuestUser => return false,
    };
    names.iter().all(|name| is_recorded(layer, name))
}

#[cfg(test)]
pub(crate) mod tests;
