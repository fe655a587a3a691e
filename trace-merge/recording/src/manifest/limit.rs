//! What `session.json` says about the limit of a layer's records.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The limit of a layer's records, and how often the layer met it. What a layer made meanwhile and had no room for is
/// among what its streams lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordLimit {
    /// Records each second.
    pub per_second: u64,
    /// Records at once after a pause.
    pub burst: u64,
    /// How often the layer was held back.
    pub times: u64,
    /// How long it was held back in all, ns.
    pub held_ns: u64,
}

impl fmt::Display for RecordLimit {
    /// As on the command line: `RATE:BURST`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.per_second, self.burst)
    }
}
