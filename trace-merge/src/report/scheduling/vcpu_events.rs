//! The events that tell of the states of vCPUs, and what reports cannot tell without them.

use crate::report::statistics::samples::{ReportedBy, reported};
use strata_analysis::event;
use strata_analysis::timeline::Vm;
use strata_recording::layer::LayerKind;

/// What tells of the states of vCPUs.
pub(crate) const REPORTED_BY: [ReportedBy; 7] = [
    reported(LayerKind::HostKernel, event::name::SWITCH),
    reported(LayerKind::HostKernel, "sched:sched_wak*"),
    reported(LayerKind::HostKernel, "kvm:kvm_entry"),
    reported(LayerKind::HostKernel, "kvm:kvm_exit"),
    reported(LayerKind::HostKernel, event::name::KVM_USERSPACE_EXIT),
    reported(LayerKind::Vmm, "vmm:vcpu_enter"),
    reported(LayerKind::Vmm, "vmm:vcpu_exit"),
];

/// What a report on `vm` cannot tell for want of events.
pub(crate) fn warnings(vm: &Vm) -> Vec<String> {
    let mut warnings = Vec::new();
    if !vm.kvm_reports {
        warnings.push(
            "no kvm:kvm_entry and kvm:kvm_exit of the host's kernel: the guest, exits that KVM handles, and what the host \
             ran instead cannot be distinguished"
                .into(),
        );
    } else if !vm.scheduler_reports {
        warnings.push("no sched:sched_switch of the host's kernel: what the host ran instead counts as exits".into());
    }
    warnings
}
