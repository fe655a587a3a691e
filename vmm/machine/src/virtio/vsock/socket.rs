//! The socket by which programs of the host reach a guest, and those by which the guest reaches programs of the host.

use super::muxer::VsockHost;
use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
use rustix::process::geteuid;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Lowest address of a guest: those below mean hypervisor, this machine and host.
pub const CID_MIN: u32 = 3;
/// Highest: the one above means any.
pub const CID_MAX: u32 = u32::MAX - 1;
/// Longest path of the socket, bytes: what a socket's address has room for behind it is `_PORT`.
const PATH_MAX: usize = 107 - "_4294967295".len();
/// Programs of the host that wait to be accepted.
const BACKLOG: i32 = 64;

/// A socket device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VsockConfig {
    /// The guest's address (context identifier).
    pub cid: u32,
    /// Where programs of the host connect. `PATH_PORT` is where the guest's connections to a port of the host go.
    pub path: PathBuf,
}

/// Why there is no socket for the device. Nothing was made.
#[derive(Debug, thiserror::Error)]
pub enum VsockError {
    /// Something lies there.
    #[error("--vsock '{}': the file exists: remove it, or give another path", .0.display())]
    Exists(PathBuf),
    /// A program listens there.
    #[error("--vsock '{}': a program listens at this socket: end it, or give another path", .0.display())]
    InUse(PathBuf),
    /// The system's addresses are shorter.
    #[error("--vsock '{}': the path is too long: {PATH_MAX} bytes at most", .0.display())]
    TooLong(PathBuf),
    /// There is no folder for it.
    #[error("--vsock '{}': there is no such folder: make it with `mkdir -m 700`", folder.display())]
    NoFolder {
        folder: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Others could put sockets there, which the guest would connect to.
    #[error(
        "--vsock: others may make files in '{}': give a folder that is yours and closed to others (`mkdir -m 700`)",
        .0.display()
    )]
    NotPrivate(PathBuf),
    /// The system refuses.
    #[error("--vsock '{}': cannot make this socket", path.display())]
    Make {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl VsockConfig {
    /// Whether the socket can be made, as the user that asks. Nothing is left behind.
    ///
    /// # Errors
    /// The path is taken or too long, or the folder is missing or not private.
    pub fn check(&self) -> Result<(), VsockError> {
        let path = &self.path;
        if path.as_os_str().len() > PATH_MAX {
            return Err(VsockError::TooLong(path.clone()));
        }
        let folder = self.folder();
        let metadata =
            fs::metadata(&folder).map_err(|source| VsockError::NoFolder { folder: folder.clone(), source })?;
        let is_ours = [0, geteuid().as_raw()].contains(&metadata.uid());
        if !metadata.is_dir() || !is_ours || metadata.mode() & 0o022 != 0 {
            return Err(VsockError::NotPrivate(folder));
        }
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(VsockError::Make { path: path.clone(), source }),
            Ok(found) if found.file_type().is_socket() && found.uid() == geteuid().as_raw() => {
                match reach(path) {
                    // Of a VM whose process died.
                    Err(Errno::CONNREFUSED) => Ok(()),
                    _ => Err(VsockError::InUse(path.clone())),
                }
            }
            Ok(_) => Err(VsockError::Exists(path.clone())),
        }
    }

    /// The folder that the socket lies in.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        if folder.as_os_str().is_empty() { ".".into() } else { folder.into() }
    }

    /// Makes the socket, as the user that asks, for that user alone. What a VM has left there whose process died goes.
    ///
    /// # Errors
    /// As for [`check`](Self::check); or the system refuses.
    pub fn open(&self) -> Result<VsockSocket, VsockError> {
        self.check()?;
        let failed = |source: io::Error| VsockError::Make { path: self.path.clone(), source };
        // Absolute, so that it is found whatever happens to the folder that this process works in.
        let path = std::path::absolute(&self.path).map_err(failed)?;
        if fs::symlink_metadata(&path).is_ok() {
            fs::remove_file(&path).map_err(failed)?;
        }
        let listener = listen_at(&path).map_err(|errno| failed(errno.into()))?;
        let identity = fs::symlink_metadata(&path).map(|made| (made.dev(), made.ino())).map_err(failed)?;
        Ok(VsockSocket { cid: self.cid, path, listener, identity })
    }
}

/// A socket at `path` that from its first moment on is its user's alone.
fn listen_at(path: &Path) -> rustix::io::Result<UnixListener> {
    let socket = stream_socket()?;
    // What is bound gets the mode of the socket.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Connects to who listens at `path`, at once or not at all: a full queue is a refusal.
fn reach(path: &Path) -> rustix::io::Result<UnixStream> {
    let socket = stream_socket()?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

fn stream_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// The socket, which is removed when this is dropped.
#[derive(Debug)]
pub struct VsockSocket {
    cid: u32,
    path: PathBuf,
    listener: UnixListener,
    /// Device and number of its file.
    identity: (u64, u64),
}

impl VsockSocket {
    /// The guest's address.
    #[must_use]
    pub fn cid(&self) -> u32 {
        self.cid
    }
}

impl VsockHost for std::sync::Arc<VsockSocket> {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    fn accept(&mut self) -> io::Result<UnixStream> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Ok(rustix::net::accept_with(&self.listener, flags)?.into())
    }

    fn connect(&mut self, port: u32) -> io::Result<UnixStream> {
        let mut path = self.path.clone().into_os_string();
        path.push(format!("_{port}"));
        Ok(reach(Path::new(&path))?)
    }
}

impl Drop for VsockSocket {
    fn drop(&mut self) {
        let is_ours = |found: fs::Metadata| (found.dev(), found.ino()) == self.identity;
        if fs::symlink_metadata(&self.path).is_ok_and(is_ours) {
            // What cannot be removed is found to be nobody's by the next one.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;
    use tempfile::TempDir;

    fn config(folder: &TempDir) -> VsockConfig {
        VsockConfig { cid: 3, path: folder.path().join("vsock") }
    }

    #[test]
    fn socket_is_its_users_alone_and_goes_with_the_machine() {
        let folder = TempDir::new().unwrap();
        let config = config(&folder);

        let socket = config.open().unwrap();
        let mode = fs::symlink_metadata(&config.path).unwrap().permissions().mode();
        drop(socket);

        assert_eq!(mode & 0o777, 0o600);
        assert!(!config.path.exists());
    }

    #[test]
    fn path_that_is_taken_is_refused_and_stays() {
        let folder = TempDir::new().unwrap();
        let config = config(&folder);
        fs::write(&config.path, "mine").unwrap();
        let file = config.open().unwrap_err().to_string();
        fs::remove_file(&config.path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &config.path).unwrap();
        let link = config.open().unwrap_err().to_string();
        fs::remove_file(&config.path).unwrap();
        let _socket = config.open().unwrap();

        let socket = config.open().unwrap_err().to_string();

        assert!(file.contains("the file exists") && link.contains("the file exists"), "{file} {link}");
        assert!(socket.contains("a program listens at this socket"), "{socket}");
    }

    #[test]
    fn socket_of_a_vm_that_died_is_taken_over() {
        let folder = TempDir::new().unwrap();
        let config = config(&folder);
        drop(UnixListener::bind(&config.path).unwrap());

        let socket = config.open();

        assert!(socket.is_ok(), "{socket:?}");
    }

    #[test]
    fn file_in_the_place_of_the_socket_is_left_at_the_end() {
        let folder = TempDir::new().unwrap();
        let config = config(&folder);
        let socket = config.open().unwrap();
        fs::remove_file(&config.path).unwrap();
        fs::write(&config.path, "another's").unwrap();

        drop(socket);

        assert!(config.path.exists());
    }

    #[test]
    fn folder_that_is_missing_or_open_to_others_is_refused_with_the_way_out() {
        let folder = TempDir::new().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        let missing = VsockConfig { cid: 3, path: folder.path().join("none/vsock") };
        let long = VsockConfig { cid: 3, path: folder.path().join("x".repeat(PATH_MAX)) };

        let printed = [config(&folder), missing, long].map(|config| config.check().unwrap_err().to_string());

        assert!(printed[0].contains("others may make files in") && printed[0].contains("mkdir -m 700"), "{printed:?}");
        assert!(printed[1].contains("no such folder") && printed[2].contains("too long"), "{printed:?}");
    }

    #[test]
    fn guest_reaches_who_listens_at_the_path_with_its_port() {
        let folder = TempDir::new().unwrap();
        let mut socket = Arc::new(config(&folder).open().unwrap());
        let listener = UnixListener::bind(folder.path().join("vsock_77")).unwrap();

        let (there, nobody) = (socket.connect(77), socket.connect(78));

        assert!(there.is_ok() && listener.accept().is_ok());
        assert_eq!(nobody.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
