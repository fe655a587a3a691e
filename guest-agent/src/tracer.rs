//! The process's connection to the trace: made at the first event that is wanted, then recording without locks or
//! system calls.
#![allow(unsafe_code)] // Hands mappings to the rings; reads words and states through pointers that are never freed.

use crate::connection::Connection;
use crate::describe::Describe;
use crate::device::{self, DeviceError, MappedHostArea};
use crate::fields::Payload;
use crate::permanent;
use crate::process_rings::{Owner, ProcessRings, Rdtscp, RingsError};
use crate::process_state::{APART, ProcessState, SETTLED};
use rustix::io::Errno;
use shared_ring::layout::SESSION_TABLE_OFFSET;
use shared_ring::view::ViewError;
use std::any::Any;
use std::io;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use strata_abi::class;
use thiserror::Error;

/// What is wanted as long as nobody has asked: everything, so that the first event connects.
static NOT_REQUESTED: AtomicU64 = AtomicU64::new(u64::MAX);
/// What is wanted where nothing can be recorded.
static NOTHING: AtomicU64 = AtomicU64::new(0);
/// Events that are lost before a slot is requested again, at first; then twice as many each time.
const FIRST_RETRY: u64 = 64;
/// How long a thread waits at most for another one that is connecting. The kernel clears the slot meanwhile:
/// microseconds, but more than a second was seen where every page of it faults in an emulated machine.
const CONNECTING_LIMIT: Duration = Duration::from_secs(5);
/// How long between two looks whether it has.
const CONNECTING_PAUSE: Duration = Duration::from_micros(50);

/// Why nothing is recorded.
#[derive(Debug, Error)]
pub enum Error {
    /// The device cannot be used.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// What it mapped as this process's slot cannot be used.
    #[error("the kernel module's process slot cannot be used")]
    Slot(#[source] ViewError),
    /// The processor lacks an instruction.
    #[error("this (virtual) processor has no RDTSCP instruction, without which a record's CPU is not known")]
    NoRdtscp,
    /// The kernel has no memory that a fork empties.
    #[error("the kernel offers no memory that is emptied on fork (Linux 4.14 or later does)")]
    NoProcessState(#[source] io::Error),
    /// The kernel has no memory for what the tracer knows of its rings.
    #[error("the kernel has no memory for the tracer")]
    NoMemory(#[source] io::Error),
}

impl From<RingsError> for Error {
    fn from(error: RingsError) -> Self {
        match error {
            RingsError::View(error) => Self::Slot(error),
            RingsError::Memory(error) => Self::NoMemory(error),
        }
    }
}

impl Error {
    /// Whether it may be otherwise later.
    fn is_temporary(&self) -> bool {
        match self {
            Self::Device(DeviceError::NoSlot | DeviceError::OverQuota) => true,
            Self::Device(DeviceError::Open(error) | DeviceError::MapHostArea(error) | DeviceError::MapSlot(error))
            | Self::NoMemory(error) => is_shortage(error),
            _ => false,
        }
    }

    /// Whether the kernel counts a process that gets it: once, however often it asks.
    const fn is_counted(&self) -> bool {
        matches!(self, Self::Device(DeviceError::NoSlot | DeviceError::OverQuota))
    }
}

/// Whether `error` is a lack of descriptors or memory, which the process or the kernel may have again.
fn is_shortage(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM))
}

/// When to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// Whether events are wanted or not.
    Now,
    /// If they are: a process that nobody records needs no slot.
    Wanted,
}

/// A connection to the trace, or the lack of one.
///
/// A child made by `fork` connects by itself, at its first event.
#[derive(Debug)]
pub struct Tracer {
    /// Points to the word whose bits say which classes of events are wanted: the session's own, or one of those above.
    wanted: AtomicPtr<AtomicU64>,
    /// Null before the first event.
    state: AtomicPtr<ProcessState>,
    /// What the host tells everyone, mapped once and kept by children too; null before.
    host_area: AtomicPtr<MappedHostArea>,
    /// Why the last attempt to connect failed; null when none has.
    error: AtomicPtr<Error>,
}

static TRACER: Tracer = Tracer::new();

/// The process's own tracer.
#[inline(always)]
pub const fn tracer() -> &'static Tracer {
    &TRACER
}

impl Tracer {
    const fn new() -> Self {
        Self {
            wanted: AtomicPtr::new(ptr::addr_of!(NOT_REQUESTED).cast_mut()),
            state: AtomicPtr::new(ptr::null_mut()),
            host_area: AtomicPtr::new(ptr::null_mut()),
            error: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// A tracer of a process slot that is mapped already, for guests that are not a Linux system with `/dev/strata`. Both are
    /// addresses and sizes in bytes: the host's area, and the slot. A child made by `fork` is not connected.
    ///
    /// # Errors
    /// When the slot's header does not describe rings that fit, or the processor lacks an instruction.
    ///
    /// # Safety
    /// Both are aligned to 8, and stay mapped (the slot writable) as long as `owner` lives. Only this process, by this
    /// tracer, and the host write the slot.
    pub unsafe fn over(
        host_area: (*mut u8, usize),
        slot: (*mut u8, usize),
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, Error> {
        if !Rdtscp::is_available() {
            return Err(Error::NoRdtscp);
        }
        // SAFETY: passed on from the caller.
        let rings =
            unsafe { ProcessRings::new(host_area, slot, Owner::Caller(owner))?.restartable_if_possible(host_area.0) };
        Self::connected(rings)
    }

    /// Whether an event recorded now might be kept: two loads. Before the first event, nobody knows, and it is.
    #[must_use]
    #[inline(always)]
    pub fn is_wanted(&self) -> bool {
        // SAFETY: the pointer is to a static or into a mapping that is never undone, and is read atomically only.
        unsafe { &*self.wanted.load(Ordering::Acquire) }.load(Ordering::Relaxed) >> class::USER & 1 == 1
    }

    /// Where to look whether events are wanted, for code in other languages: bit [`class::USER`] of the word that the
    /// result points to. The pointer changes, what it points to stays.
    #[must_use]
    pub const fn wanted_word(&self) -> &AtomicPtr<AtomicU64> {
        &self.wanted
    }

    /// Connects now rather than with the first event that is wanted. Returns whether the process is connected.
    pub fn connect(&self) -> bool {
        self.connection(When::Now).is_some()
    }

    /// Whether an event recorded now would be kept: wanted, and connected. Connects if it is the first one.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.is_wanted() && self.connection(When::Wanted).is_some() && self.is_wanted()
    }

    /// Why this tracer records nothing; `None` when it is connected, or will be when its events are wanted. Connects if
    /// they are.
    #[must_use]
    pub fn error(&self) -> Option<&Error> {
        if self.connection(When::Wanted).is_some() {
            return None;
        }
        // SAFETY: errors are never freed.
        unsafe { self.error.load(Ordering::Acquire).as_ref() }
    }

    /// Records of this process that no ring took: there was no slot for it, the thread was on a CPU that the trace does
    /// not know, or had a type that did not fit the registry. As soon as there is a ring, it counts them as lost, as
    /// full rings count their own losses, so that the trace shows them.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let Some(state) = self.state() else { return 0 };
        let connection = Self::connection_of(state);
        connection.map_or_else(|| state.lost.load(Ordering::Relaxed), Connection::lost)
    }

    /// Counts a record that is wanted and cannot be made, as for want of a type for it, as [`lost`](Self::lost).
    #[cold]
    pub fn count_unrecorded(&self) {
        match self.connection(When::Wanted) {
            Some(connection) if self.is_wanted() => connection.count_lost(1),
            Some(_) => {}
            None => {
                self.count_lost();
            }
        }
    }

    /// Whether each record is one restartable sequence, which costs a third of one with locked instructions; `false`
    /// also when not connected. It takes a kernel that registers rseq areas, the C library's or this library's, and a
    /// host that reads such rings.
    #[must_use]
    pub fn is_restartable(&self) -> bool {
        self.state().and_then(Self::connection_of).is_some_and(|connection| connection.rings().is_restartable())
    }

    /// Hands everything recorded so far to the host. Without it records reach the host when a part of a ring is full,
    /// and at the process's end. Does nothing when not connected.
    ///
    /// Where records are restartable sequences, the calling thread goes to each CPU that has some, if `/proc` tells to which
    /// it may go; it allocates for that. Not in a signal handler.
    pub fn flush(&self) {
        if let Some(connection) = self.state().and_then(Self::connection_of) {
            connection.flush();
        }
    }

    /// Records an event (already known to be wanted) with `size` payload bytes, which `fill` writes.
    #[inline]
    pub(crate) fn record(
        &self,
        described: &'static impl Describe,
        size: usize,
        fill: impl FnOnce(&mut Payload<'_>),
    ) -> bool {
        let Some(connection) = self.connection(When::Wanted) else { return self.count_lost() };
        // What was wanted before it was requested may not be.
        self.is_wanted() && connection.record(described, size, fill)
    }

    /// Describes an event type to the host, once. `false` when not connected, or the registry is full.
    pub(crate) fn register(&self, described: &'static impl Describe) -> bool {
        self.connection(When::Now).is_some_and(|connection| connection.register(described))
    }

    #[cold]
    fn count_lost(&self) -> bool {
        if self.is_wanted()
            && let Some(state) = self.state()
        {
            state.lost.fetch_add(1, Ordering::SeqCst);
            // Should another thread have connected meanwhile, one of the two sees what the other did.
            if let Some(connection) = Self::connection_of(state) {
                Self::hand_over_losses(state, connection);
            }
        }
        false
    }

    #[inline]
    fn state(&self) -> Option<&'static ProcessState> {
        // SAFETY: pages of process state are never unmapped once they are here; any bytes are one.
        unsafe { self.state.load(Ordering::Acquire).as_ref() }
    }

    #[inline]
    fn connection_of(state: &ProcessState) -> Option<&'static Connection> {
        // SAFETY: connections are never freed. The pointer is this process's own, since a fork zeroes it.
        unsafe { state.connection.load(Ordering::Acquire).as_ref() }
    }

    #[inline]
    fn connection(&self, when: When) -> Option<&'static Connection> {
        match self.state().and_then(Self::connection_of) {
            Some(connection) => Some(connection),
            None => self.try_to_connect(when),
        }
    }

    /// Connects, unless that is hopeless, or not yet due again.
    #[cold]
    fn try_to_connect(&self, when: When) -> Option<&'static Connection> {
        let state = self.state().or_else(|| self.make_state())?;
        if state.lost.load(Ordering::Relaxed) < state.retry_at.load(Ordering::Relaxed) {
            return None;
        }
        let this_thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        match state.stage.compare_exchange(APART, this_thread, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {}
            // A signal handler that interrupts the connecting must not wait for it.
            Err(thread) if thread == this_thread => return None,
            // Refused for good, or connected since this thread has looked.
            Err(SETTLED) => return Self::connection_of(state),
            Err(thread) => return Self::await_connection(state, thread),
        }
        match self.open(state, when) {
            Ok(Some(connection)) => self.settle(state, connection),
            Ok(None) => {
                state.stage.store(APART, Ordering::Release);
                None
            }
            Err(error) => {
                // Else a handler has forked in the midst of this: the child's state was emptied, and it begins anew.
                if state.stage.load(Ordering::Acquire) == this_thread {
                    self.refused(state, error);
                }
                None
            }
        }
    }

    /// The connection, when the thread `connecting` has made it. A thread that a signal handler has taken away from that
    /// never does.
    fn await_connection(state: &ProcessState, connecting: u32) -> Option<&'static Connection> {
        let began = Instant::now();
        let is_pending = || state.stage.load(Ordering::Acquire) == connecting;
        while is_pending() && state.given_up.load(Ordering::Relaxed) != connecting {
            if began.elapsed() >= CONNECTING_LIMIT {
                state.given_up.store(connecting, Ordering::Relaxed);
            }
            thread::sleep(CONNECTING_PAUSE);
        }
        Self::connection_of(state)
    }

    /// The connection of this process from now on: `connection`, unless a signal handler has interrupted the connecting and
    /// forked, and this is the child. Then `connection` is the parent's, and the child's own is what it made since, if it
    /// did. At each moment of this the child may come into being, with an emptied `state`.
    fn settle(&self, state: &ProcessState, connection: &'static Connection) -> Option<&'static Connection> {
        let own = ptr::from_ref(connection).cast_mut();
        self.wanted.store(connection.rings().class_mask().cast_mut(), Ordering::Release);
        // Only a handler that has forked leaves another one here.
        let _ = state.connection.compare_exchange(ptr::null_mut(), own, Ordering::SeqCst, Ordering::Relaxed);
        state.stage.store(SETTLED, Ordering::Release);
        if !connection.rings().is_there() {
            let _ = state.connection.compare_exchange(own, ptr::null_mut(), Ordering::SeqCst, Ordering::Relaxed);
            if Self::connection_of(state).is_none() {
                state.stage.store(APART, Ordering::Release);
            }
        }
        let connection = Self::connection_of(state)?;
        Self::hand_over_losses(state, connection);
        Some(connection)
    }

    fn hand_over_losses(state: &ProcessState, connection: &Connection) {
        let lost = state.lost.swap(0, Ordering::SeqCst);
        if lost > 0 {
            connection.count_lost(lost);
        }
    }

    fn refused(&self, state: &ProcessState, error: Error) {
        let temporary = error.is_temporary();
        if error.is_counted() {
            state.is_counted.store(true, Ordering::Relaxed);
        }
        self.failed(error);
        if temporary {
            let lost = state.lost.load(Ordering::Relaxed);
            state.retry_at.store((2 * lost).max(FIRST_RETRY), Ordering::Relaxed);
            state.stage.store(APART, Ordering::Release);
        } else {
            self.wanted.store(ptr::addr_of!(NOTHING).cast_mut(), Ordering::Release);
            state.stage.store(SETTLED, Ordering::Release);
        }
    }

    fn failed(&self, error: Error) {
        // Without memory for it the earlier one stays: this one is described less well, and has the same effect.
        if let Ok(error) = permanent::keep(error) {
            self.error.store(ptr::from_ref(error).cast_mut(), Ordering::Release);
        }
    }

    fn make_state(&self) -> Option<&'static ProcessState> {
        let page = match ProcessState::map() {
            Ok(page) => page,
            Err(error) => {
                self.failed(Error::NoProcessState(error));
                self.wanted.store(ptr::addr_of!(NOTHING).cast_mut(), Ordering::Release);
                return None;
            }
        };
        let exchanged = self.state.compare_exchange(ptr::null_mut(), page, Ordering::AcqRel, Ordering::Acquire);
        if exchanged.is_err() {
            // SAFETY: another thread was faster, and nobody has seen this page.
            unsafe { ProcessState::unmap(page) };
        }
        self.state()
    }

    /// Maps what this process needs; `None` when it needs nothing yet.
    fn open(&self, state: &ProcessState, when: When) -> Result<Option<&'static Connection>, Error> {
        if !Rdtscp::is_available() {
            return Err(Error::NoRdtscp);
        }
        let host_area = self.host_area()?;
        // Events are wanted, or not, whether there is a slot for them or not: by the session that applications record
        // for.
        self.wanted.store(host_area.base().wrapping_add(SESSION_TABLE_OFFSET).cast(), Ordering::Release);
        if when == When::Wanted && !self.is_wanted() {
            return Ok(None);
        }
        let slot = device::map_slot(host_area, state.is_counted.load(Ordering::Relaxed))?;
        // A handler has forked before that, and this is the child, which has connected since: it needs no second slot.
        if let Some(connection) = Self::connection_of(state) {
            return Ok(Some(connection));
        }
        let (host, own) = ((host_area.base(), host_area.size()), (slot.base(), slot.size()));
        // SAFETY: both are whole mappings, the host's never undone and the slot's kept by the owner; the kernel maps each slot
        // once, and this one here.
        let rings = unsafe { ProcessRings::new(host, own, Owner::Slot(slot))?.restartable_if_possible(host.0) };
        Ok(Some(permanent::keep(Connection::new(rings)).map_err(Error::NoMemory)?))
    }

    fn host_area(&self) -> Result<&'static MappedHostArea, Error> {
        // SAFETY: mappings that are here are never freed.
        let known = || unsafe { self.host_area.load(Ordering::Acquire).as_ref() };
        if let Some(mapping) = known() {
            return Ok(mapping);
        }
        // One thread at a time connects.
        let mapping = permanent::keep(device::map_host_area()?).map_err(Error::NoMemory)?;
        self.host_area.store(ptr::from_ref(mapping).cast_mut(), Ordering::Release);
        Ok(mapping)
    }

    /// A tracer that is connected to `rings`.
    fn connected(rings: ProcessRings) -> Result<Self, Error> {
        let tracer = Self::new();
        let page = ProcessState::map().map_err(Error::NoProcessState)?;
        tracer.state.store(page, Ordering::Release);
        // SAFETY: pages of process state are never unmapped once they are here; any bytes are one.
        let state = unsafe { &*page };
        state.stage.store(SETTLED, Ordering::Release);
        tracer.settle(state, permanent::keep(Connection::new(rings)).map_err(Error::NoMemory)?);
        Ok(tracer)
    }

    /// A tracer that was refused.
    #[cfg(test)]
    pub(crate) fn disconnected(error: Error) -> Self {
        let tracer = Self::new();
        tracer.refused(tracer.make_state().unwrap(), error);
        tracer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_type::EventType;
    use crate::fields::{Hex, Text};
    use crate::process_rings::tests::Region;
    use shared_ring::layout::MAX_VCPUS;
    use shared_ring::layout::ProcessHeader;

    static OPENED: EventType<(Text, Hex<u32>)> = EventType::new("test:opened", &["name", "flags"]);

    /// A region in which every CPU of this machine is vCPU 0.
    fn region_of_this_machine() -> Region {
        let region = Region::new();
        let table = region.layout.process_slot(0) + std::mem::offset_of!(ProcessHeader, vcpu_of_cpu);
        region.memory.write(table, &[0; 2 * MAX_VCPUS as usize]);
        region
    }

    #[test]
    fn recorded_values_reach_the_host_with_their_description() {
        let region = region_of_this_machine();
        let tracer = Tracer::connected(region.rings().unwrap()).unwrap();

        let recorded = [OPENED.record_with(&tracer, ("a", 1)), OPENED.record_with(&tracer, ("bc", 2))];

        let (events, records) = region.drain(0);
        assert_eq!(recorded, [true, true]);
        assert_eq!((events.len(), events[0].name.as_str()), (1, "test:opened"));
        let payloads: Vec<_> = records.into_iter().map(|(_, _, payload)| payload).collect();
        assert_eq!(payloads, [b"a\0\x01\0\0\0".to_vec(), b"bc\0\x02\0\0\0".to_vec()]);
    }

    #[test]
    fn child_does_not_take_the_connection_that_its_parent_was_making() {
        let region = region_of_this_machine();
        let tracer = Tracer::new();
        let state = tracer.make_state().unwrap();
        let of_parent = permanent::keep(Connection::new(region.rings().unwrap())).unwrap();
        // As a child finds the slot.
        region.memory.store(region.layout.process_slot(0), 0);

        let settled = tracer.settle(state, of_parent);

        assert!(settled.is_none() && Tracer::connection_of(state).is_none());
        assert_eq!(state.stage.load(Ordering::Relaxed), APART);
    }

    #[test]
    fn record_that_could_not_be_made_is_counted_while_events_are_wanted() {
        let region = region_of_this_machine();
        let tracer = Tracer::connected(region.rings().unwrap()).unwrap();

        tracer.count_unrecorded();
        let wanted = tracer.lost();
        region.memory.store(SESSION_TABLE_OFFSET, !(1 << class::USER));
        tracer.count_unrecorded();

        assert_eq!((wanted, tracer.lost()), (1, 1));
    }

    #[test]
    fn masked_events_leave_no_trace() {
        let region = region_of_this_machine();
        region.memory.store(SESSION_TABLE_OFFSET, !(1 << class::USER));
        let tracer = Tracer::connected(region.rings().unwrap()).unwrap();

        let recorded = OPENED.record_with(&tracer, ("a", 1));

        assert!(!recorded);
        assert_eq!(region.drain(0), (vec![], vec![]));
        assert_eq!(tracer.lost(), 0);
    }

    #[test]
    fn events_of_several_threads_all_arrive_in_time_order() {
        static COUNTED: EventType<(u32, u32)> = EventType::new("test:counted", &["thread", "number"]);
        let region = region_of_this_machine();
        let tracer = Tracer::connected(region.rings().unwrap()).unwrap();

        std::thread::scope(|scope| {
            for thread in 0..4 {
                let tracer = &tracer;
                scope.spawn(move || (0..100).for_each(|number| assert!(COUNTED.record_with(tracer, (thread, number)))));
            }
        });

        let (_, records) = region.drain(0);
        let numbers_of = |thread: u32| {
            let ours = records.iter().filter(move |(_, _, payload)| payload[..4] == thread.to_le_bytes());
            ours.map(|(_, _, payload)| u32::from(payload[4])).collect::<Vec<_>>()
        };
        assert!(records.is_sorted_by_key(|(time, _, _)| *time));
        assert!((0..4).all(|thread| numbers_of(thread) == (0..100).collect::<Vec<_>>()));
    }

    #[test]
    fn tracer_without_a_device_records_nothing_and_says_why() {
        let tracer = Tracer::disconnected(DeviceError::Absent.into());

        assert!(!OPENED.record_with(&tracer, ("a", 1)));
        assert!(!OPENED.register(&tracer));
        assert!(tracer.error().unwrap().to_string().contains("/dev/strata"));
    }

    #[test]
    fn process_without_descriptors_asks_again_and_counts_what_it_loses() {
        let tracer = Tracer::disconnected(DeviceError::Open(Errno::MFILE.into()).into());

        let recorded = OPENED.record_with(&tracer, ("a", 1));

        assert_eq!((recorded, tracer.is_wanted(), tracer.lost()), (false, true, 1));
    }

    #[test]
    fn only_process_that_was_refused_a_slot_is_counted() {
        let tracer = Tracer::disconnected(DeviceError::Open(Errno::MFILE.into()).into());
        let state = tracer.state().unwrap();
        let without_descriptors = state.is_counted.load(Ordering::Relaxed);

        tracer.refused(state, DeviceError::NoSlot.into());
        let without_slot = state.is_counted.load(Ordering::Relaxed);
        tracer.refused(state, DeviceError::Open(Errno::MFILE.into()).into());

        assert_eq!((without_descriptors, without_slot), (false, true));
        assert!(state.is_counted.load(Ordering::Relaxed));
    }

    #[test]
    fn tracer_that_was_refused_for_good_says_so_without_waiting() {
        let tracer = Tracer::disconnected(DeviceError::Absent.into());
        let began = Instant::now();

        let answers = (tracer.error().is_some(), tracer.connect());

        assert_eq!(answers, (true, false));
        assert!(began.elapsed() < CONNECTING_LIMIT / 2, "waited for a thread that connects");
    }

    #[test]
    fn child_does_not_record_into_its_parents_rings() {
        let region = region_of_this_machine();
        let tracer = Tracer::connected(region.rings().unwrap()).unwrap();

        // SAFETY: the child records, which takes no lock that another thread may hold, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let recorded = OPENED.record_with(&tracer, ("child", 1));
            // SAFETY: ends the child without running what belongs to the test's process.
            unsafe { libc::_exit(i32::from(recorded)) };
        }
        let mut status = -1;
        // SAFETY: waits for the child made above.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        let recorded = OPENED.record_with(&tracer, ("parent", 2));

        assert_eq!((waited, status, recorded), (child, 0, true));
        assert_eq!(region.drain(0).1.len(), 1);
    }

    #[test]
    fn thread_waits_for_another_one_that_is_connecting() {
        let region = region_of_this_machine();
        let tracer = Tracer::new();
        let state = tracer.make_state().unwrap();
        state.stage.store(u32::MAX - 1, Ordering::Release);

        let recorded = thread::scope(|scope| {
            let recorder = scope.spawn(|| OPENED.record_with(&tracer, ("early", 1)));
            thread::sleep(Duration::from_millis(20));
            tracer.settle(state, permanent::keep(Connection::new(region.rings().unwrap())).unwrap());
            recorder.join().unwrap()
        });

        assert!(recorded);
        assert_eq!((region.drain(0).1.len(), tracer.lost()), (1, 0));
    }

    #[test]
    fn thread_that_never_ends_connecting_is_waited_for_once() {
        let tracer = Tracer::new();
        tracer.make_state().unwrap().stage.store(u32::MAX - 1, Ordering::Release);
        let recorded = OPENED.record_with(&tracer, ("first", 1));
        let began = Instant::now();

        let again = (0..10).any(|number| OPENED.record_with(&tracer, ("later", number)));

        assert!(!recorded && !again && began.elapsed() < CONNECTING_LIMIT / 2);
        assert_eq!(tracer.lost(), 11);
    }

    #[test]
    fn handler_that_interrupts_the_connecting_does_not_wait_for_it() {
        let tracer = Tracer::new();
        let state = tracer.make_state().unwrap();
        state.stage.store(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned(), Ordering::Release);
        let began = Instant::now();

        let recorded = OPENED.record_with(&tracer, ("handler", 1));

        assert!(!recorded && began.elapsed() < CONNECTING_LIMIT / 2);
        assert_eq!(tracer.lost(), 1);
    }

    #[test]
    fn losses_without_a_slot_are_counted_by_the_ring_that_comes_later() {
        let region = region_of_this_machine();
        let tracer = Tracer::disconnected(DeviceError::NoSlot.into());
        (0..5).for_each(|_| assert!(!OPENED.record_with(&tracer, ("a", 1))));
        let before = tracer.lost();

        tracer.settle(tracer.state().unwrap(), permanent::keep(Connection::new(region.rings().unwrap())).unwrap());

        let counted = region.memory.load(region.layout.process_ring(0, 0) + shared_ring::layout::RING_LOST_FULL);
        assert_eq!((before, counted, tracer.lost()), (5, 5, 5));
        assert!(OPENED.record_with(&tracer, ("a", 1)));
    }

    #[test]
    fn registry_that_is_full_loses_the_event_and_counts_it() {
        let region = region_of_this_machine();
        let tracer = Tracer::connected(region.rings().unwrap()).unwrap();
        region.memory.store(region.layout.process_slot(0) + shared_ring::layout::PAGE_SIZE, 4000);

        let recorded = OPENED.record_with(&tracer, ("a", 1));

        assert!(!recorded);
        assert_eq!(tracer.lost(), 1);
    }
}
