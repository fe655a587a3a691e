//! Where processor time went, by function: the samples (`strata:sample`) of a kernel and of its processes.
//!
//! A sample counts for the function that was interrupted (`self`), and once for every function that was being called
//! (`total`, where stacks were recorded). Functions of the kernel are named by what its module recorded of them
//! (`strata:symbol`), those of processes by their files, which the processes' mappings (`strata:mapping`) point into,
//! under a folder that holds the guest's root. What has no name is shown as it is: a file and a page in it, or an
//! address, rounded to its page.

mod mappings;
mod stacks;

use crate::report::description::{Description, Requested};
use crate::report::rows::columns;
use crate::report::rows::columns::{Column, ReportRow, Unit, column};
use crate::report::rows::table::write_more;
use crate::report::sink::{Sink, rows_shown, write_place};
use crate::report::statistics::ended::{Keep, KeepsEnded};
use crate::report::{Report, ReportBuilder, ReportError, Window, percent};
use foldhash::HashMap;
use mappings::{Mappings, Place};
use serde::Serialize;
use serde_json::json;
use stacks::Stacks;
pub use stacks::{StackLayer, StackNode, StackTree};
use std::io;
use std::path::Path;
use std::sync::Arc;
use strata_analysis::event::{self, Event, Mapping, Tid};
use strata_analysis::kernel_symbols::{KERNEL_HALF, KernelSymbols};
use strata_analysis::timeline::guest::Guest;
use strata_analysis::timeline::states::Current;
use strata_analysis::timeline::{ChangeKind, Input, Origin, Timeline};
use strata_analysis::user_symbols::UserSymbols;
use strata_analysis::{Analysis, Gap, Passed};
use strata_recording::layer::LayerKind;
use strata_recording::reader::Trace;
use strata_recording::text::counted::counted;
use strata_recording::text::terminal::harmless;

/// What describes the report.
pub const DESCRIPTION: Description = Description {
    name: "functions",
    about: "Where processor time went, by function, from samples",
    requested: Requested::Command,
    examples: &["strata report functions trace --symbols /srv/guest-root"],
    takes_symbols: true,
    is_in_all: true,
    rows: &[columns::rows::<FunctionSamples>("kernels[].functions[]")],
    begin: |trace, _, symbols| Ok(Box::new(FunctionSampling::new(trace, symbols)?)),
};

/// Rows that are shown as text; JSON has all.
const FUNCTIONS_SHOWN: usize = 40;
const PROCESSES_SHOWN: usize = 10;
const OF_A_PROCESS_SHOWN: usize = 10;
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
    #[serde(serialize_with = "columns::serialize")]
    pub functions: Vec<FunctionSamples>,
    /// By process, the one with the most samples first.
    pub processes: Vec<ProcessSamples>,
    /// By stack; the page draws them.
    #[serde(skip)]
    pub stacks: StackTree,
}

/// Samples of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessSamples {
    /// Its id.
    pub pid: Tid,
    pub comm: String,
    /// Its samples.
    pub samples: u64,
    /// By function.
    #[serde(serialize_with = "columns::serialize")]
    pub functions: Vec<FunctionSamples>,
}

/// Samples of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionSamples {
    /// Its name; what is known of it when it has none.
    pub function: String,
    /// The file or kernel module that it belongs to; `[kernel]` for the kernel itself, `?` when nothing is known.
    pub module: String,
    /// Whether `function` is a symbol.
    pub is_named: bool,
    /// Whether `module` is certain: a process's file is not where records are missing since its mapping was recorded.
    pub is_certain: bool,
    /// Samples in it.
    pub own: u64,
    /// Samples in it or in what it called. As many as `self` without recorded stacks.
    pub total: u64,
    /// Samples of all functions of the kernel, or of the process.
    pub of: u64,
}

impl ReportRow for FunctionSamples {
    const COLUMNS: &'static [Column<Self>] = &[
        column("self", "self", Unit::Count, "Samples in it", |row| row.own.into()),
        column(
            "",
            "share",
            Unit::Share,
            "The same in percent of all samples of the kernel or process, those of an idle CPU aside",
            |row| percent(row.own, row.of).into(),
        ),
        column(
            "total",
            "total",
            Unit::Count,
            "Samples in it or in what it called; as many as `self` without recorded stacks",
            |row| row.total.into(),
        ),
        column("", "share", Unit::Share, "The same in percent", |row| percent(row.total, row.of).into()),
        column("function", "function", Unit::Text, "Its name; what is known of it when it has none", |row| {
            (&row.function).into()
        }),
        column(
            "module",
            "",
            Unit::Text,
            "The file or kernel module that it belongs to; `[kernel]` for the kernel itself, `?` when nothing is known",
            |row| (&row.module).into(),
        ),
        column("", "in", Unit::Text, "The same, with `?` behind it where it is not certain", |row| {
            row.shown_module().into()
        }),
        column("is_named", "", Unit::Flag, "Whether `function` is a symbol", |row| row.is_named.into()),
        column(
            "is_certain",
            "",
            Unit::Flag,
            "Whether `module` is certain: a process's file is not where records are missing since its mapping was recorded",
            |row| row.is_certain.into(),
        ),
    ];
}

impl FunctionSamples {
    fn shown_module(&self) -> String {
        format!("{}{}", self.module, if self.is_certain { "" } else { "?" })
    }
}

/// Makes the report; `symbols` is the folder that holds the guest's root, for the names of its programs' functions.
///
/// # Errors
/// When no kernel was sampled, or symbols cannot be read.
pub fn report(trace: &Trace, window: Window, symbols: Option<&Path>) -> Result<FunctionsReport, ReportError> {
    crate::report::make(trace, window, FunctionSampling::new(trace, symbols)?)
}

/// A sample of a guest's CPU, of those that the report counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Index of the VM.
    pub vm: usize,
    pub vcpu: u32,
    /// When it was made, ticks.
    pub time: u64,
    /// What it interrupted.
    pub current: Current,
    /// The function that it interrupted, then that one's callers, as far as stacks were recorded; none where the CPU was
    /// idle.
    pub functions: Vec<FunctionId>,
}

/// The report in the making. Takes memory for each function that was sampled, in each process, and each mapping.
#[derive(Debug)]
pub struct FunctionSampling {
    /// By VM; `None` for one whose kernel was not sampled.
    guests: Vec<Option<Collector>>,
    user: Option<UserSymbols>,
    kept: Keep<Sample>,
}

impl FunctionSampling {
    /// A report on `trace` before its first record; `symbols` is the folder that holds the guest's root. Reads
    /// the kernel's symbols, which are recorded after what they name.
    ///
    /// # Errors
    /// When there is no such folder.
    pub fn new(trace: &Trace, symbols: Option<&Path>) -> Result<Self, ReportError> {
        let user = symbols
            .map(UserSymbols::new)
            .transpose()
            .map_err(|source| ReportError::SymbolFolder { path: symbols.unwrap_or(Path::new("")).into(), source })?;
        Ok(Self::named_by(trace, user))
    }

    /// One that keeps samples one by one, and has no symbols of processes.
    #[must_use]
    pub fn keeping_ended(trace: &Trace) -> Self {
        let mut sampling = Self::named_by(trace, None);
        sampling.kept.begin();
        sampling
    }

    fn named_by(trace: &Trace, user: Option<UserSymbols>) -> Self {
        let guests = trace.manifest().vms.iter().map(|vm| {
            let is_sampled = trace.kernel_layers(&vm.name).any(|layer| event::is_recorded(layer, event::name::SAMPLE));
            is_sampled.then(|| Collector::new(Arc::new(KernelSymbols::of_guest(trace, &vm.name))))
        });
        Self { guests: guests.collect(), user, kept: Keep::none() }
    }

    /// Samples since this was asked last.
    pub fn take_samples(&mut self) -> impl Iterator<Item = Sample> {
        self.kept.take()
    }

    /// Name and module of a function of the guest of `vm` and its processes.
    #[must_use]
    pub fn function(&self, vm: usize, function: FunctionId) -> Option<(&str, &str)> {
        let function = self.guests.get(vm)?.as_ref()?.functions.get(function)?;
        Some((&function.name, &function.module))
    }

    /// Takes in what changes the mappings of processes.
    fn follow(&mut self, input: &Input<'_>, timeline: &Timeline) -> Option<&mut Collector> {
        let Origin::Guest { vm, .. } = input.origin else { return None };
        let collector = self.guests.get_mut(vm)?.as_mut()?;
        collector.follow(input, &timeline.vm(vm)?.guest);
        Some(collector)
    }
}

impl KeepsEnded for FunctionSampling {
    fn has_ended(&self) -> bool {
        !self.kept.is_empty()
    }
}

impl Analysis for FunctionSampling {
    fn takes_change(&self, _kind: ChangeKind) -> bool {
        false
    }

    fn needs_states(&self) -> bool {
        false
    }

    fn layers(&self) -> &'static [LayerKind] {
        &[LayerKind::GuestKernel]
    }

    fn kernel_symbols(&self, vm: usize) -> Option<Arc<KernelSymbols>> {
        Some(Arc::clone(&self.guests.get(vm)?.as_ref()?.kernel))
    }

    fn takes_record(&self, input: &Input<'_>) -> bool {
        let event = input.event;
        matches!(event, Some(Event::Sample { .. } | Event::Mapping | Event::Exec { .. } | Event::Fork { .. }))
    }

    /// Mappings are recorded once: those from before the window hold in it.
    fn before(&mut self, input: &Input<'_>, timeline: &Timeline) {
        self.follow(input, timeline);
    }

    fn record(&mut self, input: &Input<'_>, timeline: &Timeline) {
        if let Some(Event::Sample { process, address: Some(address), is_user, .. }) = input.event {
            let Origin::Guest { vm, cpu } = input.origin else { return };
            if let Some(Some(collector)) = self.guests.get_mut(vm) {
                let stack = event::stack(&input.record);
                let functions = collector.sample(process.unwrap_or(0), address, is_user, &stack, self.user.as_mut());
                let (time, current) = (input.time(), timeline.recorder());
                self.kept.add(|| Sample { vm, vcpu: cpu, time, current, functions });
            }
            return;
        }
        self.follow(input, timeline);
    }

    fn gap(&mut self, gap: &Gap, _timeline: &Timeline) {
        if let Gap { origin: Origin::Guest { vm, .. }, begins: true, .. } = *gap
            && let Some(Some(collector)) = self.guests.get_mut(vm)
        {
            collector.mappings.begin_gap();
        }
    }
}

impl ReportBuilder for FunctionSampling {
    type Report = FunctionsReport;

    fn finish(self, _trace: &Trace, passed: &Passed) -> Result<FunctionsReport, ReportError> {
        let mut kernels = Vec::new();
        for (index, collector) in self.guests.into_iter().enumerate() {
            let (Some(collector), Some(vm)) = (collector, passed.timeline.vm(index)) else { continue };
            if collector.all.samples + collector.idle > 0 {
                kernels.push(collector.finish(vm.name.clone(), &vm.guest));
            }
        }
        if kernels.is_empty() {
            return Err(ReportError::nothing(
                "no samples (strata:sample) were recorded",
                "record with --events 'guest:strata:*' among others",
            ));
        }
        Ok(FunctionsReport { kernels })
    }
}

/// A function that was met: name, module, whether it is a symbol, whether it lies in that module for certain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Function {
    name: String,
    module: String,
    is_named: bool,
    is_certain: bool,
}

/// Number of a function in the order in which they were met.
pub type FunctionId = usize;

/// What is remembered of a place, quick to compare: addresses of one symbol of the kernel are the same, and a file is
/// the address of its path, which stays the same while the place is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Found {
    Symbol(usize),
    Address(u64),
    File { path: usize, offset: u64, is_certain: bool },
}

impl Found {
    fn of(place: &Place, kernel: &KernelSymbols) -> Self {
        match *place {
            Place::Address(address) => kernel.position(address).map_or(Self::Address(address), Self::Symbol),
            Place::File { ref path, offset, is_certain } => {
                Self::File { path: path.as_ptr().addr(), offset, is_certain }
            }
        }
    }
}

/// Addresses whose functions are remembered: enough for the code that runs, and a guest cannot make its reader grow.
const REMEMBERED: usize = 1 << 16;

#[derive(Clone, Debug, Default)]
struct Counts {
    samples: u64,
    functions: HashMap<FunctionId, FunctionCounts>,
}

#[derive(Clone, Copy, Debug, Default)]
struct FunctionCounts {
    /// Samples in the function.
    own: u64,
    /// Samples in it or in what it called.
    total: u64,
    /// Number of the last of them.
    last: u64,
}

impl Counts {
    fn add(&mut self, functions: &[FunctionId]) {
        self.samples += 1;
        for (place, &function) in functions.iter().enumerate() {
            let counts = self.functions.entry(function).or_default();
            counts.own += u64::from(place == 0);
            // A function that calls itself counts once.
            counts.total += u64::from(counts.last != self.samples);
            counts.last = self.samples;
        }
    }
}

/// The samples of one kernel.
#[derive(Debug)]
struct Collector {
    kernel: Arc<KernelSymbols>,
    mappings: Mappings,
    functions: Vec<Function>,
    numbers: HashMap<Function, FunctionId>,
    /// What was looked up already, with what its key speaks of.
    found: HashMap<Found, (FunctionId, Place)>,
    all: Counts,
    idle: u64,
    processes: HashMap<Tid, Counts>,
    stacks: Stacks,
}

impl Collector {
    fn new(kernel: Arc<KernelSymbols>) -> Self {
        Self {
            kernel,
            mappings: Mappings::default(),
            functions: Vec::new(),
            numbers: HashMap::default(),
            found: HashMap::default(),
            all: Counts::default(),
            idle: 0,
            processes: HashMap::default(),
            stacks: Stacks::default(),
        }
    }

    /// Takes in what changes the mappings of processes.
    fn follow(&mut self, input: &Input<'_>, guest: &Guest) {
        match input.event {
            Some(Event::Mapping) => {
                if let Some(mapping) = Mapping::of(&input.record) {
                    self.mappings.map(&mapping, guest.has_gap());
                }
            }
            Some(Event::Exec { tid: Some(tid), .. }) => self.mappings.exec(tid),
            Some(Event::Fork { parent: Some(parent), child }) => {
                let process = |tid| guest.living(tid).map_or(tid, |task| guest.task_name(guest.process(task)).0);
                if process(child.tid) == child.tid {
                    self.mappings.fork(process(parent), child.tid);
                }
            }
            _ => {}
        }
    }

    /// Counts a sample: the functions that it counts for, the interrupted one first.
    fn sample(
        &mut self,
        process: Tid,
        address: u64,
        is_user: bool,
        stack: &[u64],
        mut user: Option<&mut UserSymbols>,
    ) -> Vec<FunctionId> {
        if process == 0 && !is_user {
            self.idle += 1;
            return Vec::new();
        }
        let mut functions = vec![self.function(process, address, address, user.as_deref_mut())];
        let mut layers = vec![address >= KERNEL_HALF];
        for &address in stack {
            // A return address may lie behind its function's end; the call lies before it.
            functions.push(self.function(process, address.saturating_sub(1), address, user.as_deref_mut()));
            layers.push(address >= KERNEL_HALF);
        }
        self.stacks.add(process, functions.iter().copied().zip(layers));
        self.all.add(&functions);
        self.processes.entry(process).or_default().add(&functions);
        functions
    }

    /// The function at `address` in process `pid`; `shown` is the address to show if it has no name.
    fn function(&mut self, pid: Tid, address: u64, shown: u64, user: Option<&mut UserSymbols>) -> FunctionId {
        let place = match address {
            KERNEL_HALF.. => Place::Address(address),
            _ => self.mappings.place(pid, address),
        };
        let found = Found::of(&place, &self.kernel);
        if let Some(&(known, _)) = self.found.get(&found) {
            return known;
        }
        let function = function(&place, shown, &self.kernel, user);
        let next = self.functions.len();
        let id = *self.numbers.entry(function.clone()).or_insert(next);
        if id == next {
            self.functions.push(function);
        }
        if self.found.len() >= REMEMBERED {
            self.found.clear();
        }
        self.found.insert(found, (id, place));
        id
    }

    fn finish(self, vm: String, guest: &Guest) -> SampledKernel {
        let functions = rows(&self.all, &self.functions);
        let unnamed = functions.iter().filter(|row| !row.is_named).map(|row| row.own).sum();
        let comm = |pid| {
            let known = guest.tasks.iter().rev().find(|task| task.tid == pid && !task.comm.is_empty());
            known.map_or_else(|| "?".into(), |task| task.name())
        };
        let stacks = self.stacks.finish(&self.functions, comm);
        let process = |(&pid, counts): (&Tid, &Counts)| ProcessSamples {
            pid,
            comm: comm(pid),
            samples: counts.samples,
            functions: rows(counts, &self.functions),
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
            stacks,
        }
    }
}

/// The functions of `counts`, the one with the most samples of its own first; `names` are those of all functions.
fn rows(counts: &Counts, names: &[Function]) -> Vec<FunctionSamples> {
    let of = counts.samples;
    let row = |(&id, counts): (&FunctionId, &FunctionCounts)| {
        let Function { name, module, is_named, is_certain } = names.get(id)?.clone();
        Some(FunctionSamples { function: name, module, is_named, is_certain, own: counts.own, total: counts.total, of })
    };
    let mut functions: Vec<_> = counts.functions.iter().collect();
    functions.sort_unstable_by_key(|&(&id, _)| id);
    let mut rows: Vec<_> = functions.into_iter().filter_map(row).collect();
    rows.sort_by(|left, right| {
        let key = |row: &FunctionSamples| std::cmp::Reverse((row.own, row.total));
        key(left).cmp(&key(right)).then_with(|| (&left.function, &left.module).cmp(&(&right.function, &right.module)))
    });
    rows
}

/// The function at `place`; `shown` is the address to show if it has no name.
fn function(place: &Place, shown: u64, kernel: &KernelSymbols, user: Option<&mut UserSymbols>) -> Function {
    match place {
        Place::Address(address) if *address >= KERNEL_HALF => match kernel.find(*address) {
            Some((symbol, _)) => {
                let module = symbol.module.map_or_else(|| "[kernel]".into(), |module| format!("[{module}]"));
                Function { name: symbol.name.into(), module, is_named: true, is_certain: true }
            }
            None => unnamed(format!("{:#x}", shown / PAGE * PAGE), "[kernel]"),
        },
        Place::Address(_) => unnamed(format!("{:#x}", shown / PAGE * PAGE), "?"),
        Place::File { path, offset, is_certain } => {
            let function = match user.and_then(|user| user.function(path, *offset)) {
                Some(name) => Function { name, module: path.to_string(), is_named: true, is_certain: true },
                None => unnamed(format!("+{:#x}", offset / PAGE * PAGE), path),
            };
            Function { is_certain: *is_certain, ..function }
        }
    }
}

fn unnamed(name: String, module: &str) -> Function {
    Function { name, module: module.into(), is_named: false, is_certain: true }
}

impl Report for FunctionsReport {
    fn write_text(&self, out: &mut dyn Sink) -> io::Result<()> {
        for kernel in &self.kernels {
            let owner = &kernel.vm;
            let (samples, idle, unnamed) = (kernel.samples, kernel.idle, kernel.unnamed);
            let samples = counted(samples, "sample", "samples");
            writeln!(out, "{owner}: {samples}, {idle} of them idle, {unnamed} in functions without a name")?;
            if !kernel.has_kernel_symbols {
                writeln!(
                    out,
                    "NOTE: the recording holds no symbols of this kernel: its functions are shown by page; --kallsyms gives them"
                )?;
            }
            write_functions(&kernel.functions, FUNCTIONS_SHOWN, out)?;
            let shown = rows_shown(out, PROCESSES_SHOWN);
            for process in kernel.processes.iter().take(shown) {
                let (pid, comm) = (process.pid, harmless(&process.comm));
                writeln!(out)?;
                write_place(out, || json!({ "vm": kernel.vm, "comm": process.comm, "pid": pid }));
                writeln!(out, "pid {pid}: {comm}, {}", counted(process.samples, "sample", "samples"))?;
                write_functions(&process.functions, OF_A_PROCESS_SHOWN, out)?;
            }
            if kernel.processes.len() > shown {
                writeln!(out)?;
            }
            write_more(kernel.processes.len(), shown, ["process", "processes"], out)?;
        }
        Ok(())
    }
}

fn write_functions(rows: &[FunctionSamples], shown: usize, out: &mut dyn Sink) -> io::Result<()> {
    columns::write_first(rows, shown, ["function", "functions"], out)
}

#[cfg(test)]
mod tests;
