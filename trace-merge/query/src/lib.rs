//! Recordings as Parquet, and SQL over them: what is behind `strata export --format parquet` and `strata query`.
//!
//! [`tables`] says what there is, [`parquet`] writes it in one pass over a recording with the timeline, states and
//! reports of `trace-merge`, and [`sql`] answers questions about it. `docs/query.md` is the documentation.
#![allow(missing_docs, reason = "no other project imports it: names say it, or a comment does")]

#[cfg(test)]
mod duckdb;
#[cfg(test)]
pub mod made_recording;
#[cfg(test)]
mod pandas;
pub mod parquet;
#[cfg(feature = "sql")]
pub mod sql;
pub mod tables;
