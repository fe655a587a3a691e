//! What hostile guests and processes do. Attacks come in strokes of some milliseconds at most, so that several take turns on
//! the same memory.
#![allow(unsafe_code)] // Producers and registries over raw memory; children that are made to die.

use clap::ValueEnum;
use clock_sync::tsc;
use guest_agent::{EventType, Text, Tracer};
use serde::{Deserialize, Serialize};
use shared_ring::event::{Event, Field, FieldType};
use shared_ring::host::memory::HostMemory;
use shared_ring::layout::{
    AgentState, ProcessEntry, RING_ADOPTED, RING_FLUSH_DONE, RING_FLUSH_REQUEST, RING_HEADER_SIZE, RING_NESTED,
    RING_READ_COUNT, RING_RESTARTABLE, RING_SUB_BUFFER_TABLE, RING_WRITE_COUNT,
};
use shared_ring::producer::Producer;
use shared_ring::region::Rings;
use shared_ring::registry::Registry;
use shared_ring::storage::Smp;
use std::cell::Cell;
use std::ops::Range;
use strata_abi::class;

/// Exit status of a process whose children had its rings.
pub const ESCAPED: i32 = 42;
/// Words that a stroke changes.
const WORDS: usize = 2000;
/// Records of a stroke.
const RECORDS: u64 = 2000;
/// Id of the event that honest and hostile kernels register.
pub const STEP_ID: u16 = 64;
/// The event of honest producers, and of hostile ones that want to be believed.
pub const STEP: Event = Event {
    id: STEP_ID,
    class: class::SCHED,
    name: "torture:step",
    fields: &[Field::new("who", FieldType::U32), Field::new("number", FieldType::U64)],
};
/// An event with as long a description as there can be.
static WORDY: Event = Event {
    id: 1000,
    class: class::USER,
    name: "wordy:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    fields: &[
        Field::new("bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb", FieldType::String),
        Field::new("cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc", FieldType::String),
        Field::new("d", FieldType::U8),
    ],
};
static FLOOD: EventType<(Text, u64)> = EventType::new("torture:flood", &["text", "number"]);

/// A kind of attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Attack {
    /// Any bytes anywhere.
    Scribble,
    /// Counts, indices and tables of rings.
    ControlWords,
    /// Rings as they were some time ago.
    Replay,
    /// Descriptions of events up to the brim, and lies about their size.
    RegistryFlood,
    /// Records as fast as the library makes them.
    EventFlood,
    /// Records whose clock lies.
    ClockLies,
    /// Requests and answers of flushes, and of sessions that end.
    Doorbells,
    /// A process that kills itself in the middle of a record.
    DieInRecord,
    /// Children without end.
    Fork,
    /// Processes that come and go at once.
    Churn,
    /// States and owners of process slots.
    ProcessTable,
    /// The state of the agent.
    AgentState,
    /// Runtime folders of another user's.
    RuntimeFolders,
    /// Answers of that user's control sockets.
    ControlAnswers,
    /// Answers of that user's servers of QMP.
    QmpReplies,
    /// Recordings that somebody has forged.
    ForgedRecordings,
}

impl Attack {
    /// What processes can do.
    pub const OF_PROCESSES: [Self; 10] = [
        Self::Scribble,
        Self::ControlWords,
        Self::Replay,
        Self::RegistryFlood,
        Self::EventFlood,
        Self::ClockLies,
        Self::Doorbells,
        Self::DieInRecord,
        Self::Fork,
        Self::Churn,
    ];
    /// What a kernel can do.
    pub const OF_KERNELS: [Self; 8] = [
        Self::Scribble,
        Self::ControlWords,
        Self::Replay,
        Self::RegistryFlood,
        Self::ClockLies,
        Self::Doorbells,
        Self::ProcessTable,
        Self::AgentState,
    ];

    /// What another user of the host can do.
    pub const OF_USERS: [Self; 3] = [Self::RuntimeFolders, Self::ControlAnswers, Self::QmpReplies];
    /// What whoever gives a recording away can do.
    pub const OF_MAKERS: [Self; 1] = [Self::ForgedRecordings];

    /// Its number, below 32.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// What it does.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Scribble => "any bytes anywhere it can write",
            Self::ControlWords => "counts, indices and tables of its rings at limits and near the truth",
            Self::Replay => "its rings as they were some time ago",
            Self::RegistryFlood => "descriptions of events up to the brim, lies about their size",
            Self::EventFlood => "records as fast as the library makes them",
            Self::ClockLies => "well-formed records of the past, the future, and times that run back",
            Self::Doorbells => "requests and answers of flushes and of sessions that end, without end",
            Self::DieInRecord => "`kill -9` of itself between reservation and commit",
            Self::Fork => "children without end, which reach for the slot",
            Self::Churn => "processes that take a slot and end at once",
            Self::ProcessTable => "states, generations and owners of process slots",
            Self::AgentState => "state, counts and text of the agent",
            Self::RuntimeFolders => "VMs of one's own name, other users' processes, FIFOs, links, texts that act",
            Self::ControlAnswers => "control answers that are silent, slow, endless, damaged, nested, or act",
            Self::QmpReplies => "QMP servers that are silent, slow, endless, damaged, nested, or act",
            Self::ForgedRecordings => {
                "descriptions, streams, frames and archives changed; what decompresses without end"
            }
        }
    }
}

/// Where an attacker can write.
#[derive(Debug)]
pub struct Target {
    /// What it can write, and nothing else.
    pub memory: HostMemory,
    /// Parts of the memory that may be scribbled over.
    pub writable: Vec<Range<usize>>,
    /// Its rings, by their places.
    pub rings: Vec<(usize, Rings)>,
    /// Its registries: places and sizes.
    pub registries: Vec<(usize, usize)>,
    /// The process table: place and number of entries.
    pub table: Option<(usize, usize)>,
    /// Place of the agent's state.
    pub agent: Option<usize>,
}

/// An attacker at work.
pub struct Attacker {
    target: Target,
    chance: fastrand::Rng,
    /// For each ring, what it held some time ago.
    saved: Vec<Vec<u8>>,
    /// The application library, where the attacker is a process.
    tracer: Option<Tracer>,
}

impl Attacker {
    /// An attacker of `target`, whose chance begins at `seed`; a process has a `tracer`.
    #[must_use]
    pub fn new(target: Target, seed: u64, tracer: Option<Tracer>) -> Self {
        let saved = vec![Vec::new(); target.rings.len()];
        Self { target, chance: fastrand::Rng::with_seed(seed), saved, tracer }
    }

    /// One stroke.
    pub fn strike(&mut self, attack: Attack) {
        match attack {
            Attack::Scribble => self.scribble(),
            Attack::ControlWords => self.control_words(),
            Attack::Replay => self.replay(),
            Attack::RegistryFlood => self.flood_registry(),
            Attack::EventFlood => self.flood_events(),
            Attack::ClockLies => self.lie_about_time(),
            Attack::Doorbells => self.ring_doorbells(),
            Attack::DieInRecord => self.die_in_record(),
            Attack::Fork => self.fork(),
            Attack::ProcessTable => self.process_table(),
            Attack::AgentState => self.agent_state(),
            // The guest's kernel does that: see `guest`.
            Attack::Churn => {}
            // Others than guests do those.
            Attack::RuntimeFolders | Attack::ControlAnswers | Attack::QmpReplies | Attack::ForgedRecordings => {}
        }
    }

    /// A number that careless readers go wrong on; some lie near `truth`.
    fn edge(&mut self, truth: u64) -> u64 {
        let small = self.chance.u64(..5000);
        match self.chance.u8(..8) {
            0 => 0,
            1 => u64::MAX - small,
            2 => (1 << self.chance.u32(..64)) - small % 2,
            3 => truth.wrapping_add(small),
            4 => truth.wrapping_sub(small),
            5 => truth.wrapping_add(self.chance.u64(..64) << 12),
            6 => truth.wrapping_sub(self.chance.u64(..64) << 12),
            _ => self.chance.u64(..),
        }
    }

    fn scribble(&mut self) {
        let Some(part) = self.chance.choice(&self.target.writable).cloned() else { return };
        if part.is_empty() {
            return;
        }
        for _ in 0..WORDS {
            let at = (part.start + self.chance.usize(..part.len())) & !7;
            let truth = self.target.memory.load(at);
            let value = self.edge(truth);
            self.target.memory.store(at, value);
        }
    }

    fn control_words(&mut self) {
        let Some(&(ring, rings)) = self.chance.choice(&self.target.rings) else { return };
        for _ in 0..WORDS / 20 {
            let at = match self.chance.u8(..4) {
                0 => RING_WRITE_COUNT,
                1 => RING_READ_COUNT,
                2 => RING_SUB_BUFFER_TABLE + self.chance.usize(..(RING_HEADER_SIZE - RING_SUB_BUFFER_TABLE) / 8) * 8,
                // Of a packet's header.
                _ => {
                    let sub_buffer = self.chance.usize(..rings.geometry.sub_buffers() as usize);
                    let size = usize::try_from(rings.geometry.sub_buffer_size()).unwrap_or(4096);
                    RING_HEADER_SIZE + sub_buffer * size + self.chance.usize(..16) * 8
                }
            };
            let truth = self.target.memory.load(ring + at);
            let value = self.edge(truth);
            self.target.memory.store(ring + at, value);
        }
    }

    fn replay(&mut self) {
        if self.target.rings.is_empty() {
            return;
        }
        let index = self.chance.usize(..self.target.rings.len());
        let (ring, rings) = self.target.rings[index];
        let saved = &mut self.saved[index];
        if saved.is_empty() || self.chance.bool() {
            saved.resize(rings.ring_size(), 0);
            self.target.memory.read(ring, saved);
        } else if self.chance.bool() {
            self.target.memory.write(ring, saved);
        } else {
            // Packets alone, under the counts of now.
            self.target.memory.write(ring + RING_HEADER_SIZE, &saved[RING_HEADER_SIZE..]);
        }
    }

    fn flood_registry(&mut self) {
        let Some(&(at, size)) = self.chance.choice(&self.target.registries) else { return };
        let memory = self.target.memory.part(at, size);
        // SAFETY: the storage covers the registry, which the target keeps mapped. Others may write it: that is the attack.
        let registry = unsafe { Registry::new(Smp::new(memory.base()), size) };
        let id = self.chance.u16(..);
        let event = Event { id, class: self.chance.u8(..), ..WORDY };
        for _ in 0..WORDS / 20 {
            if !registry.append(&event) {
                break;
            }
        }
        if self.chance.u8(..8) == 0 {
            let truth = memory.load(0);
            memory.store(0, self.edge(truth));
        }
    }

    fn flood_events(&mut self) {
        let Some(tracer) = &self.tracer else { return };
        let text = "x".repeat(self.chance.usize(..2000));
        for number in 0..RECORDS {
            FLOOD.record_with(tracer, (&text, number));
        }
    }

    fn producer(&mut self) -> Option<Producer<Smp>> {
        let &(ring, rings) = self.chance.choice(&self.target.rings)?;
        // SAFETY: the storage covers the ring, which the target keeps mapped. It may hold anything: that is the attack; the
        // producer touches nothing outside of it.
        Some(unsafe {
            Producer::new(Smp::new(self.target.memory.part(ring, rings.ring_size()).base()), rings.geometry, rings.mode)
        })
    }

    fn lie_about_time(&mut self) {
        if let Some(&(at, size)) = self.target.registries.first() {
            let memory = self.target.memory.part(at, size);
            // SAFETY: as in `flood_registry`.
            let registry = unsafe { Registry::new(Smp::new(memory.base()), size) };
            if registry.is_empty() {
                registry.append(&STEP);
            }
        }
        let Some(producer) = self.producer() else { return };
        let now = tsc::read_ordered();
        let (lie, step) = (self.edge(now), self.chance.u64(..1 << 33));
        let times = Cell::new(lie);
        let kind = self.chance.u8(..3);
        let clock = || match kind {
            0 => times.replace(times.get().wrapping_sub(step)),
            1 => times.replace(times.get().wrapping_add(step)),
            _ => tsc::read_ordered().wrapping_sub(step),
        };
        let (id, size) =
            if self.chance.bool() { (STEP_ID, 12) } else { (self.chance.u16(..), self.chance.usize(..300)) };
        let payload = vec![self.chance.u8(..); size];
        // A ring that was scribbled over may keep a producer in a loop: attempts are bounded by its clock.
        let attempts = Cell::new(0_u64);
        let bounded = || {
            attempts.set(attempts.get() + 1);
            (attempts.get() < 4 * RECORDS).then(clock)
        };
        for _ in 0..RECORDS / 4 {
            if let Ok(mut reservation) = producer.try_reserve(bounded, id, payload.len()) {
                // As long as it was requested.
                let _ = reservation.write(0, &payload);
                reservation.commit();
            }
        }
    }

    fn ring_doorbells(&mut self) {
        let Some(&(ring, _)) = self.chance.choice(&self.target.rings) else { return };
        for _ in 0..WORDS {
            let words = [RING_FLUSH_REQUEST, RING_FLUSH_DONE, RING_ADOPTED, RING_NESTED, RING_RESTARTABLE];
            let at = ring + words[self.chance.usize(..words.len())];
            let truth = self.target.memory.load(at);
            let value = self.edge(truth);
            self.target.memory.store(at, value);
        }
    }

    fn die_in_record(&mut self) {
        if self.tracer.is_none() {
            return;
        }
        let Some(producer) = self.producer() else { return };
        for _ in 0..self.chance.u64(..RECORDS) {
            producer.record(tsc::read_ordered, STEP_ID, &[1; 12]);
        }
        let _half_done = producer.reserve(tsc::read_ordered, STEP_ID, 12);
        // SAFETY: ends this process, which is what is wanted.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }

    fn fork(&mut self) {
        let Some(tracer) = &self.tracer else { return };
        let children = (0..4).map(|number| {
            // SAFETY: the child records, which takes no lock, touches memory that it does not have, and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let recorded = FLOOD.record_with(tracer, ("child", number));
                // SAFETY: the mapping is not the child's: the kernel ends it here. One that could record says so.
                unsafe {
                    if !recorded {
                        self.target.memory.base().write_volatile(0xff);
                    }
                    libc::_exit(0);
                }
            }
            child
        });
        let children: Vec<libc::pid_t> = children.collect();
        for child in children.into_iter().filter(|&child| child > 0) {
            let mut status = 0;
            // SAFETY: waits for a child made above.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            if !libc::WIFSIGNALED(status) {
                std::process::exit(ESCAPED);
            }
        }
    }

    fn process_table(&mut self) {
        let Some((table, entries)) = self.target.table else { return };
        for _ in 0..8 {
            let entry = table + self.chance.usize(..entries) * size_of::<ProcessEntry>();
            // Any state of a few generations, any owner.
            let state = u64::from(self.chance.u32(..4)) << 32 | u64::from(self.chance.u32(..4));
            let value = if self.chance.u8(..4) == 0 { self.chance.u64(..) } else { state };
            self.target.memory.store(entry, value);
            let word = 1 + self.chance.usize(..size_of::<ProcessEntry>() / 8 - 1);
            self.target.memory.store(entry + word * 8, self.chance.u64(..));
        }
    }

    fn agent_state(&mut self) {
        let Some(agent) = self.target.agent else { return };
        for word in 0..size_of::<AgentState>() / 8 {
            if self.chance.bool() {
                let value = self.edge(1);
                self.target.memory.store(agent + word * 8, value);
            }
        }
    }
}
