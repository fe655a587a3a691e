//! One build: sources and a header tree in, a checked and stripped module out.

use crate::build_log::{objtool_complaint, telling_lines};
use crate::headers::{self, HeadersError};
use crate::kernel_make;
use crate::partial_file::partial;
use crate::private_types::{Btf, BtfError};
use crate::sources::{self, NotSources, SourcesError};
use crate::tracepoint_units::{self, LeftOut, UnitsError};
use object::{Object, ObjectSection};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use strata_kmod::module_file::{ModuleEvents, ModuleFileError};

/// The module's file name, and its name.
const MODULE: &str = "strata.ko";
/// What `make` wrote, in the working folder.
const LOG: &str = "build.log";
/// What trying the kernel's trace headers wrote, in the working folder.
const UNITS_LOG: &str = "units.log";
/// The trace headers that are not in the module, in the working folder: see [`LeftOut::list`].
pub const LEFT_OUT: &str = "left-out.txt";

/// Why the module could not be built.
#[derive(Debug, thiserror::Error)]
pub enum KmodBuildError {
    /// The folder holds no sources.
    #[error(transparent)]
    NotSources(#[from] NotSources),
    /// The kernel headers cannot be used.
    #[error(transparent)]
    Headers(#[from] HeadersError),
    /// The headers are those of another kernel.
    #[error(
        "the headers in '{}' are those of kernel {found}, not of {wanted}: install linux-headers-{wanted} and name its \
         folder, such as /lib/modules/{wanted}/build",
        folder.display()
    )]
    OtherKernel {
        /// The header tree.
        folder: PathBuf,
        /// The kernel that it belongs to.
        found: String,
        /// The kernel that was requested.
        wanted: String,
    },
    /// The kernel's compiler is not installed.
    #[error(
        "kernel {release} was built with {compiler}, which is not installed: install it, or build on the Debian release \
         that this kernel is for"
    )]
    NoCompiler {
        release: String,
        /// The compiler.
        compiler: String,
    },
    /// The kernel's BTF cannot be used.
    #[error(transparent)]
    Btf(#[from] BtfError),
    /// The kernel's trace headers cannot be used.
    #[error(transparent)]
    Units(#[from] UnitsError),
    /// The finished module does not tell its events.
    #[error("the module that was built cannot be used")]
    Events(#[from] ModuleFileError),
    /// Sources could not be copied.
    #[error(transparent)]
    Sources(#[from] SourcesError),
    /// A file could not be read or written.
    #[error("cannot use {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A program could not be started.
    #[error("cannot start {program}: install the package {package}")]
    Start {
        program: &'static str,
        /// The Debian package that brings it.
        package: &'static str,
        #[source]
        source: io::Error,
    },
    /// A program failed.
    #[error("{program} failed: {message}")]
    Failed {
        program: &'static str,
        /// The lines of its output that tell why.
        message: String,
    },
    /// The kernel's own checker of object code complained.
    #[error("objtool complains: {0}")]
    Objtool(String),
    /// The result is for another kernel than its headers say.
    #[error("the headers in '{}' contradict themselves: they say {release}, but make modules for {built_for}", folder.display())]
    Vermagic {
        /// The header tree.
        folder: PathBuf,
        /// What its generated header says.
        release: String,
        /// What the module says.
        built_for: String,
    },
}

/// What to build.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The folder with the module's sources.
    pub sources: &'a Path,
    /// The kernel's header tree: what `make -C` takes, such as `/lib/modules/RELEASE/build`.
    pub kernel_headers: &'a Path,
    /// The kernel release that the headers must be of; `None` takes what they are of.
    pub release: Option<&'a str>,
    /// The kernel itself, an image or an ELF file, if it is at hand.
    pub kernel: Option<&'a Path>,
    /// A file with the kernel's BTF, raw, in an ELF file or in an image; `None` looks into the kernel itself, then where
    /// kernels keep it.
    pub btf: Option<&'a Path>,
    /// A folder for intermediate files. A build in the folder of an earlier one repeats only what it must.
    pub work: &'a Path,
    /// The module to write.
    pub out: &'a Path,
}

/// A module that was built.
#[derive(Clone, Debug)]
pub struct Built {
    /// The kernel release that it is for.
    pub release: String,
    /// What the build wrote.
    pub log: PathBuf,
    /// What the module records, and what of the kernel it does not.
    pub events: ModuleEvents,
    /// Trace headers that are not in it.
    pub left_out: Vec<LeftOut>,
    /// Whether the kernel's BTF was used. Only BTF says which tracepoints the kernel has, and that only of a kernel with
    /// `BPF_EVENTS`: otherwise the missing ones of `events` are all that the left-out headers declare, also those of
    /// drivers that the kernel does not have.
    pub used_btf: bool,
}

/// Builds the module, checks that objtool has nothing to say and that it is for the kernel it should be for, and writes
/// it without debug information.
///
/// # Errors
///
/// When the sources or the headers cannot be used, a program is missing or fails, or a check does not pass. `out` is
/// then left as it was.
pub fn build(request: &Request<'_>) -> Result<Built, KmodBuildError> {
    sources::check(request.sources)?;
    let kernel_headers = fs::canonicalize(request.kernel_headers).map_err(file_error(request.kernel_headers))?;
    let release = headers::release(&kernel_headers)?;
    if let Some(wanted) = request.release
        && wanted != release
    {
        let (folder, wanted) = (request.kernel_headers.to_path_buf(), wanted.to_owned());
        return Err(KmodBuildError::OtherKernel { folder, found: release, wanted });
    }
    if let Some(compiler) = headers::compiler(&kernel_headers)
        && !kernel_make::has_compiler(&compiler)
    {
        return Err(KmodBuildError::NoCompiler { release, compiler });
    }
    headers::relocate(&kernel_headers)?;
    sources::mirror(request.sources, request.work, |_| true)?;
    let work = fs::canonicalize(request.work).map_err(file_error(request.work))?;
    // without pahole a build has fewer events, unless it was asked for these
    let open = |file: &Path| Btf::open(file, &work.join("btf"));
    let btf = match request.btf {
        Some(file) => Some(open(file)?),
        None if kernel_make::is_installed("pahole") => match request.kernel.map(open) {
            Some(Err(BtfError::NoBtf(_))) | None => {
                find_btf(&kernel_headers, &release).as_deref().map(open).transpose()?
            }
            Some(of_kernel) => Some(of_kernel?),
        },
        None => None,
    };
    let units = tracepoint_units::make(&kernel_headers, &work, btf.as_ref(), &work.join(UNITS_LOG))?;
    let log = make(&kernel_headers, &work)?;
    if let Some(complaint) = objtool_complaint(&log) {
        return Err(KmodBuildError::Objtool(complaint.to_owned()));
    }
    if let Some(folder) = request.out.parent() {
        fs::create_dir_all(folder).map_err(file_error(folder))?;
    }
    let partial = partial(request.out).map_err(file_error(request.out))?;
    strip(&work.join(MODULE), &partial)?;
    let module = fs::read(&partial).map_err(file_error(&partial))?;
    match module_release(&module) {
        Some(built_for) if built_for == release => {}
        other => {
            let built_for = other.unwrap_or_else(|| "no kernel".to_owned());
            return Err(KmodBuildError::Vermagic { folder: request.kernel_headers.to_path_buf(), release, built_for });
        }
    }
    let events = ModuleEvents::read(&module)?;
    let (left_out, list) = (units.left_out(), work.join(LEFT_OUT));
    fs::write(&list, LeftOut::list(&left_out)).map_err(file_error(&list))?;
    partial.persist(request.out).map_err(|refused| file_error(request.out)(refused.error))?;
    Ok(Built { release, log: work.join(LOG), events, left_out, used_btf: btf.is_some() })
}

/// Where the BTF of the kernel `release` may be: beside its headers, with its debug information, or in the running
/// kernel.
fn find_btf(kernel_headers: &Path, release: &str) -> Option<PathBuf> {
    let running = fs::read_to_string("/proc/sys/kernel/osrelease").is_ok_and(|running| running.trim() == release);
    let candidates = [
        Some(kernel_headers.join("vmlinux")),
        Some(PathBuf::from(format!("/usr/lib/debug/boot/vmlinux-{release}"))),
        running.then(|| PathBuf::from("/sys/kernel/btf/vmlinux")),
    ];
    candidates.into_iter().flatten().find(|path| path.exists())
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> KmodBuildError + use<> {
    let path = path.to_path_buf();
    move |source| KmodBuildError::File { path, source }
}

/// Runs the kernel's build and returns what it wrote, which is also kept in the working folder.
fn make(kernel_headers: &Path, work: &Path) -> Result<String, KmodBuildError> {
    let mut command = kernel_make::command(kernel_headers, work);
    command.arg("modules");
    let output = run(&mut command, "make", "make")?;
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    let log = work.join(LOG);
    fs::write(&log, &text).map_err(file_error(&log))?;
    if output.status.success() {
        Ok(text)
    } else {
        Err(KmodBuildError::Failed { program: "make", message: telling_lines(&text) })
    }
}

fn strip(module: &Path, out: &Path) -> Result<(), KmodBuildError> {
    let output = run(Command::new("strip").arg("--strip-debug").arg("-o").arg(out).arg(module), "strip", "binutils")?;
    if output.status.success() {
        Ok(())
    } else {
        let message = telling_lines(&String::from_utf8_lossy(&output.stderr));
        Err(KmodBuildError::Failed { program: "strip", message })
    }
}

fn run(command: &mut Command, program: &'static str, package: &'static str) -> Result<Output, KmodBuildError> {
    command.stdin(Stdio::null()).output().map_err(|source| KmodBuildError::Start { program, package, source })
}

/// The kernel release that `module` was built for, if it is the agent's module.
#[must_use]
pub fn module_release(module: &[u8]) -> Option<String> {
    let file = object::File::parse(module).ok()?;
    let section = file.section_by_name(".modinfo")?;
    let information = section.data().ok()?;
    let field = |name: &str| {
        let line = information.split(|&byte| byte == 0).find_map(|line| line.strip_prefix(name.as_bytes()))?;
        std::str::from_utf8(line).ok()
    };
    if Some(OsStr::new(field("name=")?)) != Path::new(MODULE).file_stem() {
        return None;
    }
    field("vermagic=")?.split(' ').next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with sources, and one with the headers of kernel 6.1.0-x.
    fn inputs() -> (tempfile::TempDir, tempfile::TempDir) {
        let (sources, headers) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for name in ["Kbuild", "rust.o_shipped", "strata_abi.h"] {
            fs::write(sources.path().join(name), "").unwrap();
        }
        fs::create_dir_all(headers.path().join("include/generated")).unwrap();
        let header = headers.path().join("include/generated/utsrelease.h");
        fs::write(header, "#define UTS_RELEASE \"6.1.0-x\"\n").unwrap();
        (sources, headers)
    }

    fn build_in(sources: &Path, headers: &Path, release: Option<&str>) -> (tempfile::TempDir, KmodBuildError) {
        let work = tempfile::tempdir().unwrap();
        let out = work.path().join("out.ko");
        let request = Request {
            sources,
            kernel_headers: headers,
            release,
            kernel: None,
            btf: None,
            work: work.path(),
            out: &out,
        };
        let error = build(&request).unwrap_err();
        assert!(!out.exists());
        (work, error)
    }

    #[test]
    fn headers_of_another_kernel_are_refused_before_anything_is_built() {
        let (sources, headers) = inputs();

        let (work, error) = build_in(sources.path(), headers.path(), Some("6.12.0-y"));

        let message = error.to_string();
        assert!(message.contains("kernel 6.1.0-x, not of 6.12.0-y"), "{message}");
        assert_eq!(fs::read_dir(work.path()).unwrap().count(), 0);
    }

    #[test]
    fn headers_that_are_not_there_are_named() {
        let (sources, _headers) = inputs();

        let (_work, error) = build_in(sources.path(), Path::new("/nonexistent/headers"), None);

        assert!(error.to_string().contains("/nonexistent/headers"));
    }

    #[test]
    fn compiler_that_is_not_installed_is_named() {
        let (sources, headers) = inputs();
        fs::write(headers.path().join(".kernelvariables"), "CC = $(CROSS_COMPILE)gcc-nonexistent\n").unwrap();

        let (_work, error) = build_in(sources.path(), headers.path(), None);

        assert!(error.to_string().contains("gcc-nonexistent"), "{error}");
    }

    #[test]
    fn failure_of_make_tells_its_error() {
        let (sources, headers) = inputs();
        fs::write(headers.path().join("Makefile"), ".DEFAULT:\n\t@echo 'x.c:1: error: wrong'; echo noise; false\n")
            .unwrap();
        fs::write(headers.path().join("Module.symvers"), "").unwrap();
        let events = headers.path().join("include/trace/events");
        fs::create_dir_all(&events).unwrap();
        let header = "#define TRACE_SYSTEM x\n#include <trace/define_trace.h>\n";
        fs::write(events.join("x.h"), header).unwrap();

        let (work, error) = build_in(sources.path(), headers.path(), Some("6.1.0-x"));

        assert!(
            matches!(&error, KmodBuildError::Units(UnitsError::NothingCompiles { message })
                if message.contains("x.c:1: error: wrong") && !message.contains("noise")),
            "{error}"
        );
        assert!(fs::read_to_string(work.path().join(UNITS_LOG)).unwrap().contains("noise"));
    }
}
