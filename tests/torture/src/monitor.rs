//! The VMM of a round: all that `strata run` has but the machine. It makes the region as that does, runs the real
//! recorder on it, records an honest layer of its own, and asks the recorder for things meanwhile.
//!
//! It says `ready REGION` when it records. A line on its standard input ends it; it then says what came of the
//! recording as a line of JSON ([`Ending`]).

use crate::setup::{VCPUS, VmSetup};
use crate::tally::{Tally, VMM_PRODUCER};
use anyhow::Context;
use clock_sync::calibration::read_together;
use clock_sync::relation::Relation;
use rustix::process::{Resource, Rlimit, setrlimit};
use serde::{Deserialize, Serialize};
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use strata_clock::{HostClock, HostTime, VcpuClocks};
use strata_observer::{BlockRequestKind, Observer};
use strata_recorder::control::directory::{VmDescription, VmDirectory};
use strata_recorder::control::protocol::{LayerLimit, Mode, Request};
use strata_recorder::live::vcpu_activity::VcpuThreads;
use strata_recorder::recorder::{Recorder, RecorderControl};
use strata_recorder::region::{TraceRegion, mapped_file};
use strata_recorder::session::recording::{GuestSide, enabled_guest_events};
use strata_recorder::session::{RecordedVm, RecordingBuilder, RecordingRequest};
use strata_recorder::vmm_events::VmmTracer;
use strata_recording::clock::VcpuRelation;
use strata_recording::files::access::Readers;
use strata_recording::files::trace_folder::TraceFolder;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Host, Vm};
use uuid::Uuid;

/// All layers but the host kernel's.
const RECORDED: [LayerKind; 3] = [LayerKind::Vmm, LayerKind::GuestKernel, LayerKind::GuestUser];
/// What is recorded.
const EVENTS: &str = "guest:*,user:*,vmm:*";
/// Descriptors that are not for streams of processes: the region, streams of other layers, files being replaced.
const OWN_DESCRIPTORS: u64 = 32;
/// How often the monitor asks for the recorder's state.
const ASKING_INTERVAL: Duration = Duration::from_millis(50);
/// One in so many times the monitor requests something else, too.
const OTHER_REQUESTS: u32 = 8;

/// What came of a recording.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ending {
    /// Why the recording is not complete.
    pub error: Option<String>,
    /// What is missing, a line each.
    pub missing: Vec<String>,
    /// How often it was asked for a flush or a snapshot: each delivers what rings hold, whatever the limit is.
    pub flushes: u64,
}

/// Runs the VMM of the VM that the file `setup` describes.
///
/// # Errors
/// When the recording cannot be begun.
pub fn run(setup: &Path) -> anyhow::Result<()> {
    let setup = VmSetup::load(setup)?;
    let tally = Tally::open(&setup.tally())?;
    let limit = Some(setup.descriptors);
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit })?;
    let clock = HostClock::observe(None);
    // The guest is made of processes of this host, whose counter is the TSC whatever the host's kernel thinks of it.
    let clock = HostClock { time: HostTime::Tsc, ..clock };
    let (uuid, frequency) = (Uuid::new_v4(), clock.trace_frequency());
    let rings = setup.vmm()?;
    let description = VmDescription {
        trace: Some(setup.trace.clone().into()),
        vmm_rings: Some(rings.into()),
        ..VmDescription::of_this_process(&setup.name, VCPUS)
    };
    let mut directory = VmDirectory::create(&setup.runtime, &description)?;
    let region = Arc::new(TraceRegion::create(directory.create_region()?, setup.region()?, uuid, frequency)?);
    let memory = mapped_file::map(&directory.create_vmm_rings()?, VmmTracer::memory_size(VCPUS, rings))?;
    let vmm = Arc::new(VmmTracer::new(VCPUS, rings, memory, HostTime::Tsc, |_| true, Box::new(|_, _| ())));
    for vcpu in 0..VCPUS {
        region.publish_clock(vcpu, &Relation::from_tsc_offset(0, HostTime::Tsc.now()));
    }
    let mut requested = RecordingBuilder::new(&recording_request(&setup), &RECORDED)?;
    region.set_enabled(0, &enabled_guest_events(&[], requested.selection()));
    region.set_host_alive(true);

    let relation = |vcpu| VcpuRelation { vm: setup.name.clone(), vcpu, tsc_offset: 0, how: "the same counter".into() };
    let utc = read_together(|| HostTime::Tsc.now(), frequency);
    let mut folder = TraceFolder::create(&setup.trace, Readers::Owner)?;
    let guest = GuestSide {
        vmm: Some(Arc::clone(&vmm)),
        agent: true,
        beside_region: Some(directory.path().into()),
        ..GuestSide::new(Arc::clone(&region), setup.kernel()?)
    };
    let vm = RecordedVm {
        vm: Vm {
            name: setup.name.clone(),
            vcpus: VCPUS,
            region: Some(directory.region()),
            outside_host_kernel: true,
            ..Vm::default()
        },
        host: Host::default(),
        clock: clock.statement(uuid, utc, (0..VCPUS).map(relation).collect()),
        clocks: Arc::new(VcpuClocks::new(&setup.name, VCPUS, clock.parameters(), Box::new(|_, _, _| ()))),
        vcpu_threads: VcpuThreads::default(),
    };
    let descriptors = usize::try_from(setup.descriptors.saturating_sub(OWN_DESCRIPTORS))?;
    (requested.guest, requested.process_descriptors) = (Some(guest), descriptors);
    requested.notify = |line| eprintln!("{line}");
    let recorder = Recorder::start(requested, vm)?;
    folder.keep();
    (0..VCPUS).for_each(|vcpu| vmm.vcpu_enter(vcpu));
    // A VM enters its guest so often that this is delivered within moments.
    vmm.flush();
    let mut signals = Signals::new([SIGTERM])?;
    println!("ready {}", directory.region().display());
    std::io::stdout().flush()?;

    let stop = AtomicBool::new(false);
    let control = recorder.control();
    let requested = std::thread::scope(|scope| {
        scope.spawn(|| record(&setup, &tally, &vmm, &stop));
        let requesting = scope.spawn(|| request(&setup, &tally, &control, &stop));
        // Who began this process says when to end, or has ended.
        std::thread::spawn(|| {
            let _ = std::io::stdin().read_line(&mut String::new());
            signal_hook::low_level::raise(SIGTERM)
        });
        signals.forever().next().context("nobody says when to end")?;
        stop.store(true, Ordering::Relaxed);
        requesting.join().map_err(|_| anyhow::anyhow!("the thread that asks the recorder panicked"))
    });
    let flushes = requested?;
    (0..VCPUS).for_each(|vcpu| vmm.vcpu_exit(vcpu, 0));
    region.set_host_alive(false);
    let finished = recorder.finish("stopped".into());
    if finished.is_err() {
        directory.keep();
    }
    let missing = finished.as_ref().map_or_else(|_| Vec::new(), |manifest| manifest.missing.clone());
    let ending = Ending {
        error: finished.err().map(|error| format!("{:#}", anyhow::Error::from(error))),
        missing: missing.into_iter().map(|missing| format!("{}: {}", missing.layer, missing.reason)).collect(),
        flushes,
    };
    println!("{}", serde_json::to_string(&ending)?);
    Ok(())
}

/// The recording's options.
fn recording_request(setup: &VmSetup) -> RecordingRequest {
    let mut recording_request = RecordingRequest::new(&setup.trace);
    let limit = |layer| setup.limit.map(|rate| LayerLimit { layer, per_second: rate, burst: rate });
    (recording_request.layers.mode, recording_request.layers.events) = (setup.mode(), EVENTS.into());
    recording_request.layers.limits = RECORDED.into_iter().filter_map(limit).collect();
    (recording_request.files.max_size, recording_request.files.compression) = (setup.max_size, setup.compression);
    recording_request
}

/// Records the VMM's layer: requests to a disk whose sectors count up.
fn record(setup: &VmSetup, tally: &Tally, vmm: &VmmTracer, stop: &AtomicBool) {
    let mut chance = fastrand::Rng::with_seed(setup.seed ^ 1);
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..chance.u64(..=setup.burst / 4) {
            let number = tally.attempt(VMM_PRODUCER);
            vmm.block_request(VMM_PRODUCER, BlockRequestKind::Read, number, 0, true);
        }
        std::thread::sleep(Duration::from_micros(chance.u64(..4000)));
    }
}

/// Asks the recorder how it is, again and again, and sometimes for sessions, snapshots and flushes; returns how often for
/// one of the last two.
fn request(setup: &VmSetup, tally: &Tally, control: &RecorderControl, stop: &AtomicBool) -> u64 {
    let mut chance = fastrand::Rng::with_seed(setup.seed ^ 2);
    let (mut snapshots, mut flushes) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let _ = control.request(Request::Status);
        tally.answered(u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX));
        if chance.u32(..OTHER_REQUESTS) == 0 {
            let name = || "extra".to_owned();
            // What is refused is refused: a session that is there, or one that is not.
            let _ = control.request(match chance.u8(..5) {
                0 => {
                    flushes += 1;
                    Request::Flush
                }
                1 => Request::SessionStart { name: name() },
                2 => Request::SessionDestroy { name: name() },
                3 => {
                    snapshots += 1;
                    let dir = setup.folder.join(format!("snapshot-{snapshots}"));
                    Request::Snapshot { dir, session: Some(name()) }
                }
                _ => Request::SessionCreate {
                    name: name(),
                    mode: Mode::FlightRecorder,
                    sub_buffer_size: Some(4096 << chance.u32(..4)),
                    sub_buffers: Some(8),
                    events: None,
                    trace: None,
                    max_size: None,
                    limits: Vec::new(),
                },
            });
        }
        std::thread::sleep(ASKING_INTERVAL);
    }
    snapshots + flushes
}
