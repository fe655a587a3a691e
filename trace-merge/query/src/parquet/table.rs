//! A file of a table: its columns, row group by row group.

use super::chunk::Chunk;
use super::rows::Filled;
use arrow_schema::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::{ArrowColumnWriter, ArrowRowGroupWriterFactory, compute_leaves};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::ColumnDescPtr;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use zstd::bulk::Compressor;

/// Rows of a row group, about.
const ROW_GROUP: usize = 1 << 20;

/// A column of the row group in the making.
enum Column {
    /// What the library encodes.
    Array(Box<ArrowColumnWriter>),
    Words(Box<Chunk>),
}

/// A file that is written.
pub(super) struct Table {
    file: SerializedFileWriter<BufWriter<File>>,
    factory: ArrowRowGroupWriterFactory,
    schema: SchemaRef,
    /// Of the row group in the making; none before its first row.
    columns: Vec<Column>,
    rows: usize,
}

impl Table {
    pub(super) fn new(
        file: BufWriter<File>,
        schema: &SchemaRef,
        properties: WriterProperties,
    ) -> Result<Self, ParquetError> {
        let writer = ArrowWriter::try_new(file, SchemaRef::clone(schema), Some(properties))?;
        let (file, factory) = writer.into_serialized_writer()?;
        Ok(Self { file, factory, schema: SchemaRef::clone(schema), columns: Vec::new(), rows: 0 })
    }

    /// Adds `rows` rows: their columns in the order of the schema.
    pub(super) fn write(
        &mut self,
        rows: usize,
        columns: &[Filled],
        compressor: &mut Compressor<'_>,
    ) -> Result<(), ParquetError> {
        if self.columns.is_empty() {
            let written = self.factory.create_column_writers(self.file.flushed_row_groups().len())?;
            let described = self.file.schema_descr().columns();
            let column = |((written, filled), descriptor): ((_, &Filled), &_)| match filled {
                Filled::Array(_) => Column::Array(Box::new(written)),
                Filled::Words(_) => Column::Words(Box::new(Chunk::new(ColumnDescPtr::clone(descriptor)))),
            };
            self.columns = written.into_iter().zip(columns).zip(described).map(column).collect();
        }
        for ((column, filled), field) in self.columns.iter_mut().zip(columns).zip(self.schema.fields()) {
            match (column, filled) {
                (Column::Array(writer), Filled::Array(array)) => {
                    compute_leaves(field, array)?.iter().try_for_each(|leaf| writer.write(leaf))?;
                }
                (Column::Words(chunk), Filled::Words(words)) => chunk.write(words, compressor)?,
                _ => return Err(ParquetError::General(format!("column {} changed", field.name()))),
            }
        }
        self.rows += rows;
        if self.rows >= ROW_GROUP { self.finish_group(compressor) } else { Ok(()) }
    }

    /// Bytes that it keeps until its row group ends.
    pub(super) fn memory(&self) -> usize {
        let memory = |column: &Column| match column {
            Column::Array(writer) => writer.memory_size(),
            Column::Words(chunk) => chunk.memory(),
        };
        self.columns.iter().map(memory).sum()
    }

    /// Writes the row group in the making.
    pub(super) fn finish_group(&mut self, compressor: &mut Compressor<'_>) -> Result<(), ParquetError> {
        if self.rows == 0 {
            return Ok(());
        }
        self.rows = 0;
        let mut group = self.file.next_row_group()?;
        for column in self.columns.drain(..) {
            match column {
                Column::Array(writer) => writer.close()?.append_to_row_group(&mut group)?,
                Column::Words(chunk) => chunk.append_to(&mut group, compressor)?,
            }
        }
        group.close()?;
        Ok(())
    }

    /// Completes the file: how many bytes it has.
    pub(super) fn finish(mut self, compressor: &mut Compressor<'_>) -> Result<u64, ParquetError> {
        self.finish_group(compressor)?;
        self.file.finish()?;
        let bytes = self.file.bytes_written() as u64;
        self.file.inner_mut().flush()?;
        Ok(bytes)
    }
}

/// `error`, or what of the system is behind it.
pub(super) fn into_io(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(source) => match source.downcast::<io::Error>() {
            Ok(source) => *source,
            Err(source) => io::Error::other(source),
        },
        other => io::Error::other(other),
    }
}
