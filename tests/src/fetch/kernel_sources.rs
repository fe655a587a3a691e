//! The sources of Debian's kernels: downloaded and unpacked, never installed.

use crate::fetch::apt::{Apt, PackageError, recreate};
use crate::fetch::kernel_packages::{Suite, dependencies};
use crate::paths::Paths;
use crate::process;
use crate::progress;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The package that always depends on the current sources.
const META_PACKAGE: &str = "linux-source";

/// Unpacks the source tree of the kernel of `suite` into `tree`, unless it is there.
///
/// # Errors
///
/// When apt, dpkg or tar fails, or a file cannot be written.
pub fn fetch(paths: &Paths, suite: Suite, tree: &Path) -> Result<(), PackageError> {
    if tree.is_dir() {
        return Ok(());
    }
    progress::step(&format!("fetching the sources of the kernel of {}", suite.name()), || {
        let apt = Apt::with_sources(paths, paths.apt().join(suite.name()), suite.sources())?;
        let description = apt.show(META_PACKAGE)?;
        let package = dependencies(&description).find(|name| name.starts_with(META_PACKAGE));
        let package = package.ok_or_else(|| PackageError::Unknown(META_PACKAGE.to_owned()))?;
        let root = tree.with_extension("package");
        apt.unpack([package], &paths.packages().join(package), &root)?;
        let archive: PathBuf = root.join("usr/src").join(format!("{package}.tar.xz"));
        // renamed last, so that an interrupted call is repeated
        let partial = tree.with_extension("partial");
        recreate(&partial)?;
        let mut tar = Command::new("tar");
        tar.arg("--strip-components=1").arg("-C").arg(&partial).arg("-xJf").arg(&archive);
        process::run_logged(&mut tar, &paths.logs().join("kernel-source-tar.log"))?;
        let error = |path: &Path| {
            let path = path.to_path_buf();
            move |source| PackageError::File { path, source }
        };
        fs::rename(&partial, tree).map_err(error(tree))?;
        fs::remove_dir_all(&root).map_err(error(&root))
    })
}
