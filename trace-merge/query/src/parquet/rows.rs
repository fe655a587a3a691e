//! Rows in the making: columns that are filled, and handed on as a batch.

use super::files::Output;
use super::places::{Hour, Place};
use super::{Times, integer};
use crate::tables::{Column, Fixed, Kind, Lead};
use arrow_array::builder::{
    BooleanBuilder, Int64Builder, ListBuilder, NullBufferBuilder, StringBuilder, UInt64Builder,
};
use arrow_array::types::{ArrowPrimitiveType, Int64Type, TimestampNanosecondType, UInt64Type};
use arrow_array::{Array, ArrayRef, Int64Array, PrimitiveArray, RecordBatch, TimestampNanosecondArray};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef, TimeUnit};
use std::borrow::Cow;
use std::sync::Arc;
use trace_merge::schema::{Elements, Value};
use trace_merge::window::Window;

/// Rows that are handed on at once.
pub(super) const BATCH: usize = 8192;
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
    Integer(Numbers<Int64Type>),
    Unsigned(Numbers<UInt64Type>),
    Text(StringBuilder),
    Flag(BooleanBuilder),
    Moment(Numbers<TimestampNanosecondType>),
    Integers(ListBuilder<Int64Builder>),
    Unsigneds(ListBuilder<UInt64Builder>),
}

/// Numbers of a column, or nulls.
#[derive(Debug)]
struct Numbers<P: ArrowPrimitiveType> {
    values: Vec<P::Native>,
    valid: NullBufferBuilder,
}

impl<P: ArrowPrimitiveType> Numbers<P> {
    fn new() -> Self {
        Self { values: Vec::new(), valid: NullBufferBuilder::new(0) }
    }

    #[inline]
    fn push(&mut self, value: Option<P::Native>) {
        self.values.push(value.unwrap_or_default());
        self.valid.append(value.is_some());
    }

    /// What there is, as a column; there will be as much again, mostly.
    fn take(&mut self) -> Result<PrimitiveArray<P>, ArrowError> {
        let next = Vec::with_capacity(self.values.len());
        PrimitiveArray::try_new(std::mem::replace(&mut self.values, next).into(), self.valid.finish())
    }
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
            Kind::Integer => Self::Integer(Numbers::new()),
            Kind::Unsigned => Self::Unsigned(Numbers::new()),
            Kind::Text => Self::Text(StringBuilder::new()),
            Kind::Flag => Self::Flag(BooleanBuilder::new()),
            Kind::Moment => Self::Moment(Numbers::new()),
            Kind::Integers => Self::Integers(ListBuilder::new(Int64Builder::new())),
            Kind::Unsigneds => Self::Unsigneds(ListBuilder::new(UInt64Builder::new())),
        }
    }

    /// Adds `cell`, and a null where it is of another kind; how many bytes it takes beside its place.
    #[inline]
    fn push(&mut self, cell: Cell<'_>) -> usize {
        match (self, cell) {
            (Self::Integer(column), Cell::Integer(number)) => column.push(Some(number)),
            (Self::Integer(column), Cell::Unsigned(number)) => column.push(i64::try_from(number).ok()),
            (Self::Integer(column), _) => column.push(None),
            (Self::Unsigned(column), Cell::Unsigned(number)) => column.push(Some(number)),
            (Self::Unsigned(column), _) => column.push(None),
            (Self::Text(column), Cell::Text(text)) => {
                column.append_value(text);
                return text.len();
            }
            (Self::Text(column), Cell::Bytes(text)) => {
                column.append_value(text_of(text));
                return text.len();
            }
            (Self::Text(column), _) => column.append_null(),
            (Self::Flag(column), Cell::Flag(flag)) => column.append_value(flag),
            (Self::Flag(column), _) => column.append_null(),
            (Self::Moment(column), Cell::Integer(ns)) => column.push(Some(ns)),
            (Self::Moment(column), _) => column.push(None),
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

    fn take(&mut self) -> Result<ArrayRef, ArrowError> {
        Ok(match self {
            Self::Integer(column) => Arc::new(column.take()?),
            Self::Unsigned(column) => Arc::new(column.take()?),
            Self::Text(column) => {
                let full = column.finish();
                *column = StringBuilder::with_capacity(full.len(), full.values().len());
                Arc::new(full)
            }
            Self::Flag(column) => Arc::new(column.finish()),
            Self::Moment(column) => Arc::new(column.take()?.with_timezone("UTC")),
            Self::Integers(column) => Arc::new(column.finish()),
            Self::Unsigneds(column) => Arc::new(column.finish()),
        })
    }
}

/// `bytes` as text; what of them is no UTF-8 is replaced.
pub(super) fn text_of(bytes: &[u8]) -> Cow<'_, str> {
    // Faster where there is nothing to replace.
    std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
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

/// What rows in the making begin with, beside the recording. The columns of it are made when the rows are handed on.
#[derive(Debug)]
enum Begun {
    Recording,
    /// When, in ticks.
    Moments(Vec<u64>),
    /// From when until when, in ticks, as far as that is known.
    Lasting(Vec<(Option<u64>, Option<u64>)>),
}

impl Begun {
    fn new(lead: Lead) -> Self {
        match lead {
            Lead::Recording => Self::Recording,
            Lead::Moment => Self::Moments(Vec::new()),
            Lead::Lasting => Self::Lasting(Vec::new()),
        }
    }

    /// The columns, in the order of the tables; none is left.
    fn take(&mut self, times: &Times) -> Vec<ArrayRef> {
        let utc = |column: TimestampNanosecondArray| Arc::new(column.with_timezone("UTC")) as ArrayRef;
        match self {
            Self::Recording => Vec::new(),
            Self::Moments(ticks) => {
                let column =
                    |of: &dyn Fn(u64) -> i64| Arc::new(Int64Array::from_iter_values(ticks.iter().map(|&at| of(at))));
                let columns = vec![
                    column(&integer) as ArrayRef,
                    column(&|at| times.since_start(at)),
                    utc(TimestampNanosecondArray::from_iter_values(ticks.iter().map(|&at| times.utc(at)))),
                ];
                ticks.clear();
                columns
            }
            Self::Lasting(rows) => {
                let begins = || rows.iter().map(|&(begin, _)| begin);
                let length = |&(begin, end): &(Option<u64>, Option<u64>)| Some(end?.saturating_sub(begin?));
                let lengths = || rows.iter().map(length);
                let columns = vec![
                    Arc::new(begins().map(|begin| begin.map(integer)).collect::<Int64Array>()) as ArrayRef,
                    Arc::new(begins().map(|begin| Some(times.since_start(begin?))).collect::<Int64Array>()),
                    utc(begins().map(|begin| Some(times.utc(begin?))).collect()),
                    Arc::new(lengths().map(|length| length.map(integer)).collect::<Int64Array>()),
                    Arc::new(lengths().map(|length| Some(times.ns(length?))).collect::<Int64Array>()),
                ];
                rows.clear();
                columns
            }
        }
    }
}

/// Tells the hours of moments. The clock is asked only where they leave what is known of an hour.
#[derive(Debug, Default)]
struct Hours {
    hour: Hour,
    /// Ticks from and up to which it is that hour.
    known: Option<(u64, u64)>,
}

impl Hours {
    /// The hour of `ticks`; that of 1970 where they are not known.
    #[inline]
    fn at(&mut self, ticks: Option<u64>, times: &Times) -> Hour {
        match (ticks, self.known) {
            (Some(ticks), Some((from, to))) if (from..=to).contains(&ticks) => self.hour,
            (Some(ticks), _) => self.look(ticks, times),
            (None, _) => Hour::default(),
        }
    }

    #[cold]
    fn look(&mut self, ticks: u64, times: &Times) -> Hour {
        let at = |ticks| Hour::of(times.utc(ticks));
        let hour = at(ticks);
        let ahead = ticks.saturating_add(times.second());
        let to = if at(ahead) == hour { ahead } else { ticks };
        // What lies between two moments of an hour is of that hour.
        let known = self.known.filter(|_| self.hour == hour);
        let known = known.map_or((ticks, to), |(known, until)| (known.min(ticks), until.max(to)));
        (self.hour, self.known) = (hour, Some(known));
        hour
    }
}

/// Rows of one table and place in the making.
#[derive(Debug)]
pub(super) struct Rows {
    shape: Arc<Shape>,
    begun: Begun,
    /// Those behind what rows begin with.
    columns: Vec<Filling>,
    hours: Hours,
    /// Of which hour the rows are that are there.
    hour: Hour,
    count: usize,
    bytes: usize,
    output: Output,
}

impl Rows {
    /// None yet, of a table with these `columns`, of which those of `lead` are the first.
    pub(super) fn new(
        table: &str,
        event: Option<&str>,
        (lead, columns): (Lead, &[Column]),
        place: Place,
        output: &Output,
    ) -> Self {
        let field = |column: &Column| Field::new(&column.name, data_type(column.kind), true);
        let schema = Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()));
        let number = output.next_shape();
        let shape = Shape { number, table: table.into(), event: event.map(Into::into), schema, place };
        let own = columns.iter().skip(lead.columns().count());
        Self {
            shape: Arc::new(shape),
            begun: Begun::new(lead),
            columns: own.map(|column| Filling::new(column.kind)).collect(),
            hours: Hours::default(),
            hour: Hour::default(),
            count: 0,
            bytes: 0,
            output: output.clone(),
        }
    }

    /// Adds a row of the moment `ticks`: its cells behind what it begins with, in the order of the columns.
    pub(super) fn push<'a>(&mut self, ticks: u64, first: &[Cell<'a>], rest: impl Iterator<Item = Cell<'a>>) {
        self.turn_to(Some(ticks));
        if let Begun::Moments(moments) = &mut self.begun {
            moments.push(ticks);
        }
        self.add(first, rest);
    }

    /// Adds a row of what lasted from `begin` to `end`, ticks, as far as they are known.
    fn push_lasting(&mut self, (begin, end): (Option<u64>, Option<u64>), own: &[Cell<'_>]) {
        self.turn_to(end.or(begin));
        if let Begun::Lasting(rows) = &mut self.begun {
            rows.push((begin, end));
        }
        self.add(own, std::iter::empty());
    }

    /// Sees to it that the rows that are there are of the hour of `ticks`.
    fn turn_to(&mut self, ticks: Option<u64>) {
        let hour = self.hours.at(ticks, &self.output.times);
        if hour != self.hour {
            self.flush();
            self.hour = hour;
        }
    }

    fn add<'a>(&mut self, first: &[Cell<'a>], rest: impl Iterator<Item = Cell<'a>>) {
        let length = first.len().min(self.columns.len());
        let (beginning, behind) = self.columns.split_at_mut(length);
        for (column, &cell) in beginning.iter_mut().zip(first) {
            self.bytes += column.push(cell);
        }
        let mut rest = rest.fuse();
        for column in behind {
            self.bytes += column.push(rest.next().unwrap_or(Cell::Null));
        }
        debug_assert!(rest.next().is_none(), "{}: more cells than columns", self.shape.table);
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
        let rows = self.take();
        self.output.send(rows.map(|rows| Batch { shape: Arc::clone(&self.shape), hour: self.hour, rows }));
        (self.count, self.bytes) = (0, 0);
    }

    fn take(&mut self) -> Result<RecordBatch, ArrowError> {
        let mut columns = vec![self.output.recordings.slice(0, self.count)];
        columns.extend(self.begun.take(&self.output.times));
        for column in &mut self.columns {
            columns.push(column.take()?);
        }
        RecordBatch::try_new(Arc::clone(&self.shape.schema), columns)
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
    lead: Lead,
    columns: Vec<Column>,
    /// By place: a few.
    places: Vec<(Place, Rows)>,
    output: Output,
}

impl FixedRows {
    /// The table called `name`, without rows.
    pub(super) fn new(name: &'static str, output: &Output) -> Self {
        let fixed = Fixed::find(name);
        let columns = fixed.into_iter().flat_map(Fixed::columns).map(Column::from).collect();
        let lead = fixed.map_or(Lead::Recording, |fixed| fixed.lead);
        Self { table: name, lead, columns, places: Vec::new(), output: output.clone() }
    }

    /// Adds a row of the moment `ticks`: its cells behind what it begins with, in the order of the columns.
    pub(super) fn push_moment<'a>(&mut self, (place, ticks): (Place, u64), first: &[Cell<'a>], last: Cell<'a>) {
        if let Some(rows) = self.at(place) {
            rows.push(ticks, first, std::iter::once(last));
        }
    }

    fn at(&mut self, place: Place) -> Option<&mut Rows> {
        let known = self.places.iter().position(|&(known, _)| known == place).unwrap_or(self.places.len());
        if known == self.places.len() {
            let rows = Rows::new(self.table, None, (self.lead, &self.columns), place, &self.output);
            self.places.push((place, rows));
        }
        self.places.get_mut(known).map(|(_, rows)| rows)
    }

    /// Adds a row without a time of its own.
    pub(super) fn push(&mut self, place: Place, own: &[Cell<'_>]) {
        let start = self.output.times.start;
        if let Some(rows) = self.at(place) {
            rows.push(start, own, std::iter::empty());
        }
    }

    /// Adds a row of what lasted in `window`.
    pub(super) fn push_window(&mut self, place: Place, window: Window, own: &[Cell<'_>]) {
        self.push_lasting(place, (Some(window.begin), Some(window.end)), own);
    }

    /// Adds a row of what lasted from `begin` to `end`, ticks, as far as they are known.
    pub(super) fn push_lasting(&mut self, place: Place, time: (Option<u64>, Option<u64>), own: &[Cell<'_>]) {
        if let Some(rows) = self.at(place) {
            rows.push_lasting(time, own);
        }
    }
}
