//! What of a row group becomes a column in a file.

use super::{Column, Levels, Texts};
use crate::tables::Kind;
use bytes::Bytes;
use parquet::basic::{Compression, Encoding, LogicalType, TimeUnit, ZstdLevel};
use parquet::column::writer::{ColumnWriter, ColumnWriterImpl};
use parquet::data_type::{ByteArray, DataType, FixedLenByteArray};
use parquet::errors::{ParquetError, Result};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder, WriterVersion};
use parquet::schema::types::{ColumnDescriptor, ColumnPath, SchemaDescriptor};
use std::sync::Arc;

/// Values that are handed on at once: they fit the processor's nearest caches.
pub(super) const BATCH: usize = 1 << 11;
/// Rows of a page, at most.
const PAGE: usize = 1 << 13;
/// Bytes of a dictionary of numbers, and of texts, after which values to come have none.
const MOST_NUMBERS: usize = 1 << 15;
const MOST_TEXT: usize = 1 << 18;

/// How files with these columns are written: in `growing` few values are the same, and their differences are small; in
/// `same` all are the same. Of both, and of UTC, files tell least and greatest value.
pub(in crate::parquet) fn properties(
    schema: &SchemaDescriptor,
    growing: &[usize],
    same: &[usize],
) -> WriterPropertiesBuilder {
    let properties = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_2_0)
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_dictionary_page_size_limit(MOST_NUMBERS)
        // Of numbers that have no dictionary: compression finds more in them than differences leave.
        .set_encoding(Encoding::PLAIN)
        .set_data_page_row_count_limit(PAGE)
        .set_write_batch_size(BATCH)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true);
    schema.columns().iter().enumerate().fold(properties, |mut properties, (place, column)| {
        let path = || ColumnPath::clone(column.path());
        let (grows, is_same) = (growing.contains(&place), same.contains(&place));
        if grows {
            properties = properties.set_column_encoding(path(), Encoding::DELTA_BINARY_PACKED);
            properties = properties.set_column_dictionary_enabled(path(), false);
        }
        if is_same {
            properties = properties.set_column_compression(path(), Compression::UNCOMPRESSED);
        }
        if column.logical_type_ref() == Some(&LogicalType::String) {
            properties = properties.set_column_dictionary_page_size_limit(path(), MOST_TEXT);
        }
        if grows || is_same || matches!(column.logical_type_ref(), Some(LogicalType::Timestamp(_))) {
            properties = properties.set_column_statistics_enabled(path(), EnabledStatistics::Chunk);
        }
        properties
    })
}

/// The values of a column in a row group.
#[derive(Debug)]
pub(in crate::parquet) enum Chunk {
    /// One for each row.
    Values(Column),
    /// One for each key, and the key of each row.
    Keyed(Column, Arc<Vec<u32>>),
    /// The same in this many rows.
    Same(Arc<str>, usize),
    /// As many nulls.
    Nulls(usize),
}

impl Chunk {
    /// Writes the values.
    ///
    /// # Errors
    /// When they are not of the writer's type, or cannot be written.
    pub(in crate::parquet) fn write(self, writer: &mut ColumnWriter<'_>) -> Result<()> {
        match (self, writer) {
            (Self::Values(mut column), ColumnWriter::Int64ColumnWriter(writer)) => {
                if column.kind == Kind::Moment && is_in_micros(writer.get_descriptor()) {
                    column.numbers.iter_mut().for_each(|ns| *ns = ns.div_euclid(1000));
                }
                let repetitions = column.is_list().then_some(&*column.repetitions);
                write_values(writer, &column.numbers, &column.levels, repetitions)
            }
            (Self::Values(column), ColumnWriter::BoolColumnWriter(writer)) => {
                let flags: Vec<bool> = column.numbers.iter().map(|&flag| flag != 0).collect();
                write_values(writer, &flags, &column.levels, None)
            }
            (Self::Values(column), ColumnWriter::DoubleColumnWriter(writer)) => {
                let floats: Vec<f64> = column.numbers.iter().map(|bits| f64::from_bits(bits.cast_unsigned())).collect();
                write_values(writer, &floats, &column.levels, None)
            }
            (Self::Values(Column { levels, texts, .. }), ColumnWriter::ByteArrayColumnWriter(writer)) => {
                let mut texts = texts.into_values();
                let mut levels = levels.iter();
                write_batches(writer, |batch, present| {
                    batch.extend(levels.by_ref().take(BATCH));
                    let count = batch.iter().filter(|&&level| level == 1).count();
                    present.extend(texts.by_ref().take(count));
                })
            }
            (Self::Keyed(column, keys), ColumnWriter::Int64ColumnWriter(writer)) => {
                let values: Vec<_> = column.levels.with_nulls(column.numbers.into_iter()).collect();
                write_keyed(writer, &keys, &values)
            }
            (Self::Keyed(Column { levels, texts, .. }, keys), ColumnWriter::ByteArrayColumnWriter(writer)) => {
                let values: Vec<_> = levels.with_nulls(texts.into_values()).collect();
                write_keyed(writer, &keys, &values)
            }
            (Self::Values(column), ColumnWriter::FixedLenByteArrayColumnWriter(writer)) => {
                let decimals: Vec<_> = column.numbers.iter().map(|&bits| decimal(bits.cast_unsigned())).collect();
                write_values(writer, &decimals, &column.levels, None)
            }
            (Self::Nulls(rows), ColumnWriter::Int64ColumnWriter(writer)) => write_nulls(writer, rows),
            (Self::Nulls(rows), ColumnWriter::DoubleColumnWriter(writer)) => write_nulls(writer, rows),
            (Self::Nulls(rows), ColumnWriter::BoolColumnWriter(writer)) => write_nulls(writer, rows),
            (Self::Nulls(rows), ColumnWriter::ByteArrayColumnWriter(writer)) => write_nulls(writer, rows),
            (Self::Nulls(rows), ColumnWriter::FixedLenByteArrayColumnWriter(writer)) => write_nulls(writer, rows),
            (Self::Same(text, rows), ColumnWriter::ByteArrayColumnWriter(writer)) => {
                let texts = vec![ByteArray::from(&*text); rows.min(BATCH)];
                let mut batches = (0..rows).step_by(BATCH).map(|before| texts.get(..rows - before).unwrap_or(&texts));
                batches.try_for_each(|batch| write_present(writer, batch))
            }
            _ => Err(ParquetError::General("a column of a table holds values of another type".into())),
        }
    }
}

fn is_in_micros(column: &ColumnDescriptor) -> bool {
    column.logical_type_ref() == Some(&LogicalType::timestamp(true, TimeUnit::MICROS))
}

/// `number` as a decimal: its bytes, the first of which has the sign.
fn decimal(number: u64) -> FixedLenByteArray {
    let bytes: Vec<u8> = std::iter::once(0).chain(number.to_be_bytes()).collect();
    FixedLenByteArray::from(bytes)
}

impl Texts {
    pub(super) fn into_values(self) -> impl Iterator<Item = ByteArray> {
        let bytes = Bytes::from(self.bytes);
        let mut begin = 0;
        self.ends.into_iter().map(move |end| ByteArray::from(bytes.slice(std::mem::replace(&mut begin, end)..end)))
    }
}

impl Levels {
    /// That of each value.
    pub(super) fn iter(&self) -> impl Iterator<Item = i16> {
        let same = std::iter::repeat_n(self.level, self.count - self.each.len());
        self.each.iter().copied().chain(same)
    }

    /// `values`, and nulls between them.
    pub(super) fn with_nulls<V>(&self, mut values: impl Iterator<Item = V>) -> impl Iterator<Item = Option<V>> {
        self.iter().map(move |level| if level == 1 { values.next() } else { None })
    }
}

/// Writes `values`, and nulls between them.
fn write_values<T: DataType>(
    writer: &mut ColumnWriterImpl<'_, T>,
    values: &[T::T],
    levels: &Levels,
    repetitions: Option<&[i16]>,
) -> Result<()> {
    if repetitions.is_none() && values.len() == levels.count {
        return write_present(writer, values);
    }
    let levels: Vec<i16> = levels.iter().collect();
    writer.write_batch(values, Some(&levels), repetitions).map(drop)
}

/// Writes nulls.
fn write_nulls<T: DataType>(writer: &mut ColumnWriterImpl<'_, T>, rows: usize) -> Result<()> {
    static NULLS: [i16; BATCH] = [0; BATCH];
    let mut batches = (0..rows).step_by(BATCH).map(|before| NULLS.get(..rows - before).unwrap_or(&NULLS));
    batches.try_for_each(|batch| writer.write_batch(&[], Some(batch), None).map(drop))
}

/// Writes `values`, without nulls.
fn write_present<T: DataType>(writer: &mut ColumnWriterImpl<'_, T>, values: &[T::T]) -> Result<()> {
    static PRESENT: [i16; BATCH] = [1; BATCH];
    let mut batches = values.chunks(BATCH);
    batches.try_for_each(|batch| writer.write_batch(batch, PRESENT.get(..batch.len()), None).map(drop))
}

/// Writes the value of each of `keys`.
fn write_keyed<T: DataType>(writer: &mut ColumnWriterImpl<'_, T>, keys: &[u32], values: &[Option<T::T>]) -> Result<()> {
    let of_key: Vec<i16> = values.iter().map(|value| value.is_some().into()).collect();
    let mut batches = keys.chunks(BATCH);
    write_batches(writer, |levels, present| {
        let keys = batches.next().unwrap_or_default();
        levels.extend(keys.iter().filter_map(|&key| of_key.get(key as usize)));
        present.extend(keys.iter().filter_map(|&key| values.get(key as usize)?.clone()));
    })
}

/// Writes what `fill` makes: levels, and the values that are not nulls. It is called until it makes nothing.
fn write_batches<T: DataType>(
    writer: &mut ColumnWriterImpl<'_, T>,
    mut fill: impl FnMut(&mut Vec<i16>, &mut Vec<T::T>),
) -> Result<()> {
    let (mut levels, mut present) = (Vec::with_capacity(BATCH), Vec::with_capacity(BATCH));
    loop {
        fill(&mut levels, &mut present);
        if levels.is_empty() {
            return Ok(());
        }
        writer.write_batch(&present, Some(&levels), None)?;
        levels.clear();
        present.clear();
    }
}
