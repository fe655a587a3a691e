//! CPUs of the host that a thread is to run on.

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// CPUs of the host, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(BTreeSet<usize>);

/// Why a text names no CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("write numbers of CPUs and ranges of them, up to {}, as in 0 or 0,2-3", CpuSet::MAX_CPU - 1)]
pub struct NotCpus;

/// Why a thread cannot run where it is to.
#[derive(Debug, Error)]
pub enum PlacementError {
    /// Some of the CPUs are not there, or not for this process.
    #[error("this process may not use CPU {missing} of this host; `taskset -pc $$` shows which there are")]
    Missing {
        /// The CPUs.
        missing: CpuList,
    },
    /// The kernel refused.
    #[error("the kernel does not let a thread run on CPU {cpus}; `taskset -pc $$` shows which there are")]
    Refused {
        /// The CPUs.
        cpus: CpuList,
        /// Its answer.
        #[source]
        source: Errno,
    },
}

impl CpuList {
    /// The CPUs that the calling thread may run on now; `None` where the kernel does not say.
    #[must_use]
    pub fn of_this_thread() -> Option<Self> {
        let set = sched_getaffinity(None).ok()?;
        let cpus: BTreeSet<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect();
        (!cpus.is_empty()).then_some(Self(cpus))
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The first of them, and all others, where there are several.
    #[must_use]
    pub fn split_first(&self) -> Option<(Self, Self)> {
        let mut others = self.0.clone();
        let first = others.pop_first()?;
        (!others.is_empty()).then(|| (Self([first].into()), Self(others)))
    }

    /// Whether a thread of this process may run on these CPUs, tried with one.
    ///
    /// # Errors
    /// When it may not run on each of them.
    pub fn try_place(&self) -> Result<(), PlacementError> {
        let tried = std::thread::scope(|scope| scope.spawn(|| self.place_this_thread()).join());
        tried.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Has the calling thread run on these CPUs only, from now on.
    ///
    /// # Errors
    /// When the thread may not run on each of them; where it then runs is not said.
    pub fn place_this_thread(&self) -> Result<(), PlacementError> {
        let mut set = CpuSet::new();
        self.0.iter().for_each(|&cpu| set.set(cpu));
        sched_setaffinity(None, &set).map_err(|source| PlacementError::Refused { cpus: self.clone(), source })?;
        // The kernel leaves out those that it does not have.
        let given = Self::of_this_thread().map(|given| given.0).unwrap_or_default();
        let missing: BTreeSet<usize> = self.0.difference(&given).copied().collect();
        if missing.is_empty() { Ok(()) } else { Err(PlacementError::Missing { missing: Self(missing) }) }
    }
}

impl FromStr for CpuList {
    type Err = NotCpus;

    fn from_str(text: &str) -> Result<Self, NotCpus> {
        let number = |text: &str| text.parse().ok().filter(|&cpu: &usize| cpu < CpuSet::MAX_CPU).ok_or(NotCpus);
        let mut cpus = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(NotCpus);
            }
            cpus.extend(first..=last);
        }
        Ok(Self(cpus))
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<(usize, usize)> = Vec::new();
        for &cpu in &self.0 {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == cpu => *last = cpu,
                _ => ranges.push((cpu, cpu)),
            }
        }
        let text =
            |(first, last): (usize, usize)| if first == last { first.to_string() } else { format!("{first}-{last}") };
        formatter.write_str(&ranges.into_iter().map(text).collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> CpuList {
        text.parse().unwrap()
    }

    #[test]
    fn numbers_and_ranges_are_read_and_shown_in_order() {
        assert_eq!(list("5,0-2,1,4").to_string(), "0-2,4-5");
        assert_eq!((list("3").to_string(), list("3").count()), ("3".into(), 1));
    }

    #[test]
    fn what_names_no_cpu_is_refused() {
        for text in ["", "a", "1,", "3-1", "-1", "1-", "0-1024", "99999999999999999999"] {
            assert_eq!(text.parse::<CpuList>(), Err(NotCpus), "{text}");
        }
    }

    #[test]
    fn first_cpu_is_distinguished_where_there_are_others() {
        let (first, others) = list("0-3").split_first().unwrap();

        assert_eq!((first.to_string(), others.to_string()), ("0".into(), "1-3".into()));
        assert_eq!(list("2").split_first(), None);
    }

    #[test]
    fn thread_runs_on_a_cpu_that_is_there_and_is_refused_on_others() {
        let all = CpuList::of_this_thread().unwrap();
        let (first, missing) = (all.0.first().unwrap().to_string(), CpuSet::MAX_CPU - 1);

        let half = list(&format!("{first},{missing}")).try_place().unwrap_err();
        let refused = list(&missing.to_string()).try_place().unwrap_err();

        assert!(list(&first).try_place().is_ok());
        assert_eq!(CpuList::of_this_thread(), Some(all));
        assert!(matches!(half, PlacementError::Missing { .. }) && half.to_string().contains("1023"), "{half}");
        assert!(matches!(refused, PlacementError::Refused { .. }), "{refused}");
    }
}
