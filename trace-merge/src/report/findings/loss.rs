//! What is missing of a layer: a finding for each cause, with what helps against that one.

use super::{Finding, FindingKind, Next};
use crate::report::duration;
use crate::report::next_command::NextCommand;
use strata_analysis::completeness::LayerCompleteness;
use strata_recording::layer::loss::{Cause, Setting, causes};
use strata_recording::reader::{Stream, Trace};
use strata_recording::text::counted::counted;
use strata_recording::text::terminal::harmless;

/// Files that a finding names.
const MOST_FILES: usize = 3;

/// The files of `layer` of `trace` that are shorter than what was written, or not there.
pub(super) fn cut_files(trace: &Trace, layer: &LayerCompleteness) -> Vec<String> {
    let of_layer = trace.layers_of(layer.layer).filter(|of| of.description.vm == layer.vm);
    let is_cut = |stream: &&Stream| {
        let is_shorter = (stream.packets() as u64) < stream.description.packets && stream.dropped_until().is_none();
        stream.absent || stream.truncated_bytes() > 0 || is_shorter
    };
    let files = of_layer.flat_map(|of| of.streams.iter().filter(is_cut).map(move |stream| (of, stream)));
    files.map(|(of, stream)| format!("{}/{}", of.description.path, stream.description.file)).collect()
}

/// The findings of `layer`, whose files `cut` are cut short.
pub(super) fn findings(
    layer: &LayerCompleteness,
    setting: Setting,
    cut: &[String],
    next: NextCommand<'_>,
) -> Vec<Finding> {
    let of = layer.vm.as_ref().map_or_else(String::new, |vm| format!(" of {}", harmless(vm)));
    let name = format!("the {} layer{of}", layer.layer);
    let gaps = format!("{}, {} of its streams' time", counted(layer.gaps, "gap", "gaps"), duration(layer.gap_ns));
    let finding = |text: String, next: String| Finding {
        kind: FindingKind::Loss,
        text,
        thousandths: 1000,
        evidence: format!("{gaps}; what they would tell is unknown in every figure"),
        next: Next::other(next),
    };
    let lost =
        causes(layer.layer, &layer.lost, layer.largest_lost.as_ref(), setting).map(|Cause { count, cause, next }| {
            let (records, are) = (counted(count, "record", "records"), if count == 1 { "is" } else { "are" });
            finding(format!("{records} of {name} {are} lost: {cause}"), next.into())
        });
    let rejected = (layer.rejected_bytes > 0).then(|| {
        let bytes = counted(layer.rejected_bytes, "byte", "bytes");
        finding(format!("the recorder refused {bytes} of {name}: not records"), next.check())
    });
    let damage = &layer.damage;
    let damaged = damage.any().then(|| match cut {
        [] => finding(format!("files of {name} are damaged: {damage}"), next.check()),
        files => {
            let mut named = files.iter().take(MOST_FILES).map(|file| harmless(file)).collect::<Vec<_>>().join(", ");
            if files.len() > MOST_FILES {
                named += &format!(" and {} more", files.len() - MOST_FILES);
            }
            let text = format!("files of {name} are cut short or gone ({named}): {damage}");
            finding(text, format!("copy the recording again, whole; or see {}", next.check()))
        }
    });
    lost.chain(rejected).chain(damaged).collect()
}

#[cfg(test)]
mod tests {
    use super::super::OverviewBuilder;
    use super::*;
    use crate::report::{Window, make, scenario};
    use shared_ring::consumer::Lost;
    use strata_recording::layer::LayerKind;
    use strata_recording::layer::loss::LargestLost;
    use strata_recording::reader::Damage;

    fn next_of(layer: LayerKind, lost: Lost, is_limited: bool) -> Vec<String> {
        let layer = LayerCompleteness { lost, ..LayerCompleteness::none(layer, None) };
        let setting = Setting { is_limited, ..Setting::default() };
        findings(&layer, setting, &[], NextCommand::on_any()).into_iter().map(|finding| finding.next.text).collect()
    }

    #[test]
    fn advice_for_records_that_are_too_large_is_the_size_and_not_the_number_of_sub_buffers() {
        let lost = Lost { too_large: 2, ..Lost::default() };

        let next = next_of(LayerKind::GuestKernel, lost, false);

        assert!(next.len() == 1 && next[0].contains("--sub-buffer-size"), "{next:?}");
        assert!(!next[0].contains("--sub-buffers"), "{next:?}");
    }

    #[test]
    fn each_cause_has_its_own_finding_and_advice() {
        let mut layer = LayerCompleteness::none(LayerKind::GuestKernel, Some("vm0".into()));
        layer.lost = Lost { full: 3, wrapped: 1, too_large: 2 };
        layer.largest_lost = Some(LargestLost { event: "sched:sched_process_exec".into(), bytes: 4092 });
        layer.rejected_bytes = 8;
        layer.damage = Damage { truncated_bytes: 5, ..Damage::default() };

        let found = findings(&layer, Setting::default(), &[], NextCommand::on_any());

        let texts: Vec<_> = found.iter().map(|finding| finding.text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "3 records of the guest-kernel layer of vm0 are lost: a ring was full",
                "1 record of the guest-kernel layer of vm0 is lost: a record was never finished, or the ring came \
                 around to it",
                "2 records of the guest-kernel layer of vm0 are lost: each is larger than a sub-buffer, the largest a \
                 sched:sched_process_exec of 4092 bytes",
                "the recorder refused 8 bytes of the guest-kernel layer of vm0: not records",
                "files of the guest-kernel layer of vm0 are damaged: 5 bytes of a truncated packet",
            ]
        );
        assert_eq!(found[4].next.text, "strata check trace");
    }

    #[test]
    fn files_that_are_cut_are_named_with_what_is_missing_and_are_to_be_copied_again() {
        let (dir, trace) = scenario::preempted_in_an_exit().open();
        let missing = |trace: &Trace| {
            let overview = make(trace, Window::ALL, OverviewBuilder::new(trace, Window::ALL)).unwrap();
            overview.findings.into_iter().find(|finding| finding.kind == FindingKind::Loss)
        };
        let stream = |trace: &Trace| {
            let layer = trace.layers_of(LayerKind::HostKernel).next().unwrap();
            format!("{}/{}", layer.description.path, layer.streams[0].description.file)
        };
        let file = stream(&trace);
        let whole = missing(&trace);
        let bytes = std::fs::read(dir.path().join(&file)).unwrap();
        std::fs::write(dir.path().join(&file), &bytes[..bytes.len() / 2]).unwrap();

        let cut = missing(&Trace::open(dir.path()).unwrap()).unwrap();
        std::fs::remove_file(dir.path().join(&file)).unwrap();
        let gone = missing(&Trace::open(dir.path()).unwrap()).unwrap();

        assert_eq!(whole, None);
        for found in [cut, gone] {
            assert!(found.text.contains(&format!("cut short or gone ({file}): ")), "{found:?}");
            assert!(found.text.contains(" records that were written are not there"), "{found:?}");
            let check = format!("or see strata check {}", dir.path().display());
            assert!(
                found.next.text.starts_with("copy the recording again") && found.next.text.ends_with(&check),
                "{found:?}"
            );
        }
    }

    #[test]
    fn advice_for_a_layer_at_its_limit_is_the_limit() {
        let lost = Lost { full: 7, ..Lost::default() };

        assert!(next_of(LayerKind::GuestUser, lost, true)[0].contains("--limit"));
        assert!(!next_of(LayerKind::GuestUser, lost, false)[0].contains("--limit"));
    }

    #[test]
    fn complete_layer_has_no_finding() {
        assert_eq!(next_of(LayerKind::HostKernel, Lost::default(), false), Vec::<String>::new());
    }
}
