//! `strata attach`.

use super::values;
use crate::attach::AttachRequest;
use crate::attach::libvirt::{self, DomainError};
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;
use strata_recorder::control::protocol::{LayerLimit, Mode};
use strata_recorder::recorder::cpu_list::CpuList;
use strata_recorder::recorder::scheduling::{Drain, Scheduling};
use strata_recorder::session::selection;
use strata_recorder::session::{FilesRequest, LayersRequest, RecordingRequest};
use strata_recorder::trigger::TriggerRequest;
use strata_recorder::trigger::expression::Trigger;
use strata_recording::access::Readers;
use strata_recording::compression::Compression;
use strata_recording::manifest::is_vm_name;

/// Arguments of `strata attach`.
#[derive(Debug, Args)]
#[command(
    after_help = "Needs root. Neither the VM nor its guest is stopped, and only --qmp changes it. The recording ends \
    with the VM, with Ctrl-C or SIGTERM, by `strata ctl NAME detach`, or after --duration; it is completed each \
    time. Exit status: 0, or 1 when nothing could be recorded or the trace failed.\n\nExamples:\n  \
    strata attach --libvirt web --trace trace\n  \
    strata attach 4242 --trace trace --duration 10s\n  \
    strata attach 4242 --region /dev/shm/web --trace trace\n  \
    strata attach 4242 --qmp /run/web.qmp --trace trace\n  \
    strata attach 4242 --trace trace --max-size 2G --events 'host-kernel:kvm:*,host-kernel:sched:*,host-kernel:irq:*'\n  \
    strata attach 4242 --trace trace --mode flight-recorder --name web; strata ctl web snapshot now\n  \
    strata report vcpus trace"
)]
pub struct AttachArgs {
    /// Process that runs the VM
    #[arg(required_unless_present = "libvirt")]
    pub pid: Option<u32>,
    /// The VM that libvirt runs as this domain, instead of its process
    #[arg(long, value_name = "DOMAIN", conflicts_with = "pid")]
    pub libvirt: Option<String>,
    /// Record the guest too, through this trace region, which `strata region create` made and the VM has as a device
    #[arg(long, value_name = "FILE")]
    pub region: Option<PathBuf>,
    /// Record the guest too, by giving its QEMU a trace region through this QMP socket of QEMU's (-qmp
    /// unix:SOCKET,server=on,wait=off). It takes a free PCIe port (-device
    /// pcie-root-port,id=strata-port,chassis=99,pref64-reserve=256M), and is taken away at the end
    #[arg(long, value_name = "SOCKET", conflicts_with = "region")]
    pub qmp: Option<PathBuf>,
    /// Record a trace into this folder: a new one, or an empty one of yours
    #[arg(long, value_name = "DIR")]
    pub trace: PathBuf,
    /// Name of the VM in the trace [default: that of its domain, or name and number of its process]
    #[arg(long, value_name = "NAME", value_parser = values::vm_name)]
    pub name: Option<String>,
    /// The VM with this file descriptor, where the process has several
    #[arg(long, value_name = "FD")]
    pub vm: Option<u32>,
    /// Events to record: globs host-kernel:GROUP:EVENT, with --region or --qmp guest-kernel: and guest-user: too, '!'
    /// takes away; or presets: minimal, default, io, net, all; `strata events --list host-kernel` lists them
    #[arg(long, value_name = "GLOBS", default_value = selection::DEFAULT)]
    pub events: String,
    /// discard writes records as they come; flight-recorder holds the newest of them (see --host-history; the guest's
    /// in its rings; the region must be made for that), and writes them at the end (and by `strata ctl NAME snapshot
    /// DIR`)
    #[arg(long, value_name = "MODE", default_value = "discard", value_parser = values::mode())]
    pub mode: Mode,
    /// How much of the host kernel's records a flight recorder holds, in memory; the oldest give way
    #[arg(long, value_name = "SIZE", default_value = values::HOST_HISTORY, value_parser = values::host_history)]
    pub host_history: usize,
    /// Watch for something, and write a snapshot into TRACE-snapshots when it happens; with --mode discard, mark
    /// it in the trace. May be repeated: 'steal>1ms', 'wakeup>5ms task=web*', 'exit:mmio>2ms', 'disk>50ms',
    /// 'host-load>80%', 'oom', 'guest-panic', 'guest-hang=10s', 'event:guest-kernel:sched:sched_process_exit
    /// comm=="db"'
    #[arg(long = "trigger", value_name = "EXPR", value_parser = Trigger::parse)]
    pub triggers: Vec<Trigger>,
    /// Let each trigger lead to a snapshot (or mark) again when so much time has passed since its last one; without it,
    /// once
    #[arg(long, value_name = "TIME", value_parser = values::duration, requires = "triggers")]
    pub trigger_every: Option<Duration>,
    /// Go on recording for so long before the snapshot of a trigger
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = values::duration, requires = "triggers")]
    pub trigger_after: Duration,
    /// Keep the newest records that fit this size on the disk, and drop older ones; 16M or more. Without it the trace
    /// grows
    #[arg(long, value_name = "SIZE", value_parser = values::max_size)]
    pub max_size: Option<u64>,
    /// Compress the trace and its snapshots, packet by packet. `strata` reads it as it is; for babeltrace2 there is
    /// `strata export --to ctf`
    #[arg(long, value_name = "FORM", value_parser = values::compression())]
    pub compress: Option<Compression>,
    /// Limit the records of a layer to so many each second, and behind ':' so many at once (without it, as many as come
    /// in a second). What is more is dropped and counted as lost; the limit of guest-user is each process's. May be
    /// repeated, once for each layer
    #[arg(long = "limit", value_name = "LAYER=RATE[:BURST]", value_parser = values::layer_limit)]
    pub limits: Vec<LayerLimit>,
    /// The host's CPUs on which strata records, as in 0 or 0,2-3: apart from those of the vCPUs, it takes no time of
    /// the guest's
    #[arg(long, value_name = "LIST")]
    pub recorder_cpus: Option<CpuList>,
    /// When records are taken out of the rings: as they come ('always'), or while the host has nothing else to do
    /// ('idle') and otherwise when a ring is a quarter full. A ring that is full loses records, which is counted
    #[arg(long, value_name = "WHEN", default_value = Drain::default().name(), value_parser = values::drain())]
    pub drain: Drain,
    /// End after this time: a number of seconds, or one with ms, s, m or h, as in 90s
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub duration: Option<Duration>,
    /// Who may read the trace and its snapshots. It holds names of the host's processes and what they waited for
    #[arg(long, value_name = "WHO", default_value = "owner", value_parser = values::readers())]
    pub readable_by: Readers,
}

impl TryFrom<AttachArgs> for AttachRequest {
    type Error = DomainError;

    /// # Errors
    ///
    /// libvirt does not run the domain that was asked for.
    fn try_from(args: AttachArgs) -> Result<Self, DomainError> {
        let AttachArgs {
            pid,
            libvirt,
            region,
            qmp,
            trace,
            name,
            vm,
            events,
            mode,
            host_history,
            triggers,
            trigger_every,
            trigger_after,
            max_size,
            compress,
            limits,
            recorder_cpus,
            drain,
            duration,
            readable_by,
        } = args;
        let triggers = TriggerRequest { triggers, every: trigger_every, after: trigger_after };
        let pid = match (&libvirt, pid) {
            (Some(domain), _) => libvirt::process_of(domain)?,
            // the command line's rules leave nothing else
            (None, pid) => pid.unwrap_or_default(),
        };
        let name = name.or(libvirt.filter(|domain| is_vm_name(domain)));
        let recording = RecordingRequest {
            layers: LayersRequest { events, mode: mode.into(), limits, host_history },
            files: FilesRequest { trace, readers: readable_by, max_size, compression: compress },
            triggers,
            scheduling: Scheduling { cpus: recorder_cpus, drain },
        };
        Ok(Self { pid, vm, name, region, qmp, recording, duration })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn request(args: &[&str]) -> Option<AttachRequest> {
        let all = ["strata", "attach"].iter().chain(args);
        let Command::Attach(args) = Cli::try_parse_from(all).ok()?.command else { return None };
        args.try_into().ok()
    }

    #[test]
    fn process_and_trace_are_needed() {
        assert!(request(&["42"]).is_none() && request(&["--trace", "t"]).is_none());
        assert!(request(&["qemu", "--trace", "t"]).is_none());
        assert_eq!(request(&["42", "--trace", "t"]).unwrap().pid, 42);
    }

    #[test]
    fn domain_takes_the_place_of_a_process() {
        let parsed =
            |args: &[&str]| Cli::try_parse_from(["strata", "attach", "--trace", "t"].iter().chain(args)).is_ok();

        assert!(parsed(&["--libvirt", "web"]) && !parsed(&["--libvirt", "web", "42"]) && !parsed(&[]));
    }

    #[test]
    fn time_after_which_it_ends_is_optional() {
        assert_eq!(request(&["42", "--trace", "t"]).unwrap().duration, None);
        assert_eq!(
            request(&["42", "--trace", "t", "--duration", "2m"]).unwrap().duration,
            Some(Duration::from_secs(120))
        );
    }
}
