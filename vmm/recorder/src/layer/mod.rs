//! Layers: what of a VM is recorded, each from its source into packets. Rings of the guest's kernel, of its processes and of
//! the VMM are drained; the host's kernel hands on records.

pub mod buffered;
pub mod guest_processes;
pub mod host;
pub mod host_history;
mod host_records;
pub mod host_tracer;
pub mod kernel_rings;
pub mod limit;
pub mod ring;
pub mod vmm;
pub mod written;
