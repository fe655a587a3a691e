//! The command line.

use crate::agent_command::AgentArgs;
use crate::control::protocol::{Mode, Request};
use crate::machine::DiskConfig;
use crate::run::{Agent, KERNEL_RINGS, PROCESS_SLOTS, RunRequest};
use crate::tracing::selection::{self, Layer};
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use shared_ring::layout::{
    Geometry, MAX_PROCESS_SLOTS, MAX_SUB_BUFFER_SIZE, MAX_SUB_BUFFERS, MIN_SUB_BUFFER_SIZE, MIN_SUB_BUFFERS,
};
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use trace_merge::events::parse_seconds;
use trace_merge::match_rule::MatchRule;
use trace_merge::report::ReportOptions;
use trace_merge::session::{LayerKind, is_vm_name};

/// Longest delay of a slow disk, ms: a guest gives up a request after 30 s.
const MAX_DELAY_MS: u64 = 10_000;

/// Runs virtual machines and traces every layer of them on one clock.
#[derive(Debug, Parser)]
#[command(
    name = "strata",
    version,
    max_term_width = 110,
    after_help = "Examples:\n  \
        strata doctor\n  \
        strata run --kernel vmlinuz --initrd initrd.img --cpus 2 --memory 1G --agent strata.ko --trace trace\n  \
        strata report trace\n  \
        strata events trace --layer guest-kernel --from 1.5 --to 1.6\n  \
        strata check trace"
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a guest; with --trace, record every layer of it
    Run(RunArgs),
    /// List the records of a trace, all layers in time order
    Events(EventsArgs),
    /// Report on a trace: a summary, where time went, or what tasks, locks, interrupts and disks did
    Report(ReportArgs),
    /// Check a trace: causality between its layers, order, pairs of events, counts of losses
    Check(ReadArgs),
    /// Make one trace of several: of VMs on one host, or of two hosts by matched events
    Merge(MergeArgs),
    /// List the VMs that are running, and those whose process died with a trace to recover
    Ps(PsArgs),
    /// Ask a running VM for its status, a snapshot, or another session
    Ctl(CtlArgs),
    /// Make a trace of the trace region of a VM whose process was killed
    Recover(RecoverArgs),
    /// Build the guest's kernel module, or put it into an initrd
    Agent(AgentArgs),
    /// Say what this machine can do, what it cannot, and what to do about it
    Doctor(DoctorArgs),
    /// Print what a shell needs to complete command lines of strata
    Completions(CompletionsArgs),
    /// Write the manual pages into a folder
    #[command(hide = true)]
    Manual(ManualArgs),
}

/// Arguments of `strata run`.
#[derive(Debug, Args)]
#[command(after_help = "The guest's console is standard input and output; Ctrl-C stops the guest and completes the \
    trace. Exit status: 0 when the guest powered off, rebooted or was stopped; 1 when it panicked, crashed or could \
    not be run.\n\nExamples:\n  \
    strata run --kernel vmlinuz --initrd initrd.img --cmdline 'console=ttyS0'\n  \
    strata run --kernel vmlinux --disk root.img --cmdline 'console=ttyS0 root=/dev/vda' --agent strata.ko --trace trace\n  \
    strata run --kernel vmlinuz --initrd initrd.img --agent strata.ko --trace trace --events 'host:kvm:*,guest:sched:*,user:*'")]
pub struct RunArgs {
    /// Guest kernel: bzImage or ELF vmlinux
    #[arg(long, value_name = "FILE")]
    pub kernel: PathBuf,
    /// Guest initrd
    #[arg(long, value_name = "FILE")]
    pub initrd: Option<PathBuf>,
    /// Number of vCPUs
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub cpus: u32,
    /// Guest memory in bytes, or with K, M, G
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = parse_size)]
    pub memory: u64,
    /// Raw disk image for a virtio block device; ',ro' makes it read-only. May be repeated
    #[arg(long = "disk", value_name = "FILE[,ro]", value_parser = parse_disk)]
    pub disks: Vec<DiskConfig>,
    /// Guest kernel command line
    #[arg(long, value_name = "STR", default_value = "console=ttyS0 panic=-1")]
    pub cmdline: String,
    /// Record a trace into this new folder
    #[arg(long, value_name = "DIR")]
    pub trace: Option<PathBuf>,
    /// Kernel module that records in the guest; put into the initrd's memory, the guest itself is not changed
    #[arg(long, value_name = "FILE", requires = "trace")]
    pub agent: Option<PathBuf>,
    /// Put nothing into the guest
    #[arg(long, conflicts_with = "agent")]
    pub no_agent: bool,
    /// Events to record: globs LAYER:GROUP:EVENT (layers host, vmm, guest, user; `strata events --list` names events),
    /// '!' takes away; presets minimal, default, io, net, all
    #[arg(long, value_name = "GLOBS", default_value = selection::DEFAULT, requires = "trace")]
    pub events: String,
    /// Samples of each vCPU per second while guest:strata:sample is recorded: what it executes, with its stack if
    /// guest:strata:stack is recorded too
    #[arg(long, value_name = "HZ", value_parser = clap::value_parser!(u32).range(1..=20_000), requires = "agent")]
    pub sample_frequency: Option<u32>,
    /// What happens when a ring is full: discard drops new records and counts them, flight-recorder overwrites the
    /// oldest and writes the trace at the end (and by `strata ctl VM snapshot DIR`)
    #[arg(long, value_name = "MODE", default_value = "discard", requires = "trace")]
    pub mode: Mode,
    /// Size of a sub-buffer of the guest kernel's rings: a power of two, 4K to 4M
    #[arg(long, value_name = "SIZE", default_value_t = KERNEL_RINGS.0, value_parser = parse_sub_buffer_size, requires = "trace")]
    pub sub_buffer_size: u64,
    /// Sub-buffers of each of the guest kernel's rings: a power of two, 2 to 256
    #[arg(long, value_name = "N", default_value_t = KERNEL_RINGS.1, value_parser = parse_sub_buffers, requires = "trace")]
    pub sub_buffers: u32,
    /// Processes of the guest that can record at the same time, up to 512; each takes 1 MiB for each vCPU while it does
    #[arg(long, value_name = "N", default_value_t = PROCESS_SLOTS, value_parser = clap::value_parser!(u32).range(..=i64::from(MAX_PROCESS_SLOTS)), requires = "trace")]
    pub process_slots: u32,
    /// Name of the VM in the trace
    #[arg(long, value_name = "NAME", default_value = "vm0", value_parser = parse_vm_name)]
    pub name: String,
}

impl From<RunArgs> for RunRequest {
    fn from(args: RunArgs) -> Self {
        let agent = match (args.agent, args.no_agent) {
            (Some(module), _) => Agent::Module(module),
            (None, true) => Agent::None,
            (None, false) => Agent::Unspecified,
        };
        #[allow(clippy::expect_used, reason = "the parsers of both arguments let nothing pass that is no geometry")]
        let geometry = Geometry::new(args.sub_buffer_size, args.sub_buffers).expect("arguments make a geometry");
        Self {
            geometry,
            process_slots: args.process_slots,
            sample_frequency: args.sample_frequency,
            mode: args.mode.into(),
            name: args.name,
            kernel: args.kernel,
            initrd: args.initrd,
            cpus: args.cpus,
            memory: args.memory,
            disks: args.disks,
            cmdline: args.cmdline,
            trace: args.trace,
            agent,
            events: args.events,
        }
    }
}

/// Arguments of `strata ps`.
#[derive(Debug, Args)]
pub struct PsArgs {
    /// JSON in place of text
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `strata ctl`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    strata ctl vm0 status\n  \
    strata ctl vm0 snapshot before-the-crash\n  \
    strata ctl vm0 session create io --events 'guest:block:*' --trace io-trace\n  \
    strata ctl vm0 session start io\n  \
    strata ctl vm0 session events main 'default,guest:net:*'")]
pub struct CtlArgs {
    /// Name of the VM, or process id as `strata ps` shows it
    pub vm: String,
    /// What to do
    #[command(subcommand)]
    pub command: CtlCommand,
    /// JSON in place of text
    #[arg(long, global = true)]
    pub json: bool,
}

/// What `strata ctl` asks a VM for.
#[derive(Debug, Subcommand)]
pub enum CtlCommand {
    /// Say how the VM and its recording are
    Status,
    /// Write what the flight recorder holds into a new folder; tracing goes on
    Snapshot {
        /// The folder
        dir: PathBuf,
        /// The session [default: the one that the VM was started with]
        #[arg(long, value_name = "NAME")]
        session: Option<String>,
    },
    /// Stop the guest where it is; it goes on with resume
    Pause,
    /// Let a paused guest go on
    Resume,
    /// Write out what the rings hold at this moment
    Flush,
    /// Make, start, stop or end a tracing session of the guest's kernel
    #[command(subcommand)]
    Session(SessionCommand),
}

/// What `strata ctl VM session` asks for.
#[derive(Debug, Subcommand)]
pub enum SessionCommand {
    /// Make a session; it records once it is started
    Create {
        /// Its name
        name: String,
        /// What happens when a ring is full: discard (needs --trace) or flight-recorder
        #[arg(long, value_name = "MODE", default_value = "discard")]
        mode: Mode,
        /// Size of a sub-buffer: a power of two, 4K to 4M
        #[arg(long, value_name = "SIZE", value_parser = parse_sub_buffer_size)]
        sub_buffer_size: Option<u64>,
        /// Sub-buffers of each ring: a power of two, 2 to 256
        #[arg(long, value_name = "N", value_parser = parse_sub_buffers)]
        sub_buffers: Option<u32>,
        /// Events to record [default: those that the VM was started with]
        #[arg(long, value_name = "GLOBS")]
        events: Option<String>,
        /// Record into this new folder; in flight-recorder mode when the session ends
        #[arg(long, value_name = "DIR")]
        trace: Option<PathBuf>,
    },
    /// Begin to record, or go on
    Start {
        /// Name of the session
        name: String,
    },
    /// Record no more; what was recorded stays
    Stop {
        /// Name of the session
        name: String,
    },
    /// Record other events of the guest from now on; takes effect at once, without leaving the guest
    Events {
        /// Name of the session; 'main' is the one that the VM was started with
        name: String,
        /// Globs or presets, as for `strata run --events`; terms of other layers have no effect
        events: String,
    },
    /// End a session and complete its recording
    Destroy {
        /// Name of the session
        name: String,
    },
}

impl CtlCommand {
    /// The request to send, with absolute paths: the VM's process has another working directory.
    ///
    /// # Errors
    /// When a path is empty or there is no working directory.
    pub fn request(self) -> io::Result<Request> {
        Ok(match self {
            Self::Status => Request::Status,
            Self::Snapshot { dir, session } => Request::Snapshot { dir: std::path::absolute(dir)?, session },
            Self::Pause => Request::Pause,
            Self::Resume => Request::Resume,
            Self::Flush => Request::Flush,
            Self::Session(SessionCommand::Create { name, mode, sub_buffer_size, sub_buffers, events, trace }) => {
                let trace = trace.map(std::path::absolute).transpose()?;
                Request::SessionCreate { name, mode, sub_buffer_size, sub_buffers, events, trace }
            }
            Self::Session(SessionCommand::Start { name }) => Request::SessionStart { name },
            Self::Session(SessionCommand::Stop { name }) => Request::SessionStop { name },
            Self::Session(SessionCommand::Events { name, events }) => Request::SessionEvents { name, events },
            Self::Session(SessionCommand::Destroy { name }) => Request::SessionDestroy { name },
        })
    }
}

/// Arguments of `strata recover`.
#[derive(Debug, Args)]
#[command(after_help = "`strata ps` names the region files of VMs whose process died.\n\nExample:\n  \
    strata recover /run/strata/vm0-4242/region -o recovered")]
pub struct RecoverArgs {
    /// File of the trace region, or the folder that it lies in
    pub region: PathBuf,
    /// New folder for the trace
    #[arg(short = 'o', long = "out", value_name = "DIR")]
    pub out: PathBuf,
}

/// Arguments of `strata events`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    strata events trace | less\n  \
    strata events trace --layer guest-kernel --layer host-kernel --from 0.2 --to 0.25\n  \
    strata events trace --json | jq 'select(.event == \"kvm:kvm_exit\")'\n  \
    strata events trace --layer guest-kernel --count\n  \
    strata events --list guest --agent strata.ko")]
pub struct EventsArgs {
    /// Trace folder
    #[arg(required_unless_present = "list")]
    pub trace: Option<PathBuf>,
    /// In place of a trace's records, the events that can be recorded of a layer: host, vmm, guest (needs --agent) or user
    #[arg(long, value_name = "LAYER", conflicts_with_all = ["trace", "layers", "from", "to", "utc"])]
    pub list: Option<Layer>,
    /// Kernel module whose events are listed
    #[arg(long, value_name = "FILE", requires = "list")]
    pub agent: Option<PathBuf>,
    /// Only this layer: host-kernel, vmm, guest-kernel or guest-user. May be repeated
    #[arg(long = "layer", value_name = "LAYER")]
    pub layers: Vec<LayerKind>,
    /// Only records from this many seconds after the first one on
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub from: Option<Duration>,
    /// Only records up to this many seconds after the first one
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub to: Option<Duration>,
    /// Show UTC in place of seconds since the first record
    #[arg(long)]
    pub utc: bool,
    /// One JSON object per line
    #[arg(long)]
    pub json: bool,
    /// Only say how many records there are
    #[arg(long, conflicts_with = "utc")]
    pub count: bool,
}

/// Arguments of `strata report`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    override_usage = "strata report [--json] TRACE\n       strata report COMMAND [OPTIONS] TRACE",
    after_help = "Without a command it is the summary. A trace whose folder is named like a command is written ./NAME.\n\n\
    Examples:\n  \
    strata report trace\n  \
    strata report tasks trace --from 1.5 --to 2.5\n  \
    strata report exits trace --json\n  \
    strata report flows trace"
)]
pub struct ReportArgs {
    /// What is reported
    #[command(subcommand)]
    pub command: Option<ReportCommand>,
    /// Trace folder
    // Takes two, so that a command that does not exist is told apart from a trace.
    #[arg(value_name = "TRACE", required = true, num_args = 1..=2)]
    pub trace: Vec<PathBuf>,
    /// JSON in place of text
    #[arg(long)]
    pub json: bool,
}

impl ReportArgs {
    /// What is asked for; without a command the summary.
    ///
    /// # Errors
    /// What is wrong, in words, when the first word is neither a command nor all there is.
    pub fn into_command(self) -> Result<ReportCommand, String> {
        let mut words = self.trace.into_iter();
        match (self.command, words.next(), words.next()) {
            (Some(command), ..) => Ok(command),
            (None, Some(trace), None) => Ok(ReportCommand::Summary(ReadArgs { trace, json: self.json })),
            (None, first, _) => {
                let known = <ReportCommand as Subcommand>::augment_subcommands(clap::Command::new("report"));
                let names: Vec<_> = known.get_subcommands().map(|command| command.get_name().to_owned()).collect();
                let first = first.unwrap_or_default();
                Err(format!("no report is called '{}'; there are {}", first.display(), names.join(", ")))
            }
        }
    }
}

/// What `strata report` reports.
#[derive(Debug, Subcommand)]
pub enum ReportCommand {
    /// Layers, losses, exits by reason, the clock and its error bound
    Summary(ReadArgs),
    /// Where the time of each guest task went: running for real, stolen by the host and by whom, in exits, waiting
    Tasks(WindowArgs),
    /// Where the time of each vCPU went: in the guest, in KVM, in the VMM, preempted and by whom, halted
    Vcpus(WindowArgs),
    /// Why vCPUs left the guest, how long each reason took, in KVM and in the VMM
    Exits(WindowArgs),
    /// How long guest tasks took from being woken until they ran, and what happened meanwhile in the ten worst cases
    Wakeups(WindowArgs),
    /// System calls of each guest process: count, time, errors, page faults inside
    Syscalls(WindowArgs),
    /// Requests of virtio disks through every layer, and the time of each step
    Flows(WindowArgs),
    /// Where processor time went, by function, from samples
    Functions(FunctionsArgs),
    /// Interrupts handled, by CPU, and the delivery of those that KVM injects
    Irqs(WindowArgs),
    /// Waiting for locks of the guest's kernel, by lock and call site, and for futexes
    Locks(WindowArgs),
}

/// Arguments of `strata report functions`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strata report functions trace --symbols /srv/guest-root")]
pub struct FunctionsArgs {
    /// What every report on a part of a trace takes.
    #[command(flatten)]
    pub window: WindowArgs,
    /// Folder that holds the guest's root folder: its programs and libraries give their functions' names
    #[arg(long, value_name = "DIR")]
    pub symbols: Option<PathBuf>,
}

/// Arguments of a report on a part of a trace.
#[derive(Debug, Args)]
pub struct WindowArgs {
    /// Trace folder
    pub trace: PathBuf,
    /// Only what is this many seconds after the first record, or later
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub from: Option<Duration>,
    /// Only what is this many seconds after the first record, or earlier
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub to: Option<Duration>,
    /// JSON in place of text
    #[arg(long)]
    pub json: bool,
}

impl WindowArgs {
    /// What they mean for a report.
    #[must_use]
    pub const fn options(&self) -> ReportOptions {
        ReportOptions { json: self.json, from: self.from, to: self.to }
    }
}

/// Arguments of `strata report summary` and `strata check`.
#[derive(Debug, Args)]
pub struct ReadArgs {
    /// Trace folder
    pub trace: PathBuf,
    /// JSON in place of text
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `strata merge`.
#[derive(Debug, Args)]
#[command(
    after_help = "Traces of VMs that ran on one host since one boot are on one clock: their VMs are put side by side \
    (of two with one name the later is called NAME-2), and what their host-kernel layers both have is kept once.\n\n\
    Two traces of different hosts need rules. A rule says that each such event of the first trace happened before \
    (after) its counterpart in the second. There have to be rules for both directions, as for messages and their \
    answers. The result is on the clock of the first trace; its error bound and how it was found are in its \
    session.json.\n\nExamples:\n  \
    strata merge web db cache -o all\n  \
    strata merge a b -o both --match 'net:send before net:receive by seq' --match 'net:receive after net:send by seq'"
)]
pub struct MergeArgs {
    /// Trace whose clock the result has
    pub first: PathBuf,
    /// The other traces
    #[arg(required = true)]
    pub others: Vec<PathBuf>,
    /// Which events belong together: 'EVENT before|after EVENT [by FIELD[=FIELD],...]'. May be repeated
    #[arg(long = "match", value_name = "RULE")]
    pub rules: Vec<MatchRule>,
    /// New folder for the result
    #[arg(short, long, value_name = "DIR", default_value = "merged")]
    pub output: PathBuf,
}

/// Arguments of `strata doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// JSON in place of text
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `strata completions`.
#[derive(Debug, Args)]
#[command(after_help = "The Debian package brings them along; else, for one user's bash:\n  \
    mkdir -p ~/.local/share/bash-completion/completions\n  \
    strata completions bash > ~/.local/share/bash-completion/completions/strata")]
pub struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

/// Arguments of `strata manual`.
#[derive(Debug, Args)]
pub struct ManualArgs {
    /// The folder, which must exist
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

/// Parses a number of bytes: plain, or with a suffix K, M, G or T (powers of 1024).
fn parse_size(text: &str) -> Result<u64, String> {
    let refuse = || format!("'{text}' is no size: write a number of bytes, or one with K, M, G or T, as in 512M");
    let digits = text.trim_end_matches(|last: char| last.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        "T" | "TIB" => 40,
        _ => return Err(refuse()),
    };
    let number: u64 = digits.parse().map_err(|_| refuse())?;
    number.checked_mul(1 << shift).ok_or_else(refuse)
}

fn parse_sub_buffer_size(text: &str) -> Result<u64, String> {
    let size = parse_size(text)?;
    let fits = size.is_power_of_two() && (MIN_SUB_BUFFER_SIZE..=MAX_SUB_BUFFER_SIZE).contains(&size);
    if fits { Ok(size) } else { Err(format!("'{text}' is no sub-buffer size: write a power of two from 4K to 4M")) }
}

fn parse_sub_buffers(text: &str) -> Result<u32, String> {
    let count = text.parse().ok().filter(|count: &u32| count.is_power_of_two());
    let count = count.filter(|count| (MIN_SUB_BUFFERS..=MAX_SUB_BUFFERS).contains(count));
    count.ok_or_else(|| format!("'{text}' is no number of sub-buffers: write a power of two from 2 to 256"))
}

fn parse_disk(text: &str) -> Result<DiskConfig, String> {
    let mut disk = DiskConfig { path: text.into(), read_only: false, delay: Duration::ZERO };
    let mut rest = text;
    // Options from the end, so that a comma in the name of a file is none.
    while let Some((path, option)) = rest.rsplit_once(',') {
        match option.split_once('=') {
            None if option == "ro" => disk.read_only = true,
            Some(("delay", delay)) => disk.delay = parse_delay(delay)?,
            _ => break,
        }
        rest = path;
    }
    if rest.is_empty() {
        return Err("a disk needs a file: --disk FILE or --disk FILE,ro".into());
    }
    disk.path = rest.into();
    Ok(disk)
}

/// The delay of a slow disk: a number of milliseconds, such as `5ms`.
fn parse_delay(text: &str) -> Result<Duration, String> {
    let ms = text.strip_suffix("ms").and_then(|number| number.parse().ok()).filter(|ms| *ms <= MAX_DELAY_MS);
    let refusal =
        || format!("'{text}' is no delay of a disk: write milliseconds, up to {MAX_DELAY_MS}, as in 'delay=5ms'");
    ms.map(Duration::from_millis).ok_or_else(refusal)
}

fn parse_vm_name(text: &str) -> Result<String, String> {
    if is_vm_name(text) { Ok(text.into()) } else { Err("use letters, digits, '.', '_' and '-'".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn report_without_a_command_is_the_summary() {
        let report = |args: &[&str]| {
            let parsed = Cli::try_parse_from(["strata", "report"].iter().chain(args)).ok()?;
            if let Command::Report(report) = parsed.command { Some(report.into_command()) } else { None }
        };

        let plain = report(&["trace", "--json"]).unwrap().unwrap();
        let named = report(&["summary", "trace"]).unwrap().unwrap();

        assert!(matches!(plain, ReportCommand::Summary(args) if args.json && args.trace == *"trace"));
        assert!(matches!(named, ReportCommand::Summary(args) if args.trace == *"trace"));
        assert!(report(&[]).is_none() && report(&["summary"]).is_none());
    }

    #[test]
    fn report_that_does_not_exist_is_refused_with_those_that_do() {
        let parsed = Cli::try_parse_from(["strata", "report", "taks", "trace"]).unwrap();
        let Command::Report(report) = parsed.command else { panic!("another command") };

        let error = report.into_command().unwrap_err();

        assert!(error.starts_with("no report is called 'taks'; there are summary, tasks, vcpus, exits"), "{error}");
    }

    #[test]
    fn sizes_take_suffixes() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("512M"), Ok(512 << 20));
        assert_eq!(parse_size("2g"), Ok(2 << 30));
        assert!(parse_size("12Q").is_err() && parse_size("M").is_err() && parse_size("99999999999T").is_err());
    }

    #[test]
    fn disk_may_be_read_only_and_slow() {
        let disk = |path: &str, read_only, ms| {
            Ok(DiskConfig { path: path.into(), read_only, delay: Duration::from_millis(ms) })
        };

        assert_eq!(parse_disk("a.img"), disk("a.img", false, 0));
        assert_eq!(parse_disk("a.img,ro"), disk("a.img", true, 0));
        assert_eq!(parse_disk("a.img,delay=5ms"), disk("a.img", false, 5));
        assert_eq!(parse_disk("a,b.img,delay=20ms,ro"), disk("a,b.img", true, 20));
        assert_eq!(parse_disk("a,b"), disk("a,b", false, 0));
        assert!(parse_disk(",ro").is_err());
        assert!(parse_disk("a.img,delay=5").unwrap_err().contains("'delay=5ms'"));
        assert!(parse_disk("a.img,delay=99999999ms").is_err());
    }

    #[test]
    fn match_rule_is_read_and_refused_by_the_command_line() {
        assert!(Cli::try_parse_from(["strata", "merge", "a", "b", "--match", "x before y by z"]).is_ok());
        let error = Cli::try_parse_from(["strata", "merge", "a", "b", "--match", "x y"]).unwrap_err().to_string();
        assert!(error.contains("'x y' is no rule"), "{error}");
    }

    #[test]
    fn agent_needs_a_trace() {
        assert!(Cli::try_parse_from(["strata", "run", "--kernel", "k", "--agent", "a.ko"]).is_err());
        assert!(Cli::try_parse_from(["strata", "run", "--kernel", "k", "--agent", "a.ko", "--trace", "t"]).is_ok());
    }

    #[test]
    fn geometry_is_checked_before_anything_runs() {
        assert_eq!(parse_sub_buffer_size("64K"), Ok(65536));
        assert!(parse_sub_buffer_size("100K").unwrap_err().contains("4K to 4M"));
        assert!(parse_sub_buffer_size("8M").is_err() && parse_sub_buffer_size("2K").is_err());
        assert_eq!(parse_sub_buffers("256"), Ok(256));
        assert!(parse_sub_buffers("3").unwrap_err().contains("2 to 256"));
        assert!(
            parse_sub_buffers("1").is_err() && parse_sub_buffers("512").is_err() && parse_sub_buffers("x").is_err()
        );
    }

    #[test]
    fn mode_needs_a_trace_and_a_name_that_exists() {
        let run = ["strata", "run", "--kernel", "k", "--mode"];

        assert!(Cli::try_parse_from(run.into_iter().chain(["flight-recorder"])).is_err());
        assert!(Cli::try_parse_from(run.into_iter().chain(["flight", "--trace", "t"])).is_err());
        assert!(Cli::try_parse_from(run.into_iter().chain(["flight-recorder", "--trace", "t"])).is_ok());
    }

    #[test]
    fn every_command_has_a_manual_page() {
        let folder = tempfile::tempdir().unwrap();

        clap_mangen::generate_to(Cli::command(), folder.path()).unwrap();

        let visible = Cli::command();
        let visible = visible.get_subcommands().filter(|command| !command.is_hide_set());
        for command in visible {
            let page = std::fs::read_to_string(folder.path().join(format!("strata-{}.1", command.get_name()))).unwrap();
            assert!(page.contains(".SH DESCRIPTION"), "{page}");
        }
    }

    #[test]
    fn paths_of_requests_are_absolute() {
        let request = CtlCommand::Snapshot { dir: "snap".into(), session: None }.request().unwrap();

        assert!(matches!(request, Request::Snapshot { dir, .. } if dir.is_absolute() && dir.ends_with("snap")));
    }
}
