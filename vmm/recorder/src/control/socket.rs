//! The control socket of a VM, as clients see it.

use super::peer::{Peer, connect_while};
use super::socket_wait::left;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Instant;
use strata_recording::text::terminal::foreign::Foreign;

/// A VM's control socket, and who has to serve it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlSocket {
    path: Foreign<PathBuf>,
    peer: Option<Peer>,
}

impl ControlSocket {
    /// The socket `path` in a folder that only this user and root can enter.
    pub fn of_this_user(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into().into(), peer: None }
    }

    /// The socket `path` in another user's folder: asked only where `peer` serves it.
    pub fn of_process(path: impl Into<PathBuf>, peer: Peer) -> Self {
        Self { path: path.into().into(), peer: Some(peer) }
    }

    /// Where it is.
    pub(super) const fn path(&self) -> &Foreign<PathBuf> {
        &self.path
    }

    /// Connects by `deadline`.
    ///
    /// # Errors
    /// Nothing accepts in time, or somebody else serves it.
    pub(super) fn connect(&self, deadline: Instant) -> io::Result<UnixStream> {
        let stream = connect_while(self.path.raw(), || left(deadline))?;
        match self.peer {
            Some(peer) if Peer::of(&stream)? != peer => Err(io::Error::other(format!(
                "another process than {} of user {} serves the socket",
                peer.pid, peer.uid
            ))),
            _ => Ok(stream),
        }
    }
}
