//! Rows in the making: columns that are filled, and handed on as row groups.

use super::columns::{Chunk, Column, type_of_rows};
use super::files::Output;
use super::places::{Hour, Place};
use super::{Times, integer};
use crate::tables::{Column as Described, Fixed, Lead};
use parquet::errors::ParquetError;
use parquet::schema::types::{SchemaDescPtr, SchemaDescriptor};
use std::borrow::Cow;
use std::io;
use std::sync::Arc;
use trace_merge::clock::NS_PER_SECOND;
use trace_merge::schema::Elements;
use trace_merge::window::Window;

/// Columns of each record before its event's name, behind those that rows begin with.
pub(super) const ABOUT: usize = 7;
/// Rows of a page, at most.
const PAGE: usize = 8192;
/// Bytes of text and lists in a page, about.
const PAGE_BYTES: usize = 4 << 20;
/// Rows of a row group, at most.
const ROW_GROUP: usize = 1 << 17;
/// Rows after which is told how much memory they take.
const TELL_EVERY: usize = 256;

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

/// `bytes` as text; what of them is no UTF-8 is replaced.
pub(super) fn text_of(bytes: &[u8]) -> Cow<'_, str> {
    // Faster where there is nothing to replace.
    std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

/// What files of one kind have in common: the table, the columns, whose rows they hold.
#[derive(Debug)]
pub(super) struct Shape {
    /// No other has it.
    pub(super) number: u64,
    pub(super) table: String,
    /// Of the table of an event type: the event's name as it is recorded.
    pub(super) event: Option<String>,
    pub(super) schema: SchemaDescPtr,
    pub(super) place: Place,
}

/// Rows that lie in one hour, encoded, on their way to the files of their shape.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) shape: Arc<Shape>,
    pub(super) hour: Hour,
    pub(super) rows: usize,
    pub(super) chunks: Vec<Chunk>,
}

/// Tells the seconds of moments. The clock is asked only where they leave the second before.
#[derive(Debug, Default)]
struct Seconds {
    /// Since 1970.
    second: i64,
    /// Ticks from and up to which it is that second.
    known: Option<(u64, u64)>,
}

impl Seconds {
    #[inline]
    fn at(&mut self, ticks: u64, times: &Times) -> i64 {
        match self.known {
            Some((from, to)) if (from..=to).contains(&ticks) => self.second,
            _ => self.look(ticks, times),
        }
    }

    #[cold]
    fn look(&mut self, ticks: u64, times: &Times) -> i64 {
        let at = |ticks| times.utc(ticks).div_euclid(NS_PER_SECOND.cast_signed());
        self.second = at(ticks);
        // What lies between two moments of a second is of that second.
        let (mut near, mut step) = ((ticks, ticks), times.second() / 2);
        for _ in 0..2 {
            let (before, behind) = (near.0.saturating_sub(step), near.1.saturating_add(step));
            near.0 = if at(before) == self.second { before } else { near.0 };
            near.1 = if at(behind) == self.second { behind } else { near.1 };
            step /= 2;
        }
        self.known = Some(near);
        self.second
    }
}

/// Rows of one table and place in the making.
#[derive(Debug)]
pub(super) struct Rows {
    shape: Arc<Shape>,
    lead: Lead,
    columns: Vec<Column>,
    /// Of which second rows begin, and end.
    begins: Seconds,
    ends: Seconds,
    /// Of which hour the rows are that are there.
    hour: Hour,
    /// Rows of the page, and bytes of text and lists in them.
    rows: usize,
    bytes: usize,
    /// Rows of the pages before it.
    in_pages: usize,
    /// Bytes that [`Output`] was told that are kept.
    told: usize,
    output: Output,
}

impl Rows {
    /// None yet, of a table with these `columns`, of which those of `lead` are the first.
    ///
    /// # Errors
    /// When files cannot have such columns.
    pub(super) fn new(
        table: &str,
        event: Option<&str>,
        (lead, columns): (Lead, &[Described]),
        place: Place,
        output: &Output,
    ) -> Result<Self, ParquetError> {
        let schema = Arc::new(SchemaDescriptor::new(type_of_rows(columns)?));
        let column = |(place, (column, leaf)): (usize, (&Described, _))| {
            Column::new(column.kind, Arc::clone(leaf), lead != Lead::Recording && place == 1)
        };
        let filled = columns.iter().zip(schema.columns()).enumerate().map(column).collect();
        let shape =
            Shape { number: output.next_shape(), table: table.into(), event: event.map(Into::into), schema, place };
        Ok(Self {
            shape: Arc::new(shape),
            lead,
            columns: filled,
            begins: Seconds::default(),
            ends: Seconds::default(),
            hour: Hour::default(),
            rows: 0,
            bytes: 0,
            in_pages: 0,
            told: 0,
            output: output.clone(),
        })
    }

    /// Adds a row of the moment `ticks`: its cells behind what it begins with, in the order of the columns.
    pub(super) fn push<'a>(&mut self, ticks: u64, first: &[Cell<'a>], rest: impl Iterator<Item = Cell<'a>>) {
        let second = self.begins.at(ticks, &self.output.times);
        self.turn_to(Hour::of_second(second));
        if self.lead == Lead::Moment
            && let [_, time, utc, clock, ..] = &mut *self.columns
        {
            time.push_number(self.output.times.since_start(ticks));
            utc.push_number(second.saturating_mul(NS_PER_SECOND.cast_signed()));
            clock.push_number(integer(ticks));
        }
        self.add(first, rest);
    }

    /// Adds a row of what lasted from `begin` to `end`, ticks, as far as they are known.
    fn push_lasting(&mut self, (begin, end): (Option<u64>, Option<u64>), own: &[Cell<'_>]) {
        let times = Arc::clone(&self.output.times);
        let hour = end.or(begin).map_or(Hour::default(), |at| Hour::of_second(self.ends.at(at, &times)));
        self.turn_to(hour);
        if let [_, begin_ns, begin_utc, duration, ..] = &mut *self.columns {
            let second = begin.map(|begin| self.begins.at(begin, &times));
            begin_ns.push(begin.map(|begin| times.since_start(begin)).into());
            begin_utc.push(second.map(|second| second.saturating_mul(NS_PER_SECOND.cast_signed())).into());
            let length = begin.zip(end).map(|(begin, end)| times.ns(end.saturating_sub(begin)));
            duration.push(length.into());
        }
        self.add(own, std::iter::empty());
    }

    /// Sees to it that the rows that are there are of the hour `hour`.
    fn turn_to(&mut self, hour: Hour) {
        if hour != self.hour {
            self.flush();
            self.hour = hour;
        }
    }

    fn add<'a>(&mut self, first: &[Cell<'a>], rest: impl Iterator<Item = Cell<'a>>) {
        let own = self.columns.get_mut(self.lead.count()..).unwrap_or_default();
        let length = first.len().min(own.len());
        let (beginning, behind) = own.split_at_mut(length);
        for (column, &cell) in beginning.iter_mut().zip(first) {
            self.bytes += column.push(cell);
        }
        let mut rest = rest.fuse();
        // The event's name is the same in all rows.
        for column in behind.iter_mut().skip(usize::from(self.shape.event.is_some())) {
            self.bytes += column.push(rest.next().unwrap_or(Cell::Null));
        }
        debug_assert!(rest.next().is_none(), "{}: more cells than columns", self.shape.table);
        self.rows += 1;
        if self.rows >= PAGE || self.bytes >= PAGE_BYTES {
            self.end_page();
            if self.in_pages >= ROW_GROUP {
                self.flush();
            } else {
                self.tell();
            }
        } else if self.rows.is_multiple_of(TELL_EVERY) {
            self.tell();
        }
    }

    /// Tells how much memory the rows take, and hands them on when all take too much and these not little.
    fn tell(&mut self) {
        let kept = self.columns.iter().map(Column::kept).sum();
        let before = std::mem::replace(&mut self.told, kept);
        if self.output.is_too_much(before, kept) {
            self.flush();
        }
    }

    fn end_page(&mut self) {
        let rows = std::mem::take(&mut self.rows);
        if let Some(recording) = self.columns.first_mut() {
            recording.push_same(&self.output.recording, rows);
        }
        if let Some(event) = &self.shape.event
            && let Some(column) = self.columns.get_mut(self.lead.count() + ABOUT)
        {
            column.push_same(event, rows);
        }
        for column in &mut self.columns {
            if let Err(error) = column.end_page() {
                self.output.send(Err(error));
            }
        }
        self.in_pages += rows;
        self.bytes = 0;
    }

    /// Hands on the rows that are there.
    pub(super) fn flush(&mut self) {
        if self.rows > 0 {
            self.end_page();
        }
        let rows = std::mem::take(&mut self.in_pages);
        if rows == 0 {
            return;
        }
        self.output.is_too_much(std::mem::take(&mut self.told), 0);
        let chunks: io::Result<_> = self.columns.iter_mut().map(Column::end_row_group).collect();
        let (shape, hour) = (Arc::clone(&self.shape), self.hour);
        self.output.send(chunks.map(|chunks| Group { shape, hour, rows, chunks }));
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
    columns: Vec<Described>,
    /// By place: a few.
    places: Vec<(Place, Rows)>,
    output: Output,
}

impl FixedRows {
    /// The table called `name`, without rows.
    pub(super) fn new(name: &'static str, output: &Output) -> Self {
        let fixed = Fixed::find(name);
        let columns = fixed.into_iter().flat_map(Fixed::columns).map(Described::from).collect();
        let lead = fixed.map_or(Lead::Recording, |fixed| fixed.lead);
        Self { table: name, lead, columns, places: Vec::new(), output: output.clone() }
    }

    fn at(&mut self, place: Place) -> Option<&mut Rows> {
        let known = self.places.iter().position(|&(known, _)| known == place).unwrap_or(self.places.len());
        if known == self.places.len() {
            let rows = Rows::new(self.table, None, (self.lead, &self.columns), place, &self.output);
            self.places.push((place, self.output.taken(rows)?));
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
