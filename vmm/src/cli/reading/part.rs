//! Which part of a recording a command reads.

use clap::Args;
use std::path::Path;
use trace_merge::moment::{Moment, MomentError, Part};

/// Which part of a trace is read.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct PartArgs {
    /// Begin this long after the first record, as in 1.5 or 500ms. A time with a minus (-2s) counts back from
    /// the last record; one with colons (05:03:47, 2026-11-27T05:03:47Z) is UTC
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub from: Option<Moment>,
    /// End this long after the first record. Takes the same forms as --from
    #[arg(long = "until", alias = "to", value_name = "TIME", allow_hyphen_values = true)]
    pub to: Option<Moment>,
}

impl PartArgs {
    /// The part of the recording in `trace`.
    ///
    /// # Errors
    /// When the recording cannot be read, to find its end, or has nothing at a time of UTC.
    pub fn of(self, trace: &Path) -> Result<Part, MomentError> {
        Part::of(trace, self.from, self.to)
    }
}
