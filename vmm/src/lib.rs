//! VMM.
pub mod machine;
pub mod probe;
