//! Columns of a row group in the making: values as they are, until the library encodes them.

pub(super) mod cell;
pub(super) mod chunk;
pub(super) mod fields;

use crate::tables::{Column as Described, Kind};
use cell::{Cell, text_of};
use parquet::basic::{LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::errors::ParquetError;
use parquet::schema::types::{Type, TypePtr};
use std::sync::Arc;
use strata_recording::schema::{Elements, Value};

/// Decimal digits of an integer of 64 bits without a sign, and bytes that they take.
const DIGITS: i32 = 20;
const DECIMAL: i32 = 9;

/// The type of a column in a file.
///
/// # Errors
/// When the library knows of no such type.
pub(super) fn type_of(column: &Described) -> Result<Type, ParquetError> {
    let number = |name: &str, logical| {
        let number = Type::primitive_type_builder(name, Physical::INT64).with_repetition(Repetition::OPTIONAL);
        number.with_logical_type(logical).build()
    };
    let unsigned = Some(LogicalType::integer(64, false));
    let list = |element: Type| {
        let elements = Type::group_type_builder("list").with_repetition(Repetition::REPEATED);
        let elements = elements.with_fields(vec![Arc::new(element)]).build()?;
        let list = Type::group_type_builder(&column.name).with_repetition(Repetition::OPTIONAL);
        list.with_logical_type(Some(LogicalType::List)).with_fields(vec![Arc::new(elements)]).build()
    };
    match column.kind {
        Kind::Integer => number(&column.name, None),
        Kind::Unsigned => number(&column.name, unsigned),
        Kind::Moment => number(&column.name, Some(LogicalType::timestamp(true, TimeUnit::NANOS))),
        Kind::Float => {
            let float = Type::primitive_type_builder(&column.name, Physical::DOUBLE);
            float.with_repetition(Repetition::OPTIONAL).build()
        }
        Kind::Flag => {
            let flag = Type::primitive_type_builder(&column.name, Physical::BOOLEAN);
            flag.with_repetition(Repetition::OPTIONAL).build()
        }
        Kind::Text => {
            let text = Type::primitive_type_builder(&column.name, Physical::BYTE_ARRAY);
            text.with_repetition(Repetition::OPTIONAL).with_logical_type(Some(LogicalType::String)).build()
        }
        Kind::Integers => list(number("item", None)?),
        Kind::Unsigneds => list(number("item", unsigned)?),
    }
}

/// The type of a column in a file of a lake: Spark has no integers without a sign, and takes UTC to the microsecond.
///
/// # Errors
/// When the library knows of no such type.
pub(super) fn type_in_lake(column: &Described) -> Result<Type, ParquetError> {
    let typed = |physical, logical| {
        let column = Type::primitive_type_builder(&column.name, physical).with_repetition(Repetition::OPTIONAL);
        column.with_logical_type(Some(logical))
    };
    match column.kind {
        Kind::Moment => typed(Physical::INT64, LogicalType::timestamp(true, TimeUnit::MICROS)).build(),
        Kind::Unsigned => {
            let decimal = typed(Physical::FIXED_LEN_BYTE_ARRAY, LogicalType::decimal(0, DIGITS));
            decimal.with_length(DECIMAL).with_precision(DIGITS).with_scale(0).build()
        }
        _ => type_of(column),
    }
}

/// The type of the rows of a table with these `columns`.
///
/// # Errors
/// When the library knows of no such type.
pub(super) fn type_of_rows(columns: &[Described]) -> Result<TypePtr, ParquetError> {
    let fields = columns.iter().map(|column| type_of(column).map(Arc::new)).collect::<Result<_, _>>()?;
    Ok(Arc::new(Type::group_type_builder("arrow_schema").with_fields(fields).build()?))
}

/// The levels of a column's values: whether one is there, or whether it goes on with a list.
#[derive(Debug, Default, PartialEq, Eq)]
struct Levels {
    count: usize,
    /// The level that all have, while they have one.
    level: i16,
    /// The level of each, when they have not.
    each: Vec<i16>,
}

impl Levels {
    #[inline]
    fn push(&mut self, level: i16) {
        self.push_all(level, 1);
    }

    /// Adds `level` for `count` values.
    #[inline]
    fn push_all(&mut self, level: i16, count: usize) {
        if self.count > 0 && (level != self.level || !self.each.is_empty()) {
            self.push_each(level, count);
        }
        self.level = level;
        self.count += count;
    }

    #[inline(never)]
    fn push_each(&mut self, level: i16, count: usize) {
        self.each.resize(self.count, self.level);
        self.each.resize(self.count + count, level);
    }
}

/// Texts behind each other.
#[derive(Debug, Default, PartialEq, Eq)]
struct Texts {
    bytes: Vec<u8>,
    /// Where each ends among `bytes`.
    ends: Vec<usize>,
}

/// A column that is filled.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Column {
    kind: Kind,
    levels: Levels,
    /// Of a list: 0 for its first element, 1 for the others.
    repetitions: Vec<i16>,
    /// Integers, moments, flags, bits of floating point, and elements of lists, without nulls.
    numbers: Vec<i64>,
    texts: Texts,
}

impl Column {
    /// Without values.
    pub(super) fn new(kind: Kind) -> Self {
        let (levels, texts) = (Levels::default(), Texts::default());
        Self { kind, levels, repetitions: Vec::new(), numbers: Vec::new(), texts }
    }

    /// The values; without them it begins anew.
    pub(super) fn take(&mut self) -> Self {
        let empty = Self::new(self.kind);
        std::mem::replace(self, empty)
    }

    const fn is_list(&self) -> bool {
        matches!(self.kind, Kind::Integers | Kind::Unsigneds)
    }

    /// Bytes that are kept.
    pub(super) fn kept(&self) -> usize {
        let texts = self.texts.bytes.len() + size_of_val(&*self.texts.ends);
        let levels = size_of_val(&*self.levels.each) + size_of_val(&*self.repetitions);
        size_of_val(&*self.numbers) + texts + levels
    }

    /// Adds `cell`, and a null where it is of another kind.
    #[inline]
    pub(super) fn push(&mut self, cell: Cell<'_>) {
        match (self.kind, cell) {
            (Kind::Integer | Kind::Moment, Cell::Integer(number)) => self.push_number(number),
            (Kind::Integer, Cell::Unsigned(number)) => match i64::try_from(number) {
                Ok(number) => self.push_number(number),
                Err(_) => self.push_null(),
            },
            (Kind::Unsigned, Cell::Unsigned(number)) => self.push_number(number.cast_signed()),
            (Kind::Float, Cell::Float(number)) => self.push_number(number.to_bits().cast_signed()),
            (Kind::Flag, Cell::Flag(flag)) => self.push_number(flag.into()),
            (Kind::Text, Cell::Text(text)) => self.push_text(text.as_bytes()),
            (Kind::Text, Cell::Bytes(text)) => self.push_text(text_of(text).as_bytes()),
            (Kind::Integers | Kind::Unsigneds, Cell::List(elements)) => self.push_list(elements),
            _ => self.push_null(),
        }
    }

    #[inline]
    pub(super) fn push_number(&mut self, number: i64) {
        self.levels.push(1);
        self.numbers.push(number);
    }

    #[inline]
    pub(super) fn push_null(&mut self) {
        self.levels.push(0);
        if self.is_list() {
            self.repetitions.push(0);
        }
    }

    fn push_text(&mut self, text: &[u8]) {
        self.levels.push(1);
        self.texts.bytes.extend_from_slice(text);
        self.texts.ends.push(self.texts.bytes.len());
    }

    /// Adds a number for each of `bits`, which has its sign where the column's have one; a null where there is none.
    pub(super) fn push_bits(&mut self, bits: impl Iterator<Item = Option<u64>> + Clone) {
        let (before, mut count) = (self.numbers.len(), 0);
        self.numbers.extend(bits.clone().inspect(|_| count += 1).flatten().map(u64::cast_signed));
        if self.numbers.len() - before == count {
            self.levels.push_all(1, count);
            return;
        }
        self.numbers.truncate(before);
        for number in bits {
            match number {
                Some(number) => self.push_number(number.cast_signed()),
                None => self.push_null(),
            }
        }
    }

    fn push_list(&mut self, elements: Elements<'_>) {
        if elements.is_empty() {
            self.levels.push(1);
            self.repetitions.push(0);
        }
        for (place, element) in elements.iter().enumerate() {
            self.repetitions.push((place > 0).into());
            let number = match (self.kind, element) {
                (Kind::Unsigneds, Value::Unsigned(number)) => Some(number.cast_signed()),
                (Kind::Unsigneds, Value::Signed(number)) => u64::try_from(number).ok().map(u64::cast_signed),
                (_, Value::Signed(number)) => Some(number),
                (_, Value::Unsigned(number)) => i64::try_from(number).ok(),
                (_, Value::Float(_) | Value::Text(_) | Value::Array(_)) => None,
            };
            self.levels.push(if number.is_some() { 3 } else { 2 });
            self.numbers.extend(number);
        }
    }

    /// Puts the values, which are numbers, into the order `order`: it names each row once.
    pub(super) fn reorder(&mut self, order: &[u32]) {
        if self.levels.each.is_empty() {
            if self.levels.level == 1 {
                self.numbers = in_order(order, &self.numbers);
            }
            return;
        }
        let mut numbers = std::mem::take(&mut self.numbers).into_iter();
        let levels = std::mem::take(&mut self.levels);
        let by_row: Vec<Option<i64>> =
            levels.each.iter().map(|&level| (level == 1).then(|| numbers.next()).flatten()).collect();
        for number in in_order(order, &by_row) {
            self.levels.push(number.is_some().into());
            self.numbers.extend(number);
        }
    }
}

/// `values` in the order `order`.
pub(super) fn in_order<V: Copy>(order: &[u32], values: &[V]) -> Vec<V> {
    order.iter().filter_map(|&place| values.get(place as usize).copied()).collect()
}

#[cfg(test)]
mod tests;
