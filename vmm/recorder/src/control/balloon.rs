//! `strata ctl VM balloon`: wants memory of a guest's back, and waits a moment for it.

use super::answer_text;
use super::client::{self, ClientError};
use super::protocol::{Answer, BalloonStatus, Request};
use super::socket::ControlSocket;
use std::thread;
use std::time::{Duration, Instant};

/// How long a guest is waited for. It goes on by itself.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often it is looked at meanwhile.
const INTERVAL: Duration = Duration::from_millis(50);

/// Wants `bytes` back of the VM that serves `socket`, and returns how its balloon is when the guest has given as much,
/// or a moment later. Without `bytes` it only asks.
///
/// # Errors
/// When the VM does not answer, has no balloon, or cannot do without so much.
pub fn request(socket: &ControlSocket, bytes: Option<u64>) -> Result<BalloonStatus, ClientError> {
    let deadline = Instant::now() + PATIENCE;
    let mut balloon = call(socket, bytes)?;
    while bytes.is_some() && balloon.driven && balloon.given != balloon.wanted && Instant::now() < deadline {
        thread::sleep(INTERVAL);
        balloon = call(socket, None)?;
    }
    Ok(balloon)
}

fn call(socket: &ControlSocket, bytes: Option<u64>) -> Result<BalloonStatus, ClientError> {
    match client::call(socket, &Request::Balloon { bytes })? {
        Answer::Balloon(balloon) => Ok(balloon),
        other => Err(ClientError::Refused(answer_text::text(&other).trim_end().into())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::server::ControlServer;
    use super::*;
    use tempfile::TempDir;

    const WANTED: u64 = 64 << 20;

    /// What is answered to a guest's host that asks for memory: the guest gives 16 MiB between two questions.
    fn served(driven: bool) -> (TempDir, ControlServer) {
        let folder = TempDir::new().unwrap();
        let mut balloon = BalloonStatus { driven, ..BalloonStatus::default() };
        let answer = move |request| {
            let Request::Balloon { bytes } = request else { return Answer::refused("what else?") };
            balloon.given = (balloon.given + (16 << 20)).min(balloon.wanted);
            balloon.wanted = bytes.unwrap_or(balloon.wanted);
            Answer::Balloon(balloon)
        };
        let server = ControlServer::start(&folder.path().join("control"), answer).unwrap();
        (folder, server)
    }

    #[test]
    fn guest_is_waited_for_until_it_has_given_what_is_wanted() {
        let (folder, _server) = served(true);

        let balloon = request(&ControlSocket::of_this_user(folder.path().join("control")), Some(WANTED)).unwrap();

        assert_eq!((balloon.wanted, balloon.given), (WANTED, WANTED));
        assert_eq!(
            answer_text::balloon(&balloon),
            "balloon 64 MiB given of 64 MiB wanted back, 0 MiB reported free since the start\n"
        );
    }

    #[test]
    fn guest_without_a_driver_is_not_waited_for() {
        let (folder, _server) = served(false);

        let balloon = request(&ControlSocket::of_this_user(folder.path().join("control")), Some(WANTED)).unwrap();

        assert_eq!((balloon.wanted, balloon.given), (WANTED, 0));
        assert!(answer_text::balloon(&balloon).contains("load virtio_balloon"));
    }
}
