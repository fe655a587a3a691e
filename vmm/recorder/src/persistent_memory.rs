//! Files on persistent memory (DAX), which survive a crash of the host.
//!
//! They do if they have their blocks: those that were only set aside become the file's by the first write to each, which the file
//! system commits seconds later, and read as zeros after a crash before that. Other files are left as they are.

use rustix::fs::{AtFlags, StatxAttributes, StatxFlags, statx};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Lets the bytes `part` of `file`, which are zero and which nobody uses yet, survive a crash from the moment that they are
/// written.
///
/// # Errors
/// When they cannot be written.
pub(crate) fn prepare(file: &File, part: Range<u64>) -> io::Result<()> {
    if !is_on_persistent_memory(file) {
        return Ok(());
    }
    let zeros = vec![0; 1 << 20];
    let mut at = part.start;
    while at < part.end {
        let most = usize::try_from(part.end - at).map_or(zeros.len(), |left| left.min(zeros.len()));
        file.write_all_at(&zeros[..most], at)?;
        at += most as u64;
    }
    file.sync_data()
}

/// As [`prepare`], for bytes that somebody has just written.
///
/// # Errors
/// When the file system cannot commit them.
pub(crate) fn commit(file: &File) -> io::Result<()> {
    if is_on_persistent_memory(file) { file.sync_data() } else { Ok(()) }
}

fn is_on_persistent_memory(file: &File) -> bool {
    let about = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS);
    about.is_ok_and(|about| about.stx_attributes.contains(StatxAttributes::DAX))
}
