//! Rows of a report that are chosen and ordered by its described columns, and shown as one table: as text, JSON or CSV.
//!
//! Rows at one path of the report's JSON are a table, whatever they are in: what they belong to (the VM, a process) becomes
//! columns in front.

use super::columns::{ColumnText, Rows, table_name};
use super::table::{Align, Table};
use crate::report::sink::Sink;
use crate::report::{duration, signed_duration};
use serde_json::{Map, Value};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::io;
use std::str::FromStr;
use strata_analysis::task_choice::TaskChoice;
use strata_recording::text::nearest::{self, nearest, similarity};
use strata_recording::text::terminal::harmless;
use thiserror::Error;

/// Keys of what rows are in that become columns, in this order.
const AROUND: [&str; 11] = ["vm", "layer", "pid", "comm", "cpu", "vcpu", "tid", "kind", "number", "name", "address"];

/// Which rows are shown, and how.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// CSV in place of text.
    pub csv: bool,
    /// The table, where the report has several; else the first that has the columns that are requested.
    pub table: Option<String>,
    /// Only rows of this VM.
    pub vm: Option<String>,
    /// Only rows of these tasks or processes.
    pub task: Option<TaskChoice>,
    /// Only rows of this CPU or vCPU.
    pub cpu: Option<u32>,
    /// How they are ordered; else as the report has them.
    pub sort: Option<Sort>,
    /// So many rows at most.
    pub limit: Option<usize>,
}

/// An order of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sort {
    /// Key or heading of a column.
    column: String,
    /// Without one, numbers begin with the largest, and texts with the first by letters.
    is_descending: Option<bool>,
}

/// What is not an order.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("write a column, and :asc or :desc behind it for an order of your own, as in wall_ns:asc")]
pub struct BadSort;

impl FromStr for Sort {
    type Err = BadSort;

    fn from_str(text: &str) -> Result<Self, BadSort> {
        let (column, is_descending) = match text.rsplit_once(':') {
            Some((column, "desc")) => (column, Some(true)),
            Some((column, "asc")) => (column, Some(false)),
            Some(_) => return Err(BadSort),
            None => (text, None),
        };
        if column.is_empty() { Err(BadSort) } else { Ok(Self { column: column.into(), is_descending }) }
    }
}

/// Why no rows are chosen.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ChoiceError {
    /// It has no such table.
    #[error("the report {report} has no table '{wanted}'; it has {}", .tables.join(", "))]
    NoTable {
        report: &'static str,
        wanted: String,
        /// Those that there are, the nearest first.
        tables: Vec<String>,
    },
    /// No table has such a column.
    #[error("the table {table} of the report {report} has no column {wanted}; it has {}", .columns.join(", "))]
    NoColumn {
        report: &'static str,
        table: String,
        wanted: String,
        /// Those that there are, the nearest first.
        columns: Vec<String>,
    },
    /// No table has rows that such an option chooses among.
    #[error("no row of the report {report} is of a {what}: {option} does not choose among its rows")]
    NotOf {
        report: &'static str,
        /// VM, task or CPU.
        what: &'static str,
        option: &'static str,
    },
    /// No row is of the VM.
    #[error("no row is of a VM called \"{wanted}\"; there are {}", .vms.join(", "))]
    NoVm {
        wanted: String,
        /// Those that there are, the nearest first.
        vms: Vec<String>,
    },
    /// No row is of the task.
    #[error("no row is of a task '{wanted}'{}", nearest::in_words(.nearest))]
    NoTask {
        wanted: String,
        /// Names near to it.
        nearest: Vec<String>,
    },
    /// No row is of the CPU.
    #[error("no row is of CPU {wanted}; there are {}", .cpus.iter().map(u64::to_string).collect::<Vec<_>>().join(", "))]
    NoCpu {
        wanted: u32,
        /// Those that there are.
        cpus: BTreeSet<u64>,
    },
}

/// A column of a table.
#[derive(Clone, Debug)]
struct Column {
    /// Where a row has its value: keys with dots between them.
    key: String,
    /// Empty where text does not have it.
    heading: String,
    unit: &'static str,
    is_part: bool,
}

/// Rows that were chosen.
#[derive(Clone, Debug)]
pub struct Chosen {
    path: &'static str,
    columns: Vec<Column>,
    rows: Vec<Map<String, Value>>,
    /// Whether the report itself has none.
    is_empty: bool,
    /// Rows that a limit leaves out.
    left_out: usize,
}

impl Choice {
    /// Whether it is the whole report, as that shows itself.
    #[must_use]
    pub const fn is_all(&self) -> bool {
        !self.csv
            && self.table.is_none()
            && self.vm.is_none()
            && self.task.is_none()
            && self.cpu.is_none()
            && self.sort.is_none()
            && self.limit.is_none()
    }

    /// The rows of the report called `report`, which `described` describes and JSON has as `value`.
    ///
    /// # Errors
    /// When it has no such table or column.
    pub fn of(&self, report: &'static str, described: &[Rows], value: &Value) -> Result<Chosen, ChoiceError> {
        let tables: Vec<&Rows> = described.iter().filter(|rows| rows.is_table()).collect();
        let named = |rows: &&&Rows| match &self.table {
            Some(wanted) => table_name(rows.path) == *wanted || table_name(rows.path).ends_with(&format!(".{wanted}")),
            None => true,
        };
        let chosen: Vec<Chosen> = tables.iter().filter(named).map(|rows| Chosen::all(described, rows, value)).collect();
        let missing = |chosen: &Chosen| self.missing_column(chosen);
        let fitting = chosen.iter().find(|chosen| missing(chosen).is_none());
        let Some(fitting) = fitting.or(chosen.first()) else {
            let wanted = self.table.clone().unwrap_or_default();
            let names = tables.iter().map(|rows| table_name(rows.path));
            return Err(ChoiceError::NoTable { report, tables: nearest_first(&wanted, names), wanted });
        };
        match missing(fitting) {
            Some(Lacking::Kind { what, option }) => Err(ChoiceError::NotOf { report, what, option }),
            Some(Lacking::Column(wanted)) => {
                let keys = fitting.columns.iter().map(|column| column.key.clone()).filter(|key| !key.is_empty());
                let (table, columns) = (table_name(fitting.path), nearest_first(&wanted, keys));
                Err(ChoiceError::NoColumn { report, table, wanted, columns })
            }
            None => self.narrow(fitting.clone()),
        }
    }

    /// What is requested and `chosen` does not have.
    fn missing_column(&self, chosen: &Chosen) -> Option<Lacking> {
        let has = |keys: &[&str]| chosen.columns.iter().any(|column| keys.contains(&&*column.key));
        let requested = [
            (self.vm.is_some(), &["vm"][..], "VM", "--vm"),
            (self.task.is_some(), &["comm"], "task", "--task"),
            (self.cpu.is_some(), &["cpu", "vcpu"], "CPU", "--cpu"),
        ];
        let missing = requested.into_iter().find(|(is_requested, keys, ..)| *is_requested && !has(keys));
        missing.map(|(.., what, option)| Lacking::Kind { what, option }).or_else(|| {
            let wanted = &self.sort.as_ref()?.column;
            chosen.column(wanted).is_none().then(|| Lacking::Column(wanted.clone()))
        })
    }

    /// The rows of `chosen` that are wanted, in their order.
    fn narrow(&self, mut chosen: Chosen) -> Result<Chosen, ChoiceError> {
        if let Some(wanted) = &self.vm {
            let vms: BTreeSet<String> =
                chosen.rows.iter().filter_map(|row| Some(row.get("vm")?.as_str()?.to_owned())).collect();
            if !vms.contains(wanted) && !vms.is_empty() {
                return Err(ChoiceError::NoVm { wanted: wanted.clone(), vms: nearest_first(wanted, vms.into_iter()) });
            }
            chosen.rows.retain(|row| row.get("vm").and_then(Value::as_str) == Some(wanted));
        }
        if let (Some(task), false) = (&self.task, chosen.is_empty) {
            let number = |row: &Map<String, Value>| row.get("tid").or(row.get("pid"))?.as_i64();
            let comms = chosen.rows.iter().filter_map(|row| row.get("comm")?.as_str());
            let near = nearest(&task.to_string(), comms);
            chosen.rows.retain(|row| {
                // No task has this number.
                let tid = number(row).and_then(|tid| i32::try_from(tid).ok()).unwrap_or(i32::MIN);
                task.is(tid, row.get("comm").and_then(Value::as_str))
            });
            if chosen.rows.is_empty() {
                return Err(ChoiceError::NoTask { wanted: task.to_string(), nearest: near });
            }
        }
        if let (Some(wanted), false) = (self.cpu, chosen.is_empty) {
            let cpu = |row: &Map<String, Value>| row.get("cpu").or(row.get("vcpu")).and_then(Value::as_u64);
            let cpus: BTreeSet<u64> = chosen.rows.iter().filter_map(cpu).collect();
            chosen.rows.retain(|row| cpu(row) == Some(wanted.into()));
            if chosen.rows.is_empty() {
                return Err(ChoiceError::NoCpu { wanted, cpus });
            }
        }
        if let Some(sort) = &self.sort {
            let key = chosen.column(&sort.column).map(|column| column.key.clone()).unwrap_or_default();
            let values = |row: &Map<String, Value>| Order::of(at(row, &key));
            let is_number = || chosen.rows.iter().any(|row| matches!(values(row), Order::Number(_)));
            if sort.is_descending.unwrap_or_else(is_number) {
                // What has no value is last in both.
                chosen.rows.sort_by_cached_key(|row| (at(row, &key).is_none_or(Value::is_null), Reverse(values(row))));
            } else {
                chosen.rows.sort_by_cached_key(values);
            }
        }
        let limit = self.limit.unwrap_or(usize::MAX);
        chosen.left_out = chosen.rows.len().saturating_sub(limit);
        chosen.rows.truncate(limit);
        Ok(chosen)
    }
}

/// What a table does not have.
enum Lacking {
    /// Rows of that kind.
    Kind { what: &'static str, option: &'static str },
    /// A column to sort by.
    Column(String),
}

/// A value as rows are ordered by it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Order {
    Number(i128),
    Text(String),
    None,
}

impl Order {
    fn of(value: Option<&Value>) -> Self {
        let of_hex = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
        match value {
            Some(Value::Number(number)) => {
                let whole = number.as_u64().map(i128::from).or_else(|| number.as_i64().map(i128::from));
                whole.map_or(Self::None, Self::Number)
            }
            Some(Value::Bool(is_so)) => Self::Number((*is_so).into()),
            Some(Value::String(text)) => {
                of_hex(text).map_or_else(|| Self::Text(text.clone()), |number| Self::Number(number.into()))
            }
            _ => Self::None,
        }
    }
}

fn nearest_first(wanted: &str, names: impl Iterator<Item = String>) -> Vec<String> {
    let mut names: Vec<String> = names.collect();
    let last = |name: &str| similarity(wanted, name.rsplit('.').next().unwrap_or_default());
    let near = |name: &String| similarity(wanted, name).max(last(name));
    names.sort_by(|left, right| near(right).total_cmp(&near(left)));
    names
}

/// The value at `key` of `row`.
fn at<'r>(row: &'r Map<String, Value>, key: &str) -> Option<&'r Value> {
    let (first, others) = key.split_once('.').map_or((key, None), |(first, others)| (first, Some(others)));
    let value = row.get(first)?;
    others.map_or(Some(value), |others| at(value.as_object()?, others))
}

/// Adds the rows that lie at `path` of `value` to `rows`, each with what it is `around`.
fn collect(
    value: &Value,
    path: &[&str],
    around: &mut Vec<(&'static str, Value)>,
    keys: &mut BTreeSet<&'static str>,
    rows: &mut Vec<Map<String, Value>>,
) {
    let Some((first, others)) = path.split_first() else {
        let Some(own) = value.as_object() else { return };
        let mut row: Map<String, Value> =
            around.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        row.extend(own.clone());
        rows.push(row);
        return;
    };
    let known = around.len();
    for key in AROUND {
        if let Some(value) = value.get(key).filter(|value| !value.is_object() && !value.is_array()) {
            around.push((key, value.clone()));
            keys.insert(key);
        }
    }
    match value.get(first.trim_end_matches("[]")) {
        Some(Value::Array(items)) => items.iter().for_each(|item| collect(item, others, around, keys, rows)),
        Some(value) => collect(value, others, around, keys, rows),
        None => {}
    }
    around.truncate(known);
}

impl Chosen {
    /// All rows of a table.
    fn all(described: &[Rows], table: &Rows, value: &Value) -> Self {
        let path: Vec<&str> = table.path.split('.').collect();
        let (mut rows, mut keys) = (Vec::new(), BTreeSet::new());
        collect(value, &path, &mut Vec::new(), &mut keys, &mut rows);
        let own = columns_of(described, table, &rows);
        let is_free = |key: &&&str| keys.contains(*key) && own.iter().all(|column| column.key != ***key);
        let around = AROUND.iter().filter(is_free).map(|key| Column {
            key: (*key).into(),
            heading: (*key).into(),
            unit: "text",
            is_part: false,
        });
        let mut columns: Vec<Column> = around.collect();
        columns.extend(own);
        Self { path: table.path, columns, is_empty: rows.is_empty(), rows, left_out: 0 }
    }

    /// Why there is none, where there is none.
    #[must_use]
    pub fn nothing(&self) -> Option<String> {
        self.is_empty.then(|| format!("the table {} of the report has no rows", table_name(self.path)))
    }

    /// How many rows a limit leaves out, where it does: for who reads CSV or JSON.
    #[must_use]
    pub fn left_out(&self) -> Option<String> {
        let (shown, all) = (self.rows.len(), self.rows.len() + self.left_out);
        (self.left_out > 0).then(|| format!("{shown} of {all} rows: --limit leaves out the others"))
    }

    /// The column of this key or heading, or whose key ends with it behind a dot.
    fn column(&self, wanted: &str) -> Option<&Column> {
        let by = |is: &dyn Fn(&Column) -> bool| self.columns.iter().find(|column| is(column));
        by(&|column| column.key == wanted)
            .or_else(|| by(&|column| column.heading == wanted))
            .or_else(|| by(&|column| column.key.rsplit_once('.').is_some_and(|(_, last)| last == wanted)))
    }

    /// Its path in the report's JSON, and its rows.
    #[must_use]
    pub fn to_json(&self) -> Map<String, Value> {
        let rows = self.rows.iter().cloned().map(Value::Object).collect();
        [("table".to_owned(), self.path.into()), ("rows".to_owned(), Value::Array(rows))].into_iter().collect()
    }

    /// Writes it as a table for people, without columns in which there is nothing.
    ///
    /// # Errors
    /// When `out` fails.
    pub fn write_text(&self, out: &mut dyn Sink) -> io::Result<()> {
        if self.rows.is_empty() && self.left_out == 0 {
            return Ok(());
        }
        let is_reported = |column: &&Column| self.rows.iter().any(|row| column.cell(row) != "-");
        let shown = self.columns.iter().filter(|column| !column.heading.is_empty() && is_reported(column));
        let columns: Vec<&Column> = shown.collect();
        let align = |column: &Column| match column.unit {
            "text" | "hexadecimal text" | "true, false" | "texts" | "rows" => Align::Left,
            _ => Align::Right,
        };
        let headings: Vec<_> = columns.iter().map(|column| (column.heading.as_str(), align(column))).collect();
        let mut table = Table::new(&headings);
        for row in &self.rows {
            table.row(columns.iter().map(|column| column.cell(row)));
        }
        table.write(out)?;
        match self.left_out {
            0 => Ok(()),
            more => writeln!(out, "… and {more} more rows: --limit leaves them out"),
        }
    }

    /// Writes it as CSV (RFC 4180, but with the ends of lines that Unix has), with the columns' keys in its first line.
    ///
    /// # Errors
    /// When `out` fails.
    pub fn write_csv(&self, out: &mut dyn Sink) -> io::Result<()> {
        let columns: Vec<&Column> = self.columns.iter().filter(|column| column.is_in_csv()).collect();
        write_line(columns.iter().map(|column| column.key.clone()), out)?;
        for row in &self.rows {
            write_line(columns.iter().map(|column| of_csv(at(row, &column.key))), out)?;
        }
        Ok(())
    }
}

fn write_line(fields: impl Iterator<Item = String>, out: &mut dyn Sink) -> io::Result<()> {
    let quoted = fields.map(|field| match field.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field,
    });
    writeln!(out, "{}", quoted.collect::<Vec<_>>().join(","))
}

fn of_csv(value: Option<&Value>) -> String {
    match value {
        Some(Value::String(text)) => harmless(text),
        Some(Value::Array(items)) => items.iter().map(|item| of_csv(Some(item))).collect::<Vec<_>>().join(" "),
        None | Some(Value::Null | Value::Object(_)) => String::new(),
        Some(value) => value.to_string(),
    }
}

impl Column {
    /// Whether a value fits a field.
    fn is_in_csv(&self) -> bool {
        !self.key.is_empty() && !["distribution", "histogram", "object", "rows"].contains(&self.unit)
    }

    /// As a table for people has the value of `row`.
    fn cell(&self, row: &Map<String, Value>) -> String {
        match at(row, &self.key) {
            None | Some(Value::Null) => "-".into(),
            Some(Value::Number(number)) => match (self.unit, number.as_u64(), number.as_i64()) {
                ("ns", Some(0), _) if self.is_part => "-".into(),
                ("ns", Some(ns), _) => duration(ns),
                ("ns", None, Some(ns)) => signed_duration(ns),
                _ => number.to_string(),
            },
            Some(Value::Bool(is_so)) => if *is_so { "yes" } else { "no" }.into(),
            Some(Value::Array(items)) if self.unit == "rows" => items.len().to_string(),
            value => of_csv(value),
        }
    }
}

/// The columns of `table` by their descriptions, those of objects in its rows included.
fn columns_of(described: &[Rows], table: &Rows, rows: &[Map<String, Value>]) -> Vec<Column> {
    let texts = (table.columns)();
    // What only JSON has, people see by its keys.
    let is_headless = texts.iter().all(|text| text.heading.is_empty());
    let mut columns = Vec::new();
    for text in texts {
        let is_object = text.unit == "object";
        let key = text.key.clone();
        let parts = described.iter().find(|rows| rows.path == format!("{}.{key}", table.path));
        let mut own = column(&text, key.clone());
        if own.is_in_csv() && (is_headless || is_name(&key)) && own.heading.is_empty() {
            own.heading.clone_from(&key);
        }
        columns.push(own);
        match parts {
            Some(object) if is_object => {
                columns.extend((object.columns)().iter().map(|text| column(text, format!("{key}.{}", text.key))));
            }
            _ if is_object => columns.extend(keys_of(&key, rows)),
            _ => {}
        }
    }
    columns
}

/// Whether the column `key` says which row it is.
fn is_name(key: &str) -> bool {
    ["comm", "tid", "pid", "cpu", "vector", "address", "name", "from", "to", "layer", "state", "detail"].contains(&key)
}

fn column(text: &ColumnText, key: String) -> Column {
    // What is shown and has no key is put together of what has one.
    let heading = if text.key.is_empty() { "" } else { text.heading };
    Column { key, heading: heading.into(), unit: text.unit, is_part: text.is_part }
}

/// Columns of the object `key`, whose keys nobody describes: those that the `rows` have.
fn keys_of(key: &str, rows: &[Map<String, Value>]) -> Vec<Column> {
    let unit = if key.ends_with("_ns") { "ns" } else { "number" };
    let keys: BTreeSet<&String> =
        rows.iter().filter_map(|row| row.get(key)?.as_object()).flat_map(|object| object.keys()).collect();
    let heading = |name: &str| if unit == "ns" { name.to_owned() } else { String::new() };
    let of = |name: &String| Column { key: format!("{key}.{name}"), heading: heading(name), unit, is_part: true };
    keys.into_iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::rows::columns;
    use crate::report::rows::columns::{Column as Described, ReportRow, Unit, column as described};
    use serde_json::json;

    struct Made;

    impl ReportRow for Made {
        const COLUMNS: &'static [Described<Self>] = &[
            described("comm", "task", Unit::Text, "Its name", |_| "".into()),
            described("tid", "tid", Unit::Number, "Its number", |_| 0_u64.into()),
            described("wait_ns", "waited", Unit::PartNs, "How long", |_| 0_u64.into()),
            described("address", "", Unit::Address, "Where", |_| 0_u64.into()),
            described("times_ns", "", Unit::Object, "Parts", |_| 0_u64.into()),
            described("parts", "", Unit::Rows, "Parts", |_| 0_u64.into()),
        ];
    }

    struct Place;

    impl ReportRow for Place {
        const COLUMNS: &'static [Described<Self>] = &[described("cpu", "CPU", Unit::Number, "Which", |_| 0_u64.into())];
    }

    const ROWS: [Rows; 2] = [columns::rows::<Made>("vms[].tasks[]"), columns::rows::<Place>("vms[].tasks[].cpus[]")];

    fn report() -> Value {
        json!({ "vms": [
            { "vm": "db", "tasks": [
                { "comm": "a,\"b\"", "tid": 7, "wait_ns": 1500, "address": "0x10", "times_ns": { "ran": 5 }, "cpus": [
                    { "cpu": 0 }, { "cpu": 1 },
                ] },
                { "comm": "web", "tid": 8, "wait_ns": null, "address": "0x9", "times_ns": { "ran": 0 }, "cpus": [] },
            ] },
            { "vm": "web", "tasks": [
                { "comm": "web", "tid": 7, "wait_ns": 0, "address": "0xffffffffffffffff", "times_ns": { "ran": 7 }, "cpus": [
                    { "cpu": 1 },
                ] },
            ] },
        ] })
    }

    fn csv(choice: &Choice) -> String {
        let mut out = Vec::new();
        choice.of("made", &ROWS, &report()).unwrap().write_csv(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// The VMs and numbers of the tasks that are chosen, in their order.
    fn chosen(choice: &Choice) -> Vec<String> {
        csv(choice)
            .lines()
            .skip(1)
            .map(|line| line[..1].to_owned() + &line.replace('"', ""))
            .map(|line| {
                let fields: Vec<&str> = line.split(',').collect();
                format!("{} {}", &fields[0][1..], fields[fields.len() - 4])
            })
            .collect()
    }

    fn sorted(text: &str) -> Choice {
        Choice { sort: Some(text.parse().unwrap()), ..Choice::default() }
    }

    #[test]
    fn csv_has_what_rows_are_in_and_each_value_that_fits_a_field() {
        let expected = concat!(
            "vm,comm,tid,wait_ns,address,times_ns.ran\n",
            "db,\"a,\"\"b\"\"\",7,1500,0x10,5\n",
            "db,web,8,,0x9,0\n",
            "web,web,7,0,0xffffffffffffffff,7\n",
        );

        assert_eq!(csv(&Choice::default()), expected);
    }

    #[test]
    fn text_has_the_columns_with_headings_and_the_parts() {
        let mut out = Vec::new();

        Choice::default().of("made", &ROWS, &report()).unwrap().write_text(&mut out).unwrap();

        // The address says which row it is, though whole reports show it otherwise.
        let expected = [
            "vm   task   tid    waited  address              ran",
            "db   a,\"b\"    7  1.500 µs  0x10                5 ns",
            "db   web      8         -  0x9                    -",
            "web  web      7         -  0xffffffffffffffff  7 ns",
        ];
        assert_eq!(String::from_utf8(out).unwrap().lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn rows_are_ordered_over_all_that_they_are_in_and_those_without_a_value_are_last() {
        let all = |text| chosen(&sorted(text));

        assert_eq!(all("wait_ns:asc"), ["web 7", "db 7", "db 8"]);
        assert_eq!((all("wait_ns"), all("comm")), (all("waited:desc"), all("comm:asc")));
        assert_eq!(all("waited:desc"), ["db 7", "web 7", "db 8"]);
        assert_eq!(all("address:asc"), ["db 8", "db 7", "web 7"]);
        assert_eq!(all("ran:desc"), ["web 7", "db 7", "db 8"]);
        assert_eq!(chosen(&Choice { limit: Some(1), ..sorted("ran:desc") }), ["web 7"]);
        for text in ["", ":desc", "ran:down"] {
            assert_eq!(text.parse::<Sort>(), Err(BadSort));
        }
    }

    #[test]
    fn rows_that_a_limit_leaves_out_are_counted_behind_the_table_or_beside_it() {
        let chosen = |limit| Choice { limit: Some(limit), ..Choice::default() }.of("made", &ROWS, &report()).unwrap();
        let text = |limit| {
            let mut out = Vec::new();
            chosen(limit).write_text(&mut out).unwrap();
            String::from_utf8(out).unwrap().lines().last().unwrap().to_owned()
        };

        assert_eq!(text(1), "… and 2 more rows: --limit leaves them out");
        assert!(text(3).starts_with("web"));
        assert_eq!(chosen(1).left_out().as_deref(), Some("1 of 3 rows: --limit leaves out the others"));
        assert_eq!((chosen(3).left_out(), chosen(0).nothing()), (None, None));
    }

    #[test]
    fn rows_are_chosen_by_vm_task_and_cpu() {
        let of_vm = Choice { vm: Some("web".into()), ..Choice::default() };
        let of_task = Choice { task: Some("we*".parse().unwrap()), ..Choice::default() };
        let of_both = Choice { task: Some("7".parse().unwrap()), ..of_vm.clone() };
        let of_cpu = Choice { cpu: Some(1), ..Choice::default() };

        assert_eq!((chosen(&of_vm), chosen(&of_both)), (vec!["web 7".to_owned()], vec!["web 7".to_owned()]));
        assert_eq!(chosen(&of_task), ["db 8", "web 7"]);
        assert_eq!(
            csv(&of_cpu),
            "vm,comm,tid,address,cpu\ndb,\"a,\"\"b\"\"\",7,0x10,1\nweb,web,7,0xffffffffffffffff,1\n"
        );
        assert_eq!(
            csv(&Choice { table: Some("cpus".into()), ..of_task }),
            "vm,comm,tid,address,cpu\nweb,web,7,0xffffffffffffffff,1\n"
        );
    }

    #[test]
    fn json_has_the_rows_with_what_they_are_in() {
        let rows = Choice { cpu: Some(0), ..Choice::default() }.of("made", &ROWS, &report()).unwrap().to_json();

        let row = json!({ "vm": "db", "comm": "a,\"b\"", "tid": 7, "address": "0x10", "cpu": 0 });
        assert_eq!(Value::Object(rows), json!({ "table": "vms[].tasks[].cpus[]", "rows": [row] }));
    }

    #[test]
    fn what_a_report_does_not_have_is_refused_with_what_it_has_the_nearest_first() {
        let refused = |choice: &Choice| choice.of("made", &ROWS, &report()).unwrap_err().to_string();
        let table = Choice { table: Some("cpu".into()), ..Choice::default() };
        let no_task = Choice { table: Some("cpus".into()), ..sorted("wait_ns") };
        let vm = Choice { vm: Some("webb".into()), ..Choice::default() };

        let column = "the table tasks of the report made has no column wiat_ns; it has wait_ns, ";
        assert!(refused(&sorted("wiat_ns")).starts_with(column), "{}", refused(&sorted("wiat_ns")));
        assert_eq!(refused(&table), "the report made has no table 'cpu'; it has tasks.cpus, tasks");
        let column = "the table tasks.cpus of the report made has no column wait_ns; it has ";
        assert!(refused(&no_task).starts_with(column), "{}", refused(&no_task));
        assert_eq!(refused(&vm), "no row is of a VM called \"webb\"; there are web, db");
        let task = Choice { task: Some("wb".parse().unwrap()), ..Choice::default() };
        assert_eq!(refused(&task), "no row is of a task 'wb'; the nearest is web");
        assert_eq!(refused(&Choice { cpu: Some(7), ..Choice::default() }), "no row is of CPU 7; there are 0, 1");
    }
}
