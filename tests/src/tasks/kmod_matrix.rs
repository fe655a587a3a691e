//! `cargo xtask kmod --matrix`: builds the guest kernel module for every kernel that Debian's suites hold. Nothing is loaded.

mod table;

use self::table::{HEAD, OfferedKernel, Outcome, Row};
use super::markers;
use crate::build::kmod;
use crate::fetch::apt::PackageError;
use crate::fetch::kernel_packages::{KernelChoice, KernelPackages, Offered};
use crate::fetch::tools;
use crate::lock::Lock;
use crate::paths::Paths;
use crate::process_group::GoesOnSignal;
use crate::progress;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;
use strata_kmod::module_file::ModuleEvents;
use strata_kmod_build::{LEFT_OUT, LeftOut, headers};
use tempfile::TempDir;

/// The document with the table, and the part that it stands in.
const DOCUMENT: &str = "docs/events.md";
const PART: &str = "kernel-matrix";
/// What a build says of itself, in its folder.
const LOGS: [&str; 3] = [LEFT_OUT, "units.log", "build.log"];

/// What to build, and where to write what came of it besides the standard output.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Only these kernels, which have to be there; every kernel of [`KernelChoice::with_module`] when empty.
    pub kernels: Vec<KernelChoice>,
    /// A file for the rows as JSON.
    pub json: Option<PathBuf>,
    /// Whether to put a table into the document.
    pub update_document: bool,
}

/// Builds the module for one kernel after the other, and prints a row of a table for each.
///
/// # Errors
///
/// When a module could not be built, nothing was built at all, or a result cannot be written.
pub fn run(paths: &Paths, options: &Options) -> anyhow::Result<()> {
    let named = !options.kernels.is_empty();
    let kernels = if named { options.kernels.clone() } else { KernelChoice::with_module().collect() };
    fs::create_dir_all(paths.logs())?;
    let _lock = Lock::take(&paths.lab().join("kernel-matrix.lock"))?;
    tools::install_all(paths, false)?;
    println!("{HEAD}");
    let mut rows = Vec::new();
    for kernel in kernels {
        let row = row(paths, kernel)?;
        println!("{}", row.markdown());
        rows.push(row);
        if let Some(file) = &options.json {
            fs::write(file, serde_json::to_string_pretty(&rows)? + "\n")?;
        }
    }
    if options.update_document {
        markers::write_into(&paths.workspace().join(DOCUMENT), PART, &table::document(&rows))?;
    }
    let failed = rows.iter().filter(|row| row.has_failed(named)).count();
    let built = rows.iter().filter(|row| matches!(row.outcome, Outcome::Built { .. })).count();
    anyhow::ensure!(
        failed == 0,
        "no module for {failed} of {} kernels; logs in {}",
        rows.len(),
        paths.logs().display()
    );
    anyhow::ensure!(built > 0, "no kernel could be fetched: check the network and the mirror deb.debian.org");
    Ok(())
}

/// Fetches a kernel, builds the module for it and removes both.
fn row(paths: &Paths, kernel: KernelChoice) -> anyhow::Result<Row> {
    // which takes more than a gigabyte with the modules of older kernels
    let folder = TempDir::with_prefix_in("kernel-matrix-", paths.lab())?;
    let _goes = GoesOnSignal::new(folder.path());
    let root = folder.path().join("root");
    let fetch = || Offered::of(paths, kernel)?.unpack_for_module(paths, &root);
    let packages = match progress::step(&format!("fetching the kernel of {kernel}"), fetch) {
        Ok(packages) => packages,
        Err(error) => {
            let outcome = Outcome::Absent { why: chain(error) };
            return Ok(Row { kernel, offered: None, outcome, seconds: 0.0 });
        }
    };
    let start = Instant::now();
    let work = folder.path().join("work");
    let build = || build(paths, &packages, &root, &work);
    let outcome = progress::step(&format!("building the module for {}", packages.release), build)
        .unwrap_or_else(|error| Outcome::Failed { why: chain(error) });
    keep_logs(paths, kernel, &work)?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(Row { kernel, offered: Some(described(packages, &root)), outcome, seconds })
}

fn chain(error: impl Into<anyhow::Error>) -> String {
    format!("{:#}", error.into())
}

/// The module of a kernel whose packages lie in `root`, built in the folder `work`.
fn build(paths: &Paths, packages: &KernelPackages, root: &Path, work: &Path) -> anyhow::Result<Outcome> {
    let (headers, module) = (packages.headers(root), work.with_extension("ko"));
    let image = packages.bzimage(root);
    let btf = is_configured(&headers, "CONFIG_DEBUG_INFO_BTF").then_some(&*image);
    kmod::build_in(paths, &headers, btf, work, &module)?;
    let events = ModuleEvents::read(&fs::read(&module)?)?;
    let left_out = LeftOut::parse_list(&fs::read_to_string(work.join(LEFT_OUT))?);
    Ok(Outcome::Built {
        events: events.events.len(),
        missing: events.missing.len(),
        // a build that is given BTF uses it, or fails
        btf: btf.is_some(),
        left_out: table::counts(&left_out),
    })
}

fn described(packages: KernelPackages, root: &Path) -> OfferedKernel {
    let tree = packages.headers(root);
    let (compiler, realtime) = (headers::compiler(&tree), is_configured(&tree, "CONFIG_PREEMPT_RT"));
    let KernelPackages { release, version } = packages;
    OfferedKernel { release, version, compiler, realtime }
}

/// Whether the kernel of the header tree `tree` is built with `option`.
fn is_configured(tree: &Path, option: &str) -> bool {
    let line = format!("{option}=y");
    fs::read_to_string(tree.join("include/config/auto.conf")).is_ok_and(|text| text.lines().any(|known| known == line))
}

/// Keeps what a build has said, whose folder goes: which headers were left out, and why it failed.
fn keep_logs(paths: &Paths, kernel: KernelChoice, work: &Path) -> Result<(), PackageError> {
    for name in LOGS.into_iter().filter(|name| work.join(name).exists()) {
        let path = paths.logs().join(format!("kernel-matrix-{kernel}-{name}"));
        fs::copy(work.join(name), &path).map_err(|source| PackageError::File { path, source })?;
    }
    Ok(())
}
