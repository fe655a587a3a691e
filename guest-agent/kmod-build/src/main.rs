//! `strata-kmod-build`: builds the guest kernel module where the packages' sources are. What DKMS runs.

use clap::Parser;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use strata_kmod_build::{INSTALLED, Request};

/// Builds strata's guest kernel module for one kernel
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Example:\n  strata-kmod-build --kernel-headers /lib/modules/$(uname -r)/build --out strata.ko"
)]
struct Arguments {
    /// The kernel's header tree: what `make -C` takes
    #[arg(long, value_name = "DIR")]
    kernel_headers: PathBuf,
    /// Refuse headers that are not those of this kernel
    #[arg(long, value_name = "RELEASE")]
    kernel: Option<String>,
    /// The kernel's BTF, raw, in an ELF file or in an image [default: where the kernel keeps it]; without it, events whose headers
    /// look into private structures are left out
    #[arg(long, value_name = "FILE")]
    btf: Option<PathBuf>,
    /// Folder with the module's sources
    #[arg(long, value_name = "DIR", default_value = INSTALLED)]
    sources: PathBuf,
    /// Folder for intermediate files, kept [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// Module to write
    #[arg(long, value_name = "FILE", default_value = "strata.ko")]
    out: PathBuf,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let temporary = tempfile::tempdir()?;
    let work: &Path = arguments.work.as_deref().unwrap_or(temporary.path());
    let built = strata_kmod_build::build(&Request {
        sources: &arguments.sources,
        kernel_headers: &arguments.kernel_headers,
        release: arguments.kernel.as_deref(),
        kernel: None,
        btf: arguments.btf.as_deref(),
        work,
        out: &arguments.out,
    })?;
    let (events, missing) = (built.events.events.len(), built.events.missing.len());
    let left_out =
        if built.used_btf { format!(", {missing} tracepoints left out") } else { ", built without BTF".into() };
    println!("{} for kernel {}: {events} events{left_out}", arguments.out.display(), built.release);
    Ok(())
}
