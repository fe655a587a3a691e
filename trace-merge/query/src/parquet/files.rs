//! The thread that writes files.

use super::Times;
use super::places::{Hour, Places};
use super::rows::{Group, Rows, Shape};
use crate::tables::{CHOSEN_KEY, EVENT_KEY, RECORDING_KEY, VERSION, VERSION_KEY};
use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use strata_recording::access::Readers;
use strata_recording::reader::Trace;
use strata_recording::window::Window;

/// Row groups on their way.
const ON_THE_WAY: usize = 16;
/// Files that are open at once.
const MOST_OPEN: usize = 256;
/// Bytes that are kept of all rows in the making before those that take more than their share are handed on.
const MOST_KEPT: usize = 48 << 20;
/// What is written at once.
const BUFFER: usize = 1 << 16;

/// Where rows go to.
#[derive(Clone, Debug)]
pub(super) struct Output {
    sender: mpsc::SyncSender<io::Result<Group>>,
    rows: Arc<AtomicU64>,
    shapes: Arc<AtomicU64>,
    kept: Arc<AtomicUsize>,
    pub(super) times: Arc<Times>,
    /// Which recording the rows are of.
    pub(super) recording: Arc<str>,
}

impl Output {
    /// For the rows of `trace`, and where they come out.
    pub(super) fn new(trace: &Trace) -> (Self, mpsc::Receiver<io::Result<Group>>) {
        let (sender, groups) = mpsc::sync_channel(ON_THE_WAY);
        let (times, recording) = (Arc::new(Times::new(trace)), recording_id(trace).into());
        let (rows, shapes, kept) = (Arc::default(), Arc::default(), Arc::default());
        (Self { sender, rows, shapes, kept, times, recording }, groups)
    }

    /// Hands on a row group, or why there is none.
    pub(super) fn send(&self, group: io::Result<Group>) {
        if let Ok(group) = &group {
            self.rows.fetch_add(group.rows as u64, Ordering::Relaxed);
        }
        // A writer that has failed takes no more; it says why.
        let _ = self.sender.send(group);
    }

    /// `rows`, or none: then the export fails, and says why.
    pub(super) fn taken(&self, rows: Result<Rows, ParquetError>) -> Option<Rows> {
        rows.map_err(|error| self.send(Err(into_io(error)))).ok()
    }

    /// A number that no other shape has.
    pub(super) fn next_shape(&self) -> u64 {
        self.shapes.fetch_add(1, Ordering::Relaxed)
    }

    /// Rows so far.
    pub(super) fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Takes in that rows in the making that took `before` bytes take `now`; whether they are to be handed on, because all
    /// take too much, and these more than half of an equal share.
    pub(super) fn is_too_much(&self, before: usize, now: usize) -> bool {
        let others = self.kept.fetch_sub(before, Ordering::Relaxed).saturating_sub(before);
        self.kept.fetch_add(now, Ordering::Relaxed);
        let shapes = usize::try_from(self.shapes.load(Ordering::Relaxed)).unwrap_or(usize::MAX).max(1);
        others + now > MOST_KEPT && now > MOST_KEPT / 2 / shapes
    }
}

/// What a recording is called in its tables: the same each time that it is exported, and no other recording is.
pub(crate) fn recording_id(trace: &Trace) -> String {
    let manifest = trace.manifest();
    let id = manifest.layers.first().map_or(manifest.clock.uuid, |layer| layer.uuid);
    id.simple().to_string()
}

/// A file that is written.
struct OpenFile {
    hour: Hour,
    writer: SerializedFileWriter<BufWriter<File>>,
    /// When it was written to last, in row groups.
    used: u64,
}

/// The files of an export.
pub(super) struct Files {
    folder: PathBuf,
    places: Places,
    recording: String,
    /// What the names of files begin with: another part of the recording has other ones.
    name: String,
    /// The tables that were chosen, where not all were.
    chosen: Option<String>,
    /// By the number of their shape.
    open: HashMap<u64, OpenFile>,
    /// Files that were opened.
    opened: u64,
    groups: u64,
    /// Bytes of the files that are complete.
    bytes: u64,
}

impl Files {
    /// None yet, below `folder`, of this `part` of `trace`. They say which tables were `chosen`.
    pub(super) fn new(
        folder: &Path,
        places: Places,
        trace: &Trace,
        part: Option<Window>,
        chosen: Option<String>,
    ) -> Self {
        let (folder, recording) = (folder.to_path_buf(), recording_id(trace));
        let name = match part {
            Some(Window { begin, end }) => format!("{recording}-from{begin}until{end}"),
            None => recording.clone(),
        };
        Self { folder, places, recording, name, chosen, open: HashMap::new(), opened: 0, groups: 0, bytes: 0 }
    }

    /// Writes row groups until there are no more; how many bytes that are.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub(super) fn write_all(mut self, groups: mpsc::Receiver<io::Result<Group>>) -> io::Result<u64> {
        for group in groups {
            self.write(group?)?;
        }
        let open: Vec<u64> = self.open.keys().copied().collect();
        open.into_iter().try_for_each(|number| self.close(number))?;
        Ok(self.bytes)
    }

    fn write(&mut self, group: Group) -> io::Result<()> {
        let number = group.shape.number;
        if self.open.get(&number).is_some_and(|open| open.hour != group.hour) {
            self.close(number)?;
        }
        if !self.open.contains_key(&number) {
            self.open(&group.shape, group.hour)?;
        }
        self.groups += 1;
        let Some(open) = self.open.get_mut(&number) else { return Ok(()) };
        open.used = self.groups;
        let mut writer = open.writer.next_row_group().map_err(into_io)?;
        for (bytes, close) in group.chunks {
            writer.append_column(&Bytes::from(bytes), close).map_err(into_io)?;
        }
        writer.close().map_err(into_io)?;
        Ok(())
    }

    fn open(&mut self, shape: &Shape, hour: Hour) -> io::Result<()> {
        if self.open.len() >= MOST_OPEN {
            let oldest = self.open.iter().min_by_key(|(_, open)| open.used).map(|(&number, _)| number);
            oldest.map_or(Ok(()), |oldest| self.close(oldest))?;
        }
        let place = self.places.folder(shape.place, hour).ok_or(io::ErrorKind::NotFound)?;
        let folder = Path::new(&shape.table).join(place);
        let folder = Readers::Owner.create_folders(&self.folder, &folder)?;
        let path = folder.join(format!("{}-{}.parquet", self.name, self.opened));
        self.opened += 1;
        let file = BufWriter::with_capacity(BUFFER, Readers::Owner.create_file(&path)?);
        let properties = Arc::new(self.properties(shape));
        let schema = shape.schema.root_schema_ptr();
        let writer = SerializedFileWriter::new(file, schema, properties).map_err(into_io)?;
        self.open.insert(shape.number, OpenFile { hour, writer, used: self.groups });
        Ok(())
    }

    fn close(&mut self, number: u64) -> io::Result<()> {
        let Some(mut open) = self.open.remove(&number) else { return Ok(()) };
        open.writer.finish().map_err(into_io)?;
        self.bytes += open.writer.bytes_written() as u64;
        io::Write::flush(open.writer.inner_mut())
    }

    /// What files of this shape say of themselves.
    fn properties(&self, shape: &Shape) -> WriterProperties {
        let mut metadata = vec![(VERSION_KEY, VERSION), (RECORDING_KEY, &self.recording)];
        metadata.extend(shape.event.as_deref().map(|event| (EVENT_KEY, event)));
        metadata.extend(self.chosen.as_deref().map(|chosen| (CHOSEN_KEY, chosen)));
        let metadata = metadata.into_iter().map(|(key, value)| KeyValue::new(key.to_string(), value.to_string()));
        WriterProperties::builder().set_key_value_metadata(Some(metadata.collect())).build()
    }
}

fn into_io(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(source) => match source.downcast::<io::Error>() {
            Ok(source) => *source,
            Err(source) => io::Error::other(source),
        },
        other => io::Error::other(other),
    }
}
