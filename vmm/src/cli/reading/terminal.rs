//! How reading commands use a terminal.

use clap::{Args, ColorChoice};

/// How long text is shown.
#[derive(Clone, Copy, Debug, Args)]
pub struct TerminalArgs {
    /// When to colour text; auto, the default: on a terminal, unless NO_COLOR is set
    #[arg(help_heading = "Terminal", long, value_name = "WHEN", default_value = "auto", hide_default_value = true)]
    pub color: ColorChoice,
    /// Do not start a pager; on a terminal, Strata starts STRATA_PAGER, PAGER or less
    #[arg(help_heading = "Terminal", long)]
    pub no_pager: bool,
    /// Lines as long as they are, in place of the terminal's width
    #[arg(help_heading = "Terminal", long)]
    pub wide: bool,
}
