//! Interrupts that KVM injects, until the guest's handler runs.

use super::{InterruptKind, Kind, vector_name};
use crate::clock::Clock;
use crate::merge::MergedRecord;
use crate::reader::Trace;
use crate::report::distribution::{Distribution, Durations};
use crate::report::table::{Align, Table};
use crate::report::{duration, harmless};
use crate::session::{LayerKind, Vm};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, Write};

/// Vectors from here on are the kernel's own (timer, messages between CPUs); those below belong to devices.
const FIRST_SYSTEM_VECTOR: i64 = 0xec;

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
    /// Injections.
    pub injected: u64,
    /// Of them, those that KVM injected again, because the first time failed.
    pub reinjected: u64,
    /// From the moment the local APIC had it to its injection. Counts those of which both were seen.
    pub pending: Distribution,
    /// From the injection to the handler's first event in the guest. Counts those of which both were seen.
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
    /// The last injection, when its handler was not seen yet. The guest takes an interrupt at once, with interrupts
    /// disabled: whatever handler is entered next is that of the last one.
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
#[derive(Debug)]
pub(super) struct Deliveries<'t> {
    vms: Vec<(&'t Vm, VmState)>,
}

impl<'t> Deliveries<'t> {
    pub(super) fn new(trace: &'t Trace) -> Self {
        Self { vms: trace.session().vms.iter().map(|vm| (vm, VmState::default())).collect() }
    }

    pub(super) fn add(&mut self, merged: &MergedRecord<'_>, kind: Option<Kind>) {
        let (layer, record) = (&merged.layer.description, &merged.record);
        match layer.kind {
            LayerKind::HostKernel => {
                if record.after_gap {
                    // Injections may be missing: what handlers are seen of now is not known.
                    let states = self.vms.iter_mut().filter(|(vm, _)| vm.host == layer.host);
                    for vcpu in states.flat_map(|(_, state)| state.vcpus.values_mut()) {
                        (vcpu.injected, vcpu.accepted) = (None, HashMap::new());
                    }
                }
                self.add_host(merged, kind);
            }
            LayerKind::GuestKernel => {
                let vm = self.vms.iter_mut().find(|(vm, _)| layer.vm.as_ref() == Some(&vm.name));
                let cpu = merged.stream.description.cpu_id;
                let Some((_, state)) = vm else { return };
                let vcpu = state.vcpus.entry(cpu).or_default();
                vcpu.is_recorded = true;
                if record.after_gap {
                    vcpu.injected = None;
                }
                if let Some(Kind::Entry(kind)) = kind {
                    state.handled(cpu, kind, merged);
                }
            }
            LayerKind::Vmm | LayerKind::GuestUser => {}
        }
    }

    fn add_host(&mut self, merged: &MergedRecord<'_>, kind: Option<Kind>) {
        let record = &merged.record;
        let host = &merged.layer.description.host;
        let thread = record.number("common_pid");
        let of_host = |vm: &Vm| vm.host == *host;
        let count = self.vms.iter().filter(|(vm, _)| of_host(vm)).count();
        let vcpu_of = |vm: &Vm| vm.vcpu_threads.iter().position(|&known| Some(i64::from(known)) == thread);
        match kind {
            Some(Kind::Injected) => {
                let number = record.number("vector").or_else(|| record.number("irq"));
                let is_soft = record.number("soft").is_some_and(|soft| soft != 0);
                let Some(vector) = number.filter(|_| !is_soft) else { return };
                for (vm, state) in &mut self.vms {
                    if let Some(vcpu) = vcpu_of(vm).and_then(|vcpu| u32::try_from(vcpu).ok())
                        && of_host(vm)
                    {
                        let again = record.number("reinjected").is_some_and(|again| again != 0);
                        state.injected(vcpu, vector, record.time, again);
                    }
                }
            }
            // Any thread may be the one that gives a vCPU an interrupt: of several VMs only their own vCPUs' tell whose.
            Some(Kind::Accepted) => {
                let vcpu = record.number("apicid").and_then(|vcpu| u32::try_from(vcpu).ok());
                let (Some(vcpu), Some(vector)) = (vcpu, record.number("vec")) else { return };
                for (vm, state) in &mut self.vms {
                    if of_host(vm) && (count == 1 || vcpu_of(vm).is_some()) {
                        state.vcpus.entry(vcpu).or_default().accepted.entry(vector).or_insert(record.time);
                    }
                }
            }
            Some(Kind::Entry(_) | Kind::Exit(_)) | None => {}
        }
    }

    pub(super) fn finish(self, clock: &Clock) -> Vec<Delivery> {
        let delivery = |(vm, state): (&Vm, VmState)| {
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
            Delivery { vm: vm.name.clone(), vectors }
        };
        self.vms.into_iter().map(delivery).filter(|delivery| !delivery.vectors.is_empty()).collect()
    }
}

impl VmState {
    fn injected(&mut self, vcpu: u32, vector: i64, time: u64, again: bool) {
        let sums = self.vectors.entry(vector).or_default();
        let state = self.vcpus.entry(vcpu).or_default();
        sums.injected += 1;
        sums.reinjected += u64::from(again);
        if let Some(since) = state.accepted.remove(&vector) {
            sums.pending.add(time.saturating_sub(since));
        }
        state.injected = state.is_recorded.then_some((vector, time));
    }

    /// The guest's `cpu` has entered a handler.
    fn handled(&mut self, cpu: u32, kind: InterruptKind, merged: &MergedRecord<'_>) {
        let record = &merged.record;
        let Some(state) = self.vcpus.get_mut(&cpu) else { return };
        let Some((vector, since)) = state.injected else { return };
        let is_its_handler = match kind {
            InterruptKind::Vector => record.number("vector") == Some(vector),
            InterruptKind::Irq => vector < FIRST_SYSTEM_VECTOR,
            InterruptKind::Softirq => false,
        };
        if !is_its_handler {
            return;
        }
        state.injected = None;
        let name = match kind {
            InterruptKind::Irq => record.text("name").map(|name| name.into_owned()),
            _ => vector_name(record.schema.name()).map(|(name, _)| name.to_string()),
        };
        let sums = self.vectors.entry(vector).or_default();
        sums.handlers.extend(name);
        sums.delivery.add(record.time.saturating_sub(since));
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
