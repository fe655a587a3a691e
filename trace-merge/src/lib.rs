//! Trace merge.
