//! Files with the symbols of a kernel that are given to a reader: what `/proc/kallsyms` has, a `System.map`, or a `vmlinux`.
//!
//! A kernel may have been moved when it booted (KASLR), by a multiple of 2 MiB of less than 1 GiB, and the last two do not say
//! how far. What a recording tells of the kernel does: symbols that a guest's module recorded, and addresses of functions,
//! which are where one begins. They also tell whether the file is of that kernel at all.

use crate::event::address::{self, AddressOf, address_of};
use crate::kernel_symbols::{KERNEL_HALF, KernelSymbol, KernelSymbols};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::{convert, fs};
use strata_recording::layer::LayerKind;
use strata_recording::reader::{ReadError, Trace, TraceLayer};
use strata_recording::schema::Value;
use thiserror::Error;

/// What the host's kernel is called.
const HOST: &str = "host";
/// No such file is larger, bytes.
const MAX_BYTES: u64 = 4 << 30;
/// What a kernel is moved by is a multiple of this, and less than the other.
const MOVED_BY: u64 = 2 << 20;
const MOVED_MOST: u64 = 1 << 30;
/// Where the kernel's own image may lie; modules lie behind it, and are not moved with it.
const IMAGE: std::ops::Range<u64> = 0xffff_ffff_8000_0000..0xffff_ffff_c000_0000;
/// Addresses of functions that are looked at, and records of a stream that are looked through for them.
const MOST_FUNCTIONS: usize = 256;
const MOST_RECORDS: usize = 1 << 20;
/// With fewer functions, some place fits by chance.
const FEWEST_TO_MOVE: usize = 4;

/// A file of symbols, and whose they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SymbolFile {
    /// `host` or the name of a VM; `None` for the only kernel of the recording.
    kernel: Option<String>,
    path: PathBuf,
}

impl FromStr for SymbolFile {
    type Err = convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.split_once('=') {
            Some((kernel, path)) if !kernel.contains('/') => Self { kernel: Some(kernel.into()), path: path.into() },
            _ => Self { kernel: None, path: text.into() },
        })
    }
}

/// Why a file of symbols is of no use for a recording.
#[derive(Debug, Error)]
pub enum SymbolFileError {
    /// The recording cannot be read.
    #[error(transparent)]
    Trace(#[from] ReadError),
    /// The file cannot be read.
    #[error("{}: cannot be read", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is an ELF file that is damaged.
    #[error("{}: is a damaged or incomplete vmlinux", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: object::Error,
    },
    /// It has no symbols of a kernel.
    #[error("{}: has no symbols of a kernel; give what /proc/kallsyms has for root, System.map or vmlinux", .0.display())]
    NoSymbols(PathBuf),
    /// It has symbols, all at address 0.
    #[error("{}: all addresses are 0, as /proc/kallsyms shows them to users; copy it as root", .0.display())]
    Hidden(PathBuf),
    /// The recording has no such kernel.
    #[error("this trace has no kernel '{wanted}' to take symbols for; it has {present}")]
    NoKernel {
        /// What was requested.
        wanted: String,
        /// What there is.
        present: String,
    },
    /// The recording has several kernels.
    #[error("{}: say whose symbols they are: {}", .path.display(), .kernels.iter().map(|kernel| format!("{kernel}=FILE")).collect::<Vec<_>>().join(" or "))]
    Whose {
        /// The file.
        path: PathBuf,
        /// The kernels.
        kernels: Vec<String>,
    },
    /// It is of another release.
    #[error("{}: is of kernel {of}, and {kernel} ran {ran}", .path.display())]
    OtherRelease {
        /// The file.
        path: PathBuf,
        /// The release that it is of.
        of: String,
        /// The kernel.
        kernel: String,
        /// The release that was recorded.
        ran: String,
    },
    /// What the recording tells of the kernel is not in it.
    #[error("{}: does not fit the kernel of {kernel}: {missing} of {all} functions in the trace lie elsewhere in this file", .path.display())]
    OtherKernel {
        /// The file.
        path: PathBuf,
        /// The kernel.
        kernel: String,
        /// Functions that are elsewhere.
        missing: usize,
        /// Functions that the recording tells.
        all: usize,
    },
    /// How far the kernel was moved is not known.
    #[error(
        "{}: {kernel}'s kernel lay elsewhere (KASLR), and the trace names too few functions ({all}) to tell where; give the \
         /proc/kallsyms of the boot that was recorded", .path.display()
    )]
    Moved {
        /// The file.
        path: PathBuf,
        /// The kernel.
        kernel: String,
        /// Functions that the recording tells.
        all: usize,
    },
}

/// Opens the recording at `trace` and gives it the symbols of `files`. Says what could not be made sure of.
///
/// # Errors
/// When the recording or a file cannot be read, or a file is not of the kernel that was recorded.
pub fn open(trace: &Path, files: &[SymbolFile]) -> Result<(Trace, Vec<String>), SymbolFileError> {
    let mut trace = Trace::open(trace)?;
    let mut notices = Vec::new();
    for file in files {
        notices.extend(file.give_to(&mut trace)?);
    }
    Ok((trace, notices))
}

impl SymbolFile {
    /// Gives its symbols to `trace`. Says so where nothing in that tells whether they are of its kernel.
    fn give_to(&self, trace: &mut Trace) -> Result<Option<String>, SymbolFileError> {
        let kernel = self.kernel_of(trace)?;
        let vm = (kernel != HOST).then_some(kernel.as_str());
        let file = Table::read(&self.path)?;
        file.check_release(&self.path, &kernel, recorded_release(trace, vm))?;
        let reported = Reported::by(trace, vm);
        let (moved, is_sure) = reported.place_of(&file, &self.path, &kernel)?;
        trace.give_kallsyms(vm, &Arc::from(file.moved(moved)));
        let path = self.path.display();
        Ok((!is_sure).then(|| format!("{path}: the trace cannot show whether this file fits the kernel of {kernel}")))
    }

    /// The kernel that it is of: `host` or a VM.
    fn kernel_of(&self, trace: &Trace) -> Result<String, SymbolFileError> {
        // KVM's records tell where a guest left off whose own were not recorded.
        let vms = trace.manifest().vms.iter().map(|vm| vm.name.clone());
        // Of several hosts, it is the first one.
        let is_first_host = |layer: &&TraceLayer| layer.description.host.is_none();
        let host = trace.layers_of(LayerKind::HostKernel).find(is_first_host).map(|_| HOST.to_owned());
        let kernels: Vec<String> = host.into_iter().chain(vms).collect();
        match (&self.kernel, &kernels[..]) {
            (Some(wanted), _) if kernels.contains(wanted) => Ok(wanted.clone()),
            (Some(wanted), _) => {
                let present = if kernels.is_empty() { "none".into() } else { kernels.join(", ") };
                Err(SymbolFileError::NoKernel { wanted: wanted.clone(), present })
            }
            (None, []) => Err(SymbolFileError::NoKernel { wanted: HOST.into(), present: "none".into() }),
            (None, [only]) => Ok(only.clone()),
            (None, _) => Err(SymbolFileError::Whose { path: self.path.clone(), kernels }),
        }
    }
}

/// The release of the kernel of `vm`, or else of the host, as far as `trace` says.
fn recorded_release<'t>(trace: &'t Trace, vm: Option<&str>) -> Option<&'t str> {
    let manifest = trace.manifest();
    let release = match vm {
        None => &manifest.host.kernel,
        Some(name) => &manifest.vms.iter().find(|vm| vm.name == name)?.guest.as_ref()?.kernel,
    };
    Some(release.as_str()).filter(|release| !release.is_empty())
}

/// The symbols of a file.
struct Table {
    /// As `/proc/kallsyms` has them.
    text: Vec<u8>,
    symbols: KernelSymbols,
    /// The release of its kernel, where it says that.
    release: Option<String>,
}

impl Table {
    fn read(path: &Path) -> Result<Self, SymbolFileError> {
        let failed = |source| SymbolFileError::Read { path: path.into(), source };
        let mut bytes = Vec::new();
        fs::File::open(path).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes)).map_err(failed)?;
        let (text, release) = if bytes.starts_with(b"\x7fELF") {
            of_elf(&bytes).map_err(|source| SymbolFileError::Damaged { path: path.into(), source })?
        } else {
            (bytes, None)
        };
        let symbols = KernelSymbols::of_kallsyms(&text);
        if symbols.is_empty() {
            let is_hidden = text.starts_with(b"0000000000000000 ");
            return Err(if is_hidden { SymbolFileError::Hidden } else { SymbolFileError::NoSymbols }(path.into()));
        }
        Ok(Self { text, symbols, release })
    }

    fn check_release(&self, path: &Path, kernel: &str, recorded: Option<&str>) -> Result<(), SymbolFileError> {
        match (&self.release, recorded) {
            (Some(of), Some(ran)) if of != ran => Err(SymbolFileError::OtherRelease {
                path: path.into(),
                of: of.clone(),
                kernel: kernel.into(),
                ran: ran.into(),
            }),
            _ => Ok(()),
        }
    }

    /// Its symbols where they were, when the kernel was moved by this, as `/proc/kallsyms` has them. Where modules were
    /// is not known then.
    fn moved(self, by: i64) -> Vec<u8> {
        if by == 0 {
            return self.text;
        }
        let mut text = String::with_capacity(self.text.len());
        let lines = String::from_utf8_lossy(&self.text);
        for (symbol, kind) in lines.lines().filter_map(KernelSymbol::of_line) {
            if let Some(address) = symbol.address.checked_add_signed(by).filter(|_| IMAGE.contains(&symbol.address)) {
                // A string takes all that is written.
                let _ = writeln!(text, "{address:016x} {} {}", char::from(kind), symbol.name);
            }
        }
        text.into_bytes()
    }
}

/// The symbols of a `vmlinux`, as `/proc/kallsyms` has them, and its release.
fn of_elf(bytes: &[u8]) -> object::Result<(Vec<u8>, Option<String>)> {
    let file = object::File::parse(bytes)?;
    let mut text = String::new();
    // A module's object file is not where it will be.
    let is_kernel = file.kind() != object::ObjectKind::Relocatable;
    for symbol in file.symbols().filter(|symbol| is_kernel && symbol.is_definition()) {
        let kind = match symbol.kind() {
            SymbolKind::Text => 't',
            SymbolKind::Data => 'd',
            _ => continue,
        };
        let kind = if symbol.is_global() { kind.to_ascii_uppercase() } else { kind };
        if let Some(name) = symbol.name().ok().filter(|_| symbol.address() >= KERNEL_HALF) {
            // A string takes all that is written.
            let _ = writeln!(text, "{:016x} {kind} {name}", symbol.address());
        }
    }
    Ok((text.into_bytes(), file.section_by_name(".rodata").and_then(|section| release_in(section.data().ok()?))))
}

/// The release in the kernel's banner.
fn release_in(data: &[u8]) -> Option<String> {
    const BANNER: &[u8] = b"Linux version ";
    let after = |begin: usize| {
        let rest = data.get(begin + BANNER.len()..)?;
        let release = rest.split(|byte| !byte.is_ascii_graphic()).next()?;
        // The banner's own pattern begins like it, too.
        release.first()?.is_ascii_digit().then(|| String::from_utf8_lossy(release).into_owned())
    };
    let begins = data.windows(BANNER.len()).enumerate().filter(|(_, window)| *window == BANNER);
    begins.map(|(begin, _)| begin).find_map(after)
}

/// What a recording tells of where a kernel's functions were.
struct Reported {
    symbols: KernelSymbols,
    /// Where functions begin.
    functions: BTreeSet<u64>,
}

impl Reported {
    /// What `trace` tells of the kernel of `vm`, or else of the host.
    fn by(trace: &Trace, vm: Option<&str>) -> Self {
        let is_its = |layer: &&TraceLayer| match vm {
            Some(vm) => layer.description.kind == LayerKind::GuestKernel && layer.description.vm.as_deref() == Some(vm),
            None => layer.description.kind == LayerKind::HostKernel && layer.description.host.is_none(),
        };
        let layers: Vec<&TraceLayer> = trace.layers().iter().filter(is_its).collect();
        let mut functions = BTreeSet::new();
        for layer in &layers {
            add_functions(layer, &mut functions);
        }
        Self { symbols: KernelSymbols::reported_by(&layers, MOST_RECORDS), functions }
    }

    /// How far the kernel of `file`, which is at `path`, was moved, and whether anything tells that.
    fn place_of(&self, file: &Table, path: &Path, kernel: &str) -> Result<(i64, bool), SymbolFileError> {
        let other =
            |missing, all| SymbolFileError::OtherKernel { path: path.into(), kernel: kernel.into(), missing, all };
        if let Some((moved, agree, all)) = self.moved_by_names(file) {
            return if agree * 10 >= all * 9 { Ok((moved, true)) } else { Err(other(all - agree, all)) };
        }
        let begins: BTreeSet<u64> = file.symbols.iter().map(|symbol| symbol.address).collect();
        let all = self.functions.len();
        let fitting = |by: i64| {
            let begin = |function: &&u64| function.checked_sub_signed(by).is_some_and(|begin| begins.contains(&begin));
            self.functions.iter().filter(begin).count()
        };
        let fits = |count: usize| count * 10 >= all * 9;
        if fits(fitting(0)) {
            return Ok((0, all > 0));
        }
        let most = i64::try_from(MOVED_MOST / MOVED_BY).unwrap_or(i64::MAX);
        let step = i64::try_from(MOVED_BY).unwrap_or(i64::MAX);
        let counted = (-most..=most).map(|steps| (fitting(steps * step), steps * step));
        match counted.max_by_key(|&(count, by)| (count, std::cmp::Reverse(by.abs()))) {
            Some((count, by)) if all >= FEWEST_TO_MOVE && fits(count) => Ok((by, true)),
            Some((count, _)) if all >= FEWEST_TO_MOVE => Err(other(all - count, all)),
            _ => Err(SymbolFileError::Moved { path: path.into(), kernel: kernel.into(), all }),
        }
    }

    /// How far the symbols were moved that the recording tells by name, for how many of them this holds, and how many they
    /// are; `None` where there are none.
    fn moved_by_names(&self, file: &Table) -> Option<(i64, usize, usize)> {
        let mut places: BTreeMap<&str, Option<u64>> = BTreeMap::new();
        let text = String::from_utf8_lossy(&file.text);
        for (symbol, _) in text.lines().filter_map(KernelSymbol::of_line) {
            // A name that several have says nothing.
            places.entry(symbol.name).and_modify(|place| *place = None).or_insert(Some(symbol.address));
        }
        let (mut moved, mut all): (BTreeMap<i64, usize>, usize) = (BTreeMap::new(), 0);
        for symbol in self.symbols.iter().filter(|symbol| IMAGE.contains(&symbol.address)) {
            match places.get(symbol.name) {
                Some(Some(place)) => {
                    let by = symbol.address.wrapping_sub(*place).cast_signed();
                    // No kernel moves itself otherwise.
                    if by.unsigned_abs() % MOVED_BY == 0 && by.unsigned_abs() < MOVED_MOST {
                        *moved.entry(by).or_default() += 1;
                    }
                }
                Some(None) => continue,
                None => {}
            }
            all += 1;
        }
        let (&by, &agree) = moved.iter().max_by_key(|(_, count)| **count).unwrap_or((&0, &0));
        (all > 0).then_some((by, agree, all))
    }
}

/// Adds the functions of the kernel's image whose addresses records of `layer` have.
fn add_functions(layer: &TraceLayer, functions: &mut BTreeSet<u64>) {
    let kind = layer.description.kind;
    let holds = |event: &str, field: &_| address_of(kind, event, field) == Some(AddressOf::Recorder);
    let is_wanted = |event: &str, field: &shared_ring::event::FieldDescription| {
        address::is_function(&field.name) && holds(event, field)
    };
    let of_interest: BTreeSet<u16> = layer
        .schemas
        .iter()
        .map(|schema| schema.description())
        .filter(|event| event.fields.iter().any(|field| is_wanted(&event.name, field)))
        .map(|event| event.id)
        .collect();
    if of_interest.is_empty() {
        return;
    }
    for stream in &layer.streams {
        for record in layer.records(stream).take(MOST_RECORDS) {
            if !of_interest.contains(&record.schema.description().id) {
                continue;
            }
            let addresses =
                record.schema.fields(record.payload).filter(|(field, _)| is_wanted(record.schema.name(), field));
            let in_image = addresses.filter_map(|(_, value)| match value {
                Value::Unsigned(address) => Some(address),
                Value::Signed(address) => Some(address.cast_unsigned()),
                _ => None,
            });
            functions.extend(in_image.filter(|address| IMAGE.contains(address)));
            if functions.len() >= MOST_FUNCTIONS {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;
