//! The symbols of a guest's kernel: the functions and variables in which samples, calls and locks lie, as the guest's module
//! records them (`strata:symbol`). They come from a guest: names that would act on a terminal are left out.

use crate::event::{self, Symbol};
use std::num::NonZero;
use std::panic::resume_unwind;
use std::thread;
use strata_recording::reader::{Stream, TraceLayer};

/// Kernel addresses are in the upper half of the address space.
const KERNEL_HALF: u64 = 1 << 63;

/// The symbols of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelSymbols {
    /// By address; one for each.
    symbols: Vec<KernelSymbol>,
}

/// A symbol of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSymbol {
    /// Where it begins.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Its name.
    pub name: String,
    /// The module that it belongs to; `None` for the kernel itself.
    pub module: Option<String>,
}

impl KernelSymbol {
    /// The symbol of `size` bytes at `address` that `label` names: its name, and its module in brackets where there is
    /// one. `None` when that is no symbol of a kernel.
    fn new(address: u64, size: u64, label: &str) -> Option<Self> {
        let (name, module) = match label.split_once(" [") {
            Some((name, rest)) => (name, Some(rest.strip_suffix(']')?)),
            None => (label, None),
        };
        let is_symbol = address >= KERNEL_HALF && is_plain(name) && module.is_none_or(is_plain);
        is_symbol.then(|| Self { address, size, name: name.into(), module: module.map(Into::into) })
    }

    /// Name, and module in brackets where there is one.
    #[must_use]
    pub fn label(&self) -> String {
        self.module.as_ref().map_or_else(|| self.name.clone(), |module| format!("{} [{module}]", self.name))
    }
}

impl KernelSymbols {
    /// The symbols that the records of `layers` tell, whenever they do: a symbol is recorded after what it names. As many
    /// streams are looked through at the same time as there are processors.
    pub fn of<'t>(layers: impl Iterator<Item = &'t TraceLayer>) -> Self {
        let layers = layers.filter(|layer| event::is_recorded(layer, event::name::SYMBOL));
        let streams: Vec<_> =
            layers.flat_map(|layer| layer.streams.iter().map(move |stream| (layer, stream))).collect();
        let told_by = |streams: &[(&TraceLayer, &Stream)]| {
            let records = streams.iter().flat_map(|(layer, stream)| layer.records(stream));
            let told = records.filter_map(|record| Symbol::of(&record));
            told.filter_map(|told| KernelSymbol::new(told.address, told.size, &told.label)).collect::<Vec<_>>()
        };
        let workers = thread::available_parallelism().map_or(1, NonZero::get);
        let shares = streams.chunks(streams.len().div_ceil(workers).max(1));
        Self::new(thread::scope(|scope| {
            let workers: Vec<_> = shares.map(|share| scope.spawn(|| told_by(share))).collect();
            // A worker that panics has found a fault of ours: it goes on here.
            workers.into_iter().flat_map(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
        }))
    }

    fn new(mut symbols: Vec<KernelSymbol>) -> Self {
        symbols.sort_by_key(|symbol| symbol.address);
        symbols.dedup_by_key(|symbol| symbol.address);
        Self { symbols }
    }

    /// Number of the symbol that `address` lies in, by address.
    #[must_use]
    pub fn position(&self, address: u64) -> Option<usize> {
        let position = self.symbols.partition_point(|symbol| symbol.address <= address).checked_sub(1)?;
        let symbol = self.symbols.get(position)?;
        (address - symbol.address < symbol.size).then_some(position)
    }

    /// The symbol that `address` lies in, and how far from its beginning, bytes.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<(&KernelSymbol, u64)> {
        let symbol = self.symbols.get(self.position(address)?)?;
        Some((symbol, address - symbol.address))
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }
}

fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn symbols(told: &[(u64, u64, &str)]) -> KernelSymbols {
        let symbol = |&(address, size, label): &(u64, u64, &str)| KernelSymbol::new(address, size, label);
        KernelSymbols::new(told.iter().filter_map(symbol).collect())
    }

    fn label(address: u64) -> Option<(String, u64)> {
        let symbols = symbols(&[
            (0xffff_ffff_c010_0000, 0x200, "probe [strata]"),
            (0xffff_ffff_8100_0010, 0x10, "first"),
            (0xffff_ffff_8100_0010, 0x10, "first"),
            (0xffff_ffff_8100_0020, 8, "second"),
        ]);
        symbols.find(address).map(|(symbol, offset)| (symbol.label(), offset))
    }

    #[test]
    fn address_lies_in_the_symbol_around_it() {
        assert_eq!(label(0xffff_ffff_8100_0013), Some(("first".into(), 3)));
        assert_eq!(label(0xffff_ffff_8100_0020), Some(("second".into(), 0)));
        assert_eq!(label(0xffff_ffff_c010_0104), Some(("probe [strata]".into(), 0x104)));
    }

    #[test]
    fn address_outside_of_every_symbol_has_none() {
        assert_eq!([0x1000, 0xffff_ffff_8100_000f, 0xffff_ffff_8100_0028].map(label), [None, None, None]);
    }

    #[test]
    fn what_is_no_kernels_symbol_is_left_out() {
        let told =
            [(0x1000, 8, "low"), (KERNEL_HALF, 8, "\x1b[2J"), (KERNEL_HALF, 8, "open [module"), (KERNEL_HALF, 8, "")];

        assert!(symbols(&told).is_empty());
    }

    proptest! {
        #[test]
        fn any_symbols_are_survived(told: Vec<(u64, u64, String)>, address: u64) {
            let told: Vec<_> = told.iter().map(|(address, size, label)| (*address, *size, &**label)).collect();
            let symbols = symbols(&told);

            prop_assert!(symbols.find(address).is_none_or(|(symbol, offset)| symbol.address + offset == address));
        }
    }
}
