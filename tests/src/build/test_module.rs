//! Kernel modules that do to the agent, or to their kernel, what no module should.

use crate::paths::Paths;
use crate::process::{self, ProcessError};
use crate::provision::Kernels;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Command;

/// A module's name, and its source files with their names.
#[derive(Clone, Copy, Debug)]
pub struct TestModule {
    name: &'static str,
    sources: &'static [(&'static str, &'static str)],
}

/// Its tracepoints are called as others are, and take other arguments: whoever takes a tracepoint by its name alone
/// reads numbers as pointers.
pub const COLLIDING: TestModule = TestModule {
    name: "colliding",
    sources: &[
        ("Kbuild", include_str!("test_module/colliding/Kbuild")),
        ("colliding.c", include_str!("test_module/colliding/colliding.c")),
        ("colliding_events.h", include_str!("test_module/colliding/colliding_events.h")),
    ],
};

/// The task that loads it dies in a probe of `block:block_bio_remap`, if there is one.
pub const FAULTING: TestModule = TestModule {
    name: "faulting",
    sources: &[
        ("Kbuild", include_str!("test_module/faulting/Kbuild")),
        ("faulting.c", include_str!("test_module/faulting/faulting.c")),
    ],
};

/// Ends its kernel, or keeps it from going on.
pub const DYING: TestModule = TestModule {
    name: "dying",
    sources: &[
        ("Kbuild", include_str!("test_module/dying/Kbuild")),
        ("dying.c", include_str!("test_module/dying/dying.c")),
    ],
};

/// What the checkers of a debug kernel look for.
pub const PROVOKING: TestModule = TestModule {
    name: "provoking",
    sources: &[
        ("Kbuild", include_str!("test_module/provoking/Kbuild")),
        ("provoking.c", include_str!("test_module/provoking/provoking.c")),
    ],
};

/// Why a module could not be built.
#[derive(Debug, thiserror::Error)]
pub enum TestModuleError {
    /// A file could not be written.
    #[error("cannot use {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The kernel's build failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
}

/// Builds `module` for the kernel of `kernels`; returns its file.
///
/// # Errors
///
/// When a file cannot be written or the build fails, whose log the error names.
pub fn build(paths: &Paths, kernels: &Kernels, module: TestModule) -> Result<PathBuf, TestModuleError> {
    let mut make = Command::new("make");
    make.arg("-C").arg(&kernels.headers).env_remove("MAKEFLAGS").env_remove("MFLAGS");
    build_with(paths, kernels, module, make)
}

/// The same by `make`, a command that builds what the variable `M` names.
///
/// # Errors
///
/// When a file cannot be written or the build fails, whose log the error names.
pub fn build_with(
    paths: &Paths,
    kernels: &Kernels,
    module: TestModule,
    mut make: Command,
) -> Result<PathBuf, TestModuleError> {
    let folder = paths.builds().join(format!("{}-{}", module.name, kernels.packages.release));
    let error = |source| TestModuleError::File { path: folder.clone(), source };
    fs::create_dir_all(&folder).map_err(error)?;
    for (name, content) in module.sources {
        fs::write(folder.join(name), content).map_err(error)?;
    }
    make.arg(format!("M={}", folder.display())).args(["CONFIG_DEBUG_INFO_BTF_MODULES=", "modules"]);
    process::run_logged(&mut make, &paths.logs().join(format!("{}-module-make.log", module.name)))?;
    Ok(folder.join(format!("{}.ko", module.name)))
}
