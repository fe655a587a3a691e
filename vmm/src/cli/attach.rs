//! `strata attach`.

use super::SEE_MORE;
use super::jail::JailArgs;
use super::recording::{RECORDED, RECORDING, RecordingArgs};
use super::values::{self, DEFAULT_TRACE};
use crate::attach::AttachRequest;
use crate::attach::libvirt::{self, DomainError};
use clap::{ArgGroup, Args};
use std::path::PathBuf;
use std::time::Duration;
use strata_jail::NewUser;

/// Arguments of `strata attach`.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "VM",
    after_help = SEE_MORE,
    after_long_help = "Needs root. The VM and its guest run on; only --qmp changes them. The recording ends with the \
    VM, with Ctrl-C or SIGTERM, by `strata ctl NAME detach`, or after --duration, and is complete each time. Its \
    layers are host-kernel, and with --region or --qmp guest-kernel and guest-user. Exit status: 0; 1 when the trace \
    failed or the region's file was cut short; 2 when nothing could be recorded.\n\nExamples:\n  \
    strata attach\n  \
    strata attach --libvirt web --trace web-trace\n  \
    strata attach 4242 --duration 10s\n  \
    strata attach 4242 --region /dev/shm/web --trace trace\n  \
    strata attach 4242 --qmp /run/web.qmp --trace trace\n  \
    strata attach 4242 --trace trace --max-size 2G --events 'host-kernel:kvm:*,host-kernel:sched:*,host-kernel:irq:*'\n  \
    strata attach 4242 --trace trace --mode flight-recorder --name web &\n  \
    strata ctl web snapshot trace-snapshots/now\n  \
    strata report vcpus trace",
    group(ArgGroup::new(RECORDED).args(["pid", "libvirt"]))
)]
pub struct AttachArgs {
    /// Process that runs the VM; without any argument, list the processes that run one
    #[arg(value_parser = values::process)]
    pub pid: Option<u32>,
    /// The libvirt domain to record, by name, id or UUID, instead of a process
    #[arg(long, value_name = "DOMAIN", conflicts_with = "pid")]
    pub libvirt: Option<String>,
    /// Record the guest too, through this trace region: `strata region create` made it for the same --mode, and the VM
    /// has it as a device
    #[arg(long, value_name = "FILE", help_heading = RECORDING, requires = RECORDED)]
    pub region: Option<PathBuf>,
    /// Record the guest too: plug a trace region into its QEMU through this QMP socket (-qmp
    /// unix:SOCKET,server=on,wait=off)
    ///
    /// Takes a free PCIe port (-device pcie-root-port,id=strata-port,chassis=99,pref64-reserve=256M); Strata unplugs
    /// the region at the end
    #[arg(long, value_name = "SOCKET", help_heading = RECORDING, conflicts_with = "region", requires = RECORDED)]
    pub qmp: Option<PathBuf>,
    /// Record a trace into this folder: a new one, or an empty one of yours
    #[arg(long, value_name = "DIR", help_heading = RECORDING, default_value = DEFAULT_TRACE, requires = RECORDED)]
    pub trace: PathBuf,
    /// Name of the VM in the trace [default: with --libvirt the domain's name, else the process's name and PID]
    #[arg(long, value_name = "NAME", value_parser = values::vm_name, requires = RECORDED)]
    pub name: Option<String>,
    /// The VM with this file descriptor, where the process has several
    #[arg(long, value_name = "FD", value_parser = values::number::<u32>, requires = RECORDED)]
    pub vm: Option<u32>,
    /// What is recorded.
    #[command(flatten)]
    pub recording: RecordingArgs,
    /// End after this time: a number of seconds, or one with ms, s, m or h, as in 90s
    #[arg(long, value_name = "TIME", help_heading = RECORDING, value_parser = values::duration, requires = RECORDED)]
    pub duration: Option<Duration>,
    /// How the process is confined.
    #[command(flatten)]
    pub jail: JailArgs,
}

impl AttachArgs {
    /// Whether no VM is named, so that those there are be listed.
    #[must_use]
    pub const fn lists_machines(&self) -> bool {
        self.pid.is_none() && self.libvirt.is_none()
    }
}

impl TryFrom<AttachArgs> for AttachRequest {
    type Error = DomainError;

    /// # Errors
    ///
    /// libvirt does not run the domain that was requested.
    fn try_from(args: AttachArgs) -> Result<Self, DomainError> {
        let AttachArgs { pid, libvirt, region, qmp, trace, name, vm, recording, duration, jail } = args;
        let domain = libvirt.map(|wanted| libvirt::domain(&wanted)).transpose()?;
        // Without a process, machines are listed and nothing is recorded.
        let pid = domain.as_ref().map(|domain| domain.process).or(pid).unwrap_or_default();
        let domain = domain.map(|domain| domain.name);
        let recording = recording.into_request(trace);
        // KVM's debugfs, which is looked at all the time, is root's.
        let jail = jail.into_request(NewUser::Same);
        Ok(Self { pid, vm, name, domain, region, qmp, recording, duration, jail })
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
    fn process_is_needed_and_the_trace_has_a_name_unless_given() {
        assert!(request(&["--trace", "t"]).is_none());
        assert_eq!(request(&["42"]).unwrap().recording.files.trace, PathBuf::from("trace"));
        assert!(request(&["qemu", "--trace", "t"]).is_none());
        assert_eq!(request(&["42", "--trace", "t"]).unwrap().pid, 42);
    }

    #[test]
    fn machines_are_listed_without_any_argument() {
        let lists = |args: &[&str]| match Cli::try_parse_from(["strata", "attach"].iter().chain(args)) {
            Ok(Cli { command: Command::Attach(args), .. }) => Some(args.lists_machines()),
            _ => None,
        };

        assert_eq!([lists(&[]), lists(&["42", "--trace", "t"])], [Some(true), Some(false)]);
        for alone in [["--name", "x"], ["--duration", "1s"], ["--qmp", "q"], ["--region", "r"], ["--vm", "5"]] {
            assert_eq!(lists(&alone), None, "{alone:?}");
        }
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
