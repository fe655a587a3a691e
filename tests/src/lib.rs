//! The lab: everything that it takes to show Strata at work on a real Linux host and a real Linux guest.
//!
//! The lab fetches a stock Debian kernel with its headers (nothing of it is installed), builds the guest kernel module,
//! a static `strata` and the guest images, and runs a shell script with them on a Linux host that has hardware
//! virtualisation: this machine when it has some ([`machine::direct`]), otherwise a software-emulated one
//! ([`machine::nested`]).
//! All artefacts lie under `target/lab` and are reused.
//!
//! | module | what it does |
//! |---|---|
//! | [`fetch`] | gets tools, kernels and headers from Debian |
//! | [`build`] | builds programs, the guest kernel module, guest images |
//! | [`provision`] | makes all of that ready, once |
//! | [`machine`] | runs a script on a Linux host |
//! | [`scenarios`] | what hosts and guests do in the end-to-end tests of `tests/tests` |
//! | [`packaging`] | makes Strata's Debian packages |
//! | [`tasks`] | what `cargo xtask` runs: suite, demonstration, fuzzing, benchmarks |
#![allow(missing_docs, reason = "no other project imports it: names say it, or a comment does")]

pub mod build;
pub mod fetch;
pub mod lock;
pub mod machine;
pub mod packaging;
pub mod paths;
pub mod process;
mod process_group;
pub mod progress;
pub mod provision;
pub mod scenarios;
pub mod tasks;
