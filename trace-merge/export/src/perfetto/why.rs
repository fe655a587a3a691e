//! Why tasks took so long: their critical paths as nested slices, a track of the VM's host for each task.

use super::packets::{Machine, Name, PacketWriter, number, text};
use super::proto::TrackEvent;
use super::tracks::{self, Kind, uuid};
use std::io::Write;
use strata_analysis::timeline::Timeline;
use strata_recording::clock::Clock;
use trace_merge::critical_path::{CriticalPath, CriticalPaths, Step};

/// Draws `paths` of tasks of one of the VMs of `timeline`. A slice begins before those that lie in it.
pub(super) fn draw<W: Write>(out: &mut PacketWriter<W>, timeline: &Timeline, paths: &CriticalPaths) {
    let Some((vm, host)) = timeline.vms.iter().position(|vm| vm.name == paths.vm).and_then(|vm| {
        let known = timeline.vm(vm)?;
        Some((vm, known.host))
    }) else {
        return;
    };
    let (clock, machine) = (timeline.clock(), tracks::host(host));
    for (place, of_task) in (0..).zip(paths.by_task()) {
        let Some(first) = of_task.first() else { continue };
        let track = uuid(Kind::Why, vm, place);
        let name = format!("{}: why {}", paths.vm, first.task);
        out.track(machine, clock.ticks_to_ns(first.window.begin), tracks::named(track, None, name));
        draw_paths(out, (clock, machine, track), &of_task);
    }
}

/// Draws `paths` of one task in `track` of `machine`.
fn draw_paths<W: Write>(
    out: &mut PacketWriter<W>,
    (clock, machine, track): (&Clock, Machine, u64),
    paths: &[&CriticalPath],
) {
    for path in paths {
        let event = TrackEvent { debug_annotations: vec![text("summary", &path.summary)], ..TrackEvent::default() };
        let window = (clock.ticks_to_ns(path.window.begin), clock.ticks_to_ns(path.window.end));
        out.slice(machine, track, window, Name::Any(&path.task), Some(&event));
        let mut slice = |step: &Step, below: &str| {
            let window = (clock.ticks_to_ns(step.begin), clock.ticks_to_ns(step.end));
            out.slice(machine, track, window, Name::Any(&step.label(below)), Some(&annotated(step, clock)));
        };
        draw_steps(&path.steps, &path.task, &mut slice);
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
