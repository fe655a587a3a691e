//! Recorded traces: how they are written, and everything that is done with them afterwards. Needs no KVM and no root.
//!
//! A recording is a folder: `session.json` ([`manifest`]) and one CTF 1.8 trace per layer, all on one clock
//! ([`clock`]). A layer's folder holds `metadata` ([`metadata`]: for babeltrace2 and Trace Compass) and one file of
//! fixed-size packets per CPU, vCPU or thread ([`writer`]).
//!
//! Data flows one way through the reading side: [`reader`] maps the streams and hands on the records that can be
//! believed, [`join`] makes one recording of several (clocks of two hosts related by a [`match_rule`]), [`merge`] puts
//! them in one order, and [`events`], [`report`] and [`check`] show, summarise and verify them; [`diff`] compares two
//! recordings; [`export`] writes them in other tools' forms. What was damaged is skipped, counted and said.

pub mod access;
pub mod analysis;
pub mod check;
pub mod clock;
pub mod completeness;
pub mod compression;
pub mod critical_path;
pub mod diff;
pub mod event;
pub mod events;
pub mod exit_reason;
pub mod export;
pub mod join;
pub mod kernel_symbols;
pub mod layer;
pub mod manifest;
pub mod match_rule;
pub mod merge;
pub mod metadata;
pub mod nearest;
#[cfg(feature = "command-line")]
pub mod progress;
pub mod reader;
#[cfg(feature = "command-line")]
pub mod removed_on_signal;
pub mod report;
pub mod reserve;
pub mod schema;
pub mod softirq_names;
pub mod syscall_names;
pub mod task_choice;
pub mod terminal;
#[cfg(any(test, feature = "test-recordings"))]
pub mod test_trace;
pub mod timeline;
pub mod totals;
pub mod trace_folder;
pub mod user_symbols;
pub mod vcpu;
pub mod window;
pub mod writer;
