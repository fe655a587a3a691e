//! The thread that writes files.

use super::columns::chunk;
use super::output::{Group, Shape, into_io, recording_id};
use super::places::{Hour, Places};
use super::rows::ABOUT;
use crate::tables::{CHOSEN_KEY, EVENT_KEY, Lead, RECORDING_KEY, VERSION, VERSION_KEY};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterPropertiesBuilder;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::TypePtr;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use strata_recording::files::access::Readers;
use strata_recording::reader::Trace;
use strata_recording::window::Window;

/// Files that are open at once.
pub(super) const MOST_OPEN: usize = 256;
/// What is written at once.
const BUFFER: usize = 1 << 16;

/// What writes a file.
pub(super) type Writer = SerializedFileWriter<BufWriter<File>>;

/// The folder of an export.
pub(super) struct Folder {
    path: PathBuf,
    recording: String,
    /// What the names of files begin with: another part of the recording has other ones.
    name: String,
    /// The tables that were chosen, where not all were.
    chosen: Option<String>,
    /// The number of the next file.
    next: u64,
    /// Bytes of the files that are complete.
    pub(super) bytes: u64,
}

/// What the names of files of this `part` of a recording begin with.
fn name_of_part(recording: &str, Window { begin, end }: Window) -> String {
    format!("{recording}-from{begin}until{end}")
}

/// The number of the first file of an export of `chosen` tables: no other choice has it, so that exports of one recording
/// that are copied into one folder overwrite nothing of one another. It is the same in every version (FNV-1a).
fn first_number(chosen: &str) -> u64 {
    let hash = chosen.bytes().fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    u64::from(hash) << 20
}

/// The recording that the part is of whose files' names begin with `name`, and the part; `None` of a whole one.
#[cfg(feature = "sql")]
pub(crate) fn part_of_name(name: &str) -> Option<(&str, Window)> {
    let (recording, part) = name.split_once("-from")?;
    let (begin, end) = part.split_once("until")?;
    Some((recording, Window { begin: begin.parse().ok()?, end: end.parse().ok()? }))
}

impl Folder {
    /// The folder at `path`, for files of this `part` of `trace`. They say which tables were `chosen`.
    pub(super) fn new(path: &Path, trace: &Trace, part: Option<Window>, chosen: Option<String>) -> Self {
        let recording = recording_id(trace);
        let name = match part {
            Some(part) => name_of_part(&recording, part),
            None => recording.clone(),
        };
        let next = chosen.as_deref().map_or(0, first_number);
        Self { path: path.to_path_buf(), recording, name, chosen, next, bytes: 0 }
    }

    /// A new file in the folder `place` below, of rows of the type `rows`; of one event type where `event` is recorded.
    pub(super) fn open(
        &mut self,
        place: &Path,
        rows: TypePtr,
        event: Option<&str>,
        properties: WriterPropertiesBuilder,
    ) -> io::Result<Writer> {
        let folder = Readers::Owner.create_folders(&self.path, place)?;
        let path = folder.join(format!("{}-{}.parquet", self.name, self.next));
        self.next += 1;
        let file = BufWriter::with_capacity(BUFFER, Readers::Owner.create_file(&path)?);
        let mut metadata = vec![(VERSION_KEY, VERSION), (RECORDING_KEY, &self.recording)];
        metadata.extend(event.map(|event| (EVENT_KEY, event)));
        metadata.extend(self.chosen.as_deref().map(|chosen| (CHOSEN_KEY, chosen)));
        let metadata = metadata.into_iter().map(|(key, value)| KeyValue::new(key.to_string(), value.to_string()));
        let properties = properties.set_key_value_metadata(Some(metadata.collect())).build();
        SerializedFileWriter::new(file, rows, Arc::new(properties)).map_err(into_io)
    }

    /// Ends a file.
    pub(super) fn close(&mut self, mut writer: Writer) -> io::Result<()> {
        writer.finish().map_err(into_io)?;
        self.bytes += writer.bytes_written() as u64;
        io::Write::flush(writer.inner_mut())
    }
}

/// A file that is written.
struct OpenFile {
    hour: Hour,
    writer: Writer,
    /// When it was written to last, in row groups.
    used: u64,
}

/// The files of tables.
pub(super) struct Files {
    folder: Folder,
    places: Places,
    /// By the number of their shape.
    open: HashMap<u64, OpenFile>,
    groups: u64,
}

impl Files {
    /// None yet, in `folder`.
    pub(super) fn new(folder: Folder, places: Places) -> Self {
        Self { folder, places, open: HashMap::new(), groups: 0 }
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
        Ok(self.folder.bytes)
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
        for chunk in group.chunks {
            let Some(mut column) = writer.next_column().map_err(into_io)? else { break };
            chunk.write(column.untyped()).and_then(|()| column.close()).map_err(into_io)?;
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
        let (growing, same): (&[usize], &[usize]) = match shape.lead {
            Lead::Recording => (&[], &[0]),
            Lead::Moment => (&[1, 3], &[0, Lead::Moment.count() + ABOUT]),
            Lead::Lasting => (&[1], &[0]),
        };
        let properties = chunk::properties(&shape.schema, growing, same);
        let folder = Path::new(&shape.table).join(place);
        let writer = self.folder.open(&folder, shape.schema.root_schema_ptr(), shape.event.as_deref(), properties)?;
        self.open.insert(shape.number, OpenFile { hour, writer, used: self.groups });
        Ok(())
    }

    fn close(&mut self, number: u64) -> io::Result<()> {
        self.open.remove(&number).map_or(Ok(()), |open| self.folder.close(open.writer))
    }
}
