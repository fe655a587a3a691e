//! Events of guests' applications, with their fields: on the thread that recorded them where that is known, otherwise on
//! their process.

use super::packets::{Name, PacketWriter};
use super::proto::{ProcessDescriptor, TrackDescriptor};
use super::tracks::{self, Kind, uuid};
use foldhash::HashSet;
use std::io::Write;
use strata_analysis::timeline::states::{Current, TaskIndex};
use strata_analysis::timeline::{Input, Timeline};
use strata_recording::layer::LayerKind;
use strata_recording::reader::Trace;
use strata_recording::text::terminal::harmless;

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

    /// Draws a record that `process` of the VM made on `cpu`; its event is called `name`.
    pub(super) fn record<W: Write>(
        &mut self,
        out: &mut PacketWriter<W>,
        (process, name): (Option<u32>, &str),
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
        out.record(tracks::guest(vm), track, time, Name::Any(name), &input.record);
    }
}
