//! rseq areas that this library registers itself, for threads whose C library registers none: musl's, glibc's before
//! 2.35, and where glibc's tunable turns it off.
//!
//! A thread gets its area with its first record, which a signal handler may make: nothing here takes memory of the
//! allocator, or a lock that a handler could wait for. The areas are not thread-local memory. The kernel writes into an
//! area until the thread has ended, and musl unmaps the memory of a detached thread before that. They lie in memory
//! that is never unmapped; a thread gives its area to the next one in a destructor of pthread's.
#![allow(unsafe_code)] // Memory that the kernel writes, a system call, and pthread's functions.

use crate::permanent;
use core::arch::asm;
use libc::{c_void, pthread_key_t, sigset_t};
use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// What has to stand in front of the place where a disturbed sequence goes on: the number that C libraries register.
pub(crate) const SIGNATURE: u32 = 0x5305_3053;

/// Threads that can have an area at a time. Their memory is a mebibyte; what was never used of it takes no pages.
const MAX_AREAS: u32 = 16384;
/// Bytes of the kernel's `struct rseq` that an area has: those that all kernels know.
const SIZE: usize = 32;
/// `RSEQ_FLAG_UNREGISTER`.
const UNREGISTER: usize = 1;
/// `struct rseq` before it is registered: on no CPU (`RSEQ_CPU_ID_UNINITIALIZED`), in no sequence.
const UNREGISTERED: [u32; SIZE / 4] = [0, u32::MAX, 0, 0, 0, 0, 0, 0];
/// Keys from this one on have their values in memory that glibc allocates, when a thread first sets one. musl has room
/// for all in each thread.
const KEYS_IN_THREAD: pthread_key_t = if cfg!(target_env = "gnu") { 32 } else { pthread_key_t::MAX };

/// One cache line, so that threads do not disturb each other.
#[repr(C, align(64))]
struct Area {
    kernels: UnsafeCell<[u32; SIZE / 4]>,
    /// Of an area that was given back: the one that was given back before it, as in [`GIVEN_BACK`].
    next: AtomicU32,
}

// SAFETY: only the thread that took an area, and the kernel for it, touch what is not atomic.
unsafe impl Sync for Area {}

/// The areas, [`MAX_AREAS`] of them; null before one is needed.
static AREAS: AtomicPtr<Area> = AtomicPtr::new(ptr::null_mut());
/// How many of them were ever taken. A child made by `fork` leaves those of its parent's other threads taken.
static USED: AtomicU32 = AtomicU32::new(0);
/// The area that was given back last: its number plus one, 0 for none. Above these 32 bits a count of changes: who
/// takes an area must not miss that it was taken and given back since it was looked at.
static GIVEN_BACK: AtomicU64 = AtomicU64::new(0);
/// The key by which a thread that ends gives its area back, plus one; 0 before there is one.
static KEY: AtomicU32 = AtomicU32::new(0);

/// [`AREA`] of a thread that the kernel did not register.
const REFUSED: *mut u8 = ptr::without_provenance_mut(1);

thread_local! {
    /// The thread's area; null before its first record.
    static AREA: Cell<*mut u8> = const { Cell::new(ptr::null_mut()) };
}

/// The calling thread's area, which is registered if it was not. `None` when it cannot be: the kernel does not allow
/// it, another library or a copy of this one has registered an area for this thread, or [`MAX_AREAS`] threads have one.
///
/// Cold and apart, so that where the C library has areas the way to them stays as short as it was.
#[cold]
#[inline(never)]
pub(crate) fn area() -> Option<NonNull<u8>> {
    let area = AREA.get();
    if area > REFUSED { NonNull::new(area) } else { register() }
}

/// [`area`] of a thread that has none. Any context.
#[cold]
#[inline(never)]
fn register() -> Option<NonNull<u8>> {
    if AREA.get() == REFUSED {
        return None;
    }
    // No handler may record between taking an area and telling `AREA`.
    let _blocked = BlockedSignals::all();
    if AREA.get().is_null() {
        AREA.set(take_registered().unwrap_or(REFUSED));
    }
    NonNull::new(AREA.get()).filter(|area| area.as_ptr() > REFUSED)
}

/// A new area of the calling thread's, which it gives back when it ends.
fn take_registered() -> Option<*mut u8> {
    let key = key()?;
    let area = take()?;
    // SAFETY: the area was taken, so nobody else writes it.
    unsafe { area.kernels.get().write(UNREGISTERED) };
    // SAFETY: the area stays mapped and is this thread's until `end` has unregistered it.
    if unsafe { rseq(area, 0) } {
        // SAFETY: the key is there, and never deleted; the value is kept, not followed.
        if unsafe { libc::pthread_setspecific(key, ptr::from_ref(area).cast()) } == 0 {
            return Some(area.kernels.get().cast());
        }
        // SAFETY: this undoes what was done above.
        unsafe { rseq(area, UNREGISTER) };
    }
    give_back(area);
    None
}

/// Called by pthread when a thread with an area ends; again, should it record after that.
unsafe extern "C" fn end(area: *mut c_void) {
    let _blocked = BlockedSignals::all();
    AREA.set(ptr::null_mut());
    // SAFETY: the value that `take_registered` gave pthread, an area of the calling thread's.
    let area = unsafe { &*area.cast::<Area>() };
    // SAFETY: unregisters it.
    if unsafe { rseq(area, UNREGISTER) } {
        give_back(area);
    }
}

fn key() -> Option<pthread_key_t> {
    if let Some(key) = KEY.load(Ordering::Acquire).checked_sub(1) {
        return Some(key);
    }
    let mut key = 0;
    // SAFETY: writes the key. The destructor takes what values of the key are.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(end)) } != 0 {
        return None;
    }
    let earlier = if key < KEYS_IN_THREAD {
        KEY.compare_exchange(0, key + 1, Ordering::AcqRel, Ordering::Acquire).err()
    } else {
        Some(0)
    };
    let Some(earlier) = earlier else { return Some(key) };
    // SAFETY: made above, and not used.
    unsafe { libc::pthread_key_delete(key) };
    earlier.checked_sub(1)
}

/// An area that nobody has; `None` when there is none, or no memory for them.
fn take() -> Option<&'static Area> {
    let areas = areas()?;
    // SAFETY: numbers below `MAX_AREAS` are areas, which are never unmapped; zeroes are one.
    let area = |number: u32| unsafe { &*areas.add(number as usize) };
    let mut list = GIVEN_BACK.load(Ordering::Acquire);
    while let Some(number) = first(list).checked_sub(1) {
        let rest = changed(list, area(number).next.load(Ordering::Relaxed));
        match GIVEN_BACK.compare_exchange_weak(list, rest, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => return Some(area(number)),
            Err(now) => list = now,
        }
    }
    let one_more = |used| (used < MAX_AREAS).then_some(used + 1);
    USED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok().map(area)
}

/// Leaves an area that was taken, and is not registered, to the next one who takes one.
fn give_back(area: &'static Area) {
    let offset = ptr::from_ref(area).addr() - AREAS.load(Ordering::Acquire).addr();
    #[allow(clippy::cast_possible_truncation, reason = "less than `MAX_AREAS`")]
    let number = (offset / size_of::<Area>()) as u32;
    let mut list = GIVEN_BACK.load(Ordering::Relaxed);
    loop {
        area.next.store(first(list), Ordering::Relaxed);
        let longer = changed(list, number + 1);
        match GIVEN_BACK.compare_exchange_weak(list, longer, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => list = now,
        }
    }
}

/// The first area of a list, as in [`GIVEN_BACK`].
#[allow(clippy::cast_possible_truncation, reason = "the low half is wanted")]
const fn first(list: u64) -> u32 {
    list as u32
}

/// What `list` becomes when `first` is its first area.
const fn changed(list: u64, first: u32) -> u64 {
    ((list >> 32).wrapping_add(1) << 32) | first as u64
}

/// Where the areas lie.
fn areas() -> Option<*mut Area> {
    let known = AREAS.load(Ordering::Acquire);
    if !known.is_null() {
        return Some(known);
    }
    let size = MAX_AREAS as usize * size_of::<Area>();
    let new = permanent::map(size).ok()?.cast::<Area>();
    match AREAS.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(new),
        Err(known) => {
            // SAFETY: another thread was faster, and nobody has seen these.
            let _ = unsafe { rustix::mm::munmap(new.cast(), size) };
            Some(known)
        }
    }
}

/// The system call `rseq`. Returns whether it succeeded. `errno` stays as it was: handlers record.
///
/// # Safety
/// The area stays mapped as long as it is registered, and is the calling thread's.
unsafe fn rseq(area: &Area, flags: usize) -> bool {
    let result: i64;
    // SAFETY: the kernel writes the area (contract), and these three registers.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") libc::SYS_rseq => result,
            in("rdi") area.kernels.get(),
            in("rsi") SIZE,
            in("rdx") flags,
            in("r10") SIGNATURE as usize,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

/// Keeps signals from the calling thread, until it goes.
pub(crate) struct BlockedSignals {
    before: sigset_t,
}

impl BlockedSignals {
    pub(crate) fn all() -> Self {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: the first two calls write their sets; with valid arguments none of the two fails.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Self { before: before.assume_init() }
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set that the thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    //! Shows: Restartable rings also hold in rseq areas that the library registers.

    use super::*;
    use crate::rseq_area;
    use std::collections::BTreeSet;
    use std::process::Command;
    use std::sync::Barrier;
    use std::thread;

    /// Runs what `arguments` name of these unit tests where the C library registers no areas.
    fn succeeds_without_the_c_librarys_areas(arguments: &[&str]) -> bool {
        let mut tests = Command::new(std::env::current_exe().unwrap());
        tests.env("GLIBC_TUNABLES", "glibc.pthread.rseq=0").args(["--test-threads", "1"]).args(arguments);
        tests.status().unwrap().success()
    }

    fn cpu() -> Option<u32> {
        // SAFETY: this thread's area.
        area().and_then(|area| unsafe { rseq_area::cpu_in(area.as_ptr()) })
    }

    #[test]
    fn area_is_nobody_elses_until_it_is_given_back() {
        let taken: Vec<_> = thread::scope(|scope| {
            let take_some = || {
                (0..10_000).for_each(|_| {
                    let area = take().unwrap();
                    // SAFETY: nobody else writes an area that was taken.
                    unsafe {
                        area.kernels.get().write([1; 8]);
                        assert_eq!(area.kernels.get().replace([0; 8]), [1; 8]);
                    }
                    give_back(area);
                });
                [(); 100].map(|()| take().unwrap())
            };
            let threads = [(); 4].map(|()| scope.spawn(take_some));
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });

        let addresses: BTreeSet<_> = taken.iter().map(|area| ptr::from_ref(*area).addr()).collect();
        taken.into_iter().for_each(give_back);
        assert_eq!(addresses.len(), 400);
        assert!(addresses.iter().all(|address| address % 64 == 0));
    }

    #[test]
    fn sequences_work_in_these_areas() {
        assert!(succeeds_without_the_c_librarys_areas(&["restartable_thread::tests"]));
    }

    #[test]
    fn threads_without_the_c_librarys_areas_get_one_each() {
        assert!(succeeds_without_the_c_librarys_areas(&["rseq_area::own::tests::alone", "--ignored"]));
    }

    /// Each in a process of its own kind: run by the test above.
    mod alone {
        use super::*;

        #[test]
        #[ignore = "child process: run by threads_without_the_c_librarys_areas_get_one_each"]
        fn threads_that_end_leave_their_areas_to_others() {
            let before = USED.load(Ordering::Relaxed);

            for _ in 0..500 {
                let barrier = Barrier::new(4);
                let registered = || {
                    let area = area().unwrap();
                    // All have theirs at the same time.
                    barrier.wait();
                    (area.addr().get(), cpu().is_some())
                };
                let threads: Vec<_> = thread::scope(|scope| {
                    let threads = [(); 4].map(|()| scope.spawn(registered));
                    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
                });
                let areas: BTreeSet<_> = threads.iter().map(|(area, _)| area).collect();
                assert!(areas.len() == 4 && threads.iter().all(|(_, is_registered)| *is_registered));
            }

            // One of the threads before may not have ended when the next ones begin.
            assert!(USED.load(Ordering::Relaxed) - before <= 8);
        }

        #[test]
        #[ignore = "child process: run by threads_without_the_c_librarys_areas_get_one_each"]
        fn child_goes_on_with_its_threads_area() {
            let own = area().unwrap();

            // SAFETY: the child looks at its area and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: takes nothing and returns a number.
                let agreed = (0..1000).any(|_| cpu() == u32::try_from(unsafe { libc::sched_getcpu() }).ok());
                let is_same = area() == Some(own);
                // SAFETY: ends the child without running what belongs to the test's process.
                unsafe { libc::_exit(i32::from(!(agreed && is_same))) };
            }
            let mut status = -1;
            // SAFETY: waits for the child made above.
            let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };

            assert_eq!((waited, status), (child, 0));
        }

        #[test]
        #[ignore = "child process: run by threads_without_the_c_librarys_areas_get_one_each"]
        fn thread_that_another_library_has_registered_gets_no_area() {
            let before = USED.load(Ordering::Relaxed);
            let anothers = take().unwrap();

            let (is_there, cpu) = thread::spawn(move || {
                // SAFETY: the area stays mapped, and this thread's until it ends.
                let registered = unsafe { rseq(anothers, 0) };
                assert!(registered);
                ([area().is_some(), area().is_some()], cpu())
            })
            .join()
            .unwrap();

            assert_eq!((is_there, cpu), ([false, false], None));
            assert!(USED.load(Ordering::Relaxed) - before <= 2);
        }
    }
}
