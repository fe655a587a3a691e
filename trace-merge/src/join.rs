//! `strata merge`: two recordings become one, on the clock of the first. Recordings whose clocks are the same are put
//! together as they are; for others the relation comes from matched events, with a bound.

use crate::clock::{Clock, ClockEpoch, NS_PER_SECOND};
use crate::match_rule::{MatchError, MatchRule};
use crate::reader::{Damage, ReadError, Trace, TraceLayer};
use crate::session::{Layer, Session, SessionError, Vm};
use crate::writer::{LayerWriter, NewLayer, WriteError};
use clock_sync::convex_hull::{ClockRelation, HullError};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;
use uuid::Uuid;

/// Folder for the second recording's layers when the first has the same ones.
const SECOND: &str = "second";

/// Why two recordings were not merged.
#[derive(Debug, Error)]
pub enum JoinError {
    /// One cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Their clocks differ and no rule relates them.
    #[error(
        "the two traces have different clocks: say which events belong together, as in --match 'net:send before \
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
    /// There is something where the result is to go.
    #[error("'{}' exists and is not an empty folder: give -o a new one, or remove it", .0.display())]
    Exists(PathBuf),
    /// The result's folder cannot be made.
    #[error("cannot create '{}': check that its parent exists and may be written", .path.display())]
    Create {
        /// The folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A layer cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The description cannot be written.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// How two recordings were merged.
#[derive(Clone, Debug)]
pub struct Joined {
    /// What the result's `session.json` says.
    pub session: Session,
    /// How the second's clock relates to the first's; `None` when they are the same clock.
    pub relation: Option<ClockRelation>,
    /// Largest error of that relation over the second recording, ns.
    pub relation_bound_ns: u64,
    /// What of the two could not be read and is not in the result.
    pub damage: Damage,
}

/// Merges the recordings in `first` and `second` into the new folder `out`.
///
/// # Errors
/// When they cannot be read or related, or `out` cannot be written. Nothing is written before the clocks are related.
pub fn join(first: &Path, second: &Path, rules: &[MatchRule], out: &Path) -> Result<Joined, JoinError> {
    let (first, second) = (Trace::open(first)?, Trace::open(second)?);
    let relation = relate(&first, &second, rules)?;
    let relation_bound_ns = match &relation {
        Some(relation) => {
            let (begin, end) = span(&second);
            first.clock().ticks_to_ns(relation.bound_over(begin, end)).saturating_add(1)
        }
        None => 0,
    };
    create(out)?;
    let mut session = combined(&first, &second, relation.as_ref(), relation_bound_ns);
    let collides = collide(&first, &second);
    if collides {
        let host = second.session().host.hostname.clone();
        for vm in &mut session.vms[first.session().vms.len()..] {
            vm.host = Some(if host.is_empty() { SECOND.into() } else { host.clone() });
        }
    }
    let mut damage = Damage::default();
    for layer in first.layers() {
        let (copied, missed) = copy(layer, out, "", &session, |time| time)?;
        session.layers.push(copied);
        damage = damage.plus(&missed);
    }
    for layer in second.layers() {
        let folder = if collides { SECOND } else { "" };
        let map = |time| relation.as_ref().map_or(time, |relation| relation.reference_at(time));
        let (mut copied, missed) = copy(layer, out, folder, &session, map)?;
        if collides {
            copied.host = session.vms.last().and_then(|vm| vm.host.clone()).or_else(|| Some(SECOND.into()));
        }
        session.layers.push(copied);
        damage = damage.plus(&missed);
    }
    session.save(out)?;
    Ok(Joined { session, relation, relation_bound_ns, damage })
}

fn relate(first: &Trace, second: &Trace, rules: &[MatchRule]) -> Result<Option<ClockRelation>, JoinError> {
    if rules.is_empty() {
        return if first.clock().uuid == second.clock().uuid { Ok(None) } else { Err(JoinError::NoRule) };
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

fn create(out: &Path) -> Result<(), JoinError> {
    match fs::read_dir(out) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(JoinError::Exists(out.into())),
        },
        Err(_) if out.symlink_metadata().is_ok() => Err(JoinError::Exists(out.into())),
        Err(_) => fs::create_dir(out).map_err(|source| JoinError::Create { path: out.into(), source }),
    }
}

/// Whether both have a layer of the same place: then they are of two machines.
fn collide(first: &Trace, second: &Trace) -> bool {
    let place = |layer: &TraceLayer| layer.description.path.clone();
    first.layers().iter().any(|layer| second.layers().iter().any(|other| place(layer) == place(other)))
}

/// The description of both, without layers.
fn combined(first: &Trace, second: &Trace, relation: Option<&ClockRelation>, relation_bound_ns: u64) -> Session {
    let (one, two) = (first.session(), second.session());
    let collides = collide(first, second);
    let mut vms = one.vms.clone();
    for vm in &two.vms {
        if collides {
            vms.push(Vm { name: format!("{}-{SECOND}", vm.name), ..vm.clone() });
        } else if one.vm(&vm.name).is_none() {
            vms.push(vm.clone());
        }
    }
    let mut missing = one.missing.clone();
    missing.extend(two.missing.iter().filter(|layer| !one.missing.contains(layer)).cloned());
    let outcome = match (&one.outcome, &two.outcome) {
        (Some(one), Some(two)) if one == two => Some(one.clone()),
        (Some(one), Some(two)) => Some(format!("{one}; {two}")),
        _ => None,
    };
    Session {
        clock: combined_clock(&one.clock, &two.clock, relation, relation_bound_ns),
        vms,
        layers: Vec::new(),
        missing,
        outcome,
        ..one.clone()
    }
}

fn combined_clock(one: &Clock, two: &Clock, relation: Option<&ClockRelation>, relation_bound_ns: u64) -> Clock {
    let mut epochs = one.epochs.clone();
    let Some(relation) = relation else {
        epochs.extend(two.epochs.iter().cloned());
        let wider = if two.error_bound_ns > one.error_bound_ns { two } else { one };
        let (error_bound_ns, bound_derivation) = (wider.error_bound_ns, wider.bound_derivation.clone());
        return Clock { error_bound_ns, bound_derivation, epochs, ..one.clone() };
    };
    let rates = relation.rates();
    epochs.extend(two.epochs.iter().map(|epoch| ClockEpoch {
        from_ticks: relation.reference_at(epoch.from_ticks),
        bound_ns: epoch.bound_ns.saturating_add(one.error_bound_ns).saturating_add(relation_bound_ns),
        ..epoch.clone()
    }));
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
        epochs,
        ..one.clone()
    }
}

/// First clock's ticks per tick of the second, by their nominal rates.
#[allow(clippy::cast_precision_loss, reason = "to be shown in parts per million")]
fn one_per(one: &Clock, two: &Clock) -> f64 {
    one.frequency_hz.max(1) as f64 / two.frequency_hz.clamp(1, u64::MAX / NS_PER_SECOND) as f64
}

/// Copies the records of `layer` into `out`/`folder`, with their times mapped.
fn copy(
    layer: &TraceLayer,
    out: &Path,
    folder: &str,
    session: &Session,
    map: impl Fn(u64) -> u64,
) -> Result<(Layer, Damage), JoinError> {
    let description = &layer.description;
    let vm = description.vm.as_ref().map(|vm| if folder.is_empty() { vm.clone() } else { format!("{vm}-{SECOND}") });
    let new = NewLayer {
        kind: description.kind,
        vm,
        process: description.process.clone(),
        packet_size: description.packet_size,
    };
    let root = out.join(folder);
    let mut writer = LayerWriter::create(&root, session, new)?;
    writer.add_events(&description.events)?;
    let mut damage = Damage::default();
    for stream in &layer.streams {
        let cpu = stream.description.cpu_id;
        let mut records = layer.records(stream);
        for record in records.by_ref() {
            writer.record(cpu, map(record.time), record.schema.description().id, record.payload)?;
        }
        damage = damage.plus(&records.damage());
        let tail = records.tail();
        let of_session = stream.description.lost;
        let lost = if of_session.total() > tail.lost.total() { of_session } else { tail.lost };
        let rejected = stream.description.rejected_bytes.max(tail.rejected_bytes);
        writer.set_loss(cpu, lost, rejected, stream.description.corrupt);
    }
    writer.flush()?;
    let mut copied = writer.layer();
    if !folder.is_empty() {
        copied.path = format!("{folder}/{}", copied.path);
    }
    Ok((copied, damage))
}
