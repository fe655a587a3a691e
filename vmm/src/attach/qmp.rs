//! QEMU's machine protocol (QMP): requests, answers and events, each a line of JSON on a UNIX socket.
//!
//! QEMU serves one client of a socket at a time. What it sends is bounded in size and time, for each answer and for the
//! whole conversation: it may be any process's. A signal ends each wait.

use super::stop::Stop;
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use strata_recorder::control::peer::{Peer, connect_while};
use strata_recording::text::terminal::foreign::Foreign;
use thiserror::Error;

/// How long QEMU may take for an answer. A machine that is being set up, or a busy host, takes a while.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Longest line that is read, bytes.
const MAX_LINE: usize = 1 << 20;
/// Most lines that are read in a conversation: events may come in front of an answer.
const MAX_LINES: u32 = 10_000;
/// How often a wait looks whether a signal has come.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Why QEMU does not do a command.
#[derive(Debug, Error)]
pub enum QmpError {
    /// There is no such socket, or nobody listens.
    #[error(
        "cannot connect to '{}': give the QMP socket of the VM's QEMU, which is started with \
         -qmp unix:{},server=on,wait=off", socket.display(), socket.display()
    )]
    Connect {
        socket: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Somebody else listens there.
    #[error(
        "'{}' is a socket of process {peer}, and the VM is process {pid}'s: give the QMP socket of that QEMU",
        socket.display()
    )]
    OtherProcess {
        socket: PathBuf,
        /// Who was meant.
        pid: u32,
        /// Who listens.
        peer: u32,
    },
    /// Nothing came in time.
    #[error(
        "nothing answers at '{}' within {} s: is it a QMP socket, and is another client connected? \
         QEMU serves one at a time. Give Strata its own, -qmp unix:PATH,server=on,wait=off",
        socket.display(), ANSWER_LIMIT.as_secs()
    )]
    Silent { socket: PathBuf },
    /// All in all it took too long.
    #[error("the server at '{}' took over {} s to answer", socket.display(), limit.as_secs())]
    Slow {
        socket: PathBuf,
        /// How long it may take.
        limit: Duration,
    },
    /// A signal has come.
    #[error("a signal ended the wait for QEMU")]
    Signal,
    /// Something else than QMP came.
    #[error("the server at '{}' does not speak QMP: give the socket of QEMU's option -qmp", socket.display())]
    NotQmp { socket: PathBuf },
    /// The connection was ended, or broke.
    #[error("the connection to '{}' has ended", socket.display())]
    Closed {
        socket: PathBuf,
        #[source]
        source: io::Error,
    },
    /// QEMU does not do it.
    #[error("QEMU refuses {command}: {reason}")]
    Refused {
        command: &'static str,
        /// The class of the error, as `DeviceNotFound`.
        class: Foreign<String>,
        reason: Foreign<String>,
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
    /// Lines that may still come.
    lines_left: u32,
    patience: Patience,
}

/// How long QEMU is waited for.
#[derive(Clone, Debug)]
pub struct Patience {
    /// How long an answer may take.
    answer: Duration,
    /// How long the whole conversation may take, and when that is over.
    all: Duration,
    deadline: Instant,
    stop: Stop,
}

impl Patience {
    /// For a conversation that begins now and takes `all` at most, or up to a signal.
    pub fn of(all: Duration, stop: &Stop) -> Self {
        Self { answer: ANSWER_LIMIT, all, deadline: Instant::now() + all, stop: stop.clone() }
    }

    /// How long the next wait for something up to `deadline` may be; zero when that is over.
    fn next_wait(&self, socket: &Path, deadline: Instant) -> Result<Duration, QmpError> {
        if self.stop.is_requested() {
            return Err(QmpError::Signal);
        }
        let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
        if left(self.deadline).is_zero() {
            return Err(QmpError::Slow { socket: socket.into(), limit: self.all });
        }
        Ok(left(deadline.min(self.deadline)).min(LOOK_INTERVAL))
    }
}

impl Qmp {
    /// Connects to `socket`, on which process `pid` listens.
    ///
    /// # Errors
    /// Nobody or somebody else listens there, or does not speak QMP; or `patience` is over.
    pub fn connect(socket: &Path, pid: u32, patience: Patience) -> Result<Self, QmpError> {
        let failed = |source| QmpError::Connect { socket: socket.into(), source };
        let deadline = Instant::now() + patience.answer;
        let mut over = None;
        let stream = connect_while(socket, || match patience.next_wait(socket, deadline) {
            Ok(wait) if !wait.is_zero() => Ok(wait),
            ended => {
                over = Some(ended.err().unwrap_or_else(|| QmpError::Silent { socket: socket.into() }));
                Err(io::ErrorKind::TimedOut.into())
            }
        });
        let stream = stream.map_err(|source| over.unwrap_or_else(|| failed(source)))?;
        let peer = Peer::of(&stream).map_err(failed)?.pid;
        if peer != pid {
            return Err(QmpError::OtherProcess { socket: socket.into(), pid, peer });
        }
        Self::greet(stream, socket, patience)
    }

    /// Waits for the greeting on `stream`, which leads to `socket`, and answers it.
    ///
    /// # Errors
    /// What speaks there is not QMP, or `patience` is over.
    pub fn greet(stream: UnixStream, socket: &Path, patience: Patience) -> Result<Self, QmpError> {
        let limit = patience.answer;
        let mut qmp = Self {
            stream,
            socket: socket.into(),
            buffer: Vec::new(),
            last_id: 0,
            deleted: Vec::new(),
            lines_left: MAX_LINES,
            patience,
        };
        let greeting = qmp.read(Instant::now() + limit)?;
        if !greeting["QMP"].is_object() {
            return Err(qmp.not_qmp());
        }
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// For undoing what has failed: from here on the conversation has `limit`, and only a further signal ends it.
    pub fn begin_undoing(&mut self, limit: Duration) {
        self.patience = Patience::of(limit, &self.patience.stop.beginning_now());
    }

    /// Sends `command`; returns its number.
    fn send(&mut self, command: &'static str, arguments: &Value) -> Result<u64, QmpError> {
        self.last_id += 1;
        let mut line = json!({"execute": command, "arguments": arguments, "id": self.last_id}).to_string();
        line.push('\n');
        // What is sent in all is less than what a socket takes: who does not take it does not read.
        let _ = self.stream.set_write_timeout(Some(LOOK_INTERVAL));
        self.stream.write_all(line.as_bytes()).map_err(|source| self.broken(source))?;
        Ok(self.last_id)
    }

    /// Has QEMU do `command`; returns what it answers.
    ///
    /// # Errors
    /// QEMU refuses, or does not answer.
    pub fn execute(&mut self, command: &'static str, arguments: &Value) -> Result<Value, QmpError> {
        let id = self.send(command, arguments)?;
        let deadline = Instant::now() + self.patience.answer;
        loop {
            let mut answer = self.read(deadline)?;
            if answer["id"].as_u64() != Some(id) {
                self.note_event(&answer);
                continue;
            }
            if let Some(error) = answer.get("error") {
                let text = |key: &str| Foreign::from(error[key].as_str().unwrap_or("for no reason it gives"));
                return Err(QmpError::Refused { command, class: text("class"), reason: text("desc") });
            }
            return answer.get_mut("return").map(Value::take).ok_or_else(|| self.not_qmp());
        }
    }

    /// Waits until QEMU says that `device` is gone, for `limit` at most; says whether it has.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn is_deleted_within(&mut self, device: &str, limit: Duration) -> Result<bool, QmpError> {
        let deadline = Instant::now() + limit;
        loop {
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
        self.lines_left = self.lines_left.checked_sub(1).ok_or_else(|| self.not_qmp())?;
        loop {
            let wait = self.patience.next_wait(&self.socket, deadline)?;
            if let Some(end) = self.buffer[searched..].iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=searched + end).collect();
                return serde_json::from_slice(&line).map_err(|_| self.not_qmp());
            }
            searched = self.buffer.len();
            if searched > MAX_LINE {
                return Err(self.not_qmp());
            }
            if wait.is_zero() {
                return Err(QmpError::Silent { socket: self.socket.clone() });
            }
            self.stream.set_read_timeout(Some(wait)).map_err(|source| self.broken(source))?;
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

    /// For answers of `answer` each.
    fn patience(answer: Duration) -> Patience {
        Patience { answer, ..Patience::of(Duration::from_secs(30), &Stop::default()) }
    }

    impl Qmp {
        /// From now on `stop` ends its waits.
        pub fn stop_by(&mut self, stop: &Stop) {
            self.patience.stop = stop.clone();
        }
    }

    /// The commands and their arguments that a scripted QEMU got.
    pub type Reported = Vec<(String, Value)>;

    /// A QEMU that answers each command as `answer` says, with lines of its own in front; it ends with the connection,
    /// and returns the commands that it got.
    pub fn scripted(
        answer: impl Fn(&str, &Value) -> Vec<Value> + Send + 'static,
    ) -> (Result<Qmp, QmpError>, JoinHandle<Reported>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let qemu = std::thread::spawn(move || {
            let mut writer = theirs.try_clone().unwrap();
            writeln!(writer, "{GREETING}").unwrap();
            let mut reported = Vec::new();
            for line in BufReader::new(theirs).lines().map_while(Result::ok) {
                let request: Value = serde_json::from_str(&line).unwrap();
                let command = request["execute"].as_str().unwrap().to_owned();
                for mut line in answer(&command, &request["arguments"]) {
                    if line.get("event").is_none() {
                        line["id"] = request["id"].clone();
                    }
                    // Who has heard enough hangs up.
                    let _ = writeln!(writer, "{line}");
                }
                reported.push((command, request["arguments"].clone()));
            }
            reported
        });
        (Qmp::greet(ours, Path::new("/qmp"), patience(Duration::from_millis(500))), qemu)
    }

    /// What a QEMU is that says `text` and nothing else.
    fn greeted(text: &[u8]) -> String {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(text).unwrap();
        Qmp::greet(ours, Path::new("/qmp"), patience(Duration::from_millis(50))).unwrap_err().to_string()
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
    fn refusal_quotes_nothing_that_acts() {
        let (qmp, _qemu) = scripted(|command, _| {
            vec![match command {
                "device_add" => json!({"error": {"class": "x", "desc": "no\x1b[2J\nstrata: plugged\u{202e}"}}),
                _ => json!({"return": {}}),
            }]
        });

        let error = qmp.unwrap().execute("device_add", &json!({})).unwrap_err();

        assert_eq!(error.to_string(), "QEMU refuses device_add: no\\u{1b}[2J\\nstrata: plugged\\u{202e}");
    }

    #[test]
    fn what_is_not_qmp_is_named() {
        let endless = vec![b'x'; 2 * MAX_LINE];

        let (silent, text) = (greeted(b""), greeted(b"SSH-2.0-OpenSSH_9.2\n"));
        let other = greeted(b"{\"return\": {}}\n");
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let writer = std::thread::spawn(move || theirs.write_all(&endless).is_ok());
        let long = Qmp::greet(ours, Path::new("/qmp"), patience(Duration::from_secs(10))).unwrap_err().to_string();
        writer.join().unwrap();

        assert!(silent.contains("nothing answers at '/qmp'"), "{silent}");
        for printed in [text, other, long] {
            assert!(printed.contains("does not speak QMP"), "{printed}");
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
    fn conversation_has_a_deadline_whatever_single_answers_take() {
        let (qmp, _qemu) = scripted(|_, _| vec![json!({"return": {}})]);
        let mut qmp = qmp.unwrap();
        qmp.patience.deadline = Instant::now();

        let error = qmp.execute("query-status", &json!({})).unwrap_err();

        assert!(matches!(error, QmpError::Slow { .. }), "{error}");
    }

    #[test]
    fn signal_ends_the_wait_for_an_answer() {
        let (qmp, _qemu) = scripted(|command, _| match command {
            "qmp_capabilities" => vec![json!({"return": {}})],
            _ => Vec::new(),
        });
        let mut qmp = qmp.unwrap();
        let stop = Stop::default();
        qmp.stop_by(&stop);
        qmp.patience.answer = Duration::from_secs(30);
        let signal = std::thread::spawn(move || {
            std::thread::sleep(LOOK_INTERVAL / 2);
            stop.request();
        });

        let error = qmp.execute("query-status", &json!({})).unwrap_err();
        signal.join().unwrap();

        assert!(matches!(error, QmpError::Signal), "{error}");
    }

    #[test]
    fn lines_of_a_conversation_are_counted() {
        let (qmp, _qemu) =
            scripted(|_, _| vec![json!({"event": "RESET"}), json!({"event": "RESET"}), json!({"return": {}})]);
        let mut qmp = qmp.unwrap();
        qmp.lines_left = 4;

        let answered = qmp.execute("query-status", &json!({})).is_ok();
        let error = qmp.execute("query-status", &json!({})).unwrap_err();

        assert!(answered && matches!(error, QmpError::NotQmp { .. }), "{error}");
    }

    #[test]
    fn socket_that_accepts_nobody_is_silent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qmp");
        let listener = rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None);
        let listener = listener.unwrap();
        rustix::net::bind(&listener, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let _first = UnixStream::connect(&path).unwrap();

        let error = Qmp::connect(&path, std::process::id(), patience(Duration::from_millis(50))).unwrap_err();

        assert!(matches!(error, QmpError::Silent { .. }), "{error}");
    }

    #[test]
    fn socket_that_is_not_there_and_that_of_another_process_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qmp");

        let missing = Qmp::connect(&path, std::process::id(), patience(ANSWER_LIMIT)).unwrap_err().to_string();
        let _listener = UnixListener::bind(&path).unwrap();
        let other = Qmp::connect(&path, 1, patience(ANSWER_LIMIT)).unwrap_err().to_string();

        assert!(missing.contains("-qmp unix:") && missing.contains("server=on"), "{missing}");
        let this = format!("a socket of process {}, and the VM is process 1's", std::process::id());
        assert!(other.contains(&this), "{other}");
    }
}
