//! The steps of a recording from outside, each a type that can only be made of the one before: [`Checked`],
//! [`Claimed`], [`HostTraced`], [`GuestReached`], [`Recorded`]. What a step changes, of this host or of the VM, its
//! type changes back when it is dropped, whichever later step fails.

use super::failure::AttachError;
use super::follower::{Follower, Sinks};
use super::hot_plug::HotPlugged;
use super::process::Process;
use super::region::{self, GuestRegion};
use super::stop::Stop;
use super::unplugging::Unplugging;
use super::vm::{ForeignVm, Look};
use super::{AttachReport, AttachRequest, Ending, answers, end_by_signals, report_begin, wait};
use crate::confinement::places;
use crate::run::descriptors;
use clock_sync::calibration::read_together;
use rustix::process::geteuid;
use shared_ring::event::EventDescription;
use signal_hook::iterator::Signals;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use strata_clock::{ClockParameters, EpochSink, HostClock, HostTime, KVM_DEBUGFS, VcpuClocks, VcpuTsc};
use strata_host_kernel::namespace::check_thread_ids;
use strata_host_kernel::{HostTracer, Tracefs};
use strata_jail::Jail;
use strata_jail::files::Places;
use strata_jail::policy::Thread;
use strata_machine::{KvmProbe, probe_kvm};
use strata_recorder::control::directory::{self, VmDescription, VmDirectory};
use strata_recorder::control::found_vm::{self, RuntimeFolder};
use strata_recorder::control::server::ControlServer;
use strata_recorder::host_description::describe_host;
use strata_recorder::layer::host_tracer::Traced;
use strata_recorder::live::vcpu_activity::VcpuThreads;
use strata_recorder::recorder::Recorder;
use strata_recorder::region::region_file::RegionFile;
use strata_recorder::session::recording::GuestSide;
use strata_recorder::session::{Notify, RecordedVm, RecordingBuilder, RequestError};
use strata_recording::clock::{Clock, VcpuRelation};
use strata_recording::files::trace_folder::{SnapshotFolder, TraceFolder};
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Attached, Missing, Vm};
use strata_recording::stop_signals::heeded;
use uuid::Uuid;

/// What is read while a VM of another process is recorded: its threads, the limits of its control groups, KVM's debugfs,
/// the clock source. Not all of `/sys`: this process is root, whose other tracing instances are there.
const READ: [&str; 4] = ["/proc", "/sys/fs/cgroup", KVM_DEBUGFS, "/sys/devices/system"];
/// Most times that a process's threads are listed until no new one has come.
const MAX_LISTINGS: u32 = 100;

/// A request whose every part has been checked, and a first look at its VM. Nothing is changed yet.
pub(super) struct Checked<'a> {
    request: &'a AttachRequest,
    recording: RecordingBuilder,
    vm: ForeignVm,
    name: String,
    first: Look,
    /// The region that the VM has as a device.
    region: Option<RegionFile>,
    jail: Jail,
}

impl<'a> Checked<'a> {
    /// Checks `request`, whose user gets notices by `notify`. Nothing is left behind.
    pub(super) fn check(request: &'a AttachRequest, notify: Notify) -> Result<Self, AttachError> {
        let layers = if request.has_guest() {
            &[LayerKind::HostKernel, LayerKind::GuestKernel, LayerKind::GuestUser][..]
        } else {
            &[LayerKind::HostKernel]
        };
        let mut recording = RecordingBuilder::new(&request.recording, layers)?;
        recording.notify = notify;
        let jail = Jail::choose(&request.jail)?;
        if !geteuid().is_root() {
            return Err(AttachError::NotRoot { pid: request.pid });
        }
        // The process's number, those of its threads, and KVM's names for its VMs are to be of one kind.
        check_thread_ids().map_err(|error| AttachError::Tracefs(error.into()))?;
        let vm = ForeignVm::find(request.pid, request.vm, Path::new(KVM_DEBUGFS))?;
        check_host_events(request, &recording)?;
        // Tried and removed again: what is refused below leaves no folder.
        drop(request.recording.files.create()?);
        let of_domain = || request.domain.as_ref().and_then(|domain| name_of_domain(domain.raw()));
        let given = request.name.clone().or_else(of_domain);
        let name = given.unwrap_or_else(|| default_name(vm.process.comm.raw(), request.pid));
        let first = vm.look()?.ok_or(AttachError::Ended { pid: request.pid })?;
        let open = |path: &Path| region::open(path, request.pid, request.recording.layers.mode, &first);
        let region = request.region.as_deref().map(open).transpose()?;
        Ok(Self { request, recording, vm, name, first, region, jail })
    }

    /// Makes the folder that other processes find the recording by, unless somebody records the process already. From
    /// here on signals end the recording.
    pub(super) fn claim(self) -> Result<Claimed<'a>, AttachError> {
        let description = self.describe();
        let (ending, endings) = channel();
        let heeded = heeded();
        let stop = Stop::by_signals(&heeded).map_err(AttachError::Threads)?;
        let signals = Signals::new(&heeded).map_err(AttachError::Threads)?;
        let directory = claim(&directory::runtime_folder()?, &description, self.request.pid)?;
        Ok(Claimed { checked: self, description, ending, endings, stop, signals, directory })
    }

    fn describe(&self) -> VmDescription {
        VmDescription {
            trace: Some(self.request.recording.files.absolute_trace().into()),
            attached: Some(Attached { pid: self.request.pid, comm: self.vm.process.comm.clone() }),
            ..VmDescription::of_this_process(&self.name, self.first.vcpu_count())
        }
    }
}

/// A VM that nobody else records meanwhile.
pub(super) struct Claimed<'a> {
    checked: Checked<'a>,
    description: VmDescription,
    /// Who ends the recording says it here.
    ending: Sender<Ending>,
    endings: Receiver<Ending>,
    /// Signals end waits by it.
    stop: Stop,
    /// The same signals, for the thread that they will end the recording by: no thread is made before the jail is closed.
    signals: Signals,
    /// Removed when it is dropped, with the control socket in it.
    directory: VmDirectory,
}

impl<'a> Claimed<'a> {
    /// Traces the host's kernel for the VM.
    pub(super) fn trace_host(mut self) -> Result<HostTraced<'a>, AttachError> {
        let Checked { request, recording, vm, .. } = &mut self.checked;
        let probed = probe_kvm();
        let clock = HostClock::observe(probed.tsc_khz);
        let traced = Traced { process: request.pid, threads: vm.thread_ids(), takes_more: true };
        recording.trace_host(clock.time, traced)?;
        recording.host().into_iter().for_each(|host| follow_all_threads(host, vm));
        recording.missing.extend(missing_layers(request.has_guest()));
        recording.check_triggers(unrecorded(request.has_guest()))?;
        // To enable many events takes its time.
        if vm.has_ended_within(Duration::ZERO) {
            return Err(AttachError::Ended { pid: request.pid });
        }
        Ok(HostTraced { claimed: self, probed, clock })
    }
}

/// A VM for which the host's kernel is traced.
pub(super) struct HostTraced<'a> {
    claimed: Claimed<'a>,
    probed: KvmProbe,
    clock: HostClock,
}

impl<'a> HostTraced<'a> {
    /// Takes the region that the VM has as a device, or gives its QEMU one, if the guest is to be recorded; relates the
    /// vCPUs' clocks, and has the guest begin.
    pub(super) fn reach_guest(mut self) -> Result<GuestReached<'a>, AttachError> {
        let offset_honoured = self.probed.tsc_offset_honoured != Some(false);
        let Checked { request, recording, name, first, region, jail, .. } = &mut self.claimed.checked;
        if request.has_guest() {
            region::check_clock(self.clock.time, offset_honoured, first)?;
        }
        let (mode, notify) = (request.recording.layers.mode, recording.notify);
        let stop = &self.claimed.stop;
        let plug = |socket: &Path| {
            let process = Process::open(request.pid)?;
            HotPlugged::plug(socket, process, first.vcpu_count(), mode, notify, stop).map_err(AttachError::from)
        };
        let plugged = request.qmp.as_deref().map(plug).transpose()?;
        let path = plugged.as_ref().map(HotPlugged::file);
        let plugged = plugged.map(|plugged| Unplugging::begin(plugged, jail.mode())).transpose()?;
        let file = match path {
            Some(path) => Some(region::open(&path, request.pid, mode, first)?),
            None => region.take(),
        };
        let clock = clock_statement(&self.clock, name, first, offset_honoured);
        let vcpus = file.as_ref().map_or(first.vcpu_count(), |file| file.config.vcpus);
        let path = file.as_ref().map(|file| file.path.clone());
        let take = |file| GuestRegion::take(file, clock.uuid, clock.frequency_hz, notify);
        let guest = file.map(take).transpose()?.map(|guest| guest.plugged_by(plugged));
        let sink: EpochSink = match &guest {
            Some(guest) => guest.epoch_sink(),
            None => Box::new(|_, _, _| ()),
        };
        let parameters = ClockParameters { offset_honoured, ..self.clock.parameters() };
        let clocks = Arc::new(VcpuClocks::new(name, vcpus, parameters, sink));
        let sinks = Sinks { threads: VcpuThreads::default(), clocks: Arc::clone(&clocks) };
        sinks.take(first);
        let side = guest.as_ref().map(|guest| guest.begin(recording.selection())).transpose()?;
        let recorded = RecordedVm {
            vm: Vm {
                name: name.clone(),
                vcpus: first.vcpu_count(),
                region: path,
                attached: self.claimed.description.attached.clone(),
                ..Vm::default()
            },
            host: describe_host(self.probed.kind.name()),
            clock,
            clocks,
            vcpu_threads: Arc::clone(&sinks.threads),
        };
        Ok(GuestReached { claimed: self.claimed, vcpus, guest, side, recorded, sinks })
    }
}

/// A VM whose guest, if it has a region, records into that.
pub(super) struct GuestReached<'a> {
    claimed: Claimed<'a>,
    guest: Option<GuestRegion>,
    side: Option<GuestSide>,
    /// vCPUs that there is room for.
    vcpus: u32,
    recorded: RecordedVm,
    sinks: Sinks,
}

impl GuestReached<'_> {
    /// Gives up what needs no longer be had, then begins to record, to answer what the control socket asks for, and to
    /// follow the VM.
    pub(super) fn record(self) -> Result<Recorded, AttachError> {
        let Self { claimed, guest, side, vcpus, recorded, sinks } = self;
        let Claimed { checked, description, ending, endings, signals, directory, .. } = claimed;
        let Checked { request, mut recording, vm, name, jail, .. } = checked;
        let (folder, snapshots) = request.recording.files.create()?;
        let (failed, notify) = (ending.clone(), recording.notify);
        recording.process_descriptors = if side.is_some() { descriptors::for_processes(vcpus, false) } else { 0 };
        recording.guest = side;
        recording.on_failure = Some(Box::new(move || {
            // There is no VM of this process's to go on with.
            let _ = failed.send(Ending::TraceFailed);
            true
        }));
        let read = READ.map(PathBuf::from).into();
        let places = Places { read, ..places(&directory, Some((&folder, &snapshots))) };
        let closed = jail.close(Thread::AttachStart, places)?;
        closed.missing.iter().for_each(|line| notify(line));
        report_hidden(&vm, notify);
        end_by_signals(signals, ending.clone())?;
        let recorder = Recorder::start(recording, recorded)?;
        let answers = answers::answers(description, recorder.control(), ending.clone(), closed);
        let control = ControlServer::start(&directory.socket(), answers)?;
        let region = guest.as_ref().map(|guest| Arc::clone(&guest.region));
        let follower = Follower::start(vm, region, sinks, ending)?;
        strata_jail::enter(Thread::Attached);
        report_begin(request, &name, notify);
        Ok(Recorded {
            follower,
            control,
            recorder,
            folder,
            _snapshots: snapshots,
            guest,
            _directory: directory,
            endings,
            limit: request.duration,
            notify,
        })
    }
}

/// A VM that is being recorded.
pub(super) struct Recorded {
    follower: Follower,
    control: ControlServer,
    recorder: Recorder,
    folder: TraceFolder,
    /// Removed in the end if nothing is in it.
    _snapshots: SnapshotFolder,
    guest: Option<GuestRegion>,
    _directory: VmDirectory,
    endings: Receiver<Ending>,
    /// Time after which it ends by itself.
    limit: Option<Duration>,
    notify: Notify,
}

impl Recorded {
    /// Waits until the recording is to end, and completes it.
    pub(super) fn finish(mut self) -> Result<AttachReport, AttachError> {
        let ending = wait(&self.endings, self.limit, self.guest.as_ref(), self.notify);
        if let Some(guest) = self.guest.as_ref().filter(|_| ending == Ending::RegionCut) {
            (self.notify)(&format!(
                "'{}' was cut short by who may write it, so that nothing more comes from the guest: make another region, and \
                 start the VM with it",
                guest.file.display()
            ));
        }
        // Nobody asks any more, nor looks at the VM.
        drop((self.follower, self.control));
        let has_vm_ended = ending == Ending::VmEnded;
        if let Some(guest) = self.guest.as_ref().filter(|_| !has_vm_ended) {
            guest.stop();
        }
        self.folder.keep();
        let manifest = self.recorder.finish(ending.to_string());
        // The guest's rings have been read.
        let stays_plugged = self.guest.is_some_and(|guest| !guest.leave(has_vm_ended));
        Ok(AttachReport { ending, manifest: manifest?, stays_plugged })
    }
}

/// Checks the choice of events against those that the host's kernel has.
fn check_host_events(request: &AttachRequest, recording: &RecordingBuilder) -> Result<(), AttachError> {
    let selection = recording.selection();
    let events = Tracefs::find().and_then(|tracefs| tracefs.available_events()).map_err(AttachError::Tracefs)?;
    let events: Vec<String> = events.iter().map(ToString::to_string).collect();
    let any = events.iter().any(|event| selection.includes(LayerKind::HostKernel, event));
    selection.check(&[(LayerKind::HostKernel, events)]).map_err(RequestError::from)?;
    if !any && !request.has_guest() {
        return Err(AttachError::NoEvents { events: request.recording.layers.events.clone() });
    }
    Ok(())
}

/// The layers that are not recorded from outside. Events of a guest with a region are known when its agent comes up.
const fn unrecorded(has_guest: bool) -> &'static [(LayerKind, &'static [EventDescription])] {
    if has_guest { &[(LayerKind::Vmm, &[])] } else { &[(LayerKind::Vmm, &[]), (LayerKind::GuestKernel, &[])] }
}

/// The name of a VM that libvirt calls `domain`, as far as a VM's name can hold that; `None` where nothing is left.
fn name_of_domain(domain: &str) -> Option<String> {
    let name = as_vm_name(domain);
    let name = name.trim_start_matches(['.', '-']);
    name.contains(|character: char| character.is_ascii_alphanumeric()).then(|| name.to_owned())
}

/// `text` with `-` in place of every character that a VM's name cannot have.
fn as_vm_name(text: &str) -> String {
    let kept =
        |character: char| if character.is_ascii_alphanumeric() || "._-".contains(character) { character } else { '-' };
    text.chars().map(kept).collect()
}

/// The name of a VM that got none: its process's, as far as a VM's name can hold that, and the process's number.
fn default_name(comm: &str, pid: u32) -> String {
    let comm = as_vm_name(comm);
    match comm.trim_start_matches(['.', '-']) {
        "" => format!("vm-{pid}"),
        comm => format!("{comm}-{pid}"),
    }
}

/// Makes the folder of `description` in `runtime`, unless somebody records process `pid` already.
fn claim(runtime: &Path, description: &VmDescription, pid: u32) -> Result<VmDirectory, AttachError> {
    // Two who look at the same time would both find nobody.
    let _alone = directory::lock(runtime)?;
    let of_process = |attached: &Attached| attached.pid == pid;
    let found = found_vm::list(&RuntimeFolder::named(runtime))?;
    match found.into_iter().find(|found| found.alive && found.vm.attached.as_ref().is_some_and(of_process)) {
        Some(other) => Err(AttachError::Attached { pid, by: other.vm.pid, trace: other.vm.trace }),
        None => Ok(VmDirectory::create(runtime, description)?),
    }
}

/// Tells what the jail keeps from view on a host that shows processes only to who may look into them (`hidepid`).
fn report_hidden(vm: &ForeignVm, notify: Notify) {
    if vm.thread_ids().is_empty() && !vm.has_ended_within(Duration::ZERO) {
        notify(
            "this host hides processes from those who may not look into them (hidepid): CPU limits, vCPUs' threads before \
             Linux 5.19, and threads of the kernel that begin to work for the VM from now on are missing; --jail off has them",
        );
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
    let relations = look.vcpus.iter().filter_map(|vcpu| Some(relation(vcpu.vcpu, vcpu.tsc.as_ref()?)));
    clock.statement(Uuid::new_v4(), utc, relations.collect())
}

/// The layers that only the process that runs the VM can record, and those of a guest whose agent has not come up yet.
fn missing_layers(has_region: bool) -> Vec<Missing> {
    let reason = || "recorded from outside: another process runs the VM".to_owned();
    let vmm = Missing {
        layer: LayerKind::Vmm,
        reason: reason(),
        fix: "only a VM that `strata run` runs has this layer".into(),
    };
    let of_guest =
        |layer| Missing { layer, reason: reason(), fix: "give --region FILE, or --qmp SOCKET to QEMU".into() };
    let guest: Vec<Missing> = if has_region {
        region::missing_agent().collect()
    } else {
        [LayerKind::GuestKernel, LayerKind::GuestUser].map(of_guest).into()
    };
    std::iter::once(vmm).chain(guest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use strata_recorder::session::RecordingRequest;
    use strata_recorder::trigger::expression::Trigger;
    use strata_recording::manifest::{Started, is_vm_name};

    #[test]
    fn name_of_a_domain_is_kept_as_far_as_a_vm_can_have_it() {
        let names = ["web", "my web (1)", ".hidden", "...", "\u{1b}[2J"].map(name_of_domain);

        let expected = [Some("web"), Some("my-web--1-"), Some("hidden"), None, Some("2J")];
        assert_eq!(names, expected.map(|name| name.map(str::to_owned)));
        assert!(names.iter().flatten().all(|name| is_vm_name(name)));
    }

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
    fn trigger_on_a_layer_that_is_not_recorded_from_outside_is_refused() {
        let check = |trigger: &str, has_guest: bool| {
            let mut request = RecordingRequest::new("/nonexistent/trace");
            request.triggers.triggers = vec![Trigger::parse(trigger).unwrap()];
            let mut recording = RecordingBuilder::new(&request, &LayerKind::ALL).unwrap();
            recording.missing = missing_layers(has_guest);
            let refused = recording.check_triggers(unrecorded(has_guest)).err();
            refused.and_then(|error| Some(std::error::Error::source(&error)?.to_string())).unwrap_or_default()
        };

        assert_eq!((check("wakeup>1ms", true), check("disk>1ms", true)), (String::new(), String::new()));
        assert!(check("wakeup>1ms", false).ends_with(": give --region FILE, or --qmp SOCKET to QEMU"));
        assert!(check("disk>1ms", false).contains("`strata run` runs has this layer; or give --region FILE"));
        assert!(check("guest-panic", true).ends_with("`strata run` runs has this layer"));
    }
}
