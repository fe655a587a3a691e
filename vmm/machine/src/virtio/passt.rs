//! A network without rights on the host, through `passt`: a program of the user's that makes the guest's connections
//! its own. It talks over a stream socket, where each frame has its length before it, in four bytes, the highest first:
//! what QEMU's `-netdev stream` does.

use super::link::{FRAME_MAX, HEADER, Link};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Bytes before each frame.
const LENGTH: usize = 4;
/// The program that is started where no socket is named.
const PROGRAM: &str = "passt";
/// What ends the connection to it.
const ENDED: &str = "passt has ended";
const NO_FRAME: &str = "passt has sent what is no frame";

/// Why there is no link to a passt.
#[derive(Debug, thiserror::Error)]
pub enum PasstError {
    /// The program is not there.
    #[error(
        "there is no program '{PROGRAM}': install it (package passt), or start one elsewhere and name its socket with \
             --net passt=SOCKET"
    )]
    NotInstalled,
    /// The program cannot be started.
    #[error("cannot start '{PROGRAM}'")]
    Start(#[source] io::Error),
    /// There is no such socket.
    #[error("there is no socket '{}': start passt with `passt --socket {}`", .0.display(), .0.display())]
    Missing(PathBuf),
    /// The path is something else.
    #[error("'{}' is not a socket: name the one that passt says at its start", .0.display())]
    NotASocket(PathBuf),
    /// Nobody answers at the socket, or it may not be used.
    #[error("cannot connect to passt at '{}': check that it runs, and has no other guest", path.display())]
    Connect {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// What has come of the stream and was not asked for yet.
#[derive(Debug)]
struct Incoming {
    bytes: Box<[u8]>,
    begin: usize,
    end: usize,
}

impl Incoming {
    /// The next whole frame. An error if the stream is not one of frames.
    fn next(&mut self) -> io::Result<Option<&[u8]>> {
        let Some(length) = self.bytes[self.begin..self.end].first_chunk::<LENGTH>() else { return Ok(None) };
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if length > FRAME_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let begin = self.begin + LENGTH;
        if self.end - begin < length {
            return Ok(None);
        }
        self.begin = begin + length;
        Ok(Some(&self.bytes[begin..begin + length]))
    }

    /// Room behind what is there, for a whole frame at least.
    fn room(&mut self) -> &mut [u8] {
        self.bytes.copy_within(self.begin..self.end, 0);
        (self.begin, self.end) = (0, self.end - self.begin);
        &mut self.bytes[self.end..]
    }
}

/// A connection to a passt.
#[derive(Debug)]
pub struct Passt {
    stream: UnixStream,
    incoming: Incoming,
    /// A frame that has found only a part of its room, and how much of it is sent.
    outgoing: Vec<u8>,
    sent: usize,
    /// Why there is no connection any more.
    end: Option<&'static str>,
}

impl Passt {
    /// A link over `stream`, whose other end is a passt.
    ///
    /// # Errors
    /// The stream cannot be made one that never waits.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let bytes = vec![0; 2 * (LENGTH + FRAME_MAX)].into_boxed_slice();
        let incoming = Incoming { bytes, begin: 0, end: 0 };
        Ok(Self { stream, incoming, outgoing: Vec::new(), sent: 0, end: None })
    }

    /// Whether there is a socket at `path`. This does not connect: passt serves one guest and then ends, if it is told
    /// to.
    ///
    /// # Errors
    /// There is none.
    pub fn check_socket(path: &Path) -> Result<(), PasstError> {
        let metadata = path.metadata().map_err(|_| PasstError::Missing(path.into()))?;
        metadata.file_type().is_socket().then_some(()).ok_or_else(|| PasstError::NotASocket(path.into()))
    }

    /// Connects to the passt that listens at `path`.
    ///
    /// # Errors
    /// There is no such socket, or nobody answers.
    pub fn connect(path: &Path) -> Result<Self, PasstError> {
        Self::check_socket(path)?;
        let failed = |source| PasstError::Connect { path: path.into(), source };
        UnixStream::connect(path).and_then(Self::new).map_err(failed)
    }

    /// Whether the program is there.
    ///
    /// # Errors
    /// It is not.
    pub fn check_program() -> Result<(), PasstError> {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        let mut programs = std::env::split_paths(&folders).map(|folder| folder.join(PROGRAM));
        programs.any(|program| program.is_file()).then_some(()).ok_or(PasstError::NotInstalled)
    }

    /// Starts a passt for this guest alone. It ends with the connection.
    ///
    /// # Errors
    /// It is not installed, or cannot be started.
    pub fn start() -> Result<Self, PasstError> {
        Self::start_program(PROGRAM)
    }

    fn start_program(program: &str) -> Result<Self, PasstError> {
        let (ours, theirs) = UnixStream::pair().map_err(PasstError::Start)?;
        // A program inherits what is not closed for it.
        fcntl_setfd(&theirs, FdFlags::empty()).map_err(|error| PasstError::Start(error.into()))?;
        let mut command = Command::new(program);
        command.args(["--foreground", "--quiet", "--fd", &theirs.as_raw_fd().to_string()]);
        // An interrupt from the keyboard is for the VM, which may go on for a while.
        command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        command.spawn().map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => PasstError::NotInstalled,
            _ => PasstError::Start(source),
        })?;
        Self::new(ours).map_err(PasstError::Start)
    }

    /// Sends what is left of a frame, as far as there is room.
    fn push(&mut self) -> io::Result<()> {
        while self.sent < self.outgoing.len() {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match send(&self.stream, &self.outgoing[self.sent..], flags).map_err(io::Error::from) {
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => {
                    self.end = Some(ENDED);
                    return Err(error);
                }
            }
        }
        self.outgoing.clear();
        self.sent = 0;
        Ok(())
    }
}

impl Link for Passt {
    fn offloads(&self) -> bool {
        false
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn send(&mut self, packet: &[u8]) -> io::Result<()> {
        let frame = packet.get(HEADER..).unwrap_or_default();
        let length = u32::try_from(frame.len()).map_err(io::Error::other)?;
        self.push()?;
        if self.end.is_some() || !self.outgoing.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.outgoing.extend(length.to_be_bytes());
        self.outgoing.extend(frame);
        self.push()
    }

    fn receive(&mut self, packet: &mut [u8]) -> io::Result<usize> {
        // Bounded: a stream that has more than room for a frame has a whole one.
        while self.end.is_none() {
            match self.incoming.next() {
                Ok(Some(frame)) => {
                    packet[..HEADER].fill(0);
                    packet[HEADER..HEADER + frame.len()].copy_from_slice(frame);
                    return Ok(HEADER + frame.len());
                }
                Ok(None) => {}
                Err(_) => {
                    self.end = Some(NO_FRAME);
                    break;
                }
            }
            match recv(&self.stream, self.incoming.room(), RecvFlags::DONTWAIT).map_err(io::Error::from) {
                Ok((came, _)) if came > 0 => self.incoming.end += came,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
                _ => self.end = Some(ENDED),
            }
        }
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) {
        // That passt has ended is seen by the next packet.
        let _ = self.push();
    }

    fn end(&self) -> Option<&'static str> {
        self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::time::Duration;

    /// A link, and the end of a passt that is none.
    fn connected() -> (Passt, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        (Passt::new(ours).unwrap(), theirs)
    }

    fn framed(frame: &[u8]) -> Vec<u8> {
        [&u32::try_from(frame.len()).unwrap().to_be_bytes()[..], frame].concat()
    }

    fn packet(frame: &[u8]) -> Vec<u8> {
        [&[0; HEADER][..], frame].concat()
    }

    /// What the link gives, until it gives nothing more, and why not.
    fn received(link: &mut Passt) -> (Vec<Vec<u8>>, io::ErrorKind) {
        let mut packets = Vec::new();
        let mut buffer = vec![0x77; HEADER + FRAME_MAX];
        loop {
            match link.receive(&mut buffer) {
                Ok(length) => packets.push(buffer[..length].to_vec()),
                Err(error) => return (packets, error.kind()),
            }
        }
    }

    #[test]
    fn frame_is_sent_behind_its_length() {
        let (mut link, mut passt) = connected();

        link.send(&packet(&[0xab; 60])).unwrap();

        let mut stream = [0; 64];
        passt.read_exact(&mut stream).unwrap();
        assert_eq!(stream[..], framed(&[0xab; 60]));
    }

    #[test]
    fn frames_are_received_wherever_the_stream_is_cut() {
        let (mut link, mut passt) = connected();
        let stream = [framed(&[1; 60]), framed(&[2; 1514]), framed(&[]), framed(&[3; 14])].concat();

        let parts = [&stream[..2], &stream[2..70], &stream[70..]];
        let came = parts.map(|part| {
            passt.write_all(part).unwrap();
            received(&mut link)
        });

        let wait = io::ErrorKind::WouldBlock;
        assert_eq!(came[0], (vec![], wait));
        assert_eq!(came[1], (vec![packet(&[1; 60])], wait));
        assert_eq!(came[2], (vec![packet(&[2; 1514]), packet(&[]), packet(&[3; 14])], wait));
    }

    #[test]
    fn longest_frames_fit_however_many_there_are() {
        let (mut link, mut passt) = connected();
        let frame = vec![7; FRAME_MAX];
        let sender = std::thread::spawn(move || (0..4).for_each(|_| passt.write_all(&framed(&frame)).unwrap()));

        let mut packets = Vec::new();
        while packets.len() < 4 {
            packets.extend(received(&mut link).0);
            std::thread::sleep(Duration::from_millis(1));
        }

        sender.join().unwrap();
        assert!(packets.iter().all(|got| *got == packet(&vec![7; FRAME_MAX])));
    }

    #[test]
    fn length_that_no_frame_has_breaks_the_link() {
        let (mut link, mut passt) = connected();
        passt.write_all(&[0xff; 8]).unwrap();

        assert_eq!(received(&mut link), (vec![], io::ErrorKind::BrokenPipe));
        assert!(link.send(&packet(&[0; 60])).is_err());
        assert_eq!(link.end(), Some(NO_FRAME));
    }

    #[test]
    fn passt_that_ends_breaks_the_link_and_nothing_else() {
        let (mut link, passt) = connected();
        let before = link.end();
        drop(passt);

        assert_eq!(received(&mut link).1, io::ErrorKind::BrokenPipe);
        assert_eq!((before, link.end()), (None, Some(ENDED)));
        assert!((0..3).all(|_| link.send(&packet(&[0; 60])).is_err()));
    }

    #[test]
    fn frame_that_found_a_part_of_its_room_is_sent_whole_later_and_the_next_is_refused() {
        let (mut link, mut passt) = connected();
        let frame = vec![9; 60_000];
        let mut taken = 0;
        while link.send(&packet(&frame)).is_ok() {
            taken += 1;
        }

        let mut stream = vec![0; taken * (LENGTH + frame.len())];
        let mut read = 0;
        while read < stream.len() {
            read += passt.read(&mut stream[read..]).unwrap();
            link.flush();
        }

        assert!(stream.chunks(LENGTH + frame.len()).all(|chunk| *chunk == framed(&frame)));
        assert!(link.send(&packet(&frame)).is_ok());
    }

    #[test]
    fn path_without_a_socket_is_reported_with_the_way_out() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();

        let [missing, other] = [folder.path().join("none"), file].map(|path| Passt::connect(&path).unwrap_err());

        assert!(missing.to_string().contains("there is no socket") && missing.to_string().contains("passt --socket"));
        assert!(matches!(other, PasstError::NotASocket(_)));
    }

    #[test]
    fn program_that_is_missing_is_reported_with_the_way_out() {
        let error = Passt::start_program("strata-no-such-passt").unwrap_err().to_string();

        assert!(error.contains("install it") && error.contains("--net passt=SOCKET"), "{error}");
    }

    #[test]
    fn program_that_is_started_has_the_other_end() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("passt");
        // Answers with a frame of two bytes on the descriptor of its option.
        let script = "#!/bin/bash\nfor last; do :; done\nprintf '\\0\\0\\0\\002ok' >&$last\n";
        std::fs::write(&program, script).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode).unwrap();

        let mut link = Passt::start_program(program.to_str().unwrap()).unwrap();

        let mut packets = Vec::new();
        while packets.is_empty() {
            let (came, why) = received(&mut link);
            assert!(!came.is_empty() || why == io::ErrorKind::WouldBlock, "{why}");
            packets.extend(came);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(packets, [packet(b"ok")]);
    }
}
