//! Looks for room on the disk before something begins that needs it.

use std::io;
use std::path::{Path, PathBuf};

/// Why a run cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum DiskSpaceError {
    /// Too little is free.
    #[error(
        "{} MiB are free where {} lies, and {} are needed: make room there, or set CARGO_TARGET_DIR to another disk",
        free >> 20, folder.display(), needed >> 20
    )]
    Full {
        /// A folder on the file system.
        folder: PathBuf,
        /// Bytes that are free.
        free: u64,
        /// Bytes that the run takes.
        needed: u64,
    },
    /// The file system does not say.
    #[error("cannot find out how much room there is in {}", folder.display())]
    Unknown {
        /// A folder on the file system.
        folder: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Asks for `needed` free bytes on the file system of `folder`.
///
/// # Errors
///
/// When there are fewer, or the file system does not say.
pub fn require(folder: &Path, needed: u64) -> Result<(), DiskSpaceError> {
    let of_folder = || folder.to_path_buf();
    let system = rustix::fs::statvfs(folder)
        .map_err(|source| DiskSpaceError::Unknown { folder: of_folder(), source: source.into() })?;
    let free = system.f_bavail.saturating_mul(system.f_frsize);
    if free < needed { Err(DiskSpaceError::Full { folder: of_folder(), free, needed }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_there_is_is_refused_with_both_numbers() {
        let folder = tempfile::tempdir().unwrap();

        let enough = require(folder.path(), 1);
        let error = require(folder.path(), u64::MAX).unwrap_err().to_string();

        assert!(enough.is_ok());
        assert!(
            error.contains(folder.path().to_str().unwrap()) && error.contains("17592186044415 are needed"),
            "{error}"
        );
    }

    #[test]
    fn folder_that_is_not_there_is_named() {
        let error = require(Path::new("/nonexistent/folder"), 1).unwrap_err();

        assert!(error.to_string().ends_with("/nonexistent/folder"));
    }
}
