//! Where processor time went, by function: the samples (`strata:sample`) of a kernel and of its processes.
//!
//! A sample counts for the function that was interrupted (`self`), and once for every function that was being called
//! (`total`, where stacks were recorded). Functions of the kernel are named by what its module recorded of them
//! (`strata:symbol`), those of processes by their files, which the processes' mappings (`strata:mapping`) point into, under
//! a folder that holds the guest's root. What has no name is shown as it is: a file and a page in it, or an address,
//! rounded to its page.

mod mappings;

use super::table::{Align, Table};
use super::{Report, ReportError, Window, harmless, percent};
use crate::event_index::EventIndex;
use crate::guest_tasks::{GuestTasks, Tid, kernel_layers};
use crate::kernel_symbols::KernelSymbols;
use crate::merge::{Merge, MergedRecord};
use crate::reader::{Trace, TraceLayer};
use crate::user_symbols::UserSymbols;
use mappings::{Mappings, Place};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::path::Path;

/// Rows that are shown as text; JSON has all.
const FUNCTIONS_SHOWN: usize = 40;
const PROCESSES_SHOWN: usize = 10;
const OF_A_PROCESS_SHOWN: usize = 10;
/// Addresses from here on are the kernel's.
const KERNEL_HALF: u64 = 1 << 63;
const PAGE: u64 = 0x1000;

/// Samples of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FunctionsReport {
    /// By kernel that was sampled.
    pub kernels: Vec<SampledKernel>,
}

/// Samples of a kernel and its processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SampledKernel {
    /// The VM.
    pub vm: String,
    /// All samples.
    pub samples: u64,
    /// Of them, those that interrupted an idle CPU. They are in no function.
    pub idle: u64,
    /// Of them, those whose function has no name.
    pub unnamed: u64,
    /// Whether the recording holds the kernel's symbols.
    pub has_kernel_symbols: bool,
    /// By function, the one with the most samples of its own first.
    pub functions: Vec<FunctionSamples>,
    /// By process, the one with the most samples first.
    pub processes: Vec<ProcessSamples>,
}

/// Samples of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessSamples {
    /// Its id.
    pub pid: Tid,
    /// Its name.
    pub comm: String,
    /// Its samples.
    pub samples: u64,
    /// By function.
    pub functions: Vec<FunctionSamples>,
}

/// Samples of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FunctionSamples {
    /// Its name; what is known of it when it has none.
    pub function: String,
    /// The file or kernel module that it belongs to; `[kernel]` for the kernel itself, `?` when nothing is known.
    pub module: String,
    /// Whether `function` is a symbol.
    pub is_named: bool,
    /// Samples in it.
    #[serde(rename = "self")]
    pub own: u64,
    /// Samples in it or in what it called. As many as `self` without recorded stacks.
    pub total: u64,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Sample,
    Mapping,
    Exec,
    Fork,
    Switch,
}

fn kind(name: &str) -> Option<Kind> {
    Some(match name {
        "strata:sample" => Kind::Sample,
        "strata:mapping" => Kind::Mapping,
        "sched:sched_process_exec" => Kind::Exec,
        "sched:sched_process_fork" => Kind::Fork,
        "sched:sched_switch" => Kind::Switch,
        _ => return None,
    })
}

/// Makes the report; `symbols` is the folder that holds the guest's root, for the names of its programs' functions.
///
/// # Errors
/// When no kernel was sampled, or symbols cannot be read.
pub fn report(trace: &Trace, window: Window, symbols: Option<&Path>) -> Result<FunctionsReport, ReportError> {
    let is_sampled = |layer: &TraceLayer| layer.schemas.iter().any(|schema| schema.name() == "strata:sample");
    let mut kernels = Vec::new();
    for vm in crate::guest_tasks::guests(trace) {
        if kernel_layers(trace, &vm).any(is_sampled) {
            let user = symbols.map(UserSymbols::new).transpose().map_err(|source| ReportError::SymbolFolder {
                path: symbols.unwrap_or(Path::new("")).into(),
                source,
            })?;
            let kernel = KernelSymbols::of(kernel_layers(trace, &vm));
            let tasks = GuestTasks::new(trace, &vm, window);
            let mut collector = Collector::new(tasks, kernel, user);
            // Mappings are told once: those from before the window hold in it.
            for merged in Merge::new(kernel_layers(trace, &vm), 0).take_while(|merged| merged.record.time < window.end)
            {
                collector.add(&merged, window);
            }
            kernels.push(collector.finish(vm));
        }
    }
    kernels.retain(|kernel| kernel.samples > 0);
    if kernels.is_empty() {
        let missing = "no samples (strata:sample) were recorded; record with --events 'guest:strata:*' among others";
        return Err(ReportError::Nothing { missing: missing.into() });
    }
    Ok(FunctionsReport { kernels })
}

/// A function that was met: name, module, whether it is a symbol.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Function {
    name: String,
    module: String,
    is_named: bool,
}

/// Number of a function in the order in which they were met.
type FunctionId = usize;

#[derive(Clone, Debug, Default)]
struct Counts {
    samples: u64,
    functions: BTreeMap<FunctionId, (u64, u64)>,
}

impl Counts {
    fn add(&mut self, functions: &[FunctionId]) {
        self.samples += 1;
        for (place, &function) in functions.iter().enumerate() {
            let (own, total) = self.functions.entry(function).or_default();
            *own += u64::from(place == 0);
            // A function that calls itself counts once.
            *total += u64::from(!functions.get(..place).is_some_and(|before| before.contains(&function)));
        }
    }
}

struct Collector {
    tasks: GuestTasks,
    index: EventIndex<Kind>,
    kernel: KernelSymbols,
    user: Option<UserSymbols>,
    mappings: Mappings,
    functions: Vec<Function>,
    numbers: HashMap<Function, FunctionId>,
    /// What was looked up already: by file and offset, or by address in the kernel.
    found: HashMap<Place, FunctionId>,
    all: Counts,
    idle: u64,
    processes: BTreeMap<Tid, Counts>,
}

impl Collector {
    fn new(tasks: GuestTasks, kernel: KernelSymbols, user: Option<UserSymbols>) -> Self {
        Self {
            tasks,
            index: EventIndex::new(kind),
            kernel,
            user,
            mappings: Mappings::default(),
            functions: Vec::new(),
            numbers: HashMap::new(),
            found: HashMap::new(),
            all: Counts::default(),
            idle: 0,
            processes: BTreeMap::new(),
        }
    }

    fn add(&mut self, merged: &MergedRecord<'_>, window: Window) {
        let record = &merged.record;
        let number = |name| record.number(name).and_then(|number| Tid::try_from(number).ok());
        match self.index.kind(merged) {
            Some(Kind::Mapping) => {
                let (Some(pid), Some(begin), Some(end)) =
                    (number("pid"), record.unsigned("begin"), record.unsigned("end"))
                else {
                    return;
                };
                let offset = record.unsigned("offset").unwrap_or(0);
                self.mappings.map(pid, begin, end, offset, &record.text("path").unwrap_or_default());
            }
            Some(Kind::Exec) => {
                if let Some(pid) = number("pid") {
                    self.mappings.exec(pid);
                }
            }
            Some(Kind::Fork) => {
                if let (Some(parent), Some(child)) = (number("parent_pid"), number("child_pid"))
                    && self.tasks.process(child) == child
                {
                    self.mappings.fork(self.tasks.process(parent), child);
                }
            }
            Some(Kind::Sample) if record.time >= window.begin => {
                let (Some(ip), pid) = (record.unsigned("ip"), number("pid").unwrap_or(0)) else { return };
                let is_user = record.number("user").is_some_and(|user| user != 0);
                if pid == 0 && !is_user {
                    self.idle += 1;
                    return;
                }
                let mut functions = vec![self.function(pid, ip, ip)];
                for address in record.addresses("stack") {
                    // A return address may lie behind its function's end; the call lies before it.
                    functions.push(self.function(pid, address.saturating_sub(1), address));
                }
                self.all.add(&functions);
                self.processes.entry(pid).or_default().add(&functions);
            }
            Some(Kind::Sample | Kind::Switch) | None => {}
        }
    }

    /// The function at `address` in process `pid`; `shown` is the address to show if it has no name.
    fn function(&mut self, pid: Tid, address: u64, shown: u64) -> FunctionId {
        let place = match address {
            KERNEL_HALF.. => Place::Address(address),
            _ => self.mappings.place(pid, address),
        };
        if let Some(&known) = self.found.get(&place) {
            return known;
        }
        let function = match &place {
            Place::Address(address) if *address >= KERNEL_HALF => self.kernel_function(*address, shown),
            Place::Address(_) => unnamed(format!("{:#x}", shown / PAGE * PAGE), "?"),
            Place::File { path, offset } => {
                let name = self.user.as_mut().and_then(|user| user.function(path, *offset));
                match name {
                    Some(name) => Function { name, module: path.clone(), is_named: true },
                    None => unnamed(format!("+{:#x}", offset / PAGE * PAGE), path),
                }
            }
        };
        let next = self.functions.len();
        let id = *self.numbers.entry(function.clone()).or_insert(next);
        if id == next {
            self.functions.push(function);
        }
        self.found.insert(place, id);
        id
    }

    fn kernel_function(&self, address: u64, shown: u64) -> Function {
        match self.kernel.find(address) {
            Some((symbol, _)) => {
                let module = symbol.module.as_ref().map_or_else(|| "[kernel]".into(), |module| format!("[{module}]"));
                Function { name: symbol.name.clone(), module, is_named: true }
            }
            None => unnamed(format!("{:#x}", shown / PAGE * PAGE), "[kernel]"),
        }
    }

    fn finish(self, vm: String) -> SampledKernel {
        let rows = |counts: &Counts| {
            let row = |(&id, &(own, total)): (&FunctionId, &(u64, u64))| {
                let function = self.functions.get(id)?;
                let (name, module, is_named) = (function.name.clone(), function.module.clone(), function.is_named);
                Some(FunctionSamples { function: name, module, is_named, own, total })
            };
            let mut rows: Vec<_> = counts.functions.iter().filter_map(row).collect();
            rows.sort_by(|left, right| {
                let key = |row: &FunctionSamples| std::cmp::Reverse((row.own, row.total));
                key(left).cmp(&key(right)).then_with(|| left.function.cmp(&right.function))
            });
            rows
        };
        let functions = rows(&self.all);
        let unnamed = functions.iter().filter(|row| !row.is_named).map(|row| row.own).sum();
        let process = |(&pid, counts): (&Tid, &Counts)| ProcessSamples {
            pid,
            comm: self.tasks.comm(pid).unwrap_or("?").into(),
            samples: counts.samples,
            functions: rows(counts),
        };
        let mut processes: Vec<_> = self.processes.iter().map(process).collect();
        processes.sort_by_key(|process| (std::cmp::Reverse(process.samples), process.pid));
        SampledKernel {
            vm,
            samples: self.all.samples + self.idle,
            idle: self.idle,
            unnamed,
            has_kernel_symbols: !self.kernel.is_empty(),
            functions,
            processes,
        }
    }
}

fn unnamed(name: String, module: &str) -> Function {
    Function { name, module: module.into(), is_named: false }
}

impl Report for FunctionsReport {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for kernel in &self.kernels {
            let owner = &kernel.vm;
            let (samples, idle, unnamed) = (kernel.samples, kernel.idle, kernel.unnamed);
            writeln!(out, "{owner}: {samples} samples, {idle} of them idle, {unnamed} in functions without a name")?;
            if !kernel.has_kernel_symbols {
                writeln!(out, "NOTE: the recording holds no symbols of this kernel: its functions are shown by page")?;
            }
            write_functions(&kernel.functions, kernel.samples - kernel.idle, FUNCTIONS_SHOWN, out)?;
            for process in kernel.processes.iter().take(PROCESSES_SHOWN) {
                let (pid, comm) = (process.pid, harmless(&process.comm));
                writeln!(out, "\npid {pid}: {comm}, {} samples", process.samples)?;
                write_functions(&process.functions, process.samples, OF_A_PROCESS_SHOWN, out)?;
            }
            let more = kernel.processes.len().saturating_sub(PROCESSES_SHOWN);
            if more > 0 {
                writeln!(out, "\n… and {more} processes more, which --json shows")?;
            }
        }
        Ok(())
    }
}

fn write_functions(rows: &[FunctionSamples], samples: u64, shown: usize, out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(&[
        ("self", Align::Right),
        ("", Align::Right),
        ("total", Align::Right),
        ("", Align::Right),
        ("function", Align::Left),
        ("in", Align::Left),
    ]);
    for row in rows.iter().take(shown) {
        table.row([
            row.own.to_string(),
            percent(row.own, samples),
            row.total.to_string(),
            percent(row.total, samples),
            harmless(&row.function),
            harmless(&row.module),
        ]);
    }
    table.write(out)?;
    match rows.len().saturating_sub(shown) {
        0 => Ok(()),
        more => writeln!(out, "… and {more} functions more, which --json shows"),
    }
}

#[cfg(test)]
mod tests;
