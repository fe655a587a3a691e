//! Static builds of programs for places without libraries: `strata` for the emulated host, the workload for the guest.
//!
//! What is tested is built in another way than what is measured or given to users ([`Purpose`]).

use crate::paths::Paths;
use crate::process::{self, ProcessError};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Named explicitly, so that the flags of the build do not reach build scripts and procedural macros.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The workspace of `strata-query`.
pub(crate) const QUERY_MANIFEST: &str = "trace-merge/query/Cargo.toml";
/// Between cargo and rustc: gives packages metadata that does not depend on their folder.
const SAME_METADATA: &str = "tests/src/build/same-metadata.sh";

/// What a released program says is its version (`strata --version`).
const VERSION_VARIABLE: &str = "STRATA_VERSION";

/// The packages with static programs that are tested. All of them are chosen whichever program is built: cargo gives a
/// dependency the features that the chosen packages ask for, and builds it again for each other set of them.
const TESTED: [&str; 8] = [
    "emulated-guest",
    "guest-agent",
    "strata-c-api",
    "strata-kmod-build",
    "tiny-vmm",
    "torture",
    "tracing-strata",
    "vmm",
];

/// What programs are built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To be tested: with every check of the language on, sooner built, and of the same objects all of them.
    Test,
    /// To be measured, or to be given to users.
    Release,
}

impl Purpose {
    /// The profile in `Cargo.toml`, which is also the name of cargo's folder for it.
    pub(crate) const fn profile(self) -> &'static str {
        match self {
            Self::Test => "verification",
            Self::Release => "release",
        }
    }
}

/// The static programs.
#[derive(Clone, Debug)]
pub struct Binaries {
    /// The command `strata`.
    pub strata: PathBuf,
    /// The guest's example workload.
    pub workload: PathBuf,
}

/// Builds both programs.
///
/// # Errors
///
/// When cargo fails; the error names its log.
pub fn build(paths: &Paths, purpose: Purpose) -> Result<Binaries, ProcessError> {
    static_build(paths, purpose, "vmm", &["--bin", "strata"], "build-strata")?;
    static_build(paths, purpose, "guest-agent", &["--example", "workload"], "build-workload")?;
    Ok(located(paths, purpose))
}

/// Builds one of the guest's example programs.
///
/// # Errors
///
/// When cargo fails; the error names its log.
pub fn build_example(paths: &Paths, purpose: Purpose, name: &str) -> Result<PathBuf, ProcessError> {
    let log = format!("build-{name}");
    Ok(static_build(paths, purpose, "guest-agent", &["--example", name], &log)?.join("examples").join(name))
}

/// Builds the VMM of a few lines that `strata attach` is tried with: for the host.
///
/// # Errors
///
/// When cargo fails; the error names its log.
pub fn build_tiny_vmm(paths: &Paths) -> Result<PathBuf, ProcessError> {
    let folder = static_build(paths, Purpose::Test, "tiny-vmm", &["--bin", "tiny-vmm"], "build-tiny-vmm")?;
    Ok(folder.join("tiny-vmm"))
}

/// Builds the program that attacks the recorder: for this machine.
///
/// # Errors
///
/// When cargo fails; the error names its log.
pub fn build_torture(paths: &Paths) -> Result<PathBuf, ProcessError> {
    Ok(static_build(paths, Purpose::Test, "torture", &["--bin", "torture"], "torture-build")?.join("torture"))
}

/// Builds the program that runs and records guests whose processor is emulated: for this machine, beside `strata`.
///
/// # Errors
///
/// When cargo fails; the error names its log.
pub fn build_emulated_guest(paths: &Paths) -> Result<PathBuf, ProcessError> {
    let what = ["--bin", "emulated-guest"];
    Ok(static_build(paths, Purpose::Test, "emulated-guest", &what, "build-emulated-guest")?.join("emulated-guest"))
}

/// Builds the guest's `strata-agent`.
///
/// # Errors
///
/// When cargo fails; the error names its log.
pub fn build_agent(paths: &Paths, purpose: Purpose) -> Result<PathBuf, ProcessError> {
    let folder = static_build(paths, purpose, "guest-agent", &["--bin", "strata-agent"], "build-strata-agent")?;
    Ok(folder.join("strata-agent"))
}

/// Builds the programs that show what applications can record and what not, and `strata-agent`: for the guest, each a
/// static program. Returns their names and files.
///
/// # Errors
///
/// When cargo or a compiler fails; the error names its log.
pub fn build_applications(paths: &Paths) -> Result<Vec<(&'static str, PathBuf)>, ProcessError> {
    let purpose = Purpose::Test;
    let mut programs = vec![("strata-agent", build_agent(paths, purpose)?)];
    for example in ["isolation", "processes"] {
        programs.push((example, build_example(paths, purpose, example)?));
    }
    static_build(paths, purpose, "tracing-strata", &["--example", "orders"], "build-orders")?;
    let folder = static_build(paths, purpose, "strata-c-api", &["--lib"], "build-c-api")?;
    let c_api = paths.workspace().join("guest-agent/c-api");
    for (compiler, source, program) in [("gcc", "shop.c", "shop"), ("g++", "baker.cpp", "baker")] {
        let mut command = Command::new(compiler);
        command.args(["-O2", "-static", "-pthread", "-o"]).arg(folder.join(program));
        command.arg("-I").arg(c_api.join("include")).arg(c_api.join("examples").join(source));
        command.arg(folder.join("libstrata.a"));
        process::run_logged(&mut command, &paths.logs().join(format!("build-{program}.log")))?;
    }
    programs.push(("orders", folder.join("examples/orders")));
    programs.extend(["shop", "baker"].map(|name| (name, folder.join(name))));
    Ok(programs)
}

/// Builds the library for applications in C: the shared one and the static one, in this order.
///
/// # Errors
///
/// When cargo fails; the error names its log.
pub fn build_c_library(paths: &Paths) -> Result<[PathBuf; 2], ProcessError> {
    // a shared library cannot have the C library in it
    let target_folder = paths.builds().join("c-library");
    let mut command = cargo(paths, &target_folder);
    command.args(["build", "--release", "--target", TARGET, "-p", "strata-c-api"]);
    set_flags(&mut command, paths, &[]);
    process::run_logged(&mut command, &paths.logs().join("build-c-library.log"))?;
    let release = target_folder.join(TARGET).join("release");
    Ok(["libstrata.so", "libstrata.a"].map(|name| release.join(name)))
}

/// Builds the program that builds the guest kernel module where there is no cargo.
///
/// # Errors
///
/// When cargo fails; the error names its log.
pub fn build_module_builder(paths: &Paths, purpose: Purpose) -> Result<PathBuf, ProcessError> {
    let name = "strata-kmod-build";
    Ok(static_build(paths, purpose, name, &["--bin", name], "build-module-builder")?.join(name))
}

/// Builds `strata-query`; to be tested, without SQL, which is most of what there is to build.
///
/// # Errors
///
/// When cargo fails; the error names its log.
pub fn build_query(paths: &Paths, purpose: Purpose) -> Result<PathBuf, ProcessError> {
    let target_folder = paths.builds().join("query");
    let mut command = cargo(paths, &target_folder);
    command.args(["build", "--target", TARGET, "--manifest-path", QUERY_MANIFEST, "--bin", "strata-query"]);
    let profile = match purpose {
        Purpose::Test => {
            command.arg("--no-default-features");
            "debug"
        }
        Purpose::Release => {
            command.arg("--release");
            "release"
        }
    };
    set_flags(&mut command, paths, &["-C", "target-feature=+crt-static"]);
    // Most of our packages lie outside of its workspace.
    command.env("RUSTC_WRAPPER", paths.workspace().join(SAME_METADATA));
    process::run_logged(&mut command, &paths.logs().join("build-strata-query.log"))?;
    Ok(target_folder.join(TARGET).join(profile).join("strata-query"))
}

/// Where [`build`] puts the programs, without building them.
#[must_use]
pub fn located(paths: &Paths, purpose: Purpose) -> Binaries {
    let folder = static_folder(paths, purpose);
    Binaries { strata: folder.join("strata"), workload: folder.join("examples/workload") }
}

/// Where static programs for `purpose` lie; examples have a folder `examples` in it.
fn static_folder(paths: &Paths, purpose: Purpose) -> PathBuf {
    paths.builds().join("static").join(TARGET).join(purpose.profile())
}

/// A cargo command in the workspace that keeps to `target_folder` and takes no flags from the caller's environment.
#[must_use]
pub fn cargo(paths: &Paths, target_folder: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .current_dir(paths.workspace())
        .env("CARGO_TARGET_DIR", target_folder)
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_BUILD_TARGET");
    command
}

/// Gives `flags` to rustc for what is built with `--target`, and names of folders that do not depend on where this
/// workspace and cargo's sources lie: builds of the same sources in two folders are equal.
pub(crate) fn set_flags(command: &mut Command, paths: &Paths, flags: &[&str]) {
    let cargo_home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let cargo_home = cargo_home.or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    let registry = cargo_home.map(|home| home.join("registry/src"));
    let folders = std::iter::once((paths.workspace(), "strata")).chain(registry.as_deref().map(|path| (path, "cargo")));
    let renamed: Vec<String> = folders.map(|(folder, name)| format!("{}=/usr/src/{name}", folder.display())).collect();
    let rust = renamed.iter().map(|renamed| format!("--remap-path-prefix={renamed}"));
    let rust: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).chain(rust).collect();
    let c: Vec<String> = renamed.iter().map(|renamed| format!("'-ffile-prefix-map={renamed}'")).collect();
    command
        .env("CARGO_ENCODED_RUSTFLAGS", rust.join("\x1f"))
        .env(format!("CFLAGS_{}", TARGET.replace('-', "_")), c.join(" "))
        .env("CC_SHELL_ESCAPED_FLAGS", "1");
}

/// The commit of the sources, with `-dirty` behind it if they differ from it; nothing where they are not a clone.
pub(crate) fn commit(paths: &Paths) -> Option<String> {
    let describe = ["describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"];
    let text = process::capture(Command::new("git").args(describe).current_dir(paths.workspace())).ok()?;
    Some(text.trim().to_owned()).filter(|commit| !commit.is_empty())
}

/// Builds `what` of `package` without shared libraries, and returns the folder that programs lie in.
fn static_build(
    paths: &Paths,
    purpose: Purpose,
    package: &str,
    what: &[&str],
    log: &str,
) -> Result<PathBuf, ProcessError> {
    // what is given to users has the features that it has when they build it themselves
    let packages = match purpose {
        Purpose::Test => TESTED.as_slice(),
        Purpose::Release => &[package],
    };
    let mut command = cargo(paths, &paths.builds().join("static"));
    command.args(["build", "--profile", purpose.profile(), "--target", TARGET]);
    command.args(packages.iter().flat_map(|package| ["-p", package])).args(what);
    set_flags(&mut command, paths, &["-C", "target-feature=+crt-static"]);
    command.env_remove(VERSION_VARIABLE);
    // Not in what is tested: an emulated host's results follow from the bits of its programs.
    if purpose == Purpose::Release
        && let Some(commit) = commit(paths)
    {
        command.env(VERSION_VARIABLE, format!("{} ({commit})", env!("CARGO_PKG_VERSION")));
    }
    process::run_logged(&mut command, &paths.logs().join(format!("{log}.log")))?;
    Ok(static_folder(paths, purpose))
}

#[cfg(test)]
mod tests {
    //! Shows: Metadata of packages does not depend on the folder that they are built in.

    use super::*;

    /// What rustc is given of the package in `folder`.
    fn given(folder: &str) -> String {
        let wrapper = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(SAME_METADATA);
        let mut command = Command::new(wrapper);
        command.args(["echo", "--crate-name", "shared_ring", "-C", "metadata=1f", "-C", "extra-filename=-1f", "a b"]);
        let package =
            [("CARGO_MANIFEST_DIR", folder), ("CARGO_PKG_NAME", "shared-ring"), ("CARGO_PKG_VERSION", "0.2.0")];
        process::capture(command.envs(package)).unwrap()
    }

    #[test]
    fn metadata_of_our_packages_is_their_name_and_that_of_others_is_cargos() {
        let ours = given("/home/user/strata/shared-ring");
        let theirs = given("/home/user/.cargo/registry/src/index.crates.io-1/arrow-59.0.0");

        let [before, behind] = ["--crate-name shared_ring -C metadata=", " -C extra-filename=-1f a b"];
        assert_eq!(ours.trim(), format!("{before}shared-ring-0.2.0{behind}"));
        assert_eq!(theirs.trim(), format!("{before}1f{behind}"));
    }
}
