//! Folders of VMs as somebody else finds them: this user's, and those of others, whose word counts for what is theirs.

use super::directory::{
    DirectoryError, LOCK_FILE, REGION_FILE, RUNTIME_VARIABLE, SOCKET_FILE, SYSTEM_RUNTIME, USER_PREFIX, USER_SESSIONS,
    VM_FILE, VmDescription, belongs_to, runtime_folder,
};
use super::peer::Peer;
use super::socket::ControlSocket;
use rustix::fs::{CWD, Dir, FlockOperation, Mode, OFlags, flock, fstat, openat};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use strata_jail::user::User;
use strata_recording::manifest::is_vm_name;
use strata_recording::text::terminal::foreign::Foreign;

/// How a folder is opened.
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// Largest `vm.json` that is read, bytes.
const MAX_VM_BYTES: u64 = 64 << 10;
/// Most VMs of another user that are listed.
const MAX_OF_OTHER: usize = 256;

/// Whose a VM is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This user's.
    Own,
    /// That of the user with this number, who called sudo: as good as the caller's own.
    Caller(u32),
    /// Another user's, with this number. What it says is only that user's word.
    Other(u32),
}

impl Owner {
    /// Whose what belongs to the user `uid` is.
    fn of(uid: u32) -> Self {
        let caller = || User::choose(None).ok().flatten().is_some_and(|caller| caller.uid == uid);
        match uid {
            uid if uid == geteuid().as_raw() => Self::Own,
            uid if caller() => Self::Caller(uid),
            uid => Self::Other(uid),
        }
    }

    /// The user's number, where it is not this process's.
    const fn foreign(self) -> Option<u32> {
        match self {
            Self::Own => None,
            Self::Caller(uid) | Self::Other(uid) => Some(uid),
        }
    }

    /// The user's number.
    #[must_use]
    pub fn uid(self) -> u32 {
        self.foreign().unwrap_or_else(|| geteuid().as_raw())
    }

    /// The other user's name.
    #[must_use]
    pub fn other_user(self) -> Option<Foreign<String>> {
        match self {
            Self::Own | Self::Caller(_) => None,
            Self::Other(uid) => Some(User::name_of(uid).into()),
        }
    }
}

/// A VM's folder as found by somebody else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundVm {
    /// The folder.
    pub path: Foreign<PathBuf>,
    /// What it says about the VM.
    pub vm: VmDescription,
    /// Whether the VM's process lives.
    pub alive: bool,
    /// Whose it is.
    pub owner: Owner,
}

impl FoundVm {
    /// The region's file, if there is one.
    #[must_use]
    pub fn region(&self) -> Option<Foreign<PathBuf>> {
        Some(self.path.raw().join(REGION_FILE)).filter(|path| path.is_file()).map(Foreign::from)
    }

    /// The control socket. Another user's has to be served by the process that the VM names.
    #[must_use]
    pub fn socket(&self) -> ControlSocket {
        let path = self.path.raw().join(SOCKET_FILE);
        match self.owner.foreign() {
            None => ControlSocket::of_this_user(path),
            Some(uid) => ControlSocket::of_process(path, Peer { pid: self.vm.pid, uid }),
        }
    }
}

/// A place where folders of VMs lie.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuntimeFolder {
    /// The folder.
    path: PathBuf,
    /// The user whose it has to be, and then it is no link; `None` of one that this user names.
    owner: Option<u32>,
}

impl RuntimeFolder {
    /// The one that this user names: whose it is shows when it is opened.
    pub fn named(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), owner: None }
    }

    /// The folder, opened, and whose it is; `None` where it is not the user's whose it has to be. What is read below the
    /// descriptor is that user's, whatever becomes of the name meanwhile.
    fn open(&self) -> io::Result<Option<(OwnedFd, u32)>> {
        let flags = if self.owner.is_some() { FOLDER | OFlags::NOFOLLOW } else { FOLDER };
        let folder = openat(CWD, &self.path, flags, Mode::empty())?;
        let uid = fstat(&folder)?.st_uid;
        Ok(self.owner.is_none_or(|owner| owner == uid).then_some((folder, uid)))
    }
}

/// Where VMs that concern this user lie: its own, and what root ran as this user; root's are those of all users.
///
/// # Errors
/// When there is no such place.
pub fn runtime_folders() -> Result<Vec<RuntimeFolder>, DirectoryError> {
    if std::env::var_os(RUNTIME_VARIABLE).is_some_and(|value| !value.is_empty()) {
        return Ok(vec![RuntimeFolder::named(runtime_folder()?)]);
    }
    let of_root = runtime_folders_below(Path::new(SYSTEM_RUNTIME), geteuid().as_raw());
    match runtime_folder() {
        Err(_) if !of_root.is_empty() => Ok(of_root),
        own => Ok(std::iter::once(RuntimeFolder::named(own?)).chain(of_root).collect()),
    }
}

/// The folders in `system` (`/run`) of VMs that root runs as the user `uid`, or as any user if that is root.
fn runtime_folders_below(system: &Path, uid: u32) -> Vec<RuntimeFolder> {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let owner = |text: &str| text.parse::<u32>().ok().filter(|&owner| owner == uid || uid == 0);
    let direct = entries(system).filter_map(|path| {
        let owner = name(&path).strip_prefix(USER_PREFIX).and_then(owner);
        Some(RuntimeFolder { path, owner: Some(owner?) })
    });
    let sessions = entries(&system.join(USER_SESSIONS)).filter(|_| uid == 0).filter_map(|path| {
        let owner = owner(&name(&path))?;
        Some(RuntimeFolder { path: path.join("strata"), owner: Some(owner) })
    });
    let there = |folder: &RuntimeFolder| folder.owner.is_some_and(|owner| belongs_to(&folder.path, owner));
    let mut folders: Vec<RuntimeFolder> = direct.chain(sessions).filter(there).collect();
    folders.sort();
    folders
}

/// The VMs in each of `runtimes`, as [`list`] finds them; this user's first.
///
/// # Errors
/// When one of them is there and this user's but cannot be read.
pub fn list_all(runtimes: &[RuntimeFolder]) -> Result<Vec<FoundVm>, DirectoryError> {
    let lists = runtimes.iter().map(list).collect::<Result<Vec<_>, _>>()?;
    let mut found: Vec<FoundVm> = lists.into_iter().flatten().collect();
    found.sort_by_key(|found| matches!(found.owner, Owner::Other(_)));
    Ok(found)
}

/// The VMs in `runtime`, running ones and those whose process died, by name and process. A folder that is not a VM's is
/// passed over, and one of another user that names a process of a third one.
///
/// # Errors
/// When `runtime` is there and this user's but cannot be read.
pub fn list(runtime: &RuntimeFolder) -> Result<Vec<FoundVm>, DirectoryError> {
    let failed = |source| DirectoryError::Io { path: runtime.path.clone(), source };
    let (folder, owner) = match runtime.open() {
        Ok(Some((folder, uid))) => (folder, Owner::of(uid)),
        Ok(None) => return Ok(Vec::new()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        // What another user's folder is like is not a fault of this user's.
        Err(_) if runtime.owner.is_some_and(|uid| Owner::of(uid).foreign().is_some()) => return Ok(Vec::new()),
        Err(source) => return Err(failed(source)),
    };
    let entries = match Dir::read_from(&folder) {
        Ok(entries) => entries,
        Err(_) if owner.foreign().is_some() => return Ok(Vec::new()),
        Err(errno) => return Err(failed(errno.into())),
    };
    let most = owner.foreign().map_or(usize::MAX, |_| MAX_OF_OTHER);
    let names = entries.flatten().map(|entry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned());
    let names = names.filter(|name| name != "." && name != "..").take(most);
    let found = names.filter_map(|name| look_at_entry(&folder, &name, runtime.path.join(&name), owner));
    let mut found: Vec<FoundVm> = found.filter(|found| is_believable(found, process_uid(found.vm.pid))).collect();
    found.sort_by(|left, right| (&left.vm.name, left.vm.pid).cmp(&(&right.vm.name, right.vm.pid)));
    Ok(found)
}

/// Whether `found` can be what its folder says, where the process that it names is of the user `process`: another user's
/// word counts only for that user's processes.
fn is_believable(found: &FoundVm, process: Option<u32>) -> bool {
    found.owner.foreign().is_none_or(|owner| !found.alive || process == Some(owner))
}

/// The user that process `pid` runs as.
fn process_uid(pid: u32) -> Option<u32> {
    // Who owns the folder in /proc does not say: for a process without core dumps that is root.
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    // The real user and, second, the effective one.
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().nth(1)?.parse().ok()
}

/// What the folder `name` in the open folder `runtime` of `owner` says, whose path is `path`; `None` when it is not a VM's,
/// or has just gone.
fn look_at_entry(runtime: &OwnedFd, name: &OsStr, path: PathBuf, owner: Owner) -> Option<FoundVm> {
    path.to_str()?;
    // A link could lead to a VM of somebody else.
    let folder = openat(runtime, name, FOLDER | OFlags::NOFOLLOW, Mode::empty()).ok()?;
    let is_theirs = fstat(&folder).ok()?.st_uid == owner.uid();
    is_theirs.then(|| look_at_open(&folder, path)).flatten().map(|found| FoundVm { owner, ..found })
}

/// What the folder `path`, which is this user's, says; `None` when it is not a VM's, or has just gone.
#[must_use]
pub fn look_at(path: PathBuf) -> Option<FoundVm> {
    let folder = openat(CWD, &path, FOLDER, Mode::empty()).ok()?;
    look_at_open(&folder, path)
}

/// The same of the open `folder`.
fn look_at_open(folder: &OwnedFd, path: PathBuf) -> Option<FoundVm> {
    let mut text = Vec::new();
    let read = file_in(folder, VM_FILE)?.take(MAX_VM_BYTES + 1).read_to_end(&mut text).ok()?;
    if read as u64 > MAX_VM_BYTES {
        return None;
    }
    let vm: VmDescription = serde_json::from_slice(&text).ok()?;
    if !is_vm_name(&vm.name) {
        return None;
    }
    let alive = file_in(folder, LOCK_FILE).is_some_and(|lock| is_locked(&lock));
    Some(FoundVm { path: path.into(), vm, alive, owner: Owner::Own })
}

/// The regular file `name` in `folder`, which is no link; opening a FIFO would wait for a writer.
fn file_in(folder: &OwnedFd, name: &str) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat(folder, name, flags, Mode::empty()).ok()?);
    file.metadata().ok()?.is_file().then_some(file)
}

/// Whether a process holds the lock on `file`.
fn is_locked(file: &File) -> bool {
    // A shared lock, given back at once: two who look at the same time do not take each other for the VM.
    matches!(flock(file, FlockOperation::NonBlockingLockShared), Err(Errno::WOULDBLOCK))
}

#[cfg(test)]
mod tests {
    use super::super::directory::tests::{description, runtime};
    use super::super::directory::{VmDirectory, is_private, runtime_folder_below};
    use super::*;

    fn found(owner: Owner, alive: bool) -> FoundVm {
        FoundVm { path: "/nonexistent".into(), vm: description("a"), alive, owner }
    }

    #[test]
    fn other_users_word_counts_for_processes_of_that_user_only() {
        let other = found(Owner::Other(33), true);

        assert!(is_believable(&other, Some(33)));
        assert!(!is_believable(&other, Some(0)) && !is_believable(&other, None));
        assert!(!is_believable(&found(Owner::Caller(33), true), Some(0)));
        assert!(is_believable(&found(Owner::Other(33), false), None), "a process that died");
        assert!(is_believable(&found(Owner::Own, true), None), "this user's own folder");
    }

    #[test]
    fn user_of_this_process_is_known() {
        assert_eq!(process_uid(std::process::id()), Some(geteuid().as_raw()));
        assert_eq!(process_uid(u32::MAX), None);
    }

    #[test]
    fn link_to_a_vm_is_no_vm() {
        let (folder, elsewhere) = (runtime(), runtime());
        let directory = VmDirectory::create(elsewhere.path(), &description("a")).unwrap();
        std::os::unix::fs::symlink(directory.path(), folder.path().join("a-4242")).unwrap();

        assert_eq!(list(&RuntimeFolder::named(folder.path())).unwrap(), []);
    }

    #[test]
    fn folder_that_became_a_link_or_anothers_since_it_was_found_has_no_vms() {
        let (folder, elsewhere) = (runtime(), runtime());
        let _directory = VmDirectory::create(elsewhere.path(), &description("a")).unwrap();
        let (uid, link) = (geteuid().as_raw(), folder.path().join("strata"));
        std::os::unix::fs::symlink(elsewhere.path(), &link).unwrap();
        let listed = |path: &Path, owner| list(&RuntimeFolder { path: path.into(), owner }).unwrap().len();

        assert_eq!(listed(elsewhere.path(), Some(uid)), 1);
        assert_eq!(listed(&link, None), 1, "this user's own link");
        assert_eq!(listed(elsewhere.path(), Some(uid + 1)), 0);
        assert!(matches!(list(&RuntimeFolder { path: link, owner: Some(uid) }), Err(DirectoryError::Io { .. })));
    }

    #[test]
    fn folder_that_is_no_vms_is_passed_over() {
        let runtime = runtime();
        fs::create_dir(runtime.path().join("other")).unwrap();
        fs::create_dir(runtime.path().join("half")).unwrap();
        fs::write(runtime.path().join("half/vm.json"), b"{").unwrap();

        assert_eq!(list(&RuntimeFolder::named(runtime.path())).unwrap(), []);
        assert_eq!(list(&RuntimeFolder::named(runtime.path().join("nothing"))).unwrap(), []);
    }

    #[test]
    fn vm_is_listed_alive_while_its_folder_is_held_and_is_gone_after() {
        let runtime = runtime();

        let directory = VmDirectory::create(runtime.path(), &description("a")).unwrap();
        let during = list(&RuntimeFolder::named(runtime.path())).unwrap();
        drop(directory);

        assert_eq!(during.len(), 1);
        assert!(during[0].alive && during[0].vm == description("a"));
        assert_eq!(list(&RuntimeFolder::named(runtime.path())).unwrap(), []);
    }

    #[test]
    fn folder_that_is_kept_shows_as_dead_with_its_region() {
        let runtime = runtime();
        let mut directory = VmDirectory::create(runtime.path(), &description("a")).unwrap();
        directory.create_region().unwrap();
        directory.keep();
        drop(directory);

        let found = list(&RuntimeFolder::named(runtime.path())).unwrap();

        assert!(!found[0].alive);
        assert!(found[0].region().is_some());
    }

    #[test]
    fn vms_that_root_runs_as_a_user_lie_where_user_and_root_find_them() {
        let system = runtime();
        let user = User { uid: geteuid().as_raw(), gid: rustix::process::getegid().as_raw() };
        let below = |name: String| system.path().join(name);

        let without_session = runtime_folder_below(system.path(), user).unwrap();
        let again = runtime_folder_below(system.path(), user).unwrap();
        let found = runtime_folders_below(system.path(), user.uid);
        fs::create_dir_all(below(format!("user/{}", user.uid))).unwrap();
        let in_session = runtime_folder_below(system.path(), user).unwrap();

        assert_eq!(without_session, below(format!("strata-{}", user.uid)));
        assert!(is_private(&without_session).unwrap() && again == without_session);
        assert_eq!(found, [RuntimeFolder { path: without_session, owner: Some(user.uid) }]);
        assert_eq!(in_session, below(format!("user/{}/strata", user.uid)));
    }

    #[test]
    fn folder_of_a_user_that_is_a_link_is_refused() {
        let (system, elsewhere) = (runtime(), runtime());
        let user = User { uid: geteuid().as_raw(), gid: rustix::process::getegid().as_raw() };
        let link = system.path().join(format!("strata-{}", user.uid));
        std::os::unix::fs::symlink(elsewhere.path(), &link).unwrap();

        assert!(
            matches!(runtime_folder_below(system.path(), user), Err(DirectoryError::NotPrivate(path)) if path == link)
        );
        assert_eq!(runtime_folders_below(system.path(), user.uid), []);
    }
}
