//! QEMU's machine protocol (QMP): requests, answers and events, each a line of JSON on a UNIX socket.
//!
//! QEMU serves one client of a socket at a time. What it sends is bounded in size and time: it may be any process's.

use rustix::net::sockopt::socket_peercred;
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use thiserror::Error;

/// How long QEMU may take for an answer. A machine that is being set up, or a busy host, takes a while.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Longest line that is read, bytes.
const MAX_LINE: usize = 1 << 20;
/// Most lines that are read for one answer: events may come in front of it.
const MAX_LINES: u32 = 10_000;

/// Why QEMU cannot be told something.
#[derive(Debug, Error)]
pub enum QmpError {
    /// There is no such socket, or nobody listens.
    #[error(
        "cannot connect to '{}': give the QMP socket of the VM's QEMU, which is started with \
         -qmp unix:{},server=on,wait=off", socket.display(), socket.display()
    )]
    Connect {
        /// The socket.
        socket: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// Somebody else listens there.
    #[error(
        "'{}' is a socket of process {peer}, and the VM is process {pid}'s: give the QMP socket of that QEMU",
        socket.display()
    )]
    OtherProcess {
        /// The socket.
        socket: PathBuf,
        /// Who was meant.
        pid: u32,
        /// Who listens.
        peer: i32,
    },
    /// Nothing came in time.
    #[error(
        "nothing answers at '{}' for {} s: is it QMP's, and is no other client connected to it, of which QEMU serves \
         one at a time? Give a socket of its own, -qmp unix:PATH,server=on,wait=off",
        socket.display(), ANSWER_LIMIT.as_secs()
    )]
    Silent {
        /// The socket.
        socket: PathBuf,
    },
    /// Something else than QMP came.
    #[error("what answers at '{}' does not speak QMP: give the socket of QEMU's option -qmp", socket.display())]
    NotQmp {
        /// The socket.
        socket: PathBuf,
    },
    /// The connection was ended, or broke.
    #[error("the connection to '{}' has ended", socket.display())]
    Closed {
        /// The socket.
        socket: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// QEMU does not do it.
    #[error("QEMU refuses {command}: {reason}")]
    Refused {
        /// What it was told.
        command: &'static str,
        /// The class of the error, as `DeviceNotFound`.
        class: String,
        /// What it says.
        reason: String,
    },
}

/// A connection to a QEMU.
#[derive(Debug)]
pub struct Qmp {
    stream: UnixStream,
    socket: PathBuf,
    /// What was read behind the last line.
    buffer: Vec<u8>,
    /// Number of the last request.
    last_id: u64,
    /// Devices that QEMU has said are gone.
    deleted: Vec<String>,
    /// How long an answer may take.
    limit: Duration,
}

impl Qmp {
    /// Connects to `socket`, on which process `pid` listens.
    ///
    /// # Errors
    /// Nobody or somebody else listens there, or does not speak QMP.
    pub fn connect(socket: &Path, pid: u32) -> Result<Self, QmpError> {
        let failed = |source| QmpError::Connect { socket: socket.into(), source };
        let stream = UnixStream::connect(socket).map_err(failed)?;
        let peer = socket_peercred(&stream).map_err(|errno| failed(errno.into()))?.pid.as_raw_nonzero().get();
        if u32::try_from(peer) != Ok(pid) {
            return Err(QmpError::OtherProcess { socket: socket.into(), pid, peer });
        }
        Self::greet(stream, socket, ANSWER_LIMIT)
    }

    /// Waits for the greeting on `stream`, and answers it. No answer may take longer than `limit`.
    fn greet(stream: UnixStream, socket: &Path, limit: Duration) -> Result<Self, QmpError> {
        let mut qmp =
            Self { stream, socket: socket.into(), buffer: Vec::new(), last_id: 0, deleted: Vec::new(), limit };
        let greeting = qmp.read(Instant::now() + limit)?;
        if !greeting["QMP"].is_object() {
            return Err(qmp.not_qmp());
        }
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Has QEMU do `command`; returns what it answers.
    ///
    /// # Errors
    /// QEMU refuses, or does not answer.
    pub fn execute(&mut self, command: &'static str, arguments: &Value) -> Result<Value, QmpError> {
        let deadline = Instant::now() + self.limit;
        self.last_id += 1;
        let id = self.last_id;
        let mut line = json!({"execute": command, "arguments": arguments, "id": id}).to_string();
        line.push('\n');
        let _ = self.stream.set_write_timeout(Some(self.limit));
        self.stream.write_all(line.as_bytes()).map_err(|source| self.broken(source))?;
        for _ in 0..MAX_LINES {
            let mut answer = self.read(deadline)?;
            if answer["id"].as_u64() != Some(id) {
                self.note_event(&answer);
                continue;
            }
            if let Some(error) = answer.get("error") {
                let text = |key: &str| error[key].as_str().unwrap_or("for no reason it gives").to_owned();
                return Err(QmpError::Refused { command, class: text("class"), reason: text("desc") });
            }
            return answer.get_mut("return").map(Value::take).ok_or_else(|| self.not_qmp());
        }
        Err(self.not_qmp())
    }

    /// Waits until QEMU says that `device` is gone, for `limit` at most; says whether it has.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn is_deleted_within(&mut self, device: &str, limit: Duration) -> Result<bool, QmpError> {
        let deadline = Instant::now() + limit;
        for _ in 0..MAX_LINES {
            if let Some(place) = self.deleted.iter().position(|deleted| deleted == device) {
                self.deleted.swap_remove(place);
                return Ok(true);
            }
            match self.read(deadline) {
                Ok(event) => self.note_event(&event),
                Err(QmpError::Silent { .. }) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Keeps what is waited for: nobody else's devices.
    fn note_event(&mut self, event: &Value) {
        if event["event"] == "DEVICE_DELETED"
            && let Some(device) = event["data"]["device"].as_str()
            && self.deleted.len() < 64
        {
            self.deleted.push(device.into());
        }
    }

    /// The next line.
    fn read(&mut self, deadline: Instant) -> Result<Value, QmpError> {
        let mut searched = 0;
        loop {
            if let Some(end) = self.buffer[searched..].iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=searched + end).collect();
                return serde_json::from_slice(&line).map_err(|_| self.not_qmp());
            }
            searched = self.buffer.len();
            if searched > MAX_LINE {
                return Err(self.not_qmp());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(QmpError::Silent { socket: self.socket.clone() });
            }
            self.stream.set_read_timeout(Some(left)).map_err(|source| self.broken(source))?;
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(self.broken(io::ErrorKind::UnexpectedEof.into())),
                Ok(read) => self.buffer.extend_from_slice(&chunk[..read]),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Err(self.broken(error)),
            }
        }
    }

    fn not_qmp(&self) -> QmpError {
        QmpError::NotQmp { socket: self.socket.clone() }
    }

    fn broken(&self, source: io::Error) -> QmpError {
        QmpError::Closed { socket: self.socket.clone(), source }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;
    use std::thread::JoinHandle;

    const GREETING: &str =
        r#"{"QMP": {"version": {"qemu": {"micro": 2, "minor": 0, "major": 10}}, "capabilities": []}}"#;

    /// The commands and their arguments that a scripted QEMU was told.
    pub type Told = Vec<(String, Value)>;

    /// A QEMU that answers each command as `answer` says, with lines of its own in front; it ends with the connection,
    /// and returns the commands that it was told.
    pub fn scripted(
        answer: impl Fn(&str, &Value) -> Vec<Value> + Send + 'static,
    ) -> (Result<Qmp, QmpError>, JoinHandle<Told>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let qemu = std::thread::spawn(move || {
            let mut writer = theirs.try_clone().unwrap();
            writeln!(writer, "{GREETING}").unwrap();
            let mut told = Vec::new();
            for line in BufReader::new(theirs).lines().map_while(Result::ok) {
                let request: Value = serde_json::from_str(&line).unwrap();
                let command = request["execute"].as_str().unwrap().to_owned();
                for mut line in answer(&command, &request["arguments"]) {
                    if line.get("event").is_none() {
                        line["id"] = request["id"].clone();
                    }
                    writeln!(writer, "{line}").unwrap();
                }
                told.push((command, request["arguments"].clone()));
            }
            told
        });
        (Qmp::greet(ours, Path::new("/qmp"), Duration::from_millis(500)), qemu)
    }

    /// What a QEMU is that says `text` and nothing else.
    fn greeted(text: &[u8]) -> String {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(text).unwrap();
        Qmp::greet(ours, Path::new("/qmp"), Duration::from_millis(50)).unwrap_err().to_string()
    }

    #[test]
    fn answer_is_found_behind_events_and_what_is_deleted_is_kept() {
        let (qmp, qemu) = scripted(|_, _| {
            vec![
                json!({"event": "DEVICE_DELETED", "data": {"path": "/machine/peripheral/x", "device": "x"}}),
                json!({"return": {"a": 1}}),
            ]
        });
        let mut qmp = qmp.unwrap();

        let answer = qmp.execute("query-status", &json!({})).unwrap();
        let (gone, other) = (
            qmp.is_deleted_within("x", Duration::ZERO).unwrap(),
            qmp.is_deleted_within("y", Duration::from_millis(20)).unwrap(),
        );
        drop(qmp);

        assert_eq!((answer, gone, other), (json!({"a": 1}), true, false));
        assert_eq!(qemu.join().unwrap().len(), 2);
    }

    #[test]
    fn refusal_says_what_was_refused_and_why() {
        let (qmp, _qemu) = scripted(|command, _| {
            vec![match command {
                "device_add" => json!({"error": {"class": "GenericError", "desc": "Bus 'x' not found"}}),
                _ => json!({"return": {}}),
            }]
        });

        let error = qmp.unwrap().execute("device_add", &json!({"bus": "x"})).unwrap_err();

        assert_eq!(error.to_string(), "QEMU refuses device_add: Bus 'x' not found");
    }

    #[test]
    fn what_is_not_qmp_is_named() {
        let endless = vec![b'x'; 2 * MAX_LINE];

        let (silent, text) = (greeted(b""), greeted(b"SSH-2.0-OpenSSH_9.2\n"));
        let other = greeted(b"{\"return\": {}}\n");
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let writer = std::thread::spawn(move || theirs.write_all(&endless).is_ok());
        let long = Qmp::greet(ours, Path::new("/qmp"), Duration::from_secs(10)).unwrap_err().to_string();
        writer.join().unwrap();

        assert!(silent.contains("nothing answers at '/qmp'"), "{silent}");
        for said in [text, other, long] {
            assert!(said.contains("does not speak QMP"), "{said}");
        }
    }

    #[test]
    fn answer_that_never_comes_is_not_waited_for_long() {
        let (qmp, _qemu) = scripted(|command, _| match command {
            "qmp_capabilities" => vec![json!({"return": {}})],
            _ => Vec::new(),
        });

        let error = qmp.unwrap().execute("query-status", &json!({})).unwrap_err();

        assert!(matches!(error, QmpError::Silent { .. }), "{error}");
    }

    #[test]
    fn socket_that_is_not_there_and_that_of_another_process_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qmp");

        let missing = Qmp::connect(&path, std::process::id()).unwrap_err().to_string();
        let _listener = UnixListener::bind(&path).unwrap();
        let other = Qmp::connect(&path, 1).unwrap_err().to_string();

        assert!(missing.contains("-qmp unix:") && missing.contains("server=on"), "{missing}");
        let this = format!("a socket of process {}, and the VM is process 1's", std::process::id());
        assert!(other.contains(&this), "{other}");
    }
}
