//! The map of the crates, `docs/map.md`: the modules of each, with what they say first about themselves.

use super::changes;
use super::documents::{DocumentsError, read};
use crate::paths::Paths;
use pulldown_cmark::{BrokenLink, Event, Options, Parser};
use std::fmt::Write;
use std::path::Path;

/// Where it lies in the workspace.
pub(super) const MAP: &str = "docs/map.md";

/// Folders of what others build on: not the tests.
const FOLDERS: [&str; 5] = ["shared-ring", "clock-sync", "guest-agent", "trace-merge", "vmm"];

/// What stands above the tables.
const HEAD: &str = "\
# The crates and their modules

<!-- made by `STRATA_UPDATE_DOCUMENTS=1 cargo xtask documents` from the first sentence of each module -->

What each crate is made of, beside its tests. [design.md](design.md) says what builds on what.
";

/// The map, made of the sources.
///
/// # Errors
///
/// When cargo does not name the crates, or a source cannot be read.
pub(super) fn text(paths: &Paths) -> Result<String, DocumentsError> {
    let workspace = paths.workspace();
    let mut crates = Vec::new();
    for package in changes::packages(paths)? {
        let folder = package.folder().strip_prefix(workspace).unwrap_or(package.folder()).to_owned();
        let source = package.folder().join("src");
        let place = FOLDERS.iter().position(|top| folder.starts_with(top));
        if let (Some(place), true) = (place, source.join("lib.rs").exists()) {
            crates.push((place, folder, package, source));
        }
    }
    crates.sort_by(|(place, folder, ..), (other_place, other_folder, ..)| {
        (place, folder).cmp(&(other_place, other_folder))
    });
    let mut map = HEAD.to_owned();
    for (_, folder, package, source) in crates {
        // A string takes all that is written.
        let _ = write!(map, "\n## {}\n\n`{}/`", package.name, folder.display());
        let _ = writeln!(map, ": {}.", package.description.unwrap_or_default());
        let modules = modules(&read(&source.join("lib.rs"))?);
        if !modules.is_empty() {
            map.push_str("\n| module | what it is |\n|---|---|\n");
        }
        for module in modules {
            let _ = writeln!(map, "| `{module}` | {} |", first_sentence(&read(&file_of(&source, &module))?));
        }
    }
    Ok(map)
}

/// The file of a module at the top of the crate whose sources are in `source`.
fn file_of(source: &Path, module: &str) -> std::path::PathBuf {
    let file = source.join(format!("{module}.rs"));
    if file.exists() { file } else { source.join(module).join("mod.rs") }
}

/// The modules that a crate's root names, beside those of tests.
fn modules(root: &str) -> Vec<String> {
    let mut of_tests = false;
    let mut modules = Vec::new();
    for line in root.lines() {
        let declaration = ["pub mod ", "pub(crate) mod ", "mod "].iter().find_map(|start| line.strip_prefix(start));
        if let Some(module) = declaration.and_then(|rest| rest.strip_suffix(';'))
            && !of_tests
        {
            modules.push(module.to_owned());
        }
        of_tests = line.starts_with("#[cfg(") && line.contains("test");
    }
    modules
}

/// The first sentence of a module's documentation.
fn first_sentence(source: &str) -> String {
    let lines = source.lines().map_while(|line| line.strip_prefix("//!"));
    let paragraph: Vec<&str> = lines.map(str::trim).take_while(|line| !line.is_empty()).collect();
    let paragraph = paragraph.join(" ");
    let end = paragraph.find(". ").unwrap_or(paragraph.len());
    without_links(paragraph[..end].trim_end_matches('.')).replace('|', "\\|")
}

/// What a reader sees of `text`: links of documentation lead nowhere from here.
fn without_links(text: &str) -> String {
    let is_text = |event: Event<'_>| match event {
        Event::Text(words) => Some(words.into_string()),
        Event::Code(words) => Some(format!("`{words}`")),
        _ => None,
    };
    let resolve = |link: BrokenLink<'_>| Some((link.reference.into_string().into(), "".into()));
    Parser::new_with_broken_link_callback(text, Options::empty(), Some(resolve)).filter_map(is_text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_of_a_root_are_found_but_for_tests() {
        let root =
            "//! A crate.\n\nmod a;\npub mod b;\n#[cfg(test)]\nmod tests;\n#[cfg(feature = \"x\")]\npub mod c;\n";

        assert_eq!(modules(root), ["a", "b", "c"]);
    }

    #[test]
    fn first_sentence_ends_at_its_stop_or_with_the_paragraph() {
        assert_eq!(first_sentence("//! Reads [`Page`]s\n//! of a ring. And more.\n"), "Reads `Page`s of a ring");
        assert_eq!(
            first_sentence("//! Filters of the [policy](super::policy) | rules.\n"),
            "Filters of the policy \\| rules"
        );
        assert_eq!(first_sentence("//! Reads pages: all.\n//!\n//! More.\n"), "Reads pages: all");
        assert_eq!(first_sentence("use a;\n"), "");
    }
}
