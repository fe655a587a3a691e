//! What a report keeps for each guest.

use crate::timeline::guest::Guest;
use crate::timeline::{Origin, Timeline};
use std::collections::BTreeMap;

/// A `C` for each guest of which its kernel's stream has told anything, a gap included: a recording whose beginning was
/// overwritten begins with one.
#[derive(Debug, Default)]
pub(super) struct ByGuest<C> {
    /// By VM.
    guests: BTreeMap<usize, C>,
}

impl<C: Default> ByGuest<C> {
    /// What is kept for the guest whose kernel recorded at `origin`, the guest itself, and its CPU; `None` for other layers.
    pub(super) fn at<'t>(&mut self, origin: Origin, timeline: &'t Timeline) -> Option<(&mut C, &'t Guest, u32)> {
        let Origin::Guest { vm, cpu } = origin else { return None };
        let guest = &timeline.vm(vm)?.guest;
        Some((self.guests.entry(vm).or_default(), guest, cpu))
    }

    /// What was kept for the guest of `vm`.
    pub(super) fn take(&mut self, vm: usize) -> C {
        self.guests.remove(&vm).unwrap_or_default()
    }
}
