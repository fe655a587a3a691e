use super::super::work::BYTES_PER_CALL;
use super::*;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use strata_observer::NoObserver;
use virtio_queue::desc::RawDescriptor;
use virtio_queue::desc::split::Descriptor;
use virtio_queue::mock::MockSplitQueue;
use vm_memory::{Bytes, GuestAddress};

const MEMORY: usize = 0x10_0000;
const PACKET: u64 = 0x2_0000;
const NEXT: u16 = 1;
const DEVICE_WRITES: u16 = 2;
const MAC: MacAddress = MacAddress([0x52, 0x54, 0, 0x12, 0x34, 0x56]);

/// What a link has got, and what it gives.
#[derive(Debug, Default)]
struct Wire {
    sent: Vec<Vec<u8>>,
    to_guest: VecDeque<Vec<u8>>,
    is_full: bool,
    end: Option<&'static str>,
}

#[derive(Debug)]
struct TestLink {
    wire: Arc<Mutex<Wire>>,
    offloads: bool,
    descriptor: OwnedFd,
}

impl Link for TestLink {
    fn offloads(&self) -> bool {
        self.offloads
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    fn send(&mut self, packet: &[u8]) -> io::Result<()> {
        let mut wire = self.wire.lock().unwrap();
        if wire.is_full {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        wire.sent.push(packet.to_vec());
        Ok(())
    }

    fn receive(&mut self, packet: &mut [u8]) -> io::Result<usize> {
        let next = self.wire.lock().unwrap().to_guest.pop_front().ok_or(io::ErrorKind::WouldBlock)?;
        packet[..next.len()].copy_from_slice(&next);
        Ok(next.len())
    }

    fn end(&self) -> Option<&'static str> {
        self.wire.lock().unwrap().end
    }
}

/// What an observer gets of the machine as a whole.
#[derive(Default)]
struct SeenControl(Mutex<Vec<ControlEvent>>);

impl Observer for SeenControl {
    fn control(&self, event: ControlEvent) {
        self.0.lock().unwrap().push(event);
    }
}

/// What an observer gets of packets.
#[derive(Default)]
struct Seen(Mutex<Vec<(NetQueue, u64, u32, PacketStage)>>);

impl Observer for Seen {
    fn net_packet(&self, _: u32, queue: NetQueue, id: u64, bytes: u32, stage: PacketStage) {
        self.0.lock().unwrap().push((queue, id, bytes, stage));
    }
}

fn memory() -> GuestMemoryMmap {
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY)]).unwrap()
}

fn device_with(offloads: bool, observer: Arc<dyn Observer>) -> (Net, Arc<Mutex<Wire>>) {
    let wire = Arc::new(Mutex::new(Wire::default()));
    let descriptor = tempfile::tempfile().unwrap().into();
    let link = TestLink { wire: Arc::clone(&wire), offloads, descriptor };
    (Net::new(Box::new(link), MAC, 0, observer), wire)
}

fn device() -> (Net, Arc<Mutex<Wire>>) {
    device_with(true, Arc::new(NoObserver))
}

/// A queue of 16 with a chain of `parts` (address, length), given `times` times.
fn queue(memory: &GuestMemoryMmap, parts: &[(u64, u32)], device_writes: bool, times: u16) -> Queue {
    let queue = MockSplitQueue::new(memory, 16);
    let descriptor = |(next, &(address, length)): (u16, &(u64, u32))| {
        let last = usize::from(next) == parts.len();
        let flags = u16::from(!last) * NEXT + u16::from(device_writes) * DEVICE_WRITES;
        RawDescriptor::from(Descriptor::new(address, length, flags, next))
    };
    let chain: Vec<_> = (1u16..).zip(parts).map(descriptor).collect();
    queue.build_desc_chain(&chain).unwrap();
    (0..times.min(16)).for_each(|place| queue.avail().ring().ref_at(place.into()).unwrap().store(0));
    queue.avail().idx().store(times);
    queue.create_queue().unwrap()
}

fn packet(header: [u8; HEADER], frame: usize) -> Vec<u8> {
    let mut packet = header.to_vec();
    packet.resize(HEADER + frame, 0xab);
    packet
}

/// Sends `packet`, in one buffer, and returns what the link got.
fn send(device: &mut Net, wire: &Mutex<Wire>, packet: &[u8]) -> Vec<Vec<u8>> {
    let memory = memory();
    memory.write_slice(packet, GuestAddress(PACKET)).unwrap();
    let mut ring = queue(&memory, &[(PACKET, u32::try_from(packet.len()).unwrap())], false, 1);
    let served = device.serve(1, &mut ring, &memory, Instant::now()).unwrap();
    assert_eq!((served.interrupt, ring.next_used()), (true, 1));
    std::mem::take(&mut wire.lock().unwrap().sent)
}

const TCP_SEGMENTS: [u8; HEADER] = [1, 1, 54, 0, 0xb4, 5, 34, 0, 16, 0, 0, 0];

#[test]
fn packet_that_the_guest_sends_reaches_the_link_in_one_piece() {
    let (mut device, wire) = device();
    let memory = memory();
    memory.write_slice(&packet([0; HEADER], 60), GuestAddress(PACKET)).unwrap();
    let mut ring = queue(&memory, &[(PACKET, 5), (PACKET + 5, 17), (PACKET + 22, 50)], false, 1);

    device.serve(1, &mut ring, &memory, Instant::now()).unwrap();

    assert_eq!(wire.lock().unwrap().sent, [packet([0; HEADER], 60)]);
}

#[test]
fn packet_of_the_link_reaches_the_guests_buffers() {
    let (mut device, wire) = device();
    let memory = memory();
    wire.lock().unwrap().to_guest.push_back(packet([0; HEADER], 60));
    let mut ring = queue(&memory, &[(PACKET, 20), (PACKET + 20, 1500)], true, 4);

    let served = device.serve(0, &mut ring, &memory, Instant::now()).unwrap();

    let mut delivered = vec![0; HEADER + 60];
    memory.read_slice(&mut delivered, GuestAddress(PACKET)).unwrap();
    // The header says that the packet is in one buffer.
    assert_eq!(delivered, packet([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0], 60));
    assert_eq!((served, ring.next_used()), (Served { interrupt: true, ..Served::default() }, 1));
}

#[test]
fn header_tells_the_guest_nothing_of_checksums_that_was_not_offered() {
    const DATA_VALID: u8 = 2;
    let (mut device, wire) = device();
    let memory = memory();
    wire.lock().unwrap().to_guest.push_back(packet([DATA_VALID, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 60));
    let mut ring = queue(&memory, &[(PACKET, 1526)], true, 1);

    device.serve(0, &mut ring, &memory, Instant::now()).unwrap();

    let mut header = [0xff; HEADER];
    memory.read_slice(&mut header, GuestAddress(PACKET)).unwrap();
    assert_eq!(header, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
}

#[test]
fn packets_wait_on_the_host_while_the_guest_has_no_buffers() {
    let (mut device, wire) = device();
    let memory = memory();
    wire.lock().unwrap().to_guest.extend([60, 61, 62].map(|frame| packet([0; HEADER], frame)));
    let mut ring = queue(&memory, &[(PACKET, 1526)], true, 2);

    let served = device.serve(0, &mut ring, &memory, Instant::now()).unwrap();

    assert_eq!((served.more, ring.next_used(), wire.lock().unwrap().to_guest.len()), (false, 2, 1));
}

#[test]
fn link_that_ends_is_told_to_the_user_and_the_observer_once() {
    let (seen, told) = (Arc::new(SeenControl::default()), Arc::new(Mutex::new(Vec::new())));
    let (device, wire) = device_with(true, seen.clone());
    let lines = Arc::clone(&told);
    let mut device = device.telling(Arc::new(move |line: &str| lines.lock().unwrap().push(line.to_owned())));
    let memory = memory();
    let mut ring = queue(&memory, &[(PACKET, 1526)], true, 1);

    let counts = [None, Some("the link has ended"), Some("the link has ended")].map(|end| {
        wire.lock().unwrap().end = end;
        device.serve(0, &mut ring, &memory, Instant::now()).unwrap();
        told.lock().unwrap().len()
    });

    assert_eq!(counts, [0, 1, 1]);
    assert!(told.lock().unwrap()[0].starts_with("net 0: the link has ended"), "{told:?}");
    assert_eq!(*seen.0.lock().unwrap(), [ControlEvent::NetworkEnded]);
}

#[test]
fn packet_for_which_the_buffer_is_too_small_is_lost_and_the_buffer_comes_back() {
    let seen = Arc::new(Seen::default());
    let (mut device, wire) = device_with(true, seen.clone());
    let memory = memory();
    wire.lock().unwrap().to_guest.push_back(packet([0; HEADER], 60));
    memory.write_slice(&[0x77; 80], GuestAddress(PACKET)).unwrap();
    let mut ring = queue(&memory, &[(PACKET, 71)], true, 1);

    device.serve(0, &mut ring, &memory, Instant::now()).unwrap();

    let mut buffer = [0; 80];
    memory.read_slice(&mut buffer, GuestAddress(PACKET)).unwrap();
    assert_eq!((buffer, ring.next_used()), ([0x77; 80], 1));
    let stages = [PacketStage::Taken, PacketStage::Dropped];
    assert_eq!(*seen.0.lock().unwrap(), stages.map(|stage| (NetQueue::Receive, 1, 60, stage)));
}

#[test]
fn packet_that_a_damaged_queue_costs_is_reported_as_lost() {
    let seen = Arc::new(Seen::default());
    let (mut device, wire) = device_with(true, seen.clone());
    let memory = memory();
    wire.lock().unwrap().to_guest.push_back(packet([0; HEADER], 60));
    let mut ring = queue(&memory, &[(PACKET, 100)], true, 1);
    // A chain that there is not, in the first place of the ring, behind flags and index.
    memory.write_obj(16u16, GuestAddress(ring.avail_ring() + 4)).unwrap();

    let served = device.serve(0, &mut ring, &memory, Instant::now());

    assert!(served.is_err());
    let stages = [PacketStage::Taken, PacketStage::Dropped];
    assert_eq!(*seen.0.lock().unwrap(), stages.map(|stage| (NetQueue::Receive, 1, 60, stage)));
}

#[test]
fn packets_are_reported_with_ids_that_count_in_each_direction() {
    let seen = Arc::new(Seen::default());
    let (mut device, wire) = device_with(true, seen.clone());

    send(&mut device, &wire, &packet([0; HEADER], 60));
    wire.lock().unwrap().is_full = true;
    send(&mut device, &wire, &packet([0; HEADER], 70));

    let of = |id, bytes, stage| (NetQueue::Send, id, bytes, stage);
    let (taken, done, dropped) = (PacketStage::Taken, PacketStage::Done, PacketStage::Dropped);
    assert_eq!(*seen.0.lock().unwrap(), [of(1, 60, taken), of(1, 60, done), of(2, 70, taken), of(2, 70, dropped)]);
}

#[test]
fn header_asks_only_for_what_was_offered_and_is_there() {
    let changed = |index: usize, value: u8| {
        let mut header = TCP_SEGMENTS;
        header[index] = value;
        header
    };
    let passes = |header: [u8; HEADER]| {
        let (mut device, wire) = device();
        !send(&mut device, &wire, &packet(header, 1000)).is_empty()
    };

    assert!(passes(TCP_SEGMENTS) && passes(changed(1, 4)));
    // Another flag, an unknown kind of segments, UDP, explicit congestion, segments of nothing, without checksums,
    // headers beyond the end, a checksum beyond the end.
    let refused = [(0, 3), (1, 7), (1, 3), (1, 0x81), (0, 0), (3, 4), (7, 4), (9, 4)];
    let passed: Vec<_> = refused.into_iter().filter(|&(index, value)| passes(changed(index, value))).collect();
    assert_eq!(passed, []);
    let nothing = [1, 1, 54, 0, 0, 0, 34, 0, 16, 0, 0, 0];
    assert!(!passes(nothing));
}

#[test]
fn link_without_offloads_gets_no_headers() {
    let (mut device, wire) = device_with(false, Arc::new(NoObserver));

    let sent = send(&mut device, &wire, &packet(TCP_SEGMENTS, 60));

    assert_eq!(sent, [packet([0; HEADER], 60)]);
    assert_eq!(device.features() & 1 << VIRTIO_NET_F_CSUM, 0);
}

#[test]
fn frame_too_short_or_too_long_is_not_sent() {
    let sent = [13, 14, FRAME_MAX, FRAME_MAX + 1].map(|frame| {
        let (mut device, wire) = device();
        send(&mut device, &wire, &packet([0; HEADER], frame)).len()
    });

    assert_eq!(sent, [0, 1, 1, 0]);
}

#[test]
fn chain_outside_memory_is_given_back() {
    let (mut device, wire) = device();
    let memory = memory();
    let mut ring = queue(&memory, &[(MEMORY as u64 * 2, 100)], false, 1);

    device.serve(1, &mut ring, &memory, Instant::now()).unwrap();

    assert_eq!((ring.next_used(), wire.lock().unwrap().sent.len()), (1, 0));
}

#[test]
fn available_index_that_runs_ahead_stops_the_device() {
    let (mut device, wire) = device();
    let memory = memory();
    wire.lock().unwrap().to_guest.push_back(packet([0; HEADER], 60));
    let mut rings = [queue(&memory, &[(PACKET, 100)], true, 1), queue(&memory, &[(PACKET, 100)], true, 1000)];

    let [good, ahead] = &mut rings;
    let results = [device.serve(0, ahead, &memory, Instant::now()), device.serve(0, good, &memory, Instant::now())];

    assert!(results.iter().any(Result::is_err), "{results:?}");
}

#[test]
fn packets_beyond_the_limit_wait_and_none_is_lost() {
    const TENTH: Duration = Duration::from_millis(100);
    let (device, wire) = device();
    let (begin, counts) = (Instant::now(), Arc::new(ThrottleCounts::default()));
    let limits = NetLimits { packets: Some(RateLimit { per_second: 10, burst: 2 }), bytes: None };
    let mut device = device.limited(limits, &counts, begin);
    let memory = memory();
    wire.lock().unwrap().to_guest.extend([60, 61, 62].map(|frame| packet([0; HEADER], frame)));
    let mut ring = queue(&memory, &[(PACKET, 1526)], true, 8);

    let served = [0, 1, 2].map(|tenths| {
        let served = device.serve(0, &mut ring, &memory, begin + TENTH * tenths).unwrap();
        (served.resume_after, ring.next_used())
    });

    assert_eq!(served, [(Some(TENTH), 2), (None, 3), (None, 3)]);
    assert_eq!((counts.times(), counts.time()), (1, TENTH));
}

#[test]
fn call_ends_when_it_has_moved_enough_and_asks_for_another() {
    let (mut device, wire) = device();
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 32 << 20)]).unwrap();
    wire.lock().unwrap().to_guest.extend((0..300).map(|_| packet([0; HEADER], FRAME_MAX)));
    let queue = MockSplitQueue::new(&memory, 256);
    let descriptor = RawDescriptor::from(Descriptor::new(0x10_0000, 1 << 20, DEVICE_WRITES, 0));
    queue.build_desc_chain(&[descriptor]).unwrap();
    (0..256).for_each(|place| queue.avail().ring().ref_at(place).unwrap().store(0));
    queue.avail().idx().store(256);
    let mut ring: Queue = queue.create_queue().unwrap();

    let served = device.serve(0, &mut ring, &memory, Instant::now()).unwrap();

    // On a slow machine the time of a call may be over before.
    let most = BYTES_PER_CALL.div_ceil(FRAME_MAX);
    assert!(served.more && (1..=most).contains(&usize::from(ring.next_used())), "{} served", ring.next_used());
}

#[test]
fn configuration_gives_the_address() {
    let (device, _) = device();
    let mut data = [0x55; 8];

    device.read_config(0, &mut data);
    device.read_config(u64::MAX, &mut []);

    assert_eq!(data, [0x52, 0x54, 0, 0x12, 0x34, 0x56, 0x55, 0x55]);
}

proptest::proptest! {
    /// Whatever lies in the rings, the device comes to an end, and what it sends is well formed.
    #[test]
    fn hostile_rings_neither_hang_the_device_nor_get_a_bad_header_out(
        descriptors in proptest::collection::vec((0u64..0x12_0000, 0u32..0x2000, 0u16..8, 0u16..18), 16),
        heads in proptest::collection::vec(0u16..20, 16),
        available in 0u16..20,
        index in 0usize..2,
        header in proptest::array::uniform12(0u8..6),
    ) {
        let (memory, (mut device, wire)) = (memory(), device());
        memory.write_slice(&packet(header, 100), GuestAddress(PACKET)).unwrap();
        wire.lock().unwrap().to_guest.extend([60, 1000, FRAME_MAX].map(|frame| packet([0; HEADER], frame)));
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
        let _ = device.serve(index, &mut ring, &memory, Instant::now());
        let sent = wire.lock().unwrap().sent.clone();
        proptest::prop_assert!(sent.iter().all(|packet| packet[0] <= 1 && [0, 1, 4].contains(&packet[1])));
        proptest::prop_assert!(sent.iter().all(|packet| (HEADER + FRAME_MIN..=PACKET_MAX).contains(&packet.len())));
    }
}
