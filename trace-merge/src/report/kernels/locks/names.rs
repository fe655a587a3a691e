//! What locks are called, and the calls that lead to them.

use strata_analysis::kernel_symbols::KernelSymbols;

/// The name of the lock at `address`, where the kernel's symbols tell it.
#[must_use]
pub fn name_of_lock(symbols: &KernelSymbols, address: u64) -> Option<String> {
    symbols.named(address).map(|named| named.to_string())
}

/// The calls of a stack, innermost first, without those of the tracer itself: symbols, else addresses.
#[must_use]
pub fn calls(symbols: &KernelSymbols, stack: &[u64]) -> Vec<String> {
    let is_tracer = |label: &String| label.contains("[strata]") || label.starts_with("__traceiter_");
    stack.iter().map(|&call| call_label(symbols, call)).skip_while(is_tracer).collect()
}

/// A return address as a symbol, else as it is.
fn call_label(symbols: &KernelSymbols, address: u64) -> String {
    symbols.named_call(address).map_or_else(|| format!("{address:#x}"), |named| named.to_string())
}
