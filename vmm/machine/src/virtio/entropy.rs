//! The virtio entropy device (virtio 1.x, section 5.4): random bytes of the host's kernel.

use super::work::Work;
use super::{Served, VirtioDevice};
use rustix::rand::{GetRandomFlags, getrandom};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use strata_observer::Observer;
use strata_rate_limit::{RateLimit, Resource, Throttle, ThrottleCounts};
use virtio_bindings::virtio_ids::VIRTIO_ID_RNG;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::{DescriptorChain, Error, Queue, QueueOwnedT, QueueT};
use vm_memory::GuestMemoryMmap;

const QUEUE_SIZE: u16 = 16;
/// Most bytes for one request; a driver takes fewer than it asked for. What the kernel gives at once without being
/// interrupted.
const REQUEST_MAX: usize = 256;
/// What a guest gets: as much as it needs for its seeds, and no more than a trifle of the host's time.
pub const ENTROPY_LIMIT: RateLimit = RateLimit { per_second: 64 << 10, burst: 64 << 10 };
/// Shortest wait for the limit.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// A source of random bytes.
pub struct Entropy {
    throttle: Throttle,
    observer: Arc<dyn Observer>,
}

impl Entropy {
    /// A source that keeps within [`ENTROPY_LIMIT`] from `now` on; `counts` tells how often a request had to wait.
    #[must_use]
    pub fn new(observer: Arc<dyn Observer>, counts: Arc<ThrottleCounts>, now: Instant) -> Self {
        Self { throttle: Throttle::new([(Resource::Bytes, ENTROPY_LIMIT)], SHORTEST_WAIT, counts, now), observer }
    }
}

/// Answers one request; returns how many bytes were written.
fn answer(chain: DescriptorChain<&GuestMemoryMmap>, memory: &GuestMemoryMmap) -> io::Result<u32> {
    let mut writer = chain.writer(memory).map_err(io::Error::other)?;
    let mut bytes = [0; REQUEST_MAX];
    let length = writer.available_bytes().min(REQUEST_MAX);
    let length = getrandom(&mut bytes[..length], GetRandomFlags::NONBLOCK)?;
    writer.write_all(&bytes[..length])?;
    u32::try_from(length).map_err(io::Error::other)
}

impl VirtioDevice for Entropy {
    fn device_type(&self) -> u32 {
        VIRTIO_ID_RNG
    }

    fn features(&self) -> u64 {
        1 << VIRTIO_RING_F_INDIRECT_DESC | 1 << VIRTIO_RING_F_EVENT_IDX
    }

    fn queue_sizes(&self) -> &[u16] {
        &[QUEUE_SIZE]
    }

    fn read_config(&self, _: u64, _: &mut [u8]) {}

    fn serve(&mut self, _: usize, queue: &mut Queue, memory: &GuestMemoryMmap, now: Instant) -> Result<Served, Error> {
        let mut work = Work::begin();
        let mut resume_after = None;
        loop {
            queue.disable_notification(memory)?;
            while !work.is_spent() && queue.avail_idx(memory, Ordering::Acquire)?.0 != queue.next_avail() {
                resume_after = self.throttle.admit(now).err().map(|wait| wait.time);
                // Before the request is taken: one that is taken and not answered never comes again.
                if resume_after.is_some() {
                    break;
                }
                let Some(chain) = queue.iter(memory)?.next() else { break };
                let head = chain.head_index();
                // A chain outside guest memory gets nothing.
                let written = answer(chain, memory).unwrap_or(0);
                queue.add_used(memory, head, written)?;
                self.throttle.charge(1, written.max(1).into(), now);
                self.observer.entropy_request(written);
                work.add(written as usize);
            }
            let more = resume_after.is_none() && queue.enable_notification(memory)?;
            if !more || work.is_spent() {
                let interrupt = work.packets() > 0 && queue.needs_notification(memory)?;
                return Ok(Served { interrupt, more, resume_after, ..Served::default() });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_observer::NoObserver;
    use virtio_queue::desc::RawDescriptor;
    use virtio_queue::desc::split::Descriptor;
    use virtio_queue::mock::MockSplitQueue;
    use vm_memory::{Bytes, GuestAddress};

    const DATA: u64 = 0x2_0000;
    const NEXT: u16 = 1;
    const DEVICE_WRITES: u16 = 2;
    const IS_TABLE: u16 = 4;

    fn memory() -> GuestMemoryMmap {
        GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x10_0000)]).unwrap()
    }

    fn device(now: Instant) -> (Entropy, Arc<ThrottleCounts>) {
        let counts = Arc::new(ThrottleCounts::default());
        (Entropy::new(Arc::new(NoObserver), Arc::clone(&counts), now), counts)
    }

    /// A queue with a buffer at `address` of `length` bytes, given `times` times.
    fn queue(memory: &GuestMemoryMmap, address: u64, length: u32, times: u16) -> Queue {
        let queue = MockSplitQueue::new(memory, 16);
        let descriptor = RawDescriptor::from(Descriptor::new(address, length, DEVICE_WRITES, 0));
        queue.build_desc_chain(&[descriptor]).unwrap();
        (0..times.min(16)).for_each(|place| queue.avail().ring().ref_at(place.into()).unwrap().store(0));
        queue.avail().idx().store(times);
        queue.create_queue().unwrap()
    }

    #[test]
    fn request_gets_random_bytes_and_no_more_than_it_has_room_for() {
        let memory = memory();
        let (mut device, _) = device(Instant::now());
        let mut ring = queue(&memory, DATA, 64, 1);

        let served = device.serve(0, &mut ring, &memory, Instant::now()).unwrap();

        let mut bytes = [0; 128];
        memory.read_slice(&mut bytes, GuestAddress(DATA)).unwrap();
        assert_eq!(served, Served { interrupt: true, ..Served::default() });
        assert!(bytes[..64].iter().any(|byte| *byte != 0) && bytes[64..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn large_request_gets_a_part() {
        let memory = memory();
        let (mut device, _) = device(Instant::now());
        let mut ring = queue(&memory, DATA, 0x8_0000, 1);

        device.serve(0, &mut ring, &memory, Instant::now()).unwrap();

        let mut bytes = [0; 1024];
        memory.read_slice(&mut bytes, GuestAddress(DATA)).unwrap();
        assert!(bytes[REQUEST_MAX..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn guest_that_asks_for_more_than_its_rate_waits() {
        let begin = Instant::now();
        let (mut device, counts) = device(begin);
        let mut answered = 0;
        let mut resume_after = None;
        // As many requests as the burst has room for, and some.
        while resume_after.is_none() && answered <= 2 * ENTROPY_LIMIT.burst / 256 {
            let memory = memory();
            let mut ring = queue(&memory, DATA, 256, 8);
            resume_after = device.serve(0, &mut ring, &memory, begin).unwrap().resume_after;
            answered += u64::from(ring.next_used());
        }

        assert_eq!(answered * 256, ENTROPY_LIMIT.burst);
        assert!(resume_after.is_some() && counts.times() == 1, "{resume_after:?}");
    }

    #[test]
    fn request_that_waits_for_the_limit_is_answered_later() {
        let begin = Instant::now();
        let memory = memory();
        let (mut device, _) = device(begin);
        device.throttle.charge(1, ENTROPY_LIMIT.burst, begin);
        let mut ring = queue(&memory, DATA, 64, 1);

        let waiting = device.serve(0, &mut ring, &memory, begin).unwrap();
        let answered = [ring.next_avail(), ring.next_used()];
        let resumed = device.serve(0, &mut ring, &memory, begin + Duration::from_secs(1)).unwrap();

        assert!(waiting.resume_after.is_some() && !waiting.interrupt && resumed.interrupt);
        assert_eq!((answered, ring.next_used()), ([0, 0], 1));
    }

    #[test]
    fn requests_of_very_many_buffers_leave_the_event_loop_to_others() {
        let memory = memory();
        let (mut device, _) = device(Instant::now());
        let mut ring = queue(&memory, DATA, 64, 16);
        // A table in place of a buffer, as long as one may be. Its first descriptor is followed by itself.
        let table = Descriptor::new(DATA, 0xffff * 16, IS_TABLE, 0);
        memory.write_obj(RawDescriptor::from(table), GuestAddress(ring.desc_table())).unwrap();
        let followed = Descriptor::new(DATA + 16, 1, DEVICE_WRITES | NEXT, 0);
        memory.write_obj(RawDescriptor::from(followed), GuestAddress(DATA)).unwrap();

        let served = device.serve(0, &mut ring, &memory, Instant::now()).unwrap();

        assert!(served.more && ring.next_used() < 16, "{}", ring.next_used());
    }

    #[test]
    fn buffer_outside_memory_comes_back_empty() {
        let memory = memory();
        let (mut device, _) = device(Instant::now());
        let mut ring = queue(&memory, 0x20_0000, 64, 1);

        device.serve(0, &mut ring, &memory, Instant::now()).unwrap();

        assert_eq!(ring.next_used(), 1);
    }

    #[test]
    fn available_index_that_runs_ahead_stops_the_device() {
        let memory = memory();
        let (mut device, _) = device(Instant::now());
        let mut ring = queue(&memory, DATA, 64, 1000);

        assert!(device.serve(0, &mut ring, &memory, Instant::now()).is_err());
    }
}
