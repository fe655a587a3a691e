//! Arrows from row to row: who woke whom, and the ways of disk requests and packets.

use crate::html::encoding::{put, put_signed};
use crate::html::rows::RowNumber;
use serde::Serialize;

/// What an arrow stands for. The page knows each by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(in crate::html) enum ArrowKind {
    /// From the moment of a wake-up, on the row of whoever woke, to the moment when the task runs.
    WakeUp,
    /// From the issue of a request to the disk.
    Issue,
    /// From the disk to the task that the request woke.
    Completion,
    /// From the task that sends a packet to the network.
    Send,
    /// From the network to the task that the packet woke.
    Receive,
}

/// One end of an arrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::html) struct End {
    pub(in crate::html) row: RowNumber,
    /// ns.
    pub(in crate::html) time: u64,
}

/// Arrows in the making.
#[derive(Debug, Default, Serialize)]
pub(in crate::html) struct Arrows {
    kept: u64,
    left_out: u64,
    /// When the first arrow begins that is not kept, ns.
    left_out_from: Option<u64>,
    #[serde(skip)]
    encoded: Vec<u8>,
    #[serde(skip)]
    last: u64,
    #[serde(skip)]
    most: u64,
}

impl Arrows {
    /// None yet; keeps up to `most`.
    pub(in crate::html) fn new(most: u64) -> Self {
        Self { most, ..Self::default() }
    }

    /// Adds an arrow.
    pub(in crate::html) fn add(&mut self, kind: ArrowKind, from: End, to: End) {
        if self.kept >= self.most {
            self.left_out += 1;
            self.left_out_from.get_or_insert(from.time);
            return;
        }
        self.kept += 1;
        put(&mut self.encoded, kind as u64);
        put_signed(&mut self.encoded, from.time.cast_signed().wrapping_sub(self.last.cast_signed()));
        put(&mut self.encoded, from.row.into());
        put(&mut self.encoded, to.time.saturating_sub(from.time));
        put(&mut self.encoded, to.row.into());
        self.last = from.time;
    }

    /// Of each arrow its kind, when it begins after the one before it, its row, its length, and the row where it ends.
    pub(in crate::html) fn encoded(&self) -> &[u8] {
        &self.encoded
    }
}
