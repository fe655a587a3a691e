//! What a session is watched for, and what it does when a trigger fires.

use super::{Session, SessionError, chain};
use crate::session::recording::Recording;
use crate::trigger::expression::Trigger;
use crate::trigger::{AFTER, ArmError, TriggerRequest, Triggers};
use crate::vmm_events::EVENTS;
use shared_ring::event::EventDescription;
use std::path::PathBuf;
use std::sync::PoisonError;
use std::time::{Duration, Instant};
use strata_recording::files::trace_folder::free_snapshot;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::SNAPSHOT;

impl Session {
    /// Whether it is watched for triggers.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.triggers.as_ref().is_some_and(Triggers::is_armed)
    }

    /// Judges what was recorded up to `until`, ticks, if that has all been looked at, else events alone; tells and
    /// marks the triggers that fire.
    pub(super) fn report_triggers(&mut self, until: Option<u64>) {
        let Some(triggers) = self.triggers.as_mut().filter(|triggers| triggers.is_armed()) else { return };
        if !self.active {
            triggers.forget_guest();
        }
        let now = Instant::now();
        triggers.look_at_load(now, self.recording.clocks.time());
        let vmm = self.recording.guest.as_ref().and_then(|guest| guest.vmm.as_deref());
        for (trigger, what) in triggers.settle(until.unwrap_or(0), now) {
            (self.notify)(&what);
            vmm.into_iter().for_each(|vmm| vmm.triggered(trigger));
        }
    }

    /// Tells the triggers that fire up to `until`, and takes the snapshot that is due.
    pub(super) fn act_on_triggers(&mut self, until: Option<u64>) {
        self.report_triggers(until);
        let due = self.triggers.as_ref().and_then(|triggers| triggers.due(Instant::now()));
        if let Some(why) = due.map(ToOwned::to_owned) {
            let taken = self.snapshot_for(&why);
            match &taken {
                Ok(folder) => (self.notify)(&format!("snapshot in {}", folder.display())),
                Err(problem) => (self.notify)(&format!("no snapshot: {problem}; recording goes on")),
            }
            self.triggers.iter_mut().for_each(|triggers| triggers.taken(taken.clone()));
        }
    }

    /// Watches for the trigger `expression` from now on; returns its number. It may lead to another snapshot, or mark,
    /// `every` so often, and to a snapshot a time `after` it has fired.
    ///
    /// # Errors
    /// When it is not a trigger, or about what is not recorded, or cannot be armed.
    pub fn arm(
        &mut self,
        expression: &str,
        every: Option<Duration>,
        after: Option<Duration>,
    ) -> Result<usize, SessionError> {
        let trigger = Trigger::parse(expression).map_err(ArmError::from)?;
        let request = TriggerRequest { triggers: vec![trigger.clone()], ..TriggerRequest::default() };
        let known = LayerKind::ALL.into_iter().filter_map(|layer| Some((layer, self.known_events(layer)?)));
        let known: Vec<(LayerKind, Vec<EventDescription>)> = known.collect();
        let known: Vec<_> = known.iter().map(|(layer, events)| (*layer, events.as_slice())).collect();
        let missing = &self.recording.manifest.missing;
        request.check(&known, &self.recording.selection, missing).map_err(ArmError::from)?;
        let now = self.recording.clocks.time().now();
        let Some(triggers) = &mut self.triggers else { return Err(SessionError::NotServed) };
        Ok(triggers.arm(trigger, every, after.unwrap_or(AFTER), now)?)
    }

    /// Watches no more for the trigger of this number or expression, which is returned.
    ///
    /// # Errors
    /// When there is none.
    pub fn disarm(&mut self, wanted: &str) -> Result<String, SessionError> {
        let Some(triggers) = &mut self.triggers else { return Err(SessionError::NotServed) };
        Ok(triggers.disarm(wanted)?)
    }

    /// The events of `layer`, where they are all known by now.
    fn known_events(&self, layer: LayerKind) -> Option<Vec<EventDescription>> {
        let guest = self.recording.guest.as_ref();
        match layer {
            LayerKind::HostKernel => Some(self.layers.host_events()),
            LayerKind::Vmm => Some(match guest.and_then(|guest| guest.vmm.as_ref()) {
                Some(_) => EVENTS.iter().map(EventDescription::from).collect(),
                None => Vec::new(),
            }),
            LayerKind::GuestKernel => match guest {
                None => Some(Vec::new()),
                Some(guest) if !guest.events.is_empty() => Some(guest.events.to_vec()),
                Some(_) => Some(self.layers.kernel_events().to_vec()).filter(|events| !events.is_empty()),
            },
            LayerKind::GuestUser => None,
        }
    }

    /// Takes a snapshot because of a trigger; its folder, or why there is none.
    fn snapshot_for(&mut self, why: &str) -> Result<PathBuf, String> {
        let folder = self.recording.dir.as_deref().and_then(|dir| free_snapshot(dir, "trigger"));
        let folder = folder.ok_or("there are too many folders of earlier ones: remove some")?;
        self.snapshot_as(&folder, &format!("{SNAPSHOT}, by {why}")).map_err(|error| chain(&error))?;
        Ok(folder)
    }
}

/// The triggers, if any is armed, which know the vCPUs of `recording` by now.
pub(super) fn armed<'t>(triggers: &'t mut Option<Triggers>, recording: &Recording) -> Option<&'t mut Triggers> {
    let triggers = triggers.as_mut().filter(|triggers| triggers.is_armed())?;
    triggers.set_vcpus(recording.vcpu_threads.lock().unwrap_or_else(PoisonError::into_inner).current());
    Some(triggers)
}
