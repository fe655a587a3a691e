//! The records themselves: time, event, who made it, and the fields as they are, for the page to show one by one.
//!
//! Each property is a column of its own, which compresses well: the page makes typed arrays of them.

use super::category::Category;
use super::encoding::{Column, put, put_bytes, put_signed};
use super::names::Names;
use super::rows::RowNumber;
use foldhash::HashMap;
use serde::Serialize;
use shared_ring::event::FieldType;
use std::collections::BTreeMap;
use strata_analysis::event::named::Named;
use strata_analysis::timeline::Input;
use strata_recording::schema::{Elements, Schema, Value};
use strata_recording::text::terminal::harmless;

/// Kinds of records that are distinguished: event types of each stream.
const MOST_KINDS: usize = 1 << 16;
/// Meanings of numbers that are written for each event type.
const MOST_MEANINGS: usize = 1024;

/// An event type of a layer.
#[derive(Debug, Serialize)]
struct Type {
    name: String,
    layer: &'static str,
    fields: Vec<Field>,
    /// What the numbers of a field mean, where they have names.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    meanings: BTreeMap<i64, String>,
    /// The field whose numbers those are.
    #[serde(skip_serializing_if = "Option::is_none")]
    meant: Option<usize>,
    #[serde(skip)]
    named: Option<Named>,
}

/// A field.
#[derive(Debug, Serialize)]
struct Field {
    name: String,
    hex: bool,
    /// `u`, `i` or `t` for an integer or text; `U` or `I` for an array.
    form: char,
}

/// Records in the making.
#[derive(Debug, Default)]
pub(super) struct Records {
    types: Vec<Type>,
    /// By layer and position in it.
    type_numbers: HashMap<(usize, usize), usize>,
    /// Event types of each stream: type and row.
    kinds: Vec<(usize, RowNumber)>,
    /// By source of the merge and position.
    kind_numbers: HashMap<(usize, usize), usize>,
    /// Who made records.
    pub(super) whos: Names,
    /// The rows of those among them that are a guest's tasks.
    rows_of_whos: Vec<(u32, RowNumber)>,
    columns: Columns,
    last: u64,
    kept: u64,
    /// Records that are not kept, and when the first of them was made, ns.
    left_out: u64,
    left_out_from: Option<u64>,
    most: u64,
    most_bytes: usize,
    payload: Vec<u8>,
}

/// The columns of records: times as distances, numbers of kinds, numbers of those who made them, fields.
#[derive(Debug, Default)]
struct Columns {
    times: Column,
    kinds: Column,
    whos: Column,
    fields: Column,
}

/// What the page gets of the records beside the columns.
#[derive(Debug, Serialize)]
pub(super) struct ReportedRecords<'r> {
    types: &'r [Type],
    kinds: &'r [(usize, RowNumber)],
    whos: &'r Names,
    rows_of_whos: &'r [(u32, RowNumber)],
    kept: u64,
    left_out: u64,
    left_out_from: Option<u64>,
}

impl Records {
    /// None yet; keeps up to `most`, whose fields take up to `most_bytes`.
    pub(super) fn new(most: u64, most_bytes: usize) -> Self {
        let mut records = Self { most, most_bytes, ..Self::default() };
        // Number 0 is whoever is not known.
        records.whos.number(Category::NotRecorded, "not known");
        records
    }

    /// Adds a record of the layer at `layer` that `who` made at `time`, ns, and that is marked in `row`.
    pub(super) fn add(&mut self, input: &Input<'_>, layer: usize, row: RowNumber, time: u64, who: u32) {
        let schema = input.record.schema;
        if self.kept >= self.most || self.columns.fields.len() >= self.most_bytes as u64 {
            return self.leave_out(time);
        }
        let Some(kind) = self.kind((layer, input.source), schema, row) else { return self.leave_out(time) };
        let Columns { times, kinds, whos, fields } = &mut self.columns;
        put(times.end(), time.saturating_sub(self.last));
        put(kinds.end(), kind as u64);
        put(whos.end(), who.into());
        self.payload.clear();
        for (_, value) in schema.fields(input.record.payload) {
            put_value(&mut self.payload, value);
        }
        put_bytes(fields.end(), &self.payload);
        self.last = time.max(self.last);
        self.kept += 1;
        self.report_meaning(self.kinds.get(kind).map_or(0, |kind| kind.0), input.record.payload);
    }

    fn leave_out(&mut self, time: u64) {
        self.left_out += 1;
        self.left_out_from.get_or_insert(time);
    }

    /// The number of the kind of records of the event type `schema` of a layer and source.
    fn kind(&mut self, (layer, source): (usize, usize), schema: &Schema, row: RowNumber) -> Option<usize> {
        let position = schema.position();
        if let Some(&known) = self.kind_numbers.get(&(source, position)) {
            return Some(known);
        }
        if self.kinds.len() >= MOST_KINDS {
            return None;
        }
        let next = self.types.len();
        let number = *self.type_numbers.entry((layer, position)).or_insert(next);
        if number == next {
            self.types.push(Type::new(schema));
        }
        self.kinds.push((number, row));
        self.kind_numbers.insert((source, position), self.kinds.len() - 1);
        Some(self.kinds.len() - 1)
    }

    /// Writes the meaning of a number in `payload`, unless it is written.
    fn report_meaning(&mut self, number: usize, payload: &[u8]) {
        let Some(Type { named: Some(named), meanings, .. }) = self.types.get_mut(number) else { return };
        let Some(number) = named.number(payload) else { return };
        if meanings.len() < MOST_MEANINGS
            && !meanings.contains_key(&number)
            && let Some(name) = named.name(number, payload)
        {
            meanings.insert(number, name.into_owned());
        }
    }

    /// The records of these tasks are marked in their rows, too.
    pub(super) fn set_rows_of_tasks(&mut self, rows: impl Iterator<Item = (u32, RowNumber)>) {
        self.rows_of_whos = rows.collect();
        self.rows_of_whos.sort_unstable();
    }

    /// The layer of each type is `name`'s: what the page gets beside the columns.
    pub(super) fn reported(&mut self, layer_name: impl Fn(usize) -> &'static str) -> ReportedRecords<'_> {
        for (&(layer, _), &number) in &self.type_numbers {
            if let Some(of) = self.types.get_mut(number) {
                of.layer = layer_name(layer);
            }
        }
        let Self { types, kinds, whos, rows_of_whos, kept, left_out, left_out_from, .. } = self;
        let (kept, left_out, left_out_from) = (*kept, *left_out, *left_out_from);
        ReportedRecords { types, kinds, whos, rows_of_whos, kept, left_out, left_out_from }
    }

    /// The columns, each with its name.
    pub(super) fn into_columns(self) -> [(&'static str, Column); 4] {
        let Columns { times, kinds, whos, fields } = self.columns;
        [("record-times", times), ("record-kinds", kinds), ("record-whos", whos), ("record-fields", fields)]
    }
}

impl Type {
    fn new(schema: &Schema) -> Self {
        let named = Named::all(schema).into_iter().next();
        let field = |field: &shared_ring::event::FieldDescription| Field {
            name: harmless(&field.name),
            hex: field.hex,
            form: form(field.ty, field.hex),
        };
        Self {
            name: harmless(schema.name()),
            layer: "",
            fields: schema.description().fields.iter().map(field).collect(),
            meanings: BTreeMap::new(),
            meant: named.map(|named| named.position),
            named,
        }
    }
}

/// How the values of a field are put.
fn form(ty: FieldType, hex: bool) -> char {
    match (ty, ty.integer()) {
        (_, Some(integer)) => {
            if integer.is_signed() && !hex {
                'i'
            } else {
                'u'
            }
        }
        (FieldType::F64, _) => 'f',
        (FieldType::Array(integer, _) | FieldType::Sequence(integer), _) => {
            if integer.is_signed() && !hex {
                'I'
            } else {
                'U'
            }
        }
        _ => 't',
    }
}

fn put_value(bytes: &mut Vec<u8>, value: Value<'_>) {
    match value {
        Value::Unsigned(number) => put(bytes, number),
        Value::Signed(number) => put_signed(bytes, number),
        Value::Float(number) => bytes.extend_from_slice(&number.to_le_bytes()),
        Value::Text(text) => put_bytes(bytes, text),
        Value::Array(elements) => put_elements(bytes, elements),
    }
}

fn put_elements(bytes: &mut Vec<u8>, elements: Elements<'_>) {
    put(bytes, elements.len() as u64);
    elements.iter().for_each(|element| put_value(bytes, element));
}
