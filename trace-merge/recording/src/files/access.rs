//! Who may read a recording. It is private unless its user says otherwise: it holds names, paths and arguments of a whole
//! machine.
//!
//! The folder of a recording says it: whoever may list that folder may read everything in it. So the permissions of every
//! folder and file follow from it, and nobody but its owner writes.

use rustix::fs::{Mode, OFlags, fchmod, open};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use tempfile::{Builder, NamedTempFile};

/// Beginning of the names of files that are not complete yet.
const TEMPORARY_PREFIX: &str = ".strata-";
/// Permissions of a folder that is its owner's alone.
const PRIVATE_FOLDER: u32 = 0o700;
/// Permissions of a file that is its owner's alone.
const PRIVATE_FILE: u32 = 0o600;

/// Who may read a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Readers {
    /// Its owner.
    #[default]
    Owner,
    /// Its owner and the folder's group.
    Group,
    /// Every user of the host.
    All,
}

/// A name that is none of [`Readers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write owner, group or all")]
pub struct UnknownReaders;

impl Readers {
    /// All of them, the fewest readers first.
    pub const ALL: [Self; 3] = [Self::Owner, Self::Group, Self::All];

    /// The name, as on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Group => "group",
            Self::All => "all",
        }
    }

    /// Permissions of a folder that these may read.
    pub(crate) const fn folder_mode(self) -> Mode {
        match self {
            Self::Owner => Mode::RWXU,
            Self::Group => Mode::RWXU.union(Mode::RGRP).union(Mode::XGRP),
            Self::All => Mode::RWXU.union(Mode::RGRP).union(Mode::XGRP).union(Mode::ROTH).union(Mode::XOTH),
        }
    }

    /// Those who may list the folder `dir`.
    ///
    /// # Errors
    /// When it cannot be looked at.
    pub fn of(dir: &Path) -> io::Result<Self> {
        Ok(match fs::metadata(dir)?.mode() {
            mode if mode & 0o004 != 0 => Self::All,
            mode if mode & 0o040 != 0 => Self::Group,
            _ => Self::Owner,
        })
    }

    const fn file_mode(self) -> u32 {
        self.folder_mode().bits() & 0o666
    }

    /// Makes the folder `path`, which must not exist.
    ///
    /// # Errors
    /// When it exists, a link included, or cannot be made.
    pub fn create_folder(self, path: &Path) -> io::Result<()> {
        DirBuilder::new().mode(PRIVATE_FOLDER).create(path)?;
        match self {
            Self::Owner => Ok(()),
            // Set again: the process's umask took its part of the request. Of the open folder, since a recorder may
            // not change permissions by path.
            _ => {
                let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                Ok(open(path, flags, Mode::empty()).and_then(|folder| fchmod(folder, self.folder_mode()))?)
            }
        }
    }

    /// Those who may list the folder `dir`, which is made for its owner, with what is above it, if it is not there.
    ///
    /// # Errors
    /// When it cannot be made or looked at.
    pub fn of_made(dir: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(PRIVATE_FOLDER).create(dir)?;
        Self::of(dir)
    }

    /// Makes the folder `path` below `dir` and those above it, as far as they are not there; returns where it lies.
    ///
    /// # Errors
    /// When one of them cannot be made.
    pub fn create_folders(self, dir: &Path, path: &Path) -> io::Result<PathBuf> {
        let mut folder = dir.to_path_buf();
        for part in path.components() {
            folder.push(part);
            match self.create_folder(&folder) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        Ok(folder)
    }

    /// Makes the file `path`, which must not exist, for writing.
    ///
    /// # Errors
    /// When it exists, a link included, or cannot be made.
    pub fn create_file(self, path: &Path) -> io::Result<File> {
        let file = OpenOptions::new().write(true).create_new(true).mode(PRIVATE_FILE).open(path)?;
        self.open_up(&file)?;
        Ok(file)
    }

    /// Writes a file of a random name beside `path` and renames it to `path`: no reader ever sees half of it, and a link
    /// that somebody laid there is replaced, not followed.
    ///
    /// # Errors
    /// When it cannot be written; then nothing is left behind.
    pub fn write_atomically(self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.complete(Self::begin(path)?, path, bytes)
    }

    /// Makes an empty file of a random name beside `path`, for its owner alone.
    pub(crate) fn begin(path: &Path) -> io::Result<NamedTempFile> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
        Builder::new().prefix(TEMPORARY_PREFIX).tempfile_in(folder)
    }

    /// Writes `bytes` into `file`, which was [begun](Self::begin) beside `path` and takes no more than them then, and renames
    /// it to `path`.
    pub(crate) fn complete(self, mut file: NamedTempFile, path: &Path, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)?;
        file.as_file().set_len(bytes.len() as u64)?;
        self.open_up(file.as_file())?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    }

    /// Lets these read `file`, which was made for its owner alone.
    fn open_up(self, file: &File) -> io::Result<()> {
        match self {
            Self::Owner => Ok(()),
            _ => file.set_permissions(Permissions::from_mode(self.file_mode())),
        }
    }
}

/// Appends `line` to the file `path`, which is made if it is not there; a part of it does not stay.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn append_line(path: &Path, line: &[u8]) -> io::Result<()> {
    let mut file = match open_to_append(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Readers::of(path.parent().unwrap_or(path))?.create_file(path)
        }
        file => file,
    }?;
    let length = file.metadata()?.len();
    file.write_all(line).inspect_err(|_| drop(file.set_len(length)))
}

/// Opens the file `path`, which is there, to append to it. A link that somebody laid there is not followed.
pub(crate) fn open_to_append(path: &Path) -> io::Result<File> {
    let flags = i32::from_ne_bytes(OFlags::NOFOLLOW.bits().to_ne_bytes());
    OpenOptions::new().append(true).custom_flags(flags).open(path)
}

impl FromStr for Readers {
    type Err = UnknownReaders;

    fn from_str(name: &str) -> Result<Self, UnknownReaders> {
        Self::ALL.into_iter().find(|readers| readers.name() == name).ok_or(UnknownReaders)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn what_is_made_is_for_the_readers_and_nobody_writes_but_its_owner() {
        let made = Readers::ALL.map(|readers| {
            let dir = TempDir::new().unwrap();
            let path = |name: &str| dir.path().join(name);
            readers.create_folder(&path("folder")).unwrap();
            readers.create_file(&path("stream")).unwrap();
            readers.write_atomically(&path("text"), b"whole").unwrap();
            (mode(&path("folder")), mode(&path("stream")), mode(&path("text")))
        });

        assert_eq!(made, [(0o700, 0o600, 0o600), (0o750, 0o640, 0o640), (0o755, 0o644, 0o644)]);
    }

    #[test]
    fn readers_are_those_who_may_list_the_folder() {
        let dir = TempDir::new().unwrap();

        let of = [0o700, 0o710, 0o750, 0o755].map(|mode| {
            fs::set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
            Readers::of(dir.path()).unwrap()
        });

        assert_eq!(of, [Readers::Owner, Readers::Owner, Readers::Group, Readers::All]);
    }

    #[test]
    fn links_of_somebody_else_are_not_followed() {
        let dir = TempDir::new().unwrap();
        let (victim, link) = (dir.path().join("victim"), dir.path().join("link"));
        fs::write(&victim, b"precious").unwrap();
        symlink(&victim, &link).unwrap();

        let file = Readers::Owner.create_file(&link);
        let folder = Readers::Owner.create_folder(&link);
        Readers::Owner.write_atomically(&link, b"trace").unwrap();

        assert!(file.is_err() && folder.is_err());
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        assert_eq!(fs::read(&link).unwrap(), b"trace");
        assert!(!link.symlink_metadata().unwrap().is_symlink());
    }

    #[test]
    fn file_that_cannot_be_put_in_its_place_leaves_nothing() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("taken");
        fs::create_dir(&path).unwrap();

        assert!(Readers::Owner.write_atomically(&path, b"text").is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn names_are_read_back() {
        assert_eq!(Readers::ALL.map(|readers| readers.name().parse()), Readers::ALL.map(Ok));
        assert_eq!("world".parse::<Readers>(), Err(UnknownReaders));
    }
}
