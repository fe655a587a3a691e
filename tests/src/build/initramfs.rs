//! Initial RAM file systems: `newc` cpio archives with programs, scripts and kernel modules.

use cpio::newc;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const DIRECTORY: u32 = 0o040_755;
const SYMLINK: u32 = 0o120_777;
const REGULAR: u32 = 0o100_000;

/// Why an archive could not be made.
#[derive(Debug, thiserror::Error)]
pub enum InitramfsError {
    /// A file that belongs into it could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A file is larger than the format can hold (4 GiB).
    #[error("{0} is too large for an initramfs")]
    TooLarge(String),
    /// The archive could not be written.
    #[error("cannot write the archive {}", path.display())]
    Write {
        /// The archive.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

#[derive(Clone, Debug)]
enum Content {
    Folder,
    Symlink(String),
    Bytes(Vec<u8>),
    File(PathBuf),
}

/// An archive in the making. Names are paths in the guest without the leading slash; the folders above a name are
/// added by themselves.
#[derive(Clone, Debug, Default)]
pub struct Initramfs {
    entries: Vec<(String, u32, Content)>,
}

impl Initramfs {
    /// An empty archive.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn push(&mut self, name: &str, mode: u32, content: Content) {
        let name = name.trim_start_matches('/');
        let parents: Vec<&str> = name.match_indices('/').map(|(at, _)| &name[..at]).collect();
        for parent in parents {
            if !self.entries.iter().any(|(known, _, _)| known == parent) {
                self.entries.push((parent.to_owned(), DIRECTORY, Content::Folder));
            }
        }
        self.entries.retain(|(known, _, _)| known != name);
        self.entries.push((name.to_owned(), mode, content));
    }

    /// Adds a folder.
    #[must_use]
    pub fn folder(mut self, name: &str) -> Self {
        self.push(name, DIRECTORY, Content::Folder);
        self
    }

    /// Adds a symbolic link to `target`.
    #[must_use]
    pub fn symlink(mut self, name: &str, target: &str) -> Self {
        self.push(name, SYMLINK, Content::Symlink(target.to_owned()));
        self
    }

    /// Adds a file with this content and these permissions (octal, such as `0o755`).
    #[must_use]
    pub fn bytes(mut self, name: &str, permissions: u32, content: impl Into<Vec<u8>>) -> Self {
        self.push(name, REGULAR | permissions, Content::Bytes(content.into()));
        self
    }

    /// Adds a copy of the host's file `path`, read when the archive is written.
    #[must_use]
    pub fn file(mut self, name: &str, permissions: u32, path: &Path) -> Self {
        self.push(name, REGULAR | permissions, Content::File(path.to_path_buf()));
        self
    }

    /// Adds a static busybox as `/bin/busybox` and `/bin/sh`.
    #[must_use]
    pub fn busybox(self, path: &Path) -> Self {
        self.file("bin/busybox", 0o755, path).symlink("bin/sh", "busybox")
    }

    /// Adds module files below `/lib/strata-lab` and their list, in the order of loading, as the file `list` there.
    #[must_use]
    pub fn modules(mut self, list: &str, files: &[PathBuf]) -> Self {
        let mut order = String::new();
        for file in files {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            order.push_str(&name);
            order.push('\n');
            self = self.file(&format!("lib/strata-lab/{name}"), 0o644, file);
        }
        self.bytes(&format!("lib/strata-lab/{list}"), 0o644, order)
    }

    /// Writes the archive to the file `path`.
    ///
    /// # Errors
    ///
    /// When an added file cannot be read or the archive not be written.
    pub fn write_file(&self, path: &Path) -> Result<(), InitramfsError> {
        let write_error = |source| InitramfsError::Write { path: path.to_path_buf(), source };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(write_error)?;
        }
        // under another name first: nobody boots half an archive
        let partial = path.with_extension("partial");
        let file = fs::File::create(&partial).map_err(write_error)?;
        let mut output = io::BufWriter::new(file);
        self.write(&mut output, path)?;
        output.flush().map_err(write_error)?;
        fs::rename(&partial, path).map_err(write_error)
    }

    fn write(&self, mut output: impl Write, path: &Path) -> Result<(), InitramfsError> {
        let write_error = |source| InitramfsError::Write { path: path.to_path_buf(), source };
        for (inode, (name, mode, content)) in self.entries.iter().enumerate() {
            let data = match content {
                Content::Folder => Vec::new(),
                Content::Symlink(target) => target.clone().into_bytes(),
                Content::Bytes(bytes) => bytes.clone(),
                Content::File(path) => {
                    fs::read(path).map_err(|source| InitramfsError::Read { path: path.clone(), source })?
                }
            };
            let size = u32::try_from(data.len()).map_err(|_| InitramfsError::TooLarge(name.clone()))?;
            let inode = u32::try_from(inode + 1).map_err(|_| InitramfsError::TooLarge(name.clone()))?;
            let mut entry = newc::Builder::new(name).ino(inode).mode(*mode).nlink(1).write(output, size);
            entry.write_all(&data).map_err(write_error)?;
            output = entry.finish().map_err(write_error)?;
        }
        newc::trailer(output).map_err(write_error)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_back(archive: &Initramfs) -> Vec<(String, u32, Vec<u8>)> {
        let mut bytes = Vec::new();
        archive.write(&mut bytes, Path::new("archive")).unwrap();
        let mut input: &[u8] = &bytes;
        let mut entries = Vec::new();
        loop {
            let mut reader = newc::Reader::new(input).unwrap();
            if reader.entry().is_trailer() {
                return entries;
            }
            let mut data = Vec::new();
            io::Read::read_to_end(&mut reader, &mut data).unwrap();
            entries.push((reader.entry().name().to_owned(), reader.entry().mode(), data));
            input = reader.finish().unwrap();
        }
    }

    #[test]
    fn write_adds_the_folders_above_a_file_once() {
        let archive =
            Initramfs::new().bytes("a/b/one", 0o755, "1").bytes("a/b/two", 0o644, "22").symlink("a/link", "b/one");

        let entries = read_back(&archive);

        assert_eq!(
            entries,
            [
                ("a".to_owned(), DIRECTORY, vec![]),
                ("a/b".to_owned(), DIRECTORY, vec![]),
                ("a/b/one".to_owned(), REGULAR | 0o755, b"1".to_vec()),
                ("a/b/two".to_owned(), REGULAR | 0o644, b"22".to_vec()),
                ("a/link".to_owned(), SYMLINK, b"b/one".to_vec()),
            ]
        );
    }

    #[test]
    fn adding_a_name_again_replaces_it() {
        let archive = Initramfs::new().bytes("init", 0o755, "old").bytes("init", 0o755, "new");

        let entries = read_back(&archive);

        assert_eq!(entries, [("init".to_owned(), REGULAR | 0o755, b"new".to_vec())]);
    }

    #[test]
    fn write_file_with_a_missing_source_leaves_no_archive() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("image.cpio");

        let result = Initramfs::new().file("x", 0o644, Path::new("/nonexistent/file")).write_file(&target);

        assert!(matches!(result, Err(InitramfsError::Read { .. })));
        assert!(!target.exists());
    }
}
