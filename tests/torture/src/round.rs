//! A round: two VMs, attacks, a fault, and what came of it.

use crate::Options;
use crate::attack::Attack;
use crate::beside::Seen;
use crate::fault::{Fault, SmallDisk, send};
use crate::forgery;
use crate::judge;
use crate::monitor::Ending;
use crate::promise::{Board, By, Promise};
use crate::setup::VmSetup;
use crate::stranger::{OWN_NAME, STRANGER};
use crate::tally::Tally;
use crate::usage::{Usage, on_disk};
use anyhow::Context;
use clap::ValueEnum;
use std::fmt;
use std::fs::{self, DirBuilder, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use strata_recording::files::compression::Compression;

/// Longest end of a recording, ms.
const STOP_LIMIT: u64 = 2000;
/// Longest answer of the recorder, ms.
const ANSWER_LIMIT: u64 = 2000;
/// Most memory of its own that a recorder may take, KiB.
const MEMORY_LIMIT: u64 = 256 << 10;
/// Largest manifest that is read, KiB.
const MANIFEST_LIMIT: u64 = 256 << 10;
/// What a recorder whose guest has many processes may open.
const DESCRIPTORS: u64 = 1024;
/// The same where they are few: a handful of processes.
const FEW_DESCRIPTORS: u64 = 44;
/// When a process that does not end is killed.
const PATIENCE: Duration = Duration::from_secs(30);
/// A recording that is younger may have no event types in its manifest yet.
const YOUNG: Duration = Duration::from_millis(1200);
/// Recordings that are forged out of each round's.
const FORGERIES: u64 = 4;
/// Pause between two looks at the recorders.
const LOOK: Duration = Duration::from_millis(50);

/// What a round is made of.
pub struct Plan {
    number: u64,
    seed: u64,
    fault: Fault,
    /// Whether what fails is over before the end: a full disk has room again, a recorder that stood still goes on.
    is_over_before_end: bool,
    duration: Duration,
    stall: Duration,
    has_mounts: bool,
    of_processes: Vec<Attack>,
    of_kernel: Vec<Attack>,
    of_users: Vec<Attack>,
    of_makers: Vec<Attack>,
}

impl fmt::Display for Plan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { of_processes, of_kernel, of_users, of_makers, .. } = self;
        write!(
            formatter,
            "{}, {of_processes:?} against {of_kernel:?}, beside {of_users:?}{of_makers:?}",
            self.fault.text()
        )
    }
}

impl Plan {
    /// The plan of round `number` of a run that began with `seed`.
    #[must_use]
    pub fn of(number: u64, seed: u64, options: &Options, has_mounts: bool) -> Self {
        let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number;
        let mut chance = fastrand::Rng::with_seed(seed);
        let faults: Vec<Fault> = Fault::ALL.into_iter().filter(|fault| has_mounts || !fault.needs_mounts()).collect();
        let turn = usize::try_from(number).unwrap_or(0) % faults.len();
        let choose = |all: &[Attack], chance: &mut fastrand::Rng| {
            let allowed = all.iter().copied().filter(|attack| options.only.is_empty() || options.only.contains(attack));
            let allowed: Vec<Attack> = allowed.collect();
            let number = chance.usize(1..=5).min(allowed.len());
            chance.choose_multiple(allowed, number)
        };
        let of_processes = choose(&Attack::OF_PROCESSES, &mut chance);
        let of_kernel = choose(&Attack::OF_KERNELS, &mut chance);
        let mut of_others = fastrand::Rng::with_seed(seed ^ 11);
        let of_users = choose(&Attack::OF_USERS, &mut of_others);
        let of_makers = choose(&Attack::OF_MAKERS, &mut of_others);
        Self {
            number,
            seed,
            fault: options.fault.unwrap_or(faults[turn]),
            is_over_before_end: chance.bool(),
            duration: options.round(),
            stall: options.stall(),
            has_mounts,
            of_processes,
            of_kernel,
            of_users,
            of_makers,
        }
    }

    fn setup(&self, name: &str, round: &Path, hostile_kernel: bool) -> VmSetup {
        let seed = self.seed ^ u64::from(hostile_kernel) << 50;
        let mut chance = fastrand::Rng::with_seed(seed ^ 7);
        let folder = round.join(name);
        let on_small_disk = self.fault == Fault::DiskFull && !hostile_kernel;
        let flight_recorder = self.fault == Fault::None && chance.u8(..3) == 0;
        let is_limited = self.fault != Fault::Kill && !flight_recorder && chance.u8(..3) == 0;
        VmSetup {
            name: name.into(),
            runtime: round.join(format!("{name}-run")),
            trace: if on_small_disk { round.join("disk/trace") } else { folder.join("trace") },
            folder,
            flight_recorder,
            kernel_rings: (4096 << chance.u32(..6), 4 << chance.u32(..3)),
            process_rings: (4096 << chance.u32(..4), 4 << chance.u32(..3)),
            process_slots: 12,
            max_size: (self.fault == Fault::MaxSize).then(|| (16 + chance.u64(..32)) << 20),
            limit: is_limited.then(|| 1000 << chance.u32(..8)),
            descriptors: if self.fault == Fault::Descriptors { FEW_DESCRIPTORS } else { DESCRIPTORS },
            burst: 1 << chance.u32(8..14),
            applications: if hostile_kernel { 0 } else { chance.usize(1..5) },
            attacks: if hostile_kernel { self.of_kernel.clone() } else { self.of_processes.clone() },
            hostile_kernel,
            seed,
            compression: (chance.u8(..3) == 0).then_some(Compression::Zstd),
        }
    }
}

/// A VM at work.
struct Vm {
    setup: VmSetup,
    tally: Tally,
    monitor: Child,
    output: BufReader<ChildStdout>,
    region: PathBuf,
    guest: Child,
    usage: Usage,
    begun: Instant,
    most_on_disk: u64,
    /// Memory that the region lies in.
    runtime: Option<SmallDisk>,
    /// Hostile kernels that have ended by themselves.
    restarts: u64,
}

impl Vm {
    fn begin(plan: &Plan, setup: VmSetup) -> anyhow::Result<Self> {
        fs::create_dir(&setup.folder)?;
        let file = setup.save()?;
        let tally = Tally::create(&setup.tally())?;
        let layout = setup.layout()?;
        let runtime = if plan.has_mounts {
            let room = if plan.fault == Fault::MemoryFull { 4 << 20 } else { 1 << 30 };
            Some(SmallDisk::mount(&setup.runtime, layout.size as u64 + room)?)
        } else {
            DirBuilder::new().mode(0o700).create(&setup.runtime)?;
            None
        };
        let log = File::create(setup.folder.join("monitor.log"))?;
        let mut monitor = Command::new(std::env::current_exe()?)
            .args(["role", "monitor"])
            .arg(&file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()?;
        let mut output = BufReader::new(monitor.stdout.take().context("the monitor has no output")?);
        let mut line = String::new();
        output.read_line(&mut line)?;
        let region = line.trim().strip_prefix("ready ").map(PathBuf::from);
        let region =
            region.with_context(|| format!("the recorder of {} does not begin: {}", setup.name, log_of(&setup)))?;
        if let (Some(runtime), Fault::MemoryFull) = (&runtime, plan.fault) {
            runtime.fill()?;
        }
        let guest = guest(&setup, &region, 0)?;
        let usage = Usage::default();
        let begun = Instant::now();
        Ok(Self { setup, tally, monitor, output, region, guest, usage, begun, most_on_disk: 0, runtime, restarts: 0 })
    }

    /// Looks at what the recorder takes, and whether it is there.
    fn look(&mut self, is_stalled: bool) -> anyhow::Result<bool> {
        self.usage.look(self.monitor.id());
        if self.setup.max_size.is_some() && !is_stalled {
            self.most_on_disk = self.most_on_disk.max(on_disk(&self.setup.trace));
        }
        if self.setup.hostile_kernel && self.guest.try_wait()?.is_some() && !self.tally.is_stopping() {
            // One that lost its way in its own rubbish: another one goes on.
            self.restarts += 1;
            self.guest = guest(&self.setup, &self.region, self.restarts)?;
        }
        Ok(self.monitor.try_wait()?.is_none())
    }

    /// Has the guest end; says why an honest one failed.
    fn end_guest(&mut self) -> Result<(), String> {
        self.tally.stop();
        let status = wait(&mut self.guest).map_err(|error| error.to_string())?;
        if self.setup.hostile_kernel || status.success() {
            Ok(())
        } else {
            Err(format!("the honest guest ended with {status}"))
        }
    }

    /// Has the recorder end, as SIGTERM has `strata run`; also says after how many ms its process was gone.
    fn end(&mut self) -> anyhow::Result<(Ending, u64)> {
        let pid = self.monitor.id();
        let begun = Instant::now();
        send(pid, libc::SIGTERM);
        let (done, is_done) = std::sync::mpsc::channel::<()>();
        let watchdog = std::thread::spawn(move || {
            if is_done.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                send(pid, libc::SIGABRT);
            }
        });
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        read?;
        self.monitor.wait()?;
        let took_ms = u64::try_from(begun.elapsed().as_millis())?;
        drop(done);
        watchdog.join().map_err(|_| anyhow::anyhow!("the watchdog panicked"))?;
        let ending =
            serde_json::from_str(&line).with_context(|| format!("the recorder died: {}", log_of(&self.setup)))?;
        Ok((ending, took_ms))
    }
}

fn guest(setup: &VmSetup, region: &Path, restarts: u64) -> anyhow::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["role", if setup.hostile_kernel { "kernel" } else { "guest" }]);
    command.arg(setup.folder.join("setup.json")).arg(region).stdin(Stdio::null());
    if setup.hostile_kernel {
        command.arg((setup.seed ^ restarts << 32).to_string()).stderr(Stdio::null());
    } else {
        command.stderr(File::create(setup.folder.join("guest.log"))?);
    }
    Ok(command.spawn()?)
}

fn log_of(setup: &VmSetup) -> String {
    fs::read_to_string(setup.folder.join("monitor.log")).unwrap_or_default().trim().replace('\n', "; ")
}

fn wait(child: &mut Child) -> anyhow::Result<std::process::ExitStatus> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill()?;
    Ok(child.wait()?)
}

/// Runs the round `plan` in `folder`, and notes on `board` what came of it.
///
/// # Errors
/// When the round cannot be run; a broken promise is not an error.
pub fn run(plan: &Plan, folder: &Path, board: &mut Board) -> anyhow::Result<()> {
    let round = folder.join(format!("round-{}", plan.number));
    fs::create_dir(&round)?;
    let disk = match plan.fault {
        Fault::DiskFull => Some(SmallDisk::mount(&round.join("disk"), 64 << 20)?),
        _ => None,
    };
    let mut vms = Vec::new();
    for (name, hostile_kernel) in [(OWN_NAME, false), ("hostile", true)] {
        vms.push(Vm::begin(plan, plan.setup(name, &round, hostile_kernel))?);
    }
    let broken_before = board.broken();
    let others = Others::begin(plan, &round, &vms[0].setup)?;
    let is_up = work(plan, &mut vms, disk.as_ref())?;
    board.rounds += 1;
    for (vm, is_up) in vms.iter_mut().zip(is_up) {
        let before = board.broken();
        let guest_ended = vm.end_guest();
        board.check(Promise::Exact, guest_ended);
        let by = if vm.setup.hostile_kernel { By::Kernel } else { By::Process };
        if !is_up {
            board.check(Promise::Up, Err(format!("the recorder of {} died: {}", vm.setup.name, log_of(&vm.setup))));
        } else if plan.fault == Fault::Kill {
            judge::killed(&vm.setup, &vm.tally, &vm.region, board)?;
        } else {
            finish(plan, vm, board)?;
        }
        let is_broken = u64::from(board.broken() > before);
        for &attack in &vm.setup.attacks {
            let struck = board.attacks.entry((by, attack)).or_default();
            struck.strokes += vm.tally.strokes(attack);
            struck.rounds += 1;
            struck.broken += is_broken;
        }
    }
    // What is done beside them ends with the honest guest.
    others.map_or(Ok(()), |others| others.end(plan, board))?;
    forge(plan, &round, &vms[0].setup.trace, board)?;
    let fault = board.faults.entry(plan.fault.text()).or_default();
    fault.0 += 1;
    let is_broken = board.promises.values().map(|kept| kept.broken).sum::<u64>() > broken_before;
    if let Some(fault) = board.faults.get_mut(plan.fault.text()) {
        fault.1 += u64::from(is_broken);
    }
    if is_broken && disk.is_some() {
        // What lies there goes with it.
        Command::new("cp").arg("-r").arg(round.join("disk/trace")).arg(round.join("trace-of-disk")).status()?;
    }
    drop(vms);
    drop(disk);
    if is_broken {
        println!("the recordings are kept in {}", keep(&round).display());
    } else {
        fs::remove_dir_all(&round)?;
    }
    Ok(())
}

/// Another user, and what is done beside it.
struct Others {
    stranger: Child,
    beside: Child,
}

impl Others {
    /// Begins beside the VM of `setup`; nothing where this is not root, who alone is another user, or where that VM dies.
    fn begin(plan: &Plan, round: &Path, setup: &VmSetup) -> anyhow::Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() || plan.fault == Fault::Kill || plan.of_users.is_empty() {
            return Ok(None);
        }
        let folder = round.join("stranger-run");
        DirBuilder::new().mode(0o700).create(&folder)?;
        std::os::unix::fs::chown(&folder, Some(STRANGER), Some(STRANGER))?;
        let attacks: Vec<String> =
            plan.of_users.iter().filter_map(|attack| Some(attack.to_possible_value()?.get_name().to_owned())).collect();
        let role = |name: &str, log: &str| -> anyhow::Result<Command> {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["role", name]).stdin(Stdio::null()).stdout(Stdio::piped());
            command.stderr(File::create(round.join(log))?);
            Ok(command)
        };
        let mut command = role("stranger", "stranger.log")?;
        let mut stranger = command.arg(&folder).arg((plan.seed ^ 13).to_string()).arg(attacks.join(",")).spawn()?;
        let output = stranger.stdout.take().context("the stranger has no output")?;
        BufReader::new(output).read_line(&mut String::new())?;
        let mut command = role("beside", "beside.log")?;
        command.arg(setup.folder.join("setup.json")).arg(&folder).arg(stranger.id().to_string()).arg(attacks.join(","));
        Ok(Some(Self { stranger, beside: command.spawn()? }))
    }

    /// Notes on `board` what came of it, once the guest of its VM has been told to end.
    fn end(mut self, plan: &Plan, board: &mut Board) -> anyhow::Result<()> {
        let mut line = String::new();
        BufReader::new(self.beside.stdout.take().context("it has no output")?).read_line(&mut line)?;
        let status = wait(&mut self.beside)?;
        self.stranger.kill()?;
        self.stranger.wait()?;
        let before = board.broken();
        let seen: Seen = match serde_json::from_str(&line) {
            Ok(seen) => seen,
            Err(_) => {
                board.check(Promise::Found, Err(format!("what looks beside another user's VMs ended with {status}")));
                Seen::default()
            }
        };
        let lost = seen.lost.first().map_or(Ok(()), |what| Err(what.clone()));
        board.check_each(Promise::Found, seen.looks, lost);
        let acting = seen.acting.first().map_or(Ok(()), |what| Err(what.clone()));
        board.check_each(Promise::Harmless, seen.texts, acting);
        board.check_limit(Promise::Patience, seen.worst_ms, ANSWER_LIMIT, "another user");
        let is_broken = u64::from(board.broken() > before);
        for &attack in &plan.of_users {
            let struck = board.attacks.entry((By::User, attack)).or_default();
            struck.strokes += seen.strokes.get(&attack).copied().unwrap_or_default();
            struck.rounds += 1;
            struck.broken += is_broken;
        }
        Ok(())
    }
}

/// Forges recordings out of the one in `trace`, and judges how each is read.
fn forge(plan: &Plan, round: &Path, trace: &Path, board: &mut Board) -> anyhow::Result<()> {
    let mut chance = fastrand::Rng::with_seed(plan.seed ^ 17);
    for &attack in &plan.of_makers {
        let before = board.broken();
        for number in 0..FORGERIES {
            let folder = round.join(format!("forged-{number}"));
            let judged = forgery::judge(trace, &folder, &mut chance)?;
            let limit = u64::try_from(forgery::READ_LIMIT.as_millis())?;
            board.check_limit(Promise::Forged, judged.took_ms, limit, "a forged recording");
            board.check(Promise::Forged, judged.fault.map_or(Ok(()), Err));
            board.check(
                Promise::Harmless,
                if judged.is_harmless { Ok(()) } else { Err(format!("of {}", folder.display())) },
            );
            if board.broken() == before {
                fs::remove_dir_all(&folder)?;
            }
        }
        let is_broken = u64::from(board.broken() > before);
        let struck = board.attacks.entry((By::Maker, attack)).or_default();
        struck.strokes += FORGERIES;
        struck.rounds += 1;
        struck.broken += is_broken;
    }
    Ok(())
}

/// Moves the folder of a round where it outlives this program.
fn keep(round: &Path) -> PathBuf {
    let name = format!("torture-broken-{}-{}", std::process::id(), round.file_name().unwrap_or_default().display());
    let kept = round.parent().and_then(Path::parent).unwrap_or(round).join(name);
    // Where that fails, the folder goes with the others.
    let _ = fs::rename(round, &kept);
    kept
}

/// Lets the guests work while something fails; says for each VM whether its recorder stayed up.
fn work(plan: &Plan, vms: &mut [Vm], disk: Option<&SmallDisk>) -> anyhow::Result<Vec<bool>> {
    let mut chance = fastrand::Rng::with_seed(plan.seed ^ 9);
    let begun = Instant::now();
    let mut duration = plan.duration;
    let earliest = plan.duration.mul_f64(0.5).max(YOUNG);
    let strike = earliest + plan.duration.mul_f64(0.85).saturating_sub(earliest).mul_f64(chance.f64());
    let (mut has_struck, mut is_over) = (false, false);
    let mut is_up = vec![true; vms.len()];
    let mut resume = None;
    while begun.elapsed() < duration {
        std::thread::sleep(LOOK);
        for (vm, is_up) in vms.iter_mut().zip(&mut is_up) {
            *is_up &= vm.look(resume.is_some())? || has_struck && plan.fault == Fault::Kill;
        }
        if !has_struck && begun.elapsed() >= strike {
            has_struck = true;
            match plan.fault {
                Fault::DiskFull => disk.map_or(Ok(()), SmallDisk::fill)?,
                Fault::Stall => {
                    vms.iter().for_each(|vm| send(vm.monitor.id(), libc::SIGSTOP));
                    resume = Some(Instant::now() + plan.stall);
                    duration += plan.stall;
                }
                Fault::Kill => {
                    for vm in vms.iter_mut() {
                        // Each at an instant of its own.
                        std::thread::sleep(Duration::from_micros(chance.u64(..20_000)));
                        vm.monitor.kill()?;
                        vm.monitor.wait()?;
                    }
                }
                Fault::None | Fault::MemoryFull | Fault::Descriptors | Fault::MaxSize => {}
            }
        }
        if plan.is_over_before_end && resume.is_some_and(|at| Instant::now() >= at) {
            resume = None;
            vms.iter().for_each(|vm| send(vm.monitor.id(), libc::SIGCONT));
        }
        if plan.is_over_before_end && !is_over && begun.elapsed() > plan.duration.mul_f64(0.9) {
            is_over = true;
            disk.iter().for_each(|disk| disk.make_room());
        }
    }
    if resume.is_some() {
        // Its end finds the rings full.
        vms.iter().for_each(|vm| send(vm.monitor.id(), libc::SIGCONT));
    }
    Ok(is_up)
}

/// Has the recorder of a VM end, and judges it and its recording.
fn finish(plan: &Plan, vm: &mut Vm, board: &mut Board) -> anyhow::Result<()> {
    let elapsed = vm.begun.elapsed();
    vm.look(false)?;
    let is_memory_full = plan.fault == Fault::MemoryFull && !plan.is_over_before_end;
    if let (Some(runtime), Fault::MemoryFull, false) = (&vm.runtime, plan.fault, is_memory_full) {
        // The copy of the manifest beside the region is all that had no room.
        runtime.make_room();
    }
    let (ending, took_ms) = match vm.end() {
        Ok(ended) => ended,
        Err(error) => {
            board.check(Promise::Up, Err(format!("{error:#}")));
            return Ok(());
        }
    };
    board.check(Promise::Up, Ok(()));
    let name = &vm.setup.name;
    board.check_limit(Promise::Stop, took_ms, STOP_LIMIT, name);
    board.ends.entry(plan.fault.text()).or_default().push(took_ms);
    let (answers, worst) = vm.tally.answers();
    if plan.fault != Fault::Stall {
        board.check_limit(Promise::Answers, worst / 1000, ANSWER_LIMIT, name);
    }
    board.check(Promise::Answers, if answers > 0 { Ok(()) } else { Err("it never answered".into()) });
    board.check_limit(Promise::Memory, vm.usage.memory_kib, MEMORY_LIMIT, name);
    board.check_limit(Promise::Descriptors, vm.usage.descriptors * 100 / vm.setup.descriptors, 100, name);
    let hundredths = u64::try_from(elapsed.as_millis() / 10)?.max(1);
    board.processor = board.processor.max(vm.usage.processor * 100 / hundredths);
    let manifest = fs::metadata(vm.setup.trace.join("session.json")).map_or(0, |metadata| metadata.len());
    board.check_limit(Promise::Manifest, manifest >> 10, MANIFEST_LIMIT, name);
    if let Some(limit) = vm.setup.max_size {
        let most = vm.most_on_disk.max(on_disk(&vm.setup.trace));
        board.check_limit(Promise::Disk, most * 100 / limit, 100, name);
    }
    let escapes = vm.tally.escapes();
    board.check(Promise::Apart, if escapes == 0 { Ok(()) } else { Err(format!("{escapes} children had them")) });
    let on_full_disk = plan.fault == Fault::DiskFull && !vm.setup.hostile_kernel;
    if on_full_disk {
        let log = log_of(&vm.setup);
        let is_reported = ending.missing.iter().any(|line| line.contains("ends early")) || log.contains("ends early");
        board.check(Promise::Reported, if is_reported { Ok(()) } else { Err(format!("{name}: {ending:?}, {log}")) });
    }
    if let Some(error) = ending.error.as_ref().filter(|_| !on_full_disk && !is_memory_full) {
        board.check(Promise::Up, Err(format!("the recording of {name} is not complete: {error}")));
    }
    judge::finished(&vm.setup, &vm.tally, &ending, elapsed, on_full_disk, board)
}
