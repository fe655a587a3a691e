//! The event vocabulary: the only place that knows the names of tracepoints and of their fields.
//!
//! A record of any layer becomes an [`Event`], or none where no analysis asks for it. What most analyses never look at
//! (addresses of a stack, arguments of a system call) stays in the record until it is asked for.

use crate::exit_reason::{ExitNumbering, ExitReason};
use crate::manifest::LayerKind;
use crate::merge::MergedRecord;
use crate::reader::{StreamRecord, TraceLayer};
use crate::schema::{IntegerField, Schema, Value};
use std::borrow::Cow;

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
    /// A task is about to be woken (`sched:sched_waking`), was (`sched:sched_wakeup`) or is new (`sched:sched_wakeup_new`).
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
    /// The VMM is told that a disk has requests (`vmm:disk_notified`).
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
    /// The VMM did what it was asked for at run time (`vmm:control`).
    Control {
        /// What: `events_…` where the choice of events changed.
        what: &'t [u8],
    },
    /// The current task enters a system call (`raw_syscalls:sys_enter`).
    SyscallEnter {
        /// Its number.
        number: i64,
        /// Its arguments.
        arguments: Arguments<'t>,
    },
    /// The current task leaves a system call (`raw_syscalls:sys_exit`).
    SyscallExit {
        /// Its number; -1 for the return of a new task, and where the event does not say it.
        number: i64,
        /// What it returns.
        result: i64,
    },
    /// A page fault begins.
    PageFault {
        /// Whether it is one of user level (`exceptions:page_fault_user`) or of the kernel (`exceptions:page_fault_kernel`).
        is_user: bool,
    },
    /// A CPU enters an interrupt's handler.
    InterruptEnter(Interrupt),
    /// A CPU leaves an interrupt's handler.
    InterruptExit(Interrupt),
    /// The current task, or an interrupt on top of it, begins to wait for a lock of the kernel (`lock:contention_begin`).
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// An I/O port.
    Port(u16),
    /// A page of device memory: its guest-physical address.
    Page(u64),
}

/// Bytes of a page of device memory.
const PAGE: u64 = 4096;

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

/// Arguments of a system call: read when they are asked for.
#[derive(Clone, Copy, Debug)]
pub struct Arguments<'t>(StreamRecord<'t>);

impl Arguments<'_> {
    /// Argument `index`, from 0 on.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<u64> {
        match self.0.value("args")? {
            Value::Array(arguments) => arguments.get(index),
            _ => None,
        }
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

/// Whether `layer` can hold the events of vCPUs entering and leaving the guest: KVM's, or the VMM's.
#[must_use]
pub fn tells_of_vcpus(layer: &TraceLayer) -> bool {
    let names = match layer.description.kind {
        LayerKind::HostKernel => ["kvm:kvm_entry", "kvm:kvm_exit"],
        LayerKind::Vmm => ["vmm:vcpu_enter", "vmm:vcpu_exit"],
        LayerKind::GuestKernel | LayerKind::GuestUser => return false,
    };
    names.iter().all(|name| is_recorded(layer, name))
}

/// A field that is found at once where it can be, and by walking where a field before it varies.
#[derive(Clone, Copy, Debug)]
struct Number {
    index: usize,
    fixed: Option<IntegerField>,
}

impl Number {
    fn new(schema: &Schema, names: &[&str]) -> Option<Self> {
        let fields = &schema.description().fields;
        let name = names.iter().find(|&name| fields.iter().any(|field| field.name == *name))?;
        let index = fields.iter().position(|field| field.name == *name)?;
        Some(Self { index, fixed: schema.integer(name) })
    }

    #[inline]
    fn read(&self, record: &StreamRecord<'_>) -> Option<i128> {
        if let Some(fixed) = self.fixed {
            return fixed.read(record.payload);
        }
        match record.schema.fields(record.payload).nth(self.index)?.1 {
            Value::Unsigned(number) => Some(number.into()),
            Value::Signed(number) => Some(number.into()),
            _ => None,
        }
    }

    #[inline]
    fn as_i32(&self, record: &StreamRecord<'_>) -> Option<i32> {
        i32::try_from(self.read(record)?).ok()
    }

    #[inline]
    fn as_u32(&self, record: &StreamRecord<'_>) -> Option<u32> {
        u32::try_from(self.read(record)?).ok()
    }

    /// The number's bits.
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "fields have at most 64 bits: those of a negative number stay")]
    fn as_bits(&self, record: &StreamRecord<'_>) -> Option<u64> {
        Some(self.read(record)? as u64)
    }

    #[inline]
    fn as_i64(&self, record: &StreamRecord<'_>) -> Option<i64> {
        Some(self.as_bits(record)?.cast_signed())
    }
}

/// A text field: in its place where no field before it varies.
#[derive(Clone, Copy, Debug)]
struct TextField {
    index: usize,
    /// Offset and size, bytes.
    fixed: Option<(usize, usize)>,
}

impl TextField {
    fn new(schema: &Schema, name: &str) -> Option<Self> {
        let fields = &schema.description().fields;
        let index = fields.iter().position(|field| field.name == name)?;
        let size = fields.get(index)?.ty.fixed_size();
        let offset = fields.get(..index)?.iter().map(|field| field.ty.size_in_place()).sum::<Option<usize>>();
        Some(Self { index, fixed: offset.zip(size) })
    }

    #[inline]
    fn read<'t>(&self, record: &StreamRecord<'t>) -> Option<&'t [u8]> {
        if let Some((offset, size)) = self.fixed {
            let bytes = record.payload.get(offset..offset + size)?;
            return Some(bytes.split(|&byte| byte == 0).next().unwrap_or(bytes));
        }
        match record.schema.fields(record.payload).nth(self.index)?.1 {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// Where a task's id and name lie.
#[derive(Clone, Copy, Debug)]
struct TaskFields {
    tid: Number,
    comm: Option<TextField>,
}

impl TaskFields {
    fn new(schema: &Schema, tid: &str, comm: &str) -> Option<Self> {
        Some(Self { tid: Number::new(schema, &[tid])?, comm: TextField::new(schema, comm) })
    }

    #[inline]
    fn read<'t>(&self, record: &StreamRecord<'t>) -> Option<Task<'t>> {
        let comm = self.comm.and_then(|comm| comm.read(record)).unwrap_or_default();
        Some(Task { tid: self.tid.as_i32(record)?, comm })
    }
}

/// Where the fields of `block:block_rq_*` lie.
#[derive(Clone, Copy, Debug)]
struct BlockFields {
    thread: Option<Number>,
    device: Option<Number>,
    sector: Option<Number>,
    sectors: Option<Number>,
    flags: Option<TextField>,
}

impl BlockFields {
    fn new(schema: &Schema) -> Self {
        let number = |name| Number::new(schema, &[name]);
        Self {
            thread: number(THREAD),
            device: number("dev"),
            sector: number("sector"),
            sectors: number("nr_sector"),
            flags: TextField::new(schema, "rwbs"),
        }
    }

    fn read<'t>(&self, record: &StreamRecord<'t>) -> BlockRequest<'t> {
        let bits = |field: Option<Number>| field?.as_bits(record);
        BlockRequest {
            thread: self.thread.and_then(|thread| thread.as_i32(record)),
            device: bits(self.device),
            sector: bits(self.sector),
            sectors: bits(self.sectors),
            flags: self.flags.and_then(|flags| flags.read(record)),
        }
    }
}

/// The field of the host's events that names the thread which records them.
const THREAD: &str = "common_pid";
/// `type` of `kvm:kvm_mmio` for a write.
const MMIO_WRITE: i64 = 2;

/// How to read an event type.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Switch { prev: TaskFields, prev_state: Number, next: TaskFields },
    Wakeup { task: TaskFields, cpu: Option<Number>, stage: WakeupStage },
    Migrate { tid: Number, cpu: Number },
    Fork { parent: Option<Number>, child: TaskFields },
    NewTask { tid: Number, flags: Number },
    Exec { tid: Option<Number>, old_tid: Option<Number>, file: Option<TextField> },
    ProcessExit,
    KvmEntry { tid: Option<Number>, vcpu: Option<Number> },
    KvmExit { tid: Option<Number>, vcpu: Option<Number>, reason: Option<Number>, isa: Option<Number> },
    KvmUserspaceExit { tid: Number },
    KvmAcceptIrq { tid: Option<Number>, apic_id: Number, vector: Number },
    KvmInject { tid: Option<Number>, vector: Number, again: Option<Number>, soft: Option<Number> },
    KvmMmio { tid: Option<Number>, address: Number, kind: Option<Number> },
    VcpuThread { vcpu: Number, tid: Number },
    VmmEnter { vcpu: Number },
    VmmExit { vcpu: Number, reason: Option<Number> },
    Port { vcpu: Number, port: Number },
    Mmio { vcpu: Number, address: Number },
    DiskNotified { disk: Number },
    DiskRequest { disk: Number, done: Number, kind: Option<TextField>, sector: Option<Number>, bytes: Option<Number> },
    DiskInterrupt { disk: Number },
    Control { what: Option<TextField> },
    SyscallEnter { number: Number },
    SyscallExit { number: Option<Number>, result: Option<Number> },
    PageFault { is_user: bool },
    Interrupt { kind: InterruptKind, enter: bool, number: Number },
    ContentionBegin { lock: Option<Number>, flags: Option<Number> },
    ContentionEnd { lock: Option<Number> },
    Stack,
    Sample { process: Option<Number>, thread: Option<Number>, address: Option<Number>, user: Option<Number> },
    Mapping,
    BlockIssue(BlockFields),
    BlockComplete(BlockFields),
}

#[derive(Clone, Copy, Debug)]
enum InterruptKind {
    Irq,
    Softirq,
    Vector,
}

impl Shape {
    /// How to read `schema` of a layer of `kind`; `None` when no analysis asks for it.
    fn new(kind: LayerKind, schema: &Schema) -> Option<Self> {
        match kind {
            LayerKind::HostKernel => Self::of_kernel(schema).or_else(|| Self::of_kvm(schema)),
            LayerKind::Vmm => Self::of_vmm(schema),
            LayerKind::GuestKernel => Self::of_kernel(schema).or_else(|| Self::of_guest(schema)),
            LayerKind::GuestUser => None,
        }
    }

    /// Events of any kernel.
    fn of_kernel(schema: &Schema) -> Option<Self> {
        Self::of_scheduler(schema).or_else(|| Self::of_block(schema)).or_else(|| Self::of_interrupt(schema))
    }

    fn of_scheduler(schema: &Schema) -> Option<Self> {
        let number = |name| Number::new(schema, &[name]);
        let wakeup = |stage| {
            Some(Self::Wakeup { task: TaskFields::new(schema, "pid", "comm")?, cpu: number("target_cpu"), stage })
        };
        Some(match schema.name() {
            "sched:sched_switch" => Self::Switch {
                prev: TaskFields::new(schema, "prev_pid", "prev_comm")?,
                prev_state: number("prev_state")?,
                next: TaskFields::new(schema, "next_pid", "next_comm")?,
            },
            "sched:sched_waking" => wakeup(WakeupStage::Waking)?,
            "sched:sched_wakeup" => wakeup(WakeupStage::Wakeup)?,
            "sched:sched_wakeup_new" => wakeup(WakeupStage::New)?,
            "sched:sched_migrate_task" => Self::Migrate { tid: number("pid")?, cpu: number("dest_cpu")? },
            "sched:sched_process_fork" => {
                let child = TaskFields::new(schema, "child_pid", "child_comm")?;
                Self::Fork { parent: number("parent_pid"), child }
            }
            "sched:sched_process_exec" => {
                let file = TextField::new(schema, "filename");
                Self::Exec { tid: number("pid"), old_tid: number("old_pid"), file }
            }
            "sched:sched_process_exit" => Self::ProcessExit,
            "task:task_newtask" => Self::NewTask { tid: number("pid")?, flags: number("clone_flags")? },
            _ => return None,
        })
    }

    fn of_block(schema: &Schema) -> Option<Self> {
        match schema.name() {
            "block:block_rq_issue" => Some(Self::BlockIssue(BlockFields::new(schema))),
            "block:block_rq_complete" => Some(Self::BlockComplete(BlockFields::new(schema))),
            _ => None,
        }
    }

    fn of_kvm(schema: &Schema) -> Option<Self> {
        let number = |name| Number::new(schema, &[name]);
        let (tid, vcpu) = (number(THREAD), Number::new(schema, &["vcpu_id", "vcpu"]));
        Some(match schema.name() {
            "kvm:kvm_entry" => Self::KvmEntry { tid, vcpu },
            "kvm:kvm_exit" => Self::KvmExit { tid, vcpu, reason: number("exit_reason"), isa: number("isa") },
            "kvm:kvm_userspace_exit" => Self::KvmUserspaceExit { tid: tid? },
            "kvm:kvm_apic_accept_irq" => Self::KvmAcceptIrq { tid, apic_id: number("apicid")?, vector: number("vec")? },
            "kvm:kvm_inj_virq" => Self::KvmInject {
                tid,
                vector: Number::new(schema, &["vector", "irq"])?,
                again: number("reinjected"),
                soft: number("soft"),
            },
            "kvm:kvm_mmio" => Self::KvmMmio { tid, address: number("gpa")?, kind: Some(number("type")?) },
            "kvm:kvm_fast_mmio" => Self::KvmMmio { tid, address: number("gpa")?, kind: None },
            _ => return None,
        })
    }

    fn of_vmm(schema: &Schema) -> Option<Self> {
        let number = |name| Number::new(schema, &[name]);
        Some(match schema.name() {
            "vmm:vcpu_thread" => Self::VcpuThread { vcpu: number("vcpu")?, tid: number("tid")? },
            "vmm:vcpu_enter" => Self::VmmEnter { vcpu: number("vcpu")? },
            "vmm:vcpu_exit" => Self::VmmExit { vcpu: number("vcpu")?, reason: number("reason") },
            "vmm:port_access" => Self::Port { vcpu: number("vcpu")?, port: number("port")? },
            "vmm:mmio_access" => Self::Mmio { vcpu: number("vcpu")?, address: number("address")? },
            "vmm:disk_notified" => Self::DiskNotified { disk: number("disk")? },
            "vmm:block_request" => Self::DiskRequest {
                disk: number("disk")?,
                done: number("done")?,
                kind: TextField::new(schema, "kind"),
                sector: number("sector"),
                bytes: number("bytes"),
            },
            "vmm:disk_interrupt" => Self::DiskInterrupt { disk: number("disk")? },
            "vmm:control" => Self::Control { what: TextField::new(schema, "what") },
            _ => return None,
        })
    }

    fn of_guest(schema: &Schema) -> Option<Self> {
        let number = |name| Number::new(schema, &[name]);
        match schema.name() {
            "raw_syscalls:sys_enter" => Some(Self::SyscallEnter { number: number("id")? }),
            "raw_syscalls:sys_exit" => Some(Self::SyscallExit { number: number("id"), result: number("ret") }),
            "exceptions:page_fault_user" => Some(Self::PageFault { is_user: true }),
            "exceptions:page_fault_kernel" => Some(Self::PageFault { is_user: false }),
            "lock:contention_begin" => {
                Some(Self::ContentionBegin { lock: number("lock_addr"), flags: number("flags") })
            }
            "lock:contention_end" => Some(Self::ContentionEnd { lock: number("lock_addr") }),
            "strata:stack" => Some(Self::Stack),
            "strata:sample" => {
                let (address, user) = (number("ip"), number("user"));
                Some(Self::Sample { process: number("pid"), thread: number("tid"), address, user })
            }
            "strata:mapping" => Some(Self::Mapping),
            _ => None,
        }
    }

    fn of_interrupt(schema: &Schema) -> Option<Self> {
        let interrupt =
            |kind, enter, field| Some(Self::Interrupt { kind, enter, number: Number::new(schema, &[field])? });
        match schema.name() {
            "irq:irq_handler_entry" => interrupt(InterruptKind::Irq, true, "irq"),
            "irq:irq_handler_exit" => interrupt(InterruptKind::Irq, false, "irq"),
            "irq:softirq_entry" => interrupt(InterruptKind::Softirq, true, "vec"),
            "irq:softirq_exit" => interrupt(InterruptKind::Softirq, false, "vec"),
            name => interrupt(InterruptKind::Vector, vector_name(name)?.1, "vector"),
        }
    }

    fn read<'t>(&self, record: &StreamRecord<'t>) -> Option<Event<'t>> {
        let optional = |number: &Option<Number>| number.and_then(|number| number.as_u32(record));
        let thread = |number: &Option<Number>| number.and_then(|number| number.as_i32(record));
        let bits = |number: &Option<Number>| number.and_then(|number| number.as_bits(record));
        let flag = |number: &Option<Number>| bits(number).is_some_and(|bits| bits != 0);
        let text = |text: &Option<TextField>| text.and_then(|text| text.read(record)).unwrap_or_default();
        Some(match self {
            Self::Switch { prev, prev_state, next } => Event::Switch {
                prev: prev.read(record)?,
                prev_state: prev_state.as_bits(record)?,
                next: next.read(record)?,
            },
            Self::Wakeup { task, cpu, stage } => {
                Event::Wakeup { task: task.read(record)?, cpu: optional(cpu), stage: *stage }
            }
            Self::Migrate { tid, cpu } => Event::Migrate { tid: tid.as_i32(record)?, cpu: cpu.as_u32(record)? },
            Self::Fork { parent, child } => Event::Fork { parent: thread(parent), child: child.read(record)? },
            Self::NewTask { tid, flags } => {
                Event::NewTask { tid: tid.as_i32(record)?, clone_flags: flags.as_bits(record)? }
            }
            Self::Exec { tid, old_tid, file } => {
                Event::Exec { tid: thread(tid), old_tid: thread(old_tid), file: text(file) }
            }
            Self::ProcessExit => Event::ProcessExit,
            Self::KvmEntry { tid, vcpu } => Event::KvmEntry { tid: thread(tid).unwrap_or(-1), vcpu: optional(vcpu) },
            Self::KvmExit { tid, vcpu, reason, isa } => {
                let isa = isa.and_then(|isa| isa.read(record));
                let numbering = isa.map_or(ExitNumbering::Unknown, ExitReason::numbering_of_isa);
                let reason = ExitReason { numbering, number: optional(reason).unwrap_or(u32::MAX) };
                Event::KvmExit { tid: thread(tid).unwrap_or(-1), vcpu: optional(vcpu), reason }
            }
            Self::KvmUserspaceExit { tid } => Event::KvmUserspaceExit { tid: tid.as_i32(record)? },
            Self::KvmAcceptIrq { tid, apic_id, vector } => Event::KvmAcceptIrq {
                tid: thread(tid),
                apic_id: apic_id.as_u32(record)?,
                vector: vector.as_i64(record)?,
            },
            Self::KvmInject { tid, vector, again, soft } => Event::KvmInject {
                tid: thread(tid),
                vector: vector.as_i64(record)?,
                again: flag(again),
                soft: flag(soft),
            },
            Self::KvmMmio { tid, address, kind } => Event::KvmMmio {
                tid: thread(tid),
                address: address.as_bits(record)?,
                is_write: kind.is_none_or(|kind| kind.as_i64(record) == Some(MMIO_WRITE)),
            },
            Self::VcpuThread { vcpu, tid } => {
                Event::VcpuThread { vcpu: vcpu.as_u32(record)?, tid: tid.as_i32(record)? }
            }
            Self::VmmEnter { vcpu } => Event::VmmEnter { vcpu: vcpu.as_u32(record)? },
            Self::VmmExit { vcpu, reason } => {
                let number = optional(reason).unwrap_or(u32::MAX);
                let reason = ExitReason { numbering: ExitNumbering::Kvm, number };
                Event::VmmExit { vcpu: vcpu.as_u32(record)?, reason }
            }
            Self::Port { vcpu, port } => {
                let access = Access::Port(u16::try_from(port.read(record)?).ok()?);
                Event::Access { vcpu: vcpu.as_u32(record)?, access }
            }
            Self::Mmio { vcpu, address } => {
                let address = address.as_bits(record)?;
                Event::Access { vcpu: vcpu.as_u32(record)?, access: Access::Page(address - address % PAGE) }
            }
            Self::DiskNotified { disk } => Event::DiskNotified { disk: disk.as_u32(record)? },
            Self::DiskRequest { disk, done, kind, sector, bytes } => Event::DiskRequest {
                disk: disk.as_u32(record)?,
                is_done: done.as_bits(record)? != 0,
                kind: text(kind),
                sector: bits(sector).unwrap_or(0),
                bytes: bits(bytes).unwrap_or(0),
            },
            Self::DiskInterrupt { disk } => Event::DiskInterrupt { disk: disk.as_u32(record)? },
            Self::Control { what } => Event::Control { what: text(what) },
            Self::SyscallEnter { number } => {
                Event::SyscallEnter { number: number.as_i64(record)?, arguments: Arguments(*record) }
            }
            Self::SyscallExit { number, result } => Event::SyscallExit {
                number: bits(number).map_or(-1, u64::cast_signed),
                result: bits(result).map_or(0, u64::cast_signed),
            },
            Self::PageFault { is_user } => Event::PageFault { is_user: *is_user },
            Self::Interrupt { kind, enter, number } => {
                let number = number.as_i32(record)?;
                let interrupt = match kind {
                    InterruptKind::Irq => Interrupt::Irq(number),
                    InterruptKind::Softirq => Interrupt::Softirq(number),
                    InterruptKind::Vector => Interrupt::Vector(number),
                };
                if *enter { Event::InterruptEnter(interrupt) } else { Event::InterruptExit(interrupt) }
            }
            Self::ContentionBegin { lock, flags } => {
                Event::ContentionBegin { lock: bits(lock), flags: bits(flags).unwrap_or(0) }
            }
            Self::ContentionEnd { lock } => Event::ContentionEnd { lock: bits(lock) },
            Self::Stack => Event::Stack,
            Self::Sample { process, thread: tid, address, user } => Event::Sample {
                process: thread(process),
                thread: thread(tid),
                address: bits(address),
                is_user: flag(user),
            },
            Self::Mapping => Event::Mapping,
            Self::BlockIssue(fields) => Event::BlockIssue(fields.read(record)),
            Self::BlockComplete(fields) => Event::BlockComplete(fields.read(record)),
        })
    }
}

/// Reads the events of merged records. How an event type is read is found out once for each source of the merge.
#[derive(Debug, Default)]
pub struct Decoder {
    /// By source of the merge and id of the event type; the outer `None` stands for what is not found out yet.
    shapes: Vec<Vec<Option<Option<Shape>>>>,
}

impl Decoder {
    /// What `record` says; `None` when no analysis asks for such records.
    pub fn event<'t>(&mut self, record: &MergedRecord<'t>) -> Option<Event<'t>> {
        self.read(record.source, record.layer.description.kind, &record.record)
    }

    /// What `record`, of the source `source` in a layer of `kind`, says.
    pub fn read<'t>(&mut self, source: usize, kind: LayerKind, record: &StreamRecord<'t>) -> Option<Event<'t>> {
        let id = usize::from(record.schema.description().id);
        if let Some(Some(shape)) = self.shapes.get(source).and_then(|shapes| shapes.get(id)) {
            return shape.as_ref()?.read(record);
        }
        if self.shapes.len() <= source {
            self.shapes.resize(source + 1, Vec::new());
        }
        let shapes = self.shapes.get_mut(source)?;
        if shapes.len() <= id {
            shapes.resize(id + 1, None);
        }
        let shape = shapes.get_mut(id)?.insert(Shape::new(kind, record.schema));
        shape.as_ref()?.read(record)
    }
}

#[cfg(test)]
pub(crate) mod tests;
