//! The events of a kernel, out of its image: what tracefs would say of each in its `format` file.
//!
//! The image has a table of every event that is built in, with names, fields and how to print them. What it does not
//! have is the events' numbers, which the kernel gives out while it boots: [`KernelEvent::number_at`] says where in its
//! memory it puts them.

use super::btf::{Btf, BtfError};
use crate::kernel_image::KernelImage;
use std::collections::BTreeSet;
use std::fmt::Write;
use strata_abi::class;
use strata_host_kernel::{EventName, EventSchema};
use wildmatch::WildMatch;

/// Bytes of the fields that every event starts with, as every kernel has them that this reader knows.
const COMMON_BYTES: u32 = 8;
const COMMON_FIELDS: &str = "\
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

";
/// Most events that a table is read of, and most fields of one.
const MAX_EVENTS: u64 = 1 << 16;
const MAX_FIELDS: u64 = 256;
/// Groups of system calls. The kernel marks the tasks that are there when the first of their events is wanted, and a
/// new task takes that over from its parent: no task has it if the event is wanted at boot.
const SYSTEM_CALLS: [&str; 2] = ["raw_syscalls", "syscalls"];
/// Numbers of events are given to those that are checked before a guest runs: they only have to be possible.
const SOME_NUMBER: u16 = 1;

/// Why a kernel cannot be traced from outside.
#[derive(Debug, thiserror::Error)]
pub enum EventsError {
    /// There is no description of types.
    #[error("it has no description of its types (BTF): use a kernel built with CONFIG_DEBUG_INFO_BTF, or --agent")]
    NoBtf,
    /// The description cannot be read.
    #[error("its description of types (BTF) cannot be read: use --agent")]
    Btf(#[from] BtfError),
    /// It is too old to put a ring where its command line says.
    #[error("it is older than Linux 6.12, whose ring is the first that can lie where the host says: use --agent")]
    TooOld,
    /// It has no tables of symbols, or only those of functions.
    #[error(
        "it does not say where '{0}' lies: use a kernel built with CONFIG_KALLSYMS_ALL and CONFIG_KVM_GUEST, or --agent"
    )]
    NoSymbol(&'static str),
    /// What it has is laid out in another way than is known.
    #[error("its {0} have a layout that strata does not know: use --agent")]
    Layout(&'static str),
    /// System calls cannot be recorded.
    #[error(
        "of '{0}' nothing would be recorded: a kernel traces the system calls only of tasks that are there when that \
         is asked for, and of their children, and at boot there are none: leave it out, or use --agent"
    )]
    SystemCalls(String),
    /// A choice of events has none.
    #[error("it has no event '{pattern}'; its groups of events are {groups}")]
    NoEvent {
        pattern: String,
        /// Groups that there are.
        groups: String,
    },
}

/// Addresses of the kernel's that are read in the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbols {
    /// The kernel's name and version, as text.
    pub banner: u64,
    /// What the scheduler's clock takes off kvm-clock.
    pub clock_offset: u64,
    /// The function `schedule`.
    pub schedule: u64,
    /// Where a pointer is that never changes, and what it is if the image lies where it was linked for.
    pub pointer: (u64, u64),
}

/// An event of the kernel.
#[derive(Clone, Debug)]
pub struct KernelEvent {
    /// Group and name.
    pub name: EventName,
    /// Where the kernel puts its number, as linked: a `u32`.
    pub number_at: u64,
    /// Its format file from behind the number on.
    format: String,
}

impl KernelEvent {
    /// How its records are read if its number is `number`; `None` if they cannot be.
    #[must_use]
    pub fn schema(&self, number: u16) -> Option<EventSchema> {
        let format = format!("name: {}\nID: {number}\nformat:\n{COMMON_FIELDS}{}", self.name.name, self.format);
        let mut schema = EventSchema::parse(&self.name, &format).ok()?;
        schema.description.class = class_of(&self.name.group);
        Some(schema)
    }
}

/// The class that the events of a group are in.
fn class_of(group: &str) -> u8 {
    match group {
        "sched" => class::SCHED,
        "irq" => class::IRQ,
        "exceptions" => class::EXCEPTION,
        "timer" => class::TIMER,
        "signal" => class::SIGNAL,
        "irq_vectors" => class::IRQ_VECTOR,
        "workqueue" => class::WORKQUEUE,
        "rcu" => class::RCU,
        "power" => class::POWER,
        "block" => class::BLOCK,
        "net" | "sock" | "skb" | "tcp" => class::NETWORK,
        "kmem" => class::ALLOCATION,
        "lock" => class::LOCK,
        _ => class::OTHER,
    }
}

/// Where the members lie that a table of events is read by.
struct Layout {
    class: u64,
    name: u64,
    flags: u64,
    number: u64,
    print: u64,
    is_tracepoint: u32,
    system: u64,
    fields: u64,
    tracepoint_name: u64,
    field: FieldLayout,
}

struct FieldLayout {
    bytes: u64,
    ty: u64,
    name: u64,
    size: u64,
    align: u64,
    signed_bits: u32,
    length: u64,
}

impl Layout {
    fn new(btf: &Btf<'_>) -> Option<Self> {
        let member = |name, path: &[&str]| Some(u64::from(btf.member(name, path)?.bytes()));
        let call = |path: &[&str]| member("trace_event_call", path);
        let field = |path| member("trace_event_fields", &[path]);
        (btf.size("trace_entry")? == COMMON_BYTES).then_some(())?;
        Some(Self {
            class: call(&["class"])?,
            name: call(&["name"])?,
            flags: call(&["flags"])?,
            number: call(&["event", "type"])?,
            print: call(&["print_fmt"])?,
            is_tracepoint: btf.enumerator("TRACE_EVENT_FL_TRACEPOINT")?,
            system: member("trace_event_class", &["system"])?,
            fields: member("trace_event_class", &["fields_array"])?,
            tracepoint_name: member("tracepoint", &["name"])?,
            field: FieldLayout {
                bytes: u64::from(btf.size("trace_event_fields")?),
                ty: field("type")?,
                name: field("name")?,
                size: field("size")?,
                align: field("align")?,
                signed_bits: btf.member("trace_event_fields", &["is_signed"])?.bits,
                length: field("len")?,
            },
        })
    }
}

/// The events of `image`, whose types `btf` describes, and where else it is looked into.
///
/// # Errors
/// The image lacks what they are found by.
pub fn events(image: &KernelImage, btf: &Btf<'_>) -> Result<(Vec<KernelEvent>, Symbols), EventsError> {
    const WANTED: [&str; 5] =
        ["__start_ftrace_events", "__stop_ftrace_events", "linux_banner", "kvm_sched_clock_offset", "schedule"];
    let kallsyms = image.kallsyms().ok_or(EventsError::NoSymbol("_text"))?;
    let [start, stop, banner, clock_offset, schedule] = kallsyms.addresses(WANTED);
    let start = start.ok_or(EventsError::NoSymbol("__start_ftrace_events"))?;
    let stop = stop.ok_or(EventsError::NoSymbol("__stop_ftrace_events"))?;
    let layout = Layout::new(btf).ok_or(EventsError::Layout("events"))?;
    let count = stop.saturating_sub(start) / 8;
    if count == 0 || count > MAX_EVENTS {
        return Err(EventsError::Layout("events"));
    }
    // Events whose fields a function makes up are left out, as are system calls.
    let all = (0..count).filter_map(|index| event(image, &layout, image.u64_at(start + 8 * index)?));
    let all: Vec<_> = all.collect();
    let class_at = image.u64_at(start).and_then(|call| call.checked_add(layout.class));
    let pointer = class_at.and_then(|at| Some((at, image.u64_at(at)?)));
    let symbols = Symbols {
        banner: banner.ok_or(EventsError::NoSymbol("linux_banner"))?,
        clock_offset: clock_offset.ok_or(EventsError::NoSymbol("kvm_sched_clock_offset"))?,
        schedule: schedule.ok_or(EventsError::NoSymbol("schedule"))?,
        pointer: pointer.ok_or(EventsError::Layout("events"))?,
    };
    if all.is_empty() { Err(EventsError::Layout("events")) } else { Ok((all, symbols)) }
}

fn event(image: &KernelImage, layout: &Layout, call: u64) -> Option<KernelEvent> {
    let pointer = |at: u64, offset: u64| image.u64_at(at.checked_add(offset)?);
    let class = pointer(call, layout.class)?;
    let named = pointer(call, layout.name)?;
    let flags = image.u32_at(call.checked_add(layout.flags)?)?;
    let name = if flags & layout.is_tracepoint == 0 { named } else { pointer(named, layout.tracepoint_name)? };
    let group = image.text_at(pointer(class, layout.system)?)?;
    let name = EventName::parse(&format!("{group}:{}", image.text_at(name)?))?;
    if SYSTEM_CALLS.contains(&name.group.as_str()) {
        return None;
    }
    let print = image.text_at(pointer(call, layout.print)?)?;
    let mut format = fields(image, &layout.field, pointer(class, layout.fields)?)?;
    write!(format, "\nprint fmt: {print}\n").ok()?;
    let number_at = call.checked_add(layout.number)?;
    Some(KernelEvent { name, number_at, format }).filter(|event| event.schema(SOME_NUMBER).is_some())
}

/// The lines of the fields at `array`, which ends with one without a type.
fn fields(image: &KernelImage, layout: &FieldLayout, array: u64) -> Option<String> {
    let mut text = String::new();
    let mut offset = u64::from(COMMON_BYTES);
    for index in 0..MAX_FIELDS {
        let field = array.checked_add(layout.bytes * index)?;
        let ty = image.u64_at(field.checked_add(layout.ty)?)?;
        if ty == 0 {
            return Some(text);
        }
        let ty = image.text_at(ty)?;
        let name = image.text_at(image.u64_at(field.checked_add(layout.name)?)?)?;
        let number = |member: u64| image.u32_at(field.checked_add(member)?).map(u64::from);
        let (size, align) = (number(layout.size)?, number(layout.align)?);
        let byte = image.at(field.checked_add(u64::from(layout.signed_bits / 8))?, 1)?[0];
        let signed = byte >> (layout.signed_bits % 8) & 1;
        // As the kernel lays them out.
        offset = offset.checked_next_multiple_of(align.max(1))?;
        let length = number(layout.length)?;
        let declared = match ty.split_once('[') {
            Some((element, _)) if !ty.starts_with("__data_loc") && !ty.starts_with("__rel_loc") => match length {
                0 => format!("{element} {name}[]"),
                _ => format!("{element} {name}[{length}]"),
            },
            _ => format!("{ty} {name}"),
        };
        writeln!(text, "\tfield:{declared};\toffset:{offset};\tsize:{size};\tsigned:{signed};").ok()?;
        offset = offset.checked_add(size)?;
    }
    None
}

/// Those of `events` that `patterns` name: globs `GROUP:EVENT`, or a `GROUP`, with commas between them.
///
/// # Errors
/// A pattern names none, or system calls.
pub fn choose(events: &[KernelEvent], patterns: &str) -> Result<Vec<KernelEvent>, EventsError> {
    let patterns: Vec<&str> = patterns.split(',').collect();
    for pattern in &patterns {
        let group = pattern.split(':').next().unwrap_or(pattern);
        if SYSTEM_CALLS.contains(&group) {
            return Err(EventsError::SystemCalls((*pattern).into()));
        }
        if !events.iter().any(|event| matches(pattern, event)) {
            let groups: BTreeSet<&str> = events.iter().map(|event| event.name.group.as_str()).collect();
            let groups = groups.into_iter().collect::<Vec<_>>().join(", ");
            return Err(EventsError::NoEvent { pattern: (*pattern).into(), groups });
        }
    }
    let chosen = events.iter().filter(|event| patterns.iter().any(|pattern| matches(pattern, event)));
    Ok(chosen.cloned().collect())
}

fn matches(pattern: &str, event: &KernelEvent) -> bool {
    WildMatch::new(pattern).matches(&event.name.to_string())
}

/// What the kernel's command line takes for `patterns`. It knows `*` only in place of a whole group or event, so of
/// other globs it gets the names of those of the `chosen` events that they match.
#[must_use]
pub fn for_command_line(chosen: &[KernelEvent], patterns: &str) -> String {
    let mut taken: Vec<String> = Vec::new();
    for pattern in patterns.split(',') {
        if pattern.split(':').all(|part| part == "*" || !part.contains(['*', '?'])) {
            taken.push(pattern.into());
        } else {
            let matching = chosen.iter().filter(|event| matches(pattern, event));
            taken.extend(matching.map(|event| event.name.to_string()));
        }
    }
    taken.join(",")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn kernel_event(name: &str) -> KernelEvent {
        let format = "\tfield:char comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\nprint fmt: \"%s\", REC->comm\n";
        kernel_event_of(name, format)
    }

    pub(in super::super) fn kernel_event_of(name: &str, format: &str) -> KernelEvent {
        KernelEvent { name: EventName::parse(name).unwrap(), number_at: 0, format: format.into() }
    }

    #[test]
    fn schema_has_the_number_and_the_class_of_the_group() {
        let schema = kernel_event("sched:sched_switch").schema(314).unwrap();

        assert_eq!((schema.description.id, schema.description.class), (314, class::SCHED));
        assert_eq!(schema.place("comm"), Some(8..24));
    }

    #[test]
    fn events_are_chosen_by_globs() {
        let all = ["sched:sched_switch", "sched:sched_waking", "irq:softirq_entry"].map(kernel_event);

        let chosen = choose(&all, "irq:*,sched:*waking").unwrap();

        let names: Vec<_> = chosen.iter().map(|event| event.name.to_string()).collect();
        assert_eq!(names, ["sched:sched_waking", "irq:softirq_entry"]);
    }

    #[test]
    fn glob_that_the_kernel_does_not_know_becomes_names_on_its_command_line() {
        let all = ["sched:sched_switch", "sched:sched_waking", "sched:sched_wakeup", "irq:irq_entry"].map(kernel_event);

        let taken = |patterns| for_command_line(&all, patterns);

        assert_eq!(taken("sched:*,*:irq_entry,*:*,sched:sched_switch"), "sched:*,*:irq_entry,*:*,sched:sched_switch");
        assert_eq!(taken("sched:sched_w*,irq:*"), "sched:sched_waking,sched:sched_wakeup,irq:*");
        assert_eq!(taken("i?q:*"), "irq:irq_entry");
    }

    #[test]
    fn system_calls_are_refused_since_none_would_be_recorded() {
        let all = ["sched:sched_switch"].map(kernel_event);

        let refused = choose(&all, "sched:*,raw_syscalls:sys_enter").unwrap_err().to_string();

        assert!(refused.starts_with("of 'raw_syscalls:sys_enter' nothing would be recorded"), "{refused}");
    }

    #[test]
    fn choice_of_what_there_is_not_names_it_and_what_there_is() {
        let error = choose(&[kernel_event("sched:sched_switch")], "sched:*,kvm:*").unwrap_err().to_string();

        assert!(error.contains("no event 'kvm:*'") && error.contains("are sched"), "{error}");
    }
}
