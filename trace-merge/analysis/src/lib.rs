//! What the records of a recording mean.
//!
//! [`event`] decodes them, and [`timeline`] makes states of them: who ran on which CPU, what a task waited for, what a
//! vCPU did. [`pass()`] feeds both to any number of analyses in one pass. Where records are missing, states are unknown
//! ([`completeness`]); nothing is guessed.

pub mod address_symbols;
pub mod completeness;
pub mod event;
pub mod exit_reason;
pub mod field_names;
pub mod filter;
pub mod kernel_symbols;
pub mod names;
mod pass;
pub mod symbol_file;
pub mod task_choice;
pub mod timeline;
pub mod user_symbols;
pub mod vcpu;

pub use pass::{Analysis, Gap, Passed, pass, pass_reporting};
