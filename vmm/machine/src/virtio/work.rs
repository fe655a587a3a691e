//! How much a device does in one call, so that one busy device cannot keep the event loop, and with it the end of the
//! run, from everything else.

use std::time::{Duration, Instant};

/// Packets moved in one call.
const PACKETS_PER_CALL: usize = 256;
/// Bytes moved in one call, but for the rest of the last packet.
pub const BYTES_PER_CALL: usize = 4 << 20;
/// Time after which a call begins no other packet. The first one is always moved, however late the thread gets to it.
const TIME_PER_CALL: Duration = Duration::from_millis(20);

/// The work of one call.
pub struct Work {
    begun: Instant,
    packets: usize,
    bytes: usize,
}

impl Work {
    /// A call that begins now.
    pub fn begin() -> Self {
        Self { begun: Instant::now(), packets: 0, bytes: 0 }
    }

    /// Adds a packet of so many bytes.
    pub fn add(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes;
    }

    /// Packets so far.
    pub fn packets(&self) -> usize {
        self.packets
    }

    /// Whether the call is to end.
    pub fn is_spent(&self) -> bool {
        let is_late = self.packets > 0 && self.begun.elapsed() >= TIME_PER_CALL;
        self.packets >= PACKETS_PER_CALL || self.bytes >= BYTES_PER_CALL || is_late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_that_is_late_moves_one_packet() {
        let begun = Instant::now().checked_sub(TIME_PER_CALL).unwrap();
        let mut work = Work { begun, packets: 0, bytes: 0 };

        let before = work.is_spent();
        work.add(60);

        assert_eq!((before, work.is_spent()), (false, true));
    }
}
