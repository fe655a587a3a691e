//! The program `strata`: its command line, and what each command makes of the crates below.
//!
//! - [`attach`]: recording VMs that other processes run.
//! - [`agent`]: bringing the guest's agent along.
//! - [`bootable_disk`]: kernel and initrd out of the disk image that a guest boots from.
//! - [`agentless`]: guests without an agent, whose kernel's own ring the host reads.
//! - [`export`]: recordings in the forms of other tools.
//! - [`http`]: the head of a request, of `strata open` and `strata metrics`.
//! - [`kernel_image`]: what is in a kernel's image.
//! - [`metrics`]: the same as `top` for Prometheus.
//! - [`open_trace`]: a recording in Perfetto's viewer.
//! - [`output`]: standard output of reading commands, with colours and a pager on a terminal.
//! - [`query_program`]: the program that writes Parquet and answers SQL.
//! - [`region_command`]: trace regions for guests of other VMMs.
//! - [`top`]: what running VMs do now.
#![allow(missing_docs, reason = "no other project imports it: names say it, or a comment does")]

pub mod agent;
pub mod agent_command;
pub mod agentless;
pub mod attach;
pub mod bootable_disk;
pub mod cli;
mod confinement;
pub mod doctor;
pub mod event_list;
pub mod export;
pub mod http;
pub mod kernel_image;
pub mod metrics;
pub mod open_trace;
pub mod output;
pub mod query_program;
pub mod ready_made_module;
pub mod region_command;
pub mod run;
pub mod top;
