//! `strata run`: from a checked request to a completed recording.
//!
//! A request becomes a `Plan` once every part of it has been checked. A traced VM then goes through three types:
//! `PreparedVm` has everything made (`prepare` does so step by step) and nothing running, `StartedVm` records and can be
//! controlled, and its end is the [`RunReport`].

mod answers;
mod boots;
mod console;
pub(crate) mod descriptors;
mod failure;
mod guest;
mod limits;
mod plan;
mod prepare;
mod request;
mod rings;
mod trace_failure;
mod traced;

use crate::confinement::{folder_above, places};
pub use boots::on_reboot::{BootEnd, OnReboot};
pub use boots::{BootsError, run_boots};
pub use failure::RunFailure;
use guest::Ran;
use limits::{ConsoleLimits, LimitedDevices};
use plan::Plan;
use prepare::Site;
pub use request::{Agent, Boot, RunRequest};
pub(crate) use rings::foreign_region;
pub use rings::{KERNEL_RINGS, PROCESS_SLOTS};
use std::sync::Arc;
use strata_jail::files::Places;
use strata_jail::policy::Thread;
use strata_jail::{Closed, Jail, JailError};
use strata_machine::{Machine, Outcome};
use strata_observer::NoObserver;
use strata_recorder::control::directory::{self, VmDescription, VmDirectory};
use strata_recorder::control::server::ControlServer;
use strata_recorder::session::Notify;
use strata_recording::files::trace_folder::{SnapshotFolder, TraceFolder};
use strata_recording::manifest::Manifest;
pub use trace_failure::OnTraceFailure;
use traced::PreparedVm;

/// How a run went.
#[derive(Debug)]
pub struct RunReport {
    /// How the guest ended.
    pub outcome: Outcome,
    /// The recording, if there is one.
    pub manifest: Option<Manifest>,
    /// Bytes of the guest's console that were dropped because nobody read standard output.
    pub console_dropped: u64,
    /// Whether it was stopped because a layer of its trace ended early.
    pub trace_failed: bool,
}

/// Runs a guest as `request` says, with this process's standard input and output as its console, until it ends or a
/// signal asks to stop. `notify` gets what the user should know meanwhile, a line each, on any thread.
///
/// # Errors
/// Nothing was run, or the recording is not complete. Input is checked before anything is made, and a recording that
/// never began leaves nothing behind.
pub fn run(request: &RunRequest, notify: Notify) -> Result<RunReport, RunFailure> {
    descriptors::raise_limit();
    let jail = Jail::choose(&request.jail)?;
    let plan = Plan::check(request, &jail)?;
    plan.notes.iter().for_each(|line| notify(line));
    if let Some(refusal) = plan.probed.refusal() {
        return Err(RunFailure::Kvm(refusal));
    }
    run_plan(plan, jail, notify)
}

/// Runs what was checked.
fn run_plan(mut plan: Plan<'_>, jail: Jail, notify: Notify) -> Result<RunReport, RunFailure> {
    let request = plan.request;
    let description = describe_vm(request);
    let runtime = match jail.user() {
        Some(user) => directory::runtime_folder_of(user)?,
        None => directory::runtime_folder()?,
    };
    let directory = jail.act(|| VmDirectory::create(&runtime, &description))??;
    if let Some(vsock) = &request.vsock {
        plan.config.vsock = Some(Arc::new(jail.act(|| vsock.open())??));
    }
    match plan.recording.take() {
        Some(mut recording) => {
            recording.notify = notify;
            let site = Site { description, directory, jail };
            PreparedVm::prepare(plan, recording, site)?.start()?.finish()
        }
        None => {
            let Ran { outcome, console_dropped } = run_untraced(plan, description, &directory, jail, notify)?;
            Ok(RunReport { outcome, manifest: None, console_dropped, trace_failed: false })
        }
    }
}

/// Runs a guest that can be controlled and is not traced.
fn run_untraced(
    plan: Plan<'_>,
    description: VmDescription,
    directory: &VmDirectory,
    jail: Jail,
    notify: Notify,
) -> Result<Ran, RunFailure> {
    let machine = Machine::new(plan.config)?;
    let closed = close(jail, directory, plan.request, None, notify)?;
    let console = ConsoleLimits::new(plan.request);
    let limited = LimitedDevices::new(plan.request, &machine, &console);
    let answers = answers::answers(description, None, machine.control(), machine.stop_handle(), limited, closed);
    let _control = ControlServer::start(&directory.socket(), answers)?;
    guest::run_machine(machine, &console, Arc::new(NoObserver), None, notify, None)
}

/// Closes the jail of the VM in `directory` that `request` asks for, and tells what this kernel lacks for it.
fn close(
    jail: Jail,
    directory: &VmDirectory,
    request: &RunRequest,
    recording: Option<(&TraceFolder, &SnapshotFolder)>,
    notify: Notify,
) -> Result<Closed, JailError> {
    // The socket is removed in the end.
    let cleared = request.vsock.iter().filter_map(|vsock| folder_above(&vsock.path)).collect();
    let closed = jail.close(Thread::Start, Places { cleared, ..places(directory, recording) })?;
    closed.missing.iter().for_each(|line| notify(line));
    Ok(closed)
}

fn describe_vm(request: &RunRequest) -> VmDescription {
    let recording = request.recording.as_ref();
    VmDescription {
        memory: request.memory,
        trace: recording.map(|recording| recording.files.absolute_trace().into()),
        vmm_rings: recording.map(|recording| rings::vmm_rings(request, recording.layers.mode).into()),
        ..VmDescription::of_this_process(&request.name, request.cpus)
    }
}

#[cfg(test)]
mod tests;
