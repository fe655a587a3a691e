//! In which parts of a recording records may be missing.

use crate::report::statistics::samples::{PARTS, Parts};
use foldhash::{HashMap, HashSet};
use std::sync::Arc;
use strata_analysis::timeline::{ChangeKind, Input, Origin, Timeline};
use strata_analysis::{Analysis, Gap};
use strata_recording::layer::LayerKind;
use strata_recording::reader::Trace;
use strata_recording::window::Window;

/// The parts that have a gap in one of their streams, found in a pass over a recording.
#[derive(Debug)]
pub(super) struct Coverage {
    parts: Arc<Parts>,
    /// By source of the merge: whose records are missing, and since when.
    open: HashMap<usize, (Origin, u64)>,
    /// By kind of layer, and VM, or host: a bit for each part.
    gaps: HashMap<(LayerKind, Option<usize>), u32>,
    /// CPUs of guests that never began to record. What they did is not known, in all parts alike: `never_joined` says
    /// so.
    never_joined: HashSet<(usize, u32)>,
}

const _: () = assert!(PARTS <= u32::BITS as usize);

impl Coverage {
    pub(super) fn new(trace: &Trace, timeline: &Timeline, parts: Arc<Parts>) -> Self {
        let mut never_joined = HashSet::default();
        for layer in trace.layers() {
            for stream in layer.streams.iter().filter(|stream| stream.description.never_joined) {
                let cpu = stream.description.cpu_id;
                if let Some(Origin::Guest { vm, cpu }) = timeline.origin(layer, cpu) {
                    never_joined.insert((vm, cpu));
                }
            }
        }
        Self { parts, open: HashMap::default(), gaps: HashMap::default(), never_joined }
    }

    /// The parts in which no record of a layer of `kinds` of `vm`, or of the hosts, is missing.
    pub(super) fn whole(&self, kinds: impl IntoIterator<Item = LayerKind>, vm: Option<usize>) -> Vec<usize> {
        let gaps = kinds.into_iter().filter_map(|kind| self.gaps.get(&(kind, vm)));
        let gaps = gaps.fold(0, |all, gaps| all | gaps);
        (0..PARTS).filter(|part| gaps & (1 << part) == 0).collect()
    }

    /// Ends the pass: what is missing then does not come.
    pub(super) fn finish(&mut self, timeline: &Timeline) {
        for (_, (origin, begin)) in std::mem::take(&mut self.open) {
            self.mark(origin, Window { begin, end: u64::MAX }, timeline);
        }
    }

    fn mark(&mut self, origin: Origin, gap: Window, timeline: &Timeline) {
        match origin {
            Origin::Host { host, .. } => {
                self.mark_of(LayerKind::HostKernel, None, gap);
                for (vm, _) in timeline.vms.iter().enumerate().filter(|(_, vm)| vm.host == host) {
                    self.mark_of(LayerKind::HostKernel, Some(vm), gap);
                }
            }
            Origin::Guest { vm, cpu } if self.never_joined.contains(&(vm, cpu)) => {}
            Origin::Vmm { vm, .. } | Origin::Guest { vm, .. } | Origin::User { vm, .. } => {
                self.mark_of(origin.layer(), Some(vm), gap);
            }
        }
    }

    fn mark_of(&mut self, kind: LayerKind, vm: Option<usize>, gap: Window) {
        let window = self.parts.window(vm);
        let (begin, end) = (gap.begin.max(window.begin), gap.end.min(window.end));
        if let (true, Some(first), Some(last)) = (begin <= end, self.parts.place(vm, begin), self.parts.place(vm, end))
        {
            let gaps = self.gaps.entry((kind, vm)).or_default();
            (first..=last).for_each(|part| *gaps |= 1 << part);
        }
    }
}

impl Analysis for Coverage {
    fn takes_record(&self, _input: &Input<'_>) -> bool {
        false
    }

    fn takes_change(&self, _kind: ChangeKind) -> bool {
        false
    }

    fn gap(&mut self, gap: &Gap, timeline: &Timeline) {
        if gap.begins {
            self.open.insert(gap.source, (gap.origin, gap.time));
        } else if let Some((origin, begin)) = self.open.remove(&gap.source) {
            self.mark(origin, Window { begin, end: gap.time }, timeline);
        }
    }
}
