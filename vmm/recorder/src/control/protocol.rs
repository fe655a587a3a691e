//! The control protocol: one JSON object per line asks, one per line answers, in turn, until the client hangs up. Texts of
//! an answer are [`Foreign`]: they may be another user's.

use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::{Attached, RecordLimit};
use strata_recording::text::terminal::foreign::Foreign;

/// Longest request, bytes.
pub const MAX_LINE: usize = 1 << 20;
/// Longest answer, bytes: one about the layers of as many processes as a guest can have recorded.
pub const MAX_ANSWER: usize = 8 << 20;

/// What a ring does when it is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// New records are dropped and counted; what was recorded is written out all the time.
    #[default]
    Discard,
    /// The oldest records are overwritten; they are written out by a snapshot and at the end.
    FlightRecorder,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 2] = [Self::Discard, Self::FlightRecorder];

    /// The name that users read and type.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Discard => "discard",
            Self::FlightRecorder => "flight-recorder",
        }
    }
}

impl From<Mode> for shared_ring::layout::Mode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Discard => Self::Discard,
            Mode::FlightRecorder => Self::FlightRecorder,
        }
    }
}

impl From<shared_ring::layout::Mode> for Mode {
    fn from(mode: shared_ring::layout::Mode) -> Self {
        match mode {
            shared_ring::layout::Mode::Discard => Self::Discard,
            shared_ring::layout::Mode::FlightRecorder => Self::FlightRecorder,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let mode = Self::ALL.into_iter().find(|mode| mode.name() == name);
        mode.ok_or_else(|| "modes are discard and flight-recorder".into())
    }
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// How the VM and its recording are. Answered by [`Answer::Status`].
    Status,
    /// What the VM does now. Answered by [`Answer::Live`].
    Live,
    /// Write what the flight recorder holds to a new trace folder, while tracing goes on.
    Snapshot {
        /// The folder, absolute; it must not exist, or be empty.
        dir: PathBuf,
        /// The session; `None` for the one that the VM was started with.
        #[serde(default)]
        session: Option<String>,
    },
    /// Take all vCPUs out of the guest, and keep them out.
    Pause,
    /// Let a paused guest go on.
    Resume,
    /// Want memory of the guest's back from now on, or only ask how much it has given. Answered by [`Answer::Balloon`].
    Balloon {
        /// How much, bytes; 0 lets it have all again. Without it nothing changes.
        #[serde(default)]
        bytes: Option<u64>,
    },
    /// Stop the guest, as Ctrl-C does, and complete the recording.
    Stop,
    /// End a recording that is attached to another process's VM, and complete it.
    Detach,
    /// Make every ring deliver what it holds, and write out what is written out continuously.
    Flush,
    /// Watch for something, in the session that the VM was started with.
    TriggerAdd {
        /// Its expression.
        trigger: String,
        /// How long after a snapshot (in discard mode, a mark) it may lead to another one, ms; without it, it leads to
        /// one.
        #[serde(default)]
        every_ms: Option<u64>,
        /// How long is recorded on before the snapshot, ms; a default is taken without it.
        #[serde(default)]
        after_ms: Option<u64>,
    },
    /// Watch no more for something.
    TriggerRemove {
        /// Its number, or its expression.
        trigger: String,
    },
    /// Make another session, which does not record until it is started.
    SessionCreate {
        /// Its name.
        name: String,
        /// What its rings do when they are full.
        #[serde(default)]
        mode: Mode,
        /// Bytes of a sub-buffer; a default is taken without it.
        #[serde(default)]
        sub_buffer_size: Option<u64>,
        /// Sub-buffers of each ring; a default is taken without it.
        #[serde(default)]
        sub_buffers: Option<u32>,
        /// Which events it records; the VM's own choice without it.
        #[serde(default)]
        events: Option<String>,
        /// Where its recording goes, absolute. A session in discard mode needs one; one in flight-recorder mode is
        /// written there when it is destroyed or the VM ends.
        #[serde(default)]
        trace: Option<PathBuf>,
        /// Bytes that the recording keeps within: the oldest records give way. Without it, it grows.
        #[serde(default)]
        max_size: Option<u64>,
        /// Limits of its layers' records.
        #[serde(default)]
        limits: Vec<LayerLimit>,
    },
    /// Begin to record, or go on.
    SessionStart {
        /// Name of the session.
        name: String,
    },
    /// Record no more; what was recorded stays.
    SessionStop {
        /// Name of the session.
        name: String,
    },
    /// Record other events of the guest from now on.
    SessionEvents {
        /// Name of the session.
        name: String,
        /// Which.
        events: String,
    },
    /// End a session and complete its recording.
    SessionDestroy {
        /// Name of the session.
        name: String,
    },
}

/// The limit of a layer: of each process's, for the layer of the guest's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerLimit {
    /// The layer.
    pub layer: LayerKind,
    /// Records each second, from 1 on.
    pub per_second: u64,
    /// Records at once after a pause, from 1 on.
    pub burst: u64,
}

/// What the VM answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Answer {
    /// To [`Request::Status`].
    Status(Box<Status>),
    /// To [`Request::Live`].
    Live(Box<Live>),
    /// To [`Request::Balloon`].
    Balloon(BalloonStatus),
    /// It was done.
    Done {
        /// What was done, one line.
        message: Foreign<String>,
    },
    /// It was not done.
    Refused {
        /// Why, and what to do, one line.
        message: Foreign<String>,
    },
}

impl Answer {
    /// It was done: `message`.
    pub fn done(message: impl Into<Foreign<String>>) -> Self {
        Self::Done { message: message.into() }
    }

    /// It was not done: `message`.
    pub fn refused(message: impl Into<Foreign<String>>) -> Self {
        Self::Refused { message: message.into() }
    }

    /// It was not done because of `error`: the error and its sources on one line.
    #[must_use]
    pub fn refusal(error: &dyn std::error::Error) -> Self {
        let sources = std::iter::successors(error.source(), |error| error.source());
        Self::refused(sources.fold(error.to_string(), |text, source| format!("{text}: {source}")))
    }
}

/// How a VM is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Name of the VM.
    pub name: Foreign<String>,
    /// Process that runs it.
    pub pid: u32,
    /// Whole seconds since it began.
    pub uptime_s: u64,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// RAM, bytes; 0 where it is not known.
    pub memory: u64,
    /// The process that runs it, where `pid` only records it from outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached: Option<Attached>,
    /// What its process has given up; not said by older ones.
    #[serde(default)]
    pub jail: Option<Foreign<String>>,
    /// Whether it is paused.
    #[serde(default)]
    pub paused: bool,
    /// Its balloon, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balloon: Option<BalloonStatus>,
    /// Its devices that have limits, and how often they had to wait for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<LimitStatus>,
    /// Its recording; `None` when it is not traced.
    pub trace: Option<TraceStatus>,
}

/// How a VM's balloon is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalloonStatus {
    /// What the host wants back, bytes.
    pub wanted: u64,
    /// What the guest does without, bytes.
    pub given: u64,
    /// What the guest has reported as free since it began, bytes; what it used again and freed again counts again.
    pub reported: u64,
    /// Pages of 4096 bytes that the guest named and may not, or that the host's kernel did not take.
    pub refused: u64,
    /// Whether a driver of the guest has taken the device.
    pub driven: bool,
}

/// How a device with limits is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitStatus {
    /// The device: `disk 0`, `console`.
    pub device: Foreign<String>,
    /// Its limits, as on the command line: each second and at once.
    pub limits: Foreign<String>,
    /// How often it had to wait.
    pub waits: u64,
    /// How long in all, ms.
    pub waited_ms: u64,
}

/// How a VM's recording is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceStatus {
    /// The folder that the recording goes to.
    pub dir: Foreign<PathBuf>,
    /// File of the trace region.
    pub region: Foreign<PathBuf>,
    /// Size of the trace region, bytes.
    pub region_size: u64,
    /// Release of the guest's kernel, once its agent has come up.
    pub guest_kernel: Option<Foreign<String>>,
    /// Words of the region that are the host's and that the guest had changed; they were restored.
    #[serde(default)]
    pub restored_words: u64,
    /// The sessions, in the order of their slots.
    pub sessions: Vec<SessionStatus>,
    /// What is watched for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub triggers: Vec<TriggerStatus>,
    /// What has been written so far, by layer.
    pub layers: Vec<LayerStatus>,
    /// What is missing and why, a line each.
    pub missing: Vec<Foreign<String>>,
}

/// What has become of a trigger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TriggerStatus {
    /// Its number: what the mark in the trace says, and what removes it; not said by older ones.
    #[serde(default)]
    pub number: usize,
    /// As it was given.
    pub trigger: Foreign<String>,
    /// How often it fired.
    pub fired: u64,
    /// Whether a snapshot is to be taken because of it in a moment.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub due: bool,
    /// What happened when it fired last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Foreign<String>>,
    /// How often it was marked in a trace that is written all the time, where no snapshot is taken.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub marks: u64,
    /// Folders of the snapshots that were taken because of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<Foreign<PathBuf>>,
    /// Why the last snapshot could not be taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Foreign<String>>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// How a session is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Name.
    pub name: Foreign<String>,
    /// What its rings do when they are full.
    pub mode: Mode,
    /// Whether it records.
    pub active: bool,
    /// Bytes of a sub-buffer.
    pub sub_buffer_size: u64,
    /// Sub-buffers of each ring.
    pub sub_buffers: u32,
    /// Its choice of events.
    pub events: Foreign<String>,
    /// Where its recording goes.
    pub trace: Option<Foreign<PathBuf>>,
    /// The vCPUs that have not begun to record for it, once the guest has an agent.
    #[serde(default)]
    pub not_joined: Vec<u32>,
    /// Records of the guest's kernel that were not made because the CPU was making another one in the same context;
    /// `None` where the agent does not count them.
    #[serde(default)]
    pub nested: Option<u64>,
}

/// What has been written of a layer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerStatus {
    /// Folder of the layer in the recording.
    pub path: Foreign<String>,
    /// Records written.
    pub records: u64,
    /// Records lost.
    pub lost: u64,
    /// Why they are, and what helps against that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub losses: Vec<LossStatus>,
    /// Records or sub-buffers overwritten in flight-recorder mode.
    pub overwritten: u64,
    /// Records written that were dropped again, to keep within the recording's size.
    #[serde(default)]
    pub dropped: u64,
    /// The limit of its records, if it has one, and how often it met that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<RecordLimit>,
}

/// Why records of a layer are lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossStatus {
    /// How many.
    pub count: u64,
    /// Why.
    pub cause: Foreign<String>,
    /// What helps against it.
    pub next: Foreign<String>,
}

/// What a VM does now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Live {
    /// Name of the VM.
    pub name: Foreign<String>,
    /// Process that runs it, or records it from outside.
    pub pid: u32,
    /// The process that runs it, where `pid` only records it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached: Option<Attached>,
    /// What the host does for its vCPUs; `None` where the host's kernel is not recorded.
    pub host: Option<Watched>,
    /// What the guest's tasks wait for; `None` where the guest's kernel is not recorded.
    #[serde(default)]
    pub guest: Option<LiveGuest>,
    /// Requests to its disks since the VM was started, by disk and kind; none where another process serves them.
    #[serde(default)]
    pub disks: Vec<LiveDisk>,
    /// Its balloon, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balloon: Option<BalloonStatus>,
    /// What has been written so far, by layer; nothing of a flight recorder.
    pub layers: Vec<LayerStatus>,
    /// What is missing and why, a line each.
    pub missing: Vec<Foreign<String>>,
}

/// What the host does for the vCPUs of a VM: sums since it was first asked for. It is forgotten when nobody asks for
/// two minutes, and begins anew when the VM gets other vCPUs: `since_ns` says so.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watched {
    /// Since when, trace clock, ns.
    pub since_ns: u64,
    /// Until when, trace clock, ns.
    pub until_ns: u64,
    /// The vCPUs.
    pub vcpus: Vec<LiveVcpu>,
    /// What the host ran in place of vCPUs that were ready, by name, the longest first.
    pub thieves: Vec<Thief>,
    /// Exits, and the time until the vCPU was in the guest again.
    pub exits: Vec<LiveExits>,
    /// From being ready, woken or preempted, until its thread ran: of all vCPUs.
    pub ready: Times,
    /// The turn of a vCPU that came latest in each of the last seconds.
    pub late: Vec<Late>,
    /// Records of the host's kernel.
    pub records: u64,
    /// Records of the host's kernel that were lost.
    pub lost: u64,
}

/// Where the time of a vCPU went, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveVcpu {
    /// Index.
    pub vcpu: u32,
    /// In the guest.
    pub guest_ns: u64,
    /// In KVM, handling an exit.
    pub kvm_ns: u64,
    /// In the VMM: from KVM's return to it until the guest is entered.
    pub vmm_ns: u64,
    /// Ready, and the host ran something else.
    pub preempted_ns: u64,
    /// Woken, and not yet run.
    pub woken_ns: u64,
    /// Halted.
    pub halted_ns: u64,
    /// Waiting for something else.
    pub blocked_ns: u64,
    /// Not known.
    pub unknown_ns: u64,
}

impl LiveVcpu {
    /// All parts of the time, ns, in the order of the fields.
    #[must_use]
    pub const fn parts(&self) -> [u64; 8] {
        let Self { vcpu: _, guest_ns, kvm_ns, vmm_ns, preempted_ns, woken_ns, halted_ns, blocked_ns, unknown_ns } =
            *self;
        [guest_ns, kvm_ns, vmm_ns, preempted_ns, woken_ns, halted_ns, blocked_ns, unknown_ns]
    }

    /// What came since `before`, an earlier state of this.
    #[must_use]
    pub const fn since(&self, before: &Self) -> Self {
        Self {
            vcpu: self.vcpu,
            guest_ns: self.guest_ns.saturating_sub(before.guest_ns),
            kvm_ns: self.kvm_ns.saturating_sub(before.kvm_ns),
            vmm_ns: self.vmm_ns.saturating_sub(before.vmm_ns),
            preempted_ns: self.preempted_ns.saturating_sub(before.preempted_ns),
            woken_ns: self.woken_ns.saturating_sub(before.woken_ns),
            halted_ns: self.halted_ns.saturating_sub(before.halted_ns),
            blocked_ns: self.blocked_ns.saturating_sub(before.blocked_ns),
            unknown_ns: self.unknown_ns.saturating_sub(before.unknown_ns),
        }
    }
}

/// What the host ran in place of vCPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thief {
    /// Name of the thread.
    pub name: Foreign<String>,
    /// How long, ns.
    pub ns: u64,
}

/// Exits for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveExits {
    /// Name of the reason.
    pub reason: Foreign<String>,
    /// Their times.
    #[serde(flatten)]
    pub times: Times,
}

/// A vCPU that had its turn late.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Late {
    /// The vCPU.
    pub vcpu: u32,
    /// When it ran, trace clock, ns.
    pub at_ns: u64,
    /// How long it had been ready, ns.
    pub ns: u64,
    /// What the host ran meanwhile, for longest.
    pub by: Foreign<String>,
}

/// Requests of one kind to a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveDisk {
    /// Number of the disk, from 0 on.
    pub disk: u32,
    /// `read`, `write` or `flush`.
    pub kind: Foreign<String>,
    /// How long the VMM took for each.
    #[serde(flatten)]
    pub times: Times,
}

/// What the guest's tasks waited for, as the guest's kernel records it: sums since it was first asked for. As
/// [`Watched`], it is forgotten when nobody asks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveGuest {
    /// Since when, trace clock, ns.
    pub since_ns: u64,
    /// Until when, trace clock, ns.
    pub until_ns: u64,
    /// From being woken until running, of all tasks.
    pub wakeups: Times,
    /// The wake-ups of each of the last seconds that took longest.
    pub worst: Vec<LiveWakeup>,
}

/// A task of the guest that was woken and ran.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveWakeup {
    /// Name of the task, as the guest tells it.
    pub task: Foreign<String>,
    /// Its thread id.
    pub tid: i32,
    /// The vCPU that it ran on.
    pub cpu: u32,
    /// When it ran, trace clock, ns.
    pub at_ns: u64,
    /// How long it had waited, ns.
    pub ns: u64,
}

/// Classes of [`Times`]: below 2^10 ns, below 2^11 ns and so on, and the last without an end.
pub const TIME_CLASSES: usize = 26;
/// The power of two below which the first class lies, ns.
pub const FIRST_CLASS: u32 = 10;

/// How many times there were and how they are distributed: two of them are merged by adding them up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// Number.
    pub count: u64,
    /// All together, ns.
    pub total_ns: u64,
    /// How many are below 2^10 ns, then how many below 2^11 ns of the others, and so on; classes behind the last that
    /// holds one are left out.
    #[serde(deserialize_with = "classes")]
    pub classes: Vec<u64>,
}

/// Classes as [`Times::add`] makes them, whatever another process has answered: no more than there are, and together no
/// more than can be counted.
fn classes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u64>, D::Error> {
    let mut classes = Vec::<u64>::deserialize(deserializer)?;
    let beyond = classes.split_off(classes.len().min(TIME_CLASSES));
    if let Some(last) = classes.last_mut() {
        *last = beyond.into_iter().fold(*last, u64::saturating_add);
    }
    let mut left = u64::MAX;
    for class in &mut classes {
        *class = (*class).min(left);
        left -= *class;
    }
    Ok(classes)
}

impl Times {
    /// Adds a time of `ns`.
    pub fn add(&mut self, ns: u64) {
        let class = (u64::BITS - ns.leading_zeros()).saturating_sub(FIRST_CLASS) as usize;
        let class = class.min(TIME_CLASSES - 1);
        if self.classes.len() <= class {
            self.classes.resize(class + 1, 0);
        }
        self.classes[class] += 1;
        (self.count, self.total_ns) = (self.count + 1, self.total_ns.saturating_add(ns));
    }

    /// What came since `before`, an earlier state of this; all of it where `before` is none.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let of_before = |class: usize| before.classes.get(class).copied().unwrap_or(0);
        let classes = self.classes.iter().enumerate();
        Self {
            count: self.count.saturating_sub(before.count),
            total_ns: self.total_ns.saturating_sub(before.total_ns),
            classes: classes.map(|(class, count)| count.saturating_sub(of_before(class))).collect(),
        }
    }

    /// The end of the class that holds the time which `percent` of 100 take at most, ns; 0 of none.
    #[must_use]
    pub fn below_ns(&self, percent: u64) -> u64 {
        let rank = self.count.saturating_mul(percent).div_ceil(100).max(1);
        let mut sum = 0;
        let class = self.classes.iter().position(|count| {
            sum += count;
            sum >= rank
        });
        class.map_or(0, |class| 1 << (FIRST_CLASS as usize + class))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_what_the_documentation_says() {
        let request: Request = serde_json::from_str(r#"{"command":"snapshot","dir":"/tmp/a"}"#).unwrap();

        assert_eq!(request, Request::Snapshot { dir: "/tmp/a".into(), session: None });
    }

    #[test]
    fn documented_requests_are_requests() {
        let document = include_str!("../../../../docs/control.md");
        let block = document.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();

        let requests: Vec<Request> = block.lines().map(|line| serde_json::from_str(line).unwrap()).collect();

        assert_eq!(requests.len(), 16);
    }

    #[test]
    fn unknown_command_and_unknown_field_are_refused() {
        assert!(serde_json::from_str::<Request>(r#"{"command":"fly"}"#).is_err());
        assert!(serde_json::from_str::<Request>(r#"{"command":"session-stop","name":"a","x":1}"#).is_err());
    }

    #[test]
    fn answers_survive_their_line() {
        let live = Answer::Live(Box::default());
        let balloon = Answer::Balloon(BalloonStatus { given: 4096, ..BalloonStatus::default() });
        let answers = [Answer::done("a"), Answer::refused("b"), Answer::Status(Box::default()), live, balloon];

        let lines = answers.clone().map(|answer| serde_json::to_string(&answer).unwrap());

        assert!(lines.iter().all(|line| !line.contains('\n')));
        assert_eq!(lines.map(|line| serde_json::from_str::<Answer>(&line).unwrap()), answers);
    }

    #[test]
    fn times_of_an_answer_are_such_as_can_be_added_up() {
        let times = |classes: &[u64]| -> Times {
            let text = serde_json::json!({"count": 99, "total_ns": 1, "classes": classes}).to_string();
            serde_json::from_str(&text).unwrap()
        };

        let (many, large) = (times(&[1; 99]), times(&[1, u64::MAX, u64::MAX]));

        assert_eq!((many.classes.len(), many.classes[TIME_CLASSES - 1]), (TIME_CLASSES, 74));
        assert_eq!(many.below_ns(100), 1 << (FIRST_CLASS + 25));
        assert_eq!(large.classes, [1, u64::MAX - 1, 0]);
        assert_eq!(times(&[]).below_ns(50), 0);
    }

    #[test]
    fn modes_have_the_names_that_users_type() {
        assert_eq!("flight-recorder".parse(), Ok(Mode::FlightRecorder));
        assert!("flight".parse::<Mode>().unwrap_err().contains("flight-recorder"));
    }
}
