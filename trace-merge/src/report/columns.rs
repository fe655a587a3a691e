//! The columns of a report's rows: what they are called, what unit they are in and what they mean. The table for
//! people, the JSON and the documents follow from them.

use super::distribution::Distribution;
use super::duration;
use super::histogram::Histogram;
use super::table::{Align, Table};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::io::{self, Write};
use strata_recording::terminal::harmless;

/// What a value is, and so how it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Text.
    Text,
    /// Whether something is so.
    Flag,
    /// How many there are.
    Count,
    /// A number that names something.
    Number,
    /// Bytes.
    Bytes,
    /// A time, nanoseconds.
    Ns,
    /// A part of a time, nanoseconds: people are not shown that there is none.
    PartNs,
    /// A time, ticks of the trace clock.
    Ticks,
    /// A share of something, in percent.
    Share,
    /// An address, or what else has 64 bits: in JSON text, since many programs read numbers of JSON as floating point.
    Address,
    /// How times are distributed.
    Distribution,
    /// How many times there are of which length.
    Histogram,
    /// A list of texts.
    Texts,
    /// Rows inside of the row.
    Rows,
}

impl Unit {
    /// What the documents call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Flag => "true, false",
            Self::Count => "count",
            Self::Number => "number",
            Self::Bytes => "bytes",
            Self::Ns | Self::PartNs => "ns",
            Self::Ticks => "ticks",
            Self::Share => "percent",
            Self::Address => "hexadecimal text",
            Self::Distribution => "distribution",
            Self::Histogram => "histogram",
            Self::Texts => "texts",
            Self::Rows => "rows",
        }
    }

    /// On which side of its column it stands.
    #[must_use]
    pub const fn align(self) -> Align {
        match self {
            Self::Count | Self::Number | Self::Bytes | Self::Ns | Self::PartNs | Self::Ticks | Self::Share => {
                Align::Right
            }
            _ => Align::Left,
        }
    }
}

/// A value of a row.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Value<'r> {
    /// There is none.
    None,
    /// A number.
    Number(u64),
    /// A number that may be negative.
    Signed(i64),
    /// Whether something is so.
    Flag(bool),
    /// Text.
    Text(Cow<'r, str>),
    /// A list of texts.
    Texts(&'r [String]),
    /// How times are distributed.
    Distribution(&'r Distribution),
    /// How many times there are of which length.
    Histogram(&'r Histogram),
    /// Rows inside of the row.
    Rows(Vec<Object<'r>>),
}

impl From<u64> for Value<'_> {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<u32> for Value<'_> {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<i64> for Value<'_> {
    fn from(number: i64) -> Self {
        Self::Signed(number)
    }
}

impl From<i32> for Value<'_> {
    fn from(number: i32) -> Self {
        Self::Signed(number.into())
    }
}

impl From<bool> for Value<'_> {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<String> for Value<'_> {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl<'r> From<&'r str> for Value<'r> {
    fn from(text: &'r str) -> Self {
        Self::Text(text.into())
    }
}

impl<'r> From<&'r String> for Value<'r> {
    fn from(text: &'r String) -> Self {
        Self::Text(text.into())
    }
}

impl<'r> From<&'r [String]> for Value<'r> {
    fn from(texts: &'r [String]) -> Self {
        Self::Texts(texts)
    }
}

impl<'r> From<&'r Distribution> for Value<'r> {
    fn from(distribution: &'r Distribution) -> Self {
        Self::Distribution(distribution)
    }
}

impl<'r> From<&'r Histogram> for Value<'r> {
    fn from(histogram: &'r Histogram) -> Self {
        Self::Histogram(histogram)
    }
}

impl<'r, T: Into<Value<'r>>> From<Option<T>> for Value<'r> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::None, Into::into)
    }
}

impl<'r> Value<'r> {
    /// Rows inside of a row.
    pub fn rows<R: ReportRow>(rows: &'r [R]) -> Self {
        Self::Rows(rows.iter().map(Object::of).collect())
    }

    /// As JSON has it.
    fn in_json(self, unit: Unit) -> Self {
        match (unit, self) {
            (Unit::Address, Self::Number(address)) => Self::Text(format!("{address:#x}").into()),
            (_, value) => value,
        }
    }

    /// As a table has it.
    fn cell(&self, unit: Unit) -> String {
        match (unit, self) {
            (Unit::PartNs, Self::None | Self::Number(0)) | (_, Self::None) => "-".into(),
            (Unit::Ns | Unit::PartNs, Self::Number(ns)) => duration(*ns),
            (Unit::Address, Self::Number(address)) => format!("{address:#x}"),
            (_, Self::Number(number)) => number.to_string(),
            (_, Self::Signed(number)) => number.to_string(),
            (_, Self::Flag(is_so)) => if *is_so { "yes" } else { "no" }.into(),
            (_, Self::Text(text)) => harmless(text),
            (_, Self::Texts(texts)) => texts.iter().map(|text| harmless(text)).collect::<Vec<_>>().join(", "),
            (_, Self::Distribution(times)) => times.count.to_string(),
            (_, Self::Histogram(_)) => String::new(),
            (_, Self::Rows(rows)) => rows.len().to_string(),
        }
    }
}

/// A column of the rows `R`.
pub struct Column<R: 'static> {
    /// Its key in JSON. With a dot it is a part of the value of the column before the dot, and only a table has a
    /// column for it. Empty for what only a table has.
    pub key: &'static str,
    /// Its heading in a table; empty for what only JSON has.
    pub heading: &'static str,
    /// What its values are.
    pub unit: Unit,
    /// What its values mean.
    pub meaning: &'static str,
    /// The value of a row.
    pub value: fn(&R) -> Value<'_>,
}

/// A column; see [`Column`].
pub const fn column<R>(
    key: &'static str,
    heading: &'static str,
    unit: Unit,
    meaning: &'static str,
    value: fn(&R) -> Value<'_>,
) -> Column<R> {
    Column { key, heading, unit, meaning, value }
}

impl<R> Column<R> {
    /// Whether JSON has a key for it.
    fn has_key(&self) -> bool {
        !self.key.is_empty() && !self.key.contains('.')
    }
}

/// A row of a report.
pub trait ReportRow: Sized + 'static {
    /// Its columns, in the order in which they are shown.
    const COLUMNS: &'static [Column<Self>];
}

/// A row as JSON has it: its keys and values, in order.
#[derive(Clone, Debug)]
pub struct Object<'r>(Vec<(&'static str, Value<'r>)>);

impl<'r> Object<'r> {
    /// That of `row`.
    pub fn of<R: ReportRow>(row: &'r R) -> Self {
        let columns = R::COLUMNS.iter().filter(|column| column.has_key());
        Self(columns.map(|column| (column.key, (column.value)(row).in_json(column.unit))).collect())
    }
}

impl Serialize for Object<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        self.0.iter().try_for_each(|(key, value)| map.serialize_entry(key, value))?;
        map.end()
    }
}

/// Serializes `rows` by their columns: for `#[serde(serialize_with)]`.
///
/// # Errors
/// When `serializer` fails.
pub fn serialize<R: ReportRow, S: Serializer>(rows: &[R], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(rows.iter().map(Object::of))
}

/// `rows` as a table.
pub fn table<'r, R: ReportRow>(rows: impl IntoIterator<Item = &'r R>) -> Table {
    let columns = || R::COLUMNS.iter().filter(|column| !column.heading.is_empty());
    let headings: Vec<(&str, Align)> = columns().map(|column| (column.heading, column.unit.align())).collect();
    let mut table = Table::new(&headings);
    for row in rows {
        table.row(columns().map(|column| (column.value)(row).cell(column.unit)));
    }
    table
}

/// Writes `rows` as a table.
///
/// # Errors
/// When `out` fails.
pub fn write<'r, R: ReportRow>(rows: impl IntoIterator<Item = &'r R>, out: &mut dyn Write) -> io::Result<()> {
    table(rows).write(out)
}

/// What is said of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ColumnText {
    /// Its key in JSON; what is in front of a dot is the key of an object that it is in.
    pub key: &'static str,
    /// Its heading in a table.
    pub heading: &'static str,
    /// What its values are.
    pub unit: &'static str,
    /// What its values mean.
    pub meaning: &'static str,
    /// Whether it is a part of a time, of which people are not shown that there is none.
    pub is_part: bool,
}

/// What is said of the columns of `R`.
#[must_use]
pub fn texts<R: ReportRow>() -> Vec<ColumnText> {
    let text = |&Column { key, heading, unit, meaning, .. }: &Column<R>| ColumnText {
        key,
        heading,
        unit: unit.name(),
        meaning,
        is_part: matches!(unit, Unit::PartNs),
    };
    R::COLUMNS.iter().map(text).collect()
}

/// Rows of a report that have columns.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// Where they are in JSON: keys, each behind a dot but for the first, and `[]` behind that of a list.
    pub path: &'static str,
    /// What is said of their columns.
    pub columns: fn() -> Vec<ColumnText>,
}

/// Rows `R` at `path`; see [`Rows`].
#[must_use]
pub const fn rows<R: ReportRow>(path: &'static str) -> Rows {
    Rows { path, columns: texts::<R> }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Made {
        address: u64,
        wait_ns: u64,
        comm: Option<&'static str>,
    }

    impl ReportRow for Made {
        const COLUMNS: &'static [Column<Self>] = &[
            column("address", "at", Unit::Address, "Where", |row| row.address.into()),
            column("wait_ns", "waited", Unit::PartNs, "How long", |row| row.wait_ns.into()),
            column("comm", "", Unit::Text, "Who", |row| row.comm.into()),
            column("", "twice", Unit::Ns, "Twice as long", |row| (2 * row.wait_ns).into()),
        ];
    }

    const ROWS: [Made; 2] =
        [Made { address: u64::MAX, wait_ns: 1_500, comm: Some("dd") }, Made { address: 16, wait_ns: 0, comm: None }];

    #[test]
    fn json_has_columns_with_keys_and_addresses_as_text() {
        let json = serde_json::to_string(&Value::rows(&ROWS)).unwrap();

        let first = r#"{"address":"0xffffffffffffffff","wait_ns":1500,"comm":"dd"}"#;
        assert_eq!(json, format!(r#"[{first},{{"address":"0x10","wait_ns":0,"comm":null}}]"#));
    }

    #[test]
    fn table_has_columns_with_headings() {
        let mut out = Vec::new();

        write(&ROWS, &mut out).unwrap();

        let lines = ["at                    waited     twice", "0xffffffffffffffff  1.500 µs  3.000 µs"];
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().take(2).collect::<Vec<_>>(), lines);
        assert_eq!(text.lines().nth(2), Some("0x10                       -      0 ns"));
    }

    #[test]
    fn what_is_said_of_a_column_is_what_it_says() {
        let texts = texts::<Made>();

        let address =
            ColumnText { key: "address", heading: "at", unit: "hexadecimal text", meaning: "Where", is_part: false };
        assert_eq!((texts.len(), texts[0]), (4, address));
    }
}
