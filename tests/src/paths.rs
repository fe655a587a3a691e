//! Where the lab keeps its files.

use crate::fetch::kernel_packages::KernelChoice;
use std::path::{Path, PathBuf};

/// The folders of the lab, all below one root.
#[derive(Clone, Debug)]
pub struct Paths {
    workspace: PathBuf,
    lab: PathBuf,
}

impl Paths {
    /// The lab of the workspace that this crate was built from: `target/lab` there, or the folder named by the
    /// environment variable `STRATA_LAB_DIR`.
    #[must_use]
    pub fn of_workspace() -> Self {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        let workspace = manifest.parent().unwrap_or(manifest).to_path_buf();
        let lab = std::env::var_os("STRATA_LAB_DIR").map_or_else(|| workspace.join("target/lab"), PathBuf::from);
        Self { workspace, lab }
    }

    /// A lab in a folder of its own, for tests.
    #[must_use]
    pub fn new(workspace: PathBuf, lab: PathBuf) -> Self {
        Self { workspace, lab }
    }

    /// The top of the source tree.
    #[must_use]
    pub fn workspace(&self) -> &Path {
        &self.workspace
    }

    /// Where the caller's cargo builds.
    #[must_use]
    pub fn target(&self) -> PathBuf {
        self.workspace.join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
    }

    /// The root of the lab's own files.
    #[must_use]
    pub fn lab(&self) -> &Path {
        &self.lab
    }

    /// apt's private state: sources, package lists, archives.
    #[must_use]
    pub fn apt(&self) -> PathBuf {
        self.lab.join("apt")
    }

    /// Downloaded kernel packages.
    #[must_use]
    pub fn packages(&self) -> PathBuf {
        self.lab.join("packages")
    }

    /// The unpacked packages of a kernel, as a root file system would hold them.
    #[must_use]
    pub fn kernel_root(&self, kernel: KernelChoice) -> PathBuf {
        if kernel == KernelChoice::DEFAULT {
            self.lab.join("kernel-root")
        } else {
            self.lab.join(format!("kernel-root-{kernel}"))
        }
    }

    /// Root file systems of Debian that programs run in.
    #[must_use]
    pub fn roots(&self) -> PathBuf {
        self.lab.join("roots")
    }

    /// Kernels ready to boot.
    #[must_use]
    pub fn kernels(&self) -> PathBuf {
        self.lab.join("kernels")
    }

    /// Copies of QEMU without its faults.
    #[must_use]
    pub fn emulators(&self) -> PathBuf {
        self.lab.join("emulators")
    }

    /// Target folders of the lab's own cargo builds.
    #[must_use]
    pub fn builds(&self) -> PathBuf {
        self.lab.join("build")
    }

    /// Guest images and finished kernel modules.
    #[must_use]
    pub fn images(&self) -> PathBuf {
        self.lab.join("images")
    }

    /// Logs of everything that the lab ran, one file per step.
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        self.lab.join("logs")
    }

    /// One folder per run of a host, nested or direct.
    #[must_use]
    pub fn runs(&self) -> PathBuf {
        self.lab.join("runs")
    }
}
