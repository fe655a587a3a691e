//! The corpus that is committed: what real producers and writers produce, as inputs of the targets.
#![allow(unsafe_code)] // Producers over raw memory.

use crate::events::{self, LARGE, NUMBER, TEXT};
use crate::script::{Op, Transcript};
use crate::{consumer, crash_reader, event_format, guest_processes, guest_ring, registry, trace_folder};
use shared_ring::consumer::{Consumer, Lost};
use shared_ring::host::memory::HostMemory;
use shared_ring::host::{self, MAX_SESSION_NAME};
use shared_ring::layout::{AGENT_ALIVE, PAGE_SIZE, PROCESS_ACTIVE, PROCESS_CLOSED, ProcessEntry};
use shared_ring::producer::Producer;
use shared_ring::region::{RegionLayout, Rings};
use shared_ring::registry::Registry;
use shared_ring::storage::CpuLocal;
use std::cell::Cell;
use strata_recorder::control::protocol::{
    Answer, BalloonStatus, Late, LayerStatus, Live, LiveExits, LiveVcpu, LossStatus, Mode, Request, SessionStatus,
    Status, Thief, Times, TraceStatus, TriggerStatus, Watched,
};
use strata_recording::files::MANIFEST_FILE;
use strata_recording::manifest::Manifest;
use strata_recording::one_file::pack::pack;
use strata_recording::reader::Trace;
use strata_recording::writer::PacketBuilder;
use uuid::Uuid;
use vmm::agentless::sample;

mod machine;

/// An input that is committed.
#[derive(Debug)]
pub struct Seed {
    /// Name of the target.
    pub target: &'static str,
    /// Name of the file.
    pub name: String,
    /// Content of the file.
    pub bytes: Vec<u8>,
}

/// All inputs.
#[must_use]
pub fn all() -> Vec<Seed> {
    let mut seeds = Vec::new();
    let mut add = |target, name: &str, bytes| seeds.push(Seed { target, name: name.into(), bytes });
    for (name, bytes) in rings() {
        add("consumer", name, bytes.clone());
        add("consumer_race", name, bytes);
    }
    add("registry", "entries", registry_entries());
    add("registry", "followed", registry_followed());
    for (name, bytes) in packets() {
        add("packet", name, bytes);
    }
    add("trace_folder", "whole", recording(b""));
    add("trace_folder", "whole-with-description", recording(&description()));
    add("trace_folder", "with-a-compressed-stream", [recording(b""), block(&compressed_stream())].concat());
    add("trace_folder", "with-a-journal", recording_with_journal());
    for (name, bytes) in packed_recordings() {
        add("packed_trace", name, bytes);
    }
    for (name, rings) in [("streamed", 0), ("snapshots", consumer::FLIGHT_RECORDER)] {
        add("guest_processes", name, process_slots(rings));
    }
    add("crash_reader", "region", crashed_region());
    add("recover", "region", crashed_region());
    for (name, bytes) in ftrace_pages() {
        for (event, format) in FORMATS.iter().filter(|_| name == "records") {
            add("event_format", event, event_format::input(format, &bytes));
        }
        add("ftrace_page", name, bytes);
    }
    for (name, bytes) in guest_rings() {
        add("guest_ring", name, bytes);
    }
    for (name, bytes) in machine::device_scripts() {
        add("devices", name, bytes);
    }
    for (name, bytes) in machine::boot_images() {
        add("boot_image", name, bytes);
    }
    for (name, bytes) in machine::kernel_images() {
        add("kernel_image", name, bytes);
    }
    for (name, bytes) in machine::initrds() {
        add("initrd", name, bytes);
    }
    for (name, bytes) in machine::disks() {
        add("bootable_disk", name, bytes);
    }
    for (name, bytes) in control_requests() {
        add("control_request", name, bytes);
    }
    for (name, bytes) in control_answers() {
        add("control_answer", name, bytes);
    }
    for (name, text) in VM_DESCRIPTIONS {
        add("vm_description", name, text.as_bytes().to_vec());
    }
    for (name, text) in QMP_REPLIES {
        add("qmp_reply", name, text.as_bytes().to_vec());
    }
    for (name, text) in HTTP_REQUESTS {
        add("http_request", name, text.as_bytes().to_vec());
    }
    for (name, bytes) in compressed_streams() {
        add("compressed_stream", name, bytes);
    }
    for (name, text) in TRIGGERS {
        add("trigger", name, text.as_bytes().to_vec());
    }
    seeds
}

/// A guest's ring by each layout, with a record in its first page and its last.
fn guest_rings() -> Vec<(&'static str, Vec<u8>)> {
    let ring = |choice: u8| {
        let mut memory = sample::memory(&guest_ring::LAYOUTS[usize::from(choice)], &[2, 0, 1], 1, 0);
        for (page, time) in [(1, 1000_u64), (0, 2000)] {
            let page = &mut memory[4096 * (page + 1)..];
            page[..8].copy_from_slice(&number(time));
            page[8..16].copy_from_slice(&number(12));
            page[16..20].copy_from_slice(&2_u32.to_le_bytes());
            page[20..28].copy_from_slice(&number(77));
        }
        let end = memory.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        [&[choice], &memory[..end]].concat()
    };
    // A running guest writes over the time stamp of the page with the first record while that is copied.
    let racing = |choice: u8| {
        let still = ring(choice);
        [&[choice + 2], &[12, 0, 0, 8, 0xff, 0, 0, 0][..], &still[1..]].concat()
    };
    vec![
        ("linux-6.12", ring(0)),
        ("linux-6.14", ring(1)),
        ("linux-6.12-running", racing(0)),
        ("linux-6.14-running", racing(1)),
    ]
}

/// A clock that advances by `step` each time it is read.
fn ticking(from: u64, step: u64) -> impl Fn() -> u64 {
    let time = Cell::new(from);
    move || time.replace(time.get() + step)
}

/// A producer on the ring at the beginning of `memory`.
fn producer(memory: &HostMemory, rings: Rings) -> Producer<CpuLocal> {
    // SAFETY: the memory covers the ring, is zeroed, outlives the producer (the callers keep it), and is used from one
    // thread.
    unsafe { Producer::new(CpuLocal::new(memory.base()), rings.geometry, rings.mode) }
}

fn number(value: u64) -> [u8; 8] {
    value.to_le_bytes()
}

const LARGE_PAYLOAD: [u8; 1200] = [0; 1200];

fn text(first: &str, more: &str) -> Vec<u8> {
    [first.as_bytes(), b"\0\xff\xff\xff\xff", more.as_bytes(), b"\0"].concat()
}

fn rings() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("laps", ring_laps()),
        ("stopped-with-a-hole", ring_with_a_hole()),
        ("full", ring_full()),
        ("far-times", ring_far_times()),
        ("control-words", ring_control_words()),
        ("flight-recorder", flight_recorder()),
        ("flight-recorder-stopped", flight_recorder_with_a_hole()),
    ]
}

/// Three laps of a ring that is read as it fills.
fn ring_laps() -> Vec<u8> {
    let rings = consumer::rings(0);
    let memory = HostMemory::private(rings.ring_size());
    let producer = producer(&memory, rings);
    let mut reader = Consumer::new(memory.clone(), rings.geometry, rings.mode, 3);
    let mut transcript = Transcript::new(memory, &[0]);
    let clock = ticking(1000, 7);
    let mut packet = Vec::new();
    for round in 0..14 {
        producer.record(&clock, NUMBER.id, &number(round));
        producer.record(&clock, LARGE.id, &LARGE_PAYLOAD);
        producer.record(&clock, TEXT.id, &text("hello", "world"));
        transcript.step(consumer::POLL, 0);
        transcript.step(consumer::ACCEPT, 1 << 40);
        // The target's consumer will change its memory as this one does.
        if let Some(delivered) = reader.poll(&mut packet).ready() {
            let described = events::described();
            let _ = delivered.accept(consumer::UUID, 1 << 40, |id| events::find(&described, id));
            transcript.forget_changes();
        }
    }
    transcript.step(consumer::DRAIN, 1 << 40);
    transcript.step(consumer::FINISH, 0);
    transcript.finish()
}

fn ring_with_a_hole() -> Vec<u8> {
    let rings = consumer::rings(1);
    let memory = HostMemory::private(rings.ring_size());
    let producer = producer(&memory, rings);
    let mut transcript = Transcript::new(memory, &[1]);
    let clock = ticking(50, 1);
    for _ in 0..4 {
        producer.record(&clock, LARGE.id, &LARGE_PAYLOAD);
    }
    let _never_committed = producer.reserve(&clock, NUMBER.id, 8);
    producer.record(&clock, TEXT.id, &text("", "after the hole"));
    transcript.step(consumer::DRAIN, 1 << 40);
    transcript.step(consumer::FINISH, 0);
    transcript.finish()
}

fn ring_full() -> Vec<u8> {
    let rings = consumer::rings(0);
    let memory = HostMemory::private(rings.ring_size());
    let producer = producer(&memory, rings);
    let mut transcript = Transcript::new(memory, &[0]);
    let clock = ticking(1, 1);
    for _ in 0..12 {
        producer.record(&clock, LARGE.id, &LARGE_PAYLOAD);
    }
    producer.record(&clock, LARGE.id, &[0; 5000]);
    transcript.step(consumer::POLL, 0);
    transcript.step(consumer::ACCEPT, 1 << 40);
    transcript.step(consumer::POLL_STOPPED, 0);
    transcript.step(consumer::ACCEPT, 1 << 40);
    transcript.step(consumer::FINISH, 0);
    transcript.finish()
}

fn ring_far_times() -> Vec<u8> {
    let rings = consumer::rings(0);
    let memory = HostMemory::private(rings.ring_size());
    let producer = producer(&memory, rings);
    let mut transcript = Transcript::new(memory, &[0]);
    for time in [100, (1 << 32) + 99, (1 << 32) + 100, 1 << 50] {
        producer.record(|| time, NUMBER.id, &number(time));
        producer.record(|| time, TEXT.id, &text("at", "once"));
    }
    transcript.step(consumer::DRAIN, 1 << 51);
    transcript.finish()
}

/// A flight recorder over several laps, with two snapshots.
fn flight_recorder() -> Vec<u8> {
    let rings = consumer::rings(consumer::FLIGHT_RECORDER);
    let memory = HostMemory::private(rings.ring_size());
    let producer = producer(&memory, rings);
    let mut transcript = Transcript::new(memory, &[consumer::FLIGHT_RECORDER]);
    let clock = ticking(1000, 7);
    for round in 0..2 {
        for _ in 0..7 {
            producer.record(&clock, NUMBER.id, &number(round));
            producer.record(&clock, LARGE.id, &LARGE_PAYLOAD);
        }
        transcript.step(consumer::REPLACE, 0);
        for _ in 0..2 {
            transcript.step(consumer::POLL, 0);
            transcript.step(consumer::ACCEPT, 1 << 40);
        }
        transcript.step(consumer::DRAIN, 1 << 40);
        transcript.step(consumer::FLUSH, 0);
        producer.force_switch(&clock);
    }
    transcript.step(consumer::REPLACE, 1);
    transcript.step(consumer::DRAIN, 1 << 40);
    transcript.step(consumer::FINISH, 0);
    transcript.finish()
}

fn flight_recorder_with_a_hole() -> Vec<u8> {
    let rings = consumer::rings(consumer::FLIGHT_RECORDER | 1);
    let memory = HostMemory::private(rings.ring_size());
    let producer = producer(&memory, rings);
    let mut transcript = Transcript::new(memory, &[consumer::FLIGHT_RECORDER | 1]);
    let clock = ticking(50, 1);
    for _ in 0..13 {
        producer.record(&clock, LARGE.id, &LARGE_PAYLOAD);
    }
    let _never_committed = producer.reserve(&clock, NUMBER.id, 8);
    producer.record(&clock, TEXT.id, &text("", "after the hole"));
    transcript.step(consumer::REPLACE, 0);
    transcript.step(consumer::DRAIN, 1 << 40);
    transcript.finish()
}

/// Control words that are off by a little.
fn ring_control_words() -> Vec<u8> {
    let mut script = ring_full();
    let geometry = consumer::rings(0).geometry;
    let word = |offset: usize| u16::try_from(offset / 8).expect("control words lie at the beginning");
    for offset in [0, 64, geometry.commit_count_offset(0), geometry.commit_seq_offset(0), geometry.commit_seq_offset(1)]
    {
        Op::Add { word: word(offset), delta: 8 }.encode(&mut script);
        Op::Step { kind: consumer::POLL_STOPPED, argument: 0 }.encode(&mut script);
        Op::Step { kind: consumer::ACCEPT, argument: u64::MAX }.encode(&mut script);
        Op::Store { word: word(offset), value: u64::MAX }.encode(&mut script);
        Op::Step { kind: consumer::DRAIN, argument: u64::MAX }.encode(&mut script);
    }
    script
}

/// The entries of a registry with all event types.
fn registry_entries() -> Vec<u8> {
    let mut bytes = Vec::new();
    for event in events::ALL {
        let mut entry = [0; shared_ring::registry::MAX_ENTRY];
        let size = shared_ring::registry::encode(&event, &mut entry).expect("the event fits an entry");
        bytes.extend_from_slice(&entry[..size]);
    }
    bytes
}

fn registry_followed() -> Vec<u8> {
    let memory = HostMemory::private(registry::SIZE);
    // SAFETY: the memory outlives the registry, which is its only writer.
    let writer = unsafe { Registry::new(CpuLocal::new(memory.base()), registry::SIZE) };
    let mut transcript = Transcript::new(memory.clone(), &[]);
    for event in events::ALL {
        assert!(writer.append(&event));
        transcript.step(registry::POLL, 0);
    }
    transcript.finish()
}

/// Packets of 512 bytes, as they lie in a recording, of CPU 0.
fn stream(uuid: Uuid, records: &[(u64, u16, Vec<u8>)]) -> Vec<u8> {
    stream_of(0, uuid, records)
}

fn stream_of(cpu: u32, uuid: Uuid, records: &[(u64, u16, Vec<u8>)]) -> Vec<u8> {
    let mut builder = PacketBuilder::new(*uuid.as_bytes(), cpu, trace_folder::PACKET_SIZE);
    let mut bytes = Vec::new();
    let size = usize::try_from(trace_folder::PACKET_SIZE).expect("512 bytes");
    for (index, (time, id, payload)) in records.iter().enumerate() {
        builder.push(*time, *id, payload);
        let is_last = index + 1 == records.len();
        if is_last || index % 4 == 3 {
            let lost = Lost { full: u64::from(is_last), ..Lost::default() };
            let packet = builder.finish(lost, 0).expect("the packet holds a record");
            let end = bytes.len() + size;
            bytes.extend_from_slice(packet.content());
            bytes.resize(end, 0);
        }
    }
    bytes
}

fn guest_records(from: u64) -> Vec<(u64, u16, Vec<u8>)> {
    let records = (0..3).flat_map(|index| {
        let time = from + 100 * index;
        [(time, NUMBER.id, number(index).to_vec()), (time + 5, TEXT.id, text("say \"hi\"", "\u{1b}[2J"))]
    });
    records.chain([(from + (1 << 33), NUMBER.id, number(0).to_vec())]).collect()
}

fn packets() -> Vec<(&'static str, Vec<u8>)> {
    let entries = registry_entries();
    let input = |packet: &[u8]| {
        let length = |bytes: &[u8]| u16::try_from(bytes.len()).expect("seeds are small").to_le_bytes();
        let times = [0_u64, 0, 1 << 40].map(u64::to_le_bytes).concat();
        [&length(&entries)[..], &entries, &length(packet), &times, packet].concat()
    };
    let records = stream(trace_folder::UUIDS[0], &guest_records(0));
    let packet = usize::try_from(trace_folder::PACKET_SIZE).expect("packets are small");
    vec![("first", input(&records[..packet])), ("last", input(&records[packet..]))]
}

fn description() -> Vec<u8> {
    let manifest: Manifest = trace_folder::manifest();
    serde_json::to_vec(&manifest).expect("a description can be written")
}

fn recording(description: &[u8]) -> Vec<u8> {
    let mut host = Vec::new();
    for index in 0..6_u64 {
        let enter = [77_u32, 0].map(u32::to_le_bytes).concat();
        let exit = [77_u32, 0, 0x4e, 2].map(u32::to_le_bytes).concat();
        host.push((index * 100, 1, enter));
        host.push((index * 100 + 50, 2, exit));
    }
    let [host_uuid, kernel_uuid, user_uuid] = trace_folder::UUIDS;
    let blocks = [
        description.to_vec(),
        stream(host_uuid, &host),
        stream(kernel_uuid, &guest_records(10)),
        stream(user_uuid, &guest_records(20)),
    ];
    blocks.iter().flat_map(|bytes| block(bytes)).collect()
}

/// A recording whose recorder was killed before `session.json` had the event types of the guest's kernel, or the process.
fn recording_with_journal() -> Vec<u8> {
    let mut manifest = trace_folder::manifest();
    let journal = manifest.layers[1..].iter().map(|layer| {
        let mut line = serde_json::to_vec(layer).expect("a description can be written");
        line.push(b'\n');
        line
    });
    let journal = journal.collect::<Vec<_>>().concat();
    manifest.layers.truncate(2);
    manifest.layers[1].events.clear();
    let killed = Manifest { outcome: None, ..manifest };
    let killed = serde_json::to_vec(&killed).expect("a description can be written");
    [recording(&killed), block(b""), block(&journal)].concat()
}

fn block(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).expect("seeds are small");
    [&length.to_le_bytes(), bytes].concat()
}

/// What a stream of CPU 1 of the process looks like when it is compressed, without its table.
fn compressed_stream() -> Vec<u8> {
    let size = usize::try_from(trace_folder::PACKET_SIZE).expect("512 bytes");
    let packets = stream_of(1, trace_folder::UUIDS[2], &guest_records(30));
    packets.chunks(size).flat_map(|packet| zstd::bulk::compress(packet, 1).expect("there is memory")).collect()
}

/// One file with a recording, and the archive in it.
fn packed_recordings() -> [(&'static str, Vec<u8>); 2] {
    let dir = tempfile::tempdir().expect("the folder for temporary files is writable");
    std::fs::write(dir.path().join(MANIFEST_FILE), description()).expect("the folder is writable");
    for ((folder, uuid), from) in trace_folder::FOLDERS.into_iter().zip(trace_folder::UUIDS).zip([0, 10, 20]) {
        let folder = dir.path().join(folder);
        std::fs::create_dir_all(&folder).expect("the folder is writable");
        std::fs::write(folder.join("stream_0"), stream(uuid, &guest_records(from))).expect("the folder is writable");
    }
    let mut file = Vec::new();
    let trace = Trace::open(dir.path()).expect("a recording was written");
    pack(&trace, &mut file).expect("there is memory");
    let archive = zstd::decode_all(&*file).expect("it was compressed");
    [("archive", archive), ("file", file)]
}

/// What a guest's kernel and its processes do to a region.
struct Guest {
    memory: HostMemory,
    layout: RegionLayout,
}

impl Guest {
    fn new(layout: RegionLayout) -> Self {
        Self { memory: HostMemory::private(layout.size), layout }
    }

    fn append_events(&self, offset: usize) {
        let part = self.memory.part(offset, self.layout.process_registry_size);
        // SAFETY: the memory outlives the registry, which is its only writer.
        let registry = unsafe { Registry::new(CpuLocal::new(part.base()), part.size()) };
        assert!(events::ALL.iter().all(|event| registry.append(event)));
    }

    /// Gives `slot` to a process.
    fn begin(&self, slot: u32) -> Producer<CpuLocal> {
        self.memory.clear(self.layout.process_slot(slot), self.layout.process_stride);
        self.append_events(self.layout.process_slot(slot) + PAGE_SIZE);
        self.producer(self.layout.process_ring(slot, 0), self.layout.config.process_rings)
    }

    fn producer(&self, offset: usize, rings: Rings) -> Producer<CpuLocal> {
        producer(&self.memory.part(offset, rings.ring_size()), rings)
    }

    fn set_state(&self, slot: usize, generation: u64, status: u32) {
        let entry = self.layout.process_table + slot * size_of::<ProcessEntry>();
        self.memory.store(entry, generation << 32 | u64::from(status));
        self.memory.store(entry + 8, 42 + generation);
        self.memory.write(entry + 16, b"work;\"load");
    }
}

/// Two processes, one after the other in the same slot, and one beside them that is killed.
fn process_slots(rings: u8) -> Vec<u8> {
    let guest = Guest::new(guest_processes::layout(rings));
    let mut transcript = Transcript::new(guest.memory.clone(), &[rings]);
    let clock = ticking(10, 3);
    guest.append_events(guest.layout.registry);
    let kernel = guest.producer(guest.layout.kernel_ring(0, 0), guest.layout.config.process_rings);
    for generation in 1..=2 {
        kernel.record(&clock, NUMBER.id, &number(generation));
        kernel.record(&clock, LARGE.id, &LARGE_PAYLOAD);
        let process = guest.begin(0);
        guest.set_state(0, generation, PROCESS_ACTIVE);
        for value in 0..4 {
            process.record(&clock, LARGE.id, &LARGE_PAYLOAD);
            process.record(&clock, NUMBER.id, &number(value));
        }
        transcript.step(guest_processes::LOOK, 1 << 40);
        process.record(&clock, TEXT.id, &text("last", "words"));
        guest.set_state(0, generation, PROCESS_CLOSED);
        transcript.step(guest_processes::LOOK, 1 << 40);
    }
    let killed = guest.begin(1);
    guest.set_state(1, 1, PROCESS_ACTIVE);
    killed.record(&clock, NUMBER.id, &number(1));
    transcript.step(guest_processes::WRITE, 1 << 40);
    transcript.finish()
}

/// A region with two sessions and a process, as it lies there after its host was killed.
fn crashed_region() -> Vec<u8> {
    let guest = Guest::new(crash_reader::layout());
    let layout = guest.layout;
    let transcript = Transcript::new(guest.memory.clone(), &[0, 0]);
    let mut host = host::Region::create(guest.memory.clone(), layout, [9; 16], 1_000_000_000).expect("the layout fits");
    host.set_alive(true);
    guest.memory.store(layout.agent, AGENT_ALIVE);
    guest.append_events(layout.registry);
    let clock = ticking(10, 3);
    for (slot, rings) in layout.config.sessions.iter().enumerate() {
        let Some(rings) = *rings else { continue };
        host.open_session(slot, &"s".repeat(MAX_SESSION_NAME), rings, |_, _| ()).expect("the slot has room");
        let kernel = guest.producer(layout.kernel_ring(slot, 0), rings);
        for value in 0..9 {
            kernel.record(&clock, LARGE.id, &LARGE_PAYLOAD);
            kernel.record(&clock, NUMBER.id, &number(value));
        }
        let _never_committed = kernel.reserve(&clock, NUMBER.id, 8);
    }
    let process = guest.begin(1);
    guest.set_state(1, 1, PROCESS_ACTIVE);
    process.record(&clock, TEXT.id, &text("killed", "too"));
    transcript.finish()
}

/// Pages as the kernel lays them out: short and long events, time extensions, absolute times, discarded events, losses.
fn ftrace_pages() -> Vec<(&'static str, Vec<u8>)> {
    let page = |time: u64, flags: u64, data: &[u8], tail: &[u8]| {
        let commit = data.len() as u64 | flags;
        [&time.to_le_bytes()[..], &commit.to_le_bytes(), data, tail].concat()
    };
    let common = [77, 0, 0, 0, 42, 0, 0, 0];
    let record = |type_len: u32, delta: u32, body: &[u8]| [&(type_len | delta << 5).to_le_bytes()[..], body].concat();
    let fixed = [&common[..], &[1; 88]].concat();
    let located = [&common[..], &[18, 0, 4, 0, 20, 0, 2, 0, 9, 9], b"abc\0xyz\0\0\0"].concat();
    let long_body = [&116_u32.to_le_bytes()[..], &common, &[3; 104]].concat();
    let data = [
        record(24, 5, &fixed),
        record(30, 7, &9_u32.to_le_bytes()),
        record(7, 1, &located),
        record(31, 3, &(1_u32 << 30).to_le_bytes()),
        record(0, 2, &long_body),
        record(29, 4, &12_u32.to_le_bytes()),
        [0; 8].to_vec(),
        record(29, 0, &[]),
    ]
    .concat();
    vec![
        ("records", page(1 << 60, 0, &data, &[])),
        ("after-a-loss", page(1000, 3 << 30, &record(24, 0, &fixed), &number(77))),
        ("located", page(7, 1 << 31, &[record(7, 0, &located), record(7, 9, &located)].concat(), &[])),
    ]
}

/// Format files as a kernel (6.18) writes them: numbers, names of a fixed length, arrays, and texts that lie elsewhere
/// in the record.
const FORMATS: [(&str, &str); 8] = [
    ("kvm_entry", include_str!("seeds/formats/kvm_entry.format")),
    ("sched_switch", include_str!("seeds/formats/sched_switch.format")),
    ("sys_enter", include_str!("seeds/formats/sys_enter.format")),
    ("block_rq_issue", include_str!("seeds/formats/block_rq_issue.format")),
    ("irq_handler_entry", include_str!("seeds/formats/irq_handler_entry.format")),
    // Of Linux 5.10, whose arrays have expressions for lengths, and of a probe that a user has defined.
    ("tcp_probe", include_str!("seeds/formats/tcp_probe.format")),
    ("svc_defer_drop", include_str!("seeds/formats/svc_defer_drop.format")),
    ("user_probe", include_str!("seeds/formats/user_probe.format")),
];

/// Expressions of triggers, and of filters alone.
const TRIGGERS: [(&str, &str); 5] = [
    ("wakeup", "wakeup>5ms task=web* cpu!=0"),
    ("event", "event:guest:sched:sched_process_exit comm==\"db\" prio<=120"),
    ("exit", "exit:mmio>2ms vcpu=0x1"),
    ("host-load", "host-load>80%"),
    ("filters", "exit_reason==msr && ret<=-EPERM comm=\"a && b\""),
];

/// A VM of whose kinds of events each occurs once.
fn live() -> Live {
    let mut times = Times::default();
    times.add(5_000);
    let host = Watched {
        vcpus: vec![LiveVcpu::default()],
        thieves: vec![Thief { name: "hog".into(), ns: 7 }],
        exits: vec![LiveExits { reason: "hlt".into(), times: times.clone() }],
        ready: times,
        late: vec![Late::default()],
        ..Watched::default()
    };
    Live { name: "vm0".into(), host: Some(host), ..Live::default() }
}

/// Lines of a client.
fn control_requests() -> Vec<(&'static str, Vec<u8>)> {
    let create = Request::SessionCreate {
        name: "second".into(),
        mode: Mode::FlightRecorder,
        sub_buffer_size: Some(4096),
        sub_buffers: Some(8),
        events: Some("sched:*".into()),
        trace: Some("/tmp/second".into()),
        max_size: Some(1 << 20),
        limits: Vec::new(),
    };
    let trigger = "wakeup>5ms task=web*".to_owned();
    let arm = Request::TriggerAdd { trigger: trigger.clone(), every_ms: Some(60_000), after_ms: Some(100) };
    let line = |request: &Request| serde_json::to_vec(request).expect("a request is text");
    vec![
        ("status", line(&Request::Status)),
        ("trigger-add", line(&arm)),
        ("trigger-remove", line(&Request::TriggerRemove { trigger })),
        ("live", line(&Request::Live)),
        ("create", line(&create)),
        ("balloon", line(&Request::Balloon { bytes: Some(256 << 20) })),
        ("snapshot", line(&Request::Snapshot { dir: "/tmp/snapshot".into(), session: None })),
    ]
}

/// Lines of a VM.
fn control_answers() -> [(&'static str, Vec<u8>); 5] {
    let trace = TraceStatus {
        dir: "/tmp/\x1b[2J".into(),
        guest_kernel: Some("6.1".into()),
        sessions: vec![SessionStatus {
            not_joined: vec![1],
            nested: Some(2),
            trace: Some("/tmp".into()),
            ..SessionStatus::default()
        }],
        triggers: vec![TriggerStatus { last: Some("x".into()), failure: Some("y".into()), ..TriggerStatus::default() }],
        layers: vec![LayerStatus { losses: vec![LossStatus::default()], ..LayerStatus::default() }],
        missing: vec!["vmm: none".into()],
        ..TraceStatus::default()
    };
    let status = Status { name: "a\nb".into(), jail: Some("off".into()), trace: Some(trace), ..Status::default() };
    let line = |answer: Answer| serde_json::to_vec(&answer).expect("an answer is text");
    [
        ("status", line(Answer::Status(Box::new(status)))),
        ("live", line(Answer::Live(Box::new(live())))),
        ("balloon", line(Answer::Balloon(BalloonStatus { refused: 1, ..BalloonStatus::default() }))),
        ("refused", line(Answer::refused("\x1b]0;x\x07 no"))),
        ("unknown", br#"{"answer":"\u001b[2J"}"#.to_vec()),
    ]
}

/// Descriptions of VMs: one that runs, and one that is recorded from outside.
const VM_DESCRIPTIONS: [(&str, &str); 2] = [
    (
        "runs",
        r#"{"name":"vm0","pid":42,"started":{"utc_ns":1700000000000000000,"utc":"2023-11-14T22:13:20Z"},"vcpus":2,"memory":536870912,"trace":"/tmp/t","monitor":{"sub_buffer_size":4096,"sub_buffers":4,"mode":"discard"}}"#,
    ),
    (
        "attached",
        r#"{"name":"q","pid":7,"started":{"utc_ns":1700000000000000000,"utc":"2023-11-14T22:13:20Z"},"vcpus":1,"memory":0,"trace":"/tmp/\u001b[2J\nx","monitor":null,"attached":{"pid":9,"comm":"qemu\u202e"}}"#,
    ),
];

/// What servers of QMP say: one that has a free port, one that has a region from earlier, and one that refuses.
const QMP_REPLIES: [(&str, &str); 3] = [
    (
        "free-port",
        r#"{"QMP":{"version":{"qemu":{"micro":2,"minor":0,"major":10}},"capabilities":[]}}
{"return":{},"id":1}
{"return":[{"name":"p","type":"child<pcie-root-port>"}],"id":2}
{"error":{"class":"GenericError","desc":"none"},"id":3}
{"return":[{"name":"p","type":"child<pcie-root-port>"}],"id":4}
{"return":true,"id":5}
{"return":134217728,"id":6}
{"return":[],"id":7}
"#,
    ),
    (
        "earlier-region",
        r#"{"QMP":{}}
{"return":{},"id":1}
{"return":[{"name":"strata-region","type":"child<ivshmem-plain>"}],"id":2}
{"return":{},"id":3}
{"event":"DEVICE_DELETED","data":{"device":"strata-region","path":"/machine"}}
{"return":{},"id":4}
{"return":[],"id":5}
"#,
    ),
    (
        "refusal",
        r#"{"QMP":{}}
{"event":"RESUME"}
{"error":{"class":"x","desc":"\u001b[2J\nstrata: \u202e"},"id":1}
"#,
    ),
];

/// Requests of a scraper, of the viewer's page, and of a page that has a name of its own for this machine.
const HTTP_REQUESTS: [(&str, &str); 3] = [
    ("scrape", "GET /metrics HTTP/1.1\r\nHost: web:9464\r\nAccept: */*\r\n\r\n"),
    ("viewer", "OPTIONS /trace.pftrace HTTP/1.1\r\nOrigin: https://ui.perfetto.dev\r\nhost: [::1]:9001\r\n\r\n"),
    ("rebound", "GET / HTTP/1.0\nHost: evil.example\n\n"),
];

/// A compressed stream as a file, and as packets with the table at its end.
fn compressed_streams() -> [(&'static str, Vec<u8>); 2] {
    let size = usize::try_from(trace_folder::PACKET_SIZE).expect("512 bytes");
    let packets = stream_of(1, trace_folder::UUIDS[2], &guest_records(30));
    let blocks = packets.chunks(size).flat_map(block);
    [
        ("file", [&[0], &compressed_stream()[..]].concat()),
        ("packets", [1].into_iter().chain(blocks).chain([0, 0]).collect()),
    ]
}
