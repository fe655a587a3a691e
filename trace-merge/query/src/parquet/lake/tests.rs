use super::*;
use crate::made_recording;
use crate::parquet::{self as exporting, Selection};
use crate::tables::{PARTITIONS, lead_of_event_table, table_of_event};
use ::parquet::file::reader::{FileReader, SerializedFileReader};
use ::parquet::record::Field;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use strata_export::Options;

/// What a row has in its columns, nulls left out.
type Row = BTreeMap<String, String>;

fn files(folder: &Path) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}

fn text(field: &Field) -> String {
    match field {
        Field::Str(text) => text.clone(),
        Field::ListInternal(_) => field.to_string().replace(' ', ""),
        Field::MapInternal(map) => {
            let there = map.entries().iter().filter(|(_, value)| *value != Field::Null);
            let entries = there.map(|(name, value)| (text(name), text(value)));
            format!("{:?}", entries.collect::<BTreeMap<_, _>>())
        }
        // A decimal without digits behind its point.
        _ => field.to_string().trim_end_matches('.').to_string(),
    }
}

/// The rows of a file, and what its folders say of all of them. UTC, whose units differ, is left out.
fn rows(folder: &Path, file: &Path) -> Vec<Row> {
    let folders = file.parent().unwrap().strip_prefix(folder).unwrap();
    let place = folders.iter().filter_map(|folder| folder.to_str()?.split_once('='));
    let place = place.filter(|(_, value)| *value != crate::tables::NULL_PARTITION);
    let place: Row = place.map(|(name, value)| (name.into(), value.into())).collect();
    let reader = SerializedFileReader::new(File::open(file).unwrap()).unwrap();
    let row = |row: ::parquet::record::Row| {
        let there = row.get_column_iter().filter(|(name, field)| **field != Field::Null && !name.contains("utc"));
        place.clone().into_iter().chain(there.map(|(name, field)| (name.clone(), text(field)))).collect()
    };
    reader.get_row_iter(None).unwrap().map(Result::unwrap).map(row).collect()
}

/// A row of a table as a lake has it.
fn in_lake(table: &str, mut row: Row) -> Row {
    let day = row["hour"].split('T').next().unwrap().to_string();
    let lead = Fixed::find(table).map_or(Lead::Moment, |table| table.lead);
    let mut own: BTreeSet<String> = lead_of_event_table().map(|column| column.name).collect();
    own.extend(PARTITIONS.map(|(name, _)| name.to_string()));
    if Fixed::find(table).is_none() {
        let (own, fields): (Row, Row) = row.into_iter().partition(|(name, _)| own.contains(name));
        row = own;
        row.extend((!fields.is_empty()).then(|| (FIELDS.to_string(), format!("{fields:?}"))));
    }
    let table = if Fixed::find(table).is_some() { table } else { EVENTS };
    row.extend([("day", &*day), ("part", lead.part()), ("table_name", table)].map(|(k, v)| (k.into(), v.into())));
    row
}

#[test]
fn lake_has_the_rows_of_all_tables_each_once() {
    let (tables, lake) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_dir, trace) = made_recording::export(tables.path());
    let mut expected = Vec::new();
    for file in files(tables.path()) {
        let table = file.strip_prefix(tables.path()).unwrap().iter().next().unwrap().to_str().unwrap().to_string();
        expected.extend(rows(tables.path(), &file).into_iter().map(|row| in_lake(&table, row)));
    }

    exporting::export_for_lake(&trace, &Options::default(), lake.path(), &Selection::All).unwrap();

    let of_file = |file: PathBuf| rows(lake.path(), &file);
    let mut found: Vec<Row> = files(lake.path()).into_iter().flat_map(of_file).collect();
    found.sort();
    expected.sort();
    assert!(expected.iter().any(|row| row.get(FIELDS).is_some_and(|fields| fields.contains('['))), "a list");
    let differs = found.iter().zip(&expected).find(|(found, expected)| found != expected);
    assert_eq!((found.len(), differs), (expected.len(), None));
}

#[test]
fn each_part_has_one_file_of_one_row_group_for_a_host_and_day() {
    let lake = tempfile::tempdir().unwrap();
    let (_dir, trace) = made_recording::open();

    exporting::export_for_lake(&trace, &Options::default(), lake.path(), &Selection::All).unwrap();

    let place = |file: &PathBuf| file.parent().unwrap().strip_prefix(lake.path()).unwrap().display().to_string();
    let files = files(lake.path());
    let places: Vec<String> = files.iter().map(place).collect();
    let parts = ["about", EVENTS, "spans"];
    assert_eq!(places, parts.map(|part| format!("part={part}/host=__HIVE_DEFAULT_PARTITION__/day=2023-11-14")));
    for file in files {
        let reader = SerializedFileReader::new(File::open(&file).unwrap()).unwrap();
        assert_eq!(reader.num_row_groups(), 1, "{}", file.display());
    }
}

#[test]
fn only_chosen_tables_are_there() {
    let lake = tempfile::tempdir().unwrap();
    let (_dir, trace) = made_recording::open();
    let chosen = Selection::chosen(&[table_of_event("sched:sched_switch"), "wakeups".into()], &trace).unwrap();

    exporting::export_for_lake(&trace, &Options::default(), lake.path(), &chosen).unwrap();

    let of_file = |file: PathBuf| rows(lake.path(), &file);
    let rows: Vec<Row> = files(lake.path()).into_iter().flat_map(of_file).collect();
    let tables: BTreeSet<&str> = rows.iter().map(|row| &*row["table_name"]).collect();
    let events: BTreeSet<&str> =
        rows.iter().filter(|row| row["table_name"] == EVENTS).map(|row| &*row["event"]).collect();
    let always = ["event_fields", EVENTS, "gaps", "losses", "recordings", "vms", "wakeups"];
    assert_eq!((tables, events), (always.into(), ["sched:sched_switch"].into()));
}
