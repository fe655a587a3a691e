//! Between which packets of a stream records may be missing, as their headers tell: each carries what was lost so far.

use shared_ring::layout::PacketHeader;

/// Follows the headers of a stream's packets in the order of the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketGaps {
    loss_lies_behind: bool,
    is_first: bool,
    /// Records lost, by reason, up to the last packet.
    lost: [u64; 3],
    rejected_bytes: u64,
    overwritten: u64,
    follows: bool,
}

impl PacketGaps {
    /// Before the first packet of a stream; see [`Stream`](super::Stream) for `loss_lies_behind`.
    pub(super) const fn new(loss_lies_behind: bool) -> Self {
        Self { loss_lies_behind, is_first: true, lost: [0; 3], rejected_bytes: 0, overwritten: 0, follows: false }
    }

    /// Whether records may be missing between the last packet and the one that `header` begins, as they are when whole
    /// packets are. Rejected and overwritten bytes may have lain on either side of the packet that counts them. Before
    /// the first packet nothing is missing.
    pub(crate) fn is_before(&mut self, header: &PacketHeader, packets_are_missing: bool) -> bool {
        let lost_now = [header.lost_full, header.lost_wrapped, header.lost_too_large];
        let lost = lost_now.iter().zip(self.lost).any(|(&now, before)| now > before);
        let around = header.rejected_bytes > self.rejected_bytes
            || header.overwritten > self.overwritten
            || (lost && !self.loss_lies_behind);
        let is_gap = !self.is_first && (packets_are_missing || self.follows || around);
        *self = Self {
            is_first: false,
            lost: lost_now,
            rejected_bytes: header.rejected_bytes,
            overwritten: header.overwritten,
            follows: lost || around,
            ..*self
        };
        is_gap
    }

    /// Notes that a part of the last packet could not be read.
    pub(super) const fn note_unread(&mut self) {
        self.follows = true;
    }

    /// Whether records may be missing behind the last packet.
    pub(crate) const fn follows(&self) -> bool {
        self.follows
    }
}
