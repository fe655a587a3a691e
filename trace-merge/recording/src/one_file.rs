//! Making the [one file](crate::files::packed) of a recording, which appears when it is complete.

pub mod pack;

use crate::files::removed_on_signal::RemovedOnSignal;
use crate::reader::Trace;
use pack::PackError;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;
use thiserror::Error;

/// Why the file is not made.
#[derive(Debug, Error)]
pub enum OneFileError {
    /// It is there.
    #[error("{}: is there already; give another name, or remove it", .path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// It cannot be made.
    #[error("{}: cannot be written; check the space and the permissions of its folder", .path.display())]
    Make {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The recording does not become one file.
    #[error("{}: cannot be written", .path.display())]
    Pack {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: PackError,
    },
}

/// A file in the making. Until it is kept, dropping it, or a signal that ends the process, leaves nothing behind.
#[derive(Debug)]
pub struct OneFile {
    path: PathBuf,
    file: NamedTempFile,
    _guard: RemovedOnSignal,
    /// Beside the file; removed after all else.
    work: tempfile::TempDir,
}

impl OneFile {
    /// The file `path`, which must not be there.
    ///
    /// # Errors
    /// When it is there, or nothing can be written beside it.
    pub fn begin(path: &Path) -> Result<Self, OneFileError> {
        if path.symlink_metadata().is_ok() {
            return Err(OneFileError::Exists { path: path.into() });
        }
        let failed = |source| OneFileError::Make { path: path.into(), source };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let work = tempfile::Builder::new().prefix(".strata-").tempdir_in(folder).map_err(failed)?;
        let guard = RemovedOnSignal::new(work.path()).map_err(failed)?;
        let file = NamedTempFile::new_in(work.path()).map_err(failed)?;
        Ok(Self { path: path.into(), file, _guard: guard, work })
    }

    /// A folder that is not there yet, for the recording that is to become the file.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.work.path().join("trace")
    }

    /// Writes `trace` into the file; returns how many bytes that has.
    ///
    /// # Errors
    /// When a file cannot be read or written.
    pub fn pack(&self, trace: &Trace) -> Result<u64, OneFileError> {
        let packed = pack::pack(trace, self.file.as_file());
        packed.map_err(|source| OneFileError::Pack { path: self.path.clone(), source })
    }

    /// Writes the recording in its [folder](Self::folder) into the file; returns how many bytes that has.
    ///
    /// # Errors
    /// When a file cannot be read or written.
    pub fn pack_folder(&self) -> Result<u64, OneFileError> {
        let trace = Trace::open(&self.folder());
        let failed = |source| OneFileError::Pack { path: self.path.clone(), source: PackError::Trace(source) };
        self.pack(&trace.map_err(failed)?)
    }

    /// The file appears.
    ///
    /// # Errors
    /// When it is there meanwhile, or cannot be renamed.
    pub fn keep(self) -> Result<(), OneFileError> {
        let kept: Result<File, _> = self.file.persist_noclobber(&self.path);
        kept.map(drop).map_err(|error| match error.error.kind() {
            io::ErrorKind::AlreadyExists => OneFileError::Exists { path: self.path.clone() },
            _ => OneFileError::Make { path: self.path.clone(), source: error.error },
        })
    }
}

/// Makes the recording `path`: where its name [is that of one file](crate::files::packed::is_name), `write` writes a folder
/// beside it that becomes the file, else the folder `path`.
///
/// # Errors
/// Those of `write`, and when the file cannot be made. Then it is not there.
pub fn write<T, E: From<OneFileError>>(path: &Path, write: impl FnOnce(&Path) -> Result<T, E>) -> Result<T, E> {
    if !crate::files::packed::is_name(path) {
        return write(path);
    }
    let file = OneFile::begin(path)?;
    let written = write(&file.folder())?;
    file.pack_folder()?;
    file.keep()?;
    Ok(written)
}
