//! The whole test suite, as CI runs it.

use crate::machine::nested;
use crate::paths::Paths;
use crate::process::{self, ProcessError};
use crate::progress;
use crate::provision::{self, ProvisionError};
use crate::tasks::dependencies::{self, DependenciesError};
use crate::tasks::documents::{self, DocumentsError};
use crate::tasks::failures::Failures;
use crate::tasks::library_crates::{self, LibraryCrateError};
use crate::tasks::sources::{self, SourcesError};
use crate::tasks::torture::{self, TortureError};
use std::process::Command;
use std::thread;

/// Why the suite failed.
#[derive(Debug, thiserror::Error)]
pub enum SuiteError {
    /// A step failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A promise of the recorder is broken.
    #[error(transparent)]
    Torture(#[from] TortureError),
    /// A document has lines that are too wide, or links that lead nowhere.
    #[error(transparent)]
    Documents(#[from] DocumentsError),
    /// A source has imports in several blocks, or names that begin with an article.
    #[error(transparent)]
    Sources(#[from] SourcesError),
    /// A crate that others can use is not fit for that.
    #[error(transparent)]
    LibraryCrate(#[from] LibraryCrateError),
    /// The lab could not be made ready.
    #[error(transparent)]
    Provision(#[from] ProvisionError),
    /// A crate lacks its reason, its licence is not allowed, or there are two versions of it.
    #[error(transparent)]
    Dependencies(#[from] DependenciesError),
}

/// The crates with model checkers' tests, which need their own features and an optimised build.
const VERIFIED: [&str; 6] =
    ["-p", "shared-ring", "-p", "clock-sync", "--features", "shared-ring/verification,clock-sync/verification"];

/// Runs format check, checks of sources, documents and dependencies, lints, the checks of the library crates, doc
/// tests, the model checkers (while the lab is made ready), all unit, integration and end-to-end tests, then a round of
/// torture with each fault.
///
/// # Errors
///
/// The first step that fails.
pub fn run(paths: &Paths) -> Result<(), SuiteError> {
    progress::step("format check", || cargo_visible(paths, &["fmt", "--all", "--check"]))?;
    progress::step("sources", || sources::check(paths))?;
    progress::step("documents", || documents::check(paths))?;
    progress::step("dependencies", || dependencies::check(paths))?;
    progress::step("lints", || {
        cargo_visible(paths, &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"])
    })?;
    progress::step("lints of the model checkers", || {
        let lints = ["--all-targets", "--quiet", "--", "-D", "warnings"];
        cargo_visible(paths, &[&["clippy"], VERIFIED.as_slice(), &lints].concat())
    })?;
    library_crates::check(paths)?;
    // Either ends with one crate at a time, or with one test; beside each other they leave less of a CPU idle. Nothing of
    // this is judged by how long it takes.
    let (checked, lab) = thread::scope(|scope| {
        let lab = scope.spawn(|| provision::lab(paths));
        let checked = doc_tests_and_model_checkers(paths);
        (checked, lab.join())
    });
    checked?;
    lab.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let tests: &[&str] = if process::find_program("cargo-nextest").is_some() {
        &["nextest", "run", "--workspace", "--no-fail-fast"]
    } else {
        &["test", "--workspace", "--lib", "--bins", "--tests", "--no-fail-fast"]
    };
    let failures = Failures::of_next_run(&paths.target());
    let _earlier = nested::take_second_chances(&paths.runs());
    let tested = progress::step("unit, integration and end-to-end tests", || cargo_visible(paths, tests));
    nested::take_second_chances(&paths.runs()).iter().for_each(|note| progress::note(note));
    failures.lines().iter().for_each(|line| progress::note(line));
    tested?;
    torture::run(paths, &torture::Options { seed: Some(torture::GATE_SEED), ..torture::Options::default() })?;
    Ok(())
}

fn doc_tests_and_model_checkers(paths: &Paths) -> Result<(), ProcessError> {
    progress::step("doc tests", || cargo_visible(paths, &["test", "--workspace", "--doc", "--quiet"]))?;
    progress::step("model checkers", || {
        let checkers = ["--test", "explorer*", "--test", "loom*", "--test", "ring_document", "--no-fail-fast"];
        cargo_visible(paths, &[&["test", "--profile", "verification"], VERIFIED.as_slice(), &checkers].concat())
    })
}

/// A cargo command whose output is the user's, in the target folder that the caller's cargo uses.
fn cargo_visible(paths: &Paths, arguments: &[&str]) -> Result<(), ProcessError> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(paths.workspace()).args(arguments);
    process::run_visible(&mut command)
}
