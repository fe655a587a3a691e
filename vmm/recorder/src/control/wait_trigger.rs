//! Waiting for a trigger of a running VM, from outside: whoever waits decides what happens then. The other VMs of the
//! host can be frozen with it: each flight recorder gets a request for a snapshot at once.

use super::client::{self, ClientError};
use super::found_vm::FoundVm;
use super::patience::Patience;
use super::protocol::{Answer, Request, TraceStatus, TriggerStatus};
use super::socket::ControlSocket;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use strata_recording::files::trace_folder::free_snapshot;
use strata_recording::text::terminal::foreign::Foreign;
use thiserror::Error;

/// How long another VM may take to say whether it is a flight recorder.
const STATUS_LIMIT: Duration = Duration::from_secs(5);
/// Pause between two questions.
const PAUSE: Duration = Duration::from_millis(20);
/// How long a snapshot that was announced may take.
const SNAPSHOT_LIMIT: Duration = Duration::from_secs(300);
/// How long all VMs of other users may take together for their snapshots.
const OTHERS_LIMIT: Duration = Duration::from_secs(30);

/// Why there is nothing to wait for, or no more.
#[derive(Debug, Error)]
pub enum WaitError {
    /// The VM does not answer, or has ended.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Nothing is watched for.
    #[error("VM '{0}' has no triggers: arm one with `strata ctl {0} trigger add EXPR`")]
    NoTriggers(String),
    /// The time is over.
    #[error("no trigger of VM '{vm}' fired within {limit:?} and led to a snapshot or a mark")]
    TimeOver {
        /// Its name.
        vm: String,
        /// For how long it was waited.
        limit: Duration,
    },
}

/// What has happened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Happened {
    /// The triggers that led to it, as they are now.
    pub triggers: Vec<TriggerStatus>,
    /// Snapshots of other VMs.
    pub others: Vec<OtherSnapshot>,
}

/// The snapshot of another VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherSnapshot {
    /// Its name.
    pub vm: String,
    /// Its process.
    pub pid: u32,
    /// Folder of the snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Foreign<PathBuf>>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Foreign<String>>,
}

/// Waits until a trigger of `vm` has led to a snapshot (in discard mode, to a mark in the trace), for `limit` at most.
/// As soon as it has fired, those of `others` that are flight recorders make a snapshot too.
///
/// # Errors
/// When nothing is watched for, the VM ends, or the time is over.
pub fn wait(vm: &FoundVm, limit: Option<Duration>, others: &[FoundVm]) -> Result<Happened, WaitError> {
    let before = triggers(&vm.socket())?;
    if before.is_empty() {
        return Err(WaitError::NoTriggers(vm.vm.name.clone()));
    }
    let begun = Instant::now();
    let mut frozen: Option<(Instant, Vec<OtherSnapshot>)> = None;
    loop {
        let now = triggers(&vm.socket())?;
        let new: Vec<TriggerStatus> = beside(&now, &before).filter(is_done).map(|(now, _)| now.clone()).collect();
        if !new.is_empty() {
            let others = frozen.map_or_else(|| freeze(others, OTHERS_LIMIT), |(_, others)| others);
            return Ok(Happened { triggers: new, others });
        }
        let has_fired = beside(&now, &before).any(leads_to_a_snapshot);
        if has_fired && frozen.is_none() {
            frozen = Some((Instant::now(), freeze(others, OTHERS_LIMIT)));
        }
        let is_late = frozen.as_ref().is_some_and(|(since, _)| since.elapsed() > SNAPSHOT_LIMIT);
        if let Some(limit) = limit.filter(|limit| begun.elapsed() > *limit && (frozen.is_none() || is_late)) {
            return Err(WaitError::TimeOver { vm: vm.vm.name.clone(), limit });
        }
        std::thread::sleep(PAUSE);
    }
}

/// The triggers of `now`, each with what it was `before`; one that has been armed since was nothing.
fn beside<'s>(
    now: &'s [TriggerStatus],
    before: &'s [TriggerStatus],
) -> impl Iterator<Item = (&'s TriggerStatus, TriggerStatus)> {
    let was = |now: &TriggerStatus| before.iter().find(|before| before.number == now.number).cloned();
    now.iter().map(move |now| (now, was(now).unwrap_or_default()))
}

/// Whether a snapshot was taken, or could not be, or none is needed.
fn is_done((now, before): &(&TriggerStatus, TriggerStatus)) -> bool {
    now.marks > before.marks
        || now.snapshots.len() > before.snapshots.len()
        || (now.failure.is_some() && now.failure != before.failure)
}

/// Whether it has fired, and a snapshot is due.
fn leads_to_a_snapshot((now, before): (&TriggerStatus, TriggerStatus)) -> bool {
    now.due && !before.due
}

/// The triggers of the VM that serves `socket`.
///
/// # Errors
/// When it does not answer.
pub fn triggers(socket: &ControlSocket) -> Result<Vec<TriggerStatus>, ClientError> {
    Ok(trace(socket, Instant::now() + SNAPSHOT_LIMIT)?.map(|trace| trace.triggers).unwrap_or_default())
}

fn trace(socket: &ControlSocket, deadline: Instant) -> Result<Option<TraceStatus>, ClientError> {
    match client::call_until(socket, &Request::Status, deadline)? {
        Answer::Status(status) => Ok(status.trace),
        Answer::Live(_) | Answer::Balloon(_) | Answer::Done { .. } | Answer::Refused { .. } => Ok(None),
    }
}

/// Asks those of `others` for a snapshot that record into a flight recorder. Those of other users have `limit` for it
/// together.
fn freeze(others: &[FoundVm], limit: Duration) -> Vec<OtherSnapshot> {
    let mut patience = Patience::new(limit);
    let mut request = |other: &FoundVm| -> Result<Option<PathBuf>, ClientError> {
        let socket = other.socket();
        let trace = trace(&socket, patience.deadline(other.owner, STATUS_LIMIT))?;
        let Some(dir) = trace.and_then(|trace| free_snapshot(trace.dir.raw(), "trigger")) else { return Ok(None) };
        let request = Request::Snapshot { dir: dir.clone(), session: None };
        client::call_until(&socket, &request, patience.deadline(other.owner, SNAPSHOT_LIMIT))?;
        Ok(Some(dir))
    };
    let snapshot = |other: &FoundVm| {
        let (snapshot, problem) = match request(other) {
            Ok(None) => return None,
            Ok(snapshot) => (snapshot.map(Foreign::from), None),
            Err(error) => (None, Some(error.to_string().into())),
        };
        Some(OtherSnapshot { vm: other.vm.name.clone(), pid: other.vm.pid, snapshot, problem })
    };
    others.iter().filter_map(snapshot).collect()
}

/// `happened` as text for the user.
#[must_use]
pub fn text(happened: &Happened) -> String {
    let mut out = String::new();
    for TriggerStatus { trigger, last, snapshots, failure, .. } in &happened.triggers {
        // Writing to a string does not fail.
        let _ =
            writeln!(out, "trigger {trigger}: {}", last.as_ref().map_or_else(|| "fired".into(), Foreign::to_string));
        let _ = snapshots.last().iter().try_for_each(|folder| writeln!(out, "snapshot {}", folder));
        let _ = failure.iter().try_for_each(|why| writeln!(out, "no snapshot: {why}"));
    }
    for OtherSnapshot { vm, pid, snapshot, problem } in &happened.others {
        let _ = snapshot.iter().try_for_each(|folder| writeln!(out, "{vm} ({pid}): snapshot {}", folder));
        let _ = problem.iter().try_for_each(|why| writeln!(out, "{vm} ({pid}): no snapshot: {why}"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::directory::tests::description;
    use crate::control::directory::{SOCKET_FILE, VmDescription};
    use crate::control::found_vm::Owner;
    use rustix::process::geteuid;
    use std::os::unix::net::UnixListener;

    fn status(number: usize, marks: u64, snapshots: usize) -> TriggerStatus {
        TriggerStatus { number, marks, snapshots: vec!["folder".into(); snapshots], ..TriggerStatus::default() }
    }

    fn done(now: &[TriggerStatus], before: &[TriggerStatus]) -> Vec<usize> {
        beside(now, before).filter(is_done).map(|(now, _)| now.number).collect()
    }

    #[test]
    fn trigger_is_done_with_its_snapshot_and_in_discard_mode_with_its_mark() {
        let before = [status(1, 0, 1), status(2, 3, 0)];

        assert_eq!(done(&before, &before), Vec::<usize>::new());
        assert_eq!(done(&[status(1, 0, 2), status(2, 3, 0)], &before), [1]);
        assert_eq!(done(&[status(1, 0, 1), status(2, 4, 0)], &before), [2]);
    }

    #[test]
    fn other_users_vms_that_do_not_answer_have_one_deadline_together_and_are_named() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        // The system takes clients for them: nobody answers.
        let silent = folders.each_ref().map(|folder| UnixListener::bind(folder.path().join(SOCKET_FILE)).unwrap());
        let others = folders.each_ref().map(|folder| FoundVm {
            path: folder.path().into(),
            vm: VmDescription { pid: std::process::id(), ..description("a") },
            alive: true,
            owner: Owner::Other(geteuid().as_raw()),
        });

        let frozen = freeze(&others, Duration::from_millis(50));

        let was_requested = silent.map(|listener| {
            listener.set_nonblocking(true).unwrap();
            listener.accept().is_ok()
        });
        assert_eq!(was_requested, [true, false]);
        assert!(frozen.len() == 2 && frozen.iter().all(|other| other.problem.is_some()), "{frozen:?}");
    }

    #[test]
    fn triggers_are_distinguished_though_others_come_and_go_meanwhile() {
        let before = [status(1, 0, 1), status(2, 0, 5)];

        assert_eq!(done(&[status(2, 0, 5), status(3, 0, 1)], &before), [3]);
    }
}
