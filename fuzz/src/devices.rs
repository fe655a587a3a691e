//! The machine's devices, by ports, registers and virtqueues in a memory that the guest writes as it likes.

use crate::script::Input;
use kvm_ioctls::VcpuExit;
use rustix::fs::{MemfdFlags, memfd_create};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use strata_machine::{
    DetachedDisk, DetachedNet, DetachedVsock, DiskLimits, ExitAction, FRAME_MAX, Link, MacAddress, NetLimits,
    PACKET_HEADER, Peripherals, VIRTIO_MMIO, VIRTIO_MMIO_SIZE, VSOCK_CONNECTIONS_MAX, VsockHost, handle_exit,
};
use strata_observer::{
    BalloonRequestKind, BlockRequestKind, NetQueue, NoObserver, Observer, PacketStage, VsockEnd, VsockSide,
};
use strata_rate_limit::RateLimit;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// The guest's memory, bytes.
pub const MEMORY: usize = 1 << 16;
/// The disks' size, bytes: one that the guest may write to, and one that it may only read.
const DISK: usize = 16 << 9;
/// What the guest may do with the first disk.
const OPERATIONS: RateLimit = RateLimit { per_second: 100, burst: 8 };
const BYTES: RateLimit = RateLimit { per_second: 64 << 10, burst: 8 << 10 };
/// What the guest may do with the network, in each direction.
const PACKETS: RateLimit = RateLimit { per_second: 100, burst: 16 };
/// Virtio devices: two disks, a network, a source of random bytes, a socket device and a balloon.
const DEVICES: u8 = 6;
/// The places of the network and of the socket device among them.
const NET: usize = 2;
const VSOCK: usize = 4;
/// The guest's address, and the lowest bit of ports of the host at which somebody listens.
const CID: u32 = 3;
const LISTENS: u32 = 1;
/// Most bytes of a port or memory access that KVM hands over at once.
const ACCESS: usize = 8;

/// One step of the guest.
///
/// | bytes | what |
/// |---|---|
/// | 0, `u16` address, `u16` length, bytes | [`Op::Write`] |
/// | 1, place, width, `u64` value | [`Op::Out`] |
/// | 2, place, width | [`Op::In`] |
/// | 3, device, register, width, `u64` value | [`Op::Store`] |
/// | 4, device, register, width | [`Op::Load`] |
/// | 5, queue and device | [`Op::Notify`] |
/// | 6, `u16` length, bytes | [`Op::Input`] |
/// | 7, `u16` ms | [`Op::Wait`] |
/// | 8, `u16` bytes | [`Op::Arrive`] |
/// | 9, `u16` length, bytes | [`Op::Call`] |
/// | 10, `u16` pages | [`Op::Want`] |
///
/// What is missing at the end is zeros, so that every sequence of bytes is a script.
#[derive(Clone, Copy, Debug)]
pub enum Op<'a> {
    /// Writes to its memory, up to the end.
    Write {
        /// Guest-physical address.
        address: u16,
        bytes: &'a [u8],
    },
    /// Writes to a port.
    Out {
        /// Which, see [`port`].
        place: u8,
        /// Bytes, 1 to 8.
        width: u8,
        value: u64,
    },
    /// Reads from a port.
    In {
        /// Which, see [`port`].
        place: u8,
        /// Bytes, 1 to 8.
        width: u8,
    },
    /// Writes to a register of a virtio device.
    Store {
        /// Which device; there are six.
        device: u8,
        /// Which register, by its number: a quarter of its offset.
        register: u8,
        /// Bytes, 1 to 8.
        width: u8,
        value: u64,
    },
    /// Reads from a register of a virtio device.
    Load {
        /// Which device; there are six.
        device: u8,
        /// Which register, by its number: a quarter of its offset.
        register: u8,
        /// Bytes, 1 to 8.
        width: u8,
    },
    /// Notifies a queue of a device.
    Notify {
        /// Which device; there are six. With the highest bit its second queue, with the next one its third.
        device: u8,
    },
    /// The host's user types.
    Input { bytes: &'a [u8] },
    /// A packet comes from the host's network.
    Arrive {
        /// Bytes of its frame.
        length: u16,
    },
    /// A program of the host connects to the socket device and says something.
    Call { bytes: &'a [u8] },
    /// The host wants so much of the guest's memory back.
    Want {
        /// How much, pages of 4096 bytes.
        pages: u16,
    },
    /// Time goes by, and devices that have waited for their limits are served.
    Wait {
        /// How much, ms.
        ms: u16,
    },
}

impl Op<'_> {
    /// Appends the step to a script.
    ///
    /// # Panics
    /// When more than 65535 bytes are to be written at once.
    pub fn encode(&self, script: &mut Vec<u8>) {
        let block = |script: &mut Vec<u8>, bytes: &[u8]| {
            let length = u16::try_from(bytes.len()).expect("a write is at most 65535 bytes long");
            script.extend(length.to_le_bytes());
            script.extend(bytes);
        };
        match *self {
            Self::Write { address, bytes } => {
                script.push(0);
                script.extend(address.to_le_bytes());
                block(script, bytes);
            }
            Self::Out { place, width, value } => {
                script.extend([1, place, width]);
                script.extend(value.to_le_bytes());
            }
            Self::In { place, width } => script.extend([2, place, width]),
            Self::Store { device, register, width, value } => {
                script.extend([3, device, register, width]);
                script.extend(value.to_le_bytes());
            }
            Self::Load { device, register, width } => script.extend([4, device, register, width]),
            Self::Notify { device } => script.extend([5, device]),
            Self::Input { bytes } => {
                script.push(6);
                block(script, bytes);
            }
            Self::Wait { ms } => {
                script.push(7);
                script.extend(ms.to_le_bytes());
            }
            Self::Arrive { length } => {
                script.push(8);
                script.extend(length.to_le_bytes());
            }
            Self::Call { bytes } => {
                script.push(9);
                block(script, bytes);
            }
            Self::Want { pages } => {
                script.push(10);
                script.extend(pages.to_le_bytes());
            }
        }
    }

    fn decode<'a>(input: &mut Input<'a>) -> Op<'a> {
        match input.byte() % 11 {
            0 => Op::Write { address: input.u16(), bytes: input.block() },
            1 => Op::Out { place: input.byte(), width: input.byte(), value: input.u64() },
            2 => Op::In { place: input.byte(), width: input.byte() },
            3 => Op::Store { device: input.byte(), register: input.byte(), width: input.byte(), value: input.u64() },
            4 => Op::Load { device: input.byte(), register: input.byte(), width: input.byte() },
            5 => Op::Notify { device: input.byte() },
            6 => Op::Input { bytes: input.block() },
            7 => Op::Wait { ms: input.u16() },
            8 => Op::Arrive { length: input.u16() },
            9 => Op::Call { bytes: input.block() },
            _ => Op::Want { pages: input.u16() },
        }
    }
}

/// The port at `place`: the serial port's, those of power and reset, the keyboard controller's, and all others.
const fn port(place: u8) -> u16 {
    match place >> 6 {
        0 | 1 => 0x3f8 + (place & 7) as u16,
        2 => 0x600 + (place & 3) as u16,
        _ => (place & 0x3f) as u16 * 0x404,
    }
}

/// Bytes of an access that says it has `width` of them.
const fn bytes(width: u8) -> usize {
    width.wrapping_sub(1) as usize % ACCESS + 1
}

/// Counts what the devices tell.
#[derive(Default)]
struct Counts {
    /// Requests to disks that have begun and not ended.
    under_way: Mutex<i64>,
    /// Requests to the first disk.
    of_limited: AtomicU64,
    /// Packets that have been taken and neither handed over nor lost, by queue.
    packets_under_way: Mutex<[i64; 2]>,
    /// Packets that have been handed over or lost, by queue.
    packets: [AtomicU64; 2],
    /// Connections of the socket device that have begun and not ended, and the last one's id.
    connections: Mutex<(usize, u64)>,
    /// Bytes that went into the balloon, and out of it again.
    balloon: [AtomicU64; 2],
    /// Bytes that the serial port put out.
    put_out: AtomicU64,
}

impl Observer for Counts {
    fn block_request(&self, disk: u32, _: BlockRequestKind, _: u64, _: u32, is_done: bool) {
        self.of_limited.fetch_add(u64::from(disk == 0 && !is_done), Ordering::Relaxed);
        *self.under_way.lock().expect("no step panics while it holds it") += if is_done { -1 } else { 1 };
    }

    fn net_packet(&self, _: u32, queue: NetQueue, _: u64, _: u32, stage: PacketStage) {
        let index = queue as usize;
        let change = if stage == PacketStage::Taken { 1 } else { -1 };
        self.packets[index].fetch_add(u64::from(stage != PacketStage::Taken), Ordering::Relaxed);
        self.packets_under_way.lock().expect("no step panics while it holds it")[index] += change;
    }

    fn vsock_begun(&self, id: u64, _: u32, _: u32, _: VsockSide) {
        let mut connections = self.connections.lock().expect("no step panics while it holds it");
        *connections = (connections.0 + 1, connections.1.max(id));
    }

    fn vsock_ended(&self, id: u64, _: VsockEnd) {
        let mut connections = self.connections.lock().expect("no step panics while it holds it");
        assert!(id <= connections.1 && connections.0 > 0, "the connection {id} ends and has not begun");
        connections.0 -= 1;
    }

    fn balloon_request(&self, kind: BalloonRequestKind, bytes: u64, _: u64, _: Duration) {
        if let Some(sum) = self.balloon.get(kind as usize) {
            sum.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    fn console_output(&self, bytes: u32) {
        self.put_out.fetch_add(bytes.into(), Ordering::Relaxed);
    }
}

/// A network on which packets arrive, and whose other end looks at what the guest sends.
#[derive(Debug)]
struct Network {
    /// Bytes of the frames that have arrived.
    arrived: Arc<Mutex<VecDeque<u16>>>,
    /// Something that is polled nowhere.
    descriptor: File,
}

impl Link for Network {
    fn offloads(&self) -> bool {
        true
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    fn send(&mut self, packet: &[u8]) -> io::Result<()> {
        let (header, frame) = packet.split_first_chunk::<PACKET_HEADER>().expect("a packet has a header");
        let [flags, kind, .., n0, n1] = *header;
        assert!(flags <= 1 && [0, 1, 4].contains(&kind) && [n0, n1] == [0, 0], "the header {header:?} gets out");
        let end = [6, 8].map(|at| usize::from(u16::from_le_bytes([header[at], header[at + 1]]))).iter().sum::<usize>();
        assert!(flags == 0 || end + 2 <= frame.len(), "a checksum outside its packet gets out");
        assert!((14..=FRAME_MAX).contains(&frame.len()), "a frame of {} bytes gets out", frame.len());
        // A part of them finds no room.
        if frame.len() % 7 == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    }

    fn receive(&mut self, packet: &mut [u8]) -> io::Result<usize> {
        let length = self.arrived.lock().expect("no step panics while it holds it").pop_front();
        let length = PACKET_HEADER + usize::from(length.ok_or(io::ErrorKind::WouldBlock)?);
        packet[..length].fill(0);
        Ok(length)
    }
}

/// A host on which programs call the guest, and others listen at ports and give back what they get.
struct Programs {
    callers: Arc<Mutex<VecDeque<UnixStream>>>,
    /// The other ends of connections of the guest's.
    listeners: Arc<Mutex<Vec<UnixStream>>>,
    /// What wakes the device when somebody calls.
    bell: UnixStream,
}

/// The two ends of a connection; neither waits.
fn pair() -> io::Result<[UnixStream; 2]> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    theirs.set_nonblocking(true)?;
    Ok([ours, theirs])
}

impl VsockHost for Programs {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn accept(&mut self) -> io::Result<UnixStream> {
        let caller = self.callers.lock().expect("no step panics while it holds it").pop_front();
        caller.ok_or(io::ErrorKind::WouldBlock.into())
    }

    fn connect(&mut self, port: u32) -> io::Result<UnixStream> {
        if port & LISTENS == 0 {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let [ours, theirs] = pair()?;
        self.listeners.lock().expect("no step panics while it holds it").push(theirs);
        Ok(ours)
    }
}

/// Gives back what the guest has sent to each listener, and hangs up where the guest has.
fn give_back(listeners: &Mutex<Vec<UnixStream>>) {
    let mut bytes = [0; 4096];
    let goes_on = |stream: &mut UnixStream| match stream.read(&mut bytes) {
        Ok(0) => false,
        Ok(length) => stream.write(&bytes[..length]).is_ok(),
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    };
    listeners.lock().expect("no step panicked").retain_mut(goes_on);
}

/// A disk's content: each sector tells its number.
fn content() -> Vec<u8> {
    (0u8..).take(DISK >> 9).flat_map(|sector| [sector; 512]).collect()
}

thread_local! {
    /// The disks' files, which are made once.
    static DISKS: RefCell<Vec<File>> = RefCell::default();
}

fn disks() -> io::Result<[File; 2]> {
    DISKS.with_borrow_mut(|disks| {
        while disks.len() < 2 {
            disks.push(memfd_create("strata-fuzz-disk", MemfdFlags::CLOEXEC)?.into());
        }
        disks[0].write_all_at(&content(), 0)?;
        if disks[1].metadata()?.len() == 0 {
            disks[1].write_all_at(&content(), 0)?;
        }
        Ok([disks[0].try_clone()?, disks[1].try_clone()?])
    })
}

/// Runs an input: a script.
///
/// # Panics
/// When a property that the target checks does not hold.
pub fn run(data: &[u8]) {
    let files = disks().expect("there is memory for two small files");
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY)]).expect("there is memory for a small guest");
    let counts = Arc::new(Counts::default());
    let observer: Arc<dyn Observer> = counts.clone();
    let disk = |(file, read_only): (&File, bool)| {
        let file = file.try_clone().expect("there are descriptors left");
        let limits = match read_only {
            false => DiskLimits { operations: Some(OPERATIONS), bytes: Some(BYTES) },
            true => DiskLimits::default(),
        };
        DetachedDisk { file, size: DISK as u64, read_only, limits }
    };
    let begin = Instant::now();
    let mut time = Duration::ZERO;
    let disks = files.iter().zip([false, true]).map(disk).collect();
    let console = Box::new(io::sink());
    let arrived = Arc::new(Mutex::new(VecDeque::new()));
    let network =
        Network { arrived: Arc::clone(&arrived), descriptor: files[0].try_clone().expect("descriptors are left") };
    let limits = NetLimits { packets: Some(PACKETS), bytes: None };
    let net = DetachedNet { link: Box::new(network), mac: MacAddress([2, 0, 0, 0, 0, 1]), limits };
    let [bell, rope] = pair().expect("descriptors are left");
    let callers = Arc::new(Mutex::new(VecDeque::new()));
    let listeners = Arc::new(Mutex::new(Vec::new()));
    let programs = Programs { callers: Arc::clone(&callers), listeners: Arc::clone(&listeners), bell };
    // Their ends stay open until the end of the script.
    let mut calls = Vec::new();
    let vsock = Some(DetachedVsock { cid: CID, host: Box::new(programs) });
    let devices = Peripherals::detached(&memory, disks, vec![net], vsock, console, &observer, begin);
    let devices = devices.expect("descriptors are left");

    let mut input = Input(data);
    let mut put_out = 0;
    while !input.0.is_empty() {
        let op = Op::decode(&mut input);
        if let Op::Out { width, .. } = op {
            put_out += bytes(width) as u64;
        }
        if let Op::Wait { ms } = op {
            time += Duration::from_millis(ms.into());
        }
        if let Op::Arrive { length } = op {
            arrived.lock().expect("no step panicked").push_back(length);
        }
        if let Op::Call { bytes } = op
            && calls.len() <= VSOCK_CONNECTIONS_MAX
        {
            let [ours, mut theirs] = pair().expect("descriptors are left");
            let _ = theirs.write(bytes);
            callers.lock().expect("no step panicked").push_back(ours);
            let _ = (&rope).write(b"!");
            calls.push(theirs);
        }
        step(op, &memory, &devices, begin + time);
        give_back(&listeners);
        let connections = counts.connections.lock().expect("no step panicked").0;
        assert!(connections <= VSOCK_CONNECTIONS_MAX, "there are {connections} connections");
        let [inflated, deflated] = counts.balloon.each_ref().map(|bytes| bytes.load(Ordering::Relaxed));
        let given = devices.balloon().map_or(0, |balloon| balloon.state().given);
        assert!(given <= MEMORY as u64, "a guest of {MEMORY} bytes has given {given} back");
        // A reset empties it.
        assert!(
            deflated + given <= inflated,
            "{inflated} bytes went into the balloon, {deflated} out, {given} are in it"
        );
        let came = u128::from(OPERATIONS.per_second) * time.as_millis() / 1000;
        let of_limited = counts.of_limited.load(Ordering::Relaxed);
        assert!(u128::from(of_limited) <= came + u128::from(OPERATIONS.burst), "a disk keeps within its limit");
        assert_eq!(*counts.under_way.lock().expect("no step panicked"), 0, "a request that began has ended");
        // One that came from the host waits for a buffer or the limit.
        let [receives, sends] = *counts.packets_under_way.lock().expect("no step panicked");
        assert!((0..=1).contains(&receives) && sends == 0, "{receives} and {sends} packets are under way");
        let came = u128::from(PACKETS.per_second) * time.as_millis() / 1000 + u128::from(PACKETS.burst);
        let moved = counts.packets.each_ref().map(|packets| u128::from(packets.load(Ordering::Relaxed)));
        assert!(moved.iter().all(|moved| *moved <= came), "the network keeps within its limit");
    }

    // The guest's own words come out, and no others.
    assert!(counts.put_out.load(Ordering::Relaxed) <= put_out);
    for file in &files {
        assert_eq!(file.metadata().expect("it is a file in memory").len(), DISK as u64, "a disk keeps its size");
    }
    let mut kept = vec![0; DISK];
    files[1].read_exact_at(&mut kept, 0).expect("it keeps its size");
    assert_eq!(kept, content(), "a disk that the guest may only read keeps its content");
}

fn step(op: Op<'_>, memory: &GuestMemoryMmap, devices: &Peripherals, now: Instant) {
    let address = |device: u8, register: u8| {
        VIRTIO_MMIO + u64::from(device % (DEVICES + 1)) * VIRTIO_MMIO_SIZE + u64::from(register) * 4
    };
    let mut read = [0; ACCESS];
    let action = match op {
        Op::Write { address, bytes } => {
            let room = bytes.len().min(MEMORY - usize::from(address));
            memory.write_slice(&bytes[..room], GuestAddress(address.into())).expect("it ends within the memory");
            ExitAction::Continue
        }
        Op::Out { place, width, value } => {
            let data = value.to_le_bytes();
            handle_exit(0, VcpuExit::IoOut(port(place), &data[..bytes(width)]), devices, &NoObserver)
        }
        Op::In { place, width } => {
            handle_exit(0, VcpuExit::IoIn(port(place), &mut read[..bytes(width)]), devices, &NoObserver)
        }
        Op::Store { device, register, width, value } => {
            let data = value.to_le_bytes();
            let exit = VcpuExit::MmioWrite(address(device, register), &data[..bytes(width)]);
            handle_exit(0, exit, devices, &NoObserver)
        }
        Op::Load { device, register, width } => {
            let exit = VcpuExit::MmioRead(address(device, register), &mut read[..bytes(width)]);
            handle_exit(0, exit, devices, &NoObserver)
        }
        Op::Notify { device } => {
            let queue = if device >= 0x80 { 1 } else { usize::from(device >> 6) * 2 };
            devices.notify((device % 0x40 % (DEVICES + 1)).into(), queue, now);
            ExitAction::Continue
        }
        Op::Want { pages } => {
            devices.balloon().expect("there is a balloon").want(u64::from(pages) * 4096);
            ExitAction::Continue
        }
        Op::Input { bytes } => {
            devices.enqueue_input(bytes);
            ExitAction::Continue
        }
        // As the event loop does with the host's side of a network.
        Op::Arrive { .. } => {
            devices.notify(NET, NetQueue::Receive as usize, now);
            ExitAction::Continue
        }
        // As the event loop does with the host's side of a socket device.
        Op::Call { .. } => {
            devices.notify(VSOCK, 0, now);
            ExitAction::Continue
        }
        Op::Wait { .. } => {
            devices.resume(now);
            ExitAction::Continue
        }
    };
    // A guest's access ends its run by the power ports only.
    let by_power = matches!(op, Op::Out { place, .. } if place >> 6 >= 2);
    let ends = matches!(action, ExitAction::PowerOff | ExitAction::Reset | ExitAction::Panicked);
    assert!(action == ExitAction::Continue || (ends && by_power), "{op:?} is answered by {action:?}");
}
