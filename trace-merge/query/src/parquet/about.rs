//! The recording itself: what it is of, and what it lacks.

use super::columns::cell::Cell;
use super::names::NameColumn;
use super::output::Output;
use super::places::Place;
use super::records::fields_of_event;
use super::rows::FixedRows;
use super::{Selection, integer, utc};
use crate::tables::table_of_event;
use std::collections::HashSet;
use std::time::Duration;
use strata_analysis::Passed;
use strata_analysis::address_symbols::AddressSymbols;
use strata_recording::layer::LayerKind;
use strata_recording::reader::totals::Totals;
use strata_recording::reader::{Trace, TraceLayer};

/// What there is to say of a recording.
pub(super) struct About<'p> {
    pub(super) trace: &'p Trace,
    pub(super) passed: &'p Passed,
    /// From when and until when after the first record, where that was requested.
    pub(super) part: (Option<Duration>, Option<Duration>),
    pub(super) incomplete: Option<&'p str>,
    /// Records in the window.
    pub(super) records: u64,
}

impl About<'_> {
    /// Writes the tables here that are in `selection`.
    pub(super) fn write(&self, selection: &Selection, output: &Output) {
        let table = |name| selection.has(name).then(|| FixedRows::new(name, output));
        if let Some(mut table) = table("recordings") {
            self.recording(&mut table);
        }
        if let Some(mut table) = table("vms") {
            for (index, vm) in self.trace.manifest().vms.iter().enumerate() {
                let kernel = vm.guest.as_ref().map(|guest| guest.kernel.as_str());
                table.push(Place::Vm(index), &[vm.vcpus.into(), kernel.into()]);
            }
        }
        if let Some(mut table) = table("losses") {
            self.losses(&mut table);
        }
        if let Some(mut table) = table("event_fields") {
            self.event_fields(&mut table);
        }
        if let Some(mut table) = table("missing") {
            for missing in &self.passed.completeness.missing {
                let own = [missing.layer.name().into(), missing.reason.as_str().into(), missing.fix.as_str().into()];
                table.push(Place::Host(0), &own);
            }
        }
    }

    fn recording(&self, table: &mut FixedRows) {
        let manifest = self.trace.manifest();
        let clock = self.trace.clock();
        let ns = |after: Option<Duration>| after.map(|after| i64::try_from(after.as_nanos()).unwrap_or(i64::MAX));
        // Of all layers, also where only applications recorded.
        let first = self.passed.totals.iter().filter_map(|totals| totals.first).min();
        let last = self.passed.totals.iter().filter_map(|totals| totals.last).max();
        let length = first.zip(last).map(|(first, last)| clock.ticks_to_ns(last.saturating_sub(first)));
        let own = [
            Cell::Integer(integer(manifest.started.utc_ns)),
            self.trace.start().map(|start| utc(clock, start)).into(),
            length.into(),
            clock.frequency_hz.into(),
            clock.source.as_str().into(),
            clock.error_bound_ns.into(),
            self.trace.utc_bound_ns().into(),
            manifest.host.kernel.as_str().into(),
            manifest.host.cpu.as_str().into(),
            manifest.strata.as_str().into(),
            manifest.outcome_text().into(),
            self.incomplete.into(),
            self.records.into(),
            ns(self.part.0).into(),
            ns(self.part.1).into(),
        ];
        table.push(Place::Host(0), &own);
    }

    /// Whose a layer is.
    fn place(&self, layer: &TraceLayer) -> Place {
        let (description, timeline) = (&layer.description, &self.passed.timeline);
        let vm = || timeline.vms.iter().position(|vm| Some(&vm.name) == description.vm.as_ref());
        let host = || timeline.hosts.iter().position(|host| host.name == description.host);
        let place = match description.kind {
            LayerKind::HostKernel => host().map(Place::Host),
            _ => vm().map(Place::Vm),
        };
        place.unwrap_or(Place::Host(0))
    }

    /// The fields of each event type: once for all processes of a guest.
    fn event_fields(&self, table: &mut FixedRows) {
        let (mut reported, mut symbols) = (HashSet::new(), AddressSymbols::new(self.trace));
        for layer in self.trace.layers() {
            let (place, kind) = (self.place(layer), layer.description.kind);
            for schema in layer.schemas.iter() {
                let event_table = table_of_event(schema.name());
                let names = NameColumn::all(layer, schema, &mut symbols);
                for column in fields_of_event(&schema.description().fields, &names) {
                    if reported.insert((place, kind.name(), schema.name(), column.clone())) {
                        let names: [&str; 5] =
                            [kind.name(), schema.name(), &event_table, &column.name, column.kind.name()];
                        table.push(place, &names.map(Cell::Text));
                    }
                }
            }
        }
    }

    /// What each layer holds and lost, of a part in the part: parts add up to the whole.
    fn losses(&self, table: &mut FixedRows) {
        let (window, start) = (self.passed.requested, self.trace.start().unwrap_or(0));
        for (layer, totals) in self.trace.layers().iter().zip(&self.passed.totals) {
            let description = &layer.description;
            let process = description.process.as_ref();
            let lacking = Totals::lacking(layer, window, start);
            let own = [
                description.kind.name().into(),
                process.map(|process| process.pid).into(),
                process.map(|process| process.comm.as_str()).into(),
                totals.events.into(),
                totals.bytes.into(),
                lacking.lost.full.into(),
                lacking.lost.wrapped.into(),
                lacking.lost.too_large.into(),
                lacking.rejected_bytes.into(),
                lacking.corrupt_streams.into(),
                lacking.absent_streams.into(),
            ];
            table.push(self.place(layer), &own);
        }
    }
}
