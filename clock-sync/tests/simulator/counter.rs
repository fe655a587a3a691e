//! Chance, true time, and counters that follow it more or less.

/// Parts of a tick in which true time is kept.
pub const UNITS_PER_TICK: u64 = 1024;
/// Fraction bits of a counter's phase.
const FRACTION: u32 = 40;

/// SplitMix64: every draw of a schedule comes from its seed.
#[derive(Clone, Debug)]
pub struct Chance(pub u64);

impl Chance {
    /// Any number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number up to `most`.
    pub fn up_to(&mut self, most: u64) -> u64 {
        self.draw() % (most + 1)
    }

    /// Happens once in `many` times.
    pub fn once_in(&mut self, many: u64) -> bool {
        self.draw() % many == 0
    }
}

/// A hardware counter.
#[derive(Clone, Debug)]
pub struct Counter {
    bits: u32,
    /// Counter ticks, times 2^[`FRACTION`].
    phase: u128,
    /// What the phase would be if the counter had always run at its nominal rate.
    ideal: u128,
    /// Counter ticks per unit of true time as they should be, times 2^[`FRACTION`].
    nominal: u64,
    /// What the rate is off, parts in a billion.
    drift_ppb: i64,
    /// Whether it counts.
    pub runs: bool,
}

impl Counter {
    /// A counter of `bits` bits that begins at `start` and counts `hz` where true time counts 10⁹.
    pub fn new(bits: u32, hz: u64, start: u64) -> Self {
        let phase = u128::from(start) << FRACTION;
        let mut counter = Self { bits, phase, ideal: phase, nominal: 0, drift_ppb: 0, runs: true };
        counter.set_speed(hz);
        counter
    }

    /// Changes its speed.
    pub fn set_speed(&mut self, hz: u64) {
        self.nominal =
            u64::try_from((u128::from(hz) << FRACTION) / (1_000_000_000 * u128::from(UNITS_PER_TICK))).unwrap();
    }

    /// Changes what its rate is off.
    pub fn set_drift(&mut self, ppb: i64) {
        self.drift_ppb = ppb;
    }

    /// Moves it.
    pub fn set(&mut self, value: u64) {
        self.phase = u128::from(value) << FRACTION;
    }

    /// Makes up for what it lags behind its nominal rate.
    pub fn catch_up(&mut self) {
        self.phase = self.phase.max(self.ideal);
    }

    /// Lets `units` of true time go by.
    pub fn advance(&mut self, units: u64) {
        let even = u128::from(units) * u128::from(self.nominal);
        self.ideal += even;
        if self.runs {
            let off = even * u128::from(self.drift_ppb.unsigned_abs()) / 1_000_000_000;
            self.phase += if self.drift_ppb < 0 { even - off } else { even + off };
        }
    }

    /// Ticks since its beginning, not wrapped.
    pub fn total(&self) -> u64 {
        u64::try_from((self.phase >> FRACTION) & u128::from(u64::MAX)).unwrap()
    }

    /// What software reads; a source that steps back reads up to `step_back` too little.
    pub fn read(&self, step_back: u64, chance: &mut Chance) -> u64 {
        self.total().wrapping_sub(chance.up_to(step_back)) & (u64::MAX >> (64 - self.bits))
    }
}
