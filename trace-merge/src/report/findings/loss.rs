//! What is missing of a layer: a finding for each cause, with what helps against that one.

use super::{Finding, FindingKind};
use crate::report::duration;
use strata_analysis::completeness::LayerCompleteness;
use strata_recording::loss::{Cause, Setting, causes};
use strata_recording::terminal::harmless;

/// What shows where something is missing.
const WHERE: &str = "strata check TRACE";

/// The findings of `layer`.
pub(super) fn findings(layer: &LayerCompleteness, setting: Setting) -> Vec<Finding> {
    let of = layer.vm.as_ref().map_or_else(String::new, |vm| format!(" of {}", harmless(vm)));
    let name = format!("the {} layer{of}", layer.layer);
    let gaps = format!("{} gaps, {} of its streams' time", layer.gaps, duration(layer.gap_ns));
    let finding = |text: String, next: &str| Finding {
        kind: FindingKind::Loss,
        text,
        thousandths: 1000,
        evidence: format!("{gaps}; what they would tell is unknown in every figure"),
        next: next.into(),
    };
    let lost = causes(layer.layer, &layer.lost, setting)
        .map(|Cause { count, cause, next }| finding(format!("{count} records of {name} are lost: {cause}"), next));
    let rejected = (layer.rejected_bytes > 0)
        .then(|| finding(format!("{} bytes of {name} were refused: they are no records", layer.rejected_bytes), WHERE));
    let damaged = layer
        .damage
        .any()
        .then(|| finding(format!("files of {name} are damaged: {}", layer.damage), against_damage(layer)));
    lost.chain(rejected).chain(damaged).collect()
}

fn against_damage(layer: &LayerCompleteness) -> &'static str {
    if layer.damage.truncated_bytes > 0 { "copy the recording again, whole; or strata check TRACE" } else { WHERE }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared_ring::consumer::Lost;
    use strata_recording::layer::LayerKind;
    use strata_recording::reader::Damage;

    fn next_of(layer: LayerKind, lost: Lost, is_limited: bool) -> Vec<String> {
        let layer = LayerCompleteness { lost, ..LayerCompleteness::none(layer, None) };
        let setting = Setting { is_limited, ..Setting::default() };
        findings(&layer, setting).into_iter().map(|finding| finding.next).collect()
    }

    #[test]
    fn records_that_are_too_large_are_told_the_size_and_not_the_number_of_sub_buffers() {
        let lost = Lost { too_large: 2, ..Lost::default() };

        let next = next_of(LayerKind::GuestKernel, lost, false);

        assert!(next.len() == 1 && next[0].contains("--sub-buffer-size"), "{next:?}");
        assert!(!next[0].contains("--sub-buffers"), "{next:?}");
    }

    #[test]
    fn each_cause_has_its_own_finding_and_advice() {
        let mut layer = LayerCompleteness::none(LayerKind::GuestKernel, Some("vm0".into()));
        layer.lost = Lost { full: 3, wrapped: 1, too_large: 2 };
        layer.rejected_bytes = 8;
        layer.damage = Damage { truncated_bytes: 5, ..Damage::default() };

        let found = findings(&layer, Setting::default());

        let texts: Vec<_> = found.iter().map(|finding| finding.text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "3 records of the guest-kernel layer of vm0 are lost: a ring was full",
                "1 records of the guest-kernel layer of vm0 are lost: a record was never finished, or the ring came \
                 around to it",
                "2 records of the guest-kernel layer of vm0 are lost: each is larger than a sub-buffer",
                "8 bytes of the guest-kernel layer of vm0 were refused: they are no records",
                "files of the guest-kernel layer of vm0 are damaged: 5 bytes of a truncated packet",
            ]
        );
        assert!(found[4].next.starts_with("copy the recording again"), "{found:?}");
    }

    #[test]
    fn layer_at_its_limit_is_told_of_the_limit() {
        let lost = Lost { full: 7, ..Lost::default() };

        assert!(next_of(LayerKind::GuestUser, lost, true)[0].contains("--limit"));
        assert!(!next_of(LayerKind::GuestUser, lost, false)[0].contains("--limit"));
    }

    #[test]
    fn complete_layer_has_no_finding() {
        assert_eq!(next_of(LayerKind::HostKernel, Lost::default(), false), Vec::<String>::new());
    }
}
