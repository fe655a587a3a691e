//! Guest processes that record, written out as they do: drains each process's rings into a layer of its own, and gives
//! slots back. Processes are not trusted: what one of them can take of the host is bounded, and what is refused is counted.

use crate::drain::polling::Found;
use crate::latest::Latest;
use crate::layer::limit::LayerLimits;
use crate::layer::ring::{Drained, Producers, RingLayer};
use crate::layer::written::{WrittenLayer, ends_early};
use crate::live::vcpu_activity::VcpuActivity;
use crate::region::process_table::ProcessTable;
use crate::trigger::watch::Watch;
use std::path::Path;
use std::time::{Duration, Instant};
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Layer, Manifest, Missing, event_bytes, layer_bytes};
use strata_recording::writer::{LayerWriter, Rotation, WriteError};

/// Most processes that one recording keeps apart: a guest that opens and closes slots without end must not fill the
/// trace folder with folders.
pub const MAX_PROCESSES: usize = 4096;
/// Bytes of the manifest for the event types of one process: some thousand of them.
pub const MAX_PROCESS_DESCRIPTION: u64 = 1 << 20;
/// Bytes of the manifest for all processes of a recording, their streams included. The manifest is written as one text, held
/// in memory, and read by every tool: this much takes a tenth of a second, and an eighth of what may be read.
pub const MAX_DESCRIPTIONS: u64 = 32 << 20;

/// The same, one part in so many of the size that a recording keeps within: beside its text twice in `session.json`, there
/// is one as large in each layer's `metadata`.
const DESCRIBED_SHARE: u64 = 16;
/// How often the layer looks for processes that have left nothing.
const FORGETTING_INTERVAL: Duration = Duration::from_secs(1);

/// How long one look at all processes may take while the guest runs: the guest's kernel, the VMM and the host's kernel are
/// drained between two looks, and their rings fill in milliseconds.
pub(crate) const LOOK_TIME: Duration = Duration::from_millis(5);

/// Follows the process table of one region.
#[derive(Debug)]
pub struct GuestProcesses {
    table: ProcessTable,
    slots: Vec<Slot>,
    /// File descriptors that the streams of running processes may take.
    descriptors: usize,
    /// Layers of processes that have ended.
    ended: Vec<Layer>,
    /// Bytes of the manifest that the descriptions and the streams of all processes take.
    described: u64,
    refused: Refused,
    /// What to tell of the first layer that ended early.
    first_end: Option<Missing>,
    /// The slot that the next look begins with.
    next_slot: u32,
    look_time: Duration,
    /// Whose rings may have something new.
    activity: VcpuActivity,
    /// The size that the recording keeps within, if it does.
    rotation: Option<Rotation>,
    /// Bytes of the manifest for all processes.
    max_descriptions: u64,
    /// What keeps each process within a rate.
    limits: LayerLimits,
    /// Layers of processes that have ended and whose packets have all been dropped.
    forgotten: u64,
    /// When it was last looked for such layers.
    last_forgetting: Instant,
}

/// What the host knows of a slot.
#[derive(Debug, Default)]
struct Slot {
    /// Last generation that was seen.
    generation: u32,
    /// The process that owns the slot, while it is drained.
    layer: Option<WrittenLayer>,
    /// The latest look at all of its rings; 0 when there was none.
    looked: u64,
}

/// A look at all processes.
#[derive(Clone, Copy)]
struct Look<'l> {
    dir: &'l Path,
    manifest: &'l Manifest,
    /// Whether the guest itself has stopped.
    guest: Producers,
    latest: Latest<'l>,
    deadline: Instant,
    /// Its number; 0 where no look has one.
    number: u64,
}

/// How much of the processes is not in the recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// Processes that were more than a recording keeps apart or describes.
    pub too_many: u64,
    /// Processes for whose streams no file descriptors were left.
    pub without_descriptors: u64,
    /// Processes whose layers could not be written, or not to their end.
    pub not_written: u64,
    /// Event types that were more than a recording describes.
    pub event_types: u64,
}

impl GuestProcesses {
    /// The processes of `table`, whose streams may take `descriptors` file descriptors at a time.
    #[must_use]
    pub fn new(table: ProcessTable, descriptors: usize) -> Self {
        let slots = (0..table.slots()).map(|_| Slot::default()).collect();
        Self {
            table,
            slots,
            descriptors,
            ended: Vec::new(),
            described: 0,
            refused: Refused::default(),
            first_end: None,
            next_slot: 0,
            look_time: LOOK_TIME,
            activity: VcpuActivity::default(),
            rotation: None,
            max_descriptions: MAX_DESCRIPTIONS,
            limits: LayerLimits::default(),
            forgotten: 0,
            last_forgetting: Instant::now(),
        }
    }

    /// The layers keep within the size of `rotation`, if there is one, and what describes them within a small part of it.
    #[must_use]
    pub fn within(self, rotation: Option<&Rotation>) -> Self {
        let max_descriptions = rotation.map_or(MAX_DESCRIPTIONS, |rotation| rotation.limit() / DESCRIBED_SHARE);
        Self { rotation: rotation.cloned(), max_descriptions: max_descriptions.min(MAX_DESCRIPTIONS), ..self }
    }

    /// Rings of vCPUs that have not run since are not looked at again.
    #[must_use]
    pub fn following(self, activity: VcpuActivity) -> Self {
        Self { activity, ..self }
    }

    /// Each process keeps within what `limits` say of the layer.
    #[must_use]
    pub fn within_rate(self, limits: LayerLimits) -> Self {
        Self { limits, ..self }
    }

    /// Polls the slots: begins layers of new processes, drains, and gives back the slots of processes that are gone.
    /// `guest` says whether the guest itself has stopped; while it runs, a look ends after a few milliseconds, and the
    /// next one goes on where it ended. Returns how much there was. A layer that cannot be written ends; the others go
    /// on. `watch` is shown the records.
    pub fn drain(
        &mut self,
        dir: &Path,
        manifest: &Manifest,
        guest: Producers,
        latest: Latest<'_>,
        mut watch: Option<&mut Watch>,
    ) -> Found {
        // `latest` is a second from now: processes have one on the other side too.
        self.table.look(latest().saturating_sub(2 * manifest.clock.frequency_hz));
        let now = Instant::now();
        if now >= self.last_forgetting + FORGETTING_INTERVAL {
            self.last_forgetting = now;
            self.forget_dropped(dir);
        }
        let is_any_running = self.slots.iter().any(|slot| slot.layer.is_some());
        let number = if is_any_running { self.activity.look(self.table.vcpus()) } else { 0 };
        let look = Look { dir, manifest, guest, latest, deadline: Instant::now() + self.look_time, number };
        let slots = self.table.slots();
        let mut found = Found::Nothing;
        for _ in 0..slots {
            let number = self.next_slot % slots;
            let (of_slot, is_done) = self.drain_slot(number, look, watch.as_deref_mut());
            if !is_done {
                return Found::Backlog;
            }
            found = found.max(of_slot);
            self.next_slot = (number + 1) % slots;
        }
        found
    }

    /// Drains slot `number`: how much there was, and whether that was all in time.
    fn drain_slot(&mut self, number: u32, look: Look<'_>, mut watch: Option<&mut Watch>) -> (Found, bool) {
        let Look { dir, manifest, guest, latest, deadline, number: this_look } = look;
        let state = self.table.state(number);
        if state.is_in_use() && state.generation != self.slots[number as usize].generation {
            self.begin(dir, manifest, number, state.generation);
        }
        let left = self.max_descriptions.saturating_sub(self.described);
        let slot = &mut self.slots[number as usize];
        let Some(layer) = &mut slot.layer else { return (Found::Nothing, true) };
        let closed = !state.is_active() || state.generation != slot.generation;
        let producers = if closed { Producers::Stopped } else { guest };
        let described = layer.rings().described_bytes();
        layer.limit_descriptions(MAX_PROCESS_DESCRIPTION.min(described + left));
        watch.iter_mut().for_each(|watch| watch.next_process());
        let (mut drained, is_done) = match guest {
            Producers::Running => {
                let (activity, before) = (&self.activity, slot.looked);
                let has_news = |vcpu| closed || activity.may_have_recorded(vcpu, before);
                layer.drain_until(producers, has_news, latest, deadline, watch.as_deref_mut())
            }
            Producers::Stopped => (Drained::default(), true),
        };
        slot.looked = if is_done && !drained.is_held_back { this_look } else { slot.looked };
        if is_done && producers == Producers::Stopped {
            let rest = layer.drain(Producers::Stopped, latest, watch);
            drained.found = drained.found.max(rest.found);
        }
        self.described += layer.rings().described_bytes() - described;
        if let Some(end) = layer.report_end() {
            self.refused.not_written += 1;
            self.first_end.get_or_insert(end);
        }
        if is_done && producers == Producers::Stopped {
            self.end(number);
        }
        (drained.found, is_done)
    }

    /// Forgets the layers of processes that have ended and have nothing left in a recording that keeps within a size:
    /// others take their places.
    fn forget_dropped(&mut self, dir: &Path) {
        let Some(rotation) = &self.rotation else { return };
        let before = self.ended.len();
        let vcpus = self.table.vcpus();
        let described = &mut self.described;
        self.ended.retain(|layer| {
            // A folder that cannot be deleted stays described.
            let is_gone = rotation.forget_if_dropped(dir, layer).unwrap_or(false);
            let bytes = layer.events.iter().map(event_bytes).sum::<u64>() + layer_bytes(vcpus);
            *described = described.saturating_sub(if is_gone { bytes } else { 0 });
            !is_gone
        });
        self.forgotten += (before - self.ended.len()) as u64;
    }

    /// The layers of all processes so far, as the manifest describes them.
    pub fn layers(&self) -> impl Iterator<Item = Layer> + '_ {
        let running = self.slots.iter().filter_map(|slot| slot.layer.as_ref()).map(WrittenLayer::layer);
        self.ended.iter().cloned().chain(running)
    }

    /// The layers of processes that are running.
    pub fn running(&mut self) -> impl Iterator<Item = &mut WrittenLayer> {
        self.slots.iter_mut().filter_map(|slot| slot.layer.as_mut())
    }

    /// Whether a look at the processes can wait: the rings of those that run have room, and most slots are free.
    #[must_use]
    pub fn can_wait(&self) -> bool {
        let is_taken = |(number, slot): (u32, &Slot)| {
            let state = self.table.state(number);
            state.is_in_use() && (slot.layer.is_some() || slot.generation != state.generation)
        };
        let taken = (0..).zip(&self.slots).filter(|slot| is_taken(*slot)).count();
        let mut running = self.slots.iter().filter_map(|slot| slot.layer.as_ref());
        taken <= self.slots.len() / 2 && running.all(WrittenLayer::can_wait)
    }

    /// How much of the processes is not in the recording.
    #[must_use]
    pub const fn refused(&self) -> Refused {
        self.refused
    }

    /// What is missing since the first process's layer ended early; once, however many follow.
    pub fn report_end(&mut self) -> Option<Missing> {
        self.first_end.take().filter(|_| self.refused.not_written > 0)
    }

    /// That a process has met its limit; once for each.
    pub fn report_limit(&mut self) -> Option<String> {
        self.running().find_map(WrittenLayer::report_limit)
    }

    /// What is missing of the processes.
    pub fn missing(&self) -> impl Iterator<Item = Missing> {
        let forgotten = (self.forgotten > 0).then(|| Missing {
            layer: LayerKind::GuestUser,
            reason: format!(
                "{} processes that ended so long ago that all they recorded was dropped to keep within the recording's size",
                self.forgotten
            ),
            fix: "give `strata run` a larger --max-size".into(),
        });
        self.refused.missing().chain(forgotten)
    }

    fn begin(&mut self, dir: &Path, manifest: &Manifest, number: u32, generation: u32) {
        // A guest kernel that reuses a slot without waiting for the host spoils that process's records, nothing else.
        self.end(number);
        self.slots[number as usize] = Slot { generation, ..Slot::default() };
        let begun = self.admit().and_then(|()| {
            let layer = self.table.layer(number);
            let writer = LayerWriter::create_in_progress(self.rotation.as_ref(), dir, manifest, layer);
            writer.map_err(|error| self.refuse_unwritten(&error))
        });
        match begun {
            Ok(writer) => {
                let limiter = self.limits.of(LayerKind::GuestUser, Instant::now());
                let layer = RingLayer::new(writer, self.table.registry(number), self.table.rings(number));
                let layer = layer.within_rate(limiter);
                self.slots[number as usize].layer = Some(WrittenLayer::new(layer));
                self.described += layer_bytes(self.table.vcpus());
            }
            // Counted; its slot is for the next one.
            Err(()) => self.table.acknowledge(number, generation),
        }
    }

    /// Ends the layer of slot `number`, if it has one, and gives the slot back.
    fn end(&mut self, number: u32) {
        let slot = &mut self.slots[number as usize];
        let Some(layer) = slot.layer.take() else { return };
        self.refused.event_types += layer.rings().refused_events();
        self.ended.push(Layer { ended: Some(true), ..layer.layer() });
        self.table.acknowledge(number, slot.generation);
    }

    /// Whether there is room for another process; counts it if not.
    fn admit(&mut self) -> Result<(), ()> {
        let running = self.slots.iter().filter(|slot| slot.layer.is_some()).count();
        let described = self.described + layer_bytes(self.table.vcpus());
        if self.ended.len() + running >= MAX_PROCESSES || described > self.max_descriptions {
            self.refused.too_many += 1;
            return Err(());
        }
        if (running + 1) * self.table.vcpus() as usize > self.descriptors {
            self.refused.without_descriptors += 1;
            return Err(());
        }
        Ok(())
    }

    fn refuse_unwritten(&mut self, error: &WriteError) {
        if self.refused.not_written == 0 {
            self.first_end = Some(ends_early(LayerKind::GuestUser, error));
        }
        self.refused.not_written += 1;
    }
}

impl Refused {
    /// A line for each count that is not 0.
    fn missing(self) -> impl Iterator<Item = Missing> {
        let counts = [
            (
                self.too_many,
                "processes more than a recording keeps apart or describes",
                "trace fewer short-lived processes".to_owned(),
            ),
            (
                self.without_descriptors,
                "processes for whose streams no file descriptors were left",
                "raise the limit of open files (ulimit -Hn), or use fewer --process-slots".to_owned(),
            ),
            (
                self.not_written,
                "processes whose layers could not be written, or not to their end",
                "see the first of them".to_owned(),
            ),
            (
                self.event_types,
                "types of events of processes more than a recording describes, whose records are left out",
                "register fewer types of events in each process, or trace fewer processes".to_owned(),
            ),
        ];
        counts.into_iter().filter(|(count, ..)| *count > 0).map(|(count, what, fix)| Missing {
            layer: LayerKind::GuestUser,
            reason: format!("{count} {what}"),
            fix,
        })
    }
}

#[cfg(test)]
mod tests;
