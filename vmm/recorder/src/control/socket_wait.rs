//! Waiting at sockets: for a client, and for what somebody says within a time.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Pause after a client could not be let in.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The next client that `accept` lets in at `listener`, which does not block; `None` once `end` can be read.
///
/// A process without descriptors or memory cannot let anybody in, and finds the client there again at once: it waits for a
/// moment.
///
/// # Errors
/// The sockets cannot be waited for.
pub fn next_client<C>(
    listener: impl AsFd,
    end: impl AsFd,
    mut accept: impl FnMut() -> io::Result<C>,
) -> io::Result<Option<C>> {
    loop {
        let mut ready = [PollFd::new(&end, PollFlags::IN), PollFd::new(&listener, PollFlags::IN)];
        wait(&mut ready, None)?;
        if !ready[0].revents().is_empty() {
            return Ok(None);
        }
        match accept() {
            Ok(client) => return Ok(Some(client)),
            // One that has gone meanwhile is another one's to make again.
            Err(error) if has_gone(&error) => {}
            Err(_) => wait(&mut ready[..1], Some(&PAUSE))?,
        }
    }
}

fn has_gone(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted)
}

/// An interrupted wait is only a look too many.
fn wait(ready: &mut [PollFd<'_>], limit: Option<&Timespec>) -> io::Result<()> {
    match poll(ready, limit) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// What comes from `socket` until `is_whole`, all of it up to `deadline`; what came of it where the other side hangs up.
///
/// # Errors
/// When the socket fails, more than `most` bytes come, or not all in time.
pub fn read_until(
    socket: impl AsFd,
    most: usize,
    deadline: Instant,
    is_whole: impl Fn(&[u8]) -> bool,
) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    let mut part = [0; 4096];
    while !is_whole(&read) {
        if read.len() > most {
            return Err(io::Error::new(ErrorKind::InvalidData, format!("it says more than {most} bytes")));
        }
        set_socket_timeout(&socket, Timeout::Recv, Some(left(deadline)?))?;
        match rustix::io::read(&socket, &mut part) {
            Ok(0) => break,
            Ok(bytes) => read.extend_from_slice(&part[..bytes]),
            // Of the time that is left, the next turn says.
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(read)
}

/// The time up to `deadline`.
///
/// # Errors
/// It is over.
pub fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
    left.ok_or_else(|| io::Error::new(ErrorKind::TimedOut, "it took too long"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::io::Write;
    use std::os::unix::net::{UnixListener, UnixStream};

    /// A listener with a client, and how it learns of an end.
    fn listener() -> (UnixListener, UnixStream, std::os::fd::OwnedFd, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
        let client = UnixStream::connect(folder.path().join("socket")).unwrap();
        (listener, client, eventfd(0, EventfdFlags::CLOEXEC).unwrap(), folder)
    }

    #[test]
    fn client_that_no_descriptor_is_left_for_is_let_in_later_and_waited_for_meanwhile() {
        let (listener, _client, end, _folder) = listener();
        let free = Instant::now() + Duration::from_millis(250);
        let mut tries = 0;

        let client = next_client(&listener, &end, || {
            tries += 1;
            if Instant::now() < free { Err(Errno::MFILE.into()) } else { listener.accept() }
        });

        assert!(client.unwrap().is_some());
        // A loop that does not wait comes round a hundred thousand times.
        assert!((2..=20).contains(&tries), "{tries}");
    }

    #[test]
    fn end_is_seen_also_while_nobody_can_be_let_in() {
        let (listener, _client, end, _folder) = listener();

        let client = next_client::<()>(&listener, &end, || {
            rustix::io::write(&end, &1_u64.to_ne_bytes())?;
            Err(Errno::NFILE.into())
        });

        assert!(client.unwrap().is_none());
    }

    #[test]
    fn answer_is_read_up_to_where_it_is_whole_or_the_other_side_hangs_up() {
        let (mut states, hears) = UnixStream::pair().unwrap();
        let deadline = Instant::now() + Duration::from_secs(600);
        states.write_all(b"one.").unwrap();

        let whole = read_until(&hears, 16, deadline, |read| read.ends_with(b".")).unwrap();
        states.write_all(b"two").unwrap();
        drop(states);
        let cut = read_until(&hears, 16, deadline, |read| read.ends_with(b".")).unwrap();

        assert_eq!((whole, cut), (b"one.".to_vec(), b"two".to_vec()));
    }
}
