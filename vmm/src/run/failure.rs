//! Why a guest was not run, or its recording is not complete.

use crate::agent::AgentError;
use crate::agentless::AgentlessError;
use crate::bootable_disk::BootableDiskError;
use crate::ready_made_module::ReadyMadeError;
use std::io;
use std::path::PathBuf;
use strata_jail::JailError;
use strata_jail::user::User;
use strata_machine::{MachineError, VsockError};
use strata_recorder::control::directory::DirectoryError;
use strata_recorder::control::server::ServerError;
use strata_recorder::recorder::RecorderError;
use strata_recorder::region::RegionError;
use strata_recorder::region::mapped_file::MappedFileError;
use strata_recorder::session::RequestError;
use strata_recording::files::trace_folder::TraceFolderError;
use strata_recording::text::terminal::shell_path;
use thiserror::Error;

/// Why a guest was not run, or its recording is not complete.
#[derive(Debug, Error)]
pub enum RunFailure {
    /// The recording cannot be had as it is requested.
    #[error(transparent)]
    Recording(#[from] RequestError),
    /// The trace folder cannot be used.
    #[error(transparent)]
    TraceFolder(#[from] TraceFolderError),
    /// The trace folder cannot be had as the user that the VM runs as.
    #[error(
        "the VM runs as the user {}, who cannot have this trace folder: give one that this user may write, or choose another \
         user with --user (`--user root` stays root)",
        user.uid
    )]
    TraceFolderOfUser {
        /// The user.
        user: User,
        #[source]
        source: TraceFolderError,
    },
    /// There is no disk to boot from.
    #[error("there is no disk to boot from: name one with --image, or a kernel with --kernel")]
    NoDisk,
    /// The guest cannot be booted from its disk.
    #[error(transparent)]
    BootableDisk(#[from] BootableDiskError),
    /// The guest cannot be traced without an agent.
    #[error(transparent)]
    Agentless(#[from] AgentlessError),
    /// The agent cannot be used with this guest.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// There is no ready-made agent for this guest.
    #[error(transparent)]
    ReadyMade(#[from] ReadyMadeError),
    /// A file cannot be read.
    #[error("cannot read '{}': check the path and its permissions", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// This host's KVM does not run stock guests.
    #[error("{0}; `strata doctor` says more")]
    Kvm(String),
    /// The trace region cannot be made.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The VMM's own rings cannot be made.
    #[error(transparent)]
    Rings(#[from] MappedFileError),
    /// The machine cannot be built or started.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// There is no socket for the socket device.
    #[error(transparent)]
    Vsock(#[from] VsockError),
    /// The recording cannot be written.
    #[error(transparent)]
    Recorder(#[from] RecorderError),
    /// There is no place for the VM's region and control socket.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The process cannot be confined.
    #[error(transparent)]
    Jail(#[from] JailError),
    /// The VM cannot be controlled.
    #[error(transparent)]
    Control(#[from] ServerError),
    /// The recording failed; what is in the region can still be had.
    #[error(
        "the recording is not complete; `strata recover {} -o DIR` gets what is left in the trace region",
        shell_path(region)
    )]
    Incomplete {
        /// File of the region.
        region: PathBuf,
        /// What went wrong.
        #[source]
        source: RecorderError,
    },
    /// Standard output cannot be the guest's console.
    #[error("cannot write the guest's console to standard output: redirect it to a file, or to /dev/null")]
    Console(#[source] io::Error),
    /// Signals cannot be handled.
    #[error("cannot handle signals")]
    Signals(#[source] io::Error),
}
