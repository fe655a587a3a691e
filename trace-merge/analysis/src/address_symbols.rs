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

/// The symbols of the kernels of a recording.
#[derive(Debug)]
pub struct AddressSymbols<'t> {
    trace: &'t Trace,
    /// By VM, `None` for the host; `None` where there are none.
    known: BTreeMap<Option<String>, Option<Arc<KernelSymbols>>>,
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
            AddressOf::Recorder => self.kernel(layer.description.vm.as_deref()).map(SymbolsOf::Kernel),
            AddressOf::Guest => {
                let thread = schema.integer(THREAD)?;
                let trace = self.trace;
                let mut guests = BTreeMap::new();
                for vm in &trace.manifest().vms {
                    if let Some(symbols) = self.kernel(Some(&vm.name)) {
                        let threads = vm.vcpu_threads.iter().filter(|&&thread| thread > 0);
                        guests.extend(threads.map(|&thread| (thread.into(), Arc::clone(&symbols))));
                    }
                }
                (!guests.is_empty() && kind == LayerKind::HostKernel).then_some(SymbolsOf::Guests(thread, guests))
            }
        }
    }

    fn kernel(&mut self, vm: Option<&str>) -> Option<Arc<KernelSymbols>> {
        let trace = self.trace;
        let all = || match vm {
            Some(vm) => KernelSymbols::of_guest(trace, vm),
            None => KernelSymbols::saved(trace, None),
        };
        let read = || Some(all()).filter(|symbols| !symbols.is_empty()).map(Arc::new);
        self.known.entry(vm.map(Into::into)).or_insert_with(read).clone()
    }
}
