//! Fields whose numbers stand for something that has a name, which a listing shows beside the number.

use crate::exit_reason::{ExitNumbering, ExitReason};
use crate::{msr_names, softirq_names, syscall_names, task_state_names};
use std::borrow::Cow;
use strata_recording::schema::{IntegerField, Schema};

/// Such a field of an event type.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    /// The field's position among the event's fields.
    pub position: usize,
    number: IntegerField,
    kind: Kind,
}

/// What the numbers stand for.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// A system call; and the field that says its ABI, where there is one.
    Call(Option<IntegerField>),
    Softirq,
    /// A model-specific register.
    Msr,
    /// In what state a task loses the CPU.
    TaskState,
    /// Why a vCPU left the guest, as KVM tells its user.
    KvmExit,
    /// The same, as the processor says it; and the field that says which processor's numbers they are.
    ProcessorExit(IntegerField),
}

impl Named {
    /// The field of the events of `schema`; `None` when they have none.
    pub fn of(schema: &Schema) -> Option<Self> {
        let (field, kind) = match schema.name() {
            "irq:softirq_entry" | "irq:softirq_exit" | "irq:softirq_raise" => ("vec", Kind::Softirq),
            "kvm:kvm_msr" => ("ecx", Kind::Msr),
            "sched:sched_switch" => ("prev_state", Kind::TaskState),
            "kvm:kvm_exit" => ("exit_reason", Kind::ProcessorExit(schema.integer("isa")?)),
            "kvm:kvm_userspace_exit" | "vmm:vcpu_exit" => ("reason", Kind::KvmExit),
            "raw_syscalls:sys_enter" | "raw_syscalls:sys_exit" => ("id", Kind::Call(schema.integer("abi"))),
            _ => return None,
        };
        let position = schema.description().fields.iter().position(|known| known.name == field)?;
        Some(Self { position, number: schema.integer(field)?, kind })
    }

    /// The number in a record's `payload`; `None` when the payload ends before it.
    pub fn number(&self, payload: &[u8]) -> Option<i64> {
        self.number.read(payload)
    }

    /// What `number` of that record stands for, and the name of that; `None` for numbers without a name.
    pub fn name(&self, number: i64, payload: &[u8]) -> Option<(&'static str, Cow<'static, str>)> {
        let exit = |numbering| {
            let number = u32::try_from(number).ok()?;
            Some(("exit", ExitReason { numbering, number }.known_name()?))
        };
        match self.kind {
            Kind::Call(abi) => Some(("call", syscall_names::shown(call(abi, number, payload))?)),
            Kind::Softirq => Some(("softirq", softirq_names::name(number)?.into())),
            Kind::Msr => Some(("msr", msr_names::name(u32::try_from(number).ok()?)?.into())),
            Kind::TaskState => Some(("state", task_state_names::name(number)?.into())),
            Kind::KvmExit => exit(ExitNumbering::Kvm),
            Kind::ProcessorExit(isa) => exit(ExitReason::numbering_of_isa(isa.read(payload)?)),
        }
    }

    /// The names of a system call's arguments, when `number` of a record's `payload` is one's.
    pub fn arguments(&self, number: i64, payload: &[u8]) -> Option<&'static [&'static str]> {
        let Kind::Call(abi) = self.kind else { return None };
        syscall_names::arguments(call(abi, number, payload))
    }
}

/// The system call that was recorded with `id` in `payload`.
fn call(abi: Option<IntegerField>, id: i64, payload: &[u8]) -> i64 {
    syscall_names::in_table(id, abi.and_then(|abi| abi.read(payload)))
}
