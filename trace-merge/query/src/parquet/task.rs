//! Guests' tasks as tables name them.

use super::rows::{Cell, text_of};
use foldhash::HashMap;
use std::borrow::Cow;
use trace_merge::report::tasks::cgroup_of;
use trace_merge::timeline::Timeline;
use trace_merge::timeline::membership::Stay;
use trace_merge::timeline::states::TaskIndex;

/// A task at the moment that the timeline has come to.
#[derive(Clone, Debug, Default)]
pub(super) struct Named<'t> {
    tid: Option<i32>,
    pid: Option<i32>,
    comm: Option<Cow<'t, str>>,
    cgroup: Option<&'t str>,
}

impl Named<'_> {
    /// The cells of thread, process, name and cgroup.
    pub(super) fn cells(&self) -> [Cell<'_>; 4] {
        [self.tid.into(), self.pid.into(), self.comm.as_deref().into(), self.cgroup.into()]
    }
}

impl<'t> Named<'t> {
    /// A CPU's idle task.
    pub(super) const IDLE: Named<'static> =
        Named { tid: Some(0), pid: Some(0), comm: Some(Cow::Borrowed("idle")), cgroup: None };

    /// A thread of which only this is known.
    pub(super) fn thread(tid: Option<i32>, comm: Option<&'t [u8]>) -> Self {
        Self { tid, pid: None, comm: comm.map(text_of), cgroup: None }
    }
}

/// Names tasks, and keeps the paths of cgroups that were asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Tasks {
    cgroups: HashMap<(usize, Stay), String>,
}

impl Tasks {
    /// The task `task` of the guest of `vm`.
    pub(super) fn named<'t>(&'t mut self, timeline: &'t Timeline, vm: usize, task: TaskIndex) -> Named<'t> {
        let Some(guest) = timeline.vm(vm).map(|vm| &vm.guest) else { return Named::default() };
        let Some(known) = guest.task(task) else { return Named::default() };
        let stay = guest.stay(known);
        if !self.cgroups.contains_key(&(vm, stay))
            && let Some(path) = cgroup_of(&guest.memberships, stay)
        {
            self.cgroups.insert((vm, stay), path);
        }
        Named {
            tid: Some(known.tid),
            pid: guest.task(guest.process(task)).map(|process| process.tid),
            comm: (!known.comm.is_empty()).then(|| text_of(&known.comm)),
            cgroup: self.cgroups.get(&(vm, stay)).map(String::as_str),
        }
    }

    /// The process `pid` of the guest of `vm`, called `comm`, which recorded something itself.
    pub(super) fn process<'t>(&'t mut self, timeline: &'t Timeline, vm: usize, pid: u32, comm: &'t str) -> Named<'t> {
        let pid = i32::try_from(pid).ok();
        let task = pid.and_then(|pid| timeline.vm(vm)?.guest.living(pid));
        let cgroup = task.and_then(|task| self.named(timeline, vm, task).cgroup);
        Named { tid: None, pid, comm: Some(Cow::Borrowed(comm)), cgroup }
    }
}
