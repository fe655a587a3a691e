//! What vCPUs do, what guests' tasks really do, and how often vCPUs leave the guest: under the names that reports use.

use super::packets::{Machine, Name, OftenName, PacketWriter};
use super::proto::{ProcessDescriptor, ThreadDescriptor, TrackDescriptor};
use super::tracks::{self, Kind, uuid};
use foldhash::HashMap;
use std::collections::BTreeMap;
use std::hash::Hash;
use std::io::Write;
use strata_analysis::event::Event;
use strata_analysis::timeline::fused::Fused;
use strata_analysis::timeline::states::TaskIndex;
use strata_analysis::timeline::vcpu::VcpuState;
use strata_analysis::timeline::{Origin, Timeline};
use strata_recording::clock::NS_PER_SECOND;
use strata_recording::text::terminal::harmless;
use trace_merge::report::scheduling::{tasks, vcpus};

/// Exits are counted over periods of this length, ns.
const PERIOD: u64 = 100_000_000;
/// What of a period counts as so long at least: few exits at the edge of the window are no rate.
const LEAST: u64 = PERIOD / 10;
/// Names that are kept ready; threads of a host may give rise to any number.
const MOST_NAMES: usize = 4096;
/// What a state is called that the records do not tell.
const UNKNOWN: &str = "not known";

/// Draws states.
#[derive(Debug, Default)]
pub(super) struct States {
    /// By host: names of states.
    vcpu_names: Names<VcpuState>,
    task_names: Names<Fused>,
    /// By VM and task: the tracks that are described.
    described: Vec<Vec<bool>>,
    /// By VM and vCPU.
    exits: BTreeMap<(usize, u32), Exits>,
    /// When the window begins, ns.
    begin: u64,
}

type Names<S> = HashMap<(usize, S), OftenName>;

/// The exits of a vCPU in the period that lasts.
#[derive(Clone, Copy, Debug, Default)]
struct Exits {
    period: u64,
    count: u64,
}

/// The name of `state` on the host at `host`, made by `make` where it is not known yet.
fn name_of<S: Eq + Hash + Copy>(
    names: &mut Names<S>,
    host: usize,
    state: S,
    make: impl FnOnce() -> (&'static str, Option<String>),
) -> &mut OftenName {
    if names.len() >= MOST_NAMES && !names.contains_key(&(host, state)) {
        names.clear();
    }
    names.entry((host, state)).or_insert_with(|| {
        OftenName::new(match make() {
            ("unknown" | "vcpu_unknown", _) => UNKNOWN.into(),
            (name, Some(detail)) => format!("{name}: {}", harmless(&detail)),
            (name, None) => name.into(),
        })
    })
}

impl States {
    /// What is drawn begins at `begin`, ns.
    pub(super) const fn begin_at(&mut self, begin: u64) {
        self.begin = begin;
    }

    /// Describes the tracks of vCPUs.
    pub(super) fn introduce<W: Write>(&mut self, out: &mut PacketWriter<W>, timeline: &Timeline, time: u64) {
        for (index, vm) in timeline.vms.iter().enumerate() {
            let machine = tracks::host(vm.host);
            let group = uuid(Kind::Vcpus, index, 0);
            out.track(machine, time, tracks::named(group, None, format!("{}: vCPUs", vm.name)));
            for vcpu in vm.vcpus.numbers() {
                let track = tracks::named(uuid(Kind::Vcpu, index, vcpu as usize), Some(group), format!("vCPU {vcpu}"));
                out.track(machine, time, track);
                let rate = uuid(Kind::ExitRate, index, vcpu as usize);
                if vm.kvm_reports {
                    let name = format!("vCPU {vcpu}: exits");
                    out.track(machine, time, tracks::counter(rate, Some(group), name, "1/s"));
                }
            }
        }
    }

    /// The vCPU was in `state` in the window `window`, ns.
    pub(super) fn vcpu<W: Write>(
        &mut self,
        out: &mut PacketWriter<W>,
        timeline: &Timeline,
        (vm, vcpu): (usize, u32),
        window: (u64, u64),
        state: VcpuState,
    ) {
        let Some(known) = timeline.vm(vm) else { return };
        let make = || vcpus::name(state, timeline.hosts.get(known.host));
        let name = name_of(&mut self.vcpu_names, known.host, state, make);
        let track = uuid(Kind::Vcpu, vm, vcpu as usize);
        out.slice(tracks::host(known.host), track, window, Name::Often(name), None);
    }

    /// The guest's task was in `state` in the window `window`, ns.
    pub(super) fn task<W: Write>(
        &mut self,
        out: &mut PacketWriter<W>,
        timeline: &Timeline,
        (vm, task): (usize, TaskIndex),
        window: (u64, u64),
        state: Fused,
    ) {
        let Some(known) = timeline.vm(vm) else { return };
        let is_known = self.is_described(vm, task);
        // Before a task is met there is nothing to be known.
        if state == Fused::Unknown && !is_known {
            return;
        }
        self.describe(out, timeline, (vm, task), window.0);
        let make = || tasks::name(state, timeline.hosts.get(known.host));
        let name = name_of(&mut self.task_names, known.host, state, make);
        out.slice(tracks::guest(vm), uuid(Kind::Task, vm, task), window, Name::Often(name), None);
    }

    fn is_described(&self, vm: usize, task: TaskIndex) -> bool {
        self.described.get(vm).and_then(|tasks| tasks.get(task)).copied().unwrap_or(false)
    }

    /// Describes the tracks of the guest's task, unless they are.
    fn describe<W: Write>(
        &mut self,
        out: &mut PacketWriter<W>,
        timeline: &Timeline,
        (vm, task): (usize, TaskIndex),
        time: u64,
    ) {
        if self.is_described(vm, task) {
            return;
        }
        if self.described.len() <= vm {
            self.described.resize(vm + 1, Vec::new());
        }
        let Some(tasks) = self.described.get_mut(vm) else { return };
        if tasks.len() <= task {
            tasks.resize(task + 1, false);
        }
        if let Some(described) = tasks.get_mut(task) {
            *described = true;
        }
        let machine = tracks::guest(vm);
        if let Some(thread) = thread(timeline, vm, task) {
            if let Some(process) = process(&thread, vm) {
                out.track(machine, time, without_name(process));
            }
            out.track(machine, time, thread);
        }
        let parent = uuid(Kind::Thread, vm, task);
        out.track(machine, time, tracks::named(uuid(Kind::Task, vm, task), Some(parent), "what it really does"));
    }

    /// The guest's task has another name from `time` on: Perfetto calls a thread by the name that it got last.
    pub(super) fn rename<W: Write>(
        &mut self,
        out: &mut PacketWriter<W>,
        timeline: &Timeline,
        (vm, task): (usize, TaskIndex),
        time: u64,
    ) {
        if self.is_described(vm, task)
            && let Some(thread) = thread(timeline, vm, task)
        {
            out.track(tracks::guest(vm), time, thread);
        }
    }

    /// Counts an exit.
    pub(super) fn count<W: Write>(
        &mut self,
        out: &mut PacketWriter<W>,
        event: &Event<'_>,
        origin: Origin,
        time: u64,
        timeline: &Timeline,
    ) {
        let (&Event::KvmExit { tid, vcpu, .. }, Origin::Host { host, .. }) = (event, origin) else { return };
        let Some((vm, vcpu)) = timeline.vcpu_of_event(host, tid, vcpu) else { return };
        if out.muted {
            return;
        }
        let exits = self.exits.entry((vm, vcpu)).or_insert(Exits { period: time / PERIOD, count: 0 });
        if exits.period != time / PERIOD {
            let machine = tracks::host(host);
            exits.write(out, machine, (vm, vcpu), (self.begin, u64::MAX));
            // Nothing happened in the periods between.
            if exits.period + 1 < time / PERIOD {
                out.counter(machine, uuid(Kind::ExitRate, vm, vcpu as usize), (exits.period + 1) * PERIOD, 0);
            }
            *exits = Exits { period: time / PERIOD, count: 0 };
        }
        exits.count += 1;
    }

    /// Writes what is not written at the end, `time`: the names of processes, too, because Perfetto calls one by the
    /// name that it got first.
    pub(super) fn finish<W: Write>(&mut self, out: &mut PacketWriter<W>, timeline: &Timeline, time: u64) {
        for (vm, tasks) in self.described.iter().enumerate() {
            let described = tasks.iter().enumerate().filter(|(_, described)| **described);
            for thread in described.filter_map(|(task, _)| thread(timeline, vm, task)) {
                if let Some(process) = process(&thread, vm) {
                    out.track(tracks::guest(vm), time, process);
                }
                // Its last name may have been written with the time of a state that had begun before.
                out.track(tracks::guest(vm), time, thread);
            }
        }
        for (&(vm, vcpu), exits) in &self.exits {
            let machine = tracks::host(timeline.vm(vm).map_or(0, |vm| vm.host));
            exits.write(out, machine, (vm, vcpu), (self.begin, time));
            let end = ((exits.period + 1) * PERIOD).min(time);
            out.counter(machine, uuid(Kind::ExitRate, vm, vcpu as usize), end, 0);
        }
    }
}

impl Exits {
    /// Writes how many there were a second, as far as the period lies between `begin` and `end`, ns.
    fn write<W: Write>(
        self,
        out: &mut PacketWriter<W>,
        machine: Machine,
        (vm, vcpu): (usize, u32),
        (begin, end): (u64, u64),
    ) {
        let from = begin.max(self.period * PERIOD);
        let length = ((self.period + 1) * PERIOD).min(end).saturating_sub(from).max(LEAST);
        let rate = self.count.saturating_mul(NS_PER_SECOND) / length;
        out.counter(machine, uuid(Kind::ExitRate, vm, vcpu as usize), from, rate);
    }
}

/// The track of the thread that the guest's task is.
pub(super) fn thread(timeline: &Timeline, vm: usize, task: TaskIndex) -> Option<TrackDescriptor> {
    let guest = &timeline.vm(vm)?.guest;
    let (tid, name) = guest.task_name(task);
    let process = guest.task(guest.process(task))?.tid;
    let thread = ThreadDescriptor { pid: Some(process), tid: Some(tid), thread_name: Some(harmless(&name)) };
    Some(TrackDescriptor {
        uuid: Some(uuid(Kind::Thread, vm, task)),
        thread: Some(thread),
        ..TrackDescriptor::default()
    })
}

/// The track of the process whose first thread `thread` describes; `None` where it is another one.
fn process(thread: &TrackDescriptor, vm: usize) -> Option<TrackDescriptor> {
    let described = thread.thread.clone().filter(|thread| thread.pid == thread.tid)?;
    let process = ProcessDescriptor { pid: described.pid, process_name: described.thread_name };
    let number = described.pid.and_then(|pid| usize::try_from(pid).ok()).unwrap_or(0);
    Some(TrackDescriptor {
        uuid: Some(uuid(Kind::Process, vm, number)),
        process: Some(process),
        ..TrackDescriptor::default()
    })
}

fn without_name(track: TrackDescriptor) -> TrackDescriptor {
    let process = track.process.map(|process| ProcessDescriptor { process_name: None, ..process });
    TrackDescriptor { process, ..track }
}
