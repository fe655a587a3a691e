//! Triggers: what is watched for while the VM runs, and what follows when it happens: of a flight recorder a snapshot,
//! in discard mode a mark in the trace, which has everything already.
//!
//! Drained records, and those that are new in the rings, are shown to a [`watch`] with every poll of the recorder, so
//! that a trigger fires some tens of milliseconds after its record was made. A little later, so that what follows is
//! there too, all layers of a flight recorder are written into a new folder beside the recording's. What else is to
//! happen is up to whoever waits for it (`strata ctl VM wait-trigger`): the process of a VM starts no programs.

pub mod expression;
pub mod host_load;
mod silence;
pub mod tail;
mod vcpus;
pub mod watch;

use crate::control::protocol::TriggerStatus;
use crate::latest::Latest;
use crate::selection::Selection;
use expression::{Condition, RecordedLayer, Trigger, TriggerError};
use host_load::HostLoad;
use shared_ring::event::EventDescription;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use strata_clock::HostTime;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::Missing;
use strata_recording::reader::StreamRecord;
use strata_recording::schema::SchemaTable;
use strata_recording::text::terminal::foreign::Foreign;
use tail::Tail;
use thiserror::Error;
use watch::{Fired, Watch};

/// Snapshots of one run at most: a trigger that fires for ever does not fill the disk.
pub const MAX_SNAPSHOTS: usize = 100;
/// Triggers that are armed at a time, at most: each is a part of what a record costs.
pub const MAX_TRIGGERS: usize = 64;
/// How long is recorded on before a snapshot by default.
pub const AFTER: Duration = Duration::from_millis(100);
/// After how long a trigger may lead to a snapshot again that could not be taken.
const AGAIN: Duration = Duration::from_secs(10);

/// Why a trigger is not armed, or not removed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ArmError {
    /// It is not a trigger, or names what there is not.
    #[error(transparent)]
    Trigger(#[from] TriggerError),
    /// It is armed already.
    #[error("'{0}' is armed already; `strata ctl VM trigger list` lists what is")]
    Armed(String),
    /// There are enough.
    #[error("{MAX_TRIGGERS} triggers are armed, which is the most: remove one first")]
    TooMany,
    /// A time that is too long.
    #[error("a trigger's times are up to {} ms", MAX_TIME.as_millis())]
    Time,
    /// No trigger has the number or the expression.
    #[error("no trigger is '{wanted}'{}", armed(.known))]
    Unknown {
        /// What was given.
        wanted: String,
        /// Those that are armed: number and expression.
        known: Vec<(usize, String)>,
    },
}

/// Longest time between two snapshots, or until one.
const MAX_TIME: Duration = Duration::from_secs(365 * 24 * 3600);

fn armed(known: &[(usize, String)]) -> String {
    if known.is_empty() {
        return "; none is armed".into();
    }
    let known: Vec<_> = known.iter().map(|(number, text)| format!("{number} ({text})")).collect();
    format!("; armed are {}", known.join(", "))
}

/// What a user asks to be watched for.
#[derive(Clone, Debug, Default)]
pub struct TriggerRequest {
    /// The triggers; none, and nothing is watched for.
    pub triggers: Vec<Trigger>,
    /// How long after a snapshot a trigger may lead to another one; without it, each leads to one.
    pub every: Option<Duration>,
    /// How long is recorded on before the snapshot.
    pub after: Duration,
}

impl TriggerRequest {
    /// Checks them against the events of the layers that are `known`; `selection` is recorded of them. A layer without
    /// events is not recorded: `missing` says what to do about that.
    ///
    /// # Errors
    /// When one names an event or a field that there is not, or an event or applications that are not recorded, or needs
    /// what no layer records.
    pub fn check(
        &self,
        known: &[(LayerKind, &[EventDescription])],
        selection: &Selection,
        missing: &[Missing],
    ) -> Result<(), TriggerError> {
        let recorded = |&(layer, events): &(LayerKind, &[EventDescription])| {
            let fix = missing.iter().find(|missing| missing.layer == layer).map(|missing| missing.fix.as_str());
            let absent = events.is_empty().then(|| fix.unwrap_or("choose events of it with --events"));
            let events = events.iter().filter(|event| selection.includes(layer, &event.name)).cloned().collect();
            RecordedLayer { layer, events, absent }
        };
        let recorded: Vec<RecordedLayer<'_>> = known.iter().map(recorded).collect();
        self.triggers.iter().try_for_each(|trigger| {
            trigger.check_applications(selection)?;
            trigger.check(&recorded)
        })
    }

    /// Checks them against this host, whose load is known or not.
    ///
    /// # Errors
    /// When one is on the host's load, and that is not told.
    pub fn check_host(&self, reports_load: bool) -> Result<(), TriggerError> {
        self.triggers.iter().try_for_each(|trigger| check_host(trigger, reports_load))
    }
}

fn check_host(trigger: &Trigger, reports_load: bool) -> Result<(), TriggerError> {
    let needs_load = matches!(trigger.condition, Condition::HostLoad { .. });
    if needs_load && !reports_load { Err(TriggerError::NoHostLoad) } else { Ok(()) }
}

/// What happens when a trigger fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consequence {
    /// A snapshot of the flight recorder.
    Snapshot,
    /// It is reported and marked: the trace has everything.
    Mark,
}

/// Triggers that are armed, or can be.
pub struct Triggers {
    watch: Watch,
    tails: Vec<Tail>,
    host: SchemaTable,
    consequence: Consequence,
    load: Option<HostLoad>,
    /// In the order of their numbers.
    armed: Vec<Armed>,
    /// Number of the trigger that was armed last.
    last_number: usize,
    due: Option<Due>,
    /// Snapshots that were taken.
    snapshots: usize,
}

/// A trigger, and what has become of it.
#[derive(Clone, Debug)]
struct Armed {
    number: usize,
    trigger: Trigger,
    every: Option<Duration>,
    after: Duration,
    fired: u64,
    last: Option<String>,
    snapshots: Vec<PathBuf>,
    marks: u64,
    /// When it led to a snapshot or a mark last.
    taken: Option<Instant>,
    /// Whether that snapshot could not be taken: it is tried again.
    has_failed: bool,
    failure: Option<String>,
}

/// A snapshot that is to be taken.
#[derive(Clone, Debug)]
struct Due {
    at: Instant,
    /// The numbers of the triggers that it is taken for, and what happened first.
    triggers: Vec<usize>,
    why: String,
}

impl Triggers {
    /// No triggers yet, in records of the host's kernel of the types `host`, which it is shown, and in the rings of
    /// `tails`, of a clock of `ticks_per_second`. `load` tells the host's load, where that can be had.
    #[must_use]
    pub fn new(
        consequence: Consequence,
        host: SchemaTable,
        tails: Vec<Tail>,
        load: Option<HostLoad>,
        ticks_per_second: u64,
    ) -> Self {
        let watch = Watch::new(ticks_per_second);
        Self { watch, tails, host, consequence, load, armed: Vec::new(), last_number: 0, due: None, snapshots: 0 }
    }

    /// Arms `trigger`, for what happens from `since` on, ticks; returns its number. It may lead to another snapshot
    /// `every` so often, and to each a time `after` it has fired.
    ///
    /// # Errors
    /// When it is armed already, or there are too many, or the host does not tell what it is about.
    pub fn arm(
        &mut self,
        trigger: Trigger,
        every: Option<Duration>,
        after: Duration,
        since: u64,
    ) -> Result<usize, ArmError> {
        check_host(&trigger, self.load.is_some())?;
        let text = trigger.to_string();
        if self.armed.iter().any(|armed| armed.trigger.to_string() == text) {
            return Err(ArmError::Armed(text));
        }
        if self.armed.len() >= MAX_TRIGGERS {
            return Err(ArmError::TooMany);
        }
        if after.max(every.unwrap_or_default()) > MAX_TIME {
            return Err(ArmError::Time);
        }
        self.last_number += 1;
        let number = self.last_number;
        self.watch.arm(number, trigger.clone(), since);
        self.armed.push(Armed {
            number,
            trigger,
            every,
            after,
            fired: 0,
            last: None,
            snapshots: Vec::new(),
            marks: 0,
            taken: None,
            has_failed: false,
            failure: None,
        });
        Ok(number)
    }

    /// Removes the trigger that `wanted` is the number or the expression of; returns its expression. A snapshot that is
    /// due for it alone is not taken.
    ///
    /// # Errors
    /// When there is none.
    pub fn disarm(&mut self, wanted: &str) -> Result<String, ArmError> {
        let is_wanted = |armed: &Armed| armed.number.to_string() == wanted || armed.trigger.to_string() == wanted;
        let Some(place) = self.armed.iter().position(is_wanted) else {
            let known = self.armed.iter().map(|armed| (armed.number, armed.trigger.to_string())).collect();
            return Err(ArmError::Unknown { wanted: wanted.into(), known });
        };
        let Armed { number, trigger, .. } = self.armed.remove(place);
        self.watch.disarm(number);
        if let Some(due) = &mut self.due {
            due.triggers.retain(|&of| of != number);
        }
        self.due.take_if(|due| due.triggers.is_empty());
        Ok(trigger.to_string())
    }

    /// Whether any is armed.
    #[must_use]
    pub const fn is_armed(&self) -> bool {
        !self.armed.is_empty()
    }

    /// Whether records of `layer` are to be shown.
    #[must_use]
    pub fn looks_at(&self, layer: LayerKind) -> bool {
        self.watch.looks_at(layer)
    }

    /// What is watched for: it is shown the records of rings that are drained.
    pub const fn watch(&mut self) -> &mut Watch {
        &mut self.watch
    }

    /// The VM's vCPUs have these threads.
    pub fn set_vcpus(&mut self, threads: &[(u32, u32)]) {
        self.watch.set_vcpus(threads.iter().map(|&(vcpu, tid)| (vcpu, tid.cast_signed())));
    }

    /// Other records of the guest's kernel are made from now on than so far, or none.
    pub fn forget_guest(&mut self) {
        self.watch.forget(LayerKind::GuestKernel);
    }

    /// Records of `layer` that come with this poll are not all there.
    pub fn lost(&mut self, layer: LayerKind) {
        self.watch.lost(layer);
    }

    /// Looks at what is new in the rings.
    pub fn look(&mut self, latest: Latest<'_>) {
        for tail in &mut self.tails {
            let layer = tail.layer();
            let is_looked_at = self.watch.looks_at(layer);
            if is_looked_at && tail.poll(latest, &mut |cpu, record| self.watch.record(layer, cpu, record)) {
                self.watch.lost(layer);
            }
        }
    }

    /// Looks at the host's load, if that is a second ago and matters.
    pub fn look_at_load(&mut self, now: Instant, time: HostTime) {
        if !self.armed.iter().any(|armed| matches!(armed.trigger.condition, Condition::HostLoad { .. })) {
            return;
        }
        if let Some(percent) = self.load.as_mut().and_then(|load| load.percent(now)) {
            self.watch.host_load(percent, time.now());
        }
    }

    /// Looks at a record of the host's kernel.
    pub fn host_record(&mut self, cpu: u32, time: u64, id: u16, payload: &[u8]) {
        if let Some(schema) = self.host.get(id) {
            let record = StreamRecord { time, schema, payload, packet: 0, after_gap: false };
            self.watch.record(LayerKind::HostKernel, cpu, &record);
        }
    }

    /// Everything that was recorded up to `until`, ticks, has been looked at. Returns what has happened that leads to a
    /// snapshot or a mark, a line for each trigger with its number.
    pub fn settle(&mut self, until: u64, now: Instant) -> Vec<(usize, String)> {
        self.watch.settle(until);
        let (fired, beyond) = self.watch.take_fired();
        for armed in &mut self.armed {
            armed.fired = armed.fired.saturating_add(beyond.get(&armed.number).copied().unwrap_or(0));
        }
        fired.into_iter().filter_map(|fired| self.note(fired, now)).collect()
    }

    fn note(&mut self, Fired { trigger: number, what, .. }: Fired, now: Instant) -> Option<(usize, String)> {
        let armed = self.armed.iter_mut().find(|armed| armed.number == number)?;
        armed.fired = armed.fired.saturating_add(1);
        armed.last = Some(what.clone());
        let every = armed.every.or_else(|| armed.has_failed.then_some(AGAIN));
        let is_rested = match (armed.taken, every) {
            (None, _) => true,
            (Some(taken), Some(every)) => now.duration_since(taken) >= every,
            (Some(_), None) => false,
        };
        if !is_rested {
            return None;
        }
        if self.consequence == Consequence::Snapshot && self.snapshots >= MAX_SNAPSHOTS {
            armed.failure = Some(format!("{MAX_SNAPSHOTS} snapshots were taken, which is the most"));
            return None;
        }
        armed.taken = Some(now);
        let why = format!("trigger '{}': {what}", armed.trigger);
        match self.consequence {
            Consequence::Mark => armed.marks = armed.marks.saturating_add(1),
            Consequence::Snapshot => {
                let at = now + armed.after;
                let due = self.due.get_or_insert_with(|| Due { at, triggers: Vec::new(), why: why.clone() });
                if !due.triggers.contains(&number) {
                    due.triggers.push(number);
                }
            }
        }
        Some((number, why))
    }

    /// Whether and why a snapshot is to be taken now.
    #[must_use]
    pub fn due(&self, now: Instant) -> Option<&str> {
        self.due.as_ref().filter(|due| due.at <= now).map(|due| due.why.as_str())
    }

    /// What happened that leads to a snapshot which is not taken yet.
    #[must_use]
    pub fn untaken(&self) -> Option<&str> {
        self.due.as_ref().map(|due| due.why.as_str())
    }

    /// The snapshot that was due is in this folder, or could not be taken.
    pub fn taken(&mut self, result: Result<PathBuf, String>) {
        self.snapshots += usize::from(result.is_ok());
        let Some(due) = self.due.take() else { return };
        for armed in self.armed.iter_mut().filter(|armed| due.triggers.contains(&armed.number)) {
            armed.has_failed = result.is_err();
            match &result {
                Ok(folder) => armed.snapshots.push(folder.clone()),
                Err(why) => armed.failure = Some(why.clone()),
            }
        }
    }

    /// What `strata ctl VM status` says about them.
    #[must_use]
    pub fn status(&self) -> Vec<TriggerStatus> {
        let status = |armed: &Armed| TriggerStatus {
            number: armed.number,
            trigger: armed.trigger.to_string().into(),
            fired: armed.fired,
            due: self.due.as_ref().is_some_and(|due| due.triggers.contains(&armed.number)),
            last: armed.last.clone().map(Foreign::from),
            marks: armed.marks,
            snapshots: armed.snapshots.iter().cloned().map(Foreign::from).collect(),
            failure: armed.failure.clone().map(Foreign::from),
        };
        self.armed.iter().map(status).collect()
    }
}

#[cfg(test)]
mod tests;
