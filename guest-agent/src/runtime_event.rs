//! Event types that become known while the program runs: those of other languages, and of other tracing interfaces.

use crate::describe::{Describe, is_name, next_id};
use crate::fields::{MAX_TEXT, Payload};
use crate::tracer::Tracer;
use shared_ring::event::{Event, Field, FieldType, MAX_FIELDS, MAX_NAME};
use shared_ring::registry::{MAX_ENTRY, encode};
use strata_abi::class;

/// The name of a field or event for which the caller gave none.
const UNNAMED: &str = "unnamed";

/// A type of event that was made while the program runs. It is never freed: make one for each place that records, not
/// for each record.
#[derive(Debug)]
pub struct RuntimeEventType {
    event: Event,
}

impl RuntimeEventType {
    /// An event type `name` (`group:event`) with `fields`: their names, types, and whether they are shown in
    /// hexadecimal.
    ///
    /// Whatever the names are, the type can be used: characters that a trace cannot hold become `_`, what is longer
    /// than [`MAX_NAME`] bytes is cut, and names that are there twice get a number. `None` when there are more than
    /// [`MAX_FIELDS`] fields, an array without length, or more than a description has room for (2048 bytes).
    #[must_use]
    pub fn new(name: &str, fields: &[(&str, FieldType, bool)]) -> Option<&'static Self> {
        if fields.len() > MAX_FIELDS || fields.iter().any(|field| field.1 == FieldType::CharArray(0)) {
            return None;
        }
        let mut described: Vec<Field> = Vec::with_capacity(fields.len());
        for &(name, ty, hex) in fields {
            let name = unused(sanitized(name, false), &described);
            described.push(Field { name: name.leak(), ty, hex });
        }
        let event =
            Event { id: next_id(), class: class::USER, name: sanitized(name, true).leak(), fields: described.leak() };
        encode(&event, &mut [0; MAX_ENTRY])?;
        Some(Box::leak(Box::new(Self { event })))
    }

    /// Its name, as the trace has it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.event.name
    }

    /// Number of fields.
    #[must_use]
    pub const fn fields(&self) -> usize {
        self.event.fields.len()
    }

    /// Type of field `index`.
    #[must_use]
    pub fn field_type(&self, index: usize) -> Option<FieldType> {
        self.event.fields.get(index).map(|field| field.ty)
    }

    /// Records an event with `size` payload bytes, which `fill` writes: the fields one after another without padding,
    /// integers little-endian, text with a NUL byte after it. Returns whether it was recorded. A payload that does not
    /// fit the fields spoils its ring's packet, which the host cuts there.
    pub fn record(&'static self, tracer: &Tracer, size: usize, fill: impl FnOnce(&mut Payload<'_>)) -> bool {
        tracer.is_wanted() && tracer.record(self, size, fill)
    }
}

impl Describe for RuntimeEventType {
    fn id(&self) -> u16 {
        self.event.id
    }

    fn event(&'static self) -> Event {
        self.event
    }
}

/// Appends `text` to a payload as a field of type [`FieldType::String`]: up to its first NUL byte and
/// [`MAX_TEXT`] bytes.
pub fn put_text(payload: &mut Vec<u8>, text: &[u8]) {
    let text = &text[..text.len().min(MAX_TEXT)];
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    payload.extend_from_slice(&text[..end]);
    payload.push(0);
}

/// `name` as a trace can hold it.
fn sanitized(name: &str, of_event: bool) -> String {
    let allowed = |character: char| match character {
        '_' => true,
        ':' | '.' | '-' => of_event,
        other => other.is_ascii_alphanumeric(),
    };
    let starts_with_digit = !of_event && name.starts_with(|first: char| first.is_ascii_digit());
    let name = starts_with_digit
        .then_some('_')
        .into_iter()
        .chain(name.chars().map(|character| if allowed(character) { character } else { '_' }))
        .take(MAX_NAME)
        .collect::<String>();
    let name = if name.is_empty() { UNNAMED.to_owned() } else { name };
    debug_assert!(is_name(&name, of_event));
    name
}

/// `name`, with a number behind it when one of `fields` has it.
fn unused(name: String, fields: &[Field]) -> String {
    let is_taken = |name: &str| fields.iter().any(|field| field.name == name);
    if !is_taken(&name) {
        return name;
    }
    // One of these is free: there are more of them than fields.
    let stem = &name[..name.len().min(MAX_NAME - 4)];
    (2..=fields.len() + 2).map(|number| format!("{stem}_{number}")).find(|name| !is_taken(name)).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_what_a_trace_can_hold() {
        let long = "x".repeat(1000);
        let fields = [("1st", FieldType::U8, false), ("", FieldType::U8, false), (&long, FieldType::U8, true)];

        let made = RuntimeEventType::new("my event/\u{fc}", &fields).unwrap();

        let names: Vec<_> = made.event.fields.iter().map(|field| field.name).collect();
        assert_eq!(made.event.name, "my_event__");
        assert_eq!(names, ["_1st", "unnamed", &long[..MAX_NAME]]);
    }

    #[test]
    fn fields_of_one_name_are_told_apart() {
        let long = "x".repeat(MAX_NAME);
        let fields = ["a", "a", "a_2", "a", &long, &long].map(|name| (name, FieldType::U8, false));

        let made = RuntimeEventType::new("test:twice", &fields).unwrap();

        let mut names: Vec<_> = made.event.fields.iter().map(|field| field.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), fields.len());
    }

    #[test]
    fn description_without_room_is_refused() {
        let long = "x".repeat(MAX_NAME);
        let many: Vec<_> = (0..MAX_FIELDS).map(|_| (long.as_str(), FieldType::U8, false)).collect();
        let more = [many.clone(), many.clone()].concat();

        assert!(RuntimeEventType::new("test:large", &many).is_none());
        assert!(RuntimeEventType::new("test:many", &more).is_none());
    }

    #[test]
    fn text_ends_at_its_nul_or_limit() {
        let mut payload = Vec::new();

        put_text(&mut payload, b"a\0b");
        put_text(&mut payload, &[b'x'; 2 * MAX_TEXT]);

        assert_eq!(&payload[..3], b"a\0x");
        assert_eq!(payload.len(), 2 + MAX_TEXT + 1);
    }
}
