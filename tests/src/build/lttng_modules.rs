//! LTTng's kernel tracer for a guest: its modules built for the guest's kernel, and its daemons with their libraries.
//!
//! The modules' sources come from Debian's package, of the suite whose version fits the lab's kernels; nothing of it is
//! installed. Of the probes only the scheduler's is built: others of that version do not compile for these kernels.

use crate::build::guest_image::GuestImage;
use crate::build::shared_objects;
use crate::fetch::apt::{Apt, PackageError};
use crate::fetch::tools::{self, Tool};
use crate::paths::Paths;
use crate::process::{self, ProcessError};
use crate::provision::Kernels;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The package with the sources; Debian 12's own is older than its kernels, trixie's fits them.
const PACKAGE: &str = "lttng-modules-dkms";
const SOURCES: &str = "deb http://deb.debian.org/debian trixie main\n";
/// The daemon that reads the kernel's buffers, which is on no PATH.
const CONSUMER: &str = "/usr/lib/x86_64-linux-gnu/lttng/libexec/lttng-consumerd";
/// A file without which the session daemon does not start.
const SCHEMA: &str = "/usr/share/xml/lttng/session.xsd";
/// What `depmod` must find beside the modules before the daemon's library takes its indices.
const KERNEL_LISTS: [&str; 3] = ["modules.order", "modules.builtin", "modules.builtin.modinfo"];
/// The line of the probes' build description after which the others' stand.
const LAST_PROBE: &str = "obj-$(CONFIG_LTTNG) += lttng-probe-sched.o\n";
/// What the tracer itself needs of the probes' folder.
const NEEDED: &str = "obj-$(CONFIG_LTTNG) += lttng-kprobes.o lttng-kretprobes.o lttng-uprobes.o\n";

const TOOLS: [Tool; 2] =
    [Tool { program: "lttng-sessiond", package: "lttng-tools" }, Tool { program: "depmod", package: "kmod" }];

/// Why LTTng cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum LttngError {
    /// A package cannot be had.
    #[error(transparent)]
    Packages(#[from] PackageError),
    /// A program failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A file could not be read or written.
    #[error("cannot use {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The package does not hold what is expected.
    #[error("{} holds no sources of lttng-modules", .0.display())]
    NoSources(PathBuf),
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> LttngError + use<> {
    let path = path.to_path_buf();
    move |source| LttngError::File { path, source }
}

/// Modules and daemons, ready to be put into an image.
#[derive(Clone, Debug)]
pub struct LttngModules {
    /// The root below which `lib/modules/RELEASE` lies, with `depmod`'s indices.
    root: PathBuf,
    release: String,
}

impl LttngModules {
    /// Fetches the sources and builds them for the kernel of `kernels`, unless that was done before.
    ///
    /// # Errors
    ///
    /// When a package cannot be had, or the modules do not compile.
    pub fn build(paths: &Paths, kernels: &Kernels) -> Result<Self, LttngError> {
        tools::install(paths, &TOOLS)?;
        let release = kernels.packages.release.clone();
        let folder = paths.builds().join("lttng-modules");
        let root = folder.join(&release);
        let built = Self { root, release };
        if built.index().is_file() {
            return Ok(built);
        }
        let package = folder.join("package");
        let apt = Apt::with_sources(paths, paths.apt().join("trixie"), SOURCES)?;
        apt.unpack([PACKAGE], &paths.packages().join(PACKAGE), &package)?;
        let sources = source_folder(&package)?;
        let probes = sources.join("src/probes/Kbuild");
        let description = fs::read_to_string(&probes).map_err(file_error(&probes))?;
        let kept = description.split_inclusive(LAST_PROBE).next().unwrap_or_default();
        fs::write(&probes, format!("{kept}{NEEDED}")).map_err(file_error(&probes))?;

        let mut make = Command::new("make");
        make.arg("-C").arg(&kernels.headers).arg(format!("M={}", sources.display()));
        make.args(["CONFIG_LTTNG=m", "-j2", "modules"]).env_remove("MAKEFLAGS").env_remove("MFLAGS");
        process::run_logged(&mut make, &paths.logs().join("lttng-modules-make.log"))?;
        built.install(&sources, &kernels.modules, paths)?;
        Ok(built)
    }

    fn folder(&self) -> PathBuf {
        self.root.join("lib/modules").join(&self.release)
    }

    /// Written last.
    fn index(&self) -> PathBuf {
        self.folder().join("modules.dep.bin")
    }

    /// Puts the modules where the daemon's library looks for them.
    fn install(&self, sources: &Path, kernel_modules: &Path, paths: &Paths) -> Result<(), LttngError> {
        let folder = self.folder().join("extra");
        fs::create_dir_all(&folder).map_err(file_error(&folder))?;
        for list in KERNEL_LISTS {
            let from = kernel_modules.join(list);
            fs::copy(&from, self.folder().join(list)).map_err(file_error(&from))?;
        }
        for part in ["src", "src/lib", "src/probes"] {
            let part = sources.join(part);
            for entry in fs::read_dir(&part).map_err(file_error(&part))? {
                let path = entry.map_err(file_error(&part))?.path();
                if let Some(name) = path.file_name().filter(|_| path.extension().is_some_and(|end| end == "ko")) {
                    let mut strip = Command::new("strip");
                    strip.arg("--strip-debug").arg("-o").arg(folder.join(name)).arg(&path);
                    process::run_logged(&mut strip, &paths.logs().join("lttng-modules-strip.log"))?;
                }
            }
        }
        let depmod = process::find_program("depmod").unwrap_or_else(|| "depmod".into());
        let mut index = Command::new(depmod);
        index.arg("-b").arg(&self.root).arg(&self.release);
        Ok(process::run_logged(&mut index, &paths.logs().join("lttng-modules-depmod.log"))?)
    }

    /// Adds the modules, the daemons and the libraries that these need.
    ///
    /// # Errors
    ///
    /// When a file is missing.
    pub fn add_to(&self, image: GuestImage) -> Result<GuestImage, LttngError> {
        let mut image = image;
        let modules = self.folder();
        for path in files_below(&modules)? {
            let name = path.strip_prefix(&self.root).unwrap_or(&path).display().to_string();
            image = image.file(&name, &path);
        }
        let program = |name: &'static str| process::find_program(name).unwrap_or_else(|| name.into());
        let programs = [program("lttng"), program("lttng-sessiond"), PathBuf::from(CONSUMER)];
        image = image.file(SCHEMA, Path::new(SCHEMA));
        for path in &programs {
            image = image.file(&path.display().to_string(), path);
        }
        for object in shared_objects::of(&programs)? {
            image = image.file(&object.display().to_string(), &object);
        }
        Ok(image)
    }
}

/// The one folder below `package`'s `usr/src`.
fn source_folder(package: &Path) -> Result<PathBuf, LttngError> {
    let parent = package.join("usr/src");
    let mut entries = fs::read_dir(&parent).map_err(file_error(&parent))?;
    entries.next().and_then(Result::ok).map(|entry| entry.path()).ok_or(LttngError::NoSources(parent))
}

fn files_below(folder: &Path) -> Result<Vec<PathBuf>, LttngError> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(file_error(&folder))? {
            let path = entry.map_err(file_error(&folder))?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}
