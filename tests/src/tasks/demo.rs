//! The demonstration: a stock Debian kernel boots with tracing on, and one merged trace of all layers comes out.

use crate::build::initramfs::InitramfsError;
use crate::fetch::module_tree::ModulesError;
use crate::machine::host::{Host, HostError, HostRun};
use crate::machine::nested;
use crate::paths::Paths;
use crate::process::{self, ProcessError};
use crate::progress;
use crate::provision::{self, Lab, ProvisionError};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The name of the run, and of its script in the guest.
const NAME: &str = "demo";

/// What the guest does while it is traced.
const GUEST_SCRIPT: &str = "\
workload --events 1000
ls -lR /proc/sys > /dev/null
for i in 1 2 3 4 5 6 7 8 9 10; do
    dd if=/dev/zero of=/tmp/file bs=64k count=16 2> /dev/null
    md5sum /tmp/file > /dev/null &
done
wait
dd if=/dev/zero of=/dev/vda bs=64k count=64 conv=fsync 2> /dev/null
dd if=/dev/vda of=/dev/null bs=64k count=64 2> /dev/null
";

/// `@PLACE@` is filled in.
const HOST_SCRIPT: &str = "\
truncate -s 16M \"$LAB_OUT/disk.img\"
strata run --kernel \"$LAB/vmlinux\" --initrd \"$LAB/guest.cpio\" --cpus 2 --memory 512M --disk \"$LAB_OUT/disk.img\" \\
    --cmdline \"$GUEST lab.script=demo\" \\
    --agent \"$LAB/strata.ko\" --trace \"$LAB_OUT/trace\" @PLACE@
";

/// Why the demonstration failed.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The trace folder is already there.
    #[error("{} exists: remove it or choose another folder with --out", .0.display())]
    Exists(PathBuf),
    /// The lab could not be made ready.
    #[error(transparent)]
    Provision(#[from] ProvisionError),
    /// The guest image lacks a module.
    #[error(transparent)]
    Modules(#[from] ModulesError),
    /// The guest image could not be made.
    #[error(transparent)]
    Initramfs(#[from] InitramfsError),
    /// The run failed.
    #[error(transparent)]
    Host(#[from] HostError),
    /// `strata` or a copy failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The run left no trace.
    #[error("the run left no trace; see {}", .0.display())]
    NoTrace(PathBuf),
    /// The working folder could not be removed.
    #[error("cannot remove {}", path.display())]
    Remove {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Runs the demonstration: trace into the new folder `out`, report on standard output. `keep` keeps the run's working
/// folder with its logs.
///
/// # Errors
///
/// When `out` exists, the lab cannot be made ready, the run fails, or its trace does not pass `strata check`.
pub fn run(paths: &Paths, out: &Path, keep: bool) -> Result<(), DemoError> {
    if out.symlink_metadata().is_ok() {
        return Err(DemoError::Exists(out.to_path_buf()));
    }
    let lab = provision::lab(paths)?;
    let folder = record(&lab, out)?;
    let strata = &lab.binaries.strata;
    process::run_visible(Command::new(strata).args(["report", "--no-pager"]).arg(out))?;
    process::run_visible(Command::new(strata).args(["check", "--no-pager"]).arg(out))?;
    println!("\nThe trace is in {}.", out.display());
    println!("  {} events {}              the merged listing", strata.display(), out.display());
    println!("  {} report tasks {}        where each guest task's time went", strata.display(), out.display());
    println!(
        "  {} report flows {}        disk requests, step by step through every layer",
        strata.display(),
        out.display()
    );
    println!("  babeltrace2 {}            the same through babeltrace", out.display());
    println!("  Trace Compass opens the folder as it is.");
    if keep {
        progress::note(&format!("working files kept in {}", folder.display()));
    } else {
        fs::remove_dir_all(&folder).map_err(|source| DemoError::Remove { path: folder, source })?;
    }
    Ok(())
}

/// Records the demonstration's trace into `out` and returns the run's working folder.
///
/// # Errors
///
/// When the guest image cannot be made, or the run fails or leaves no trace.
pub fn record(lab: &Lab, out: &Path) -> Result<PathBuf, DemoError> {
    let image = lab.paths.images().join("demo.cpio");
    lab.kernels
        .guest_image()?
        .program("workload", &lab.binaries.workload)
        .script(NAME, GUEST_SCRIPT)
        .write_file(&image)?;
    // As docs/production.md advises: on a CPU that no vCPU uses, where there is one.
    let place = match &lab.host {
        Host::Nested(_) => format!("--recorder-cpus {}", nested::SPARE_CPU),
        Host::Direct(_) => "--drain idle".into(),
    };
    let request = HostRun::new(NAME, &HOST_SCRIPT.replace("@PLACE@", &place))
        .file("strata", &lab.binaries.strata)
        .file("vmlinux", &lab.kernels.vmlinux)
        .file("guest.cpio", &image)
        .file("strata.ko", &lab.agent);
    let result = progress::step("tracing a guest", || lab.host.run(&lab.paths.runs(), &request)?.success(NAME))?;
    let trace = result.output.join("trace");
    if !trace.is_dir() {
        return Err(DemoError::NoTrace(result.script_log));
    }
    let mut copy = Command::new("cp");
    copy.arg("-a").arg(&trace).arg(out);
    process::run_logged(&mut copy, &lab.paths.logs().join("demo-copy.log"))?;
    Ok(lab.paths.runs().join(NAME))
}
