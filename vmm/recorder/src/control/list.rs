//! `strata ps`: the VMs of this user, running or dead, and for root those of others.

use super::directory::VmDescription;
use super::found_vm::FoundVm;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;
use strata_recording::manifest::Attached;
use strata_recording::text::terminal::foreign::Foreign;

/// A VM in the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedVm {
    /// Process that runs it or ran it, or records it from outside.
    pub pid: u32,
    /// Name.
    pub name: String,
    /// The user whose it is, where that is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<Foreign<String>>,
    /// Whole seconds since it began; `None` when its process died.
    pub uptime_s: Option<u64>,
    /// Where its recording goes.
    pub trace: Option<Foreign<PathBuf>>,
    /// Whether it runs.
    pub state: State,
    /// The process that runs it, where `pid` records it from outside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attached: Option<Attached>,
    /// File of its trace region.
    pub region: Option<Foreign<PathBuf>>,
    /// The folder that holds what there is of it.
    pub folder: Foreign<PathBuf>,
}

/// Whether a VM runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It runs.
    Running,
    /// It runs in another process, and this one records it from outside.
    Attached,
    /// Its process died, and its region is still there.
    Recoverable,
    /// Its process died, and there was no region.
    Dead,
}

impl State {
    const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Attached => "attached",
            Self::Recoverable => "recoverable",
            Self::Dead => "dead",
        }
    }
}

/// The list of `found` at the time `now_ns` (nanoseconds since 1970, UTC).
#[must_use]
pub fn listed(found: Vec<FoundVm>, now_ns: u64) -> Vec<ListedVm> {
    let vms = found.into_iter().map(|found| {
        let region = found.region();
        let state = match (found.alive, &region) {
            (true, _) if found.vm.attached.is_some() => State::Attached,
            (true, _) => State::Running,
            (false, Some(_)) => State::Recoverable,
            (false, None) => State::Dead,
        };
        let uptime_s = found.alive.then(|| now_ns.saturating_sub(found.vm.started.utc_ns) / 1_000_000_000);
        let user = found.owner.other_user();
        let FoundVm { path: folder, vm, .. } = found;
        let VmDescription { name, pid, trace, attached, .. } = vm;
        ListedVm { pid, name, user, uptime_s, trace, state, attached, region, folder }
    });
    vms.collect()
}

/// The list as text for the user, followed by how to recover the traces of dead VMs.
#[must_use]
pub fn text(vms: &[ListedVm]) -> String {
    if vms.is_empty() {
        return "no VM is running\n".into();
    }
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(out, "{:>8}  {:<16}  {:>9}  {:<11}  TRACE", "PID", "NAME", "UPTIME", "STATE");
    for vm in vms {
        let uptime = vm.uptime_s.map_or_else(|| "-".into(), |seconds| format!("{seconds} s"));
        let trace = vm.trace.as_ref().map_or_else(|| "-".into(), Foreign::to_string);
        let name = vm.user.as_ref().map_or_else(|| vm.name.clone(), |user| format!("{user}/{}", vm.name));
        let _ = writeln!(out, "{:>8}  {name:<16}  {uptime:>9}  {:<11}  {trace}", vm.pid, vm.state.name());
    }
    for vm in vms {
        let folder = vm.folder.path_word();
        let _ = match (vm.state, &vm.region) {
            (State::Recoverable, Some(region)) => writeln!(
                out,
                "{} died; recover its trace with: strata recover {} -o DIR; then: rm -r {folder}",
                vm.pid,
                region.path_word()
            ),
            (State::Dead, _) => {
                writeln!(out, "{} died and left nothing to recover; remove it with: rm -r {folder}", vm.pid)
            }
            _ => Ok(()),
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::directory::VmDirectory;
    use crate::control::directory::tests::{description, runtime};
    use crate::control::found_vm::{Owner, RuntimeFolder, list};

    #[test]
    fn running_vm_has_an_uptime() {
        let runtime = runtime();
        let _directory = VmDirectory::create(runtime.path(), &description("a")).unwrap();
        let now = description("a").started.utc_ns + 61_500_000_000;

        let vms = listed(list(&RuntimeFolder::named(runtime.path())).unwrap(), now);

        assert_eq!((vms[0].state, vms[0].uptime_s), (State::Running, Some(61)));
        assert!(text(&vms).contains("61 s"));
    }

    #[test]
    fn dead_vm_with_a_region_is_recoverable() {
        let runtime = runtime();
        let mut directory = VmDirectory::create(runtime.path(), &description("a")).unwrap();
        directory.create_region().unwrap();
        directory.keep();
        let region = directory.region();
        drop(directory);

        let vms = listed(list(&RuntimeFolder::named(runtime.path())).unwrap(), 0);

        assert_eq!((vms[0].state, vms[0].uptime_s), (State::Recoverable, None));
        assert!(text(&vms).contains(&format!("strata recover {}", region.display())));
    }

    #[test]
    fn recording_from_outside_is_listed_as_that() {
        let runtime = runtime();
        let attached = Some(Attached { pid: 77, comm: "qemu".into() });
        let of_other = VmDescription { attached, ..description("a") };
        let _directory = VmDirectory::create(runtime.path(), &of_other).unwrap();

        let vms = listed(list(&RuntimeFolder::named(runtime.path())).unwrap(), 0);

        assert_eq!((vms[0].state, vms[0].attached.clone()), (State::Attached, of_other.attached));
        assert!(text(&vms).contains("attached"));
    }

    #[test]
    fn vm_of_another_user_is_shown_as_that_with_nothing_that_acts() {
        let vm = VmDescription { trace: Some("/tmp/\x1b[2J".into()), ..description("a") };
        let path = "/run/user/4000000000/strata/x; touch pwned; #".into();
        let found = FoundVm { path, vm, alive: false, owner: Owner::Other(4_000_000_000) };

        let text = text(&listed(vec![found], 0));

        assert!(text.contains("  4000000000/a  ") && text.contains("/tmp/\\u{1b}[2J\n"), "{text}");
        assert!(text.ends_with("rm -r '/run/user/4000000000/strata/x; touch pwned; #'\n"), "{text}");
    }

    #[test]
    fn empty_list_says_so() {
        assert_eq!(text(&[]), "no VM is running\n");
    }
}
