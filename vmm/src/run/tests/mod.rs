//! Whole runs of hand-written guests, each in a process of its own. They need `/dev/kvm`, of any kind.

mod boots;
mod full_disk;
mod image;
mod jail;
mod memory;
mod net;
mod vm_process;
mod vsock;
