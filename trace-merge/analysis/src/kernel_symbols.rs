//! The symbols of a kernel: the functions and variables in which samples, calls, locks and other addresses of its records
//! lie. A host's are saved beside its layer, or given later; a guest's module records those that its samples and locks need
//! (`strata:symbol`). A guest may say anything: names that would act on a terminal are left out.

use crate::event::{self, Symbol};
use std::borrow::Cow;
use std::fmt;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::thread;
use strata_recording::reader::{Stream, Trace, TraceLayer};

/// Kernel addresses are in the upper half of the address space.
pub const KERNEL_HALF: u64 = 1 << 63;
/// No symbol of `/proc/kallsyms`, which does not say how large one is, is taken for larger, bytes.
const MOST_BYTES: u64 = 1 << 20;
/// Nor is the last one.
const LAST_BYTES: u64 = 1 << 12;
/// The addresses from the first symbol to the last one are divided into so many stretches at most, as a power of two: in
/// most of them few symbols begin, or none.
const STRETCH_BITS: u32 = 12;

/// The symbols of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelSymbols {
    /// By address; one for each.
    symbols: Vec<Place>,
    /// Their names, each with its module behind it.
    names: String,
    /// By stretch of addresses: how many symbols begin before it; and the number of all.
    begun: Vec<usize>,
    /// A stretch has so many addresses, as a power of two.
    stretch_bits: u32,
}

/// Where a symbol is, and where its name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    address: u64,
    size: u64,
    name: u32,
    name_bytes: u16,
    /// 0 for a symbol of the kernel itself.
    module_bytes: u16,
}

/// A symbol of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelSymbol<'s> {
    /// Where it begins.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Its name.
    pub name: &'s str,
    /// The module that it belongs to; `None` for the kernel itself.
    pub module: Option<&'s str>,
}

impl<'s> KernelSymbol<'s> {
    /// The symbol of `size` bytes at `address` that `label` names: its name, and its module in brackets where there is
    /// one. `None` when that is not a symbol of a kernel.
    fn new(address: u64, size: u64, label: &'s str) -> Option<Self> {
        let (name, module) = match label.split_once(" [") {
            Some((name, rest)) => (name, Some(rest.strip_suffix(']')?)),
            None => (label, None),
        };
        Self { address, size, name, module }.checked()
    }

    /// It, if it is a symbol of a kernel.
    fn checked(self) -> Option<Self> {
        (self.address >= KERNEL_HALF && is_plain(self.name) && self.module.is_none_or(is_plain)).then_some(self)
    }

    /// The symbol of a line of `/proc/kallsyms` or `System.map`, but for its size: address, type, name, and the module
    /// in brackets.
    pub(crate) fn of_line(line: &'s str) -> Option<(Self, u8)> {
        let mut words = line.split_ascii_whitespace();
        let (address, kind, name) = (words.next()?, words.next()?, words.next()?);
        let module = match words.next() {
            Some(module) => Some(module.strip_prefix('[')?.strip_suffix(']')?),
            None => None,
        };
        let &[kind] = kind.as_bytes() else { return None };
        let address = u64::from_str_radix(address, 16).ok()?;
        Some((Self { address, size: 0, name, module }.checked()?, kind))
    }

    /// Name, and module in brackets where there is one.
    #[must_use]
    pub fn label(&self) -> Cow<'s, str> {
        self.module.map_or(Cow::Borrowed(self.name), |module| Cow::Owned(format!("{} [{module}]", self.name)))
    }
}

/// An address as its symbol and how far in that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolOffset<'s> {
    /// The symbol.
    pub symbol: KernelSymbol<'s>,
    /// Bytes from its beginning.
    pub offset: u64,
}

impl fmt::Display for SymbolOffset<'_> {
    /// As the kernel writes them: `name+0x1f [module]`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { symbol, offset } = self;
        formatter.write_str(symbol.name)?;
        if *offset > 0 {
            write!(formatter, "+{offset:#x}")?;
        }
        symbol.module.map_or(Ok(()), |module| write!(formatter, " [{module}]"))
    }
}

impl KernelSymbols {
    /// The symbols of the kernel of the guest of `vm`: those that were saved or given, and those that its records tell,
    /// whenever they do: a symbol is recorded after what it names. As many streams are looked through at the same time as
    /// there are processors.
    #[must_use]
    pub fn of_guest(trace: &Trace, vm: &str) -> Self {
        Self::of_guest_within(trace, vm, usize::MAX)
    }

    /// The same, for which the first `most` records of each stream are looked through.
    #[must_use]
    pub fn of_guest_within(trace: &Trace, vm: &str, most: usize) -> Self {
        let layers: Vec<_> = trace.kernel_layers(vm).collect();
        let mut symbols = Self::reported_by(&layers, most);
        if let Some(text) = trace.kallsyms(Some(vm)) {
            symbols.add_kallsyms(&text);
        }
        symbols
    }

    /// Those that the first `most` records of each stream of `layers` tell.
    pub(crate) fn reported_by(layers: &[&TraceLayer], most: usize) -> Self {
        let layers = layers.iter().filter(|layer| event::is_recorded(layer, event::name::SYMBOL));
        let streams: Vec<_> =
            layers.flat_map(|layer| layer.streams.iter().map(move |stream| (*layer, stream))).collect();
        let reported_by = |streams: &[(&TraceLayer, &Stream)]| {
            let mut reported = Self::default();
            for (layer, stream) in streams {
                let schema = layer.schemas.iter().find(|schema| schema.name() == event::name::SYMBOL);
                for record in schema.into_iter().flat_map(|schema| layer.records(stream).of_type(schema, most)) {
                    let symbol = Symbol::of(&record);
                    let symbol = symbol.as_ref().and_then(|of| KernelSymbol::new(of.address, of.size, &of.label));
                    symbol.into_iter().for_each(|symbol| reported.push(symbol));
                }
            }
            reported
        };
        let workers = thread::available_parallelism().map_or(1, NonZero::get);
        let shares = streams.chunks(streams.len().div_ceil(workers).max(1));
        let mut all = Self::default();
        thread::scope(|scope| {
            let workers: Vec<_> = shares.map(|share| scope.spawn(|| reported_by(share))).collect();
            for worker in workers {
                // A worker that panics has found a fault of ours: it goes on here.
                let reported = worker.join().unwrap_or_else(|panic| resume_unwind(panic));
                reported.iter().for_each(|symbol| all.push(symbol));
            }
        });
        all.sort();
        all
    }

    /// The symbols of `text`, which `/proc/kallsyms` has. Lines of another form are left out.
    #[must_use]
    pub fn of_kallsyms(text: &[u8]) -> Self {
        let mut symbols = Self::default();
        symbols.add_kallsyms(text);
        symbols
    }

    /// Adds the symbols of `text`, which `/proc/kallsyms` has, where there is none yet.
    fn add_kallsyms(&mut self, text: &[u8]) {
        let text = String::from_utf8_lossy(text);
        let mut lines: Vec<_> = text.lines().filter_map(KernelSymbol::of_line).collect();
        // Of several at one address the first is taken: one that other files see, with few underscores.
        lines.sort_by_key(|(symbol, kind)| {
            let underscores = symbol.name.bytes().take_while(|&byte| byte == b'_').count();
            (symbol.address, kind.is_ascii_lowercase(), underscores)
        });
        lines.dedup_by_key(|(symbol, _)| symbol.address);
        let ends: Vec<u64> = lines.iter().skip(1).map(|(next, _)| next.address).collect();
        for (index, (symbol, _)) in lines.into_iter().enumerate() {
            let size = ends.get(index).map_or(LAST_BYTES, |end| end - symbol.address).min(MOST_BYTES);
            self.push(KernelSymbol { size, ..symbol });
        }
        self.sort();
    }

    /// Adds `symbol`, out of order.
    fn push(&mut self, symbol: KernelSymbol<'_>) {
        let KernelSymbol { address, size, name, module } = symbol;
        let module = module.unwrap_or_default();
        let lengths = (u32::try_from(self.names.len()), u16::try_from(name.len()), u16::try_from(module.len()));
        // No kernel has such a name, nor so many.
        let (Ok(place), Ok(name_bytes), Ok(module_bytes)) = lengths else { return };
        self.names.push_str(name);
        self.names.push_str(module);
        self.symbols.push(Place { address, size, name: place, name_bytes, module_bytes });
    }

    /// Puts the symbols in order: of several at one address, the first that was added stays.
    fn sort(&mut self) {
        self.symbols.sort_by_key(|symbol| symbol.address);
        self.symbols.dedup_by_key(|symbol| symbol.address);
        let span = self.symbols.last().map_or(0, |last| self.behind_first(last.address));
        self.stretch_bits = (u64::BITS - span.leading_zeros()).saturating_sub(STRETCH_BITS);
        self.begun.clear();
        for (number, symbol) in self.symbols.iter().enumerate() {
            let stretch = self.stretch(symbol.address);
            if self.begun.len() <= stretch {
                self.begun.resize(stretch + 1, number);
            }
        }
        self.begun.push(self.symbols.len());
    }

    /// How far `address` is from the first symbol's.
    fn behind_first(&self, address: u64) -> u64 {
        address.saturating_sub(self.symbols.first().map_or(0, |first| first.address))
    }

    /// The stretch that `address` lies in.
    fn stretch(&self, address: u64) -> usize {
        usize::try_from(self.behind_first(address) >> self.stretch_bits).unwrap_or(usize::MAX)
    }

    #[inline]
    fn symbol(&self, place: &Place) -> KernelSymbol<'_> {
        let begin = place.name as usize;
        let end = begin + usize::from(place.name_bytes);
        let module = self.names.get(end..end + usize::from(place.module_bytes)).filter(|module| !module.is_empty());
        let name = self.names.get(begin..end).unwrap_or_default();
        KernelSymbol { address: place.address, size: place.size, name, module }
    }

    /// The symbols, by address.
    pub fn iter(&self) -> impl Iterator<Item = KernelSymbol<'_>> {
        self.symbols.iter().map(|place| self.symbol(place))
    }

    /// Number of the symbol that `address` lies in, by address.
    #[must_use]
    pub fn position(&self, address: u64) -> Option<usize> {
        let stretch = self.stretch(address).min(self.begun.len().checked_sub(2)?);
        let (begin, end) = (*self.begun.get(stretch)?, *self.begun.get(stretch + 1)?);
        let begun = self.symbols.get(begin..end)?.partition_point(|symbol| symbol.address <= address);
        let position = (begin + begun).checked_sub(1)?;
        let symbol = self.symbols.get(position)?;
        (address - symbol.address < symbol.size).then_some(position)
    }

    /// The symbol that `address` lies in, and how far from its beginning, bytes.
    #[must_use]
    #[inline]
    pub fn find(&self, address: u64) -> Option<(KernelSymbol<'_>, u64)> {
        let symbol = self.symbol(self.symbols.get(self.position(address)?)?);
        Some((symbol, address - symbol.address))
    }

    /// `address` by its symbol.
    #[must_use]
    #[inline]
    pub fn named(&self, address: u64) -> Option<SymbolOffset<'_>> {
        self.find(address).map(|(symbol, offset)| SymbolOffset { symbol, offset })
    }

    /// The return address `address` by the symbol that the call lies in: it may lie behind the end of a function that never
    /// returns.
    #[must_use]
    pub fn named_call(&self, address: u64) -> Option<SymbolOffset<'_>> {
        let found = self.find(address.saturating_sub(1));
        found.map(|(symbol, offset)| SymbolOffset { symbol, offset: offset + 1 })
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }
}

/// Whether `name` has nothing that acts on a terminal, or ends text of JSON.
fn is_plain(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
    !name.is_empty() && name.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn symbols(reported: &[(u64, u64, &str)]) -> KernelSymbols {
        let mut symbols = KernelSymbols::default();
        let reported = reported.iter().filter_map(|&(address, size, label)| KernelSymbol::new(address, size, label));
        reported.for_each(|symbol| symbols.push(symbol));
        symbols.sort();
        symbols
    }

    fn label(address: u64) -> Option<(String, u64)> {
        let symbols = symbols(&[
            (0xffff_ffff_c010_0000, 0x200, "probe [strata]"),
            (0xffff_ffff_8100_0010, 0x10, "first"),
            (0xffff_ffff_8100_0010, 0x10, "first"),
            (0xffff_ffff_8100_0020, 8, "second"),
        ]);
        symbols.find(address).map(|(symbol, offset)| (symbol.label().into_owned(), offset))
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
        let reported =
            [(0x1000, 8, "low"), (KERNEL_HALF, 8, "\x1b[2J"), (KERNEL_HALF, 8, "open [module"), (KERNEL_HALF, 8, "")];

        assert!(symbols(&reported).is_empty());
    }

    const KALLSYMS: &str = "0000000000000000 A fixed_percpu_data
ffffffff81000000 T _stext
ffffffff81000000 T _text
ffffffff81000000 t startup
ffffffff81001000 t do_one
ffffffff81001000 T do_two
ffffffff81001000 T __do_two
ffffffff81001040 D data
ffffffffc0001000 t probe\t[strata]
ffffffffc0002000 t bad name here
ffffffffc0003000 t \x1b[2J
not a line
";

    #[test]
    fn kallsyms_have_names_that_others_see_and_sizes_up_to_the_next() {
        let symbols = KernelSymbols::of_kallsyms(KALLSYMS.as_bytes());

        let named = |address| symbols.named(address).map(|named| named.to_string());
        let (inside, data) = (named(0xffff_ffff_8100_1002), named(0xffff_ffff_8100_1040));
        assert_eq!((inside.as_deref(), data.as_deref()), (Some("do_two+0x2"), Some("data")));
        assert_eq!(named(0xffff_ffff_c000_1010).as_deref(), Some("probe+0x10 [strata]"));
        assert_eq!([0xffff_ffff_c000_2000, 0xffff_ffff_c000_3000, 0x10].map(named), [None, None, None]);
        assert_eq!(symbols.iter().count(), 4);
    }

    #[test]
    fn symbol_that_a_record_tells_stays_beside_those_that_were_saved() {
        let mut symbols = symbols(&[(0xffff_ffff_8100_1000, 4, "told")]);

        symbols.add_kallsyms(KALLSYMS.as_bytes());

        let named = |address| symbols.named(address).map(|named| named.to_string());
        assert_eq!(named(0xffff_ffff_8100_1000).as_deref(), Some("told"));
        assert_eq!(named(0xffff_ffff_8100_0008).as_deref(), Some("_stext+0x8"));
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text: Vec<u8>, lines in "([0-9a-f]{16} [tTdD] [a-z]{1,3}(\t\\[m\\])?\n){0,8}", address: u64) {
            prop_assert!(KernelSymbols::of_kallsyms(&text).find(address).is_none_or(|(_, offset)| offset <= address));
            let symbols = KernelSymbols::of_kallsyms(lines.as_bytes());
            prop_assert!(symbols.iter().all(|symbol| symbols.find(symbol.address) == Some((symbol, 0))));
        }

        #[test]
        fn any_symbols_are_survived(reported: Vec<(u64, u64, String)>, address: u64) {
            let reported: Vec<_> = reported.iter().map(|(address, size, label)| (*address, *size, &**label)).collect();
            let symbols = symbols(&reported);

            prop_assert!(symbols.find(address).is_none_or(|(symbol, offset)| symbol.address + offset == address));
        }

        #[test]
        fn symbol_is_that_which_begins_last_before_the_address(
            places in proptest::collection::vec((0..4_u64, 0..1_u64 << 14, 0..40_u32), 1..40),
            wanted in 0..40_usize,
            after in 0..100_u64,
        ) {
            // Near to each other, far from each other, and alone.
            let begin = |&(cluster, offset, shift): &(u64, u64, u32)| KERNEL_HALF + (cluster << shift) + offset;
            let reported: Vec<_> = places.iter().map(|place| (begin(place), 50, "name")).collect();
            let symbols = symbols(&reported);

            for address in [begin(&places[wanted % places.len()]) + after, KERNEL_HALF + after, u64::MAX - after] {
                let expected = symbols.iter().filter(|symbol| symbol.address <= address).last();
                let expected = expected.filter(|symbol| address - symbol.address < symbol.size);
                prop_assert_eq!(symbols.find(address).map(|(symbol, _)| symbol), expected);
            }
        }
    }
}
