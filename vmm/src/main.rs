//! strata.
fn main() {}
