//! Records the guest of a QEMU that emulates its processor, through the trace region that it has as a device, and gives
//! its agent no rest meanwhile: for kernels that are too slow for, or no part of, a host with KVM.
//!
//! `region_recorder REGION QMP TRACE`: `REGION` was made by `strata region create`; QEMU waits (`-S`) for its start on
//! the socket `QMP`. The recording ends with QEMU. Beside the main session, whose choice of events changes all the
//! time, others come, are written as snapshots, and go.
//!
//! An emulated processor's TSC is this machine's, counted from the moment at which QEMU starts it.

use anyhow::{Context, bail, ensure};
use clock_sync::calibration::read_together;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use trace_merge::access::Readers;
use trace_merge::clock::VcpuRelation;
use trace_merge::layer::LayerKind;
use trace_merge::manifest::{FORMAT_VERSION, Manifest, Missing, Started, Vm};
use trace_merge::reserve::Reserve;
use uuid::Uuid;
use vmm::attach::region::{GuestRegion, missing_agent};
use vmm::clock::{ClockParameters, HostClock, HostTime, VcpuClocks};
use vmm::control::protocol::{Answer, Mode, Request};
use vmm::machine::probe_kvm;
use vmm::tracing::host_description::describe_host;
use vmm::tracing::host_layer::HostHistory;
use vmm::tracing::record_limit::LayerLimits;
use vmm::tracing::recorder::{Recorder, RecorderControl};
use vmm::tracing::recording::{Recording, VcpuThreads};
use vmm::tracing::region_file::RegionFile;
use vmm::tracing::selection::Selection;
use vmm::tracing::session::Sources;

/// Name of the machine in the recording.
const VM: &str = "emulated";
/// Events of the main session, one choice after the other.
const CHOICES: [&str; 3] = ["minimal", "all", "default"];
/// How long each state of the sessions lasts.
const STAY: Duration = Duration::from_millis(700);

fn main() -> anyhow::Result<()> {
    let arguments: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    let [region, qmp, trace] = arguments.as_slice() else { bail!("usage: region_recorder REGION QMP TRACE") };
    let file = RegionFile::open(region)?;
    let vcpus = file.config.vcpus;
    let probed = probe_kvm();
    let clock = HostClock::observe(probed.tsc_khz);
    ensure!(clock.time == HostTime::Tsc, "the emulated TSC is this machine's, which its kernel has given up");

    let (end, ended) = channel();
    let offset = start_machine(qmp, end)?;
    let utc = read_together(|| clock.time.now(), clock.trace_frequency());
    let relation = |vcpu| VcpuRelation {
        vm: VM.into(),
        vcpu,
        tsc_offset: offset,
        how: "the time at which QEMU began to emulate the processor".into(),
    };
    let statement = clock.statement(Uuid::new_v4(), utc, (0..vcpus).map(relation).collect());
    let guest = GuestRegion::take(file, statement.uuid, clock.trace_frequency(), |line| eprintln!("{line}"))?;
    let parameters = ClockParameters {
        time: clock.time,
        frequency: clock.trace_frequency(),
        bound_ns: clock.error_bound_ns(),
        guest_tsc_hz: clock.frequency,
        first_offsets: Vec::new(),
        offset_honoured: true,
    };
    let clocks = Arc::new(VcpuClocks::new(VM, vcpus, parameters, guest.epoch_sink()));
    (0..vcpus).for_each(|vcpu| clocks.observe_offset(vcpu, offset));
    let selection = Selection::parse("all")?;
    let side = guest.begin(&selection)?;
    let manifest = Manifest {
        format: FORMAT_VERSION,
        strata: env!("CARGO_PKG_VERSION").into(),
        started: Started::at(statement.utc.utc_ns),
        clock: statement,
        host: describe_host(&probed),
        vms: vec![Vm { name: VM.into(), vcpus, region: Some(region.clone()), ..Vm::default() }],
        layers: Vec::new(),
        missing: missing().collect(),
        max_size: None,
        compression: None,
        outcome: None,
    };
    let recording = Recording {
        dir: Some(std::path::absolute(trace)?),
        readers: Readers::default(),
        rotation: None,
        reserve: Reserve::default(),
        manifest,
        vm: VM.into(),
        selection,
        vcpu_threads: VcpuThreads::default(),
        clocks,
        guest: Some(side),
    };
    let recorder = Recorder::start(Sources {
        recording,
        host: None,
        mode: Mode::Discard.into(),
        host_history: HostHistory { limit: 0, file: None },
        events: "all".into(),
        limits: LayerLimits::default(),
        alarms: Arc::default(),
        process_descriptors: 256,
        say: |line| eprintln!("{line}"),
        triggers: None,
        host_load: None,
        at_snapshot: None,
        on_failure: None,
    })?;
    let rounds = change_sessions(&recorder.control(), &ended, &std::path::absolute(trace)?)?;
    recorder.finish("the emulated machine ended".into())?;
    println!("{rounds} rounds of sessions");
    Ok(())
}

/// The layers that nobody records here.
fn missing() -> impl Iterator<Item = Missing> {
    let nobody = |layer| Missing {
        layer,
        reason: "the guest's processor is emulated: there is no KVM to trace".into(),
        fix: "none is needed".into(),
    };
    [LayerKind::HostKernel, LayerKind::Vmm].into_iter().map(nobody).chain(missing_agent())
}

/// Starts the machine that waits on the socket `qmp`, and tells `end` when its QEMU has ended. Returns the offset of
/// its TSC to this machine's, ticks: at most as wrong as QEMU took to start it.
fn start_machine(qmp: &Path, end: Sender<()>) -> anyhow::Result<i64> {
    let mut stream = UnixStream::connect(qmp).with_context(|| format!("no QEMU at '{}'", qmp.display()))?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let greeting = lines.next().context("QEMU ended")??;
    ensure!(greeting.contains("\"QMP\""), "this is not QEMU's monitor: {greeting}");
    for command in ["qmp_capabilities", "cont"] {
        writeln!(stream, "{{\"execute\": \"{command}\"}}")?;
        // Events may come before the answer.
        let answered = lines.by_ref().map_while(Result::ok).any(|line| line.contains("\"return\""));
        ensure!(answered, "QEMU ended before it had done {command}");
    }
    let started = HostTime::Tsc.now();
    std::thread::spawn(move || {
        lines.map_while(Result::ok).for_each(drop);
        drop((stream, end));
    });
    Ok(-i64::try_from(started)?)
}

/// Changes what is recorded until the machine has ended; returns how many rounds it made. Snapshots go beside `trace`.
fn change_sessions(control: &RecorderControl, ended: &Receiver<()>, trace: &Path) -> anyhow::Result<u64> {
    let goes_on = || ended.recv_timeout(STAY) == Err(RecvTimeoutError::Timeout);
    let mut rounds = 0;
    for choice in CHOICES.into_iter().cycle() {
        if !goes_on() {
            break;
        }
        let name = format!("round{rounds}");
        let snapshot = trace.with_extension("snapshot");
        let create = Request::SessionCreate {
            name: name.clone(),
            mode: Mode::FlightRecorder,
            sub_buffer_size: None,
            sub_buffers: None,
            events: Some(choice.into()),
            trace: None,
            max_size: None,
            limits: Vec::new(),
        };
        ask(control, Request::SessionEvents { name: "main".into(), events: choice.into() })?;
        ask(control, create)?;
        ask(control, Request::SessionStart { name: name.clone() })?;
        let alive = goes_on();
        ask(control, Request::Snapshot { dir: snapshot.clone(), session: Some(name.clone()) })?;
        std::fs::remove_dir_all(&snapshot)?;
        ask(control, Request::SessionDestroy { name })?;
        rounds += 1;
        if !alive {
            break;
        }
    }
    Ok(rounds)
}

fn ask(control: &RecorderControl, request: Request) -> anyhow::Result<()> {
    let asked = format!("{request:?}");
    match control.ask(request) {
        Answer::Refused { message } => bail!("{asked}: {message}"),
        Answer::Done { .. } | Answer::Status(_) | Answer::Live(_) | Answer::Balloon(_) => Ok(()),
    }
}
