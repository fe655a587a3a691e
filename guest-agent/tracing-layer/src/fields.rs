//! The values of a span or event on their way into a record.

use guest_agent::{FieldType, MAX_TEXT, put_text};
use std::cell::RefCell;
use std::fmt::{self, Write};
use tracing_core::Level;
use tracing_core::field::{Field, Visit};

/// Field with the id of the span that a record belongs to.
pub(crate) const SPAN: &str = "span";
/// Field with the id of the span in which a new one was made.
pub(crate) const PARENT: &str = "parent";
const LEVEL: &str = "level";

/// Most values of a record: as many as an event type has fields.
const MAX_VALUES: usize = guest_agent::MAX_FIELDS;

/// Names, types and bytes of the values so far.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    described: Vec<(&'static str, FieldType)>,
    payload: Vec<u8>,
    /// Text on its way to the payload.
    text: String,
}

impl Fields {
    /// Lends `action` empty fields, whose memory the thread keeps.
    pub(crate) fn with(action: impl FnOnce(&mut Self)) {
        thread_local! {
            static FIELDS: RefCell<Fields> = RefCell::default();
        }
        let mut action = Some(action);
        let mut act = |fields: &mut Self| {
            fields.described.clear();
            fields.payload.clear();
            if let Some(action) = action.take() {
                action(fields);
            }
        };
        // In use when displaying a value records events of its own; gone when the thread ends.
        let lent = FIELDS.try_with(|fields| fields.try_borrow_mut().map(|mut fields| act(&mut fields)));
        if !matches!(lent, Ok(Ok(()))) {
            act(&mut Self::default());
        }
    }

    /// Names and types, in the order of their bytes.
    pub(crate) fn described(&self) -> &[(&'static str, FieldType)] {
        &self.described
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.payload
    }

    fn put(&mut self, name: &'static str, ty: FieldType, bytes: &[u8]) {
        if self.described.len() < MAX_VALUES {
            self.described.push((name, ty));
            self.payload.extend_from_slice(bytes);
        }
    }

    pub(crate) fn put_u64(&mut self, name: &'static str, value: u64) {
        self.put(name, FieldType::U64, &value.to_le_bytes());
    }

    pub(crate) fn put_level(&mut self, level: Level) {
        let number = match level {
            Level::ERROR => 1,
            Level::WARN => 2,
            Level::INFO => 3,
            Level::DEBUG => 4,
            Level::TRACE => 5,
        };
        self.put(LEVEL, FieldType::U8, &[number]);
    }

    fn put_text(&mut self, name: &'static str, text: &str) {
        if self.described.len() < MAX_VALUES {
            self.described.push((name, FieldType::String));
            put_text(&mut self.payload, text.as_bytes());
        }
    }

    fn put_displayed(&mut self, name: &'static str, value: fmt::Arguments<'_>) {
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        // A value that cannot be displayed is recorded as far as it goes.
        let _ = text.write_fmt(value);
        self.put_text(name, &text);
        // The thread keeps no more of it than a field takes.
        text.clear();
        text.shrink_to(MAX_TEXT);
        self.text = text;
    }
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put_u64(field.name(), value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field.name(), FieldType::I64, &value.to_le_bytes());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field.name(), FieldType::F64, &value.to_le_bytes());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field.name(), FieldType::U8, &[u8::from(value)]);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put_text(field.name(), value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.put_displayed(field.name(), format_args!("{}", WithSources(value)));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put_displayed(field.name(), format_args!("{value:?}"));
    }
}

/// An error and its sources.
struct WithSources<'e>(&'e (dyn std::error::Error + 'static));

impl fmt::Display for WithSources<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.0)?;
        let mut sources = std::iter::successors(self.0.source(), |error| error.source());
        sources.try_for_each(|source| write!(formatter, ": {source}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_large_value_is_given_back() {
        let mut fields = Fields::default();

        fields.put_displayed("large", format_args!("{}", "x".repeat(100 * MAX_TEXT)));

        assert!(fields.text.capacity() <= 2 * MAX_TEXT);
        assert_eq!(fields.payload().len(), MAX_TEXT + 1);
    }
}
