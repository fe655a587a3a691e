//! Why a task took so long: its critical paths as nested slices, a track of the VM's host.

use super::packets::{Name, PacketWriter, number, text};
use super::proto::TrackEvent;
use super::tracks::{self, Kind, uuid};
use std::io::Write;
use strata_analysis::timeline::Timeline;
use strata_recording::clock::Clock;
use trace_merge::critical_path::{CriticalPaths, Step};

/// Draws `paths` of a task of one of the VMs of `timeline`. A slice begins before those that lie in it.
pub(super) fn draw<W: Write>(out: &mut PacketWriter<W>, timeline: &Timeline, paths: &CriticalPaths) {
    let Some((vm, host)) = timeline.vms.iter().position(|vm| vm.name == paths.vm).and_then(|vm| {
        let known = timeline.vm(vm)?;
        Some((vm, known.host))
    }) else {
        return;
    };
    let Some(begin) = paths.paths.iter().map(|path| path.window.begin).min() else { return };
    let (clock, machine, track) = (timeline.clock(), tracks::host(host), uuid(Kind::Why, vm, 0));
    let name = format!("{}: why {}", paths.vm, paths.task);
    out.track(machine, clock.ticks_to_ns(begin), tracks::named(track, None, name));
    for path in paths.in_time() {
        let event = TrackEvent { debug_annotations: vec![text("summary", &path.summary)], ..TrackEvent::default() };
        let window = (clock.ticks_to_ns(path.window.begin), clock.ticks_to_ns(path.window.end));
        out.slice(machine, track, window, Name::Any(&paths.task), Some(&event));
        let mut slice = |step: &Step, below: &str| {
            let window = (clock.ticks_to_ns(step.begin), clock.ticks_to_ns(step.end));
            out.slice(machine, track, window, Name::Any(&step.label(below)), Some(&annotated(step, clock)));
        };
        draw_steps(&path.steps, &paths.task, &mut slice);
    }
}

/// Each of `steps`, which stand below `task`, before those below it.
fn draw_steps(steps: &[Step], task: &str, slice: &mut dyn FnMut(&Step, &str)) {
    for step in steps {
        slice(step, task);
        draw_steps(&step.steps, &step.task, slice);
    }
}

fn annotated(step: &Step, clock: &Clock) -> TrackEvent {
    let mut annotations = vec![text("task", &step.task)];
    let texts = [("detail", &step.detail), ("runner", &step.runner), ("why", &step.why), ("woken_by", &step.woken_by)];
    annotations.extend(texts.into_iter().filter_map(|(name, value)| Some(text(name, value.as_ref()?))));
    annotations.extend(step.vcpu.map(|vcpu| number("vcpu", vcpu.into())));
    for (name, record) in [("since", &step.since), ("until", &step.until)] {
        annotations.extend(record.as_ref().map(|record| {
            let ns = clock.ticks_to_ns(record.ticks);
            text(name, format!("{} {} {} at {ns} ns", record.layer, record.event, record.cpu))
        }));
    }
    TrackEvent { debug_annotations: annotations, ..TrackEvent::default() }
}
