use super::*;
use shared_ring::event::EventDescription;
use std::sync::LazyLock;
use strata_recording::schema::Schema;
use strata_recording::test_trace::Field::{self, Hex, Text};
use strata_recording::test_trace::TestTrace;

static SCHEMA: LazyLock<Schema> =
    LazyLock::new(|| Schema::new(EventDescription { id: 1, class: 0, name: "test:event".into(), fields: Vec::new() }));

/// A record without fields, to carry an event that a test makes itself.
pub(crate) fn record(time: u64) -> StreamRecord<'static> {
    StreamRecord { time, schema: &SCHEMA, payload: &[], packet: 0, after_gap: false }
}

/// The current task enters the system call `number`.
pub(crate) fn syscall(number: i64) -> Event<'static> {
    Event::SyscallEnter { number, arguments: Arguments(record(0)) }
}

const fn number(number: i64) -> Field {
    Field::Number(number)
}

/// What the only record of a layer of `kind` says, as text; `None` where no analysis asks for it.
fn printed(kind: LayerKind, name: &'static str, fields: &[(&'static str, Field)]) -> Option<String> {
    let (_dir, trace) = TestTrace::new().record(kind, 0, 10, name, fields).open();
    let layer = &trace.layers()[0];
    let record = layer.records(&layer.streams[0]).next().unwrap();
    Decoder::default().read(0, kind, &record).map(|event| format!("{event:?}"))
}

const SWITCH: [(&str, Field); 5] = [
    ("prev_pid", number(7)),
    ("prev_state", number(0x102)),
    ("next_pid", number(8)),
    ("prev_comm", Text("seven")),
    ("next_comm", Text("eight")),
];

fn expected_switch() -> Option<String> {
    let (prev, next) = (Task { tid: 7, comm: b"seven" }, Task { tid: 8, comm: b"eight" });
    Some(format!("{:?}", Event::Switch { prev, prev_state: 0x102, next }))
}

#[test]
fn fields_are_found_in_front_of_a_text_and_behind_it() {
    let fixed = printed(LayerKind::GuestKernel, "sched:sched_switch", &SWITCH);
    let [prev_pid, prev_state, next_pid, prev_comm, next_comm] = SWITCH;
    let varying = [prev_comm, next_comm, prev_pid, prev_state, next_pid];

    let moved = printed(LayerKind::GuestKernel, "sched:sched_switch", &varying);

    assert_eq!((fixed, moved), (expected_switch(), expected_switch()));
}

#[test]
fn fields_that_an_event_can_do_without_may_be_missing() {
    let wakeup = printed(LayerKind::GuestKernel, "sched:sched_waking", &[("pid", number(7))]);
    let entry = printed(LayerKind::HostKernel, "kvm:kvm_entry", &[]);
    let fork = printed(LayerKind::GuestKernel, "sched:sched_process_fork", &[("child_pid", number(9))]);

    let task = Task { tid: 7, comm: b"" };
    assert_eq!(wakeup.unwrap(), format!("{:?}", Event::Wakeup { task, cpu: None, stage: WakeupStage::Waking }));
    assert_eq!(entry.unwrap(), format!("{:?}", Event::KvmEntry { tid: -1, vcpu: None }));
    let child = Task { tid: 9, comm: b"" };
    assert_eq!(fork.unwrap(), format!("{:?}", Event::Fork { parent: None, child }));
}

#[test]
fn event_without_a_field_that_it_needs_says_nothing() {
    assert_eq!(printed(LayerKind::GuestKernel, "sched:sched_switch", &SWITCH[..2]), None);
    assert_eq!(printed(LayerKind::GuestKernel, "sched:sched_waking", &[("comm", Text("app"))]), None);
}

#[test]
fn number_out_of_range_says_nothing() {
    assert_eq!(printed(LayerKind::GuestKernel, "sched:sched_waking", &[("pid", number(i64::MAX))]), None);
}

#[test]
fn event_means_something_in_its_own_layer_only() {
    let fields = [("common_pid", number(100)), ("vcpu_id", number(1))];

    assert!(printed(LayerKind::HostKernel, "kvm:kvm_entry", &fields).is_some());
    assert_eq!(printed(LayerKind::GuestKernel, "kvm:kvm_entry", &fields), None);
    assert_eq!(printed(LayerKind::Vmm, "sched:sched_switch", &SWITCH), None);
}

#[test]
fn access_to_device_memory_is_one_to_its_page() {
    let fields = [("vcpu", number(1)), ("address", Hex(0xd000_0050))];

    let access = printed(LayerKind::Vmm, "vmm:mmio_access", &fields);

    assert_eq!(access.unwrap(), format!("{:?}", Event::Access { vcpu: 1, access: Access::Page(0xd000_0000) }));
}

#[test]
fn interrupts_of_the_system_have_names() {
    assert_eq!(vector_name("irq_vectors:local_timer_entry"), Some(("local_timer", true)));
    assert_eq!(vector_name("irq_vectors:local_timer_exit"), Some(("local_timer", false)));
    assert_eq!(vector_name("irq:softirq_entry"), None);
}
