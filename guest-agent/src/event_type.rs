//! Event types of an application: a name and typed fields, known at compile time.

use crate::tracer::{Tracer, tracer};
use shared_ring::event::{Event, Field, FieldType, MAX_NAME};
use shared_ring::layout::{EXTENDED_ID, MAX_EVENTS};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU16, Ordering};
use strata_abi::class;

/// Most fields of an event type that is known at compile time.
pub const MAX_STATIC_FIELDS: usize = 8;

/// Longest text of a field, bytes; what is longer is cut.
pub const MAX_TEXT: usize = 2048;

/// The next id to be given to an event type of this process.
static NEXT_ID: AtomicU16 = AtomicU16::new(1);

/// Stands for an id where all are given away.
const NO_ID: u16 = EXTENDED_ID;

/// An id that no other event type of the process has; [`NO_ID`] when there are none left.
pub(crate) fn next_id() -> u16 {
    const LIMIT: usize = if MAX_EVENTS < NO_ID as usize { MAX_EVENTS } else { NO_ID as usize };
    let next = |id: u16| (usize::from(id) < LIMIT).then_some(id + 1);
    NEXT_ID.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or(NO_ID)
}

/// A type of event: declare it as a `static`, then [`record`](Self::record). Events that are recorded at one place only
/// are shorter with [`event!`](crate::event).
///
/// `F` is the tuple of its fields' [`Kind`]s, up to [`MAX_STATIC_FIELDS`]: integers, `bool`, [`Hex`] integers, and
/// [`Text`].
#[derive(Debug)]
pub struct EventType<F> {
    name: &'static str,
    fields: [Field; MAX_STATIC_FIELDS],
    /// 0 before the first record. Not a lock, which a child made by `fork` could find held by a thread that it lacks.
    id: AtomicU16,
    kinds: PhantomData<fn() -> F>,
}

impl<F: Fields> EventType<F> {
    /// An event type `name` (`group:event`) whose fields are called `fields`.
    ///
    /// # Panics
    /// When the numbers of names and kinds differ, or a name holds other characters than letters, digits and `_` (for
    /// the event also `:`, `.` and `-`), or is longer than 128 bytes, or two fields have the same one. In a `static`
    /// this is an error at compile time.
    #[must_use]
    pub const fn new(name: &'static str, fields: &'static [&'static str]) -> Self {
        assert!(
            fields.len() == F::KINDS.len() && fields.len() <= MAX_STATIC_FIELDS,
            "as many names as kinds of fields, eight at most"
        );
        assert!(is_name(name, true), "an event's name is letters, digits, '_', ':', '.', '-'");
        let mut described = [Field::new("", FieldType::U8); MAX_STATIC_FIELDS];
        let mut index = 0;
        while index < fields.len() {
            assert!(is_name(fields[index], false), "a field's name is letters, digits and '_'");
            let mut other = 0;
            while other < index {
                assert!(!is_same(fields[index], fields[other]), "two fields have the same name");
                other += 1;
            }
            let (ty, hex) = F::KINDS[index];
            described[index] = Field { name: fields[index], ty, hex };
            index += 1;
        }
        Self { name, fields: described, id: AtomicU16::new(0), kinds: PhantomData }
    }

    /// Records an event with the process's [`tracer()`]. Returns whether it was recorded: `false` when nobody wants it,
    /// or it was lost (and counted).
    #[inline]
    pub fn record(&'static self, values: F::Values<'_>) -> bool {
        self.record_with(tracer(), values)
    }

    /// [`record`](Self::record) with another tracer than the process's own.
    #[inline]
    pub fn record_with(&'static self, tracer: &Tracer, values: F::Values<'_>) -> bool {
        tracer.is_wanted() && self.record_wanted(tracer, values)
    }

    /// Apart from the test before it, which is all that most events do most of the time.
    fn record_wanted(&'static self, tracer: &Tracer, values: F::Values<'_>) -> bool {
        tracer.record(self, F::size(values), |payload| F::put(values, payload))
    }

    /// Describes the type to the host now rather than with its first event. An event type that signal handlers record
    /// must have been registered outside of them.
    pub fn register(&'static self, tracer: &Tracer) -> bool {
        tracer.register(self)
    }

    #[cold]
    fn take_id(&self) -> u16 {
        let id = next_id();
        // Another thread may have been faster; the id taken here is never used then.
        self.id.compare_exchange(0, id, Ordering::Relaxed, Ordering::Relaxed).map_or_else(|taken| taken, |_| id)
    }
}

/// What a tracer has to know of an event type.
pub(crate) trait Describe {
    /// Id of the event type in this process.
    fn id(&self) -> u16;

    /// Description of the event type, as the registry takes it.
    fn event(&'static self) -> Event;
}

impl<F: Fields> Describe for EventType<F> {
    #[inline(always)]
    fn id(&self) -> u16 {
        match self.id.load(Ordering::Relaxed) {
            0 => self.take_id(),
            id => id,
        }
    }

    fn event(&'static self) -> Event {
        let fields = self.fields.get(..F::KINDS.len()).unwrap_or_default();
        Event { id: self.id(), class: class::USER, name: self.name, fields }
    }
}

/// Records an event that is declared where it happens: a name (`group:event`), then fields as `name: Kind = value`.
///
/// ```
/// use guest_agent::{Hex, Text, event};
///
/// let (path, flags) = ("/index.html", 0x10_u32);
/// event!("shop:request", number: u64 = 17, path: Text = path, flags: Hex<u32> = flags);
/// event!("shop:idle");
/// ```
///
/// The values are computed only if a session wants applications' events; otherwise an event costs two loads, a test and
/// a branch. The result says whether the event was recorded.
#[macro_export]
macro_rules! event {
    ($name:literal $(, $field:ident : $kind:ty = $value:expr)* $(,)?) => {{
        static EVENT: $crate::EventType<($($kind,)*)> = $crate::EventType::new($name, &[$(::core::stringify!($field)),*]);
        if $crate::tracer().is_wanted() { EVENT.record(($($value,)*)) } else { false }
    }};
}

/// Whether a trace can hold `name` as it is.
pub(crate) const fn is_name(name: &str, of_event: bool) -> bool {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.len() > MAX_NAME || (!of_event && bytes[0].is_ascii_digit()) {
        return false;
    }
    let mut index = 0;
    while index < bytes.len() {
        let allowed = match bytes[index] {
            b'_' => true,
            b':' | b'.' | b'-' => of_event,
            other => other.is_ascii_alphanumeric(),
        };
        if !allowed {
            return false;
        }
        index += 1;
    }
    true
}

const fn is_same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    if one.len() != other.len() {
        return false;
    }
    let mut index = 0;
    while index < one.len() {
        if one[index] != other[index] {
            return false;
        }
        index += 1;
    }
    true
}

/// Where a record's fields are written, one after another.
#[derive(Debug)]
pub struct Payload<'r> {
    bytes: &'r mut [u8],
    at: usize,
}

impl<'r> Payload<'r> {
    /// A payload that fills `bytes`.
    pub(crate) const fn new(bytes: &'r mut [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Appends `bytes`; what does not fit is left out.
    #[inline(always)]
    pub fn put(&mut self, bytes: &[u8]) {
        if let Some(to) = self.bytes.get_mut(self.at..self.at + bytes.len()) {
            to.copy_from_slice(bytes);
        }
        self.at += bytes.len();
    }
}

/// What a field holds, and how a value becomes bytes.
pub trait Kind {
    /// Type of the field in the trace.
    const TYPE: FieldType;
    /// Whether the field is shown in hexadecimal.
    const HEX: bool = false;
    /// A value of the field.
    type Value<'a>: Copy;

    /// Bytes that `value` takes.
    fn size(value: Self::Value<'_>) -> usize;

    /// Writes exactly [`size`](Self::size) bytes.
    fn put(value: Self::Value<'_>, payload: &mut Payload<'_>);
}

macro_rules! integers {
    ($($integer:ty => $ty:ident),*) => {$(
        impl Kind for $integer {
            const TYPE: FieldType = FieldType::$ty;
            type Value<'a> = $integer;

            #[inline(always)]
            fn size(_: $integer) -> usize {
                size_of::<$integer>()
            }

            #[inline(always)]
            fn put(value: $integer, payload: &mut Payload<'_>) {
                payload.put(&value.to_le_bytes());
            }
        }
    )*};
}

integers!(u8 => U8, u16 => U16, u32 => U32, u64 => U64, usize => U64);
integers!(i8 => I8, i16 => I16, i32 => I32, i64 => I64, isize => I64);

impl Kind for bool {
    const TYPE: FieldType = FieldType::U8;
    type Value<'a> = bool;

    #[inline(always)]
    fn size(_: bool) -> usize {
        1
    }

    #[inline(always)]
    fn put(value: bool, payload: &mut Payload<'_>) {
        payload.put(&[u8::from(value)]);
    }
}

/// An integer shown in hexadecimal: addresses, masks.
#[derive(Debug)]
pub struct Hex<T>(PhantomData<T>);

impl<T: Kind> Kind for Hex<T> {
    const TYPE: FieldType = T::TYPE;
    const HEX: bool = true;
    type Value<'a> = T::Value<'a>;

    #[inline(always)]
    fn size(value: Self::Value<'_>) -> usize {
        T::size(value)
    }

    #[inline(always)]
    fn put(value: Self::Value<'_>, payload: &mut Payload<'_>) {
        T::put(value, payload);
    }
}

/// Text, recorded up to its first NUL character and up to [`MAX_TEXT`] bytes.
#[derive(Debug)]
pub struct Text;

impl Text {
    #[inline(always)]
    pub(crate) fn content(text: &str) -> &[u8] {
        let bytes = &text.as_bytes()[..text.floor_char_boundary(MAX_TEXT)];
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        &bytes[..end]
    }
}

impl Kind for Text {
    const TYPE: FieldType = FieldType::String;
    type Value<'a> = &'a str;

    #[inline(always)]
    fn size(text: &str) -> usize {
        Self::content(text).len() + 1
    }

    #[inline(always)]
    fn put(text: &str, payload: &mut Payload<'_>) {
        payload.put(Self::content(text));
        payload.put(&[0]);
    }
}

/// The fields of an event: a tuple of [`Kind`]s.
pub trait Fields {
    /// Type of each field in the trace, and whether it is shown in hexadecimal.
    const KINDS: &'static [(FieldType, bool)];
    /// The tuple of the fields' values.
    type Values<'a>: Copy;

    /// Bytes of the payload.
    fn size(values: Self::Values<'_>) -> usize;

    /// Writes exactly [`size`](Self::size) bytes.
    fn put(values: Self::Values<'_>, payload: &mut Payload<'_>);
}

macro_rules! tuples {
    ($(($($kind:ident $value:ident),*))*) => {$(
        impl<$($kind: Kind),*> Fields for ($($kind,)*) {
            const KINDS: &'static [(FieldType, bool)] = &[$(($kind::TYPE, $kind::HEX)),*];
            type Values<'a> = ($($kind::Value<'a>,)*);

            #[inline(always)]
            fn size(($($value,)*): Self::Values<'_>) -> usize {
                0 $(+ $kind::size($value))*
            }

            #[inline(always)]
            fn put(($($value,)*): Self::Values<'_>, _payload: &mut Payload<'_>) {
                $($kind::put($value, _payload);)*
            }
        }
    )*};
}

tuples! {
    ()
    (A a)
    (A a, B b)
    (A a, B b, C c)
    (A a, B b, C c, D d)
    (A a, B b, C c, D d, E e)
    (A a, B b, C c, D d, E e, F f)
    (A a, B b, C c, D d, E e, F f, G g)
    (A a, B b, C c, D d, E e, F f, G g, H h)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_become_the_bytes_that_the_fields_say() {
        type Shape = (u16, Hex<u32>, Text, i8);
        let values = (0x0102, 0xdead_beef, "hello\0hidden", -1);
        let mut bytes = [0xaa; 13];

        let size = Shape::size(values);
        Shape::put(values, &mut Payload::new(&mut bytes));

        assert_eq!(size, 13);
        assert_eq!(&bytes, b"\x02\x01\xef\xbe\xad\xdehello\0\xff");
    }

    #[test]
    fn payload_never_leaves_its_bytes() {
        let mut bytes = [0; 3];

        <(u16, u32)>::put((1, 2), &mut Payload::new(&mut bytes));

        assert_eq!(bytes, [1, 0, 0]);
    }

    #[test]
    fn types_get_different_ids() {
        static FIRST: EventType<()> = EventType::new("test:first", &[]);
        static SECOND: EventType<(Hex<u64>,)> = EventType::new("test:second", &["address"]);

        let (first, second) = (FIRST.event(), SECOND.event());

        assert_ne!(first.id, second.id);
        assert_eq!((FIRST.event().id, first.fields), (first.id, [].as_slice()));
        assert_eq!(second.fields, [Field::hex("address", FieldType::U64)]);
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        let text = "x".repeat(MAX_TEXT - 1) + "\u{fc}ber";

        let content = Text::content(&text);

        assert_eq!((content.len(), Text::size(&text)), (MAX_TEXT - 1, MAX_TEXT));
    }

    #[test]
    fn values_are_computed_only_if_they_are_wanted() {
        tracer().connect();
        let wanted = tracer().is_wanted();
        let mut computed = false;

        crate::event!("test:masked", value: u32 = { computed = true; 1 }, on: bool = true);

        assert_eq!(computed, wanted);
    }

    #[test]
    #[should_panic(expected = "same name")]
    fn fields_of_one_name_are_refused() {
        let _ = EventType::<(u8, u8)>::new("test:twice", &["a", "a"]);
    }

    #[test]
    #[should_panic(expected = "letters, digits")]
    fn name_that_a_trace_cannot_hold_is_refused() {
        let _ = EventType::<()>::new("two words", &[]);
    }
}
