//! A request whose every part has been checked, as far as that goes without making anything.

pub(super) mod inputs;

use super::failure::RunFailure;
use super::request::{Agent, Boot, RunRequest};
use crate::agent::{self, Start};
use crate::agentless::{Agentless, AgentlessRequest};
use crate::{bootable_disk, ready_made_module};
use shared_ring::event::EventDescription;
use std::fs;
use std::io::BufReader;
use std::path::Path;
use strata_host_kernel::{EventName, Tracefs};
use strata_jail::Jail;
use strata_machine::{BootFile, KvmProbe, Limits, MachineConfig, MachineError, probe_kvm};
use strata_recorder::selection::Selection;
use strata_recorder::session::{RecordingBuilder, RequestError};
use strata_recorder::vmm_events::EVENTS;
use strata_recording::layer::LayerKind;

/// A checked request: its files can be read, its numbers run on this host, and its choice of events exists.
pub(super) struct Plan<'a> {
    /// The request.
    pub request: &'a RunRequest,
    /// The machine to be built, still without a trace region.
    pub config: MachineConfig,
    /// What kind of KVM the host has.
    pub probed: KvmProbe,
    /// What is recorded, if anything is.
    pub recording: Option<RecordingBuilder>,
    /// The events that the file of the guest's module declares; empty without one.
    pub guest_events: Vec<EventDescription>,
    /// What the user should know before it runs, a line each: what the guest is booted with out of its disk, and a word
    /// of its kernel command line that further kernels must not have.
    pub notes: Vec<String>,
    /// How the guest's kernel is traced without an agent.
    pub agentless: Option<Agentless>,
}

/// What a guest is booted with.
struct Booted {
    kernel: BootFile,
    initrd: Option<BootFile>,
    cmdline: String,
    /// Where it was found, if it was looked for.
    found_on_disk: Option<String>,
}

impl Booted {
    /// Looks at the first disk of `request`, if that is to be booted from.
    fn find(request: &RunRequest) -> Result<Self, RunFailure> {
        let cmdline = &request.cmdline;
        match (&request.boot, request.disks.first()) {
            (Boot::Files { kernel, initrd }, _) => Ok(Self {
                kernel: kernel.clone().into(),
                initrd: initrd.clone().map(BootFile::from),
                cmdline: cmdline.clone(),
                found_on_disk: None,
            }),
            (Boot::FirstDisk, None) => Err(RunFailure::NoDisk),
            (Boot::FirstDisk, Some(disk)) => {
                // Nobody else may write it while it is read. The machine locks it again when it opens it.
                let (image, size) = disk.open().map_err(MachineError::from)?;
                let found = bootable_disk::find(&disk.path, image, size)?;
                Ok(Self {
                    cmdline: bootable_disk::with_root(cmdline, found.partition, disk.read_only),
                    kernel: found.kernel,
                    initrd: found.initrd,
                    found_on_disk: Some(found.description),
                })
            }
        }
    }
}

impl<'a> Plan<'a> {
    /// Checks `request`, whose recording is made by the user of `jail`. Nothing is left behind.
    ///
    /// What kind of KVM the host has is for the caller to judge.
    ///
    /// # Errors
    /// The first part of the request that cannot be had.
    pub(super) fn check(request: &'a RunRequest, jail: &Jail) -> Result<Self, RunFailure> {
        let checked = request.recording.as_ref().map(|requested| RecordingBuilder::new(requested, &LayerKind::ALL));
        let recording = checked.transpose()?;
        let host_events = Tracefs::find().and_then(|tracefs| tracefs.available_events());
        let booted = Booted::find(request)?;
        let module = match &request.agent {
            Agent::Module(named) if recording.is_some() => {
                let module = match ready_made_module::folder(named) {
                    Some(folder) => {
                        ready_made_module::pick(&folder, booted.kernel.name(), &read_kernel(&booted.kernel)?)?
                    }
                    None => named.clone(),
                };
                let bytes = read(&module)?;
                Some((module, bytes))
            }
            _ => None,
        };
        let guest_events = match &module {
            Some((file, bytes)) => agent::events(file, bytes)?.events,
            // Those of an agent that the guest itself brings are known once it registers them.
            None => Vec::new(),
        };
        if let Some(recording) = &recording {
            check_selection(recording.selection(), host_events.as_deref().ok(), &guest_events)?;
            // Tried and removed again: a run that is refused below leaves no folder.
            let tried = jail.act(|| recording.request().files.create())?;
            drop(tried.map_err(|source| match jail.user() {
                Some(user) => RunFailure::TraceFolderOfUser { user, source },
                None => source.into(),
            })?);
        }
        if let Some(vsock) = &request.vsock {
            jail.act(|| vsock.check())??;
        }
        let mut config = MachineConfig {
            kernel: booted.kernel,
            initrd: booted.initrd,
            initrd_overlay: Vec::new(),
            cpus: request.cpus,
            memory: request.memory,
            memory_backing: request.memory_backing,
            disks: request.disks.clone(),
            nets: request.nets.clone(),
            entropy: request.entropy,
            // Made when everything else was checked.
            vsock: None,
            balloon: request.balloon,
            cmdline: booted.cmdline,
            shared_slots: Vec::new(),
            discovery: None,
            tsc_offset: None,
            cpu_extras: request.cpu_extras,
        };
        config.check(&Limits::without_kvm()).and_then(|()| config.open().map(drop)).map_err(MachineError::from)?;
        let mut notes = Vec::from_iter(booted.found_on_disk);
        if let Some((module, module_bytes)) = module {
            let kernel = read_kernel(&config.kernel)?;
            agent::check_module(&module, &module_bytes, config.kernel.name(), &kernel)?;
            let start = start_of_agent(&config)?;
            config.initrd_overlay = agent::overlay(&module_bytes, &start);
            config.cmdline = agent::append_cmdline(&config.cmdline, &start, request.sample_frequency);
            notes.extend(start.note());
        }
        let agentless = request.agentless.as_ref().map(|wanted| plan_agentless(&config, wanted)).transpose()?;
        if let Some(agentless) = &agentless {
            config.cmdline = agentless.cmdline(&config.cmdline)?;
        }
        let probed = probe_kvm();
        Ok(Self { request, config, probed, recording, guest_events, notes, agentless })
    }
}

/// How the agent's program comes to be the first one of the guest of `config`.
fn start_of_agent(config: &MachineConfig) -> Result<Start, RunFailure> {
    let open = |initrd: &BootFile| {
        let failed = |source| RunFailure::Read { path: initrd.name().into(), source };
        initrd.open().map(BufReader::new).map_err(failed)
    };
    Ok(Start::of(&config.cmdline, config.initrd.as_ref().map(open).transpose()?))
}

/// What is needed of the kernel of `config` for a guest without an agent.
fn plan_agentless(config: &MachineConfig, wanted: &AgentlessRequest) -> Result<Agentless, RunFailure> {
    let size = |file: &BootFile| file.open().and_then(|file| file.metadata()).map_or(0, |file| file.len());
    let initrd = config.initrd.as_ref().map_or(0, size);
    let kernel = (config.kernel.name(), &*read_kernel(&config.kernel)?);
    Ok(Agentless::plan(wanted, kernel, config.cpus, (config.memory, initrd))?)
}

fn check_selection(
    selection: &Selection,
    host: Option<&[EventName]>,
    guest: &[EventDescription],
) -> Result<(), RequestError> {
    let mut catalogues = vec![(LayerKind::Vmm, EVENTS.iter().map(|event| event.name.into()).collect())];
    if !guest.is_empty() {
        catalogues.push((LayerKind::GuestKernel, guest.iter().map(|event| event.name.clone()).collect()));
    }
    catalogues.extend(host.map(|events| (LayerKind::HostKernel, events.iter().map(ToString::to_string).collect())));
    Ok(selection.check(&catalogues)?)
}

fn read_kernel(kernel: &BootFile) -> Result<Vec<u8>, RunFailure> {
    kernel.read().map_err(|source| RunFailure::Read { path: kernel.name().into(), source })
}

fn read(path: &Path) -> Result<Vec<u8>, RunFailure> {
    fs::read(path).map_err(|source| RunFailure::Read { path: path.into(), source })
}
