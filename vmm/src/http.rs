//! The small HTTP servers of `strata open` and `strata metrics`: several connections at a time, and heads of requests.
//!
//! Whoever connects may be slow, or a page in a browser that got here by a name of its own (DNS rebinding): a head has one
//! deadline, and the name that it asks for has to be one of this machine's.

use rustix::event::{EventfdFlags, eventfd};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use strata_recorder::control::socket_wait::{left, next_client, read_until};

/// Longest head that is read, bytes.
const LONGEST_HEAD: usize = 16 << 10;
/// Most connections at a time. For a further one, that is closed which has waited longest for its head; where all have come,
/// it waits.
const MAX_CONNECTIONS: usize = 64;

/// The head of a request, as far as it matters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// `GET`, for instance.
    pub method: String,
    /// From the `/` on.
    pub path: String,
    /// Whom it was sent to, a port behind it perhaps.
    pub host: Option<String>,
}

impl Head {
    /// The head that `bytes` begin with; `None` where they do not hold all of one.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<Self> {
        has_end(bytes).then(|| Self::of_text(&String::from_utf8_lossy(bytes)))
    }

    fn of_text(text: &str) -> Self {
        let mut lines = text.lines();
        let mut words = lines.next().unwrap_or_default().split_whitespace().map(String::from);
        let is_host = |name: &str| name.eq_ignore_ascii_case("host");
        let host = lines.filter_map(|line| line.split_once(':')).find(|(name, _)| is_host(name));
        Self {
            method: words.next().unwrap_or_default(),
            path: words.next().unwrap_or_default(),
            host: host.map(|(_, host)| host.trim().to_owned()),
        }
    }

    /// Whether it was sent to this machine by an address, by `localhost` or by one of `names`. Any other name may be one
    /// that somebody else has given this machine.
    #[must_use]
    pub fn is_for(&self, names: &[String]) -> bool {
        let Some(host) = &self.host else { return false };
        if let Some((address, _)) = host.strip_prefix('[').and_then(|host| host.split_once(']')) {
            return address.parse::<Ipv6Addr>().is_ok();
        }
        let name = host.split(':').next().unwrap_or_default();
        let is_name = |known: &str| name.eq_ignore_ascii_case(known);
        name.parse::<IpAddr>().is_ok() || is_name("localhost") || names.iter().any(|known| is_name(known))
    }
}

/// What comes after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Further ones.
    Serve,
    End,
}

/// Answers requests to `listener` by `answer`, each on a thread of its own, until one says that it was the last. The head of a
/// request has to come within `head_limit`.
///
/// # Errors
/// The listener cannot be used.
pub fn serve(
    listener: &TcpListener,
    head_limit: Duration,
    answer: impl Fn(&TcpStream, &Head) -> io::Result<Next> + Send + Sync + 'static,
) -> io::Result<()> {
    let start = |serve| std::thread::Builder::new().name("strata-http".into()).spawn(serve).map(drop);
    serve_by(listener, head_limit, answer, start)
}

/// What one connection is answered by, on a thread of its own.
type Serve = Box<dyn FnOnce() + Send>;

/// The same, where `start` starts the threads.
fn serve_by(
    listener: &TcpListener,
    head_limit: Duration,
    answer: impl Fn(&TcpStream, &Head) -> io::Result<Next> + Send + Sync + 'static,
    mut start: impl FnMut(Serve) -> io::Result<()>,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let (answer, connections) = (Arc::new(answer), Arc::new(Connections::default()));
    let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
    while let Some((stream, _)) = next_client(listener, &end, || listener.accept())? {
        let (answer, end) = (Arc::clone(&answer), Arc::clone(&end));
        let connection = Connections::add(&connections, stream);
        let serve = move || {
            let answered = connection.head(head_limit).and_then(|head| answer(&connection.stream, &head));
            // A connection that breaks is made again.
            if answered.is_ok_and(|next| next == Next::End) {
                let _ = rustix::io::write(&*end, &1_u64.to_ne_bytes());
            }
        };
        // One that no thread can be had for is closed: its client may come again.
        let _ = start(Box::new(serve));
    }
    Ok(())
}

/// Connections that are being answered.
#[derive(Debug, Default)]
struct Connections {
    open: Mutex<Open>,
    one_has_ended: Condvar,
}

#[derive(Debug, Default)]
struct Open {
    count: usize,
    /// Those whose head has not come, by number: the first one has waited longest.
    waiting: BTreeMap<u64, Arc<TcpStream>>,
    next: u64,
}

impl Connections {
    /// Adds `stream`, for which another one may have to go.
    fn add(connections: &Arc<Self>, stream: TcpStream) -> Connection {
        let (stream, mut open) = (Arc::new(stream), connections.lock());
        while open.count >= MAX_CONNECTIONS {
            if let Some((_, silent)) = open.waiting.pop_first() {
                // Its thread finds it closed and ends.
                let _ = silent.shutdown(Shutdown::Both);
            }
            open = connections.one_has_ended.wait(open).unwrap_or_else(PoisonError::into_inner);
        }
        let number = open.next;
        open.next += 1;
        open.count += 1;
        open.waiting.insert(number, Arc::clone(&stream));
        Connection { stream, number, connections: Arc::clone(connections) }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of the connections, which makes room when this is dropped.
struct Connection {
    stream: Arc<TcpStream>,
    number: u64,
    connections: Arc<Connections>,
}

impl Connection {
    /// Reads the head of the request, which has to come within `limit`.
    fn head(&self, limit: Duration) -> io::Result<Head> {
        self.stream.set_nonblocking(false)?;
        let head = read_head(&self.stream, Instant::now() + limit)?;
        self.connections.lock().waiting.remove(&self.number);
        Ok(head)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut open = self.connections.lock();
        open.waiting.remove(&self.number);
        open.count -= 1;
        self.connections.one_has_ended.notify_one();
    }
}

/// Reads the head of a request from `stream`, all of it up to `deadline`. Fails where the stream does, the head is too long,
/// or does not come in time.
fn read_head(stream: &TcpStream, deadline: Instant) -> io::Result<Head> {
    let head = read_until(stream, LONGEST_HEAD, deadline, has_end)?;
    Head::of(&head).ok_or_else(|| ErrorKind::UnexpectedEof.into())
}

/// Writes all of `bytes` to `stream` up to `deadline`.
///
/// # Errors
/// When the stream fails, or does not take them in time.
pub fn write_until(mut stream: &TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(deadline)?))?;
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether `head` ends with an empty line. What may follow it says nothing here.
fn has_end(head: &[u8]) -> bool {
    head.windows(2).any(|end| end == b"\n\n") || head.windows(4).any(|end| end == b"\r\n\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{Ipv4Addr, SocketAddr};

    fn sent_to(host: &str) -> Head {
        Head::of_text(&format!("GET / HTTP/1.1\r\nhOST: {host}\r\n\r\n"))
    }

    fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[test]
    fn head_has_its_first_line_and_its_host() {
        let head = Head::of_text("GET /metrics HTTP/1.1\r\nAccept: a:b\r\nHost: web:9464 \r\n\r\n");

        assert_eq!(head, Head { method: "GET".into(), path: "/metrics".into(), host: Some("web:9464".into()) });
    }

    #[test]
    fn names_that_are_not_this_machines_are_known() {
        let names = ["web.example".to_owned()];

        let of_this = ["127.0.0.1:9001", "192.0.2.7", "[::1]:80", "LOCALHOST:1", "web.example:9464"];
        let of_others = ["evil.example:9001", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "[x]:80"];

        assert!(of_this.iter().all(|host| sent_to(host).is_for(&names)));
        assert!(!of_others.iter().any(|host| sent_to(host).is_for(&names)));
        assert!(!Head::default().is_for(&names));
    }

    #[test]
    fn head_that_drips_has_one_deadline() {
        let (listener, address) = listener();
        let drip = std::thread::spawn(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            while stream.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let (stream, _) = listener.accept().unwrap();

        let error = read_head(&stream, Instant::now() + Duration::from_millis(100)).unwrap_err();
        drop(stream);
        drip.join().unwrap();

        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn head_without_an_end_is_cut_off() {
        let (listener, address) = listener();
        let flood = std::thread::spawn(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            // The other side closes while there is more to come.
            let _ = stream.write_all(&vec![b'x'; 1 << 20]);
        });

        let (stream, _) = listener.accept().unwrap();
        let head = read_head(&stream, Instant::now() + LIMIT);
        drop(stream);
        flood.join().unwrap();

        assert!(head.is_err());
    }

    #[test]
    fn answer_that_nobody_reads_has_one_deadline() {
        let (listener, address) = listener();
        let _client = TcpStream::connect(address).unwrap();
        let (stream, _) = listener.accept().unwrap();

        let error = write_until(&stream, &vec![0; 64 << 20], Instant::now() + Duration::from_millis(100)).unwrap_err();

        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }

    /// How long a head may take: longer than any test.
    const LIMIT: Duration = Duration::from_secs(600);

    /// Answers each request, that for `/last` as the last one.
    fn answer(stream: &TcpStream, head: &Head) -> io::Result<Next> {
        write_until(stream, b"answered", Instant::now() + LIMIT)?;
        Ok(if head.path == "/last" { Next::End } else { Next::Serve })
    }

    /// What is answered to a request for `path`; what came of it where the connection breaks.
    fn answer_to(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        let mut text = Vec::new();
        let _ = write!(stream, "GET {path} HTTP/1.1\r\n\r\n").and_then(|()| stream.read_to_end(&mut text));
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn connections_that_say_nothing_hold_up_no_other() {
        let (listener, address) = listener();
        let server = std::thread::spawn(move || serve(&listener, LIMIT, answer));
        let _silent: Vec<_> = (0..2 * MAX_CONNECTIONS).map(|_| TcpStream::connect(address).unwrap()).collect();

        let answers = [answer_to(address, "/"), answer_to(address, "/last")];

        assert_eq!(answers, ["answered", "answered"]);
        assert!(server.join().unwrap().is_ok());
    }

    #[test]
    fn connection_that_no_thread_can_be_had_for_is_closed_and_the_next_one_answered() {
        let (listener, address) = listener();
        let mut answers = [Err(ErrorKind::WouldBlock.into()), Ok(())].into_iter();
        let start = move |serve: Serve| answers.next().unwrap().map(|()| drop(std::thread::spawn(serve)));
        let server = std::thread::spawn(move || serve_by(&listener, LIMIT, answer, start));

        let answers = [answer_to(address, "/last"), answer_to(address, "/last")];

        assert_eq!(answers, ["", "answered"]);
        assert!(server.join().unwrap().is_ok());
    }
}
