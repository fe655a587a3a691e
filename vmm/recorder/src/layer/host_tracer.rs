//! Tracing of the host's kernel for a VM: its events, for whom, and what is missing where it cannot be had.

use crate::selection::Selection;
use std::error::Error;
use strata_clock::HostTime;
use strata_host_kernel::namespace::check_thread_ids;
use strata_host_kernel::{EventName, HostTraceConfig, HostTraceError, HostTracer, Tracefs, TracefsError};
use strata_recording::layer::LayerKind;
use strata_recording::manifest::Missing;

/// The host kernel's buffer per CPU, KiB.
const BUFFER_KIB: u32 = 8 << 10;

/// Whom the host's kernel is traced for.
#[derive(Clone, Debug)]
pub struct Traced {
    /// The process that runs the VM.
    pub process: u32,
    /// Its threads so far.
    pub threads: Vec<u32>,
    /// Whether others can be added later.
    pub takes_more: bool,
}

/// Starts to trace the events that `selection` wants of the host's kernel, for `traced`. `None` when none are wanted.
///
/// # Errors
/// The kernel cannot be traced here or by this user, or none of the wanted events can be.
pub fn start_host_tracer(
    selection: &Selection,
    time: HostTime,
    traced: Traced,
) -> Result<Option<HostTracer>, HostTraceError> {
    let tracefs = check_thread_ids().map_err(TracefsError::from).and_then(|()| Tracefs::find());
    let available = tracefs.and_then(|tracefs| tracefs.available_events());
    let wanted = |event: &EventName| selection.includes(LayerKind::HostKernel, &event.to_string());
    let events: Vec<_> = available.map_err(HostTraceError::Unavailable)?.into_iter().filter(wanted).collect();
    if events.is_empty() {
        return Ok(None);
    }
    let Traced { process, threads, takes_more } = traced;
    let config = HostTraceConfig { events, process, threads, takes_more, time, buffer_kib: BUFFER_KIB };
    HostTracer::start(&config).map(Some)
}

/// What is missing because of `error`, and what to do about it.
#[must_use]
pub fn missing_host_layer(error: &HostTraceError) -> Missing {
    let fix = match error {
        HostTraceError::Unavailable(reason) => reason.fix().into(),
        _ => "run `strata doctor`".into(),
    };
    let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    Missing { layer: LayerKind::HostKernel, reason, fix }
}
