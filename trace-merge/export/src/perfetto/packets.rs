//! Writes packets: those of each machine as a sequence of its own, records of the kernels in bundles for each CPU.
//!
//! Packets need not be in the order of their times: Perfetto sorts all of a trace. Those of one time stay in the order in
//! which they were written.

mod annotations;
pub(super) mod generic_type;

use super::proto::wire::{
    Fields, Key, Short, close_message, open_message, put_bytes, put_length, put_message, put_number, varint,
};
use super::proto::{
    ClockSnapshot, DebugAnnotation, EventName, EventType, FTRACE_CLOCK_MONO_RAW, GenericEventDescriptor, InternedData,
    ProcessTree, SEQ_INCREMENTAL_STATE_CLEARED, SEQ_NEEDS_INCREMENTAL_STATE, SystemInfo, TaskState, TracePacket,
    TrackDescriptor, TrackEvent, Utsname, field,
};
use foldhash::HashMap;
use generic_type::GenericType;
use prost::Message;
use std::io::{self, Write};
use strata_analysis::event::WakeupStage;
use strata_analysis::timeline::by_number::ByNumber;
use strata_recording::reader::StreamRecord;

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
/// Bytes of the two packets of a slice that has a number for its name, at most, and of what is stored with them.
const SLICE: usize = 112;
/// Bytes of most records.
const RECORD: usize = 512;
/// Bytes that there is room for behind the records of a bundle when it is full: as many as most bundles take.
const ROOM: usize = 1 << 14;
/// Bytes of packets that are written at once: so many that what buffers them once more does not copy them.
const PENDING: usize = 1 << 20;

/// A name of few, which is written again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OftenName {
    text: String,
    /// Its number in the sequence of the machine for which it was written last.
    number: Option<(Machine, u64)>,
}

impl OftenName {
    pub(super) const fn new(text: String) -> Self {
        Self { text, number: None }
    }
}

/// Name of a slice or an instant: interned once.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Name<'n> {
    /// One of few, which is kept with its number.
    Often(&'n mut OftenName),
    /// One of few, which is interned.
    Few(&'n str),
    /// One that a guest may make up at will.
    Any(&'n str),
}

/// What a record of a kernel is about, as ftrace has it.
#[derive(Clone, Copy, Debug)]
pub(super) enum FtraceKind<'r> {
    Wakeup {
        stage: WakeupStage,
        comm: &'r str,
        tid: i32,
        target_cpu: Option<i32>,
    },
    SoftirqEntry(u32),
    SoftirqExit(u32),
    IrqEntry {
        irq: i32,
        name: &'r str,
    },
    IrqExit {
        irq: i32,
        result: Option<i32>,
    },
    SysEnter {
        number: i64,
        arguments: &'r [u64],
    },
    SysExit {
        number: i64,
        result: Option<i64>,
    },
    /// A record of an event type that describes itself.
    Generic {
        of: &'r GenericType,
        record: &'r StreamRecord<'r>,
    },
}

/// What packets of one machine refer to.
#[derive(Debug)]
struct Sequence {
    begun: bool,
    /// What stands at the end of each packet.
    tail: Vec<u8>,
    /// The same: the first eight bytes, those behind, and how many there are in all.
    short_tail: (u64, u64, usize),
    names: HashMap<String, u64>,
    /// By CPU: records that are not written yet.
    bundles: ByNumber<Bundle>,
}

impl Sequence {
    fn new(machine: Machine) -> Self {
        let mut tail = Vec::new();
        put_number(field::PACKET_SEQUENCE_ID, u64::from(machine.0) + 1, &mut tail);
        if machine != Machine::HOST {
            put_number(field::PACKET_MACHINE_ID, machine.0.into(), &mut tail);
        }
        // Two keys and numbers of 32 bits take 13 bytes.
        let word = |from: usize| {
            let bytes = tail.iter().skip(from).take(8).rev();
            bytes.fold(0, |word, &byte| word << 8 | u64::from(byte))
        };
        let short_tail = (word(0), word(8), tail.len());
        Self { begun: false, tail, short_tail, names: HashMap::default(), bundles: ByNumber::default() }
    }
}

/// Records of a CPU, encoded as fields of a bundle.
#[derive(Debug, Default)]
struct Bundle {
    records: usize,
    /// The first `length` bytes; those behind are room.
    fields: Vec<u8>,
    length: usize,
}

impl Bundle {
    /// Appends what the thread `tid` recorded at `time`, ns.
    #[inline(always)]
    fn push(&mut self, time: u64, tid: i64, event: &FtraceKind<'_>) {
        let behind = self.fields.get_mut(self.length..).and_then(<[u8]>::first_chunk_mut::<RECORD>);
        let written = behind.and_then(|room| {
            let mut short = Short::new(room);
            put_record(time, tid, event, &mut short);
            short.fits()
        });
        match written {
            Some(bytes) => self.length += bytes,
            None => self.push_slowly(time, tid, event),
        }
        self.records += 1;
    }

    /// The same of a record for which there was no room, and makes room for those to come.
    #[cold]
    #[inline(never)]
    fn push_slowly(&mut self, time: u64, tid: i64, event: &FtraceKind<'_>) {
        self.fields.truncate(self.length);
        put_record(time, tid, event, &mut self.fields);
        self.length = self.fields.len();
        self.fields.resize(self.length + ROOM, 0);
    }

    fn fields(&self) -> &[u8] {
        self.fields.get(..self.length).unwrap_or_default()
    }
}

/// Writes packets to `W`. The first error ends it: nothing is written from then on.
#[derive(Debug)]
pub(super) struct PacketWriter<W> {
    out: W,
    /// By machine, and the place of the one that was written to last: mostly it is the next one, too.
    sequences: Vec<(Machine, Sequence)>,
    last: usize,
    /// The packet in the making: room for what stands before its fields, and these.
    packet: Vec<u8>,
    /// Whether that packet refers to what was interned.
    refers: bool,
    /// Packets that are to be written.
    pending: Vec<u8>,
    /// Room for the two packets of a slice.
    slice: [u8; SLICE],
    /// What is added to times, ns, to have `CLOCK_MONOTONIC_RAW`; `None` where they are written as they are given.
    monotonic_raw: Option<i64>,
    /// Whether nothing is to be written for the time being.
    pub(super) muted: bool,
    failed: Option<io::Error>,
    bytes: u64,
}

impl<W: Write> PacketWriter<W> {
    /// Writes to `out`. To times, which are the trace clock, it adds `monotonic_raw` ns, if that makes them
    /// `CLOCK_MONOTONIC_RAW`.
    pub(super) fn new(out: W, monotonic_raw: Option<i64>) -> Self {
        Self {
            out,
            sequences: Vec::new(),
            last: 0,
            packet: Vec::new(),
            refers: false,
            pending: Vec::new(),
            slice: [0; SLICE],
            monotonic_raw,
            muted: false,
            failed: None,
            bytes: 0,
        }
    }

    /// The time that is written for `time` of the trace clock, ns. What begins with a round time, before all records, may
    /// begin before the other clock did.
    #[inline(always)]
    fn shown(&self, time: u64) -> u64 {
        time.saturating_add_signed(self.monotonic_raw.unwrap_or(0))
    }

    #[inline(always)]
    fn sequence(&mut self, machine: Machine) -> &mut Sequence {
        self.turn_to(machine);
        &mut self.sequences[self.last].1
    }

    /// Makes the sequence of a machine the one that is written to.
    #[inline(always)]
    fn turn_to(&mut self, machine: Machine) {
        if self.sequences.get(self.last).is_none_or(|(of, _)| *of != machine) {
            self.last = self.place_of(machine);
        }
    }

    /// Where the sequence of a machine lies, which is there afterwards.
    fn place_of(&mut self, machine: Machine) -> usize {
        let known = self.sequences.iter().position(|(of, _)| *of == machine);
        known.unwrap_or_else(|| {
            self.sequences.push((machine, Sequence::new(machine)));
            self.sequences.len() - 1
        })
    }

    /// Whether writing has failed.
    pub(super) const fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Introduces a machine: what it is called, the release of its kernel, and what its clocks showed.
    pub(super) fn machine(&mut self, machine: Machine, name: &str, kernel: &str, clocks: Vec<ClockSnapshot>) {
        let text = |text: &str| Some(text.to_string());
        let utsname = Utsname { sysname: text("Linux"), release: text(kernel), machine: text("x86_64") };
        let system_info = SystemInfo { utsname: Some(utsname), machine_name: text(name) };
        for snapshot in clocks {
            self.packet(machine, &TracePacket { clock_snapshot: Some(snapshot), ..TracePacket::default() });
        }
        self.packet(machine, &TracePacket { system_info: Some(system_info), ..TracePacket::default() });
    }

    /// Describes a track.
    pub(super) fn track(&mut self, machine: Machine, time: u64, descriptor: TrackDescriptor) {
        let timestamp = Some(self.shown(time));
        let packet = TracePacket { timestamp, track_descriptor: Some(descriptor), ..TracePacket::default() };
        self.packet(machine, &packet);
    }

    /// Describes processes, and which threads are theirs.
    pub(super) fn processes(&mut self, machine: Machine, time: u64, tree: ProcessTree) {
        let timestamp = Some(self.shown(time));
        let packet = TracePacket { timestamp, process_tree: Some(tree), ..TracePacket::default() };
        self.packet(machine, &packet);
    }

    /// A slice of `track` from `begin` up to `end`, ns, which nothing overlaps but what lies in it; `event` has what else
    /// there is to say of it.
    pub(super) fn slice(
        &mut self,
        machine: Machine,
        track: u64,
        (begin, end): (u64, u64),
        name: Name<'_>,
        event: Option<&TrackEvent>,
    ) {
        if self.muted {
            return;
        }
        if let (Name::Often(OftenName { number: Some((of, iid)), .. }), None) = (&name, event)
            && *of == machine
            && self.short_slice(machine, track, (begin, end), *iid)
        {
            return;
        }
        self.event(machine, track, begin, EventType::SliceBegin, Some(name), |out| {
            event.into_iter().for_each(|event| encode(event, out));
        });
        self.event(machine, track, end, EventType::SliceEnd, None, |_| {});
    }

    /// Writes a slice with the name that has the number `iid` and nothing else to say, as [`event`](Self::event) does; whether
    /// it is one of the many for which this is enough.
    fn short_slice(&mut self, machine: Machine, track: u64, (begin, end): (u64, u64), iid: u64) -> bool {
        const TYPE: Key = Key::of_number(field::TRACK_EVENT_TYPE);
        const NAME: Key = Key::of_number(field::TRACK_EVENT_NAME_IID);
        const TRACK: Key = Key::of_number(field::TRACK_EVENT_TRACK_UUID);
        const TIME: Key = Key::of_number(field::PACKET_TIMESTAMP);
        const FLAGS: Key = Key::of_number(field::PACKET_SEQUENCE_FLAGS);
        const PACKET: Key = Key::with_length(field::TRACE_PACKET);
        const EVENT: Key = Key::with_length(field::PACKET_TRACK_EVENT);
        let (begin, end) = (self.shown(begin), self.shown(end));
        self.turn_to(machine);
        let sequence = &self.sequences[self.last].1;
        // One by one: an array of them is not mapped in place.
        let (Some(name), Some(track), Some(begin), Some(end)) =
            (varint(iid), varint(track), varint(begin), varint(end))
        else {
            return false;
        };
        if !sequence.begun || self.failed.is_some() {
            return false;
        }
        let tail @ (_, _, tail_length) = sequence.short_tail;
        let (named, flags) = (1 + name.1, 2);
        let of_end = 2 + 1 + track.1;
        let mut out = Short::new(&mut self.slice);
        for (kind, time) in [(EventType::SliceBegin, begin), (EventType::SliceEnd, end)] {
            let begins = matches!(kind, EventType::SliceBegin);
            let of_event = of_end + if begins { named } else { 0 };
            let of_packet = 2 + of_event + 1 + time.1 + if begins { flags } else { 0 } + tail_length;
            // None of the lengths is over 127, nor any of the keys.
            let bytes = [PACKET.byte(), of_packet as u64, EVENT.byte(), of_event as u64, TYPE.byte(), kind as u64];
            let next = if begins { NAME.byte() } else { TRACK.byte() };
            out.put_word((0..).zip(bytes).fold(next << 48, |word, (place, byte)| word | byte << (8 * place)), 7);
            if begins {
                out.put_word(name.0, name.1);
                out.put_word(TRACK.byte(), 1);
            }
            out.put_word(track.0, track.1);
            out.put_word(TIME.byte(), 1);
            out.put_word(time.0, time.1);
            if begins {
                out.put_word(FLAGS.byte() | u64::from(SEQ_NEEDS_INCREMENTAL_STATE) << 8, flags);
            }
            out.put_word(tail.0, tail_length.min(8));
            if tail_length > 8 {
                out.put_word(tail.1, tail_length - 8);
            }
        }
        let fits = out.append_to(&mut self.pending);
        self.write_full();
        fits
    }

    /// Something that happens on `track` at `time`.
    pub(super) fn instant(&mut self, machine: Machine, track: u64, time: u64, name: Name<'_>, event: &TrackEvent) {
        if !self.muted {
            self.event(machine, track, time, EventType::Instant, Some(name), |out| encode(event, out));
        }
    }

    /// A record that was made on `track` at `time`, with its fields.
    pub(super) fn record(
        &mut self,
        machine: Machine,
        track: u64,
        time: u64,
        name: Name<'_>,
        record: &StreamRecord<'_>,
    ) {
        if !self.muted {
            self.event(machine, track, time, EventType::Instant, Some(name), |out| {
                annotations::put_fields(record, out);
            });
        }
    }

    /// The counter `track` has `value` from `time` on.
    pub(super) fn counter(&mut self, machine: Machine, track: u64, time: u64, value: u64) {
        if !self.muted {
            // It has a sign.
            let value = value.min(i64::MAX.cast_unsigned());
            self.event(machine, track, time, EventType::Counter, None, |out| {
                put_number(field::TRACK_EVENT_COUNTER_VALUE, value, out);
            });
        }
    }

    /// Writes an event of a track at `time`, with the fields that `more` appends to it.
    fn event(
        &mut self,
        machine: Machine,
        track: u64,
        time: u64,
        kind: EventType,
        name: Option<Name<'_>>,
        more: impl FnOnce(&mut Vec<u8>),
    ) {
        open_message(&mut self.packet);
        let (iid, name) = match name {
            Some(Name::Often(OftenName { text, number })) => match number {
                Some((of, iid)) if *of == machine => (Some(*iid), None),
                _ => {
                    let iid = self.number_of(machine, text);
                    *number = iid.map(|iid| (machine, iid));
                    (iid, Some(&**text))
                }
            },
            Some(Name::Few(name)) => (self.number_of(machine, name), Some(name)),
            Some(Name::Any(name)) => (None, Some(name)),
            None => (None, None),
        };
        self.refers = iid.is_some();
        put_message(field::PACKET_TRACK_EVENT, &mut self.packet, |out| {
            put_number(field::TRACK_EVENT_TYPE, kind as u64, out);
            if let Some(iid) = iid {
                put_number(field::TRACK_EVENT_NAME_IID, iid, out);
            } else if let Some(name) = name {
                put_bytes(field::TRACK_EVENT_NAME, name.as_bytes(), out);
            }
            put_number(field::TRACK_EVENT_TRACK_UUID, track, out);
            more(out);
        });
        // With what changes most at the end, packets are alike for longer, and compress better.
        let time = self.shown(time);
        put_number(field::PACKET_TIMESTAMP, time, &mut self.packet);
        self.write(machine);
    }

    /// The number of a name, which the packet in the making interns if none has; `None` where there are too many.
    fn number_of(&mut self, machine: Machine, name: &str) -> Option<u64> {
        let names = &mut self.sequence(machine).names;
        if let Some(iid) = names.get(name) {
            return Some(*iid);
        }
        if names.len() >= MOST_NAMES {
            return None;
        }
        let iid = names.len() as u64 + 1;
        names.insert(name.to_string(), iid);
        let interned = InternedData { event_names: vec![EventName { iid: Some(iid), name: Some(name.to_string()) }] };
        encode(&TracePacket { interned_data: Some(interned), ..TracePacket::default() }, &mut self.packet);
        Some(iid)
    }

    /// The thread `tid`, called `comm`, runs on `cpu` from `time` on, with the priority `priority` as the kernel counts.
    pub(super) fn runs(&mut self, machine: Machine, time: u64, cpu: u32, thread: (i64, &str), priority: i32) {
        self.put_task_state((machine, cpu), time, thread, TaskState::Running, Some(priority));
    }

    /// The thread `tid`, called `comm`, leaves `cpu` at `time` and is in `state`.
    pub(super) fn stops(&mut self, machine: Machine, time: u64, cpu: u32, thread: (i64, &str), state: TaskState) {
        self.put_task_state((machine, cpu), time, thread, state, None);
    }

    fn put_task_state(
        &mut self,
        (machine, cpu): (Machine, u32),
        time: u64,
        (tid, comm): (i64, &str),
        state: TaskState,
        priority: Option<i32>,
    ) {
        if self.muted {
            return;
        }
        open_message(&mut self.packet);
        put_message(field::PACKET_TASK_STATE, &mut self.packet, |out| {
            if cpu <= i32::MAX.cast_unsigned() {
                put_number(field::TASK_STATE_CPU, cpu.into(), out);
            }
            put_bytes(field::TASK_STATE_COMM, comm.as_bytes(), out);
            put_number(field::TASK_STATE_TID, tid.cast_unsigned(), out);
            put_number(field::TASK_STATE_STATE, state as u64, out);
            if let Some(priority) = priority {
                put_number(field::TASK_STATE_PRIO, i64::from(priority).cast_unsigned(), out);
            }
        });
        let time = self.shown(time);
        put_number(field::PACKET_TIMESTAMP, time, &mut self.packet);
        self.write(machine);
    }

    /// What the thread `tid` recorded in the kernel of `machine` on `cpu` at `time`, ns.
    pub(super) fn ftrace(&mut self, (machine, cpu): (Machine, u32), (time, tid): (u64, i64), event: FtraceKind<'_>) {
        if self.muted {
            return;
        }
        let time = self.shown(time);
        self.turn_to(machine);
        let bundle = self.sequences[self.last].1.bundles.get_or_insert_with(cpu, Bundle::default);
        bundle.push(time, tid, &event);
        if bundle.records >= BUNDLE {
            let full = std::mem::take(bundle);
            self.bundle(machine, cpu, full.fields());
            // Its memory is used again.
            self.sequence(machine).bundles.insert(cpu, Bundle { records: 0, length: 0, ..full });
        }
    }

    /// Describes a type of events, in a bundle of its own: before all of its events.
    pub(super) fn describe_event(&mut self, (machine, cpu): (Machine, u32), descriptor: GenericEventDescriptor) {
        let mut fields = Vec::new();
        put_bytes(field::BUNDLE_GENERIC_EVENT_DESCRIPTORS, &descriptor.encode_to_vec(), &mut fields);
        self.bundle(machine, cpu, &fields);
    }

    /// Writes a bundle of records of `cpu`, whose fields are these.
    fn bundle(&mut self, machine: Machine, cpu: u32, fields: &[u8]) {
        if self.muted || self.failed.is_some() {
            return;
        }
        // They are many bytes, and copied once: what stands before them is put together apart.
        self.packet.clear();
        put_number(field::BUNDLE_CPU, cpu.into(), &mut self.packet);
        if self.monotonic_raw.is_some() {
            put_number(field::BUNDLE_FTRACE_CLOCK, FTRACE_CLOCK_MONO_RAW.into(), &mut self.packet);
        }
        let first = self.packet.len();
        put_length(field::PACKET_FTRACE_EVENTS, first + fields.len(), &mut self.packet);
        let before = self.packet.len() - first;
        let sequence = self.sequence(machine);
        let flags = if std::mem::replace(&mut sequence.begun, true) { 0 } else { SEQ_INCREMENTAL_STATE_CLEARED };
        let mut tail = Vec::new();
        if flags != 0 {
            put_number(field::PACKET_SEQUENCE_FLAGS, flags.into(), &mut tail);
        }
        tail.extend_from_slice(&sequence.tail);
        let pending = &mut self.pending;
        put_length(field::TRACE_PACKET, before + first + fields.len() + tail.len(), pending);
        pending.extend_from_slice(&self.packet[first..]);
        pending.extend_from_slice(&self.packet[..first]);
        pending.extend_from_slice(fields);
        pending.extend_from_slice(&tail);
        self.write_full();
    }

    fn packet(&mut self, machine: Machine, packet: &TracePacket) {
        open_message(&mut self.packet);
        encode(packet, &mut self.packet);
        self.write(machine);
    }

    /// Writes the packet whose fields were put together.
    fn write(&mut self, machine: Machine) {
        let refers = std::mem::take(&mut self.refers);
        if self.muted || self.failed.is_some() {
            return;
        }
        self.turn_to(machine);
        let sequence = &mut self.sequences[self.last].1;
        let begins = !std::mem::replace(&mut sequence.begun, true);
        let cleared = if begins { SEQ_INCREMENTAL_STATE_CLEARED } else { 0 };
        let flags = cleared | if refers { SEQ_NEEDS_INCREMENTAL_STATE } else { 0 };
        if flags != 0 {
            put_number(field::PACKET_SEQUENCE_FLAGS, flags.into(), &mut self.packet);
        }
        self.packet.extend_from_slice(&sequence.tail);
        let packet = close_message(field::TRACE_PACKET, &mut self.packet);
        self.pending.extend_from_slice(packet);
        self.write_full();
    }

    /// Writes the packets that were put together, if they are enough.
    #[inline(always)]
    fn write_full(&mut self) {
        if self.pending.len() >= PENDING {
            self.write_pending();
        }
    }

    #[inline(never)]
    fn write_pending(&mut self) {
        if self.failed.is_none() {
            match self.out.write_all(&self.pending) {
                Ok(()) => self.bytes += self.pending.len() as u64,
                Err(error) => self.failed = Some(error),
            }
        }
        self.pending.clear();
    }

    /// Writes what is not written yet: how many bytes there are in all.
    ///
    /// # Errors
    /// When this or anything before could not be written.
    pub(super) fn finish(mut self) -> io::Result<u64> {
        self.muted = false;
        let mut machines: Vec<Machine> = self.sequences.iter().map(|(machine, _)| *machine).collect();
        machines.sort_unstable();
        for machine in machines {
            let bundles = std::mem::take(&mut self.sequence(machine).bundles);
            for (cpu, bundle) in bundles.iter().filter(|(_, bundle)| bundle.records > 0) {
                self.bundle(machine, cpu, bundle.fields());
            }
        }
        self.write_pending();
        match self.failed {
            Some(error) => Err(error),
            None => self.out.flush().map(|()| self.bytes),
        }
    }
}

/// Appends a record to those of a bundle.
#[inline(always)]
fn put_record<F: Fields>(time: u64, tid: i64, event: &FtraceKind<'_>, out: &mut F) {
    put_message(field::BUNDLE_EVENT, out, |out| {
        put_number(field::FTRACE_TIMESTAMP, time, out);
        put_number(field::FTRACE_PID, u32::try_from(tid).unwrap_or(0).into(), out);
        put_message(event.field(), out, |out| event.encode(out));
    });
}

impl FtraceKind<'_> {
    /// Number of the field of a record that its fields are.
    const fn field(&self) -> u32 {
        match self {
            Self::Wakeup { stage: WakeupStage::Waking, .. } => field::FTRACE_WAKING,
            Self::Wakeup { stage: WakeupStage::Wakeup, .. } => field::FTRACE_WAKEUP,
            Self::Wakeup { stage: WakeupStage::New, .. } => field::FTRACE_WAKEUP_NEW,
            Self::SoftirqEntry(_) => field::FTRACE_SOFTIRQ_ENTRY,
            Self::SoftirqExit(_) => field::FTRACE_SOFTIRQ_EXIT,
            Self::IrqEntry { .. } => field::FTRACE_IRQ_ENTRY,
            Self::IrqExit { .. } => field::FTRACE_IRQ_EXIT,
            Self::SysEnter { .. } => field::FTRACE_SYS_ENTER,
            Self::SysExit { .. } => field::FTRACE_SYS_EXIT,
            Self::Generic { of, .. } => of.number,
        }
    }

    /// Appends its fields.
    #[inline(always)]
    fn encode(&self, out: &mut impl Fields) {
        // Of 32 bits, too, the sign goes through 64.
        match *self {
            Self::SoftirqEntry(vector) | Self::SoftirqExit(vector) => {
                put_number(field::SOFTIRQ_VEC, vector.into(), out)
            }
            Self::IrqExit { irq, result } => {
                put_number(field::IRQ_IRQ, i64::from(irq).cast_unsigned(), out);
                if let Some(result) = result {
                    put_number(field::IRQ_EXIT_RET, i64::from(result).cast_unsigned(), out);
                }
            }
            Self::SysEnter { number, arguments } => {
                put_number(field::SYSCALL_ID, number.cast_unsigned(), out);
                arguments.iter().for_each(|argument| put_number(field::SYSCALL_ARGS, *argument, out));
            }
            Self::SysExit { number, result } => {
                put_number(field::SYSCALL_ID, number.cast_unsigned(), out);
                if let Some(result) = result {
                    put_number(field::SYSCALL_RET, result.cast_unsigned(), out);
                }
            }
            Self::Generic { of, record } => of.encode(record, out),
            Self::IrqEntry { irq, name } => {
                put_number(field::IRQ_IRQ, i64::from(irq).cast_unsigned(), out);
                put_bytes(field::IRQ_ENTRY_NAME, name.as_bytes(), out);
            }
            Self::Wakeup { comm, tid, target_cpu, .. } => {
                put_bytes(field::WAKEUP_COMM, comm.as_bytes(), out);
                put_number(field::WAKEUP_PID, i64::from(tid).cast_unsigned(), out);
                if let Some(cpu) = target_cpu {
                    put_number(field::WAKEUP_TARGET_CPU, i64::from(cpu).cast_unsigned(), out);
                }
            }
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

#[cfg(test)]
mod tests {
    use super::super::proto::{FtraceEvent, IrqHandlerEntry, IrqHandlerExit, Softirq, SysEnter, SysExit, Wakeup};
    use super::*;

    #[test]
    fn time_before_the_begin_of_the_clock_is_its_begin() {
        let writer = PacketWriter::new(Vec::new(), Some(-100));

        assert_eq!([50, 101].map(|time| writer.shown(time)), [0, 1]);
    }

    #[test]
    fn slices_are_the_same_whether_or_not_their_names_are_kept_with_numbers() {
        let machines = [Machine::HOST, Machine(1), Machine(300), Machine(u32::MAX)];
        let tracks = [1, 0x7f, 0x80, 0x3fff, 0x4000, 1 << 40, u64::MAX];
        let times = [(0, 1), (0x80, 0x4000), (1 << 48, 1 << 49), ((1 << 56) - 1, 1 << 56), (1, u64::MAX)];
        let slices = || {
            machines
                .iter()
                .flat_map(|machine| tracks.iter().map(move |track| (*machine, *track)))
                .flat_map(|at| times.map(|time| (at, time)))
        };
        let (mut kept, mut found) = (Vec::new(), Vec::new());

        let mut out = PacketWriter::new(&mut kept, None);
        for machine in machines {
            let mut name = OftenName::new("a state".to_owned());
            for ((_, track), time) in slices().filter(|((of, _), _)| *of == machine) {
                out.slice(machine, track, time, Name::Often(&mut name), None);
            }
        }
        out.finish().unwrap();
        let mut out = PacketWriter::new(&mut found, None);
        for ((machine, track), time) in slices() {
            out.slice(machine, track, time, Name::Few("a state"), None);
        }
        out.finish().unwrap();

        assert_eq!(kept, found);
    }

    #[test]
    fn records_of_kernels_are_encoded_as_the_library_does() {
        let record = FtraceEvent::default;
        let wakeup = |target_cpu| Some(Wakeup { comm: Some("a".into()), pid: Some(-1), target_cpu });
        let woken = |stage, target_cpu| FtraceKind::Wakeup { stage, comm: "a", tid: -1, target_cpu };
        let softirq = Some(Softirq { vec: Some(3) });
        let entered = Some(IrqHandlerEntry { irq: Some(9), name: Some("b".into()) });
        let left = Some(IrqHandlerExit { irq: Some(-9), ret: Some(1) });
        let exit = |ret| Some(SysExit { id: Some(39), ret });
        let kinds = [
            (woken(WakeupStage::Waking, Some(2)), FtraceEvent { sched_waking: wakeup(Some(2)), ..record() }),
            (woken(WakeupStage::Wakeup, None), FtraceEvent { sched_wakeup: wakeup(None), ..record() }),
            (woken(WakeupStage::New, Some(0)), FtraceEvent { sched_wakeup_new: wakeup(Some(0)), ..record() }),
            (FtraceKind::SoftirqEntry(3), FtraceEvent { softirq_entry: softirq, ..record() }),
            (FtraceKind::SoftirqExit(3), FtraceEvent { softirq_exit: softirq, ..record() }),
            (FtraceKind::IrqEntry { irq: 9, name: "b" }, FtraceEvent { irq_handler_entry: entered, ..record() }),
            (FtraceKind::IrqExit { irq: -9, result: Some(1) }, FtraceEvent { irq_handler_exit: left, ..record() }),
            (
                FtraceKind::SysEnter { number: 39, arguments: &[1, u64::MAX] },
                FtraceEvent { sys_enter: Some(SysEnter { id: Some(39), args: vec![1, u64::MAX] }), ..record() },
            ),
            (FtraceKind::SysExit { number: 39, result: None }, FtraceEvent { sys_exit: exit(None), ..record() }),
            (
                FtraceKind::SysExit { number: 39, result: Some(-1) },
                FtraceEvent { sys_exit: exit(Some(-1)), ..record() },
            ),
        ];

        for (kind, event) in kinds {
            let mut encoded = Vec::new();
            put_message(kind.field(), &mut encoded, |out| kind.encode(out));

            assert_eq!(encoded, event.encode_to_vec(), "{kind:?}");
        }
    }
}
