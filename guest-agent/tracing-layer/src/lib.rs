//! A layer for [`tracing-subscriber`](tracing_subscriber) by which the spans and events of a program become records of
//! the trace of the guest that it runs in, by two lines:
//!
//! ```
//! use tracing_subscriber::layer::SubscriberExt as _;
//! use tracing_subscriber::util::SubscriberInitExt as _;
//!
//! tracing_subscriber::registry().with(tracing_strata::layer()).init();
//!
//! let _order = tracing::info_span!("order", number = 17).entered();
//! tracing::info!(pieces = 2, what = "bread", "sold");
//! ```
//!
//! | in the program | in the trace |
//! |---|---|
//! | `info!` in module `shop::till`, file `till.rs`, line 9 | `shop.till:till.rs-9` |
//! | `info!(name: "sold", …)` | `shop.till:sold` |
//! | a span `order` is made, entered, left, given values, closed | `shop.till:order-new`, `-enter`, `-exit`, `-record`, `-close` |
//!
//! Numbers and booleans keep their types; everything else is recorded as the text that it is displayed as, an error with
//! its sources. Each record says in the field `span` which span it belongs to (0 for none), and in `level` how severe it
//! is: 1 (error) to 5 (trace). A place that records values of different types at different times gets an event type for
//! each combination.
//!
//! Where nothing traces, or no session wants applications' events, a span or event costs two loads and a branch more
//! than without the layer.

mod fields;
mod types;

use fields::{Fields, SPAN};
use guest_agent::{RuntimeEventType, Tracer, tracer};
use std::fmt;
use tracing_core::span::{Attributes, Id, Record};
use tracing_core::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;
use types::{Step, Types};

/// The layer. Filters go in front of it as of any other: `layer().with_filter(…)`.
#[must_use]
pub const fn layer() -> StrataLayer {
    StrataLayer { sink: &Guest }
}

/// Records spans and events; made by [`layer`].
#[derive(Debug)]
pub struct StrataLayer {
    sink: &'static dyn Sink,
}

/// Where records go.
trait Sink: fmt::Debug + Sync {
    /// Whether a record might be kept.
    fn is_wanted(&self) -> bool;
    /// Keeps a record.
    fn record(&self, event_type: &'static RuntimeEventType, payload: &[u8]);
    /// Counts a record that there is no type for.
    fn count_lost(&self);
}

/// The trace of the guest.
#[derive(Debug)]
struct Guest;

impl Sink for Guest {
    #[inline]
    fn is_wanted(&self) -> bool {
        tracer().is_wanted()
    }

    fn record(&self, event_type: &'static RuntimeEventType, payload: &[u8]) {
        let tracer: &Tracer = tracer();
        event_type.record(tracer, payload.len(), |to| to.put(payload));
    }

    fn count_lost(&self) {
        tracer().count_unrecorded();
    }
}

impl StrataLayer {
    fn record(&self, metadata: &'static Metadata<'static>, step: Step, fields: &Fields) {
        match Types::of_thread(metadata, step, fields) {
            Some(event_type) => self.sink.record(event_type, fields.payload()),
            None => self.sink.count_lost(),
        }
    }

    /// Records what happens to a span that exists.
    fn step<S>(&self, id: &Id, step: Step, context: &Context<'_, S>)
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        if self.sink.is_wanted()
            && let Some(span) = context.span(id)
        {
            Fields::with(|fields| {
                fields.put_u64(SPAN, id.into_u64());
                self.record(span.metadata(), step, fields);
            });
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for StrataLayer {
    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        if !self.sink.is_wanted() {
            return;
        }
        Fields::with(|fields| {
            fields.put_u64(SPAN, context.event_span(event).map_or(0, |span| span.id().into_u64()));
            fields.put_level(*event.metadata().level());
            event.record(fields);
            self.record(event.metadata(), Step::Event, fields);
        });
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if !self.sink.is_wanted() {
            return;
        }
        let parent = context.span(id).and_then(|span| span.parent().map(|parent| parent.id().into_u64()));
        Fields::with(|fields| {
            fields.put_u64(SPAN, id.into_u64());
            fields.put_u64(fields::PARENT, parent.unwrap_or(0));
            fields.put_level(*attributes.metadata().level());
            attributes.record(fields);
            self.record(attributes.metadata(), Step::New, fields);
        });
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if self.sink.is_wanted()
            && let Some(span) = context.span(id)
        {
            Fields::with(|fields| {
                fields.put_u64(SPAN, id.into_u64());
                values.record(fields);
                self.record(span.metadata(), Step::Record, fields);
            });
        }
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        self.step(id, Step::Enter, &context);
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        self.step(id, Step::Exit, &context);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        self.step(&id, Step::Close, &context);
    }
}

/// The examples of `docs/applications.md` compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/applications.md")]
struct ApplicationsDocument;

#[cfg(test)]
mod tests {
    use super::*;
    use guest_agent::FieldType;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tracing_subscriber::layer::SubscriberExt as _;

    /// Keeps what it is given.
    #[derive(Debug, Default)]
    struct Kept {
        records: Mutex<Vec<(&'static RuntimeEventType, Vec<u8>)>>,
        lost: AtomicUsize,
        deaf: bool,
    }

    impl Sink for Kept {
        fn is_wanted(&self) -> bool {
            !self.deaf
        }

        fn record(&self, event_type: &'static RuntimeEventType, payload: &[u8]) {
            self.records.lock().unwrap().push((event_type, payload.to_vec()));
        }

        fn count_lost(&self) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What is recorded of `program`: names, field types, payloads.
    fn recorded(deaf: bool, program: impl FnOnce()) -> Vec<(&'static str, Vec<FieldType>, Vec<u8>)> {
        let kept: &'static Kept = Box::leak(Box::new(Kept { deaf, ..Kept::default() }));
        let subscriber = tracing_subscriber::registry().with(StrataLayer { sink: kept });
        tracing::subscriber::with_default(subscriber, program);
        let records = kept.records.lock().unwrap();
        let types =
            |event: &RuntimeEventType| (0..event.fields()).filter_map(|index| event.field_type(index)).collect();
        records.iter().map(|(event, payload)| (event.name(), types(event), payload.clone())).collect()
    }

    #[test]
    fn values_keep_their_types() {
        let found = recorded(false, || {
            tracing::warn!(name: "typed", a = 1_u8, b = -2, c = true, d = "text", e = ?Some(3), f = 0.5, "message {}", 4);
        });

        let (name, types, payload) = &found[0];
        let string = FieldType::String;
        assert_eq!(*name, "tracing_strata.tests:typed");
        assert_eq!(
            types,
            &[
                FieldType::U64,
                FieldType::U8,
                string,
                FieldType::U64,
                FieldType::I64,
                FieldType::U8,
                string,
                string,
                FieldType::F64
            ]
        );
        assert_eq!(&payload[..9], &[0, 0, 0, 0, 0, 0, 0, 0, 2]);
        let end = [&b"\x01text\0Some(3)\0"[..], &0.5_f64.to_le_bytes()].concat();
        assert!(payload.ends_with(&end), "{payload:?}");
        assert!(payload.windows(10).any(|bytes| bytes == b"message 4\0"), "{payload:?}");
    }

    #[test]
    fn record_whose_type_cannot_be_described_is_counted_as_lost() {
        let kept: &'static Kept = Box::leak(Box::new(Kept::default()));
        let layer = StrataLayer { sink: kept };
        let of_span = || tracing::info_span!("large").metadata().unwrap();
        let metadata = tracing::subscriber::with_default(tracing_subscriber::registry(), of_span);

        Fields::with(|fields| {
            // More than a description has room for.
            (0..40).for_each(|number| fields.put_u64(Box::leak(format!("{number:0>100}").into_boxed_str()), 1));
            layer.record(metadata, Step::Event, fields);
        });

        assert_eq!((kept.records.lock().unwrap().len(), kept.lost.load(Ordering::Relaxed)), (0, 1));
    }

    #[derive(Debug)]
    struct NoNumber(std::num::ParseIntError);

    impl fmt::Display for NoNumber {
        fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("no number")
        }
    }

    impl std::error::Error for NoNumber {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn error_is_recorded_with_its_sources() {
        let error = NoNumber("x".parse::<u8>().unwrap_err());
        let error: &(dyn std::error::Error + 'static) = &error;

        let found = recorded(false, || tracing::info!(name: "failed", error));

        assert!(found[0].2.ends_with(b"\x03no number: invalid digit found in string\0"), "{found:?}");
    }

    #[test]
    fn spans_are_recorded_from_their_making_to_their_end() {
        let found = recorded(false, || {
            let span = tracing::info_span!("order", number = 17_u64, total = tracing::field::Empty);
            span.in_scope(|| tracing::info!(name: "sold", pieces = 2));
            span.record("total", 5);
        });

        let names: Vec<_> = found.iter().map(|(name, ..)| name.rsplit(':').next().unwrap()).collect();
        assert_eq!(names, ["order-new", "order-enter", "sold", "order-exit", "order-record", "order-close"]);
        let spans: Vec<_> = found.iter().map(|(_, _, payload)| &payload[..8]).collect();
        assert!(spans[0] != [0; 8] && spans.iter().all(|span| *span == spans[0]), "{spans:?}");
    }

    #[test]
    fn place_with_values_of_two_types_has_two_event_types() {
        fn place(value: &dyn tracing_core::field::Value) {
            tracing::info!(name: "place", value);
        }

        let found = recorded(false, || {
            let values: [&dyn tracing_core::field::Value; 3] = [&1_u64, &"one", &2_u64];
            values.into_iter().for_each(place);
        });

        let value_types: Vec<_> = found.iter().map(|(_, types, _)| types[2]).collect();
        assert_eq!(value_types, [FieldType::U64, FieldType::String, FieldType::U64]);
    }

    #[test]
    fn event_without_a_name_is_called_by_its_place() {
        let found = recorded(false, || tracing::info!("here"));

        assert!(found[0].0.starts_with("tracing_strata.tests:lib.rs-"), "{}", found[0].0);
    }

    #[test]
    fn nothing_is_recorded_for_nobody() {
        assert_eq!(recorded(true, || tracing::info!("here")), []);
    }
}
