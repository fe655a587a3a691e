//! What the host's clocks showed while it recorded, `session.clocks`: about once a second, the kernel's clocks and the
//! trace clock together.
//!
//! Each line is a [`ClockSnapshot`] as JSON. A recorder appends it at once, so that a recorder that is killed leaves what
//! it wrote; a line that is damaged is passed over. The file stays small: see [`ClockLog`].

use crate::clock::Clock;
use crate::files::access::{Readers, append_line};
use crate::files::{CLOCKS_FILE, Files};
use crate::writer::Rotation;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time between two snapshots at first.
const INTERVAL: Duration = Duration::from_secs(1);
/// Most snapshots that a recorder keeps.
const MOST: usize = 8192;
/// The same of a flight recorder, whose snapshots each get them all.
const MOST_LATEST: usize = 2048;
/// Most that are read of a recording, which may be merged from many.
const MOST_READ: usize = 1 << 20;

/// What a clock of the kernel showed at a time of the trace clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockReading {
    /// Trace clock, ticks.
    pub ticks: u64,
    /// The clock, ns.
    pub ns: u64,
    /// It showed that within this of `ticks`, ns.
    pub uncertainty_ns: u64,
}

/// What the kernel's clocks showed, read one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockSnapshot {
    /// In a recording merged from those of several hosts: the host, when that is not the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// `CLOCK_MONOTONIC_RAW`.
    pub monotonic_raw: ClockReading,
    /// `CLOCK_MONOTONIC`.
    pub monotonic: ClockReading,
    /// `CLOCK_BOOTTIME`.
    pub boottime: ClockReading,
    /// `CLOCK_REALTIME`: UTC.
    pub realtime: ClockReading,
}

impl ClockReading {
    /// What the clock showed at `ticks` of `clock`, if it ran as that did since the reading; saturates.
    #[must_use]
    pub fn at(&self, ticks: u64, clock: &Clock) -> u64 {
        if ticks >= self.ticks {
            self.ns.saturating_add(clock.ticks_to_ns(ticks - self.ticks))
        } else {
            self.ns.saturating_sub(clock.ticks_to_ns(self.ticks - ticks))
        }
    }
}

impl ClockSnapshot {
    /// Trace clock, ticks.
    #[must_use]
    pub const fn ticks(&self) -> u64 {
        self.monotonic_raw.ticks
    }

    /// The largest of its uncertainties, ns.
    #[must_use]
    pub fn uncertainty_ns(&self) -> u64 {
        self.readings().map(|reading| reading.uncertainty_ns).into_iter().fold(0, u64::max)
    }

    /// Its readings.
    #[must_use]
    pub const fn readings(&self) -> [&ClockReading; 4] {
        [&self.monotonic_raw, &self.monotonic, &self.boottime, &self.realtime]
    }

    /// By how much the UTC that `clock` tells of the moment is off at most, ns.
    #[must_use]
    pub fn utc_error_ns(&self, clock: &Clock) -> u64 {
        let off = clock.utc_ns(self.realtime.ticks).abs_diff(self.realtime.ns.into());
        u64::try_from(off).unwrap_or(u64::MAX).saturating_add(self.realtime.uncertainty_ns)
    }

    /// The same of `host`, on another clock to which `map` brings its ticks with an error of `bound_ns`.
    #[must_use]
    pub fn on_clock(&self, host: Option<String>, map: impl Fn(u64) -> u64, bound_ns: u64) -> Self {
        let mapped = |reading: &ClockReading| ClockReading {
            ticks: map(reading.ticks),
            uncertainty_ns: reading.uncertainty_ns.saturating_add(bound_ns),
            ..*reading
        };
        Self {
            host,
            monotonic_raw: mapped(&self.monotonic_raw),
            monotonic: mapped(&self.monotonic),
            boottime: mapped(&self.boottime),
            realtime: mapped(&self.realtime),
        }
    }
}

/// The snapshots among `snapshots`, which are in their order, that tell what the clocks showed from `begin` to `end`,
/// ticks: those then, and the ones just before and after.
#[must_use]
pub fn within(snapshots: &[ClockSnapshot], begin: u64, end: u64) -> &[ClockSnapshot] {
    let first = snapshots.partition_point(|snapshot| snapshot.ticks() <= begin).saturating_sub(1);
    let after = snapshots.partition_point(|snapshot| snapshot.ticks() < end).saturating_add(1);
    snapshots.get(first..after.clamp(first, snapshots.len())).unwrap_or_default()
}

/// The snapshots among the files of a recording, in the order of their ticks; none where it has none.
pub(crate) fn read(files: &Files) -> Vec<ClockSnapshot> {
    let text = files.read(CLOCKS_FILE).unwrap_or_default();
    let lines = text.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
    let mut snapshots: Vec<ClockSnapshot> = lines.take(MOST_READ).collect();
    snapshots.sort_by_key(ClockSnapshot::ticks);
    snapshots
}

/// The snapshots beside the `session.json` in the folder `dir`, in the order of their ticks.
#[must_use]
pub fn beside(dir: &Path) -> Vec<ClockSnapshot> {
    read(&Files::Folder(dir.into()))
}

/// Writes `snapshots` beside the `session.json` in the folder `dir`, in one step; nothing where there are none.
///
/// # Errors
/// When the file cannot be written.
pub fn write<'s>(snapshots: impl IntoIterator<Item = &'s ClockSnapshot>, dir: &Path) -> io::Result<()> {
    let text: Vec<u8> = snapshots.into_iter().flat_map(line).collect();
    if text.is_empty() {
        return Ok(());
    }
    Readers::of(dir)?.write_atomically(&dir.join(CLOCKS_FILE), &text)
}

fn line(snapshot: &ClockSnapshot) -> Vec<u8> {
    // Numbers can be written as JSON.
    let mut line = serde_json::to_vec(snapshot).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Bytes of a line, about.
const LINE: u64 = 400;
/// A recording that keeps within a size spends one part in so many of it on snapshots.
const SHARE: u64 = 16;
/// Fewest snapshots that are kept.
const FEWEST: u64 = 64;

/// Which snapshots go when there are too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Of a recording that is written: those before its begin, then every other one. From then on they are taken half as
    /// often.
    Written,
    /// Of a flight recorder, which has the latest records: the older half.
    Latest,
}

/// The snapshots of a recording in progress, [`MOST`] at most, in memory and in its files.
#[derive(Debug)]
pub struct ClockLog {
    keep: Keep,
    most: usize,
    kept: Vec<ClockSnapshot>,
    interval: Duration,
    last: Option<Instant>,
    /// Bytes of its file, as a recording that keeps within a size counts them.
    bytes: u64,
    rotation: Option<Rotation>,
}

impl ClockLog {
    /// One without a snapshot, of a recording that keeps within the size of `rotation`, if there is one.
    #[must_use]
    pub fn new(keep: Keep, rotation: Option<Rotation>) -> Self {
        let limit = rotation.as_ref().map_or(u64::MAX, Rotation::limit);
        let most = if keep == Keep::Latest { MOST_LATEST } else { MOST };
        let most = usize::try_from((limit / SHARE / LINE).max(FEWEST)).map_or(most, |within| within.min(most));
        Self { keep, most, kept: Vec::new(), interval: INTERVAL, last: None, bytes: 0, rotation }
    }

    /// Whether the next snapshot is due at `now`.
    #[must_use]
    pub fn is_due(&self, now: Instant) -> bool {
        self.last.is_none_or(|last| now.saturating_duration_since(last) >= self.interval)
    }

    /// The snapshots that are kept, in the order in which they were taken.
    #[must_use]
    pub fn kept(&self) -> &[ClockSnapshot] {
        &self.kept
    }

    /// Takes in `snapshot`, which was read at `now`, and brings the files in the folders `dirs` up to date. The recording
    /// begins at `begin`, ticks.
    ///
    /// # Errors
    /// When a file cannot be written; the snapshot is kept.
    pub fn add(&mut self, snapshot: ClockSnapshot, now: Instant, begin: u64, dirs: &[&Path]) -> io::Result<()> {
        self.last = Some(now);
        let line = line(&snapshot);
        self.kept.push(snapshot);
        let is_full = self.kept.len() >= self.most;
        if is_full {
            self.thin(begin);
        }
        let size = || self.kept.iter().map(|snapshot| self::line(snapshot).len() as u64).sum();
        let bytes = if is_full { size() } else { self.bytes + line.len() as u64 };
        if let (Some(rotation), Some(dir)) = (&self.rotation, dirs.first()) {
            rotation.reserve_clocks(&dir.join(CLOCKS_FILE), self.bytes, bytes).map_err(io::Error::other)?;
        }
        self.bytes = bytes;
        for dir in dirs {
            if is_full { write(&self.kept, dir)? } else { append_line(&dir.join(CLOCKS_FILE), &line)? }
        }
        Ok(())
    }

    fn thin(&mut self, begin: u64) {
        match self.keep {
            Keep::Written => {
                self.kept = within(&self.kept, begin, u64::MAX).to_vec();
                if self.kept.len() > self.most / 2 {
                    let mut index = 0;
                    self.kept.retain(|_| {
                        index += 1;
                        index % 2 == 1
                    });
                    self.interval *= 2;
                }
            }
            Keep::Latest => drop(self.kept.drain(..self.most / 2)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_trace::{clock, clock_snapshot};
    use crate::writer::MIN_ROTATED_SIZE;
    use std::fs;
    use tempfile::TempDir;

    fn snapshot(seconds: u64) -> ClockSnapshot {
        clock_snapshot(2_000_000_000 * seconds)
    }

    fn seconds(snapshots: &[ClockSnapshot]) -> Vec<u64> {
        snapshots.iter().map(|snapshot| snapshot.ticks() / 2_000_000_000).collect()
    }

    /// Adds one for each of these seconds.
    fn add(log: &mut ClockLog, begin: u64, dir: &Path, seconds: impl Iterator<Item = u64>) {
        let now = Instant::now();
        seconds.for_each(|second| log.add(snapshot(second), now, begin, &[dir]).unwrap());
    }

    #[test]
    fn snapshots_written_are_read_but_for_a_line_that_was_cut_short() {
        let dir = TempDir::new().unwrap();
        let mut log = ClockLog::new(Keep::Written, None);
        add(&mut log, 0, dir.path(), 1..4);
        let path = dir.path().join(CLOCKS_FILE);
        let text = fs::read(&path).unwrap();
        fs::write(&path, &text[..text.len() - 9]).unwrap();

        assert_eq!(seconds(&beside(dir.path())), [1, 2]);
    }

    #[test]
    fn next_snapshot_is_due_after_a_second() {
        let (dir, now) = (TempDir::new().unwrap(), Instant::now());
        let mut log = ClockLog::new(Keep::Written, None);
        let at_first = log.is_due(now);

        log.add(snapshot(1), now, 0, &[dir.path()]).unwrap();

        let is_due = [999, 1000].map(|ms| log.is_due(now + Duration::from_millis(ms)));
        assert_eq!((at_first, is_due), (true, [false, true]));
    }

    #[test]
    fn full_log_keeps_every_other_snapshot_and_takes_them_half_as_often() {
        let (dir, most) = (TempDir::new().unwrap(), MOST as u64);
        let mut log = ClockLog::new(Keep::Written, None);

        add(&mut log, 0, dir.path(), 0..most + 1);

        let kept = seconds(log.kept());
        assert_eq!((&kept[..2], kept.last(), kept.len()), (&[0, 2][..], Some(&most), MOST / 2 + 1));
        assert_eq!((log.interval, beside(dir.path())), (2 * INTERVAL, log.kept.clone()));
    }

    #[test]
    fn recording_within_a_size_drops_snapshots_before_its_begin_first() {
        let dir = TempDir::new().unwrap();
        let mut log = ClockLog::new(Keep::Written, Some(Rotation::new(MIN_ROTATED_SIZE)));
        let most = log.most as u64;

        add(&mut log, snapshot(most - 100).ticks(), dir.path(), 0..most);

        assert_eq!((seconds(log.kept())[0], log.kept.len(), log.interval), (most - 100, 100, INTERVAL));
        assert!(fs::metadata(dir.path().join(CLOCKS_FILE)).unwrap().len() == log.bytes && most < 8192);
    }

    #[test]
    fn flight_recorder_keeps_the_latest_snapshots() {
        let (dir, most) = (TempDir::new().unwrap(), MOST_LATEST as u64);
        let mut log = ClockLog::new(Keep::Latest, None);

        add(&mut log, 0, dir.path(), 0..most);

        assert_eq!((seconds(log.kept())[0], log.interval), (most / 2, INTERVAL));
    }

    #[test]
    fn part_has_its_snapshots_and_those_around_it() {
        let all: Vec<_> = (1..7).map(snapshot).collect();
        let part = |from: u64, to: u64| seconds(within(&all, from * 1_000_000_000, to * 1_000_000_000));

        // In halves of a second, as ticks are.
        assert_eq!(
            [part(5, 7), part(4, 8), part(0, 1), part(20, 30)],
            [vec![2, 3, 4], vec![2, 3, 4], vec![1], vec![6]]
        );
        assert!(within(&[], 0, 9).is_empty());
    }

    #[test]
    fn clock_goes_on_from_its_reading_in_both_directions() {
        let reading = snapshot(1).monotonic;

        let around = [1_999_999_998, 2_000_000_002].map(|ticks| reading.at(ticks, &clock()));
        assert_eq!(around, [reading.ns - 1, reading.ns + 1]);
    }
}
