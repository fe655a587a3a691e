//! The periods in which records of a stream are missing.

use crate::reader::Stream;
use crate::window::Window;
use shared_ring::layout::PacketHeader;

/// The periods in which records of `stream` are missing, in order. They may be longer than what is really missing, never
/// shorter: what happened in them is not known. Inside a packet nothing is missing.
#[must_use]
pub fn gaps(stream: &Stream) -> Vec<Window> {
    let described = &stream.description;
    let mut gaps = Gaps { periods: Vec::new() };
    let mut packet_gaps = stream.packet_gaps();
    let mut last: Option<PacketHeader> = None;
    for (_, header) in stream.headers() {
        let is_next = last.map_or(header.sequence == 0 && described.overwritten == 0, |last| {
            header.sequence == last.sequence.saturating_add(1)
        });
        let is_before = packet_gaps.is_before(&header, !is_next);
        if is_before || (last.is_none() && !is_next) {
            gaps.add(last.map_or(0, |last| last.time_end), header.time_begin);
        }
        last = Some(header);
    }
    let lost = described.lost;
    let totals = [lost.full, lost.wrapped, lost.too_large, described.rejected_bytes];
    let told =
        last.map_or([0; 4], |last| [last.lost_full, last.lost_wrapped, last.lost_too_large, last.rejected_bytes]);
    let grew_later = totals.iter().zip(told).any(|(&total, told)| total > told);
    if grew_later || packet_gaps.follows() || described.corrupt || stream.absent {
        gaps.add(last.map_or(0, |last| last.time_end), u64::MAX);
    }
    gaps.periods
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
    use crate::session::tests::session;
    use crate::session::{LayerKind, Session};
    use crate::writer::{LayerWriter, NewLayer};
    use shared_ring::consumer::Lost;
    use tempfile::TempDir;

    /// The gaps of a stream of three packets, with ticks 1000 to 1001, 2000 to 2001 and 3000 to 3001; what `change` does
    /// happens before the second one's records.
    fn gaps_of(change: impl FnOnce(&mut LayerWriter)) -> Vec<Window> {
        let dir = TempDir::new().unwrap();
        let mut session = session();
        let new = NewLayer { kind: LayerKind::Vmm, vm: Some("vm0".into()), process: None, packet_size: 256 };
        let mut layer = LayerWriter::create(dir.path(), &session, new).unwrap();
        layer.add_events(&[event(1, "test:event", &[])]).unwrap();
        let write = |layer: &mut LayerWriter, begin| {
            layer.record(0, begin, 1, &[]).unwrap();
            layer.record(0, begin + 1, 1, &[]).unwrap();
            layer.flush().unwrap();
        };
        write(&mut layer, 1000);
        change(&mut layer);
        write(&mut layer, 2000);
        write(&mut layer, 3000);
        session.layers.push(layer.layer());
        Session::save(&session, dir.path()).unwrap();
        let trace = Trace::open(dir.path()).unwrap();
        gaps(&trace.layers()[0].streams[0])
    }

    #[test]
    fn complete_stream_has_none() {
        assert_eq!(gaps_of(|_| ()), []);
    }

    #[test]
    fn loss_in_a_ring_lies_behind_the_packet_that_tells_it() {
        assert_eq!(gaps_of(|layer| layer.add_lost(0, 3)), [Window { begin: 2001, end: 3000 }]);
    }

    #[test]
    fn rejected_bytes_lie_around_the_packet_that_tells_them() {
        let around = [Window { begin: 1001, end: 2000 }, Window { begin: 2001, end: 3000 }];

        assert_eq!(gaps_of(|layer| layer.add_rejected(0, 8)), around);
    }

    #[test]
    fn overwritten_beginning_is_missing() {
        assert_eq!(gaps_of(|layer| layer.set_overwritten(0, 1))[0], Window { begin: 0, end: 1000 });
    }

    #[test]
    fn everything_is_missing_behind_a_ring_that_was_given_up() {
        let given_up = gaps_of(|layer| layer.set_loss(0, Lost::default(), 0, true));

        assert_eq!(given_up, [Window { begin: 3001, end: u64::MAX }]);
    }
}
