//! What comes from Debian and npm: tools, kernels and their headers, downloaded and unpacked.

pub mod apt;
pub mod kernel_packages;
pub mod module_tree;
pub mod tools;
pub mod trace_processor;
