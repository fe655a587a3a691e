//! Applications: how a thread that may migrate at any instruction records into its CPU's ring.
//!
//! | candidate | CPU from | atomics | time |
//! |---|---|---|---|
//! | `rdtscp` | `rdtscp` | SMP | `rdtscp`, which says whether the thread is still there |
//! | `rseq-cpu` | the C library's registered rseq area | SMP | as above |
//! | `rseq-local` | as above | CPU-local, inside restartable sequences | `rdtsc` |
//!
//! The last one is a lower bound of what such a producer costs: it takes the fast path only, on a thread that stays
//! where it is. A complete one has to let a thread commit what it reserved on a CPU that it has left since, which needs
//! a second commit count per sub-buffer that the consumer adds to the first.
#![allow(unsafe_code)] // Restartable sequences are assembly, and the rseq area belongs to the thread.

use crate::ring_cases::{EVENT_ID, Ring, SUB_BUFFER_SIZE, SUB_BUFFERS, sample_ring};
use crate::sampling::{Case, TickRate, chunk_of, sample, ticks};
use anyhow::{Context, ensure};
use core::arch::asm;
use core::arch::x86_64::__rdtscp;
use guest_agent::{event, tracer};
use shared_ring::layout::Mode;
use shared_ring::producer::Producer;
use shared_ring::storage::{MappedStorage, Smp, Storage};
use std::hint::black_box;

/// Offset of `cpu_id` in `struct rseq`.
const CPU_ID: usize = 4;
/// Offset of `rseq_cs` in `struct rseq`.
const CRITICAL_SECTION: usize = 8;

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

/// One instruction as a restartable sequence: executed on CPU `$cpu`, or not at all. Jumps to 6 when it is not.
///
/// The descriptor names the instructions from 3 to 4, and 5 as the place where the kernel resumes a thread that it
/// interrupted between them; the four bytes before 5 are the signature that the C library registered.
macro_rules! on_cpu {
    ($instruction:literal) => {
        concat!(
            ".pushsection __rseq_cs, \"aw\"\n",
            ".balign 32\n",
            "2: .long 0, 0\n",
            ".quad 3f, 4f - 3f, 5f\n",
            ".popsection\n",
            "lea {scratch}, [rip + 2b]\n",
            "mov qword ptr [{rseq} + 8], {scratch}\n",
            "3: cmp dword ptr [{rseq} + 4], {cpu:e}\n",
            "jne 6f\n",
            $instruction,
            "\n4:\n",
            ".pushsection .text.unlikely, \"ax\"\n",
            ".byte 0x0f, 0xb9, 0x3d\n",
            ".long 0x53053053\n",
            "5: jmp 6f\n",
            ".popsection\n",
        )
    };
}

const _: () = assert!(CRITICAL_SECTION == 8 && CPU_ID == 4, "the offsets in the assembly above");

/// A ring of one CPU, for threads that may leave it: read-modify-write instructions without `LOCK`, each a restartable
/// sequence that does nothing on another CPU.
#[derive(Clone, Copy, Debug)]
pub struct RseqLocal {
    smp: Smp,
    area: RseqArea,
    cpu: u32,
}

impl Storage for RseqLocal {
    #[inline(always)]
    unsafe fn load(&self, offset: usize) -> u64 {
        // SAFETY: passed on from the caller.
        unsafe { self.smp.load(offset) }
    }

    #[inline(always)]
    unsafe fn load_acquire(&self, offset: usize) -> u64 {
        // SAFETY: passed on from the caller.
        unsafe { self.smp.load_acquire(offset) }
    }

    #[inline(always)]
    unsafe fn store(&self, offset: usize, value: u64) {
        // SAFETY: passed on from the caller.
        unsafe { self.smp.store(offset, value) }
    }

    #[inline(always)]
    unsafe fn store_release(&self, offset: usize, value: u64) {
        // SAFETY: passed on from the caller.
        unsafe { self.smp.store_release(offset, value) }
    }

    #[inline(always)]
    unsafe fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> bool {
        let swapped: u8;
        // SAFETY: the word lies inside the storage (contract of the method); the rseq area is the thread's own.
        unsafe {
            asm!(
                on_cpu!("cmpxchg qword ptr [{word}], {new}"),
                "sete {swapped}",
                "jmp 7f",
                "6: mov {swapped}, 0",
                "7:",
                rseq = in(reg) self.area.base,
                cpu = in(reg) self.cpu,
                word = in(reg) self.smp.pointer(offset),
                new = in(reg) new,
                scratch = out(reg) _,
                swapped = out(reg_byte) swapped,
                inout("rax") current => _,
                options(nostack),
            );
        }
        swapped != 0
    }

    #[inline(always)]
    unsafe fn compare_exchange_shared(&self, offset: usize, current: u64, new: u64) -> bool {
        // SAFETY: passed on from the caller.
        unsafe { self.smp.compare_exchange(offset, current, new) }
    }

    #[inline(always)]
    unsafe fn fetch_add(&self, offset: usize, value: u64) -> u64 {
        let (before, left): (u64, u64);
        // SAFETY: as for `compare_exchange`.
        unsafe {
            asm!(
                on_cpu!("xadd qword ptr [{word}], {value}"),
                "xor {left:e}, {left:e}",
                "jmp 7f",
                "6: mov {left:e}, 1",
                "7:",
                rseq = in(reg) self.area.base,
                cpu = in(reg) self.cpu,
                word = in(reg) self.smp.pointer(offset),
                value = inout(reg) value => before,
                scratch = out(reg) _,
                left = out(reg) left,
                options(nostack),
            );
        }
        if left == 0 {
            return before;
        }
        // The thread was moved, or a signal came in. A complete producer adds to a second count here; this one is only
        // measured on a thread that stays, and tries again.
        // SAFETY: passed on from the caller.
        unsafe { self.fetch_add(offset, value) }
    }

    #[inline(always)]
    fn fence_release(&self) {
        self.smp.fence_release();
    }

    #[inline(always)]
    unsafe fn write(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: passed on from the caller.
        unsafe { self.smp.write(offset, bytes) }
    }
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
    let local = ring()?;
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
        Case {
            key: "user/rseq-local",
            label: "CPU from the rseq area, restartable CPU-local atomics, time by rdtsc (lower bound)".to_owned(),
            sample: Box::new(move || {
                // SAFETY: the ring has its mapping for itself; only this thread records.
                let producer = unsafe {
                    let smp = Smp::new(local.mapping.base());
                    let storage = RseqLocal { smp, area, cpu: area.cpu() };
                    Producer::new(storage, local.geometry, local.mode)
                };
                Ok(rate.nanoseconds(sample_ring::<_, 2>(&local, &producer, ticks)))
            }),
        },
    ])
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

#[cfg(test)]
mod tests {
    use super::*;
    use shared_ring::layout::RING_WRITE_COUNT;

    fn storage(ring: &Ring, cpu: impl Fn(u32) -> u32) -> RseqLocal {
        let area = RseqArea::of_this_thread().unwrap();
        // SAFETY: the ring outlives the storage and only this thread uses it.
        RseqLocal { smp: unsafe { Smp::new(ring.mapping.base()) }, area, cpu: cpu(area.cpu()) }
    }

    #[test]
    fn restartable_exchange_happens_on_its_cpu() {
        crate::scaling::pin(0).unwrap();
        let ring = Ring::new(4096, 2, Mode::Discard).unwrap();
        let storage = storage(&ring, |cpu| cpu);

        // SAFETY: a control word of the ring.
        let (swapped, added, refused, value) = unsafe {
            (
                storage.compare_exchange(RING_WRITE_COUNT, 0, 5),
                storage.fetch_add(RING_WRITE_COUNT, 2),
                storage.compare_exchange(RING_WRITE_COUNT, 5, 9),
                storage.load(RING_WRITE_COUNT),
            )
        };

        assert_eq!((swapped, added, refused, value), (true, 5, false, 7));
    }

    #[test]
    fn restartable_exchange_on_another_cpu_does_nothing() {
        crate::scaling::pin(0).unwrap();
        let ring = Ring::new(4096, 2, Mode::Discard).unwrap();
        let storage = storage(&ring, |cpu| cpu + 1);

        // SAFETY: a control word of the ring.
        let (swapped, value) =
            unsafe { (storage.compare_exchange(RING_WRITE_COUNT, 0, 5), storage.load(RING_WRITE_COUNT)) };

        assert_eq!((swapped, value), (false, 0));
    }
}
