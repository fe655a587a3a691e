//! Locks of disk images, and who holds one that could not be had.
//!
//! Whoever may read a file may lock it: the kernel's locks are agreements, not rights. So a lock that is not to be had
//! is reported with the process that holds it; `lock=off` does without it.

use rustix::fs::{fstat, major, minor};
use std::fmt;
use std::fs::{self, File, TryLockError};

/// The kernel's list of locks.
const LOCKS: &str = "/proc/locks";

/// Who holds the lock of an image, as far as the kernel tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockHolder {
    /// This process: the image is given twice.
    Ourselves,
    /// Another process.
    Process {
        pid: u32,
        /// Its name; empty where it cannot be read.
        name: String,
    },
    /// The kernel does not say: a process of another pid namespace, or a file system that numbers files otherwise.
    Unknown,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ourselves => f.write_str("is given twice: attach it once, or read-only each time"),
            Self::Process { pid, name } if name.is_empty() => write!(f, "is locked by process {pid}"),
            Self::Process { pid, name } => write!(f, "is locked by process {pid} ({})", name.escape_debug()),
            Self::Unknown => f.write_str("is locked by another program"),
        }?;
        match self {
            Self::Ourselves => Ok(()),
            _ => f.write_str(
                ": end that program, attach the image read-only everywhere, or, if nothing else writes it, add ',lock=off'",
            ),
        }
    }
}

/// Locks `file` until it is closed, together with others that share it or alone.
///
/// A file system without locks is not a reason to refuse: the lock is a courtesy there.
///
/// # Errors
/// Who holds a lock that this one does not go with.
pub fn lock(file: &File, is_shared: bool) -> Result<(), LockHolder> {
    match if is_shared { file.try_lock_shared() } else { file.try_lock() } {
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(holder(file)),
    }
}

fn holder(file: &File) -> LockHolder {
    let Ok(stat) = fstat(file) else { return LockHolder::Unknown };
    let locks = fs::read_to_string(LOCKS).unwrap_or_default();
    match find_holder(&locks, (major(stat.st_dev), minor(stat.st_dev)), stat.st_ino) {
        Some(pid) if pid == std::process::id() => LockHolder::Ourselves,
        Some(pid) => {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            LockHolder::Process { pid, name: name.trim_end().into() }
        }
        None => LockHolder::Unknown,
    }
}

/// The process that holds the lock of file `inode` on `device`, out of lines such as
/// `7: FLOCK  ADVISORY  WRITE 4242 fe:00:131090 0 EOF` (proc_locks(5)): device numbers in hexadecimal, the file's in
/// decimal. A process that only waits has `->` behind the number of the line, and one of another pid namespace is 0.
fn find_holder(locks: &str, device: (u32, u32), inode: u64) -> Option<u32> {
    let file = format!("{:02x}:{:02x}:{inode}", device.0, device.1);
    let mut holders = locks.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let is_held = words.next() == Some("FLOCK");
        let (pid, locked) = (words.nth(2)?, words.next()?);
        (is_held && locked == file).then(|| pid.parse::<u32>().ok()).flatten()
    });
    holders.find(|pid| *pid > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "1: POSIX  ADVISORY  WRITE 11 fe:00:131090 0 EOF\n\
                        2: FLOCK  ADVISORY  WRITE 12 fe:00:131091 0 EOF\n\
                        3: FLOCK  ADVISORY  READ  13 fe:00:131090 0 EOF\n\
                        3: -> FLOCK  ADVISORY  WRITE 14 fe:00:131092 0 EOF\n\
                        4: FLOCK  ADVISORY  WRITE 0 fe:00:131093 0 EOF\n\
                        5: FLOCK\n";

    #[test]
    fn holder_is_found_by_device_and_file() {
        assert_eq!(find_holder(TEXT, (0xfe, 0), 131_090), Some(13));
        assert_eq!(find_holder(TEXT, (0xfe, 1), 131_090), None);
    }

    #[test]
    fn who_waits_or_is_out_of_sight_holds_nothing() {
        assert_eq!(find_holder(TEXT, (0xfe, 0), 131_092), None);
        assert_eq!(find_holder(TEXT, (0xfe, 0), 131_093), None);
    }

    #[test]
    fn lock_that_this_process_holds_is_reported_as_its_own() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || File::open(file.path()).unwrap();
        let (first, second) = (open(), open());
        lock(&first, true).unwrap();

        let (shared, alone) = (lock(&second, true), lock(&open(), false));

        assert_eq!((shared, alone), (Ok(()), Err(LockHolder::Ourselves)));
    }

    #[test]
    fn message_names_the_process_and_the_way_out() {
        let holder = LockHolder::Process { pid: 7, name: "evil\u{1b}[2J".into() };

        let text = holder.to_string();

        assert!(text.starts_with("is locked by process 7 (evil\\u{1b}[2J): end that program"), "{text}");
        assert!(text.ends_with("',lock=off'"), "{text}");
    }
}
