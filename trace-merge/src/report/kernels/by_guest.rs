//! An analysis that keeps something for each guest, and takes in what the guests' kernels recorded.

use crate::report::statistics::ended::KeepsEnded;
use crate::report::statistics::samples::{Samples, VmSamples};
use strata_analysis::timeline::guest::Guest;
use strata_analysis::timeline::states::Runner;
use strata_analysis::timeline::{ChangeKind, Input, Origin, Timeline};
use strata_analysis::{Analysis, Gap};
use strata_recording::layer::LayerKind;

/// What is kept for one guest.
pub trait GuestCollector: Send + Default {
    /// Takes in a record of the guest's kernel from `cpu`, in time order; `runner` is what ran there then, where that
    /// is known.
    fn add(&mut self, cpu: u32, input: &Input<'_>, guest: &Guest, runner: Option<Runner>, samples: &mut VmSamples<'_>);

    /// Records of `cpu` are missing from now on.
    fn begin_gap(&mut self, cpu: u32, guest: &Guest);

    /// Keeps what it counts one by one from now on.
    fn keep_ended(&mut self);

    /// Whether there is anything that was kept.
    fn has_ended(&self) -> bool;
}

/// A `C` for each guest whose kernel's stream has shown anything, a gap included: a recording whose beginning was
/// overwritten begins with one.
#[derive(Debug, Default)]
pub struct ByGuest<C> {
    /// By VM.
    guests: Vec<Option<C>>,
    pub(super) samples: Samples,
    /// Whether what is counted is kept one by one.
    keeps_ended: bool,
}

impl<C: GuestCollector> ByGuest<C> {
    /// What is kept for the guest whose kernel recorded at `origin`, its samples, the guest itself, and its CPU; `None`
    /// for other layers.
    #[inline(always)]
    fn at<'t>(&mut self, origin: Origin, timeline: &'t Timeline) -> Option<(&mut C, VmSamples<'_>, &'t Guest, u32)> {
        let Origin::Guest { vm, cpu } = origin else { return None };
        let guest = &timeline.vm(vm)?.guest;
        if self.guests.len() <= vm {
            self.guests.resize_with(vm + 1, || None);
        }
        let keeps_ended = self.keeps_ended;
        let collector = self.guests.get_mut(vm)?.get_or_insert_with(|| {
            let mut collector = C::default();
            if keeps_ended {
                collector.keep_ended();
            }
            collector
        });
        Some((collector, VmSamples { samples: &mut self.samples, vm }, guest, cpu))
    }

    /// One that keeps what it counts one by one.
    pub(super) fn that_keeps_ended() -> Self {
        Self { guests: Vec::new(), samples: Samples::default(), keeps_ended: true }
    }

    /// What is kept for each guest, with the index of its VM.
    pub(super) fn collectors(&mut self) -> impl Iterator<Item = (usize, &mut C)> {
        self.guests.iter_mut().enumerate().filter_map(|(vm, collector)| Some((vm, collector.as_mut()?)))
    }

    /// What was kept for the guest of `vm`.
    pub(super) fn take(&mut self, vm: usize) -> C {
        self.guests.get_mut(vm).and_then(Option::take).unwrap_or_default()
    }
}

impl<C: GuestCollector> KeepsEnded for ByGuest<C> {
    fn has_ended(&self) -> bool {
        self.guests.iter().flatten().any(GuestCollector::has_ended)
    }
}

impl<C: GuestCollector> Analysis for ByGuest<C> {
    fn takes_change(&self, _kind: ChangeKind) -> bool {
        false
    }

    fn layers(&self) -> &'static [LayerKind] {
        &[LayerKind::GuestKernel]
    }

    fn record(&mut self, input: &Input<'_>, timeline: &Timeline) {
        if let Some((collector, mut samples, guest, cpu)) = self.at(input.origin, timeline) {
            collector.add(cpu, input, guest, timeline.recorder().runner(cpu), &mut samples);
        }
    }

    fn gap(&mut self, gap: &Gap, timeline: &Timeline) {
        if gap.begins
            && let Some((collector, _, guest, cpu)) = self.at(gap.origin, timeline)
        {
            collector.begin_gap(cpu, guest);
        }
    }
}
