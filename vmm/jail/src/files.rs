//! Landlock: what of the file system a confined process can still open, whatever its user may.

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use std::path::{Path, PathBuf};

/// What is read while a VM runs: threads that work for it, the clock source, the limits of its control group.
const READ_OF_VMS: [&str; 2] = ["/proc", "/sys"];
/// The newest form of landlock whose rights are known here. Older kernels enforce what they know.
const NEWEST: ABI = ABI::V7;

/// The places where a process may read, make and write files.
#[derive(Clone, Debug)]
pub struct Places {
    /// Files and folders that it may read, beside those that it may write: by default `/proc` and `/sys`.
    pub read: Vec<PathBuf>,
    /// Folders of its own, in which it may make, write and remove everything.
    pub written: Vec<PathBuf>,
    /// Folders in which it may do so, too, when its user asks for something there.
    pub offered: Vec<PathBuf>,
    /// Folders in which it may remove empty folders.
    pub emptied: Vec<PathBuf>,
    /// Folders in which it may remove files.
    pub cleared: Vec<PathBuf>,
}

impl Default for Places {
    fn default() -> Self {
        let read = READ_OF_VMS.map(PathBuf::from).into();
        Self { read, written: Vec::new(), offered: Vec::new(), emptied: Vec::new(), cleared: Vec::new() }
    }
}

impl Places {
    /// Whether what is made at `path` lies in a folder that is offered.
    #[must_use]
    pub fn offer(&self, path: &Path) -> bool {
        let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
        folder.is_some_and(|folder| self.offered.iter().any(|offered| folder.starts_with(offered)))
    }

    /// Confines the calling thread, and those that it starts from now on, to these places. Returns the form of landlock
    /// by which it is; `None` where this kernel has none. By the fourth, TCP cannot be reached either; by the sixth, no
    /// process outside can be sent signals, nor reached by an abstract socket.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn confine(&self) -> Result<Option<u32>, RulesetError> {
        let handled = AccessFs::from_all(NEWEST);
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let written = handled & !(AccessFs::Execute | AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev);
        let mut rules = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(handled)?
            .handle_access(AccessNet::from_all(NEWEST))?
            .scope(Scope::from_all(NEWEST))?
            .create()?;
        let program = std::env::current_exe().ok();
        let named = |paths: &[PathBuf], access: BitFlags<AccessFs>| {
            paths.iter().map(move |path| (path.clone(), access)).collect::<Vec<_>>()
        };
        let removed = [(&self.emptied, AccessFs::RemoveDir), (&self.cleared, AccessFs::RemoveFile)];
        let removed = removed.into_iter().flat_map(|(folders, access)| named(folders, access.into()));
        let places = [&self.written, &self.offered].into_iter().flat_map(|folders| named(folders, written));
        let places = places.chain(removed);
        let places = places.chain(named(&self.read, read));
        // A panic looks for its symbols in the program.
        for (path, access) in places.chain(program.map(|path| (path, AccessFs::ReadFile.into()))) {
            // What is not there needs no rule.
            if let Ok(folder) = PathFd::new(&path) {
                rules = rules.add_rule(PathBeneath::new(folder, access))?;
            }
        }
        let is_enforced = rules.restrict_self()?.ruleset != RulesetStatus::NotEnforced;
        Ok(version().filter(|_| is_enforced).map(|version| version.min(NEWEST as u32)))
    }
}

/// The version of landlock that this kernel has; `None` without.
#[must_use]
#[allow(unsafe_code)] // no crate in use here asks for the number
pub fn version() -> Option<u32> {
    const LANDLOCK_CREATE_RULESET_VERSION: u32 = 1;
    // SAFETY: asks for a number, with no memory to read.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0_usize,
            LANDLOCK_CREATE_RULESET_VERSION,
        )
    };
    u32::try_from(version).ok().filter(|&version| version > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, Signal, kill_process};
    use std::fs::{self, File};
    use std::io::ErrorKind;
    use tempfile::TempDir;

    #[test]
    fn what_lies_in_offered_folders_is_offered_and_nothing_else() {
        let folder = TempDir::new().unwrap();
        let path = |name: &str| folder.path().canonicalize().unwrap().join(name);
        fs::create_dir_all(path("offered/below")).unwrap();
        fs::create_dir_all(path("written")).unwrap();
        std::os::unix::fs::symlink(path("offered"), path("link")).unwrap();
        let places = Places { written: vec![path("written")], offered: vec![path("offered")], ..Places::default() };

        let inside = ["offered/new", "offered/below/new", "link/new"].map(|name| places.offer(&path(name)));
        let outside =
            ["new", "written/new", "offered/../new", "offered/none/new"].map(|name| places.offer(&path(name)));

        assert_eq!((inside, outside), ([true; 3], [false; 4]));
    }

    #[test]
    fn confined_thread_reads_what_it_is_given_and_nothing_else() {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("given"), b"text").unwrap();
        let places = Places { read: vec![folder.path().into()], ..Places::default() };
        let read = |path: PathBuf| fs::read(path).is_ok();

        let seen = confined(&places, || (read(folder.path().join("given")), read("/proc/self/comm".into())));

        assert_eq!(seen, version().map(|_| (true, false)));
    }

    /// Does `deed` on a thread that is confined to `places`; `None` where the kernel has no landlock.
    fn confined<T: Send>(places: &Places, deed: impl FnOnce() -> T + Send) -> Option<T> {
        std::thread::scope(|scope| scope.spawn(|| places.confine().unwrap().map(|_| deed())).join().unwrap())
    }

    #[test]
    fn confined_thread_writes_in_its_places_and_reads_no_secrets() {
        let (inside, outside) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let places = Places { written: vec![inside.path().into()], ..Places::default() };
        let open = File::options().append(true).create(true).open(outside.path().join("open")).unwrap();

        let seen = confined(&places, || {
            fs::create_dir(inside.path().join("folder")).unwrap();
            fs::write(inside.path().join("folder/file"), b"text").unwrap();
            fs::rename(inside.path().join("folder/file"), inside.path().join("folder/other")).unwrap();
            fs::remove_dir_all(inside.path().join("folder")).unwrap();
            fs::read_to_string("/proc/self/comm").unwrap();
            open.set_len(1).unwrap();
            let secret = File::open("/etc/shadow").map_err(|error| error.kind());
            let written = fs::write(outside.path().join("file"), b"text").map_err(|error| error.kind());
            (secret.err(), written.err())
        });

        let denied = Some(ErrorKind::PermissionDenied);
        assert_eq!(seen, version().map(|_| (denied, denied)));
    }

    #[test]
    fn confined_thread_sends_signals_to_no_other_process_and_reaches_no_abstract_socket() {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
        let address = SocketAddr::from_abstract_name(format!("strata-test-{}", std::process::id())).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let signal = || kill_process(Pid::from_child(&other), Signal::CONT).map_err(|errno| errno.kind()).err();
        let reach = || UnixStream::connect_addr(&address).map_err(|error| error.kind()).err();

        let seen = confined(&Places::default(), || (signal(), reach()));
        let outside = (signal(), reach());
        drop(listener);
        other.kill().unwrap();
        other.wait().unwrap();

        let denied = Some(ErrorKind::PermissionDenied).filter(|_| version() >= Some(6));
        assert_eq!(seen, version().map(|_| (denied, denied)));
        assert_eq!(outside, (None, None));
    }

    #[test]
    fn folder_with_something_in_it_is_not_moved_out_of_one_that_may_be_emptied() {
        let folder = TempDir::new().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir_all(path("full/below")).unwrap();
        fs::create_dir(path("written")).unwrap();
        let places =
            Places { written: vec![path("written")], emptied: vec![folder.path().into()], ..Places::default() };

        let seen = confined(&places, || {
            let moved = ["written/full", "moved"].map(|name| fs::rename(path("full"), path(name)).is_err());
            (moved, fs::remove_dir(path("full")).is_err())
        });

        assert_eq!(seen, version().map(|_| ([true; 2], true)));
    }

    #[test]
    fn folder_that_may_be_emptied_takes_no_files() {
        let folder = TempDir::new().unwrap();
        fs::create_dir(folder.path().join("vm")).unwrap();
        let places = Places { emptied: vec![folder.path().into()], ..Places::default() };

        let seen = confined(&places, || {
            let made = fs::write(folder.path().join("file"), b"text").map_err(|error| error.kind());
            (fs::remove_dir(folder.path().join("vm")).is_ok(), made.err())
        });

        assert_eq!(seen, version().map(|_| (true, Some(ErrorKind::PermissionDenied))));
    }

    #[test]
    fn folder_that_may_be_cleared_takes_no_files() {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("socket"), b"").unwrap();
        let places = Places { cleared: vec![folder.path().into()], ..Places::default() };

        let seen = confined(&places, || {
            let made = fs::write(folder.path().join("file"), b"text").map_err(|error| error.kind());
            (fs::remove_file(folder.path().join("socket")).is_ok(), made.err())
        });

        assert_eq!(seen, version().map(|_| (true, Some(ErrorKind::PermissionDenied))));
    }
}
