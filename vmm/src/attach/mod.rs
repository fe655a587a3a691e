//! `strata attach`: records a VM that another process runs, from outside: what the host's kernel does for it, and its guest
//! where that has a trace region ([`region`]) or gets one ([`hot_plug`]).
//!
//! The recorder is that of `strata run`. The VM is distinguished by the process's
//! descriptors and KVM's debugfs ([`vm`]), and followed from there ([`follower`]).

mod answers;
mod failure;
mod follower;
pub mod hot_plug;
pub mod libvirt;
pub mod machines;
mod process;
mod qmp;
pub mod region;
mod steps;
pub mod stop;
mod threads;
mod unplugging;
mod vm;

use crate::run::descriptors;
pub use failure::AttachError;
use region::{GuestRegion, JOIN_LIMIT};
use shared_ring::layout::Mode;
use signal_hook::iterator::Signals;
use std::fmt;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};
use steps::Checked;
use strata_jail::JailRequest;
use strata_jail::policy::Thread;
use strata_recorder::session::{Notify, RecordingRequest};
use strata_recording::manifest::Manifest;
use strata_recording::text::terminal::foreign::Foreign;

/// Which VM to record, and how.
#[derive(Clone, Debug)]
pub struct AttachRequest {
    /// The process that runs the VM.
    pub pid: u32,
    /// Descriptor of the VM, where the process has several.
    pub vm: Option<u32>,
    /// Name of the VM in the recording; without it, that of its domain, else that of its process and the process's number.
    pub name: Option<String>,
    /// Name of the domain that the VM is to libvirt, where it was named so.
    pub domain: Option<Foreign<String>>,
    /// File of the trace region that the VM has as a device; without it, nothing of the guest is recorded.
    pub region: Option<PathBuf>,
    /// QMP socket of the VM's QEMU, which is given a region through it for as long as the recording lasts.
    pub qmp: Option<PathBuf>,
    /// What is recorded.
    pub recording: RecordingRequest,
    /// Time after which the recording ends by itself.
    pub duration: Option<Duration>,
    /// What this process gives up meanwhile.
    pub jail: JailRequest,
}

impl AttachRequest {
    /// Whether the guest is recorded, too.
    const fn has_guest(&self) -> bool {
        self.region.is_some() || self.qmp.is_some()
    }
}

/// Why a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The VM, or its process, ended.
    VmEnded,
    /// `strata ctl` asked for it.
    Detached,
    /// A signal asked for it.
    Signal,
    /// Its time was over.
    TimeOver,
    /// The layer could not be written or read any more.
    TraceFailed,
    /// Somebody has cut the region's file short.
    RegionCut,
}

impl fmt::Display for Ending {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::VmEnded => "the VM ended",
            Self::Detached => "detached by strata ctl; the VM goes on",
            Self::Signal => "detached by a signal; the VM goes on",
            Self::TimeOver => "detached when its time was over; the VM goes on",
            Self::TraceFailed => "detached because the trace failed; the VM goes on",
            Self::RegionCut => "detached because the file of the trace region was cut short",
        })
    }
}

/// How a recording went.
#[derive(Debug)]
pub struct AttachReport {
    /// Why it ended.
    pub ending: Ending,
    pub manifest: Manifest,
    /// Whether QEMU keeps the region that it was given, which was reported.
    pub stays_plugged: bool,
}

/// Records what the host's kernel does for the VM that `request` names until that ends, a signal or `strata ctl` asks
/// to stop, or the time is over. `notify` gets what the user should know meanwhile, a line each, on any thread.
///
/// # Errors
/// Nothing was recorded, and nothing is left behind; or the recording is not complete.
pub fn attach(request: &AttachRequest, notify: Notify) -> Result<AttachReport, AttachError> {
    descriptors::raise_limit();
    Checked::check(request, notify)?.claim()?.trace_host()?.reach_guest()?.record()?.finish()
}

fn report_begin(request: &AttachRequest, name: &str, notify: Notify) {
    let (trace, pid) = (request.recording.files.trace.display(), request.pid);
    let other = request.domain.as_ref().filter(|domain| *domain != name);
    if let Some(domain) = other.filter(|_| request.name.is_none()) {
        notify(&format!(
            "the trace calls libvirt's domain {} {name}: names have only letters, digits, '.', '_' and '-' (--name sets another)",
            domain.word()
        ));
    }
    match request.recording.layers.mode {
        Mode::Discard => notify(&format!("attached to process {pid} as {name}, tracing into {trace}; Ctrl-C detaches")),
        Mode::FlightRecorder => notify(&format!(
            "attached to process {pid} as {name}, flight recorder on; written into {trace} at the end (Ctrl-C detaches); \
             strata ctl {name} snapshot DIR writes it meanwhile"
        )),
    }
}

/// Waits until the recording is to end, for `limit` at most if there is one. Where `guest` does not begin to record
/// meanwhile, it is said.
fn wait(endings: &Receiver<Ending>, limit: Option<Duration>, guest: Option<&GuestRegion>, notify: Notify) -> Ending {
    let begun = Instant::now();
    if let Some(guest) = guest.filter(|_| limit.is_none_or(|limit| limit > JOIN_LIMIT)) {
        match endings.recv_timeout(JOIN_LIMIT) {
            Ok(ending) => return ending,
            Err(_) if guest.region.has_guest() => {}
            Err(_) => notify(
                "the guest does not record: is the agent's kernel module loaded in it (`modprobe strata`; `dmesg` says what is \
                 wrong), and does the VM have the region's device (ivshmem-plain or virtio-pmem)? The host's kernel is recorded \
                 meanwhile",
            ),
        }
    }
    let limit = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
    let ending = match limit {
        Some(limit) => endings.recv_timeout(limit),
        None => endings.recv().map_err(|_| RecvTimeoutError::Disconnected),
    };
    match ending {
        Ok(ending) => ending,
        Err(RecvTimeoutError::Timeout) => Ending::TimeOver,
        // All who could tell are gone: so is the VM's follower.
        Err(RecvTimeoutError::Disconnected) => Ending::VmEnded,
    }
}

/// From now on `signals`, and those that have come, end the recording.
fn end_by_signals(mut signals: Signals, ending: Sender<Ending>) -> Result<(), AttachError> {
    let wait = move || {
        strata_jail::enter(Thread::Signals);
        // The recording may have ended already.
        signals.forever().for_each(|_| {
            let _ = ending.send(Ending::Signal);
        });
    };
    std::thread::Builder::new().name("strata-signals".into()).spawn(wait).map_err(AttachError::Threads)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use strata_recorder::session::RequestError;

    #[test]
    fn first_reason_to_end_counts_and_time_is_one() {
        let (ending, endings) = channel();
        ending.send(Ending::Detached).unwrap();
        ending.send(Ending::VmEnded).unwrap();

        let wait = |limit| wait(&endings, limit, None, |_| ());
        assert_eq!(wait(None), Ending::Detached);
        assert_eq!(wait(Some(Duration::ZERO)), Ending::VmEnded);
        assert_eq!(wait(Some(Duration::from_millis(1))), Ending::TimeOver);
        drop(ending);
        assert_eq!(wait(None), Ending::VmEnded);
    }

    #[test]
    fn size_of_a_flight_recorder_is_refused_before_anything_is_looked_at() {
        let mut recording = RecordingRequest::new("/nonexistent/trace");
        (recording.files.max_size, recording.layers.mode) = (Some(1 << 30), Mode::FlightRecorder);
        let (region, qmp, duration, jail) = (None, None, None, JailRequest::default());
        let request =
            AttachRequest { pid: u32::MAX, vm: None, name: None, domain: None, region, qmp, recording, duration, jail };

        let refused = attach(&request, |_| ());

        assert!(matches!(refused, Err(AttachError::Recording(RequestError::BoundedBySize))));
    }
}
