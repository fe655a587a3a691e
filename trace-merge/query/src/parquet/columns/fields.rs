//! The fields of an event type as one column: maps from their names to their values as text.

use super::chunk::{BATCH, Chunk};
use super::{Column, Levels, Texts};
use crate::tables::Kind;
use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::column::writer::{ColumnWriter, ColumnWriterImpl};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::{ParquetError, Result};
use parquet::schema::types::Type;
use std::io::Write;
use std::sync::Arc;
use strata_recording::schema::FloatText;

/// Levels: of a row without fields, of a key or a null, and of a value.
const NONE: i16 = 0;
const KEY: i16 = 2;
const VALUE: i16 = 3;

/// The type of the column `name`. Its leaves are keys, then values.
///
/// # Errors
/// When the library knows of no such type.
pub(in crate::parquet) fn type_of_fields(name: &str) -> Result<Type> {
    let text = |name, repetition| {
        let text = Type::primitive_type_builder(name, Physical::BYTE_ARRAY).with_repetition(repetition);
        text.with_logical_type(Some(LogicalType::String)).build().map(Arc::new)
    };
    let entries = Type::group_type_builder("key_value").with_repetition(Repetition::REPEATED);
    let entries = entries.with_fields(vec![text("key", Repetition::REQUIRED)?, text("value", Repetition::OPTIONAL)?]);
    let map = Type::group_type_builder(name).with_repetition(Repetition::OPTIONAL);
    map.with_logical_type(Some(LogicalType::Map)).with_fields(vec![Arc::new(entries.build()?)]).build()
}

/// The fields of the rows of one event type.
#[derive(Debug)]
pub(in crate::parquet) struct Fields {
    rows: usize,
    names: Vec<ByteArray>,
    /// Of each field, the values.
    columns: Vec<Column>,
}

impl Fields {
    /// Those of as many rows: names and values.
    pub(in crate::parquet) fn new<'n>(rows: usize, fields: impl Iterator<Item = (&'n str, Chunk)>) -> Self {
        let fields = fields.filter_map(|(name, chunk)| match chunk {
            Chunk::Values(column) => Some((ByteArray::from(name), column)),
            _ => None,
        });
        let (names, columns) = fields.unzip();
        Self { rows, names, columns }
    }

    /// Writes the keys.
    ///
    /// # Errors
    /// When they cannot be written.
    pub(in crate::parquet) fn write_keys(&self, writer: &mut ColumnWriter<'_>) -> Result<()> {
        let keys = self.names.iter().map(|name| (KEY, Some(name.clone())));
        write_rows(writer, self.rows, |entries| entries.extend(keys.clone()))
    }

    /// Writes the values.
    ///
    /// # Errors
    /// When they cannot be written.
    pub(in crate::parquet) fn write_values(&mut self, writer: &mut ColumnWriter<'_>) -> Result<()> {
        let (levels, texts): (Vec<Levels>, Vec<Texts>) = self.columns.drain(..).map(Column::into_texts).unzip();
        let mut fields: Vec<_> =
            levels.iter().zip(texts).map(|(levels, texts)| levels.with_nulls(texts.into_values())).collect();
        write_rows(writer, self.rows, |entries| {
            let values = fields.iter_mut().map(|values| values.next().flatten());
            entries.extend(values.map(|value| (if value.is_some() { VALUE } else { KEY }, value)));
        })
    }
}

/// Writes as many rows. `fill` tells each one's entries: the level, and the text where there is one.
fn write_rows(
    writer: &mut ColumnWriter<'_>,
    rows: usize,
    mut fill: impl FnMut(&mut Vec<(i16, Option<ByteArray>)>),
) -> Result<()> {
    let ColumnWriter::ByteArrayColumnWriter(writer) = writer else {
        return Err(ParquetError::General("fields are texts".into()));
    };
    let (mut entries, mut batch) = (Vec::new(), Batch::default());
    for _ in 0..rows {
        fill(&mut entries);
        if entries.is_empty() {
            entries.push((NONE, None));
        }
        for (place, (level, text)) in entries.drain(..).enumerate() {
            batch.repetitions.push((place > 0).into());
            batch.levels.push(level);
            batch.texts.extend(text);
        }
        if batch.levels.len() >= BATCH {
            batch.write(writer)?;
        }
    }
    batch.write(writer)
}

/// What is written at once.
#[derive(Default)]
struct Batch {
    repetitions: Vec<i16>,
    levels: Vec<i16>,
    texts: Vec<ByteArray>,
}

impl Batch {
    fn write(&mut self, writer: &mut ColumnWriterImpl<'_, ByteArrayType>) -> Result<()> {
        writer.write_batch(&self.texts, Some(&self.levels), Some(&self.repetitions))?;
        self.repetitions.clear();
        self.levels.clear();
        self.texts.clear();
        Ok(())
    }
}

impl Column {
    /// The values as texts; lists as JSON.
    pub(super) fn into_texts(self) -> (Levels, Texts) {
        let Self { kind, levels, repetitions, numbers, texts } = self;
        match kind {
            Kind::Text => (levels, texts),
            Kind::Integer | Kind::Unsigned | Kind::Float | Kind::Moment | Kind::Flag => {
                let mut made = Texts::default();
                for number in numbers {
                    match kind {
                        Kind::Float => made.push_float(f64::from_bits(number.cast_unsigned())),
                        _ => made.push_number(number, kind == Kind::Unsigned),
                    }
                    made.end();
                }
                (levels, made)
            }
            Kind::Integers | Kind::Unsigneds => lists(kind == Kind::Unsigneds, &levels, &repetitions, &numbers),
        }
    }
}

/// Lists of `numbers` as JSON.
fn lists(is_unsigned: bool, levels: &Levels, repetitions: &[i16], numbers: &[i64]) -> (Levels, Texts) {
    let (mut of_rows, mut made, mut numbers) = (Levels::default(), Texts::default(), numbers.iter());
    let mut elements = levels.iter().zip(repetitions).peekable();
    while let Some((level, &repetition)) = elements.next() {
        if repetition == 0 {
            of_rows.push((level > 0).into());
        }
        if level == 0 {
            continue;
        }
        made.bytes.push(if repetition == 0 { b'[' } else { b',' });
        match (level, numbers.as_slice()) {
            (3, [number, ..]) => {
                made.push_number(*number, is_unsigned);
                numbers.next();
            }
            (2, _) => made.bytes.extend_from_slice(b"null"),
            _ => {}
        }
        if elements.peek().is_none_or(|(_, repetition)| **repetition == 0) {
            made.bytes.push(b']');
            made.end();
        }
    }
    (of_rows, made)
}

impl Texts {
    /// Adds `number` to the text that is not ended.
    fn push_number(&mut self, number: i64, is_unsigned: bool) {
        let mut digits = itoa::Buffer::new();
        let text = if is_unsigned { digits.format(number.cast_unsigned()) } else { digits.format(number) };
        self.bytes.extend_from_slice(text.as_bytes());
    }

    fn push_float(&mut self, number: f64) {
        // Memory takes all that is written.
        let _ = write!(self.bytes, "{}", FloatText(number));
    }

    fn end(&mut self) {
        self.ends.push(self.bytes.len());
    }
}
