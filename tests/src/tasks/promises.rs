//! What the tests show, `docs/promises.md`: the lines `//! Shows: …` of the sources, by crate.

use super::changes;
use super::documents::{DocumentsError, read};
use super::sources;
use crate::paths::Paths;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

/// Where it lies in the workspace.
pub(super) const PROMISES: &str = "docs/promises.md";

/// How the line begins with which a test says what it shows.
const SHOWS: &str = "//! Shows: ";

/// What stands above the tables.
const HEAD: &str = "\
# What is promised, and the tests that show it

<!-- made by `STRATA_UPDATE_DOCUMENTS=1 cargo xtask documents` from the lines `//! Shows: …` of the tests -->

[verification.md](verification.md) says what each kind of test can show. `cargo xtask test` runs all of these, and the
longer forms of some with `--all`. \"Both readers\": `strata check` and babeltrace2 find no fault. \"This kernel\", \"this
KVM\": those of the machine that runs the test.
";

/// The page, made of the sources, and the tests that say nothing, one finding each.
///
/// # Errors
///
/// When cargo does not name the crates, or a source cannot be read.
pub(super) fn text(paths: &Paths) -> Result<(String, Vec<String>), DocumentsError> {
    let workspace = paths.workspace();
    let mut crates = changes::packages(paths)?;
    // A crate inside of another one's folder comes first, and takes its files.
    crates.sort_by_key(|package| std::cmp::Reverse(package.folder().components().count()));
    let mut promises = BTreeMap::<String, BTreeMap<String, BTreeSet<String>>>::new();
    let mut findings = Vec::new();
    for path in sources::all(workspace)? {
        let name = path.strip_prefix(workspace).unwrap_or(&path).display().to_string();
        let text = read(&path)?;
        let shown = shown(&text);
        let Some(package) = crates.iter().find(|package| path.starts_with(package.folder())) else { continue };
        if shown.is_empty() && is_test_program(package.folder(), &path) {
            findings.push(format!("{name}: say what it shows, in a line `{}`", SHOWS.trim_end()));
        }
        for promise in shown {
            let of_crate = promises.entry(package.name.clone()).or_default();
            of_crate.entry(promise.to_owned()).or_default().insert(name.clone());
        }
    }
    Ok((page(&promises), findings))
}

/// The promises that a source says it shows.
fn shown(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.trim_start().strip_prefix(SHOWS)).collect()
}

/// Whether cargo makes a test program of the file at `path` of the crate in `folder`.
fn is_test_program(folder: &Path, path: &Path) -> bool {
    let Ok(rest) = path.strip_prefix(folder.join("tests")) else { return false };
    rest.components().count() == 1 || (rest.components().count() == 2 && rest.ends_with("main.rs"))
}

fn page(promises: &BTreeMap<String, BTreeMap<String, BTreeSet<String>>>) -> String {
    let mut page = HEAD.to_owned();
    for (package, promises) in promises {
        // A string takes all that is written.
        let _ = writeln!(page, "\n## {package}\n\n| promise | shown by |\n|---|---|");
        for (promise, files) in promises {
            let files = files.iter().map(|file| format!("`{file}`")).collect::<Vec<_>>();
            let _ = writeln!(page, "| {promise} | {} |", files.join(", "));
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_say_what_is_shown_are_found_in_files_and_in_modules() {
        let text =
            format!("//! A test.\n//!\n{SHOWS}One.\n{SHOWS}Two.\nmod tests {{\n    {SHOWS}Three.\n    // Shows: no\n");

        assert_eq!(shown(&text), ["One.", "Two.", "Three."]);
    }

    #[test]
    fn test_programs_are_distinguished_from_their_modules() {
        let folder = Path::new("/w/vmm");

        let reported = ["tests/a.rs", "tests/b/main.rs", "tests/b/mod.rs", "tests/b/c/main.rs", "src/tests.rs"]
            .map(|file| is_test_program(folder, &folder.join(file)));

        assert_eq!(reported, [true, true, false, false, false]);
    }

    #[test]
    fn promise_of_two_tests_is_one_row() {
        let files = BTreeSet::from(["vmm/a.rs".to_owned(), "vmm/b.rs".to_owned()]);
        let promises = BTreeMap::from([("vmm".to_owned(), BTreeMap::from([("It holds.".to_owned(), files)]))]);

        let page = page(&promises);

        assert!(
            page.ends_with("\n## vmm\n\n| promise | shown by |\n|---|---|\n| It holds. | `vmm/a.rs`, `vmm/b.rs` |\n")
        );
    }
}
