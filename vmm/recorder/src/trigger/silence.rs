//! For how long vCPUs have been running without a record of their guest's kernel.

use super::vcpus::{Place, VcpuThreads};

/// CPUs of a guest that are known, at most.
const MAX_CPUS: usize = 1 << 16;

/// What is known of the vCPUs of a VM. Times are ticks.
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// By place of the thread; none of one that is blocked or not known.
    awake: Vec<Option<Awake>>,
    /// By CPU of the guest: when it made its last record; of CPUs that have made one.
    recorded: Vec<Option<u64>>,
}

/// A vCPU's thread that is not blocked.
#[derive(Debug)]
struct Awake {
    /// Since when.
    since: u64,
    /// Since when it is on a CPU of the host; `None` while the host runs something else there, as the recorder that
    /// asks.
    on_cpu_since: Option<u64>,
    /// How long it ran before that, behind the guest's record of the time `behind`.
    ran: u64,
    behind: Option<u64>,
}

impl Awake {
    /// How long it has been running behind the guest's record of the time `recorded`, up to `until`.
    fn ran(&self, recorded: u64, until: u64) -> u64 {
        let before = if self.behind == Some(recorded) { self.ran } else { 0 };
        before + self.on_cpu_since.map_or(0, |since| until.saturating_sub(since.max(recorded)))
    }
}

/// A vCPU whose guest is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Silent {
    pub(super) vcpu: u32,
    /// Since when it is silent and not blocked.
    pub(super) since: u64,
    /// How long it has been running since.
    pub(super) ran: u64,
}

impl Silence {
    /// The guest's kernel made a record on `cpu`.
    #[inline]
    pub(super) fn recorded(&mut self, cpu: u32, time: u64) {
        match self.recorded.get_mut(cpu as usize) {
            Some(recorded) => *recorded = Some(time),
            None => self.records_first(cpu as usize, time),
        }
    }

    #[cold]
    fn records_first(&mut self, place: usize, time: u64) {
        if place < MAX_CPUS {
            self.recorded.resize(place, None);
            self.recorded.push(Some(time));
        }
    }

    /// The guest's kernel records no more: its silence means nothing from now on.
    pub(super) fn forget_guest(&mut self) {
        self.recorded.clear();
    }

    /// A vCPU's thread comes on a CPU.
    pub(super) fn runs(&mut self, thread: Place, time: u64) {
        let place = thread as usize;
        if self.awake.len() <= place {
            self.awake.resize_with(place + 1, || None);
        }
        if let Some(awake) = self.awake.get_mut(place) {
            let awake = awake.get_or_insert(Awake { since: time, on_cpu_since: None, ran: 0, behind: None });
            awake.on_cpu_since = Some(time);
        }
    }

    /// The thread of `vcpu` leaves its CPU, and would run on.
    pub(super) fn is_preempted(&mut self, thread: Place, vcpu: u32, time: u64) {
        let recorded = self.recorded.get(vcpu as usize).copied().flatten();
        if let Some(Some(awake)) = self.awake.get_mut(thread as usize) {
            awake.ran = recorded.map_or(0, |recorded| awake.ran(recorded, time));
            awake.behind = recorded;
            awake.on_cpu_since = None;
        }
    }

    /// A vCPU's thread is blocked: its guest has halted it, or it waits for the host.
    pub(super) fn blocks(&mut self, thread: Place) {
        if let Some(awake) = self.awake.get_mut(thread as usize) {
            *awake = None;
        }
    }

    /// Those of `vcpus` that are silent, up to `until`. A CPU that has never made a record has no agent.
    pub(super) fn silent(&self, vcpus: &VcpuThreads, until: u64) -> Vec<Silent> {
        let silent = |(thread, vcpu): (Place, u32)| {
            let awake = self.awake.get(thread as usize)?.as_ref()?;
            let recorded = (*self.recorded.get(vcpu as usize)?)?;
            Some(Silent { vcpu, since: awake.since.max(recorded), ran: awake.ran(recorded, until) })
        };
        vcpus.iter().filter_map(silent).collect()
    }
}
