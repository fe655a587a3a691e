//! The thread that writes files.

use super::Times;
use super::places::{Hour, Places};
use super::rows::{BATCH, Batch, Shape};
use crate::tables::{EVENT_KEY, RECORDING_KEY, VERSION, VERSION_KEY};
use arrow_array::{ArrayRef, StringArray};
use arrow_schema::{ArrowError, DataType};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use parquet::schema::types::ColumnPath;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use trace_merge::access::Readers;
use trace_merge::reader::Trace;

/// Batches on their way.
const ON_THE_WAY: usize = 16;
/// Files that are open at once.
const MOST_OPEN: usize = 256;
/// Bytes by which what is kept of all open files grows before the largest share is written. What a row group takes with
/// its first rows is no reason to write it: the next one would take the same.
const MOST_KEPT: usize = 48 << 20;
/// Rows of a row group, at most.
const ROW_GROUP: usize = 1 << 17;
/// Bytes of a dictionary of numbers, at most.
const LARGEST_DICTIONARY: usize = 1 << 16;
/// What is written at once.
const BUFFER: usize = 1 << 16;

/// Where rows go to.
#[derive(Clone, Debug)]
pub(super) struct Output {
    sender: mpsc::SyncSender<Result<Batch, ArrowError>>,
    rows: Arc<AtomicU64>,
    shapes: Arc<AtomicU64>,
    pub(super) times: Arc<Times>,
    /// Which recording the rows are of, for all that are handed on at once.
    pub(super) recordings: ArrayRef,
}

impl Output {
    /// For the rows of `trace`, and where they come out.
    pub(super) fn new(trace: &Trace) -> (Self, mpsc::Receiver<Result<Batch, ArrowError>>) {
        let (sender, batches) = mpsc::sync_channel(ON_THE_WAY);
        let recordings = StringArray::from_iter_values(std::iter::repeat_n(recording_id(trace), BATCH));
        let (times, recordings) = (Arc::new(Times::new(trace)), Arc::new(recordings));
        (Self { sender, rows: Arc::default(), shapes: Arc::default(), times, recordings }, batches)
    }

    pub(super) fn send(&self, batch: Result<Batch, ArrowError>) {
        if let Ok(batch) = &batch {
            self.rows.fetch_add(batch.rows.num_rows() as u64, Ordering::Relaxed);
        }
        // A writer that has failed takes no more; it says why.
        let _ = self.sender.send(batch);
    }

    /// A number that no other shape has.
    pub(super) fn next_shape(&self) -> u64 {
        self.shapes.fetch_add(1, Ordering::Relaxed)
    }

    /// Rows so far.
    pub(super) fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }
}

/// What a recording is called in its tables: the same each time that it is exported, and no other recording is.
fn recording_id(trace: &Trace) -> String {
    let manifest = trace.manifest();
    let id = manifest.layers.first().map_or(manifest.clock.uuid, |layer| layer.uuid);
    id.simple().to_string()
}

/// A file that is written.
struct OpenFile {
    shape: Arc<Shape>,
    hour: Hour,
    writer: ArrowWriter<BufWriter<File>>,
    /// Memory that the first rows of its row group took; `None` before there are any.
    begun: Option<usize>,
    /// Memory beside that which it keeps until its row group ends.
    kept: usize,
    /// When it was written to last, in batches.
    used: u64,
}

/// The files of an export.
pub(super) struct Files {
    folder: PathBuf,
    places: Places,
    recording: String,
    /// By the number of their shape.
    open: HashMap<u64, OpenFile>,
    /// Bytes that all of them keep.
    kept: usize,
    /// Files that were opened.
    opened: u64,
    batches: u64,
    /// Bytes of the files that are complete.
    bytes: u64,
}

impl Files {
    /// None yet, below `folder`.
    pub(super) fn new(folder: &Path, places: Places, trace: &Trace) -> Self {
        let (folder, recording) = (folder.to_path_buf(), recording_id(trace));
        Self { folder, places, recording, open: HashMap::new(), kept: 0, opened: 0, batches: 0, bytes: 0 }
    }

    /// Writes batches until there are no more; how many bytes that are.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub(super) fn write_all(mut self, batches: mpsc::Receiver<Result<Batch, ArrowError>>) -> io::Result<u64> {
        for batch in batches {
            self.write(&batch.map_err(io::Error::other)?)?;
        }
        let open: Vec<u64> = self.open.keys().copied().collect();
        open.into_iter().try_for_each(|number| self.close(number))?;
        Ok(self.bytes)
    }

    fn write(&mut self, batch: &Batch) -> io::Result<()> {
        let number = batch.shape.number;
        if self.open.get(&number).is_some_and(|open| open.hour != batch.hour) {
            self.close(number)?;
        }
        if !self.open.contains_key(&number) {
            self.open(batch)?;
        }
        self.batches += 1;
        if let Some(open) = self.open.get_mut(&number) {
            open.writer.write(&batch.rows).map_err(into_io)?;
            open.used = self.batches;
            let size = open.writer.memory_size();
            let begun = *open.begun.get_or_insert(size);
            let before = std::mem::replace(&mut open.kept, size.saturating_sub(begun));
            self.kept = (self.kept + open.kept).saturating_sub(before);
        }
        if self.kept > MOST_KEPT
            && let Some(largest) = self.open.values_mut().max_by_key(|open| open.kept)
        {
            largest.writer.flush().map_err(into_io)?;
            largest.begun = None;
            self.kept = self.kept.saturating_sub(std::mem::take(&mut largest.kept));
        }
        Ok(())
    }

    fn open(&mut self, batch: &Batch) -> io::Result<()> {
        if self.open.len() >= MOST_OPEN {
            let oldest = self.open.iter().min_by_key(|(_, open)| open.used).map(|(&number, _)| number);
            oldest.map_or(Ok(()), |oldest| self.close(oldest))?;
        }
        let shape = &batch.shape;
        let place = self.places.folder(shape.place, batch.hour).ok_or(io::ErrorKind::NotFound)?;
        let folder = Path::new(&shape.table).join(place);
        let folder = Readers::Owner.create_folders(&self.folder, &folder)?;
        let path = folder.join(format!("{}-{}.parquet", self.recording, self.opened));
        self.opened += 1;
        let file = BufWriter::with_capacity(BUFFER, Readers::Owner.create_file(&path)?);
        // What Arrow calls the types is what the format's own types say.
        let options = ArrowWriterOptions::new().with_properties(properties(shape, &self.recording));
        let options = options.with_skip_arrow_metadata(true);
        let schema = Arc::clone(&shape.schema);
        let writer = ArrowWriter::try_new_with_options(file, schema, options).map_err(into_io)?;
        let (shape, hour, used) = (Arc::clone(shape), batch.hour, self.batches);
        let number = shape.number;
        let open = OpenFile { shape, hour, writer, begun: None, kept: 0, used };
        self.open.insert(number, open);
        Ok(())
    }

    fn close(&mut self, number: u64) -> io::Result<()> {
        let Some(mut open) = self.open.remove(&number) else { return Ok(()) };
        debug_assert_eq!(open.shape.number, number);
        self.kept = self.kept.saturating_sub(open.kept);
        open.writer.finish().map_err(into_io)?;
        self.bytes += open.writer.bytes_written() as u64;
        io::Write::flush(open.writer.inner_mut())
    }
}

/// How files of this shape are written: all compressed, and each column as what it holds needs least for.
fn properties(shape: &Shape, recording: &str) -> WriterProperties {
    let mut metadata = vec![(VERSION_KEY, VERSION), (RECORDING_KEY, recording)];
    metadata.extend(shape.event.as_deref().map(|event| (EVENT_KEY, event)));
    let metadata = metadata.into_iter().map(|(key, value)| KeyValue::new(key.to_string(), value.to_string()));
    // Of what is in no order, the least and the largest value of a row group say nothing.
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_max_row_group_row_count(Some(ROW_GROUP))
        .set_statistics_enabled(EnabledStatistics::None)
        .set_key_value_metadata(Some(metadata.collect()));
    for field in shape.schema.fields() {
        let name = field.name().as_str();
        let column = ColumnPath::from(name);
        properties = match field.data_type() {
            DataType::Timestamp(..) => growing(properties, column),
            DataType::Int64 if TIMES.contains(&name) => growing(properties, column),
            DataType::Int64 if LENGTHS.contains(&name) => properties.set_column_dictionary_enabled(column, false),
            DataType::Int64 | DataType::UInt64 => numbers(properties, column),
            DataType::List(element) => {
                numbers(properties, ColumnPath::from(vec![name.into(), "list".into(), element.name().clone()]))
            }
            DataType::Utf8 if JSON.contains(&name) => properties.set_column_dictionary_enabled(column, false),
            DataType::Utf8 if name == "recording" => {
                properties.set_column_statistics_enabled(column, EnabledStatistics::Chunk)
            }
            _ => properties,
        };
    }
    properties.build()
}

/// A few numbers go to a dictionary. Where there are more, they are like those before, as addresses are.
fn numbers(properties: WriterPropertiesBuilder, column: ColumnPath) -> WriterPropertiesBuilder {
    properties
        .set_column_dictionary_page_size_limit(column.clone(), LARGEST_DICTIONARY)
        .set_column_encoding(column, Encoding::DELTA_BINARY_PACKED)
}

/// Moments are all different and close to those before; of each page it is known which are in it.
fn growing(properties: WriterPropertiesBuilder, column: ColumnPath) -> WriterPropertiesBuilder {
    properties
        .set_column_dictionary_enabled(column.clone(), false)
        .set_column_statistics_enabled(column.clone(), EnabledStatistics::Page)
        .set_column_encoding(column, Encoding::DELTA_BINARY_PACKED)
}

/// Columns of moments, beside those of UTC.
const TIMES: [&str; 4] = ["ticks", "time_ns", "begin_ticks", "begin_ns"];
/// Columns of what lasts: nearly all different, and nothing follows from those before.
const LENGTHS: [&str; 2] = ["duration_ticks", "duration_ns"];
/// Columns of text that is different in most rows.
const JSON: [&str; 3] = ["fields", "meanwhile", "calls"];

fn into_io(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(source) => match source.downcast::<io::Error>() {
            Ok(source) => *source,
            Err(source) => io::Error::other(source),
        },
        other => io::Error::other(other),
    }
}
