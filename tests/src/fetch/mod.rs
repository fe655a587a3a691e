//! What comes from Debian and npm: tools, kernels and their headers, a browser, downloaded and unpacked.

pub mod apt;
pub mod browser;
pub mod kernel_packages;
pub mod kernel_sources;
pub mod module_tree;
pub mod tools;
pub mod trace_processor;
