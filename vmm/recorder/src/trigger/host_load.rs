//! The load of the host: in how much of the last second some task of it was ready and waited for a CPU, as the kernel's
//! pressure stall information says.
//!
//! The file is opened before the process is confined, and read at its beginning from then on.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Where the kernel tells.
const PRESSURE: &str = "/proc/pressure/cpu";
/// How often it is looked.
const INTERVAL: Duration = Duration::from_secs(1);
/// Most bytes of the file that are looked at: it has two lines.
const MAX_FILE: usize = 512;

/// Where the host's load is read.
#[derive(Debug)]
pub struct HostLoad {
    file: File,
    meter: Meter,
}

impl HostLoad {
    /// The load of this host.
    ///
    /// # Errors
    /// When its kernel does not tell.
    pub fn open() -> io::Result<Self> {
        Self::of(Path::new(PRESSURE))
    }

    /// The load that the file `path` tells.
    fn of(path: &Path) -> io::Result<Self> {
        let load = Self { file: File::open(path)?, meter: Meter::default() };
        load.waited_us()?;
        Ok(load)
    }

    /// The part of the time since it was looked last in which some task waited for a CPU, per cent; `None` when that
    /// was less than a second ago, or this is the first look.
    pub fn percent(&mut self, now: Instant) -> Option<u32> {
        if !self.meter.is_due(now) {
            return None;
        }
        // What cannot be read now may be later.
        let waited_us = self.waited_us().ok()?;
        self.meter.take(now, waited_us)
    }

    fn waited_us(&self) -> io::Result<u64> {
        let mut text = [0; MAX_FILE];
        let length = self.file.read_at(&mut text, 0)?;
        waited_us(&String::from_utf8_lossy(&text[..length])).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// The time in which some task waited so far, µs, as the kernel's `text` says.
fn waited_us(text: &str) -> Option<u64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split_whitespace().find_map(|word| word.strip_prefix("total="))?.parse().ok()
}

/// Two looks at a time that grows.
#[derive(Clone, Copy, Debug, Default)]
struct Meter {
    /// When it was looked last, and what it was, µs.
    last: Option<(Instant, u64)>,
}

impl Meter {
    fn is_due(&self, now: Instant) -> bool {
        self.last.is_none_or(|(then, _)| now.saturating_duration_since(then) >= INTERVAL)
    }

    /// By how much it grew since the last look, per cent of the time that has passed.
    fn take(&mut self, now: Instant, waited_us: u64) -> Option<u32> {
        let (then, before) = self.last.replace((now, waited_us))?;
        let passed = now.saturating_duration_since(then).as_micros().max(1);
        let percent = u128::from(waited_us.saturating_sub(before)) * 100 / passed;
        // The kernel and this thread read their clocks at different times.
        Some(u32::try_from(percent).unwrap_or(u32::MAX).min(100))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "some avg10=1.45 avg60=1.12 avg300=2.52 total=56227793\n\
                        full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";

    #[test]
    fn time_in_which_some_task_waited_is_read() {
        assert_eq!(waited_us(TEXT), Some(56_227_793));
        for text in ["", "full avg10=0.00 total=7", "some avg10=0.00", "some total=x"] {
            assert_eq!(waited_us(text), None, "{text}");
        }
    }

    #[test]
    fn load_is_the_share_of_the_time_since_the_last_look() {
        let (mut meter, begun) = (Meter::default(), Instant::now());

        let first = meter.take(begun, 1_000_000);
        let is_due = [999, 1000].map(|ms| meter.is_due(begun + Duration::from_millis(ms)));
        let second = meter.take(begun + Duration::from_secs(2), 2_600_000);
        let third = meter.take(begun + Duration::from_secs(3), 2_600_000);

        assert_eq!((first, is_due), (None, [false, true]));
        assert_eq!((second, third), (Some(80), Some(0)));
    }

    #[test]
    fn load_of_a_file_is_read_again_and_again() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("cpu");
        std::fs::write(&path, "some avg10=0.00 total=1000000\n").unwrap();
        let (mut load, begun) = (HostLoad::of(&path).unwrap(), Instant::now());

        let first = load.percent(begun);
        std::fs::write(&path, "some avg10=0.00 total=1500000\n").unwrap();
        let later = [500, 1000].map(|ms| load.percent(begun + Duration::from_millis(ms)));

        assert_eq!((first, later), (None, [None, Some(50)]));
    }

    #[test]
    fn host_that_does_not_tell_has_no_load() {
        let dir = tempfile::TempDir::new().unwrap();
        std::fs::write(dir.path().join("cpu"), "nothing of the kind").unwrap();

        assert!(HostLoad::of(&dir.path().join("none")).is_err());
        assert!(HostLoad::of(&dir.path().join("cpu")).is_err());
    }
}
