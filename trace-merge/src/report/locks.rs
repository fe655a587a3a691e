//! Waiting for locks: of the guest's kernel by lock and call site, of its applications by futex.
//!
//! A wait for a kernel lock lasts from `lock:contention_begin` to `lock:contention_end` of its task; a lock that nobody
//! else holds has no such events. A mutex announces itself again when it stops spinning and goes to sleep: that is one
//! wait. The call site is the call stack where one was recorded (`strata:stack` behind `contention_begin`), else what the
//! task was doing: the system call, the interrupt, or neither. A lock has a name when it is a variable of the kernel and
//! the kernel's symbols were recorded.
//!
//! A wait for a futex is a `futex` system call that waits, from call to return. Waits that were not needed (the value had
//! changed) are counted apart.

use super::table::{Align, Table};
use super::{Report, ReportError, Window, duration, harmless};
use crate::clock::Clock;
use crate::event_index::EventIndex;
use crate::guest_tasks::{GuestTasks, Tid, guests, kernel_layers, kernel_records};
use crate::kernel_symbols::KernelSymbols;
use crate::merge::MergedRecord;
use crate::reader::{StreamRecord, Trace};
use crate::syscall_names;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

/// Rows that are shown as text; JSON has all.
const ROWS_SHOWN: usize = 20;
/// Calls of a stack that are shown as text.
const CALLS_SHOWN: usize = 4;
/// Most locks that a task can be waiting for at once that are followed: one per context.
const NESTED: usize = 8;

/// Flags of `lock:contention_begin`.
mod flag {
    pub const SPIN: u64 = 1;
    pub const READ: u64 = 2;
    pub const WRITE: u64 = 4;
    pub const RT: u64 = 8;
    pub const PERCPU: u64 = 16;
    pub const MUTEX: u64 = 32;
}

/// Operations of `futex(2)` that wait, without their modifiers.
const FUTEX_WAITS: [(u64, &str); 5] =
    [(0, "wait"), (6, "lock_pi"), (9, "wait_bitset"), (11, "wait_requeue_pi"), (13, "lock_pi2")];
const FUTEX_COMMAND: u64 = 0x7f;

/// Results of a futex wait.
const EAGAIN: i64 = -11;
const ETIMEDOUT: i64 = -110;

/// Waiting for locks in all guests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LocksReport {
    /// By VM.
    pub guests: Vec<GuestLocks>,
}

/// Waiting for locks in one guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GuestLocks {
    /// Name of the VM.
    pub vm: String,
    /// Kernel locks by lock and call site, the one that was waited for longest first.
    pub kernel: Vec<KernelLock>,
    /// Futexes, the one that was waited for longest first.
    pub futexes: Vec<Futex>,
    /// Waits for kernel locks whose end is not in the trace, or during which records were lost. Not in the rows.
    pub unfinished: u64,
    /// Whether the events of kernel locks were recorded at all.
    pub kernel_locks_recorded: bool,
}

/// Waits that have something in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Waits {
    /// Number.
    pub count: u64,
    /// All together, ns.
    pub total_ns: u64,
    /// The longest, ns.
    pub max_ns: u64,
}

/// Waiting for a kernel lock at one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KernelLock {
    /// Address of the lock.
    pub address: u64,
    /// Its name, where the kernel's symbols tell it.
    pub name: Option<String>,
    /// What it is.
    pub kind: String,
    /// What waited: a system call, `interrupt`, or `-`.
    pub context: String,
    /// The calls that led there, innermost first: symbols, else addresses. Empty without a recorded stack.
    pub calls: Vec<String>,
    /// The waits.
    #[serde(flatten)]
    pub waits: Waits,
    /// Who waited, the longest first.
    pub waiters: Vec<Waiter>,
}

/// A process that waited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Waiter {
    /// Its id.
    pub pid: Tid,
    /// Its name.
    pub comm: String,
    /// Its waits.
    #[serde(flatten)]
    pub waits: Waits,
}

/// Waiting for a futex.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Futex {
    /// The process.
    pub pid: Tid,
    /// Its name.
    pub comm: String,
    /// Address of the futex in the process.
    pub address: u64,
    /// The operation.
    pub operation: String,
    /// Waits that waited.
    #[serde(flatten)]
    pub waits: Waits,
    /// Of them, those that ended because the time was up.
    pub timed_out: u64,
    /// Calls that did not wait, because the value had changed already. Not in the waits.
    pub not_needed: u64,
    /// Waits whose end is not in the trace, or during which records were lost. Not in the waits.
    pub unfinished: u64,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Switch,
    Begin,
    End,
    Stack,
    SyscallEnter,
    SyscallExit,
    InterruptEntry,
    InterruptExit,
    ProcessExit,
}

fn kind(name: &str) -> Option<Kind> {
    Some(match name {
        "sched:sched_switch" => Kind::Switch,
        "lock:contention_begin" => Kind::Begin,
        "lock:contention_end" => Kind::End,
        "strata:stack" => Kind::Stack,
        "raw_syscalls:sys_enter" => Kind::SyscallEnter,
        "raw_syscalls:sys_exit" => Kind::SyscallExit,
        "irq:irq_handler_entry" | "irq:softirq_entry" | "irq_vectors:local_timer_entry" => Kind::InterruptEntry,
        "irq:irq_handler_exit" | "irq:softirq_exit" | "irq_vectors:local_timer_exit" => Kind::InterruptExit,
        "sched:sched_process_exit" => Kind::ProcessExit,
        _ => return None,
    })
}

/// Makes the report.
///
/// # Errors
/// When no guest recorded lock contention or system calls.
pub fn report(trace: &Trace, window: Window) -> Result<LocksReport, ReportError> {
    let mut reports = Vec::new();
    for vm in guests(trace) {
        let symbols = KernelSymbols::of(kernel_layers(trace, &vm));
        let recorded = |wanted: &str| {
            let mut layers = crate::guest_tasks::kernel_layers(trace, &vm);
            layers.any(|layer| layer.schemas.iter().any(|schema| schema.name() == wanted))
        };
        let kernel_locks_recorded = recorded("lock:contention_begin");
        if !kernel_locks_recorded && !recorded("raw_syscalls:sys_enter") {
            continue;
        }
        let mut collector = Collector::new(GuestTasks::new(trace, &vm, window));
        for merged in kernel_records(trace, &vm, window) {
            collector.add(&merged);
        }
        let mut guest = collector.finish(vm, trace.clock(), &symbols);
        guest.kernel_locks_recorded = kernel_locks_recorded;
        reports.push(guest);
    }
    if reports.is_empty() {
        let missing = "no guest recorded lock:contention_begin and lock:contention_end, nor system calls; record with \
                       --agent and --events 'guest:lock:*,guest:raw_syscalls:*,guest:sched:*'";
        return Err(ReportError::Nothing { missing: missing.into() });
    }
    Ok(LocksReport { guests: reports })
}

/// Waits in the making, ticks.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    count: u64,
    total: u64,
    max: u64,
}

impl Sums {
    fn add(&mut self, ticks: u64) {
        self.count += 1;
        self.total = self.total.saturating_add(ticks);
        self.max = self.max.max(ticks);
    }

    const fn waits(&self, clock: &Clock) -> Waits {
        Waits { count: self.count, total_ns: clock.ticks_to_ns(self.total), max_ns: clock.ticks_to_ns(self.max) }
    }
}

/// Where a task waits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    address: u64,
    flags: u64,
    context: Context,
    stack: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Context {
    Interrupt,
    Syscall(i64),
    Other,
}

impl Context {
    fn name(self) -> String {
        match self {
            Self::Interrupt => "interrupt".into(),
            Self::Syscall(number) => {
                syscall_names::name(number).map_or_else(|| format!("syscall_{number}"), Into::into)
            }
            Self::Other => "-".into(),
        }
    }
}

/// A wait that has not ended.
#[derive(Clone, Debug)]
struct Waiting {
    place: Place,
    begin: u64,
    across_gap: bool,
}

/// A system call that has not returned.
#[derive(Clone, Copy, Debug)]
struct Call {
    number: i64,
    entered: u64,
    /// Address and operation, for a futex wait.
    futex: Option<(u64, &'static str)>,
    across_gap: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct FutexSums {
    waits: Sums,
    timed_out: u64,
    not_needed: u64,
    unfinished: u64,
}

struct Collector {
    tasks: GuestTasks,
    index: EventIndex<Kind>,
    waiting: HashMap<Tid, Vec<Waiting>>,
    calls: HashMap<Tid, Call>,
    /// By CPU: how many interrupts are being handled.
    interrupts: HashMap<u32, u32>,
    /// By CPU: whose wait began with the record before this one.
    begun: HashMap<u32, Tid>,
    kernel: BTreeMap<Place, BTreeMap<Tid, Sums>>,
    futexes: BTreeMap<(Tid, u64, &'static str), FutexSums>,
    unfinished: u64,
}

impl Collector {
    fn new(tasks: GuestTasks) -> Self {
        Self {
            tasks,
            index: EventIndex::new(kind),
            waiting: HashMap::new(),
            calls: HashMap::new(),
            interrupts: HashMap::new(),
            begun: HashMap::new(),
            kernel: BTreeMap::new(),
            futexes: BTreeMap::new(),
            unfinished: 0,
        }
    }

    fn add(&mut self, merged: &MergedRecord<'_>) {
        let kind = self.index.kind(merged);
        let record = &merged.record;
        let cpu = merged.stream.description.cpu_id;
        let tid = self.tasks.running(merged, matches!(kind, Some(Kind::Switch)));
        if record.after_gap {
            self.waiting.values_mut().flatten().for_each(|waiting| waiting.across_gap = true);
            self.calls.values_mut().for_each(|call| call.across_gap = true);
            self.interrupts.remove(&cpu);
            self.begun.remove(&cpu);
        }
        let begun = self.begun.remove(&cpu);
        let (Some(kind), Some(tid)) = (kind, tid) else { return };
        match kind {
            Kind::Switch => {
                // Nothing is switched away from inside an interrupt.
                self.interrupts.insert(cpu, 0);
            }
            Kind::Begin => self.begin(cpu, tid, record),
            Kind::End => self.end(tid, record),
            Kind::Stack => {
                let waiting = begun.and_then(|tid| self.waiting.get_mut(&tid)?.last_mut());
                if let Some(waiting) = waiting {
                    waiting.place.stack = record.addresses("stack");
                }
            }
            Kind::SyscallEnter => self.enter(tid, record),
            Kind::SyscallExit => self.exit(tid, record),
            Kind::InterruptEntry => *self.interrupts.entry(cpu).or_default() += 1,
            Kind::InterruptExit => {
                let depth = self.interrupts.entry(cpu).or_default();
                *depth = depth.saturating_sub(1);
            }
            Kind::ProcessExit => {
                self.calls.remove(&tid);
                self.unfinished += self.waiting.remove(&tid).map_or(0, |waiting| waiting.len() as u64);
            }
        }
    }

    fn begin(&mut self, cpu: u32, tid: Tid, record: &StreamRecord<'_>) {
        let Some(address) = record.unsigned("lock_addr") else { return };
        let context = match (self.interrupts.get(&cpu).copied().unwrap_or(0), self.calls.get(&tid)) {
            (1.., _) => Context::Interrupt,
            (0, Some(call)) => Context::Syscall(call.number),
            (0, None) => Context::Other,
        };
        let waiting = self.waiting.entry(tid).or_default();
        if waiting.last().is_some_and(|waiting| waiting.place.address == address) {
            return;
        }
        if waiting.len() == NESTED {
            // Ends that are not in the trace.
            waiting.remove(0);
            self.unfinished += 1;
        }
        // Whether a mutex spins or sleeps changes while it is waited for.
        let flags = record.unsigned("flags").unwrap_or(0);
        let flags = if flags & flag::MUTEX == 0 { flags } else { flags & !flag::SPIN };
        let place = Place { address, flags, context, stack: record.addresses("stack") };
        waiting.push(Waiting { place, begin: record.time, across_gap: false });
        self.begun.insert(cpu, tid);
    }

    fn end(&mut self, tid: Tid, record: &StreamRecord<'_>) {
        let address = record.unsigned("lock_addr");
        let Some(waiting) = self.waiting.get_mut(&tid) else { return };
        let Some(at) = waiting.iter().rposition(|waiting| Some(waiting.place.address) == address) else { return };
        // What began inside of it and did not end before it will not end any more.
        self.unfinished += (waiting.len() - at - 1) as u64;
        let ended = waiting.drain(at..).next();
        match ended {
            Some(Waiting { place, begin, across_gap: false }) => {
                let process = self.tasks.process(tid);
                self.kernel
                    .entry(place)
                    .or_default()
                    .entry(process)
                    .or_default()
                    .add(record.time.saturating_sub(begin));
            }
            _ => self.unfinished += 1,
        }
    }

    fn enter(&mut self, tid: Tid, record: &StreamRecord<'_>) {
        let Some(number) = record.number("id") else { return };
        let futex = (syscall_names::name(number) == Some("futex")).then(|| {
            let command = record.argument(1)? & FUTEX_COMMAND;
            let &(_, operation) = FUTEX_WAITS.iter().find(|&&(wait, _)| wait == command)?;
            Some((record.argument(0)?, operation))
        });
        let call = Call { number, entered: record.time, futex: futex.flatten(), across_gap: false };
        if let Some(Call { futex: Some(futex), .. }) = self.calls.insert(tid, call) {
            self.futex(tid, futex).unfinished += 1;
        }
    }

    fn exit(&mut self, tid: Tid, record: &StreamRecord<'_>) {
        let Some(Call { number, entered, futex: Some(futex), across_gap }) = self.calls.remove(&tid) else { return };
        let result = record.number("ret").unwrap_or(0);
        let returned = record.number("id") == Some(number) && !across_gap;
        let sums = self.futex(tid, futex);
        match result {
            _ if !returned => sums.unfinished += 1,
            EAGAIN => sums.not_needed += 1,
            _ => {
                sums.waits.add(record.time.saturating_sub(entered));
                sums.timed_out += u64::from(result == ETIMEDOUT);
            }
        }
    }

    fn futex(&mut self, tid: Tid, (address, operation): (u64, &'static str)) -> &mut FutexSums {
        self.futexes.entry((self.tasks.process(tid), address, operation)).or_default()
    }

    fn finish(mut self, vm: String, clock: &Clock, symbols: &KernelSymbols) -> GuestLocks {
        self.unfinished += self.waiting.values().map(|waiting| waiting.len() as u64).sum::<u64>();
        for (tid, call) in std::mem::take(&mut self.calls) {
            if let Some(futex) = call.futex {
                self.futex(tid, futex).unfinished += 1;
            }
        }
        let comm = |pid| self.tasks.comm(pid).unwrap_or("?").to_string();
        let kernel = self.kernel.iter().map(|(place, waiters)| {
            let mut sum = Sums::default();
            for waiter in waiters.values() {
                sum.count += waiter.count;
                sum.total = sum.total.saturating_add(waiter.total);
                sum.max = sum.max.max(waiter.max);
            }
            let waiter = |(&pid, sums): (&Tid, &Sums)| Waiter { pid, comm: comm(pid), waits: sums.waits(clock) };
            let mut waiters: Vec<_> = waiters.iter().map(waiter).collect();
            waiters.sort_by_key(|waiter| std::cmp::Reverse(waiter.waits.total_ns));
            KernelLock {
                address: place.address,
                name: symbols.find(place.address).map(|(symbol, offset)| with_offset(&symbol.label(), offset)),
                kind: kind_of_lock(place.flags).into(),
                context: place.context.name(),
                calls: calls(symbols, &place.stack),
                waits: sum.waits(clock),
                waiters,
            }
        });
        let mut kernel: Vec<_> = kernel.collect();
        kernel.sort_by_key(|row| (std::cmp::Reverse(row.waits.total_ns), row.address));
        let futex = |(&(pid, address, operation), sums): (&(Tid, u64, &str), &FutexSums)| Futex {
            pid,
            comm: comm(pid),
            address,
            operation: operation.into(),
            waits: sums.waits.waits(clock),
            timed_out: sums.timed_out,
            not_needed: sums.not_needed,
            unfinished: sums.unfinished,
        };
        let mut futexes: Vec<_> = self.futexes.iter().map(futex).collect();
        futexes.sort_by_key(|row| (std::cmp::Reverse(row.waits.total_ns), row.pid, row.address));
        GuestLocks { vm, kernel, futexes, unfinished: self.unfinished, kernel_locks_recorded: true }
    }
}

/// What the flags of `lock:contention_begin` say a lock is.
fn kind_of_lock(flags: u64) -> &'static str {
    let is = |flag| flags & flag != 0;
    match () {
        () if is(flag::MUTEX) => "mutex",
        () if is(flag::PERCPU) && is(flag::WRITE) => "percpu rwsem (write)",
        () if is(flag::PERCPU) => "percpu rwsem (read)",
        () if is(flag::RT) => "rt-mutex",
        () if is(flag::SPIN) && is(flag::READ) => "rwlock (read)",
        () if is(flag::SPIN) && is(flag::WRITE) => "rwlock (write)",
        () if is(flag::SPIN) => "spinlock",
        () if is(flag::READ) => "rwsem (read)",
        () if is(flag::WRITE) => "rwsem (write)",
        () => "sleeping lock",
    }
}

fn with_offset(name: &str, offset: u64) -> String {
    if offset == 0 { name.into() } else { format!("{name}+{offset:#x}") }
}

/// The calls of a stack, innermost first, without those of the tracer itself.
fn calls(symbols: &KernelSymbols, stack: &[u64]) -> Vec<String> {
    let is_tracer = |label: &String| label.contains("[strata]") || label.starts_with("__traceiter_");
    stack.iter().map(|&call| call_label(symbols, call)).skip_while(is_tracer).collect()
}

/// A return address as a symbol, else as it is.
fn call_label(symbols: &KernelSymbols, address: u64) -> String {
    // A return address may lie behind the end of a function that never returns: the call lies before it.
    let symbol = symbols.find(address.saturating_sub(1));
    symbol.map_or_else(|| format!("{address:#x}"), |(symbol, offset)| with_offset(&symbol.label(), offset + 1))
}

impl Report for LocksReport {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for guest in &self.guests {
            guest.write(out)?;
        }
        Ok(())
    }
}

impl GuestLocks {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.kernel_locks_recorded {
            let waits: u64 = self.kernel.iter().map(|lock| lock.waits.count).sum();
            writeln!(out, "{}: {waits} waits for locks of the guest's kernel", self.vm)?;
            self.write_kernel(out)?;
        } else {
            writeln!(
                out,
                "{}: locks of the guest's kernel were not recorded (guest:lock:contention_begin and _end)",
                self.vm
            )?;
        }
        let waits: u64 = self.futexes.iter().map(|futex| futex.waits.count).sum();
        writeln!(out, "\n{}: {waits} waits for futexes", self.vm)?;
        self.write_futexes(out)?;
        if self.unfinished > 0 {
            let unfinished = self.unfinished;
            writeln!(
                out,
                "NOTE: {unfinished} waits for kernel locks do not end in the trace; they are not in the table"
            )?;
        }
        Ok(())
    }

    fn write_kernel(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = Table::new(&[
            ("lock", Align::Left),
            ("kind", Align::Left),
            ("count", Align::Right),
            ("time", Align::Right),
            ("longest", Align::Right),
            ("in", Align::Left),
            ("waiter", Align::Left),
            ("call site", Align::Left),
        ]);
        for lock in self.kernel.iter().take(ROWS_SHOWN) {
            let first = lock.waiters.first().map(|waiter| format!("{}/{}", waiter.pid, harmless(&waiter.comm)));
            let others = lock.waiters.len().saturating_sub(1);
            let others = if others > 0 { format!(" and {others} more") } else { String::new() };
            table.row([
                lock.name.clone().unwrap_or_else(|| format!("{:#x}", lock.address)),
                lock.kind.clone(),
                lock.waits.count.to_string(),
                duration(lock.waits.total_ns),
                duration(lock.waits.max_ns),
                lock.context.clone(),
                first.unwrap_or_default() + &others,
                lock.calls.iter().take(CALLS_SHOWN).cloned().collect::<Vec<_>>().join(" < "),
            ]);
        }
        if !table.is_empty() {
            table.write(out)?;
        }
        write_more(self.kernel.len(), out)
    }

    fn write_futexes(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = Table::new(&[
            ("futex", Align::Left),
            ("operation", Align::Left),
            ("process", Align::Left),
            ("count", Align::Right),
            ("time", Align::Right),
            ("longest", Align::Right),
            ("timed out", Align::Right),
            ("not needed", Align::Right),
            ("unfinished", Align::Right),
        ]);
        for futex in self.futexes.iter().take(ROWS_SHOWN) {
            table.row([
                format!("{:#x}", futex.address),
                futex.operation.clone(),
                format!("{}/{}", futex.pid, harmless(&futex.comm)),
                futex.waits.count.to_string(),
                duration(futex.waits.total_ns),
                duration(futex.waits.max_ns),
                futex.timed_out.to_string(),
                futex.not_needed.to_string(),
                futex.unfinished.to_string(),
            ]);
        }
        if !table.is_empty() {
            table.write(out)?;
        }
        write_more(self.futexes.len(), out)
    }
}

/// Says how many of `rows` rows are not shown.
fn write_more(rows: usize, out: &mut dyn Write) -> io::Result<()> {
    match rows.saturating_sub(ROWS_SHOWN) {
        0 => Ok(()),
        more => writeln!(out, "… and {more} rows more, which --json shows"),
    }
}

#[cfg(test)]
mod tests;
