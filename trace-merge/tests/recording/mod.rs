//! What recordings made by tests have in common.

use trace_merge::clock::{Clock, UtcAnchor};
use trace_merge::manifest::{FORMAT_VERSION, Host, Manifest, Started, Vm};
use uuid::Uuid;

/// When they began, ns since 1970.
const STARTED: u64 = 1_700_000_000_000_000_000;

/// A recording of `vms` without layers; a tick is a nanosecond, and clocks have no error.
pub fn manifest(vms: Vec<Vm>) -> Manifest {
    Manifest {
        format: FORMAT_VERSION,
        strata: "0.1.0".into(),
        started: Started::at(STARTED),
        clock: Clock {
            uuid: Uuid::from_bytes([1; 16]),
            frequency_hz: 1_000_000_000,
            utc: UtcAnchor { ticks: 0, utc_ns: STARTED, uncertainty_ns: 0 },
            source: "x86-tsc".into(),
            vcpus: Vec::new(),
            error_bound_ns: 0,
            bound_derivation: "one counter".into(),
            epochs: Vec::new(),
            utc_readings: Vec::new(),
        },
        host: Host::default(),
        vms,
        layers: Vec::new(),
        missing: Vec::new(),
        max_size: None,
        compression: None,
        outcome: Some("power-off".into()),
    }
}
