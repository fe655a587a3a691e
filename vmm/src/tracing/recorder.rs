//! The recorder: a thread that drains every layer into the trace folder while the machine runs, and completes the
//! recording when it has stopped.

use super::guest_processes::GuestProcesses;
use super::region::{EnabledEvents, TraceRegion, enabled_among, guest_text};
use super::ring_layer::{Producers, RingLayer};
use super::selection::{Layer as SelectionLayer, Selection};
use super::vmm_events::{self, VmmTracer};
use crate::host_kernel::reader::{HostItem, ReaderError};
use crate::host_kernel::{HostTracer, Schemas};
use clock_sync::tsc;
use shared_ring::consumer::Consumer;
use shared_ring::event::{EventDescription, class};
use shared_ring::host_memory::HostMemory;
use shared_ring::layout::{AGENT_ABSENT, AgentState};
use shared_ring::registry::Tail;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thiserror::Error;
use trace_merge::session::{Guest, LayerKind, Missing, Session, SessionError};
use trace_merge::writer::{LayerWriter, NewLayer, WriteError};

/// Pause after a look at all layers that found nothing.
const IDLE_PAUSE: Duration = Duration::from_millis(5);
/// Least time between two rewritings of `session.json` for counts alone.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);
/// Packet size of the host-kernel layer, bytes.
const HOST_PACKET_SIZE: u64 = 64 << 10;

/// Why a recording failed.
#[derive(Debug, Error)]
pub enum RecorderError {
    /// A layer cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// `session.json` cannot be written.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The recorder's thread could not be started.
    #[error("cannot start the recorder's thread")]
    Thread(#[source] std::io::Error),
    /// The recorder's thread panicked: a bug.
    #[error("the recorder panicked; the trace ends early")]
    Panicked,
}

/// What there is to record.
pub struct Sources {
    /// The VM's name.
    pub vm: String,
    /// The region shared with the guest.
    pub region: Arc<TraceRegion>,
    /// The VMM's own events.
    pub vmm: Arc<VmmTracer>,
    /// The host's kernel, if it can be traced.
    pub host: Option<HostTracer>,
    /// Host threads of the vCPUs, filled in as they start.
    pub vcpu_threads: Arc<Mutex<Vec<(u32, u32)>>>,
    /// Which events are wanted.
    pub selection: Selection,
    /// Whether an agent was given to the guest; without one its layers are expected to stay empty.
    pub agent: bool,
}

/// A running recorder.
#[derive(Debug)]
pub struct Recorder {
    stop: Sender<String>,
    thread: JoinHandle<Result<Session, RecorderError>>,
}

impl Recorder {
    /// Begins to record into `dir`, an existing empty folder. `session` says what is known of the recording so far.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn start(dir: &Path, session: Session, sources: Sources) -> Result<Self, RecorderError> {
        let mut recording = Recording::create(dir, session, sources)?;
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new()
            .name("strata-recorder".into())
            .spawn(move || recording.run(&stopped))
            .map_err(RecorderError::Thread)?;
        Ok(Self { stop, thread })
    }

    /// Completes the recording: drains what the stopped machine has left and writes `outcome`. Call this when all vCPU
    /// threads have ended.
    ///
    /// # Errors
    /// What kept the recorder from writing, now or earlier.
    pub fn finish(self, outcome: String) -> Result<Session, RecorderError> {
        // The receiver is gone when the recorder has failed; joining it tells why.
        let _ = self.stop.send(outcome);
        self.thread.join().map_err(|_| RecorderError::Panicked)?
    }
}

struct Recording {
    dir: PathBuf,
    session: Session,
    vm: String,
    region: Arc<TraceRegion>,
    selection: Selection,
    vcpu_threads: Arc<Mutex<Vec<(u32, u32)>>>,
    host: Option<HostLayer>,
    vmm: RingLayer,
    guest_kernel: RingLayer,
    processes: GuestProcesses,
    agent: bool,
    saved: Instant,
}

impl Recording {
    fn create(dir: &Path, session: Session, sources: Sources) -> Result<Self, RecorderError> {
        let Sources { vm, region, vmm, host, vcpu_threads, selection, agent } = sources;
        let host = host.map(|tracer| HostLayer::create(dir, &session, tracer)).transpose()?;
        let new_layer = |kind, packet_size| NewLayer { kind, vm: Some(vm.clone()), process: None, packet_size };
        let vmm_layer = new_layer(LayerKind::Vmm, vmm.geometry().sub_buffer_size());
        let mut vmm_writer = LayerWriter::create(dir, &session, vmm_layer)?;
        let vmm_events: Vec<EventDescription> = vmm_events::EVENTS.iter().map(EventDescription::from).collect();
        vmm_writer.add_events(&vmm_events)?;
        let rings = (0..).zip(vmm.rings()).map(|(number, ring)| Consumer::new(ring, vmm.geometry(), number));
        let vmm = RingLayer::new(vmm_writer, None, rings.collect());

        let layout = *region.layout();
        let kernel_layer = new_layer(LayerKind::GuestKernel, layout.config.kernel_rings.sub_buffer_size());
        let kernel_writer = LayerWriter::create(dir, &session, kernel_layer)?;
        let memory: &HostMemory = region.memory();
        let registry = Tail::new(memory.part(layout.registry, layout.registry_size));
        let rings = (0..layout.config.vcpus).map(|vcpu| {
            let ring = memory.part(layout.kernel_ring(vcpu), layout.kernel_ring_stride);
            Consumer::new(ring, layout.config.kernel_rings, vcpu)
        });
        let guest_kernel = RingLayer::new(kernel_writer, Some(registry), rings.collect());
        let processes = GuestProcesses::new(memory.clone(), layout, vm.clone());
        let mut recording = Self {
            dir: dir.into(),
            session,
            vm,
            region,
            selection,
            vcpu_threads,
            host,
            vmm,
            guest_kernel,
            processes,
            agent,
            saved: Instant::now(),
        };
        recording.save()?;
        Ok(recording)
    }

    fn run(&mut self, stopped: &Receiver<String>) -> Result<Session, RecorderError> {
        loop {
            let found = self.drain(Producers::Running)?;
            let pause = if found { Duration::ZERO } else { IDLE_PAUSE };
            match stopped.recv_timeout(pause) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(outcome) => return self.finish(outcome),
                Err(RecvTimeoutError::Disconnected) => return self.finish("the monitor failed".into()),
            }
        }
    }

    /// One look at every layer; says whether anything was there.
    fn drain(&mut self, guest: Producers) -> Result<bool, RecorderError> {
        let latest = self.latest();
        let kernel = match guest {
            Producers::Running => self.guest_kernel.drain(guest, latest)?,
            Producers::Stopped => self.guest_kernel.finish(latest)?,
        };
        if kernel.new_events > 0 {
            self.enable_events();
        }
        let (process_packets, mut news) = self.processes.drain(&self.dir, &self.session, guest, latest)?;
        let vmm = match guest {
            Producers::Running => self.vmm.drain(guest, latest)?,
            Producers::Stopped => self.vmm.finish(latest)?,
        };
        let host = self.host.as_mut().map_or(Ok(false), HostLayer::drain)?;
        news |= kernel.new_events > 0 || self.note_guest() || self.note_threads();
        if news || self.saved.elapsed() >= SAVE_INTERVAL {
            self.save()?;
        }
        Ok(kernel.packets + process_packets + vmm.packets > 0 || host)
    }

    fn finish(&mut self, outcome: String) -> Result<Session, RecorderError> {
        self.drain(Producers::Stopped)?;
        if let Some(host) = &mut self.host {
            host.finish(&mut self.session.missing)?;
        }
        self.note_missing();
        self.session.outcome = Some(outcome);
        self.save()?;
        Ok(self.session.clone())
    }

    /// The youngest time that a record may carry. One second of slack leaves it to `strata check` to judge a clock that
    /// is a little wrong; what lies further ahead would spoil the order of everything after it.
    fn latest(&self) -> u64 {
        tsc::read_ordered().saturating_add(self.session.clock.frequency_hz)
    }

    /// Sets the session's event bits by the agent's own registry, which is the truth about its ids.
    fn enable_events(&self) {
        let layer = self.guest_kernel.layer();
        self.region.set_enabled(&enabled_guest_events(&layer.events, &self.selection));
    }

    /// Takes over what the agent says about the guest; `true` when that is new.
    fn note_guest(&mut self) -> bool {
        let agent = self.region.layout().agent;
        let memory = self.region.memory();
        let Some(vm) = self.session.vms.iter_mut().find(|vm| vm.name == self.vm) else { return false };
        if vm.guest.is_some() || memory.load(agent + offset_of!(AgentState, state)) == AGENT_ABSENT {
            return false;
        }
        let mut release = [0; 64];
        memory.read(agent + offset_of!(AgentState, kernel_release), &mut release);
        let agent_abi = memory.load(agent + offset_of!(AgentState, abi_version));
        vm.guest = Some(Guest { kernel: guest_text(&release), agent_abi });
        true
    }

    /// Takes over the vCPUs' host threads; `true` when there are new ones.
    fn note_threads(&mut self) -> bool {
        let Some(vm) = self.session.vms.iter_mut().find(|vm| vm.name == self.vm) else { return false };
        let mut threads = self.vcpu_threads.lock().unwrap_or_else(PoisonError::into_inner).clone();
        threads.sort_unstable();
        let threads: Vec<i32> = threads.into_iter().map(|(_, tid)| tid.cast_signed()).collect();
        let new = vm.vcpu_threads != threads;
        vm.vcpu_threads = threads;
        new
    }

    fn note_missing(&mut self) {
        let guest_said_hello = self.session.vms.iter().any(|vm| vm.name == self.vm && vm.guest.is_some());
        if self.agent && !guest_said_hello {
            for layer in [LayerKind::GuestKernel, LayerKind::GuestUser] {
                self.session.missing.push(Missing {
                    layer,
                    reason: "the agent was given to the guest, but did not come up".into(),
                    fix: "look for 'strata' in the guest's console output".into(),
                });
            }
        }
        if self.processes.refused() > 0 {
            self.session.missing.push(Missing {
                layer: LayerKind::GuestUser,
                reason: format!("{} processes more than a recording keeps apart", self.processes.refused()),
                fix: "trace fewer short-lived processes".into(),
            });
        }
    }

    fn save(&mut self) -> Result<(), RecorderError> {
        let host = self.host.as_ref().map(|host| host.writer.layer());
        let own = [self.vmm.layer(), self.guest_kernel.layer()];
        self.session.layers = host.into_iter().chain(own).chain(self.processes.layers()).collect();
        self.session.save(&self.dir)?;
        self.saved = Instant::now();
        Ok(())
    }
}

/// The bits for `events` of the guest's kernel that `selection` wants, and for applications if it wants any of theirs.
#[must_use]
pub fn enabled_guest_events<'a>(
    events: impl IntoIterator<Item = &'a EventDescription>,
    selection: &Selection,
) -> EnabledEvents {
    let mut enabled = enabled_among(events, |name| selection.includes(SelectionLayer::Guest, name));
    if selection.includes_applications() {
        enabled.class_mask |= 1 << class::USER;
    }
    enabled
}

/// The host kernel's layer: records, not rings.
struct HostLayer {
    tracer: HostTracer,
    schemas: Arc<Schemas>,
    writer: LayerWriter,
    payload: Vec<u8>,
    /// Why reading stopped early, if it did.
    failed: Option<ReaderError>,
}

impl HostLayer {
    fn create(dir: &Path, session: &Session, tracer: HostTracer) -> Result<Self, RecorderError> {
        let layer = NewLayer { kind: LayerKind::HostKernel, vm: None, process: None, packet_size: HOST_PACKET_SIZE };
        let mut writer = LayerWriter::create(dir, session, layer)?;
        let events: Vec<EventDescription> = tracer.schemas().iter().map(|schema| schema.description.clone()).collect();
        writer.add_events(&events)?;
        Ok(Self { schemas: Arc::clone(tracer.schemas()), tracer, writer, payload: Vec::new(), failed: None })
    }

    /// Takes what the kernel has recorded since; `true` if there may be more.
    fn drain(&mut self) -> Result<bool, RecorderError> {
        if self.failed.is_some() {
            return Ok(false);
        }
        self.take(|tracer, sink| tracer.poll(sink)).map(|more| more.unwrap_or(false))
    }

    fn finish(&mut self, missing: &mut Vec<Missing>) -> Result<(), RecorderError> {
        if self.failed.is_none() {
            self.take(|tracer, sink| tracer.finish(sink))?;
            for event in self.tracer.not_enabled() {
                missing.push(Missing {
                    layer: LayerKind::HostKernel,
                    reason: format!("{} could not be enabled: {}", event.event, event.error),
                    fix: "leave it out of --events".into(),
                });
            }
        }
        self.writer.flush()?;
        if let Some(error) = &self.failed {
            missing.push(Missing {
                layer: LayerKind::HostKernel,
                reason: format!("the layer ends early: {error}"),
                fix: "see the host's kernel log; trace again".into(),
            });
        }
        Ok(())
    }

    /// Runs `read` with a sink that writes the layer. A failed read ends the layer, a failed write the recording.
    fn take<T>(
        &mut self,
        read: impl FnOnce(&mut HostTracer, &mut dyn FnMut(HostItem<'_>)) -> Result<T, ReaderError>,
    ) -> Result<Option<T>, RecorderError> {
        let Self { tracer, schemas, writer, payload, failed } = self;
        let mut written = Ok(());
        let mut sink = |item: HostItem<'_>| {
            if written.is_err() {
                return;
            }
            match item {
                HostItem::Lost { cpu, count } => writer.add_lost(cpu, count.unwrap_or(1)),
                HostItem::Record(record) => {
                    let schema = schemas.get(record.event_id);
                    payload.clear();
                    match schema.map(|schema| schema.encode(record.payload, payload)) {
                        Some(Ok(())) => written = writer.record(record.cpu, record.time, record.event_id, payload),
                        _ => writer.add_rejected(record.cpu, record.payload.len() as u64),
                    }
                }
            }
        };
        let result = read(tracer, &mut sink);
        written?;
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) => {
                *failed = Some(error);
                Ok(None)
            }
        }
    }
}
