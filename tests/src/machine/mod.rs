//! The Linux host that a scenario runs on: this machine or an emulated one; and guests that need no KVM of it.

pub mod direct;
pub mod disk_space;
pub mod emulated_guest;
pub mod emulator;
pub mod host;
pub mod nested;
