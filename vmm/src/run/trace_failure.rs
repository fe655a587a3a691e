//! What happens to a VM when a layer of its trace ends early, because its disk is full for instance.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use strata_machine::{ControlError, MachineControl, StopHandle};
use strata_recorder::session::{Notify, OnFailure};

/// What happens to a VM when a layer of its trace ends early.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnTraceFailure {
    /// It goes on, with the other layers.
    #[default]
    Continue,
    /// It is paused, until somebody has it go on.
    Pause,
    /// It is stopped, and the run fails.
    Stop,
}

/// A name that is none of [`OnTraceFailure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write continue, pause or stop")]
pub struct UnknownReaction;

impl OnTraceFailure {
    pub const ALL: [Self; 3] = [Self::Continue, Self::Pause, Self::Stop];

    /// The name, as on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Continue => "continue",
            Self::Pause => "pause",
            Self::Stop => "stop",
        }
    }
}

impl FromStr for OnTraceFailure {
    type Err = UnknownReaction;

    fn from_str(name: &str) -> Result<Self, UnknownReaction> {
        Self::ALL.into_iter().find(|reaction| reaction.name() == name).ok_or(UnknownReaction)
    }
}

/// Does what `reaction` says to the VM called `name`, whose machine `control` pauses and `stop` stops; `has_stopped` becomes
/// true in the latter case.
pub(super) fn on_failure(
    reaction: OnTraceFailure,
    name: String,
    control: MachineControl,
    stop: StopHandle,
    has_stopped: Arc<AtomicBool>,
    notify: Notify,
) -> Option<OnFailure> {
    match reaction {
        OnTraceFailure::Continue => None,
        OnTraceFailure::Pause => Some(Box::new(move || match control.pause() {
            // Its vCPUs are about to enter the guest.
            Err(ControlError::NotRunning) => false,
            Ok(()) | Err(ControlError::Paused) => {
                notify(&format!("the VM is paused: its trace has failed; strata ctl {name} resume lets it go on"));
                true
            }
            Err(error) => {
                notify(&format!("the VM is to be paused because its trace has failed, and cannot be: {error}"));
                true
            }
        })),
        OnTraceFailure::Stop => Some(Box::new(move || {
            notify("the VM is stopped: its trace has failed");
            has_stopped.store(true, Ordering::Relaxed);
            stop.stop();
            true
        })),
    }
}

#[cfg(test)]
mod tests {
    //! Shows: A VM whose trace fails goes on, pauses or stops, as requested.

    use super::*;
    use std::time::Duration;
    use strata_machine::test_guest::{Console, config};
    use strata_machine::{Machine, Outcome, RunOptions};
    use strata_observer::NoObserver;
    use tempfile::TempDir;

    /// `jmp` to itself.
    const SPIN: &[u8] = &[0xeb, 0xfe];

    fn options() -> RunOptions {
        RunOptions {
            observer: Arc::new(NoObserver),
            console_output: Box::new(Console::default()),
            console_input: None,
            clock: None,
            notify: Arc::new(|_: &str| ()),
            at_end: None,
        }
    }

    #[test]
    fn failure_pauses_the_vm_as_soon_as_it_runs() {
        let folder = TempDir::new().unwrap();
        let machine = Machine::new(config(&folder, SPIN)).unwrap();
        let (stop, control) = (machine.stop_handle(), machine.control());
        let has_stopped = Arc::new(AtomicBool::new(false));
        let mut react = on_failure(
            OnTraceFailure::Pause,
            "vm0".into(),
            control.clone(),
            stop.clone(),
            Arc::clone(&has_stopped),
            |_| (),
        )
        .unwrap();

        let before = react();
        let failing = std::thread::spawn(move || {
            while !react() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let states = (control.is_paused(), control.resume().is_ok(), control.is_paused());
            stop.stop();
            states
        });
        let outcome = machine.run(options()).unwrap();

        assert!(!before && matches!(outcome, Outcome::Stopped), "{outcome:?}");
        assert_eq!((failing.join().unwrap(), has_stopped.load(Ordering::Relaxed)), ((true, true, false), false));
    }

    #[test]
    fn failure_stops_the_vm_also_before_it_runs() {
        let folder = TempDir::new().unwrap();
        let machine = Machine::new(config(&folder, SPIN)).unwrap();
        let (stop, control) = (machine.stop_handle(), machine.control());
        let has_stopped = Arc::new(AtomicBool::new(false));
        let react = on_failure(OnTraceFailure::Stop, "vm0".into(), control, stop, Arc::clone(&has_stopped), |_| ());

        let done = react.unwrap()();
        let outcome = machine.run(options()).unwrap();

        assert!(done && matches!(outcome, Outcome::Stopped), "{outcome:?}");
        assert!(has_stopped.load(Ordering::Relaxed));
    }

    #[test]
    fn names_are_those_of_the_command_line() {
        let names = OnTraceFailure::ALL.map(OnTraceFailure::name);

        assert_eq!(names.map(str::parse), OnTraceFailure::ALL.map(Ok));
        assert_eq!("halt".parse::<OnTraceFailure>(), Err(UnknownReaction));
    }
}
