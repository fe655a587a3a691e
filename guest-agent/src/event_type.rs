//! Event types of an application: a name and typed fields, known at compile time.

use crate::describe::{Describe, is_name, next_id};
use crate::fields::Fields;
use crate::tracer::{Tracer, tracer};
use shared_ring::event::{Event, Field, FieldType};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU16, Ordering};
use strata_abi::class;

/// Most fields of an event type that is known at compile time.
pub const MAX_STATIC_FIELDS: usize = 8;

/// A type of event: declare it as a `static`, then [`record`](Self::record). Events that are recorded at one place only
/// are shorter with [`event!`](crate::event).
///
/// `F` is the tuple of its fields' [`Kind`](crate::Kind)s, up to [`MAX_STATIC_FIELDS`]: integers, `f64`, `bool`,
/// [`Hex`](crate::Hex) integers, and [`Text`](crate::Text).
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

    /// Apart from the test before it, which is all that most events do most of the time: inlined, it takes the registers
    /// of the code around an event that nobody wants.
    #[inline(never)]
    fn record_wanted(&'static self, tracer: &Tracer, values: F::Values<'_>) -> bool {
        tracer.record(self, F::size(values), |payload| F::put(values, payload))
    }

    /// Describes the type to the host now rather than with its first event. An event type that signal handlers record
    /// should have been registered outside of them: a handler that interrupts its thread while that registers one loses
    /// the record, which is counted.
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
        // A name that no value uses: it hides what the program calls by it.
        static __STRATA_EVENT: $crate::EventType<($($kind,)*)> =
            $crate::EventType::new($name, &[$(::core::stringify!($field)),*]);
        if $crate::tracer().is_wanted() { __STRATA_EVENT.record(($($value,)*)) } else { false }
    }};
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::Hex;

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
    fn values_are_computed_only_if_they_are_wanted() {
        tracer().connect();
        let wanted = tracer().is_wanted();
        let mut computed = false;

        crate::event!("test:masked", value: u32 = { computed = true; 1 }, on: bool = true);

        assert_eq!(computed, wanted);
    }

    #[test]
    fn values_may_name_what_the_program_calls_event() {
        const EVENT: u32 = 7;

        let recorded = crate::event!("test:named", value: u32 = EVENT);

        assert_eq!(recorded, tracer().is_enabled());
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
