//! The symbols of the guest's kernel, out of the image that the guest is booted with.

use crate::kernel_image::{ImageError, KernelImage};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::sync::Arc;
use strata_kmod_build::kernel_image;
use strata_recorder::guest_symbols::{GuestSymbols, SymbolsReader};

/// The function whose address in the guest tells how far the kernel was moved.
const SCHEDULE: &str = "schedule";
/// What a kernel is moved by at random is a multiple of this, bytes.
const ALIGNMENT: u64 = 2 << 20;
/// It is moved by less than this, bytes (`KERNEL_IMAGE_SIZE`).
const MOST: u64 = 1 << 30;
/// More than any image of a kernel, bytes.
const LARGEST: u64 = 1 << 30;

/// Why the symbols of a guest's kernel cannot be had.
#[derive(Debug, thiserror::Error)]
enum SymbolsError {
    /// The file cannot be read.
    #[error("the kernel's file cannot be read")]
    File(#[from] io::Error),
    /// It takes a program to unpack it, which the jail lets nobody start.
    #[error("the kernel is compressed by LZO: name the uncompressed vmlinux instead")]
    TakesAProgram,
    /// It is no kernel that can be read.
    #[error("the kernel cannot be looked into")]
    Image(#[from] ImageError),
    /// It has no tables of symbols.
    #[error(
        "the kernel's file has no symbols (CONFIG_KALLSYMS), or their tables have a form that strata does not know"
    )]
    NoTables,
    /// The guest says something that cannot be.
    #[error("the guest says that its function 'schedule' is at {at:#x}, where that of --kernel cannot be")]
    Moved { at: u64 },
}

/// The symbols of the guest that is booted with `kernel`, an open file, and what reads them: it needs nothing but to read
/// that.
pub(in crate::run) fn guest_symbols(mut kernel: File) -> (Arc<GuestSymbols>, SymbolsReader) {
    GuestSymbols::new(Box::new(move |schedule_at| Ok(read(&mut kernel, schedule_at)?)))
}

fn read(kernel: &mut File, schedule_at: u64) -> Result<Vec<u8>, SymbolsError> {
    let mut bytes = Vec::new();
    kernel.rewind()?;
    // Within a bound; and the jail's thread may not ask how large the file is.
    kernel.take(LARGEST).read_to_end(&mut bytes)?;
    if kernel_image::takes_a_program(&bytes) {
        return Err(SymbolsError::TakesAProgram);
    }
    let image = KernelImage::read(&bytes)?;
    drop(bytes);
    let kallsyms = image.kallsyms().ok_or(SymbolsError::NoTables)?;
    let [linked] = kallsyms.addresses([SCHEDULE]);
    let moved = moved(schedule_at, linked.ok_or(SymbolsError::NoTables)?)?;
    Ok(kallsyms.text(moved))
}

/// By how much a kernel was moved whose function is at `at` in the guest, and was `linked` for there.
fn moved(at: u64, linked: u64) -> Result<u64, SymbolsError> {
    let moved = at.checked_sub(linked).filter(|moved| moved.is_multiple_of(ALIGNMENT) && *moved < MOST);
    moved.ok_or(SymbolsError::Moved { at })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const LINKED: u64 = 0xffff_ffff_81a4_79b0;

    #[test]
    fn kernel_is_moved_by_a_multiple_of_its_alignment_within_its_part_of_the_addresses() {
        let by = |moved: u64| moved_to(LINKED.wrapping_add(moved));

        assert_eq!([by(0), by(0xcc0_0000), by(MOST - ALIGNMENT)], [Some(0), Some(0xcc0_0000), Some(MOST - ALIGNMENT)]);
        assert_eq!([by(MOST), by(4096), by(ALIGNMENT.wrapping_neg()), moved_to(0)], [None; 4]);
    }

    fn moved_to(at: u64) -> Option<u64> {
        moved(at, LINKED).ok()
    }

    #[test]
    fn file_that_is_no_kernel_says_so() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"no kernel").unwrap();
        let (symbols, reader) = guest_symbols(file);
        reader.start(|| ());

        symbols.report(LINKED);

        let reason = symbols.missing().unwrap().reason;
        assert!(reason.contains("cannot be looked into: its image cannot be unpacked"), "{reason}");
    }
}
