//! Walks a page that somebody else keeps, item by item, and pages of several buffers in turns, without copying.

use super::{HEADER_BYTES, Missed, Page, PageEvents};
use crate::item::{HostItem, HostRecord};
use crate::stats::ReaderStats;
use std::ops::Range;

/// Bytes of the fields that every event starts with.
const COMMON_BYTES: usize = 8;

/// A place in a page.
#[derive(Clone, Debug)]
pub(crate) struct PageCursor {
    /// What comes next, if it is known: it was read, and its turn had not come.
    head: Option<PageItem>,
    /// Bytes of records.
    data: usize,
    /// Where among them the next record starts, behind `head`.
    position: usize,
    /// Time of the record before that.
    time: u64,
}

/// What lies at a place in a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PageItem {
    /// An event.
    Record {
        /// Its time, ticks; not before that of the record before it.
        time: u64,
        /// The kernel's number of the event.
        event_id: u16,
        /// The thread that the CPU was running.
        common_pid: i32,
        /// Where in the page's data the event lies, from `common_type` on.
        payload: Range<usize>,
    },
    /// Events were lost here.
    Lost {
        /// How many, if that is known.
        count: Option<u64>,
    },
}

impl PageCursor {
    /// Before the first item of the page `bytes`, which counts in `stats`. A page that cannot be decoded is a loss of
    /// unknown extent.
    pub(crate) fn begin(bytes: &[u8], stats: &mut ReaderStats) -> Self {
        let Ok(page) = Page::parse(bytes) else {
            stats.malformed_pages += 1;
            return Self { head: Some(PageItem::Lost { count: None }), data: 0, position: 0, time: 0 };
        };
        stats.bytes += u64::try_from(page.data_bytes()).unwrap_or(u64::MAX);
        let head = match page.missed() {
            Missed::None => None,
            Missed::Count(count) => {
                stats.lost = stats.lost.saturating_add(count);
                Some(PageItem::Lost { count: Some(count) })
            }
            Missed::Unknown => {
                stats.lost_unknown += 1;
                Some(PageItem::Lost { count: None })
            }
        };
        Self { head, data: page.data_bytes(), position: 0, time: page.time() }
    }

    /// What comes next, where that is known.
    pub(crate) const fn head(&self) -> Option<&PageItem> {
        self.head.as_ref()
    }

    /// Has what comes next known, if there is anything, of the page `bytes`, the one that this began with. `last_time` is
    /// the time of the record before.
    pub(crate) fn look(&mut self, bytes: &[u8], last_time: u64, stats: &mut ReaderStats) {
        let mut items = self.items(bytes, 0, (last_time, u64::MAX), stats);
        if items.head.is_none() {
            items.head = items.read().map(|(item, _)| item);
        }
        *self = items.end().0;
    }

    /// The items from here on of the page `bytes` of `cpu`, the one that this began with: `times` are that of the record
    /// before them, of whatever page, and the one up to which they are wanted.
    #[inline(always)]
    pub(crate) fn items<'p>(
        &self,
        bytes: &'p [u8],
        cpu: u32,
        (last_time, until): (u64, u64),
        stats: &'p mut ReaderStats,
    ) -> PageItems<'p> {
        let data = bytes.get(HEADER_BYTES..).and_then(|data| data.get(..self.data)).unwrap_or_default();
        let events = PageEvents::resume(data, self.position, self.time);
        PageItems { cpu, head: self.head.clone(), data, events, last_time, until, records: 0, times_raised: 0, stats }
    }
}

/// The items of a page from a place on, up to a time. What cannot be decoded is a loss of unknown extent, and the end of
/// the page.
///
/// Each is found in a few instructions if this never has an address: whatever takes it has to be inlined.
#[derive(Debug)]
pub(crate) struct PageItems<'p> {
    cpu: u32,
    head: Option<PageItem>,
    data: &'p [u8],
    events: PageEvents<'p>,
    /// Time of the record before the next item.
    last_time: u64,
    until: u64,
    records: u64,
    times_raised: u64,
    stats: &'p mut ReaderStats,
}

impl<'p> PageItems<'p> {
    /// The place that was reached, and the time of the record before it.
    #[inline(always)]
    pub(crate) fn end(self) -> (PageCursor, u64) {
        let Self { head, data, events, last_time, records, times_raised, stats, .. } = self;
        stats.records += records;
        stats.times_raised += times_raised;
        let (position, time) = events.state();
        (PageCursor { head, data: data.len(), position, time }, last_time)
    }

    /// The next item behind the head, and the event's bytes.
    #[inline(always)]
    fn read(&mut self) -> Option<(PageItem, &'p [u8])> {
        let event = self.events.next_place()?;
        let common = event.ok().and_then(|(time, place)| {
            let payload = self.data.get(place.clone())?;
            Some((time, place, payload, payload.first_chunk::<COMMON_BYTES>()?))
        });
        let Some((time, place, payload, &[type_low, type_high, _, _, pid @ ..])) = common else {
            self.events = PageEvents::resume(self.data, self.data.len(), self.last_time);
            self.stats.malformed_pages += 1;
            return Some((PageItem::Lost { count: None }, &[]));
        };
        self.records += 1;
        let (event_id, common_pid) = (u16::from_le_bytes([type_low, type_high]), i32::from_le_bytes(pid));
        let time = self.raised(time);
        Some((PageItem::Record { time, event_id, common_pid, payload: place }, payload))
    }

    /// `time`, unless the record before is younger, which is counted.
    #[inline(always)]
    fn raised(&mut self, time: u64) -> u64 {
        self.times_raised += u64::from(time < self.last_time);
        time.max(self.last_time)
    }
}

impl<'p> Iterator for PageItems<'p> {
    type Item = HostItem<'p>;

    #[inline(always)]
    fn next(&mut self) -> Option<HostItem<'p>> {
        let (item, payload) = match self.head.take() {
            None => self.read()?,
            Some(PageItem::Lost { count }) => (PageItem::Lost { count }, &[][..]),
            Some(PageItem::Record { time, event_id, common_pid, payload: place }) => {
                // The place is within the data.
                let payload = self.data.get(place.clone()).unwrap_or_default();
                (PageItem::Record { time: self.raised(time), event_id, common_pid, payload: place }, payload)
            }
        };
        let cpu = self.cpu;
        match item {
            PageItem::Lost { count } => Some(HostItem::Lost { cpu, count }),
            PageItem::Record { time, .. } if time > self.until => {
                self.head = Some(item);
                None
            }
            PageItem::Record { time, event_id, common_pid, .. } => {
                self.last_time = time;
                Some(HostItem::Record(HostRecord { cpu, time, event_id, common_pid, payload }))
            }
        }
    }
}
