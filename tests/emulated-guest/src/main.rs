//! Runs a guest on a processor that QEMU emulates (TCG), and records it through a trace region that it has as a device: for
//! tests of what happens inside of a guest, on machines without KVM and on kernels that are too slow for, or no part of, a
//! host that is emulated itself. Its options are like those of `strata run`; `strata ctl` finds the guest by its
//! name.
//!
//! The guest's first serial port is this program's standard input and output. On its second one it has to say something every
//! few seconds (`--heartbeat-limit`). Exits with 0 when the guest has powered off, or was stopped by `strata ctl`.

mod machine;
mod recording;

use anyhow::{Context, bail, ensure};
use clap::Parser;
use machine::{Ending, Machine, Parts};
use recording::{GuestRecording, Order};
use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::time::Duration;
use strata_clock::{HostClock, HostTime};
use strata_machine::probe_kvm;
use strata_recorder::control::directory::{self, VmDescription, VmDirectory};
use strata_recorder::control::protocol::Mode;
use vmm::agent::{self, Start};
use vmm::cli::{CreateArgs, RegionCommand};
use vmm::region_command;
use vmm::run::{KERNEL_RINGS, PROCESS_SLOTS};

/// What to run.
#[derive(Debug, Parser)]
struct Options {
    /// Name of the guest
    #[arg(long, default_value = "emulated")]
    name: String,
    /// The guest's kernel: bzImage or ELF
    #[arg(long)]
    kernel: PathBuf,
    /// The guest's initrd
    #[arg(long)]
    initrd: PathBuf,
    /// The guest's kernel command line; the rate of its TSC is added
    #[arg(long)]
    cmdline: String,
    /// Number of vCPUs
    #[arg(long, default_value_t = 2)]
    cpus: u32,
    /// RAM, MiB
    #[arg(long, default_value_t = 512)]
    memory: u64,
    /// The agent's kernel module, brought along in memory
    #[arg(long)]
    agent: Option<PathBuf>,
    /// A raw disk image; may be given several times
    #[arg(long = "disk")]
    disks: Vec<PathBuf>,
    /// Where the recording goes; without it the guest has no trace region, unless --region gives it one
    #[arg(long)]
    trace: Option<PathBuf>,
    /// The file of a region that nobody records
    #[arg(long, conflicts_with = "trace")]
    region: Option<PathBuf>,
    /// Which events are recorded
    #[arg(long, default_value = "default")]
    events: String,
    /// What a full ring does: discard or flight-recorder
    #[arg(long, default_value_t = Mode::Discard)]
    mode: Mode,
    /// Sub-buffers of each ring of the guest's kernel
    #[arg(long, default_value_t = KERNEL_RINGS.1)]
    sub_buffers: u32,
    /// Seconds after which a guest that says nothing on its second serial port is taken for dead
    #[arg(long, default_value_t = 120)]
    heartbeat_limit: u64,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let clock = HostClock::observe(probe_kvm().tsc_khz);
    ensure!(clock.time == HostTime::Tsc, "the emulated TSC is this machine's, which its kernel has given up");
    let description = VmDescription {
        memory: options.memory << 20,
        trace: options.trace.as_deref().map(std::path::absolute).transpose()?.map(Into::into),
        ..VmDescription::of_this_process(&options.name, options.cpus)
    };
    let folder = VmDirectory::create(&directory::runtime_folder()?, &description)?;
    let region = match &options.trace {
        Some(_) => Some(create_region(&options, folder.region())?),
        None => options.region.clone(),
    };

    let mut machine = Machine::prepare(folder.path(), parts(&options, &clock, folder.path(), region.clone())?)?;
    let tsc_offset = machine.start()?;
    let limit = Duration::from_secs(options.heartbeat_limit);
    let ending = match (region, &options.trace) {
        (Some(region), Some(trace)) => {
            let order = Order { region, trace, events: &options.events, mode: options.mode, tsc_offset };
            let recording = GuestRecording::start(description, clock, &order, &folder.socket(), machine.stopper()?)?;
            let ending = machine.wait(limit)?;
            recording.finish(&ending)?;
            ending
        }
        _ => machine.wait(limit)?,
    };
    match ending {
        Ending::PoweredOff | Ending::Stopped => Ok(()),
        other => bail!("{other}"),
    }
}

/// Makes the region's file `path`.
fn create_region(options: &Options, path: PathBuf) -> anyhow::Result<PathBuf> {
    region_command::run(&RegionCommand::Create(CreateArgs {
        file: path.clone(),
        cpus: options.cpus,
        size: None,
        mode: options.mode,
        sub_buffer_size: KERNEL_RINGS.0,
        sub_buffers: options.sub_buffers,
        process_slots: PROCESS_SLOTS,
    }))?;
    Ok(path)
}

/// What the machine is made of. The agent goes into an initrd of its own in `folder`.
fn parts(options: &Options, clock: &HostClock, folder: &Path, region: Option<PathBuf>) -> anyhow::Result<Parts> {
    // The kernel would measure the rate against an emulated timer, and distrust it.
    let rate = format!("tsc_early_khz={} tsc=reliable", clock.frequency / 1000);
    let (initrd, cmdline) = match &options.agent {
        None => (options.initrd.clone(), options.cmdline.clone()),
        Some(module) => {
            let read = |path: &Path| fs::read(path).with_context(|| format!("cannot read '{}'", path.display()));
            let mut image = read(&options.initrd)?;
            let start = Start::of(&options.cmdline, Some(Cursor::new(&image)));
            agent::append(&mut image, &agent::overlay(&read(module)?, &start));
            let initrd = folder.join("initrd");
            fs::write(&initrd, image)?;
            (initrd, agent::append_cmdline(&options.cmdline, &start, None))
        }
    };
    Ok(Parts {
        kernel: options.kernel.clone(),
        initrd,
        cmdline: format!("{rate} {cmdline}"),
        cpus: options.cpus,
        memory_mib: options.memory,
        disks: options.disks.clone(),
        region,
    })
}
