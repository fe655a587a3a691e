//! The folder that a recording goes into: the user's own, new or empty, and nobody else's to write.

use crate::files::access::Readers;
use crate::files::removed_on_signal;
use crate::files::removed_on_signal::RemovedOnSignal;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, fchmod, fstat, open, openat, unlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The file that is made to see whether a folder can be written.
const TRIAL: &str = ".strata-trial";

/// Why a folder cannot take a recording.
#[derive(Debug, Error)]
pub enum TraceFolderError {
    /// Something is there already.
    #[error("'{}' exists and is not an empty folder: give a new one, or remove it", .0.display())]
    Exists(PathBuf),
    /// An empty folder is there, of another user: whoever owns it may put links in place of the recording's files.
    #[error("'{}' belongs to another user (uid {owner}): give a new folder, or one of your own", path.display())]
    NotYours {
        /// The folder.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
    },
    /// Something else is there already.
    #[error("'{}' is where snapshots go, and no folder: remove it", .0.display())]
    NoFolder(PathBuf),
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

/// A folder for a recording. Until [`keep`](Self::keep) is called, dropping it leaves things as they were.
#[derive(Debug)]
pub struct TraceFolder {
    path: PathBuf,
    /// The mode of a folder that was there.
    before: Option<Mode>,
    keep: bool,
}

/// Folders of snapshots that are tried for another one.
const MOST_SNAPSHOTS: u32 = 1000;

/// The folder beside the recording `trace` that its snapshots go into: called by its name and `-snapshots`. `None` for a
/// path without a name.
#[must_use]
pub fn snapshots_of(trace: &Path) -> Option<PathBuf> {
    let mut name = trace.file_name()?.to_owned();
    name.push("-snapshots");
    Some(trace.with_file_name(name))
}

/// A folder for a snapshot of the recording `trace`, called by `what` and a number, that is not there; `None` when a
/// thousand are.
#[must_use]
pub fn free_snapshot(trace: &Path, what: &str) -> Option<PathBuf> {
    let snapshots = snapshots_of(trace)?;
    let folder = |number| snapshots.join(format!("{what}-{number}"));
    (1..=MOST_SNAPSHOTS).map(folder).find(|folder| folder.symlink_metadata().is_err())
}

/// Makes the folder `path`, for its owner alone, if it is not there; says whether it did.
fn make(path: &Path) -> Result<bool, TraceFolderError> {
    match Readers::Owner.create_folder(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(source) => Err(TraceFolderError::Create { path: path.into(), source }),
    }
}

/// Opens the folder `path` of this user; `other` is the error for what is not a folder. A link is not followed.
fn open_own(path: &Path, other: fn(PathBuf) -> TraceFolderError) -> Result<OwnedFd, TraceFolderError> {
    let descriptor = match open(path, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
        Ok(descriptor) => descriptor,
        Err(Errno::NOTDIR | Errno::LOOP) => return Err(other(path.into())),
        Err(errno) => return Err(not_writable(path)(errno)),
    };
    check_owner(path, fstat(&descriptor).map_err(not_writable(path))?.st_uid, geteuid().as_raw())?;
    Ok(descriptor)
}

fn not_writable(path: &Path) -> impl Fn(Errno) -> TraceFolderError {
    move |errno| TraceFolderError::NotWritable { path: path.into(), source: errno.into() }
}

/// Closes `folder`, which is at `path`, to all but `readers`, and sees whether it can be written.
fn close_to(folder: &OwnedFd, path: &Path, readers: Readers) -> Result<(), TraceFolderError> {
    fchmod(folder, readers.folder_mode()).and_then(|()| try_to_write(folder)).map_err(not_writable(path))
}

impl TraceFolder {
    /// Makes the folder, or takes an empty one of this user that is there, and closes it to all but `readers`. A link
    /// is not followed.
    ///
    /// # Errors
    /// When something is there already, or the folder cannot be made or written.
    pub fn create(path: &Path, readers: Readers) -> Result<Self, TraceFolderError> {
        let created = make(path)?;
        // From here on dropping it removes a folder that was made.
        let mut folder = Self { path: path.into(), before: None, keep: !created };
        let descriptor = open_own(path, TraceFolderError::Exists)?;
        if !is_empty(&descriptor).map_err(not_writable(path))? {
            return Err(TraceFolderError::Exists(path.into()));
        }
        if !created {
            folder.before = Some(Mode::from_raw_mode(fstat(&descriptor).map_err(not_writable(path))?.st_mode));
        }
        folder.keep = false;
        close_to(&descriptor, path, readers)?;
        Ok(folder)
    }

    /// Until it is dropped, a signal that ends the process leaves things as they were, too.
    ///
    /// # Errors
    /// When the signals cannot be taken.
    pub fn removed_on_signal(&self) -> io::Result<RemovedOnSignal> {
        match self.before {
            Some(mode) => RemovedOnSignal::emptying(&self.path, mode),
            None => RemovedOnSignal::new(&self.path),
        }
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

/// The folder that snapshots of a recording, and recordings of further sessions, go into ([`snapshots_of`]). Dropping it
/// removes it if it was made and nothing is in it.
#[derive(Debug)]
pub struct SnapshotFolder {
    path: PathBuf,
    created: bool,
}

impl SnapshotFolder {
    /// Makes the folder for the recording `trace`, or takes one of this user that is there, and closes it to all but
    /// `readers`. A link is not followed.
    ///
    /// # Errors
    /// When something else is there, or the folder cannot be made or written.
    pub fn create(trace: &Path, readers: Readers) -> Result<Self, TraceFolderError> {
        let path = snapshots_of(trace).ok_or_else(|| TraceFolderError::Exists(trace.into()))?;
        let created = make(&path)?;
        // From here on dropping it removes a folder that was made.
        let folder = Self { path, created };
        let descriptor = open_own(&folder.path, TraceFolderError::NoFolder)?;
        close_to(&descriptor, &folder.path, readers)?;
        Ok(folder)
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SnapshotFolder {
    fn drop(&mut self) {
        if self.created {
            // Refused where there are snapshots.
            let _ = fs::remove_dir(&self.path);
        }
    }
}

fn check_owner(path: &Path, owner: u32, user: u32) -> Result<(), TraceFolderError> {
    if owner == user { Ok(()) } else { Err(TraceFolderError::NotYours { path: path.into(), owner }) }
}

fn is_empty(folder: &OwnedFd) -> Result<bool, Errno> {
    for entry in Dir::read_from(folder)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Makes a file in `folder` and removes it again: better now than when there is something to record.
fn try_to_write(folder: &OwnedFd) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(folder, TRIAL, flags, Mode::RUSR | Mode::WUSR)?;
    unlinkat(folder, TRIAL, AtFlags::empty())
}

impl Drop for TraceFolder {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        // What cannot be removed is harmless: files of a recording that holds nothing.
        match self.before {
            Some(mode) => removed_on_signal::empty(&self.path, mode),
            None => drop(fs::remove_dir_all(&self.path)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use tempfile::TempDir;

    #[test]
    fn free_snapshot_is_the_first_that_is_not_there() {
        let dir = TempDir::new().unwrap();
        let trace = dir.path().join("trace");
        fs::create_dir_all(dir.path().join("trace-snapshots/trigger-1")).unwrap();

        assert_eq!(free_snapshot(&trace, "trigger"), Some(dir.path().join("trace-snapshots/trigger-2")));
        assert_eq!(free_snapshot(Path::new("/"), "trigger"), None);
    }

    #[test]
    fn folder_of_snapshots_stays_if_there_are_any_or_it_was_there() {
        let dir = TempDir::new().unwrap();
        let path = |name: &str| dir.path().join(name);
        let create = |trace: &str| SnapshotFolder::create(&path(trace), Readers::Owner).unwrap();
        fs::create_dir(path("known-snapshots")).unwrap();

        drop((create("empty"), create("known")));
        let used = create("used");
        fs::create_dir(used.path().join("snapshot")).unwrap();
        drop(used);

        let stays = ["empty", "known", "used"].map(|trace| snapshots_of(&path(trace)).unwrap().exists());
        assert_eq!(stays, [false, true, true]);
    }

    #[test]
    fn folder_of_snapshots_is_the_users_and_closed_to_others() {
        let dir = TempDir::new().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::create_dir(path("open-snapshots")).unwrap();
        fs::set_permissions(path("open-snapshots"), fs::Permissions::from_mode(0o777)).unwrap();
        symlink(path("open-snapshots"), path("link-snapshots")).unwrap();
        fs::write(path("file-snapshots"), []).unwrap();

        let open = SnapshotFolder::create(&path("open"), Readers::Group).unwrap();
        let refused = ["link", "file"].map(|trace| SnapshotFolder::create(&path(trace), Readers::Owner).unwrap_err());

        assert_eq!(mode(open.path()), 0o750);
        assert!(refused.iter().all(|error| error.to_string().contains("where snapshots go")), "{refused:?}");
    }

    #[test]
    fn folder_that_is_not_kept_leaves_nothing_behind() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("trace");

        let folder = TraceFolder::create(&path, Readers::Owner).unwrap();
        fs::write(folder.path().join("half"), b"written").unwrap();
        drop(folder);

        assert!(!path.exists());
    }

    #[test]
    fn empty_folder_of_the_user_is_emptied_but_stays_as_it_was() {
        let dir = TempDir::new().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();

        let folder = TraceFolder::create(dir.path(), Readers::Owner).unwrap();
        fs::create_dir(folder.path().join("half")).unwrap();
        let between = mode(dir.path());
        drop(folder);

        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!((between, mode(dir.path())), (0o700, 0o755));
    }

    #[test]
    fn kept_folder_stays() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("trace");

        TraceFolder::create(&path, Readers::Owner).unwrap().keep();

        assert!(path.is_dir());
    }

    #[test]
    fn folder_with_something_in_it_is_refused() {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("mine"), []).unwrap();

        let error = TraceFolder::create(dir.path(), Readers::Owner).unwrap_err();

        assert!(error.to_string().contains("not an empty folder"), "{error}");
        assert!(dir.path().join("mine").exists());
    }

    #[test]
    fn folder_without_a_parent_is_refused() {
        let dir = TempDir::new().unwrap();

        let error = TraceFolder::create(&dir.path().join("no/such"), Readers::Owner).unwrap_err();

        assert!(error.to_string().contains("check that its parent exists"), "{error}");
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn folder_is_its_owners_alone_unless_others_are_named() {
        let dir = TempDir::new().unwrap();

        let modes = Readers::ALL.map(|readers| {
            let path = dir.path().join(readers.name());
            TraceFolder::create(&path, readers).unwrap().keep();
            mode(&path)
        });

        assert_eq!(modes, [0o700, 0o750, 0o755]);
    }

    #[test]
    fn folder_that_was_there_and_open_to_others_is_closed() {
        let dir = TempDir::new().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();

        let _folder = TraceFolder::create(dir.path(), Readers::Owner).unwrap();

        assert_eq!(mode(dir.path()), 0o700);
    }

    #[test]
    fn link_to_an_empty_folder_is_refused_and_left() {
        let dir = TempDir::new().unwrap();
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        fs::create_dir(&target).unwrap();
        fs::set_permissions(&target, fs::Permissions::from_mode(0o755)).unwrap();
        symlink(&target, &link).unwrap();

        let error = TraceFolder::create(&link, Readers::Owner).unwrap_err();

        assert!(matches!(error, TraceFolderError::Exists(_)), "{error}");
        assert_eq!(mode(&target), 0o755);
    }

    #[test]
    fn folder_of_another_user_is_refused_by_name() {
        let error = check_owner(Path::new("trace"), 1000, 0).unwrap_err().to_string();

        assert!(error.contains("'trace' belongs to another user (uid 1000)"), "{error}");
        assert!(check_owner(Path::new("trace"), 1000, 1000).is_ok());
    }
}
