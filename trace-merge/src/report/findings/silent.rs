//! A layer of the host's kernel that holds nothing about vCPUs which ran: it recorded for other threads, or none.

use super::{Finding, FindingKind, Next};
use crate::report::Window;
use std::collections::{BTreeMap, BTreeSet};
use strata_analysis::event::{Event, Tid};
use strata_analysis::timeline::{ChangeKind, Input, Origin, Timeline};
use strata_analysis::{Analysis, Passed};
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Manifest, Vm};
use strata_recording::text::counted::counted;
use strata_recording::text::terminal::harmless;

/// Looks for VMs whose vCPUs ran, and that the host's kernel says nothing about.
#[derive(Debug)]
pub(super) struct HostSilence {
    /// Only the whole recording tells: a vCPU may run for a while with nothing to say of it.
    looks: bool,
    /// VMs that the host's kernel tells of.
    reported: BTreeSet<usize>,
    /// By other VM: records of its VMM and its guest's kernel that could not be without a vCPU that ran.
    ran: BTreeMap<usize, u64>,
}

impl HostSilence {
    pub(super) fn new(window: Window) -> Self {
        Self { looks: window == Window::ALL, reported: BTreeSet::new(), ran: BTreeMap::new() }
    }

    pub(super) fn findings(&self, manifest: &Manifest, passed: &Passed) -> Vec<Finding> {
        let mut host = passed.completeness.layers.iter().filter(|layer| layer.layer == LayerKind::HostKernel);
        if !host.all(|layer| layer.is_complete()) {
            return Vec::new();
        }
        let could_record = |vm: &Vm| {
            let of_timeline = passed.timeline.vms.iter().find(|known| known.name == vm.name);
            !vm.outside_host_kernel && of_timeline.is_some_and(|vm| vm.scheduler_reports || vm.kvm_reports)
        };
        let silent = self.ran.iter().filter(|(vm, _)| !self.reported.contains(vm));
        let vms = silent.filter_map(|(&index, &count)| Some((manifest.vms.get(index)?, count)));
        vms.filter(|(vm, _)| could_record(vm)).map(|(vm, count)| finding(&vm.name, count)).collect()
    }
}

fn finding(vm: &str, count: u64) -> Finding {
    Finding {
        kind: FindingKind::EmptyLayer,
        text: format!("the host-kernel layer holds nothing about the vCPUs of {}, which ran", harmless(vm)),
        thousandths: 1000,
        evidence: format!(
            "its vCPUs made {} of other layers; what the host did is unknown",
            counted(count, "record", "records")
        ),
        next: Next::other("strata doctor where it was recorded; in a container, start that with --pid=host"),
    }
}

impl Analysis for HostSilence {
    fn takes_record(&self, input: &Input<'_>) -> bool {
        let is_host = matches!(input.origin, Origin::Host { .. });
        self.looks && (!is_host || input.event.is_some_and(|event| threads(&event).is_some()))
    }

    fn takes_change(&self, _kind: ChangeKind) -> bool {
        false
    }

    fn needs_states(&self) -> bool {
        false
    }

    fn record(&mut self, input: &Input<'_>, timeline: &Timeline) {
        if self.reported.len() == timeline.vms.len() {
            return;
        }
        match input.origin {
            Origin::Host { host, .. } => {
                let Some((threads, vcpu)) = input.event.as_ref().and_then(threads) else { return };
                let vms = threads.map(|tid| timeline.vcpu_of_event(host, tid, vcpu));
                self.reported.extend(vms.into_iter().flatten().map(|(vm, _)| vm));
            }
            Origin::Vmm { vm, .. } if matches!(input.event, Some(Event::VmmEnter { .. })) => self.count(vm),
            Origin::Guest { vm, .. } => self.count(vm),
            Origin::Vmm { .. } | Origin::User { .. } => {}
        }
    }
}

impl HostSilence {
    fn count(&mut self, vm: usize) {
        *self.ran.entry(vm).or_default() += 1;
    }
}

/// The threads of the host that `event` is about, and the vCPU where it says that itself; `None` of other events.
const fn threads(event: &Event<'_>) -> Option<([Tid; 2], Option<u32>)> {
    Some(match event {
        Event::Switch { prev, next, .. } => ([prev.tid, next.tid], None),
        Event::Wakeup { task, .. } => ([task.tid; 2], None),
        Event::KvmEntry { tid, vcpu } | Event::KvmExit { tid, vcpu, .. } => ([*tid; 2], *vcpu),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Finding, FindingKind, OverviewBuilder};
    use super::*;
    use crate::report::{make, scenario};
    use strata_recording::reader::Trace;
    use strata_recording::test_trace::{Field, TestTrace};

    const SWITCH: [(&str, Field); 6] = [
        ("common_pid", Field::Number(7)),
        ("prev_comm", Field::Text("other")),
        ("prev_pid", Field::Number(7)),
        ("prev_state", Field::Number(1)),
        ("next_comm", Field::Text("another")),
        ("next_pid", Field::Number(8)),
    ];
    const ENTER: [(&str, Field); 1] = [("vcpu", Field::Number(0))];

    fn found(trace: &Trace, window: Window) -> Vec<Finding> {
        let overview = make(trace, window, OverviewBuilder::new(trace, window)).unwrap();
        overview.findings.into_iter().filter(|finding| finding.kind == FindingKind::EmptyLayer).collect()
    }

    /// A VM whose vCPU enters the guest, on a host that records the switches of other threads. `then` adds to that.
    fn of_other_threads(then: impl FnOnce(TestTrace) -> TestTrace) -> TestTrace {
        let trace = then(TestTrace::new().host(0, 1_000, "sched:sched_switch", &SWITCH));
        trace.vmm(0, 2_000, "vmm:vcpu_enter", &ENTER).vmm(0, 3_000, "vmm:vcpu_enter", &ENTER)
    }

    #[test]
    fn host_layer_without_the_vcpus_that_ran_is_a_finding() {
        let (_dir, trace) = of_other_threads(|trace| trace).open();

        let findings = found(&trace, Window::ALL);

        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].text.contains("nothing about the vCPUs of vm0"), "{findings:?}");
        assert!(
            findings[0].evidence.starts_with("its vCPUs made 2 records")
                && findings[0].next.text.contains("--pid=host"),
            "{findings:?}"
        );
    }

    #[test]
    fn host_layer_that_tells_of_a_vcpu_is_none() {
        let (_dir, trace) = scenario::preempted_in_an_exit().open();

        assert_eq!(found(&trace, Window::ALL), []);
    }

    #[test]
    fn host_layer_is_not_called_empty_where_records_are_lost_or_outside_of_a_part() {
        let (_lossy_dir, lossy) = of_other_threads(|trace| trace.lost(LayerKind::HostKernel, 0, 1)).open();
        let (_dir, whole) = of_other_threads(|trace| trace).open();

        assert_eq!(found(&lossy, Window::ALL), []);
        assert_eq!(found(&whole, Window { begin: 1_500, end: 9_000 }), []);
    }

    #[test]
    fn host_layer_of_a_vm_that_did_not_run_may_be_empty() {
        let (_dir, trace) = TestTrace::new().host(0, 1_000, "sched:sched_switch", &SWITCH).open();

        assert_eq!(found(&trace, Window::ALL), []);
    }
}
