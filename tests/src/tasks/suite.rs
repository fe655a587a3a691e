//! The test suite, in three tiers. A test says where it is defined to which it belongs: those beside the code are of the
//! quick tier, those in `tests` folders of the usual one, which CI runs; those there that are ignored, with a reason that
//! begins with "tier all: ", are of the tier of everything (`cargo xtask sources` checks the reasons).

use crate::build::binaries;
use crate::fetch::kernel_packages::Suite;
use crate::lock::{Lock, LockError};
use crate::machine::disk_space::{self, DiskSpaceError};
use crate::machine::{emulator, nested};
use crate::paths::Paths;
use crate::process::{self, ProcessError};
use crate::process_group::GoesOnSignal;
use crate::progress;
use crate::provision::{self, ProvisionError};
use crate::tasks::bench::instructions;
use crate::tasks::changes::{self, ChangesError};
use crate::tasks::dependencies::{self, DependenciesError};
use crate::tasks::documents::{self, DocumentsError};
use crate::tasks::library_crates::{self, LibraryCrateError};
use crate::tasks::markers::{self, MarkersError};
use crate::tasks::query;
use crate::tasks::scripts::{self, ScriptsError};
use crate::tasks::sources::{self, SourcesError};
use crate::tasks::summary::{STANDARD_OUTPUT, Summary, SummaryError};
use crate::tasks::test_results::{TestResult, TestResults};
use crate::tasks::torture;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Instant;
use tempfile::TempDir;

/// The crates with model checkers' tests, which need their own features and an optimised build.
const VERIFIED: [&str; 6] =
    ["-p", "shared-ring", "-p", "clock-sync", "--features", "shared-ring/verification,clock-sync/verification"];
/// What lints look at, and that none may be left.
const LINTS: [&str; 5] = ["--all-targets", "--quiet", "--", "-D", "warnings"];
/// Has clippy, which is the compiler with lints, build the workspace's crates: they are looked at and built in one go, and
/// what they need is not built once for lints and once more for tests.
const BUILT_BY_CLIPPY: [&str; 2] = ["--config", "build.rustc-workspace-wrapper='clippy-driver'"];
/// How `cargo clippy -- -D warnings` hands its arguments on.
const CLIPPY_ARGUMENTS: (&str, &str) = ("CLIPPY_ARGS", "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__");
/// Room on the disk that a run takes at least beside what an earlier one has left.
const ROOM: u64 = 4 << 30;
/// A test that takes so long has a line of its own when it has ended, seconds.
const LONG_TEST: f64 = 10.0;
/// The document that says when everything was tried last, and its part that does.
const DOCUMENT: (&str, &str) = ("docs/verification.md", "test-all");

/// Why the suite failed.
#[derive(Debug, thiserror::Error)]
pub enum SuiteError {
    /// Another run is under way.
    #[error("process {0} runs `cargo xtask test` in this checkout: wait for its end, or end it (kill {0})")]
    Busy(String),
    /// The lock file cannot be used.
    #[error(transparent)]
    Lock(LockError),
    /// This user may not do what tests do.
    #[error(
        "`cargo xtask test` needs root: tests use tracefs, KVM and roots of other systems; run it as root, or `cargo xtask \
         test --quick`"
    )]
    NotRoot,
    /// There is no room for what is built and recorded.
    #[error(transparent)]
    DiskSpace(#[from] DiskSpaceError),
    /// A folder for the tests' files could not be made.
    #[error("cannot make a folder in {}", std::env::temp_dir().display())]
    Scratch(#[source] io::Error),
    /// Where this program lies is not known.
    #[error("cannot find this program, whose commands are steps of the suite")]
    Program(#[source] io::Error),
    /// A step failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// What has changed is not known.
    #[error(transparent)]
    Changes(#[from] ChangesError),
    /// A document has lines that are too wide, or links that lead nowhere.
    #[error(transparent)]
    Documents(#[from] DocumentsError),
    /// The shell programs of scenarios are not as they should be.
    #[error(transparent)]
    Scripts(#[from] ScriptsError),
    /// A source has imports in several blocks, derives in another order, or tests of no tier.
    #[error(transparent)]
    Sources(#[from] SourcesError),
    /// A crate that others can use is not fit for that.
    #[error(transparent)]
    LibraryCrate(#[from] LibraryCrateError),
    /// Recording or reading takes more instructions than it did.
    #[error(transparent)]
    Instructions(anyhow::Error),
    /// The lab could not be made ready.
    #[error(transparent)]
    Provision(#[from] ProvisionError),
    /// A crate lacks its reason, its licence is not allowed, or there are two versions of it.
    #[error(transparent)]
    Dependencies(#[from] DependenciesError),
    /// The summary cannot be written.
    #[error(transparent)]
    Summary(#[from] SummaryError),
    /// The row of the document cannot be written.
    #[error(transparent)]
    Markers(#[from] MarkersError),
}

/// How much of the suite is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Format, lints and unit tests of what has changed.
    Quick,
    /// Everything that shows a promise.
    Usual,
    /// That, on every kernel and in every form, and what takes hours.
    All(Lengths),
}

impl Tier {
    fn name(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Usual => "usual",
            Self::All(_) => "all",
        }
    }
}

/// How long is tried what can be tried for any time, minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// The torture.
    pub torture: u64,
    /// Each fuzz target.
    pub fuzz: u64,
    /// Each kernel that checks itself.
    pub debug_kernel: u64,
}

/// Runs one tier with emulated hosts of the seed `lab_seed`, shows what took longest, and writes all of it to `json` too,
/// which may be `-`.
///
/// # Errors
///
/// The first step that fails.
pub fn run(paths: &Paths, tier: Tier, lab_seed: u32, json: Option<&Path>) -> Result<(), SuiteError> {
    if tier != Tier::Quick && !rustix::process::geteuid().is_root() {
        return Err(SuiteError::NotRoot);
    }
    let _lock = Lock::try_take(&paths.target().join("xtask-test.lock")).map_err(|error| match error {
        LockError::Busy { holder, .. } => SuiteError::Busy(holder),
        error @ LockError::File { .. } => SuiteError::Lock(error),
    })?;
    disk_space::require(&paths.target(), ROOM)?;
    let begun = Instant::now();
    let mut suite = Run::new(paths, lab_seed)?;
    let result = match tier {
        Tier::Quick => suite.quick(),
        Tier::Usual => suite.usual(),
        Tier::All(lengths) => suite.all(lengths),
    };
    let summary = Summary {
        tier: tier.name(),
        commit: binaries::commit(paths).unwrap_or_default(),
        date: first_line_of(paths, "date", &["--utc", "+%F"]),
        seconds: begun.elapsed().as_secs_f64(),
        failure: result.as_ref().err().map(ToString::to_string),
        steps: progress::ended(),
        tests: suite.tests,
    };
    progress::note("slowest:");
    summary.slowest().iter().for_each(|line| progress::note(line));
    if tier != Tier::Quick {
        progress::note(&format!("emulated hosts had the seed {lab_seed}: --lab-seed {lab_seed} repeats what they did"));
    }
    if json != Some(Path::new(STANDARD_OUTPUT)) {
        println!("{}", summary.closing_line());
    }
    let written = json.map_or(Ok(()), |file| summary.write_json(file)).map_err(SuiteError::from);
    let recorded = match tier {
        Tier::All(lengths) => {
            let (document, part) = DOCUMENT;
            markers::write_into(&paths.workspace().join(document), part, &summary.table(&lengths.summary_line()))
        }
        Tier::Quick | Tier::Usual => Ok(()),
    };
    result.and(written).and(recorded.map_err(SuiteError::from))
}

impl Lengths {
    fn summary_line(self) -> String {
        let Self { torture, fuzz, debug_kernel } = self;
        format!("torture {torture} min, each fuzz target {fuzz} min, each kernel that checks itself {debug_kernel} min")
    }
}

/// What a program says on its first line; nothing where it fails.
fn first_line_of(paths: &Paths, program: &str, arguments: &[&str]) -> String {
    let text = process::capture(Command::new(program).args(arguments).current_dir(paths.workspace()));
    text.unwrap_or_default().lines().next().unwrap_or_default().to_owned()
}

/// A run of the suite.
struct Run<'p> {
    paths: &'p Paths,
    /// This program, for steps that are commands of it.
    program: PathBuf,
    /// The seed of emulated hosts.
    lab_seed: u32,
    /// Where tests make their temporary files, which tests that are killed leave.
    scratch: TempDir,
    _goes: GoesOnSignal,
    /// The tests that were run.
    tests: Vec<TestResult>,
}

impl<'p> Run<'p> {
    fn new(paths: &'p Paths, lab_seed: u32) -> Result<Self, SuiteError> {
        // a short name: sockets lie there; and for all users, as the folder is that it stands for
        let scratch = tempfile::Builder::new().prefix("st-").tempdir().map_err(SuiteError::Scratch)?;
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o1777)).map_err(SuiteError::Scratch)?;
        let program = std::env::current_exe().map_err(SuiteError::Program)?;
        Ok(Self { paths, program, lab_seed, _goes: GoesOnSignal::new(scratch.path()), scratch, tests: Vec::new() })
    }

    /// Format, lints and unit tests, the latter of what depends on a changed crate, too. `strata-query`, which the usual tier
    /// builds without SQL, has its lints.
    fn quick(&mut self) -> Result<(), SuiteError> {
        self.format()?;
        let concerned = changes::concerned(self.paths)?;
        if concerned.query {
            progress::step("lints of strata-query", || query::lints(self.paths))?;
        }
        if concerned.changed.is_empty() {
            progress::note("no crate of the workspace has changed");
            return Ok(());
        }
        let packages = |names: &[String]| names.iter().flat_map(|name| ["-p".to_owned(), name.clone()]).collect();
        let (changed, all): (Vec<String>, Vec<String>) = (packages(&concerned.changed), packages(&concerned.all));
        let changed: Vec<_> = changed.iter().map(String::as_str).collect();
        let title = format!("lints of {}", concerned.changed.join(", "));
        self.cargo(&title, "lints", &[&["clippy"], &changed[..], &LINTS].concat())?;
        let kinds: &[&str] = if concerned.has_library { &["--lib", "--bins"] } else { &["--bins"] };
        let all: Vec<_> = all.iter().map(String::as_str).chain(kinds.iter().copied()).collect();
        self.test(&format!("unit tests of {}", concerned.all.join(", ")), "unit-tests", &all)
    }

    /// Checks of format, sources, documents and dependencies, lints while tests are built, the checks of the library
    /// crates, doc tests, the model checkers and the instructions of a record (while the lab is made ready), those of
    /// reading one, all unit, integration and end-to-end tests, then a round of torture with each fault.
    fn usual(&mut self) -> Result<(), SuiteError> {
        self.format()?;
        progress::step("dependencies", || dependencies::check(self.paths))?;
        let built = ["test", "--workspace", "--all-targets", "--no-run", "--quiet"];
        self.cargo("lints, and building tests", "lints", &[&built[..], &BUILT_BY_CLIPPY].concat())?;
        let verified = [&["clippy"], VERIFIED.as_slice(), &LINTS].concat();
        self.cargo("lints of the model checkers", "lints-verified", &verified)?;
        library_crates::check(self.paths)?;
        // Either ends with one crate at a time, or with one test; beside each other they leave less of a CPU idle. Nothing
        // of this is judged by how long it takes.
        let (checked, lab) = thread::scope(|scope| {
            let lab = scope.spawn(|| provision::lab(self.paths));
            let checked = self.doc_tests_and_model_checkers().map_err(SuiteError::from);
            let counted = || instructions::check_recording(self.paths).map_err(SuiteError::Instructions);
            (checked.and_then(|()| counted().map(drop)), lab.join())
        });
        checked?;
        lab.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        instructions::check_reading(self.paths).map_err(SuiteError::Instructions)?;
        let everywhere = [&["--workspace"], &BUILT_BY_CLIPPY[..]].concat();
        self.test("unit, integration and end-to-end tests", "tests", &everywhere)?;
        self.xtask("torture", &["torture", "--seed", &torture::GATE_SEED.to_string()])?;
        Ok(())
    }

    /// Everything: a part that fails keeps no other one from being tried.
    fn all(&mut self, lengths: Lengths) -> Result<(), SuiteError> {
        let Lengths { torture, fuzz, debug_kernel } = lengths;
        let usual = self.usual();
        let of_all = [&["-p", "lab", "--test", "*"], &BUILT_BY_CLIPPY[..], &["--run-ignored", "only"]].concat();
        let matrix = self.test("end-to-end tests on every kernel and of every form", "tests-all", &of_all);
        let mut results = vec![usual, matrix];
        for suite in Suite::ALL {
            let minutes = debug_kernel.to_string();
            results.push(self.xtask(
                &format!("kernel of {} that checks itself", suite.name()),
                &["lab", "debug-kernel", suite.name(), "--minutes", &minutes],
            ));
        }
        results.push(self.xtask("strata-query with DuckDB and pandas", &["query"]));
        results.push(self.xtask("strata-query on Spark", &["query", "--spark"]));
        results.push(self.xtask("fuzzing", &["fuzz", "--seconds", &(fuzz * 60).to_string()]));
        results.push(self.xtask("torture for long", &["torture", "--minutes", &torture.to_string()]));
        results.iter().filter_map(|result| result.as_ref().err()).for_each(|error| progress::note(&error.to_string()));
        results.into_iter().collect()
    }

    fn format(&self) -> Result<(), SuiteError> {
        self.cargo("format check", "format", &["fmt", "--all", "--check", "--", "--color", "never"])?;
        progress::step("sources", || sources::check(self.paths))?;
        progress::step("shell programs", || scripts::check(self.paths))?;
        progress::step("documents", || documents::check(self.paths))?;
        Ok(())
    }

    fn doc_tests_and_model_checkers(&self) -> Result<(), ProcessError> {
        let documented = ["test", "--workspace", "--doc", "--quiet"];
        self.cargo("doc tests", "doc-tests", &[&documented[..], &BUILT_BY_CLIPPY].concat())?;
        let checkers = ["--test", "explorer*", "--test", "loom*", "--test", "ring_document", "--no-fail-fast"];
        let arguments = [&["test", "--profile", "verification"], VERIFIED.as_slice(), &checkers].concat();
        self.cargo("model checkers", "model-checkers", &arguments)
    }

    /// Runs the tests that `selection` names, for nextest, with a line for each that fails or takes long.
    fn test(&mut self, title: &str, log: &str, selection: &[&str]) -> Result<(), SuiteError> {
        let (path, runs) = (self.log(log), self.paths.runs());
        let results = TestResults::of_next_run(&self.paths.target());
        let _earlier = nested::take_second_chances(&runs);
        let ran = progress::step(title, || {
            if process::find_program("cargo-nextest").is_none() {
                return process::run_logged(self.command().args(without_nextest(selection)), &path);
            }
            let options = ["nextest", "run", "--no-fail-fast", "--no-tests=pass", "--final-status-level=none"];
            process::run_heard(self.command().args(options).args(selection), &path, |line| {
                summary_line(line).iter().for_each(|line| progress::note(line));
            })
        });
        let boots = nested::take_second_chances(&runs);
        boots.iter().for_each(|note| progress::note(note));
        if !boots.is_empty() {
            progress::note(&format!("{} boots of emulated hosts were repeated", boots.len()));
        }
        let tests = results.read();
        if ran.is_err() && tests.is_empty() {
            process::show_end(&path);
        }
        for (test, failure) in tests.iter().filter_map(|test| Some((test, test.failure.as_ref()?))) {
            progress::note(&format!("{} failed: {failure}", test.name));
        }
        self.tests.extend(tests);
        Ok(ran?)
    }

    /// A step that is a command of cargo, whose output goes to a log.
    fn cargo(&self, title: &str, log: &str, arguments: &[&str]) -> Result<(), ProcessError> {
        progress::step(title, || process::run_logged(self.command().args(arguments), &self.log(log)))
    }

    /// A step that is a command of this program.
    fn xtask(&self, title: &str, arguments: &[&str]) -> Result<(), SuiteError> {
        let words = arguments.iter().filter(|argument| !argument.starts_with("--")).copied();
        let log = self.log(&format!("xtask-{}", words.collect::<Vec<_>>().join("-")));
        let mut command = Command::new(&self.program);
        command.args(arguments).env("TMPDIR", self.scratch.path());
        Ok(progress::step(title, || process::run_logged(&mut command, &log))?)
    }

    /// cargo, in the target folder that the caller's cargo uses.
    fn command(&self) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(self.paths.workspace()).env("TMPDIR", self.scratch.path());
        command.env(emulator::SEED_VARIABLE, self.lab_seed.to_string());
        let (name, arguments) = CLIPPY_ARGUMENTS;
        command.env(name, arguments);
        command
    }

    fn log(&self, name: &str) -> PathBuf {
        self.paths.logs().join(format!("{name}.log"))
    }
}

/// What to show of a line of nextest's: that a test has failed, or took long.
fn summary_line(line: &str) -> Option<String> {
    let (status, rest) = line.trim().split_once(" [")?;
    let (seconds, test) = rest.split_once("s] ")?;
    let seconds: f64 = seconds.trim().parse().ok()?;
    let test = test.split_once(") ").map_or(test, |(_, name)| name).trim();
    let is_status = status.chars().all(|letter| letter.is_ascii_uppercase() || letter == '-');
    let verdict = if status == "PASS" { "done" } else { status };
    (is_status && (status != "PASS" || seconds >= LONG_TEST)).then(|| format!("{test}: {verdict} in {seconds:.1} s"))
}

/// The arguments of cargo for the tests that `selection` names to nextest.
fn without_nextest<'s>(selection: &[&'s str]) -> Vec<&'s str> {
    let ignored = ["--run-ignored", "only"];
    let is_ignored = selection.ends_with(&ignored);
    let selection = selection.strip_suffix(&ignored).unwrap_or(selection);
    let has_kinds = ["--lib", "--bins", "--test"].iter().any(|kind| selection.contains(kind));
    let kinds: &[&str] = if has_kinds { &[] } else { &["--lib", "--bins", "--tests"] };
    let last: &[&str] = if is_ignored { &["--", "--ignored"] } else { &[] };
    [&["test", "--no-fail-fast"], selection, kinds, last].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_fail_or_take_long_have_a_line() {
        let lines = [
            "        PASS [   0.011s] (111/116) lab tasks::sources::tests::imports",
            "        PASS [  98.765s] (  3/116) lab::agent agent_records",
            "        FAIL [   0.2s] (4/116) lab::why explains",
            "        SLOW [> 60.000s] (─────────) lab::why explains",
            "     Summary [   4.215s] 116 tests run: 116 passed, 0 skipped",
            "some words",
        ];

        let summary_line: Vec<_> = lines.into_iter().filter_map(summary_line).collect();

        assert_eq!(summary_line, ["lab::agent agent_records: done in 98.8 s", "lab::why explains: FAIL in 0.2 s"]);
    }

    #[test]
    fn cargo_test_takes_what_nextest_would() {
        let arguments = |selection: &[&str]| without_nextest(selection).join(" ");

        assert_eq!(arguments(&["--workspace"]), "test --no-fail-fast --workspace --lib --bins --tests");
        assert_eq!(arguments(&["-p", "a", "--bins"]), "test --no-fail-fast -p a --bins");
        assert_eq!(
            arguments(&["-p", "a", "--test", "*", "--run-ignored", "only"]),
            "test --no-fail-fast -p a --test * -- --ignored"
        );
    }
}
