//! One pass over a recording for any number of analyses.
//!
//! An [`Analysis`] is fed event by event and state by state and keeps what its result needs, no more: memory does not grow
//! with the recording. One thread merges and decodes. The analyses are shared out among others, and each keeps the
//! timeline for itself: nobody waits for anybody but at the ends of batches. On one processor one thread does it all.

mod analysis;
mod feed;
mod reader;
mod sinks;

pub use self::analysis::{Analysis, Gap};

use self::feed::{Feed, Reported};
use self::reader::Reader;
use self::sinks::{Alone, BATCH, BATCHES, Batches};
use crate::completeness::Completeness;
use crate::kernel_symbols::KernelSymbols;
use crate::timeline::Timeline;
use std::num::NonZero;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use strata_recording::reader::totals::Totals;
use strata_recording::reader::{Trace, TraceLayer};
use strata_recording::window::Window;

/// Threads among which analyses are shared out, at most: each keeps a timeline, and more would wait for the one that reads.
const FEEDS: usize = 4;

/// What a pass found.
#[derive(Debug)]
pub struct Passed {
    /// The timeline at the end of the pass.
    pub timeline: Timeline,
    /// The part of the recording that was requested.
    pub requested: Window,
    /// What of it lies between the first and the last record; `None` when it holds no record of kernels and VMMs.
    pub window: Option<Window>,
    /// What was damaged, lost or is unknown in the layers that were read.
    pub completeness: Completeness,
    /// What each layer that was read holds in the window, in the order of [`Trace::layers`].
    pub totals: Vec<Totals>,
    /// By VM: the symbols of its guest's kernel, once they were read.
    symbols: Vec<OnceLock<Arc<KernelSymbols>>>,
}

impl Passed {
    /// Whether less than all of `trace` was requested.
    #[must_use]
    pub fn is_part(&self, trace: &Trace) -> bool {
        self.requested.end != u64::MAX || trace.start().is_some_and(|start| self.requested.begin > start)
    }

    /// The symbols of the kernel of the guest `vm`. They may be recorded after what they name, so that the whole recording
    /// is looked through for them when they are requested first, unless an analysis had read them.
    pub fn kernel_symbols(&self, trace: &Trace, vm: usize) -> Option<&KernelSymbols> {
        let (symbols, of) = (self.symbols.get(vm)?, self.timeline.vm(vm)?);
        Some(symbols.get_or_init(|| Arc::new(KernelSymbols::of_guest(trace, &of.name))).as_ref())
    }
}

/// Reads `trace` once, and feeds `analyses` with what lies in `window`.
#[must_use]
pub fn pass(trace: &Trace, window: Window, analyses: &mut [&mut dyn Analysis]) -> Passed {
    pass_reporting(trace, window, analyses, |_| ())
}

/// [`pass`], which tells `report` now and then up to where it has read, ticks.
#[must_use]
pub fn pass_reporting(
    trace: &Trace,
    window: Window,
    analyses: &mut [&mut dyn Analysis],
    report: impl FnMut(u64),
) -> Passed {
    // One of the processors is busy with reading.
    let others = thread::available_parallelism().map_or(1, NonZero::get).saturating_sub(1);
    pass_on(others.min(FEEDS), trace, window, analyses, report)
}

/// [`pass`] with the analyses shared out among `feeds` threads beside this one; with none, this one does all. What they
/// find does not depend on it.
fn pass_on(
    feeds: usize,
    trace: &Trace,
    window: Window,
    analyses: &mut [&mut dyn Analysis],
    report: impl FnMut(u64),
) -> Passed {
    let wanted =
        |layer: &&TraceLayer| analyses.iter().any(|analysis| analysis.layers().contains(&layer.description.kind));
    let layers: Vec<&TraceLayer> = trace.layers().iter().filter(wanted).collect();
    let mut timeline = Timeline::new(trace);
    if !analyses.iter().any(|analysis| analysis.needs_states()) {
        timeline.leave_out_states();
    }
    // What was recorded lasts from the first record to the last one.
    let part = timeline.span.and_then(|span| span.intersection(&window));
    // The moment of the last record is in it.
    let moments =
        timeline.span.and_then(|span| Window { end: span.end.saturating_add(1), ..span }.intersection(&window));
    let none = Window { begin: window.begin, end: window.begin };
    let reported = Reported { window, states: part.unwrap_or(none), moments: moments.unwrap_or(none) };
    let reader = Reader::new(trace, layers, window, &timeline);
    let (timeline, completeness, totals) = match feeds {
        0 => {
            let fed = shared_out(analyses, 1).pop().unwrap_or_default();
            let mut alone = Alone { feed: Feed::new(fed, timeline, reported), items: 0, until: None, report };
            let (completeness, totals) = reader.read(&mut alone);
            alone.until.into_iter().for_each(&mut alone.report);
            (alone.feed.finish(), completeness, totals)
        }
        _ => thread::scope(|scope| {
            let (empty, to_fill) = mpsc::channel();
            let (full, taking): (Vec<_>, Vec<_>) = shared_out(analyses, feeds)
                .into_iter()
                .map(|fed| {
                    let (full, to_take) = mpsc::sync_channel(BATCHES);
                    let (feed, empty) = (Feed::new(fed, timeline.clone(), reported), empty.clone());
                    (full, scope.spawn(move || feed.take_all(&to_take, &empty)))
                })
                .unzip();
            let mut batches = Batches { full, empty: to_fill, batch: Vec::with_capacity(BATCH + 2), bytes: 0, report };
            let (completeness, totals) = reader.read(&mut batches);
            batches.finish();
            let taken =
                taking.into_iter().map(|feed| feed.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            // That of whoever went on for longest behind the window, as if one had taken in everything.
            let (_, last) = taken.max_by_key(|&(items, _)| items).unwrap_or((0, timeline));
            (last, completeness, totals)
        }),
    };
    let symbols = symbols_read(analyses, timeline.vms.len());
    Passed { timeline, requested: window, window: part, completeness, totals, symbols }
}

/// By VM, of which there are `vms`: the symbols that one of `analyses` has read.
fn symbols_read(analyses: &mut [&mut dyn Analysis], vms: usize) -> Vec<OnceLock<Arc<KernelSymbols>>> {
    let all = shared_out(analyses, 1).pop().unwrap_or_default();
    let read = |vm: usize| all.iter().find_map(|analysis| analysis.kernel_symbols(vm));
    (0..vms).map(|vm| read(vm).map_or_else(OnceLock::new, OnceLock::from)).collect()
}

/// The analyses, with the parts of those that have some in their place, in at most `feeds` groups.
fn shared_out<'a>(analyses: &'a mut [&mut dyn Analysis], feeds: usize) -> Vec<Vec<&'a mut dyn Analysis>> {
    let mut groups: Vec<Vec<&mut dyn Analysis>> = Vec::new();
    let mut turn = 0;
    let mut add = |analysis: &'a mut dyn Analysis| {
        match groups.get_mut(turn % feeds.max(1)) {
            Some(group) => group.push(analysis),
            None => groups.push(vec![analysis]),
        }
        turn += 1;
    };
    for analysis in analyses {
        // Asked twice, since what is borrowed for the parts is not given back if there are none.
        if analysis.parts().is_some() {
            analysis.parts().into_iter().flatten().for_each(&mut add);
        } else {
            add(&mut **analysis);
        }
    }
    groups
}

#[cfg(test)]
mod tests;
