//! A layer kept in memory: what the rings of a process held when it ended, so that its slot can be given back.

use super::ring_layer::packets_before;
use shared_ring::consumer::{Consumer, Lost, Poll};
use shared_ring::event::EventDescription;
use shared_ring::packet::{read_header, write_header};
use shared_ring::registry::Tail;
use std::collections::HashMap;
use std::path::Path;
use trace_merge::session::{Layer, Session};
use trace_merge::writer::{LayerWriter, NewLayer, WriteError};

/// Uuid of packets that belong to no trace yet.
const NO_TRACE: [u8; 16] = [0; 16];

/// A layer in memory.
#[derive(Debug)]
pub struct KeptLayer {
    layer: NewLayer,
    events: Vec<EventDescription>,
    streams: Vec<KeptStream>,
}

#[derive(Debug)]
struct KeptStream {
    cpu_id: u32,
    /// Packets without the zeros at their ends.
    packets: Vec<Vec<u8>>,
    lost: Lost,
    rejected_bytes: u64,
    corrupt: bool,
    overwritten: u64,
}

impl KeptLayer {
    /// Takes everything out of `rings`, whose producers have stopped. `latest` is the youngest time that a record may
    /// have, ticks.
    #[must_use]
    pub fn take(layer: NewLayer, mut registry: Tail, rings: Vec<Consumer>, latest: u64) -> Self {
        let events = registry.poll();
        let by_id: HashMap<u16, &EventDescription> = events.iter().rev().map(|event| (event.id, event)).collect();
        let streams = rings.into_iter().map(|ring| KeptStream::take(ring, &by_id, latest)).collect();
        Self { layer, streams, events }
    }

    /// Bytes that the packets take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.streams.iter().flat_map(|stream| &stream.packets).map(Vec::len).sum()
    }

    /// Writes the layer into the recording `dir`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, dir: &Path, session: &Session) -> Result<Layer, WriteError> {
        let mut writer = LayerWriter::create(dir, session, self.layer.clone())?;
        match writer.add_events(&self.events) {
            // An event type that cannot be described is the guest's mistake.
            Ok(_) | Err(WriteError::Event { .. }) => {}
            Err(error) => return Err(error),
        }
        let size = usize::try_from(self.layer.packet_size).unwrap_or(usize::MAX);
        let mut packet = Vec::new();
        for stream in &self.streams {
            for kept in &stream.packets {
                packet.clear();
                packet.extend_from_slice(kept);
                packet.resize(size, 0);
                let Some(mut header) = read_header(&packet) else { continue };
                header.uuid = writer.uuid();
                write_header(&mut packet, &header);
                writer.append(stream.cpu_id, &mut packet)?;
            }
            writer.set_loss(stream.cpu_id, stream.lost, stream.rejected_bytes, stream.corrupt);
            writer.set_overwritten(stream.cpu_id, stream.overwritten);
        }
        Ok(writer.layer())
    }
}

impl KeptStream {
    fn take(mut ring: Consumer, events: &HashMap<u16, &EventDescription>, latest: u64) -> Self {
        let mut packets = Vec::new();
        let mut packet = Vec::new();
        let mut overwritten = None;
        // One lap and no more, whatever the ring says.
        for _ in 0..ring.sub_buffers() {
            if ring.poll_stopped(&mut packet) != Poll::Copied {
                break;
            }
            overwritten = overwritten.or_else(|| packets_before(&packet));
            if let Some(accepted) = ring.accept(&mut packet, NO_TRACE, latest, |id| events.get(&id).copied()) {
                packets.push(packet[..accepted.content].to_vec());
            }
        }
        ring.finish();
        Self {
            cpu_id: ring.cpu_id(),
            packets,
            lost: ring.lost(),
            rejected_bytes: ring.rejected_bytes(),
            corrupt: ring.is_corrupt(),
            overwritten: overwritten.unwrap_or(0),
        }
    }
}
