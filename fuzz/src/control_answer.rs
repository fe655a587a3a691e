//! Answers of a VM, which may be another user's, as `ctl`, `top` and `metrics` show them.

use strata_recorder::control::answer_text;
use strata_recorder::control::client::answer_of;
use strata_recorder::control::protocol::{Answer, Live};
use strata_recording::text::terminal::acts;
use vmm::metrics;
use vmm::top::{LayerRate, Picture, VmPicture, bounded};

/// Runs an input: a line.
///
/// # Panics
/// When a property that the target checks does not hold.
pub fn run(data: &[u8]) {
    match answer_of(data) {
        Ok(answer) => {
            assert!(is_harmless(&answer_text::text(&answer)) && is_harmless(&format!("{answer:?}")), "{answer:?}");
            let line = serde_json::to_vec(&answer).expect("an answer is text");
            assert_eq!(answer_of(&line).as_ref(), Ok(&answer), "an answer is understood");
            if let Answer::Live(live) = answer {
                show(*live);
            }
        }
        Err(why) => assert!(is_harmless(&why.to_string()) && !why.to_string().contains('\n'), "{why}"),
    }
}

/// Shows an answer as `top` and `metrics` do.
fn show(live: Live) {
    let metrics = metrics::text_of(live.clone());
    assert!(is_harmless(&metrics) && metrics.ends_with("# EOF\n"), "{metrics}");
    let Live { name, pid, attached, host, guest, disks, balloon, layers, missing } = bounded(live);
    let layers = layers.into_iter().map(|layer| LayerRate { path: layer.path, ..LayerRate::default() }).collect();
    let vm = VmPicture {
        period_ns: 1_000_000_000,
        name,
        pid,
        attached,
        host,
        guest,
        disks,
        balloon,
        layers,
        missing,
        ..VmPicture::default()
    };
    let mut out = Vec::new();
    Picture { vms: vec![vm] }.write_text(&mut out).expect("memory takes it");
    assert!(is_harmless(&String::from_utf8(out).expect("it is text")));
}

/// Whether nothing in `text` acts on a terminal but its own lines.
fn is_harmless(text: &str) -> bool {
    !text.chars().any(|character| acts(character) && character != '\n')
}
