//! `strata ctl VM balloon`: wants memory of a guest's back, and waits a moment for it.

use super::client::{self, ClientError};
use super::protocol::{Answer, BalloonStatus, Request};
use std::path::Path;
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
/// When the VM cannot be asked, has no balloon, or cannot do without so much.
pub fn ask(socket: &Path, bytes: Option<u64>) -> Result<BalloonStatus, ClientError> {
    let deadline = Instant::now() + PATIENCE;
    let mut balloon = call(socket, bytes)?;
    while bytes.is_some() && balloon.driven && balloon.given != balloon.wanted && Instant::now() < deadline {
        thread::sleep(INTERVAL);
        balloon = call(socket, None)?;
    }
    Ok(balloon)
}

fn call(socket: &Path, bytes: Option<u64>) -> Result<BalloonStatus, ClientError> {
    match client::call(socket, &Request::Balloon { bytes })? {
        Answer::Balloon(balloon) => Ok(balloon),
        other => Err(ClientError::Refused(client::text(&other).trim_end().to_owned())),
    }
}

/// `balloon` as text for the user.
#[must_use]
pub fn text(balloon: &BalloonStatus) -> String {
    let what_next = match balloon {
        BalloonStatus { driven: false, .. } => "the guest has no driver for it (yet): load virtio_balloon in it\n",
        BalloonStatus { wanted, given, .. } if wanted != given => {
            "the guest goes on, as far as it can: `strata ctl VM balloon` says how far\n"
        }
        _ => "",
    };
    format!("{}\n{what_next}", line(balloon))
}

/// `balloon` in a line.
#[must_use]
pub fn line(balloon: &BalloonStatus) -> String {
    let BalloonStatus { wanted, given, reported, refused, driven: _ } = *balloon;
    let (wanted, given, reported) = (size(wanted), size(given), size(reported));
    let refused = if refused > 0 { format!(", {refused} pages refused") } else { String::new() };
    format!("balloon {given} given of {wanted} wanted back, {reported} reported free since the start{refused}")
}

/// A size in MiB where it is a whole number of them, else in KiB.
fn size(bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 20) { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
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

        let balloon = ask(&folder.path().join("control"), Some(WANTED)).unwrap();

        assert_eq!((balloon.wanted, balloon.given), (WANTED, WANTED));
        assert_eq!(text(&balloon), "balloon 64 MiB given of 64 MiB wanted back, 0 MiB reported free since the start\n");
    }

    #[test]
    fn guest_without_a_driver_is_not_waited_for() {
        let (folder, _server) = served(false);

        let balloon = ask(&folder.path().join("control"), Some(WANTED)).unwrap();

        assert_eq!((balloon.wanted, balloon.given), (WANTED, 0));
        assert!(text(&balloon).contains("load virtio_balloon"));
    }

    #[test]
    fn refused_pages_and_parts_of_a_size_are_said() {
        let balloon = BalloonStatus { given: 12 << 10, refused: 7, driven: true, ..BalloonStatus::default() };

        let text = text(&balloon);

        assert!(text.contains("12 KiB given of 0 MiB") && text.contains(", 7 pages refused\n"), "{text}");
        assert!(text.contains("the guest goes on"), "{text}");
    }
}
