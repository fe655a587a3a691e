//! Answers, for people, for scripts and for other tools.

use super::QueryError;
use datafusion::arrow::array::{Array, RecordBatch, StringArray};
use datafusion::arrow::csv;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::json::WriterBuilder;
use datafusion::arrow::json::writer::LineDelimited;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::error::DataFusionError;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::{Compression, ZstdLevel};
use datafusion::parquet::file::properties::WriterProperties;
use datafusion::physical_plan::SendableRecordBatchStream;
use futures::StreamExt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use strata_recording::files::removed_on_signal::RemovedOnSignal;
use strata_recording::text::terminal::harmless;
use tempfile::NamedTempFile;
use trace_merge::report::rows::table::{Align, Table};

/// Rows that are shown to people.
const SHOWN: usize = 1000;
/// What stands for a null.
const NULL: &str = "-";

/// How an answer is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A table.
    Table,
    /// A JSON object a line.
    Json,
}

/// Prints an answer to `out`; how many rows it has.
///
/// # Errors
/// When it cannot be computed or written.
pub async fn print(mut answer: SendableRecordBatchStream, form: Form, out: &mut dyn Write) -> Result<u64, QueryError> {
    match form {
        Form::Table => print_table(&mut answer, out).await,
        Form::Json => {
            let mut rows = 0;
            while let Some(batch) = answer.next().await {
                let batch = batch?;
                rows += batch.num_rows() as u64;
                let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, LineDelimited>(&mut *out);
                writer.write(&batch).and_then(|()| writer.finish()).map_err(of_arrow)?;
            }
            Ok(rows)
        }
    }
}

async fn print_table(answer: &mut SendableRecordBatchStream, out: &mut dyn Write) -> Result<u64, QueryError> {
    let schema = answer.schema();
    let align = |kind: &DataType| if kind.is_numeric() { Align::Right } else { Align::Left };
    let columns: Vec<(String, Align)> =
        schema.fields().iter().map(|field| (harmless(field.name()), align(field.data_type()))).collect();
    let columns: Vec<(&str, Align)> = columns.iter().map(|(name, align)| (name.as_str(), *align)).collect();
    let mut table = Table::new(&columns);
    let mut rows = 0;
    while let Some(batch) = answer.next().await {
        let batch = batch?;
        let left = SHOWN.saturating_sub(rows);
        rows += batch.num_rows();
        let options = FormatOptions::default().with_null(NULL);
        let formatters = batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &options));
        let formatters = formatters.collect::<Result<Vec<_>, _>>().map_err(of_arrow)?;
        for row in 0..batch.num_rows().min(left) {
            // The recorded system may have chosen any text.
            table.row(formatters.iter().map(|formatter| harmless(&formatter.value(row).to_string())));
        }
    }
    let mut text = Vec::new();
    table.write(&mut text).and_then(|()| out.write_all(&text)).map_err(QueryError::Write)?;
    if let Some(more @ 1..) = rows.checked_sub(SHOWN) {
        writeln!(out, "… and {more} more rows: --json or --save FILE has all").map_err(QueryError::Write)?;
    }
    Ok(rows as u64)
}

/// A file that an answer goes into.
#[derive(Debug)]
pub struct Saved {
    path: PathBuf,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Parquet,
    Csv,
    Json,
}

impl Saved {
    /// The new file `path`, whose name says what it is to be.
    ///
    /// # Errors
    /// When it does not, or the file is there.
    pub fn new(path: &Path) -> Result<Self, QueryError> {
        let kind = match path.extension().and_then(|extension| extension.to_str()) {
            Some("parquet") => Kind::Parquet,
            Some("csv") => Kind::Csv,
            Some("json") => Kind::Json,
            _ => return Err(QueryError::Extension(path.into())),
        };
        match path.symlink_metadata() {
            Ok(_) => Err(QueryError::Exists(path.into())),
            Err(_) => Ok(Self { path: path.into(), kind }),
        }
    }
}

/// Writes an answer to `file`, which appears when it is complete; how many rows it has.
///
/// # Errors
/// When it cannot be computed or written; then there is no file.
pub async fn save(mut answer: SendableRecordBatchStream, file: &Saved) -> Result<u64, QueryError> {
    let folder = file.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let made = NamedTempFile::new_in(folder).map_err(QueryError::Write)?;
    let _guard = RemovedOnSignal::new(made.path()).map_err(QueryError::Write)?;
    let mut writer = Writer::new(file.kind, answer.schema(), made.reopen().map_err(QueryError::Write)?)?;
    let mut rows = 0;
    while let Some(batch) = answer.next().await {
        let batch = batch?;
        rows += batch.num_rows() as u64;
        writer.write(&batch)?;
    }
    writer.finish()?;
    made.persist_noclobber(&file.path).map_err(|error| match error.error.kind() {
        io::ErrorKind::AlreadyExists => QueryError::Exists(file.path.clone()),
        _ => QueryError::Write(error.error),
    })?;
    Ok(rows)
}

/// A file that is written.
enum Writer {
    Parquet(Box<ArrowWriter<BufWriter<File>>>),
    Csv(Box<csv::Writer<BufWriter<File>>>),
    Json(BufWriter<File>),
}

impl Writer {
    fn new(kind: Kind, schema: SchemaRef, file: File) -> Result<Self, QueryError> {
        let file = BufWriter::new(file);
        Ok(match kind {
            Kind::Parquet => {
                let compression = Compression::ZSTD(ZstdLevel::default());
                let properties = WriterProperties::builder().set_compression(compression).build();
                let writer = ArrowWriter::try_new(file, schema, Some(properties));
                Self::Parquet(Box::new(writer.map_err(DataFusionError::from)?))
            }
            Kind::Csv => Self::Csv(Box::new(csv::WriterBuilder::new().with_header(true).build(file))),
            Kind::Json => Self::Json(file),
        })
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<(), QueryError> {
        match self {
            Self::Parquet(writer) => Ok(writer.write(batch).map_err(DataFusionError::from)?),
            Self::Csv(writer) => writer.write(&with_lists_as_text(batch)?).map_err(of_arrow),
            Self::Json(file) => {
                let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, LineDelimited>(file);
                writer.write(batch).and_then(|()| writer.finish()).map_err(of_arrow)
            }
        }
    }

    fn finish(self) -> Result<(), QueryError> {
        match self {
            Self::Parquet(writer) => writer.close().map(drop).map_err(|error| DataFusionError::from(error).into()),
            Self::Csv(writer) => writer.into_inner().flush().map_err(QueryError::Write),
            Self::Json(mut file) => file.flush().map_err(QueryError::Write),
        }
    }
}

/// The same with lists as text, which is all that a file of CSV can hold.
fn with_lists_as_text(batch: &RecordBatch) -> Result<RecordBatch, QueryError> {
    let (mut fields, mut columns) = (Vec::new(), Vec::new());
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
        if !field.data_type().is_nested() {
            fields.push(Arc::clone(field));
            columns.push(Arc::clone(column));
            continue;
        }
        let options = FormatOptions::default();
        let shown = ArrayFormatter::try_new(column, &options).map_err(of_arrow)?;
        let text = |row| column.is_valid(row).then(|| shown.value(row).to_string());
        let text: StringArray = (0..column.len()).map(text).collect();
        fields.push(Arc::new(Field::new(field.name(), DataType::Utf8, true)));
        columns.push(Arc::new(text));
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(of_arrow)
}

/// What Arrow says: of a file that cannot be written, why.
fn of_arrow(error: ArrowError) -> QueryError {
    match error {
        ArrowError::IoError(_, source) => QueryError::Write(source),
        other => QueryError::Sql(other.into()),
    }
}
