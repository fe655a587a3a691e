//! The events that tell of the states of vCPUs, and what reports cannot tell without them.

use crate::report::statistics::samples::{ToldBy, told};
use strata_analysis::event;
use strata_analysis::timeline::Vm;
use strata_recording::layer::LayerKind;

/// What tells of the states of vCPUs.
pub(crate) const TOLD_BY: [ToldBy; 7] = [
    told(LayerKind::HostKernel, event::name::SWITCH),
    told(LayerKind::HostKernel, "sched:sched_wak*"),
    told(LayerKind::HostKernel, "kvm:kvm_entry"),
    told(LayerKind::HostKernel, "kvm:kvm_exit"),
    told(LayerKind::HostKernel, event::name::KVM_USERSPACE_EXIT),
    told(LayerKind::Vmm, "vmm:vcpu_enter"),
    told(LayerKind::Vmm, "vmm:vcpu_exit"),
];

/// What a report on `vm` cannot tell for want of events.
pub(crate) fn warnings(vm: &Vm) -> Vec<String> {
    let mut warnings = Vec::new();
    if !vm.kvm_tells {
        warnings.push(
            "no kvm:kvm_entry and kvm:kvm_exit of the host's kernel: the guest, exits that KVM handles, and what the host \
             ran instead are not told apart"
                .into(),
        );
    } else if !vm.scheduler_tells {
        warnings.push("no sched:sched_switch of the host's kernel: what the host ran instead counts as exits".into());
    }
    warnings
}
