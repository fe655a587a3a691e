//! Finds out whether the compiler lets inline assembly jump (`label` operands, from Rust 1.87 on): `cfg(asm_label)`.

use std::env;
use std::process::Command;

/// The first minor version of Rust 1 that does.
const FIRST: u32 = 87;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(asm_label)");
    if minor_version().is_some_and(|minor| minor >= FIRST) {
        println!("cargo::rustc-cfg=asm_label");
    }
}

/// The compiler's, of `rustc 1.95.0 (…)`.
fn minor_version() -> Option<u32> {
    let output = Command::new(env::var_os("RUSTC")?).arg("--version").output().ok()?;
    String::from_utf8(output.stdout).ok()?.split('.').nth(1)?.parse().ok()
}
