//! A layer that is buffered in memory: the packets that a process left in its rings, so that its slot can be given back.

use crate::latest::Latest;
use crate::layer::guest_processes::MAX_PROCESS_DESCRIPTION;
use crate::layer::ring::fitting;
use shared_ring::consumer::{Consumer, LargestLost, Lost, Poll};
use shared_ring::event::EventDescription;
use shared_ring::layout::{PacketHeader, padded};
use shared_ring::packet::Packet;
use shared_ring::registry::RegistryReader;
use std::collections::HashMap;
use std::path::Path;
use strata_recording::manifest::{Layer, Manifest};
use strata_recording::writer::{LayerWriter, NewLayer, WriteError};

/// Uuid of packets that belong to no trace yet.
const NO_TRACE: [u8; 16] = [0; 16];

/// A layer in memory.
#[derive(Debug)]
pub struct BufferedLayer {
    layer: NewLayer,
    events: Vec<EventDescription>,
    /// Bytes of the manifest that these take.
    described: u64,
    streams: Vec<BufferedStream>,
}

#[derive(Debug)]
struct BufferedStream {
    cpu_id: u32,
    packets: Vec<BufferedPacket>,
    lost: Lost,
    largest_lost: Option<LargestLost>,
    rejected_bytes: u64,
    corrupt: bool,
    overwritten: u64,
}

/// A packet that belongs to no trace yet.
#[derive(Debug)]
struct BufferedPacket {
    /// The bytes in use.
    content: Vec<u8>,
    header: PacketHeader,
    records: u64,
}

impl BufferedLayer {
    /// Drains `rings`, whose producers have stopped. Records younger than `latest` are rejected.
    #[must_use]
    pub fn drain(layer: NewLayer, mut registry: RegistryReader, rings: Vec<Consumer>, latest: Latest<'_>) -> Self {
        let mut events = registry.poll();
        let mut described = 0;
        // Records of the others are rejected and counted.
        events.truncate(fitting(&events, &mut described, MAX_PROCESS_DESCRIPTION));
        let by_id: HashMap<u16, &EventDescription> = events.iter().rev().map(|event| (event.id, event)).collect();
        let streams = rings.into_iter().map(|ring| BufferedStream::drain(ring, &by_id, latest)).collect();
        Self { layer, events, described, streams }
    }

    /// Bytes that packets and event types take. An event type takes about twice as much memory as text: each name is an
    /// allocation.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let packets = self.streams.iter().flat_map(|stream| &stream.packets);
        let described = usize::try_from(2 * self.described).unwrap_or(usize::MAX);
        packets.fold(described, |sum, packet| sum.saturating_add(packet.content.len()))
    }

    /// Writes the layer into the recording `dir`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, dir: &Path, manifest: &Manifest) -> Result<Layer, WriteError> {
        let mut writer = LayerWriter::create(dir, manifest, self.layer.clone())?;
        match writer.add_events(&self.events) {
            // An event type that cannot be described is the guest's mistake.
            Ok(_) | Err(WriteError::Event { .. }) => {}
            Err(error) => return Err(error),
        }
        let mut bytes = Vec::new();
        for stream in &self.streams {
            for BufferedPacket { content, header, records } in &stream.packets {
                bytes.clone_from(content);
                bytes.resize(padded(content.len()), 0);
                let header = PacketHeader { uuid: writer.uuid(), ..*header };
                let Some(packet) = Packet::new(&mut bytes, header, *records) else { continue };
                writer.append(&packet)?;
            }
            writer.set_loss(stream.cpu_id, stream.lost, stream.rejected_bytes, stream.corrupt);
            let largest = stream.largest_lost.and_then(|lost| writer.named(lost));
            writer.set_largest_lost(stream.cpu_id, largest);
            writer.set_overwritten(stream.cpu_id, stream.overwritten);
        }
        writer.flush()?;
        Ok(Layer { ended: Some(true), ..writer.layer() })
    }
}

impl BufferedStream {
    fn drain(mut ring: Consumer, events: &HashMap<u16, &EventDescription>, latest: Latest<'_>) -> Self {
        let mut packets = Vec::new();
        let mut buffer = Vec::new();
        let mut overwritten = None;
        // One lap and no more, whatever the ring says.
        for _ in 0..ring.sub_buffers() {
            let Poll::Ready(delivered) = ring.poll_stopped(&mut buffer) else { break };
            overwritten.get_or_insert(delivered.sequence());
            if let Some(packet) = delivered.accept(NO_TRACE, latest(), |id| events.get(&id).copied()) {
                let (content, header) = (packet.content().to_vec(), *packet.header());
                packets.push(BufferedPacket { content, header, records: packet.record_count() });
            }
        }
        ring.finish();
        Self {
            cpu_id: ring.cpu_id(),
            packets,
            lost: ring.lost(),
            largest_lost: ring.largest_lost(),
            rejected_bytes: ring.rejected_bytes(),
            corrupt: ring.is_corrupt(),
            overwritten: overwritten.unwrap_or(0),
        }
    }
}
