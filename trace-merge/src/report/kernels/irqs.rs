//! Interrupts: how often and how long they were handled, in guests and on the host, and how long those that KVM
//! injected took to reach the guest's handler.
//!
//! An interrupt lasts from its entry to its exit on one CPU; what interrupts it in turn is part of its time. The time
//! of an injected interrupt has two parts: pending, from `kvm:kvm_apic_accept_irq` (its local APIC has it) to
//! `kvm:kvm_inj_virq` (it is handed to the guest with the next entry), and delivery, from there to the guest's first
//! event in the handler. An interrupt of a device has no event with its vector in the guest: it is matched with the
//! next `irq:irq_handler_entry` on its vCPU.

mod delivery;

use crate::report::description::{Description, Requested};
use crate::report::rows::columns;
use crate::report::rows::columns::{Column, ReportRow, Unit, Value, column, figure, times};
use crate::report::sink::Sink;
use crate::report::statistics::distribution::{BinnedDurations, Times};
use crate::report::statistics::ended::{Keep, KeepsEnded};
use crate::report::statistics::samples::{ReportedBy, Sampled, Samples, reported, reported_by_itself};
use crate::report::{Report, ReportBuilder, ReportError, Window};
pub use delivery::InjectedInterrupt;
use delivery::{Deliveries, Delivery, VectorDelivery};
use foldhash::HashMap;
use serde::Serialize;
use std::io;
use std::sync::Arc;
use strata_analysis::event::{self, Event};
use strata_analysis::timeline::{ChangeKind, Input, Kernel, Origin, Timeline};
use strata_analysis::{Analysis, Gap, Passed, names};
use strata_recording::layer::LayerKind;
use strata_recording::reader::Trace;

/// What describes the report.
pub const DESCRIPTION: Description = Description {
    name: "irqs",
    about: "Interrupts handled, by CPU, and the delivery of those that KVM injects",
    requested: Requested::Command,
    examples: &[],
    takes_symbols: false,
    is_in_all: true,
    rows: &[
        columns::rows::<Interrupt>("handled[].interrupts[]"),
        columns::rows::<CpuTimes>("handled[].interrupts[].cpus[]"),
        columns::rows::<VectorDelivery>("injected[].vectors[]"),
    ],
    begin: |_, _, _| Ok(Box::new(InterruptTimes::default())),
};

/// Interrupts nest no deeper than this on a CPU: soft, hard, and exceptions among them.
const NESTED: usize = 16;

/// Interrupts of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IrqsReport {
    /// Interrupts handled, by layer.
    pub handled: Vec<LayerInterrupts>,
    /// Interrupts injected, by VM; empty where the host's KVM events were not recorded.
    pub injected: Vec<Delivery>,
}

/// Interrupts that a kernel handled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LayerInterrupts {
    /// Kind of the layer.
    pub layer: LayerKind,
    /// The VM; `None` for the host.
    pub vm: Option<String>,
    /// By interrupt, the one that took longest first.
    #[serde(serialize_with = "columns::serialize")]
    pub interrupts: Vec<Interrupt>,
}

/// An interrupt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interrupt {
    pub kind: InterruptKind,
    /// Its number among those.
    pub number: i64,
    /// Its name: of the handler, the soft interrupt or the vector.
    pub name: String,
    /// All CPUs together.
    pub times: Times,
    /// Entries and exits without their counterpart in the trace. Not in `times`.
    pub unfinished: u64,
    /// By CPU.
    pub cpus: Vec<CpuTimes>,
}

/// Kind of an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum InterruptKind {
    /// A handler of an interrupt line.
    Irq,
    /// A soft interrupt.
    Softirq,
    /// A vector of the CPU itself: its timer, messages between CPUs.
    Vector,
}

impl InterruptKind {
    /// Its name in the report.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Irq => "irq",
            Self::Softirq => "softirq",
            Self::Vector => "vector",
        }
    }
}

/// Times on one CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuTimes {
    pub cpu: u32,
    /// Its times.
    pub times: Times,
    /// Entries and exits without their counterpart in the trace. Not in `times`.
    pub unfinished: u64,
}

/// What the times of interrupts mean.
const HANDLED: &str = "Handled from entry to exit; what interrupted them in turn is in their times";

impl ReportRow for Interrupt {
    const COLUMNS: &'static [Column<Self>] = &[
        column("kind", "kind", Unit::Text, "`irq`, `softirq` or `vector`", |row| row.kind.name().into()),
        column("number", "number", Unit::Number, "Its number among those", |row| row.number.into()),
        column("name", "name", Unit::Text, "Name of the handler, the soft interrupt or the vector", |row| {
            (&row.name).into()
        }),
        times(figure::TIMES, HANDLED, |row| (&row.times).into()),
        column(
            "unfinished",
            "unfinished",
            Unit::Count,
            "Entries and exits without their counterpart in the trace; not in `count`",
            |row| row.unfinished.into(),
        ),
        column("cpus", "", Unit::Rows, "The same by CPU", |row| Value::rows(&row.cpus)),
        column("", "by CPU", Unit::Text, "How many on which CPU", |row| row.shown_cpus().into()),
    ];
}

impl Interrupt {
    fn shown_cpus(&self) -> String {
        let by_cpu = self.cpus.iter().map(|cpu| format!("{}: {}", cpu.cpu, cpu.times.count));
        by_cpu.collect::<Vec<_>>().join(", ")
    }
}

impl ReportRow for CpuTimes {
    const COLUMNS: &'static [Column<Self>] = &[
        column("cpu", "", Unit::Number, "The CPU", |row| row.cpu.into()),
        times(figure::TIMES_IN_JSON, HANDLED, |row| (&row.times).into()),
        column(
            "unfinished",
            "",
            Unit::Count,
            "Entries and exits without their counterpart in the trace; not in `count`",
            |row| row.unfinished.into(),
        ),
    ];
}

/// Makes the report.
///
/// # Errors
/// When no layer has interrupts.
pub fn report(trace: &Trace, window: Window) -> Result<IrqsReport, ReportError> {
    crate::report::make(trace, window, InterruptTimes::default())
}

/// An interrupt that a kernel has handled, of those that the report counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandledInterrupt {
    pub kernel: Kernel,
    /// Its CPU.
    pub cpu: u32,
    /// From entry to exit.
    pub window: Window,
    pub kind: InterruptKind,
    /// Its number among those.
    pub number: i64,
    /// Its name: of the handler, the soft interrupt or the vector.
    pub name: Arc<str>,
}

/// The report in the making. Takes memory for each interrupt and CPU.
#[derive(Debug, Default)]
pub struct InterruptTimes {
    handled: Handled,
    deliveries: Deliveries,
    /// Of interrupts that kernels handled.
    samples: Samples,
    /// Of interrupts that KVM injected.
    injected: Samples,
}

/// What tells of interrupts that a kernel handled.
const REPORTED_BY: [ReportedBy; 3] = [
    reported_by_itself("irq:irq_handler_entry"),
    reported_by_itself("irq:softirq_entry"),
    reported_by_itself("irq_vectors:*"),
];
/// What tells of interrupts that KVM injected.
const INJECTED_TOLD_BY: [ReportedBy; 4] = [
    reported(LayerKind::HostKernel, "kvm:kvm_inj_virq"),
    reported(LayerKind::HostKernel, "kvm:kvm_apic_accept_irq"),
    reported(LayerKind::GuestKernel, "irq:irq_handler_entry"),
    reported(LayerKind::GuestKernel, "irq_vectors:*"),
];

impl InterruptTimes {
    /// One that keeps interrupts one by one.
    #[must_use]
    pub fn keeping_ended() -> Self {
        let mut times = Self::default();
        times.handled.kept.begin();
        times.deliveries.keep();
        times
    }

    /// Interrupts that were handled since this was asked last.
    pub fn take_handled(&mut self) -> impl Iterator<Item = HandledInterrupt> {
        self.handled.kept.take()
    }

    /// Injected interrupts that are complete since the last call; `at_end`, all others, too.
    pub fn take_injected(&mut self, at_end: bool) -> impl Iterator<Item = InjectedInterrupt> {
        self.deliveries.take(at_end)
    }
}

impl KeepsEnded for InterruptTimes {
    fn has_ended(&self) -> bool {
        !self.handled.kept.is_empty() || self.deliveries.has_kept()
    }
}

impl Sampled for InterruptTimes {
    fn samples(&mut self) -> Vec<(&'static [ReportedBy], &mut Samples)> {
        vec![(&REPORTED_BY, &mut self.samples), (&INJECTED_TOLD_BY, &mut self.injected)]
    }
}

impl Analysis for InterruptTimes {
    fn takes_change(&self, _kind: ChangeKind) -> bool {
        false
    }

    /// Of a guest's records any says that it records on that CPU.
    fn takes_record(&self, input: &Input<'_>) -> bool {
        let is_of_host = matches!(input.origin, Origin::Host { .. });
        let (handled, injected) = (Handled::follows(input), Deliveries::follows(input));
        !is_of_host || handled || injected
    }

    fn needs_states(&self) -> bool {
        false
    }

    fn layers(&self) -> &'static [LayerKind] {
        &[LayerKind::HostKernel, LayerKind::GuestKernel]
    }

    fn record(&mut self, input: &Input<'_>, timeline: &Timeline) {
        if input.event.is_some() {
            self.handled.add(input, &mut self.samples);
        }
        self.deliveries.add(input, timeline, &mut self.injected);
    }

    fn gap(&mut self, gap: &Gap, timeline: &Timeline) {
        if gap.begins {
            self.handled.begin_gap(gap);
            self.deliveries.begin_gap(gap, timeline);
        }
    }
}

impl ReportBuilder for InterruptTimes {
    type Report = IrqsReport;

    fn finish(self, trace: &Trace, passed: &Passed) -> Result<IrqsReport, ReportError> {
        let report = IrqsReport {
            handled: self.handled.finish(trace, &passed.timeline),
            injected: self.deliveries.finish(trace.clock(), &passed.timeline),
        };
        if report.handled.is_empty() && report.injected.is_empty() {
            return Err(ReportError::nothing(
                "no layer has interrupts",
                "record with --events 'host:kvm:*,guest:irq:*,guest:irq_vectors:*'",
            ));
        }
        Ok(report)
    }
}

/// Times in the making, ticks.
#[derive(Clone, Debug, Default)]
struct Sums {
    handled: BinnedDurations,
    unfinished: u64,
}

impl Sums {
    fn plus(mut self, other: &Self) -> Self {
        self.handled.extend(&other.handled);
        self.unfinished += other.unfinished;
        self
    }
}

type Key = (InterruptKind, i64);

/// Interrupts of the kernels, in the making.
#[derive(Debug, Default)]
struct Handled {
    kernels: HashMap<Kernel, KernelSums>,
    kept: Keep<HandledInterrupt>,
}

#[derive(Debug, Default)]
struct KernelSums {
    sums: HashMap<(Key, u32), Sums>,
    names: HashMap<Key, Arc<str>>,
    /// By CPU: the interrupts being handled, the one that interrupted the others last, with the times of their entries.
    open: HashMap<u32, Vec<(Key, u64)>>,
}

impl KernelSums {
    fn sums(&mut self, key: Key, cpu: u32) -> &mut Sums {
        self.sums.entry((key, cpu)).or_default()
    }

    fn forget(&mut self, cpu: u32, from: usize) {
        let open = self.open.get_mut(&cpu).map(|open| open.split_off(from.min(open.len())));
        for (key, _) in open.unwrap_or_default() {
            self.sums(key, cpu).unfinished += 1;
        }
    }
}

impl Handled {
    /// Whether records like `input` tell of interrupts being handled.
    const fn follows(input: &Input<'_>) -> bool {
        matches!(input.event, Some(Event::InterruptEnter(_) | Event::InterruptExit(_)))
    }

    fn add(&mut self, input: &Input<'_>, samples: &mut Samples) {
        let Some((kernel, cpu)) = Kernel::of(input.origin) else { return };
        let vm = kernel.vm();
        let (interrupt, is_entry) = match input.event {
            Some(Event::InterruptEnter(interrupt)) => (interrupt, true),
            Some(Event::InterruptExit(interrupt)) => (interrupt, false),
            _ => return,
        };
        let time = input.time();
        let sums = self.kernels.entry(kernel).or_default();
        let key = key(interrupt);
        if is_entry {
            sums.names.entry(key).or_insert_with(|| name(key, input));
            let open = sums.open.entry(cpu).or_default();
            open.push((key, time));
            if open.len() > NESTED {
                // Exits that are not in the trace.
                sums.forget(cpu, 0);
            }
            return;
        }
        let open = sums.open.entry(cpu).or_default();
        let Some(at) = open.iter().rposition(|&(open, _)| open == key) else {
            sums.names.entry(key).or_insert_with(|| name(key, input));
            sums.sums(key, cpu).unfinished += 1;
            return;
        };
        let begin = open.get(at).map_or(time, |&(_, begin)| begin);
        sums.forget(cpu, at + 1);
        if let Some(open) = sums.open.get_mut(&cpu) {
            open.pop();
        }
        let ticks = time.saturating_sub(begin);
        sums.sums(key, cpu).handled.add(ticks);
        let name = sums.names.get(&key);
        samples.add(vm, time, ticks, || format!("{} {}", key.0.name(), name.map_or("?", |name| name)));
        self.kept.add(|| HandledInterrupt {
            kernel,
            cpu,
            window: Window { begin, end: time },
            kind: key.0,
            number: key.1,
            name: name.map_or_else(|| "?".into(), Arc::clone),
        });
    }

    /// Exits are missing from now on.
    fn begin_gap(&mut self, gap: &Gap) {
        if let Some((kernel, cpu)) = Kernel::of(gap.origin)
            && !gap.origin.is_only_kvm()
            && let Some(kernel) = self.kernels.get_mut(&kernel)
        {
            kernel.forget(cpu, 0);
        }
    }

    fn finish(mut self, trace: &Trace, timeline: &Timeline) -> Vec<LayerInterrupts> {
        let clock = trace.clock();
        let mut all = Vec::new();
        for layer in trace.layers() {
            let kernel = timeline.origin(layer, 0).and_then(Kernel::of);
            let Some(mut sums) = kernel.and_then(|(kernel, _)| self.kernels.remove(&kernel)) else { continue };
            for cpu in sums.open.keys().copied().collect::<Vec<_>>() {
                sums.forget(cpu, 0);
            }
            let of_cpu = |&(&(_, cpu), Sums { handled, unfinished }): &(&(Key, u32), &Sums)| CpuTimes {
                cpu,
                times: handled.times(clock),
                unfinished: *unfinished,
            };
            let interrupt = |(&key, name): (&Key, &Arc<str>)| {
                let mut cpus: Vec<_> = sums.sums.iter().filter(|((of, _), _)| *of == key).collect();
                cpus.sort_by_key(|((_, cpu), _)| *cpu);
                let total = cpus.iter().fold(Sums::default(), |sum, (_, cpu)| sum.plus(cpu));
                Interrupt {
                    kind: key.0,
                    number: key.1,
                    name: name.to_string(),
                    times: total.handled.times(clock),
                    unfinished: total.unfinished,
                    cpus: cpus.iter().map(of_cpu).collect(),
                }
            };
            let mut interrupts: Vec<_> = sums.names.iter().map(interrupt).collect();
            interrupts.sort_by_key(|row| (std::cmp::Reverse(row.times.total_ns), row.kind, row.number));
            let description = &layer.description;
            all.push(LayerInterrupts { layer: description.kind, vm: description.vm.clone(), interrupts });
        }
        all
    }
}

fn key(interrupt: event::Interrupt) -> Key {
    match interrupt {
        event::Interrupt::Irq(number) => (InterruptKind::Irq, number.into()),
        event::Interrupt::Softirq(number) => (InterruptKind::Softirq, number.into()),
        event::Interrupt::Vector(number) => (InterruptKind::Vector, number.into()),
    }
}

/// The name of an interrupt, from a record of it.
fn name((kind, number): Key, input: &Input<'_>) -> Arc<str> {
    match kind {
        InterruptKind::Irq => event::handler_name(&input.record).map_or_else(|| "?".into(), |name| name.into()),
        InterruptKind::Softirq => names::softirq::name(number).unwrap_or("?").into(),
        InterruptKind::Vector => event::vector_name(input.record.schema.name()).map_or("?", |(name, _)| name).into(),
    }
}

impl Report for IrqsReport {
    fn write_text(&self, out: &mut dyn Sink) -> io::Result<()> {
        for layer in &self.handled {
            let owner = layer.vm.as_deref().unwrap_or("host");
            writeln!(out, "{owner}: interrupts handled by its kernel")?;
            columns::write(&layer.interrupts, out)?;
            writeln!(out)?;
        }
        for delivery in &self.injected {
            delivery.write(out)?;
        }
        if self.injected.is_empty() {
            writeln!(out, "No injected interrupts: the host-kernel layer has no kvm:kvm_inj_virq")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
