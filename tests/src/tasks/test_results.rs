//! What became of each test in a run, and why it failed, on one line: from the file in JUnit's format that nextest leaves. A
//! runner's own output is long, and where it is cut, the reasons are what is lost.

use roxmltree::{Document, Node};
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// Most characters of a reason.
const REASON: usize = 800;

/// What follows a panic's message.
const BACKTRACE: &str = "stack backtrace:";

/// Where nextest leaves its file, below the target folder.
const FILE: &str = "nextest/default/junit.xml";

/// A test that was run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TestResult {
    /// Where it is, and its name.
    pub name: String,
    /// How long it took.
    pub seconds: f64,
    /// Why it failed, if it did.
    pub failure: Option<String>,
}

/// What is known of a run of the tests.
#[derive(Debug)]
pub struct TestResults(PathBuf);

impl TestResults {
    /// Of the run that comes, whose target folder is given: what an earlier one has left is removed.
    #[must_use]
    pub fn of_next_run(target: &Path) -> Self {
        let path = target.join(FILE);
        let _ = fs::remove_file(&path);
        Self(path)
    }

    /// The tests that were run; none where there is no file.
    #[must_use]
    pub fn read(&self) -> Vec<TestResult> {
        fs::read_to_string(&self.0).map(|text| results_in(&text)).unwrap_or_default()
    }
}

/// The tests in a file's `text`.
fn results_in(text: &str) -> Vec<TestResult> {
    let Ok(document) = Document::parse(text) else { return Vec::new() };
    document.descendants().filter(|node| node.has_tag_name("testcase")).map(result).collect()
}

fn result(case: Node<'_, '_>) -> TestResult {
    let attribute = |name| case.attribute(name).unwrap_or("?");
    TestResult {
        name: format!("{} {}", attribute("classname"), attribute("name")),
        seconds: attribute("time").parse().unwrap_or(0.0),
        failure: case.children().find(|child| child.has_tag_name("failure")).map(reason),
    }
}

fn reason(failure: Node<'_, '_>) -> String {
    let printed = failure.text().and_then(|text| text.split(BACKTRACE).next()).map(str::trim);
    let printed = printed.filter(|printed| !printed.is_empty()).or(failure.attribute("message"));
    on_one_line(printed.or(failure.attribute("type")).unwrap_or("no reason given"))
}

/// The beginning of `reason`, without its line breaks.
fn on_one_line(reason: &str) -> String {
    let words = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    let cut: String = words.chars().take(REASON).collect();
    if cut.len() < words.len() { format!("{cut} …") } else { cut }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="3" failures="2" errors="0">
  <testsuite name="lab::why" tests="3" failures="2">
    <testcase name="passes" classname="lab::why" time="1.5"/>
    <testcase name="fails" classname="lab::why" time="1.0">
      <failure message="thread 'fails' panicked at a.rs:1:2" type="test failure">thread 'fails' panicked at a.rs:1:2:
assertion failed: 1 &lt; 0
stack backtrace:
   0: somewhere</failure>
    </testcase>
    <testcase name="says_nothing" classname="lab::why" time="120">
      <failure message="test timed out" type="test timeout"></failure>
    </testcase>
  </testsuite>
</testsuites>"#;

    #[test]
    fn each_test_has_its_time_and_one_that_failed_its_reason() {
        let result = |name: &str, seconds, failure: Option<&str>| TestResult {
            name: format!("lab::why {name}"),
            seconds,
            failure: failure.map(str::to_owned),
        };

        let results = results_in(RUN);

        let panicked = "thread 'fails' panicked at a.rs:1:2: assertion failed: 1 < 0";
        let silent = result("says_nothing", 120.0, Some("test timed out"));
        assert_eq!(results, [result("passes", 1.5, None), result("fails", 1.0, Some(panicked)), silent]);
    }

    #[test]
    fn long_reason_is_cut() {
        let line = on_one_line(&"word ".repeat(REASON));

        assert!(line.ends_with('…') && line.chars().count() == REASON + 2, "{line}");
    }

    #[test]
    fn run_without_a_file_tells_nothing_and_an_earlier_ones_is_gone() {
        let target = tempfile::tempdir().unwrap();
        let path = target.path().join(FILE);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, RUN).unwrap();

        let results = TestResults::of_next_run(target.path());

        assert!(results.read().is_empty() && !path.exists());
    }
}
