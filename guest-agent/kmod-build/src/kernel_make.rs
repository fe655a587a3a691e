//! The kernel's own build, asked for objects and for the module.

use crate::headers;
use std::path::Path;
use std::process::{Command, Stdio};

/// `make` with the header tree `tree`, for the sources in `folder`, with the kind of compiler that the kernel was built
/// with. What to make is the caller's to add.
pub(crate) fn command(tree: &Path, folder: &Path) -> Command {
    let mut command = Command::new("make");
    let jobs = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    command
        .arg(format!("--jobs={jobs}"))
        .arg("--output-sync=target")
        .arg("-C")
        .arg(tree)
        .arg(format!("M={}", folder.display()))
        .arg(format!("KCFLAGS=-g0 {}", without_folders(tree, folder)))
        // type information of modules would need another tool, and strip takes it away
        .arg("CONFIG_DEBUG_INFO_BTF_MODULES=")
        .args(headers::clang(tree).map(llvm))
        .args(headers::unsaid_gcc(tree).filter(|gcc| is_installed(gcc)).map(|gcc| format!("CC={gcc}")))
        .stdin(Stdio::null())
        .env("LC_ALL", "C")
        // a caller's make must not reach into this one
        .env_remove("MAKEFLAGS")
        .env_remove("MFLAGS");
    command
}

/// Has what is compiled name neither the folder of its sources nor that in which the kernel's headers lie, beside those
/// that kernels share: where it was built is no part of it.
fn without_folders(tree: &Path, folder: &Path) -> String {
    let tree = tree.canonicalize().unwrap_or_else(|_| tree.to_path_buf());
    let headers = tree.parent().unwrap_or(&tree);
    format!("-ffile-prefix-map={}/= -ffile-prefix-map={}/=/usr/src/", folder.display(), headers.display())
}

/// The variable that makes the kernel's build use LLVM's tools: those of the version `major` where they have it in
/// their names, as Debian's do.
fn llvm(major: u32) -> String {
    if is_installed(&format!("clang-{major}")) { format!("LLVM=-{major}") } else { "LLVM=1".to_owned() }
}

/// Whether the compiler of that name can be started; or, without a version in its name, any clang, or gcc of that version.
pub(crate) fn has_compiler(name: &str) -> bool {
    let gcc = || name.rsplit_once("gcc-").is_some_and(|(_, version)| gcc_version().as_deref() == Some(version));
    is_installed(name) || (name.starts_with("clang-") && is_installed("clang")) || gcc()
}

/// The major version of `gcc`, if there is one.
fn gcc_version() -> Option<String> {
    let output = Command::new("gcc").arg("-dumpversion").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(text.trim().split('.').next()?.to_owned())
}

/// Whether `program` is on the PATH.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}
