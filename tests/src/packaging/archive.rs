//! Files of several packages as one archive that is unpacked anywhere: `tar` puts it together.

use crate::fetch::apt::PackageError;
use crate::packaging::package::{Package, error};
use crate::process;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Writes what `packages` have below `/usr` as the archive `name.tar.xz` in the folder `out`, in which it lies below
/// the folder `name`. Returns its file.
///
/// # Errors
///
/// When a file cannot be read or written.
pub fn write(packages: &[&Package<'_>], name: &str, out: &Path) -> Result<PathBuf, PackageError> {
    fs::create_dir_all(out).map_err(error(out))?;
    let file = out.join(format!("{name}.tar.xz"));
    let mut tar = Command::new("tar");
    tar.args(["--create", "--xz", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.arg(format!("--transform=s,^usr,{name},S")).arg("--file").arg(&file);
    for package in packages {
        tar.arg("-C").arg(package.root()).arg("usr");
    }
    process::capture(&mut tar)?;
    Ok(file)
}
