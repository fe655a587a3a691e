//! What is promised, how often that was checked, and what came of it.

use crate::attack::Attack;
use std::collections::BTreeMap;

/// A promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Promise {
    /// The recorder does not end before a command to do so.
    Up,
    /// It answers.
    Answers,
    /// Honest records are in the recording, or counted as lost, exactly.
    Exact,
    /// Honest records of a flight recorder are there without a gap up to the last one.
    Youngest,
    /// Processes reach nothing but their own slot.
    Apart,
    /// The end takes no longer than it may.
    Stop,
    /// Memory.
    Memory,
    /// Open files.
    Descriptors,
    Disk,
    /// The records of a layer with a limit.
    Rate,
    /// The size of the manifest.
    Manifest,
    /// Strata reads what was recorded, and its check finds nothing wrong with honest layers.
    Strata,
    /// So does babeltrace2.
    Babeltrace,
    /// Failures are reported.
    Reported,
    /// One's own VM is found beside those of strangers.
    Found,
    /// A stranger's socket holds nobody up.
    Patience,
    /// Texts of strangers and of forged recordings do not act.
    Harmless,
    /// A forged recording is read or refused.
    Forged,
    /// After a kill, recording and region together hold every record but those of the packets that were on their way.
    Recovered,
}

impl Promise {
    /// In words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Up => "the recorder stays up",
            Self::Answers => "it answers within 2 s (worst, ms)",
            Self::Exact => "honest layers: produced = delivered + counted as lost",
            Self::Youngest => "honest layers of a flight recorder: no gap up to the last record",
            Self::Apart => "no process has another one's rings",
            Self::Stop => "from SIGTERM to a complete recording and the process's end: 2 s at most (worst, ms)",
            Self::Memory => "memory of its own: 256 MiB at most (worst, KiB)",
            Self::Descriptors => "open files within its limit (worst, % of the limit)",
            Self::Disk => "with `--max-size`: no more of the disk (worst, % of the size)",
            Self::Rate => "honest layers with `--limit`: records within rate, burst and rings (worst, % of these)",
            Self::Manifest => "`session.json` within what is read, 256 MiB (worst, KiB)",
            Self::Strata => "Strata reads the recording; `check`: no violation in honest layers",
            Self::Babeltrace => "babeltrace2 reads the recording without a complaint",
            Self::Reported => "what fails is reported, in one line or in `session.json`",
            Self::Found => "beside another user's folders: one's own VM is found by its name",
            Self::Patience => "what looks at another user's folders or asks its sockets ends within 2 s (worst, ms)",
            Self::Harmless => "no text of another user's or of a forged recording acts on a terminal",
            Self::Forged => "a forged recording is read or refused within 20 s and 512 MiB (worst, ms)",
            Self::Recovered => "`kill -9`: recording and recovered region lack one sub-buffer a ring at most",
        }
    }
}

/// How often a promise was checked, and what came of it.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// Times that it was checked.
    pub times: u64,
    /// Times that it was broken.
    pub broken: u64,
    /// The worst figure, where it has one.
    pub worst: Option<u64>,
}

/// What attacks did, and in how many rounds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Struck {
    /// Strokes.
    pub strokes: u64,
    /// Rounds of VMs that were attacked so.
    pub rounds: u64,
    /// Those in which a promise was broken.
    pub broken: u64,
}

/// Who attacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    /// A process of the guest.
    Process,
    /// The guest's kernel.
    Kernel,
    /// Another user of the host.
    User,
    /// Whoever made a recording.
    Maker,
}

/// What is left of recorders that were killed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kills {
    /// Recorders that were killed.
    pub killed: u64,
    /// Regions that were recovered, and that `strata check` and babeltrace2 read without a complaint.
    pub recovered: u64,
    /// Recordings that end within a packet.
    pub cut: u64,
}

/// Everything that was checked.
#[derive(Clone, Debug, Default)]
pub struct Board {
    /// By promise.
    pub promises: BTreeMap<Promise, Kept>,
    /// By attacker and attack.
    pub attacks: BTreeMap<(By, Attack), Struck>,
    /// By the name of what failed: rounds, and those with a broken promise.
    pub faults: BTreeMap<&'static str, (u64, u64)>,
    /// By the name of what failed: how long recordings took to end, ms.
    pub ends: BTreeMap<&'static str, Vec<u64>>,
    /// What is left of recorders that were killed.
    pub kills: Kills,
    /// Records that honest producers tried to record.
    pub produced: u64,
    /// Those that are in recordings.
    pub delivered: u64,
    /// Those that are counted as lost.
    pub lost: u64,
    /// Rounds.
    pub rounds: u64,
    /// The largest share of a processor that a recorder's process took, %.
    pub processor: u64,
}

impl Board {
    /// Notes that `promise` was checked; says what is wrong when it was broken: `Err`.
    pub fn check(&mut self, promise: Promise, result: Result<(), String>) {
        let kept = self.promises.entry(promise).or_default();
        kept.times += 1;
        if let Err(what) = result {
            kept.broken += 1;
            println!("BROKEN: {}: {what}", promise.text());
        }
    }

    /// Notes that `promise` was checked `times` times; says what is wrong when it was broken: `Err`.
    pub fn check_each(&mut self, promise: Promise, times: u64, result: Result<(), String>) {
        self.check(promise, result);
        self.promises.entry(promise).or_default().times += times.saturating_sub(1);
    }

    /// Notes that `promise` was checked, which is that `figure` is `limit` at most; `of` is what the figure is of.
    pub fn check_limit(&mut self, promise: Promise, figure: u64, limit: u64, of: &str) {
        let kept = self.promises.entry(promise).or_default();
        kept.worst = kept.worst.max(Some(figure));
        self.check(promise, if figure <= limit { Ok(()) } else { Err(format!("{of}: {figure}, more than {limit}")) });
    }

    /// Broken promises so far.
    #[must_use]
    pub fn broken(&self) -> u64 {
        self.promises.values().map(|kept| kept.broken).sum()
    }

    /// Where it stands, in a line.
    #[must_use]
    pub fn line(&self) -> String {
        let checks: u64 = self.promises.values().map(|kept| kept.times).sum();
        format!(
            "{} honest records so far = {} delivered + {} lost where all are counted; {checks} checks, {} broken",
            self.produced,
            self.delivered,
            self.lost,
            self.broken()
        )
    }
}
