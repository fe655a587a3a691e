//! What a check came to.

use super::pairs::PairCount;
use serde::Serialize;
use strata_analysis::completeness::Completeness;
use strata_analysis::vcpu::{Period, SwitchSource};

/// What a check came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CheckResult {
    /// What of the recording was damaged, lost or is unknown.
    pub completeness: Completeness,
    /// Guest kernel records that were checked against periods.
    pub guest_kernel_records: u64,
    /// Guest user records that were checked against periods.
    pub guest_user_records: u64,
    /// Guest records that could not be checked against periods, because it is not known when their vCPUs were in the guest
    /// at that time.
    pub unchecked: u64,
    /// VMs whose guest records could not be checked at all, because no layer that tells periods was left.
    pub without_periods: Vec<String>,
    /// Records of all layers whose order was checked.
    pub records: u64,
    /// The clock's error bound: how far outside a period a record may lie, ns.
    pub tolerance_ns: u64,
    /// For each VM, the periods, by the layers that they come from.
    pub periods: Vec<PeriodSummary>,
    /// For each vCPU, what the trace itself says about its clock.
    pub supported: Vec<SupportedBound>,
    /// For each vCPU, what contradicts a bound of its clock that was observed and not guaranteed: no violation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub beyond_observed: Vec<BeyondObserved>,
    /// Guest records outside the periods by more than the clock's error bound.
    pub outside: u64,
    /// Records that are older than the one before them in their stream.
    pub out_of_order: u64,
    /// Streams that are not whole: packets damaged, truncated or missing, or bytes or records that cannot be read.
    pub damaged: u64,
    /// Entries into guests outside the runs of their vCPUs that the VMM recorded.
    pub outside_runs: u64,
    /// Entries into guests that were looked up in those runs.
    pub entries_checked: u64,
    /// Streams whose counts of lost records contradict each other.
    pub loss_contradictions: u64,
    /// For each VM, the events that come in pairs.
    pub pairs: Vec<VmPairs>,
    /// The first violations.
    pub violations: Vec<Violation>,
}

/// The events of a VM that come in pairs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VmPairs {
    /// Name of the VM.
    pub vm: String,
    /// By kind of pair.
    pub pairs: Vec<PairCount>,
    /// Why pairs that are not whole are not violations here, if so.
    pub lenient: Option<String>,
}

impl CheckResult {
    /// Number of violations.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.outside
            + self.out_of_order
            + self.damaged
            + self.outside_runs
            + self.loss_contradictions
            + self.unbalanced()
    }

    /// The stretch of `vcpu` of the VM called `vm` that is not bounded; begun at `ticks` if there is none yet.
    pub(super) fn stretch_beyond_observed(&mut self, vm: &str, vcpu: u32, ticks: u64) -> &mut BeyondObserved {
        let stretches = &mut self.beyond_observed;
        let index = stretches.iter().position(|of| of.vcpu == vcpu && of.vm == vm).unwrap_or_else(|| {
            let vm = vm.to_string();
            stretches.push(BeyondObserved {
                vm,
                vcpu,
                records: 0,
                from_ticks: ticks,
                to_ticks: ticks,
                most_ns: 0,
                bound_ns: 0,
            });
            stretches.len() - 1
        });
        &mut stretches[index]
    }

    /// Events that are alone for no known reason.
    #[must_use]
    pub fn unbalanced(&self) -> u64 {
        let strict = self.pairs.iter().filter(|vm| vm.lenient.is_none());
        strict.flat_map(|vm| &vm.pairs).map(|pair| pair.unbalanced).sum()
    }

    /// Whether there are none.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.total() == 0
    }

    /// Guest records that were checked against periods.
    #[must_use]
    pub const fn guest_records(&self) -> u64 {
        self.guest_kernel_records + self.guest_user_records
    }
}

/// The periods that a VM's records were checked against.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeriodSummary {
    /// Name of the VM.
    pub vm: String,
    /// The layer that they come from.
    pub source: SwitchSource,
    /// Number of periods.
    pub count: usize,
    /// Records that were checked against them.
    pub records: u64,
    /// Why not against those of a better layer, if so.
    pub remark: Option<String>,
    /// Since when they are known, ticks; 0 from the beginning of the recording.
    pub from: u64,
}

/// What a trace itself says about a vCPU's clock: if its error is the same all the time, it lies between the two limits,
/// since each record of the guest's kernel lies between an entry and an exit. The stated bound needs no such assumption.
/// Records outside the periods show that the error varies: then there are no limits to state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SupportedBound {
    /// Name of the VM.
    pub vm: String,
    /// Index of the vCPU; `None` for the records of the VM's processes, which may belong to any.
    pub vcpu: Option<u32>,
    /// Records that were compared with periods.
    pub records: u64,
    /// The clock is ahead of the host's by no more than this: the least time from an entry to a record, ns. `None` when
    /// records lie outside the periods.
    pub ahead_ns: Option<u64>,
    /// It is behind by no more than this: the least time from a record to an exit, ns. `None` when records lie outside the
    /// periods, or no period ends.
    pub behind_ns: Option<u64>,
    /// Records outside the periods, by however little.
    pub outside: u64,
    /// Most time that a record lies before its period, ns.
    pub early_ns: u64,
    /// Most time that a record lies after its period, ns.
    pub late_ns: u64,
}

/// Records of a vCPU farther outside its periods than comparisons of its counter saw, where the host's kernel has given up
/// the TSC: in this stretch the vCPU's times are not bounded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BeyondObserved {
    /// Name of the VM.
    pub vm: String,
    /// Index of the vCPU.
    pub vcpu: u32,
    /// Number of records.
    pub records: u64,
    /// Time of the first one, ticks.
    pub from_ticks: u64,
    /// Time of the last one, ticks.
    pub to_ticks: u64,
    /// Most time that one lies outside its period, ns.
    pub most_ns: u64,
    /// The largest bound that was observed for them, ns.
    pub bound_ns: u64,
}

/// What is wrong with a record or stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Problem {
    /// Outside the periods.
    Outside {
        /// The vCPU whose period is nearest; `None` when there is no period at all.
        vcpu: Option<u32>,
        /// The nearest period; its end is `u64::MAX` where it had just begun.
        nearest: Option<Period>,
        /// Distance from it, ns.
        outside_ns: Option<u64>,
    },
    /// Older than the record before it.
    OutOfOrder {
        /// By this much, ns.
        earlier_ns: u64,
    },
    /// An entry into a guest outside the runs of its vCPU.
    OutsideRun {
        vcpu: u32,
        /// Distance from the nearest run, ns; `None` when the vCPU never ran.
        outside_ns: Option<u64>,
    },
    /// Half of a pair.
    Unbalanced { what: String },
    /// Counts of lost records contradict each other.
    Loss {
        /// How.
        what: String,
    },
    /// The stream is not whole.
    Damaged {
        /// What is wrong with it.
        what: String,
    },
}

/// A violation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Violation {
    /// The stream's file, relative to the recording's folder.
    pub stream: String,
    /// Time of the record, ticks; `None` when a whole stream is concerned.
    pub ticks: Option<u64>,
    /// Its event's name.
    pub event: Option<String>,
    #[serde(flatten)]
    pub problem: Problem,
}
