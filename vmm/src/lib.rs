//! The strata virtual machine monitor: a KVM machine for stock Linux guests, and the tracing of every layer of it.
//!
//! - [`attach`]: recording VMs that other processes run.
//! - [`agent`]: bringing the guest's agent along.
//! - [`bootable_disk`]: kernel and initrd out of the disk image that a guest boots from.
//! - [`agentless`]: guests without an agent, whose kernel's own ring the host reads.
//! - [`clock`]: the trace clock, and how the counter of each vCPU relates to it.
//! - [`control`]: the folder and control socket of a running VM, `strata ctl` and `strata ps`.
//! - [`cpu_list`]: where on the host a thread runs.
//! - [`export`]: recordings in the forms of other tools.
//! - [`machine`]: boot, vCPUs, devices, and what kind of KVM a host has.
//! - [`host_kernel`]: the host kernel's tracepoints.
//! - [`http`]: the head of a request, of `strata open` and `strata metrics`.
//! - [`jail`]: what the process of a running VM may still do.
//! - [`metrics`]: the same as `top` for Prometheus.
//! - [`open_trace`]: a recording in Perfetto's viewer.
//! - [`query_program`]: the program that writes Parquet and answers SQL.
//! - [`recover`]: a trace of a region whose process died.
//! - [`region_command`]: trace regions for guests of other VMMs.
//! - [`top`]: what running VMs do now.
//! - [`tracing`]: the trace region, the VMM's own events, and the recorder that drains every layer into a trace folder.

pub mod agent;
pub mod agent_command;
pub mod agentless;
pub mod attach;
pub mod bootable_disk;
pub mod cli;
pub mod clock;
pub mod control;
pub mod cpu_list;
pub mod doctor;
pub mod event_list;
pub mod export;
pub mod host_kernel;
pub mod http;
pub mod jail;
pub mod machine;
pub mod metrics;
pub mod open_trace;
pub mod query_program;
pub mod ready_made_module;
pub mod recover;
pub mod region_command;
pub mod run;
pub mod top;
pub mod tracing;
