//! `cargo xtask torture`: builds the program that attacks the recorder of VMs, and runs it.

use crate::build::binaries;
use crate::fetch::apt::PackageError;
use crate::fetch::tools::{self, Tool};
use crate::paths::Paths;
use crate::process::{self, ProcessError};
use crate::process_group::GoesOnSignal;
use crate::progress;
use std::io;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Seed of the round that is part of the test suite.
pub const GATE_SEED: u64 = 1;
/// What reads the recordings beside Strata.
const TOOLS: [Tool; 1] = [Tool { program: "babeltrace2", package: "babeltrace2" }];

/// How to run it.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// How long, minutes; one turn of all faults without it.
    pub minutes: Option<u64>,
    /// Where chance begins.
    pub seed: Option<u64>,
    /// The first round.
    pub first_round: u64,
    /// How many rounds, in place of how long.
    pub rounds: Option<u64>,
    /// Short rounds, until each fault has had so many ends.
    pub ends: Option<u64>,
    /// Whether to put the tables into the document.
    pub update_document: bool,
}

/// Why the torture failed.
#[derive(Debug, thiserror::Error)]
pub enum TortureError {
    /// babeltrace2 is missing.
    #[error(transparent)]
    Tools(#[from] PackageError),
    /// A promise was broken, or the program cannot be built or run.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// There is no folder for recordings.
    #[error("cannot write to the lab's folder")]
    Folder(#[source] io::Error),
}

/// Runs rounds of attacks and faults; what came of them goes to standard output.
///
/// # Errors
///
/// When a promise is broken, or a round cannot be run.
pub fn run(paths: &Paths, options: &Options) -> Result<(), TortureError> {
    tools::install(paths, &TOOLS)?;
    let program = progress::step("building the torture", || binaries::build_torture(paths))?;
    let folder = TempDir::with_prefix_in("torture-", paths.lab()).map_err(TortureError::Folder)?;
    let _goes = GoesOnSignal::new(folder.path());
    let mut command = Command::new(program);
    command.current_dir(paths.workspace()).args(["run", "--folder"]).arg(folder.path());
    command.args(["--first-round", &options.first_round.to_string()]);
    let seconds = options.minutes.map_or(0, |minutes| minutes * 60);
    command.args(["--seconds", &seconds.to_string()]);
    let numbers = [("--seed", options.seed), ("--rounds", options.rounds), ("--ends", options.ends)];
    for (name, number) in numbers {
        command.args(number.into_iter().flat_map(|number| [name.to_owned(), number.to_string()]));
    }
    if options.update_document {
        command.arg("--document").arg(paths.workspace().join("docs/results/torture.md"));
    }
    Ok(process::run_visible(command.stdin(Stdio::null()))?)
}
