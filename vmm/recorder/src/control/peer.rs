//! Sockets of other processes: connecting to one within a time, and the process at its other end.
#![allow(unsafe_code, reason = "no library reads the credentials of a peer whose number this process cannot see (0)")]

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Connects to the socket `path`. One that accepts nobody would have its callers wait: `look` says each time for how long,
/// or why no more.
///
/// # Errors
/// There is no such socket, nobody listens, or what `look` says.
pub fn connect_while(path: &Path, mut look: impl FnMut() -> io::Result<Duration>) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let address = SocketAddrUnix::new(path)?;
    loop {
        set_socket_timeout(&socket, Timeout::Send, Some(look()?))?;
        match connect(&socket, &address) {
            Ok(()) => return Ok(UnixStream::from(socket)),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// A process and its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Number of the process; 0 where it is in a pid namespace that this process does not see.
    pub pid: u32,
    /// Number of its user.
    pub uid: u32,
}

impl Peer {
    /// Who listens at the other end of `stream`, as it was when it began to.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn of(stream: &UnixStream) -> io::Result<Self> {
        let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut length = size_of::<libc::ucred>().try_into().map_err(io::Error::other)?;
        // SAFETY: the kernel writes at most `length` bytes to `credentials`, which is as long and holds plain numbers.
        let got = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut credentials).cast(),
                &raw mut length,
            )
        };
        if got != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { pid: u32::try_from(credentials.pid).unwrap_or(0), uid: credentials.uid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::geteuid;

    #[test]
    fn peer_of_a_pair_is_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();

        assert_eq!(Peer::of(&one).unwrap(), Peer { pid: std::process::id(), uid: geteuid().as_raw() });
    }
}
