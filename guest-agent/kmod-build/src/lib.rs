//! Builds the guest kernel module for one kernel.
//!
//! The module has a Rust half, which knows nothing of the kernel's version and is compiled once, and a C half, which
//! the kernel's own build system compiles against the kernel's headers. A *sources folder* holds what the second step
//! takes: the C files, `Kbuild`, the linked Rust object (`rust.o_shipped`) and the header generated from the Rust
//! definitions (`strata_abi.h`). To these, a build adds a C file for each of the kernel's trace headers that compile.
//! It is made in the source tree and installed with the packages, so that a module can be built where there is neither
//! cargo nor the Rust sources: on a user's machine, or by DKMS in a guest.
#![allow(missing_docs, reason = "no other project imports it: names say it, or a comment does")]

mod build_log;
pub mod compression;
pub mod headers;
pub mod kernel_image;
mod kernel_make;
mod lzop;
mod module;
mod partial_file;
mod private_types;
mod sources;
mod trace_header;
mod tracepoint_preludes;
mod tracepoint_units;

pub use module::{Built, KmodBuildError, LEFT_OUT, Request, build, module_release};
pub use partial_file::partial;
pub use private_types::BtfError;
pub use sources::{INSTALLED, NotSources, SourcesError, check, mirror, write_if_changed};
pub use tracepoint_units::{LeftOut, UnitsError};
