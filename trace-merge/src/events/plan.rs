//! What lines are made of: for each stream and event type, the text that is the same in all of its lines is put together
//! before the first one is written.

use super::current_task::Task;
use super::known::{Key, Known, MOST_BYTES};
use super::line::{Lines, Literal};
use super::time::Times;
use shared_ring::event::{FieldDescription, FieldType};
use std::ops::Range;
use strata_analysis::address_symbols::AddressSymbols;
use strata_analysis::event::named::Named;
use strata_analysis::field_names::{FieldNames, Name};
use strata_analysis::kernel_symbols::SymbolOffset;
use strata_analysis::names::argument::ArgumentNames;
use strata_recording::layer::LayerKind;
use strata_recording::reader::{Stream, TraceLayer};
use strata_recording::schema::{Elements, IntegerField, PlacedField, Schema, Value};

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

    /// Writes floating point.
    fn float(lines: &mut Lines, number: f64);

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

/// The bits of an integer; `None` of what is none.
pub(super) const fn bits(value: Value<'_>) -> Option<u64> {
    match value {
        Value::Unsigned(number) => Some(number),
        Value::Signed(number) => Some(number.cast_unsigned()),
        Value::Float(_) | Value::Text(_) | Value::Array(_) => None,
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
    /// By layer, then by the event type's position in it.
    events: Vec<Vec<EventPlan>>,
}

#[derive(Debug)]
struct SourcePlan {
    prefix: Literal,
    /// The same behind a line of the same source; of the same task, too, where a task follows.
    again: Option<Literal>,
    /// Whether a task follows the prefix.
    has_tasks: bool,
    /// Index in [`Plan::events`].
    layer: usize,
}

#[derive(Debug)]
struct EventPlan {
    fields: Vec<FieldPlan>,
    /// All fields, in parts that follow one another.
    parts: Vec<Part>,
    end: Literal,
    /// The field with a system call, if there is one.
    call: Option<Named>,
}

/// Fields that follow one another.
#[derive(Clone, Debug)]
struct Part {
    /// Their positions.
    fields: Range<usize>,
    /// What their text depends on, where it is kept.
    key: Option<Key>,
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
            Value::Float(number) => F::float(lines, number),
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
            Notation::Quoted => lines.quoted_hex(bits),
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
        let (mut sources, mut events, mut kept) = (Vec::new(), Vec::new(), 0);
        let mut last: Option<&TraceLayer> = None;
        for &(layer, stream) in streams {
            // The streams of a layer follow one another.
            if !last.is_some_and(|last| std::ptr::eq(last, layer)) {
                let plan = |schema| EventPlan::new::<F>(layer, schema, symbols, &mut kept);
                events.push(layer.schemas.iter().map(plan).collect());
                last = Some(layer);
            }
            let has_tasks = matches!(layer.description.kind, LayerKind::HostKernel | LayerKind::GuestKernel);
            let prefix = |behind: Vec<u8>| Literal::from(&[form.prefix(layer, stream), behind].concat()[..]);
            let no_task = |is_same| if has_tasks { Vec::new() } else { form.no_task(layer, is_same) };
            let again = if has_tasks { form.same_task() } else { Some(no_task(true)) };
            let (prefix, again) = (prefix(no_task(false)), again.map(prefix));
            sources.push(SourcePlan { prefix, again, has_tasks, layer: events.len() - 1 });
        }
        Self { form, sources, events }
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
        let is_same = |before: &&Selected<'t>| {
            before.source == record.source && (!source.has_tasks || record.task.is_some() && before.task == record.task)
        };
        match &source.again {
            Some(again) if before.filter(is_same).is_some() => lines.literal(again),
            _ if source.has_tasks => known.task(lines, record.source, record.task, |lines| {
                lines.literal(&source.prefix);
                self.form.task(lines, record.task);
            }),
            _ => lines.literal(&source.prefix),
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
    ) -> Option<Box<Self>> {
        let names = FieldNames::of(layer, schema, position, symbols)?;
        let is_list = matches!(field.ty, FieldType::Array(..) | FieldType::Sequence(_));
        let [before, behind] = F::around_name(&names.key(field), is_list).map(|text| Literal::from(&text[..]));
        Some(Box::new(Self { before, behind, names }))
    }

    /// Writes the name of `number` in a record's `payload`, where it has one.
    fn write(&self, lines: &mut Lines, number: u64, payload: &[u8]) {
        if !self.names.are_few() {
            let Some(symbol) = self.names.symbol(number, payload) else { return };
            lines.literal(&self.before);
            write_symbol(lines, symbol);
            return lines.literal(&self.behind);
        }
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
        lines.offset(offset);
    }
    if let Some(module) = symbol.module {
        lines.constant(b" [");
        lines.extend(module.as_bytes());
        lines.push(b']');
    }
}

/// Bytes of fields whose text is kept together, at most. Fewer are met again more often.
const MOST_KEPT_TOGETHER: usize = 40;
/// The same of events with arrays of a fixed size, which are kept whole: system calls.
const MOST_KEPT_WHOLE: usize = MOST_BYTES;
/// Fields whose text costs less than this are not worth keeping.
const LEAST_KEPT: usize = 3;

impl EventPlan {
    fn new<F: Form>(layer: &TraceLayer, schema: &Schema, symbols: &mut AddressSymbols<'_>, kept: &mut u32) -> Self {
        let fields = &schema.description().fields;
        let Some((first, others)) = fields.split_first() else {
            let end = Literal::from(&F::empty_event(schema)[..]);
            return Self { fields: Vec::new(), parts: Vec::new(), end, call: None };
        };
        let before = std::iter::once(F::event(schema, first)).chain(others.iter().map(F::field));
        let plan = |(number, (before, field)): (usize, (Vec<u8>, &FieldDescription))| FieldPlan {
            before: Literal::from(&before[..]),
            place: schema.placed_fields().get(number).copied(),
            notation: F::notation(field),
            names: Names::of::<F>(layer, schema, number, field, symbols),
        };
        let plans: Vec<_> = before.zip(fields).enumerate().map(plan).collect();
        let call = Named::all(schema).into_iter().find(Named::is_call);
        let parts = parts(fields, &plans, call.is_some(), kept);
        Self { fields: plans, parts, end: Literal::from(F::END), call }
    }

    /// Writes the fields of a record's `payload` and the end of the line, with the names of what numbers stand for, and of
    /// a system call's arguments; ends early where the payload does.
    #[inline]
    fn write<F: Form>(&self, lines: &mut Lines, known: &mut Known<'_>, schema: &Schema, payload: &[u8]) {
        for part in &self.parts {
            let write = |lines: &mut Lines| self.write_part::<F>(lines, part, schema, payload);
            let is_all = match &part.key {
                Some(key) => known.fields(lines, key, payload, write),
                None => write(lines),
            };
            if !is_all {
                break;
            }
        }
        lines.literal(&self.end);
    }

    /// Writes the fields of a part; `false` where the payload ends before one.
    #[inline(always)]
    fn write_part<F: Form>(&self, lines: &mut Lines, part: &Part, schema: &Schema, payload: &[u8]) -> bool {
        for (number, field) in self.fields.get(part.fields.clone()).unwrap_or_default().iter().enumerate() {
            match field.place {
                Some(PlacedField::Integer(place)) => {
                    let Some(bits) = place.bits(payload) else { return false };
                    lines.literal(&field.before);
                    field.bits(lines, bits, place.is_signed());
                    if let Some(names) = &field.names {
                        names.write(lines, bits, payload);
                    }
                }
                Some(PlacedField::Float(place)) => {
                    let Some(bits) = place.bits(payload) else { return false };
                    lines.literal(&field.before);
                    F::float(lines, f64::from_bits(bits));
                }
                Some(PlacedField::Text(place)) => {
                    let Some(text) = place.read(payload) else { return false };
                    lines.literal(&field.before);
                    F::text(lines, text);
                }
                // All others follow, in this part.
                None => return self.write_others::<F>(lines, part.fields.start + number, schema, payload),
            }
        }
        true
    }

    /// Writes the fields from the one at the position `first` on, which is the first that is not placed; `false` where the
    /// payload ends before one.
    #[inline(never)]
    fn write_others<F: Form>(&self, lines: &mut Lines, first: usize, schema: &Schema, payload: &[u8]) -> bool {
        let mut values = schema.values_behind_placed(payload);
        for field in self.fields.get(first..).unwrap_or_default() {
            let Some(value) = values.next() else { return false };
            self.write_other::<F>(lines, field, value, payload);
        }
        true
    }

    /// Writes a field that is not placed.
    fn write_other<F: Form>(&self, lines: &mut Lines, field: &FieldPlan, value: Value<'_>, payload: &[u8]) {
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

/// Divides `fields` into parts: text is kept together that costs more than looking for it, of numbers that are met again.
/// That is not expected of addresses. `kept` counts the parts whose text is kept.
fn parts(fields: &[FieldDescription], plans: &[FieldPlan], is_call: bool, kept: &mut u32) -> Vec<Part> {
    let placed = plans.iter().take_while(|plan| plan.place.is_some()).count();
    let size: Option<usize> = fields.iter().map(|field| field.ty.fixed_size()).sum();
    if let Some(size) = size.filter(|&size| placed < fields.len() && size <= MOST_KEPT_WHOLE) {
        return vec![part(0..fields.len(), 0..size, plans, kept)];
    }
    let (mut parts, mut begin, mut bytes) = (Vec::new(), 0, 0..0);
    for (position, (field, plan)) in fields.iter().zip(plans).enumerate().take(placed) {
        let end = bytes.end + field.ty.size_in_place().unwrap_or(0);
        let is_address = is_address(field, plan);
        if is_address || end - bytes.start > MOST_KEPT_TOGETHER {
            parts.push(part(begin..position, bytes.clone(), plans, kept));
            (begin, bytes.start) = (position, bytes.end);
        }
        bytes.end = end;
        if is_address {
            parts.push(Part { fields: begin..position + 1, key: None });
            (begin, bytes.start) = (position + 1, end);
        }
    }
    let end = bytes.end;
    parts.push(part(begin..placed, bytes, plans, kept));
    let mut others = Part { fields: placed..fields.len(), key: None };
    let of_others = plans.get(placed..).unwrap_or_default();
    // The arguments of a call depend on which one it is.
    if !is_call
        && !of_others.is_empty()
        && !fields.iter().zip(plans).skip(placed).any(|(field, plan)| is_address(field, plan))
    {
        *kept += 1;
        others.key = beside(of_others).ok().map(|beside| Key::up_to_end(*kept, end, beside));
    }
    parts.push(others);
    parts.retain(|part| !part.fields.is_empty());
    // Those whose text is not kept are written in one go.
    parts.dedup_by(|next, part| {
        let is_one = next.key.is_none() && part.key.is_none();
        part.fields.end = if is_one { next.fields.end } else { part.fields.end };
        is_one
    });
    parts
}

/// Whether a field holds addresses or the like: few of them are met again.
fn is_address(field: &FieldDescription, plan: &FieldPlan) -> bool {
    let is_long = field.ty.integer().is_some_and(|integer| integer.size() == 8);
    plan.names.as_ref().map_or(field.hex && is_long, |names| !names.names.are_few())
}

/// The part of the fields at the positions `fields`, which take `bytes` of the payload.
fn part(fields: Range<usize>, bytes: Range<usize>, plans: &[FieldPlan], kept: &mut u32) -> Part {
    let plans = plans.get(fields.clone()).unwrap_or_default();
    let cost = |plan: &FieldPlan| match (&plan.names, plan.place) {
        (None, Some(PlacedField::Integer(_))) => 1,
        (None, Some(PlacedField::Text(_))) => 2,
        _ => LEAST_KEPT,
    };
    let cost: usize = plans.iter().map(cost).sum::<usize>() + usize::from(fields.start == 0);
    if cost < LEAST_KEPT {
        return Part { fields, key: None };
    }
    let key = beside(plans).ok().and_then(|beside| Key::new(*kept + 1, bytes, beside));
    *kept += u32::from(key.is_some());
    Part { fields, key }
}

/// The field that decides on the names of `plans` besides their numbers, where there is one.
///
/// # Errors
/// When there are several.
fn beside(plans: &[FieldPlan]) -> Result<Option<IntegerField>, ManyBeside> {
    let mut fields = plans.iter().filter_map(|plan| plan.names.as_ref()?.names.beside());
    let first = fields.next();
    if fields.next().is_none() { Ok(first) } else { Err(ManyBeside) }
}

/// Several fields decide on names.
struct ManyBeside;
