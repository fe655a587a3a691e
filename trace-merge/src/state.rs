//! The state model: what host CPUs, host threads, vCPUs, guest CPUs and guest tasks did at each moment, made of merged
//! records.
//!
//! Records become [`event::Event`]s; each subject is a state machine that turns them into a [`history::History`]
//! ([`host`], [`guest`], and the location in [`vcpus`]); what depends on several subjects is put together of their
//! histories ([`vcpus::Vcpu::complete`], [`fused`]). A state that the records do not tell is *unknown*, never guessed:
//! before the first record about a subject, and wherever records that could have changed it are missing ([`gaps`]).
//! Reading is one pass; memory is proportional to the number of intervals.

pub mod event;
pub mod fused;
pub mod gaps;
pub mod guest;
pub mod history;
pub mod host;
pub mod vcpus;

use crate::merge::{Merge, MergedRecord};
use crate::reader::{Stream, Trace, TraceLayer};
use crate::session::{LayerKind, Session};
use crate::vcpu::SwitchSource;
use crate::window::Window;
use event::{Decoder, Event, Input, Origin};
use guest::Guest;
use host::{Host, ThreadState};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use vcpus::Vcpu;

/// What everything in a recording did.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// The hosts; a recording of one machine has one.
    pub hosts: Vec<Host>,
    /// The virtual machines.
    pub vms: Vec<VmModel>,
    /// First and last moment of all records.
    pub span: Option<Window>,
    /// The vCPU that a host thread runs: by host and thread id, VM and vCPU.
    vcpu_threads: HashMap<(usize, i32), (usize, u32)>,
}

/// What a virtual machine did.
#[derive(Clone, Debug, Default)]
pub struct VmModel {
    /// Name.
    pub name: String,
    /// Index of its host.
    pub host: usize,
    /// Its vCPUs.
    pub vcpus: BTreeMap<u32, Vcpu>,
    /// Its guest.
    pub guest: Guest,
    /// Whether KVM's events tell when vCPUs are in the guest; otherwise only the VMM's do.
    pub kvm_tells: bool,
    /// Whether the host's scheduler tells what ran instead.
    pub scheduler_tells: bool,
}

impl Model {
    /// A model of which nothing is known but what `session` says: hosts, VMs and the threads of their vCPUs.
    #[must_use]
    pub fn new(session: &Session) -> Self {
        let mut model = Self::default();
        for vm in &session.vms {
            let host = model.host_index(vm.host.as_deref());
            let index = model.vms.len();
            let mut vcpus = BTreeMap::new();
            for vcpu in 0..vm.vcpus {
                vcpus.insert(vcpu, Vcpu::default());
            }
            for (vcpu, &tid) in (0..).zip(&vm.vcpu_threads) {
                vcpus.insert(vcpu, Vcpu::of_thread(tid));
                model.vcpu_threads.insert((host, tid), (index, vcpu));
            }
            model.vms.push(VmModel { name: vm.name.clone(), host, vcpus, ..VmModel::default() });
        }
        model
    }

    /// The model of `trace` up to `until` ticks. (The beginning is read in any case: a state is that which the last record
    /// before told.)
    #[must_use]
    pub fn of(trace: &Trace, until: u64) -> Self {
        let mut model = Self::new(trace.session());
        for (vm, description) in model.vms.iter_mut().zip(&trace.session().vms) {
            vm.kvm_tells = SwitchSource::HostKernel.layers(trace, description).next().is_some();
            let mut host_layers =
                trace.layers_of(LayerKind::HostKernel).filter(|layer| layer.description.host == description.host);
            vm.scheduler_tells =
                host_layers.any(|layer| layer.schemas.iter().any(|schema| schema.name() == "sched:sched_switch"));
        }
        let wanted = |layer: &&TraceLayer| layer.description.kind != LayerKind::GuestUser;
        let merge = Merge::new(trace.layers().iter().filter(wanted), 0);
        let streams: Vec<_> = merge.streams().collect();
        let mut reader = Reader::new(&mut model, &streams);
        for merged in merge.take_while(|merged| merged.record.time <= until) {
            reader.take(&merged);
        }
        reader.finish(until);
        model.extend_spans(&streams, until);
        model.complete();
        model
    }

    /// Where records go on after `until`, what was recorded lasts until then, and not only to the last record before.
    fn extend_spans(&mut self, streams: &[(&TraceLayer, &Stream)], until: u64) {
        let goes_on = |stream: &Stream| stream.headers().any(|(_, header)| header.time_end > until);
        for (layer, _) in streams.iter().filter(|(_, stream)| goes_on(stream)) {
            if let Some(span) = &mut self.span {
                span.end = span.end.max(until);
            }
            let vm = self.vms.iter_mut().find(|vm| Some(&vm.name) == layer.description.vm.as_ref());
            if let Some(span) =
                vm.filter(|_| layer.description.kind == LayerKind::GuestKernel).and_then(|vm| vm.guest.span.as_mut())
            {
                span.end = span.end.max(until);
            }
        }
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

    /// Takes in an event. Events come in the order of their times.
    pub fn apply(&mut self, input: &Input<'_>) {
        let (time, event) = (input.time, &input.event);
        match input.origin {
            Origin::Host { host, cpu } => self.apply_to_host(time, host, cpu, event),
            Origin::Vmm { vm, thread } => self.apply_to_vmm(time, vm, thread, event),
            Origin::Guest { vm, cpu } => {
                if let Some(vm) = self.vms.get_mut(vm) {
                    vm.guest.apply(time, cpu, event);
                }
            }
        }
    }

    fn apply_to_host(&mut self, time: u64, host: usize, cpu: u32, event: &Event<'_>) {
        match *event {
            Event::KvmEntry { tid, vcpu } | Event::KvmExit { tid, vcpu, .. } => {
                if let Some(vcpu) = self.vcpu_of(host, tid, vcpu) {
                    vcpu.apply(time, event, true);
                }
            }
            Event::KvmUserspaceExit { tid } => {
                if let Some(vcpu) = self.vcpu_of(host, tid, None) {
                    vcpu.apply(time, event, true);
                }
            }
            Event::GapBegin => self.lose_vcpus(
                time,
                host,
                |state| !matches!(state, Some(ThreadState::Running { cpu: on }) if on != cpu),
            ),
            // While records of another CPU are missing, it could go on there.
            Event::Switch { prev, .. } if self.hosts.get(host).is_some_and(Host::has_gap) => {
                if let Some(vcpu) = self.vcpu_of(host, prev.tid, None) {
                    vcpu.apply(time, &Event::GapBegin, true);
                }
            }
            _ => {}
        }
        if let Some(host) = self.hosts.get_mut(host) {
            host.apply(time, cpu, event);
        }
    }

    /// The vCPU that the thread `tid` of `host` runs. Where the threads of no VM are known, there is one VM and the event
    /// says itself which `vcpu` it is about.
    fn vcpu_of(&mut self, host: usize, tid: i32, vcpu: Option<u32>) -> Option<&mut Vcpu> {
        let (vm, vcpu) = match self.vcpu_threads.get(&(host, tid)) {
            Some(&known) => known,
            None if self.vcpu_threads.is_empty() && self.vms.len() == 1 => (0, vcpu?),
            None => return None,
        };
        self.vms.get_mut(vm)?.vcpus.get_mut(&vcpu)
    }

    /// Where the vCPUs are is not known any more whose threads `lost` accepts.
    fn lose_vcpus(&mut self, time: u64, host: usize, lost: impl Fn(Option<ThreadState>) -> bool) {
        let Some(known) = self.hosts.get(host) else { return };
        for vm in self.vms.iter_mut().filter(|vm| vm.host == host) {
            for vcpu in vm.vcpus.values_mut() {
                let state = vcpu.tid.and_then(|tid| known.thread(tid)).map(history::History::current);
                if lost(state) {
                    vcpu.apply(time, &Event::GapBegin, true);
                }
            }
        }
    }

    fn apply_to_vmm(&mut self, time: u64, index: usize, thread: u32, event: &Event<'_>) {
        let Some(vm) = self.vms.get_mut(index) else { return };
        match *event {
            Event::VcpuThread { vcpu, tid } => {
                self.vcpu_threads.insert((vm.host, tid), (index, vcpu));
                if let Some(vcpu) = vm.vcpus.get_mut(&vcpu) {
                    vcpu.apply(time, event, vm.kvm_tells);
                }
            }
            Event::VmmEnter { vcpu } | Event::VmmExit { vcpu, .. } | Event::Access { vcpu, .. } => {
                if let Some(vcpu) = vm.vcpus.get_mut(&vcpu) {
                    vcpu.apply(time, event, vm.kvm_tells);
                }
            }
            Event::GapBegin => {
                if let Some(vcpu) = vm.vcpus.get_mut(&thread) {
                    vcpu.begin_vmm_gap(time);
                }
            }
            Event::GapEnd => {
                if let Some(vcpu) = vm.vcpus.get_mut(&thread) {
                    vcpu.end_vmm_gap();
                }
            }
            _ => {}
        }
    }

    /// Puts together what depends on several subjects, all events being in.
    pub fn complete(&mut self) {
        for vm in &mut self.vms {
            let host = self.hosts.get(vm.host).filter(|_| vm.kvm_tells);
            for vcpu in vm.vcpus.values_mut() {
                vcpu.complete(host);
            }
        }
    }
}

/// A moment at which a gap begins or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Edge {
    time: u64,
    /// Ends come before the records of their moment, begins after them.
    begins: bool,
    source: usize,
}

/// Feeds a model with merged records and with the gaps between them.
struct Reader<'m> {
    model: &'m mut Model,
    decoder: Decoder,
    /// By source of the merge.
    origins: Vec<Option<Origin>>,
    edges: BinaryHeap<Reverse<Edge>>,
}

impl<'m> Reader<'m> {
    fn new(model: &'m mut Model, streams: &[(&TraceLayer, &Stream)]) -> Self {
        let mut edges = BinaryHeap::new();
        let mut origins = Vec::with_capacity(streams.len());
        for (source, (layer, stream)) in streams.iter().enumerate() {
            origins.push(origin(model, layer, stream.description.cpu_id));
            for gap in gaps::gaps(stream) {
                edges.push(Reverse(Edge { time: gap.begin, begins: true, source }));
                edges.push(Reverse(Edge { time: gap.end, begins: false, source }));
            }
        }
        Self { model, decoder: Decoder::default(), origins, edges }
    }

    fn take(&mut self, merged: &MergedRecord<'_>) {
        let time = merged.record.time;
        let due = |edge: &Edge| edge.time < time || (edge.time == time && !edge.begins);
        while let Some(edge) = self.edges.peek().map(|edge| edge.0).filter(due) {
            self.edges.pop();
            self.pass(&edge);
        }
        let span = self.model.span.get_or_insert(Window { begin: time, end: time });
        span.end = span.end.max(time);
        let Some(&Some(origin)) = self.origins.get(merged.source) else { return };
        if let Origin::Guest { vm, .. } = origin
            && let Some(vm) = self.model.vms.get_mut(vm)
        {
            vm.guest.note(time);
        }
        if let Some(event) = self.decoder.event(merged) {
            self.model.apply(&Input { time, origin, event });
        }
    }

    /// Takes in the gaps after the last record.
    fn finish(&mut self, until: u64) {
        while let Some(Reverse(edge)) = self.edges.pop() {
            if edge.time <= until {
                self.pass(&edge);
            }
        }
    }

    fn pass(&mut self, edge: &Edge) {
        let Some(&Some(origin)) = self.origins.get(edge.source) else { return };
        let event = if edge.begins { Event::GapBegin } else { Event::GapEnd };
        self.model.apply(&Input { time: edge.time, origin, event });
    }
}

/// What the records of the stream `cpu` of `layer` are about.
fn origin(model: &mut Model, layer: &TraceLayer, cpu: u32) -> Option<Origin> {
    let description = &layer.description;
    let vm = || model.vms.iter().position(|vm| Some(&vm.name) == description.vm.as_ref());
    match description.kind {
        LayerKind::HostKernel => Some(Origin::Host { host: model.host_index(description.host.as_deref()), cpu }),
        LayerKind::Vmm => Some(Origin::Vmm { vm: vm()?, thread: cpu }),
        LayerKind::GuestKernel => Some(Origin::Guest { vm: vm()?, cpu }),
        LayerKind::GuestUser => None,
    }
}

#[cfg(test)]
mod tests;
