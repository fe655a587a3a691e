//! The folder that a recording goes into: new, or empty.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a folder cannot take a recording.
#[derive(Debug, Error)]
pub enum TraceFolderError {
    /// Something is there already.
    #[error("'{}' exists and is not an empty folder: give a new one, or remove it", .0.display())]
    Exists(PathBuf),
    /// It cannot be made.
    #[error("cannot create the trace folder '{}': check that its parent exists and may be written", path.display())]
    Create {
        /// The folder.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// Its files cannot be made.
    #[error("cannot write into the trace folder '{}': check its permissions", path.display())]
    NotWritable {
        /// The folder.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
}

/// A folder for a recording. Until [`keep`](Self::keep) is called, dropping it removes what was made.
#[derive(Debug)]
pub struct TraceFolder {
    path: PathBuf,
    created: bool,
    keep: bool,
}

impl TraceFolder {
    /// Checks that `path` can become a recording, without making it.
    ///
    /// # Errors
    /// When something is there already.
    pub fn check(path: &Path) -> Result<(), TraceFolderError> {
        let is_free = match fs::read_dir(path) {
            Ok(mut entries) => entries.next().is_none(),
            Err(_) => path.symlink_metadata().is_err(),
        };
        if is_free { Ok(()) } else { Err(TraceFolderError::Exists(path.into())) }
    }

    /// Makes the folder, or takes an empty one that is there.
    ///
    /// # Errors
    /// When something is there already, or the folder cannot be made or written.
    pub fn create(path: &Path) -> Result<Self, TraceFolderError> {
        Self::check(path)?;
        let created = !path.exists();
        if created {
            fs::create_dir(path).map_err(|source| TraceFolderError::Create { path: path.into(), source })?;
        }
        let folder = Self { path: path.into(), created, keep: false };
        let trial = path.join(".strata-trial");
        fs::write(&trial, [])
            .and_then(|()| fs::remove_file(&trial))
            .map_err(|source| TraceFolderError::NotWritable { path: path.into(), source })?;
        Ok(folder)
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// From now on the folder stays: there is something in it worth keeping.
    pub const fn keep(&mut self) {
        self.keep = true;
    }
}

impl Drop for TraceFolder {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        // What cannot be removed is harmless: files of a recording that holds nothing.
        if self.created {
            let _ = fs::remove_dir_all(&self.path);
        } else if let Ok(entries) = fs::read_dir(&self.path) {
            for entry in entries.flatten() {
                let path = entry.path();
                let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    #[test]
    fn folder_that_is_not_kept_leaves_nothing_behind() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("trace");

        let folder = TraceFolder::create(&path).unwrap();
        fs::write(folder.path().join("half"), b"written").unwrap();
        drop(folder);

        assert!(!path.exists());
    }

    #[test]
    fn empty_folder_of_the_user_is_emptied_but_stays() {
        let dir = TempDir::new().unwrap();

        let folder = TraceFolder::create(dir.path()).unwrap();
        fs::create_dir(folder.path().join("half")).unwrap();
        drop(folder);

        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn kept_folder_stays() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("trace");

        TraceFolder::create(&path).unwrap().keep();

        assert!(path.is_dir());
    }

    #[test]
    fn folder_with_something_in_it_is_refused() {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("mine"), []).unwrap();

        let error = TraceFolder::create(dir.path()).unwrap_err();

        assert!(error.to_string().contains("not an empty folder"), "{error}");
        assert!(dir.path().join("mine").exists());
    }

    #[test]
    fn folder_without_a_parent_is_refused() {
        let dir = TempDir::new().unwrap();

        let error = TraceFolder::create(&dir.path().join("no/such")).unwrap_err();

        assert!(error.to_string().contains("check that its parent exists"), "{error}");
    }
}
