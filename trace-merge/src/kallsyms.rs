//! The symbols of a kernel: functions and data of the kernel and of its modules.
//!
//! A guest's module records the functions in which its samples and stacks lie (`strata:symbol`). A recording may also
//! hold what `/proc/kallsyms` lists, in the file `kallsyms` beside a guest's layers, or in the folder of the host's
//! kernel. Both come from a guest: whatever they hold, names that would act on a terminal are left out and sizes are
//! bounded.

use crate::reader::{StreamRecord, TraceLayer};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Name of the file in a recording.
pub const KALLSYMS_FILE: &str = "kallsyms";
/// The event that tells a function of a kernel.
const RECORD: &str = "strata:symbol";
/// Largest file that is read, bytes.
const MAX_BYTES: u64 = 64 << 20;
/// Kernel addresses are in the upper half of the address space.
const KERNEL_HALF: u64 = 1 << 63;
/// No symbol is larger than this, bytes: what is further from the symbol before it belongs to none.
const MAX_SYMBOL: u64 = 4 << 20;

/// The symbols of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kallsyms {
    /// By address; one for each.
    symbols: Vec<KernelSymbol>,
}

/// A symbol of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSymbol {
    /// Where it begins.
    pub address: u64,
    /// Its name.
    pub name: String,
    /// The module that it belongs to; `None` for the kernel itself.
    pub module: Option<String>,
    /// Bytes, where they are known.
    size: Option<u64>,
    is_global: bool,
}

impl KernelSymbol {
    /// Name, and module in brackets where there is one.
    #[must_use]
    pub fn label(&self) -> String {
        self.module.as_ref().map_or_else(|| self.name.clone(), |module| format!("{} [{module}]", self.name))
    }
}

impl Kallsyms {
    /// The symbols that the records of `layers` and the file in `folder` tell; `None` when neither tells any.
    ///
    /// # Errors
    /// When the file is there and cannot be read.
    pub fn of<'t>(folder: &Path, layers: impl Iterator<Item = &'t TraceLayer>) -> io::Result<Option<Self>> {
        let file = Self::load(folder)?.unwrap_or_default();
        let told = |layer: &&TraceLayer| layer.schemas.iter().any(|schema| schema.name() == RECORD);
        let recorded = layers.filter(told).flat_map(|layer| {
            let records = layer.streams.iter().flat_map(|stream| layer.records(stream));
            records.filter(|record| record.schema.name() == RECORD).filter_map(|record| recorded_symbol(&record))
        });
        // The file's come after those of the running kernel itself.
        let symbols = Self::new(recorded.chain(file.symbols).collect());
        Ok((!symbols.is_empty()).then_some(symbols))
    }

    fn new(mut symbols: Vec<KernelSymbol>) -> Self {
        // Stable: the first of equals stays the first.
        symbols.sort_by_key(|symbol| (symbol.address, !symbol.is_global));
        symbols.dedup_by_key(|symbol| symbol.address);
        Self { symbols }
    }

    /// Reads the file in `folder`; `None` when there is none, or when the kernel that wrote it hid its addresses.
    ///
    /// # Errors
    /// When it is there and cannot be read.
    pub fn load(folder: &Path) -> io::Result<Option<Self>> {
        let file = match File::open(folder.join(KALLSYMS_FILE)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut text = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut text)?;
        let symbols = Self::parse(&String::from_utf8_lossy(&text));
        Ok((!symbols.symbols.is_empty()).then_some(symbols))
    }

    /// The symbols that `text` lists, one a line: address, type, name, and the module in brackets. Lines that are not so
    /// are passed over. Of several symbols with one address a global one counts, else the first.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        Self::new(text.lines().filter_map(symbol).collect())
    }

    /// The symbol that `address` lies in, and how far from its beginning, bytes.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<(&KernelSymbol, u64)> {
        let at = self.symbols.partition_point(|symbol| symbol.address <= address);
        let symbol = self.symbols.get(at.checked_sub(1)?)?;
        let offset = address - symbol.address;
        (offset < symbol.size.unwrap_or(MAX_SYMBOL)).then_some((symbol, offset))
    }

    /// Number of symbols.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.symbols.len()
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }
}

fn symbol(line: &str) -> Option<KernelSymbol> {
    let mut words = line.split_ascii_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok().filter(|&address| address >= KERNEL_HALF)?;
    let kind = words.next()?;
    let name = words.next().filter(|name| is_plain(name))?;
    let module = words.next().and_then(|word| word.strip_prefix('[')?.strip_suffix(']')).filter(|name| is_plain(name));
    // Padding before functions, and names that compilers give to parts of them.
    if name.starts_with("__pfx_") {
        return None;
    }
    let is_global = kind.bytes().all(|byte| byte.is_ascii_uppercase());
    Some(KernelSymbol { address, name: name.into(), module: module.map(Into::into), size: None, is_global })
}

/// What a `strata:symbol` record says: where a function begins, its bytes, its name and in brackets its module.
fn recorded_symbol(record: &StreamRecord<'_>) -> Option<KernelSymbol> {
    let (address, size) = (record.unsigned("begin")?, record.unsigned("size")?);
    let text = record.text("name")?;
    let (name, module) = text.split_once(" [").map_or((&*text, None), |(name, rest)| (name, rest.strip_suffix(']')));
    let named = is_plain(name) && module.is_none_or(is_plain) && address >= KERNEL_HALF;
    let size = Some(size.min(MAX_SYMBOL));
    named.then(|| KernelSymbol { address, name: name.into(), module: module.map(Into::into), size, is_global: true })
}

fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "\
0000000000000000 A fixed_percpu_data
ffffffff81000000 T _text
ffffffff81000010 t first
ffffffff81000020 t local_name
ffffffff81000020 T global_name
ffffffff81000030 T __pfx_padded
ffffffff81000040 T padded
ffffffffc0100000 t probe\t[strata]
garbage
ffffffffc0100100 T \x1b[2J
";

    fn label(address: u64) -> Option<(String, u64)> {
        let symbols = Kallsyms::parse(TEXT);
        symbols.find(address).map(|(symbol, offset)| (symbol.label(), offset))
    }

    #[test]
    fn address_lies_in_the_symbol_before_it() {
        assert_eq!(label(0xffff_ffff_8100_0013), Some(("first".into(), 3)));
        assert_eq!(label(0xffff_ffff_8100_0024), Some(("global_name".into(), 4)));
        assert_eq!(label(0xffff_ffff_8100_0040), Some(("padded".into(), 0)));
    }

    #[test]
    fn symbols_of_modules_say_so() {
        assert_eq!(label(0xffff_ffff_c010_0104), Some(("probe [strata]".into(), 0x104)));
    }

    #[test]
    fn address_far_from_every_symbol_has_none() {
        assert_eq!([0x1000, 0xffff_ffff_80ff_ffff, 0xffff_ffff_9000_0000].map(label), [None, None, None]);
    }

    #[test]
    fn kernel_that_hides_its_addresses_has_no_symbols() {
        assert!(Kallsyms::parse("0000000000000000 T _text\n0000000000000000 T first\n").is_empty());
        assert_eq!(Kallsyms::load(Path::new("/proc/self/nowhere")).unwrap(), None);
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in "([0-9a-f]{0,17}[ \t]?[a-zA-Z]? ?.{0,8}\n?){0,20}", address: u64) {
            let symbols = Kallsyms::parse(&text);

            prop_assert!(symbols.find(address).is_none_or(|(symbol, _)| symbol.address <= address));
        }
    }
}
