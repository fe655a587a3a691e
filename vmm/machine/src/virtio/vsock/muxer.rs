//! Joins the connections of a guest to sockets of the host, in the way of Firecracker: a program of the host connects
//! to one socket and says `CONNECT PORT`; what the guest connects to is a socket of the host for each port.

use super::flow::Flow;
use super::packet::{Header, Operation, Ports};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use rustix::time::Timespec;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use strata_observer::{Observer, VsockEnd, VsockSide};

/// Connections at once, with those programs of the host that have not said yet what they want. Each has a descriptor.
pub const CONNECTIONS_MAX: usize = 64;
/// Refusals that wait for a buffer of the guest's: what is more is not told.
const REFUSALS_MAX: usize = 256;
/// Longest line with which a program of the host asks for a port, bytes.
const CALL_MAX: usize = 32;
/// First port of the host's side of connections that the host asks for, as Firecracker's; there are as many again.
const HOST_PORTS: u32 = 1 << 30;
/// Stands for the socket that accepts where connections have their ids, which count from 1.
const CALLERS: u64 = 0;

/// Where connections come from and go to on the host. Nothing here waits.
pub trait VsockHost: Send {
    /// Becomes readable when a program asks for a connection.
    fn descriptor(&self) -> BorrowedFd<'_>;
    /// The next program that asks for a connection.
    ///
    /// # Errors
    /// There is none, or it cannot be had.
    fn accept(&mut self) -> io::Result<UnixStream>;
    /// Connects to who listens for the guest's connections to `port`.
    ///
    /// # Errors
    /// Nobody does.
    fn connect(&mut self, port: u32) -> io::Result<UnixStream>;
}

/// The host's end of a connection.
struct Peer {
    stream: UnixStream,
    /// The connection; none before the program has said what it wants.
    flow: Option<Flow>,
    /// Nobody has said yet that there is nothing to be read, or no room to write.
    is_readable: bool,
    is_writable: bool,
    /// The program has closed both halves.
    is_gone: bool,
    /// It knows that the guest has no more data.
    is_shut: bool,
    /// It knows that the guest takes no more data.
    is_unheard: bool,
}

/// A packet for the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Id of the connection, or 0.
    pub connection: u64,
    /// Its header. The data is in the buffer.
    pub header: Header,
}

/// All connections of a guest.
pub struct Muxer {
    host: Box<dyn VsockHost>,
    epoll: OwnedFd,
    /// By their ids.
    peers: BTreeMap<u64, Peer>,
    last_id: u64,
    last_port: u32,
    /// Id of the connection that had its turn last.
    turn: u64,
    /// Connections to report to the guest as not there.
    refusals: VecDeque<Ports>,
    has_callers: bool,
    observer: Arc<dyn Observer>,
}

impl Muxer {
    /// Joins to `host`.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn new(host: Box<dyn VsockHost>, observer: Arc<dyn Observer>) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, host.descriptor(), EventData::new_u64(CALLERS), EventFlags::IN | EventFlags::ET)?;
        Ok(Self {
            host,
            epoll,
            peers: BTreeMap::new(),
            last_id: CALLERS,
            last_port: HOST_PORTS - 1,
            turn: 0,
            refusals: VecDeque::new(),
            // Whoever came before.
            has_callers: true,
            observer,
        })
    }

    /// Becomes readable when [`poll`](Self::poll) has something to do.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Whether [`poll`](Self::poll) left programs that ask for connections to its next call.
    pub fn has_callers(&self) -> bool {
        self.has_callers
    }

    /// Looks at what has happened on the host's side.
    pub fn poll(&mut self) {
        let nothing = Event { flags: EventFlags::empty(), data: EventData::new_u64(CALLERS) };
        let mut events = [nothing; CONNECTIONS_MAX + 1];
        let count = epoll::wait(&self.epoll, &mut events, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap_or(0);
        for event in &events[..count] {
            let (id, flags) = (event.data.u64(), event.flags);
            if id == CALLERS {
                self.has_callers = true;
            }
            let Some(peer) = self.peers.get_mut(&id) else { continue };
            let is_gone = flags.intersects(EventFlags::HUP | EventFlags::ERR);
            peer.is_readable |= is_gone || flags.intersects(EventFlags::IN | EventFlags::RDHUP);
            peer.is_writable |= is_gone || flags.contains(EventFlags::OUT);
            peer.is_gone |= is_gone;
            self.look_at(id);
        }
        self.accept();
    }

    /// Goes on with a connection whose socket may have changed.
    fn look_at(&mut self, id: u64) {
        let Some(peer) = self.peers.get(&id) else { return };
        match &peer.flow {
            None => self.hear(id),
            // Nobody waits for the guest's answer any more.
            Some(flow) if peer.is_gone && !flow.is_open() => {
                self.refuse(flow.ports());
                self.end(id, VsockEnd::Closed);
            }
            Some(_) => self.flush(id),
        }
    }

    /// Lets programs in that ask for a connection. Those for whom there is no room are hung up on.
    fn accept(&mut self) {
        for _ in 0..CONNECTIONS_MAX {
            if !self.has_callers {
                return;
            }
            match self.host.accept() {
                Ok(stream) => {
                    if let Some(id) = self.add(stream, None) {
                        self.hear(id);
                    }
                }
                // None is there; or none can be had, which the next one's coming tries again.
                Err(_) => self.has_callers = false,
            }
        }
    }

    /// Adds a connection, if there is room.
    fn add(&mut self, stream: UnixStream, flow: Option<Flow>) -> Option<u64> {
        if self.peers.len() >= CONNECTIONS_MAX {
            return None;
        }
        let id = self.last_id + 1;
        let reported = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, &stream, EventData::new_u64(id), reported).ok()?;
        self.last_id = id;
        let peer = Peer {
            stream,
            flow,
            is_readable: true,
            is_writable: true,
            is_gone: false,
            is_shut: false,
            is_unheard: false,
        };
        self.peers.insert(id, peer);
        Some(id)
    }

    /// Takes the line that says which port a program wants, once it is there.
    fn hear(&mut self, id: u64) {
        let Some(peer) = self.peers.get(&id) else { return };
        let mut line = [0; CALL_MAX];
        let heard = match recv(&peer.stream, &mut line, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((heard, _)) if heard > 0 => &line[..heard],
            Err(Errno::AGAIN) => return,
            _ => return drop(self.peers.remove(&id)),
        };
        let end = heard.iter().position(|byte| *byte == b'\n');
        if end.is_none() && heard.len() < CALL_MAX && !peer.is_gone {
            // The rest is still to come.
            return;
        }
        let port = end.and_then(|end| called_port(&heard[..end]));
        // Nothing behind the line is taken: that is for the guest.
        let length = end.map_or(0, |end| end + 1);
        let is_taken = recv(&peer.stream, &mut line[..length], RecvFlags::DONTWAIT).is_ok();
        let Some(port) = port.filter(|_| is_taken) else { return drop(self.peers.remove(&id)) };
        let ports = Ports { guest: port, host: self.free_port(port) };
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.flow = Some(Flow::requested_by_host(ports));
            self.observer.vsock_begun(id, ports.guest, ports.host, VsockSide::Host);
        }
    }

    /// A port of the host's side that no connection to `guest` has.
    fn free_port(&mut self, guest: u32) -> u32 {
        // One of so many is free.
        for _ in 0..=CONNECTIONS_MAX {
            self.last_port = HOST_PORTS + (self.last_port + 1) % HOST_PORTS;
            if self.find(Ports { guest, host: self.last_port }).is_none() {
                break;
            }
        }
        self.last_port
    }

    /// The id of the connection between these ports.
    fn find(&self, ports: Ports) -> Option<u64> {
        let is_it = |peer: &Peer| peer.flow.as_ref().is_some_and(|flow| flow.ports() == ports);
        self.peers.iter().find(|(_, peer)| is_it(peer)).map(|(id, _)| *id)
    }

    /// Takes a packet of the guest's; returns the id of its connection, or 0, and whether it had a place there.
    pub fn take(&mut self, header: &Header, data: &[u8]) -> (u64, bool) {
        let Some(id) = self.find(header.ports) else {
            return match header.operation {
                Operation::Request => self.connect(header),
                // An answer to it could go on for ever.
                Operation::Reset => (0, false),
                _ => {
                    self.refuse(header.ports);
                    (0, false)
                }
            };
        };
        let Some(flow) = self.peers.get_mut(&id).and_then(|peer| peer.flow.as_mut()) else { return (id, false) };
        let was_open = flow.is_open();
        if header.operation == Operation::Reset {
            self.end(id, if was_open { VsockEnd::Reset } else { VsockEnd::Refused });
            return (id, true);
        }
        let is_taken = flow.take(header, data).is_ok();
        let has_opened = is_taken && !was_open && flow.is_open();
        if !is_taken || (has_opened && !self.greet(id, header.ports.host)) {
            self.break_off(header.ports);
            return (id, is_taken);
        }
        self.flush(id);
        (id, true)
    }

    /// Tells the program that asked that the guest has accepted; says whether that could be told.
    fn greet(&self, id: u64, port: u32) -> bool {
        let line = format!("OK {port}\n");
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        // Nothing was written before: there is room.
        self.peers.get(&id).is_some_and(|peer| send(&peer.stream, line.as_bytes(), flags) == Ok(line.len()))
    }

    /// Connects the guest to a port of the host.
    fn connect(&mut self, request: &Header) -> (u64, bool) {
        let room = self.peers.len() < CONNECTIONS_MAX;
        let stream = if room { self.host.connect(request.ports.host).ok() } else { None };
        let Some(id) = stream.and_then(|stream| self.add(stream, Some(Flow::requested_by_guest(request)))) else {
            self.refuse(request.ports);
            return (0, false);
        };
        self.observer.vsock_begun(id, request.ports.guest, request.ports.host, VsockSide::Guest);
        (id, true)
    }

    /// Has the guest told that there is no connection between these ports.
    fn refuse(&mut self, ports: Ports) {
        if self.refusals.len() < REFUSALS_MAX {
            self.refusals.push_back(ports);
        }
    }

    /// Ends the connection between these ports, if there is one, for the guest, too.
    pub fn break_off(&mut self, ports: Ports) {
        self.refuse(ports);
        if let Some(id) = self.find(ports) {
            self.end(id, VsockEnd::Reset);
        }
    }

    fn end(&mut self, id: u64, how: VsockEnd) {
        if self.peers.remove(&id).is_some_and(|peer| peer.flow.is_some()) {
            self.observer.vsock_ended(id, how);
        }
    }

    /// Ends all connections: the guest knows of none any more.
    pub fn reset(&mut self) {
        self.refusals.clear();
        let all: Vec<u64> = self.peers.iter().filter(|(_, peer)| peer.flow.is_some()).map(|(id, _)| *id).collect();
        all.into_iter().for_each(|id| self.end(id, VsockEnd::Reset));
    }

    /// Gives the host's socket what the guest has sent, as far as there is room; shuts what the guest has shut, and
    /// ends what is over.
    fn flush(&mut self, id: u64) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some(flow) = peer.flow.as_mut() else { return };
        while peer.is_writable && !flow.buffered().is_empty() {
            match send(&peer.stream, flow.buffered(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => flow.written(sent),
                Err(Errno::AGAIN) => peer.is_writable = false,
                Err(_) => flow.host_takes_no_more(),
            }
        }
        if peer.is_gone {
            flow.host_takes_no_more();
        }
        if flow.guest_has_sent_all() && !peer.is_shut {
            peer.is_shut = true;
            // Who is gone already needs no notice.
            let _ = shutdown(&peer.stream, Shutdown::Write);
        }
        if flow.guest_takes_no_more() && !peer.is_unheard {
            peer.is_unheard = true;
            // What the program writes fails from now on: nobody would make room for it.
            let _ = shutdown(&peer.stream, Shutdown::Read);
        }
        if flow.is_over() {
            let ports = flow.ports();
            self.refuse(ports);
            self.end(id, VsockEnd::Closed);
        }
    }

    /// Whether there may be something for the guest.
    pub fn has_output(&self) -> bool {
        let has_some = |peer: &Peer| {
            let flow = peer.flow.as_ref();
            flow.is_some_and(|flow| {
                flow.pending(peer.is_readable).is_some() || (peer.is_readable && flow.reads() && flow.credit() > 0)
            })
        };
        !self.refusals.is_empty() || self.peers.values().any(has_some)
    }

    /// The next packet for the guest, whose data, as long as `buffer` at most, is put there. Connections take turns.
    pub fn next(&mut self, buffer: &mut [u8]) -> Option<Outgoing> {
        if let Some(ports) = self.refusals.pop_front() {
            return Some(Outgoing { connection: 0, header: Header::plain(ports, Operation::Reset) });
        }
        for _ in 0..self.peers.len() {
            let next = self.peers.range(self.turn + 1..).next().or_else(|| self.peers.first_key_value());
            let connection = *next?.0;
            self.turn = connection;
            if let Some(header) = self.next_of(connection, buffer) {
                return Some(Outgoing { connection, header });
            }
        }
        None
    }

    fn next_of(&mut self, id: u64, buffer: &mut [u8]) -> Option<Header> {
        let peer = self.peers.get_mut(&id)?;
        let flow = peer.flow.as_mut()?;
        if let Some(header) = read(flow, &peer.stream, &mut peer.is_readable, buffer) {
            return Some(header);
        }
        let header = flow.pending(peer.is_readable).map(|operation| flow.send(operation));
        if flow.is_given_up() {
            self.end(id, VsockEnd::Closed);
        }
        header
    }
}

/// A packet with what the host's program has for the guest, unless something else goes first.
fn read(flow: &mut Flow, stream: &UnixStream, is_readable: &mut bool, buffer: &mut [u8]) -> Option<Header> {
    let most = buffer.len().min(usize::try_from(flow.credit()).unwrap_or(usize::MAX));
    if flow.pending(*is_readable).is_some() || !*is_readable || !flow.reads() || most == 0 {
        return None;
    }
    match recv(stream, &mut buffer[..most], RecvFlags::DONTWAIT) {
        Ok((0, _)) => flow.host_sends_no_more(),
        Ok((came, _)) => return u32::try_from(came).ok().map(|came| flow.data(came)),
        Err(Errno::AGAIN) => *is_readable = false,
        // It is gone, with data of the guest's unread.
        Err(_) => {
            flow.host_sends_no_more();
            flow.host_takes_no_more();
        }
    }
    None
}

/// The port in `CONNECT PORT`.
fn called_port(line: &[u8]) -> Option<u32> {
    let line = std::str::from_utf8(line).ok()?.trim_end();
    let (word, port) = line.split_once(' ')?;
    let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
    port.parse().ok().filter(|_| word.eq_ignore_ascii_case("connect") && is_number)
}
