//! Which records of a recording are listed.

use super::current_task::{CurrentTask, Task};
use super::{EventsError, EventsOptions};
use shared_ring::event::EventDescription;
use std::collections::BTreeSet;
use strata_analysis::filter::{FilterPlan, Filters};
use strata_analysis::task_choice::TaskChoice;
use strata_recording::event_terms::{self, EventTerm};
use strata_recording::layer::LayerKind;
use strata_recording::reader::{Stream, StreamRecord, Trace, TraceLayer};
use strata_recording::schema::Schema;
use strata_recording::text::nearest::{self, nearest};

/// Most numbers of CPUs that an error names.
const MAX_CPUS: usize = 3;

/// Whether it is the task, or the process, that is wanted.
pub(super) fn means(wanted: &TaskChoice, task: &Task<'_>) -> bool {
    wanted.is(task.tid, task.comm.map(String::from_utf8_lossy).as_deref())
}

/// The process whose records `layer` has; `None` of kernels and VMMs.
pub(super) fn process(layer: &TraceLayer) -> Option<Task<'_>> {
    let process = layer.description.process.as_ref()?;
    Some(Task { tid: i32::try_from(process.pid).ok()?, comm: Some(process.comm.as_bytes()) })
}

/// The records that `options` ask for.
#[derive(Debug)]
pub(super) struct Selection<'t> {
    /// The streams that may hold such, in the order of layers and streams.
    pub(super) streams: Vec<(&'t TraceLayer, &'t Stream)>,
    events: Vec<EventTerm>,
    filters: &'t Filters,
    tasks: &'t [TaskChoice],
    /// Whether tasks are shown, or decide.
    pub(super) needs_tasks: bool,
}

impl<'t> Selection<'t> {
    /// What `options` ask for of `trace`.
    ///
    /// # Errors
    /// When `trace` has no layer, VM, CPU, event type or field of what is requested.
    pub(super) fn new(trace: &'t Trace, options: &'t EventsOptions) -> Result<Self, EventsError> {
        let mut layers: Vec<&TraceLayer> = trace.layers().iter().collect();
        for &wanted in &options.layers {
            if trace.layers_of(wanted).next().is_none() {
                return Err(no_layer(trace, wanted));
            }
        }
        layers.retain(|layer| options.layers.is_empty() || options.layers.contains(&layer.description.kind));
        let vm_of = |layer: &TraceLayer| layer.description.vm.clone().unwrap_or_default();
        for wanted in &options.vms {
            if !trace.layers().iter().any(|layer| layer.description.vm.as_ref() == Some(wanted)) {
                return Err(no_vm(trace, wanted));
            }
        }
        layers.retain(|layer| options.vms.is_empty() || options.vms.contains(&vm_of(layer)));
        let events = EventTerm::parse_all(&options.events.join(","))?;
        let all_events = || layers.iter().flat_map(|layer| events_of(layer));
        for term in &events {
            if !all_events().any(|(layer, name)| term.matches(layer, name)) {
                return Err(no_event(term, all_events()));
            }
        }
        let filters = &options.filters;
        let named = |layer: &'t TraceLayer| {
            let kind = layer.description.kind;
            layer.schemas.iter().filter(|schema| event_terms::choose(&events, kind, schema.name())).collect::<Vec<_>>()
        };
        check_filters(filters, layers.iter().flat_map(|&layer| named(layer)))?;
        let has_event = |layer: &'t TraceLayer| {
            named(layer).into_iter().any(|schema| filters.is_empty() || filters.plan(schema).is_some())
        };
        layers.retain(|layer| (events.is_empty() && filters.is_empty()) || has_event(layer));
        let all = || layers.iter().flat_map(|&layer| layer.streams.iter().map(move |stream| (layer, stream)));
        for &wanted in &options.cpus {
            if !all().any(|(_, stream)| stream.description.cpu_id == wanted) {
                return Err(no_cpu(all().map(|(_, stream)| stream.description.cpu_id), wanted));
            }
        }
        let of_cpu = |stream: &Stream| options.cpus.is_empty() || options.cpus.contains(&stream.description.cpu_id);
        let streams = all().filter(|(_, stream)| of_cpu(stream)).collect();
        let needs_tasks = !options.count || !options.tasks.is_empty();
        Ok(Self { streams, events, filters, tasks: &options.tasks, needs_tasks })
    }

    /// Whether some records of the streams are not wanted, whenever they are.
    pub(super) fn is_partial(&self) -> bool {
        !self.events.is_empty() || !self.filters.is_empty() || !self.tasks.is_empty()
    }

    /// Tells the records of `stream`, one of the selected streams of `layer`, that are wanted.
    pub(super) fn filter(&self, layer: &'t TraceLayer, stream: &'t Stream) -> StreamFilter<'t> {
        let is_wanted = |name: &str| event_terms::choose(&self.events, layer.description.kind, name);
        let plan = |schema: &Schema| self.filters.plan(schema).filter(|_| is_wanted(schema.name()));
        StreamFilter {
            events: layer.schemas.iter().map(plan).collect(),
            cpu: stream.description.cpu_id,
            tasks: self.tasks,
            current: self.needs_tasks.then(|| CurrentTask::new(layer, stream)).flatten(),
            is_of_process: process(layer)
                .is_some_and(|process| self.tasks.iter().any(|wanted| means(wanted, &process))),
            is_whole: !self.is_partial(),
        }
    }
}

/// Tells the records of a stream that are wanted, and the task of each.
#[derive(Debug)]
pub(super) struct StreamFilter<'t> {
    /// By the event type's position in its layer: what its fields have to hold; `None` where it is not wanted.
    events: Vec<Option<FilterPlan>>,
    /// The stream's CPU, vCPU or thread.
    cpu: u32,
    /// The tasks that are wanted; empty for all, and for records without a task.
    tasks: &'t [TaskChoice],
    /// In the streams of kernels, when tasks are needed: who runs.
    current: Option<CurrentTask<'t>>,
    /// Whether the stream is that of a process that is wanted.
    is_of_process: bool,
    /// Whether all records are wanted.
    is_whole: bool,
}

impl<'t> StreamFilter<'t> {
    /// Whether `record` is wanted; if so, its task where one is known. The records must be given in their order, from
    /// any one on and with none left out.
    #[inline(always)]
    pub(super) fn take(&mut self, record: &StreamRecord<'t>) -> Result<Option<Task<'t>>, NotWanted> {
        let task = self.current.as_mut().and_then(|current| current.of(record));
        if self.is_whole {
            return Ok(task);
        }
        let plan = self.events.get(record.schema.position()).and_then(Option::as_ref);
        let is_wanted_event = plan.is_some_and(|plan| plan.holds(self.cpu, record));
        let is_wanted_task = || {
            let matches = |task: &Task<'_>| self.tasks.iter().any(|wanted| means(wanted, task));
            self.tasks.is_empty() || self.is_of_process || task.as_ref().is_some_and(matches)
        };
        if is_wanted_event && is_wanted_task() { Ok(task) } else { Err(NotWanted) }
    }
}

/// The record was not asked for.
pub(super) struct NotWanted;

/// Checks `filters` against the event types that they are to filter.
fn check_filters<'s>(filters: &Filters, schemas: impl Iterator<Item = &'s Schema>) -> Result<(), EventsError> {
    if filters.is_empty() {
        return Ok(());
    }
    let events: Vec<&EventDescription> = schemas.map(Schema::description).collect();
    let mut names: Vec<&str> = events.iter().map(|event| event.name.as_str()).collect();
    names.dedup();
    let of = if let [name] = names[..] { name } else { "the events that are listed" };
    Ok(filters.check(of, events)?)
}

fn no_layer(trace: &Trace, wanted: LayerKind) -> EventsError {
    let mut present: Vec<_> = trace.layers().iter().map(|layer| layer.description.kind.name()).collect();
    present.dedup();
    let present = if present.is_empty() { "none".into() } else { present.join(", ") };
    EventsError::NoLayer { wanted, present }
}

fn no_vm(trace: &Trace, wanted: &str) -> EventsError {
    let names: BTreeSet<&str> = trace.layers().iter().filter_map(|layer| layer.description.vm.as_deref()).collect();
    let near = nearest(wanted, names.iter().copied());
    let present = if near.is_empty() { names.into_iter().collect::<Vec<_>>().join(", ") } else { near.join(", ") };
    EventsError::NoVm { wanted: wanted.into(), present }
}

/// The layer and name of each of a layer's event types.
fn events_of(layer: &TraceLayer) -> impl Iterator<Item = (LayerKind, &str)> {
    layer.schemas.iter().map(|schema| (layer.description.kind, schema.name()))
}

fn no_event<'e>(term: &EventTerm, events: impl Iterator<Item = (LayerKind, &'e str)>) -> EventsError {
    EventsError::NoEvent { wanted: term.text().into(), nearest: nearest::in_words(&term.nearest(events)) }
}

fn no_cpu(cpus: impl Iterator<Item = u32>, wanted: u32) -> EventsError {
    let mut cpus: Vec<u32> = cpus.collect::<BTreeSet<_>>().into_iter().collect();
    cpus.sort_by_key(|cpu| cpu.abs_diff(wanted));
    let near: Vec<_> = cpus.iter().take(MAX_CPUS).map(u32::to_string).collect();
    EventsError::NoCpu { wanted, nearest: near.join(", ") }
}
