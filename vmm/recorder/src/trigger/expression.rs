//! Expressions of triggers: what is watched for, and in which records. Pure: text in, a [`Trigger`] or an error out.
//!
//! ```text
//! trigger   = condition [ " " ["&&"] filters ]
//! condition = ("steal" | "wakeup" | "exit" [":" REASON] | "disk") ">" time
//!           | "event:" LAYER ":" GROUP ":" EVENT
//!           | "guest-hang=" time | "host-load>" percent ["%"] | "guest-panic" | "oom"
//! ```
//!
//! A `time` is one of [`parse_length`]. `REASON`, `GROUP` and `EVENT` may hold `*` and `?`. The filters are those of [`strata_analysis::filter`].

use crate::selection::Selection;
use shared_ring::event::EventDescription;
use std::fmt;
use std::path::Path;
use strata_analysis::event::name::SWITCH;
use strata_analysis::exit_reason::ExitNumbering;
use strata_analysis::filter::{CPU_FIELD, FilterError, Filters, MAX_EXPRESSION, words};
use strata_recording::clock::length::{LENGTH, parse_length};
use strata_recording::layer::{LayerKind, UnknownLayer};
use strata_recording::text::nearest::nearest;
use thiserror::Error;
use wildmatch::WildMatch;

/// Longest time that a condition can be about, ns: an hour.
const MAX_TIME_NS: u64 = 3_600_000_000_000;

/// What begins an expression, for messages.
const CONDITIONS: [&str; 9] =
    ["steal", "wakeup", "exit", "disk", "event", "guest-hang", "host-load", "guest-panic", "oom"];

/// Why an expression is not a trigger.
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
    #[error("'{condition}' needs a time: write '{condition}>5ms', for instance")]
    NoTime {
        /// The condition.
        condition: String,
    },
    /// A time that is none, or too long.
    #[error("'{text}' is not a time from 1ns to 1h: write one in {LENGTH}")]
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
    #[error("unexpected '{text}' behind '{condition}'")]
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
    /// Filters that are none, or of fields that there are not.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// What it is about is made by layers that are not recorded.
    #[error("'{text}' needs {needed}, which this recording does not have: {fix}")]
    NotRecorded {
        /// The trigger.
        text: String,
        /// A layer, or events of layers.
        needed: String,
        /// What to do to have it.
        fix: String,
    },
    /// A reason for which no vCPU leaves the guest here.
    #[error("'{reason}' is not an exit reason of {}{}", .of, suggestion(.nearest))]
    Reason {
        /// What was given.
        reason: String,
        /// Who numbers the reasons that are recorded.
        of: String,
        /// The nearest names, best first; may be empty.
        nearest: Vec<String>,
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

/// What is watched for.
#[derive(Clone, Debug, PartialEq)]
pub struct Trigger {
    /// As it was given.
    text: String,
    /// What has to happen.
    pub condition: Condition,
    /// What has to hold of it, too.
    pub filters: Filters,
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
        let mut words = words(text).into_iter().peekable();
        let condition = words.next().map(|word| parse_condition(&word)).ok_or(TriggerError::Length)??;
        let is_joined = words.next_if_eq("&&").is_some();
        if is_joined && words.peek().is_none() {
            return Err(FilterError::And.into());
        }
        let mut filters = Filters::of_words(words)?;
        let condition = match condition {
            Parsed::Condition(condition) => condition,
            Parsed::Panic => {
                filters.push("what==guest_panicked".parse()?);
                Condition::Event { layer: LayerKind::Vmm, name: WildMatch::new("vmm:control") }
            }
        };
        let trigger = Self { text: text.into(), condition, filters };
        match &trigger.condition {
            Condition::Longer { what, .. } => {
                trigger.filters.check_fields(what.name(), what.fields().iter().copied())?;
            }
            Condition::Hang { .. } => trigger.filters.check_fields("guest-hang", ["vcpu"])?,
            Condition::HostLoad { .. } => trigger.filters.check_fields("host-load", [])?,
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

    /// Checks it against what is recorded of all `layers` that are known by now.
    ///
    /// # Errors
    /// When it names an event or a field that there is not, or nothing that is recorded makes it fire.
    pub fn check(&self, layers: &[RecordedLayer<'_>]) -> Result<(), TriggerError> {
        match &self.condition {
            Condition::Event { layer, name } => self.check_event(layers, *layer, name),
            Condition::Longer { what: Measure::Steal, .. } => self.check_switch(layers, LayerKind::HostKernel),
            Condition::Longer { what: Measure::Wakeup, .. } => {
                self.check_switch(layers, LayerKind::GuestKernel)?;
                self.sources(layers, &[(LayerKind::GuestKernel, &WAKING)]).map(drop)
            }
            Condition::Longer { what: Measure::Exit(reason), .. } => self.check_exit(layers, reason.as_ref()),
            Condition::Longer { what: Measure::Disk, .. } => {
                self.sources(layers, &[(LayerKind::Vmm, &[BLOCK_REQUEST]), (LayerKind::GuestKernel, &BLOCK)]).map(drop)
            }
            Condition::Hang { .. } => {
                self.check_switch(layers, LayerKind::HostKernel)?;
                self.check_switch(layers, LayerKind::GuestKernel)
            }
            Condition::HostLoad { .. } => Ok(()),
        }
    }

    fn check_switch(&self, layers: &[RecordedLayer<'_>], layer: LayerKind) -> Result<(), TriggerError> {
        self.matching(layers, layer, &WildMatch::new(SWITCH)).map(drop)
    }

    fn check_event(&self, layers: &[RecordedLayer<'_>], of: LayerKind, name: &WildMatch) -> Result<(), TriggerError> {
        let Some(matching) = self.matching(layers, of, name)? else { return Ok(()) };
        Ok(self.filters.check(&name.to_string(), matching.iter().copied())?)
    }

    /// The events of layer `of` called `name`; `None` where they are not known yet.
    fn matching<'l>(
        &self,
        layers: &'l [RecordedLayer<'_>],
        of: LayerKind,
        name: &WildMatch,
    ) -> Result<Option<Vec<&'l EventDescription>>, TriggerError> {
        let Some(layer) = layers.iter().find(|layer| layer.layer == of) else { return Ok(None) };
        if let Some(fix) = &layer.absent {
            let (text, needed) = (self.text.clone(), format!("the layer {of}"));
            return Err(TriggerError::NotRecorded { text, needed, fix: (*fix).to_owned() });
        }
        let matching: Vec<&EventDescription> = layer.events.iter().filter(|event| name.matches(&event.name)).collect();
        if matching.is_empty() {
            let wanted = name.to_string();
            let nearest = nearest(&wanted, layer.events.iter().map(|event| event.name.as_str()));
            return Err(TriggerError::UnknownEvent { layer: of, name: wanted, nearest });
        }
        Ok(Some(matching))
    }

    /// The layers of `any` that are recorded, or may be, with all of these events of theirs.
    fn sources(
        &self,
        layers: &[RecordedLayer<'_>],
        any: &[(LayerKind, &[&str])],
    ) -> Result<Vec<LayerKind>, TriggerError> {
        let recorded = |of: LayerKind| layers.iter().find(|layer| layer.layer == of);
        let has = |layer: &RecordedLayer<'_>, name: &str| layer.events.iter().any(|event| event.name == name);
        let is_source = |(of, events): &&(LayerKind, &[&str])| {
            recorded(*of).is_none_or(|layer| events.iter().all(|event| has(layer, event)))
        };
        let sources: Vec<LayerKind> = any.iter().filter(is_source).map(|&(of, _)| of).collect();
        if !sources.is_empty() {
            return Ok(sources);
        }
        let of_layer = |(of, events): &(LayerKind, &[&str])| format!("{} of {of}", events.join(" and "));
        let fix = |&(of, events): &(LayerKind, &[&str])| match recorded(of).and_then(|layer| layer.absent) {
            Some(fix) => fix.to_owned(),
            None => format!("add {of}:{} to --events", events.join(&format!(",{of}:"))),
        };
        let needed = any.iter().map(of_layer).collect::<Vec<_>>().join(", or ");
        let fix = any.iter().map(fix).collect::<Vec<_>>().join("; or ");
        Err(TriggerError::NotRecorded { text: self.text.clone(), needed, fix })
    }

    fn check_exit(&self, layers: &[RecordedLayer<'_>], reason: Option<&WildMatch>) -> Result<(), TriggerError> {
        let sources = self.sources(layers, &[(LayerKind::HostKernel, &KVM_EXITS), (LayerKind::Vmm, &VMM_EXITS)])?;
        let Some(reason) = reason else { return Ok(()) };
        let numberings = sources.iter().flat_map(|layer| match layer {
            LayerKind::HostKernel => processor_numberings(),
            _ => vec![(ExitNumbering::Kvm, "KVM (layer vmm)")],
        });
        let numberings: Vec<_> = numberings.collect();
        let names: Vec<_> = numberings.iter().flat_map(|(numbering, _)| numbering.names()).collect();
        let wanted = reason.to_string();
        // What has no name is called by its number.
        if wanted.starts_with("0x") || names.iter().any(|name| reason.matches(name)) {
            return Ok(());
        }
        let of = numberings.iter().map(|(_, of)| *of).collect::<Vec<_>>().join(" or ");
        let nearest = nearest(&wanted, names.iter().map(AsRef::as_ref));
        Err(TriggerError::Reason { reason: wanted, of, nearest })
    }
}

/// A layer, as far as it is known what is recorded of it.
#[derive(Clone, Debug)]
pub struct RecordedLayer<'f> {
    /// Which.
    pub layer: LayerKind,
    /// The events that are recorded.
    pub events: Vec<EventDescription>,
    /// What to do to have the layer, where nothing of it can be recorded as it is.
    pub absent: Option<&'f str>,
}

/// Events that tell how long a vCPU was out of the guest, and a disk took for a request.
const KVM_EXITS: [&str; 2] = ["kvm:kvm_exit", "kvm:kvm_entry"];
const VMM_EXITS: [&str; 2] = ["vmm:vcpu_exit", "vmm:vcpu_enter"];
const BLOCK: [&str; 2] = ["block:block_rq_issue", "block:block_rq_complete"];
const WAKING: [&str; 1] = ["sched:sched_waking"];
const BLOCK_REQUEST: &str = "vmm:block_request";

/// Who numbers the exits of this host's processor: one of these, or any where its module cannot be seen.
fn processor_numberings() -> Vec<(ExitNumbering, &'static str)> {
    let all = [("kvm_intel", ExitNumbering::Vmx, "VMX"), ("kvm_amd", ExitNumbering::Svm, "SVM")];
    let is_loaded = |module: &str| Path::new("/sys/module").join(module).exists();
    let any_is_loaded = all.iter().any(|(module, ..)| is_loaded(module));
    let here = all.into_iter().filter(|(module, ..)| !any_is_loaded || is_loaded(module));
    here.map(|(_, numbering, name)| (numbering, name)).collect()
}

impl fmt::Display for Trigger {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
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
    let ns = parse_length(text).and_then(|length| u64::try_from(length.as_nanos()).ok());
    ns.filter(|ns| (1..=MAX_TIME_NS).contains(ns)).ok_or_else(wrong)
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
        assert_eq!([than_ns("exit>2"), than_ns("exit:mmio>7ns"), than_ns("disk>0.5ms")], [2_000_000_000, 7, 500_000]);
        assert_eq!([than_ns("guest-hang=10s"), than_ns("guest-hang>10s vcpu=1")], [10_000_000_000; 2]);
    }

    #[test]
    fn times_that_are_none_are_refused() {
        for text in
            ["steal>", "steal>5d", "steal>ms", "steal>0ms", "steal>-1ms", "steal>3601s", "disk>99999999999999999999s"]
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
        let printed = refusal("host-load>80% cpu=1");
        assert!(printed.contains("'cpu' is not a field of host-load; there are none"), "{printed}");
    }

    #[test]
    fn condition_that_there_is_not_is_answered_with_the_nearest() {
        assert!(refusal("stael>1ms").contains("(nearest: steal"), "{}", refusal("stael>1ms"));
        assert!(refusal("guest-panic>1ms").contains("behind 'guest-panic'"));
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
        let printed = refusal("wakeup>5ms taks=web*");

        assert!(printed.contains("'taks' is not a field of wakeup (nearest: task)"), "{printed}");
        assert!(printed.contains("there are task, tid, cpu"), "{printed}");
        assert_eq!(parse("wakeup>5ms task=web* cpu!=0").filters.iter().count(), 2);
    }

    #[test]
    fn filters_follow_a_condition_with_or_without_a_sign() {
        assert_eq!(parse("wakeup>5ms && task=web* && cpu!=0").filters, parse("wakeup>5ms task=web* cpu!=0").filters);
        for text in ["wakeup>5ms &&", "wakeup>5ms && && cpu=0", "wakeup>5ms cpu=0 &&"] {
            assert!(refusal(text).contains("on both of its sides"), "{text}");
        }
        assert!(refusal("wakeup>5ms task").contains("is not a filter"));
    }

    #[test]
    fn events_and_fields_are_checked_against_those_there_are() {
        let field = FieldDescription { name: "comm".into(), ty: FieldType::String, hex: false };
        let known =
            [EventDescription { id: 1, class: 0, name: "sched:sched_process_exit".into(), fields: vec![field] }];
        let layer = RecordedLayer { layer: LayerKind::GuestKernel, events: known.into(), absent: None };
        let check = |text: &str| parse(text).check(std::slice::from_ref(&layer)).map_err(|error| error.to_string());

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

    fn layer<'f>(layer: LayerKind, events: &[&str], absent: Option<&'f str>) -> RecordedLayer<'f> {
        let event = |name: &&str| EventDescription { id: 1, class: 0, name: (*name).into(), fields: Vec::new() };
        RecordedLayer { layer, events: events.iter().map(event).collect(), absent }
    }

    fn refused(text: &str, layers: &[RecordedLayer<'_>]) -> String {
        parse(text).check(layers).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn wakeup_needs_the_guests_switches_and_wakings() {
        let guest = |events: &[&str]| [layer(LayerKind::GuestKernel, events, None)];

        let without = refused("wakeup>5ms", &guest(&[SWITCH, "sched:sched_wakeup"]));

        assert!(without.contains("add guest-kernel:sched:sched_waking to --events"), "{without}");
        assert_eq!(refused("wakeup>5ms", &guest(&[SWITCH, WAKING[0]])), "");
    }

    #[test]
    fn trigger_that_no_recorded_layer_makes_fire_is_refused_with_what_helps() {
        let host = layer(LayerKind::HostKernel, &["kvm:kvm_exit", "kvm:kvm_entry", SWITCH], None);
        let outside = [
            host.clone(),
            layer(LayerKind::Vmm, &[], Some("run it with strata run")),
            layer(LayerKind::GuestKernel, &[], Some("give --region")),
        ];

        assert_eq!(
            refused("wakeup>5ms", &outside),
            "'wakeup>5ms' needs the layer guest-kernel, which this recording does not have: give --region"
        );
        assert!(refused("guest-panic", &outside).ends_with("does not have: run it with strata run"));
        let disk = refused("disk>1ms", &outside);
        assert!(disk.ends_with("does not have: run it with strata run; or give --region"), "{disk}");
        assert_eq!([refused("steal>1ms", &outside), refused("exit>1ms", &outside)], ["", ""]);
        assert_eq!(refused("disk>1ms", &outside[..2]), "", "events of a layer that is not known yet");
        let fewer = [layer(LayerKind::HostKernel, &["kvm:kvm_exit"], None), outside[1].clone()];
        assert!(
            refused("exit>1ms", &fewer).contains("add host-kernel:kvm:kvm_exit,host-kernel:kvm:kvm_entry to --events")
        );
    }

    #[test]
    fn exit_reason_that_nobody_here_gives_is_refused_with_the_nearest() {
        let host = layer(LayerKind::HostKernel, &KVM_EXITS, None);
        let (no_vmm, vmm) = (layer(LayerKind::Vmm, &[], None), layer(LayerKind::Vmm, &VMM_EXITS, None));
        let check = |text: &str, vmm: &RecordedLayer<'_>| refused(text, &[host.clone(), vmm.clone()]);

        assert!(check("exit:mmio>100us", &no_vmm).starts_with("'mmio' is not an exit reason of "));
        assert_eq!(check("exit:mmio>100us", &vmm), "");
        assert!(check("exit:cpuidd>1ms", &vmm).contains("(nearest: cpuid"));
        assert_eq!(["exit:cpuid>1ms", "exit:*>1ms", "exit:0x7f>1ms"].map(|text| check(text, &no_vmm)), ["", "", ""]);
    }
}
