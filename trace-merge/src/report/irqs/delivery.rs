//! Interrupts that KVM injects, until the guest's handler runs.

use crate::report::distribution::{Distribution, Durations};
use crate::report::duration;
use crate::report::samples::{Samples, VmSamples};
use crate::report::table::{Align, Table};
use foldhash::HashMap;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use strata_analysis::Gap;
use strata_analysis::event::{self, Event, FIRST_SYSTEM_VECTOR, Interrupt, Tid};
use strata_analysis::timeline::{Input, Origin, Timeline};
use strata_recording::clock::Clock;
use strata_recording::terminal::harmless;

/// Interrupts injected into the vCPUs of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Delivery {
    /// Name of the VM.
    pub vm: String,
    /// By vector, the most frequent first.
    pub vectors: Vec<VectorDelivery>,
}

/// Injections of a vector.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VectorDelivery {
    /// The vector.
    pub vector: i64,
    /// What the guest does in its handlers, as far as it was seen; for a device the names of its handlers.
    pub handlers: Vec<String>,
    /// Interrupts that were injected, each counted once.
    pub injected: u64,
    /// How often KVM injected one of them again, because the guest left before it could handle it.
    pub reinjected: u64,
    /// From the moment the local APIC had it to its injection. Counts those of which both were seen.
    pub pending: Distribution,
    /// From the first injection to the handler's first event in the guest, injections again included. Counts those of
    /// which both were seen.
    pub delivery: Distribution,
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
    injected: Option<(i64, u64)>,
    /// Whether the guest records on this vCPU.
    is_recorded: bool,
}

#[derive(Debug, Default)]
struct VmState {
    vectors: BTreeMap<i64, VectorSums>,
    vcpus: HashMap<u32, VcpuState>,
}

/// Deliveries in the making.
#[derive(Debug, Default)]
pub(super) struct Deliveries {
    /// By VM.
    vms: BTreeMap<usize, VmState>,
}

impl Deliveries {
    pub(super) fn add(&mut self, input: &Input<'_>, timeline: &Timeline, samples: &mut Samples) {
        match input.origin {
            Origin::Host { host, .. } => self.add_host(host, input, timeline, samples),
            Origin::Guest { vm, cpu } => {
                let state = self.vms.entry(vm).or_default();
                state.vcpus.entry(cpu).or_default().is_recorded = true;
                if let Some(Event::InterruptEnter(interrupt)) = input.event {
                    state.handled(cpu, interrupt, input, VmSamples { samples, vm });
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
                for (_, state) in self.vms.iter_mut().filter(|(vm, _)| of_host(**vm)) {
                    for vcpu in state.vcpus.values_mut() {
                        (vcpu.injected, vcpu.accepted) = (None, HashMap::default());
                    }
                }
            }
            Origin::Guest { vm, cpu } => {
                if let Some(vcpu) = self.vms.get_mut(&vm).and_then(|state| state.vcpus.get_mut(&cpu)) {
                    vcpu.injected = None;
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
                    let state = self.vms.entry(vm).or_default();
                    let pending = state.injected(vcpu, vector, input.time(), again, is_complete);
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
                    let state = self.vms.entry(vm).or_default();
                    state.vcpus.entry(apic_id).or_default().accepted.entry(vector).or_insert(input.time());
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
        self.vms.into_iter().map(delivery).filter(|delivery| !delivery.vectors.is_empty()).collect()
    }
}

impl VmState {
    /// An interrupt is injected: for how long it was pending, ticks, where that is known.
    fn injected(&mut self, vcpu: u32, vector: i64, time: u64, again: bool, is_complete: bool) -> Option<u64> {
        let sums = self.vectors.entry(vector).or_default();
        let state = self.vcpus.entry(vcpu).or_default();
        if again {
            sums.reinjected += 1;
            // The guest has waited since the first time; where that is not known, for how long is not known.
            state.injected = state.injected.filter(|&(injected, _)| injected == vector);
            return None;
        }
        sums.injected += 1;
        let since = state.accepted.remove(&vector).filter(|_| is_complete);
        let pending = since.map(|since| time.saturating_sub(since));
        pending.into_iter().for_each(|pending| sums.pending.add(pending));
        state.injected = (state.is_recorded && is_complete).then_some((vector, time));
        pending
    }

    /// The guest's `cpu` has entered a handler.
    fn handled(&mut self, cpu: u32, interrupt: Interrupt, input: &Input<'_>, mut samples: VmSamples<'_>) {
        let Some(state) = self.vcpus.get_mut(&cpu) else { return };
        let Some((vector, since)) = state.injected else { return };
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
        let sums = self.vectors.entry(vector).or_default();
        sums.handlers.extend(name);
        let ticks = input.time().saturating_sub(since);
        sums.delivery.add(ticks);
        samples.add(input.time(), ticks, || format!("vector {vector:#x} delivery"));
    }
}

impl Delivery {
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}: interrupts injected by KVM, until the guest's handler runs", self.vm)?;
        let mut table = Table::new(&[
            ("vector", Align::Right),
            ("handler", Align::Left),
            ("injected", Align::Right),
            ("again", Align::Right),
            ("pending p50", Align::Right),
            ("p99", Align::Right),
            ("longest", Align::Right),
            ("handled", Align::Right),
            ("delivery p50", Align::Right),
            ("p99", Align::Right),
            ("longest", Align::Right),
        ]);
        for row in &self.vectors {
            let handlers = row.handlers.iter().map(|name| harmless(name)).collect::<Vec<_>>().join(", ");
            let times = |times: &Distribution| match times.count {
                0 => [const { String::new() }; 3],
                _ => [times.p50_ns, times.p99_ns, times.max_ns].map(duration),
            };
            let counts = [format!("{:#x}", row.vector), handlers, row.injected.to_string(), row.reinjected.to_string()];
            let handled = [row.delivery.count.to_string()];
            let cells = counts.into_iter().chain(times(&row.pending)).chain(handled).chain(times(&row.delivery));
            table.row(cells);
        }
        table.write(out)
    }
}
