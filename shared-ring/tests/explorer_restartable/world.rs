//! Two CPUs with a ring each, and threads on them that the world disturbs wherever it can.

mod ring;

use crate::schedule::Schedule;
use ring::{Kernel, Ring};
use shared_ring::consumer::Consumer;
use shared_ring::event::{EventDescription, FieldDescription, FieldType};
use shared_ring::host::memory::{HostMemory, RingMemory};
use shared_ring::layout::{
    Geometry, Mode, PACKET_HEADER_SIZE, RING_LOST_FULL, RING_LOST_TOO_LARGE, RING_READ_COUNT, RING_WRITE_COUNT,
};
use shared_ring::restartable::{Draft, Recorded, RestartableProducer, record};
use std::cell::{Cell, RefCell};

/// Number of CPUs, hence of rings.
const CPUS: usize = 2;
/// Steps that one run may take in all.
const STEP_LIMIT: u64 = 20_000;

/// What happens, by a thread's own doing or to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// The thread records an event with this many payload bytes.
    Record(usize),
    /// A signal handler of the thread does.
    Handler(usize),
    /// Another thread, on this CPU, does.
    Thread(usize, usize),
    /// The thread is moved to the other CPU.
    Migrate,
    /// The host delivers one sub-buffer of each ring.
    Consume,
    /// The host reads all that flight recorders hold.
    Snapshot,
}

/// Rings, what happens on them, and what may happen in between.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub mode: Mode,
    pub sub_buffer_size: u64,
    pub sub_buffers: u32,
    /// What happens first, undisturbed.
    pub before: Vec<Activity>,
    /// What happens then.
    pub task: Vec<Activity>,
    /// What may happen at each step.
    pub interrupts: Vec<Activity>,
    /// How often in one run.
    pub most_interrupts: usize,
    /// Ticks between two readings of the clock.
    pub tick: u64,
    /// Read a copy of the rings at each step, as after a crash.
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
            interrupts: vec![Activity::Handler(8), Activity::Thread(0, 8), Activity::Migrate, Activity::Consume],
            most_interrupts: 3,
            tick: 1,
            crashes: false,
        }
    }
}

/// A thread's rseq area, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Area {
    Clear,
    Witness,
    Sequence,
}

/// A thread: its area, its CPU, and how often it was disturbed.
#[derive(Clone, Copy, Debug)]
struct State {
    area: Area,
    cpu: usize,
    disturbed: u64,
}

/// A record that can be read: payload number, time, and the sub-buffer that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Written {
    number: u64,
    time: u64,
    sequence: u64,
}

/// What the host knows of a CPU's ring, and what is true of it.
#[derive(Debug, Default)]
struct Truth {
    written: Vec<Written>,
    /// How many of them were delivered.
    delivered: usize,
    /// Numbers of the sub-buffers before which records were lost for want of room.
    lost_before: Vec<u64>,
}

/// A packet: records by number and time, its sequence number, and its count of records lost for want of room.
type Found = (Vec<(u64, u64)>, u64, u64);

pub struct World {
    scenario: Scenario,
    geometry: Geometry,
    rings: [Vec<Cell<u64>>; CPUS],
    truths: [RefCell<Truth>; CPUS],
    consumers: [RefCell<Option<Consumer<Ring>>>; CPUS],
    events: Vec<EventDescription>,
    schedule: RefCell<Schedule>,
    exploring: Cell<bool>,
    interrupts_left: Cell<usize>,
    /// The thread that runs.
    thread: Cell<State>,
    /// Threads in the midst of a record beside it, each on its CPU until another one runs there.
    others: RefCell<Vec<State>>,
    clock: Cell<u64>,
    numbers: Cell<u64>,
    outcomes: RefCell<Vec<(Recorded, usize)>>,
    steps: Cell<u64>,
    violation: RefCell<Option<String>>,
}

impl World {
    fn new(scenario: &Scenario) -> &'static Self {
        let geometry = Geometry::for_verification(scenario.sub_buffer_size, scenario.sub_buffers);
        let activities = scenario.before.iter().chain(&scenario.task).chain(&scenario.interrupts);
        let sizes = activities.filter_map(|activity| match *activity {
            Activity::Record(size) | Activity::Handler(size) | Activity::Thread(_, size) => Some(size),
            _ => None,
        });
        let events = sizes.map(|size| {
            let field = |name: &str, ty| FieldDescription { name: name.into(), ty, hex: false };
            let filling = FieldType::CharArray((size - 8) as u16);
            let fields = vec![field("number", FieldType::U64), field("filling", filling)];
            EventDescription { id: size as u16, class: 0, name: format!("test:event{size}"), fields }
        });
        // Leaked, once per exploration: rings hold references to the world that holds them.
        Box::leak(Box::new(Self {
            scenario: scenario.clone(),
            geometry,
            rings: std::array::from_fn(|_| vec![Cell::new(0); geometry.ring_size(scenario.mode) / 8]),
            truths: std::array::from_fn(|_| RefCell::default()),
            consumers: std::array::from_fn(|_| RefCell::new(None)),
            events: events.collect(),
            schedule: RefCell::default(),
            exploring: Cell::new(false),
            interrupts_left: Cell::new(0),
            thread: Cell::new(State { area: Area::Clear, cpu: 0, disturbed: 0 }),
            others: RefCell::default(),
            clock: Cell::new(0),
            numbers: Cell::new(0),
            outcomes: RefCell::default(),
            steps: Cell::new(0),
            violation: RefCell::new(None),
        }))
    }

    fn violate(&self, what: impl FnOnce() -> String) {
        self.violation.borrow_mut().get_or_insert_with(what);
    }

    fn ring(&'static self, cpu: usize) -> Ring {
        Ring { world: self, cpu }
    }

    fn this(&self) -> &'static Self {
        // SAFETY: worlds are made by `new` only, which leaks them.
        unsafe { &*std::ptr::from_ref(self) }
    }

    /// Something is about to be done that the thread can be disturbed before.
    fn step(&self) {
        self.steps.set(self.steps.get() + 1);
        assert!(self.steps.get() < STEP_LIMIT, "a run without end");
        let is_read = self.consumers.iter().any(|consumer| consumer.borrow().is_none());
        if self.scenario.crashes && self.exploring.get() && !is_read {
            self.this().crash();
        }
        while self.exploring.get() && self.interrupts_left.get() > 0 {
            let option = self.schedule.borrow_mut().choose(1 + self.scenario.interrupts.len());
            let Some(&activity) = option.checked_sub(1).and_then(|at| self.scenario.interrupts.get(at)) else { return };
            self.interrupts_left.set(self.interrupts_left.get() - 1);
            self.this().run(activity);
        }
    }

    /// The thread that runs is disturbed, and from now on is on `cpu`, where no other one is any more.
    fn disturb(&self, cpu: usize) {
        let disturbed = |state: State| State { area: Area::Clear, disturbed: state.disturbed + 1, ..state };
        self.thread.set(State { cpu, ..disturbed(self.thread.get()) });
        for other in self.others.borrow_mut().iter_mut().filter(|other| other.cpu == cpu) {
            *other = disturbed(*other);
        }
    }

    fn run(&'static self, activity: Activity) {
        let here = self.thread.get().cpu;
        match activity {
            Activity::Record(size) => self.record(size),
            Activity::Handler(size) => {
                self.disturb(here);
                self.record(size);
            }
            Activity::Thread(cpu, size) => {
                self.others.borrow_mut().push(self.thread.get());
                self.thread.set(State { area: Area::Clear, cpu, disturbed: 0 });
                self.disturb(cpu);
                self.record(size);
                self.thread.set(self.others.borrow_mut().pop().expect("pushed above"));
            }
            Activity::Migrate => self.disturb((here + 1) % CPUS),
            Activity::Consume => (0..CPUS).for_each(|cpu| self.consume(cpu)),
            Activity::Snapshot => (0..CPUS).for_each(|cpu| self.snapshot(cpu)),
        }
    }

    fn record(&'static self, size: usize) {
        let number = self.numbers.get() + 1;
        self.numbers.set(number);
        let mut words = [0; 40];
        let mut draft = Draft::new(&mut words, size as u16, size).expect("forty words are enough");
        draft.payload().fill(number as u8);
        draft.payload()[..8].copy_from_slice(&number.to_le_bytes());
        // SAFETY: the rings are zeroed before each run, and threads that record into one are on its CPU.
        let producers: [_; CPUS] = std::array::from_fn(|cpu| unsafe {
            RestartableProducer::new(self.ring(cpu), self.geometry, self.scenario.mode)
        });
        // A CPU's clock reads odd or even times, so that one that was read elsewhere shows.
        let now = || {
            self.step();
            self.clock.set(self.clock.get() + 2 * self.scenario.tick);
            self.clock.get() + self.thread.get().cpu as u64
        };
        let recorded = record(&Kernel(self), |cpu| Some((&producers[cpu as usize], now)), draft);
        if recorded == Recorded::NoRing {
            self.violate(|| format!("record {number} was given up"));
        }
        self.outcomes.borrow_mut().push((recorded, size));
    }

    /// A sequence of the thread moves the position of `ring`: what was published with it?
    fn positioned(&self, ring: &Ring, to: usize, words: &[u64], position: u64) {
        let write = ring.word(RING_WRITE_COUNT).get();
        let is_record = self.geometry.within(write) != 0 && to == self.geometry.data_offset(write);
        if self.thread.get().cpu != ring.cpu {
            self.violate(|| format!("a thread of CPU {} records on CPU {}", self.thread.get().cpu, ring.cpu));
        }
        if write == position {
            return;
        }
        if !is_record {
            return;
        }
        let (id, first) = ((words[0] >> 32) as u16, words[0] as u32);
        let is_extended = id == u16::MAX;
        let begin = ring.word(to - self.geometry.within(write) as usize + 24).get();
        let time = if is_extended { words[1] } else { begin + u64::from(first.wrapping_sub(begin as u32)) };
        let number = words[if is_extended { 3 } else { 1 }];
        if time % 2 != ring.cpu as u64 {
            self.violate(|| format!("record {number} of CPU {} has a time of the other CPU", ring.cpu));
        }
        let mut truth = self.truths[ring.cpu].borrow_mut();
        if truth.written.last().is_some_and(|last| last.time >= time) {
            self.violate(|| format!("the time of record {number} runs back"));
        }
        truth.written.push(Written { number, time, sequence: self.geometry.sequence(write) });
    }

    /// A loss counter of `cpu`'s ring is about to be raised.
    fn counted(&self, cpu: usize, counter: usize) {
        if counter != RING_LOST_FULL {
            return;
        }
        let write = self.rings[cpu][RING_WRITE_COUNT / 8].get();
        if self.geometry.within(write) != 0 {
            self.violate(|| "a record is lost while a sub-buffer is open".to_owned());
        }
        self.truths[cpu].borrow_mut().lost_before.push(self.geometry.sequence(write));
    }

    /// Polls `consumer` once; `None` when there is nothing.
    fn poll<M: RingMemory>(&self, consumer: &mut Consumer<M>, stopped: bool) -> Option<Found> {
        let mut buffer = Vec::new();
        let poll = if stopped { consumer.poll_stopped(&mut buffer) } else { consumer.poll(&mut buffer) };
        if poll.is_corrupt() {
            self.violate(|| "the consumer found the ring corrupt".to_owned());
        }
        let delivered = poll.ready()?;
        let sequence = delivered.sequence();
        let known = |id| self.events.iter().find(|event| event.id == id);
        let Some(packet) = delivered.accept([7; 16], u64::MAX, known) else { return Some((Vec::new(), sequence, 0)) };
        let mut records = Vec::new();
        for record in packet.records() {
            let number = u64::from_le_bytes(record.payload[..8].try_into().expect("eight bytes"));
            if record.payload[8..].iter().any(|&byte| byte != number as u8) {
                self.violate(|| format!("the payload of record {number} is torn: {:x?}", record.payload));
            }
            records.push((number, record.time));
        }
        Some((records, sequence, packet.header().lost_full))
    }

    fn consume(&'static self, cpu: usize) {
        // Taken while another look is under way: a ring has one consumer.
        let Some(mut consumer) = self.consumers[cpu].borrow_mut().take() else { return };
        if let Some(found) = self.poll(&mut consumer, false) {
            self.delivered(cpu, found);
        }
        *self.consumers[cpu].borrow_mut() = Some(consumer);
    }

    fn delivered(&self, cpu: usize, (records, sequence, lost): Found) {
        let mut truth = self.truths[cpu].borrow_mut();
        for record in records.iter().copied() {
            let expected = truth.written.get(truth.delivered).map(|written| (written.number, written.time));
            if expected != Some(record) {
                self.violate(|| format!("delivered {record:?}, not {expected:?}"));
            }
            truth.delivered += 1;
        }
        let before = truth.lost_before.iter().filter(|&&before| before <= sequence).count() as u64;
        if !records.is_empty() && lost != before {
            self.violate(|| format!("packet {sequence} counts {lost} lost records, {before} were"));
        }
    }

    /// What a flight recorder holds: of these sub-buffers everything that was recorded.
    fn retained(&self, cpu: usize) -> Vec<(u64, u64)> {
        let current = self.geometry.sequence(self.rings[cpu][RING_WRITE_COUNT / 8].get());
        let oldest = (current + 1).saturating_sub(u64::from(self.scenario.sub_buffers));
        let truth = self.truths[cpu].borrow();
        let retained = truth.written.iter().filter(|written| written.sequence >= oldest);
        retained.map(|written| (written.number, written.time)).collect()
    }

    /// Reads a flight recorder that may be written meanwhile: what it holds all the while is there, in order and whole.
    fn snapshot(&'static self, cpu: usize) {
        let before = self.retained(cpu);
        let seen = self.read_all(Consumer::new(self.ring(cpu), self.geometry, self.scenario.mode, 0));
        let after = self.retained(cpu);
        let written: Vec<_> =
            self.truths[cpu].borrow().written.iter().map(|written| (written.number, written.time)).collect();
        let mut all = written.iter();
        if let Some(record) = seen.iter().find(|record| !all.any(|written| written == *record)) {
            self.violate(|| format!("a snapshot holds {record:?} out of order, or never recorded"));
        }
        let missing = before.iter().find(|record| after.contains(record) && !seen.contains(record));
        if let Some(record) = missing {
            self.violate(|| format!("a snapshot lacks {record:?}: it holds {seen:?}"));
        }
    }

    fn read_all<M: RingMemory>(&self, mut consumer: Consumer<M>) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        while let Some((records, ..)) = self.poll(&mut consumer, true) {
            all.extend(records);
        }
        if consumer.rejected_bytes() > 0 {
            self.violate(|| format!("{} bytes were rejected", consumer.rejected_bytes()));
        }
        all
    }

    /// Everything stops here: what do the rings hold?
    fn crash(&'static self) {
        for cpu in 0..CPUS {
            let copy = HostMemory::private(self.rings[cpu].len() * 8);
            for (at, word) in self.rings[cpu].iter().enumerate().filter(|(_, word)| word.get() != 0) {
                copy.store(at * 8, word.get());
            }
            let expected = match self.scenario.mode {
                Mode::FlightRecorder => self.retained(cpu),
                Mode::Discard => {
                    let truth = self.truths[cpu].borrow();
                    truth.written[truth.delivered..].iter().map(|written| (written.number, written.time)).collect()
                }
            };
            let read = self.read_all(Consumer::resume(copy, self.geometry, self.scenario.mode, 0));
            if read != expected {
                self.violate(|| format!("after a crash {read:?} is read, not {expected:?}"));
            }
        }
    }

    /// One run under the current schedule.
    fn run_all(&'static self) {
        for cpu in 0..CPUS {
            self.rings[cpu].iter().for_each(|word| word.set(0));
            *self.truths[cpu].borrow_mut() = Truth::default();
            // SAFETY: the ring is zeroed.
            unsafe { RestartableProducer::new(self.ring(cpu), self.geometry, self.scenario.mode) }.announce();
            let consumer = Consumer::new(self.ring(cpu), self.geometry, self.scenario.mode, 0);
            *self.consumers[cpu].borrow_mut() = Some(consumer);
        }
        self.thread.set(State { area: Area::Clear, cpu: 0, disturbed: 0 });
        self.others.borrow_mut().clear();
        self.clock.set(1000);
        self.numbers.set(0);
        self.outcomes.borrow_mut().clear();
        self.steps.set(0);
        self.interrupts_left.set(self.scenario.most_interrupts);
        self.scenario.before.iter().for_each(|&activity| self.run(activity));
        self.exploring.set(true);
        self.scenario.task.iter().for_each(|&activity| self.run(activity));
        self.exploring.set(false);
        self.end();
    }

    /// Nothing is under way any more: everything recorded is delivered, and everything else counted as lost.
    fn end(&'static self) {
        let outcomes = self.outcomes.borrow().clone();
        let count = |wanted: Recorded| outcomes.iter().filter(|(outcome, _)| *outcome == wanted).count();
        let written: usize = self.truths.iter().map(|truth| truth.borrow().written.len()).sum();
        let word = |cpu: usize, offset: usize| self.rings[cpu][offset / 8].get();
        let lost: u64 = (0..CPUS).map(|cpu| word(cpu, RING_LOST_FULL) + word(cpu, RING_LOST_TOO_LARGE)).sum();
        if count(Recorded::Yes) != written || count(Recorded::Lost) as u64 != lost {
            self.violate(|| format!("{written} records, {lost} lost: not what threads got as results: {outcomes:?}"));
        }
        for cpu in 0..CPUS {
            if self.scenario.mode == Mode::FlightRecorder {
                self.snapshot(cpu);
                continue;
            }
            let mut consumer = self.consumers[cpu].borrow_mut().take().expect("put back by every poll");
            while let Some(found) = self.poll(&mut consumer, true) {
                self.delivered(cpu, found);
            }
            consumer.finish();
            let truth = self.truths[cpu].borrow();
            if truth.delivered != truth.written.len() || consumer.rejected_bytes() > 0 {
                self.violate(|| format!("{} of {} records were delivered", truth.delivered, truth.written.len()));
            }
            if consumer.lost().full != truth.lost_before.len() as u64 {
                self.violate(|| format!("the consumer counts {:?} lost", consumer.lost()));
            }
            let given_back = word(cpu, RING_READ_COUNT);
            if given_back % self.geometry.sub_buffer_size() != 0 {
                self.violate(|| format!("the read count is {given_back}"));
            }
        }
    }
}

const _: () = assert!(PACKET_HEADER_SIZE == 128, "the scenarios' sizes go by that");

/// Runs every schedule of `scenario`, and says how many there are.
///
/// # Errors
/// What is wrong in the first schedule in which something is, and that schedule.
pub fn explore(scenario: &Scenario) -> Result<u64, String> {
    let world = World::new(scenario);
    let mut schedules = 0;
    loop {
        world.run_all();
        schedules += 1;
        if let Some(what) = world.violation.borrow_mut().take() {
            let schedule = world.schedule.borrow().deviations();
            return Err(format!("{what} (schedule {schedule:?}, number {schedules})"));
        }
        if !world.schedule.borrow_mut().advance() {
            return Ok(schedules);
        }
    }
}
