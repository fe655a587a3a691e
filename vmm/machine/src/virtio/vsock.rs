//! The virtio socket device (virtio 1.2, section 5.10): connections between programs of the guest and of the host.
//!
//! Queue 0 receives, queue 1 sends, queue 2 is for events; there are none here. A [muxer] joins the
//! connections to sockets of the host; a [flow] is one connection as its packets make it.

pub mod flow;
pub mod muxer;
pub mod packet;
pub mod socket;
#[cfg(test)]
mod tests;

use super::work::Work;
use super::{HostSource, Served, VirtioDevice};
use flow::BUFFER;
use muxer::{Muxer, Outgoing, VsockHost};
use packet::{Header, RawHeader};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use strata_observer::{Observer, PacketStage, VsockQueue};
use virtio_bindings::virtio_ids::VIRTIO_ID_VSOCK;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::{DescriptorChain, Error, Queue, QueueOwnedT, QueueT};
use virtio_vsock::packet::{PKT_HEADER_SIZE, VsockPacket};
use vm_memory::GuestMemoryMmap;

const QUEUE_SIZE: u16 = 256;
/// Most bytes of data in a packet, which is what Linux sends.
const DATA_MAX: u32 = BUFFER;

/// A socket device.
pub struct Vsock {
    cid: u64,
    muxer: Muxer,
    /// The data of the packet that is being moved.
    data: Box<[u8]>,
    /// Packets so far by queue; the last one's id.
    packets: [u64; 2],
    observer: Arc<dyn Observer>,
}

impl Vsock {
    /// A device that gives the guest the address `cid` and joins it to `host`.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn new(cid: u32, host: Box<dyn VsockHost>, observer: Arc<dyn Observer>) -> io::Result<Self> {
        let muxer = Muxer::new(host, Arc::clone(&observer))?;
        let data = vec![0; DATA_MAX as usize].into_boxed_slice();
        Ok(Self { cid: cid.into(), muxer, data, packets: [0; 2], observer })
    }

    fn report(&self, queue: VsockQueue, connection: u64, (operation, bytes): (u16, u32), stage: PacketStage) {
        let id = self.packets[queue as usize];
        self.observer.vsock_packet(queue, connection, id, operation, bytes, stage);
    }

    /// Takes the packet in the next chain of `queue`; returns the bytes of its data. `None` if the ring gives none
    /// after all.
    fn send(&mut self, queue: &mut Queue, memory: &GuestMemoryMmap) -> Result<Option<usize>, Error> {
        let Some(chain) = queue.iter(memory)?.next() else { return Ok(None) };
        let head = chain.head_index();
        self.packets[VsockQueue::Send as usize] += 1;
        let bytes = self.take(chain, memory);
        queue.add_used(memory, head, 0)?;
        Ok(Some(bytes))
    }

    /// Takes the packet in `chain`; returns the bytes of its data. That may lie in several buffers: from Linux 6.17 on
    /// more than 32 KiB does.
    fn take(&mut self, chain: DescriptorChain<&GuestMemoryMmap>, memory: &GuestMemoryMmap) -> usize {
        let Ok(mut reader) = chain.reader(memory) else { return self.drop_damaged() };
        let Ok(raw) = RawHeader::read(&mut reader) else { return self.drop_damaged() };
        let length = raw.length() as usize;
        let is_whole = self.data.get_mut(..length).is_some_and(|data| reader.read_exact(data).is_ok());
        if !is_whole {
            // A length that lies: a stream must not go on with a part missing.
            self.muxer.break_off(raw.ports());
            return self.drop_damaged();
        }
        let what = (raw.operation(), raw.length());
        self.report(VsockQueue::Send, 0, what, PacketStage::Taken);
        let (connection, is_taken) = match Header::from_guest(&raw, self.cid) {
            Ok(header) => self.muxer.take(&header, &self.data[..length]),
            Err(ports) => {
                if let Some(ports) = ports {
                    self.muxer.break_off(ports);
                }
                (0, false)
            }
        };
        let stage = if is_taken { PacketStage::Done } else { PacketStage::Dropped };
        self.report(VsockQueue::Send, connection, what, stage);
        length
    }

    /// Reports what is no packet; returns the bytes of its data, which are none.
    fn drop_damaged(&self) -> usize {
        self.report(VsockQueue::Send, 0, (0, 0), PacketStage::Taken);
        self.report(VsockQueue::Send, 0, (0, 0), PacketStage::Dropped);
        0
    }

    /// Puts the next packet for the guest into the next chain of `queue`; returns the bytes of its data. `None` if there
    /// is not a packet, or the ring gives no chain after all.
    fn deliver(&mut self, queue: &mut Queue, memory: &GuestMemoryMmap) -> Result<Option<usize>, Error> {
        let Some(mut chain) = queue.iter(memory)?.next() else { return Ok(None) };
        let head = chain.head_index();
        let Ok(mut packet) = VsockPacket::from_rx_virtq_chain(memory, &mut chain, u32::MAX) else {
            // A buffer that has no room for a packet comes back empty.
            queue.add_used(memory, head, 0)?;
            return Ok(Some(0));
        };
        let room = packet.data_slice().map_or(0, |data| data.len()).min(self.data.len());
        let Some(Outgoing { connection, header }) = self.muxer.next(&mut self.data[..room]) else {
            queue.go_to_previous_position();
            return Ok(None);
        };
        self.packets[VsockQueue::Receive as usize] += 1;
        let what = (header.operation as u16, header.length);
        self.report(VsockQueue::Receive, connection, what, PacketStage::Taken);
        header.write_to(&mut packet, self.cid);
        // The muxer filled no more of the buffer than there is room for.
        let data = &self.data[..header.length as usize];
        if let Some(room) = packet.data_slice() {
            room.copy_from(data);
        }
        #[allow(clippy::cast_possible_truncation, reason = "a header has 44 bytes")]
        queue.add_used(memory, head, PKT_HEADER_SIZE as u32 + header.length)?;
        self.report(VsockQueue::Receive, connection, what, PacketStage::Done);
        Ok(Some(data.len()))
    }
}

impl VirtioDevice for Vsock {
    fn device_type(&self) -> u32 {
        VIRTIO_ID_VSOCK
    }

    fn features(&self) -> u64 {
        1 << VIRTIO_RING_F_INDIRECT_DESC | 1 << VIRTIO_RING_F_EVENT_IDX
    }

    fn queue_sizes(&self) -> &[u16] {
        &[QUEUE_SIZE, QUEUE_SIZE, QUEUE_SIZE]
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        let cid = self.cid.to_le_bytes();
        let rest = usize::try_from(offset).ok().and_then(|offset| cid.get(offset..));
        for (to, from) in data.iter_mut().zip(rest.unwrap_or_default()) {
            *to = *from;
        }
    }

    fn source(&self) -> io::Result<Option<HostSource>> {
        let descriptor = self.muxer.descriptor().as_fd().try_clone_to_owned()?;
        Ok(Some(HostSource { descriptor, queue: VsockQueue::Receive as usize }))
    }

    fn stop(&mut self) {
        self.muxer.reset();
    }

    fn serve(
        &mut self,
        index: usize,
        queue: &mut Queue,
        memory: &GuestMemoryMmap,
        _: Instant,
    ) -> Result<Served, Error> {
        const RECEIVE: usize = VsockQueue::Receive as usize;
        const SEND: usize = VsockQueue::Send as usize;
        if index > SEND {
            return Ok(Served::default());
        }
        self.muxer.poll();
        let mut work = Work::begin();
        loop {
            queue.disable_notification(memory)?;
            let mut is_idle = false;
            while !work.is_spent() && queue.avail_idx(memory, Ordering::Acquire)?.0 != queue.next_avail() {
                let moved = match index {
                    RECEIVE if !self.muxer.has_output() => None,
                    RECEIVE => self.deliver(queue, memory)?,
                    _ => self.send(queue, memory)?,
                };
                is_idle = moved.is_none();
                let Some(moved) = moved else { break };
                work.add(moved);
            }
            // As the network device does: they stay off while there are buffers and no packets.
            let more = !is_idle && queue.enable_notification(memory)?;
            if !more || work.is_spent() {
                let interrupt = work.packets() > 0 && queue.needs_notification(memory)?;
                let wake = (index == SEND && self.muxer.has_output()).then_some(RECEIVE);
                let more = more || (index == RECEIVE && self.muxer.has_callers());
                return Ok(Served { interrupt, more, wake, ..Served::default() });
            }
        }
    }
}
