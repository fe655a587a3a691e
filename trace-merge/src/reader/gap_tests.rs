//! Where streams have gaps.

use super::*;
use crate::session::tests::session;
use crate::test_trace::TestTrace;
use crate::writer::{LayerWriter, NewLayer, PacketBuilder};
use shared_ring::packet::write_header;
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
    let mut layer = LayerWriter::create(dir.path(), &session(), new).unwrap();
    layer.add_events(&[super::tests::event(1, "test:tick", &[])]).unwrap();
    let mut builder = PacketBuilder::new(layer.layer().uuid.into_bytes(), 0, 4096);
    for index in 0..4 {
        builder.push(10 * (index as u64 + 1), 1, &[]);
        let packet = builder.finish(Lost::default(), 0).unwrap();
        let mut header = read_header(packet).unwrap();
        let kept = change(index, &mut header);
        write_header(packet, &header);
        (0..usize::from(kept)).for_each(|_| layer.append(0, packet).unwrap());
    }
    Session { layers: vec![layer.layer()], ..session() }.save(dir.path()).unwrap();
    let trace = Trace::open(dir.path()).unwrap();
    (dir, trace)
}

#[test]
fn whole_stream_has_no_gap() {
    let (_dir, trace) = packets(|_, _| true);

    assert!(after_gaps(&trace).is_empty());
}

#[test]
fn loss_in_a_ring_lies_behind_the_packet_that_counts_it() {
    let (_dir, trace) = packets(|index, header| {
        header.lost_full = if index >= 1 { 5 } else { 0 };
        true
    });

    assert_eq!(after_gaps(&trace), [30]);
}

#[test]
fn missing_packet_is_a_gap() {
    let (_dir, trace) = packets(|index, _| index != 2);

    assert_eq!(after_gaps(&trace), [40]);
}

#[test]
fn rejected_bytes_and_overwritten_packets_may_lie_on_either_side() {
    let (_dir, rejected) = packets(|index, header| {
        header.rejected_bytes = if index >= 1 { 8 } else { 0 };
        true
    });
    let (_other, overwritten) = packets(|index, header| {
        header.overwritten = if index >= 2 { 9 } else { 0 };
        true
    });

    assert_eq!(after_gaps(&rejected), [20, 30]);
    assert_eq!(after_gaps(&overwritten), [30, 40]);
}

#[test]
fn beginning_of_a_flight_recorder_is_no_gap() {
    let (_dir, trace) = packets(|_, header| {
        header.overwritten = 7;
        true
    });

    // What was overwritten may have been behind the first packet that was left.
    assert_eq!(after_gaps(&trace), [20]);
}

#[test]
fn loss_in_the_host_kernel_lies_where_it_was_told() {
    let event = |trace: TestTrace, time| trace.host(0, time, "test:tick", &[]);
    let trace = (1..4).fold(TestTrace::new(), event).lost(LayerKind::HostKernel, 0, 2);
    let (_dir, trace) = (4..6).fold(trace, event).open();

    let times = after_gaps(&trace);

    assert_eq!(times, [4]);
    assert_eq!(trace.layers()[0].streams[0].description.lost.full, 2);
}
