//! The messages of Perfetto's trace format that an export consists of: of each only the fields that are written.
//!
//! Each is declared in a file below `protos/perfetto/` of Perfetto's sources, which is named with it, together with the
//! numbers of its fields. They are part of the format: none of them ever changes.

pub(super) mod wire;

use prost::Message;

/// Numbers of the fields that are written without a message's type, of those below. As parts of the types they are what
/// tests read an export by.
pub(super) mod field {
    pub(in super::super) const TRACE_PACKET: u32 = 1;
    pub(in super::super) const PACKET_FTRACE_EVENTS: u32 = 1;
    pub(in super::super) const PACKET_TIMESTAMP: u32 = 8;
    pub(in super::super) const PACKET_SEQUENCE_ID: u32 = 10;
    pub(in super::super) const PACKET_TRACK_EVENT: u32 = 11;
    pub(in super::super) const PACKET_SEQUENCE_FLAGS: u32 = 13;
    pub(in super::super) const PACKET_MACHINE_ID: u32 = 98;
    pub(in super::super) const PACKET_TASK_STATE: u32 = 117;
    pub(in super::super) const BUNDLE_CPU: u32 = 1;
    pub(in super::super) const BUNDLE_EVENT: u32 = 2;
    pub(in super::super) const BUNDLE_FTRACE_CLOCK: u32 = 5;
    pub(in super::super) const BUNDLE_GENERIC_EVENT_DESCRIPTORS: u32 = 11;
    pub(in super::super) const TASK_STATE_CPU: u32 = 1;
    pub(in super::super) const TASK_STATE_COMM: u32 = 2;
    pub(in super::super) const TASK_STATE_TID: u32 = 3;
    pub(in super::super) const TASK_STATE_STATE: u32 = 4;
    pub(in super::super) const TASK_STATE_PRIO: u32 = 5;
    pub(in super::super) const TRACK_EVENT_ANNOTATION: u32 = 4;
    pub(in super::super) const TRACK_EVENT_TYPE: u32 = 9;
    pub(in super::super) const TRACK_EVENT_NAME_IID: u32 = 10;
    pub(in super::super) const TRACK_EVENT_TRACK_UUID: u32 = 11;
    pub(in super::super) const TRACK_EVENT_NAME: u32 = 23;
    pub(in super::super) const TRACK_EVENT_COUNTER_VALUE: u32 = 30;
    pub(in super::super) const ANNOTATION_UNSIGNED: u32 = 3;
    pub(in super::super) const ANNOTATION_SIGNED: u32 = 4;
    pub(in super::super) const ANNOTATION_DOUBLE: u32 = 5;
    pub(in super::super) const ANNOTATION_TEXT: u32 = 6;
    pub(in super::super) const ANNOTATION_POINTER: u32 = 7;
    pub(in super::super) const ANNOTATION_NAME: u32 = 10;
    pub(in super::super) const FTRACE_TIMESTAMP: u32 = 1;
    pub(in super::super) const FTRACE_PID: u32 = 2;
    pub(in super::super) const FTRACE_WAKEUP: u32 = 17;
    pub(in super::super) const FTRACE_WAKING: u32 = 20;
    pub(in super::super) const FTRACE_SOFTIRQ_ENTRY: u32 = 24;
    pub(in super::super) const FTRACE_SOFTIRQ_EXIT: u32 = 25;
    pub(in super::super) const FTRACE_IRQ_ENTRY: u32 = 36;
    pub(in super::super) const FTRACE_IRQ_EXIT: u32 = 37;
    pub(in super::super) const FTRACE_WAKEUP_NEW: u32 = 114;
    pub(in super::super) const FTRACE_SYS_ENTER: u32 = 329;
    pub(in super::super) const FTRACE_SYS_EXIT: u32 = 330;
    pub(in super::super) const WAKEUP_COMM: u32 = 1;
    pub(in super::super) const WAKEUP_PID: u32 = 2;
    pub(in super::super) const WAKEUP_TARGET_CPU: u32 = 5;
    pub(in super::super) const SOFTIRQ_VEC: u32 = 1;
    pub(in super::super) const IRQ_IRQ: u32 = 1;
    pub(in super::super) const IRQ_ENTRY_NAME: u32 = 2;
    pub(in super::super) const IRQ_EXIT_RET: u32 = 2;
    pub(in super::super) const SYSCALL_ID: u32 = 1;
    pub(in super::super) const SYSCALL_ARGS: u32 = 2;
    pub(in super::super) const SYSCALL_RET: u32 = 2;
}

/// `trace/trace_packet.proto`, `TracePacket`: what a trace is a sequence of, as field 1 of `trace/trace.proto`, `Trace`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TracePacket {
    #[prost(message, optional, tag = "1")]
    pub(super) ftrace_events: Option<FtraceEventBundle>,
    #[prost(message, optional, tag = "2")]
    pub(super) process_tree: Option<ProcessTree>,
    #[prost(message, optional, tag = "6")]
    pub(super) clock_snapshot: Option<ClockSnapshot>,
    /// Nanoseconds of the clock that a snapshot names, else of `CLOCK_BOOTTIME`.
    #[prost(uint64, optional, tag = "8")]
    pub(super) timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    pub(super) trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "11")]
    pub(super) track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    pub(super) interned_data: Option<InternedData>,
    #[prost(uint32, optional, tag = "13")]
    pub(super) sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "45")]
    pub(super) system_info: Option<SystemInfo>,
    #[prost(message, optional, tag = "60")]
    pub(super) track_descriptor: Option<TrackDescriptor>,
    /// Absent for the host's machine.
    #[prost(uint32, optional, tag = "98")]
    pub(super) machine_id: Option<u32>,
    #[prost(message, optional, tag = "117")]
    pub(super) generic_kernel_task_state_event: Option<GenericKernelTaskStateEvent>,
}

/// `TracePacket.SequenceFlags`: what was interned before does not hold any more.
pub(super) const SEQ_INCREMENTAL_STATE_CLEARED: u32 = 1;
/// `TracePacket.SequenceFlags`: the packet refers to what was interned.
pub(super) const SEQ_NEEDS_INCREMENTAL_STATE: u32 = 2;

/// `trace/ps/process_tree.proto`, `ProcessTree`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessTree {
    #[prost(message, repeated, tag = "1")]
    pub(super) processes: Vec<Process>,
    #[prost(message, repeated, tag = "2")]
    pub(super) threads: Vec<Thread>,
}

/// `ProcessTree.Process`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Process {
    #[prost(int32, optional, tag = "1")]
    pub(super) pid: Option<i32>,
    /// The first word is the name.
    #[prost(string, repeated, tag = "3")]
    pub(super) cmdline: Vec<String>,
}

/// `ProcessTree.Thread`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Thread {
    #[prost(int32, optional, tag = "1")]
    pub(super) tid: Option<i32>,
    #[prost(string, optional, tag = "2")]
    pub(super) name: Option<String>,
    #[prost(int32, optional, tag = "3")]
    pub(super) tgid: Option<i32>,
}

/// `trace/clock_snapshot.proto`, `ClockSnapshot`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    pub(super) clocks: Vec<Clock>,
    /// The clock of times without one; `CLOCK_BOOTTIME` where none is named.
    #[prost(uint32, optional, tag = "2")]
    pub(super) primary_trace_clock: Option<u32>,
}

/// `ClockSnapshot.Clock`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Clock {
    #[prost(uint32, optional, tag = "1")]
    pub(super) clock_id: Option<u32>,
    #[prost(uint64, optional, tag = "2")]
    pub(super) timestamp: Option<u64>,
}

/// `common/builtin_clock.proto`: UTC.
pub(super) const CLOCK_REALTIME: u32 = 1;
/// `common/builtin_clock.proto`.
pub(super) const CLOCK_MONOTONIC: u32 = 3;
/// `common/builtin_clock.proto`.
pub(super) const CLOCK_MONOTONIC_RAW: u32 = 5;
/// `common/builtin_clock.proto`: the clock that packets without another one have.
pub(super) const CLOCK_BOOTTIME: u32 = 6;

/// `common/system_info.proto`, `SystemInfo`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SystemInfo {
    #[prost(message, optional, tag = "1")]
    pub(super) utsname: Option<Utsname>,
    /// Label of the machine, for versions of Perfetto that show one (from v57 on).
    #[prost(string, optional, tag = "17")]
    pub(super) machine_name: Option<String>,
}

/// `common/system_info.proto`, `Utsname`. Names of system calls follow from `machine`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Utsname {
    #[prost(string, optional, tag = "1")]
    pub(super) sysname: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub(super) release: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub(super) machine: Option<String>,
}

/// `trace/generic_kernel/generic_task.proto`, `GenericKernelTaskStateEvent`: a thread is in another state from now on.
#[derive(Clone, PartialEq, Message)]
pub(super) struct GenericKernelTaskStateEvent {
    /// The CPU that it runs on; without a meaning in other states.
    #[prost(int32, optional, tag = "1")]
    pub(super) cpu: Option<i32>,
    #[prost(string, optional, tag = "2")]
    pub(super) comm: Option<String>,
    #[prost(int64, optional, tag = "3")]
    pub(super) tid: Option<i64>,
    #[prost(enumeration = "TaskState", optional, tag = "4")]
    pub(super) state: Option<i32>,
    /// As the kernel counts; below 100 of real time. Without a meaning in other states than running.
    #[prost(int32, optional, tag = "5")]
    pub(super) prio: Option<i32>,
}

/// `GenericKernelTaskStateEvent.TaskStateEnum`, those that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum TaskState {
    Runnable = 2,
    Running = 3,
    InterruptibleSleep = 4,
    UninterruptibleSleep = 5,
    Stopped = 6,
}

/// `trace/ftrace/ftrace_event_bundle.proto`, `FtraceEventBundle`: records of one CPU.
#[derive(Clone, PartialEq, Message)]
pub(super) struct FtraceEventBundle {
    #[prost(uint32, optional, tag = "1")]
    pub(super) cpu: Option<u32>,
    #[prost(message, repeated, tag = "2")]
    pub(super) event: Vec<FtraceEvent>,
    /// The clock of its records; `CLOCK_BOOTTIME` where none is named.
    #[prost(uint32, optional, tag = "5")]
    pub(super) ftrace_clock: Option<u32>,
    #[prost(message, repeated, tag = "11")]
    pub(super) generic_event_descriptors: Vec<GenericEventDescriptor>,
}

/// `FtraceClock`: `CLOCK_MONOTONIC_RAW`.
pub(super) const FTRACE_CLOCK_MONO_RAW: u32 = 4;

/// `FtraceEventBundle.GenericEventDescriptor`: what an event is that has this number among the fields of `FtraceEvent`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct GenericEventDescriptor {
    #[prost(int32, optional, tag = "1")]
    pub(super) field_id: Option<i32>,
    /// Bytes there, which this message is.
    #[prost(message, optional, tag = "2")]
    pub(super) event_descriptor: Option<DescriptorProto>,
}

/// `common/descriptor.proto`, `DescriptorProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct DescriptorProto {
    #[prost(string, optional, tag = "1")]
    pub(super) name: Option<String>,
    #[prost(message, repeated, tag = "2")]
    pub(super) field: Vec<FieldDescriptorProto>,
}

/// `common/descriptor.proto`, `FieldDescriptorProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct FieldDescriptorProto {
    #[prost(string, optional, tag = "1")]
    pub(super) name: Option<String>,
    #[prost(int32, optional, tag = "3")]
    pub(super) number: Option<i32>,
    #[prost(enumeration = "FieldType", optional, tag = "5")]
    pub(super) r#type: Option<i32>,
}

/// `FieldDescriptorProto.Type`, those that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum FieldType {
    Int64 = 3,
    Uint64 = 4,
    String = 9,
}

/// `trace/ftrace/ftrace_event.proto`, `FtraceEvent`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct FtraceEvent {
    #[prost(uint64, optional, tag = "1")]
    pub(super) timestamp: Option<u64>,
    /// The thread that recorded it.
    #[prost(uint32, optional, tag = "2")]
    pub(super) pid: Option<u32>,
    #[prost(message, optional, tag = "17")]
    pub(super) sched_wakeup: Option<Wakeup>,
    #[prost(message, optional, tag = "20")]
    pub(super) sched_waking: Option<Wakeup>,
    #[prost(message, optional, tag = "24")]
    pub(super) softirq_entry: Option<Softirq>,
    #[prost(message, optional, tag = "25")]
    pub(super) softirq_exit: Option<Softirq>,
    #[prost(message, optional, tag = "36")]
    pub(super) irq_handler_entry: Option<IrqHandlerEntry>,
    #[prost(message, optional, tag = "37")]
    pub(super) irq_handler_exit: Option<IrqHandlerExit>,
    #[prost(message, optional, tag = "114")]
    pub(super) sched_wakeup_new: Option<Wakeup>,
    #[prost(message, optional, tag = "329")]
    pub(super) sys_enter: Option<SysEnter>,
    #[prost(message, optional, tag = "330")]
    pub(super) sys_exit: Option<SysExit>,
}

/// `trace/ftrace/sched.proto`: `SchedWakingFtraceEvent`, `SchedWakeupFtraceEvent` and `SchedWakeupNewFtraceEvent`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Wakeup {
    #[prost(string, optional, tag = "1")]
    pub(super) comm: Option<String>,
    #[prost(int32, optional, tag = "2")]
    pub(super) pid: Option<i32>,
    #[prost(int32, optional, tag = "5")]
    pub(super) target_cpu: Option<i32>,
}

/// `trace/ftrace/irq.proto`: `SoftirqEntryFtraceEvent` and `SoftirqExitFtraceEvent`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Softirq {
    #[prost(uint32, optional, tag = "1")]
    pub(super) vec: Option<u32>,
}

/// `trace/ftrace/irq.proto`, `IrqHandlerEntryFtraceEvent`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct IrqHandlerEntry {
    #[prost(int32, optional, tag = "1")]
    pub(super) irq: Option<i32>,
    #[prost(string, optional, tag = "2")]
    pub(super) name: Option<String>,
}

/// `trace/ftrace/irq.proto`, `IrqHandlerExitFtraceEvent`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct IrqHandlerExit {
    #[prost(int32, optional, tag = "1")]
    pub(super) irq: Option<i32>,
    #[prost(int32, optional, tag = "2")]
    pub(super) ret: Option<i32>,
}

/// `trace/ftrace/raw_syscalls.proto`, `SysEnterFtraceEvent`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SysEnter {
    #[prost(int64, optional, tag = "1")]
    pub(super) id: Option<i64>,
    #[prost(uint64, repeated, packed = "false", tag = "2")]
    pub(super) args: Vec<u64>,
}

/// `trace/ftrace/raw_syscalls.proto`, `SysExitFtraceEvent`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct SysExit {
    #[prost(int64, optional, tag = "1")]
    pub(super) id: Option<i64>,
    #[prost(int64, optional, tag = "2")]
    pub(super) ret: Option<i64>,
}

/// `trace/track_event/track_descriptor.proto`, `TrackDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    pub(super) uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub(super) name: Option<String>,
    #[prost(message, optional, tag = "3")]
    pub(super) process: Option<ProcessDescriptor>,
    #[prost(message, optional, tag = "4")]
    pub(super) thread: Option<ThreadDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    pub(super) parent_uuid: Option<u64>,
    #[prost(message, optional, tag = "8")]
    pub(super) counter: Option<CounterDescriptor>,
}

/// `trace/track_event/process_descriptor.proto`, `ProcessDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessDescriptor {
    #[prost(int32, optional, tag = "1")]
    pub(super) pid: Option<i32>,
    #[prost(string, optional, tag = "6")]
    pub(super) process_name: Option<String>,
}

/// `trace/track_event/thread_descriptor.proto`, `ThreadDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ThreadDescriptor {
    #[prost(int32, optional, tag = "1")]
    pub(super) pid: Option<i32>,
    #[prost(int32, optional, tag = "2")]
    pub(super) tid: Option<i32>,
    #[prost(string, optional, tag = "5")]
    pub(super) thread_name: Option<String>,
}

/// `trace/track_event/counter_descriptor.proto`, `CounterDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CounterDescriptor {
    #[prost(string, optional, tag = "6")]
    pub(super) unit_name: Option<String>,
}

/// `trace/track_event/track_event.proto`, `TrackEvent`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    pub(super) debug_annotations: Vec<DebugAnnotation>,
    #[prost(enumeration = "EventType", optional, tag = "9")]
    pub(super) r#type: Option<i32>,
    #[prost(uint64, optional, tag = "10")]
    pub(super) name_iid: Option<u64>,
    #[prost(uint64, optional, tag = "11")]
    pub(super) track_uuid: Option<u64>,
    #[prost(string, optional, tag = "23")]
    pub(super) name: Option<String>,
    #[prost(int64, optional, tag = "30")]
    pub(super) counter_value: Option<i64>,
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    pub(super) flow_ids: Vec<u64>,
    #[prost(fixed64, repeated, packed = "false", tag = "48")]
    pub(super) terminating_flow_ids: Vec<u64>,
}

/// `TrackEvent.Type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum EventType {
    SliceBegin = 1,
    SliceEnd = 2,
    Instant = 3,
    Counter = 4,
}

/// `trace/track_event/debug_annotation.proto`, `DebugAnnotation`: one of the values is there.
#[derive(Clone, PartialEq, Message)]
pub(super) struct DebugAnnotation {
    #[prost(uint64, optional, tag = "3")]
    pub(super) uint_value: Option<u64>,
    #[prost(int64, optional, tag = "4")]
    pub(super) int_value: Option<i64>,
    #[prost(double, optional, tag = "5")]
    pub(super) double_value: Option<f64>,
    #[prost(string, optional, tag = "6")]
    pub(super) string_value: Option<String>,
    #[prost(uint64, optional, tag = "7")]
    pub(super) pointer_value: Option<u64>,
    #[prost(string, optional, tag = "10")]
    pub(super) name: Option<String>,
}

/// `trace/interned_data/interned_data.proto`, `InternedData`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct InternedData {
    #[prost(message, repeated, tag = "2")]
    pub(super) event_names: Vec<EventName>,
}

/// `trace/track_event/track_event.proto`, `EventName`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct EventName {
    #[prost(uint64, optional, tag = "1")]
    pub(super) iid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub(super) name: Option<String>,
}
