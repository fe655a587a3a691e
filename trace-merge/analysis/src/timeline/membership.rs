//! Which cgroup each task of a guest is in, and what it is called in its own pid namespace, as far as records tell.
//!
//! What `strata:task` says of a task that existed already holds back to the beginning, or to the last record that says
//! something else: nothing moves a task without a record.

use crate::event::{FoundTask, Tid};
use foldhash::HashMap;
use serde::Serialize;

/// What a task is called in its own pid namespace, which is not the initial one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OwnIds {
    /// Thread id.
    pub tid: Tid,
    /// Process id; 0 where it was about to end.
    pub pid: Tid,
    /// The namespace: its inode, as `/proc/PID/ns/pid` shows it.
    pub namespace: u32,
}

/// A stay of tasks in a cgroup: index into [`Memberships`]. Later ones have higher numbers.
pub type Stay = usize;

/// The stay that is not known, and will not be.
pub const NOWHERE: Stay = 0;

/// Where a task belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Membership {
    /// Its process; its own thread id where that is not known.
    process: Tid,
    stay: Stay,
    pub(super) own: Option<OwnIds>,
    /// Whether it was recorded before it was forked.
    is_unborn: bool,
}

impl Membership {
    pub(super) const UNKNOWN: Self = Self { process: 0, stay: NOWHERE, own: None, is_unborn: false };
}

/// The memberships of a guest's tasks, at the moment that the timeline has come to.
#[derive(Clone, Debug)]
pub struct Memberships {
    /// By [`Stay`]: the cgroup's id, where it is known, and from when on.
    stays: Vec<(Option<u64>, u64)>,
    tasks: HashMap<Tid, Membership>,
    /// Where processes were moved to as a whole.
    moved: HashMap<Tid, Stay>,
    paths: HashMap<u64, Vec<u8>>,
}

impl Default for Memberships {
    fn default() -> Self {
        let (tasks, moved, paths) = (HashMap::default(), HashMap::default(), HashMap::default());
        Self { stays: vec![(None, 0)], tasks, moved, paths }
    }
}

impl Memberships {
    /// Whether the cgroup of any task is known.
    #[must_use]
    pub fn any_known(&self) -> bool {
        self.stays.iter().any(|(cgroup, _)| cgroup.is_some())
    }

    /// The id of the cgroup, and since when its tasks are there, ticks; 0 for from the beginning on.
    #[must_use]
    pub fn stay(&self, stay: Stay) -> (Option<u64>, u64) {
        self.stays.get(stay).copied().unwrap_or((None, 0))
    }

    /// The path of the cgroup `id` in the default hierarchy. The guest chose it.
    #[must_use]
    pub fn path(&self, id: u64) -> Option<String> {
        self.paths.get(&id).map(|path| String::from_utf8_lossy(path).into_owned())
    }

    /// Where a task with `membership` is now: its process may have been moved since.
    pub(super) fn stay_of(&self, membership: &Membership) -> Stay {
        let moved = self.moved.get(&membership.process).copied().unwrap_or(NOWHERE);
        moved.max(membership.stay)
    }

    /// The membership of the task `tid`, which exists.
    pub(super) fn of(&mut self, tid: Tid) -> Membership {
        if let Some(known) = self.tasks.get(&tid) {
            return *known;
        }
        let stay = self.begin_stay(None, 0);
        let membership = Membership { process: tid, stay, own: None, is_unborn: false };
        self.tasks.insert(tid, membership);
        membership
    }

    fn begin_stay(&mut self, cgroup: Option<u64>, since: u64) -> Stay {
        self.stays.push((cgroup, since));
        self.stays.len() - 1
    }

    /// A cgroup has this path.
    pub(super) fn name(&mut self, id: u64, path: &[u8]) {
        self.paths.insert(id, path.to_vec());
    }

    /// The task exists.
    pub(super) fn found(&mut self, time: u64, found: &FoundTask) {
        let own = (found.level > 0).then_some(OwnIds {
            tid: found.own_tid,
            pid: found.own_process,
            namespace: found.namespace,
        });
        if found.is_new {
            let stay = self.begin_stay(found.cgroup, time);
            let is_unborn = true;
            self.tasks.insert(found.tid, Membership { process: found.process, stay, own, is_unborn });
            return;
        }
        let before = Membership { process: found.process, own, ..self.of(found.tid) };
        let now = self.stay_of(&before);
        let stay = match self.stays.get_mut(now) {
            Some((known @ None, _)) => {
                *known = found.cgroup;
                now
            }
            Some((known, _)) if *known == found.cgroup || found.cgroup.is_none() => now,
            // A record of its being moved is missing.
            _ => self.begin_stay(found.cgroup, time),
        };
        self.tasks.insert(found.tid, Membership { stay, ..before });
    }

    /// A task is made by `parent`, as a thread of its process if `is_thread`.
    pub(super) fn fork(&mut self, parent: Option<Tid>, child: Tid, is_thread: bool) {
        if !is_thread {
            self.moved.remove(&child);
        }
        if let Some(reported) = self.tasks.get_mut(&child).filter(|reported| reported.is_unborn) {
            reported.is_unborn = false;
            return;
        }
        let parent = parent.map_or(Membership::UNKNOWN, |parent| self.of(parent));
        let process = if is_thread { parent.process } else { child };
        let stay = self.stay_of(&parent);
        self.tasks.insert(child, Membership { process, stay, own: None, is_unborn: false });
    }

    /// The task `old` is `new` from now on, the first thread of its process.
    pub(super) fn renumber(&mut self, old: Tid, new: Tid) {
        if let Some(known) = self.tasks.remove(&old) {
            let own = known.own.map(|own| OwnIds { tid: own.pid, ..own });
            self.tasks.insert(new, Membership { own, ..known });
        }
    }

    /// The task has ended.
    pub(super) fn end(&mut self, tid: Tid) {
        self.tasks.remove(&tid);
    }

    /// A task is moved to a cgroup, and its process with it if it is the first thread. A first thread that goes alone, in a
    /// threaded subtree, has the same record.
    pub(super) fn attach(&mut self, time: u64, tid: Tid, cgroup: u64) {
        let membership = self.of(tid);
        if self.stay(self.stay_of(&membership)).0 == Some(cgroup) {
            return;
        }
        let stay = self.begin_stay(Some(cgroup), time);
        if membership.process == tid {
            self.moved.insert(tid, stay);
        }
        self.tasks.insert(tid, Membership { stay, ..membership });
    }
}

#[cfg(test)]
mod tests;
