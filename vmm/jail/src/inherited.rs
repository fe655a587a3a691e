//! Descriptors that a program was started with, beside those of standard input, output and error.
//!
//! Whoever starts it may have left open what a VM is not to reach. An option may name one (`/dev/fd/5`), so they are noted
//! when the program begins, and closed when the jail is and everything is open that is needed.
#![allow(unsafe_code)] // nobody owns these descriptors: they are numbers

use std::fs;
use std::os::fd::RawFd;

/// Descriptors that a kernel without `close_range` (before 5.9) has closed one by one.
const MOST_DESCRIPTORS: RawFd = 1 << 16;
/// Standard input, output and error are below.
const FIRST: RawFd = 3;

/// Descriptors by their numbers. None unless they were [noted](Self::note).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inherited(Vec<RawFd>);

impl Inherited {
    /// Notes the descriptors that are open, and has programs that are run from here on not get them. For a program that
    /// has opened nothing itself: what is noted is closed later, whoever uses it.
    #[must_use]
    pub fn note() -> Self {
        let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let numbers: Vec<RawFd> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        // The one by which they are listed is among them, and closed by now.
        // SAFETY: asks for a flag and sets it, of descriptors that stay open; of one that is closed it is refused.
        let is_kept = |&number: &RawFd| unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) == 0 };
        Self(numbers.into_iter().filter(|&number| number >= FIRST).filter(is_kept).collect())
    }

    /// Closes them.
    pub(super) fn close(&self) {
        for &number in &self.0 {
            // SAFETY: it was open before anything of this program was, and nothing of it owns it.
            unsafe { libc::close(number) };
        }
    }
}

/// Closes all descriptors from the number `first` on, in a process that was forked for one thing: it neither allocates nor
/// takes a lock.
///
/// # Safety
/// Nobody uses or drops what owns them any more.
pub unsafe fn close_from(first: RawFd) {
    // SAFETY: system calls without memory; the caller answers for the descriptors.
    unsafe {
        if libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) != 0 {
            (first..MOST_DESCRIPTORS).for_each(|descriptor| {
                libc::close(descriptor);
            });
        }
    }
}
