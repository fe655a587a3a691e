//! What locks are called, and the calls that lead to them.

use strata_analysis::kernel_symbols::KernelSymbols;

/// Flags of `lock:contention_begin`.
pub(super) mod flag {
    pub const SPIN: u64 = 1;
    pub const READ: u64 = 2;
    pub const WRITE: u64 = 4;
    pub const RT: u64 = 8;
    pub const PERCPU: u64 = 16;
    pub const MUTEX: u64 = 32;
}

/// What the flags of `lock:contention_begin` say a lock is.
pub(super) fn kind_of_lock(flags: u64) -> &'static str {
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

/// The name of the lock at `address`, where the kernel's symbols tell it.
#[must_use]
pub fn name_of_lock(symbols: &KernelSymbols, address: u64) -> Option<String> {
    symbols.find(address).map(|(symbol, offset)| with_offset(&symbol.label(), offset))
}

/// The calls of a stack, innermost first, without those of the tracer itself: symbols, else addresses.
#[must_use]
pub fn calls(symbols: &KernelSymbols, stack: &[u64]) -> Vec<String> {
    let is_tracer = |label: &String| label.contains("[strata]") || label.starts_with("__traceiter_");
    stack.iter().map(|&call| call_label(symbols, call)).skip_while(is_tracer).collect()
}

/// A return address as a symbol, else as it is.
fn call_label(symbols: &KernelSymbols, address: u64) -> String {
    // A return address may lie behind the end of a function that never returns: the call lies before it.
    let symbol = symbols.find(address.saturating_sub(1));
    symbol.map_or_else(|| format!("{address:#x}"), |(symbol, offset)| with_offset(&symbol.label(), offset + 1))
}
