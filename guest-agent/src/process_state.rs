//! What a process knows of its connection, in memory that a fork empties. The rings belong to one process: a child has
//! to connect by itself, however it was made.
#![allow(unsafe_code)] // A page with its own rules on fork.

use crate::connection::Connection;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use shared_ring::layout::PAGE_SIZE;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};

/// [`ProcessState::stage`]: not connected; to be tried (again) when [`ProcessState::lost`] reaches
/// [`ProcessState::retry_at`].
pub(crate) const APART: u32 = 0;
/// [`ProcessState::stage`]: connected, or never to be. Any other value is the id of the thread that is connecting.
pub(crate) const SETTLED: u32 = u32::MAX;

/// All zero is the state of a process that has not tried to connect.
#[derive(Debug)]
pub(crate) struct ProcessState {
    /// The connection, once there is one; never freed.
    pub(crate) connection: AtomicPtr<Connection>,
    pub(crate) stage: AtomicU32,
    /// Id of a thread whose connecting was waited for in vain: it may never go on. It is not waited for again.
    pub(crate) given_up: AtomicU32,
    /// Records lost for want of a connection.
    pub(crate) lost: AtomicU64,
    /// Value of `lost` at which to ask again for a slot.
    pub(crate) retry_at: AtomicU64,
    /// Whether the kernel has refused a slot, and so counted the process.
    pub(crate) is_counted: AtomicBool,
}

impl ProcessState {
    /// A new page with such a state, which a child made by `fork` finds zeroed. It stays for the life of the process.
    ///
    /// # Errors
    /// When the kernel has no memory, or no such pages (Linux before 4.14).
    pub(crate) fn map() -> io::Result<*mut Self> {
        let size = PAGE_SIZE;
        // SAFETY: a new mapping at an address that the kernel chooses touches nothing that exists.
        let page = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }?;
        // SAFETY: the page is the one just mapped; what the advice does is wanted.
        if let Err(error) = unsafe { rustix::mm::madvise(page, size, Advice::LinuxWipeOnFork) } {
            // SAFETY: nobody else knows the page yet.
            let _ = unsafe { rustix::mm::munmap(page, size) };
            return Err(error.into());
        }
        Ok(page.cast())
    }

    /// Gives a page of [`map`](Self::map) back that nobody has used.
    ///
    /// # Safety
    /// Nobody has a reference to it.
    pub(crate) unsafe fn unmap(page: *mut Self) {
        // SAFETY: passed on from the caller; the page was mapped with this size.
        let _ = unsafe { rustix::mm::munmap(page.cast(), PAGE_SIZE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn child_finds_the_state_of_a_new_process() {
        let page = ProcessState::map().unwrap();
        // SAFETY: the page was just mapped, and zeroes are a state.
        let state = unsafe { &*page };
        state.lost.store(5, Ordering::Relaxed);
        state.stage.store(SETTLED, Ordering::Relaxed);

        // SAFETY: the child only reads memory and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let wiped = state.lost.load(Ordering::Relaxed) == 0 && state.stage.load(Ordering::Relaxed) == APART;
            // SAFETY: ends the child without running what belongs to the test's process.
            unsafe { libc::_exit(i32::from(!wiped)) };
        }
        let mut status = -1;
        // SAFETY: waits for the child made above.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };

        assert_eq!((waited, status), (child, 0));
        assert_eq!(state.lost.load(Ordering::Relaxed), 5);
    }
}
