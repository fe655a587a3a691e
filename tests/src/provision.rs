//! Everything that a run in the lab needs, made once and kept.

use crate::build::binaries::{self, Binaries, Purpose};
use crate::build::guest_image::{self, GuestImage};
use crate::build::kmod::{self, KmodError};
use crate::fetch::apt::PackageError;
use crate::fetch::kernel_packages::{self, KernelChoice, KernelPackages};
use crate::fetch::module_tree::{ModuleTree, ModulesError};
use crate::fetch::tools;
use crate::lock::{Lock, LockError};
use crate::machine::emulated_guest::EmulatedGuests;
use crate::machine::emulator::{Emulator, EmulatorChoiceError};
use crate::machine::host::{Host, HostError, HostKind};
use crate::machine::nested::{self, NestedHost};
use crate::paths::Paths;
use crate::process::{self, ProcessError};
use crate::progress;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use strata_kmod_build::headers::{self, HeadersError};
use strata_kmod_build::kernel_image::{self, KernelError};

/// Why the lab is not ready.
#[derive(Debug, thiserror::Error)]
pub enum ProvisionError {
    /// The lab's lock could not be taken.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// Packages are missing.
    #[error(transparent)]
    Packages(#[from] PackageError),
    /// The kernel could not be unpacked.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The kernel headers cannot be used.
    #[error(transparent)]
    Headers(#[from] HeadersError),
    /// The kernel package lacks modules.
    #[error(transparent)]
    Modules(#[from] ModulesError),
    /// A program failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The guest kernel module could not be built.
    #[error(transparent)]
    Kmod(#[from] KmodError),
    /// No host can be used.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The environment asks for what no emulator does.
    #[error(transparent)]
    Emulator(#[from] EmulatorChoiceError),
    /// A tool is missing although it was installed.
    #[error("{0} is not on the PATH")]
    Tool(&'static str),
}

/// What comes from packages: enough to boot hosts and guests that need nothing built here.
#[derive(Clone, Debug)]
pub struct Kernels {
    /// Which kernel it is.
    pub packages: KernelPackages,
    /// The ELF kernel, which boots fastest.
    pub vmlinux: PathBuf,
    /// The same kernel as distributed.
    pub bzimage: PathBuf,
    /// Its header tree.
    pub headers: PathBuf,
    /// Its modules.
    pub modules: PathBuf,
    /// A static busybox.
    pub busybox: PathBuf,
}

impl Kernels {
    /// The emulated host made of this kernel.
    ///
    /// # Errors
    ///
    /// When a module is missing, or the environment asks for what no emulator does.
    pub fn nested_host(&self, paths: &Paths) -> Result<NestedHost, ProvisionError> {
        let tree = ModuleTree::open(&self.modules)?;
        Ok(NestedHost {
            kernel: self.vmlinux.clone(),
            modules: tree.closure(&nested::MODULES)?,
            modules_for_results: tree.closure(&nested::MODULES_FOR_RESULTS)?,
            modules_with_persistent_memory: tree.closure(&nested::MODULES_WITH_PERSISTENT_MEMORY)?,
            busybox: self.busybox.clone(),
            emulator: Emulator::choose(&paths.emulators())?,
        })
    }

    /// A guest image for this kernel, without workload or script.
    ///
    /// # Errors
    ///
    /// When a module is missing.
    pub fn guest_image(&self) -> Result<GuestImage, ModulesError> {
        self.guest_image_with(&guest_image::MODULES)
    }

    /// A guest image for this kernel on a machine of QEMU's, without workload or script.
    ///
    /// # Errors
    ///
    /// When a module is missing.
    pub fn emulated_guest_image(&self) -> Result<GuestImage, ModulesError> {
        self.guest_image_with(&guest_image::MODULES_ON_PCI)
    }

    fn guest_image_with(&self, modules: &[&str]) -> Result<GuestImage, ModulesError> {
        let modules = ModuleTree::open(&self.modules)?.closure(modules)?;
        Ok(GuestImage::new(&self.busybox, &modules))
    }
}

/// A lab that is ready: kernels, our own programs, the guest's module, and a host.
#[derive(Clone, Debug)]
pub struct Lab {
    /// Where its files are.
    pub paths: Paths,
    /// What comes from packages.
    pub kernels: Kernels,
    /// Our own programs.
    pub binaries: Binaries,
    /// The guest kernel module.
    pub agent: PathBuf,
    /// Where scripts run.
    pub host: Host,
}

/// Keeps other processes from changing the lab until it is dropped.
fn lock(paths: &Paths) -> Result<Lock, LockError> {
    let path = paths.lab().join("lock");
    match Lock::try_take(&path) {
        Err(LockError::Busy { holder, .. }) => {
            progress::note(&format!("waiting for process {holder}, which makes the lab ready"));
            Lock::take(&path)
        }
        result => result,
    }
}

/// Installs tools and fetches and unpacks the default kernel, unless that has been done.
///
/// # Errors
///
/// When a package cannot be had or a file not be made.
pub fn kernels(paths: &Paths, with_qemu: bool) -> Result<Kernels, ProvisionError> {
    let _lock = lock(paths)?;
    kernels_locked(paths, with_qemu)
}

/// Fetches and unpacks one of Debian's kernels, unless that has been done: for guests, beside the default one.
///
/// # Errors
///
/// When a package cannot be had or a file not be made.
pub fn kernel(paths: &Paths, choice: KernelChoice) -> Result<Kernels, ProvisionError> {
    let _lock = lock(paths)?;
    tools::install_all(paths, false)?;
    kernel_locked(paths, choice)
}

fn kernels_locked(paths: &Paths, with_qemu: bool) -> Result<Kernels, ProvisionError> {
    tools::install_all(paths, with_qemu)?;
    kernel_locked(paths, KernelChoice::DEFAULT)
}

fn kernel_locked(paths: &Paths, choice: KernelChoice) -> Result<Kernels, ProvisionError> {
    let packages = kernel_packages::fetch(paths, choice)?;
    let root = paths.kernel_root(choice);
    let headers = packages.headers(&root);
    headers::relocate(&headers)?;
    let bzimage = packages.bzimage(&root);
    let vmlinux = paths.kernels().join(format!("vmlinux-{}", packages.release));
    kernel_image::extract_file(&bzimage, &vmlinux)?;
    let busybox = process::find_program("busybox").ok_or(ProvisionError::Tool("busybox"))?;
    Ok(Kernels { modules: packages.modules(&root), packages, vmlinux, bzimage, headers, busybox })
}

/// Builds our own programs, to be tested.
///
/// # Errors
///
/// When cargo fails; the error names its log.
pub fn programs(paths: &Paths) -> Result<Binaries, ProvisionError> {
    let _lock = lock(paths)?;
    programs_locked(paths, Purpose::Test)
}

fn programs_locked(paths: &Paths, purpose: Purpose) -> Result<Binaries, ProvisionError> {
    Ok(progress::step("building static strata and workload", || binaries::build(paths, purpose))?)
}

/// Builds what runs and records guests whose processors QEMU emulates.
///
/// # Errors
///
/// When QEMU or busybox cannot be had, or cargo fails; the error names its log.
pub fn emulated_guests(paths: &Paths) -> Result<EmulatedGuests, ProvisionError> {
    let _lock = lock(paths)?;
    tools::install_all(paths, true)?;
    let strata = programs_locked(paths, Purpose::Test)?.strata;
    let program = progress::step("building the program for emulated guests", || binaries::build_emulated_guest(paths))?;
    let busybox = process::find_program("busybox").ok_or(ProvisionError::Tool("busybox"))?;
    Ok(EmulatedGuests { busybox, strata, program })
}

/// Fetches the default kernel and builds the guest kernel module for it.
///
/// # Errors
///
/// When a package cannot be had or a step of the build fails.
pub fn agent(paths: &Paths) -> Result<PathBuf, ProvisionError> {
    let _lock = lock(paths)?;
    agent_locked(paths, &kernels_locked(paths, false)?)
}

/// Builds the guest kernel module for a kernel that was fetched.
///
/// # Errors
///
/// When a step of the build fails.
pub fn agent_for(paths: &Paths, kernels: &Kernels) -> Result<PathBuf, ProvisionError> {
    let _lock = lock(paths)?;
    agent_locked(paths, kernels)
}

fn agent_locked(paths: &Paths, kernels: &Kernels) -> Result<PathBuf, ProvisionError> {
    let agent = paths.images().join(format!("strata-{}.ko", kernels.packages.release));
    let built = BuiltInRun::of(&agent);
    if built.is_so() {
        return Ok(agent);
    }
    progress::step("building the guest kernel module", || {
        kmod::build(paths, &kernels.headers, Some(&kernels.vmlinux), &agent)
    })?;
    built.note();
    Ok(agent)
}

fn kernels_and_agent_locked(paths: &Paths) -> Result<(Kernels, PathBuf), ProvisionError> {
    let kernels = kernels_locked(paths, false)?;
    let agent = agent_locked(paths, &kernels)?;
    Ok((kernels, agent))
}

/// Whether something was built in this run of tests: what one test has built anew from the sources, the others need not
/// look through again.
struct BuiltInRun {
    /// Names the run in which it was built last.
    marker: PathBuf,
    /// This run; `None` without one.
    run: Option<String>,
}

impl BuiltInRun {
    fn of(product: &Path) -> Self {
        Self { marker: product.with_extension("run"), run: std::env::var("NEXTEST_RUN_ID").ok() }
    }

    fn is_so(&self) -> bool {
        self.run.is_some() && fs::read_to_string(&self.marker).ok() == self.run
    }

    fn note(&self) {
        if let Some(run) = &self.run {
            // without it, it is built once more
            let _ = fs::write(&self.marker, run);
        }
    }
}

/// Makes the lab ready: everything is built anew from the sources as they are, packages are kept.
///
/// # Errors
///
/// When a step fails; the error names its log.
pub fn lab(paths: &Paths) -> Result<Lab, ProvisionError> {
    lab_for(paths, Purpose::Test)
}

/// Makes the lab ready, with programs that are fit to be measured.
///
/// # Errors
///
/// When a step fails; the error names its log.
pub fn lab_to_measure(paths: &Paths) -> Result<Lab, ProvisionError> {
    lab_for(paths, Purpose::Release)
}

fn lab_for(paths: &Paths, purpose: Purpose) -> Result<Lab, ProvisionError> {
    let _lock = lock(paths)?;
    // Each waits for the network, or ends with one crate at a time; beside each other they leave less of a CPU idle.
    let (guests, binaries) = thread::scope(|scope| {
        let guests = scope.spawn(|| kernels_and_agent_locked(paths));
        let binaries = programs_locked(paths, purpose);
        (guests.join(), binaries)
    });
    let binaries = binaries?;
    let (kernels, agent) = guests.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let kind = HostKind::detect(&binaries.strata)?;
    tools::install_all(paths, kind == HostKind::Nested)?;
    let host = match kind {
        HostKind::Direct => Host::Direct(kernels.busybox.clone()),
        HostKind::Nested => Host::Nested(kernels.nested_host(paths)?),
    };
    Ok(Lab { paths: paths.clone(), kernels, binaries, agent, host })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_run_built_or_a_run_without_a_name_is_built_again() {
        let folder = tempfile::tempdir().unwrap();
        let of = |run: Option<&str>| BuiltInRun { marker: folder.path().join("a.run"), run: run.map(str::to_owned) };

        let before = of(Some("1")).is_so();
        of(None).note();
        of(Some("1")).note();

        assert_eq!((before, [Some("1"), Some("2"), None].map(|run| of(run).is_so())), (false, [true, false, false]));
    }
}
