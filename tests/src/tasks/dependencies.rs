//! Checks of the crates that the workspace is built from: each one named in a manifest has its reason in
//! `docs/dependencies.md`, comes from crates.io, and has a licence that a user of Strata can live with.

use crate::build::binaries;
use crate::paths::Paths;
use crate::process::{self, ProcessError};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where each crate's reason stands, below the workspace.
const DOCUMENT: &str = "docs/dependencies.md";
/// The registry that crates may come from, as cargo names it.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";
/// Crates whose second version in one program means a second, incompatible set of types.
const SINGLE_VERSION: [&str; 2] = ["vm-memory", "vmm-sys-util"];
/// A crate must offer one of these licences; the document says them too.
const LICENCES: [&str; 8] =
    ["MIT", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "Zlib", "bzip2-1.0.6", "Unicode-3.0", "NCSA"];

/// Why the crates are not as they should be.
#[derive(Debug, thiserror::Error)]
pub enum DependenciesError {
    /// cargo does not say what the workspace is built from.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// cargo's answer is not understood.
    #[error("cannot read what `cargo metadata` printed")]
    Metadata(#[source] serde_json::Error),
    /// The document could not be read.
    #[error("cannot read {}", path.display())]
    Document {
        /// The document.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// What has to be mended, one finding a line.
    #[error("{}", .0.join("\n"))]
    Findings(Vec<String>),
}

/// What `cargo metadata` prints, as far as it matters here.
#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    /// `None` for the crates of the workspace.
    source: Option<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    name: String,
    source: Option<String>,
}

/// Checks all crates that `Cargo.lock` names.
///
/// # Errors
///
/// All findings, or why the crates are not known.
pub fn check(paths: &Paths) -> Result<(), DependenciesError> {
    let target = paths.builds().join("metadata");
    let arguments = ["metadata", "--format-version", "1", "--filter-platform", "x86_64-unknown-linux-gnu"];
    let printed = process::capture(binaries::cargo(paths, Path::new(&target)).args(arguments))?;
    let metadata: Metadata = serde_json::from_str(&printed).map_err(DependenciesError::Metadata)?;
    let path = paths.workspace().join(DOCUMENT);
    let document = fs::read_to_string(&path).map_err(|source| DependenciesError::Document { path, source })?;
    let findings = findings(&metadata, &document);
    if findings.is_empty() { Ok(()) } else { Err(DependenciesError::Findings(findings)) }
}

fn findings(metadata: &Metadata, document: &str) -> Vec<String> {
    let own = metadata.packages.iter().filter(|package| package.source.is_none());
    let named = own.flat_map(|package| &package.dependencies).filter(|dependency| dependency.source.is_some());
    let named: BTreeSet<&str> = named.map(|dependency| dependency.name.as_str()).collect();
    let explained = explained(document);
    let unexplained = named.iter().filter(|name| !explained.contains(**name));
    let unused = explained.iter().filter(|name| !named.contains(name.as_str()));
    let mut findings: Vec<String> =
        unexplained.map(|name| format!("{DOCUMENT}: {name} has no line: say why it is there")).collect();
    findings
        .extend(unused.map(|name| format!("{DOCUMENT}: no crate of the workspace names {name}: take its line out")));

    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in metadata.packages.iter().filter(|package| package.source.is_some()) {
        versions.entry(&package.name).or_default().push(&package.version);
        if package.source.as_deref() != Some(REGISTRY) {
            findings.push(format!("{} {} does not come from crates.io", package.name, package.version));
        }
        if !package.license.as_deref().is_some_and(is_allowed) {
            let licence = package.license.as_deref().unwrap_or("not declared");
            findings.push(format!("{} {}: its licence ({licence}) is not in the list", package.name, package.version));
        }
    }
    for name in SINGLE_VERSION {
        let found = versions.get(name).map_or(&[][..], Vec::as_slice);
        if found.len() > 1 {
            findings.push(format!("{name} is there as {}: align the rust-vmm crates' minors", found.join(" and ")));
        }
    }
    findings
}

/// The crates of the document's tables: the inline code in each row's first cell.
fn explained(document: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    // the cell of a row of a table's body, while inside one
    let mut cell = None;
    for event in Parser::new_ext(document, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::TableRow) => cell = Some(0),
            Event::End(TagEnd::TableCell) => cell = cell.map(|cell| cell + 1),
            Event::End(TagEnd::TableRow) => cell = None,
            Event::Code(code) if cell == Some(0) => {
                found.insert(code.into_string());
            }
            _ => {}
        }
    }
    found
}

/// Whether one of [`LICENCES`] satisfies this expression, the old form with a slash included.
fn is_allowed(expression: &str) -> bool {
    spdx::Expression::parse_mode(expression, spdx::ParseMode::LAX).is_ok_and(|expression| {
        expression.evaluate(|wanted| wanted.license.id().is_some_and(|id| LICENCES.contains(&id.name)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT_OF_TWO: &str = "| crate | why |\n|---|---|\n| `a`, `b` | uses `c` |\n";

    fn metadata(json: &str) -> Metadata {
        serde_json::from_str(json).unwrap()
    }

    /// A workspace of one crate that names `name`, and that crate.
    fn workspace_with(name: &str, licence: &str, source: &str) -> Metadata {
        metadata(&format!(
            r#"{{"packages": [
                {{"name": "own", "version": "1", "license": null, "source": null,
                  "dependencies": [{{"name": "{name}", "source": "{source}"}}]}},
                {{"name": "{name}", "version": "2", "license": "{licence}", "source": "{source}", "dependencies": []}}
            ]}}"#
        ))
    }

    #[test]
    fn only_the_first_cell_of_a_row_names_crates() {
        assert_eq!(explained(DOCUMENT_OF_TWO).into_iter().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn crate_without_a_line_and_line_without_a_crate_are_found() {
        let findings = findings(&workspace_with("c", "MIT", REGISTRY), DOCUMENT_OF_TWO);

        assert_eq!(findings.len(), 3, "{findings:?}");
        assert!(findings[0].contains("c has no line"), "{findings:?}");
        assert!(findings[1].contains("names a"), "{findings:?}");
    }

    #[test]
    fn other_registry_and_other_licence_are_found() {
        let document = "| crate |\n|---|\n| `a` |\n";
        let findings = findings(&workspace_with("a", "GPL-3.0-only", "git+https://example.org/a"), document);

        assert_eq!(
            findings,
            ["a 2 does not come from crates.io", "a 2: its licence (GPL-3.0-only) is not in the list"]
        );
    }

    #[test]
    fn second_version_of_a_crate_that_must_be_single_is_found() {
        let package = |version: &str| {
            format!(
                r#"{{"name": "vm-memory", "version": "{version}", "license": "MIT", "source": "{REGISTRY}", "dependencies": []}}"#
            )
        };
        let both = metadata(&format!(r#"{{"packages": [{}, {}]}}"#, package("1.0.0"), package("2.0.0")));

        let findings = findings(&both, "");

        assert_eq!(findings, ["vm-memory is there as 1.0.0 and 2.0.0: align the rust-vmm crates' minors"]);
    }

    #[test]
    fn licence_is_allowed_when_one_choice_of_it_is() {
        let allowed = ["MIT/Apache-2.0", "MIT OR LGPL-2.1-or-later", "(MIT OR Apache-2.0) AND Unicode-3.0"];
        let refused = ["GPL-2.0-only", "MIT AND GPL-2.0-only", "no licence"];

        assert!(allowed.into_iter().all(is_allowed));
        assert!(!refused.into_iter().any(is_allowed));
    }
}
