//! A Linux host with hardware virtualisation, and a script to run on it: on this machine or on an emulated one.

use crate::machine::direct::{self, DirectError};
use crate::machine::nested::{self, NestedError, NestedHost};
use crate::process;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Chooses the host when it is set, to `direct` or `nested`.
pub const CHOICE_VARIABLE: &str = "STRATA_LAB_HOST";

/// What a guest's kernel command line begins with: `$GUEST` in scripts. A kernel that tests its ciphers at boot computes for
/// longer than it boots.
pub(crate) const GUEST_CMDLINE: &str = "console=ttyS0 quiet panic=-1 cryptomgr.notests";

/// A shell script (POSIX, run by busybox) and the files that it uses.
///
/// The script finds the files in the folder `$LAB`, which is also its working directory and first on its `PATH`, and
/// leaves its results in the folder `$LAB_OUT`. A guest's kernel command line begins with `$GUEST`.
#[derive(Clone, Debug)]
pub struct HostRun {
    /// The name of the run: a folder below [`crate::paths::Paths::runs`], replaced when it is there.
    pub name: String,
    /// Names in `$LAB`, and the files of this machine that they stand for.
    pub files: Vec<(String, PathBuf)>,
    /// The script's text.
    pub script: String,
    /// The RAM of an emulated host, in MiB.
    pub memory_mib: u32,
    /// The time after which the run is killed: of an emulated host its own, which no other work on this machine
    /// shortens.
    pub timeout: Duration,
    /// Added to the kernel command line of an emulated host. Without `tsc=reliable` there, its kernel gives up the
    /// TSC as a clock source.
    pub kernel_arguments: String,
    /// The persistent memory of an emulated host, its `/dev/pmem0`: this file, of some multiple of 128 MiB. A script
    /// that leaves `/tmp/crash` has the host crash once its results are safe.
    pub persistent_memory: Option<PathBuf>,
}

impl HostRun {
    /// A run of `script` with usual limits: 4 GiB, five minutes, a reliable TSC.
    #[must_use]
    pub fn new(name: &str, script: &str) -> Self {
        Self {
            name: name.to_owned(),
            files: Vec::new(),
            script: script.to_owned(),
            memory_mib: 4096,
            timeout: Duration::from_secs(300),
            kernel_arguments: "tsc=reliable".to_owned(),
            persistent_memory: None,
        }
    }

    /// Adds the file `path` as `$LAB/name`.
    #[must_use]
    pub fn file(mut self, name: &str, path: &Path) -> Self {
        self.files.push((name.to_owned(), path.to_path_buf()));
        self
    }
}

/// What came of a run whose script came to its end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HostResult {
    /// The script's exit status.
    pub status: i32,
    /// What the script left in `$LAB_OUT`.
    pub output: PathBuf,
    /// What the script wrote to its standard output and error.
    pub script_log: PathBuf,
    /// The console of the emulated host.
    pub console_log: Option<PathBuf>,
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The emulated host failed.
    #[error(transparent)]
    Nested(#[from] NestedError),
    /// The run on this machine failed.
    #[error(transparent)]
    Direct(#[from] DirectError),
    /// The environment names no host that we know.
    #[error("{CHOICE_VARIABLE} is {0:?}: set it to direct or nested, or unset it")]
    Choice(String),
    /// The run's script failed.
    #[error("the script of run {name} ended with status {status} after \"{last_line}\"; see {}", log.display())]
    Script {
        /// The last line that it wrote.
        last_line: String,
        /// Name of the run.
        name: String,
        /// The script's exit status.
        status: i32,
        /// What the script wrote.
        log: PathBuf,
    },
}

impl HostResult {
    /// Turns a script's failure into an error.
    ///
    /// # Errors
    ///
    /// When the script's status is not 0.
    pub fn success(self, name: &str) -> Result<Self, HostError> {
        if self.status == 0 {
            Ok(self)
        } else {
            let last_line = last_line(&self.script_log, |_| true).unwrap_or_default();
            Err(HostError::Script { last_line, name: name.to_owned(), status: self.status, log: self.script_log })
        }
    }
}

/// The last line of the file `log` that is `wanted`.
pub(crate) fn last_line(log: &Path, wanted: fn(&str) -> bool) -> Option<String> {
    // a guest's console may be in it, whose bytes need not be text
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.lines().map(str::trim).rfind(|line| wanted(line)).map(str::to_owned)
}

/// Where scripts are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKind {
    /// On this machine, whose KVM uses hardware virtualisation.
    Direct,
    /// On an emulated machine.
    Nested,
}

impl HostKind {
    /// The kind that [`CHOICE_VARIABLE`] asks for, else the one that `strata doctor` finds fit.
    ///
    /// # Errors
    ///
    /// When the variable is set to something else.
    pub fn detect(strata: &Path) -> Result<Self, HostError> {
        match std::env::var(CHOICE_VARIABLE) {
            Ok(choice) => parse_choice(&choice),
            Err(_) => Ok(run_doctor(strata)),
        }
    }
}

fn parse_choice(choice: &str) -> Result<HostKind, HostError> {
    match choice {
        "direct" => Ok(HostKind::Direct),
        "nested" => Ok(HostKind::Nested),
        other => Err(HostError::Choice(other.to_owned())),
    }
}

/// A doctor that fails or says anything but `hardware` means the emulated host, which works everywhere.
fn run_doctor(strata: &Path) -> HostKind {
    process::capture_any(Command::new(strata).args(["doctor", "--json"]))
        .map_or(HostKind::Nested, |report| kind_of_report(&report))
}

fn kind_of_report(report: &str) -> HostKind {
    let kind = serde_json::from_str::<serde_json::Value>(report)
        .ok()
        .and_then(|value| value.pointer("/kvm/kind")?.as_str().map(str::to_owned));
    match kind.as_deref() {
        Some("hardware") => HostKind::Direct,
        _ => HostKind::Nested,
    }
}

/// A host to run scripts on.
#[derive(Clone, Debug)]
pub enum Host {
    /// This machine; holds the path of busybox.
    Direct(PathBuf),
    /// An emulated machine.
    Nested(NestedHost),
}

impl Host {
    /// Runs a script to its end, in a fresh folder `runs/NAME`.
    ///
    /// # Errors
    ///
    /// When the host cannot be started, dies or takes too long. A script that fails is not an error here.
    pub fn run(&self, runs: &Path, run: &HostRun) -> Result<HostResult, HostError> {
        match self {
            Self::Direct(busybox) => Ok(direct::run(busybox, runs, run)?),
            Self::Nested(host) => Ok(nested::run(host, runs, run)?),
        }
    }
}

/// Makes the empty folder `runs/name`, and `out` in it; returns the former.
pub(crate) fn fresh_run_folder(runs: &Path, name: &str) -> io::Result<PathBuf> {
    let folder = runs.join(name);
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::create_dir_all(folder.join("out"))?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_choice_refuses_other_names() {
        assert_eq!(parse_choice("direct").unwrap(), HostKind::Direct);
        assert_eq!(parse_choice("nested").unwrap(), HostKind::Nested);
        assert!(parse_choice("cloud").unwrap_err().to_string().contains("cloud"));
    }

    #[test]
    fn failed_script_is_reported_with_its_last_line() {
        let folder = tempfile::tempdir().unwrap();
        let script_log = folder.path().join("script.log");
        fs::write(&script_log, "begun\nno such thing\n").unwrap();
        let result = HostResult { status: 3, output: folder.path().into(), script_log, console_log: None };

        let error = result.clone().success("x").unwrap_err();

        assert!(error.to_string().contains("no such thing"));
        assert!(HostResult { status: 0, ..result }.success("x").is_ok());
    }

    #[test]
    fn only_hardware_virtualisation_is_used_directly() {
        assert_eq!(kind_of_report(r#"{"kvm":{"kind":"hardware"}}"#), HostKind::Direct);
        assert_eq!(kind_of_report(r#"{"kvm":{"kind":"emulating"}}"#), HostKind::Nested);
        assert_eq!(kind_of_report("not json"), HostKind::Nested);
    }
}
