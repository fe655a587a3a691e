//! Least privilege: what the process of a running VM, or of a recording, may still do.
//!
//! Everything that needs root is opened first: the tracing instances, `/dev/kvm`, disks. Then [`Jail::close`] gives up
//! user, capabilities, files and system calls, before any thread is started; each thread then gives up more
//! ([`enter`]). `docs/jail.md` shows the [table](policy) of what is left to whom.
//!
//! A part that this kernel lacks is named and done without. A part that it has and refuses ends the run.

pub mod blocked_signals;
pub mod files;
pub mod filter;
pub mod inherited;
mod last_word;
pub mod policy;
mod privileges;
pub mod user;

use files::Places;
use filter::{Filter, Offence};
use inherited::Inherited;
use policy::Thread;
use rustix::io::Errno;
use rustix::process::geteuid;
use rustix::thread::CapabilitySet;
use std::path::PathBuf;
use std::sync::OnceLock;
use thiserror::Error;
use user::{User, UserError};

/// The filters of threads that are started from now on. One for the process, as what they filter is.
static FILTERS: OnceLock<Filters> = OnceLock::new();

/// The filters of each kind of thread.
#[derive(Debug)]
struct Filters {
    offence: Offence,
    of_threads: Vec<(Thread, Filter)>,
}

/// How a VM's process is confined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// A forbidden system call ends the process.
    #[default]
    On,
    /// A forbidden system call is named in the kernel's log, and done. All else as when it is on.
    Log,
    /// Not at all: the process keeps the rights that it was started with.
    Off,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::On, Self::Log, Self::Off];

    /// The name, as on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Log => "log",
            Self::Off => "off",
        }
    }
}

/// Whom a process becomes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NewUser {
    /// The one who called sudo, if somebody did.
    #[default]
    Caller,
    /// This one, as [`User::choose`] takes it.
    Named(String),
    /// Nobody else.
    Same,
}

/// What the command line says about the jail.
#[derive(Clone, Debug, Default)]
pub struct JailRequest {
    /// How the process is confined.
    pub mode: Mode,
    /// The user that it becomes.
    pub user: NewUser,
    /// Further folders that it may write.
    pub writable: Vec<PathBuf>,
    /// Descriptors that the program was started with: they are closed.
    pub inherited: Inherited,
}

/// Why a VM's process cannot be confined.
#[derive(Debug, Error)]
pub enum JailError {
    /// The user cannot be had.
    #[error(transparent)]
    User(#[from] UserError),
    /// A user, or folders, for a jail that is off.
    #[error("--user and --writable need the jail: leave out --jail off")]
    Off,
    /// The kernel refused to give something up.
    #[error("cannot give up {what}; `--jail off` goes on without")]
    Kept {
        /// What.
        what: &'static str,
        /// What the kernel said.
        #[source]
        source: Errno,
    },
    /// Landlock refused.
    #[error("cannot give up files (landlock); `--jail off` goes on without")]
    Files(#[from] landlock::RulesetError),
    /// A filter cannot be made.
    #[error("cannot make the filters of system calls; `--jail off` goes on without")]
    Policy(#[from] seccompiler::BackendError),
    /// The kernel refused a filter.
    #[error("cannot give up system calls (seccomp); `--jail off` goes on without")]
    Filter(#[from] seccompiler::Error),
    /// A folder cannot be found.
    #[error("--writable '{}': there is no such folder", path.display())]
    NoFolder {
        /// The folder.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
}

/// The jail of a VM that is being prepared: still open.
#[derive(Clone, Debug)]
pub struct Jail {
    mode: Mode,
    user: Option<User>,
    writable: Vec<PathBuf>,
    inherited: Inherited,
}

impl Jail {
    /// The jail that `request` asks for.
    ///
    /// # Errors
    /// The user or a folder does not exist.
    pub fn choose(request: &JailRequest) -> Result<Self, JailError> {
        let user = match request.mode {
            Mode::Off if matches!(request.user, NewUser::Named(_)) || !request.writable.is_empty() => {
                return Err(JailError::Off);
            }
            Mode::Off => None,
            Mode::On | Mode::Log => match &request.user {
                NewUser::Caller => User::choose(None)?,
                NewUser::Named(name) => User::choose(Some(name))?,
                NewUser::Same => None,
            },
        };
        let writable = request
            .writable
            .iter()
            .map(|path| path.canonicalize().map_err(|source| JailError::NoFolder { path: path.clone(), source }));
        let inherited = request.inherited.clone();
        Ok(Self { mode: request.mode, user, writable: writable.collect::<Result<_, _>>()?, inherited })
    }

    /// How the process will be confined.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Whom the VM will run as, if not as who started it.
    #[must_use]
    pub const fn user(&self) -> Option<User> {
        self.user
    }

    /// Does `deed` with the permissions of the user that the VM will run as: what it makes is that user's.
    ///
    /// # Errors
    /// That user cannot be had.
    pub fn act<T>(&self, deed: impl FnOnce() -> T) -> Result<T, JailError> {
        match self.user {
            Some(user) => user.act(deed).map_err(|source| JailError::Kept { what: "root for files", source }),
            None => Ok(deed()),
        }
    }

    /// Gives up everything that is not needed any more, in the calling thread, which is one of the kind `starter`, and
    /// those that it starts from now on. What is written lies in `places`.
    ///
    /// # Errors
    /// The kernel refuses a part that it has.
    pub fn close(self, starter: Thread, mut places: Places) -> Result<Closed, JailError> {
        if self.mode == Mode::Off {
            return Ok(Closed { summary: "off".into(), missing: Vec::new(), places: None });
        }
        self.inherited.close();
        places.offered.extend(self.writable);
        privileges::limit();
        let kept = give_up_root(self.user, &places)?;
        privileges::no_new().map_err(|source| JailError::Kept { what: "new privileges", source })?;
        let mut missing = Vec::new();
        let landlock = places.confine()?;
        if landlock.is_none() {
            missing.push("this kernel has no landlock: files are limited by their permissions alone");
        }
        let is_filtered = filter::is_available();
        if is_filtered {
            let offence = if self.mode == Mode::Log { Offence::Log } else { Offence::Kill };
            let of_threads = Thread::ALL.into_iter().map(|thread| Ok((thread, Filter::new(thread, offence, None)?)));
            let filters = Filters { offence, of_threads: of_threads.collect::<Result<Vec<_>, JailError>>()? };
            if offence == Offence::Kill {
                last_word::prepare().map_err(|source| JailError::Kept { what: "handling SIGSYS", source })?;
            }
            FILTERS.get_or_init(|| filters).apply(starter)?;
        } else {
            missing.push("this kernel has no seccomp: all its system calls can be reached");
        }
        let summary = summary(kept, landlock, is_filtered, self.mode);
        Ok(Closed { summary, missing, places: landlock.map(|_| places) })
    }
}

/// Confines this process as `mode` says: one of its own, made for what is a `thread`'s to do, which keeps of its capabilities
/// `kept` and changes files in `places` only.
///
/// # Errors
/// The kernel refuses a part that it has.
pub fn confine_process(mode: Mode, thread: Thread, kept: CapabilitySet, places: &Places) -> Result<(), JailError> {
    let refused = |what| move |source| JailError::Kept { what, source };
    if mode == Mode::Off {
        return Ok(());
    }
    privileges::limit();
    privileges::empty_bounding_set();
    let permitted = rustix::thread::capabilities(None).map_err(refused("capabilities"))?.permitted;
    privileges::keep_only(permitted & kept).map_err(refused("capabilities"))?;
    privileges::no_new().map_err(refused("new privileges"))?;
    places.confine()?;
    if filter::is_available() {
        let offence = if mode == Mode::Log { Offence::Log } else { Offence::Kill };
        let filter = Filter::new(thread, offence, None)?;
        if offence == Offence::Kill {
            last_word::prepare().map_err(refused("handling SIGSYS"))?;
        }
        filter.apply()?;
    }
    Ok(())
}

/// Becomes `user` and gives up all capabilities, which are returned as far as they are kept: root who stays root keeps
/// the one that opens files of others if it cannot write `places` otherwise.
fn give_up_root(user: Option<User>, places: &Places) -> Result<CapabilitySet, JailError> {
    let refused = |what| move |source| JailError::Kept { what, source };
    let writes = || places.written.iter().chain(&places.offered).all(|folder| tempfile::tempfile_in(folder).is_ok());
    let none = CapabilitySet::empty();
    let kept = match user {
        None if geteuid().is_root() && !privileges::without(writes).map_err(refused("capabilities"))? => {
            rustix::thread::capabilities(None).map_err(refused("capabilities"))?.permitted & CapabilitySet::DAC_OVERRIDE
        }
        _ => none,
    };
    privileges::empty_bounding_set();
    if let Some(user) = user {
        user.become_for_good().map_err(refused("root"))?;
    }
    privileges::keep_only(kept).map_err(refused("capabilities"))?;
    Ok(kept)
}

fn summary(kept: CapabilitySet, landlock: Option<u32>, is_filtered: bool, mode: Mode) -> String {
    let mut parts = vec![format!("user {}", geteuid().as_raw())];
    parts.push(if kept.is_empty() { "no capabilities".into() } else { "CAP_DAC_OVERRIDE".into() });
    parts.extend(landlock.map(|version| format!("landlock {version}")));
    parts.extend(is_filtered.then(|| if mode == Mode::Log { "seccomp that logs".into() } else { "seccomp".into() }));
    parts.join(", ")
}

/// A jail that is closed.
#[derive(Clone, Debug)]
pub struct Closed {
    /// What is in force, one line.
    pub summary: String,
    /// What this kernel lacks, a line each.
    pub missing: Vec<&'static str>,
    /// Where files can be written; `None` where only their permissions say so.
    pub places: Option<Places>,
}

/// Confines the calling thread as one of the kind `thread`. Without effect where no jail was closed.
///
/// A thread that cannot be confined ends the process: it would run with more rights than it was promised to have.
pub fn enter(thread: Thread) {
    let Some(filters) = FILTERS.get() else { return };
    or_abort(thread, filters.apply(thread));
}

/// The same for a [`Thread::Watchdog`] of the thread with the number `watched`.
pub fn enter_watching(watched: u32) {
    let Some(filters) = FILTERS.get() else { return };
    match Filter::new(Thread::Watchdog, filters.offence, Some(watched)) {
        Ok(filter) => or_abort(Thread::Watchdog, filter.apply()),
        Err(error) => or_abort(Thread::Watchdog, Err(error)),
    }
}

fn or_abort<E: std::fmt::Display>(thread: Thread, confined: Result<(), E>) {
    if let Err(error) = confined {
        eprintln!("strata: cannot confine the thread '{}': {error}", thread.name());
        std::process::abort();
    }
}

impl Filters {
    fn apply(&self, thread: Thread) -> Result<(), seccompiler::Error> {
        let of_thread = self.of_threads.iter().filter(|(kind, _)| *kind == thread);
        of_thread.into_iter().try_for_each(|(_, filter)| filter.apply())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_that_lacks_what_it_would_keep_is_confined_all_the_same() {
        let confined = std::thread::spawn(|| {
            privileges::keep_only(CapabilitySet::empty()).unwrap();
            confine_process(Mode::On, Thread::Unplug, CapabilitySet::DAC_OVERRIDE, &Places::default())
        });

        assert!(confined.join().unwrap().is_ok());
    }
}
