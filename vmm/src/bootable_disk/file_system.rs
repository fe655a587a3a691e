//! Looking up and reading files of an ext4 file system whose every byte may be made up.
//!
//! The library checks what it reads, but a folder may be made to have more blocks than there are on any disk, by naming
//! the same ones again and again. So paths are followed here, one name at a time, and a folder is looked through only
//! if it has a size that folders have.

use super::BootableDiskError;
use super::journal::{JOURNAL_MAX, Journal};
use super::superblock::is_within;
use super::volume::Volume;
use ext4_view::{Ext4, Ext4Error, Metadata};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Largest folder that is looked through, bytes.
const FOLDER_MAX: u64 = 16 << 20;
/// Most symbolic links on the way to a file, as Linux has it.
const LINKS_MAX: u32 = 40;
/// Most names on the way to a file.
const NAMES_MAX: u32 = 256;
/// Longest target of a symbolic link, bytes.
const LINK_MAX: u64 = 4096;
/// Files are copied by so many bytes.
const CHUNK: usize = 1 << 20;

/// A file system in an image.
pub struct FileSystem {
    ext4: Ext4,
    /// The image, for messages.
    image: PathBuf,
    /// Bytes of the volume.
    size: u64,
}

/// A file that was found: its path without symbolic links, and what it is.
pub struct Entry {
    /// The path, absolute.
    pub path: String,
    pub metadata: Metadata,
}

impl FileSystem {
    /// Opens the file system on `volume` of the image that messages call `image`.
    pub fn open(image: &Path, volume: Volume) -> Result<Self, BootableDiskError> {
        let image = image.to_path_buf();
        let superblock =
            volume.superblock().map_err(|source| BootableDiskError::Read { path: image.clone(), source })?;
        if !is_within(&superblock, volume.size()) {
            return Err(BootableDiskError::NotExt4 { path: image });
        }
        if let Some(journal) = Journal::to_replay(&volume, &superblock) {
            let size = journal.size();
            if size > JOURNAL_MAX {
                let file = "the journal (`e2fsck` replays it)".into();
                return Err(BootableDiskError::TooLarge { path: image, file, size, max: JOURNAL_MAX });
            }
            if !journal.names_each_block_once(&volume) {
                return Err(BootableDiskError::Journal { path: image });
            }
        }
        let size = volume.size();
        let ext4 = Ext4::load(Box::new(volume))
            .map_err(|source| BootableDiskError::FileSystem { path: image.clone(), source })?;
        Ok(Self { ext4, image, size })
    }

    /// The image, for messages.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// Follows `path`, an absolute one, through symbolic links; `None` if there is nothing.
    ///
    /// # Errors
    /// The file system is damaged, or a folder on the way cannot be looked through.
    pub fn look_up(&self, path: &str) -> Result<Option<Entry>, BootableDiskError> {
        let (mut links, mut names) = (0, 0);
        let mut done = String::new();
        // What is left of the path, the next name last.
        let mut left = names_of(path);
        while let Some(name) = left.pop() {
            names += 1;
            if names > NAMES_MAX {
                return Ok(None);
            }
            match name.as_str() {
                "." => continue,
                ".." => {
                    done.truncate(done.rfind('/').unwrap_or(0));
                    continue;
                }
                _ => (),
            }
            let next = format!("{done}/{name}");
            let Some(metadata) = self.metadata_within(&done, &next)? else { return Ok(None) };
            if !metadata.is_symlink() {
                done = next;
                continue;
            }
            links += 1;
            let Some(target) = self.target(&next, &metadata)?.filter(|_| links <= LINKS_MAX) else { return Ok(None) };
            if target.starts_with('/') {
                done.clear();
            }
            left.extend(names_of(&target));
        }
        let path = if done.is_empty() { "/".into() } else { done };
        let metadata = self.ext4.symlink_metadata(path.as_str()).map_err(|source| self.damaged(source))?;
        Ok(Some(Entry { path, metadata }))
    }

    /// The names in `folder`, a path without symbolic links. Those that are not UTF-8 are left out.
    ///
    /// # Errors
    /// It is damaged, or too large.
    pub fn names(&self, folder: &str) -> Result<Vec<String>, BootableDiskError> {
        self.check_folder(folder)?;
        let entries = self.ext4.read_dir(folder).map_err(|source| self.damaged(source))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|source| self.damaged(source))?;
            names.extend(entry.file_name().as_str().ok().map(str::to_owned));
        }
        Ok(names)
    }

    /// Copies the file `entry`, of at most `max` bytes, into memory.
    ///
    /// # Errors
    /// It is larger, or cannot be read.
    pub fn read(&self, entry: &Entry, max: u64) -> Result<File, BootableDiskError> {
        let (path, file, size) = (|| self.image.clone(), || entry.path.clone(), entry.metadata.len());
        // One of holes can be larger than its disk: no kernel is.
        let max = max.min(self.size);
        if size > max {
            return Err(BootableDiskError::TooLarge { path: path(), file: file(), size, max });
        }
        let no_memory = |source| BootableDiskError::Memory { path: path(), file: file(), source };
        let memory = memfd_create("strata-boot-file", MemfdFlags::CLOEXEC).map_err(|error| no_memory(error.into()))?;
        let mut memory = File::from(memory);
        let mut from = self.ext4.open(entry.path.as_str()).map_err(|source| self.damaged(source))?;
        let mut chunk = vec![0; CHUNK];
        let mut filled = 0;
        loop {
            // It gives a block at a time.
            let length = from.read_bytes(&mut chunk[filled..]).map_err(|source| self.damaged(source))?;
            filled += length;
            if length == 0 || filled == chunk.len() {
                memory.write_all(&chunk[..filled]).map_err(no_memory)?;
                filled = 0;
            }
            if length == 0 {
                return Ok(memory);
            }
        }
    }

    /// What `path` in `folder` is, not followed; `None` if there is none.
    fn metadata_within(&self, folder: &str, path: &str) -> Result<Option<Metadata>, BootableDiskError> {
        self.check_folder(if folder.is_empty() { "/" } else { folder })?;
        match self.ext4.symlink_metadata(path) {
            Ok(metadata) => Ok(Some(metadata)),
            Err(Ext4Error::NotFound | Ext4Error::NotADirectory | Ext4Error::MalformedPath | Ext4Error::PathTooLong) => {
                Ok(None)
            }
            Err(source) => Err(self.damaged(source)),
        }
    }

    /// Where the symbolic link `path` leads; `None` if that is not a path in UTF-8.
    fn target(&self, path: &str, metadata: &Metadata) -> Result<Option<String>, BootableDiskError> {
        if metadata.len() > LINK_MAX {
            return Ok(None);
        }
        let target = self.ext4.read_link(path).map_err(|source| self.damaged(source))?;
        Ok(target.to_str().ok().map(str::to_owned))
    }

    /// Refuses a folder that is larger than folders are. What is not a folder is for the library to tell.
    fn check_folder(&self, folder: &str) -> Result<(), BootableDiskError> {
        let metadata = self.ext4.symlink_metadata(folder).map_err(|source| self.damaged(source))?;
        if metadata.is_dir() && metadata.len() > FOLDER_MAX {
            return Err(BootableDiskError::Folder { path: self.image.clone(), folder: folder.to_owned() });
        }
        Ok(())
    }

    fn damaged(&self, source: Ext4Error) -> BootableDiskError {
        BootableDiskError::FileSystem { path: self.image.clone(), source }
    }
}

/// The names of `path`, the first one last.
fn names_of(path: &str) -> Vec<String> {
    path.split('/').filter(|name| !name.is_empty()).rev().map(str::to_owned).collect()
}
