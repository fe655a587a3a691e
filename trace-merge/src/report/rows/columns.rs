//! The columns of a report's rows: what they are called, what unit they are in and what they mean. The table for
//! people, the JSON and the documents follow from them.

pub mod figure;

use super::table::{Align, Table, write_more};
use crate::report::sink::{Sink, rows_shown};
use crate::report::statistics::distribution::{Distribution, Times};
use crate::report::statistics::histogram::Histogram;
use crate::report::{duration, signed_duration};
use figure::{Figure, Figures};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::io;
use std::iter;
use strata_recording::text::terminal::harmless;

/// What a value is, and so how it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
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
    /// How many times there are of each length.
    Histogram,
    /// A list of texts.
    Texts,
    /// Rows inside of the row.
    Rows,
    /// An object with keys of its own.
    Object,
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
            Self::Object => "object",
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
    /// There is none, and JSON has no key for it.
    Absent,
    /// A number.
    Number(u64),
    /// A number that may be negative.
    Signed(i64),
    /// Whether something is so.
    Flag(bool),
    Text(Cow<'r, str>),
    /// A list of texts.
    Texts(&'r [String]),
    /// How times are distributed.
    Distribution(&'r Distribution),
    /// How often and how long.
    Times(&'r Times),
    /// How many times there are of each length.
    Histogram(&'r Histogram),
    /// Rows inside of the row.
    Rows(Vec<Object<'r>>),
    /// An object with keys of its own.
    Object(Object<'r>),
    /// An object whose type describes no columns.
    Json(serde_json::Value),
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

impl From<usize> for Value<'_> {
    fn from(number: usize) -> Self {
        Self::Number(number as u64)
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

impl<'r> From<&'r Times> for Value<'r> {
    fn from(times: &'r Times) -> Self {
        Self::Times(times)
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

    /// An object with the keys of `row`.
    pub fn object<R: ReportRow>(row: &'r R) -> Self {
        Self::Object(Object::of(row))
    }

    /// An object as serde makes it of `value`.
    pub fn json(value: &impl Serialize) -> Self {
        // What is described so are structs, whose keys are text.
        serde_json::to_value(value).map_or(Self::None, Self::Json)
    }

    /// `value`; without one, JSON has no key for it.
    pub fn or_absent(value: Option<impl Into<Self>>) -> Self {
        value.map_or(Self::Absent, Into::into)
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
            (Unit::PartNs, Self::Number(0)) | (_, Self::None | Self::Absent) => "-".into(),
            (Unit::Ns | Unit::PartNs, Self::Number(ns)) => duration(*ns),
            (Unit::Address, Self::Number(address)) => format!("{address:#x}"),
            (_, Self::Number(number)) => number.to_string(),
            (Unit::Ns, Self::Signed(ns)) => signed_duration(*ns),
            (_, Self::Signed(number)) => number.to_string(),
            (_, Self::Flag(is_so)) => if *is_so { "yes" } else { "no" }.into(),
            (_, Self::Text(text)) => harmless(text),
            (_, Self::Texts(texts)) => texts.iter().map(|text| harmless(text)).collect::<Vec<_>>().join(", "),
            (_, Self::Distribution(Distribution { count, .. }) | Self::Times(Times { count, .. })) => count.to_string(),
            (_, Self::Histogram(_) | Self::Object(_) | Self::Json(_)) => String::new(),
            (_, Self::Rows(rows)) => rows.len().to_string(),
        }
    }
}

/// A column of the rows `R`.
pub struct Column<R: 'static> {
    /// Its key in JSON. Empty for what only a table has, and for times whose figures are keys of the row itself.
    pub key: &'static str,
    /// Its heading in a table; empty for what only JSON has.
    pub heading: &'static str,
    /// What its values are.
    pub unit: Unit,
    /// What its values mean.
    pub meaning: &'static str,
    /// The value of a row.
    pub value: fn(&R) -> Value<'_>,
    /// Where the values are times, the columns that a table has in place of this one.
    pub figures: Figures,
}

/// A column; see [`Column`].
pub const fn column<R>(
    key: &'static str,
    heading: &'static str,
    unit: Unit,
    meaning: &'static str,
    value: fn(&R) -> Value<'_>,
) -> Column<R> {
    Column { key, heading, unit, meaning, value, figures: &[] }
}

/// Times: JSON has them at `key`, a table has `figures` of them.
pub const fn distribution<R>(
    key: &'static str,
    figures: Figures,
    meaning: &'static str,
    value: fn(&R) -> Value<'_>,
) -> Column<R> {
    Column { key, heading: "", unit: Unit::Distribution, meaning, value, figures }
}

/// Times: `figures` of them are keys of the row. `meaning` is that of their count.
pub const fn times<R>(figures: Figures, meaning: &'static str, value: fn(&R) -> Value<'_>) -> Column<R> {
    Column { key: "", heading: "", unit: Unit::Count, meaning, value, figures }
}

impl<R> Column<R> {
    /// Adds what JSON has of `row`: key and value.
    fn add_to<'r>(&self, object: &mut Vec<(&'static str, Value<'r>)>, row: &'r R) {
        let value = || (self.value)(row);
        if !self.key.is_empty() {
            let value = Some(value()).filter(|value| !matches!(value, Value::Absent));
            object.extend(value.map(|value| (self.key, value.in_json(self.unit))));
        } else if !self.figures.is_empty() {
            let times = value();
            object.extend(self.figures.iter().map(|(figure, _)| (figure.key(), figure.of(&times))));
        }
    }

    /// Headings of its columns in a table, and on which side they stand.
    fn headings(&self) -> impl Iterator<Item = (&'static str, Align)> {
        let own = (self.heading, self.unit.align());
        let figures = self.figures.iter().map(|&(figure, heading)| (heading, figure.unit().align()));
        iter::once(own).chain(figures).filter(|(heading, _)| !heading.is_empty())
    }

    /// The cells of `row` in these columns.
    fn cells(&self, row: &R) -> impl Iterator<Item = String> {
        let value = (self.value)(row);
        let own = (!self.heading.is_empty()).then(|| value.cell(self.unit));
        let shown = self.figures.iter().filter(|(_, heading)| !heading.is_empty());
        let figures: Vec<_> = shown.map(|(figure, _)| figure.shown_of(&value).cell(figure.unit())).collect();
        own.into_iter().chain(figures)
    }

    /// What describes it and its figures.
    fn texts(&self) -> impl Iterator<Item = ColumnText> {
        let &Self { key, heading, unit, meaning, figures, .. } = self;
        let is_part = matches!(unit, Unit::PartNs);
        let own = ColumnText { key: key.into(), heading, unit: unit.name(), meaning, is_part };
        let figures = figures.iter().map(move |&(figure, heading)| ColumnText {
            key: if key.is_empty() { figure.key().into() } else { format!("{key}.{}", figure.key()) },
            heading,
            unit: figure.unit().name(),
            meaning: if key.is_empty() && figure == Figure::Count { meaning } else { figure.meaning() },
            is_part: false,
        });
        // Where figures are keys of the row, nothing stands for all of them.
        Some(own).filter(|_| self.figures.is_empty() || !key.is_empty()).into_iter().chain(figures)
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
        let mut object = Vec::with_capacity(R::COLUMNS.len());
        R::COLUMNS.iter().for_each(|column| column.add_to(&mut object, row));
        Self(object)
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
    let headings: Vec<(&str, Align)> = R::COLUMNS.iter().flat_map(Column::headings).collect();
    let shown = texts::<R>().into_iter().filter(|text| !text.heading.is_empty());
    let mut table = Table::new(&headings).described(shown.map(|text| (text.key, text.meaning)));
    for row in rows {
        // No row is without a form as JSON: its keys are text.
        let data = serde_json::to_value(Object::of(row)).unwrap_or_default();
        table.row_of(R::COLUMNS.iter().flat_map(|column| column.cells(row)), data);
    }
    table
}

/// Writes the first `shown` of `rows` as a table, and how many more there are of `what`, one and many; nothing without
/// rows.
pub(crate) fn write_first<R: ReportRow>(
    rows: &[R],
    shown: usize,
    what: [&str; 2],
    out: &mut dyn Sink,
) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let shown = rows_shown(out, shown);
    write(rows.iter().take(shown), out)?;
    write_more(rows.len(), shown, what, out)
}

/// Writes `rows` as a table.
///
/// # Errors
/// When `out` fails.
pub fn write<'r, R: ReportRow>(rows: impl IntoIterator<Item = &'r R>, out: &mut dyn Sink) -> io::Result<()> {
    table(rows).write(out)
}

/// What describes a column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ColumnText {
    /// Its key in JSON; what is in front of a dot is the key of an object that it is in.
    pub key: String,
    /// Its heading in a table.
    pub heading: &'static str,
    /// What its values are.
    pub unit: &'static str,
    /// What its values mean.
    pub meaning: &'static str,
    /// Whether it is a part of a time, which people do not see where it is nothing.
    pub is_part: bool,
}

impl ColumnText {
    /// Whether rows can be ordered by it: it has a key, and one value.
    #[must_use]
    pub fn is_sortable(&self) -> bool {
        let several = [Unit::Distribution, Unit::Histogram, Unit::Texts, Unit::Rows, Unit::Object];
        !self.key.is_empty() && several.into_iter().all(|unit| unit.name() != self.unit)
    }
}

/// What describes the columns of `R`.
#[must_use]
pub fn texts<R: ReportRow>() -> Vec<ColumnText> {
    R::COLUMNS.iter().flat_map(Column::texts).collect()
}

/// Rows of a report that have columns.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// Where they are in JSON: keys, each behind a dot but for the first, and `[]` behind that of a list.
    pub path: &'static str,
    /// What describes their columns.
    pub columns: fn() -> Vec<ColumnText>,
}

impl Rows {
    /// Whether there are several, as in a table.
    #[must_use]
    pub fn is_table(&self) -> bool {
        self.path.ends_with("[]")
    }

    /// What the table is called, if it is one.
    #[must_use]
    pub fn table_name(&self) -> Option<String> {
        self.is_table().then(|| table_name(self.path))
    }
}

/// What the table at `path` is called: its path without brackets, and without what all of the report is in.
pub(super) fn table_name(path: &str) -> String {
    let path = path.replace("[]", "");
    path.split_once('.').map_or(path.as_str(), |(_, name)| name).into()
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
    fn rows_beyond_the_first_are_counted_and_no_rows_are_no_table() {
        let written = |rows: &[Made]| {
            let mut out = Vec::new();
            write_first(rows, 1, ["row", "rows"], &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };

        let (some, none) = (written(&ROWS), written(&[]));

        assert!(some.lines().count() == 3 && some.ends_with("\n… and 1 row more, which --json shows\n"), "{some}");
        assert_eq!(none, "");
    }

    #[test]
    fn description_of_a_column_is_what_it_holds() {
        let texts = texts::<Made>();

        let (key, heading, unit) = ("address".into(), "at", "hexadecimal text");
        assert_eq!(texts[0], ColumnText { key, heading, unit, meaning: "Where", is_part: false });
        assert_eq!(texts.len(), 4);
    }

    /// Times that make up the row, and others.
    struct Timed(Times, Distribution);

    impl ReportRow for Timed {
        const COLUMNS: &'static [Column<Self>] = &[
            times(figure::TIMES, "How many calls", |row| (&row.0).into()),
            distribution("wait", &[(Figure::P50, "half"), (Figure::Total, "")], "Waits", |row| (&row.1).into()),
        ];
    }

    fn timed() -> Timed {
        let times = Times { count: 1, total_ns: 7, max_ns: 7, ..Times::default() };
        Timed(times, Distribution { count: 2, total_ns: 5, p50_ns: 2, ..Distribution::default() })
    }

    #[test]
    fn json_has_figures_of_times_in_the_row_and_a_distribution_as_it_is() {
        let json = serde_json::to_value(Object::of(&timed())).unwrap();

        assert_eq!((&json["count"], &json["total_ns"], &json["max_ns"]), (&1.into(), &7.into(), &7.into()));
        assert_eq!(json["wait"], serde_json::to_value(timed().1).unwrap());
        assert_eq!(json.as_object().unwrap().len(), 5);
    }

    #[test]
    fn table_has_a_column_for_each_figure_with_a_heading_and_no_quantile_of_no_times() {
        let mut out = Vec::new();

        write(&[timed(), Timed(Times::default(), Distribution::default())], &mut out).unwrap();

        let lines = ["count  time  longest  half", "    1  7 ns     7 ns  2 ns", "    0  0 ns        -     -"];
        assert_eq!(String::from_utf8(out).unwrap().lines().collect::<Vec<_>>(), lines);
    }

    #[test]
    fn description_of_figures_has_their_keys() {
        let texts = texts::<Timed>();

        let printed: Vec<_> = texts.iter().map(|text| (&*text.key, text.heading, text.meaning)).collect();
        let expected = [
            ("count", "count", "How many calls"),
            ("total_ns", "time", "All together"),
            ("max_ns", "longest", "The longest"),
            ("histogram", "", "How many take how long"),
            ("wait", "", "Waits"),
            ("wait.p50_ns", "half", "Half of them take at most this"),
            ("wait.total_ns", "", "All together"),
        ];
        assert_eq!(printed, expected);
    }

    /// What may be there.
    struct Optional(Option<Made>);

    impl ReportRow for Optional {
        const COLUMNS: &'static [Column<Self>] = &[
            column("made", "made", Unit::Object, "An object", |row| {
                Value::or_absent(row.0.as_ref().map(Value::object))
            }),
            column("wait_ns", "", Unit::Ns, "How long", |row| row.0.as_ref().map(|made| made.wait_ns).into()),
        ];
    }

    #[test]
    fn json_has_no_key_for_what_is_absent_and_one_for_what_there_is_none_of() {
        let [there, absent] = [Optional(Some(Made { address: 16, wait_ns: 7, comm: None })), Optional(None)]
            .map(|row| serde_json::to_value(Object::of(&row)).unwrap());

        let made = serde_json::json!({ "address": "0x10", "wait_ns": 7, "comm": null });
        assert_eq!(there, serde_json::json!({ "made": made, "wait_ns": 7 }));
        assert_eq!(absent, serde_json::json!({ "wait_ns": null }));
    }
}
