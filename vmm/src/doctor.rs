//! `strata doctor`: what this machine can do, what it cannot, and what to do about it, before it hurts.

use serde::Serialize;
use std::fmt::{self, Write};
use std::fs;
use std::io;
use std::path::Path;
use strata_clock::{HostClock, HostTime, KVM_DEBUGFS};
use strata_host_kernel::namespace::{Rights, ThreadIdError};
use strata_host_kernel::{Tracefs, TracefsError, namespace};
use strata_machine::{KvmKind, KvmProbe, VhostError, check_vhost_net, probe_kvm};
use strata_recorder::drain::cpu_list::CpuList;

/// How well something works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should.
    Works,
    /// With a restriction.
    Limited,
    /// Not at all.
    Missing,
}

/// One finding about the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub subject: &'static str,
    /// How well it works.
    pub verdict: Verdict,
    /// What was seen, one line.
    pub seen: String,
    /// What to do about it; empty where nothing is to be done.
    pub fix: String,
}

impl Finding {
    fn works(subject: &'static str, seen: impl Into<String>) -> Self {
        Self { subject, verdict: Verdict::Works, seen: seen.into(), fix: String::new() }
    }

    fn limited(subject: &'static str, seen: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { subject, verdict: Verdict::Limited, seen: seen.into(), fix: fix.into() }
    }

    fn missing(subject: &'static str, seen: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { subject, verdict: Verdict::Missing, seen: seen.into(), fix: fix.into() }
    }
}

/// KVM, for scripts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KvmFacts {
    /// `hardware`, `emulating`, `absent` or `no-permission`.
    pub kind: &'static str,
    /// Whether a guest saw the TSC offset that was set for it.
    pub tsc_offset_honoured: Option<bool>,
    /// Rate of a guest's TSC, kHz.
    pub tsc_khz: Option<u32>,
    /// Most vCPUs of one guest.
    pub max_cpus: Option<u32>,
}

/// All findings about the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// Whether stock guests can be run here.
    pub runs_guests: bool,
    /// KVM.
    pub kvm: KvmFacts,
    /// All findings.
    pub findings: Vec<Finding>,
}

/// Looks at this machine. Takes a few tenths of a second; needs no rights, but sees less without them.
#[must_use]
pub fn diagnose() -> Diagnosis {
    let probed = probe_kvm();
    let clock = HostClock::observe(probed.tsc_khz);
    let findings = vec![
        kvm_finding(&probed),
        offset_finding(&probed),
        clock_finding(&clock),
        tracefs_finding(tracing_clocks()),
        attach_finding(namespace::check_thread_ids(), fs::read_dir(KVM_DEBUGFS).map(drop)),
        jail_finding(strata_jail::files::version(), strata_jail::filter::is_available()),
        vhost_finding(check_vhost_net()),
        permission_finding(Rights::of_this_process(), &probed.kind),
        placement_finding(CpuList::of_this_thread().as_ref()),
        headers_finding(&installed_headers(Path::new("/lib/modules"))),
    ];
    let kvm = KvmFacts {
        kind: kind_name(&probed.kind),
        tsc_offset_honoured: probed.tsc_offset_honoured,
        tsc_khz: probed.tsc_khz,
        max_cpus: probed.max_cpus,
    };
    Diagnosis { runs_guests: probed.refusal().is_none(), kvm, findings }
}

const fn kind_name(kind: &KvmKind) -> &'static str {
    match kind {
        KvmKind::Hardware => "hardware",
        KvmKind::Emulating { .. } => "emulating",
        KvmKind::Absent { .. } => "absent",
        KvmKind::NoPermission => "no-permission",
    }
}

fn kvm_finding(probed: &KvmProbe) -> Finding {
    let fix = "use a machine with VMX or SVM, or enable nested virtualisation for this one";
    match &probed.kind {
        KvmKind::Hardware => {
            let cpus = probed.max_cpus.map_or_else(String::new, |cpus| format!(", up to {cpus} vCPUs"));
            Finding::works("KVM", format!("runs guests on the processor{cpus}"))
        }
        KvmKind::Emulating { reason } => {
            Finding::missing("KVM", format!("only emulates, stock guests do not boot ({reason})"), fix)
        }
        KvmKind::Absent { reason } => {
            Finding::missing("KVM", reason.clone(), "enable virtualisation in the firmware; load kvm_intel or kvm_amd")
        }
        KvmKind::NoPermission => {
            Finding::missing("KVM", "/dev/kvm may not be opened by this user", "add the user to the group 'kvm'")
        }
    }
}

fn offset_finding(probed: &KvmProbe) -> Finding {
    match probed.tsc_offset_honoured {
        Some(true) => Finding::works("guest TSC", "a guest saw the TSC offset that was set for it"),
        Some(false) => Finding::limited(
            "guest TSC",
            "KVM accepts a TSC offset and ignores it: guest and host read the same counter",
            "nothing to do: the trace clock takes it into account",
        ),
        None => Finding::limited("guest TSC", "could not be tried", "see KVM; TSC offsets need Linux 5.16 or later"),
    }
}

fn clock_finding(clock: &HostClock) -> Finding {
    let seen = format!(
        "{} MHz; clock source '{}'; times of different CPUs agree within {} ns",
        clock.frequency / 1_000_000,
        clock.clocksource,
        clock.error_bound_ns(),
    );
    if clock.time == HostTime::MonotonicRaw {
        let fix = "boot the host with tsc=reliable if its TSCs are known to agree; else traces count \
                   CLOCK_MONOTONIC_RAW, measure the guest's counter against it, and state what was observed";
        let seen = format!("given up by the kernel, which uses '{}'", clock.clocksource);
        Finding::limited("host TSC", seen, fix)
    } else if clock.is_trusted() {
        Finding::works("host TSC", seen)
    } else {
        let fix = "boot the host with tsc=reliable if its TSCs are known to agree; traces state what was observed";
        Finding::limited("host TSC", seen, fix)
    }
}

/// The host kernel's trace clocks, as tracefs lists them.
fn tracing_clocks() -> Result<String, TracefsError> {
    namespace::check_thread_ids()?;
    clocks_in(Tracefs::find()?.root())
}

/// Those of the tracefs at `root`, which may be there for root alone.
fn clocks_in(root: &Path) -> Result<String, TracefsError> {
    let path = root.join("trace_clock");
    fs::read_to_string(&path).map_err(|source| TracefsError::File { action: "reading".into(), path, source })
}

fn tracefs_finding(clocks: Result<String, TracefsError>) -> Finding {
    match clocks {
        Ok(clocks) if clocks.contains("x86-tsc") && clocks.contains("mono_raw") => {
            Finding::works("tracefs", "the host-kernel layer can be traced")
        }
        Ok(_) => {
            Finding::missing("tracefs", "its clock x86-tsc is not there", "use a host kernel for x86-64 with a TSC")
        }
        Err(error) => Finding::missing("tracefs", format!("no host-kernel layer: {error}"), error.fix()),
    }
}

/// Whether VMs that other processes run can be recorded, by whether processes have the host's numbers here, and whether
/// KVM's debugfs can be `read`.
fn attach_finding(ids: Result<(), ThreadIdError>, read: io::Result<()>) -> Finding {
    if let Err(error) = ids {
        let seen = format!("VMs that other processes run cannot be recorded: {error}");
        return Finding::limited("attach", seen, error.fix());
    }
    match read.map_err(|error| error.kind()) {
        Ok(()) => Finding::works("attach", "VMs that other processes run can be recorded from outside (strata attach)"),
        Err(io::ErrorKind::PermissionDenied) => {
            Finding::limited("attach", "VMs that other processes run cannot be recorded by this user", "run as root")
        }
        Err(_) => Finding::limited(
            "attach",
            format!("VMs that other processes run cannot be recorded: {KVM_DEBUGFS} is not there"),
            "load KVM's module; mount -t debugfs debugfs /sys/kernel/debug",
        ),
    }
}

/// What a running VM can give up, by the version of landlock and whether there is seccomp.
fn jail_finding(landlock: Option<u32>, seccomp: bool) -> Finding {
    let fix =
        "use a kernel with CONFIG_SECCOMP_FILTER and landlock (5.13, enabled by lsm=landlock,...); VMs run without";
    match (landlock, seccomp) {
        (Some(version), true) => {
            Finding::works("jail", format!("VMs give up files (landlock {version}) and system calls (seccomp)"))
        }
        (None, true) => Finding::limited("jail", "VMs give up system calls (seccomp); there is no landlock", fix),
        (Some(version), false) => {
            Finding::limited("jail", format!("VMs give up files (landlock {version}); there is no seccomp"), fix)
        }
        (None, false) => Finding::limited("jail", "neither landlock nor seccomp: VMs keep all of the kernel", fix),
    }
}

/// Whether the host's kernel can move packets, by whether its device can be opened.
fn vhost_finding(opened: Result<(), VhostError>) -> Finding {
    let subject = "vhost-net";
    let Err(error) = opened else {
        return Finding::works(subject, "the host's kernel can move a guest's packets (--net tap=NAME,vhost=on)");
    };
    let seen = |why: &str| format!("the host's kernel cannot move packets: {why}; strata can");
    match error {
        VhostError::NoDriver => {
            Finding::limited(subject, seen("/dev/vhost-net is not there"), "load its module: modprobe vhost_net")
        }
        VhostError::Permission => Finding::limited(
            subject,
            seen("/dev/vhost-net may not be opened by this user"),
            "add the user to its group ('kvm' on most hosts), or run as root",
        ),
        VhostError::Open(source) => {
            Finding::limited(subject, seen(&format!("/dev/vhost-net: {source}")), "leave out vhost=on")
        }
        other => Finding::limited(subject, seen(&other.to_string()), "leave out vhost=on"),
    }
}

fn permission_finding(rights: Rights, kvm: &KvmKind) -> Finding {
    // No right makes them run on another kind.
    let guests = if *kvm == KvmKind::Hardware { "guests run, " } else { "" };
    match (rights, kvm) {
        (Rights::NamespaceRoot, _) => Finding::limited(
            "permissions",
            format!("root of a user namespace: {guests}the host-kernel layer needs the host's root"),
            "run strata outside of the user namespace (podman: start it with sudo)",
        ),
        (Rights::HostRoot, _) => Finding::works("permissions", "root: permissions keep no layer from being traced"),
        (Rights::User, KvmKind::NoPermission) => {
            Finding::missing("permissions", "neither KVM nor tracefs", "run as root, or join the group 'kvm'")
        }
        (Rights::User, _) => Finding::limited(
            "permissions",
            format!("not root: {guests}the host-kernel layer needs more"),
            "run as root",
        ),
    }
}

/// Where strata's threads can run, apart from the guest's, by the CPUs that this process may use.
fn placement_finding(cpus: Option<&CpuList>) -> Finding {
    let subject = "recorder's CPU";
    let Some(cpus) = cpus else {
        return Finding::limited(subject, "the kernel does not say which CPUs there are", "see taskset(1)");
    };
    match cpus.split_first() {
        Some((first, others)) => Finding::works(
            subject,
            format!(
                "CPUs {cpus}: the recorder takes no time of the guest's with `taskset -c {others} strata run … \
                 --recorder-cpus {first}`"
            ),
        ),
        None => Finding::limited(
            subject,
            format!("CPU {cpus} alone: while the recorder runs, the guest does not"),
            "record with --mode flight-recorder, or fewer --events; strata report says what recording cost",
        ),
    }
}

/// Kernel releases whose headers are installed in `modules` (`/lib/modules`).
fn installed_headers(modules: &Path) -> Vec<String> {
    let entries = fs::read_dir(modules).into_iter().flatten().flatten();
    let with_headers = entries.filter(|entry| entry.path().join("build/Makefile").exists());
    let mut releases: Vec<String> = with_headers.map(|entry| entry.file_name().to_string_lossy().into()).collect();
    releases.sort();
    releases
}

fn headers_finding(releases: &[String]) -> Finding {
    if releases.is_empty() {
        let fix = "get the guest kernel's headers (Debian: linux-headers-RELEASE) and build the agent with \
                   `strata agent build --kernel-headers DIR`";
        Finding::limited("kernel headers", "none installed; an agent is built against the guest kernel's", fix)
    } else {
        Finding::works("kernel headers", format!("an agent can be built for {}", releases.join(", ")))
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            let mark = match finding.verdict {
                Verdict::Works => "works",
                Verdict::Limited => "limited",
                Verdict::Missing => "missing",
            };
            writeln!(formatter, "{:<15} {mark:<8} {}", finding.subject, finding.seen)?;
            if !finding.fix.is_empty() {
                writeln!(formatter, "{:<24} → {}", "", finding.fix)?;
            }
        }
        formatter.write_char('\n')?;
        let all_works = self.findings.iter().all(|finding| finding.verdict == Verdict::Works);
        formatter.write_str(match (self.runs_guests, all_works) {
            (true, true) => "Guests can be run and traced here.\n",
            (true, false) => "Guests can be run here, and traced except for what is limited or missing above.\n",
            (false, _) => "Stock guests cannot be run here; recorded traces can be read.\n",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probed(kind: KvmKind) -> KvmProbe {
        KvmProbe { kind, tsc_offset_honoured: None, tsc_khz: None, max_cpus: Some(64), read_only_memory: true }
    }

    #[test]
    fn emulating_kvm_is_no_kvm_for_guests() {
        let finding = kvm_finding(&probed(KvmKind::Emulating { reason: "no cmpxchg16b".into() }));

        assert_eq!(finding.verdict, Verdict::Missing);
        assert!(finding.seen.contains("no cmpxchg16b") && finding.fix.contains("VMX or SVM"));
    }

    #[test]
    fn namespaces_keep_tracing_from_working_and_say_what_helps() {
        let findings = [
            tracefs_finding(Err(ThreadIdError::PidNamespace.into())),
            attach_finding(Err(ThreadIdError::PidNamespace), Ok(())),
            permission_finding(Rights::NamespaceRoot, &KvmKind::Hardware),
        ];

        let helps = ["--pid=host", "--pid=host", "sudo"];
        assert!(findings.iter().zip(helps).all(|(finding, fix)| finding.fix.contains(fix)), "{findings:?}");
        assert!(findings.iter().all(|finding| finding.verdict != Verdict::Works), "{findings:?}");
    }

    #[test]
    fn clocks_that_cannot_be_read_are_not_taken_for_absent() {
        let folder = tempfile::tempdir().unwrap();

        let finding = tracefs_finding(clocks_in(folder.path()));

        assert_eq!(finding.verdict, Verdict::Missing);
        assert!(finding.seen.contains("reading") && !finding.fix.contains("for x86-64"), "{finding:?}");
    }

    #[test]
    fn permissions_claim_no_guests_where_none_run() {
        let absent = KvmKind::Absent { reason: "there is none".into() };
        let seen = |rights, kvm| permission_finding(rights, kvm).seen;

        let hardware = [Rights::User, Rights::NamespaceRoot].map(|rights| seen(rights, &KvmKind::Hardware));
        let without = [Rights::User, Rights::NamespaceRoot].map(|rights| seen(rights, &absent));

        assert!(hardware.iter().all(|seen| seen.contains("guests run, ")), "{hardware:?}");
        assert!(!without.iter().any(|seen| seen.contains("guests run")), "{without:?}");
    }

    #[test]
    fn every_finding_that_is_not_well_says_what_to_do() {
        let diagnosis = diagnose();

        assert_eq!(diagnosis.findings.len(), 10);
        assert!(diagnosis.findings.iter().all(|finding| (finding.verdict == Verdict::Works) == finding.fix.is_empty()));
    }

    #[test]
    fn last_line_claims_no_more_than_the_findings() {
        let kvm = KvmFacts { kind: "hardware", tsc_offset_honoured: None, tsc_khz: None, max_cpus: None };
        let last_line = |findings| Diagnosis { runs_guests: true, kvm: kvm.clone(), findings }.to_string();

        let all = last_line(vec![vhost_finding(Ok(()))]);
        let layer_is_missing = last_line(vec![tracefs_finding(Err(ThreadIdError::PidNamespace.into()))]);

        assert!(all.ends_with("\nGuests can be run and traced here.\n"), "{all}");
        assert!(
            layer_is_missing.ends_with("traced except for what is limited or missing above.\n"),
            "{layer_is_missing}"
        );
    }

    #[test]
    fn kernel_that_lacks_a_part_of_the_jail_is_limited() {
        let verdicts = [(Some(4), true), (None, true), (Some(4), false), (None, false)].map(|(landlock, seccomp)| {
            let finding = jail_finding(landlock, seccomp);
            (finding.verdict, finding.seen.contains("landlock 4"))
        });

        let limited = Verdict::Limited;
        assert_eq!(verdicts, [(Verdict::Works, true), (limited, false), (limited, true), (limited, false)]);
    }

    #[test]
    fn vhost_that_cannot_be_opened_says_what_comes_next() {
        let denied = VhostError::Open(io::ErrorKind::OutOfMemory.into());
        let findings = [Ok(()), Err(VhostError::NoDriver), Err(VhostError::Permission), Err(denied)].map(vhost_finding);

        let verdicts = [Verdict::Works, Verdict::Limited, Verdict::Limited, Verdict::Limited];
        assert_eq!(findings.each_ref().map(|finding| finding.verdict), verdicts);
        let [_, absent, closed, failed] = findings;
        assert!(absent.fix.contains("modprobe vhost_net") && closed.fix.contains("group"));
        assert!(failed.seen.contains("out of memory"), "{}", failed.seen);
    }

    #[test]
    fn recorder_is_given_a_cpu_of_its_own_where_there_are_two() {
        let finding = |cpus: &str| placement_finding(cpus.parse().ok().as_ref());

        assert!(finding("0-3").seen.contains("taskset -c 1-3 strata run … --recorder-cpus 0`"));
        assert_eq!((finding("0-3").verdict, finding("2").verdict), (Verdict::Works, Verdict::Limited));
    }

    #[test]
    fn headers_are_found_by_their_makefile() {
        let modules = tempfile::tempdir().unwrap();
        fs::create_dir_all(modules.path().join("6.1.0-9/build")).unwrap();
        fs::create_dir_all(modules.path().join("6.1.0-7/build")).unwrap();
        fs::write(modules.path().join("6.1.0-7/build/Makefile"), "").unwrap();

        assert_eq!(installed_headers(modules.path()), ["6.1.0-7"]);
    }

    #[test]
    fn json_names_the_kind_of_kvm() {
        let diagnosis = Diagnosis {
            runs_guests: true,
            kvm: KvmFacts { kind: "hardware", tsc_offset_honoured: Some(true), tsc_khz: Some(1), max_cpus: Some(2) },
            findings: vec![Finding::works("KVM", "fine")],
        };

        let json = serde_json::to_value(&diagnosis).unwrap();

        assert_eq!(json["kvm"]["kind"], "hardware");
        assert_eq!(json["findings"][0]["verdict"], "works");
    }
}
