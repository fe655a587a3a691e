//! `strata attach`: records what the host's kernel does for a VM that another process runs, from outside and with no
//! change to it; and its guest, where that has a trace region as a device ([`region`]) or is given one ([`hot_plug`]).
//!
//! The recorder is that of `strata run`. The VM is told apart by the process's
//! descriptors and KVM's debugfs ([`vm`]), and followed from there ([`follower`]).

mod answers;
mod failure;
mod follower;
mod hot_plug;
pub mod libvirt;
mod process;
mod qmp;
pub mod region;
mod threads;
mod vm;

use crate::run::descriptors;
use clock_sync::calibration::read_together;
pub use failure::AttachError;
use follower::{Follower, Sinks};
use hot_plug::HotPlugged;
use region::{GuestRegion, JOIN_LIMIT};
use rustix::process::geteuid;
use shared_ring::event::EventDescription;
use shared_ring::layout::Mode;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use strata_clock::{ClockParameters, EpochSink, HostClock, HostTime, KVM_DEBUGFS, VcpuClocks, VcpuTsc};
use strata_host_kernel::namespace::check_thread_ids;
use strata_host_kernel::{HostTracer, Tracefs};
use strata_machine::probe_kvm;
use strata_recorder::control::directory::{self, VmDescription, VmDirectory};
use strata_recorder::control::server::ControlServer;
use strata_recorder::host_description::describe_host;
use strata_recorder::layer::host_tracer::Traced;
use strata_recorder::recorder::Recorder;
use strata_recorder::session::recording::VcpuThreads;
use strata_recorder::session::{RecordedVm, RecordingBuilder, RecordingRequest, RequestError, Say};
use strata_recording::clock::{Clock, VcpuRelation};
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Attached, Manifest, Missing, Started, Vm};
use uuid::Uuid;
use vm::{ForeignVm, Look};

/// Most times that a process's threads are listed until no new one has come.
const MAX_LISTINGS: u32 = 100;

/// Which VM to record, and how.
#[derive(Clone, Debug)]
pub struct AttachRequest {
    /// The process that runs the VM.
    pub pid: u32,
    /// Descriptor of the VM, where the process has several.
    pub vm: Option<u32>,
    /// Name of the VM in the recording; without it, that of its process and the process's number.
    pub name: Option<String>,
    /// File of the trace region that the VM has as a device; without it, nothing of the guest is recorded.
    pub region: Option<PathBuf>,
    /// QMP socket of the VM's QEMU, which is given a region through it for as long as the recording lasts.
    pub qmp: Option<PathBuf>,
    /// What is recorded.
    pub recording: RecordingRequest,
    /// Time after which the recording ends by itself.
    pub duration: Option<Duration>,
}

impl AttachRequest {
    /// Whether the guest is recorded, too.
    const fn has_guest(&self) -> bool {
        self.region.is_some() || self.qmp.is_some()
    }
}

/// Why a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The VM, or its process, ended.
    VmEnded,
    /// `strata ctl` asked for it.
    Detached,
    /// A signal asked for it.
    Signal,
    /// Its time was over.
    TimeOver,
    /// The layer could not be written or read any more.
    TraceFailed,
}

impl fmt::Display for Ending {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::VmEnded => "the VM ended",
            Self::Detached => "detached by strata ctl; the VM goes on",
            Self::Signal => "detached by a signal; the VM goes on",
            Self::TimeOver => "detached when its time was over; the VM goes on",
            Self::TraceFailed => "detached because the trace failed; the VM goes on",
        })
    }
}

/// How a recording went.
#[derive(Debug)]
pub struct AttachReport {
    /// Why it ended.
    pub ending: Ending,
    /// The recording.
    pub manifest: Manifest,
    /// Whether QEMU keeps the region that it was given, which was said.
    pub stays_plugged: bool,
}

/// Records what the host's kernel does for the VM that `request` names until that ends, a signal or `strata ctl` asks
/// to stop, or the time is over. `say` is told what the user should know meanwhile, a line each, on any thread.
///
/// # Errors
/// Nothing was recorded, and nothing is left behind; or the recording is not complete.
pub fn attach(request: &AttachRequest, say: Say) -> Result<AttachReport, AttachError> {
    let (mut recording, vm) = check(request)?;
    let mode = request.recording.layers.mode;
    descriptors::raise_limit();
    let name = request.name.clone().unwrap_or_else(|| default_name(&vm.process.comm, request.pid));
    let first = vm.look()?.ok_or(AttachError::Ended { pid: request.pid })?;
    let open = |path: &Path| region::open(path, request.pid, mode, &first);
    let file = request.region.as_deref().map(open).transpose()?;
    let description = describe(request, &vm, &name, &first);
    let (ending, endings) = channel();
    stop_on_signals(ending.clone())?;
    let directory = claim(&directory::runtime_folder()?, &description, request.pid)?;
    let probed = probe_kvm();
    let clock = HostClock::observe(probed.tsc_khz);
    let traced = Traced { process: request.pid, threads: vm.thread_ids(), takes_more: true };
    recording.trace_host(clock.time, traced)?;
    recording.host().into_iter().for_each(|host| follow_all_threads(host, &vm));
    recording.check_triggers(unrecorded(request.has_guest()))?;
    // To enable many events takes its time.
    if vm.has_ended_within(Duration::ZERO) {
        return Err(AttachError::Ended { pid: request.pid });
    }

    let offset_honoured = probed.tsc_offset_honoured != Some(false);
    if request.has_guest() {
        region::check_clock(clock.time, offset_honoured, &first)?;
    }
    // From here on the VM is changed. Whatever fails, dropping this changes it back.
    let plug = |socket: &Path| HotPlugged::plug(socket, request.pid, first.vcpu_count(), mode, say);
    let plugged = request.qmp.as_deref().map(plug).transpose()?;
    let file = match &plugged {
        Some(plugged) => Some(open(&plugged.file())?),
        None => file,
    };
    let statement = clock_statement(&clock, &name, &first, offset_honoured);
    let vcpus = file.as_ref().map_or(first.vcpu_count(), |file| file.config.vcpus);
    let region_path = file.as_ref().map(|file| file.path.clone());
    let take = |file| GuestRegion::take(file, statement.uuid, clock.trace_frequency(), say);
    let guest = file.map(take).transpose()?;
    recording.note_missing(missing_layers(guest.is_some()));
    let parameters = ClockParameters { offset_honoured, ..clock.parameters() };
    let sink: EpochSink = match &guest {
        Some(guest) => guest.epoch_sink(),
        None => Box::new(|_, _, _| ()),
    };
    let clocks = Arc::new(VcpuClocks::new(&name, vcpus, parameters, sink));
    let sinks = Sinks { threads: VcpuThreads::default(), clocks: Arc::clone(&clocks) };
    let recorded = RecordedVm {
        vm: Vm {
            name: name.clone(),
            vcpus: first.vcpu_count(),
            attached: Some(Attached { pid: request.pid, comm: vm.process.comm.clone() }),
            region: region_path,
            ..Vm::default()
        },
        host: describe_host(probed.kind.name()),
        clock: statement,
        clocks,
        vcpu_threads: Arc::clone(&sinks.threads),
    };
    sinks.take(first);
    let side = guest.as_ref().map(|guest| guest.begin(recording.selection())).transpose()?;

    // The second is removed in the end if nothing is in it.
    let (mut folder, _snapshots) = request.recording.files.create()?;
    let failed = ending.clone();
    let recording = recording
        .guest(side)
        .process_descriptors(if guest.is_some() { descriptors::for_processes(vcpus, false) } else { 0 })
        .say(say)
        .on_failure(Some(Box::new(move || {
            // There is no VM of this process's to go on with.
            let _ = failed.send(Ending::TraceFailed);
            true
        })));
    let recorder = Recorder::start(recording, recorded)?;
    let control = answers::answers(description, recorder.control(), ending.clone());
    let control = ControlServer::start(&directory.socket(), control)?;
    let follower = Follower::start(vm, sinks, ending)?;
    tell_begin(request, &name, say);

    let ending = wait(&endings, request.duration, guest.as_ref(), say);
    drop((follower, control));
    if let Some(guest) = guest.as_ref().filter(|_| ending != Ending::VmEnded) {
        guest.stop();
    }
    folder.keep();
    let manifest = recorder.finish(ending.to_string());
    // The guest's rings have been read, and it is told that nobody reads them any more.
    drop(guest);
    let stays_plugged = match plugged {
        Some(plugged) if ending == Ending::VmEnded => {
            plugged.forget();
            false
        }
        Some(plugged) => !plugged.unplug(),
        None => false,
    };
    Ok(AttachReport { ending, manifest: manifest?, stays_plugged })
}

/// The recording that is asked for, and its VM, when everything about it can be had. Nothing is left behind.
fn check(request: &AttachRequest) -> Result<(RecordingBuilder, ForeignVm), AttachError> {
    let layers = if request.has_guest() {
        &[LayerKind::HostKernel, LayerKind::GuestKernel, LayerKind::GuestUser][..]
    } else {
        &[LayerKind::HostKernel]
    };
    let recording = RecordingBuilder::new(&request.recording, layers)?;
    let selection = recording.selection();
    if !geteuid().is_root() {
        return Err(AttachError::NotRoot { pid: request.pid });
    }
    // The process's number, those of its threads, and KVM's names for its VMs are to be of one kind.
    check_thread_ids().map_err(AttachError::Tracefs)?;
    let vm = ForeignVm::find(request.pid, request.vm, Path::new(KVM_DEBUGFS))?;
    let events = Tracefs::find().and_then(|tracefs| tracefs.available_events()).map_err(AttachError::Tracefs)?;
    let events: Vec<String> = events.iter().map(ToString::to_string).collect();
    let any = events.iter().any(|event| selection.includes(LayerKind::HostKernel, event));
    selection.check(&[(LayerKind::HostKernel, events)]).map_err(RequestError::from)?;
    if !any && !request.has_guest() {
        return Err(AttachError::NoEvents { events: request.recording.layers.events.clone() });
    }
    // Tried and removed again: what is refused below leaves no folder.
    drop(request.recording.files.create()?);
    Ok((recording, vm))
}

/// The layers that are not recorded from outside. Events of a guest with a region are known when its agent comes up.
const fn unrecorded(has_guest: bool) -> &'static [(LayerKind, &'static [EventDescription])] {
    if has_guest { &[(LayerKind::Vmm, &[])] } else { &[(LayerKind::Vmm, &[]), (LayerKind::GuestKernel, &[])] }
}

/// The name of a VM that got none: its process's, as far as a VM's name can hold that, and the process's number.
fn default_name(comm: &str, pid: u32) -> String {
    let kept =
        |character: char| if character.is_ascii_alphanumeric() || "._-".contains(character) { character } else { '-' };
    let comm: String = comm.chars().map(kept).collect();
    match comm.trim_start_matches(['.', '-']) {
        "" => format!("vm-{pid}"),
        comm => format!("{comm}-{pid}"),
    }
}

fn describe(request: &AttachRequest, vm: &ForeignVm, name: &str, look: &Look) -> VmDescription {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    VmDescription {
        name: name.into(),
        pid: std::process::id(),
        started: Started::at(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)),
        vcpus: look.vcpu_count(),
        memory: 0,
        trace: Some(request.recording.files.absolute_trace()),
        vmm_rings: None,
        attached: Some(Attached { pid: request.pid, comm: vm.process.comm.clone() }),
    }
}

/// Makes the folder of `description` in `runtime`, unless somebody records process `pid` already.
fn claim(runtime: &Path, description: &VmDescription, pid: u32) -> Result<VmDirectory, AttachError> {
    // Two who look at the same time would both find nobody.
    let _alone = directory::lock(runtime)?;
    let of_process = |attached: &Attached| attached.pid == pid;
    let found = directory::list(runtime)?;
    match found.into_iter().find(|found| found.alive && found.vm.attached.as_ref().is_some_and(of_process)) {
        Some(other) => Err(AttachError::Attached { pid, by: other.vm.pid, trace: other.vm.trace }),
        None => Ok(VmDirectory::create(runtime, description)?),
    }
}

/// Has `host` trace the threads that came since they were listed first. From then on the kernel follows those that they
/// start.
fn follow_all_threads(host: &HostTracer, vm: &ForeignVm) {
    let filter = host.thread_filter();
    let mut known: BTreeSet<u32> = host.traced_threads().unwrap_or_default().into_iter().collect();
    for _ in 0..MAX_LISTINGS {
        let new: Vec<u32> = vm.thread_ids().into_iter().filter(|tid| known.insert(*tid)).collect();
        if new.is_empty() {
            break;
        }
        // One that has ended meanwhile has nothing more to show.
        new.into_iter().for_each(|tid| drop(filter.add(tid)));
    }
}

/// The host's clock, and how the vCPUs' counters relate to it.
fn clock_statement(clock: &HostClock, vm: &str, look: &Look, offset_honoured: bool) -> Clock {
    let relation = |vcpu: u32, tsc: &VcpuTsc| VcpuRelation {
        vm: vm.into(),
        vcpu,
        tsc_offset: if offset_honoured { tsc.offset } else { 0 },
        how: match clock.time {
            _ if !offset_honoured => {
                "KVM accepts an offset but ignores it (seen in a probe guest): the counters are the same".into()
            }
            HostTime::Tsc => format!("read from KVM's debugfs: {tsc}"),
            HostTime::MonotonicRaw => {
                format!("read from KVM's debugfs: {tsc}; KVM moves it on this host, which has given up its TSC")
            }
        },
    };
    let utc = read_together(|| clock.time.now(), clock.trace_frequency());
    clock.statement(Uuid::new_v4(), utc, look.vcpus.iter().map(|vcpu| relation(vcpu.vcpu, &vcpu.tsc)).collect())
}

/// The layers that only the process that runs the VM can record, and those of a guest whose agent has not come up yet.
fn missing_layers(has_region: bool) -> Vec<Missing> {
    let missing = |layer| Missing {
        layer,
        reason: "recorded from outside: another process runs the VM".into(),
        fix: "run the VM with `strata run --trace` to have every layer".into(),
    };
    if has_region {
        return std::iter::once(missing(LayerKind::Vmm)).chain(region::missing_agent()).collect();
    }
    [LayerKind::Vmm, LayerKind::GuestKernel, LayerKind::GuestUser].map(missing).into()
}

fn tell_begin(request: &AttachRequest, name: &str, say: Say) {
    let (trace, pid) = (request.recording.files.trace.display(), request.pid);
    match request.recording.layers.mode {
        Mode::Discard => say(&format!("attached to process {pid} as {name}, tracing into {trace}; Ctrl-C detaches")),
        Mode::FlightRecorder => say(&format!(
            "attached to process {pid} as {name}, flight recorder on; written into {trace} at the end (Ctrl-C detaches); \
             strata ctl {name} snapshot DIR writes it meanwhile"
        )),
    }
}

/// Waits until the recording is to end, for `limit` at most if there is one. Where `guest` does not begin to record
/// meanwhile, it is said.
fn wait(endings: &Receiver<Ending>, limit: Option<Duration>, guest: Option<&GuestRegion>, say: Say) -> Ending {
    let begun = Instant::now();
    if let Some(guest) = guest.filter(|_| limit.is_none_or(|limit| limit > JOIN_LIMIT)) {
        match endings.recv_timeout(JOIN_LIMIT) {
            Ok(ending) => return ending,
            Err(_) if guest.region.has_guest() => {}
            Err(_) => say(
                "the guest does not record: is the agent's kernel module loaded in it (`modprobe strata`; `dmesg` says what is \
                 wrong), and does the VM have the region's device (ivshmem-plain or virtio-pmem)? The host's kernel is recorded \
                 meanwhile",
            ),
        }
    }
    let limit = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
    let ending = match limit {
        Some(limit) => endings.recv_timeout(limit),
        None => endings.recv().map_err(|_| RecvTimeoutError::Disconnected),
    };
    match ending {
        Ok(ending) => ending,
        Err(RecvTimeoutError::Timeout) => Ending::TimeOver,
        // All who could tell are gone: so is the VM's follower.
        Err(RecvTimeoutError::Disconnected) => Ending::VmEnded,
    }
}

/// From now on the usual signals end the recording in good order instead of killing it.
fn stop_on_signals(ending: Sender<Ending>) -> Result<(), AttachError> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(AttachError::Threads)?;
    // The recording may have ended already.
    let wait = move || {
        for _ in signals.forever() {
            let _ = ending.send(Ending::Signal);
        }
    };
    std::thread::Builder::new().name("strata-signals".into()).spawn(wait).map_err(AttachError::Threads)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use strata_recorder::trigger::expression::Trigger;
    use strata_recording::manifest::is_vm_name;

    #[test]
    fn name_of_a_process_becomes_one_of_a_vm() {
        assert_eq!(default_name("qemu-system-x86", 42), "qemu-system-x86-42");
        assert_eq!(default_name("my vmm/1", 42), "my-vmm-1-42");
        assert_eq!(default_name("", 42), "vm-42");
        for comm in ["..", "a b", "\u{e9}\u{e9}", "-x", "((("] {
            assert!(is_vm_name(&default_name(comm, 7)), "{comm}");
        }
    }

    #[test]
    fn vm_that_is_recorded_is_not_recorded_again_until_that_has_ended() {
        let private = std::fs::Permissions::from_mode(0o700);
        let runtime = tempfile::Builder::new().permissions(private).tempdir().unwrap();
        let description = VmDescription {
            name: "a".into(),
            pid: 4242,
            started: Started::at(1_700_000_000_000_000_000),
            vcpus: 2,
            memory: 512 << 20,
            trace: Some("/tmp/trace".into()),
            vmm_rings: None,
            attached: Some(Attached { pid: 77, comm: "qemu".into() }),
        };

        let first = claim(runtime.path(), &description, 77).unwrap();
        let second = claim(runtime.path(), &description, 77).unwrap_err().to_string();
        let other = claim(runtime.path(), &VmDescription { attached: None, ..description.clone() }, 78);
        drop(first);

        assert!(second.contains("process 77 is recorded already") && second.contains("/tmp/trace"), "{second}");
        assert!(other.is_ok() && claim(runtime.path(), &description, 77).is_ok());
    }

    #[test]
    fn first_reason_to_end_counts_and_time_is_one() {
        let (ending, endings) = channel();
        ending.send(Ending::Detached).unwrap();
        ending.send(Ending::VmEnded).unwrap();

        let wait = |limit| wait(&endings, limit, None, |_| ());
        assert_eq!(wait(None), Ending::Detached);
        assert_eq!(wait(Some(Duration::ZERO)), Ending::VmEnded);
        assert_eq!(wait(Some(Duration::from_millis(1))), Ending::TimeOver);
        drop(ending);
        assert_eq!(wait(None), Ending::VmEnded);
    }

    #[test]
    fn trigger_on_a_layer_that_is_not_recorded_from_outside_is_refused() {
        let check = |trigger: &str, has_guest: bool| {
            let mut request = RecordingRequest::new("/nonexistent/trace");
            request.triggers.triggers = vec![Trigger::parse(trigger).unwrap()];
            let recording = RecordingBuilder::new(&request, &LayerKind::ALL).unwrap();
            recording.check_triggers(unrecorded(has_guest)).map_err(|error| error.to_string())
        };

        assert!(check("wakeup>1ms", false).unwrap_err().contains("'sched:sched_switch'"));
        assert_eq!(check("wakeup>1ms", true), Ok(()));
        assert!(check("guest-panic", true).unwrap_err().contains("'vmm:control'"));
    }

    #[test]
    fn size_of_a_flight_recorder_is_refused_before_anything_is_looked_at() {
        let mut recording = RecordingRequest::new("/nonexistent/trace");
        (recording.files.max_size, recording.layers.mode) = (Some(1 << 30), Mode::FlightRecorder);
        let request =
            AttachRequest { pid: u32::MAX, vm: None, name: None, region: None, qmp: None, recording, duration: None };

        let refused = attach(&request, |_| ());

        assert!(matches!(refused, Err(AttachError::Recording(RequestError::BoundedBySize))));
    }
}
