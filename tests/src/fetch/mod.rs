//! What comes from Debian, npm, PyPI and crates.io: tools, kernels and their headers, a browser, VMMs, downloaded and
//! unpacked.

pub mod apt;
pub mod browser;
pub mod kernel_packages;
pub mod kernel_sources;
pub mod module_tree;
pub mod other_vmms;
pub mod perfetto_viewer;
pub mod tools;
pub mod trace_processor;
