//! What of a CPU's ring is left out of the layer because it cannot be understood.
//!
//! The guest may put as much of it as it likes between records. A packet ends at each place, so that a reader knows
//! where something is missing; behind many places the rest of the CPU's records lies in one gap.

use strata_recording::writer::{LayerWriter, WriteError};

/// Places of a CPU that are told apart.
const MAX_PLACES: u32 = 256;

/// What was rejected of a CPU's ring so far.
#[derive(Debug, Default)]
pub(super) struct Rejected {
    /// Places with something between two records.
    places: u32,
    /// Whether the last of them goes on.
    goes_on: bool,
    /// Bytes that the layer does not count yet.
    bytes: u64,
}

impl Rejected {
    /// Adds `bytes` that come next in the ring of `cpu`.
    ///
    /// # Errors
    /// A packet cannot be written.
    pub(super) fn add(&mut self, writer: &mut LayerWriter, cpu: u32, bytes: u64) -> Result<(), WriteError> {
        if !std::mem::replace(&mut self.goes_on, true) && self.places < MAX_PLACES {
            self.places += 1;
            if self.places == MAX_PLACES {
                writer.begin_gap(cpu)?;
            }
        }
        if self.places < MAX_PLACES {
            writer.add_rejected(cpu, bytes);
        } else {
            self.bytes = self.bytes.saturating_add(bytes);
        }
        Ok(())
    }

    /// A record comes next.
    pub(super) const fn end_place(&mut self) {
        self.goes_on = false;
    }

    /// Has the layer count everything, behind the last record of `cpu`.
    ///
    /// # Errors
    /// A packet cannot be written.
    pub(super) fn finish(self, writer: &mut LayerWriter, cpu: u32) -> Result<(), WriteError> {
        if self.places < MAX_PLACES {
            return Ok(());
        }
        writer.add_rejected(cpu, self.bytes);
        writer.end_gap(cpu, None)
    }
}
