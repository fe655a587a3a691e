//! The virtio block device (virtio 1.x, section 5.2) on a file or block device of the host.

use super::{Served, VirtioDevice};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use strata_observer::{BlockRequestKind, Observer};
use strata_rate_limit::{RateLimit, Resource, Throttle, ThrottleCounts};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_SIZE_MAX,
    VIRTIO_BLK_ID_BYTES, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_FLUSH,
    VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT,
};
use virtio_bindings::virtio_ids::VIRTIO_ID_BLOCK;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::{DescriptorChain, Queue, QueueOwnedT, QueueT, Reader, Writer};
use vm_memory::GuestMemoryMmap;

/// Bytes of a sector: the unit of addresses and sizes.
pub const SECTOR_SIZE: u64 = 512;
const QUEUE_SIZE: u16 = 256;
/// Most data descriptors of a request: the queue less header and status.
const SEGMENTS_MAX: u32 = QUEUE_SIZE as u32 - 2;
/// Largest data descriptor that a driver should use, bytes.
const SEGMENT_MAX: u32 = 16 << 10;
/// Largest request, bytes: what a driver makes of the limits above, rounded up. A chain of descriptors can name the same
/// page over and over, so that its length says nothing about the guest's memory.
const REQUEST_MAX: usize = 4 << 20;
const _: () = assert!(SEGMENTS_MAX as usize * SEGMENT_MAX as usize <= REQUEST_MAX);
/// Requests served in one call, so that a busy disk cannot keep its thread from the end of the run, nor the driver's
/// register accesses waiting.
const REQUESTS_PER_CALL: usize = QUEUE_SIZE as usize;
/// Bytes moved in one call, but for the rest of the last request.
const BYTES_PER_CALL: usize = 8 << 20;
/// Time after which a call begins no other request: the host's disk may be slow.
const TIME_PER_CALL: Duration = Duration::from_millis(50);
/// Shortest wait for a limit: fewer timers for a limit of many requests.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);
/// Bytes copied at once between file and guest memory.
const CHUNK: usize = 128 << 10;

/// The header of a request, as the guest wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RequestHeader {
    kind: u32,
    sector: u64,
}

impl RequestHeader {
    fn read(reader: &mut Reader<'_>) -> io::Result<Self> {
        let mut header = [0u8; 16];
        reader.read_exact(&mut header)?;
        let [k0, k1, k2, k3, _, _, _, _, s0, s1, s2, s3, s4, s5, s6, s7] = header;
        Ok(Self {
            kind: u32::from_le_bytes([k0, k1, k2, k3]),
            sector: u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]),
        })
    }

    fn observed_kind(self) -> BlockRequestKind {
        match self.kind {
            VIRTIO_BLK_T_IN => BlockRequestKind::Read,
            VIRTIO_BLK_T_OUT => BlockRequestKind::Write,
            VIRTIO_BLK_T_FLUSH => BlockRequestKind::Flush,
            VIRTIO_BLK_T_GET_ID => BlockRequestKind::GetId,
            _ => BlockRequestKind::Other,
        }
    }
}

/// A request that has begun, as the observer was told of it: the guest may write another one in its place.
#[derive(Clone, Copy, Debug)]
struct BegunRequest {
    header: RequestHeader,
    bytes: u32,
    /// When it may go on.
    due: Instant,
}

/// Why a request was not carried out; becomes its status.
#[derive(Debug)]
enum RequestError {
    /// Not yet: it has begun, and the disk takes longer. It has no status so far.
    Delayed,
    /// Not a request this device knows.
    Unsupported,
    /// Outside the disk, refused, or failed by the host.
    Failed,
}

impl From<io::Error> for RequestError {
    fn from(_: io::Error) -> Self {
        Self::Failed
    }
}

/// Limits of what a guest does with a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskLimits {
    /// Requests, of any kind.
    pub operations: Option<RateLimit>,
    /// Bytes read and written.
    pub bytes: Option<RateLimit>,
}

/// A disk.
pub struct Block {
    file: File,
    sectors: u64,
    read_only: bool,
    index: u32,
    delay: Duration,
    /// The next request, if it has begun and not ended.
    begun: Option<BegunRequest>,
    buffer: Vec<u8>,
    /// Bytes moved in this call.
    moved: usize,
    throttle: Option<Throttle>,
    observer: Arc<dyn Observer>,
}

impl Block {
    /// A disk of `size` bytes in `file`; `index` names it to the observer and in its identification.
    #[must_use]
    pub fn new(file: File, size: u64, read_only: bool, index: u32, observer: Arc<dyn Observer>) -> Self {
        let (sectors, buffer, delay) = (size / SECTOR_SIZE, vec![0; CHUNK], Duration::ZERO);
        Self { file, sectors, read_only, index, delay, begun: None, buffer, moved: 0, throttle: None, observer }
    }

    /// The same disk, but each request to its content takes this much longer. The disk's other requests wait meanwhile,
    /// as with a file system of the host that hangs.
    #[must_use]
    pub fn delayed(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// The same disk within `limits`, from `now` on; `counts` tells how often a request had to wait for them.
    #[must_use]
    pub fn limited(self, limits: DiskLimits, counts: Arc<ThrottleCounts>, now: Instant) -> Self {
        let of = |resource, limit: Option<RateLimit>| limit.map(|limit| (resource, limit));
        let all = of(Resource::Operations, limits.operations).into_iter().chain(of(Resource::Bytes, limits.bytes));
        // A disk without limits is not to ask for them at each request.
        let throttle = (limits != DiskLimits::default()).then(|| Throttle::new(all, SHORTEST_WAIT, counts, now));
        Self { throttle, ..self }
    }

    /// How long the next request of `queue` has to wait for the disk's limits; `None` if it has not, has begun, or there
    /// is none.
    fn delay_of_next(
        &mut self,
        queue: &Queue,
        memory: &GuestMemoryMmap,
        now: Instant,
    ) -> Result<Option<Duration>, virtio_queue::Error> {
        let Some(throttle) = self.throttle.as_mut().filter(|_| self.begun.is_none()) else { return Ok(None) };
        if queue.avail_idx(memory, Ordering::Acquire)?.0 == queue.next_avail() {
            return Ok(None);
        }
        let Err(wait) = throttle.admit(now) else { return Ok(None) };
        if wait.begins {
            self.observer.disk_throttled(self.index, wait.resource, wait.time);
        }
        Ok(Some(wait.time))
    }

    /// Answers one request and returns how many bytes were written to the guest; `None` if it takes longer.
    fn answer(
        &mut self,
        chain: DescriptorChain<&GuestMemoryMmap>,
        memory: &GuestMemoryMmap,
        now: Instant,
    ) -> Option<u32> {
        // A chain outside guest memory, or without room for a status, gets no answer.
        let Ok(mut reader) = chain.clone().reader(memory) else {
            return Some(0);
        };
        let Ok(mut writer) = chain.writer(memory) else {
            return Some(0);
        };
        let Some(room) = writer.available_bytes().checked_sub(1) else {
            return Some(0);
        };
        let Ok(mut status) = writer.split_at(room) else {
            return Some(0);
        };
        let (written, code) = match self.execute(&mut reader, &mut writer, now) {
            Err(RequestError::Delayed) => return None,
            Ok(written) => (written, VIRTIO_BLK_S_OK),
            Err(RequestError::Unsupported) => (0, VIRTIO_BLK_S_UNSUPP),
            Err(RequestError::Failed) => (0, VIRTIO_BLK_S_IOERR),
        };
        match status.write_all(&code.to_le_bytes()[..1]) {
            Ok(()) => Some(written + 1),
            Err(_) => Some(0),
        }
    }

    /// Carries out a request, which may have begun before.
    fn execute(&mut self, reader: &mut Reader<'_>, writer: &mut Writer<'_>, now: Instant) -> Result<u32, RequestError> {
        let header = RequestHeader::read(reader)?;
        let request = self.begun.map_or(header, |begun| begun.header);
        let length = match request.kind {
            VIRTIO_BLK_T_OUT => reader.available_bytes(),
            _ => writer.available_bytes(),
        };
        let bytes = u32::try_from(length).map_err(|_| RequestError::Failed)?;
        let kind = request.observed_kind();
        if length > REQUEST_MAX || self.begun.is_some_and(|begun| begun.bytes != bytes) {
            return Err(RequestError::Failed);
        }
        let BegunRequest { due, .. } = *self.begun.get_or_insert_with(|| {
            self.observer.block_request(self.index, kind, request.sector, bytes, false);
            BegunRequest { header: request, bytes, due: now + self.delay }
        });
        let is_content = matches!(kind, BlockRequestKind::Read | BlockRequestKind::Write | BlockRequestKind::Flush);
        if is_content && now < due {
            return Err(RequestError::Delayed);
        }
        self.moved += length;
        match kind {
            BlockRequestKind::Read => self.read(request.sector, length, writer).map(|()| bytes),
            BlockRequestKind::Write => self.write(request.sector, length, reader).map(|()| 0),
            BlockRequestKind::Flush => self.file.sync_data().map(|()| 0).map_err(Into::into),
            BlockRequestKind::GetId => self.identify(writer),
            BlockRequestKind::Other => Err(RequestError::Unsupported),
        }
    }

    /// The request that has begun, if one has, is over.
    fn end_request(&mut self) {
        if let Some(BegunRequest { header, bytes, .. }) = self.begun.take() {
            self.observer.block_request(self.index, header.observed_kind(), header.sector, bytes, true);
        }
    }

    /// The place in the file of `length` bytes from `sector` on, if they lie on the disk in whole sectors.
    fn offset(&self, sector: u64, length: usize) -> Result<u64, RequestError> {
        let length = length as u64;
        let end = sector.checked_add(length / SECTOR_SIZE).ok_or(RequestError::Failed)?;
        if length == 0 || !length.is_multiple_of(SECTOR_SIZE) || end > self.sectors {
            return Err(RequestError::Failed);
        }
        Ok(sector * SECTOR_SIZE)
    }

    fn read(&mut self, sector: u64, length: usize, writer: &mut Writer<'_>) -> Result<(), RequestError> {
        let mut offset = self.offset(sector, length)?;
        let mut left = length;
        while left > 0 {
            let part = left.min(self.buffer.len());
            let buffer = &mut self.buffer[..part];
            self.file.read_exact_at(buffer, offset)?;
            writer.write_all(buffer)?;
            offset += part as u64;
            left -= part;
        }
        Ok(())
    }

    fn write(&mut self, sector: u64, length: usize, reader: &mut Reader<'_>) -> Result<(), RequestError> {
        let mut offset = self.offset(sector, length)?;
        if self.read_only {
            return Err(RequestError::Failed);
        }
        let mut left = length;
        while left > 0 {
            let part = left.min(self.buffer.len());
            let buffer = &mut self.buffer[..part];
            reader.read_exact(buffer)?;
            self.file.write_all_at(buffer, offset)?;
            offset += part as u64;
            left -= part;
        }
        Ok(())
    }

    fn identify(&self, writer: &mut Writer<'_>) -> Result<u32, RequestError> {
        let mut id = [0u8; VIRTIO_BLK_ID_BYTES as usize];
        let name = format!("strata-disk-{}", self.index);
        let length = name.len().min(id.len());
        id[..length].copy_from_slice(&name.as_bytes()[..length]);
        writer.write_all(&id)?;
        Ok(VIRTIO_BLK_ID_BYTES)
    }

    /// The configuration space as the device fills it, up to `blk_size`.
    fn config(&self) -> [u8; 24] {
        let mut config = [0u8; 24];
        config[..8].copy_from_slice(&self.sectors.to_le_bytes());
        config[8..12].copy_from_slice(&SEGMENT_MAX.to_le_bytes());
        config[12..16].copy_from_slice(&SEGMENTS_MAX.to_le_bytes());
        config[20..22].copy_from_slice(&512u16.to_le_bytes());
        config
    }
}

impl VirtioDevice for Block {
    fn device_type(&self) -> u32 {
        VIRTIO_ID_BLOCK
    }

    fn features(&self) -> u64 {
        let read_only = if self.read_only { 1 << VIRTIO_BLK_F_RO } else { 0 };
        read_only
            | 1 << VIRTIO_BLK_F_SIZE_MAX
            | 1 << VIRTIO_BLK_F_SEG_MAX
            | 1 << VIRTIO_BLK_F_BLK_SIZE
            | 1 << VIRTIO_BLK_F_FLUSH
            | 1 << VIRTIO_RING_F_INDIRECT_DESC
            | 1 << VIRTIO_RING_F_EVENT_IDX
    }

    fn queue_sizes(&self) -> &[u16] {
        &[QUEUE_SIZE]
    }

    fn stop(&mut self) {
        // The next request is another one.
        self.end_request();
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        let config = self.config();
        let rest = usize::try_from(offset).ok().and_then(|offset| config.get(offset..));
        for (to, from) in data.iter_mut().zip(rest.unwrap_or_default()) {
            *to = *from;
        }
    }

    fn serve(
        &mut self,
        _: usize,
        queue: &mut Queue,
        memory: &GuestMemoryMmap,
        now: Instant,
    ) -> Result<Served, virtio_queue::Error> {
        self.observer.disk_notified(self.index);
        let begun = Instant::now();
        let mut requests = 0;
        let mut is_spent = false;
        let mut resume_after = None;
        self.moved = 0;
        loop {
            queue.disable_notification(memory)?;
            while !is_spent {
                resume_after = self.delay_of_next(queue, memory, now)?;
                if resume_after.is_some() {
                    break;
                }
                let Some(chain) = queue.iter(memory)?.next() else {
                    break;
                };
                let head = chain.head_index();
                let moved_before = self.moved;
                let Some(written) = self.answer(chain, memory, now + begun.elapsed()) else {
                    queue.go_to_previous_position();
                    resume_after = self.begun.map(|request| request.due.saturating_duration_since(now));
                    break;
                };
                self.end_request();
                queue.add_used(memory, head, written)?;
                requests += 1;
                if let Some(throttle) = &mut self.throttle {
                    throttle.charge(1, (self.moved - moved_before) as u64, now);
                }
                is_spent =
                    requests >= REQUESTS_PER_CALL || self.moved >= BYTES_PER_CALL || begun.elapsed() >= TIME_PER_CALL;
            }
            // True if the guest added a request while notifications were off. They stay off while the disk waits: what
            // is added is looked for then.
            let more = resume_after.is_none() && queue.enable_notification(memory)?;
            if !more || is_spent {
                let interrupt = requests > 0 && queue.needs_notification(memory)?;
                if interrupt {
                    self.observer.disk_interrupt(self.index);
                }
                return Ok(Served { interrupt, more, resume_after, ..Served::default() });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use strata_observer::NoObserver;
    use virtio_queue::desc::RawDescriptor;
    use virtio_queue::desc::split::Descriptor;
    use virtio_queue::mock::MockSplitQueue;
    use vm_memory::{Bytes, GuestAddress};

    const MEMORY: usize = 0x10_0000;
    const HEADER: u64 = 0x2_0000;
    const DATA: u64 = 0x3_0000;
    const STATUS: u64 = 0x4_0000;
    const SECTORS: u64 = 64;

    fn memory() -> GuestMemoryMmap {
        GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY)]).unwrap()
    }

    fn disk(read_only: bool) -> Block {
        let file = tempfile::tempfile().unwrap();
        let pattern: Vec<u8> = (0u8..64).flat_map(|sector| [sector; 512]).collect();
        file.write_all_at(&pattern, 0).unwrap();
        Block::new(file, SECTORS * SECTOR_SIZE, read_only, 3, Arc::new(NoObserver))
    }

    const NEXT: u16 = 1;
    const DEVICE_WRITES: u16 = 2;

    /// A chain of `parts` (address, length, written by the device).
    fn chain(parts: &[(u64, u32, bool)]) -> Vec<RawDescriptor> {
        let descriptor = |(next, &(address, length, device_writes)): (u16, &(u64, u32, bool))| {
            let last = usize::from(next) == parts.len();
            let flags = u16::from(!last) * NEXT + u16::from(device_writes) * DEVICE_WRITES;
            RawDescriptor::from(Descriptor::new(address, length, flags, next))
        };
        (1u16..).zip(parts).map(descriptor).collect()
    }

    /// Chains `parts` (address, length, written by the device), serves them, and returns the status byte.
    fn serve(disk: &mut Block, memory: &GuestMemoryMmap, parts: &[(u64, u32, bool)]) -> u8 {
        let queue = MockSplitQueue::new(memory, 16);
        queue.build_desc_chain(&chain(parts)).unwrap();
        let mut ring: Queue = queue.create_queue().unwrap();
        memory.write_obj(0xffu8, GuestAddress(STATUS)).unwrap();
        let served = disk.serve(0, &mut ring, memory, Instant::now()).unwrap();
        assert_eq!((served.interrupt, ring.next_used()), (true, 1));
        memory.read_obj(GuestAddress(STATUS)).unwrap()
    }

    fn header(memory: &GuestMemoryMmap, kind: u32, sector: u64) -> (u64, u32, bool) {
        memory.write_obj(u64::from(kind), GuestAddress(HEADER)).unwrap();
        memory.write_obj(sector, GuestAddress(HEADER + 8)).unwrap();
        (HEADER, 16, false)
    }

    const STATUS_BYTE: (u64, u32, bool) = (STATUS, 1, true);

    #[test]
    fn read_copies_the_sectors() {
        let (memory, mut disk) = (memory(), disk(false));
        let header = header(&memory, VIRTIO_BLK_T_IN, 5);
        let status = serve(&mut disk, &memory, &[header, (DATA, 1024, true), STATUS_BYTE]);
        let ends: [u8; 2] = [DATA, DATA + 1023].map(|at| memory.read_obj(GuestAddress(at)).unwrap());
        assert_eq!((u32::from(status), ends), (VIRTIO_BLK_S_OK, [5, 6]));
    }

    /// What an observer gets of requests: their kinds and sectors, and which are done.
    #[derive(Default)]
    struct Seen(Mutex<Vec<(BlockRequestKind, u64, bool)>>);

    impl Observer for Seen {
        fn block_request(&self, _: u32, kind: BlockRequestKind, sector: u64, _: u32, done: bool) {
            self.0.lock().unwrap().push((kind, sector, done));
        }
    }

    /// What it gets of the request of [`delayed`].
    const BEGUN_AND_DONE: [(BlockRequestKind, u64, bool); 2] =
        [(BlockRequestKind::Read, 5, false), (BlockRequestKind::Read, 5, true)];

    const DELAY: Duration = Duration::from_secs(10);

    /// A disk with a delay, and a queue with a request for its content.
    fn delayed(memory: &GuestMemoryMmap) -> (Block, Queue) {
        let queue = MockSplitQueue::new(memory, 16);
        queue.build_desc_chain(&chain(&[header(memory, VIRTIO_BLK_T_IN, 5), (DATA, 512, true), STATUS_BYTE])).unwrap();
        (disk(false).delayed(DELAY), queue.create_queue().unwrap())
    }

    #[test]
    fn delayed_disk_takes_its_time_for_content_and_does_not_keep_its_caller_meanwhile() {
        let (memory, seen, begin) = (memory(), Arc::new(Seen::default()), Instant::now());
        let (disk, mut ring) = delayed(&memory);
        let mut disk = Block { observer: seen.clone(), ..disk };

        let answered = [Duration::ZERO, DELAY / 2, 2 * DELAY].map(|after| {
            let served = disk.serve(0, &mut ring, &memory, begin + after).unwrap();
            (served.resume_after.is_some(), ring.next_used())
        });

        assert_eq!(answered, [(true, 0), (true, 0), (false, 1)]);
        assert_eq!(u32::from(memory.read_obj::<u8>(GuestAddress(STATUS)).unwrap()), VIRTIO_BLK_S_OK);
        assert_eq!(*seen.0.lock().unwrap(), BEGUN_AND_DONE);
    }

    #[test]
    fn request_that_the_guest_changes_while_it_is_delayed_goes_on_as_it_began() {
        let (memory, seen, begin) = (memory(), Arc::new(Seen::default()), Instant::now());
        let (disk, mut ring) = delayed(&memory);
        let mut disk = Block { observer: seen.clone(), ..disk };
        disk.serve(0, &mut ring, &memory, begin).unwrap();

        header(&memory, VIRTIO_BLK_T_GET_ID, 9);
        disk.serve(0, &mut ring, &memory, begin + 2 * DELAY).unwrap();

        assert_eq!(memory.read_obj::<u8>(GuestAddress(DATA)).unwrap(), 5);
        assert_eq!(*seen.0.lock().unwrap(), BEGUN_AND_DONE);
    }

    #[test]
    fn request_that_the_guest_makes_invalid_while_it_is_delayed_ends() {
        let (memory, seen, begin) = (memory(), Arc::new(Seen::default()), Instant::now());
        let (disk, mut ring) = delayed(&memory);
        let mut disk = Block { observer: seen.clone(), ..disk };
        disk.serve(0, &mut ring, &memory, begin).unwrap();

        let length_of_header = GuestAddress(8);
        memory.write_obj(8u32, length_of_header).unwrap();
        disk.serve(0, &mut ring, &memory, begin + 2 * DELAY).unwrap();

        assert_eq!(u32::from(memory.read_obj::<u8>(GuestAddress(STATUS)).unwrap()), VIRTIO_BLK_S_IOERR);
        assert_eq!(*seen.0.lock().unwrap(), BEGUN_AND_DONE);
    }

    #[test]
    fn reset_ends_a_delayed_request() {
        let (memory, seen) = (memory(), Arc::new(Seen::default()));
        let (disk, mut ring) = delayed(&memory);
        let mut disk = Block { observer: seen.clone(), ..disk };
        disk.serve(0, &mut ring, &memory, Instant::now()).unwrap();

        disk.stop();
        disk.stop();

        assert_eq!(*seen.0.lock().unwrap(), BEGUN_AND_DONE);
    }

    #[test]
    fn request_after_a_reset_is_delayed_anew() {
        let (memory, begin) = (memory(), Instant::now());
        let (mut disk, mut ring) = delayed(&memory);
        let (_, mut ring_after_reset) = delayed(&memory);
        disk.serve(0, &mut ring, &memory, begin).unwrap();

        disk.stop();
        let served = disk.serve(0, &mut ring_after_reset, &memory, begin + 2 * DELAY).unwrap();

        assert!(served.resume_after.is_some());
    }

    #[test]
    fn request_for_no_content_is_not_delayed() {
        let memory = memory();
        let (mut disk, _) = delayed(&memory);
        let name = header(&memory, VIRTIO_BLK_T_GET_ID, 0);

        let status = serve(&mut disk, &memory, &[name, (DATA, 20, true), STATUS_BYTE]);

        assert_eq!(u32::from(status), VIRTIO_BLK_S_OK);
    }

    #[test]
    fn write_reaches_the_file() {
        let (memory, mut disk) = (memory(), disk(false));
        memory.write_slice(&[0xab; 512], GuestAddress(DATA)).unwrap();
        let header = header(&memory, VIRTIO_BLK_T_OUT, 9);
        let status = serve(&mut disk, &memory, &[header, (DATA, 512, false), STATUS_BYTE]);
        let mut around = [0u8; 514];
        disk.file.read_exact_at(&mut around, 9 * SECTOR_SIZE - 1).unwrap();
        assert_eq!(u32::from(status), VIRTIO_BLK_S_OK);
        assert_eq!((around[0], around[1], around[512], around[513]), (8, 0xab, 0xab, 10));
    }

    #[test]
    fn data_may_be_cut_anywhere() {
        let (memory, mut disk) = (memory(), disk(false));
        let header = header(&memory, VIRTIO_BLK_T_IN, 1);
        let parts = [(header.0, 3, false), (header.0 + 3, 13, false), (DATA, 100, true), (DATA + 100, 413, true)];
        memory.write_obj(0xffu8, GuestAddress(DATA + 512)).unwrap();
        let queue_status = serve(&mut disk, &memory, &parts);
        // The status is the last byte of the last descriptor here, not the byte at STATUS.
        let status: u8 = memory.read_obj(GuestAddress(DATA + 512)).unwrap();
        assert_eq!((queue_status, u32::from(status)), (0xff, VIRTIO_BLK_S_OK));
    }

    #[test]
    fn flush_succeeds() {
        let (memory, mut disk) = (memory(), disk(false));
        let header = header(&memory, VIRTIO_BLK_T_FLUSH, 0);
        let status = serve(&mut disk, &memory, &[header, STATUS_BYTE]);
        assert_eq!(u32::from(status), VIRTIO_BLK_S_OK);
    }

    #[test]
    fn identification_names_the_disk() {
        let (memory, mut disk) = (memory(), disk(false));
        let header = header(&memory, VIRTIO_BLK_T_GET_ID, 0);
        serve(&mut disk, &memory, &[header, (DATA, 20, true), STATUS_BYTE]);
        let mut id = [0u8; 20];
        memory.read_slice(&mut id, GuestAddress(DATA)).unwrap();
        assert_eq!(&id, b"strata-disk-3\0\0\0\0\0\0\0");
    }

    #[test]
    fn unknown_request_is_unsupported() {
        let (memory, mut disk) = (memory(), disk(false));
        let header = header(&memory, 77, 0);
        let status = serve(&mut disk, &memory, &[header, STATUS_BYTE]);
        assert_eq!(u32::from(status), VIRTIO_BLK_S_UNSUPP);
    }

    #[test]
    fn read_beyond_the_end_fails() {
        let (memory, mut disk) = (memory(), disk(false));
        let header = header(&memory, VIRTIO_BLK_T_IN, SECTORS - 1);
        let status = serve(&mut disk, &memory, &[header, (DATA, 1024, true), STATUS_BYTE]);
        assert_eq!(u32::from(status), VIRTIO_BLK_S_IOERR);
    }

    #[test]
    fn sector_number_that_overflows_fails() {
        let (memory, mut disk) = (memory(), disk(false));
        let header = header(&memory, VIRTIO_BLK_T_IN, u64::MAX);
        let status = serve(&mut disk, &memory, &[header, (DATA, 512, true), STATUS_BYTE]);
        assert_eq!(u32::from(status), VIRTIO_BLK_S_IOERR);
    }

    #[test]
    fn part_of_a_sector_fails() {
        let (memory, mut disk) = (memory(), disk(false));
        let header = header(&memory, VIRTIO_BLK_T_IN, 0);
        let status = serve(&mut disk, &memory, &[header, (DATA, 100, true), STATUS_BYTE]);
        assert_eq!(u32::from(status), VIRTIO_BLK_S_IOERR);
    }

    #[test]
    fn write_to_a_read_only_disk_fails() {
        let (memory, mut disk) = (memory(), disk(true));
        let header = header(&memory, VIRTIO_BLK_T_OUT, 0);
        let status = serve(&mut disk, &memory, &[header, (DATA, 512, false), STATUS_BYTE]);
        assert_eq!(u32::from(status), VIRTIO_BLK_S_IOERR);
    }

    /// A disk of 64 MiB, and parts of a request that reads `pieces` times half a MiB from it, all to the same place.
    fn large(memory: &GuestMemoryMmap, pieces: usize) -> (Block, Vec<(u64, u32, bool)>) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 << 20).unwrap();
        let mut parts = vec![header(memory, VIRTIO_BLK_T_IN, 0)];
        parts.extend(std::iter::repeat_n((DATA, 512 << 10, true), pieces));
        parts.push((DATA - 1, 1, true));
        (Block::new(file, 64 << 20, false, 0, Arc::new(NoObserver)), parts)
    }

    #[test]
    fn request_that_names_its_memory_over_and_over_has_a_largest_size() {
        let memory = memory();

        let statuses = [8, 9].map(|pieces| {
            let (mut disk, parts) = large(&memory, pieces);
            serve(&mut disk, &memory, &parts);
            u32::from(memory.read_obj::<u8>(GuestAddress(DATA - 1)).unwrap())
        });

        assert_eq!(statuses, [VIRTIO_BLK_S_OK, VIRTIO_BLK_S_IOERR]);
    }

    #[test]
    fn call_ends_when_it_has_moved_enough_and_asks_for_another() {
        let memory = memory();
        let (mut disk, parts) = large(&memory, 8);
        let queue = MockSplitQueue::new(&memory, 16);
        queue.build_desc_chain(&chain(&parts)).unwrap();
        (0..6).for_each(|place| queue.avail().ring().ref_at(place).unwrap().store(0));
        queue.avail().idx().store(6);
        let mut ring: Queue = queue.create_queue().unwrap();

        let served = disk.serve(0, &mut ring, &memory, Instant::now()).unwrap();

        // On a slow machine the time of a call may be over before.
        assert!(served.more && (1..=2).contains(&ring.next_used()), "{} served", ring.next_used());
    }

    /// A disk that may do two requests at once and ten each second, with six of them in its queue.
    fn limited(memory: &GuestMemoryMmap, begin: Instant) -> (Block, Queue, Arc<ThrottleCounts>) {
        let counts = Arc::new(ThrottleCounts::default());
        let operations = Some(RateLimit { per_second: 10, burst: 2 });
        let limits = DiskLimits { operations, bytes: None };
        let disk = disk(false).limited(limits, Arc::clone(&counts), begin);
        let queue = MockSplitQueue::new(memory, 16);
        queue.build_desc_chain(&chain(&[header(memory, VIRTIO_BLK_T_IN, 5), (DATA, 512, true), STATUS_BYTE])).unwrap();
        (0..6).for_each(|place| queue.avail().ring().ref_at(place).unwrap().store(0));
        queue.avail().idx().store(6);
        (disk, queue.create_queue().unwrap(), counts)
    }

    #[test]
    fn requests_beyond_the_limit_wait_in_the_queue_and_none_is_lost() {
        const TENTH: Duration = Duration::from_millis(100);
        let memory = memory();
        let begin = Instant::now();
        let (mut disk, mut ring, counts) = limited(&memory, begin);
        let mut serve = |now| (disk.serve(0, &mut ring, &memory, now).unwrap(), ring.next_used());

        let burst = serve(begin);
        let notified_meanwhile = serve(begin + TENTH / 2);
        let later = [1, 2, 3, 4, 5].map(|tenths| serve(begin + TENTH * tenths).1);
        let last = serve(begin + 6 * TENTH).0;

        let waits = |time| Served { interrupt: true, more: false, resume_after: Some(time), wake: None };
        assert_eq!(burst, (waits(TENTH), 2));
        assert_eq!(notified_meanwhile, (Served { interrupt: false, ..waits(TENTH / 2) }, 2));
        assert_eq!(later, [3, 4, 5, 6, 6]);
        assert_eq!(last, Served::default());
        assert_eq!((counts.times(), counts.time()), (4, 4 * TENTH));
    }

    #[test]
    fn bytes_beyond_the_limit_are_owed() {
        let memory = memory();
        let begin = Instant::now();
        let (disk, mut ring, _) = limited(&memory, begin);
        let bytes = Some(RateLimit { per_second: 512, burst: 511 });
        let mut disk = disk.limited(DiskLimits { operations: None, bytes }, Arc::default(), begin);

        let served = disk.serve(0, &mut ring, &memory, begin).unwrap();

        // One byte more than there were, and another one to go on.
        assert_eq!((served.resume_after, ring.next_used()), (Some(Duration::from_nanos(3_906_250)), 1));
    }

    #[test]
    fn disk_that_waits_wants_no_notification_and_one_that_has_done_all_does() {
        let memory = memory();
        let begin = Instant::now();
        let (mut disk, mut ring, _) = limited(&memory, begin);

        let wants_none = [0, 1, 2].map(|seconds| {
            disk.serve(0, &mut ring, &memory, begin + Duration::from_secs(seconds)).unwrap();
            (ring.next_used(), memory.read_obj::<u16>(GuestAddress(ring.used_ring())).unwrap())
        });

        assert_eq!(wants_none, [(2, 1), (4, 1), (6, 0)]);
    }

    #[test]
    fn short_header_fails() {
        let (memory, mut disk) = (memory(), disk(false));
        let status = serve(&mut disk, &memory, &[(HEADER, 8, false), STATUS_BYTE]);
        assert_eq!(u32::from(status), VIRTIO_BLK_S_IOERR);
    }

    #[test]
    fn chain_outside_memory_is_given_back_unanswered() {
        let (memory, mut disk) = (memory(), disk(false));
        let header = header(&memory, VIRTIO_BLK_T_IN, 0);
        let outside = (MEMORY as u64 * 2, 512, true);
        assert_eq!(serve(&mut disk, &memory, &[header, outside, STATUS_BYTE]), 0xff);
    }

    #[test]
    fn chain_without_status_is_given_back_unanswered() {
        let (memory, mut disk) = (memory(), disk(false));
        let header = header(&memory, VIRTIO_BLK_T_FLUSH, 0);
        assert_eq!(serve(&mut disk, &memory, &[header]), 0xff);
    }

    #[test]
    fn available_index_that_runs_ahead_stops_the_device() {
        let (memory, mut disk) = (memory(), disk(false));
        let queue = MockSplitQueue::new(&memory, 16);
        queue.build_desc_chain(&[RawDescriptor::from(Descriptor::new(HEADER, 16, 0, 0))]).unwrap();
        queue.avail().idx().store(1000);
        let mut ring: Queue = queue.create_queue().unwrap();
        assert!(disk.serve(0, &mut ring, &memory, Instant::now()).is_err());
    }

    #[test]
    fn configuration_gives_the_capacity_in_sectors() {
        let mut capacity = [0u8; 8];
        disk(false).read_config(0, &mut capacity);
        assert_eq!(u64::from_le_bytes(capacity), SECTORS);
    }

    #[test]
    fn configuration_beyond_the_end_is_left_alone() {
        let mut data = [0x55u8; 4];
        disk(false).read_config(u64::MAX, &mut data);
        assert_eq!(data, [0x55; 4]);
    }

    #[test]
    fn only_a_read_only_disk_says_so() {
        let bit = 1 << VIRTIO_BLK_F_RO;
        assert_eq!([true, false].map(|ro| disk(ro).features() & bit), [bit, 0]);
    }

    proptest::proptest! {
        /// Whatever lies in the rings, the device comes to an end, and a read-only disk stays as it was.
        #[test]
        fn hostile_rings_neither_hang_the_device_nor_change_a_read_only_disk(
            descriptors in proptest::collection::vec(
                (0u64..0x12_0000, 0u32..0x2000, 0u16..8, 0u16..18), 16
            ),
            heads in proptest::collection::vec(0u16..20, 16),
            available in 0u16..20,
            kind in 0u32..12,
            sector in 0u64..70,
        ) {
            let (memory, mut disk) = (memory(), disk(true));
            header(&memory, kind, sector);
            let queue = MockSplitQueue::new(&memory, 16);
            for (index, (address, length, flags, next)) in (0u16..).zip(descriptors) {
                let address = [HEADER, address][usize::from(address % 3 > 0)];
                let descriptor = Descriptor::new(address, length, flags, next);
                queue.desc_table().store(index, RawDescriptor::from(descriptor)).unwrap();
            }
            for (index, head) in heads.iter().enumerate() {
                queue.avail().ring().ref_at(index).unwrap().store(*head);
            }
            queue.avail().idx().store(available);
            let mut ring: Queue = queue.create_queue().unwrap();
            let _ = disk.serve(0, &mut ring, &memory, Instant::now());
            let mut last = [0u8; 1];
            disk.file.read_exact_at(&mut last, SECTORS * SECTOR_SIZE - 1).unwrap();
            proptest::prop_assert_eq!(last, [63]);
        }
    }
}
