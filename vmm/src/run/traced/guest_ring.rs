//! The ring of a guest without an agent: read at snapshots and when the guest has ended.

use crate::agentless::{Agentless, Collected, Guest, HostReading, READ_AT_END};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use strata_clock::guest_tsc::KvmClock;
use strata_clock::{HostClock, HostTime};
use strata_machine::{AtEnd, MachineControl};
use strata_recorder::guest_symbols::GuestSymbols;
use strata_recorder::session::recording::{AtCompletion, AtSnapshot};
use strata_recording::files::reserve::Reserve;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Manifest, ManifestError, Missing};
use strata_recording::writer::Rotation;
use vm_memory::GuestMemoryMmap;

/// What is needed to read the ring of a guest without an agent.
pub(in crate::run) struct GuestRing {
    agentless: Agentless,
    /// Those of the guest's kernel.
    symbols: Arc<GuestSymbols>,
    begin: HostReading,
    /// What the trace clock counts, and the rate of the host's TSC.
    clock: (HostTime, u64),
}

/// What was read.
pub(in crate::run) type CollectedRing = Rc<RefCell<Option<Collected>>>;

impl GuestRing {
    /// That of a guest which `agentless` is about, and which has not begun to run.
    pub(in crate::run) fn new(agentless: Agentless, symbols: Arc<GuestSymbols>, host: &HostClock) -> Self {
        Self { agentless, symbols, begin: HostReading::now(), clock: (host.time, host.frequency) }
    }

    fn collect(&self, guest: (&GuestMemoryMmap, Guest), kvm: impl FnOnce() -> Option<KvmClock>) -> Collected {
        let collected = self.agentless.collect(guest, kvm, &self.begin, self.clock);
        collected.schedule_at().into_iter().for_each(|address| self.symbols.report(address));
        collected
    }

    /// What reads it when the guest has ended, and where it is then.
    pub(in crate::run) fn at_end(self: &Arc<Self>) -> (AtEnd, CollectedRing) {
        let collected = CollectedRing::default();
        let (ring, filled) = (Arc::clone(self), Rc::clone(&collected));
        let read = move |memory: &GuestMemoryMmap, kvm: Option<KvmClock>| {
            let guest = (memory, Guest::Stopped);
            *filled.borrow_mut() = Some(ring.collect(guest, || kvm));
        };
        (Box::new(read), collected)
    }

    /// What reads it out of the running guest of `machine`, the VM `name`, and adds it to a snapshot.
    pub(in crate::run) fn at_snapshot(self: &Arc<Self>, machine: MachineControl, name: &str) -> AtSnapshot {
        let (ring, name) = (Arc::clone(self), name.to_owned());
        Box::new(move |dir: &Path| {
            // The guest's memory is not held any longer than this takes.
            let collected = machine.guest().map(|guest| {
                let memory = (guest.memory(), Guest::Running);
                ring.collect(memory, || guest.kvm_clock())
            });
            collected.map_or_else(|| add_that_it_does_not_run(dir.into()), |it| add(it, dir.into(), name.clone()))
        })
    }
}

/// What adds the layer of the guest's kernel, of what was `collected` of the VM `name`, to the recording `dir`.
pub(in crate::run) fn add_guest_ring(collected: &CollectedRing, dir: PathBuf, name: String) -> Option<AtCompletion> {
    Some(add(collected.borrow_mut().take()?, dir, name))
}

fn add(collected: Collected, dir: PathBuf, name: String) -> AtCompletion {
    Box::new(move |mut manifest: Manifest, rotation: Option<&Rotation>| {
        // What keeps the layer from being had is noted, and the others stay.
        let written = collected.write(&dir, &name, &mut manifest, rotation);
        save(&dir, &mut manifest, rotation)?;
        written?;
        Ok(manifest)
    })
}

/// Writes `manifest` for the last time, into the recording `dir`, which keeps within the size of `rotation`, if there
/// is one.
fn save(dir: &Path, manifest: &mut Manifest, rotation: Option<&Rotation>) -> Result<(), ManifestError> {
    let Some(rotation) = rotation else { return manifest.save(dir) };
    let mut reserve = Reserve::default();
    reserve.release();
    rotation.save(dir, manifest, &mut reserve)
}

/// What says in the snapshot `dir` that there was nothing to read.
fn add_that_it_does_not_run(dir: PathBuf) -> AtCompletion {
    Box::new(move |mut manifest: Manifest, _: Option<&Rotation>| {
        manifest.missing.retain(|missing| missing.reason != READ_AT_END);
        manifest.missing.push(Missing {
            layer: LayerKind::GuestKernel,
            reason: "the guest was not running when the snapshot was taken, so its kernel's ring was not read".into(),
            fix: "take a snapshot while it runs".into(),
        });
        manifest.save(&dir)?;
        Ok(manifest)
    })
}
