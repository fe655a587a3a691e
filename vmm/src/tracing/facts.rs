//! What is known of a recording besides its records: the session's description, kept up to date with what the guest and
//! the monitor tell.

use super::region::{EnabledEvents, TraceRegion, enabled_among, guest_text};
use super::selection::{Layer as SelectionLayer, Selection};
use super::vcpu_clocks::VcpuClocks;
use clock_sync::calibration::read_together;
use shared_ring::event::{EventDescription, class};
use shared_ring::layout::{AGENT_ABSENT, AgentState};
use std::collections::BTreeSet;
use std::mem::offset_of;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use trace_merge::session::{Guest, Layer, LayerKind, Missing, Session, SessionError};

/// Most readings of UTC that are kept.
const MAX_UTC_READINGS: usize = 128;

/// What is known of a recording.
pub struct Facts {
    /// The recording's folder.
    pub dir: PathBuf,
    /// What `session.json` says.
    pub session: Session,
    /// Name of the VM.
    pub vm: String,
    /// The region shared with the guest.
    pub region: Arc<TraceRegion>,
    /// Which events are wanted.
    pub selection: Selection,
    /// The guest kernel's events as its module's file tells them; empty when the host does not have that file.
    pub guest_events: Arc<[EventDescription]>,
    /// Host threads of the vCPUs, filled in as they start.
    pub vcpu_threads: Arc<Mutex<Vec<(u32, u32)>>>,
    /// The vCPUs' clocks.
    pub clocks: Arc<VcpuClocks>,
    /// Whether an agent was given to the guest; without one its layers are expected to stay empty.
    pub agent: bool,
    /// Where what is known is kept beside the region, for whoever recovers it.
    pub beside_region: Option<PathBuf>,
}

/// Why the guest's layers are missing when strata gave it no agent; true until the guest's own says hello.
pub const NO_AGENT: &str = "no agent was given to the guest, and it has not brought one";

impl Facts {
    /// The youngest time that a record may carry. One second of slack leaves it to `strata check` to judge a clock that
    /// is a little wrong; what lies further ahead would spoil the order of everything after it.
    #[must_use]
    pub fn latest(&self) -> u64 {
        self.clocks.time().now().saturating_add(self.session.clock.frequency_hz)
    }

    /// The bits that the guest's session gets for `events` of the agent's own registry, which is the truth about its ids,
    /// and for those that its module file promises and the registry does not tell yet: it is read while it is written,
    /// and what is wanted must not come and go meanwhile.
    #[must_use]
    pub fn enabled(&self, events: &[EventDescription]) -> EnabledEvents {
        enabled_guest_events(told_or_promised(events, &self.guest_events), &self.selection)
    }

    /// Takes over what the agent says about the guest and which threads run its vCPUs; `true` when that is new.
    pub fn look(&mut self) -> bool {
        let guest = self.note_guest();
        self.note_threads() || guest
    }

    /// Takes over the vCPUs' epochs, and relates the clock to UTC again.
    fn note_clocks(&mut self) {
        let clock = &mut self.session.clock;
        clock.epochs = self.clocks.epochs();
        let worst = clock.epochs.iter().map(|epoch| epoch.bound_ns).max().unwrap_or(0);
        clock.error_bound_ns = clock.error_bound_ns.max(worst);
        let time = self.clocks.time();
        let reading = read_together(|| time.now(), clock.frequency_hz);
        if clock.utc_readings.len() >= MAX_UTC_READINGS {
            // Half of them say as much, over the same time.
            let mut index = 0;
            clock.utc_readings.retain(|_| {
                index += 1;
                index % 2 == 1
            });
        }
        clock.utc_readings.push(reading.into());
    }

    fn note_guest(&mut self) -> bool {
        let agent = self.region.layout().agent;
        let memory = self.region.memory();
        let Some(vm) = self.session.vms.iter_mut().find(|vm| vm.name == self.vm) else { return false };
        if let Some(guest) = &mut vm.guest {
            let refused = memory.load(agent + offset_of!(AgentState, processes_refused));
            let over_quota = memory.load(agent + offset_of!(AgentState, processes_over_quota));
            let new = (refused, over_quota) != (guest.processes_refused, guest.processes_over_quota);
            (guest.processes_refused, guest.processes_over_quota) = (refused, over_quota);
            return new;
        }
        if memory.load(agent + offset_of!(AgentState, state)) == AGENT_ABSENT {
            return false;
        }
        let mut release = [0; 64];
        memory.read(agent + offset_of!(AgentState, kernel_release), &mut release);
        let agent_abi = memory.load(agent + offset_of!(AgentState, abi_version));
        let kernel = guest_text(&release);
        vm.guest = Some(Guest { kernel, agent_abi, processes_refused: 0, processes_over_quota: 0 });
        // It has come up after all: the guest has brought its own.
        self.session.missing.retain(|missing| missing.reason != NO_AGENT);
        true
    }

    fn note_threads(&mut self) -> bool {
        let Some(vm) = self.session.vms.iter_mut().find(|vm| vm.name == self.vm) else { return false };
        let mut threads = self.vcpu_threads.lock().unwrap_or_else(PoisonError::into_inner).clone();
        threads.sort_unstable();
        let threads: Vec<i32> = threads.into_iter().map(|(_, tid)| tid.cast_signed()).collect();
        let new = vm.vcpu_threads != threads;
        vm.vcpu_threads = threads;
        new
    }

    /// What the recording lacks of applications that had no slot to record into, so far.
    #[must_use]
    pub fn missing_processes(&self) -> Option<Missing> {
        self.session.vm(&self.vm)?.guest.as_ref()?.missing_processes()
    }

    /// What the recording does not have, now that the guest has ended and `refused` of its processes were too many.
    #[must_use]
    pub fn missing_at_end(&self, refused: u64) -> Vec<Missing> {
        let mut missing = Vec::new();
        let guest_said_hello = self.session.vms.iter().any(|vm| vm.name == self.vm && vm.guest.is_some());
        if self.agent && !guest_said_hello {
            missing.extend([LayerKind::GuestKernel, LayerKind::GuestUser].map(|layer| Missing {
                layer,
                reason: "the agent was given to the guest, but did not come up".into(),
                fix: "look for 'strata' in the guest's console output".into(),
            }));
        }
        if refused > 0 {
            missing.push(Missing {
                layer: LayerKind::GuestUser,
                reason: format!("{refused} processes more than a recording keeps apart"),
                fix: "trace fewer short-lived processes".into(),
            });
        }
        missing.extend(self.missing_processes());
        missing
    }

    /// Writes `session.json` with `layers`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save(&mut self, layers: Vec<Layer>) -> Result<(), SessionError> {
        self.session.layers = layers;
        self.note_clocks();
        self.session.save(&self.dir)
    }

    /// Writes what is known beside the region.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save_beside_region(&self) -> Result<(), SessionError> {
        let Some(folder) = &self.beside_region else { return Ok(()) };
        Session { layers: Vec::new(), ..self.session.clone() }.save(folder)
    }
}

/// The events that are `told`, and those `promised` whose ids are not among them.
fn told_or_promised<'a>(
    told: &'a [EventDescription],
    promised: &'a [EventDescription],
) -> impl Iterator<Item = &'a EventDescription> {
    let ids: BTreeSet<u16> = told.iter().map(|event| event.id).collect();
    told.iter().chain(promised.iter().filter(move |event| !ids.contains(&event.id)))
}

/// The bits for `events` of the guest's kernel that `selection` wants, and for applications if it wants any of theirs.
#[must_use]
pub fn enabled_guest_events<'a>(
    events: impl IntoIterator<Item = &'a EventDescription>,
    selection: &Selection,
) -> EnabledEvents {
    let mut enabled = enabled_among(events, |name| selection.includes(SelectionLayer::Guest, name));
    if selection.includes_applications() {
        enabled.class_mask |= 1 << class::USER;
    }
    enabled
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: u16, name: &str) -> EventDescription {
        EventDescription { id, class: class::SCHED, name: name.into(), fields: Vec::new() }
    }

    #[test]
    fn half_read_registry_takes_no_promised_event_away() {
        let promised = [event(64, "a:first"), event(65, "a:second")];

        let bits = enabled_guest_events(
            told_or_promised(&promised[..1], &promised),
            &Selection::parse("guest:a:second").unwrap(),
        );

        assert_eq!(bits.events[1], 1 << 1);
    }

    #[test]
    fn registry_is_the_truth_about_its_ids() {
        let (told, promised) = ([event(64, "a:told")], [event(64, "a:promised")]);

        let names: Vec<_> = told_or_promised(&told, &promised).map(|event| event.name.as_str()).collect();

        assert_eq!(names, ["a:told"]);
    }
}
