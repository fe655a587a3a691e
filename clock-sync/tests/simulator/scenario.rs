//! What happens to counters: the scenarios. True time counts nanoseconds.

use clock_sync::counter::{CounterModel, LateNotice, Rate};

/// One kind of world.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What it is about.
    pub name: &'static str,
    /// Number of vCPUs.
    pub vcpus: usize,
    /// What the updater believes; all true.
    pub model: CounterModel,
    /// The counter's speed at first, Hz.
    pub hz: u64,
    /// The other speed that it may change to, Hz; 0 where it never does.
    pub other_hz: u64,
    /// Whether changes of speed are answered without any other clock to look at.
    pub counter_alone: bool,
    /// Granularity of the clock that it is compared with, ns; 1 for the trace clock itself.
    pub granularity: u64,
    /// The vCPU's counter stands still while it sleeps.
    pub sleeps: bool,
    /// The counter stands still while the vCPU is out of the guest and catches up when it goes in, as KVM has it where
    /// the host's TSC is not usable; in between it is this much off at most, parts in a billion. 0 where it just runs.
    pub catches_up_ppb: u64,
    /// The counter is moved, paused, restored and taken to other hosts.
    pub moves: bool,
    /// Periodic updates measure (with the vCPU out of the guest) rather than only continue: one in this many.
    pub measure_one_in: u64,
    /// How long it goes on, ns.
    pub duration: u64,
}

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1000 * MILLISECOND;

/// `mult / 2^32` nanoseconds per cycle.
const fn rate(mult: u64) -> Rate {
    match Rate::new(mult, 32) {
        Ok(rate) => rate,
        Err(_) => panic!("not a rate"),
    }
}

/// Half a nanosecond and one nanosecond per cycle.
const GHZ_2: Rate = rate(1 << 31);
const GHZ_1: Rate = rate(1 << 32);
/// 3 579 545 Hz (the ACPI power-management timer): 279.365 ns per tick.
const ACPI_PM: Rate = rate(1_199_864_031_881);
/// 14 318 180 Hz (a high-precision event timer): 69.841 ns per tick.
const HPET: Rate = rate(299_966_009_549);

const fn counter(hw_bits: u32, rate: Rate, drift_ppb: u32, renew_after: u64) -> CounterModel {
    CounterModel { hw_bits, rate, drift_ppb, slew_ppb: 500_000, late_notice: None, reading_lag: 1, renew_after }
}

const BASE: Scenario = Scenario {
    name: "",
    vcpus: 2,
    model: CounterModel::TSC,
    hz: SECOND,
    other_hz: 0,
    counter_alone: false,
    granularity: 1,
    sleeps: false,
    catches_up_ppb: 0,
    moves: false,
    measure_one_in: 4,
    duration: SECOND,
};

const SPEEDS: LateNotice = LateNotice { cycles: 5_000, fastest: GHZ_2, slowest: GHZ_1 };

impl Scenario {
    /// A counter that is renewed so often that readers are overtaken by many updates.
    pub const fn renewed_often() -> Self {
        Self { name: "renewed often", model: counter(32, GHZ_1, 100_000, 100_000), duration: 40 * MILLISECOND, ..BASE }
    }
}

/// All of them.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "64-bit TSC with an offset",
        model: CounterModel { renew_after: 50 * MILLISECOND, ..CounterModel::TSC },
        ..BASE
    },
    Scenario { name: "renewed 10 000 times a second, readers overtaken", ..Scenario::renewed_often() },
    Scenario {
        name: "24 bits at 3.58 MHz (ACPI PM timer), 100 ppm",
        model: counter(24, ACPI_PM, 100_000, 1 << 22),
        hz: 3_579_545,
        duration: 60 * SECOND,
        ..BASE
    },
    Scenario {
        name: "31 bits at 1 GHz (OMAP3), 50 ppm",
        model: counter(31, GHZ_1, 50_000, 100 * MILLISECOND),
        duration: 4 * SECOND,
        ..BASE
    },
    Scenario {
        name: "32 bits at 14.3 MHz (HPET), 100 ppm, 4 vCPUs",
        vcpus: 4,
        model: counter(32, HPET, 100_000, 14_318_180),
        hz: 14_318_180,
        duration: 20 * SECOND,
        ..BASE
    },
    Scenario {
        name: "48 bits at 1 GHz, 20 ppm",
        model: counter(48, GHZ_1, 20_000, 100 * MILLISECOND),
        duration: 4 * SECOND,
        ..BASE
    },
    Scenario {
        name: "56 bits at 2 GHz, 20 ppm",
        model: counter(56, GHZ_2, 20_000, 200 * MILLISECOND),
        hz: 2 * SECOND,
        duration: 4 * SECOND,
        ..BASE
    },
    Scenario {
        name: "source steps back up to 3 ticks, 32 bits",
        model: CounterModel { reading_lag: 4, ..counter(32, GHZ_1, 20_000, 20 * MILLISECOND) },
        ..BASE
    },
    Scenario {
        name: "1 ↔ 2 GHz noticed up to 5 000 cycles late, measured then",
        model: CounterModel { late_notice: Some(SPEEDS), ..counter(64, GHZ_1, 20_000, 20 * MILLISECOND) },
        other_hz: 2 * SECOND,
        ..BASE
    },
    Scenario {
        name: "1 ↔ 2 GHz noticed up to 5 000 cycles late, counter alone",
        model: CounterModel { late_notice: Some(SPEEDS), ..counter(64, GHZ_1, 20_000, 20 * MILLISECOND) },
        other_hz: 2 * SECOND,
        counter_alone: true,
        measure_one_in: 12,
        ..BASE
    },
    Scenario {
        name: "counter stops in sleep, 30 µs resync clock, 31 bits",
        model: counter(31, GHZ_1, 50_000, 50 * MILLISECOND),
        granularity: 30_518,
        sleeps: true,
        duration: 2 * SECOND,
        ..BASE
    },
    Scenario {
        name: "stops out of the guest, catches up; compared in the guest to 30 µs",
        // Late by what it can lose in 100 ms.
        model: CounterModel { reading_lag: 40_000, ..counter(64, GHZ_2, 10_000, 200 * MILLISECOND) },
        hz: 2 * SECOND,
        granularity: 60_000,
        catches_up_ppb: 200_000,
        measure_one_in: 1,
        duration: 20 * SECOND,
        ..BASE
    },
    Scenario {
        name: "moved, paused, restored, migrated, host suspended",
        model: counter(64, GHZ_2, 20_000, 20 * MILLISECOND),
        hz: 2 * SECOND,
        granularity: 200,
        moves: true,
        ..BASE
    },
    Scenario {
        name: "everything at once: 31 bits, speeds, sleep, moves, 30 µs clock",
        vcpus: 4,
        model: CounterModel { late_notice: Some(SPEEDS), ..counter(31, GHZ_1, 50_000, 50 * MILLISECOND) },
        other_hz: 2 * SECOND,
        granularity: 30_518,
        sleeps: true,
        moves: true,
        duration: 2 * SECOND,
        ..BASE
    },
];
