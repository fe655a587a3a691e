//! Packages as an image for containers, of the Open Container Initiative's layout: `umoci` puts it together.

use crate::fetch::apt::PackageError;
use crate::packaging::package::{Package, error, settle};
use crate::packaging::released;
use crate::process;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where a container begins: what users mount their kernels and recordings at.
const WORKING_FOLDER: &str = "/work";

/// Writes an image with the files of `packages`; the first names it. It runs `program`. Returns its file:
/// an archive of an image layout with the tag `version`, in the folder `out`.
///
/// # Errors
///
/// When `umoci` or `tar` fails, or a file cannot be written.
pub fn write(packages: &[&Package<'_>], program: &str, version: &str, out: &Path) -> Result<PathBuf, PackageError> {
    fs::create_dir_all(out).map_err(error(out))?;
    let work = tempfile::tempdir_in(out).map_err(error(out))?;
    let layout = work.path().join("layout");
    let image = format!("{}:{version}", layout.display());
    let files = work.path().join("files");
    make_folders(&files)?;
    let umoci = |arguments: &[&str]| process::capture(Command::new("umoci").args(arguments)).map(drop);
    umoci(&["init", "--layout", &layout.to_string_lossy()])?;
    umoci(&["new", "--image", &image])?;
    let released = released("+%FT%TZ")?;
    let since = format!("--history.created={released}");
    settle(&files)?;
    umoci(&["insert", "--image", &image, &since, &files.to_string_lossy(), "/"])?;
    for package in packages {
        umoci(&["insert", "--image", &image, &since, &package.root().join("usr").to_string_lossy(), "/usr"])?;
    }
    let control = packages.first().map(|package| package.control());
    let (name, summary) = control.map_or_else(Default::default, |control| (control.name, control.summary));
    umoci(&[
        "config",
        "--image",
        &image,
        &since,
        &format!("--created={released}"),
        "--os=linux",
        "--architecture=amd64",
        &format!("--config.entrypoint={program}"),
        "--config.cmd=--help",
        &format!("--config.workingdir={WORKING_FOLDER}"),
        &format!("--config.label=org.opencontainers.image.title={name}"),
        &format!("--config.label=org.opencontainers.image.description={summary}"),
        &format!("--config.label=org.opencontainers.image.version={version}"),
    ])?;
    umoci(&["gc", "--layout", &layout.to_string_lossy()])?;
    let file = out.join(format!("{name}-{version}.oci.tar"));
    settle(&layout)?;
    let mut tar = Command::new("tar");
    tar.args(["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--file"]);
    process::capture(tar.arg(&file).arg("-C").arg(&layout).arg("."))?;
    Ok(file)
}

/// Makes the image's own folders in `root`, as any user of a container needs them.
fn make_folders(root: &Path) -> Result<(), PackageError> {
    for (folder, permissions) in [("/", 0o755), ("/tmp", 0o1777), (WORKING_FOLDER, 0o755)] {
        let folder = root.join(folder.trim_start_matches('/'));
        fs::create_dir_all(&folder).map_err(error(&folder))?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(permissions)).map_err(error(&folder))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_user_of_a_container_has_a_place_for_temporary_files() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("files");

        make_folders(&root).unwrap();

        let mode = |name: &str| fs::metadata(root.join(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(["", "tmp", "work"].map(mode), [0o755, 0o1777, 0o755]);
    }
}
