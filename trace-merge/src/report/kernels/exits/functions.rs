//! In which functions of the guest vCPUs left it, as KVM tells the instruction's address.

use super::VmExits;
use super::longest::{self, Longest};
use super::operations::write_rows;
use crate::report::rows::columns::{Column, ReportRow, Unit, Value, column};
use crate::report::sink::Sink;
use crate::report::statistics::distribution::DurationSum;
use foldhash::HashMap;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use strata_analysis::exit_reason::ExitReason;
use strata_analysis::kernel_symbols::{KERNEL_HALF, KernelSymbol, KernelSymbols};
use strata_recording::clock::Clock;
use strata_recording::text::counted::counted;
use strata_recording::text::terminal::harmless;

/// Instructions of a VM whose exits are counted: interrupts come at any.
const MOST_INSTRUCTIONS: usize = 1 << 16;
/// Rows of a VM.
const MOST: usize = 4096;

/// The exits for one reason in one function of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionExits {
    /// Name of the reason.
    pub reason: String,
    /// Name of the function, with its module in brackets; the instruction's address where it has none.
    pub function: String,
    /// Whether `function` is a name.
    pub is_named: bool,
    /// Number of exits.
    pub count: u64,
    /// Time from each exit until the vCPU was in the guest again, all together, ns.
    pub total_ns: u64,
    /// The longest, ns.
    pub max_ns: u64,
    /// It.
    pub longest: Longest,
}

impl ReportRow for FunctionExits {
    const COLUMNS: &'static [Column<Self>] = &[
        column("reason", "reason", Unit::Text, "Name of the reason", |row| (&row.reason).into()),
        column("function", "function", Unit::Text, "Of the guest's kernel; an address where there is no name", |row| {
            (&row.function).into()
        }),
        column("count", "count", Unit::Count, "How many", |row| row.count.into()),
        column("total_ns", "total", Unit::Ns, "Until in the guest again", |row| row.total_ns.into()),
        column("max_ns", "longest", Unit::Ns, "The longest", |row| row.max_ns.into()),
        column("longest", "", Unit::Object, longest::MEANING, |row| Value::object(&row.longest)),
    ];
}

/// The exits of a VM by instruction, in the making.
#[derive(Debug, Default)]
pub(super) struct Instructions {
    times: HashMap<(ExitReason, u64), Sum>,
    /// Exits at other instructions.
    others: u64,
    /// Whether the guest ran guests of its own.
    has_guests: bool,
}

/// Exits together.
#[derive(Clone, Copy, Debug)]
struct Sum {
    times: DurationSum,
    longest: Longest,
}

impl Sum {
    fn of(exit: Longest) -> Self {
        let mut times = DurationSum::default();
        times.add(exit.ticks);
        Self { times, longest: exit }
    }

    fn plus(&self, other: &Self) -> Self {
        Self { times: self.times.plus(&other.times), longest: self.longest.or(other.longest) }
    }
}

/// Rows, and what they lack.
#[derive(Debug)]
pub(super) struct Functions {
    pub(super) rows: Vec<FunctionExits>,
    /// Exits without a row.
    pub(super) others: u64,
    /// Whether nothing is named because instructions may be those of the guest's own guests.
    pub(super) is_nested: bool,
}

impl Instructions {
    /// Adds `exit`, at the instruction at `address`.
    pub(super) fn add(&mut self, reason: ExitReason, address: u64, exit: Longest) {
        if self.times.len() >= MOST_INSTRUCTIONS && !self.times.contains_key(&(reason, address)) {
            self.others += 1;
            return;
        }
        let this = Sum::of(exit);
        self.times.entry((reason, address)).and_modify(|sum| *sum = sum.plus(&this)).or_insert(this);
    }

    /// Takes note of an exit, over or not.
    pub(super) fn left(&mut self, reason: ExitReason) {
        self.has_guests |= reason.is_nested_entry();
    }

    /// The rows, those that took longest first. `symbols` finds those of the guest's kernel.
    pub(super) fn rows<'s>(self, symbols: impl FnOnce() -> Option<&'s KernelSymbols>, clock: &Clock) -> Functions {
        let is_of_kernel = |&(_, address): &(ExitReason, u64)| address >= KERNEL_HALF;
        let has_names = !self.has_guests && self.times.keys().any(is_of_kernel);
        let symbols = if has_names { symbols() } else { None };
        // Few functions have many instructions, and a name takes memory.
        let mut by_symbol: HashMap<(ExitReason, u64), (KernelSymbol<'_>, Sum)> = HashMap::default();
        let mut by_function: BTreeMap<(ExitReason, Result<String, u64>), Sum> = BTreeMap::new();
        let mut add_to = |function, sum: Sum| {
            by_function.entry(function).and_modify(|known: &mut Sum| *known = known.plus(&sum)).or_insert(sum);
        };
        for ((reason, address), sum) in self.times {
            match symbols.and_then(|symbols| symbols.find(address)) {
                Some((symbol, _)) => {
                    let known = by_symbol.entry((reason, symbol.address));
                    known.and_modify(|(_, known)| *known = known.plus(&sum)).or_insert((symbol, sum));
                }
                None => add_to((reason, Err(address)), sum),
            }
        }
        for ((reason, _), (symbol, sum)) in by_symbol {
            add_to((reason, Ok(symbol.label().into_owned())), sum);
        }
        let row = |((reason, function), sum): ((ExitReason, Result<String, u64>), Sum)| FunctionExits {
            reason: reason.name().into_owned(),
            is_named: function.is_ok(),
            function: function.unwrap_or_else(|address| format!("{address:#x}")),
            count: sum.times.count,
            total_ns: clock.ticks_to_ns(sum.times.total),
            max_ns: clock.ticks_to_ns(sum.times.max),
            longest: sum.longest,
        };
        let mut rows: Vec<FunctionExits> = by_function.into_iter().map(row).collect();
        rows.sort_by_key(|row| Reverse((row.total_ns, row.count)));
        let more: u64 = rows.iter().skip(MOST).map(|row| row.count).sum();
        rows.truncate(MOST);
        Functions { rows, others: self.others + more, is_nested: self.has_guests }
    }
}

/// Writes in which functions of its guest the exits of `vm` were.
pub(super) fn write(vm: &VmExits, out: &mut dyn Sink) -> io::Result<()> {
    if vm.functions.is_empty() {
        return Ok(());
    }
    let name = harmless(&vm.vm);
    writeln!(out, "\n{name}: where in the guest the exits were, and the time of the exits")?;
    if vm.is_nested {
        writeln!(out, "NOTE: {name} runs guests of its own: an address may be one of theirs, so none has a name")?;
    }
    write_rows(&vm.functions, out)?;
    match vm.other_functions {
        0 => Ok(()),
        others => {
            let exits = counted(others, "exit was", "exits were");
            writeln!(out, "{exits} elsewhere; the costliest {MOST} places have rows")
        }
    }
}
