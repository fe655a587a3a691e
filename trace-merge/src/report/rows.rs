//! Rows of a report: the columns they have, which of them are chosen, and the table that shows them.

pub mod blocks;
pub mod choice;
pub mod columns;
pub mod table;
pub mod width;
