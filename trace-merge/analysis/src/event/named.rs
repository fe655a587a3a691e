//! Fields whose numbers stand for something that has a name, which a listing shows beside the number.

use crate::exit_reason::{ExitNumbering, ExitReason};
use crate::names;
use shared_ring::event::FieldDescription;
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
    /// A result, which is an error where it is negative.
    Error,
    /// An interrupt vector of Linux.
    Vector,
    /// An exception of the processor.
    Exception,
    Signal,
    /// Flags that say what kind of lock it is.
    Lock,
    /// A block device.
    Device,
    /// The error code of a page fault.
    PageFault,
    /// What an access to a device's memory was.
    Mmio,
    /// What an access to a port was.
    Port,
}

/// Fields that hold a result of the kernel, which is an error where it is negative.
const RESULTS: [&str; 4] = ["ret", "error", "err", "errno"];

/// Groups of events whose `dev` is a block device.
const DEVICES: [&str; 5] = ["block:", "ext4:", "f2fs:", "jbd2:", "xfs:"];

impl Named {
    /// The fields of the events of `schema`, in their order.
    #[must_use]
    pub fn all(schema: &Schema) -> Vec<Self> {
        let fields = schema.description().fields.iter().enumerate();
        let named = |(position, field): (usize, &FieldDescription)| {
            let kind = Kind::of(schema, &field.name)?;
            Some(Self { position, number: schema.integer(&field.name)?, kind })
        };
        fields.filter_map(named).collect()
    }

    /// The key of the name in JSON, where the number's is `field`.
    #[must_use]
    pub fn key(&self, field: &str) -> Cow<'static, str> {
        match self.kind {
            Kind::Call(_) => "call".into(),
            Kind::Softirq => "softirq".into(),
            Kind::Msr => "msr".into(),
            Kind::TaskState => "state".into(),
            Kind::KvmExit | Kind::ProcessorExit(_) => "exit".into(),
            _ => format!("{field}_name").into(),
        }
    }

    /// Whether it is a result, whose errors are numbers with a minus.
    #[must_use]
    pub const fn is_result(&self) -> bool {
        matches!(self.kind, Kind::Error)
    }

    /// Whether it is a system call.
    #[must_use]
    pub const fn is_call(&self) -> bool {
        matches!(self.kind, Kind::Call(_))
    }

    /// The number in a record's `payload`; `None` when the payload ends before it.
    pub fn number(&self, payload: &[u8]) -> Option<i64> {
        self.number.read(payload)
    }

    /// The name of what `number` of that record stands for; `None` for numbers without a name.
    pub fn name(&self, number: i64, payload: &[u8]) -> Option<Cow<'static, str>> {
        let exit = |numbering| ExitReason { numbering, number: u32::try_from(number).ok()? }.known_name();
        match self.kind {
            Kind::Call(abi) => names::syscall::shown(call(abi, number, payload)),
            Kind::Softirq => names::softirq::name(number).map(Into::into),
            Kind::Msr => names::msr::name(u32::try_from(number).ok()?).map(Into::into),
            Kind::TaskState => names::task_state::name(number).map(Into::into),
            Kind::KvmExit => exit(ExitNumbering::Kvm),
            Kind::ProcessorExit(isa) => exit(ExitReason::numbering_of_isa(isa.read(payload)?)),
            Kind::Error => names::errno::name(number.checked_neg()?).map(Into::into),
            Kind::Vector => names::vector::name(number).map(Into::into),
            Kind::Exception => names::vector::exception(number).map(Into::into),
            Kind::Signal => names::signal::name(number).map(Into::into),
            Kind::Lock => Some(names::lock::kind(number.cast_unsigned()).into()),
            Kind::Device => Some(names::device::name(u64::try_from(number).ok()?).into()),
            Kind::PageFault => Some(names::access::page_fault(number.cast_unsigned()).into()),
            Kind::Mmio => names::access::mmio(number).map(Into::into),
            Kind::Port => names::access::port(number).map(Into::into),
        }
    }

    /// The field that decides on the name besides the number, where there is one: the ABI of a system call, or which
    /// processor's numbers of exits they are.
    #[must_use]
    pub const fn beside(&self) -> Option<IntegerField> {
        match self.kind {
            Kind::Call(field) => field,
            Kind::ProcessorExit(isa) => Some(isa),
            _ => None,
        }
    }

    /// The system call that `number` of a record's `payload` is, and the names of its arguments.
    pub fn arguments(&self, number: i64, payload: &[u8]) -> Option<(i64, &'static [&'static str])> {
        let Kind::Call(abi) = self.kind else { return None };
        let number = call(abi, number, payload);
        Some((number, names::syscall::arguments(number)?))
    }
}

impl Kind {
    /// What the numbers of `field` of the events of `schema` stand for; `None` when they have no names.
    fn of(schema: &Schema, field: &str) -> Option<Self> {
        let event = schema.name();
        let kind = match (event, field) {
            ("irq:softirq_entry" | "irq:softirq_exit" | "irq:softirq_raise", "vec") => Self::Softirq,
            ("kvm:kvm_msr", "ecx") => Self::Msr,
            ("kvm:kvm_inj_exception", "exception") => Self::Exception,
            ("lock:contention_begin", "flags") => Self::Lock,
            ("sched:sched_switch", "prev_state") => Self::TaskState,
            ("kvm:kvm_exit", "exit_reason") => Self::ProcessorExit(schema.integer("isa")?),
            ("kvm:kvm_userspace_exit" | "vmm:vcpu_exit", "reason") => Self::KvmExit,
            ("raw_syscalls:sys_enter" | "raw_syscalls:sys_exit", "id") => Self::Call(schema.integer("abi")),
            ("kvm:kvm_mmio", "type") => Self::Mmio,
            ("kvm:kvm_pio", "rw") => Self::Port,
            ("exceptions:page_fault_user" | "exceptions:page_fault_kernel" | "kvm:kvm_page_fault", "error_code") => {
                Self::PageFault
            }
            (_, "dev") if DEVICES.iter().any(|group| event.starts_with(group)) => Self::Device,
            (_, "vector") if event.starts_with("irq_vectors:") => Self::Vector,
            (_, "sig") if event.starts_with("signal:") => Self::Signal,
            // An interrupt's handler says something else by it.
            ("irq:irq_handler_exit", "ret") => return None,
            (_, result) if RESULTS.contains(&result) && schema.integer(result)?.is_signed() => Self::Error,
            _ => return None,
        };
        Some(kind)
    }
}

/// The system call that was recorded with `id` in `payload`.
fn call(abi: Option<IntegerField>, id: i64, payload: &[u8]) -> i64 {
    names::syscall::in_table(id, abi.and_then(|abi| abi.read(payload)))
}
