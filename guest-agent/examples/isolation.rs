//! What a process may not do with `/dev/strata`, tried: other processes' rings, the kernel's, the host's part, more slots
//! than it gets. Says for each attempt whether it was refused; the exit status is the number of those that were not.
//!
//! Needs a guest that Strata traces and the right to use the device.
#![allow(unsafe_code)] // Maps, and touches what must not be touched.

use anyhow::{Context, Result, ensure};
use libc::{EACCES, EBUSY, EFAULT, EINVAL, EPERM, MAP_FAILED, PROT_EXEC, PROT_READ, PROT_WRITE};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{Error, Read};
use std::mem;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::ptr::{self, NonNull};

const DEVICE: &str = "/dev/strata";
const PAGE: usize = 4096;
const SLOT: i64 = 0;
const HOST_AREA: i64 = 1 << 32;
/// As [`SLOT`], for a process that is not counted where it is refused.
const SLOT_AGAIN: i64 = 2 << 32;
/// Slots that a process gets, one for each copy of the library in it: `STRATA_SLOTS_PER_PROCESS` of the module.
const SLOTS: usize = 4;
/// Offsets of numbers in the superblock, see `docs/abi.md`.
const GUEST_WRITABLE_OFFSET: usize = 32;
const PROCESS_STRIDE: usize = 88;

fn main() -> ExitCode {
    match run() {
        Ok(allowed) => ExitCode::from(allowed),
        Err(error) => {
            eprintln!("isolation: {error:#}");
            ExitCode::from(u8::MAX)
        }
    }
}

/// Counts what should have been refused.
#[derive(Default)]
struct Attempts {
    allowed: u8,
}

impl Attempts {
    /// Notes whether `what` was refused as expected.
    fn refused(&mut self, what: &str, refused: bool) {
        println!("isolation: {what}: {}", if refused { "refused" } else { "ALLOWED" });
        self.allowed += u8::from(!refused);
    }

    /// Notes whether a system call failed with `errno`.
    fn failed(&mut self, what: &str, result: Result<(), Error>, errno: i32) {
        self.refused(what, result.as_ref().is_err_and(|error| error.raw_os_error() == Some(errno)));
        if let Err(error) = result.as_ref().map_err(|error| (error, error.raw_os_error()))
            && error.1 != Some(errno)
        {
            println!("isolation: {what}: expected error {errno}, got {}", error.0);
        }
    }
}

fn run() -> Result<u8> {
    let mut attempts = Attempts::default();
    let device = open().with_context(|| format!("cannot open {DEVICE}"))?;
    let host = map(&device, HOST_AREA, PAGE, PROT_READ).context("cannot map the host's area")?;
    let (writable, stride) = (word(host, GUEST_WRITABLE_OFFSET), word(host, PROCESS_STRIDE));
    let (writable, stride) = (usize::try_from(writable)?, usize::try_from(stride)?);
    let try_map = |offset, size, access| map(&device, offset, size, access).map(|_| ());

    // before this process has a slot, so that nothing but the size or place can be wrong
    attempts.failed("more than a slot", try_map(SLOT, stride + PAGE, PROT_READ | PROT_WRITE), EINVAL);
    let next = i64::try_from(stride)?;
    attempts.failed("the next process's slot", try_map(next, stride, PROT_READ), EINVAL);
    attempts.failed("a slot's second page", try_map(i64::try_from(PAGE)?, PAGE, PROT_READ), EINVAL);
    attempts.failed("more than the host's area", try_map(HOST_AREA, writable + PAGE, PROT_READ), EINVAL);
    let kernel = HOST_AREA + i64::try_from(writable)?;
    attempts.failed("the kernel's registry and rings", try_map(kernel, PAGE, PROT_READ), EINVAL);
    attempts.failed("the host's area, writable", try_map(HOST_AREA, PAGE, PROT_READ | PROT_WRITE), EPERM);
    attempts.failed("the host's area, executable", try_map(HOST_AREA, PAGE, PROT_READ | PROT_EXEC), EINVAL);
    attempts.failed("the host's area, made writable", protect(host, PROT_READ | PROT_WRITE), EACCES);
    attempts.failed("the host's area, made executable", protect(host, PROT_READ | PROT_EXEC), EACCES);
    attempts.refused("a read of the device", (&device).read(&mut [0; 16]).is_err());

    let slot = map(&device, SLOT, stride, PROT_READ | PROT_WRITE).context("cannot map the process's slot")?;
    let map_more = |offset| map(&device, offset, stride, PROT_READ | PROT_WRITE);
    let more = (1..SLOTS).map(|_| map_more(SLOT)).collect::<Result<Vec<_>, _>>().context("cannot map more slots")?;
    attempts.failed("a slot too many", try_map(SLOT, stride, PROT_READ), EBUSY);
    let other = open()?;
    attempts.failed("a slot too many by another file", map(&other, SLOT, stride, PROT_READ).map(|_| ()), EBUSY);
    attempts.failed("a mapping that is treated as ordinary memory", advise(slot, PAGE, libc::MADV_DOFORK), EINVAL);
    attempts.failed("a slot that grows", grow(slot, stride), EFAULT);

    // something of this process's own, which its child must not see
    let secret = stride - 8;
    // SAFETY: the last word of the slot, which nobody records into here.
    unsafe { slot.add(secret).cast::<u64>().write_volatile(0x5ec7e7) };
    ensure!(more.iter().all(|slot| word(*slot, secret) == 0), "a process has the same slot twice");
    for slot in &more {
        // SAFETY: as above.
        unsafe { slot.add(secret).cast::<u64>().write_volatile(0x5ec7e7) };
    }
    let parent = std::process::id();
    let in_child = |action: &dyn Fn() -> i32| child(action);
    let touched = in_child(&|| {
        let is_empty = (0..stride).step_by(8).all(|offset| word(slot, offset) == 0)
            && more.iter().all(|slot| word(*slot, secret) == 0);
        // SAFETY: the child's own memory, in the place of its parent's slot.
        unsafe { slot.add(secret).cast::<u64>().write_volatile(0xbad) };
        let grandchild = child(&|| i32::from(word(slot, secret) != 0));
        i32::from(
            !is_empty || word(slot, secret) != 0xbad || grandchild.is_err() || grandchild.is_ok_and(|end| end != 0),
        )
    })?;
    attempts.refused("a child's use of its parent's slots", touched == 0 && word(slot, secret) == 0x5ec7e7);
    // One that is given back counts no more.
    more.iter().try_for_each(|slot| unmap(*slot, stride)).context("cannot give slots back")?;
    map_more(SLOT_AGAIN).and_then(|slot| unmap(slot, stride)).context("cannot map a slot in place of others")?;
    let seen = in_child(&|| i32::from(word(host, PROCESS_STRIDE) != stride as u64))?;
    ensure!(seen == 0, "a child does not see the host's area");
    let stolen = in_child(&|| i32::from(read_of(parent, slot, secret).is_ok()))?;
    attempts.refused("another process's slot by process_vm_readv", stolen == 0);
    let through_file = in_child(&|| {
        let same = map(&device, SLOT, stride, PROT_READ).map(|own| word(own, secret) == 0x5ec7e7);
        same.map_or(2, i32::from)
    })?;
    attempts.refused("another process's slot by its file", through_file == 0);
    let by_user = in_child(&|| {
        // SAFETY: changes this child's user and nothing else.
        let changed =
            unsafe { libc::setgroups(0, ptr::null()) == 0 && libc::setgid(4711) == 0 && libc::setuid(4711) == 0 };
        if !changed { 3 } else { i32::from(open().is_ok()) }
    })?;
    attempts.refused("the device, by a user outside the group", by_user == 0);

    attempts.refused("an address of the kernel's, by the device's file elsewhere", !is_called_swapped(stride)?);
    attempts.refused("other processes' slots, by one that children inherit", locked_out(stride)? == 0);

    // the slot of the first mapping was not taken from it by all this
    ensure!(word(slot, secret) == 0x5ec7e7, "the slot has changed");
    println!("isolation: {} of the attempts were allowed", attempts.allowed);
    Ok(attempts.allowed)
}

/// Whether the kernel says that some of a slot of `stride` bytes is swapped out, which nothing of it can be, to whoever maps
/// it by files of the device's on another file system. It would, from whatever lies before the file's own inode, if it took
/// that for one of tmpfs.
fn is_called_swapped(stride: usize) -> Result<bool> {
    let folder = c"/isolation";
    // SAFETY: makes a file system in memory.
    let is_made = unsafe {
        libc::mkdir(folder.as_ptr(), 0o700) == 0
            && libc::mount(c"none".as_ptr(), folder.as_ptr(), c"ramfs".as_ptr(), 0, ptr::null()) == 0
    };
    ensure!(is_made, "cannot mount a file system in memory: {}", Error::last_os_error());
    let number = fs::metadata(DEVICE)?.rdev();
    let is_called_swapped = |file: &str| -> Result<bool> {
        // SAFETY: makes a file in it.
        let is_made = unsafe { libc::mknod(CString::new(file)?.as_ptr(), libc::S_IFCHR | 0o600, number) } == 0;
        ensure!(is_made, "cannot make a file of the device's: {}", Error::last_os_error());
        map(&OpenOptions::new().read(true).write(true).open(file)?, SLOT, stride, PROT_READ | PROT_WRITE)?;
        let mappings = fs::read_to_string("/proc/self/smaps")?;
        let (_, mapping) = mappings.split_once(file).context("the mapping is not in smaps")?;
        let swapped = mapping.lines().find_map(|line| line.strip_prefix("Swap:"));
        Ok(swapped.context("smaps says nothing of swap")?.trim() != "0 kB")
    };
    // Each in a process without a slot; what lies before an inode may be zero.
    let tried = (0..4).map(|file| {
        let tried = child(&|| is_called_swapped(&format!("/isolation/{file}")).map_or(2, i32::from))?;
        ensure!(tried <= 1 << 8, "a slot cannot be mapped by a file elsewhere");
        Ok(tried != 0)
    });
    Ok(tried.collect::<Result<Vec<_>>>()?.contains(&true))
}

/// How many processes are said to have too many slots because one has died whose child still uses its slots, of `stride` bytes.
fn locked_out(stride: usize) -> Result<usize> {
    // A CPU gives out the address that was given back on it last.
    // SAFETY: the set is one of numbers of CPUs, and this program has one thread.
    let is_pinned = unsafe {
        let mut first: libc::cpu_set_t = mem::zeroed();
        libc::CPU_SET(0, &mut first);
        libc::sched_setaffinity(0, size_of_val(&first), &raw const first) == 0
    };
    ensure!(is_pinned, "cannot stay on a CPU: {}", Error::last_os_error());
    let (ours, theirs) = UnixStream::pair()?;
    let keep = |device: &File| {
        let slot = map(device, SLOT_AGAIN, stride, PROT_READ | PROT_WRITE)?;
        advise(slot, stride, libc::MADV_KEEPONFORK)
    };
    let keeps = child(&|| {
        // All that it gets: then a process of the same address would get none.
        let kept = open().and_then(|device| (0..SLOTS).try_for_each(|_| keep(&device)));
        // SAFETY: a copy of the parent's, which is not used here.
        unsafe { libc::close(ours.as_raw_fd()) };
        // SAFETY: this program has one thread.
        let is_child = unsafe { libc::fork() } == 0;
        // Until the other end is closed.
        let _ = is_child.then(|| (&theirs).read(&mut [0; 1]));
        i32::from(kept.is_err())
    })?;
    drop(theirs);
    ensure!(keeps == 0, "cannot keep slots");
    let refused = || {
        child(&|| {
            i32::from(
                open()
                    .and_then(|device| map(&device, SLOT_AGAIN, stride, PROT_READ))
                    .is_err_and(|error| error.raw_os_error() == Some(EBUSY)),
            )
        })
    };
    let refused = (0..20).map(|_| refused()).collect::<Result<Vec<_>>>()?;
    drop(ours);
    Ok(refused.into_iter().filter(|status| *status != 0).count())
}

fn open() -> Result<File, Error> {
    OpenOptions::new().read(true).write(true).open(DEVICE)
}

fn map(device: &File, offset: i64, size: usize, access: i32) -> Result<NonNull<u8>, Error> {
    // SAFETY: a new mapping at an address that the kernel chooses touches nothing that exists.
    let at = unsafe { libc::mmap(ptr::null_mut(), size, access, libc::MAP_SHARED, device.as_raw_fd(), offset) };
    if at == MAP_FAILED {
        Err(Error::last_os_error())
    } else {
        NonNull::new(at.cast()).ok_or_else(Error::last_os_error)
    }
}

fn unmap(mapping: NonNull<u8>, size: usize) -> Result<(), Error> {
    // SAFETY: one of this program's own mappings, which nobody uses any more.
    result(unsafe { libc::munmap(mapping.as_ptr().cast(), size) })
}

fn protect(page: NonNull<u8>, access: i32) -> Result<(), Error> {
    // SAFETY: one of this program's own pages, which stays readable.
    result(unsafe { libc::mprotect(page.as_ptr().cast(), PAGE, access) })
}

fn advise(mapping: NonNull<u8>, size: usize, advice: i32) -> Result<(), Error> {
    // SAFETY: one of this program's own mappings; the advice changes no content.
    result(unsafe { libc::madvise(mapping.as_ptr().cast(), size, advice) })
}

fn grow(mapping: NonNull<u8>, size: usize) -> Result<(), Error> {
    // SAFETY: a mapping of this program, which nobody uses meanwhile.
    let grown = unsafe { libc::mremap(mapping.as_ptr().cast(), size, size + PAGE, libc::MREMAP_MAYMOVE) };
    if grown == MAP_FAILED { Err(Error::last_os_error()) } else { Ok(()) }
}

fn result(code: i32) -> Result<(), Error> {
    if code == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

fn word(mapping: NonNull<u8>, offset: usize) -> u64 {
    // SAFETY: the callers pass offsets of words in their mappings.
    unsafe { mapping.add(offset).cast::<u64>().read_volatile() }
}

/// A word of another process.
fn read_of(process: u32, mapping: NonNull<u8>, offset: usize) -> Result<u64, Error> {
    let mut word = 0_u64;
    let local = libc::iovec { iov_base: (&raw mut word).cast(), iov_len: 8 };
    let remote = libc::iovec { iov_base: mapping.as_ptr().wrapping_add(offset).cast(), iov_len: 8 };
    // SAFETY: the kernel writes the eight bytes of `word`.
    let read = unsafe { libc::process_vm_readv(process.cast_signed(), &local, 1, &remote, 1, 0) };
    if read == 8 { Ok(word) } else { Err(Error::last_os_error()) }
}

/// Runs `action` in a child; returns how it ended, as `wait` says it.
fn child(action: &dyn Fn() -> i32) -> Result<i32> {
    // SAFETY: this program has one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let status = action();
        // SAFETY: ends the child.
        unsafe { libc::_exit(status) };
    }
    ensure!(child > 0, "cannot fork: {}", Error::last_os_error());
    let mut status = 0;
    // SAFETY: waits for the child made above.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    ensure!(waited == child, "cannot wait: {}", Error::last_os_error());
    Ok(status)
}
