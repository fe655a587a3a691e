//! How wide lines for people are: as wide as the terminal, where they go to one.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Columns of the terminal; 0 for lines as long as they are.
static COLUMNS: AtomicUsize = AtomicUsize::new(0);

/// From now on, lines of tables and paragraphs keep to so many columns where they can.
pub fn keep_to(columns: usize) {
    COLUMNS.store(columns, Ordering::Relaxed);
}

/// The columns to keep to, if any.
#[must_use]
pub fn columns() -> Option<usize> {
    Some(COLUMNS.load(Ordering::Relaxed)).filter(|&columns| columns > 0)
}
