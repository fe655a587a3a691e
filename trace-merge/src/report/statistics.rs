//! What reports count: times by how often they have which length, and when what is summed up happened.

pub mod distribution;
pub mod ended;
pub mod histogram;
pub(crate) mod samples;
