//! A kernel writes its ring, store by store, while it is copied, read by read.

use super::super::records::{RingItem, decode};
use super::super::ring::sample::{LINUX_6_12, LINUX_6_14, memory};
use super::*;
use std::cell::{Cell, RefCell};

/// Pages of the ring in their order: the reader's, then those of the ring.
const ORDER: [u32; 4] = [0, 1, 2, 3];
const CPU: u32 = 0;
const EVENT_BYTES: usize = 1200;
/// A word with the time, one with the length, the event.
const RECORD_BYTES: usize = 8 + EVENT_BYTES;
const RECORDS_PER_PAGE: usize = (PAGE - HEADER_BYTES) / RECORD_BYTES;
const NS_BETWEEN: u32 = 10;

/// A store of the kernel.
struct Store {
    at: usize,
    bytes: Vec<u8>,
    /// How many records are committed with it.
    committed: u16,
}

/// The stores by which a kernel writes `records` records, as Linux orders them: record 1, 2 and so on is the event of
/// this number, at ten times so many nanoseconds.
fn stores(layout: &RingLayout, records: u16) -> Vec<Store> {
    let memory = memory(layout, &ORDER, 1, 1);
    let part = first_part(&memory, layout).unwrap();
    let place = Place::find(&memory, layout, part).unwrap();
    let mapped = u64::from_le_bytes(*memory[part + layout.first..].first_chunk().unwrap());
    let pages: Vec<_> = place.pages().collect();
    let address = |page: usize| (mapped + u64::try_from(PAGE * page).unwrap()).to_le_bytes().to_vec();
    let next = |page: usize| page % 3 + 1;
    let (mut stores, mut head, mut tail, mut used) = (Vec::new(), 1, 1, 0);
    for number in 1..=records {
        let mut store = |at, bytes: Vec<u8>, committed| stores.push(Store { at, bytes, committed });
        let before = number - 1;
        let moves = used + RECORD_BYTES > PAGE - HEADER_BYTES;
        if moves {
            tail = next(tail);
            used = 0;
            if tail == head {
                head = next(head);
                store(part + layout.head, address(head), before);
            }
            store(pages[tail].start + 8, vec![0; 8], before);
        }
        let record = pages[tail].start + HEADER_BYTES + used;
        let delta = if used == 0 { 0 } else { NS_BETWEEN };
        store(record, (delta << 5).to_le_bytes().to_vec(), before);
        store(record + 4, u32::try_from(EVENT_BYTES + 4).unwrap().to_le_bytes().to_vec(), before);
        if used == 0 {
            store(pages[tail].start, (u64::from(NS_BETWEEN) * u64::from(number)).to_le_bytes().to_vec(), before);
        }
        store(record + 8, number.to_le_bytes().repeat(EVENT_BYTES / 2), before);
        used += RECORD_BYTES;
        if moves {
            store(part + layout.commit, address(tail), before);
        }
        store(pages[tail].start + 8, used.to_le_bytes().to_vec(), number);
    }
    stores
}

/// Memory that is written while it is read.
struct Racing<'a> {
    memory: RefCell<Vec<u8>>,
    stores: &'a [Store],
    done: Cell<usize>,
    reads: Cell<usize>,
    /// How many stores are done before the read of a number.
    before: &'a dyn Fn(usize) -> usize,
}

impl<'a> Racing<'a> {
    /// With the ring of `layout` as it is when `done` of the `stores` are done.
    fn new(layout: &RingLayout, stores: &'a [Store], done: usize, before: &'a dyn Fn(usize) -> usize) -> Self {
        let memory = RefCell::new(memory(layout, &ORDER, 1, 1));
        let racing = Self { memory, stores, done: Cell::new(0), reads: Cell::new(0), before };
        racing.store(done);
        racing
    }

    fn store(&self, count: usize) {
        let begin = self.done.get();
        let end = (begin + count).min(self.stores.len());
        let mut memory = self.memory.borrow_mut();
        for Store { at, bytes, .. } in &self.stores[begin..end] {
            memory[*at..*at + bytes.len()].copy_from_slice(bytes);
        }
        self.done.set(end);
    }

    fn reads(&self) {
        self.store((self.before)(self.reads.replace(self.reads.get() + 1)));
    }

    /// How many records are committed.
    fn committed(&self) -> u16 {
        self.done.get().checked_sub(1).map_or(0, |last| self.stores[last].committed)
    }
}

impl RingSource for Racing<'_> {
    fn load(&self, at: usize) -> Option<u64> {
        self.reads();
        self.memory.borrow().get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }

    fn copy(&self, at: usize, bytes: &mut [u8]) -> Option<()> {
        let (begin, end) = bytes.split_at_mut(bytes.len() / 2);
        let middle = at + begin.len();
        self.reads();
        begin.copy_from_slice(self.memory.borrow().get(at..middle)?);
        self.reads();
        end.copy_from_slice(self.memory.borrow().get(middle..middle + end.len())?);
        Some(())
    }
}

/// The numbers of the records; each has its own time and content.
fn numbers(rings: &Rings) -> Vec<u16> {
    let mut numbers = Vec::new();
    decode(rings, |item| match item {
        RingItem::Record { cpu, time, event_id, data } => {
            let of_event = event_id.to_le_bytes();
            assert_eq!((cpu, time), (CPU, u64::from(NS_BETWEEN) * u64::from(event_id)));
            assert!(data.len() == EVENT_BYTES && data.chunks(2).all(|bytes| bytes == of_event), "record {event_id}");
            numbers.push(event_id);
        }
        RingItem::Wrapped { .. } => {}
        other => panic!("{other:?}"),
    });
    numbers
}

/// Copies the ring; returns the numbers of its records, which have no hole and reach to the last one that was committed
/// before, unless the kernel has been round meanwhile.
fn copied(layout: &RingLayout, racing: &Racing<'_>) -> Vec<u16> {
    let committed = racing.committed();
    let size = racing.memory.borrow().len();

    let rings = copy_running(racing, size, layout, 1);

    let numbers = numbers(&rings);
    assert_eq!(rings.problem, None);
    assert!(numbers.is_sorted_by(|one, next| next - one == 1), "{numbers:?}");
    let has_been_round = usize::from(racing.committed() - committed) >= RECORDS_PER_PAGE;
    assert!(has_been_round || numbers.last().copied().unwrap_or(0) >= committed, "{numbers:?} of {committed}");
    numbers
}

#[test]
fn ring_that_rests_is_copied_as_that_of_a_stopped_guest() {
    for layout in [LINUX_6_12, LINUX_6_14] {
        let stores = stores(&layout, 20);
        for done in 0..=stores.len() {
            let racing = Racing::new(&layout, &stores, done, &|_| 0);
            let stopped = Rings::of_stopped(racing.memory.borrow().clone(), &layout, 1);

            assert_eq!(copied(&layout, &racing), numbers(&stopped));
        }
    }
}

#[test]
fn records_have_no_hole_wherever_the_kernel_goes_on_writing() {
    for layout in [LINUX_6_12, LINUX_6_14] {
        let stores = stores(&layout, 40);
        for (done, at, count) in (20..60).flat_map(|done| (0..40).map(move |at| (done, at, (done * at) % 70 + 1))) {
            copied(&layout, &Racing::new(&layout, &stores, done, &|read| count * usize::from(read == at)));
        }
    }
}

#[test]
fn records_have_no_hole_where_the_kernel_pauses_once_while_it_goes_on_writing() {
    let stores = stores(&LINUX_6_12, 60);
    let pauses =
        (0..40_usize).flat_map(|at| (at + 1..40).flat_map(move |next| (0..24).map(move |count| (at, next, count))));
    for (at, next, count) in pauses {
        let before = |read| count * usize::from(read == at) + 14 * usize::from(read == next);
        copied(&LINUX_6_12, &Racing::new(&LINUX_6_12, &stores, 53, &before));
    }
}

#[test]
fn records_have_no_hole_however_fast_the_kernel_writes() {
    let stores = stores(&LINUX_6_14, 400);
    for (done, speed) in (0..60).flat_map(|done| (1..40).map(move |speed| (done, speed))) {
        copied(&LINUX_6_14, &Racing::new(&LINUX_6_14, &stores, done, &|_| speed));
    }
}

#[test]
fn page_that_is_used_again_meanwhile_is_left_out() {
    let stores = stores(&LINUX_6_12, 20);
    let full = stores.iter().position(|store| store.committed == 9).unwrap() + 1;
    let racing = Racing::new(&LINUX_6_12, &stores, full, &|read| 8 * usize::from(read == 20));

    let numbers = copied(&LINUX_6_12, &racing);

    // The tenth lies where the first three were.
    assert_eq!((racing.committed(), numbers), (10, vec![4, 5, 6, 7, 8, 9]));
}

#[test]
fn page_that_is_written_meanwhile_has_what_was_committed_at_first() {
    let stores = stores(&LINUX_6_12, 20);
    let begun = stores.iter().position(|store| store.committed == 4).unwrap() + 1;
    let racing = Racing::new(&LINUX_6_12, &stores, begun, &|read| 100 * usize::from(read == 20));

    let numbers = copied(&LINUX_6_12, &racing);

    // All that comes later is younger, or in a page that was used again.
    assert!(racing.committed() > 12 && numbers.iter().all(|number| *number <= 4), "{numbers:?}");
}

/// Memory with something else from the second look on.
struct Changing {
    first: Vec<u8>,
    second: Vec<u8>,
    reads: Cell<usize>,
    change: usize,
}

impl Changing {
    fn now(&self) -> &[u8] {
        let is_second = self.reads.replace(self.reads.get() + 1) >= self.change;
        [&self.first, &self.second][usize::from(is_second)]
    }
}

impl RingSource for Changing {
    fn load(&self, at: usize) -> Option<u64> {
        self.now().get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }

    fn copy(&self, at: usize, bytes: &mut [u8]) -> Option<()> {
        bytes.copy_from_slice(self.now().get(at..at + bytes.len())?);
        Some(())
    }
}

#[test]
fn header_that_says_something_else_the_second_time_is_damaged_or_leaves_nothing_out_of_bounds() {
    let layout = LINUX_6_12;
    let first = memory(&layout, &ORDER, 1, 1);
    for (at, value) in (0..64).step_by(4).flat_map(|at| [0, 3, 5, u32::MAX].map(|value| (at, value))) {
        for change in 0..40 {
            let mut second = first.clone();
            second[at..at + 4].copy_from_slice(&value.to_le_bytes());
            let source = Changing { first: first.clone(), second, reads: Cell::new(0), change };

            let rings = copy_running(&source, first.len(), &layout, 1);

            assert_eq!(rings.memory.len(), first.len());
            let pages = rings.of_cpus.iter().flat_map(|ring| &ring.pages);
            assert!(pages.map(|page| page.end).all(|end| end <= first.len()));
        }
    }
}

#[test]
fn ring_that_has_other_pages_the_second_time_is_damaged() {
    let layout = LINUX_6_12;
    let first = memory(&layout, &ORDER, 1, 1);
    let second = memory(&layout, &[0, 2, 1, 1], 1, 1);
    let source = Changing { first, second, reads: Cell::new(0), change: 11 };

    let rings = copy_running(&source, source.first.len(), &layout, 1);

    assert_eq!((rings.of_cpus.len(), rings.problem), (0, Some(RingError::Damaged { cpu: 0 })));
}

#[test]
fn ring_of_a_cpu_that_never_came_online_is_empty() {
    let layout = LINUX_6_14;
    let mut offline = memory(&layout, &ORDER, 1, 1);
    let part = first_part(&offline, &layout).unwrap();
    offline[part + layout.head..part + layout.commit + 8].fill(0);
    let source = Changing { first: offline, second: Vec::new(), reads: Cell::new(0), change: usize::MAX };

    let rings = copy_running(&source, source.first.len(), &layout, 1);

    assert_eq!((rings.of_cpus[0].pages.len(), rings.of_cpus[0].has_wrapped, rings.problem), (0, false, None));
}

#[test]
fn memory_that_no_kernel_used_has_no_ring() {
    let empty = |size| Changing { first: vec![0; size], second: Vec::new(), reads: Cell::new(0), change: 99 };

    let found = [0, 8, 8192].map(|size| copy_running(&empty(size), size, &LINUX_6_14, 1).problem);

    assert_eq!(found, [Some(RingError::None); 3]);
}
