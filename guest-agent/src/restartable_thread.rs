//! Restartable sequences of the calling thread, as Linux makes them (`rseq(2)`, since 4.18).
//!
//! The thread's rseq area names a *descriptor*: a range of instructions, and where to go on if the thread is preempted,
//! moved or runs a signal handler inside it. When that happens outside of the range, the kernel takes the descriptor's
//! name out of the area (`struct rseq` in `linux/rseq.h` says so). Hence the witness: a descriptor whose range is
//! empty. As long as the area names it, nothing has happened to the thread.
//!
//! A sequence puts its own descriptor into the witness's place, if that is still there, by one instruction, which is
//! not interrupted in the middle; its range begins with the next one. So there is no moment in which neither of the two
//! would tell. A record that a signal handler makes in between leaves its own sequence's name in the area, or nothing:
//! the interrupted one does not find its witness again.
//!
//! Nothing between the two makes a system call: on the way back from one, kernels since 6.19 leave the name where it
//! is, as no range may hold one.
#![allow(unsafe_code)] // Restartable sequences are assembly, and the rseq area is the kernel's too.

use crate::rseq_area;
use crate::rseq_area::own::SIGNATURE;
use core::arch::asm;
use core::marker::PhantomData;
use shared_ring::layout::RING_WRITE_COUNT;
use shared_ring::restartable::RestartableThread;
use shared_ring::storage::{MappedStorage, Smp};

/// Offset of `rseq_cs`, the descriptor's address, in the kernel's `struct rseq`.
const DESCRIPTOR: usize = 8;

/// `struct rseq_cs`.
#[repr(C, align(32))]
struct Descriptor {
    version: u32,
    flags: u32,
    start_ip: *const u8,
    post_commit_offset: u64,
    abort_ip: *const u8,
}

// SAFETY: never written, and its pointers are never followed by this program.
unsafe impl Sync for Descriptor {}

/// What the kernel finds in front of the witness's `abort_ip`, which no thread is ever sent to.
static SIGNED: [u32; 2] = [SIGNATURE, 0];

static WITNESS: Descriptor = Descriptor {
    version: 0,
    flags: 0,
    start_ip: (&raw const SIGNED).cast::<u8>().wrapping_add(4),
    post_commit_offset: 0,
    abort_ip: (&raw const SIGNED).cast::<u8>().wrapping_add(4),
};

/// The calling thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThisThread {
    area: *mut u8,
    /// The area is this thread's own.
    _not_send: PhantomData<*mut ()>,
}

impl ThisThread {
    /// `None` when it has no area and cannot get one. A thread whose registration by the C library failed cannot
    /// [begin](RestartableThread::begin).
    #[inline(always)]
    pub(crate) fn current() -> Option<Self> {
        rseq_area::area().map(|area| Self { area: area.as_ptr(), _not_send: PhantomData })
    }

    /// The CPU that it was on just now; `None` when the kernel does not restart its sequences.
    #[inline(always)]
    pub(crate) fn cpu(&self) -> Option<u32> {
        // SAFETY: the area is the running thread's.
        unsafe { rseq_area::cpu_in(self.area) }
    }
}

/// A sequence: `$body` happens whole, on this CPU and undisturbed since the witness was put into the area, or `{done}`
/// stays 0. Its last instruction is the one that counts. Expects the witness's address in `rax` and `{done}` 0.
///
/// The range begins with the instruction behind `cmpxchg`. Where the kernel sends a disturbed thread to, after the
/// signature, is out of the way.
macro_rules! sequence {
    ($($body:literal,)*) => {
        concat!(
            ".pushsection __rseq_cs, \"aw\"\n",
            ".balign 32\n",
            "2: .long 0, 0\n",
            ".quad 3f, 4f - 3f, 5f\n",
            ".popsection\n",
            "lea {own}, [rip + 2b]\n",
            "cmpxchg qword ptr [{area} + 8], {own}\n",
            "3: jne 6f\n",
            $($body, "\n",)*
            "4: mov {done:e}, 1\n",
            ".pushsection .text.unlikely, \"ax\"\n",
            // With the signature an instruction that is never executed (ud1), so that disassemblers find their way.
            ".byte 0x0f, 0xb9, 0x3d\n",
            ".long 0x53053053\n",
            "5: jmp 6f\n",
            ".popsection\n",
            "6:",
        )
    };
}

const _: () = assert!(
    DESCRIPTOR == 8 && SIGNATURE == 0x5305_3053 && RING_WRITE_COUNT == 0,
    "what stands in the assembly as a number"
);

impl RestartableThread<Smp> for ThisThread {
    #[inline(always)]
    fn begin(&self) -> Option<u32> {
        // SAFETY: the area is the running thread's; the kernel reads the descriptor, which is static. The block may
        // touch memory, so the compiler moves no access before it.
        unsafe {
            asm!(
                "mov qword ptr [{area} + 8], {witness}",
                area = in(reg) self.area,
                witness = in(reg) &raw const WITNESS,
                options(nostack, preserves_flags),
            );
        }
        let cpu = self.cpu();
        if cpu.is_none() {
            self.end();
        }
        cpu
    }

    #[inline(always)]
    unsafe fn publish(&self, storage: &Smp, to: usize, words: &[u64], position: u64) -> bool {
        let done: u64;
        // SAFETY: words and position lie inside the storage, and there is a word at least (contract of the method); the
        // area is the running thread's. The transcription of `publish_by_steps`: x86 keeps stores in order, so the last
        // one is a release operation.
        unsafe {
            asm!(
                sequence!(
                    "7: mov {word}, qword ptr [{words} + {count} * 8 - 8]",
                    "mov qword ptr [{to} + {count} * 8 - 8], {word}",
                    "dec {count}",
                    "jnz 7b",
                    "mov qword ptr [{ring}], {position}",
                ),
                own = out(reg) _,
                area = in(reg) self.area,
                word = out(reg) _,
                words = in(reg) words.as_ptr(),
                count = inout(reg) words.len() => _,
                to = in(reg) storage.pointer(to),
                ring = in(reg) storage.pointer(RING_WRITE_COUNT),
                position = in(reg) position,
                done = inout(reg) 0_u64 => done,
                inout("rax") &raw const WITNESS => _,
                options(nostack),
            );
        }
        done != 0
    }

    #[inline(always)]
    unsafe fn count(&self, storage: &Smp, counter: usize) -> bool {
        let done: u64;
        // SAFETY: as for `publish`.
        unsafe {
            asm!(
                sequence!("lock inc qword ptr [{counter}]",),
                own = out(reg) _,
                area = in(reg) self.area,
                counter = in(reg) storage.pointer(counter),
                done = inout(reg) 0_u64 => done,
                inout("rax") &raw const WITNESS => _,
                options(nostack),
            );
        }
        done != 0
    }

    #[inline(always)]
    fn end(&self) {
        // SAFETY: as for `begin`.
        unsafe {
            asm!("mov qword ptr [{area} + 8], 0", area = in(reg) self.area, options(nostack, preserves_flags));
        }
    }
}

#[cfg(test)]
mod tests {
    //! Shows: Restartable assembly does what the explorer runs, and nothing without its witness (this kernel).

    use super::*;
    use shared_ring::host::memory::HostMemory;
    use shared_ring::restartable::publish_by_steps;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    /// Words of the memory that sequences store into.
    const WORDS: usize = 64;

    fn storage(memory: &HostMemory) -> Smp {
        // SAFETY: the tests keep the memory.
        unsafe { Smp::new(memory.base()) }
    }

    fn words(memory: &HostMemory) -> Vec<u64> {
        (0..WORDS).map(|word| memory.load(word * 8)).collect()
    }

    /// Keeps the calling thread on a CPU that threads of this test share.
    fn pin_to_first_cpu() {
        let mut there = rustix::thread::CpuSet::new();
        there.set(0);
        rustix::thread::sched_setaffinity(None, &there).unwrap();
    }

    /// `attempt`, until the thread is left alone for as long as it takes.
    fn undisturbed(mut attempt: impl FnMut() -> bool) -> bool {
        (0..1000).any(|_| attempt())
    }

    #[test]
    fn sequence_stores_what_its_steps_say() {
        let thread = ThisThread::current().expect("threads have rseq areas here");
        let (assembly, steps) = (HostMemory::private(WORDS * 8), HostMemory::private(WORDS * 8));

        for count in 1..=40_usize {
            let record: Vec<u64> = (0..count as u64).map(|word| word << 32 | count as u64).collect();
            let (to, position) = (8 * (count % 20 + 1), count as u64 * 1000);
            let published = undisturbed(|| {
                thread.begin();
                // SAFETY: at most forty words from the twentieth on.
                unsafe { thread.publish(&storage(&assembly), to, &record, position) }
            });
            let store = |offset, word| {
                steps.store(offset, word);
                true
            };
            let stepped = publish_by_steps(to, &record, position, || true, store);
            assert_eq!((published, words(&assembly)), (stepped, words(&steps)));
        }
    }

    #[test]
    fn sequence_without_its_witness_does_nothing() {
        let thread = ThisThread::current().expect("threads have rseq areas here");
        let memory = HostMemory::private(WORDS * 8);
        // SAFETY: a word of the memory each.
        let attempt = || unsafe {
            let published = thread.publish(&storage(&memory), 8, &[1], 2);
            published || thread.count(&storage(&memory), 16)
        };

        thread.begin();
        thread.end();
        let ended = attempt();
        thread.begin();
        // SAFETY: as above.
        let counted = undisturbed(|| unsafe { thread.begin().is_some() && thread.count(&storage(&memory), 24) });
        let used = attempt();

        let mut expected = vec![0; WORDS];
        expected[3] = 1;
        assert_eq!((ended, counted, used, words(&memory)), (false, true, false, expected));
    }

    #[test]
    fn thread_that_was_preempted_has_no_witness() {
        let thread = ThisThread::current().expect("threads have rseq areas here");
        let memory = HostMemory::private(WORDS * 8);
        let (turns, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        pin_to_first_cpu();

        let published = thread::scope(|scope| {
            scope.spawn(|| {
                pin_to_first_cpu();
                while !is_over.load(Ordering::Relaxed) {
                    turns.fetch_add(1, Ordering::Relaxed);
                }
            });
            thread.begin();
            // No system call: in one, newer kernels do not look after the area.
            let before = turns.load(Ordering::Relaxed);
            while turns.load(Ordering::Relaxed) == before {
                std::hint::spin_loop();
            }
            // SAFETY: a word of the memory.
            let published = unsafe { thread.publish(&storage(&memory), 8, &[1], 2) };
            is_over.store(true, Ordering::Relaxed);
            published
        });

        assert_eq!((published, words(&memory)), (false, vec![0; WORDS]));
    }

    #[test]
    fn sequences_of_two_threads_on_one_cpu_do_not_mix() {
        let memory = HostMemory::private(WORDS * 8);
        let rounds = 2_000_000_u64;
        let began = Instant::now();
        // Each adds to the position, by sequences, on the same CPU.
        let add = || {
            pin_to_first_cpu();
            let thread = ThisThread::current().expect("threads have rseq areas here");
            let mut added = 0;
            while added < rounds && began.elapsed() < Duration::from_secs(20) {
                thread.begin();
                let position = memory.load(RING_WRITE_COUNT);
                // SAFETY: words of the memory.
                added += u64::from(unsafe { thread.publish(&storage(&memory), 64, &[position; 8], position + 1) });
            }
            added
        };

        let added: u64 = thread::scope(|scope| {
            let threads = [scope.spawn(add), scope.spawn(add), scope.spawn(add)];
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });

        assert!(added > 0);
        assert_eq!(words(&memory)[RING_WRITE_COUNT / 8], added);
        assert_eq!(words(&memory)[8..16], [added - 1; 8]);
    }
}
