//! A kernel module whose tracepoints are called as others are, and take other arguments: whoever takes a tracepoint by its
//! name alone reads numbers as pointers.

use crate::paths::Paths;
use crate::process::{self, ProcessError};
use crate::provision::Kernels;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Command;

const SOURCES: [(&str, &str); 3] = [
    ("Kbuild", include_str!("colliding_module/Kbuild")),
    ("colliding.c", include_str!("colliding_module/colliding.c")),
    ("colliding_events.h", include_str!("colliding_module/colliding_events.h")),
];

/// Why the module could not be built.
#[derive(Debug, thiserror::Error)]
pub enum CollidingModuleError {
    /// A file could not be written.
    #[error("cannot use {}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The kernel's build failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
}

/// Builds the module for the kernel of `kernels`; returns its file.
///
/// # Errors
///
/// When a file cannot be written or the build fails, whose log the error names.
pub fn build(paths: &Paths, kernels: &Kernels) -> Result<PathBuf, CollidingModuleError> {
    let folder = paths.builds().join(format!("colliding-{}", kernels.packages.release));
    let error = |source| CollidingModuleError::File { path: folder.clone(), source };
    fs::create_dir_all(&folder).map_err(error)?;
    for (name, content) in SOURCES {
        fs::write(folder.join(name), content).map_err(error)?;
    }
    let mut make = Command::new("make");
    make.arg("-C").arg(&kernels.headers).arg(format!("M={}", folder.display()));
    make.args(["CONFIG_DEBUG_INFO_BTF_MODULES=", "modules"]).env_remove("MAKEFLAGS").env_remove("MFLAGS");
    process::run_logged(&mut make, &paths.logs().join("colliding-module-make.log"))?;
    Ok(folder.join("colliding.ko"))
}
