//! Event types of an application: a name and typed fields, known at compile time.

use crate::tracer::{Tracer, tracer};
use shared_ring::event::{Event, Field, FieldType, MAX_FIELDS, MAX_NAME, class};
use shared_ring::layout::MAX_EVENTS;
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

/// The next id to be given to an event type of this process.
static NEXT_ID: AtomicU16 = AtomicU16::new(1);

/// A type of event: declare it as a `static`, then [`record`](Self::record).
///
/// `F` is the tuple of its fields' [`Kind`]s, up to eight: integers, [`Hex`] integers, and [`Text`].
#[derive(Debug)]
pub struct EventType<F> {
    name: &'static str,
    fields: &'static [&'static str],
    described: OnceLock<Option<Event>>,
    kinds: PhantomData<fn() -> F>,
}

impl<F: Fields> EventType<F> {
    /// An event type `name` (`group:event`) whose fields are called `fields`.
    ///
    /// # Panics
    /// When the numbers of names and kinds differ, or a name holds other characters than letters, digits and `_` (for
    /// the event also `:`, `.` and `-`). In a `static` this is an error at compile time.
    #[must_use]
    pub const fn new(name: &'static str, fields: &'static [&'static str]) -> Self {
        assert!(fields.len() == F::KINDS.len() && fields.len() <= MAX_FIELDS, "as many names as kinds of fields");
        assert!(is_name(name, true), "an event's name is letters, digits, '_', ':', '.', '-'");
        let mut index = 0;
        while index < fields.len() {
            assert!(is_name(fields[index], false), "a field's name is letters, digits and '_'");
            index += 1;
        }
        Self { name, fields, described: OnceLock::new(), kinds: PhantomData }
    }

    /// Records an event with the process's [`tracer()`]. Returns whether it was recorded: `false` when nobody wants it,
    /// or it was lost (and counted).
    #[inline]
    pub fn record(&self, values: F::Values<'_>) -> bool {
        self.record_with(tracer(), values)
    }

    /// [`record`](Self::record) with another tracer than the process's own.
    #[inline]
    pub fn record_with(&self, tracer: &Tracer, values: F::Values<'_>) -> bool {
        if !tracer.is_enabled() {
            return false;
        }
        let Some(event) = self.described() else { return false };
        tracer.record(event, F::size(values), |payload| F::put(values, payload))
    }

    /// Describes the type to the host now rather than with its first event. An event type that signal handlers record
    /// must have been registered outside of them.
    pub fn register(&self, tracer: &Tracer) -> bool {
        self.described().is_some_and(|event| tracer.register(event))
    }

    /// The type with the id it has in this process; `None` when the process has too many types.
    #[inline]
    fn described(&self) -> Option<&Event> {
        self.described.get_or_init(|| self.describe()).as_ref()
    }

    #[cold]
    fn describe(&self) -> Option<Event> {
        let limit = u16::try_from(MAX_EVENTS).unwrap_or(u16::MAX);
        let id =
            NEXT_ID.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |id| (id < limit).then_some(id + 1)).ok()?;
        let fields: Vec<Field> =
            self.fields.iter().zip(F::KINDS).map(|(name, &(ty, hex))| Field { name, ty, hex }).collect();
        // Once per event type, which are statics themselves.
        Some(Event { id, class: class::USER, name: self.name, fields: fields.leak() })
    }
}

/// Whether a trace can hold `name` as it is.
const fn is_name(name: &str, of_event: bool) -> bool {
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
    /// Type in the trace.
    const TYPE: FieldType;
    /// Shown in hexadecimal.
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

integers!(u8 => U8, u16 => U16, u32 => U32, u64 => U64, i8 => I8, i16 => I16, i32 => I32, i64 => I64);

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

/// Text of any length, recorded up to its first NUL character.
#[derive(Debug)]
pub struct Text;

impl Text {
    #[inline(always)]
    fn content(text: &str) -> &[u8] {
        let bytes = text.as_bytes();
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
    /// The tuple of their values.
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

        let (first, second) = (FIRST.described().unwrap(), SECOND.described().unwrap());

        assert_ne!(first.id, second.id);
        assert_eq!(second.fields, [Field::hex("address", FieldType::U64)]);
    }

    #[test]
    #[should_panic(expected = "letters, digits")]
    fn name_that_a_trace_cannot_hold_is_refused() {
        let _ = EventType::<()>::new("two words", &[]);
    }
}
