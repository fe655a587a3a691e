//! The host kernel's layer: records, not rings. Written as they come ([`HostLayer`]), or kept in memory up to a limit,
//! the oldest giving way ([`HostWindow`]), to be written when a flight recorder is.

use crate::control::protocol::Watched;
use crate::drain::polling::Found;
use crate::layer::host_history::History;
use crate::layer::host_records::{Item, create};
use crate::layer::limit::RecordLimiter;
use crate::layer::written::LayerEnd;
use crate::live::HostWatch;
use crate::trigger::Triggers;
use shared_ring::event::EventDescription;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use strata_clock::HostTime;
use strata_host_kernel::{CpuSummary, EventSchema, EventSchemas, HostItem, HostTracer, ReaderError, Rest, Sink};
use strata_recording::clock::Clock;
use strata_recording::files::kallsyms;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{FlagNames, Layer, Manifest, Missing, StreamDescription, Vm};
use strata_recording::writer::{LayerWriter, OpenPacket, Rotation, WriteError};

/// How much of the host kernel's buffers is read.
#[derive(Clone, Copy, Debug)]
enum Reading {
    /// What is there, up to a bound.
    Poll,
    /// All of it, after recording was stopped.
    Finish,
}

/// The host kernel's records, encoded as layers store them.
struct HostSource {
    tracer: HostTracer,
    schemas: Arc<EventSchemas>,
    payload: Vec<u8>,
    /// Why reading stopped early, if it did.
    failed: Option<ReaderError>,
    /// Whether the rest was taken: there is nothing more to come.
    finished: bool,
    /// Whether that was reported.
    is_reported: bool,
    /// Whether the recorder's own thread was left out of what is traced.
    left_out: bool,
    /// What it says of the VM, while somebody asks for that.
    watch: Option<Box<HostWatch>>,
}

impl HostSource {
    fn new(tracer: HostTracer) -> Self {
        let schemas = Arc::clone(tracer.schemas());
        Self {
            schemas,
            tracer,
            payload: Vec::new(),
            failed: None,
            is_reported: false,
            finished: false,
            left_out: false,
            watch: None,
        }
    }

    fn events(&self) -> Vec<EventDescription> {
        self.schemas.iter().map(|schema| schema.description.clone()).collect()
    }

    /// Takes what the kernel has recorded since; returns what is left.
    fn poll(&mut self, sink: &mut impl ItemSink) -> Rest {
        if self.failed.is_some() || self.finished {
            return Rest::Nothing;
        }
        if !self.left_out {
            self.left_out = true;
            // Where it cannot be, the trace holds its own recording as well.
            let _ = self.tracer.leave_out_this_thread();
        }
        self.watch.take_if(|watch| watch.is_forgotten());
        let begun = self.watch.as_ref().map(|watch| watch.begin_poll());
        let rest = self.take(sink, Reading::Poll).unwrap_or_default();
        if let (Some(watch), Some(begun), Rest::Nothing) = (&mut self.watch, begun, rest) {
            watch.end_poll(begun);
        }
        rest
    }

    /// The CPUs, and for each up to when all of it was taken, ticks.
    fn taken_up_to(&self) -> impl Iterator<Item = (u32, u64)> {
        self.tracer.read_up_to().filter(|_| self.failed.is_none())
    }

    /// Whether a poll can wait: the kernel's buffers have room.
    fn can_wait(&self) -> bool {
        self.failed.is_some() || self.finished || self.tracer.has_room()
    }

    /// What the host does for the vCPUs of `vm`, whose threads are known: since it was first asked for, which may be
    /// now.
    fn watch(&mut self, vm: &Vm, clock: &Clock, time: HostTime) -> Watched {
        self.watch.take_if(|watch| !watch.is_of(vm));
        let events = self.schemas.iter().map(|schema| &schema.description);
        self.watch.get_or_insert_with(|| Box::new(HostWatch::new(vm, clock, time, events))).request()
    }

    /// The kernel's symbols, where the user may see them. Calls `meanwhile` now and then.
    fn kallsyms(&self, meanwhile: &mut dyn FnMut()) -> Option<Vec<u8>> {
        self.tracer.kallsyms()?.read(meanwhile).ok()
    }

    /// Takes the rest and stops tracing.
    fn finish(&mut self, sink: &mut impl ItemSink) {
        self.finished = true;
        if self.failed.is_none() {
            self.take(sink, Reading::Finish);
        }
    }

    /// Hands what is read to `sink`; returns what is left. A read that fails ends the layer.
    fn take(&mut self, sink: &mut impl ItemSink, reading: Reading) -> Option<Rest> {
        let Self { tracer, schemas, payload, failed, watch, .. } = self;
        let mut encode = Encode { schemas, payload, watch: watch.as_deref_mut(), sink };
        let read = match reading {
            Reading::Poll => tracer.poll(&mut encode),
            Reading::Finish => tracer.finish(&mut encode).map(|summary| {
                for CpuSummary { cpu, stats } in summary.cpus {
                    // No page tells of these, as they do of what was overwritten.
                    let records = stats.commit_overrun.saturating_add(stats.dropped);
                    if records > 0 {
                        encode.sink.take(Item::Lost { cpu, records });
                    }
                }
                Rest::Nothing
            }),
        };
        read.map_err(|error| *failed = Some(error)).ok()
    }

    /// What the layer does not have although it was requested, but for its end.
    fn missing(&self) -> Vec<Missing> {
        let not_enabled = self.tracer.not_enabled().iter().map(|event| Missing {
            layer: LayerKind::HostKernel,
            reason: format!("{} could not be enabled: {}", event.event, event.error),
            fix: "leave it out of --events".into(),
        });
        let fix = "leave the events out of --events; `strata events --list host-kernel` names all such fields";
        not_enabled.chain(fields_left_out(self.schemas.iter(), LayerKind::HostKernel, fix)).collect()
    }

    /// What is missing since reading stopped early; once.
    fn report_end(&mut self) -> Option<Missing> {
        let error = self.failed.as_ref().filter(|_| !self.is_reported)?;
        self.is_reported = true;
        Some(Missing {
            layer: LayerKind::HostKernel,
            reason: format!("the layer ends early: {error}"),
            fix: "see the host's kernel log; trace again".into(),
        })
    }
}

/// Events whose left out fields are named one by one; `strata events --list` names all.
const NAMED_EVENTS: usize = 8;

/// The fields of `schemas` that `layer` does not record, if there are any, and what helps: `fix`.
#[must_use]
pub fn fields_left_out<'s>(
    schemas: impl Iterator<Item = &'s EventSchema>,
    layer: LayerKind,
    fix: &str,
) -> Option<Missing> {
    let of_event = |schema: &EventSchema| {
        let fields: Vec<&str> = schema.skipped.iter().map(|field| field.declaration.as_str()).collect();
        format!("{} ({})", schema.name, fields.join(", "))
    };
    let mut events: Vec<String> = schemas.filter(|schema| !schema.skipped.is_empty()).map(of_event).collect();
    if events.is_empty() {
        return None;
    }
    events.sort_unstable();
    let further = events.len().saturating_sub(NAMED_EVENTS);
    events.truncate(NAMED_EVENTS);
    if further > 0 {
        events.push(format!("and those of {further} more events"));
    }
    let reason = format!("fields that have no form in a trace are left out: {}", events.join(", "));
    Some(Missing { layer, reason, fix: fix.into() })
}

/// Takes what a layer stores.
trait ItemSink: for<'a> Sink<Item<'a>> {
    /// The packet that records of `cpu` may be added to without being shown to this: `None` where each is to be.
    #[inline(always)]
    fn open(&mut self, _cpu: u32) -> Option<OpenPacket<'_>> {
        None
    }
}

impl<F: for<'a> FnMut(Item<'a>)> ItemSink for F {}

/// Encodes records as layers store them, and hands them on.
struct Encode<'e, S> {
    schemas: &'e EventSchemas,
    payload: &'e mut Vec<u8>,
    watch: Option<&'e mut HostWatch>,
    sink: &'e mut S,
}

impl<'i, S: ItemSink> Sink<HostItem<'i>> for Encode<'_, S> {
    #[inline(always)]
    fn take(&mut self, item: HostItem<'i>) {
        match item {
            HostItem::Lost { cpu, count } => {
                let records = count.unwrap_or(1);
                if let Some(watch) = &mut self.watch {
                    watch.add_lost(cpu, records);
                }
                self.sink.take(Item::Lost { cpu, records });
            }
            HostItem::Gap { cpu, begins } => self.sink.take(Item::Gap { cpu, begins }),
            HostItem::Record(record) => {
                let (cpu, time, id) = (record.cpu, record.time, record.event_id);
                match self.schemas.get(id).map(|schema| schema.encoded(record.payload, self.payload)) {
                    Some(Ok(payload)) => {
                        if let Some(watch) = &mut self.watch {
                            watch.add(cpu, time, id, payload);
                        }
                        self.sink.take(Item::Record { cpu, time, id, payload });
                    }
                    _ => self.sink.take(Item::Rejected { cpu, bytes: record.payload.len() as u64 }),
                }
            }
        }
    }

    #[inline(always)]
    fn take_all(&mut self, items: &mut impl Iterator<Item = HostItem<'i>>) {
        let mut next = items.next();
        while let Some(item) = next {
            let cpu = item.cpu();
            self.take(item);
            let packet = if self.watch.is_none() { self.sink.open(cpu) } else { None };
            next = match packet {
                Some(packet) => store(items, cpu, self.schemas, packet),
                None => items.next(),
            };
        }
    }
}

/// Adds the records that come next to the packet of `cpu`, and returns what could not be.
#[inline(always)]
fn store<'i>(
    items: &mut impl Iterator<Item = HostItem<'i>>,
    cpu: u32,
    schemas: &EventSchemas,
    mut packet: OpenPacket<'_>,
) -> Option<HostItem<'i>> {
    for item in items {
        let HostItem::Record(record) = item else { return Some(item) };
        let Some((fields, has_texts)) = schemas.in_one_piece(&record).filter(|_| record.cpu == cpu) else {
            return Some(item);
        };
        let Some(stored) = packet.push(record.time, record.event_id, fields) else { return Some(item) };
        if has_texts && let Some(schema) = schemas.get(record.event_id) {
            schema.clear_behind_texts(stored);
        }
    }
    None
}

/// `item`, or where `limiter` holds its layer back at `now`, that it is lost.
#[inline(always)]
fn limited<'a>(limiter: Option<&mut RecordLimiter>, now: Instant, item: Item<'a>) -> Item<'a> {
    let (Some(limiter), Item::Record { cpu, .. }) = (limiter, item) else { return item };
    if !limiter.admits(now) {
        return Item::Lost { cpu, records: 1 };
    }
    limiter.take(1, now);
    item
}

#[inline(always)]
fn show(triggers: &mut Option<&mut Triggers>, item: Item<'_>) {
    let Some(triggers) = triggers else { return };
    match item {
        Item::Record { cpu, time, id, payload } => triggers.host_record(cpu, time, id, payload),
        Item::Lost { .. } | Item::Rejected { .. } => triggers.lost(LayerKind::HostKernel),
        // The loss was told before it.
        Item::Gap { .. } => {}
    }
}

/// Shows records to triggers, and writes them, unless writing has failed already.
///
/// This and what else a record meets on its way from the kernel's page to the packet is inlined by force: the calls, and
/// what they hand on through memory, took a fifth of the time of a record.
struct Write<'w, 't> {
    triggers: Option<&'t mut Triggers>,
    writer: &'w mut LayerWriter,
    limiter: Option<&'w mut RecordLimiter>,
    now: Instant,
    written: Result<(), WriteError>,
}

impl ItemSink for Write<'_, '_> {
    #[inline(always)]
    fn open(&mut self, cpu: u32) -> Option<OpenPacket<'_>> {
        let is_all = self.triggers.is_none() && self.limiter.is_none() && self.written.is_ok();
        if is_all { self.writer.open(cpu) } else { None }
    }
}

impl<'i> Sink<Item<'i>> for Write<'_, '_> {
    #[inline(always)]
    fn take(&mut self, item: Item<'i>) {
        show(&mut self.triggers, item);
        match limited(self.limiter.as_deref_mut(), self.now, item) {
            _ if self.written.is_err() => {}
            Item::Record { cpu, time, id, payload } => {
                // Not assigned as it is: to copy a result for each record costs more than to write the record.
                if let Err(error) = self.writer.record(cpu, time, id, payload) {
                    self.written = Err(error);
                }
            }
            Item::Lost { cpu, records } => self.writer.add_lost(cpu, records),
            Item::Rejected { cpu, bytes } => self.writer.add_rejected(cpu, bytes),
            Item::Gap { cpu, begins: true } => self.written = self.writer.begin_gap(cpu),
            Item::Gap { cpu, begins: false } => self.written = self.writer.end_gap(cpu, None),
        }
    }
}

/// The layer, written as its records come.
pub struct HostLayer {
    source: HostSource,
    writer: LayerWriter,
    end: LayerEnd,
    /// Keeps it within a rate, if it has a limit. What is too much is read, shown to triggers, and dropped.
    limiter: Option<RecordLimiter>,
}

impl HostLayer {
    /// The layer of what `tracer` records, in the recording `dir`; it keeps within the size of `rotation`, if there is
    /// one.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn create(
        rotation: Option<&Rotation>,
        dir: &Path,
        manifest: &Manifest,
        tracer: HostTracer,
    ) -> Result<Self, WriteError> {
        let source = HostSource::new(tracer);
        let writer = create(rotation, dir, manifest, &source.events())?;
        Ok(Self { source, writer, end: LayerEnd::default(), limiter: None })
    }

    /// Keeps the layer within `limiter`, if there is one.
    #[must_use]
    pub fn within_rate(self, limiter: Option<RecordLimiter>) -> Self {
        Self { limiter, ..self }
    }

    /// That the layer has met its limit; once.
    pub fn report_limit(&mut self) -> Option<String> {
        self.limiter.as_mut()?.report()
    }

    /// Takes what the kernel has recorded since, and shows it to `triggers`; says whether there is more. A layer that
    /// cannot be written ends.
    pub fn drain(&mut self, triggers: Option<&mut Triggers>) -> Found {
        if self.end.has_come() {
            return Found::Nothing;
        }
        let (writer, limiter) = (&mut self.writer, self.limiter.as_mut());
        let mut write = Write { triggers, writer, limiter, now: Instant::now(), written: Ok(()) };
        let rest = self.source.poll(&mut write);
        self.end.take(write.written);
        self.note_complete();
        rest.into()
    }

    /// Takes over up to when the streams are complete.
    fn note_complete(&mut self) {
        if !self.end.has_come() {
            self.source.taken_up_to().for_each(|(cpu, up_to)| self.writer.set_complete_until(cpu, up_to));
        }
    }

    /// Whether a drain can wait: the kernel's buffers have room.
    #[must_use]
    pub fn can_wait(&self) -> bool {
        self.end.has_come() || self.source.can_wait()
    }

    /// Makes what was taken readable.
    pub fn flush(&mut self) {
        if !self.end.has_come() {
            self.end.take(self.writer.flush());
            self.note_complete();
        }
    }

    /// Takes the rest, which is shown to `triggers`, and stops tracing; returns what the layer does not have, but for
    /// what [`report_end`](Self::report_end) tells.
    pub fn finish(&mut self, mut triggers: Option<&mut Triggers>) -> Vec<Missing> {
        if self.end.has_come() {
            self.source.finish(&mut |item: Item<'_>| show(&mut triggers, item));
        } else {
            let (writer, now) = (&mut self.writer, Instant::now());
            let mut write = Write { triggers, writer, limiter: None, now, written: Ok(()) };
            self.source.finish(&mut write);
            self.end.take(write.written);
        }
        self.flush();
        if self.source.failed.is_some() || self.end.has_come() {
            self.writer.set_corrupt();
        }
        self.source.missing()
    }

    /// Writes the symbols of the kernel beside the layer, where the user may see them. Without them addresses are shown as
    /// numbers. In a recording that keeps within a size, they take the room of its oldest records.
    pub fn save_symbols(&self) {
        if let Some(symbols) = self.source.kallsyms(&mut || {}).filter(|_| !self.end.has_come()) {
            let _ = self.writer.save_kallsyms(&symbols);
        }
    }

    /// What is missing since the layer ended early, because it could not be read or written; once.
    pub fn report_end(&mut self) -> Option<Missing> {
        self.end.report(LayerKind::HostKernel).or_else(|| self.source.report_end())
    }

    /// The types of its events.
    #[must_use]
    pub fn events(&self) -> Vec<EventDescription> {
        self.source.events()
    }

    /// What the host does for the vCPUs of `vm`.
    pub fn watch(&mut self, vm: &Vm, clock: &Clock, time: HostTime) -> Watched {
        self.source.watch(vm, clock, time)
    }

    /// What `session.json` says about the layer: of all CPUs while it goes on, of those that recorded anything in the end.
    #[must_use]
    pub fn layer(&self) -> Layer {
        let mut layer = self.writer.layer();
        layer.limit = self.limiter.as_ref().map(RecordLimiter::state);
        layer.flag_names = flag_names(self.source.schemas.iter());
        if self.source.finished {
            layer.streams.retain(|stream| stream.packets > 0 || is_any_missing(stream));
            layer.streams.iter_mut().for_each(|stream| stream.complete_until = None);
        }
        layer
    }
}

/// The names of flags in the fields of the events of `schemas`: many have the same.
#[must_use]
pub fn flag_names<'s>(schemas: impl Iterator<Item = &'s EventSchema>) -> Vec<FlagNames> {
    let mut known: Vec<FlagNames> = Vec::new();
    for schema in schemas {
        for (field, flags) in &schema.flags {
            let field = (schema.description.name.clone(), field.clone());
            match known.iter_mut().find(|names| names.flags == *flags) {
                Some(names) => names.fields.push(field),
                None => known.push(FlagNames { fields: vec![field], flags: flags.clone() }),
            }
        }
    }
    known
}

/// Whether a stream lacks something that its CPU recorded.
const fn is_any_missing(stream: &StreamDescription) -> bool {
    stream.lost.total() > 0 || stream.rejected_bytes > 0 || stream.corrupt
}

/// Where a flight recorder keeps the layer's last records.
#[derive(Debug)]
pub struct HostHistory {
    /// Bytes of them at most.
    pub limit: usize,
    /// An empty file, in which they outlive the process; without it they are kept in memory.
    pub file: Option<File>,
}

/// The layer's last records.
pub struct HostWindow {
    source: HostSource,
    history: History,
}

impl HostWindow {
    /// A window onto what `tracer` records, kept where `kept` says.
    #[must_use]
    pub fn new(tracer: HostTracer, kept: HostHistory) -> Self {
        let source = HostSource::new(tracer);
        let history = History::new(kept.limit, &source.events(), kept.file);
        Self { source, history }
    }

    /// Takes what the kernel has recorded since, and shows it to `triggers`; says whether there is more.
    pub fn poll(&mut self, mut triggers: Option<&mut Triggers>) -> Found {
        let history = &mut self.history;
        let rest = self.source.poll(&mut |item: Item<'_>| {
            show(&mut triggers, item);
            history.push(item);
        });
        history.save();
        rest.into()
    }

    /// The types of its events.
    #[must_use]
    pub fn events(&self) -> Vec<EventDescription> {
        self.source.events()
    }

    /// What the host does for the vCPUs of `vm`.
    pub fn watch(&mut self, vm: &Vm, clock: &Clock, time: HostTime) -> Watched {
        self.source.watch(vm, clock, time)
    }

    /// Says of the streams of `layer`, to which it was [written](Self::write) after the last poll, up to when they are complete.
    pub fn note_complete(&self, layer: &mut Layer) {
        let taken: BTreeMap<u32, u64> = self.source.taken_up_to().collect();
        layer.streams.iter_mut().for_each(|stream| stream.complete_until = taken.get(&stream.cpu_id).copied());
    }

    /// Whether a poll can wait: the kernel's buffers have room.
    #[must_use]
    pub fn can_wait(&self) -> bool {
        self.source.can_wait()
    }

    /// Takes the rest, which is shown to `triggers`, and stops tracing; returns what the layer does not have.
    pub fn finish(&mut self, mut triggers: Option<&mut Triggers>) -> Vec<Missing> {
        let history = &mut self.history;
        self.source.finish(&mut |item: Item<'_>| {
            show(&mut triggers, item);
            history.push(item);
        });
        self.source.missing()
    }

    /// That what the host records from now on would not outlive this process; once. The window itself goes on.
    pub fn report_history(&mut self) -> Option<String> {
        let error = self.history.take_failure()?;
        Some(format!(
            "what the host's kernel records is kept in memory and would not outlive strata: {error}; make room where the \
             trace region lies, or give a smaller --host-history"
        ))
    }

    /// What is missing since reading stopped early; once.
    pub fn report_end(&mut self) -> Option<Missing> {
        self.source.report_end()
    }

    /// Writes what the window holds as layers of the recording `dir`, one for each class of events; it stays in the
    /// window. A class that cannot be written is left out.
    pub fn write(
        &self,
        dir: &Path,
        manifest: &Manifest,
        meanwhile: &mut dyn FnMut(),
    ) -> Vec<Result<Layer, WriteError>> {
        let is_corrupt = self.source.failed.is_some();
        let mut layers = self.history.write(dir, manifest, &self.source.events(), is_corrupt, meanwhile);
        for layer in layers.iter_mut().flatten() {
            layer.flag_names = flag_names(self.source.schemas.iter());
        }
        if let Some(layer) = layers.iter().find_map(|layer| layer.as_ref().ok())
            && let Some(symbols) = self.source.kallsyms(meanwhile)
        {
            // Without them addresses are shown as numbers.
            let _ = kallsyms::write(dir, &layer.path, &symbols, meanwhile);
        }
        layers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::protocol::LayerLimit;
    use proptest::prelude::*;
    use shared_ring::packet::Packet;
    use strata_host_kernel::{EventName, EventSchema, HostRecord};
    use strata_recording::writer::{PacketBuilder, Push};

    #[test]
    fn records_over_the_limit_are_lost_one_by_one_and_losses_stay_what_they_are() {
        let begin = Instant::now();
        let limit = LayerLimit { layer: LayerKind::HostKernel, per_second: 1, burst: 3 };
        let mut limiter = RecordLimiter::new(limit, begin);
        let record = |time| Item::Record { cpu: 2, time, id: 1, payload: &[] };
        let lost = Item::Lost { cpu: 2, records: 9 };

        let items = (1..=5).map(record).chain([lost]);
        let items: Vec<_> = items.map(|item| limited(Some(&mut limiter), begin, item)).collect();

        let dropped = Item::Lost { cpu: 2, records: 1 };
        assert_eq!(items, [record(1), record(2), record(3), dropped, dropped, lost]);
        assert_eq!(limited(None, begin, record(6)), record(6));
    }

    #[test]
    fn fields_that_are_left_out_are_missing_by_event_and_declaration() {
        let of = |id, field: &str| schema(id, &format!("\tfield:{field};\toffset:8;\tsize:8;\tsigned:0;\n"));
        let (whole, lacking) = (of(1, "u64 a"), of(2, "char names[2][4]"));
        let many: Vec<_> = (1..11).map(|id| of(id, "char names[2][4]")).collect();

        let reported = |schemas: &[EventSchema]| {
            fields_left_out(schemas.iter(), LayerKind::HostKernel, "").map(|missing| missing.reason)
        };

        assert_eq!(reported(std::slice::from_ref(&whole)), None);
        let reason = reported(&[whole, lacking]).unwrap();
        assert!(reason.ends_with("are left out: group:event (char names[2][4])"), "{reason}");
        assert!(reported(&many).unwrap().ends_with("and those of 2 more events"));
    }

    #[test]
    fn fields_of_several_events_share_the_names_of_their_flags() {
        let field = "\tfield:long gfp_flags;\toffset:8;\tsize:8;\tsigned:0;\n";
        let event = |id, print: &str| schema_of(id, field, print);
        let gfp = r#""%s", __print_flags(REC->gfp_flags, "|", { 1 << 8, "__GFP_ZERO" })"#;
        let other = r#""%s", __print_flags(REC->gfp_flags, "|", { 1, "OTHER" })"#;
        let of_absent = r#""%s", __print_flags(REC->absent, "|", { 1, "OTHER" })"#;
        let schemas = EventSchemas::new(vec![event(1, gfp), event(2, other), event(3, gfp), event(4, of_absent)]);

        let names = flag_names(schemas.iter());

        let fields = |count| vec![("group:event".to_owned(), "gfp_flags".to_owned()); count];
        let expected = [(fields(2), "__GFP_ZERO"), (fields(1), "OTHER")];
        let found: Vec<_> = names.iter().map(|names| (names.fields.clone(), names.flags[0].1.as_str())).collect();
        assert_eq!(found, expected);
        assert_eq!(names[0].text(0x100).as_deref(), Some("__GFP_ZERO"));
    }

    fn schema(id: u16, fields: &str) -> EventSchema {
        schema_of(id, fields, "\"\"")
    }

    /// That of the event `id` with these field lines behind the common ones.
    fn schema_of(id: u16, fields: &str, print: &str) -> EventSchema {
        let common = "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
            \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
            \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
            \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n";
        let text = format!("name: event\nID: {id}\nformat:\n{common}\n{fields}\nprint fmt: {print}\n");
        EventSchema::parse(&EventName::parse("group:event").unwrap(), &text).unwrap()
    }

    /// Events 1 to 3: numbers in one piece, a text among numbers, and a text that has no fixed place.
    fn schemas() -> EventSchemas {
        let fields = [
            "\tfield:long a;\toffset:8;\tsize:8;\tsigned:1;\n\tfield:long b;\toffset:16;\tsize:8;\tsigned:1;\n",
            "\tfield:char comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\tfield:int prio;\toffset:24;\tsize:4;\tsigned:1;\n",
            "\tfield:__data_loc char[] name;\toffset:8;\tsize:4;\tsigned:0;\n",
        ];
        EventSchemas::new(fields.into_iter().zip(1..).map(|(fields, id)| schema(id, fields)).collect())
    }

    /// What is taken: records by a packet that may be open, so much of it as fits.
    struct Packets {
        builder: PacketBuilder,
        is_open: bool,
        taken: Vec<(u64, u16, Vec<u8>)>,
        others: Vec<(u32, u64)>,
    }

    impl Packets {
        fn new(is_open: bool) -> Self {
            Self { builder: PacketBuilder::new([7; 16], 2, 256), is_open, taken: Vec::new(), others: Vec::new() }
        }

        fn finish(&mut self) {
            let packet = self.builder.finish(shared_ring::consumer::Lost::default(), 0);
            let records = packet.iter().flat_map(Packet::records);
            self.taken.extend(records.map(|record| (record.time, record.id, record.payload.to_vec())));
        }
    }

    impl<'i> Sink<Item<'i>> for Packets {
        fn take(&mut self, item: Item<'i>) {
            match item {
                Item::Record { time, id, payload, .. } => {
                    if self.builder.push(time, id, payload) == Push::Full {
                        self.finish();
                        assert_eq!(self.builder.push(time, id, payload), Push::Stored);
                    }
                }
                Item::Lost { cpu, records } => self.others.push((cpu, records)),
                Item::Rejected { cpu, bytes } => self.others.push((cpu, 1000 + bytes)),
                Item::Gap { .. } => {}
            }
        }
    }

    impl ItemSink for Packets {
        fn open(&mut self, _cpu: u32) -> Option<OpenPacket<'_>> {
            self.builder.open().filter(|_| self.is_open)
        }
    }

    proptest! {
        #[test]
        fn records_are_stored_the_same_whether_or_not_packets_are_open_to_them(
            records in proptest::collection::vec((0..5_u8, 0..3_u64, proptest::collection::vec(0..4_u8, 0..28)), 0..60),
        ) {
            let schemas = schemas();
            let mut time = 0;
            let records: Vec<_> = records.into_iter().map(|(id, delta, own)| {
                time += delta << 31;
                (time, id, [&[id, 0, 0, 0, 9, 0, 0, 0][..], &own].concat())
            }).collect();
            // Those of the number 0 stand for losses; nothing is known of number 4.
            let items = || records.iter().map(|(time, id, payload)| match id {
                0 => HostItem::Lost { cpu: 2, count: Some(*time) },
                id => HostItem::Record(HostRecord {
                    cpu: 2, time: *time, event_id: u16::from(*id), common_pid: 9, payload,
                }),
            });

            let [open, closed] = [true, false].map(|is_open| {
                let mut packets = Packets::new(is_open);
                let mut buffer = Vec::new();
                Encode { schemas: &schemas, payload: &mut buffer, watch: None, sink: &mut packets }.take_all(&mut items());
                packets.finish();
                (packets.taken, packets.others)
            });

            prop_assert_eq!(open.0.len() + open.1.len(), records.len());
            prop_assert_eq!(open, closed);
        }
    }
}
