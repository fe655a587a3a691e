//! What fails beside the attacks.
#![allow(unsafe_code)] // Mounts and signals.

use clap::ValueEnum;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the recorder stands still.
pub const STALL: Duration = Duration::from_secs(10);
/// The same in short rounds: long enough for full rings.
pub const SHORT_STALL: Duration = Duration::from_secs(2);

/// Something that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fault {
    /// Nothing.
    None,
    /// The disk of the recording is full.
    DiskFull,
    /// The file system in memory of the region is full.
    MemoryFull,
    /// The recorder may open few files.
    Descriptors,
    /// The recorder stands still for a time.
    Stall,
    /// The recording has to keep within a size.
    MaxSize,
    /// The recorder is killed.
    Kill,
}

impl Fault {
    /// All, in the order of the rounds.
    pub const ALL: [Self; 7] =
        [Self::None, Self::DiskFull, Self::MemoryFull, Self::Descriptors, Self::Stall, Self::MaxSize, Self::Kill];

    /// In words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::None => "nothing",
            Self::DiskFull => "the recording's disk is full",
            Self::MemoryFull => "the region's file system is full",
            Self::Descriptors => "few open files",
            Self::Stall => "the recorder stands still",
            Self::MaxSize => "`--max-size`",
            Self::Kill => "`kill -9` of the recorder, then `strata recover`",
        }
    }

    /// Whether it takes a file system of its own.
    #[must_use]
    pub const fn needs_mounts(self) -> bool {
        matches!(self, Self::DiskFull | Self::MemoryFull)
    }
}

/// Gives this process mounts of its own, which end with it; says whether it may have them.
#[must_use]
pub fn own_mounts() -> bool {
    // SAFETY: changes what this process sees as mounted.
    let apart = unsafe { libc::unshare(libc::CLONE_NEWNS) } == 0;
    let flags = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: both texts end with NUL; the other pointers may be null with these flags.
    apart && unsafe { libc::mount(c"none".as_ptr(), c"/".as_ptr(), std::ptr::null(), flags, std::ptr::null()) } == 0
}

/// A file system in memory; unmounted when dropped.
#[derive(Debug)]
pub struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    /// One of `size` bytes at the new folder `path`.
    ///
    /// # Errors
    /// When it cannot be mounted.
    pub fn mount(path: &Path, size: u64) -> anyhow::Result<Self> {
        fs::create_dir(path)?;
        let target = CString::new(path.as_os_str().as_bytes())?;
        let options = CString::new(format!("size={size},mode=0700"))?;
        let kind = c"tmpfs".as_ptr();
        // SAFETY: all texts end with NUL and live during the call.
        let mounted = unsafe { libc::mount(kind, target.as_ptr(), kind, 0, options.as_ptr().cast()) };
        anyhow::ensure!(mounted == 0, "cannot mount {}: {}", path.display(), std::io::Error::last_os_error());
        Ok(Self { path: path.into() })
    }

    /// Leaves no byte of it.
    ///
    /// # Errors
    /// When the file that fills it cannot be made.
    pub fn fill(&self) -> anyhow::Result<()> {
        let mut file = File::create(self.filler())?;
        for size in [1 << 20, 4096] {
            let piece = vec![0; size];
            while file.write_all(&piece).is_ok() {}
        }
        Ok(())
    }

    /// Gives back what [`fill`](Self::fill) took.
    pub fn make_room(&self) {
        let _ = fs::remove_file(self.filler());
    }

    fn filler(&self) -> PathBuf {
        self.path.join("filler")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if let Ok(target) = CString::new(self.path.as_os_str().as_bytes()) {
            // SAFETY: the text ends with NUL. What is still open there is closed with its process.
            unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
        }
    }
}

/// Sends `signal` to process `pid`, which this process began and has not waited for.
pub fn send(pid: u32, signal: libc::c_int) {
    // SAFETY: the process is this one's child: the id is still its.
    unsafe { libc::kill(pid.cast_signed(), signal) };
}
