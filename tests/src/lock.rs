//! Files that one process at a time has locked. They hold its id.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Why a lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has it.
    #[error("process {holder} has locked {}", path.display())]
    Busy {
        /// The lock file.
        path: PathBuf,
        /// The other process's id.
        holder: String,
    },
    /// The file cannot be used.
    #[error("cannot lock {}", path.display())]
    File {
        /// The lock file.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// A lock that is released when this is dropped, or the process ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock unless another process has it.
    ///
    /// # Errors
    ///
    /// When another process has it, or the file cannot be used.
    pub fn try_take(path: &Path) -> Result<Self, LockError> {
        let mut file = open(path)?;
        match file.try_lock() {
            Ok(()) => Self::mark(file).map_err(|source| LockError::File { path: path.into(), source }),
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // what cannot be read is not known
                let _ = file.read_to_string(&mut holder);
                Err(LockError::Busy { path: path.into(), holder })
            }
            Err(TryLockError::Error(source)) => Err(LockError::File { path: path.into(), source }),
        }
    }

    /// Takes the lock, and waits for it when another process has it.
    ///
    /// # Errors
    ///
    /// When the file cannot be used.
    pub fn take(path: &Path) -> Result<Self, LockError> {
        let file = open(path)?;
        let locked = file.lock().and_then(|()| Self::mark(file));
        locked.map_err(|source| LockError::File { path: path.into(), source })
    }

    /// Writes into `file` who has it.
    fn mark(mut file: File) -> io::Result<Self> {
        file.set_len(0)?;
        write!(file, "{}", std::process::id())?;
        Ok(Self { _file: file })
    }
}

fn open(path: &Path) -> Result<File, LockError> {
    let folder = path.parent().unwrap_or(path);
    let options = || File::options().read(true).write(true).create(true).truncate(false).open(path);
    fs::create_dir_all(folder).and_then(|()| options()).map_err(|source| LockError::File { path: path.into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_holder_is_refused_with_the_first_ones_name_until_that_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made/lock");

        let first = Lock::try_take(&path).unwrap();
        let refused = Lock::try_take(&path).unwrap_err();
        drop(first);
        let again = Lock::try_take(&path);

        let own = std::process::id().to_string();
        assert!(matches!(&refused, LockError::Busy { holder, .. } if *holder == own), "{refused:?}");
        assert!(again.is_ok());
    }
}
