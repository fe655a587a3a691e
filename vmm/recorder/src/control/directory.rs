//! The folder of a running VM: `RUNTIME/NAME-PID`, readable by its user only.
//!
//! | file | what |
//! |---|---|
//! | `lock` | locked as long as the VM's process lives, however that ends |
//! | `vm.json` | the VM: name, process, when it began ([`VmDescription`]) |
//! | `region` | the trace region, mapped by the VM's process and shared with the guest |
//! | `monitor` | the rings of the VMM layer |
//! | `host-history` | what a flight recorder keeps of the host's kernel |
//! | `session.json` | what is known of the recording: clock, host, vCPUs |
//! | `session.clocks` | what the host's clocks showed |
//! | `control` | the socket |
//!
//! `RUNTIME` is `/run/strata` for root, else `$XDG_RUNTIME_DIR/strata`, or what `$STRATA_RUNTIME_DIR` says. For a user whom
//! root runs a VM as it is `/run/user/UID/strata`, or `/run/strata-UID` where the former is missing. It should
//! lie in memory (tmpfs), with the region's size reserved. The folder goes with the VM, unless the VM's process died:
//! then it stays, and `strata recover` makes a trace of the region.

use super::peer::Peer;
use super::protocol::{Mode, Status, TraceStatus};
use super::socket::ControlSocket;
use rustix::fs::{CWD, Dir, FlockOperation, Mode as FileMode, OFlags, flock, fstat, openat};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use shared_ring::layout::Geometry;
use shared_ring::region::Rings;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, lchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use strata_jail::user::User;
use strata_recording::manifest::{Attached, Started, is_vm_name};
use strata_recording::text::terminal::foreign::Foreign;
use thiserror::Error;

/// Overrides where the folders of VMs lie.
pub const RUNTIME_VARIABLE: &str = "STRATA_RUNTIME_DIR";
/// Name of the region's file in a VM's folder.
pub const REGION_FILE: &str = "region";
/// Name of the file of the rings of the VMM layer in a VM's folder.
pub const VMM_RINGS_FILE: &str = "monitor";
/// Name of the file in a VM's folder of what a flight recorder keeps of the host's kernel.
pub const HOST_HISTORY_FILE: &str = "host-history";
/// Name of the control socket in a VM's folder.
pub const SOCKET_FILE: &str = "control";
/// Where the system keeps what goes with a boot.
const SYSTEM_RUNTIME: &str = "/run";
/// In it: a folder for each user who is logged in.
const USER_SESSIONS: &str = "user";
/// In it: what begins the name of the folder of a user who is not, before the user's number.
const USER_PREFIX: &str = "strata-";
/// How a folder is opened.
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const LOCK_FILE: &str = "lock";
const VM_FILE: &str = "vm.json";
/// Largest `vm.json` that is read, bytes.
const MAX_VM_BYTES: u64 = 64 << 10;
/// Most VMs of another user that are listed.
const MAX_OF_OTHER: usize = 256;
/// Folders of the same VM name and process id that may lie about from earlier.
const MAX_SAME_NAME: u32 = 100;

/// Why there is no folder for a VM.
#[derive(Debug, Error)]
pub enum DirectoryError {
    /// Nothing says where it could be.
    #[error(
        "no place for the files of running VMs: set XDG_RUNTIME_DIR, or {RUNTIME_VARIABLE} to a private folder in memory"
    )]
    NoRuntime,
    /// The folder above it belongs to somebody else, or others may enter it.
    #[error(
        "'{}' is not private: it must belong to you and be closed to others (chmod 700), or set {RUNTIME_VARIABLE} to another folder",
        .0.display()
    )]
    NotPrivate(PathBuf),
    /// A file or folder cannot be made or read.
    #[error("cannot use '{}': check its permissions and the space there, or set {RUNTIME_VARIABLE} to another folder", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
}

/// A VM and the process that runs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmDescription {
    /// Name of the VM.
    pub name: String,
    /// Process that runs it.
    pub pid: u32,
    /// When it began.
    pub started: Started,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// RAM, bytes; 0 where it is not known.
    pub memory: u64,
    /// Where its recording goes; `None` when it is not traced.
    pub trace: Option<Foreign<PathBuf>>,
    /// The rings of the VMM layer: one for each vCPU and one more. `None` when it is not traced.
    #[serde(rename = "monitor")]
    pub vmm_rings: Option<VmmRings>,
    /// The process that runs the VM, where that is not `pid`: `pid` only records it from outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached: Option<Attached>,
}

impl VmDescription {
    /// The VM `name`, which this process runs from now on: not traced, with as much memory as is not known.
    #[must_use]
    pub fn of_this_process(name: impl Into<String>, vcpus: u32) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            name: name.into(),
            pid: std::process::id(),
            started: Started::at(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)),
            vcpus,
            memory: 0,
            trace: None,
            vmm_rings: None,
            attached: None,
        }
    }

    /// What `strata ctl VM status` says of it when it has run for `uptime`, with what its recorder says of its recording.
    #[must_use]
    pub fn status(&self, uptime: Duration, trace: Option<TraceStatus>) -> Status {
        let Self { name, pid, vcpus, memory, attached, .. } = self.clone();
        let name = name.into();
        Status { name, pid, uptime_s: uptime.as_secs(), vcpus, memory, attached, trace, ..Status::default() }
    }
}

/// Geometry and mode of the rings of the VMM layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmmRings {
    /// Bytes of a sub-buffer.
    pub sub_buffer_size: u64,
    /// Sub-buffers of each ring.
    pub sub_buffers: u32,
    /// What happens when a ring is full.
    pub mode: Mode,
}

impl From<Rings> for VmmRings {
    fn from(rings: Rings) -> Self {
        let Rings { geometry, mode } = rings;
        Self { sub_buffer_size: geometry.sub_buffer_size(), sub_buffers: geometry.sub_buffers(), mode: mode.into() }
    }
}

impl VmmRings {
    /// The geometry and mode; `None` when no ring can have them.
    #[must_use]
    pub fn rings(self) -> Option<Rings> {
        let geometry = Geometry::new(self.sub_buffer_size, self.sub_buffers).ok()?;
        Some(Rings { geometry, mode: self.mode.into() })
    }
}

/// The folder of a VM that this process runs. Dropping it removes it, unless it is to stay or this thread
/// panics.
#[derive(Debug)]
pub struct VmDirectory {
    path: PathBuf,
    /// The lock shows other processes that the VM lives.
    _lock: File,
    keep: bool,
}

impl VmDirectory {
    /// Makes the folder of `vm` in `runtime` (see [`runtime_folder`]).
    ///
    /// # Errors
    /// When `runtime` is not private or not writable.
    pub fn create(runtime: &Path, vm: &VmDescription) -> Result<Self, DirectoryError> {
        make_private(runtime)?;
        let name = format!("{}-{}", vm.name, vm.pid);
        let numbered = (2..=MAX_SAME_NAME).map(|number| format!("{name}-{number}"));
        let mut candidates = std::iter::once(name.clone()).chain(numbered).map(|name| runtime.join(name));
        let path = loop {
            let Some(path) = candidates.next() else { return Err(DirectoryError::NotPrivate(runtime.into())) };
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => break path,
                // What a process that died left behind under the same id is still worth recovering.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(DirectoryError::Io { path, source }),
            }
        };
        let lock_path = path.join(LOCK_FILE);
        let failed = |source| DirectoryError::Io { path: lock_path.clone(), source };
        let lock = private_file(&lock_path).map_err(failed)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|errno| failed(errno.into()))?;
        let directory = Self { path, _lock: lock, keep: false };
        let vm_path = directory.path.join(VM_FILE);
        let failed = |source| DirectoryError::Io { path: vm_path.clone(), source };
        let text = serde_json::to_vec_pretty(vm).map_err(|error| failed(error.into()))?;
        // Written beside and renamed: whoever lists the folders sees a whole description or none.
        let new = directory.path.join("vm.json.new");
        fs::write(&new, text).and_then(|()| fs::rename(&new, &vm_path)).map_err(failed)?;
        Ok(directory)
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the control socket lies.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.path.join(SOCKET_FILE)
    }

    /// Where the region's file lies.
    #[must_use]
    pub fn region(&self) -> PathBuf {
        self.path.join(REGION_FILE)
    }

    /// Makes the region's file, empty.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn create_region(&self) -> Result<File, DirectoryError> {
        let path = self.region();
        private_file(&path).map_err(|source| DirectoryError::Io { path, source })
    }

    /// Makes the file of the rings of the VMM layer, empty.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn create_vmm_rings(&self) -> Result<File, DirectoryError> {
        let path = self.path.join(VMM_RINGS_FILE);
        private_file(&path).map_err(|source| DirectoryError::Io { path, source })
    }

    /// Makes the file of what a flight recorder keeps of the host's kernel, empty.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn create_host_history(&self) -> Result<File, DirectoryError> {
        let path = self.path.join(HOST_HISTORY_FILE);
        private_file(&path).map_err(|source| DirectoryError::Io { path, source })
    }

    /// From now on the folder stays: the region holds what nobody has written anywhere else.
    pub const fn keep(&mut self) {
        self.keep = true;
    }
}

impl Drop for VmDirectory {
    fn drop(&mut self) {
        if !self.keep && !std::thread::panicking() {
            // What cannot be removed shows up in the list as a VM that died; nothing is lost by it.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

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

/// Where the folders of VMs lie for this user.
///
/// # Errors
/// When neither the user nor the environment names one.
pub fn runtime_folder() -> Result<PathBuf, DirectoryError> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    match variable(RUNTIME_VARIABLE) {
        Some(folder) => Ok(folder),
        None if geteuid().is_root() => Ok("/run/strata".into()),
        None => variable("XDG_RUNTIME_DIR").map(|base| base.join("strata")).ok_or(DirectoryError::NoRuntime),
    }
}

/// Where the folder of a VM lies that root runs as `user`.
///
/// # Errors
/// It cannot be made, or somebody else made it.
pub fn runtime_folder_of(user: User) -> Result<PathBuf, DirectoryError> {
    match std::env::var_os(RUNTIME_VARIABLE).filter(|value| !value.is_empty()) {
        Some(folder) => Ok(folder.into()),
        None => runtime_folder_below(Path::new(SYSTEM_RUNTIME), user),
    }
}

/// The same with `system` for `/run`.
fn runtime_folder_below(system: &Path, user: User) -> Result<PathBuf, DirectoryError> {
    let session = system.join(USER_SESSIONS).join(user.uid.to_string());
    if belongs_to(&session, user.uid) {
        return Ok(session.join("strata"));
    }
    let folder = system.join(format!("{USER_PREFIX}{}", user.uid));
    let failed = |source| DirectoryError::Io { path: folder.clone(), source };
    match DirBuilder::new().mode(0o700).create(&folder) {
        Ok(()) => lchown(&folder, Some(user.uid), Some(user.gid)).map_err(failed)?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(source) => return Err(failed(source)),
    }
    if belongs_to(&folder, user.uid) { Ok(folder) } else { Err(DirectoryError::NotPrivate(folder)) }
}

/// Whether `path` is a folder, no link, of the user `uid`.
fn belongs_to(path: &Path, uid: u32) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == uid)
}

/// Keeps everybody else who calls this out of `runtime` until the result is dropped: so that folders can be looked at and
/// another one be made in one step. `runtime` is made if need be.
///
/// # Errors
/// When `runtime` is not private or cannot be used.
pub fn lock(runtime: &Path) -> Result<File, DirectoryError> {
    make_private(runtime)?;
    let failed = |source| DirectoryError::Io { path: runtime.into(), source };
    let folder = File::open(runtime).map_err(failed)?;
    flock(&folder, FlockOperation::LockExclusive).map_err(|errno| failed(errno.into()))?;
    Ok(folder)
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
        let folder = openat(CWD, &self.path, flags, FileMode::empty())?;
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
    let folder = openat(runtime, name, FOLDER | OFlags::NOFOLLOW, FileMode::empty()).ok()?;
    let is_theirs = fstat(&folder).ok()?.st_uid == owner.uid();
    is_theirs.then(|| look_at_open(&folder, path)).flatten().map(|found| FoundVm { owner, ..found })
}

/// What the folder `path`, which is this user's, says; `None` when it is not a VM's, or has just gone.
#[must_use]
pub fn look_at(path: PathBuf) -> Option<FoundVm> {
    let folder = openat(CWD, &path, FOLDER, FileMode::empty()).ok()?;
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
    let file = File::from(openat(folder, name, flags, FileMode::empty()).ok()?);
    file.metadata().ok()?.is_file().then_some(file)
}

/// Whether a process holds the lock on `file`.
fn is_locked(file: &File) -> bool {
    // A shared lock, given back at once: two who look at the same time do not take each other for the VM.
    matches!(flock(file, FlockOperation::NonBlockingLockShared), Err(Errno::WOULDBLOCK))
}

fn private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// Makes `runtime` if need be, and checks that nobody else can get into it.
fn make_private(runtime: &Path) -> Result<(), DirectoryError> {
    let failed = |source| DirectoryError::Io { path: runtime.into(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(runtime).map_err(failed)?;
    if is_private(runtime).map_err(failed)? { Ok(()) } else { Err(DirectoryError::NotPrivate(runtime.into())) }
}

/// Whether the folder `path` belongs to this user and nobody else can get into it: what lies in it is this user's.
///
/// # Errors
/// When it cannot be looked at.
pub fn is_private(path: &Path) -> io::Result<bool> {
    let metadata = fs::metadata(path)?;
    Ok(metadata.uid() == geteuid().as_raw() && metadata.mode() & 0o077 == 0)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use tempfile::TempDir;

    pub(crate) fn description(name: &str) -> VmDescription {
        VmDescription {
            name: name.into(),
            pid: 4242,
            started: Started::at(1_700_000_000_000_000_000),
            vcpus: 2,
            memory: 512 << 20,
            trace: Some("/tmp/trace".into()),
            vmm_rings: None,
            attached: None,
        }
    }

    /// A private runtime folder.
    pub(crate) fn runtime() -> TempDir {
        tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o700)).tempdir().unwrap()
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
    fn leftovers_of_the_same_process_id_are_not_written_over() {
        let runtime = runtime();
        let mut first = VmDirectory::create(runtime.path(), &description("a")).unwrap();
        first.keep();
        let old = first.path().to_path_buf();
        drop(first);

        let second = VmDirectory::create(runtime.path(), &description("a")).unwrap();

        assert_ne!(second.path(), old);
        assert!(old.is_dir());
    }

    #[test]
    fn files_are_the_users_alone() {
        let runtime = runtime();
        let directory = VmDirectory::create(runtime.path(), &description("a")).unwrap();
        directory.create_region().unwrap();

        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;

        assert_eq!(mode(directory.path()), 0o700);
        assert_eq!(mode(&directory.region()), 0o600);
    }

    #[test]
    fn runtime_folder_that_others_may_enter_is_refused() {
        let runtime = runtime();
        fs::set_permissions(runtime.path(), fs::Permissions::from_mode(0o755)).unwrap();

        let error = VmDirectory::create(runtime.path(), &description("a")).unwrap_err();

        assert!(error.to_string().contains("is not private"), "{error}");
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
}
