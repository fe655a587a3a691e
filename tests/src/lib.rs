//! The lab: everything that it takes to show Strata at work on a real Linux host and a real Linux guest.
//!
//! The lab fetches a stock Debian kernel with its headers (nothing of it is installed), builds the guest kernel module,
//! a static `strata` and the guest images, and runs a shell script with them on a Linux host that has hardware
//! virtualisation: this machine when it has some ([`direct`]), otherwise a software-emulated one ([`nested`]).
//! All artefacts lie under `target/lab` and are reused.

pub mod agent_scenarios;
pub mod analysis;
pub mod applications;
pub mod bench;
pub mod binaries;
pub mod build_root;
pub mod deb;
pub mod debian_guest;
pub mod demo;
pub mod direct;
pub mod disk_space;
pub mod flight;
pub mod flight_check;
pub mod format_file;
pub mod fuzz;
pub mod guest;
pub mod host;
pub mod initramfs;
pub mod kernel;
pub mod kernel_packages;
pub mod kmod;
pub mod lttng_modules;
pub mod modules;
pub mod nested;
pub mod object_gates;
pub mod package;
pub mod packages;
pub mod paths;
pub mod process;
pub mod progress;
pub mod provision;
pub mod scenarios;
pub mod suite;
pub mod tracepoints;
