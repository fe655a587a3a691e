//! Ready questions to `strata query`: files of SQL, whose first lines say what they answer.

use crate::report::rows::table::{Align, Table};
use crate::report::sink::Sink;
use std::io;
use strata_recording::text::nearest::nearest;
use thiserror::Error;

/// Why ready questions are not listed.
#[derive(Debug, Error)]
pub enum ReadyError {
    /// None has this name.
    #[error("there is no ready question '{name}': {}", suggestion(name))]
    Unknown { name: String },
    /// The list cannot be written.
    #[error("the questions cannot be written")]
    Write(#[from] io::Error),
}

/// A ready question.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    pub name: &'static str,
    pub text: &'static str,
}

impl Ready {
    /// What it answers: the comment that it begins with.
    #[must_use]
    pub fn about(&self) -> String {
        let lines = self.text.lines().map_while(|line| line.strip_prefix("--"));
        lines.map(str::trim).collect::<Vec<_>>().join(" ")
    }

    /// The one called `name`.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        READY.iter().find(|ready| ready.name == name)
    }
}

macro_rules! ready {
    ($($name:literal),* $(,)?) => {
        pub const READY: &[Ready] =
            &[$(Ready { name: $name, text: include_str!(concat!("../query/queries/", $name, ".sql")) }),*];
    };
}

ready!(
    "recordings",
    "losses",
    "gaps",
    "events-by-type",
    "events-by-task",
    "vcpu-states",
    "steal",
    "cpu-ready",
    "longest-steals",
    "exits-by-reason",
    "exits-by-place",
    "exits-per-second",
    "slowest-exits",
    "task-states",
    "cpu-by-cgroup",
    "blocked-on",
    "worst-wakeups",
    "wakeup-latency",
    "syscalls-by-name",
    "syscalls-by-process",
    "failed-syscalls",
    "locks",
    "disk-requests",
    "disk-steps",
    "disk-steps-by-kernel",
    "slowest-requests",
    "packets",
    "packet-steps",
    "slowest-packets",
    "switches",
);

/// Which ready questions are called nearly as `name`, in words.
#[must_use]
pub fn suggestion(name: &str) -> String {
    let near = nearest(name, READY.iter().map(|ready| ready.name));
    if near.is_empty() { "--list has them".into() } else { format!("nearest: {}", near.join(", ")) }
}

/// Lists the ready questions, or shows the SQL of the one called `name`.
///
/// # Errors
/// When there is none of that name, or `out` fails.
pub fn list(name: Option<&str>, out: &mut dyn Sink) -> Result<(), ReadyError> {
    if let Some(name) = name {
        let ready = Ready::find(name).ok_or_else(|| ReadyError::Unknown { name: name.into() })?;
        return Ok(out.write_all(ready.text.as_bytes())?);
    }
    let mut table = Table::new(&[("question", Align::Left), ("what it answers", Align::Left)]);
    READY.iter().for_each(|ready| table.row([ready.name.to_string(), ready.about()]));
    Ok(table.write(out)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_has_each_question_and_what_it_answers() {
        let mut listed = Vec::new();

        list(None, &mut listed).unwrap();

        let listed = String::from_utf8(listed).unwrap();
        assert_eq!(listed.lines().count(), READY.len() + 1);
        assert!(READY.iter().all(|ready| listed.contains(ready.name) && listed.contains(&ready.about())), "{listed}");
    }

    #[test]
    fn question_of_a_name_is_shown_and_one_of_none_names_the_nearest() {
        let mut shown = Vec::new();

        list(Some("steal"), &mut shown).unwrap();
        let unknown = list(Some("stael"), &mut io::sink()).unwrap_err().to_string();

        assert_eq!(Some(shown.as_slice()), Ready::find("steal").map(|ready| ready.text.as_bytes()));
        assert!(unknown.starts_with("there is no ready question 'stael': nearest: steal"), "{unknown}");
    }
}
