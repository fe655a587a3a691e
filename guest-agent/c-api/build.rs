//! Names the interface that the shared library has: another one gets another name.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libstrata.so.1");
    println!("cargo::rerun-if-changed=build.rs");
}
