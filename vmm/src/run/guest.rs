//! Runs a machine with this process's standard input and output as its console.

use super::console::{self, Keyboard};
use super::failure::RunFailure;
use super::limits::ConsoleLimits;
use signal_hook::iterator::Signals;
use std::sync::Arc;
use strata_clock::VcpuClocks;
use strata_jail::policy::Thread;
use strata_machine::{AtEnd, Machine, Outcome, RunOptions, StopHandle};
use strata_observer::Observer;
use strata_recorder::session::Notify;
use strata_recording::stop_signals::heeded;

/// How a machine ran.
pub(super) struct Ran {
    /// How it ended.
    pub outcome: Outcome,
    /// Bytes of its console that were dropped because nobody read standard output.
    pub console_dropped: u64,
}

/// Runs `machine`, whose console has `limits`, until it ends or a signal asks to stop; then `at_end` may look at its
/// memory. `notify` gets what the user should know meanwhile.
pub(super) fn run_machine(
    machine: Machine,
    limits: &ConsoleLimits,
    observer: Arc<dyn Observer>,
    clock: Option<Arc<VcpuClocks>>,
    notify: Notify,
    at_end: Option<AtEnd>,
) -> Result<Ran, RunFailure> {
    stop_on_signals(machine.stop_handle())?;
    let (_keyboard, console_input) = Keyboard::take();
    let screen = console::screen(limits.of_console(&observer)).map_err(RunFailure::Console)?;
    let (console_output, notify) = (screen.screen(), Arc::new(notify));
    let options = RunOptions { observer, console_output, console_input, clock, notify, at_end };
    let outcome = machine.run(options)?;
    Ok(Ran { outcome, console_dropped: screen.finish() })
}

/// From now on the usual signals stop the run in good order instead of killing it.
fn stop_on_signals(stop: StopHandle) -> Result<(), RunFailure> {
    let mut signals = Signals::new(heeded()).map_err(RunFailure::Signals)?;
    let wait = move || {
        strata_jail::enter(Thread::Signals);
        signals.forever().for_each(|_| stop.stop());
    };
    std::thread::Builder::new().name("strata-signals".into()).spawn(wait).map_err(RunFailure::Signals)?;
    Ok(())
}
