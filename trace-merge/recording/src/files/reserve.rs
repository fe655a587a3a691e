//! Room on a disk for the last `session.json` of a recording, which says how a disk filled up.

use crate::files::access::Readers;
use rustix::fs::{FallocateFlags, fallocate};
use std::io;
use std::path::Path;
use tempfile::NamedTempFile;

/// What file systems allocate at once, bytes.
const BLOCK: u64 = 4096;
/// What a last text has more than the one before, bytes: how the recording ended, and which layers ended early.
const MORE: u64 = 16 << 10;

/// Room for the last text of a file. It lies in a file of a random name beside it, which is gone in the end.
///
/// A file system that cannot set room aside is done without.
#[derive(Debug, Default)]
pub struct Reserve {
    file: Option<NamedTempFile>,
    bytes: u64,
    /// Bytes of the text that was written last.
    text: u64,
    is_released: bool,
}

/// The room that is kept after a text of `bytes`, bytes.
#[must_use]
pub(crate) const fn room_after(bytes: u64) -> u64 {
    blocks(bytes.saturating_add(bytes / 8).saturating_add(MORE))
}

/// Bytes of the disk that a file of `bytes` takes.
pub(crate) const fn blocks(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK).saturating_mul(BLOCK)
}

impl Reserve {
    /// From now on the room may be used: the text that follows is the last.
    pub const fn release(&mut self) {
        self.is_released = true;
    }

    /// Keeps room for a last text of `path` that has `bytes` more than the one that was written last: a disk may be full
    /// before that is written.
    pub fn expect(&mut self, path: &Path, bytes: u64) {
        self.keep(path, room_after(self.text.saturating_add(bytes)));
    }

    /// Replaces the file `path` by `text` in one step. Then room for another one is kept, or if it was released, used where
    /// there is no other.
    pub(crate) fn replace(&mut self, path: &Path, text: &[u8]) -> io::Result<()> {
        let readers = Readers::of(path.parent().unwrap_or(path))?;
        let written = readers.write_atomically(path, text);
        if !self.is_released {
            written?;
            self.text = text.len() as u64;
            self.keep(path, room_after(self.text));
            return Ok(());
        }
        let file = self.file.take();
        match (written, file) {
            // Its own error is of a file that nobody has heard of.
            (Err(error), Some(file)) => readers.complete(file, path, text).map_err(|_| error),
            (written, _) => written,
        }
    }

    /// Keeps `bytes` beside `path`, if there is no room for so much yet. Where there is none, it stays as it is.
    fn keep(&mut self, path: &Path, bytes: u64) {
        if bytes <= self.bytes {
            return;
        }
        let file = match self.file.take() {
            Some(file) => file,
            None => match Readers::begin(path) {
                Ok(file) => file,
                Err(_) => return,
            },
        };
        if fallocate(file.as_file(), FallocateFlags::KEEP_SIZE, 0, bytes).is_ok() {
            self.bytes = bytes;
        }
        self.file = Some(file);
    }
}

#[cfg(test)]
mod tests {
    //! Shows: In the jail, a recording is completed on a full disk, with every counted record.

    use super::*;
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
    use std::fs;
    use tempfile::TempDir;

    /// A file system of 256 KiB.
    struct SmallDisk(TempDir);

    impl SmallDisk {
        fn mount() -> Self {
            let folder = TempDir::new().unwrap();
            mount("tmpfs", folder.path(), "tmpfs", MountFlags::empty(), c"size=256k,mode=700").unwrap();
            Self(folder)
        }

        fn fill(&self) {
            let filler = fs::File::options().create(true).append(true).open(self.0.path().join("filler")).unwrap();
            while io::Write::write_all(&mut &filler, &[0; 4096]).is_ok() {}
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(self.0.path()).unwrap().flatten();
            let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            names
        }
    }

    impl Drop for SmallDisk {
        fn drop(&mut self) {
            let _ = unmount(self.0.path(), UnmountFlags::DETACH);
        }
    }

    #[test]
    fn last_text_is_written_on_a_disk_that_is_full() {
        let disk = SmallDisk::mount();
        let path = disk.0.path().join("session.json");
        let mut reserve = Reserve::default();
        reserve.replace(&path, &[b'a'; 20_000]).unwrap();
        disk.fill();

        let before = reserve.replace(&path, &[b'b'; 20_000]);
        disk.fill();
        reserve.release();
        let last = reserve.replace(&path, &[b'c'; 30_000]);

        assert!(before.is_err() && last.is_ok(), "{before:?} {last:?}");
        assert_eq!(fs::read(&path).unwrap(), [b'c'; 30_000]);
        assert_eq!(disk.names(), ["filler", "session.json"]);
    }

    #[test]
    fn last_text_has_the_room_that_it_was_expected_to_take() {
        let disk = SmallDisk::mount();
        let path = disk.0.path().join("session.json");
        let mut reserve = Reserve::default();
        reserve.replace(&path, b"before").unwrap();
        reserve.expect(&path, 100_000);
        disk.fill();

        reserve.release();
        let last = reserve.replace(&path, &[b'c'; 100_000]);

        assert!(last.is_ok(), "{last:?}");
        assert_eq!(fs::read(&path).unwrap(), [b'c'; 100_000]);
        assert_eq!(disk.names(), ["filler", "session.json"]);
    }

    #[test]
    fn text_that_is_larger_than_its_room_leaves_the_one_before() {
        let disk = SmallDisk::mount();
        let path = disk.0.path().join("session.json");
        let mut reserve = Reserve::default();
        reserve.replace(&path, b"before").unwrap();
        disk.fill();

        reserve.release();
        let last = reserve.replace(&path, &[b'c'; 100_000]);

        assert_eq!(last.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read(&path).unwrap(), b"before");
        assert_eq!(disk.names(), ["filler", "session.json"]);
    }

    #[test]
    fn room_that_is_not_needed_is_gone_in_the_end() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("session.json");
        let mut reserve = Reserve::default();
        reserve.replace(&path, b"before").unwrap();

        reserve.release();
        reserve.replace(&path, b"last").unwrap();

        assert_eq!(fs::read(&path).unwrap(), b"last");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
