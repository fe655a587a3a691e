//! Symbols of kernels, for commands that show addresses.

use clap::Args;
use strata_analysis::symbol_file::SymbolFile;

/// Where symbols of kernels are.
#[derive(Clone, Debug, Default, Args)]
pub struct SymbolArgs {
    /// Symbols of a kernel that the trace has none of, or others: /proc/kallsyms of the boot that was recorded, System.map or
    /// vmlinux. KERNEL is `host` or a VM, needed where there are several. May be repeated
    #[arg(long = "kallsyms", visible_alias = "vmlinux", value_name = "[KERNEL=]FILE")]
    pub kallsyms: Vec<SymbolFile>,
}
