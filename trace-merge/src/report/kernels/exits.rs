//! Why vCPUs left the guest, and what the time went on until they were in it again.

pub mod functions;
pub mod longest;
pub mod operations;

use crate::report::description::{Description, Requested};
use crate::report::rows::columns;
use crate::report::rows::columns::figure::{Figure, Figures};
use crate::report::rows::columns::{Column, ReportRow, Unit, Value, column, distribution};
use crate::report::scheduling::state_names;
use crate::report::scheduling::vcpu_events::warnings;
use crate::report::sink::Sink;
use crate::report::statistics::distribution::{Distribution, Durations};
use crate::report::statistics::ended::{Ended, Keep, KeepsEnded};
use crate::report::statistics::samples::{ReportedBy, Row, Sampled, Samples, reported};
use crate::report::{Report, ReportBuilder, ReportError, Window};
use foldhash::HashMap;
use functions::{FunctionExits, Instructions};
use longest::Longest;
use operations::{AccessExits, OperationExits, Operations};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use strata_analysis::event::{self, Access, Event, KvmAccess};
use strata_analysis::exit_reason::ExitReason;
use strata_analysis::kernel_symbols::KernelSymbols;
use strata_analysis::timeline::vcpu::{Vcpu, VcpuState};
use strata_analysis::timeline::{Change, ChangeKind, Input, Origin, Timeline, Vm};
use strata_analysis::{Analysis, Passed};
use strata_recording::clock::Clock;
use strata_recording::layer::LayerKind;
use strata_recording::reader::Trace;
use strata_recording::text::counted::counted;

/// What describes the report.
pub const DESCRIPTION: Description = Description {
    name: "exits",
    about: "Why vCPUs left the guest, and where in it; time of each reason, in KVM and in the VMM",
    requested: Requested::Command,
    examples: &[],
    takes_symbols: false,
    is_in_all: true,
    rows: &[
        columns::rows::<ReasonExits>("vms[].reasons[]"),
        columns::rows::<FunctionExits>("vms[].functions[]"),
        columns::rows::<OperationExits>("vms[].operations[]"),
        columns::rows::<AccessExits>("vms[].accesses[]"),
    ],
    begin: |_, window, _| Ok(Box::new(ExitTimes::new(window))),
};

/// The exits of all VMs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Exits {
    pub vms: Vec<VmExits>,
}

/// The exits of a VM that began in the window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VmExits {
    /// Name of the VM.
    pub vm: String,
    /// What the times mean less than they could, and why.
    pub warnings: Vec<String>,
    /// Number of exits.
    pub count: u64,
    /// Of these, exits that were not over by the end of the records, or whose end is not known: they have no time.
    pub unfinished: u64,
    /// By reason, the one that took longest first.
    #[serde(serialize_with = "columns::serialize")]
    pub reasons: Vec<ReasonExits>,
    /// Where in the guest the exits were, where KVM tells it, the place that took longest first.
    #[serde(serialize_with = "columns::serialize")]
    pub functions: Vec<FunctionExits>,
    /// Whether the guest ran guests of its own, so that none of `functions` has a name.
    pub is_nested: bool,
    /// What the exits were about, where KVM's events tell it, the one that took longest first.
    #[serde(serialize_with = "columns::serialize")]
    pub operations: Vec<OperationExits>,
    /// The accesses to devices in the VMM, the one that took longest first.
    #[serde(serialize_with = "columns::serialize")]
    pub accesses: Vec<AccessExits>,
    /// Exits that KVM told the place of and that are not in `functions`, which has the costliest 4096 places.
    pub other_functions: u64,
    /// Exits that are not in `operations`, which has the first 4096 things that exits were about.
    pub other_operations: u64,
    /// Exits that are not in `accesses`, which has the first 4096 places.
    pub other_accesses: u64,
}

/// The exits for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasonExits {
    /// Name of the reason.
    pub reason: String,
    /// Number of exits.
    pub count: u64,
    /// Time from the exit until the vCPU was in the guest again.
    pub time: Distribution,
    /// The longest of them; `None` where none has a time.
    pub longest: Option<Longest>,
    /// Time of all of them in KVM, ns.
    pub kvm_ns: u64,
    /// Time of all of them in the VMM, ns.
    pub vmm_ns: u64,
    /// Time of all of them in which the host ran something else, ns.
    pub stolen_ns: u64,
    /// Time of all of them in which the vCPU was halted, ns.
    pub halted_ns: u64,
    /// Time of all of them in which the thread waited for something else, ns.
    pub blocked_ns: u64,
}

/// What the table shows of the times of exits for a reason: the count beside it has those without a time, too.
const TIME: Figures =
    &[(Figure::Total, "total"), (Figure::P50, "p50"), (Figure::P99, "p99"), (Figure::Longest, "longest")];

impl ReportRow for ReasonExits {
    const COLUMNS: &'static [Column<Self>] = &[
        column("reason", "reason", Unit::Text, "Name of the reason", |row| (&row.reason).into()),
        column("count", "count", Unit::Count, "How many, those whose end is not known included", |row| {
            row.count.into()
        }),
        distribution("time", TIME, "From the exit until the vCPU was in the guest again", |row| (&row.time).into()),
        column("longest", "", Unit::Object, longest::MEANING, |row| {
            row.longest.as_ref().map_or(Value::None, Value::object)
        }),
        column("kvm_ns", "in KVM", Unit::PartNs, "Time of all of them in KVM", |row| row.kvm_ns.into()),
        column("vmm_ns", "in VMM", Unit::PartNs, "Time of all of them in the VMM", |row| row.vmm_ns.into()),
        column(
            "stolen_ns",
            "stolen",
            Unit::PartNs,
            "Time of all of them in which the host ran something else, or its idle CPU had yet to begin",
            |row| row.stolen_ns.into(),
        ),
        column("halted_ns", "halted", Unit::PartNs, "Time of all of them in which the vCPU was halted", |row| {
            row.halted_ns.into()
        }),
        column(
            "blocked_ns",
            "blocked",
            Unit::PartNs,
            "Time of all of them in which the thread waited for something else",
            |row| row.blocked_ns.into(),
        ),
    ];
}

/// Reports on the exits in `trace` that begin in `window`.
///
/// # Errors
/// When there are none.
pub fn report(trace: &Trace, window: Window) -> Result<Exits, ReportError> {
    crate::report::make(trace, window, ExitTimes::new(window))
}

/// The report in the making. Takes memory for each reason, for the first 65,536 instructions, 4096 registers, leaves,
/// ports and pages of a VM, and for the first 4096 places in its devices.
#[derive(Debug)]
pub struct ExitTimes {
    window: Window,
    /// By VM.
    vms: BTreeMap<usize, VmSums>,
    /// By VM and vCPU: the exit that is not over.
    open: HashMap<(usize, u32), OpenExit>,
    samples: Samples,
    kept: Keep<Ended<ExitEnd>>,
}

/// What tells of exits.
const REPORTED_BY: [ReportedBy; 4] = [
    reported(LayerKind::HostKernel, "kvm:kvm_entry"),
    reported(LayerKind::HostKernel, "kvm:kvm_exit"),
    reported(LayerKind::Vmm, "vmm:vcpu_exit"),
    reported(LayerKind::HostKernel, event::name::SWITCH),
];

impl Sampled for ExitTimes {
    fn samples(&mut self) -> Vec<(&'static [ReportedBy], &mut Samples)> {
        vec![(&REPORTED_BY, &mut self.samples)]
    }
}

#[derive(Debug, Default)]
struct VmSums {
    count: u64,
    unfinished: u64,
    reasons: HashMap<ExitReason, ReasonSums>,
    instructions: Instructions,
    operations: Operations,
}

/// Times of one reason, ticks.
#[derive(Debug, Default)]
struct ReasonSums {
    count: u64,
    times: Durations,
    longest: Option<Longest>,
    parts: Parts,
}

/// What a vCPU does during an exit, ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// In KVM.
    pub kvm: u64,
    /// In the VMM.
    pub vmm: u64,
    /// The host ran something else.
    pub stolen: u64,
    /// Halted.
    pub halted: u64,
    /// The thread waited for something else.
    pub blocked: u64,
}

/// An exit, for [`ExitTimes::take_ended`]. Its end is not known where it was not over by the end of the records, or
/// where records are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExitEnd {
    pub vcpu: u32,
    /// Why it left the guest.
    pub reason: ExitReason,
    /// What it accessed in the VMM's devices first.
    pub access: Option<Access>,
    /// Where its time went; `None` where its end is not known.
    pub parts: Option<Parts>,
}

impl ExitEnd {
    /// The port, or the page of device memory, as the report calls it.
    #[must_use]
    pub fn place(&self) -> Option<String> {
        self.access.map(state_names::access)
    }
}

#[derive(Debug)]
struct OpenExit {
    reason: ExitReason,
    begin: u64,
    /// Up to where its parts are known, ticks.
    until: u64,
    parts: Parts,
    access: Option<Access>,
    /// Address of the instruction that the guest was at.
    instruction: Option<u64>,
    /// What the guest did first of what KVM told.
    operation: Option<KvmAccess>,
    /// How often its vCPU's location had been lost when it began.
    lost: u64,
}

impl Parts {
    fn add(&mut self, state: VcpuState, ticks: u64) {
        let part = match state {
            VcpuState::Vmm(_) => &mut self.vmm,
            VcpuState::Stolen { .. } => &mut self.stolen,
            VcpuState::Halted => &mut self.halted,
            VcpuState::BlockedInKvm(_) | VcpuState::BlockedInVmm(_) => &mut self.blocked,
            VcpuState::Kvm(_) => &mut self.kvm,
            VcpuState::Guest | VcpuState::KvmRun | VcpuState::Unknown | VcpuState::Ended => return,
        };
        *part = part.saturating_add(ticks);
    }

    const fn plus(self, other: Self) -> Self {
        Self {
            kvm: self.kvm.saturating_add(other.kvm),
            vmm: self.vmm.saturating_add(other.vmm),
            stolen: self.stolen.saturating_add(other.stolen),
            halted: self.halted.saturating_add(other.halted),
            blocked: self.blocked.saturating_add(other.blocked),
        }
    }
}

impl OpenExit {
    fn ended(&self, (vm, vcpu): (usize, u32), end: Option<u64>) -> Ended<ExitEnd> {
        let parts = end.map(|_| self.parts);
        let what = ExitEnd { vcpu, reason: self.reason, access: self.access, parts };
        Ended { vm, task: None, begin: Some(self.begin), end, what }
    }

    /// Adds what of `window` was not added yet.
    fn add(&mut self, window: Window, state: VcpuState) {
        let begin = window.begin.max(self.until);
        if begin < window.end {
            self.parts.add(state, window.end - begin);
            self.until = window.end;
        }
    }
}

impl ExitTimes {
    /// A report on `window` before its first record.
    #[must_use]
    pub fn new(window: Window) -> Self {
        let (samples, kept) = (Samples::default(), Keep::default());
        Self { window, vms: BTreeMap::new(), open: HashMap::default(), samples, kept }
    }

    /// The same, which keeps each exit that is over for [`take_ended`](Self::take_ended), and adds nothing up.
    #[must_use]
    pub fn keeping_ended(window: Window) -> Self {
        let mut times = Self::new(window);
        times.kept.begin();
        times
    }

    /// The exits that are over since the last call. `at_end` says that no record is to come.
    pub fn take_ended(&mut self, at_end: bool) -> impl Iterator<Item = Ended<ExitEnd>> {
        if at_end {
            self.end_open();
        }
        self.kept.take()
    }

    /// No record is to come.
    fn end_open(&mut self) {
        let mut open: Vec<_> = std::mem::take(&mut self.open).into_iter().collect();
        open.sort_unstable_by_key(|(key, _)| *key);
        for (key, exit) in open {
            let sums = self.vms.entry(key.0).or_default();
            (sums.count, sums.unfinished) = (sums.count + 1, sums.unfinished + 1);
            sums.reasons.entry(exit.reason).or_default().count += 1;
            self.kept.add(|| exit.ended(key, None));
        }
    }

    /// The vCPU's exit is over at `time`.
    fn end(&mut self, key: (usize, u32), time: u64, vcpu: &Vcpu) {
        let Some(mut exit) = self.open.remove(&key) else { return };
        let is_known = vcpu.lost == exit.lost;
        if is_known {
            exit.add(Window { begin: vcpu.since, end: time }, vcpu.state);
        }
        if self.kept.add(|| exit.ended(key, is_known.then_some(time))) {
            return;
        }
        let sums = self.vms.entry(key.0).or_default();
        let of_reason = sums.reasons.entry(exit.reason).or_default();
        (sums.count, of_reason.count) = (sums.count + 1, of_reason.count + 1);
        if !is_known {
            sums.unfinished += 1;
            return;
        }
        let ticks = time.saturating_sub(exit.begin);
        let this = Longest { ticks, begin: exit.begin, vcpu: key.1 };
        of_reason.times.add(ticks);
        of_reason.longest = Some(of_reason.longest.map_or(this, |longest| longest.or(this)));
        // It is over behind the part in which it began, at times: where it began is where its cause was.
        let row = || Row { what: exit.reason.name().into_owned(), waits: exit.reason.is_halt() };
        self.samples.add(Some(key.0), exit.begin, ticks, row);
        of_reason.parts = of_reason.parts.plus(exit.parts);
        if let Some(instruction) = exit.instruction {
            sums.instructions.add(exit.reason, instruction, this);
        }
        if let Some(operation) = exit.operation {
            sums.operations.add(exit.reason, operation, this);
        }
        if let Some(access) = exit.access {
            sums.operations.add_access(access, Longest { ticks: exit.parts.vmm, ..this });
        }
    }
}

impl KeepsEnded for ExitTimes {
    fn has_ended(&self) -> bool {
        !self.kept.is_empty()
    }
}

impl Analysis for ExitTimes {
    fn layers(&self) -> &'static [LayerKind] {
        &[LayerKind::HostKernel, LayerKind::Vmm]
    }

    fn takes_change(&self, kind: ChangeKind) -> bool {
        kind == ChangeKind::Vcpu
    }

    fn takes_record(&self, input: &Input<'_>) -> bool {
        is_crossing(input)
            || matches!(input.event, Some(Event::Access { .. } | Event::KvmAccess { .. } | Event::KvmMmio { .. }))
    }

    fn record(&mut self, input: &Input<'_>, timeline: &Timeline) {
        if let (Origin::Vmm { vm, .. }, &Some(Event::Access { vcpu, access })) = (input.origin, &input.event) {
            if let Some(exit) = self.open.get_mut(&(vm, vcpu)) {
                exit.access.get_or_insert(access);
            }
            return;
        }
        if let (Origin::Host { host, .. }, Some((tid, access))) =
            (input.origin, input.event.as_ref().and_then(KvmAccess::of))
        {
            let exit = tid.and_then(|tid| self.open.get_mut(&timeline.vcpu_of_thread(host, tid)?));
            if let Some(exit) = exit {
                exit.operation.get_or_insert(access);
            }
            return;
        }
        let Some(Crossing { key, vcpu, exit }) = Crossing::of(input, timeline) else { return };
        match exit {
            Some(reason) => self.begin(key, input, reason, vcpu),
            None => self.end(key, input.time(), vcpu),
        }
    }

    fn change(&mut self, change: &Change, _timeline: &Timeline) {
        if let Change::Vcpu { vm, vcpu, window, state } = *change
            && let Some(exit) = self.open.get_mut(&(vm, vcpu))
        {
            exit.add(window, state);
        }
    }

    /// Exits that begin in the window may be over after it.
    fn is_unfinished(&self) -> bool {
        !self.open.is_empty()
    }
}

impl ExitTimes {
    /// The vCPU leaves the guest with `input`: what it did before is over.
    fn begin(&mut self, key: (usize, u32), input: &Input<'_>, reason: ExitReason, vcpu: &Vcpu) {
        let time = input.time();
        self.end(key, time, vcpu);
        if time < self.window.end {
            let exit = OpenExit {
                reason,
                begin: time,
                until: time,
                parts: Parts::default(),
                access: None,
                instruction: event::guest_instruction(&input.record),
                operation: None,
                lost: vcpu.lost,
            };
            self.open.insert(key, exit);
            self.vms.entry(key.0).or_default().instructions.left(reason);
        }
    }
}

/// A vCPU that enters or leaves the guest.
pub(crate) struct Crossing<'t> {
    /// VM and vCPU.
    pub(crate) key: (usize, u32),
    pub(crate) vcpu: &'t Vcpu,
    /// Why it leaves; `None` when it enters.
    pub(crate) exit: Option<ExitReason>,
}

/// Whether records like `input` may tell of a [`Crossing`].
pub(crate) const fn is_crossing(input: &Input<'_>) -> bool {
    matches!(
        input.event,
        Some(Event::KvmEntry { .. } | Event::KvmExit { .. } | Event::VmmEnter { .. } | Event::VmmExit { .. })
    )
}

impl<'t> Crossing<'t> {
    /// What `input` tells of one. The VMM tells only where KVM does not.
    pub(crate) fn of(input: &Input<'_>, timeline: &'t Timeline) -> Option<Self> {
        let (key, exit) = match (input.origin, input.event.as_ref()?) {
            (Origin::Host { host, .. }, &Event::KvmEntry { tid, vcpu }) => {
                (timeline.vcpu_of_event(host, tid, vcpu)?, None)
            }
            (Origin::Host { host, .. }, &Event::KvmExit { tid, vcpu, reason }) => {
                (timeline.vcpu_of_event(host, tid, vcpu)?, Some(reason))
            }
            (Origin::Vmm { vm, .. }, &Event::VmmEnter { vcpu }) if !timeline.vm(vm)?.kvm_reports => ((vm, vcpu), None),
            (Origin::Vmm { vm, .. }, &Event::VmmExit { vcpu, reason }) if !timeline.vm(vm)?.kvm_reports => {
                ((vm, vcpu), Some(reason))
            }
            _ => return None,
        };
        Some(Self { key, vcpu: timeline.vm(key.0)?.vcpus.get(key.1)?, exit })
    }
}

impl ReportBuilder for ExitTimes {
    type Report = Exits;

    fn finish(mut self, trace: &Trace, passed: &Passed) -> Result<Exits, ReportError> {
        self.end_open();
        let of_vm = |(index, sums)| {
            let symbols = || passed.kernel_symbols(trace, index);
            Some(of_vm(passed.timeline.vm(index)?, sums, symbols, trace.clock()))
        };
        let vms: Vec<VmExits> = self.vms.into_iter().filter_map(of_vm).collect();
        if vms.is_empty() {
            return Err(ReportError::nothing(
                "no exit of a vCPU was recorded: neither kvm:kvm_exit of the host's kernel nor vmm:vcpu_exit",
                "record with --events 'host:kvm:*,vmm:*:*' among others",
            ));
        }
        Ok(Exits { vms })
    }
}

fn of_vm<'s>(vm: &Vm, sums: VmSums, symbols: impl FnOnce() -> Option<&'s KernelSymbols>, clock: &Clock) -> VmExits {
    let reason = |(reason, sums): (ExitReason, ReasonSums)| ReasonExits {
        reason: reason.name().into_owned(),
        count: sums.count,
        time: sums.times.distribution(clock),
        longest: sums.longest,
        kvm_ns: clock.ticks_to_ns(sums.parts.kvm),
        vmm_ns: clock.ticks_to_ns(sums.parts.vmm),
        stolen_ns: clock.ticks_to_ns(sums.parts.stolen),
        halted_ns: clock.ticks_to_ns(sums.parts.halted),
        blocked_ns: clock.ticks_to_ns(sums.parts.blocked),
    };
    let mut by_reason: Vec<_> = sums.reasons.into_iter().collect();
    by_reason.sort_unstable_by_key(|(reason, _)| *reason);
    let mut reasons: Vec<ReasonExits> = by_reason.into_iter().map(reason).collect();
    reasons.sort_by_key(|reason| Reverse((reason.time.total_ns, reason.count)));
    let functions = sums.instructions.rows(symbols, clock);
    let (operations, accesses) = sums.operations.rows(clock);
    let VmSums { count, unfinished, .. } = sums;
    VmExits {
        vm: vm.name.clone(),
        warnings: warnings(vm),
        count,
        unfinished,
        reasons,
        functions: functions.rows,
        is_nested: functions.is_nested,
        other_functions: functions.others,
        operations: operations.rows,
        accesses: accesses.rows,
        other_operations: operations.others,
        other_accesses: accesses.others,
    }
}

impl Report for Exits {
    fn write_text(&self, out: &mut dyn Sink) -> io::Result<()> {
        for vm in &self.vms {
            let exits = counted(vm.count, "exit", "exits");
            writeln!(out, "{}: {exits}, and the time until the vCPU was in the guest again", vm.vm)?;
            for warning in &vm.warnings {
                writeln!(out, "WARNING: {warning}")?;
            }
            columns::write(&vm.reasons, out)?;
            if vm.unfinished > 0 {
                writeln!(out, "{} of them have no time: their end is not in the records", vm.unfinished)?;
            }
            functions::write(vm, out)?;
            operations::write(vm, out)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
