//! Applications: how a thread that may migrate at any instruction records into its CPU's ring.
//!
//! | candidate | CPU from | atomics | time |
//! |---|---|---|---|
//! | `rdtscp` | `rdtscp` | SMP | `rdtscp`, which says whether the thread is still there |
//! | `rseq-cpu` | the C library's registered rseq area | SMP | as above |
//! | `event` | as above | none: the record is one restartable sequence | `rdtsc`, the guest's trace clock |
//! | `event-locked` | as `rseq-cpu` | SMP | as `rdtscp`, the guest's trace clock |
//!
//! The last two are the application library's own events, by restartable sequences and where these are not to be had.
//! The first two are the ring alone, on the bare counter.
#![allow(unsafe_code)] // The rseq area belongs to the thread; rings and the region lie in memory that is mapped here.

use crate::ring_cases::{EVENT_ID, Ring, SUB_BUFFER_SIZE, SUB_BUFFERS, SharedMapping};
use crate::sampling::{Case, TickRate, chunk_of, sample, ticks};
use anyhow::{Context, ensure};
use clock_sync::entry::Writer;
use clock_sync::relation::Relation;
use core::arch::asm;
use core::arch::x86_64::__rdtscp;
use guest_agent::{EventType, Tracer, event, tracer};
use shared_ring::guest;
use shared_ring::host::memory::HostMemory;
use shared_ring::host::{self, EnabledEvents};
use shared_ring::layout::{Geometry, MAX_VCPUS, Mode, Superblock};
use shared_ring::producer::Producer;
use shared_ring::region::{RegionConfig, RegionLayout, Rings};
use shared_ring::storage::Smp;
use std::hint::black_box;
use std::mem::offset_of;
use std::sync::Arc;

static EVENT: EventType<(u64, u64)> = EventType::new("bench:event", &["number", "other"]);

/// Offset of `cpu_id` in `struct rseq`.
const CPU_ID: usize = 4;

/// The calling thread's rseq area, which the C library registered.
#[derive(Clone, Copy, Debug)]
pub struct RseqArea {
    base: *mut u8,
}

impl RseqArea {
    /// Finds the area of the calling thread.
    ///
    /// # Errors
    /// When the C library (glibc before 2.35) or the kernel has none.
    pub fn of_this_thread() -> anyhow::Result<Self> {
        let constant =
            |name| c_library_constant(name).context("this C library registers no rseq area (glibc 2.35 does)");
        let (offset, size) = (constant(c"__rseq_offset")?, constant(c"__rseq_size")?);
        // SAFETY: both are constants of the C library, of these types.
        let (offset, size) = unsafe { (offset.cast::<isize>().read(), size.cast::<u32>().read()) };
        ensure!(size > 0, "the kernel has no restartable sequences");
        let thread: *mut u8;
        // SAFETY: on x86-64 the thread pointer is the first word of what it points to.
        unsafe { asm!("mov {}, fs:[0]", out(reg) thread, options(nostack, readonly, preserves_flags)) };
        Ok(Self { base: thread.wrapping_offset(offset) })
    }

    /// The CPU that the thread is on just now.
    #[inline(always)]
    pub fn cpu(self) -> u32 {
        // SAFETY: the area lives as long as the thread; the kernel writes it only while the thread does not run.
        unsafe { self.base.add(CPU_ID).cast::<u32>().read_volatile() }
    }
}

fn c_library_constant(name: &std::ffi::CStr) -> Option<*mut libc::c_void> {
    // SAFETY: looks the name up in the program's own libraries.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!symbol.is_null()).then_some(symbol)
}

/// The CPU and its TSC in one instruction.
#[inline(always)]
fn cpu_and_ticks() -> (u32, u64) {
    let mut cpu = 0;
    // SAFETY: every x86-64 processor of the last fifteen years has it.
    let ticks = unsafe { __rdtscp(&raw mut cpu) };
    (cpu & 0xfff, ticks)
}

/// Records into the ring of the CPU that `cpu` says, unless the time turns out to be another CPU's.
#[inline(never)]
fn probe_by_cpu(producers: &[Producer<Smp>], cpu: impl Fn() -> u32, value: u64) -> bool {
    let here = cpu();
    let Some(producer) = producers.get(here as usize) else { return false };
    let now = || {
        let (cpu, ticks) = cpu_and_ticks();
        (cpu == here).then_some(ticks)
    };
    let payload = [value.to_le_bytes(), (!value).to_le_bytes()];
    let Ok(mut reservation) = producer.try_reserve(now, EVENT_ID, 16) else { return false };
    let written = reservation.write(0, payload.as_flattened()).is_ok();
    reservation.commit();
    written
}

/// The candidates. They are measured on the calling thread, which stays on its CPU.
///
/// # Errors
/// When there is no memory or no rseq area.
pub fn cases(rate: TickRate) -> anyhow::Result<Vec<Case>> {
    let area = RseqArea::of_this_thread()?;
    let cpus = area.cpu() as usize + 1;
    let ring = || Ring::new(SUB_BUFFER_SIZE, SUB_BUFFERS, Mode::FlightRecorder);
    let by_rdtscp = ring()?;
    let by_area = ring()?;
    let sample_by = move |ring: &Ring, cpu: fn(RseqArea) -> u32| {
        let producers = vec![ring.smp(); cpus];
        rate.nanoseconds(sample(|| {
            let producers = black_box(producers.as_slice());
            chunk_of(|number| {
                black_box(probe_by_cpu(producers, || cpu(area), number));
            })
        }))
    };
    Ok(vec![
        masked_case(rate),
        Case {
            key: "user/rdtscp",
            label: "CPU by rdtscp, SMP atomics, time by rdtscp".to_owned(),
            sample: Box::new(move || Ok(sample_by(&by_rdtscp, |_| cpu_and_ticks().0))),
        },
        Case {
            key: "user/rseq-cpu",
            label: "CPU from the rseq area, SMP atomics, time by rdtscp".to_owned(),
            sample: Box::new(move || Ok(sample_by(&by_area, RseqArea::cpu))),
        },
        event_case("user/event", "an application's event, one restartable sequence", rate, true)?,
        locked_case(rate)?,
    ])
}

/// The application library's own event where threads cannot be restarted: SMP atomics.
///
/// # Errors
/// When there is no memory.
pub fn locked_case(rate: TickRate) -> anyhow::Result<Case> {
    event_case("user/event-locked", "an application's event, SMP atomics", rate, false)
}

/// The application library's own event that nobody wants, as it stands in a program.
fn masked_case(rate: TickRate) -> Case {
    let sample = move || {
        // Nobody has asked before the first attempt.
        tracer().connect();
        anyhow::ensure!(!tracer().is_wanted(), "a session wants this program's events");
        let took = sample(|| {
            chunk_of(|number| {
                event!("bench:masked", number: u64 = number, other: u64 = !number);
            })
        });
        Ok(rate.nanoseconds(took))
    };
    Case { key: "user/masked", label: "`event!` that nobody wants".to_owned(), sample: Box::new(sample) }
}

/// The application library's own event of 16 bytes, with the guest's trace clock, in rings like the others'. The host
/// reads restartable rings, or does not.
fn event_case(key: &'static str, label: &str, rate: TickRate, restartable: bool) -> anyhow::Result<Case> {
    let tracer = connected(restartable)?;
    let sample = move || {
        let took = sample(|| {
            let tracer = black_box(&tracer);
            chunk_of(|number| {
                black_box(EVENT.record_with(tracer, (number, !number)));
            })
        });
        ensure!(tracer.lost() == 0 && EVENT.record_with(&tracer, (0, 0)), "records were lost while measuring");
        Ok(rate.nanoseconds(took))
    };
    Ok(Case { key, label: label.to_owned(), sample: Box::new(sample) })
}

/// A tracer of a region of this process's own, with a ring for each CPU.
fn connected(restartable: bool) -> anyhow::Result<Tracer> {
    // SAFETY: takes a number and returns one.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    let cpus = u16::try_from(u32::try_from(cpus).unwrap_or(0).clamp(2, MAX_VCPUS)).unwrap_or(2);
    let rings = Rings { geometry: Geometry::new(SUB_BUFFER_SIZE, SUB_BUFFERS)?, mode: Mode::FlightRecorder };
    let layout = RegionLayout::new(RegionConfig {
        vcpus: u32::from(cpus),
        sessions: [Some(rings), None, None, None],
        process_rings: rings,
        process_slots: 1,
        registry_size: 4096,
        process_registry_size: 4096,
    })?;
    let mapping = Arc::new(SharedMapping::new(layout.size)?);
    let base = mapping.base();
    // SAFETY: the mapping is that large, and kept by the memory.
    let memory = unsafe { HostMemory::new(base, layout.size, mapping) };
    let mut host = host::Region::create(memory.clone(), layout, [0; 16], 1_000_000_000)?;
    host.open_session(0, "main", rings, |_, _| ())?;
    host.enable(0, &EnabledEvents { class_mask: u64::MAX, ..EnabledEvents::NONE })?;
    if !restartable {
        memory.store(offset_of!(Superblock, features), 0);
    }
    let mut vcpu_of_cpu = [u16::MAX; MAX_VCPUS as usize];
    (0..cpus).for_each(|cpu| vcpu_of_cpu[usize::from(cpu)] = cpu);
    let at = |offset: usize| base.wrapping_add(offset);
    let relation = Relation { hw_base: ticks(), trace_base: 1 << 40, ..Relation::IDENTITY };
    // SAFETY: everything lies inside the region, which the tracer keeps; only it records.
    let tracer = unsafe {
        for vcpu in 0..layout.config.vcpus {
            Writer::new(at(layout.clock_entry(vcpu))).publish(&relation);
        }
        let kernel = guest::Region::open(at(0), layout.size as u64)?;
        ensure!(kernel.claim_process_slot(1, &[0; 16], &vcpu_of_cpu) == Some(0), "there is a process slot");
        let slot = (at(layout.process_slot(0)), layout.process_stride);
        Tracer::over((at(0), layout.guest_writable), slot, Arc::new(memory.clone()))?
    };
    ensure!(tracer.is_restartable() == restartable, "this C library registers no rseq areas (glibc 2.35 does)");
    Ok(tracer)
}
