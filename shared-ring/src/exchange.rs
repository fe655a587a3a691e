//! Flight-recorder mode: which physical sub-buffer stands behind each logical one, and who may touch it.
//!
//! A ring of *n* logical sub-buffers has *n* + 1 physical ones. The one that the sub-buffer table does not name is the
//! consumer's: it gets a sub-buffer to read by exchanging it for its spare, in one compare-and-swap of the table entry's
//! *exchange word*, so that it never reads what the writer may touch (the paper's section 4.3.2, as in LTTng's ring
//! buffer library).
//!
//! | bits | what |
//! |---|---|
//! | 0–15 | number of the physical sub-buffer, exclusive-or the number of the logical one: zeroed memory is a valid table, whose spare is number *n* |
//! | 16 | writer reference: set from the first touch of a lap until all of the lap is committed |
//! | 17 | taken: the consumer has the data that the lap tag speaks of, and its spare is here |
//! | 18–63 | lap tag: 1 + the last lap of the ring that was committed completely here; 0 for none |
//!
//! The writer sets the reference before it touches the sub-buffer ([`hold`]); every writer looks. Whoever commits the
//! last byte replaces the reference by the lap tag ([`complete`]): it is alone then, since the consumer cannot exchange
//! what is referenced, and other writers cannot enter before `commit_seq` is published, which comes after. The consumer
//! exchanges only what is not referenced and bears the lap that it wants ([`take`]), and then undoes the exchange, unless
//! the writer has entered meanwhile ([`give_back`]).
#![allow(unsafe_code)] // The storage's methods are unsafe; offsets come from the geometry only.

use crate::layout::{ENTRY_EXCHANGE, Geometry};
use crate::storage::{ATTEMPTS, Storage};

const PHYSICAL: u64 = 0xffff;
const REFERENCE: u64 = 1 << 16;
const TAKEN: u64 = 1 << 17;
const TAG_SHIFT: u32 = 18;

/// An exchange word, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeWord(u64);

impl ExchangeWord {
    /// The word as it lies in memory; every word is one.
    #[must_use]
    #[inline(always)]
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// The word that says: logical sub-buffer `index` is `physical`, not referenced, with all of `tag` - 1 in it.
    #[must_use]
    #[inline(always)]
    pub const fn completed(index: usize, physical: usize, tag: u64) -> Self {
        Self((physical ^ index) as u64 & PHYSICAL | tag << TAG_SHIFT)
    }

    /// The word as it lies in memory.
    #[must_use]
    #[inline(always)]
    pub const fn to_word(self) -> u64 {
        self.0
    }

    /// Number of the physical sub-buffer behind logical sub-buffer `index`; may be out of range in a damaged ring.
    #[must_use]
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "16 bits")]
    pub const fn physical(self, index: usize) -> usize {
        (self.0 & PHYSICAL) as usize ^ index
    }

    /// Whether the writer uses the sub-buffer.
    #[must_use]
    #[inline(always)]
    pub const fn is_referenced(self) -> bool {
        self.0 & REFERENCE != 0
    }

    /// Whether the consumer has the data that the lap tag speaks of.
    #[must_use]
    #[inline(always)]
    pub const fn is_taken(self) -> bool {
        self.0 & TAKEN != 0
    }

    /// 1 + the last lap that was committed completely; 0 for none.
    #[must_use]
    #[inline(always)]
    pub const fn tag(self) -> u64 {
        self.0 >> TAG_SHIFT
    }

    /// The word with the writer's reference.
    #[must_use]
    #[inline(always)]
    pub const fn referenced(self) -> Self {
        Self(self.0 | REFERENCE)
    }

    /// The word of a sub-buffer whose data the consumer has taken, with the spare `physical` in its place.
    #[must_use]
    #[inline(always)]
    pub const fn taken(self, index: usize, physical: usize) -> Self {
        Self((physical ^ index) as u64 & PHYSICAL | TAKEN | self.tag() << TAG_SHIFT)
    }
}

/// The lap tag of a sub-buffer in which all of the lap of free-running offset `count` is committed.
#[must_use]
#[inline(always)]
pub const fn tag_of(geometry: Geometry, count: u64) -> u64 {
    (geometry.lap(count) + 1) & (u64::MAX >> TAG_SHIFT)
}

/// Offset in the ring of the physical sub-buffer that `word` puts behind `index`, kept inside the ring whatever `word`
/// says.
#[inline(always)]
fn offset_of(geometry: Geometry, index: usize, word: ExchangeWord) -> usize {
    let physical = word.physical(index);
    let spare = geometry.sub_buffers() as usize;
    geometry.physical_offset(if physical > spare { spare } else { physical })
}

/// Writer: offset in the ring of the physical sub-buffer that is behind `index` just now. Only [`hold`] keeps it there.
///
/// # Safety
/// `storage` covers a flight-recorder ring of `geometry`; `index` is one of its sub-buffers.
#[inline(always)]
pub unsafe fn peek<S: Storage>(storage: &S, geometry: Geometry, index: usize) -> usize {
    // SAFETY: a word of the sub-buffer table, inside the ring (contract).
    let word = ExchangeWord::from_word(unsafe { storage.load(geometry.exchange_offset(index)) });
    offset_of(geometry, index, word)
}

/// Writer: offset, in bytes from the first, of the physical sub-buffer behind the logical one of free-running offset
/// `count`; `None` if no writer holds it, or the word makes no sense.
///
/// # Safety
/// `storage` covers a flight-recorder ring of `geometry`.
#[inline(always)]
pub unsafe fn peek_held<S: Storage>(storage: &S, geometry: Geometry, count: u64) -> Option<u64> {
    // SAFETY: a word of the sub-buffer table, inside the ring (contract).
    let word = unsafe { storage.load(geometry.table_offset(count) + ENTRY_EXCHANGE) };
    // Without the reference it is a number that no ring has: one comparison for both.
    let word = if mutated!(EnterUnheld) { word | REFERENCE } else { word };
    let number = (word ^ REFERENCE) & (REFERENCE | PHYSICAL);
    let start = geometry.at_number(number) ^ geometry.start(count);
    (start <= geometry.data_size()).then_some(start)
}

/// Writer: makes sure that the consumer leaves sub-buffer `index` alone, and returns the physical sub-buffer's offset in
/// the ring. Called with bytes reserved in it, which keep it from being completed, before the first access to it.
///
/// # Safety
/// As for [`peek`].
#[inline(always)]
pub unsafe fn hold<S: Storage>(storage: &S, geometry: Geometry, index: usize) -> usize {
    let offset = geometry.exchange_offset(index);
    for _ in 0..ATTEMPTS {
        // SAFETY: as in `peek`.
        let word = ExchangeWord::from_word(unsafe { storage.load(offset) });
        let referenced = word.referenced().to_word();
        if mutated!(EnterWithoutReference) {
            return offset_of(geometry, index, word);
        }
        // The exchange fails when the consumer or a nested writer was faster.
        // SAFETY: as in `peek`.
        let held =
            unsafe { word.is_referenced() || storage.compare_exchange_shared(offset, word.to_word(), referenced) };
        if held {
            show_hold(storage);
            return offset_of(geometry, index, word);
        }
    }
    // A consumer that changes the word all the time believes nothing that it reads there.
    // SAFETY: passed on from the caller.
    unsafe { peek(storage, geometry, index) }
}

/// Writer: makes a consumer that reads later writes find the reference when it looks at the word again: it copies
/// incomplete sub-buffers in place. Called after the reference was set or seen.
#[inline(always)]
pub fn show_hold<S: Storage>(storage: &S) {
    if !mutated!(EnterWithoutFence) {
        storage.fence_release();
    }
}

/// Writer: all of the lap whose tag is `tag` is committed in `index`; the consumer may have it.
///
/// # Safety
/// As for [`peek`]; called by the context that committed the last byte, before it publishes `commit_seq`, or in its place
/// when it is gone.
#[inline(always)]
pub unsafe fn complete<S: Storage>(storage: &S, geometry: Geometry, index: usize, tag: u64) {
    let offset = geometry.exchange_offset(index);
    // SAFETY: as in `peek`. Nobody else writes the word now: the consumer does not while it is referenced, and other
    // writers wait for `commit_seq`.
    unsafe {
        let word = ExchangeWord::from_word(storage.load(offset));
        if word.tag() == tag {
            // The gone context did this; the consumer may have the word since.
            return;
        }
        storage.store_release(offset, ExchangeWord::completed(index, word.physical(index), tag).to_word());
    }
}

#[cfg(feature = "std")]
pub(crate) use reader::{Take, find_spare, give_back, take};

#[cfg(feature = "std")]
mod reader {
    use super::{ExchangeWord, tag_of};
    use crate::host::memory::RingMemory;
    use crate::layout::Geometry;

    /// What came of the consumer's attempt to take a sub-buffer.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Take {
        /// It has this physical sub-buffer now, and its spare lies in its place.
        Taken(usize),
        /// The lap is not committed completely; the data, so far, is in this physical sub-buffer.
        Unfinished(usize),
        /// The writer has begun the next lap here.
        Overwritten,
        /// The word cannot be what a writer left there.
        Corrupt,
    }

    /// READGETSUBBUF: exchanges the sub-buffer that holds free-running offset `position` for `spare`.
    pub(crate) fn take<M: RingMemory>(memory: &M, geometry: Geometry, position: u64, spare: usize) -> Take {
        let index = geometry.index(position);
        let offset = geometry.exchange_offset(index);
        let wanted = tag_of(geometry, position);
        let word = ExchangeWord::from_word(memory.load(offset));
        let physical = word.physical(index);
        if physical > geometry.sub_buffers() as usize || physical == spare {
            return Take::Corrupt;
        }
        if mutated!(LapTagDropped) && !word.is_referenced() && !word.is_taken() {
            let taken = word.taken(index, spare);
            if memory.compare_exchange(offset, word.to_word(), taken.to_word()) {
                return Take::Taken(physical);
            }
        }
        if word.tag() < wanted {
            return Take::Unfinished(physical);
        }
        if word.tag() > wanted || word.is_referenced() || word.is_taken() {
            return Take::Overwritten;
        }
        // Only a writer that begins the next lap changes such a word, and it changes it for good. There is no second
        // attempt: a guest that changes the word to and fro would keep the host here.
        if memory.compare_exchange(offset, word.to_word(), word.taken(index, spare).to_word()) {
            Take::Taken(physical)
        } else {
            Take::Overwritten
        }
    }

    /// Undoes a [`take`] of `physical` in exchange for `spare`. Returns the spare from now on: `physical` when the writer
    /// has begun the next lap in the old spare meanwhile.
    #[must_use]
    pub(crate) fn give_back<M: RingMemory>(
        memory: &M,
        geometry: Geometry,
        position: u64,
        physical: usize,
        spare: usize,
    ) -> usize {
        let index = geometry.index(position);
        let here = ExchangeWord::completed(index, physical, tag_of(geometry, position));
        let taken = here.taken(index, spare);
        let undone = memory.compare_exchange(geometry.exchange_offset(index), taken.to_word(), here.to_word());
        if undone { spare } else { physical }
    }

    /// The physical sub-buffer that no table entry names. If an earlier consumer died between taking a sub-buffer and
    /// giving it back, it is given back now. `None` when the table is not one.
    #[must_use]
    pub(crate) fn find_spare<M: RingMemory>(memory: &M, geometry: Geometry) -> Option<usize> {
        let count = geometry.sub_buffers() as usize;
        // 257 physical sub-buffers at most.
        let mut named = [0_u64; 5];
        let mut taken = None;
        for index in 0..count {
            let word = ExchangeWord::from_word(memory.load(geometry.exchange_offset(index)));
            let physical = word.physical(index);
            let bit = 1 << (physical % 64);
            if physical > count || named[physical / 64] & bit != 0 {
                return None;
            }
            named[physical / 64] |= bit;
            if word.is_taken() && !word.is_referenced() {
                taken = Some((index, physical, word));
            }
        }
        let spare = (0..=count).find(|&physical| named[physical / 64] >> (physical % 64) & 1 == 0)?;
        let Some((index, physical, word)) = taken else { return Some(spare) };
        let here = ExchangeWord::completed(index, spare, word.tag());
        let undone = memory.compare_exchange(geometry.exchange_offset(index), word.to_word(), here.to_word());
        Some(if undone { physical } else { spare })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consumer::Consumer;
    use crate::event::{EventDescription, FieldDescription, FieldType};
    use crate::host::memory::HostMemory;
    use crate::layout::{Mode, PACKET_HEADER_SIZE};
    use crate::producer::Producer;
    use crate::storage::Smp;
    use std::vec::Vec;

    /// Records of 16 bytes that a sub-buffer of 4096 bytes holds.
    const PER_SUB_BUFFER: u64 = (4096 - PACKET_HEADER_SIZE as u64) / 16;

    fn geometry() -> Geometry {
        Geometry::new(4096, 4).unwrap()
    }

    fn recorder() -> (HostMemory, Producer<Smp>) {
        let memory = HostMemory::private(geometry().ring_size(Mode::FlightRecorder));
        // SAFETY: the memory covers the ring, is zeroed, and outlives the producer (each test keeps it).
        let producer = unsafe { Producer::new(Smp::new(memory.base()), geometry(), Mode::FlightRecorder) };
        (memory, producer)
    }

    fn record(producer: &Producer<Smp>, values: std::ops::Range<u64>) {
        values.for_each(|value| assert!(producer.record(|| 1000 + value, 5, &value.to_le_bytes())));
    }

    /// The values that a new consumer finds.
    fn read_all(memory: &HostMemory) -> Vec<u64> {
        let field = FieldDescription { name: "value".into(), ty: FieldType::U64, hex: false };
        let event = EventDescription { id: 5, class: 0, name: "test:event".into(), fields: vec![field] };
        let mut consumer = Consumer::new(memory.clone(), geometry(), Mode::FlightRecorder, 1);
        let (mut buffer, mut values) = (Vec::new(), Vec::new());
        while let Some(delivered) = consumer.poll_stopped(&mut buffer).ready() {
            let packet = delivered.accept([7; 16], u64::MAX, |_| Some(&event)).unwrap();
            values.extend(packet.records().map(|record| u64::from_le_bytes(record.payload.try_into().unwrap())));
        }
        values
    }

    #[test]
    fn writer_that_enters_during_the_copy_keeps_the_spare() {
        let (memory, producer) = recorder();
        record(&producer, 0..4 * PER_SUB_BUFFER);

        let taken = take(&memory, geometry(), 0, 4);
        record(&producer, 4 * PER_SUB_BUFFER..5 * PER_SUB_BUFFER);
        let spare = give_back(&memory, geometry(), 0, 0, 4);

        assert_eq!((taken, spare), (Take::Taken(0), 0));
        assert_eq!(read_all(&memory), (PER_SUB_BUFFER..5 * PER_SUB_BUFFER).collect::<Vec<_>>());
    }

    #[test]
    fn sub_buffer_in_use_by_the_writer_is_not_exchanged() {
        let (memory, producer) = recorder();
        record(&producer, 0..4 * PER_SUB_BUFFER + 1);

        let last_lap = take(&memory, geometry(), 0, 4);
        let this_lap = take(&memory, geometry(), 4 * 4096, 4);

        assert_eq!((last_lap, this_lap), (Take::Overwritten, Take::Unfinished(0)));
    }

    #[test]
    fn sub_buffer_of_another_lap_is_not_exchanged() {
        let (memory, producer) = recorder();
        record(&producer, 0..5 * PER_SUB_BUFFER);

        assert_eq!(take(&memory, geometry(), 0, 4), Take::Overwritten);
        assert_eq!(take(&memory, geometry(), 8 * 4096, 4), Take::Unfinished(0));
        assert_eq!(take(&memory, geometry(), 4 * 4096, 4), Take::Taken(0));
    }

    #[test]
    fn sub_buffer_that_a_dead_consumer_had_taken_is_found_again() {
        let (memory, producer) = recorder();
        record(&producer, 0..6 * PER_SUB_BUFFER);
        let taken = take(&memory, geometry(), 2 * 4096, 4);

        let values = read_all(&memory);

        assert_eq!(taken, Take::Taken(2));
        assert_eq!(values, (2 * PER_SUB_BUFFER..6 * PER_SUB_BUFFER).collect::<Vec<_>>());
        assert_eq!(find_spare(&memory, geometry()), Some(4));
    }

    #[test]
    fn closed_sub_buffer_without_a_claim_to_be_complete_shows_nothing_of_its_last_lap() {
        let (memory, producer) = recorder();
        record(&producer, 0..4 * PER_SUB_BUFFER + 1);
        producer.force_switch(|| 1000 + 5 * PER_SUB_BUFFER);
        let before = ExchangeWord::completed(0, 0, 1).referenced();
        memory.store(geometry().exchange_offset(0), before.to_word());

        let values = read_all(&memory);

        assert_eq!(values, (PER_SUB_BUFFER..4 * PER_SUB_BUFFER + 1).collect::<Vec<_>>());
    }

    #[test]
    fn table_that_names_a_sub_buffer_twice_is_corrupt() {
        let (memory, producer) = recorder();
        record(&producer, 0..1);
        memory.store(geometry().exchange_offset(1), ExchangeWord::completed(1, 0, 1).to_word());

        let mut consumer = Consumer::new(memory, geometry(), Mode::FlightRecorder, 0);

        assert!(consumer.poll_stopped(&mut Vec::new()).is_corrupt());
    }

    #[test]
    fn table_that_leaves_the_ring_is_corrupt() {
        let (memory, producer) = recorder();
        record(&producer, 0..2 * PER_SUB_BUFFER);
        let mut consumer = Consumer::new(memory.clone(), geometry(), Mode::FlightRecorder, 0);
        memory.store(geometry().exchange_offset(0), ExchangeWord::completed(0, 5, 1).to_word());

        assert!(consumer.poll(&mut Vec::new()).is_corrupt());
    }
}
