//! Where streams have gaps.

use super::*;
use crate::manifest::StreamDescription;
use crate::schema::RECORDING_STOPS;
use crate::test_trace::{TestTrace, manifest};
use crate::writer::{LayerWriter, NewLayer, PacketBuilder};
use shared_ring::consumer::Lost;
use shared_ring::layout::{PACKET_HEADER_SIZE, PacketHeader, padded};
use shared_ring::packet::{Packet, read_header, write_header};
use std::fs;
use tempfile::TempDir;

/// Times of the records that come after a gap.
fn after_gaps(trace: &Trace) -> Vec<u64> {
    let layer = &trace.layers()[0];
    layer.records(&layer.streams[0]).filter(|record| record.after_gap).map(|record| record.time).collect()
}

/// A recording of guest-kernel packets with one record each, at ticks 10, 20, …, whose headers `change` may change by
/// index; `false` leaves the packet out.
fn packets(change: impl Fn(usize, &mut PacketHeader) -> bool) -> (TempDir, Trace) {
    let dir = TempDir::new().unwrap();
    let new = NewLayer { kind: LayerKind::GuestKernel, vm: Some("vm0".into()), process: None, packet_size: 4096 };
    let mut layer = LayerWriter::create(dir.path(), &manifest(), new).unwrap();
    layer.add_events(&[crate::test_trace::event(1, "test:tick", &[])]).unwrap();
    let mut builder = PacketBuilder::new(layer.layer().uuid.into_bytes(), 0, 4096);
    for index in 0..4 {
        builder.push(10 * (index as u64 + 1), 1, &[]);
        let packet = builder.finish(Lost::default(), 0).unwrap();
        let mut header = *packet.header();
        let kept = change(index, &mut header);
        let mut bytes = packet.content().to_vec();
        bytes.resize(padded(bytes.len()), 0);
        let packet = Packet::new(&mut bytes, header, 1).unwrap();
        (0..usize::from(kept)).for_each(|_| layer.append(&packet).unwrap());
    }
    Manifest { layers: vec![layer.layer()], ..manifest() }.save(dir.path()).unwrap();
    let trace = Trace::open(dir.path()).unwrap();
    (dir, trace)
}

#[test]
fn whole_stream_has_no_gap() {
    let (_dir, trace) = packets(|_, _| true);

    assert!(after_gaps(&trace).is_empty());
}

#[test]
fn record_after_the_mark_of_a_cpu_that_stops_comes_after_a_gap() {
    let tick = |trace: TestTrace, time| trace.guest(0, time, "test:tick", &[]);
    let stops = |trace: TestTrace, time| trace.guest(0, time, RECORDING_STOPS, &[]);
    let (_dir, trace) = stops(tick(tick(stops(tick(TestTrace::new(), 10), 20), 30), 40), 50).open();

    let layer = &trace.layers()[0];
    let ends_in_gap = |to| {
        let mut records = layer.records(&layer.streams[0]).within(0, to);
        records.by_ref().for_each(drop);
        records.ends_in_gap()
    };

    assert_eq!(after_gaps(&trace), [30]);
    assert_eq!([u64::MAX, 45, 25].map(ends_in_gap), [true, false, true]);
    let since = layer.records(&layer.streams[0]).within(25, 35).next();
    assert_eq!(since.map(|record| (record.time, record.after_gap)), Some((30, true)));
}

#[test]
fn loss_lies_around_the_packet_that_counts_it() {
    let (_dir, trace) = packets(|index, header| {
        header.lost_full = if index >= 1 { 5 } else { 0 };
        true
    });

    assert_eq!(after_gaps(&trace), [20, 30]);
}

#[test]
fn record_that_is_too_large_may_have_been_inside_the_packet_that_counts_it() {
    let event = |trace: TestTrace, time| trace.guest(0, time, "test:tick", &[]);
    let (dir, trace) = (1..4).fold(TestTrace::new(), event).open();
    let stream = dir.path().join("vm0/guest-kernel/stream_0");
    let mut bytes = fs::read(&stream).unwrap();
    let header = PacketHeader { lost_too_large: 1, ..read_header(&bytes).unwrap() };
    write_header(&mut bytes, &header);
    fs::write(&stream, bytes).unwrap();

    assert_eq!(after_gaps(&trace), [1, 2, 3]);
}

#[test]
fn record_that_was_never_finished_may_have_been_inside_the_packet_that_counts_it() {
    let event = |trace: TestTrace, time| trace.guest(0, time, "test:tick", &[]);
    let (dir, trace) = (1..4).fold(TestTrace::new(), event).open();
    let stream = dir.path().join("vm0/guest-kernel/stream_0");
    let mut bytes = fs::read(&stream).unwrap();
    let header = PacketHeader { lost_wrapped: 1, ..read_header(&bytes).unwrap() };
    write_header(&mut bytes, &header);
    fs::write(&stream, bytes).unwrap();

    assert_eq!(after_gaps(&trace), [1, 2, 3]);
}

/// Whether a gap is open at the end of the recording in `dir`.
fn ends_in_gap(dir: &TempDir) -> bool {
    let trace = Trace::open(dir.path()).unwrap();
    let layer = &trace.layers()[0];
    let mut records = layer.records(&layer.streams[0]);
    records.by_ref().for_each(drop);
    records.ends_in_gap()
}

#[test]
fn stream_whose_end_is_missing_ends_in_a_gap() {
    let of_stream = |change: &dyn Fn(&mut Vec<u8>)| {
        let (dir, _) = packets(|_, _| true);
        let stream = dir.path().join("vm0/guest-kernel/stream_0");
        let mut bytes = fs::read(&stream).unwrap();
        change(&mut bytes);
        fs::write(&stream, bytes).unwrap();
        ends_in_gap(&dir)
    };

    assert!(!of_stream(&|_| ()));
    assert!(of_stream(&|bytes| bytes.truncate(3 * 4096)), "the last packet is gone");
    assert!(of_stream(&|bytes| bytes.truncate(3 * 4096 + 100)), "the last packet is cut");
    assert!(of_stream(&|bytes| bytes[3 * 4096] ^= 1), "the last packet is damaged");
    assert!(of_stream(&Vec::clear), "the file is empty");
    assert!(of_stream(&|bytes| bytes[3 * 4096 + PACKET_HEADER_SIZE + 4] = 9), "the last record is unknown");
    assert!(!of_stream(&|bytes| drop(bytes.drain(4096..2 * 4096))), "a packet in the middle is gone");
}

#[test]
fn stream_whose_end_the_manifest_says_is_missing_ends_in_a_gap() {
    let of_description = |change: &dyn Fn(&mut StreamDescription)| {
        let (dir, _) = packets(|_, _| true);
        let mut manifest = Manifest::load(dir.path()).unwrap();
        change(&mut manifest.layers[0].streams[0]);
        manifest.save(dir.path()).unwrap();
        ends_in_gap(&dir)
    };

    assert!(of_description(&|stream| stream.lost.full = 1));
    assert!(of_description(&|stream| stream.rejected_bytes = 1));
    assert!(of_description(&|stream| stream.corrupt = true));
    // Of a recorder that did not count packets.
    assert!(of_description(&|stream| (stream.packets, stream.records) = (0, 5)));
    assert!(!of_description(&|stream| stream.packets = 0));
}

/// The end of the stream of [`packets`], whose last one may end later, beside a VMM's that ends at tick 100: what its
/// records between 0 and `to` say of it.
fn end_beside_a_later_stream(to: u64, change: impl FnOnce(&mut Manifest)) -> (bool, Option<u64>) {
    let (dir, _) = packets(|index, header| {
        header.time_end += if index == 3 { 5 } else { 0 };
        true
    });
    let mut manifest = Manifest::load(dir.path()).unwrap();
    let new = NewLayer { kind: LayerKind::Vmm, vm: Some("vm0".into()), process: None, packet_size: 4096 };
    let mut later = LayerWriter::create(dir.path(), &manifest, new).unwrap();
    later.add_events(&[crate::test_trace::event(1, "test:tick", &[])]).unwrap();
    later.record(0, 100, 1, &[]).unwrap();
    later.flush().unwrap();
    manifest.layers.push(later.layer());
    change(&mut manifest);
    manifest.save(dir.path()).unwrap();
    let trace = Trace::open(dir.path()).unwrap();
    let layer = trace.kernel_layers("vm0").next().unwrap();
    let mut records = layer.records(&layer.streams[0]).within(0, to);
    records.by_ref().for_each(drop);
    (records.ends_in_gap(), records.goes_on_from())
}

#[test]
fn stream_ends_in_a_gap_unless_its_layer_came_to_its_end() {
    let of = |change: &dyn Fn(&mut Manifest)| end_beside_a_later_stream(u64::MAX, change).0;
    let outcome = |text: &'static str| move |manifest: &mut Manifest| manifest.outcome = Some(text.into());

    assert!(!of(&outcome("power-off")));
    assert!(!of(&outcome("power-off; a trigger that led to no snapshot of a running VM")));
    assert!(of(&outcome("snapshot of a running VM")));
    assert!(of(&outcome("power-off; snapshot of a running VM, by trigger 'oom'")), "merged ones");
    assert!(of(&|manifest| manifest.outcome = None));
    assert!(!of(&|manifest| (manifest.outcome, manifest.layers[0].ended) = (None, Some(true))));
    assert!(of(&|manifest| manifest.layers[0].ended = Some(false)), "of a recovered trace");
    // The manifest of a recorder that runs lags behind.
    assert!(of(&|manifest| (manifest.outcome, manifest.layers[0].streams) = (None, Vec::new())));
}

#[test]
fn stream_that_goes_on_is_complete_up_to_the_end_of_its_last_packet_or_when_somebody_looked() {
    let goes_on_from = |complete_until, to| {
        end_beside_a_later_stream(to, |manifest| {
            (manifest.outcome, manifest.layers[0].streams[0].complete_until) = (None, complete_until);
        })
    };

    assert_eq!(goes_on_from(None, u64::MAX), (true, Some(45)));
    assert_eq!(goes_on_from(Some(44), u64::MAX), (true, Some(45)));
    assert_eq!([70, 99].map(|until| goes_on_from(Some(until), u64::MAX).1), [Some(70), Some(99)]);
    assert_eq!(goes_on_from(Some(100), u64::MAX), (false, None), "up to the end of the recording");
    assert_eq!([35, 45, 46].map(|to| goes_on_from(None, to).0), [false, false, true]);
}

#[test]
fn packet_that_is_being_written_is_no_damage() {
    let damage = |outcome: Option<String>| {
        let (dir, _) = packets(|_, _| true);
        let stream = dir.path().join("vm0/guest-kernel/stream_0");
        let bytes = fs::read(&stream).unwrap();
        fs::write(&stream, [&bytes[..], &bytes[..100]].concat()).unwrap();
        Manifest { outcome, ..Manifest::load(dir.path()).unwrap() }.save(dir.path()).unwrap();
        let trace = Trace::open(dir.path()).unwrap();
        let layer = &trace.layers()[0];
        let mut records = layer.records(&layer.streams[0]);
        records.by_ref().for_each(drop);
        (records.damage().truncated_bytes, records.ends_in_gap())
    };

    assert_eq!(damage(None), (0, false));
    assert_eq!(damage(Some("power-off".into())), (100, true));
}

#[test]
fn stream_without_a_packet_is_one_gap_while_its_recording_goes_on() {
    let streams = |trace: TestTrace| {
        let (_dir, trace) = trace.vmm(0, 20, "test:tick", &[]).host(3, 30, "test:tick", &[]).open();
        let of = |layer: &TraceLayer| {
            let gaps = layer.streams.iter().map(|stream| {
                let mut records = layer.records(stream);
                let begins = records.next().is_none();
                (stream.description.cpu_id, begins && records.ends_in_gap())
            });
            gaps.collect::<Vec<_>>()
        };
        trace.layers().iter().map(of).collect::<Vec<_>>()
    };
    let recording = || TestTrace::new().guest(1, 10, "test:tick", &[]);

    assert_eq!(streams(recording()), [vec![(3, false)], vec![(0, false)], vec![(1, false)]]);
    let of_vmm = vec![(0, false), (1, true), (2, true)];
    assert_eq!(streams(recording().unfinished()), [vec![(3, false)], of_vmm, vec![(0, true), (1, false)]]);
}

#[test]
fn loss_that_only_the_manifest_counts_may_lie_before_the_last_packet() {
    let (dir, _) = packets(|_, _| true);
    let mut manifest = Manifest::load(dir.path()).unwrap();
    manifest.layers[0].streams[0].lost.full = 1;
    manifest.save(dir.path()).unwrap();

    assert_eq!(after_gaps(&Trace::open(dir.path()).unwrap()), [40]);
}

#[test]
fn window_begins_and_ends_in_the_gaps_that_are_open_there() {
    let (_dir, trace) = packets(|index, _| index != 2);
    let layer = &trace.layers()[0];
    let edges = |from, to| {
        let mut records = layer.records(&layer.streams[0]).within(from, to);
        let after_gap: Vec<_> = records.by_ref().map(|record| record.after_gap).collect();
        (after_gap, records.ends_in_gap(), records.damage().missing_packets)
    };

    assert_eq!(edges(11, 20), (vec![false], true, 0));
    assert_eq!(edges(11, 40), (vec![false, true], false, 1));
    assert_eq!(edges(25, 30), (vec![], true, 0));
    assert_eq!(edges(30, 50), (vec![true], false, 1));
    assert_eq!(edges(0, 15), (vec![false], false, 0));
    assert_eq!(edges(50, 60), (vec![], false, 0));
}

#[test]
fn missing_packet_is_a_gap() {
    let (_dir, trace) = packets(|index, _| index != 2);

    assert_eq!(after_gaps(&trace), [40]);
}

#[test]
fn rejected_bytes_may_lie_on_either_side_and_overwritten_packets_before() {
    let (_dir, rejected) = packets(|index, header| {
        header.rejected_bytes = if index >= 1 { 8 } else { 0 };
        true
    });
    let (_other, overwritten) = packets(|index, header| {
        header.overwritten = if index >= 2 { 9 } else { 0 };
        true
    });

    assert_eq!(after_gaps(&rejected), [20, 30]);
    assert_eq!(after_gaps(&overwritten), [30]);
}

#[test]
fn flight_recorder_begins_with_a_gap() {
    let (_dir, trace) = packets(|_, header| {
        header.overwritten = 7;
        true
    });

    assert_eq!(after_gaps(&trace), [10]);
}

#[test]
fn loss_in_the_host_kernel_lies_around_the_packet_that_counts_it() {
    let event = |trace: TestTrace, time| trace.host(0, time, "test:tick", &[]);
    let trace = (1..4).fold(TestTrace::new(), event).lost(LayerKind::HostKernel, 0, 2);
    let (_dir, trace) = (4..6).fold(trace, event).open();

    let times = after_gaps(&trace);

    assert_eq!(times, [1, 4]);
    assert_eq!(trace.layers()[0].streams[0].description.lost.full, 2);
}
