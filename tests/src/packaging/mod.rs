//! `cargo xtask dist`: Strata in the forms in which people install it.

pub mod archive;
pub mod contents;
pub mod deb;
pub mod image;
pub mod materials;
pub mod package;
pub mod rpm;

use crate::build::binaries::Purpose;
use crate::fetch::apt::PackageError;
use crate::fetch::kernel_packages::{Flavour, KernelChoice};
use crate::fetch::tools::{self, Tool};
use crate::lock::Lock;
use crate::paths::Paths;
use crate::process::{self, ProcessError};
use crate::progress;
use clap::ValueEnum;
use package::Package;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

pub use contents::{PackagingError, VERSION};

/// The version without Debian's revision.
pub(crate) const RELEASE: &str = env!("CARGO_PKG_VERSION");
/// When this version was released, seconds of Unix time, by the day that CHANGELOG.md names. Every file in a package
/// has this time: the same programs are packaged as the same bytes on every day.
const RELEASED: u64 = 1_795_867_200;
/// The file beside the packages that holds their checksums, as `sha256sum --check` reads them.
const CHECKSUMS: &str = "SHA256SUMS";
const TOOLS: [Tool; 3] = [
    Tool { program: "rpmbuild", package: "rpm" },
    Tool { program: "umoci", package: "umoci" },
    Tool { program: "xz", package: "xz-utils" },
];

/// A form in which Strata is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// Packages for Debian and its derivatives
    Deb,
    /// Packages for distributions with RPM
    Rpm,
    /// An archive to unpack anywhere
    Tar,
    /// An image for containers
    Oci,
}

impl Form {
    /// Every form.
    pub const ALL: [Self; 4] = [Self::Deb, Self::Rpm, Self::Tar, Self::Oci];
}

/// The kernels that modules are made for: those of Debian for virtual machines and for any machine.
#[must_use]
pub fn kernels() -> Vec<KernelChoice> {
    KernelChoice::all().filter(|kernel| matches!(kernel.flavour, Flavour::Cloud | Flavour::Generic)).collect()
}

/// What is made.
#[derive(Clone, Copy, Debug)]
pub struct Selection<'a> {
    /// The forms.
    pub forms: &'a [Form],
    /// The guest kernels with a ready-made module.
    pub kernels: &'a [KernelChoice],
    /// Whether `strata-query` is among the programs, which takes long to build.
    pub query: bool,
}

/// Makes what `selection` says, of programs for `purpose`, in the folder `out`. Returns the files. One process makes
/// packages at a time: their trees of files lie in one place.
///
/// # Errors
///
/// When something cannot be built or written; the error names the log or the file.
pub fn build(
    paths: &Paths,
    purpose: Purpose,
    out: &Path,
    selection: Selection<'_>,
) -> Result<Vec<PathBuf>, PackagingError> {
    let Selection { forms, .. } = selection;
    let _lock = Lock::take(&paths.builds().join("packages.lock")).map_err(PackageError::from)?;
    if forms != [Form::Deb] {
        tools::install(paths, &TOOLS)?;
    }
    let mut products = contents::products(paths, purpose, selection)?;
    products.iter().try_for_each(|product| product.package.settle())?;
    let named = |names: &[&str]| -> Vec<&Package<'_>> {
        products.iter().map(|product| &product.package).filter(|package| names.contains(&package.name())).collect()
    };
    let mut files = Vec::new();
    if forms.contains(&Form::Tar) {
        let packages = named(&["strata", "strata-query", "strata-agent", "strata-modules"]);
        let name = format!("strata-{RELEASE}-x86_64-linux");
        files.push(progress::step("writing the archive", || archive::write(&packages, &name, out))?);
    }
    if forms.contains(&Form::Oci) {
        let packages = named(&["strata", "strata-query"]);
        let write = || image::write(&packages, "/usr/bin/strata", RELEASE, out);
        files.push(progress::step("writing the image for containers", write)?);
    }
    if forms.contains(&Form::Rpm) {
        for product in &products {
            let Some(fields) = &product.rpm else { continue };
            let write = || rpm::write(&product.package, fields, RELEASE, out);
            files.push(progress::step(&format!("writing the RPM of {}", product.package.name()), write)?);
        }
    }
    // what only Debian's tools read is added to the trees here: this comes last
    if forms.contains(&Form::Deb) {
        progress::step("writing the Debian packages", || {
            for product in &mut products {
                let changelog = contents::changelog(product.package.name())?;
                files.push(deb::write(&mut product.package, VERSION, &changelog, out)?);
            }
            Ok::<_, PackagingError>(())
        })?;
    }
    checksum(out, &files)?;
    Ok(files)
}

/// Writes the checksums of `files`, which lie in the folder `out`.
fn checksum(out: &Path, files: &[PathBuf]) -> Result<(), PackageError> {
    let mut names: Vec<_> = files.iter().filter_map(|file| file.file_name()).collect();
    names.sort_unstable();
    let sums = process::capture(Command::new("sha256sum").args(names).current_dir(out))?;
    let path = out.join(CHECKSUMS);
    fs::write(&path, sums).map_err(package::error(&path))
}

/// When this version was released, in a form of `date`.
fn released(form: &str) -> Result<String, ProcessError> {
    let text = process::capture(Command::new("date").args(["--utc", &format!("--date=@{RELEASED}"), form]))?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changelog_names_the_version_and_the_day_of_its_release() {
        let changelog = fs::read_to_string(Paths::of_workspace().workspace().join("CHANGELOG.md")).unwrap();

        let heading = format!("## {RELEASE} - {}", released("+%F").unwrap());

        assert!(changelog.lines().any(|line| line == heading), "CHANGELOG.md has no line '{heading}'");
    }

    #[test]
    fn files_of_another_day_are_packaged_as_the_same_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let make = |day: &str| {
            let control = package::Control {
                name: "x",
                architecture: "all",
                section: "utils",
                relations: &[],
                summary: "does x",
                description: "It does x.",
            };
            let mut package = Package::begin(&folder.path().join(day), control).unwrap();
            package.bytes("/usr/bin/x", 0o755, b"#!/bin/sh\n").unwrap();
            let mut touch = Command::new("touch");
            process::capture(touch.args(["--date", day]).arg(package.root().join("usr/bin/x"))).unwrap();
            package.settle().unwrap();
            let out = folder.path().join(format!("{day}-out"));
            let archive = archive::write(&[&package], "x-1", &out).unwrap();
            let deb = deb::write(&mut package, "1-1", "x (1-1)\n", &out).unwrap();
            [archive, deb].map(|file| fs::read(file).unwrap())
        };

        assert!(make("2001-01-01") == make("2030-01-01"), "the bytes depend on when files were made");
    }

    #[test]
    fn checksums_are_those_that_others_check() {
        let folder = tempfile::tempdir().unwrap();
        let files = ["b", "a"].map(|name| folder.path().join(name));
        files.iter().for_each(|file| fs::write(file, "package").unwrap());

        checksum(folder.path(), &files).unwrap();

        let mut check = Command::new("sha256sum");
        let checked = process::capture(check.args(["--check", CHECKSUMS]).current_dir(folder.path())).unwrap();
        assert_eq!(checked, "a: OK\nb: OK\n");
    }
}
