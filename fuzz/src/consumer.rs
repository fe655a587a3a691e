//! The consumer of a ring, with the ring's memory changing between its calls, and inside them wherever it calls back.
//!
//! The first byte of an input chooses geometry and mode; a [`script`](crate::script) follows.

use crate::events;
use crate::script::{Input, Op, Script};
use shared_ring::consumer::{Accepted, Consumer, Poll};
use shared_ring::event::EventDescription;
use shared_ring::host_memory::HostMemory;
use shared_ring::layout::{CTF_MAGIC, Geometry, Mode, PACKET_HEADER_SIZE};
use shared_ring::packet::{Records, read_header};
use shared_ring::region::Rings;

/// Step: look for a complete sub-buffer.
pub const POLL: u8 = 0;
/// Step: look for any sub-buffer of a stopped ring.
pub const POLL_STOPPED: u8 = 1;
/// Step: accept what was copied; the argument is the youngest time.
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

/// A consumer, and what is asserted about it.
#[derive(Debug)]
pub struct Checked {
    consumer: Consumer,
    events: Vec<EventDescription>,
    packet: Vec<u8>,
    copied: bool,
    seen: Seen,
}

impl Checked {
    /// `consumer`, which is new, with the event types that it shall know.
    #[must_use]
    pub fn new(consumer: Consumer, events: Vec<EventDescription>) -> Self {
        Self { consumer, events, packet: Vec::new(), copied: false, seen: Seen::default() }
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
    /// When something does not hold.
    pub fn drain(&mut self, latest: u64, mut between: impl FnMut()) -> u32 {
        let mut copied = 0;
        // A lap of complete sub-buffers, a lap that the write count claims behind them, and one look that finds nothing.
        for _ in 0..=2 * self.consumer.sub_buffers() {
            self.poll(true);
            if !self.copied {
                break;
            }
            copied += 1;
            self.accept(latest, &mut between);
        }
        copied
    }

    /// Takes a step, other than [`REPLACE`]. `between` runs wherever the consumer calls back.
    ///
    /// # Panics
    /// When something does not hold.
    pub fn step(&mut self, kind: u8, argument: u64, mut between: impl FnMut()) {
        match kind {
            POLL => self.poll(false),
            POLL_STOPPED => self.poll(true),
            ACCEPT => self.accept(argument, &mut between),
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

    fn poll(&mut self, stopped: bool) {
        let polled = match stopped {
            false => self.consumer.poll(&mut self.packet),
            true => self.consumer.poll_stopped(&mut self.packet),
        };
        self.copied = polled == Poll::Copied;
        assert_eq!(self.consumer.is_corrupt(), polled == Poll::Corrupt);
        assert!(!self.copied || self.packet.len() == self.consumer.packet_size());
    }

    fn accept(&mut self, latest: u64, between: &mut impl FnMut()) {
        if !std::mem::take(&mut self.copied) {
            return;
        }
        let events = &self.events;
        let between = std::cell::RefCell::new(between);
        let known = |id| {
            between.borrow_mut()();
            events::find(events, id)
        };
        if let Some(accepted) = self.consumer.accept(&mut self.packet, UUID, latest, known) {
            self.check_packet(accepted, latest);
        }
    }

    /// What is handed on is a packet that can be believed whole.
    fn check_packet(&mut self, accepted: Accepted, latest: u64) {
        let header = read_header(&self.packet).expect("a packet has a header");
        assert_eq!((header.magic, header.uuid, header.cpu_id), (CTF_MAGIC, UUID, self.consumer.cpu_id()));
        assert_eq!(header.content_size, accepted.content as u64 * 8);
        assert_eq!(header.packet_size, self.packet.len() as u64 * 8);
        assert_eq!(header.sequence, self.seen.packets);
        assert_eq!(header.time_end, accepted.time_end);
        assert!((PACKET_HEADER_SIZE..=self.packet.len()).contains(&accepted.content));
        assert!(accepted.records > 0);
        assert!(self.packet[accepted.content..].iter().all(|&byte| byte == 0));
        let mut time = self.seen.time_end.max(header.time_begin);
        let mut records = Records::new(&self.packet, accepted.content, header.time_begin);
        let mut count = 0;
        for record in &mut records {
            let event = events::find(&self.events, record.id).expect("accepted records are of known events");
            assert!(event.accepts(record.payload));
            assert!((time..=latest).contains(&record.time), "{} is not in {time}..={latest}", record.time);
            time = record.time;
            count += 1;
        }
        assert!(!records.damaged());
        assert_eq!((count, records.offset()), (accepted.records, accepted.content));
        assert_eq!(time, accepted.time_end);
        self.seen.time_end = time;
        self.seen.packets += 1;
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

/// Runs an input. Every fourth time that the consumer calls back, the next line of the script is applied under its
/// feet, if it is a change.
///
/// # Panics
/// When something does not hold.
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
