//! The process's connection to the trace: opened once, then recording without locks or system calls.
#![allow(unsafe_code)] // Hands mappings to the rings; learns of forks from the C library.

use crate::device::{Device, DeviceError};
use crate::event_type::Payload;
use crate::process_rings::{ProcessRings, Rdtscp, Recorded, RingsError};
use shared_ring::event::{Event, class};
use shared_ring::layout::{MAX_EVENTS, SESSION_TABLE_OFFSET, SessionSlot};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};
use thiserror::Error;

/// How many forks lie between this process and the one that loaded the program.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Why nothing is recorded.
#[derive(Debug, Error)]
pub enum Error {
    /// The device cannot be used.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// What it mapped cannot be used.
    #[error(transparent)]
    Rings(#[from] RingsError),
    /// The processor lacks an instruction.
    #[error("this (virtual) processor has no RDTSCP instruction, without which a record's CPU is not known")]
    NoRdtscp,
}

/// What the process is connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Number of vCPUs that the host traces.
    pub vcpus: u32,
    /// Size of the trace region, bytes.
    pub region_size: u64,
    /// Layout version of the host, `major << 16 | minor`.
    pub abi_version: u32,
    /// Whether a host drains the rings.
    pub host_alive: bool,
    /// Frequency of the trace clock, Hz.
    pub clock_frequency: u64,
    /// Process slots in the region.
    pub process_slots: u32,
    /// Name of the session.
    pub session: String,
    /// Its enabled classes, one bit each.
    pub class_mask: u64,
}

impl Status {
    /// Asks the device, without taking a process slot.
    ///
    /// # Errors
    /// When the device cannot be used.
    pub fn read() -> Result<Self, Error> {
        let device = Device::open()?;
        let superblock = device.superblock();
        if device.host_area().size() < SESSION_TABLE_OFFSET + size_of::<SessionSlot>() {
            return Err(RingsError::BadLayout.into());
        }
        // SAFETY: the session lies inside the host's area (checked just above), which lives; any bytes are a session,
        // and the host may be writing them: a volatile copy takes them as they are.
        let session =
            unsafe { device.host_area().base().add(SESSION_TABLE_OFFSET).cast::<SessionSlot>().read_volatile() };
        let length = session.name.iter().position(|&byte| byte == 0).unwrap_or(session.name.len());
        Ok(Self {
            vcpus: superblock.vcpus,
            region_size: superblock.region_size,
            abi_version: superblock.abi_version,
            host_alive: superblock.host_alive != 0,
            clock_frequency: superblock.clock_frequency,
            process_slots: superblock.process_slots,
            session: String::from_utf8_lossy(&session.name[..length]).into_owned(),
            class_mask: session.class_mask,
        })
    }

    /// Whether the session wants applications' events.
    #[must_use]
    pub const fn wants_user_events(&self) -> bool {
        self.class_mask >> class::USER & 1 == 1
    }
}

/// A connection to the trace, or the lack of one.
#[derive(Debug)]
pub struct Tracer {
    rings: Option<ProcessRings>,
    error: Option<Error>,
    /// Value of [`FORKS`] in the process that the rings are mapped into.
    forks: u32,
    /// Bit *n* is set once the host knows the event type of id *n*.
    registered: [AtomicU64; MAX_EVENTS / 64],
    /// Serialises the registry's writers.
    registering: Mutex<()>,
    /// Records lost without a ring that could count them.
    lost: AtomicU64,
}

/// The process's own tracer, opened at its first use. It stays connected, or not, until the process ends.
#[inline]
pub fn tracer() -> &'static Tracer {
    static TRACER: OnceLock<Tracer> = OnceLock::new();
    TRACER.get_or_init(|| Tracer::open().unwrap_or_else(Tracer::disconnected))
}

impl Tracer {
    /// Connects this process: maps a process slot of the trace region. Most programs use [`tracer()`].
    ///
    /// # Errors
    /// When there is no trace to connect to, or no slot left in it.
    pub fn open() -> Result<Self, Error> {
        static WATCH_FORKS: Once = Once::new();
        WATCH_FORKS.call_once(|| {
            // SAFETY: the handler only adds to an atomic. Should there be no memory for it, a forked child that records
            // dies of a segmentation fault, which is what it would do for want of memory anyway.
            unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
        });
        if !Rdtscp::is_available() {
            return Err(Error::NoRdtscp);
        }
        let (host_area, slot) = Device::open()?.into_mappings()?;
        let (host, own) = ((host_area.base(), host_area.size()), (slot.base(), slot.size()));
        // SAFETY: both are whole mappings, kept by the owner; the kernel gives a slot to one process, and this is the
        // only place where it is mapped.
        let rings = unsafe { ProcessRings::new(host, own, Arc::new((host_area, slot))) }?;
        Ok(Self::connected(rings))
    }

    fn connected(rings: ProcessRings) -> Self {
        Self { rings: Some(rings), ..Self::without_rings(None) }
    }

    fn disconnected(error: Error) -> Self {
        Self::without_rings(Some(error))
    }

    fn without_rings(error: Option<Error>) -> Self {
        Self {
            rings: None,
            error,
            forks: FORKS.load(Ordering::Relaxed),
            registered: [const { AtomicU64::new(0) }; MAX_EVENTS / 64],
            registering: Mutex::new(()),
            lost: AtomicU64::new(0),
        }
    }

    /// Why this tracer records nothing; `None` when it is connected.
    #[must_use]
    pub const fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }

    /// Whether an event recorded now would be kept: connected, in the process that connected, and wanted.
    #[must_use]
    #[inline]
    pub fn is_enabled(&self) -> bool {
        self.rings.as_ref().is_some_and(|rings| self.forks == FORKS.load(Ordering::Relaxed) && rings.is_enabled())
    }

    /// Records that were lost because the thread was on a CPU that the trace does not know, or had a type that did not
    /// fit the registry. Full rings count their own losses, which the trace shows.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Hands everything recorded so far to the host. Without it records reach the host when a part of a ring is full,
    /// and at the process's end. Does nothing when not connected.
    pub fn flush(&self) {
        if let Some(rings) = self.rings.as_ref().filter(|_| self.forks == FORKS.load(Ordering::Relaxed)) {
            rings.flush(&Rdtscp);
        }
    }

    /// Records `event` (already known to be wanted) with `size` payload bytes, which `fill` writes.
    #[inline]
    pub(crate) fn record(&self, event: &Event, size: usize, fill: impl FnOnce(&mut Payload<'_>)) -> bool {
        let Some(rings) = &self.rings else { return false };
        if !self.is_registered(event.id) && !self.register(event) {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        match rings.record(&Rdtscp, event.id, size, fill) {
            Recorded::Yes => true,
            Recorded::Lost => false,
            Recorded::NoRing => {
                self.lost.fetch_add(1, Ordering::Relaxed);
                false
            }
        }
    }

    /// Describes `event` to the host, once. `false` when not connected, or the registry is full.
    #[cold]
    pub(crate) fn register(&self, event: &Event) -> bool {
        let Some(rings) = self.rings.as_ref().filter(|_| self.forks == FORKS.load(Ordering::Relaxed)) else {
            return false;
        };
        let _only_writer = self.registering.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_registered(event.id) {
            return true;
        }
        let appended = rings.append(event);
        if appended && let Some(word) = self.registered.get(usize::from(event.id) / 64) {
            word.fetch_or(1 << (event.id % 64), Ordering::Release);
        }
        appended
    }

    #[inline]
    fn is_registered(&self, id: u16) -> bool {
        self.registered.get(usize::from(id) / 64).is_some_and(|word| word.load(Ordering::Acquire) >> (id % 64) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_type::{EventType, Hex, Text};
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
        let tracer = Tracer::connected(region.rings().unwrap());

        let recorded = [OPENED.record_with(&tracer, ("a", 1)), OPENED.record_with(&tracer, ("bc", 2))];

        let (events, records) = region.drain(0);
        assert_eq!(recorded, [true, true]);
        assert_eq!((events.len(), events[0].name.as_str()), (1, "test:opened"));
        let payloads: Vec<_> = records.into_iter().map(|(_, _, payload)| payload).collect();
        assert_eq!(payloads, [b"a\0\x01\0\0\0".to_vec(), b"bc\0\x02\0\0\0".to_vec()]);
    }

    #[test]
    fn masked_events_leave_no_trace() {
        let region = region_of_this_machine();
        region.memory.store(SESSION_TABLE_OFFSET, !(1 << class::USER));
        let tracer = Tracer::connected(region.rings().unwrap());

        let recorded = OPENED.record_with(&tracer, ("a", 1));

        assert!(!recorded);
        assert_eq!(region.drain(0), (vec![], vec![]));
        assert_eq!(tracer.lost(), 0);
    }

    #[test]
    fn events_of_several_threads_all_arrive_in_time_order() {
        static COUNTED: EventType<(u32, u32)> = EventType::new("test:counted", &["thread", "number"]);
        let region = region_of_this_machine();
        let tracer = Tracer::connected(region.rings().unwrap());

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
    fn tracer_of_another_process_records_nothing() {
        let region = region_of_this_machine();
        let tracer = Tracer { forks: u32::MAX, ..Tracer::connected(region.rings().unwrap()) };

        assert!(!OPENED.record_with(&tracer, ("a", 1)));
        assert_eq!(region.drain(0).1, []);
    }

    #[test]
    fn registry_that_is_full_loses_the_event_and_counts_it() {
        let region = region_of_this_machine();
        let tracer = Tracer::connected(region.rings().unwrap());
        region.memory.store(region.layout.process_slot(0) + shared_ring::layout::PAGE_SIZE, 4000);

        let recorded = OPENED.record_with(&tracer, ("a", 1));

        assert!(!recorded);
        assert_eq!(tracer.lost(), 1);
    }
}
