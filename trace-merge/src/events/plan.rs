//! What lines are made of: for each stream and event type, the text that is the same in all of its lines is put together
//! before the first one is written.

use super::current_task::Task;
use super::known::{Known, Number};
use super::line::{Lines, Literal};
use super::time::Times;
use shared_ring::event::{FieldDescription, FieldType};
use strata_analysis::address_symbols::AddressSymbols;
use strata_analysis::event::named::Named;
use strata_analysis::field_names::{FieldNames, Name};
use strata_analysis::kernel_symbols::SymbolOffset;
use strata_analysis::names::argument::ArgumentNames;
use strata_recording::layer::LayerKind;
use strata_recording::reader::{Stream, TraceLayer};
use strata_recording::schema::{Elements, PlacedField, Schema, Value};

/// A form of listing: how a line is put together.
pub(super) trait Form: Sync {
    /// What comes between the time and the task, for the records of `stream`.
    fn prefix(&self, layer: &TraceLayer, stream: &Stream) -> Vec<u8>;

    /// Writes the task of a record of a kernel, and what comes between it and the event.
    fn task(&self, lines: &mut Lines, task: Option<Task<'_>>);

    /// The same where the line before is the same task's in the same stream; `None` where it is written again.
    fn same_task(&self) -> Option<Vec<u8>>;

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

    /// What stands before and behind the name of what a field's number stands for, after the number: where `is_list`, before
    /// and behind the names of an array's numbers. `key` is what the name is called.
    fn around_name(key: &str, is_list: bool) -> [Vec<u8>; 2];

    /// What stands before and behind each name of a list.
    const QUOTE: &'static [u8];

    /// What stands in a list of names for a number without one.
    fn nameless(lines: &mut Lines, number: u64);

    /// Writes the field with a system call's arguments.
    fn arguments(lines: &mut Lines, field: &FieldPlan, values: Elements<'_>, call: &Call);

    /// How the field's unsigned numbers are written.
    fn notation(field: &FieldDescription) -> Notation;

    /// Writes text.
    fn text(lines: &mut Lines, text: &[u8]);

    /// What stands between the elements of an array.
    const BETWEEN: &'static [u8];
}

/// A system call whose arguments are known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    /// Names of the arguments.
    pub(super) names: &'static [&'static str],
    /// Names of their values, where some have any.
    pub(super) values: Option<&'static ArgumentNames>,
}

/// The bits of a number; `None` of what is none.
pub(super) const fn bits(value: Value<'_>) -> Option<u64> {
    match value {
        Value::Unsigned(number) => Some(number),
        Value::Signed(number) => Some(number.cast_unsigned()),
        Value::Text(_) | Value::Array(_) => None,
    }
}

/// How unsigned numbers are written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Notation {
    Decimal,
    Hexadecimal,
    /// Hexadecimal, as text.
    Quoted,
}

/// A record that is to be listed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Selected<'t> {
    /// Time, trace clock ticks.
    pub(super) time: u64,
    /// Its event type.
    pub(super) schema: &'t Schema,
    /// Its payload.
    pub(super) payload: &'t [u8],
    /// Number of its stream in the merge.
    pub(super) source: usize,
    /// Its task where one is known.
    pub(super) task: Option<Task<'t>>,
}

/// How the records of a merge become lines.
#[derive(Debug)]
pub(super) struct Plan<F> {
    form: F,
    sources: Vec<SourcePlan>,
    /// What stands for a task that is that of the line before, where it is not written again.
    same_task: Option<Literal>,
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
    /// The field with a system call, if there is one.
    call: Option<Named>,
}

/// How a field is shown.
#[derive(Debug)]
pub(super) struct FieldPlan {
    /// What stands before its value.
    pub(super) before: Literal,
    /// Where the value lies, if that is the same in all payloads.
    place: Option<PlacedField>,
    notation: Notation,
    /// What its numbers stand for, where they have names.
    names: Option<Box<Names>>,
}

/// The names of a field's numbers, and how they are written behind them.
#[derive(Debug)]
struct Names {
    /// Number of the field among those of the plan whose numbers have names; `None` where these are too many to be kept.
    field: Option<u32>,
    before: Literal,
    behind: Literal,
    names: FieldNames,
}

impl FieldPlan {
    /// Writes `value` without what stands before it.
    pub(super) fn value<F: Form>(&self, lines: &mut Lines, value: Value<'_>) {
        match value {
            Value::Unsigned(bits) => self.bits(lines, bits, false),
            Value::Signed(number) => self.bits(lines, number.cast_unsigned(), true),
            Value::Text(text) => F::text(lines, text),
            Value::Array(elements) => self.array::<F>(lines, elements),
        }
    }

    /// Writes the number that is `bits`, with a sign or without.
    #[inline(always)]
    fn bits(&self, lines: &mut Lines, bits: u64, is_signed: bool) {
        match self.notation {
            _ if is_signed => lines.signed(bits.cast_signed()),
            Notation::Decimal => lines.decimal(bits),
            Notation::Hexadecimal => lines.hex(bits),
            Notation::Quoted => {
                lines.push(b'"');
                lines.hex(bits);
                lines.push(b'"');
            }
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
    /// How `form` shows the records of a merge of `streams` of a recording with these `symbols`.
    pub(super) fn new(form: F, streams: &[(&TraceLayer, &Stream)], symbols: &mut AddressSymbols<'_>) -> Self {
        let (mut sources, mut events, mut named) = (Vec::new(), Vec::new(), 0);
        let mut last: Option<&TraceLayer> = None;
        for &(layer, stream) in streams {
            // The streams of a layer follow one another.
            if !last.is_some_and(|last| std::ptr::eq(last, layer)) {
                let plan = |schema| EventPlan::new::<F>(layer, schema, symbols, &mut named);
                events.push(layer.schemas.iter().map(plan).collect());
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
        let same_task = form.same_task().map(|text| Literal::from(&text[..]));
        Self { form, same_task, sources, events }
    }

    /// What a worker knows of a plan's lines before it writes the first one.
    pub(super) fn nothing_known<'t>(&self) -> Known<'t> {
        Known::new(self.sources.len())
    }

    /// Writes the line of `record` behind that of the record `before`.
    #[inline]
    pub(super) fn write<'t>(
        &self,
        lines: &mut Lines,
        (times, known): (&mut Times<'_>, &mut Known<'t>),
        record: &Selected<'t>,
        before: Option<&Selected<'t>>,
    ) {
        let source = &self.sources[record.source];
        let event = &self.events[source.layer][record.schema.position()];
        self.form.time(lines, times, record.time, before.map(|before| before.time));
        let same_source = before.filter(|before| before.source == record.source);
        lines.literal(if same_source.is_some() { &source.prefix_again } else { &source.prefix });
        if source.has_tasks {
            match &self.same_task {
                Some(same) if record.task.is_some() && same_source.is_some_and(|before| before.task == record.task) => {
                    lines.literal(same);
                }
                _ => known.task(lines, record.source, record.task, |lines| self.form.task(lines, record.task)),
            }
        }
        event.write::<F>(lines, known, record.schema, record.payload);
    }
}

impl Names {
    fn of<F: Form>(
        layer: &TraceLayer,
        schema: &Schema,
        position: usize,
        field: &FieldDescription,
        symbols: &mut AddressSymbols<'_>,
        named: &mut u32,
    ) -> Option<Box<Self>> {
        let names = FieldNames::of(layer, schema, position, symbols)?;
        let is_list = matches!(field.ty, FieldType::Array(..) | FieldType::Sequence(_));
        let [before, behind] = F::around_name(&names.key(field), is_list).map(|text| Literal::from(&text[..]));
        *named += 1;
        let field = names.are_few().then_some(*named);
        Some(Box::new(Self { field, before, behind, names }))
    }

    /// Writes what `value` writes for the number that is `bits`, and its name.
    #[inline]
    fn write_behind_number(
        &self,
        lines: &mut Lines,
        known: &mut Known<'_>,
        (bits, payload): (u64, &[u8]),
        value: impl Fn(&mut Lines),
    ) {
        let write = |lines: &mut Lines| {
            value(lines);
            self.write(lines, bits, payload);
        };
        match self.field {
            Some(field) => {
                let number = Number { field, bits, beside: self.names.beside(payload) };
                known.number(lines, number, write);
            }
            None => write(lines),
        }
    }

    /// Writes the name of `number` in a record's `payload`, where it has one.
    fn write(&self, lines: &mut Lines, number: u64, payload: &[u8]) {
        let Some(name) = self.names.name(number, payload) else { return };
        lines.literal(&self.before);
        match name {
            Name::Text(text) => lines.extend(text.as_bytes()),
            Name::Symbol(symbol) => write_symbol(lines, symbol),
        }
        lines.literal(&self.behind);
    }

    /// Writes the names of the calls of a stack, if any has one.
    fn write_calls<F: Form>(&self, lines: &mut Lines, calls: Elements<'_>, payload: &[u8]) {
        let named = |value| bits(value).and_then(|call| self.names.call(call, payload));
        if calls.iter().all(|call| named(call).is_none()) {
            return;
        }
        lines.literal(&self.before);
        for (index, call) in calls.iter().enumerate() {
            lines.extend(if index == 0 { b"" } else { F::BETWEEN });
            match named(call) {
                Some(symbol) => {
                    lines.extend(F::QUOTE);
                    write_symbol(lines, symbol);
                    lines.extend(F::QUOTE);
                }
                None => F::nameless(lines, bits(call).unwrap_or_default()),
            }
        }
        lines.literal(&self.behind);
    }
}

/// Writes `symbol` as it displays itself, without what formatting costs.
fn write_symbol(lines: &mut Lines, SymbolOffset { symbol, offset }: SymbolOffset<'_>) {
    lines.extend(symbol.name.as_bytes());
    if offset > 0 {
        lines.push(b'+');
        lines.hex(offset);
    }
    if let Some(module) = symbol.module {
        lines.constant(b" [");
        lines.extend(module.as_bytes());
        lines.push(b']');
    }
}

impl EventPlan {
    fn new<F: Form>(layer: &TraceLayer, schema: &Schema, symbols: &mut AddressSymbols<'_>, named: &mut u32) -> Self {
        let fields = &schema.description().fields;
        let Some((first, others)) = fields.split_first() else {
            return Self { fields: Vec::new(), end: Literal::from(&F::empty_event(schema)[..]), call: None };
        };
        let before = std::iter::once(F::event(schema, first)).chain(others.iter().map(F::field));
        let plan = |(number, (before, field)): (usize, (Vec<u8>, &FieldDescription))| FieldPlan {
            before: Literal::from(&before[..]),
            place: schema.placed_fields().get(number).copied(),
            notation: F::notation(field),
            names: Names::of::<F>(layer, schema, number, field, symbols, named),
        };
        let fields = before.zip(fields).enumerate().map(plan).collect();
        let call = Named::all(schema).into_iter().find(Named::is_call);
        Self { fields, end: Literal::from(F::END), call }
    }

    /// Writes the fields of a record's `payload` and the end of the line, with the names of what numbers stand for, and of
    /// a system call's arguments; ends early where the payload does.
    #[inline]
    fn write<F: Form>(&self, lines: &mut Lines, known: &mut Known<'_>, schema: &Schema, payload: &[u8]) {
        let mut behind = None;
        for field in &self.fields {
            match field.place {
                Some(PlacedField::Integer(place)) => {
                    let Some(bits) = place.bits(payload) else { break };
                    lines.literal(&field.before);
                    match &field.names {
                        Some(names) => names.write_behind_number(lines, known, (bits, payload), |lines| {
                            field.bits(lines, bits, place.is_signed());
                        }),
                        None => field.bits(lines, bits, place.is_signed()),
                    }
                }
                Some(PlacedField::Text(place)) => {
                    let Some(text) = place.read(payload) else { break };
                    lines.literal(&field.before);
                    F::text(lines, text);
                }
                None => {
                    let values = behind.get_or_insert_with(|| schema.values_behind_placed(payload));
                    let Some(value) = values.next() else { break };
                    self.write_behind::<F>(lines, field, value, payload);
                }
            }
        }
        lines.literal(&self.end);
    }

    /// Writes a field that is not placed.
    fn write_behind<F: Form>(&self, lines: &mut Lines, field: &FieldPlan, value: Value<'_>, payload: &[u8]) {
        let call = || {
            let number = self.call?.number(payload)?;
            let (number, names) = self.call?.arguments(number, payload)?;
            Some(Call { names, values: ArgumentNames::of(number) })
        };
        if let Value::Array(values) = value
            && let Some(call) = call()
        {
            return F::arguments(lines, field, values, &call);
        }
        lines.literal(&field.before);
        field.value::<F>(lines, value);
        let Some(names) = &field.names else { return };
        match value {
            Value::Array(calls) => names.write_calls::<F>(lines, calls, payload),
            value => bits(value).into_iter().for_each(|number| names.write(lines, number, payload)),
        }
    }
}
