//! The way of what is followed, from the guest's driver to the VMM and back to the task that is woken: what is known of
//! its ends, and what is on the way back.

use super::flow_step::FlowMilestone;
use super::followed::{Followed, Handler};
use crate::report::statistics::ended::Keep;
use foldhash::HashMap;
use std::collections::BTreeMap;
use strata_analysis::event::Interrupt;
use strata_analysis::timeline::states::TaskIndex;

/// Pages of devices that are distinguished; they are the guest's choice.
const PAGES: usize = 4096;
/// What is followed at once, by place: more than any queue holds.
pub(super) const UNDER_WAY: usize = 4096;

/// The kicks of a device's page, ticks.
#[derive(Clone, Debug, Default)]
struct Kicks {
    /// Those that the VMM picked up last.
    picked_up: Vec<u64>,
    /// Those that it has not picked up yet.
    pending: Vec<u64>,
    /// When the last of them was recorded.
    last: u64,
}

/// A vCPU.
#[derive(Clone, Debug, Default)]
struct Vcpu {
    /// When it left the guest last.
    exit: u64,
    /// When KVM injected the device's interrupt that the guest has not entered the handler of yet, for the first time.
    injected: Option<u64>,
    /// The interrupt that it is in, in which something arrives, and when it began, ticks.
    within: Option<(Interrupt, u64)>,
    /// What arrived there and has woken nobody yet, by number.
    arrived: Vec<u64>,
    /// The one of them that may wake a task.
    waking: Option<u64>,
}

/// What is known of the way to the VMM and back, and what is on the way back.
#[derive(Debug, Default)]
pub struct IoPath<T> {
    vcpus: HashMap<u32, Vcpu>,
    /// By page of the device.
    kicks: BTreeMap<u64, Kicks>,
    /// The page of each device, once one notification could only be its.
    pages: HashMap<u32, u64>,
    /// By device: when the VMM began to serve what the guest gave it last.
    served: HashMap<u32, u64>,
    /// Arrived in the guest, by number.
    arrived: HashMap<u64, T>,
    /// Those whose task was woken, by task.
    woken: HashMap<TaskIndex, Vec<u64>>,
    next_number: u64,
    /// Streams whose records are missing at the moment.
    gaps: usize,
    pub(super) across_lost_records: u64,
    /// Those that have ended and were not taken yet, and their ticks.
    pub(super) kept: Keep<(u64, T)>,
}

impl<T: Followed> IoPath<T> {
    /// Records of a stream are missing from now on, or they go on.
    pub(super) const fn gap(&mut self, begins: bool) {
        self.gaps = if begins { self.gaps + 1 } else { self.gaps.saturating_sub(1) };
    }

    /// Whether records are missing at the moment: then one that begins is counted here, and not followed.
    pub(super) fn counts_as_lost(&mut self) -> bool {
        let is_lost = self.gaps > 0;
        self.across_lost_records += u64::from(is_lost);
        is_lost
    }

    /// Whether no records are missing at the moment.
    pub(super) const fn is_whole(&self) -> bool {
        self.gaps == 0
    }

    /// The page of `device`, if it is known.
    pub(super) fn page_of(&self, device: u32) -> Option<u64> {
        self.pages.get(&device).copied()
    }

    /// The vCPU leaves the guest.
    pub(super) fn exit(&mut self, vcpu: u32, time: u64) {
        self.vcpus.entry(vcpu).or_default().exit = time;
    }

    /// KVM injects an interrupt of a device into the vCPU.
    pub(super) fn inject(&mut self, vcpu: u32, time: u64, again: bool) {
        let injected = &mut self.vcpus.entry(vcpu).or_default().injected;
        // What is injected again has been on its way since the first time.
        *injected = if again { *injected } else { Some(time) };
    }

    /// The vCPU notifies the device in `page`.
    pub(super) fn kick(&mut self, vcpu: u32, page: u64, time: u64) {
        let exit = self.vcpus.get(&vcpu).map_or(0, |vcpu| vcpu.exit);
        if self.kicks.len() >= PAGES && !self.kicks.contains_key(&page) {
            return;
        }
        let kicks = self.kicks.entry(page).or_default();
        kicks.last = time;
        if kicks.pending.len() < UNDER_WAY {
            kicks.pending.push(if exit == 0 { time } else { exit });
        }
    }

    /// The VMM begins to serve what the guest gave `device`.
    pub(super) fn pick_up(&mut self, device: u32, time: u64) {
        self.learn_page(device);
        self.served.insert(device, time);
        if let Some(kicks) = self.pages.get(&device).and_then(|page| self.kicks.get_mut(page)) {
            kicks.picked_up = std::mem::take(&mut kicks.pending);
        }
    }

    /// Which page is `device`'s: the only one that is no other device's and that was kicked since the device was served
    /// last. An earlier kick may be that of another kind of device, which nobody picks up here.
    fn learn_page(&mut self, device: u32) {
        if self.pages.contains_key(&device) {
            return;
        }
        let served = self.served.get(&device).copied().unwrap_or(0);
        let free = |page: &u64| !self.pages.values().any(|taken| taken == page);
        let is_kicked = |kicks: &Kicks| !kicks.pending.is_empty() && kicks.last >= served;
        let mut kicked = self.kicks.iter().filter(|(page, kicks)| is_kicked(kicks) && free(page));
        if let (Some((&page, _)), None) = (kicked.next(), kicked.next()) {
            self.pages.insert(device, page);
        }
    }

    /// When the VMM began to serve what the guest gave `device` last.
    pub(super) fn served(&self, device: u32) -> Option<u64> {
        self.served.get(&device).copied()
    }

    /// Notes on `item`, given to `device` at `given`, the first kick after that.
    pub(super) fn pass_kick(&self, item: &mut T, device: u32, given: u64) {
        let Some(kicks) = self.pages.get(&device).and_then(|page| self.kicks.get(page)) else { return };
        if let Some(&kick) = kicks.picked_up.iter().chain(&kicks.pending).find(|&&kick| kick >= given) {
            item.pass(T::Milestone::KICKED, kick);
        }
    }

    /// The guest's `cpu` enters the handler of a device's interrupt.
    pub(super) fn enter_handler(&mut self, cpu: u32, time: u64) -> Handler {
        Handler { time, injected: self.vcpus.get_mut(&cpu).and_then(|vcpu| vcpu.injected.take()) }
    }

    /// The guest's `cpu` is in `interrupt`, in which something arrives, since `begin`.
    pub(super) fn enter(&mut self, cpu: u32, interrupt: Interrupt, begin: u64) {
        self.vcpus.entry(cpu).or_default().within = Some((interrupt, begin));
    }

    /// The interrupt that the guest's `cpu` is in, in which something arrives, and when it began.
    pub(super) fn within(&self, cpu: u32) -> Option<(Interrupt, u64)> {
        self.vcpus.get(&cpu)?.within
    }

    /// `item` arrives on the guest's `cpu`; its number.
    pub(super) fn arrive(&mut self, cpu: u32, item: T) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.arrived.insert(number, item);
        self.vcpus.entry(cpu).or_default().arrived.push(number);
        number
    }

    /// The one with `number`, of those that have arrived.
    pub(super) fn arrived(&mut self, number: u64) -> Option<&mut T> {
        self.arrived.get_mut(&number)
    }

    /// The one with `number` may wake a task on the guest's `cpu`.
    pub(super) fn may_wake(&mut self, cpu: u32, number: u64) {
        self.vcpus.entry(cpu).or_default().waking = Some(number);
    }

    /// The guest's `cpu` leaves what it was in: those that arrived there and woke nobody are at their ends.
    pub(super) fn leave(&mut self, cpu: u32) -> Vec<T> {
        let Some(vcpu) = self.vcpus.get_mut(&cpu) else { return Vec::new() };
        (vcpu.within, vcpu.waking) = (None, None);
        vcpu.arrived.drain(..).filter_map(|number| self.arrived.remove(&number)).collect()
    }

    /// Something on the guest's `cpu`, in `interrupt`, wakes the task at `index`.
    pub(super) fn wake(&mut self, cpu: u32, interrupt: Option<Interrupt>, index: TaskIndex, time: u64) {
        let Some(vcpu) = self.vcpus.get_mut(&cpu) else { return };
        // An interrupt on top of that in which something arrived wakes for something else.
        if vcpu.within.is_some_and(|(within, _)| interrupt != Some(within)) {
            return;
        }
        let Some(number) = vcpu.waking.take() else { return };
        vcpu.arrived.retain(|&arrived| arrived != number);
        if let Some(item) = self.arrived.get_mut(&number) {
            item.pass(T::Milestone::WOKEN, time);
            *item.woken() = Some(index);
            self.woken.entry(index).or_default().push(number);
        }
    }

    /// The task at `index` runs: those that woke it are at their ends.
    pub(super) fn run(&mut self, index: TaskIndex, time: u64) -> Vec<T> {
        let numbers = self.woken.remove(&index).unwrap_or_default();
        let mut ended: Vec<T> = numbers.into_iter().filter_map(|number| self.arrived.remove(&number)).collect();
        ended.iter_mut().for_each(|item| item.pass(T::Milestone::RUNNING, time));
        ended
    }

    /// Forgets what is under way, but not which page is whose. As many as `of_kind` were forgotten elsewhere.
    pub(super) fn forget(&mut self, of_kind: usize) {
        self.across_lost_records += (of_kind + self.arrived.len()) as u64;
        self.vcpus.clear();
        self.kicks.clear();
        self.served.clear();
        self.arrived.clear();
        self.woken.clear();
    }

    /// Those that have arrived, in order: no record is to come.
    pub(super) fn take_all(&mut self) -> Vec<T> {
        let mut all: Vec<(u64, T)> = self.arrived.drain().collect();
        all.sort_unstable_by_key(|&(number, _)| number);
        all.into_iter().map(|(_, item)| item).collect()
    }
}
