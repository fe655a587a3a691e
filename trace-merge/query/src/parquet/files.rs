//! The thread that writes files.

use super::columns::chunk;
use super::output::{Group, Shape, into_io, recording_id};
use super::places::{Hour, Places};
use super::rows::ABOUT;
use crate::tables::{CHOSEN_KEY, EVENT_KEY, Lead, RECORDING_KEY, VERSION, VERSION_KEY};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use strata_recording::files::access::Readers;
use strata_recording::reader::Trace;
use strata_recording::window::Window;

/// Files that are open at once.
const MOST_OPEN: usize = 256;
/// What is written at once.
const BUFFER: usize = 1 << 16;

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
        let folder = Path::new(&shape.table).join(place);
        let folder = Readers::Owner.create_folders(&self.folder, &folder)?;
        let path = folder.join(format!("{}-{}.parquet", self.name, self.opened));
        self.opened += 1;
        let file = BufWriter::with_capacity(BUFFER, Readers::Owner.create_file(&path)?);
        let properties = Arc::new(self.properties(shape));
        let writer = SerializedFileWriter::new(file, shape.schema.root_schema_ptr(), properties).map_err(into_io)?;
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
        let (growing, same): (&[usize], &[usize]) = match shape.lead {
            Lead::Recording => (&[], &[0]),
            Lead::Moment => (&[1, 3], &[0, Lead::Moment.count() + ABOUT]),
            Lead::Lasting => (&[1], &[0]),
        };
        let properties = chunk::properties(&shape.schema, growing, same);
        properties.set_key_value_metadata(Some(metadata.collect())).build()
    }
}
