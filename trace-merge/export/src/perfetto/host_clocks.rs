//! How the times of an export relate to the host's clocks.
//!
//! Where the recording has snapshots of the host's clocks, times are the trace clock with the offset that makes it
//! `CLOCK_MONOTONIC_RAW`, which is not steered either, and each snapshot is written as it was read. Otherwise the trace clock
//! stands for `CLOCK_BOOTTIME`, and nothing but its relation to UTC is known.

use super::proto::{
    CLOCK_BOOTTIME, CLOCK_MONOTONIC, CLOCK_MONOTONIC_RAW, CLOCK_REALTIME, Clock as ShownClock, ClockSnapshot as Message,
};
use strata_recording::clock::Clock;
use strata_recording::clock_snapshots::{ClockReading, ClockSnapshot, within};
use strata_recording::reader::Trace;
use strata_recording::window::Window;

/// The first host's clocks during a window.
#[derive(Debug)]
pub(super) struct HostClocks {
    clock: Clock,
    begin: u64,
    snapshots: Vec<ClockSnapshot>,
    /// `CLOCK_MONOTONIC_RAW` minus the trace clock, ns.
    offset: Option<i64>,
}

impl HostClocks {
    pub(super) fn of(trace: &Trace, window: Window) -> Self {
        let of_first: Vec<_> = trace.clock_snapshots().into_iter().filter(|snapshot| snapshot.host.is_none()).collect();
        let clock = trace.clock().clone();
        let snapshots = within(&of_first, window.begin, window.end).to_vec();
        let offset = snapshots.first().and_then(|first| offset(&first.monotonic_raw, &clock));
        // Of damaged snapshots, times may be before all time.
        let is_sound = |offset: &i64| clock.ticks_to_ns(window.begin).checked_add_signed(*offset).is_some();
        Self { begin: window.begin, offset: offset.filter(is_sound), snapshots, clock }
    }

    /// What is added to the trace clock, ns, to have `CLOCK_MONOTONIC_RAW`; `None` where there are no snapshots.
    pub(super) const fn offset(&self) -> Option<i64> {
        self.offset
    }

    /// How many snapshots there are, and how wrong they can be, ns.
    pub(super) fn known(&self) -> (u64, u64) {
        let uncertainty = self.snapshots.iter().map(ClockSnapshot::uncertainty_ns).max().unwrap_or(0);
        (self.snapshots.len() as u64, uncertainty)
    }

    /// What is known of the first host's clocks.
    pub(super) fn of_host(&self) -> Vec<Message> {
        let Some(offset) = self.offset else { return vec![self.of_trace_clock()] };
        let message = |snapshot: &ClockSnapshot| {
            let ticks = snapshot.ticks();
            let clocks = vec![
                shown(CLOCK_MONOTONIC_RAW, self.clock.ticks_to_ns(ticks).saturating_add_signed(offset)),
                shown(CLOCK_MONOTONIC, snapshot.monotonic.at(ticks, &self.clock)),
                shown(CLOCK_BOOTTIME, snapshot.boottime.at(ticks, &self.clock)),
                shown(CLOCK_REALTIME, snapshot.realtime.at(ticks, &self.clock)),
            ];
            Message { clocks, primary_trace_clock: Some(CLOCK_MONOTONIC_RAW) }
        };
        self.snapshots.iter().map(message).collect()
    }

    /// What is known of the clocks of the other machines: that the times are the same.
    pub(super) fn of_others(&self) -> Message {
        let Some(offset) = self.offset else { return self.of_trace_clock() };
        let begin = self.clock.ticks_to_ns(self.begin).saturating_add_signed(offset);
        Message { clocks: vec![shown(CLOCK_MONOTONIC_RAW, begin)], primary_trace_clock: Some(CLOCK_MONOTONIC_RAW) }
    }

    fn of_trace_clock(&self) -> Message {
        let utc = u64::try_from(self.clock.utc_ns(self.begin)).unwrap_or(0);
        let clocks = vec![shown(CLOCK_BOOTTIME, self.clock.ticks_to_ns(self.begin)), shown(CLOCK_REALTIME, utc)];
        Message { clocks, primary_trace_clock: None }
    }
}

fn offset(reading: &ClockReading, clock: &Clock) -> Option<i64> {
    i64::try_from(i128::from(reading.ns) - i128::from(clock.ticks_to_ns(reading.ticks))).ok()
}

const fn shown(clock_id: u32, ns: u64) -> ShownClock {
    ShownClock { clock_id: Some(clock_id), timestamp: Some(ns) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_recording::test_trace::TestTrace;

    const SECOND: u64 = 1_000_000_000;

    /// Clocks as a host has them: the trace clock is 3 s behind `CLOCK_MONOTONIC_RAW`; the others are 20 ppm faster, and
    /// an hour of sleep and the year 2023 ahead.
    fn monotonic_raw(ticks: u64) -> u64 {
        ticks / 2 + 3 * SECOND
    }

    fn monotonic(ticks: u64) -> u64 {
        monotonic_raw(ticks) + ticks / 2 / 50_000 + 40
    }

    fn realtime(ticks: u64) -> u64 {
        monotonic(ticks) + 1_700_000_000 * SECOND
    }

    /// What a recorder reads at `seconds`: each clock a while after the one before, 15 ns wrong.
    fn snapshot(seconds: u64) -> ClockSnapshot {
        let at = |read: u64, show: fn(u64) -> u64| {
            let ticks = 2 * SECOND * seconds + 700 * read;
            ClockReading { ticks, ns: show(ticks) + 15, uncertainty_ns: 20 }
        };
        ClockSnapshot {
            host: None,
            monotonic_raw: at(0, monotonic_raw),
            monotonic: at(1, monotonic),
            boottime: at(2, |ticks| monotonic(ticks) + 3600 * SECOND),
            realtime: at(3, realtime),
        }
    }

    fn recording(snapshots: &[ClockSnapshot]) -> (tempfile::TempDir, Trace) {
        let trace = TestTrace::new().clocks(snapshots);
        let ends = [2 * SECOND + 5, 9 * SECOND].map(|time| (time, "sched:tick"));
        ends.into_iter().fold(trace, |trace, (time, name)| trace.host(0, time, name, &[])).open()
    }

    fn clocks(trace: &Trace) -> HostClocks {
        HostClocks::of(trace, trace.window(None, None).unwrap())
    }

    /// What `shown` is in the clock `to` by the snapshot before it, as Perfetto computes it.
    fn converted(messages: &[Message], shown: u64, to: u32) -> u64 {
        let of = |message: &Message, id| {
            message.clocks.iter().find(|clock| clock.clock_id == Some(id)).and_then(|clock| clock.timestamp).unwrap()
        };
        let before = messages.iter().rev().find(|message| of(message, CLOCK_MONOTONIC_RAW) <= shown).unwrap();
        of(before, to) + (shown - of(before, CLOCK_MONOTONIC_RAW))
    }

    #[test]
    fn time_of_a_record_is_the_hosts_to_within_what_the_snapshots_say() {
        let (_dir, trace) = recording(&[1, 2, 3, 4, 5].map(snapshot));

        let host_clocks = clocks(&trace);

        let messages = host_clocks.of_host();
        let offset = host_clocks.offset().unwrap();
        for ticks in [2 * SECOND + 5, 5 * SECOND, 7 * SECOND + 13, 9 * SECOND] {
            let shown = (ticks / 2).saturating_add_signed(offset);
            // The widths of two readings, and what 20 ppm are since the snapshot before.
            let drift = 20_000;
            for (id, truth) in [(CLOCK_MONOTONIC, monotonic(ticks)), (CLOCK_REALTIME, realtime(ticks))] {
                let error = converted(&messages, shown, id).abs_diff(truth);
                assert!(error <= 20 + 20 + drift, "{id} at {ticks}: {error}");
            }
            assert!(shown.abs_diff(monotonic_raw(ticks)) <= 20, "{shown}");
            // Between two snapshots it is the widths alone.
            let (before, after) = (snapshot(ticks / 2 / SECOND), snapshot(ticks / 2 / SECOND + 1));
            let [(t0, n0), (t1, n1)] = [before, after].map(|of| (of.realtime.ticks, of.realtime.ns));
            let part = i128::from(n1 - n0) * (i128::from(ticks) - i128::from(t0)) / i128::from(t1 - t0);
            assert!((i128::from(n0) + part).abs_diff(i128::from(realtime(ticks))) <= 20 + 20, "{ticks}");
        }
        assert_eq!((messages.len(), host_clocks.known()), (5, (5, 20)));
    }

    #[test]
    fn recording_without_snapshots_has_its_trace_clock_and_utc() {
        let (_dir, trace) = recording(&[]);

        let host_clocks = clocks(&trace);

        let begin = trace.clock().ticks_to_ns(trace.start().unwrap());
        let utc = u64::try_from(trace.clock().utc_ns(trace.start().unwrap())).unwrap();
        let clocks = vec![shown(CLOCK_BOOTTIME, begin), shown(CLOCK_REALTIME, utc)];
        let message = Message { clocks, primary_trace_clock: None };
        assert_eq!((host_clocks.of_host(), host_clocks.of_others()), (vec![message.clone()], message));
        assert_eq!((host_clocks.offset(), host_clocks.known()), (None, (0, 0)));
    }

    #[test]
    fn other_hosts_clocks_and_impossible_ones_are_not_written() {
        let of_other = snapshot(1).on_clock(Some("other".into()), |ticks| ticks, 5);
        let mut impossible = snapshot(1);
        impossible.monotonic_raw = ClockReading { ticks: 10 * SECOND, ns: 0, uncertainty_ns: 0 };

        let offsets = [of_other, impossible].map(|snapshot| clocks(&recording(&[snapshot]).1).offset());

        assert_eq!(offsets, [None; 2]);
    }
}
