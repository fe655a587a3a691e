//! A traced VM: prepared, started, finished.

pub(super) mod guest_ring;
pub(super) mod guest_symbols;
pub(super) mod manifest;

use super::answers::answers;
use super::failure::RunFailure;
use super::guest::{Ran, run_machine};
use super::limits::{ConsoleLimits, LimitedDevices};
use super::request::RunRequest;
use super::{RunReport, close};
use guest_ring::{GuestRing, add_guest_ring};
use shared_ring::layout::Mode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use strata_clock::{RenewalThread, VcpuClocks};
use strata_jail::Jail;
use strata_jail::policy::Thread;
use strata_machine::Machine;
use strata_recorder::control::directory::{VmDescription, VmDirectory};
use strata_recorder::control::server::ControlServer;
use strata_recorder::drain::cpu_list::CpuList;
use strata_recorder::guest_symbols::SymbolsReader;
use strata_recorder::recorder::Recorder;
use strata_recorder::region::TraceRegion;
use strata_recorder::session::{Notify, RecordedVm, RecordingBuilder};
use strata_recorder::vmm_events::VmmTracer;
use strata_recording::files::trace_folder::{SnapshotFolder, TraceFolder};

/// A traced VM whose parts are all made: nothing of it runs. Dropping it leaves nothing behind.
pub(super) struct PreparedVm<'a> {
    pub request: &'a RunRequest,
    pub description: VmDescription,
    pub machine: Machine,
    pub recording: RecordingBuilder,
    pub recorded: RecordedVm,
    pub guest: TracedGuest,
    pub folders: Folders,
    /// What reads the symbols of the guest's kernel.
    pub symbols: SymbolsReader,
    pub jail: Jail,
    /// Whether the machine was stopped because a layer of the trace ended early.
    pub has_stopped: Arc<AtomicBool>,
}

/// What is recorded through while the guest runs.
pub(super) struct TracedGuest {
    pub region: Arc<TraceRegion>,
    pub vmm: Arc<VmmTracer>,
    /// The vCPUs' clocks, if the guest's counters can be related to the trace clock.
    pub clocks: Option<Arc<VcpuClocks>>,
    /// The ring of a guest without an agent.
    pub ring: Option<Arc<GuestRing>>,
}

/// The folders of a traced VM: each is removed in the end unless something worth keeping is in it.
pub(super) struct Folders {
    pub trace: TraceFolder,
    pub snapshots: SnapshotFolder,
    pub directory: VmDirectory,
}

impl PreparedVm<'_> {
    /// Gives up what needs no longer be had, then begins to record and to answer what the control socket asks for. The
    /// user learns what the recording will lack, and where it goes.
    ///
    /// # Errors
    /// The process cannot be confined, or the recording or the control socket cannot be made.
    pub(super) fn start(self) -> Result<StartedVm, RunFailure> {
        let Self { request, machine, recording, folders, .. } = self;
        let notify = recording.notify;
        for layer in &recording.missing {
            notify(&format!("{} is missing: {} ({})", layer.layer, layer.reason, layer.fix));
        }
        let closed = close(self.jail, &folders.directory, request, Some((&folders.trace, &folders.snapshots)), notify)?;
        let (mode, cpus) = (recording.request().layers.mode, recording.request().scheduling.cpus.clone());
        let recorder = Recorder::start(recording, self.recorded)?;
        self.symbols.start(on_thread(Thread::Symbols, cpus.clone()));
        let console = ConsoleLimits::new(request);
        let limited = LimitedDevices::new(request, &machine, &console);
        let (control, stop) = (machine.control(), machine.stop_handle());
        let answers = answers(self.description, Some(recorder.control()), control, stop, limited, closed);
        let control = ControlServer::start(&folders.directory.socket(), answers)?;
        let trace = folders.trace.path().display();
        match mode {
            Mode::Discard => notify(&format!("tracing into {trace}")),
            Mode::FlightRecorder => notify(&format!(
                "flight recorder on, written into {trace} at the end; strata ctl {} snapshot DIR writes it meanwhile",
                request.name
            )),
        }
        Ok(StartedVm {
            name: request.name.clone(),
            machine,
            console,
            cpus,
            guest: self.guest,
            control,
            recorder,
            folders,
            has_stopped: self.has_stopped,
            notify,
        })
    }
}

/// A VM whose recorder and control socket run; its guest enters with [`finish`](Self::finish).
pub(super) struct StartedVm {
    name: String,
    machine: Machine,
    console: ConsoleLimits,
    /// Where strata's threads run.
    cpus: Option<CpuList>,
    guest: TracedGuest,
    control: ControlServer,
    recorder: Recorder,
    folders: Folders,
    has_stopped: Arc<AtomicBool>,
    notify: Notify,
}

impl StartedVm {
    /// Runs the guest until it ends, then completes the recording.
    ///
    /// # Errors
    /// The machine cannot be started, and nothing is left behind; or the recording is not complete, and its region is
    /// kept.
    pub(super) fn finish(self) -> Result<RunReport, RunFailure> {
        let Self { name, machine, console, cpus, guest, control, recorder, mut folders, has_stopped, notify } = self;
        let TracedGuest { region, vmm, clocks, ring } = guest;
        let (at_end, collected) = ring.as_ref().map(GuestRing::at_end).unzip();
        let ran = {
            let machine_control = machine.control();
            let renew = move || machine_control.renew_clocks();
            let begin = on_thread(Thread::Clock, cpus);
            let _renewals = clocks.as_ref().map(|clocks| RenewalThread::start(clocks.interval_ns(), begin, renew));
            run_machine(machine, &console, vmm, clocks, notify, at_end)
        };
        region.set_host_alive(false);
        // From here on nobody asks any more: the recorder is to come to its end.
        drop(control);
        let ran = match ran {
            Ok(ran) => ran,
            Err(error) => {
                // Nothing ran: the first error is the one to report, and the folder goes.
                let _ = recorder.finish("not started".into());
                return Err(error);
            }
        };
        folders.trace.keep();
        let Ran { outcome, console_dropped } = ran;
        let trace_failed = has_stopped.load(Ordering::Relaxed);
        let reported = match trace_failed {
            true => format!("{outcome}, because a layer of the trace ended early"),
            false => outcome.to_string(),
        };
        let last = collected.and_then(|collected| add_guest_ring(&collected, folders.trace.path().into(), name));
        match recorder.finish_with(reported, last) {
            Ok(manifest) => Ok(RunReport { outcome, manifest: Some(manifest), console_dropped, trace_failed }),
            Err(source) => {
                folders.directory.keep();
                Err(RunFailure::Incomplete { region: folders.directory.region(), source })
            }
        }
    }
}

/// How a thread of the kind `thread` begins, which runs on `cpus`.
fn on_thread(thread: Thread, cpus: Option<CpuList>) -> impl FnOnce() + Send + 'static {
    move || {
        // Elsewhere it does its work as well.
        let _ = cpus.map(|cpus| cpus.place_this_thread());
        strata_jail::enter(thread);
    }
}
