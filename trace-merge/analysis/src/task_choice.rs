//! Which tasks are meant: as people type them, and as the reports show them.

use std::fmt;
use std::str::FromStr;
use thiserror::Error;
use wildmatch::WildMatch;

/// Tasks that a question is about.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskChoice {
    text: String,
    /// Its thread id.
    pub tid: Option<i32>,
    /// What its name matches.
    name: WildMatch,
    /// What its name matches, and its thread id: `NAME/TID`, or `TID/NAME`. Names may have a slash, too.
    both: [Option<(WildMatch, i32)>; 2],
}

/// What names no task.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("give a task's name, its thread id, or both as NAME/TID")]
pub struct BadTask;

impl FromStr for TaskChoice {
    type Err = BadTask;

    /// `TID`, `NAME`, which may be a glob, or both as the reports (`NAME/TID`) and `strata events` (`TID/NAME`) show
    /// them.
    fn from_str(text: &str) -> Result<Self, BadTask> {
        if text.is_empty() {
            return Err(BadTask);
        }
        let both = |name: &str, tid: &str| Some((WildMatch::new(name), tid.parse().ok()?));
        let last = text.rsplit_once('/').and_then(|(name, tid)| both(name, tid));
        let first = text.split_once('/').and_then(|(tid, name)| both(name, tid));
        Ok(Self { text: text.into(), tid: text.parse().ok(), name: WildMatch::new(text), both: [last, first] })
    }
}

impl TaskChoice {
    /// Whether it means the task with thread id `tid` and the name `comm`, where that is known.
    pub fn is(&self, tid: i32, comm: Option<&str>) -> bool {
        let has_name = |name: &WildMatch| comm.is_some_and(|comm| name.matches(comm));
        let mut both = self.both.iter().flatten();
        self.tid == Some(tid) || has_name(&self.name) || both.any(|(name, of)| *of == tid && has_name(name))
    }
}

impl fmt::Display for TaskChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_is_chosen_by_thread_id_name_or_both() {
        let is = |text: &str, tid, comm| text.parse::<TaskChoice>().unwrap().is(tid, Some(comm));

        assert!(is("812", 812, "web") && is("web", 812, "web") && is("w*", 812, "web") && is("web/812", 812, "web"));
        assert!(
            is("812/web", 812, "web") && is("kworker/0:1", 7, "kworker/0:1") && is("ksoftirqd/0", 15, "ksoftirqd/0")
        );
        assert!(!is("web/811", 812, "web") && !is("812/db", 812, "web"));
        assert!(
            "812".parse::<TaskChoice>().unwrap().is(812, None) && !"*".parse::<TaskChoice>().unwrap().is(812, None)
        );
        assert_eq!("".parse::<TaskChoice>(), Err(BadTask));
    }
}
