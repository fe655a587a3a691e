//! When each vCPU was in the guest, and why it left: from the host kernel's KVM events, or from the VMM's.

use crate::exit_reason::{ExitNumbering, ExitReason};
use crate::merge::Merge;
use crate::reader::{Trace, TraceLayer};
use crate::schema::{IntegerField, Schema};
use crate::session::{LayerKind, Vm};
use serde::Serialize;
use std::collections::BTreeMap;

/// The layer that tells when vCPUs were in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SwitchSource {
    /// `kvm:kvm_entry` and `kvm:kvm_exit` of the host's kernel: at the switch itself.
    HostKernel,
    /// `vmm:vcpu_enter` and `vmm:vcpu_exit` of the VMM: around the whole of `KVM_RUN`, in which the vCPU may leave and
    /// enter the guest many times.
    Vmm,
}

impl SwitchSource {
    /// The kind of the layer.
    #[must_use]
    pub const fn layer(self) -> LayerKind {
        match self {
            Self::HostKernel => LayerKind::HostKernel,
            Self::Vmm => LayerKind::Vmm,
        }
    }

    /// Names of the events of entering and leaving.
    #[must_use]
    pub const fn events(self) -> [&'static str; 2] {
        match self {
            Self::HostKernel => ["kvm:kvm_entry", "kvm:kvm_exit"],
            Self::Vmm => ["vmm:vcpu_enter", "vmm:vcpu_exit"],
        }
    }

    /// The layers of `trace` that tell it of `vm` this way: those that have both event types.
    pub fn layers<'t>(self, trace: &'t Trace, vm: &Vm) -> impl Iterator<Item = &'t TraceLayer> {
        trace.layers_of(self.layer()).filter(move |layer| {
            let of_vm = match self {
                Self::HostKernel => layer.description.host == vm.host && !vm.outside_host_kernel,
                Self::Vmm => layer.description.vm.as_ref() == Some(&vm.name),
            };
            of_vm && self.events().iter().all(|&name| layer.schemas.iter().any(|schema| schema.name() == name))
        })
    }
}

/// A vCPU entering or leaving the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VcpuSwitch {
    /// Time, trace clock ticks.
    pub time: u64,
    /// Index of the vCPU.
    pub vcpu: u32,
    /// Why it left; `None` when it entered.
    pub exit: Option<ExitReason>,
}

/// The switches of a VM's vCPUs, in time order.
pub struct Switches<'t> {
    merge: Merge<'t>,
    /// For each source of the merge: how to read its events.
    decoders: Vec<Decoder>,
    vcpu_threads: Vec<i32>,
}

/// How to read a layer's two events.
#[derive(Clone, Copy)]
struct Decoder {
    enter: Shape,
    exit: Shape,
    /// Numbering of the exits, when they do not say it themselves.
    numbering: ExitNumbering,
}

/// Where an event's fields lie.
#[derive(Clone, Copy)]
struct Shape {
    id: u16,
    vcpu: Option<IntegerField>,
    thread: Option<IntegerField>,
    reason: Option<IntegerField>,
    isa: Option<IntegerField>,
}

impl Shape {
    fn new(schema: &Schema) -> Self {
        Self {
            id: schema.description().id,
            vcpu: schema.integer("vcpu_id").or_else(|| schema.integer("vcpu")),
            thread: schema.integer("common_pid"),
            reason: schema.integer("exit_reason").or_else(|| schema.integer("reason")),
            isa: schema.integer("isa"),
        }
    }
}

impl Decoder {
    fn new(source: SwitchSource, layer: &TraceLayer) -> Option<Self> {
        let shape = |name| layer.schemas.iter().find(|schema| schema.name() == name).map(Shape::new);
        let [enter, exit] = source.events().map(shape);
        let numbering = if source == SwitchSource::Vmm { ExitNumbering::Kvm } else { ExitNumbering::Unknown };
        Some(Self { enter: enter?, exit: exit?, numbering })
    }
}

impl<'t> Switches<'t> {
    /// The switches of `vm`'s vCPUs as `source` tells them. Host events are those of the VM's vCPU threads; of a VM
    /// whose threads are not known, those of every thread.
    #[must_use]
    pub fn new(trace: &'t Trace, vm: &Vm, source: SwitchSource) -> Self {
        let merge = Merge::new(source.layers(trace, vm), 0);
        // `layers` gives only layers with both event types, so that each source gets its decoder.
        let decoders = merge.streams().filter_map(|(layer, _)| Decoder::new(source, layer)).collect();
        Self { merge, decoders, vcpu_threads: vm.vcpu_threads.clone() }
    }

    /// The vCPU that an event is about: what it says itself, else the vCPU whose thread recorded it.
    fn vcpu(&self, shape: &Shape, payload: &[u8]) -> Option<u32> {
        let said = shape.vcpu.and_then(|field| field.read(payload));
        let thread = shape.thread.and_then(|field| field.read(payload));
        let index = match thread {
            Some(thread) if !self.vcpu_threads.is_empty() => {
                Some(self.vcpu_threads.iter().position(|&known| i128::from(known) == thread)?)
            }
            _ => None,
        };
        match said {
            Some(said) => u32::try_from(said).ok(),
            None => u32::try_from(index?).ok(),
        }
    }
}

impl Iterator for Switches<'_> {
    type Item = VcpuSwitch;

    fn next(&mut self) -> Option<VcpuSwitch> {
        loop {
            let merged = self.merge.next()?;
            let Some(decoder) = self.decoders.get(merged.source) else { continue };
            let (id, payload, time) =
                (merged.record.schema.description().id, merged.record.payload, merged.record.time);
            let (shape, left) = match id {
                id if id == decoder.enter.id => (&decoder.enter, false),
                id if id == decoder.exit.id => (&decoder.exit, true),
                _ => continue,
            };
            let Some(vcpu) = self.vcpu(shape, payload) else { continue };
            let exit = left.then(|| {
                let isa = shape.isa.and_then(|field| field.read(payload));
                let number = shape.reason.and_then(|field| field.read(payload)).unwrap_or(0);
                ExitReason {
                    numbering: isa.map_or(decoder.numbering, ExitReason::numbering_of_isa),
                    number: u32::try_from(number).unwrap_or(u32::MAX),
                }
            });
            return Some(VcpuSwitch { time, vcpu, exit });
        }
    }
}

/// A period during which a vCPU was in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Period {
    /// When it entered, ticks.
    pub begin: u64,
    /// When it left, ticks; `u64::MAX` when it had not by the end of the recording.
    pub end: u64,
}

/// The periods of the vCPUs of a VM. Takes 16 bytes for each.
#[derive(Clone, Debug, Default)]
pub struct Periods {
    by_vcpu: BTreeMap<u32, Vec<Period>>,
}

impl Periods {
    /// The periods that `switches` bound. A vCPU that enters again without having left (KVM re-enters the guest after
    /// exits that it handles on the way out) has been in the guest all along.
    #[must_use]
    pub fn new(switches: impl Iterator<Item = VcpuSwitch>) -> Self {
        Self::read(switches, false)
    }

    /// Like [`new`](Self::new), of switches whose beginning was overwritten: a vCPU that is first seen leaving has been
    /// in the guest until then.
    #[must_use]
    pub fn of_remaining(switches: impl Iterator<Item = VcpuSwitch>) -> Self {
        Self::read(switches, true)
    }

    fn read(switches: impl Iterator<Item = VcpuSwitch>, beginning_is_lost: bool) -> Self {
        let mut by_vcpu: BTreeMap<u32, Vec<Period>> = BTreeMap::new();
        for switch in switches {
            let periods = by_vcpu.entry(switch.vcpu).or_default();
            if beginning_is_lost && periods.is_empty() && switch.exit.is_some() {
                periods.push(Period { begin: 0, end: u64::MAX });
            }
            let open = periods.last_mut().filter(|period| period.end == u64::MAX);
            match (open, switch.exit) {
                (Some(open), Some(_)) => open.end = switch.time,
                (None, None) => periods.push(Period { begin: switch.time, end: u64::MAX }),
                (Some(_), None) | (None, Some(_)) => {}
            }
        }
        Self { by_vcpu }
    }

    /// Number of periods of all vCPUs.
    #[must_use]
    pub fn count(&self) -> usize {
        self.by_vcpu.values().map(Vec::len).sum()
    }

    /// The periods of one vCPU, in order.
    #[must_use]
    pub fn of(&self, vcpu: u32) -> &[Period] {
        self.by_vcpu.get(&vcpu).map_or(&[], Vec::as_slice)
    }

    /// The vCPUs that have periods.
    pub fn vcpus(&self) -> impl Iterator<Item = u32> {
        self.by_vcpu.keys().copied()
    }
}

/// How often and how long vCPUs were out of the guest for one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExitTimes {
    /// Number of exits.
    pub count: u64,
    /// Time until the next entry of the same vCPU, all exits together, ticks.
    pub total: u64,
    /// The longest, ticks.
    pub max: u64,
}

/// The exits among `switches`, by reason. An exit that no entry follows has no time.
#[must_use]
pub fn exits_by_reason(switches: impl Iterator<Item = VcpuSwitch>) -> BTreeMap<ExitReason, ExitTimes> {
    let mut by_reason: BTreeMap<ExitReason, ExitTimes> = BTreeMap::new();
    let mut out: BTreeMap<u32, (u64, ExitReason)> = BTreeMap::new();
    for switch in switches {
        match switch.exit {
            Some(reason) => {
                by_reason.entry(reason).or_default().count += 1;
                out.insert(switch.vcpu, (switch.time, reason));
            }
            None => {
                let Some((left, reason)) = out.remove(&switch.vcpu) else { continue };
                let time = switch.time.saturating_sub(left);
                let times = by_reason.entry(reason).or_default();
                (times.total, times.max) = (times.total.saturating_add(time), times.max.max(time));
            }
        }
    }
    by_reason
}

#[cfg(test)]
mod tests {
    use super::*;

    const HLT: ExitReason = ExitReason { numbering: ExitNumbering::Svm, number: 0x78 };
    const MSR: ExitReason = ExitReason { numbering: ExitNumbering::Svm, number: 0x7c };

    fn enter(time: u64, vcpu: u32) -> VcpuSwitch {
        VcpuSwitch { time, vcpu, exit: None }
    }

    fn exit(time: u64, vcpu: u32, reason: ExitReason) -> VcpuSwitch {
        VcpuSwitch { time, vcpu, exit: Some(reason) }
    }

    #[test]
    fn periods_are_kept_apart_by_vcpu_and_the_last_stays_open() {
        let switches = [enter(1, 0), enter(2, 1), exit(3, 0, HLT), exit(4, 1, MSR), enter(5, 0)];

        let periods = Periods::new(switches.into_iter());

        assert_eq!(periods.of(0), [Period { begin: 1, end: 3 }, Period { begin: 5, end: u64::MAX }]);
        assert_eq!(periods.of(1), [Period { begin: 2, end: 4 }]);
        assert_eq!((periods.of(2), periods.count()), (&[][..], 3));
    }

    #[test]
    fn entering_again_keeps_the_period_open_and_leaving_twice_ends_it_once() {
        let switches = [exit(0, 0, HLT), enter(1, 0), enter(2, 0), exit(3, 0, HLT), exit(4, 0, HLT)];

        assert_eq!(Periods::new(switches.into_iter()).of(0), [Period { begin: 1, end: 3 }]);
    }

    #[test]
    fn vcpu_whose_entering_was_overwritten_was_in_the_guest_before() {
        let switches = || [exit(3, 0, HLT), enter(4, 1), exit(5, 1, MSR)].into_iter();

        assert_eq!(Periods::of_remaining(switches()).of(0), [Period { begin: 0, end: 3 }]);
        assert_eq!(Periods::of_remaining(switches()).of(1), [Period { begin: 4, end: 5 }]);
        assert_eq!(Periods::new(switches()).of(0), []);
    }

    #[test]
    fn exits_are_timed_until_the_same_vcpu_enters() {
        let switches = [
            exit(10, 0, HLT),
            exit(11, 1, MSR),
            enter(13, 1),
            enter(30, 0),
            exit(40, 0, HLT),
            enter(45, 0),
            exit(50, 0, MSR),
        ];

        let exits = exits_by_reason(switches.into_iter());

        assert_eq!(exits[&HLT], ExitTimes { count: 2, total: 25, max: 20 });
        assert_eq!(exits[&MSR], ExitTimes { count: 2, total: 2, max: 2 });
    }
}
