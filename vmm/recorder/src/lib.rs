//! From rings to a recording: the shared trace region, the VMM's own events, the choice of events, and the recorder
//! that drains every layer into a trace folder while the machine runs.

pub mod control;
pub mod drain;
pub mod guest_symbols;
pub mod host_description;
mod latest;
pub mod layer;
pub mod live;
mod persistent_memory;
pub mod process_files;
pub mod recorder;
pub mod recover;
pub mod region;
pub mod selection;
pub mod session;
pub mod trigger;
pub mod vmm_events;
