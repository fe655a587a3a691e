//! A root file system of another Debian release, to run compilers in that this machine's release does not have.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use crate::packages::{self, PackageError, Tool};
use crate::paths::Paths;
use crate::process;
use crate::progress;

/// What makes and enters roots.
const TOOLS: [Tool; 2] =
    [Tool { program: "mmdebstrap", package: "mmdebstrap" }, Tool { program: "bwrap", package: "bubblewrap" }];

/// A root file system with a compiler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildRoot {
    folder: PathBuf,
}

impl BuildRoot {
    /// Debian 13 with what the modules of its kernels are built with. Made once and kept.
    ///
    /// # Errors
    ///
    /// When packages cannot be had; that takes root.
    pub fn trixie(paths: &Paths) -> Result<Self, PackageError> {
        let folder = paths.roots().join("trixie");
        if folder.is_dir() {
            return Ok(Self { folder });
        }
        packages::install(paths, &TOOLS)?;
        progress::step("making a root with Debian 13's compiler", || {
            // renamed last, so that an interrupted call is repeated
            let partial = folder.with_extension("partial");
            packages::recreate(&partial)?;
            let mut command = Command::new("mmdebstrap");
            command
                .args(["--quiet", "--variant=apt", "--include=make,gcc-14,binutils,pahole"])
                .args(["--aptopt=APT::Sandbox::User \"root\"", "--aptopt=Acquire::Retries \"3\"", "trixie"])
                .arg(&partial)
                .arg(packages::MIRROR);
            process::run_logged(&mut command, &paths.logs().join("build-root.log"))?;
            fs::rename(&partial, &folder).map_err(|source| PackageError::File { path: folder.clone(), source })
        })?;
        Ok(Self { folder })
    }

    /// A command that runs `program` in the root, where the folders `shared` are under the names that they have here.
    #[must_use]
    pub fn command(&self, program: &Path, shared: &[&Path]) -> Command {
        let mut command = Command::new("bwrap");
        command
            .arg("--die-with-parent")
            .arg("--bind")
            .arg(&self.folder)
            .args(["/", "--dev", "/dev", "--proc", "/proc"]);
        for top in top_folders(shared) {
            command.arg("--bind").arg(&top).arg(&top);
        }
        // what this machine's environment says is not true there
        command.args(["--clearenv", "--setenv", "PATH", "/usr/bin:/usr/sbin", "--chdir", "/"]).arg(program);
        command
    }
}

/// The folders just below `/` that hold these absolute paths: a source tree refers to its neighbours.
fn top_folders(paths: &[&Path]) -> Vec<PathBuf> {
    let mut tops: Vec<PathBuf> = paths
        .iter()
        .filter_map(|path| path.components().find(|component| matches!(component, Component::Normal(_))))
        .map(|component| Path::new("/").join(component))
        .collect();
    tops.sort();
    tops.dedup();
    tops
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_folders_keep_their_names() {
        let root = BuildRoot { folder: "/lab/root".into() };

        let command = root.command(Path::new("/build"), &[Path::new("/sources/a"), Path::new("/sources/b")]);

        let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy().into_owned()).collect();
        assert_eq!(arguments.iter().filter(|argument| *argument == "/sources").count(), 2);
        assert_eq!(arguments.last().unwrap(), "/build");
    }
}
