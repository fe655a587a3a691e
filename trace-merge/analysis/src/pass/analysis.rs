//! What a pass feeds.

use crate::kernel_symbols::KernelSymbols;
use crate::timeline::{Change, ChangeKind, Input, Origin, Timeline};
use std::sync::Arc;
use strata_recording::layer::LayerKind;

/// Something that is computed from a recording in one pass.
///
/// It does not get what comes before the window, but the timeline knows it: a state is that of the last record before.
pub trait Analysis: Send {
    /// The kinds of layers whose records it asks for. The timeline needs kernels and VMMs.
    fn layers(&self) -> &'static [LayerKind] {
        &[LayerKind::HostKernel, LayerKind::Vmm, LayerKind::GuestKernel]
    }

    /// Whether it takes in records like `input`, of one of its layers: asked once for each event type of a stream, so that
    /// the answer may only go by where the record comes from and which [`Event`](crate::event::Event) it is, or that it is none.
    fn takes_record(&self, _input: &Input<'_>) -> bool {
        true
    }

    /// Whether it takes in changes like `change`: asked once for each kind of change.
    fn takes_change(&self, _kind: ChangeKind) -> bool {
        true
    }

    /// Whether it asks for states, be it as changes or by looking at the timeline: what vCPUs, and CPUs and tasks of guests
    /// do. Where nobody does, they are not worked out. Who runs, and who is who, the timeline knows all the same.
    fn needs_states(&self) -> bool {
        true
    }

    /// What it is made of, for one that is nothing but several others: they are fed in its place.
    fn parts(&mut self) -> Option<Vec<&mut dyn Analysis>> {
        None
    }

    /// The symbols of the kernel of the guest `vm`, if it has read them: others need not look through the recording
    /// again.
    fn kernel_symbols(&self, _vm: usize) -> Option<Arc<KernelSymbols>> {
        None
    }

    /// Takes in a record from before the window: for what is recorded once and holds from then on.
    fn before(&mut self, _input: &Input<'_>, _timeline: &Timeline) {}

    /// Takes in a record of the window, in time order. The timeline has taken it in already.
    fn record(&mut self, _input: &Input<'_>, _timeline: &Timeline) {}

    /// Takes in a state that has ended, cut to the window: the part of it in which anything was recorded.
    fn change(&mut self, _change: &Change, _timeline: &Timeline) {}

    /// Takes in that records of a stream are missing from a time on, or that they go on. Told for the time before the
    /// window, too.
    fn gap(&mut self, _gap: &Gap, _timeline: &Timeline) {}

    /// Whether it asks for records behind the window, too: something that began in it is not over.
    fn is_unfinished(&self) -> bool {
        false
    }
}

/// An edge of a period in which records of a stream are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Trace clock, ticks.
    pub time: u64,
    /// The stream.
    pub origin: Origin,
    /// Number of the stream in the merge.
    pub source: usize,
    /// Whether the period begins, and does not end.
    pub begins: bool,
}
