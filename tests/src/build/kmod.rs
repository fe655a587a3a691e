//! Building the guest kernel module: the Rust object with kernel flags, the C shim with the kernel's own build system.

use crate::build::binaries::{self, Purpose, cargo, set_flags};
use crate::build::debian_root::DebianRoot;
use crate::build::object_gates::{self, GateError};
use crate::fetch::apt::PackageError;
use crate::lock::{Lock, LockError};
use crate::paths::Paths;
use crate::process::{self, ProcessError};
use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget, SymbolKind};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use strata_kmod_build::headers::{self, HeadersError};
use strata_kmod_build::{KmodBuildError, SourcesError};

/// Named explicitly, so that the flags do not reach build scripts and procedural macros.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The flags that make code for user space's target fit for the kernel; the `-Z` ones give return thunks, indirect-branch
/// landing pads and room before each function, as the kernel's own code has. Kernels that count calls (`retbleed=stuff`)
/// write into that room ([`object_gates::PADDING`]); others leave it alone.
const KERNEL_FLAGS: [&str; 22] = [
    "-C",
    "code-model=kernel",
    "-C",
    "relocation-model=static",
    "-C",
    "no-redzone=yes",
    "-C",
    "panic=abort",
    "-C",
    "force-unwind-tables=no",
    "-C",
    "relro-level=off",
    "-C",
    "jump-tables=no",
    "-C",
    "target-feature=-sse,-sse2",
    "-Z",
    "function-return=thunk-extern",
    "-Z",
    "cf-protection=branch",
    "-Z",
    "patchable-function-entry=16,16",
];

/// Merges the sections of the Rust crates and drops what a module has no use for.
const LINK_SCRIPT: &str = "rust.lds";
/// The header that the shim includes, generated from the Rust definitions.
const GENERATED_HEADER: &str = "strata_abi.h";
/// The linked Rust half, by the name that the kernel's build system gives to ready-made objects.
const RUST_OBJECT: &str = "rust.o_shipped";

/// Why the module could not be built.
#[derive(Debug, thiserror::Error)]
pub enum KmodError {
    /// The folder of the sources could not be locked.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The kernel headers cannot be used.
    #[error(transparent)]
    Headers(#[from] HeadersError),
    /// A program failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A compiler could not be had.
    #[error(transparent)]
    Packages(#[from] PackageError),
    /// The C half could not be built.
    #[error(transparent)]
    Build(#[from] KmodBuildError),
    /// Sources could not be copied.
    #[error(transparent)]
    Sources(#[from] SourcesError),
    /// The object code is not fit for the kernel.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// A file could not be read or written.
    #[error("cannot use {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A compiled crate is damaged.
    #[error("{} is not a usable library", path.display())]
    Library {
        /// The library.
        path: PathBuf,
        /// The parser's reason.
        #[source]
        source: object::Error,
    },
    /// The Rust part offers nothing.
    #[error("the Rust part defines no function named {}* for the C shim", object_gates::SHIM_PREFIX)]
    NoEntryPoint,
    /// cargo did not say where the compiled crates are.
    #[error("cargo built no library of this workspace; see {}", .0.display())]
    NoLibrary(PathBuf),
}

/// Builds the module for the kernel whose header tree is `kernel_headers`, checks its object code and writes it to
/// `out`. `btf` is a file with the kernel's BTF, for headers that look into private structures; without it, the build
/// looks where kernels keep it. Where this machine lacks the kernel's compiler, that is done in a root of the Debian that
/// has it.
///
/// # Errors
///
/// When the headers cannot be used, a build step fails (the error names its log) or an object gate does not pass.
pub fn build(paths: &Paths, kernel_headers: &Path, btf: Option<&Path>, out: &Path) -> Result<(), KmodError> {
    let work = work_folder(paths, &headers::release(kernel_headers)?);
    build_in(paths, kernel_headers, btf, &work, out)
}

/// As [`build`], in the folder `work`.
///
/// # Errors
///
/// As of [`build`].
pub fn build_in(
    paths: &Paths,
    kernel_headers: &Path,
    btf: Option<&Path>,
    work: &Path,
    out: &Path,
) -> Result<(), KmodError> {
    let release = headers::release(kernel_headers)?;
    let sources = sources(paths)?;
    let request = strata_kmod_build::Request {
        sources: &sources,
        kernel_headers,
        release: Some(&release),
        kernel: None,
        btf,
        work,
        out,
    };
    match strata_kmod_build::build(&request) {
        Err(KmodBuildError::NoCompiler { release, compiler }) => match DebianRoot::with_compiler(paths, &compiler)? {
            Some(root) => build_in_root(paths, &root, &request),
            None => Err(KmodBuildError::NoCompiler { release, compiler }.into()),
        },
        result => Ok(result.map(drop)?),
    }
}

/// Where the module for the kernel `release` is built, and its object files are afterwards.
#[must_use]
pub fn work_folder(paths: &Paths, release: &str) -> PathBuf {
    paths.builds().join(format!("kmod-{release}"))
}

/// The same build, by the program that users without the source tree have, in a root with the kernel's compiler.
fn build_in_root(paths: &Paths, root: &DebianRoot, request: &strata_kmod_build::Request<'_>) -> Result<(), KmodError> {
    let builder = binaries::build_module_builder(paths, Purpose::Test)?;
    let kernel_headers = fs::canonicalize(request.kernel_headers).map_err(file_error(request.kernel_headers))?;
    let absolute = |path: &Path| std::path::absolute(path).map_err(file_error(path));
    let (out, btf) = (absolute(request.out)?, request.btf.map(absolute).transpose()?);
    fs::create_dir_all(request.work).map_err(file_error(request.work))?;
    let mut folders = vec![builder.as_path(), &kernel_headers, request.sources, request.work, &out];
    folders.extend(btf.as_deref());
    let mut command = root.command(&builder, &folders, &[]);
    command.arg("--kernel-headers").arg(&kernel_headers).arg("--sources").arg(request.sources);
    command.arg("--work").arg(request.work).arg("--out").arg(&out);
    if let Some(btf) = &btf {
        command.arg("--btf").arg(btf);
    }
    process::capture(&mut command)?;
    Ok(())
}

/// Makes the folder with the module's sources, which does not depend on any kernel: the C files, the header generated
/// from the Rust definitions, and the Rust half as one object, compiled and checked. One process makes it at a time, and
/// a file that has not changed is not written again: another process may read it.
///
/// # Errors
///
/// When a build step fails (the error names its log) or an object gate does not pass.
pub fn sources(paths: &Paths) -> Result<PathBuf, KmodError> {
    let source = paths.workspace().join("guest-agent/kmod");
    let folder = paths.builds().join("agent-sources");
    let _lock = Lock::take(&folder.with_extension("lock"))?;
    strata_kmod_build::mirror(&source, &folder, |path| {
        path != Path::new("src") && path != Path::new(LINK_SCRIPT) && path != Path::new("Cargo.toml")
    })?;
    let header = strata_abi::c_header::c_header();
    strata_kmod_build::write_if_changed(&folder.join(GENERATED_HEADER), header.as_bytes())?;

    let libraries = build_rust(paths)?;
    let linked = paths.builds().join("kmod-rust").join(RUST_OBJECT);
    link_rust(&libraries, &source.join(LINK_SCRIPT), &linked, &paths.logs().join("kmod-link.log"))?;
    object_gates::check_object(&linked)?;
    let object = fs::read(&linked).map_err(file_error(&linked))?;
    strata_kmod_build::write_if_changed(&folder.join(RUST_OBJECT), &object)?;
    Ok(folder)
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> KmodError + use<> {
    let path = path.to_path_buf();
    move |source| KmodError::File { path, source }
}

/// Compiles the Rust part and returns the libraries of this workspace's crates.
fn build_rust(paths: &Paths) -> Result<Vec<PathBuf>, KmodError> {
    let log = paths.logs().join("kmod-cargo.log");
    let mut command = cargo(paths, &paths.builds().join("kmod-rust"));
    command
        .args(["build", "--profile", "kmod", "--target", TARGET])
        .args(["-p", "strata-kmod", "--features", "kernel"])
        .args(["--message-format", "json-render-diagnostics"])
        .env("RUSTC_BOOTSTRAP", "1");
    set_flags(&mut command, paths, &KERNEL_FLAGS);
    process::run_logged(&mut command, &log)?;
    let text = fs::read_to_string(&log).map_err(file_error(&log))?;
    let libraries = workspace_libraries(&text, paths.workspace());
    if libraries.is_empty() {
        return Err(KmodError::NoLibrary(log));
    }
    Ok(libraries)
}

/// The library files that cargo's messages name for crates below the folder `workspace`. Other crates contribute
/// inlined code only; a call into one is found by the gate on undefined symbols.
fn workspace_libraries(messages: &str, workspace: &Path) -> Vec<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["reason"] == "compiler-artifact")
        .filter(|message| {
            message["manifest_path"].as_str().is_some_and(|manifest| Path::new(manifest).starts_with(workspace))
        })
        .filter_map(|message| {
            message["filenames"]
                .as_array()?
                .iter()
                .filter_map(|name| name.as_str())
                .find(|name| name.ends_with(".rlib"))
                .map(PathBuf::from)
        })
        .collect()
}

/// Links the object files in `libraries` to one, keeping what the shim can call and what that needs.
fn link_rust(libraries: &[PathBuf], script: &Path, object: &Path, log: &Path) -> Result<(), KmodError> {
    let folder = object.with_extension("members");
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(file_error(&folder)(error));
        }
        _ => {}
    }
    fs::create_dir_all(&folder).map_err(file_error(&folder))?;
    let mut linker = Command::new("ld");
    // -X: the labels of the room before functions; by default they stay where an object is linked to another one
    linker.args(["-r", "-X", "--gc-sections", "-T"]).arg(script).arg("-o").arg(object);
    let mut roots = Vec::new();
    for library in libraries {
        let bytes = fs::read(library).map_err(file_error(library))?;
        for (name, member) in object_members(&bytes, library)? {
            let path = folder.join(name);
            fs::write(&path, member).map_err(file_error(&path))?;
            linker.arg(&path);
            roots.extend(entry_points(member, library)?);
        }
    }
    let Some(first) = roots.first() else {
        return Err(KmodError::NoEntryPoint);
    };
    // the linker insists on an entry point where it collects garbage
    linker.args(["-e", first]);
    for root in &roots {
        linker.args(["-u", root]);
    }
    process::run_logged(&mut linker, log)?;
    drop_unused_symbols(object, log)
}

/// Removes two kinds of symbols that the linker keeps: undefined ones of code that it dropped, which the kernel's build
/// would ask for, and the names of source files: objtool takes one per object.
fn drop_unused_symbols(object: &Path, log: &Path) -> Result<(), KmodError> {
    let bytes = fs::read(object).map_err(file_error(object))?;
    let unused = unused_symbols(&bytes, object)?;
    if unused.is_empty() {
        return Ok(());
    }
    let mut objcopy = Command::new("objcopy");
    for name in unused {
        objcopy.arg(format!("--strip-symbol={name}"));
    }
    process::run_logged(objcopy.arg(object), log)?;
    Ok(())
}

/// The undefined symbols of an object file that no relocation names, and those that name source files.
fn unused_symbols(object: &[u8], path: &Path) -> Result<Vec<String>, KmodError> {
    let file = object::File::parse(object).map_err(|source| KmodError::Library { path: path.to_path_buf(), source })?;
    let used: BTreeSet<_> = file
        .sections()
        .flat_map(|section| section.relocations())
        .filter_map(|(_, relocation)| match relocation.target() {
            RelocationTarget::Symbol(index) => Some(index.0),
            _ => None,
        })
        .collect();
    Ok(file
        .symbols()
        .filter(|symbol| {
            let unused_import = symbol.is_undefined() && !used.contains(&symbol.index().0);
            unused_import || symbol.kind() == SymbolKind::File
        })
        .filter_map(|symbol| symbol.name().ok())
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect())
}

/// The object files of an archive; Rust's metadata, which is a member too, is left out.
fn object_members<'a>(archive: &'a [u8], path: &Path) -> Result<Vec<(String, &'a [u8])>, KmodError> {
    let error = |source| KmodError::Library { path: path.to_path_buf(), source };
    let file = object::read::archive::ArchiveFile::parse(archive).map_err(error)?;
    let mut members = Vec::new();
    for member in file.members() {
        let member = member.map_err(error)?;
        let name = String::from_utf8_lossy(member.name()).into_owned();
        if name.ends_with(".o") {
            members.push((name, member.data(archive).map_err(error)?));
        }
    }
    Ok(members)
}

/// The functions of an object file that the shim can call: those whose names are not mangled.
fn entry_points(object: &[u8], path: &Path) -> Result<Vec<String>, KmodError> {
    let file = object::File::parse(object).map_err(|source| KmodError::Library { path: path.to_path_buf(), source })?;
    Ok(file
        .symbols()
        .filter(|symbol| symbol.is_definition() && symbol.is_global())
        .filter_map(|symbol| symbol.name().ok())
        .filter(|name| name.starts_with(object_gates::SHIM_PREFIX))
        .map(str::to_owned)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workspace_libraries_leaves_other_crates_and_files_out() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","manifest_path":"/w/shared-ring/Cargo.toml","filenames":["/t/libshared_ring.rlib","/t/libshared_ring.rmeta"]}"#,
            "\n",
            r#"{"reason":"compiler-artifact","manifest_path":"/registry/x/Cargo.toml","filenames":["/t/libx.rlib"]}"#,
            "\nwarning: text between the messages\n",
            r#"{"reason":"build-finished","success":true}"#,
        );

        let found = workspace_libraries(messages, Path::new("/w"));

        assert_eq!(found, [PathBuf::from("/t/libshared_ring.rlib")]);
    }

    #[test]
    fn unused_symbols_are_unreferenced_imports_and_file_names() {
        let folder = tempfile::tempdir().unwrap();
        let (source, object) = (folder.path().join("x.s"), folder.path().join("x.o"));
        fs::write(&source, ".file \"name.rs\"\n.globl unused\n.globl f\nf: call used\n").unwrap();
        process::capture(Command::new("as").arg("-o").arg(&object).arg(&source)).unwrap();
        let bytes = fs::read(&object).unwrap();

        let found = unused_symbols(&bytes, &object).unwrap();

        assert_eq!(found, ["name.rs", "unused"]);
        assert_eq!(entry_points(&bytes, &object).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn build_with_headers_that_are_not_there_names_them() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::new(folder.path().into(), folder.path().join("lab"));

        let error = build(&paths, Path::new("/nonexistent/headers"), None, &folder.path().join("x.ko")).unwrap_err();

        assert!(error.to_string().contains("/nonexistent/headers"));
    }
}
