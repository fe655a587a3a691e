//! Which sessions a vCPU records for: adopting their rings, and letting go of them.

use super::{GuestMemory, HostArea};
use crate::layout::{RING_ADOPTED, RING_FLUSH_DONE, RING_FLUSH_REQUEST, RING_WRITE_COUNT, SESSION_SLOTS};
use crate::producer::{Abandoned, Producer};
use crate::storage::Storage;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering, compiler_fence};

/// One vCPU's rings, one per session slot at most.
/// For an example see [`host::Region`](crate::host::Region).
#[derive(Debug)]
pub struct SessionRings<S> {
    rings: [SessionRing<S>; SESSION_SLOTS],
}

/// The vCPU's ring of the session in one slot.
#[derive(Debug)]
struct SessionRing<S> {
    /// Generation of the session that is recorded into; 0 while there is none.
    generation: AtomicU64,
    /// Initialised while `generation` is not 0, and changed only while it is.
    producer: UnsafeCell<MaybeUninit<Producer<S>>>,
}

impl<S: Storage> SessionRing<S> {
    const fn unused() -> Self {
        Self { generation: AtomicU64::new(0), producer: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    #[inline(always)]
    fn producer(&self) -> Option<&Producer<S>> {
        if self.generation.load(Ordering::Acquire) == 0 {
            return None;
        }
        // SAFETY: initialised, since the generation is not 0; only `follow` and `release` change it, which no record of
        // this vCPU is interrupted by (their contract).
        Some(unsafe { (*self.producer.get()).assume_init_ref() })
    }

    /// Stops recording, then tells the host. The release store pairs with the host's acquire load before it gives the ring
    /// to another session.
    fn let_go(&self) {
        let Some(producer) = self.producer() else { return };
        // SAFETY: a control word of the ring, which lies inside the region.
        let report = || unsafe { producer.storage().store_release(RING_ADOPTED, 0) };
        if mutated!(LetGoBeforeStop) {
            report();
        }
        self.generation.store(0, Ordering::Relaxed);
        // This vCPU's interrupts see its stores in order.
        compiler_fence(Ordering::SeqCst);
        report();
    }

    /// Tells the host, then begins to record, if `is_current` says that the session is still there.
    ///
    /// The host looks in the opposite order before it gives the rings to another session: it stores generation 0, has a
    /// full fence, and loads the ring's word. `fence_full` pairs with that fence: at least one of both sees the other.
    fn adopt(
        &self,
        producer: Producer<S>,
        generation: u64,
        fence_full: impl FnOnce(),
        is_current: impl FnOnce() -> bool,
    ) {
        // SAFETY: a control word of the ring, inside the region. This vCPU is the only one that writes it while the host has
        // a session in the slot; it is 0, or left over from a system that ended without letting go.
        unsafe { producer.storage().store(RING_ADOPTED, generation) };
        if !mutated!(AdoptWithoutFence) {
            fence_full();
        }
        if !is_current() && !mutated!(AdoptUnchecked) {
            // SAFETY: as above.
            unsafe { producer.storage().store_release(RING_ADOPTED, 0) };
            return;
        }
        producer.count_nested();
        // SAFETY: no record of this vCPU is open, nor one of a system that ended without letting go, and none can begin here
        // while the generation is 0.
        unsafe { producer.repair_holes(Abandoned::Several) };
        // SAFETY: nobody looks at `producer` while the generation is 0.
        unsafe { self.producer.get().write(MaybeUninit::new(producer)) };
        self.generation.store(generation, Ordering::Release);
    }
}

impl<S: Storage> SessionRings<S> {
    /// Rings of no session: nothing is recorded before [`follow`](Self::follow).
    #[must_use]
    pub const fn new() -> Self {
        Self { rings: [const { SessionRing::unused() }; SESSION_SLOTS] }
    }

    /// Begins to record for sessions that are new, and stops for those that are gone. `ring` makes the storage of the ring
    /// at an offset in the region.
    ///
    /// # Safety
    /// Called on vCPU `vcpu`, not within a record and with no producer of [`producer`](Self::producer) in use: its
    /// interrupts may record meanwhile, and finish before it goes on. No other rings of that vCPU are in use. What `ring`
    /// returns covers the bytes of the region from the offset on, and lives as long as it is used.
    pub unsafe fn follow<H: GuestMemory>(&self, area: &HostArea<H>, vcpu: u32, ring: impl Fn(usize) -> S) {
        for (slot, own) in self.rings.iter().enumerate() {
            let session = area.session(slot);
            let generation = session.as_ref().map_or(0, |session| session.generation);
            if own.generation.load(Ordering::Relaxed) == generation {
                continue;
            }
            own.let_go();
            let Some(session) = session else { continue };
            let Some(at) = session.ring(vcpu) else { continue };
            // SAFETY: `HostArea::session` found a whole ring of this geometry there, page-aligned; the host hands it out
            // zeroed, and changes it only after `let_go`.
            let producer = unsafe { Producer::new(ring(at), session.rings.geometry, session.rings.mode) };
            own.adopt(producer, generation, || area.storage.fence_full(), || area.is_current(slot, generation));
        }
    }

    /// Whether the host wants something of vCPU `vcpu`, whose rings these are: that it adopts a session or lets go of one, or
    /// that it closes a sub-buffer that holds records. Any CPU may ask, also while the vCPU records or follows sessions:
    /// whatever the host has asked for before is seen, unless the vCPU has done it.
    ///
    /// A record that opens a sub-buffer meanwhile may have looked for a flush request before there was one: a host that asks
    /// for a flush makes the guest look until [`Consumer::is_flushed`](crate::consumer::Consumer::is_flushed) says so.
    ///
    /// # Safety
    /// What `ring` returns for the offset of a ring covers the ring's control words.
    pub unsafe fn is_wanted<H: GuestMemory>(&self, area: &HostArea<H>, vcpu: u32, ring: impl Fn(usize) -> S) -> bool {
        self.rings.iter().enumerate().any(|(slot, own)| {
            let session = area.session(slot);
            let generation = session.as_ref().map_or(0, |session| session.generation);
            if own.generation.load(Ordering::Relaxed) != generation {
                return true;
            }
            let Some((session, at)) = session.and_then(|session| Some((session, session.ring(vcpu)?))) else {
                return false;
            };
            let ring = ring(at);
            // SAFETY: control words of a ring (contract).
            let (requested, done, write) = unsafe {
                (ring.load_acquire(RING_FLUSH_REQUEST), ring.load(RING_FLUSH_DONE), ring.load(RING_WRITE_COUNT))
            };
            requested != done && session.rings.geometry.within(write) != 0
        })
    }

    /// The session slots that are recorded into, a bit each.
    #[must_use]
    pub fn in_use(&self) -> u64 {
        let bits = self.rings.iter().enumerate().map(|(slot, ring)| u64::from(ring.producer().is_some()) << slot);
        bits.fold(0, |slots, bit| slots | bit)
    }

    /// The producer of the ring of session slot `slot`; `None` when there is no such session on this vCPU. Any context,
    /// NMI included.
    #[must_use]
    #[inline(always)]
    pub fn producer(&self, slot: usize) -> Option<&Producer<S>> {
        self.rings.get(slot)?.producer()
    }

    /// Generation of the session in slot `slot` that is recorded into; `None` when there is none on this vCPU.
    #[must_use]
    pub fn generation(&self, slot: usize) -> Option<u64> {
        let generation = self.rings.get(slot)?.generation.load(Ordering::Relaxed);
        (generation != 0).then_some(generation)
    }

    /// Stops recording for all sessions.
    ///
    /// # Safety
    /// As for [`follow`](Self::follow).
    pub unsafe fn release(&self) {
        self.rings.iter().for_each(SessionRing::let_go);
    }

    /// Repairs the rings behind records that are never finished: see [`Producer::repair_holes`].
    ///
    /// # Safety
    /// As for [`follow`](Self::follow): no record of the vCPU is open that will be finished.
    pub unsafe fn repair_holes(&self, abandoned: Abandoned) {
        for producer in self.rings.iter().filter_map(SessionRing::producer) {
            // SAFETY: passed on from the caller.
            unsafe { producer.repair_holes(abandoned) };
        }
    }

    /// Closes the current sub-buffers of those rings whose consumer has asked for it. `now` reads the trace clock, ticks.
    pub fn poll_flush_requests(&self, now: impl Fn() -> u64) {
        for producer in self.rings.iter().filter_map(SessionRing::producer) {
            producer.poll_flush_request(&now);
        }
    }
}

impl<S: Storage> Default for SessionRings<S> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consumer::Consumer;
    use crate::guest::tests::{Sides, rings, sides};
    use crate::layout::Mode;
    use crate::storage::Smp;
    use std::vec::Vec;

    const VCPU: u32 = 1;

    fn follow(own: &SessionRings<Smp>, sides: &Sides) {
        // SAFETY: this thread is the vCPU and is not within a record; the rings lie inside the memory, which lives.
        unsafe { own.follow(sides.guest.area(), VCPU, |at| Smp::new(sides.memory.base().add(at))) };
    }

    fn record(own: &SessionRings<Smp>, slot: usize) -> bool {
        own.producer(slot).is_some_and(|producer| producer.record(|| 1, 1, &[0; 8]))
    }

    fn adopted(sides: &Sides, slot: usize) -> u64 {
        sides.memory.load(sides.host.layout().kernel_ring(slot, VCPU) + RING_ADOPTED)
    }

    #[test]
    fn sessions_that_begin_and_end_are_followed() {
        let (own, mut sides) = (SessionRings::new(), sides());
        let before = record(&own, 0);
        follow(&own, &sides);
        let late = sides.host.open_session(2, "late", rings(Mode::FlightRecorder), |_, _| ()).unwrap();

        let unfollowed = record(&own, 2);
        follow(&own, &sides);
        let (both, words) = (own.in_use(), (adopted(&sides, 0), adopted(&sides, 2)));
        sides.host.close_session(0).unwrap();
        follow(&own, &sides);

        assert_eq!((before, unfollowed, both, words), (false, false, 0b101, (1, late)));
        assert_eq!((record(&own, 0), record(&own, 2), record(&own, 9), own.in_use()), (false, true, false, 0b100));
        assert_eq!(adopted(&sides, 0), 0);
    }

    #[test]
    fn slot_is_free_once_the_guest_has_let_go_of_it() {
        let (own, mut sides) = (SessionRings::new(), sides());
        follow(&own, &sides);

        sides.host.close_session(0).unwrap();
        let held = sides.host.is_free(0);
        follow(&own, &sides);

        assert_eq!((held, sides.host.is_free(0)), (false, true));
    }

    #[test]
    fn session_that_ends_while_it_is_adopted_is_not_recorded() {
        let (own, sides) = (SessionRing::unused(), sides());
        let ring = sides.memory.part(sides.host.layout().kernel_ring(0, VCPU), rings(Mode::Discard).ring_size());
        // SAFETY: a whole ring lies there, zeroed; this thread is its only user.
        let producer = unsafe { Producer::new(Smp::new(ring.base()), rings(Mode::Discard).geometry, Mode::Discard) };

        own.adopt(producer, 1, || (), || false);

        assert!(own.producer().is_none());
        assert_eq!(adopted(&sides, 0), 0);
    }

    #[test]
    fn ring_counts_nested_records_from_its_adoption_on() {
        let (own, sides) = (SessionRings::new(), sides());
        let used = rings(Mode::Discard);
        let ring = sides.memory.part(sides.host.layout().kernel_ring(0, VCPU), used.ring_size());
        let consumer = Consumer::new(ring, used.geometry, used.mode, VCPU);
        let seen = || (consumer.has_joined(), consumer.nested());

        let before = seen();
        follow(&own, &sides);
        let adopted = seen();
        own.producer(0).unwrap().lose_nested();
        // SAFETY: this thread is the vCPU, and is not within a record.
        unsafe { own.release() };
        follow(&own, &sides);

        assert_eq!((before, adopted, seen()), ((false, None), (true, Some(0)), (true, Some(1))));
    }

    /// Records until the ring of slot 0 has come around, and reads it meanwhile; how many records there was room for.
    fn record_laps(own: &SessionRings<Smp>, sides: &Sides) -> usize {
        let used = rings(Mode::Discard);
        let ring = sides.memory.part(sides.host.layout().kernel_ring(0, VCPU), used.ring_size());
        let mut consumer = Consumer::resume(ring, used.geometry, used.mode, VCPU);
        let mut buffer = Vec::new();
        let records = (0..2000).filter(|_| {
            while let Some(delivered) = consumer.poll(&mut buffer).ready() {
                delivered.accept([7; 16], u64::MAX, |_| None);
            }
            record(own, 0)
        });
        records.count()
    }

    #[test]
    fn ring_is_adopted_without_the_holes_of_a_system_that_ended() {
        let (ended, next, sides) = (SessionRings::new(), SessionRings::new(), sides());
        follow(&ended, &sides);
        std::mem::forget(ended.producer(0).unwrap().reserve(|| 1, 1, 8));

        let stuck = record_laps(&ended, &sides);
        follow(&next, &sides);

        assert!(stuck < 2000, "{stuck}");
        assert_eq!(record_laps(&next, &sides), 2000);
    }

    #[test]
    fn rings_are_repaired_behind_a_record_that_is_never_finished() {
        let (own, sides) = (SessionRings::new(), sides());
        follow(&own, &sides);
        std::mem::forget(own.producer(0).unwrap().reserve(|| 1, 1, 8));

        // SAFETY: this thread is the vCPU, and the only record of it that is open is never finished.
        unsafe { own.repair_holes(Abandoned::One) };

        assert_eq!(record_laps(&own, &sides), 2000);
    }

    #[test]
    fn released_rings_record_nothing() {
        let (own, sides) = (SessionRings::new(), sides());
        follow(&own, &sides);

        // SAFETY: this thread is the vCPU, and is not within a record.
        unsafe { own.release() };

        assert_eq!((record(&own, 0), adopted(&sides, 0)), (false, 0));
    }

    #[test]
    fn flush_closes_the_sub_buffer_that_the_host_asks_for() {
        let (own, sides) = (SessionRings::new(), sides());
        follow(&own, &sides);
        let used = rings(Mode::Discard);
        let ring = sides.memory.part(sides.host.layout().kernel_ring(0, VCPU), used.ring_size());
        let mut consumer = Consumer::new(ring, used.geometry, used.mode, VCPU);
        assert!(record(&own, 0));

        let request = consumer.request_flush();
        let before = consumer.is_flushed(request);
        own.poll_flush_requests(|| 2);

        assert_eq!((before, consumer.is_flushed(request)), (false, true));
    }

    fn wanted(own: &SessionRings<Smp>, sides: &Sides) -> bool {
        // SAFETY: the rings lie inside the memory, which lives.
        unsafe { own.is_wanted(sides.guest.area(), VCPU, |at| Smp::new(sides.memory.base().add(at))) }
    }

    #[test]
    fn vcpu_is_wanted_until_it_has_followed_every_session() {
        let (own, mut sides) = (SessionRings::new(), sides());

        let begun = wanted(&own, &sides);
        follow(&own, &sides);
        let followed = wanted(&own, &sides);
        sides.host.close_session(0).unwrap();
        let closed = wanted(&own, &sides);
        follow(&own, &sides);

        assert_eq!([begun, followed, closed, wanted(&own, &sides)], [true, false, true, false]);
    }

    #[test]
    fn flush_is_wanted_of_a_vcpu_only_while_records_lie_in_its_open_sub_buffer() {
        let (own, sides) = (SessionRings::new(), sides());
        follow(&own, &sides);
        let used = rings(Mode::Discard);
        let ring = sides.memory.part(sides.host.layout().kernel_ring(0, VCPU), used.ring_size());
        let mut consumer = Consumer::new(ring, used.geometry, used.mode, VCPU);

        let empty = consumer.request_flush();
        let of_empty = (consumer.is_flushed(empty), wanted(&own, &sides));
        assert!(record(&own, 0));
        let unrequested = wanted(&own, &sides);
        let request = consumer.request_flush();
        let requested = (consumer.is_flushed(request), wanted(&own, &sides));
        own.poll_flush_requests(|| 2);

        assert_eq!((of_empty, unrequested, requested), ((true, false), false, (false, true)));
        assert_eq!((consumer.is_flushed(request), wanted(&own, &sides)), (true, false));
    }
}
