//! What a recording says of its vCPUs before anything is recorded, and what it will lack.

use crate::agentless::READ_AT_END;
use crate::run::request::Agent;
use strata_clock::HostTime;
use strata_machine::{KvmProbe, Machine};
use strata_recorder::session::recording::NO_AGENT;
use strata_recording::clock::VcpuRelation;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::Missing;

/// How each vCPU's counter begins. None when KVM does not tell the TSC offsets.
pub(in crate::run) fn vcpu_relations(
    machine: &Machine,
    probed: &KvmProbe,
    vm: &str,
    missing: &mut Vec<Missing>,
) -> Vec<VcpuRelation> {
    let Some(offsets) = machine.tsc_offsets() else {
        for layer in [LayerKind::GuestKernel, LayerKind::GuestUser] {
            missing.push(Missing {
                layer,
                reason: "this host's KVM does not tell the guest's TSC offset".into(),
                fix: "use Linux 5.16 or later on the host".into(),
            });
        }
        return Vec::new();
    };
    let (how, honoured) = match probed.tsc_offset_honoured {
        _ if HostTime::of_this_host() == HostTime::MonotonicRaw => {
            ("as KVM began; it moves the offset on this host, see the epochs", true)
        }
        Some(true) => ("set, read back, and seen to work in a probe guest", true),
        Some(false) => {
            ("KVM accepts an offset but ignores it (seen in a probe guest): the counters are the same", false)
        }
        None => ("set and read back", true),
    };
    let relations = (0..).zip(offsets).map(|(vcpu, &offset)| {
        let tsc_offset = if honoured { offset } else { 0 };
        VcpuRelation { vm: vm.into(), vcpu, tsc_offset, how: how.into() }
    });
    relations.collect()
}

/// Notes what is missing unless the guest brings an agent of its own.
pub(in crate::run) fn note_no_agent(agent: &Agent, is_agentless: bool, missing: &mut Vec<Missing>) {
    let fix = match agent {
        Agent::Unspecified => {
            "give --agent auto, or --agent strata.ko built for the guest's kernel, or install strata-agent in the guest"
        }
        Agent::None => "give --agent strata.ko instead of --no-agent, or install strata-agent in the guest",
        // Why the module is not used is noted already.
        Agent::Module(_) => return,
    };
    for layer in [LayerKind::GuestKernel, LayerKind::GuestUser] {
        missing.push(match layer {
            LayerKind::GuestKernel if is_agentless => {
                Missing { layer, reason: READ_AT_END.into(), fix: "end the guest, or give --agent".into() }
            }
            _ => Missing { layer, reason: NO_AGENT.into(), fix: fix.into() },
        });
    }
}
