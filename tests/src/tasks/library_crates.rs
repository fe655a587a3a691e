//! The crates that other projects can use: what `cargo package` makes of them is complete, and builds with the oldest
//! Rust that they promise.
//!
//! Shows: `clock-sync` and `shared-ring` are complete packages: Rust 1.85; default, no, all features.
//! Shows: The crates that another VMM takes can be packaged, with licenses and pages.

use crate::build::binaries;
use crate::build::debian_root::DebianRoot;
use crate::fetch::apt::PackageError;
use crate::paths::Paths;
use crate::process::{self, ProcessError};
use crate::process_group::GoesOnSignal;
use crate::progress;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The crates that depend on nothing else of strata, and build with an older Rust than it.
const INDEPENDENT: [&str; 2] = ["clock-sync", "shared-ring"];

/// The other crates that another VMM or tracer takes, with those that they need.
const BUILT_ON_THEM: [&str; 9] = [
    "strata-abi",
    "strata-analysis",
    "strata-clock",
    "strata-host-kernel",
    "strata-jail",
    "strata-observer",
    "strata-rate-limit",
    "strata-recorder",
    "strata-recording",
];

/// The crates that a page introduces; the others are parts of theirs.
const INTRODUCED: [&str; 4] = ["clock-sync", "shared-ring", "strata-host-kernel", "strata-recorder"];

/// The licenses, whose texts every package must hold: files of the repository's first folder.
const LICENSES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// The features that each crate is built with.
const FEATURES: [&[&str]; 3] = [&[], &["--no-default-features"], &["--all-features"]];

/// Why a crate cannot be used by others.
#[derive(Debug, thiserror::Error)]
pub enum LibraryCrateError {
    /// A program failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The root with the oldest Rust could not be made.
    #[error(transparent)]
    Packages(#[from] PackageError),
    /// A file could not be read or written.
    #[error("cannot use {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A document is missing in a package, or is another one.
    #[error(
        "the package of {name} lacks {document}: copy the file into the crate's folder, and name it in its `include`"
    )]
    Document {
        name: String,
        /// The missing file.
        document: &'static str,
    },
    /// A manifest names no oldest Rust.
    #[error("the package of {0} has no rust-version: add it to {0}/Cargo.toml")]
    NoRustVersion(String),
    /// What there is to test with is not what the crate promises.
    #[error("{name} promises Rust {promised}, and Debian 13 has {found}: what is promised cannot be tested")]
    RustVersion {
        name: String,
        /// The manifest's `rust-version`.
        promised: String,
        /// What `rustc --version` says.
        found: String,
    },
}

/// Packages each crate. Builds the packages of the independent ones as cargo does before they are published, and checks
/// them with the oldest Rust. Needs the network only the first time, for that Rust.
///
/// # Errors
///
/// When a package is not complete or does not build.
pub fn check(paths: &Paths) -> Result<(), LibraryCrateError> {
    let target = paths.builds().join("library-crates");
    progress::step("packages of the library crates", || {
        package(paths, &target).and_then(|()| hold_documents(paths, &target))
    })?;
    let root = DebianRoot::oldest_rust(paths)?;
    progress::step("library crates with the oldest Rust", || check_with_oldest_rust(paths, &root, &target))
}

/// Makes the packages in `target`'s folder `package`, where cargo unpacks and builds them.
fn package(paths: &Paths, target: &Path) -> Result<(), LibraryCrateError> {
    // The sources of the others are what the workspace builds.
    let all: Vec<&str> = INDEPENDENT.into_iter().chain(BUILT_ON_THEM).collect();
    for (crates, how, log) in
        [(&all[..], &["--no-verify"][..], "cargo-package-all.log"), (&INDEPENDENT, &[], "cargo-package.log")]
    {
        let mut command = binaries::cargo(paths, target);
        // a change that is not committed yet is to be tested too; all dependencies were fetched to build this program
        command.args(["package", "--allow-dirty", "--offline", "--quiet"]).args(how);
        command.args(crates.iter().flat_map(|name| ["-p", name]));
        process::run_logged(&mut command, &paths.logs().join(log))?;
    }
    Ok(())
}

/// Looks into each package for what has to be there besides the sources.
fn hold_documents(paths: &Paths, target: &Path) -> Result<(), LibraryCrateError> {
    let folder = tempfile::tempdir().map_err(file_error(&std::env::temp_dir()))?;
    let _goes = GoesOnSignal::new(folder.path());
    let read = |path: &Path| fs::read(path).map_err(file_error(path));
    for name in INDEPENDENT.into_iter().chain(BUILT_ON_THEM) {
        let package = unpack(name, target, folder.path())?;
        if INTRODUCED.contains(&name) && !package.join("README.md").is_file() {
            return Err(LibraryCrateError::Document { name: name.to_owned(), document: "README.md" });
        }
        for document in LICENSES {
            let license = read(&paths.workspace().join(document))?;
            if fs::read(package.join(document)).ok() != Some(license) {
                return Err(LibraryCrateError::Document { name: name.to_owned(), document });
            }
        }
    }
    Ok(())
}

/// Unpacks each package outside the workspace, as a user of the crate has it, and checks it in `root`.
fn check_with_oldest_rust(paths: &Paths, root: &DebianRoot, target: &Path) -> Result<(), LibraryCrateError> {
    let folder = tempfile::tempdir().map_err(file_error(&std::env::temp_dir()))?;
    let _goes = GoesOnSignal::new(folder.path());
    let found = process::capture(root.command(Path::new("/usr/bin/rustc"), &[], &[]).arg("--version"))?;
    for name in INDEPENDENT {
        let package = unpack(name, target, folder.path())?;
        let manifest = package.join("Cargo.toml");
        let text = fs::read_to_string(&manifest).map_err(file_error(&manifest))?;
        let promised = rust_version(&text).ok_or_else(|| LibraryCrateError::NoRustVersion(name.to_owned()))?;
        if !is_version(&found, promised) {
            let (promised, found) = (promised.to_owned(), found.trim().to_owned());
            return Err(LibraryCrateError::RustVersion { name: name.to_owned(), promised, found });
        }
        for features in FEATURES {
            let mut command = oldest_cargo(root, folder.path(), &target.join("oldest-rust"));
            command.args(["check", "--offline", "--lib", "--manifest-path"]).arg(&manifest).args(features);
            process::run_logged(&mut command, &paths.logs().join(format!("oldest-rust-{name}.log")))?;
        }
    }
    Ok(())
}

/// Unpacks the package of `name` into a folder below `folder` and returns that.
fn unpack(name: &str, target: &Path, folder: &Path) -> Result<PathBuf, LibraryCrateError> {
    let stem = format!("{name}-{}", env!("CARGO_PKG_VERSION"));
    let archive = target.join("package").join(format!("{stem}.crate"));
    process::capture(Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(folder))?;
    Ok(folder.join(stem))
}

/// The oldest Rust's cargo, for packages in `folder`. It builds in `target` and takes dependencies from where this
/// machine's cargo has them.
fn oldest_cargo(root: &DebianRoot, folder: &Path, target: &Path) -> Command {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo"))).unwrap_or_default();
    let environment: [(&str, OsString); 3] = [
        ("CARGO_HOME", home.clone().into()),
        ("CARGO_TARGET_DIR", target.into()),
        // `cc` is made by a script of the package, and those are not run
        ("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER", "gcc".into()),
    ];
    root.command(Path::new("/usr/bin/cargo"), &[&home, folder, target], &environment)
}

/// What a manifest in the form that `cargo package` writes names as the oldest Rust.
fn rust_version(manifest: &str) -> Option<&str> {
    let value = manifest.lines().find_map(|line| line.strip_prefix("rust-version = "))?;
    value.strip_prefix('"')?.strip_suffix('"')
}

/// Whether `found`, like `rustc 1.85.0 (4d91de4e4 2025-02-17)`, is a release of the version `promised`.
fn is_version(found: &str, promised: &str) -> bool {
    let version = found.split_whitespace().nth(1).unwrap_or_default();
    let rest = version.strip_prefix(promised);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> LibraryCrateError {
    let path = path.to_path_buf();
    move |source| LibraryCrateError::File { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rust_version_is_read_from_a_packaged_manifest() {
        assert_eq!(rust_version("[package]\nedition = \"2024\"\nrust-version = \"1.85\"\n"), Some("1.85"));
        assert_eq!(rust_version("[package]\nedition = \"2024\"\n"), None);
    }

    #[test]
    fn later_rust_is_not_the_promised_one() {
        assert!(is_version("rustc 1.85.1 (4eb161250 2025-03-15)", "1.85"));
        assert!(!is_version("rustc 1.850.0 (4eb161250 2025-03-15)", "1.85"));
        assert!(!is_version("rustc 1.86.0 (05f9846f8 2025-03-31)", "1.85"));
    }
}
