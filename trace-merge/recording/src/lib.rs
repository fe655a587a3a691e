//! The format of recordings: how they are written, and how they are read. Needs no KVM and no root.
//!
//! A recording is a folder: `session.json` ([`manifest`]) and one CTF 1.8 trace per layer, all on one clock
//! ([`clock`]; [`clock_snapshots`] relates it to the host's). A layer's folder holds `metadata` ([`metadata`]: for
//! babeltrace2 and Trace Compass) and one file of fixed-size packets per CPU, vCPU or thread ([`writer`]).
//!
//! [`reader`] maps the streams and hands on the records that can be believed, and [`reader::merge`] puts them in one order. What
//! was damaged is skipped, counted and said.

pub mod clock;
pub mod clock_snapshots;
pub mod event_terms;
pub mod files;
pub mod layer;
pub mod manifest;
pub mod metadata;
pub mod one_file;
pub mod reader;
pub mod schema;
pub mod stop_signals;
#[cfg(any(test, feature = "test-recordings"))]
pub mod test_trace;
pub mod text;
pub mod window;
pub mod writer;
