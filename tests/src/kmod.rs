//! Building the guest kernel module: the Rust object with kernel flags, the C shim and the units of the kernel's trace
//! headers with the kernel's own build system.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget, SymbolKind};
use strata_kmod::module_file::{ModuleEvents, ModuleFileError};

use crate::binaries::cargo;
use crate::headers::{self, HeadersError};
use crate::object_gates::{self, GateError};
use crate::paths::Paths;
use crate::private_types::{Btf, BtfError};
use crate::process::{self, ProcessError};
use crate::tracepoint_units::{self, LeftOut, UnitsError};

/// Named explicitly, so that the flags do not reach build scripts and procedural macros.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The flags that make code for user space's target fit for the kernel; the two `-Z` ones give return thunks and
/// indirect-branch landing pads, as the kernel's own code has.
const KERNEL_FLAGS: [&str; 20] = [
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
];

/// Merges the sections of the Rust crates and drops what a module has no use for.
const LINK_SCRIPT: &str = "rust.lds";
/// The header that the shim includes, generated from the Rust definitions.
const GENERATED_HEADER: &str = "strata_abi.h";
/// The module's file name.
const MODULE: &str = "strata.ko";
/// The folder of headers that take the place of the kernel's own.
const SHADOW: &str = "shadow";
/// The generated list of what the module lacks.
const MISSING_SOURCE: &str = "strata_missing.c";

/// Why the module could not be built.
#[derive(Debug, thiserror::Error)]
pub enum KmodError {
    /// The kernel headers cannot be used.
    #[error(transparent)]
    Headers(#[from] HeadersError),
    /// A program failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The object code is not fit for the kernel.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// The units of the kernel's trace headers could not be made.
    #[error(transparent)]
    Units(#[from] UnitsError),
    /// The kernel's BTF cannot be used.
    #[error(transparent)]
    Btf(#[from] BtfError),
    /// The finished module does not tell its events.
    #[error("the events of {} cannot be read", path.display())]
    Events {
        /// The module.
        path: PathBuf,
        /// Why.
        #[source]
        source: ModuleFileError,
    },
    /// A file could not be read or written.
    #[error("cannot use {}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
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

/// A module that was built.
#[derive(Debug)]
pub struct Built {
    /// What it records, and what of the kernel it does not.
    pub events: ModuleEvents,
    /// Trace headers that are not in it.
    pub left_out: Vec<LeftOut>,
    /// Whether the kernel's BTF was there: without it, headers that look into private structures are left out.
    pub with_btf: bool,
}

/// Builds the module for the kernel whose header tree is `kernel_headers`, checks its object code and writes it to
/// `out`. `btf` is a file with the kernel's BTF; where there is none, it is looked for where kernels keep it.
///
/// # Errors
///
/// When the headers cannot be used, a build step fails (the error names its log) or an object gate does not pass.
pub fn build(paths: &Paths, kernel_headers: &Path, btf: Option<&Path>, out: &Path) -> Result<Built, KmodError> {
    let kernel_headers = fs::canonicalize(kernel_headers).map_err(file_error(kernel_headers))?;
    let release = headers::release(&kernel_headers)?;
    let folder = paths.builds().join(format!("kmod-{release}"));
    let source = paths.workspace().join("guest-agent/kmod");
    copy_shim(&source, &folder)?;
    copy_headers(&source.join(SHADOW), &folder.join(SHADOW))?;
    let header = folder.join(GENERATED_HEADER);
    write_if_changed(&header, shared_ring::c_header::c_header().as_bytes())?;

    let libraries = build_rust(paths)?;
    let object = folder.join("rust.o_shipped");
    link_rust(&libraries, &folder.join(LINK_SCRIPT), &object, &paths.logs().join("kmod-link.log"))?;
    object_gates::check_object(&object)?;

    let btf = match btf {
        Some(file) => Some(file.to_path_buf()),
        None => find_btf(paths, &kernel_headers, &release),
    };
    let btf = btf.map(|file| Btf::open(&file, &folder.join("btf"))).transpose()?;
    let log = paths.logs().join("kmod-units.log");
    let units = tracepoint_units::make(&kernel_headers, &folder, btf.as_ref(), &log)?;
    write_if_changed(&folder.join(MISSING_SOURCE), missing_source(&units.missing()).as_bytes())?;

    let log = paths.logs().join("kmod-make.log");
    let mut make = Command::new("make");
    make.arg("-C")
        .arg(&kernel_headers)
        .arg(format!("M={}", folder.display()))
        .arg("modules")
        // a caller's make must not reach into this one
        .env_remove("MAKEFLAGS")
        .env_remove("MFLAGS");
    process::run_logged(&mut make, &log)?;
    let text = fs::read_to_string(&log).map_err(file_error(&log))?;
    object_gates::check_build_log(&text)?;

    if let Some(parent) = out.parent() {
        fs::create_dir_all(parent).map_err(file_error(parent))?;
    }
    let partial = out.with_extension("partial");
    let mut strip = Command::new("strip");
    strip.arg("--strip-debug").arg("-o").arg(&partial).arg(folder.join(MODULE));
    process::run_logged(&mut strip, &paths.logs().join("kmod-strip.log"))?;
    let module = fs::read(&partial).map_err(file_error(&partial))?;
    let events = ModuleEvents::read(&module).map_err(|source| KmodError::Events { path: partial.clone(), source })?;
    fs::rename(&partial, out).map_err(file_error(out))?;
    Ok(Built { events, left_out: units.left_out(), with_btf: btf.is_some() })
}

/// Where the BTF of the kernel `release` may be: beside its headers, among the lab's kernels, or in the running kernel.
fn find_btf(paths: &Paths, kernel_headers: &Path, release: &str) -> Option<PathBuf> {
    let running = fs::read_to_string("/proc/sys/kernel/osrelease").is_ok_and(|running| running.trim() == release);
    let candidates = [
        Some(kernel_headers.join("vmlinux")),
        Some(paths.kernels().join(format!("vmlinux-{release}"))),
        Some(PathBuf::from(format!("/usr/lib/debug/boot/vmlinux-{release}"))),
        running.then(|| PathBuf::from("/sys/kernel/btf/vmlinux")),
    ];
    candidates.into_iter().flatten().find(|path| path.exists())
}

/// A C file that keeps the lines `missing` in the module, in memory that is freed once it is initialised.
fn missing_source(missing: &str) -> String {
    let mut text =
        String::from("/* Generated: what the kernel has and the module lacks. */\n#include <linux/compiler.h>\n\n");
    text.push_str("static const char strata_missing[] __used __section(\".init.strata_missing\") =");
    for line in missing.lines() {
        let line = line.replace('\\', "\\\\").replace('"', "\\\"").replace('\t', "\\t").replace('?', "\\?");
        text.push_str(&format!("\n\t\"{line}\\n\""));
    }
    text + "\n\t\"\";\n"
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> KmodError + use<> {
    let path = path.to_path_buf();
    move |source| KmodError::File { path, source }
}

/// Leaves an unchanged file's time alone, so that `make` rebuilds only what it must.
fn write_if_changed(path: &Path, content: &[u8]) -> Result<(), KmodError> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    fs::write(path, content).map_err(file_error(path))
}

/// Copies the shim's sources (everything in the folder itself but the Rust crate's files), and removes sources that
/// are no longer there.
fn copy_shim(source: &Path, folder: &Path) -> Result<(), KmodError> {
    fs::create_dir_all(folder).map_err(file_error(folder))?;
    let mut names = Vec::new();
    for entry in fs::read_dir(source).map_err(file_error(source))? {
        let path = entry.map_err(file_error(source))?.path();
        if path.is_file() && path.extension() != Some(OsStr::new("toml")) {
            let name = path.file_name().unwrap_or_default().to_owned();
            let content = fs::read(&path).map_err(file_error(&path))?;
            write_if_changed(&folder.join(&name), &content)?;
            names.push(name);
        }
    }
    for entry in fs::read_dir(folder).map_err(file_error(folder))?.flatten() {
        let name = entry.file_name();
        let is_source = Path::new(&name).extension().is_some_and(|ending| ending == "c" || ending == "h");
        // the kernel's build generates NAME.mod.c itself
        let text = name.to_string_lossy();
        let generated = name == GENERATED_HEADER
            || name == MISSING_SOURCE
            || text.ends_with(".mod.c")
            || text.starts_with(tracepoint_units::PREFIX);
        if is_source && !generated && !names.contains(&name) {
            fs::remove_file(entry.path()).map_err(file_error(&entry.path()))?;
        }
    }
    Ok(())
}

/// Copies the headers in `source` and the folders below it.
fn copy_headers(source: &Path, folder: &Path) -> Result<(), KmodError> {
    fs::create_dir_all(folder).map_err(file_error(folder))?;
    for entry in fs::read_dir(source).map_err(file_error(source))? {
        let path = entry.map_err(file_error(source))?.path();
        let to = folder.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy_headers(&path, &to)?;
        } else {
            write_if_changed(&to, &fs::read(&path).map_err(file_error(&path))?)?;
        }
    }
    Ok(())
}

/// Compiles the Rust part and returns the libraries of this workspace's crates.
fn build_rust(paths: &Paths) -> Result<Vec<PathBuf>, KmodError> {
    let log = paths.logs().join("kmod-cargo.log");
    let mut command = cargo(paths, &paths.builds().join("kmod-rust"));
    command
        .args(["build", "--profile", "kmod", "--target", TARGET])
        .args(["-p", "strata-kmod", "--features", "kernel"])
        .args(["--message-format", "json-render-diagnostics"])
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", KERNEL_FLAGS.join("\x1f"));
    process::run_logged(&mut command, &log)?;
    let text = fs::read_to_string(&log).map_err(file_error(&log))?;
    let libraries = workspace_libraries(&text, paths.workspace());
    if libraries.is_empty() {
        return Err(KmodError::NoLibrary(log));
    }
    Ok(libraries)
}

/// The library files that cargo's messages name for crates below the folder `workspace`. Other crates contribute inlined
/// code only; a call into one is found by the gate on undefined symbols.
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
    linker.args(["-r", "--gc-sections", "-T"]).arg(script).arg("-o").arg(object);
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
/// would ask for, and the names of source files, of which objtool takes one per object.
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
    fn copy_shim_takes_sources_and_drops_those_that_are_gone() {
        let source = tempfile::tempdir().unwrap();
        let target = tempfile::tempdir().unwrap();
        for name in ["Kbuild", "main.c", "Cargo.toml"] {
            fs::write(source.path().join(name), name).unwrap();
        }
        fs::write(target.path().join("gone.c"), "").unwrap();
        fs::write(target.path().join("strata.mod.c"), "").unwrap();

        copy_shim(source.path(), target.path()).unwrap();

        let mut names: Vec<_> = fs::read_dir(target.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["Kbuild", "main.c", "strata.mod.c"]);
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
