//! The processes of this host that run a VM, of any monitor, and what `strata attach` can be given for each.

use super::failure;
use super::libvirt;
use super::process::{Process, ProcessError, comm, numbers};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use strata_recorder::control::found_vm::{FoundVm, Owner};
use strata_recorder::process_files;
use strata_recorder::region::region_file::is_region;
use strata_recording::text::terminal::foreign::Foreign;

/// Most mapped files of a process that are looked at.
const MAX_MAPPED: usize = 64;
/// Most that is read of what a process maps, bytes: some ten thousand mappings, where each thread of a VMM makes two or
/// three. Those of all processes are read for one list.
const MAX_MAPS: u64 = 1 << 20;

/// A process that runs a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunningMachine {
    pub pid: u32,
    pub comm: Foreign<String>,
    /// Descriptors of its VMs, none where it runs its VM without KVM; `None` where this user may not see them.
    pub descriptors: Option<Vec<u32>>,
    /// The domain that it is to libvirt.
    pub domain: Option<Foreign<String>>,
    /// The region that it has in its memory.
    pub region: Option<Foreign<PathBuf>>,
    /// Its QMP socket, as its command line names it.
    pub qmp: Option<Foreign<PathBuf>>,
    /// Who records it already.
    pub recorded_by: Option<u32>,
}

/// Those that this user may see, but for VMs of strata's own, which are `known`.
#[must_use]
pub fn running(known: &[FoundVm]) -> Vec<RunningMachine> {
    let alive = || known.iter().filter(|found| found.alive);
    let own: BTreeSet<u32> = alive().filter(|found| found.vm.attached.is_none()).map(|found| found.vm.pid).collect();
    let recorded = recorders(known);
    let domains: BTreeMap<u32, Foreign<String>> =
        libvirt::running().into_iter().map(|domain| (domain.process, domain.name)).collect();
    let processes = numbers(Path::new("/proc")).unwrap_or_default();
    let machine = |pid: u32| {
        let folder = Path::new("/proc").join(pid.to_string());
        let descriptors = match Process::open(pid).and_then(|process| process.machines()) {
            Ok(descriptors) => Some(descriptors),
            Err(ProcessError::Descriptors { .. }) => None,
            // It has just ended.
            Err(_) => return None,
        };
        let comm = comm(&folder);
        if descriptors.as_ref().is_none_or(Vec::is_empty) && !failure::is_qemu(comm.raw()) {
            return None;
        }
        let command_line = process_files::command_line(pid).unwrap_or_default();
        Some(RunningMachine {
            pid,
            comm,
            descriptors,
            domain: domains.get(&pid).cloned(),
            region: region_of(pid).map(Foreign::from),
            qmp: qmp_socket(&command_line).map(Foreign::from),
            recorded_by: recorded.get(&pid).copied(),
        })
    };
    processes.into_iter().filter(|pid| !own.contains(pid)).filter_map(machine).collect()
}

/// By whom processes are recorded from outside, of `known`. Another user's word does not count: it may name any process.
fn recorders(known: &[FoundVm]) -> BTreeMap<u32, u32> {
    let believed = known.iter().filter(|found| found.alive && !matches!(found.owner, Owner::Other(_)));
    believed.filter_map(|found| Some((found.vm.attached.as_ref()?.pid, found.vm.pid))).collect()
}

/// The region among the files that process `pid` shares.
fn region_of(pid: u32) -> Option<PathBuf> {
    let maps = process_files::maps(pid, MAX_MAPS).ok()?;
    let is_region = |path: &PathBuf| {
        // Only of a regular file it does nothing to open it.
        let is_file = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file());
        is_file && is_region(path)
    };
    shared_files(&maps).into_iter().take(MAX_MAPPED).find(is_region)
}

/// The files that are mapped shared and writable according to `maps`, the contents of `/proc/PID/maps`.
fn shared_files(maps: &str) -> BTreeSet<PathBuf> {
    let file = |line: &str| {
        let (fields, path) = line.split_once('/')?;
        let is_shared = fields.split_ascii_whitespace().nth(1) == Some("rw-s");
        is_shared.then(|| PathBuf::from(format!("/{path}")))
    };
    maps.lines().filter_map(file).collect()
}

/// The socket of option `-qmp` of QEMU's command line.
fn qmp_socket(command_line: &[u8]) -> Option<PathBuf> {
    let mut words = command_line.split(|&byte| byte == 0).map(String::from_utf8_lossy);
    words.find(|word| word == "-qmp" || word == "--qmp")?;
    let option = words.next()?;
    let path = option.strip_prefix("unix:")?.split(',').next()?;
    Path::new(path).is_absolute().then(|| path.into())
}

impl RunningMachine {
    /// What `strata attach` can be given for it, for each of its VMs.
    fn choices(&self) -> Vec<String> {
        if let Some(by) = self.recorded_by {
            return vec![format!("recorded by process {by}")];
        }
        let Some(descriptors) = &self.descriptors else {
            return vec![format!("only root, outside of containers, sees its VM: sudo strata attach {}", self.pid)];
        };
        if descriptors.is_empty() {
            return vec!["QEMU without KVM (TCG): start it with -accel kvm to record it".into()];
        }
        let machine = match &self.domain {
            Some(domain) => domain.option_word("--libvirt"),
            None => self.pid.to_string(),
        };
        let several = descriptors.len() > 1;
        let region = self.region.as_ref().map(|path| path.option_word("--region"));
        let qmp = self.qmp.as_ref().filter(|_| region.is_none()).map(|path| path.option_word("--qmp"));
        let options = |descriptor: &u32| {
            let vm = several.then(|| format!("--vm {descriptor}"));
            let options = [Some(machine.clone()), vm, region.clone(), qmp.clone()];
            options.into_iter().flatten().collect::<Vec<_>>().join(" ")
        };
        descriptors.iter().map(options).collect()
    }
}

/// `machines` as a list for people.
#[must_use]
pub fn text(machines: &[RunningMachine]) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(out, "{:>8}  {:<16}  strata attach --trace DIR …", "PID", "PROCESS");
    for machine in machines {
        for choice in machine.choices() {
            let _ = writeln!(out, "{:>8}  {:<16}  {choice}", machine.pid, machine.comm);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_recorder::control::directory::VmDescription;
    use strata_recording::manifest::Attached;

    #[test]
    fn machine_is_listed_with_what_attach_can_be_given_for_it() {
        let qemu = RunningMachine {
            pid: 4242,
            comm: "qemu\x1b[2J".into(),
            descriptors: Some(vec![12]),
            qmp: Some("/run/my web.qmp".into()),
            ..RunningMachine::default()
        };
        let of_libvirt = RunningMachine { domain: Some("-web;".into()), qmp: None, ..qemu.clone() };
        let with_region = RunningMachine { region: Some("/dev/shm/web".into()), ..qemu.clone() };
        let several = RunningMachine { descriptors: Some(vec![5, 12]), ..with_region.clone() };
        let emulated = RunningMachine { descriptors: Some(Vec::new()), ..qemu.clone() };
        let hidden = RunningMachine { descriptors: None, ..qemu.clone() };
        let recorded = RunningMachine { recorded_by: Some(9), ..qemu.clone() };

        let choices = [&qemu, &of_libvirt, &with_region, &several, &recorded, &hidden].map(RunningMachine::choices);
        let text = text(&[qemu, emulated]);

        assert_eq!(
            choices.concat(),
            [
                "4242 --qmp '/run/my web.qmp'",
                "--libvirt='-web;'",
                "4242 --region /dev/shm/web",
                "4242 --vm 5 --region /dev/shm/web",
                "4242 --vm 12 --region /dev/shm/web",
                "recorded by process 9",
                "only root, outside of containers, sees its VM: sudo strata attach 4242",
            ]
        );
        assert!(text.contains("qemu\\u{1b}[2J") && text.contains("QEMU without KVM (TCG)"), "{text}");
    }

    #[test]
    fn another_users_word_makes_no_process_recorded() {
        let recorder = |owner, pid, recorded| {
            let attached = Some(Attached { pid: recorded, comm: "qemu".into() });
            let vm = VmDescription { pid, attached, ..VmDescription::of_this_process("a", 1) };
            FoundVm { path: "/nonexistent".into(), vm, alive: true, owner }
        };
        let known =
            [recorder(Owner::Own, 1, 11), recorder(Owner::Caller(33), 2, 12), recorder(Owner::Other(34), 3, 13)];

        let recorded = recorders(&known);

        assert_eq!(recorded, BTreeMap::from([(11, 1), (12, 2)]));
    }

    #[test]
    fn socket_is_that_of_qemus_option() {
        let socket = |line: &str| qmp_socket(line.replace(' ', "\0").as_bytes());

        assert_eq!(socket("qemu -m 1G -qmp unix:/run/q,server=on,wait=off -x"), Some("/run/q".into()));
        assert_eq!(socket("qemu -qmp tcp:127.0.0.1:1"), None);
        assert_eq!(socket("qemu -qmp unix:q,server=on"), None);
        assert_eq!(socket("qemu -qmp"), None);
    }

    #[test]
    fn files_that_are_shared_and_writable_may_be_regions() {
        let maps = "7f00-7f01 rw-s 00000000 00:1a 5                  /dev/shm/my web\n\
                    7f02-7f03 r-xp 00000000 00:1a 6                  /usr/bin/qemu\n\
                    7f04-7f05 rw-s 00000000 00:1a 7\n";

        assert_eq!(shared_files(maps), BTreeSet::from([PathBuf::from("/dev/shm/my web")]));
    }

    #[test]
    fn region_that_this_process_has_is_found() {
        use shared_ring::layout::Mode;
        use strata_recorder::region::region_file;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("web");
        let shape = crate::run::foreign_region(1, 1, Mode::Discard, crate::run::KERNEL_RINGS);
        region_file::create(&path, shape, None).unwrap();
        let _memory = region_file::RegionFile::open(&path).unwrap().map().unwrap();

        let maps = process_files::maps(std::process::id(), MAX_MAPS).unwrap();

        // Other tests of this process may have one, too.
        assert!(shared_files(&maps).contains(&path) && region_of(std::process::id()).is_some(), "{maps}");
    }

    #[test]
    fn this_process_runs_no_machine() {
        assert!(!running(&[]).iter().any(|machine| machine.pid == std::process::id()));
    }
}
