//! The symbols in which addresses that records hold lie, by kernel: each is read when a field needs it first.

use crate::event::address::{AddressOf, address_of};
use crate::kernel_symbols::KernelSymbols;
use shared_ring::event::FieldDescription;
use std::collections::BTreeMap;
use std::sync::Arc;
use strata_recording::layer::LayerKind;
use strata_recording::reader::{Trace, TraceLayer};
use strata_recording::schema::{IntegerField, Schema};

/// The field of the host's events that names the thread which records them.
const THREAD: &str = "common_pid";

/// Records of each of a guest's CPUs that are looked through for symbols: its module tells them again every five seconds, and
/// a listing of a short part of a long recording is not to read all of it.
const MOST_RECORDS: usize = 1 << 17;

/// The symbols of the kernels of a recording.
#[derive(Debug)]
pub struct AddressSymbols<'t> {
    trace: &'t Trace,
    known: BTreeMap<Kernel, Option<Arc<KernelSymbols>>>,
}

/// A kernel of a recording.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kernel {
    /// Of the guest of a VM.
    Guest(String),
    /// Of a host: `None` for the recording's own.
    Host(Option<String>),
}

/// The symbols for the addresses in a field.
#[derive(Debug)]
pub enum SymbolsOf {
    /// Of one kernel.
    Kernel(Arc<KernelSymbols>),
    /// Of the guest whose vCPU's thread recorded: where the thread is, and guests by thread.
    Guests(IntegerField, BTreeMap<i64, Arc<KernelSymbols>>),
}

impl SymbolsOf {
    /// Those for a record with this `payload`.
    #[must_use]
    #[inline]
    pub fn find(&self, payload: &[u8]) -> Option<&KernelSymbols> {
        match self {
            Self::Kernel(symbols) => Some(symbols),
            Self::Guests(thread, guests) => guests.get(&thread.read(payload)?).map(|symbols| &**symbols),
        }
    }
}

impl<'t> AddressSymbols<'t> {
    /// Those of `trace`.
    #[must_use]
    pub const fn new(trace: &'t Trace) -> Self {
        Self { trace, known: BTreeMap::new() }
    }

    /// Those for the addresses in `field` of an event of `layer`; `None` where it holds none, or there are none.
    pub fn of(&mut self, layer: &TraceLayer, schema: &Schema, field: &FieldDescription) -> Option<SymbolsOf> {
        let kind = layer.description.kind;
        match address_of(kind, schema.name(), field)? {
            AddressOf::Recorder => match &layer.description.vm {
                Some(vm) => self.guest(vm),
                None => self.host(layer),
            }
            .map(SymbolsOf::Kernel),
            AddressOf::Guest => {
                let thread = schema.integer(THREAD)?;
                let trace = self.trace;
                let mut guests = BTreeMap::new();
                for vm in trace.manifest().vms.iter().filter(|vm| vm.host == layer.description.host) {
                    if let Some(symbols) = self.guest(&vm.name) {
                        let threads = vm.all_vcpu_threads().filter(|&(_, thread)| thread > 0);
                        guests.extend(threads.map(|(_, thread)| (thread.into(), Arc::clone(&symbols))));
                    }
                }
                (!guests.is_empty() && kind == LayerKind::HostKernel).then_some(SymbolsOf::Guests(thread, guests))
            }
        }
    }

    fn guest(&mut self, vm: &str) -> Option<Arc<KernelSymbols>> {
        let trace = self.trace;
        self.known(Kernel::Guest(vm.into()), || KernelSymbols::of_guest_within(trace, vm, MOST_RECORDS))
    }

    fn host(&mut self, layer: &TraceLayer) -> Option<Arc<KernelSymbols>> {
        let read = || layer.kallsyms().map_or_else(KernelSymbols::default, |text| KernelSymbols::of_kallsyms(&text));
        self.known(Kernel::Host(layer.description.host.clone()), read)
    }

    fn known(&mut self, kernel: Kernel, read: impl FnOnce() -> KernelSymbols) -> Option<Arc<KernelSymbols>> {
        let read = || Some(read()).filter(|symbols| !symbols.is_empty()).map(Arc::new);
        self.known.entry(kernel).or_insert_with(read).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_recording::test_trace::{Field, TestTrace};

    #[test]
    fn symbols_are_those_of_the_kernel_that_records_and_of_the_guest_that_it_ran() {
        let address = 0xffff_ffff_8100_0004;
        let exit = |thread| [("common_pid", Field::Number(thread)), ("rip", Field::Hex(address))];
        let (_dir, trace) = TestTrace::new()
            .with_neighbour("web", 200)
            .host(0, 1, "kvm:kvm_entry", &exit(100))
            .host(0, 2, "timer:hrtimer_start", &[("function", Field::Hex(address))])
            .guest(0, 3, "timer:hrtimer_start", &[("function", Field::Hex(address))])
            .kallsyms("host-kernel", "ffffffff81000000 T of_host\n")
            .kallsyms("vm0/guest-kernel", "ffffffff81000000 T of_guest\n")
            .open();
        let mut symbols = AddressSymbols::new(&trace);

        let mut named = Vec::new();
        for layer in trace.layers() {
            for stream in &layer.streams {
                for record in layer.records(stream) {
                    let field = record.schema.description().fields.last().unwrap();
                    let found = symbols.of(layer, record.schema, field);
                    let name = found.as_ref().and_then(|found| found.find(record.payload)?.named(address));
                    named.push((record.schema.name().to_owned(), name.unwrap().to_string()));
                }
            }
        }

        let expected = [
            ("kvm:kvm_entry", "of_guest+0x4"),
            ("timer:hrtimer_start", "of_host+0x4"),
            ("timer:hrtimer_start", "of_guest+0x4"),
        ];
        assert_eq!(named, expected.map(|(event, name)| (event.to_owned(), name.to_owned())));
    }
}
