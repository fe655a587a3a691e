//! The files of a lake: one for each part, host and day, which holds the rows of several tables. `docs/fleet.md` says what
//! becomes of them.
//!
//! A file has the columns of all tables of its part. What only one event type has is in `fields`.

use super::columns::chunk::{self, Chunk};
use super::columns::fields::{Fields, type_of_fields};
use super::columns::type_in_lake;
use super::files::{Folder, MOST_OPEN, Writer};
use super::output::{Group, into_io};
use super::places::{Places, folder_of};
use super::rows::{ABOUT, ROW_GROUP};
use crate::tables::{Column, EVENTS, FIXED, Fixed, Kind, Lead};
use parquet::column::writer::ColumnWriter;
use parquet::errors::Result;
use parquet::schema::types::{ColumnDescriptor, SchemaDescriptor, Type};
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};

/// What files say of each row beside its table's columns.
const OWN: [&str; 4] = ["table_name", "boot", "vm", "hour"];
/// The column of what only one event type has.
const FIELDS: &str = "fields";
/// Columns in which neighbours differ by little, and those in which many are the same.
const GROWING: [&str; 3] = ["time_ns", "ticks", "begin_ns"];
const SAME: [&str; 6] = ["recording", "event", "table_name", "boot", "vm", "hour"];

/// Whose rows a file has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct At {
    /// It tells the part.
    lead: Lead,
    host: Option<String>,
    day: String,
}

/// A file that is written.
struct OpenFile {
    writer: Writer,
    /// What comes into its next row group.
    waiting: Vec<Waiting>,
    /// When it was written to last, in groups.
    used: u64,
}

/// The files of a lake.
pub(super) struct LakeFiles {
    folder: Folder,
    places: Places,
    parts: HashMap<Lead, SchemaDescriptor>,
    open: HashMap<At, OpenFile>,
    groups: u64,
}

impl LakeFiles {
    /// None yet, in `folder`.
    ///
    /// # Errors
    /// When the library cannot have such files.
    pub(super) fn new(folder: Folder, places: Places) -> io::Result<Self> {
        let part = |lead| Ok((lead, schema_of(lead)?));
        let parts = [Lead::Recording, Lead::Moment, Lead::Lasting].into_iter().map(part).collect::<Result<_>>();
        Ok(Self { folder, places, parts: parts.map_err(into_io)?, open: HashMap::new(), groups: 0 })
    }

    /// Writes rows until there are no more; how many bytes that are.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub(super) fn write_all(mut self, groups: mpsc::Receiver<io::Result<Group>>) -> io::Result<u64> {
        for group in groups {
            self.write(group?)?;
        }
        let open: Vec<At> = self.open.keys().cloned().collect();
        open.iter().try_for_each(|at| self.close(at))?;
        Ok(self.folder.bytes)
    }

    fn write(&mut self, group: Group) -> io::Result<()> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let [host, boot, vm, hour] = self.places.values(group.shape.place, group.hour).ok_or_else(missing)?;
        let day = hour.as_deref().and_then(|hour| hour.split_once('T')).map_or_else(String::new, |(day, _)| day.into());
        let at = At { lead: group.shape.lead, host, day };
        if !self.open.contains_key(&at) {
            self.open(&at)?;
        }
        self.groups += 1;
        let (Some(open), Some(part)) = (self.open.get_mut(&at), self.parts.get(&at.lead)) else { return Ok(()) };
        open.used = self.groups;
        open.waiting.push(Waiting::new(group, [boot, vm, hour]));
        if open.waiting.iter().map(|waiting| waiting.rows).sum::<usize>() >= ROW_GROUP {
            open.write(part).map_err(into_io)?;
        }
        Ok(())
    }

    fn open(&mut self, at: &At) -> io::Result<()> {
        if self.open.len() >= MOST_OPEN {
            let oldest = self.open.iter().min_by_key(|(_, open)| open.used).map(|(at, _)| at.clone());
            oldest.map_or(Ok(()), |oldest| self.close(&oldest))?;
        }
        let Some(part) = self.parts.get(&at.lead) else { return Ok(()) };
        let folders = [("part", Some(at.lead.part())), ("host", at.host.as_deref()), ("day", Some(&*at.day))];
        let folder: PathBuf = folders.iter().map(|(column, value)| folder_of(column, *value)).collect();
        let places = |names: &[&str]| {
            let is_one = |column: &ColumnDescriptor| names.contains(&column.name());
            part.columns().iter().enumerate().filter(|(_, column)| is_one(column)).map(|(place, _)| place).collect()
        };
        let (growing, same): (Vec<usize>, Vec<usize>) = (places(&GROWING), places(&SAME));
        let mut properties = chunk::properties(part, &growing, &same);
        // Few are the same, and what makes them texts has told numbers apart already.
        if let Some(values) = part.columns().iter().find(|column| leaf(column) == Leaf::Value) {
            properties = properties.set_column_dictionary_enabled(values.path().clone(), false);
        }
        let writer = self.folder.open(&folder, part.root_schema_ptr(), None, properties)?;
        self.open.insert(at.clone(), OpenFile { writer, waiting: Vec::new(), used: self.groups });
        Ok(())
    }

    fn close(&mut self, at: &At) -> io::Result<()> {
        let (Some(mut open), Some(part)) = (self.open.remove(at), self.parts.get(&at.lead)) else { return Ok(()) };
        open.write(part).map_err(into_io)?;
        self.folder.close(open.writer)
    }
}

impl OpenFile {
    /// Writes what waits as a row group.
    fn write(&mut self, part: &SchemaDescriptor) -> Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let mut row_group = self.writer.next_row_group()?;
        for described in part.columns() {
            let Some(mut column) = row_group.next_column()? else { break };
            let leaf = leaf(described);
            self.waiting.iter_mut().try_for_each(|waiting| waiting.write(&leaf, column.untyped()))?;
            column.close()?;
        }
        self.waiting.clear();
        row_group.close().map(drop)
    }
}

/// Rows of one table that wait to be written, column by column.
struct Waiting {
    rows: usize,
    columns: HashMap<String, Chunk>,
    fields: Fields,
}

impl Waiting {
    /// Those of `group`, with the values of their place.
    fn new(group: Group, place: [Option<String>; 3]) -> Self {
        let Group { shape, rows, chunks, .. } = group;
        let (table, own) = match shape.event {
            Some(_) => (EVENTS, shape.lead.count() + ABOUT + 1),
            None => (&*shape.table, chunks.len()),
        };
        let mut named = shape.schema.root_schema().get_fields().iter().map(|column| column.name()).zip(chunks);
        let mut columns: HashMap<_, _> =
            named.by_ref().take(own).map(|(name, chunk)| (name.to_string(), chunk)).collect();
        let values = std::iter::once(Some(table.to_string())).chain(place);
        for (name, value) in OWN.into_iter().zip(values) {
            columns.extend(value.map(|value| (name.to_string(), Chunk::Same(value.into(), rows))));
        }
        Self { rows, columns, fields: Fields::new(rows, named) }
    }

    /// Writes the values of a column; nulls where the table has no such one.
    fn write(&mut self, leaf: &Leaf<'_>, writer: &mut ColumnWriter<'_>) -> Result<()> {
        match leaf {
            Leaf::Column(name) => self.columns.remove(*name).unwrap_or(Chunk::Nulls(self.rows)).write(writer),
            Leaf::Key => self.fields.write_keys(writer),
            Leaf::Value => self.fields.write_values(writer),
        }
    }
}

/// A column of a file.
#[derive(Debug, PartialEq, Eq)]
enum Leaf<'n> {
    /// One of this name.
    Column(&'n str),
    /// The names of fields.
    Key,
    /// The values of fields.
    Value,
}

fn leaf(column: &ColumnDescriptor) -> Leaf<'_> {
    match column.path().parts() {
        [map, .., key] if map == FIELDS && key == "key" => Leaf::Key,
        [map, ..] if map == FIELDS => Leaf::Value,
        _ => Leaf::Column(column.name()),
    }
}

/// The columns of the files of a part: those of its tables, each once, and [`OWN`].
fn columns_of(lead: Lead) -> Vec<Column> {
    let mut columns: Vec<Column> = Vec::new();
    let of_tables = FIXED.iter().filter(|table| table.lead == lead).flat_map(Fixed::columns).map(Column::from);
    let own = OWN.map(|name| Column { name: name.into(), kind: Kind::Text });
    for column in of_tables.chain(own) {
        if columns.iter().all(|known| known.name != column.name) {
            columns.push(column);
        }
    }
    columns
}

fn schema_of(lead: Lead) -> Result<SchemaDescriptor> {
    let columns = columns_of(lead);
    let mut types = columns.iter().map(|column| type_in_lake(column).map(Arc::new)).collect::<Result<Vec<_>>>()?;
    if lead == Lead::Moment {
        types.push(Arc::new(type_of_fields(FIELDS)?));
    }
    Ok(SchemaDescriptor::new(Arc::new(Type::group_type_builder("rows").with_fields(types).build()?)))
}

#[cfg(test)]
mod tests;
