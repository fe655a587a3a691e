//! The guest kernel's events: one entry per tracepoint that the module probes.
//!
//! Names and fields are those of the kernel's own `format` files, so that what is written about them elsewhere holds
//! here. Text is cut to a fixed length.

use shared_ring::event::{Event, Field, FieldType, class};

/// Length of a task's name in the kernel (`TASK_COMM_LEN`), bytes.
const COMM: FieldType = FieldType::CharArray(16);
const PID: FieldType = FieldType::I32;
const PRIORITY: FieldType = FieldType::I32;

const PAGE_FAULT: &[Field] = &[
    Field::hex("address", FieldType::U64),
    Field::hex("ip", FieldType::U64),
    Field::hex("error_code", FieldType::U64),
];
const SOFTIRQ: &[Field] = &[Field::new("vec", FieldType::U32)];
const VECTOR: &[Field] = &[Field::new("vector", FieldType::I32)];

/// All of them; ids count from 1 in this order.
pub const EVENTS: &[Event] = &[
    Event {
        id: 1,
        class: class::SCHED,
        name: "sched:sched_switch",
        fields: &[
            Field::new("prev_comm", COMM),
            Field::new("prev_pid", PID),
            Field::new("prev_prio", PRIORITY),
            Field::hex("prev_state", FieldType::I64),
            Field::new("next_comm", COMM),
            Field::new("next_pid", PID),
            Field::new("next_prio", PRIORITY),
        ],
    },
    Event {
        id: 2,
        class: class::SCHED,
        name: "sched:sched_wakeup",
        fields: &[
            Field::new("comm", COMM),
            Field::new("pid", PID),
            Field::new("prio", PRIORITY),
            Field::new("target_cpu", FieldType::I32),
        ],
    },
    Event {
        id: 3,
        class: class::TASK,
        name: "sched:sched_process_fork",
        fields: &[
            Field::new("parent_comm", COMM),
            Field::new("parent_pid", PID),
            Field::new("child_comm", COMM),
            Field::new("child_pid", PID),
        ],
    },
    Event {
        id: 4,
        class: class::TASK,
        name: "sched:sched_process_exec",
        fields: &[Field::new("filename", FieldType::CharArray(64)), Field::new("pid", PID), Field::new("old_pid", PID)],
    },
    Event {
        id: 5,
        class: class::TASK,
        name: "sched:sched_process_exit",
        fields: &[Field::new("comm", COMM), Field::new("pid", PID), Field::new("prio", PRIORITY)],
    },
    Event {
        id: 6,
        class: class::IRQ,
        name: "irq:irq_handler_entry",
        fields: &[Field::new("irq", FieldType::I32), Field::new("name", FieldType::CharArray(16))],
    },
    Event {
        id: 7,
        class: class::IRQ,
        name: "irq:irq_handler_exit",
        fields: &[Field::new("irq", FieldType::I32), Field::new("ret", FieldType::I32)],
    },
    Event { id: 8, class: class::SOFTIRQ, name: "irq:softirq_entry", fields: SOFTIRQ },
    Event { id: 9, class: class::SOFTIRQ, name: "irq:softirq_exit", fields: SOFTIRQ },
    Event {
        id: 10,
        class: class::SYSCALL,
        name: "raw_syscalls:sys_enter",
        fields: &[
            Field::new("id", FieldType::I64),
            Field::hex("arg0", FieldType::U64),
            Field::hex("arg1", FieldType::U64),
            Field::hex("arg2", FieldType::U64),
            Field::hex("arg3", FieldType::U64),
            Field::hex("arg4", FieldType::U64),
            Field::hex("arg5", FieldType::U64),
        ],
    },
    Event {
        id: 11,
        class: class::SYSCALL,
        name: "raw_syscalls:sys_exit",
        fields: &[Field::new("id", FieldType::I64), Field::new("ret", FieldType::I64)],
    },
    Event { id: 12, class: class::EXCEPTION, name: "exceptions:page_fault_user", fields: PAGE_FAULT },
    Event { id: 13, class: class::EXCEPTION, name: "exceptions:page_fault_kernel", fields: PAGE_FAULT },
    Event { id: 14, class: class::TIMER, name: "irq_vectors:local_timer_entry", fields: VECTOR },
    Event { id: 15, class: class::TIMER, name: "irq_vectors:local_timer_exit", fields: VECTOR },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_count_from_one() {
        let expected = 1..=u16::try_from(EVENTS.len()).unwrap();

        assert!(EVENTS.iter().map(|event| event.id).eq(expected));
    }

    #[test]
    fn every_payload_has_a_fixed_size() {
        assert!(EVENTS.iter().all(|event| event.fixed_size().is_some()));
    }

    #[test]
    fn names_are_unique_and_grouped() {
        let unique: std::collections::BTreeSet<_> = EVENTS.iter().map(|event| event.name).collect();

        assert_eq!(unique.len(), EVENTS.len());
        assert!(EVENTS.iter().all(|event| event.name.split(':').count() == 2));
    }
}
