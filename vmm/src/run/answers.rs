//! What the control socket of a running VM answers.

use super::limits::LimitedDevices;
use crate::confinement::refusal;
use std::time::Instant;
use strata_jail::Closed;
use strata_machine::{BalloonState, ControlError, MachineControl, StopHandle};
use strata_recorder::control::directory::VmDescription;
use strata_recorder::control::protocol::{Answer, BalloonStatus, Live, Request, Status};
use strata_recorder::recorder::RecorderControl;

/// What the control socket answers for the VM of `description`, with `recorder` if it is traced, whose
/// devices are `limited`.
pub(super) fn answers(
    description: VmDescription,
    recorder: Option<RecorderControl>,
    machine: MachineControl,
    stop: StopHandle,
    limited: LimitedDevices,
    jail: Closed,
) -> impl FnMut(Request) -> Answer + Send + 'static {
    let begun = Instant::now();
    move |request| {
        let is_status = request == Request::Status;
        match &request {
            Request::Pause => return paused(&machine),
            Request::Resume => return resumed(&machine),
            Request::Balloon { bytes } => return balloon(&machine, *bytes),
            Request::Stop => {
                stop.stop();
                return Answer::done("the guest is being stopped, and its trace completed");
            }
            Request::Detach => {
                return Answer::refused(
                    "strata itself runs this VM: its recording ends with it; `strata ctl VM stop` stops both",
                );
            }
            _ => {}
        }
        if let Some(refusal) = refusal(&request, &jail) {
            return refusal;
        }
        let answer = match &recorder {
            Some(recorder) => recorder.request(request),
            None if is_status => Answer::Status(Box::default()),
            None => Answer::refused("this VM is not traced; run it with --trace"),
        };
        match answer {
            Answer::Status(status) => Answer::Status(Box::new(Status {
                paused: machine.is_paused(),
                jail: Some(jail.summary.clone().into()),
                balloon: machine.balloon().ok().map(balloon_status),
                limits: limited.status(),
                ..description.status(begun.elapsed(), status.trace)
            })),
            Answer::Live(live) => {
                let VmDescription { name, pid, .. } = description.clone();
                Answer::Live(Box::new(Live {
                    name: name.into(),
                    pid,
                    balloon: machine.balloon().ok().map(balloon_status),
                    ..*live
                }))
            }
            other => other,
        }
    }
}

/// Wants so many `bytes` back, or only says how the balloon is.
fn balloon(machine: &MachineControl, bytes: Option<u64>) -> Answer {
    let state: Result<BalloonState, ControlError> = match bytes {
        Some(bytes) => machine.want_back(bytes),
        None => machine.balloon(),
    };
    match state {
        Ok(state) => Answer::Balloon(balloon_status(state)),
        Err(error) => Answer::refused(error.to_string()),
    }
}

/// The state of a balloon, as the protocol has it.
const fn balloon_status(state: BalloonState) -> BalloonStatus {
    let BalloonState { wanted, given, reported, refused, is_driven } = state;
    BalloonStatus { wanted, given, reported, refused, driven: is_driven }
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
