//! Rows in the making: columns that are filled, and handed on as row groups.

use super::columns::cell::Cell;
use super::columns::chunk::Chunk;
use super::columns::{Column, type_of_rows};
use super::keyed::Keyed;
use super::output::{Group, Output, Shape};
use super::places::{Hour, Place};
use super::{Times, integer};
use crate::tables::{Column as Described, Fixed, Lead};
use parquet::errors::ParquetError;
use parquet::schema::types::SchemaDescriptor;
use std::sync::Arc;
use strata_recording::clock::NS_PER_SECOND;
use strata_recording::window::Window;

/// Columns of each record before its event's name, behind those that rows begin with.
pub(super) const ABOUT: usize = 7;
/// Rows of a row group, at most.
pub(super) const ROW_GROUP: usize = 1 << 17;
/// Keys of a row group after which it ends, so that dictionaries stay small.
const MOST_KEYS: usize = 1 << 15;
/// Rows after which the memory that they take is reported.
const REPORT_EVERY: usize = 64;

/// Tells the seconds of moments. The clock is read only where they leave the second before.
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
        let (mut near, mut step) = ((ticks, ticks), times.second());
        // What lies between two moments of a second is of that second. Its first and last tick are found by halves.
        while step > 0 {
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
    columns: Vec<Column>,
    /// In the order of their columns.
    keyed: Vec<Keyed>,
    /// Whether rows are sorted by the first of them.
    is_sorted: bool,
    /// The seconds in which rows begin, and end.
    begins: Seconds,
    ends: Seconds,
    /// The hour of the rows that are there.
    hour: Hour,
    rows: usize,
    /// Bytes that [`Output`] knows to be kept.
    reported: usize,
    output: Output,
}

/// What the rows of a table are made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Made<'t> {
    pub(super) table: &'t str,
    /// Of the table of an event type: the event's name as it is recorded.
    pub(super) event: Option<&'t str>,
    pub(super) lead: Lead,
    /// Those of `lead` are the first.
    pub(super) columns: &'t [Described],
    /// How many of the columns behind those of `lead` have which key: so many the first one, so many behind them the next.
    pub(super) keyed: &'t [usize],
    /// Whether rows are sorted by the first key, where they come close together: all other columns hold numbers.
    pub(super) is_sorted: bool,
}

impl Rows {
    /// None yet.
    ///
    /// # Errors
    /// When files cannot have such columns.
    pub(super) fn new(made: Made<'_>, place: Place, output: &Output) -> Result<Self, ParquetError> {
        let Made { table, event, lead, columns, keyed, is_sorted } = made;
        let (number, schema) = (output.next_shape(), SchemaDescriptor::new(type_of_rows(columns)?));
        let shape = Shape { number, table: table.into(), event: event.map(Into::into), lead, schema, place };
        let mut begin = lead.count();
        let keyed = keyed.iter().map(|width| {
            begin += width;
            Keyed::new(begin - width..begin)
        });
        Ok(Self {
            shape: Arc::new(shape),
            columns: columns.iter().map(|column| Column::new(column.kind)).collect(),
            keyed: keyed.collect(),
            is_sorted,
            begins: Seconds::default(),
            ends: Seconds::default(),
            hour: Hour::default(),
            rows: 0,
            reported: 0,
            output: output.clone(),
        })
    }

    /// The hour of the moment `ticks`.
    #[inline]
    pub(super) fn hour_of(&mut self, ticks: u64) -> Hour {
        Hour::of_second(self.begins.at(ticks, &self.output.times))
    }

    /// Whether the rows that are there are of the hour `hour`.
    #[inline]
    pub(super) fn is_of(&self, hour: Hour) -> bool {
        hour == self.hour
    }

    /// Fills the columns of the first key for a row that [`Self::add_moments`] is to add. `tell` is asked for their values
    /// where no row before had it.
    #[inline]
    pub(super) fn push_key(&mut self, key: u64, report: impl FnOnce(&mut dyn FnMut(&[Cell<'_>]))) {
        if let Some(keyed) = self.keyed.first_mut()
            && keyed.push(key)
        {
            report(&mut |values| keyed.add_values(values, &mut self.columns));
        }
    }

    /// Adds a row for each of the moments `ticks`, all of the hour of these rows. `fill` fills the columns behind the
    /// event's name.
    pub(super) fn add_moments(&mut self, ticks: &[u64], fill: impl FnOnce(&mut [Column])) {
        let times = &self.output.times;
        if let [_, time, utc, clock, ..] = &mut *self.columns {
            for &ticks in ticks {
                push_moment([time, utc, clock], ticks, &mut self.begins, times);
            }
        }
        fill(self.columns.get_mut(self.shape.lead.count() + ABOUT + 1..).unwrap_or_default());
        self.end_rows(ticks.len());
    }

    /// A row without a time of its own, to be filled and ended.
    fn at_start(&mut self) -> Row<'_> {
        let hour = self.hour_of(self.output.times.start);
        self.turn_to(hour);
        self.begin_row()
    }

    /// A row of the moment `ticks`, to be filled and ended.
    fn moment(&mut self, ticks: u64) -> Row<'_> {
        let hour = self.hour_of(ticks);
        self.turn_to(hour);
        let times = &self.output.times;
        if let [_, time, utc, clock, ..] = &mut *self.columns {
            push_moment([time, utc, clock], ticks, &mut self.begins, times);
        }
        self.begin_row()
    }

    /// A row of what lasted from `begin` to `end`, ticks, as far as they are known; to be filled and ended.
    fn lasting(&mut self, (begin, end): (Option<u64>, Option<u64>)) -> Row<'_> {
        let times = &self.output.times;
        let hour = end.or(begin).map_or(Hour::default(), |at| Hour::of_second(self.ends.at(at, times)));
        self.turn_to(hour);
        let times = &self.output.times;
        if let [_, begin_ns, begin_utc, duration, ..] = &mut *self.columns {
            match begin {
                Some(begin) => {
                    begin_ns.push_number(times.since_start(begin));
                    begin_utc.push_number(self.begins.at(begin, times).saturating_mul(NS_PER_SECOND.cast_signed()));
                }
                None => {
                    begin_ns.push_null();
                    begin_utc.push_null();
                }
            }
            match begin.zip(end) {
                Some((begin, end)) => duration.push_number(times.ns(end.saturating_sub(begin))),
                None => duration.push_null(),
            }
        }
        self.begin_row()
    }

    /// Sees to it that the rows that are there are of the hour `hour`.
    pub(super) fn turn_to(&mut self, hour: Hour) {
        if hour != self.hour {
            self.flush();
            self.hour = hour;
        }
    }

    fn begin_row(&mut self) -> Row<'_> {
        let column = self.shape.lead.count();
        Row { rows: self, column, key: 0 }
    }

    fn end_rows(&mut self, count: usize) {
        let reports = (self.rows + count) / REPORT_EVERY > self.rows / REPORT_EVERY;
        self.rows += count;
        if self.rows >= ROW_GROUP || self.keyed.iter().any(|keyed| keyed.keys() > MOST_KEYS) {
            self.flush();
        } else if reports {
            self.report();
        }
    }

    /// Tells how much memory the rows take, and hands them on when all take too much and these not little.
    fn report(&mut self) {
        let columns: usize = self.columns.iter().map(Column::kept).sum();
        let kept = columns + self.keyed.iter().map(Keyed::kept).sum::<usize>();
        let before = std::mem::replace(&mut self.reported, kept);
        if self.output.is_too_much(before, kept) {
            self.flush();
        }
    }

    /// Sorts the rows by their first key.
    fn sort(&mut self) {
        let order = self.keyed.first().map(Keyed::order).unwrap_or_default();
        let is_keyed = |place| self.keyed.iter().any(|keyed| keyed.columns.contains(&place));
        // What the recording is called is not there.
        let others = self.columns.iter_mut().enumerate().skip(1).filter(|&(place, _)| !is_keyed(place));
        others.for_each(|(_, column)| column.reorder(&order));
        self.keyed.iter_mut().for_each(|keyed| keyed.reorder(&order));
    }

    /// Hands on the rows that are there.
    pub(super) fn flush(&mut self) {
        let rows = std::mem::take(&mut self.rows);
        if rows == 0 {
            return;
        }
        self.output.is_too_much(std::mem::take(&mut self.reported), 0);
        if self.is_sorted {
            self.sort();
        }
        let keys: Vec<_> = self.keyed.iter_mut().map(|keyed| (keyed.columns.clone(), keyed.end_row_group())).collect();
        let event = self.shape.event.as_deref().map(|event| (self.shape.lead.count() + ABOUT, event));
        let chunk = |(place, column): (usize, &mut Column)| {
            let column = column.take();
            match (keys.iter().find(|(columns, _)| columns.contains(&place)), event) {
                (Some((_, keys)), _) => Chunk::Keyed(column, Arc::clone(keys)),
                (None, Some((of_event, event))) if of_event == place => Chunk::Same(event.into(), rows),
                (None, _) if place == 0 => Chunk::Same(Arc::clone(&self.output.recording), rows),
                (None, _) => Chunk::Values(column),
            }
        };
        let chunks = self.columns.iter_mut().enumerate().map(chunk).collect();
        self.output.send(Ok(Group { shape: Arc::clone(&self.shape), hour: self.hour, rows, chunks }));
    }
}

/// Adds the moment `ticks` to the columns of its time, UTC and ticks.
#[inline]
fn push_moment([time, utc, clock]: [&mut Column; 3], ticks: u64, seconds: &mut Seconds, times: &Times) {
    time.push_number(times.since_start(ticks));
    utc.push_number(seconds.at(ticks, times).saturating_mul(NS_PER_SECOND.cast_signed()));
    clock.push_number(integer(ticks));
}

impl Drop for Rows {
    fn drop(&mut self) {
        self.flush();
    }
}

/// A row that is filled column by column, in the order of the table, and ended.
#[derive(Debug)]
#[must_use = "a row ends by `end`"]
pub(super) struct Row<'r> {
    rows: &'r mut Rows,
    /// The column that comes next.
    column: usize,
    /// The key that comes next.
    key: usize,
}

impl Row<'_> {
    /// Fills the columns of the next key. `report` is called for their values where no row before had it.
    #[inline]
    pub(super) fn keyed(mut self, key: u64, report: impl FnOnce(&mut dyn FnMut(&[Cell<'_>]))) -> Self {
        let Rows { keyed, columns, .. } = &mut *self.rows;
        if let Some(keyed) = keyed.get_mut(self.key) {
            if keyed.push(key) {
                report(&mut |values| keyed.add_values(values, columns));
            }
            self.column = keyed.columns.end;
        }
        self.key += 1;
        self
    }

    /// Fills the next columns.
    pub(super) fn cells<'a>(mut self, cells: impl IntoIterator<Item = Cell<'a>>) -> Self {
        let columns = self.rows.columns.get_mut(self.column..).unwrap_or_default();
        for (column, cell) in columns.iter_mut().zip(cells) {
            column.push(cell);
            self.column += 1;
        }
        self
    }

    /// Ends the row.
    pub(super) fn end(self) {
        debug_assert_eq!(self.column, self.rows.columns.len(), "{}: cells and columns", self.rows.shape.table);
        self.rows.end_rows(1);
    }
}

/// A table of [`FIXED`](crate::tables::FIXED) in the making.
#[derive(Debug)]
pub(super) struct FixedRows {
    table: &'static str,
    lead: Lead,
    columns: Vec<Described>,
    keyed: &'static [usize],
    is_sorted: bool,
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
        Self { table: name, lead, columns, keyed: &[], is_sorted: false, places: Vec::new(), output: output.clone() }
    }

    /// The same with keys: [`Made::keyed`].
    pub(super) const fn keyed(mut self, keyed: &'static [usize]) -> Self {
        self.keyed = keyed;
        self
    }

    /// The same, sorted by the first key.
    pub(super) const fn sorted(mut self) -> Self {
        self.is_sorted = true;
        self
    }

    fn at(&mut self, place: Place) -> Option<&mut Rows> {
        let known = self.places.iter().position(|&(known, _)| known == place).unwrap_or(self.places.len());
        if known == self.places.len() {
            let Self { table, lead, ref columns, keyed, is_sorted, .. } = *self;
            let made = Made { table, event: None, lead, columns, keyed, is_sorted };
            let rows = Rows::new(made, place, &self.output);
            self.places.push((place, self.output.taken(rows)?));
        }
        self.places.get_mut(known).map(|(_, rows)| rows)
    }

    /// Adds a row without a time of its own.
    pub(super) fn push(&mut self, place: Place, own: &[Cell<'_>]) {
        if let Some(rows) = self.at(place) {
            rows.at_start().cells(own.iter().copied()).end();
        }
    }

    /// A row of the moment `ticks`, to be filled and ended.
    pub(super) fn moment(&mut self, place: Place, ticks: u64) -> Option<Row<'_>> {
        Some(self.at(place)?.moment(ticks))
    }

    /// Adds a row of what lasted in `window`.
    pub(super) fn push_window(&mut self, place: Place, window: Window, own: &[Cell<'_>]) {
        if let Some(row) = self.in_window(place, window) {
            row.cells(own.iter().copied()).end();
        }
    }

    /// A row of what lasted in `window`, to be filled and ended.
    pub(super) fn in_window(&mut self, place: Place, window: Window) -> Option<Row<'_>> {
        self.lasting(place, (Some(window.begin), Some(window.end)))
    }

    /// A row of what lasted from `begin` to `end`, ticks, as far as they are known; to be filled and ended.
    pub(super) fn lasting(&mut self, place: Place, time: (Option<u64>, Option<u64>)) -> Option<Row<'_>> {
        Some(self.at(place)?.lasting(time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_recording::clock::{Clock, UtcAnchor};
    use strata_recording::test_trace;

    #[test]
    fn second_is_that_of_the_clock_at_both_of_its_edges() {
        let utc = UtcAnchor { ticks: 5_000_000_000, utc_ns: 1_795_169_710_123_456_789, uncertainty_ns: 0 };
        let clock = Clock { frequency_hz: 2_099_999_987, utc, ..test_trace::clock() };
        let times = Times { clock, start: 0 };
        let expected = |ticks| times.utc(ticks).div_euclid(NS_PER_SECOND.cast_signed());
        let mut seconds = Seconds::default();

        seconds.at(6_000_000_000, &times);

        let (from, to) = seconds.known.unwrap();
        assert_eq!([from, to].map(expected), [seconds.second; 2]);
        assert_eq!([from - 1, to + 1].map(expected), [seconds.second - 1, seconds.second + 1]);
        assert_eq!(
            [from, to, to + 1, from].map(|ticks| seconds.at(ticks, &times)),
            [from, to, to + 1, from].map(expected)
        );
    }
}
