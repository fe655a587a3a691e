//! What has changed since the branch left the main one, committed or not, and which packages of the workspace that concerns.

use crate::build::binaries::QUERY_MANIFEST;
use crate::paths::Paths;
use crate::process::{self, ProcessError};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names of the main branch, the first of them that there is.
const MAIN: [&str; 3] = ["origin/HEAD", "main", "master"];
/// What concerns every package, at the top of the workspace.
const EVERYWHERE: [&str; 4] = ["Cargo.toml", "Cargo.lock", "clippy.toml", ".cargo/config.toml"];
/// A workspace of its own below a package: `cargo xtask query`.
const APART: &str = "trace-merge/query";

/// Why that is not known.
#[derive(Debug, thiserror::Error)]
pub enum ChangesError {
    /// git or cargo failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// cargo's answer is not what it was.
    #[error("cannot read what `cargo metadata` says")]
    Metadata(#[from] serde_json::Error),
}

/// What `cargo metadata` says.
#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// A package of the workspace.
#[derive(Debug, Deserialize)]
pub(super) struct Package {
    pub(super) name: String,
    pub(super) description: Option<String>,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
    targets: Vec<Target>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    name: String,
    /// The folder of a package of the workspace.
    path: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct Target {
    kind: Vec<String>,
}

impl Package {
    pub(super) fn folder(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(&self.manifest_path)
    }

    fn has_library(&self) -> bool {
        let is_program = |kind: &String| ["bin", "example", "test", "bench", "custom-build"].contains(&kind.as_str());
        self.targets.iter().any(|target| !target.kind.iter().all(is_program))
    }

    fn depends_on(&self, name: &str) -> bool {
        self.dependencies.iter().any(|dependency| dependency.path.is_some() && dependency.name == name)
    }
}

/// Packages, sorted by their names.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Concerned {
    /// Those with files that have changed.
    pub changed: Vec<String>,
    /// These, and those that depend on them.
    pub all: Vec<String>,
    /// Whether one of the latter has a library.
    pub has_library: bool,
    /// Whether `strata-query` is among them, which is a workspace of its own.
    pub query: bool,
}

/// The packages that the changes in the working tree and since the main branch concern.
///
/// # Errors
///
/// When git or cargo does not say.
pub fn concerned(paths: &Paths) -> Result<Concerned, ChangesError> {
    let files = files(paths)?;
    let files: Vec<_> = files.iter().map(|file| paths.workspace().join(file)).collect();
    let query = packages_of(paths, QUERY_MANIFEST)?;
    Ok(of(&packages(paths)?, &query, paths.workspace(), &files))
}

/// The packages of the workspace.
///
/// # Errors
///
/// When cargo does not say.
pub(super) fn packages(paths: &Paths) -> Result<Vec<Package>, ChangesError> {
    packages_of(paths, "Cargo.toml")
}

/// Those of the workspace with this manifest.
fn packages_of(paths: &Paths, manifest: &str) -> Result<Vec<Package>, ChangesError> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["metadata", "--no-deps", "--offline", "--format-version", "1", "--manifest-path", manifest]);
    command.current_dir(paths.workspace());
    let metadata: Metadata = serde_json::from_str(&process::capture(&mut command)?)?;
    Ok(metadata.packages)
}

/// The files that have changed, below the top of the workspace.
fn files(paths: &Paths) -> Result<Vec<String>, ProcessError> {
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        process::capture(command.args(["-c", "core.quotePath=false"]).args(arguments).current_dir(paths.workspace()))
    };
    let base = MAIN.iter().find_map(|main| git(&["merge-base", "HEAD", main]).ok());
    let base = base.as_deref().map_or("HEAD", str::trim);
    let changed = git(&["diff", "--name-only", "--relative", base])?;
    let new = git(&["ls-files", "--others", "--exclude-standard"])?;
    Ok(changed.lines().chain(new.lines()).map(str::to_owned).collect())
}

fn of(packages: &[Package], query: &[Package], workspace: &Path, files: &[PathBuf]) -> Concerned {
    let is_everywhere = |file: &PathBuf| EVERYWHERE.iter().any(|name| *file == workspace.join(name));
    let is_apart = |file: &PathBuf| file.starts_with(workspace.join(APART));
    let changed: BTreeSet<&str> = if files.iter().any(is_everywhere) {
        packages.iter().map(|package| package.name.as_str()).collect()
    } else {
        let here = files.iter().filter(|file| !is_apart(file));
        here.filter_map(|file| Some(owner(packages, file)?.name.as_str())).collect()
    };
    let mut all = changed.clone();
    loop {
        let more = packages.iter().filter(|package| all.iter().any(|name| package.depends_on(name)));
        let more: BTreeSet<&str> = more.map(|package| package.name.as_str()).collect();
        if more.is_subset(&all) {
            break;
        }
        all.extend(more);
    }
    let has_library = packages.iter().any(|package| all.contains(package.name.as_str()) && package.has_library());
    let is_concerned = |package: &Package| all.iter().any(|name| package.depends_on(name));
    let query = files.iter().any(is_apart) || query.iter().any(is_concerned);
    let owned = |names: BTreeSet<&str>| names.into_iter().map(str::to_owned).collect();
    Concerned { changed: owned(changed), all: owned(all), has_library, query }
}

/// The package in whose folder `file` lies: of packages inside each other, the inner one.
fn owner<'p>(packages: &'p [Package], file: &Path) -> Option<&'p Package> {
    let around = packages.iter().filter(|package| file.starts_with(package.folder()));
    around.max_by_key(|package| package.folder().components().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is apart uses the library `top`.
    fn query() -> Vec<Package> {
        let text = r#"{"packages": [{"name": "query", "manifest_path": "/w/trace-merge/query/Cargo.toml",
             "dependencies": [{"name": "top", "path": "/w/top"}], "targets": [{"kind": ["bin"]}]}]}"#;
        serde_json::from_str::<Metadata>(text).unwrap().packages
    }

    /// A program `tool` uses the library `top`, that uses `base`, which lies in the folder of `top`.
    fn packages() -> Vec<Package> {
        let text = r#"{"packages": [
            {"name": "base", "manifest_path": "/w/top/base/Cargo.toml", "dependencies": [{"name": "serde", "path": null}],
             "targets": [{"kind": ["lib"]}]},
            {"name": "top", "manifest_path": "/w/top/Cargo.toml",
             "dependencies": [{"name": "base", "path": "/w/top/base"}], "targets": [{"kind": ["cdylib", "rlib"]}]},
            {"name": "tool", "manifest_path": "/w/tool/Cargo.toml",
             "dependencies": [{"name": "top", "path": "/w/top"}], "targets": [{"kind": ["bin"]}]}]}"#;
        serde_json::from_str::<Metadata>(text).unwrap().packages
    }

    fn concerned_by(files: &[&str]) -> Concerned {
        let files: Vec<_> = files.iter().map(|file| Path::new("/w").join(file)).collect();
        of(&packages(), &query(), Path::new("/w"), &files)
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn packages_that_depend_on_a_changed_one_are_concerned() {
        let concerned = concerned_by(&["top/base/src/lib.rs"]);

        let (changed, all) = (names(&["base"]), names(&["base", "tool", "top"]));
        assert_eq!(concerned, Concerned { changed, all, has_library: true, query: true });
    }

    #[test]
    fn program_alone_has_no_library() {
        let (changed, all) = (names(&["tool"]), names(&["tool"]));

        assert_eq!(concerned_by(&["tool/src/main.rs"]), Concerned { changed, all, has_library: false, query: false });
    }

    #[test]
    fn documents_concern_no_package_and_the_workspace_apart_concerns_itself() {
        let [document, apart] = ["docs/a.md", "trace-merge/query/src/main.rs"].map(|file| concerned_by(&[file]));

        assert_eq!(document, Concerned::default());
        assert_eq!(apart, Concerned { query: true, ..Concerned::default() });
    }

    #[test]
    fn lock_file_of_the_workspace_concerns_all() {
        let concerned = concerned_by(&["Cargo.lock"]);

        let all = names(&["base", "tool", "top"]);
        assert_eq!(concerned, Concerned { changed: all.clone(), all, has_library: true, query: true });
    }
}
