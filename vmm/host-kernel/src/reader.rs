//! Reads the raw pages of an instance's per-CPU buffers and hands on what is in them.

use super::item::HostItem;
use super::page::{self, HEADER_BYTES};
use super::stats::{CpuStats, ReaderStats};
use super::tracefs::{self, Counts, Instance, TracefsError};
use crate::page::cursor::PageCursor;
use crate::page::format as page_format;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes of pages read from one CPU before the next one has its turn, and thereby the most that one poll reads per CPU.
pub(super) const BYTES_PER_POLL: usize = 256 << 10;
/// The same where a poll is to end soon.
const BYTES_PER_SHORT_POLL: usize = 32 << 10;

/// Why the buffers cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReaderError {
    /// The buffer of a CPU cannot be opened or read.
    #[error("reading the kernel's trace of CPU {cpu} from {} failed", .path.display())]
    Read {
        /// The CPU.
        cpu: u32,
        /// Its `trace_pipe_raw`.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The instance refused something.
    #[error("the tracing instance cannot be read")]
    Instance(#[source] TracefsError),
}

/// Takes what is handed on: any closure, or a type whose [`take`](Self::take) is inlined wherever it is called. A closure
/// that is called in several places is a function of its own, and a call for each record costs as much as what it does.
/// A closure's argument is to be given its type: `|item: HostItem<'_>|`.
pub trait Sink<T> {
    /// Takes `item`.
    fn take(&mut self, item: T);

    /// Takes all `items`. What walks through them may be faster the less is done between two of them.
    #[inline(always)]
    fn take_all(&mut self, items: &mut impl Iterator<Item = T>) {
        for item in items {
            self.take(item);
        }
    }
}

impl<T, F: FnMut(T)> Sink<T> for F {
    #[inline(always)]
    fn take(&mut self, item: T) {
        self(item);
    }
}

/// What a poll has left that can be read at once. What is written meanwhile is none of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rest {
    /// Nothing.
    #[default]
    Nothing,
    /// There may be pages.
    Pages,
    /// There may be pages, and half of a CPU's buffer or more was read since a poll left nothing of it: at that rate it
    /// overflows when it is not read for as long again.
    Backlog,
}

/// Losses and counts of one CPU at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuSummary {
    /// The CPU.
    pub cpu: u32,
    /// The kernel's counts.
    pub stats: CpuStats,
}

/// One CPU's buffer.
#[derive(Debug)]
struct CpuBuffer {
    cpu: u32,
    path: PathBuf,
    pages: File,
    counts: Counts,
    /// Time up to which everything was read: of the last record, or of the beginning of its page.
    last_time: u64,
    /// Whether the last poll came to the end of what was there.
    drained: bool,
    /// Pages read since a poll left nothing.
    behind: usize,
}

/// Reads all CPUs' buffers of an instance. Never waits.
#[derive(Debug)]
pub struct Reader {
    // Closed before the instance can be removed: fields are dropped in this order.
    buffers: Vec<CpuBuffer>,
    instance: Arc<Instance>,
    /// Buffer of each CPU, KiB.
    buffer_kib: usize,
    page_bytes: usize,
    /// The page that is read: what was taken of it is made as long again.
    page: Vec<u8>,
    /// Bytes of pages that a poll reads from each CPU at most.
    bytes_per_poll: usize,
    /// Recording has been stopped: what is there is all that comes.
    stopped: bool,
    stats: ReaderStats,
}

impl Reader {
    /// Opens the buffers of all CPUs, and whatever else is read later (by a process that is no longer root), after checking that their pages have the form that we decode.
    ///
    /// # Errors
    /// A buffer cannot be opened, or this kernel's pages have another form.
    pub fn open(instance: Arc<Instance>) -> Result<Self, ReaderError> {
        let unknown = |what| ReaderError::Instance(TracefsError::PageFormat(what));
        let read = |name| tracefs::read(&instance.path(name)).map_err(ReaderError::Instance);
        let page_bytes = page_format::page_bytes(&read("events/header_page")?).map_err(unknown)?;
        page_format::check_record_header(&read("events/header_event")?).map_err(unknown)?;
        let mut buffers = Vec::new();
        for cpu in instance.cpus().map_err(ReaderError::Instance)? {
            let path = instance.path(&format!("per_cpu/cpu{cpu}/trace_pipe_raw"));
            let pages = OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(&path)
                .map_err(|source| ReaderError::Read { cpu, path: path.clone(), source })?;
            let counts = instance.open_counts(cpu).map_err(ReaderError::Instance)?;
            buffers.push(CpuBuffer { cpu, path, pages, counts, last_time: 0, drained: false, behind: 0 });
        }
        let buffer_kib = instance.buffer_kib().map_err(ReaderError::Instance)?;
        let (page, stats) = (Vec::new(), ReaderStats::default());
        Ok(Self {
            buffers,
            instance,
            buffer_kib,
            page_bytes,
            page,
            bytes_per_poll: BYTES_PER_POLL,
            stopped: false,
            stats,
        })
    }

    /// From now on a poll reads less than it could, and has more to read at once all the more often.
    pub fn poll_briefly(&mut self) {
        self.bytes_per_poll = BYTES_PER_SHORT_POLL;
    }

    /// Reads what is there, up to a bound per CPU, and hands it to `sink`: the records of one CPU in order, one CPU
    /// after the other. Returns what it has left.
    ///
    /// # Errors
    /// A buffer cannot be read.
    pub fn poll(&mut self, sink: &mut impl for<'a> Sink<HostItem<'a>>) -> Result<Rest, ReaderError> {
        let mut stats = self.stats;
        let rest = self.poll_pages(&mut |cpu, last_time, page| hand_on(page, cpu, last_time, &mut stats, sink));
        self.stats = ReaderStats { pages: self.stats.pages, ..stats };
        rest
    }

    /// As [`poll`](Self::poll), but hands on the pages as they are, each with its CPU and the time of the last record
    /// before it, to be raised to that of its last record, or of any before that. The page may be taken, and another
    /// vector be left in its place.
    ///
    /// # Errors
    /// A buffer cannot be read.
    pub fn poll_pages(&mut self, sink: &mut impl FnMut(u32, &mut u64, &mut Vec<u8>)) -> Result<Rest, ReaderError> {
        let mut rest = Rest::Nothing;
        let most = pages_per_poll(self.bytes_per_poll, self.page_bytes);
        let half_a_buffer = self.buffer_kib.saturating_mul(512) / self.page_bytes;
        for buffer in &mut self.buffers {
            let mut read = PagesRead::default();
            while read.pages < most && (self.stopped || !read.has_reached_writer()) {
                self.page.resize(self.page_bytes, 0);
                let Some(length) = buffer.read_page(&mut self.page)? else { break };
                read.add(page::occupied(&self.page[..length]), length);
                // Not to what is occupied: what is cut off has to be filled again for the next page.
                self.page.truncate(length);
                self.stats.pages += 1;
                sink(buffer.cpu, &mut buffer.last_time, &mut self.page);
            }
            buffer.drained = read.pages < most;
            buffer.behind = if buffer.drained { 0 } else { buffer.behind.saturating_add(most) };
            rest = rest.max(match buffer.behind {
                0 => Rest::Nothing,
                pages if pages < half_a_buffer => Rest::Pages,
                _ => Rest::Backlog,
            });
        }
        Ok(rest)
    }

    /// Stops recording and reads all that is left, partly filled pages included. Returns the kernel's counts.
    ///
    /// # Errors
    /// Recording cannot be stopped, or a buffer or its counts cannot be read.
    pub fn finish(&mut self, sink: &mut impl for<'a> Sink<HostItem<'a>>) -> Result<Vec<CpuSummary>, ReaderError> {
        self.finish_by(|reader| reader.poll(sink))
    }

    /// As [`finish`](Self::finish), but hands on pages as [`poll_pages`](Self::poll_pages) does.
    ///
    /// # Errors
    /// Recording cannot be stopped, or a buffer or its counts cannot be read.
    pub fn finish_pages(
        &mut self,
        sink: &mut impl FnMut(u32, &mut u64, &mut Vec<u8>),
    ) -> Result<Vec<CpuSummary>, ReaderError> {
        self.finish_by(|reader| reader.poll_pages(sink))
    }

    fn finish_by(
        &mut self,
        mut poll: impl FnMut(&mut Self) -> Result<Rest, ReaderError>,
    ) -> Result<Vec<CpuSummary>, ReaderError> {
        self.stop()?;
        (self.bytes_per_poll, self.stopped) = (BYTES_PER_POLL, true);
        for _ in 0..polls_to_drain(self.buffer_kib, self.page_bytes) {
            if poll(self)? == Rest::Nothing {
                break;
            }
        }
        self.summary()
    }

    /// The kernel's counts, per CPU.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn summary(&self) -> Result<Vec<CpuSummary>, ReaderError> {
        self.buffers
            .iter()
            .map(|buffer| {
                let stats = buffer.counts.read().map_err(ReaderError::Instance)?;
                Ok(CpuSummary { cpu: buffer.cpu, stats })
            })
            .collect()
    }

    /// Whether less than a quarter of every CPU's buffer waits to be read. A kernel that does not tell how full a buffer is
    /// (before Linux 6.1) has room while all are empty.
    pub fn has_room(&self) -> bool {
        let mut buffers: Vec<_> = self.buffers.iter().map(|buffer| PollFd::new(&buffer.pages, PollFlags::IN)).collect();
        let polled = poll(&mut buffers, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        polled.is_ok() && !buffers.iter().any(|buffer| buffer.revents().contains(PollFlags::IN))
    }

    /// Stops recording. What has been recorded can still be read.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn stop(&self) -> Result<(), ReaderError> {
        self.instance.stop().map_err(ReaderError::Instance)
    }

    /// The instance that is read.
    pub fn instance(&self) -> &Instance {
        &self.instance
    }

    /// Up to when everything has been read, for each CPU, if all that was recorded before `polled` was there to be read
    /// in the last poll.
    pub fn read_up_to(&self, polled: u64) -> impl Iterator<Item = (u32, u64)> {
        let up_to = move |buffer: &CpuBuffer| if buffer.drained { polled } else { buffer.last_time.min(polled) };
        self.buffers.iter().map(move |buffer| (buffer.cpu, up_to(buffer)))
    }

    /// What has been read so far.
    pub fn stats(&self) -> ReaderStats {
        self.stats
    }
}

impl CpuBuffer {
    /// Reads one page into `page`; its length, or `None` if there is none.
    fn read_page(&mut self, page: &mut [u8]) -> Result<Option<usize>, ReaderError> {
        loop {
            match self.pages.read(page) {
                Ok(0) => return Ok(None),
                Ok(length) => return Ok(Some(length)),
                Err(error) if has_nothing(&error) => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(ReaderError::Read { cpu: self.cpu, path: self.path.clone(), source });
                }
            }
        }
    }
}

/// What a poll has read of one CPU.
#[derive(Clone, Copy, Debug, Default)]
struct PagesRead {
    pages: usize,
    /// The last ones of them that were occupied by less than half. The first page of a poll is none of them: it may be
    /// the rest of one that was read while it was written.
    short: usize,
}

impl PagesRead {
    fn add(&mut self, occupied: usize, length: usize) {
        let is_short = self.pages > 0 && occupied < length / 2;
        self.short = if is_short { self.short + 1 } else { 0 };
        self.pages += 1;
    }

    /// Whether the page that the CPU writes was read, and what came to it meanwhile. To read on would be to run after it:
    /// the kernel would copy the little that is new, one record after the other, where whole pages change hands. One
    /// short page may be full: what came next took more than half of one. Then it lies in the next page, which is not
    /// short.
    const fn has_reached_writer(self) -> bool {
        self.short >= 2
    }
}

/// Whether a failed read means that there is nothing to read: an empty buffer, or a CPU that has none because it has
/// not been online yet (tracefs has a folder for every CPU that the machine could have).
fn has_nothing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ENODEV)
}

/// Pages of `page_bytes` that a poll of so many bytes reads per CPU.
fn pages_per_poll(bytes: usize, page_bytes: usize) -> usize {
    (bytes / page_bytes).max(1)
}

/// Polls after which buffers of this size, in pages of `page_bytes`, are empty if nothing is added.
/// Should someone else switch tracing on again, the end comes nevertheless.
fn polls_to_drain(buffer_kib: usize, page_bytes: usize) -> usize {
    // The page that is being read comes on top, and some rounding.
    let pages = buffer_kib.saturating_mul(1024) / (page_bytes - HEADER_BYTES) + 3;
    // The last poll is the one that finds nothing.
    pages / pages_per_poll(BYTES_PER_POLL, page_bytes) + 2
}

/// Decodes a page of `cpu` and hands on what is in it. `last_time` is the time of the record before it, and then of
/// the last one in it.
pub(super) fn hand_on(
    bytes: &[u8],
    cpu: u32,
    last_time: &mut u64,
    stats: &mut ReaderStats,
    sink: &mut impl for<'a> Sink<HostItem<'a>>,
) {
    let cursor = PageCursor::begin(bytes, stats);
    let mut items = cursor.items(bytes, cpu, (*last_time, u64::MAX), stats);
    sink.take_all(&mut items);
    (_, *last_time) = items.end();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page with one 8-byte event per given delta, whose pid is the delta.
    fn page(time: u64, flags: u64, deltas: &[u8], tail: &[u8]) -> Vec<u8> {
        let committed = u64::try_from(deltas.len() * 12).unwrap();
        let mut page = time.to_le_bytes().to_vec();
        page.extend((committed | flags).to_le_bytes());
        for delta in deltas {
            page.extend((2 | (u32::from(*delta) << 5)).to_le_bytes());
            page.extend([0x34, 0x12, 0, 0, *delta, 0, 0, 0]);
        }
        page.extend(tail);
        page
    }

    #[test]
    fn empty_buffer_and_a_cpu_without_one_have_nothing() {
        assert!(has_nothing(&io::Error::from_raw_os_error(libc::EAGAIN)));
        assert!(has_nothing(&io::Error::from_raw_os_error(libc::ENODEV)));
        assert!(!has_nothing(&io::Error::from_raw_os_error(libc::EIO)));
    }

    #[test]
    fn drain_has_enough_polls_for_pages_that_hold_less_than_their_size() {
        // 64 MiB are 16,449 pages of 4080 bytes of data, not 16,384.
        assert!(polls_to_drain(65536, 4096) * pages_per_poll(BYTES_PER_POLL, 4096) > 16450);
        assert!(polls_to_drain(65536, 4096) * pages_per_poll(BYTES_PER_POLL, 4096) < 17000);
        // Of pages larger than what a poll reads, each takes one.
        assert!(polls_to_drain(65536, 1 << 20) > 64);
    }

    /// Whether the writer is reached behind pages of 4096 bytes that are so full.
    fn has_reached_writer(occupied: &[usize]) -> bool {
        let mut read = PagesRead::default();
        occupied.iter().for_each(|&occupied| read.add(occupied, 4096));
        read.has_reached_writer()
    }

    #[test]
    fn two_short_pages_behind_others_are_the_writers() {
        assert!(has_reached_writer(&[4096, 40, 16]));
        assert!(has_reached_writer(&[40, 2000, 16]));
        assert!(!has_reached_writer(&[40, 4000, 16]));
    }

    #[test]
    fn page_before_a_record_of_more_than_half_a_page_is_not_taken_for_the_writers() {
        assert!(!has_reached_writer(&[4096, 40]));
        assert!(!has_reached_writer(&[4096, 40, 3000]));
        assert!(!has_reached_writer(&[4096, 40, 3000, 40]));
    }

    #[test]
    fn first_page_of_a_poll_may_be_the_rest_of_one() {
        assert!(!has_reached_writer(&[]));
        assert!(!has_reached_writer(&[40]));
        assert!(!has_reached_writer(&[40, 40]));
    }

    fn times(bytes: &[u8], last_time: &mut u64, stats: &mut ReaderStats) -> Vec<Option<u64>> {
        let mut times = Vec::new();
        hand_on(bytes, 3, last_time, stats, &mut |item: HostItem<'_>| {
            times.push(match item {
                HostItem::Record(record) => Some(record.time),
                HostItem::Lost { .. } | HostItem::Gap { .. } => None,
            });
        });
        times
    }

    #[test]
    fn records_carry_the_common_fields_and_the_whole_payload() {
        let mut items = Vec::new();
        let mut stats = ReaderStats::default();

        hand_on(&page(100, 0, &[5], &[]), 3, &mut 0, &mut stats, &mut |item: HostItem<'_>| {
            let HostItem::Record(record) = item else { panic!("{item:?}") };
            items.push((record.cpu, record.time, record.event_id, record.common_pid, record.payload.to_vec()));
        });

        assert_eq!(items, [(3, 105, 0x1234, 5, vec![0x34, 0x12, 0, 0, 5, 0, 0, 0])]);
        assert_eq!(stats.records, 1);
        assert_eq!(stats.bytes, 12);
    }

    #[test]
    fn loss_is_handed_on_before_the_records_of_its_page() {
        let mut stats = ReaderStats::default();
        let bytes = page(10, 3 << 30, &[1], &77_u64.to_le_bytes());

        let times = times(&bytes, &mut 0, &mut stats);

        assert_eq!(times, [None, Some(11)]);
        assert_eq!((stats.lost, stats.lost_unknown), (77, 0));
    }

    #[test]
    fn time_before_the_last_one_is_raised_and_counted() {
        let mut stats = ReaderStats::default();
        let mut last_time = 103;

        let times = times(&page(100, 0, &[1, 1, 5], &[]), &mut last_time, &mut stats);

        assert_eq!(times, [Some(103), Some(103), Some(107)]);
        assert_eq!(stats.times_raised, 2);
        assert_eq!(last_time, 107);
    }

    #[test]
    fn bytes_that_are_not_a_page_are_a_loss_of_unknown_extent() {
        let mut stats = ReaderStats::default();

        assert_eq!(times(&[1, 2, 3], &mut 0, &mut stats), [None]);
        assert_eq!(stats.malformed_pages, 1);
    }

    #[test]
    fn event_without_room_for_the_common_fields_ends_its_page_as_a_loss() {
        let mut stats = ReaderStats::default();
        let mut bytes = page(0, 0, &[1, 1], &[]);
        bytes[28..32].copy_from_slice(&(1_u32 | (1 << 5)).to_le_bytes());

        assert_eq!(times(&bytes, &mut 0, &mut stats), [Some(1), None]);
        assert_eq!(stats.malformed_pages, 1);
    }
}
