//! Filters of records: what has to hold of their fields. Triggers and listings share this grammar.
//!
//! ```text
//! filters = filter { " " ["&&"] filter }
//! filter  = FIELD ("==" | "=" | "!=" | "<=" | ">=" | "<" | ">") value
//! value   = NUMBER | FLOAT | ["-"] ERRNO | WORD | '"' TEXT '"'
//! ```
//!
//! All filters have to hold; `&&` needs no blanks, and blanks around a comparison mean nothing. Numbers are decimal or,
//! with `0x`, hexadecimal. Text may hold `*` and `?`; of a number that has a name ([`Named`]), it is compared with the
//! name.

use crate::event::named::Named;
use crate::names;
use shared_ring::event::{EventDescription, FieldDescription, FieldType};
use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;
use strata_recording::reader::StreamRecord;
use strata_recording::schema::{FloatText, PlacedField, Schema, Value};
use strata_recording::text::nearest::{nearest, similarity};
use thiserror::Error;
use wildmatch::WildMatch;

/// Longest expression, bytes.
pub const MAX_EXPRESSION: usize = 512;
/// The field of every record that says where it was made.
pub const CPU_FIELD: &str = "cpu";
/// Longest text of a field that is compared, bytes; what is behind it is left out.
const MAX_TEXT: usize = 256;
/// Most fields that an error names.
const MAX_FIELDS: usize = 24;

/// What joins filters, where it is written.
const AND: &str = "&&";

/// Why an expression is not a filter of the records that there are.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FilterError {
    /// It is empty or endless.
    #[error("a filter has 1 to {MAX_EXPRESSION} bytes, as in 'ret<0'")]
    Length,
    /// It has another form.
    #[error("'{text}' is not a filter: write FIELD==VALUE, or with !=, <, <=, > or >=, as in task=web*")]
    Filter {
        /// What was given.
        text: String,
    },
    /// `&&` without a filter on each side.
    #[error("'&&' needs a filter on both of its sides, as in 'id==1 && ret<0'")]
    And,
    /// Text that is compared by size.
    #[error("'{text}' compares sizes, and its value is not a number")]
    NotANumber {
        /// The filter.
        text: String,
    },
    /// Text that is compared with numbers that have no names.
    #[error("'{text}': field {field} of {of} is a number without names; write a number")]
    NoNames {
        /// The filter.
        text: String,
        /// Its field.
        field: String,
        /// What has the field.
        of: String,
    },
    /// A field that there is not.
    #[error("'{field}' is not a field of {of}{}; there are {}", suggestion(.nearest), those_there_are(.known))]
    Field {
        /// What was given.
        field: String,
        /// What has fields.
        of: String,
        /// The nearest names, best first; may be empty.
        nearest: Vec<String>,
        /// The fields that there are, the nearest first.
        known: Vec<String>,
    },
}

fn suggestion(nearest: &[String]) -> String {
    if nearest.is_empty() { String::new() } else { format!(" (nearest: {})", nearest.join(", ")) }
}

fn those_there_are(known: &[String]) -> String {
    let more = known.len().saturating_sub(MAX_FIELDS);
    let some = known.iter().take(MAX_FIELDS).map(String::as_str).collect::<Vec<_>>().join(", ");
    match (known, more) {
        ([], _) => "none".into(),
        (_, 0) => some,
        _ => format!("{some} and {more} more"),
    }
}

/// What has to hold of a field.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    /// As it was given.
    text: String,
    /// Name of the field.
    pub field: String,
    comparison: Comparison,
    operand: Operand,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    AtMost,
    More,
    AtLeast,
}

#[derive(Clone, Debug, PartialEq)]
enum Operand {
    /// A number, and the same as text: a task may be called so.
    Number(i128, WildMatch),
    /// A number with a point or an exponent, likewise.
    Float(f64, WildMatch),
    Text(WildMatch),
}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FieldValue<'v> {
    /// An integer.
    Number(i128),
    /// Floating point.
    Float(f64),
    /// Text, which a guest may have chosen.
    Text(&'v str),
}

impl Filter {
    /// Whether it holds of `value`.
    #[must_use]
    pub fn holds(&self, value: FieldValue<'_>) -> bool {
        let order = match (&self.operand, value) {
            (Operand::Number(wanted, _), FieldValue::Number(number)) => Some(number.cmp(wanted)),
            (Operand::Number(wanted, _), FieldValue::Float(number)) => number.partial_cmp(&as_float(*wanted)),
            (Operand::Float(wanted, _), FieldValue::Number(number)) => as_float(number).partial_cmp(wanted),
            (Operand::Float(wanted, _), FieldValue::Float(number)) => number.partial_cmp(wanted),
            (Operand::Text(_), _) | (_, FieldValue::Text(_)) => None,
        };
        let is_equal = match (&self.operand, value) {
            (Operand::Number(_, text) | Operand::Float(_, text) | Operand::Text(text), FieldValue::Text(value)) => {
                text.matches(value)
            }
            _ => order.is_some_and(Ordering::is_eq),
        };
        match self.comparison {
            Comparison::Equal => is_equal,
            Comparison::NotEqual => !is_equal,
            Comparison::Less => order.is_some_and(Ordering::is_lt),
            Comparison::AtMost => order.is_some_and(Ordering::is_le),
            Comparison::More => order.is_some_and(Ordering::is_gt),
            Comparison::AtLeast => order.is_some_and(Ordering::is_ge),
        }
    }

    /// What the field is compared with, without quotes.
    #[must_use]
    pub fn wanted(&self) -> &str {
        let behind_field = self.text.get(self.field.len()..).unwrap_or_default();
        behind_field.trim_start_matches(['=', '!', '<', '>']).trim_matches('"')
    }

    const fn is_of_text(&self) -> bool {
        matches!(self.operand, Operand::Text(_))
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(word: &str) -> Result<Self, FilterError> {
        let wrong = || FilterError::Filter { text: word.into() };
        let is_of_name = |character: char| character.is_ascii_alphanumeric() || character == '_';
        let field = &word[..word.find(|character| !is_of_name(character)).unwrap_or(word.len())];
        let rest = &word[field.len()..];
        // The longer ones first: one begins another.
        let comparisons = [
            ("==", Comparison::Equal),
            ("!=", Comparison::NotEqual),
            ("<=", Comparison::AtMost),
            (">=", Comparison::AtLeast),
            ("=", Comparison::Equal),
            ("<", Comparison::Less),
            (">", Comparison::More),
        ];
        let found = comparisons.into_iter().find_map(|(sign, of)| Some((of, rest.strip_prefix(sign)?)));
        let (comparison, value) =
            found.filter(|(_, value)| !field.is_empty() && !value.is_empty()).ok_or_else(wrong)?;
        let operand = match value.strip_prefix('"') {
            Some(quoted) => {
                let text = quoted.strip_suffix('"').filter(|text| !text.contains('"')).ok_or_else(wrong)?;
                Operand::Text(WildMatch::new(text))
            }
            None if value.contains(['"', '<', '>', '=', '!']) => return Err(wrong()),
            None => match (parse_number(value), parse_float(value)) {
                (Some(number), _) => Operand::Number(number, WildMatch::new(value)),
                (None, Some(number)) => Operand::Float(number, WildMatch::new(value)),
                (None, None) => Operand::Text(WildMatch::new(value)),
            },
        };
        let is_of_size = !matches!(comparison, Comparison::Equal | Comparison::NotEqual);
        if is_of_size && matches!(operand, Operand::Text(_)) {
            return Err(FilterError::NotANumber { text: word.into() });
        }
        Ok(Self { text: word.into(), field: field.into(), comparison, operand })
    }
}

fn parse_number(text: &str) -> Option<i128> {
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
    let number = match digits.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?.into(),
        None => digits.parse::<u64>().ok().map(i128::from).or_else(|| names::errno::number(digits).map(i128::from))?,
    };
    Some(sign * number)
}

/// A number with a point or an exponent. Words for what is no number are text.
fn parse_float(text: &str) -> Option<f64> {
    text.ends_with(|last: char| last.is_ascii_digit()).then(|| text.parse().ok())?
}

/// The nearest number of floating point.
#[allow(clippy::cast_precision_loss, reason = "the nearest one is asked for")]
const fn as_float(number: i128) -> f64 {
    number as f64
}

/// Filters that all have to hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filters(Vec<Filter>);

impl Filters {
    /// The filters that `words` are, as [`words`] tells them; may be none.
    ///
    /// # Errors
    /// When one is not a filter.
    pub fn of_words(words: impl Iterator<Item = String>) -> Result<Self, FilterError> {
        let (mut filters, mut is_joined) = (Vec::new(), false);
        for word in words {
            if word == AND {
                if is_joined || filters.is_empty() {
                    return Err(FilterError::And);
                }
                is_joined = true;
            } else {
                filters.push(word.parse()?);
                is_joined = false;
            }
        }
        if is_joined { Err(FilterError::And) } else { Ok(Self(filters)) }
    }

    /// Only `filter`.
    #[must_use]
    pub fn only(filter: Filter) -> Self {
        Self(vec![filter])
    }

    /// Requires `filter`, too.
    pub fn push(&mut self, filter: Filter) {
        self.0.push(filter);
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The filters.
    pub fn iter(&self) -> std::slice::Iter<'_, Filter> {
        self.0.iter()
    }

    /// Checks that each names one of the fields `known` of `of`.
    ///
    /// # Errors
    /// When one names another.
    pub fn check_fields<'k>(&self, of: &str, known: impl IntoIterator<Item = &'k str>) -> Result<(), FilterError> {
        let mut known: Vec<&str> = known.into_iter().collect();
        known.sort_unstable();
        known.dedup();
        let Some(Filter { field, .. }) = self.iter().find(|filter| !known.contains(&filter.field.as_str())) else {
            return Ok(());
        };
        let nearest = nearest(field, known.iter().copied());
        known.sort_by(|left, right| similarity(field, right).total_cmp(&similarity(field, left)));
        let known = known.into_iter().map(Into::into).collect();
        Err(FilterError::Field { field: field.clone(), of: of.into(), nearest, known })
    }

    /// Checks them against the `events` that they are to filter, in words `of`.
    ///
    /// # Errors
    /// When one names a field that none of the events has, or compares text with numbers that have no names.
    pub fn check<'e, E>(&self, of: &str, events: E) -> Result<(), FilterError>
    where
        E: IntoIterator<Item = &'e EventDescription> + Clone,
    {
        let fields = events.clone().into_iter().flat_map(|event| &event.fields).map(|field| field.name.as_str());
        self.check_fields(of, fields.chain([CPU_FIELD]))?;
        for filter in self.iter().filter(|filter| filter.is_of_text()) {
            let mut having = events.clone().into_iter().filter(|event| has_field(event, &filter.field)).peekable();
            if having.peek().is_some() && having.all(|event| is_nameless_number(event, &filter.field)) {
                let (text, field) = (filter.text.clone(), filter.field.clone());
                return Err(FilterError::NoNames { text, field, of: of.into() });
            }
        }
        Ok(())
    }

    /// How they are judged for records of `schema`; `None` where such a record lacks one of the fields, so that they
    /// never hold.
    #[must_use]
    pub fn plan(&self, schema: &Schema) -> Option<FilterPlan> {
        self.iter().map(|filter| PlannedFilter::new(filter, schema)).collect::<Option<_>>().map(FilterPlan)
    }
}

fn has_field(event: &EventDescription, name: &str) -> bool {
    event.fields.iter().any(|field| field.name == name)
}

/// Whether the field `name` of `event` holds numbers, and they have no names.
fn is_nameless_number(event: &EventDescription, name: &str) -> bool {
    let position = event.fields.iter().position(|field| field.name == name);
    let is_number = |field: &FieldDescription| field.ty == FieldType::F64 || field.ty.integer().is_some();
    let has_number = |position: &usize| event.fields.get(*position).is_some_and(is_number);
    position.filter(has_number).is_some_and(|position| name_of(&Schema::new(event.clone()), position).is_none())
}

/// The names of the numbers of the field of `schema` at `position`, but for errors, which filters have as numbers.
fn name_of(schema: &Schema, position: usize) -> Option<Named> {
    Named::all(schema).into_iter().find(|named| named.position == position && !named.is_result())
}

impl FromStr for Filters {
    type Err = FilterError;

    /// The filters that `text` describes: at least one.
    fn from_str(text: &str) -> Result<Self, FilterError> {
        if text.trim().is_empty() || text.len() > MAX_EXPRESSION {
            return Err(FilterError::Length);
        }
        Self::of_words(words(text).into_iter())
    }
}

impl fmt::Display for Filters {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, filter) in self.iter().enumerate() {
            formatter.write_str(if place == 0 { "" } else { " " })?;
            write!(formatter, "{filter}")?;
        }
        Ok(())
    }
}

/// The words of `text`, which blanks outside of quotes separate where no comparison is beside them; `&&` is a word.
#[must_use]
pub fn words(text: &str) -> Vec<String> {
    let is_comparison = |character: char| "=!<>".contains(character);
    let (mut words, mut word, mut is_quoted, mut is_apart) = (Vec::new(), String::new(), false, false);
    for character in text.chars() {
        if character.is_whitespace() && !is_quoted {
            is_apart = true;
            continue;
        }
        if std::mem::take(&mut is_apart) && !is_comparison(character) && !word.ends_with(is_comparison) {
            words.push(std::mem::take(&mut word));
        }
        is_quoted ^= character == '"';
        word.push(character);
        if !is_quoted && word.ends_with(AND) {
            word.truncate(word.len() - AND.len());
            words.extend([std::mem::take(&mut word), AND.into()]);
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

/// How filters are judged for the records of an event type: where the fields lie is found out once.
#[derive(Clone, Debug)]
pub struct FilterPlan(Vec<PlannedFilter>);

#[derive(Clone, Debug)]
struct PlannedFilter {
    filter: Filter,
    place: Place,
    /// The names of the field's numbers, where it has them and the filter asks for one.
    named: Option<Named>,
}

/// Where a value is.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// It is the number of the stream.
    Cpu,
    /// At the same place in all payloads.
    Placed(PlacedField),
    /// The field of this number among those that are not.
    Behind(usize),
}

impl FilterPlan {
    /// Whether all filters hold of `record`, which the CPU, vCPU or thread `cpu` made. A field that the payload ends
    /// before satisfies none.
    #[inline]
    #[must_use]
    pub fn holds(&self, cpu: u32, record: &StreamRecord<'_>) -> bool {
        self.0.iter().all(|planned| planned.holds(cpu, record))
    }

    /// What the first filter compares of `record`, which `cpu` made: its text, the name of its number where the filter
    /// asks for a name, or the number in decimal.
    #[must_use]
    pub fn compared(&self, cpu: u32, record: &StreamRecord<'_>) -> Option<String> {
        self.0.first()?.compared(cpu, record)
    }
}

impl PlannedFilter {
    fn new(filter: &Filter, schema: &Schema) -> Option<Self> {
        let position = schema.description().fields.iter().position(|field| field.name == filter.field);
        let placed = schema.placed_fields();
        let place = match position {
            None if filter.field == CPU_FIELD => Place::Cpu,
            None => return None,
            Some(position) => match placed.get(position) {
                Some(&field) => Place::Placed(field),
                None => Place::Behind(position - placed.len()),
            },
        };
        let named = position.filter(|_| filter.is_of_text()).and_then(|position| name_of(schema, position));
        Some(Self { filter: filter.clone(), place, named })
    }

    #[inline]
    fn value<'r>(&self, cpu: u32, record: &StreamRecord<'r>) -> Option<Value<'r>> {
        match self.place {
            Place::Cpu => Some(Value::Unsigned(cpu.into())),
            Place::Placed(field) => field.read(record.payload),
            Place::Behind(number) => record.schema.values_behind_placed(record.payload).nth(number),
        }
    }

    #[inline]
    fn holds(&self, cpu: u32, record: &StreamRecord<'_>) -> bool {
        match self.value(cpu, record) {
            Some(Value::Unsigned(number)) => self.holds_of_number(number.into(), record.payload),
            Some(Value::Signed(number)) => self.holds_of_number(number.into(), record.payload),
            Some(Value::Float(number)) => self.filter.holds(FieldValue::Float(number)),
            Some(Value::Text(text)) => self.filter.holds(FieldValue::Text(&compared_text(text))),
            Some(Value::Array(_)) | None => false,
        }
    }

    fn compared(&self, cpu: u32, record: &StreamRecord<'_>) -> Option<String> {
        let number: i128 = match self.value(cpu, record)? {
            Value::Unsigned(number) => number.into(),
            Value::Signed(number) => number.into(),
            Value::Float(number) => return Some(FloatText(number).to_string()),
            Value::Text(text) => return Some(compared_text(text).into_owned()),
            Value::Array(_) => return None,
        };
        let named = self.named.as_ref().zip(i64::try_from(number).ok());
        let name = named.and_then(|(named, number)| named.name(number, record.payload));
        Some(name.map_or_else(|| number.to_string(), Into::into))
    }

    #[inline]
    fn holds_of_number(&self, number: i128, payload: &[u8]) -> bool {
        let named = self.named.as_ref().zip(i64::try_from(number).ok());
        match named.and_then(|(named, number)| named.name(number, payload)) {
            Some(name) => self.filter.holds(FieldValue::Text(&name)),
            None => self.filter.holds(FieldValue::Number(number)),
        }
    }
}

/// What filters see of the text of a field.
fn compared_text(text: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(text.get(..MAX_TEXT).unwrap_or(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Filters {
        text.parse().unwrap()
    }

    fn refusal(text: &str) -> String {
        text.parse::<Filters>().unwrap_err().to_string()
    }

    fn event(name: &str, fields: &[(&str, FieldType)]) -> EventDescription {
        let field = |&(name, ty): &(&str, FieldType)| FieldDescription { name: name.into(), ty, hex: false };
        EventDescription { id: 1, class: 0, name: name.into(), fields: fields.iter().map(field).collect() }
    }

    /// Whether the filter `text` holds of a record of `event` with `payload`, which CPU 3 made.
    fn holds(text: &str, event: EventDescription, payload: &[u8]) -> bool {
        let schema = Schema::new(event);
        let record = StreamRecord { time: 0, schema: &schema, payload, packet: 0, after_gap: false };
        parse(text).plan(&schema).is_some_and(|plan| plan.holds(3, &record))
    }

    #[test]
    fn filters_compare_numbers_and_match_text() {
        let holds = |filter: &str, value| filter.parse::<Filter>().unwrap().holds(value);
        let (number, text) = (FieldValue::Number, FieldValue::Text);

        assert!(holds("a==5", number(5)) && !holds("a==5", number(6)) && holds("a!=5", number(6)));
        assert!(holds("a<5", number(4)) && !holds("a<5", number(5)) && holds("a<=5", number(5)));
        assert!(holds("a>5", number(6)) && !holds("a>5", number(5)) && holds("a>=5", number(5)));
        assert!(holds("a=-1", number(-1)) && holds("a=0xff", number(255)) && holds("a=7", text("7")));
        assert!(holds("a=web*", text("web1")) && !holds("a=web*", text("db")) && holds("a!=web*", text("db")));
        assert!(holds("a==\"5\"", text("5")) && !holds("a==\"5\"", number(5)) && !holds("a>5", text("6")));
    }

    #[test]
    fn floats_compare_with_integers_and_with_one_another() {
        let holds = |filter: &str, value| filter.parse::<Filter>().unwrap().holds(value);
        let (number, float, text) = (FieldValue::Number, FieldValue::Float, FieldValue::Text);

        assert!(holds("a>0.5", float(0.75)) && !holds("a>0.5", float(0.5)) && holds("a==-1e3", float(-1000.0)));
        assert!(holds("a>=2", float(2.5)) && holds("a<2.5", number(2)) && holds("a==2.0", number(2)));
        assert!(holds("a!=1.5", float(f64::NAN)) && !holds("a<1.5", float(f64::NAN)) && holds("a=1.5", text("1.5")));
        assert!(holds("a=inf", text("inf")) && !holds("a=inf", float(f64::INFINITY)));
    }

    #[test]
    fn errors_of_the_kernel_are_numbers_with_names() {
        let holds = |filter: &str, value| filter.parse::<Filter>().unwrap().holds(value);

        assert!(holds("ret==-ENOENT", FieldValue::Number(-2)) && !holds("ret==-ENOENT", FieldValue::Number(2)));
        assert!(holds("ret<=-EPERM", FieldValue::Number(-1)) && holds("comm==EIO", FieldValue::Text("EIO")));
    }

    #[test]
    fn filters_stand_side_by_side_or_are_joined() {
        let count = |text: &str| parse(text).iter().count();

        assert_eq!([count("a==1"), count("a==1 b<2"), count("a==1 && b<2"), count("a==1&&b<2 c>3")], [1, 2, 2, 3]);
        assert_eq!(parse("a==1  b<2&&c=\"x && y\"").to_string(), "a==1 b<2 c=\"x && y\"");
        for text in ["&&", "a==1 &&", "&& a==1", "a==1 && && b==2", "a==1 &&&& b==2"] {
            assert!(refusal(text).contains("on both of its sides"), "{text}: {}", refusal(text));
        }
    }

    #[test]
    fn blanks_around_a_comparison_mean_nothing() {
        assert_eq!(parse("a == 1 b< 2 && c =\"x = y\" d !=3").to_string(), "a==1 b<2 c=\"x = y\" d!=3");
        assert_eq!(words("wakeup > 5ms task == web"), ["wakeup>5ms", "task==web"]);
        assert_eq!(parse("task=\"=\" a==1").iter().count(), 2);
    }

    #[test]
    fn blanks_in_quotes_belong_to_the_text() {
        let filters = parse("what==\"guest panicked\"");

        assert!(filters.iter().all(|filter| filter.holds(FieldValue::Text("guest panicked"))));
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        for text in ["task", "=5", "task=", "task==\"web", "task=we\"b", "ta-sk=5", "task=>5", "a=b=c", "a=1 || b=2"] {
            assert!(refusal(text).contains("is not a filter"), "{text}");
        }
        assert!(refusal("task>web").contains("is not a number"));
        assert!(refusal(" ").contains("1 to 512 bytes") && refusal(&"x".repeat(513)).contains("1 to 512 bytes"));
    }

    #[test]
    fn fields_lie_before_and_behind_one_that_varies() {
        let event = || event("a:b", &[("a", FieldType::I32), ("text", FieldType::String), ("b", FieldType::U8)]);
        let payload = [&(-7_i32).to_le_bytes()[..], b"web\0\x09"].concat();

        for text in ["a==-7", "text=w*", "b==9", "cpu==3", "a<0 && text==web && b>8 && cpu!=0"] {
            assert!(holds(text, event(), &payload), "{text}");
        }
        for text in ["a>0", "text=db", "b==8", "cpu==1", "a<0 && b==8", "none==1"] {
            assert!(!holds(text, event(), &payload), "{text}");
        }
        assert!(!holds("b!=8", event(), &payload[..8]), "the payload ends before the field");
    }

    #[test]
    fn event_that_has_a_field_called_cpu_is_judged_by_it() {
        let event = || event("a:b", &[("cpu", FieldType::U32)]);

        assert!(holds("cpu==1", event(), &1_u32.to_le_bytes()) && !holds("cpu==3", event(), &1_u32.to_le_bytes()));
    }

    #[test]
    fn numbers_with_names_are_compared_with_the_names() {
        let event = || event("kvm:kvm_exit", &[("exit_reason", FieldType::U32), ("isa", FieldType::U32)]);
        let of_svm = |reason: u32| [reason.to_le_bytes(), 2_u32.to_le_bytes()].concat();

        assert!(
            holds("exit_reason==interrupt", event(), &of_svm(96)) && holds("exit_reason==96", event(), &of_svm(96))
        );
        assert!(holds("exit_reason=int*", event(), &of_svm(96)) && holds("exit_reason!=msr", event(), &of_svm(96)));
        assert!(
            !holds("exit_reason!=interrupt", event(), &of_svm(96)) && !holds("exit_reason=*", event(), &of_svm(9999))
        );
    }

    #[test]
    fn field_that_there_is_not_is_answered_with_those_there_are() {
        let events = [event("a:b", &[("ret", FieldType::I64), ("id", FieldType::I64)])];
        let check = |text: &str| parse(text).check("a:b", &events).map_err(|error| error.to_string());

        assert_eq!(check("ret<0 && id==1 && cpu==0"), Ok(()));
        assert_eq!(check("rett<0").unwrap_err(), "'rett' is not a field of a:b (nearest: ret); there are ret, cpu, id");
        let many: Vec<String> = (0..30).map(|number| format!("field{number}")).collect();
        let printed = parse("x==1").check_fields("many", many.iter().map(String::as_str)).unwrap_err().to_string();
        assert!(printed.ends_with(" and 6 more"), "{printed}");
    }

    #[test]
    fn text_is_not_compared_with_numbers_that_have_no_names() {
        let events = [
            event("raw_syscalls:sys_exit", &[("id", FieldType::I64), ("ret", FieldType::I64)]),
            event("a:b", &[("name", FieldType::String), ("share", FieldType::F64)]),
        ];
        let check = |text: &str| parse(text).check("all", &events).map_err(|error| error.to_string());

        assert_eq!([check("id==write"), check("name==x"), check("ret==-EIO")], [Ok(()), Ok(()), Ok(())]);
        assert!(
            check("ret==EBAD1").unwrap_err().starts_with("'ret==EBAD1': field ret of all is a number without names")
        );
        assert!(check("share==NaN").unwrap_err().starts_with("'share==NaN': field share of all is a number without"));
    }
}
