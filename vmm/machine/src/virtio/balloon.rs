//! The virtio balloon device (virtio 1.2, section 5.5): memory that the guest gives back to the host.
//!
//! How much the host wants is in the configuration. The guest names pages that it does without from now on (queue 0),
//! and those that it takes again (queue 1). Beside that it reports memory that is free, which it may use again at any
//! moment. The host's kernel gets all of it back at once; a page that the guest touches again is a new one, of zeros.
//!
//! What the guest names is RAM that its memory map gives it, or it is left alone and counted: the trace region is not
//! among it, nor are the tables of the legacy area. The ring of a guest without an agent lies in RAM that its kernel
//! has set aside: Linux gives that to no balloon, and a guest that names it all the same loses its own records.

#[cfg(test)]
mod tests;

use super::mmio::MmioTransport;
use super::work::Work;
use super::{Served, VirtioDevice};
use crate::memory;
use crate::memory::layout::Range;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;
use strata_observer::{BalloonRequestKind, Observer};
use virtio_bindings::virtio_ids::VIRTIO_ID_BALLOON;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::{DescriptorChain, Error, Queue, QueueOwnedT, QueueT};
use vm_memory::{GuestMemoryBackend, GuestMemoryMmap};

/// Bytes of the pages that a guest names, whatever its own pages are.
pub const PAGE: u64 = 4096;
/// A driver that runs out of memory takes pages out of the balloon by itself (`VIRTIO_BALLOON_F_DEFLATE_ON_OOM`).
const DEFLATE_ON_OOM: u64 = 1 << 2;
/// A driver reports free memory (`VIRTIO_BALLOON_F_REPORTING`).
const REPORTING: u64 = 1 << 5;
const QUEUE_SIZE: u16 = 128;
const INFLATE: usize = 0;
const DEFLATE: usize = 1;
/// The standard calls the queue of reports number 4, as if those of features that are not offered were there. Linux
/// counts only those that are: 2. Nothing else is offered that has a queue, so that every later one is for reports.
const QUEUES: [u16; 5] = [QUEUE_SIZE; 5];
/// Most pages of a request that are looked at; Linux names 256.
const PAGES_PER_REQUEST: usize = 4096;
/// Most bytes of a report that are given back; Linux reports 32 times 4 MiB.
const BYTES_PER_REPORT: u64 = 256 << 20;
/// Most buffers of a report that are looked at.
const BUFFERS_PER_REPORT: usize = 64;
/// Where in the configuration the driver writes how many pages it has given.
const ACTUAL: u64 = 4;

/// How a balloon is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BalloonState {
    /// What the host wants back, bytes.
    pub wanted: u64,
    /// What the guest does without, bytes.
    pub given: u64,
    /// What the guest has reported as free since its start, bytes; it may have used it again, and reported it again.
    pub reported: u64,
    /// Pages that the guest named and may not, or that the host's kernel did not take.
    pub refused: u64,
    /// Whether a driver of the guest has taken the device.
    pub is_driven: bool,
}

/// What a balloon counts, for any thread.
#[derive(Debug, Default)]
pub struct BalloonCounts {
    wanted_pages: AtomicU32,
    given_pages: AtomicU64,
    reported: AtomicU64,
    refused: AtomicU64,
}

impl BalloonCounts {
    fn state(&self, is_driven: bool) -> BalloonState {
        BalloonState {
            wanted: u64::from(self.wanted_pages.load(Ordering::Relaxed)) * PAGE,
            given: self.given_pages.load(Ordering::Relaxed) * PAGE,
            reported: self.reported.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            is_driven,
        }
    }
}

/// A balloon in its place in a machine, as the host reaches it from any thread.
#[derive(Clone)]
pub struct BalloonRemote {
    device: Arc<MmioTransport>,
    counts: Arc<BalloonCounts>,
}

impl BalloonRemote {
    /// The balloon behind the registers of `device`, which counts in `counts`.
    #[must_use]
    pub fn new(device: Arc<MmioTransport>, counts: Arc<BalloonCounts>) -> Self {
        Self { device, counts }
    }

    /// How it is.
    #[must_use]
    pub fn state(&self) -> BalloonState {
        self.counts.state(self.device.is_driven())
    }

    /// Wants `bytes` back from now on, in whole pages, and tells the driver.
    pub fn want(&self, bytes: u64) {
        self.counts.wanted_pages.store(u32::try_from(bytes / PAGE).unwrap_or(u32::MAX), Ordering::Relaxed);
        self.device.announce_configuration();
    }
}

/// Pages of 4096 bytes, by their number; each of them once.
#[derive(Debug)]
struct PageSet {
    words: Vec<u64>,
    count: u64,
}

impl PageSet {
    /// An empty set, with room for pages below `end`.
    fn below(end: u64) -> Self {
        let words = usize::try_from(end.div_ceil(64)).unwrap_or(usize::MAX);
        Self { words: vec![0; words], count: 0 }
    }

    /// The word and the bit of `page`; `None` where there is no room for it.
    fn place(&mut self, page: u32) -> Option<(&mut u64, u64)> {
        self.words.get_mut(page as usize / 64).map(|word| (word, 1 << (page % 64)))
    }

    /// Takes `page` in; says whether it was not there.
    fn insert(&mut self, page: u32) -> bool {
        let is_new = self.place(page).is_some_and(|(word, bit)| {
            let is_new = *word & bit == 0;
            *word |= bit;
            is_new
        });
        self.count += u64::from(is_new);
        is_new
    }

    /// Takes `page` out; says whether it was there.
    fn remove(&mut self, page: u32) -> bool {
        let was_there = self.place(page).is_some_and(|(word, bit)| {
            let was_there = *word & bit != 0;
            *word &= !bit;
            was_there
        });
        self.count -= u64::from(was_there);
        was_there
    }

    fn clear(&mut self) {
        self.words.fill(0);
        self.count = 0;
    }
}

/// What became of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Done {
    /// Of pages that were taken, or given again.
    bytes: u64,
    /// Pages that were not.
    refused: u64,
}

/// A balloon device.
pub struct Balloon {
    counts: Arc<BalloonCounts>,
    /// The pages that the guest does without.
    given: PageSet,
    /// What the driver says that it has given, little-endian pages. Nobody relies on it.
    actual: [u8; 4],
    /// The pages of the request that is being served, as the guest names them and then those that it may.
    named: Box<[u8]>,
    pages: Vec<u32>,
    observer: Arc<dyn Observer>,
}

impl Balloon {
    /// An empty balloon for a guest with `memory`, which is private and anonymous. It begins with what `counts` wants
    /// back, and keeps the rest of them.
    #[must_use]
    pub fn new(memory: &GuestMemoryMmap, counts: Arc<BalloonCounts>, observer: Arc<dyn Observer>) -> Self {
        Self {
            counts,
            given: PageSet::below(memory.last_addr().0 / PAGE + 1),
            actual: [0; 4],
            named: vec![0; PAGES_PER_REQUEST * 4].into_boxed_slice(),
            pages: Vec::new(),
            observer,
        }
    }

    /// Reads the numbers of pages that a request consists of. Returns how many it names beyond those that are looked
    /// at; one that is not inside of memory counts as one page.
    fn read_pages(&mut self, chain: DescriptorChain<&GuestMemoryMmap>, memory: &GuestMemoryMmap) -> u64 {
        self.pages.clear();
        let Ok(mut reader) = chain.reader(memory) else { return 1 };
        let all = reader.available_bytes() / 4;
        let named = all.min(PAGES_PER_REQUEST);
        let Ok(()) = reader.read_exact(&mut self.named[..named * 4]) else { return 1 };
        let (numbers, _) = self.named[..named * 4].as_chunks();
        self.pages.extend(numbers.iter().map(|number| u32::from_le_bytes(*number)));
        (all - named) as u64
    }

    /// Takes the pages of a request into the balloon, and gives them back to the host.
    fn inflate(&mut self, chain: DescriptorChain<&GuestMemoryMmap>, memory: &GuestMemoryMmap) -> Done {
        let mut refused = self.read_pages(chain, memory);
        let named = self.pages.len() as u64;
        let given = &mut self.given;
        self.pages.retain(|page| memory::is_usable(memory, pages(*page, 1)) && given.insert(*page));
        refused += named - self.pages.len() as u64;
        let bytes = self.pages.len() as u64 * PAGE;
        // Neighbours go together: each call interrupts the vCPUs that have them mapped.
        self.pages.sort_unstable();
        for run in self.pages.chunk_by(|one, next| next - one == 1) {
            let range = pages(run[0], run.len() as u64);
            if memory::give_back(memory, range).is_err() {
                refused += run.len() as u64;
            }
        }
        Done { bytes, refused }
    }

    /// Lets the guest have the pages of a request again: they come back as it touches them.
    fn deflate(&mut self, chain: DescriptorChain<&GuestMemoryMmap>, memory: &GuestMemoryMmap) -> Done {
        let mut done = Done { bytes: 0, refused: self.read_pages(chain, memory) };
        for page in &self.pages {
            match self.given.remove(*page) {
                true => done.bytes += PAGE,
                false => done.refused += 1,
            }
        }
        done
    }

    /// Gives back to the host what a report calls free: the buffers of its chain, as many as are looked at.
    fn report(chain: DescriptorChain<&GuestMemoryMmap>, memory: &GuestMemoryMmap) -> Done {
        let mut done = Done::default();
        for buffer in chain.take(BUFFERS_PER_REPORT) {
            let range = Range { start: buffer.addr().0, size: buffer.len().into() };
            let is_taken = buffer.is_write_only()
                && done.bytes + range.size <= BYTES_PER_REPORT
                && memory::is_usable(memory, range)
                && memory::give_back(memory, range).is_ok();
            match is_taken {
                true => done.bytes += range.size,
                false => done.refused += range.size.div_ceil(PAGE).max(1),
            }
        }
        done
    }

    /// Serves a request of queue `index`; returns the bytes of its pages.
    fn request(&mut self, index: usize, chain: DescriptorChain<&GuestMemoryMmap>, memory: &GuestMemoryMmap) -> u64 {
        let begun = Instant::now();
        let (kind, done) = match index {
            INFLATE => (BalloonRequestKind::Inflate, self.inflate(chain, memory)),
            DEFLATE => (BalloonRequestKind::Deflate, self.deflate(chain, memory)),
            _ => (BalloonRequestKind::Report, Self::report(chain, memory)),
        };
        if kind == BalloonRequestKind::Report {
            self.counts.reported.fetch_add(done.bytes, Ordering::Relaxed);
        }
        self.counts.given_pages.store(self.given.count, Ordering::Relaxed);
        self.counts.refused.fetch_add(done.refused, Ordering::Relaxed);
        self.observer.balloon_request(kind, done.bytes, done.refused, begun.elapsed());
        done.bytes
    }
}

/// The range of `count` pages from the one of this number on.
fn pages(first: u32, count: u64) -> Range {
    Range { start: u64::from(first) * PAGE, size: count * PAGE }
}

impl VirtioDevice for Balloon {
    fn device_type(&self) -> u32 {
        VIRTIO_ID_BALLOON
    }

    fn features(&self) -> u64 {
        DEFLATE_ON_OOM | REPORTING | 1 << VIRTIO_RING_F_INDIRECT_DESC | 1 << VIRTIO_RING_F_EVENT_IDX
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUES
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        let wanted = self.counts.wanted_pages.load(Ordering::Relaxed).to_le_bytes();
        let config = [wanted, self.actual].concat();
        let rest = usize::try_from(offset).ok().and_then(|offset| config.get(offset..));
        for (to, from) in data.iter_mut().zip(rest.unwrap_or_default()) {
            *to = *from;
        }
    }

    fn write_config(&mut self, offset: u64, data: &[u8]) {
        for (at, byte) in (offset..).zip(data) {
            let place = at.checked_sub(ACTUAL).and_then(|at| self.actual.get_mut(usize::try_from(at).ok()?));
            if let Some(place) = place {
                *place = *byte;
            }
        }
    }

    /// A driver that is gone has lost its balloon: what it had given, the next one uses.
    fn stop(&mut self) {
        self.given.clear();
        self.actual = [0; 4];
        self.counts.given_pages.store(0, Ordering::Relaxed);
    }

    fn serve(
        &mut self,
        index: usize,
        queue: &mut Queue,
        memory: &GuestMemoryMmap,
        _: Instant,
    ) -> Result<Served, Error> {
        let mut work = Work::begin();
        loop {
            queue.disable_notification(memory)?;
            let mut is_idle = false;
            while !work.is_spent() && queue.avail_idx(memory, Ordering::Acquire)?.0 != queue.next_avail() {
                let chain = queue.iter(memory)?.next();
                is_idle = chain.is_none();
                let Some(chain) = chain else { break };
                let head = chain.head_index();
                let bytes = self.request(index, chain, memory);
                queue.add_used(memory, head, 0)?;
                work.add(usize::try_from(bytes).unwrap_or(usize::MAX));
            }
            let more = !is_idle && queue.enable_notification(memory)?;
            if !more || work.is_spent() {
                let interrupt = work.packets() > 0 && queue.needs_notification(memory)?;
                return Ok(Served { interrupt, more, ..Served::default() });
            }
        }
    }
}
