//! A layer that is drained from rings: it reads its event registry, drains its rings, and writes what was accepted.

use shared_ring::consumer::{Consumer, Poll};
use shared_ring::event::EventDescription;
use shared_ring::registry::RegistryReader;
use std::time::Instant;
use trace_merge::layer::LayerKind;
use trace_merge::manifest::{Layer, event_bytes};
use trace_merge::writer::{LayerWriter, WriteError};

/// One layer with its rings.
#[derive(Debug)]
pub struct RingLayer {
    writer: LayerWriter,
    /// Where event types come from, if they are not all known from the start.
    registry: Option<RegistryReader>,
    /// The rings; the index is the stream's number.
    rings: Vec<Consumer>,
    /// The packet being moved; kept to be reused.
    packet: Vec<u8>,
    /// For each ring the sequence number of the first packet that was read: as many packets before it were overwritten, or
    /// read by an earlier recorder.
    first_sequence: Vec<Option<u64>>,
    /// For each ring whether its producer has joined the session, when it is the guest kernel's.
    joined: Vec<bool>,
    descriptions: Descriptions,
    /// Where the next drain that has little time begins.
    next_ring: usize,
}

/// The event types of a layer, as far as they may grow.
#[derive(Clone, Copy, Debug)]
struct Descriptions {
    /// Bytes of the manifest that they take.
    bytes: u64,
    /// Bytes that they may take.
    limit: u64,
    /// Event types that were too many.
    refused: u64,
}

/// Says the youngest time that a record may have which has been read just now, ticks. It is asked after each packet was
/// read: a drain may be held up, by a slow disk or a host that lets this thread wait, and records are made meanwhile.
pub type Latest<'a> = &'a dyn Fn() -> u64;

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

impl RingLayer {
    /// A layer written by `writer`, of `rings` in the order of their numbers.
    #[must_use]
    pub fn new(writer: LayerWriter, registry: Option<RegistryReader>, rings: Vec<Consumer>) -> Self {
        let (first_sequence, joined) = (vec![None; rings.len()], vec![false; rings.len()]);
        let descriptions = Descriptions { bytes: 0, limit: u64::MAX, refused: 0 };
        Self { writer, registry, rings, packet: Vec::new(), first_sequence, joined, descriptions, next_ring: 0 }
    }

    /// From now on event types are taken up to `bytes` of the manifest altogether. Records of others are rejected and
    /// counted.
    pub const fn limit_descriptions(&mut self, bytes: u64) {
        self.descriptions.limit = bytes;
    }

    /// Bytes of the manifest that the event types take, at most.
    #[must_use]
    pub const fn described_bytes(&self) -> u64 {
        self.descriptions.bytes
    }

    /// Event types that did not fit the limit.
    #[must_use]
    pub const fn refused_events(&self) -> u64 {
        self.descriptions.refused
    }

    /// Moves what is ready from the rings to the layer's streams: at most one lap of each ring, so that a guest that
    /// records without pause cannot keep the caller here. Records younger than `latest` are rejected.
    ///
    /// # Errors
    /// When the layer cannot be written.
    pub fn drain(&mut self, producers: Producers, latest: Latest<'_>) -> Result<Drained, WriteError> {
        let mut drained = Drained::default();
        for ring in 0..self.rings.len() {
            for _ in 0..self.rings[ring].sub_buffers() {
                if !self.move_packet(ring, producers, latest, &mut drained)? {
                    break;
                }
            }
        }
        // Event types of an agent that records nothing should be seen too.
        drained.new_events += read_registry(self.registry.as_mut(), &mut self.descriptions, &mut self.writer)?;
        self.look_at_producers();
        Ok(drained)
    }

    /// Takes over which of the guest kernel's producers have joined the session, and what they count.
    fn look_at_producers(&mut self) {
        if self.writer.kind() != LayerKind::GuestKernel {
            return;
        }
        for ((number, ring), joined) in (0..).zip(&self.rings).zip(&mut self.joined) {
            *joined |= ring.has_joined();
            if *joined {
                self.writer.set_nested(number, ring.nested());
            }
        }
    }

    /// Like [`drain`](Self::drain), until `deadline` at most; the next one goes on with the ring where this one stopped. Also
    /// says whether all rings were looked at before.
    ///
    /// # Errors
    /// When the layer cannot be written.
    pub fn drain_until(
        &mut self,
        producers: Producers,
        latest: Latest<'_>,
        deadline: Instant,
    ) -> Result<(Drained, bool), WriteError> {
        let mut drained = Drained::default();
        for _ in 0..self.rings.len() {
            let ring = self.next_ring % self.rings.len();
            for _ in 0..self.rings[ring].sub_buffers() {
                if Instant::now() >= deadline {
                    return Ok((drained, false));
                }
                if !self.move_packet(ring, producers, latest, &mut drained)? {
                    break;
                }
            }
            self.next_ring = (ring + 1) % self.rings.len();
        }
        drained.new_events += read_registry(self.registry.as_mut(), &mut self.descriptions, &mut self.writer)?;
        Ok((drained, true))
    }

    /// Drains all that is left of stopped producers and takes over the final loss counts.
    ///
    /// # Errors
    /// When the layer cannot be written.
    pub fn finish(&mut self, latest: Latest<'_>) -> Result<Drained, WriteError> {
        let drained = self.drain(Producers::Stopped, latest)?;
        for ((number, ring), first) in (0..).zip(&mut self.rings).zip(&self.first_sequence) {
            ring.finish();
            self.writer.set_loss(number, ring.lost(), ring.rejected_bytes(), ring.is_corrupt());
            self.writer.set_overwritten(number, first.unwrap_or(0));
        }
        // Without event types there was no agent, which is told elsewhere.
        let is_agent_there = self.writer.kind() == LayerKind::GuestKernel && self.writer.has_events();
        for (number, _) in (0..).zip(&self.joined).filter(|&(_, joined)| is_agent_there && !joined) {
            self.writer.set_never_joined(number);
        }
        self.writer.flush()?;
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
        latest: Latest<'_>,
        drained: &mut Drained,
    ) -> Result<bool, WriteError> {
        let consumer = &mut self.rings[ring];
        let polled = match producers {
            Producers::Running => consumer.poll(&mut self.packet),
            Producers::Stopped => consumer.poll_stopped(&mut self.packet),
        };
        let Poll::Ready(delivered) = polled else { return Ok(false) };
        self.first_sequence[ring].get_or_insert(delivered.sequence());
        // An event type is published before the first record that uses it: whatever is in the packet is there by now.
        drained.new_events += read_registry(self.registry.as_mut(), &mut self.descriptions, &mut self.writer)?;
        let writer = &self.writer;
        if let Some(packet) = delivered.accept(writer.uuid(), latest(), |id| writer.event(id)) {
            self.writer.append(&packet)?;
            drained.packets += 1;
        }
        Ok(true)
    }

    /// The layer as the manifest describes it.
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

/// Takes new event types from `registry` over into the layer, as far as they fit; how many there were.
fn read_registry(
    registry: Option<&mut RegistryReader>,
    descriptions: &mut Descriptions,
    writer: &mut LayerWriter,
) -> Result<usize, WriteError> {
    let events = registry.map(RegistryReader::poll).unwrap_or_default();
    let fitting = fitting(&events, &mut descriptions.bytes, descriptions.limit);
    descriptions.refused += (events.len() - fitting) as u64;
    match writer.add_events(&events[..fitting]) {
        // An event type that cannot be described is the guest's mistake; its records are rejected and counted.
        Err(WriteError::Event { .. }) => Ok(fitting),
        other => other,
    }
}

/// How many of `events`, from the first, fit `limit` bytes of the manifest beside those that take `bytes` of it already, which
/// grow.
pub(super) fn fitting(events: &[EventDescription], bytes: &mut u64, limit: u64) -> usize {
    let fits = |event: &&EventDescription| {
        let sum = bytes.saturating_add(event_bytes(event));
        *bytes = if sum <= limit { sum } else { *bytes };
        sum <= limit
    };
    events.iter().take_while(fits).count()
}
