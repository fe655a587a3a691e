//! What happens when a guest reboots: what follows the end of a boot, where the recording of the next one goes, and
//! when a guest that does nothing but reboot is given up.

use crate::run::RunReport;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use strata_machine::Outcome;

/// A boot that is over so soon did not come far.
pub const QUICK: Duration = Duration::from_secs(2);
/// Quick boots in a row, after which a guest is not started again.
pub const MOST_QUICK: u32 = 5;

/// What happens when a guest reboots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnReboot {
    /// The run ends.
    #[default]
    Stop,
    /// The guest is started again.
    Restart,
}

/// A name that is none of [`OnReboot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write stop or restart")]
pub struct UnknownReaction;

impl OnReboot {
    pub const ALL: [Self; 2] = [Self::Stop, Self::Restart];

    /// The name, as on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Restart => "restart",
        }
    }
}

impl FromStr for OnReboot {
    type Err = UnknownReaction;

    fn from_str(name: &str) -> Result<Self, UnknownReaction> {
        Self::ALL.into_iter().find(|reaction| reaction.name() == name).ok_or(UnknownReaction)
    }
}

/// How a boot of a guest ended, as far as what follows depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootEnd {
    /// The guest switched its power off, or the host stopped it.
    Done,
    /// The guest panicked or crashed, or was stopped because its trace failed.
    Failed,
    /// The guest could not be run, or its recording could not be completed.
    NotRun,
    /// The guest asked for a reset.
    Rebooted,
}

impl BootEnd {
    const ALL: [Self; 4] = [Self::Done, Self::Failed, Self::NotRun, Self::Rebooted];

    /// The exit status by which the process of a boot tells it. Nothing else that ends the process gives that of a
    /// reboot: it is neither that of wrong options, nor of a panic of ours, nor one of a shell.
    #[must_use]
    pub const fn status(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::NotRun => 2,
            Self::Rebooted => 90,
        }
    }

    /// What a process that ended with `status` told.
    #[must_use]
    pub fn of_status(status: i32) -> Self {
        Self::ALL.into_iter().find(|end| i32::from(end.status()) == status).unwrap_or(Self::Failed)
    }
}

impl From<&RunReport> for BootEnd {
    fn from(report: &RunReport) -> Self {
        match report.outcome {
            _ if report.trace_failed => Self::Failed,
            Outcome::PowerOff | Outcome::Stopped => Self::Done,
            Outcome::Reboot => Self::Rebooted,
            Outcome::Panic | Outcome::TripleFault { .. } | Outcome::EmulationFailure { .. } | Outcome::Failed(_) => {
                Self::Failed
            }
        }
    }
}

/// Counts boots that were over at once.
#[derive(Debug, Default)]
pub struct QuickBoots(u32);

impl QuickBoots {
    /// Counts a boot that lasted so long and ended by a reboot. Whether there were too many quick ones in a row.
    pub fn are_too_many_with(&mut self, lasted: Duration) -> bool {
        self.0 = if lasted < QUICK { self.0 + 1 } else { 0 };
        self.0 >= MOST_QUICK
    }
}

/// Where the recording of boot number `boot` goes, whose first one goes to `first`: `first-2`, `first-3` and so on.
#[must_use]
pub fn trace_of_boot(first: &Path, boot: u32) -> PathBuf {
    match (first.file_name(), boot) {
        (None, _) | (_, ..=1) => first.into(),
        (Some(name), _) => {
            let mut numbered = OsString::from(name);
            numbered.push(format!("-{boot}"));
            first.with_file_name(numbered)
        }
    }
}

/// A folder that is not empty, or anything else, where the recording of a later boot would go.
#[must_use]
pub fn taken(first: &Path) -> Option<PathBuf> {
    let prefix = first.file_name()?.to_str()?;
    let above = first.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let is_later = |name: &str| {
        let number = name.strip_prefix(prefix)?.strip_prefix('-')?;
        let boot: u32 = number.parse().ok()?;
        (boot > 1 && boot.to_string() == number).then_some(boot)
    };
    let entries = fs::read_dir(above).ok()?.flatten();
    let later = entries.filter_map(|entry| is_later(entry.file_name().to_str()?));
    let mut later: Vec<u32> = later.collect();
    later.sort_unstable();
    let is_empty = |path: &PathBuf| fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    later.into_iter().map(|boot| trace_of_boot(first, boot)).find(|path| !is_empty(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(outcome: Outcome, trace_failed: bool) -> BootEnd {
        BootEnd::from(&RunReport { outcome, manifest: None, console_dropped: 0, trace_failed })
    }

    #[test]
    fn only_a_reboot_of_a_guest_that_did_not_panic_is_one() {
        assert_eq!(end(Outcome::Reboot, false), BootEnd::Rebooted);
        assert_eq!(end(Outcome::Reboot.after_panic(), false), BootEnd::Failed);
        assert_eq!(end(Outcome::TripleFault { vcpu: 0, state: None }, false), BootEnd::Failed);
        assert_eq!(end(Outcome::PowerOff, false), BootEnd::Done);
        assert_eq!(end(Outcome::Stopped, false), BootEnd::Done);
    }

    #[test]
    fn vm_that_is_stopped_because_its_trace_failed_has_failed() {
        assert_eq!(end(Outcome::Stopped, true), BootEnd::Failed);
    }

    #[test]
    fn status_of_a_process_tells_the_end_of_its_boot() {
        assert_eq!(BootEnd::ALL.map(|end| BootEnd::of_status(end.status().into())), BootEnd::ALL);
        assert_eq!(BootEnd::of_status(101), BootEnd::Failed);
    }

    #[test]
    fn guest_is_given_up_after_quick_boots_in_a_row() {
        let mut boots = QuickBoots::default();
        let quick = QUICK / 2;

        let given_up: Vec<bool> = [quick, QUICK, quick, quick, quick, quick, quick, quick]
            .into_iter()
            .map(|lasted| boots.are_too_many_with(lasted))
            .collect();

        assert_eq!(given_up, [false, false, false, false, false, false, true, true]);
    }

    #[test]
    fn recordings_of_later_boots_lie_beside_the_first() {
        let of = |first: &str, boot| trace_of_boot(Path::new(first), boot);

        assert_eq!(of("trace", 1), Path::new("trace"));
        assert_eq!(of("trace", 2), Path::new("trace-2"));
        assert_eq!(of("/var/traces/web.1/", 13), Path::new("/var/traces/web.1-13"));
    }

    #[test]
    fn first_recording_of_a_later_boot_that_is_there_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        ["trace", "trace-x", "trace-1", "trace-02", "trace-2"]
            .iter()
            .for_each(|name| fs::create_dir(path(name)).unwrap());
        assert_eq!(taken(&path("trace")), None);
        ["trace-10", "trace-3"].iter().for_each(|name| fs::write(path(name), "").unwrap());

        assert_eq!(taken(&path("trace")), Some(path("trace-3")));
    }

    #[test]
    fn reactions_are_read_by_their_names() {
        assert_eq!(OnReboot::ALL.map(|reaction| reaction.name().parse()), OnReboot::ALL.map(Ok));
        assert_eq!("reset".parse::<OnReboot>(), Err(UnknownReaction));
    }
}
