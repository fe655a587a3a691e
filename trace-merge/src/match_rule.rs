//! Which events of two recordings belong together: rules such as `net:xmit before net:receive by seq`.

use clock_sync::convex_hull::{Pair, Point};
use std::collections::HashMap;
use std::str::FromStr;
use strata_recording::reader::Trace;
use strata_recording::reader::merge::Merge;
use strata_recording::schema::Value;
use thiserror::Error;

/// A rule that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "write EVENT before EVENT or EVENT after EVENT, then if need be: by FIELD[=FIELD][,…]; the first event is of the first \
     trace, as in 'net:send before net:receive by seq'"
)]
pub struct BadRule;

/// Whose event happens first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// The first recording's.
    Before,
    /// The second's.
    After,
}

/// Says that an event of one recording happens before one of the other, and which records of the two belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchRule {
    text: String,
    first: String,
    order: Order,
    second: String,
    /// Name in the first recording, and in the second.
    fields: Vec<(String, String)>,
}

impl FromStr for MatchRule {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<Self, BadRule> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (first, order, second, fields) = match words[..] {
            [first, order, second] => (first, order, second, ""),
            [first, order, second, "by", fields] => (first, order, second, fields),
            _ => return Err(BadRule),
        };
        let order = match order {
            "before" => Order::Before,
            "after" => Order::After,
            _ => return Err(BadRule),
        };
        let field = |names: &str| {
            let (first, second) = names.split_once('=').unwrap_or((names, names));
            (first.to_owned(), second.to_owned())
        };
        let fields: Vec<_> = fields.split(',').filter(|names| !names.is_empty()).map(field).collect();
        let nameless = fields.iter().any(|(first, second)| first.is_empty() || second.is_empty());
        if nameless || (words.len() == 5 && fields.is_empty()) {
            return Err(BadRule);
        }
        Ok(Self { text: text.into(), first: first.into(), order, second: second.into(), fields })
    }
}

/// Why a rule finds no pairs.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MatchError {
    /// A recording has no such record.
    #[error("rule '{rule}': the {which} trace has no record of {event}{}; see `strata report`",
        if *.by_fields { " with these fields" } else { "" })]
    NoRecord {
        /// The rule.
        rule: String,
        /// Which trace.
        which: &'static str,
        event: String,
        /// Whether the rule names fields.
        by_fields: bool,
    },
    /// Without fields records are matched in order, which needs as many of both.
    #[error(
        "rule '{rule}': {first} records in the first trace, {second} in the second; say by which fields they match"
    )]
    Counts {
        /// The rule.
        rule: String,
        /// Records in the first trace.
        first: usize,
        /// Records in the second.
        second: usize,
    },
    /// No record of one has its counterpart in the other.
    #[error("rule '{rule}': no two records match")]
    NoPairs {
        /// The rule.
        rule: String,
    },
}

/// Values of the fields by which records match.
type Key = Vec<KeyPart>;

/// The value of a field, whatever its width and signedness.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum KeyPart {
    Integer(i128),
    /// Its bits.
    Float(u64),
    Text(Vec<u8>),
    Array(Vec<KeyPart>),
}

impl From<Value<'_>> for KeyPart {
    fn from(value: Value<'_>) -> Self {
        match value {
            Value::Unsigned(value) => Self::Integer(value.into()),
            Value::Signed(value) => Self::Integer(value.into()),
            Value::Float(value) => Self::Float(value.to_bits()),
            Value::Text(text) => Self::Text(text.into()),
            Value::Array(elements) => Self::Array(elements.iter().map(Self::from).collect()),
        }
    }
}

impl MatchRule {
    /// The rule as it was written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The pairs of `first` and `second`, with the second's clock as the other one. Records with the same values of the
    /// fields match in their order, if both recordings have equally many of them; others are left out.
    ///
    /// # Errors
    /// When there are none.
    pub fn pairs(&self, first: &Trace, second: &Trace) -> Result<Vec<Pair>, MatchError> {
        let missing = |which, event: &str| MatchError::NoRecord {
            rule: self.text.clone(),
            which,
            event: event.into(),
            by_fields: !self.fields.is_empty(),
        };
        let firsts = times(first, &self.first, self.fields.iter().map(|(name, _)| name.as_str()));
        let mut seconds = times(second, &self.second, self.fields.iter().map(|(_, name)| name.as_str()));
        if firsts.is_empty() {
            return Err(missing("first", &self.first));
        }
        if seconds.is_empty() {
            return Err(missing("second", &self.second));
        }
        let mut pairs = Vec::new();
        for (key, firsts) in firsts {
            let Some(seconds) = seconds.remove(&key) else { continue };
            if firsts.len() != seconds.len() {
                if self.fields.is_empty() {
                    let (first, second) = (firsts.len(), seconds.len());
                    return Err(MatchError::Counts { rule: self.text.clone(), first, second });
                }
                continue;
            }
            pairs.extend(firsts.into_iter().zip(seconds).map(|(reference, other)| match self.order {
                Order::Before => Pair::ReferenceFirst(Point { other, reference }),
                Order::After => Pair::OtherFirst(Point { other, reference }),
            }));
        }
        if pairs.is_empty() {
            return Err(MatchError::NoPairs { rule: self.text.clone() });
        }
        Ok(pairs)
    }
}

/// Times of the records of `event`, in order, by the values of `fields`.
fn times<'f>(trace: &Trace, event: &str, fields: impl Iterator<Item = &'f str> + Clone) -> HashMap<Key, Vec<u64>> {
    let mut times: HashMap<Key, Vec<u64>> = HashMap::new();
    for merged in Merge::new(trace.layers(), 0).filter(|merged| merged.record.schema.name() == event) {
        let value = |name: &str| {
            let mut fields = merged.record.schema.fields(merged.record.payload);
            fields.find(|(field, _)| field.name == name).map(|(_, value)| KeyPart::from(value))
        };
        let key: Option<Key> = fields.clone().map(value).collect();
        if let Some(key) = key {
            times.entry(key).or_default().push(merged.record.time);
        }
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_as_they_are_written() {
        let rule: MatchRule = "net:send before net:receive by seq,port=dport".parse().unwrap();

        assert_eq!((rule.first.as_str(), rule.order, rule.second.as_str()), ("net:send", Order::Before, "net:receive"));
        assert_eq!(rule.fields, [("seq", "seq"), ("port", "dport")].map(|(a, b)| (a.to_owned(), b.to_owned())));
        assert!("a after b".parse::<MatchRule>().unwrap().fields.is_empty());
    }

    #[test]
    fn text_that_is_not_a_rule_is_refused_with_an_example() {
        for text in
            ["", "a", "a b", "a with b", "a before b by", "a before b by ,", "a before b by =x", "a before b on seq"]
        {
            let error = text.parse::<MatchRule>().unwrap_err().to_string();
            assert!(error.contains("write EVENT before EVENT") && error.contains("before net:receive"), "{error}");
        }
    }
}
