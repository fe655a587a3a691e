//! VMMs that other people make, for `strata attach` to be tried with: alioth is built from crates.io, libkrun comes with a
//! package of PyPI. Each needs glibc alone.

use crate::build::binaries;
use crate::fetch::apt::PackageError;
use crate::fetch::tools::{self, Tool};
use crate::lock::Lock;
use crate::paths::Paths;
use crate::process;
use crate::progress;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What fetches a package of PyPI and unpacks it.
const TOOLS: [Tool; 2] =
    [Tool { program: "pip3", package: "python3-pip" }, Tool { program: "python3", package: "python3" }];
/// The crate with the program `alioth`.
const ALIOTH: (&str, &str) = ("alioth-cli", "0.12.0");
/// The package, its version and the SHA-256 of its file for x86-64.
const LIBKRUN: (&str, &str, &str) =
    ("microsandbox", "0.7.11", "65f1e4bbf8d721c9f7f557329fb6c8cf41f554c1c6942eac8b941198fa283fe0");
/// Where the program and the library with its guests' kernel lie in that package, and what the latter is called where
/// `msb` loads it.
const LIBKRUN_FILES: [(&str, &str); 2] =
    [("microsandbox/_bundled/bin/msb", "msb"), ("microsandbox/_bundled/lib/libkrunfw.so.5.6.1", "libkrunfw.so.5")];

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> PackageError {
    let path = path.to_path_buf();
    |source| PackageError::File { path, source }
}

/// The program `alioth`: built unless that has been done, in two minutes.
///
/// # Errors
///
/// When crates.io cannot be reached, or cargo fails; the error names its log.
pub fn alioth(paths: &Paths) -> Result<PathBuf, PackageError> {
    let (name, version) = ALIOTH;
    let folder = paths.lab().join(format!("{name}-{version}"));
    let program = folder.join("bin/alioth");
    let _lock = Lock::take(&paths.lab().join("other-vmms.lock"))?;
    if !program.exists() {
        progress::step("building alioth", || {
            let built = tempfile::tempdir_in(paths.lab()).map_err(file_error(paths.lab()))?;
            let mut install = binaries::cargo(paths, built.path());
            install.args(["install", "--locked", name, "--version", &format!("={version}"), "--root"]).arg(&folder);
            process::run_logged(&mut install, &paths.logs().join("build-alioth.log"))?;
            Ok::<_, PackageError>(())
        })?;
    }
    Ok(program)
}

/// The program `msb`, which runs guests with libkrun, and the library that it loads, each with the name that it is to have:
/// fetched unless that has been done.
///
/// # Errors
///
/// When pip is missing and cannot be installed, PyPI cannot be reached, or the package is not the one that is known.
pub fn libkrun(paths: &Paths) -> Result<Vec<(String, PathBuf)>, PackageError> {
    tools::install(paths, &TOOLS)?;
    let (name, version, _) = LIBKRUN;
    let folder = paths.lab().join(format!("{name}-{version}"));
    let files = LIBKRUN_FILES.map(|(_, name)| (name.to_owned(), folder.join(name)));
    let _lock = Lock::take(&paths.lab().join("other-vmms.lock"))?;
    if files.iter().any(|(_, path)| !path.exists()) {
        progress::step("fetching libkrun", || fetch_libkrun(paths, &folder))?;
    }
    Ok(files.into())
}

fn fetch_libkrun(paths: &Paths, folder: &Path) -> Result<(), PackageError> {
    let (name, version, sum) = LIBKRUN;
    fs::create_dir_all(folder).map_err(file_error(folder))?;
    let work = tempfile::tempdir_in(folder).map_err(file_error(folder))?;
    let requirements = work.path().join("requirements.txt");
    let requirement = format!("{name}=={version} --hash=sha256:{sum}\n");
    fs::write(&requirements, requirement).map_err(file_error(&requirements))?;
    let log = paths.logs().join("fetch-libkrun.log");
    let mut pip = Command::new("pip3");
    pip.args(["download", "--no-deps", "--only-binary=:all:", "--require-hashes", "-r"]).arg(&requirements);
    process::run_logged(pip.arg("-d").arg(work.path()), &log)?;
    let wheels = fs::read_dir(work.path()).map_err(file_error(work.path()))?;
    let is_wheel = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "whl");
    let wheels = wheels.flatten().map(|entry| entry.path()).filter(is_wheel);
    let mut unpack = Command::new("python3");
    unpack.args(["-m", "zipfile", "-e"]).args(wheels).arg(work.path());
    process::run_logged(&mut unpack, &log)?;
    for (unpacked, name) in LIBKRUN_FILES {
        let (from, to) = (work.path().join(unpacked), folder.join(name));
        fs::rename(&from, &to).map_err(file_error(&from))?;
    }
    Ok(())
}
