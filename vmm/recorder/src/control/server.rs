//! The VM's end of the control socket: a thread that takes one client after another.
//!
//! The socket lies in a folder that only its user can enter, so that a client is as good as the user. Still, no client
//! can hold the thread for long: requests have a longest length, and a client that says nothing is hung up on.

use super::protocol::{Answer, MAX_LINE, Request};
use super::socket_wait::next_client;
use rustix::event::{EventfdFlags, eventfd};
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use strata_jail::policy::Thread;
use thiserror::Error;

/// How long a client may say nothing.
const IDLE_LIMIT: Duration = Duration::from_secs(5);
/// How often a wait for a client looks whether the server is to end.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Why a VM cannot be controlled.
#[derive(Debug, Error)]
pub enum ServerError {
    /// The socket cannot be made.
    #[error("cannot make the control socket '{}': use a shorter VM name or runtime folder", path.display())]
    Socket {
        /// The socket's path.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The thread cannot be started.
    #[error("cannot start the control thread")]
    Thread(#[source] io::Error),
}

/// A VM's control thread. Dropping it ends the thread.
#[derive(Debug)]
pub struct ControlServer {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Stop {
    requested: AtomicBool,
    wake: OwnedFd,
}

impl ControlServer {
    /// Serves the socket `path`, which must not exist; `answer` says what becomes of each request, one at a time.
    ///
    /// # Errors
    /// When the socket or the thread cannot be made.
    pub fn start(path: &Path, answer: impl FnMut(Request) -> Answer + Send + 'static) -> Result<Self, ServerError> {
        let failed = |source| ServerError::Socket { path: path.into(), source };
        let listener = UnixListener::bind(path).map_err(failed)?;
        fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
        let stop = Arc::new(Stop { requested: AtomicBool::new(false), wake });
        let server_stop = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("strata-control".into())
            .spawn(move || {
                strata_jail::enter(Thread::Control);
                serve(&listener, &server_stop, answer);
            })
            .map_err(ServerError::Thread)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.stop.requested.store(true, Ordering::Release);
        // Writing 1 to a fresh event counter cannot fail.
        let _ = rustix::io::write(&self.stop.wake, &1_u64.to_ne_bytes());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn serve(listener: &UnixListener, stop: &Stop, mut answer: impl FnMut(Request) -> Answer) {
    while let Ok(Some((client, _))) = next_client(listener, &stop.wake, || listener.accept()) {
        // A client that hangs up in the middle is its own affair.
        let _ = converse(client, stop, &mut answer);
    }
}

/// Answers a client's requests until it hangs up, says nothing for long, or the server ends.
fn converse(mut client: UnixStream, stop: &Stop, answer: &mut impl FnMut(Request) -> Answer) -> io::Result<()> {
    client.set_nonblocking(false)?;
    client.set_read_timeout(Some(LOOK_INTERVAL))?;
    client.set_write_timeout(Some(IDLE_LIMIT))?;
    let mut pending = Vec::new();
    while let Some(line) = read_line(&mut client, &mut pending, stop)? {
        let answer = match serde_json::from_slice(&line) {
            Ok(request) => answer(request),
            Err(error) => Answer::refused(format!("not a request: {error}")),
        };
        let mut text = serde_json::to_vec(&answer)?;
        text.push(b'\n');
        client.write_all(&text)?;
    }
    Ok(())
}

/// The next line, without its end; `None` when there will be none. What came after it stays in `pending`.
fn read_line(client: &mut impl Read, pending: &mut Vec<u8>, stop: &Stop) -> io::Result<Option<Vec<u8>>> {
    let begun = Instant::now();
    let mut looked_at = 0;
    loop {
        if let Some(end) = pending[looked_at..].iter().position(|&byte| byte == b'\n') {
            let rest = pending.split_off(looked_at + end + 1);
            let mut line = std::mem::replace(pending, rest);
            line.pop();
            return Ok(Some(line));
        }
        looked_at = pending.len();
        if looked_at > MAX_LINE || begun.elapsed() > IDLE_LIMIT || stop.requested.load(Ordering::Acquire) {
            return Ok(None);
        }
        let mut part = [0; 4096];
        match client.read(&mut part) {
            Ok(0) => return Ok(None),
            Ok(bytes) => pending.extend_from_slice(&part[..bytes]),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::client;
    use crate::control::socket::ControlSocket;
    use std::io::{BufRead, BufReader};
    use tempfile::TempDir;

    fn echo(request: Request) -> Answer {
        Answer::done(format!("{request:?}"))
    }

    fn server() -> (TempDir, PathBuf, ControlServer) {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("control");
        let server = ControlServer::start(&path, echo).unwrap();
        (dir, path, server)
    }

    #[test]
    fn request_is_answered() {
        let (_dir, path, _server) = server();

        assert_eq!(client::call(&ControlSocket::of_this_user(&path), &Request::Flush).unwrap(), Answer::done("Flush"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn several_requests_on_one_connection_are_answered_in_turn() {
        let (_dir, path, _server) = server();
        let mut client = UnixStream::connect(path).unwrap();

        client.write_all(b"{\"command\":\"status\"}\n{\"command\":\"flush\"}\n").unwrap();

        let lines: Vec<String> = BufReader::new(client).lines().take(2).map(Result::unwrap).collect();
        assert!(lines[0].contains("Status") && lines[1].contains("Flush"), "{lines:?}");
    }

    #[test]
    fn line_that_is_no_request_is_refused_and_the_next_one_answered() {
        let (_dir, path, _server) = server();
        let mut client = UnixStream::connect(path).unwrap();

        client.write_all(b"nonsense\n{\"command\":\"flush\"}\n").unwrap();

        let lines: Vec<String> = BufReader::new(client).lines().take(2).map(Result::unwrap).collect();
        assert!(lines[0].contains("not a request") && lines[1].contains("Flush"), "{lines:?}");
    }

    #[test]
    fn endless_line_is_hung_up_on() {
        let (_dir, path, _server) = server();
        let mut client = UnixStream::connect(&path).unwrap();

        let written = client.write_all(&vec![b'x'; 3 * MAX_LINE]);
        let mut answer = Vec::new();
        let read = client.read_to_end(&mut answer);

        assert!(written.is_err() || read.is_err() || answer.is_empty());
        assert!(client::call(&ControlSocket::of_this_user(&path), &Request::Flush).is_ok());
    }

    #[test]
    fn server_ends_although_a_client_is_connected() {
        let (_dir, path, server) = server();
        let _client = UnixStream::connect(path).unwrap();
        let begun = Instant::now();

        drop(server);

        assert!(begun.elapsed() < IDLE_LIMIT);
    }

    #[test]
    fn path_that_is_too_long_is_refused() {
        let dir = TempDir::new().unwrap();

        let error = ControlServer::start(&dir.path().join("x".repeat(200)), echo).unwrap_err();

        assert!(error.to_string().contains("shorter VM name"), "{error}");
    }
}
