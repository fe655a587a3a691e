//! The records that states are made of, read out of their layers: which event of which layer says what.

use crate::exit_reason::{ExitNumbering, ExitReason};
use crate::merge::MergedRecord;
use crate::schema::{IntegerField, Schema, Value};
use crate::session::LayerKind;

/// What a record says about a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        /// The CPU whose turn it is to run it.
        cpu: Option<u32>,
    },
    /// A task is moved to another CPU (`sched:sched_migrate_task`).
    Migrate {
        /// Thread id.
        tid: i32,
        /// The CPU.
        cpu: u32,
    },
    /// A task is made (`sched:sched_process_fork`).
    Fork {
        /// The new task.
        child: Task<'t>,
    },
    /// A vCPU enters the guest (`kvm:kvm_entry`).
    KvmEntry {
        /// The host thread.
        tid: i32,
        /// The vCPU, where the event says it.
        vcpu: Option<u32>,
    },
    /// A vCPU leaves the guest (`kvm:kvm_exit`).
    KvmExit {
        /// The host thread.
        tid: i32,
        /// The vCPU, where the event says it.
        vcpu: Option<u32>,
        /// Why.
        reason: ExitReason,
    },
    /// KVM returns to the VMM (`kvm:kvm_userspace_exit`).
    KvmUserspaceExit {
        /// The host thread.
        tid: i32,
    },
    /// A vCPU gets its host thread (`vmm:vcpu_thread`).
    VcpuThread {
        /// The vCPU.
        vcpu: u32,
        /// The host thread.
        tid: i32,
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
    /// The current task enters a system call (`raw_syscalls:sys_enter`).
    SyscallEnter {
        /// Its number.
        number: i64,
    },
    /// The current task leaves a system call (`raw_syscalls:sys_exit`).
    SyscallExit,
    /// A CPU enters an interrupt's handler.
    InterruptEnter(Interrupt),
    /// A CPU leaves an interrupt's handler.
    InterruptExit(Interrupt),
    /// The current task begins to wait for a lock of the kernel (`lock:contention_begin`).
    ContentionBegin,
    /// The current task has the lock, or gave up (`lock:contention_end`).
    ContentionEnd,
    /// From here on records of the stream are missing.
    GapBegin,
    /// The stream's records go on.
    GapEnd,
}

/// A task as an event names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task<'t> {
    /// Thread id; 0 for a CPU's idle task.
    pub tid: i32,
    /// Its name; empty where the event does not say it.
    pub comm: &'t [u8],
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Interrupt {
    /// A device's interrupt, by its number (`irq:irq_handler_entry`).
    Irq(i32),
    /// A soft interrupt, by its vector (`irq:softirq_entry`).
    Softirq(i32),
    /// An interrupt of the system itself, by its vector (`irq_vectors:*_entry`).
    Vector(i32),
}

/// Where a record comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A CPU of a host.
    Host {
        /// Index of the host.
        host: usize,
        /// The CPU.
        cpu: u32,
    },
    /// A thread of a VMM.
    Vmm {
        /// Index of the VM.
        vm: usize,
        /// Number of the thread's stream: its vCPU's, or the number of vCPUs for all other threads.
        thread: u32,
    },
    /// A CPU of a guest.
    Guest {
        /// Index of the VM.
        vm: usize,
        /// The vCPU.
        cpu: u32,
    },
}

/// What a record says, where, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input<'t> {
    /// Trace clock, ticks.
    pub time: u64,
    /// Where it comes from.
    pub origin: Origin,
    /// What it says.
    pub event: Event<'t>,
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

    fn read(&self, record: &MergedRecord<'_>) -> Option<i128> {
        let payload = record.record.payload;
        if let Some(fixed) = self.fixed {
            return fixed.read(payload);
        }
        match record.record.schema.fields(payload).nth(self.index)?.1 {
            Value::Unsigned(number) => Some(number.into()),
            Value::Signed(number) => Some(number.into()),
            _ => None,
        }
    }

    fn as_i32(&self, record: &MergedRecord<'_>) -> Option<i32> {
        i32::try_from(self.read(record)?).ok()
    }

    fn as_u32(&self, record: &MergedRecord<'_>) -> Option<u32> {
        u32::try_from(self.read(record)?).ok()
    }
}

/// Where a task's id and name lie.
#[derive(Clone, Copy, Debug)]
struct TaskFields {
    tid: Number,
    comm: Option<usize>,
}

impl TaskFields {
    fn new(schema: &Schema, tid: &str, comm: &str) -> Option<Self> {
        let comm = schema.description().fields.iter().position(|field| field.name == comm);
        Some(Self { tid: Number::new(schema, &[tid])?, comm })
    }

    fn read<'t>(&self, record: &MergedRecord<'t>) -> Option<Task<'t>> {
        let text = |index| match record.record.schema.fields(record.record.payload).nth(index)?.1 {
            Value::Text(text) => Some(text),
            _ => None,
        };
        Some(Task { tid: self.tid.as_i32(record)?, comm: self.comm.and_then(text).unwrap_or_default() })
    }
}

/// How to read an event type.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Switch { prev: TaskFields, prev_state: Number, next: TaskFields },
    Wakeup { task: TaskFields, cpu: Option<Number> },
    Migrate { tid: Number, cpu: Number },
    Fork { child: TaskFields },
    KvmEntry { tid: Option<Number>, vcpu: Option<Number> },
    KvmExit { tid: Option<Number>, vcpu: Option<Number>, reason: Number, isa: Option<Number> },
    KvmUserspaceExit { tid: Number },
    VcpuThread { vcpu: Number, tid: Number },
    VmmEnter { vcpu: Number },
    VmmExit { vcpu: Number, reason: Number },
    Port { vcpu: Number, port: Number },
    Mmio { vcpu: Number, address: Number },
    SyscallEnter { number: Number },
    SyscallExit,
    Interrupt { kind: InterruptKind, enter: bool, number: Number },
    ContentionBegin,
    ContentionEnd,
}

#[derive(Clone, Copy, Debug)]
enum InterruptKind {
    Irq,
    Softirq,
    Vector,
}

impl Shape {
    /// How to read `schema` of a layer of `kind`; `None` when it says nothing about a state.
    fn new(kind: LayerKind, schema: &Schema) -> Option<Self> {
        match kind {
            LayerKind::HostKernel => Self::of_scheduler(schema).or_else(|| Self::of_kvm(schema)),
            LayerKind::Vmm => Self::of_vmm(schema),
            LayerKind::GuestKernel => Self::of_scheduler(schema).or_else(|| Self::of_guest(schema)),
            LayerKind::GuestUser => None,
        }
    }

    fn of_scheduler(schema: &Schema) -> Option<Self> {
        let number = |name| Number::new(schema, &[name]);
        Some(match schema.name() {
            "sched:sched_switch" => Self::Switch {
                prev: TaskFields::new(schema, "prev_pid", "prev_comm")?,
                prev_state: number("prev_state")?,
                next: TaskFields::new(schema, "next_pid", "next_comm")?,
            },
            "sched:sched_waking" | "sched:sched_wakeup" | "sched:sched_wakeup_new" => {
                Self::Wakeup { task: TaskFields::new(schema, "pid", "comm")?, cpu: number("target_cpu") }
            }
            "sched:sched_migrate_task" => Self::Migrate { tid: number("pid")?, cpu: number("dest_cpu")? },
            "sched:sched_process_fork" => Self::Fork { child: TaskFields::new(schema, "child_pid", "child_comm")? },
            _ => return None,
        })
    }

    fn of_kvm(schema: &Schema) -> Option<Self> {
        let number = |name| Number::new(schema, &[name]);
        let (tid, vcpu) = (number("common_pid"), Number::new(schema, &["vcpu_id", "vcpu"]));
        Some(match schema.name() {
            "kvm:kvm_entry" => Self::KvmEntry { tid, vcpu },
            "kvm:kvm_exit" => Self::KvmExit { tid, vcpu, reason: number("exit_reason")?, isa: number("isa") },
            "kvm:kvm_userspace_exit" => Self::KvmUserspaceExit { tid: tid? },
            _ => return None,
        })
    }

    fn of_vmm(schema: &Schema) -> Option<Self> {
        let number = |name| Number::new(schema, &[name]);
        Some(match schema.name() {
            "vmm:vcpu_thread" => Self::VcpuThread { vcpu: number("vcpu")?, tid: number("tid")? },
            "vmm:vcpu_enter" => Self::VmmEnter { vcpu: number("vcpu")? },
            "vmm:vcpu_exit" => Self::VmmExit { vcpu: number("vcpu")?, reason: number("reason")? },
            "vmm:port_access" => Self::Port { vcpu: number("vcpu")?, port: number("port")? },
            "vmm:mmio_access" => Self::Mmio { vcpu: number("vcpu")?, address: number("address")? },
            _ => return None,
        })
    }

    fn of_guest(schema: &Schema) -> Option<Self> {
        let number = |name| Number::new(schema, &[name]);
        let interrupt = |kind, enter, field| Some(Self::Interrupt { kind, enter, number: number(field)? });
        match schema.name() {
            "raw_syscalls:sys_enter" => Some(Self::SyscallEnter { number: number("id")? }),
            "raw_syscalls:sys_exit" => Some(Self::SyscallExit),
            "irq:irq_handler_entry" => interrupt(InterruptKind::Irq, true, "irq"),
            "irq:irq_handler_exit" => interrupt(InterruptKind::Irq, false, "irq"),
            "irq:softirq_entry" => interrupt(InterruptKind::Softirq, true, "vec"),
            "irq:softirq_exit" => interrupt(InterruptKind::Softirq, false, "vec"),
            "lock:contention_begin" => Some(Self::ContentionBegin),
            "lock:contention_end" => Some(Self::ContentionEnd),
            name if name.starts_with("irq_vectors:") => {
                let enter = name.ends_with("_entry");
                if enter || name.ends_with("_exit") { interrupt(InterruptKind::Vector, enter, "vector") } else { None }
            }
            _ => None,
        }
    }

    fn read<'t>(&self, record: &MergedRecord<'t>) -> Option<Event<'t>> {
        let optional = |number: &Option<Number>| number.and_then(|number| number.as_u32(record));
        let thread = |number: &Option<Number>| number.and_then(|number| number.as_i32(record)).unwrap_or(-1);
        Some(match self {
            Self::Switch { prev, prev_state, next } => Event::Switch {
                prev: prev.read(record)?,
                prev_state: u64::try_from(prev_state.read(record)?).ok()?,
                next: next.read(record)?,
            },
            Self::Wakeup { task, cpu } => Event::Wakeup { task: task.read(record)?, cpu: optional(cpu) },
            Self::Migrate { tid, cpu } => Event::Migrate { tid: tid.as_i32(record)?, cpu: cpu.as_u32(record)? },
            Self::Fork { child } => Event::Fork { child: child.read(record)? },
            Self::KvmEntry { tid, vcpu } => Event::KvmEntry { tid: thread(tid), vcpu: optional(vcpu) },
            Self::KvmExit { tid, vcpu, reason, isa } => {
                let isa = isa.and_then(|isa| isa.read(record));
                let numbering = isa.map_or(ExitNumbering::Unknown, ExitReason::numbering_of_isa);
                let reason = ExitReason { numbering, number: reason.as_u32(record).unwrap_or(u32::MAX) };
                Event::KvmExit { tid: thread(tid), vcpu: optional(vcpu), reason }
            }
            Self::KvmUserspaceExit { tid } => Event::KvmUserspaceExit { tid: tid.as_i32(record)? },
            Self::VcpuThread { vcpu, tid } => {
                Event::VcpuThread { vcpu: vcpu.as_u32(record)?, tid: tid.as_i32(record)? }
            }
            Self::VmmEnter { vcpu } => Event::VmmEnter { vcpu: vcpu.as_u32(record)? },
            Self::VmmExit { vcpu, reason } => {
                let reason = ExitReason { numbering: ExitNumbering::Kvm, number: reason.as_u32(record)? };
                Event::VmmExit { vcpu: vcpu.as_u32(record)?, reason }
            }
            Self::Port { vcpu, port } => {
                let access = Access::Port(u16::try_from(port.read(record)?).ok()?);
                Event::Access { vcpu: vcpu.as_u32(record)?, access }
            }
            Self::Mmio { vcpu, address } => {
                let address = u64::try_from(address.read(record)?).ok()?;
                Event::Access { vcpu: vcpu.as_u32(record)?, access: Access::Page(address - address % PAGE) }
            }
            Self::SyscallEnter { number } => Event::SyscallEnter { number: i64::try_from(number.read(record)?).ok()? },
            Self::SyscallExit => Event::SyscallExit,
            Self::Interrupt { kind, enter, number } => {
                let number = number.as_i32(record)?;
                let interrupt = match kind {
                    InterruptKind::Irq => Interrupt::Irq(number),
                    InterruptKind::Softirq => Interrupt::Softirq(number),
                    InterruptKind::Vector => Interrupt::Vector(number),
                };
                if *enter { Event::InterruptEnter(interrupt) } else { Event::InterruptExit(interrupt) }
            }
            Self::ContentionBegin => Event::ContentionBegin,
            Self::ContentionEnd => Event::ContentionEnd,
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
    /// What `record` says; `None` when it says nothing about a state.
    pub fn event<'t>(&mut self, record: &MergedRecord<'t>) -> Option<Event<'t>> {
        let id = usize::from(record.record.schema.description().id);
        if self.shapes.len() <= record.source {
            self.shapes.resize(record.source + 1, Vec::new());
        }
        let shapes = self.shapes.get_mut(record.source)?;
        if shapes.len() <= id {
            shapes.resize(id + 1, None);
        }
        let kind = record.layer.description.kind;
        let shape = shapes.get_mut(id)?.get_or_insert_with(|| Shape::new(kind, record.record.schema));
        shape.as_ref()?.read(record)
    }
}
