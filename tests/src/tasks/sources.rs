//! Checks of the project's Rust sources that neither the compiler nor its lints make: the imports of a module are one
//! block, which rustfmt then sorts, derives are in one order, a test that is not run with the others says
//! when it is, and no modules of a crate import each other in a circle.

use super::circles::Crate;
use crate::paths::Paths;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Folders with sources of the project.
const FOLDERS: [&str; 7] = ["clock-sync", "fuzz", "guest-agent", "shared-ring", "tests", "trace-merge", "vmm"];
/// Folders below these that hold what was built or found.
const SKIPPED: [&str; 3] = ["target", "corpus", "artifacts"];
/// Those whose modules may import each other: they are not part of the product.
const TOOLS: [&str; 2] = ["fuzz", "tests"];
/// Traits that are derived, in the order in which they stand, before all others.
const DERIVED: [&str; 8] = ["Clone", "Copy", "Debug", "Default", "PartialEq", "Eq", "PartialOrd", "Ord"];
/// How the reason of an ignored test begins that `cargo xtask test --all` runs. It runs all of those in these folders.
const TIER_ALL: &str = "tier all: ";
const OF_TIER_ALL: [&str; 2] = ["tests/tests", "trace-merge/query"];
/// How other reasons begin: another test runs it as a process of its own, or a person does, to measure.
const OTHER_REASONS: [&str; 2] = ["child process: ", "by hand: "];

/// Why the sources are not as they should be.
#[derive(Debug, thiserror::Error)]
pub enum SourcesError {
    /// A source could not be read.
    #[error("cannot read {}", path.display())]
    File {
        /// The source or folder.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// What has to be mended, one finding a line.
    #[error("{}", .0.join("\n"))]
    Findings(Vec<String>),
}

/// Checks every Rust source of the workspace and of the fuzz targets.
///
/// # Errors
///
/// All findings, or the first file that cannot be read.
pub fn check(paths: &Paths) -> Result<(), SourcesError> {
    let workspace = paths.workspace();
    let mut findings = Vec::new();
    let mut crates = BTreeMap::<PathBuf, Crate>::new();
    for path in all(workspace)? {
        let text = fs::read_to_string(&path).map_err(|source| SourcesError::File { path: path.clone(), source })?;
        let name = path.strip_prefix(workspace).unwrap_or(&path).display().to_string();
        let is_of_tier_all = OF_TIER_ALL.iter().any(|folder| path.starts_with(workspace.join(folder)));
        let found =
            split_imports(&text).into_iter().chain(unordered_derives(&text)).chain(ignored(&text, is_of_tier_all));
        findings.extend(found.map(|(line, what)| format!("{name}:{line}: {what}")));
        if let Some((folder, below)) = in_crate(workspace, &path) {
            crates.entry(folder).or_default().add(below, &text);
        }
    }
    let circles = crates.iter().flat_map(|(folder, modules)| {
        modules.circles().into_iter().map(|circle| format!("{}: {circle}", folder.display()))
    });
    findings.extend(circles);
    if findings.is_empty() { Ok(()) } else { Err(SourcesError::Findings(findings)) }
}

/// The folder of a crate of the product, below the workspace, that has `path` among its modules, and where it is in that.
fn in_crate<'p>(workspace: &Path, path: &'p Path) -> Option<(PathBuf, &'p Path)> {
    let is_tool = TOOLS.iter().any(|tool| path.starts_with(workspace.join(tool)));
    let has_root = |folder: &&Path| ["lib.rs", "main.rs"].iter().any(|root| folder.join(root).is_file());
    let folder = path.ancestors().find(|folder| folder.ends_with("src")).filter(has_root)?;
    let name = folder.strip_prefix(workspace).ok()?.to_owned();
    Some((name, path.strip_prefix(folder).ok()?)).filter(|_| !is_tool)
}

/// Every Rust source of the workspace and of the fuzz targets, sorted.
///
/// # Errors
///
/// The first folder that cannot be read.
pub(super) fn all(workspace: &Path) -> Result<Vec<PathBuf>, SourcesError> {
    let mut sources = Vec::new();
    for folder in FOLDERS {
        collect(&workspace.join(folder), &mut sources)?;
    }
    sources.sort();
    Ok(sources)
}

fn collect(folder: &Path, sources: &mut Vec<PathBuf>) -> Result<(), SourcesError> {
    let error = |source| SourcesError::File { path: folder.into(), source };
    for entry in fs::read_dir(folder).map_err(error)? {
        let path = entry.map_err(error)?.path();
        let is_skipped = SKIPPED.iter().any(|name| path.ends_with(name));
        if path.is_dir() && !is_skipped {
            collect(&path, sources)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push(path);
        }
    }
    Ok(())
}

/// Imports that only blank lines separate from imports of the same indentation and visibility, by line.
fn split_imports(text: &str) -> Vec<(usize, String)> {
    let mut findings = Vec::new();
    // the import above, and whether a blank line came since
    let mut above: Option<(&str, bool)> = None;
    let mut inside: Option<&str> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let kind = import(line);
        if let Some(kind) = kind.or(inside) {
            if inside.is_none() && above == Some((kind, true)) {
                findings.push((number, "join this import to those above; rustfmt sorts them".into()));
            }
            inside = (!line.trim_end().ends_with(';')).then_some(kind);
            above = Some((kind, false));
        } else if line.trim().is_empty() {
            above = above.map(|(kind, _)| (kind, true));
        } else {
            above = None;
        }
    }
    findings
}

/// What stands before the word `use` in an import: its indentation and visibility.
fn import(line: &str) -> Option<&str> {
    let (before, _) = line.split_once("use ")?;
    let visibility = before.trim();
    (visibility.is_empty() || visibility == "pub" || visibility.starts_with("pub(")).then_some(before)
}

/// Derives in another order than [`DERIVED`], by line.
fn unordered_derives(text: &str) -> Vec<(usize, String)> {
    let is_unordered = |line: &str| {
        let derived = line.trim_start().strip_prefix("#[derive(")?.split(')').next()?;
        let places = derived.split(", ").map(|name| DERIVED.iter().position(|known| *known == name));
        Some(!places.map(|place| place.unwrap_or(DERIVED.len())).is_sorted()).filter(|is_unordered| *is_unordered)
    };
    let found = (1..).zip(text.lines()).filter(|(_, line)| is_unordered(line).is_some());
    found
        .map(|(number, _)| (number, format!("derive in the order {}, and others behind", DERIVED.join(", "))))
        .collect()
}

/// Ignored tests whose reason does not say when they are run, by line.
fn ignored(text: &str, is_of_tier_all: bool) -> Vec<(usize, String)> {
    let reasons = if is_of_tier_all { &[TIER_ALL][..] } else { &OTHER_REASONS };
    let attributes = (1..).zip(text.lines()).filter_map(|(number, line)| {
        let rest = line.trim_start().strip_prefix("#[ignore")?;
        let reason = rest.strip_prefix(" = \"").unwrap_or_default();
        (!reasons.iter().any(|begin| reason.starts_with(begin))).then_some(number)
    });
    attributes.map(|number| (number, format!("begin the reason with '{}'", reasons.join("' or '")))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(findings: Vec<(usize, String)>) -> Vec<usize> {
        findings.into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn imports_in_groups_are_found() {
        let text = "use std::fs;\n\nuse a::{\n    b,\n};\nuse c;\n\n\nuse d;\n";

        assert_eq!(lines(split_imports(text)), [3, 9]);
    }

    #[test]
    fn imports_of_other_visibility_or_place_are_blocks_of_their_own() {
        let text = "pub use a;\n\nuse b;\n\nmod c;\n\nuse d;\n\nmod e {\n    use f;\n}\n";

        assert_eq!(lines(split_imports(text)), Vec::<usize>::new());
    }

    #[test]
    fn derives_in_another_order_are_found() {
        let text = "#[derive(Clone, Debug, PartialEq, Serialize)]\n#[derive(Debug, Clone)]\n    #[derive(Debug, Error, Clone)]\n";

        assert_eq!(lines(unordered_derives(text)), [2, 3]);
    }

    #[test]
    fn ignored_test_says_when_it_is_run() {
        let text = "    #[ignore = \"tier all: every kernel\"]\n#[ignore]\n#[ignore = \"by hand: cargo test\"]\n";

        assert_eq!(lines(ignored(text, true)), [2, 3]);
        assert_eq!(lines(ignored(text, false)), [1, 2]);
    }
}
