//! How a hardware counter maps to the trace clock.

/// Widths that a hardware counter may have, bits.
pub const COUNTER_WIDTHS: [u32; 6] = [24, 31, 32, 48, 56, 64];

/// A linear relation between a hardware counter and the trace clock, valid around `hw_base`:
/// `trace = trace_base + (counter - hw_base) * mult / 2^shift`.
///
/// The counter has `hw_bits` bits; its distance from `hw_base` is taken modulo 2^`hw_bits`, so the relation holds for
/// half a wrap before and after `hw_base` and has to be renewed at least twice per wrap. A counter that reads slightly
/// before `hw_base` (another CPU's view, a source that steps back) gives a time slightly before `trace_base` rather
/// than one a whole wrap ahead: that is the underflow detection.
///
/// These are the words of a clock entry's slot, so no value is refused: whatever a damaged entry holds gives some time.
///
/// ```
/// use clock_sync::relation::Relation;
///
/// // A 24-bit counter, 16 ticks before its wrap at trace time 1000.
/// let relation = Relation { hw_base: 0xff_fff0, trace_base: 1_000, hw_bits: 24, ..Relation::IDENTITY };
/// assert_eq!(relation.trace_time(0x00_0010), 1_032);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relation {
    /// Counter value at which the trace clock read `trace_base`.
    pub hw_base: u64,
    /// Trace clock at `hw_base`, ticks.
    pub trace_base: u64,
    /// Trace clock ticks per counter tick, times 2^`shift`.
    pub mult: u64,
    /// See `mult`; below 64.
    pub shift: u32,
    /// Width of the counter, one of [`COUNTER_WIDTHS`].
    pub hw_bits: u32,
}

impl Relation {
    /// The counter is the trace clock.
    pub const IDENTITY: Self = Self { hw_base: 0, trace_base: 0, mult: 1, shift: 0, hw_bits: 64 };

    /// A guest's TSC that the hypervisor offsets from the host's by `offset` ticks, unscaled: `guest = host + offset`.
    /// `near_host` is the host's TSC now, around which the relation is anchored.
    #[must_use]
    pub const fn from_tsc_offset(offset: i64, near_host: u64) -> Self {
        Self { hw_base: near_host.wrapping_add_signed(offset), trace_base: near_host, ..Self::IDENTITY }
    }

    /// The trace clock, ticks, when the counter reads `counter`. Any context.
    #[must_use]
    #[inline(always)]
    pub const fn trace_time(&self, counter: u64) -> u64 {
        // Shifting the difference to the top of the word makes the counter's own sign bit the word's.
        let unused = 64_u32.wrapping_sub(self.hw_bits);
        let distance = ((counter.wrapping_sub(self.hw_base) << (unused & 63)) as i64) >> (unused & 63);
        if self.mult == 1 && self.shift == 0 {
            return self.trace_base.wrapping_add_signed(distance);
        }
        let scaled = self.scale(distance.unsigned_abs());
        if distance < 0 { self.trace_base.wrapping_sub(scaled) } else { self.trace_base.wrapping_add(scaled) }
    }

    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "trace time is modulo 2^64")]
    const fn scale(&self, distance: u64) -> u64 {
        ((distance as u128 * self.mult as u128) >> (self.shift & 63)) as u64
    }
}

#[cfg(test)]
mod tests {
    //! Shows: The clock relation is exact across wraps of narrow counters (proptest, all widths).

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tsc_offset_is_undone() {
        let relation = Relation::from_tsc_offset(-1_000_000, 5_000_000);

        assert_eq!(relation.trace_time(4_000_000), 5_000_000);
        assert_eq!(relation.trace_time(4_000_123), 5_000_123);
        assert_eq!(relation.trace_time(3_999_000), 4_999_000);
    }

    #[test]
    fn narrow_counter_is_extended_across_its_wrap() {
        let relation = Relation { hw_base: 0xff_fff0, trace_base: 1 << 40, mult: 1, shift: 0, hw_bits: 24 };

        assert_eq!(relation.trace_time(0x00_0010), (1 << 40) + 0x20);
    }

    #[test]
    fn counter_that_stepped_back_gives_a_time_slightly_before() {
        let relation = Relation { hw_base: 0x10, trace_base: 1 << 40, mult: 3 << 8, shift: 8, hw_bits: 32 };

        assert_eq!(relation.trace_time(0xffff_fff0), (1 << 40) - 0x60);
    }

    proptest! {
        #[test]
        fn scaling_is_exact(elapsed in 0_u64..1 << 62, mult in 1_u64.., shift in 0_u32..64) {
            let relation = Relation { hw_base: 7, trace_base: 0, mult, shift, hw_bits: 64 };
            let exact = (u128::from(elapsed) * u128::from(mult)) >> shift;
            prop_assert_eq!(u128::from(relation.trace_time(7 + elapsed)), exact & u128::from(u64::MAX));
        }

        #[test]
        fn time_follows_the_counter(base in any::<u64>(), width in 0_usize..6, steps in proptest::collection::vec(0_u64..1 << 20, 1..20)) {
            let hw_bits = COUNTER_WIDTHS[width];
            let mask = u64::MAX >> (64 - hw_bits);
            let relation = Relation { hw_base: base & mask, trace_base: 1 << 50, mult: 1, shift: 0, hw_bits };
            let mut elapsed = 0;
            for step in steps {
                elapsed = (elapsed + step).min(mask >> 1);
                prop_assert_eq!(relation.trace_time((base + elapsed) & mask), (1 << 50) + elapsed);
            }
        }
    }
}
