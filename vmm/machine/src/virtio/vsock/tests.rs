use super::flow::BUFFER;
use super::muxer::CONNECTIONS_MAX;
use super::packet::{HOST_CID, Operation, SENDS_NO_MORE, TAKES_NO_MORE};
use super::*;
use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::Duration;
use strata_observer::{VsockEnd, VsockSide};
use virtio_queue::desc::RawDescriptor;
use virtio_queue::desc::split::Descriptor;
use virtio_queue::mock::MockSplitQueue;
use vm_memory::{Bytes, GuestAddress};

const CID: u32 = 5;
/// The guest's port that is called, and the host's where somebody listens.
const PORT: u32 = 22;
const SERVICE: u32 = 77;
/// A port that the guest calls from.
const OWN: u32 = 1024;
/// First port of the host's side of calls.
const CALLER: u32 = 1 << 30;
const MEMORY: usize = 0x10_0000;
const PACKET: u64 = 0x2_0000;
const DATA: u64 = 0x4_0000;
const NEXT: u16 = 1;
const DEVICE_WRITES: u16 = 2;

/// A packet as an observer gets it: queue, connection, id, operation, bytes, stage.
type ReportedPacket = (VsockQueue, u64, u64, u16, u32, PacketStage);

/// What an observer gets: connections that begin and end, and packets.
#[derive(Default)]
struct Seen {
    begun: Mutex<Vec<(u64, u32, u32, VsockSide)>>,
    ended: Mutex<Vec<(u64, VsockEnd)>>,
    packets: Mutex<Vec<ReportedPacket>>,
}

impl Observer for Seen {
    fn vsock_begun(&self, id: u64, guest_port: u32, host_port: u32, by: VsockSide) {
        self.begun.lock().unwrap().push((id, guest_port, host_port, by));
    }

    fn vsock_ended(&self, id: u64, how: VsockEnd) {
        self.ended.lock().unwrap().push((id, how));
    }

    fn vsock_packet(&self, queue: VsockQueue, connection: u64, id: u64, op: u16, bytes: u32, stage: PacketStage) {
        self.packets.lock().unwrap().push((queue, connection, id, op, bytes, stage));
    }
}

/// A host whose one service takes every connection.
struct TestHost {
    callers: Arc<Mutex<VecDeque<UnixStream>>>,
    served: Arc<Mutex<Vec<UnixStream>>>,
    descriptor: UnixStream,
}

/// The two ends of a connection; neither waits.
fn pair() -> (UnixStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    [&ours, &theirs].iter().for_each(|end| end.set_nonblocking(true).unwrap());
    (ours, theirs)
}

impl VsockHost for TestHost {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    fn accept(&mut self) -> io::Result<UnixStream> {
        self.callers.lock().unwrap().pop_front().ok_or(io::ErrorKind::WouldBlock.into())
    }

    fn connect(&mut self, port: u32) -> io::Result<UnixStream> {
        if port != SERVICE {
            return Err(io::ErrorKind::NotFound.into());
        }
        let (ours, theirs) = pair();
        self.served.lock().unwrap().push(theirs);
        Ok(ours)
    }
}

/// A packet for the guest: what it is for, the ports in the guest and on the host, flags, credit, data.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Came {
    op: u16,
    guest: u32,
    host: u32,
    flags: u32,
    buf_alloc: u32,
    fwd_cnt: u32,
    data: Vec<u8>,
}

/// A device, and both sides of it.
struct Setup {
    device: Vsock,
    callers: Arc<Mutex<VecDeque<UnixStream>>>,
    served: Arc<Mutex<Vec<UnixStream>>>,
    bell: UnixStream,
    seen: Arc<Seen>,
}

fn memory() -> GuestMemoryMmap {
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY)]).unwrap()
}

/// A queue with one chain of these buffers.
fn queue(memory: &GuestMemoryMmap, buffers: &[(u64, u32)], is_for_device: bool, available: u16) -> Queue {
    let queue = MockSplitQueue::new(memory, 16);
    let flags = if is_for_device { 0 } else { DEVICE_WRITES };
    let last = buffers.len() - 1;
    let chain: Vec<_> = (0..)
        .zip(buffers)
        .map(|(place, (address, length))| {
            let next = if usize::from(place) < last { NEXT } else { 0 };
            RawDescriptor::from(Descriptor::new(*address, *length, flags | next, place + 1))
        })
        .collect();
    queue.build_desc_chain(&chain).unwrap();
    queue.avail().idx().store(available);
    queue.create_queue().unwrap()
}

/// A header: addresses, ports, length, type, operation, flags, and room for 4096 bytes.
fn header(cids: (u64, u64), ports: (u32, u32), length: u32, (kind, op): (u16, u16), flags: u32) -> Vec<u8> {
    let words = [ports.0.to_le_bytes(), ports.1.to_le_bytes(), length.to_le_bytes()].concat();
    let rest = [flags.to_le_bytes(), 4096u32.to_le_bytes(), 0u32.to_le_bytes()].concat();
    let cids = [cids.0.to_le_bytes(), cids.1.to_le_bytes()].concat();
    [&cids[..], &words, &kind.to_le_bytes(), &op.to_le_bytes(), &rest].concat()
}

impl Setup {
    fn new() -> Self {
        let (callers, served, seen): (Arc<Mutex<VecDeque<_>>>, Arc<Mutex<Vec<_>>>, Arc<Seen>) = Default::default();
        let (descriptor, bell) = pair();
        let host = TestHost { callers: Arc::clone(&callers), served: Arc::clone(&served), descriptor };
        let device = Vsock::new(CID, Box::new(host), seen.clone()).unwrap();
        Self { device, callers, served, bell, seen }
    }

    /// A program of the host connects and says something.
    fn call(&mut self, line: &[u8]) -> UnixStream {
        let (mut caller, ours) = pair();
        caller.write_all(line).unwrap();
        self.callers.lock().unwrap().push_back(ours);
        self.bell.write_all(b"!").unwrap();
        caller
    }

    /// The guest sends these bytes as header, with these as data.
    fn send_raw(&mut self, header: &[u8], data: &[u8]) -> Served {
        let memory = memory();
        memory.write_slice(header, GuestAddress(PACKET)).unwrap();
        memory.write_slice(data, GuestAddress(DATA)).unwrap();
        let buffers = [(PACKET, 44), (DATA, u32::try_from(data.len()).unwrap())];
        let buffers = if data.is_empty() { &buffers[..1] } else { &buffers };
        let mut ring = queue(&memory, buffers, true, 1);
        let served = self.device.serve(1, &mut ring, &memory, Instant::now()).unwrap();
        assert_eq!(ring.next_used(), 1);
        served
    }

    /// The guest sends a packet from its port to one of the host's.
    fn send(&mut self, ports: (u32, u32), operation: Operation, flags: u32, data: &[u8]) -> Served {
        let length = u32::try_from(data.len()).unwrap();
        self.send_raw(&header((CID.into(), HOST_CID), ports, length, (1, operation as u16), flags), data)
    }

    /// The next packet for the guest, into a buffer for 4096 bytes.
    fn receive(&mut self) -> Option<Came> {
        let memory = memory();
        let mut ring = queue(&memory, &[(PACKET, 44), (DATA, 4096)], false, 1);
        self.device.serve(0, &mut ring, &memory, Instant::now()).unwrap();
        if ring.next_used() == 0 {
            return None;
        }
        let mut header = [0; 44];
        memory.read_slice(&mut header, GuestAddress(PACKET)).unwrap();
        let word = |at: usize| u32::from_le_bytes(*header[at..].first_chunk().unwrap());
        assert_eq!((word(0), word(8), u16::from_le_bytes([header[28], header[29]])), (2, CID, 1));
        let mut data = vec![0; word(24) as usize];
        memory.read_slice(&mut data, GuestAddress(DATA)).unwrap();
        let op = u16::from_le_bytes([header[30], header[31]]);
        let (flags, buf_alloc, fwd_cnt) = (word(32), word(36), word(40));
        Some(Came { op, guest: word(20), host: word(16), flags, buf_alloc, fwd_cnt, data })
    }

    /// What every packet for the guest is for, until there are none.
    fn received(&mut self) -> Vec<u16> {
        std::iter::from_fn(|| self.receive()).take(1000).map(|came| came.op).collect()
    }

    /// A connection of the guest's to the service, whose end is returned.
    fn served(&mut self) -> UnixStream {
        self.send((OWN, SERVICE), Operation::Request, 0, &[]);
        assert_eq!(self.received(), [Operation::Response as u16]);
        self.served.lock().unwrap().pop().unwrap()
    }
}

/// What has come so far.
fn read(stream: &mut UnixStream) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    let mut all = Vec::new();
    while let Ok(came @ 1..) = stream.read(&mut bytes) {
        all.extend(&bytes[..came]);
    }
    all
}

/// Whether the other end is closed.
fn is_closed(stream: &mut UnixStream) -> bool {
    read(stream);
    matches!(stream.read(&mut [0]), Ok(0))
}

#[test]
fn program_of_the_host_reaches_the_guests_port_and_both_talk() {
    let mut setup = Setup::new();
    // What follows the line is for the guest already.
    let mut caller = setup.call(b"CONNECT 22\nhello");

    let request = setup.receive().unwrap();
    let early = (setup.receive(), read(&mut caller));
    setup.send((PORT, CALLER), Operation::Response, 0, &[]);
    let data = setup.receive().unwrap();
    setup.send((PORT, CALLER), Operation::Data, 0, b"there");

    assert_eq!((request.op, request.guest, request.host, request.buf_alloc), (1, PORT, CALLER, BUFFER));
    assert_eq!(early, (None, vec![]));
    assert_eq!((data.op, &data.data[..]), (5, &b"hello"[..]));
    assert_eq!(read(&mut caller), b"OK 1073741824\nthere");
}

#[test]
fn call_may_come_in_pieces_and_one_that_asks_for_nothing_is_hung_up_on() {
    let mut setup = Setup::new();
    let mut slow = setup.call(b"conn");
    let wrong = ["GET / HTTP/1.1\n", "CONNECT\n", "CONNECT -1\n", "CONNECT 4294967296\n", "CONNECT 1 2\n"];
    let mut wrong: Vec<_> = wrong.iter().map(|line| setup.call(line.as_bytes())).collect();
    wrong.push(setup.call(&[b'x'; 64]));

    let first = setup.received();
    slow.write_all(b"ect 22\r\n").unwrap();
    let then = setup.received();

    assert_eq!((first, then), (vec![], vec![Operation::Request as u16]));
    // One with bytes unread sees a reset.
    assert!(
        wrong
            .iter_mut()
            .all(|caller| !matches!(caller.read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock))
    );
}

#[test]
fn guest_that_refuses_a_call_hangs_up_on_the_caller() {
    let mut setup = Setup::new();
    let mut caller = setup.call(b"CONNECT 22\n");
    setup.received();

    setup.send((PORT, CALLER), Operation::Reset, 0, &[]);

    assert!(is_closed(&mut caller) && setup.received().is_empty());
    assert_eq!(*setup.seen.begun.lock().unwrap(), [(1, PORT, CALLER, VsockSide::Host)]);
    assert_eq!(*setup.seen.ended.lock().unwrap(), [(1, VsockEnd::Refused)]);
}

#[test]
fn caller_that_gives_up_leaves_no_connection() {
    let mut setup = Setup::new();
    let caller = setup.call(b"CONNECT 22\n");
    setup.received();

    drop(caller);

    assert_eq!(setup.received(), [Operation::Reset as u16]);
    assert_eq!(*setup.seen.ended.lock().unwrap(), [(1, VsockEnd::Closed)]);
}

#[test]
fn guest_reaches_who_listens_and_is_refused_by_nobody() {
    let mut setup = Setup::new();

    let wake = setup.send((OWN, SERVICE), Operation::Request, 0, &[]).wake;
    let accepted = setup.receive().unwrap();
    setup.send((OWN, SERVICE), Operation::Data, 0, b"hello");
    setup.send((OWN, 78), Operation::Request, 0, &[]);
    let refused = setup.receive().unwrap();

    let mut service = setup.served.lock().unwrap().pop().unwrap();
    assert_eq!((wake, accepted.op, accepted.guest, accepted.host), (Some(0), 2, OWN, SERVICE));
    assert_eq!(read(&mut service), b"hello");
    assert_eq!((refused.op, refused.guest, refused.host), (3, OWN, 78));
}

#[test]
fn packets_without_a_connection_are_reset_and_resets_are_not() {
    let mut setup = Setup::new();

    for operation in [Operation::Response, Operation::Shutdown, Operation::Data, Operation::CreditRequest] {
        setup.send((OWN, SERVICE), operation, 0, &[]);
        assert_eq!(setup.received(), [3], "{operation:?}");
    }
    setup.send((OWN, SERVICE), Operation::Reset, 0, &[]);
    assert!(setup.received().is_empty());
}

#[test]
fn addresses_kinds_and_operations_that_there_are_not_reach_nobody() {
    let mut setup = Setup::new();
    let (own, ports) = (u64::from(CID), (OWN, SERVICE));

    for cids in [(own + 1, HOST_CID), (own, 3), (own, 1), (HOST_CID, own), (u64::MAX, HOST_CID)] {
        setup.send_raw(&header(cids, ports, 0, (1, 1), 0), &[]);
        assert!(setup.received().is_empty(), "{cids:?}");
    }
    for what in [(2, 1), (0, 1), (1, 0), (1, 8), (1, u16::MAX)] {
        setup.send_raw(&header((own, HOST_CID), ports, 0, what, 0), &[]);
        assert_eq!(setup.received(), [3], "{what:?}");
    }
    assert!(setup.served.lock().unwrap().is_empty());
}

#[test]
fn length_that_lies_breaks_the_connection() {
    for length in [11, BUFFER + 1, u32::MAX] {
        let mut setup = Setup::new();
        let mut service = setup.served();

        setup.send_raw(&header((CID.into(), HOST_CID), (OWN, SERVICE), length, (1, 5), 0), &[7; 10]);

        assert!(is_closed(&mut service) && setup.received() == [3], "{length}");
        assert_eq!(*setup.seen.ended.lock().unwrap(), [(1, VsockEnd::Reset)]);
    }
}

#[test]
fn data_in_several_buffers_reaches_the_host_whole() {
    let mut setup = Setup::new();
    let mut service = setup.served();
    let memory = memory();
    let header = header((CID.into(), HOST_CID), (OWN, SERVICE), 11, (1, 5), 0);
    memory.write_slice(&[&header[..], b"hello there"].concat(), GuestAddress(PACKET)).unwrap();
    let mut ring = queue(&memory, &[(PACKET, 44), (PACKET + 44, 4), (PACKET + 48, 7)], true, 1);

    setup.device.serve(1, &mut ring, &memory, Instant::now()).unwrap();

    assert_eq!((ring.next_used(), read(&mut service)), (1, b"hello there".to_vec()));
    assert!(setup.seen.ended.lock().unwrap().is_empty());
}

#[test]
fn guest_that_sends_more_than_its_credit_is_cut_off() {
    let mut setup = Setup::new();
    let _service = setup.served();
    let mut sent = 0;

    // The service reads nothing: first its socket fills, then the buffer.
    while setup.seen.ended.lock().unwrap().is_empty() && sent < 1000 {
        setup.send((OWN, SERVICE), Operation::Data, 0, &vec![7; BUFFER as usize / 2]);
        sent += 1;
    }

    assert!((3..1000).contains(&sent), "{sent}");
    assert_eq!(setup.received().last(), Some(&3));
    assert_eq!(*setup.seen.ended.lock().unwrap(), [(1, VsockEnd::Reset)]);
}

#[test]
fn guest_within_its_credit_gets_everything_through() {
    let mut setup = Setup::new();
    let mut service = setup.served();
    let (mut sent, mut forwarded, mut got) = (0u32, 0u32, 0);

    while got < 1 << 20 {
        let room = BUFFER - sent.wrapping_sub(forwarded);
        let bytes = room.min(10_000);
        if bytes > 0 {
            setup.send((OWN, SERVICE), Operation::Data, 0, &vec![7; bytes as usize]);
            sent += bytes;
        } else {
            got += read(&mut service).len();
        }
        while let Some(came) = setup.receive() {
            assert_eq!(came.op, Operation::CreditUpdate as u16);
            forwarded = came.fwd_cnt;
        }
    }

    assert!(setup.seen.ended.lock().unwrap().is_empty());
}

#[test]
fn guest_gets_what_it_has_room_for_and_an_offer_of_more() {
    let mut setup = Setup::new();
    let mut service = setup.served();
    service.write_all(&[7; 6000]).unwrap();

    // The guest has said that there is room for 4096 bytes.
    let first = setup.receive().unwrap().data.len();
    let then = setup.received();
    let mut update = header((CID.into(), HOST_CID), (OWN, SERVICE), 0, (1, 6), 0);
    update[40..].copy_from_slice(&4096u32.to_le_bytes());
    setup.send_raw(&update, &[]);
    let rest = setup.receive().unwrap().data.len();

    assert_eq!((first, then, rest), (4096, vec![Operation::CreditRequest as u16], 6000 - 4096));
}

#[test]
fn flood_of_requests_has_so_many_connections_and_so_many_answers() {
    let mut setup = Setup::new();

    for port in 0..1000 {
        setup.send((port, SERVICE), Operation::Request, 0, &[]);
    }

    assert_eq!(setup.served.lock().unwrap().len(), CONNECTIONS_MAX);
    let answers = setup.received();
    assert_eq!(answers.iter().filter(|op| **op == 2).count(), CONNECTIONS_MAX);
    assert_eq!(answers.iter().filter(|op| **op == 3).count(), 256);
    // A program of the host finds no room either: its connection is closed.
    assert!(setup.call(b"").read(&mut [0]).is_err());
    let mut caller = setup.call(b"");
    setup.received();
    assert!(is_closed(&mut caller));
}

#[test]
fn many_callers_at_once_are_all_heard_or_hung_up_on() {
    let mut setup = Setup::new();
    let mut callers: Vec<_> = (0..200).map(|_| setup.call(b"")).collect();

    let memory = memory();
    let mut ring = queue(&memory, &[(PACKET, 44), (DATA, 4096)], false, 1);
    let more: Vec<_> =
        (0..4).map(|_| setup.device.serve(0, &mut ring, &memory, Instant::now()).unwrap().more).collect();

    assert_eq!(more, [true, true, true, false]);
    assert_eq!(callers.iter_mut().filter_map(|caller| is_closed(caller).then_some(())).count(), 200 - CONNECTIONS_MAX);
}

#[test]
fn connections_take_turns() {
    let mut setup = Setup::new();
    for own in [OWN, OWN + 1, OWN + 2] {
        setup.send((own, SERVICE), Operation::Request, 0, &[]);
    }
    setup.received();
    for service in setup.served.lock().unwrap().iter_mut() {
        service.write_all(&[7; 4096]).unwrap();
    }

    let memory = memory();
    let ports: Vec<_> = (0..3)
        .map(|_| {
            let mut ring = queue(&memory, &[(PACKET, 44), (DATA, 100)], false, 1);
            setup.device.serve(0, &mut ring, &memory, Instant::now()).unwrap();
            memory.read_obj::<u32>(GuestAddress(PACKET + 20)).unwrap()
        })
        .collect();

    assert!([OWN, OWN + 1, OWN + 2].iter().all(|own| ports.contains(own)), "{ports:?}");
}

#[test]
fn half_that_the_host_closes_leaves_the_guests() {
    let mut setup = Setup::new();
    let mut service = setup.served();

    service.write_all(b"last").unwrap();
    service.shutdown(std::net::Shutdown::Write).unwrap();
    let (data, ended) = (setup.receive().unwrap(), setup.receive().unwrap());
    setup.send((OWN, SERVICE), Operation::Data, 0, b"still");
    setup.send((OWN, SERVICE), Operation::Shutdown, SENDS_NO_MORE | TAKES_NO_MORE, &[]);

    assert_eq!((data.data, ended.op, ended.flags), (b"last".to_vec(), 4, SENDS_NO_MORE));
    assert_eq!(read(&mut service), b"still");
    assert!(is_closed(&mut service) && setup.received() == [3]);
    assert_eq!(*setup.seen.ended.lock().unwrap(), [(1, VsockEnd::Closed)]);
}

#[test]
fn half_that_the_guest_closes_leaves_the_hosts() {
    let mut setup = Setup::new();
    let mut service = setup.served();

    setup.send((OWN, SERVICE), Operation::Shutdown, SENDS_NO_MORE, &[]);
    let is_reported = is_closed(&mut service);
    service.write_all(b"answer").unwrap();
    let data = setup.receive().unwrap().data;
    drop(service);
    let ended = std::iter::from_fn(|| setup.receive()).take(10).last().unwrap();

    assert!(is_reported);
    assert_eq!((data, ended.op, ended.flags), (b"answer".to_vec(), 4, SENDS_NO_MORE | TAKES_NO_MORE));
    assert_eq!(*setup.seen.ended.lock().unwrap(), [(1, VsockEnd::Closed)]);
}

#[test]
fn program_whose_guest_takes_no_more_cannot_write_and_still_reads() {
    let mut setup = Setup::new();
    let mut service = setup.served();

    setup.send((OWN, SERVICE), Operation::Shutdown, TAKES_NO_MORE, &[]);
    let refused = service.write(b"for nobody").map_err(|error| error.kind());
    setup.send((OWN, SERVICE), Operation::Data, 0, b"still");

    assert_eq!(refused, Err(io::ErrorKind::BrokenPipe));
    assert_eq!(read(&mut service), b"still");
    assert!(setup.received().is_empty() && setup.seen.ended.lock().unwrap().is_empty());
}

#[test]
fn what_the_host_said_before_it_closed_reaches_the_guest_first() {
    let mut setup = Setup::new();
    let mut service = setup.served();
    setup.send((OWN, SERVICE), Operation::Data, 0, b"unread");

    service.write_all(b"bye").unwrap();
    drop(service);
    setup.send((OWN, SERVICE), Operation::Data, 0, b"too late");

    let came: Vec<_> = std::iter::from_fn(|| setup.receive()).take(10).collect();
    let data: Vec<u8> = came.iter().flat_map(|came| came.data.clone()).collect();
    assert_eq!(data, b"bye");
    assert_eq!(came.last().map(|came| (came.op, came.flags)), Some((4, SENDS_NO_MORE | TAKES_NO_MORE)));
}

#[test]
fn reset_of_the_device_ends_every_connection() {
    let mut setup = Setup::new();
    let mut service = setup.served();
    let mut caller = setup.call(b"CONNECT 22\n");
    setup.received();

    setup.device.stop();

    assert!(is_closed(&mut service) && is_closed(&mut caller) && setup.received().is_empty());
    assert_eq!(setup.seen.ended.lock().unwrap().len(), 2);
}

#[test]
fn packets_are_reported_with_ids_that_count_in_each_direction_and_their_connection() {
    let mut setup = Setup::new();
    let _service = setup.served();
    setup.send((OWN, SERVICE), Operation::Data, 0, b"hello");

    let packets = setup.seen.packets.lock().unwrap().clone();
    let (sent, received) = (VsockQueue::Send, VsockQueue::Receive);
    let (taken, done) = (PacketStage::Taken, PacketStage::Done);
    let all = [
        (sent, 0, 1, 1, 0, taken),
        (sent, 1, 1, 1, 0, done),
        (received, 1, 1, 2, 0, taken),
        (received, 1, 1, 2, 0, done),
        (sent, 0, 2, 5, 5, taken),
        (sent, 1, 2, 5, 5, done),
    ];
    assert_eq!(packets, all);
}

#[test]
fn buffer_that_has_no_room_comes_back_empty_and_no_packet_is_lost() {
    let mut setup = Setup::new();
    setup.send((OWN, SERVICE), Operation::Request, 0, &[]);
    let memory = memory();

    for buffers in [&[(PACKET, 43)][..], &[(PACKET, 44)], &[(MEMORY as u64 * 2, 44), (DATA, 100)]] {
        let mut ring = queue(&memory, buffers, false, 1);
        setup.device.serve(0, &mut ring, &memory, Instant::now()).unwrap();
        assert_eq!(ring.next_used(), 1, "{buffers:?}");
    }

    assert_eq!(setup.received(), [2]);
}

#[test]
fn available_index_that_runs_ahead_stops_the_device() {
    let mut setup = Setup::new();
    let memory = memory();
    let mut ring = queue(&memory, &[(PACKET, 44)], true, 1000);

    assert!(setup.device.serve(1, &mut ring, &memory, Instant::now()).is_err());
}

#[test]
fn call_is_seen_by_who_waits_for_the_device() {
    let mut setup = Setup::new();
    setup.received();
    let source = setup.device.source().unwrap().unwrap();
    let is_ready = || {
        let mut fds = [rustix::event::PollFd::new(&source.descriptor, rustix::event::PollFlags::IN)];
        let timeout = rustix::time::Timespec::try_from(Duration::ZERO).unwrap();
        rustix::event::poll(&mut fds, Some(&timeout)).unwrap() == 1
    };

    let before = is_ready();
    let _caller = setup.call(b"CONNECT 22\n");

    assert_eq!((before, is_ready(), source.queue), (false, true, 0));
}

#[test]
fn configuration_gives_the_address() {
    let setup = Setup::new();
    let mut data = [0x55; 10];

    setup.device.read_config(0, &mut data);
    setup.device.read_config(u64::MAX, &mut []);

    assert_eq!(data, [5, 0, 0, 0, 0, 0, 0, 0, 0x55, 0x55]);
}

proptest::proptest! {
    /// Whatever the guest sends, the device comes to an end, and connections stay within their number.
    #[test]
    fn hostile_packets_neither_hang_the_device_nor_get_more_connections(
        packets in proptest::collection::vec((0u32..3, 76u32..79, 0u32..100, 0u16..3, 0u16..9, 0u32..4, 0u32..20), 0..30),
    ) {
        let mut setup = Setup::new();
        let _caller = setup.call(b"CONNECT 22\n");
        for (own, port, length, kind, op, flags, bytes) in packets {
            let host = [port, CALLER][usize::from(port == 76)];
            let header = header((CID.into(), HOST_CID), (own + PORT, host), length, (kind, op), flags);
            setup.send_raw(&header, &vec![7; bytes as usize]);
            setup.receive();
        }
        proptest::prop_assert!(setup.received().len() <= 256 + CONNECTIONS_MAX * 4);
        let (begun, ended) = (setup.seen.begun.lock().unwrap().len(), setup.seen.ended.lock().unwrap().len());
        proptest::prop_assert!(ended <= begun && begun - ended <= CONNECTIONS_MAX);
    }

    /// Whatever lies in the rings, the device comes to an end.
    #[test]
    fn hostile_rings_do_not_hang_the_device(
        descriptors in proptest::collection::vec((0u64..0x12_0000, 0u32..0x2000, 0u16..8, 0u16..18), 16),
        heads in proptest::collection::vec(0u16..20, 16),
        available in 0u16..20,
        index in 0usize..4,
    ) {
        let (memory, mut setup) = (memory(), Setup::new());
        let mut service = setup.served();
        service.write_all(&[7; 10_000]).unwrap();
        memory.write_slice(&header((CID.into(), HOST_CID), (OWN, SERVICE), 100, (1, 5), 0), GuestAddress(PACKET)).unwrap();
        let queue = MockSplitQueue::new(&memory, 16);
        for (place, (address, length, flags, next)) in (0u16..).zip(descriptors) {
            let address = [PACKET, address][usize::from(address % 3 > 0)];
            let descriptor = Descriptor::new(address, length, flags, next);
            queue.desc_table().store(place, RawDescriptor::from(descriptor)).unwrap();
        }
        for (place, head) in heads.iter().enumerate() {
            queue.avail().ring().ref_at(place).unwrap().store(*head);
        }
        queue.avail().idx().store(available);
        let mut ring: Queue = queue.create_queue().unwrap();
        let _ = setup.device.serve(index, &mut ring, &memory, Instant::now());
    }
}
