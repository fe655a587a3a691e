//! The trace clock: what it counts on this host, how the counter of each vCPU relates to it, and how wrong that can be.
//!
//! - [`HostTime`]: the host's counter that a trace clock counts; [`HostClock`]: what comparing the host's CPUs showed.
//! - [`kernel_clocks`]: the kernel's clocks and the trace clock, read together.
//! - [`time_namespace`]: what this process's clocks show beyond the kernel's own.
//! - [`guest_tsc`]: a vCPU's time stamp counter as KVM sets and shows it; [`DebugfsVm`]: the same of machines that
//!   other processes run, and their threads.
//! - [`VcpuClocks`]: the relations of a running machine's vCPUs, measured on their threads while they are out of the
//!   guest. A new relation goes to a sink: the machine's owner decides who publishes and records it.
//! - [`KickTimer`] and [`RenewalThread`]: what takes a vCPU out of the guest so that its counter can be compared.
//!
//! Nothing here knows of machines, rings or recordings, but for the form in which a recording states its clock
//! (`strata_recording::clock`) and what the kernel's clocks showed (`strata_recording::clock_snapshots`).

mod counter_comparison;
pub mod guest_tsc;
mod host_clock;
mod host_time;
pub mod kernel_clocks;
mod kick_timer;
mod kvm_debugfs;
mod renewal_thread;
pub mod time_namespace;
mod vcpu_clocks;

pub use host_clock::HostClock;
pub use host_time::HostTime;
pub use kick_timer::KickTimer;
pub use kvm_debugfs::{DebugfsError, DebugfsVcpu, DebugfsVm, KVM_DEBUGFS, VcpuTsc};
pub use renewal_thread::RenewalThread;
pub use vcpu_clocks::{ClockParameters, EpochSink, VcpuClocks};
