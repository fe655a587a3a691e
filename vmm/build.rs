//! Compiles the boot overlay's first program, which the VMM carries along: a static program that uses the standard
//! library only, so that the compiler alone builds it.

use std::env;
use std::error::Error;
use std::path::PathBuf;
use std::process::Command;

const SOURCE: &str = "../guest-agent/src/bin/strata-init.rs";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={SOURCE}");
    println!("cargo::rerun-if-changed=build.rs");
    let variable = |name: &str| env::var_os(name).ok_or_else(|| format!("cargo sets no {name}"));
    let source = PathBuf::from(variable("CARGO_MANIFEST_DIR")?).join(SOURCE);
    let program = PathBuf::from(variable("OUT_DIR")?).join("strata-init");
    let status = Command::new(variable("RUSTC")?)
        .args(["--edition", "2024", "--crate-name", "strata_init", "--target"])
        .arg(variable("TARGET")?)
        .args(["-C", "target-feature=+crt-static", "-C", "opt-level=s", "-C", "panic=abort", "-C", "strip=symbols"])
        .arg("-o")
        .arg(program)
        .arg(&source)
        .status()?;
    if status.success() { Ok(()) } else { Err(format!("cannot compile {}", source.display()).into()) }
}
