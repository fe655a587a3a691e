//! Fuzz targets for everything that reads bytes which a guest, or a damaged file, may have written.
//!
//! One module per reader. Each has a function `run` that takes arbitrary bytes, gives them to the reader, and asserts
//! what must hold whatever they are. That nothing panics, reads or writes out of bounds, runs for ever or takes
//! memory without bound is what the fuzzer's own sanitizer and limits find.
//!
//! Memory that a guest shares changes while it is read. Inputs for such readers are [`script`]s: writes to the memory,
//! taken in turn with calls of the reader. [`seeds`] makes the committed corpus, out of what real producers and writers
//! produce.
#![allow(missing_docs, reason = "no other project imports it: names say it, or a comment does")]
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "what must hold and does not is a finding")]

pub mod boot_image;
pub mod bootable_disk;
pub mod compressed_stream;
pub mod consumer;
pub mod consumer_race;
pub mod control_answer;
pub mod control_request;
pub mod crash_reader;
pub mod devices;
pub mod event_format;
pub mod events;
pub mod ftrace_page;
pub mod guest_processes;
pub mod guest_ring;
pub mod http_request;
pub mod initrd;
pub mod kernel_image;
pub mod packed_trace;
pub mod packet;
pub mod qmp_reply;
pub mod recover;
pub mod registry;
pub mod script;
pub mod seeds;
pub mod trace_folder;
pub mod trigger;
pub mod vm_description;
