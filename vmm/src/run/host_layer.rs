//! Tracing of the host's kernel for a VM that is about to start.

use crate::clock::HostTime;
use crate::host_kernel::{EventName, HostTraceConfig, HostTraceError, HostTracer, Tracefs};
use crate::tracing::selection::Selection;
use std::error::Error;
use trace_merge::layer::LayerKind;
use trace_merge::manifest::Missing;

/// The host kernel's buffer per CPU, KiB.
const HOST_BUFFER_KIB: u32 = 8 << 10;

/// Starts tracing the host's kernel; what keeps it from working is noted, not fatal.
pub(super) fn host_tracer(selection: &Selection, time: HostTime, missing: &mut Vec<Missing>) -> Option<HostTracer> {
    let started = Tracefs::find().and_then(|tracefs| tracefs.available_events()).map_err(HostTraceError::Unavailable);
    let started = started.and_then(|available| {
        let wanted = |event: &EventName| selection.includes(LayerKind::HostKernel, &event.to_string());
        let events: Vec<_> = available.into_iter().filter(wanted).collect();
        if events.is_empty() {
            return Ok(None);
        }
        let threads = vec![std::process::id()];
        let config = HostTraceConfig { events, threads, time, buffer_kib: HOST_BUFFER_KIB };
        HostTracer::start(&config).map(Some)
    });
    match started {
        Ok(tracer) => tracer,
        Err(error) => {
            let fix = match &error {
                HostTraceError::Unavailable(reason) => reason.fix().into(),
                _ => "run `strata doctor`".into(),
            };
            let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            missing.push(Missing { layer: LayerKind::HostKernel, reason, fix });
            None
        }
    }
}
