//! Expressions of triggers: what is watched for, and in which records. Pure: text in, a [`Trigger`] or an error out.
//!
//! ```text
//! trigger   = condition { " " filter }
//! condition = ("steal" | "wakeup" | "exit" [":" REASON] | "disk") ">" time
//!           | "event:" LAYER ":" GROUP ":" EVENT
//!           | "guest-hang=" time | "host-load>" percent ["%"] | "guest-panic" | "oom"
//! filter    = FIELD ("==" | "=" | "!=" | "<=" | ">=" | "<" | ">") value
//! time      = NUMBER ("ns" | "us" | "µs" | "ms" | "s")
//! value     = NUMBER | WORD | '"' TEXT '"'
//! ```
//!
//! `REASON`, `GROUP`, `EVENT` and text values may hold `*` and `?`. Numbers are decimal or, with `0x`, hexadecimal.

use crate::session::selection::Selection;
use shared_ring::event::EventDescription;
use std::fmt;
use strata_analysis::event::name::SWITCH;
use strata_recording::layer::{LayerKind, UnknownLayer};
use strata_recording::nearest::nearest;
use thiserror::Error;
use wildmatch::WildMatch;

/// Longest expression, bytes.
pub const MAX_EXPRESSION: usize = 512;
/// Longest time that a condition can be about, ns: an hour.
const MAX_TIME_NS: u64 = 3_600_000_000_000;

/// What begins an expression, for messages.
const CONDITIONS: [&str; 9] =
    ["steal", "wakeup", "exit", "disk", "event", "guest-hang", "host-load", "guest-panic", "oom"];
/// The field of every record that says where it was made.
pub const CPU_FIELD: &str = "cpu";

/// Why an expression is no trigger.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TriggerError {
    /// It is empty or endless.
    #[error("a trigger has 1 to {MAX_EXPRESSION} bytes, as in 'steal>1ms'")]
    Length,
    /// It begins with something else.
    #[error("'{word}' is nothing to trigger on{}; there are {}", suggestion(.nearest), CONDITIONS.join(", "))]
    Condition {
        /// What it begins with.
        word: String,
        /// The nearest names, best first; may be empty.
        nearest: Vec<String>,
    },
    /// A condition on a time without one.
    #[error("'{condition}' needs a time: write '{condition}>5ms', with ns, us, ms or s")]
    NoTime {
        /// The condition.
        condition: String,
    },
    /// A time that is none, or too long.
    #[error("'{text}' is not a time from 1ns to 3600s: write a number with ns, us, ms or s, as in 5ms")]
    Time {
        /// What was given.
        text: String,
    },
    /// A share that is none, or that is never exceeded.
    #[error("'{text}' is not a share of a second: write host-load>80%, from 0% to 99%")]
    Share {
        /// What was given.
        text: String,
    },
    /// The host does not tell its load.
    #[error(
        "the host does not tell its load, which host-load needs: its kernel has no /proc/pressure/cpu \
         (CONFIG_PSI=y, and no psi=0 on its command line)"
    )]
    NoHostLoad,
    /// A condition with something behind it that does not belong there.
    #[error("'{text}' is too much behind '{condition}'")]
    Trailing {
        /// The condition.
        condition: String,
        /// What follows it.
        text: String,
    },
    /// An event without its layer, group or name.
    #[error(
        "'{text}' is not an event: write event:LAYER:GROUP:EVENT, as in event:guest-kernel:sched:sched_process_exit"
    )]
    Event {
        /// What was given.
        text: String,
    },
    /// A layer that does not exist.
    #[error("'{layer}' is not a layer; {unknown}")]
    Layer {
        /// What was given.
        layer: String,
        /// The layers that there are.
        unknown: UnknownLayer,
    },
    /// Applications are not recorded.
    #[error("'{text}' is about applications, which --events leaves out: add guest-user:* to it")]
    Applications {
        /// What was given.
        text: String,
    },
    /// A filter that is none.
    #[error("'{text}' is not a filter: write FIELD==VALUE, or with !=, <, <=, > or >=, as in task=web*")]
    Filter {
        /// What was given.
        text: String,
    },
    /// Text that is compared by size.
    #[error("'{text}' compares sizes, and its value is not a number")]
    NotANumber {
        /// The filter.
        text: String,
    },
    /// A field that the condition does not have.
    #[error("'{field}' is not a field of {of}{}; there are {}", suggestion(.nearest), those_there_are(.known))]
    Field {
        /// What was given.
        field: String,
        /// What has fields.
        of: String,
        /// The nearest names, best first; may be empty.
        nearest: Vec<String>,
        /// The fields that there are.
        known: Vec<String>,
    },
    /// An event that no layer has.
    #[error(
        "no event that is recorded of {layer} is called '{name}'{}; record it with --events, `strata events --list {layer}` lists \
         them",
        suggestion(.nearest)
    )]
    UnknownEvent {
        /// The layer.
        layer: LayerKind,
        /// What was given.
        name: String,
        /// The nearest names, best first; may be empty.
        nearest: Vec<String>,
    },
}

fn suggestion(nearest: &[String]) -> String {
    if nearest.is_empty() { String::new() } else { format!(" (nearest: {})", nearest.join(", ")) }
}

fn those_there_are(known: &[String]) -> String {
    if known.is_empty() { "none".into() } else { known.join(", ") }
}

/// What is watched for.
#[derive(Clone, Debug, PartialEq)]
pub struct Trigger {
    /// As it was given.
    text: String,
    /// What has to happen.
    pub condition: Condition,
    /// What has to hold of it, too.
    pub filters: Vec<Filter>,
}

/// What has to happen.
#[derive(Clone, Debug, PartialEq)]
pub enum Condition {
    /// Something takes longer than a time.
    Longer {
        /// What.
        what: Measure,
        /// The time, ns.
        than_ns: u64,
    },
    /// A vCPU runs, and its guest's kernel makes no record there.
    Hang {
        /// For longer than this, ns.
        than_ns: u64,
    },
    /// The host is overloaded.
    HostLoad {
        /// Tasks of it had to wait for a CPU in more than so much of a second, per cent.
        than_percent: u32,
    },
    /// A record is made.
    Event {
        /// Of this layer.
        layer: LayerKind,
        /// Of an event of such a name.
        name: WildMatch,
    },
}

/// What is timed.
#[derive(Clone, Debug, PartialEq)]
pub enum Measure {
    /// A vCPU is to run, and the host runs something else.
    Steal,
    /// A task of the guest is woken, until it runs.
    Wakeup,
    /// A vCPU leaves the guest for such a reason, until it enters again; for any but a halt where there is none.
    Exit(Option<WildMatch>),
    /// A request to a disk, of the guest's kernel or in the VMM.
    Disk,
}

impl Measure {
    /// The fields that filters can name.
    const fn fields(&self) -> &'static [&'static str] {
        match self {
            Self::Steal | Self::Exit(_) => &["vcpu"],
            Self::Wakeup => &["task", "tid", CPU_FIELD],
            Self::Disk => &["sector"],
        }
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Steal => "steal",
            Self::Wakeup => "wakeup",
            Self::Exit(_) => "exit",
            Self::Disk => "disk",
        }
    }
}

/// What has to hold of a field.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
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
    Text(WildMatch),
}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldValue<'v> {
    /// A number.
    Number(i128),
    /// Text, which a guest may have chosen.
    Text(&'v str),
}

impl Filter {
    /// Whether it holds of `value`.
    #[must_use]
    pub fn holds(&self, value: FieldValue<'_>) -> bool {
        let is_equal = match (&self.operand, value) {
            (Operand::Number(wanted, _), FieldValue::Number(number)) => *wanted == number,
            (Operand::Number(_, text) | Operand::Text(text), FieldValue::Text(value)) => text.matches(value),
            (Operand::Text(_), FieldValue::Number(_)) => false,
        };
        let order = match (&self.operand, value) {
            (Operand::Number(wanted, _), FieldValue::Number(number)) => Some(number.cmp(wanted)),
            _ => None,
        };
        match self.comparison {
            Comparison::Equal => is_equal,
            Comparison::NotEqual => !is_equal,
            Comparison::Less => order.is_some_and(std::cmp::Ordering::is_lt),
            Comparison::AtMost => order.is_some_and(std::cmp::Ordering::is_le),
            Comparison::More => order.is_some_and(std::cmp::Ordering::is_gt),
            Comparison::AtLeast => order.is_some_and(std::cmp::Ordering::is_ge),
        }
    }
}

impl Trigger {
    /// The trigger that `text` describes.
    ///
    /// # Errors
    /// What is wrong with it, and what to write instead.
    pub fn parse(text: &str) -> Result<Self, TriggerError> {
        let text = text.trim();
        if text.is_empty() || text.len() > MAX_EXPRESSION {
            return Err(TriggerError::Length);
        }
        let mut words = words(text).into_iter();
        let condition = words.next().map(|word| parse_condition(&word)).ok_or(TriggerError::Length)??;
        let mut filters: Vec<Filter> = words.map(|word| parse_filter(&word)).collect::<Result<_, _>>()?;
        let condition = match condition {
            Parsed::Condition(condition) => condition,
            Parsed::Panic => {
                filters.push(Filter {
                    field: "what".into(),
                    comparison: Comparison::Equal,
                    operand: Operand::Text(WildMatch::new("guest_panicked")),
                });
                Condition::Event { layer: LayerKind::Vmm, name: WildMatch::new("vmm:control") }
            }
        };
        let trigger = Self { text: text.into(), condition, filters };
        match &trigger.condition {
            Condition::Longer { what, .. } => {
                trigger.check_fields(what.name(), &mut what.fields().iter().copied())?;
            }
            Condition::Hang { .. } => trigger.check_fields("guest-hang", &mut ["vcpu"].into_iter())?,
            Condition::HostLoad { .. } => trigger.check_fields("host-load", &mut std::iter::empty())?,
            Condition::Event { .. } => {}
        }
        Ok(trigger)
    }

    /// Checks that applications are recorded, `selection` being what is, where it is about them. Their events are not
    /// known beforehand.
    ///
    /// # Errors
    /// When they are not.
    pub fn check_applications(&self, selection: &Selection) -> Result<(), TriggerError> {
        let is_about_them = matches!(self.condition, Condition::Event { layer: LayerKind::GuestUser, .. });
        if is_about_them && !selection.includes_applications() {
            return Err(TriggerError::Applications { text: self.text.clone() });
        }
        Ok(())
    }

    /// Checks it against the events of a layer that are `known`, where it is about that layer.
    ///
    /// # Errors
    /// When it names an event or a field that there is not.
    pub fn check(&self, of: LayerKind, known: &[EventDescription]) -> Result<(), TriggerError> {
        let needed = match &self.condition {
            Condition::Event { layer, name } => (*layer, name.clone()),
            Condition::Longer { what: Measure::Steal, .. } => (LayerKind::HostKernel, WildMatch::new(SWITCH)),
            Condition::Longer { what: Measure::Wakeup, .. } => (LayerKind::GuestKernel, WildMatch::new(SWITCH)),
            Condition::Hang { .. } if of == LayerKind::HostKernel => (of, WildMatch::new(SWITCH)),
            Condition::Hang { .. } => (LayerKind::GuestKernel, WildMatch::new(SWITCH)),
            // Of several layers.
            Condition::Longer { what: Measure::Exit(_) | Measure::Disk, .. } => return Ok(()),
            // Of none.
            Condition::HostLoad { .. } => return Ok(()),
        };
        let (layer, name) = &needed;
        if *layer != of {
            return Ok(());
        }
        let matching: Vec<&EventDescription> = known.iter().filter(|event| name.matches(&event.name)).collect();
        if matching.is_empty() {
            let wanted = name.to_string();
            let nearest = nearest(&wanted, known.iter().map(|event| event.name.as_str()));
            return Err(TriggerError::UnknownEvent { layer: of, name: wanted, nearest });
        }
        if matches!(self.condition, Condition::Longer { .. } | Condition::Hang { .. }) {
            return Ok(());
        }
        let fields = matching.iter().flat_map(|event| &event.fields).map(|field| field.name.as_str());
        self.check_fields(&name.to_string(), &mut fields.chain([CPU_FIELD]))
    }

    fn check_fields(&self, of: &str, known: &mut dyn Iterator<Item = &str>) -> Result<(), TriggerError> {
        let mut known: Vec<&str> = known.collect();
        known.sort_unstable();
        known.dedup();
        match self.filters.iter().find(|filter| !known.contains(&filter.field.as_str())) {
            None => Ok(()),
            Some(Filter { field, .. }) => Err(TriggerError::Field {
                field: field.clone(),
                of: of.into(),
                nearest: nearest(field, known.iter().copied()),
                known: known.into_iter().map(Into::into).collect(),
            }),
        }
    }
}

impl fmt::Display for Trigger {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

/// The words of `text`, which blanks outside of quotes separate.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut is_quoted) = (Vec::new(), String::new(), false);
    for character in text.chars() {
        is_quoted ^= character == '"';
        if character.is_whitespace() && !is_quoted {
            words.push(std::mem::take(&mut word));
        } else {
            word.push(character);
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

/// A condition as it is written.
enum Parsed {
    Condition(Condition),
    Panic,
}

fn parse_condition(word: &str) -> Result<Parsed, TriggerError> {
    let head = word.split(['>', ':', '<', '=']).next().unwrap_or_default();
    let rest = &word[head.len()..];
    let longer = |what: Measure, rest: &str| {
        let no_time = || TriggerError::NoTime { condition: head.into() };
        let than_ns = parse_time(rest.strip_prefix('>').ok_or_else(no_time)?)?;
        Ok(Parsed::Condition(Condition::Longer { what, than_ns }))
    };
    let alone = |parsed: Parsed| match rest {
        "" => Ok(parsed),
        text => Err(TriggerError::Trailing { condition: head.into(), text: text.into() }),
    };
    match head {
        "steal" => longer(Measure::Steal, rest),
        "wakeup" => longer(Measure::Wakeup, rest),
        "disk" => longer(Measure::Disk, rest),
        "exit" => match rest.strip_prefix(':') {
            Some(rest) => {
                let reason = rest.split('>').next().unwrap_or_default();
                longer(Measure::Exit(Some(WildMatch::new(reason))), &rest[reason.len()..])
            }
            None => longer(Measure::Exit(None), rest),
        },
        "guest-hang" => {
            let no_time = || TriggerError::NoTime { condition: head.into() };
            let than_ns = parse_time(rest.strip_prefix(['=', '>']).ok_or_else(no_time)?)?;
            Ok(Parsed::Condition(Condition::Hang { than_ns }))
        }
        "host-load" => parse_share(rest.strip_prefix('>').unwrap_or_default(), word),
        "event" => parse_event(word, rest).map(Parsed::Condition),
        "guest-panic" => alone(Parsed::Panic),
        "oom" => {
            let victim = Condition::Event { layer: LayerKind::GuestKernel, name: WildMatch::new("oom:mark_victim") };
            alone(Parsed::Condition(victim))
        }
        _ => Err(TriggerError::Condition { word: head.into(), nearest: nearest(head, CONDITIONS) }),
    }
}

fn parse_event(word: &str, rest: &str) -> Result<Condition, TriggerError> {
    let mut parts = rest.split(':').skip(1);
    let (Some(layer), Some(group), Some(event), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return Err(TriggerError::Event { text: word.into() });
    };
    let is_name = |name: &str| !name.is_empty() && !name.contains(['<', '>', '=', '"']);
    if !is_name(group) || !is_name(event) {
        return Err(TriggerError::Event { text: word.into() });
    }
    let layer = layer.parse().map_err(|unknown| TriggerError::Layer { layer: layer.into(), unknown })?;
    Ok(Condition::Event { layer, name: WildMatch::new(&format!("{group}:{event}")) })
}

/// The share `text` of the condition `word`.
fn parse_share(text: &str, word: &str) -> Result<Parsed, TriggerError> {
    let digits = text.strip_suffix('%').unwrap_or(text);
    let than_percent = digits.parse().ok().filter(|percent: &u32| *percent < 100 && !digits.starts_with('+'));
    let than_percent = than_percent.ok_or_else(|| TriggerError::Share { text: word.into() })?;
    Ok(Parsed::Condition(Condition::HostLoad { than_percent }))
}

fn parse_time(text: &str) -> Result<u64, TriggerError> {
    let wrong = || TriggerError::Time { text: text.into() };
    let digits = text.trim_end_matches(|last: char| !last.is_ascii_digit());
    let unit: u64 = match &text[digits.len()..] {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return Err(wrong()),
    };
    let ns = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    ns.filter(|ns| (1..=MAX_TIME_NS).contains(ns)).ok_or_else(wrong)
}

fn parse_filter(word: &str) -> Result<Filter, TriggerError> {
    let wrong = || TriggerError::Filter { text: word.into() };
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
    let (comparison, value) = found.filter(|(_, value)| !field.is_empty() && !value.is_empty()).ok_or_else(wrong)?;
    let operand = match value.strip_prefix('"') {
        Some(quoted) => {
            let text = quoted.strip_suffix('"').filter(|text| !text.contains('"')).ok_or_else(wrong)?;
            Operand::Text(WildMatch::new(text))
        }
        None if value.contains(['"', '<', '>', '=', '!']) => return Err(wrong()),
        None => match parse_number(value) {
            Some(number) => Operand::Number(number, WildMatch::new(value)),
            None => Operand::Text(WildMatch::new(value)),
        },
    };
    let is_of_size = !matches!(comparison, Comparison::Equal | Comparison::NotEqual);
    if is_of_size && matches!(operand, Operand::Text(_)) {
        return Err(TriggerError::NotANumber { text: word.into() });
    }
    Ok(Filter { field: field.into(), comparison, operand })
}

fn parse_number(text: &str) -> Option<i128> {
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
    let number = match digits.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?,
        None => digits.parse::<u64>().ok()?,
    };
    Some(sign * i128::from(number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared_ring::event::{FieldDescription, FieldType};

    fn parse(text: &str) -> Trigger {
        Trigger::parse(text).unwrap()
    }

    fn refusal(text: &str) -> String {
        Trigger::parse(text).unwrap_err().to_string()
    }

    fn than_ns(text: &str) -> u64 {
        match parse(text).condition {
            Condition::Longer { than_ns, .. } | Condition::Hang { than_ns } => than_ns,
            Condition::Event { .. } | Condition::HostLoad { .. } => 0,
        }
    }

    #[test]
    fn times_take_their_units() {
        assert_eq!([than_ns("steal>1ms"), than_ns("wakeup>5us"), than_ns("disk>50µs")], [1_000_000, 5_000, 50_000]);
        assert_eq!([than_ns("exit>2s"), than_ns("exit:mmio>7ns")], [2_000_000_000, 7]);
        assert_eq!([than_ns("guest-hang=10s"), than_ns("guest-hang>10s vcpu=1")], [10_000_000_000; 2]);
    }

    #[test]
    fn times_that_are_none_are_refused() {
        for text in
            ["steal>", "steal>5", "steal>ms", "steal>0ms", "steal>-1ms", "steal>3601s", "disk>99999999999999999999s"]
        {
            assert!(refusal(text).contains("is not a time"), "{text}");
        }
        for text in ["steal", "exit:mmio", "wakeup=5ms", "steal<1ms", "guest-hang"] {
            assert!(refusal(text).contains("needs a time"), "{text}: {}", refusal(text));
        }
    }

    #[test]
    fn load_of_the_host_is_a_share_that_can_be_exceeded() {
        assert_eq!(parse("host-load>80%").condition, Condition::HostLoad { than_percent: 80 });
        assert_eq!(parse("host-load>0").condition, Condition::HostLoad { than_percent: 0 });
        for text in ["host-load", "host-load>", "host-load>%", "host-load>100%", "host-load=80%", "host-load>+5%"] {
            assert!(refusal(text).contains("host-load>80%"), "{text}: {}", refusal(text));
        }
        let said = refusal("host-load>80% cpu=1");
        assert!(said.contains("'cpu' is not a field of host-load; there are none"), "{said}");
    }

    #[test]
    fn condition_that_there_is_not_is_answered_with_the_nearest() {
        assert!(refusal("stael>1ms").contains("(nearest: steal"), "{}", refusal("stael>1ms"));
        assert!(refusal("guest-panic>1ms").contains("too much behind 'guest-panic'"));
        assert!(refusal("").contains("1 to 512 bytes") && refusal(&"x".repeat(513)).contains("1 to 512 bytes"));
    }

    #[test]
    fn trigger_on_applications_that_are_not_recorded_is_refused() {
        let check = |trigger: &str, selection: &str| {
            parse(trigger).check_applications(&Selection::parse(selection).unwrap()).map_err(|error| error.to_string())
        };

        assert_eq!(check("event:user:app:late", "guest:*,user:*"), Ok(()));
        assert_eq!(check("event:guest:app:late", "guest:*"), Ok(()));
        assert!(check("event:user:app:late", "guest:*").unwrap_err().contains("add guest-user:* to it"));
    }

    #[test]
    fn events_name_their_layer() {
        let Condition::Event { layer, name } = parse("event:guest:sched:sched_process_*").condition else { panic!() };

        assert!(layer == LayerKind::GuestKernel && name.matches("sched:sched_process_exit"));
        assert!(refusal("event:gest:sched:x").contains("guest"), "{}", refusal("event:gest:sched:x"));
        for text in ["event", "event:guest:sched", "event:guest:sched:a:b", "event:guest::x", "event:guest:a:b>1ms"] {
            assert!(refusal(text).contains("event:LAYER:GROUP:EVENT"), "{text}");
        }
    }

    #[test]
    fn field_of_a_condition_that_there_is_not_is_answered_with_those_there_are() {
        let said = refusal("wakeup>5ms taks=web*");

        assert!(said.contains("'taks' is not a field of wakeup (nearest: task)"), "{said}");
        assert!(said.contains("there are cpu, task, tid"), "{said}");
        assert_eq!(parse("wakeup>5ms task=web* cpu!=0").filters.len(), 2);
    }

    #[test]
    fn filters_compare_numbers_and_match_text() {
        let holds = |filter: &str, value| parse_filter(filter).unwrap().holds(value);
        let (number, text) = (FieldValue::Number, FieldValue::Text);

        assert!(holds("a==5", number(5)) && !holds("a==5", number(6)) && holds("a!=5", number(6)));
        assert!(holds("a<5", number(4)) && !holds("a<5", number(5)) && holds("a<=5", number(5)));
        assert!(holds("a>5", number(6)) && !holds("a>5", number(5)) && holds("a>=5", number(5)));
        assert!(holds("a=-1", number(-1)) && holds("a=0xff", number(255)) && holds("a=7", text("7")));
        assert!(holds("a=web*", text("web1")) && !holds("a=web*", text("db")) && holds("a!=web*", text("db")));
        assert!(holds("a==\"5\"", text("5")) && !holds("a==\"5\"", number(5)) && !holds("a>5", text("6")));
    }

    #[test]
    fn blanks_in_quotes_belong_to_the_text() {
        let trigger = parse("event:vmm:vmm:control  what==\"guest panicked\"");

        assert!(trigger.filters[0].holds(FieldValue::Text("guest panicked")));
        assert_eq!(trigger.filters.len(), 1);
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        for text in ["task", "=5", "task=", "task==\"web", "task=we\"b", "ta-sk=5", "task=>5", "a=b=c"] {
            assert!(refusal(&format!("wakeup>5ms {text}")).contains("is not a filter"), "{text}");
        }
        assert!(refusal("wakeup>5ms task>web").contains("is not a number"));
    }

    #[test]
    fn events_and_fields_are_checked_against_those_there_are() {
        let field = FieldDescription { name: "comm".into(), ty: FieldType::String, hex: false };
        let known =
            [EventDescription { id: 1, class: 0, name: "sched:sched_process_exit".into(), fields: vec![field] }];
        let check = |text: &str| parse(text).check(LayerKind::GuestKernel, &known).map_err(|error| error.to_string());

        assert_eq!(check("event:guest:sched:sched_process_exit comm==\"db\" cpu=1"), Ok(()));
        assert!(check("event:guest:sched:sched_process_exit com==\"db\"").unwrap_err().contains("(nearest: comm"));
        assert!(
            check("event:guest:sched:sched_proces_exit").unwrap_err().contains("nearest: sched:sched_process_exit")
        );
        assert_eq!((check("event:host:sched:x y=1"), check("steal>1ms"), check("disk>1ms")), (Ok(()), Ok(()), Ok(())));
        assert!(check("wakeup>1ms").unwrap_err().contains("'sched:sched_switch'"));
    }

    #[test]
    fn panics_and_victims_are_events() {
        let layer = |text: &str| match parse(text).condition {
            Condition::Event { layer, .. } => Some(layer),
            Condition::Longer { .. } | Condition::Hang { .. } | Condition::HostLoad { .. } => None,
        };

        assert_eq!((layer("guest-panic"), layer("oom")), (Some(LayerKind::Vmm), Some(LayerKind::GuestKernel)));
    }
}
