//! What failed in a run of the tests, and why, a line each: from the file in JUnit's format that nextest leaves. A runner's
//! own output is long, and where it is cut, the reasons are what is lost.

use roxmltree::Document;
use std::fs;
use std::path::{Path, PathBuf};

/// Most characters of a reason.
const REASON: usize = 400;

/// What follows a panic's message.
const BACKTRACE: &str = "stack backtrace:";

/// Where nextest leaves its file, below the target folder.
const FILE: &str = "nextest/default/junit.xml";

/// What is known of the last run of the tests whose target folder is given.
#[derive(Debug)]
pub struct Failures(PathBuf);

impl Failures {
    /// Of the run that comes: what an earlier one has left is removed.
    #[must_use]
    pub fn of_next_run(target: &Path) -> Self {
        let path = target.join(FILE);
        let _ = fs::remove_file(&path);
        Self(path)
    }

    /// A line for each test that failed; none where there is no file.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        fs::read_to_string(&self.0).map(|text| lines_of(&text)).unwrap_or_default()
    }
}

/// The lines of a file's `text`.
fn lines_of(text: &str) -> Vec<String> {
    let Ok(document) = Document::parse(text) else { return Vec::new() };
    let cases = document.descendants().filter(|node| node.has_tag_name("testcase"));
    let told = cases.filter_map(|case| {
        let name = |attribute| case.attribute(attribute).unwrap_or("?");
        let failure = case.children().find(|child| child.has_tag_name("failure"))?;
        let said = failure.text().and_then(|text| text.split(BACKTRACE).next()).map(str::trim);
        let said = said.filter(|said| !said.is_empty()).or(failure.attribute("message"));
        let reason = said.or(failure.attribute("type")).unwrap_or("no reason given");
        Some(format!("{} {} failed: {}", name("classname"), name("name"), on_one_line(reason)))
    });
    told.collect()
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
<testsuites name="nextest-run" tests="3" failures="1" errors="0">
  <testsuite name="lab::why" tests="3" failures="1">
    <testcase name="passes" classname="lab::why" time="1.0"/>
    <testcase name="fails" classname="lab::why" time="1.0">
      <failure message="thread 'fails' panicked at a.rs:1:2" type="test failure">thread 'fails' panicked at a.rs:1:2:
assertion failed: 1 &lt; 0
stack backtrace:
   0: somewhere</failure>
    </testcase>
    <testcase name="says_nothing" classname="lab::why" time="1.0">
      <failure message="test timed out" type="test timeout"></failure>
    </testcase>
  </testsuite>
</testsuites>"#;

    #[test]
    fn each_failure_has_a_line_with_its_reason() {
        assert_eq!(
            lines_of(RUN),
            [
                "lab::why fails failed: thread 'fails' panicked at a.rs:1:2: assertion failed: 1 < 0",
                "lab::why says_nothing failed: test timed out"
            ]
        );
    }

    #[test]
    fn long_reason_is_cut() {
        let line = on_one_line(&"word ".repeat(200));

        assert!(line.ends_with('…') && line.chars().count() == REASON + 2, "{line}");
    }

    #[test]
    fn run_without_a_file_tells_nothing_and_an_earlier_ones_is_gone() {
        let target = tempfile::tempdir().unwrap();
        let path = target.path().join(FILE);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, RUN).unwrap();

        let failures = Failures::of_next_run(target.path());

        assert!(failures.lines().is_empty() && !path.exists());
    }
}
