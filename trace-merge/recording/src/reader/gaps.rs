//! Where records of a stream may be missing, as the headers of its packets and the manifest say: each packet counts what
//! was lost up to the moment at which it was closed.
//!
//! A producer that finds its ring full closes its sub-buffer, and then counts the record as lost: the next packet counts
//! the loss, which lies before it. The writer of the host kernel's records counts first: the packet that it closes then
//! counts the loss, which lies behind it. Bytes that the recorder rejected may have
//! been on either side. So what a packet counts lies *around* it: between the last record before it and its first one, or
//! between its last record and the first one after it. A record that is too large for any sub-buffer is counted at once,
//! while the packet is open: it lies around the packet or inside it. So may one that its writer never finished, which is
//! counted as wrapped. Sub-buffers that a flight recorder overwrote are
//! counted by who reads it, when it passes over them: they lie before the packet.
//!
//! A recording that was made of others has these gaps where they had them, and marks the packets that lie in one.
//!
//! A guest's kernel says itself when a CPU stops to record (`strata:recording_stops`): the gap lasts from there up to the CPU's
//! next record. Of a vCPU that never began to record everything is missing: its stream is one gap.
//!
//! A producer that stops leaves its last sub-buffer open, maybe in the middle of closing it. Its packet may not count what
//! was lost before it: that is counted after it, by the manifest or by a packet without records.
//!
//! A packet is written when it is full. Behind the last one of a stream that goes on, or whose recorder was killed, is a gap
//! which no count tells of: see [`super::Stream::goes_on`].

use crate::manifest::StreamDescription;
use shared_ring::consumer::Lost;
use shared_ring::layout::{PACKET_HEADER_SIZE, PACKET_IN_GAP, PacketHeader};

/// Totals of what a stream lost, up to the moment at which a packet was closed.
#[derive(Clone, Copy, Debug, Default)]
struct LossCounts {
    full: u64,
    wrapped: u64,
    too_large: u64,
    rejected_bytes: u64,
    overwritten: u64,
}

impl LossCounts {
    const NONE: Self = Self { full: 0, wrapped: 0, too_large: 0, rejected_bytes: 0, overwritten: 0 };

    const fn of_manifest(described: &StreamDescription) -> Self {
        Self {
            full: described.lost.full,
            wrapped: described.lost.wrapped,
            too_large: described.lost.too_large,
            rejected_bytes: described.rejected_bytes,
            // The manifest counts here what is missing at the beginning.
            overwritten: 0,
        }
    }

    const fn of_packet(header: &PacketHeader) -> Self {
        Self {
            full: header.lost_full,
            wrapped: header.lost_wrapped,
            too_large: header.lost_too_large,
            rejected_bytes: header.rejected_bytes,
            overwritten: header.overwritten,
        }
    }

    /// Whether any count of what may lie on either side of a packet is larger than in `before`.
    const fn grew_since(&self, before: &Self) -> bool {
        self.full > before.full
            || self.wrapped > before.wrapped
            || self.too_large > before.too_large
            || self.rejected_bytes > before.rejected_bytes
    }
}

/// Follows the headers of a stream's packets in the order of the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacketGaps {
    /// What the last packet counts.
    counts: LossCounts,
    /// Whether records may be missing behind the last packet.
    is_behind: bool,
    /// Whether records may be missing between any two records of the last packet.
    is_inside: bool,
}

impl PacketGaps {
    /// Before the first packet of a stream.
    pub(super) const fn new() -> Self {
        Self { counts: LossCounts::NONE, is_behind: false, is_inside: false }
    }

    /// Behind packets that are not there, which counted `lost` records and `rejected_bytes`.
    pub(super) const fn counting(lost: Lost, rejected_bytes: u64) -> Self {
        let Lost { full, wrapped, too_large } = lost;
        let counts = LossCounts { full, wrapped, too_large, rejected_bytes, overwritten: 0 };
        Self { counts, is_behind: false, is_inside: false }
    }

    /// Behind the packet that `header` begins, when nothing but its header is known.
    pub(super) const fn after(header: &PacketHeader) -> Self {
        Self { counts: LossCounts::of_packet(header), is_behind: false, is_inside: false }
    }

    /// Goes on to the packet that `header` begins. Returns whether records may be missing between the records before it
    /// and its first one; `packets_are_missing` says whether whole packets are.
    pub(super) const fn enter(&mut self, header: &PacketHeader, packets_are_missing: bool) -> bool {
        let counts = LossCounts::of_packet(header);
        let is_marked = header.flags & PACKET_IN_GAP != 0;
        let is_around = is_marked || counts.grew_since(&self.counts);
        let is_overwritten = counts.overwritten > self.counts.overwritten;
        let is_before = packets_are_missing || self.is_behind || is_around || is_overwritten;
        let is_unplaced = counts.too_large > self.counts.too_large || counts.wrapped > self.counts.wrapped;
        let is_inside = is_marked || is_unplaced;
        *self = Self { counts, is_behind: is_around, is_inside };
        is_before
    }

    /// Notes that a part of the last packet could not be read.
    pub(super) const fn note_unread(&mut self) {
        self.is_behind = true;
    }

    /// Whether records may be missing between any two records of the last packet.
    pub(super) const fn is_inside(&self) -> bool {
        self.is_inside
    }

    /// Whether records may be missing behind the last packet of the stream that `described` describes: the manifest's
    /// totals include what was lost after it.
    pub(super) const fn is_behind_last(&self, described: &StreamDescription) -> bool {
        self.is_behind || described.corrupt || described.never_joined || self.is_more_in_manifest(described)
    }

    /// Whether the manifest counts more loss than the last packet.
    pub(super) const fn is_more_in_manifest(&self, described: &StreamDescription) -> bool {
        LossCounts::of_manifest(described).grew_since(&self.counts)
    }

    /// Whether the packet that `header` begins holds no records and counts more loss than the last packet, without a mark
    /// that says where.
    pub(super) const fn is_more_in_empty(&self, header: &PacketHeader) -> bool {
        let is_empty = header.content_size <= PACKET_HEADER_SIZE as u64 * 8 && header.flags & PACKET_IN_GAP == 0;
        is_empty && LossCounts::of_packet(header).grew_since(&self.counts)
    }
}
