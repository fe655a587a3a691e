//! The kernel's ring in the memory that its command line names: which of its pages hold records, in which order.
//!
//! Pure, and the memory is the guest's, which may write there what it likes: every number is checked against what the
//! host knows, and a page is visited at most once.
//!
//! From Linux 6.14 on the memory begins with a header for all CPUs, before that each CPU's part has one. A CPU's part
//! is its header, the numbers of its pages in the ring's order (the first is that of the page that a reader holds), and
//! the pages. The oldest page of the ring is its head; the page that was written last is the commit page.

use super::btf::Btf;
use std::ops::Range;
use strata_host_kernel::Page;

const MAGIC: u32 = 0x0bad_feed;
/// What every kernel on x86-64 has as the size of a page of a ring in such memory.
pub(super) const PAGE: usize = 4096;

/// Where the members of the headers lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    /// Where a CPU's part begins is in the common header, if there is one.
    pub(super) first_part: Option<usize>,
    pub(super) magic: usize,
    pub(super) header: usize,
    pub(super) first: usize,
    pub(super) head: usize,
    pub(super) commit: usize,
    page_size: usize,
    pages: usize,
}

impl RingLayout {
    /// As the kernel's types are; `None` if it has no ring where its command line puts it.
    #[must_use]
    pub fn new(btf: &Btf<'_>) -> Option<Self> {
        let member = |name, path| usize::try_from(btf.member(name, &[path])?.bytes()).ok();
        let (common, of_cpu) = ("ring_buffer_meta", "ring_buffer_cpu_meta");
        let (part, first_part) = match btf.size(of_cpu) {
            Some(_) => (of_cpu, Some(member(common, "buffers_offset")?)),
            None => (common, None),
        };
        Some(Self {
            first_part,
            magic: member(common, "magic")?,
            header: member(part, "buffers")?,
            first: member(part, "first_buffer")?,
            head: member(part, "head_buffer")?,
            commit: member(part, "commit_buffer")?,
            page_size: member(part, "subbuf_size")?,
            pages: member(part, "nr_subbufs")?,
        })
    }
}

/// Why a ring cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The kernel has not made it.
    #[error("the guest's kernel made no ring there: it ended too early, or ignored the option")]
    None,
    /// Its header says what cannot be.
    #[error("the header of the ring of CPU {cpu} is damaged")]
    Damaged { cpu: u32 },
}

/// The pages of a CPU's ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuRing {
    pub cpu: u32,
    /// Where in the memory each page lies that may hold records, the oldest first.
    pub pages: Vec<Range<usize>>,
    /// Whether it has gone round: older records were overwritten.
    pub has_wrapped: bool,
    /// If it has gone round, where in the memory the page lies that follows a reader's page with records: what lay
    /// between the two may have been overwritten.
    pub gap: Option<usize>,
}

/// The rings of CPUs, and memory that nobody writes any more and that has what counts of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rings {
    /// The memory.
    pub memory: Vec<u8>,
    /// The rings that can be read, in the order of the CPUs.
    pub of_cpus: Vec<CpuRing>,
    /// Why the first of the others cannot be read.
    pub problem: Option<RingError>,
}

impl Rings {
    /// The rings of `cpus` CPUs in `memory`, a copy of a stopped guest's.
    #[must_use]
    pub fn of_stopped(memory: Vec<u8>, layout: &RingLayout, cpus: u32) -> Self {
        let (mut of_cpus, mut problem) = (Vec::new(), None);
        let Some(mut part) = first_part(&memory, layout) else {
            return Self { memory, of_cpus, problem: Some(RingError::None) };
        };
        for cpu in 0..cpus {
            let place = Place::find(&memory, layout, part);
            match place.and_then(|place| place.ring(&memory, layout, cpu)) {
                Some(ring) => of_cpus.push(ring),
                None => problem = problem.or(Some(RingError::Damaged { cpu })),
            }
            // Without its size, nobody knows where the next one begins.
            let Some(place) = place else { break };
            part = place.end();
        }
        Self { memory, of_cpus, problem }
    }
}

/// Where the part of the first CPU begins; `None` where no kernel has made a ring.
pub(super) fn first_part(memory: &[u8], layout: &RingLayout) -> Option<usize> {
    if read_u32(memory, layout.magic) != Some(MAGIC) {
        return None;
    }
    Some(match layout.first_part {
        // Nothing can be read there.
        Some(at) => read_u32(memory, at).and_then(|start| usize::try_from(start).ok()).unwrap_or(usize::MAX),
        None => 0,
    })
}

/// Where a CPU's part lies in the memory: all of it within.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Where it begins.
    pub(super) part: usize,
    /// Where the numbers of its pages begin.
    order_at: usize,
    /// Where its first page begins.
    pages_at: usize,
    /// How many pages it has.
    count: usize,
}

impl Place {
    /// The place of the part at `part`, as its header says.
    pub(super) fn find(memory: &[u8], layout: &RingLayout, part: usize) -> Option<Self> {
        let at = |offset: usize| part.checked_add(offset);
        // The kernel's headers have words of eight bytes.
        if !part.is_multiple_of(8) || layout.first_part.is_none() && read_u32(memory, at(layout.magic)?)? != MAGIC {
            return None;
        }
        let number = |offset| usize::try_from(read_u32(memory, at(offset)?)?).ok();
        let (page_size, count) = (number(layout.page_size)?, number(layout.pages)?);
        // At least the reader's page and two of the ring.
        if page_size != PAGE || !(3..=memory.len() / PAGE).contains(&count) {
            return None;
        }
        let order_at = at(layout.header)?;
        let pages_at = (order_at.checked_add(4 * count)?).checked_next_multiple_of(PAGE)?;
        let place = Self { part, order_at, pages_at, count };
        memory.get(pages_at..pages_at.checked_add(PAGE * count)?)?;
        Some(place)
    }

    /// Where the part behind it begins.
    pub(super) const fn end(&self) -> usize {
        self.pages_at + PAGE * self.count
    }

    /// Where the numbers of its pages lie.
    pub(super) const fn order(&self) -> Range<usize> {
        self.order_at..self.order_at + 4 * self.count
    }

    /// Where its pages lie, in the order of the memory.
    pub(super) fn pages(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let Self { pages_at, count, .. } = *self;
        (0..count).map(move |page| pages_at + PAGE * page..pages_at + PAGE * (page + 1))
    }

    /// Its pages that may hold records, of the CPU `cpu`, as the header at this place says.
    pub(super) fn ring(&self, memory: &[u8], layout: &RingLayout, cpu: u32) -> Option<CpuRing> {
        let Self { part, count, .. } = *self;
        let word = |offset: usize| read_u64(memory, part + offset);
        let (first, head, commit) = (word(layout.first)?, word(layout.head)?, word(layout.commit)?);
        // The kernel sets both when the CPU comes online.
        if (head, commit) == (0, 0) {
            return Some(CpuRing { cpu, pages: Vec::new(), has_wrapped: false, gap: None });
        }
        let page_of = |address: u64| {
            let distance = usize::try_from(address.checked_sub(first)?).ok()?;
            (distance.is_multiple_of(PAGE) && distance / PAGE < count).then_some(distance / PAGE)
        };
        let (head, commit) = (page_of(head)?, page_of(commit)?);
        let order = (0..count).map(|index| usize::try_from(read_u32(memory, self.order_at + 4 * index)?).ok());
        let mut order: Vec<usize> = order.collect::<Option<_>>()?;
        if !has_each_once(&order) {
            lower_raised(&mut order)?;
        }
        let (&reader, in_ring) = order.split_first().filter(|_| has_each_once(&order))?;
        let mut pages = vec![reader];
        if commit != reader {
            let head = in_ring.iter().position(|&page| page == head)?;
            let round = in_ring.iter().cycle().skip(head).take(in_ring.len()).copied();
            for page in round {
                pages.push(page);
                if page == commit {
                    break;
                }
            }
            if pages.last() != Some(&commit) {
                return None;
            }
        }
        let has_wrapped = pages.len() >= count - 1;
        let at = |page: usize| self.pages_at + PAGE * page;
        let has_read_records = Page::committed(read_u64(memory, at(reader) + 8)?) > 0;
        let gap = pages.get(1).filter(|_| has_wrapped && has_read_records).map(|&head| at(head));
        let pages = pages.into_iter().map(|page| at(page)..at(page + 1)).collect();
        Some(CpuRing { cpu, pages, has_wrapped, gap })
    }
}

/// Whether `order` has the number of each page once.
fn has_each_once(order: &[usize]) -> bool {
    let mut seen = vec![false; order.len()];
    order.iter().all(|&page| seen.get_mut(page).is_some_and(|seen| !std::mem::replace(seen, true)))
}

/// Lowers the numbers in `order` that Linux 6.12 made one too high: it leaves out the header when it finds the number
/// of a page that is exchanged for a reader's. At first each place has the page of its own number, so a place with
/// another number was written since, and so was that of the page that it has. `None` where that cannot be.
fn lower_raised(order: &mut [usize]) -> Option<()> {
    let mut raised: Vec<usize> = (0..order.len()).filter(|&place| order[place] != place).collect();
    let mut is_lowered = vec![false; order.len()];
    while let Some(place) = raised.pop() {
        if !std::mem::replace(is_lowered.get_mut(place)?, true) {
            let page = order.get_mut(place)?;
            *page = page.checked_sub(1)?;
            raised.push(*page);
        }
    }
    Some(())
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Layouts and memory as kernels make them, for tests.
#[doc(hidden)]
pub mod sample {
    use super::{MAGIC, PAGE, RingLayout};

    /// As Linux 6.12 has it.
    pub const LINUX_6_12: RingLayout = RingLayout {
        first_part: None,
        magic: 0,
        header: 56,
        first: 24,
        head: 32,
        commit: 40,
        page_size: 48,
        pages: 52,
    };

    /// As Linux 6.14 has it.
    pub const LINUX_6_14: RingLayout = RingLayout {
        first_part: Some(12),
        magic: 0,
        header: 32,
        first: 0,
        head: 8,
        commit: 16,
        page_size: 24,
        pages: 28,
    };

    /// Memory with the ring of one CPU, of the pages `order`; `head` and `commit` are numbers of pages.
    #[must_use]
    pub fn memory(layout: &RingLayout, order: &[u32], head: u64, commit: u64) -> Vec<u8> {
        const MAPPED: u64 = 0xffff_c900_0000_2000;
        let mut memory = vec![0; PAGE * (order.len() + 1)];
        let mut put = |at: usize, bytes: &[u8]| memory[at..at + bytes.len()].copy_from_slice(bytes);
        let part = match layout.first_part {
            Some(at) => {
                put(at, &64_u32.to_le_bytes());
                64
            }
            None => 0,
        };
        put(layout.magic, &MAGIC.to_le_bytes());
        put(part + layout.first, &MAPPED.to_le_bytes());
        put(part + layout.head, &(MAPPED + 4096 * head).to_le_bytes());
        put(part + layout.commit, &(MAPPED + 4096 * commit).to_le_bytes());
        put(part + layout.page_size, &4096_u32.to_le_bytes());
        put(part + layout.pages, &u32::try_from(order.len()).unwrap_or(0).to_le_bytes());
        for (index, page) in order.iter().enumerate() {
            put(part + layout.header + 4 * index, &page.to_le_bytes());
        }
        memory
    }
}

#[cfg(test)]
mod tests {
    use super::sample::{LINUX_6_12, LINUX_6_14, memory};
    use super::*;

    fn numbers(ring: &CpuRing) -> Vec<usize> {
        ring.pages.iter().map(|page| page.start / PAGE - 1).collect()
    }

    #[test]
    fn pages_go_from_the_head_to_the_commit_page_behind_the_readers() {
        let memory_of = |layout| memory(layout, &[0, 1, 2, 3, 4], 3, 1);
        let old = Rings::of_stopped(memory_of(&LINUX_6_12), &LINUX_6_12, 1);
        let new = Rings::of_stopped(memory_of(&LINUX_6_14), &LINUX_6_14, 1);

        let (ring, problem) = (&old.of_cpus[0], old.problem);
        assert_eq!((numbers(ring), ring.has_wrapped, problem), (vec![0, 3, 4, 1], true, None));
        assert_eq!(numbers(&new.of_cpus[0]), [0, 3, 4, 1]);
    }

    #[test]
    fn ring_that_was_just_begun_has_one_page() {
        let rings = Rings::of_stopped(memory(&LINUX_6_12, &[0, 1, 2, 3, 4], 1, 1), &LINUX_6_12, 1).of_cpus;

        assert_eq!((numbers(&rings[0]), rings[0].has_wrapped), (vec![0, 1], false));
    }

    #[test]
    fn ring_of_a_cpu_that_never_came_online_is_empty() {
        let mut offline = memory(&LINUX_6_12, &[0, 1, 2, 3], 1, 1);
        offline[LINUX_6_12.head..LINUX_6_12.commit + 8].fill(0);
        let both = [offline, memory(&LINUX_6_12, &[0, 1, 2, 3], 1, 1)].concat();

        let rings = Rings::of_stopped(both, &LINUX_6_12, 2);

        let pages: Vec<_> = rings.of_cpus.iter().map(|ring| (ring.cpu, ring.pages.len(), ring.has_wrapped)).collect();
        assert_eq!((pages, rings.problem), (vec![(0, 0, false), (1, 2, false)], None));
    }

    #[test]
    fn memory_that_no_kernel_used_has_no_ring() {
        let found = [vec![0; 8192], Vec::new()].map(|memory| Rings::of_stopped(memory, &LINUX_6_12, 1));

        assert_eq!(
            found.map(|rings| (rings.of_cpus, rings.problem)),
            [const { (Vec::new(), Some(RingError::None)) }; 2]
        );
    }

    #[test]
    fn header_that_says_what_cannot_be_is_damaged() {
        let damaged = |memory: &[u8]| {
            Rings::of_stopped(memory.to_vec(), &LINUX_6_12, 1).problem == Some(RingError::Damaged { cpu: 0 })
        };
        let mut many = memory(&LINUX_6_12, &[0, 1, 2, 3], 1, 1);
        many[52..56].copy_from_slice(&u32::MAX.to_le_bytes());

        assert!(damaged(&memory(&LINUX_6_12, &[0, 1, 1, 3], 1, 1)));
        assert!(damaged(&memory(&LINUX_6_12, &[0, 1, 2, 9], 1, 1)));
        assert!(damaged(&memory(&LINUX_6_12, &[0, 1, 2, 3], 7, 1)));
        assert!(damaged(&memory(&LINUX_6_12, &[0, 1, 2, 3], 1, 7)));
        assert!(damaged(&many));
        assert!(damaged(&memory(&LINUX_6_12, &[0, 1, 2, 3], 1, 1)[..4096 * 4]));
    }

    #[test]
    fn ring_behind_one_whose_order_is_damaged_is_read() {
        let orders: [&[u32]; 2] = [&[0, 1, 1, 9], &[0, 1, 2, 3]];
        let both = orders.map(|order| memory(&LINUX_6_12, order, 1, 1)).concat();

        let rings = Rings::of_stopped(both, &LINUX_6_12, 2);

        assert_eq!((rings.of_cpus.len(), rings.of_cpus[0].cpu), (1, 1));
        assert_eq!(rings.problem, Some(RingError::Damaged { cpu: 0 }));
    }

    #[test]
    fn ring_behind_one_of_unknown_size_is_not_looked_for() {
        let rings = Rings::of_stopped(memory(&LINUX_6_12, &[0, 1, 2, 3], 1, 1), &LINUX_6_12, 3);

        assert_eq!((rings.of_cpus.len(), rings.problem), (1, Some(RingError::Damaged { cpu: 1 })));
    }

    /// The order that a kernel keeps whose reader took the pages at `places`, one after the other, and that order as
    /// Linux 6.12 writes it.
    fn exchanged(count: usize, places: &[usize]) -> [Vec<usize>; 2] {
        let mut order: Vec<usize> = (0..count).collect();
        let mut written = order.clone();
        for &place in places {
            order.swap(0, place);
            for place in [0, place] {
                written[place] = order[place] + 1;
            }
        }
        [order, written]
    }

    #[test]
    fn order_that_a_reader_had_raised_is_as_it_was() {
        let taken: [&[usize]; 5] = [&[1], &[1, 2, 3, 4, 5], &[3, 1, 4], &[1, 2, 1, 2, 1], &[2, 1, 2, 3, 2]];
        for places in taken {
            let [order, mut written] = exchanged(6, places);

            assert!(!has_each_once(&written));
            assert_eq!((lower_raised(&mut written), written), (Some(()), order));
        }
    }

    #[test]
    fn pages_are_read_in_the_order_that_a_reader_had_raised() {
        // The reader has taken the pages 1 and 2.
        let ring = &Rings::of_stopped(memory(&LINUX_6_12, &[3, 1, 2, 3, 4], 3, 0), &LINUX_6_12, 1).of_cpus[0];

        assert_eq!(numbers(ring), [2, 3, 4, 0]);
    }

    #[test]
    fn full_ring_may_lack_records_behind_those_that_a_reader_has() {
        let gap = |commit, occupied: u8| {
            let mut memory = memory(&LINUX_6_12, &[0, 1, 2, 3, 4], 1, commit);
            memory[PAGE + 8] = occupied;
            Rings::of_stopped(memory, &LINUX_6_12, 1).of_cpus[0].gap
        };

        assert_eq!([gap(4, 12), gap(4, 0), gap(1, 12)], [Some(2 * PAGE), None, None]);
    }
}
