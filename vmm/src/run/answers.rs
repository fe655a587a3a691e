//! What the control socket of a running VM answers.

use crate::control::directory::VmDescription;
use crate::control::protocol::{Answer, Request, Status};
use crate::machine::MachineControl;
use crate::tracing::recorder::RecorderControl;
use std::time::Instant;

/// What the control socket answers for the VM of `description`, with `recorder` if it is traced.
pub(super) fn answers(
    description: VmDescription,
    recorder: Option<RecorderControl>,
    machine: MachineControl,
) -> impl FnMut(Request) -> Answer + Send + 'static {
    let begun = Instant::now();
    move |request| {
        let is_status = request == Request::Status;
        match request {
            Request::Pause => return paused(&machine),
            Request::Resume => return resumed(&machine),
            _ => {}
        }
        let answer = match &recorder {
            Some(recorder) => recorder.ask(request),
            None if is_status => Answer::Status(Box::default()),
            None => Answer::refused("this VM is not traced; run it with --trace"),
        };
        match answer {
            Answer::Status(status) => {
                let VmDescription { name, pid, vcpus, memory, .. } = description.clone();
                let uptime_s = begun.elapsed().as_secs();
                Answer::Status(Box::new(Status { name, pid, uptime_s, vcpus, memory, trace: status.trace }))
            }
            other => other,
        }
    }
}

fn paused(machine: &MachineControl) -> Answer {
    match machine.pause() {
        Ok(()) => Answer::done("paused"),
        Err(error) => Answer::refused(error.to_string()),
    }
}

fn resumed(machine: &MachineControl) -> Answer {
    match machine.resume() {
        Ok(paused) => Answer::done(format!("resumed after {:.3} s", paused.as_secs_f64())),
        Err(error) => Answer::refused(error.to_string()),
    }
}
