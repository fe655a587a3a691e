//! What lines are made of: for each stream and event type, the text that is the same in all of its lines is put together
//! before the first one is written.

use super::current_task::Task;
use super::line::{Lines, Literal};
use super::time::Times;
use shared_ring::event::FieldDescription;
use strata_analysis::event::named::Named;
use strata_recording::layer::LayerKind;
use strata_recording::merge::MergedRecord;
use strata_recording::reader::{Stream, TraceLayer};
use strata_recording::schema::{Elements, PlacedField, Schema, Value};

/// A form of listing: how a line is put together.
pub(super) trait Form: Sync {
    /// What comes between the time and the task, for the records of `stream`.
    fn prefix(&self, layer: &TraceLayer, stream: &Stream) -> Vec<u8>;

    /// Writes the task of a record of a kernel, and what comes between it and the event; `is_same` says whether the line
    /// before is the same task's in the same stream.
    fn task(&self, lines: &mut Lines, task: Option<Task<'_>>, is_same: bool);

    /// What comes between [`Form::prefix`] and the event in place of a task, for the records of other layers; `is_same`
    /// says whether the line before is of the same stream.
    fn no_task(&self, layer: &TraceLayer, is_same: bool) -> Vec<u8>;

    /// What stands before the first field's value: the event and the field's name.
    fn event(schema: &Schema, first: &FieldDescription) -> Vec<u8>;

    /// What stands between the value before it and this field's.
    fn field(field: &FieldDescription) -> Vec<u8>;

    /// What stands after the last value.
    const END: &'static [u8];

    /// An event without fields and what comes after it.
    fn empty_event(schema: &Schema) -> Vec<u8>;

    /// Writes the time of a record, with which a line begins; `before` is that of the line before.
    fn time(&self, lines: &mut Lines, times: &mut Times<'_>, time: u64, before: Option<u64>);

    /// Writes what a number stands for, a `kind` of thing with this name, after the number.
    fn meaning(lines: &mut Lines, kind: &str, name: &str);

    /// Writes the field with a system call's arguments, which have these names.
    fn arguments(lines: &mut Lines, field: &FieldPlan, values: Elements<'_>, names: &[&str]);

    /// How the field's unsigned numbers are written.
    fn notation(field: &FieldDescription) -> Notation;

    /// Writes text.
    fn text(lines: &mut Lines, text: &[u8]);

    /// What stands between the elements of an array.
    const BETWEEN: &'static [u8];
}

/// How unsigned numbers are written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Notation {
    Decimal,
    Hexadecimal,
    /// Hexadecimal, as text.
    Quoted,
}

/// A line that was written: what the next one is compared with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before<'t> {
    time: u64,
    source: usize,
    task: Option<Task<'t>>,
}

impl<'t> Before<'t> {
    /// The line of a record of the merge, which belongs to `task`.
    pub(super) const fn of(merged: &MergedRecord<'t>, task: Option<Task<'t>>) -> Self {
        Self { time: merged.record.time, source: merged.source, task }
    }
}

/// How the records of a merge become lines.
#[derive(Debug)]
pub(super) struct Plan<F> {
    form: F,
    sources: Vec<SourcePlan>,
    /// By layer, then by the event type's position in it.
    events: Vec<Vec<EventPlan>>,
}

#[derive(Debug)]
struct SourcePlan {
    prefix: Literal,
    /// The same behind a line of the same source.
    prefix_again: Literal,
    /// Whether a task follows the prefix.
    has_tasks: bool,
    /// Index in [`Plan::events`].
    layer: usize,
}

#[derive(Debug)]
struct EventPlan {
    fields: Vec<FieldPlan>,
    end: Literal,
    /// The field whose numbers have names, if there is one.
    named: Option<Named>,
}

/// How a field is shown.
#[derive(Debug)]
pub(super) struct FieldPlan {
    /// What stands before its value.
    pub(super) before: Literal,
    /// Where the value lies, if that is the same in all payloads.
    place: Option<PlacedField>,
    notation: Notation,
}

impl FieldPlan {
    /// Writes `value` without what stands before it.
    #[inline]
    pub(super) fn value<F: Form>(&self, lines: &mut Lines, value: Value<'_>) {
        match (value, self.notation) {
            (Value::Unsigned(number), Notation::Decimal) => lines.decimal(number),
            (Value::Unsigned(number), Notation::Hexadecimal) => lines.hex(number),
            (Value::Unsigned(number), Notation::Quoted) => {
                lines.push(b'"');
                lines.hex(number);
                lines.push(b'"');
            }
            (Value::Signed(number), _) => lines.signed(number),
            (Value::Text(text), _) => F::text(lines, text),
            (Value::Array(elements), _) => self.array::<F>(lines, elements),
        }
    }

    fn array<F: Form>(&self, lines: &mut Lines, elements: Elements<'_>) {
        lines.push(b'[');
        for (index, element) in elements.iter().enumerate() {
            lines.extend(if index == 0 { b"" } else { F::BETWEEN });
            self.value::<F>(lines, element);
        }
        lines.push(b']');
    }
}

impl<F: Form> Plan<F> {
    /// How `form` shows the records of a merge of `streams`.
    pub(super) fn new(form: F, streams: &[(&TraceLayer, &Stream)]) -> Self {
        let (mut sources, mut events) = (Vec::new(), Vec::new());
        let mut last: Option<&TraceLayer> = None;
        for &(layer, stream) in streams {
            // The streams of a layer follow one another.
            if !last.is_some_and(|last| std::ptr::eq(last, layer)) {
                events.push(layer.schemas.iter().map(EventPlan::new::<F>).collect());
                last = Some(layer);
            }
            let has_tasks = matches!(layer.description.kind, LayerKind::HostKernel | LayerKind::GuestKernel);
            let prefix = |is_same| {
                let task = if has_tasks { Vec::new() } else { form.no_task(layer, is_same) };
                Literal::from(&[form.prefix(layer, stream), task].concat()[..])
            };
            let layer = events.len() - 1;
            sources.push(SourcePlan { prefix: prefix(false), prefix_again: prefix(true), has_tasks, layer });
        }
        Self { form, sources, events }
    }

    /// Writes the line of a record of the merge, which belongs to `task`, behind the line `before`.
    #[inline]
    pub(super) fn write(
        &self,
        lines: &mut Lines,
        times: &mut Times<'_>,
        merged: &MergedRecord<'_>,
        task: Option<Task<'_>>,
        before: Option<Before<'_>>,
    ) {
        let schema = merged.record.schema;
        let source = &self.sources[merged.source];
        let event = &self.events[source.layer][schema.position()];
        self.form.time(lines, times, merged.record.time, before.map(|before| before.time));
        let same_source = before.filter(|before| before.source == merged.source);
        lines.literal(if same_source.is_some() { &source.prefix_again } else { &source.prefix });
        if source.has_tasks {
            self.form.task(lines, task, same_source.is_some_and(|before| before.task == task));
        }
        if let Some(named) = &event.named {
            return Self::write_named(lines, event, named, merged);
        }
        for (field, value) in event.values(schema, merged.record.payload) {
            lines.literal(&field.before);
            field.value::<F>(lines, value);
        }
        lines.literal(&event.end);
    }

    /// Writes the fields of a record with the meaning of one of them, and the names of a system call's arguments.
    fn write_named(lines: &mut Lines, event: &EventPlan, named: &Named, merged: &MergedRecord<'_>) {
        let payload = merged.record.payload;
        let number = named.number(payload);
        let arguments = number.and_then(|number| named.arguments(number, payload));
        for (position, (field, value)) in event.values(merged.record.schema, payload).enumerate() {
            if let (Value::Array(values), Some(names)) = (value, arguments) {
                F::arguments(lines, field, values, names);
                continue;
            }
            lines.literal(&field.before);
            field.value::<F>(lines, value);
            if position == named.position
                && let Some((kind, name)) = number.and_then(|number| named.name(number, payload))
            {
                F::meaning(lines, kind, &name);
            }
        }
        lines.literal(&event.end);
    }
}

impl EventPlan {
    fn new<F: Form>(schema: &Schema) -> Self {
        let fields = &schema.description().fields;
        let Some((first, others)) = fields.split_first() else {
            return Self { fields: Vec::new(), end: Literal::from(&F::empty_event(schema)[..]), named: None };
        };
        let before = std::iter::once(F::event(schema, first)).chain(others.iter().map(F::field));
        let plan = |(number, (before, field)): (usize, (Vec<u8>, &FieldDescription))| FieldPlan {
            before: Literal::from(&before[..]),
            place: schema.placed_fields().get(number).copied(),
            notation: F::notation(field),
        };
        Self {
            fields: before.zip(fields).enumerate().map(plan).collect(),
            end: Literal::from(F::END),
            named: Named::of(schema),
        }
    }

    /// The fields with their values in `payload`; ends early where the payload does.
    #[inline]
    fn values<'p>(&'p self, schema: &'p Schema, payload: &'p [u8]) -> impl Iterator<Item = (&'p FieldPlan, Value<'p>)> {
        let mut others = None;
        self.fields.iter().map_while(move |field| {
            let value = match field.place {
                Some(place) => place.read(payload)?,
                None => others.get_or_insert_with(|| schema.values_behind_placed(payload)).next()?,
            };
            Some((field, value))
        })
    }
}
