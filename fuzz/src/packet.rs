//! Validation of one packet, by the event types of a registry that is just as arbitrary.
//!
//! An input is: entries of a registry (`u16` length, bytes), claimed bytes (`u16`), begin, earliest and latest time
//! (`u64` each), the packet.

use crate::events;
use crate::script::Input;
use shared_ring::layout::PACKET_HEADER_SIZE;
use shared_ring::packet::{Records, read_header, validate, write_header};
use shared_ring::registry::parse;

/// Gives an input to the reader and checks what must hold.
///
/// # Panics
/// When a property that the target checks does not hold.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let mut known = Vec::new();
    let _ = parse(input.block(), &mut known);
    let claimed = usize::from(input.u16());
    let (begin, earliest, latest) = (input.u64(), input.u64(), input.u64());
    // Records that were discarded are taken out of it.
    let packet = &mut input.0.to_vec()[..];

    let find = |id| events::find(&known, id);
    let contents = validate(packet, claimed, begin, earliest..=latest, find);
    assert!(contents.content + contents.rejected <= packet.len().max(PACKET_HEADER_SIZE));
    assert!(contents.time_begin >= earliest && contents.time_begin <= contents.time_end);

    // What was believed is believed again, alone, and is all there.
    let again = validate(packet, contents.content, begin, earliest..=latest, find);
    assert_eq!((again.records, again.content, again.rejected), (contents.records, contents.content, 0));
    let records = Records::new(packet, contents.content, begin);
    let mut time = earliest;
    let mut count = 0;
    for record in records {
        assert!((time..=latest).contains(&record.time));
        time = record.time;
        assert!(find(record.id).is_some_and(|event| event.accepts(record.payload)));
        count += 1;
    }
    assert_eq!((count, time), (contents.records, contents.time_end));

    // Without any belief the walk still ends, within the packet.
    let walked = Records::new(packet, packet.len(), begin).count();
    assert!(walked <= packet.len() / 8);

    if let Some(header) = read_header(packet) {
        let mut copy = packet.to_vec();
        write_header(&mut copy, &header);
        let written = read_header(&copy).expect("the packet is as long as before");
        assert_eq!((written.content_size, written.sequence), (header.content_size, header.sequence));
        assert_eq!(copy[PACKET_HEADER_SIZE..], packet[PACKET_HEADER_SIZE..]);
    }
}
