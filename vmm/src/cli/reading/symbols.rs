//! Symbols of kernels, for commands that show addresses.

use clap::Args;
use strata_analysis::symbol_file::SymbolFile;

/// Where symbols of kernels are.
#[derive(Clone, Debug, Default, Args)]
pub struct SymbolArgs {
    /// Take a kernel's symbols from FILE, in place of the trace's: /proc/kallsyms of the recorded boot (read as root),
    /// System.map or vmlinux. KERNEL is `host` or a VM's name; give it if the trace has several kernels. May be repeated
    #[arg(long = "kallsyms", visible_alias = "vmlinux", value_name = "[KERNEL=]FILE")]
    pub kallsyms: Vec<SymbolFile>,
}
