//! Values that are never freed, in memory that comes from the kernel. The first event of a process may be in a signal
//! handler, which may have interrupted the allocator: what connects and registers takes no memory from there, and no lock.
#![allow(unsafe_code)] // Fresh mappings become values.

use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Bytes that are asked of the kernel at a time.
const CHUNK: usize = 64 << 10;
/// Alignment of all values.
const ALIGNMENT: usize = 16;

/// What a chunk begins with.
#[repr(C, align(16))]
struct Chunk {
    /// Bytes that were given away, this included; more than [`CHUNK`] when some did not fit.
    used: AtomicUsize,
}

/// The chunk that values are taken from; null at first.
static CURRENT: AtomicPtr<Chunk> = AtomicPtr::new(ptr::null_mut());

/// `value`, for the rest of the process's life.
///
/// # Errors
/// When the kernel has no memory.
pub(crate) fn keep<T: Sync>(value: T) -> io::Result<&'static T> {
    // SAFETY: the memory is large enough and aligned for one `T`, nobody else's, and never given back.
    Ok(unsafe {
        let place = place::<T>(1)?;
        place.write(value);
        &*place
    })
}

/// The first `limit` of `values`, one behind the other, for the rest of the process's life.
///
/// # Errors
/// When the kernel has no memory.
pub(crate) fn keep_all<T: Sync>(limit: usize, values: impl Iterator<Item = T>) -> io::Result<&'static [T]> {
    // SAFETY: the memory is large enough and aligned for `limit` values, nobody else's, and never given back; as many as the
    // slice has were written.
    Ok(unsafe {
        let place = place::<T>(limit)?;
        let mut count = 0;
        for value in values.take(limit) {
            place.add(count).write(value);
            count += 1;
        }
        std::slice::from_raw_parts(place, count)
    })
}

/// Memory for `count` values, nobody else's. Any context, a signal handler within this function too.
fn place<T>(count: usize) -> io::Result<*mut T> {
    const { assert!(align_of::<T>() <= ALIGNMENT) };
    let too_large = io::ErrorKind::OutOfMemory;
    let bytes = size_of::<T>().checked_mul(count).ok_or(too_large)?;
    let bytes = bytes.checked_next_multiple_of(ALIGNMENT).ok_or(too_large)?;
    if bytes > CHUNK / 4 {
        return map(bytes).map(<*mut u8>::cast);
    }
    loop {
        let chunk = CURRENT.load(Ordering::Acquire);
        // SAFETY: null, or a chunk that was made below, which is never unmapped.
        if let Some(known) = unsafe { chunk.as_ref() } {
            let at = known.used.fetch_add(bytes, Ordering::Relaxed);
            if at + bytes <= CHUNK {
                return Ok(chunk.cast::<u8>().wrapping_add(at).cast());
            }
        }
        let new = map(CHUNK)?.cast::<Chunk>();
        // SAFETY: fresh memory that is large enough and aligned to pages; nobody else knows it yet.
        unsafe { new.write(Chunk { used: AtomicUsize::new(size_of::<Chunk>()) }) };
        if CURRENT.compare_exchange(chunk, new, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // SAFETY: another thread, or a handler, was faster, and nobody has seen this one.
            let _ = unsafe { rustix::mm::munmap(new.cast(), CHUNK) };
        }
    }
}

/// New memory of zeroes, aligned to pages.
///
/// # Errors
/// When the kernel has none.
pub(crate) fn map(bytes: usize) -> io::Result<*mut u8> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses touches nothing that exists.
    Ok(unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE) }?.cast())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn kept_values_are_what_they_were() {
        let one = keep([7_u64; 100]).unwrap();
        let large = keep([9_u8; 2 * CHUNK]).unwrap();
        let several = keep_all(3, (1..).map(|number: u32| number * 2)).unwrap();
        let fewer = keep_all(3, [5_u8].into_iter()).unwrap();

        assert_eq!((one, several, fewer), (&[7; 100], &[2, 4, 6][..], &[5][..]));
        assert!(large.iter().all(|byte| *byte == 9));
    }

    #[test]
    fn values_of_several_threads_do_not_overlap() {
        let kept: Vec<&'static [u64; 500]> = thread::scope(|scope| {
            let keep_some = |thread: u64| (0..100).map(|number| keep([thread * 1000 + number; 500]).unwrap()).collect();
            let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || -> Vec<_> { keep_some(thread) })).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });

        let values: Vec<u64> = kept.iter().map(|value| value[0]).collect();
        let expected: Vec<u64> = (0..4).flat_map(|thread| (0..100).map(move |number| thread * 1000 + number)).collect();
        assert_eq!(values, expected);
        assert!(kept.iter().all(|value| value.iter().all(|word| *word == value[0])));
    }
}
