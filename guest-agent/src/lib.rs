//! Guest user level.
