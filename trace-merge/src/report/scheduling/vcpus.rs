//! Where the time of vCPUs went. For each vCPU the parts add up to the window to the tick.

use super::state_names;
use super::vcpu_events::{REPORTED_BY, warnings};
use crate::report::description::{Description, Requested};
use crate::report::rows::columns;
use crate::report::rows::columns::figure::{Figure, Figures};
use crate::report::rows::columns::{Column, Object, ReportRow, Unit, Value, column, distribution};
use crate::report::rows::table::{Align, Table};
use crate::report::sink::Sink;
use crate::report::statistics::distribution::{Distribution, Durations};
use crate::report::statistics::samples::{ReportedBy, Row, Sampled, Samples, steady_name};
use crate::report::{Report, ReportBuilder, ReportError, Window, duration, percent};
use foldhash::HashMap;
use serde::Serialize;
use serde_json::json;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use strata_analysis::timeline::host::Host;
use strata_analysis::timeline::vcpu::VcpuState;
use strata_analysis::timeline::{Change, ChangeKind, Input, Timeline};
use strata_analysis::{Analysis, Passed};
use strata_recording::layer::LayerKind;
use strata_recording::manifest::CpuLimit;
use strata_recording::reader::Trace;
use strata_recording::text::counted::counted;
use strata_recording::text::terminal::harmless;

/// What describes the report.
pub const DESCRIPTION: Description = Description {
    name: "vcpus",
    about: "Where the time of each vCPU went: in the guest, in KVM, in the VMM, preempted and by whom, halted",
    requested: Requested::Command,
    examples: &[],
    takes_symbols: false,
    is_in_all: true,
    rows: &[columns::rows::<VcpuReport>("vms[].vcpus[]"), columns::rows::<VcpuPart>("vms[].vcpus[].parts[]")],
    begin: |_, _, _| Ok(Box::new(VcpuTimes::default())),
};

/// Where the time of all vCPUs went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Vcpus {
    /// Ticks per second: times are in ticks where they have to add up.
    pub frequency_hz: u64,
    /// What is reported on.
    pub window: Window,
    pub vms: Vec<VmVcpus>,
}

/// Where the time of a VM's vCPUs went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VmVcpus {
    /// Name of the VM.
    pub vm: String,
    /// What the parts mean less than they could, and why.
    pub warnings: Vec<String>,
    /// The host's control groups that its threads were in, and what each counted in the whole recording.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cpu_limits: Vec<CpuLimit>,
    /// Its vCPUs, in order.
    #[serde(serialize_with = "columns::serialize")]
    pub vcpus: Vec<VcpuReport>,
}

/// Where the time of a vCPU went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VcpuReport {
    /// Index.
    pub vcpu: u32,
    /// Its host thread, where that is known.
    pub tid: Option<i32>,
    /// Length of the window, ticks; the parts add up to it.
    pub wall_ticks: u64,
    /// The parts, the longest first.
    pub parts: Vec<VcpuPart>,
    /// How long the host took from waking its thread until it ran.
    pub wakeups: Distribution,
}

/// A part of a vCPU's time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VcpuPart {
    /// What it did: `guest`, `kvm_run` (guest or KVM, where nothing tells them apart), `kvm`, `vmm`, `preempted`,
    /// `woken` (and not yet run), `halted`, `blocked_in_kvm`, `blocked_in_vmm`, `ended` or `unknown`.
    pub state: &'static str,
    /// For which exit, by whom.
    pub detail: Option<String>,
    /// How many times.
    pub count: u64,
    /// Time, ticks.
    pub ticks: u64,
    /// The same, ns.
    pub ns: u64,
}

/// What the table shows of the times until threads of vCPUs ran.
const WAKEUPS: Figures = &[
    (Figure::Count, "times"),
    (Figure::Total, "total"),
    (Figure::P50, "p50"),
    (Figure::P99, "p99"),
    (Figure::Longest, "longest"),
];

impl ReportRow for VcpuReport {
    const COLUMNS: &'static [Column<Self>] = &[
        column("vcpu", "vCPU", Unit::Number, "Its index", |row| row.vcpu.into()),
        column("tid", "", Unit::Number, "Its host thread, where that is known", |row| row.tid.into()),
        column("wall_ticks", "", Unit::Ticks, "Length of the window; the parts add up to it", |row| {
            row.wall_ticks.into()
        }),
        column("parts", "", Unit::Rows, "What its time is made of, the longest first", |row| Value::rows(&row.parts)),
        distribution("wakeups", WAKEUPS, "From waking its thread until it ran", |row| (&row.wakeups).into()),
    ];
}

impl ReportRow for VcpuPart {
    const COLUMNS: &'static [Column<Self>] = &[
        column("state", "", Unit::Text, "What it did", |row| row.state.into()),
        column("detail", "", Unit::Text, "For which exit, by whom", |row| row.detail.as_ref().into()),
        column("count", "", Unit::Count, "How many times", |row| row.count.into()),
        column("ticks", "", Unit::Ticks, "How long in all", |row| row.ticks.into()),
        column("ns", "", Unit::Ns, "The same", |row| row.ns.into()),
    ];
}

/// Reports on the vCPUs in `trace`.
///
/// # Errors
/// When there is no record in the window, or when the parts of a vCPU do not add up.
pub fn report(trace: &Trace, window: Window) -> Result<Vcpus, ReportError> {
    crate::report::make(trace, window, VcpuTimes::default())
}

/// The report in the making. Takes memory for each thing that a vCPU did.
#[derive(Debug, Default)]
pub struct VcpuTimes {
    /// By VM and vCPU.
    vcpus: BTreeMap<(usize, u32), VcpuSums>,
    samples: Samples,
}

impl Sampled for VcpuTimes {
    fn samples(&mut self) -> Vec<(&'static [ReportedBy], &mut Samples)> {
        vec![(&REPORTED_BY, &mut self.samples)]
    }
}

/// The row that a state counts in where recordings are compared: whoever preempts goes by name alone.
fn sampled_row(state: VcpuState, host: Option<&Host>) -> Row {
    let (name, detail) = match state {
        VcpuState::Stolen { by, woken } if !state_names::is_limit(by) => {
            let by = state_names::preemptor_name(host, by);
            (if woken { "woken" } else { "preempted" }, Some(steady_name(&by).to_string()))
        }
        state => name(state, host),
    };
    let what = detail.map_or_else(|| name.to_string(), |detail| format!("{name}: {detail}"));
    Row { what, waits: state == VcpuState::Halted }
}

#[derive(Debug, Default)]
struct VcpuSums {
    /// How often, and how long in all, ticks.
    states: HashMap<VcpuState, (u64, u64)>,
    wakeups: Durations,
    /// For how long the thread has been woken and has not had its turn, ticks.
    waking: u64,
}

impl Analysis for VcpuTimes {
    fn layers(&self) -> &'static [LayerKind] {
        &[LayerKind::HostKernel, LayerKind::Vmm]
    }

    fn takes_change(&self, kind: ChangeKind) -> bool {
        kind == ChangeKind::Vcpu
    }

    fn takes_record(&self, _input: &Input<'_>) -> bool {
        false
    }

    fn change(&mut self, change: &Change, timeline: &Timeline) {
        let Change::Vcpu { vm, vcpu, window, state } = *change else { return };
        let sums = self.vcpus.entry((vm, vcpu)).or_default();
        let (count, ticks) = sums.states.entry(state).or_default();
        (*count, *ticks) = (*count + 1, *ticks + window.length());
        if !matches!(state, VcpuState::Unknown | VcpuState::Ended) {
            self.samples.add_state(Some(vm), window, || sampled_row(state, timeline.host_of(vm)));
        }
        // What runs meanwhile may change several times before the thread gets its turn.
        match state {
            // What a limit adds is not latency.
            VcpuState::Stolen { by, .. } if state_names::is_limit(by) => {}
            VcpuState::Stolen { woken: true, .. } => sums.waking += window.length(),
            VcpuState::Unknown => sums.waking = 0,
            _ if sums.waking > 0 => {
                let waking = std::mem::take(&mut sums.waking);
                sums.wakeups.add(waking);
                self.samples.add(Some(vm), window.begin, waking, || "thread woken until it runs".to_string());
            }
            _ => {}
        }
    }
}

impl ReportBuilder for VcpuTimes {
    type Report = Vcpus;

    fn finish(self, trace: &Trace, passed: &Passed) -> Result<Vcpus, ReportError> {
        let nothing = || ReportError::nothing("there is no record of a VM or its host", "see strata report");
        let window = passed.window.ok_or_else(nothing)?;
        let clock = trace.clock();
        let mut vms: Vec<VmVcpus> = passed
            .timeline
            .vms
            .iter()
            .map(|vm| VmVcpus {
                vm: vm.name.clone(),
                warnings: warnings(vm),
                cpu_limits: trace.manifest().vm(&vm.name).map_or_else(Vec::new, |vm| vm.cpu_limits.clone()),
                vcpus: Vec::new(),
            })
            .collect();
        for ((index, number), sums) in self.vcpus {
            let (Some(known), Some(vm)) = (passed.timeline.vm(index), vms.get_mut(index)) else { continue };
            let host = passed.timeline.host_of(index);
            let of: u64 = sums.states.values().map(|&(_, ticks)| ticks).sum();
            if of != window.length() {
                let of_vcpu = format!("{} vCPU {number}", known.name);
                return Err(ReportError::Sum { of: of_vcpu, parts: of, wall: window.length() });
            }
            let part = |(state, (count, ticks))| {
                let (state, detail) = name(state, host);
                VcpuPart { state, detail, count, ticks, ns: clock.ticks_to_ns(ticks) }
            };
            let mut states: Vec<_> = sums.states.into_iter().collect();
            states.sort_unstable_by_key(|(state, _)| *state);
            let mut parts: Vec<VcpuPart> = states.into_iter().map(part).collect();
            parts.sort_by_key(|part| Reverse(part.ticks));
            let tid = known.vcpus.get(number).and_then(|vcpu| vcpu.tid);
            let wakeups = sums.wakeups.distribution(clock);
            vm.vcpus.push(VcpuReport { vcpu: number, tid, wall_ticks: window.length(), parts, wakeups });
        }
        Ok(Vcpus { frequency_hz: clock.frequency_hz, window, vms })
    }
}

/// What the state is called in which a thread is ready, and its CPU is idle and does not run it.
const NOT_ALLOWED: &str = "not_allowed";

/// What a state is called, and its cause where it has one.
#[must_use]
pub fn name(state: VcpuState, host: Option<&Host>) -> (&'static str, Option<String>) {
    match state {
        VcpuState::Unknown => ("unknown", None),
        VcpuState::Guest => ("guest", None),
        VcpuState::KvmRun => ("kvm_run", None),
        VcpuState::Kvm(reason) => ("kvm", Some(state_names::reason(reason))),
        VcpuState::Vmm(reason) => ("vmm", Some(state_names::reason(reason))),
        VcpuState::Stolen { by, .. } if state_names::is_limit(by) => {
            (NOT_ALLOWED, Some(state_names::preemptor(host, by)))
        }
        VcpuState::Stolen { by, woken: false } => ("preempted", Some(state_names::preemptor(host, by))),
        VcpuState::Stolen { by, woken: true } => ("woken", Some(state_names::preemptor(host, by))),
        VcpuState::Halted => ("halted", None),
        VcpuState::BlockedInKvm(reason) => ("blocked_in_kvm", Some(state_names::reason(reason))),
        VcpuState::BlockedInVmm(reason) => ("blocked_in_vmm", Some(state_names::reason(reason))),
        VcpuState::Ended => ("ended", None),
    }
}

/// The columns of the table of vCPUs: their headings, and the states that count in them.
const COLUMNS: [(&str, &[&str]); 11] = [
    ("guest", &["guest"]),
    ("guest or KVM", &["kvm_run"]),
    ("KVM", &["kvm"]),
    ("VMM", &["vmm"]),
    ("preempted", &["preempted"]),
    ("woken, not run", &["woken"]),
    ("not allowed", &[NOT_ALLOWED]),
    ("halted", &["halted"]),
    ("blocked", &["blocked_in_kvm", "blocked_in_vmm"]),
    ("ended", &["ended"]),
    ("unknown", &["unknown"]),
];

/// The tables of what parts are made of: their titles, what the details are, and the states.
const DETAILS: [(&str, &str, &str); 6] = [
    ("KVM, by exit", "reason", "kvm"),
    ("VMM, by exit", "reason", "vmm"),
    ("preempted", "by", "preempted"),
    ("woken, and not run yet", "because of", "woken"),
    ("not allowed to run", "because of", NOT_ALLOWED),
    ("blocked in KVM", "exit", "blocked_in_kvm"),
];

impl Report for Vcpus {
    fn write_text(&self, out: &mut dyn Sink) -> io::Result<()> {
        let clock_ns = |ticks: u64| {
            let ns = u128::from(ticks) * u128::from(strata_recording::clock::NS_PER_SECOND)
                / u128::from(self.frequency_hz.max(1));
            u64::try_from(ns).unwrap_or(u64::MAX)
        };
        for vm in &self.vms {
            let vcpus = counted(vm.vcpus.len(), "vCPU", "vCPUs");
            writeln!(out, "{}: {vcpus} in {}", vm.vm, duration(clock_ns(self.window.length())))?;
            for warning in &vm.warnings {
                writeln!(out, "WARNING: {warning}")?;
            }
            vm.write_vcpus(out)?;
            for (title, heading, state) in DETAILS {
                vm.write_details(out, title, heading, state)?;
            }
            vm.write_limits(out)?;
            vm.write_wakeups(out)?;
        }
        Ok(())
    }
}

impl VmVcpus {
    fn write_vcpus(&self, out: &mut dyn Sink) -> io::Result<()> {
        let ns = |vcpu: &VcpuReport, states: &[&str]| -> u64 {
            let parts = vcpu.parts.iter().filter(|part| states.contains(&part.state));
            parts.fold(0, |sum, part| sum.saturating_add(part.ns))
        };
        let columns: Vec<_> =
            COLUMNS.iter().filter(|(_, states)| self.vcpus.iter().any(|vcpu| ns(vcpu, states) > 0)).collect();
        let mut headings = vec![("vCPU", Align::Right), ("thread", Align::Right)];
        headings.extend(columns.iter().map(|&&(heading, _)| (heading, Align::Right)));
        let mut table = Table::new(&headings);
        for vcpu in &self.vcpus {
            let thread = vcpu.tid.map_or_else(|| "-".into(), |tid| tid.to_string());
            let cells = columns.iter().map(|(_, states)| match ns(vcpu, states) {
                0 => "-".into(),
                ns => duration(ns),
            });
            let parts: Vec<_> = vcpu.parts.iter().map(Object::of).collect();
            let data = json!({ "vcpu": vcpu.vcpu, "parts": parts });
            table.row_of([vcpu.vcpu.to_string(), thread].into_iter().chain(cells), data);
        }
        table.write(out)
    }

    fn write_details(&self, out: &mut dyn Sink, title: &str, heading: &str, state: &str) -> io::Result<()> {
        let mut sums: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for part in self.vcpus.iter().flat_map(|vcpu| &vcpu.parts).filter(|part| part.state == state) {
            let (count, ns) = sums.entry(part.detail.as_deref().unwrap_or("-")).or_default();
            (*count, *ns) = (*count + part.count, ns.saturating_add(part.ns));
        }
        if sums.is_empty() {
            return Ok(());
        }
        let total = sums.values().fold(0_u64, |total, (_, ns)| total.saturating_add(*ns));
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|&(_, (_, ns))| Reverse(ns));
        writeln!(out, "\n{}: {title}: {}", self.vm, duration(total))?;
        let right = Align::Right;
        let mut table = Table::new(&[(heading, Align::Left), ("times", right), ("time", right), ("share", right)]);
        for (detail, (count, ns)) in sums {
            table.row([harmless(detail), count.to_string(), duration(ns), percent(ns, total)]);
        }
        table.write(out)
    }

    /// How much of the time in which vCPUs were not allowed to run the kernel says that a limit explains.
    fn write_limits(&self, out: &mut dyn Sink) -> io::Result<()> {
        let mut parts = self.vcpus.iter().flat_map(|vcpu| &vcpu.parts);
        if parts.all(|part| part.state != NOT_ALLOWED) {
            return Ok(());
        }
        let counted = self.cpu_limits.iter().map(|limit| limit.counted().throttled_ns).fold(0, u64::saturating_add);
        let vm = harmless(&self.vm);
        match self.cpu_limits.as_slice() {
            [] => writeln!(out, "{vm}: what CPU limits of the host's control groups are part of that is not recorded"),
            _ => writeln!(
                out,
                "{vm}: CPU limits of the host's control groups kept threads from running for {} in the whole recording, all \
                 CPUs together (cpu.stat); what is more has another reason",
                duration(counted)
            ),
        }
    }

    fn write_wakeups(&self, out: &mut dyn Sink) -> io::Result<()> {
        if self.vcpus.iter().all(|vcpu| vcpu.wakeups.count == 0) {
            return Ok(());
        }
        writeln!(out, "\n{}: from waking a vCPU's thread until it ran", self.vm)?;
        columns::write(&self.vcpus, out)
    }
}

#[cfg(test)]
mod tests {
    //! Shows: Parts of a task's and vCPU's time add up to wall time to the tick.

    use super::*;
    use crate::report::scenario;
    use strata_analysis::timeline::vcpu::Preemptor;
    use strata_recording::manifest::Throttled;
    use strata_recording::test_trace::{Field, TestTrace};

    #[test]
    fn parts_of_each_vcpu_add_up_and_name_who_preempted_it() {
        let (_dir, trace) = scenario::preempted_in_an_exit().open();

        let report = report(&trace, Window::ALL).unwrap();

        let vcpu = &report.vms[0].vcpus[0];
        assert_eq!(vcpu.parts.iter().map(|part| part.ticks).sum::<u64>(), report.window.length());
        let part = |state: &str| vcpu.parts.iter().find(|part| part.state == state).unwrap();
        assert_eq!((part("preempted").ticks, part("preempted").detail.as_deref()), (18_000, Some("hog/200")));
        assert_eq!((part("vmm").ticks, part("vmm").detail.as_deref()), (5_000, Some("ioio")));
        assert_eq!((part("halted").ticks, part("woken").ticks), (15_000, 1_000));
        assert_eq!((vcpu.wakeups.count, vcpu.wakeups.max_ns), (1, 500));
    }

    #[test]
    fn wakeup_that_meets_a_limit_counts_without_it() {
        let mut times = VcpuTimes::default();
        let (_dir, trace) = TestTrace::new().open();
        let timeline = Timeline::new(&trace);
        let states = [
            (VcpuState::Stolen { by: Preemptor::Unknown, woken: true }, 1_000),
            (VcpuState::Stolen { by: Preemptor::NotAllowed, woken: false }, 10_000),
            (VcpuState::Stolen { by: Preemptor::Unknown, woken: true }, 500),
            (VcpuState::Guest, 100),
        ];

        let mut begin = 0;
        for (state, ticks) in states {
            let window = Window { begin, end: begin + ticks };
            times.change(&Change::Vcpu { vm: 0, vcpu: 0, window, state }, &timeline);
            begin += ticks;
        }

        let wakeups = &times.vcpus[&(0, 0)].wakeups;
        assert_eq!((wakeups.count(), wakeups.total()), (1, 1_500));
    }

    #[test]
    fn limits_of_control_groups_stand_below_the_time_that_vcpus_were_not_allowed_to_run() {
        let number = Field::Number;
        let switch = |prev, state, next| {
            [
                ("common_pid", number(prev)),
                ("prev_comm", Field::Text("prev")),
                ("prev_pid", number(prev)),
                ("prev_state", number(state)),
                ("next_comm", Field::Text("next")),
                ("next_pid", number(next)),
            ]
        };
        let count = |throttled_ns| Throttled { periods: 1, throttled: 1, throttled_ns };
        let limit = CpuLimit {
            cgroup: "/pod".into(),
            quota_us: Some(1),
            period_us: 2,
            begin: count(1_000),
            end: count(11_000),
        };
        let trace = TestTrace::new().cpu_limit(limit.clone());
        let trace = trace.host(0, 1_000, "sched:sched_switch", &switch(0, 0, 100));
        let vcpu = [("common_pid", number(100)), ("vcpu_id", number(0))];
        let exit = [vcpu[0], vcpu[1], ("exit_reason", number(0x7b)), ("isa", number(2))];
        let trace = trace.host(0, 1_500, "kvm:kvm_entry", &vcpu).host(0, 1_900, "kvm:kvm_exit", &exit);
        let trace = trace.host(0, 2_000, "sched:sched_switch", &switch(100, 0, 0));
        let (_dir, trace) = trace.host(0, 22_000, "sched:sched_switch", &switch(0, 0, 100)).open();
        let mut text = Vec::new();

        let report = report(&trace, Window::ALL).unwrap();
        report.write_text(&mut text).unwrap();

        let not_allowed = report.vms[0].vcpus[0].parts.iter().find(|part| part.state == NOT_ALLOWED).unwrap();
        assert_eq!((not_allowed.ns, report.vms[0].cpu_limits.as_slice()), (10_000, [limit].as_slice()));
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("kept threads from running for 10.000 µs in the whole recording"), "{text}");
    }

    #[test]
    fn table_has_a_column_for_each_part_that_there_is() {
        let (_dir, trace) = scenario::preempted_in_an_exit().open();
        let mut out = Vec::new();

        report(&trace, Window::ALL).unwrap().write_text(&mut out).unwrap();

        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("preempted") && text.contains("hog/200"), "{text}");
        assert!(!text.contains("guest or KVM"), "{text}");
    }

    #[test]
    fn window_without_a_record_is_an_error() {
        let (_dir, trace) = scenario::preempted_in_an_exit().open();

        let error = report(&trace, Window { begin: 1 << 40, end: u64::MAX }).unwrap_err();

        assert!(matches!(error, ReportError::Nothing { .. }), "{error}");
    }
}
