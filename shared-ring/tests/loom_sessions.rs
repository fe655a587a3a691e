//! Both sides of a session under a model checker of the C11 memory model: a host that opens, closes and opens again in one
//! thread, a vCPU of the guest that follows in another; every interleaving, and every value that a load may return.
//!
//! What is run is the crate's own `host::Region`, `guest::HostArea` and `guest::SessionRings`, with a producer that
//! records. The checker knows the words of one session slot and one ring by which the sides agree; every other word is
//! ordinary memory, so that a model does not end in their millions of interleavings.
//!
//! Shows: A session's rings hold only its records; settings are seen whole (loom).
#![allow(unsafe_code, missing_docs, clippy::expect_used)] // Tests.

use loom::sync::atomic::{AtomicU64, Ordering, fence};
use shared_ring::Mutant;
use shared_ring::guest::{GuestMemory, HostArea, SessionRings};
use shared_ring::host::Region;
use shared_ring::host::memory::{RegionMemory, RingMemory};
use shared_ring::layout::{Geometry, Mode, PACKET_HEADER_SIZE, RING_ADOPTED, RING_WRITE_COUNT, SessionSlot};
use shared_ring::region::{RegionConfig, RegionLayout, Rings};
use shared_ring::storage::Storage;
use shared_ring::view::{RegionView, Session};
use std::cell::Cell;
use std::collections::HashMap;
use std::mem::offset_of;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64 as Plain;

/// The session slot of the models.
const SLOT: usize = 0;
/// Bytes that a record of the models takes: header word and 8 bytes of payload.
const RECORD: u64 = 16;
/// Most executions of one model.
const MOST_EXECUTIONS: usize = 200_000;

/// A region: the checker knows the words in it that matter here.
#[derive(Clone)]
struct ModelMemory {
    agreed: Arc<HashMap<usize, AtomicU64>>,
    others: Arc<Vec<Plain>>,
    /// Where this view begins in the region.
    base: usize,
    /// What happens after a word was stored with release order.
    after_release: fn(),
}

impl ModelMemory {
    fn new() -> Self {
        let (slot, ring) = (layout().session_slot(SLOT), layout().kernel_ring(SLOT, 0));
        let agreed = [
            slot + offset_of!(SessionSlot, generation),
            slot + offset_of!(SessionSlot, mode),
            ring + RING_ADOPTED,
            ring + RING_WRITE_COUNT,
        ];
        let agreed = agreed.into_iter().map(|offset| (offset, AtomicU64::new(0))).collect();
        let others = (0..layout().size / 8).map(|_| Plain::new(0)).collect();
        Self { agreed: Arc::new(agreed), others: Arc::new(others), base: 0, after_release: || () }
    }

    fn at(&self, offset: usize) -> Self {
        Self { base: self.base + offset, ..self.clone() }
    }

    fn load_as(&self, offset: usize, order: Ordering) -> u64 {
        let at = self.base + offset;
        match self.agreed.get(&at) {
            Some(word) => word.load(order),
            None => self.others[at / 8].load(Ordering::Relaxed),
        }
    }

    fn store_as(&self, offset: usize, value: u64, order: Ordering) {
        let at = self.base + offset;
        match self.agreed.get(&at) {
            Some(word) => word.store(value, order),
            None => self.others[at / 8].store(value, Ordering::Relaxed),
        }
    }

    fn exchange(&self, offset: usize, current: u64, new: u64) -> bool {
        let at = self.base + offset;
        match self.agreed.get(&at) {
            Some(word) => word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed).is_ok(),
            None => self.others[at / 8].compare_exchange(current, new, Ordering::Relaxed, Ordering::Relaxed).is_ok(),
        }
    }

    fn write_words(&self, offset: usize, bytes: &[u8]) {
        for (at, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.store_as(offset + at * 8, u64::from_le_bytes(word), Ordering::Relaxed);
        }
    }
}

impl Storage for ModelMemory {
    unsafe fn load(&self, offset: usize) -> u64 {
        self.load_as(offset, Ordering::Relaxed)
    }

    unsafe fn load_acquire(&self, offset: usize) -> u64 {
        self.load_as(offset, Ordering::Acquire)
    }

    unsafe fn store(&self, offset: usize, value: u64) {
        self.store_as(offset, value, Ordering::Relaxed);
    }

    unsafe fn store_release(&self, offset: usize, value: u64) {
        self.store_as(offset, value, Ordering::Release);
        (self.after_release)();
    }

    unsafe fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> bool {
        self.exchange(offset, current, new)
    }

    unsafe fn compare_exchange_shared(&self, offset: usize, current: u64, new: u64) -> bool {
        self.exchange(offset, current, new)
    }

    unsafe fn fetch_add(&self, offset: usize, value: u64) -> u64 {
        let at = self.base + offset;
        match self.agreed.get(&at) {
            Some(word) => word.fetch_add(value, Ordering::AcqRel),
            None => self.others[at / 8].fetch_add(value, Ordering::Relaxed),
        }
    }

    fn fence_release(&self) {
        fence(Ordering::Release);
    }

    unsafe fn write(&self, offset: usize, bytes: &[u8]) {
        self.write_words(offset, bytes);
    }
}

impl GuestMemory for ModelMemory {
    fn fence_acquire(&self) {
        fence(Ordering::Acquire);
    }

    fn fence_full(&self) {
        fence(Ordering::SeqCst);
    }
}

impl RingMemory for ModelMemory {
    fn size(&self) -> usize {
        self.others.len() * 8 - self.base
    }

    fn load(&self, offset: usize) -> u64 {
        self.load_as(offset, Ordering::Acquire)
    }

    fn store(&self, offset: usize, value: u64) {
        self.store_as(offset, value, Ordering::Release);
    }

    fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> bool {
        self.exchange(offset, current, new)
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        for (at, chunk) in out.chunks_mut(8).enumerate() {
            let word = self.load_as(offset + at * 8, Ordering::Relaxed);
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
    }

    fn fence_acquire(&self) {
        fence(Ordering::Acquire);
    }

    fn clear(&self, offset: usize, size: usize) {
        for at in (0..size).step_by(8) {
            self.store_as(offset + at, 0, Ordering::Relaxed);
        }
    }
}

impl RegionMemory for ModelMemory {
    fn write(&self, offset: usize, bytes: &[u8]) {
        self.write_words(offset, bytes);
    }

    fn fence_full(&self) {
        fence(Ordering::SeqCst);
    }
}

fn rings(sub_buffers: u32) -> Rings {
    Rings { geometry: Geometry::new(4096, sub_buffers).expect("a ring can be this small"), mode: Mode::Discard }
}

/// Sub-buffers of the rings that the session of `generation` uses, for which the slot has room: each another number, so
/// that settings say whose they are.
const fn sub_buffers(generation: u64) -> u32 {
    if generation % 2 == 0 { 4 } else { 2 }
}

fn layout() -> RegionLayout {
    RegionLayout::new(RegionConfig {
        vcpus: 1,
        sessions: [Some(rings(4)), None, None, None],
        process_rings: rings(2),
        process_slots: 0,
        registry_size: 4096,
        process_registry_size: 4096,
    })
    .expect("a region can be this small")
}

fn open(host: &mut Region<ModelMemory>, generation: u64) -> bool {
    let zero = |memory: &ModelMemory, part: Range<usize>| memory.clear(part.start, part.len());
    host.open_session(SLOT, "model", rings(sub_buffers(generation)), zero).is_ok_and(|opened| opened == generation)
}

fn host(memory: &ModelMemory) -> Region<ModelMemory> {
    let mut host = Region::create(memory.clone(), layout(), [0; 16], 1).expect("the memory has the layout's size");
    assert!(open(&mut host, 1));
    host
}

fn area(memory: &ModelMemory) -> HostArea<ModelMemory> {
    // SAFETY: the memory covers the region.
    unsafe { HostArea::new(memory.clone(), RegionView::of(&layout())) }
}

/// Follows the sessions and makes a record, as its timer and its tracepoints have a vCPU do. Returns the generation of the
/// session that the record was made for, if there was one.
fn follow_and_record(rings: &SessionRings<ModelMemory>, memory: &ModelMemory) -> Option<u64> {
    // SAFETY: the caller's thread is the only vCPU, and not within a record; the memory covers the rings.
    unsafe { rings.follow(&area(memory), 0, |ring| memory.at(ring)) };
    record(rings)
}

fn record(rings: &SessionRings<ModelMemory>) -> Option<u64> {
    let recorded = rings.producer(SLOT)?.record(|| 1, 1, &[0; 8]);
    assert!(recorded, "a ring with room loses nothing");
    rings.generation(SLOT)
}

/// Runs `model` in every way there is. Returns the number of executions, or `None` when one of them failed.
fn explore(model: impl Fn() + Send + Sync + 'static) -> Option<u64> {
    let executions = Arc::new(Plain::new(0));
    let counted = Arc::clone(&executions);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut builder = loom::model::Builder::new();
        builder.max_branches = 20_000;
        builder.max_permutations = Some(MOST_EXECUTIONS);
        builder.check(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            model();
        });
    }));
    let executions = executions.load(Ordering::Relaxed);
    println!("{executions} executions");
    outcome.is_ok().then_some(executions)
}

/// A vCPU follows and records `looks` times while the host closes the session, and opens another one in its place if the
/// guest has let go. What is in the ring afterwards is the last session's, and nothing else.
fn sessions_that_follow_one_another(looks: usize) -> impl Fn() + Send + Sync + 'static {
    move || {
        let memory = ModelMemory::new();
        let mut host = host(&memory);
        let guest = memory.clone();
        let vcpu = loom::thread::spawn(move || {
            let rings = SessionRings::new();
            let recorded: Vec<u64> = (0..looks).filter_map(|_| follow_and_record(&rings, &guest)).collect();
            (rings, recorded)
        });
        host.close_session(SLOT).expect("the session is open");
        let reopened = open(&mut host, 2);
        let (rings, mut recorded) = vcpu.join().expect("the guest does not panic");
        recorded.extend(follow_and_record(&rings, &memory));
        let last = if reopened { 2 } else { 1 };
        let records = recorded.iter().filter(|&&generation| generation == last).count() as u64;
        let written = memory.load_as(layout().kernel_ring(SLOT, 0) + RING_WRITE_COUNT, Ordering::Acquire);
        let header = if records > 0 { PACKET_HEADER_SIZE as u64 } else { 0 };
        assert_eq!(written, header + records * RECORD, "records of another session are in the ring: {recorded:?}");
    }
}

/// A process looks at a session while the host gives its slot to another one. What it sees is one of them.
fn looking_at_sessions_that_follow_one_another() -> impl Fn() + Send + Sync + 'static {
    || {
        let memory = ModelMemory::new();
        let mut host = host(&memory);
        let guest = memory.clone();
        let looking = loom::thread::spawn(move || area(&guest).session(SLOT));
        host.close_session(SLOT).expect("the session is open");
        assert!(open(&mut host, 2));
        let seen: Option<Session> = looking.join().expect("the guest does not panic");
        if let Some(session) = seen {
            let expected = rings(sub_buffers(session.generation));
            assert_eq!(session.rings, expected, "settings of another session than {}", session.generation);
        }
    }
}

#[test]
fn rings_hold_records_of_the_last_session_only() {
    assert!(explore(sessions_that_follow_one_another(1)).is_some_and(|executions| executions > 10));
    assert!(explore(sessions_that_follow_one_another(2)).is_some_and(|executions| executions > 10));
}

#[test]
fn settings_belong_to_the_generation_that_they_are_seen_with() {
    assert!(explore(looking_at_sessions_that_follow_one_another()).is_some_and(|executions| executions > 5));
}

fn survives(mutant: Mutant, model: impl Fn() + Send + Sync + 'static) -> Option<u64> {
    mutant.run(|| explore(model))
}

#[test]
fn adopting_without_a_fence_records_into_rings_that_were_given_away() {
    assert_eq!(survives(Mutant::AdoptWithoutFence, sessions_that_follow_one_another(1)), None);
}

#[test]
fn adopting_unchecked_records_into_rings_that_were_given_away() {
    assert_eq!(survives(Mutant::AdoptUnchecked, sessions_that_follow_one_another(1)), None);
}

#[test]
fn closing_without_a_fence_gives_rings_away_that_are_recorded_into() {
    assert_eq!(survives(Mutant::CloseWithoutFence, sessions_that_follow_one_another(1)), None);
}

#[test]
fn rings_given_away_unrequested_are_recorded_into() {
    assert_eq!(survives(Mutant::FreeUnasked, sessions_that_follow_one_another(1)), None);
}

#[test]
fn settings_that_are_not_looked_at_again_are_another_sessions() {
    assert_eq!(survives(Mutant::SettingsNotRechecked, looking_at_sessions_that_follow_one_another()), None);
}

#[test]
fn generation_written_with_its_settings_is_seen_before_them() {
    assert_eq!(survives(Mutant::OpenWithoutRelease, looking_at_sessions_that_follow_one_another()), None);
}

thread_local! {
    /// The rings of the vCPU that is interrupted, and what its interrupts have recorded.
    static INTERRUPTED: Cell<(Option<*const SessionRings<ModelMemory>>, u64)> = const { Cell::new((None, 0)) };
}

/// An interrupt that records, if its vCPU still does; nothing interrupts it.
fn interrupt() {
    let (rings, records) = INTERRUPTED.replace((None, 0));
    // SAFETY: the test clears the pointer before its rings are gone.
    let recorded = rings.and_then(|rings| record(unsafe { &*rings }));
    INTERRUPTED.set((rings, records + u64::from(recorded.is_some())));
}

/// A vCPU lets go of a session, and is interrupted after each word that it publishes meanwhile.
fn let_go_of_a_session() {
    let memory = ModelMemory::new();
    let _host = host(&memory);
    let rings = SessionRings::new();
    let interrupted = ModelMemory { after_release: interrupt, ..memory.clone() };
    assert_eq!(follow_and_record(&rings, &interrupted), Some(1));
    INTERRUPTED.set((Some(&raw const rings), 0));
    // SAFETY: this thread is the vCPU, and not within a record.
    unsafe { rings.release() };
    assert_eq!(INTERRUPTED.replace((None, 0)).1, 0, "an interrupt recorded after the host had read that nobody does");
}

#[test]
fn nothing_is_recorded_once_the_host_knows() {
    assert_eq!(explore(let_go_of_a_session), Some(1));
}

#[test]
fn ring_that_is_let_go_before_the_vcpu_stops_is_recorded_into() {
    assert_eq!(survives(Mutant::LetGoBeforeStop, let_go_of_a_session), None);
}
