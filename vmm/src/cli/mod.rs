//! The command line.

pub mod advice;
mod attach;
pub mod completion;
pub mod config_file;
mod control;
mod ctl_usage;
mod groups;
mod jail;
mod reading;
mod recording;
mod region;
mod run;
mod short_help;
pub(crate) mod values;

pub use attach::AttachArgs;
pub use control::{CtlArgs, CtlCommand, MetricsArgs, PsArgs, RecoverArgs, SessionCommand, TopArgs, TriggerCommand};
pub use jail::JailArgs;
pub use reading::{
    CutArgs, DiffArgs, DrawnWhyArgs, EventsArgs, ExportArgs, Format, MergeArgs, OpenArgs, PageArgs, PartArgs,
    QueryArgs, ReadArgs, ReportArgs, ReportCommand, ReportRequest, SymbolArgs, TerminalArgs, VIEWER_PORT, WhyArgs,
    WindowArgs,
};
pub use recording::{BoundArgs, RecordingArgs};
pub use region::{CreateArgs, RegionArgs, RegionCommand};
pub use run::RunArgs;

use crate::agent_command::AgentArgs;
use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use short_help::SEE_MORE;
use std::path::PathBuf;
pub use trace_merge::moment::{BadMoment, Moment};

/// The version; a released program names the commit, too, that it was built from.
const VERSION: &str = match option_env!("STRATA_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// Runs virtual machines and traces every layer of them on one clock.
#[derive(Debug, Parser)]
#[command(
    name = "strata",
    version = VERSION,
    max_term_width = 110,
    help_template = groups::template(),
    after_help = "Examples:\n  \
        strata doctor\n  \
        strata run --kernel vmlinuz --initrd initrd.img --agent strata.ko --trace trace\n  \
        strata attach 4242 --trace trace\n  \
        strata report trace\n  \
        strata why trace --task web --worst 3\n  \
        strata diff yesterday today\n  \
        strata events trace --layer guest-kernel --from 1.5 --until 1.6\n  \
        strata check trace\n\n\
        Exit status: 0; 1 for a bad answer, for instance a violation that check finds, a change that diff finds or a guest that \
    panics; 2 if the command failed."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The command line, with short helps.
#[must_use]
pub fn program() -> clap::Command {
    ctl_usage::with_vm(short_help::with_short_help(Cli::command()))
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a guest; with --trace, record every layer of it
    Run(Box<RunArgs>),
    /// Record a running VM, for instance of QEMU
    Attach(AttachArgs),
    /// List the records of a trace, all layers in time order
    Events(EventsArgs),
    /// Report on a trace: a summary, tasks, vCPUs, locks, disks and more
    Report(ReportArgs),
    /// Explain why a guest's task took so long, through all layers
    Why(WhyArgs),
    /// Compare two traces: what changed, and how sure that is
    Diff(DiffArgs),
    /// Check a trace: causality, order, pairs of events, losses
    Check(ReadArgs),
    /// Write a trace in the form of another tool
    Export(ExportArgs),
    /// Show a trace in Perfetto's viewer, in the browser
    Open(OpenArgs),
    /// Ask traces a question in SQL
    Query(QueryArgs),
    /// Make a trace of a part of one
    Cut(CutArgs),
    /// Make one trace of several, of one host or of two
    Merge(MergeArgs),
    /// List the VMs that run, and those that left a trace to recover
    Ps(PsArgs),
    /// Show what running VMs do, each second
    Top(TopArgs),
    /// Serve what running VMs do as OpenMetrics, for Prometheus
    Metrics(MetricsArgs),
    /// Ask a running VM for its status, a snapshot, another session
    Ctl(CtlArgs),
    /// Make a trace from the region of a VM whose process was killed
    Recover(RecoverArgs),
    /// Build the guest's kernel module, or put it into an initrd
    Agent(AgentArgs),
    /// Make a trace region for a VM of another monitor
    ///
    /// QEMU, libvirt, Cloud Hypervisor and Firecracker can be given one.
    Region(RegionArgs),
    /// Check what works on this machine, and how to fix the rest
    Doctor(DoctorArgs),
    /// Print what a shell needs to complete command lines
    Completions(CompletionsArgs),
    /// Write the manual pages into a folder
    #[command(hide = true)]
    Manual(ManualArgs),
}

/// Arguments of `strata doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// JSON in place of text
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `strata completions`.
#[derive(Debug, Args)]
#[command(after_help = "The Debian package installs them. Without it, for one user's bash:\n  \
    mkdir -p ~/.local/share/bash-completion/completions\n  \
    strata completions bash > ~/.local/share/bash-completion/completions/strata")]
pub struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

/// Arguments of `strata manual`.
#[derive(Debug, Args)]
pub struct ManualArgs {
    /// The folder, which must exist
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_consistent() {
        program().debug_assert();
    }

    #[test]
    fn every_command_has_a_manual_page() {
        let folder = tempfile::tempdir().unwrap();

        clap_mangen::generate_to(program(), folder.path()).unwrap();

        let visible = Cli::command();
        let visible = visible.get_subcommands().filter(|command| !command.is_hide_set());
        for command in visible {
            let page = std::fs::read_to_string(folder.path().join(format!("strata-{}.1", command.get_name()))).unwrap();
            assert!(page.contains(".SH DESCRIPTION"), "{page}");
        }
    }
}
