//! The sources folder: finding out whether a folder is one, and copying it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where packages install the sources.
pub const INSTALLED: &str = "/usr/lib/strata/agent";

/// What every sources folder holds, besides the C files.
const REQUIRED: [&str; 3] = ["Kbuild", "rust.o_shipped", "strata_abi.h"];
/// The list of what [`mirror`] has copied, in the target.
const MANIFEST: &str = ".mirrored";

/// A folder that the module cannot be built from.
#[derive(Debug, thiserror::Error)]
#[error("'{}' does not hold the agent's sources: there is no {missing} in it", folder.display())]
pub struct NotSources {
    pub folder: PathBuf,
    /// The first file that is missing.
    pub missing: &'static str,
}

/// Why sources could not be copied.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {}", path.display())]
pub struct SourcesError {
    pub path: PathBuf,
    #[source]
    pub source: io::Error,
}

fn error(path: &Path) -> impl FnOnce(io::Error) -> SourcesError + use<> {
    let path = path.to_path_buf();
    move |source| SourcesError { path, source }
}

/// Checks that `folder` holds what a build takes.
///
/// # Errors
///
/// When a file is missing.
pub fn check(folder: &Path) -> Result<(), NotSources> {
    match REQUIRED.into_iter().find(|name| !folder.join(name).is_file()) {
        Some(missing) => Err(NotSources { folder: folder.to_path_buf(), missing }),
        None => Ok(()),
    }
}

/// Copies the files below `from` that `wanted` accepts (by path relative to `from`) to `to`, and removes what an
/// earlier call has copied and this one has not. Files that are the same keep their time, so that `make` rebuilds only
/// what it must; other files in `to` stay.
///
/// # Errors
///
/// When a file cannot be read or written.
pub fn mirror(from: &Path, to: &Path, wanted: impl Fn(&Path) -> bool) -> Result<(), SourcesError> {
    let manifest = to.join(MANIFEST);
    let before = fs::read_to_string(&manifest).unwrap_or_default();
    fs::create_dir_all(to).map_err(error(to))?;
    let mut copied = BTreeSet::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let path = from.join(&folder);
        for entry in fs::read_dir(&path).map_err(error(&path))? {
            let entry = entry.map_err(error(&path))?;
            let relative = folder.join(entry.file_name());
            if relative == Path::new(MANIFEST) || !wanted(&relative) {
                continue;
            }
            let target = to.join(&relative);
            if entry.path().is_dir() {
                fs::create_dir_all(&target).map_err(error(&target))?;
                folders.push(relative);
            } else {
                let content = fs::read(entry.path()).map_err(error(&entry.path()))?;
                write_if_changed(&target, &content)?;
                copied.insert(relative.to_string_lossy().into_owned());
            }
        }
    }
    for name in before.lines().filter(|name| !copied.contains(*name)) {
        match fs::remove_file(to.join(name)) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => return Err(error(&to.join(name))(source)),
            _ => {}
        }
    }
    let list: Vec<_> = copied.into_iter().collect();
    write_if_changed(&manifest, list.join("\n").as_bytes())
}

/// Writes `content` to `path`, unless it holds that already.
///
/// # Errors
///
/// When the file cannot be written.
pub fn write_if_changed(path: &Path, content: &[u8]) -> Result<(), SourcesError> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    fs::write(path, content).map_err(error(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(folder: &Path) -> Vec<String> {
        let mut names = Vec::new();
        let mut folders = vec![folder.to_path_buf()];
        while let Some(path) = folders.pop() {
            for entry in fs::read_dir(path).unwrap().map(Result::unwrap) {
                if entry.path().is_dir() {
                    folders.push(entry.path());
                } else {
                    names.push(entry.path().strip_prefix(folder).unwrap().display().to_string());
                }
            }
        }
        names.retain(|name| name != MANIFEST);
        names.sort();
        names
    }

    #[test]
    fn mirror_takes_folders_and_leaves_out_what_is_not_wanted() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir_all(from.path().join("shadow/trace")).unwrap();
        for name in ["Kbuild", "Cargo.toml", "shadow/trace/x.h"] {
            fs::write(from.path().join(name), name).unwrap();
        }

        mirror(from.path(), to.path(), |path| path != Path::new("Cargo.toml")).unwrap();

        assert_eq!(tree(to.path()), ["Kbuild", "shadow/trace/x.h"]);
    }

    #[test]
    fn mirror_removes_its_own_copies_only() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(from.path().join("gone.c"), "").unwrap();
        fs::write(from.path().join("kept.c"), "").unwrap();
        mirror(from.path(), to.path(), |_| true).unwrap();
        fs::write(to.path().join("strata.mod.c"), "").unwrap();
        fs::remove_file(from.path().join("gone.c")).unwrap();

        mirror(from.path(), to.path(), |_| true).unwrap();

        assert_eq!(tree(to.path()), ["kept.c", "strata.mod.c"]);
    }

    #[test]
    fn mirror_leaves_the_time_of_an_unchanged_file_alone() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(from.path().join("main.c"), "text").unwrap();
        mirror(from.path(), to.path(), |_| true).unwrap();
        let long_ago = std::time::SystemTime::UNIX_EPOCH;
        fs::File::options().write(true).open(to.path().join("main.c")).unwrap().set_modified(long_ago).unwrap();

        mirror(from.path(), to.path(), |_| true).unwrap();

        assert_eq!(fs::metadata(to.path().join("main.c")).unwrap().modified().unwrap(), long_ago);
    }

    #[test]
    fn check_names_what_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("Kbuild"), "").unwrap();

        let error = check(folder.path()).unwrap_err();

        assert!(error.to_string().contains("rust.o_shipped"), "{error}");
    }
}
