//! Triggers: what is watched for in a flight recorder while the VM runs, and the snapshot that is taken when it happens.
//!
//! Drained records, and those that are new in the rings, are shown to a [`watch`] with every poll of the recorder, so that
//! a trigger fires some tens of milliseconds after its record was made. A little later, so that what follows is there too,
//! all layers are written into a new folder beside the recording's. What else is to happen is up to whoever waits for it
//! (`strata ctl VM wait-trigger`): the process of a VM starts no programs.

pub mod expression;
mod silence;
pub mod tail;
pub mod watch;

use crate::control::protocol::TriggerStatus;
use crate::tracing::ring_layer::Latest;
use crate::tracing::selection::Selection;
use expression::{Trigger, TriggerError};
use shared_ring::event::EventDescription;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tail::Tail;
use trace_merge::layer::LayerKind;
use trace_merge::reader::StreamRecord;
use trace_merge::schema::SchemaTable;
use watch::{Fired, Watch};

/// Snapshots of one run at most: a trigger that fires for ever does not fill the disk.
pub const MAX_SNAPSHOTS: usize = 100;

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
    /// Checks them against the events of `layer`, `known`, of which `selection` is recorded.
    ///
    /// # Errors
    /// When one names an event or a field that there is not, or an event that is not recorded.
    pub fn check(
        &self,
        layer: LayerKind,
        known: &[EventDescription],
        selection: &Selection,
    ) -> Result<(), TriggerError> {
        let recorded: Vec<EventDescription> =
            known.iter().filter(|event| selection.includes(layer, &event.name)).cloned().collect();
        self.triggers.iter().try_for_each(|trigger| trigger.check(layer, &recorded))
    }
}

/// Triggers that are armed.
pub struct Triggers {
    watch: Watch,
    tails: Vec<Tail>,
    host: SchemaTable,
    every: Option<Duration>,
    after: Duration,
    states: Vec<State>,
    due: Option<Due>,
    /// Snapshots that were tried.
    snapshots: usize,
}

/// What has become of a trigger.
#[derive(Clone, Debug, Default)]
struct State {
    fired: u64,
    last: Option<String>,
    snapshots: Vec<PathBuf>,
    /// When it led to a snapshot last.
    taken: Option<Instant>,
    failure: Option<String>,
}

/// A snapshot that is to be taken.
#[derive(Clone, Debug)]
struct Due {
    at: Instant,
    /// The triggers that it is taken for, and what happened first.
    triggers: Vec<usize>,
    why: String,
}

impl Triggers {
    /// What `request` asks for, in records of the host's kernel of the types `host` and in the rings of `tails`, of a clock
    /// of `ticks_per_second`.
    #[must_use]
    pub fn new(request: TriggerRequest, host: SchemaTable, tails: Vec<Tail>, ticks_per_second: u64) -> Self {
        let TriggerRequest { triggers, every, after } = request;
        let states = vec![State::default(); triggers.len()];
        let watch = Watch::new(triggers, ticks_per_second);
        let tails = tails.into_iter().filter(|tail| watch.looks_at(tail.layer())).collect();
        Self { watch, tails, host, every, after, states, due: None, snapshots: 0 }
    }

    /// The VM's vCPUs have these threads.
    pub fn set_vcpus(&mut self, threads: &[(u32, u32)]) {
        self.watch.set_vcpus(threads.iter().map(|&(vcpu, tid)| (vcpu, tid.cast_signed())));
    }

    /// The guest's kernel records no more until it is asked to.
    pub fn guest_is_off(&mut self) {
        self.watch.forget_guest();
    }

    /// Looks at what is new in the rings.
    pub fn look(&mut self, latest: Latest<'_>) {
        self.tails.iter_mut().for_each(|tail| tail.poll(latest, &mut self.watch));
    }

    /// Looks at a record of the host's kernel.
    pub fn host_record(&mut self, cpu: u32, time: u64, id: u16, payload: &[u8]) {
        if let Some(schema) = self.host.get(id) {
            let record = StreamRecord { time, schema, payload, packet: 0, after_gap: false };
            self.watch.record(LayerKind::HostKernel, cpu, &record);
        }
    }

    /// Everything that was recorded up to `until`, ticks, has been looked at. Returns what has happened that leads to a
    /// snapshot, a line for each trigger.
    pub fn settle(&mut self, until: u64, now: Instant) -> Vec<(usize, String)> {
        self.watch.settle(until);
        let (fired, beyond) = self.watch.take_fired();
        for (state, beyond) in self.states.iter_mut().zip(beyond) {
            state.fired = state.fired.saturating_add(beyond);
        }
        fired.into_iter().filter_map(|fired| self.note(fired, now)).collect()
    }

    fn note(&mut self, Fired { trigger, what, .. }: Fired, now: Instant) -> Option<(usize, String)> {
        let text = self.watch.triggers().get(trigger)?.to_string();
        let state = self.states.get_mut(trigger)?;
        state.fired = state.fired.saturating_add(1);
        state.last = Some(what.clone());
        let is_rested = match (state.taken, self.every) {
            (None, _) => true,
            (Some(taken), Some(every)) => now.duration_since(taken) >= every,
            (Some(_), None) => false,
        };
        if !is_rested || self.snapshots >= MAX_SNAPSHOTS {
            return None;
        }
        state.taken = Some(now);
        let why = format!("trigger '{text}': {what}");
        let at = now + self.after;
        let due = self.due.get_or_insert_with(|| Due { at, triggers: Vec::new(), why: why.clone() });
        due.triggers.push(trigger);
        Some((trigger, why))
    }

    /// Whether and why a snapshot is to be taken now.
    #[must_use]
    pub fn due(&self, now: Instant) -> Option<&str> {
        self.due.as_ref().filter(|due| due.at <= now).map(|due| due.why.as_str())
    }

    /// The snapshot that was due is in this folder, or could not be taken.
    pub fn taken(&mut self, result: Result<PathBuf, String>) {
        self.snapshots += 1;
        let Some(due) = self.due.take() else { return };
        for trigger in due.triggers {
            let Some(state) = self.states.get_mut(trigger) else { continue };
            match &result {
                Ok(folder) => state.snapshots.push(folder.clone()),
                Err(why) => state.failure = Some(why.clone()),
            }
        }
    }

    /// What `strata ctl VM status` says about them.
    #[must_use]
    pub fn status(&self) -> Vec<TriggerStatus> {
        let states = self.watch.triggers().iter().zip(&self.states).enumerate();
        let status = |(number, (trigger, state)): (usize, (&Trigger, &State))| TriggerStatus {
            trigger: trigger.to_string(),
            fired: state.fired,
            due: self.due.as_ref().is_some_and(|due| due.triggers.contains(&number)),
            last: state.last.clone(),
            snapshots: state.snapshots.clone(),
            failure: state.failure.clone(),
        };
        states.map(status).collect()
    }
}

#[cfg(test)]
mod tests;
