//! The check of the scenarios' shell programs, by shellcheck.

use crate::fetch::apt::PackageError;
use crate::fetch::tools::{self, Tool};
use crate::paths::Paths;
use crate::process::{self, ProcessError};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

const SHELLCHECK: Tool = Tool { program: "shellcheck", package: "shellcheck" };
/// Where the programs lie, below the workspace, in a folder for each scenario.
const FOLDER: &str = "tests/src/scenarios";
/// What is not a fault here: names in `@` are replaced by what may be one word or several (SC2043), a line may be read
/// only to wait for it (SC2034), and all listed files have plain names (SC2010).
const NO_FAULTS: &str = "SC2010,SC2034,SC2043";

/// Why the shell programs are not as they should be.
#[derive(Debug, thiserror::Error)]
pub enum ScriptsError {
    /// shellcheck is missing and cannot be installed.
    #[error(transparent)]
    Package(#[from] PackageError),
    /// shellcheck does not run.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A folder cannot be listed.
    #[error("cannot list {}", path.display())]
    Folder {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// What has to be mended, one finding a line.
    #[error("{0}")]
    Findings(String),
}

/// Checks every shell program of a scenario, as one for the hosts' and guests' busybox.
///
/// # Errors
///
/// All findings, or why there is no answer.
pub fn check(paths: &Paths) -> Result<(), ScriptsError> {
    tools::install(paths, &[SHELLCHECK])?;
    let mut programs = Vec::new();
    for folder in list(&paths.workspace().join(FOLDER))?.iter().filter(|path| path.is_dir()) {
        programs.extend(list(folder)?.into_iter().filter(|path| path.extension().is_some_and(|ending| ending == "sh")));
    }
    programs.sort();
    let options = ["--shell=dash", "--severity=warning", "--format=gcc", "--exclude", NO_FAULTS];
    let findings = process::capture_any(Command::new(SHELLCHECK.program).args(options).args(&programs))?;
    if findings.is_empty() { Ok(()) } else { Err(ScriptsError::Findings(findings)) }
}

fn list(folder: &Path) -> Result<Vec<PathBuf>, ScriptsError> {
    let entries = fs::read_dir(folder).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    entries.map_err(|source| ScriptsError::Folder { path: folder.into(), source })
}
