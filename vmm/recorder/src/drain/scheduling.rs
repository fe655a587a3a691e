//! Where and when the recorder's thread runs: on which CPUs of the host, and at what priority.
//!
//! With [`Drain::Idle`] the recorder has the kernel's policy for idle times (`SCHED_IDLE`): it runs where no other
//! thread wants to, and gives way to a vCPU at once. A host that is never idle would starve it, and full rings lose
//! records. So a second thread of normal priority, the watchdog, has the recorder run at normal priority when a look at
//! the rings comes late. Then the recorder asks whether the look can wait, as it can while there is room in every ring;
//! otherwise it keeps its priority until it has taken everything.
#![allow(unsafe_code)] // No library sets the policy of another thread.

use crate::drain::cpu_list::{CpuList, PlacementError};
use crate::drain::polling::SLEEP;
use rustix::process::{Resource, Rlimit, getpriority_process, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, gettid, set_capabilities};
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thiserror::Error;

/// How late a look at the rings may end before the recorder runs at normal priority. With the longest pause it is a tenth of
/// a second: for so long three quarters of a vCPU's ring of the default size, which are free at least, hold 490,000 records
/// of 32 bytes a second.
const LATE: Duration = Duration::from_millis(36);

/// The limit of nice values (`RLIMIT_NICE`) from which on a thread of the nice value `nice` may have normal priority back,
/// as the kernel's `nice_to_rlimit()` has it.
fn nice_limit(nice: i32) -> u64 {
    u64::try_from(20 - nice).unwrap_or(0)
}

/// The same for this process.
fn own_nice_limit() -> u64 {
    nice_limit(getpriority_process(None).unwrap_or(0))
}

/// When records are taken out of the rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Drain {
    /// As they come.
    #[default]
    Always,
    /// While the host has nothing else to do, or before it is too late.
    Idle,
}

/// A name that is none of [`Drain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("write always or idle")]
pub struct UnknownDrain;

impl Drain {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Always, Self::Idle];

    /// The name, as on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Idle => "idle",
        }
    }
}

impl FromStr for Drain {
    type Err = UnknownDrain;

    fn from_str(name: &str) -> Result<Self, UnknownDrain> {
        Self::ALL.into_iter().find(|drain| drain.name() == name).ok_or(UnknownDrain)
    }
}

/// Where and when the recorder runs.
#[derive(Clone, Debug, Default)]
pub struct Scheduling {
    /// The host's CPUs on which strata's threads record; any, where there are none.
    pub cpus: Option<CpuList>,
    /// When records are taken out of the rings.
    pub drain: Drain,
}

/// Why the recorder cannot run as it is to.
#[derive(Debug, Error)]
pub enum SchedulingError {
    /// Not on these CPUs.
    #[error("--recorder-cpus cannot be had")]
    Placement(#[from] PlacementError),
    /// Its priority could be lowered and not be raised again.
    #[error(
        "--drain idle cannot be had: this user may not give a thread its normal priority back; start strata as root, \
         or allow it with `ulimit -e {}`",
        own_nice_limit()
    )]
    Priority(#[source] io::Error),
}

impl Scheduling {
    /// Tries this scheduling on a thread, and returns what works. Raises `RLIMIT_NICE`, so that the recorder gets normal
    /// priority back without capabilities. Where that is refused (a container may lack `CAP_SYS_RESOURCE`), returns
    /// [`Drain::Always`].
    ///
    /// # Errors
    /// When it may not run so, even with this process's capabilities.
    pub fn try_out(&self) -> Result<Self, SchedulingError> {
        self.cpus.as_ref().map(CpuList::try_place).transpose()?;
        if self.drain == Drain::Always {
            return Ok(self.clone());
        }
        let (limit, Rlimit { current, maximum }) = (own_nice_limit(), getrlimit(Resource::Nice));
        if current.is_some_and(|current| current < limit) {
            let maximum = maximum.map(|maximum| maximum.max(limit));
            // Where that is refused, so is what follows.
            let _ = setrlimit(Resource::Nice, Rlimit { current: Some(limit), maximum });
        }
        let try_both = || set_policy(ITSELF, Policy::Idle).and_then(|()| set_policy(ITSELF, Policy::Normal));
        let without_capabilities = || {
            let none = CapabilitySet::empty();
            let given_up =
                set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none });
            given_up.map_err(io::Error::from).and_then(|()| try_both())
        };
        let tried = |trial: &(dyn Fn() -> io::Result<()> + Sync)| {
            let joined = std::thread::scope(|scope| scope.spawn(trial).join());
            joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        if tried(&without_capabilities).is_ok() {
            return Ok(self.clone());
        }
        tried(&try_both).map_err(SchedulingError::Priority)?;
        Ok(Self { drain: Drain::Always, ..self.clone() })
    }

    /// Has the calling thread, the recorder's, run so. Both were tried before: a CPU that has gone since, or a thread
    /// that cannot be made, costs that, not the recording.
    pub(crate) fn begin(&self) -> Option<Watchdog> {
        let _ = self.cpus.as_ref().map(CpuList::place_this_thread);
        match self.drain {
            Drain::Always => None,
            Drain::Idle => Watchdog::start(self.cpus.clone(), LATE).ok(),
        }
    }
}

/// The kernel's policies that are used.
#[derive(Clone, Copy, Debug)]
enum Policy {
    Normal,
    Idle,
}

/// The kernel takes this number for the thread that asks.
const ITSELF: i32 = 0;

/// Kernel thread id of the calling thread.
fn this_thread() -> i32 {
    gettid().as_raw_nonzero().get()
}

/// Gives `thread` of this process the policy.
fn set_policy(thread: i32, policy: Policy) -> io::Result<()> {
    let number = match policy {
        Policy::Normal => libc::SCHED_OTHER,
        Policy::Idle => libc::SCHED_IDLE,
    };
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads `parameters`, which live until it returns, and changes no memory of this process.
    let result = unsafe { libc::syscall(libc::SYS_sched_setscheduler, thread, number, &raw const parameters) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What recorder and watchdog know of each other. It orders nothing else, so that accesses are relaxed.
struct Looks {
    begun: Instant,
    /// How late a look may end.
    late: Duration,
    /// When the next look is to have ended at the latest, ms after `begun`.
    due: AtomicU64,
    /// The recorder has normal priority, or is about to have it.
    is_urgent: AtomicBool,
    /// It was late, or woken from a long sleep, and has not asked for that yet.
    is_late: AtomicBool,
}

impl Looks {
    /// Sets when the next look is to have ended, which begins after `pause`; says whether that is earlier than it was.
    fn set_due(&self, pause: Duration) -> bool {
        let due = (self.begun.elapsed() + pause + self.late).as_millis();
        let due = u64::try_from(due).unwrap_or(u64::MAX);
        due < self.due.swap(due, Ordering::Relaxed)
    }

    /// Time until it is too late; none when it is.
    fn left(&self) -> Duration {
        Duration::from_millis(self.due.load(Ordering::Relaxed)).saturating_sub(self.begun.elapsed())
    }
}

/// Keeps the calling thread, a recorder's, at the priority of idle times as long as it is not late. Ends with normal
/// priority.
pub(crate) struct Watchdog {
    looks: Arc<Looks>,
    /// Has the watchdog look again; it ends when this is dropped.
    wake: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Watches the calling thread, whose looks may be as `late`, from a thread that may run on `cpus` only, if they are
    /// given.
    fn start(cpus: Option<CpuList>, late: Duration) -> io::Result<Self> {
        let recorder = this_thread();
        let (due, is_urgent, is_late) = (AtomicU64::new(0), AtomicBool::new(true), AtomicBool::new(false));
        let looks = Looks { begun: Instant::now(), late, due, is_urgent, is_late };
        looks.set_due(Duration::ZERO);
        let looks = Arc::new(looks);
        let (wake, woken) = sync_channel(1);
        let watched = Arc::clone(&looks);
        let run = move || {
            let _ = cpus.map(|cpus| cpus.place_this_thread());
            strata_jail::enter_watching(recorder.cast_unsigned());
            watch(&watched, recorder, &woken);
        };
        let thread = std::thread::Builder::new().name("strata-watchdog".into()).spawn(run)?;
        Ok(Self { looks, wake: Some(wake), thread: Some(thread) })
    }

    /// Whether the recorder was late since the last call, or woken from a long sleep: the look that it begins now
    /// should wait if it can.
    pub(crate) fn was_late(&self) -> bool {
        self.looks.is_late.swap(false, Ordering::Relaxed)
    }

    /// The guest's work has ended a long sleep: the next look is as one that is late.
    pub(crate) fn was_woken(&self) {
        self.looks.is_late.store(true, Ordering::Relaxed);
    }

    /// A look has ended, which took everything unless there is `more`; the next one begins after `pause`.
    pub(crate) fn looked(&self, more: bool, pause: Duration) {
        if self.looks.set_due(pause) {
            // A wake-up that is under way is enough.
            let _ = self.wake.as_ref().map(|wake| wake.try_send(()));
        }
        // From a long sleep it is woken because the guest works: nobody could know yet that it is late.
        let is_urgent = more && self.looks.is_urgent.load(Ordering::Relaxed) || pause >= SLEEP;
        if self.looks.is_urgent.swap(is_urgent, Ordering::Relaxed) != is_urgent {
            // It keeps its priority where that is refused.
            let _ = set_policy(ITSELF, if is_urgent { Policy::Normal } else { Policy::Idle });
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // What follows, the end of a recording, is waited for.
        let _ = set_policy(ITSELF, Policy::Normal);
    }
}

/// Has the thread `recorder` run at normal priority whenever its look is late, until `woken` is closed.
fn watch(looks: &Looks, recorder: i32, woken: &Receiver<()>) {
    loop {
        let left = looks.left();
        match woken.recv_timeout(if left.is_zero() { looks.late } else { left }) {
            Ok(()) => {}
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) if looks.left().is_zero() => {
                // First the policy: a recorder that ends its look in between finds that it is to go back.
                let _ = set_policy(recorder, Policy::Normal);
                looks.is_urgent.store(true, Ordering::Relaxed);
                looks.is_late.store(true, Ordering::Relaxed);
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> libc::c_int {
        // SAFETY: the call touches no memory.
        unsafe { libc::sched_getscheduler(0) }
    }

    /// The policy of the calling thread once it is `wanted`, or after a time in which it should have become that.
    fn policy_in_time(wanted: libc::c_int, meanwhile: impl Fn()) -> libc::c_int {
        let end = Instant::now() + Duration::from_secs(30);
        while policy() != wanted && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
            meanwhile();
        }
        policy()
    }

    /// What `act` says on a thread of its own that is kept at the priority of idle times while it is not `late`, and its
    /// policy afterwards. On a busy machine it is late at any moment, unless that is a long time.
    fn watched<T: Send + 'static>(
        late: Duration,
        act: impl FnOnce(&Watchdog) -> T + Send + 'static,
    ) -> (T, libc::c_int) {
        let run = move || {
            let watchdog = Watchdog::start(None, late).unwrap();
            let printed = act(&watchdog);
            drop(watchdog);
            (printed, policy())
        };
        std::thread::spawn(run).join().unwrap()
    }

    #[test]
    fn process_that_would_stay_at_the_priority_of_idle_times_drains_always() {
        let run = || {
            let nice = CapabilitySet::SYS_NICE;
            set_capabilities(None, CapabilitySets { effective: nice, permitted: nice, inheritable: nice }).unwrap();
            setrlimit(Resource::Nice, Rlimit { current: Some(0), maximum: Some(0) }).unwrap();
            Scheduling { cpus: None, drain: Drain::Idle }.try_out().unwrap().drain
        };

        assert_eq!(std::thread::spawn(run).join().unwrap(), Drain::Always);
    }

    #[test]
    fn more_of_the_limit_is_needed_the_lower_the_nice_value_is() {
        assert_eq!([-20, -5, 0, 19].map(nice_limit), [40, 25, 20, 1]);
    }

    const SOON: Duration = Duration::from_millis(1);
    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn recorder_has_idle_priority_but_for_long_sleeps_and_the_end() {
        let (policies, at_the_end) = watched(HOUR, |watchdog| {
            [(true, SOON), (false, SOON), (true, SOON), (false, 2 * HOUR), (false, SOON)].map(|(more, pause)| {
                watchdog.looked(more, pause);
                policy()
            })
        });

        let (idle, normal) = (libc::SCHED_IDLE, libc::SCHED_OTHER);
        assert_eq!((policies, at_the_end), ([normal, idle, idle, normal, idle], normal));
    }

    #[test]
    fn recorder_that_is_late_has_normal_priority_until_it_has_taken_everything() {
        let (policies, _) = watched(SOON, |watchdog| {
            watchdog.looked(false, SOON);
            let late = policy_in_time(libc::SCHED_OTHER, || ());
            watchdog.looked(true, SOON);
            let more = policy();
            [late, more, policy_in_time(libc::SCHED_IDLE, || watchdog.looked(false, SOON))]
        });

        assert_eq!(policies, [libc::SCHED_OTHER, libc::SCHED_OTHER, libc::SCHED_IDLE]);
    }

    #[test]
    fn recorder_that_was_late_is_reported() {
        let (reported, _) = watched(SOON, |watchdog| {
            watchdog.looked(false, SOON);
            policy_in_time(libc::SCHED_OTHER, || ());
            // The watchdog says so after it has set the policy.
            let end = Instant::now() + Duration::from_secs(30);
            std::iter::from_fn(|| (Instant::now() < end).then(|| watchdog.was_late())).any(|was_late| was_late)
        });

        assert!(reported);
    }

    #[test]
    fn recorder_that_was_woken_is_reported_once() {
        let (reported, _) = watched(HOUR, |watchdog| {
            let before = watchdog.was_late();
            watchdog.was_woken();
            [before, watchdog.was_late(), watchdog.was_late()]
        });

        assert_eq!(reported, [false, true, false]);
    }

    #[test]
    fn recorder_that_was_woken_from_a_long_sleep_can_be_late_before_that_would_have_ended() {
        let (late, _) = watched(SOON, |watchdog| {
            watchdog.looked(false, HOUR);
            watchdog.looked(false, SOON);
            policy_in_time(libc::SCHED_OTHER, || ())
        });

        assert_eq!(late, libc::SCHED_OTHER);
    }

    #[test]
    fn recorder_that_drains_always_keeps_its_priority() {
        assert!(Scheduling::default().begin().is_none());
        assert_eq!(policy(), libc::SCHED_OTHER);
    }

    #[test]
    fn names_are_read_as_they_are_shown() {
        assert_eq!(Drain::ALL.map(|drain| drain.name().parse()), Drain::ALL.map(Ok));
        assert_eq!("late".parse::<Drain>(), Err(UnknownDrain));
    }
}
