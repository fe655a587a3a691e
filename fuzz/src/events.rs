//! The event types that the targets know.

use shared_ring::event::{Event, EventDescription, Field, FieldType};

/// An event with one number.
pub const NUMBER: Event =
    Event { id: 5, class: 0, name: "test:number", fields: &[Field::new("value", FieldType::U64)] };

/// A large array, so that few bytes of a corpus fill a sub-buffer.
pub const LARGE: Event =
    Event { id: 6, class: 1, name: "test:large", fields: &[Field::new("text", FieldType::CharArray(1200))] };

/// Texts of any length.
pub const TEXT: Event = Event {
    id: 7,
    class: 2,
    name: "test:text",
    fields: &[
        Field::new("text", FieldType::String),
        Field::hex("bits", FieldType::I32),
        Field::new("more", FieldType::String),
    ],
};

/// The event types of the targets' rings.
pub const ALL: [Event; 3] = [NUMBER, LARGE, TEXT];

/// All of them, as a registry describes them.
#[must_use]
pub fn described() -> Vec<EventDescription> {
    ALL.iter().map(EventDescription::from).collect()
}

/// The event type with that id.
#[must_use]
pub fn find(events: &[EventDescription], id: u16) -> Option<&EventDescription> {
    events.iter().find(|event| event.id == id)
}
