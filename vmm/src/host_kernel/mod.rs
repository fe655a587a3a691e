//! The host-kernel layer.
pub mod page;
mod print_format;
pub mod schema;
