//! The commands that read recordings.

mod export;
mod part;
mod query;
mod report;
mod symbols;
mod terminal;
mod trace;

pub use export::{DrawnWhyArgs, ExportArgs, Format, OpenArgs, VIEWER_PORT};
pub use part::PartArgs;
pub use query::QueryArgs;
pub(super) use report::report_called;
pub use report::{PageArgs, ReportArgs, ReportCommand, ReportRequest, WindowArgs};
pub use symbols::SymbolArgs;
pub use terminal::TerminalArgs;
pub use trace::{CutArgs, DiffArgs, EventsArgs, MergeArgs, ReadArgs, WhyArgs};
