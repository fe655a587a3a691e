//! Reads what is new in the rings of a flight recorder, and leaves it there.
//!
//! Each look is a snapshot of a ring from where the last one ended: the sub-buffers that are complete since, and what
//! is committed of the one that is being written. Nothing is taken from the ring, and the guest is not interrupted.

use crate::latest::Latest;
use shared_ring::consumer::Consumer;
use shared_ring::event::EventDescription;
use shared_ring::host::memory::HostMemory;
use shared_ring::layout::RING_WRITE_COUNT;
use shared_ring::region::Rings;
use shared_ring::registry::RegistryReader;
use strata_recording::layer::LayerKind;
use strata_recording::reader::StreamRecord;
use strata_recording::schema::{Schema, SchemaTable};

/// The rings of a layer, and how far each has been read.
pub struct Tail {
    layer: LayerKind,
    rings: Rings,
    /// By stream: its ring.
    memories: Vec<HostMemory>,
    /// No record is older, ticks.
    earliest: u64,
    registry: Option<RegistryReader>,
    schemas: SchemaTable,
    positions: Vec<Position>,
    packet: Vec<u8>,
}

/// Is shown records, each with the number of its stream.
pub type Show<'s> = &'s mut dyn FnMut(u32, &StreamRecord<'_>);

/// How far a ring has been read.
#[derive(Clone, Copy, Debug, Default)]
struct Position {
    /// Number of the sub-buffer.
    sequence: u64,
    /// Its records that were read.
    records: u64,
    /// The ring's write count when it was looked at last, and how often in a row it was that.
    written: (u64, u8),
}

/// Looks at a ring that nobody writes any more: a record that was being made may be committed by the second one.
const IDLE_LOOKS: u8 = 2;

impl Tail {
    /// The tail of `memories`, rings in flight-recorder mode, whose event types are `events` and those of `registry`.
    #[must_use]
    pub fn new(
        layer: LayerKind,
        rings: Rings,
        memories: Vec<HostMemory>,
        earliest: u64,
        events: &[EventDescription],
        registry: Option<RegistryReader>,
    ) -> Self {
        let positions = vec![Position::default(); memories.len()];
        let schemas = SchemaTable::new(events);
        Self { layer, rings, memories, earliest, registry, schemas, positions, packet: Vec::new() }
    }

    /// The layer.
    #[must_use]
    pub const fn layer(&self) -> LayerKind {
        self.layer
    }

    /// Number of its rings.
    #[must_use]
    pub const fn rings(&self) -> usize {
        self.memories.len()
    }

    /// Shows `show` what is new, with the number of its stream; says whether anything was overwritten before.
    pub fn poll(&mut self, latest: Latest<'_>, show: Show<'_>) -> bool {
        (0..self.memories.len()).fold(false, |is_missing, ring| self.read(ring, latest, show) | is_missing)
    }

    /// Shows `show` what is new in `ring`; says whether anything was overwritten before.
    pub fn read(&mut self, ring: usize, latest: Latest<'_>, show: Show<'_>) -> bool {
        let (Some(memory), Some(&position)) = (self.memories.get(ring), self.positions.get(ring)) else { return false };
        let (Ok(cpu), written) = (u32::try_from(ring), memory.load(RING_WRITE_COUNT)) else { return false };
        let (before, looks) = position.written;
        let looks = if written == before { looks.saturating_add(1) } else { 0 };
        if looks > IDLE_LOOKS {
            return false;
        }
        let mut position = Position { written: (written, looks), ..position };
        let Rings { geometry, mode } = self.rings;
        let consumer = Consumer::new(memory.clone(), geometry, mode, cpu).since(self.earliest);
        let mut consumer = consumer.starting_at(position.sequence);
        // At most one lap: a guest that records without pause cannot keep the caller here.
        for _ in 0..=geometry.sub_buffers() {
            let Some(delivered) = consumer.poll_stopped(&mut self.packet).ready() else { break };
            // An event type is published before the first record that uses it.
            let new = self.registry.as_mut().map(RegistryReader::poll).unwrap_or_default();
            self.schemas.add(&new);
            let sequence = delivered.sequence();
            let known = |id| self.schemas.get(id).map(Schema::description);
            let Some(packet) = delivered.accept([0; 16], latest(), known) else { continue };
            let seen = if sequence == position.sequence { position.records } else { 0 };
            for (record, number) in packet.records().zip(1..) {
                let Some(schema) = self.schemas.get(record.id).filter(|_| number > seen) else { continue };
                let (time, payload) = (record.time, record.payload);
                show(cpu, &StreamRecord { time, schema, payload, packet: 0, after_gap: false });
            }
            (position.sequence, position.records) = (sequence, packet.record_count().max(seen));
        }
        if let Some(known) = self.positions.get_mut(ring) {
            *known = position;
        }
        consumer.overwritten() > 0
    }
}
