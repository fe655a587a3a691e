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

use super::protocol::{Mode, Status, TraceStatus};
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use shared_ring::layout::Geometry;
use shared_ring::region::Rings;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, lchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use strata_jail::user::User;
use strata_recording::manifest::{Attached, Started};
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
pub(super) const SYSTEM_RUNTIME: &str = "/run";
/// In it: a folder for each user who is logged in.
pub(super) const USER_SESSIONS: &str = "user";
/// In it: what begins the name of the folder of a user who is not, before the user's number.
pub(super) const USER_PREFIX: &str = "strata-";
pub(super) const LOCK_FILE: &str = "lock";
pub(super) const VM_FILE: &str = "vm.json";
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
pub(super) fn runtime_folder_below(system: &Path, user: User) -> Result<PathBuf, DirectoryError> {
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
pub(super) fn belongs_to(path: &Path, uid: u32) -> bool {
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
}
