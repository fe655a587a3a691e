//! Checks of the project's documents: prose of at most 120 columns, links and paths that lead somewhere, no more words
//! than a reader has time for, and pages that are made from the sources.

use super::changes::ChangesError;
use super::map::{self, MAP};
use super::promises::{self, PROMISES};
use super::sources::SourcesError;
use crate::paths::Paths;
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Columns of a line of prose. Tables and code may be wider.
const WIDTH: usize = 120;

/// Words of all pages in `docs` that somebody wrote; what commands write of their runs lies in [`RESULTS`].
const WORDS: usize = 45_000;
const RESULTS: &str = "docs/results";

/// The variable that has documents made anew which follow from the code.
const UPDATE: &str = "STRATA_UPDATE_DOCUMENTS";

/// Why the documents are not as they should be.
#[derive(Debug, thiserror::Error)]
pub enum DocumentsError {
    /// A document could not be read.
    #[error("cannot read {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The packages of the workspace are not known.
    #[error(transparent)]
    Packages(#[from] ChangesError),
    /// The sources of the workspace are not known.
    #[error(transparent)]
    Sources(#[from] SourcesError),
    /// What has to be mended, one finding a line.
    #[error("{}", .0.join("\n"))]
    Findings(Vec<String>),
}

/// A line of a document, and what is wrong with it.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    line: usize,
    what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.line, self.what)
    }
}

/// What the checks need of a document.
#[derive(Debug, Default)]
struct Document {
    /// Bytes of code and tables.
    fixed: Vec<Range<usize>>,
    /// Destinations of links, and where each link begins.
    links: Vec<(usize, String)>,
    /// What the part of a link behind `#` may say.
    anchors: BTreeSet<String>,
    /// Inline code, and where it begins.
    code: Vec<(usize, String)>,
}

/// Checks the Markdown files at the top of the workspace, in `docs` and at the top of each crate, and the pages that are
/// made from the sources.
///
/// # Errors
///
/// All findings, or the first file that cannot be read.
pub fn check(paths: &Paths) -> Result<(), DocumentsError> {
    let workspace = paths.workspace();
    let mut findings = Vec::new();
    let mut words = 0;
    for path in documents(workspace)?.into_iter().filter(|path| !path.ends_with(MAP) && !path.ends_with(PROMISES)) {
        let text = read(&path)?;
        if path.starts_with(workspace.join("docs")) && !path.starts_with(workspace.join(RESULTS)) {
            words += text.split_whitespace().count();
        }
        findings.extend(of_document(workspace, &path, &text)?);
    }
    if words > WORDS {
        findings.push(format!("docs: {words} words, {WORDS} at most; say each thing once, and shorter"));
    }
    let (promises, silent) = promises::text(paths)?;
    findings.extend(silent);
    for (name, text) in [(MAP, map::text(paths)?), (PROMISES, promises)] {
        findings.extend(made(&workspace.join(name), name, text)?);
    }
    if findings.is_empty() { Ok(()) } else { Err(DocumentsError::Findings(findings)) }
}

/// What is wrong with the document at `path`, which says `text`.
fn of_document(workspace: &Path, path: &Path, text: &str) -> Result<Vec<String>, DocumentsError> {
    let document = Document::parse(text);
    let mut found = wide_lines(text, &document.fixed);
    for (offset, destination) in &document.links {
        if let Some(what) = broken(path, &document, destination)? {
            found.push(Finding { line: line_number(text, *offset), what });
        }
    }
    for (offset, code) in document.code.iter().filter(|(_, code)| is_path(workspace, code)) {
        let folder = path.parent().unwrap_or(workspace);
        if !workspace.join(code).exists() && !folder.join(code).exists() {
            found.push(Finding { line: line_number(text, *offset), what: format!("{code} does not exist") });
        }
    }
    let name = path.strip_prefix(workspace).unwrap_or(path).display();
    Ok(found.iter().map(|finding| format!("{name}:{finding}")).collect())
}

/// Compares the page `name` at `path` with the `text` that was made for it, or writes it with [`UPDATE`].
fn made(path: &Path, name: &str, text: String) -> Result<Option<String>, DocumentsError> {
    if std::env::var_os(UPDATE).is_some() {
        fs::write(path, text).map_err(|source| DocumentsError::File { path: path.into(), source })?;
        return Ok(None);
    }
    let is_made = fs::read_to_string(path).ok() == Some(text);
    let finding = || format!("{name} is not what the sources say; `{UPDATE}=1 cargo xtask documents` makes it anew");
    Ok((!is_made).then(finding))
}

pub(super) fn read(path: &Path) -> Result<String, DocumentsError> {
    fs::read_to_string(path).map_err(|source| DocumentsError::File { path: path.into(), source })
}

/// The documents of the workspace, sorted.
fn documents(workspace: &Path) -> Result<Vec<PathBuf>, DocumentsError> {
    let mut found = Vec::new();
    // with the number of levels of folders to look at below each
    for (folder, levels) in
        [("", 0), ("docs", 1), ("shared-ring", 0), ("clock-sync", 0), ("trace-merge", 0), ("vmm", 0)]
    {
        collect(&workspace.join(folder), levels, &mut found)?;
    }
    for folder in ["guest-agent", "tests", "fuzz"] {
        collect(&workspace.join(folder), 1, &mut found)?;
    }
    found.sort();
    Ok(found)
}

fn collect(folder: &Path, levels: u32, found: &mut Vec<PathBuf>) -> Result<(), DocumentsError> {
    let error = |source| DocumentsError::File { path: folder.into(), source };
    for entry in fs::read_dir(folder).map_err(error)? {
        let path = entry.map_err(error)?.path();
        if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        } else if levels > 0 && path.is_dir() {
            collect(&path, levels - 1, found)?;
        }
    }
    Ok(())
}

impl Document {
    fn parse(text: &str) -> Self {
        let mut document = Self::default();
        let mut heading: Option<String> = None;
        for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            if let Event::Code(words) = &event {
                document.code.push((range.start, words.to_string()));
            }
            match event {
                Event::Start(Tag::CodeBlock(_) | Tag::Table(_)) => document.fixed.push(range),
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    document.links.push((range.start, dest_url.into_string()));
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::Text(words) | Event::Code(words) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&words);
                    }
                }
                Event::End(TagEnd::Heading(_)) => document.anchors.extend(heading.take().map(|title| anchor(&title))),
                _ => {}
            }
        }
        document
    }
}

/// The anchor that forges make of a heading.
fn anchor(title: &str) -> String {
    let kept = title.chars().filter(|letter| letter.is_alphanumeric() || [' ', '-', '_'].contains(letter));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// Lines wider than [`WIDTH`] outside of `fixed`, unless they are a single word.
fn wide_lines(text: &str, fixed: &[Range<usize>]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut offset = 0;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let columns = line.trim_end().chars().count();
        let is_fixed = fixed.iter().any(|range| range.contains(&offset));
        if columns > WIDTH && !is_fixed && line.split_whitespace().count() > 1 {
            findings.push(Finding { line: index + 1, what: format!("{columns} columns; wrap prose at {WIDTH}") });
        }
        offset += line.len();
    }
    findings
}

/// What is wrong with a link of the document at `path` to `destination`. Links to other hosts are not followed.
fn broken(path: &Path, document: &Document, destination: &str) -> Result<Option<String>, DocumentsError> {
    if destination.contains("://") || destination.starts_with("mailto:") {
        return Ok(None);
    }
    let (file, fragment) = destination.split_once('#').map_or((destination, None), |(file, rest)| (file, Some(rest)));
    let target = path.parent().unwrap_or(path).join(file);
    if !file.is_empty() && !target.exists() {
        return Ok(Some(format!("link to {file}, which does not exist")));
    }
    let known = match fragment {
        None => true,
        Some(fragment) if file.is_empty() => document.anchors.contains(fragment),
        Some(fragment) => Document::parse(&read(&target)?).anchors.contains(fragment),
    };
    Ok((!known).then(|| format!("link to {destination}, where no heading is called that")))
}

/// Whether inline code names a file of the source tree: below one of its folders, with a file's ending. What is built
/// is not a part of it.
fn is_path(workspace: &Path, code: &str) -> bool {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-".contains(letter);
    let Some((top, rest)) = code.split_once('/') else { return false };
    !top.is_empty()
        && top != "target"
        && code.chars().all(is_plain)
        && rest.rsplit('/').next().is_some_and(|name| name.contains('.'))
        && workspace.join(top).is_dir()
}

fn line_number(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset].iter().filter(|byte| **byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_prose_is_found_and_wide_code_and_tables_are_not() {
        let wide = "word ".repeat(30);
        let text = format!("# Title\n\n{wide}\n\n```text\n{wide}\n```\n\n| {wide} |\n|---|\n| {wide} |\n\n- {wide}\n");

        let findings = wide_lines(&text, &Document::parse(&text).fixed);

        assert_eq!(findings.iter().map(|finding| finding.line).collect::<Vec<_>>(), [3, 13]);
    }

    #[test]
    fn width_counts_characters_and_spares_single_words() {
        assert!(wide_lines(&format!("{} µs", "µ".repeat(117)), &[]).is_empty());
        assert!(wide_lines(&format!("https://{}", "a".repeat(200)), &[]).is_empty());
        assert_eq!(wide_lines(&format!("{} µs", "µ".repeat(118)), &[]).len(), 1);
    }

    #[test]
    fn anchors_are_those_that_forges_make() {
        let document = Document::parse("## What the host believes\n\n### `tasks`\n\n# A 64-bit clock, and its bound\n");

        let wanted = ["what-the-host-believes", "tasks", "a-64-bit-clock-and-its-bound"];
        assert_eq!(document.anchors, wanted.map(str::to_owned).into());
    }

    #[test]
    fn paths_of_the_source_tree_are_distinguished_from_other_code() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("vmm")).unwrap();

        let reported =
            ["vmm/src/main.rs", "vmm/a.c", "vmm/verification", "usr/lib/a.so", "vmm/src/*.rs", "a.rs", "/vmm/a.rs"]
                .map(|code| is_path(folder.path(), code));

        assert_eq!(reported, [true, true, false, false, false, false, false]);
    }

    #[test]
    fn links_without_a_target_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.md");
        fs::write(folder.path().join("b.md"), "# There\n").unwrap();
        let document = Document::parse("# Here\n");

        let findings = ["b.md", "b.md#there", "#here", "https://example.org/x", "c.md", "b.md#gone", "#gone"]
            .map(|link| broken(&path, &document, link).unwrap().is_some());

        assert_eq!(findings, [false, false, false, false, true, true, true]);
    }
}
