//! What comes from Debian: tools, kernels and their headers, downloaded and unpacked.

pub mod apt;
pub mod kernel_packages;
pub mod module_tree;
pub mod tools;
