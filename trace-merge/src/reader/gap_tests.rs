//! Where streams have gaps.

use super::*;
use crate::event::name::RECORDING_STOPS;
use crate::manifest::StreamDescription;
use crate::manifest::tests::manifest;
use crate::test_trace::TestTrace;
use crate::writer::{LayerWriter, NewLayer, PacketBuilder};
use shared_ring::consumer::Lost;
use shared_ring::layout::padded;
use shared_ring::packet::{Packet, write_header};
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
    layer.add_events(&[super::tests::event(1, "test:tick", &[])]).unwrap();
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
