//! The host-kernel layer: what the host's kernel does for a virtual machine, from its own tracepoints.
//!
//! [`HostTracer`] makes a private tracing instance in tracefs whose clock is the processor's time stamp counter,
//! enables the chosen events for the machine's threads, and hands on the raw records with their times and losses.
//! The instance is removed at the end, also after a crash.
//!
//! - [`schema`]: what the events' fields are, and their packed form.
//! - [`tracefs`]: the instance; [`reader`]: its buffers; [`page`]: the form of the buffers' pages.

use std::sync::Arc;

use reader::{CpuSummary, HostItem, Reader, ReaderError, ReaderStats};
use schema::{EventName, EventSchema};
use stats::CpuStats;
use tracefs::{Instance, ThreadFilter, Tracefs, TracefsError};

pub mod page;
mod page_format;
mod print_format;
pub mod reader;
mod removal_guard;
pub mod schema;
pub mod stats;
pub mod tracefs;

#[cfg(test)]
mod live_tests;

/// What to trace.
#[derive(Debug, Clone)]
pub struct HostTraceConfig {
    /// Events of this kernel, from [`Tracefs::available_events`].
    pub events: Vec<EventName>,
    /// Kernel thread ids of the machine's threads so far, at least one; more can be added later.
    pub threads: Vec<u32>,
    /// Name of the tracefs clock whose times the records carry.
    pub clock: &'static str,
    /// Buffer per CPU in KiB. It has to hold what happens between two polls.
    pub buffer_kib: u32,
}

/// Why the layer is not traced.
#[derive(Debug, thiserror::Error)]
pub enum HostTraceError {
    /// The layer cannot be traced on this host, or not by this user. The machine can run without it.
    #[error("the host-kernel layer is missing (to have it, {})", .0.fix())]
    Unavailable(#[source] TracefsError),
    /// None of the chosen events could be enabled. The machine can run without them.
    #[error("the host-kernel layer is missing: none of its {events} events could be enabled")]
    NothingEnabled {
        /// Events chosen.
        events: usize,
        /// Why the first one could not.
        #[source]
        source: TracefsError,
    },
    /// The buffers cannot be read. The machine can run without the layer.
    #[error("the host-kernel layer is missing: its buffers cannot be read")]
    Reader(#[source] ReaderError),
}

/// An event that was chosen but is not traced.
#[derive(Debug)]
pub struct EventNotEnabled {
    /// The event.
    pub event: EventName,
    /// Why not.
    pub error: TracefsError,
}

/// What there is to know at the end.
#[derive(Debug, Clone)]
pub struct HostTraceSummary {
    /// What was read.
    pub read: ReaderStats,
    /// The kernel's counts per CPU.
    pub cpus: Vec<CpuSummary>,
}

impl HostTraceSummary {
    /// Events that were recorded by the kernel and never read, and events that it could not record.
    pub fn lost(&self) -> u64 {
        self.total(|stats| stats.lost().saturating_add(stats.entries))
    }

    /// Events that the kernel recorded, whether or not they were read.
    pub fn recorded(&self) -> u64 {
        self.total(|stats| stats.read + stats.overrun + stats.entries)
    }

    fn total(&self, count: impl Fn(&CpuStats) -> u64) -> u64 {
        self.cpus.iter().map(|cpu| count(&cpu.stats)).sum()
    }
}

/// The descriptions of the enabled events, by the number that records carry.
#[derive(Debug, Clone, Default)]
pub struct Schemas {
    /// Sorted by number.
    schemas: Vec<EventSchema>,
}

impl Schemas {
    fn new(mut schemas: Vec<EventSchema>) -> Self {
        schemas.sort_by_key(EventSchema::id);
        Self { schemas }
    }

    /// The event with this number; `None` if it was not chosen.
    pub fn get(&self, id: u16) -> Option<&EventSchema> {
        let at = self.schemas.binary_search_by_key(&id, EventSchema::id);
        at.ok().map(|at| &self.schemas[at])
    }

    /// All of them, in the order of their numbers.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &EventSchema> {
        self.schemas.iter()
    }
}

/// Traces the host's kernel for one virtual machine until it is dropped.
#[derive(Debug)]
pub struct HostTracer {
    /// Holds the instance; there is no other strong reference to it.
    reader: Reader,
    schemas: Arc<Schemas>,
    threads: ThreadFilter,
    not_enabled: Vec<EventNotEnabled>,
}

impl HostTracer {
    /// Makes the instance and starts recording. Instances of strata processes that have died are removed first.
    pub fn start(config: &HostTraceConfig) -> Result<Self, HostTraceError> {
        let tracefs = Tracefs::find().map_err(HostTraceError::Unavailable)?;
        tracefs.remove_leftovers().map_err(HostTraceError::Unavailable)?;
        let instance = Instance::create(&tracefs, config.clock, config.buffer_kib, &config.threads)
            .map_err(HostTraceError::Unavailable)?;
        let mut schemas = Vec::new();
        let mut not_enabled = Vec::new();
        for event in &config.events {
            let enabled = instance.schema(event).and_then(|schema| {
                instance.enable(event)?;
                Ok(schema)
            });
            match enabled {
                Ok(schema) => schemas.push(schema),
                Err(error) => not_enabled.push(EventNotEnabled { event: event.clone(), error }),
            }
        }
        if schemas.is_empty() && !not_enabled.is_empty() {
            return Err(HostTraceError::NothingEnabled {
                events: not_enabled.len(),
                source: not_enabled.remove(0).error,
            });
        }
        let instance = Arc::new(instance);
        let threads = Instance::thread_filter(&instance);
        let reader = Reader::open(Arc::clone(&instance)).map_err(HostTraceError::Reader)?;
        instance.start().map_err(HostTraceError::Unavailable)?;
        Ok(Self { reader, schemas: Arc::new(Schemas::new(schemas)), threads, not_enabled })
    }

    /// The descriptions of the events that are traced.
    pub fn schemas(&self) -> &Arc<Schemas> {
        &self.schemas
    }

    /// The chosen events that could not be enabled.
    pub fn not_enabled(&self) -> &[EventNotEnabled] {
        &self.not_enabled
    }

    /// A handle that other threads use to add themselves to what is traced.
    pub fn thread_filter(&self) -> ThreadFilter {
        self.threads.clone()
    }

    /// Hands on what has been recorded since the last time, as far as a bound per CPU allows: see [`Reader::poll`].
    pub fn poll(&mut self, sink: &mut dyn FnMut(HostItem<'_>)) -> Result<bool, ReaderError> {
        self.reader.poll(sink)
    }

    /// Stops recording and hands on all that is left.
    pub fn finish(&mut self, sink: &mut dyn FnMut(HostItem<'_>)) -> Result<HostTraceSummary, ReaderError> {
        let cpus = self.reader.finish(sink)?;
        Ok(HostTraceSummary { read: self.reader.stats(), cpus })
    }
}
