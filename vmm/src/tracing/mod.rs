//! From rings to a recording: the shared trace region, the VMM's own events, the choice of events, and the recorder
//! that drains every layer into a trace folder while the machine runs.

pub mod guest_processes;
pub mod recorder;
pub mod region;
pub mod ring_layer;
pub mod selection;
pub mod vmm_events;
