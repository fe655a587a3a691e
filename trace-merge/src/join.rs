//! `strata merge`: several recordings become one, on the clock of the first. Recordings whose clocks are the same are
//! put together as they are; for others the relation comes from matched events, with a bound.
//!
//! - Recordings of different runs on one host (the same boot, the same counter) keep their VMs apart by name and share
//!   the host: their host-kernel layers become one.
//! - Parts of one recording, which have the same clock and no layer in common, are put together.
//! - All others are of different hosts: the later ones' layers go into folders of their own.
//!
//! A stream of the result has a gap where one of the streams that it comes from had one, and nowhere else. Where those of
//! one recording went on and another's came to their end, the result says of each layer which it is.

use crate::layer_copy::{Target, copy, write_clocks};
use crate::match_rule::{MatchError, MatchRule};
use clock_sync::convex_hull::{ClockRelation, HullError};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use strata_analysis::event;
use strata_recording::clock::{Clock, ClockEpoch, NS_PER_SECOND};
use strata_recording::clock_snapshots::ClockSnapshot;
use strata_recording::files::access::Readers;
use strata_recording::files::trace_folder::{TraceFolder, TraceFolderError};
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Layer, Manifest, ManifestError, Missing, Vm};
use strata_recording::one_file::{self, OneFileError};
use strata_recording::reader::{Damage, ReadError, Stream, Trace, TraceLayer};
use strata_recording::text::terminal::harmless;
use strata_recording::writer::WriteError;
use thiserror::Error;
use uuid::Uuid;

mod shared_host;

/// Why recordings were not merged.
#[derive(Debug, Error)]
pub enum JoinError {
    /// Nothing would remove what is half written when a signal comes.
    #[error("signals cannot be taken")]
    Signals(#[source] std::io::Error),
    /// One cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Rules relate two clocks, not more.
    #[error("--match relates the clocks of two traces, not of {0}: merge two first, then their result with the next")]
    RulesForMany(usize),
    /// One is given twice, or two have a layer in common.
    #[error(
        "{} and {} both hold the layer {layer} of one recording: give each recording once",
        harmless(&one.to_string_lossy()),
        harmless(&other.to_string_lossy())
    )]
    SameRecording {
        /// One of them.
        one: PathBuf,
        /// The other.
        other: PathBuf,
        /// Path of the layer in the second.
        layer: String,
    },
    /// Their clocks differ and no rule relates them.
    #[error(
        "the traces have different clocks (they were not recorded since one boot of one host): say which events belong together, as in --match 'net:send before \
             net:receive by seq' --match 'net:receive after net:send by seq'"
    )]
    NoRule,
    /// A rule finds nothing.
    #[error(transparent)]
    Match(#[from] MatchError),
    /// The pairs do not relate the clocks.
    #[error("the clocks cannot be related: {0}")]
    Hull(HullError),
    /// By the pairs one clock might run backwards.
    #[error(
        "the clocks cannot be related: the pairs leave room for a clock that runs backwards; match more events, \
             over a longer time"
    )]
    Backwards,
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

/// How recordings were merged.
#[derive(Clone, Debug)]
pub struct Joined {
    /// What the result's `session.json` says.
    pub manifest: Manifest,
    /// How the second's clock relates to the first's; `None` when they are the same clock.
    pub relation: Option<ClockRelation>,
    /// Largest error of that relation over the second recording, ns.
    pub relation_bound_ns: u64,
    /// Events of the host's kernel that several recordings had and the result has once.
    pub shared_host_events: u64,
    /// What of the recordings could not be read and is not in the result.
    pub damage: Damage,
}

/// Merges the recordings in `first` and `others` into `out`: a new folder, or a new file where its name
/// [is that of one](strata_recording::files::packed::is_name).
///
/// # Errors
/// When they cannot be read or related, or `out` cannot be written. Then nothing is left of `out`.
pub fn join(first: &Path, others: &[PathBuf], rules: &[MatchRule], out: &Path) -> Result<Joined, JoinError> {
    one_file::write(out, |folder| join_into_folder(first, others, rules, folder))
}

fn join_into_folder(first: &Path, others: &[PathBuf], rules: &[MatchRule], out: &Path) -> Result<Joined, JoinError> {
    let folders: Vec<&Path> = std::iter::once(first).chain(others.iter().map(PathBuf::as_path)).collect();
    let first = Trace::open(first)?;
    let others: Vec<Trace> = others.iter().map(|dir| Trace::open(dir)).collect::<Result<_, _>>()?;
    let given: Vec<(&Trace, &Path)> = std::iter::once(&first).chain(&others).zip(folders).collect();
    refuse_layers_in_common(given.iter().copied())?;
    refuse_records_in_common(&given)?;
    if !rules.is_empty() && others.len() != 1 {
        return Err(JoinError::RulesForMany(others.len() + 1));
    }
    let mut relation = None;
    for other in &others {
        relation = relate(&first, other, rules)?;
    }
    let relation_bound_ns = match (&relation, others.last()) {
        (Some(relation), Some(second)) => {
            let (begin, end) = span(second);
            first.clock().ticks_to_ns(relation.bound_over(begin, end)).saturating_add(1)
        }
        _ => 0,
    };
    let mut folder = TraceFolder::create(out, Readers::Owner)?;
    let guard = folder.removed_on_signal().map_err(JoinError::Signals)?;
    let mut manifest = Manifest { layers: Vec::new(), max_size: None, ..first.manifest().clone() };
    let mut taken = paths(&first);
    let mut placed = vec![(&first, Place::default())];
    for other in &others {
        let place = Place::of(other, &first, &manifest, &taken, placed.len(), relation.is_some());
        manifest = combined(manifest, other, &place, relation.as_ref(), relation_bound_ns);
        taken.extend(paths(other));
        placed.push((other, place));
    }
    let joined = copy_all(&placed, manifest, relation, relation_bound_ns, out)?;
    folder.keep();
    drop(guard);
    Ok(joined)
}

/// Refuses recordings if two of them hold the same layer: all of its records would be there twice.
fn refuse_layers_in_common<'t>(traces: impl Iterator<Item = (&'t Trace, &'t Path)>) -> Result<(), JoinError> {
    let mut known: BTreeMap<Uuid, &Path> = BTreeMap::new();
    for (trace, folder) in traces {
        for layer in trace.layers() {
            if let Some(one) = known.insert(layer.description.uuid, folder) {
                return Err(same_recording(one, folder, layer));
            }
        }
    }
    Ok(())
}

fn same_recording(one: &Path, other: &Path, layer: &TraceLayer) -> JoinError {
    JoinError::SameRecording { one: one.into(), other: other.into(), layer: harmless(&layer.description.path) }
}

/// Refuses recordings if two of them hold the same records of a VM: parts of one recording that overlap.
fn refuse_records_in_common(traces: &[(&Trace, &Path)]) -> Result<(), JoinError> {
    // By clock and what a stream is of.
    let mut known: BTreeMap<_, Vec<(&TraceLayer, &Stream, &Path)>> = BTreeMap::new();
    for &(trace, folder) in traces {
        let of_vms = trace.layers().iter().filter(|layer| layer.description.kind != LayerKind::HostKernel);
        for (layer, stream) in of_vms.flat_map(|layer| layer.streams.iter().map(move |stream| (layer, stream))) {
            let Layer { kind, vm, process, host, .. } = &layer.description;
            let process = process.as_ref().map(|process| process.pid);
            let of =
                known.entry((trace.clock().uuid, host, vm, *kind, process, stream.description.cpu_id)).or_default();
            let from_elsewhere = of.iter().filter(|(.., one)| *one != folder);
            for &(other_layer, other, one) in from_elsewhere {
                if have_a_record_in_common((other_layer, other), (layer, stream)) {
                    return Err(same_recording(one, folder, layer));
                }
            }
            // One for each recording will do: it has no stream twice, unless it is forged.
            if of.iter().all(|(.., one)| *one != folder) {
                of.push((layer, stream, folder));
            }
        }
    }
    Ok(())
}

/// Whether the first record that two streams could both have is in both. Reads each up to there.
fn have_a_record_in_common<'t>(one: (&'t TraceLayer, &'t Stream), other: (&'t TraceLayer, &'t Stream)) -> bool {
    let records = |(layer, stream): (&'t TraceLayer, &'t Stream)| layer.records(stream);
    let begin = |of| records(of).next().map(|record| record.time);
    let Some((one_begins, other_begins)) = begin(one).zip(begin(other)) else { return false };
    let both_from = one_begins.max(other_begins);
    let first = |of| {
        let at_once = records(of).starting_at(both_from).take_while(|record| record.time == both_from);
        at_once.map(|record| (record.schema.name().to_owned(), record.payload.to_vec())).collect::<Vec<_>>()
    };
    let of_other = first(other);
    first(one).iter().any(|record| of_other.contains(record))
}

/// Copies the layers of all recordings to their places and describes the result.
fn copy_all(
    placed: &[(&Trace, Place)],
    mut manifest: Manifest,
    relation: Option<ClockRelation>,
    relation_bound_ns: u64,
    out: &Path,
) -> Result<Joined, JoinError> {
    let mut damage = Damage::default();
    // KVM's events stay apart where they are, so that what is missing of them is missing of nothing else.
    let (of_kvm, of_all): (Vec<&TraceLayer>, Vec<&TraceLayer>) = placed
        .iter()
        .filter(|(_, place)| place.folder.is_empty())
        .flat_map(|(trace, _)| trace.layers_of(LayerKind::HostKernel))
        .filter(|layer| layer.description.host.is_none())
        .partition(|layer| event::is_of_kvm_only(layer));
    let is_one_recording = |one: &TraceLayer, other: &TraceLayer| clock_of(placed, one) == clock_of(placed, other);
    let mut of_shared_host = Vec::new();
    let mut shared_host_events = 0;
    for layers in [of_all, of_kvm].into_iter().filter(|layers| layers.len() > 1) {
        let shared = shared_host::copy(&layers, &is_one_recording, out, &manifest)?;
        manifest.layers.push(shared.layer);
        shared_host_events += shared.duplicates;
        damage = damage.plus(&shared.damage);
        of_shared_host.extend(layers);
    }
    for (number, (trace, place)) in placed.iter().enumerate() {
        let foreign = relation.as_ref().filter(|_| number > 0);
        let map = |time| foreign.map_or(time, |relation| relation.reference_at(time));
        for layer in trace.layers() {
            if of_shared_host.iter().any(|shared| std::ptr::eq(*shared, layer)) {
                continue;
            }
            let target = Target {
                out,
                manifest: &manifest,
                folder: &place.folder,
                vm: layer.description.vm.as_deref().map(|vm| place.name(vm)),
                host: place.host.clone().or_else(|| layer.description.host.clone()),
                times: 0..=u64::MAX,
            };
            let (copied, missed) = copy(layer, &target, map)?;
            manifest.layers.push(copied);
            damage = damage.plus(&missed);
        }
    }
    manifest.save(out)?;
    write_clocks(&clocks_of(placed, relation.as_ref(), relation_bound_ns), out)?;
    Ok(Joined { manifest, relation, relation_bound_ns, shared_host_events, damage })
}

/// The clock of the recording that has `layer`, which only parts of one recording have in common.
fn clock_of(placed: &[(&Trace, Place)], layer: &TraceLayer) -> Option<Uuid> {
    let has_layer = |trace: &Trace| trace.layers().iter().any(|other| std::ptr::eq(other, layer));
    placed.iter().find(|(trace, _)| has_layer(trace)).map(|(trace, _)| trace.clock().uuid)
}

/// What the clocks of all hosts showed, on the clock of the first recording.
fn clocks_of(
    placed: &[(&Trace, Place)],
    relation: Option<&ClockRelation>,
    relation_bound_ns: u64,
) -> Vec<ClockSnapshot> {
    let mut clocks = Vec::new();
    for (number, (trace, place)) in placed.iter().enumerate() {
        let foreign = relation.filter(|_| number > 0);
        let bound = foreign.map_or(0, |_| relation_bound_ns);
        let map = |ticks| foreign.map_or(ticks, |relation| relation.reference_at(ticks));
        let of_trace = trace.clock_snapshots();
        clocks.extend(of_trace.iter().map(|snapshot| {
            let host = place.host.clone().or_else(|| snapshot.host.clone());
            snapshot.on_clock(host, map, bound)
        }));
    }
    clocks.sort_by_key(ClockSnapshot::ticks);
    // Parts of one recording have some in common.
    clocks.dedup();
    clocks
}

/// How the clock of `second` relates to that of `first`; `None` when they are the same.
fn relate(first: &Trace, second: &Trace, rules: &[MatchRule]) -> Result<Option<ClockRelation>, JoinError> {
    if rules.is_empty() {
        return if first.manifest().shares_clock_with(second.manifest()) { Ok(None) } else { Err(JoinError::NoRule) };
    }
    let mut pairs = Vec::new();
    for rule in rules {
        pairs.extend(rule.pairs(first, second)?);
    }
    let relation = ClockRelation::new(&pairs).map_err(JoinError::Hull)?;
    if relation.runs_forward() { Ok(Some(relation)) } else { Err(JoinError::Backwards) }
}

/// First and last time of all records.
fn span(trace: &Trace) -> (u64, u64) {
    let streams = trace.layers().iter().flat_map(|layer| layer.streams.iter().map(move |stream| layer.records(stream)));
    let times = streams.flat_map(|records| records.map(|record| record.time));
    times.fold((u64::MAX, 0), |(least, most), time| (least.min(time), most.max(time)))
}

/// Where the layers of a recording go, and what its VMs are called in the result.
#[derive(Clone, Debug, Default)]
struct Place {
    /// Folder for its layers; empty when they lie where they were.
    folder: String,
    /// Names that change.
    names: BTreeMap<String, String>,
    /// The host, when it is another one than the first's.
    host: Option<String>,
    /// Whether it is another run on the first's host.
    is_other_run: bool,
}

impl Place {
    /// The place of `trace`, the `number`th after the first, beside what is in `manifest`, whose layers lie at `taken`.
    fn of(
        trace: &Trace,
        first: &Trace,
        manifest: &Manifest,
        taken: &BTreeSet<String>,
        number: usize,
        has_foreign_clock: bool,
    ) -> Self {
        let collides = !paths(trace).is_disjoint(taken);
        let boots = [trace, first].map(|trace| &trace.manifest().host.boot_id);
        // One part of a recording behind another one is as another run.
        let is_other_part = collides && boots[0] == boots[1] && !boots[0].is_empty();
        let is_other_run = !has_foreign_clock
            && (trace.clock().uuid != first.clock().uuid || is_other_part)
            && trace.manifest().shares_clock_with(first.manifest());
        if !is_other_run && !collides {
            return Self::default();
        }
        let mut used: BTreeSet<&str> = manifest.vms.iter().map(|vm| vm.name.as_str()).collect();
        let of_layers = trace.layers().iter().filter_map(|layer| layer.description.vm.as_deref());
        let vms: BTreeSet<&str> = trace.manifest().vms.iter().map(|vm| vm.name.as_str()).chain(of_layers).collect();
        used.extend(manifest.layers.iter().filter_map(|layer| layer.vm.as_deref()));
        let mut names = BTreeMap::new();
        for &vm in &vms {
            let free = |name: &String| !used.contains(name.as_str()) && (name == vm || !vms.contains(name.as_str()));
            let numbered = (2..).map(|number: u64| format!("{vm}-{number}"));
            if let Some(name) = std::iter::once(vm.to_owned()).chain(numbered).find(free).filter(|name| name != vm) {
                names.insert(vm.to_owned(), name);
            }
        }
        if is_other_run {
            return Self { names, is_other_run, ..Self::default() };
        }
        let folder = format!("trace-{}", number + 1);
        let host = Some(&trace.manifest().host.hostname).filter(|host| !host.is_empty()).cloned();
        Self { host: Some(host.unwrap_or_else(|| folder.clone())), folder, names, is_other_run }
    }

    /// What the VM `name` is called in the result.
    fn name(&self, name: &str) -> String {
        self.names.get(name).map_or(name, String::as_str).to_owned()
    }
}

/// Where the layers of a recording lie.
fn paths(trace: &Trace) -> BTreeSet<String> {
    trace.layers().iter().map(|layer| layer.description.path.clone()).collect()
}

/// The description `one` with what `other`, placed at `place`, adds to it, but for the layers.
fn combined(
    one: Manifest,
    other: &Trace,
    place: &Place,
    relation: Option<&ClockRelation>,
    relation_bound_ns: u64,
) -> Manifest {
    let two = other.manifest();
    let mut vms = one.vms.clone();
    let lacks_host_kernel = other.layers_of(LayerKind::HostKernel).next().is_none();
    for vm in &two.vms {
        let name = place.name(&vm.name);
        if one.vm(&name).is_none() {
            let host = place.host.clone().or_else(|| vm.host.clone());
            let outside_host_kernel = vm.outside_host_kernel || (place.is_other_run && lacks_host_kernel);
            vms.push(Vm { name, host, outside_host_kernel, ..vm.clone() });
        }
    }
    let names: Vec<String> = two.vms.iter().map(|vm| place.name(&vm.name)).collect();
    let mut missing = one.missing.clone();
    for layer in &two.missing {
        // Of another run, name whose layer is missing: the first one's may be there.
        let layer = if place.is_other_run {
            Missing { reason: format!("of {}: {}", names.join(", "), layer.reason), ..layer.clone() }
        } else {
            layer.clone()
        };
        if !missing.contains(&layer) {
            missing.push(layer);
        }
    }
    let outcome = match (&one.outcome, &two.outcome) {
        (Some(one), Some(two)) if one == two => Some(one.clone()),
        (Some(one), Some(two)) => Some(format!("{one}; {two}")),
        _ => None,
    };
    let mut clock = two.clock.clone();
    clock.epochs.iter_mut().for_each(|epoch| epoch.vm = place.name(&epoch.vm));
    clock.vcpus.iter_mut().for_each(|relation| relation.vm = place.name(&relation.vm));
    let clock = combined_clock(&one.clock, &clock, relation, relation_bound_ns);
    Manifest { clock, vms, missing, outcome, ..one }
}

fn combined_clock(one: &Clock, two: &Clock, relation: Option<&ClockRelation>, relation_bound_ns: u64) -> Clock {
    let mut epochs = one.epochs.clone();
    let mut vcpus = one.vcpus.clone();
    vcpus.extend(two.vcpus.iter().filter(|relation| !one.vcpus.contains(relation)).cloned());
    let Some(relation) = relation else {
        epochs.extend(two.epochs.iter().cloned());
        let wider = if two.error_bound_ns > one.error_bound_ns { two } else { one };
        let (error_bound_ns, bound_derivation) = (wider.error_bound_ns, wider.bound_derivation.clone());
        let given_up_ticks = one.given_up_ticks.into_iter().chain(two.given_up_ticks).min();
        return Clock { error_bound_ns, bound_derivation, given_up_ticks, vcpus, epochs, ..one.clone() };
    };
    let rates = relation.rates();
    epochs.extend(two.epochs.iter().map(|epoch| ClockEpoch {
        from_ticks: relation.reference_at(epoch.from_ticks),
        bound_ns: epoch.bound_ns.saturating_add(one.error_bound_ns).saturating_add(relation_bound_ns),
        ..epoch.clone()
    }));
    let given_up_there = two.given_up_ticks.map(|ticks| relation.reference_at(ticks));
    let nominal = one_per(one, two);
    let ppm = |rate: f64| (rate / nominal - 1.0) * 1e6;
    Clock {
        // Not the first one's any more: the second one's records are on it only to within the bound.
        uuid: Uuid::new_v4(),
        error_bound_ns: one.error_bound_ns.saturating_add(two.error_bound_ns).saturating_add(relation_bound_ns),
        bound_derivation: format!(
            "first trace: {} ns ({}); second trace: {} ns ({}); between them: {relation_bound_ns} ns over the second trace, \
             by the convex hulls of {} matched pairs of events; the second clock is {:.3} ppm off its nominal rate \
             against the first (possible: {:.3} to {:.3} ppm)",
            one.error_bound_ns,
            one.bound_derivation,
            two.error_bound_ns,
            two.bound_derivation,
            relation.pairs(),
            ppm(rates.chosen),
            ppm(rates.least),
            ppm(rates.most),
        ),
        given_up_ticks: one.given_up_ticks.into_iter().chain(given_up_there).min(),
        vcpus,
        epochs,
        ..one.clone()
    }
}

/// First clock's ticks per tick of the second, by their nominal rates.
#[allow(clippy::cast_precision_loss, reason = "to be shown in parts per million")]
fn one_per(one: &Clock, two: &Clock) -> f64 {
    one.frequency_hz.max(1) as f64 / two.frequency_hz.clamp(1, u64::MAX / NS_PER_SECOND) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_recording::test_trace::{TestTrace, clock_snapshot};
    use tempfile::TempDir;

    /// Host and ticks of the snapshots of the two, merged.
    fn clocks_of_both(first: TestTrace, second: TestTrace) -> Vec<(Option<String>, u64)> {
        let ((first, _), (second, _)) = (first.open(), second.open());
        let dir = TempDir::new().unwrap();
        let out = dir.path().join("out");
        join(first.path(), &[second.path().into()], &[], &out).unwrap();
        let clocks = Trace::open(&out).unwrap().clock_snapshots();
        clocks.iter().map(|snapshot| (snapshot.host.clone(), snapshot.ticks())).collect()
    }

    #[test]
    fn parts_of_a_recording_have_each_snapshot_of_the_clocks_once() {
        let host = TestTrace::new().host(0, 5, "a:b", &[]).clocks(&[1, 3, 5].map(clock_snapshot));
        let guest = TestTrace::new().guest(0, 6, "a:b", &[]).clocks(&[3, 5, 7].map(clock_snapshot));

        assert_eq!(clocks_of_both(host, guest), [1, 3, 5, 7].map(|ticks| (None, ticks)));
    }

    #[test]
    fn result_is_one_file_where_its_name_says_so_and_nothing_where_it_cannot_be_made() {
        let ((first, _), (second, _)) =
            (TestTrace::new().host(0, 5, "a:b", &[]).open(), TestTrace::new().guest(0, 6, "a:b", &[]).open());
        let dir = TempDir::new().unwrap();
        let out = dir.path().join("both.strata");
        let join = |others: &[PathBuf]| join(first.path(), others, &[], &out);

        let failed = join(&[dir.path().join("missing")]);
        let is_left = std::fs::read_dir(dir.path()).unwrap().count();
        let joined = join(&[second.path().into()]).unwrap();
        let again = join(&[second.path().into()]);

        assert!(matches!((failed, is_left), (Err(JoinError::Read(_)), 0)));
        assert_eq!(Trace::open(&out).unwrap().manifest(), &joined.manifest);
        assert!(matches!(again, Err(JoinError::OneFile(OneFileError::Exists { .. }))), "{again:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn snapshots_of_another_hosts_clocks_say_whose_they_are() {
        let trace = |time: u64| TestTrace::new().host(0, time, "a:b", &[]).clocks(&[time].map(clock_snapshot));

        assert_eq!(clocks_of_both(trace(5), trace(6)), [(None, 5), (Some("trace-2".into()), 6)]);
    }

    #[test]
    fn snapshots_on_a_related_clock_have_its_times_and_its_error_too() {
        let mapped = clock_snapshot(10).on_clock(None, |ticks| ticks + 7, 100);

        assert!(mapped.readings().iter().all(|reading| (reading.ticks, reading.uncertainty_ns) == (17, 120)));
        assert_eq!(mapped.realtime.ns, clock_snapshot(10).realtime.ns);
    }
}
