//! The format of recordings: how they are written, and how they are read. Needs no KVM and no root.
//!
//! A recording is a folder: `session.json` ([`manifest`]) and one CTF 1.8 trace per layer, all on one clock
//! ([`clock`]). A layer's folder holds `metadata` ([`metadata`]: for babeltrace2 and Trace Compass) and one file of
//! fixed-size packets per CPU, vCPU or thread ([`writer`]).
//!
//! [`reader`] maps the streams and hands on the records that can be believed, and [`merge`] puts them in one order. What
//! was damaged is skipped, counted and said.

pub mod access;
pub mod clock;
pub mod compression;
mod files;
pub mod foreign;
pub mod layer;
pub mod loss;
pub mod manifest;
pub mod merge;
pub mod metadata;
pub mod nearest;
pub mod packed;
pub mod reader;
pub mod removed_on_signal;
pub mod reserve;
pub mod schema;
pub mod terminal;
#[cfg(any(test, feature = "test-recordings"))]
pub mod test_trace;
pub mod totals;
pub mod trace_folder;
pub mod window;
pub mod writer;
