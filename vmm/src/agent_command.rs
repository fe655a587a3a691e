//! `strata agent`: building the guest's kernel module, and bringing it into an initrd for other hypervisors.

use crate::agent::initrd::begins_like_an_initrd;
use crate::agent::{self, AgentError, Start};
use crate::ready_made_module::{self, AUTO, ReadyMadeError};
use clap::{Args, Subcommand};
use std::fs;
use std::io::{self, Cursor};
use std::path::{Path, PathBuf};
use strata_kmod_build::{INSTALLED, KmodBuildError, Request, partial};
use strata_recording::files::removed_on_signal::RemovedOnSignal;
use strata_recording::text::terminal::shell_option;
use thiserror::Error;

/// Names the folder with the agent's sources.
const SOURCES_VARIABLE: &str = "STRATA_AGENT_SOURCES";
/// Where the sources lie from the folder of the program, when strata is installed below another prefix than `/usr`.
const BESIDE_PROGRAM: &str = "../lib/strata/agent";
/// Arguments of `strata agent`.
#[derive(Debug, Args)]
pub struct AgentArgs {
    /// What to do
    #[command(subcommand)]
    pub command: AgentCommand,
}

/// What `strata agent` does.
#[derive(Debug, Subcommand)]
pub enum AgentCommand {
    /// Build the guest's kernel module for one kernel
    Build(BuildArgs),
    /// Put the kernel module into an initrd, for a guest of QEMU or libvirt
    Inject(InjectArgs),
}

/// Arguments of `strata agent build`.
#[derive(Debug, Args)]
#[command(
    after_help = "The kernel's headers come from its package linux-headers-RELEASE; make and the compiler that it \
    names are needed too. The module works for this one release.\n\nExamples:\n  \
    strata agent build --kernel-headers /lib/modules/$(uname -r)/build --out strata.ko\n  \
    strata agent build --kernel vmlinuz --kernel-headers /usr/src/linux-headers-6.1.0-56-cloud-amd64"
)]
pub struct BuildArgs {
    /// The kernel's header tree: what `make -C` takes
    #[arg(long, value_name = "DIR")]
    pub kernel_headers: PathBuf,
    /// The kernel that the headers have to be of: its release, or its image, whose BTF is used then
    #[arg(long, value_name = "RELEASE|FILE")]
    pub kernel: Option<String>,
    /// The kernel's BTF, raw, in an ELF file or in an image [default: that of --kernel, else where the kernel keeps it];
    /// without it, events whose headers look into private structures are left out
    #[arg(long, value_name = "FILE")]
    pub btf: Option<PathBuf>,
    /// Module to write
    #[arg(long, value_name = "FILE", default_value = "strata.ko")]
    pub out: PathBuf,
    /// Folder with the module's sources [default: $STRATA_AGENT_SOURCES, or where strata is installed]
    #[arg(long, value_name = "DIR")]
    pub agent_sources: Option<PathBuf>,
}

/// Arguments of `strata agent inject`.
#[derive(Debug, Args)]
#[command(
    after_help = "The initrd itself is not changed: a small archive that the kernel unpacks after it is appended. \
    Its first program loads the module, puts the initrd's own /init back, and runs that. Where the initrd has no /init, \
    or cannot be read, the guest's kernel command line has to name the program: `rdinit=/strata-init`. What is needed is \
    printed. `strata run --agent` does all this by itself.\n\nExample:\n  \
    strata agent inject --initrd /boot/initrd.img --module strata.ko --out initrd-strata.img"
)]
pub struct InjectArgs {
    /// The guest's initrd, compressed or not; without it, the new one holds the agent alone
    #[arg(long, value_name = "FILE")]
    pub initrd: Option<PathBuf>,
    /// The kernel module that `strata agent build` has built; 'auto' or a folder picks the ready-made one of --kernel
    #[arg(long, value_name = "FILE|auto|DIR")]
    pub module: PathBuf,
    /// The guest's kernel, to check that the module is for it, or to pick it
    #[arg(long, value_name = "FILE", required_if_eq("module", AUTO))]
    pub kernel: Option<PathBuf>,
    /// Initrd to write
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

/// Why `strata agent` could not do it.
#[derive(Debug, Error)]
pub enum AgentCommandError {
    /// There are no sources to build from.
    #[error(
        "the agent's sources are not installed in {}: install strata's package, or name their folder with \
         --agent-sources (in strata's source tree, `cargo xtask kmod` builds the module)",
        .0.display()
    )]
    NoSources(PathBuf),
    /// The build failed.
    #[error(transparent)]
    Build(#[from] KmodBuildError),
    /// A file cannot be read or written.
    #[error("cannot use '{}'", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The kernel image does not say what it is.
    #[error("'{}' does not contain a kernel release: give the release itself, as `uname -r` shows it", .0.display())]
    NoRelease(PathBuf),
    /// The module is not one for this guest.
    #[error(transparent)]
    Module(#[from] AgentError),
    /// There is no ready-made module for this guest.
    #[error(transparent)]
    ReadyMade(#[from] ReadyMadeError),
    /// A folder of modules was named, and no kernel.
    #[error("'{}' is a folder of modules: name the guest's kernel, too, with --kernel", .0.display())]
    WhichKernel(PathBuf),
    /// The file is not an initrd.
    #[error("'{}' is not an initrd: it begins neither like a cpio archive nor like a compressed one", .0.display())]
    NotAnInitrd(PathBuf),
}

/// Does what the command says and returns what to tell the user: lines for standard output.
///
/// # Errors
///
/// When a file cannot be used, or is not what it should be, or the build fails. No file is written then.
pub fn run(command: &AgentCommand) -> Result<String, AgentCommandError> {
    match command {
        AgentCommand::Build(args) => build(args),
        AgentCommand::Inject(args) => inject(args),
    }
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> AgentCommandError + use<> {
    let path = path.to_path_buf();
    move |source| AgentCommandError::File { path, source }
}

fn build(args: &BuildArgs) -> Result<String, AgentCommandError> {
    let sources = sources(args.agent_sources.as_deref())?;
    let wanted = args.kernel.as_deref().map(wanted_release).transpose()?;
    let work = tempfile::tempdir().map_err(file_error(&std::env::temp_dir()))?;
    let built = strata_kmod_build::build(&Request {
        sources: &sources,
        kernel_headers: &args.kernel_headers,
        release: wanted.as_deref(),
        kernel: args.kernel.as_deref().map(Path::new).filter(|kernel| kernel.is_file()),
        btf: args.btf.as_deref(),
        work: work.path(),
        out: &args.out,
    })?;
    let missing = built.used_btf.then_some(built.events.missing.len());
    Ok(built_text(&args.out, &built.release, built.events.events.len(), missing))
}

/// What a build says: the module `out` for the kernel `release` records `events` events, and `missing` tracepoints of the
/// kernel are left out, if its BTF was there to say which it has.
fn built_text(out: &Path, release: &str, events: usize, missing: Option<usize>) -> String {
    let (out, agent) = (out.display(), shell_option("--agent", out));
    let missing = match missing {
        Some(0) => String::new(),
        Some(missing) => format!(
            "{missing} tracepoints of the kernel are left out: strata events --list guest-kernel {agent} names them\n"
        ),
        None => {
            "built without the kernel's BTF: events whose headers look into private structures are left out (install \
                 pahole and give --btf FILE to have them)\n"
                .into()
        }
    };
    format!(
        "{out} for kernel {release} records {events} events\n{missing}next: strata run --kernel FILE {agent} --trace DIR\n"
    )
}

/// The folder with the sources: the one named, or the first that is there of the places where they may be.
fn sources(named: Option<&Path>) -> Result<PathBuf, AgentCommandError> {
    if let Some(folder) = named {
        return Ok(folder.to_path_buf());
    }
    if let Some(folder) = std::env::var_os(SOURCES_VARIABLE) {
        return Ok(folder.into());
    }
    let beside = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.join(BESIDE_PROGRAM)));
    let places = beside.into_iter().chain([PathBuf::from(INSTALLED)]);
    let found = places.into_iter().find(|folder| strata_kmod_build::check(folder).is_ok());
    found.ok_or_else(|| AgentCommandError::NoSources(INSTALLED.into()))
}

/// The release that `kernel` names, or that the image in the file of this name has. A release begins with a digit.
fn wanted_release(kernel: &str) -> Result<String, AgentCommandError> {
    let path = Path::new(kernel);
    if !path.is_file() && kernel.starts_with(|first: char| first.is_ascii_digit()) {
        return Ok(kernel.to_owned());
    }
    let image = fs::read(path).map_err(file_error(path))?;
    agent::kernel_release(&image).ok_or_else(|| AgentCommandError::NoRelease(path.to_path_buf()))
}

fn inject(args: &InjectArgs) -> Result<String, AgentCommandError> {
    let read = |path: &Path| fs::read(path).map_err(file_error(path));
    let kernel = args.kernel.as_ref().map(|kernel| Ok::<_, AgentCommandError>((kernel, read(kernel)?))).transpose()?;
    let file = match (ready_made_module::folder(&args.module), &kernel) {
        (Some(folder), Some((kernel, bytes))) => ready_made_module::pick(&folder, kernel, bytes)?,
        (Some(_), None) => return Err(AgentCommandError::WhichKernel(args.module.clone())),
        (None, _) => args.module.clone(),
    };
    let module = read(&file)?;
    match &kernel {
        Some((kernel, bytes)) => agent::check_module(&file, &module, kernel, bytes)?,
        None => agent::check_is_module(&file, &module)?,
    }
    let mut initrd = args.initrd.as_deref().map(read).transpose()?;
    if let (Some(path), Some(initrd)) = (&args.initrd, &initrd)
        && !begins_like_an_initrd(initrd)
    {
        return Err(AgentCommandError::NotAnInitrd(path.clone()));
    }
    let start = Start::of("", initrd.as_ref().map(Cursor::new));
    let mut initrd = initrd.take().unwrap_or_default();
    agent::append(&mut initrd, &agent::overlay(&module, &start));
    write_whole(&args.out, &initrd)?;
    Ok(injected_text(&args.out, start))
}

/// Writes `content` to the file `path`, which is there once it is complete: an error or a signal leaves nothing.
fn write_whole(path: &Path, content: &[u8]) -> Result<(), AgentCommandError> {
    let partial = partial(path).map_err(file_error(path))?;
    let _guard = RemovedOnSignal::new(&partial).map_err(file_error(&partial))?;
    fs::write(&partial, content).map_err(file_error(&partial))?;
    partial.persist(path).map_err(|refused| file_error(path)(refused.error))
}

/// What an injection into the initrd `out` says.
fn injected_text(out: &Path, start: Start) -> String {
    let (out, words) = (out.display(), agent::append_cmdline("", &start, None));
    match start {
        Start::InPlaceOf(_) => {
            let kept = "the agent's program takes the place of /init and puts it back";
            format!("{out}; the guest's kernel command line stays as it is: {kept}\n")
        }
        Start::ByCommandLine(reason) => {
            let reason = anyhow::Error::from(reason);
            format!("{out}; the guest's kernel command line needs: {words} ({reason:#})\n")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::tests::agent as module;

    fn inject_in(folder: &Path, initrd: Option<&[u8]>, module: &[u8]) -> Result<String, AgentCommandError> {
        let path = |name: &str| folder.join(name);
        fs::write(path("a.ko"), module).unwrap();
        fs::write(path("initrd"), initrd.unwrap_or_default()).unwrap();
        inject(&InjectArgs {
            initrd: initrd.map(|_| path("initrd")),
            module: path("a.ko"),
            kernel: None,
            out: path("out"),
        })
    }

    /// An archive with an `/init`, and what follows an initrd that it is.
    fn initrd_and_overlay() -> (Vec<u8>, Vec<u8>) {
        let start = Start::InPlaceOf(agent::tests::script());
        (agent::overlay(b"", &start), agent::overlay(&module(), &start))
    }

    fn overlay_without_initrd() -> Vec<u8> {
        agent::overlay(&module(), &Start::of("", None::<Cursor<&[u8]>>))
    }

    #[test]
    fn injected_archive_follows_the_initrd_and_needs_no_word_of_the_command_line() {
        let folder = tempfile::tempdir().unwrap();
        let (initrd, overlay) = initrd_and_overlay();

        let printed = inject_in(folder.path(), Some(&initrd), &module()).unwrap();

        let out = fs::read(folder.path().join("out")).unwrap();
        assert_eq!(out, [&*initrd, &[0; 4], &*overlay].concat());
        assert!(printed.contains("command line stays as it is") && !printed.contains("rdinit="), "{printed}");
    }

    #[test]
    fn initrd_that_cannot_be_read_needs_a_word_of_the_command_line() {
        let folder = tempfile::tempdir().unwrap();

        let printed = inject_in(folder.path(), Some(b"\x89LZO"), &module()).unwrap();

        let out = fs::read(folder.path().join("out")).unwrap();
        assert_eq!(out, [b"\x89LZO", &[0; 4][..], &overlay_without_initrd()].concat());
        let wanted = "needs: rdinit=/strata-init strata_init=/init (the initrd is compressed by LZO)\n";
        assert!(printed.ends_with(wanted), "{printed}");
    }

    #[test]
    fn injecting_needs_no_initrd() {
        let folder = tempfile::tempdir().unwrap();

        let printed = inject_in(folder.path(), None, &module()).unwrap();

        assert_eq!(fs::read(folder.path().join("out")).unwrap(), overlay_without_initrd());
        assert!(printed.ends_with("strata_init=/init (there is no initrd)\n"), "{printed}");
    }

    #[test]
    fn ready_made_module_of_the_kernel_is_injected() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir_all(path("modules/6.1.0-56-cloud-amd64")).unwrap();
        fs::write(path("modules/6.1.0-56-cloud-amd64/strata.ko"), module()).unwrap();
        fs::write(path("vmlinux"), b"\x7fELF Linux version 6.1.0-56-cloud-amd64 (debian)").unwrap();
        let args = |kernel| InjectArgs { initrd: None, module: path("modules"), kernel, out: path("out") };

        let without_kernel = inject(&args(None)).unwrap_err();
        inject(&args(Some(path("vmlinux")))).unwrap();

        assert!(without_kernel.to_string().contains("--kernel"), "{without_kernel}");
        assert_eq!(fs::read(path("out")).unwrap(), overlay_without_initrd());
    }

    #[test]
    fn other_files_are_refused_and_nothing_is_written() {
        let folder = tempfile::tempdir().unwrap();

        let no_initrd = inject_in(folder.path(), Some(b"\x7fELF"), &module()).unwrap_err();
        let no_module = inject_in(folder.path(), None, b"\x7fELF").unwrap_err();

        assert!(no_initrd.to_string().contains("is not an initrd"), "{no_initrd}");
        assert!(no_module.to_string().contains("is not strata's kernel module"), "{no_module}");
        assert!(!folder.path().join("out").exists());
    }

    #[test]
    fn initrd_that_cannot_have_its_name_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("out")).unwrap();

        let refused = inject_in(folder.path(), None, &module()).unwrap_err();

        assert!(refused.to_string().ends_with("out'"), "{refused}");
        assert!(!folder.path().join("out.partial").exists());
    }

    #[test]
    fn build_counts_the_tracepoints_of_the_kernel_that_are_left_out() {
        let text = built_text(Path::new("a.ko"), "6.1.0", 680, Some(28));

        assert!(text.starts_with("a.ko for kernel 6.1.0 records 680 events\n28 tracepoints of the kernel"), "{text}");
        assert!(text.contains("strata events --list guest-kernel --agent a.ko"), "{text}");
        assert!(text.ends_with("next: strata run --kernel FILE --agent a.ko --trace DIR\n"), "{text}");
        let odd = built_text(Path::new("-a b.ko"), "6.1.0", 680, Some(28));
        assert!(odd.ends_with("next: strata run --kernel FILE --agent='-a b.ko' --trace DIR\n"), "{odd}");
    }

    #[test]
    fn build_without_btf_counts_nothing_that_it_does_not_know() {
        let text = built_text(Path::new("a.ko"), "6.1.0", 675, None);

        assert!(text.contains("records 675 events\nbuilt without the kernel's BTF"), "{text}");
        assert!(text.contains("--btf FILE") && !text.contains("tracepoints"), "{text}");
    }

    #[test]
    fn sources_that_are_named_are_not_looked_for_elsewhere() {
        let named = sources(Some(Path::new("/nonexistent"))).unwrap();

        assert_eq!(named, Path::new("/nonexistent"));
    }

    #[test]
    fn kernel_is_a_release_or_an_image() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("vmlinux");
        fs::write(&image, b"\x7fELF Linux version 6.1.0-56-cloud-amd64 (debian)").unwrap();

        assert_eq!(wanted_release("6.12.1").unwrap(), "6.12.1");
        assert!(wanted_release("/nonexistent/vmlinuz").unwrap_err().to_string().contains("/nonexistent/vmlinuz"));
        assert_eq!(wanted_release(image.to_str().unwrap()).unwrap(), "6.1.0-56-cloud-amd64");
        fs::write(&image, b"text").unwrap();
        assert!(matches!(wanted_release(image.to_str().unwrap()), Err(AgentCommandError::NoRelease(_))));
    }
}
