//! Records that Perfetto has no form for: events that describe themselves, each type of them once, with the fields that
//! they have.

use super::packets::generic_type::GenericType;
use super::packets::{FtraceKind, Machine, PacketWriter};
use std::io::Write;
use strata_analysis::address_symbols::AddressSymbols;
use strata_recording::reader::{StreamRecord, Trace};
use strata_recording::schema::Schema;

/// The least number of a type of event that describes itself, among the fields of Perfetto's own ones.
const FIRST: u32 = 1 << 16;

/// Writes such records.
#[derive(Debug)]
pub(super) struct GenericRecords<'t> {
    trace: &'t Trace,
    symbols: AddressSymbols<'t>,
    /// By layer and event type.
    types: Vec<Vec<Option<GenericType>>>,
    described: u32,
}

impl<'t> GenericRecords<'t> {
    /// Of `trace`.
    pub(super) const fn new(trace: &'t Trace) -> Self {
        Self { trace, symbols: AddressSymbols::new(trace), types: Vec::new(), described: 0 }
    }

    /// Writes a record of the layer `layer`.
    pub(super) fn record<W: Write>(
        &mut self,
        out: &mut PacketWriter<W>,
        (layer, place): (usize, (Machine, u32)),
        by: (u64, i64),
        record: &StreamRecord<'_>,
    ) {
        if !out.muted
            && let Some(of) = self.type_of(out, (layer, place), record.schema)
        {
            out.ftrace(place, by, FtraceKind::Generic { of, record });
        }
    }

    /// The event type `schema` of the layer `layer`, which is described afterwards.
    fn type_of<W: Write>(
        &mut self,
        out: &mut PacketWriter<W>,
        (layer, place): (usize, (Machine, u32)),
        schema: &Schema,
    ) -> Option<&GenericType> {
        if self.types.len() <= layer {
            self.types.resize_with(layer + 1, Vec::new);
        }
        let types = self.types.get_mut(layer)?;
        if types.len() <= schema.position() {
            types.resize_with(schema.position() + 1, || None);
        }
        let known = types.get_mut(schema.position())?;
        if known.is_none() {
            let layer = self.trace.layers().get(layer)?;
            let of = GenericType::new(FIRST + self.described, layer, schema, &mut self.symbols);
            self.described += 1;
            out.describe_event(place, of.describe(schema));
            *known = Some(of);
        }
        known.as_ref()
    }
}
