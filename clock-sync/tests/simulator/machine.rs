//! vCPUs that read the clock and a monitor that keeps it, one step at a time.

use crate::counter::{Chance, Counter, UNITS_PER_TICK};
use crate::scenario::Scenario;
use clock_sync::counter::Rate;
use clock_sync::relation::Relation;
use clock_sync::updater::{Cause, Epoch, Sample, Updater};

/// What readers and writers of an entry agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Ours: a reading is kept if the entry's number has not changed.
    Numbered,
    /// The paper's: which slot is current is looked at once.
    TwoBareSlots,
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Readings of the clock.
    pub readings: u64,
    /// Readings that were repeated because the number had changed.
    pub retries: u64,
    /// Relations published.
    pub epochs: u64,
    /// Largest error of a reading, ticks, and the bound reported for it.
    pub worst_error: u64,
    /// Bound reported for the reading with the worst error.
    pub bound_of_worst: u64,
    /// Largest bound that an epoch reported.
    pub largest_bound: u64,
    /// Readings whose error exceeded their epoch's bound.
    pub outside_bound: u64,
    /// Readings before an earlier one of the same vCPU.
    pub ran_back: u64,
}

impl Verdict {
    /// The sums of both, and the worse of the two errors.
    pub fn plus(self, other: Self) -> Self {
        let worse = if other.worst_error > self.worst_error { other } else { self };
        Self {
            readings: self.readings + other.readings,
            retries: self.retries + other.retries,
            epochs: self.epochs + other.epochs,
            worst_error: worse.worst_error,
            bound_of_worst: worse.bound_of_worst,
            largest_bound: self.largest_bound.max(other.largest_bound),
            outside_bound: self.outside_bound + other.outside_bound,
            ran_back: self.ran_back + other.ran_back,
        }
    }
}

/// A clock entry, whose words are read and written one at a time.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    number: u64,
    slots: [[u64; 4]; 2],
}

const fn words(relation: &Relation) -> [u64; 4] {
    let widths = relation.shift as u64 | (relation.hw_bits as u64) << 32;
    [relation.hw_base, relation.trace_base, relation.mult, widths]
}

fn relation(words: [u64; 4]) -> Relation {
    let [hw_base, trace_base, mult, widths] = words;
    let half = |word: u64| u32::try_from(word & 0xffff_ffff).unwrap();
    Relation { hw_base, trace_base, mult, shift: half(widths) & 63, hw_bits: half(widths >> 32).clamp(1, 64) }
}

/// A reading in progress.
#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    step: usize,
    number: u64,
    words: [u64; 4],
    counter: u64,
    truth: u64,
}

/// What the monitor is doing for a vCPU.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// Nothing until then.
    Wait,
    /// The counter was read for a renewal.
    Renew { counter: u64 },
    /// The vCPU is out of the guest; `seen` is the youngest time that it can have read.
    Measure { cause: Cause, seen: Option<u64>, rate: Option<Rate> },
    /// Storing word `step` of a slot, then the number.
    Publish { epoch: Epoch, step: usize },
}

struct Vcpu {
    counter: Counter,
    /// Whether it is in the guest.
    running: bool,
    entry: Entry,
    reading: Reading,
    last_time: Option<u64>,
    /// True time of the reader's and the monitor's next steps, units.
    reader_at: u64,
    monitor_at: u64,
    updater: Updater,
    work: Work,
    epochs: Vec<Epoch>,
    fast: bool,
    /// True time when it left the guest.
    left: u64,
    /// True time and total count at the last change of speed that the monitor has not noticed.
    unnoticed: Option<u64>,
    next_change: u64,
}

struct World<'s> {
    scenario: &'s Scenario,
    protocol: Protocol,
    chance: Chance,
    /// True time, units.
    now: u64,
    vcpus: Vec<Vcpu>,
    verdict: Verdict,
}

/// Runs one schedule of `scenario`.
pub fn run(scenario: &Scenario, protocol: Protocol, seed: u64) -> Verdict {
    let mut chance = Chance(seed);
    let vcpus = (0..scenario.vcpus).map(|_| Vcpu::new(scenario, &mut chance)).collect();
    let start = chance.up_to(1 << 40);
    let mut world = World { scenario, protocol, chance, now: 0, vcpus, verdict: Verdict::default() };
    world.advance(start);
    for vcpu in 0..world.vcpus.len() {
        (world.vcpus[vcpu].reader_at, world.vcpus[vcpu].monitor_at) = (start, start);
        world.vcpus[vcpu].next_change = world.now + world.draw_change();
        world.stop(vcpu, Cause::Start);
    }
    let end = start + scenario.duration * UNITS_PER_TICK;
    while world.now < end {
        world.step();
    }
    world.verdict
}

impl Vcpu {
    fn new(scenario: &Scenario, chance: &mut Chance) -> Self {
        let mut counter = Counter::new(scenario.model.hw_bits, scenario.hz, chance.draw());
        let drift = i64::from(scenario.model.drift_ppb);
        // The model's drift also has to cover the rounding of its rate and of the simulated one.
        let drift = (drift - 20).max(0);
        counter.set_drift(i64::try_from(chance.up_to(2 * drift.unsigned_abs())).unwrap() - drift);
        Self {
            counter,
            running: false,
            entry: Entry::default(),
            reading: Reading::default(),
            last_time: None,
            reader_at: 0,
            monitor_at: 0,
            updater: Updater::new(scenario.model).unwrap(),
            work: Work::Wait,
            epochs: Vec::new(),
            fast: false,
            left: 0,
            unnoticed: None,
            next_change: u64::MAX,
        }
    }
}

impl World<'_> {
    fn truth(&self) -> u64 {
        self.now / UNITS_PER_TICK
    }

    fn advance(&mut self, until: u64) {
        let units = until.saturating_sub(self.now);
        self.vcpus.iter_mut().for_each(|vcpu| vcpu.counter.advance(units));
        self.now = self.now.max(until);
    }

    fn draw_change(&mut self) -> u64 {
        match self.scenario.other_hz {
            0 => u64::MAX / 2,
            _ => (self.period() / 2 + self.chance.up_to(self.period() * 2)) * UNITS_PER_TICK,
        }
    }

    /// Nominal time between two updates, ticks.
    fn period(&self) -> u64 {
        let ticks = u128::from(self.scenario.model.due_after()) * 1_000_000_000 / u128::from(self.scenario.hz);
        u64::try_from(ticks).unwrap()
    }

    /// Whoever is next does one step.
    fn step(&mut self) {
        let (mut next, mut which, mut what) = (u64::MAX, 0, 0);
        for (index, vcpu) in self.vcpus.iter().enumerate() {
            let reader = if vcpu.running { vcpu.reader_at } else { u64::MAX };
            for (kind, at) in [vcpu.next_change, vcpu.monitor_at, reader].into_iter().enumerate() {
                if at < next {
                    (next, which, what) = (at, index, kind);
                }
            }
        }
        self.advance(next);
        match what {
            0 => self.change_speed(which),
            1 => self.monitor_step(which),
            _ => self.reader_step(which),
        }
    }

    /// The counter changes its speed; the monitor learns of it within the promised number of cycles.
    fn change_speed(&mut self, which: usize) {
        let pause = self.draw_change();
        let fraction = self.chance.up_to(1023);
        let cycles = self.scenario.model.late_notice.map_or(0, |late| late.cycles);
        let (hz, other_hz) = (self.scenario.hz, self.scenario.other_hz);
        let now = self.now;
        let vcpu = &mut self.vcpus[which];
        vcpu.next_change = now + pause;
        if !matches!(vcpu.work, Work::Wait) || !vcpu.running {
            // The monitor is at work on this vCPU: changes wait until it is done.
            vcpu.next_change = now + 1000 * UNITS_PER_TICK;
            return;
        }
        vcpu.fast = !vcpu.fast;
        let hz = if vcpu.fast { other_hz } else { hz };
        vcpu.counter.set_speed(hz);
        vcpu.unnoticed = Some(now);
        // A little less than promised: the drift counts too.
        let ticks = (cycles - cycles / 100) * 1_000_000_000 / hz;
        vcpu.monitor_at = now + ticks * fraction / 1023 * UNITS_PER_TICK;
    }

    fn reader_step(&mut self, which: usize) {
        let truth = self.truth();
        // Mostly a few nanoseconds; now and then long enough for several updates.
        let period = self.period();
        let pause = match self.chance.up_to(199) {
            0 => self.chance.up_to(period * 5),
            1..=9 => self.chance.up_to(period / 50),
            // Nothing between two steps: where a tick too little would show.
            10..=99 => 0,
            _ => 1 + self.chance.up_to(40),
        };
        let lag = self.step_back();
        let vcpu = &mut self.vcpus[which];
        vcpu.reader_at = self.now + pause * UNITS_PER_TICK;
        let reading = &mut vcpu.reading;
        let slot = &vcpu.entry.slots[usize::from(reading.number % 2 == 1)];
        match reading.step {
            0 => {
                reading.number = vcpu.entry.number;
                if reading.number == 0 {
                    return;
                }
            }
            word @ 1..=4 => reading.words[word - 1] = slot[word - 1],
            5 => (reading.counter, reading.truth) = (vcpu.counter.read(lag, &mut self.chance), truth),
            _ => {
                let done = *reading;
                *reading = Reading::default();
                if self.protocol == Protocol::Numbered && vcpu.entry.number != done.number {
                    self.verdict.retries += 1;
                } else {
                    self.judge(which, &done);
                    if self.scenario.catches_up_ppb > 0 && self.chance.once_in(8) {
                        // The host's kernel had put the vCPU away for a moment.
                        self.vcpus[which].counter.catch_up();
                    }
                    // The next event of the guest comes some time later.
                    let quiet = if self.chance.once_in(3) { 0 } else { self.chance.up_to(period / 100) };
                    self.vcpus[which].reader_at += quiet * UNITS_PER_TICK;
                    // Now and then an update begins right after a reading.
                    if self.chance.once_in(16) && matches!(self.vcpus[which].work, Work::Wait) {
                        let monitor_at = &mut self.vcpus[which].monitor_at;
                        *monitor_at = self.now.min(*monitor_at);
                    }
                }
                return;
            }
        }
        reading.step += 1;
    }

    fn judge(&mut self, which: usize, reading: &Reading) {
        let step_back = self.step_back();
        let vcpu = &mut self.vcpus[which];
        let time = relation(reading.words).trace_time(reading.counter);
        let epoch = &vcpu.epochs[usize::try_from(reading.number).unwrap() - 1];
        let error = time.abs_diff(reading.truth);
        let bound = epoch.bound_at(reading.counter);
        let verdict = &mut self.verdict;
        verdict.readings += 1;
        if error > verdict.worst_error {
            (verdict.worst_error, verdict.bound_of_worst) = (error, bound);
        }
        verdict.outside_bound += u64::from(error > bound || bound > epoch.bound());
        // A source that steps back shows as such, by its own step.
        verdict.ran_back += u64::from(vcpu.last_time.is_some_and(|last| time + step_back < last));
        vcpu.last_time = Some(vcpu.last_time.map_or(time, |last| last.max(time)));
    }

    /// Takes the vCPU out of the guest to measure.
    fn stop(&mut self, which: usize, cause: Cause) {
        let lag = self.step_back();
        let (slow, fast) = self.rates();
        let (catches_up, now) = (self.scenario.catches_up_ppb > 0, self.truth());
        let vcpu = &mut self.vcpus[which];
        vcpu.running = false;
        vcpu.left = now;
        vcpu.counter.runs = !catches_up;
        let counter = vcpu.counter.read(0, &mut self.chance);
        let seen = vcpu.updater.current().map(|epoch| epoch.relation.trace_time(counter) + lag);
        let rate = vcpu.unnoticed.take().map(|_| if vcpu.fast { fast } else { slow });
        if let Some(rate) = rate.filter(|_| self.scenario.counter_alone) {
            let epoch = vcpu.updater.change_rate(counter, rate).unwrap();
            vcpu.work = Work::Publish { epoch, step: 0 };
            return;
        }
        let cause = if rate.is_some() { Cause::FrequencyChange } else { cause };
        if cause == Cause::FrequencyChange {
            // Measured at once: the notice is late enough already.
            let epoch = self.measure(which, cause, seen, rate);
            self.vcpus[which].work = Work::Publish { epoch, step: 0 };
            return;
        }
        match cause {
            Cause::OffsetChange | Cause::Restore | Cause::Migration | Cause::HostResume => {
                vcpu.counter.set(self.chance.draw());
            }
            Cause::WakeUp => vcpu.counter.runs = false,
            _ => {}
        }
        vcpu.work = Work::Measure { cause, seen, rate };
    }

    /// How much too little a reading shows at most, ticks.
    fn step_back(&self) -> u64 {
        if self.scenario.catches_up_ppb > 0 { 0 } else { self.scenario.model.reading_lag.saturating_sub(1) }
    }

    fn rates(&self) -> (Rate, Rate) {
        let model = &self.scenario.model;
        (model.rate, model.late_notice.map_or(model.rate, |late| late.fastest))
    }

    /// Compares the counter with the clock there is.
    fn measure(&mut self, which: usize, cause: Cause, seen: Option<u64>, rate: Option<Rate>) -> Epoch {
        let granularity = self.scenario.granularity;
        let lag = self.step_back();
        let stands_still = self.scenario.catches_up_ppb > 0;
        let at = if stands_still { self.vcpus[which].left } else { self.truth() };
        let shown = at / granularity * granularity;
        let vcpu = &mut self.vcpus[which];
        let sample = Sample {
            counter: vcpu.counter.read(lag, &mut self.chance),
            ticks: shown + granularity / 2,
            uncertainty: granularity / 2 + u64::from(granularity > 1),
        };
        vcpu.updater.resynchronise(cause, seen, sample, rate)
    }

    fn monitor_step(&mut self, which: usize) {
        let period = self.period();
        // Its steps take a microsecond or so, and now and then far longer, also in the middle of an update.
        let pause = match self.chance.up_to(19) {
            0 => self.chance.up_to(period / 16),
            1..=12 => 0,
            _ => self.chance.up_to((period / 1000).min(2_000)),
        };
        self.vcpus[which].monitor_at = self.now + pause * UNITS_PER_TICK;
        match self.vcpus[which].work {
            Work::Wait => self.begin(which),
            Work::Renew { counter } => {
                let vcpu = &mut self.vcpus[which];
                match vcpu.updater.renew(Cause::Periodic, counter) {
                    Ok(epoch) => vcpu.work = Work::Publish { epoch, step: 0 },
                    Err(_) => self.stop(which, Cause::Periodic),
                }
            }
            Work::Measure { cause, seen, rate } => {
                self.vcpus[which].counter.runs = self.scenario.catches_up_ppb == 0;
                let epoch = self.measure(which, cause, seen, rate);
                self.vcpus[which].work = Work::Publish { epoch, step: 0 };
            }
            Work::Publish { epoch, step } => self.publish(which, epoch, step),
        }
    }

    /// An update is due.
    fn begin(&mut self, which: usize) {
        if self.vcpus[which].unnoticed.is_some() {
            return self.stop(which, Cause::FrequencyChange);
        }
        let catches_up = i64::try_from(self.scenario.catches_up_ppb).unwrap();
        let drift = if catches_up > 0 { catches_up } else { i64::from(self.scenario.model.drift_ppb) };
        let drift = (drift - 20).max(0);
        let wander = i64::try_from(self.chance.up_to(2 * drift.unsigned_abs())).unwrap() - drift;
        self.vcpus[which].counter.set_drift(wander);
        if self.scenario.moves && self.chance.once_in(4) {
            let causes = [Cause::OffsetChange, Cause::Resume, Cause::Restore, Cause::HostResume, Cause::Migration];
            let cause = causes[usize::try_from(self.chance.up_to(4)).unwrap()];
            return self.stop_for_long(which, cause);
        }
        if self.scenario.sleeps && self.chance.once_in(3) {
            return self.stop_for_long(which, Cause::WakeUp);
        }
        if self.chance.once_in(self.scenario.measure_one_in) {
            self.stop(which, Cause::Periodic);
            // Away for as long as the counter can have gained meanwhile.
            self.vcpus[which].monitor_at +=
                self.period() * self.scenario.catches_up_ppb / 1_000_000_000 * UNITS_PER_TICK;
            return;
        }
        let lag = self.step_back();
        let vcpu = &mut self.vcpus[which];
        vcpu.work = Work::Renew { counter: vcpu.counter.read(lag, &mut self.chance) };
    }

    fn stop_for_long(&mut self, which: usize, cause: Cause) {
        self.stop(which, cause);
        let away = self.chance.up_to(self.period() * 3);
        self.vcpus[which].monitor_at += away * UNITS_PER_TICK;
    }

    /// Stores one word, or the number that makes the slot current.
    fn publish(&mut self, which: usize, epoch: Epoch, step: usize) {
        let now = self.now;
        let period = self.period();
        // At the counter's highest speed, and with all that may be in the way, still within twice the due time.
        let wait = (period / 4 + self.chance.up_to(period / 4)) * UNITS_PER_TICK;
        let vcpu = &mut self.vcpus[which];
        let next = epoch.number;
        if step < 4 {
            vcpu.entry.slots[usize::from(next % 2 == 1)][step] = words(&epoch.relation)[step];
            vcpu.work = Work::Publish { epoch, step: step + 1 };
            return;
        }
        vcpu.entry.number = next;
        assert_eq!(vcpu.epochs.len() as u64 + 1, next, "epochs are numbered without gaps");
        vcpu.epochs.push(epoch);
        vcpu.work = Work::Wait;
        vcpu.monitor_at = now + wait;
        if !vcpu.running {
            vcpu.running = true;
            vcpu.counter.runs = true;
            if self.scenario.catches_up_ppb > 0 {
                vcpu.counter.catch_up();
            }
            // Half of the vCPUs go on at once.
            vcpu.reader_at = if self.chance.once_in(2) { now } else { vcpu.reader_at.max(now) };
        }
        self.verdict.epochs += 1;
        self.verdict.largest_bound = self.verdict.largest_bound.max(epoch.bound());
    }
}
