//! A layer that is drained from rings: it reads its event registry, drains its rings, and writes what was accepted. It
//! shows its records to triggers, and to a live summary while somebody asks for that: those in sub-buffers that are not
//! complete, too.

use crate::control::protocol::LiveGuest;
use crate::drain::polling::Found;
use crate::latest::Latest;
use crate::layer::limit::RecordLimiter;
use crate::live::guest::GuestWatch;
use crate::trigger::watch::Watch;
use shared_ring::consumer::{Consumer, Poll};
use shared_ring::event::EventDescription;
use shared_ring::packet::Record;
use shared_ring::registry::RegistryReader;
use std::time::Instant;
use strata_clock::HostTime;
use strata_recording::clock::Clock;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Layer, event_bytes};
use strata_recording::reader::StreamRecord;
use strata_recording::schema::SchemaTable;
use strata_recording::writer::{LayerWriter, WriteError};

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
    /// For each ring the sub-buffers that were overwritten before the last packet that was read.
    overwritten: Vec<u64>,
    /// For each ring whether its producer has joined the session, when it is the guest kernel's.
    joined: Vec<bool>,
    /// Number of the VM's vCPUs, which may be more than there are rings.
    vcpus: u32,
    descriptions: Descriptions,
    /// Keeps it within a rate, if it has a limit.
    limiter: Option<RecordLimiter>,
    /// Whether the next drain takes what is ready whatever the limit says.
    limit_is_lifted: bool,
    /// Where the next drain begins when the last one stopped early: it had little time, or met the limit.
    next_ring: usize,
    shown: Shown,
    /// What its records say of the guest's tasks, while somebody asks for that.
    live: Option<Box<GuestWatch>>,
    /// Records that all rings had lost at its last look.
    lost: u64,
}

/// Who is shown the records of a layer.
struct Viewers<'v> {
    triggers: Option<&'v mut Watch>,
    live: Option<&'v mut GuestWatch>,
}

impl Viewers<'_> {
    const fn are_none(&self) -> bool {
        self.triggers.is_none() && self.live.is_none()
    }

    fn record(&mut self, layer: LayerKind, cpu: u32, record: &StreamRecord<'_>) {
        if let Some(triggers) = &mut self.triggers {
            triggers.record(layer, cpu, record);
        }
        if let Some(live) = &mut self.live {
            live.record(cpu, record);
        }
    }
}

/// What was shown of a layer.
#[derive(Debug, Default)]
struct Shown {
    /// The types of the layer's events, so many of them.
    schemas: SchemaTable,
    events: usize,
    /// For each ring the records of its next packet.
    records: Vec<u64>,
    /// Copy of a packet that is not complete.
    packet: Vec<u8>,
}

impl Shown {
    /// Looks at the types of events that are new.
    fn learn(&mut self, writer: &LayerWriter) {
        let events = writer.events();
        // Only those: a guest may register one before each packet.
        self.schemas.add(events.get(self.events..).unwrap_or_default());
        self.events = events.len();
    }

    /// Shows `viewers` the records of the next packet of `ring` that were not shown yet.
    fn show<'r>(
        &mut self,
        viewers: &mut Viewers<'_>,
        layer: LayerKind,
        ring: usize,
        records: impl Iterator<Item = Record<'r>>,
    ) {
        if self.records.len() <= ring {
            self.records.resize(ring + 1, 0);
        }
        let (Some(seen), Ok(cpu)) = (self.records.get_mut(ring), u32::try_from(ring)) else { return };
        for record in records.skip(usize::try_from(*seen).unwrap_or(usize::MAX)) {
            *seen += 1;
            let Some(schema) = self.schemas.get(record.id) else { continue };
            let (time, payload) = (record.time, record.payload);
            viewers.record(layer, cpu, &StreamRecord { time, schema, payload, packet: 0, after_gap: false });
        }
    }

    /// The next packet of `ring` is another one.
    fn next_packet(&mut self, ring: usize) {
        self.records.get_mut(ring).into_iter().for_each(|seen| *seen = 0);
    }
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

/// What a drain found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// How much there was.
    pub found: Found,
    /// Whether the layer's limit may have left packets in the rings that were ready.
    pub is_held_back: bool,
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
        let overwritten = vec![0; rings.len()];
        let descriptions = Descriptions { bytes: 0, limit: u64::MAX, refused: 0 };
        Self {
            writer,
            registry,
            rings,
            packet: Vec::new(),
            first_sequence,
            overwritten,
            joined,
            vcpus: 0,
            descriptions,
            limiter: None,
            limit_is_lifted: false,
            next_ring: 0,
            shown: Shown::default(),
            live: None,
            lost: 0,
        }
    }

    /// From now on event types are taken up to `bytes` of the manifest altogether. Records of others are rejected and
    /// counted.
    pub const fn limit_descriptions(&mut self, bytes: u64) {
        self.descriptions.limit = bytes;
    }

    /// The VM has `vcpus` vCPUs. Of those that have no ring, [`finish`](Self::finish) says that they never recorded.
    pub const fn set_vcpus(&mut self, vcpus: u32) {
        self.vcpus = vcpus;
    }

    /// Keeps the layer within `limiter`, if there is one, while its producers run.
    #[must_use]
    pub fn within_rate(self, limiter: Option<RecordLimiter>) -> Self {
        Self { limiter, ..self }
    }

    /// The next drain takes what is ready whatever the limit says, out of every ring; it counts all the same.
    pub const fn lift_limit(&mut self) {
        self.limit_is_lifted = true;
    }

    /// That the layer has met its limit; once.
    pub fn report_limit(&mut self) -> Option<String> {
        self.limiter.as_mut()?.report()
    }

    /// Whether the limit lets another packet be taken. One that waits in a ring keeps its place there.
    fn is_admitted(&mut self, producers: Producers) -> bool {
        let Some(limiter) = &mut self.limiter else { return true };
        // What stopped producers have left is as much as their rings hold.
        producers == Producers::Stopped || self.limit_is_lifted || limiter.admits(Instant::now())
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
    /// records without pause cannot keep the caller here. Records younger than `latest` are rejected. `watch` is shown
    /// the others, and those that lie in the rings.
    ///
    /// # Errors
    /// When the layer cannot be written.
    pub fn drain(
        &mut self,
        producers: Producers,
        latest: Latest<'_>,
        mut watch: Option<&mut Watch>,
    ) -> Result<Drained, WriteError> {
        let mut drained = Drained::default();
        self.live.take_if(|live| live.is_forgotten());
        let begun = self.live.as_mut().and_then(|live| live.begin_look());
        let (first, rings) = (self.next_ring, self.rings.len());
        for step in 0..rings {
            let ring = (first + step) % rings;
            let (mut moved, sub_buffers) = (0, self.rings[ring].sub_buffers());
            while moved < sub_buffers && self.is_admitted(producers) {
                // When the limit is met here, another ring is first the next time.
                self.next_ring = (ring + 1) % rings;
                if !self.move_packet(ring, producers, latest, watch.as_deref_mut())? {
                    break;
                }
                moved += 1;
            }
            drained.found = drained.found.max(Found::in_ring(moved, sub_buffers));
            if producers == Producers::Running && (watch.is_some() || begun.is_some()) {
                self.show_incomplete(ring, latest, watch.as_deref_mut())?;
            }
        }
        self.limit_is_lifted = false;
        // Event types of an agent that records nothing should be seen too.
        read_registry(self.registry.as_mut(), &mut self.descriptions, &mut self.writer)?;
        self.look_at_producers();
        if begun.is_some() || watch.is_some() {
            self.look_for_losses(watch);
        }
        if let (Some(begun), Some(live)) = (begun, &mut self.live) {
            live.end_look(begun);
        }
        Ok(drained)
    }

    /// What the records of the guest's kernel say of its tasks: since it was first asked for, which may be now, by the
    /// clock that `clock` is about and `time` counts.
    pub fn watch(&mut self, clock: &Clock, time: HostTime) -> LiveGuest {
        self.live.get_or_insert_with(|| Box::new(GuestWatch::new(clock, time))).request()
    }

    /// Other records of the guest's kernel are made from now on than so far.
    pub fn forget_guest(&mut self) {
        self.live.iter_mut().for_each(|live| live.forget());
    }

    /// Has those who look at the records forget what has begun, if records were lost since the last time.
    fn look_for_losses(&mut self, watch: Option<&mut Watch>) {
        let lost = self.rings.iter().map(|ring| ring.lost().total()).fold(0, u64::saturating_add);
        if std::mem::replace(&mut self.lost, lost) != lost {
            self.live.iter_mut().for_each(|live| live.forget());
            watch.into_iter().for_each(|watch| watch.lost(self.writer.kind()));
        }
    }

    /// Shows `watch` and the live summary what is in a sub-buffer of `ring` that is not complete.
    fn show_incomplete(
        &mut self,
        ring: usize,
        latest: Latest<'_>,
        watch: Option<&mut Watch>,
    ) -> Result<(), WriteError> {
        read_registry(self.registry.as_mut(), &mut self.descriptions, &mut self.writer)?;
        self.shown.learn(&self.writer);
        let (writer, mut packet) = (&self.writer, std::mem::take(&mut self.shown.packet));
        if let Some(found) = self.rings[ring].look(&mut packet, latest(), |id| writer.event(id)) {
            let mut viewers = Viewers { triggers: watch, live: self.live.as_deref_mut() };
            self.shown.show(&mut viewers, writer.kind(), ring, found.records());
        }
        self.shown.packet = packet;
        Ok(())
    }

    /// Takes over which of the guest kernel's producers have joined the session, and what they count.
    fn look_at_producers(&mut self) {
        for (number, ring) in (0..).zip(&self.rings) {
            let largest = ring.largest_lost().and_then(|lost| self.writer.named(lost));
            self.writer.set_largest_lost(number, largest);
        }
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

    /// Like [`drain`](Self::drain), until `deadline` at most; the next one goes on with the ring where this one stopped.
    /// Also says whether all rings were looked at before, of those for whose numbers `has_news` says that there may be
    /// something new.
    ///
    /// # Errors
    /// When the layer cannot be written.
    pub fn drain_until(
        &mut self,
        producers: Producers,
        has_news: impl Fn(usize) -> bool,
        latest: Latest<'_>,
        deadline: Instant,
        mut watch: Option<&mut Watch>,
    ) -> Result<(Drained, bool), WriteError> {
        let mut drained = Drained::default();
        // The time is read where it passes: a ring with nothing in it takes less of it than the question.
        let mut may_be_late = true;
        'rings: for _ in 0..self.rings.len() {
            let ring = self.next_ring % self.rings.len();
            if !self.limit_is_lifted && !has_news(ring) {
                self.next_ring = (ring + 1) % self.rings.len();
                continue;
            }
            let (mut moved, sub_buffers) = (0, self.rings[ring].sub_buffers());
            while moved < sub_buffers {
                if may_be_late && Instant::now() >= deadline {
                    return Ok((drained, false));
                }
                may_be_late = true;
                if !self.is_admitted(producers) {
                    // Another ring is first the next time.
                    self.next_ring = ring + usize::from(moved > 0);
                    drained.is_held_back = true;
                    break 'rings;
                }
                if !self.move_packet(ring, producers, latest, watch.as_deref_mut())? {
                    may_be_late = watch.is_some();
                    break;
                }
                moved += 1;
                drained.found = drained.found.max(Found::in_ring(moved, sub_buffers));
            }
            if producers == Producers::Running && watch.is_some() {
                self.show_incomplete(ring, latest, watch.as_deref_mut())?;
            }
            self.next_ring = (ring + 1) % self.rings.len();
        }
        self.limit_is_lifted = false;
        read_registry(self.registry.as_mut(), &mut self.descriptions, &mut self.writer)?;
        Ok((drained, true))
    }

    /// Drains all that is left of stopped producers and takes over the final loss counts. `watch` is shown what is left.
    ///
    /// # Errors
    /// When the layer cannot be written.
    pub fn finish(&mut self, latest: Latest<'_>, watch: Option<&mut Watch>) -> Result<Drained, WriteError> {
        let drained = self.drain(Producers::Stopped, latest, watch)?;
        for ((number, ring), first) in (0..).zip(&mut self.rings).zip(&self.first_sequence) {
            ring.finish();
            self.writer.set_loss(number, ring.lost(), ring.rejected_bytes(), ring.is_corrupt());
            self.writer.set_overwritten(number, first.unwrap_or(0));
        }
        // Without event types there was no agent, which is reported elsewhere.
        let is_agent_there = self.writer.kind() == LayerKind::GuestKernel && self.writer.has_events();
        if is_agent_there {
            let of_rings = (0..).zip(&self.joined).filter(|&(_, joined)| !joined).map(|(number, _)| number);
            let beyond_rings = u32::try_from(self.rings.len()).unwrap_or(u32::MAX)..self.vcpus;
            of_rings.chain(beyond_rings).for_each(|number| self.writer.set_never_joined(number));
        }
        self.writer.flush()?;
        Ok(drained)
    }

    /// Takes over that all records up to `looked` (ticks) are in the layer's packets: a [`finish`](Self::finish) that began
    /// then took them out of rings whose producers go on. Of a ring whose youngest sub-buffer was overwritten meanwhile,
    /// the packets alone tell.
    pub fn note_complete(&mut self, looked: u64) {
        for ((number, ring), overwritten) in (0..).zip(&self.rings).zip(&self.overwritten) {
            if ring.overwritten() == *overwritten && !ring.is_corrupt() {
                self.writer.set_complete_until(number, looked);
            }
        }
    }

    /// Whether a drain can wait: no ring is a quarter full, and no event type is new.
    #[must_use]
    pub fn can_wait(&self) -> bool {
        !self.registry.as_ref().is_some_and(RegistryReader::has_news)
            && !self.rings.iter().any(Consumer::is_quarter_full)
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
        watch: Option<&mut Watch>,
    ) -> Result<bool, WriteError> {
        let consumer = &mut self.rings[ring];
        let polled = match producers {
            Producers::Running => consumer.poll(&mut self.packet),
            Producers::Stopped => consumer.poll_stopped(&mut self.packet),
        };
        let Poll::Ready(delivered) = polled else { return Ok(false) };
        self.first_sequence[ring].get_or_insert(delivered.sequence());
        // An event type is published before the first record that uses it: whatever is in the packet is there by now.
        read_registry(self.registry.as_mut(), &mut self.descriptions, &mut self.writer)?;
        let writer = &self.writer;
        if let Some(packet) = delivered.accept(writer.uuid(), latest(), |id| writer.event(id)) {
            self.overwritten[ring] = packet.header().overwritten;
            let mut viewers = Viewers { triggers: watch, live: self.live.as_deref_mut() };
            if !viewers.are_none() {
                self.shown.learn(writer);
                self.shown.show(&mut viewers, writer.kind(), ring, packet.records());
            }
            self.writer.append(&packet)?;
            if let Some(limiter) = &mut self.limiter {
                limiter.take(packet.record_count(), Instant::now());
            }
        }
        self.shown.next_packet(ring);
        Ok(true)
    }

    /// The layer as the manifest describes it.
    #[must_use]
    pub fn layer(&self) -> Layer {
        Layer { limit: self.limiter.as_ref().map(RecordLimiter::state), ..self.writer.layer() }
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
) -> Result<(), WriteError> {
    let events = registry.map(RegistryReader::poll).unwrap_or_default();
    let fitting = fitting(&events, &mut descriptions.bytes, descriptions.limit);
    descriptions.refused += (events.len() - fitting) as u64;
    match writer.add_events(&events[..fitting]) {
        // An event type that cannot be described is the guest's mistake; its records are rejected and counted.
        Err(WriteError::Event { .. }) => Ok(()),
        other => other.map(drop),
    }
}

/// How many of `events`, from the first, fit `limit` bytes of the manifest beside those that take `bytes` of it already, which
/// grow.
pub(crate) fn fitting(events: &[EventDescription], bytes: &mut u64, limit: u64) -> usize {
    let fits = |event: &&EventDescription| {
        let sum = bytes.saturating_add(event_bytes(event));
        *bytes = if sum <= limit { sum } else { *bytes };
        sum <= limit
    };
    events.iter().take_while(fits).count()
}
