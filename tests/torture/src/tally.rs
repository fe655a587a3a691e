//! What the processes of a round count, in memory that outlives each of them.
#![allow(unsafe_code)] // Words of the memory are added to by several processes.

use crate::attack::Attack;
use crate::mapping::{self, Access};
use shared_ring::host::memory::HostMemory;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Longest time that the recorder took to answer, µs.
const WORST_ANSWER: usize = 32;
/// How often it answered.
const ANSWERS: usize = 33;
/// Honest processes that were begun.
const APPLICATIONS: usize = 34;
/// Not 0 once the guest is to end.
const STOP: usize = 35;
/// Processes that reached what is not theirs.
const ESCAPED: usize = 36;
/// First word of what producers count.
const PRODUCERS: usize = 64;
/// Largest number of honest processes in a round.
pub const MAX_APPLICATIONS: u32 = 900;
/// Threads of an honest process.
pub const APPLICATION_THREADS: u32 = 2;
/// First producer of processes.
const FIRST_APPLICATION: u32 = 64;
/// The VMM's producer.
pub const VMM_PRODUCER: u32 = 32;
/// Words of the memory.
const WORDS: usize = PRODUCERS + (FIRST_APPLICATION + MAX_APPLICATIONS * APPLICATION_THREADS) as usize;

/// The producer that is `vcpu`'s task.
#[must_use]
pub const fn task_producer(vcpu: u32) -> u32 {
    vcpu
}

/// The producer that interrupts `vcpu`'s task.
#[must_use]
pub const fn interrupt_producer(vcpu: u32) -> u32 {
    16 + vcpu
}

/// The producer that is thread `thread` of honest process `application`.
#[must_use]
pub const fn application_producer(application: u32, thread: u32) -> u32 {
    FIRST_APPLICATION + application * APPLICATION_THREADS + thread
}

/// The counts of a round.
#[derive(Clone, Debug)]
pub struct Tally {
    memory: HostMemory,
}

impl Tally {
    /// Fresh counts in the new file `path`.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        File::create_new(path)?.set_len((WORDS * 8) as u64)?;
        Self::open(path)
    }

    /// The counts in `path`.
    ///
    /// # Errors
    /// When it cannot be mapped.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        Ok(Self { memory: mapping::map(path, 0..WORDS * 8, Access::Write)? })
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < WORDS, "the memory has this word");
        // SAFETY: aligned and inside the memory, which `self` keeps mapped; accessed atomically.
        unsafe { AtomicU64::from_ptr(self.memory.base().add(index * 8).cast()) }
    }

    /// Records that `producer` tried to record.
    #[must_use]
    pub fn attempted(&self, producer: u32) -> u64 {
        self.word(PRODUCERS + producer as usize).load(Ordering::SeqCst)
    }

    /// Counts the next record of `producer`, which alone counts it, before it is recorded; returns its number.
    pub fn attempt(&self, producer: u32) -> u64 {
        let word = self.word(PRODUCERS + producer as usize);
        let number = word.load(Ordering::Relaxed);
        word.store(number + 1, Ordering::Relaxed);
        number
    }

    /// Counts a stroke of `attack`.
    pub fn strike(&self, attack: Attack) {
        self.word(attack.index()).fetch_add(1, Ordering::Relaxed);
    }

    /// Strokes of `attack`.
    #[must_use]
    pub fn strokes(&self, attack: Attack) -> u64 {
        self.word(attack.index()).load(Ordering::Relaxed)
    }

    /// Notes that the recorder answered after `microseconds`.
    pub fn answered(&self, microseconds: u64) {
        self.word(WORST_ANSWER).fetch_max(microseconds, Ordering::Relaxed);
        self.word(ANSWERS).fetch_add(1, Ordering::Relaxed);
    }

    /// How often the recorder answered, and the longest time that it took, µs.
    #[must_use]
    pub fn answers(&self) -> (u64, u64) {
        (self.word(ANSWERS).load(Ordering::Relaxed), self.word(WORST_ANSWER).load(Ordering::Relaxed))
    }

    /// The number of another honest process; `None` when there are enough.
    #[must_use]
    pub fn next_application(&self) -> Option<u32> {
        let number = u32::try_from(self.word(APPLICATIONS).load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        (number < MAX_APPLICATIONS).then(|| {
            self.word(APPLICATIONS).store(u64::from(number) + 1, Ordering::Relaxed);
            number
        })
    }

    /// Honest processes so far.
    #[must_use]
    pub fn applications(&self) -> u32 {
        u32::try_from(self.word(APPLICATIONS).load(Ordering::Relaxed)).unwrap_or(u32::MAX)
    }

    /// Notes that a process reached what is not its own.
    pub fn escaped(&self) {
        self.word(ESCAPED).fetch_add(1, Ordering::Relaxed);
    }

    /// How many processes did.
    #[must_use]
    pub fn escapes(&self) -> u64 {
        self.word(ESCAPED).load(Ordering::Relaxed)
    }

    /// Has the guest end.
    pub fn stop(&self) {
        self.word(STOP).store(1, Ordering::SeqCst);
    }

    /// Whether the guest is to end.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.word(STOP).load(Ordering::SeqCst) != 0
    }
}
