//! The rings of a running guest, copied while its kernel writes them, without stopping it.
//!
//! The memory is looked at twice. A page counts if its header was the same both times: then what lies between was
//! copied whole. That follows from the order in which the kernel stores, which x86 keeps, for others to see as well:
//!
//! - A record is written before the page's commit word counts it.
//! - Before a page is used again, the ring's head moves past it, and its commit word becomes 0. With its first record
//!   it gets a new time stamp, and only after that its commit word grows again.
//!
//! So the time stamp is read before the commit word at first, and behind it the second time: a page that was used again
//! has either counted less, or has another time stamp. Where the pages lie in the ring is read between the two looks at
//! their headers: each page that did not change was in that place then, with the content that was copied. Pages that were
//! used again lie at the end of the ring, or at its begin if that happened after its order was read. On either side of a
//! page that changed something would be missing unseen, so the longest run without one is taken; of a page whose commit
//! word alone grew, what was committed at the first look ends the run.

use super::ring::{CpuRing, PAGE, Place, RingError, RingLayout, Rings, first_part};
use std::ops::Range;
use std::sync::atomic::{Ordering, fence};
use strata_host_kernel::{HEADER_BYTES, Page};

/// Looks at a header whose pages are just being exchanged by a reader in the guest, at most.
const LOOKS: u32 = 4;

/// Memory of rings that somebody else writes meanwhile. Places are bytes from its begin.
pub trait RingSource {
    /// Reads the eight bytes at `at`, a multiple of eight, at once, and before all that is read after them; `None` where
    /// there are none.
    fn load(&self, at: usize) -> Option<u64>;

    /// Fills `bytes` with what is at `at` and behind it, in any order; `None` where there is less.
    fn copy(&self, at: usize, bytes: &mut [u8]) -> Option<()>;
}

/// Copies what counts of the rings of `cpus` CPUs in the first `size` bytes of `source`.
#[must_use]
pub fn copy_running(source: &impl RingSource, size: usize, layout: &RingLayout, cpus: u32) -> Rings {
    let mut rings = Rings { memory: vec![0; size], of_cpus: Vec::new(), problem: None };
    let memory = &mut rings.memory;
    let header = 0..layout.magic.max(layout.first_part.unwrap_or(0)).saturating_add(4);
    let part = copy_range(source, memory, header).and_then(|()| first_part(memory, layout));
    let Some(mut part) = part else {
        return Rings { problem: Some(RingError::None), ..rings };
    };
    for cpu in 0..cpus {
        let place = copy_header(source, memory, layout, part);
        match place.and_then(|place| copy_ring(source, memory, layout, (cpu, place))) {
            Some(ring) => rings.of_cpus.push(ring),
            None => rings.problem = rings.problem.or(Some(RingError::Damaged { cpu })),
        }
        let Some(place) = place else { break };
        part = place.end();
    }
    rings
}

/// Copies the ring of `cpu`, whose part is at `place`.
fn copy_ring(
    source: &impl RingSource,
    memory: &mut [u8],
    layout: &RingLayout,
    (cpu, place): (u32, Place),
) -> Option<CpuRing> {
    let part = place.part;
    for page in place.pages() {
        Header::first(source, &page)?.write(memory.get_mut(page)?)?;
    }
    for page in place.pages() {
        let header = Header::read(memory.get(page.clone())?)?;
        let data = page.start + HEADER_BYTES..page.start + header.occupied();
        copy_range(source, memory, data)?;
    }
    // What was copied was read before what is read from here on.
    fence(Ordering::Acquire);
    let look = |_| {
        let again = copy_header(source, memory, layout, part).filter(|again| *again == place)?;
        // The commit page before the head: between the two a writer can only make the ring's known part shorter.
        for at in [layout.commit, layout.head] {
            let word = source.load(part + at)?;
            memory.get_mut(part + at..)?.first_chunk_mut().map(|bytes| *bytes = word.to_le_bytes())?;
        }
        again.ring(memory, layout, cpu)
    };
    let mut ring = (0..LOOKS).find_map(look)?;
    ring.pages = whole_run(source, memory, &ring.pages)?;
    Some(ring)
}

/// The most of `pages`, in the ring's order, between which nothing is missing: none changed since it was copied, but that
/// the last may have grown.
fn whole_run(source: &impl RingSource, memory: &[u8], pages: &[Range<usize>]) -> Option<Vec<Range<usize>>> {
    let (mut best, mut best_bytes) = (0..0, 0);
    let (mut begin, mut bytes) = (0, 0);
    for (index, page) in pages.iter().enumerate() {
        let (then, now) = (Header::read(memory.get(page.clone())?)?, Header::second(source, page)?);
        let is_same = then.time == now.time && then.committed() <= now.committed();
        let end = index + usize::from(is_same);
        bytes += if is_same { then.committed() } else { 0 };
        if bytes > best_bytes {
            (best, best_bytes) = (begin..end, bytes);
        }
        if !is_same || then.committed() < now.committed() {
            (begin, bytes) = (index + 1, 0);
        }
    }
    pages.get(best).map(<[_]>::to_vec)
}

/// Copies the header of the part at `part`, with the numbers of its pages; returns the part's place.
fn copy_header(source: &impl RingSource, memory: &mut [u8], layout: &RingLayout, part: usize) -> Option<Place> {
    copy_range(source, memory, part..part.checked_add(layout.header)?)?;
    let place = Place::find(memory, layout, part)?;
    copy_range(source, memory, place.order())?;
    Some(place)
}

fn copy_range(source: &impl RingSource, memory: &mut [u8], range: Range<usize>) -> Option<()> {
    source.copy(range.start, memory.get_mut(range)?)
}

/// The header of a page.
#[derive(Clone, Copy, Debug)]
struct Header {
    time: u64,
    commit: u64,
}

impl Header {
    /// As it is before the page's data are copied.
    fn first(source: &impl RingSource, page: &Range<usize>) -> Option<Self> {
        let time = source.load(page.start)?;
        let commit = source.load(page.start + 8)?;
        Some(Self { time, commit })
    }

    /// As it is when the page's data have been copied.
    fn second(source: &impl RingSource, page: &Range<usize>) -> Option<Self> {
        let commit = source.load(page.start + 8)?;
        let time = source.load(page.start)?;
        Some(Self { time, commit })
    }

    /// That of the copied `page`.
    fn read(page: &[u8]) -> Option<Self> {
        let (time, rest) = page.split_first_chunk()?;
        Some(Self { time: u64::from_le_bytes(*time), commit: u64::from_le_bytes(*rest.first_chunk()?) })
    }

    /// Makes it that of the copied `page`.
    fn write(self, page: &mut [u8]) -> Option<()> {
        let (time, rest) = page.split_first_chunk_mut()?;
        *time = self.time.to_le_bytes();
        *rest.first_chunk_mut()? = self.commit.to_le_bytes();
        Some(())
    }

    /// Bytes of records.
    const fn committed(self) -> u64 {
        Page::committed(self.commit)
    }

    /// Bytes of header, records, and the number of lost ones where it may lie; [`PAGE`] at most.
    fn occupied(self) -> usize {
        let records = usize::try_from(self.committed()).unwrap_or(PAGE);
        records.saturating_add(HEADER_BYTES + size_of::<u64>()).min(PAGE)
    }
}

#[cfg(test)]
mod tests;
