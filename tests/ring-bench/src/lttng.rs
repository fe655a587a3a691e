//! LTTng-UST from the distribution's packages: a flight-recorder session, a traced program with the default clock and
//! one with a clock plugin that reads the TSC; both record on request.

use crate::measured_program::{INCLUDES, MeasuredProgram, run};
use crate::ring_cases::{SUB_BUFFER_SIZE, SUB_BUFFERS};
use crate::sampling::{Case, TickRate};
use anyhow::{Context, ensure};
use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const SESSION: &str = "strata-ring-bench";
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/lttng");

/// A running LTTng session; destroyed when dropped.
pub struct Session {
    folder: TempDir,
    /// The session daemon, when it was not running already.
    daemon: Option<Child>,
}

impl Session {
    /// Builds the traced program and starts the session.
    ///
    /// # Errors
    /// When the packages liblttng-ust-dev, lttng-tools and gcc are not installed, or LTTng refuses.
    pub fn start() -> anyhow::Result<Self> {
        let mut session = Self { folder: TempDir::with_prefix("ring-bench-")?, daemon: None };
        let file = |name: &str| format!("{SOURCES}/{name}");
        let built = |name: &str| session.folder.path().join(name);
        let includes = format!("-I{SOURCES}");
        run(Command::new("gcc")
            .args(["-O2", &includes, INCLUDES, "-o"])
            .arg(built("workload"))
            .arg(file("workload.c"))
            .args(["-llttng-ust", "-ldl"]))
        .context("liblttng-ust-dev and gcc are needed")?;
        let plugin = built("tsc_clock.so");
        run(Command::new("gcc")
            .args(["-O2", "-shared", "-fPIC", "-o"])
            .arg(plugin)
            .arg(file("tsc_clock.c"))
            .arg("-llttng-ust"))?;
        if session.lttng(&["list"]).is_err() {
            let daemon = Command::new("lttng-sessiond")
                .env("LTTNG_HOME", session.folder.path())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .context("lttng-tools is needed")?;
            session.daemon = Some(daemon);
            let deadline = Instant::now() + Duration::from_secs(20);
            while session.lttng(&["list"]).is_err() {
                ensure!(Instant::now() < deadline, "lttng-sessiond does not answer");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        // Left behind by a run that was killed.
        let _ = session.lttng(&["destroy", SESSION]);
        let output = session.snapshots().display().to_string();
        session.lttng(&["create", SESSION, "--snapshot", "--output", &output])?;
        let (size, count) = (SUB_BUFFER_SIZE.to_string(), SUB_BUFFERS.to_string());
        session.lttng(&[
            "enable-channel",
            "-u",
            "-s",
            SESSION,
            "events",
            "--subbuf-size",
            &size,
            "--num-subbuf",
            &count,
        ])?;
        session.lttng(&["enable-event", "-u", "-s", SESSION, "-c", "events", "ring_bench:*"])?;
        session.lttng(&["start", SESSION])?;
        Ok(session)
    }

    /// The installed version.
    pub fn version(&self) -> String {
        run(Command::new("lttng").arg("--version")).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
    }

    /// One case per clock and payload.
    ///
    /// # Errors
    /// When the traced program does not start.
    pub fn cases(&self, rate: TickRate) -> anyhow::Result<Vec<Case>> {
        let default_clock = Rc::new(RefCell::new(self.start_program(None)?));
        let tsc_clock = Rc::new(RefCell::new(self.start_program(Some(rate))?));
        let rows = [
            ("lttng/tsc/16", 16, &tsc_clock),
            ("lttng/tsc/32", 32, &tsc_clock),
            ("lttng/tsc/64", 64, &tsc_clock),
            ("lttng/default/16", 16, &default_clock),
            ("lttng/default/32", 32, &default_clock),
            ("lttng/default/64", 64, &default_clock),
        ];
        Ok(rows
            .into_iter()
            .map(|(key, bytes, workload)| {
                let clock = if key.contains("tsc") { "TSC clock plugin" } else { "default clock" };
                let workload = Rc::clone(workload);
                let label = format!("LTTng-UST, flight recorder, {clock}, {bytes} B");
                Case { key, label, sample: Box::new(move || workload.borrow_mut().sample(bytes)) }
            })
            .collect())
    }

    /// Takes a snapshot and checks that it holds data: that what was measured was recording.
    ///
    /// # Errors
    /// When the snapshot holds no records.
    pub fn check_recorded(&self) -> anyhow::Result<()> {
        self.lttng(&["snapshot", "record", "-s", SESSION])?;
        let bytes = size_of_streams(&self.snapshots())?;
        ensure!(bytes >= SUB_BUFFER_SIZE, "LTTng-UST recorded only {bytes} bytes: nothing was measured");
        Ok(())
    }

    /// The traced program, with the TSC as its clock where its rate is given.
    fn start_program(&self, tsc_clock: Option<TickRate>) -> anyhow::Result<MeasuredProgram> {
        let folder = self.folder.path();
        let mut command = Command::new(folder.join("workload"));
        command.env("LTTNG_HOME", folder).stderr(Stdio::null());
        if let Some(rate) = tsc_clock {
            command.env("LTTNG_UST_CLOCK_PLUGIN", folder.join("tsc_clock.so"));
            command.env("RING_BENCH_TSC_HZ", format!("{:.0}", rate.hertz()));
        }
        MeasuredProgram::start(&mut command)
    }

    fn snapshots(&self) -> PathBuf {
        self.folder.path().join("snapshots")
    }

    fn lttng(&self, arguments: &[&str]) -> anyhow::Result<String> {
        run(Command::new("lttng").arg("--no-sessiond").args(arguments).env("LTTNG_HOME", self.folder.path()))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.lttng(&["destroy", SESSION]);
        if let Some(daemon) = &mut self.daemon {
            // On SIGTERM it ends its consumer daemons itself; they would outlive it otherwise.
            let _ = run(Command::new("kill").arg(daemon.id().to_string()));
            let _ = daemon.wait();
        }
    }
}

fn size_of_streams(folder: &Path) -> anyhow::Result<u64> {
    let mut size = 0;
    for entry in fs::read_dir(folder).with_context(|| format!("no snapshot in {}", folder.display()))? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if metadata.is_dir() {
            size += size_of_streams(&entry.path())?;
        } else if entry.file_name() != "metadata" {
            size += metadata.len();
        }
    }
    Ok(size)
}
