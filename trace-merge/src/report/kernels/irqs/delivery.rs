//! Interrupts that KVM injects, until the guest's handler runs.

use crate::report::rows::columns;
use crate::report::rows::columns::figure::{Figure, Figures};
use crate::report::rows::columns::{Column, ReportRow, Unit, column, distribution};
use crate::report::sink::Sink;
use crate::report::statistics::distribution::{Distribution, Durations};
use crate::report::statistics::ended::Keep;
use crate::report::statistics::samples::{Samples, VmSamples};
use foldhash::HashMap;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use strata_analysis::Gap;
use strata_analysis::event::{self, Event, FIRST_SYSTEM_VECTOR, Interrupt, Tid};
use strata_analysis::timeline::by_number::ByNumber;
use strata_analysis::timeline::{Input, Origin, Timeline};
use strata_recording::clock::Clock;

/// Interrupts injected into the vCPUs of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Delivery {
    /// Name of the VM.
    pub vm: String,
    /// By vector, the most frequent first.
    #[serde(serialize_with = "columns::serialize")]
    pub vectors: Vec<VectorDelivery>,
}

/// Injections of a vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VectorDelivery {
    pub vector: i64,
    /// What the guest does in its handlers, as far as it was seen; for a device the names of its handlers.
    pub handlers: Vec<String>,
    /// Interrupts that were injected, each counted once.
    pub injected: u64,
    /// How often KVM injected one of them again, because the guest left before it could handle it.
    pub reinjected: u64,
    /// From the moment the local APIC had it to its injection. Counts those where both were seen.
    pub pending: Distribution,
    /// From the first injection to the handler's first event in the guest, injections again included. Counts those of
    /// which both were seen.
    pub delivery: Distribution,
}

/// What the table shows of the times until injection.
const PENDING: Figures = &[(Figure::P50, "pending p50"), (Figure::P99, "p99"), (Figure::Longest, "longest")];
/// What the table shows of the times until the guest handled it.
const DELIVERY: Figures =
    &[(Figure::Count, "handled"), (Figure::P50, "delivery p50"), (Figure::P99, "p99"), (Figure::Longest, "longest")];

impl ReportRow for VectorDelivery {
    const COLUMNS: &'static [Column<Self>] = &[
        column("vector", "", Unit::Number, "The vector", |row| row.vector.into()),
        column("", "vector", Unit::Text, "The vector, hexadecimal", |row| format!("{:#x}", row.vector).into()),
        column(
            "handlers",
            "handler",
            Unit::Texts,
            "What the guest does in its handlers; for a device the names of its handlers",
            |row| row.handlers.as_slice().into(),
        ),
        column("injected", "injected", Unit::Count, "Interrupts that were injected, each counted once", |row| {
            row.injected.into()
        }),
        column(
            "reinjected",
            "again",
            Unit::Count,
            "How often KVM injected one again, because the guest left before it could handle it",
            |row| row.reinjected.into(),
        ),
        distribution(
            "pending",
            PENDING,
            "From the moment the local APIC had it to its injection, where both were seen",
            |row| (&row.pending).into(),
        ),
        distribution(
            "delivery",
            DELIVERY,
            "From the first injection to the handler's first event in the guest, where both were seen",
            |row| (&row.delivery).into(),
        ),
    ];
}

/// An interrupt that KVM has injected, of those that the report counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InjectedInterrupt {
    /// Index of the VM.
    pub vm: usize,
    pub vcpu: u32,
    pub vector: i64,
    /// How long its local APIC had it before, ticks, where that was seen.
    pub pending: Option<u64>,
    /// When it was injected first, ticks.
    pub begin: u64,
    /// When the guest's handler recorded its first event, ticks, where that was seen.
    pub end: Option<u64>,
    /// The handler, where it was seen.
    pub handler: Option<String>,
}

#[derive(Debug, Default)]
struct VectorSums {
    handlers: BTreeSet<String>,
    injected: u64,
    reinjected: u64,
    pending: Durations,
    delivery: Durations,
}

#[derive(Debug, Default)]
struct VcpuState {
    /// Vectors that the local APIC has accepted and KVM not injected, and since when.
    accepted: HashMap<i64, u64>,
    /// The last interrupt and its first injection, when its handler was not seen yet. The guest takes an interrupt at
    /// once, with interrupts disabled: whatever handler is entered next is that of the last one.
    injected: Option<Injection>,
    /// Whether the guest records on this vCPU.
    is_recorded: bool,
}

impl VcpuState {
    /// The handler of the last interrupt of the vCPU, if it was not seen yet, will not be known.
    fn forget(&mut self, (vm, vcpu): (usize, u32), kept: &mut Keep<InjectedInterrupt>) {
        if let Some(injection) = self.injected.take() {
            kept.add(|| injection.unseen(vm, vcpu));
        }
    }
}

/// An interrupt whose handler was not seen yet.
#[derive(Clone, Copy, Debug)]
struct Injection {
    vector: i64,
    /// How long it was pending, ticks, where that is known.
    pending: Option<u64>,
    /// When it was injected first, ticks.
    time: u64,
}

impl Injection {
    /// It was of that vCPU, and its handler was not seen.
    const fn unseen(self, vm: usize, vcpu: u32) -> InjectedInterrupt {
        let Self { vector, pending, time } = self;
        InjectedInterrupt { vm, vcpu, vector, pending, begin: time, end: None, handler: None }
    }
}

#[derive(Debug, Default)]
struct VmState {
    vectors: BTreeMap<i64, VectorSums>,
    vcpus: ByNumber<VcpuState>,
}

/// Deliveries in the making.
#[derive(Debug, Default)]
pub(super) struct Deliveries {
    /// By VM.
    vms: Vec<VmState>,
    kept: Keep<InjectedInterrupt>,
}

impl Deliveries {
    /// Whether records of a host like `input` tell of interrupts that KVM injects.
    pub(super) const fn follows(input: &Input<'_>) -> bool {
        matches!(input.event, Some(Event::KvmInject { .. } | Event::KvmAcceptIrq { .. }))
    }

    /// Keeps injected interrupts one by one from now on.
    pub(super) fn keep(&mut self) {
        self.kept.begin();
    }

    /// Whether any were kept since they were taken last.
    pub(super) fn has_kept(&self) -> bool {
        !self.kept.is_empty()
    }

    /// What was kept; `at_end` also those whose handlers may still have come.
    pub(super) fn take(&mut self, at_end: bool) -> impl Iterator<Item = InjectedInterrupt> {
        let Self { vms, kept } = self;
        for (vm, state) in vms.iter_mut().enumerate().filter(|_| at_end) {
            state.vcpus.iter_mut().for_each(|(vcpu, state)| state.forget((vm, vcpu), kept));
        }
        kept.take()
    }

    /// The state of the VM at `vm`, and where injected interrupts are kept.
    fn vm(&mut self, vm: usize) -> (&mut VmState, &mut Keep<InjectedInterrupt>) {
        if self.vms.len() <= vm {
            self.vms.resize_with(vm + 1, VmState::default);
        }
        (&mut self.vms[vm], &mut self.kept)
    }

    pub(super) fn add(&mut self, input: &Input<'_>, timeline: &Timeline, samples: &mut Samples) {
        match input.origin {
            Origin::Host { host, .. } => self.add_host(host, input, timeline, samples),
            Origin::Guest { vm, cpu } => {
                let (state, kept) = self.vm(vm);
                state.vcpus.get_or_insert_with(cpu, VcpuState::default).is_recorded = true;
                if let Some(Event::InterruptEnter(interrupt)) = input.event {
                    state.handled(cpu, interrupt, input, VmSamples { samples, vm }, kept);
                }
            }
            Origin::Vmm { .. } | Origin::User { .. } => {}
        }
    }

    /// Injections, or the handlers that they reach, are missing from now on: what is seen next may be another one's.
    pub(super) fn begin_gap(&mut self, gap: &Gap, timeline: &Timeline) {
        match gap.origin {
            Origin::Host { host, .. } => {
                let of_host = |vm: usize| timeline.vm(vm).is_some_and(|vm| vm.host == host);
                for (vm, state) in self.vms.iter_mut().enumerate().filter(|(vm, _)| of_host(*vm)) {
                    for (number, vcpu) in state.vcpus.iter_mut() {
                        vcpu.forget((vm, number), &mut self.kept);
                        vcpu.accepted = HashMap::default();
                    }
                }
            }
            Origin::Guest { vm, cpu } => {
                if let Some(vcpu) = self.vms.get_mut(vm).and_then(|state| state.vcpus.get_mut(cpu)) {
                    vcpu.forget((vm, cpu), &mut self.kept);
                }
            }
            Origin::Vmm { .. } | Origin::User { .. } => {}
        }
    }

    fn add_host(&mut self, host: usize, input: &Input<'_>, timeline: &Timeline, samples: &mut Samples) {
        // While records of another CPU are missing, an injection or its end may be among them.
        let is_complete = timeline.hosts.get(host).is_some_and(|host| !host.has_kvm_gap());
        let vcpu_of = |tid: Option<Tid>| timeline.vcpu_of_thread(host, tid?);
        match input.event {
            Some(Event::KvmInject { tid, vector, again, soft: false }) => {
                if let Some((vm, vcpu)) = vcpu_of(tid) {
                    let (state, kept) = self.vm(vm);
                    let pending = state.injected((vm, vcpu), vector, input.time(), again, is_complete, kept);
                    if let Some(ticks) = pending {
                        samples.add(Some(vm), input.time(), ticks, || format!("vector {vector:#x} pending"));
                    }
                }
            }
            // Any thread may be the one that gives a vCPU an interrupt: of several VMs only their own vCPUs' tell
            // whose.
            Some(Event::KvmAcceptIrq { tid, apic_id, vector }) if is_complete => {
                let of_host: Vec<usize> =
                    (0..timeline.vms.len()).filter(|&vm| timeline.vm(vm).is_some_and(|vm| vm.host == host)).collect();
                let vm = match *of_host {
                    [only] => Some(only),
                    _ => vcpu_of(tid).map(|(vm, _)| vm),
                };
                if let Some(vm) = vm {
                    let (state, _) = self.vm(vm);
                    state
                        .vcpus
                        .get_or_insert_with(apic_id, VcpuState::default)
                        .accepted
                        .entry(vector)
                        .or_insert(input.time());
                }
            }
            _ => {}
        }
    }

    pub(super) fn finish(self, clock: &Clock, timeline: &Timeline) -> Vec<Delivery> {
        let delivery = |(vm, state): (usize, VmState)| {
            let vector = |(vector, sums): (i64, VectorSums)| VectorDelivery {
                vector,
                handlers: sums.handlers.into_iter().collect(),
                injected: sums.injected,
                reinjected: sums.reinjected,
                pending: sums.pending.distribution(clock),
                delivery: sums.delivery.distribution(clock),
            };
            let mut vectors: Vec<_> = state.vectors.into_iter().map(vector).collect();
            vectors.sort_by_key(|row| (std::cmp::Reverse(row.injected), row.vector));
            let vm = timeline.vm(vm).map_or_else(String::new, |vm| vm.name.clone());
            Delivery { vm, vectors }
        };
        self.vms.into_iter().enumerate().map(delivery).filter(|delivery| !delivery.vectors.is_empty()).collect()
    }
}

impl VmState {
    /// An interrupt is injected: for how long it was pending, ticks, where that is known.
    fn injected(
        &mut self,
        (vm, vcpu): (usize, u32),
        vector: i64,
        time: u64,
        again: bool,
        is_complete: bool,
        kept: &mut Keep<InjectedInterrupt>,
    ) -> Option<u64> {
        let sums = self.vectors.entry(vector).or_default();
        let state = self.vcpus.get_or_insert_with(vcpu, VcpuState::default);
        if again {
            sums.reinjected += 1;
            // The guest has waited since the first time; where that is not known, for how long is not known.
            if state.injected.is_some_and(|injected| injected.vector != vector) {
                state.forget((vm, vcpu), kept);
            }
            return None;
        }
        sums.injected += 1;
        let since = state.accepted.remove(&vector).filter(|_| is_complete);
        let pending = since.map(|since| time.saturating_sub(since));
        pending.into_iter().for_each(|pending| sums.pending.add(pending));
        state.forget((vm, vcpu), kept);
        let injection = Injection { vector, pending, time };
        if state.is_recorded && is_complete {
            state.injected = Some(injection);
        } else {
            kept.add(|| injection.unseen(vm, vcpu));
        }
        pending
    }

    /// The guest's `cpu` has entered a handler.
    fn handled(
        &mut self,
        cpu: u32,
        interrupt: Interrupt,
        input: &Input<'_>,
        mut samples: VmSamples<'_>,
        kept: &mut Keep<InjectedInterrupt>,
    ) {
        let Some(state) = self.vcpus.get_mut(cpu) else { return };
        let Some(injection) = state.injected else { return };
        let Injection { vector, time: since, .. } = injection;
        let is_its_handler = match interrupt {
            Interrupt::Vector(number) => i64::from(number) == vector,
            Interrupt::Irq(_) => vector < FIRST_SYSTEM_VECTOR,
            Interrupt::Softirq(_) => false,
        };
        if !is_its_handler {
            return;
        }
        state.injected = None;
        let name = match interrupt {
            Interrupt::Irq(_) => event::handler_name(&input.record).map(|name| name.into_owned()),
            _ => event::vector_name(input.record.schema.name()).map(|(name, _)| name.to_string()),
        };
        let (vm, end) = (samples.vm, Some(input.time()));
        kept.add(|| InjectedInterrupt { end, handler: name.clone(), ..injection.unseen(vm, cpu) });
        let sums = self.vectors.entry(vector).or_default();
        sums.handlers.extend(name);
        let ticks = input.time().saturating_sub(since);
        sums.delivery.add(ticks);
        samples.add(input.time(), ticks, || format!("vector {vector:#x} delivery"));
    }
}

impl Delivery {
    pub(super) fn write(&self, out: &mut dyn Sink) -> io::Result<()> {
        writeln!(out, "{}: interrupts injected by KVM, until the guest's handler runs", self.vm)?;
        columns::write(&self.vectors, out)
    }
}
