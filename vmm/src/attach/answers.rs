//! What the control socket of an attached recording answers.

use super::Ending;
use crate::confinement::refusal;
use std::sync::mpsc::Sender;
use std::time::Instant;
use strata_jail::Closed;
use strata_recorder::control::directory::VmDescription;
use strata_recorder::control::protocol::{Answer, Live, Request, Status};
use strata_recorder::recorder::RecorderControl;

/// What the control socket answers for the recording of `description` under `jail`; `ending` hears when the recording is
/// to end.
pub fn answers(
    description: VmDescription,
    recorder: RecorderControl,
    ending: Sender<Ending>,
    jail: Closed,
) -> impl FnMut(Request) -> Answer + Send + 'static {
    let begun = Instant::now();
    move |request| match request {
        Request::Pause | Request::Resume => Answer::refused(
            "another process runs this VM: pause it there; strata only records what the host does for it",
        ),
        Request::Balloon { .. } => Answer::refused("another process runs this VM: ask that one for the guest's memory"),
        Request::Stop => {
            Answer::refused("another process runs this VM: stop it there; `strata ctl VM detach` ends the recording")
        }
        Request::Detach => match ending.send(Ending::Detached) {
            Ok(()) => Answer::done("detached; the VM goes on, and the recording is being completed"),
            Err(_) => Answer::refused("the recording is ending already"),
        },
        request => match refusal(&request, &jail).unwrap_or_else(|| recorder.request(request)) {
            Answer::Status(status) => Answer::Status(Box::new(Status {
                jail: Some(jail.summary.clone().into()),
                ..description.status(begun.elapsed(), status.trace)
            })),
            Answer::Live(live) => {
                let VmDescription { name, pid, attached, .. } = description.clone();
                Answer::Live(Box::new(Live { name: name.into(), pid, attached, ..*live }))
            }
            other => other,
        },
    }
}
