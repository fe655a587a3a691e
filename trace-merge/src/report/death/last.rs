//! The last of something: a queue that forgets, and the last records of streams, which are read again when it is known
//! which they are.

use foldhash::HashMap;
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::collections::{VecDeque, vec_deque};
use std::fmt;
use strata_analysis::timeline::{Origin, Timeline};
use strata_recording::reader::{Stream, Trace, TraceLayer};
use strata_recording::schema::{FloatText, Value, is_text_in_json};
use strata_recording::window::Window;

/// Records of each stream that are kept.
const RECORDS: usize = 10;

/// The latest of many.
#[derive(Clone, Debug)]
pub(super) struct Latest<T>(VecDeque<T>);

impl<T> Default for Latest<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Latest<T> {
    /// Keeps `one`, and forgets the oldest of more than `most`.
    pub(super) fn push(&mut self, one: T, most: usize) {
        if self.0.len() >= most {
            self.0.pop_front();
        }
        self.0.push_back(one);
    }

    /// From the oldest on.
    pub(super) fn iter(&self) -> vec_deque::Iter<'_, T> {
        self.0.iter()
    }
}

/// When the last records of each CPU, or thread, were made, ticks.
#[derive(Debug, Default)]
pub(super) struct LastRecords(HashMap<Origin, Latest<u64>>);

impl LastRecords {
    /// A record was made, ticks. Those of one origin come in order.
    pub(super) fn add(&mut self, origin: Origin, time: u64) {
        self.0.entry(origin).or_default().push(time, RECORDS);
    }

    /// The records, in time order: whose, when, event and fields.
    pub(super) fn read(&self, trace: &Trace, timeline: &Timeline) -> Vec<(Origin, u64, String, Fields)> {
        let mut records = Vec::new();
        for (origin, times) in &self.0 {
            let (Some(&from), Some(&to)) = (times.0.front(), times.0.back()) else { continue };
            let begin = records.len();
            for layer in trace.layers() {
                let its = |stream: &&Stream| timeline.origin(layer, stream.description.cpu_id) == Some(*origin);
                for stream in layer.streams.iter().filter(its) {
                    for record in layer.records(stream).within(from, to) {
                        let fields = Fields::of(record.schema.fields(record.payload));
                        records.push((*origin, record.time, record.schema.name().to_owned(), fields));
                    }
                }
            }
            // Several layers may tell of one origin, and several records may have the first one's time.
            if let Some(of_origin) = records.get_mut(begin..) {
                of_origin.sort_by_key(|&(_, time, ..)| time);
                let surplus = of_origin.len().saturating_sub(RECORDS);
                records.drain(begin..begin + surplus);
            }
        }
        records.sort_by_key(|&(_, time, ..)| time);
        records
    }
}

/// When the last record of a stream in `window` was made, ticks. Packets are looked at from behind.
pub(super) fn time_of_last(layer: &TraceLayer, stream: &Stream, window: Window) -> Option<u64> {
    let to = window.last();
    let begins = (0..stream.packets()).rev().filter_map(|index| Some(stream.header(index)?.time_begin));
    let last = |begin: u64| layer.records(stream).within(begin.max(window.begin), to).map(|record| record.time).last();
    begins.filter(|begin| *begin <= to).find_map(last)
}

/// The fields of a record.
#[derive(Clone, Debug, PartialEq)]
pub struct Fields(Vec<Field>);

#[derive(Clone, Debug, PartialEq)]
struct Field {
    name: String,
    value: serde_json::Value,
    /// Whether its numbers are shown in hexadecimal.
    is_hex: bool,
}

impl Fields {
    fn of(fields: strata_recording::schema::Fields<'_>) -> Self {
        let field = |(described, value): (&shared_ring::event::FieldDescription, Value<'_>)| Field {
            name: described.name.clone(),
            value: json(value, is_text_in_json(described)),
            is_hex: described.hex,
        };
        Self(fields.map(field).collect())
    }
}

fn json(value: Value<'_>, is_text: bool) -> serde_json::Value {
    match value {
        Value::Unsigned(number) if is_text => format!("{number:#x}").into(),
        Value::Unsigned(number) => number.into(),
        Value::Signed(number) => number.into(),
        Value::Float(number) if number.is_finite() => number.into(),
        Value::Float(number) => FloatText(number).to_string().into(),
        Value::Text(text) => String::from_utf8_lossy(text).into(),
        Value::Array(elements) => elements.iter().map(|element| json(element, is_text)).collect(),
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for field in &self.0 {
            map.serialize_entry(&field.name, &field.value)?;
        }
        map.end()
    }
}

impl fmt::Display for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, field) in self.0.iter().enumerate() {
            let before = if place == 0 { "" } else { ", " };
            write!(f, "{before}{} = ", field.name)?;
            write_value(&field.value, field.is_hex, f)?;
        }
        Ok(())
    }
}

fn write_value(value: &serde_json::Value, is_hex: bool, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match value {
        serde_json::Value::String(number) if is_hex => f.write_str(number),
        serde_json::Value::Number(number) if is_hex => match number.as_u64() {
            Some(number) => write!(f, "{number:#x}"),
            None => write!(f, "{number}"),
        },
        serde_json::Value::Array(numbers) if is_hex => {
            f.write_str("[")?;
            for (place, number) in numbers.iter().enumerate() {
                f.write_str(if place == 0 { "" } else { "," })?;
                write_value(number, is_hex, f)?;
            }
            f.write_str("]")
        }
        value => write!(f, "{value}"),
    }
}
