//! Puts the records of two tracing instances into one order for each CPU.
//!
//! One instance has the events of the machine's threads, the other one the context switches of the whole host. Both
//! are read in turn, so that what comes is held until nothing earlier can come from the other one: as the pages that it
//! came in, from which records are handed on without being copied. Of the context switches only those that matter are
//! handed on, with the few before them: see [`super::filter`].

use crate::item::{HostItem, HostRecord};
use crate::page::Page;
use crate::page::cursor::{PageCursor, PageItem};
use crate::reader::{BYTES_PER_POLL, Sink};
use crate::stats::ReaderStats;
use std::collections::{BTreeMap, VecDeque};

/// Most switches of a CPU that are held back because they may turn out to matter. A thread that waits behind more of
/// them than this misses the first ones.
const MAX_HELD_BACK: usize = 256;

/// Which of the instances an item comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The one with the events of the machine's threads.
    Machine,
    /// The one with the context switches of the host.
    Switches,
}

/// Counts of what was not handed on as it came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterleaveStats {
    /// Context switches that do not concern the machine.
    pub unrelated: u64,
}

/// Holds pages until the turn of what is in them.
#[derive(Debug, Default)]
pub struct Interleaver {
    cpus: BTreeMap<u32, Cpu>,
    stats: InterleaveStats,
}

#[derive(Debug, Default)]
struct Cpu {
    machine: Queue,
    switches: Queue,
    held_back: VecDeque<HeldBack>,
    /// Time of the record handed on last.
    last_time: u64,
}

/// Pages of one instance in their order, and the place that was reached in the first one.
#[derive(Debug, Default)]
struct Queue {
    pages: VecDeque<Vec<u8>>,
    /// Place in the first page, where something comes next that is known; `None` when all pages are done.
    cursor: Option<PageCursor>,
    /// Time of the last record before that place.
    last_time: u64,
    loss: Loss,
    read: ReaderStats,
    /// Memory of pages that are done, for those to come.
    spare: Vec<Vec<u8>>,
}

/// What came behind a queue's last loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Loss {
    /// The queue's next record, or there was no loss.
    #[default]
    Over,
    /// Nothing so far.
    Told,
    /// Records of the other queue, which lie in a gap.
    Open,
}

/// A switch that does not matter yet.
#[derive(Debug, Default)]
struct HeldBack {
    time: u64,
    event_id: u16,
    common_pid: i32,
    payload: Vec<u8>,
}

impl Interleaver {
    /// Takes `page`, and leaves memory for another one; those of one instance and CPU come in order. `read_up_to` is the
    /// time up to which that buffer was read, and is raised to the beginning of this page: what comes behind it is not
    /// older.
    pub fn push(&mut self, origin: Origin, cpu: u32, read_up_to: &mut u64, page: &mut Vec<u8>) {
        let begin = Page::parse(page).map_or(0, |page| page.time());
        *read_up_to = begin.max(*read_up_to);
        let cpu = self.cpus.entry(cpu).or_default();
        cpu.queue(origin).push(page);
    }

    /// Hands on the items of `cpu` whose time is `until` or earlier. `matters` says which switches do.
    pub fn release(
        &mut self,
        cpu: u32,
        until: u64,
        matters: &mut impl FnMut(HostRecord<'_>) -> bool,
        sink: &mut impl for<'a> Sink<HostItem<'a>>,
    ) {
        let Some(held) = self.cpus.get_mut(&cpu) else { return };
        while let Some((origin, last)) = held.run(until) {
            held.bound_gap(origin, cpu, sink);
            let Cpu { machine, switches, held_back, last_time } = held;
            let unrelated = &mut self.stats.unrelated;
            match origin {
                Origin::Machine => {
                    let sink = &mut BehindHeldBack { held_back, unrelated, sink: &mut *sink };
                    machine.take_until(last, cpu, last_time, sink);
                }
                Origin::Switches => {
                    let sink = &mut Related { matters: &mut *matters, held_back, unrelated, sink: &mut *sink };
                    switches.take_until(last, cpu, last_time, sink);
                }
            }
        }
    }

    /// Counts so far.
    pub fn stats(&self) -> InterleaveStats {
        let held_back: usize = self.cpus.values().map(|cpu| cpu.held_back.len()).sum();
        InterleaveStats { unrelated: self.stats.unrelated + held_back as u64 }
    }

    /// What was found in the pages so far.
    pub fn read_stats(&self) -> ReaderStats {
        let queues = self.cpus.values().flat_map(|cpu| [&cpu.machine, &cpu.switches]);
        queues.fold(ReaderStats::default(), |sum, queue| sum + queue.read)
    }
}

impl Cpu {
    fn queue(&mut self, origin: Origin) -> &mut Queue {
        match origin {
            Origin::Machine => &mut self.machine,
            Origin::Switches => &mut self.switches,
        }
    }

    /// Which queue's next item is the earlier one, if its time is `until` or earlier, and the time up to which its items
    /// come before the other's.
    #[inline]
    fn run(&self, until: u64) -> Option<(Origin, u64)> {
        let (machine, switches) = (self.machine.next_time(), self.switches.next_time());
        let (origin, time, last) = match (machine, switches) {
            // Before anything of the machine's with the same time, there is something earlier.
            (Some(machine), Some(switch)) if switch < machine => (Origin::Switches, switch, machine - 1),
            (Some(machine), switch) => (Origin::Machine, machine, switch.unwrap_or(u64::MAX)),
            (None, switch) => (Origin::Switches, switch?, u64::MAX),
        };
        (time <= until).then_some((origin, last.min(until)))
    }

    /// Says where a gap begins or ends before what `origin` has next: a loss lasts from its queue's record before it to
    /// the one behind it, also where records of the other queue lie between the two.
    #[inline]
    fn bound_gap(&mut self, origin: Origin, cpu: u32, sink: &mut impl for<'a> Sink<HostItem<'a>>) {
        let Self { machine, switches, held_back, .. } = self;
        let (own, other) = match origin {
            Origin::Machine => (machine, switches),
            Origin::Switches => (switches, machine),
        };
        let changes_nothing = own.loss == Loss::Over && other.loss != Loss::Told;
        if changes_nothing || own.is_at_loss() {
            return;
        }
        let was_open = [own.loss, other.loss].contains(&Loss::Open);
        own.loss = Loss::Over;
        if other.loss == Loss::Told {
            other.loss = Loss::Open;
        }
        let begins = other.loss == Loss::Open;
        if begins != was_open {
            // They lie in the gap that ends; before one that begins there are none.
            hand_on_held_back(held_back, cpu, sink);
            sink.take(HostItem::Gap { cpu, begins });
        }
    }
}

/// Takes items of the machine: before the first record, the switches that were held back matter after all.
struct BehindHeldBack<'h, S> {
    held_back: &'h mut VecDeque<HeldBack>,
    unrelated: &'h mut u64,
    sink: &'h mut S,
}

impl<'i, S: for<'a> Sink<HostItem<'a>>> Sink<HostItem<'i>> for BehindHeldBack<'_, S> {
    #[inline(always)]
    fn take(&mut self, item: HostItem<'i>) {
        match item {
            HostItem::Record(record) => hand_on_held_back(self.held_back, record.cpu, self.sink),
            HostItem::Lost { .. } => drop_held_back(self.held_back, self.unrelated),
            HostItem::Gap { .. } => {}
        }
        self.sink.take(item);
    }

    #[inline(always)]
    fn take_all(&mut self, items: &mut impl Iterator<Item = HostItem<'i>>) {
        while !self.held_back.is_empty() {
            let Some(item) = items.next() else { return };
            self.take(item);
        }
        self.sink.take_all(items);
    }
}

/// Takes switches, and holds back those that do not matter yet.
struct Related<'h, M, S> {
    matters: &'h mut M,
    held_back: &'h mut VecDeque<HeldBack>,
    unrelated: &'h mut u64,
    sink: &'h mut S,
}

impl<'i, M, S> Sink<HostItem<'i>> for Related<'_, M, S>
where
    M: FnMut(HostRecord<'_>) -> bool,
    S: for<'a> Sink<HostItem<'a>>,
{
    #[inline(always)]
    fn take(&mut self, item: HostItem<'i>) {
        match item {
            HostItem::Record(record) if !(self.matters)(record) => {
                let is_full = self.held_back.len() == MAX_HELD_BACK;
                *self.unrelated += u64::from(is_full);
                let oldest = if is_full { self.held_back.pop_front() } else { None };
                self.held_back.push_back(HeldBack::new(&record, oldest));
            }
            HostItem::Record(record) => {
                hand_on_held_back(self.held_back, record.cpu, self.sink);
                self.sink.take(item);
            }
            HostItem::Lost { .. } => {
                drop_held_back(self.held_back, self.unrelated);
                self.sink.take(item);
            }
            HostItem::Gap { .. } => self.sink.take(item),
        }
    }
}

/// Hands on the switches of `cpu` that were held back.
#[inline(never)]
fn hand_on_held_back(held_back: &mut VecDeque<HeldBack>, cpu: u32, sink: &mut impl for<'a> Sink<HostItem<'a>>) {
    for HeldBack { time, event_id, common_pid, payload } in held_back.drain(..) {
        sink.take(HostItem::Record(HostRecord { cpu, time, event_id, common_pid, payload: &payload }));
    }
}

/// Drops the switches that were held back before a loss: behind it they would close its gap.
#[cold]
fn drop_held_back(held_back: &mut VecDeque<HeldBack>, unrelated: &mut u64) {
    *unrelated += held_back.len() as u64;
    held_back.clear();
}

impl HeldBack {
    /// A copy of `record`, in the memory of one that is no longer held back.
    fn new(record: &HostRecord<'_>, spare: Option<Self>) -> Self {
        let &HostRecord { time, event_id, common_pid, payload, .. } = record;
        let mut kept = Self { time, event_id, common_pid, ..spare.unwrap_or_default() };
        kept.payload.clear();
        kept.payload.extend_from_slice(payload);
        kept
    }
}

impl Queue {
    fn push(&mut self, page: &mut Vec<u8>) {
        let spare = self.spare.pop().unwrap_or_default();
        self.pages.push_back(std::mem::replace(page, spare));
        if self.cursor.is_none() {
            self.begin_page();
        }
    }

    /// Time of what comes next. A loss has that of the record before it.
    #[inline]
    fn next_time(&self) -> Option<u64> {
        match self.cursor.as_ref()?.head()? {
            PageItem::Record { time, .. } => Some(*time),
            PageItem::Lost { .. } => Some(self.last_time),
        }
    }

    /// Whether a loss comes next.
    #[inline]
    fn is_at_loss(&self) -> bool {
        matches!(self.cursor.as_ref().and_then(PageCursor::head), Some(PageItem::Lost { .. }))
    }

    /// Hands on the items of `cpu` that come next and whose time is `last` or earlier, up to the first loss.
    /// `handed_on` is the time of the record before them, from whatever queue: none gets an earlier one.
    #[inline(always)]
    fn take_until(&mut self, last: u64, cpu: u32, handed_on: &mut u64, sink: &mut impl for<'a> Sink<HostItem<'a>>) {
        while self.next_time().is_some_and(|time| time <= last) {
            let is_at_loss = self.is_at_loss();
            let (Some(page), Some(cursor)) = (self.pages.front(), &self.cursor) else { return };
            let mut items = cursor.items(page, cpu, (self.last_time.max(*handed_on), last), &mut self.read);
            if is_at_loss {
                if let Some(loss) = items.next() {
                    sink.take(loss);
                }
            } else {
                sink.take_all(&mut items);
            }
            let (mut cursor, last_time) = items.end();
            (self.last_time, *handed_on) = (last_time, last_time);
            if is_at_loss {
                cursor.look(page, last_time, &mut self.read);
            }
            let is_done = cursor.head().is_none();
            self.cursor = Some(cursor);
            if is_done {
                self.end_page();
                self.begin_page();
            }
            if is_at_loss {
                self.loss = if self.loss == Loss::Open { Loss::Open } else { Loss::Told };
                return;
            }
        }
    }

    /// Begins the first page with something in it; those before it are done.
    fn begin_page(&mut self) {
        while let Some(page) = self.pages.front() {
            let mut cursor = PageCursor::begin(page, &mut self.read);
            cursor.look(page, self.last_time, &mut self.read);
            if cursor.head().is_some() {
                self.cursor = Some(cursor);
                return;
            }
            self.end_page();
        }
    }

    /// Takes away the first page. Memory of the pages of one poll is kept for those to come.
    fn end_page(&mut self) {
        self.cursor = None;
        let done = self.pages.pop_front();
        self.spare.extend(done.filter(|done| (self.spare.len() + 1) * done.capacity() <= BYTES_PER_POLL));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::hand_on;
    use proptest::prelude::*;

    /// A page whose beginning is the time of its only record, of this text behind what all records have; and of a loss
    /// of so many records before it.
    fn page(time: u64, lost: Option<u64>, text: &[u8]) -> Vec<u8> {
        let mut payload = vec![1, 0, 0, 0, 2, 0, 0, 0];
        payload.extend(text);
        payload.resize(payload.len().next_multiple_of(4), 0);
        let mut page = time.to_le_bytes().to_vec();
        let flags = if lost.is_some() { 3 << 30 } else { 0 };
        page.extend(((payload.len() as u64 + 4) | flags).to_le_bytes());
        page.extend((u32::try_from(payload.len()).unwrap() / 4).to_le_bytes());
        page.extend(payload);
        page.extend(lost.unwrap_or_default().to_le_bytes());
        page
    }

    fn push(interleaver: &mut Interleaver, origin: Origin, time: u64, text: &[u8]) {
        interleaver.push(origin, 0, &mut 0, &mut page(time, None, text));
    }

    fn matters(record: HostRecord<'_>) -> bool {
        record.payload.len() > 8
    }

    /// What comes out up to `until`: the times, or `None` for a loss. Switches matter whose payload is not empty.
    fn released(interleaver: &mut Interleaver, until: u64) -> Vec<Option<u64>> {
        let mut times = Vec::new();
        interleaver.release(0, until, &mut matters, &mut |item: HostItem<'_>| match item {
            HostItem::Record(record) => times.push(Some(record.time)),
            HostItem::Lost { .. } => times.push(None),
            HostItem::Gap { .. } => {}
        });
        times
    }

    /// The same, with the gaps, in words.
    fn released_with_gaps(interleaver: &mut Interleaver, until: u64) -> Vec<String> {
        let mut words = Vec::new();
        interleaver.release(0, until, &mut matters, &mut |item: HostItem<'_>| {
            words.push(match item {
                HostItem::Record(record) => record.time.to_string(),
                HostItem::Lost { .. } => "lost".into(),
                HostItem::Gap { begins: true, .. } => "gap".into(),
                HostItem::Gap { begins: false, .. } => "end".into(),
            });
        });
        words
    }

    #[test]
    fn records_of_both_sources_come_out_in_order_up_to_the_time_given() {
        let mut interleaver = Interleaver::default();
        [1, 4, 9].into_iter().for_each(|time| push(&mut interleaver, Origin::Machine, time, b"m"));
        [2, 3, 8].into_iter().for_each(|time| push(&mut interleaver, Origin::Switches, time, b"s"));

        assert_eq!(released(&mut interleaver, 8), [1, 2, 3, 4, 8].map(Some));
        assert_eq!(released(&mut interleaver, 9), [Some(9)]);
    }

    #[test]
    fn payloads_stay_with_their_records() {
        let mut interleaver = Interleaver::default();
        push(&mut interleaver, Origin::Machine, 1, b"one1");
        push(&mut interleaver, Origin::Switches, 2, b"two2");
        push(&mut interleaver, Origin::Machine, 3, b"three333");
        let mut payloads = Vec::new();
        let mut sink = |item: HostItem<'_>| {
            let HostItem::Record(record) = item else { panic!("{item:?}") };
            payloads.push(record.payload[8..].to_vec());
        };

        interleaver.release(0, 2, &mut |_| true, &mut sink);
        push(&mut interleaver, Origin::Machine, 4, b"four");
        interleaver.release(0, 4, &mut |_| true, &mut sink);

        assert_eq!(payloads, [&b"one1"[..], b"two2", b"three333", b"four"]);
    }

    #[test]
    fn switches_that_do_not_matter_come_out_before_the_one_that_does() {
        let mut interleaver = Interleaver::default();
        [1, 2].into_iter().for_each(|time| push(&mut interleaver, Origin::Switches, time, b""));

        assert_eq!(released(&mut interleaver, 5), []);
        assert_eq!(interleaver.stats().unrelated, 2);
        push(&mut interleaver, Origin::Switches, 6, b"s");

        assert_eq!(released(&mut interleaver, 6), [1, 2, 6].map(Some));
        assert_eq!(interleaver.stats(), InterleaveStats::default());
    }

    #[test]
    fn switches_that_do_not_matter_are_dropped_beyond_the_limit() {
        let mut interleaver = Interleaver::default();
        let count = MAX_HELD_BACK as u64 + 10;
        (0..count).for_each(|time| push(&mut interleaver, Origin::Switches, time, b""));
        push(&mut interleaver, Origin::Machine, count, b"m");

        let times = released(&mut interleaver, count);

        assert_eq!(times, (10..=count).map(Some).collect::<Vec<_>>());
        assert_eq!(interleaver.stats().unrelated, 10);
    }

    #[test]
    fn record_that_comes_too_late_gets_the_time_of_the_one_before_it() {
        let mut interleaver = Interleaver::default();
        push(&mut interleaver, Origin::Machine, 10, b"m");
        released(&mut interleaver, 10);
        push(&mut interleaver, Origin::Switches, 9, b"s");

        assert_eq!(released(&mut interleaver, 10), [Some(10)]);
        assert_eq!(interleaver.read_stats().times_raised, 1);
    }

    #[test]
    fn loss_keeps_its_place_among_the_records_of_its_instance() {
        let mut interleaver = Interleaver::default();
        push(&mut interleaver, Origin::Machine, 1, b"m");
        interleaver.push(Origin::Machine, 0, &mut 0, &mut page(5, Some(3), b"m"));
        push(&mut interleaver, Origin::Switches, 2, b"s");

        assert_eq!(released(&mut interleaver, 9), [Some(1), None, Some(2), Some(5)]);
    }

    #[test]
    fn loss_lasts_up_to_the_next_record_of_its_own_instance() {
        let mut interleaver = Interleaver::default();
        push(&mut interleaver, Origin::Machine, 1, b"m");
        interleaver.push(Origin::Machine, 0, &mut 0, &mut page(5, Some(3), b"m"));
        push(&mut interleaver, Origin::Switches, 2, b"s");
        push(&mut interleaver, Origin::Switches, 3, b"");

        assert_eq!(released_with_gaps(&mut interleaver, 9), ["1", "lost", "gap", "2", "3", "end", "5"]);
    }

    #[test]
    fn gap_of_both_instances_ends_when_the_second_loss_is_over() {
        let mut interleaver = Interleaver::default();
        interleaver.push(Origin::Machine, 0, &mut 0, &mut page(9, Some(3), b"m"));
        push(&mut interleaver, Origin::Switches, 2, b"s");
        interleaver.push(Origin::Switches, 0, &mut 0, &mut page(5, Some(3), b"s"));

        let expected = ["lost", "gap", "2", "lost", "5", "end", "9"];
        assert_eq!(released_with_gaps(&mut interleaver, 9), expected);
    }

    #[test]
    fn loss_before_the_next_record_of_its_own_instance_is_no_gap_of_others() {
        let mut interleaver = Interleaver::default();
        push(&mut interleaver, Origin::Switches, 2, b"s");
        interleaver.push(Origin::Machine, 0, &mut 0, &mut page(1, Some(3), b"m"));

        assert_eq!(released_with_gaps(&mut interleaver, 9), ["lost", "1", "2"]);
    }

    #[test]
    fn switches_held_back_before_a_loss_do_not_come_out_behind_it() {
        for origin in [Origin::Switches, Origin::Machine] {
            let mut interleaver = Interleaver::default();
            [1, 2].into_iter().for_each(|time| push(&mut interleaver, Origin::Switches, time, b""));
            released(&mut interleaver, 2);
            interleaver.push(origin, 0, &mut 0, &mut page(50, Some(1000), b"s"));

            assert_eq!(released(&mut interleaver, 50), [None, Some(50)]);
            assert_eq!(interleaver.stats().unrelated, 2);
        }
    }

    /// Bytes of a page: records of any kind and time, some damaged.
    fn any_page() -> impl Strategy<Value = Vec<u8>> {
        let record = (0..1000_u32, 0..200_u8, any::<bool>());
        let damage = proptest::option::weighted(0.2, (any::<prop::sample::Index>(), any::<u8>()));
        (proptest::collection::vec(record, 0..30), 0..20_000_u64, 0..4_u64, damage).prop_map(
            |(records, time, flags, damage)| {
                let mut data = Vec::new();
                for (delta, kind, is_long) in records {
                    match kind {
                        0..10 => data.extend([30 | (delta << 5), delta % 2].iter().flat_map(|word| word.to_le_bytes())),
                        10..15 => data.extend([31 | (delta << 5), 0].iter().flat_map(|word| word.to_le_bytes())),
                        15..20 => data.extend([29 | ((delta + 1) << 5), 4].iter().flat_map(|word| word.to_le_bytes())),
                        _ => {
                            let words = if is_long { 3 } else { 2 };
                            data.extend((words | (delta << 5)).to_le_bytes());
                            data.extend([kind, 0, 0, 0, kind, 0, 0, 0]);
                            data.extend([kind; 4].iter().take(if is_long { 4 } else { 0 }));
                        }
                    }
                }
                let mut page = time.to_le_bytes().to_vec();
                page.extend((data.len() as u64 | flags << 30).to_le_bytes());
                page.extend(data);
                page.extend(7_u64.to_le_bytes());
                if let Some((at, byte)) = damage {
                    let at = at.index(page.len());
                    page[at] = byte;
                }
                page
            },
        )
    }

    /// An item that is nobody's.
    #[derive(Clone, Debug, PartialEq, Eq)]
    enum Owned {
        Record(u64, u16, i32, Vec<u8>),
        Lost(Option<u64>),
    }

    /// `None` for what no page says.
    fn owned(item: HostItem<'_>) -> Option<Owned> {
        match item {
            HostItem::Record(HostRecord { time, event_id, common_pid, payload, .. }) => {
                Some(Owned::Record(time, event_id, common_pid, payload.to_vec()))
            }
            HostItem::Lost { count, .. } => Some(Owned::Lost(count)),
            HostItem::Gap { .. } => None,
        }
    }

    /// The items of `pages`, read one after the other, each with its place in time.
    fn read_at_once(pages: &[Vec<u8>], stats: &mut ReaderStats) -> Vec<(u64, Owned)> {
        let (mut items, mut time, mut last_time) = (Vec::new(), 0, 0);
        for page in pages {
            hand_on(page, 0, &mut last_time, stats, &mut |item: HostItem<'_>| {
                if let HostItem::Record(record) = item {
                    time = record.time;
                }
                items.extend(owned(item).map(|owned| (time, owned)));
            });
        }
        items
    }

    proptest! {
        #[test]
        fn pages_that_wait_say_what_they_say_when_read_at_once(
            pages in proptest::collection::vec((any::<bool>(), any_page(), proptest::option::of(0..30_000_u64)), 0..8),
        ) {
            let of = |wanted: bool| pages.iter().filter(move |page| page.0 == wanted).map(|page| page.1.clone());
            let mut expected_stats = ReaderStats::default();
            let machine = read_at_once(&of(true).collect::<Vec<_>>(), &mut expected_stats);
            let switches = read_at_once(&of(false).collect::<Vec<_>>(), &mut expected_stats);
            let (mut interleaver, mut items) = (Interleaver::default(), Vec::new());

            // All that is there is handed on at the end only, in one order.
            for (is_machines, page, _) in &pages {
                let origin = if *is_machines { Origin::Machine } else { Origin::Switches };
                interleaver.push(origin, 0, &mut 0, &mut page.clone());
            }
            for until in pages.iter().filter_map(|page| page.2).chain([u64::MAX]) {
                interleaver.release(0, until, &mut |_| true, &mut |item: HostItem<'_>| items.extend(owned(item)));
            }

            let mut expected: Vec<(u64, Owned)> = machine.into_iter().chain(switches).collect();
            // Stable: at the same time, those of the machine come first.
            expected.sort_by_key(|(time, _)| *time);
            let expected: Vec<Owned> = expected.into_iter().map(|(_, item)| item).collect();
            prop_assert_eq!(items, expected);
            prop_assert_eq!(interleaver.read_stats(), expected_stats);
        }
    }
}
