//! The timeline: who runs where, and in which state, at each moment of a recording.
//!
//! A [`Timeline`] takes in records and gaps in time order. It keeps what is now, not what was: memory is proportional
//! to the number of CPUs, vCPUs and tasks, and does not grow with the recording. The end of a state is reported as a
//! [`Change`], which analyses take in. What the records do not tell is *unknown*, never guessed: before the first
//! record about a subject, and from where records are missing that could have changed it.

pub mod by_number;
mod change;
pub mod fused;
pub mod guest;
pub mod host;
mod input;
pub mod membership;
pub mod states;
pub mod vcpu;
mod vm;

use change::Changes;
pub use change::{Change, ChangeKind};
pub use input::{Input, Kernel, Origin};
pub use vm::Vm;

use crate::event::{self, Event, Task, Tid, WakeupStage};
use crate::vcpu::SwitchSource;
use by_number::ByNumber;
use foldhash::HashMap;
use guest::Guest;
use host::{Host, ThreadState};
use states::{CpuView, Current};
use std::collections::{BTreeMap, BTreeSet};
use strata_recording::clock::Clock;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::Vm as VmDescription;
use strata_recording::reader::{Trace, TraceLayer};
use strata_recording::window::Window;
use vcpu::Vcpu;

/// Longest time that a CPU which is idle takes to begin, ns: what wakes it is handled within a few milliseconds, also
/// where the host is a virtual machine itself.
pub const LONGEST_BEGIN_NS: u64 = 10_000_000;

/// Who runs where, now.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// The hosts; a recording of one machine has one.
    pub hosts: Vec<Host>,
    /// The virtual machines.
    pub vms: Vec<Vm>,
    /// First and last moment of the records of kernels and VMMs, in the whole recording; `None` when there are none.
    pub span: Option<Window>,
    /// The vCPU that a host thread ran last, or is the first one known to have run: by host and thread id, VM and vCPU.
    /// The thread runs it for as long as the vCPU's `tid` is the thread's.
    vcpu_threads: HashMap<(usize, Tid), (usize, u32)>,
    clock: Clock,
    /// Longest time that a CPU which is idle takes to begin, ticks.
    longest_begin: u64,
    /// Who recorded the record that was taken in last.
    recorder: Current,
    /// Whether states are left out.
    is_without_states: bool,
    changes: Changes,
}

impl Timeline {
    /// The timeline of `trace` before its first record.
    #[must_use]
    pub fn new(trace: &Trace) -> Self {
        let mut timeline = Self {
            hosts: Vec::new(),
            vms: Vec::new(),
            span: None,
            vcpu_threads: HashMap::default(),
            clock: trace.clock().clone(),
            longest_begin: trace.clock().ns_to_ticks(LONGEST_BEGIN_NS),
            recorder: Current::Unknown,
            is_without_states: false,
            changes: Changes::default(),
        };
        for description in &trace.manifest().vms {
            timeline.add_vm(trace, description);
        }
        for layer in trace.layers().iter().filter(|layer| layer.description.kind != LayerKind::GuestUser) {
            if layer.description.kind == LayerKind::HostKernel {
                timeline.host_index(layer.description.host.as_deref());
            }
            timeline.span = union(timeline.span, span(layer));
        }
        timeline
    }

    /// The timeline of `vm` as its host's kernel tells it while it runs, before the first record: of one host, whose
    /// kernel `records` the events that it says it does. What the VMM records is not among them: its part of an exit is
    /// by KVM's return to it and the next entry.
    #[must_use]
    pub fn of_running_vm(vm: &VmDescription, clock: &Clock, records: impl Fn(&str) -> bool) -> Self {
        let kvm_reports = ["kvm:kvm_entry", "kvm:kvm_exit"].into_iter().all(&records);
        let threads = (0..).zip(&vm.vcpu_threads);
        let vcpus = threads.clone().map(|(vcpu, &tid)| (vcpu, Vcpu::new(Some(tid)))).collect();
        let vcpu_threads = threads.map(|(vcpu, &tid)| ((0, tid), (0, vcpu))).collect();
        let vm = Vm {
            name: vm.name.clone(),
            host: 0,
            vcpus,
            guest: Guest::default(),
            kvm_reports,
            scheduler_reports: records(event::name::SWITCH),
            kernel_span: None,
            vcpus_are_recorded: kvm_reports,
            never_joined: BTreeSet::new(),
            returns_are_recorded: records(event::name::KVM_USERSPACE_EXIT),
        };
        Self {
            hosts: vec![Host::new(None)],
            vms: vec![vm],
            span: None,
            vcpu_threads,
            clock: clock.clone(),
            longest_begin: clock.ns_to_ticks(LONGEST_BEGIN_NS),
            recorder: Current::Unknown,
            is_without_states: false,
            changes: Changes::default(),
        }
    }

    /// Leaves out, from the first record on, what vCPUs, and CPUs and tasks of guests do: no state ends, and all stay what
    /// they are before the first record. Who runs and who is who is known all the same.
    pub(crate) const fn leave_out_states(&mut self) {
        self.is_without_states = true;
    }

    fn add_vm(&mut self, trace: &Trace, description: &VmDescription) {
        let host = self.host_index(description.host.as_deref());
        let index = self.vms.len();
        let mut vcpus: ByNumber<Vcpu> = (0..description.vcpus).map(|vcpu| (vcpu, Vcpu::new(None))).collect();
        let host_layers =
            || trace.layers_of(LayerKind::HostKernel).filter(|layer| layer.description.host == description.host);
        let returns_are_recorded =
            host_layers().any(|layer| event::is_recorded(layer, event::name::KVM_USERSPACE_EXIT));
        let kvm_reports = SwitchSource::HostKernel.layers(trace, description).next().is_some();
        for (vcpu, tid) in description.all_vcpu_threads() {
            // The first one that is known has it until another one enters the guest; the last one, where nothing tells that.
            let is_first = vcpus.get(vcpu).is_none_or(|vcpu| vcpu.tid.is_none());
            if is_first || !kvm_reports && !returns_are_recorded {
                vcpus.insert(vcpu, Vcpu::new(Some(tid)));
            }
            self.vcpu_threads.entry((host, tid)).or_insert((index, vcpu));
        }
        let source = |source: SwitchSource| source.layers(trace, description).next().is_some();
        let kernel_layers = || {
            let of_vm = |layer: &&TraceLayer| layer.description.vm.as_ref() == Some(&description.name);
            trace.layers_of(LayerKind::GuestKernel).filter(of_vm)
        };
        let streams = kernel_layers().flat_map(|layer| &layer.streams).map(|stream| &stream.description);
        self.vms.push(Vm {
            name: description.name.clone(),
            host,
            vcpus,
            guest: Guest::default(),
            kvm_reports,
            scheduler_reports: host_layers().any(|layer| event::is_recorded(layer, event::name::SWITCH)),
            returns_are_recorded,
            kernel_span: kernel_layers().map(span).fold(None, union),
            vcpus_are_recorded: source(SwitchSource::HostKernel) || source(SwitchSource::Vmm),
            never_joined: streams.filter(|stream| stream.never_joined).map(|stream| stream.cpu_id).collect(),
        });
    }

    fn host_index(&mut self, name: Option<&str>) -> usize {
        match self.hosts.iter().position(|host| host.name.as_deref() == name) {
            Some(index) => index,
            None => {
                self.hosts.push(Host::new(name.map(Into::into)));
                self.hosts.len() - 1
            }
        }
    }

    /// What the records of the stream `cpu` of `layer` are about; `None` for a VM that the manifest does not name.
    #[must_use]
    pub fn origin(&self, layer: &TraceLayer, cpu: u32) -> Option<Origin> {
        let description = &layer.description;
        let vm = || self.vms.iter().position(|vm| Some(&vm.name) == description.vm.as_ref());
        let host = || self.hosts.iter().position(|host| host.name == description.host);
        Some(match description.kind {
            LayerKind::HostKernel => Origin::Host { host: host()?, cpu, only_kvm: event::is_of_kvm_only(layer) },
            LayerKind::Vmm => Origin::Vmm { vm: vm()?, thread: cpu },
            LayerKind::GuestKernel => Origin::Guest { vm: vm()?, cpu },
            LayerKind::GuestUser => Origin::User { vm: vm()?, cpu },
        })
    }

    /// The clock of all times.
    #[must_use]
    pub const fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The VM at `index`.
    #[must_use]
    pub fn vm(&self, index: usize) -> Option<&Vm> {
        self.vms.get(index)
    }

    /// The host of the VM at `index`.
    #[must_use]
    pub fn host_of(&self, vm: usize) -> Option<&Host> {
        self.hosts.get(self.vms.get(vm)?.host)
    }

    /// The VM and vCPU that the thread `tid` of `host` runs.
    #[must_use]
    pub fn vcpu_of_thread(&self, host: usize, tid: Tid) -> Option<(usize, u32)> {
        let (vm, vcpu) = self.vcpu_threads.get(&(host, tid)).copied()?;
        (self.vms.get(vm)?.vcpus.get(vcpu)?.tid == Some(tid)).then_some((vm, vcpu))
    }

    /// The VM and vCPU of an event of KVM's that the thread `tid` of `host` recorded: the `vcpu` that the event itself
    /// names, else the one that the thread ran last. Where the threads of no VM are known, there is one VM.
    #[must_use]
    pub fn vcpu_of_event(&self, host: usize, tid: Tid, vcpu: Option<u32>) -> Option<(usize, u32)> {
        match (self.vcpu_threads.get(&(host, tid)).copied(), vcpu) {
            (Some((vm, last)), vcpu) => Some((vm, vcpu.unwrap_or(last))),
            (None, Some(vcpu)) if self.vcpu_threads.is_empty() && self.vms.len() == 1 => Some((0, vcpu)),
            (None, _) => None,
        }
    }

    /// Who made the record that was taken in last: of a guest's kernel, whose turn it was on its CPU when it was
    /// recorded; of a switch, who gave the CPU away. Unknown for other layers.
    #[must_use]
    pub const fn recorder(&self) -> Current {
        self.recorder
    }

    /// The states that ended with the record or gap that was taken in last.
    #[must_use]
    pub fn changes(&self) -> &[Change] {
        self.changes.all()
    }

    /// Reports only changes of the kinds that are `wanted`.
    pub(crate) fn report_only(&mut self, wanted: impl Fn(ChangeKind) -> bool) {
        self.changes.report_only(wanted);
    }

    /// Takes in a record. Records and gaps come in time order.
    pub fn apply(&mut self, input: &Input<'_>) {
        self.changes.clear();
        self.recorder = match input.origin {
            Origin::Guest { vm, cpu } => self.vms.get(vm).map_or(Current::Unknown, |vm| vm.guest.recorder(cpu)),
            _ => Current::Unknown,
        };
        let Some(event) = &input.event else { return };
        let time = input.record.time;
        match input.origin {
            Origin::Host { host, cpu, .. } => self.apply_to_host(time, host, cpu, event),
            Origin::Vmm { vm, .. } => self.apply_to_vmm(time, vm, event),
            Origin::Guest { vm, cpu } => {
                self.begin_guest(time, vm);
                if let Some(state) = self.vms.get_mut(vm) {
                    state.guest.apply(time, cpu, event);
                    self.settle_guest(time, vm, cpu);
                }
            }
            Origin::User { .. } => {}
        }
    }

    /// Takes in that records of a stream are missing from `time` on.
    pub fn begin_gap(&mut self, time: u64, origin: Origin) {
        self.changes.clear();
        match origin {
            Origin::Host { host, cpu, only_kvm: false } => self.begin_host_gap(time, host, cpu),
            Origin::Host { host, cpu, only_kvm: true } => self.begin_kvm_gap(time, host, cpu),
            Origin::Vmm { vm, thread } => {
                self.with_vcpu(time, vm, thread, Vcpu::begin_vmm_gap);
                if self.vms.get(vm).is_some_and(|vm| !vm.kvm_reports) {
                    self.may_have_run(time, vm, thread);
                }
            }
            Origin::Guest { vm, cpu } => {
                if self.never_ran(vm, cpu)
                    && let Some(vm) = self.vms.get_mut(vm)
                {
                    vm.guest.unused.insert(cpu, false);
                } else {
                    self.begin_guest_gap(time, vm, cpu);
                }
            }
            Origin::User { .. } => {}
        }
    }

    /// Takes in that the records of a stream go on.
    pub fn end_gap(&mut self, time: u64, origin: Origin) {
        self.changes.clear();
        match origin {
            Origin::Host { host, cpu, only_kvm } => {
                if let Some(host) = self.hosts.get_mut(host) {
                    if only_kvm { host.end_kvm_gap(cpu) } else { host.end_gap(cpu) }
                }
            }
            Origin::Vmm { vm, thread } => self.with_vcpu(time, vm, thread, Vcpu::end_vmm_gap),
            Origin::Guest { vm, cpu } => {
                if let Some(vm) = self.vms.get_mut(vm) {
                    vm.guest.end_gap(cpu);
                }
            }
            Origin::User { .. } => {}
        }
    }

    /// Takes in whose turn it is on a guest's CPU, as the first switch there tells, at the beginning of its records and
    /// after a gap.
    pub fn announce(&mut self, origin: Origin, task: Task<'_>) {
        self.changes.clear();
        if let Origin::Guest { vm, cpu } = origin
            && let Some(vm) = self.vms.get_mut(vm)
        {
            vm.guest.announce(cpu, task);
            vm.guest.touched.clear();
        }
    }

    /// Ends what still lasts at `time`, where the timeline ends.
    pub fn finish(&mut self, time: u64) {
        self.changes.clear();
        if self.is_without_states {
            return;
        }
        for (index, vm) in self.vms.iter_mut().enumerate() {
            let mut lasting = BTreeMap::new();
            for (number, vcpu) in vm.vcpus.iter_mut() {
                let window = Window { begin: std::mem::replace(&mut vcpu.since, time), end: time };
                let state = vcpu.state.having_lasted(window.length(), self.longest_begin);
                let change = || Change::Vcpu { vm: index, vcpu: number, window, state };
                self.changes.push(ChangeKind::Vcpu, window, change);
                lasting.insert(number, state);
            }
            for (cpu, state) in vm.guest.cpus_mut() {
                let window = Window { begin: std::mem::replace(&mut state.since, time), end: time };
                let vcpu = lasting.get(&cpu).copied().unwrap_or(state.view.vcpu);
                let change = || Change::Cpu { vm: index, cpu, window, view: CpuView { vcpu, ..state.view } };
                self.changes.push(ChangeKind::Cpu, window, change);
            }
            for (task, state) in vm.guest.tasks.iter_mut().enumerate() {
                let window = Window { begin: std::mem::replace(&mut state.since, time), end: time };
                let vcpu = state.state.cpu().and_then(|cpu| lasting.get(&cpu).copied());
                let state = state.fused.while_vcpu(vcpu);
                self.changes.push(ChangeKind::Task, window, || Change::Task { vm: index, task, window, state });
            }
        }
    }

    fn begin_guest_gap(&mut self, time: u64, vm: usize, cpu: u32) {
        if let Some(state) = self.vms.get_mut(vm) {
            state.guest.begin_gap(cpu);
            self.settle_guest(time, vm, cpu);
        }
    }

    /// Whether a CPU without any record has run no task so far: it never began to record, and a layer whose
    /// records are all there would have shown its vCPU's entering the guest.
    fn never_ran(&self, vm: usize, cpu: u32) -> bool {
        let Some(vm) = self.vms.get(vm).filter(|vm| vm.never_joined.contains(&cpu)) else { return false };
        let Some(vcpu) = vm.vcpus.get(cpu) else { return false };
        if vm.kvm_reports {
            vcpu.tid.is_some() && self.hosts.get(vm.host).is_some_and(|host| !host.has_kvm_gap())
        } else {
            vm.vcpus_are_recorded && !vcpu.has_vmm_gap()
        }
    }

    /// The vCPU may have been in the guest: a CPU that never records may run tasks from now on.
    fn may_have_run(&mut self, time: u64, vm: usize, cpu: u32) {
        let Some(guest) = self.vms.get_mut(vm).map(|vm| &mut vm.guest) else { return };
        match guest.unused.get_mut(&cpu) {
            Some(was_in_guest) if !guest.has_begun => *was_in_guest = true,
            Some(_) => {
                guest.unused.remove(&cpu);
                self.begin_guest_gap(time, vm, cpu);
            }
            None => {}
        }
    }

    /// The kernel of a guest begins to record. A vCPU that has halted by then, or has not begun, is not used by it: one
    /// that was taken offline before, say.
    fn begin_guest(&mut self, time: u64, index: usize) {
        let Some(vm) = self.vms.get_mut(index).filter(|vm| !vm.guest.has_begun) else { return };
        vm.guest.has_begun = true;
        let rests = |cpu: &u32| vm.vcpus.get(*cpu).is_some_and(Vcpu::rests);
        let unused = vm.guest.unused.iter();
        let used: Vec<u32> =
            unused.filter(|&(cpu, &was_in_guest)| was_in_guest && !rests(cpu)).map(|(&cpu, _)| cpu).collect();
        for cpu in used {
            self.may_have_run(time, index, cpu);
        }
    }

    fn apply_to_host(&mut self, time: u64, index: usize, cpu: u32, event: &Event<'_>) {
        let Some(host) = self.hosts.get_mut(index) else { return };
        let missing = host.has_gap();
        let (is_in_gap, hides_crossings) = (host.is_in_gap(cpu), host.hides_crossings(ThreadState::Running { cpu }));
        let before = host.cpu(cpu);
        host.apply(cpu, event);
        let is_other_now = host.cpu(cpu) != before;
        match *event {
            Event::Switch { prev, prev_state, next } => {
                if let host::HostCpuState::Running(ran) = before
                    && ran.tid != prev.tid
                {
                    self.with_thread(time, index, ran.tid, |vcpu| {
                        // Its being switched out was not recorded.
                        if vcpu.thread == (ThreadState::Running { cpu }) {
                            vcpu.set_thread(ThreadState::Unknown);
                        }
                    });
                }
                self.with_thread(time, index, prev.tid, |vcpu| {
                    // While records of another CPU are missing, it could go on there.
                    if missing {
                        vcpu.lose_location();
                    }
                    vcpu.set_thread(ThreadState::switched_out(cpu, prev_state, missing));
                    vcpu.queued = true;
                    vcpu.take_turn_of(cpu, next.tid <= 0);
                });
                self.with_thread(time, index, next.tid, |vcpu| {
                    if hides_crossings {
                        vcpu.lose_location();
                    }
                    vcpu.set_thread(ThreadState::Running { cpu });
                });
            }
            Event::Wakeup { task, cpu: target, stage } => {
                self.with_thread(time, index, task.tid, |vcpu| {
                    let woken = vcpu.thread.woken(target, missing);
                    if woken != vcpu.thread {
                        vcpu.set_thread(woken);
                    }
                    vcpu.queued |= stage != WakeupStage::Waking;
                });
            }
            Event::Migrate { tid, cpu: target } => {
                self.with_thread(time, index, tid, |vcpu| {
                    vcpu.set_thread(vcpu.thread.migrated(target, missing));
                });
            }
            Event::KvmEntry { tid, vcpu } | Event::KvmExit { tid, vcpu, .. } => {
                let returns_are_recorded = self.returns_are_recorded(index);
                let Some((vm, vcpu)) = self.vcpu_of_event(index, tid, vcpu) else { return };
                self.hand_over(time, index, (vm, vcpu), tid);
                self.with_vcpu(time, vm, vcpu, |vcpu| {
                    vcpu.apply_of_kvm(event, returns_are_recorded);
                    vcpu.set_thread(of_crossing(cpu, event, is_in_gap));
                });
                self.may_have_run(time, vm, vcpu);
            }
            Event::KvmUserspaceExit { tid } => {
                let returns_are_recorded = self.returns_are_recorded(index);
                let Some((vm, vcpu)) = self.vcpu_of_event(index, tid, None) else { return };
                self.hand_over(time, index, (vm, vcpu), tid);
                self.with_vcpu(time, vm, vcpu, |vcpu| {
                    vcpu.apply_of_kvm(event, returns_are_recorded);
                    vcpu.set_thread(of_crossing(cpu, event, is_in_gap));
                });
            }
            _ => {}
        }
        if is_other_now {
            self.settle_waiting(time, index, cpu);
        }
    }

    /// Whether KVM's returns to the VMM are recorded on the host at `index`.
    fn returns_are_recorded(&self, index: usize) -> bool {
        self.vms.iter().filter(|vm| vm.host == index).all(|vm| vm.returns_are_recorded)
    }

    fn apply_to_vmm(&mut self, time: u64, index: usize, event: &Event<'_>) {
        let Some(vm) = self.vms.get(index) else { return };
        let (host, kvm_reports) = (vm.host, vm.kvm_reports);
        match *event {
            Event::VcpuThread { vcpu, tid } => {
                self.vcpu_threads.insert((host, tid), (index, vcpu));
                self.with_vcpu(time, index, vcpu, |state| state.apply_of_vmm(event, kvm_reports));
            }
            Event::VmmEnter { vcpu } | Event::VmmExit { vcpu, .. } => {
                let hides = |state: &Vcpu| self.hosts.get(host).is_some_and(|host| host.hides_crossings(state.thread));
                let is_hidden = vm.vcpus.get(vcpu).is_some_and(hides);
                self.with_vcpu(time, index, vcpu, |state| {
                    state.apply_of_vmm(event, kvm_reports);
                    // It goes into KVM, and when it is in the guest from there is not recorded.
                    if is_hidden && matches!(event, Event::VmmEnter { .. }) {
                        state.lose_location();
                    }
                });
                if !kvm_reports {
                    self.may_have_run(time, index, vcpu);
                }
            }
            _ => {}
        }
    }

    /// Changes the vCPU that the thread `tid` of `host` runs.
    fn with_thread(&mut self, time: u64, host: usize, tid: Tid, change: impl FnOnce(&mut Vcpu)) {
        let Some((vm, vcpu)) = self.vcpu_of_thread(host, tid) else { return };
        self.with_vcpu(time, vm, vcpu, change);
    }

    /// The thread `tid` of `host` runs `vcpu` from now on, whoever ran it before. What becomes of a vCPU that the thread
    /// ran before is not known: no thread runs it.
    fn hand_over(&mut self, time: u64, host: usize, (vm, vcpu): (usize, u32), tid: Tid) {
        let Some(state) = self.vms.get_mut(vm).and_then(|vm| vm.vcpus.get_mut(vcpu)) else { return };
        if state.tid == Some(tid) || !self.vcpu_threads.contains_key(&(host, tid)) {
            return;
        }
        state.tid = Some(tid);
        let before = self.vcpu_threads.insert((host, tid), (vm, vcpu));
        if let Some((vm, other)) = before.filter(|&before| before != (vm, vcpu)) {
            self.with_vcpu(time, vm, other, |state| {
                if state.tid == Some(tid) {
                    state.tid = None;
                    state.lose_location();
                    state.set_thread(ThreadState::Unknown);
                }
            });
        }
    }

    fn with_vcpu(&mut self, time: u64, vm: usize, vcpu: u32, change: impl FnOnce(&mut Vcpu)) {
        if let Some(state) = self.vms.get_mut(vm).and_then(|vm| vm.vcpus.get_mut(vcpu)) {
            change(state);
            self.settle_vcpu(time, vm, vcpu);
        }
    }

    /// Records of the host's `cpu` are missing: where the vCPUs are is not known any more that do not run on another
    /// one.
    fn begin_host_gap(&mut self, time: u64, index: usize, cpu: u32) {
        let Some(host) = self.hosts.get_mut(index) else { return };
        host.begin_gap(cpu);
        for (vm, vcpu) in self.vcpus_of(index) {
            self.with_vcpu(time, vm, vcpu, |vcpu| {
                let elsewhere = matches!(vcpu.thread, ThreadState::Running { cpu: on } if on != cpu);
                if !elsewhere {
                    vcpu.lose_location();
                    if vcpu.thread != ThreadState::Ended {
                        vcpu.set_thread(ThreadState::Unknown);
                    }
                }
            });
            self.may_enter_unseen(time, vm, vcpu);
        }
    }

    /// KVM's records of the host's `cpu` are missing: whether the vCPUs are in the guest is not known any more that do
    /// not run on another one. What the scheduler says of their threads holds.
    fn begin_kvm_gap(&mut self, time: u64, index: usize, cpu: u32) {
        let Some(host) = self.hosts.get_mut(index) else { return };
        host.begin_kvm_gap(cpu);
        for (vm, vcpu) in self.vcpus_of(index) {
            self.with_vcpu(time, vm, vcpu, |vcpu| {
                let elsewhere = matches!(vcpu.thread, ThreadState::Running { cpu: on } if on != cpu);
                if !elsewhere {
                    vcpu.lose_location();
                }
            });
            self.may_enter_unseen(time, vm, vcpu);
        }
    }

    /// The vCPU may have been in the guest, if KVM's events would have to tell it.
    fn may_enter_unseen(&mut self, time: u64, vm: usize, vcpu: u32) {
        if self.vms.get(vm).is_some_and(|vm| vm.kvm_reports) {
            self.may_have_run(time, vm, vcpu);
        }
    }

    /// The VMs and vCPUs of a host.
    fn vcpus_of(&self, host: usize) -> Vec<(usize, u32)> {
        let of_host = self.vms.iter().enumerate().filter(|(_, vm)| vm.host == host);
        of_host.flat_map(|(index, vm)| vm.vcpus.numbers().map(move |vcpu| (index, vcpu))).collect()
    }

    /// The host's `cpu` runs something else: so do those vCPUs not yet that wait for it.
    fn settle_waiting(&mut self, time: u64, host: usize, cpu: u32) {
        if self.is_without_states {
            return;
        }
        let goes_idle = self.hosts.get(host).is_some_and(|host| host.cpu(cpu) == host::HostCpuState::Idle);
        for vm in 0..self.vms.len() {
            let mut next = 0;
            while let Some(waiting) = self.vms.get(vm).filter(|vm| vm.host == host).and_then(|vm| {
                let waits =
                    |vcpu: &Vcpu| matches!(vcpu.thread, ThreadState::Waiting { cpu: Some(on), .. } if on == cpu);
                vm.vcpus.iter().find(|&(number, vcpu)| number >= next && waits(vcpu)).map(|(number, _)| number)
            }) {
                if let Some(vcpu) = self.vms.get_mut(vm).and_then(|vm| vm.vcpus.get_mut(waiting)) {
                    vcpu.take_turn_of(cpu, goes_idle);
                }
                self.settle_vcpu(time, vm, waiting);
                next = waiting.saturating_add(1);
            }
        }
    }

    /// Tells what the vCPU did until now, if it does something else now.
    fn settle_vcpu(&mut self, time: u64, index: usize, vcpu: u32) {
        if self.is_without_states {
            return;
        }
        let Some(vm) = self.vms.get_mut(index) else { return };
        let Some(state) = vm.vcpus.get_mut(vcpu) else { return };
        let host = self.hosts.get(vm.host);
        let runs = |cpu| host.map_or(host::HostCpuState::Unknown, |host| host.cpu(cpu));
        let now = state.current_state(vm.kvm_reports, runs);
        if now != state.state {
            let window = Window { begin: state.since, end: time };
            let was = state.state.having_lasted(window.length(), self.longest_begin);
            (state.state, state.since) = (now, time.max(state.since));
            self.changes.push(ChangeKind::Vcpu, window, || Change::Vcpu { vm: index, vcpu, window, state: was });
            vm.settle_cpu(&mut self.changes, (time, index), vcpu, Some(was));
        }
    }

    /// Tells what changed of a guest with an event of its `cpu`.
    fn settle_guest(&mut self, time: u64, index: usize, cpu: u32) {
        let Some(vm) = self.vms.get_mut(index) else { return };
        if !self.is_without_states {
            vm.settle_guest(&mut self.changes, (time, index), cpu);
        }
        vm.guest.touched.clear();
    }
}

/// What a vCPU's thread does after KVM's `event` on `cpu`: it runs there. Where the CPU's other records are missing, it
/// may give way unseen from the moment that it leaves the guest.
const fn of_crossing(cpu: u32, event: &Event<'_>, is_in_gap: bool) -> ThreadState {
    match event {
        Event::KvmExit { .. } | Event::KvmUserspaceExit { .. } if is_in_gap => ThreadState::Unknown,
        _ => ThreadState::Running { cpu },
    }
}

/// First and last moment of the records of `layer`.
fn span(layer: &TraceLayer) -> Option<Window> {
    layer
        .streams
        .iter()
        .filter_map(|stream| {
            let begin = layer.records(stream).next()?.time;
            // Of the last packets some may hold no record that can be read.
            let last = |packet| layer.records(stream).of_packets(packet..packet + 1, packet).last();
            let end = (0..stream.packets()).rev().find_map(last)?.time;
            Some(Window { begin, end: end.max(begin) })
        })
        .map(Some)
        .fold(None, union)
}

fn union(left: Option<Window>, right: Option<Window>) -> Option<Window> {
    match (left, right) {
        (Some(left), Some(right)) => Some(Window { begin: left.begin.min(right.begin), end: left.end.max(right.end) }),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests;
