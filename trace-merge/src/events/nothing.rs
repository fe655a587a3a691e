//! Why no record is listed.

use super::EventsOptions;
use super::current_task::Task;
use super::field_values::FieldValues;
use super::pipeline::SelectedRecords;
use super::selection::{Selection, means, process};
use crate::report::{self, ReportOptions, seconds};
use std::collections::BTreeSet;
use strata_analysis::filter::{Filter, Filters};
use strata_analysis::task_choice::TaskChoice;
use strata_recording::reader::Trace;
use strata_recording::text::nearest::{self, best, similarity};
use strata_recording::text::terminal::harmless;

/// Why no record of `trace` is what `options` ask for; `None` where they ask for all. Reads the recording once more where
/// tasks are requested.
pub(super) fn reason(trace: &Trace, options: &EventsOptions) -> Option<String> {
    let window = ReportOptions { from: options.from, to: options.to, json: false };
    let missed = report::missed_window(trace, &window);
    if missed.is_some() {
        return missed;
    }
    let missing = if options.tasks.is_empty() { None } else { missing_task(trace, options) };
    let missing = missing.or_else(|| missing_event(trace, &options.filters));
    let missing = missing.or_else(|| options.filters.iter().find_map(|filter| missing_value(trace, options, filter)));
    let missing = missing.or_else(|| beside_the_window(trace, options, &window));
    let EventsOptions { utc, json, count, .. } = *options;
    let is_filtered = *options != EventsOptions { utc, json, count, ..EventsOptions::default() };
    missing.or_else(|| is_filtered.then(|| "no record passes all of these filters at once".into()))
}

/// Names the last record before the window and the first one behind it that are all else that `options` ask for.
fn beside_the_window(trace: &Trace, options: &EventsOptions, window: &ReportOptions) -> Option<String> {
    window.from.or(window.to)?;
    let window = window.window(trace).ok()?;
    let selection = Selection::new(trace, options).ok()?;
    let start = trace.start()?;
    let at = |time: u64| seconds(trace.clock().ticks_to_ns(time.saturating_sub(start)));
    let (mut before, mut behind) = (None, None);
    for record in SelectedRecords::new(&selection, 0, u64::MAX) {
        if record.time < window.begin {
            before = Some(record.time);
        } else if record.time >= window.end {
            behind = Some(record.time);
            break;
        }
    }
    match (before, behind) {
        (Some(before), Some(behind)) => {
            Some(format!("no such record is in that part: the nearest are at {} and {}", at(before), at(behind)))
        }
        (one, other) => {
            one.or(other).map(|time| format!("no such record is in that part: the nearest is at {}", at(time)))
        }
    }
}

/// Says where no event has all fields that are requested.
fn missing_event(trace: &Trace, filters: &Filters) -> Option<String> {
    let has_all =
        trace.layers().iter().flat_map(|layer| layer.schemas.iter()).any(|schema| filters.plan(schema).is_some());
    let fields: BTreeSet<&str> = filters.iter().map(|filter| filter.field.as_str()).collect();
    (!has_all).then(|| format!("no event has all of the fields {}", fields.into_iter().collect::<Vec<_>>().join(", ")))
}

/// Says that `filter` alone holds of no record among those that `options` choose but for tasks and times, and what its
/// field is in these.
fn missing_value(trace: &Trace, options: &EventsOptions, filter: &Filter) -> Option<String> {
    let EventsOptions { layers, vms, cpus, events, .. } = options.clone();
    let filters = Filters::only(filter.clone());
    let all = EventsOptions { layers, vms, cpus, events, count: true, ..EventsOptions::default() };
    let selection = Selection::new(trace, &all).ok()?;
    let mut values = FieldValues::default();
    for &(layer, stream) in &selection.streams {
        let cpu = stream.description.cpu_id;
        let plans: Vec<_> = layer.schemas.iter().map(|schema| filters.plan(schema)).collect();
        let mut chosen = selection.filter(layer, stream);
        for record in layer.records(stream).filter(|record| chosen.take(record).is_ok()) {
            match plans.get(record.schema.position()).and_then(Option::as_ref) {
                Some(plan) if plan.holds(cpu, &record) => return None,
                Some(plan) => values.extend(plan.compared(cpu, &record)),
                None => {}
            }
        }
    }
    Some(format!("no record has {}{}", harmless(&filter.to_string()), values.in_words(filter.wanted())))
}

/// Says which of the tasks that are requested no record belongs to at any time.
fn missing_task(trace: &Trace, options: &EventsOptions) -> Option<String> {
    let EventsOptions { layers, vms, cpus, .. } = options.clone();
    let all = EventsOptions { layers, vms, cpus, ..EventsOptions::default() };
    let selection = Selection::new(trace, &all).ok()?;
    let mut missing: Vec<&TaskChoice> = options.tasks.iter().collect();
    let mut names = BTreeSet::new();
    let mut note = |task: &Task<'_>| {
        missing.retain(|wanted| !means(wanted, task));
        if let Some(comm) = task.comm.filter(|comm| !names.contains(*comm)) {
            names.insert(comm.to_vec());
        }
    };
    for &(layer, stream) in &selection.streams {
        let mut filter = selection.filter(layer, stream);
        process(layer).iter().for_each(&mut note);
        layer.records(stream).filter_map(|record| filter.take(&record).ok()?).for_each(|task| note(&task));
    }
    let wanted = missing.first()?.to_string();
    let scored = names.iter().map(|name| {
        let name = String::from_utf8_lossy(name);
        (similarity(&wanted.to_lowercase(), &name.to_lowercase()), harmless(&name))
    });
    let near = best(scored.collect());
    let nearest = nearest::in_words(&near);
    let several = if wanted.contains(',') { "; give --task once for each task" } else { "" };
    Some(format!("no record is of a task '{}'{nearest}{several}", harmless(&wanted)))
}
