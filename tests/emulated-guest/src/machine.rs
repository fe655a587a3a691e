//! The machine: a QEMU that emulates the guest's processors.

use anyhow::{Context, bail, ensure};
use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use strata_clock::HostTime;

const PROGRAM: &str = "qemu-system-x86_64";
/// One thread emulates all processors, in turns. With one for each, on a machine that others use, too, a processor executes
/// what another has just written over (a kernel that changes its code dies of an `int3`), loses timer interrupts, and looks
/// devices up in a map of memory that is no longer the machine's: a quarter of all guests died (QEMU 10.0.2).
const ONE_THREAD: &str = "tcg,thread=single";
/// The model whose emulation the lab relies on elsewhere.
const MODEL: &str = "EPYC";
/// How long QEMU may take to open its monitor's socket.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How often it is looked whether the guest says that it lives.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What a machine is made of.
#[derive(Debug)]
pub struct Parts {
    /// The kernel: bzImage or ELF.
    pub kernel: PathBuf,
    /// The initrd.
    pub initrd: PathBuf,
    /// The kernel command line.
    pub cmdline: String,
    /// Number of vCPUs.
    pub cpus: u32,
    /// RAM, MiB.
    pub memory_mib: u64,
    /// Raw images of virtio disks.
    pub disks: Vec<PathBuf>,
    /// The file of the trace region that is a device of the guest's.
    pub region: Option<PathBuf>,
}

/// How a guest ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It powered off.
    PoweredOff,
    /// QEMU was asked to stop it.
    Stopped,
    /// It said nothing for this time, and was stopped.
    Silent(Duration),
    /// Anything else, as QEMU names it.
    Otherwise(String),
}

impl Ending {
    /// The ending for QEMU's reason of a shutdown.
    fn of_reason(reason: &str) -> Self {
        match reason {
            "guest-shutdown" => Self::PoweredOff,
            "host-qmp-quit" => Self::Stopped,
            other => Self::Otherwise(other.into()),
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PoweredOff => formatter.write_str("the guest powered off"),
            Self::Stopped => formatter.write_str("the guest was stopped"),
            Self::Silent(time) => {
                write!(formatter, "the guest was stopped: its heartbeat was silent for {} s", time.as_secs())
            }
            Self::Otherwise(reason) => write!(formatter, "the guest did not power off: {reason}"),
        }
    }
}

/// A QEMU, which ends when this is dropped.
#[derive(Debug)]
pub struct Machine {
    qemu: Child,
    monitor: UnixStream,
    /// What the monitor says.
    lines: Option<Lines<BufReader<UnixStream>>>,
    /// The output of the guest's second serial port.
    heartbeat: PathBuf,
}

impl Machine {
    /// A machine that waits for its start; its sockets and files lie in `folder`.
    ///
    /// # Errors
    /// QEMU does not come up.
    pub fn prepare(folder: &Path, parts: Parts) -> anyhow::Result<Self> {
        let (socket, heartbeat) = (folder.join("qmp"), folder.join("heartbeat"));
        let mut command = Command::new(PROGRAM);
        command.args(["-nodefaults", "-display", "none", "-no-reboot", "-S", "-machine", "q35", "-serial", "stdio"]);
        command.arg("-serial").arg(format!("file:{}", heartbeat.display()));
        command.args(["-accel", ONE_THREAD, "-cpu", MODEL, "-smp", &parts.cpus.to_string()]);
        command.arg("-m").arg(format!("{}M", parts.memory_mib));
        if let Some(region) = &parts.region {
            // The device is a power of two; the file has a page more.
            let size = fs::metadata(region).with_context(|| format!("no region '{}'", region.display()))?.len();
            let size = 1_u64 << size.ilog2();
            let memory = format!("memory-backend-file,id=strata,share=on,mem-path={},size={size}", region.display());
            // behind a port of its own, by which it can be reset
            command.args(["-object", &memory, "-device", "pcie-root-port,id=root"]);
            command.args(["-device", "ivshmem-plain,memdev=strata,bus=root"]);
        }
        for disk in &parts.disks {
            command.arg("-drive").arg(format!("file={},format=raw,if=virtio,werror=report", disk.display()));
        }
        command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", socket.display()));
        command.arg("-kernel").arg(parts.kernel).arg("-initrd").arg(parts.initrd).arg("-append").arg(parts.cmdline);
        let mut qemu = command.spawn().with_context(|| format!("cannot start {PROGRAM}: is it installed?"))?;
        match connect(&mut qemu, &socket) {
            Ok(monitor) => {
                let lines = Some(BufReader::new(monitor.try_clone()?).lines());
                Ok(Self { qemu, monitor, lines, heartbeat })
            }
            Err(error) => {
                let _ = qemu.kill();
                let _ = qemu.wait();
                Err(error)
            }
        }
    }

    /// Starts it. Returns the offset of its TSC to this machine's, ticks: at most as wrong as QEMU took to start it. An
    /// emulated processor's TSC is this machine's, counted from that moment.
    ///
    /// # Errors
    /// QEMU does not do it.
    pub fn start(&mut self) -> anyhow::Result<i64> {
        let lines = self.lines.as_mut().context("the machine was waited for already")?;
        let greeting = lines.next().context("QEMU ended")??;
        ensure!(greeting.contains("\"QMP\""), "this is not QEMU's monitor: {greeting}");
        for command in ["qmp_capabilities", "cont"] {
            request(&mut self.monitor, command)?;
            // Events may come before the answer.
            let answered = lines.by_ref().map_while(Result::ok).any(|line| line.contains("\"return\""));
            ensure!(answered, "QEMU ended before it had done {command}");
        }
        Ok(-i64::try_from(HostTime::Tsc.now())?)
    }

    /// What stops the machine from another thread.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn stopper(&self) -> anyhow::Result<impl FnMut() + Send + 'static> {
        let mut monitor = self.monitor.try_clone()?;
        // One that has ended meanwhile needs no stop.
        Ok(move || drop(request(&mut monitor, "quit")))
    }

    /// Waits until the guest has ended, and stops it when its heartbeat was silent for `limit`.
    ///
    /// # Errors
    /// It was waited for already.
    pub fn wait(&mut self, limit: Duration) -> anyhow::Result<Ending> {
        let lines = self.lines.take().context("the machine was waited for already")?;
        let (end, ended) = channel();
        std::thread::spawn(move || {
            let reason = lines.map_while(Result::ok).filter_map(|line| shutdown_reason(&line)).last();
            // Nobody waits any more where the guest was silent.
            let _ = end.send(reason);
        });
        let (mut bytes, mut grown) = (0, Instant::now());
        loop {
            match ended.recv_timeout(LOOK_INTERVAL) {
                Ok(Some(reason)) => return Ok(Ending::of_reason(&reason)),
                Ok(None) | Err(RecvTimeoutError::Disconnected) => return Ok(Ending::Otherwise("QEMU ended".into())),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let now = fs::metadata(&self.heartbeat).map_or(0, |file| file.len());
            if now != bytes {
                (bytes, grown) = (now, Instant::now());
            }
            if grown.elapsed() >= limit {
                let _ = self.qemu.kill();
                return Ok(Ending::Silent(grown.elapsed()));
            }
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It has ended, or is of no use any more.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// Connects with the monitor of `qemu` once it is there.
fn connect(qemu: &mut Child, socket: &Path) -> anyhow::Result<UnixStream> {
    let begun = Instant::now();
    loop {
        if let Ok(monitor) = UnixStream::connect(socket) {
            return Ok(monitor);
        }
        if let Some(status) = qemu.try_wait()? {
            bail!("{PROGRAM} ended at once ({status})");
        }
        ensure!(begun.elapsed() < START_LIMIT, "{PROGRAM} did not open its monitor");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn request(monitor: &mut UnixStream, command: &str) -> std::io::Result<()> {
    writeln!(monitor, "{{\"execute\": \"{command}\"}}")
}

/// Why the machine shuts down, if the monitor's `line` says that it does.
fn shutdown_reason(line: &str) -> Option<String> {
    let event: serde_json::Value = serde_json::from_str(line).ok()?;
    let is_shutdown = event["event"] == "SHUTDOWN";
    event["data"]["reason"].as_str().filter(|_| is_shutdown).map(str::to_owned)
}
