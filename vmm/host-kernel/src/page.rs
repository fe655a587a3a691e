//! Decodes sub-buffers of the kernel's trace ring buffer, as `per_cpu/cpuN/trace_pipe_raw` hands them out.
//!
//! Pure: bytes in, records out. Whatever the bytes are, decoding ends after at most one step per four bytes, and
//! neither panics nor reads outside of the page.
//!
//! A page is
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | time stamp of the page, in ticks of the instance's trace clock |
//! | 8..16 | commit word: bytes of data in the low bits, bit 31 "events were lost before this page", bit 30 "their number is stored behind the data" |
//! | 16.. | records |
//!
//! and a record starts with one 32-bit word: `type_len` in the low five bits, a time delta in the other 27. All
//! numbers are little-endian.
//!
//! | `type_len` | what |
//! |---|---|
//! | 0 | event; the next word is the length of that word and the event |
//! | 1..=28 | event of `4 * type_len` bytes |
//! | 29 | padding: up to the end of the page if the delta is 0; else a discarded event, its length in the next word |
//! | 30 | time extend: the next word holds bits 27.. of a delta |
//! | 31 | absolute time stamp: 59 bits in the same two places; the upper five are those of the time so far |
//!
//! Absolute time stamps are what the kernel writes when an event interrupted the time keeping of another one, so that
//! nested events carry their own times. An event with delta 0 was itself interrupted between reserving its place and
//! dating it: it has the time of the event before it.

pub(crate) mod cursor;
pub(crate) mod format;

use std::ops::Range;

/// Bytes of the page header, before the first record.
pub const HEADER_BYTES: usize = 16;

/// Largest `type_len` that means an event whose length is in `type_len` itself.
const TYPE_DATA_MAX: u32 = 28;
/// `type_len` of padding and of discarded events.
const TYPE_PADDING: u32 = 29;
/// `type_len` of a time extend record.
const TYPE_TIME_EXTEND: u32 = 30;
/// Bits of a time delta in the first word of a record.
const DELTA_BITS: u32 = 27;
/// Bits of time that an absolute time stamp record carries.
const ABSOLUTE_BITS: u32 = 59;
/// The part of a time that an absolute time stamp record cannot carry.
const UPPER_BITS: u64 = !0 << ABSOLUTE_BITS;
/// Flag in the commit word: events were lost between the previous page and this one.
const MISSED_EVENTS: u64 = 1 << 31;
/// Flag in the commit word: the number of lost events follows the data.
const MISSED_STORED: u64 = 1 << 30;
/// The bits of the commit word that hold the size. The kernel defines only the two flags; 27 bits is what the other
/// readers of this format (trace-cmd, Perfetto) use.
const COMMIT_SIZE: u64 = (1 << 27) - 1;

/// A page that cannot be decoded at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// Shorter than a page header.
    #[error("a trace page of {len} bytes is shorter than its header")]
    TooShort {
        /// Bytes there are.
        len: usize,
    },
    /// The commit word counts more data than there is.
    #[error("a trace page with room for {room} bytes of data says that it holds {committed}")]
    CommitBeyondEnd {
        /// Bytes of data that the commit word counts.
        committed: u64,
        /// Bytes behind the header.
        room: usize,
    },
}

/// A record that does not fit into what is left of its page; nothing behind it can be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed record at byte {offset} of the data of a trace page")]
pub struct Malformed {
    /// Where the record starts, counted from the end of the page header.
    pub offset: usize,
}

/// Events that were lost between the previous page of the same CPU and this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// None.
    None,
    /// This many.
    Count(u64),
    /// Some; the page had no room left to say how many, or the kernel does not know.
    Unknown,
}

/// Bytes of a page that say something: its header, its records, and the number of lost events where it may lie.
pub(super) fn occupied(page: &[u8]) -> usize {
    let committed = read_u64(page, 8).and_then(|commit| usize::try_from(commit & COMMIT_SIZE).ok());
    committed.map_or(page.len(), |committed| page.len().min(HEADER_BYTES + committed + size_of::<u64>()))
}

/// One event of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageEvent<'a> {
    /// Time in ticks of the trace clock.
    pub time: u64,
    /// The event's bytes, starting at the field `common_type`; possibly with up to three bytes of padding at the end.
    pub data: &'a [u8],
}

/// One page with a plausible header.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    time: u64,
    missed: Missed,
    data: &'a [u8],
}

impl<'a> Page<'a> {
    /// Reads the header of a page. `bytes` is the page as read, header included; it may be shorter than the kernel's
    /// sub-buffer as long as the committed data is in it.
    ///
    /// # Errors
    /// The bytes are too few for the header, or for the data that it counts.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, PageError> {
        let too_short = PageError::TooShort { len: bytes.len() };
        let time = read_u64(bytes, 0).ok_or(too_short)?;
        let commit = read_u64(bytes, 8).ok_or(too_short)?;
        let body = bytes.get(HEADER_BYTES..).ok_or(too_short)?;
        let committed = commit & COMMIT_SIZE;
        let beyond_end = PageError::CommitBeyondEnd { committed, room: body.len() };
        let committed = usize::try_from(committed).map_err(|_| beyond_end)?;
        let data = body.get(..committed).ok_or(beyond_end)?;
        let missed = match (commit & MISSED_EVENTS != 0, commit & MISSED_STORED != 0) {
            (false, _) => Missed::None,
            (true, false) => Missed::Unknown,
            // A count that is negative as the kernel's `long` means that it lost track of it.
            (true, true) => match read_u64(body, committed) {
                Some(count) if count.cast_signed() > 0 => Missed::Count(count),
                _ => Missed::Unknown,
            },
        };
        Ok(Self { time, missed, data })
    }

    /// Bytes of records that the commit word `word` counts.
    #[must_use]
    pub const fn committed(word: u64) -> u64 {
        word & COMMIT_SIZE
    }

    /// Time stamp of the page: the time that the delta of its first record is relative to.
    pub fn time(&self) -> u64 {
        self.time
    }

    /// Events lost between the previous page of this CPU and this one.
    pub fn missed(&self) -> Missed {
        self.missed
    }

    /// Bytes of records, padding included.
    pub fn data_bytes(&self) -> usize {
        self.data.len()
    }

    /// The events in the order in which their places were reserved. Ends after the first malformed record.
    pub fn events(&self) -> PageEvents<'a> {
        PageEvents { data: self.data, position: 0, time: self.time }
    }
}

/// Iterator over the events of a page.
#[derive(Clone, Debug)]
pub struct PageEvents<'a> {
    data: &'a [u8],
    /// Offset of the next record; `data.len()` or more when there is none.
    position: usize,
    /// Time of the record before it.
    time: u64,
}

impl<'a> Iterator for PageEvents<'a> {
    type Item = Result<PageEvent<'a>, Malformed>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let data = self.data;
        let place = self.next_place()?;
        // The place is within the data.
        Some(place.map(|(time, place)| PageEvent { time, data: data.get(place).unwrap_or_default() }))
    }
}

impl std::iter::FusedIterator for PageEvents<'_> {}

/// What one record was.
enum Step {
    /// An event of that time, there in the data.
    Event(u64, Range<usize>),
    /// Something that only moves the time or the position.
    Skip,
    /// Nothing but padding follows.
    End,
}

impl<'a> PageEvents<'a> {
    /// The events of `data`, a page's records, from `position` on; `time` is that of the record before.
    #[inline]
    pub(super) const fn resume(data: &'a [u8], position: usize, time: u64) -> Self {
        Self { data, position, time }
    }

    /// Where to [`resume`](Self::resume): position and time.
    #[inline]
    pub(super) const fn state(&self) -> (usize, u64) {
        (self.position, self.time)
    }

    /// Time of the next event, and where in the data it lies.
    #[inline(always)]
    pub(super) fn next_place(&mut self) -> Option<Result<(u64, Range<usize>), Malformed>> {
        while self.position < self.data.len() {
            let offset = self.position;
            match self.step() {
                Some(Step::Event(time, place)) => return Some(Ok((time, place))),
                Some(Step::Skip) => {}
                Some(Step::End) => self.position = self.data.len(),
                None => {
                    self.position = self.data.len();
                    return Some(Err(Malformed { offset }));
                }
            }
        }
        None
    }

    /// Decodes the record at the current position and moves behind it: by four bytes or more, which bounds the
    /// iteration. `None` if the record does not fit into the data.
    #[inline(always)]
    fn step(&mut self) -> Option<Step> {
        let start = self.position;
        let word = read_u32(self.data, start)?;
        let type_len = word & 0x1f;
        let delta = u64::from(word >> 5);
        match type_len {
            TYPE_PADDING if delta == 0 => Some(Step::End),
            TYPE_PADDING => {
                let length = usize::try_from(read_u32(self.data, start + 4)?).ok()?;
                self.position = (start + 4).checked_add(length.next_multiple_of(4))?;
                // The writer's time went on by the delta of the event that was then discarded, and later deltas are
                // relative to it. A delta that was 0 is stored as 1, to tell the record from padding.
                if delta != 1 {
                    self.time = self.time.wrapping_add(delta);
                }
                Some(Step::Skip)
            }
            TYPE_TIME_EXTEND => {
                let high = u64::from(read_u32(self.data, start + 4)?);
                self.position = start + 8;
                self.time = self.time.wrapping_add((high << DELTA_BITS) + delta);
                Some(Step::Skip)
            }
            0..=TYPE_DATA_MAX => {
                let (data_start, length) = if type_len == 0 {
                    let length = usize::try_from(read_u32(self.data, start + 4)?).ok()?;
                    (start + 8, length.checked_sub(4)?)
                } else {
                    (start + 4, usize::try_from(type_len).ok()? * 4)
                };
                let data_end = data_start.checked_add(length)?;
                if data_end > self.data.len() {
                    return None;
                }
                self.position = data_end.next_multiple_of(4);
                self.time = self.time.wrapping_add(delta);
                Some(Step::Event(self.time, data_start..data_end))
            }
            // Only 31 is left of the five bits.
            _ => {
                let high = u64::from(read_u32(self.data, start + 4)?);
                self.position = start + 8;
                self.time = absolute_time((high << DELTA_BITS) | delta, self.time);
                Some(Step::Skip)
            }
        }
    }
}

/// The full time of an absolute time stamp record, given the time before it: the upper bits are those of that time, or
/// the next value if the lower bits have just wrapped.
fn absolute_time(stamp: u64, before: u64) -> u64 {
    let stamp = stamp & !UPPER_BITS;
    let same_upper = (before & UPPER_BITS) | stamp;
    let wrapped = (before & !UPPER_BITS).saturating_sub(stamp) > 1 << (ABSOLUTE_BITS - 1);
    if wrapped { same_upper.wrapping_add(1 << ABSOLUTE_BITS) } else { same_upper }
}

fn read_u32(bytes: &[u8], offset: usize) -> Option<u32> {
    let bytes = bytes.get(offset..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

fn read_u64(bytes: &[u8], offset: usize) -> Option<u64> {
    let bytes = bytes.get(offset..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests;
