//! Writes packets: those of each machine as a sequence of its own, records of the kernels in bundles for each CPU.
//!
//! Packets need not be in the order of their times: Perfetto sorts all of a trace. Those of one time stay in the order in
//! which they were written.

use super::proto::{
    CLOCK_BOOTTIME, CLOCK_REALTIME, Clock, ClockSnapshot, DebugAnnotation, EventName, EventType, FtraceEvent,
    FtraceEventBundle, GenericKernelTaskStateEvent, InternedData, SEQ_INCREMENTAL_STATE_CLEARED,
    SEQ_NEEDS_INCREMENTAL_STATE, SystemInfo, TaskState, TracePacket, TrackDescriptor, TrackEvent, Utsname,
};
use foldhash::HashMap;
use prost::Message;
use std::collections::BTreeMap;
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
/// Tag of `Trace.packet`, field 1 with a length.
const PACKET_TAG: u8 = 0x0a;

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
    bundles: BTreeMap<u32, Vec<FtraceEvent>>,
}

/// Writes packets to `W`. The first error ends it: nothing is written from then on.
#[derive(Debug)]
pub(super) struct PacketWriter<W> {
    out: W,
    buffer: Vec<u8>,
    sequences: BTreeMap<Machine, Sequence>,
    /// Whether nothing is to be written for the time being.
    pub(super) muted: bool,
    failed: Option<io::Error>,
    bytes: u64,
}

impl<W: Write> PacketWriter<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, buffer: Vec::new(), sequences: BTreeMap::new(), muted: false, failed: None, bytes: 0 }
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
        self.packet(machine, TracePacket { clock_snapshot: Some(ClockSnapshot { clocks }), ..TracePacket::default() });
        self.packet(machine, TracePacket { system_info: Some(system_info), ..TracePacket::default() });
    }

    /// Describes a track.
    pub(super) fn track(&mut self, machine: Machine, time: u64, descriptor: TrackDescriptor) {
        let packet =
            TracePacket { timestamp: Some(time), track_descriptor: Some(descriptor), ..TracePacket::default() };
        self.packet(machine, packet);
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
        let names = &mut self.sequences.entry(machine).or_default().names;
        let (mut name_iid, mut new, mut written_out) = (None, None, None);
        match name {
            Some(Name::Few(name)) => match names.get(name) {
                Some(&iid) => name_iid = Some(iid),
                None if names.len() < MOST_NAMES => {
                    let iid = names.len() as u64 + 1;
                    names.insert(name.to_string(), iid);
                    (name_iid, new) = (Some(iid), Some(EventName { iid: Some(iid), name: Some(name.to_string()) }));
                }
                None => written_out = Some(name.to_string()),
            },
            Some(Name::Any(name)) => written_out = Some(name.to_string()),
            None => {}
        }
        let event =
            TrackEvent { r#type: Some(kind as i32), track_uuid: Some(track), name_iid, name: written_out, ..event };
        let packet = TracePacket {
            timestamp: Some(time),
            track_event: Some(event),
            interned_data: new.map(|name| InternedData { event_names: vec![name] }),
            ..TracePacket::default()
        };
        self.packet(machine, packet);
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
        let event = GenericKernelTaskStateEvent {
            cpu: i32::try_from(cpu).ok(),
            comm: Some(comm.to_string()),
            tid: Some(tid),
            state: Some(state as i32),
        };
        let packet = TracePacket {
            timestamp: Some(time),
            generic_kernel_task_state_event: Some(event),
            ..TracePacket::default()
        };
        self.packet(machine, packet);
    }

    /// A record of the kernel of `machine` by `cpu`.
    pub(super) fn ftrace(&mut self, machine: Machine, cpu: u32, event: FtraceEvent) {
        if self.muted {
            return;
        }
        let bundle = self.sequences.entry(machine).or_default().bundles.entry(cpu).or_default();
        bundle.push(event);
        if bundle.len() >= BUNDLE {
            let event = std::mem::take(bundle);
            self.bundle(machine, cpu, event);
        }
    }

    fn bundle(&mut self, machine: Machine, cpu: u32, event: Vec<FtraceEvent>) {
        let bundle = FtraceEventBundle { cpu: Some(cpu), event };
        self.packet(machine, TracePacket { ftrace_events: Some(bundle), ..TracePacket::default() });
    }

    fn packet(&mut self, machine: Machine, packet: TracePacket) {
        if self.muted || self.failed.is_some() {
            return;
        }
        let sequence = self.sequences.entry(machine).or_default();
        let begins = !std::mem::replace(&mut sequence.begun, true);
        let cleared = if begins { SEQ_INCREMENTAL_STATE_CLEARED } else { 0 };
        let packet = TracePacket {
            trusted_packet_sequence_id: Some(machine.0 + 1),
            sequence_flags: Some(cleared | SEQ_NEEDS_INCREMENTAL_STATE),
            machine_id: (machine != Machine::HOST).then_some(machine.0),
            ..packet
        };
        self.buffer.clear();
        self.buffer.push(PACKET_TAG);
        // A vector grows as far as it has to.
        let encoded = packet.encode_length_delimited(&mut self.buffer).map_err(io::Error::other);
        match encoded.and_then(|()| self.out.write_all(&self.buffer)) {
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
        let machines: Vec<Machine> = self.sequences.keys().copied().collect();
        for machine in machines {
            let bundles = self.sequences.get_mut(&machine).map(|sequence| std::mem::take(&mut sequence.bundles));
            for (cpu, events) in bundles.into_iter().flatten().filter(|(_, events)| !events.is_empty()) {
                self.bundle(machine, cpu, events);
            }
        }
        match self.failed {
            Some(error) => Err(error),
            None => self.out.flush().map(|()| self.bytes),
        }
    }
}

/// An annotation that is text.
pub(super) fn text(name: &str, value: impl Into<String>) -> DebugAnnotation {
    DebugAnnotation { name: Some(name.into()), string_value: Some(value.into()), ..DebugAnnotation::default() }
}

/// An annotation that is a number.
pub(super) fn number(name: &str, value: u64) -> DebugAnnotation {
    DebugAnnotation { name: Some(name.into()), uint_value: Some(value), ..DebugAnnotation::default() }
}
