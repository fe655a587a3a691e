//! What the page counts: exits of each vCPU, records of each layer, and the records that each stream lost.

use crate::html::counters::{CounterKind, CounterNumber, Counters};
use crate::stream_name;
use std::collections::BTreeMap;
use strata_analysis::event::Event;
use strata_analysis::timeline::{Input, Origin, Timeline};
use strata_recording::layer::LayerKind;
use strata_recording::reader::merge::Merge;
use strata_recording::reader::{Stream, Trace, TraceLayer};

/// A stream of the merge.
struct Source<'t> {
    layer: &'t TraceLayer,
    stream: &'t Stream,
    /// What its counters are drawn below.
    group: String,
    records: Option<CounterNumber>,
    /// The packet whose header was looked at last.
    packet: Option<usize>,
    /// Records lost up to its end.
    lost: u64,
    /// The counter of these; `None` before there are any.
    losses: Option<Option<CounterNumber>>,
}

/// The counters in the making.
pub(in crate::html) struct Counting<'t> {
    pub(in crate::html) counters: Counters,
    sources: Vec<Source<'t>>,
    /// By VM and vCPU.
    exits: BTreeMap<(usize, u32), Option<CounterNumber>>,
}

impl<'t> Counting<'t> {
    /// Of `trace`, over `length` ns; `group` says what a layer's rows are drawn below.
    pub(in crate::html) fn new(
        trace: &'t Trace,
        timeline: &Timeline,
        length: u64,
        group: impl Fn(&TraceLayer) -> String,
    ) -> Self {
        let mut counters = Counters::new(length);
        let mut exits = BTreeMap::new();
        for (index, vm) in timeline.vms.iter().enumerate().filter(|(_, vm)| vm.kvm_reports) {
            for vcpu in vm.vcpus.numbers() {
                let name = format!("vCPU {vcpu}: exits");
                exits.insert((index, vcpu), counters.counter(CounterKind::Rate, &vm.name, &name, "exits"));
            }
        }
        let mut records: BTreeMap<(String, LayerKind), Option<CounterNumber>> = BTreeMap::new();
        let merge = Merge::new(trace.layers(), 0);
        let sources = merge.streams().map(|(layer, stream)| {
            let (group, kind) = (group(layer), layer.description.kind);
            let of_layer = || counters.counter(CounterKind::Rate, &group, &format!("{kind}: records"), "records");
            let records = *records.entry((group.clone(), kind)).or_insert_with(of_layer);
            Source { layer, stream, group, records, packet: None, lost: 0, losses: None }
        });
        let sources = sources.collect();
        Self { counters, sources, exits }
    }

    /// Takes in a record before what is drawn: what was lost up to there counts at its begin.
    pub(in crate::html) fn before(&mut self, input: &Input<'_>) {
        self.count_lost(input, |_| 0);
    }

    /// Counts a record of `time`, ns; `ns` makes moments of the page of ticks.
    pub(in crate::html) fn record(
        &mut self,
        input: &Input<'_>,
        timeline: &Timeline,
        time: u64,
        ns: impl Fn(u64) -> u64,
    ) {
        self.count_lost(input, ns);
        let records = self.sources.get(input.source).and_then(|source| source.records);
        self.counters.add(records, time, 1);
        if let (Origin::Host { host, .. }, Some(Event::KvmExit { tid, vcpu, .. })) = (input.origin, &input.event) {
            let of = timeline.vcpu_of_event(host, *tid, *vcpu);
            self.counters.add(of.and_then(|of| self.exits.get(&of).copied().flatten()), time, 1);
        }
    }

    /// Counts what was lost up to the end of the record's packet, and was not counted yet.
    fn count_lost(&mut self, input: &Input<'_>, ns: impl Fn(u64) -> u64) {
        let packet = input.record.packet;
        let source = self.sources.get_mut(input.source).filter(|source| source.packet != Some(packet));
        let Some(source) = source else { return };
        source.packet = Some(packet);
        let Some(header) = source.stream.header(packet) else { return };
        let lost = header.events_discarded.saturating_sub(source.lost);
        if lost == 0 {
            return;
        }
        source.lost = header.events_discarded;
        let counters = &mut self.counters;
        let counter = *source.losses.get_or_insert_with(|| {
            let name = format!("{}: records lost", stream_name(source.layer, source.stream));
            counters.counter(CounterKind::Total, &source.group, &name, "records lost")
        });
        counters.add(counter, ns(header.time_end), lost);
    }
}
