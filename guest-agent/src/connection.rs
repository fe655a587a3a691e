//! A process's connection to the trace: its rings, and which of its event types the host knows.

use crate::describe::Describe;
use crate::fields::Payload;
use crate::process_rings::{ProcessRings, Rdtscp, Recorded};
use shared_ring::layout::MAX_EVENTS;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Pause of a thread that finds another one registering an event type.
const REGISTERING_PAUSE: Duration = Duration::from_micros(20);
/// How long it waits for that one at most, which may have been cancelled, or jumped out of by a signal handler: then it never
/// ends.
const REGISTERING_LIMIT: Duration = Duration::from_secs(1);

/// Made once per process, and never taken apart.
#[derive(Debug)]
pub(crate) struct Connection {
    rings: ProcessRings,
    /// Bit *n* is set once the host knows the event type of id *n*.
    registered: [AtomicU64; MAX_EVENTS / 64],
    /// Id of the thread that writes the registry, 0 while none does. Not a mutex: a signal handler has to know whether it
    /// has interrupted that thread.
    registering: AtomicU32,
    /// Id of a thread that was waited for in vain. It is not waited for again.
    given_up: AtomicU32,
    /// Records that no ring took, counted in a ring too.
    lost: AtomicU64,
}

impl Connection {
    pub(crate) fn new(rings: ProcessRings) -> Self {
        Self {
            rings,
            registered: [const { AtomicU64::new(0) }; MAX_EVENTS / 64],
            registering: AtomicU32::new(0),
            given_up: AtomicU32::new(0),
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
        self.rings.count_lost(&Rdtscp, records);
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

    /// Describes an event type to the host, once. `false` when the registry is full, in a signal handler that has
    /// interrupted its thread while that describes one, and where another thread never ends doing so.
    #[cold]
    pub(crate) fn register(&self, described: &'static impl Describe) -> bool {
        let this_thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        let began = Instant::now();
        // Acquire and release: what one writer has left is what the next one finds.
        while let Err(owner) = self.registering.compare_exchange(0, this_thread, Ordering::Acquire, Ordering::Relaxed) {
            if owner == this_thread || owner == self.given_up.load(Ordering::Relaxed) {
                return false;
            }
            if began.elapsed() >= REGISTERING_LIMIT {
                self.given_up.store(owner, Ordering::Relaxed);
                return false;
            }
            thread::sleep(REGISTERING_PAUSE);
        }
        let registered = self.register_alone(described);
        self.registering.store(0, Ordering::Release);
        registered
    }

    /// With `registering` taken.
    fn register_alone(&self, described: &'static impl Describe) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_type::EventType;
    use crate::process_rings::tests::Region;

    static FIRST: EventType<(u32,)> = EventType::new("test:first", &["number"]);

    #[test]
    fn handler_that_interrupts_the_registering_loses_its_record_and_does_not_wait() {
        let region = Region::new();
        let connection = Connection::new(region.rings().unwrap());
        let this_thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        connection.registering.store(this_thread, Ordering::Relaxed);

        let registered = connection.register(&FIRST);
        let recorded = connection.record(&FIRST, 4, |_| ());

        assert_eq!((registered, recorded, connection.lost()), (false, false, 1));
    }

    #[test]
    fn thread_that_never_ends_registering_is_waited_for_once() {
        let region = Region::new();
        let connection = Connection::new(region.rings().unwrap());
        connection.registering.store(u32::MAX, Ordering::Relaxed);

        let registered = connection.register(&FIRST);
        let began = Instant::now();
        let recorded = (0..100).any(|_| connection.record(&FIRST, 4, |_| ()));

        assert_eq!((registered, recorded, connection.lost()), (false, false, 100));
        assert!(began.elapsed() < 50 * REGISTERING_LIMIT, "each of them waited");
    }

    #[test]
    fn thread_waits_for_another_one_that_is_registering() {
        let region = Region::new();
        let connection = Connection::new(region.rings().unwrap());
        connection.registering.store(u32::MAX, Ordering::Relaxed);

        let registered = thread::scope(|scope| {
            let waiting = scope.spawn(|| connection.register(&FIRST));
            thread::sleep(Duration::from_millis(5));
            connection.registering.store(0, Ordering::Release);
            waiting.join().unwrap()
        });

        assert!(registered);
    }
}
