//! The Linux host that a scenario runs on: this machine or an emulated one.

pub mod direct;
pub mod disk_space;
pub mod emulator;
pub mod host;
pub mod nested;
