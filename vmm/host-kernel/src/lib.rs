//! A reader of the host kernel's trace pages: what the kernel does for a virtual machine, from its own tracepoints. It
//! knows neither rings nor recordings; of strata it needs the trace clock's [`HostTime`](strata_clock::HostTime).
//!
//! [`HostTracer`] makes a private tracing instance in tracefs whose clock is the processor's time stamp counter,
//! enables the chosen events for the machine's threads, and hands on the raw records with their times and losses.
//! Threads are followed as they appear: the kernel follows those that the machine's threads start, and its own that
//! work for them are looked for. Context switches come from a second instance, since those between other threads tell
//! who ran instead. Both instances are removed at the end, also after a crash.
//!
//! - `schema`: what the events' fields are, and their packed form ([`EventSchema`]).
//! - `tracefs`: an instance; `reader`: its buffers; `page`: the form of the buffers' pages ([`Page`]).
//! - `switches`: the context switches, which of them matter, and one order of all records.
//! - `workers`: the kernel's threads that work for a machine.
//! - [`Kallsyms`]: the symbols of the kernel.
//! - [`namespace`]: whether threads have the numbers here that the host's kernel knows them by.

mod item;
mod kallsyms;
pub mod namespace;
mod page;
mod reader;
mod schema;
mod stats;
mod switches;
#[cfg(test)]
mod trace_cmd;
mod tracefs;
mod tracer;
mod workers;

#[cfg(test)]
mod live_tests;

pub use crate::schema::format_file::SkippedField;
pub use item::{HostItem, HostRecord};
pub use kallsyms::Kallsyms;
pub use page::{HEADER_BYTES, Malformed, Missed, Page, PageError, PageEvent, PageEvents};
pub use reader::{CpuSummary, ReaderError, Rest, Sink};
pub use schema::{EventName, EventSchema, RecordError, SchemaError};
pub use stats::{CpuStats, ReaderStats};
pub use tracefs::{ThreadFilter, Tracefs, TracefsError};
pub use tracer::{EventNotEnabled, EventSchemas, HostTraceConfig, HostTraceError, HostTraceSummary, HostTracer};
