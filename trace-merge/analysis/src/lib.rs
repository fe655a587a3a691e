//! What the records of a recording mean.
//!
//! [`event`] decodes them, and [`timeline`] makes states of them: who ran on which CPU, what a task waited for, what a
//! vCPU did. [`pass()`] feeds both to any number of analyses in one pass. Where records are missing, states are unknown
//! ([`completeness`]); nothing is guessed.

pub mod address_symbols;
pub mod argument_names;
pub mod by_number;
pub mod completeness;
pub mod errno_names;
pub mod event;
pub mod exit_reason;
pub mod field_names;
pub mod filter;
pub mod kernel_symbols;
pub mod lock_names;
pub mod msr_names;
mod pass;
pub mod signal_names;
pub mod softirq_names;
pub mod symbol_file;
pub mod syscall_names;
pub mod task_choice;
pub mod task_state_names;
pub mod timeline;
pub mod user_symbols;
pub mod vcpu;
pub mod vector_names;

pub use pass::{Analysis, Gap, Passed, pass, pass_telling};
