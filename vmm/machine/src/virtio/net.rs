//! The virtio network device (virtio 1.x, section 5.1) on a [link](super::link) of the host.
//!
//! Queue 0 receives, queue 1 sends; there is no control queue. What the host's side gives is whole packets with their
//! checksums, so that the guest needs no large buffers; the guest may leave checksums and the cutting of TCP segments
//! to a link that does them.

#[cfg(test)]
mod tests;

use super::link::{FRAME_MAX, HEADER, Link};
use super::work::Work;
use super::{HostSource, Notify, Served, VirtioDevice};
use crate::virtio::mac_address::MacAddress;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use strata_observer::{ControlEvent, NetQueue, Observer, PacketStage};
use strata_rate_limit::{RateLimit, Resource, Throttle, ThrottleCounts};
use virtio_bindings::virtio_ids::VIRTIO_ID_NET;
use virtio_bindings::virtio_net::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_MAC, VIRTIO_NET_HDR_F_NEEDS_CSUM,
    VIRTIO_NET_HDR_GSO_NONE, VIRTIO_NET_HDR_GSO_TCPV4, VIRTIO_NET_HDR_GSO_TCPV6,
};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::{DescriptorChain, Error, Queue, QueueOwnedT, QueueT};
use vm_memory::GuestMemoryMmap;

const QUEUE_SIZE: u16 = 256;
/// Longest packet, bytes.
const PACKET_MAX: usize = HEADER + FRAME_MAX;
/// Shortest frame, bytes: an Ethernet header.
const FRAME_MIN: usize = 14;
/// Shortest wait for a limit: fewer timers for a limit of many packets.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// Limits of what a guest does with a network device, in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetLimits {
    /// Packets.
    pub packets: Option<RateLimit>,
    /// Bytes of frames.
    pub bytes: Option<RateLimit>,
}

/// What one queue has moved.
#[derive(Default)]
struct Direction {
    throttle: Option<Throttle>,
    /// Packets so far; the last one's id.
    packets: u64,
}

/// A network device.
pub struct Net {
    link: Box<dyn Link>,
    mac: MacAddress,
    index: u32,
    sends: Direction,
    receives: Direction,
    /// The packet that is being sent.
    sent: Box<[u8]>,
    /// The packet that came last from the link.
    received: Box<[u8]>,
    /// Its bytes, until the guest has it.
    waiting: Option<usize>,
    /// Whether the end of the link was told.
    is_end_told: bool,
    notify: Notify,
    observer: Arc<dyn Observer>,
}

impl Net {
    /// A device on `link` with the address `mac`; `index` names it to the observer.
    #[must_use]
    pub fn new(link: Box<dyn Link>, mac: MacAddress, index: u32, observer: Arc<dyn Observer>) -> Self {
        let packet = || vec![0; PACKET_MAX].into_boxed_slice();
        let (sends, receives) = (Direction::default(), Direction::default());
        let (sent, received, waiting, is_end_told) = (packet(), packet(), None, false);
        let notify: Notify = Arc::new(|_: &str| ());
        Self { link, mac, index, sends, receives, sent, received, waiting, is_end_told, notify, observer }
    }

    /// The same device, which tells `notify` when its link has ended.
    #[must_use]
    pub fn telling(self, notify: Notify) -> Self {
        Self { notify, ..self }
    }

    /// The same device, in each direction within `limits` from `now` on; `counts` tells how often a packet had to wait.
    #[must_use]
    pub fn limited(mut self, limits: NetLimits, counts: &Arc<ThrottleCounts>, now: Instant) -> Self {
        let of = |resource, limit: Option<RateLimit>| limit.map(|limit| (resource, limit));
        let throttle = || {
            let all = of(Resource::Packets, limits.packets).into_iter().chain(of(Resource::Bytes, limits.bytes));
            (limits != NetLimits::default()).then(|| Throttle::new(all, SHORTEST_WAIT, Arc::clone(counts), now))
        };
        (self.sends.throttle, self.receives.throttle) = (throttle(), throttle());
        self
    }

    fn direction(&mut self, queue: NetQueue) -> &mut Direction {
        match queue {
            NetQueue::Send => &mut self.sends,
            NetQueue::Receive => &mut self.receives,
        }
    }

    /// How long the next packet has to wait for the device's limits; `None` if it has not.
    fn delay_of_next(&mut self, queue: NetQueue, now: Instant) -> Option<Duration> {
        let wait = self.direction(queue).throttle.as_mut()?.admit(now).err()?;
        if wait.begins {
            self.observer.net_throttled(self.index, queue, wait.resource, wait.time);
        }
        Some(wait.time)
    }

    /// Counts a packet whose frame has `bytes`, and tells that it begins.
    fn begin(&mut self, queue: NetQueue, bytes: usize) {
        let direction = self.direction(queue);
        direction.packets += 1;
        self.report(queue, bytes, PacketStage::Taken);
    }

    fn report(&mut self, queue: NetQueue, bytes: usize, stage: PacketStage) {
        let id = self.direction(queue).packets;
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.observer.net_packet(self.index, queue, id, bytes, stage);
    }

    /// Tells once that the link has ended.
    fn report_end(&mut self) {
        let Some(what) = self.link.end().filter(|_| !self.is_end_told) else { return };
        self.is_end_told = true;
        self.observer.control(ControlEvent::NetworkEnded);
        (self.notify)(&format!("net {}: {what}: the guest has no network there until it is run again", self.index));
    }

    /// Whether there is a packet for `queue`: of those that the guest sends, the queue has them.
    fn has_packet(&mut self, queue: NetQueue) -> bool {
        if queue == NetQueue::Send || self.waiting.is_some() {
            return true;
        }
        // A broken link carries no packet.
        let Ok(length) = self.link.receive(&mut self.received) else { return false };
        let Some(frame) = length.checked_sub(HEADER) else { return false };
        self.waiting = Some(length.min(PACKET_MAX));
        self.begin(queue, frame);
        true
    }

    /// Sends the packet in `chain`; returns the bytes of its frame.
    fn send(&mut self, chain: DescriptorChain<&GuestMemoryMmap>, memory: &GuestMemoryMmap) -> usize {
        // A chain outside guest memory is nothing.
        let Ok(mut reader) = chain.reader(memory) else { return 0 };
        let length = reader.available_bytes();
        let frame = length.saturating_sub(HEADER);
        self.begin(NetQueue::Send, frame);
        let is_sent = (HEADER + FRAME_MIN..=PACKET_MAX).contains(&length)
            && reader.read_exact(&mut self.sent[..length]).is_ok()
            && check_header(&mut self.sent[..length], self.link.offloads())
            && self.link.send(&self.sent[..length]).is_ok();
        self.report(NetQueue::Send, frame, if is_sent { PacketStage::Done } else { PacketStage::Dropped });
        frame.min(PACKET_MAX)
    }

    /// Puts the packet of `length` bytes that waits into `chain`; returns how many bytes were written.
    fn deliver(
        &mut self,
        length: usize,
        chain: DescriptorChain<&GuestMemoryMmap>,
        memory: &GuestMemoryMmap,
    ) -> io::Result<u32> {
        let mut writer = chain.writer(memory).map_err(io::Error::other)?;
        let packet = &mut self.received[..length];
        // Nothing was offered for this direction, yet a tap tells of checksums that a network card has verified.
        packet[..HEADER - 2].fill(0);
        // All of it is in one buffer.
        packet[HEADER - 2..HEADER].copy_from_slice(&1u16.to_le_bytes());
        if writer.available_bytes() < length {
            return Err(io::ErrorKind::WriteZero.into());
        }
        writer.write_all(packet)?;
        u32::try_from(length).map_err(io::Error::other)
    }

    /// Moves one packet by the next chain of `queue`. `None` if the ring gives none after all.
    fn move_one(&mut self, of: NetQueue, queue: &mut Queue, memory: &GuestMemoryMmap) -> Result<Option<usize>, Error> {
        let Some(chain) = queue.iter(memory)?.next() else { return Ok(None) };
        let head = chain.head_index();
        let length = match of {
            NetQueue::Send => None,
            NetQueue::Receive => self.waiting.take(),
        };
        let Some(length) = length else {
            let frame = self.send(chain, memory);
            queue.add_used(memory, head, 0)?;
            return Ok(Some(frame));
        };
        let delivered = self.deliver(length, chain, memory);
        // A buffer that is too small comes back empty: the driver counts an error.
        let used = queue.add_used(memory, head, *delivered.as_ref().unwrap_or(&0));
        let stage = if delivered.is_ok() && used.is_ok() { PacketStage::Done } else { PacketStage::Dropped };
        self.report(of, length - HEADER, stage);
        used?;
        Ok(Some(length - HEADER))
    }
}

/// Whether the host's kernel may be given the packet that a guest wrote: a header that asks for no more than was
/// offered, and only about bytes that are there. A link that reads no headers gets none.
fn check_header(packet: &mut [u8], offloads: bool) -> bool {
    let Some((header, frame)) = packet.split_first_chunk_mut::<HEADER>() else { return false };
    if !offloads {
        header.fill(0);
        return true;
    }
    let [flags, kind, l0, l1, s0, s1, b0, b1, o0, o1, ..] = *header;
    let word = |low, high| usize::from(u16::from_le_bytes([low, high]));
    let has_checksum = u32::from(flags) == VIRTIO_NET_HDR_F_NEEDS_CSUM;
    let checksum_end = word(b0, b1) + word(o0, o1) + 2;
    let segments = match u32::from(kind) {
        VIRTIO_NET_HDR_GSO_NONE => false,
        VIRTIO_NET_HDR_GSO_TCPV4 | VIRTIO_NET_HDR_GSO_TCPV6 => true,
        _ => return false,
    };
    header[HEADER - 2..].fill(0);
    (flags == 0 || has_checksum)
        && (!has_checksum || checksum_end <= frame.len())
        && (!segments || (has_checksum && word(s0, s1) > 0 && word(l0, l1) <= frame.len()))
}

impl VirtioDevice for Net {
    fn device_type(&self) -> u32 {
        VIRTIO_ID_NET
    }

    fn features(&self) -> u64 {
        let offloads = 1 << VIRTIO_NET_F_CSUM | 1 << VIRTIO_NET_F_HOST_TSO4 | 1 << VIRTIO_NET_F_HOST_TSO6;
        (if self.link.offloads() { offloads } else { 0 })
            | 1 << VIRTIO_NET_F_MAC
            | 1 << VIRTIO_RING_F_INDIRECT_DESC
            | 1 << VIRTIO_RING_F_EVENT_IDX
    }

    fn queue_sizes(&self) -> &[u16] {
        &[QUEUE_SIZE, QUEUE_SIZE]
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        self.mac.read_config(offset, data);
    }

    fn source(&self) -> io::Result<Option<HostSource>> {
        let descriptor = self.link.descriptor().try_clone_to_owned()?;
        Ok(Some(HostSource { descriptor, queue: NetQueue::Receive as usize }))
    }

    fn serve(
        &mut self,
        index: usize,
        queue: &mut Queue,
        memory: &GuestMemoryMmap,
        now: Instant,
    ) -> Result<Served, Error> {
        let of = if index == NetQueue::Receive as usize { NetQueue::Receive } else { NetQueue::Send };
        self.observer.net_notified(self.index, of);
        self.link.flush();
        let mut work = Work::begin();
        let mut resume_after = None;
        loop {
            queue.disable_notification(memory)?;
            let mut is_idle = false;
            while !work.is_spent() && queue.avail_idx(memory, Ordering::Acquire)?.0 != queue.next_avail() {
                is_idle = !self.has_packet(of);
                resume_after = if is_idle { None } else { self.delay_of_next(of, now) };
                if is_idle || resume_after.is_some() {
                    break;
                }
                let moved = self.move_one(of, queue, memory)?.unwrap_or(0);
                work.add(moved);
                if let Some(throttle) = &mut self.direction(of).throttle {
                    throttle.charge(1, moved as u64, now);
                }
            }
            // True if the guest added a buffer while notifications were off. They stay off while there are buffers and
            // no packets, or packets and no leave: what is added is looked for then.
            let more = !is_idle && resume_after.is_none() && queue.enable_notification(memory)?;
            if !more || work.is_spent() {
                self.report_end();
                let interrupt = work.packets() > 0 && queue.needs_notification(memory)?;
                if interrupt {
                    self.observer.net_interrupt(self.index, of);
                }
                return Ok(Served { interrupt, more, resume_after, ..Served::default() });
            }
        }
    }
}
