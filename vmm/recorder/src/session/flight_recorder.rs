//! Flight-recorder mode: nothing is written until somebody asks for it. Rings overwrite their oldest content
//! themselves. The rings of processes that have ended and the host kernel's records are buffered in memory, up to a
//! limit.

use crate::control::protocol::LiveGuest;
use crate::drain::polling::{Found, MAX_POLLS};
use crate::latest::Latest;
use crate::layer::buffered::BufferedLayer;
use crate::layer::guest_processes::{LOOK_TIME, MAX_DESCRIPTIONS, MAX_PROCESS_DESCRIPTION};
use crate::layer::host::HostWindow;
use crate::layer::kernel_rings::KernelRings;
use crate::layer::ring::{Producers, RingLayer};
use crate::layer::vmm::{vmm_layer, vmm_tail};
use crate::live::guest::GuestWatch;
use crate::region::process_table::ProcessTable;
use crate::session::recording::Recording;
use crate::trigger::Triggers;
use crate::trigger::tail::Tail;
use crate::trigger::watch::Watch;
use crate::vmm_events::VmmTracer;
use shared_ring::event::EventDescription;
use shared_ring::registry::RegistryReader;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use strata_clock::HostTime;
use strata_recording::clock::Clock;
use strata_recording::files::kallsyms;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Layer, Manifest, Missing};
use strata_recording::writer::{LayerWriter, WriteError};

/// Most bytes of packets and event types of processes that have ended.
const MAX_BUFFERED_BYTES: usize = 64 << 20;
/// Most processes that have ended and whose packets are buffered.
const MAX_BUFFERED_PROCESSES: usize = 256;

/// What of a flight recorder could be written.
#[derive(Debug, Default)]
pub struct WrittenLayers {
    /// The layers that are whole.
    pub layers: Vec<Layer>,
    /// Those that are not, in their order, and why.
    pub failures: Vec<(LayerKind, WriteError)>,
}

impl WrittenLayers {
    fn add(&mut self, kind: LayerKind, written: Result<Layer, WriteError>) {
        match written {
            Ok(layer) => self.layers.push(layer),
            Err(error) => self.failures.push((kind, error)),
        }
    }
}

/// The layers of a recording in flight-recorder mode.
pub struct FlightRecorder {
    host: Option<HostWindow>,
    vmm: Option<Arc<VmmTracer>>,
    kernel: Option<FlightKernel>,
    processes: Option<FlightProcesses>,
}

impl FlightRecorder {
    /// A flight recorder of what is given.
    #[must_use]
    pub fn new(
        host: Option<HostWindow>,
        vmm: Option<Arc<VmmTracer>>,
        kernel: Option<KernelRings>,
        processes: Option<ProcessTable>,
    ) -> Self {
        let (kernel, processes) = (kernel.map(FlightKernel::new), processes.map(FlightProcesses::new));
        Self { host, vmm, kernel, processes }
    }

    /// What is new in its rings, for triggers to look at.
    #[must_use]
    pub fn tails(&self) -> Vec<Tail> {
        let kernel = self.kernel.as_ref().map(|kernel| kernel.rings.tail());
        kernel.into_iter().chain(self.vmm.as_deref().map(vmm_tail)).collect()
    }

    /// Event types of the host's kernel.
    #[must_use]
    pub fn host_events(&self) -> Vec<EventDescription> {
        self.host.as_ref().map(HostWindow::events).unwrap_or_default()
    }

    /// What the guest's tasks wait for: since it was first asked for, which may be now, by the clock that `clock` is
    /// about and `time` counts. `None` without the guest's kernel.
    pub fn watch_guest(&mut self, clock: &Clock, time: HostTime) -> Option<LiveGuest> {
        let kernel = self.kernel.as_mut()?;
        let begin = || Box::new((GuestWatch::new(clock, time), kernel.rings.tail()));
        Some(kernel.view.get_or_insert_with(begin).0.request())
    }

    /// Other records of the guest's kernel are made from now on than so far.
    pub fn forget_guest(&mut self) {
        self.kernel.iter_mut().filter_map(|kernel| kernel.view.as_mut()).for_each(|view| view.0.forget());
    }

    /// The host's kernel, if it is traced.
    pub const fn host(&mut self) -> Option<&mut HostWindow> {
        self.host.as_mut()
    }

    /// Reads what the guest has registered, and buffers the host kernel's records and the rings of processes that have
    /// ended. `triggers` are shown what is new.
    pub fn poll(&mut self, recording: &Recording, mut triggers: Option<&mut Triggers>) -> Found {
        if let Some(kernel) = &mut self.kernel {
            kernel.poll();
            kernel.show_latest(&|| recording.latest());
        }
        look_at_processes(&mut self.processes, recording, &mut triggers);
        if let Some(triggers) = &mut triggers {
            triggers.look(&|| recording.latest());
        }
        self.host.as_mut().map(|host| host.poll(triggers)).unwrap_or_default()
    }

    /// Whether a poll can wait: the host kernel's buffers have room, no event type is new, and most slots of processes are
    /// free.
    #[must_use]
    pub fn can_wait(&self) -> bool {
        !self.kernel.as_ref().is_some_and(|kernel| kernel.registry.has_news())
            && self.processes.as_ref().is_none_or(FlightProcesses::can_wait)
            && self.host.as_ref().is_none_or(HostWindow::can_wait)
    }

    /// Writes everything that is there as layers of the recording in `dir`, and leaves it where it is. The `producers`
    /// may be running: guest layers come first and the host's last, so that the periods of the vCPUs cover the guests'
    /// records, and each stream says up to when it is complete. What cannot be written is left out.
    /// `triggers` are shown what comes meanwhile. The slots of processes that end meanwhile are given back, too: a
    /// guest has few, and to write takes long.
    pub fn write(
        &mut self,
        recording: &Recording,
        producers: Producers,
        mut triggers: Option<&mut Triggers>,
        dir: &Path,
        manifest: &Manifest,
    ) -> WrittenLayers {
        let looks = || (producers == Producers::Running).then(|| recording.clocks.time().now());
        let finish = |layer| finish(layer, recording, looks());
        let mut written = WrittenLayers::default();
        if let Some(kernel) = &self.kernel {
            written.add(LayerKind::GuestKernel, kernel.rings.layer(dir, manifest).and_then(finish));
        }
        // Those that run are written first: some of them end meanwhile, and their slots are given back.
        let active = self.processes.as_ref().map(|processes| processes.write_active(recording, &looks, dir, manifest));
        let ended = self.processes.iter().flat_map(|processes| &processes.ended).cloned().collect::<Vec<_>>();
        for buffered in ended {
            written.add(LayerKind::GuestUser, buffered.write(dir, manifest));
            look_at_processes(&mut self.processes, recording, &mut triggers);
        }
        active.into_iter().flatten().for_each(|layer| written.add(LayerKind::GuestUser, layer));
        if let Some(vmm) = &self.vmm {
            written.add(LayerKind::Vmm, vmm_layer(vmm, &recording.vm, None, dir, manifest).and_then(finish));
        }
        if let Some(host) = &mut self.host {
            let _ = (0..MAX_POLLS).find(|_| !host.poll(triggers.as_deref_mut()).has_more());
            let mut meanwhile = || look_at_processes(&mut self.processes, recording, &mut triggers);
            for mut layer in host.write(dir, manifest, &mut meanwhile) {
                if let (Ok(layer), Producers::Running) = (&mut layer, producers) {
                    host.note_complete(layer);
                }
                written.add(LayerKind::HostKernel, layer);
            }
        }
        let mut meanwhile = || {
            look_at_processes(&mut self.processes, recording, &mut triggers);
            if let Some(host) = &mut self.host {
                let _ = host.poll(triggers.as_deref_mut());
            }
        };
        if let Some(symbols) = recording.symbols(&mut meanwhile)
            && let Some(kernel) = written.layers.iter().find(|layer| layer.kind == LayerKind::GuestKernel)
        {
            // Without them addresses are shown as numbers.
            let _ = kallsyms::write_compressed(dir, &kernel.path, symbols);
        }
        written
    }

    /// Stops the host's layer, and returns what is missing that was not told yet. `triggers` are shown what is new.
    pub fn stop(&mut self, recording: &Recording, mut triggers: Option<&mut Triggers>) -> Vec<Missing> {
        self.poll(recording, triggers.as_deref_mut());
        let Some(host) = &mut self.host else { return Vec::new() };
        let mut missing = host.finish(triggers);
        missing.extend(host.report_end());
        missing
    }

    /// What the user is to know of the host's layer, which goes on; once.
    pub fn notices(&mut self) -> Vec<String> {
        self.host.iter_mut().filter_map(HostWindow::report_history).collect()
    }

    /// What is missing of the host's layer since it ended early; once.
    pub fn ends(&mut self) -> Vec<Missing> {
        self.host.iter_mut().filter_map(HostWindow::report_end).collect()
    }

    /// Whether the guest's processes are among the layers.
    #[must_use]
    pub const fn has_processes(&self) -> bool {
        self.processes.is_some()
    }

    /// Event types of the guest's kernel.
    #[must_use]
    pub fn kernel_events(&self) -> &[EventDescription] {
        self.kernel.as_ref().map_or(&[], |kernel| &kernel.events)
    }

    /// What is missing because buffered packets of processes were dropped to make room for those of later ones.
    #[must_use]
    pub fn missing_processes(&self) -> Option<Missing> {
        let dropped = self.processes.as_ref().map_or(0, |processes| processes.dropped);
        (dropped > 0).then(|| Missing {
            layer: LayerKind::GuestUser,
            reason: format!("{dropped} processes that had ended gave way to later ones"),
            fix: "take a snapshot earlier, or trace fewer short-lived processes".into(),
        })
    }
}

/// The layer of what the rings of `layer` hold. Their producers go on where they were looked at, ticks.
fn finish(mut layer: RingLayer, recording: &Recording, looked: Option<u64>) -> Result<Layer, WriteError> {
    if layer.layer().kind == LayerKind::GuestKernel {
        layer.set_vcpus(recording.vcpus());
    }
    layer.finish(&|| recording.latest(), None)?;
    if let Some(looked) = looked {
        layer.note_complete(looked);
    }
    Ok(layer.layer())
}

/// Buffers what processes that have ended left, and gives their slots back. `triggers` are shown what is new.
fn look_at_processes(
    processes: &mut Option<FlightProcesses>,
    recording: &Recording,
    triggers: &mut Option<&mut Triggers>,
) {
    let Some(processes) = processes else { return };
    let watch = triggers.as_deref_mut().filter(|triggers| triggers.looks_at(LayerKind::GuestUser));
    processes.poll(recording.earliest(), &|| recording.latest(), watch.map(Triggers::watch));
}

/// The rings of a guest's kernel, and the event types that it has registered so far.
struct FlightKernel {
    rings: KernelRings,
    registry: RegistryReader,
    events: Vec<EventDescription>,
    /// What their records say of the guest's tasks, while somebody asks for that.
    view: Option<Box<(GuestWatch, Tail)>>,
}

impl FlightKernel {
    fn new(rings: KernelRings) -> Self {
        Self { registry: rings.registry(), rings, events: Vec::new(), view: None }
    }

    /// Reads what was registered since the last time.
    fn poll(&mut self) {
        self.events.extend(self.registry.poll());
    }

    /// Shows the live summary, if there is one, what is new in the rings.
    fn show_latest(&mut self, latest: Latest<'_>) {
        self.view.take_if(|view| view.0.is_forgotten());
        let Some((watch, tail)) = self.view.as_deref_mut() else { return };
        let Some(begun) = watch.begin_look() else { return };
        if tail.poll(latest, &mut |cpu, record| watch.record(cpu, record)) {
            watch.forget();
        }
        watch.end_look(begun);
    }
}

/// The processes of a guest: those that run, in their slots, and those that have ended, in memory.
struct FlightProcesses {
    table: ProcessTable,
    /// Last generation of each slot that has been buffered and given back.
    given_back: Vec<u32>,
    /// By slot, what is new in its rings, with its generation, while a trigger is about applications.
    tails: Vec<Option<(u32, Tail)>>,
    /// The slot that the next look begins with.
    next_slot: usize,
    /// Processes that have ended, oldest first.
    ended: VecDeque<Arc<BufferedLayer>>,
    /// Bytes of their packets.
    ended_bytes: usize,
    dropped: u64,
}

impl FlightProcesses {
    fn new(table: ProcessTable) -> Self {
        let given_back = (0..table.slots()).map(|_| 0).collect();
        Self { table, given_back, tails: Vec::new(), next_slot: 0, ended: VecDeque::new(), ended_bytes: 0, dropped: 0 }
    }

    /// Buffers what processes that have ended left in their slots, and gives the slots back. A process that is new
    /// cannot have recorded before `earliest` of the last poll, nor after `latest`. `watch` is shown what is new: of
    /// a process that has ended, all, before its slot is given back.
    fn poll(&mut self, earliest: u64, latest: Latest<'_>, watch: Option<&mut Watch>) {
        self.table.look(earliest);
        // Before anything is shown: a process may record and end meanwhile.
        let mut ended = self.ended_in_slots();
        match watch {
            Some(watch) => self.show_latest(latest, watch, &mut ended),
            None => self.tails.clear(),
        }
        for (number, generation) in ended {
            let Some(registry) = self.table.registry(number) else { continue };
            let buffered = BufferedLayer::drain(self.table.layer(number), registry, self.table.rings(number), latest);
            self.ended_bytes += buffered.bytes();
            self.ended.push_back(Arc::new(buffered));
            self.given_back[number as usize] = generation;
            self.table.acknowledge(number, generation);
        }
        while self.ended.len() > MAX_BUFFERED_PROCESSES
            || (self.ended.len() > 1 && self.ended_bytes > MAX_BUFFERED_BYTES)
        {
            self.ended_bytes -= self.ended.pop_front().map_or(0, |oldest| oldest.bytes());
            self.dropped += 1;
        }
    }

    /// Whether a poll can wait: most slots are free.
    fn can_wait(&self) -> bool {
        self.active().count() <= self.given_back.len() / 2
    }

    /// The slots whose processes have ended and that are not given back yet, with their generations.
    fn ended_in_slots(&self) -> Vec<(u32, u32)> {
        let ended = |(number, &given_back): (u32, &u32)| {
            let state = self.table.state(number);
            let has_ended = state.is_in_use() && !state.is_active() && state.generation != given_back;
            has_ended.then_some((number, state.generation))
        };
        (0..).zip(&self.given_back).filter_map(ended).collect()
    }

    /// Shows `watch` what is new in the rings of processes that run, and of those that have `ended`. A look ends after
    /// a few milliseconds, and the next one goes on behind the slot where it ended. What of `ended` it has not come to
    /// is taken out, for the next one. A process that has ended is shown as a whole: to buffer it takes as long.
    fn show_latest(&mut self, latest: Latest<'_>, watch: &mut Watch, ended: &mut Vec<(u32, u32)>) {
        let deadline = Instant::now() + LOOK_TIME;
        self.tails.resize_with(self.given_back.len(), || None);
        let mut shown = Vec::new();
        for _ in 0..self.tails.len() {
            let slot = self.next_slot % self.tails.len();
            self.next_slot = slot + 1;
            let Ok(number) = u32::try_from(slot) else { break };
            let state = self.table.state(number);
            if !state.is_in_use() || state.generation == self.given_back[slot] {
                self.tails[slot] = None;
                continue;
            }
            let tail = &mut self.tails[slot];
            tail.take_if(|(generation, _)| *generation != state.generation);
            let (_, tail) = tail.get_or_insert_with(|| (state.generation, self.table.tail(number)));
            watch.next_process();
            let has_ended = ended.contains(&(number, state.generation));
            for ring in 0..tail.rings() {
                tail.read(ring, latest, &mut |cpu, record| watch.record(LayerKind::GuestUser, cpu, record));
                if !has_ended && Instant::now() >= deadline {
                    break;
                }
            }
            shown.push(number);
            if Instant::now() >= deadline {
                break;
            }
        }
        ended.retain(|(number, _)| shown.contains(number));
    }

    /// Writes the rings of processes that run as layers of the recording in `dir`; `looks` says when each is looked at.
    fn write_active(
        &self,
        recording: &Recording,
        looks: &dyn Fn() -> Option<u64>,
        dir: &Path,
        manifest: &Manifest,
    ) -> Vec<Result<Layer, WriteError>> {
        let mut left = MAX_DESCRIPTIONS;
        let write = |number| {
            let writer = LayerWriter::create(dir, manifest, self.table.layer(number))?;
            let mut layer = RingLayer::new(writer, self.table.registry(number), self.table.rings(number));
            layer.limit_descriptions(MAX_PROCESS_DESCRIPTION.min(left));
            let looked = looks();
            layer.finish(&|| recording.latest(), None)?;
            looked.into_iter().for_each(|looked| layer.note_complete(looked));
            left -= layer.described_bytes();
            Ok(layer.layer())
        };
        self.active().map(write).collect()
    }

    /// Slots of processes that run, and of those that have ended since the last poll.
    fn active(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.given_back).filter_map(|(number, &given_back)| {
            let state = self.table.state(number);
            (state.is_in_use() && state.generation != given_back).then_some(number)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::tests::{manifest, recording};
    use crate::trigger::expression::Trigger;
    use shared_ring::event::{Event, Field, FieldType};
    use shared_ring::host::Parts;
    use shared_ring::host::memory::HostMemory;
    use shared_ring::layout::{Geometry, Mode, PAGE_SIZE, PROCESS_ACTIVE, PROCESS_CLOSED, ProcessEntry};
    use shared_ring::producer::Producer;
    use shared_ring::region::{RegionConfig, RegionLayout, Rings};
    use shared_ring::registry::Registry;
    use shared_ring::storage::Smp;
    use shared_ring::view::ProcessState;
    use std::mem::offset_of;
    use tempfile::TempDir;

    fn layout() -> RegionLayout {
        let rings = Rings { geometry: Geometry::new(4096, 4).unwrap(), mode: Mode::FlightRecorder };
        RegionLayout::new(RegionConfig {
            vcpus: 1,
            sessions: [Some(rings), None, None, None],
            process_rings: rings,
            process_slots: 3,
            registry_size: 4096,
            process_registry_size: 4096,
        })
        .unwrap()
    }

    #[test]
    fn slot_of_a_process_that_ends_while_others_are_written_is_given_back() {
        let (dir, layout) = (TempDir::new().unwrap(), layout());
        let memory = HostMemory::private(layout.size);
        let table = ProcessTable::new(Parts::of(memory.clone(), &layout).unwrap(), "vm0".into(), 0);
        let mut recorder = FlightRecorder::new(None, None, None, Some(table));
        let recording = recording();
        let set = |slot: u32, status| {
            let entry = layout.process_table + slot as usize * size_of::<ProcessEntry>();
            memory.store(entry + offset_of!(ProcessEntry, pid), u64::from(100 + slot));
            memory.store(entry + offset_of!(ProcessEntry, state), ProcessState { generation: 1, status }.to_word());
        };
        let is_given_back = |slot: usize| memory.load(layout.process_ack + slot * 8) == 1;
        let pids = |written: &WrittenLayers| {
            let mut pids: Vec<_> = written.layers.iter().map(|layer| layer.process.as_ref().unwrap().pid).collect();
            pids.sort_unstable();
            pids
        };
        set(0, PROCESS_CLOSED);
        recorder.poll(&recording, None);
        set(1, PROCESS_CLOSED);
        set(2, PROCESS_ACTIVE);

        let [first, second] = ["first", "second"].map(|name| {
            let folder = dir.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            recorder.write(&recording, Producers::Running, None, &folder, &manifest())
        });

        assert_eq!([0, 1, 2].map(is_given_back), [true, true, false]);
        assert_eq!((pids(&first), pids(&second)), (vec![100, 101, 102], vec![100, 101, 102]));
    }

    #[test]
    #[allow(unsafe_code, reason = "the test is the guest: it records through raw addresses")]
    fn last_record_of_a_process_that_ends_during_a_look_is_shown_before_its_slot_is_given_back() {
        const EVENT: Event =
            Event { id: 1, class: 0, name: "app:late", fields: &[Field::new("number", FieldType::U64)] };
        let layout = layout();
        let memory = HostMemory::private(layout.size);
        let registry = memory.part(layout.process_slot(0) + PAGE_SIZE, layout.process_registry_size);
        let ring = memory.part(layout.process_ring(0, 0), layout.process_ring_stride);
        let Rings { geometry, mode } = layout.config.process_rings;
        // SAFETY: the storages cover their parts of `memory`, which outlives them; nobody else writes there.
        let (registry, producer) = unsafe {
            let registry = Registry::new(Smp::new(registry.base()), layout.process_registry_size);
            (registry, Producer::new(Smp::new(ring.base()), geometry, mode))
        };
        let record = |number: u64| producer.record(|| 100, EVENT.id, &number.to_le_bytes());
        let set = |status| {
            let entry = layout.process_table + offset_of!(ProcessEntry, state);
            memory.store(entry, ProcessState { generation: 1, status }.to_word());
        };
        let table = ProcessTable::new(Parts::of(memory.clone(), &layout).unwrap(), "vm0".into(), 0);
        let mut processes = FlightProcesses::new(table);
        let mut watch = Watch::new(1_000_000_000);
        watch.arm(1, Trigger::parse("event:user:app:late number>1").unwrap(), 0);
        assert!(registry.append(&EVENT));
        set(PROCESS_ACTIVE);
        record(1);
        // Called while the first record is shown: the process makes its last one, and ends.
        let end = std::sync::Once::new();
        let latest = || {
            end.call_once(|| {
                record(2);
                set(PROCESS_CLOSED);
            });
            200
        };

        let given_back = [(); 2].map(|()| {
            processes.poll(0, &latest, Some(&mut watch));
            memory.load(layout.process_ack)
        });

        assert_eq!((given_back, watch.take_fired().0.len()), ([0, 1], 1));
    }
}
