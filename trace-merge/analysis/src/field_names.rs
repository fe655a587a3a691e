//! The names of what the numbers of a field stand for, which listings and exports show beside the numbers.

use crate::address_symbols::{AddressSymbols, SymbolsOf};
use crate::event::named::Named;
use crate::kernel_symbols::SymbolOffset;
use shared_ring::event::FieldDescription;
use std::borrow::Cow;
use std::fmt;
use strata_recording::manifest::FlagNames;
use strata_recording::reader::TraceLayer;
use strata_recording::schema::{IntegerField, Schema};

/// The names of the numbers of a field.
#[derive(Debug)]
pub struct FieldNames(Of);

#[derive(Debug)]
enum Of {
    /// Things that are numbered.
    Numbers(Named),
    /// Flags that the kernel names.
    Flags(FlagNames),
    /// Addresses of kernels.
    Addresses(SymbolsOf),
}

/// A name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name<'s> {
    /// Of something that is numbered.
    Text(Cow<'static, str>),
    /// Of an address.
    Symbol(SymbolOffset<'s>),
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => formatter.write_str(text),
            Self::Symbol(symbol) => symbol.fmt(formatter),
        }
    }
}

impl FieldNames {
    /// Those of the field at `position` of the events of `schema`, which is one of `layer`'s; `None` where its numbers have no
    /// names.
    pub fn of(layer: &TraceLayer, schema: &Schema, position: usize, symbols: &mut AddressSymbols<'_>) -> Option<Self> {
        let field = schema.description().fields.get(position)?;
        let named = Named::all(schema).into_iter().find(|named| named.position == position);
        let flags = || FlagNames::of(&layer.description, schema.name(), &field.name).cloned().map(Of::Flags);
        let addresses = || symbols.of(layer, schema, field).map(Of::Addresses);
        named.map(Of::Numbers).or_else(flags).or_else(addresses).map(Self)
    }

    /// The key of the name, where the number's is that of `field`.
    #[must_use]
    pub fn key(&self, field: &FieldDescription) -> Cow<'static, str> {
        match &self.0 {
            Of::Numbers(named) => named.key(&field.name),
            Of::Flags(_) => format!("{}_name", field.name).into(),
            Of::Addresses(_) => format!("{}_symbol", field.name).into(),
        }
    }

    /// The symbol of the address `number` in a record's `payload`; `None` where it is no address, or has none.
    #[must_use]
    #[inline]
    pub fn symbol(&self, number: u64, payload: &[u8]) -> Option<SymbolOffset<'_>> {
        match &self.0 {
            Of::Numbers(_) | Of::Flags(_) => None,
            Of::Addresses(symbols) => symbols.find(payload)?.named(number),
        }
    }

    /// The name of `number` in a record's `payload`; `None` where it has none.
    #[must_use]
    pub fn name(&self, number: u64, payload: &[u8]) -> Option<Name<'_>> {
        match &self.0 {
            Of::Numbers(named) => named.name(named.number(payload)?, payload).map(Name::Text),
            Of::Flags(names) => names.text(number).map(|text| Name::Text(text.into())),
            Of::Addresses(_) => self.symbol(number, payload).map(Name::Symbol),
        }
    }

    /// Whether few of a record's numbers are ever met: not, where they are addresses.
    #[must_use]
    pub const fn are_few(&self) -> bool {
        !matches!(self.0, Of::Addresses(_))
    }

    /// The field that decides on a number's name besides the number, where the numbers are few: names of equal numbers are
    /// equal where its are.
    #[must_use]
    pub const fn beside(&self) -> Option<IntegerField> {
        match &self.0 {
            Of::Numbers(named) => named.beside(),
            Of::Flags(_) | Of::Addresses(_) => None,
        }
    }

    /// The symbol of the call `address` of a stack in a record's `payload`; `None` where it has none.
    #[must_use]
    pub fn call(&self, address: u64, payload: &[u8]) -> Option<SymbolOffset<'_>> {
        match &self.0 {
            Of::Numbers(_) | Of::Flags(_) => None,
            Of::Addresses(symbols) => symbols.find(payload)?.named_call(address),
        }
    }
}
