//! What of a recording was damaged, lost or is unknown, in one line and as data. Each report begins with it, so that no
//! figure stands without what it does not include.

use serde::Serialize;
use shared_ring::consumer::Lost;
use std::collections::BTreeMap;
use std::fmt;
use strata_recording::clock::Clock;
use strata_recording::layer::LayerKind;
use strata_recording::layer::loss::LargestLost;
use strata_recording::manifest::{Manifest, Missing};
use strata_recording::reader::merge::{Merge, Step};
use strata_recording::reader::{Damage, Stream, StreamRecords, TraceLayer, write_counts};
use strata_recording::text::counted::counted;
use strata_recording::window::Window;

/// What of the layers of a recording is not there, within a window of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Completeness {
    /// Whether everything that was to be recorded is there.
    pub complete: bool,
    /// Whether the recorder came to its end; if not, it still runs or was killed, and what it held last is not there.
    pub finished: bool,
    /// The layers that were recorded, one for each kind and VM.
    pub layers: Vec<LayerCompleteness>,
    /// The layers that were not, or not completely, recorded, as the manifest says.
    pub missing: Vec<Missing>,
}

/// What of a layer is not there. A layer is here all that one VM's, or the host's, streams of one kind hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LayerCompleteness {
    /// Kind.
    pub layer: LayerKind,
    /// Name of the VM; `None` for the host's kernel.
    pub vm: Option<String>,
    /// Records that the producers lost, in the whole recording, by reason.
    pub lost: Lost,
    /// The largest of the records lost as larger than a sub-buffer, where that is known.
    pub largest_lost: Option<LargestLost>,
    /// Bytes that the recorder could not accept, in the whole recording.
    pub rejected_bytes: u64,
    /// What could not be read.
    pub damage: Damage,
    /// Streams whose beginning a flight recorder overwrote.
    pub begin_late: u64,
    /// Streams whose beginning was dropped to keep the recording within its size.
    pub dropped: u64,
    /// Streams whose last records are missing.
    pub end_early: u64,
    /// Streams that went on, or whose recorder was killed, and that end before the recording does.
    pub went_on: u64,
    /// Of a guest: whether another kernel took the machine over, its crash kernel or one that it booted by kexec. What that
    /// one did before an agent recorded it, if ever, lies in the gaps.
    pub another_kernel: bool,
    /// Streams whose files are empty or gone.
    pub absent: u64,
    /// Streams whose rings were given up: found corrupt, or not to be read or written down any more.
    pub corrupt: u64,
    /// Of a guest's kernel: records that were not made because the CPU was making another one in the same context, in
    /// the whole recording. `None` where nobody counted them.
    pub nested: Option<u64>,
    /// Of a guest's kernel: the vCPUs that never began to record.
    pub never_joined: Vec<u32>,
    /// Gaps of all streams that touch the window: periods in which records may be missing.
    pub gaps: u64,
    /// Length of those gaps inside the window, those of all streams together, ns.
    pub gap_ns: u64,
}

/// Follows a merge and sums up the gaps of its streams.
#[derive(Clone, Debug)]
pub struct GapTotals {
    window: Window,
    /// By source of the merge.
    sources: Vec<SourceGaps>,
    /// Time of the first record, ticks.
    first: Option<u64>,
    /// Time of the last record, ticks.
    last: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct SourceGaps {
    /// When the open gap began, ticks.
    open: Option<u64>,
    count: u64,
    ticks: u64,
    /// Whether the last gap never ended.
    at_end: bool,
}

impl GapTotals {
    /// Of a merge of `sources` streams, for `window`.
    #[must_use]
    pub fn new(sources: usize, window: Window) -> Self {
        Self { window, sources: vec![SourceGaps::default(); sources], first: None, last: 0 }
    }

    /// Takes the next step of the merge.
    #[inline]
    pub fn step(&mut self, step: &Step<'_>) {
        match *step {
            Step::Record(ref merged) => {
                self.first.get_or_insert(merged.record.time);
                self.last = self.last.max(merged.record.time);
            }
            Step::GapBegin { source, time } => {
                if let Some(gaps) = self.sources.get_mut(source) {
                    gaps.open = Some(time);
                }
            }
            Step::GapEnd { source, time } => self.close(source, time),
        }
    }

    fn close(&mut self, source: usize, end: u64) {
        let Window { begin: from, end: to } = self.window;
        let Some(gaps) = self.sources.get_mut(source) else { return };
        let Some(begin) = gaps.open.take() else { return };
        // What ends where the part begins, before its first record, belongs to the part before.
        if begin >= to || end < from || (end == from && self.last < from) {
            return;
        }
        let begin = match (begin.max(from), self.first) {
            // The gap is a missing beginning. Before the first record of all, nothing was recorded.
            (0, None) => return,
            (0, Some(first)) => first,
            (begin, _) => begin,
        };
        gaps.count += 1;
        gaps.ticks = gaps.ticks.saturating_add(end.min(to).saturating_sub(begin));
    }

    /// Sums up `merge`, whose steps were taken up to its end or to the end of the window.
    #[must_use]
    pub fn finish(mut self, merge: &Merge<'_>, manifest: &Manifest) -> Completeness {
        let last = self.last;
        for source in 0..self.sources.len() {
            let is_open = self.sources[source].open.is_some();
            self.close(source, last);
            self.sources[source].at_end = is_open;
        }
        let mut layers: BTreeMap<(LayerKind, Option<String>), LayerCompleteness> = BTreeMap::new();
        for ((layer, stream, records), gaps) in merge.sources().zip(&self.sources) {
            let described = &layer.description;
            let sum = layers
                .entry((described.kind, described.vm.clone()))
                .or_insert_with(|| LayerCompleteness::none(described.kind, described.vm.clone()));
            sum.lost = sum.lost.plus(&records.lost());
            sum.rejected_bytes = sum.rejected_bytes.saturating_add(records.rejected_bytes());
            sum.damage = sum.damage.plus(&records.damage());
            let another_kernel = described.another_kernel || records.another_kernel();
            sum.add(stream, records, gaps, another_kernel, &manifest.clock);
        }
        Completeness::new(layers.into_values().collect(), manifest.missing.clone(), manifest.outcome.is_some())
    }
}

impl LayerCompleteness {
    /// Nothing is missing of `layer` of `vm`.
    #[must_use]
    pub fn none(layer: LayerKind, vm: Option<String>) -> Self {
        Self {
            layer,
            vm,
            lost: Lost::default(),
            largest_lost: None,
            rejected_bytes: 0,
            damage: Damage::default(),
            begin_late: 0,
            dropped: 0,
            end_early: 0,
            went_on: 0,
            another_kernel: false,
            absent: 0,
            corrupt: 0,
            nested: (layer == LayerKind::GuestKernel).then_some(0),
            never_joined: Vec::new(),
            gaps: 0,
            gap_ns: 0,
        }
    }

    fn add(
        &mut self,
        stream: &Stream,
        records: &StreamRecords<'_>,
        gaps: &SourceGaps,
        another_kernel: bool,
        clock: &Clock,
    ) {
        let described = &stream.description;
        if described.largest_lost.as_ref().map(|lost| lost.bytes) > self.largest_lost.as_ref().map(|lost| lost.bytes) {
            self.largest_lost.clone_from(&described.largest_lost);
        }
        self.begin_late += u64::from(described.overwritten > 0);
        self.dropped += u64::from(stream.dropped_until().is_some());
        self.another_kernel |= another_kernel;
        let is_reported_otherwise = stream.absent || described.corrupt || described.never_joined || another_kernel;
        let went_on = records.goes_on_from().is_some();
        self.end_early += u64::from(gaps.at_end && !is_reported_otherwise && !went_on);
        self.went_on += u64::from(gaps.at_end && went_on && !another_kernel);
        self.absent += u64::from(stream.absent);
        self.corrupt += u64::from(described.corrupt);
        if described.never_joined {
            self.never_joined.push(described.cpu_id);
        } else {
            let counted = self.nested.zip(described.nested);
            self.nested = counted.map(|(sum, nested)| sum.saturating_add(nested));
        }
        self.gaps += gaps.count;
        self.gap_ns = self.gap_ns.saturating_add(clock.ticks_to_ns(gaps.ticks));
    }

    /// Whether nothing is missing.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let none = Self::none(self.layer, self.vm.clone());
        // What nobody counted is not known to be missing.
        *self == Self { nested: self.nested.and(none.nested), ..none }
    }
}

impl fmt::Display for LayerCompleteness {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.vm.iter().try_for_each(|vm| write!(formatter, "{vm}/"))?;
        write!(formatter, "{}: ", self.layer)?;
        let counts = [
            (self.lost.total(), "record lost", "records lost"),
            (self.rejected_bytes, "byte rejected by the recorder", "bytes rejected by the recorder"),
            (
                self.begin_late,
                "stream whose beginning was overwritten or cut off",
                "streams whose beginning was overwritten or cut off",
            ),
            (
                self.dropped,
                "stream whose beginning was dropped to keep within the size of the recording",
                "streams whose beginning was dropped to keep within the size of the recording",
            ),
            (self.end_early, "stream whose end is missing", "streams whose end is missing"),
            (self.went_on, "stream that went on", "streams that went on"),
            (self.absent, "stream file empty or gone", "stream files empty or gone"),
            (self.corrupt, "ring given up", "rings given up"),
            (self.nested.unwrap_or(0), "record not made inside another", "records not made inside others"),
        ];
        let mut separator = write_counts(formatter, &counts)?;
        if !self.never_joined.is_empty() {
            let vcpus: Vec<String> = self.never_joined.iter().map(ToString::to_string).collect();
            write!(formatter, "{separator}vCPU {} never began to record", vcpus.join(", "))?;
            separator = ", ";
        }
        if self.another_kernel {
            write!(formatter, "{separator}another kernel ran")?;
            separator = ", ";
        }
        if self.damage.any() {
            write!(formatter, "{separator}{}", self.damage)?;
            separator = ", ";
        }
        let (ms, us) = (self.gap_ns / 1_000_000, self.gap_ns / 1_000 % 1_000);
        write!(formatter, "{separator}{} of {ms}.{us:03} ms in all", counted(self.gaps, "gap", "gaps"))
    }
}

impl Completeness {
    fn new(layers: Vec<LayerCompleteness>, missing: Vec<Missing>, finished: bool) -> Self {
        let complete = finished && missing.is_empty() && layers.iter().all(LayerCompleteness::is_complete);
        Self { complete, finished, layers, missing }
    }

    /// Of all streams of `layers` in `window`, which are read for it.
    #[must_use]
    pub fn of<'t>(layers: impl IntoIterator<Item = &'t TraceLayer>, window: Window, manifest: &Manifest) -> Self {
        let mut merge = Merge::within(layers, window.begin, window.last());
        let mut totals = GapTotals::new(merge.streams().count(), window);
        while let Some(step) = merge.next_step() {
            totals.step(&step);
        }
        totals.finish(&merge, manifest)
    }

    /// What concerns the layers of `kinds`: those of the VM `vm`, or of all VMs, and of the hosts.
    #[must_use]
    pub fn restricted_to(&self, kinds: &[LayerKind], vm: Option<&str>) -> Self {
        let of_vm = |layer: &LayerCompleteness| vm.is_none() || layer.vm.is_none() || layer.vm.as_deref() == vm;
        let layers = self.layers.iter().filter(|layer| kinds.contains(&layer.layer) && of_vm(layer));
        let missing = self.missing.iter().filter(|missing| kinds.contains(&missing.layer));
        Self::new(layers.cloned().collect(), missing.cloned().collect(), self.finished)
    }

    /// One line that says what is not there; `None` when everything is.
    #[must_use]
    pub fn line(&self) -> Option<String> {
        if self.complete {
            return None;
        }
        let layers = self.layers.iter().filter(|layer| !layer.is_complete()).map(ToString::to_string);
        let missing = self.missing.iter().map(|missing| format!("{}: {}", missing.layer, missing.reason));
        let unfinished = (!self.finished).then(|| "its recorder still runs or was killed".to_string());
        let parts: Vec<String> = layers.chain(missing).chain(unfinished).collect();
        Some(format!("INCOMPLETE: {}", parts.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_recording::manifest::{Layer, StreamDescription};
    use strata_recording::reader::Trace;
    use strata_recording::schema::RECORDING_STOPS;
    use strata_recording::test_trace::{Field, TestTrace};

    fn event(trace: TestTrace, cpu: u32, time: u64) -> TestTrace {
        trace.guest(cpu, time, "test:event", &[])
    }

    /// Two CPUs; on CPU 0, three records are lost between ticks 2000 and 6000.
    fn lossy() -> TestTrace {
        let trace = event(event(TestTrace::new(), 1, 1_000), 0, 2_000).lost(LayerKind::GuestKernel, 0, 3);
        event(event(trace, 0, 6_000), 1, 9_000)
    }

    fn of(trace: &Trace, begin: u64, end: u64) -> Completeness {
        let manifest = Manifest { outcome: Some("power-off".into()), ..trace.manifest().clone() };
        Completeness::of(trace.layers(), Window { begin, end }, &manifest)
    }

    #[test]
    fn complete_recording_has_nothing_to_say() {
        let (_dir, trace) = event(TestTrace::new(), 0, 1).open();

        let completeness = of(&trace, 0, u64::MAX);

        assert_eq!((completeness.complete, completeness.line()), (true, None));
    }

    #[test]
    fn lost_records_and_the_length_of_their_gaps_are_reported() {
        let (_dir, trace) = lossy().open();

        let completeness = of(&trace, 0, u64::MAX);

        // The loss lies around the packet that counts it: from the first record of all until tick 2000, and from there
        // until tick 6000. A tick is half a nanosecond.
        let layer = &completeness.layers[0];
        assert_eq!((layer.lost.full, layer.gaps, layer.gap_ns), (3, 2, 2_500));
        let line = completeness.line().unwrap();
        assert_eq!(line, "INCOMPLETE: vm0/guest-kernel: 3 records lost, 2 gaps of 0.002 ms in all");
        assert_eq!(serde_json::to_value(&completeness).unwrap()["layers"][0]["gap_ns"], 2_500);
    }

    #[test]
    fn only_gaps_inside_the_window_are_counted_and_as_long_as_they_are_there() {
        let (_dir, trace) = lossy().open();

        let gaps = |begin, end| (of(&trace, begin, end).layers[0].gaps, of(&trace, begin, end).layers[0].gap_ns);

        assert_eq!(gaps(3_000, 7_000), (1, 1_500));
        assert_eq!(gaps(6_000, 9_500), (0, 0));
    }

    #[test]
    fn missing_beginning_before_the_first_record_of_all_is_no_gap() {
        let (dir, trace) = event(event(TestTrace::new(), 0, 1_000), 1, 2_000).open();
        let mut manifest = trace.manifest().clone();
        manifest.layers[0].streams.iter_mut().for_each(|stream| stream.overwritten = 1);
        manifest.save(dir.path()).unwrap();
        let trace = Trace::open(dir.path()).unwrap();

        let [whole, from_first] = [0, 1_000].map(|begin| of(&trace, begin, u64::MAX).layers[0].clone());

        assert_eq!((whole.begin_late, whole.gaps, whole.gap_ns), (2, 1, 500));
        assert_eq!(whole, from_first);
    }

    #[test]
    fn nested_records_and_vcpus_that_never_joined_are_reported() {
        let (dir, trace) = event(event(TestTrace::new(), 0, 1), 1, 9).open();
        let mut manifest = trace.manifest().clone();
        let layer = &mut manifest.layers[0];
        (layer.streams[0].nested, layer.streams[1].nested) = (Some(3), Some(u64::MAX));
        let idle =
            StreamDescription { file: "stream_2".into(), cpu_id: 2, never_joined: true, ..empty(&layer.streams) };
        layer.streams.push(idle);
        manifest.save(dir.path()).unwrap();
        let trace = Trace::open(dir.path()).unwrap();

        let completeness = of(&trace, 0, u64::MAX);

        let layer = &completeness.layers[0];
        assert_eq!((layer.nested, &*layer.never_joined, layer.end_early), (Some(u64::MAX), &[2][..], 0));
        assert!(completeness.line().unwrap().contains(" records not made inside others, vCPU 2 never began to record"));
    }

    #[test]
    fn nested_records_that_nobody_counted_are_not_known() {
        let (dir, trace) = event(event(TestTrace::new(), 0, 1), 1, 9).open();
        let mut manifest = trace.manifest().clone();
        manifest.layers[0].streams[0].nested = Some(0);
        manifest.save(dir.path()).unwrap();

        let completeness = of(&Trace::open(dir.path()).unwrap(), 0, u64::MAX);

        assert_eq!((completeness.layers[0].nested, completeness.complete), (None, true));
    }

    fn empty(streams: &[StreamDescription]) -> StreamDescription {
        StreamDescription { packets: 0, records: 0, nested: None, ..streams[0].clone() }
    }

    #[test]
    fn stream_that_is_cut_ends_early() {
        let (dir, _) = event(event(TestTrace::new(), 0, 1), 1, 9).open();
        std::fs::write(dir.path().join("vm0/guest-kernel/stream_0"), [0; 100]).unwrap();
        let trace = Trace::open(dir.path()).unwrap();

        let completeness = of(&trace, 0, u64::MAX);

        assert_eq!((completeness.layers[0].end_early, completeness.layers[0].damage.truncated_bytes), (1, 100));
    }

    #[test]
    fn streams_that_went_on_are_reported_where_others_have_records() {
        let trace = event(event(event(TestTrace::new(), 0, 1_000), 1, 2_000), 0, 6_000);
        let (_dir, trace) = trace.unfinished().open();

        let completeness = Completeness::of(trace.layers(), Window::ALL, trace.manifest());

        let layer = &completeness.layers[0];
        assert_eq!((layer.went_on, layer.end_early, layer.gaps, layer.gap_ns), (1, 0, 1, 2_000));
        let printed = "INCOMPLETE: vm0/guest-kernel: 1 stream that went on, 1 gap of 0.002 ms in all; its recorder still \
                    runs or was killed";
        assert_eq!(completeness.line().unwrap(), printed);
    }

    /// CPU 0 stops to record at tick 2000, where another kernel takes the machine over or not, and has records from tick 8000 on.
    fn stopped(another_kernel: i64) -> TestTrace {
        let fields = [("offline", Field::Number(0)), ("another_kernel", Field::Number(another_kernel))];
        let trace = event(TestTrace::new(), 0, 1_000).guest(0, 2_000, RECORDING_STOPS, &fields);
        event(event(trace, 0, 8_000), 1, 9_000)
    }

    #[test]
    fn kernel_that_followed_by_kexec_is_reported_where_its_gap_is() {
        let (_dir, trace) = stopped(1).open();
        let (_unloaded, unloaded) = stopped(0).open();

        let others = [(0, u64::MAX), (0, 1_500), (3_000, 5_000), (8_500, 9_000)]
            .map(|(begin, end)| of(&trace, begin, end).layers[0].another_kernel);

        assert_eq!(others, [true, false, true, false]);
        assert!(
            of(&trace, 0, u64::MAX).line().unwrap().contains("vm0/guest-kernel: another kernel ran, 1 gap of 0.003")
        );
        assert!(!of(&unloaded, 0, u64::MAX).layers[0].another_kernel);
    }

    #[test]
    fn crash_kernel_is_reported_instead_of_streams_that_went_on() {
        let (dir, trace) = event(event(TestTrace::new(), 0, 1_000), 1, 2_000).vmm(0, 9_000, "test:event", &[]).open();
        let mut manifest = trace.manifest().clone();
        Layer::note_crash_kernel(&mut manifest.layers, Some(3_000));
        manifest.save(dir.path()).unwrap();

        let completeness = of(&Trace::open(dir.path()).unwrap(), 0, u64::MAX);

        let line = completeness.line().unwrap();
        assert_eq!(line, "INCOMPLETE: vm0/guest-kernel: another kernel ran, 2 gaps of 0.006 ms in all");
    }

    #[test]
    fn restricted_to_other_layers_it_does_not_say_what_they_do_not_lack() {
        let (_dir, trace) = lossy().vmm(0, 1, "test:event", &[]).open();
        let manifest = Manifest { missing: vec![missing()], ..trace.manifest().clone() };
        let manifest = Manifest { outcome: Some("power-off".into()), ..manifest };

        let completeness = Completeness::of(trace.layers(), Window::ALL, &manifest);

        assert!(completeness.restricted_to(&[LayerKind::Vmm], None).complete);
        assert!(!completeness.restricted_to(&[LayerKind::GuestKernel], Some("vm0")).complete);
        assert!(completeness.restricted_to(&[LayerKind::GuestKernel], Some("vm1")).complete);
        let host = completeness.restricted_to(&[LayerKind::HostKernel], None);
        assert_eq!(host.line().unwrap(), "INCOMPLETE: host-kernel: tracefs cannot be mounted");
    }

    fn missing() -> Missing {
        let (reason, fix) = ("tracefs cannot be mounted".into(), "run as root".into());
        Missing { layer: LayerKind::HostKernel, reason, fix }
    }
}
