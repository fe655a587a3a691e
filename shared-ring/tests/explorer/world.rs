//! One virtual CPU with its ring, in which every shared access is a step, and at every step something else may happen.
//!
//! The producer and the consumer are straight-line code over a storage. The storage of this world asks the schedule
//! before each access (and before each reading of the clock) whether a context interrupts here. What interrupts runs to
//! its end, being interrupted itself, and then the access takes place: exactly what an interrupt or NMI does to its CPU,
//! and what a host does that descheduled the vCPU.

mod memory;

use crate::oracle::{Delivered, Oracle};
use crate::schedule::Schedule;
use memory::Memory;
use shared_ring::consumer::{self, Consumer, Poll};
use shared_ring::event::{EventDescription, FieldDescription, FieldType};
use shared_ring::host::memory::{HostMemory, RingMemory};
use shared_ring::layout::{
    Geometry, Mode, PacketHeader, RING_FLUSH_DONE, RING_HEADER_SIZE, RING_LOST_FULL, RING_LOST_TOO_LARGE,
    RING_LOST_WRAPPED, RING_OVERWRITTEN, RING_READ_COUNT, RING_WRITE_COUNT, padded,
};
use shared_ring::producer::{Abandoned, Producer};
use std::cell::{Cell, RefCell};
use std::mem::offset_of;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// What a context does, or the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Records one event with this many payload bytes.
    Record(usize),
    /// Reserves a record with this many payload bytes, writes it, and gives it up.
    Discard(usize),
    /// Records one event with this many payload bytes, and dies at one of its steps or at none: it never goes on.
    Die(usize),
    /// Repairs what a context that died has left, once nothing else is open.
    Repair,
    /// The host delivers one sub-buffer, if one is ready.
    Consume,
    /// The guest's timer closes the current sub-buffer, whether anybody asked for it or not.
    ForceSwitch,
    /// The host asks for the current sub-buffer.
    RequestFlush,
    /// The guest's timer closes the current sub-buffer if the host has asked for it.
    Timer,
    /// The host reads all that a flight recorder holds, by a consumer made for that.
    Snapshot,
    /// A hostile guest writes into each packet header that the whole sub-buffer is in use.
    ClaimAll,
}

/// A ring, what happens on it, and what may happen in between.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What happens when the ring is full.
    pub mode: Mode,
    /// Bytes of a sub-buffer.
    pub sub_buffer_size: u64,
    /// Sub-buffers of the ring.
    pub sub_buffers: u32,
    /// What happens first, uninterrupted.
    pub before: Vec<Activity>,
    /// What happens then, and is interrupted.
    pub task: Vec<Activity>,
    /// What happens last, uninterrupted.
    pub after: Vec<Activity>,
    /// What may interrupt at each step.
    pub interrupts: Vec<Activity>,
    /// Interrupts of one run.
    pub most_interrupts: usize,
    /// Contexts nested in each other: 3 is task, interrupt, NMI.
    pub depth: usize,
    /// First time read, ticks.
    pub first_time: u64,
    /// Ticks between two readings of the clock.
    pub tick: u64,
    /// Read a copy of the ring at each step, as after a crash.
    pub crashes: bool,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            mode: Mode::Discard,
            sub_buffer_size: 256,
            sub_buffers: 2,
            before: Vec::new(),
            task: Vec::new(),
            after: Vec::new(),
            interrupts: vec![Activity::Record(8)],
            most_interrupts: 3,
            depth: 3,
            first_time: 1000,
            tick: 1,
            crashes: false,
        }
    }
}

/// How much was explored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Explored {
    /// Schedules run.
    pub schedules: u64,
    /// Steps of all of them.
    pub steps: u64,
    /// Most steps that one record took on its own account.
    pub longest: u64,
}

/// A property that a schedule breaks.
#[derive(Clone, Debug)]
pub struct Violation {
    /// What is wrong.
    pub what: String,
    /// Where the schedule interrupts: (number of the choice, which interrupt counted from 1).
    pub schedule: Vec<(usize, usize)>,
    /// Schedules that were run to find it.
    pub schedules: u64,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} (schedule {:?}, number {})", self.what, self.schedule, self.schedules)
    }
}

/// Steps that one run may take in all: far more than any does, so that a loop without end is found.
const STEP_LIMIT: u64 = 20_000;
/// Steps that a record may take per look at the ring; it looks again only after another context recorded.
const STEPS_PER_LOOK: u64 = 48;

/// Event of records with `payload` bytes.
fn event_id(payload: usize) -> u16 {
    100 + payload as u16
}

/// The event types of a scenario: one for each size, so that the size of a delivered record is checked too.
fn events(scenario: &Scenario) -> Vec<EventDescription> {
    let field = |name: &str, ty| FieldDescription { name: name.into(), ty, hex: false };
    let ran = scenario.before.iter().chain(&scenario.task).chain(&scenario.after);
    let activities = ran.chain(&scenario.interrupts);
    activities
        .filter_map(|activity| match activity {
            Activity::Record(payload) | Activity::Discard(payload) | Activity::Die(payload) => Some(*payload),
            _ => None,
        })
        .map(|payload| EventDescription {
            id: event_id(payload),
            class: 0,
            name: format!("test:event{payload}"),
            fields: vec![field("number", FieldType::U64), field("filling", FieldType::CharArray((payload - 8) as u16))],
        })
        .collect()
}

/// One CPU, its ring, and everything around it that can happen.
pub struct World {
    scenario: Scenario,
    geometry: Geometry,
    words: Vec<Cell<u64>>,
    schedule: RefCell<Schedule>,
    oracle: RefCell<Oracle>,
    consumer: RefCell<Option<Consumer<Memory>>>,
    events: Vec<EventDescription>,
    exploring: Cell<bool>,
    interrupts_left: Cell<usize>,
    depth: Cell<usize>,
    /// Attempt of the context that runs.
    current: Cell<Option<usize>>,
    clock: Cell<u64>,
    steps: Cell<u64>,
    own_steps: Cell<u64>,
    records_begun: Cell<u64>,
    longest: Cell<u64>,
    /// Number of the host's last flush request, and what was reserved when it was made.
    flush: Cell<Option<(u64, u64)>>,
    /// Sub-buffers by which consumers moved a flight recorder's read count.
    advanced: Cell<u64>,
    /// The guest was hostile: what it damaged may be rejected.
    lied: Cell<bool>,
    /// Depth of the context that may die at its next step.
    mortal: Cell<Option<usize>>,
    /// A context has died and is being taken down: it does nothing any more.
    dying: Cell<bool>,
    /// A repair is under way.
    repairing: Cell<bool>,
}

/// What takes a context down that has died.
struct Death;

impl World {
    fn new(scenario: &Scenario) -> &'static Self {
        let geometry = Geometry::for_verification(scenario.sub_buffer_size, scenario.sub_buffers);
        let data = (geometry.ring_size(scenario.mode) - RING_HEADER_SIZE) / 8;
        // Leaked, once per exploration: producers and the consumer hold references to the world that holds them.
        Box::leak(Box::new(Self {
            scenario: scenario.clone(),
            geometry,
            words: vec![Cell::new(0); geometry.ring_size(scenario.mode) / 8],
            schedule: RefCell::default(),
            oracle: RefCell::new(Oracle::new(geometry, scenario.mode, data)),
            consumer: RefCell::new(None),
            events: events(scenario),
            exploring: Cell::new(false),
            interrupts_left: Cell::new(0),
            depth: Cell::new(0),
            current: Cell::new(None),
            clock: Cell::new(0),
            steps: Cell::new(0),
            own_steps: Cell::new(0),
            records_begun: Cell::new(0),
            longest: Cell::new(0),
            flush: Cell::new(None),
            advanced: Cell::new(0),
            lied: Cell::new(false),
            mortal: Cell::new(None),
            dying: Cell::new(false),
            repairing: Cell::new(false),
        }))
    }

    /// A shared access is about to take place.
    fn step(&self) {
        self.steps.set(self.steps.get() + 1);
        self.own_steps.set(self.own_steps.get() + 1);
        assert!(self.steps.get() < STEP_LIMIT, "a run without end");
        // A discard ring whose consumer dies in the middle of clearing was already read by it.
        let readable = self.scenario.mode == Mode::FlightRecorder || self.consumer.borrow().is_some();
        if self.scenario.crashes && self.exploring.get() && readable {
            self.crash();
        }
        while self.exploring.get() && self.interrupts_left.get() > 0 && self.depth.get() < self.scenario.depth {
            let option = self.schedule.borrow_mut().choose(1 + self.scenario.interrupts.len());
            let Some(&activity) = option.checked_sub(1).and_then(|at| self.scenario.interrupts.get(at)) else { break };
            self.interrupts_left.set(self.interrupts_left.get() - 1);
            self.run(activity);
        }
        if self.mortal.get() == Some(self.depth.get()) && self.schedule.borrow_mut().choose(2) == 1 {
            self.mortal.set(None);
            self.dying.set(true);
            resume_unwind(Box::new(Death));
        }
    }

    fn run(&self, activity: Activity) {
        let interrupted = (self.current.get(), self.own_steps.get());
        self.depth.set(self.depth.get() + 1);
        match activity {
            Activity::Record(payload) => self.attempt(payload, |now, number| {
                self.producer().record(now, event_id(payload), &crate::oracle::payload(number, payload))
            }),
            Activity::Discard(payload) => self.attempt(payload, |now, number| {
                let producer = self.producer();
                let Some(mut reservation) = producer.reserve(now, event_id(payload), payload) else { return false };
                reservation.write(0, &crate::oracle::payload(number, payload)).expect("it was reserved");
                self.oracle.borrow_mut().attempts[number].discarded = true;
                reservation.discard();
                true
            }),
            Activity::Die(payload) => self.die(payload),
            Activity::Repair => self.repair(),
            Activity::Consume => self.consume(),
            Activity::ForceSwitch => {
                self.current.set(None);
                self.producer().force_switch(|| self.tick());
            }
            Activity::RequestFlush => self.request_flush(),
            Activity::Timer => {
                self.current.set(None);
                self.producer().poll_flush_request(|| self.tick());
                self.check_flushed();
            }
            Activity::Snapshot => self.snapshot(),
            Activity::ClaimAll => self.claim_all(),
        }
        self.depth.set(self.depth.get() - 1);
        self.current.set(interrupted.0);
        self.own_steps.set(interrupted.1);
    }

    fn memory(&self) -> Memory {
        // SAFETY: worlds are made by `new` only, which leaks them.
        #[allow(unsafe_code)]
        Memory(unsafe { &*std::ptr::from_ref(self) })
    }

    /// An attempt to record `size` payload bytes by `record`, which is given a clock and the attempt's number, and says
    /// whether there was room.
    fn attempt(&self, size: usize, record: impl FnOnce(&dyn Fn() -> u64, usize) -> bool) {
        let number = self.oracle.borrow_mut().begin(size);
        self.current.set(Some(number));
        self.own_steps.set(0);
        let others = self.records_begun.get();
        self.records_begun.set(others + 1);
        let now = || {
            let time = self.tick();
            self.oracle.borrow_mut().attempts[number].time = time;
            time
        };
        let recorded = record(&now, number);

        let looks = self.records_begun.get() - others;
        self.longest.set(self.longest.get().max(self.own_steps.get()));
        let mut oracle = self.oracle.borrow_mut();
        if self.own_steps.get() > STEPS_PER_LOOK * looks {
            oracle.violate(|| format!("attempt {number} took {} steps beside {looks} records", self.own_steps.get()));
        }
        let attempt = oracle.attempts[number].clone();
        if recorded != attempt.committed {
            oracle.violate(|| format!("attempt {number} returned {recorded}: {attempt:?}"));
        }
        oracle.attempts[number].returned = true;
        drop(oracle);
        self.check_flushed();
    }

    /// A record whose context dies at one of its steps, if the schedule wants. One dies in a run.
    fn die(&self, payload: usize) {
        if self.oracle.borrow().attempts.iter().any(|attempt| attempt.died) {
            return;
        }
        self.mortal.set(Some(self.depth.get()));
        let depth = self.depth.get();
        let lived = catch_unwind(AssertUnwindSafe(|| {
            self.attempt(payload, |now, number| {
                self.producer().record(now, event_id(payload), &crate::oracle::payload(number, payload))
            });
        }));
        self.mortal.set(None);
        if let Err(what) = lived {
            if !what.is::<Death>() {
                resume_unwind(what);
            }
            self.dying.set(false);
            self.depth.set(depth);
            let dead = self.current.get().expect("an attempt died");
            self.oracle.borrow_mut().attempts[dead].died = true;
        }
    }

    /// Repairs in the name of the context that died, if one did; not while nested in a repair.
    fn repair(&self) {
        let dead = self.oracle.borrow().attempts.iter().position(|attempt| attempt.died);
        let Some(dead) = dead else { return };
        if self.repairing.replace(true) {
            return;
        }
        self.current.set(Some(dead));
        self.oracle.borrow_mut().give_up(dead);
        // SAFETY: contexts end before those that they have interrupted, and the only one that did not will not go on.
        #[allow(unsafe_code)]
        let is_lost = unsafe { self.producer().repair_holes(Abandoned::One) };
        self.oracle.borrow_mut().repaired(dead, is_lost);
        self.repairing.set(false);
    }

    fn tick(&self) -> u64 {
        self.step();
        self.clock.replace(self.clock.get() + self.scenario.tick)
    }

    fn producer(&self) -> Producer<Memory> {
        // SAFETY: the memory covers the ring and was zeroed before the run.
        #[allow(unsafe_code)]
        unsafe {
            Producer::new(self.memory(), self.geometry, self.scenario.mode)
        }
    }

    fn request_flush(&self) {
        let Some(mut consumer) = self.consumer.borrow_mut().take() else { return };
        self.current.set(None);
        // What was reserved up to here must be out when the request is done.
        let reserved = self.word(RING_WRITE_COUNT);
        let request = consumer.request_flush();
        self.flush.set(Some((request, reserved)));
        *self.consumer.borrow_mut() = Some(consumer);
    }

    /// If the producer says that it has honoured the request, everything reserved before lies in closed sub-buffers.
    fn check_flushed(&self) {
        if let Some((request, reserved)) = self.flush.get()
            && self.word(RING_FLUSH_DONE) >= request
        {
            let write = self.word(RING_WRITE_COUNT);
            let closed = write - self.geometry.within(write);
            if closed < reserved {
                let what = format!("flush {request} is done, but {reserved} is reserved and only {closed} closed");
                self.oracle.borrow_mut().violate(|| what);
            }
        }
    }

    /// A control word, looked at from outside: not a step.
    fn word(&self, offset: usize) -> u64 {
        self.words[offset / 8].get()
    }

    fn snapshot(&self) {
        // One consumer at a time: a snapshot is made by one that nobody else is.
        let Some(own) = self.consumer.borrow_mut().take() else { return };
        self.current.set(None);
        let expected = self.oracle.borrow().retained(self.word(RING_WRITE_COUNT), false);
        let records = self.read_all(Consumer::new(self.memory(), self.geometry, self.scenario.mode, 0));
        let write = self.word(RING_WRITE_COUNT);
        self.oracle.borrow_mut().snapshot(&records, &expected, write);
        *self.consumer.borrow_mut() = Some(own);
    }

    /// What `consumer` gets out of a ring that it takes for stopped, sub-buffer by sub-buffer.
    fn read_all<M: RingMemory>(&self, mut consumer: Consumer<M>) -> Vec<Vec<Delivered>> {
        let mut packet = Vec::new();
        let mut packets = Vec::new();
        while let Some(found) = consumer.poll_stopped(&mut packet).ready() {
            packets.push(self.accept(found, true));
        }
        if consumer.is_corrupt() {
            self.oracle.borrow_mut().violate(|| "a consumer of all found the ring corrupt".to_owned());
        }
        packets
    }

    fn claim_all(&self) {
        self.lied.set(true);
        let size = self.geometry.sub_buffer_size();
        for start in (0..self.geometry.data_size()).step_by(size as usize) {
            let word = self.geometry.data_offset(start) + offset_of!(PacketHeader, content_size);
            self.words[word / 8].set(size * 8);
        }
    }

    fn consume(&self) {
        // One consumer per ring: it cannot be interrupted by itself.
        let Some(mut consumer) = self.consumer.borrow_mut().take() else { return };
        self.current.set(None);
        let mut packet = Vec::new();
        match consumer.poll(&mut packet) {
            Poll::Ready(found) => {
                let records = self.accept(found, false);
                self.oracle.borrow_mut().delivered(&records, true);
            }
            Poll::Empty => {}
            Poll::Corrupt => self.oracle.borrow_mut().violate(|| "the consumer found the ring corrupt".to_owned()),
        }
        if consumer.rejected_bytes() > 0 && !self.lied.get() {
            let rejected = consumer.rejected_bytes();
            self.oracle.borrow_mut().violate(|| format!("the consumer rejected {rejected} bytes of a running ring"));
        }
        *self.consumer.borrow_mut() = Some(consumer);
    }

    /// Accepts what was copied, maybe before the sub-buffer was closed or while it was being closed (`is_open`).
    fn accept<M: RingMemory>(&self, found: consumer::Delivered<'_, M>, is_open: bool) -> Vec<Delivered> {
        let known = |id| self.events.iter().find(|event| event.id == id);
        let sequence = found.sequence();
        let Some(packet) = found.accept([7; 16], u64::MAX, known) else { return Vec::new() };
        let header = packet.header();
        self.oracle.borrow_mut().counts(sequence, header.lost_full + header.lost_wrapped, is_open);
        let content = padded(packet.content().len());
        let mut records = packet.records();
        let delivered: Vec<_> =
            records.by_ref().map(|record| Delivered { time: record.time, payload: record.payload.to_vec() }).collect();
        if records.offset() != content || delivered.len() as u64 != packet.record_count() {
            self.oracle
                .borrow_mut()
                .violate(|| format!("a packet claims {content} bytes, its records end at {}", records.offset()));
        }
        delivered
    }

    /// Everything stops here: what does the ring hold?
    fn crash(&self) {
        let copy = HostMemory::private(self.words.len() * 8);
        for (at, word) in self.words.iter().enumerate().filter(|(_, word)| word.get() != 0) {
            copy.store(at * 8, word.get());
        }
        match self.scenario.mode {
            Mode::Discard => {
                let consumer = Consumer::resume(copy, self.geometry, self.scenario.mode, 0);
                let records = self.read_all(consumer).concat();
                self.oracle.borrow_mut().crashed(&records);
            }
            Mode::FlightRecorder => {
                let records = self.read_all(Consumer::new(copy, self.geometry, self.scenario.mode, 0));
                let write = self.word(RING_WRITE_COUNT);
                let mut oracle = self.oracle.borrow_mut();
                let expected = oracle.retained(write, true);
                oracle.snapshot(&records, &expected, write);
            }
        }
    }

    /// One run under the current schedule.
    fn run_all(&self) {
        self.words.iter().for_each(|word| word.set(0));
        *self.oracle.borrow_mut() =
            Oracle::new(self.geometry, self.scenario.mode, self.words.len() - RING_HEADER_SIZE / 8);
        *self.consumer.borrow_mut() = Some(Consumer::new(self.memory(), self.geometry, self.scenario.mode, 0));
        self.clock.set(self.scenario.first_time);
        self.interrupts_left.set(self.scenario.most_interrupts);
        self.steps.set(0);
        self.records_begun.set(0);
        self.flush.set(None);
        self.advanced.set(0);
        self.lied.set(false);
        self.mortal.set(None);
        self.dying.set(false);
        self.repairing.set(false);

        for &activity in &self.scenario.before {
            self.run(activity);
        }
        self.exploring.set(true);
        for &activity in &self.scenario.task {
            self.run(activity);
        }
        self.exploring.set(false);
        for &activity in &self.scenario.after {
            self.run(activity);
        }
        self.end();
    }

    /// Nothing is under way any more: the counts are exact, and the rest of the ring is delivered.
    fn end(&self) {
        let memory = self.memory();
        let write_count = RingMemory::load(&memory, RING_WRITE_COUNT);
        let mut consumer = self.consumer.borrow_mut().take().expect("put back by every poll");
        let mut packet = Vec::new();
        for index in 0..self.scenario.sub_buffers as usize {
            let counted = RingMemory::load(&memory, self.geometry.commit_count_offset(index));
            let published = RingMemory::load(&memory, self.geometry.commit_seq_offset(index));
            let mut oracle = self.oracle.borrow_mut();
            let expected = oracle.commit_count(index, write_count);
            if counted != expected {
                oracle.violate(|| format!("commit count of sub-buffer {index} is {counted}, not {expected}"));
            }
            let whole = expected & !(self.geometry.sub_buffer_size() - 1);
            if published != whole {
                oracle.violate(|| format!("sub-buffer {index} is published up to {published}, not {whole}"));
            }
            // Which lap it says is complete, and whether a writer holds it.
            let word = RingMemory::load(&memory, self.geometry.exchange_offset(index));
            let exchange = (word >> 18, word >> 16 & 1 == 1);
            let is_right = exchange == (self.geometry.sequence(whole), expected != whole);
            if self.scenario.mode == Mode::FlightRecorder && !is_right {
                oracle.violate(|| format!("sub-buffer {index} is published up to {whole}, its exchange word {word:x}"));
            }
            let prefix = RingMemory::load(&memory, self.geometry.commit_prefix_offset(index));
            if prefix > expected {
                oracle.violate(|| format!("sub-buffer {index} claims to be whole up to {prefix}, not {expected}"));
            }
        }
        for counter in [RING_LOST_FULL, RING_LOST_WRAPPED, RING_LOST_TOO_LARGE] {
            let counted = RingMemory::load(&memory, counter);
            let mut oracle = self.oracle.borrow_mut();
            let lost = oracle.attempts.iter().filter(|attempt| attempt.lost == Some(counter)).count() as u64;
            if counted != lost {
                oracle.violate(|| format!("loss counter {counter} is {counted}, {lost} records were lost"));
            }
        }
        if self.scenario.mode == Mode::FlightRecorder {
            return self.end_flight_recorder(write_count);
        }
        while let Some(found) = consumer.poll_stopped(&mut packet).ready() {
            let records = self.accept(found, false);
            self.oracle.borrow_mut().delivered(&records, false);
        }
        consumer.finish();
        let mut oracle = self.oracle.borrow_mut();
        if consumer.is_corrupt() || (consumer.rejected_bytes() > 0 && !self.lied.get()) {
            oracle.violate(|| format!("the consumer rejected {} bytes", consumer.rejected_bytes()));
        }
        let lost = oracle.attempts.iter().filter(|attempt| attempt.lost.is_some()).count() as u64;
        if consumer.lost().total() != lost {
            oracle.violate(|| format!("the consumer counts {} lost, {lost} were", consumer.lost().total()));
        }
        oracle.ended();
    }

    /// A flight recorder holds the last sub-buffers, whoever read them before, and counts what nobody had read.
    fn end_flight_recorder(&self, write_count: u64) {
        let pushed = self.word(RING_OVERWRITTEN);
        let read = self.geometry.sequence(self.word(RING_READ_COUNT));
        // Who dies in the midst of a push may have counted it or not.
        let may_lack = u64::from(self.oracle.borrow().attempts.iter().any(|attempt| attempt.died));
        if !(pushed + self.advanced.get()..=pushed + self.advanced.get() + may_lack).contains(&read) {
            let advanced = self.advanced.get();
            self.oracle
                .borrow_mut()
                .violate(|| format!("{read} sub-buffers are behind the reader: {advanced} read, {pushed} overwritten"));
        }
        for _ in 0..2 {
            let records = self.read_all(Consumer::new(self.memory(), self.geometry, self.scenario.mode, 0));
            let mut oracle = self.oracle.borrow_mut();
            let expected = oracle.last_sub_buffers(write_count);
            if expected.len() != records.iter().map(Vec::len).sum::<usize>() {
                oracle.violate(|| format!("the ring should hold attempts {expected:?}, it holds {records:x?}"));
            }
            oracle.snapshot(&records, &expected, write_count);
        }
        self.oracle.borrow_mut().ended();
    }
}

/// Runs every schedule of `scenario`.
///
/// # Errors
///
/// The first schedule that breaks a property.
pub fn explore(scenario: &Scenario) -> Result<Explored, Violation> {
    let world = World::new(scenario);
    let mut explored = Explored::default();
    loop {
        world.run_all();
        explored.schedules += 1;
        explored.steps += world.steps.get();
        explored.longest = world.longest.get();
        if let Some(what) = world.oracle.borrow_mut().violation.take() {
            let schedule = world.schedule.borrow().deviations();
            return Err(Violation { what, schedule, schedules: explored.schedules });
        }
        if !world.schedule.borrow_mut().advance() {
            return Ok(explored);
        }
    }
}
