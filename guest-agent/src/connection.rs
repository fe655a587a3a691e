//! A process's connection to the trace: its rings, and which of its event types the host knows.

use crate::describe::Describe;
use crate::fields::Payload;
use crate::process_rings::{ProcessRings, Rdtscp, Recorded};
use shared_ring::layout::MAX_EVENTS;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Made once per process, and never taken apart.
#[derive(Debug)]
pub(crate) struct Connection {
    rings: ProcessRings,
    /// Bit *n* is set once the host knows the event type of id *n*.
    registered: [AtomicU64; MAX_EVENTS / 64],
    /// Serialises the registry's writers.
    registering: Mutex<()>,
    /// Records that no ring took, counted in the first ring too.
    lost: AtomicU64,
}

impl Connection {
    pub(crate) fn new(rings: ProcessRings) -> Self {
        Self {
            rings,
            registered: [const { AtomicU64::new(0) }; MAX_EVENTS / 64],
            registering: Mutex::new(()),
            lost: AtomicU64::new(0),
        }
    }

    pub(crate) const fn rings(&self) -> &ProcessRings {
        &self.rings
    }

    /// Records that no ring took.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Counts records that no ring took.
    #[cold]
    pub(crate) fn count_lost(&self, records: u64) {
        self.lost.fetch_add(records, Ordering::Relaxed);
        self.rings.count_lost(records);
    }

    /// Records an event of `size` payload bytes, which `fill` writes; `false` when it was lost.
    #[inline]
    pub(crate) fn record(
        &self,
        described: &'static impl Describe,
        size: usize,
        fill: impl FnOnce(&mut Payload<'_>),
    ) -> bool {
        let id = described.id();
        if !self.is_registered(id) && !self.register(described) {
            self.count_lost(1);
            return false;
        }
        match self.rings.record(&Rdtscp, id, size, fill) {
            Recorded::Yes => true,
            Recorded::Lost => false,
            Recorded::NoRing => {
                self.count_lost(1);
                false
            }
        }
    }

    /// Describes an event type to the host, once. `false` when the registry is full.
    #[cold]
    pub(crate) fn register(&self, described: &'static impl Describe) -> bool {
        let _only_writer = self.registering.lock().unwrap_or_else(PoisonError::into_inner);
        let event = described.event();
        if self.is_registered(event.id) {
            return true;
        }
        let Some(word) = self.registered.get(usize::from(event.id) / 64) else { return false };
        let appended = self.rings.append(&event);
        if appended {
            word.fetch_or(1 << (event.id % 64), Ordering::Release);
        }
        appended
    }

    pub(crate) fn flush(&self) {
        self.rings.flush(&Rdtscp);
    }

    #[inline]
    fn is_registered(&self, id: u16) -> bool {
        self.registered.get(usize::from(id) / 64).is_some_and(|word| word.load(Ordering::Acquire) >> (id % 64) & 1 == 1)
    }
}
