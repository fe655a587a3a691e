//! Reports on I/O: requests to disks and packets of network devices, by device and through the layers.

pub mod blocks;
pub mod flow_step;
pub mod flows;
mod followed;
mod follower;
mod interrupts;
mod io_path;
pub mod net_flows;
