//! Kernels that check themselves: Debian's sources, built with what finds wrong uses of memory, locks, RCU, timers and
//! contexts. Nothing in them that a guest of the lab does not need.

use crate::build::debian_root::DebianRoot;
use crate::fetch::apt::PackageError;
use crate::fetch::kernel_packages::{KernelPackages, Suite};
use crate::fetch::kernel_sources;
use crate::fetch::tools::{self, Tool};
use crate::paths::Paths;
use crate::process::{self, ProcessError};
use crate::progress;
use crate::provision::Kernels;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is set beyond the smallest configuration.
const CONFIGURATION: &str = include_str!("debug_kernel/kernel.config");

/// What a kernel's build calls, besides a compiler.
const TOOLS: [Tool; 5] = [
    Tool { program: "flex", package: "flex" },
    Tool { program: "bison", package: "bison" },
    Tool { program: "bc", package: "bc" },
    Tool { program: "pahole", package: "dwarves" },
    Tool { program: "busybox", package: "busybox-static" },
];
/// The library that the kernel's `objtool` is linked with: the file that the compiler looks for, and its package.
const LIBELF: (&str, &str) = ("/usr/include/libelf.h", "libelf-dev");

/// Why a kernel could not be built.
#[derive(Debug, thiserror::Error)]
pub enum DebugKernelError {
    /// Sources or a compiler could not be had.
    #[error(transparent)]
    Packages(#[from] PackageError),
    /// A step of the build failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A file could not be read or written.
    #[error("cannot use {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The kernel's configuration knows an option no more, or forbids it.
    #[error("the kernel of {suite} cannot be built with {option}: see {}", configuration.display())]
    Option {
        /// Where its sources come from.
        suite: &'static str,
        option: String,
        /// What the kernel made of it.
        configuration: PathBuf,
    },
}

/// A kernel that checks itself.
#[derive(Debug)]
pub struct DebugKernel {
    /// The kernel. It has no modules of its own, and its header tree is where it was built.
    pub kernels: Kernels,
    maker: Maker,
}

/// Runs `make` for a kernel.
#[derive(Debug)]
struct Maker {
    /// Where this machine's Debian has no compiler for it.
    root: Option<DebianRoot>,
}

/// Builds the kernel of `suite`, as far as it is not built: that takes ten minutes and more.
///
/// # Errors
///
/// When packages cannot be had or the build fails; the error names its log.
pub fn build(paths: &Paths, suite: Suite) -> Result<DebugKernel, DebugKernelError> {
    let tree = paths.builds().join(format!("debug-kernel-{}", suite.name()));
    kernel_sources::fetch(paths, suite, &tree)?;
    let maker = Maker::prepare(paths, suite)?;
    let log = paths.logs().join(format!("debug-kernel-{}-make.log", suite.name()));
    let make = |targets: &[&str]| process::run_logged(maker.command(&tree).args(targets), &log);
    configure(suite, &tree, make)?;
    progress::step(&format!("building a debug kernel of {}", suite.name()), || make(&["bzImage", "modules"]))?;
    Ok(DebugKernel { kernels: built(tree)?, maker })
}

impl DebugKernel {
    /// `make` for modules of this kernel, with the compiler that it was built with.
    #[must_use]
    pub fn make(&self) -> Command {
        self.maker.command(&self.kernels.headers)
    }
}

impl Maker {
    fn prepare(paths: &Paths, suite: Suite) -> Result<Self, PackageError> {
        if suite == Suite::TrixieBackports {
            return Ok(Self { root: Some(DebianRoot::kernel_builder(paths)?) });
        }
        tools::install(paths, &TOOLS)?;
        tools::install_library(paths, Path::new(LIBELF.0), LIBELF.1)?;
        Ok(Self { root: None })
    }

    /// `make` in the source tree `tree`.
    fn command(&self, tree: &Path) -> Command {
        let mut command = match &self.root {
            Some(root) => root.command(Path::new("/usr/bin/make"), &[tree], &[]),
            None => Command::new("make"),
        };
        if self.root.is_some() {
            // by the name that this machine does not have, so that modules are built in a root, too
            command.args(["CC=gcc-14", "HOSTCC=gcc-14"]);
        }
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        command.arg("-C").arg(tree).arg(format!("-j{jobs}"));
        command.env_remove("MAKEFLAGS").env_remove("MFLAGS");
        command
    }
}

/// Gives the kernel in `tree` its configuration with the targets of `make`. One that has it already is left alone, so that
/// nothing is built twice.
fn configure(
    suite: Suite,
    tree: &Path,
    make: impl Fn(&[&str]) -> Result<(), ProcessError>,
) -> Result<(), DebugKernelError> {
    let file = |path: &Path| {
        let path = path.to_path_buf();
        move |source| DebugKernelError::File { path, source }
    };
    let wanted = tree.join("strata.config");
    if fs::read_to_string(&wanted).is_ok_and(|text| text == CONFIGURATION) {
        return Ok(());
    }
    let configuration = tree.join(".config");
    make(&["allnoconfig"])?;
    let smallest = fs::read_to_string(&configuration).map_err(file(&configuration))?;
    // of two lines about an option, the last one counts
    fs::write(&configuration, smallest + CONFIGURATION).map_err(file(&configuration))?;
    make(&["olddefconfig"])?;
    let made = fs::read_to_string(&configuration).map_err(file(&configuration))?;
    if let Some(option) = missing_option(CONFIGURATION, &made) {
        return Err(DebugKernelError::Option { suite: suite.name(), option: option.to_owned(), configuration });
    }
    fs::write(&wanted, CONFIGURATION).map_err(file(&wanted))
}

/// The kernel that was built in `tree`.
fn built(tree: PathBuf) -> Result<Kernels, DebugKernelError> {
    let path = tree.join("include/config/kernel.release");
    let release = fs::read_to_string(&path).map_err(|source| DebugKernelError::File { path, source })?;
    Ok(Kernels {
        packages: KernelPackages { release: release.trim().to_owned(), version: "built here".to_owned() },
        vmlinux: tree.join("vmlinux"),
        bzimage: tree.join("arch/x86/boot/bzImage"),
        modules: tree.clone(),
        headers: tree,
        busybox: process::find_program("busybox").unwrap_or_else(|| "busybox".into()),
    })
}

/// The first line of `wanted` that sets an option which is not so in the configuration `made`.
fn missing_option<'a>(wanted: &'a str, made: &str) -> Option<&'a str> {
    let set = |line: &&str| line.starts_with("CONFIG_") && !line.ends_with("=n");
    wanted.lines().filter(set).find(|&line| !made.lines().any(|other| other == line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_that_the_kernel_did_not_take_is_found() {
        let wanted = "# why\nCONFIG_A=y\nCONFIG_B=n\nCONFIG_C=\"text\"\nCONFIG_D=y\n";

        let missing = missing_option(wanted, "CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=\"text\"\n");

        assert_eq!(missing, Some("CONFIG_D=y"));
        assert_eq!(missing_option("CONFIG_A=y\n", "CONFIG_A=y\n"), None);
    }

    #[test]
    fn configuration_has_every_checker() {
        let checkers = ["KASAN", "PROVE_LOCKING", "PROVE_RCU", "DEBUG_ATOMIC_SLEEP", "DEBUG_OBJECTS", "DEBUG_PREEMPT"];

        let missing = checkers.into_iter().find(|name| !CONFIGURATION.contains(&format!("CONFIG_{name}=y\n")));

        assert_eq!(missing, None);
    }
}
