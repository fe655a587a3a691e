//! The event types of each layer, with the fields that a real recording has.

use FieldType::{I16, I32, I64, String, Text, U8, U16, U32, U64};
use shared_ring::event::{EventDescription, FieldDescription, FieldType, Integer};
use strata_recording::layer::LayerKind;

const COMM: FieldType = FieldType::CharArray(16);
const WORD: FieldType = FieldType::CharArray(8);
const STACK: FieldType = FieldType::Sequence(Integer::U64);

/// Name, type, and whether it is shown in hexadecimal.
type Field = (&'static str, FieldType, bool);

/// An event type of a layer.
pub(super) struct EventType {
    pub(super) layer: LayerKind,
    pub(super) id: u16,
    name: &'static str,
    pub(super) fields: &'static [Field],
}

impl EventType {
    fn description(&self) -> EventDescription {
        let field = |&(name, ty, hex): &Field| FieldDescription { name: name.into(), ty, hex };
        EventDescription {
            id: self.id,
            class: 0,
            name: self.name.into(),
            fields: self.fields.iter().map(field).collect(),
        }
    }
}

/// Descriptions of all event types of `layer`.
pub(super) fn of_layer(layer: LayerKind) -> Vec<EventDescription> {
    ALL.iter().filter(|event| event.layer == layer).map(|event| event.description()).collect()
}

/// Declares event types, and `ALL` of them.
macro_rules! event_types {
    ($($constant:ident = $layer:ident $id:literal $name:literal $fields:expr;)*) => {
        $(pub(super) const $constant: EventType =
            EventType { layer: LayerKind::$layer, id: $id, name: $name, fields: &$fields };)*
        const ALL: &[EventType] = &[$($constant),*];
    };
}

const fn number(name: &'static str, ty: FieldType) -> Field {
    (name, ty, false)
}

const fn address(name: &'static str, ty: FieldType) -> Field {
    (name, ty, true)
}

const PID: Field = number("common_pid", I32);

event_types! {
    HOST_SWITCH = HostKernel 1 "sched:sched_switch" [PID, number("prev_comm", COMM), number("prev_pid", I32),
        number("prev_prio", I32), number("prev_state", I64), number("next_comm", COMM), number("next_pid", I32),
        number("next_prio", I32)];
    HOST_WAKING = HostKernel 2 "sched:sched_waking" [PID, number("comm", COMM), number("pid", I32),
        number("prio", I32), number("target_cpu", I32)];
    HOST_WAKEUP = HostKernel 3 "sched:sched_wakeup" [PID, number("comm", COMM), number("pid", I32),
        number("prio", I32), number("target_cpu", I32)];
    HOST_RUNTIME = HostKernel 4 "sched:sched_stat_runtime" [PID, number("comm", COMM), number("pid", I32),
        number("runtime", U64), number("vruntime", U64)];
    KVM_ENTRY = HostKernel 10 "kvm:kvm_entry" [PID, number("vcpu_id", U32), address("rip", U64),
        number("immediate_exit", U8)];
    KVM_EXIT = HostKernel 11 "kvm:kvm_exit" [PID, number("exit_reason", U32), address("guest_rip", U64),
        number("isa", U32), address("info1", U64), address("info2", U64), address("intr_info", U32),
        address("error_code", U32), number("vcpu_id", U32)];
    KVM_USERSPACE_EXIT = HostKernel 12 "kvm:kvm_userspace_exit" [PID, number("reason", U32), number("errno", I32)];
    KVM_MSR = HostKernel 13 "kvm:kvm_msr" [PID, number("write", U32), address("ecx", U32), address("data", U64),
        number("exception", U8)];
    KVM_EMULATE = HostKernel 14 "kvm:kvm_emulate_insn" [PID, address("rip", U64), address("csbase", U32),
        number("len", U8), number("insn", String), number("flags", U8), number("failed", U8)];
    KVM_MMIO = HostKernel 15 "kvm:kvm_mmio" [PID, number("type", U32), number("len", U32), address("gpa", U64),
        address("val", U64)];
    KVM_PIO = HostKernel 16 "kvm:kvm_pio" [PID, number("rw", U32), address("port", U32), number("size", U32),
        number("count", U32), address("val", U32)];
    KVM_ACCEPT = HostKernel 17 "kvm:kvm_apic_accept_irq" [PID, address("apicid", U32), number("dm", U16),
        number("tm", U16), number("vec", U8)];
    KVM_INJECT = HostKernel 18 "kvm:kvm_inj_virq" [PID, address("vector", U32), number("soft", U8),
        number("reinjected", U8)];
    KVM_EOI = HostKernel 19 "kvm:kvm_eoi" [PID, address("apicid", U32), number("vector", I32)];

    VCPU_THREAD = Vmm 1 "vmm:vcpu_thread" [number("vcpu", U32), number("tid", U32)];
    VCPU_ENTER = Vmm 2 "vmm:vcpu_enter" [number("vcpu", U32)];
    VCPU_EXIT = Vmm 3 "vmm:vcpu_exit" [number("vcpu", U32), number("reason", U32)];
    PORT_ACCESS = Vmm 4 "vmm:port_access" [number("vcpu", U32), address("port", U16), number("size", U8),
        number("write", U8), address("value", U32)];
    BLOCK_REQUEST = Vmm 6 "vmm:block_request" [number("disk", U32), number("kind", COMM), number("sector", U64),
        number("bytes", U32), number("done", U8)];
    DISK_NOTIFIED = Vmm 11 "vmm:disk_notified" [number("disk", U32)];
    DISK_INTERRUPT = Vmm 12 "vmm:disk_interrupt" [number("disk", U32)];

    SWITCH = GuestKernel 1 "sched:sched_switch" [number("prev_comm", COMM), number("prev_pid", I32),
        number("prev_prio", I32), number("prev_state", I64), number("next_comm", COMM), number("next_pid", I32),
        number("next_prio", I32)];
    WAKING = GuestKernel 2 "sched:sched_waking" [number("comm", COMM), number("pid", I32), number("prio", I32),
        number("target_cpu", I32)];
    WAKEUP = GuestKernel 3 "sched:sched_wakeup" [number("comm", COMM), number("pid", I32), number("prio", I32),
        number("target_cpu", I32)];
    WAKEUP_NEW = GuestKernel 4 "sched:sched_wakeup_new" [number("comm", COMM), number("pid", I32),
        number("prio", I32), number("target_cpu", I32)];
    MIGRATE = GuestKernel 5 "sched:sched_migrate_task" [number("comm", COMM), number("pid", I32),
        number("prio", I32), number("orig_cpu", I32), number("dest_cpu", I32)];
    FORK = GuestKernel 6 "sched:sched_process_fork" [number("parent_comm", COMM), number("parent_pid", I32),
        number("child_comm", COMM), number("child_pid", I32)];
    PROCESS_EXIT = GuestKernel 7 "sched:sched_process_exit" [number("comm", COMM), number("pid", I32),
        number("prio", I32)];
    NEWTASK = GuestKernel 8 "task:task_newtask" [number("pid", I32), number("comm", COMM),
        address("clone_flags", U64), number("oom_score_adj", I16)];
    SYS_ENTER = GuestKernel 10 "raw_syscalls:sys_enter" [number("id", I64),
        address("args", FieldType::Array(Integer::U64, 6))];
    SYS_EXIT = GuestKernel 11 "raw_syscalls:sys_exit" [number("id", I64), number("ret", I64)];
    PAGE_FAULT = GuestKernel 12 "exceptions:page_fault_user" [address("address", U64), address("ip", U64),
        address("error_code", U64)];
    TIMER_ENTRY = GuestKernel 13 "irq_vectors:local_timer_entry" [number("vector", I32)];
    TIMER_EXIT = GuestKernel 14 "irq_vectors:local_timer_exit" [number("vector", I32)];
    IRQ_ENTRY = GuestKernel 15 "irq:irq_handler_entry" [number("irq", I32), number("name", Text)];
    IRQ_EXIT = GuestKernel 16 "irq:irq_handler_exit" [number("irq", I32), number("ret", I32)];
    SOFTIRQ_RAISE = GuestKernel 17 "irq:softirq_raise" [number("vec", U32)];
    SOFTIRQ_ENTRY = GuestKernel 18 "irq:softirq_entry" [number("vec", U32)];
    SOFTIRQ_EXIT = GuestKernel 19 "irq:softirq_exit" [number("vec", U32)];
    LOCK_BEGIN = GuestKernel 20 "lock:contention_begin" [address("lock_addr", U64), number("flags", U32)];
    LOCK_END = GuestKernel 21 "lock:contention_end" [address("lock_addr", U64), number("ret", I32)];
    BLOCK_ISSUE = GuestKernel 22 "block:block_rq_issue" [number("dev", U32), number("sector", U64),
        number("nr_sector", U32), number("bytes", U32), number("rwbs", WORD), number("comm", COMM),
        number("cmd", Text)];
    BLOCK_COMPLETE = GuestKernel 23 "block:block_rq_complete" [number("dev", U32), number("sector", U64),
        number("nr_sector", U32), number("error", I32), number("rwbs", WORD), number("cmd", Text)];
    SYMBOL = GuestKernel 65 "strata:symbol" [address("begin", U64), number("size", U64), number("name", Text)];
    LOCK_STACK = GuestKernel 66 "strata:stack" [address("stack", STACK)];
    SAMPLE = GuestKernel 67 "strata:sample" [address("ip", U64), number("pid", I32), number("tid", I32),
        number("user", U8), address("stack", STACK)];

    ROUND_BEGIN = GuestUser 1 "workload:round_begin" [number("thread", U32), number("round", U64)];
    ROUND_END = GuestUser 2 "workload:round_end" [number("thread", U32), number("round", U64)];
    FILE_READ = GuestUser 3 "workload:file_read" [number("path", String), number("bytes", U64)];
}
