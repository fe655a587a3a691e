//! Columns of what the numbers of a field stand for, beside the field's own: exits, system calls, flags, symbols.

use super::columns::Column;
use crate::tables::{Column as Described, Kind};
use serde_json::json;
use shared_ring::event::FieldDescription;
use std::borrow::Cow;
use std::fmt::Write;
use strata_analysis::address_symbols::AddressSymbols;
use strata_analysis::field_names::{FieldNames, Name};
use strata_recording::reader::TraceLayer;
use strata_recording::schema::{Elements, PlacedField, Schema, Value};

/// The column of the names of a field's numbers.
#[derive(Debug)]
pub(super) struct NameColumn {
    /// Which of its event's fields has the numbers.
    position: usize,
    names: FieldNames,
}

impl NameColumn {
    /// Those of the fields of `schema`, which is one of `layer`'s.
    pub(super) fn all(layer: &TraceLayer, schema: &Schema, symbols: &mut AddressSymbols<'_>) -> Vec<Self> {
        let of = |position| Some(Self { position, names: FieldNames::of(layer, schema, position, symbols)? });
        (0..schema.description().fields.len()).filter_map(of).collect()
    }

    /// The column of an event type with these `fields`.
    pub(super) fn described(&self, fields: &[FieldDescription]) -> Option<Described> {
        let name = self.names.key(fields.get(self.position)?).into_owned();
        Some(Described { name, kind: Kind::Text })
    }

    /// Adds to `column` the name in each of `payloads`, which are of `schema`; a null where there is none.
    pub(super) fn fill<'p>(&self, column: &mut Column, schema: &Schema, payloads: impl Iterator<Item = &'p [u8]>) {
        let placed = schema.placed_fields();
        let mut buffer = String::new();
        for payload in payloads {
            let number = match placed.get(self.position) {
                Some(PlacedField::Integer(field)) => field.bits(payload),
                Some(PlacedField::Float(_) | PlacedField::Text(_)) => None,
                None => match schema.values_behind_placed(payload).nth(self.position - placed.len()) {
                    Some(Value::Array(calls)) => {
                        column.push(self.calls(calls, payload).as_deref().into());
                        continue;
                    }
                    value => value.and_then(bits),
                },
            };
            let name = number.and_then(|number| self.names.name(number, payload));
            column.push(name.map(|name| as_text(name, &mut buffer)).as_deref().into());
        }
    }

    /// The names of the calls of a stack: a list in JSON, with the address of what has none; `None` where nothing has.
    fn calls(&self, calls: Elements<'_>, payload: &[u8]) -> Option<String> {
        let calls = || calls.iter().filter_map(bits);
        let named = |call| self.names.call(call, payload);
        calls().any(|call| named(call).is_some()).then(|| {
            let shown = |call| named(call).map_or_else(|| format!("{call:#x}"), |symbol| symbol.to_string());
            json!(calls().map(shown).collect::<Vec<_>>()).to_string()
        })
    }
}

/// `name` as text, in `buffer` where it is put together.
fn as_text<'b>(name: Name<'_>, buffer: &'b mut String) -> Cow<'b, str> {
    match name {
        Name::Text(text) => text,
        Name::Symbol(symbol) => {
            buffer.clear();
            // a string takes all that is written
            let _ = write!(buffer, "{symbol}");
            Cow::Borrowed(buffer)
        }
    }
}

const fn bits(value: Value<'_>) -> Option<u64> {
    match value {
        Value::Unsigned(number) => Some(number),
        Value::Signed(number) => Some(number.cast_unsigned()),
        Value::Float(_) | Value::Text(_) | Value::Array(_) => None,
    }
}
