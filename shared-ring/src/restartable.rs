//! Recording from user space at the price of the guest's kernel: each record is one restartable sequence.
//!
//! A thread may be moved to another CPU, preempted, or interrupted by a signal handler at any instruction. Linux tells
//! it (*restartable sequences*, `rseq(2)`): the thread names a range of instructions, and when anything of that kind
//! happens inside, it goes on at another place. So a range whose *last* instruction is the one store that counts has an
//! effect whole or not at all, on the CPU that it was meant for, and needs no atomic instruction.
//!
//! Here all of a record is such a sequence. It is put together in the thread's own memory; the sequence copies it
//! behind the ring's position ([`RING_WRITE_COUNT`]), where nobody looks, and its last instruction moves the position.
//! Nothing is ever reserved without being committed:
//!
//! - everything below the position is whole, at any moment, also when the process is killed;
//! - contexts do not nest: a record that a signal handler, or another thread of the CPU, makes in the midst of another
//!   one comes before it, and the other one starts again;
//! - there are no commit counts: the position is what the consumer reads
//!   ([`RING_RESTARTABLE`](crate::layout::RING_RESTARTABLE) tells it so).
//!
//! What has to be found out before (position, time, loss counts) is found out in Rust, between
//! [`begin`](RestartableThread::begin) and the sequence, under a *witness* that the kernel takes away whenever the
//! thread is disturbed: a sequence without its witness does nothing. So nothing that was found out can be out of date.
//!
//! A sub-buffer is opened and closed by sequences of their own, each of them with one store that counts: the position
//! goes from inside the sub-buffer to its end, then behind the next one's packet header, then behind record after
//! record. Whoever is disturbed in between leaves a ring that the next one goes on with.
//!
//! Who may record: any thread whose [`RestartableThread`] works, on rings that each belong to one CPU and to this
//! protocol alone. Signal handlers too. There is no lock and no waiting; a record is given up after [`ATTEMPTS`]
//! attempts, which a debugger that goes by single steps brings about.
#![allow(unsafe_code)] // The storage's methods are unsafe; offsets come from the geometry only.

use crate::layout::{
    EXTENDED_HEADER_SIZE, EXTENDED_ID, Geometry, Mode, PACKET_HEADER_SIZE, PacketHeader, RECORD_HEADER_SIZE,
    RING_FLUSH_DONE, RING_FLUSH_REQUEST, RING_LOST_FULL, RING_LOST_TOO_LARGE, RING_LOST_WRAPPED, RING_READ_COUNT,
    RING_RESTARTABLE, RING_WRITE_COUNT, RecordHeader, padded,
};
use crate::producer::lose_too_large;
use crate::storage::Storage;
use core::mem::offset_of;

/// Attempts at a record, or at opening or closing a sub-buffer for it, before it is given up.
pub const ATTEMPTS: usize = 64;

/// Words in front of a draft's payload: the header word, and an extended header before that is known not to be needed.
const HEADER_WORDS: usize = (RECORD_HEADER_SIZE + EXTENDED_HEADER_SIZE) / 8;

/// Words of a packet header.
const PACKET_WORDS: usize = PACKET_HEADER_SIZE / 8;

/// The calling thread, as far as it can be restarted.
///
/// Between [`begin`](Self::begin) and [`publish`](Self::publish) or [`count`](Self::count) the thread has a *witness*.
/// It is gone as soon as the thread is preempted, moved, or runs a signal handler; and what a handler has begun itself
/// must not bring it back. For an example see [`record`].
pub trait RestartableThread<S> {
    /// Begins: the thread has a witness from now on. Returns the CPU that it is on, read with the witness; `None` when
    /// the kernel does not restart this thread's sequences.
    fn begin(&self) -> Option<u32>;

    /// The sequence: if the witness is still there, stores `words` one after another at offset `to` of the storage,
    /// then `position` into [`RING_WRITE_COUNT`], with release order. `false` when the thread was disturbed before the
    /// last store: then that was not done, and some of the words may have been stored.
    ///
    /// # Safety
    /// The words and the ring's header lie inside the storage; what is stored there is the ring's as long as the
    /// witness is.
    unsafe fn publish(&self, storage: &S, to: usize, words: &[u64], position: u64) -> bool;

    /// The other sequence: if the witness is still there, adds one to the word at offset `counter`, which other CPUs
    /// may add to. `false` when the thread was disturbed before: nothing was added.
    ///
    /// # Safety
    /// A word inside the storage.
    unsafe fn count(&self, storage: &S, counter: usize) -> bool;

    /// Gives the witness up without a sequence.
    fn end(&self);
}

/// What a [`publish`](RestartableThread::publish) does, step by step: the assembly is a transcription of this, and
/// model checkers run this. `is_undisturbed` looks at the witness; `store` stores a word at an offset of the storage,
/// unless the thread is disturbed before: then it says `false`.
pub fn publish_by_steps(
    to: usize,
    words: &[u64],
    position: u64,
    is_undisturbed: impl FnOnce() -> bool,
    mut store: impl FnMut(usize, u64) -> bool,
) -> bool {
    if !is_undisturbed() && !mutated!(WitnessNotRequested) {
        return false;
    }
    if mutated!(PositionBeforeWords) && !store(RING_WRITE_COUNT, position) {
        return false;
    }
    for (index, &word) in words.iter().enumerate().rev() {
        if !store(to + index * 8, word) {
            return false;
        }
    }
    store(RING_WRITE_COUNT, position)
}

/// What came of a record.
/// For an example see [`record`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// It is in the ring of the CPU on which its time was read.
    Yes,
    /// One of that ring's loss counters shows it.
    Lost,
    /// The thread is on a CPU without a ring, or is not restarted by the kernel, or was disturbed in each of its
    /// [`ATTEMPTS`]: nobody has counted the record.
    NoRing,
}

/// A record that is put together in the thread's own memory.
/// For an example see [`record`].
#[derive(Debug)]
pub struct Draft<'w> {
    words: &'w mut [u64],
    id: u16,
    payload: usize,
}

impl<'w> Draft<'w> {
    /// Words of memory that a draft with `payload` bytes takes.
    #[must_use]
    #[inline(always)]
    pub const fn words(payload: usize) -> usize {
        HEADER_WORDS + padded(payload) / 8
    }

    /// A record of event `id` with `payload` bytes, in `words`. `None` when they are too few, or `payload` is more than a
    /// record's header can say.
    #[must_use]
    #[inline(always)]
    pub const fn new(words: &'w mut [u64], id: u16, payload: usize) -> Option<Self> {
        if words.len() < Self::words(payload) || payload > u16::MAX as usize {
            None
        } else {
            Some(Self { words, id, payload })
        }
    }

    /// The payload, to be filled. What is not filled keeps what the words held.
    #[must_use]
    #[inline(always)]
    pub const fn payload(&mut self) -> &mut [u8] {
        // SAFETY: the payload lies inside the words (`new`), behind the headers; words are bytes, and borrowed like
        // these.
        unsafe { core::slice::from_raw_parts_mut(self.words.as_mut_ptr().add(HEADER_WORDS).cast(), self.payload) }
    }

    /// Header and payload of a record of `time`: the words that go into the ring.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "the low half of the time is wanted; `new` checked the payload")]
    fn finish(&mut self, time: u64, extended: bool) -> &[u64] {
        let mut header = RecordHeader { time_low: time as u32, id: self.id, payload: self.payload as u16 };
        let mut first = HEADER_WORDS - 1;
        if extended {
            first = 0;
            header.id = EXTENDED_ID;
            self.words[1] = time;
            self.words[2] = u64::from(self.id);
        }
        self.words[first] = header.to_word();
        &self.words[first..HEADER_WORDS + padded(self.payload) / 8]
    }
}

/// One ring's recording side, for threads whose sequences are restarted. One of it per ring may exist in each thread.
/// For an example see [`record`].
#[derive(Clone, Copy, Debug)]
pub struct RestartableProducer<S> {
    storage: S,
    geometry: Geometry,
    mode: Mode,
}

/// What came of an attempt.
enum Attempt {
    Done(Recorded),
    /// The thread was disturbed, or the ring is ready for the record now.
    Again,
}

/// Records `draft` in the ring of the CPU that the thread is on. `ring_of` finds a CPU's ring, and the function that
/// reads its clock, ticks; neither makes a system call.
///
/// ```
/// use shared_ring::consumer::Consumer;
/// use shared_ring::event::{Event, EventDescription, Field, FieldType};
/// use shared_ring::layout::{Geometry, Mode};
/// use shared_ring::restartable::{Draft, Recorded, RestartableProducer, RestartableThread, publish_by_steps, record};
/// use shared_ring::{host::memory::HostMemory, storage::{Smp, Storage}};
///
/// /// A thread that nothing ever disturbs. `guest-agent` has that of Linux.
/// struct Alone;
/// impl RestartableThread<Smp> for Alone {
///     fn begin(&self) -> Option<u32> {
///         Some(0)
///     }
///     unsafe fn publish(&self, ring: &Smp, to: usize, words: &[u64], position: u64) -> bool {
///         let store = |at, word| {
///             unsafe { ring.store_release(at, word) };
///             true
///         };
///         publish_by_steps(to, words, position, || true, store)
///     }
///     unsafe fn count(&self, ring: &Smp, counter: usize) -> bool {
///         unsafe { ring.fetch_add(counter, 1) };
///         true
///     }
///     fn end(&self) {}
/// }
///
/// let geometry = Geometry::new(4096, 2)?;
/// let memory = HostMemory::private(geometry.ring_size(Mode::Discard));
/// // SAFETY: the memory is zeroed, holds the ring, and outlives the producer.
/// let producer = unsafe { RestartableProducer::new(Smp::new(memory.base()), geometry, Mode::Discard) };
/// producer.announce();
/// let mut words = [0; Draft::words(8)];
/// let mut draft = Draft::new(&mut words, 5, 8).ok_or("too few words")?;
/// draft.payload().copy_from_slice(&7_u64.to_le_bytes());
/// assert_eq!(record(&Alone, |_cpu| Some((&producer, || 1000)), draft), Recorded::Yes);
///
/// const TICK: Event = Event { id: 5, class: 0, name: "a:tick", fields: &[Field::new("n", FieldType::U64)] };
/// let known = EventDescription::from(&TICK);
/// let mut consumer = Consumer::new(memory, geometry, Mode::Discard, 0);
/// let mut buffer = Vec::new();
/// let delivered = consumer.poll_stopped(&mut buffer).ready().ok_or("nothing is ready")?;
/// assert_eq!(delivered.accept([7; 16], 2000, |_| Some(&known)).map(|packet| packet.record_count()), Some(1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[inline(always)]
pub fn record<'r, S: Storage + 'r, C: Fn() -> u64>(
    thread: &impl RestartableThread<S>,
    ring_of: impl Fn(u32) -> Option<(&'r RestartableProducer<S>, C)>,
    mut draft: Draft<'_>,
) -> Recorded {
    let early = if mutated!(CpuBeforeBegin) { thread.begin() } else { None };
    for _ in 0..ATTEMPTS {
        let Some(cpu) = thread.begin() else { return Recorded::NoRing };
        let Some((ring, now)) = ring_of(early.unwrap_or(cpu)) else {
            thread.end();
            return Recorded::NoRing;
        };
        if let Attempt::Done(recorded) = ring.attempt(thread, now, &mut draft) {
            return recorded;
        }
    }
    Recorded::NoRing
}

impl<S: Storage> RestartableProducer<S> {
    /// A producer for the ring that begins at the storage's first byte.
    ///
    /// # Safety
    /// `storage` covers `geometry.ring_size(mode)` bytes, zeroed before the ring's first use. Only producers like this
    /// one and the ring's consumer write there, and only from threads on the ring's own CPU.
    #[must_use]
    #[inline(always)]
    pub const unsafe fn new(storage: S, geometry: Geometry, mode: Mode) -> Self {
        Self { storage, geometry, mode }
    }

    /// The memory recorded into.
    #[inline(always)]
    pub const fn storage(&self) -> &S {
        &self.storage
    }

    /// Tells the consumer what kind of ring this is: before the first record, once.
    pub fn announce(&self) {
        // SAFETY: a ring's control word.
        unsafe { self.storage.store_release(RING_RESTARTABLE, 1) };
    }

    /// Closes the current sub-buffer if it holds anything, so that the consumer can have it. One attempt, by a thread
    /// that has [begun](RestartableThread::begin) on the ring's CPU. `false` when the thread was disturbed: nothing was
    /// done.
    pub fn force_switch(&self, thread: &impl RestartableThread<S>, now: impl Fn() -> u64) -> bool {
        // SAFETY: a ring's control word.
        let write = unsafe { self.storage.load(RING_WRITE_COUNT) };
        if self.geometry.within(write) == 0 {
            thread.end();
            return true;
        }
        self.close(thread, write, now())
    }

    /// Whether a sub-buffer is open, and so something not yet the consumer's. Any thread.
    #[must_use]
    pub fn is_open(&self) -> bool {
        // SAFETY: a ring's control word.
        self.geometry.within(unsafe { self.storage.load(RING_WRITE_COUNT) }) != 0
    }

    #[inline(always)]
    fn attempt(&self, thread: &impl RestartableThread<S>, now: impl Fn() -> u64, draft: &mut Draft<'_>) -> Attempt {
        let geometry = self.geometry;
        // SAFETY: a ring's control word.
        let write = unsafe { self.storage.load(RING_WRITE_COUNT) };
        let time = now();
        let used = geometry.within(write);
        // SAFETY: the packet header lies inside the ring.
        let begin =
            unsafe { self.storage.load(geometry.data_offset(write - used) + offset_of!(PacketHeader, time_begin)) };
        let size = (RECORD_HEADER_SIZE + padded(draft.payload)) as u64;
        if used == 0 || used + size >= geometry.sub_buffer_size() || time.wrapping_sub(begin) >> 32 != 0 {
            return self.attempt_at_edge(thread, write, time, draft);
        }
        // SAFETY: the record lies in the sub-buffer that is open, behind the position (the sizes were just compared).
        let published = unsafe {
            thread.publish(
                &self.storage,
                geometry.data_offset(write),
                draft.finish(time, false),
                write.wrapping_add(size),
            )
        };
        if published { Attempt::Done(Recorded::Yes) } else { Attempt::Again }
    }

    /// The rest: there is no sub-buffer open, or the record does not fit the one that is, or carries its full time.
    #[cold]
    #[inline(never)]
    fn attempt_at_edge(
        &self,
        thread: &impl RestartableThread<S>,
        write: u64,
        time: u64,
        draft: &mut Draft<'_>,
    ) -> Attempt {
        let geometry = self.geometry;
        let largest = (RECORD_HEADER_SIZE + EXTENDED_HEADER_SIZE + padded(draft.payload)) as u64;
        // The last word of a sub-buffer is never a record's: the position has to stay inside until it is closed.
        let is_too_large = PACKET_HEADER_SIZE as u64 + largest >= geometry.sub_buffer_size();
        if is_too_large {
            thread.end();
            // SAFETY: the storage is a ring; threads on other CPUs may do the same.
            unsafe { lose_too_large(&self.storage, draft.id, draft.payload) };
            return Attempt::Done(Recorded::Lost);
        }
        let used = geometry.within(write);
        if used == 0 {
            return self.open(thread, write, time);
        }
        // SAFETY: the packet header lies inside the ring.
        let begin =
            unsafe { self.storage.load(geometry.data_offset(write - used) + offset_of!(PacketHeader, time_begin)) };
        let extended = time.wrapping_sub(begin) >> 32 != 0;
        let extension = if extended { EXTENDED_HEADER_SIZE } else { 0 };
        let size = (RECORD_HEADER_SIZE + extension + padded(draft.payload)) as u64;
        if used + size >= geometry.sub_buffer_size() {
            if self.mode == Mode::Discard
                && mutated!(LossLeavesOpen)
                && self.is_full((write - used).wrapping_add(geometry.sub_buffer_size()))
            {
                return self.lose(thread);
            }
            self.close(thread, write, time);
            return Attempt::Again;
        }
        // SAFETY: as in `attempt`.
        let published = unsafe {
            thread.publish(
                &self.storage,
                geometry.data_offset(write),
                draft.finish(time, extended),
                write.wrapping_add(size),
            )
        };
        if published { Attempt::Done(Recorded::Yes) } else { Attempt::Again }
    }

    /// Whether the consumer has not given back the sub-buffer in which the one at `target` is to be. The acquire load
    /// pairs with the consumer's release store, after it has cleared the sub-buffer.
    fn is_full(&self, target: u64) -> bool {
        // SAFETY: a ring's control word.
        let read = unsafe { self.storage.load_acquire(RING_READ_COUNT) };
        target.wrapping_sub(read) >= self.geometry.data_size() && !mutated!(NoFullTest)
    }

    /// Counts the record as lost: between two packets, since no sub-buffer is open, and none was opened since that was
    /// seen.
    fn lose(&self, thread: &impl RestartableThread<S>) -> Attempt {
        if mutated!(LossUnwitnessed) {
            // SAFETY: a ring's control word.
            unsafe { self.storage.fetch_add(RING_LOST_FULL, 1) };
            return Attempt::Done(Recorded::Lost);
        }
        // SAFETY: a ring's control word.
        let counted = unsafe { thread.count(&self.storage, RING_LOST_FULL) };
        if counted { Attempt::Done(Recorded::Lost) } else { Attempt::Again }
    }

    /// Opens the sub-buffer at `target`, where the position is: its packet header is stored, and the position goes
    /// behind.
    fn open(&self, thread: &impl RestartableThread<S>, target: u64, time: u64) -> Attempt {
        let geometry = self.geometry;
        if self.mode == Mode::Discard && self.is_full(target) {
            return self.lose(thread);
        }
        // SAFETY: a ring's control word.
        let flush = unsafe { self.storage.load(RING_FLUSH_REQUEST) };
        let mut header = [0; PACKET_WORDS];
        header[offset_of!(PacketHeader, time_begin) / 8] = time;
        header[offset_of!(PacketHeader, sequence) / 8] = geometry.sequence(target);
        if !mutated!(OverwriteWithoutFence) {
            // A flight recorder's consumer that copies what is stored here sees, when it looks again, that the position
            // had come to this sub-buffer.
            self.storage.fence_release();
        }
        let position = target.wrapping_add(PACKET_HEADER_SIZE as u64);
        // SAFETY: the packet header lies inside the ring; in discard mode the consumer has given the sub-buffer back.
        if unsafe { thread.publish(&self.storage, geometry.data_offset(target), &header, position) } {
            // Whatever was requested before there was an open sub-buffer is done.
            self.honour(flush);
        }
        Attempt::Again
    }

    /// Closes the sub-buffer in whose middle `write` lies: the rest of its packet header is stored, and the position
    /// goes to its end. Everything lost before is counted in it: with the witness, nothing on this CPU was lost since.
    #[cold]
    #[inline(never)]
    fn close(&self, thread: &impl RestartableThread<S>, write: u64, time: u64) -> bool {
        let geometry = self.geometry;
        let used = geometry.within(write);
        // SAFETY: control words of the ring.
        let [full, wrapped, too_large] =
            [RING_LOST_FULL, RING_LOST_WRAPPED, RING_LOST_TOO_LARGE].map(|word| unsafe { self.storage.load(word) });
        // From `time_end` on: content size in bits, packet size, sequence, discarded events.
        let rest = [time, used * 8, 0, geometry.sequence(write), 0, full, wrapped, too_large];
        let to = geometry.data_offset(write - used) + offset_of!(PacketHeader, time_end);
        // SAFETY: the open sub-buffer's packet header, which the consumer does not read before the position is behind
        // it.
        unsafe { thread.publish(&self.storage, to, &rest, (write - used).wrapping_add(geometry.sub_buffer_size())) }
    }

    /// Marks flush request `flush` as done, unless a later one is.
    fn honour(&self, flush: u64) {
        loop {
            // SAFETY: a ring's control word.
            let done = unsafe { self.storage.load(RING_FLUSH_DONE) };
            // SAFETY: as above.
            if done >= flush || unsafe { self.storage.compare_exchange(RING_FLUSH_DONE, done, flush) } {
                return;
            }
        }
    }
}

const _: () = assert!(
    offset_of!(PacketHeader, lost_too_large) == offset_of!(PacketHeader, time_end) + 7 * 8,
    "what `close` stores lies one after another"
);
