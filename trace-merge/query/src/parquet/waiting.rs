//! Records of an event type that wait to become rows.
//!
//! They become so many at once, column by column: what is filled stays in the processor's nearest cache, and how a field
//! is read is decided once for all of them.

use super::columns::Column;
use super::columns::cell::Cell;
use super::names::NameColumn;
use super::rows::Rows;
use std::ops::Range;
use strata_recording::schema::{PlacedField, Schema, Value};

/// Records that wait, at most.
const MOST: usize = 256;
/// Bytes of payloads that wait, about.
const MOST_BYTES: usize = 1 << 15;

/// Records of one event type that wait.
#[derive(Debug, Default)]
pub(super) struct Waiting<'t> {
    schema: Option<&'t Schema>,
    ticks: Vec<u64>,
    payloads: Vec<u8>,
    /// Where each payload lies among `payloads`.
    places: Vec<Range<usize>>,
}

impl<'t> Waiting<'t> {
    /// Whether another record, of `schema`, may wait beside those that do.
    #[inline]
    pub(super) fn has_room_for(&self, schema: &Schema) -> bool {
        self.ticks.len() < MOST && self.payloads.len() < MOST_BYTES && self.is_of(schema)
    }

    /// Whether records are of `schema`: another process may have an event type of the same name with other fields.
    #[inline]
    fn is_of(&self, schema: &Schema) -> bool {
        self.schema.is_some_and(|known| {
            std::ptr::eq(known, schema) || known.description().fields == schema.description().fields
        })
    }

    /// Adds a record of `schema`, for which there is room.
    #[inline]
    pub(super) fn push(&mut self, schema: &'t Schema, ticks: u64, payload: &[u8]) {
        if self.ticks.is_empty() && !self.is_of(schema) {
            self.schema = Some(schema);
        }
        self.ticks.push(ticks);
        let from = self.payloads.len();
        self.payloads.extend_from_slice(payload);
        self.places.push(from..self.payloads.len());
    }

    /// Makes them rows of `rows`, which have their keys. The last columns are those of `names`.
    pub(super) fn end(&mut self, rows: &mut Rows, names: &[NameColumn]) {
        rows.add_moments(&self.ticks, |columns| {
            let (fields, of_names) = columns.split_at_mut(columns.len().saturating_sub(names.len()));
            self.fill(fields);
            self.fill_names(of_names, names);
        });
        self.ticks.clear();
        self.payloads.clear();
        self.places.clear();
    }

    fn payloads(&self) -> impl Iterator<Item = &[u8]> + Clone {
        self.places.iter().map(|place| self.payloads.get(place.clone()).unwrap_or_default())
    }

    /// Fills the columns of `names`.
    fn fill_names(&self, columns: &mut [Column], names: &[NameColumn]) {
        let Some(schema) = self.schema else { return };
        columns.iter_mut().zip(names).for_each(|(column, names)| names.fill(column, schema, self.payloads()));
    }

    /// Fills the columns of the first fields, as many as there are.
    fn fill(&self, columns: &mut [Column]) {
        let Some(schema) = self.schema else { return };
        let payloads = || self.payloads();
        let fields = schema.placed_fields();
        let placed = fields.len().min(columns.len());
        let (first, rest) = columns.split_at_mut(placed);
        for (column, field) in first.iter_mut().zip(fields) {
            match field {
                PlacedField::Integer(field) | PlacedField::Float(field) => {
                    column.push_bits(payloads().map(|payload| field.bits(payload)));
                }
                PlacedField::Text(field) => {
                    payloads().for_each(|payload| column.push(text(field.read(payload))));
                }
            }
        }
        if rest.is_empty() {
            return;
        }
        for payload in payloads() {
            let values = schema.fields(payload).skip(placed).map(|(_, value)| cell(value));
            // A payload that ends too early has fewer.
            let values = values.chain(std::iter::repeat(Cell::Null));
            rest.iter_mut().zip(values).for_each(|(column, value)| column.push(value));
        }
    }
}

fn text(text: Option<&[u8]>) -> Cell<'_> {
    text.map_or(Cell::Null, Cell::Bytes)
}

fn cell(value: Value<'_>) -> Cell<'_> {
    match value {
        Value::Unsigned(number) => Cell::Unsigned(number),
        Value::Signed(number) => Cell::Integer(number),
        Value::Float(number) => Cell::Float(number),
        Value::Text(text) => Cell::Bytes(text),
        Value::Array(elements) => Cell::List(elements),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::{Column as Described, Kind};
    use shared_ring::event::{EventDescription, FieldDescription, FieldType, Integer};

    /// An event type with a field of each kind, and the columns of its table.
    fn of_all_kinds() -> (Schema, Vec<Described>) {
        let fields = [
            ("wide", FieldType::U64, false, Kind::Unsigned),
            ("narrow", FieldType::I16, false, Kind::Integer),
            ("bits", FieldType::I32, true, Kind::Unsigned),
            ("name", FieldType::CharArray(4), false, Kind::Text),
            ("list", FieldType::Sequence(Integer::U16), false, Kind::Integers),
            ("last", FieldType::U8, false, Kind::Integer),
            ("share", FieldType::F64, false, Kind::Float),
            ("text", FieldType::Text, false, Kind::Text),
        ];
        let described = |&(name, ty, hex, _): &_| FieldDescription { name: String::from(name), ty, hex };
        let column = |&(name, _, _, kind): &(&str, _, _, _)| Described { name: name.into(), kind };
        let columns = fields.iter().map(column).collect();
        let fields = fields.iter().map(described).collect();
        (Schema::new(EventDescription { id: 7, class: 0, name: "a:b".into(), fields }), columns)
    }

    /// A payload of that event type whose values follow from `number`.
    fn payload(number: u8) -> Vec<u8> {
        let mut payload = vec![number; 8];
        payload.extend(i16::from(number).wrapping_neg().to_le_bytes());
        payload.extend((-i32::from(number)).to_le_bytes());
        payload.extend([b'a' + number % 3, b'b', 0, number]);
        payload.extend([number % 4, 0, number]);
        payload.extend((f64::from(number) / 8.0).to_le_bytes());
        payload.extend([5, 0]);
        (0..number % 4).for_each(|element| payload.extend([element, number]));
        payload.extend(b"hello");
        payload
    }

    fn columns_of(columns: &[Described]) -> Vec<Column> {
        columns.iter().map(|column| Column::new(column.kind)).collect()
    }

    /// Adds a row, value by value.
    fn push_all<'c>(columns: &mut [Column], values: impl Iterator<Item = Cell<'c>>) {
        for (column, value) in columns.iter_mut().zip(values) {
            column.push(value);
        }
    }

    #[test]
    fn fields_become_what_they_would_one_by_one() {
        let (schema, described) = of_all_kinds();
        let (mut at_once, mut singly) = (columns_of(&described), columns_of(&described));
        let mut waiting = Waiting::default();
        for number in 0..100 {
            let payload = payload(number);
            assert!(schema.accepts(&payload));
            waiting.push(&schema, number.into(), &payload);
            let values = schema.fields(&payload).map(|(_, value)| cell(value));
            push_all(&mut singly, values);
        }

        waiting.fill(&mut at_once);

        assert_eq!(at_once, singly);
    }

    #[test]
    fn fields_behind_the_end_of_a_payload_are_nulls() {
        let (schema, described) = of_all_kinds();
        let (mut at_once, mut singly) = (columns_of(&described), columns_of(&described));
        let mut waiting = Waiting::default();
        for length in [3, 8, 9] {
            waiting.push(&schema, 0, &payload(1)[..length]);
        }
        let nulls = || std::iter::repeat(Cell::Null);
        let first_alone = || std::iter::once(Cell::Unsigned(0x0101_0101_0101_0101)).chain(nulls());
        push_all(&mut singly, nulls());
        push_all(&mut singly, first_alone());
        push_all(&mut singly, first_alone());

        waiting.fill(&mut at_once);

        assert_eq!(at_once, singly);
    }

    #[test]
    fn record_of_other_fields_has_no_room_beside_others() {
        let (schema, _) = of_all_kinds();
        let mut description = schema.description().clone();
        let same = Schema::new(description.clone());
        description.fields.pop();
        let other = Schema::new(description);
        let mut waiting = Waiting::default();

        waiting.push(&schema, 0, &payload(0));

        assert!(waiting.has_room_for(&same));
        assert!(!waiting.has_room_for(&other));
    }
}
