//! Why records of a layer are lost, and what helps against each cause: said here for findings, reports and the status.

use crate::layer::LayerKind;
use serde::{Deserialize, Serialize};
use shared_ring::consumer::Lost;
use std::borrow::Cow;

/// A record that was lost because it is larger than a sub-buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LargestLost {
    /// Its event, one of the layer's.
    pub event: String,
    /// Bytes of its fields.
    pub bytes: u32,
}

/// How a layer is recorded, as far as what helps against loss depends on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setting {
    /// Whether its records met their limit.
    pub is_limited: bool,
    /// Whether its guest has no agent: its kernel records into a ring of its own.
    pub is_agentless: bool,
}

/// Why records of a layer are lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// How many.
    pub count: u64,
    /// Why.
    pub cause: Cow<'static, str>,
    /// What helps.
    pub next: &'static str,
}

/// Why the records `lost` of a layer of `kind` are, each cause with what helps against it. `largest` is the largest of those
/// that are larger than a sub-buffer, if that is known.
pub fn causes(
    kind: LayerKind,
    lost: &Lost,
    largest: Option<&LargestLost>,
    setting: Setting,
) -> impl Iterator<Item = Cause> {
    let full = if setting.is_limited { "the layer was at its limit, or a ring was full" } else { "a ring was full" };
    let unlimited = Setting { is_limited: false, ..setting };
    let wrapped = "a record was never finished, or the ring came around to it";
    let too_large = "each is larger than a sub-buffer";
    let too_large = match largest {
        Some(LargestLost { event, bytes }) => format!("{too_large}, the largest a {event} of {bytes} bytes").into(),
        None => too_large.into(),
    };
    let all = [
        Cause { count: lost.full, cause: full.into(), next: against_full(kind, setting) },
        Cause { count: lost.wrapped, cause: wrapped.into(), next: against_full(kind, unlimited) },
        Cause { count: lost.too_large, cause: too_large, next: against_too_large(kind, setting) },
    ];
    all.into_iter().filter(|cause| cause.count > 0)
}

/// What helps where rings come around, or fill, faster than they are emptied.
const fn against_full(layer: LayerKind, setting: Setting) -> &'static str {
    match layer {
        _ if setting.is_limited => "record with a higher --limit, or fewer --events",
        LayerKind::GuestKernel if setting.is_agentless => {
            "record with a larger --agentless-size, or fewer events in --agentless=EVENTS"
        }
        LayerKind::GuestKernel => "record with more --sub-buffers, or fewer --events",
        // Their rings have one size.
        LayerKind::GuestUser | LayerKind::Vmm => "record with fewer --events",
        LayerKind::HostKernel => "record with --recorder-cpus LIST or --drain always, or fewer --events",
    }
}

/// What helps where a record does not fit into a sub-buffer.
const fn against_too_large(layer: LayerKind, setting: Setting) -> &'static str {
    match layer {
        LayerKind::GuestKernel if setting.is_agentless => "record without that event: --agentless=EVENTS",
        LayerKind::GuestKernel => "record with a larger --sub-buffer-size; more of them do not help",
        LayerKind::GuestUser => "have the application write smaller records",
        LayerKind::Vmm | LayerKind::HostKernel => "record without that event: '!' in --events",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_for_a_guest_without_an_agent_is_the_size_of_its_own_ring() {
        let lost = Lost { full: 7, wrapped: 2, ..Lost::default() };
        let setting = Setting { is_agentless: true, ..Setting::default() };

        let next: Vec<_> = causes(LayerKind::GuestKernel, &lost, None, setting).map(|cause| cause.next).collect();

        assert!(next.len() == 2 && next.iter().all(|next| next.contains("--agentless-size")), "{next:?}");
        assert!(next.iter().all(|next| !next.contains("--sub-buffer")), "{next:?}");
    }
}
