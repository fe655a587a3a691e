//! Names the interface that the shared library has: another one gets another name. It is never unloaded: threads name
//! sequences and a destructor of it.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libstrata.so.1");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
