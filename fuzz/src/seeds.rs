//! The corpus that is committed: what real producers and writers produce, as inputs of the targets.
#![allow(unsafe_code)] // Producers over raw memory.

use crate::events::{self, LARGE, NUMBER, TEXT};
use crate::script::{Op, Transcript};
use crate::{consumer, guest_processes, registry, trace_folder};
use shared_ring::consumer::{Consumer, Lost};
use shared_ring::host_memory::HostMemory;
use shared_ring::layout::{PAGE_SIZE, PROCESS_ACTIVE, PROCESS_CLOSED, ProcessEntry};
use shared_ring::producer::Producer;
use shared_ring::registry::Registry;
use shared_ring::storage::CpuLocal;
use std::cell::Cell;
use trace_merge::session::Session;
use trace_merge::writer::PacketBuilder;
use uuid::Uuid;

/// An input that is committed.
#[derive(Debug)]
pub struct Seed {
    /// The target.
    pub target: &'static str,
    /// Name of the file.
    pub name: String,
    /// What is in it.
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
    add("guest_processes", "two-processes", process_slots());
    for (name, bytes) in ftrace_pages() {
        add("ftrace_page", name, bytes);
    }
    seeds
}

/// A clock that advances by `step` each time it is read.
fn ticking(from: u64, step: u64) -> impl Fn() -> u64 {
    let time = Cell::new(from);
    move || time.replace(time.get() + step)
}

/// A producer on the ring at the beginning of `memory`.
fn producer(memory: &HostMemory, geometry: shared_ring::layout::Geometry) -> Producer<CpuLocal> {
    // SAFETY: the memory covers the ring, is zeroed, outlives the producer (the callers keep it), and is used from one
    // thread.
    unsafe { Producer::new(CpuLocal::new(memory.base()), geometry) }
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
    ]
}

/// Three laps of a ring that is read as it fills.
fn ring_laps() -> Vec<u8> {
    let geometry = consumer::geometry(0);
    let memory = HostMemory::private(geometry.ring_size());
    let producer = producer(&memory, geometry);
    let mut reader = Consumer::new(memory.clone(), geometry, 3);
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
        if reader.poll(&mut packet) == shared_ring::consumer::Poll::Copied {
            let described = events::described();
            reader.accept(&mut packet, consumer::UUID, 1 << 40, |id| events::find(&described, id));
            transcript.forget_changes();
        }
    }
    transcript.step(consumer::DRAIN, 1 << 40);
    transcript.step(consumer::FINISH, 0);
    transcript.finish()
}

fn ring_with_a_hole() -> Vec<u8> {
    let geometry = consumer::geometry(1);
    let memory = HostMemory::private(geometry.ring_size());
    let producer = producer(&memory, geometry);
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
    let geometry = consumer::geometry(0);
    let memory = HostMemory::private(geometry.ring_size());
    let producer = producer(&memory, geometry);
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
    let geometry = consumer::geometry(0);
    let memory = HostMemory::private(geometry.ring_size());
    let producer = producer(&memory, geometry);
    let mut transcript = Transcript::new(memory, &[0]);
    for time in [100, (1 << 32) + 99, (1 << 32) + 100, 1 << 50] {
        producer.record(|| time, NUMBER.id, &number(time));
        producer.record(|| time, TEXT.id, &text("at", "once"));
    }
    transcript.step(consumer::DRAIN, 1 << 51);
    transcript.finish()
}

/// Small lies in the words that a consumer goes by.
fn ring_control_words() -> Vec<u8> {
    let mut script = ring_full();
    let geometry = consumer::geometry(0);
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

/// Packets of 512 bytes, as they lie in a recording.
fn stream(uuid: Uuid, records: &[(u64, u16, Vec<u8>)]) -> Vec<u8> {
    let mut builder = PacketBuilder::new(*uuid.as_bytes(), 0, trace_folder::PACKET_SIZE);
    let mut bytes = Vec::new();
    for (index, (time, id, payload)) in records.iter().enumerate() {
        builder.push(*time, *id, payload);
        let is_last = index + 1 == records.len();
        if is_last || index % 4 == 3 {
            let lost = Lost { full: u64::from(is_last), ..Lost::default() };
            bytes.extend_from_slice(builder.finish(lost, 0).expect("the packet holds a record"));
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
    let session: Session = trace_folder::session();
    serde_json::to_vec(&session).expect("a description can be written")
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
    let mut input = Vec::new();
    for block in blocks {
        input.extend(u16::try_from(block.len()).expect("seeds are small").to_le_bytes());
        input.extend(block);
    }
    input
}

/// Two processes, one after the other in the same slot, and one beside them that is killed.
fn process_slots() -> Vec<u8> {
    let layout = guest_processes::layout();
    let memory = HostMemory::private(layout.size);
    let mut transcript = Transcript::new(memory.clone(), &[]);
    let clock = ticking(10, 3);
    let state = |slot: usize, generation: u64, status: u32| {
        let entry = layout.process_table + slot * size_of::<ProcessEntry>();
        memory.store(entry, generation << 32 | u64::from(status));
        memory.store(entry + 8, 42 + generation);
        memory.write(entry + 16, b"work;\"load");
    };
    let begin = |slot: u32| {
        memory.clear(layout.process_slot(slot), layout.process_stride);
        let part = memory.part(layout.process_slot(slot) + PAGE_SIZE, layout.process_registry_size);
        // SAFETY: the memory outlives the registry, which is its only writer.
        let registry = unsafe { Registry::new(CpuLocal::new(part.base()), part.size()) };
        assert!(events::ALL.iter().all(|event| registry.append(event)));
        let ring = layout.config.process_rings;
        producer(&memory.part(layout.process_ring(slot, 0), ring.ring_size()), ring)
    };
    for generation in 1..=2 {
        let process = begin(0);
        state(0, generation, PROCESS_ACTIVE);
        for value in 0..4 {
            process.record(&clock, LARGE.id, &LARGE_PAYLOAD);
            process.record(&clock, NUMBER.id, &number(value));
        }
        transcript.step(guest_processes::RUNNING, 1 << 40);
        process.record(&clock, TEXT.id, &text("last", "words"));
        state(0, generation, PROCESS_CLOSED);
        transcript.step(guest_processes::RUNNING, 1 << 40);
    }
    let killed = begin(1);
    state(1, 1, PROCESS_ACTIVE);
    killed.record(&clock, NUMBER.id, &number(1));
    transcript.step(guest_processes::STOPPED, 1 << 40);
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
