//! Traces the host's kernel for one virtual machine: what is recorded of each thread, and what of it was lost.

use super::item::{HostItem, HostRecord};
use super::kallsyms::Kallsyms;
use super::namespace::check_thread_ids;
use super::reader::{CpuSummary, Reader, ReaderError, Rest, Sink};
use super::schema::{EventName, EventSchema, Run};
use super::stats::{CpuStats, ReaderStats};
use super::switches::{self, Switches};
use super::tracefs::{Instance, ThreadFilter, Tracefs, TracefsError};
use super::workers::WorkerSearch;
use shared_ring::event::EventDescription;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use strata_clock::HostTime;

/// How often threads of the kernel that work for the machine are looked for.
const WORKER_INTERVAL: Duration = Duration::from_secs(1);

/// What to trace.
#[derive(Clone, Debug)]
pub struct HostTraceConfig {
    /// Events of this kernel, from [`Tracefs::available_events`].
    pub events: Vec<EventName>,
    /// The process that runs the machine.
    pub process: u32,
    /// Kernel thread ids of the machine's threads so far, at least one. The kernel follows those that they start.
    pub threads: Vec<u32>,
    /// Whether others can be added later, and threads of the kernel that work for the machine are looked for meanwhile.
    /// Without it that ends when the thread that polls has [left itself out](HostTracer::leave_out_this_thread).
    pub takes_more: bool,
    /// What the times of the records count.
    pub time: HostTime,
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
#[derive(Clone, Debug)]
pub struct HostTraceSummary {
    /// What was read.
    pub read: ReaderStats,
    /// The kernel's counts, per instance and CPU.
    pub cpus: Vec<CpuSummary>,
    /// Context switches that were read but do not concern the machine; not handed on.
    pub unrelated_switches: u64,
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
#[derive(Clone, Debug, Default)]
pub struct EventSchemas {
    /// Sorted by number.
    schemas: Vec<EventSchema>,
    /// Index in `schemas` plus one, by number; 0 for those that were not chosen.
    by_id: Vec<u16>,
    /// Where the fields lie of those that have them in one piece, by number. Looked at for every record.
    runs: Vec<Option<Run>>,
}

impl EventSchemas {
    /// Those of `schemas`, whose numbers differ.
    #[must_use]
    pub fn new(mut schemas: Vec<EventSchema>) -> Self {
        schemas.sort_by_key(EventSchema::id);
        let most = schemas.last().map_or(0, |schema| usize::from(schema.id()) + 1);
        let (mut by_id, mut runs) = (vec![0; most], vec![None; most]);
        // Ids differ and are 16 bits wide, so that numbers are.
        for (schema, number) in schemas.iter().zip(1_u16..) {
            by_id[usize::from(schema.id())] = number;
            runs[usize::from(schema.id())] = schema.run();
        }
        Self { schemas, by_id, runs }
    }

    /// The event with this number; `None` if it was not chosen.
    #[inline]
    pub fn get(&self, id: u16) -> Option<&EventSchema> {
        let number = usize::from(*self.by_id.get(usize::from(id))?);
        self.schemas.get(number.checked_sub(1)?)
    }

    /// The fields of `record` as [`EventSchema::encode`] lays them out, where they lie, and whether a copy of them is to be
    /// [cleared behind its texts](EventSchema::clear_behind_texts). `None` if they are not recorded in one piece.
    #[inline(always)]
    pub fn in_one_piece<'r>(&self, record: &HostRecord<'r>) -> Option<(&'r [u8], bool)> {
        let run = (*self.runs.get(usize::from(record.event_id))?)?;
        let fields = record.payload.get(usize::from(run.start)..usize::from(run.end))?;
        Some((fields, run.has_texts))
    }

    /// The events in the order of their numbers.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &EventSchema> {
        self.schemas.iter()
    }
}

/// Traces the host's kernel for one virtual machine until it is dropped.
#[derive(Debug)]
pub struct HostTracer {
    /// Holds the instance of the machine's threads; there is no other strong reference to it.
    pub(super) reader: Reader,
    /// Context switches, if they were chosen.
    pub(super) switches: Option<Switches>,
    schemas: Arc<EventSchemas>,
    threads: ThreadFilter,
    process: u32,
    takes_more: bool,
    workers: WorkerSearch,
    searched: Instant,
    not_enabled: Vec<EventNotEnabled>,
    time: HostTime,
    /// The kernel's symbols, where this user may see them.
    kallsyms: Option<Kallsyms>,
    /// Each CPU that is traced, and up to when all of it was handed on, ticks.
    read_up_to: BTreeMap<u32, u64>,
}

impl HostTracer {
    /// Makes the instances and starts recording. Instances of strata processes that have died are removed first.
    ///
    /// # Errors
    /// The kernel cannot be traced here or by this user, or none of the chosen events can be. Nothing is left behind.
    pub fn start(config: &HostTraceConfig) -> Result<Self, HostTraceError> {
        let tracefs = check_thread_ids()
            .map_err(TracefsError::from)
            .and_then(|()| Tracefs::find())
            .map_err(HostTraceError::Unavailable)?;
        tracefs.remove_leftovers().map_err(HostTraceError::Unavailable)?;
        let mut schemas = Vec::new();
        let mut not_enabled = Vec::new();
        let mut switches = None;
        // First, because it starts a helper process, which the other instance would follow.
        if config.events.contains(&switches::event()) {
            match Switches::create(&tracefs, config.time, config.buffer_kib) {
                Ok((instance, schema, fields)) => {
                    switches = Some((instance, fields));
                    schemas.push(schema);
                }
                Err(error) => not_enabled.push(EventNotEnabled { event: switches::event(), error }),
            }
        }
        let clock = config.time.trace_clock();
        let instance = Instance::create(&tracefs, clock, config.buffer_kib, &config.threads)
            .map_err(HostTraceError::Unavailable)?;
        for event in config.events.iter().filter(|event| **event != switches::event()) {
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
        let switches =
            switches.map(|(instance, fields)| Switches::start(instance, fields, &config.threads, config.time));
        let switches = switches.transpose().map_err(HostTraceError::Reader)?;
        instance.start().map_err(HostTraceError::Unavailable)?;
        let mut tracer = Self {
            reader,
            switches,
            schemas: Arc::new(EventSchemas::new(schemas)),
            threads,
            process: config.process,
            takes_more: config.takes_more,
            workers: WorkerSearch::default(),
            searched: Instant::now(),
            not_enabled,
            time: config.time,
            kallsyms: Kallsyms::open(),
            read_up_to: BTreeMap::new(),
        };
        tracer.follow_workers();
        Ok(tracer)
    }

    /// The symbols of the kernel that is traced; `None` where the user who started may not see its addresses.
    pub const fn kallsyms(&self) -> Option<&Kallsyms> {
        self.kallsyms.as_ref()
    }

    /// The descriptions of the events that are traced.
    pub fn schemas(&self) -> &Arc<EventSchemas> {
        &self.schemas
    }

    /// The types of the events that are traced.
    pub fn events(&self) -> Vec<EventDescription> {
        self.schemas.iter().map(|schema| schema.description.clone()).collect()
    }

    /// The chosen events that could not be enabled.
    pub fn not_enabled(&self) -> &[EventNotEnabled] {
        &self.not_enabled
    }

    /// A handle that other threads use to add themselves to what is traced.
    pub fn thread_filter(&self) -> ThreadFilter {
        self.threads.clone()
    }

    /// The machine's threads that are traced now, those that were followed included.
    ///
    /// # Errors
    /// The instance's list of threads cannot be read.
    pub fn traced_threads(&self) -> Result<Vec<u32>, TracefsError> {
        self.reader.instance().traced_threads()
    }

    /// Takes the calling thread off what is traced, for good: for the one that polls, which would record its own
    /// recording. As a thread that runs instead of others it still shows.
    ///
    /// # Errors
    /// The instance does not take the thread.
    pub fn leave_out_this_thread(&self) -> Result<(), TracefsError> {
        let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        let left_out = self.reader.instance().leave_out_thread(thread);
        if !self.takes_more {
            self.reader.instance().close_lists();
        }
        left_out
    }

    /// Looks for threads of the kernel that work for the machine. What cannot be found or added is not traced.
    fn follow_workers(&mut self) {
        self.searched = Instant::now();
        let Ok(traced) = self.traced_threads() else { return };
        let own: BTreeSet<u32> = traced.into_iter().chain([self.process]).collect();
        for worker in self.workers.look(Path::new("/proc"), self.process, &own) {
            let _ = self.threads.add(worker);
        }
    }

    /// Hands on what has been recorded since the last time, up to 256 KiB of pages for each CPU, or 32 KiB after
    /// [`poll_briefly`](Self::poll_briefly): records of one CPU in order, one CPU after the other. Returns what is left
    /// to be read at once. Never waits.
    ///
    /// # Errors
    /// A CPU's buffer cannot be read; what was read before has been handed on.
    pub fn poll(&mut self, sink: &mut impl for<'a> Sink<HostItem<'a>>) -> Result<Rest, ReaderError> {
        if self.takes_more && self.searched.elapsed() >= WORKER_INTERVAL {
            self.follow_workers();
        }
        let polled = self.time.now();
        let rest = match &mut self.switches {
            Some(switches) => switches.poll(&mut self.reader, sink),
            None => self.reader.poll(sink),
        }?;
        self.read_up_to = self.reader.read_up_to(polled).collect();
        for (cpu, up_to) in self.switches.iter().flat_map(|switches| switches.reader().read_up_to(polled)) {
            self.read_up_to.entry(cpu).and_modify(|known| *known = up_to.min(*known)).or_insert(up_to);
        }
        Ok(rest)
    }

    /// The CPUs that are traced, and for each up to when all of it was handed on by the last poll, ticks; nothing before
    /// that.
    pub fn read_up_to(&self) -> impl Iterator<Item = (u32, u64)> {
        self.read_up_to.iter().map(|(&cpu, &up_to)| (cpu, up_to))
    }

    /// From now on a poll ends soon, with more to read at once all the more often: for a thread that gives way to others.
    pub fn poll_briefly(&mut self) {
        self.reader.poll_briefly();
        self.switches.iter_mut().for_each(Switches::poll_briefly);
    }

    /// Whether less than a quarter of each buffer waits to be read.
    pub fn has_room(&self) -> bool {
        self.reader.has_room() && self.switches.as_ref().is_none_or(|switches| switches.reader().has_room())
    }

    /// Stops recording and hands on all that is left.
    ///
    /// # Errors
    /// Recording cannot be stopped, or a CPU's buffer or its counts cannot be read.
    pub fn finish(&mut self, sink: &mut impl for<'a> Sink<HostItem<'a>>) -> Result<HostTraceSummary, ReaderError> {
        let cpus = match &mut self.switches {
            Some(switches) => switches.finish(&mut self.reader, sink)?,
            None => self.reader.finish(sink)?,
        };
        let mut read = self.reader.stats();
        let mut unrelated_switches = 0;
        if let Some(switches) = &self.switches {
            read = read + switches.reader().stats() + switches.read_stats();
            unrelated_switches = switches.stats().unrelated;
        }
        Ok(HostTraceSummary { read, cpus, unrelated_switches })
    }
}
