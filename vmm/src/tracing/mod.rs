//! From rings to a recording: the shared trace region, the VMM's own events, the choice of events, and the recorder
//! that drains every layer into a trace folder while the machine runs.

pub mod buffered_layer;
pub mod disk_times;
pub mod flight_recorder;
pub mod guest_processes;
pub mod guest_wakeups;
pub mod host_description;
pub(crate) mod host_history;
pub mod host_layer;
pub mod host_tracer;
pub mod kernel_rings;
pub mod layers;
pub mod live;
pub mod mapped_file;
pub mod polling;
pub mod process_table;
pub mod record_limit;
pub mod recorder;
pub mod recording;
pub mod region;
pub mod region_file;
pub mod ring_layer;
pub mod save_pace;
pub mod scheduling;
pub mod selection;
pub mod session;
pub mod sessions;
pub mod streaming;
pub mod thread_times;
pub mod trigger;
pub mod vcpu_activity;
pub mod vmm_events;
pub mod vmm_layer;
pub mod work_alarm;
pub mod written_layer;
