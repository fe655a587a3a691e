//! Runs a machine with this process's standard input and output as its console.

use super::console::{self, Keyboard};
use super::failure::RunFailure;
use crate::clock::VcpuClocks;
use crate::machine::{Machine, Observer, Outcome, RunOptions, StopHandle};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::Arc;

/// Runs `machine` until it ends or a signal asks to stop.
pub(super) fn run_machine(
    machine: Machine,
    observer: Arc<dyn Observer>,
    clock: Option<Arc<VcpuClocks>>,
) -> Result<Outcome, RunFailure> {
    stop_on_signals(machine.stop_handle())?;
    let (_keyboard, console_input) = Keyboard::take();
    let options = RunOptions { observer, console_output: console::screen(), console_input, clock };
    Ok(machine.run(options)?)
}

/// From now on the usual signals stop the run in good order instead of killing it.
fn stop_on_signals(stop: StopHandle) -> Result<(), RunFailure> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(RunFailure::Signals)?;
    let wait = move || signals.forever().for_each(|_| stop.stop());
    std::thread::Builder::new().name("strata-signals".into()).spawn(wait).map_err(RunFailure::Signals)?;
    Ok(())
}
