//! The host's half of a ring: deliver whole sub-buffers, believe nothing (algorithms 6 and 7 of the paper, with a copy
//! in place of a shared page).
//!
//! The consumer keeps its own read count, geometry and position; of the guest's memory it reads only words and bytes,
//! which it copies before it looks at them. A ring whose control words contradict each other is *corrupt*: it delivers
//! nothing more, and the rest of the system sees that as loss.
//!
//! In discard mode what was read is given back to the producer. In flight-recorder mode reading takes nothing away: the
//! consumer exchanges its spare for the sub-buffer that it reads, copies it, and undoes the exchange, so that a second
//! consumer after this one finds everything again. It goes from the oldest sub-buffer to the youngest, and skips what
//! the producer has overwritten in between.

pub mod crash;
mod restartable;

use crate::event::EventDescription;
use crate::exchange::{self, ExchangeWord, Take};
use crate::host::memory::{HostMemory, RingMemory};
use crate::layout::{
    CTF_MAGIC, Geometry, Mode, PACKET_HEADER_SIZE, PacketHeader, RING_ADOPTED, RING_FLUSH_DONE, RING_FLUSH_REQUEST,
    RING_LARGEST_LOST, RING_LOST_FULL, RING_LOST_TOO_LARGE, RING_LOST_WRAPPED, RING_NESTED, RING_READ_COUNT,
    RING_WRITE_COUNT,
};
use crate::packet::{Contents, Packet, read_header, validate};
use restartable::Making;
use std::vec::Vec;

/// Records that a producer could not write, by reason; totals since the ring began.
///
/// ```
/// use shared_ring::consumer::Lost;
///
/// let lost = Lost { full: 2, wrapped: 0, too_large: 1 };
/// assert_eq!(lost.total(), 3);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Lost {
    /// The ring was full.
    pub full: u64,
    /// The record would have wrapped over an unfinished writer, or its own never finished it.
    pub wrapped: u64,
    /// The record was too large for a sub-buffer.
    pub too_large: u64,
}

impl Lost {
    /// Records lost for any reason.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.full.saturating_add(self.wrapped).saturating_add(self.too_large)
    }

    /// The total for a packet's header, never `u64::MAX`: babeltrace2 takes that for no count at all, and aborts.
    #[must_use]
    pub const fn events_discarded(&self) -> u64 {
        let total = self.total();
        if total == u64::MAX { u64::MAX - 1 } else { total }
    }

    /// The sum with `other`, by reason.
    #[must_use]
    pub const fn plus(&self, other: &Self) -> Self {
        Self {
            full: self.full.saturating_add(other.full),
            wrapped: self.wrapped.saturating_add(other.wrapped),
            too_large: self.too_large.saturating_add(other.too_large),
        }
    }

    /// Counts only grow: what a hostile producer lowers stays where it was.
    const fn raised_to(&self, other: &Self) -> Self {
        const fn max(left: u64, right: u64) -> u64 {
            if left > right { left } else { right }
        }
        Self {
            full: max(self.full, other.full),
            wrapped: max(self.wrapped, other.wrapped),
            too_large: max(self.too_large, other.too_large),
        }
    }
}

/// Loss counts come from producers that may lie: sums stay at the largest number.
impl std::iter::Sum for Lost {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |sum, lost| sum.plus(&lost))
    }
}

/// Whether the guest's kernel has recorded into the ring at the beginning of `ring`, or was ready to, since the host
/// gave the ring to a session. A guest may say anything.
pub fn has_joined<M: RingMemory>(ring: &M) -> bool {
    [RING_NESTED, RING_ADOPTED, RING_WRITE_COUNT].into_iter().any(|word| ring.load(word) != 0)
}

/// Records of the guest's kernel that are not in the ring at the beginning of `ring` because its CPU was making another
/// one in the same context; `None` when no producer of the ring has counted them (agents before ABI 2.3 do not). A
/// guest may say anything.
pub fn nested<M: RingMemory>(ring: &M) -> Option<u64> {
    ring.load(RING_NESTED).checked_sub(1)
}

/// The largest record that the producer of a ring lost because it is larger than a sub-buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargestLost {
    /// Its event.
    pub id: u16,
    /// Bytes of its payload.
    pub payload: u32,
}

/// The largest lost record of the ring that begins at `ring`; `None` while none is noted (before ABI 2.7, never). A
/// guest may say anything.
pub fn largest_lost<M: RingMemory>(ring: &M) -> Option<LargestLost> {
    let noted = ring.load(RING_LARGEST_LOST);
    let (id, payload) = (u16::try_from(noted >> 32).ok()?, u32::try_from(noted & u64::from(u32::MAX)).ok()?);
    (payload > 0).then_some(LargestLost { id, payload })
}

/// What a consumer found when it looked for a packet.
/// For an example see [`Consumer`].
#[derive(Debug)]
#[must_use = "a packet that is not accepted stays in the ring"]
pub enum Poll<'c, M: RingMemory = HostMemory> {
    /// A sub-buffer was copied into the packet buffer.
    Ready(Delivered<'c, M>),
    /// Nothing is ready.
    Empty,
    /// The ring's control words contradict each other; it is not read again.
    Corrupt,
}

impl<'c, M: RingMemory> Poll<'c, M> {
    /// The copied sub-buffer, if there is one.
    #[must_use = "a packet that is not accepted stays in the ring"]
    pub fn ready(self) -> Option<Delivered<'c, M>> {
        match self {
            Self::Ready(delivered) => Some(delivered),
            Self::Empty | Self::Corrupt => None,
        }
    }

    /// Whether a sub-buffer was copied.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        matches!(self, Self::Ready(_))
    }

    /// Whether nothing is ready.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        matches!(self, Self::Empty)
    }

    /// Whether the ring is corrupt.
    #[must_use]
    pub const fn is_corrupt(&self) -> bool {
        matches!(self, Self::Corrupt)
    }
}

/// A sub-buffer that was copied out of a ring, and is not believed yet: [`accept`](Self::accept) it.
///
/// It borrows the consumer that copied it and the buffer that holds it. Dropped without having been accepted, it leaves
/// the sub-buffer in the ring, and nothing is counted: the next poll copies it again. A flight recorder may have
/// overwritten it by then.
///
/// Nothing can be accepted that was not polled, nor twice, nor by another consumer:
///
/// ```compile_fail,E0599
/// # use shared_ring::consumer::Consumer;
/// fn without_poll(mut consumer: Consumer, packet: &mut [u8]) {
///     let _ = consumer.accept(packet, [7; 16], u64::MAX, |_| None);
/// }
/// ```
///
/// ```compile_fail,E0382
/// # use shared_ring::consumer::Consumer;
/// fn twice(mut consumer: Consumer, mut buffer: Vec<u8>) {
///     let delivered = consumer.poll(&mut buffer).ready().unwrap();
///     let _ = delivered.accept([7; 16], u64::MAX, |_| None);
///     let _ = delivered.accept([7; 16], u64::MAX, |_| None);
/// }
/// ```
///
/// ```compile_fail,E0499
/// # use shared_ring::consumer::Consumer;
/// fn out_of_turn(mut consumer: Consumer, mut first: Vec<u8>, mut second: Vec<u8>) {
///     let one = consumer.poll(&mut first).ready().unwrap();
///     let other = consumer.poll(&mut second).ready().unwrap();
///     let _ = one.accept([7; 16], u64::MAX, |_| None);
/// }
/// ```
#[derive(Debug)]
#[must_use = "a packet that is not accepted stays in the ring"]
pub struct Delivered<'c, M: RingMemory = HostMemory> {
    consumer: &'c mut Consumer<M>,
    packet: &'c mut [u8],
    header: PacketHeader,
    copied: Copied,
}

/// What the consumer knows of a sub-buffer that it has copied.
#[derive(Clone, Copy, Debug)]
struct Copied {
    /// Bytes in use, as the producer claims or counts them.
    claimed: usize,
    /// Bytes that were reserved and that nothing shows to be whole: the first hole, and what lies behind it.
    uncommitted: u64,
    /// Whether the sub-buffer is complete, and so its header.
    is_complete: bool,
    /// Whether it is the last one of a stopped ring.
    is_last: bool,
}

/// What a look at a flight recorder's sub-buffer that is not complete found.
enum Unfinished {
    /// It was copied; and what was lost before it, as in [`Found::Copied`].
    Copied(Copied, Option<Lost>),
    /// There is no record in it that can be read.
    Empty,
    /// The writer has begun the next lap here.
    Overwritten,
}

/// What a look into a ring found.
enum Found {
    /// A sub-buffer was copied; and what was lost before it was opened, where that is not in its header yet because it
    /// is open: loss is counted while no sub-buffer is.
    Copied(Copied, Option<Lost>),
    Empty,
    Corrupt,
}

/// Reads one ring. It may run on any thread.
///
/// A ring has one consumer at a time. Two at once harm no memory, but each counts what the other took as lost or
/// rejected.
///
/// ```
/// # use shared_ring::{consumer::Consumer, host::memory::HostMemory};
/// # use shared_ring::event::{Event, EventDescription, Field, FieldType};
/// # use shared_ring::{layout::{Geometry, Mode}, producer::Producer, storage::Smp};
/// # const TICK: Event = Event { id: 5, class: 0, name: "example:tick", fields: &[Field::new("n", FieldType::U64)] };
/// # let geometry = Geometry::new(4096, 2)?;
/// # let memory = HostMemory::private(geometry.ring_size(Mode::Discard));
/// # // SAFETY: the memory is zeroed, holds the ring, and outlives the producer.
/// # let producer = unsafe { Producer::new(Smp::new(memory.base()), geometry, Mode::Discard) };
/// producer.record(|| 1000, TICK.id, &7_u64.to_le_bytes());
/// producer.force_switch(|| 1010);
///
/// let described = EventDescription::from(&TICK);
/// let mut consumer = Consumer::new(memory, geometry, Mode::Discard, 0);
/// let mut buffer = Vec::new();
/// let delivered = consumer.poll(&mut buffer).ready().ok_or("nothing is ready")?;
/// let packet = delivered.accept([7; 16], 2000, |id| (id == TICK.id).then_some(&described)).ok_or("damaged")?;
/// assert_eq!((packet.record_count(), packet.header().time_end), (1, 1010));
/// assert_eq!(packet.records().next().map(|record| record.time), Some(1000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// ```
/// # use shared_ring::event::{Event, EventDescription, Field, FieldType};
/// # use shared_ring::{consumer::Consumer, host::memory::HostMemory, producer::Producer, storage::Smp};
/// # use shared_ring::layout::{Geometry, Mode};
/// # let geometry = Geometry::new(4096, 4)?;
/// # let memory = HostMemory::private(geometry.ring_size(Mode::Discard));
/// # // SAFETY: the memory is zeroed, holds the ring, and outlives the producer.
/// # let producer = unsafe { Producer::new(Smp::new(memory.base()), geometry, Mode::Discard) };
/// # const TICK: Event = Event { id: 1, class: 0, name: "a:tick", fields: &[Field::new("number", FieldType::U64)] };
/// # let known = EventDescription::from(&TICK);
/// # producer.record(|| 1_000, TICK.id, &7_u64.to_le_bytes());
/// # producer.force_switch(|| 1_001);
/// let mut consumer = Consumer::new(memory.clone(), geometry, Mode::Discard, 0);
/// let (mut buffer, trace, now) = (Vec::new(), [7; 16], 2_000);
/// while let Some(delivered) = consumer.poll(&mut buffer).ready() {
///     // `None`: nothing in it could be believed.
///     let Some(packet) = delivered.accept(trace, now, |id| (id == TICK.id).then_some(&known)) else { continue };
///     assert_eq!(packet.records().map(|record| record.time).collect::<Vec<_>>(), [1_000]);
/// }
/// assert_eq!((consumer.lost().total(), consumer.rejected_bytes()), (0, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Consumer<M = HostMemory> {
    memory: M,
    geometry: Geometry,
    mode: Mode,
    cpu_id: u32,
    /// Free-running bytes consumed; the host's own truth; the ring holds a copy for the producer.
    read_count: u64,
    /// Packets written so far: the sequence number of the next one.
    packets: u64,
    /// End of the last packet, ticks: no later record is older.
    time_end: u64,
    lost: Lost,
    rejected_bytes: u64,
    corrupt: bool,
    /// Whether the last sub-buffer of a stopped ring was consumed.
    exhausted: bool,
    /// Flight recorder: the physical sub-buffer that is the consumer's own.
    spare: usize,
    /// Flight recorder: sub-buffers that this consumer did not get, since the producer had overwritten them.
    overwritten: u64,
    /// How the ring's records are made, as it said when it was first written.
    making: Making,
}

impl<M: RingMemory> Consumer<M> {
    /// A consumer of the ring of `geometry` and `mode` that begins at the first byte of `memory`, written by CPU
    /// `cpu_id`. In discard mode nobody has read the ring yet. A flight recorder may have had other consumers, one
    /// after another.
    ///
    /// # Panics
    /// When the ring does not fit `memory`.
    #[must_use]
    pub fn new(memory: M, geometry: Geometry, mode: Mode, cpu_id: u32) -> Self {
        assert!(memory.size() >= geometry.ring_size(mode), "the ring lies inside its memory");
        let spare = match mode {
            Mode::Discard => Some(0),
            Mode::FlightRecorder => exchange::find_spare(&memory, geometry),
        };
        Self {
            memory,
            geometry,
            mode,
            cpu_id,
            read_count: 0,
            packets: 0,
            time_end: 0,
            lost: Lost::default(),
            rejected_bytes: 0,
            corrupt: spare.is_none(),
            exhausted: false,
            spare: spare.unwrap_or(0),
            overwritten: 0,
            making: Making::NotKnown,
        }
    }

    /// The consumer, which takes no record that is older than `earliest`, ticks: when the ring was made, or given to
    /// its producer. Such a record is damage like any other.
    #[must_use]
    pub fn since(self, earliest: u64) -> Self {
        Self { time_end: self.time_end.max(earliest), ..self }
    }

    /// The consumer of a flight recorder, which begins with the sub-buffer `sequence`, or with the oldest one that is
    /// left. A ring in discard mode is read from where it was read to.
    #[must_use]
    pub fn starting_at(self, sequence: u64) -> Self {
        let begin = sequence.saturating_mul(self.geometry.sub_buffer_size());
        match self.mode {
            Mode::FlightRecorder => Self { read_count: self.read_count.max(begin), ..self },
            Mode::Discard => self,
        }
    }

    /// Like [`new`](Self::new), for a ring whose earlier consumer is gone: begins where the ring says that it stopped.
    ///
    /// # Panics
    /// As for [`new`](Self::new).
    #[must_use]
    pub fn resume(memory: M, geometry: Geometry, mode: Mode, cpu_id: u32) -> Self {
        let mut consumer = Self::new(memory, geometry, mode, cpu_id);
        if mode == Mode::Discard {
            let read = consumer.memory.load(RING_READ_COUNT);
            consumer.read_count = read;
            // Control words of a later time than half of all would be nonsense, and spare the arithmetic its overflow.
            consumer.corrupt = geometry.within(read) != 0 || read > u64::MAX / 2;
        }
        consumer
    }

    /// Asks the producer to close its current sub-buffer, when it looks or at its next slow path. Returns the request's
    /// number.
    pub fn request_flush(&mut self) -> u64 {
        let request = self.memory.load(RING_FLUSH_REQUEST).wrapping_add(1);
        self.memory.store(RING_FLUSH_REQUEST, request);
        request
    }

    /// Whether all that was recorded before [`request_flush`](Self::request_flush) returned `request` lies in closed
    /// sub-buffers: the producer says so, or no sub-buffer is open. A producer that has nothing to close need not
    /// answer.
    #[must_use]
    pub fn is_flushed(&self, request: u64) -> bool {
        self.memory.load(RING_FLUSH_DONE) >= request || self.geometry.within(self.memory.load(RING_WRITE_COUNT)) == 0
    }

    /// Size of the packet buffer that [`poll`](Self::poll) fills, bytes.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "usize has 64 bits on every supported target")]
    pub const fn packet_size(&self) -> usize {
        self.geometry.sub_buffer_size() as usize
    }

    /// Number of sub-buffers: packets that the ring holds at most.
    #[must_use]
    pub const fn sub_buffers(&self) -> u32 {
        self.geometry.sub_buffers()
    }

    /// Whether a quarter of the ring or more is waiting to be read. Says nothing of what is committed, and costs one load. A
    /// flight recorder never waits: it overwrites.
    #[must_use]
    pub fn is_quarter_full(&self) -> bool {
        let written = self.memory.load(RING_WRITE_COUNT).wrapping_sub(self.read_count);
        self.mode == Mode::Discard && !self.corrupt && written >= self.geometry.data_size() / 4
    }

    /// The CPU, vCPU or thread that the packets are marked with.
    #[must_use]
    pub const fn cpu_id(&self) -> u32 {
        self.cpu_id
    }

    /// Records lost so far, by reason, as far as packets and [`finish`](Self::finish) have shown.
    #[must_use]
    pub const fn lost(&self) -> Lost {
        self.lost
    }

    /// The ring's [`nested`] records.
    #[must_use]
    pub fn nested(&self) -> Option<u64> {
        nested(&self.memory)
    }

    /// The [`largest_lost`] record of the ring.
    #[must_use]
    pub fn largest_lost(&self) -> Option<LargestLost> {
        largest_lost(&self.memory)
    }

    /// Whether the ring [`has_joined`] its session.
    #[must_use]
    pub fn has_joined(&self) -> bool {
        has_joined(&self.memory)
    }

    /// Bytes that were reserved by the producer but could not be accepted: never committed, or not valid.
    #[must_use]
    pub const fn rejected_bytes(&self) -> u64 {
        self.rejected_bytes
    }

    /// Flight recorder: sub-buffers that were overwritten before this consumer could read them, those before its first
    /// packet included. The consumer counts them itself, when it passes over them: a packet counts those before it.
    #[must_use]
    pub const fn overwritten(&self) -> u64 {
        self.overwritten
    }

    /// What happens when the ring is full.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether the ring was found corrupt.
    #[must_use]
    pub const fn is_corrupt(&self) -> bool {
        self.corrupt
    }

    /// READGETSUBBUF: copies the next fully committed sub-buffer into `buffer` (resized to
    /// [`packet_size`](Self::packet_size)). The acquire load of `commit_seq` pairs with the producer's publishing.
    pub fn poll<'c>(&'c mut self, buffer: &'c mut Vec<u8>) -> Poll<'c, M> {
        let found = self.find(buffer);
        self.delivered(found, buffer)
    }

    /// Like [`poll`](Self::poll), for a ring whose producers have stopped for good (the guest is dead or its process is
    /// gone): also copies sub-buffers that are not complete, which [`accept`](Delivered::accept) then cuts at their
    /// first hole. Once the sub-buffer that was written last is accepted there is nothing more to come.
    ///
    /// In flight-recorder mode the producers may be running: this is how a snapshot gets their latest records too.
    pub fn poll_stopped<'c>(&'c mut self, buffer: &'c mut Vec<u8>) -> Poll<'c, M> {
        let found = self.find_stopped(buffer);
        self.delivered(found, buffer)
    }

    /// Copies what the producer, which may be running, has committed of the sub-buffer that is not complete, in discard
    /// mode and where [`poll`](Self::poll) finds nothing. Nothing is taken: a later poll finds these records again, the
    /// first of its packet. `latest` and `known` are those of [`accept`](Delivered::accept). `None` when there is
    /// nothing, or nothing can be believed, and while a record is being made.
    pub fn look<'b, 'k>(
        &self,
        buffer: &'b mut Vec<u8>,
        latest: u64,
        known: impl Fn(u16) -> Option<&'k EventDescription>,
    ) -> Option<Packet<'b>> {
        if self.corrupt || self.mode != Mode::Discard {
            return None;
        }
        match self.making() {
            Making::NotKnown => return None,
            Making::Restartable => return self.look_restartable(buffer, latest, known),
            Making::ReserveAndCommit => {}
        }
        let index = self.geometry.index(self.read_count);
        // The commit count is read before the write count: where they agree, all that is counted is committed. Nobody
        // but this consumer gives the sub-buffer back.
        let committed = self.memory.load(self.geometry.commit_count_offset(index));
        let committed = committed.checked_sub(self.geometry.committed_before(self.read_count))?;
        let reserved = self.memory.load(RING_WRITE_COUNT).wrapping_sub(self.read_count);
        if committed != reserved || committed >= self.geometry.sub_buffer_size() {
            return None;
        }
        self.copy(buffer, self.geometry.data_offset(self.read_count));
        let claimed = usize::try_from(committed).ok()?;
        let begin = read_header(buffer)?.time_begin;
        let contents = validate(buffer, claimed, begin, self.time_end..=latest, known);
        let header = self.header([0; 16], &contents, contents.time_end);
        Packet::new(buffer, header, contents.records).filter(|_| contents.records > 0)
    }

    fn delivered<'c>(&'c mut self, found: Found, buffer: &'c mut Vec<u8>) -> Poll<'c, M> {
        match found {
            Found::Copied(copied, lost) => match read_header(buffer) {
                Some(mut header) => {
                    if let Some(Lost { full, wrapped, too_large }) = lost {
                        (header.lost_full, header.lost_wrapped, header.lost_too_large) = (full, wrapped, too_large);
                    }
                    Poll::Ready(Delivered { consumer: self, packet: buffer, header, copied })
                }
                // A sub-buffer has room for a header.
                None => Poll::Corrupt,
            },
            Found::Empty => Poll::Empty,
            Found::Corrupt => {
                self.corrupt = true;
                Poll::Corrupt
            }
        }
    }

    /// Copies the next sub-buffer if it is complete.
    fn find(&mut self, buffer: &mut Vec<u8>) -> Found {
        if self.corrupt {
            return Found::Corrupt;
        }
        self.making = self.making();
        match self.making {
            // Found out a moment later, it could be another ring than the one that is looked at.
            Making::NotKnown => return Found::Empty,
            Making::Restartable => return self.find_restartable(buffer, false),
            Making::ReserveAndCommit => {}
        }
        if self.mode == Mode::FlightRecorder {
            return self.find_in_flight_recorder(buffer, false);
        }
        let index = self.geometry.index(self.read_count);
        let committed = self.memory.load(self.geometry.commit_seq_offset(index));
        let before = self.geometry.committed_before(self.read_count);
        // Sub-buffer ready (2): one whole sub-buffer more than the laps before.
        match committed.wrapping_sub(before) {
            0 => Found::Empty,
            ahead if ahead == self.geometry.sub_buffer_size() => {
                self.copy(buffer, self.geometry.data_offset(self.read_count));
                Found::Copied(Copied::complete(buffer), None)
            }
            _ => Found::Corrupt,
        }
    }

    /// Copies the next sub-buffer, complete or not.
    fn find_stopped(&mut self, buffer: &mut Vec<u8>) -> Found {
        self.making = self.making();
        match self.making {
            Making::NotKnown if !self.corrupt => return Found::Empty,
            Making::Restartable => return self.find_restartable(buffer, true),
            Making::NotKnown | Making::ReserveAndCommit => {}
        }
        let reserved = self.memory.load(RING_WRITE_COUNT).wrapping_sub(self.read_count);
        if self.mode == Mode::Discard && !self.corrupt && (reserved == 0 || self.exhausted) {
            // Where all is read, commit counts that a hole kept back would look wrong for the next lap.
            return Found::Empty;
        }
        match self.find(buffer) {
            Found::Empty if self.mode == Mode::FlightRecorder => return self.find_in_flight_recorder(buffer, true),
            Found::Empty => {}
            other => return other,
        }
        if reserved > self.geometry.data_size() {
            return Found::Corrupt;
        }
        self.copy(buffer, self.geometry.data_offset(self.read_count));
        let is_open = reserved < self.geometry.sub_buffer_size();
        let copied = Copied {
            claimed: usize::try_from(reserved).unwrap_or(usize::MAX).min(buffer.len()),
            uncommitted: 0,
            is_complete: false,
            // It is consumed whole though it was not written whole: the counts no longer compare after it.
            is_last: is_open,
        };
        Found::Copied(copied, is_open.then(|| self.live_lost()))
    }

    /// One look at a flight recorder, from `self.read_count` on: at most one lap. `unfinished` says whether sub-buffers
    /// that are not complete are wanted.
    fn find_in_flight_recorder(&mut self, buffer: &mut Vec<u8>, unfinished: bool) -> Found {
        let geometry = self.geometry;
        let write = self.memory.load(RING_WRITE_COUNT);
        let used = geometry.within(write);
        // Where the sub-buffer begins that is being written, or will be next.
        let current = write - used;
        if self.exhausted {
            return Found::Empty;
        }
        if write < self.read_count || write > u64::MAX / 2 {
            return Found::Corrupt;
        }
        let end = if used == 0 { write } else { current + geometry.sub_buffer_size() };
        let oldest = end.saturating_sub(geometry.data_size());
        if self.read_count < oldest {
            self.pass_over_overwritten(geometry.sequence(oldest - self.read_count));
        }
        while self.read_count < end {
            match exchange::take(&self.memory, geometry, self.read_count, self.spare) {
                Take::Taken(physical) => {
                    self.copy(buffer, geometry.physical_offset(physical));
                    self.spare = exchange::give_back(&self.memory, geometry, self.read_count, physical, self.spare);
                    return Found::Copied(self.unless_another_packet(buffer, Copied::complete(buffer)), None);
                }
                Take::Unfinished(_) if !unfinished => return Found::Empty,
                Take::Unfinished(physical) => {
                    let is_last = self.read_count == current;
                    let reserved = if is_last { used } else { geometry.sub_buffer_size() };
                    match self.copy_unfinished(buffer, physical, reserved) {
                        Unfinished::Copied(copied, lost) => {
                            let copied = Copied { is_last, ..copied };
                            return Found::Copied(self.unless_another_packet(buffer, copied), lost);
                        }
                        Unfinished::Empty => {
                            self.reject(reserved);
                            self.read_count += geometry.sub_buffer_size();
                        }
                        Unfinished::Overwritten => self.pass_over_overwritten(1),
                    }
                    self.exhausted = is_last;
                }
                Take::Overwritten => self.pass_over_overwritten(1),
                Take::Corrupt => return Found::Corrupt,
            }
        }
        Found::Empty
    }

    /// The producer has begun the next lap in the next `sub_buffers` sub-buffers.
    const fn pass_over_overwritten(&mut self, sub_buffers: u64) {
        self.overwritten = self.overwritten.saturating_add(sub_buffers);
        self.read_count += sub_buffers * self.geometry.sub_buffer_size();
    }

    /// Copies what is committed without a hole of the sub-buffer at `self.read_count`, which is behind `physical` and has
    /// `reserved` bytes reserved.
    ///
    /// The producer may be at work: bytes below `commit_prefix` are written once per lap, and the exchange word says
    /// after the copy whether the lap was still the same.
    fn copy_unfinished(&self, buffer: &mut Vec<u8>, physical: usize, reserved: u64) -> Unfinished {
        let geometry = self.geometry;
        let index = geometry.index(self.read_count);
        let of_lap = |committed: u64| {
            let bytes = committed.checked_sub(geometry.committed_before(self.read_count));
            bytes.filter(|&bytes| bytes <= geometry.sub_buffer_size()).unwrap_or(0)
        };
        // All of it is whole if everything reserved is committed. The write count is read after the commit count: then it
        // counts every record that is counted there. It is read after the loss counts, too: if the sub-buffer
        // is still open then, nothing of what they count was lost behind it.
        let committed = of_lap(self.memory.load(geometry.commit_count_offset(index)));
        let lost = self.live_lost();
        let reached = self.memory.load(RING_WRITE_COUNT).wrapping_sub(self.read_count);
        let is_whole = committed == reached.min(geometry.sub_buffer_size());
        // Read last: there are producers that say what is whole only before they reserve more.
        let prefix = of_lap(self.memory.load(geometry.commit_prefix_offset(index)));
        let content = if is_whole { committed } else { prefix };
        if content <= PACKET_HEADER_SIZE as u64 {
            return Unfinished::Empty;
        }
        self.copy(buffer, geometry.physical_offset(physical));
        self.memory.fence_acquire();
        let word = ExchangeWord::from_word(self.memory.load(geometry.exchange_offset(index)));
        let wanted = exchange::tag_of(geometry, self.read_count);
        if word.tag() > wanted || word.tag() == wanted && word.is_referenced() {
            return Unfinished::Overwritten;
        }
        let claimed = if content == geometry.sub_buffer_size() {
            // Its last byte is committed, not yet published. It is closed: behind its content lies older data.
            Copied::complete(buffer).claimed
        } else {
            usize::try_from(content).unwrap_or(usize::MAX).min(buffer.len())
        };
        let uncommitted = reserved.saturating_sub(content);
        let copied = Copied { claimed, uncommitted, is_complete: false, is_last: false };
        Unfinished::Copied(copied, (reached < geometry.sub_buffer_size()).then_some(lost))
    }

    /// A sub-buffer that does not hold the packet that belongs here is taken for empty.
    fn unless_another_packet(&self, packet: &[u8], copied: Copied) -> Copied {
        let expected = self.geometry.sequence(self.read_count);
        if read_header(packet).is_some_and(|header| header.sequence == expected) {
            return copied;
        }
        Copied { claimed: 0, uncommitted: copied.uncommitted.saturating_add(copied.claimed as u64), ..copied }
    }

    const fn reject(&mut self, bytes: u64) {
        self.rejected_bytes = self.rejected_bytes.saturating_add(bytes);
    }

    /// Takes over the ring's final loss counts, once its producers have stopped.
    pub fn finish(&mut self) {
        self.lost = self.lost.raised_to(&self.live_lost());
    }

    fn live_lost(&self) -> Lost {
        Lost {
            full: self.memory.load(RING_LOST_FULL),
            wrapped: self.memory.load(RING_LOST_WRAPPED),
            too_large: self.memory.load(RING_LOST_TOO_LARGE),
        }
    }

    fn copy(&self, packet: &mut Vec<u8>, offset: usize) {
        packet.resize(self.packet_size(), 0);
        self.memory.read(offset, packet);
    }

    /// Gives a sub-buffer back that had these `contents`. Where some were rejected, bytes behind those that were read may
    /// not be zero.
    fn give_back(&mut self, copied: &Copied, contents: &Contents) {
        let next = self.read_count + self.geometry.sub_buffer_size();
        match self.mode {
            Mode::Discard => {
                let used = if contents.rejected > 0 { self.packet_size() } else { contents.read };
                if !mutated!(GiveBackUncleared) {
                    self.memory.clear(self.geometry.data_offset(self.read_count), used);
                }
                self.memory.store(RING_READ_COUNT, next);
            }
            // Fails when the producer has pushed the count, or when this was read before. What is not complete stays.
            Mode::FlightRecorder if copied.is_complete => {
                let _ = self.memory.compare_exchange(RING_READ_COUNT, self.read_count, next);
            }
            Mode::FlightRecorder => {}
        }
        self.read_count = next;
    }

    /// The header of a packet of these `contents` that ended at `time_end`.
    fn header(&self, uuid: [u8; 16], contents: &Contents, time_end: u64) -> PacketHeader {
        PacketHeader {
            magic: CTF_MAGIC,
            uuid,
            stream_id: 0,
            time_begin: contents.time_begin,
            time_end,
            content_size: contents.unpadded as u64 * 8,
            packet_size: self.geometry.sub_buffer_size() * 8,
            sequence: self.packets,
            events_discarded: self.lost.events_discarded(),
            lost_full: self.lost.full,
            lost_wrapped: self.lost.wrapped,
            lost_too_large: self.lost.too_large,
            cpu_id: self.cpu_id,
            flags: 0,
            rejected_bytes: self.rejected_bytes,
            overwritten: self.overwritten,
            reserved2: 0,
        }
    }
}

impl Copied {
    /// Believes the packet's own header about its size, which [`Delivered::accept`] checks.
    fn complete(packet: &[u8]) -> Self {
        let content = read_header(packet).map_or(0, |header| header.content_size / 8);
        let claimed = usize::try_from(content).unwrap_or(usize::MAX).min(packet.len());
        Self { claimed, uncommitted: 0, is_complete: true, is_last: false }
    }
}

impl<'c, M: RingMemory> Delivered<'c, M> {
    /// How many packets there were in the ring before this one, as its producer says.
    #[must_use]
    pub const fn sequence(&self) -> u64 {
        self.header.sequence
    }

    /// READPUTSUBBUF: cuts the packet to what can be believed, rewrites its header, and in discard mode clears the
    /// sub-buffer in the ring and gives it back. The release store of the read count pairs with the producer's acquire
    /// load.
    ///
    /// `uuid` is the layer's trace, `latest` the trace clock now, ticks (a record cannot be younger), `known` finds an
    /// event type by id. Returns `None` when nothing in the packet could be believed; it was then consumed all the
    /// same, and its bytes are counted as rejected.
    ///
    /// The packet ends when its producer closed it, so that what was lost before it could open another one lies inside.
    /// A time that cannot be believed, and a sub-buffer that was never closed, end with the last record.
    pub fn accept<'k>(
        self,
        uuid: [u8; 16],
        latest: u64,
        known: impl Fn(u16) -> Option<&'k EventDescription>,
    ) -> Option<Packet<'c>> {
        let Self { consumer, packet, header, copied } = self;
        let mut contents = validate(packet, copied.claimed, header.time_begin, consumer.time_end..=latest, known);
        if mutated!(TrustContentSize) {
            (contents.content, contents.unpadded) = (copied.claimed, copied.claimed);
        }
        let claimed_loss =
            Lost { full: header.lost_full, wrapped: header.lost_wrapped, too_large: header.lost_too_large };
        // A header cannot report more loss than the ring's own counters do by now.
        if claimed_loss.total() <= consumer.live_lost().total() {
            consumer.lost = consumer.lost.raised_to(&claimed_loss);
        }
        consumer.reject((contents.rejected as u64).saturating_add(copied.uncommitted));
        consumer.exhausted |= copied.is_last;
        consumer.give_back(&copied, &contents);
        if contents.records == 0 {
            return None;
        }
        let is_closed = copied.is_complete && (contents.time_end..=latest).contains(&header.time_end);
        consumer.time_end = if is_closed { header.time_end } else { contents.time_end };
        let header = consumer.header(uuid, &contents, consumer.time_end);
        consumer.packets += 1;
        Packet::new(packet, header, contents.records)
    }
}
