//! Writes packets: those of each machine as a sequence of its own, records of the kernels in bundles for each CPU.
//!
//! Packets need not be in the order of their times: Perfetto sorts all of a trace. Those of one time stay in the order in
//! which they were written.

use super::proto::{
    CLOCK_BOOTTIME, CLOCK_REALTIME, Clock, ClockSnapshot, DebugAnnotation, EventName, EventType, FtraceEvent,
    InternedData, SEQ_INCREMENTAL_STATE_CLEARED, SEQ_NEEDS_INCREMENTAL_STATE, SystemInfo, TaskState, TracePacket,
    TrackDescriptor, TrackEvent, Utsname, field,
};
use super::wire::{put_bytes, put_number};
use foldhash::HashMap;
use prost::Message;
use std::io::{self, Write};

/// A machine of the trace: 0 is the first host, which Perfetto takes for the one that recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Machine(pub(super) u32);

impl Machine {
    /// The machine on which everything is drawn that concerns several.
    pub(super) const HOST: Self = Self(0);
}

/// Names that a machine's sequence refers to by number; further ones are written out.
const MOST_NAMES: usize = 4096;
/// Records of a CPU that go into one bundle.
const BUNDLE: usize = 128;

/// Annotations of an event.
pub(super) type Annotations = Vec<DebugAnnotation>;

/// Name of a slice or an instant: interned once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name<'n> {
    /// One of few, which is interned.
    Few(&'n str),
    /// One that a guest may make up at will.
    Any(&'n str),
}

/// What packets of one machine refer to.
#[derive(Debug, Default)]
struct Sequence {
    begun: bool,
    names: HashMap<String, u64>,
    /// By CPU: records that are not written yet.
    bundles: HashMap<u32, Bundle>,
}

/// Records of a CPU, encoded as fields of a bundle.
#[derive(Debug, Default)]
struct Bundle {
    records: usize,
    fields: Vec<u8>,
}

/// Writes packets to `W`. The first error ends it: nothing is written from then on.
#[derive(Debug)]
pub(super) struct PacketWriter<W> {
    out: W,
    sequences: HashMap<Machine, Sequence>,
    /// Of the packet in the making: its fields, those of the event in it, and the packet as it is written.
    fields: Vec<u8>,
    event: Vec<u8>,
    buffer: Vec<u8>,
    /// Whether that packet refers to what was interned.
    refers: bool,
    /// Whether nothing is to be written for the time being.
    pub(super) muted: bool,
    failed: Option<io::Error>,
    bytes: u64,
}

impl<W: Write> PacketWriter<W> {
    pub(super) fn new(out: W) -> Self {
        let (fields, event, buffer, refers) = (Vec::new(), Vec::new(), Vec::new(), false);
        Self { out, sequences: HashMap::default(), fields, event, buffer, refers, muted: false, failed: None, bytes: 0 }
    }

    /// Whether writing has failed.
    pub(super) const fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Introduces a machine: what it is called, the release of its kernel, and one moment in the trace clock and in UTC, ns.
    pub(super) fn machine(&mut self, machine: Machine, name: &str, kernel: &str, (time, utc): (u64, u64)) {
        let clock = |clock_id, timestamp| Clock { clock_id: Some(clock_id), timestamp: Some(timestamp) };
        let clocks = vec![clock(CLOCK_BOOTTIME, time), clock(CLOCK_REALTIME, utc)];
        let text = |text: &str| Some(text.to_string());
        let utsname = Utsname { sysname: text("Linux"), release: text(kernel), machine: text("x86_64") };
        let system_info = SystemInfo { utsname: Some(utsname), machine_name: text(name) };
        self.packet(machine, &TracePacket { clock_snapshot: Some(ClockSnapshot { clocks }), ..TracePacket::default() });
        self.packet(machine, &TracePacket { system_info: Some(system_info), ..TracePacket::default() });
    }

    /// Describes a track.
    pub(super) fn track(&mut self, machine: Machine, time: u64, descriptor: TrackDescriptor) {
        let packet =
            TracePacket { timestamp: Some(time), track_descriptor: Some(descriptor), ..TracePacket::default() };
        self.packet(machine, &packet);
    }

    /// A slice of `track` from `begin` up to `end`, ns, which nothing overlaps but what lies in it.
    pub(super) fn slice(
        &mut self,
        machine: Machine,
        track: u64,
        (begin, end): (u64, u64),
        name: Name<'_>,
        event: TrackEvent,
    ) {
        self.event(machine, track, begin, EventType::SliceBegin, Some(name), event);
        self.event(machine, track, end, EventType::SliceEnd, None, TrackEvent::default());
    }

    /// Something that happens on `track` at `time`.
    pub(super) fn instant(&mut self, machine: Machine, track: u64, time: u64, name: Name<'_>, event: TrackEvent) {
        self.event(machine, track, time, EventType::Instant, Some(name), event);
    }

    /// The counter `track` has `value` from `time` on.
    pub(super) fn counter(&mut self, machine: Machine, track: u64, time: u64, value: u64) {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        let event = TrackEvent { counter_value: Some(value), ..TrackEvent::default() };
        self.event(machine, track, time, EventType::Counter, None, event);
    }

    fn event(
        &mut self,
        machine: Machine,
        track: u64,
        time: u64,
        kind: EventType,
        name: Option<Name<'_>>,
        event: TrackEvent,
    ) {
        if self.muted {
            return;
        }
        self.fields.clear();
        self.event.clear();
        put_number(field::TRACK_EVENT_TYPE, kind as u64, &mut self.event);
        match name {
            Some(Name::Few(name)) => self.put_few(machine, name),
            Some(Name::Any(name)) => put_bytes(field::TRACK_EVENT_NAME, name.as_bytes(), &mut self.event),
            None => {}
        }
        put_number(field::TRACK_EVENT_TRACK_UUID, track, &mut self.event);
        encode(&event, &mut self.event);
        // With what changes most at the end, packets are alike for longer, and compress better.
        put_bytes(field::PACKET_TRACK_EVENT, &self.event, &mut self.fields);
        put_number(field::PACKET_TIMESTAMP, time, &mut self.fields);
        self.write(machine);
    }

    /// Adds the name of the event in the making, by number, or as it is where there are too many.
    fn put_few(&mut self, machine: Machine, name: &str) {
        let names = &mut self.sequences.entry(machine).or_default().names;
        let known = names.get(name).copied();
        if known.is_none() && names.len() >= MOST_NAMES {
            put_bytes(field::TRACK_EVENT_NAME, name.as_bytes(), &mut self.event);
            return;
        }
        let iid = known.unwrap_or(names.len() as u64 + 1);
        put_number(field::TRACK_EVENT_NAME_IID, iid, &mut self.event);
        self.refers = true;
        if known.is_none() {
            names.insert(name.to_string(), iid);
            let interned =
                InternedData { event_names: vec![EventName { iid: Some(iid), name: Some(name.to_string()) }] };
            encode(&TracePacket { interned_data: Some(interned), ..TracePacket::default() }, &mut self.fields);
        }
    }

    /// The thread `tid`, called `comm`, is in `state` from `time` on: on `cpu`, if it runs.
    pub(super) fn task_state(
        &mut self,
        machine: Machine,
        time: u64,
        cpu: u32,
        (tid, comm): (i64, &str),
        state: TaskState,
    ) {
        if self.muted {
            return;
        }
        self.event.clear();
        if cpu <= i32::MAX.cast_unsigned() {
            put_number(field::TASK_STATE_CPU, cpu.into(), &mut self.event);
        }
        put_bytes(field::TASK_STATE_COMM, comm.as_bytes(), &mut self.event);
        put_number(field::TASK_STATE_TID, tid.cast_unsigned(), &mut self.event);
        put_number(field::TASK_STATE_STATE, state as u64, &mut self.event);
        self.fields.clear();
        put_bytes(field::PACKET_TASK_STATE, &self.event, &mut self.fields);
        put_number(field::PACKET_TIMESTAMP, time, &mut self.fields);
        self.write(machine);
    }

    /// A record of the kernel of `machine` by `cpu`.
    pub(super) fn ftrace(&mut self, machine: Machine, cpu: u32, event: FtraceEvent) {
        if self.muted {
            return;
        }
        self.event.clear();
        encode(&event, &mut self.event);
        let bundle = self.sequences.entry(machine).or_default().bundles.entry(cpu).or_default();
        put_bytes(field::BUNDLE_EVENT, &self.event, &mut bundle.fields);
        bundle.records += 1;
        if bundle.records >= BUNDLE {
            let full = std::mem::take(bundle);
            self.bundle(machine, cpu, &full);
        }
    }

    fn bundle(&mut self, machine: Machine, cpu: u32, bundle: &Bundle) {
        self.event.clear();
        put_number(field::BUNDLE_CPU, cpu.into(), &mut self.event);
        self.event.extend_from_slice(&bundle.fields);
        self.fields.clear();
        put_bytes(field::PACKET_FTRACE_EVENTS, &self.event, &mut self.fields);
        self.write(machine);
    }

    fn packet(&mut self, machine: Machine, packet: &TracePacket) {
        self.fields.clear();
        encode(packet, &mut self.fields);
        self.write(machine);
    }

    /// Writes the packet whose fields were put together.
    fn write(&mut self, machine: Machine) {
        let refers = std::mem::take(&mut self.refers);
        if self.muted || self.failed.is_some() {
            return;
        }
        let sequence = self.sequences.entry(machine).or_default();
        let begins = !std::mem::replace(&mut sequence.begun, true);
        let cleared = if begins { SEQ_INCREMENTAL_STATE_CLEARED } else { 0 };
        let flags = cleared | if refers { SEQ_NEEDS_INCREMENTAL_STATE } else { 0 };
        if flags != 0 {
            put_number(field::PACKET_SEQUENCE_FLAGS, flags.into(), &mut self.fields);
        }
        put_number(field::PACKET_SEQUENCE_ID, u64::from(machine.0) + 1, &mut self.fields);
        if machine != Machine::HOST {
            put_number(field::PACKET_MACHINE_ID, machine.0.into(), &mut self.fields);
        }
        self.buffer.clear();
        put_bytes(field::TRACE_PACKET, &self.fields, &mut self.buffer);
        match self.out.write_all(&self.buffer) {
            Ok(()) => self.bytes += self.buffer.len() as u64,
            Err(error) => self.failed = Some(error),
        }
    }

    /// Writes what is not written yet: how many bytes there are in all.
    ///
    /// # Errors
    /// When this or anything before could not be written.
    pub(super) fn finish(mut self) -> io::Result<u64> {
        self.muted = false;
        let mut machines: Vec<Machine> = self.sequences.keys().copied().collect();
        machines.sort_unstable();
        for machine in machines {
            let bundles = self.sequences.get_mut(&machine).map(|sequence| std::mem::take(&mut sequence.bundles));
            let mut bundles: Vec<_> = bundles.into_iter().flatten().filter(|(_, bundle)| bundle.records > 0).collect();
            bundles.sort_unstable_by_key(|(cpu, _)| *cpu);
            bundles.iter().for_each(|(cpu, bundle)| self.bundle(machine, *cpu, bundle));
        }
        match self.failed {
            Some(error) => Err(error),
            None => self.out.flush().map(|()| self.bytes),
        }
    }
}

/// Appends the fields of `message`.
fn encode(message: &impl Message, out: &mut Vec<u8>) {
    // It fails only where there is no room, and a vector grows as far as it has to.
    let _ = message.encode(out);
}

/// An annotation that is text.
pub(super) fn text(name: &str, value: impl Into<String>) -> DebugAnnotation {
    DebugAnnotation { name: Some(name.into()), string_value: Some(value.into()), ..DebugAnnotation::default() }
}

/// An annotation that is a number.
pub(super) fn number(name: &str, value: u64) -> DebugAnnotation {
    DebugAnnotation { name: Some(name.into()), uint_value: Some(value), ..DebugAnnotation::default() }
}
