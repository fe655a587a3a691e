//! The records themselves: a table for each event type, which together are `events`.

use super::names::NameColumn;
use super::output::Output;
use super::places::Place;
use super::rows::{ABOUT, Made, Rows};
use super::task::{Followed, Named, Tasks};
use super::waiting::Waiting;
use super::{Maker, Selection};
use crate::tables::{Column, EVENTS, Kind, Lead, lead_of_event_table, table_of_event};
use shared_ring::event::{FieldDescription, FieldType};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use strata_analysis::address_symbols::AddressSymbols;
use strata_analysis::timeline::states::Current;
use strata_analysis::timeline::{ChangeKind, Input, Origin, Timeline};
use strata_analysis::{Analysis, Passed};
use strata_recording::layer::LayerKind;
use strata_recording::manifest::Process;
use strata_recording::reader::merge::Merge;
use strata_recording::reader::{Trace, TraceLayer};
use strata_recording::schema::Schema;

/// The records of a layer.
struct Layer {
    kind: LayerKind,
    /// The process whose records it holds.
    process: Option<Process>,
    place: Option<Place>,
    /// By the event type's position: which of [`Records::tables`] its table is; `None` when it is not asked for.
    tables: Vec<Option<usize>>,
}

/// The table of an event type, as far as layers of one place fill it: processes of a guest share theirs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct EventTable {
    table: String,
    event: String,
    columns: Vec<Column>,
    place: Place,
}

/// The rows of records in the making.
pub(super) struct Records<'t> {
    trace: &'t Trace,
    layers: Vec<Layer>,
    tables: Vec<EventRows<'t>>,
    /// By source of the merge: the place of its layer, and in the streams of kernels who made each record.
    sources: Vec<(usize, Option<Followed<'t>>)>,
    tasks: Tasks,
    output: Output,
}

/// The table of an event type, and its rows once there are some.
struct EventRows<'t> {
    table: EventTable,
    /// Its last columns.
    names: Vec<NameColumn>,
    rows: Option<Rows>,
    waiting: Waiting<'t>,
}

impl EventRows<'_> {
    /// Makes rows of the records that wait.
    fn end_waiting(&mut self) {
        if let Some(rows) = &mut self.rows {
            self.waiting.end(rows, &self.names);
        }
    }
}

impl<'t> Records<'t> {
    pub(super) fn new(trace: &'t Trace, timeline: &Timeline, selection: &Selection, output: &Output) -> Self {
        // In the order of the merge of a pass, which reads all layers.
        let place_of = |layer: &TraceLayer| trace.layers().iter().position(|known| std::ptr::eq(known, layer));
        let merge = Merge::new(trace.layers(), 0);
        let followed = |(layer, stream)| (place_of(layer).unwrap_or(usize::MAX), Followed::new(layer, stream));
        let sources = merge.streams().map(followed);
        let mut tables = EventTables::of(trace);
        let of_layer = |layer: &TraceLayer| Layer {
            kind: layer.description.kind,
            process: layer.description.process.clone(),
            place: timeline.origin(layer, 0).map(place),
            tables: match timeline.origin(layer, 0).map(place) {
                Some(place) => {
                    layer.schemas.iter().map(|schema| tables.number(layer, schema, place, selection)).collect()
                }
                None => Vec::new(),
            },
        };
        let layers = trace.layers().iter().map(of_layer).collect();
        let without_rows = |(table, names)| EventRows { table, names, rows: None, waiting: Waiting::default() };
        Self {
            trace,
            sources: sources.collect(),
            layers,
            tables: tables.all.into_iter().map(without_rows).collect(),
            tasks: Tasks::default(),
            output: output.clone(),
        }
    }
}

/// Whose the records of a stream are.
const fn place(origin: Origin) -> Place {
    match origin {
        Origin::Host { host, .. } => Place::Host(host),
        Origin::Vmm { vm, .. } | Origin::Guest { vm, .. } | Origin::User { vm, .. } => Place::Vm(vm),
    }
}

/// Host CPU and vCPU of a stream.
pub(super) fn cpus(origin: Origin, timeline: &Timeline) -> (Option<u32>, Option<u32>) {
    match origin {
        Origin::Host { cpu, .. } => (Some(cpu), None),
        Origin::Guest { cpu, .. } | Origin::User { cpu, .. } => (None, Some(cpu)),
        Origin::Vmm { vm, thread } => {
            (None, Some(thread).filter(|thread| timeline.vm(vm).is_some_and(|vm| vm.vcpus.get(*thread).is_some())))
        }
    }
}

/// The tables of event types, each once, with the names of their fields' numbers.
struct EventTables<'t> {
    all: Vec<(EventTable, Vec<NameColumn>)>,
    numbers: HashMap<EventTable, usize>,
    symbols: AddressSymbols<'t>,
}

impl<'t> EventTables<'t> {
    /// None yet, for events of `trace`.
    fn of(trace: &'t Trace) -> Self {
        Self { all: Vec::new(), numbers: HashMap::new(), symbols: AddressSymbols::new(trace) }
    }

    /// The number of the table of an event type in a layer of `place`, if it is requested.
    fn number(&mut self, layer: &TraceLayer, schema: &Schema, place: Place, selection: &Selection) -> Option<usize> {
        let table = table_of_event(schema.name());
        // A question about `events` only has no use for the fields.
        let (fields, names) = match (selection.has(&table), selection.has(EVENTS)) {
            (true, _) => (schema.description().fields.as_slice(), NameColumn::all(layer, schema, &mut self.symbols)),
            (false, true) => (&[][..], Vec::new()),
            (false, false) => return None,
        };
        let columns = columns_of_event(fields, &names);
        let table = EventTable { table, event: schema.name().into(), columns, place };
        match self.numbers.entry(table) {
            Entry::Occupied(known) => Some(*known.get()),
            Entry::Vacant(new) => {
                self.all.push((new.key().clone(), names));
                Some(*new.insert(self.all.len() - 1))
            }
        }
    }
}

/// The columns of the table of an event type with these fields, those of `names` behind the fields' own.
pub(super) fn columns_of_event(fields: &[FieldDescription], names: &[NameColumn]) -> Vec<Column> {
    lead_of_event_table().chain(fields_of_event(fields, names)).collect()
}

/// The columns of these fields of an event type, and of what their numbers stand for.
pub(super) fn fields_of_event(fields: &[FieldDescription], names: &[NameColumn]) -> impl Iterator<Item = Column> {
    let of_names = names.iter().filter_map(|names| names.described(fields));
    untaken(fields.iter().map(column_of_field).chain(of_names))
}

fn column_of_field(field: &FieldDescription) -> Column {
    Column { name: field.name.clone(), kind: kind_of_field(field) }
}

/// `columns` behind those that each event's table has. One whose name is taken is called `field_NAME`.
fn untaken(columns: impl Iterator<Item = Column>) -> impl Iterator<Item = Column> {
    let partitions = crate::tables::PARTITIONS.iter().map(|(name, _)| (*name).to_string());
    let mut taken: HashSet<String> = lead_of_event_table().map(|column| column.name).chain(partitions).collect();
    columns.map(move |Column { mut name, kind }| {
        // Engines do not tell capitals from small letters.
        while !taken.insert(name.to_ascii_lowercase()) {
            name.insert_str(0, "field_");
        }
        Column { name, kind }
    })
}

/// What the column of a field holds. A field of one name has one kind in all recordings, mostly: integers of 32 bits
/// and less are signed ones of 64.
const fn kind_of_field(field: &FieldDescription) -> Kind {
    match field.ty {
        FieldType::U8 | FieldType::U16 | FieldType::U32 => Kind::Integer,
        FieldType::U64 => Kind::Unsigned,
        FieldType::I8 | FieldType::I16 | FieldType::I32 | FieldType::I64 if field.hex => Kind::Unsigned,
        FieldType::I8 | FieldType::I16 | FieldType::I32 | FieldType::I64 => Kind::Integer,
        FieldType::Array(integer, _) | FieldType::Sequence(integer) => {
            if (integer.is_signed() && !field.hex) || (!integer.is_signed() && integer.size() < 8) {
                Kind::Integers
            } else {
                Kind::Unsigneds
            }
        }
        FieldType::F64 => Kind::Float,
        FieldType::CharArray(_) | FieldType::String | FieldType::Text => Kind::Text,
    }
}

impl Analysis for Records<'_> {
    fn layers(&self) -> &'static [LayerKind] {
        &LayerKind::ALL
    }

    fn takes_change(&self, _kind: ChangeKind) -> bool {
        false
    }

    fn needs_states(&self) -> bool {
        false
    }

    fn record(&mut self, input: &Input<'_>, timeline: &Timeline) {
        let Some(&mut (number, ref mut followed)) = self.sources.get_mut(input.source) else { return };
        let (Some(layer), Some(read)) = (self.layers.get(number), self.trace.layers().get(number)) else { return };
        let Some(place) = layer.place else { return };
        let position = input.record.schema.position();
        let Some(schema) = read.schemas.iter().nth(position) else { return };
        let Some(&Some(number)) = layer.tables.get(position) else { return };
        let Some(of_type) = self.tables.get_mut(number) else { return };
        if !of_type.waiting.has_room_for(schema) {
            of_type.end_waiting();
        }
        let rows = match &mut of_type.rows {
            Some(rows) => rows,
            none => {
                let EventTable { table, event, columns, .. } = &of_type.table;
                let (event, lead) = (Some(event.as_str()), Lead::Moment);
                let made = Made { table, event, lead, columns, keyed: &[ABOUT], is_sorted: false };
                match self.output.taken(Rows::new(made, place, &self.output)) {
                    Some(rows) => none.insert(rows),
                    None => return,
                }
            }
        };
        let hour = rows.hour_of(input.time());
        if !rows.is_of(hour) {
            of_type.waiting.end(rows, &of_type.names);
            rows.turn_to(hour);
        }
        let task = match input.origin {
            Origin::Host { .. } => (followed.as_mut().and_then(|followed| followed.of(&input.record)))
                .map_or(Named::UNKNOWN, |task| self.tasks.recorder(timeline, input.source, task, None)),
            Origin::Guest { vm, .. } => {
                let index = match timeline.recorder() {
                    Current::Task(task) => Some(task),
                    Current::Unknown | Current::Idle => None,
                };
                (followed.as_mut().and_then(|followed| followed.of(&input.record)))
                    .map_or(Named::UNKNOWN, |task| self.tasks.recorder(timeline, input.source, task, Some((vm, index))))
            }
            Origin::User { vm, .. } => match &layer.process {
                Some(process) => self.tasks.process(timeline, vm, process.pid, &process.comm),
                None => Named::UNKNOWN,
            },
            Origin::Vmm { .. } => Named::UNKNOWN,
        };
        // A stream is of one layer and CPU.
        let key = (input.source as u64) << u32::BITS | u64::from(task.number);
        rows.push_key(key, |give| {
            let (cpu, vcpu) = cpus(input.origin, timeline);
            task.give(&[layer.kind.name().into(), cpu.into(), vcpu.into()], give);
        });
        of_type.waiting.push(schema, input.time(), input.record.payload);
    }
}

impl Maker for Records<'_> {
    fn finish(&mut self, _passed: &Passed) {
        self.tables.drain(..).for_each(|mut of_type| of_type.end_waiting());
    }
}
