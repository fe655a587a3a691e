//! What a run of the test suite tells in the end: what took longest, all of it as JSON, and a row for the document.

use super::test_results::TestResult;
use crate::progress::Step;
use serde::Serialize;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// How many steps and tests are named that took longest.
const SLOWEST: usize = 10;
/// The name of a file that stands for the standard output.
pub const STANDARD_OUTPUT: &str = "-";

/// Why a summary was not written.
#[derive(Debug, thiserror::Error)]
pub enum SummaryError {
    /// It cannot be written there.
    #[error("cannot write {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// It cannot be made.
    #[error("cannot make JSON of the summary")]
    Json(#[from] serde_json::Error),
}

/// A run of the test suite.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// How much of it was run: `quick`, `usual` or `all`.
    pub tier: &'static str,
    /// The commit, with `-dirty` if the working tree has changes beside it.
    pub commit: String,
    /// The day of its end, UTC.
    pub date: String,
    /// How long it took.
    pub seconds: f64,
    /// Why it failed, if it did.
    pub failure: Option<String>,
    /// The steps that were made, in the order of their ends.
    pub steps: Vec<Step>,
    /// The tests that were run.
    pub tests: Vec<TestResult>,
}

impl Summary {
    /// A line for each of the steps and tests that took longest, the longest first.
    #[must_use]
    pub fn slowest(&self) -> Vec<String> {
        let steps = self.steps.iter().map(|step| (step.seconds, step.title.as_str()));
        let mut timed: Vec<_> = steps.chain(self.tests.iter().map(|test| (test.seconds, test.name.as_str()))).collect();
        timed.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        timed.into_iter().take(SLOWEST).map(|(seconds, name)| format!("{seconds:8.1} s  {name}")).collect()
    }

    /// How many tests there were, as test runners say it last.
    #[must_use]
    pub fn closing_line(&self) -> String {
        let failed = self.tests.iter().filter(|test| test.failure.is_some()).count();
        format!("{} passed, {failed} failed", self.tests.len() - failed)
    }

    /// Writes all of it to `file` as JSON; to the standard output where that is `-`.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn write_json(&self, file: &Path) -> Result<(), SummaryError> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        let written = if file == Path::new(STANDARD_OUTPUT) {
            io::stdout().write_all(text.as_bytes())
        } else {
            fs::write(file, text)
        };
        written.map_err(|source| SummaryError::File { path: file.into(), source })
    }

    /// A table of one row; `lengths` says how long was tried what can be tried for any time.
    #[must_use]
    pub fn table(&self, lengths: &str) -> String {
        let failed_steps = self.steps.iter().filter(|step| !step.passed).map(|step| step.title.as_str());
        let failed_tests = self.tests.iter().filter(|test| test.failure.is_some());
        let failed: Vec<_> = failed_steps.chain(failed_tests.map(|test| test.name.as_str())).collect();
        let result = match (&self.failure, failed.is_empty()) {
            (None, _) => "passed".to_owned(),
            (Some(_), false) => format!("failed: {}", failed.join(", ")),
            (Some(failure), true) => format!("failed: {}", failure.replace('\n', " ")),
        };
        let Self { date, commit, tests, .. } = self;
        let (hours, tests) = (self.seconds / 3600.0, tests.len());
        format!(
            "| last run | commit | hours | tests | for any time | result |\n|---|---|---:|---:|---|---|\n\
             | {date} | {commit} | {hours:.1} | {tests} | {lengths} | {result} |\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(failure: Option<&str>) -> Summary {
        let step = |title: &str, seconds, passed| Step { title: title.to_owned(), seconds, passed };
        let test = |name: &str, seconds| TestResult { name: name.to_owned(), seconds, failure: None };
        let failed = TestResult { failure: failure.map(str::to_owned), ..test("lab::why fails", 2.0) };
        Summary {
            tier: "all",
            commit: "abc-dirty".to_owned(),
            date: "2026-11-27".to_owned(),
            seconds: 5400.0,
            failure: failure.map(str::to_owned),
            steps: vec![step("lints", 3.0, true), step("tests", 60.0, failure.is_none())],
            tests: (0..20).map(|number| test(&format!("lab {number}"), 1.0)).chain([failed]).collect(),
        }
    }

    #[test]
    fn slowest_are_the_longest_steps_and_tests_in_order() {
        let slowest = summary(None).slowest();

        assert_eq!(slowest.len(), SLOWEST);
        assert_eq!(slowest[..3], ["    60.0 s  tests", "     3.0 s  lints", "     2.0 s  lab::why fails"]);
    }

    #[test]
    fn table_says_what_has_failed() {
        let rows = [None, Some("no")].map(|failure| summary(failure).table("torture 2 h"));

        assert!(rows[0].ends_with("\n| 2026-11-27 | abc-dirty | 1.5 | 21 | torture 2 h | passed |\n"), "{}", rows[0]);
        assert!(rows[1].ends_with(" | failed: tests, lab::why fails |\n"), "{}", rows[1]);
    }

    #[test]
    fn closing_line_counts_tests() {
        assert_eq!(summary(Some("no")).closing_line(), "20 passed, 1 failed");
    }

    #[test]
    fn json_has_steps_and_tests() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("summary.json");

        summary(Some("no")).write_json(&file).unwrap();

        let read: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert_eq!((&read["steps"][1]["passed"], &read["tests"][20]["failure"]), (&false.into(), &"no".into()));
    }
}
