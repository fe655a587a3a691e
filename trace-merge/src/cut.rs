//! `strata cut`: a part of a recording as a recording of its own.
//!
//! Its records are those of the original, with their times. What lies outside of the part is unknown in it: each stream
//! that has records before begins late, and is complete up to the part's end. So states are unknown up to the first record
//! that tells them, as in a snapshot.
//!
//! The part, or the whole, becomes a folder or one file ([`packed`]).

use crate::layer_copy::{Target, copy, write_clocks};
use crate::report::{self, ReportError, ReportOptions, seconds};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;
use strata_recording::clock_snapshots::within;
use strata_recording::files::access::Readers;
use strata_recording::files::packed;
use strata_recording::files::trace_folder::{TraceFolder, TraceFolderError};
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Manifest, ManifestError, Missing, Vm};
use strata_recording::one_file::{OneFile, OneFileError};
use strata_recording::reader::merge::Merge;
use strata_recording::reader::{Damage, ReadError, Trace, TraceLayer};
use strata_recording::text::terminal::harmless;
use strata_recording::writer::WriteError;
use thiserror::Error;

/// What is cut out.
#[derive(Clone, Debug, Default)]
pub struct CutOptions {
    /// Only layers of these kinds; empty for all.
    pub layers: Vec<LayerKind>,
    /// Only records this long after the first record of the recording, or later.
    pub from: Option<Duration>,
    /// Only records that are earlier than this long after the first record of the recording.
    pub to: Option<Duration>,
}

/// Why nothing was cut out.
#[derive(Debug, Error)]
pub enum CutError {
    /// Nothing would remove what is half written when a signal comes.
    #[error("signals cannot be taken")]
    Signals(#[source] std::io::Error),
    /// The recording cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The part ends before it begins.
    #[error(transparent)]
    Window(#[from] ReportError),
    /// The part lies outside of the recording.
    #[error("{0}")]
    Outside(String),
    /// A layer was requested that was not recorded.
    #[error("this trace has no {wanted} layer; it has {present}")]
    NoLayer {
        wanted: LayerKind,
        /// What there is.
        present: String,
    },
    /// Symbols were given of a kernel without a layer there.
    #[error(
        "the new trace has no layer of the kernel of {kernel}, beside which its symbols would lie: give --kallsyms to the \
         commands that read it"
    )]
    NoPlaceForSymbols {
        /// `host`, or the VM.
        kernel: String,
    },
    /// No record lies in the part.
    #[error("no record of these layers is in that part: the records of the trace are from 0 to {end}")]
    Nothing {
        /// When the recording ends.
        end: String,
    },
    /// The folder cannot take the result.
    #[error(transparent)]
    Folder(#[from] TraceFolderError),
    /// A layer cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The description cannot be written.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The one file cannot be made.
    #[error(transparent)]
    OneFile(#[from] OneFileError),
}

/// What was cut out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Records.
    pub records: u64,
    /// Bytes of the packets that hold them, as they are stored; those of the one file, where it is one.
    pub bytes: u64,
    /// How long after the original's first record its own first one is, ns: its times count from there.
    pub begin_ns: u64,
    /// What of the original could not be read and is not in it.
    pub damage: Damage,
}

impl CutOptions {
    const fn is_whole(&self) -> bool {
        self.layers.is_empty() && self.from.is_none() && self.to.is_none()
    }
}

/// Writes what `options` ask for of the recording at `path` to `out`, as [`cut_trace`] does.
///
/// # Errors
/// When the recording cannot be read, and those of [`cut_trace`].
pub fn cut(path: &Path, options: &CutOptions, out: &Path) -> Result<Cut, CutError> {
    cut_trace(&Trace::open(path)?, options, out)
}

/// Writes what `options` ask for of `trace` to `out`: a new folder, or a new file where its name
/// [is that of one](packed::is_name). The file of a whole recording holds its files as they are.
///
/// # Errors
/// When `trace` has no such layer or nothing in that part, or `out` cannot be written. Then nothing
/// is left of `out`.
pub fn cut_trace(trace: &Trace, options: &CutOptions, out: &Path) -> Result<Cut, CutError> {
    if packed::is_name(out) { cut_into_file(trace, options, out) } else { cut_into_folder(trace, options, out) }
}

/// Writes what `options` ask for of `trace` as the file `out`, which appears when it is complete.
fn cut_into_file(trace: &Trace, options: &CutOptions, out: &Path) -> Result<Cut, CutError> {
    let file = OneFile::begin(out)?;
    let cut = if options.is_whole() && !trace.has_given_symbols() {
        let bytes = file.pack(trace)?;
        Cut { records: records_in(trace), bytes, begin_ns: 0, damage: Damage::default() }
    } else {
        let cut = cut_into_folder(trace, options, &file.folder())?;
        Cut { bytes: file.pack_folder()?, ..cut }
    };
    file.keep()?;
    Ok(cut)
}

/// How many records `trace` has that can be read.
fn records_in(trace: &Trace) -> u64 {
    let layers = trace.layers().iter();
    layers.flat_map(|layer| layer.streams.iter().map(|stream| layer.records(stream).count() as u64)).sum()
}

/// Writes what `options` ask for of `trace` into the new folder `out`.
fn cut_into_folder(trace: &Trace, options: &CutOptions, out: &Path) -> Result<Cut, CutError> {
    let window = ReportOptions { from: options.from, to: options.to, json: false };
    if let Some(missed) = report::missed_window(trace, &window) {
        return Err(CutError::Outside(missed));
    }
    let window = window.window(trace)?;
    let (start, end) = (trace.start().unwrap_or(0), trace.end().unwrap_or(0));
    let from = if options.from.is_some() { window.begin } else { 0 };
    let (times, until) = (from..=window.last().min(end), window.end.min(end));
    for &wanted in &options.layers {
        if trace.layers_of(wanted).next().is_none() {
            return Err(no_layer(trace, wanted));
        }
    }
    let is_wanted = |kind: LayerKind| options.layers.is_empty() || options.layers.contains(&kind);
    let mut folder = TraceFolder::create(out, Readers::Owner)?;
    let guard = folder.removed_on_signal().map_err(CutError::Signals)?;
    let is_all_of_time = options.from.is_none() && options.to.is_none();
    let mut manifest = described(trace, (from.max(start), until), is_all_of_time, is_wanted);
    let mut damage = Damage::default();
    let is_wanted = |layer: &&TraceLayer| is_wanted(layer.description.kind) && !is_silent(layer, &times);
    for layer in trace.layers().iter().filter(is_wanted) {
        let target = Target {
            out,
            manifest: &manifest,
            folder: "",
            vm: layer.description.vm.clone(),
            host: layer.description.host.clone(),
            times: times.clone(),
        };
        let (copied, missed) = copy(layer, &target, |time| time)?;
        manifest.layers.push(copied);
        damage = damage.plus(&missed);
    }
    for vm in trace.kernels_with_given_symbols() {
        let kind = vm.map_or(LayerKind::HostKernel, |_| LayerKind::GuestKernel);
        if !manifest.layers.iter().any(|layer| layer.kind == kind && layer.vm.as_deref() == vm) {
            return Err(CutError::NoPlaceForSymbols { kernel: harmless(vm.unwrap_or("host")) });
        }
    }
    let records = manifest.layers.iter().flat_map(|layer| &layer.streams).map(|stream| stream.records).sum();
    if records == 0 {
        return Err(CutError::Nothing { end: seconds(trace.clock().ticks_to_ns(end.saturating_sub(start))) });
    }
    manifest.save(out)?;
    let clocks = trace.clock_snapshots();
    write_clocks(within(&clocks, from.max(start), *times.end()), out)?;
    let written = Trace::open(out)?;
    let bytes = written.layers().iter().flat_map(|layer| &layer.streams).map(|stream| stream.stored_bytes()).sum();
    let begin_ns = trace.clock().ticks_to_ns(written.start().unwrap_or(start).saturating_sub(start));
    folder.keep();
    drop(guard);
    Ok(Cut { records, bytes, begin_ns, damage })
}

/// Whether `layer` is that of a process that has nothing in `times`, and lacks nothing.
fn is_silent(layer: &TraceLayer, times: &RangeInclusive<u64>) -> bool {
    let has_steps = || Merge::within([layer], *times.start(), *times.end()).next_step().is_some();
    layer.description.kind == LayerKind::GuestUser && !has_steps()
}

/// What describes the part of `trace` from `from` to `to`, ticks, but for its layers, of which the kinds are copied that
/// are wanted.
fn described(
    trace: &Trace,
    (from, to): (u64, u64),
    is_all_of_time: bool,
    is_wanted: impl Fn(LayerKind) -> bool,
) -> Manifest {
    let whole = trace.manifest();
    let start = trace.start().unwrap_or(0);
    let [from, to] = [from, to].map(|time| seconds(whole.clock.ticks_to_ns(time.saturating_sub(start))));
    let left_out: BTreeSet<LayerKind> =
        trace.layers().iter().map(|layer| layer.description.kind).filter(|&kind| !is_wanted(kind)).collect();
    let mut missing = whole.missing.clone();
    missing.extend(left_out.into_iter().map(|layer| Missing {
        layer,
        reason: "it was left out when this was cut out of a longer trace".into(),
        fix: format!("cut that with --layer {layer}, too"),
    }));
    let described = Manifest { layers: Vec::new(), missing, max_size: None, ..whole.clone() };
    if is_all_of_time {
        return described;
    }
    // What the kernel counted, it counted over the whole recording.
    let vms = whole.vms.iter().map(|vm| Vm { strata_threads: Vec::new(), cpu_limits: Vec::new(), ..vm.clone() });
    let outcome = format!("from {from} to {to} of a longer trace, whose end was: {}", whole.outcome_text());
    Manifest { vms: vms.collect(), outcome: Some(outcome), ..described }
}

fn no_layer(trace: &Trace, wanted: LayerKind) -> CutError {
    let present: BTreeSet<LayerKind> = trace.layers().iter().map(|layer| layer.description.kind).collect();
    let present = present.into_iter().map(LayerKind::name).collect::<Vec<_>>().join(", ");
    CutError::NoLayer { wanted, present: if present.is_empty() { "none".into() } else { present } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::sync::Arc;
    use strata_recording::clock_snapshots::ClockSnapshot;
    use strata_recording::test_trace::{Field, TestTrace, clock_snapshot};
    use tempfile::TempDir;

    /// Records of three layers and two processes from 0 to 100 ticks, 50 ns.
    fn recording() -> TempDir {
        let trace = (0..=10).fold(TestTrace::new(), |trace, number| {
            let time = 10 * number;
            let fields = [("number", Field::Number(i64::try_from(number).unwrap()))];
            let trace = trace.host(0, time, "test:host", &fields).guest(0, time + 1, "test:guest", &fields);
            if number < 3 { trace.user(42, 0, time + 2, "app:early", &fields) } else { trace }
        });
        trace.user(43, 0, 50, "app:late", &[]).open().0
    }

    fn part(options: &CutOptions) -> Result<(TempDir, Cut, Trace), CutError> {
        let dir = TempDir::new().unwrap();
        let out = dir.path().join("part");
        let written = cut(recording().path(), options, &out)?;
        let trace = Trace::open(&out)?;
        Ok((dir, written, trace))
    }

    fn within(from: u64, to: u64) -> CutOptions {
        let ns = |ticks: u64| Some(Duration::from_nanos(ticks / 2));
        CutOptions { from: ns(from), to: ns(to), ..CutOptions::default() }
    }

    #[test]
    fn whole_recording_in_a_folder_is_described_as_it_was() {
        let (_dir, trace) = TestTrace::new().strata_thread(9, "strata-recorder", 77).switch(0, 10, 0, 7).open();
        let dir = TempDir::new().unwrap();
        let [whole, part] = ["whole", "part"].map(|name| dir.path().join(name));

        cut_trace(&trace, &CutOptions::default(), &whole).unwrap();
        cut_trace(&trace, &within(0, 100), &part).unwrap();

        let [whole, part] = [whole, part].map(|path| Trace::open(&path).unwrap().manifest().clone());
        assert_eq!((&whole.vms, &whole.outcome), (&trace.manifest().vms, &trace.manifest().outcome));
        assert!(part.vms[0].strata_threads.is_empty() && part.outcome_text().contains("of a longer trace"));
    }

    #[test]
    fn part_has_the_records_from_its_begin_up_to_its_end_with_their_times() {
        let (_dir, written, trace) = part(&within(40, 60)).unwrap();

        let times: Vec<u64> = Merge::new(trace.layers(), 0).map(|merged| merged.record.time).collect();
        assert_eq!(times, [40, 41, 50, 50, 51]);
        assert_eq!((written.records, written.begin_ns, written.damage), (5, 20, Damage::default()));
        assert!(written.bytes > 0);
    }

    #[test]
    fn parts_that_follow_one_another_have_each_record_once() {
        let before = part(&CutOptions { from: None, ..within(0, 60) }).unwrap();
        let behind = part(&CutOptions { to: None, ..within(60, 0) }).unwrap();

        let original = Trace::open(recording().path()).unwrap();
        assert_eq!([times(&before.2), times(&behind.2)].concat(), times(&original));
    }

    #[test]
    fn part_has_the_names_of_flags() {
        let trace = TestTrace::new().flags("kmem:kmalloc", "gfp_flags", &[(1, "DMA")]).host(0, 5, "kmem:kmalloc", &[]);
        let (original, trace) = trace.open();

        let out = original.path().join("part");
        cut_trace(&trace, &CutOptions::default(), &out).unwrap();

        let names = |trace: &Trace| trace.layers()[0].description.flag_names.clone();
        assert_eq!((names(&Trace::open(&out).unwrap()), names(&trace).len()), (names(&trace), 1));
    }

    #[test]
    fn part_has_the_snapshots_of_the_clocks_that_belong_to_it() {
        let dir = TempDir::new().unwrap();
        let all = [5, 25, 45, 55, 65, 85].map(clock_snapshot);
        let trace = TestTrace::new().clocks(&all);
        let (_original, trace) = (0..=10).fold(trace, |trace, number| trace.host(0, 10 * number, "a:b", &[])).open();
        let ticks = |options: &CutOptions, name: &str| {
            let out = dir.path().join(name);
            cut_trace(&trace, options, &out).unwrap();
            Trace::open(&out).unwrap().clock_snapshots().iter().map(ClockSnapshot::ticks).collect::<Vec<_>>()
        };

        let (part, whole) = (within(40, 60), CutOptions::default());

        assert_eq!(ticks(&part, "part"), [25, 45, 55, 65]);
        assert_eq!(ticks(&part, "part.strata"), [25, 45, 55, 65]);
        assert_eq!(ticks(&whole, "whole.strata"), [5, 25, 45, 55, 65, 85]);
    }

    #[test]
    fn process_without_a_record_in_the_part_is_left_out_and_one_that_begins_there_is_whole() {
        let (_dir, _, trace) = part(&within(40, 60)).unwrap();

        let reported = trace
            .layers_of(LayerKind::GuestUser)
            .map(|layer| (layer.description.process.as_ref().unwrap().pid, layer.streams[0].begins_late()));
        assert_eq!(reported.collect::<Vec<_>>(), [(43, false)]);
        let kernels = trace.layers().iter().filter(|layer| layer.description.process.is_none());
        assert_eq!(kernels.map(|layer| layer.streams[0].begins_late()).collect::<Vec<_>>(), [true, true]);
    }

    #[test]
    fn part_goes_on_behind_its_end_unless_that_is_the_originals() {
        let ends = |options: &CutOptions| {
            let (_dir, _, trace) = part(options).unwrap();
            let host = trace.layers_of(LayerKind::HostKernel).next().unwrap();
            (host.has_ended(), host.streams[0].complete_until())
        };

        assert_eq!(ends(&within(40, 60)), (false, Some(59)));
        assert_eq!(ends(&CutOptions { to: None, ..within(40, 0) }), (true, None));
    }

    #[test]
    fn outcome_says_which_part_of_what_it_is() {
        let (_dir, _, trace) = part(&within(40, 60)).unwrap();

        let expected = "from 0.000000020 s to 0.000000030 s of a longer trace, whose end was: power-off";
        assert_eq!(trace.manifest().outcome.as_deref(), Some(expected));
    }

    #[test]
    fn layers_that_are_left_out_are_missing() {
        let (_dir, _, trace) = part(&CutOptions { layers: vec![LayerKind::GuestKernel], ..within(40, 60) }).unwrap();

        assert_eq!(trace.layers().len(), 1);
        let missing: Vec<LayerKind> = trace.manifest().missing.iter().map(|missing| missing.layer).collect();
        assert_eq!(missing, [LayerKind::HostKernel, LayerKind::GuestUser]);
    }

    /// What one file has that is cut out of the recording in `dir`.
    fn file(dir: &TempDir, options: &CutOptions) -> Result<(TempDir, Cut, Trace), CutError> {
        let made = TempDir::new().unwrap();
        let out = made.path().join("part.strata");
        let written = cut(dir.path(), options, &out)?;
        assert_eq!(fs::read_dir(made.path()).unwrap().count(), 1);
        let trace = Trace::open(&out)?;
        Ok((made, written, trace))
    }

    fn times(trace: &Trace) -> Vec<u64> {
        Merge::new(trace.layers(), 0).map(|merged| merged.record.time).collect()
    }

    #[test]
    fn part_becomes_one_file_where_it_is_called_so() {
        let (dir, written, trace) = file(&recording(), &within(40, 60)).unwrap();

        assert_eq!(times(&trace), [40, 41, 50, 50, 51]);
        let length = fs::metadata(dir.path().join("part.strata")).unwrap().len();
        assert_eq!((written.records, written.begin_ns, written.bytes), (5, 20, length));
    }

    #[test]
    fn whole_recording_becomes_one_file_as_it_is() {
        let whole = recording();
        let (_dir, written, trace) = file(&whole, &CutOptions::default()).unwrap();

        let original = Trace::open(whole.path()).unwrap();
        assert_eq!((trace.manifest(), times(&trace)), (original.manifest(), times(&original)));
        assert_eq!((written.records, written.begin_ns), (times(&original).len() as u64, 0));
    }

    #[test]
    fn one_file_is_cut_into_a_folder_again() {
        let (dir, _, _) = file(&recording(), &CutOptions::default()).unwrap();
        let out = dir.path().join("part");

        let written = cut(&dir.path().join("part.strata"), &within(40, 60), &out).unwrap();

        assert_eq!((written.records, times(&Trace::open(&out).unwrap()).len()), (5, 5));
    }

    #[test]
    fn part_and_one_file_have_the_symbols_that_were_saved_or_given() {
        let symbols = |trace: &Trace, vm| trace.kallsyms(vm).map(|text| String::from_utf8(text.into_owned()).unwrap());
        let (dir, mut saved) = TestTrace::new()
            .host(0, 10, "test:event", &[])
            .guest(0, 20, "test:event", &[])
            .kallsyms("host-kernel", "saved")
            .open();
        let (_file_dir, _, file) = file(&dir, &CutOptions::default()).unwrap();
        saved.give_kallsyms(Some("vm0"), &Arc::from(&b"given"[..]));
        let made = TempDir::new().unwrap();
        cut_trace(&saved, &CutOptions::default(), &made.path().join("part.strata")).unwrap();
        let part = Trace::open(&made.path().join("part.strata")).unwrap();

        assert_eq!((symbols(&file, None).as_deref(), symbols(&file, Some("vm0"))), (Some("saved"), None));
        assert_eq!(symbols(&part, None).as_deref(), Some("saved"));
        assert_eq!(symbols(&part, Some("vm0")).as_deref(), Some("given"));
    }

    #[test]
    fn symbols_of_a_kernel_without_a_layer_in_the_part_are_refused() {
        let (_dir, mut trace) = TestTrace::new().host(0, 10, "test:event", &[]).open();
        trace.give_kallsyms(Some("vm0"), &Arc::from(&b"given"[..]));
        let made = TempDir::new().unwrap();

        let refused = cut_trace(&trace, &CutOptions::default(), &made.path().join("part")).unwrap_err().to_string();

        assert!(refused.starts_with("the new trace has no layer of the kernel of vm0"), "{refused}");
        assert!(!made.path().join("part").exists());
    }

    #[test]
    fn one_file_takes_nobodys_place_and_leaves_nothing_where_it_fails() {
        let dir = TempDir::new().unwrap();
        let out = dir.path().join("part.strata");
        let empty = cut(recording().path(), &within(42, 48), &out).unwrap_err();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        fs::write(&out, "mine").unwrap();

        let taken = cut(recording().path(), &CutOptions::default(), &out).unwrap_err();

        assert!(
            matches!(empty, CutError::Outside(_)) && matches!(taken, CutError::OneFile(OneFileError::Exists { .. }))
        );
        assert_eq!(fs::read_to_string(&out).unwrap(), "mine");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_cannot_be_cut_out_is_refused_and_leaves_nothing() {
        let dir = TempDir::new().unwrap();
        let out = dir.path().join("part");
        let refused = |options: &CutOptions| cut(recording().path(), options, &out).unwrap_err().to_string();

        let layer = refused(&CutOptions { layers: vec![LayerKind::Vmm], ..CutOptions::default() });
        let between = refused(&within(42, 48));
        let of_layer = refused(&CutOptions { layers: vec![LayerKind::GuestUser], ..within(30, 42) });
        let behind = refused(&within(400, 500));

        assert_eq!(layer, "this trace has no vmm layer; it has host-kernel, guest-kernel, guest-user");
        assert!(between.starts_with("no record is in that part of the trace: the next one is at"), "{between}");
        assert!(of_layer.ends_with("the records of the trace are from 0 to 0.000000050 s"), "{of_layer}");
        assert!(behind.contains("its records are from 0 to"), "{behind}");
        assert!(!out.exists());
        fs::write(&out, "").unwrap();
        assert!(refused(&within(40, 60)).contains("exists and is not an empty folder"));
    }
}
