//! `strata run`.

use super::SEE_MORE;
use super::jail::{JailArgs, PROCESS};
use super::recording::{RECORDED, RECORDING, RecordingArgs};
use super::values;
use crate::agentless::{self, AgentlessRequest};
use crate::run::{Agent, Boot, KERNEL_RINGS, OnReboot, OnTraceFailure, PROCESS_SLOTS, RunRequest};
use clap::Args;
use shared_ring::layout::{Geometry, MAX_PROCESS_SLOTS};
use std::path::PathBuf;
use strata_jail::NewUser;
use strata_machine::{CpuExtras, DiskConfig, MemoryBacking, NetConfig, VsockConfig};
use strata_rate_limit::RateLimit;
use strata_recorder::layer::kernel_rings::{sub_buffer_counts, sub_buffer_sizes};

/// Headings of options, besides those of the guest.
const DEVICES: &str = "Devices";
const GUEST_RECORDING: &str = "Recording in the guest";

/// How a disk is written.
const DISK: &str = "FILE[,ro][,iops=RATE][,bandwidth=RATE][,lock=off][,format=raw]";

/// Arguments of `strata run`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Guest")]
#[command(after_help = SEE_MORE, after_long_help = "The guest's console is standard input and output; Strata drops \
    and counts output that nobody reads. Ctrl-C stops the guest and completes the trace. Exit status: 0 when the guest powered off, rebooted or was stopped; 1 when it panicked or crashed; 2 when \
    it could not be run.\n\nExamples:\n  \
    strata run --kernel vmlinuz --initrd initrd.img --cmdline 'console=ttyS0'\n  \
    strata run --kernel vmlinux --disk root.img --cmdline 'console=ttyS0 root=/dev/vda' --agent strata.ko --trace trace\n  \
    strata run --image root.img --memory 2G --cpus 2 --on-reboot restart\n  \
    strata run --kernel vmlinuz --initrd initrd.img --agent strata.ko --trace trace --max-size 2G\n  \
    strata run --kernel vmlinuz --initrd initrd.img --agentless --trace trace\n  \
    strata run --kernel vmlinuz --initrd initrd.img --net tap=tap0,mac=52:54:00:12:34:56\n  \
    strata run --kernel vmlinuz --initrd initrd.img --net passt\n  \
    strata run --kernel vmlinuz --initrd initrd.img --vsock cid=3,path=run/vsock\n  \
    strata run --kernel vmlinuz --initrd initrd.img --memory 4G --memory-backing huge\n  \
    strata run --image root.img --memory 4G --balloon\n  \
    strata run --kernel vmlinuz --initrd initrd.img --agent strata.ko --trace trace --mode flight-recorder --trigger 'wakeup>5ms task=web*'\n  \
    strata run --kernel vmlinuz --initrd initrd.img --memory 2G --print-config > vm.toml\n  \
    strata run --config vm.toml --cpus 4\n  \
    strata run --kernel vmlinuz --initrd initrd.img --agent strata.ko --trace trace --events 'host-kernel:kvm:*,guest-kernel:sched:*,guest-user:*'")]
pub struct RunArgs {
    /// Guest kernel: bzImage or ELF vmlinux
    #[arg(long, value_name = "FILE", required_unless_present = "image")]
    pub kernel: Option<PathBuf>,
    /// Guest initrd
    #[arg(long, value_name = "FILE")]
    pub initrd: Option<PathBuf>,
    /// Boot a distribution from its raw disk image: one ext4 file system, or partitions (GPT, MBR)
    ///
    /// Strata takes the kernel and initrd out of the image: those that /vmlinuz and /initrd.img link to, else the
    /// newest in /boot. The image becomes the guest's first disk and takes the options of --disk. Unless --cmdline
    /// names another root or console, Strata adds 'root=/dev/vda… rw console=ttyS0'
    #[arg(
        long,
        value_name = DISK,
        value_parser = values::disk,
        conflicts_with_all = ["kernel", "initrd"]
    )]
    pub image: Option<DiskConfig>,
    /// Number of vCPUs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = values::number::<u32>)]
    pub cpus: u32,
    /// Guest memory in bytes, or with K, M, G
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = values::size)]
    pub memory: u64,
    /// Pages of the guest's memory: normal ones, which the kernel joins to transparent huge pages where it can, or
    /// reserved huge pages of 2 MiB (`sysctl vm.nr_hugepages=N`)
    #[arg(
        long,
        value_name = "PAGES",
        default_value = MemoryBacking::default().name(),
        value_parser = values::memory_backing()
    )]
    pub memory_backing: MemoryBacking,
    /// Let the guest run guests of its own (VMX, SVM)
    ///
    /// A hostile guest then reaches much more of KVM's code
    #[arg(long)]
    pub nested: bool,
    /// Give the guest the CPU's performance counters, for perf in the guest
    #[arg(long)]
    pub pmu: bool,
    /// Raw disk image for a virtio block device; ',ro' makes it read-only. May be repeated
    ///
    /// ',iops=RATE' and ',bandwidth=RATE' limit requests and bytes per second; 'RATE:BURST' also sets how many may come
    /// at once after a pause. What exceeds the limit waits. ',lock=off' leaves the image unlocked while the VM runs.
    /// ',format=raw' takes a file that looks compressed or like another format. For experiments, ',delay=20ms' delays
    /// each request
    #[arg(
        help_heading = DEVICES,
        long = "disk",
        value_name = DISK,
        value_parser = values::disk
    )]
    pub disks: Vec<DiskConfig>,
    /// Virtio network device. May be repeated
    ///
    /// 'tap=NAME' uses a tap of the host, which must exist (`ip tuntap add tap0 mode tap user USER`). 'passt' starts a
    /// passt for the guest and needs no rights; 'passt=SOCKET' uses one that listens there.
    ///
    /// ',mac=ADDRESS' sets the address (default: random). ',pps=RATE' and ',bandwidth=RATE' limit packets and bytes per
    /// second in each direction; 'RATE:BURST' also sets how many may come at once after a pause. ',vhost=on' lets the
    /// host's kernel move the packets of a tap (vhost-net): faster, but without limits, and the VMM records no packets
    #[arg(
        help_heading = DEVICES,
        long = "net",
        value_name = "tap=NAME|passt[=SOCKET][,mac=ADDRESS][,pps=RATE][,bandwidth=RATE][,vhost=on]",
        value_parser = values::net
    )]
    pub nets: Vec<NetConfig>,
    /// Give the guest a source of random bytes (virtio-rng), up to 64 KiB per second
    ///
    /// For guests and CPUs without RDRAND; Linux uses RDRAND where it can
    #[arg(help_heading = DEVICES, long)]
    pub rng: bool,
    /// Connect programs of guest and host without a network (virtio-vsock)
    ///
    /// 'cid' is the guest's address, 3 or more. A program of the host connects to the socket 'path', writes the line
    /// 'CONNECT PORT' and reads the line 'OK NUMBER': then it is connected to that port of the guest. When a program of
    /// the guest connects to a port of CID 2, Strata connects to the socket path_PORT. Strata makes the socket for the
    /// VM's user alone, in a folder where nobody else may write, and removes it at the end
    #[arg(help_heading = DEVICES, long, value_name = "cid=N,path=SOCKET", value_parser = values::vsock)]
    pub vsock: Option<VsockConfig>,
    /// Give the guest a balloon (virtio-balloon)
    ///
    /// `strata ctl VM balloon SIZE` asks the running guest for memory; the guest also reports free memory by itself.
    /// The host gets both at once. Not with --memory-backing huge
    #[arg(help_heading = DEVICES, long)]
    pub balloon: bool,
    /// Limit what the guest writes to its console, in bytes per second: RATE or RATE:BURST, 4K or more
    ///
    /// A guest that writes faster waits
    #[arg(help_heading = DEVICES, long, value_name = "RATE", value_parser = values::bandwidth)]
    pub console_bandwidth: Option<RateLimit>,
    /// Guest kernel command line
    #[arg(long, value_name = "STR", default_value = "console=ttyS0 panic=-1")]
    pub cmdline: String,
    /// When the guest reboots, end the run (stop) or start the guest again (restart)
    ///
    /// Each boot has a trace of its own: DIR, DIR-2, DIR-3 and so on. Strata does not restart a guest that panicked, or
    /// that rebooted five times in a row within 2 s of its start: exit status 1
    #[arg(long, value_name = "WHAT", default_value = OnReboot::default().name(), value_parser = values::on_reboot())]
    pub on_reboot: OnReboot,
    /// Record a trace into this folder: a new one, or an empty one of yours; without DIR into `trace`
    #[arg(
        long,
        value_name = "DIR",
        help_heading = RECORDING,
        group = RECORDED,
        num_args = 0..=1,
        default_missing_value = values::DEFAULT_TRACE
    )]
    pub trace: Option<PathBuf>,
    /// What is recorded.
    #[command(flatten)]
    pub recording: RecordingArgs,
    /// When a layer of the trace ends early, for instance on a full disk: let the VM continue, pause it (until `strata
    /// ctl VM resume`), or stop it with exit status 1
    #[arg(help_heading = RECORDING, long, value_name = "WHAT", default_value = "continue", value_parser = values::on_trace_failure(), requires = "trace")]
    pub on_trace_failure: OnTraceFailure,
    /// Kernel module that records in the guest; Strata adds it to the initrd in memory and changes no file
    ///
    /// 'auto' picks the ready-made module for the guest's kernel (package strata-modules, or the folder
    /// $STRATA_AGENT_MODULES). A folder works alike: it holds RELEASE/strata.ko
    #[arg(help_heading = GUEST_RECORDING, long, value_name = "FILE|auto|DIR", requires = "trace")]
    pub agent: Option<PathBuf>,
    /// Put nothing into the guest: its kernel (Linux 6.12 or later) records these events into memory; globs GROUP:EVENT
    /// with commas between them
    ///
    /// The host reads that memory when the guest ends, even by a panic or a hang, and at each snapshot of a flight
    /// recorder. The newest records are kept
    #[arg(
        help_heading = GUEST_RECORDING,
        long,
        value_name = "EVENTS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = agentless::DEFAULT_EVENTS,
        requires = "trace",
        conflicts_with = "agent",
        value_parser = values::agentless_events
    )]
    pub agentless: Option<String>,
    /// The guest's memory for --agentless, for all vCPUs together
    #[arg(
        help_heading = GUEST_RECORDING,
        long,
        value_name = "SIZE",
        default_value = "16M",
        value_parser = values::agentless_size,
        requires = "agentless"
    )]
    pub agentless_size: u64,
    /// Put nothing into the guest
    #[arg(help_heading = GUEST_RECORDING, long, conflicts_with = "agent")]
    pub no_agent: bool,
    /// Samples of each vCPU per second while guest-kernel:strata:sample is recorded: the instruction, and with
    /// guest-kernel:strata:stack its stack
    #[arg(help_heading = GUEST_RECORDING, long, value_name = "HZ", value_parser = values::number_in(1..=20_000_u32), requires = "agent")]
    pub sample_frequency: Option<u32>,
    /// Size of a sub-buffer, bytes.
    #[arg(long, help = format!("Size of a sub-buffer of the guest kernel's rings: {}", sub_buffer_sizes()))]
    #[arg(help_heading = GUEST_RECORDING, value_name = "SIZE", default_value_t = KERNEL_RINGS.0, value_parser = values::sub_buffer_size, requires = "trace")]
    pub sub_buffer_size: u64,
    /// Number of sub-buffers of each ring.
    #[arg(long, help = format!("Sub-buffers of each of the guest kernel's rings: {}", sub_buffer_counts()))]
    #[arg(help_heading = GUEST_RECORDING, value_name = "N", default_value_t = KERNEL_RINGS.1, value_parser = values::sub_buffers, requires = "trace")]
    pub sub_buffers: u32,
    /// Processes of the guest that can record at the same time.
    #[arg(long, help = format!("Processes of the guest that can record at the same time, up to {MAX_PROCESS_SLOTS}; each \
        takes 1 MiB of memory for each vCPU"))]
    #[arg(help_heading = GUEST_RECORDING, value_name = "N", default_value_t = PROCESS_SLOTS, value_parser = values::number_in(0..=MAX_PROCESS_SLOTS), requires = "trace")]
    pub process_slots: u32,
    /// Run as this user once everything that needs root is open: a name, UID or UID:GID
    ///
    /// Default: the user who called sudo. Root without sudo stays root, but without its capabilities. The recording
    /// belongs to that user
    #[arg(help_heading = PROCESS, long, value_name = "USER")]
    pub user: Option<String>,
    /// How the process is confined.
    #[command(flatten)]
    pub jail: JailArgs,
    /// Name of the VM in the trace
    #[arg(long, value_name = "NAME", default_value = "vm0", value_parser = values::vm_name)]
    pub name: String,
    /// Take options from this TOML file, as --print-config writes it
    ///
    /// Options on the command line win
    #[arg(help_heading = PROCESS, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print the file for --config that equals these options, and run nothing
    #[arg(help_heading = PROCESS, long)]
    pub print_config: bool,
}

impl From<RunArgs> for RunRequest {
    fn from(args: RunArgs) -> Self {
        let agent = match (args.agent, args.no_agent) {
            (Some(module), _) => Agent::Module(module),
            (None, true) => Agent::None,
            (None, false) => Agent::Unspecified,
        };
        let boot = match args.kernel {
            Some(kernel) => Boot::Files { kernel, initrd: args.initrd },
            // The parser demands an image then.
            None => Boot::FirstDisk,
        };
        let disks = args.image.into_iter().chain(args.disks).collect();
        #[allow(clippy::expect_used, reason = "the parsers of both arguments accept only what makes a geometry")]
        let geometry = Geometry::new(args.sub_buffer_size, args.sub_buffers).expect("arguments make a geometry");
        let recording = args.trace.map(|trace| args.recording.into_request(trace));
        let agentless = args.agentless.map(|events| AgentlessRequest { events, size: args.agentless_size });
        Self {
            agentless,
            geometry,
            process_slots: args.process_slots,
            sample_frequency: args.sample_frequency,
            name: args.name,
            boot,
            cpus: args.cpus,
            memory: args.memory,
            memory_backing: args.memory_backing,
            cpu_extras: CpuExtras { nested: args.nested, pmu: args.pmu },
            disks,
            nets: args.nets,
            entropy: args.rng,
            vsock: args.vsock,
            balloon: args.balloon,
            console_bandwidth: args.console_bandwidth,
            cmdline: args.cmdline,
            recording,
            on_trace_failure: args.on_trace_failure,
            jail: args.jail.into_request(args.user.map_or(NewUser::Caller, NewUser::Named)),
            agent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{OnReboot, OnTraceFailure};
    use crate::cli::{Cli, Command};
    use clap::Parser;
    use std::path::PathBuf;

    #[test]
    fn agent_needs_a_trace() {
        assert!(Cli::try_parse_from(["strata", "run", "--kernel", "k", "--agent", "a.ko"]).is_err());
        assert!(Cli::try_parse_from(["strata", "run", "--kernel", "k", "--agent", "a.ko", "--trace", "t"]).is_ok());
    }

    #[test]
    fn trace_has_a_name_unless_given() {
        let trace = |args: &[&str]| {
            let run = ["strata", "run", "--kernel", "k"].iter().chain(args);
            let Command::Run(args) = Cli::try_parse_from(run).ok()?.command else { return None };
            args.trace
        };

        let named = |name: &str| Some(PathBuf::from(name));
        assert_eq!([trace(&[]), trace(&["--trace"]), trace(&["--trace", "t"])], [None, named("trace"), named("t")]);
        assert_eq!(trace(&["--trace", "--agent", "a.ko"]), named("trace"));
    }

    #[test]
    fn vm_goes_on_without_its_trace_by_default() {
        let reaction = |args: &[&str]| {
            let run = ["strata", "run", "--kernel", "k", "--trace", "t"].iter().chain(args);
            let Command::Run(args) = Cli::try_parse_from(run).ok()?.command else { return None };
            Some(args.on_trace_failure)
        };

        assert_eq!(reaction(&[]), Some(OnTraceFailure::Continue));
        assert_eq!(reaction(&["--on-trace-failure", "pause"]), Some(OnTraceFailure::Pause));
        assert_eq!(reaction(&["--on-trace-failure", "halt"]), None);
    }

    #[test]
    fn reboot_ends_the_run_without_the_option() {
        let reaction = |args: &[&str]| {
            let run = ["strata", "run", "--kernel", "k"].iter().chain(args);
            let Command::Run(args) = Cli::try_parse_from(run).ok()?.command else { return None };
            Some(args.on_reboot)
        };

        assert_eq!(reaction(&[]), Some(OnReboot::Stop));
        assert_eq!(reaction(&["--on-reboot", "restart"]), Some(OnReboot::Restart));
        assert_eq!(reaction(&["--on-reboot", "reset"]), None);
    }
}
