//! Text for people: counts in words, names near to one that does not exist, and what is safe on a terminal.

pub mod counted;
pub mod nearest;
pub mod terminal;
