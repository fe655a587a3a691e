//! The consumer of a ring, with the ring's memory changing between its calls, and inside them wherever it calls back.
//!
//! The first byte of an input chooses geometry and mode; a [`script`](crate::script) follows.

use crate::events;
use crate::script::{Input, Op, Script};
use shared_ring::consumer::{Consumer, Poll};
use shared_ring::event::EventDescription;
use shared_ring::host::memory::HostMemory;
use shared_ring::layout::{CTF_MAGIC, Geometry, Mode, PACKET_HEADER_SIZE, padded};
use shared_ring::packet::Packet;
use shared_ring::region::Rings;

/// Step: look for a complete sub-buffer, and leave it in the ring.
pub const POLL: u8 = 0;
/// Step: look for any sub-buffer of a stopped ring.
pub const POLL_STOPPED: u8 = 1;
/// Step: accept what the last look found; the argument is the youngest time.
pub const ACCEPT: u8 = 2;
/// Step: take over the final loss counts.
pub const FINISH: u8 = 3;
/// Step: read all that a stopped ring still holds; the argument is the youngest time.
pub const DRAIN: u8 = 4;
/// Step: ask the producer to close its sub-buffer.
pub const FLUSH: u8 = 5;
/// Step: give way to a new consumer: one from the ring's beginning, or, with an odd argument, one that goes on.
pub const REPLACE: u8 = 6;
/// Number of kinds of steps.
pub const STEPS: u8 = 7;

/// The CPU that packets are marked with.
const CPU: u32 = 3;

/// Trace of the accepted packets.
pub const UUID: [u8; 16] = [7; 16];

/// Inputs whose first byte has this bit are about flight recorders.
pub const FLIGHT_RECORDER: u8 = 16;

/// The ring that the first byte of an input chooses.
///
/// # Panics
/// Never: all of them are possible.
#[must_use]
pub fn rings(byte: u8) -> Rings {
    let sub_buffers = 2 << (byte & 3);
    let sub_buffer_size = 4096 << (byte >> 2 & 1);
    let mode = if byte & FLIGHT_RECORDER == 0 { Mode::Discard } else { Mode::FlightRecorder };
    let geometry = Geometry::new(sub_buffer_size, sub_buffers);
    Rings { geometry: geometry.expect("the geometry lies within the limits of the layout"), mode }
}

/// What was seen of a consumer before, for what may only grow.
#[derive(Debug, Default)]
struct Seen {
    time_end: u64,
    packets: u64,
    lost: u64,
    rejected: u64,
    overwritten: u64,
    corrupt: bool,
}

impl Seen {
    /// What is handed on is a packet that can be believed whole.
    fn check_packet(&mut self, packet: &Packet<'_>, events: &[EventDescription], latest: u64) {
        let header = packet.header();
        assert_eq!((header.magic, header.uuid), (CTF_MAGIC, UUID));
        assert_eq!(header.content_size, packet.content().len() as u64 * 8);
        assert_eq!(header.sequence, self.packets);
        assert!(packet.content().len() >= PACKET_HEADER_SIZE && header.content_size <= header.packet_size);
        assert!(packet.record_count() > 0);
        let mut time = self.time_end.max(header.time_begin);
        let mut records = packet.records();
        let mut count = 0;
        for record in &mut records {
            let event = events::find(events, record.id).expect("accepted records are of known events");
            assert!(event.accepts(record.payload));
            assert!((time..=latest).contains(&record.time), "{} is not in {time}..={latest}", record.time);
            time = record.time;
            count += 1;
        }
        assert!(!records.damaged());
        assert_eq!((count, records.offset()), (packet.record_count(), padded(packet.content().len())));
        assert!((time..=latest).contains(&header.time_end));
        self.time_end = header.time_end;
        self.packets += 1;
    }
}

fn poll<'c>(consumer: &'c mut Consumer, buffer: &'c mut Vec<u8>, stopped: bool) -> Poll<'c> {
    if stopped { consumer.poll_stopped(buffer) } else { consumer.poll(buffer) }
}

/// A consumer, and what is asserted about it.
#[derive(Debug)]
pub struct Checked {
    consumer: Consumer,
    events: Vec<EventDescription>,
    buffer: Vec<u8>,
    /// Whether the last look found something, and whether it took the ring for a stopped one.
    looked: Option<bool>,
    seen: Seen,
}

impl Checked {
    /// `consumer`, which is new, with the event types that it shall know.
    #[must_use]
    pub fn new(consumer: Consumer, events: Vec<EventDescription>) -> Self {
        Self { consumer, events, buffer: Vec::new(), looked: None, seen: Seen::default() }
    }

    /// A consumer of the ring in `memory`, from its beginning or from where an earlier one stopped.
    #[must_use]
    pub fn of_ring(memory: HostMemory, rings: Rings, resume: bool) -> Self {
        let make = if resume { Consumer::resume } else { Consumer::new };
        Self::new(make(memory, rings.geometry, rings.mode, CPU), events::described())
    }

    /// Reads all that a stopped ring still holds, and as often as its sub-buffers allow; how many were copied.
    ///
    /// # Panics
    /// When a property that the target checks does not hold.
    pub fn drain(&mut self, latest: u64, mut between: impl FnMut()) -> u32 {
        let mut copied = 0;
        // A lap of complete sub-buffers, a lap that the write count claims behind them, and one look that finds
        // nothing.
        for _ in 0..=2 * self.consumer.sub_buffers() {
            if !self.accept(true, latest, &mut between) {
                break;
            }
            copied += 1;
        }
        copied
    }

    /// Takes a step, other than [`REPLACE`]. `between` runs wherever the consumer calls back.
    ///
    /// # Panics
    /// When a property that the target checks does not hold.
    pub fn step(&mut self, kind: u8, argument: u64, mut between: impl FnMut()) {
        match kind {
            POLL => self.look(false),
            POLL_STOPPED => self.look(true),
            ACCEPT => {
                if let Some(stopped) = self.looked.take() {
                    self.accept(stopped, argument, &mut between);
                }
            }
            FINISH => self.consumer.finish(),
            FLUSH => {
                let request = self.consumer.request_flush();
                let _ = self.consumer.is_flushed(request);
            }
            _ => {
                self.drain(argument, between);
            }
        }
        self.check_growth();
    }

    /// Looks at what the ring holds, and leaves it there.
    fn look(&mut self, stopped: bool) {
        let size = self.consumer.packet_size();
        let polled = poll(&mut self.consumer, &mut self.buffer, stopped);
        let (is_ready, is_corrupt) = (polled.is_ready(), polled.is_corrupt());
        drop(polled);
        assert_eq!(self.consumer.is_corrupt(), is_corrupt);
        assert!(!is_ready || self.buffer.len() == size);
        self.looked = is_ready.then_some(stopped);
    }

    /// Polls, and accepts what is there; `false` when there is nothing.
    fn accept(&mut self, stopped: bool, latest: u64, between: &mut impl FnMut()) -> bool {
        let events = &self.events;
        let between = std::cell::RefCell::new(between);
        let known = |id| {
            between.borrow_mut()();
            events::find(events, id)
        };
        let (cpu_id, size) = (self.consumer.cpu_id(), self.consumer.packet_size());
        let Some(delivered) = poll(&mut self.consumer, &mut self.buffer, stopped).ready() else { return false };
        if let Some(packet) = delivered.accept(UUID, latest, known) {
            assert_eq!((packet.header().cpu_id, packet.header().packet_size), (cpu_id, size as u64 * 8));
            self.seen.check_packet(&packet, events, latest);
        }
        true
    }

    fn check_growth(&mut self) {
        let now = Seen {
            time_end: self.seen.time_end,
            packets: self.seen.packets,
            lost: self.consumer.lost().total(),
            rejected: self.consumer.rejected_bytes(),
            overwritten: self.consumer.overwritten(),
            corrupt: self.consumer.is_corrupt(),
        };
        assert!(now.lost >= self.seen.lost && now.rejected >= self.seen.rejected);
        assert!(now.overwritten >= self.seen.overwritten);
        assert!(now.corrupt || !self.seen.corrupt, "corrupt for good");
        self.seen = now;
    }
}

/// Gives an input to the reader and checks what must hold. Every fourth time that the consumer calls back, the next
/// line of the script is applied if it is a change.
///
/// # Panics
/// When a property that the target checks does not hold.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let rings = rings(input.byte());
    let memory = HostMemory::private(rings.ring_size());
    let mut checked = Checked::of_ring(memory.clone(), rings, false);
    let mut script = Script::new(input.0, STEPS);
    while let Some(op) = script.next() {
        op.apply(&memory);
        match op {
            Op::Step { kind: REPLACE, argument } => {
                checked = Checked::of_ring(memory.clone(), rings, argument % 2 == 1);
            }
            Op::Step { kind, argument } => {
                let mut calls = 0_u32;
                let mut ahead = script.clone();
                checked.step(kind, argument, || {
                    calls += 1;
                    if calls.is_multiple_of(4) {
                        ahead.next().iter().for_each(|op| op.apply(&memory));
                    }
                });
            }
            _ => {}
        }
    }
}
