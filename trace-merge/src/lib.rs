//! What is done with recorded traces. Needs no KVM and no root.
//!
//! [`join`] makes one recording of several (clocks of two hosts related by a [`match_rule`]), [`mod@cut`] one of a part. [`events`], [`report`],
//! [`critical_path`] and [`check`] list, summarise, explain and verify a recording; [`diff`] compares two.
//! [`ready_questions`] are asked of several with `strata query`.
#![allow(missing_docs, reason = "no other project imports it: names say it, or a comment does")]

pub mod check;
pub mod critical_path;
pub mod cut;
pub mod diff;
pub mod events;
pub mod join;
mod layer_copy;
pub mod match_rule;
pub mod moment;
pub mod progress;
pub mod ready_questions;
pub mod report;
