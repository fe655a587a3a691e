//! Memory of a file that somebody else may cut short.
//!
//! The kernel ends a process that touches a page behind the end of its file (SIGBUS), and whoever may write the file can end
//! it at any moment. A handler puts zeroed memory in place of what is gone, and notes that.
#![allow(unsafe_code)] // a signal handler, and what it may call

use memmap2::MmapRaw;
use shared_ring::host::memory::HostMemory;
use shared_ring::layout::PAGE_SIZE;
use std::io;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What was done about SIGBUS before, once the handler is there.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
/// The newest place. Places are never freed: the handler may look at one at any moment.
static NEWEST: AtomicPtr<Place> = AtomicPtr::new(ptr::null_mut());
/// Held by who adds a place.
static ADDING: Mutex<()> = Mutex::new(());

/// Where the memory of a file lies.
#[derive(Debug)]
struct Place {
    begin: usize,
    end: usize,
    is_mapped: AtomicBool,
    is_cut: AtomicBool,
    older: Option<&'static Self>,
}

/// A file, mapped, in whose place zeroed memory comes where it is cut short.
#[derive(Debug)]
pub struct CutFile {
    place: &'static Place,
    mapping: MmapRaw,
}

impl CutFile {
    /// Watches `mapping`, which lies all in a file of whole pages.
    ///
    /// # Errors
    /// The kernel takes no handler.
    pub fn watch(mapping: MmapRaw) -> io::Result<Self> {
        install()?;
        let begin = mapping.as_mut_ptr().addr();
        let _alone = ADDING.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: null, or a place, which is never freed.
        let older = unsafe { NEWEST.load(Ordering::Relaxed).as_ref() };
        let (end, is_mapped, is_cut) = (begin + mapping.len(), AtomicBool::new(true), AtomicBool::new(false));
        let place = Box::leak(Box::new(Place { begin, end, is_mapped, is_cut, older }));
        // Pairs with the load in `find`: who sees the place sees what is in it.
        NEWEST.store(ptr::from_mut(place), Ordering::Release);
        Ok(Self { place, mapping })
    }

    /// Whether memory that was touched was gone. It was zero, and is from then on.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.place.is_cut.load(Ordering::Acquire)
    }

    /// All of it, as memory that others may write.
    #[must_use]
    pub fn memory(self: &Arc<Self>) -> HostMemory {
        let owner = Arc::clone(self);
        // SAFETY: the mapping is made of whole pages, lives as long as its owner, and is accessed only through such views and
        // their parts.
        unsafe { HostMemory::new(self.mapping.as_mut_ptr(), self.mapping.len(), owner) }
    }
}

impl Drop for CutFile {
    fn drop(&mut self) {
        // Before the memory is given back, which may become somebody else's.
        self.place.is_mapped.store(false, Ordering::Release);
    }
}

/// Has the handler called, once.
fn install() -> io::Result<()> {
    let _alone = ADDING.lock().unwrap_or_else(PoisonError::into_inner);
    if BEFORE.get().is_some() {
        return Ok(());
    }
    // SAFETY: every bit pattern of the structure is valid; both outlive the calls, and the handler is one for SA_SIGINFO.
    unsafe {
        let mut before: libc::sigaction = mem::zeroed();
        if libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut before) != 0 {
            return Err(io::Error::last_os_error());
        }
        // The handler looks at it.
        BEFORE.get_or_init(|| before);
        let mut action: libc::sigaction = mem::zeroed();
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = replace_or_pass_on;
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        if libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The handler: nothing in it allocates, takes a lock, or is not async-signal-safe. The error of what it interrupts stays.
extern "C" fn replace_or_pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a whole `siginfo_t`, which has an address with this signal; the place of errno is this thread's.
    unsafe {
        let errno = *libc::__errno_location();
        let is_behind_end = (*info).si_code == libc::BUS_ADRERR;
        let address = (*info).si_addr().addr();
        if !(is_behind_end && find(address).is_some_and(|place| place.replace_from(address))) {
            pass_on(signal, info, context);
        }
        *libc::__errno_location() = errno;
    }
}

/// The place that `address` is in.
fn find(address: usize) -> Option<&'static Place> {
    // SAFETY: null, or a place, which is never freed.
    let mut next = unsafe { NEWEST.load(Ordering::Acquire).as_ref() };
    while let Some(place) = next {
        if (place.begin..place.end).contains(&address) && place.is_mapped.load(Ordering::Acquire) {
            return Some(place);
        }
        next = place.older;
    }
    None
}

impl Place {
    /// Puts zeroed memory in place of all from the page of `address` on: what is behind the end of the file is gone up to the
    /// end of the mapping. Whether that could be done.
    fn replace_from(&self, address: usize) -> bool {
        self.is_cut.store(true, Ordering::Release);
        let page = address - address % PAGE_SIZE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        let at = ptr::without_provenance_mut(page);
        // SAFETY: the range is a part of a mapping that is there, whose memory is accessed through atomics only; it is as
        // accessible as before.
        unsafe { libc::mmap(at, self.end - page, access, kind, -1, 0) != libc::MAP_FAILED }
    }
}

/// Does what was done before; the signal that nobody handles ends the process when it comes again.
///
/// # Safety
/// These are what the kernel gave to a handler.
unsafe fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let before = BEFORE.get();
    let handled = before.filter(|before| ![libc::SIG_DFL, libc::SIG_IGN].contains(&before.sa_sigaction));
    // SAFETY: a handler that was in force is a function of one of these kinds, as its flags say; all arguments are the kernel's.
    unsafe {
        match handled {
            Some(before) if before.sa_flags & libc::SA_SIGINFO != 0 => {
                type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
                mem::transmute::<libc::sighandler_t, Handler>(before.sa_sigaction)(signal, info, context);
            }
            Some(before) => {
                mem::transmute::<libc::sighandler_t, extern "C" fn(libc::c_int)>(before.sa_sigaction)(signal);
            }
            None => {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! Shows: A region file that its owner cuts short ends a recording, not the process.

    use super::*;
    use crate::region::mapped_file::map_existing;
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    /// Makes this program touch memory that is gone and that nobody watches.
    const TOUCH_VARIABLE: &str = "STRATA_TEST_TOUCH";

    fn file_of(pages: usize) -> (File, Arc<CutFile>) {
        let file = tempfile::tempfile().unwrap();
        file.set_len((pages * PAGE_SIZE) as u64).unwrap();
        let mapping = map_existing(&file, pages * PAGE_SIZE).unwrap();
        (file, Arc::new(CutFile::watch(mapping).unwrap()))
    }

    #[test]
    fn what_is_cut_reads_as_zero_takes_writes_and_is_noted() {
        let (file, cut) = file_of(4);
        let (other, whole) = file_of(1);
        file.write_all_at(&[7; 4 * PAGE_SIZE], 0).unwrap();
        let memory = cut.memory();
        let words = |at: [usize; 4]| at.map(|page| memory.load(page * PAGE_SIZE + 8));

        let before = (words([0, 1, 2, 3]), cut.is_cut());
        file.set_len(PAGE_SIZE as u64 * 2).unwrap();
        let after = words([0, 1, 3, 2]);
        memory.store(2 * PAGE_SIZE, 9);
        let stored = memory.load(2 * PAGE_SIZE);
        file.set_len(0).unwrap();
        let at_end = words([3, 2, 1, 0]);

        let sevens = u64::from_ne_bytes([7; 8]);
        assert_eq!(before, ([sevens; 4], false));
        assert_eq!((after, at_end), ([sevens, sevens, 0, 0], [0; 4]));
        assert_eq!((stored, cut.is_cut(), whole.is_cut()), (9, true, false));
        drop(other);
    }

    #[test]
    fn file_that_is_cut_again_and_again_while_it_is_read_ends_no_thread() {
        let (file, cut) = file_of(64);
        let memory = cut.memory();

        let is_over = AtomicBool::new(false);
        let read_all = || (0..64).map(|page| memory.load(page * PAGE_SIZE)).sum::<u64>();
        let read = || std::iter::repeat_with(read_all).take_while(|_| !is_over.load(Ordering::Relaxed)).sum::<u64>();
        let sums = std::thread::scope(|scope| {
            let readers = [(); 4].map(|()| scope.spawn(read));
            (0..64).rev().for_each(|pages| file.set_len(pages * PAGE_SIZE as u64).unwrap());
            is_over.store(true, Ordering::Relaxed);
            readers.map(|reader| reader.join().unwrap())
        });

        assert_eq!((sums, memory.load(0), cut.is_cut()), ([0; 4], 0, true));
    }

    /// Does nothing unless the test below runs it.
    #[test]
    fn child_that_touches_memory_that_nobody_watches() {
        let Ok(_) = std::env::var(TOUCH_VARIABLE) else { return };
        let (file, cut) = file_of(1);
        let memory = cut.memory();
        cut.place.is_mapped.store(false, Ordering::Relaxed);
        file.set_len(0).unwrap();
        println!("{}", memory.load(0));
    }

    #[test]
    fn memory_that_nobody_watches_ends_the_process_as_before() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "region::cut_file::tests::child_that_touches_memory_that_nobody_watches"]);

        let ended = child.env(TOUCH_VARIABLE, "").output().unwrap();

        assert_eq!(ended.status.signal(), Some(libc::SIGBUS));
    }
}
