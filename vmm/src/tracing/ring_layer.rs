//! A layer that comes out of rings: follows its event registry, drains its rings, writes what was accepted.

use shared_ring::consumer::{Consumer, Poll};
use shared_ring::packet::read_header;
use shared_ring::registry::Tail;
use trace_merge::session::Layer;
use trace_merge::writer::{LayerWriter, WriteError};

/// One layer with its rings.
#[derive(Debug)]
pub struct RingLayer {
    writer: LayerWriter,
    /// Where event types come from, if they are not all known from the start.
    registry: Option<Tail>,
    /// The rings; the index is the stream's number.
    rings: Vec<Consumer>,
    /// The packet being moved; kept to be reused.
    packet: Vec<u8>,
    /// Per ring: number of its first packet, that is, how many were overwritten, or read by a recorder that is gone.
    first: Vec<Option<u64>>,
}

/// What a drain found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Packets written.
    pub packets: u64,
    /// Event types that are new in the layer.
    pub new_events: usize,
}

/// Whether the rings' producers may still be at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Producers {
    /// Take what is complete.
    Running,
    /// They have stopped for good: take everything that was committed.
    Stopped,
}

/// How many packets of a ring there were before `packet`, which was just copied out of it.
#[must_use]
pub fn packets_before(packet: &[u8]) -> Option<u64> {
    read_header(packet).map(|header| header.sequence)
}

impl RingLayer {
    /// A layer written by `writer`, of `rings` in the order of their numbers.
    #[must_use]
    pub fn new(writer: LayerWriter, registry: Option<Tail>, rings: Vec<Consumer>) -> Self {
        let first = vec![None; rings.len()];
        Self { writer, registry, rings, packet: Vec::new(), first }
    }

    /// Moves what is ready from the rings to the layer's streams: at most one lap of each ring, so that a guest that
    /// records without pause cannot keep the caller here. `latest` is the youngest time that a record may have, ticks.
    ///
    /// # Errors
    /// When the layer cannot be written.
    pub fn drain(&mut self, producers: Producers, latest: u64) -> Result<Drained, WriteError> {
        let mut drained = Drained::default();
        for ring in 0..self.rings.len() {
            for _ in 0..self.rings[ring].sub_buffers() {
                if !self.move_packet(ring, producers, latest, &mut drained)? {
                    break;
                }
            }
        }
        // Event types of an agent that records nothing should be seen too.
        drained.new_events += self.read_registry()?;
        Ok(drained)
    }

    /// Drains all that is left of stopped producers and takes over the final loss counts.
    ///
    /// # Errors
    /// When the layer cannot be written.
    pub fn finish(&mut self, latest: u64) -> Result<Drained, WriteError> {
        let drained = self.drain(Producers::Stopped, latest)?;
        for ((number, ring), first) in (0..).zip(&mut self.rings).zip(&self.first) {
            ring.finish();
            self.writer.set_loss(number, ring.lost(), ring.rejected_bytes(), ring.is_corrupt());
            self.writer.set_overwritten(number, first.unwrap_or(0));
        }
        Ok(drained)
    }

    /// Asks the producers of all rings to deliver what they have; returns the requests' numbers.
    pub fn request_flush(&mut self) -> Vec<u64> {
        self.rings.iter_mut().map(Consumer::request_flush).collect()
    }

    /// Whether all producers say that they have honoured the requests of [`request_flush`](Self::request_flush).
    #[must_use]
    pub fn is_flushed(&self, requests: &[u64]) -> bool {
        self.rings.iter().zip(requests).all(|(ring, &request)| ring.is_flushed(request))
    }

    /// Moves one packet of `ring`; `false` when there is none.
    fn move_packet(
        &mut self,
        ring: usize,
        producers: Producers,
        latest: u64,
        drained: &mut Drained,
    ) -> Result<bool, WriteError> {
        let consumer = &mut self.rings[ring];
        let polled = match producers {
            Producers::Running => consumer.poll(&mut self.packet),
            Producers::Stopped => consumer.poll_stopped(&mut self.packet),
        };
        if polled != Poll::Copied {
            return Ok(false);
        }
        self.first[ring] = self.first[ring].or_else(|| packets_before(&self.packet));
        // An event type is published before the first record that uses it: whatever is in the packet is there by now.
        drained.new_events += self.read_registry()?;
        let (consumer, writer) = (&mut self.rings[ring], &self.writer);
        let accepted = consumer.accept(&mut self.packet, writer.uuid(), latest, |id| writer.event(id));
        if accepted.is_some() {
            self.writer.append(consumer.cpu_id(), &mut self.packet)?;
            drained.packets += 1;
        }
        Ok(true)
    }

    fn read_registry(&mut self) -> Result<usize, WriteError> {
        let events = self.registry.as_mut().map(Tail::poll).unwrap_or_default();
        if events.is_empty() {
            return Ok(0);
        }
        match self.writer.add_events(&events) {
            // An event type that cannot be described is the guest's mistake; its records are rejected and counted.
            Err(WriteError::Event { .. }) => Ok(events.len()),
            other => other,
        }
    }

    /// What `session.json` says about the layer.
    #[must_use]
    pub fn layer(&self) -> Layer {
        self.writer.layer()
    }

    /// The layer's event types and streams.
    #[must_use]
    pub const fn writer(&self) -> &LayerWriter {
        &self.writer
    }
}
