//! Where records of a stream are missing, as its packets tell: each carries the number of records lost so far and its
//! sequence number.

use crate::reader::Stream;
use crate::session::LayerKind;
use crate::window::Window;

/// The periods in which records of `stream`, of a layer of `kind`, are missing, in order. They may be longer than what is
/// really missing, never shorter: what happened in them is not known.
#[must_use]
pub fn gaps(kind: LayerKind, stream: &Stream) -> Vec<Window> {
    let described = &stream.description;
    let mut gaps = Gaps { periods: Vec::new() };
    // What a stream that begins late does not show is missing.
    let mut before = Before { end: 0, lost: 0, next_sequence: None };
    let mut first = true;
    for (_, header) in stream.headers() {
        let lost = header.lost_full.saturating_add(header.lost_wrapped);
        let missing = before.next_sequence.is_some_and(|next| next != header.sequence);
        let begins_late = first && (described.overwritten > 0 || header.sequence > 0);
        if lost > before.lost || missing || begins_late {
            // A ring loses records while it is full, which is between two packets; the host's kernel also reports that it
            // lost some in the middle of a packet.
            let within = kind == LayerKind::HostKernel && lost > before.lost;
            gaps.add(before.end, if within { header.time_end } else { header.time_begin });
        }
        before = Before { end: header.time_end, lost, next_sequence: Some(header.sequence.saturating_add(1)) };
        first = false;
    }
    let lost = described.lost.full.saturating_add(described.lost.wrapped);
    if lost > before.lost || described.corrupt || stream.absent {
        gaps.add(before.end, u64::MAX);
    }
    gaps.periods
}

struct Before {
    end: u64,
    lost: u64,
    next_sequence: Option<u64>,
}

struct Gaps {
    periods: Vec<Window>,
}

impl Gaps {
    /// Adds a period, or makes the last one longer that it touches.
    fn add(&mut self, begin: u64, end: u64) {
        match self.periods.last_mut() {
            Some(last) if begin <= last.end => last.end = last.end.max(end),
            _ => self.periods.push(Window { begin, end: end.max(begin) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::Trace;
    use crate::reader::tests::event;
    use crate::session::Session;
    use crate::session::tests::session;
    use crate::writer::{LayerWriter, NewLayer};
    use shared_ring::consumer::Lost;
    use tempfile::TempDir;

    /// A stream of two packets, with ticks 1000 to 1014 and 2000, before the second of which `lost` are added.
    fn stream(kind: LayerKind, change: impl FnOnce(&mut LayerWriter)) -> Vec<Window> {
        let dir = TempDir::new().unwrap();
        let mut session = session();
        let vm = (kind != LayerKind::HostKernel).then(|| "vm0".into());
        let new = NewLayer { kind, vm, process: None, packet_size: 256 };
        let mut layer = LayerWriter::create(dir.path(), &session, new).unwrap();
        layer.add_events(&[event(1, "test:event", &[])]).unwrap();
        for tick in 0..15 {
            layer.record(0, 1000 + tick, 1, &[]).unwrap();
        }
        layer.flush().unwrap();
        change(&mut layer);
        layer.record(0, 2000, 1, &[]).unwrap();
        layer.record(0, 2100, 1, &[]).unwrap();
        layer.flush().unwrap();
        session.layers.push(layer.layer());
        Session::save(&session, dir.path()).unwrap();
        let trace = Trace::open(dir.path()).unwrap();
        gaps(kind, &trace.layers()[0].streams[0])
    }

    #[test]
    fn complete_stream_has_none() {
        assert_eq!(stream(LayerKind::GuestKernel, |_| ()), []);
    }

    #[test]
    fn loss_lies_between_the_packets_that_tell_it() {
        assert_eq!(stream(LayerKind::GuestKernel, |layer| layer.add_lost(0, 3)), [Window { begin: 1014, end: 2000 }]);
    }

    #[test]
    fn loss_of_the_hosts_kernel_may_lie_in_the_packet() {
        assert_eq!(stream(LayerKind::HostKernel, |layer| layer.add_lost(0, 3)), [Window { begin: 1014, end: 2100 }]);
    }

    #[test]
    fn overwritten_beginning_is_missing() {
        assert_eq!(stream(LayerKind::Vmm, |layer| layer.set_overwritten(0, 1)), [Window { begin: 0, end: 1000 }]);
    }

    #[test]
    fn everything_is_missing_behind_a_ring_that_was_given_up() {
        let lost = |layer: &mut LayerWriter| layer.set_loss(0, Lost::default(), 0, true);

        assert_eq!(stream(LayerKind::Vmm, lost), [Window { begin: 2100, end: u64::MAX }]);
    }
}
