//! What of a stream could not be read.

use crate::text::counted::counted;
use std::fmt;

/// What of a stream could not be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Damage {
    /// Packets whose header is not that of a packet of this stream.
    pub packets: u64,
    /// Packets that are missing between others, by their sequence numbers.
    pub missing_packets: u64,
    /// Bytes inside packets that are not records.
    pub bytes: u64,
    /// Records of unknown type, or whose payload does not fit their type.
    pub records: u64,
    /// Bytes at the end of the file that are not a whole packet.
    pub truncated_bytes: u64,
    /// Records that `session.json` says were written and that are not there, for whichever of these reasons or because
    /// whole packets were cut off.
    pub missing_records: u64,
}

impl fmt::Display for Damage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            (self.packets, "damaged packet", "damaged packets"),
            (self.missing_packets, "missing packet", "missing packets"),
            (self.bytes, "unreadable byte inside a packet", "unreadable bytes inside packets"),
            (self.records, "record that does not fit its event type", "records that do not fit their event type"),
            (self.truncated_bytes, "byte of a truncated packet", "bytes of a truncated packet"),
            (self.missing_records, "record that was written is not there", "records that were written are not there"),
        ];
        write_counts(formatter, &parts).map(|_| ())
    }
}

impl Damage {
    /// All of it could be read.
    pub const NONE: Self =
        Self { packets: 0, missing_packets: 0, bytes: 0, records: 0, truncated_bytes: 0, missing_records: 0 };

    /// Whether anything was damaged.
    #[must_use]
    pub fn any(&self) -> bool {
        *self != Self::default()
    }

    /// Both.
    #[must_use]
    pub const fn plus(&self, other: &Self) -> Self {
        Self {
            packets: self.packets.saturating_add(other.packets),
            // Sequence numbers come out of the file: any number can be missing.
            missing_packets: self.missing_packets.saturating_add(other.missing_packets),
            bytes: self.bytes.saturating_add(other.bytes),
            records: self.records.saturating_add(other.records),
            truncated_bytes: self.truncated_bytes.saturating_add(other.truncated_bytes),
            missing_records: self.missing_records.saturating_add(other.missing_records),
        }
    }
}

/// Writes those of `counts` that are not zero, each with what it counts, one and several of them; returns what stands
/// between them and the next.
///
/// # Errors
/// When `formatter` fails.
pub fn write_counts(
    formatter: &mut fmt::Formatter<'_>,
    counts: &[(u64, &str, &str)],
) -> Result<&'static str, fmt::Error> {
    let mut separator = "";
    for (count, one, many) in counts.iter().filter(|(count, ..)| *count > 0) {
        write!(formatter, "{separator}{}", counted(*count, one, many))?;
        separator = ", ";
    }
    Ok(separator)
}
