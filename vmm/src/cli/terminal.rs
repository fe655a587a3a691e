//! How reading commands use a terminal.

use clap::{Args, ColorChoice};

/// How long text is shown.
#[derive(Clone, Copy, Debug, Args)]
pub struct TerminalArgs {
    /// Colour; auto is on a terminal, unless NO_COLOR is set
    #[arg(help_heading = "Terminal", long, value_name = "WHEN", default_value = "auto", hide_default_value = true)]
    pub color: ColorChoice,
    /// No pager; on a terminal it is STRATA_PAGER, PAGER or less
    #[arg(help_heading = "Terminal", long)]
    pub no_pager: bool,
}
