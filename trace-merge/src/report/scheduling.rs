//! Reports on who ran: where the time of tasks, cgroups and vCPUs went, and how long tasks took from wakeup to running.

pub mod cgroups;
pub mod state_names;
pub mod tasks;
pub mod times;
pub(crate) mod vcpu_events;
pub mod vcpus;
pub mod wakeups;
