//! Kernel and initrd out of the disk image that a guest boots from, as its distribution has put them there.
//!
//! The image is a raw one: an ext4 file system from its first byte to its last, or a partition table (GPT, or the four
//! primary partitions of an MBR) with the root in one of its partitions. It is read before the guest begins, and never
//! written.
//!
//! An image may come from anywhere. What is read of it is copied into memory and bounded: partition tables and the
//! sizes of the file system and its journal before a library gets them, folders by their size, files by [`KERNEL_MAX`]
//! and [`INITRD_MAX`], and everything together by [`TIME_MAX`].

mod boot_files;
mod cmdline;
mod file_system;
mod journal;
mod partitions;
mod superblock;
mod volume;

pub use cmdline::with_root;

use boot_files::Found;
use ext4_view::Ext4Error;
use file_system::FileSystem;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use strata_machine::BootFile;
use volume::Volume;

/// Largest kernel that is taken out of an image, bytes.
pub const KERNEL_MAX: u64 = 256 << 20;
/// Largest initrd that is taken out of an image, bytes.
pub const INITRD_MAX: u64 = 1 << 30;
/// Longest time that looking through an image may take: a damaged file system can send its reader around in circles.
pub const TIME_MAX: Duration = Duration::from_secs(60);

/// Why a guest cannot be booted from an image.
#[derive(Debug, thiserror::Error)]
pub enum BootableDiskError {
    /// The image cannot be read.
    #[error("cannot read the disk image '{}'", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// No file system that can be read.
    #[error(
        "there is no ext4 file system in '{}', neither in the whole image nor in a Linux partition of it: name the \
         kernel with --kernel and the image with --disk",
        path.display()
    )]
    NotExt4 { path: PathBuf },
    /// The partition table is damaged.
    #[error(
        "the partition table of '{}' cannot be read: name the kernel with --kernel and the image with --disk",
        path.display()
    )]
    PartitionTable {
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: io::Error,
    },
    /// The file system is damaged, or has features that are not known.
    #[error(
        "the ext4 file system in '{}' cannot be read: check it with `e2fsck`, or name the kernel with --kernel and the \
         image with --disk",
        path.display()
    )]
    FileSystem {
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: Ext4Error,
    },
    /// There is no kernel.
    #[error(
        "'{}' has no kernel (/vmlinuz, /boot/vmlinuz or /boot/vmlinuz-RELEASE): install one in it (Debian: package \
         linux-image-cloud-amd64), or name it with --kernel and the image with --disk",
        path.display()
    )]
    NoKernel { path: PathBuf },
    /// Kernel, initrd or journal are larger than such files are.
    #[error("{file} in '{}' has {size} bytes: at most {max} are read", path.display())]
    TooLarge {
        path: PathBuf,
        /// The file in it.
        file: String,
        /// Its size, bytes.
        size: u64,
        /// Most that is read, bytes.
        max: u64,
    },
    /// The journal would take more memory than the image has bytes for it.
    #[error(
        "the journal in '{}' does not consist of extents that name each block once: let `e2fsck` replay or mend it, or \
         name the kernel with --kernel and the image with --disk",
        path.display()
    )]
    Journal { path: PathBuf },
    /// A folder is larger than such folders are.
    #[error("{folder} in '{}' cannot be searched: it is damaged or too large", path.display())]
    Folder {
        path: PathBuf,
        /// The folder in it.
        folder: String,
    },
    /// There is no memory for kernel or initrd.
    #[error("cannot keep {file} of '{}' in memory", path.display())]
    Memory {
        path: PathBuf,
        /// The file in it.
        file: String,
        #[source]
        source: io::Error,
    },
    /// Looking through it did not end.
    #[error(
        "the search of '{}' took over {} s: its file system is damaged, or the disk very slow",
        path.display(),
        TIME_MAX.as_secs()
    )]
    TookTooLong { path: PathBuf },
    /// Looking through it failed in a way that is a bug.
    #[error(
        "the search of '{}' ended unexpectedly: name the kernel with --kernel and the image with --disk",
        path.display()
    )]
    Ended { path: PathBuf },
}

/// What a guest is booted with.
#[derive(Debug)]
pub struct Bootable {
    pub kernel: BootFile,
    /// The initrd, if there is one for that kernel.
    pub initrd: Option<BootFile>,
    /// Number of the partition with the root, from 1; none if the file system is the whole image.
    pub partition: Option<u32>,
    /// What was found, in a line.
    pub description: String,
}

/// Finds kernel and initrd in `image`, an image of `size` bytes that messages call `path`.
///
/// # Errors
/// There is none, or it cannot be read.
pub fn find(path: &Path, image: File, size: u64) -> Result<Bootable, BootableDiskError> {
    let (sender, receiver) = mpsc::channel();
    let of_thread = path.to_path_buf();
    // A thread of its own, since nothing else ends a reader that goes around in circles.
    let looking = std::thread::Builder::new().name("strata-image".into()).spawn(move || {
        // Nobody listens any more after the time.
        let _ = sender.send(find_without_limit(&of_thread, image, size));
    });
    let looking = looking.map_err(|source| BootableDiskError::Read { path: path.into(), source })?;
    let found = receiver.recv_timeout(TIME_MAX).map_err(|error| match error {
        RecvTimeoutError::Timeout => BootableDiskError::TookTooLong { path: path.into() },
        RecvTimeoutError::Disconnected => BootableDiskError::Ended { path: path.into() },
    })?;
    // It has sent what it found, and ends.
    let _ = looking.join();
    found
}

/// The same for as long as it takes.
///
/// # Errors
/// There is none, or it cannot be read.
pub fn find_without_limit(path: &Path, image: File, size: u64) -> Result<Bootable, BootableDiskError> {
    let whole = Volume::new(image, size);
    let candidates = match whole.is_ext() {
        true => vec![(None, whole)],
        false => partitions::of_linux(&whole)
            .map_err(|source| BootableDiskError::PartitionTable { path: path.into(), source })?
            .into_iter()
            .filter(|partition| partition.volume.is_ext())
            .map(|partition| (Some(partition.number), partition.volume))
            .collect(),
    };
    // The last word is that of the first partition that could hold a root.
    let mut failure = None;
    for (partition, volume) in candidates {
        match find_in(path, volume) {
            Ok(found) => return Ok(bootable(path, partition, found)),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    Err(failure.unwrap_or(BootableDiskError::NotExt4 { path: path.into() }))
}

fn find_in(path: &Path, volume: Volume) -> Result<Found, BootableDiskError> {
    boot_files::find(&FileSystem::open(path, volume)?)
}

fn bootable(path: &Path, partition: Option<u32>, found: Found) -> Bootable {
    let place = match partition {
        Some(number) => format!("partition {number} of '{}'", path.display()),
        None => format!("'{}'", path.display()),
    };
    let (kernel, initrd) = (found.kernel.name().display(), found.initrd.as_ref().map(BootFile::name));
    let description = match initrd {
        Some(initrd) => format!("boots {kernel} with {} out of {place}", initrd.display()),
        None => format!(
            "boots {kernel} out of {place} without an initrd, for there is none of its release: it has to find its \
             root by itself"
        ),
    };
    Bootable { kernel: found.kernel, initrd: found.initrd, partition, description }
}

#[cfg(test)]
mod tests;
