//! Rows in the making: columns that are filled, and handed on as a batch.

use super::files::Output;
use super::places::{Hour, Place};
use super::{Times, integer};
use crate::tables::{Column, Fixed, Kind};
use arrow_array::builder::{
    BooleanBuilder, Int64Builder, ListBuilder, StringBuilder, TimestampNanosecondBuilder, UInt64Builder,
};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use std::collections::HashMap;
use std::sync::Arc;
use trace_merge::schema::{Elements, Value};
use trace_merge::window::Window;

/// Rows that are handed on at once.
const BATCH: usize = 8192;
/// Bytes of text and lists in them, about.
const BATCH_BYTES: usize = 4 << 20;

/// A value in a row.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cell<'a> {
    Null,
    Integer(i64),
    Unsigned(u64),
    Text(&'a str),
    /// Text; what of it is no UTF-8 is replaced.
    Bytes(&'a [u8]),
    Flag(bool),
    List(Elements<'a>),
}

impl From<u32> for Cell<'_> {
    fn from(number: u32) -> Self {
        Self::Integer(number.into())
    }
}

impl From<i32> for Cell<'_> {
    fn from(number: i32) -> Self {
        Self::Integer(number.into())
    }
}

impl From<i64> for Cell<'_> {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

impl From<u64> for Cell<'_> {
    fn from(number: u64) -> Self {
        Self::Integer(integer(number))
    }
}

impl<'a> From<&'a str> for Cell<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a, V: Into<Cell<'a>>> From<Option<V>> for Cell<'a> {
    fn from(value: Option<V>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// A column that is filled.
#[derive(Debug)]
enum Filling {
    Integer(Int64Builder),
    Unsigned(UInt64Builder),
    Text(StringBuilder),
    Flag(BooleanBuilder),
    Moment(TimestampNanosecondBuilder),
    Integers(ListBuilder<Int64Builder>),
    Unsigneds(ListBuilder<UInt64Builder>),
}

/// The type of a column of this kind.
pub(crate) fn data_type(kind: Kind) -> DataType {
    let list = |element| DataType::List(Arc::new(Field::new("item", element, true)));
    match kind {
        Kind::Integer => DataType::Int64,
        Kind::Unsigned => DataType::UInt64,
        Kind::Text => DataType::Utf8,
        Kind::Flag => DataType::Boolean,
        Kind::Moment => DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())),
        Kind::Integers => list(DataType::Int64),
        Kind::Unsigneds => list(DataType::UInt64),
    }
}

impl Filling {
    fn new(kind: Kind) -> Self {
        match kind {
            Kind::Integer => Self::Integer(Int64Builder::new()),
            Kind::Unsigned => Self::Unsigned(UInt64Builder::new()),
            Kind::Text => Self::Text(StringBuilder::new()),
            Kind::Flag => Self::Flag(BooleanBuilder::new()),
            Kind::Moment => Self::Moment(TimestampNanosecondBuilder::new().with_timezone("UTC")),
            Kind::Integers => Self::Integers(ListBuilder::new(Int64Builder::new())),
            Kind::Unsigneds => Self::Unsigneds(ListBuilder::new(UInt64Builder::new())),
        }
    }

    /// Adds `cell`, and a null where it is of another kind; how many bytes it takes beside its place.
    fn push(&mut self, cell: Cell<'_>) -> usize {
        match (self, cell) {
            (Self::Integer(column), Cell::Integer(number)) => column.append_value(number),
            (Self::Integer(column), Cell::Unsigned(number)) => column.append_option(i64::try_from(number).ok()),
            (Self::Integer(column), _) => column.append_null(),
            (Self::Unsigned(column), Cell::Unsigned(number)) => column.append_value(number),
            (Self::Unsigned(column), _) => column.append_null(),
            (Self::Text(column), Cell::Text(text)) => {
                column.append_value(text);
                return text.len();
            }
            (Self::Text(column), Cell::Bytes(text)) => {
                column.append_value(String::from_utf8_lossy(text));
                return text.len();
            }
            (Self::Text(column), _) => column.append_null(),
            (Self::Flag(column), Cell::Flag(flag)) => column.append_value(flag),
            (Self::Flag(column), _) => column.append_null(),
            (Self::Moment(column), Cell::Integer(ns)) => column.append_value(ns),
            (Self::Moment(column), _) => column.append_null(),
            (Self::Integers(column), Cell::List(elements)) => {
                for element in elements.iter() {
                    column.values().append_option(signed(element));
                }
                column.append(true);
                return elements.len() * size_of::<i64>();
            }
            (Self::Integers(column), _) => column.append(false),
            (Self::Unsigneds(column), Cell::List(elements)) => {
                for element in elements.iter() {
                    column.values().append_option(unsigned(element));
                }
                column.append(true);
                return elements.len() * size_of::<u64>();
            }
            (Self::Unsigneds(column), _) => column.append(false),
        }
        0
    }

    fn take(&mut self) -> ArrayRef {
        match self {
            Self::Integer(column) => Arc::new(column.finish()),
            Self::Unsigned(column) => Arc::new(column.finish()),
            Self::Text(column) => Arc::new(column.finish()),
            Self::Flag(column) => Arc::new(column.finish()),
            Self::Moment(column) => Arc::new(column.finish()),
            Self::Integers(column) => Arc::new(column.finish()),
            Self::Unsigneds(column) => Arc::new(column.finish()),
        }
    }
}

fn signed(value: Value<'_>) -> Option<i64> {
    match value {
        Value::Signed(number) => Some(number),
        Value::Unsigned(number) => i64::try_from(number).ok(),
        Value::Text(_) | Value::Array(_) => None,
    }
}

fn unsigned(value: Value<'_>) -> Option<u64> {
    match value {
        Value::Unsigned(number) => Some(number),
        Value::Signed(number) => u64::try_from(number).ok(),
        Value::Text(_) | Value::Array(_) => None,
    }
}

/// What files of one kind have in common: the table, the columns, whose rows they hold.
#[derive(Debug)]
pub(super) struct Shape {
    /// No other has it.
    pub(super) number: u64,
    pub(super) table: String,
    /// Of the table of an event type: the event's name as it is recorded.
    pub(super) event: Option<String>,
    pub(super) schema: SchemaRef,
    pub(super) place: Place,
}

/// Rows that lie in one hour, on their way to the files of their shape.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) shape: Arc<Shape>,
    pub(super) hour: Hour,
    pub(super) rows: RecordBatch,
}

/// Rows of one table and place in the making.
#[derive(Debug)]
pub(super) struct Rows {
    shape: Arc<Shape>,
    columns: Vec<Filling>,
    /// Of which hour the rows are that are there.
    hour: Hour,
    count: usize,
    bytes: usize,
    output: Output,
}

impl Rows {
    /// None yet.
    pub(super) fn new(table: &str, event: Option<&str>, columns: &[Column], place: Place, output: &Output) -> Self {
        let field = |column: &Column| Field::new(&column.name, data_type(column.kind), true);
        let schema = Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()));
        let number = output.next_shape();
        let shape = Shape { number, table: table.into(), event: event.map(Into::into), schema, place };
        let columns = columns.iter().map(|column| Filling::new(column.kind)).collect();
        let (shape, output) = (Arc::new(shape), output.clone());
        Self { shape, columns, hour: Hour::default(), count: 0, bytes: 0, output }
    }

    /// Adds a row that belongs to the moment `utc_ns`: its cells, in the order of the columns.
    pub(super) fn push<'a>(&mut self, utc_ns: i64, cells: impl IntoIterator<Item = Cell<'a>>) {
        let hour = Hour::of(utc_ns);
        if hour != self.hour {
            self.flush();
            self.hour = hour;
        }
        let mut cells = cells.into_iter();
        for column in &mut self.columns {
            self.bytes += column.push(cells.next().unwrap_or(Cell::Null));
        }
        debug_assert!(cells.next().is_none(), "{}: more cells than columns", self.shape.table);
        self.count += 1;
        if self.count >= BATCH || self.bytes >= BATCH_BYTES {
            self.flush();
        }
    }

    /// Hands on the rows that are there.
    pub(super) fn flush(&mut self) {
        if self.count == 0 {
            return;
        }
        let columns = self.columns.iter_mut().map(Filling::take).collect();
        let rows = RecordBatch::try_new(Arc::clone(&self.shape.schema), columns);
        self.output.send(rows.map(|rows| Batch { shape: Arc::clone(&self.shape), hour: self.hour, rows }));
        (self.count, self.bytes) = (0, 0);
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        self.flush();
    }
}

/// A table of [`FIXED`](crate::tables::FIXED) in the making.
#[derive(Debug)]
pub(super) struct FixedRows {
    table: &'static str,
    columns: Vec<Column>,
    places: HashMap<Place, Rows>,
    output: Output,
}

impl FixedRows {
    /// The table called `name`, without rows.
    pub(super) fn new(name: &'static str, output: &Output) -> Self {
        let columns = Fixed::find(name).into_iter().flat_map(Fixed::columns).map(Column::from).collect();
        Self { table: name, columns, places: HashMap::new(), output: output.clone() }
    }

    fn at(&mut self, place: Place) -> &mut Rows {
        let Self { table, columns, places, output } = self;
        places.entry(place).or_insert_with(|| Rows::new(table, None, columns, place, output))
    }

    /// Adds a row without a time of its own.
    pub(super) fn push(&mut self, place: Place, own: &[Cell<'_>]) {
        let (times, recording) = (Arc::clone(&self.output.times), Arc::clone(&self.output.recording));
        let cells = std::iter::once(Cell::Text(&recording)).chain(own.iter().copied());
        self.at(place).push(times.utc(times.start), cells);
    }

    /// Adds a row of what lasted in `window`.
    pub(super) fn push_window(&mut self, place: Place, window: Window, own: &[Cell<'_>]) {
        self.push_lasting(place, (Some(window.begin), Some(window.end)), own);
    }

    /// Adds a row of what lasted from `begin` to `end`, ticks, as far as they are known.
    pub(super) fn push_lasting(&mut self, place: Place, (begin, end): (Option<u64>, Option<u64>), own: &[Cell<'_>]) {
        let (times, recording) = (Arc::clone(&self.output.times), Arc::clone(&self.output.recording));
        let length = begin.zip(end).map(|(begin, end)| end.saturating_sub(begin));
        let lead = [
            Cell::Text(&recording),
            begin.into(),
            begin.map(|begin| times.since_start(begin)).into(),
            begin.map(|begin| times.utc(begin)).into(),
            length.into(),
            length.map(|length| times.ns(length)).into(),
        ];
        let moment = end.or(begin).map_or(0, |ticks| times.utc(ticks));
        self.at(place).push(moment, lead.into_iter().chain(own.iter().copied()));
    }
}

/// The cells that a row of a moment begins with.
pub(super) fn lead_of_moment<'a>(recording: &'a str, times: &Times, ticks: u64) -> [Cell<'a>; 4] {
    [Cell::Text(recording), ticks.into(), times.since_start(ticks).into(), times.utc(ticks).into()]
}
