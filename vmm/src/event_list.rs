//! `strata events --list`: the events that can be recorded, and those that cannot, with the reason.

use crate::agent::{self, AgentError};
use serde::Serialize;
use shared_ring::event::{EventDescription, FieldDescription, FieldType, Integer};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use strata_host_kernel::{EventName, EventSchema, Tracefs, TracefsError};
use strata_kmod::module_file::MissingEvent;
use strata_recorder::vmm_events::EVENTS;
use strata_recording::layer::LayerKind;
use strata_recording::text::terminal::harmless;
use thiserror::Error;

/// Why events cannot be listed.
#[derive(Debug, Error)]
pub enum EventListError {
    /// Nobody said which module records in the guest.
    #[error("the guest's events are those of its kernel module: name it with --agent FILE")]
    NoModule,
    /// A module was named for another layer.
    #[error("--agent is for --list guest-kernel: the events of {0} do not depend on the guest's kernel module")]
    NotOfModule(LayerKind),
    /// The module's file cannot be read.
    #[error("cannot read '{}'", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The file is not the agent's module.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The host's events cannot be had.
    #[error("the host's events cannot be listed; {}", .0.fix())]
    Host(#[source] TracefsError),
}

/// Events of a layer.
#[derive(Clone, Debug, Default, Serialize)]
pub struct EventList {
    /// What can be recorded.
    pub events: Vec<ListedEvent>,
    /// What the kernel has and nobody records.
    pub missing: Vec<UnlistedEvent>,
    /// What the list does not have, and why.
    #[serde(skip)]
    pub note: Option<&'static str>,
}

/// An event that can be recorded.
#[derive(Clone, Debug, Serialize)]
pub struct ListedEvent {
    /// Name, `group:event`.
    pub name: String,
    /// Fields, where they are known before anything is recorded.
    pub fields: Vec<FieldDescription>,
    /// Declarations of the fields that the event has and nobody records, since there is no form for them in a trace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
}

/// An event that cannot be recorded.
#[derive(Clone, Debug, Serialize)]
pub struct UnlistedEvent {
    /// Name, `group:event`.
    pub name: String,
    pub reason: String,
}

impl From<EventDescription> for ListedEvent {
    fn from(event: EventDescription) -> Self {
        Self { name: event.name, fields: event.fields, left_out: Vec::new() }
    }
}

impl From<EventSchema> for ListedEvent {
    fn from(schema: EventSchema) -> Self {
        let left_out = schema.skipped.into_iter().map(|field| field.declaration).collect();
        Self { left_out, ..schema.description.into() }
    }
}

impl From<MissingEvent> for UnlistedEvent {
    fn from(event: MissingEvent) -> Self {
        Self { name: event.name, reason: event.reason }
    }
}

/// The events of `layer`; those of the guest's kernel are the ones in the file `module`.
///
/// # Errors
/// When they cannot be had.
pub fn list(layer: LayerKind, module: Option<&Path>) -> Result<EventList, EventListError> {
    let mut list = EventList::default();
    if module.is_some() && layer != LayerKind::GuestKernel {
        return Err(EventListError::NotOfModule(layer));
    }
    match layer {
        LayerKind::HostKernel => {
            let tracefs = Tracefs::find().map_err(EventListError::Host)?;
            for event in tracefs.available_events().map_err(EventListError::Host)? {
                list.add(&event, tracefs.schema(&event));
            }
        }
        LayerKind::Vmm => list.events = EVENTS.iter().map(|event| EventDescription::from(event).into()).collect(),
        LayerKind::GuestKernel => {
            let path = module.ok_or(EventListError::NoModule)?;
            let bytes = fs::read(path).map_err(|source| EventListError::File { path: path.to_path_buf(), source })?;
            let module = agent::events(path, &bytes)?;
            list.events = module.events.into_iter().map(Into::into).collect();
            list.missing = module.missing.into_iter().map(Into::into).collect();
        }
        LayerKind::GuestUser => {
            list.note = Some("events of applications are known once these run; select them by 'guest-user:*'");
        }
    }
    list.events.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(list)
}

impl EventList {
    /// Adds an event of the host's kernel, as its description says.
    fn add(&mut self, event: &EventName, schema: Result<EventSchema, TracefsError>) {
        match schema {
            Ok(schema) => self.events.push(schema.into()),
            Err(error) => {
                self.missing.push(UnlistedEvent { name: event.to_string(), reason: error.to_string() });
            }
        }
    }
}

/// `list` as text: a line for each event with its fields, then a line for each that is missing with the reason. Nothing
/// in it acts on a terminal: a module may be a stranger's.
#[must_use]
pub fn text(list: &EventList) -> String {
    let mut text = String::new();
    for event in &list.events {
        let fields: Vec<String> =
            event.fields.iter().map(|field| format!("{} {}", field.name, type_name(field))).collect();
        let separator = if fields.is_empty() { "" } else { ": " };
        let left_out = match &event.left_out[..] {
            [] => String::new(),
            fields => format!("; not recorded: {}", fields.join(", ")),
        };
        text.push_str(&harmless(&format!("{}{separator}{}{left_out}", event.name, fields.join(", "))));
        text.push('\n');
    }
    if !list.missing.is_empty() {
        text.push_str(&format!(
            "\n{} events that the kernel or its headers declare cannot be recorded:\n",
            list.missing.len()
        ));
    }
    for event in &list.missing {
        text.push_str(&harmless(&format!("{}: {}", event.name, event.reason)));
        text.push('\n');
    }
    text.extend(list.note.map(|note| format!("{note}\n")));
    text
}

fn type_name(field: &FieldDescription) -> String {
    let integer = |integer: Integer| {
        let sign = if integer.is_signed() { 'i' } else { 'u' };
        let hex = if field.hex { " (hex)" } else { "" };
        (format!("{sign}{}", 8 * integer.size()), hex)
    };
    match (field.ty, field.ty.integer()) {
        (_, Some(own)) => [integer(own).0.as_str(), integer(own).1].concat(),
        (FieldType::Array(element, count), _) => format!("{}[{count}]{}", integer(element).0, integer(element).1),
        (FieldType::Sequence(element), _) => format!("{}[]{}", integer(element).0, integer(element).1),
        (FieldType::F64, _) => "f64".into(),
        (FieldType::CharArray(size), _) => format!("text[{size}]"),
        _ => "text".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_listed_with_their_types() {
        let field = |name: &str, ty, hex| FieldDescription { name: name.into(), ty, hex };
        let fields = vec![
            field("comm", FieldType::CharArray(16), false),
            field("args", FieldType::Array(Integer::U64, 6), true),
            field("ret", FieldType::I32, false),
            field("name", FieldType::Text, false),
            field("stack", FieldType::Sequence(Integer::U64), true),
        ];
        let list = EventList {
            events: vec![ListedEvent { name: "a:b".into(), fields, left_out: vec!["enum x y[N]".into()] }],
            missing: vec![UnlistedEvent { name: "c:d".into(), reason: "no header declares it".into() }],
            note: None,
        };

        let expected = "a:b: comm text[16], args u64[6] (hex), ret i32, name text, stack u64[] (hex); \
                        not recorded: enum x y[N]\n\n\
                        1 events that the kernel or its headers declare cannot be recorded:\n\
                        c:d: no header declares it\n";
        assert_eq!(text(&list), expected);
    }

    #[test]
    fn what_a_module_says_does_not_act_on_the_terminal() {
        let missing = vec![UnlistedEvent { name: "c:d".into(), reason: "no\u{1b}[2Jheader".into() }];

        let shown = text(&EventList { missing, ..EventList::default() });

        assert!(shown.ends_with("\nc:d: no\\u{1b}[2Jheader\n"), "{shown}");
    }

    #[test]
    fn event_of_the_host_is_listed_with_what_is_left_out_of_it_or_with_why_it_cannot_be_recorded() {
        let event = EventName::parse("group:event").unwrap();
        let of = |field: &str| {
            let common = "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
                          \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n";
            let text =
                format!("name: event\nID: 7\nformat:\n{common}\n\tfield:{field};\toffset:8;\tsize:8;\tsigned:0;\n");
            let mut list = EventList::default();
            list.add(&event, EventSchema::parse(&event, &text).map_err(TracefsError::Schema));
            list
        };

        let (left_out, refused) = (of("char names[2][4]"), of("u8 kinds[N"));

        assert_eq!(left_out.events[0].left_out, ["char names[2][4]"]);
        assert!(refused.events.is_empty() && refused.missing[0].reason.contains("u8 kinds[N;"));
    }

    #[test]
    fn own_events_are_listed_and_a_guests_need_a_module() {
        let own = list(LayerKind::Vmm, None).unwrap();

        assert_eq!(own.events.len(), EVENTS.len());
        assert!(matches!(list(LayerKind::GuestKernel, None), Err(EventListError::NoModule)));
        let module = Some(Path::new("strata.ko"));
        assert!(matches!(list(LayerKind::Vmm, module), Err(EventListError::NotOfModule(LayerKind::Vmm))));
        assert!(text(&list(LayerKind::GuestUser, None).unwrap()).contains("guest-user:*"));
    }
}
