//! A recording as a trace of Perfetto (`ui.perfetto.dev`, `trace_processor`).
//!
//! The host is Perfetto's own machine, each guest another one: each has CPUs, threads and processes of its own. What
//! concerns several layers at once is drawn on the host's machine, because Perfetto's flows do not cross machines.
//! `docs/perfetto.md` says what is drawn where, and what is not.

mod applications;
mod generic;
mod host_clocks;
mod host_processes;
mod kernel;
mod losses;
mod packets;
mod proto;
mod requests;
mod states;
mod tracks;
mod vmm;
mod why;

use super::{ExportError, Exported, Options};
use applications::Applications;
use generic::GenericRecords;
use host_clocks::HostClocks;
use kernel::running::{RunningThreads, is_end, unknown_tid};
use kernel::{KernelRecord, KernelRecords};
use losses::Losses;
use packets::{Machine, PacketWriter};
use requests::Requests;
use states::States;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use strata_analysis::event::runner::RunnerEvents;
use strata_analysis::event::{self, Event, Tid};
use strata_analysis::timeline::states::Current;
use strata_analysis::timeline::{Change, ChangeKind, Input, Origin, Timeline};
use strata_analysis::{Analysis, Gap};
use strata_recording::clock::{Clock, Seconds};
use strata_recording::layer::LayerKind;
use strata_recording::reader::Trace;
use strata_recording::reader::merge::Merge;
use strata_recording::text::terminal::harmless;
use strata_recording::window::Window;
use trace_merge::critical_path::CriticalPaths;
use trace_merge::progress::{self, DONE};
use trace_merge::report::ReportError;
use trace_merge::report::devices::flows::FlowTimes;
use trace_merge::report::devices::net_flows::NetFlowTimes;
use trace_merge::report::statistics::ended::KeepsEnded;
use vmm::VmmRecords;

/// Writes `trace` to `out`.
///
/// # Errors
/// When the window ends before it begins or holds nothing, and when `out` fails.
pub fn export(trace: &Trace, options: &Options<'_>, out: impl Write + Send) -> Result<Exported, ExportError> {
    export_with(trace, options, None, out)
}

/// Writes `trace` to `out`, and why a task took so long as a track of its own.
///
/// # Errors
/// Those of [`export`].
pub fn export_with(
    trace: &Trace,
    options: &Options<'_>,
    why: Option<&CriticalPaths>,
    out: impl Write + Send,
) -> Result<Exported, ExportError> {
    let window = trace.window(options.from, options.to).ok_or(ReportError::EmptyWindow)?;
    let host_clocks = HostClocks::of(trace, window);
    let mut exporter = Exporter::new(trace, window, options.progress, PacketWriter::new(out, host_clocks.offset()));
    exporter.introduce(trace, &host_clocks);
    let passed = strata_analysis::pass(trace, window, &mut [&mut exporter]);
    let part = crate::part_of(window, &passed)?;
    let incomplete = passed.completeness.line();
    let records = passed.totals.iter().map(|totals| totals.events).sum();
    let drawn = exporter.drawn;
    exporter.end(&passed.timeline, part.end);
    if let Some(why) = why {
        why::draw(&mut exporter.out, &passed.timeline, why);
    }
    let end = exporter.ns(part.end);
    let begin = exporter.begin_ns();
    let notes = losses::Notes {
        incomplete: incomplete.as_deref(),
        records,
        drawn,
        clock: trace.clock(),
        host_clocks: &host_clocks,
    };
    notes.write(&mut exporter.out, (begin, end));
    let bytes = exporter.out.finish().map_err(ExportError::Write)?;
    Ok(Exported { bytes, records, drawn, incomplete })
}

/// A stream of the merge.
struct Source {
    /// How the records of a host's kernel tell which thread made them.
    recorded_by: Option<RunnerEvents>,
    /// The process whose records it holds.
    process: Option<u32>,
    /// Which layer of the recording it belongs to.
    layer: usize,
    /// What the events of a track are called, by the event type's position in the layer; none of a kernel.
    events: Vec<String>,
    /// By the event type's position in the layer: whether what goes through a disk, and through a network, is followed by such
    /// records, once one was met; of records that are an [`Event`].
    follows: Vec<Option<(bool, bool)>>,
}

impl Source {
    /// Whether disks and networks are followed by records like `input`, of which `find_out` is asked once.
    #[inline]
    fn follows(&mut self, input: &Input<'_>, find_out: impl FnOnce() -> (bool, bool)) -> (bool, bool) {
        if input.event.is_none() {
            return (false, false);
        }
        let position = input.record.schema.position();
        match self.follows.get(position) {
            Some(Some(known)) => *known,
            _ => self.keep(position, find_out()),
        }
    }

    #[cold]
    fn keep(&mut self, position: usize, follows: (bool, bool)) -> (bool, bool) {
        if self.follows.len() <= position {
            self.follows.resize(position + 1, None);
        }
        if let Some(known) = self.follows.get_mut(position) {
            *known = Some(follows);
        }
        follows
    }
}

/// The export in the making.
struct Exporter<'t, W> {
    clock: Clock,
    /// Its ticks as nanoseconds.
    seconds: Seconds,
    window: Window,
    /// Whether the window has begun: what came before was followed and not drawn.
    begun: bool,
    progress: Option<&'t AtomicU64>,
    sources: Vec<Source>,
    out: PacketWriter<W>,
    running: RunningThreads,
    kernel: KernelRecords,
    generic: GenericRecords<'t>,
    states: States,
    flows: FlowTimes,
    requests: Requests,
    net_flows: NetFlowTimes,
    packets: Requests,
    applications: Applications,
    vmm: VmmRecords,
    losses: Losses<'t>,
    drawn: u64,
    seen: u64,
}

impl<'t, W: Write + Send> Exporter<'t, W> {
    fn new(trace: &'t Trace, window: Window, progress: Option<&'t AtomicU64>, out: PacketWriter<W>) -> Self {
        let source = |layer: &strata_recording::reader::TraceLayer| Source {
            recorded_by: (layer.description.kind == LayerKind::HostKernel).then(|| RunnerEvents::new(layer)),
            process: layer.description.process.as_ref().map(|process| process.pid),
            layer: trace.layers().iter().position(|of| std::ptr::eq(of, layer)).unwrap_or(0),
            events: match layer.description.kind {
                LayerKind::HostKernel | LayerKind::GuestKernel => Vec::new(),
                LayerKind::Vmm | LayerKind::GuestUser => {
                    layer.schemas.iter().map(|schema| harmless(schema.name())).collect()
                }
            },
            follows: Vec::new(),
        };
        // In the order of the merge of a pass, which reads all layers.
        let sources = Merge::new(trace.layers(), 0).streams().map(|(layer, _)| source(layer)).collect();
        Self {
            clock: trace.clock().clone(),
            seconds: Seconds::new(trace.clock().frequency_hz),
            window,
            begun: false,
            progress,
            sources,
            out,
            running: RunningThreads::default(),
            kernel: KernelRecords::default(),
            generic: GenericRecords::new(trace),
            states: States::default(),
            flows: FlowTimes::keeping_ended(trace),
            requests: Requests::of_disks(),
            net_flows: NetFlowTimes::keeping_ended(trace),
            packets: Requests::of_networks(),
            applications: Applications::default(),
            vmm: VmmRecords::default(),
            losses: Losses::new(trace),
            drawn: 0,
            seen: 0,
        }
    }

    /// Nanoseconds of the trace clock at `ticks`.
    #[inline]
    const fn ns(&mut self, ticks: u64) -> u64 {
        self.seconds.ns(ticks)
    }

    /// The same of both ends of `window`.
    #[inline]
    const fn window_ns(&mut self, window: &Window) -> (u64, u64) {
        (self.ns(window.begin), self.ns(window.end))
    }

    fn begin_ns(&self) -> u64 {
        self.clock.ticks_to_ns(self.window.begin)
    }

    /// Introduces machines, and the tracks that are there whatever is recorded.
    fn introduce(&mut self, trace: &Trace, host_clocks: &HostClocks) {
        let manifest = trace.manifest();
        let timeline = Timeline::new(trace);
        for (index, host) in timeline.hosts.iter().enumerate() {
            let name = host.name.clone().unwrap_or_else(|| manifest.host.hostname.clone());
            let machine = tracks::host(index);
            let is_first = machine == Machine::HOST;
            let clocks = if is_first { host_clocks.of_host() } else { vec![host_clocks.of_others()] };
            self.out.machine(machine, &name, &manifest.host.kernel, clocks);
        }
        for (index, vm) in manifest.vms.iter().enumerate() {
            let kernel = vm.guest.as_ref().map_or("", |guest| &guest.kernel);
            self.out.machine(tracks::guest(index), &vm.name, kernel, vec![host_clocks.of_others()]);
        }
        let begin = self.begin_ns();
        host_processes::introduce(&mut self.out, &manifest.vms, &timeline, begin);
        self.states.introduce(&mut self.out, &timeline, begin);
        self.states.begin_at(begin.max(trace.clock().ticks_to_ns(trace.start().unwrap_or(0))));
        self.applications.introduce(&mut self.out, trace, &timeline, begin);
    }

    /// Draws from now on: first what has begun before the window.
    #[inline]
    fn begin(&mut self) {
        if !self.begun {
            self.resume();
        }
    }

    #[inline(never)]
    fn resume(&mut self) {
        self.begun = true;
        self.out.muted = false;
        let begin = self.begin_ns();
        self.running.resume(&mut self.out, begin);
        self.kernel.resume(&mut self.out, begin);
    }

    /// The thread of the machine that made a record, and whether all of its CPU's switches are recorded.
    fn recorder(&self, input: &Input<'_>, timeline: &Timeline) -> Recorder {
        match input.origin {
            Origin::Host { .. } => {
                let source = self.sources.get(input.source).and_then(|source| source.recorded_by.as_ref());
                Recorder { tid: source.and_then(|source| source.recorded_by(&input.record)).flatten(), task: None }
            }
            Origin::Guest { vm, .. } => match timeline.recorder() {
                Current::Unknown => Recorder { tid: None, task: None },
                Current::Idle => Recorder { tid: Some(0), task: None },
                Current::Task(task) => {
                    let known = timeline.vm(vm).and_then(|vm| vm.guest.task(task));
                    Recorder { tid: known.map(|task| task.tid), task: Some(task) }
                }
            },
            Origin::Vmm { .. } | Origin::User { .. } => Recorder { tid: None, task: None },
        }
    }

    fn take(&mut self, input: &Input<'_>, timeline: &Timeline) {
        let time = self.ns(input.time());
        self.seen += 1;
        let packet = (input.source, input.record.packet);
        let end = timeline.span.map_or(self.window.end, |span| span.end.min(self.window.end));
        self.losses.record(&mut self.out, packet, &self.clock, Window { end, ..self.window });
        let Some((machine, cpu)) = tracks::place(input.origin, timeline) else { return };
        match input.origin {
            Origin::User { .. } | Origin::Vmm { .. } => self.take_tracked((machine, cpu), time, input, timeline),
            Origin::Host { .. } | Origin::Guest { .. } => self.take_kernel((machine, cpu), time, input, timeline),
        }
        self.drawn += u64::from(self.begun);
    }

    /// Takes in a record of a VMM or of an application, which is drawn on a track.
    fn take_tracked(&mut self, (machine, cpu): (Machine, u32), time: u64, input: &Input<'_>, timeline: &Timeline) {
        let Some(source) = self.sources.get(input.source) else { return };
        let Some(name) = source.events.get(input.record.schema.position()) else { return };
        match input.origin {
            Origin::User { vm, .. } => {
                self.applications.record(&mut self.out, (source.process, name), (vm, cpu), time, input, timeline);
            }
            Origin::Vmm { vm, thread } => {
                self.vmm.record(&mut self.out, (machine, vm, thread), (time, name), input, timeline);
            }
            Origin::Host { .. } | Origin::Guest { .. } => {}
        }
    }

    /// Takes in a record of a kernel.
    fn take_kernel(&mut self, (machine, cpu): (Machine, u32), time: u64, input: &Input<'_>, timeline: &Timeline) {
        let recorder = self.recorder(input, timeline);
        let tid = recorder.tid.map_or_else(|| unknown_tid(cpu), i64::from);
        let record = KernelRecord { machine, cpu, time, tid, task: recorder.task };
        let by = match input.origin {
            Origin::Host { .. } => Some(recorder.tid.unwrap_or(-1)),
            _ => None,
        };
        if let Some(Event::Switch { prev, prev_state, next }) = &input.event {
            self.kernel.switch(&mut self.out, (machine, cpu), time);
            if is_end(*prev_state) {
                self.kernel.end_task(&mut self.out, &record);
            }
            let next = (next, event::next_priority(&input.record));
            self.running.switch(&mut self.out, (machine, cpu), time, (prev, *prev_state), next);
            return;
        }
        self.running.recorded(machine, cpu, time, by);
        if let Some(event) = &input.event {
            self.states.count(&mut self.out, event, input.origin, time, timeline);
            if self.kernel.record(&mut self.out, &record, event, input) {
                return;
            }
        }
        let layer = self.sources.get(input.source).map_or(0, |source| source.layer);
        self.generic.record(&mut self.out, (layer, (machine, cpu)), (time, tid), &input.record);
    }

    fn draw_requests(&mut self, timeline: &Timeline, at_end: bool) {
        if !at_end && !self.flows.has_ended() && !self.net_flows.has_ended() {
            return;
        }
        for (vm, flow) in self.flows.take_ended(timeline, at_end) {
            self.requests.draw(&mut self.out, timeline, vm, &flow);
        }
        for (vm, (direction, flow)) in self.net_flows.take_ended(timeline, at_end) {
            self.packets.draw_packet(&mut self.out, timeline, vm, (direction, &flow));
        }
    }

    fn report_progress(&self, time: u64, timeline: &Timeline) {
        let (Some(progress), Some(span)) = (self.progress, timeline.span) else { return };
        let part = Window { begin: span.begin, end: span.end.min(self.window.end) };
        progress.store(progress::up_to(time, part), Ordering::Relaxed);
    }

    /// Ends at `end` ticks what still lasts.
    fn end(&mut self, timeline: &Timeline, end: u64) {
        self.begin();
        let time = self.ns(end);
        self.draw_requests(timeline, true);
        // The switches of a host's other threads are not all recorded, those of a guest are.
        let goes_on = |machine: Machine, tid: Tid| match tracks::host_of(machine) {
            Some(host) => timeline.vcpu_of_thread(host, tid).is_some(),
            None => true,
        };
        self.running.finish(&mut self.out, time, goes_on);
        self.states.finish(&mut self.out, timeline, time);
        self.losses.finish(&mut self.out, time);
        if let Some(progress) = self.progress {
            progress.store(DONE, Ordering::Relaxed);
        }
    }
}

/// Who made a record.
struct Recorder {
    tid: Option<Tid>,
    /// Of a guest's: which of its tasks.
    task: Option<strata_analysis::timeline::states::TaskIndex>,
}

/// Records after which progress is reported again.
const REPORT_EVERY: u64 = 4096;

impl<W: Write + Send> Analysis for Exporter<'_, W> {
    fn layers(&self) -> &'static [LayerKind] {
        &LayerKind::ALL
    }

    fn takes_change(&self, kind: ChangeKind) -> bool {
        matches!(kind, ChangeKind::Vcpu | ChangeKind::Task | ChangeKind::TaskName)
    }

    fn before(&mut self, input: &Input<'_>, timeline: &Timeline) {
        if self.out.has_failed() {
            return;
        }
        self.out.muted = true;
        self.take(input, timeline);
        self.out.muted = false;
    }

    fn record(&mut self, input: &Input<'_>, timeline: &Timeline) {
        if self.out.has_failed() {
            return;
        }
        self.begin();
        self.take(input, timeline);
        let source = self.sources.get_mut(input.source);
        let follow = || (self.flows.takes_record(input), self.net_flows.takes_record(input));
        let (of_disks, of_networks) = source.map_or((false, false), |source| source.follows(input, follow));
        if of_disks {
            self.flows.record(input, timeline);
        }
        if of_networks {
            self.net_flows.record(input, timeline);
        }
        if of_disks || of_networks {
            self.draw_requests(timeline, false);
        }
        if self.seen.is_multiple_of(REPORT_EVERY) {
            self.report_progress(input.time(), timeline);
        }
    }

    fn change(&mut self, change: &Change, timeline: &Timeline) {
        match change {
            Change::Vcpu { vm, vcpu, window, state } => {
                let window = self.window_ns(window);
                self.states.vcpu(&mut self.out, timeline, (*vm, *vcpu), window, *state);
            }
            Change::Task { vm, task, window, state } => {
                // As in the report on tasks: while the guest's kernel was recorded, and the task existed.
                let known = timeline.vm(*vm);
                let recorded = known.and_then(|vm| vm.kernel_span?.intersection(window));
                let task_of = |vm: &'_ strata_analysis::timeline::Vm| vm.guest.task(*task)?.life(&recorded?);
                let Some(window) = known.and_then(task_of) else { return };
                let window = self.window_ns(&window);
                self.states.task(&mut self.out, timeline, (*vm, *task), window, *state);
            }
            Change::TaskName { vm, task, time } => {
                let time = self.ns(*time);
                self.states.rename(&mut self.out, timeline, (*vm, *task), time);
            }
            Change::Cpu { .. } | Change::TaskState { .. } => {}
        }
    }

    fn gap(&mut self, gap: &Gap, timeline: &Timeline) {
        if self.out.has_failed() {
            return;
        }
        let is_before = gap.time < self.window.begin;
        if is_before {
            self.out.muted = true;
        } else {
            self.begin();
        }
        let (begin, time) = (self.begin_ns(), self.ns(gap.time));
        self.losses.gap(&mut self.out, gap, time.max(begin));
        if gap.begins
            && matches!(gap.origin, Origin::Host { only_kvm: false, .. } | Origin::Guest { .. })
            && let Some((machine, cpu)) = tracks::place(gap.origin, timeline)
        {
            self.running.begin_gap(machine, cpu, time.max(begin));
            self.kernel.begin_gap(&mut self.out, (machine, cpu), time, gap.origin, timeline);
        }
        self.flows.gap(gap, timeline);
        self.net_flows.gap(gap, timeline);
        self.out.muted = false;
        if !is_before {
            self.draw_requests(timeline, false);
        }
    }
}

#[cfg(test)]
mod tests;
