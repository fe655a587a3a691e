//! Walks a page that somebody else keeps, item by item: pages of several buffers can so be walked in turns, and what is
//! in them is never copied to wait.

use super::page::{HEADER_BYTES, Missed, Page, PageEvents};
use super::reader::ReaderStats;
use std::ops::Range;

/// Bytes of the fields that every event starts with.
const COMMON_BYTES: usize = 8;

/// A place in a page.
#[derive(Debug, Clone)]
pub(super) struct PageCursor {
    /// Events that were lost before the page, until they were told.
    missed: Missed,
    /// Bytes of records.
    data: usize,
    /// Where among them the next record starts.
    position: usize,
    /// Time of the record before it.
    time: u64,
    /// Whether the page cannot be decoded, and that was not told yet.
    malformed: bool,
}

/// What lies at a place in a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PageItem {
    /// An event.
    Record {
        /// Its time, ticks; not before that of the record before it.
        time: u64,
        /// The kernel's number of the event.
        event_id: u16,
        /// The thread that the CPU was running.
        common_pid: i32,
        /// Where in the page the event lies, from `common_type` on.
        payload: Range<usize>,
    },
    /// Events were lost here.
    Lost {
        /// How many, if that is known.
        count: Option<u64>,
    },
}

impl PageCursor {
    /// Before the first item of the page `bytes`, which counts in `stats`.
    pub(super) fn begin(bytes: &[u8], stats: &mut ReaderStats) -> Self {
        let Ok(page) = Page::parse(bytes) else {
            return Self { missed: Missed::None, data: 0, position: 0, time: 0, malformed: true };
        };
        stats.bytes += u64::try_from(page.data_bytes()).unwrap_or(u64::MAX);
        Self { missed: page.missed(), data: page.data_bytes(), position: 0, time: page.time(), malformed: false }
    }

    /// Moves behind the next item of the page `bytes`, the one that this began with, and returns it. `last_time` is the
    /// time of the record before it, of whatever page, and then of this one. What cannot be decoded is a loss of
    /// unknown extent, and the end of the page.
    #[inline(always)] // An item that is returned through memory costs more than it takes to find.
    pub(super) fn next(&mut self, bytes: &[u8], last_time: &mut u64, stats: &mut ReaderStats) -> Option<PageItem> {
        if self.malformed || self.missed != Missed::None {
            return Some(self.next_loss(stats));
        }
        let data = bytes.get(HEADER_BYTES..)?.get(..self.data)?;
        let mut events = PageEvents::resume(data, self.position, self.time);
        let event = events.next_place();
        (self.position, self.time) = events.state();
        let event = event?;
        let common = event.ok().and_then(|(time, place)| {
            let common = data.get(place.clone())?.first_chunk::<COMMON_BYTES>()?;
            Some((time, place, common))
        });
        let Some((time, place, &[type_low, type_high, _, _, pid @ ..])) = common else {
            (self.malformed, self.position) = (true, self.data);
            return Some(self.next_loss(stats));
        };
        stats.times_raised += u64::from(time < *last_time);
        *last_time = time.max(*last_time);
        stats.records += 1;
        Some(PageItem::Record {
            time: *last_time,
            event_id: u16::from_le_bytes([type_low, type_high]),
            common_pid: i32::from_le_bytes(pid),
            payload: place.start + HEADER_BYTES..place.end + HEADER_BYTES,
        })
    }

    /// The loss that is to be told here.
    #[cold]
    fn next_loss(&mut self, stats: &mut ReaderStats) -> PageItem {
        let count = match std::mem::replace(&mut self.missed, Missed::None) {
            Missed::Count(count) => {
                stats.lost = stats.lost.saturating_add(count);
                Some(count)
            }
            Missed::Unknown => {
                stats.lost_unknown += 1;
                None
            }
            Missed::None => {
                self.malformed = false;
                stats.malformed_pages += 1;
                None
            }
        };
        PageItem::Lost { count }
    }
}
