//! Reads the context switches of the whole host beside the events of the machine's threads.
//!
//! The kernel's filter by thread passes a switch only if one of the machine's threads leaves or comes. Who else ran
//! while such a thread waited is in the switches between others, which therefore come from an instance of their own.

pub(crate) mod filter;
pub(crate) mod interleave;

use super::item::{HostItem, HostRecord};
use super::reader::{CpuSummary, Reader, ReaderError, Rest, Sink};
use super::schema::{EventName, EventSchema};
use super::stats::ReaderStats;
use super::tracefs::{Instance, Tracefs, TracefsError};
use filter::{SwitchFields, SwitchFilter};
use interleave::{InterleaveStats, Interleaver, Origin};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use strata_clock::HostTime;

/// The switches' share of the buffer: one event only, though of the whole host.
const BUFFER_SHARE: u32 = 4;
/// How long a thread that has ended counts as the machine's: its last switches are still to be read.
const REMEMBER: Duration = Duration::from_secs(1);

/// The context switches of the host.
#[derive(Debug)]
pub struct Switches {
    reader: Reader,
    interleaver: Interleaver,
    filter: SwitchFilter,
    fields: SwitchFields,
    /// The machine's threads, and when each was seen last.
    threads: BTreeMap<u32, Instant>,
    /// When they were requested last.
    requested: Instant,
    time: HostTime,
}

/// The event's name.
pub fn event() -> EventName {
    EventName { group: "sched".into(), name: "sched_switch".into() }
}

/// A switch event of a kernel that we do not know.
fn unknown() -> TracefsError {
    TracefsError::PageFormat("sched:sched_switch has not the usual fields".into())
}

impl Switches {
    /// Makes the instance, off until [`start`](Self::start), and says what its events look like. `buffer_kib` is the
    /// buffer per CPU of the events of the machine's threads.
    ///
    /// # Errors
    /// The instance cannot be made, or this kernel's `sched_switch` has other fields.
    pub fn create(
        tracefs: &Tracefs,
        time: HostTime,
        buffer_kib: u32,
    ) -> Result<(Arc<Instance>, EventSchema, SwitchFields), TracefsError> {
        let kib = buffer_kib.div_ceil(BUFFER_SHARE);
        let instance = Instance::create_for_all(tracefs, time.trace_clock(), kib)?;
        let schema = instance.schema(&event())?;
        let fields = SwitchFields::of(&schema).ok_or_else(unknown)?;
        instance.enable(&event())?;
        Ok((Arc::new(instance), schema, fields))
    }

    /// As [`Reader::poll_briefly`].
    pub fn poll_briefly(&mut self) {
        self.reader.poll_briefly();
    }

    /// Starts recording.
    ///
    /// # Errors
    /// The buffers cannot be opened, or the kernel refuses to record.
    pub fn start(
        instance: Arc<Instance>,
        fields: SwitchFields,
        threads: &[u32],
        time: HostTime,
    ) -> Result<Self, ReaderError> {
        let reader = Reader::open(Arc::clone(&instance))?;
        instance.start().map_err(ReaderError::Instance)?;
        let now = Instant::now();
        Ok(Self {
            reader,
            interleaver: Interleaver::default(),
            filter: SwitchFilter::default(),
            fields,
            threads: threads.iter().map(|thread| (*thread, now)).collect(),
            requested: now,
            time,
        })
    }

    /// Hands on what `machine` and this have recorded before now, in one order for each CPU.
    ///
    /// What is dated before now and cannot be read yet is still being written, and its CPU does nothing later
    /// meanwhile: interrupts apart, which do not switch. So nothing handed on later is older.
    ///
    /// # Errors
    /// A buffer of either cannot be read.
    pub fn poll(
        &mut self,
        machine: &mut Reader,
        sink: &mut impl for<'a> Sink<HostItem<'a>>,
    ) -> Result<Rest, ReaderError> {
        let now = self.time.now();
        self.request_threads(machine.instance());
        let interleaver = &mut self.interleaver;
        let of_machine =
            machine.poll_pages(&mut |cpu, up_to, page| interleaver.push(Origin::Machine, cpu, up_to, page))?;
        let mut push = |cpu, up_to: &mut u64, page: &mut Vec<u8>| interleaver.push(Origin::Switches, cpu, up_to, page);
        let rest = self.reader.poll_pages(&mut push)?.max(of_machine);
        let of_machine: BTreeMap<u32, u64> = machine.read_up_to(now).collect();
        let both = |(cpu, up_to): (u32, u64)| (cpu, of_machine.get(&cpu).map_or(up_to, |machine| up_to.min(*machine)));
        let up_to: Vec<(u32, u64)> = self.reader.read_up_to(now).map(both).collect();
        self.release(&up_to, sink);
        Ok(rest)
    }

    /// Stops both and hands on all that is left. Returns the kernel's counts of both.
    ///
    /// # Errors
    /// Recording cannot be stopped, or a buffer of either or its counts cannot be read.
    pub fn finish(
        &mut self,
        machine: &mut Reader,
        sink: &mut impl for<'a> Sink<HostItem<'a>>,
    ) -> Result<Vec<CpuSummary>, ReaderError> {
        machine.stop()?;
        self.reader.stop()?;
        self.request_threads(machine.instance());
        let interleaver = &mut self.interleaver;
        let mut cpus =
            machine.finish_pages(&mut |cpu, up_to, page| interleaver.push(Origin::Machine, cpu, up_to, page))?;
        let mut push = |cpu, up_to: &mut u64, page: &mut Vec<u8>| interleaver.push(Origin::Switches, cpu, up_to, page);
        cpus.extend(self.reader.finish_pages(&mut push)?);
        let all: Vec<(u32, u64)> = self.reader.read_up_to(u64::MAX).map(|(cpu, _)| (cpu, u64::MAX)).collect();
        self.release(&all, sink);
        Ok(cpus)
    }

    /// Hands on what is held of each CPU up to the time given for it.
    fn release(&mut self, up_to: &[(u32, u64)], sink: &mut impl for<'a> Sink<HostItem<'a>>) {
        let Self { interleaver, filter, fields, .. } = self;
        let mut matters = |record: HostRecord<'_>| {
            fields.read(record.cpu, record.time, record.payload).is_none_or(|switch| filter.matters(switch))
        };
        for &(cpu, until) in up_to {
            interleaver.release(cpu, until, &mut matters, sink);
        }
    }

    /// Asks which threads are the machine's. The kernel follows them; if it does not answer, those known stay.
    fn request_threads(&mut self, machine: &Instance) {
        let now = Instant::now();
        let Ok(threads) = machine.traced_threads() else { return };
        self.threads.extend(threads.into_iter().map(|thread| (thread, now)));
        // Those of the last time, too, however long ago that was: they may have ended since.
        let requested = std::mem::replace(&mut self.requested, now);
        self.threads.retain(|_, seen| *seen >= requested || now.duration_since(*seen) < REMEMBER);
        self.filter.set_threads(self.threads.keys().copied());
    }

    /// What was found in the pages of both.
    pub fn read_stats(&self) -> ReaderStats {
        self.interleaver.read_stats()
    }

    /// What was read.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Counts of what was not handed on as it came.
    pub fn stats(&self) -> InterleaveStats {
        self.interleaver.stats()
    }
}
