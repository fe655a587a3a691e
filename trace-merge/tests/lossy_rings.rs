//! Real rings that are too small for what is recorded: every record that is missing lies in a gap of the stream, and the
//! gaps lie around the packets that count loss and nowhere else.
//!
//! Shows: Every missing record lies in a gap of the reader's model.
#![allow(unsafe_code)] // Producers are made from raw memory.
#![allow(missing_docs, clippy::unwrap_used)] // A test binary: nothing to document, may panic.

use proptest::prelude::*;
use shared_ring::consumer::Consumer;
use shared_ring::event::{EventDescription, FieldDescription, FieldType};
use shared_ring::host::memory::HostMemory;
use shared_ring::layout::{Geometry, Mode};
use shared_ring::producer::Producer;
use shared_ring::storage::Smp;
use std::cell::Cell;
use std::path::Path;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::Vm;
use strata_recording::reader::Trace;
use strata_recording::reader::merge::{Merge, Step};
use strata_recording::writer::{LayerWriter, NewLayer};
use tempfile::TempDir;

const NUMBER: u16 = 7;

/// What happens to a ring.
#[derive(Clone, Copy, Debug)]
enum Action {
    /// So many records are made.
    Record(usize),
    /// The current sub-buffer is closed.
    Switch,
    /// So many sub-buffers are taken out, if they are ready.
    Drain(usize),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (1..200_usize).prop_map(Action::Record),
        1 => Just(Action::Switch),
        2 => (1..4_usize).prop_map(Action::Drain),
    ]
}

/// Moves up to `most` packets from the ring into the layer.
fn drain(consumer: &mut Consumer, layer: &mut LayerWriter, most: usize, is_stopped: bool) {
    let mut buffer = Vec::new();
    for _ in 0..most {
        let poll = if is_stopped { consumer.poll_stopped(&mut buffer) } else { consumer.poll(&mut buffer) };
        let Some(delivered) = poll.ready() else { return };
        let packet = delivered.accept(layer.uuid(), u64::MAX, |id| layer.event(id)).unwrap();
        layer.append(&packet).unwrap();
    }
}

/// Does `actions` to a ring of `sub_buffers` of 4 KiB, and writes what comes out of it to `dir`. The record made at tick
/// *n* holds *n* and 8 bytes for each of the `words` whose turn it is, one after another: where a large record is lost, a
/// smaller one may follow. Returns how many were made.
fn record(dir: &Path, sub_buffers: u32, words: &[usize], actions: &[Action]) -> u64 {
    let mut manifest =
        strata_recording::test_trace::manifest_of(vec![Vm { name: "vm0".into(), vcpus: 1, ..Vm::default() }]);
    let geometry = Geometry::new(4096, sub_buffers).unwrap();
    let new = NewLayer { kind: LayerKind::GuestKernel, vm: Some("vm0".into()), process: None, packet_size: 4096 };
    let mut layer = LayerWriter::create(dir, &manifest, new).unwrap();
    let padding = FieldDescription { name: "padding".into(), ty: FieldType::String, hex: false };
    let number = FieldDescription { name: "number".into(), ty: FieldType::U64, hex: false };
    let event = EventDescription { id: NUMBER, class: 0, name: "test:number".into(), fields: vec![number, padding] };
    layer.add_events(&[event]).unwrap();
    let memory = HostMemory::private(geometry.ring_size(Mode::Discard));
    // SAFETY: the memory covers the ring, is zeroed, and outlives the producer.
    let producer = unsafe { Producer::new(Smp::new(memory.base()), geometry, Mode::Discard) };
    let mut consumer = Consumer::new(memory.clone(), geometry, Mode::Discard, 0);
    let time = Cell::new(0_u64);
    let mut words = words.iter().cycle();
    for &action in actions {
        match action {
            Action::Record(count) => {
                for words in words.by_ref().take(count) {
                    time.set(time.get() + 1);
                    let payload = [&time.get().to_le_bytes()[..], &vec![b'x'; words * 8 - 1], &[0]].concat();
                    producer.record(|| time.get(), NUMBER, &payload);
                }
            }
            Action::Switch => drop(producer.force_switch(|| time.get())),
            Action::Drain(most) => drain(&mut consumer, &mut layer, most, false),
        }
    }
    drain(&mut consumer, &mut layer, usize::MAX, true);
    consumer.finish();
    layer.set_loss(0, consumer.lost(), consumer.rejected_bytes(), consumer.is_corrupt());
    layer.flush().unwrap();
    manifest.layers.push(layer.layer());
    manifest.save(dir).unwrap();
    time.get()
}

/// The numbers that were recorded, and the gaps: after which number they begin and before which they end.
fn read(dir: &Path) -> (Vec<u64>, Vec<(u64, u64)>) {
    let trace = Trace::open(dir).unwrap();
    let mut merge = Merge::new(trace.layers(), 0);
    let (mut numbers, mut gaps) = (Vec::new(), Vec::new());
    while let Some(step) = merge.next_step() {
        match step {
            Step::Record(merged) => numbers.push(merged.record.unsigned("number").unwrap()),
            Step::GapBegin { time, .. } => gaps.push((time, u64::MAX)),
            Step::GapEnd { time, .. } => gaps.last_mut().unwrap().1 = time,
        }
    }
    (numbers, gaps)
}

/// The gaps that the rule allows: around each packet that counts more loss than the one before it, and behind the last one
/// when the manifest counts more.
fn allowed(dir: &Path) -> Vec<(u64, u64)> {
    let trace = Trace::open(dir).unwrap();
    let layer = &trace.layers()[0];
    let stream = &layer.streams[0];
    let mut packets: Vec<(u64, u64, u64)> = Vec::new();
    let lost: Vec<u64> = stream.headers().map(|(_, header)| header.events_discarded).collect();
    // First and last record, and the loss that is counted.
    let mut of_packet = None;
    for record in layer.records(stream) {
        if of_packet.replace(record.packet) != Some(record.packet) {
            packets.push((record.time, record.time, lost[record.packet]));
        }
        packets.last_mut().unwrap().1 = record.time;
    }
    let mut allowed = Vec::new();
    for (index, &(begin, end, lost)) in packets.iter().enumerate() {
        let before = index.checked_sub(1).map_or((0, 0), |before| (packets[before].1, packets[before].2));
        if lost > before.1 {
            allowed.push((before.0, begin));
            allowed.push((end, packets.get(index + 1).map_or(u64::MAX, |next| next.0)));
        }
    }
    let last = packets.last().map_or((0, 0), |&(_, end, lost)| (end, lost));
    if stream.description.lost.total() > last.1 {
        // The last packet may be a sub-buffer that was left open.
        let before = packets.len().checked_sub(2).map_or(0, |before| packets[before].1);
        allowed.extend([(before, packets.last().map_or(u64::MAX, |last| last.0)), (last.0, u64::MAX)]);
    }
    allowed
}

fn check(sub_buffers: u32, words: &[usize], actions: &[Action]) -> Result<(), TestCaseError> {
    let dir = TempDir::new().unwrap();
    let made = record(dir.path(), sub_buffers, words, actions);
    let (numbers, gaps) = read(dir.path());
    let known: std::collections::BTreeSet<u64> = numbers.iter().copied().collect();
    for number in (1..=made).filter(|number| !known.contains(number)) {
        let is_in_gap = gaps.iter().any(|&(begin, end)| begin < number && number < end);
        prop_assert!(is_in_gap, "{number} is missing, and in none of the gaps {gaps:?}");
    }
    let allowed = allowed(dir.path());
    for gap in &gaps {
        prop_assert!(allowed.contains(gap), "{gap:?} is none of {allowed:?}");
    }
    Ok(())
}

#[test]
fn loss_before_and_behind_the_packet_that_counts_it_lies_in_gaps() {
    use Action::{Drain, Record, Switch};
    // The ring is full while its sub-buffer is open, and again right after a forced switch closed it.
    let behind = [Record(400), Drain(4), Record(50)];
    let before = [Record(30), Switch, Record(30), Switch, Record(100), Drain(1), Record(30), Drain(9)];

    check(2, &[10], &behind).unwrap();
    check(2, &[10], &before).unwrap();
}

#[test]
fn record_that_is_smaller_than_a_lost_one_does_not_follow_it_into_its_packet() {
    use Action::{Drain, Record};

    check(2, &[39, 1, 1], &[Record(400), Drain(2), Record(30), Drain(1), Record(30)]).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn missing_records_lie_in_gaps_that_the_rule_allows(
        sub_buffers in prop_oneof![Just(2_u32), Just(4)],
        words in proptest::collection::vec(1..40_usize, 1..6),
        actions in proptest::collection::vec(action(), 1..40),
    ) {
        check(sub_buffers, &words, &actions)?;
    }
}
