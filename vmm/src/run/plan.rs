//! A request whose every part has been checked, as far as that goes without making anything.

use super::failure::RunFailure;
use super::request::{Agent, RunRequest};
use crate::agent;
use crate::cpu_list::CpuList;
use crate::host_kernel::{EventName, Tracefs};
use crate::jail::Jail;
use crate::machine::{KvmProbe, Limits, MachineConfig, MachineError, probe_kvm};
use crate::tracing::selection::{Selection, SelectionError};
use crate::tracing::vmm_events::EVENTS;
use shared_ring::event::EventDescription;
use shared_ring::layout::Mode;
use std::fs;
use std::path::Path;
use trace_merge::layer::LayerKind;
use trace_merge::trace_folder::TraceFolder;

/// A checked request: its files can be read, its numbers run on this host, and its choice of events exists.
pub(super) struct Plan<'a> {
    /// The request.
    pub request: &'a RunRequest,
    /// The machine to be built, still without a trace region.
    pub config: MachineConfig,
    /// What kind of KVM the host has.
    pub probed: KvmProbe,
    /// Which events are recorded.
    pub selection: Selection,
    /// The events that the file of the guest's module declares; empty without one.
    pub guest_events: Vec<EventDescription>,
}

impl<'a> Plan<'a> {
    /// Checks `request`, whose recording is made by the user of `jail`. Nothing is left behind.
    ///
    /// What kind of KVM the host has is for the caller to judge.
    ///
    /// # Errors
    /// The first part of the request that cannot be had.
    pub(super) fn check(request: &'a RunRequest, jail: &Jail) -> Result<Self, RunFailure> {
        if request.max_size.is_some() && request.mode == Mode::FlightRecorder {
            return Err(RunFailure::BoundedBySize);
        }
        if !request.triggers.triggers.is_empty() && request.mode == Mode::Discard {
            return Err(RunFailure::TriggersInDiscardMode);
        }
        request.recorder_cpus.as_ref().map(CpuList::try_place).transpose()?;
        let selection = Selection::parse(&request.events)?;
        let host_events = Tracefs::find().and_then(|tracefs| tracefs.available_events());
        let module = match &request.agent {
            Agent::Module(module) if request.trace.is_some() => Some((module, read(module)?)),
            _ => None,
        };
        let guest_events = match &module {
            Some((file, bytes)) => agent::events(file, bytes)?.events,
            // Those of an agent that the guest itself brings are known once it registers them.
            None => Vec::new(),
        };
        check_selection(&selection, host_events.as_deref().ok(), &guest_events)?;
        if let Some(trace) = &request.trace {
            // Tried and removed again: a run that is refused below leaves no folder.
            let tried = jail.act(|| TraceFolder::create(trace, request.readers))?;
            drop(tried.map_err(|source| match jail.user() {
                Some(user) => RunFailure::TraceFolderOfUser { user, source },
                None => source.into(),
            })?);
        }
        let mut config = MachineConfig {
            kernel: request.kernel.clone(),
            initrd: request.initrd.clone(),
            initrd_overlay: Vec::new(),
            cpus: request.cpus,
            memory: request.memory,
            disks: request.disks.clone(),
            cmdline: request.cmdline.clone(),
            shared_slots: Vec::new(),
            discovery: None,
            tsc_offset: None,
            cpu_extras: request.cpu_extras,
        };
        config.check(&Limits::without_kvm()).and_then(|()| config.open().map(drop)).map_err(MachineError::from)?;
        if let Some((module, module_bytes)) = module {
            let kernel = read(&request.kernel)?;
            agent::check_module(module, &module_bytes, &request.kernel, &kernel)?;
            config.initrd_overlay = agent::overlay(&module_bytes);
            config.cmdline = agent::append_cmdline(&config.cmdline, request.sample_frequency);
        }
        let probed = probe_kvm();
        Ok(Self { request, config, probed, selection, guest_events })
    }
}

fn check_selection(
    selection: &Selection,
    host: Option<&[EventName]>,
    guest: &[EventDescription],
) -> Result<(), SelectionError> {
    let mut catalogues = vec![(LayerKind::Vmm, EVENTS.iter().map(|event| event.name.into()).collect())];
    if !guest.is_empty() {
        catalogues.push((LayerKind::GuestKernel, guest.iter().map(|event| event.name.clone()).collect()));
    }
    catalogues.extend(host.map(|events| (LayerKind::HostKernel, events.iter().map(ToString::to_string).collect())));
    selection.check(&catalogues)
}

fn read(path: &Path) -> Result<Vec<u8>, RunFailure> {
    fs::read(path).map_err(|source| RunFailure::Read { path: path.into(), source })
}
