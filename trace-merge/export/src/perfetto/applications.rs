//! Events of guests' applications, with their fields: on the thread that recorded them where that is known, otherwise on
//! their process.

use super::generic_type;
use super::packets::{Name, PacketWriter};
use super::proto::{DebugAnnotation, ProcessDescriptor, TrackDescriptor, TrackEvent};
use super::tracks::{self, Kind, uuid};
use foldhash::HashSet;
use std::io::Write;
use strata_analysis::timeline::states::{Current, TaskIndex};
use strata_analysis::timeline::{Input, Timeline};
use strata_recording::layer::LayerKind;
use strata_recording::reader::{StreamRecord, Trace};
use strata_recording::schema::Value;
use strata_recording::terminal::harmless;

/// Draws events of applications.
#[derive(Debug, Default)]
pub(super) struct Applications {
    /// VM and task: the threads whose track is described.
    threads: HashSet<(usize, TaskIndex)>,
}

impl Applications {
    /// Describes the processes that recorded.
    pub(super) fn introduce<W: Write>(
        &mut self,
        out: &mut PacketWriter<W>,
        trace: &Trace,
        timeline: &Timeline,
        time: u64,
    ) {
        for layer in trace.layers_of(LayerKind::GuestUser) {
            let vm = timeline.vms.iter().position(|vm| Some(&vm.name) == layer.description.vm.as_ref());
            let (Some(vm), Some(process)) = (vm, &layer.description.process) else { continue };
            let described =
                ProcessDescriptor { pid: i32::try_from(process.pid).ok(), process_name: Some(harmless(&process.comm)) };
            let track = TrackDescriptor {
                uuid: Some(uuid(Kind::Process, vm, process.pid as usize)),
                process: Some(described),
                ..TrackDescriptor::default()
            };
            out.track(tracks::guest(vm), time, track);
        }
    }

    /// Draws a record that `process` of the VM made on `cpu`.
    pub(super) fn record<W: Write>(
        &mut self,
        out: &mut PacketWriter<W>,
        process: Option<u32>,
        (vm, cpu): (usize, u32),
        time: u64,
        input: &Input<'_>,
        timeline: &Timeline,
    ) {
        let (Some(process), Some(known)) = (process, timeline.vm(vm)) else { return };
        let guest = &known.guest;
        let thread = match guest.recorder(cpu) {
            // What the guest's kernel says of its CPU, if it fits what the process says of itself.
            Current::Task(task) => guest
                .task(guest.process(task))
                .is_some_and(|first| u32::try_from(first.tid) == Ok(process))
                .then_some(task),
            Current::Unknown | Current::Idle => None,
        };
        let track = match thread {
            Some(task) => {
                if self.threads.insert((vm, task))
                    && let Some(thread) = super::states::thread(timeline, vm, task)
                {
                    out.track(tracks::guest(vm), time, thread);
                }
                uuid(Kind::Thread, vm, task)
            }
            None => uuid(Kind::Process, vm, process as usize),
        };
        let name = harmless(input.record.schema.name());
        out.instant(tracks::guest(vm), track, time, Name::Any(&name), &with_fields(&input.record));
    }
}

/// An event with the fields of `record`.
pub(super) fn with_fields(record: &StreamRecord<'_>) -> TrackEvent {
    let fields = record.schema.fields(record.payload);
    let debug_annotations = fields.map(|(field, value)| annotation(&field.name, field.hex, value)).collect();
    TrackEvent { debug_annotations, ..TrackEvent::default() }
}

fn annotation(name: &str, hex: bool, value: Value<'_>) -> DebugAnnotation {
    let base = DebugAnnotation { name: Some(name.into()), ..DebugAnnotation::default() };
    match value {
        Value::Unsigned(number) if hex => DebugAnnotation { pointer_value: Some(number), ..base },
        Value::Unsigned(number) => DebugAnnotation { uint_value: Some(number), ..base },
        Value::Signed(number) => DebugAnnotation { int_value: Some(number), ..base },
        Value::Text(text) => DebugAnnotation { string_value: Some(String::from_utf8_lossy(text).into_owned()), ..base },
        Value::Array(elements) => DebugAnnotation { string_value: Some(generic_type::list(elements, hex)), ..base },
    }
}
