//! How event types are read: which fields each has, and what they tell.

use super::fields::{BlockFields, FoundFields, Number, RenameFields, THREAD, TaskFields, TextField};
use super::{
    Access, Arguments, Event, Interrupt, KvmAccess, NetworkPacket, PAGE, PacketPlace, PacketProgress, Tid, WakeupStage,
    name, vector_name,
};
use crate::exit_reason::{ExitNumbering, ExitReason};
use crate::names;
use strata_recording::layer::LayerKind;
use strata_recording::reader::StreamRecord;
use strata_recording::reader::merge::MergedRecord;
use strata_recording::schema::Schema;

/// `type` of `kvm:kvm_mmio` for a write.
const MMIO_WRITE: i64 = 2;

/// Number of the default hierarchy of cgroups, as in `/proc/PID/cgroup`.
const DEFAULT_HIERARCHY: u64 = 0;

/// How to read an event type.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Switch { prev: TaskFields, prev_state: Number, next: TaskFields },
    Wakeup { task: TaskFields, cpu: Option<Number>, stage: WakeupStage },
    Migrate { tid: Number, cpu: Number },
    Fork { parent: Option<Number>, child: TaskFields },
    NewTask { tid: Number, flags: Number },
    Rename(RenameFields),
    Exec { tid: Option<Number>, old_tid: Option<Number>, file: Option<TextField> },
    ProcessExit,
    KvmEntry { tid: Option<Number>, vcpu: Option<Number> },
    KvmExit { tid: Option<Number>, vcpu: Option<Number>, reason: Option<Number>, isa: Option<Number> },
    KvmUserspaceExit { tid: Number },
    KvmAcceptIrq { tid: Option<Number>, apic_id: Number, vector: Number },
    KvmInject { tid: Option<Number>, vector: Number, again: Option<Number>, soft: Option<Number> },
    KvmMmio { tid: Option<Number>, address: Number, kind: Option<Number>, value: Option<Number> },
    KvmMsr { tid: Option<Number>, register: Number, is_write: Number },
    KvmCpuid { tid: Option<Number>, leaf: Number },
    KvmPort { tid: Option<Number>, port: Number, is_write: Number },
    VcpuThread { vcpu: Number, tid: Number },
    VmmEnter { vcpu: Number },
    VmmExit { vcpu: Number, reason: Option<Number> },
    Port { vcpu: Number, port: Number },
    Mmio { vcpu: Number, address: Number },
    DiskNotified { disk: Number },
    DiskRequest { disk: Number, done: Number, kind: Option<TextField>, sector: Option<Number>, bytes: Option<Number> },
    DiskInterrupt { disk: Number },
    NetNotified { net: Number, queue: Number },
    NetPacket { net: Number, is_received: bool, id: Number, bytes: Number, done: Number },
    NetInterrupt { net: Number, queue: Number },
    NetVhost { net: Number, moves: Number },
    Packet { place: PacketPlace, device: TextField, skb: Number, bytes: Option<Number>, result: Option<Number> },
    Control { what: Option<TextField> },
    SyscallEnter { number: Number, abi: Option<Number> },
    SyscallExit { number: Option<Number>, abi: Option<Number>, result: Option<Number> },
    PageFault { is_user: bool },
    Interrupt { kind: InterruptKind, enter: bool, number: Number },
    ContentionBegin { lock: Option<Number>, flags: Option<Number> },
    ContentionEnd { lock: Option<Number> },
    Stack,
    Sample { process: Option<Number>, thread: Option<Number>, address: Option<Number>, user: Option<Number> },
    TaskFound(FoundFields),
    Cgroup { root: Option<Number>, id: Number, path: TextField },
    CgroupAttach { root: Option<Number>, tid: Number, id: Number, path: TextField },
    Mapping,
    RecordingStops { offline: Option<Number> },
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
        let reported = Self::of_scheduler(schema).or_else(|| Self::of_block(schema));
        reported.or_else(|| Self::of_interrupt(schema)).or_else(|| Self::of_network(schema))
    }

    fn of_network(schema: &Schema) -> Option<Self> {
        let number = |name| Number::new(schema, &[name]);
        let place = match schema.name() {
            name::PACKET_QUEUED => PacketPlace::Queued,
            name::PACKET_GIVEN => PacketPlace::Given,
            "net:net_dev_xmit" => PacketPlace::Answered,
            name::PACKET_RECEIVED => PacketPlace::Received,
            name::PACKET_PASSED_UP => PacketPlace::PassedUp,
            "net:netif_rx" => PacketPlace::Left,
            _ => return None,
        };
        let (device, skb, bytes) = (TextField::new(schema, "name")?, number("skbaddr")?, number("len"));
        Some(Self::Packet { place, device, skb, bytes, result: number("rc") })
    }

    fn of_scheduler(schema: &Schema) -> Option<Self> {
        let number = |name| Number::new(schema, &[name]);
        let wakeup = |stage| {
            Some(Self::Wakeup { task: TaskFields::new(schema, "pid", "comm")?, cpu: number("target_cpu"), stage })
        };
        Some(match schema.name() {
            name::SWITCH => Self::Switch {
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
            name::RENAME => Self::Rename(RenameFields::new(schema)?),
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
            name::BLOCK_ISSUE => Some(Self::BlockIssue(BlockFields::new(schema))),
            name::BLOCK_COMPLETE => Some(Self::BlockComplete(BlockFields::new(schema))),
            _ => None,
        }
    }

    fn of_kvm(schema: &Schema) -> Option<Self> {
        let number = |name| Number::new(schema, &[name]);
        let (tid, vcpu) = (number(THREAD), Number::new(schema, &["vcpu_id", "vcpu"]));
        Some(match schema.name() {
            "kvm:kvm_entry" => Self::KvmEntry { tid, vcpu },
            "kvm:kvm_exit" => Self::KvmExit { tid, vcpu, reason: number("exit_reason"), isa: number("isa") },
            name::KVM_USERSPACE_EXIT => Self::KvmUserspaceExit { tid: tid? },
            "kvm:kvm_apic_accept_irq" => Self::KvmAcceptIrq { tid, apic_id: number("apicid")?, vector: number("vec")? },
            "kvm:kvm_inj_virq" => Self::KvmInject {
                tid,
                vector: Number::new(schema, &["vector", "irq"])?,
                again: number("reinjected"),
                soft: number("soft"),
            },
            "kvm:kvm_mmio" => {
                Self::KvmMmio { tid, address: number("gpa")?, kind: Some(number("type")?), value: number("val") }
            }
            "kvm:kvm_msr" => Self::KvmMsr { tid, register: number("ecx")?, is_write: number("write")? },
            "kvm:kvm_cpuid" => Self::KvmCpuid { tid, leaf: number("function")? },
            "kvm:kvm_pio" => Self::KvmPort { tid, port: number("port")?, is_write: number("rw")? },
            "kvm:kvm_fast_mmio" => Self::KvmMmio { tid, address: number("gpa")?, kind: None, value: None },
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
            name::DISK_REQUEST => Self::DiskRequest {
                disk: number("disk")?,
                done: number("done")?,
                kind: TextField::new(schema, "kind"),
                sector: number("sector"),
                bytes: number("bytes"),
            },
            name::DISK_INTERRUPT => Self::DiskInterrupt { disk: number("disk")? },
            "vmm:net_notified" => Self::NetNotified { net: number("net")?, queue: number("queue")? },
            name::NET_SEND | name::NET_RECEIVE => Self::NetPacket {
                net: number("net")?,
                is_received: schema.name() == name::NET_RECEIVE,
                id: number("id")?,
                bytes: number("bytes")?,
                done: number("done")?,
            },
            "vmm:net_vhost" => Self::NetVhost { net: number("net")?, moves: number("moves")? },
            "vmm:net_interrupt" => Self::NetInterrupt { net: number("net")?, queue: number("queue")? },
            name::CONTROL => Self::Control { what: TextField::new(schema, "what") },
            _ => return None,
        })
    }

    fn of_guest(schema: &Schema) -> Option<Self> {
        let number = |name| Number::new(schema, &[name]);
        match schema.name() {
            name::SYSCALL_ENTER => Some(Self::SyscallEnter { number: number("id")?, abi: number("abi") }),
            "raw_syscalls:sys_exit" => {
                Some(Self::SyscallExit { number: number("id"), abi: number("abi"), result: number("ret") })
            }
            "exceptions:page_fault_user" => Some(Self::PageFault { is_user: true }),
            "exceptions:page_fault_kernel" => Some(Self::PageFault { is_user: false }),
            name::CONTENTION_BEGIN => Some(Self::ContentionBegin { lock: number("lock_addr"), flags: number("flags") }),
            "lock:contention_end" => Some(Self::ContentionEnd { lock: number("lock_addr") }),
            "strata:stack" => Some(Self::Stack),
            name::SAMPLE => {
                let (address, user) = (number("ip"), number("user"));
                Some(Self::Sample { process: number("pid"), thread: number("tid"), address, user })
            }
            name::TASK => Some(Self::TaskFound(FoundFields::new(schema)?)),
            "strata:cgroup" | "cgroup:cgroup_mkdir" => {
                Some(Self::Cgroup { root: number("root"), id: number("id")?, path: TextField::new(schema, "path")? })
            }
            "cgroup:cgroup_attach_task" => Some(Self::CgroupAttach {
                root: number("dst_root"),
                tid: number("pid")?,
                id: number("dst_id")?,
                path: TextField::new(schema, "dst_path")?,
            }),
            "strata:mapping" => Some(Self::Mapping),
            name::RECORDING_STOPS => Some(Self::RecordingStops { offline: number("offline") }),
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
            other => interrupt(InterruptKind::Vector, vector_name(other)?.1, "vector"),
        }
    }

    /// How to read an event of a layer of `kind` that comes in pairs, or explains why one is alone, without the names of
    /// tasks; `None` for others.
    fn of_pair(self, kind: LayerKind) -> Option<Self> {
        match (kind, self) {
            (LayerKind::HostKernel, Self::KvmEntry { .. } | Self::KvmExit { .. })
            | (LayerKind::Vmm, Self::VmmEnter { .. } | Self::VmmExit { .. } | Self::Control { .. })
            | (
                LayerKind::GuestKernel,
                Self::SyscallEnter { .. }
                | Self::SyscallExit { .. }
                | Self::Interrupt { .. }
                | Self::Exec { .. }
                | Self::ProcessExit
                | Self::RecordingStops { .. },
            ) => Some(self),
            (LayerKind::GuestKernel, Self::Switch { prev, prev_state, next }) => {
                Some(Self::Switch { prev: prev.without_name(), prev_state, next: next.without_name() })
            }
            (
                LayerKind::GuestKernel,
                Self::Wakeup { task, cpu, stage: stage @ (WakeupStage::Wakeup | WakeupStage::New) },
            ) => Some(Self::Wakeup { task: task.without_name(), cpu, stage }),
            _ => None,
        }
    }

    /// Why a vCPU leaves the guest, of events that say it.
    #[inline]
    fn exit_reason(&self, record: &StreamRecord<'_>) -> Option<ExitReason> {
        let number = |reason: &Option<Number>| reason.and_then(|reason| reason.as_u32(record)).unwrap_or(u32::MAX);
        match self {
            Self::KvmExit { reason, isa, .. } => {
                let isa = isa.and_then(|isa| isa.read(record));
                let numbering = isa.map_or(ExitNumbering::Unknown, ExitReason::numbering_of_isa);
                Some(ExitReason { numbering, number: number(reason) })
            }
            Self::VmmExit { reason, .. } => Some(ExitReason { numbering: ExitNumbering::Kvm, number: number(reason) }),
            _ => None,
        }
    }

    /// What `record` says. Inlined: it is called for every record.
    #[inline(always)]
    fn read<'t>(&self, record: &StreamRecord<'t>) -> Option<Event<'t>> {
        let optional = |number: &Option<Number>| number.and_then(|number| number.as_u32(record));
        let thread = |number: &Option<Number>| number.and_then(|number| number.as_i32(record));
        let bits = |number: &Option<Number>| number.and_then(|number| number.as_bits(record));
        let flag = |number: &Option<Number>| bits(number).is_some_and(|bits| bits != 0);
        let is_default = |root: &Option<Number>| bits(root).unwrap_or(DEFAULT_HIERARCHY) == DEFAULT_HIERARCHY;
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
            Self::Rename(fields) => Event::Rename(fields.read(record)?),
            Self::Exec { tid, old_tid, file } => {
                Event::Exec { tid: thread(tid), old_tid: thread(old_tid), file: text(file) }
            }
            Self::ProcessExit => Event::ProcessExit,
            Self::KvmEntry { tid, vcpu } => Event::KvmEntry { tid: thread(tid).unwrap_or(-1), vcpu: optional(vcpu) },
            Self::KvmExit { tid, vcpu, .. } => Event::KvmExit {
                tid: thread(tid).unwrap_or(-1),
                vcpu: optional(vcpu),
                reason: self.exit_reason(record)?,
            },
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
            Self::KvmMmio { tid, address, kind, value } => Event::KvmMmio {
                tid: thread(tid),
                address: address.as_bits(record)?,
                is_write: kind.is_none_or(|kind| kind.as_i64(record) == Some(MMIO_WRITE)),
                value: bits(value),
            },
            Self::KvmMsr { tid, register, is_write } => {
                let (register, is_write) = (register.as_u32(record)?, is_write.as_bits(record)? != 0);
                Event::KvmAccess { tid: thread(tid), access: KvmAccess::Msr { register, is_write } }
            }
            Self::KvmCpuid { tid, leaf } => {
                Event::KvmAccess { tid: thread(tid), access: KvmAccess::Cpuid { leaf: leaf.as_u32(record)? } }
            }
            Self::KvmPort { tid, port, is_write } => {
                let (port, is_write) = (u16::try_from(port.read(record)?).ok()?, is_write.as_bits(record)? != 0);
                Event::KvmAccess { tid: thread(tid), access: KvmAccess::Port { port, is_write } }
            }
            Self::VcpuThread { vcpu, tid } => {
                Event::VcpuThread { vcpu: vcpu.as_u32(record)?, tid: tid.as_i32(record)? }
            }
            Self::VmmEnter { vcpu } => Event::VmmEnter { vcpu: vcpu.as_u32(record)? },
            Self::VmmExit { vcpu, .. } => {
                Event::VmmExit { vcpu: vcpu.as_u32(record)?, reason: self.exit_reason(record)? }
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
            Self::NetNotified { net, queue } => {
                Event::NetNotified { net: net.as_u32(record)?, queue: queue.as_u32(record)? }
            }
            Self::NetPacket { net, is_received, id, bytes, done } => Event::NetPacket {
                net: net.as_u32(record)?,
                is_received: *is_received,
                id: id.as_bits(record)?,
                bytes: bytes.as_bits(record)?,
                progress: match done.as_bits(record)? {
                    0 => PacketProgress::Taken,
                    1 => PacketProgress::Done,
                    _ => PacketProgress::Dropped,
                },
            },
            Self::NetVhost { net, moves } => {
                Event::NetVhost { net: net.as_u32(record)?, moves: moves.as_u32(record)? > 0 }
            }
            Self::NetInterrupt { net, queue } => {
                Event::NetInterrupt { net: net.as_u32(record)?, queue: queue.as_u32(record)? }
            }
            Self::Packet { place, device, skb, bytes, result } => Event::Packet(NetworkPacket {
                place: *place,
                device: device.read(record)?,
                skb: skb.as_bits(record)?,
                bytes: bits(bytes).unwrap_or(0),
                is_refused: bits(result).is_some_and(|result| result != 0),
            }),
            Self::Control { what } => Event::Control { what: text(what) },
            Self::SyscallEnter { number, abi } => {
                let abi = bits(abi).map(u64::cast_signed);
                let number = names::syscall::in_table(number.as_i64(record)?, abi);
                Event::SyscallEnter { number, arguments: Arguments(*record) }
            }
            Self::SyscallExit { number, abi, result } => Event::SyscallExit {
                number: names::syscall::in_table(
                    bits(number).map_or(-1, u64::cast_signed),
                    bits(abi).map(u64::cast_signed),
                ),
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
            Self::TaskFound(fields) => Event::TaskFound(fields.read(record)?),
            Self::Cgroup { root, id, path } => {
                is_default(root).then_some(Event::Cgroup { id: id.as_bits(record)?, path: path.read(record)? })?
            }
            Self::CgroupAttach { root, tid, id, path } => is_default(root).then_some(Event::CgroupAttach {
                tid: tid.as_i32(record)?,
                id: id.as_bits(record)?,
                path: path.read(record)?,
            })?,
            Self::Mapping => Event::Mapping,
            Self::RecordingStops { offline } => Event::RecordingStops { is_offline: flag(offline) },
            Self::BlockIssue(fields) => Event::BlockIssue(fields.read(record)),
            Self::BlockComplete(fields) => Event::BlockComplete(fields.read(record)),
        })
    }
}

/// How the records of one event type are read. For who knows which event it is, single fields are read without the
/// others: what looks at every record of a running VM has to be quick.
#[derive(Clone, Copy, Debug)]
pub struct EventReader(Shape);

impl EventReader {
    /// Reads `schema` of a layer of `kind`; `None` when no analysis asks for it.
    #[must_use]
    pub fn new(kind: LayerKind, schema: &Schema) -> Option<Self> {
        Shape::new(kind, schema).map(Self)
    }

    /// What `record` says.
    #[must_use]
    pub fn read<'t>(&self, record: &StreamRecord<'t>) -> Option<Event<'t>> {
        self.0.read(record)
    }

    /// Of an [`Event::Switch`]: the task that ran, what became of it, and the one that runs.
    #[must_use]
    #[inline]
    pub fn switch(&self, record: &StreamRecord<'_>) -> Option<(Tid, u64, Tid)> {
        let Shape::Switch { prev, prev_state, next } = &self.0 else { return None };
        Some((prev.tid.as_i32(record)?, prev_state.as_bits(record)?, next.tid.as_i32(record)?))
    }

    /// Of an [`Event::Switch`]: the name of the task that runs. What is behind its first zero means nothing.
    #[must_use]
    #[inline]
    pub fn next_name(&self, record: &StreamRecord<'_>) -> [u8; 16] {
        let Shape::Switch { next, .. } = &self.0 else { return [0; 16] };
        next.name(record)
    }

    /// Of an [`Event::Wakeup`]: the task.
    #[must_use]
    #[inline]
    pub fn woken(&self, record: &StreamRecord<'_>) -> Option<Tid> {
        let Shape::Wakeup { task, .. } = &self.0 else { return None };
        task.tid.as_i32(record)
    }

    /// Of an [`Event::KvmEntry`] or [`Event::KvmExit`]: the thread, and the vCPU where the event says it.
    #[must_use]
    #[inline]
    pub fn kvm_vcpu(&self, record: &StreamRecord<'_>) -> Option<(Tid, Option<u32>)> {
        let (Shape::KvmEntry { tid, vcpu } | Shape::KvmExit { tid, vcpu, .. }) = &self.0 else { return None };
        let tid = tid.and_then(|tid| tid.as_i32(record)).unwrap_or(-1);
        Some((tid, vcpu.and_then(|vcpu| vcpu.as_u32(record))))
    }

    /// Of an [`Event::VmmEnter`] or [`Event::VmmExit`]: the vCPU.
    #[must_use]
    #[inline]
    pub fn vmm_vcpu(&self, record: &StreamRecord<'_>) -> Option<u32> {
        let (Shape::VmmEnter { vcpu } | Shape::VmmExit { vcpu, .. }) = &self.0 else { return None };
        vcpu.as_u32(record)
    }

    /// Of an [`Event::KvmExit`] or [`Event::VmmExit`]: why.
    #[must_use]
    #[inline]
    pub fn exit_reason(&self, record: &StreamRecord<'_>) -> Option<ExitReason> {
        self.0.exit_reason(record)
    }
}

/// Reads the events of merged records. How an event type is read is found out once for each source of the merge.
#[derive(Debug, Default)]
pub struct Decoder {
    /// By source of the merge and id of the event type; the outer `None` stands for what is not found out yet.
    shapes: Vec<Vec<Option<Option<Shape>>>>,
    /// Whether only events that come in pairs are read.
    only_pairs: bool,
}

impl Decoder {
    /// Reads only events that come in pairs, and those that explain why one is alone: of the host's kernel and the VMM the
    /// entries of vCPUs into the guest and their exits, and the VMM's control requests; of the guest's kernel what
    /// its tasks and interrupts begin and end. The tasks that they tell have no names.
    #[must_use]
    pub fn of_pairs() -> Self {
        Self { only_pairs: true, ..Self::default() }
    }

    /// What `record` says; `None` when no analysis asks for such records.
    pub fn event<'t>(&mut self, record: &MergedRecord<'t>) -> Option<Event<'t>> {
        self.read(record.source, record.layer.description.kind, &record.record)
    }

    /// What `record`, of the source `source` in a layer of `kind`, says.
    pub fn read<'t>(&mut self, source: usize, kind: LayerKind, record: &StreamRecord<'t>) -> Option<Event<'t>> {
        let id = usize::from(record.schema.description().id);
        let shape = match self.shapes.get(source).and_then(|shapes| shapes.get(id)) {
            Some(Some(shape)) => shape,
            _ => self.find_out(source, id, kind, record.schema),
        };
        shape.as_ref()?.read(record)
    }

    #[cold]
    #[inline(never)]
    fn find_out(&mut self, source: usize, id: usize, kind: LayerKind, schema: &Schema) -> &Option<Shape> {
        if self.shapes.len() <= source {
            self.shapes.resize(source + 1, Vec::new());
        }
        let Some(shapes) = self.shapes.get_mut(source) else { return &None };
        if shapes.len() <= id {
            shapes.resize(id + 1, None);
        }
        let Some(shape) = shapes.get_mut(id) else { return &None };
        let read = Shape::new(kind, schema);
        shape.insert(if self.only_pairs { read.and_then(|read| read.of_pair(kind)) } else { read })
    }
}
