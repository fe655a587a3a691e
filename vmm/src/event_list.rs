//! `strata events --list`: the events that can be recorded, and those that cannot, with the reason.

use crate::agent::{self, AgentError};
use serde::Serialize;
use shared_ring::event::{EventDescription, FieldDescription, FieldType, Integer};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use strata_host_kernel::{Tracefs, TracefsError};
use strata_kmod::module_file::MissingEvent;
use strata_recorder::vmm_events::EVENTS;
use strata_recording::layer::LayerKind;
use thiserror::Error;

/// Why events cannot be listed.
#[derive(Debug, Error)]
pub enum EventListError {
    /// Nobody said which module records in the guest.
    #[error("the guest's events are those of its kernel module: name it with --agent FILE")]
    NoModule,
    /// The module's file cannot be read.
    #[error("cannot read '{}'", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
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
    /// What is to be said besides.
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
}

/// An event that cannot be recorded.
#[derive(Clone, Debug, Serialize)]
pub struct UnlistedEvent {
    /// Name, `group:event`.
    pub name: String,
    /// Why.
    pub reason: String,
}

impl From<EventDescription> for ListedEvent {
    fn from(event: EventDescription) -> Self {
        Self { name: event.name, fields: event.fields }
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
    match layer {
        LayerKind::HostKernel => {
            let events =
                Tracefs::find().and_then(|tracefs| tracefs.available_events()).map_err(EventListError::Host)?;
            list.events =
                events.iter().map(|event| ListedEvent { name: event.to_string(), fields: Vec::new() }).collect();
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

/// `list` as text: a line for each event with its fields, then a line for each that is missing with the reason.
#[must_use]
pub fn text(list: &EventList) -> String {
    let mut text = String::new();
    for event in &list.events {
        let fields: Vec<String> =
            event.fields.iter().map(|field| format!("{} {}", field.name, type_name(field))).collect();
        let separator = if fields.is_empty() { "" } else { ": " };
        text.push_str(&format!("{}{separator}{}\n", event.name, fields.join(", ")));
    }
    if !list.missing.is_empty() {
        text.push_str(&format!(
            "\n{} events that the kernel or its headers declare are not in the module:\n",
            list.missing.len()
        ));
    }
    for event in &list.missing {
        text.push_str(&format!("{}: {}\n", event.name, event.reason));
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
            events: vec![ListedEvent { name: "a:b".into(), fields }],
            missing: vec![UnlistedEvent { name: "c:d".into(), reason: "no header declares it".into() }],
            note: None,
        };

        let expected = "a:b: comm text[16], args u64[6] (hex), ret i32, name text, stack u64[] (hex)\n\n\
                        1 events that the kernel or its headers declare are not in the module:\nc:d: no header declares it\n";
        assert_eq!(text(&list), expected);
    }

    #[test]
    fn own_events_are_listed_and_a_guests_need_a_module() {
        let own = list(LayerKind::Vmm, None).unwrap();

        assert_eq!(own.events.len(), EVENTS.len());
        assert!(matches!(list(LayerKind::GuestKernel, None), Err(EventListError::NoModule)));
        assert!(text(&list(LayerKind::GuestUser, None).unwrap()).contains("guest-user:*"));
    }
}
