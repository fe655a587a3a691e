//! Event types that become known while the program runs: those of other languages, and of other tracing interfaces.

use crate::describe::{Describe, is_name, next_id};
use crate::fields::{MAX_TEXT, Payload};
use crate::permanent;
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
        Self::from_bytes(name.as_bytes(), fields.iter().map(|&(name, ty, hex)| (name.as_bytes(), ty, hex)))
    }

    /// As [`new`](Self::new), with names that need not be text. Takes no lock and nothing of the allocator: signal handlers
    /// may call it. `None` also when the kernel has no memory.
    #[must_use]
    pub fn from_bytes<'a>(
        name: &[u8],
        fields: impl Iterator<Item = (&'a [u8], FieldType, bool)>,
    ) -> Option<&'static Self> {
        let mut described = [Field::new("", FieldType::U8); MAX_FIELDS];
        let mut count = 0;
        for (name, ty, hex) in fields {
            if matches!(ty, FieldType::CharArray(0) | FieldType::Array(_, 0)) || count == MAX_FIELDS {
                return None;
            }
            let name = Name::of(name, false).unused(&described[..count]).keep()?;
            described[count] = Field { name, ty, hex };
            count += 1;
        }
        let fields = permanent::keep_all(count, described.into_iter()).ok()?;
        let event = Event { id: next_id(), class: class::USER, name: Name::of(name, true).keep()?, fields };
        encode(&event, &mut [0; MAX_ENTRY])?;
        permanent::keep(Self { event }).ok()
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
    /// numbers little-endian, text with a NUL byte after it. Returns whether it was recorded. A payload that does not
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

/// What of `text` a field takes: [`MAX_TEXT`] bytes, without a character that is not whole there.
#[must_use]
pub fn cut_text(text: &[u8]) -> &[u8] {
    let Some(text) = text.get(..MAX_TEXT) else { return text };
    // The last byte that does not continue a character.
    let begin = text.iter().rposition(|byte| byte & 0xc0 != 0x80).unwrap_or(0);
    let is_cut = std::str::from_utf8(&text[begin..]).is_err_and(|error| error.error_len().is_none());
    if is_cut { &text[..begin] } else { text }
}

/// Appends `text` to a payload as a field of type [`FieldType::String`]: up to its first NUL byte, and
/// [cut](cut_text).
pub fn put_text(payload: &mut Vec<u8>, text: &[u8]) {
    let text = cut_text(text);
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    payload.extend_from_slice(&text[..end]);
    payload.push(0);
}

/// A name as a trace can hold it: ASCII, and not empty.
#[derive(Clone, Copy)]
struct Name {
    bytes: [u8; MAX_NAME],
    length: usize,
}

impl Name {
    const EMPTY: Self = Self { bytes: [0; MAX_NAME], length: 0 };

    /// `name`, each character that a trace cannot hold replaced.
    fn of(name: &[u8], of_event: bool) -> Self {
        let allowed = |character: char| match character {
            '_' => true,
            ':' | '.' | '-' => of_event,
            other => other.is_ascii_alphanumeric(),
        };
        let as_byte = |character| if allowed(character) { u8::try_from(character).unwrap_or(b'_') } else { b'_' };
        let mut made = Self::EMPTY;
        if !of_event && name.first().is_some_and(u8::is_ascii_digit) {
            made.push(b'_');
        }
        for chunk in name.utf8_chunks() {
            chunk.valid().chars().for_each(|character| made.push(as_byte(character)));
            if !chunk.invalid().is_empty() {
                made.push(b'_');
            }
        }
        if made.length == 0 {
            UNNAMED.bytes().for_each(|byte| made.push(byte));
        }
        debug_assert!(is_name(made.text(), of_event));
        made
    }

    /// Appends a byte if there is room.
    fn push(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.length) {
            *place = byte;
            self.length += 1;
        }
    }

    fn text(&self) -> &str {
        // What is pushed is ASCII.
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or(UNNAMED)
    }

    /// This name, with a number behind it when one of `fields` has it.
    fn unused(self, fields: &[Field]) -> Self {
        let is_taken = |name: &Self| fields.iter().any(|field| field.name == name.text());
        if !is_taken(&self) {
            return self;
        }
        // One of these is free: there are more of them than fields, and fewer than 99 fields.
        (2..=fields.len() + 2).map(|number| self.numbered(number)).find(|name| !is_taken(name)).unwrap_or(self)
    }

    /// This name, cut where it must be, and `_NUMBER`; `number` is below 100.
    fn numbered(mut self, number: usize) -> Self {
        self.length = self.length.min(MAX_NAME - 3);
        self.push(b'_');
        let digits = [number / 10, number % 10].map(|digit| b'0' + u8::try_from(digit).unwrap_or(0));
        digits.into_iter().skip(usize::from(number < 10)).for_each(|digit| self.push(digit));
        self
    }

    /// The name for the rest of the process's life; `None` when the kernel has no memory.
    fn keep(&self) -> Option<&'static str> {
        let kept = permanent::keep_all(self.length, self.bytes.into_iter()).ok()?;
        std::str::from_utf8(kept).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared_ring::event::Integer;

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
    fn fields_of_one_name_are_distinguished() {
        let long = "x".repeat(MAX_NAME);
        let fields = ["a", "a", "a_2", "a", &long, &long].map(|name| (name, FieldType::U8, false));

        let made = RuntimeEventType::new("test:twice", &fields).unwrap();

        let mut names: Vec<_> = made.event.fields.iter().map(|field| field.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), fields.len());
    }

    #[test]
    fn bytes_that_are_no_text_are_replaced() {
        let made = RuntimeEventType::from_bytes(b"a\xff\xfeb", [(&b""[..], FieldType::U8, false)].into_iter()).unwrap();

        assert_eq!((made.name(), made.event.fields[0].name), ("a__b", UNNAMED));
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
    fn array_without_length_is_refused() {
        let types = [FieldType::CharArray(0), FieldType::Array(Integer::U32, 0)];

        let made = types.map(|ty| RuntimeEventType::new("test:empty", &[("array", ty, false)]).is_some());

        assert_eq!(made, [false, false]);
    }

    #[test]
    fn text_ends_at_its_nul_or_limit() {
        let mut payload = Vec::new();

        put_text(&mut payload, b"a\0b");
        put_text(&mut payload, &[b'x'; 2 * MAX_TEXT]);

        assert_eq!(&payload[..3], b"a\0x");
        assert_eq!(payload.len(), 2 + MAX_TEXT + 1);
    }

    #[test]
    fn text_is_cut_between_characters() {
        let whole = "x".repeat(MAX_TEXT - 2) + "\u{fc}ber";
        let parted = "x".repeat(MAX_TEXT - 2) + "\u{20ac}";
        let no_text = [0x80; MAX_TEXT + 1];

        let lengths = [whole.as_bytes(), parted.as_bytes(), &no_text].map(|text| cut_text(text).len());

        assert_eq!(lengths, [MAX_TEXT, MAX_TEXT - 2, MAX_TEXT]);
    }
}
